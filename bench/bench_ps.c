/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a push-pull: servers and workers are processes of this host; each worker pushes the
 * gradient of one shard of a tensor and pulls the values behind it. Prints the median of each size
 * over all steps, of the slowest worker.
 *
 *   bench_ps [-n WORKERS] [-m SERVERS] [-s 4k,1m,25m] [-e ROWS] [-d SECONDS] [-bciprtz] [-w NUMBER]
 *
 * -d: of each size. -b: gradients travel as bf16. -c: in turns with the workers' reduction of the
 * same bytes without any library (bare.h). -i: values in the place of the gradient. -p: plain
 * memory instead of gr_ps_alloc. -r: each block on two servers. -t: tcp over loopback. -e: in place
 * of tensors, batches of so many random rows of a table of 10 million by 64, which are pulled, then
 * pushed; and what memory the servers take for the rows that were touched. -z: its rows begin as
 * zeros, not as normal numbers. -w: this process is the worker of that number, of servers that run
 * already: GRADUS_SERVERS, GRADUS_SECRET. */
#include "bare.h"
#include "base/clock.h"
#include "ps/server/server.h"

#include <gradus/ps.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZES_MAX = 16, STEPS_MAX = 200000, TEXT_BYTES = 1024 };
enum { TURN = 128 }; /* steps, then as many bare reductions: each with its data in the caches */
enum { TABLE_ROWS = 10000000, TABLE_COLUMNS = 64, PULL = 0, PUSH = 1 };

typedef struct settings {
    int workers, servers;
    size_t sizes[SIZES_MAX];
    int size_count;
    double seconds;
    bool in_place, plain, tcp, replicas, zeros, narrow, compare;
    int batch;  /* rows; 0: no table */
    int worker; /* -1: all of them, and the servers */
    place bare; /* with -c */
    uint8_t secret[GR_SECRET_BYTES];
    char addresses[16 * TEXT_BYTES];
} settings;

/* In memory that all share. */
typedef struct results {
    int steps[SIZES_MAX];
    float us[SIZES_MAX][STEPS_MAX];      /* the slowest worker's */
    float bare_us[SIZES_MAX][STEPS_MAX]; /* worker 0's */
    double rows_each_s[RANKS_MAX];       /* a table's: pulled and pushed by each worker */
    double repeated[RANKS_MAX];          /* of its rows, the part that stood in a batch before */
    uint64_t touched, bytes[RANKS_MAX];  /* rows that exist; of each server */
} results;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_ps: %s: %s\n", what, why);
    exit(1);
}

static void serve(const settings *set, int number, int out)
{
    gr_ps_server_config config;
    gr_ps_server *server;
    gr_diag diag = {0};
    gr_ps_server_config_init(&config);
    config.number = number;
    config.servers = set->servers;
    config.replicas = set->replicas;
    config.secret = set->secret;
    config.link = set->tcp ? GR_LINK_ALL_TCP : GR_LINK_AUTO;
    if (gr_ps_server_create(&config, &server, &diag) != GR_OK) {
        die("a server", diag.text);
    }
    const char *address = gr_ps_server_address(server);
    if (write(out, address, strlen(address) + 1) < 0) {
        die("a server", "cannot say where it is");
    }
    close(out);
    for (;;) {
        gr_status status = gr_ps_server_poll(server, &diag);
        if (status == GR_OK) {
            gr_ps_server_wait(server, GR_NEVER);
        } else if (status != GR_PENDING) {
            die("a server", diag.text);
        }
    }
}

static void *memory(gr_ps *ps, bool plain, size_t size)
{
    void *mem = NULL;
    if (plain) {
        mem = aligned_alloc(64, (size + 63) / 64 * 64);
    } else if (gr_ps_alloc(ps, size, &mem) != GR_OK) {
        mem = NULL;
    }
    if (mem == NULL) {
        die("a worker", "no memory");
    }
    memset(mem, 0, size);
    return mem;
}

/* As many bare reductions as there were steps before. */
static void reduce_in_turn(settings *set, int at, int step, results *to)
{
    for (int i = step + 1 - TURN; i <= step; i++) {
        int64_t start_ns = gr_now_ns();
        reduce_bare(&set->bare, set->sizes[at] / sizeof(float));
        if (set->bare.rank == 0) {
            to->bare_us[at][i] = (float)(gr_now_ns() - start_ns) / 1e3f;
        }
    }
}

