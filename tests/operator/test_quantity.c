/* SPDX-License-Identifier: Apache-2.0 */

/* Quantities of resources: what is one, sums, and the form in which they are written. */

#include "operator/quantity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void assert_sum(const char *a, const char *b, int64_t count, const char *expected)
{
    gr_quantity sum = {0}, quantity;
    char text[GR_QUANTITY_BYTES];
    assert_true(gr_quantity_parse(a, &quantity));
    assert_true(gr_quantity_add(&sum, &quantity, 1));
    assert_true(gr_quantity_parse(b, &quantity));
    assert_true(gr_quantity_add(&sum, &quantity, count));
    gr_quantity_print(&sum, text);
    assert_string_equal(text, expected);
}

static void quantity_parsed_printed_in_one_form(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"1", "1"},          {"1000", "1k"},
                                           {"1500m", "1500m"},  {"2000m", "2"},
                                           {"0.5", "500m"},     {"1.5Gi", "1536Mi"},
                                           {"1024Mi", "1Gi"},   {"1Ki", "1Ki"},
                                           {"0.5Ki", "512"},    {"0.1Gi", "107374182400m"},
                                           {"100e3", "100e3"},  {"1E", "1E"},
                                           {"1e-3", "1e-3"},    {"-2500", "-2500"},
                                           {"+3", "3"},         {".25", "250m"},
                                           {"5.", "5"},         {"0.0000000001", "1n"},
                                           {"0", "0"},          {"123456789n", "123456789n"},
                                           {"3000000u", "3"},   {"1025", "1025"},
                                           {"1500Ki", "1500Ki"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        gr_quantity quantity;
        char text[GR_QUANTITY_BYTES];
        assert_true(gr_quantity_parse(pairs[i][0], &quantity));
        gr_quantity_print(&quantity, text);
        assert_string_equal(text, pairs[i][1]);
    }
}

static void quantity_malformed_or_too_large_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",      "Gi",   "1 Gi", "1gi",  "1.2.3",        "--1",
        "1e",    "1ee3", "0x10", "1e28", "10000000000E", "99999999999999999999999999999",
        "1e-99", "inf"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        gr_quantity quantity;
        assert_false(gr_quantity_parse(texts[i], &quantity));
    }
}

static void quantities_added_form_of_the_first(void **state)
{
    (void)state;
    assert_sum("1Gi", "1Gi", 2, "3Gi");
    assert_sum("2", "2", 2, "6");
    assert_sum("500m", "250m", 2, "1");
    assert_sum("512Mi", "1G", 1, "1536870912");
    assert_sum("1k", "1Ki", 1, "2024");
    assert_sum("0", "1Gi", 3, "3Gi");
    assert_sum("0.1Gi", "0.1Gi", 2, "322122547200m");
    assert_sum("1Gi", "1Gi", 0, "1Gi");
}

static void quantities_added_beyond_the_limit_refused(void **state)
{
    (void)state;
    gr_quantity sum = {0}, quantity;
    assert_true(gr_quantity_parse("900000000E", &quantity));
    assert_true(gr_quantity_add(&sum, &quantity, 1));
    assert_false(gr_quantity_add(&sum, &quantity, 1));
    assert_false(gr_quantity_add(&sum, &quantity, INT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantity_parsed_printed_in_one_form),
        cmocka_unit_test(quantity_malformed_or_too_large_refused),
        cmocka_unit_test(quantities_added_form_of_the_first),
        cmocka_unit_test(quantities_added_beyond_the_limit_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
