/* SPDX-License-Identifier: Apache-2.0 */

#include "base/time_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void times_are_read_and_written(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t time_us;
    } cases[] = {{"1970-01-01T00:00:00Z", 0},
                 {"2026-01-31T12:00:00.25Z", 1769860800250000},
                 {"2026-01-31T14:00:00.123456789+02:00", 1769860800123456},
                 {"2026-01-31T11:30:00-00:30", 1769860800000000}};
    static const char *const wrong[] = {"",
                                        "2026-01-31",
                                        "2026-01-31T12:00:00",
                                        "2026-13-31T12:00:00Z",
                                        "2026-01-31T24:00:00Z",
                                        "2026-01-31T12:00:00.Z",
                                        "2026-01-31T12:00:00Zx",
                                        "2026-01-31T12:00:00+0200"};
    char text[GR_TIME_BYTES];
    int64_t time_us = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(gr_time_read(cases[i].text, &time_us));
        assert_int_equal(time_us, cases[i].time_us);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(gr_time_read(wrong[i], &time_us));
    }
    gr_time_print(1769860800250000, true, text);
    assert_string_equal(text, "2026-01-31T12:00:00.250000Z");
    gr_time_print(1769860800250000, false, text);
    assert_string_equal(text, "2026-01-31T12:00:00Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(times_are_read_and_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
