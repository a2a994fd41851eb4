/* SPDX-License-Identifier: Apache-2.0 */

/* The memory of a peer by way of the kernel: of the process that the link leads to, or of none. */

#include "link/shm/shm.h"
#include "support_pair.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 100000, OURS = 1, THEIRS = 2, GIVEN = 3, COPY_LIVES_S = 60 };

/* At the same address in the process that is forked, which has a copy. */
static uint8_t memory[BYTES];

static void await_head(gr_mesh *mesh, gr_link *link)
{
    gr_frame frame;
    while (gr_link_peek(link, &frame) == GR_PENDING) {
        (void)!gr_mesh_progress(mesh, NULL);
        gr_mesh_wait(mesh, test_now_us() + 100000);
    }
}

static void await_word(gr_mesh *mesh, gr_link *link)
{
    await_head(mesh, link);
    gr_link_next(link, NULL);
}

static void send_word(gr_link *link)
{
    uint64_t ticket;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 1};
    (void)!gr_link_send(link, &frame, "", &ticket);
}

/* Lets itself be read and written, and ends well if it was. */
static int body_is_reached(gr_mesh *mesh, gr_link *link)
{
    memset(memory, THEIRS, BYTES);
    send_word(link);
    await_word(mesh, link);
    for (int i = 0; i < BYTES; i++) {
        if (memory[i] != GIVEN) {
            return 1;
        }
    }
    return 0;
}

typedef struct lone {
    gr_mesh *mesh;
    gr_link *link;
    pid_t helper;
} lone;

static void lone_open_with(lone *l, bool cma, helper_body *body)
{
    gr_mesh_config config = test_config(GR_LINK_SHM, 0, 2);
    config.cma = cma ? GR_CMA_ON : GR_CMA_OFF;
    assert_int_equal(gr_mesh_create(&config, &l->mesh, NULL), GR_OK);
    memset(memory, OURS, BYTES);
    l->helper = helper_start(GR_LINK_SHM, gr_mesh_address(l->mesh), body);
    l->link = await_link(l->mesh, 1);
    assert_non_null(l->link);
}

static void lone_open(lone *l, bool cma)
{
    lone_open_with(l, cma, body_is_reached);
}

static void test_memory_of_another_process(void **unused)
{
    (void)unused;
    uint8_t copy[100], given[BYTES];
    lone l;
    lone_open(&l, true);
    assert_true(gr_mesh_cma(l.mesh, 0));
    assert_true(gr_mesh_cma(l.mesh, 1));
    assert_true(gr_mesh_cma_alive(l.mesh, 1));
    assert_int_equal(gr_mesh_cma_setting(l.mesh), GR_CMA_ON);
    assert_true(gr_cma_cost(GR_CMA_ON, NULL) == 0); /* nobody asks what it costs */
    double cost = gr_cma_cost(GR_CMA_AUTO, NULL);
    assert_true(cost > 0 && cost < HUGE_VAL);
    assert_true(gr_cma_cost(GR_CMA_OFF, NULL) == HUGE_VAL);
    await_word(l.mesh, l.link);
    uint64_t at = (uint64_t)(uintptr_t)memory;
    assert_int_equal(gr_mesh_cma_read(l.mesh, 1, at + BYTES - 100, copy, 100), GR_OK);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(copy[i], THEIRS);
    }
    memset(given, GIVEN, BYTES);
    assert_int_equal(gr_mesh_cma_read(l.mesh, 0, at, copy, 100), GR_OK);
    assert_int_equal(copy[0], OURS);
    assert_int_equal(gr_mesh_cma_write(l.mesh, 1, at, given, BYTES), GR_OK);
    assert_int_equal(gr_mesh_cma_read(l.mesh, 1, 16, copy, 100), GR_E_PROTOCOL);
    assert_int_equal(gr_mesh_cma_write(l.mesh, 1, 16, given, 100), GR_E_PROTOCOL);
    send_word(l.link);
    assert_int_equal(helper_end(l.helper), 0);
    gr_mesh_destroy(l.mesh);
}

/* A copy of the process that shares its descriptors, which no fork handler closes: the socket of
 * the link stays open when its owner ends. The peer is told its number. */
static int body_leaves_its_socket_open(gr_mesh *mesh, gr_link *link)
{
    uint64_t ticket;
    pid_t copy = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (copy == 0) {
        alarm(COPY_LIVES_S);
        pause();
        _exit(0);
    }
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = sizeof copy};
    (void)!gr_link_send(link, &frame, &copy, &ticket);
    return body_is_reached(mesh, link);
}

