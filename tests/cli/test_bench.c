/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `gradus bench` find what they must: each wrong element of a result, once. */
#include "cli/bench.h"
#include "coll/comm.h"
#include "coll/reduce/reduce.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 5000 };

static gr_comm *alone(void)
{
    const gr_group_config config = {.rank = -1, .world_size = 1, .local_size = 1, .exact = true};
    gr_comm *comm = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_comm_create_from(&config, &comm, &diag), GR_OK);
    return comm;
}

static gr_bench_case one_case(gr_comm *comm, const gr_bench_op *op, gr_dtype dtype, gr_redop redop)
{
    char *out = malloc(COUNT * gr_dtype_bytes(dtype));
    assert_non_null(out);
    return (gr_bench_case){.op = op,
                           .comm = comm,
                           .dtype = dtype,
                           .redop = redop,
                           .in_place = true,
                           .count = COUNT,
                           .out = out};
}

static void find_wrong_elements(const gr_bench_case *c)
{
    gr_bench_pattern *pattern = NULL;
    gr_diag diag = {0};
    size_t bytes = gr_dtype_bytes(c->dtype);
    assert_int_equal(gr_bench_pattern_create(c->dtype, c->redop, 1, &pattern, &diag), GR_OK);
    gr_bench_fill(pattern, c);
    assert_int_equal(gr_bench_do(c), GR_OK);
    assert_int_equal(gr_bench_check(pattern, c), 0);
    /* Of a complex number the one part, or the other one. */
    memset(c->out + 7 * bytes, 0x55, (bytes + 1) / 2);
    memset(c->out + COUNT * bytes - 1, 0x55, 1);
    assert_int_equal(gr_bench_check(pattern, c), 2);
    gr_bench_pattern_destroy(pattern);
}

static void test_each_wrong_element_counts_once(void **state)
{
    (void)state;
    gr_comm *comm = alone();
    for (const gr_bench_op *op = gr_bench_ops; op->name != NULL; op++) {
        for (int dtype = 0; op->places == 2 && dtype < GR_DTYPE_COUNT; dtype++) {
            for (int redop = 0; redop < GR_REDOP_COUNT; redop++) {
                if (gr_dtype_reduces((gr_dtype)dtype, (gr_redop)redop) && redop != GR_USER) {
                    gr_bench_case c = one_case(comm, op, (gr_dtype)dtype, (gr_redop)redop);
                    find_wrong_elements(&c);
                    free(c.out);
                }
            }
        }
    }
    gr_comm_destroy(comm);
}

static void test_a_result_that_is_shifted_is_wrong(void **state)
{
    (void)state;
    gr_comm *comm = alone();
    gr_bench_pattern *pattern = NULL;
    gr_diag diag = {0};
    gr_bench_case c = one_case(comm, gr_bench_op_find("allreduce"), GR_F32, GR_SUM);
    assert_int_equal(gr_bench_pattern_create(c.dtype, c.redop, 1, &pattern, &diag), GR_OK);
    gr_bench_fill(pattern, &c);
    memmove(c.out, c.out + sizeof(float), (COUNT - 1) * sizeof(float));
    assert_true(gr_bench_check(pattern, &c) > COUNT / 2);
    gr_bench_pattern_destroy(pattern);
    free(c.out);
    gr_comm_destroy(comm);
}

static void test_bus_factors(void **state)
{
    (void)state;
    assert_true(gr_bench_bus_factor(gr_bench_op_find("allreduce"), 4) == 1.5);
    assert_true(gr_bench_bus_factor(gr_bench_op_find("allgather"), 4) == 0.75);
    assert_true(gr_bench_bus_factor(gr_bench_op_find("broadcast"), 4) == 1);
    assert_true(gr_bench_bus_factor(gr_bench_op_find("barrier"), 4) == 0);
    assert_null(gr_bench_op_find("allreduces"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_wrong_element_counts_once),
        cmocka_unit_test(test_a_result_that_is_shifted_is_wrong),
        cmocka_unit_test(test_bus_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
