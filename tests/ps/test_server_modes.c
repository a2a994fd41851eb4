/* SPDX-License-Identifier: Apache-2.0 */

/* Modes without steps, what clients do wrong, and clients that die. */

#include "ps/message.h"
#include "support_servers.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ELEMENTS = 30000, PUSHES = 20, WORKERS = 3 };

/* A tensor of zeros. */
static int declare(gr_ps *ps, gr_ps_spec spec)
{
    int id;
    float *zeros = calloc(spec.elements, sizeof(float));
    assert_int_equal(gr_ps_declare(ps, &spec, &id), GR_OK);
    assert_int_equal(gr_ps_set(ps, id, zeros), GR_OK);
    free(zeros);
    return id;
}

static const gr_ps_spec async_spec = {
    .name = "embedding", .elements = ELEMENTS, .consistency = GR_ASYNC, .adapt_rate = 0};

/* ---- async ----------------------------------------------------------------------------------- */

typedef struct worker {
    const test_servers *servers;
    int number;
    pthread_t thread;
} worker;

/* Pushes number + 1 everywhere, every second push twice. */
static void *push_integers(void *arg)
{
    const worker *w = arg;
    gr_ps *ps = test_connect(w->servers, w->number);
    int id = declare(ps, async_spec);
    void *mem;
    assert_int_equal(gr_ps_alloc(ps, ELEMENTS * sizeof(float), &mem), GR_OK);
    float *gradient = mem, *values = calloc(ELEMENTS, sizeof(float));
    for (int i = 0; i < ELEMENTS; i++) {
        gradient[i] = (float)(w->number + 1);
    }
    uint64_t version = 0;
    for (uint64_t n = 0; n < PUSHES; n++) {
        const gr_ps_gradient push = {
            .values = gradient, .sequence = n, .version = version, .rate = 1};
        float before = values[ELEMENTS - 1];
        assert_int_equal(gr_ps_push_pull_run(ps, id, &push, values, &version), GR_OK);
        assert_true(values[ELEMENTS - 1] >= before + (float)(w->number + 1)); /* its own is in */
        if (n % 2 == 0) {
            assert_int_equal(gr_ps_push_run(ps, id, &push), GR_OK);
        }
    }
    free(values);
    gr_ps_close(ps);
    return NULL;
}

static void async_applies_each_push_once(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        test_servers servers;
        worker all[WORKERS];
        test_servers_start(&servers, 2, tcp != 0, NULL);
        gr_ps *ps = test_connect(&servers, -1);
        for (int i = 0; i < WORKERS; i++) {
            all[i] = (worker){.servers = &servers, .number = i};
            assert_int_equal(pthread_create(&all[i].thread, NULL, push_integers, &all[i]), 0);
        }
        for (int i = 0; i < WORKERS; i++) {
            pthread_join(all[i].thread, NULL);
        }
        int id;
        uint64_t version;
        float *values = calloc(ELEMENTS, sizeof(float));
        assert_int_equal(gr_ps_declare(ps, &async_spec, &id), GR_OK);
        assert_int_equal(gr_ps_pull_run(ps, id, 0, values, &version), GR_OK);
        assert_int_equal(version, WORKERS * PUSHES);
        for (int i = 0; i < ELEMENTS; i++) {
            assert_true(values[i] == (float)(PUSHES * WORKERS * (WORKERS + 1) / 2));
        }
        gr_ps_entry entry;
        assert_int_equal(gr_ps_list(ps, 0, &entry), GR_OK);
        assert_int_equal(entry.version_least, WORKERS * PUSHES);
        assert_int_equal(entry.version_most, WORKERS * PUSHES);
        assert_string_equal(entry.tensor.name, "embedding");
        assert_int_equal(gr_ps_list(ps, 1, &entry), GR_E_NOT_FOUND);
        free(values);
        gr_ps_close(ps);
        test_servers_stop(&servers);
    }
}

/* ---- ssp ------------------------------------------------------------------------------------- */

