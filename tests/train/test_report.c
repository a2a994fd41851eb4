/* SPDX-License-Identifier: Apache-2.0 */

/* What a run tells people and programs. */

#include "train/report.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct capture {
    FILE *file;
    char *text;
    size_t size;
} capture;

static void capture_open(capture *c)
{
    *c = (capture){0};
    c->file = open_memstream(&c->text, &c->size);
    assert_non_null(c->file);
}

static void capture_close(capture *c)
{
    fclose(c->file);
    free(c->text);
}

static const gr_start_record start = {.name = "digits",
                                      .link = "shm",
                                      .workers = 4,
                                      .shards = 8,
                                      .global_batch = 100,
                                      .parameters = 12345,
                                      .total_steps = 200,
                                      .steps_per_epoch = 20};
static const gr_epoch_record epoch = {.epoch = 3,
                                      .epochs = 10,
                                      .step = 60,
                                      .total_steps = 200,
                                      .loss = 0.5,
                                      .accuracy = 0.875,
                                      .test_loss = (double)NAN,
                                      .test_accuracy = (double)NAN,
                                      .samples_per_s = 1234567.0,
                                      .comm_wait_share = 0.034,
                                      .learning_rate = 0.1,
                                      .late_rank = -1,
                                      .staleness = (double)NAN};
static const gr_end_record end = {.loss = 0.25,
                                  .test = {.loss = 0.5, .samples = 360, .correct = 351},
                                  .weights = "out/model.safetensors",
                                  .weights_sha256 = "abc",
                                  .workers = 4,
                                  .shards = 8,
                                  .steps = 200,
                                  .seconds = 3723.0,
                                  .samples_per_s = 1000.0,
                                  .comm_wait_share = 0.1,
                                  .late_rank = 3,
                                  .late_us = 4120,
                                  .staleness = (double)NAN,
                                  .dropped_share = (double)NAN};

static void run_all(capture *c, gr_report_style style, int columns)
{
    gr_report report;
    gr_diag diag;
    gr_report_init(&report, style, c->file, columns);
    gr_report_resume(&report, &start, 0);
    assert_int_equal(gr_report_start(&report, &start, &diag), GR_OK);
    gr_report_step(&report, 50, 1000000000);
    gr_report_step(&report, 51, 1010000000);
    assert_int_equal(gr_report_epoch(&report, &epoch, &diag), GR_OK);
    assert_int_equal(gr_report_end(&report, &end, &diag), GR_OK);
    fflush(c->file);
}

static void json_lines(void **state)
{
    (void)state;
    capture c;
    capture_open(&c);
    run_all(&c, GR_REPORT_JSON, 80);
    json_t *objects[4] = {0};
    int count = 0;
    for (char *save = NULL, *line = strtok_r(c.text, "\n", &save); line != NULL && count < 4;
         line = strtok_r(NULL, "\n", &save)) {
        objects[count] = json_loads(line, 0, NULL);
        assert_non_null(objects[count++]);
    }
    assert_int_equal(count, 3);
    assert_string_equal(json_string_value(json_object_get(objects[0], "event")), "start");
    assert_true(json_is_null(json_object_get(objects[1], "test_accuracy")));
    assert_true(json_real_value(json_object_get(objects[1], "accuracy")) == 0.875);
    static const char *const keys[] = {"test_accuracy", "weights_sha256",  "workers", "steps",
                                       "samples_per_s", "comm_wait_share", "late_us"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_non_null(json_object_get(objects[2], keys[i]));
    }
    assert_true(json_real_value(json_object_get(objects[2], "test_accuracy")) == 0.975);
    assert_int_equal(json_integer_value(json_object_get(objects[2], "steps")), 200);
    assert_int_equal(json_integer_value(json_object_get(objects[2], "late_rank")), 3);
    for (int i = 0; i < count; i++) {
        json_decref(objects[i]);
    }
    capture_close(&c);
}

