/* SPDX-License-Identifier: Apache-2.0 */
#include "group/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_numbers(void **state)
{
    (void)state;
    static const uint64_t ids[] = {70, 70, 5, 70, 5, 9};
    static const int host_of[] = {0, 0, 1, 0, 1, 2}, local[] = {0, 1, 0, 2, 1, 0};
    static const int sizes[] = {3, 2, 1};
    gr_topology *topology = NULL;
    assert_int_equal(gr_topology_create(ids, 6, &topology), GR_OK);
    assert_int_equal(topology->host_count, 3);
    assert_memory_equal(topology->host_of, host_of, sizeof host_of);
    assert_memory_equal(topology->local_rank, local, sizeof local);
    assert_memory_equal(topology->local_size, sizes, sizeof sizes);
    gr_topology_destroy(topology);
    gr_topology_destroy(NULL);
}

static void test_identity(void **state)
{
    (void)state;
    char name[GR_HOST_NAME_BYTES], other[GR_HOST_NAME_BYTES];
    uint64_t found = gr_host_identify(NULL, name);
    assert_true(name[0] != '\0');
    assert_true(found == gr_host_identify("", other)); /* an empty variable is none */
    assert_string_equal(name, other);
    uint64_t a = gr_host_identify("a", name);
    assert_string_equal(name, "a");
    assert_true(a != found && a != gr_host_identify("b", name));
    assert_true(a == gr_host_identify("a", name));
    gr_host_identify("x\x1b[31m", name); /* it goes to terminals */
    assert_string_equal(name, "x?[31m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
