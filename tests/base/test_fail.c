/* SPDX-License-Identifier: Apache-2.0 */

/* Statuses, diagnoses, the log and the clock. */

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "support_base.h"

#include <errno.h>
#include <gradus/version.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void status_each_value_has_name_and_scope(void **state)
{
    (void)state;
    assert_string_equal(gr_status_name(GR_OK), "GR_OK");
    assert_string_equal(gr_status_name(GR_E_AUTH), "GR_E_AUTH");
    assert_string_equal(gr_status_name((gr_status)-19), "GR_E_?");
    assert_string_equal(gr_status_text(GR_E_TIMEOUT), "a deadline passed");
    assert_int_equal(gr_status_scope(GR_PENDING), GR_SCOPE_NONE);
    assert_int_equal(gr_status_scope(GR_E_NOT_FINITE), GR_SCOPE_CALL);
    assert_int_equal(gr_status_scope((gr_status)-19), GR_SCOPE_CALL);
    assert_int_equal(gr_status_scope(GR_E_PEER_LOST), GR_SCOPE_PEER);
    assert_int_equal(gr_status_scope(GR_E_MISMATCH), GR_SCOPE_COMM);
    assert_int_equal(gr_status_scope(GR_E_BUG), GR_SCOPE_PROCESS);
    assert_string_equal(gr_version(), "0.1.0");
}

static void fail_with_facts_writes_one_sentence(void **state)
{
    (void)state;
    gr_diag diag = {.peer_rank = 7};
    errno = ENOSPC;
    assert_int_equal(gr_fail(&diag, GR_E_IO, "no room in %s", "/x"), GR_E_IO);
    assert_int_equal(errno, ENOSPC);
    assert_string_equal(diag.text, "no room in /x");
    assert_int_equal(diag.status, GR_E_IO);
    assert_int_equal(diag.peer_rank, -1);

    /* A sentence may be built from itself. */
    assert_int_equal(gr_fail_peer(&diag, GR_E_PEER_LOST, 3, "rank 3: %s", diag.text),
                     GR_E_PEER_LOST);
    assert_string_equal(diag.text, "rank 3: no room in /x");
    assert_int_equal(diag.peer_rank, 3);

    assert_int_equal(gr_fail(NULL, GR_E_AGAIN, "nobody listens"), GR_E_AGAIN);
    gr_diag_clear(&diag);
    gr_diag_clear(NULL);
    assert_string_equal(diag.text, "");
    assert_int_equal(diag.status, GR_OK);
    assert_int_equal(diag.peer_rank, -1);
}

static void fail_with_a_long_text_cuts_and_cleans_it(void **state)
{
    (void)state;
    gr_diag diag;
    assert_int_equal(gr_fail(&diag, GR_E_INVALID, "a\nb\033[31mc"), GR_E_INVALID);
    assert_string_equal(diag.text, "a b [31mc");

    /* 2-byte characters at odd places: the cut must not leave half of one. */
    char longer[2 * GR_DIAG_TEXT_BYTES];
    for (size_t i = 0; i + 1 < sizeof longer; i += 2) {
        memcpy(longer + i, "\xC3\xA9", 2);
    }
    longer[sizeof longer - 2] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        assert_int_equal(gr_fail(&diag, GR_E_INVALID, "%s%s", shift ? "x" : "", longer),
                         GR_E_INVALID);
        size_t length = strlen(diag.text);
        assert_true(length >= GR_DIAG_TEXT_BYTES - 3 && length < GR_DIAG_TEXT_BYTES);
        assert_string_equal(diag.text + length - 3, "...");
        assert_int_equal((unsigned char)diag.text[length - 4], 0xA9);
    }
}

static void check_that_fails_aborts_the_process(void **state)
{
    (void)state;
    GR_CHECK(1 + 1 == 2);
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipe_fds[1], STDERR_FILENO);
        gr_check_failed("sum == total", "file.c", 12);
    }
    assert_true(child > 0);
    close(pipe_fds[1]);
    int wait_status = 0;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGABRT);
    char text[512] = "";
    assert_true(read(pipe_fds[0], text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "sum == total does not hold at file.c:12"));
    close(pipe_fds[0]);
}

typedef struct seen_lines {
    int count;
    gr_log_level level;
    char component[32];
    char line[GR_LOG_LINE_BYTES];
} seen_lines;

