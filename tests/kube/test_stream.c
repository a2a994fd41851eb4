/* SPDX-License-Identifier: Apache-2.0 */

/* Objects in a stream that comes in any cuts. */

#include "base/support_base.h"
#include "kube/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seen {
    char text[4096]; /* the objects, with "|" between them */
    int stop_after;  /* 0: never */
    int count;
} seen;

static bool see(void *arg, json_t *object)
{
    seen *all = arg;
    char *text = json_dumps(object, JSON_COMPACT);
    assert_non_null(text);
    assert_true(strlen(all->text) + strlen(text) + 2 < sizeof all->text);
    strcat(all->text, text);
    strcat(all->text, "|");
    free(text);
    return ++all->count != all->stop_after;
}

/* "<objects>=><rest or failure>" of the stream in parts of `cut` bytes. */
static void read_stream(gr_kube_stream_kind kind, const char *text, size_t size, size_t cut,
                        size_t max_bytes, char *said, size_t said_bytes)
{
    gr_kube_stream stream;
    gr_diag diag = {0};
    seen all = {0};
    json_t *rest = NULL;
    gr_status status = GR_OK;
    gr_kube_stream_init(&stream, kind, max_bytes, see, &all);
    for (size_t at = 0; at < size && status == GR_OK; at += cut) {
        size_t part = size - at < cut ? size - at : cut;
        char *exact = malloc(part);
        assert_non_null(exact);
        memcpy(exact, text + at, part);
        status = gr_kube_stream_feed(&stream, exact, part, &diag);
        free(exact);
    }
    if (status == GR_OK) {
        status = gr_kube_stream_end(&stream, &rest, &diag);
    }
    char *rest_text = rest != NULL ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    snprintf(said, said_bytes, "%s=>%s", all.text,
             status != GR_OK     ? diag.text
             : rest_text != NULL ? rest_text
                                 : "");
    free(rest_text);
    json_decref(rest);
    gr_kube_stream_fini(&stream);
}

static void assert_stream(gr_kube_stream_kind kind, const char *text, const char *expected)
{
    char said[8192];
    for (size_t cut = 1; cut <= strlen(text) + 1; cut++) {
        read_stream(kind, text, strlen(text), cut, 1000, said, sizeof said);
        assert_string_equal(said, expected);
    }
}

static void objects_of_a_watch_are_found_in_any_cuts(void **state)
{
    (void)state;
    assert_stream(GR_KUBE_STREAM_SEQUENCE, "", "=>");
    assert_stream(GR_KUBE_STREAM_SEQUENCE, " \n", "=>");
    assert_stream(GR_KUBE_STREAM_SEQUENCE, "{\"a\": \"}{\\\"\"}\n {\"b\":[{}, {\"c\\\\\": 1}]}{}",
                  "{\"a\":\"}{\\\"\"}|{\"b\":[{},{\"c\\\\\":1}]}|{}|=>");
}

static void items_of_a_list_are_no_part_of_the_rest(void **state)
{
    (void)state;
    assert_stream(GR_KUBE_STREAM_LIST,
                  "{\"kind\":\"PodList\",\"items\":[{\"a\":[1]} , {\"items\":[{}]}],\"metadata\":"
                  "{\"continue\":\"x\",\"items\":[{}]}}\n",
                  "{\"a\":[1]}|{\"items\":[{}]}|=>{\"items\":[],\"kind\":\"PodList\",\"metadata\":"
                  "{\"continue\":\"x\",\"items\":[{}]}}");
    assert_stream(GR_KUBE_STREAM_LIST, "{\"items\":null}", "=>{\"items\":null}");
    assert_stream(GR_KUBE_STREAM_LIST, "{\"items\":[]}", "=>{\"items\":[]}");
    assert_stream(GR_KUBE_STREAM_LIST, "{\"itemss\":[{}],\"x\":[[\"items\",[{}]]]}",
                  "=>{\"itemss\":[{}],\"x\":[[\"items\",[{}]]]}");
}

static void one_object_is_the_rest(void **state)
{
    (void)state;
    assert_stream(GR_KUBE_STREAM_ONE, " {\"items\":[{}]} ", "=>{\"items\":[{}]}");
}

