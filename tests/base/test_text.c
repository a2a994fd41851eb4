/* SPDX-License-Identifier: Apache-2.0 */

/* Texts that are cut, and texts that are no UTF-8. */

#include "base/text.h"
#include "support_base.h"

#include <stdio.h>
#include <string.h>

#define SMILE "\xF0\x9F\x98\x80" /* four bytes */

static void text_that_is_cut_keeps_whole_characters(void **state)
{
    (void)state;
    static const int kept[] = {0, 1, 1, 3, 3, 3, 3, 7, 8, 8};
    for (size_t most = 0; most < sizeof kept / sizeof kept[0]; most++) {
        assert_int_equal(gr_text_fit("a\xC3\xBC" SMILE "b", most), kept[most]);
    }
    char text[] = "abc\xC3\xBC" SMILE "d";
    gr_text_mark_cut(text, sizeof text); /* in the place of the smile */
    assert_string_equal(text, "abc\xC3\xBC...");
    char quoted[GR_VALUE_BYTES], longer[80];
    memset(longer, 'a', sizeof longer);
    memcpy(longer + 58, SMILE "b", 6);
    gr_text_quote(longer, quoted);
    assert_int_equal(strlen(quoted), 1 + 58 + 3 + 1);
}

static void text_that_is_no_utf8_is_mended(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"a" SMILE, "a" SMILE},
        {"\xC3\xBC\xFF"
         "b\x80",
         "\xC3\xBC?b?"},
        {"ab\xC3", "ab"},
        {"ab\xF0\x9F\x98", "ab"},
        {"\xF0\x9F\x98"
         "b",
         "???b"},
        {"\xC0\xAF\xED\xA0\x80.\xF4\x90\x80\x80.", "?????.????."}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        gr_text_mend(text);
        assert_string_equal(text, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_that_is_cut_keeps_whole_characters),
        cmocka_unit_test(text_that_is_no_utf8_is_mended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
