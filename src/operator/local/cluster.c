/* SPDX-License-Identifier: Apache-2.0 */

/* All that happens comes as an event of the loop: a word of a pod's process, a signal, a timer.
 * After each, `pump` lets the controller, the batch Jobs and the pods do what there is to do now,
 * until nothing changes any more.
 *
 *   working    until all jobs have ended, or something wants an end
 *   stopping   no more pods are started; those that are left end, each with its time of grace
 *   the end    when no pod is left */

#include "operator/local/cluster.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"
#include "launch/process_tree.h"
#include "launch/signals.h"
#include "operator/local/batch.h"
#include "operator/local/engine.h"
#include "operator/local/file_watch.h"
#include "operator/local/local_pod.h"
#include "operator/object.h"
#include "operator/serve/ssh_key.h"
#include "operator/training.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    KINDS_MAX = 16,
    PODS_MAX = 4096,
    JOBS_AT_ONCE = 16,
    US_PER_S = 1000000,
    CLEAR_MS = 20,
    CLEAR_TRIES = 100,
    FINISH_US = 2000000
};

typedef struct local_cluster {
    const gr_local_config *config;
    gr_local_report *report;
    gr_diag *diag;
    gr_status status; /* of what ended the run early */
    uv_loop_t loop;
    uv_timer_t timer;
    uv_poll_t signals, changes;
    int signal_fd, change_fd; /* change_fd: -1: no file is watched */
    sigset_t signals_before;
    gr_controller *controller;
    gr_store *store;
    gr_local_pods shared;
    gr_local_pod *pods[PODS_MAX];
    size_t pod_count;
    char root[PATH_MAX], hosts[PATH_MAX + 16], exec[PATH_MAX + 16], program[PATH_MAX + 16];
    const gr_operator_kind *kinds[KINDS_MAX + 1]; /* of the jobs; ends with NULL */
    json_t *jobs;                                 /* their last states, by uid */
    int64_t began_s, over_us;                     /* over_us: when all jobs had ended; 0: not yet */
    bool is_changed;                              /* the store, since the controller has looked */
    bool is_stale;                                /* a ConfigMap or a Secret has changed */
    bool is_pumping, is_stopping, has_told_title;
    bool is_one_needed; /* a pod was not told to end yet, for others need it */
} local_cluster;

static void pump(local_cluster *c);

void gr_local_report_fini(gr_local_report *report)
{
    json_decref(report->jobs);
    json_decref(report->pods);
    *report = (gr_local_report){0};
}

/* ---- What is told ---------------------------------------------------------------------------- */
static void print_line(const local_cluster *c, const char *text)
{
    gr_sink *sink = c->shared.sinks[1];
    if (sink != NULL) {
        gr_sink_put(sink, text, strlen(text));
        gr_sink_flush(sink);
    }
}

static void note(void *pods_arg, const char *sentence)
{
    char line[1200];
    snprintf(line, sizeof line, "gradus: %.1100s\n", sentence);
    print_line(pods_arg, line);
}

static int64_t wall_s(void)
{
    return (int64_t)time(NULL);
}

/* A line of `kubectl get events`. */
static void print_event(void *pods_arg, const char *type, const char *reason, const char *kind,
                        const char *name, const char *message)
{
    local_cluster *c = pods_arg;
    char line[GR_EVENT_BYTES + 800], age[32], object[400];
    if (!c->has_told_title) {
        c->has_told_title = true;
        print_line(
            c, "AGE   TYPE      REASON                    OBJECT                        MESSAGE\n");
    }
    snprintf(age, sizeof age, "%llds", (long long)(wall_s() - c->began_s));
    snprintf(object, sizeof object, "%.60s/%.253s", kind, name);
    for (char *at = object; *at != '\0' && *at != '/'; at++) {
        *at = *at >= 'A' && *at <= 'Z' ? (char)(*at - 'A' + 'a') : *at;
    }
    snprintf(line, sizeof line, "%-5s %-9s %-25s %-29s %s\n", age, type, reason, object, message);
    print_line(c, line);
}

