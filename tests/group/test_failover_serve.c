/* SPDX-License-Identifier: Apache-2.0 */
/* A member's own coordinator that cannot go on. */
#include "base/clock.h"
#include "group/failover.h"
#include "link/address.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { DESCRIPTORS = 64, PATIENCE_US = 20000000, LOOK_MS = 1 };

static bool is_epoll(int fd)
{
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target - 1) > 0 && strstr(target, "eventpoll") != NULL;
}

/* Whatever is waited for there, the wait fails from now on. */
static void break_epolls(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(null_fd >= 0);
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        if (is_epoll(fd)) {
            assert_int_equal(dup2(null_fd, fd), fd);
        }
    }
    close(null_fd);
}

static gr_status call(const char *address)
{
    int fd = -1;
    gr_status status = gr_address_connect(address, &fd, NULL);
    if (status >= 0) {
        close(fd);
    }
    return status;
}

static void failover_coordinator_that_fails_leaves_its_members(void **state)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    const gr_coordinator_config config = {
        .world_size = 2, .members_min = 1, .failover = true, .successor = 1, .secret = secret};
    gr_failover *failover = NULL;
    char address[GR_ADDRESS_BYTES];
    (void)state;
    assert_int_equal(gr_failover_create(&config, &failover, NULL), GR_OK);
    snprintf(address, sizeof address, "%s", gr_failover_address(failover));
    assert_true(call(address) >= 0);
    break_epolls();
    assert_int_equal(gr_failover_begin(failover, NULL, 0, NULL, 0, NULL), GR_OK);
    int64_t end_us = gr_now_ns() / 1000 + PATIENCE_US;
    gr_status status = GR_OK;
    while (status != GR_E_PEER_LOST && gr_now_ns() / 1000 < end_us) {
        (void)poll(NULL, 0, LOOK_MS);
        status = call(address);
    }
    assert_int_equal(status, GR_E_PEER_LOST);
    for (status = GR_OK; status == GR_OK && gr_now_ns() / 1000 < end_us;) {
        (void)poll(NULL, 0, LOOK_MS);
        status = gr_failover_begin(failover, NULL, 0, NULL, 0, NULL);
    }
    assert_int_equal(status, GR_E_COMM_BROKEN);
    gr_failover_end(failover, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failover_coordinator_that_fails_leaves_its_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
