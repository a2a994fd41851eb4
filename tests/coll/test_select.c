/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of algorithms: the text that overrides it, and what the model chooses. */
#include "coll/engine/exec.h"
#include "coll/select/select.h"
#include "link/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- The text -------------------------------------------------------------------------------- */
static void expect(const char *text, bool exact, int world_size, const char *in_sentence)
{
    gr_select_rules rules;
    gr_diag diag = {.text = ""};
    gr_status status = gr_select_rules_parse(&rules, text, exact, world_size, &diag);
    if (in_sentence ? !strstr(diag.text, in_sentence) : status != GR_OK) {
        print_error("\"%s\": %s\n", text, diag.text);
    }
    assert_int_equal(status, in_sentence ? GR_E_INVALID : GR_OK);
    assert_true(!in_sentence || strstr(diag.text, in_sentence));
}

static void test_text(void **state)
{
    (void)state;
    expect("", true, 4, NULL);
    expect(" ; ,", true, 4, NULL);
    expect("allreduce=direct, broadcast=binomial", true, 4, NULL);
    expect("allreduce:0-64k=tree,64k-inf=direct;broadcast=binomial", true, 4, NULL);
    expect("allreduce:0-64k=tree,allreduce:64k-inf=direct", true, 4, NULL);
    expect("allreduce:0-4096=gather,4k-1M=auto@64k,1m-inf=direct@1m", true, 4, NULL);
    expect("allreduce=ring", false, 4, NULL);
    expect("allreduce=auto", true, 4, NULL);
    expect("allreduce=ring", true, 4, "GRADUS_EXACT=0");
    expect("allreduce=fast", true, 4, "direct, halving-doubling, tree, gather, ring");
    expect("broadcast=binomial;allreduce=fast", true, 4, "at character 20");
    expect("allsum=ring", true, 4, "one of allreduce, reduce-scatter, allgather");
    expect("allreduce", true, 4, "collective=algorithm");
    expect("=ring", true, 4, "collective=algorithm");
    expect("0-64k=tree", true, 4, "range without a collective");
    expect("allreduce=direct;0-64k=tree", true, 4, "range without a collective");
    expect("allreduce:64k=tree", true, 4, "does not begin with a range");
    expect("allreduce:0-64q=tree", true, 4, "does not begin with a range");
    expect("allreduce:0-99999999999999999999=tree", true, 4, "does not begin with a range");
    expect("allreduce:0-64k", true, 4, "does not begin with a range");
    expect("allreduce:64k-4k=tree", true, 4, "ends before it begins");
    expect("allreduce:4k-4k=tree", true, 4, "holds nothing");
    expect("allreduce:0-64k=tree,128k-inf=direct", true, 4,
           "64k to 128k bytes; write 64k-128k=auto");
    expect("allreduce:0-64k=tree,32k-inf=direct", true, 4, "reaches to 64k");
    expect("allreduce:0-64k=tree", true, 4, "of 64k bytes and more");
    expect("allreduce:1k-inf=tree", true, 4, "0 to 1k bytes; write 0-1k=auto where");
    expect("allreduce=tree,allreduce=direct", true, 4, "reaches to inf");
    expect("allreduce=tree@1", true, 4, "no size of a segment");
    expect("allreduce=tree@", true, 4, "no size of a segment");
    expect("allreduce=tree@8g", true, 4, "no size of a segment");
    char text[256];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    expect(text, true, 4, "too long");
}

/* An algorithm that cannot do the number of ranks is refused when that is known. */
static void test_world_size(void **state)
{
    (void)state;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int size = 2; size <= 9; size++) {
            char text[128];
            gr_plan_shape shape = {
                .coll = at->coll, .world_size = size, .shards = size, .shared = true};
            snprintf(text, sizeof text, "%s=%s", gr_coll_name(at->coll), at->name);
            expect(text, false, size, at->fits(&shape) ? NULL : "cannot be done by");
            expect(text, false, 0, NULL);
        }
    }
}

static gr_selection make(const char *text, bool exact, gr_link_kind link, int world_size)
{
    gr_selection selection;
    gr_selection_config config = {
        .text = text, .exact = exact, .link = link, .world_size = world_size};
    gr_diag diag;
    assert_int_equal(gr_selection_init(&selection, &config, &diag), GR_OK);
    return selection;
}

static void expect_name(gr_selection *selection, int world_size, size_t size_bytes,
                        const char *name, size_t segment_bytes)
{
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .world_size = world_size, .shards = world_size};
    gr_choice choice = gr_select(selection, &shape, GR_F32, size_bytes, false);
    assert_non_null(choice.algorithm);
    assert_string_equal(choice.algorithm->name, name);
    if (segment_bytes > 0) {
        assert_int_equal(choice.segment_bytes, segment_bytes);
    }
}

