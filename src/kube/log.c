/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/log.h"

#include "base/fail.h"
#include "base/time_text.h"
#include "kube/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SECOND_US = 1000000,
    BACKOFF_US = 200000,
    BACKOFF_MAX_US = 10 * SECOND_US,
    STAMPS = 4096, /* times of the newest lines */
    STAMP_BYTES = 64,
    QUERY_BYTES = 512
};

static const int64_t NO_TIME = INT64_MIN;

typedef enum line_state {
    LINE_STAMP, /* its time is to come */
    LINE_SHOWN,
    LINE_SKIPPED /* it has come before */
} line_state;

struct gr_kube_log {
    gr_kube *kube;
    gr_clock clock;
    gr_kube_log_options options; /* its texts are copies */
    char *texts[3];              /* all of them, for free */
    gr_kube_call *call;          /* NULL: PAUSING, ENDED */
    gr_kube_timer pause;
    bool is_over, was_over; /* the container is; it was when the stream began */
    bool wants_previous, reads_previous;
    bool has_ended;
    int failures; /* since something came */
    /* A ring of times in the order in which lines came; those of numbers from `replay` up to
     * `replay_end` may come once more. */
    int64_t stamps[STAMPS];
    uint64_t stamped, replay, replay_end;
    int64_t newest_us;
    int64_t ended_us; /* as of when a log was at its end: what comes then may be another one's */
    line_state state;
    char stamp[STAMP_BYTES];
    size_t stamp_bytes;
    int64_t line_us;     /* time of the line */
    uint64_t line_bytes; /* of it have come on this connection */
    /* A connection broke inside of a line, of which so much was shown; 0: none. */
    int64_t broken_us;
    uint64_t broken_bytes;
};

