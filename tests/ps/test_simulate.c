/* SPDX-License-Identifier: Apache-2.0 */
/* Steps by parameter servers against what can be worked out by hand, and against themselves. */
#include "sim/ps_simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 8, BYTES = 8000000 };
#define WIRE_US 8e-3 /* of a byte, at 1 Gbit/s */
#define PUSH_US (BYTES * WIRE_US)

/* Wires alone: nothing else takes time. */
static gr_ps_sim wires(int workers, int servers)
{
    return (gr_ps_sim){.cluster = {.hosts = workers, .ranks_per_host = 1, .bandwidth_gbit = 1},
                       .servers = servers,
                       .servers_per_host = 1,
                       .step = {.gradient_bytes = BYTES, .bucket_bytes = BYTES},
                       .seed = 1,
                       .aggregate = workers};
}

/* Computing alone: the wires have next to nothing to carry. */
static gr_ps_sim computing(int workers, const double *slow)
{
    gr_ps_sim sim = wires(workers, 2);
    sim.step.gradient_bytes = 4096;
    sim.step.forward_us = 40000;
    sim.step.backward_us = 60000;
    sim.cluster.bandwidth_gbit = 100;
    sim.slow = slow;
    return sim;
}

static gr_ps_simulated run(const gr_ps_sim *sim)
{
    gr_diag diag = {0};
    gr_ps_simulated result = {.step_us = 0};
    gr_status status = gr_ps_simulate(sim, &result, &diag);
    if (status != GR_OK) {
        print_error("%s\n", diag.text);
    }
    assert_int_equal(status, GR_OK);
    return result;
}

static double step_us(gr_ps_sim sim, gr_ps_sim_mode mode)
{
    sim.mode = mode;
    return run(&sim).step_us;
}

static void expect_near(double have, double want, double relative)
{
    if (!(fabs(have - want) <= relative * want)) {
        print_error("%g, but about %g is right\n", have, want);
        fail();
    }
}

/* What is pushed and pulled crosses the busiest wire once in each direction; of the last block the
 * pull does not overlap any push. */
static void test_busiest_wire(void **state)
{
    (void)state;
    for (int servers = 1; servers <= 16; servers += servers / 2 + 1) {
        gr_ps_sim sim = wires(WORKERS, servers);
        double bound = PUSH_US * fmax(1, (double)WORKERS / servers);
        gr_ps_simulated r = run(&sim);
        assert_true(r.step_us >= bound * (1 - 1e-9));
        expect_near(r.step_us, bound, 0.07);
        assert_true(r.busiest.share > 0.93);
        if (servers < WORKERS) {
            assert_true(r.busiest.server);
        }
        /* Nobody waits for anybody: the wire is never idle. */
        expect_near(step_us(sim, GR_PS_SIM_ASYNC), bound, 0.02);
    }
}

static void test_shared_wires(void **state)
{
    (void)state;
    gr_ps_sim sim = wires(4, 8);
    sim.cluster.ranks_per_host = 2; /* eight workers, each pair with one wire */
    expect_near(run(&sim).step_us, 2 * PUSH_US, 0.07);
    sim.servers_per_host = 4; /* two hosts of servers with four pushes each */
    expect_near(run(&sim).step_us, 4 * PUSH_US, 0.07);
    assert_true(run(&sim).busiest.server);
    /* On the workers' hosts, three quarters of a push and of three pulls leave each of them. */
    sim = wires(4, 4);
    sim.beside_workers = true;
    expect_near(run(&sim).step_us, 1.5 * PUSH_US, 0.07);
    assert_false(run(&sim).busiest.server);
    sim.cluster.incast_gbit = 0.5; /* what meets at a host comes at half the rate */
    assert_true(run(&sim).step_us > 2 * PUSH_US);
    assert_true(run(&sim).busiest.incoming);
    /* All on one host: no wire at all. */
    sim = wires(1, 2);
    sim.cluster.ranks_per_host = 4;
    sim.beside_workers = true;
    sim.cluster.local_gbyte = 1;
    expect_near(run(&sim).step_us, BYTES * 1e-3, 0.07); /* the workers' copies */
    assert_true(run(&sim).busiest.share == 0);
}

