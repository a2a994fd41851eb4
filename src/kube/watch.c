/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/watch.h"

#include "base/fail.h"
#include "kube/pace.h"

#include <stdlib.h>
#include <string.h>

enum {
    SECOND_US = 1000000,
    SILENCE_US = 150 * SECOND_US,
    STREAM_S = 300,             /* after which the server ends a stream; up to twice as long */
    STEADY_US = 10 * SECOND_US, /* a stream that lived so long was a good one */
    BACKOFF_US = 500000,
    BACKOFF_MAX_US = 30 * SECOND_US,
    VERSION_BYTES = 128
};

struct gr_kube_watch {
    gr_kube *kube;
    gr_clock clock;
    gr_kube_watch_options options; /* its texts are copies */
    char *texts[6];                /* all of them, for free */
    gr_kube_call *call;            /* NULL: PAUSING */
    gr_kube_timer pause, silence;
    char version[VERSION_BYTES]; /* resourceVersion; "": a list comes first */
    int failures;                /* since the last event, or good stream */
    int64_t began_us;            /* the stream */
    bool resync_sent, in_event, is_stopped;
};

static const char *version_of(const json_t *object)
{
    const json_t *metadata = json_object_get(object, "metadata");
    const char *version = json_string_value(json_object_get(metadata, "resourceVersion"));
    return version != NULL && strlen(version) < VERSION_BYTES ? version : "";
}

static void free_watch(gr_kube_watch *watch)
{
    for (size_t i = 0; i < sizeof watch->texts / sizeof watch->texts[0]; i++) {
        free(watch->texts[i]);
    }
    free(watch);
}

/* false: the watch is no more. */
static bool emit(gr_kube_watch *watch, gr_kube_watch_kind kind, json_t *object, const gr_diag *diag)
{
    gr_kube_watch_event event = {
        .kind = kind, .object = object, .version = watch->version, .diag = diag};
    watch->in_event = true;
    watch->options.handler(watch->options.arg, &event);
    watch->in_event = false;
    if (watch->is_stopped) {
        free_watch(watch);
        return false;
    }
    return true;
}

static void begin(void *arg);

static void hush(gr_kube_watch *watch)
{
    gr_kube_timer_clear(watch->kube, &watch->silence);
}

/* Begins again after a pause, which grows with each failure. */
static void again(gr_kube_watch *watch)
{
    int64_t now_us = gr_clock_now_us(&watch->clock);
    int64_t pause_us = 0;
    hush(watch);
    if (++watch->failures > 1) {
        pause_us =
            gr_kube_backoff_us(watch->failures - 1, BACKOFF_US, BACKOFF_MAX_US, (uint64_t)now_us);
    }
    watch->pause.fire = begin;
    watch->pause.arg = watch;
    gr_kube_timer_set(watch->kube, &watch->pause, now_us + pause_us);
}

static void trouble(gr_kube_watch *watch, const gr_diag *diag)
{
    watch->failures += watch->failures == 0; /* the first one is no reason to hurry either */
    if (emit(watch, GR_KUBE_WATCH_TROUBLE, NULL, diag)) {
        again(watch);
    }
}

/* ---- LISTING ----------------------------------------------------------------------------------
 * */
static bool emit_resync(gr_kube_watch *watch)
{
    if (watch->resync_sent) {
        return true;
    }
    watch->resync_sent = true;
    return emit(watch, GR_KUBE_WATCH_RESYNC, NULL, NULL);
}

static void take_listed(void *arg, json_t *object)
{
    gr_kube_watch *watch = arg;
    if (object == NULL) {
        watch->resync_sent = false;
    } else if (emit_resync(watch)) {
        emit(watch, GR_KUBE_WATCH_ADDED, object, NULL);
    }
}

static void end_list(void *arg, const gr_kube_answer *answer)
{
    gr_kube_watch *watch = arg;
    gr_diag diag;
    watch->call = NULL;
    if (answer->status != GR_OK) {
        trouble(watch, answer->diag);
        return;
    }
    const char *version = version_of(answer->object);
    if (version[0] == '\0') {
        gr_fail(&diag, GR_E_PROTOCOL, "the list of %s has no resourceVersion",
                watch->options.resource.plural);
        trouble(watch, &diag);
        return;
    }
    strcpy(watch->version, version);
    if (emit_resync(watch) && emit(watch, GR_KUBE_WATCH_SYNCED, NULL, NULL)) {
        begin(watch);
    }
}

/* ---- WATCHING ---------------------------------------------------------------------------------
 * */
static void end_silence(void *arg)
{
    gr_kube_watch *watch = arg;
    gr_diag diag;
    gr_fail(&diag, GR_E_TIMEOUT,
            "the watch of %s has said nothing for %lld s; its connection is taken for dead",
            watch->options.resource.plural, (long long)(watch->options.silence_us / SECOND_US));
    gr_kube_cancel(watch->kube, watch->call);
    watch->call = NULL;
    trouble(watch, &diag);
}

static void await_event(gr_kube_watch *watch)
{
    watch->silence.fire = end_silence;
    watch->silence.arg = watch;
    gr_kube_timer_set(watch->kube, &watch->silence,
                      gr_clock_now_us(&watch->clock) + watch->options.silence_us);
}

/* An object of the list, or an event, that cannot be read. */
static void skip(void *arg, const gr_diag *diag)
{
    gr_kube_watch *watch = arg;
    if (watch->version[0] != '\0') { /* WATCHING */
        await_event(watch);
    }
    emit(watch, GR_KUBE_WATCH_SKIPPED, NULL, diag);
}

