/* SPDX-License-Identifier: Apache-2.0 */

/* How ranks find each other without `gradus run`: the caller's allgather, and the variables of
 * other launchers. Ranks are processes; their allgather goes through memory that they share. */

#include "base/arena.h"
#include "base/hash.h"
#include "group/bootstrap.h"
#include "group/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 4, PATIENCE_US = 60000000, TEXT_BYTES = 600, RECORDS = 2 };

/* What a rank reports of its join. */
typedef struct report {
    int32_t status, peer_rank;
    int rank, size, host_count;
    char text[TEXT_BYTES];
} report;

/* Shared by all ranks of a test. */
typedef struct board {
    pthread_barrier_t all;
    uint8_t slots[RANKS_MAX][GR_RECORD_BYTES];
    report reports[RANKS_MAX];
} board;

typedef struct caller {
    board *board;
    int rank, size, calls;
    int fail_in, garble_in, swap_in; /* the call, from 1, in which this rank's callback does so */
} caller;

static board *open_board(int size)
{
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&b->all, &shared, (unsigned)size);
    return b;
}

static int gather(void *caller_arg, const void *mine, size_t size_bytes, void *all_out)
{
    caller *c = caller_arg;
    if (size_bytes != GR_RECORD_BYTES) {
        return -1;
    }
    c->calls++;
    memcpy(c->board->slots[c->rank], mine, size_bytes);
    (void)pthread_barrier_wait(&c->board->all);
    memcpy(all_out, c->board->slots, (size_t)c->size * size_bytes);
    (void)pthread_barrier_wait(&c->board->all);
    uint8_t *all = all_out;
    if (c->calls == c->garble_in) {
        memset(all + size_bytes, 0x5a, size_bytes / 2);
    }
    if (c->calls == c->swap_in) {
        uint8_t first[GR_RECORD_BYTES];
        memcpy(first, all, size_bytes);
        memmove(all, all + size_bytes, size_bytes);
        memcpy(all + size_bytes, first, size_bytes);
    }
    return c->calls == c->fail_in ? 7 : 0;
}

static void join(const gr_group_config *config, report *r)
{
    gr_group *group = NULL;
    gr_diag diag = {.peer_rank = -1};
    r->status = gr_group_join(config, NULL, &group, &diag);
    r->peer_rank = diag.peer_rank;
    snprintf(r->text, sizeof r->text, "%s", diag.text);
    if (r->status == GR_OK) {
        r->rank = gr_group_rank(group);
        r->size = gr_group_size(group);
        r->host_count = gr_group_topology(group)->host_count;
        gr_group_leave(group);
    }
}

static pid_t fork_rank(void)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

static void await(const pid_t *pids, int count)
{
    for (int i = 0; i < count; i++) {
        int status = -1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void close_board(board *b)
{
    pthread_barrier_destroy(&b->all);
    munmap(b, sizeof *b);
}

/* ---- The callback ---------------------------------------------------------------------------- */

/* All ranks join by the callback; `plan` of rank `odd` says what goes wrong there. */
static board *join_by_callback(int size, const gr_group_config *config, int odd, const caller *plan)
{
    board *b = open_board(size);
    pid_t pids[RANKS_MAX];
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork_rank();
        if (pids[rank] == 0) {
            caller c = rank == odd ? *plan : (caller){0};
            c.board = b;
            c.rank = rank;
            c.size = size;
            gr_group_config own = *config;
            own.rank = rank;
            own.world_size = size;
            own.allgather = gather;
            own.allgather_arg = &c;
            join(&own, &b->reports[rank]);
            _exit(0);
        }
    }
    await(pids, size);
    return b;
}

static void assert_joined(const board *b, int size, int host_count)
{
    for (int rank = 0; rank < size; rank++) {
        if (b->reports[rank].status != GR_OK) {
            fail_msg("rank %d: %s", rank, b->reports[rank].text);
        }
        assert_int_equal(b->reports[rank].rank, rank);
        assert_int_equal(b->reports[rank].size, size);
        assert_int_equal(b->reports[rank].host_count, host_count);
    }
}

static void callback_gathers_all_join(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        for (int encrypt = 0; encrypt < 2; encrypt++) {
            const gr_group_config config = {.join_timeout_us = PATIENCE_US,
                                            .link = encrypt ? GR_LINK_ALL_TCP : GR_LINK_AUTO,
                                            .encrypt = encrypt};
            board *b = join_by_callback(size, &config, -1, NULL);
            assert_joined(b, size, 1);
            close_board(b);
        }
    }
}

