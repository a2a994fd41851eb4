/* SPDX-License-Identifier: Apache-2.0 */

/* Slurm's lists of nodes, and its numbers for each node. */

#include "group/slurm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* All names of a list, with commas between; what is asked for behind the last one is refused. */
static void expect_nodes(const char *list, const char *names)
{
    char all[512] = "", name[GR_SLURM_NAME_BYTES];
    int64_t count = 0;
    while (gr_slurm_node(list, count, name)) {
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", count > 0 ? "," : "", name);
        count++;
    }
    assert_string_equal(all, names);
    assert_false(gr_slurm_node(list, count + 1, name));
    assert_false(gr_slurm_node(list, -1, name));
}

static void node_list_names_each_node(void **state)
{
    (void)state;
    expect_nodes("n1", "n1");
    expect_nodes("n[1-3]", "n1,n2,n3");
    expect_nodes("n[08-10,2],m", "n08,n09,n10,n2,m");
    expect_nodes("a,b7,c[1]", "a,b7,c1");
    expect_nodes("r[1-2]n[01-02].lan", "r1n01.lan,r1n02.lan,r2n01.lan,r2n02.lan");
}

static void node_list_that_is_wrong_names_nothing_behind_it(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        ",",
                                        "n[",
                                        "n[]",
                                        "n[1",
                                        "n[1-",
                                        "n[2-1]",
                                        "n[x]",
                                        "n[1,]",
                                        "n[1-99999999]",
                                        "n]",
                                        "n[1-1000]m[1-1000]",
                                        "n[0000000001]"};
    char name[GR_SLURM_NAME_BYTES], long_list[400];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(gr_slurm_node(wrong[i], 0, name));
    }
    expect_nodes("a,n[", "a");
    memset(long_list, 'n', sizeof long_list - 1);
    long_list[sizeof long_list - 1] = '\0';
    assert_false(gr_slurm_node(long_list, 0, name));
}

static void count_of_a_node_is_read(void **state)
{
    (void)state;
    assert_int_equal(gr_slurm_count("4", 0, 10), 4);
    assert_int_equal(gr_slurm_count("4", 1, 10), 0);
    assert_int_equal(gr_slurm_count("2(x3),1", 2, 10), 2);
    assert_int_equal(gr_slurm_count("2(x3),1", 3, 10), 1);
    assert_int_equal(gr_slurm_count("2(x3),1", 4, 10), 0);
    static const char *const wrong[] = {"", "x", "0", "-1", "11", "(x2)"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(gr_slurm_count(wrong[i], 0, 10), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_list_names_each_node),
        cmocka_unit_test(node_list_that_is_wrong_names_nothing_behind_it),
        cmocka_unit_test(count_of_a_node_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