/* An ERROR event, or something that is none: this stream is over. */
static void end_stream(gr_kube_watch *watch, const char *type, const json_t *object)
{
    gr_diag diag;
    const char *message = json_string_value(json_object_get(object, "message"));
    bool is_error = type != NULL && strcmp(type, "ERROR") == 0;
    bool has_expired = is_error && json_integer_value(json_object_get(object, "code")) == 410;
    gr_kube_cancel(watch->kube, watch->call);
    watch->call = NULL;
    if (has_expired) {
        watch->version[0] = '\0';
        again(watch);
        return;
    }
    if (is_error) {
        gr_fail(&diag, GR_E_IO, "the watch of %s has failed: %.200s",
                watch->options.resource.plural, message != NULL ? message : "no reason is given");
        watch->version[0] = '\0'; /* what it is about is not known: all is looked at again */
    } else {
        gr_fail(&diag, GR_E_PROTOCOL, "the watch of %s has sent what is no event",
                watch->options.resource.plural);
    }
    trouble(watch, &diag);
}

static void take_event(void *arg, json_t *event)
{
    static const struct {
        const char *type;
        gr_kube_watch_kind kind;
    } kinds[] = {{"ADDED", GR_KUBE_WATCH_ADDED},
                 {"MODIFIED", GR_KUBE_WATCH_MODIFIED},
                 {"DELETED", GR_KUBE_WATCH_DELETED},
                 {"BOOKMARK", GR_KUBE_WATCH_BOOKMARK}};
    gr_kube_watch *watch = arg;
    const char *type = json_string_value(json_object_get(event, "type"));
    json_t *object = json_object_get(event, "object");
    const char *version = version_of(object);
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) == 0 && version[0] != '\0') {
            watch->failures = 0;
            strcpy(watch->version, version);
            await_event(watch);
            emit(watch, kinds[i].kind, object, NULL);
            return;
        }
    }
    end_stream(watch, type, object);
}

static void end_watching(void *arg, const gr_kube_answer *answer)
{
    gr_kube_watch *watch = arg;
    watch->call = NULL;
    hush(watch);
    if (gr_clock_now_us(&watch->clock) - watch->began_us >= STEADY_US) {
        watch->failures = 0;
    }
    if (answer->http == 410) {
        watch->version[0] = '\0';
        again(watch);
    } else if (answer->status == GR_OK) { /* its time is over */
        again(watch);
    } else {
        trouble(watch, answer->diag);
    }
}

/* The end of PAUSING. */
static void begin(void *arg)
{
    gr_kube_watch *watch = arg;
    gr_diag diag;
    bool lists = watch->version[0] == '\0';
    int64_t now_us = gr_clock_now_us(&watch->clock);
    gr_kube_request request = {.verb = lists ? GR_KUBE_LIST : GR_KUBE_WATCH,
                               .resource = watch->options.resource,
                               .space = watch->options.space,
                               .label_selector = watch->options.label_selector,
                               .field_selector = watch->options.field_selector,
                               .item = lists ? take_listed : take_event,
                               .skipped = skip,
                               .cut = watch->options.cut,
                               .cut_arg = watch->options.cut_arg,
                               .done = lists ? end_list : end_watching,
                               .arg = watch};
    watch->resync_sent = false;
    if (!lists) {
        request.resource_version = watch->version;
        request.timeout_us = (int64_t)STREAM_S * SECOND_US + now_us % (STREAM_S * SECOND_US);
        watch->began_us = now_us;
        await_event(watch);
    }
    if (gr_kube_submit(watch->kube, &request, &watch->call, &diag) != GR_PENDING) {
        trouble(watch, &diag);
    }
}

/* A copy, or NULL for NULL. */
static const char *keep(gr_kube_watch *watch, size_t at, const char *text, bool *failed)
{
    watch->texts[at] = text != NULL ? strdup(text) : NULL;
    *failed = *failed || (text != NULL && watch->texts[at] == NULL);
    return watch->texts[at];
}

gr_status gr_kube_watch_start(gr_kube *kube, const gr_kube_watch_options *options,
                              gr_kube_watch **watch_out, gr_diag *diag)
{
    gr_kube_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a watch");
    }
    bool failed = false;
    gr_kube_watch_options *own = &watch->options;
    *own = *options;
    own->resource.group = keep(watch, 0, options->resource.group, &failed);
    own->resource.version = keep(watch, 1, options->resource.version, &failed);
    own->resource.plural = keep(watch, 2, options->resource.plural, &failed);
    own->space = keep(watch, 3, options->space, &failed);
    own->label_selector = keep(watch, 4, options->label_selector, &failed);
    own->field_selector = keep(watch, 5, options->field_selector, &failed);
    own->silence_us = options->silence_us > 0 ? options->silence_us : SILENCE_US;
    watch->kube = kube;
    watch->clock = gr_kube_clock(kube);
    gr_kube_request request = {.verb = GR_KUBE_LIST,
                               .resource = own->resource,
                               .space = own->space,
                               .label_selector = own->label_selector,
                               .field_selector = own->field_selector,
                               .item = take_listed,
                               .skipped = skip,
                               .cut = own->cut,
                               .cut_arg = own->cut_arg,
                               .done = end_list,
                               .arg = watch};
    gr_status status = failed ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for a watch")
                              : gr_kube_submit(kube, &request, &watch->call, diag);
    if (status != GR_PENDING) {
        free_watch(watch);
        return status;
    }
    *watch_out = watch;
    return GR_OK;
}

void gr_kube_watch_stop(gr_kube_watch *watch)
{
    if (watch == NULL || watch->is_stopped) {
        return;
    }
    hush(watch);
    gr_kube_timer_clear(watch->kube, &watch->pause);
    if (watch->call != NULL) {
        gr_kube_cancel(watch->kube, watch->call);
    }
    watch->is_stopped = true;
    if (!watch->in_event) {
        free_watch(watch);
    }
}