static void ssp_waits_for_the_slowest_that_lives(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, false, NULL);
    gr_ps *fast = test_connect(&servers, 0), *slow = test_connect(&servers, 1);
    const gr_ps_spec spec = {
        .name = "w", .elements = ELEMENTS, .consistency = GR_SSP, .staleness = 2};
    int id = declare(fast, spec);
    float *values = calloc(ELEMENTS, sizeof(float));
    gr_ps_op *op;
    assert_int_equal(gr_ps_clock(slow, 0), GR_OK);
    for (uint64_t clock = 0; clock <= 2; clock++) {
        assert_int_equal(gr_ps_clock(fast, clock), GR_OK);
        assert_int_equal(gr_ps_pull_run(fast, id, 0, values, NULL), GR_OK);
    }
    assert_int_equal(gr_ps_clock(fast, 3), GR_OK);
    assert_int_equal(gr_ps_pull_start(fast, id, 0, values, &op), GR_OK);
    assert_int_equal(gr_ps_wait(op, 20000, NULL), GR_E_TIMEOUT);
    assert_int_equal(gr_ps_clock(slow, 1), GR_OK);
    assert_int_equal(gr_ps_wait(op, 20000000, NULL), GR_OK);
    assert_int_equal(gr_ps_clock(fast, 4), GR_OK);
    assert_int_equal(gr_ps_pull_start(fast, id, 0, values, &op), GR_OK);
    assert_int_equal(gr_ps_test(op, NULL), GR_PENDING);
    gr_ps_close(slow); /* who leaves is waited for no more */
    assert_int_equal(gr_ps_wait(op, 20000000, NULL), GR_OK);
    gr_ps *reader = test_connect(&servers, -1); /* and who only reads, never */
    int seen;
    assert_int_equal(gr_ps_declare(reader, &spec, &seen), GR_OK);
    assert_int_equal(gr_ps_pull_run(reader, seen, 0, values, NULL), GR_OK);
    assert_int_equal(gr_ps_clock(reader, 0), GR_E_INVALID);
    assert_int_equal(gr_ps_clock(fast, 5), GR_OK);
    assert_int_equal(gr_ps_pull_start(fast, id, 0, values, &op), GR_OK);
    assert_int_equal(gr_ps_wait(op, 20000000, NULL), GR_OK);
    gr_ps_close(reader);
    free(values);
    gr_ps_close(fast);
    test_servers_stop(&servers);
}

/* ---- Backup workers -------------------------------------------------------------------------- */

static void the_first_pushes_make_the_step_and_later_ones_are_counted(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 1, false, NULL);
    const gr_ps_spec spec = {
        .name = "w", .elements = 100, .consistency = GR_BSP_BACKUP, .aggregate = 2, .total = 3};
    gr_ps *ps[WORKERS];
    gr_ps_op *ops[2];
    float values[100], ones[100];
    int ids[WORKERS];
    for (int i = 0; i < 100; i++) {
        ones[i] = 1;
    }
    for (int i = 0; i < WORKERS; i++) {
        ps[i] = test_connect(&servers, i);
        ids[i] = declare(ps[i], spec);
    }
    const gr_ps_gradient push = {.values = ones, .step = 0, .factor = 0.5f};
    assert_int_equal(gr_ps_push_start(ps[0], ids[0], &push, &ops[0]), GR_OK);
    assert_int_equal(gr_ps_push_start(ps[2], ids[2], &push, &ops[1]), GR_OK);
    assert_int_equal(gr_ps_wait(ops[0], 20000000, NULL), GR_OK);
    assert_int_equal(gr_ps_wait(ops[1], 20000000, NULL), GR_OK);
    assert_int_equal(gr_ps_push_pull_run(ps[1], ids[1], &push, values, NULL), GR_OK);
    assert_true(values[99] == 1.0f);
    gr_ps_counters counters;
    assert_int_equal(gr_ps_read_counters(ps[1], 0, &counters), GR_OK);
    assert_int_equal(counters.late, 1);
    assert_int_equal(counters.updates, 1);
    for (int i = 0; i < WORKERS; i++) {
        gr_ps_close(ps[i]);
    }
    test_servers_stop(&servers);
}

/* ---- What clients do wrong ------------------------------------------------------------------- */