static void garbage_is_explained(void **state)
{
    (void)state;
    static const char begin[] = "=>what came is no JSON: an object cannot begin with byte";
    static const struct {
        gr_kube_stream_kind kind;
        const char *text, *said;
    } cases[] = {
        {GR_KUBE_STREAM_SEQUENCE, "x", begin},
        {GR_KUBE_STREAM_SEQUENCE, "[{}]", begin},
        {GR_KUBE_STREAM_SEQUENCE, "{},{}", "{}|=>what came is no JSON: an object"},
        {GR_KUBE_STREAM_SEQUENCE, "}", begin},
        {GR_KUBE_STREAM_SEQUENCE, "{]{}", "=>what came is no JSON: "},
        {GR_KUBE_STREAM_SEQUENCE, "{\"a\":}", "=>what came is no JSON: "},
        {GR_KUBE_STREAM_SEQUENCE, "{}{\"a\":", "{}|=>the answer ends in the middle of an object"},
        {GR_KUBE_STREAM_LIST, "", "=>the answer ends before it begins"},
        {GR_KUBE_STREAM_LIST, "<html>", begin},
        {GR_KUBE_STREAM_LIST, "{}{}", begin},
        {GR_KUBE_STREAM_LIST, "{\"items\":[1]}", begin},
        {GR_KUBE_STREAM_LIST, "{\"items\":[{}", "{}|=>the answer ends in the middle of"},
        {GR_KUBE_STREAM_ONE, "[]", begin},
        {GR_KUBE_STREAM_ONE, "{\"a\"}", "=>what came is no JSON: "}};
    char said[8192];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t cut = 1; cut < 10; cut++) {
            read_stream(cases[i].kind, cases[i].text, strlen(cases[i].text), cut, 1000, said,
                        sizeof said);
            if (strncmp(said, cases[i].said, strlen(cases[i].said)) != 0) {
                fail_msg("%s: %s", cases[i].text, said);
            }
        }
    }
}

static void objects_are_bounded(void **state)
{
    (void)state;
    char text[400], said[8192];
    memset(text, ' ', sizeof text);
    text[0] = '{';
    text[sizeof text - 1] = '}';
    read_stream(GR_KUBE_STREAM_SEQUENCE, text, sizeof text, 7, sizeof text, said, sizeof said);
    assert_string_equal(said, "{}|=>");
    for (int kind = GR_KUBE_STREAM_SEQUENCE; kind <= GR_KUBE_STREAM_ONE; kind++) {
        read_stream(kind, text, sizeof text, 7, sizeof text - 1, said, sizeof said);
        assert_string_equal(said, "=>an object is larger than 399 bytes");
    }
    for (size_t i = 0; i < sizeof text; i += 2) {
        memcpy(text + i, "{}", 2); /* any number of small ones is fine */
    }
    read_stream(GR_KUBE_STREAM_SEQUENCE, text, sizeof text, 7, 2, said, sizeof said);
    assert_int_equal(strlen(said), 200 * 3 + 2);
    char deep[2000];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    read_stream(GR_KUBE_STREAM_SEQUENCE, deep, sizeof deep, 7, sizeof deep, said, sizeof said);
    assert_string_equal(said, "=>what came is nested in more than 512 levels");
}

static void nothing_comes_after_the_last_one_that_is_wanted(void **state)
{
    (void)state;
    gr_kube_stream stream;
    seen all = {.stop_after = 2};
    gr_kube_stream_init(&stream, GR_KUBE_STREAM_SEQUENCE, 100, see, &all);
    assert_int_equal(gr_kube_stream_feed(&stream, "{}{}{}", 6, NULL), GR_E_CANCELLED);
    assert_int_equal(all.count, 2);
    gr_kube_stream_fini(&stream);
}

/* Leaves the first `cut_arg` bytes and a brace. */
static size_t cut_short(const void *cut_arg, char *text, size_t size_bytes)
{
    size_t left = *(const size_t *)cut_arg;
    assert_true(left < size_bytes);
    text[left] = '}';
    return left + 1;
}

static void objects_are_cut_before_they_are_parsed(void **state)
{
    (void)state;
    static const char text[] = "{\"items\":[{\"a\":1,\"b\":2},{\"a\":3,\"b\":[{}]}],\"c\":4}";
    size_t left = 6;
    gr_kube_stream stream;
    gr_diag diag = {0};
    seen all = {0};
    json_t *rest = NULL;
    gr_kube_stream_init(&stream, GR_KUBE_STREAM_LIST, 100, see, &all);
    stream.cut = cut_short;
    stream.cut_arg = &left;
    assert_int_equal(gr_kube_stream_feed(&stream, text, sizeof text - 1, &diag), GR_OK);
    assert_int_equal(gr_kube_stream_end(&stream, &rest, &diag), GR_OK);
    assert_string_equal(all.text, "{\"a\":1}|{\"a\":3}|");
    assert_int_equal(json_integer_value(json_object_get(rest, "c")), 4);
    json_decref(rest);
    gr_kube_stream_fini(&stream);
}

