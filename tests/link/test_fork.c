/* SPDX-License-Identifier: Apache-2.0 */

/* A process that forks a child which does not exec: the child is no member of the job. */

#include "sanitized.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const gr_link_kind kinds[] = {GR_LINK_SHM, GR_LINK_TCP};
enum { KINDS = 2 };

/* The child lives until `release` of the test is closed, and says that it runs. */
static int release_fds[2], ready_fds[2];

static void live_on(void)
{
    char byte;
    close(release_fds[1]);
    (void)!write(ready_fds[1], "", 1);
    (void)!read(release_fds[0], &byte, 1);
    _exit(0);
}

static void fork_a_child_that_lives_on(void)
{
    if (fork() == 0) {
        live_on();
    }
    for (;;) {
        pause();
    }
}

/* helper_start closes what its child inherits; this one keeps the pipes. */
static pid_t start_forking_helper(gr_link_kind kind, const char *address)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gr_mesh_config config = test_config(kind, 1, 2);
    gr_mesh *mesh = NULL;
    if (gr_mesh_create(&config, &mesh, NULL) != GR_OK ||
        kind_connect(mesh, kind, 0, address, NULL) != GR_OK) {
        _exit(99);
    }
    if (await_link(mesh, 0) != NULL) {
        fork_a_child_that_lives_on();
    }
    _exit(98);
}

static void test_parent_of_a_living_child_dies_and_the_peer_hears(void **unused)
{
    (void)unused;
    for (int i = 0; i < KINDS; i++) {
        char byte;
        gr_diag diag = {0};
        assert_int_equal(pipe(release_fds), 0);
        assert_int_equal(pipe(ready_fds), 0);
        gr_mesh_config config = test_config(kinds[i], 0, 2);
        gr_mesh *mesh = NULL;
        assert_int_equal(gr_mesh_create(&config, &mesh, NULL), GR_OK);
        pid_t helper = start_forking_helper(kinds[i], gr_mesh_address(mesh));
        close(release_fds[0]);
        close(ready_fds[1]);
        gr_link *link = await_link(mesh, 1);
        assert_non_null(link);
        assert_int_equal(read(ready_fds[0], &byte, 1), 1);
        assert_int_equal(kill(helper, SIGKILL), 0);
        assert_int_equal(helper_end(helper), -SIGKILL);
        int64_t end_us = test_now_us() + PATIENCE_US;
        gr_status status;
        while ((status = gr_mesh_progress(mesh, &diag)) == GR_OK && test_now_us() < end_us) {
            gr_mesh_wait(mesh, test_now_us() + 100000);
        }
        close(release_fds[1]); /* the child ends only now */
        close(ready_fds[0]);
        assert_int_equal(status, GR_E_PEER_LOST);
        assert_non_null(strstr(diag.text, "rank 1 died"));
        gr_mesh_destroy(mesh);
    }
}

/* What an exit handler of the child does. */
static int end_in_child(pair *p)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pair_close(p);
        _exit(0);
    }
    return helper_end(pid);
}

static void test_child_that_destroys_says_no_goodbye_for_its_parent(void **unused)
{
    (void)unused;
    for (int i = 0; i < KINDS; i++) {
        pair p;
        char text[6];
        void *mem;
        pair_open(&p, kinds[i]);
        assert_int_equal(gr_mesh_alloc(p.mesh[0], 6, &mem), GR_OK);
        memcpy(mem, "hello", 6);
        assert_int_equal(end_in_child(&p), 0);
        pair_send(&p, 0, 1, mem, 6);
        pair_read(&p, 1, text);
        assert_string_equal(text, "hello");
        gr_mesh_free(p.mesh[0], mem);
        pair_close(&p);
    }
}

static int use_in_child(pair *p, void *mem)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        uint64_t ticket;
        void *more;
        gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = 9, .size_bytes = 6};
        bool refused = gr_link_send(p->link[0], &frame, mem, &ticket) == GR_E_PEER_LOST &&
                       gr_mesh_progress(p->mesh[0], NULL) == GR_E_INVALID &&
                       gr_mesh_alloc(p->mesh[0], 64, &more) == GR_E_INVALID;
        gr_mesh_free(p->mesh[0], mem);
        _exit(refused && strcmp(mem, "hello") == 0 ? 0 : 1);
    }
    return helper_end(pid);
}

static void test_child_that_uses_its_parents_mesh_is_refused(void **unused)
{
    (void)unused;
    for (int i = 0; i < KINDS; i++) {
        pair p;
        char text[6];
        void *mem;
        pair_open(&p, kinds[i]);
        assert_int_equal(gr_mesh_alloc(p.mesh[0], 6, &mem), GR_OK);
        memcpy(mem, "hello", 6);
        assert_int_equal(use_in_child(&p, mem), 0);
        pair_send(&p, 0, 1, mem, 6);
        pair_read(&p, 1, text);
        assert_string_equal(text, "hello");
        pair_close(&p);
    }
}

static void test_child_keeps_no_descriptor_of_its_parent(void **unused)
{
    (void)unused;
    pair p;
    pair_open(&p, GR_LINK_TCP);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int sockets = 0;
        for (int fd = 3; fd < 256; fd++) {
            char name[64], to[64] = "";
            snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
            ssize_t length = readlink(name, to, sizeof to - 1);
            sockets += length > 0 && strncmp(to, "socket:", 7) == 0;
        }
        _exit(sockets);
    }
    assert_int_equal(helper_end(pid), 0);
    pair_close(&p);
}

typedef struct forker {
    atomic_bool stop;
    atomic_int forks;
    int keeping; /* children that have a TCP socket of their parent */
} forker;

static int keeps_a_tcp_socket(void)
{
    for (int fd = 3; fd < 256; fd++) {
        int domain = 0;
        socklen_t size = sizeof domain;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_INET) {
            return 1;
        }
    }
    return 0;
}

static void *fork_again_and_again(void *arg)
{
    forker *f = arg;
    while (!atomic_load(&f->stop)) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            _exit(keeps_a_tcp_socket());
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            f->keeping++;
        }
        atomic_fetch_add(&f->forks, 1);
    }
    return NULL;
}

static void fork_while_links_come_and_go_keeps_no_socket(void **unused)
{
    (void)unused;
    enum { FORKS = THOROUGH(1000) };
    forker f = {.keeping = 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fork_again_and_again, &f), 0);
    while (atomic_load(&f.forks) < FORKS) {
        pair p;
        pair_open(&p, GR_LINK_TCP);
        pair_close(&p);
    }
    atomic_store(&f.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(f.keeping, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parent_of_a_living_child_dies_and_the_peer_hears),
        cmocka_unit_test(test_child_that_destroys_says_no_goodbye_for_its_parent),
        cmocka_unit_test(test_child_that_uses_its_parents_mesh_is_refused),
        cmocka_unit_test(test_child_keeps_no_descriptor_of_its_parent),
        cmocka_unit_test(fork_while_links_come_and_go_keeps_no_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