static void try_size(settings *set, gr_ps *ps, int worker, int at, results *to)
{
    char name[32];
    int id;
    size_t elements = set->sizes[at] / sizeof(float);
    snprintf(name, sizeof name, "tensor %d", at);
    const gr_ps_spec spec = {.name = name,
                             .elements = elements,
                             .consistency = GR_BSP,
                             .shards = set->workers,
                             .gradient_type = set->narrow ? GR_BF16 : GR_F32};
    float *gradient = memory(ps, set->plain, elements * sizeof(float));
    float *values = set->in_place ? gradient : memory(ps, set->plain, elements * sizeof(float));
    if (gr_ps_declare(ps, &spec, &id) != GR_OK || gr_ps_set(ps, id, values) != GR_OK) {
        die("a worker", gr_ps_last_error(ps)->text);
    }
    int64_t end_ns = gr_now_ns() + (int64_t)(set->seconds * 1e9);
    float over = 0;
    for (int step = 0; step < STEPS_MAX && over == 0; step++) {
        int64_t start_ns = gr_now_ns();
        /* Worker 0 says by its gradient that it has been long enough. */
        gradient[0] = worker == 0 && start_ns > end_ns ? 1.0f : 0.0f;
        const gr_ps_gradient push = {
            .values = gradient, .step = (uint64_t)step, .first = worker, .count = 1, .rate = 1};
        if (gr_ps_push_pull_run(ps, id, &push, values, NULL) != GR_OK) {
            die("a worker", gr_ps_last_error(ps)->text);
        }
        over = values[0];
        float us = (float)(gr_now_ns() - start_ns) / 1e3f;
        float *slot = &to->us[at][step];
        *slot = us > *slot ? us : *slot; /* a lost race costs one sample a little */
        to->steps[at] = step + 1;
        if (set->compare && step % TURN == TURN - 1) {
            reduce_in_turn(set, at, step, to);
        }
    }
    if (!set->plain) {
        gr_ps_free(ps, gradient);
        gr_ps_free(ps, set->in_place ? NULL : values);
    }
}

/* One batch: times in us. */
static void try_batch(gr_ps *ps, int id, uint64_t step, const uint32_t *rows, int count,
                      float *values, float us_out[2])
{
    uint64_t version = 0;
    int64_t start_ns = gr_now_ns();
    if (gr_ps_pull_rows_run(ps, id, 0, rows, (size_t)count, values, &version) != GR_OK) {
        die("a worker", gr_ps_last_error(ps)->text);
    }
    int64_t pulled_ns = gr_now_ns();
    const gr_ps_gradient push = {
        .values = values, .version = version, .sequence = step, .rate = 1, .factor = -0.01f};
    if (gr_ps_push_rows_run(ps, id, &push, rows, (size_t)count) != GR_OK) {
        die("a worker", gr_ps_last_error(ps)->text);
    }
    us_out[PULL] = (float)(pulled_ns - start_ns) / 1e3f;
    us_out[PUSH] = (float)(gr_now_ns() - pulled_ns) / 1e3f;
}

static void try_table(const settings *set, gr_ps *ps, int worker, results *to)
{
    const gr_ps_spec spec = {.name = "table",
                             .elements = (uint64_t)TABLE_ROWS * TABLE_COLUMNS,
                             .consistency = GR_ASYNC,
                             .columns = TABLE_COLUMNS,
                             .seed = 1,
                             .deviation = set->zeros ? 0.0f : 0.1f};
    int id;
    if (gr_ps_declare(ps, &spec, &id) != GR_OK) {
        die("a worker", gr_ps_last_error(ps)->text);
    }
    size_t batch = (size_t)set->batch;
    uint32_t *rows = memory(ps, true, batch * sizeof *rows);
    uint32_t *seen = memory(ps, true, TABLE_ROWS * sizeof *seen); /* the last batch with a row */
    float *values = memory(ps, true, batch * TABLE_COLUMNS * sizeof *values);
    uint64_t random = 88172645463325252u + (uint64_t)worker, repeated = 0;
    int64_t start_ns = gr_now_ns(), busy_ns = 0;
    int step = 0;
    for (; step < STEPS_MAX && gr_now_ns() - start_ns < (int64_t)(set->seconds * 1e9); step++) {
        for (size_t i = 0; i < batch; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            rows[i] = (uint32_t)(random >> 20) % TABLE_ROWS;
            repeated += seen[rows[i]] == (uint32_t)step + 1;
            seen[rows[i]] = (uint32_t)step + 1;
        }
        float us[2];
        try_batch(ps, id, (uint64_t)step, rows, set->batch, values, us);
        busy_ns += (int64_t)((us[PULL] + us[PUSH]) * 1e3f);
        if (worker == 0) {
            to->us[PULL][step] = us[PULL];
            to->us[PUSH][step] = us[PUSH];
            to->steps[PULL] = to->steps[PUSH] = step + 1;
        }
    }
    double pushed = (double)step * (double)batch;
    to->rows_each_s[worker] = pushed / ((double)busy_ns / 1e9);
    to->repeated[worker] = (double)repeated / pushed;
}