/* A copy of each update leaves a server and comes to another one: of each step, or of each push. */
static void test_replicas(void **state)
{
    (void)state;
    for (int servers = 1; servers <= 4; servers++) {
        gr_ps_sim sim = wires(WORKERS, servers);
        sim.replicas = true;
        int copies = servers > 1;
        double push_us = PUSH_US / servers;
        double us = run(&sim).step_us;
        assert_true(us >= (WORKERS + copies) * push_us * (1 - 1e-9));
        expect_near(us, (WORKERS + copies) * push_us, 0.07);
        expect_near(step_us(sim, GR_PS_SIM_ASYNC), WORKERS * (1 + copies) * push_us, 0.02);
        sim.staleness = 2;
        expect_near(step_us(sim, GR_PS_SIM_SSP), WORKERS * (1 + copies) * push_us, 0.05);
        /* There, to the replica, back, and back again: four ways. */
        sim.step.gradient_bytes = 16;
        sim.cluster.latency_us = 1000;
        expect_near(run(&sim).step_us, 2000 * (1 + copies), 0.01);
        sim.servers_per_host = servers;
        sim.cluster.local_latency_us = 10;
        expect_near(run(&sim).step_us, 2000 + 20 * copies, 0.01);
        sim = wires(WORKERS, servers);
        sim.replicas = true;
        sim.cluster.bandwidth_gbit = 1000;
        sim.step.update_us = 80000;
        expect_near(run(&sim).step_us, (1 + copies) * 80000.0 / servers, 0.07);
    }
}

static void test_servers_work(void **state)
{
    (void)state;
    gr_ps_sim sim = wires(WORKERS, 2);
    sim.cluster.bandwidth_gbit = 1000;
    sim.cluster.reduce_gbyte = 1;
    expect_near(run(&sim).step_us, (WORKERS - 1) * BYTES / 2.0 * 1e-3, 0.07);
    sim.cluster.reduce_gbyte = 0;
    sim.step.update_us = 80000;
    expect_near(run(&sim).step_us, 40000, 0.05);
    expect_near(step_us(sim, GR_PS_SIM_ASYNC), WORKERS * 40000, 0.02); /* one for each push */
    sim.step.update_us = 0;
    sim.cluster.copy_gbyte = 1; /* eight pushes taken and eight pulls written, by each of two */
    expect_near(run(&sim).step_us, 2 * WORKERS * BYTES / 2.0 * 1e-3, 0.07);
}

static void test_latency(void **state)
{
    (void)state;
    gr_ps_sim sim = wires(WORKERS, 2);
    sim.step.gradient_bytes = 4;
    sim.cluster.latency_us = 1000;
    sim.cluster.overhead_us = 100;
    /* There and back; each worker's message is taken and answered after the others'. */
    double us = run(&sim).step_us;
    assert_true(us >= 2000 + 4 * 100 && us <= 2000 + (2 + 2 * WORKERS) * 100 + 10);
}

static void test_overlap(void **state)
{
    (void)state;
    gr_ps_sim sim = wires(1, 4);
    sim.step.forward_us = PUSH_US;
    sim.step.backward_us = 2 * PUSH_US;
    expect_near(run(&sim).step_us, 4 * PUSH_US, 0.03);
    sim.step.overlap = true;
    expect_near(run(&sim).step_us, 3 * PUSH_US, 0.03);
}

