/* SPDX-License-Identifier: Apache-2.0 */

/* The API client by commands, for tests in other languages: one JSON object a line on stdin, and
 * one a line on stdout for whatever comes of it. It ends with its input.
 *   kube_client KUBECONFIG|- [qps burst silence_ms timeout_ms object_bytes_max] */

#include "base/fail.h"
#include "kube/client.h"
#include "kube/event.h"
#include "kube/lease.h"
#include "kube/watch.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1 << 20, HANDLES_MAX = 4096 };

typedef struct handle { /* what a command with this id has begun */
    int id;
    bool quiet; /* items are counted, not printed */
    long items;
    gr_kube_call *call;
    gr_kube_watch *watch;
    gr_kube_lease *lease;
} handle;

typedef struct client {
    gr_kube *kube;
    gr_kube_events *events;
    int64_t silence_us;
    handle *handles[HANDLES_MAX];
} client;

static const char *text_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static void say(json_t *what)
{
    json_dumpf(what, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    json_decref(what);
}

static void answer(void *arg, const gr_kube_answer *answer)
{
    handle *own = arg;
    own->call = NULL;
    json_t *said = json_pack("{s:i, s:s, s:i, s:s, s:s, s:I}", "id", own->id, "status",
                             gr_status_name(answer->status), "http", answer->http, "reason",
                             answer->reason, "said", answer->diag != NULL ? answer->diag->text : "",
                             "items", (json_int_t)own->items);
    if (answer->object != NULL) {
        json_object_set(said, "object", answer->object);
    }
    say(said);
}

static void item(void *arg, json_t *object)
{
    handle *own = arg;
    own->items = object != NULL ? own->items + 1 : 0;
    if (object == NULL) {
        say(json_pack("{s:i, s:b}", "id", own->id, "restart", 1));
    } else if (!own->quiet) {
        say(json_pack("{s:i, s:O}", "id", own->id, "item", object));
    }
}

static void event(void *arg, const gr_kube_watch_event *event)
{
    static const char *const names[] = {"RESYNC",  "SYNCED",   "ADDED",   "MODIFIED",
                                        "DELETED", "BOOKMARK", "SKIPPED", "TROUBLE"};
    handle *own = arg;
    own->items++;
    if (own->quiet && event->object != NULL && event->kind != GR_KUBE_WATCH_BOOKMARK) {
        return;
    }
    json_t *said =
        json_pack("{s:i, s:s, s:s, s:I}", "id", own->id, "event", names[event->kind], "said",
                  event->diag != NULL ? event->diag->text : "", "items", (json_int_t)own->items);
    if (event->object != NULL) {
        json_object_set(said, "object", event->object);
    }
    say(said);
}

static void refuse(const handle *own, gr_status status, const gr_diag *diag)
{
    say(json_pack("{s:i, s:s, s:s}", "id", own->id, "status", gr_status_name(status), "said",
                  diag->text));
}

static gr_kube_resource resource_of(const json_t *command)
{
    const char *group = text_at(command, "group"), *version = text_at(command, "version");
    return (gr_kube_resource){.group = group != NULL ? group : "",
                              .version = version != NULL ? version : "v1",
                              .plural = text_at(command, "plural")};
}

static void submit(client *all, handle *own, gr_kube_verb verb, const json_t *command)
{
    gr_diag diag = {0};
    gr_kube_request request = {.verb = verb,
                               .resource = resource_of(command),
                               .space = text_at(command, "space"),
                               .name = text_at(command, "name"),
                               .subresource = text_at(command, "subresource"),
                               .body = json_object_get(command, "body"),
                               .label_selector = text_at(command, "labels"),
                               .field_selector = text_at(command, "fields"),
                               .limit = (int)json_integer_value(json_object_get(command, "limit")),
                               .uid = text_at(command, "uid"),
                               .resource_version = text_at(command, "resource_version"),
                               .propagation = text_at(command, "propagation"),
                               .field_manager = text_at(command, "manager"),
                               .force = json_is_true(json_object_get(command, "force")),
                               .item = item,
                               .done = answer,
                               .arg = own};
    gr_status status = gr_kube_submit(all->kube, &request, &own->call, &diag);
    if (status != GR_PENDING) {
        refuse(own, status, &diag);
    }
}

static void start_watch(client *all, handle *own, const json_t *command)
{
    gr_diag diag = {0};
    gr_kube_watch_options options = {.resource = resource_of(command),
                                     .space = text_at(command, "space"),
                                     .label_selector = text_at(command, "labels"),
                                     .silence_us = all->silence_us,
                                     .handler = event,
                                     .arg = own};
    gr_status status = gr_kube_watch_start(all->kube, &options, &own->watch, &diag);
    if (status != GR_OK) {
        refuse(own, status, &diag);
    }
}

static void lease_changed(void *arg, bool leads, const char *leader)
{
    handle *own = arg;
    say(json_pack("{s:i, s:b, s:s}", "id", own->id, "leads", leads, "leader", leader));
}

static void lease_released(void *arg)
{
    handle *own = arg;
    say(json_pack("{s:i, s:b}", "id", own->id, "released", 1));
}

static void start_lease(client *all, handle *own, const json_t *command)
{
    gr_diag diag = {0};
    int64_t duration_us = json_integer_value(json_object_get(command, "seconds")) * 1000000;
    gr_kube_lease_options options = {.space = text_at(command, "space"),
                                     .name = text_at(command, "name"),
                                     .identity = text_at(command, "identity"),
                                     .times = {duration_us, duration_us * 3 / 4, 200000},
                                     .changed = lease_changed,
                                     .arg = own};
    gr_status status = gr_kube_lease_start(all->kube, &options, &own->lease, &diag);
    if (status != GR_OK) {
        refuse(own, status, &diag);
    }
}

static void stop(client *all, handle *own)
{
    if (own->call != NULL) {
        gr_kube_cancel(all->kube, own->call);
    }
    gr_kube_watch_stop(own->watch);
    own->call = NULL;
    own->watch = NULL;
    say(json_pack("{s:i, s:b}", "id", own->id, "stopped", 1));
}

/* getrusage knows the peak of the process from before it became this program, too. */
static void tell_memory(const handle *own)
{
    char line[128];
    long long peak_kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "VmHWM: %lld", &peak_kib);
    }
    if (file != NULL) {
        fclose(file);
    }
    say(json_pack("{s:i, s:I}", "id", own->id, "peak_kib", (json_int_t)peak_kib));
}