static void callback_without_timeout_runs_on_the_callers_thread(void **state)
{
    (void)state;
    const gr_group_config config = {.join_timeout_us = 0};
    board *b = join_by_callback(2, &config, -1, NULL);
    assert_joined(b, 2, 1);
    close_board(b);
}

static void callback_of_an_elastic_group_all_join(void **state)
{
    (void)state;
    const gr_group_config config = {.join_timeout_us = PATIENCE_US, .members_min = 1};
    board *b = join_by_callback(3, &config, -1, NULL);
    assert_joined(b, 3, 1);
    close_board(b);
}

static void callback_fails_returns_its_number(void **state)
{
    (void)state;
    const gr_group_config config = {.join_timeout_us = PATIENCE_US};
    const caller plan = {.fail_in = 1};
    board *b = open_board(1);
    caller c = plan;
    c.board = b;
    c.size = 1;
    gr_group_config own = config;
    own.world_size = 1;
    own.allgather = gather;
    own.allgather_arg = &c;
    join(&own, &b->reports[0]);
    assert_int_equal(b->reports[0].status, GR_E_IO);
    assert_non_null(strstr(b->reports[0].text, "callback (allgather) of rank 0 failed"));
    assert_non_null(strstr(b->reports[0].text, "returned 7"));
    c.calls = 0;
    c.fail_in = 2; /* rank 0 hosts the coordinator already */
    join(&own, &b->reports[0]);
    assert_int_equal(b->reports[0].status, GR_E_IO);
    close_board(b);
}

static void callback_lies_is_found_out(void **state)
{
    (void)state;
    const gr_group_config config = {.join_timeout_us = PATIENCE_US};
    const caller plans[] = {{.garble_in = 1}, {.garble_in = 2}, {.swap_in = 1}, {.swap_in = 2}};
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        board *b = open_board(2);
        pid_t pids[2];
        for (int rank = 0; rank < 2; rank++) {
            pids[rank] = fork_rank();
            if (pids[rank] == 0) {
                caller c = plans[i];
                c.board = b;
                c.rank = rank;
                c.size = 2;
                gr_group_config own = config;
                own.rank = rank;
                own.world_size = 2;
                own.allgather = gather;
                own.allgather_arg = &c;
                join(&own, &b->reports[rank]);
                _exit(0);
            }
        }
        await(pids, 2);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(b->reports[rank].status, GR_E_PROTOCOL);
            assert_non_null(strstr(b->reports[rank].text, "bootstrap callback (allgather)"));
        }
        close_board(b);
    }
}

typedef struct hang {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t thread;
    bool released, returned;
} hang;

static int never_gather(void *hang_arg, const void *mine, size_t size_bytes, void *all_out)
{
    hang *h = hang_arg;
    pthread_mutex_lock(&h->lock);
    h->thread = gettid();
    while (!h->released) {
        pthread_cond_wait(&h->changed, &h->lock);
    }
    memcpy(all_out, mine, size_bytes); /* its memory is there still */
    h->returned = true;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return 0;
}

static void callback_hangs_ends_with_the_join_timeout(void **state)
{
    (void)state;
    static hang h = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    const gr_group_config config = {
        .world_size = 2, .join_timeout_us = 50000, .allgather = never_gather, .allgather_arg = &h};
    report r = {0};
    join(&config, &r);
    assert_int_equal(r.status, GR_E_TIMEOUT);
    assert_non_null(
        strstr(r.text, "callback (allgather) of rank 0 has not returned within 0.05 s"));
    pthread_mutex_lock(&h.lock);
    h.released = true;
    pthread_cond_signal(&h.changed);
    while (!h.returned) {
        pthread_cond_wait(&h.changed, &h.lock);
    }
    char task[64]; /* it may have begun only now */
    snprintf(task, sizeof task, "/proc/self/task/%d", (int)h.thread);
    pthread_mutex_unlock(&h.lock);
    while (access(task, F_OK) == 0) { /* the next test forks: TSan wants a process of one thread */
        sched_yield();
    }
}