static void what_is_wrong_has_a_sentence_and_nothing_else_happens(void **state)
{
    (void)state;
    test_servers servers;
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.bytes_max = 4 << 20;
    test_servers_start(&servers, 2, false, &config);
    gr_ps *ps = test_connect(&servers, 0), *other = test_connect(&servers, 1),
          *reader = test_connect(&servers, -1);
    gr_ps_spec spec = {.name = "w",
                       .elements = ELEMENTS,
                       .consistency = GR_BSP,
                       .shards = 2,
                       .refuse_not_finite = 1};
    int id = declare(ps, spec), other_id = declare(other, spec), none = -7;
    float *ones = calloc(ELEMENTS, sizeof(float)), *values = calloc(ELEMENTS, sizeof(float));
    for (int i = 0; i < ELEMENTS; i++) {
        ones[i] = 1;
    }
    gr_ps_gradient push = {.values = ones, .step = 0, .first = 0, .count = 1, .rate = 1};
    expect_failure(ps, gr_ps_push_run(ps, 5, &push), GR_E_INVALID, "no tensor 5");
    spec.elements++;
    expect_failure(other, gr_ps_declare(other, &spec, &none), GR_E_INVALID, "30001");
    spec.elements--;
    spec.shards = 3;
    expect_failure(other, gr_ps_declare(other, &spec, &none), GR_E_INVALID, "shards");
    spec = (gr_ps_spec){.name = "large", .elements = 8 << 20, .consistency = GR_ASYNC};
    expect_failure(ps, gr_ps_declare(ps, &spec, &none), GR_E_NO_MEMORY, "MiB");
    spec = (gr_ps_spec){
        .name = "o", .elements = 3, .consistency = GR_ASYNC, .optimizer = "kind: none"};
    expect_failure(ps, gr_ps_declare(ps, &spec, &none), GR_E_UNSUPPORTED, "optimizer");
    push.step = 3;
    expect_failure(ps, gr_ps_push_run(ps, id, &push), GR_E_INVALID, "step");
    push.step = 0;
    push.first = 1;
    push.count = 2;
    expect_failure(ps, gr_ps_push_run(ps, id, &push), GR_E_INVALID, "shard");
    push.first = 0;
    push.count = 1;
    ones[ELEMENTS / 2] = NAN;
    expect_failure(ps, gr_ps_push_run(ps, id, &push), GR_E_NOT_FINITE, "worker 0");
    ones[ELEMENTS / 2] = 1;
    expect_failure(reader, gr_ps_set(reader, declare(ps, async_spec), ones), GR_E_INVALID, "");

    /* All of that did nothing: the step is made as if it had not been. */
    gr_ps_op *ops[2];
    assert_int_equal(gr_ps_push_pull_start(ps, id, &push, values, &ops[0]), GR_OK);
    push.first = 1;
    assert_int_equal(gr_ps_push_start(other, other_id, &push, &ops[1]), GR_OK);
    assert_int_equal(gr_ps_wait(ops[0], 20000000, NULL), GR_OK);
    assert_int_equal(gr_ps_wait(ops[1], 20000000, NULL), GR_OK);
    for (int i = 0; i < ELEMENTS; i++) {
        assert_true(values[i] == 2.0f);
    }
    free(ones);
    free(values);
    gr_ps_close(reader);
    gr_ps_close(other);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

static void a_call_without_a_connection_is_refused(void **state)
{
    (void)state;
    const gr_ps_spec spec = {.name = "w", .elements = 1, .consistency = GR_ASYNC};
    const uint32_t row = 0;
    float value = 0, *states[1] = {&value};
    const float *given[1] = {&value};
    const gr_ps_gradient push = {.values = &value};
    gr_ps_op *op = NULL;
    gr_ps_scan scan = {.room = 1, .rows = (uint32_t[1]){0}, .values = &value};
    gr_ps_entry entry;
    gr_ps_counters counters;
    int id;
    void *mem = NULL;
    const gr_status statuses[] = {
        gr_ps_alloc(NULL, 1, &mem),
        gr_ps_declare(NULL, &spec, &id),
        gr_ps_set(NULL, 0, &value),
        gr_ps_push_run(NULL, 0, &push),
        gr_ps_push_start(NULL, 0, &push, &op),
        gr_ps_pull_run(NULL, 0, 0, &value, NULL),
        gr_ps_pull_start(NULL, 0, 0, &value, &op),
        gr_ps_push_pull_run(NULL, 0, &push, &value, NULL),
        gr_ps_push_pull_start(NULL, 0, &push, &value, &op),
        gr_ps_push_rows_run(NULL, 0, &push, &row, 1),
        gr_ps_push_rows_start(NULL, 0, &push, &row, 1, &op),
        gr_ps_pull_rows_run(NULL, 0, 0, &row, 1, &value, NULL),
        gr_ps_pull_rows_start(NULL, 0, 0, &row, 1, &value, &op),
        gr_ps_test(NULL, NULL),
        gr_ps_wait(NULL, 0, NULL),
        gr_ps_clock(NULL, 1),
        gr_ps_barrier(NULL, "b", 1, 0, 0),
        gr_ps_pull_state_run(NULL, 0, 0, 0, &value, NULL),
        gr_ps_pull_state_start(NULL, 0, 0, 0, &value, &op),
        gr_ps_pull_whole_run(NULL, 0, 0, &value, states, 1, NULL),
        gr_ps_restore(NULL, 0, 0, &value, given, 1),
        gr_ps_scan_rows(NULL, 0, &scan),
        gr_ps_restore_rows(NULL, 0, 0, &row, 1, &value, given, 1),
        gr_ps_list(NULL, 0, &entry),
        gr_ps_read_counters(NULL, 0, &counters),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        assert_int_equal(statuses[i], GR_E_INVALID);
    }
    assert_true(gr_ps_servers(NULL) == 0 && op == NULL && mem == NULL);
    assert_string_equal(gr_ps_last_error(NULL)->text, "the connection is NULL");
    gr_ps_free(NULL, NULL);
}

static void who_has_no_secret_or_another_list_of_servers_does_not_get_in(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, false, NULL);
    const uint8_t wrong[GR_SECRET_BYTES] = "another secret than the others";
    gr_ps_config config = {
        .servers = servers.addresses, .secret = wrong, .worker = 0, .timeout_us = 300000};
    gr_ps *ps = NULL;
    gr_diag diag = {0};
    assert_true(gr_ps_connect(&config, &ps, &diag) < 0);
    assert_true(strlen(diag.text) > 0 && ps == NULL);
    /* The first server alone, as if it were the only one. */
    config.secret = test_secret;
    config.timeout_us = 10000000;
    *strchr(servers.addresses, ',') = '\0';
    assert_int_equal(gr_ps_connect(&config, &ps, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "server 0 of 2"));
    config.servers = ",";
    assert_int_equal(gr_ps_connect(&config, &ps, &diag), GR_E_INVALID);
    config.servers = servers.addresses;
    config.worker = GR_PS_WORKERS_MAX;
    assert_int_equal(gr_ps_connect(&config, &ps, &diag), GR_E_INVALID);
    test_servers_stop(&servers);
}