static const char *text_of(const json_t *object, const char *path)
{
    const char *text = gr_object_text(object, path);
    return text != NULL ? text : "";
}

static void print_event_of(local_cluster *c, const json_t *event)
{
    print_event(c, text_of(event, "type"), text_of(event, "reason"),
                text_of(event, "involvedObject.kind"), text_of(event, "involvedObject.name"),
                text_of(event, "message"));
}

/* ---- The store ------------------------------------------------------------------------------- */
static void stop(local_cluster *c, gr_status status)
{
    c->status = c->status == GR_OK ? status : c->status;
    c->is_stopping = true;
}

/* A gr_store_changed. */
static void store_changed(void *changed_arg, const json_t *object, bool is_there)
{
    local_cluster *c = changed_arg;
    size_t resource =
        gr_operator_resource_find(text_of(object, "apiVersion"), text_of(object, "kind"));
    c->is_changed = true;
    c->is_stale |= gr_object_is(object, "v1", "ConfigMap") || gr_object_is(object, "v1", "Secret");
    if (resource == gr_operator_resource_count) {
        return;
    }
    if (gr_operator_resources[resource].is_job &&
        json_object_set(c->jobs, text_of(object, "metadata.uid"), (json_t *)(uintptr_t)object) !=
            0) {
        stop(c, GR_E_NO_MEMORY);
    }
    if (gr_controller_uses(c->controller, resource)) {
        gr_status status = is_there ? gr_controller_seen(c->controller, resource, object, false)
                                    : gr_controller_gone(c->controller, resource, object);
        if (status != GR_OK) {
            stop(c, gr_fail(c->diag, status, "no memory for the objects of the jobs"));
        }
    }
}

/* All that there is of a resource. */
static gr_status list(local_cluster *c, size_t resource)
{
    const gr_operator_resource *row = &gr_operator_resources[resource];
    size_t i;
    const json_t *object;
    gr_status status = GR_OK;
    gr_controller_begin_list(c->controller, resource);
    json_array_foreach(gr_store_objects(c->store), i, object)
    {
        if (status == GR_OK && gr_object_is(object, row->api_version, row->kind)) {
            status = gr_controller_seen(c->controller, resource, object, true);
        }
    }
    return status == GR_OK ? gr_controller_end_list(c->controller, resource, NULL) : status;
}

/* ---- The controller -------------------------------------------------------------------------- */
static gr_controller_time now(void)
{
    return (gr_controller_time){.monotonic_us = gr_now_ns() / 1000, .wall_s = wall_s()};
}

static gr_status carry_out(local_cluster *c, const gr_controller_action *action)
{
    if (strcmp(action->verb, "event") == 0) {
        print_event_of(c, action->object);
        return GR_OK;
    }
    if (strcmp(action->verb, "list") == 0) {
        return list(c, action->resource);
    }
    const json_t *object;
    gr_api_answer answer = gr_store_ask(c->store, action->verb, action->object, &object);
    gr_controller_time time = now();
    return gr_controller_answer(c->controller, action->job, action->write, &time, answer, object);
}

/* Until it waits. *wake_us_out: for how long at most. */
static gr_status run_controller(local_cluster *c, int64_t *wake_us_out)
{
    for (;;) {
        gr_controller_action action;
        gr_controller_time time = now();
        gr_status status = gr_controller_next(c->controller, &time, &action, c->diag);
        if (status != GR_OK || action.has_failed) { /* the memory is that of this command alone */
            return status != GR_OK ? status : GR_E_NO_MEMORY;
        }
        if (action.verb != NULL) {
            status = carry_out(c, &action);
            if (status != GR_OK) {
                return status;
            }
        } else if (action.wake_us > time.monotonic_us) {
            *wake_us_out = action.wake_us;
            return GR_OK;
        }
    }
}

