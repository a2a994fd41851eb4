/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/client.h"

#include "base/fail.h"
#include "kube/call.h"
#include "kube/pace.h"
#include "kube/repair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SECOND_US = 1000000,
    TIMEOUT_US = 30 * SECOND_US,
    OBJECT_BYTES = 8 << 20,
    BACKOFF_US = 100000,
    BACKOFF_MAX_US = 10 * SECOND_US,
    RETRY_AFTER_MAX_S = 30,
    LOGIN_PAUSE_US = 5 * SECOND_US /* after one that failed, or did not help */
};

typedef struct call_list {
    gr_kube_call *first, *last;
    int count;
} call_list;

struct gr_kube {
    gr_kube_access *access;
    gr_clock clock;
    int64_t timeout_us;
    size_t object_bytes_max;
    char *user_agent;
    const gr_log *log;
    gr_http *http;
    gr_kube_pace pace;
    call_list queue, flying;
    int streaming;         /* of those in flight: watches, logs */
    gr_kube_timer *timers; /* by due_us */
    uint64_t login;        /* number of the credentials */
    int64_t login_at_us;   /* not before: a login is tried again */
    gr_status login_status;
    gr_diag login_diag;
    gr_kube_counts counts;
};

static void add_count(gr_kube_counts *counts, const char *method, int code, uint64_t count)
{
    int i = 0;
    while (i < counts->used &&
           (counts->rows[i].code != code || strcmp(counts->rows[i].method, method) != 0)) {
        i++;
    }
    if (i == counts->used && i < GR_KUBE_COUNTS_MAX) {
        counts->rows[counts->used].method = method;
        counts->rows[counts->used++].code = code;
    }
    if (i < counts->used) {
        counts->rows[i].count += count;
    }
}

void gr_kube_add_counts(const gr_kube *kube, gr_kube_counts *sum)
{
    for (int i = 0; i < kube->counts.used; i++) {
        add_count(sum, kube->counts.rows[i].method, kube->counts.rows[i].code,
                  kube->counts.rows[i].count);
    }
}

/* Once for each attempt: a watch has its answer long before its end. */
static void count_answer(gr_kube_call *call, int code)
{
    if (!call->is_counted) {
        call->is_counted = true;
        add_count(&call->kube->counts, gr_kube_call_method(call), code, 1);
    }
}

static void add_call(call_list *list, gr_kube_call *call)
{
    call->next = NULL;
    call->previous = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = call;
    list->last = call;
    list->count++;
}

static void remove_call(call_list *list, gr_kube_call *call)
{
    *(call->previous != NULL ? &call->previous->next : &list->first) = call->next;
    *(call->next != NULL ? &call->next->previous : &list->last) = call->previous;
    list->count--;
}

/* Reads credentials again where it is time; with `refused` at once, but not again and again. */
static gr_status log_in(gr_kube *kube, bool refused, bool *changed_out, gr_diag *diag)
{
    int64_t now_us = gr_clock_now_us(&kube->clock);
    *changed_out = false;
    if (kube->login_at_us > now_us && (refused || kube->login_status != GR_OK)) {
        if (diag != NULL && kube->login_status != GR_OK) {
            *diag = kube->login_diag;
        }
        return kube->login_status;
    }
    gr_diag said = {0};
    kube->login_status =
        gr_kube_access_refresh(kube->access, (int64_t)time(NULL), refused, changed_out, &said);
    kube->login_diag = said;
    kube->login += *changed_out;
    if (refused || kube->login_status != GR_OK) {
        kube->login_at_us = now_us + LOGIN_PAUSE_US;
    }
    if (diag != NULL && kube->login_status != GR_OK) {
        *diag = said;
    }
    return kube->login_status;
}

gr_status gr_kube_create(const gr_kube_options *options, gr_kube **kube_out, gr_diag *diag)
{
    gr_kube *kube = calloc(1, sizeof *kube);
    if (kube == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the client of a cluster");
    }
    bool changed;
    double rate = options->requests_a_second != 0 ? options->requests_a_second : 50;
    kube->access = options->access;
    kube->clock = options->clock;
    kube->log = options->log;
    kube->timeout_us = options->timeout_us > 0 ? options->timeout_us : TIMEOUT_US;
    kube->object_bytes_max =
        options->object_bytes_max > 0 ? options->object_bytes_max : OBJECT_BYTES;
    kube->user_agent = strdup(options->user_agent != NULL ? options->user_agent : "gradus");
    gr_kube_pace_init(&kube->pace, rate, options->burst > 0 ? options->burst : 100,
                      gr_clock_now_us(&kube->clock));
    gr_status status = kube->user_agent != NULL
                           ? gr_http_create(kube->access, &kube->http, diag)
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a client");
    if (status == GR_OK) {
        status = log_in(kube, false, &changed, diag);
    }
    if (status != GR_OK) {
        gr_kube_destroy(kube);
        return status;
    }
    *kube_out = kube;
    return GR_OK;
}