/* ---- Garbage --------------------------------------------------------------------------------- */

/* One frame from a peer that holds the secret; waits until it is sent away. */
static void send_garbage(const test_servers *servers, gr_frame frame, const void *payload)
{
    gr_mesh_config config;
    gr_mesh *mesh;
    gr_diag diag = {0};
    gr_clock clock = gr_clock_real();
    int64_t deadline_us = gr_clock_deadline_us(&clock, 20000000);
    gr_mesh_config_init(&config);
    config.kind = servers->tcp ? GR_LINK_TCP : GR_LINK_SHM;
    config.dynamic_peers = true;
    config.rank = GR_PS_WORKERS_AT + 7;
    config.world_size = GR_PS_PEERS_MAX;
    config.secret = test_secret;
    assert_int_equal(gr_mesh_create(&config, &mesh, &diag), GR_OK);
    char address[TEST_ADDRESSES_BYTES];
    strcpy(address, servers->addresses);
    address[strcspn(address, "+,")] = '\0';
    assert_int_equal(gr_mesh_connect(mesh, 0, address, &diag), GR_OK);
    bool ended = false;
    while (!ended && gr_clock_now_us(&clock) < deadline_us) {
        int peer;
        uint64_t ticket;
        assert_int_equal(gr_mesh_progress(mesh, &diag), GR_OK);
        while (!ended && gr_mesh_next_change(mesh, &peer, &ended)) {
            if (!ended) {
                assert_int_equal(gr_link_send(gr_mesh_link(mesh, 0), &frame, payload, &ticket),
                                 GR_OK);
                (void)gr_link_sent(gr_mesh_link(mesh, 0), ticket); /* off it goes */
            }
        }
        if (!ended) {
            gr_mesh_wait(mesh, deadline_us);
        }
    }
    assert_true(ended);
    assert_non_null(strstr(gr_link_diag(gr_mesh_link(mesh, 0))->text, "worker 7 sent"));
    gr_mesh_destroy(mesh);
}