static void test_peer_that_ended_with_an_open_socket_is_not_alive(void **unused)
{
    (void)unused;
    uint8_t given[8] = {0};
    pid_t copy = 0;
    lone l;
    lone_open_with(&l, true, body_leaves_its_socket_open);
    await_head(l.mesh, l.link);
    assert_int_equal(gr_link_read(l.link, &copy), GR_OK);
    gr_link_next(l.link, NULL);
    assert_true(copy > 0);
    assert_int_equal(kill(l.helper, SIGKILL), 0);
    assert_int_equal(helper_end(l.helper), -SIGKILL);
    bool alive = gr_mesh_cma_alive(l.mesh, 1);
    ((gr_shm_link *)(void *)l.link)->pid = getpid(); /* as if the number were another's by now */
    gr_status status =
        gr_mesh_cma_write(l.mesh, 1, (uint64_t)(uintptr_t)memory, given, sizeof given);
    kill(copy, SIGKILL);
    assert_false(alive);
    assert_int_equal(status, GR_E_PEER_LOST);
    assert_int_equal(memory[0], OURS);
    gr_mesh_destroy(l.mesh);
}

/* Before anybody has looked at the links, and though its number may be another's by now. */
static void test_nobody_writes_to_one_that_has_ended(void **unused)
{
    (void)unused;
    uint8_t given[8] = {0};
    lone l;
    lone_open(&l, true);
    await_word(l.mesh, l.link);
    assert_int_equal(kill(l.helper, SIGKILL), 0);
    assert_int_equal(helper_end(l.helper), -SIGKILL);
    assert_false(gr_mesh_cma_alive(l.mesh, 1));
    uint64_t at = (uint64_t)(uintptr_t)memory;
    assert_int_equal(gr_mesh_cma_write(l.mesh, 1, at, given, sizeof given), GR_E_PEER_LOST);
    assert_int_equal(gr_mesh_cma_read(l.mesh, 1, at, given, sizeof given), GR_E_PEER_LOST);
    ((gr_shm_link *)(void *)l.link)->pid = getpid();
    assert_int_equal(gr_mesh_cma_write(l.mesh, 1, at, given, sizeof given), GR_E_PEER_LOST);
    assert_int_equal(memory[0], OURS);
    gr_mesh_destroy(l.mesh);
}

static void test_it_can_be_switched_off(void **unused)
{
    (void)unused;
    lone l;
    lone_open(&l, false);
    assert_false(gr_mesh_cma(l.mesh, 0));
    assert_false(gr_mesh_cma(l.mesh, 1));
    kill(l.helper, SIGKILL);
    (void)helper_end(l.helper);
    gr_mesh_destroy(l.mesh);
}

/* As a container's sandbox does. */
static int forbid(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof rules[0], .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? prctl(PR_SET_SECCOMP, 2, &program) : -1;
}

static void test_a_sandbox_is_noticed(void **unused)
{
    (void)unused;
    gr_mesh_config config = test_config(GR_LINK_SHM, 0, 2);
    gr_mesh *mesh;
    assert_int_equal(gr_mesh_create(&config, &mesh, NULL), GR_OK);
    pid_t helper = fork();
    assert_true(helper >= 0);
    if (helper == 0) {
        (void)close_range(3, ~0U, 0);
        config = test_config(GR_LINK_SHM, 1, 2);
        gr_mesh *own = NULL;
        int before = gr_cma_try();
        bool made = forbid() == 0 && gr_mesh_create(&config, &own, NULL) == GR_OK &&
                    gr_mesh_connect(own, 0, gr_mesh_address(mesh), NULL) == GR_OK &&
                    await_link(own, 0) != NULL;
        _exit(before != 0             ? 3
              : !made                 ? 4
              : gr_mesh_cma(own, 0)   ? 5
              : gr_cma_try() != EPERM ? 6
                                      : 0);
    }
    assert_non_null(await_link(mesh, 1));
    assert_int_equal(helper_end(helper), 0);
    gr_mesh_destroy(mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_another_process),
        cmocka_unit_test(test_peer_that_ended_with_an_open_socket_is_not_alive),
        cmocka_unit_test(test_nobody_writes_to_one_that_has_ended),
        cmocka_unit_test(test_it_can_be_switched_off),
        cmocka_unit_test(test_a_sandbox_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
