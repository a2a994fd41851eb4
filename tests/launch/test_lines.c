/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Everything that was emitted, one after the other. */
struct page {
    char *text;
    size_t size_bytes;
};

static void write_page(void *emit_arg, const char *text, size_t size_bytes)
{
    struct page *page = emit_arg;
    page->text = realloc(page->text, page->size_bytes + size_bytes + 1);
    assert_non_null(page->text);
    memcpy(page->text + page->size_bytes, text, size_bytes);
    page->size_bytes += size_bytes;
    page->text[page->size_bytes] = '\0';
}

static size_t write_arrow(void *prefix_arg, char *text_out)
{
    (void)prefix_arg;
    text_out[0] = '>';
    return 1;
}

static void feed_text(gr_lines *lines, const char *text)
{
    gr_lines_feed(lines, text, strlen(text));
}

static void lines_are_whole_however_they_come(void **state)
{
    (void)state;
    const char *text = "one\ntwo\n\nfour\nfi\0ve\n";
    size_t size = 20;
    for (size_t step = 1; step <= size; step++) {
        struct page page = {0};
        gr_lines lines;
        gr_lines_init(&lines, write_arrow, NULL, write_page, &page);
        for (size_t at = 0; at < size; at += step) {
            size_t before = page.size_bytes;
            gr_lines_feed(&lines, text + at, step < size - at ? step : size - at);
            if (page.size_bytes > before) {
                assert_int_equal(page.text[page.size_bytes - 1], '\n');
            }
        }
        gr_lines_end(&lines);
        assert_int_equal(page.size_bytes, size + 5);
        assert_memory_equal(page.text, ">one\n>two\n>\n>four\n>fi\0ve\n", size + 5);
        gr_lines_fini(&lines);
        free(page.text);
    }
}

static void an_unfinished_line_waits_for_its_end(void **state)
{
    (void)state;
    struct page page = {0};
    gr_lines lines;
    gr_lines_init(&lines, write_arrow, NULL, write_page, &page);
    feed_text(&lines, "begun");
    assert_int_equal(page.size_bytes, 0);
    feed_text(&lines, ", done\nrest");
    assert_string_equal(page.text, ">begun, done\n");
    gr_lines_end(&lines);
    gr_lines_end(&lines);
    assert_string_equal(page.text, ">begun, done\n>rest\n");
    gr_lines_fini(&lines);
    free(page.text);
}

/* A line of `size` bytes, fed in pieces of `step`, gives the bytes back in `pieces` lines. */
static void check_long_line(size_t size, size_t step, size_t pieces)
{
    struct page page = {0};
    gr_lines lines;
    char *text = malloc(size + 1);
    assert_non_null(text);
    memset(text, 'x', size);
    text[size] = '\n';
    gr_lines_init(&lines, write_arrow, NULL, write_page, &page);
    for (size_t at = 0; at < size + 1; at += step) {
        gr_lines_feed(&lines, text + at, step < size + 1 - at ? step : size + 1 - at);
    }
    feed_text(&lines, "\n");
    gr_lines_end(&lines);
    size_t found_x = 0, found_lines = 0, length = 0;
    for (size_t i = 0; i < page.size_bytes; i++) {
        found_x += page.text[i] == 'x';
        length = page.text[i] == '\n' ? 0 : length + 1;
        assert_true(length <= GR_LINES_PIECE_BYTES + 1);
        found_lines += page.text[i] == '\n';
    }
    assert_int_equal(found_x, size);
    assert_int_equal(found_lines, pieces + 1); /* and the empty line behind it */
    free(text);
    gr_lines_fini(&lines);
    free(page.text);
}

static void long_lines_are_cut_and_nothing_is_lost(void **state)
{
    (void)state;
    static const size_t steps[] = {777, 4096, 65535, 65536, 65537, 1000000};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        check_long_line(GR_LINES_PIECE_BYTES - 1, steps[i], 1);
        check_long_line(GR_LINES_PIECE_BYTES, steps[i], 1);
        check_long_line(GR_LINES_PIECE_BYTES + 1, steps[i], 2);
        check_long_line(3 * GR_LINES_PIECE_BYTES, steps[i], 3);
        check_long_line(3 * GR_LINES_PIECE_BYTES + 5, steps[i], 4);
    }
}

static void without_prefix_bytes_pass_at_once(void **state)
{
    (void)state;
    struct page page = {0};
    gr_lines lines;
    gr_lines_init(&lines, NULL, NULL, write_page, &page);
    feed_text(&lines, "\r 10 %");
    assert_string_equal(page.text, "\r 10 %");
    gr_lines_end(&lines);
    assert_string_equal(page.text, "\r 10 %");
    gr_lines_fini(&lines);
    free(page.text);
}

