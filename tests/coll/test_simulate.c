/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator against what can be worked out by hand, and against itself. */
#include "sim/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const gr_cluster plain = {.hosts = 4,
                                 .ranks_per_host = 1,
                                 .latency_us = 100,
                                 .bandwidth_gbit = 1,
                                 .overhead_us = 0,
                                 .copy_gbyte = 0,
                                 .local_latency_us = 1,
                                 .local_overhead_us = 0.2,
                                 .local_gbyte = 8,
                                 .reduce_gbyte = 0,
                                 .segment_bytes = 256 << 10};

static gr_simulated run(const gr_cluster *cluster, gr_coll coll, const char *name, size_t bytes)
{
    gr_diag diag = {0};
    gr_simulator *simulator;
    gr_simulated result = {.time_us = 0};
    gr_status status =
        gr_simulator_create(cluster, gr_algorithm_find(coll, name), &simulator, &diag);
    if (status != GR_OK) {
        print_error("%s\n", diag.text);
    }
    assert_int_equal(status, GR_OK);
    status = gr_simulator_run(simulator, bytes, &result, &diag);
    if (status != GR_OK) {
        print_error("%s\n", diag.text);
    }
    assert_int_equal(status, GR_OK);
    gr_simulator_destroy(simulator);
    return result;
}

static void expect_near(double have, double want, double relative)
{
    if (fabs(have - want) > relative * want) {
        print_error("%g, but about %g is right\n", have, want);
        fail();
    }
}

/* One message: the latency, its bytes, the header. */
static void test_one_message(void **state)
{
    (void)state;
    gr_cluster two = plain;
    two.hosts = 2;
    gr_simulated r = run(&two, GR_COLL_BROADCAST, "direct", 1000);
    expect_near(r.time_us, 100 + 1040 * 8e-3, 1e-6);
    expect_near(r.part_us[GR_TIME_LATENCY], 100, 1e-6);
    expect_near(r.part_us[GR_TIME_BANDWIDTH], 1040 * 8e-3, 1e-6);
    two.overhead_us = 7;
    r = run(&two, GR_COLL_BROADCAST, "direct", 1000);
    expect_near(r.part_us[GR_TIME_OVERHEAD], 14, 1e-6);
    /* Inside a host: the receiver copies. */
    two.hosts = 1;
    two.ranks_per_host = 2;
    r = run(&two, GR_COLL_BROADCAST, "direct", 8000);
    expect_near(r.time_us, 1 + 2 * 0.2 + 1, 1e-6);
    assert_true(r.wire_bytes < 1);
}

/* The root's interface is what all copies have to pass, the children's are not. */
static void test_shared_interface(void **state)
{
    (void)state;
    gr_simulated r = run(&plain, GR_COLL_BROADCAST, "direct", 10 << 20);
    expect_near(r.time_us, 3 * 8e-3 * (10 << 20), 0.01);
    expect_near(r.wire_bytes, 3.0 * (10 << 20), 0.001);
    gr_cluster pairs = plain;
    pairs.ranks_per_host = 2; /* three of seven stay inside the host or cost the wire twice */
    r = run(&pairs, GR_COLL_BROADCAST, "direct", 10 << 20);
    expect_near(r.time_us, 6 * 8e-3 * (10 << 20), 0.01);
}

/* Patarasuk and Yuan's bound, and the rounds' latencies for small buffers. */
static void test_ring(void **state)
{
    (void)state;
    double bytes = 64 << 20;
    for (int hosts = 2; hosts <= 16; hosts *= 2) {
        gr_cluster cluster = plain;
        cluster.hosts = hosts;
        gr_simulated r = run(&cluster, GR_COLL_ALLREDUCE, "ring", (size_t)bytes);
        double bound = 2.0 * (hosts - 1) / hosts * bytes * 8e-3;
        assert_true(r.time_us >= bound);
        expect_near(r.time_us, bound, 0.02);
        expect_near(r.wire_bytes, 2.0 * (hosts - 1) / hosts * bytes, 0.001);
        r = run(&cluster, GR_COLL_ALLREDUCE, "ring", (size_t)hosts * 64);
        expect_near(r.time_us, 2 * (hosts - 1) * (100 + 104 * 8e-3), 1e-6);
    }
}

/* On each link of a double tree of three, sums of the next slice go up behind totals of this one:
 * these have come three hops then. In one slice only the last total's hop would be added. */