/* The end of a range does not belong to it. */
static void test_ranges(void **state)
{
    (void)state;
    gr_selection selection =
        make("allreduce:0-64k=tree,64k-1m=gather@64k,1m-inf=direct@1m", true, GR_LINK_TCP, 4);
    expect_name(&selection, 4, 0, "tree", 0);
    expect_name(&selection, 4, 65535, "tree", 0);
    expect_name(&selection, 4, 65536, "gather", 65536);
    expect_name(&selection, 4, (1 << 20) - 1, "gather", 65536);
    expect_name(&selection, 4, 1 << 20, "direct", 1 << 20);
    expect_name(&selection, 4, SIZE_MAX, "direct", 1 << 20);
}

static void count_lines(void *arg, gr_log_level level, const char *component, const char *line)
{
    (void)component;
    assert_int_equal(level, GR_LOG_WARN);
    assert_non_null(strstr(line, "cannot do"));
    (*(int *)arg)++;
}

/* What does not fit a shape gives way, and that is said, once. */
static void test_misfit(void **state)
{
    (void)state;
    int lines = 0;
    gr_log log = {.level = GR_LOG_WARN, .sink = count_lines, .sink_arg = &lines};
    gr_selection selection;
    gr_selection_config config = {
        .text = "allreduce=ring", .exact = false, .world_size = 4, .log = &log};
    assert_int_equal(gr_selection_init(&selection, &config, NULL), GR_OK);
    gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE, .world_size = 4, .shards = 4};
    assert_string_equal(gr_select(&selection, &shape, GR_F32, 1000, false).algorithm->name, "ring");
    assert_int_equal(lines, 0);
    shape.shards = 7;
    for (int i = 0; i < 3; i++) {
        gr_choice choice = gr_select(&selection, &shape, GR_F32, 1000, false);
        assert_true(choice.algorithm->fits(&shape));
    }
    assert_int_equal(lines, 1);
}

/* ---- The choice ------------------------------------------------------------------------------ */
/* Whatever is chosen fits; for an exact sum it adds in tree order. */
static void test_choices(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 5, 8, 13, 16, 64, 200};
    for (int link = 0; link < 2; link++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            gr_selection selection = make(NULL, true, (gr_link_kind)link, sizes[s]);
            for (int coll = 0; coll <= GR_COLL_BARRIER; coll++) {
                gr_plan_shape shape = {
                    .coll = (gr_coll)coll, .world_size = sizes[s], .shards = sizes[s]};
                for (size_t bytes = 0; bytes < (1u << 30); bytes = 4 * bytes + 1) {
                    const gr_algorithm *a =
                        gr_select(&selection, &shape, GR_F32, bytes, false).algorithm;
                    assert_non_null(a);
                    assert_true(a->canonical && a->coll == (gr_coll)coll && a->fits(&shape));
                }
            }
        }
    }
}

/* Every rank must choose alike, whichever operations it asked about before. */
static void test_alike(void **state)
{
    (void)state;
    gr_selection a = make(NULL, true, GR_LINK_SHM, 6), b = a;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++) {
            int turn = round % 2 ? 199 - i : i;
            gr_plan_shape shape = {.coll = (gr_coll)(turn % 5),
                                   .world_size = 6,
                                   .shards = 6 + turn % 4 * (turn % 5 == 0)};
            size_t bytes = (size_t)1 << turn % 28;
            gr_choice of_b = gr_select(&b, &shape, (gr_dtype)(turn % 3), bytes, turn % 2);
            shape.rank = 5;
            gr_choice of_a = gr_select(&a, &shape, (gr_dtype)(turn % 3), bytes, turn % 2);
            assert_ptr_equal(of_a.algorithm, of_b.algorithm);
            assert_int_equal(of_a.segment_bytes, of_b.segment_bytes);
        }
    }
}

static void test_measured(void **state)
{
    (void)state;
    gr_selection selection = make("allreduce:0-1k=direct,1k-inf=auto", true, GR_LINK_SHM, 4);
    gr_cost_model model = selection.model;
    gr_select_rules measured = {.count = 1};
    measured.rules[0] = (gr_select_rule){.coll = GR_COLL_ALLREDUCE,
                                         .to = 1 << 20,
                                         .algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, "tree"),
                                         .segment_bytes = 64 << 10};
    gr_selection_adopt(&selection, &model, &measured);
    expect_name(&selection, 4, 1023, "direct", 0);
    expect_name(&selection, 4, 1024, "tree", 64 << 10);
    expect_name(&selection, 4, 1 << 20, "direct", 0);
    /* A change of costs changes the choice. */
    model.link[GR_MODEL_INSIDE].latency_us = 1e4;
    gr_selection_adopt(&selection, &model, NULL);
    expect_name(&selection, 4, 1 << 20, "gather", 0);
}