static void plain_lines(void **state)
{
    (void)state;
    capture c;
    capture_open(&c);
    run_all(&c, GR_REPORT_LINES, 80);
    assert_null(strchr(c.text, '\r'));
    assert_non_null(strstr(c.text, "digits: 12,345 parameters, 4 workers over shm, 8 shards"));
    assert_non_null(strstr(c.text, "epoch  3/10  loss 0.5000  accuracy  87.50 %"));
    assert_non_null(strstr(c.text, "1,234,567 samples/s  waiting 3.4 %\n"));
    assert_non_null(strstr(c.text, "test accuracy 97.50 % (351 of 360), loss 0.5000\n"));
    assert_non_null(strstr(c.text, "in 1:02:03"));
    assert_non_null(
        strstr(c.text, "rank 3 kept the others waiting: it came 4.1 ms late on average\n"));
    capture_close(&c);
}

static void report_of_a_rank_that_is_hardly_late_does_not_name_it(void **state)
{
    (void)state;
    static const double late_us[] = {40, 99, 100};
    for (size_t i = 0; i < sizeof late_us / sizeof late_us[0]; i++) {
        capture c;
        gr_report report;
        gr_diag diag;
        gr_epoch_record record = epoch;
        gr_end_record last = end;
        record.late_rank = 2;
        record.late_us = last.late_us = late_us[i];
        capture_open(&c);
        gr_report_init(&report, GR_REPORT_LINES, c.file, 80);
        assert_int_equal(gr_report_epoch(&report, &record, &diag), GR_OK);
        assert_int_equal(gr_report_end(&report, &last, &diag), GR_OK);
        fflush(c.file);
        assert_int_equal(strstr(c.text, "rank 2 late by 0.1 ms") != NULL, late_us[i] == 100);
        assert_int_equal(strstr(c.text, "rank 3 kept") != NULL, late_us[i] == 100);
        capture_close(&c);
    }
}

/* Automatic style without a terminal is lines. */
static void no_terminal(void **state)
{
    (void)state;
    capture c;
    capture_open(&c);
    run_all(&c, GR_REPORT_AUTO, 0);
    assert_null(strchr(c.text, '\r'));
    capture_close(&c);
}

static void a_bar_fits_every_terminal(void **state)
{
    (void)state;
    for (int columns = 30; columns <= 300; columns++) {
        capture c;
        capture_open(&c);
        run_all(&c, GR_REPORT_AUTO, columns);
        const char *bar = strchr(c.text, '\r');
        assert_non_null(bar);
        const char *stop = strchr(bar, '\033');
        assert_non_null(stop);
        assert_true(stop - bar - 1 < columns);
        assert_memory_equal(bar + 1, "epoch 3/10 [", 12);
        /* Drawn once: the second step came too early; taken back before the line. */
        assert_memory_equal(stop, "\033[K\r\033[Kepoch", 12);
        if (columns >= 80) {
            assert_non_null(strstr(bar, " 25 %  5,000 samples/s  0:03 left\033"));
        }
        capture_close(&c);
    }
}

static void silent(void **state)
{
    (void)state;
    capture c;
    capture_open(&c);
    run_all(&c, GR_REPORT_NONE, 80);
    assert_int_equal(c.size, 0);
    capture_close(&c);
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    gr_diag diag;
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL) {
        print_message("skipped because this system has no /dev/full\n");
        skip();
    }
    assert_int_equal(gr_epoch_write(&epoch, full, "out/metrics.jsonl", &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, "out/metrics.jsonl"));
    fclose(full);
}

static void widths(void **state)
{
    (void)state;
    assert_int_equal(gr_report_columns("120"), 120);
    assert_int_equal(gr_report_columns(NULL), 0);
    assert_int_equal(gr_report_columns(""), 0);
    assert_int_equal(gr_report_columns("80x"), 0);
    assert_int_equal(gr_report_columns("-5"), 0);
}