static void who_sends_garbage_is_sent_away_and_others_are_not_disturbed(void **state)
{
    (void)state;
    const uint8_t zeros[4000] = {0};
    const gr_frame frames[] = {
        {.kind = GR_FRAME_DATA, .comm = 99},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_VALUES},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_HELLO, .size_bytes = 3},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_PUSH, .size_bytes = 4000},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_BLOCK, .size_bytes = 400, .op_seq = 4},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_DECLARE, .size_bytes = 40},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_PULL_ROWS, .size_bytes = 40},
        {.kind = GR_FRAME_DATA, .comm = GR_PS_ROWS, .size_bytes = 400},
    };
    for (int tcp = 0; tcp < 2; tcp++) {
        test_servers servers;
        test_servers_start(&servers, 1, tcp != 0, NULL);
        gr_ps *ps = test_connect(&servers, 0);
        int id = declare(ps, async_spec);
        float *values = calloc(ELEMENTS, sizeof(float));
        for (uint64_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
            send_garbage(&servers, frames[i], zeros);
            const gr_ps_gradient push = {.values = values, .sequence = i};
            assert_int_equal(gr_ps_push_run(ps, id, &push), GR_OK);
        }
        assert_true(test_servers_have(ps, 1));
        free(values);
        gr_ps_close(ps);
        test_servers_stop(&servers);
    }
}

/* ---- Clients that die ------------------------------------------------------------------------ */

/* Pushes for ever, and tells by a byte that it has begun. */
static void push_until_killed(const test_servers *servers, int number, int out)
{
    gr_ps *ps = test_connect(servers, number);
    int id;
    void *mem;
    if (gr_ps_declare(ps, &async_spec, &id) != GR_OK ||
        gr_ps_alloc(ps, ELEMENTS * sizeof(float), &mem) != GR_OK) {
        _exit(1);
    }
    for (uint64_t n = 0;; n++) {
        const gr_ps_gradient push = {.values = mem, .sequence = (uint64_t)getpid() << 32 | n};
        if (gr_ps_push_pull_run(ps, id, &push, mem, NULL) != GR_OK ||
            (n == 2 && write(out, "x", 1) != 1)) {
            _exit(1);
        }
    }
}

static void read_all(int fd, char *to, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t now = read(fd, to + got, size - got);
        if (now <= 0) {
            _exit(1);
        }
        got += (size_t)now;
    }
}

static void clients_die_and_others_go_on(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        test_servers servers;
        /* Before there are threads: the children are forked from a process without any. */
        int ends[WORKERS][2];
        pid_t children[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
            children[i] = test_fork();
            if (children[i] == 0) {
                read_all(ends[i][1], servers.addresses, sizeof servers.addresses);
                setenv("GRADUS_LINK", tcp ? "tcp" : "auto", 1);
                push_until_killed(&servers, 1 + i, ends[i][1]);
            }
        }
        test_servers_start(&servers, 2, tcp != 0, NULL);
        gr_ps *ps = test_connect(&servers, 0);
        int id = declare(ps, async_spec);
        float *values = calloc(ELEMENTS, sizeof(float));
        for (int i = 0; i < WORKERS; i++) {
            assert_int_equal(write(ends[i][0], servers.addresses, sizeof servers.addresses),
                             sizeof servers.addresses);
        }
        for (uint64_t i = 0; i < WORKERS; i++) {
            char byte;
            assert_int_equal(read(ends[i][0], &byte, 1), 1);
            kill(children[i], SIGKILL);
            const gr_ps_gradient push = {.values = values, .sequence = i};
            assert_int_equal(gr_ps_push_pull_run(ps, id, &push, values, NULL), GR_OK);
        }
        for (int i = 0; i < WORKERS; i++) {
            waitpid(children[i], NULL, 0);
        }
        assert_true(test_servers_have(ps, 1));
        /* The same number may come again. */
        gr_ps *again = test_connect(&servers, 1);
        gr_ps_close(again);
        free(values);
        gr_ps_close(ps);
        test_servers_stop(&servers);
        for (int i = 0; i < WORKERS; i++) {
            close(ends[i][0]);
            close(ends[i][1]);
        }
    }
}

static const gr_ps_spec step_spec = {
    .name = "steps", .elements = ELEMENTS, .consistency = GR_BSP, .shards = 2};

