/* SPDX-License-Identifier: Apache-2.0 */

/* How far jobs have come: what is taken of answers that anybody may have written, and who is asked
 * when. */

#include "operator/asking.h"
#include "operator/progress.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECOND_US INT64_C(1000000)

/* ---- Answers --------------------------------------------------------------------------------- */
/* "": nothing is taken. */
static void expect_read(const char *text, const char *expected)
{
    json_t *progress = gr_job_progress_read(text, strlen(text));
    char *is = progress != NULL
                   ? json_dumps(progress, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15))
                   : strdup("");
    assert_non_null(is);
    if (strcmp(is, expected) != 0) {
        fail_msg("%s gives \"%s\" instead of \"%s\"", text, is, expected);
    }
    json_decref(progress);
    free(is);
}

static void answer_of_a_worker_is_taken(void **state)
{
    (void)state;
    expect_read("{\"version\":1,\"rank\":0,\"workers\":4,\"step\":120,\"steps\":500,\"epoch\":3,"
                "\"epochs\":10,\"loss\":0.123456789,\"samples_per_s\":12345.678,\"late_rank\":2,"
                "\"late_us\":1234.5,\"late_host\":\"train-worker-2\"}",
                "{\"epoch\":3,\"epochs\":10,\"loss\":0.123457,\"samplesPerSecond\":12350,"
                "\"step\":120,\"steps\":500,\"straggler\":{\"lateMilliseconds\":1.23,"
                "\"pod\":\"train-worker-2\",\"rank\":2}}");
    expect_read("{\"step\":0,\"loss\":null,\"late_rank\":1}", "{\"step\":0}");
}

static void answer_that_is_none_is_not_taken(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "",
        "no step is done yet\n",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        "{\"step\":-1}",
        "{\"step\":1.5}",
        "{\"step\":\"1\"}",
        "{\"step\":9007199254740993}",
        "{\"step\":99999999999999999999999999}",
        "{\"step\":1,\"step\":2}",
        "{\"step\":1}{\"step\":2}",
        "{\"step\":1,\"loss\":1e999}",
        "{\"step\":1,\"loss\":NaN}",
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        expect_read(answers[i], "");
    }
}

static void answer_that_lies_changes_only_figures(void **state)
{
    (void)state;
    expect_read("{\"step\":1,\"steps\":-5,\"epoch\":\"many\",\"epochs\":[],\"loss\":1e31,"
                "\"samples_per_s\":-1,\"phase\":\"Succeeded\",\"conditions\":[{}]}",
                "{\"step\":1}");
    expect_read("{\"step\":1,\"late_rank\":1,\"late_us\":-3,\"late_host\":\"a\"}", "{\"step\":1}");
    expect_read("{\"step\":1,\"late_rank\":1,\"late_us\":3000,\"late_host\":\"\\u001b[31m\"}",
                "{\"step\":1,\"straggler\":{\"lateMilliseconds\":3,\"rank\":1}}");
    expect_read("{\"step\":1,\"loss\":1e15,\"samples_per_s\":9.9999e14,\"late_rank\":1,"
                "\"late_us\":1e18}",
                "{\"step\":1}"); /* as rounded */
    expect_read("{\"step\":1,\"loss\":-1e15,\"samples_per_s\":9.999e14}",
                "{\"samplesPerSecond\":999900000000000,\"step\":1}");
    expect_read("{\"step\":1,\"loss\":-0.0,\"samples_per_s\":1e-40}",
                "{\"loss\":0,\"samplesPerSecond\":1e-40,\"step\":1}");
    char host[400], text[600];
    memset(host, 'a', sizeof host);
    host[254] = '\0';
    snprintf(text, sizeof text,
             "{\"step\":1,\"late_rank\":1,\"late_us\":3000,\"late_host\":\"%s\"}", host);
    expect_read(text, "{\"step\":1,\"straggler\":{\"lateMilliseconds\":3,\"rank\":1}}");
}