static void test_slowest_and_backup(void **state)
{
    (void)state;
    static const double slow[] = {3, 1, 4, 2};
    gr_ps_sim sim = computing(4, slow);
    expect_near(step_us(sim, GR_PS_SIM_BSP), 400000, 0.01);
    for (int k = 1; k <= 4; k++) {
        sim.aggregate = k;
        sim.mode = GR_PS_SIM_BACKUP;
        gr_ps_simulated r = run(&sim);
        expect_near(r.step_us, 100000 * k, 0.01); /* the k-th fastest */
        expect_near(r.gradients_per_s, 10, 0.01);
        assert_true(k == 4 ? r.dropped == 0 : r.dropped > 0.1);
    }
    /* Who was late goes on with the others, from the step that they do: else the same two would
     * always be late, and half of what is pushed. */
    sim.slow = NULL;
    sim.spread = 1;
    sim.aggregate = 2;
    assert_true(run(&sim).dropped < 0.45);
    /* And it sees nothing that the replica does not have. */
    sim = computing(2, NULL);
    sim.step.gradient_bytes = 16;
    sim.replicas = true;
    sim.cluster.latency_us = 10000;
    sim.aggregate = 1;
    expect_near(step_us(sim, GR_PS_SIM_BACKUP), 100000 + 4 * 10000, 0.01);
}

static void test_async(void **state)
{
    (void)state;
    static const double slow[] = {3, 1, 4, 2};
    gr_ps_sim sim = computing(4, slow);
    double rate = 0;
    for (int rank = 0; rank < 4; rank++) {
        rate += 10 / slow[rank];
    }
    sim.mode = GR_PS_SIM_ASYNC;
    expect_near(run(&sim).gradients_per_s, rate, 0.02);
    /* Until the wires of the servers are full. */
    sim = wires(WORKERS, 2);
    sim.mode = GR_PS_SIM_ASYNC;
    sim.step.forward_us = PUSH_US;
    expect_near(run(&sim).gradients_per_s, 2e6 / PUSH_US, 0.02);
    sim.step.forward_us = 16 * PUSH_US;
    expect_near(run(&sim).gradients_per_s, 8e6 / (17 * PUSH_US), 0.03);
    /* Between two pushes of a worker the others push once each. */
    expect_near(run(&sim).staleness_mean, WORKERS - 1, 0.05);
}

static void test_ssp(void **state)
{
    (void)state;
    static const double slow[] = {1, 1, 1, 4};
    gr_ps_sim sim = computing(4, NULL);
    sim.spread = 0.3;
    double bsp = step_us(sim, GR_PS_SIM_BSP), async = step_us(sim, GR_PS_SIM_ASYNC);
    double before = bsp * 1.02;
    for (sim.staleness = 0; sim.staleness <= 27; sim.staleness = sim.staleness * 3 + 3) {
        double ssp = step_us(sim, GR_PS_SIM_SSP);
        assert_true(ssp < before && ssp > async * 0.99);
        before = ssp;
    }
    expect_near(before, async, 0.02);
    sim.staleness = 0;
    expect_near(step_us(sim, GR_PS_SIM_SSP), bsp, 0.02);
    sim.staleness = 3;
    assert_true(step_us(sim, GR_PS_SIM_SSP) < 0.9 * bsp);
    /* One that is always slow is what all wait for in the end. */
    sim = computing(4, slow);
    sim.staleness = 3;
    expect_near(step_us(sim, GR_PS_SIM_SSP), 400000, 0.02);
    sim.mode = GR_PS_SIM_SSP;
    assert_true(run(&sim).staleness_mean < (3 + 1) * 3);
    /* What those pull that waited for it does not make it wait. */
    sim = wires(4, 4);
    sim.slow = slow;
    sim.cluster.bandwidth_gbit = 1;
    sim.step.forward_us = 2 * PUSH_US;
    sim.step.backward_us = 4 * PUSH_US;
    sim.step.overlap = true;
    sim.staleness = 3;
    expect_near(step_us(sim, GR_PS_SIM_SSP), 24 * PUSH_US, 0.01);
}