/* ---- Pods ------------------------------------------------------------------------------------ */
static gr_local_pod *find_pod(const local_cluster *c, const char *uid)
{
    for (size_t i = 0; i < c->pod_count; i++) {
        if (strcmp(gr_local_pod_uid(c->pods[i]), uid) == 0) {
            return c->pods[i];
        }
    }
    return NULL;
}

static bool has_ended(const json_t *pod)
{
    const char *phase = text_of(pod, "status.phase");
    return strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0;
}

/* What the first pod makes true is told with it. */
static void print_way(local_cluster *c, const json_t *pod)
{
    char sentence[600];
    const json_t *container = json_array_get(gr_object_at(pod, "spec.containers"), 0);
    const char *image = gr_object_text(container, "image");
    if (c->config->engine != NULL) {
        snprintf(sentence, sizeof sentence,
                 "containers are run by %s, on the network of this host and without their limits; "
                 "with --containers no they are processes of this host",
                 c->config->engine);
    } else {
        snprintf(sentence, sizeof sentence,
                 "containers are processes of this host: images (%.200s), limits and security "
                 "contexts are not used",
                 image != NULL ? image : "none");
    }
    note(c, sentence);
}

static void start_pod(local_cluster *c, const json_t *pod)
{
    gr_local_pod *started = NULL;
    if (c->shared.started == 0) {
        print_way(c, pod);
    }
    gr_status status =
        c->pod_count < PODS_MAX
            ? gr_local_pod_start(&c->shared, pod, &started, c->diag)
            : gr_fail(c->diag, GR_E_INVALID, "more than %d pods at a time", PODS_MAX);
    if (started != NULL) {
        c->pods[c->pod_count++] = started;
    }
    if (status != GR_OK) {
        stop(c, status);
    }
}

/* Starts what is new, and ends what is to go. */
static void keep_pods(local_cluster *c)
{
    json_t *pods = gr_store_list(c->store, "v1", "Pod"), *pod;
    size_t i;
    json_array_foreach(pods, i, pod)
    {
        if (c->is_stopping) {
            break;
        }
        gr_status status = gr_names_publish(c->shared.names, c->store, pod, c->diag);
        if (status != GR_OK) {
            stop(c, status);
        }
    }
    json_array_foreach(pods, i, pod)
    {
        bool is_deleted = gr_object_text(pod, "metadata.deletionTimestamp") != NULL;
        gr_local_pod *running = find_pod(c, text_of(pod, "metadata.uid"));
        if (is_deleted && running != NULL && gr_local_pod_pid(running) > 0) {
            gr_local_pod_end(running, gr_local_pod_grace_s(running));
        } else if (is_deleted) {
            gr_store_remove(c->store, pod);
        } else if (running == NULL && !has_ended(pod) && !c->is_stopping) {
            start_pod(c, pod);
        }
    }
    json_decref(pods);
    for (i = 0; i < c->pod_count && c->is_stale; i++) {
        gr_local_pod_refresh(c->pods[i]);
    }
    c->is_stale = false;
}

/* What the process of a pod has left behind is ours now, when that is killed. */
static void end_orphans(local_cluster *c)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    pid_t pods[PODS_MAX];
    int count = 0;
    for (size_t i = 0; i < c->pod_count; i++) {
        pods[count] = gr_local_pod_pid(c->pods[i]);
        count += pods[count] > 0;
    }
    for (int i = 0; i < CLEAR_TRIES && gr_process_tree_clear(pods, count) > 0; i++) {
        (void)nanosleep(&pause, NULL);
    }
    c->shared.has_orphans = false;
}

static void bury_pods(local_cluster *c)
{
    for (size_t i = 0; i < c->pod_count;) {
        if (gr_local_pod_is_gone(c->pods[i])) {
            gr_local_pod_destroy(c->pods[i]);
            c->pods[i] = c->pods[--c->pod_count];
        } else {
            i++;
        }
    }
}