static void test_slices(void **state)
{
    (void)state;
    gr_cluster cluster = plain;
    cluster.hosts = 3;
    cluster.latency_us = 100000;
    cluster.bandwidth_gbit = 1000;
    for (int slices = 1; slices <= 4; slices *= 2) { /* of 512 KiB, of each half */
        gr_simulated r =
            run(&cluster, GR_COLL_ALLREDUCE, "double-tree", (size_t)slices * 2 * (512 << 10));
        expect_near(r.time_us, (3 * slices + 1) * cluster.latency_us, 1e-3);
    }
}

/* A connection is a stream: of two segments the first one, with its header longer than a packet, is
 * there when the second packet is. So the chain's second hop begins two packets after the first. */
static void test_stream(void **state)
{
    (void)state;
    gr_cluster cluster = plain;
    cluster.hosts = 3;
    cluster.segment_bytes = 64 << 10;
    double packets = 2 * 45 * 1448, whole = 2 * ((64 << 10) + 40);
    gr_simulated r = run(&cluster, GR_COLL_BROADCAST, "chain", 128 << 10);
    expect_near(r.time_us, 2 * cluster.latency_us + (packets + whole) * 8e-3, 1e-6);
}

/* Segments are the library's where nothing is said: short ones on slow lines between hosts. */
static void test_segments_unasked(void **state)
{
    (void)state;
    static const struct {
        int hosts, per_host, gbit, kib;
    } cases[] = {{3, 1, 1, 62}, {3, 1, 10, 62}, {3, 1, 40, 248}, {1, 3, 1, 248}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gr_cluster cluster = plain;
        cluster.hosts = cases[i].hosts;
        cluster.ranks_per_host = cases[i].per_host;
        cluster.bandwidth_gbit = cases[i].gbit;
        cluster.segment_bytes = cases[i].kib << 10;
        gr_simulated said = run(&cluster, GR_COLL_BROADCAST, "chain", 4 << 20);
        cluster.segment_bytes = 0;
        gr_simulated unsaid = run(&cluster, GR_COLL_BROADCAST, "chain", 4 << 20);
        assert_true(said.time_us == unsaid.time_us && said.messages == unsaid.messages);
        assert_int_equal((int)unsaid.messages, ((4 << 10) + cases[i].kib - 1) / cases[i].kib);
    }
}

static void test_token_buckets(void **state)
{
    (void)state;
    gr_cluster cluster = plain;
    cluster.hosts = 3;
    cluster.segment_bytes = 64 << 10;
    /* What a token bucket saves in pauses lets the second of two operations end when the bytes of
     * both are through: the latencies of the first one are pauses for the root's interface. */
    cluster.burst_bytes = 1 << 20;
    gr_simulated r = run(&cluster, GR_COLL_BROADCAST, "chain", 128 << 10);
    assert_true(r.time_us < 2 * ((64 << 10) + 40) * 8e-3);
    r = run(&cluster, GR_COLL_BROADCAST, "chain", 64 << 20);
    expect_near(r.time_us, ((64 << 20) + 1024 * 40) * 8e-3, 1e-4);
    /* Two packets arrive at once where one is saved: the other one takes its time. */
    double message = 65000 + 40;
    cluster.latency_us = 2000;
    cluster.burst_bytes = (int64_t)message;
    r = run(&cluster, GR_COLL_GATHER, "direct", 3 * 65000);
    expect_near(r.time_us, 2000 + message * 8e-3, 1e-6);
}

static void test_reduction_and_cores(void **state)
{
    (void)state;
    gr_cluster cluster = plain;
    cluster.hosts = 1;
    cluster.ranks_per_host = 4;
    cluster.reduce_gbyte = 1;
    cluster.local_gbyte = 0;
    cluster.local_latency_us = cluster.local_overhead_us = 0;
    /* Each rank adds the shares of three others to its quarter. */
    gr_simulated r = run(&cluster, GR_COLL_ALLREDUCE, "direct", 4000000);
    expect_near(r.time_us, 3000, 0.01);
    expect_near(r.part_us[GR_TIME_REDUCTION], 3000, 0.01);
    cluster.cores = 2;
    r = run(&cluster, GR_COLL_ALLREDUCE, "direct", 4000000);
    expect_near(r.time_us, 6000, 0.02);
    cluster.cores = 0;
    cluster.shared_cores = 1;
    r = run(&cluster, GR_COLL_ALLREDUCE, "direct", 4000000);
    expect_near(r.time_us, 12000, 0.02);
}