/* Begins to push shard 1, and never ends. */
static void push_half_a_step(const test_servers *servers, int out)
{
    gr_ps *ps = test_connect(servers, 1);
    int id = declare(ps, step_spec);
    gr_ps_op *op;
    void *mem;
    if (gr_ps_alloc(ps, ELEMENTS * sizeof(float), &mem) != GR_OK) {
        _exit(1);
    }
    for (int i = 0; i < ELEMENTS; i++) {
        ((float *)mem)[i] = (float)(i % 100);
    }
    const gr_ps_gradient push = {.values = mem, .step = 0, .first = 1, .count = 1};
    if (gr_ps_push_start(ps, id, &push, &op) != GR_OK ||
        gr_ps_wait(op, 20000, NULL) != GR_E_TIMEOUT || write(out, "x", 1) != 1) {
        _exit(1);
    }
    pause();
}

static void others_push_the_shards_of_who_died_in_a_step(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        test_servers servers;
        int ends[2];
        char byte;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        pid_t child = test_fork();
        if (child == 0) {
            read_all(ends[1], servers.addresses, sizeof servers.addresses);
            setenv("GRADUS_LINK", tcp ? "tcp" : "auto", 1);
            push_half_a_step(&servers, ends[1]);
            _exit(1);
        }
        test_servers_start(&servers, 2, tcp != 0, NULL);
        assert_int_equal(write(ends[0], servers.addresses, sizeof servers.addresses),
                         sizeof servers.addresses);
        assert_int_equal(read(ends[0], &byte, 1), 1);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        gr_ps *ps = test_connect(&servers, 0);
        int id = declare(ps, step_spec);
        float *gradient = calloc(ELEMENTS, sizeof(float)),
              *values = calloc(ELEMENTS, sizeof(float));
        for (int i = 0; i < ELEMENTS; i++) {
            gradient[i] = (float)(i % 100);
        }
        gr_ps_op *ops[2];
        for (int shard = 0; shard < 2; shard++) {
            const gr_ps_gradient push = {.values = gradient, .step = 0, .first = shard, .count = 1};
            assert_int_equal(gr_ps_push_pull_start(ps, id, &push, values, &ops[shard]), GR_OK);
        }
        for (int shard = 0; shard < 2; shard++) {
            uint64_t version = 0;
            assert_int_equal(gr_ps_wait(ops[shard], 20000000, &version), GR_OK);
            assert_int_equal(version, 1);
        }
        for (int i = 0; i < ELEMENTS; i++) {
            assert_true(values[i] == 2.0f * (float)(i % 100));
        }
        free(gradient);
        free(values);
        gr_ps_close(ps);
        test_servers_stop(&servers);
        close(ends[0]);
        close(ends[1]);
    }
}

static void a_lost_server_fails_what_needs_it(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, false, NULL);
    gr_ps *ps = test_connect(&servers, 0);
    int id = declare(ps, async_spec);
    float *values = calloc(ELEMENTS, sizeof(float));
    test_server_stop(&servers, 1);
    const gr_ps_gradient push = {.values = values, .sequence = 1};
    expect_failure(ps, gr_ps_push_run(ps, id, &push), GR_E_PEER_LOST, "parameter server 1");
    expect_failure(ps, gr_ps_pull_run(ps, id, 0, values, NULL), GR_E_PEER_LOST,
                   "parameter server 1");
    gr_ps_counters counters;
    assert_int_equal(gr_ps_read_counters(ps, 0, &counters), GR_OK);
    free(values);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_die_and_others_go_on), /* first: these fork */
        cmocka_unit_test(others_push_the_shards_of_who_died_in_a_step),
        cmocka_unit_test(async_applies_each_push_once),
        cmocka_unit_test(ssp_waits_for_the_slowest_that_lives),
        cmocka_unit_test(the_first_pushes_make_the_step_and_later_ones_are_counted),
        cmocka_unit_test(what_is_wrong_has_a_sentence_and_nothing_else_happens),
        cmocka_unit_test(a_call_without_a_connection_is_refused),
        cmocka_unit_test(who_has_no_secret_or_another_list_of_servers_does_not_get_in),
        cmocka_unit_test(who_sends_garbage_is_sent_away_and_others_are_not_disturbed),
        cmocka_unit_test(a_lost_server_fails_what_needs_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