/* ---- The end of jobs ------------------------------------------------------------------------- */
/* Returns true if nothing is left to wait for. */
static bool is_over(local_cluster *c)
{
    const char *uid;
    json_t *job;
    bool waits = false;
    json_object_foreach(c->jobs, uid, job)
    {
        const json_t *conditions = gr_object_at(job, "status.conditions");
        bool is_gone = gr_store_find(c->store, text_of(job, "apiVersion"), text_of(job, "kind"),
                                     text_of(job, "metadata.namespace"),
                                     text_of(job, "metadata.name")) == NULL;
        bool is_suspended = gr_object_holds(conditions, "Suspended");
        if (!is_gone && !gr_object_holds(conditions, "Succeeded") &&
            !gr_object_holds(conditions, "Failed")) {
            if (!is_suspended || c->config->watched != NULL) {
                return false;
            }
            waits = true;
        }
    }
    c->report->is_suspended = waits;
    return true;
}

static void keep_report(local_cluster *c)
{
    const char *uid;
    json_t *job;
    if (c->report->pods != NULL) {
        return;
    }
    c->report->pods = gr_store_list(c->store, "v1", "Pod");
    c->report->jobs = json_array();
    json_object_foreach(c->jobs, uid, job)
    {
        (void)json_array_append(c->report->jobs, job);
    }
}

/* A worker that ends by itself may: its job can be over before it, with that of its master. What
 * serves others, as parameter servers and the workers of mpirun do, never does. */
static bool is_finishing(const local_cluster *c)
{
    size_t i;
    const json_t *pod;
    json_array_foreach(gr_store_objects(c->store), i, pod)
    {
        const json_t *owner = json_array_get(gr_object_at(pod, "metadata.ownerReferences"), 0);
        const char *role = gr_training_role_of(pod);
        if (gr_object_is(pod, "v1", "Pod") && gr_object_is_text(pod, "status.phase", "Running") &&
            role != NULL && strcmp(role, "ps") != 0 &&
            gr_object_text(pod, "metadata.deletionTimestamp") == NULL &&
            !gr_object_is_text(owner, "kind", "MPIJob")) {
            return true;
        }
    }
    return false;
}

/* Returns true if the pod must go on until another one has ended. */
static bool is_needed_by_another(const local_cluster *c, const gr_local_pod *pod)
{
    for (size_t i = 0; i < c->pod_count; i++) {
        if (gr_local_pod_pid(c->pods[i]) > 0 && gr_local_pod_outlives(pod, c->pods[i])) {
            return true;
        }
    }
    return false;
}

/* What is left of the pods is told to end, in its order. */
static void end_pods(local_cluster *c, bool at_once)
{
    keep_report(c);
    c->is_one_needed = false;
    for (size_t i = 0; i < c->pod_count; i++) {
        if (!at_once && is_needed_by_another(c, c->pods[i])) {
            c->is_one_needed = true;
        } else {
            gr_local_pod_end(c->pods[i], at_once ? 0 : gr_local_pod_grace_s(c->pods[i]));
        }
    }
}

static void wake(uv_timer_t *timer)
{
    pump(timer->data);
}

static void wait_until(local_cluster *c, int64_t wake_us, int64_t again_s)
{
    int64_t in_us = wake_us == GR_NEVER ? GR_NEVER : wake_us - gr_now_ns() / 1000;
    if (again_s != INT64_MAX) {
        in_us = gr_earlier_us(in_us, (again_s - wall_s()) * US_PER_S);
    }
    if (in_us == GR_NEVER) {
        uv_timer_stop(&c->timer);
    } else {
        uv_timer_start(&c->timer, wake, in_us > 0 ? (uint64_t)in_us / 1000 + 1 : 0, 0);
    }
}