static void numbers(void **state)
{
    (void)state;
    char text[32];
    gr_format_thousands(999.4, text);
    assert_string_equal(text, "999");
    gr_format_thousands(1000.0, text);
    assert_string_equal(text, "1,000");
    gr_format_thousands(1e300, text);
    assert_string_equal(text, "1,000,000,000,000,000");
    gr_format_duration(59.6, text);
    assert_string_equal(text, "1:00");
    gr_format_duration(3600.0, text);
    assert_string_equal(text, "1:00:00");
    gr_format_duration(1e300, text);
    assert_true(strlen(text) < 32);
    gr_meter meter = {0}, step = {.loss = 2.0, .correct = 5.0, .steps = 1, .samples = 10};
    assert_true(isnan(gr_meter_loss(&meter)));
    assert_true(gr_meter_samples_per_s(&meter) == 0.0);
    step.step_ns = 1000000000;
    step.wait_ns = 250000000;
    gr_meter_add(&meter, &step);
    gr_meter_add(&meter, &step);
    assert_true(gr_meter_loss(&meter) == 2.0);
    assert_true(gr_meter_accuracy(&meter) == 0.5);
    assert_true(gr_meter_samples_per_s(&meter) == 10.0);
    assert_true(gr_meter_wait_share(&meter) == 0.25);
}

/* What a training of months has written: resuming does not end for its size. */
static void metrics_of_more_than_a_gigabyte_are_cut(void **state)
{
    (void)state;
    static const char first[] = "{\"event\":\"start\",\"step\":0}\n";
    static const char last[] = "\n{\"event\":\"epoch\",\"epoch\":3,\"step\":30}\n"
                               "{\"event\":\"epoch\",\"epoch\":4,\"step\":40}\n"
                               "{\"event\":\"epoch\",\"epoch\":4,\"step\":30}\n"
                               "{\"event\":\"end\",\"step\":30}\n{\"event\":\"epo";
    char path[] = "/tmp/gradus-metrics-XXXXXX", text[256] = "";
    gr_metrics_reported reported;
    gr_diag diag = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, first, sizeof first - 1), sizeof first - 1);
    assert_true(lseek(fd, (off_t)1 << 30, SEEK_SET) > 0); /* a hole */
    assert_int_equal(write(fd, last, sizeof last - 1), sizeof last - 1);
    close(fd);
    gr_status status = gr_metrics_cut(path, 30, 3, &reported, &diag);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_true(reported.start && reported.epoch == 3);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    unlink(path);
    text[bytes] = '\0';
    assert_string_equal(text, "{\"event\":\"start\",\"step\":0}\n"
                              "{\"event\":\"epoch\",\"epoch\":3,\"step\":30}\n");
}

static void recent_means_are_those_of_the_last_seconds(void **state)
{
    (void)state;
    const int64_t second_ns = 1000000000;
    gr_recent recent = {.loss = 0};
    gr_meter epoch_so_far = {.loss = 0};
    /* A step a second: 2 of loss at first, then 1. */
    for (int64_t i = 0; i < 16; i++) {
        const gr_meter before = epoch_so_far;
        const gr_meter step = {
            .loss = i < 6 ? 2 : 1, .steps = 1, .samples = 100, .step_ns = second_ns / 2};
        gr_meter_add(&epoch_so_far, &step);
        gr_recent_add(&recent, &before, &epoch_so_far, (i + 1) * second_ns);
        assert_float_equal(recent.samples_per_s, 200, 1e-9);
        /* Over after the steps 0 to 5, 6 to 10, 11 to 15. */
        assert_float_equal(recent.loss, i < 10 ? 2 : 1, 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_lines),
        cmocka_unit_test(plain_lines),
        cmocka_unit_test(no_terminal),
        cmocka_unit_test(a_bar_fits_every_terminal),
        cmocka_unit_test(report_of_a_rank_that_is_hardly_late_does_not_name_it),
        cmocka_unit_test(silent),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(widths),
        cmocka_unit_test(numbers),
        cmocka_unit_test(recent_means_are_those_of_the_last_seconds),
        cmocka_unit_test(metrics_of_more_than_a_gigabyte_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
