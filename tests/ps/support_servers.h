/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TEST_PS_SUPPORT_SERVERS_H
#define GR_TEST_PS_SUPPORT_SERVERS_H

/* Parameter servers in threads of this process, and clients that connect to them. */

#include "link/link.h"
#include "ps/server/server.h"

#include <gradus/ps.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { TEST_SERVERS_MAX = 4, TEST_ADDRESSES_BYTES = 4096 };

typedef struct test_server {
    gr_ps_server *server;
    pthread_t thread;
    atomic_bool stop;
} test_server;

typedef struct test_servers {
    int count;
    test_server at[TEST_SERVERS_MAX];
    char addresses[TEST_ADDRESSES_BYTES];
    bool tcp;
} test_servers;

extern const uint8_t test_secret[GR_SECRET_BYTES];

/* `config` may be NULL; what it says of number, servers, secret and link is replaced. */
void test_servers_start(test_servers *servers, int count, bool tcp,
                        const gr_ps_server_config *config);
void test_server_run(test_server *at); /* in a thread of its own; its `server` is there */
void test_servers_stop(test_servers *servers);
void test_server_stop(test_servers *servers, int index); /* one of them; the rest goes on */
/* fork, of a child that ends with its parent. Before there are threads. */
pid_t test_fork(void);
/* Asserts that it works. */
gr_ps *test_connect(const test_servers *servers, int worker);
void expect_ok(gr_ps *ps, gr_status is);
/* A call's status, and what is said of it. */
void expect_failure(gr_ps *ps, gr_status is, gr_status wanted, const char *says);
/* So many clients are connected to each server; false: not within 20 s. */
bool test_servers_have(gr_ps *ps, uint64_t clients);

#endif