/* Does all that can be done now. */
static void work(local_cluster *c)
{
    int64_t wake_us = GR_NEVER, again_s = INT64_MAX;
    do {
        c->is_changed = false;
        gr_store_set_time(c->store, wall_s());
        gr_status status = run_controller(c, &wake_us);
        if (status != GR_OK) {
            stop(c, status);
            return;
        }
        gr_batch_look(c->store, wall_s(), &again_s);
        if (!c->is_changed) {
            keep_pods(c);
        }
        if (gr_store_no_memory(c->store)) {
            stop(c, gr_fail(c->diag, GR_E_NO_MEMORY, "no memory for the objects of the jobs"));
        }
    } while (c->is_changed && !c->is_stopping);
    if (is_over(c)) {
        int64_t now_us = gr_now_ns() / 1000;
        c->over_us = c->over_us != 0 ? c->over_us : now_us;
        if (!is_finishing(c) || now_us >= c->over_us + FINISH_US) {
            stop(c, GR_OK);
        }
        wake_us = gr_earlier_us(wake_us, c->over_us + FINISH_US);
    }
    wait_until(c, wake_us, again_s);
}

static void pump(local_cluster *c)
{
    if (c->is_pumping) {
        return;
    }
    c->is_pumping = true;
    gr_store_set_time(c->store, wall_s());
    if (c->shared.has_orphans) {
        end_orphans(c);
    }
    if (!c->is_stopping) {
        work(c);
    }
    if (c->is_stopping && (c->report->pods == NULL || c->is_one_needed)) {
        end_pods(c, false);
    }
    bury_pods(c);
    if (c->is_stopping && c->pod_count == 0) {
        uv_stop(&c->loop);
    } else if (c->is_stopping) { /* a pod whose handles close tells nothing more */
        uv_timer_start(&c->timer, wake, CLEAR_MS, 0);
    }
    c->is_pumping = false;
}

/* Of gr_local_pods. */
static void pods_changed(void *pods_arg)
{
    local_cluster *c = pods_arg;
    uv_timer_start(&c->timer, wake, 0, 0); /* not inside a call of the pod's */
}

/* ---- Signals and output ---------------------------------------------------------------------- */
static void take_output(local_cluster *c)
{
    for (size_t i = 0; i < c->pod_count; i++) {
        gr_local_pod_go_on(c->pods[i]);
    }
}

/* What our reader does not take is not waited for any more. */
static void drop_output(local_cluster *c)
{
    for (int i = 0; i < 2; i++) {
        gr_sink *sink = c->shared.sinks[i];
        if (sink != NULL && !gr_sink_is_empty(sink)) {
            gr_sink_close(sink);
            c->shared.sinks[i] = NULL;
            c->report->is_cut = true;
        }
    }
    take_output(c);
}

static bool runs_any_pod(const local_cluster *c)
{
    bool any = false;
    for (size_t i = 0; i < c->pod_count; i++) {
        any |= gr_local_pod_pid(c->pods[i]) > 0;
    }
    return any;
}

static void on_signal(uv_poll_t *handle, int status, int events)
{
    (void)status;
    (void)events;
    local_cluster *c = handle->data;
    int number = gr_signals_take(c->signal_fd);
    if (number == 0) {
        return;
    }
    bool again = c->is_stopping, is_needed = runs_any_pod(c);
    if (!again && is_needed) {
        char line[100];
        snprintf(line, sizeof line, "%s: the pods end; once more, and they are killed",
                 gr_signals_name(number));
        note(c, line);
    }
    c->report->signal_number = c->report->signal_number != 0 ? c->report->signal_number : number;
    c->is_stopping = true;
    end_pods(c, again);
    if (again || !is_needed) {
        drop_output(c);
    }
    pump(c);
}

static void drained(void *event_arg)
{
    take_output(event_arg);
}

static void lost(void *event_arg)
{
    local_cluster *c = event_arg;
    if (!c->is_stopping) {
        stop(c, gr_fail(c->diag, GR_E_IO, "nobody reads the output any more: the pods end"));
        end_pods(c, false);
    }
}

