/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/event.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/time_text.h"
#include "kube/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SECOND_US = 1000000, SIMILAR_MAX = 9, SIMILAR_US = 600 * SECOND_US, BURST = 25 };
enum { NAME_BYTES = 200 };

#define REFILL (1.0 / 300.0) /* events a second of one object, after the burst */

typedef enum known_kind { OF_OBJECT, OF_REASON, OF_EVENT } known_kind;

/* Something known about events, found by a hash of what it is about. */
typedef struct known {
    uint64_t key; /* 0: free */
    int64_t used_us;
    gr_kube_pace pace; /* OF_OBJECT */
    /* OF_REASON: hashes of the messages of the last ten minutes */
    uint64_t messages[SIMILAR_MAX];
    int message_count;
    int64_t last_us;
    int64_t first_us; /* OF_EVENT */
    int count;
    uint64_t number; /* of its name */
} known;

typedef struct waiting_event {
    struct waiting_event *next;
    gr_kube_event_write write;
    json_t *event;
} waiting_event;

/* Objects share a line by the hash of their uid: their events stay in order. */
typedef struct event_line {
    gr_kube_events *events;
    waiting_event *first, **last; /* the first is being sent if there is a call */
    gr_kube_call *call;
} event_line;

struct gr_kube_events {
    gr_kube *kube;
    char *component;
    const gr_log *log;
    known *known;
    event_line lines[GR_KUBE_EVENTS_AT_ONCE];
    int waiting, burst;
    uint64_t number; /* of the last event, in names */
};

gr_status gr_kube_events_create(gr_kube *kube, const gr_kube_events_options *options,
                                gr_kube_events **events_out, gr_diag *diag)
{
    gr_kube_events *events = calloc(1, sizeof *events);
    if (events != NULL) {
        events->kube = kube;
        events->log = options->log;
        events->burst = options->burst > 0 ? options->burst : BURST;
        for (int i = 0; i < GR_KUBE_EVENTS_AT_ONCE; i++) {
            events->lines[i] = (event_line){.events = events, .last = &events->lines[i].first};
        }
        events->component = strdup(options->component);
        events->known = calloc(GR_KUBE_EVENTS_KEPT, sizeof *events->known);
    }
    if (events == NULL || events->component == NULL || events->known == NULL) {
        gr_kube_events_destroy(events);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for events");
    }
    *events_out = events;
    return GR_OK;
}

static void drop_first(event_line *line)
{
    waiting_event *one = line->first;
    line->first = one->next;
    line->last = line->first != NULL ? line->last : &line->first;
    line->events->waiting--;
    json_decref(one->event);
    free(one);
}

void gr_kube_events_destroy(gr_kube_events *events)
{
    if (events == NULL) {
        return;
    }
    for (int i = 0; i < GR_KUBE_EVENTS_AT_ONCE; i++) {
        event_line *line = &events->lines[i];
        if (line->call != NULL) {
            gr_kube_cancel(events->kube, line->call);
        }
        while (line->first != NULL) {
            drop_first(line);
        }
    }
    free(events->component);
    free(events->known);
    free(events);
}

/* ---- What is known ----------------------------------------------------------------------------
 * */
static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The hash of texts that are told apart, never 0. */
static uint64_t hash_of(known_kind kind, const char *const *texts, size_t count)
{
    uint64_t hash = (uint64_t)kind + 1;
    for (size_t i = 0; i < count; i++) {
        hash = gr_hash64(texts[i], strlen(texts[i]) + 1, hash);
    }
    return hash != 0 ? hash : 1;
}

/* What is known under `key`; *new_out: nothing yet, and the oldest thing makes place for it. */
static known *look_up(gr_kube_events *events, uint64_t key, int64_t wall_us, bool *new_out)
{
    known *oldest = &events->known[0];
    for (int i = 0; i < GR_KUBE_EVENTS_KEPT; i++) {
        known *one = &events->known[i];
        if (one->key == key) {
            one->used_us = wall_us;
            *new_out = false;
            return one;
        }
        if (one->key == 0 ? oldest->key != 0 : oldest->key != 0 && one->used_us < oldest->used_us) {
            oldest = one;
        }
    }
    *oldest = (known){.key = key, .used_us = wall_us};
    *new_out = true;
    return oldest;
}