/* An API server stores a number that only uint64_t holds, and a key with a NUL: they cost the
 * object some digits, and others nothing. */
static void object_that_jansson_refuses_is_repaired(void **state)
{
    (void)state;
    assert_stream(GR_KUBE_STREAM_SEQUENCE,
                  "{\"a\":18446744073709551615,\"b\":[-9223372036854775809 ,"
                  "9223372036854775807],\"c\":\"18446744073709551615\"}{\"a\":1}",
                  "{\"a\":1.8446744073709552e19,\"b\":[-9.2233720368547758e18,"
                  "9223372036854775807],\"c\":\"18446744073709551615\"}|{\"a\":1}|=>");
    assert_stream(GR_KUBE_STREAM_LIST,
                  "{\"items\":[{\"a\\u0000\\\\u0000\" :\"\\u0000\"},{\"b\":1}],\"c\":2}",
                  "{\"a\xEF\xBF\xBD\\\\u0000\":\"\\u0000\"}|{\"b\":1}|=>{\"c\":2,\"items\":[]}");
    assert_stream(GR_KUBE_STREAM_ONE, "{\"a\":1000000000000000000000}", "=>{\"a\":1e21}");
}

static bool see_skipped(void *arg, const char *name, const char *why)
{
    seen *all = arg;
    assert_true(strncmp(why, "what came is no JSON: ", 22) == 0);
    assert_true(strlen(all->text) + strlen(name) + 4 < sizeof all->text);
    sprintf(all->text + strlen(all->text), "<%s>|", name);
    return ++all->count != all->stop_after;
}

static void object_that_cannot_be_repaired_is_skipped_by_name(void **state)
{
    (void)state;
    static const char list[] =
        "{\"items\":[{\"a\":1},{\"metadata\":{\"labels\":{\"name\":\"no\"},\"name\":\"x\","
        "\"namespace\" : \"team\"},\"spec\":1e999},{\"a\":1e999},{\"metadata\":{\"name\":\"y\"},"
        "\"a\":\"\\ud800\"},{\"a\":2}]}",
                      watch[] = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"x\","
                                "\"namespace\":\"team\"},\"spec\":{\"metadata\":{\"name\":\"no\"},"
                                "\"a\":1e999}}}{\"a\":3}";
    static const struct {
        gr_kube_stream_kind kind;
        const char *text, *seen;
        int stop_after;
    } cases[] = {{GR_KUBE_STREAM_LIST, list, "{\"a\":1}|<team/x>|<>|<y>|{\"a\":2}|", 0},
                 {GR_KUBE_STREAM_SEQUENCE, watch, "<team/x>|{\"a\":3}|", 0},
                 {GR_KUBE_STREAM_SEQUENCE, watch, "<team/x>|", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_kube_stream stream;
        gr_diag diag = {0};
        seen all = {.stop_after = cases[i].stop_after};
        gr_kube_stream_init(&stream, cases[i].kind, 1000, see, &all);
        stream.skipped = see_skipped;
        assert_int_equal(gr_kube_stream_feed(&stream, cases[i].text, strlen(cases[i].text), &diag),
                         cases[i].stop_after > 0 ? GR_E_CANCELLED : GR_OK);
        assert_string_equal(all.text, cases[i].seen);
        assert_string_equal(diag.text, "");
        gr_kube_stream_fini(&stream);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_of_a_watch_are_found_in_any_cuts),
        cmocka_unit_test(items_of_a_list_are_no_part_of_the_rest),
        cmocka_unit_test(one_object_is_the_rest),
        cmocka_unit_test(garbage_is_explained),
        cmocka_unit_test(objects_are_bounded),
        cmocka_unit_test(nothing_comes_after_the_last_one_that_is_wanted),
        cmocka_unit_test(objects_are_cut_before_they_are_parsed),
        cmocka_unit_test(object_that_jansson_refuses_is_repaired),
        cmocka_unit_test(object_that_cannot_be_repaired_is_skipped_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