/* Over a slow line segments are short, whatever else is chosen. */
static void test_slow_network(void **state)
{
    (void)state;
    static const int host_of[] = {0, 1, 2, 3}, local_rank[4] = {0}, local_size[] = {1, 1, 1, 1};
    const gr_topology topology = {4, host_of, local_rank, local_size};
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .world_size = 4, .shards = 4, .topology = &topology};
    gr_selection selection = make(NULL, true, GR_LINK_TCP, 4);
    gr_cost_model model = selection.model;
    model.link[GR_MODEL_BETWEEN].host_byte_us = model.link[GR_MODEL_BETWEEN].wire_byte_us = 8.4e-5;
    gr_selection_adopt(&selection, &model, NULL);
    gr_choice fast = gr_select(&selection, &shape, GR_F32, 16 << 20, false);
    assert_true(fast.segment_bytes >= 2 * GR_SEGMENT_UNIT_BYTES);
    model.link[GR_MODEL_BETWEEN].host_byte_us = model.link[GR_MODEL_BETWEEN].wire_byte_us = 8.4e-4;
    gr_selection_adopt(&selection, &model, NULL);
    gr_choice slow = gr_select(&selection, &shape, GR_F32, 16 << 20, false);
    assert_int_equal(slow.segment_bytes, GR_SEGMENT_UNIT_BYTES);
    assert_true(slow.segment_bytes + GR_FRAME_BYTES <= 44 * 1460); /* one packet to the kernel */
}

/* With a root operations follow one another: that it sends less is worth a longer way, but not one
 * over a network. What comes to a root can wait. */
static void test_root_sends_less(void **state)
{
    (void)state;
    static const int host_of[] = {0, 1, 2, 3}, local_rank[4] = {0}, local_size[] = {1, 1, 1, 1};
    const gr_topology topology = {4, host_of, local_rank, local_size};
    gr_selection selection = make(NULL, true, GR_LINK_TCP, 4);
    gr_plan_shape shape = {.coll = GR_COLL_BROADCAST, .world_size = 4, .shards = 4};
    assert_string_equal(gr_select(&selection, &shape, GR_F32, 4, false).algorithm->name,
                        "binomial");
    shape.coll = GR_COLL_REDUCE;
    assert_string_equal(gr_select(&selection, &shape, GR_F32, 4, false).algorithm->name, "direct");
    selection = make(NULL, true, GR_LINK_TCP, 4);
    shape.coll = GR_COLL_BROADCAST;
    shape.topology = &topology;
    assert_string_equal(gr_select(&selection, &shape, GR_F32, 4, false).algorithm->name, "direct");
}

/* Rows without a plan are rules as any other; where no memory is shared, the choice is free. */
static void test_shared_rows(void **state)
{
    (void)state;
    gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE, .world_size = 4, .shards = 4, .shared = true};
    gr_selection selection = make("allreduce:0-64k=shm,64k-inf=tree", true, GR_LINK_SHM, 4);
    int lines = 0;
    gr_log log = {.level = GR_LOG_WARN, .sink = count_lines, .sink_arg = &lines};
    selection.log = &log;
    assert_string_equal(gr_select(&selection, &shape, GR_F32, 100, false).algorithm->name, "shm");
    assert_string_equal(gr_select(&selection, &shape, GR_F32, 1 << 20, false).algorithm->name,
                        "tree");
    assert_int_equal(lines, 0);
    shape.shared = false;
    assert_non_null(gr_select(&selection, &shape, GR_F32, 100, false).algorithm->plan);
    assert_int_equal(lines, 1);
    shape.coll = GR_COLL_ALLTOALL;
    shape.shared = true;
    assert_null(gr_select(&selection, &shape, GR_F32, 100, false).algorithm->plan);
    shape.uneven = true;
    assert_non_null(gr_select(&selection, &shape, GR_F32, 100, false).algorithm->plan);
    expect("allreduce=shm", true, 65, "2 to 64 ranks of one host");
}

static void test_size_classes(void **state)
{
    (void)state;
    for (int i = 0; i < GR_SELECT_SIZES - 1; i++) {
        size_t bytes = gr_select_class_bytes(i);
        assert_int_equal(gr_select_size_class(bytes), i);
        assert_int_equal(gr_select_size_class(bytes + 1), i + 1);
    }
    assert_int_equal(gr_select_size_class(0), 0);
    assert_int_equal(gr_select_size_class(SIZE_MAX), GR_SELECT_SIZES - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_world_size),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_misfit),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_size_classes),
        cmocka_unit_test(test_slow_network),
        cmocka_unit_test(test_shared_rows),
        cmocka_unit_test(test_root_sends_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