/* Returns true if the reason has come with so many messages that they count as one. */
static bool is_combined(known *reason, uint64_t message, int64_t wall_us)
{
    bool is_known = false;
    if (wall_us - reason->last_us > SIMILAR_US || wall_us < reason->last_us) {
        reason->message_count = 0;
    }
    reason->last_us = wall_us;
    for (int i = 0; i < reason->message_count; i++) {
        is_known = is_known || reason->messages[i] == message;
    }
    if (is_known) {
        return false;
    }
    if (reason->message_count == SIMILAR_MAX) {
        return true;
    }
    reason->messages[reason->message_count++] = message;
    return false;
}

static json_t *make_event(const gr_kube_events *events, const json_t *object, const char *type,
                          const char *reason, const char *message, const known *one,
                          int64_t wall_us)
{
    const json_t *metadata = json_object_get(object, "metadata");
    const char *space = text_at(metadata, "namespace");
    char name[NAME_BYTES + 32], first[GR_TIME_BYTES], last[GR_TIME_BYTES];
    snprintf(name, sizeof name, "%.*s.%016llx", NAME_BYTES, text_at(metadata, "name"),
             (unsigned long long)one->number);
    gr_time_print(one->first_us, false, first);
    gr_time_print(wall_us, false, last);
    return json_pack(
        "{s:s, s:s, s:{s:s, s:s}, s:{s:s, s:s, s:s, s:s, s:s, s:s}, s:s, s:s, s:s, s:i, s:s, s:s, "
        "s:{s:s}, s:s, s:s}",
        "apiVersion", "v1", "kind", "Event", "metadata", "name", name, "namespace",
        space[0] != '\0' ? space : "default", "involvedObject", "apiVersion",
        text_at(object, "apiVersion"), "kind", text_at(object, "kind"), "namespace", space, "name",
        text_at(metadata, "name"), "uid", text_at(metadata, "uid"), "resourceVersion",
        text_at(metadata, "resourceVersion"), "type", type, "reason", reason, "message", message,
        "count", one->count, "firstTimestamp", first, "lastTimestamp", last, "source", "component",
        events->component, "reportingComponent", events->component, "reportingInstance", "");
}

gr_kube_event_write gr_kube_events_next(gr_kube_events *events, const json_t *object,
                                        const char *type, const char *reason, const char *message,
                                        int64_t wall_us, json_t **event_out)
{
    const json_t *metadata = json_object_get(object, "metadata");
    const char *texts[] = {text_at(object, "apiVersion"),
                           text_at(object, "kind"),
                           text_at(metadata, "namespace"),
                           text_at(metadata, "name"),
                           text_at(metadata, "uid"),
                           type,
                           reason,
                           message};
    enum { COMBINED_BYTES_MAX = 1000 };
    char combined[1024 + 64];
    bool is_new;
    *event_out = NULL;
    uint64_t reason_key = hash_of(OF_REASON, texts, 7);
    known *similar = look_up(events, reason_key, wall_us, &is_new);
    bool is_one_of_many = is_combined(similar, gr_hash64(message, strlen(message), 0), wall_us);
    if (is_one_of_many) {
        snprintf(combined, sizeof combined, "(combined from similar events): %.*s",
                 gr_text_fit(message, COMBINED_BYTES_MAX), message);
        message = combined;
        texts[7] = "";
    }
    known *one = look_up(events, hash_of(OF_EVENT, texts, 8), wall_us, &is_new);
    if (is_new) {
        one->first_us = wall_us;
        /* Names differ from those of another process as well. */
        events->number =
            events->number < (uint64_t)wall_us ? (uint64_t)wall_us : events->number + 1;
        one->number = events->number;
    }
    one->count++;
    known event = *one; /* a full table may need its place */
    bool object_is_new;
    known *about = look_up(events, hash_of(OF_OBJECT, texts, 5), wall_us, &object_is_new);
    if (object_is_new) {
        gr_kube_pace_init(&about->pace, REFILL, events->burst, wall_us);
    }
    if (!gr_kube_pace_take(&about->pace, wall_us)) {
        return GR_KUBE_EVENT_DROPPED;
    }
    *event_out = make_event(events, object, type, reason, message, &event, wall_us);
    if (*event_out == NULL) {
        return GR_KUBE_EVENT_DROPPED;
    }
    return is_new ? GR_KUBE_EVENT_CREATE : GR_KUBE_EVENT_PATCH;
}