static void callback_ranks_out_of_range_are_refused(void **state)
{
    (void)state;
    const int64_t wrong[][2] = {{2, 2}, {-1, 2}, {0, 0}, {0, GR_GROUP_WORLD_MAX + 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const gr_group_config config = {
            .rank = wrong[i][0], .world_size = wrong[i][1], .allgather = never_gather};
        report r = {0};
        join(&config, &r);
        assert_int_equal(r.status, GR_E_INVALID);
        assert_non_null(strstr(r.text, "ranks go from 0 to the world size less one"));
    }
}

static int listen_at(uint16_t port, uint16_t *port_out)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof at;
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, 1) != 0 ||
                    getsockname(fd, (struct sockaddr *)&at, &size) != 0)) {
        close(fd);
        fd = -1;
    }
    *port_out = ntohs(at.sin_port);
    return fd;
}

static void callback_rank_0_cannot_listen_all_hear_why(void **state)
{
    (void)state;
    char ports[16];
    uint16_t port;
    int taken = listen_at(0, &port);
    assert_true(taken >= 0);
    snprintf(ports, sizeof ports, "%u", port);
    const gr_group_config config = {
        .join_timeout_us = PATIENCE_US, .link = GR_LINK_ALL_TCP, .ports = ports};
    board *b = join_by_callback(3, &config, -1, NULL);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(b->reports[rank].status, GR_E_IO);
        assert_non_null(strstr(b->reports[rank].text, "rank 0 cannot host the coordinator: "));
        assert_non_null(strstr(b->reports[rank].text, ports));
    }
    close(taken);
    close_board(b);
}

/* ---- Records --------------------------------------------------------------------------------- */

static void record_garbled_is_refused(void **state)
{
    (void)state;
    gr_record record = {.kind = GR_RECORD_COORDINATOR,
                        .rank = 3,
                        .world_size = 9,
                        .host = 77,
                        .secret = {1, 2, 3},
                        .text = "tcp:10.0.0.1:4711"};
    gr_record got;
    uint8_t bytes[GR_RECORD_BYTES];
    gr_record_put(&record, bytes);
    assert_int_equal(gr_record_get(bytes, &got), GR_OK);
    assert_int_equal(got.rank, 3);
    assert_int_equal(got.world_size, 9);
    assert_int_equal(got.host, 77);
    assert_memory_equal(got.secret, record.secret, sizeof got.secret);
    assert_string_equal(got.text, record.text);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 0x10;
        assert_int_equal(gr_record_get(bytes, &got), GR_E_PROTOCOL);
        bytes[i] ^= 0x10;
    }
}

/* ---- Variables ------------------------------------------------------------------------------- */