/* After all workers. */
static void look_at_table(const settings *set, gr_ps *ps, results *to)
{
    gr_ps_entry entry;
    gr_ps_counters counters;
    if (gr_ps_list(ps, 0, &entry) != GR_OK) {
        die("the table", gr_ps_last_error(ps)->text);
    }
    to->touched = entry.rows;
    for (int s = 0; s < set->servers; s++) {
        if (gr_ps_read_counters(ps, s, &counters) != GR_OK) {
            die("the table", gr_ps_last_error(ps)->text);
        }
        to->bytes[s] = counters.bytes;
    }
}

static void work(settings *set, int worker, results *to)
{
    const gr_ps_config config = {.servers = set->worker < 0 ? set->addresses : NULL,
                                 .secret = set->worker < 0 ? set->secret : NULL,
                                 .worker = worker};
    gr_ps *ps;
    gr_diag diag = {0};
    if (gr_ps_connect(&config, &ps, &diag) != GR_OK) {
        die("a worker", diag.text);
    }
    set->bare.rank = worker;
    for (int at = 0; at < set->size_count && set->batch == 0; at++) {
        try_size(set, ps, worker, at, to);
    }
    if (set->batch > 0 && worker >= 0) {
        try_table(set, ps, worker, to);
    } else if (set->batch > 0) {
        look_at_table(set, ps, to);
    }
    gr_ps_close(ps);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void read_sizes(settings *set, const char *text)
{
    set->size_count = 0;
    while (*text != '\0' && set->size_count < SIZES_MAX) {
        char *end;
        double size = strtod(text, &end);
        size *= *end == 'k' ? 1024 : *end == 'm' ? 1048576 : 1;
        set->sizes[set->size_count++] = (size_t)size / 4 * 4;
        text = end + strcspn(end, ",");
        text += *text == ',';
    }
}

static pid_t start_server(settings *set, int number)
{
    int pipes[2];
    char text[TEXT_BYTES] = "";
    if (pipe(pipes) != 0) {
        die("a server", "no pipe");
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pipes[0]);
        serve(set, number, pipes[1]);
    }
    close(pipes[1]);
    for (size_t got = 0;;) {
        ssize_t now = read(pipes[0], text + got, sizeof text - 1 - got);
        if (now <= 0) {
            break;
        }
        got += (size_t)now;
    }
    close(pipes[0]);
    strcat(set->addresses, number > 0 ? "," : "");
    strcat(set->addresses, text);
    return pid;
}

/* What the process has in memory, in bytes. */
static double resident(pid_t pid)
{
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) {
        die("a server", "its memory cannot be looked at");
    }
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void print_sizes(const settings *set, results *to)
{
    for (int at = 0; at < set->size_count; at++) {
        int steps = to->steps[at];
        qsort(to->us[at], (size_t)steps, sizeof(float), by_value);
        printf("%10zu bytes  %10.1f us  (%d steps; a tenth within %.1f us)", set->sizes[at],
               (double)to->us[at][steps / 2], steps, (double)to->us[at][steps / 10]);
        int turns = steps / TURN * TURN;
        if (set->compare && turns > 0) {
            qsort(to->bare_us[at], (size_t)turns, sizeof(float), by_value);
            printf("  bare %10.1f us", (double)to->bare_us[at][turns / 2]);
        }
        printf("\n");
    }
}

static void print_table(const settings *set, const pid_t *servers, const double *before,
                        results *to)
{
    double rows_each_s = 0, repeated = 0, each_row = TABLE_COLUMNS * sizeof(float);
    double share = (double)to->touched / set->servers * each_row;
    for (int i = 0; i < set->workers; i++) {
        rows_each_s += to->rows_each_s[i];
        repeated += to->repeated[i] / set->workers;
    }
    for (int way = PULL; way <= PUSH; way++) {
        qsort(to->us[way], (size_t)to->steps[way], sizeof(float), by_value);
    }
    printf("%d rows: pulled in %.0f us, pushed in %.0f us; %.2f million rows a second both ways\n",
           set->batch, (double)to->us[PULL][to->steps[PULL] / 2],
           (double)to->us[PUSH][to->steps[PUSH] / 2], rows_each_s / 1e6);
    printf("%.4f of the rows stood in their batch before; %llu rows exist, %.1f MiB a server\n",
           repeated, (unsigned long long)to->touched, share / 1048576);
    for (int i = 0; i < set->servers; i++) {
        printf("server %d keeps %.3f of that, and takes %.3f\n", i, (double)to->bytes[i] / share,
               (resident(servers[i]) - before[i]) / share);
    }
}

