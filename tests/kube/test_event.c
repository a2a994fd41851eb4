/* SPDX-License-Identifier: Apache-2.0 */

/* What becomes of events, with a clock of the test's. */

#include "base/support_base.h"
#include "kube/event.h"

#include <stdio.h>
#include <string.h>

enum { SECOND_US = 1000000 };

static const int64_t start_us = 1769860800LL * SECOND_US;

static gr_kube_events *create(void)
{
    gr_kube_events *events = NULL;
    gr_kube_events_options options = {.component = "op"};
    assert_int_equal(gr_kube_events_create(NULL, &options, &events, NULL), GR_OK);
    return events;
}

static json_t *job(const char *name)
{
    return json_pack("{s:s, s:s, s:{s:s, s:s, s:s}}", "apiVersion", "kubeflow.org/v1", "kind",
                     "MPIJob", "metadata", "name", name, "namespace", "team", "uid", name);
}

/* "create 1 <message>", "patch 2 <message>" or "dropped". */
static void tell(gr_kube_events *events, const char *name, const char *reason, const char *message,
                 int64_t at_us, char *said, size_t said_bytes)
{
    json_t *event, *about = job(name);
    gr_kube_event_write write =
        gr_kube_events_next(events, about, "Normal", reason, message, start_us + at_us, &event);
    snprintf(said, said_bytes, "dropped");
    if (write != GR_KUBE_EVENT_DROPPED) {
        snprintf(said, said_bytes, "%s %d %s", write == GR_KUBE_EVENT_CREATE ? "create" : "patch",
                 (int)json_integer_value(json_object_get(event, "count")),
                 json_string_value(json_object_get(event, "message")));
    }
    json_decref(event);
    json_decref(about);
}

static void assert_told(gr_kube_events *events, const char *name, const char *reason,
                        const char *message, int64_t at_us, const char *expected)
{
    char said[2048];
    tell(events, name, reason, message, at_us, said, sizeof said);
    assert_string_equal(said, expected);
}

static void event_says_what_about_whom(void **state)
{
    (void)state;
    gr_kube_events *events = create();
    json_t *event, *about = job("pi");
    assert_int_equal(
        gr_kube_events_next(events, about, "Normal", "Created", "It is there.", start_us, &event),
        GR_KUBE_EVENT_CREATE);
    char *text = json_dumps(event, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        text, "{\"apiVersion\":\"v1\",\"count\":1,\"firstTimestamp\":\"2026-01-31T12:00:00Z\","
              "\"involvedObject\":{\"apiVersion\":\"kubeflow.org/v1\",\"kind\":\"MPIJob\",\"name\":"
              "\"pi\",\"namespace\":\"team\",\"resourceVersion\":\"\",\"uid\":\"pi\"},\"kind\":"
              "\"Event\",\"lastTimestamp\":\"2026-01-31T12:00:00Z\",\"message\":\"It is there.\","
              "\"metadata\":{\"name\":\"pi.000649add4493000\",\"namespace\":\"team\"},\"reason\":"
              "\"Created\",\"reportingComponent\":\"op\",\"reportingInstance\":\"\",\"source\":"
              "{\"component\":\"op\"},\"type\":\"Normal\"}");
    free(text);
    json_decref(event);
    json_decref(about);
    gr_kube_events_destroy(events);
}

static void same_event_counts_up(void **state)
{
    (void)state;
    gr_kube_events *events = create();
    assert_told(events, "a", "R", "m", 0, "create 1 m");
    assert_told(events, "a", "R", "m", 1, "patch 2 m");
    assert_told(events, "b", "R", "m", 1, "create 1 m");
    assert_told(events, "a", "S", "m", 1, "create 1 m");
    assert_told(events, "a", "R", "m", 900LL * SECOND_US, "patch 3 m");
    gr_kube_events_destroy(events);
}

static void tenth_message_of_a_reason_is_combined(void **state)
{
    (void)state;
    gr_kube_events *events = create();
    char message[32], expected[96];
    for (int i = 1; i <= 12; i++) {
        snprintf(message, sizeof message, "pod %d", i);
        snprintf(expected, sizeof expected,
                 i < 10    ? "create 1 %s"
                 : i == 10 ? "create 1 (combined from similar events): %s"
                           : "patch %2$d (combined from similar events): %1$s",
                 message, i - 9);
        assert_told(events, "a", "R", message, i, expected);
    }
    assert_told(events, "a", "R", "pod 1", 20, "patch 2 pod 1");
    assert_told(events, "a", "S", "pod 11", 20, "create 1 pod 11");
    /* Ten minutes of silence later they are told one by one again. */
    assert_told(events, "a", "R", "pod 20", 601LL * SECOND_US, "create 1 pod 20");
    gr_kube_events_destroy(events);
}

static void message_that_is_combined_is_cut_between_characters(void **state)
{
    (void)state;
    gr_kube_events *events = create();
    char message[1100], said[1200];
    for (int i = 0; i < 10; i++) {
        snprintf(message, sizeof message, "%d", i);
        for (size_t at = 1; at + 2 < sizeof message; at += 2) {
            memcpy(message + at, "\xC3\xBC", 3);
        }
        tell(events, "a", "R", message, i, said, sizeof said);
        assert_string_not_equal(said, "dropped");
    }
    assert_non_null(strstr(said, "(combined from similar events): 9\xC3\xBC"));
    gr_kube_events_destroy(events);
}

static void object_with_too_many_events_is_quiet(void **state)
{
    (void)state;
    gr_kube_events *events = create();
    char said[256];
    for (int i = 0; i < 25; i++) {
        tell(events, "a", "R", "m", i, said, sizeof said);
        assert_string_not_equal(said, "dropped");
    }
    assert_told(events, "a", "S", "n", 26, "dropped");
    assert_told(events, "b", "S", "n", 26, "create 1 n");
    assert_told(events, "a", "R", "m", 301LL * SECOND_US, "patch 26 m");
    assert_told(events, "a", "R", "m", 302LL * SECOND_US, "dropped");
    gr_kube_events_destroy(events);
}

static void what_is_known_is_bounded(void **state)
{
    (void)state;
    gr_kube_events *events = create();
    char name[32], said[256];
    for (int i = 0; i < 3 * GR_KUBE_EVENTS_KEPT; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        tell(events, name, "R", "m", i / 100, said, sizeof said);
        assert_string_equal(said, "create 1 m");
        tell(events, name, "R", "m", i / 100, said, sizeof said);
        assert_string_not_equal(said, "dropped");
    }
    assert_told(events, "job-0", "R", "m", 1000, "create 1 m"); /* forgotten */
    gr_kube_events_destroy(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(event_says_what_about_whom),
        cmocka_unit_test(same_event_counts_up),
        cmocka_unit_test(tenth_message_of_a_reason_is_combined),
        cmocka_unit_test(message_that_is_combined_is_cut_between_characters),
        cmocka_unit_test(object_with_too_many_events_is_quiet),
        cmocka_unit_test(what_is_known_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