static void free_log(gr_kube_log *log)
{
    for (size_t i = 0; i < sizeof log->texts / sizeof log->texts[0]; i++) {
        free(log->texts[i]);
    }
    free(log);
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static uint64_t oldest_of(const gr_kube_log *log)
{
    return log->stamped > STAMPS ? log->stamped - STAMPS : 0;
}

/* Returns true if the line of that time has arrived on an earlier connection. */
static bool came_before(gr_kube_log *log, int64_t time_us)
{
    uint64_t oldest = oldest_of(log), from = log->replay > oldest ? log->replay : oldest;
    for (uint64_t at = from; at < log->replay_end; at++) {
        if (log->stamps[at % STAMPS] == time_us) {
            log->replay = at + 1;
            return true;
        }
    }
    return log->replay_end > oldest && oldest > 0 && time_us <= log->stamps[oldest % STAMPS];
}

/* The line that a connection broke off does not come again: it ends there. */
static void end_broken(gr_kube_log *log)
{
    if (log->broken_bytes > 0) {
        log->broken_bytes = 0;
        log->options.text(log->options.arg, "\n", 1);
    }
}

/* The time of a line is there: is the line to be shown? */
static void judge_line(gr_kube_log *log)
{
    int64_t time_us = 0;
    log->stamp[log->stamp_bytes] = '\0';
    bool has_time = gr_time_read(log->stamp, &time_us);
    log->stamp_bytes = 0;
    log->line_bytes = 0;
    if (has_time && came_before(log, time_us)) {
        log->state = LINE_SKIPPED;
        return;
    }
    if (log->broken_bytes > 0 && !(has_time && time_us == log->broken_us)) {
        end_broken(log);
    }
    log->state = LINE_SHOWN;
    log->line_us = has_time ? time_us : NO_TIME;
    if (has_time) {
        log->stamps[log->stamped++ % STAMPS] = time_us;
        log->newest_us = time_us > log->newest_us ? time_us : log->newest_us;
    } else { /* of a server that gives none */
        log->options.text(log->options.arg, log->stamp, strlen(log->stamp));
    }
}

/* A part of a line; what was shown before a connection broke is not shown again. */
static void show(gr_kube_log *log, const char *bytes, size_t size_bytes, bool ends)
{
    uint64_t known = log->broken_bytes > log->line_bytes ? log->broken_bytes - log->line_bytes : 0;
    size_t skipped = known < size_bytes ? (size_t)known : size_bytes;
    log->line_bytes += size_bytes;
    if (size_bytes > skipped) {
        log->options.text(log->options.arg, bytes + skipped, size_bytes - skipped);
    }
    if (ends) {
        log->broken_bytes = 0;
    }
}

static void read_previous(gr_kube_log *log);

static void take_bytes(void *arg, const char *bytes, size_t size_bytes)
{
    gr_kube_log *log = arg;
    log->failures = 0;
    for (size_t at = 0; at < size_bytes;) {
        if (log->state == LINE_STAMP) {
            char one = bytes[at];
            if (one == ' ' || one == '\n' || log->stamp_bytes == STAMP_BYTES - 1) {
                judge_line(log);
                at += one == ' ';
            } else {
                log->stamp[log->stamp_bytes++] = one;
                at++;
            }
            continue;
        }
        const char *newline = memchr(bytes + at, '\n', size_bytes - at);
        size_t end = newline != NULL ? (size_t)(newline - bytes) + 1 : size_bytes;
        if (log->state == LINE_SHOWN) {
            show(log, bytes + at, end - at, newline != NULL);
        }
        log->state = newline != NULL ? LINE_STAMP : log->state;
        at = end;
    }
    read_previous(log);
}

/* The connection is gone. A line that has begun comes again as a whole, unless it is the last. */
static void leave_line(gr_kube_log *log, bool is_last)
{
    if (log->state == LINE_SHOWN && log->line_us != NO_TIME) {
        log->stamped--;
        log->broken_us = log->line_us;
        log->broken_bytes =
            log->line_bytes > log->broken_bytes ? log->line_bytes : log->broken_bytes;
    }
    if (is_last) {
        end_broken(log);
    }
    log->state = LINE_STAMP;
    log->stamp_bytes = 0;
    log->line_bytes = 0;
}

/* ---- Connections ----------------------------------------------------------------------------- */

static void begin(void *arg);

static void end_log(gr_kube_log *log)
{
    log->has_ended = true;
    log->options.ended(log->options.arg);
}

static void again(gr_kube_log *log)
{
    int64_t now_us = gr_clock_now_us(&log->clock);
    int64_t pause_us = BACKOFF_US;
    if (log->failures > 0) {
        pause_us = gr_kube_backoff_us(log->failures, BACKOFF_US, BACKOFF_MAX_US, (uint64_t)now_us);
    }
    log->pause.fire = begin;
    log->pause.arg = log;
    gr_kube_timer_set(log->kube, &log->pause, now_us + pause_us);
}

static void end_stream(void *arg, const gr_kube_answer *answer)
{
    gr_kube_log *log = arg;
    bool is_gone = answer->status == GR_E_NOT_FOUND, was_previous = log->reads_previous;
    /* Of a former container there may be nothing any more: "bad request". */
    bool is_read = was_previous && (answer->status == GR_OK || answer->status == GR_E_INVALID);
    bool is_last =
        answer->status == GR_OK && !was_previous && log->was_over && !log->wants_previous;
    log->call = NULL;
    log->reads_previous = false;
    leave_line(log, is_last || is_gone || is_read);
    if (is_read) {
        log->ended_us = NO_TIME;
    } else if (answer->status == GR_OK && log->ended_us == NO_TIME) {
        log->ended_us = log->newest_us;
    }
    if (is_last || is_gone) {
        end_log(log);
    } else if (is_read) {
        begin(log);
    } else if (answer->status == GR_OK) {
        again(log);
    } else {
        log->wants_previous |= was_previous;
        if (log->failures++ == 0) {
            log->options.trouble(log->options.arg, answer->diag);
        }
        if (answer->status == GR_E_AUTH) {
            end_log(log);
        } else {
            again(log);
        }
    }
}

static void begin(void *arg)
{
    gr_kube_log *log = arg;
    char query[QUERY_BYTES], since[GR_TIME_BYTES] = "";
    gr_diag diag = {0};
    log->was_over = log->is_over;
    log->replay = oldest_of(log);
    log->replay_end = log->stamped;
    log->reads_previous = log->wants_previous;
    log->wants_previous = false;
    int64_t from_us =
        log->reads_previous && log->ended_us != NO_TIME ? log->ended_us : log->newest_us;
    if (log->stamped > 0 && from_us > 0) {
        gr_time_print(from_us - SECOND_US, false, since);
    }
    snprintf(query, sizeof query, "container=%s&timestamps=true%s%s%s", log->options.container,
             log->reads_previous ? "&previous=true"
             : log->is_over      ? ""
                                 : "&follow=true",
             since[0] != '\0' ? "&sinceTime=" : "", since);
    gr_kube_request request = {.verb = GR_KUBE_LOG,
                               .resource = {"", "v1", "pods"},
                               .space = log->options.space,
                               .name = log->options.pod,
                               .subresource = "log",
                               .query = query,
                               .bytes = take_bytes,
                               .done = end_stream,
                               .arg = log};
    if (gr_kube_submit(log->kube, &request, &log->call, &diag) != GR_PENDING) {
        log->call = NULL;
        log->failures++;
        again(log);
    }
}

/* The stream that runs may be of the new container already: it waits, from the end of a line on. */
static void read_previous(gr_kube_log *log)
{
    if (log->wants_previous && log->call != NULL && !log->reads_previous &&
        log->state == LINE_STAMP) {
        gr_kube_cancel(log->kube, log->call);
        log->call = NULL;
        leave_line(log, false);
        begin(log);
    }
}

gr_status gr_kube_log_start(gr_kube *kube, const gr_kube_log_options *options,
                            gr_kube_log **log_out, gr_diag *diag)
{
    gr_kube_log *log = calloc(1, sizeof *log);
    if (log == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the log of a pod");
    }
    log->kube = kube;
    log->clock = gr_kube_clock(kube);
    log->ended_us = NO_TIME;
    log->options = *options;
    log->options.space = log->texts[0] = strdup(options->space);
    log->options.pod = log->texts[1] = strdup(options->pod);
    log->options.container = log->texts[2] = strdup(options->container);
    if (log->texts[0] == NULL || log->texts[1] == NULL || log->texts[2] == NULL) {
        free_log(log);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the log of a pod");
    }
    log->pause.fire = begin;
    log->pause.arg = log;
    gr_kube_timer_set(kube, &log->pause, gr_clock_now_us(&log->clock));
    *log_out = log;
    return GR_OK;
}

void gr_kube_log_finish(gr_kube_log *log)
{
    log->is_over = true;
}

void gr_kube_log_restarted(gr_kube_log *log)
{
    log->wants_previous = true;
    read_previous(log);
}

void gr_kube_log_stop(gr_kube_log *log)
{
    if (log == NULL) {
        return;
    }
    if (log->call != NULL) {
        gr_kube_cancel(log->kube, log->call);
    }
    gr_kube_timer_clear(log->kube, &log->pause);
    free_log(log);
}
