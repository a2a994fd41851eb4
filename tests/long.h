/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_LONG_H
#define GR_TESTS_LONG_H

/* Tests of a C program whose names end with _long are too long for ./check. They run, and they
 * alone, with GRADUS_TEST_LONG in the environment: entries <program>_long of ctest, which ./check
 * --full runs. Call test_choose() first in main; include this behind cmocka.h. */
#include <stdlib.h>

static inline void test_choose(void)
{
    if (getenv("GRADUS_TEST_LONG") != NULL) {
        cmocka_set_test_filter("*_long");
    } else {
        cmocka_set_skip_filter("*_long");
    }
}

#endif