/* Every plan there is ends in the simulation, and takes longer for more bytes. */
static void test_every_algorithm(void **state)
{
    (void)state;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        int simulated = 0;
        for (int hosts = 1; hosts <= 6; hosts++) {
            for (int per_host = 1; per_host <= 4; per_host++) {
                gr_cluster cluster = plain;
                gr_diag diag = {0};
                gr_simulator *simulator;
                cluster.hosts = hosts;
                cluster.ranks_per_host = per_host;
                gr_status status = gr_simulator_create(&cluster, at, &simulator, &diag);
                if (status == GR_E_UNSUPPORTED || at->coll == GR_COLL_SEND ||
                    at->coll == GR_COLL_RECV) {
                    gr_simulator_destroy(status == GR_OK ? simulator : NULL);
                    continue;
                }
                assert_int_equal(status, GR_OK);
                double before_us = -1;
                for (size_t bytes = 0; bytes <= 16 << 20; bytes = bytes ? bytes * 16 : 256) {
                    gr_simulated r;
                    status = gr_simulator_run(simulator, bytes, &r, &diag);
                    if (status != GR_OK) {
                        print_error("%s by %s, %d hosts of %d: %s\n", gr_coll_name(at->coll),
                                    at->name, hosts, per_host, diag.text);
                    }
                    assert_int_equal(status, GR_OK);
                    assert_true(r.time_us >= before_us || at->coll == GR_COLL_BARRIER);
                    before_us = r.time_us;
                    double sum = 0;
                    for (int part = 0; part < GR_TIME_PARTS; part++) {
                        sum += r.part_us[part];
                    }
                    assert_true(fabs(sum - r.time_us) <= 1e-3 * r.time_us);
                }
                simulated++;
                gr_simulator_destroy(simulator);
            }
        }
        assert_true(simulated > 0 || !at->plan || at->coll >= GR_COLL_SEND);
    }
}

/* In a ring each round costs the same: a world that is too large to be simulated must take as much
 * longer as it has more rounds. */
static void test_extrapolation(void **state)
{
    (void)state;
    gr_cluster cluster = plain;
    cluster.overhead_us = 3;
    cluster.copy_gbyte = 4;
    cluster.reduce_gbyte = 6;
    cluster.hosts = 100;
    gr_simulated small = run(&cluster, GR_COLL_ALLREDUCE, "ring", 100 * 4096);
    assert_false(small.extrapolated);
    cluster.hosts = 100000;
    gr_simulated large = run(&cluster, GR_COLL_ALLREDUCE, "ring", 100000UL * 4096);
    assert_true(large.extrapolated);
    assert_true(large.error < 0.02);
    assert_true(large.largest_simulated < 5000);
    expect_near(large.time_us / 99999, small.time_us / 99, 0.02);
    expect_near(large.wire_bytes, 2.0 * 99999 * (4096 + 40), 0.02);
    /* A tree grows with the logarithm. */
    cluster.hosts = 128;
    small = run(&cluster, GR_COLL_BROADCAST, "binomial", 1024);
    cluster.hosts = 1 << 17;
    large = run(&cluster, GR_COLL_BROADCAST, "binomial", 1024);
    assert_true(large.extrapolated);
    expect_near(large.time_us, small.time_us * 17 / 7, 0.1);
}

/* What a large world is extrapolated from lies on the same side of a power of two: one rank more
 * serves as many others as there are, one fewer costs some more rounds. */
static void test_extrapolation_near_power_of_two(void **state)
{
    (void)state;
    static const struct {
        int hosts, per_host, exact_hosts;
    } above[] = {{2049, 1, 513}, {683, 3, 171}, {4097, 1, 513}, {3073, 1, 769}};
    gr_cluster cluster = plain;
    for (size_t i = 0; i < sizeof above / sizeof *above; i++) {
        cluster.ranks_per_host = above[i].per_host;
        cluster.hosts = above[i].exact_hosts;
        gr_simulated small = run(&cluster, GR_COLL_ALLREDUCE, "recursive-doubling", 1 << 20);
        assert_false(small.extrapolated);
        cluster.hosts = above[i].hosts;
        gr_simulated large = run(&cluster, GR_COLL_ALLREDUCE, "recursive-doubling", 1 << 20);
        assert_true(large.extrapolated);
        expect_near(large.time_us / small.time_us, (double)above[i].hosts / above[i].exact_hosts,
                    0.05);
    }
    cluster.ranks_per_host = 1;
    cluster.hosts = 8192;
    double exact_us = run(&cluster, GR_COLL_ALLREDUCE, "recursive-doubling", 1 << 20).time_us;
    cluster.hosts = 8191;
    double below_us = run(&cluster, GR_COLL_ALLREDUCE, "recursive-doubling", 1 << 20).time_us;
    assert_true(below_us > exact_us && below_us < 2 * exact_us);
    /* Few hosts of many ranks have samples, too. */
    cluster.hosts = 6;
    cluster.ranks_per_host = 100;
    assert_true(run(&cluster, GR_COLL_ALLREDUCE, "direct", 1 << 20).extrapolated);
}