static void read_options(int argc, char **argv, settings *set)
{
    int option;
    while ((option = getopt(argc, argv, "n:m:s:d:e:w:bciprtz")) != -1) {
        switch (option) {
        case 'n':
            set->workers = atoi(optarg);
            break;
        case 'm':
            set->servers = atoi(optarg);
            break;
        case 's':
            read_sizes(set, optarg);
            break;
        case 'd':
            set->seconds = strtod(optarg, NULL);
            break;
        case 'e':
            set->batch = atoi(optarg);
            break;
        case 'w':
            set->worker = atoi(optarg);
            break;
        case 'b':
            set->narrow = true;
            break;
        case 'c':
            set->compare = true;
            break;
        case 'i':
            set->in_place = true;
            break;
        case 'r':
            set->replicas = true;
            break;
        case 'p':
            set->plain = true;
            break;
        case 't':
            set->tcp = true;
            break;
        case 'z':
            set->zeros = true;
            break;
        default:
            exit(2);
        }
    }
    if (set->workers < 1 || set->workers > RANKS_MAX || set->servers < 1 || set->servers > 16) {
        die("arguments", "1 to 16 workers, 1 to 16 servers");
    }
    if (set->compare && (set->workers < 2 || set->worker >= 0 || set->batch > 0)) {
        die("arguments", "-c is for tensors of several workers that are all started here");
    }
}

static void *map_shared(size_t size_bytes)
{
    void *mem = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED) {
        die("memory in common", "there is none");
    }
    return mem;
}

static void prepare_bare(settings *set)
{
    size_t most = 0;
    for (int at = 0; at < set->size_count; at++) {
        most = set->sizes[at] > most ? set->sizes[at] : most;
    }
    most = (most + 4095) / 4096 * 4096;
    uint8_t *mem = map_shared(4096 + (size_t)set->workers * most);
    memset(mem, 0, 4096 + (size_t)set->workers * most);
    set->bare = (place){.shared = (bare *)(void *)mem,
                        .size = set->workers,
                        .yields = set->workers > sysconf(_SC_NPROCESSORS_ONLN)};
    for (int i = 0; i < set->workers; i++) {
        set->bare.buf[i] = (float *)(void *)(mem + 4096 + (size_t)i * most);
    }
}

/* Until all workers have ended; one that fails takes the others along. */
static bool await_workers(const settings *set, const pid_t *workers)
{
    bool failed = false;
    for (int left = set->workers; left > 0 && !failed; left--) {
        int status;
        (void)waitpid(0, &status, 0); /* a server ends only if it fails */
        failed = status != 0;
    }
    for (int i = 0; failed && i < set->workers; i++) {
        kill(workers[i], SIGKILL);
    }
    return failed;
}

int main(int argc, char **argv)
{
    double before[RANKS_MAX];
    settings set = {.workers = 2,
                    .servers = 2,
                    .seconds = 2,
                    .worker = -1,
                    .secret = "only for this benchmark"};
    pid_t servers[RANKS_MAX], workers[RANKS_MAX];
    read_sizes(&set, "4k,64k,1m,25m");
    read_options(argc, argv, &set);
    results *to = map_shared(sizeof *to);
    if (set.worker >= 0) {
        work(&set, set.worker, to);
        print_sizes(&set, to);
        return 0;
    }
    if (set.compare) {
        prepare_bare(&set);
    }
    setenv("GRADUS_LINK", set.tcp ? "tcp" : "auto", 1);
    for (int i = 0; i < set.servers; i++) {
        servers[i] = start_server(&set, i);
        before[i] = resident(servers[i]);
    }
    for (int i = 0; i < set.workers; i++) {
        workers[i] = fork();
        if (workers[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            work(&set, i, to);
            _exit(0);
        }
    }
    bool failed = await_workers(&set, workers);
    if (set.batch > 0 && !failed) {
        work(&set, -1, to);
        print_table(&set, servers, before, to);
    } else if (!failed) {
        print_sizes(&set, to);
    }
    for (int i = 0; i < set.servers; i++) {
        kill(servers[i], SIGKILL);
        waitpid(servers[i], NULL, 0);
    }
    return failed;
}