static void free_call(gr_kube_call *call)
{
    gr_kube_stream_fini(&call->stream);
    free(call->path);
    free(call->body);
    free(call->continues_at);
    free(call);
}

void gr_kube_destroy(gr_kube *kube)
{
    if (kube == NULL) {
        return;
    }
    gr_http_destroy(kube->http);
    while (kube->queue.first != NULL) {
        gr_kube_call *call = kube->queue.first;
        remove_call(&kube->queue, call);
        free_call(call);
    }
    while (kube->flying.first != NULL) {
        gr_kube_call *call = kube->flying.first;
        remove_call(&kube->flying, call);
        free_call(call);
    }
    free(kube->user_agent);
    free(kube);
}

gr_clock gr_kube_clock(const gr_kube *kube)
{
    return kube->clock;
}

int gr_kube_fd(const gr_kube *kube)
{
    return gr_http_fd(kube->http);
}

/* ---- Timers -----------------------------------------------------------------------------------
 * */
void gr_kube_timer_clear(gr_kube *kube, gr_kube_timer *timer)
{
    gr_kube_timer **place = &kube->timers;
    while (*place != NULL && *place != timer) {
        place = &(*place)->next;
    }
    if (*place != NULL) {
        *place = timer->next;
    }
    timer->is_set = false;
}

void gr_kube_timer_set(gr_kube *kube, gr_kube_timer *timer, int64_t due_us)
{
    if (timer->is_set) {
        gr_kube_timer_clear(kube, timer);
    }
    gr_kube_timer **place = &kube->timers;
    while (*place != NULL && (*place)->due_us <= due_us) {
        place = &(*place)->next;
    }
    timer->due_us = due_us;
    timer->is_set = true;
    timer->next = *place;
    *place = timer;
    if (kube->timers == timer) {
        gr_http_wake(kube->http, 0);
    }
}

/* ---- One call ---------------------------------------------------------------------------------
 * */
static void leave(gr_kube_call *call)
{
    gr_kube *kube = call->kube;
    gr_kube_timer_clear(kube, &call->pause);
    remove_call(call->is_queued ? &kube->queue : &kube->flying, call);
    kube->streaming -= !call->is_queued && gr_kube_call_streams(call);
}

static void end_call(gr_kube_call *call, gr_status status, int code, json_t *object,
                     const gr_diag *diag)
{
    const char *reason = json_string_value(json_object_get(object, "reason"));
    const char *message = json_string_value(json_object_get(object, "message"));
    gr_kube_answer answer = {.status = status,
                             .http = code,
                             .reason = status != GR_OK && reason != NULL ? reason : "",
                             .message = status != GR_OK && message != NULL ? message : "",
                             .object = status == GR_OK ? object : NULL,
                             .diag = diag};
    leave(call);
    call->done(call->arg, &answer);
    free_call(call);
}

/* An object of a list or a watch. */
static bool take_item(void *arg, json_t *object)
{
    gr_kube_call *call = arg;
    call->in_item = true;
    call->has_items = true;
    call->item(call->arg, object);
    call->in_item = false;
    return !call->is_cancelled;
}

/* An object of a list or a watch that cannot be read. */
static bool skip_item(void *arg, const char *name, const char *why)
{
    gr_kube_call *call = arg;
    char sentence[GR_DIAG_TEXT_BYTES];
    gr_diag diag = {0};
    snprintf(sentence, sizeof sentence, "%s is passed over: %s",
             name[0] != '\0' ? name : "an object without a name", why);
    (void)!gr_kube_call_fail(call, GR_E_PROTOCOL, sentence, &diag);
    call->in_item = true;
    call->skipped(call->arg, &diag);
    call->in_item = false;
    return !call->is_cancelled;
}

/* A part of a log. */
static bool take_bytes(gr_kube_call *call, const char *bytes, size_t size_bytes)
{
    call->in_item = true;
    call->bytes(call->arg, bytes, size_bytes);
    call->in_item = false;
    return !call->is_cancelled;
}

static bool take_data(void *arg, int code, const char *bytes, size_t size_bytes)
{
    gr_kube_call *call = arg;
    count_answer(call, code);
    if (call->verb == GR_KUBE_LOG && code < 300) {
        return take_bytes(call, bytes, size_bytes);
    }
    if (!call->has_stream) {
        gr_kube_stream_kind kind = code >= 300                   ? GR_KUBE_STREAM_ONE
                                   : call->verb == GR_KUBE_LIST  ? GR_KUBE_STREAM_LIST
                                   : call->verb == GR_KUBE_WATCH ? GR_KUBE_STREAM_SEQUENCE
                                                                 : GR_KUBE_STREAM_ONE;
        gr_kube_stream_init(&call->stream, kind, call->kube->object_bytes_max, take_item, call);
        call->stream.cut = call->cut;
        call->stream.cut_arg = call->cut_arg;
        call->stream.skipped = call->skipped != NULL ? skip_item : NULL;
        call->has_stream = true;
    }
    call->stream_status = gr_kube_stream_feed(&call->stream, bytes, size_bytes, &call->stream_diag);
    return call->stream_status == GR_OK;
}