/* ---- The file that is watched ---------------------------------------------------------------- */
/* The object as the file has it, but for what the cluster says of it. NULL: no memory. */
static json_t *merge(const json_t *there, const json_t *object)
{
    json_t *next = json_deep_copy(object), *value;
    static const char *const kept[] = {"metadata", "status"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0] && next != NULL; i++) {
        value = json_object_get(there, kept[i]);
        if (value == NULL) {
            (void)json_object_del(next, kept[i]);
        } else if (json_object_set_new(next, kept[i], json_deep_copy(value)) != 0) {
            json_decref(next);
            next = NULL;
        }
    }
    return next;
}

static void apply(local_cluster *c, const json_t *object)
{
    const char *kind = text_of(object, "kind"), *name = text_of(object, "metadata.name");
    const json_t *answer, *there = gr_store_find(c->store, text_of(object, "apiVersion"), kind,
                                                 text_of(object, "metadata.namespace"), name);
    char sentence[600];
    if (there == NULL) {
        snprintf(sentence, sizeof sentence,
                 "%.60s \"%.253s\" was not there when this run began, or has ended: it is left "
                 "alone; start another run for it",
                 kind, name);
        note(c, sentence);
        return;
    }
    json_t *next = merge(there, object);
    if (next == NULL) {
        stop(c, gr_fail(c->diag, GR_E_NO_MEMORY, "no memory for the objects of the jobs"));
    } else if (!json_equal(next, there) &&
               gr_store_ask(c->store, "update", next, &answer) == GR_API_OK) {
        snprintf(sentence, sizeof sentence, "%.60s \"%.253s\" is changed", kind, name);
        note(c, sentence);
    }
    json_decref(next);
}

static void on_change(uv_poll_t *handle, int status, int events)
{
    (void)status;
    (void)events;
    local_cluster *c = handle->data;
    gr_diag diag = {0};
    size_t i;
    const json_t *object;
    if (!gr_file_watch_take(c->change_fd, c->config->watched) || c->is_stopping) {
        return;
    }
    json_t *objects = json_array();
    gr_store_set_time(c->store, wall_s());
    if (objects == NULL || c->config->read(c->config->read_arg, objects, &diag) != GR_OK) {
        char sentence[GR_DIAG_TEXT_BYTES + 100];
        snprintf(sentence, sizeof sentence, "%s; the jobs go on as they were", diag.text);
        note(c, sentence);
    }
    json_array_foreach(objects, i, object)
    {
        if (diag.text[0] == '\0') {
            apply(c, object);
        }
    }
    json_decref(objects);
    pump(c);
}

static gr_status watch_file(local_cluster *c)
{
    const char *path = c->config->watched;
    if (path == NULL) {
        return GR_OK;
    }
    c->change_fd = gr_file_watch_open(path);
    int error = c->change_fd < 0 ? uv_translate_sys_error(errno)
                                 : uv_poll_init(&c->loop, &c->changes, c->change_fd);
    c->changes.data = c;
    error = error == 0 ? uv_poll_start(&c->changes, UV_READABLE, on_change) : error;
    return error == 0
               ? GR_OK
               : gr_fail(c->diag, GR_E_IO, "%s cannot be watched: %s", path, uv_strerror(error));
}

/* ---- Begin and end --------------------------------------------------------------------------- */
static gr_status no_memory(local_cluster *c)
{
    return gr_fail(c->diag, GR_E_NO_MEMORY, "no memory for a cluster");
}

/* A new ssh key is not needed: commands come to pods by another way (exec.h). */
static json_t *no_key(void *ssh_key_arg)
{
    (void)ssh_key_arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "", "ssh-publickey", "");
}