static void test_step(void **state)
{
    (void)state;
    gr_training_step step = {.gradient_bytes = 40000000,
                             .bucket_bytes = 10000000,
                             .forward_us = 100000,
                             .backward_us = 200000,
                             .update_us = 5000,
                             .overlap = false};
    gr_cluster two = plain;
    gr_diag diag;
    gr_simulated_buckets none, ring;
    two.hosts = 1;
    assert_int_equal(gr_simulate_buckets(&step, &two, NULL, false, &none, &diag), GR_OK);
    expect_near(gr_simulate_step(&step, &none).time_us, 305000, 1e-9);
    two.hosts = 2;
    assert_int_equal(gr_simulate_buckets(&step, &two, "ring", false, &ring, &diag), GR_OK);
    const gr_simulated_step after = gr_simulate_step(&step, &ring);
    assert_int_equal(after.buckets, 4);
    /* Two ranks: all bytes pass once in each direction, 80 ms a bucket. */
    expect_near(after.allreduce_us, 4 * 80000, 0.03);
    expect_near(after.time_us, 305000 + after.allreduce_us, 1e-9);
    step.overlap = true;
    const gr_simulated_step during = gr_simulate_step(&step, &ring);
    /* The first bucket is full at 150 ms; then the wire is never idle. */
    expect_near(during.time_us, 150000 + during.allreduce_us + 5000, 1e-6);
    expect_near(during.exposed_us, during.time_us - 305000, 1e-6);
}

/* The fastest of all algorithms, also where some are not even tried: in large worlds. */
static void test_fastest(void **state)
{
    (void)state;
    gr_cluster cluster = plain;
    for (cluster.hosts = 3; cluster.hosts <= 96; cluster.hosts += 93) {
        gr_training_step step = {.gradient_bytes = 3500000, .bucket_bytes = 1000000};
        gr_simulated_buckets best;
        gr_diag diag = {0};
        assert_int_equal(gr_simulate_buckets(&step, &cluster, NULL, false, &best, &diag), GR_OK);
        for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
            if (at->coll == GR_COLL_ALLREDUCE && strcmp(at->name, "gather") != 0) {
                gr_simulator *simulator;
                gr_simulated full;
                if (gr_simulator_create(&cluster, at, &simulator, &diag) != GR_OK) {
                    continue;
                }
                assert_int_equal(gr_simulator_run(simulator, 1000000, &full, &diag), GR_OK);
                gr_simulator_destroy(simulator);
                assert_true(at == best.algorithm ? full.time_us == best.full.time_us
                                                 : full.time_us >= best.full.time_us);
            }
        }
        assert_int_equal(gr_simulate_buckets(&step, &cluster, "ring", true, &best, &diag), GR_OK);
        assert_string_equal(best.algorithm->name, "ring");
        assert_true(best.rest.time_us > 0 && best.rest.time_us < best.full.time_us);
    }
    gr_simulated_buckets none;
    gr_diag diag = {0};
    gr_training_step step = {.gradient_bytes = 1000};
    cluster.hosts = 1;
    assert_int_equal(gr_simulate_buckets(&step, &cluster, NULL, true, &none, &diag), GR_OK);
    assert_true(none.algorithm == NULL && gr_simulate_step(&step, &none).time_us == 0);
}

static void test_refused(void **state)
{
    (void)state;
    gr_diag diag;
    gr_simulator *simulator;
    const gr_algorithm *ring = gr_algorithm_find(GR_COLL_ALLREDUCE, "ring");
    gr_cluster bad = plain;
    bad.hosts = 0;
    assert_int_equal(gr_simulator_create(&bad, ring, &simulator, &diag), GR_E_INVALID);
    bad = plain;
    bad.ranks_per_host = GR_CLUSTER_RANKS_MAX;
    assert_int_equal(gr_simulator_create(&bad, ring, &simulator, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "hosts with"));
    bad = plain;
    bad.bandwidth_gbit = 0;
    assert_int_equal(gr_simulator_create(&bad, ring, &simulator, &diag), GR_E_INVALID);
    gr_simulator_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_message),
        cmocka_unit_test(test_shared_interface),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_segments_unasked),
        cmocka_unit_test(test_token_buckets),
        cmocka_unit_test(test_reduction_and_cores),
        cmocka_unit_test(test_every_algorithm),
        cmocka_unit_test(test_extrapolation),
        cmocka_unit_test(test_extrapolation_near_power_of_two),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_fastest),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