static void obey(client *all, const json_t *command)
{
    static const char *const verbs[] = {"get",   "list",  "create", "replace",
                                        "merge", "apply", "delete"};
    const char *what = text_at(command, "do");
    int id = (int)json_integer_value(json_object_get(command, "id"));
    if (what == NULL || id < 0 || id >= HANDLES_MAX) {
        fprintf(stderr, "kube_client: no command, or no id\n");
        exit(2);
    }
    if (all->handles[id] == NULL && (all->handles[id] = calloc(1, sizeof(handle))) == NULL) {
        exit(2);
    }
    handle *own = all->handles[id];
    own->id = id;
    own->quiet = json_is_true(json_object_get(command, "quiet"));
    for (int i = 0; i < (int)(sizeof verbs / sizeof verbs[0]); i++) {
        if (strcmp(what, verbs[i]) == 0) {
            submit(all, own, (gr_kube_verb)i, command);
            return;
        }
    }
    if (strcmp(what, "watch") == 0) {
        start_watch(all, own, command);
    } else if (strcmp(what, "lease") == 0) {
        start_lease(all, own, command);
    } else if (strcmp(what, "release") == 0) {
        gr_kube_lease_stop(own->lease, lease_released, own);
        own->lease = NULL;
    } else if (strcmp(what, "event") == 0) {
        gr_kube_events_record(all->events, json_object_get(command, "body"), "Normal",
                              text_at(command, "reason"), text_at(command, "message"));
    } else if (strcmp(what, "stop") == 0) {
        stop(all, own);
    } else if (strcmp(what, "memory") == 0) {
        tell_memory(own);
    } else {
        fprintf(stderr, "kube_client: no command \"%s\"\n", what);
        exit(2);
    }
}

/* All whole lines; false at the end of the input. */
static bool read_commands(client *all, char *text, size_t *used)
{
    ssize_t got = read(STDIN_FILENO, text + *used, LINE_BYTES - *used);
    if (got <= 0) {
        return false;
    }
    *used += (size_t)got;
    char *line = text, *end;
    while ((end = memchr(line, '\n', *used - (size_t)(line - text))) != NULL) {
        json_t *command = json_loadb(line, (size_t)(end - line), 0, NULL);
        obey(all, command);
        json_decref(command);
        line = end + 1;
    }
    *used -= (size_t)(line - text);
    memmove(text, line, *used);
    return true;
}

int main(int argc, char **argv)
{
    static char text[LINE_BYTES];
    static client all;
    size_t used = 0;
    gr_diag diag = {0};
    gr_kube_access *access = NULL;
    const char *path = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    gr_kube_options options = {.clock = gr_clock_real(),
                               .requests_a_second = argc > 2 ? atof(argv[2]) : 0,
                               .burst = argc > 3 ? atoi(argv[3]) : 0,
                               .timeout_us = argc > 5 ? atoll(argv[5]) * 1000 : 0,
                               .object_bytes_max = argc > 6 ? (size_t)atoll(argv[6]) : 0};
    all.silence_us = argc > 4 ? atoll(argv[4]) * 1000 : 0;
    gr_status status = gr_kube_access_open(&(gr_kube_access_options){.path = path}, &access, &diag);
    options.access = access;
    if (status == GR_OK) {
        status = gr_kube_create(&options, &all.kube, &diag);
    }
    if (status == GR_OK) {
        gr_kube_events_options events = {.component = "test"};
        status = gr_kube_events_create(all.kube, &events, &all.events, &diag);
    }
    if (status != GR_OK) {
        fprintf(stderr, "%s\n", diag.text);
        gr_kube_access_close(access);
        return 2;
    }
    struct pollfd waits[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                             {.fd = gr_kube_fd(all.kube), .events = POLLIN}};
    bool goes_on = true;
    while (goes_on) {
        poll(waits, 2, -1);
        if (waits[0].revents != 0) {
            goes_on = read_commands(&all, text, &used);
        }
        if (waits[1].revents != 0) {
            gr_kube_run(all.kube);
        }
    }
    for (int i = 0; i < HANDLES_MAX; i++) {
        if (all.handles[i] != NULL) {
            gr_kube_watch_stop(all.handles[i]->watch);
            gr_kube_lease_abandon(all.handles[i]->lease);
            free(all.handles[i]);
        }
    }
    gr_kube_events_destroy(all.events);
    gr_kube_destroy(all.kube);
    gr_kube_access_close(access);
    return 0;
}