static gr_status make_root(local_cluster *c)
{
    const char *base = getenv("TMPDIR");
    char real[PATH_MAX];
    snprintf(c->root, sizeof c->root, "%.4000s/gradus-run-XXXXXX",
             base != NULL && base[0] == '/' ? base : "/tmp");
    if (mkdtemp(c->root) == NULL) {
        c->root[0] = '\0';
        return gr_fail_errno(c->diag, "create", "a folder for the run", errno);
    }
    if (realpath(c->root, real) != NULL) {
        memcpy(c->root, real, sizeof c->root);
    }
    snprintf(c->hosts, sizeof c->hosts, "%s/hosts", c->root);
    snprintf(c->exec, sizeof c->exec, "%s/exec", c->root);
    snprintf(c->program, sizeof c->program, "%s/gradus", c->root);
    if (mkdir(c->exec, 0711) != 0 || (c->config->engine != NULL && mkdir(c->program, 0755) != 0)) {
        return gr_fail_errno(c->diag, "create", c->exec, errno);
    }
    gr_status status = c->config->engine != NULL ? c->config->install(c->program, c->diag) : GR_OK;
    return status == GR_OK ? gr_names_create(c->hosts, "cluster.local", &c->shared.names, c->diag)
                           : status;
}

/* Those of the jobs that there are. A controller serves one version of a kind. */
static gr_status choose_kinds(local_cluster *c)
{
    size_t i, count = 0;
    const json_t *object;
    json_array_foreach(c->config->objects, i, object)
    {
        const gr_operator_kind *kind = gr_operator_find_kind(
            gr_operator_kinds, text_of(object, "apiVersion"), text_of(object, "kind"));
        bool is_new = kind != NULL;
        for (size_t k = 0; k < count && kind != NULL; k++) {
            is_new &= c->kinds[k] != kind;
            if (c->kinds[k] != kind && strcmp(c->kinds[k]->kind, kind->kind) == 0) {
                return gr_fail(c->diag, GR_E_INVALID,
                               "one run has %ss of one apiVersion; put those of %s and %s into two "
                               "files",
                               kind->kind, c->kinds[k]->api_version, kind->api_version);
            }
        }
        if (is_new && count < KINDS_MAX) {
            c->kinds[count++] = kind;
        }
    }
    return GR_OK;
}

static gr_status make_objects(local_cluster *c)
{
    const gr_controller_config config = {.kinds = c->kinds,
                                         .cluster_domain = "",
                                         .gang_scheduler = "",
                                         .ssh_key = no_key,
                                         .token = gr_job_token_make,
                                         .has_no_agents = true,
                                         .jobs_at_once = JOBS_AT_ONCE};
    gr_status status = choose_kinds(c);
    if (status == GR_OK) {
        status = gr_controller_create(&config, &c->controller, c->diag);
    }
    c->jobs = json_object();
    c->store = gr_store_create(store_changed, c);
    if (status != GR_OK || c->jobs == NULL || c->store == NULL) {
        return status != GR_OK ? status : no_memory(c);
    }
    gr_store_set_time(c->store, c->began_s);
    for (size_t i = 0; i < gr_operator_resource_count && status == GR_OK; i++) {
        status = gr_controller_uses(c->controller, i) ? list(c, i) : GR_OK;
    }
    size_t i;
    const json_t *object, *answer;
    json_array_foreach(c->config->objects, i, object)
    {
        if (status == GR_OK && gr_store_ask(c->store, "create", object, &answer) != GR_API_OK) {
            status = gr_fail(c->diag, GR_E_INVALID, "%s \"%s\" stands twice in the manifest",
                             text_of(object, "kind"), text_of(object, "metadata.name"));
        }
    }
    gr_controller_lead(c->controller, true);
    return status;
}

static gr_status open_output(local_cluster *c)
{
    gr_status status = GR_OK;
    for (int i = 0; i < 2 && status == GR_OK; i++) {
        int fd = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        c->shared.colors[i] = isatty(fd) == 1 && getenv("NO_COLOR") == NULL;
        status = gr_sink_open(&c->loop, fd, drained, lost, c, &c->shared.sinks[i], c->diag);
    }
    return status;
}

