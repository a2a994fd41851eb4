/* SPDX-License-Identifier: Apache-2.0 */

/* Clients that meet: nobody goes on before all have come, whoever dies meanwhile. */

#include "support_processes.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMBERS = 3, MEETINGS = 60 };
#define WAIT_US INT64_C(60000000)

typedef struct meeting {
    processes servers;
    atomic_int come, kill_at; /* who comes as that one kills server 0 */
} meeting;

typedef struct member {
    meeting *at;
    int number;
    pthread_t thread;
    bool early; /* it has gone on before others had come */
    gr_status status;
} member;

static void *meet(void *arg)
{
    member *m = arg;
    gr_ps *ps = test_connect(&m->at->servers.reached, m->number);
    for (int i = 0; i < MEETINGS && m->status == GR_OK; i++) {
        if (atomic_fetch_add(&m->at->come, 1) == atomic_load(&m->at->kill_at)) {
            kill(m->at->servers.pid[0], SIGKILL);
        }
        m->status = gr_ps_barrier(ps, "all", MEMBERS, m->number, WAIT_US);
        m->early = m->early || atomic_load(&m->at->come) < MEMBERS * (i + 1);
    }
    gr_ps_close(ps);
    return NULL;
}

static void nobody_goes_on_before_all_have_come(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        meeting at;
        member members[MEMBERS];
        atomic_init(&at.come, 0);
        atomic_init(&at.kill_at, round < 2 ? -1 : MEETINGS + round);
        processes_start(&at.servers, 2, round % 2 != 0, WAIT_US);
        for (int i = 0; i < MEMBERS; i++) {
            members[i] = (member){.at = &at, .number = i};
            assert_int_equal(pthread_create(&members[i].thread, NULL, meet, &members[i]), 0);
        }
        for (int i = 0; i < MEMBERS; i++) {
            pthread_join(members[i].thread, NULL);
            assert_int_equal(members[i].status, GR_OK);
            assert_false(members[i].early);
        }
        processes_stop(&at.servers);
    }
}

/* It comes, says so, and would wait for ever. */
static pid_t start_member(const test_servers *servers, int number)
{
    int ends[2];
    char byte = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = test_fork();
    if (pid == 0) {
        gr_ps *ps = test_connect(servers, number);
        gr_status status = gr_ps_barrier(ps, "two", 2, number, 1000);
        if (status != GR_E_TIMEOUT || write(ends[1], "", 1) != 1) {
            _exit(1);
        }
        status = gr_ps_barrier(ps, "two", 2, number, 0);
        _exit(status == GR_OK ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void who_dies_on_the_way_may_come_again(void **state)
{
    (void)state;
    processes servers;
    processes_start(&servers, 2, false, WAIT_US);
    for (int meetings = 0; meetings < 2; meetings++) {
        pid_t dead = start_member(&servers.reached, 1);
        assert_int_equal(kill(dead, SIGKILL), 0);
        assert_int_equal(waitpid(dead, NULL, 0), dead);
        pid_t again = start_member(&servers.reached, 1);
        gr_ps *ps = test_connect(&servers.reached, 0);
        assert_int_equal(gr_ps_barrier(ps, "two", 2, 0, WAIT_US), GR_OK);
        int status = 0;
        assert_int_equal(waitpid(again, &status, 0), again);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        gr_ps_close(ps);
    }
    processes_stop(&servers);
}

static void what_is_wrong_has_a_sentence(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, false, NULL);
    gr_ps *ps = test_connect(&servers, 0), *reader = test_connect(&servers, -1);
    expect_failure(ps, gr_ps_barrier(ps, "b", 2, 2, 0), GR_E_INVALID, "member 2 of 2");
    expect_failure(ps, gr_ps_barrier(ps, "b", 0, 0, 0), GR_E_INVALID, "member 0 of 0");
    expect_failure(reader, gr_ps_barrier(reader, "b", 1, 0, 0), GR_E_INVALID, "worker's number");
    assert_int_equal(gr_ps_barrier(ps, "b", 1, 0, 0), GR_OK);
    assert_int_equal(gr_ps_barrier(ps, "b", 1, 0, 0), GR_OK);
    expect_failure(ps, gr_ps_barrier(ps, "b", 2, 0, 0), GR_E_INVALID, "shards");
    expect_failure(ps, gr_ps_barrier(ps, "lonely", 2, 0, 1000), GR_E_TIMEOUT, "lonely");
    gr_ps_close(reader);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

/* Each of them has been refused by all servers, or by one of them that was told of it first. */
static void what_was_refused_leaves_no_number_behind(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, false, NULL);
    gr_ps *ps = test_connect(&servers, 0), *other = test_connect(&servers, 1);
    gr_ps_spec spec = {.name = "a", .elements = 3000, .consistency = GR_ASYNC};
    float *values = calloc(3000, sizeof(float));
    int id = -1, next = -1;
    assert_int_equal(gr_ps_declare(other, &spec, &id), GR_OK);
    spec.elements = 2999;
    for (int i = 0; i < 3; i++) {
        expect_failure(ps, gr_ps_declare(ps, &spec, &id), GR_E_INVALID, "2999");
    }
    spec.elements = 3000;
    assert_int_equal(gr_ps_declare(ps, &spec, &id), GR_OK);
    assert_int_equal(id, 0);
    spec.name = "b";
    assert_int_equal(gr_ps_declare(ps, &spec, &next), GR_OK);
    assert_int_equal(next, 1);
    assert_int_equal(gr_ps_set(ps, id, values), GR_OK);
    values[2999] = 1;
    assert_int_equal(gr_ps_set(ps, next, values), GR_OK);
    assert_int_equal(gr_ps_pull_run(ps, id, 0, values, NULL), GR_OK);
    assert_true(values[2999] == 0);
    assert_int_equal(gr_ps_pull_run(ps, next, 0, values, NULL), GR_OK);
    assert_true(values[2999] == 1);
    free(values);
    gr_ps_close(other);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_goes_on_before_all_have_come),
        cmocka_unit_test(who_dies_on_the_way_may_come_again),
        cmocka_unit_test(what_is_wrong_has_a_sentence),
        cmocka_unit_test(what_was_refused_leaves_no_number_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