static void answer_that_is_long_or_deep_is_not_taken(void **state)
{
    (void)state;
    char text[2 * GR_JOB_PROGRESS_BYTES];
    int used = snprintf(text, sizeof text, "{\"step\":1,\"a\":\"");
    memset(text + used, 'a', sizeof text - (size_t)used);
    memcpy(text + GR_JOB_PROGRESS_BYTES - 1, "\"}", 3);
    expect_read(text, "");
    memcpy(text + GR_JOB_PROGRESS_BYTES - 2, "\"}", 3);
    expect_read(text, "{\"step\":1}");
    memset(text, '[', sizeof text);
    assert_null(gr_job_progress_read(text, sizeof text));
    assert_null(gr_job_progress_read(text, GR_JOB_PROGRESS_BYTES));
}

/* What is changed anywhere is taken within its bounds, or not at all. */
static void answer_with_a_wrong_byte_anywhere_stays_within_bounds(void **state)
{
    (void)state;
    static const char good[] = "{\"step\":12,\"steps\":50,\"loss\":0.5,\"samples_per_s\":9e3,"
                               "\"late_rank\":2,\"late_us\":12.5,\"late_host\":\"a-1\"}";
    char text[sizeof good];
    for (size_t at = 0; at < sizeof good - 1; at++) {
        for (int byte = 0; byte < 256; byte++) {
            memcpy(text, good, sizeof good);
            text[at] = (char)byte;
            json_t *progress = gr_job_progress_read(text, sizeof good - 1);
            assert_true(progress == NULL ||
                        (json_is_integer(json_object_get(progress, "step")) &&
                         json_integer_value(json_object_get(progress, "step")) >= 0 &&
                         json_object_size(progress) <= 5));
            json_decref(progress);
        }
    }
}

/* ---- Whom to ask ----------------------------------------------------------------------------- */
static gr_status set(gr_asking *asking, gr_asked **asked, char *job, const char *path,
                     const char *addresses, int64_t now_us)
{
    json_t *list = json_loads(addresses, 0, NULL);
    assert_non_null(list);
    json_t *ask = json_pack("{s:o, s:i, s:s}", "addresses", list, "port", 7, "path", path);
    gr_status status = gr_asking_set(asking, asked, job, ask, now_us);
    json_decref(ask);
    return status;
}

static gr_question expect_question(gr_asking *asking, int64_t now_us, const char *address)
{
    gr_question question;
    int64_t wake_us;
    assert_true(gr_asking_next(asking, now_us, &question, &wake_us));
    assert_string_equal(question.address, address);
    assert_int_equal(question.port, 7);
    return question;
}

static void expect_none_before(gr_asking *asking, int64_t now_us, int64_t expected_us)
{
    gr_question question;
    int64_t wake_us;
    assert_false(gr_asking_next(asking, now_us, &question, &wake_us));
    assert_int_equal(wake_us, expected_us);
}

static void job_is_asked_once_in_an_interval(void **state)
{
    (void)state;
    char job = 0;
    gr_asked *asked = NULL;
    gr_asking *asking = gr_asking_create(15 * SECOND_US, 10);
    expect_none_before(asking, 0, INT64_MAX);
    assert_int_equal(set(asking, &asked, &job, "/p", "[\"a\"]", 1), GR_OK);
    gr_question question = expect_question(asking, 1, "a");
    expect_none_before(asking, 2, INT64_MAX); /* its answer is awaited */
    assert_ptr_equal(gr_asking_job(&question), &job);
    gr_asking_answered(asking, question.asked, SECOND_US, true);
    expect_none_before(asking, SECOND_US, 16 * SECOND_US);
    assert_int_equal(set(asking, &asked, &job, "/p", "[\"b\"]", SECOND_US), GR_OK);
    expect_none_before(asking, 16 * SECOND_US - 1, 16 * SECOND_US); /* a look is no reason */
    (void)expect_question(asking, 16 * SECOND_US, "b");
    gr_asking_destroy(asking);
}

