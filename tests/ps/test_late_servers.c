/* SPDX-License-Identifier: Apache-2.0 */

/* A client comes before its servers, as pods do: their names are not known yet, and later nobody
 * listens there. */

#include "support_servers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <netdb.h>
#include <semaphore.h>

enum { UNKNOWN_LOOKUPS = 2, REFUSED_LOOKUPS = 2, SERVERS = 2 };

/* ---- A name that comes late ------------------------------------------------------------------ */
static atomic_int lookups;
static sem_t looked_up; /* each look-up is a new attempt */
static bool is_known;   /* from the first look-up on */

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found_out);

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found_out);

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found_out)
{
    bool is_looked_up = hints == NULL || (hints->ai_flags & AI_NUMERICHOST) == 0;
    if (!is_looked_up || host == NULL || strcmp(host, "late.test") != 0) {
        return __real_getaddrinfo(host, service, hints, found_out);
    }
    sem_post(&looked_up);
    return atomic_fetch_add(&lookups, 1) < UNKNOWN_LOOKUPS && !is_known
               ? EAI_NONAME
               : __real_getaddrinfo("127.0.0.1", service, hints, found_out);
}

/* ---- Servers --------------------------------------------------------------------------------- */
typedef struct late {
    char addresses[TEST_ADDRESSES_BYTES]; /* of all, the last by its name */
    gr_ports ports;                       /* of the last one */
    gr_ps_server_config config;
    test_servers first;
    test_server last;
} late;

static void start_one(late *l, int number, gr_ports ports, test_server *at)
{
    gr_ps_server_config config = l->config;
    gr_diag diag = {0};
    config.number = number;
    config.ports = ports;
    if (gr_ps_server_create(&config, &at->server, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

/* All but the last one, of which nothing is there but its port, for which nobody listens. */
static void open_servers(late *l, int replicas)
{
    *l = (late){.first = {.tcp = true}};
    setenv("GRADUS_LINK", "tcp", 1);
    gr_ps_server_config_init(&l->config);
    l->config.servers = SERVERS;
    l->config.replicas = replicas;
    l->config.secret = test_secret;
    l->config.link = GR_LINK_ALL_TCP;
    l->config.listen_host = "127.0.0.1";
    start_one(l, SERVERS - 1, (gr_ports){.first = 0}, &l->last);
    const char *port = strrchr(gr_ps_server_address(l->last.server), ':');
    l->ports.first = l->ports.last = (uint16_t)strtol(port + 1, NULL, 10);
    char named[64];
    snprintf(named, sizeof named, ",tcp:late.test%s", port);
    gr_ps_server_destroy(l->last.server);
    l->last.server = NULL;
    start_one(l, 0, (gr_ports){.first = 0}, &l->first.at[0]);
    l->first.count = 1;
    snprintf(l->addresses, sizeof l->addresses, "%s%s", gr_ps_server_address(l->first.at[0].server),
             named);
    test_server_run(&l->first.at[0]);
    atomic_store(&lookups, 0);
    assert_int_equal(sem_init(&looked_up, 0, 0), 0);
    is_known = false;
}

static void close_servers(late *l)
{
    test_servers_stop(&l->first);
}

/* ---- A client -------------------------------------------------------------------------------- */
typedef struct client {
    const late *of;
    gr_ps *ps;
    gr_status status;
    gr_diag diag;
} client;

static void *connect_one(void *arg)
{
    client *c = arg;
    const gr_ps_config config = {.servers = c->of->addresses, .secret = test_secret, .worker = 3};
    c->status = gr_ps_connect(&config, &c->ps, &c->diag);
    return NULL;
}

static void servers_that_come_later_are_waited_for(void **state)
{
    (void)state;
    for (int replicas = 0; replicas < 2; replicas++) {
        late l;
        pthread_t thread;
        setenv("GRADUS_SERVERS_TIMEOUT", "5min", 1);
        open_servers(&l, replicas);
        client c = {.of = &l};
        assert_int_equal(pthread_create(&thread, NULL, connect_one, &c), 0);
        for (int i = 0; i < UNKNOWN_LOOKUPS + REFUSED_LOOKUPS; i++) {
            assert_int_equal(sem_wait(&looked_up), 0);
        }
        start_one(&l, SERVERS - 1, l.ports, &l.first.at[1]);
        test_server_run(&l.first.at[1]);
        l.first.count = SERVERS;
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (c.status != GR_OK) {
            fail_msg("%s", c.diag.text);
        }
        assert_true(test_servers_have(c.ps, 1));
        gr_ps_close(c.ps);
        close_servers(&l);
    }
}

static void servers_that_never_come_are_named_when_the_time_is_over(void **state)
{
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        for (int known = 0; known < 2; known++) {
            late l;
            setenv("GRADUS_SERVERS_TIMEOUT", waits ? "0.5s" : "0", 1);
            open_servers(&l, 0);
            is_known = known;
            client c = {.of = &l};
            (void)connect_one(&c);
            bool by_name = !known && !waits;
            assert_int_equal(c.status, by_name ? GR_E_NOT_FOUND : GR_E_PEER_LOST);
            assert_non_null(strstr(c.diag.text, by_name ? "cannot find the host \"late.test\""
                                                        : "tcp:late.test:"));
            close_servers(&l);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_that_come_later_are_waited_for),
        cmocka_unit_test(servers_that_never_come_are_named_when_the_time_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