static void launch_is(const char *const *env, const char *name, int64_t rank, int64_t world_size,
                      int64_t local_rank, int64_t local_size, gr_launch *launch)
{
    gr_diag diag = {0};
    if (gr_launch_read((char *const *)(uintptr_t)env, launch, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    if (name == NULL) {
        assert_null(launch->name);
        return;
    }
    assert_string_equal(launch->name, name);
    assert_int_equal(launch->rank, rank);
    assert_int_equal(launch->world_size, world_size);
    assert_int_equal(launch->local_rank, local_rank);
    assert_int_equal(launch->local_size, local_size);
}

static void launch_of_each_launcher_is_read(void **state)
{
    (void)state;
    gr_launch launch;
    launch_is((const char *const[]){"HOME=/", "RANK=1", "SLURM_PROCID=0", NULL}, NULL, 0, 0, 0, 0,
              &launch);
    launch_is((const char *const[]){"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4",
                                    "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                                    "PMIX_NAMESPACE=123", "SLURM_PROCID=0",
                                    "SLURM_STEP_NUM_TASKS=2", NULL},
              "Open MPI", 2, 4, 0, 2, &launch);
    assert_string_equal(launch.job, "123");
    assert_string_equal(launch.host, "");
    launch_is((const char *const[]){"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1",
                                    "MPI_LOCALNRANKS=2", NULL},
              "MPICH", 1, 2, 1, 2, &launch);
    assert_string_equal(launch.job, "");
    launch_is((const char *const[]){"RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4",
                                    "MASTER_ADDR=host-a", "MASTER_PORT=29500",
                                    "TORCHELASTIC_RUN_ID=abc", "TORCHELASTIC_RESTART_COUNT=2",
                                    NULL},
              "torchrun", 5, 8, 1, 4, &launch);
    assert_string_equal(launch.job, "abc.29500.2");
    assert_string_equal(launch.host, "host-a");
    assert_int_equal(launch.port, 29501);
}

static void launch_of_slurm_is_read(void **state)
{
    (void)state;
    gr_launch launch;
    const struct {
        const char *nodes, *tasks, *node, *first;
        int local_size;
    } cases[] = {
        {"SLURM_STEP_NODELIST=n1", "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_NODEID=0", "n1", 4},
        {"SLURM_STEP_NODELIST=n[07-09,12]", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_NODEID=3",
         "n07", 1},
        {"SLURM_STEP_NODELIST=n[3,5].lan,m1", "SLURM_STEP_TASKS_PER_NODE=2,5(x2)", "SLURM_NODEID=2",
         "n3.lan", 5},
        {"SLURM_STEP_NODELIST=a,b", "SLURM_STEP_TASKS_PER_NODE=x", "SLURM_NODEID=0", "a", 0},
        {"SLURM_STEP_NODELIST=a", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_NODEID=1", "a", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const env[] = {"SLURM_PROCID=1",
                                   "SLURM_STEP_NUM_TASKS=7",
                                   "SLURM_LOCALID=0",
                                   "SLURM_JOB_ID=42",
                                   "SLURM_STEP_ID=3",
                                   cases[i].nodes,
                                   cases[i].tasks,
                                   cases[i].node,
                                   NULL};
        launch_is(env, "Slurm", 1, 7, 0, cases[i].local_size, &launch);
        assert_string_equal(launch.job, "42.3.");
        assert_string_equal(launch.host, cases[i].first);
        assert_in_range(launch.port, 20000, 29999);
    }
}

static void launch_with_a_wrong_number_is_refused(void **state)
{
    (void)state;
    static const char *const rank[] = {"PMI_RANK=x", "PMI_RANK=", "PMI_RANK=-1", "PMI_RANK=2",
                                       "PMI_RANK=99999999999999999999"};
    gr_launch launch;
    gr_diag diag;
    for (size_t i = 0; i < sizeof rank / sizeof rank[0]; i++) {
        const char *const env[] = {rank[i], "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2",
                                   NULL};
        assert_int_equal(gr_launch_read((char *const *)(uintptr_t)env, &launch, &diag),
                         GR_E_INVALID);
        assert_non_null(strstr(diag.text, "PMI_RANK"));
    }
    const char *const missing[] = {"PMI_RANK=0", "MPI_LOCALRANKID=0", NULL};
    assert_int_equal(gr_launch_read((char *const *)(uintptr_t)missing, &launch, &diag),
                     GR_E_INVALID);
    assert_non_null(strstr(diag.text, "PMI_SIZE is not set"));
}

/* ---- Other launchers ------------------------------------------------------------------------- */

static void join_from_env(report *r)
{
    gr_arena arena;
    gr_group_config config;
    gr_diag diag = {0};
    gr_arena_init(&arena, 1 << 16);
    r->status = gr_group_config_from_env(&config, &arena, &diag);
    snprintf(r->text, sizeof r->text, "%s", diag.text);
    if (r->status == GR_OK) {
        join(&config, r);
        gr_group_config_wipe(&config);
    }
    gr_arena_fini(&arena);
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void set_open_mpi(int rank, int size, int local_size)
{
    set_number("OMPI_COMM_WORLD_RANK", rank);
    set_number("OMPI_COMM_WORLD_SIZE", size);
    set_number("OMPI_COMM_WORLD_LOCAL_RANK", rank % local_size);
    set_number("OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
}

static char folder[] = "/tmp/gradus-test-bootstrap-XXXXXX";

static int count_files(void)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *at; (at = readdir(dir)) != NULL;) {
        count += at->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

/* Ranks of one host, twice in a row: nothing of the first group is in the way of the second. */
static void file_of_one_host_all_join_twice(void **state)
{
    (void)state;
    board *b = open_board(3);
    pid_t pids[3];
    for (int rank = 0; rank < 3; rank++) {
        pids[rank] = fork_rank();
        if (pids[rank] == 0) {
            set_open_mpi(rank, 3, 3);
            setenv("GRADUS_RENDEZVOUS_DIR", folder, 1);
            join_from_env(&b->reports[rank]);
            if (b->reports[rank].status == GR_OK) {
                join_from_env(&b->reports[rank]);
            }
            _exit(0);
        }
    }
    await(pids, 3);
    assert_joined(b, 3, 1);
    assert_int_equal(count_files(), 0);
    close_board(b);
}

static void file_of_several_hosts_all_join(void **state)
{
    (void)state;
    board *b = open_board(2);
    pid_t pids[2];
    for (int rank = 0; rank < 2; rank++) {
        pids[rank] = fork_rank();
        if (pids[rank] == 0) {
            set_open_mpi(rank, 2, 1);
            setenv("PMIX_NAMESPACE", "4711", 1);
            setenv("GRADUS_HOST", rank == 0 ? "a" : "b", 1);
            setenv("GRADUS_RENDEZVOUS_DIR", folder, 1);
            join_from_env(&b->reports[rank]);
            _exit(0);
        }
    }
    await(pids, 2);
    assert_joined(b, 2, 2);
    assert_int_equal(count_files(), 0);
    close_board(b);
}

/* A file that is there before rank 0 has written its own. */
static void join_beside_a_file(const void *data, size_t size_bytes, mode_t mode, report *r)
{
    board *b = open_board(1);
    pid_t pid = fork_rank();
    if (pid == 0) {
        char path[128];
        uint64_t job = gr_hash64("4712", 4, 0);
        snprintf(path, sizeof path, "%s/gradus-%016llx", folder, (unsigned long long)job);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
        if (fd < 0 || write(fd, data, size_bytes) != (ssize_t)size_bytes) {
            _exit(1);
        }
        (void)fchmod(fd, mode);
        close(fd);
        set_open_mpi(1, 2, 1);
        setenv("PMIX_NAMESPACE", "4712", 1);
        setenv("GRADUS_RENDEZVOUS_DIR", folder, 1);
        setenv("GRADUS_JOIN_TIMEOUT", "0.2s", 1);
        join_from_env(&b->reports[0]);
        (void)unlink(path);
        _exit(0);
    }
    await(&pid, 1);
    *r = b->reports[0];
    close_board(b);
}

static void file_of_others_or_of_garbage_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[GR_RECORD_BYTES] = {0};
    gr_record record = {.kind = GR_RECORD_COORDINATOR, .world_size = 2};
    snprintf(record.text, sizeof record.text, "unix:@gradus-nobody-is-here");
    report r = {0};
    join_beside_a_file(bytes, sizeof bytes, 0644, &r);
    assert_int_equal(r.status, GR_E_INVALID);
    assert_non_null(strstr(r.text, "this user alone"));
    join_beside_a_file(bytes, sizeof bytes, 0600, &r);
    assert_int_equal(r.status, GR_E_PROTOCOL);
    assert_non_null(strstr(r.text, "same version"));
    /* Of a run that has ended: rank 0 may still replace it, so the timeout decides. */
    gr_record_put(&record, bytes);
    join_beside_a_file(bytes, sizeof bytes, 0600, &r);
    assert_int_equal(r.status, GR_E_PEER_LOST);
}

static void file_that_never_comes_ends_with_the_join_timeout(void **state)
{
    (void)state;
    board *b = open_board(1);
    pid_t pid = fork_rank();
    if (pid == 0) {
        set_open_mpi(1, 2, 2);
        setenv("GRADUS_RENDEZVOUS_DIR", folder, 1);
        setenv("GRADUS_JOIN_TIMEOUT", "0.05s", 1);
        join_from_env(&b->reports[0]);
        _exit(0);
    }
    await(&pid, 1);
    assert_int_equal(b->reports[0].status, GR_E_TIMEOUT);
    assert_non_null(strstr(b->reports[0].text, "rank 0 has not written"));
    close_board(b);
}

/* Nobody knows the name "late.test" at first, as that of a pod that has no address yet. */
enum { LATE_LOOKUPS = 2 };
static int late_lookups;

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found_out)
{
    typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    union {
        void *symbol;
        resolver *function;
    } libc = {.symbol = dlsym(RTLD_NEXT, "getaddrinfo")};
    bool is_looked_up = hints == NULL || (hints->ai_flags & AI_NUMERICHOST) == 0;
    if (!is_looked_up || host == NULL || strcmp(host, "late.test") != 0) {
        return libc.function(host, service, hints, found_out);
    }
    return ++late_lookups <= LATE_LOOKUPS ? EAI_NONAME
                                          : libc.function("127.0.0.1", service, hints, found_out);
}

/* A free one below those that the kernel gives to whoever names none: the other tests do not. */
static uint16_t find_port(void)
{
    enum { FIRST = 10000, COUNT = 10000 };
    uint16_t port = (uint16_t)(FIRST + getpid() % COUNT);
    int fd;
    while ((fd = listen_at(port, &port)) < 0) {
        port++;
    }
    close(fd);
    return port;
}

static void join_by_port(const char *host)
{
    char hex[2 * GR_SECRET_BYTES + 1];
    const uint8_t secret[GR_SECRET_BYTES] = {4, 2};
    gr_hex(secret, sizeof secret, hex);
    uint16_t port = find_port();
    board *b = open_board(2);
    pid_t pids[2];
    for (int rank = 0; rank < 2; rank++) {
        pids[rank] = fork_rank();
        if (pids[rank] == 0) {
            set_number("RANK", rank);
            set_number("WORLD_SIZE", 2);
            set_number("LOCAL_RANK", 0);
            set_number("LOCAL_WORLD_SIZE", 1);
            setenv("MASTER_ADDR", host, 1);
            set_number("MASTER_PORT", port - 1);
            setenv("TORCHELASTIC_RUN_ID", "none", 1);
            setenv("GRADUS_SECRET", hex, 1);
            setenv("GRADUS_HOST", rank == 0 ? "a" : "b", 1);
            join_from_env(&b->reports[rank]);
            _exit(0);
        }
    }
    await(pids, 2);
    assert_joined(b, 2, 2);
    close_board(b);
}

static void port_beside_the_masters_all_join(void **state)
{
    (void)state;
    join_by_port("127.0.0.1");
}

static void port_of_a_host_whose_name_comes_later_all_join(void **state)
{
    (void)state;
    join_by_port("late.test");
}

static void nothing_says_where_to_meet_is_refused(void **state)
{
    (void)state;
    board *b = open_board(1);
    pid_t pid = fork_rank();
    if (pid == 0) {
        set_open_mpi(1, 4, 2);
        setenv("PMIX_NAMESPACE", "4713", 1);
        join_from_env(&b->reports[0]);
        setenv("GRADUS_BOOTSTRAP", "off", 1);
        join_from_env(&b->reports[1]);
        _exit(0);
    }
    await(&pid, 1);
    assert_int_equal(b->reports[0].status, GR_E_INVALID);
    assert_non_null(strstr(b->reports[0].text, "Open MPI started 4 ranks on several hosts"));
    assert_non_null(strstr(b->reports[0].text, "GRADUS_RENDEZVOUS_DIR"));
    assert_non_null(strstr(b->reports[0].text, "GRADUS_COORDINATOR"));
    assert_int_equal(b->reports[1].status, GR_OK);
    assert_int_equal(b->reports[1].size, 1);
    close_board(b);
}

static int open_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int close_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callback_gathers_all_join),
        cmocka_unit_test(callback_without_timeout_runs_on_the_callers_thread),
        cmocka_unit_test(callback_of_an_elastic_group_all_join),
        cmocka_unit_test(callback_fails_returns_its_number),
        cmocka_unit_test(callback_lies_is_found_out),
        cmocka_unit_test(callback_hangs_ends_with_the_join_timeout),
        cmocka_unit_test(callback_ranks_out_of_range_are_refused),
        cmocka_unit_test(callback_rank_0_cannot_listen_all_hear_why),
        cmocka_unit_test(record_garbled_is_refused),
        cmocka_unit_test(launch_of_each_launcher_is_read),
        cmocka_unit_test(launch_of_slurm_is_read),
        cmocka_unit_test(launch_with_a_wrong_number_is_refused),
        cmocka_unit_test(file_of_one_host_all_join_twice),
        cmocka_unit_test(file_of_several_hosts_all_join),
        cmocka_unit_test(file_of_others_or_of_garbage_is_refused),
        cmocka_unit_test(file_that_never_comes_ends_with_the_join_timeout),
        cmocka_unit_test(port_beside_the_masters_all_join),
        cmocka_unit_test(port_of_a_host_whose_name_comes_later_all_join),
        cmocka_unit_test(nothing_says_where_to_meet_is_refused),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