static void take_end(void *arg, const gr_http_end *end);

static gr_status start_http(gr_kube_call *call, gr_diag *diag)
{
    gr_kube *kube = call->kube;
    bool changed;
    gr_status status = log_in(kube, false, &changed, diag);
    char *path = gr_kube_call_path(call);
    if (status == GR_OK && path == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    if (status == GR_OK) {
        gr_http_request request = {.method = gr_kube_call_method(call),
                                   .path = path,
                                   .content_type = gr_kube_call_content_type(call),
                                   .body = call->body,
                                   .body_bytes = call->body != NULL ? strlen(call->body) : 0,
                                   .user_agent = kube->user_agent,
                                   .data = take_data,
                                   .end = take_end,
                                   .arg = call};
        if (!gr_kube_call_streams(call)) {
            request.timeout_us = call->timeout_us > 0 ? call->timeout_us : kube->timeout_us;
        }
        call->login = kube->login;
        status = gr_http_start(kube->http, &request, &call->http_call, diag);
    }
    free(path);
    return status;
}

static void start_attempt(void *arg)
{
    gr_kube_call *call = arg;
    gr_diag why = {0}, diag = {0};
    gr_kube_stream_fini(&call->stream);
    call->has_stream = call->has_items = call->is_counted = false;
    call->stream_status = GR_OK;
    call->stream_diag = (gr_diag){0};
    call->attempts++;
    gr_status status = start_http(call, &why);
    if (status != GR_OK) {
        status = gr_kube_call_fail(call, status, why.text, &diag);
        end_call(call, status, 0, NULL, &diag);
    }
}

static void pause_call(gr_kube_call *call, int64_t pause_us)
{
    call->pause.fire = start_attempt;
    call->pause.arg = call;
    gr_kube_timer_set(call->kube, &call->pause, gr_clock_now_us(&call->kube->clock) + pause_us);
}

/* A list that lost its place begins again. */
static void restart_list(gr_kube_call *call)
{
    call->restarts++;
    free(call->continues_at);
    call->continues_at = NULL;
    call->item(call->arg, NULL);
}

/* Returns true if the request may be tried again: the server has certainly not carried it out, or
 * carrying it out twice does no harm. */
static bool is_retried(const gr_kube_call *call, const gr_http_end *end)
{
    bool only_reads = gr_kube_call_only_reads(call);
    if (call->attempts >= GR_KUBE_ATTEMPTS_MAX ||
        (call->has_items && call->restarts >= GR_KUBE_ATTEMPTS_MAX) || gr_kube_call_streams(call)) {
        return false;
    }
    if (end->status == GR_OK) {
        return end->code == 429 || (end->code == 503 && end->retry_after_s >= 0) ||
               (end->code >= 500 && only_reads);
    }
    return end->status == GR_E_PEER_LOST && (only_reads || !end->was_sent);
}

/* Other credentials than the last attempt had: it may be right to try once more. */
static bool has_new_login(gr_kube_call *call)
{
    bool changed = false;
    if (call->login_renewed) {
        return false;
    }
    call->login_renewed = true;
    if (call->login == call->kube->login && log_in(call->kube, true, &changed, NULL) != GR_OK) {
        return false;
    }
    return call->login != call->kube->login;
}

/* Takes the next part of a list, if there is one. */
static bool goes_on(gr_kube_call *call, const json_t *rest)
{
    const json_t *metadata = json_object_get(rest, "metadata");
    const char *at = json_string_value(json_object_get(metadata, "continue"));
    free(call->continues_at);
    call->continues_at = at != NULL && at[0] != '\0' ? strdup(at) : NULL;
    if (call->verb != GR_KUBE_LIST || call->continues_at == NULL) {
        return false;
    }
    call->attempts = 0;
    return true;
}

static void take_answer(gr_kube_call *call, const gr_http_end *end, json_t *object)
{
    gr_diag diag = {0};
    if (end->code >= 200 && end->code < 300) {
        if (goes_on(call, object)) {
            pause_call(call, 0);
        } else {
            end_call(call, GR_OK, end->code, object, NULL);
        }
    } else if (end->code == 410 && call->continues_at != NULL &&
               call->restarts < GR_KUBE_ATTEMPTS_MAX) {
        restart_list(call);
        pause_call(call, 0);
    } else if (end->code == 401 && has_new_login(call)) {
        pause_call(call, 0);
    } else {
        gr_status status =
            gr_kube_call_judge(call, end->code, object, call->kube->access->where, &diag);
        end_call(call, status, end->code, object, &diag);
    }
}

static void take_end(void *arg, const gr_http_end *end)
{
    gr_kube_call *call = arg;
    json_t *object = NULL;
    gr_diag why = *end->diag, diag = {0};
    gr_status status = end->status;
    call->http_call = NULL;
    count_answer(call, end->code);
    if (call->is_cancelled) {
        free_call(call);
        return;
    }
    if (call->stream_status != GR_OK) {
        status = call->stream_status;
        why = call->stream_diag;
    } else if (is_retried(call, end)) {
        int64_t asked_s =
            end->retry_after_s < RETRY_AFTER_MAX_S ? end->retry_after_s : RETRY_AFTER_MAX_S;
        int64_t pause_us = gr_kube_backoff_us(call->attempts, BACKOFF_US, BACKOFF_MAX_US,
                                              (uint64_t)gr_clock_now_us(&call->kube->clock));
        if (call->has_items) { /* again they would come twice */
            restart_list(call);
        }
        gr_log_write(call->kube->log, GR_LOG_DEBUG, "kube", "%s: tried again: HTTP %d %s",
                     call->target, end->code, why.text);
        pause_call(call, asked_s > 0 ? asked_s * SECOND_US + pause_us : pause_us);
        return;
    }
    if (status == GR_OK && call->has_stream) {
        status = gr_kube_stream_end(&call->stream, &object, &why);
    } else if (status == GR_OK && end->code < 300 && !gr_kube_call_streams(call)) {
        status = gr_fail(&why, GR_E_PROTOCOL, "the answer is empty");
    }
    /* An error page of something in between is no JSON: the code says enough. */
    if (status == GR_OK || (end->code >= 300 && status != GR_E_CANCELLED)) {
        take_answer(call, end, object);
    } else {
        status = gr_kube_call_fail(call, status, why.text, &diag);
        end_call(call, status, end->code, NULL, &diag);
    }
    json_decref(object);
}

gr_status gr_kube_submit(gr_kube *kube, const gr_kube_request *request, gr_kube_call **call_out,
                         gr_diag *diag)
{
    if (kube->queue.count >= GR_KUBE_QUEUE_MAX) {
        return gr_fail(diag, GR_E_AGAIN, "more than %d requests wait for the cluster",
                       GR_KUBE_QUEUE_MAX);
    }
    gr_kube_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    call->kube = kube;
    gr_status status = gr_kube_call_fill(call, request, diag);
    if (status != GR_OK) {
        free_call(call);
        return status;
    }
    call->is_queued = true;
    add_call(&kube->queue, call);
    gr_http_wake(kube->http, 0);
    if (call_out != NULL) {
        *call_out = call;
    }
    return GR_PENDING;
}

void gr_kube_cancel(gr_kube *kube, gr_kube_call *call)
{
    leave(call);
    if (call->in_item) { /* it is freed when its stream is left */
        call->is_cancelled = true;
        return;
    }
    if (call->http_call != NULL) {
        gr_http_stop(kube->http, call->http_call);
    }
    free_call(call);
}

/* ---- The loop ---------------------------------------------------------------------------------
 * */
static void fire_timers(gr_kube *kube, int64_t now_us)
{
    while (kube->timers != NULL && kube->timers->due_us <= now_us) {
        gr_kube_timer *timer = kube->timers;
        gr_kube_timer_clear(kube, timer);
        timer->fire(timer->arg);
    }
}

static bool has_room(const gr_kube *kube)
{
    return kube->queue.first != NULL &&
           kube->flying.count - kube->streaming < GR_KUBE_IN_FLIGHT_MAX;
}

void gr_kube_run(gr_kube *kube)
{
    gr_http_run(kube->http);
    int64_t now_us = gr_clock_now_us(&kube->clock);
    fire_timers(kube, now_us);
    while (has_room(kube) && gr_kube_pace_take(&kube->pace, now_us)) {
        gr_kube_call *call = kube->queue.first;
        remove_call(&kube->queue, call);
        call->is_queued = false;
        add_call(&kube->flying, call);
        kube->streaming += gr_kube_call_streams(call);
        start_attempt(call);
    }
    int64_t due_us = kube->timers != NULL ? kube->timers->due_us : GR_NEVER;
    if (has_room(kube)) {
        due_us = gr_earlier_us(due_us, gr_kube_pace_next_us(&kube->pace));
    }
    int64_t left_us = due_us == GR_NEVER ? GR_NEVER : due_us - gr_clock_now_us(&kube->clock);
    gr_http_wake(kube->http, left_us > 0 ? left_us : 0);
}