static void see_line(void *sink_arg, gr_log_level level, const char *component, const char *line)
{
    seen_lines *seen = sink_arg;
    seen->count++;
    seen->level = level;
    snprintf(seen->component, sizeof seen->component, "%s", component);
    snprintf(seen->line, sizeof seen->line, "%s", line);
}

static void log_below_its_level_is_silent(void **state)
{
    (void)state;
    seen_lines seen = {0};
    gr_log log = {.level = GR_LOG_INFO, .sink = see_line, .sink_arg = &seen};
    gr_log_write(&log, GR_LOG_DEBUG, "link", "hidden %d", 1);
    assert_int_equal(seen.count, 0);
    gr_log_write(&log, GR_LOG_INFO, "link", "seen\n%d", 2);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.level, GR_LOG_INFO);
    assert_string_equal(seen.component, "link");
    assert_string_equal(seen.line, "seen 2");
    log.level = GR_LOG_OFF;
    gr_log_write(&log, GR_LOG_ERROR, "link", "hidden");
    assert_int_equal(seen.count, 1);
    log = (gr_log){.level = GR_LOG_TRACE};
    gr_log_write(&log, GR_LOG_ERROR, "link", "no sink");
    gr_log_write(NULL, GR_LOG_ERROR, "link", "no log");

    char longer[2 * GR_LOG_LINE_BYTES];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    log = (gr_log){.level = GR_LOG_TRACE, .sink = see_line, .sink_arg = &seen};
    gr_log_write(&log, GR_LOG_TRACE, "link", "%s", longer);
    assert_int_equal(strlen(seen.line), GR_LOG_LINE_BYTES - 1);
    assert_string_equal(seen.line + GR_LOG_LINE_BYTES - 4, "...");
}

static void log_to_a_file_writes_whole_lines(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *file = open_memstream(&text, &size_bytes);
    assert_non_null(file);
    gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = file};
    gr_log_write(&log, GR_LOG_WARN, "tcp", "rank %d is slow", 3);
    assert_string_equal(text, "gradus: warning: tcp: rank 3 is slow\n");
    gr_log_write(&log, GR_LOG_ERROR, NULL, "gone");
    assert_string_equal(text, "gradus: warning: tcp: rank 3 is slow\ngradus: error: gone\n");
    fclose(file);
    free(text);
}

enum { WRITERS = 4, LINES_EACH = 200 };

static void *write_lines(void *thread_arg)
{
    const gr_log *log = thread_arg;
    for (int i = 0; i < LINES_EACH; i++) {
        gr_log_write(log, GR_LOG_INFO, "thread", "one %s and %d", "line", 12345);
    }
    return NULL;
}

static void log_from_several_threads_keeps_lines_apart(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    gr_log log = {.level = GR_LOG_INFO, .sink = gr_log_to_file, .sink_arg = file};
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &log), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
    }
    rewind(file);
    char line[128];
    int count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        assert_string_equal(line, "gradus: info: thread: one line and 12345\n");
        count++;
    }
    assert_int_equal(count, WRITERS * LINES_EACH);
    fclose(file);
}

static void clock_simulated_reads_the_given_time(void **state)
{
    (void)state;
    int64_t now_us = 1000;
    gr_clock clock = gr_clock_simulated(&now_us);
    assert_int_equal(gr_clock_now_us(&clock), 1000);
    now_us += 5;
    assert_int_equal(gr_clock_now_us(&clock), 1005);
    assert_int_equal(gr_clock_deadline_us(&clock, 10), 1015);
    assert_true(gr_clock_deadline_us(&clock, 0) == GR_NEVER);
    assert_true(gr_clock_deadline_us(&clock, -1) == GR_NEVER);
    assert_true(gr_clock_deadline_us(&clock, INT64_MAX - 10) == GR_NEVER);

    gr_clock real = gr_clock_real();
    int64_t before_ns = gr_now_ns();
    int64_t between_us = gr_clock_now_us(&real);
    int64_t after_ns = gr_now_ns();
    assert_true(before_ns / 1000 <= between_us && between_us <= after_ns / 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_each_value_has_name_and_scope),
        cmocka_unit_test(fail_with_facts_writes_one_sentence),
        cmocka_unit_test(fail_with_a_long_text_cuts_and_cleans_it),
        cmocka_unit_test(check_that_fails_aborts_the_process),
        cmocka_unit_test(log_below_its_level_is_silent),
        cmocka_unit_test(log_to_a_file_writes_whole_lines),
        cmocka_unit_test(log_from_several_threads_keeps_lines_apart),
        cmocka_unit_test(clock_simulated_reads_the_given_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