static void test_other_ways(void **state)
{
    (void)state;
    static const double slow[] = {1, 1, 1.5, 1};
    gr_ps_sim sim = wires(4, 1);
    gr_diag diag = {0};
    gr_simulated_buckets buckets;
    sim.step.forward_us = 100000;
    sim.step.backward_us = 200000;
    sim.step.update_us = 1000;
    sim.slow = slow;
    assert_int_equal(gr_simulate_buckets(&sim.step, &sim.cluster, "ring", true, &buckets, &diag),
                     GR_OK);
    double ring_us = buckets.full.time_us;
    expect_near(ring_us, 1.5 * PUSH_US, 0.02);
    expect_near(gr_ps_sim_allreduce(&sim, &buckets).time_us, 451000 + ring_us, 1e-9);
    expect_near(gr_ps_sim_local(&sim, 10, &buckets).time_us, 451000 + ring_us / 10, 1e-9);
    /* With a spread, the slowest of several takes longer than one, but less so in several steps. */
    sim.slow = NULL;
    assert_true(gr_ps_sim_slowest(&sim, 5) == 1);
    sim.spread = 0.2;
    double one = gr_ps_sim_slowest(&sim, 1), ten = gr_ps_sim_slowest(&sim, 10);
    /* The largest of four normal numbers is 1.03 deviations above their mean on the average. */
    expect_near(one, 1 + 1.03 * 0.2, 0.02);
    expect_near(ten, 1 + 1.03 * 0.2 / sqrt(10), 0.01);
    /* A billion steps: the same, in no time. */
    double many = gr_ps_sim_slowest(&sim, 1000000000);
    expect_near((many - 1) / (one - 1), 1 / sqrt(1e9), 0.1);
    sim.cluster.hosts = 1;
    expect_near(gr_ps_sim_slowest(&sim, 1), 1, 0.05);
}

static void test_advice(void **state)
{
    (void)state;
    gr_diag diag = {0};
    gr_ps_advice advice;
    char text[GR_PS_ADVICE_BYTES];
    gr_ps_sim sim = wires(WORKERS, 1);
    assert_int_equal(gr_ps_advise(&sim, 16, NULL, &advice, &diag), GR_OK);
    assert_int_equal(advice.servers, WORKERS); /* from there on the workers' wires are the limit */
    expect_near(advice.one_us, WORKERS * PUSH_US, 0.02);
    expect_near(advice.step_us, PUSH_US, 0.07);
    expect_near(advice.allreduce_us, 2 * 7 / 8.0 * PUSH_US, 0.07);
    gr_ps_advice_print(&advice, text);
    assert_non_null(strstr(text, "8 parameter servers balance 8 workers"));
    assert_non_null(strstr(text, advice.algorithm->name));
    assert_int_equal(gr_ps_advise(&sim, 3, NULL, &advice, &diag), GR_OK);
    assert_int_equal(advice.servers, 3);
    gr_ps_advice_print(&advice, text);
    assert_non_null(strstr(text, "more there cannot be"));
    sim = computing(WORKERS, NULL);
    assert_int_equal(gr_ps_advise(&sim, 16, NULL, &advice, &diag), GR_OK);
    assert_int_equal(advice.servers, 1);
    /* No number is worth more than the one advised, and all below it are worth less. */
    sim = wires(6, 1);
    sim.step.forward_us = 6 * PUSH_US;
    assert_int_equal(gr_ps_advise(&sim, 16, NULL, &advice, &diag), GR_OK);
    for (sim.servers = 1; sim.servers <= 16; sim.servers++) {
        double us = run(&sim).step_us;
        assert_true(sim.servers < advice.servers ? us * 0.95 > advice.most_us
                                                 : us * 0.95 <= advice.most_us);
    }
    sim = wires(1, 1);
    assert_int_equal(gr_ps_advise(&sim, 4, NULL, &advice, &diag), GR_OK);
    gr_ps_advice_print(&advice, text);
    assert_true(!advice.algorithm && strstr(text, "balances 1 worker") != NULL);
}