static void worker_that_answers_is_asked_again_else_the_next_one(void **state)
{
    (void)state;
    static const struct {
        const char *workers, *asked;
        bool is_useful;
    } rounds[] = {
        {"[\"a\", \"b\", \"c\"]", "a", true},
        {"[\"a\", \"b\", \"c\"]", "a", false},
        {"[\"a\", \"b\", \"c\"]", "b", true},
        {"[\"b\", \"c\"]", "b", false},
        {"[\"b\", \"c\"]", "c", false},
        {"[\"b\", \"c\"]", "b", true},
        {"[\"d\"]", "d", false},
        {"[\"d\"]", "d", true},
    };
    char job = 0;
    gr_asked *asked = NULL;
    int64_t now_us = 0;
    gr_asking *asking = gr_asking_create(SECOND_US, 0);
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++, now_us += SECOND_US) {
        assert_int_equal(set(asking, &asked, &job, "/p", rounds[i].workers, now_us), GR_OK);
        gr_question question = expect_question(asking, now_us, rounds[i].asked);
        gr_asking_answered(asking, question.asked, now_us, rounds[i].is_useful);
    }
    gr_asking_destroy(asking);
}

static void many_jobs_are_asked_in_turn_at_a_bounded_rate(void **state)
{
    (void)state;
    enum { JOBS = 100, RATE = 10 };
    static char jobs[JOBS];
    static int counts[JOBS];
    gr_asked *asked[JOBS] = {NULL};
    gr_asking *asking = gr_asking_create(SECOND_US, RATE);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(set(asking, &asked[i], &jobs[i], "/p", "[\"a\"]", 0), GR_OK);
    }
    int64_t now_us = 0, wake_us;
    int questions = 0;
    while (now_us < 100 * SECOND_US) {
        gr_question question;
        if (gr_asking_next(asking, now_us, &question, &wake_us)) {
            questions++;
            counts[(char *)gr_asking_job(&question) - jobs]++;
            gr_asking_answered(asking, question.asked, now_us, true);
        } else {
            assert_true(wake_us > now_us);
            now_us = wake_us;
        }
    }
    assert_int_equal(questions, 100 * RATE);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(counts[i], questions / JOBS);
    }
    gr_asking_destroy(asking);
}

static void job_that_is_gone_gets_no_answer(void **state)
{
    (void)state;
    char job = 0, other = 0;
    gr_asked *asked = NULL, *waiting = NULL;
    gr_asking *asking = gr_asking_create(SECOND_US, 0);
    assert_int_equal(set(asking, &asked, &job, "/p", "[\"a\"]", 0), GR_OK);
    gr_question question = expect_question(asking, 0, "a");
    assert_int_equal(set(asking, &asked, &job, "/q", "[\"a\"]", 0), GR_OK);
    assert_null(gr_asking_job(&question)); /* one of the same name was asked */
    assert_int_equal(gr_asking_set(asking, &asked, &job, NULL, 0), GR_OK);
    assert_null(asked);
    assert_null(gr_asking_job(&question));
    gr_asking_answered(asking, question.asked, 1, true);
    expect_none_before(asking, 10 * SECOND_US, INT64_MAX);
    assert_int_equal(set(asking, &asked, &job, "/p", "[\"a\"]", 0), GR_OK);
    assert_int_equal(set(asking, &waiting, &other, "/p", "[\"b\"]", 0), GR_OK);
    (void)expect_question(asking, 10 * SECOND_US, "b");
    assert_int_equal(set(asking, &asked, &job, "/p", "[]", 0), GR_OK); /* nobody runs */
    expect_none_before(asking, 10 * SECOND_US, INT64_MAX);
    gr_asking_destroy(asking); /* while an answer is awaited */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answer_of_a_worker_is_taken),
        cmocka_unit_test(answer_that_is_none_is_not_taken),
        cmocka_unit_test(answer_that_lies_changes_only_figures),
        cmocka_unit_test(answer_that_is_long_or_deep_is_not_taken),
        cmocka_unit_test(answer_with_a_wrong_byte_anywhere_stays_within_bounds),
        cmocka_unit_test(job_is_asked_once_in_an_interval),
        cmocka_unit_test(worker_that_answers_is_asked_again_else_the_next_one),
        cmocka_unit_test(many_jobs_are_asked_in_turn_at_a_bounded_rate),
        cmocka_unit_test(job_that_is_gone_gets_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