/* ---- Sending ----------------------------------------------------------------------------------
 * */
static void send_next(event_line *line);

static void end_send(void *arg, const gr_kube_answer *answer)
{
    event_line *line = arg;
    waiting_event *one = line->first;
    line->call = NULL;
    if (answer->http == 404 && one->write == GR_KUBE_EVENT_PATCH) {
        one->write = GR_KUBE_EVENT_CREATE; /* the server keeps events for an hour */
    } else {
        if (answer->status != GR_OK) {
            gr_log_write(line->events->log, GR_LOG_WARN, "kube", "an event is lost: %s",
                         answer->diag->text);
        }
        drop_first(line);
    }
    send_next(line);
}

static void send_next(event_line *line)
{
    while (line->first != NULL && line->call == NULL) {
        gr_diag diag;
        json_t *event = line->first->event;
        const json_t *metadata = json_object_get(event, "metadata");
        bool patches = line->first->write == GR_KUBE_EVENT_PATCH;
        json_t *patch = patches
                            ? json_pack("{s:O, s:O, s:O}", "count", json_object_get(event, "count"),
                                        "message", json_object_get(event, "message"),
                                        "lastTimestamp", json_object_get(event, "lastTimestamp"))
                            : NULL;
        gr_kube_request request = {.verb = patches ? GR_KUBE_MERGE_PATCH : GR_KUBE_CREATE,
                                   .resource = {"", "v1", "events"},
                                   .space = text_at(metadata, "namespace"),
                                   .name = patches ? text_at(metadata, "name") : NULL,
                                   .body = patches ? patch : event,
                                   .done = end_send,
                                   .arg = line};
        if (gr_kube_submit(line->events->kube, &request, &line->call, &diag) != GR_PENDING) {
            line->call = NULL;
            gr_log_write(line->events->log, GR_LOG_WARN, "kube", "an event is lost: %s", diag.text);
            drop_first(line);
        }
        json_decref(patch);
    }
}

int gr_kube_events_waiting(const gr_kube_events *events)
{
    return events->waiting;
}

void gr_kube_events_record(gr_kube_events *events, const json_t *object, const char *type,
                           const char *reason, const char *message)
{
    struct timespec wall;
    json_t *event = NULL;
    clock_gettime(CLOCK_REALTIME, &wall);
    gr_kube_event_write write =
        gr_kube_events_next(events, object, type, reason, message,
                            (int64_t)wall.tv_sec * SECOND_US + wall.tv_nsec / 1000, &event);
    if (write == GR_KUBE_EVENT_DROPPED) {
        return;
    }
    waiting_event *one = events->waiting < GR_KUBE_EVENTS_WAITING ? calloc(1, sizeof *one) : NULL;
    if (one == NULL) {
        gr_log_write(events->log, GR_LOG_WARN, "kube", "an event is lost: too many wait");
        json_decref(event);
        return;
    }
    one->write = write;
    one->event = event;
    const char *uid = text_at(json_object_get(event, "involvedObject"), "uid");
    event_line *line = &events->lines[gr_hash64(uid, strlen(uid), 0) % GR_KUBE_EVENTS_AT_ONCE];
    *line->last = one;
    line->last = &one->next;
    events->waiting++;
    send_next(line);
}