static void test_same_seed_same_result(void **state)
{
    (void)state;
    for (int mode = GR_PS_SIM_BSP; mode <= GR_PS_SIM_ASYNC; mode++) {
        gr_ps_sim sim = computing(5, NULL);
        sim.step.gradient_bytes = BYTES;
        sim.mode = (gr_ps_sim_mode)mode;
        sim.aggregate = 4;
        sim.replicas = true;
        sim.spread = 0.5;
        gr_ps_simulated one = run(&sim), two = run(&sim);
        assert_true(one.step_us == two.step_us && one.dropped == two.dropped &&
                    one.staleness_mean == two.staleness_mean &&
                    one.busiest.share == two.busiest.share);
        sim.seed = 2;
        assert_true(run(&sim).step_us != one.step_us);
    }
}

/* Every mode, also with more servers than blocks and one of everything, comes to its end. */
static void test_all_sorts(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * 3 * 5 * 4 * 2; i++) {
        static const int many[] = {1, 2, 5};
        static const int64_t bytes[] = {4, 5000, 50000, 300000};
        gr_ps_sim sim = computing(many[i / 4 % 3], NULL);
        sim.mode = (gr_ps_sim_mode)(i % 4);
        sim.cluster.ranks_per_host = 1 + i / 12 % 5 % 2;
        sim.servers = 1 + i / 12 % 5;
        sim.servers_per_host = 2;
        sim.step.gradient_bytes = bytes[i / 60 % 4];
        sim.beside_workers = i / 240 == 1;
        sim.cluster.latency_us = i % 7 * 100;
        sim.cluster.burst_bytes = i % 3 * 100000;
        sim.spread = i % 5 * 0.2;
        sim.replicas = i / 4 % 2 == 1;
        sim.staleness = 1;
        sim.aggregate = (sim.cluster.hosts * sim.cluster.ranks_per_host + 1) / 2;
        gr_ps_simulated r = run(&sim);
        assert_true(r.step_us > 0 && r.busiest.share <= 1);
    }
}

static void test_many_workers(void **state)
{
    (void)state;
    gr_ps_sim sim = wires(512, 16);
    sim.step.gradient_bytes = 100000000;
    double bound = 512 / 16 * 1e8 * WIRE_US;
    expect_near(step_us(sim, GR_PS_SIM_BSP), bound, 0.07);
    expect_near(step_us(sim, GR_PS_SIM_ASYNC), bound, 0.01);
}

static void test_refused(void **state)
{
    (void)state;
    static const double standing[] = {1, 0};
    gr_ps_sim bad[10];
    for (int i = 0; i < 10; i++) {
        bad[i] = wires(2, 1);
    }
    bad[0].cluster.hosts = GR_PS_SIM_WORKERS_MAX + 1;
    bad[1].servers = 0;
    bad[2].servers = GR_PS_SIM_SERVERS_MAX + 1;
    bad[3].mode = GR_PS_SIM_BACKUP;
    bad[3].aggregate = 3;
    bad[4].mode = GR_PS_SIM_SSP;
    bad[4].staleness = -1;
    bad[5].cluster.bandwidth_gbit = 0;
    bad[6].slow = standing;
    bad[7].step.gradient_bytes = 0;
    bad[8].spread = NAN;
    bad[9].step.update_us = -1;
    for (int i = 0; i < 10; i++) {
        gr_diag diag = {0};
        gr_ps_simulated result;
        assert_int_equal(gr_ps_simulate(&bad[i], &result, &diag), GR_E_INVALID);
        assert_true(strlen(diag.text) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_busiest_wire),
        cmocka_unit_test(test_shared_wires),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_servers_work),
        cmocka_unit_test(test_latency),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_slowest_and_backup),
        cmocka_unit_test(test_async),
        cmocka_unit_test(test_ssp),
        cmocka_unit_test(test_other_ways),
        cmocka_unit_test(test_advice),
        cmocka_unit_test(test_same_seed_same_result),
        cmocka_unit_test(test_all_sorts),
        cmocka_unit_test(test_many_workers),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
