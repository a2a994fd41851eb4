/* SPDX-License-Identifier: Apache-2.0 */
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const uint8_t test_secret[GR_SECRET_BYTES] = {7, 1, 2, 3, 4, 5, 6, 7, 8, 9};

int kind_rails(gr_link_kind kind)
{
    int count = ((int)kind >> 8) & 0xff;
    return count > 0 ? count : 1;
}

gr_status kind_connect(gr_mesh *mesh, gr_link_kind kind, int peer, const char *address,
                       gr_diag *diag)
{
    const char *addresses[GR_LINK_RAILS_MAX];
    for (int i = 0; i < GR_LINK_RAILS_MAX; i++) {
        addresses[i] = address;
    }
    return gr_mesh_connect_rails(mesh, peer, addresses, kind_rails(kind), diag);
}

gr_mesh_config test_config(gr_link_kind kind, int rank, int world_size)
{
    gr_mesh_config config;
    gr_mesh_config_init(&config);
    config.kind = (gr_link_kind)(kind & 0xff);
    config.rails_max = kind_rails(kind);
    config.encrypt = ((int)kind & TCP_ENCRYPTED) != 0;
    config.dynamic_peers = ((int)kind & WITH_DYNAMIC_PEERS) != 0;
    config.rank = rank;
    config.world_size = world_size;
    config.secret = test_secret;
    config.heap_bytes_max = (size_t)1 << 30;
    return config;
}

int64_t test_now_us(void)
{
    gr_clock clock = gr_clock_real();
    return gr_clock_now_us(&clock);
}

void pair_pump(pair *p)
{
    for (int i = 0; i < 2; i++) {
        gr_diag diag = {0};
        gr_status status = gr_mesh_progress(p->mesh[i], &diag);
        if (status != GR_OK) {
            fail_msg("member %d: %s: %s", i, gr_status_name(status), diag.text);
        }
        int peer;
        bool ended;
        while (
            gr_mesh_next_change(p->mesh[i], &peer, &ended)) { /* dynamic peers: or no wait sleeps */
        }
    }
}

void pair_open(pair *p, gr_link_kind kind)
{
    gr_diag diag = {0};
    for (int i = 0; i < 2; i++) {
        gr_mesh_config config = test_config(kind, i, 2);
        if (gr_mesh_create(&config, &p->mesh[i], &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
    }
    assert_int_equal(kind_connect(p->mesh[1], kind, 0, gr_mesh_address(p->mesh[0]), &diag), GR_OK);
    int64_t end_us = test_now_us() + PATIENCE_US;
    do {
        assert_true(test_now_us() < end_us);
        pair_pump(p);
        p->link[0] = gr_mesh_link(p->mesh[0], 1);
        p->link[1] = gr_mesh_link(p->mesh[1], 0);
    } while (p->link[0] == NULL || p->link[1] == NULL);
}

void pair_close(pair *p)
{
    gr_mesh_destroy(p->mesh[0]);
    gr_mesh_destroy(p->mesh[1]);
}

uint64_t pair_send(pair *p, int from, uint32_t op_seq, const void *data, size_t size_bytes)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = op_seq, .size_bytes = (uint32_t)size_bytes};
    uint64_t ticket = 0;
    gr_status status;
    int64_t end_us = test_now_us() + PATIENCE_US;
    while ((status = gr_link_send(p->link[from], &frame, data, &ticket)) == GR_E_AGAIN) {
        assert_true(test_now_us() < end_us);
        pair_pump(p);
    }
    assert_int_equal(status, GR_OK);
    return ticket;
}

gr_frame pair_await(pair *p, int at)
{
    gr_frame frame;
    gr_status status;
    int64_t end_us = test_now_us() + PATIENCE_US;
    while ((status = gr_link_peek(p->link[at], &frame)) == GR_PENDING) {
        assert_true(test_now_us() < end_us);
        pair_pump(p);
    }
    assert_int_equal(status, GR_OK);
    return frame;
}

void pair_read(pair *p, int at, void *dst)
{
    gr_status status;
    int64_t end_us = test_now_us() + PATIENCE_US;
    (void)pair_await(p, at);
    while ((status = gr_link_read(p->link[at], dst)) == GR_PENDING) {
        assert_true(test_now_us() < end_us);
        pair_pump(p);
    }
    assert_int_equal(status, GR_OK);
    gr_link_next(p->link[at], NULL);
}

gr_link *await_link(gr_mesh *mesh, int peer)
{
    int64_t end_us = test_now_us() + PATIENCE_US;
    gr_link *link = NULL;
    while ((link = gr_mesh_link(mesh, peer)) == NULL && test_now_us() < end_us) {
        if (gr_mesh_progress(mesh, NULL) != GR_OK) {
            return NULL;
        }
        gr_mesh_wait(mesh, test_now_us() + 100000);
    }
    return link;
}

pid_t helper_start(gr_link_kind kind, const char *address, helper_body *body)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* What it inherited would keep the parent's sockets open: close all but the standard
     * rails. */
    (void)close_range(3, ~0U, 0);
    gr_mesh_config config = test_config(kind, 1, 2);
    gr_mesh *mesh = NULL;
    int result = 99;
    if (gr_mesh_create(&config, &mesh, NULL) == GR_OK &&
        kind_connect(mesh, kind, 0, address, NULL) == GR_OK) {
        gr_link *link = await_link(mesh, 0);
        result = link != NULL ? body(mesh, link) : 98;
    }
    gr_mesh_destroy(mesh);
    _exit(result);
}

int helper_end(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int open_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}