static size_t write_nothing(void *prefix_arg, char *text_out)
{
    (void)prefix_arg;
    (void)text_out;
    return 0;
}

static void lines_without_prefix_do_not_mix_and_no_byte_is_added(void **state)
{
    enum { LONG = 2 * GR_LINES_PIECE_BYTES + 5 };
    (void)state;
    struct page page = {0};
    gr_lines one, other;
    gr_lines_init(&one, write_nothing, NULL, write_page, &page);
    gr_lines_init(&other, write_nothing, NULL, write_page, &page);
    feed_text(&one, "x");
    feed_text(&other, "y\n");
    feed_text(&one, "\nend");
    assert_string_equal(page.text, "y\nx\n");
    gr_lines_end(&one);
    assert_string_equal(page.text, "y\nx\nend");
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'l', LONG);
    text[LONG] = '\0';
    feed_text(&other, text);
    feed_text(&other, "\n\n");
    assert_int_equal(strlen(page.text), 7 + LONG + 2);
    free(text);
    gr_lines_fini(&one);
    gr_lines_fini(&other);
    free(page.text);
}

static void expect_tail(const gr_lines *lines, int lines_max, const char *expected)
{
    char text[2 * GR_LINES_TAIL_BYTES];
    assert_int_equal(gr_lines_tail(lines, lines_max, "  ", text, sizeof text), strlen(expected));
    assert_string_equal(text, expected);
}

static void the_tail_is_the_last_lines(void **state)
{
    (void)state;
    gr_lines lines;
    gr_lines_init(&lines, write_arrow, NULL, NULL, NULL);
    expect_tail(&lines, 3, "");
    feed_text(&lines, "a\nb\nc\n");
    expect_tail(&lines, 2, "  b\n  c\n");
    expect_tail(&lines, 9, "  a\n  b\n  c\n");
    feed_text(&lines, "d\x1b[31m\n\n\n");
    expect_tail(&lines, 2, "  c\n  d?[31m\n");
    gr_lines_fini(&lines);
}

static void the_tail_of_much_output_is_bounded(void **state)
{
    (void)state;
    gr_lines lines;
    gr_lines_init(&lines, NULL, NULL, NULL, NULL);
    char text[GR_LINES_TAIL_BYTES * 2], line[32];
    for (int i = 0; i < 20000; i++) {
        feed_text(&lines, line + 0 * snprintf(line, sizeof line, "line %d\n", i));
    }
    expect_tail(&lines, 2, "  line 19998\n  line 19999\n");
    size_t size = gr_lines_tail(&lines, 100000, "", text, sizeof text);
    assert_in_range(size, GR_LINES_TAIL_BYTES / 2, GR_LINES_TAIL_BYTES + 1);
    char small[16];
    for (size_t room = 3; room <= sizeof small; room++) {
        assert_true(gr_lines_tail(&lines, 5, "    ", small, room) < room);
    }
    char *big = malloc(100000);
    assert_non_null(big);
    memset(big, 'q', 100000);
    gr_lines_feed(&lines, big, 100000);
    assert_int_equal(gr_lines_tail(&lines, 1, "", text, sizeof text), GR_LINES_TAIL_BYTES + 1);
    free(big);
    gr_lines_fini(&lines);
}

static void prefix_has_room_for_the_longest_name(void **state)
{
    (void)state;
    char text[GR_LINES_PREFIX_BYTES], name[100];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(gr_lines_print_prefix("3@host", -1, false, text), 9);
    assert_string_equal(text, "[3@host] ");
    assert_int_equal(gr_lines_print_prefix("3", 7, false, text), 13);
    assert_string_equal(text, "\033[33m[3]\033[0m ");
    size_t size = gr_lines_print_prefix(name, 0, true, text);
    assert_int_equal(size, GR_LINES_PREFIX_BYTES - 1);
    assert_string_equal(text + size - 1, " ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_has_room_for_the_longest_name),
        cmocka_unit_test(lines_are_whole_however_they_come),
        cmocka_unit_test(an_unfinished_line_waits_for_its_end),
        cmocka_unit_test(long_lines_are_cut_and_nothing_is_lost),
        cmocka_unit_test(without_prefix_bytes_pass_at_once),
        cmocka_unit_test(lines_without_prefix_do_not_mix_and_no_byte_is_added),
        cmocka_unit_test(the_tail_is_the_last_lines),
        cmocka_unit_test(the_tail_of_much_output_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