static gr_status open_loop(local_cluster *c)
{
    int error = uv_timer_init(&c->loop, &c->timer);
    gr_signals_hold(&c->signals_before);
    c->signal_fd = gr_signals_open();
    error = error == 0 ? uv_poll_init(&c->loop, &c->signals, c->signal_fd) : error;
    error = error == 0 ? uv_poll_start(&c->signals, UV_READABLE, on_signal) : error;
    c->timer.data = c->signals.data = c;
    return error == 0 ? GR_OK
                      : gr_fail(c->diag, GR_E_IO, "no loop of events: %s", uv_strerror(error));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    (void)remove(path);
    return 0;
}

static bool is_written(const gr_sink *sink)
{
    return sink == NULL || sink->broken || gr_sink_is_empty(sink);
}

static void close_handle(uv_handle_t *handle, void *walk_arg)
{
    (void)walk_arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

/* When nobody reads, all is written, or a signal has come. */
static void close_loop(local_cluster *c)
{
    while (!is_written(c->shared.sinks[0]) || !is_written(c->shared.sinks[1])) {
        (void)uv_run(&c->loop, UV_RUN_ONCE);
    }
    for (int i = 0; i < 2; i++) {
        if (c->shared.sinks[i] != NULL) {
            gr_sink_close(c->shared.sinks[i]);
        }
        c->shared.sinks[i] = NULL;
    }
    uv_walk(&c->loop, close_handle, NULL);
    (void)uv_run(&c->loop, UV_RUN_DEFAULT);
    close(c->signal_fd);
    if (c->change_fd >= 0) {
        close(c->change_fd);
    }
    (void)uv_loop_close(&c->loop);
}

static void fini(local_cluster *c)
{
    gr_controller_destroy(c->controller);
    gr_store_destroy(c->store);
    gr_names_destroy(c->shared.names);
    json_decref(c->jobs);
    if (c->root[0] != '\0') {
        (void)nftw(c->root, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    }
    free(c);
}

gr_status gr_local_run(const gr_local_config *config, gr_local_report *report_out, gr_diag *diag)
{
    local_cluster *c = calloc(1, sizeof *c);
    *report_out = (gr_local_report){0};
    int error = c != NULL ? uv_loop_init(&c->loop) : UV_ENOMEM;
    if (error != 0) {
        free(c);
        return gr_fail(diag, GR_E_IO, "no loop of events: %s", uv_strerror(error));
    }
    c->config = config;
    c->change_fd = -1;
    c->report = report_out;
    c->diag = diag;
    c->began_s = wall_s();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)gr_process_tree_adopt();
    if (config->engine == NULL) {
        gr_room_prepare();
    }
    gr_status status = open_loop(c);
    if (status == GR_OK) {
        status = open_output(c);
    }
    if (status == GR_OK) {
        status = watch_file(c);
    }
    if (status == GR_OK) {
        status = make_root(c);
    }
    if (status == GR_OK) {
        status = make_objects(c);
    }
    c->shared.loop = &c->loop;
    c->shared.store = c->store;
    c->shared.root = c->root;
    c->shared.hosts = c->hosts;
    c->shared.exec = c->exec;
    c->shared.program = config->program;
    c->shared.engine = config->engine;
    c->shared.program_folder = c->program;
    c->shared.environment = config->environment;
    c->shared.timestamps = config->timestamps;
    c->shared.changed = pods_changed;
    c->shared.note = note;
    c->shared.event = print_event;
    c->shared.pods_arg = c;
    if (status == GR_OK) {
        pump(c);
        (void)uv_run(&c->loop, UV_RUN_DEFAULT);
        status = c->status;
    }
    gr_process_tree_end(0);
    if (config->engine != NULL && c->root[0] != '\0') {
        gr_engine_clear(config->engine, strrchr(c->root, '/') + 1, config->environment);
    }
    close_loop(c);
    const sigset_t before = c->signals_before;
    fini(c);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
