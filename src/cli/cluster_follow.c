/* SPDX-License-Identifier: Apache-2.0 */

/* A job of a cluster until its end: what its pods write, what goes wrong, how it ends.
 *
 *   job and pods are watched ──the job has ended──► its pods are listed once more, and their logs
 *                                                   read to the end, for a while
 */

#include "base/fail.h"
#include "cli/cluster.h"
#include "kube/log.h"
#include "kube/watch.h"
#include "launch/lines.h"
#include "launch/signals.h"
#include "operator/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    SECOND_US = 1000000,
    RUNNING_US = 5 * SECOND_US, /* after the job's end, for pods that still run */
    READING_US = 30 * SECOND_US /* for those that have ended */
};

typedef struct follower follower;

typedef struct followed { /* a pod */
    follower *of;
    char *name, *uid;
    char role[GR_CLUSTER_ROLE_BYTES];
    char reason[GR_CLUSTER_ROLE_BYTES]; /* that was told last */
    int order;
    int64_t restarts;
    bool is_over, is_read; /* its container has ended for good; all of it is read */
    gr_kube_log *log;
    gr_lines lines;
} followed;

struct follower {
    gr_cluster_client *cluster;
    gr_cluster_job *job;
    const gr_follow_options *options;
    followed **pods;
    size_t count, room;
    gr_kube_watch *job_watch, *pod_watch, *event_watch;
    json_t *told;  /* sentences about events */
    bool was_seen; /* the job, in the list that goes on */
    bool is_gone, has_ended, has_failed;
    bool no_memory;
    int error;                        /* errno of stdout */
    char trouble[GR_DIAG_TEXT_BYTES]; /* that was told last, of watches */
    gr_diag fatal;
    gr_kube_timer timer;
    int64_t ended_us;
};

static void print_line(const char *text)
{
    fflush(stdout);
    fprintf(stderr, "gradus: %s\n", text);
}

/* ---- Output ---------------------------------------------------------------------------------- */

static size_t write_prefix(void *arg, char *text_out)
{
    const followed *pod = arg;
    return (size_t)snprintf(text_out, GR_LINES_PREFIX_BYTES, "[%.50s] ", pod->role);
}

static void put_line(void *arg, const char *text, size_t size_bytes)
{
    const followed *pod = arg;
    if (pod->of->error == 0 && fwrite(text, 1, size_bytes, stdout) != size_bytes) {
        pod->of->error = errno != 0 ? errno : EIO;
    }
}

static void take_text(void *arg, const char *bytes, size_t size_bytes)
{
    followed *pod = arg;
    gr_lines_feed(&pod->lines, bytes, size_bytes);
}

static void end_log(void *arg)
{
    followed *pod = arg;
    gr_lines_end(&pod->lines);
    pod->is_read = true;
}

static void print_log(void *arg, const gr_diag *diag)
{
    followed *pod = arg;
    print_line(diag->text);
    if (pod->of->options->once) {
        pod->of->has_failed = true;
        pod->is_read = true;
    }
}

/* ---- Pods ------------------------------------------------------------------------------------ */

/* A pod that is made anew may have the name of the former one. */
static followed *find_pod(follower *all, const char *uid)
{
    for (size_t i = 0; i < all->count; i++) {
        if (strcmp(all->pods[i]->uid, uid) == 0) {
            return all->pods[i];
        }
    }
    return NULL;
}

/* NULL: no memory. */
static followed *add_pod(follower *all, const char *name, const char *uid)
{
    if (all->count == all->room) {
        size_t room = all->room > 0 ? 2 * all->room : 16;
        followed **pods = realloc(all->pods, room * sizeof(followed *));
        if (pods == NULL) {
            return NULL;
        }
        all->pods = pods;
        all->room = room;
    }
    followed *pod = calloc(1, sizeof *pod);
    if (pod == NULL || (pod->name = strdup(name)) == NULL || (pod->uid = strdup(uid)) == NULL) {
        free(pod != NULL ? pod->name : NULL);
        free(pod);
        return NULL;
    }
    pod->of = all;
    gr_lines_init(&pod->lines, write_prefix, pod, put_line, pod);
    all->pods[all->count++] = pod;
    return pod;
}

static void print_pod(const follower *all, followed *pod, const json_t *object)
{
    char reason[GR_CLUSTER_ROLE_BYTES], sentence[GR_CLUSTER_SENTENCE_BYTES];
    bool is_told_to_go = gr_object_text(object, "metadata.deletionTimestamp") != NULL;
    if (is_told_to_go || !gr_cluster_trouble(all->job, object, reason, sentence)) {
        return;
    }
    if (strcmp(reason, pod->reason) != 0) {
        memcpy(pod->reason, reason, sizeof reason);
        print_line(sentence);
    }
}

/* Returns true if the container has ended for good. One that failed may be started again. */
static bool is_over(const json_t *pod, const json_t *status)
{
    const char *phase = gr_object_text(pod, "status.phase");
    bool has_ended = gr_object_at(status, "state.terminated") != NULL;
    return (has_ended && gr_object_is_text(pod, "spec.restartPolicy", "Never")) ||
           (phase != NULL && (strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0));
}

static void start_log(follower *all, followed *pod, const char *container)
{
    gr_diag diag;
    gr_kube_log_options options = {.space = all->cluster->space,
                                   .pod = pod->name,
                                   .container = container,
                                   .text = take_text,
                                   .ended = end_log,
                                   .trouble = print_log,
                                   .arg = pod};
    if (gr_kube_log_start(all->cluster->kube, &options, &pod->log, &diag) != GR_OK) {
        all->no_memory = true;
    } else if (all->options->once) {
        gr_kube_log_finish(pod->log);
    }
}

static void follow_log(follower *all, followed *pod, const json_t *object)
{
    const json_t *status = NULL;
    const char *container = gr_cluster_container(all->job, object, &status);
    int64_t restarts = gr_object_int(status, "restartCount", 0);
    bool has_begun = gr_object_at(status, "state.running") != NULL ||
                     gr_object_at(status, "state.terminated") != NULL ||
                     gr_object_at(status, "lastState.terminated") != NULL;
    if (container == NULL || !has_begun || !all->options->logs) {
        return;
    }
    if (pod->log == NULL) {
        start_log(all, pod, container);
        if (pod->log != NULL && restarts > 0 && !all->options->once) { /* before we came */
            gr_kube_log_restarted(pod->log);
        }
    } else if (restarts > pod->restarts) {
        gr_kube_log_restarted(pod->log);
    }
    pod->restarts = restarts;
    if (pod->log != NULL && is_over(object, status)) {
        pod->is_over = true;
        gr_kube_log_finish(pod->log);
    }
}

static followed *take_pod(follower *all, const json_t *object)
{
    const char *name = gr_object_text(object, "metadata.name");
    const char *uid = gr_object_text(object, "metadata.uid");
    if (name == NULL || uid == NULL) {
        return NULL;
    }
    followed *pod = find_pod(all, uid);
    pod = pod != NULL ? pod : add_pod(all, name, uid);
    if (pod == NULL) {
        all->no_memory = true;
        return NULL;
    }
    gr_cluster_role(all->job, object, pod->role, &pod->order);
    print_pod(all, pod, object);
    return pod;
}

/* ---- Watches --------------------------------------------------------------------------------- */

/* A failure that does not go away by itself ends all. */
static void take_trouble(follower *all, const gr_diag *diag)
{
    if (diag->status == GR_E_AUTH || diag->status == GR_E_NO_MEMORY) {
        all->fatal = *diag;
    } else if (strcmp(all->trouble, diag->text) != 0) {
        memcpy(all->trouble, diag->text, sizeof all->trouble);
        print_line(diag->text);
    }
}

static void watch_pods(void *arg, const gr_kube_watch_event *event)
{
    follower *all = arg;
    if (event->kind == GR_KUBE_WATCH_TROUBLE) {
        take_trouble(all, event->diag);
    } else if (event->kind == GR_KUBE_WATCH_ADDED || event->kind == GR_KUBE_WATCH_MODIFIED ||
               event->kind == GR_KUBE_WATCH_DELETED) {
        followed *pod = take_pod(all, event->object);
        if (pod != NULL) {
            follow_log(all, pod, event->object);
        }
        if (pod != NULL && event->kind == GR_KUBE_WATCH_DELETED) {
            pod->is_over = true;
            pod->is_read |= pod->log == NULL;
            if (pod->log != NULL) {
                gr_kube_log_finish(pod->log);
            }
        }
    }
}

static void judge_job(follower *all)
{
    const char *why;
    gr_cluster_state state = gr_cluster_state_of(all->job, &why);
    all->has_ended |= state == GR_CLUSTER_SUCCEEDED || state == GR_CLUSTER_FAILED;
    all->has_failed |= state == GR_CLUSTER_FAILED;
}

static void watch_job(void *arg, const gr_kube_watch_event *event)
{
    follower *all = arg;
    const char *uid = gr_object_text(event->object, "metadata.uid");
    bool is_it = uid != NULL && strcmp(uid, gr_cluster_job_uid(all->job)) == 0;
    if (event->kind == GR_KUBE_WATCH_TROUBLE) {
        take_trouble(all, event->diag);
    } else if (event->kind == GR_KUBE_WATCH_RESYNC) {
        all->was_seen = false;
    } else if (event->kind == GR_KUBE_WATCH_SYNCED) {
        all->is_gone |= !all->was_seen;
    } else if (is_it && event->kind == GR_KUBE_WATCH_DELETED) {
        all->is_gone = true;
    } else if (is_it) {
        all->was_seen = true;
        json_decref(all->job->object);
        all->job->object = json_incref(event->object);
        judge_job(all);
    }
}

/* Pods tell the rest themselves. */
static bool is_printed_elsewhere(const char *reason)
{
    static const char *const reasons[] = {"FailedScheduling", "Failed", "BackOff", "Unhealthy",
                                          "BackoffLimitExceeded"};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (strcmp(reasons[i], reason) == 0) {
            return true;
        }
    }
    return false;
}

static void print_event(follower *all, const json_t *event)
{
    char sentence[GR_CLUSTER_SENTENCE_BYTES];
    const char *uid = gr_object_text(event, "involvedObject.uid");
    const char *name = gr_object_text(event, "involvedObject.name");
    const char *kind = gr_object_text(event, "involvedObject.kind");
    const char *reason = gr_object_text(event, "reason");
    const char *message = gr_object_text(event, "message");
    if (!gr_object_is_text(event, "type", "Warning") || uid == NULL || name == NULL ||
        kind == NULL || reason == NULL || message == NULL || is_printed_elsewhere(reason)) {
        return;
    }
    if (strcmp(uid, gr_cluster_job_uid(all->job)) != 0 && find_pod(all, uid) == NULL) {
        return;
    }
    snprintf(sentence, sizeof sentence, "%.40s %.100s: %.60s: %.400s", kind, name, reason, message);
    if (json_object_get(all->told, sentence) == NULL) {
        all->no_memory |= json_object_set_new(all->told, sentence, json_true()) != 0;
        print_line(sentence);
    }
}

static void watch_events(void *arg, const gr_kube_watch_event *event)
{
    follower *all = arg;
    if (event->kind == GR_KUBE_WATCH_TROUBLE && event->diag->status == GR_E_AUTH) {
        print_line("events are not shown: the right to \"list\" and \"watch\" events is missing");
        gr_kube_watch_stop(all->event_watch);
        all->event_watch = NULL;
    } else if (event->kind == GR_KUBE_WATCH_ADDED || event->kind == GR_KUBE_WATCH_MODIFIED) {
        print_event(all, event->object);
    }
}

static gr_status start_watches(follower *all, gr_diag *diag)
{
    char its_name[GR_CLUSTER_SELECTOR_BYTES], selector[GR_CLUSTER_SELECTOR_BYTES];
    snprintf(its_name, sizeof its_name, "metadata.name=%.253s", gr_cluster_job_name(all->job));
    gr_cluster_selector(all->job, selector);
    gr_kube_watch_options options = {.resource = {"", "v1", "pods"},
                                     .space = all->cluster->space,
                                     .label_selector = selector,
                                     .handler = watch_pods,
                                     .arg = all};
    gr_status status = gr_kube_watch_start(all->cluster->kube, &options, &all->pod_watch, diag);
    options.resource = all->job->kind->resource;
    options.label_selector = NULL;
    options.field_selector = its_name;
    options.handler = watch_job;
    if (status == GR_OK) {
        status = gr_kube_watch_start(all->cluster->kube, &options, &all->job_watch, diag);
    }
    options.resource = (gr_kube_resource){"", "v1", "events"};
    options.field_selector = "type=Warning";
    options.handler = watch_events;
    if (status == GR_OK) {
        status = gr_kube_watch_start(all->cluster->kube, &options, &all->event_watch, diag);
    }
    return status;
}

/* ---- The end --------------------------------------------------------------------------------- */

static void wake(void *arg)
{
    (void)arg;
}

/* Returns true if there is output to read that is worth waiting for. */
static bool is_reading(follower *all)
{
    gr_clock clock = gr_kube_clock(all->cluster->kube);
    int64_t now_us = gr_clock_now_us(&clock), until_us = 0;
    for (size_t i = 0; i < all->count; i++) {
        const followed *pod = all->pods[i];
        if (pod->log != NULL && !pod->is_read) {
            bool is_whole = pod->is_over && !all->is_gone;
            int64_t due_us = all->ended_us + (is_whole ? READING_US : RUNNING_US);
            until_us = due_us > until_us ? due_us : until_us;
        }
    }
    if (until_us <= now_us) {
        return false;
    }
    all->timer.fire = wake;
    gr_kube_timer_set(all->cluster->kube, &all->timer, until_us);
    return true;
}

static gr_status list_pods(follower *all, json_t *pods, gr_diag *diag)
{
    char selector[GR_CLUSTER_SELECTOR_BYTES];
    gr_cluster_selector(all->job, selector);
    return gr_cluster_list(all->cluster, (gr_kube_resource){"", "v1", "pods"}, selector, pods,
                           diag);
}

/* What was written until the job's end may be seen after it. */
static gr_status read_rest(follower *all, gr_diag *diag)
{
    size_t i;
    json_t *object, *pods = json_array();
    gr_status status = list_pods(all, pods, diag);
    json_array_foreach(pods, i, object)
    {
        followed *pod = take_pod(all, object);
        if (pod != NULL) {
            follow_log(all, pod, object);
        }
    }
    json_decref(pods);
    gr_clock clock = gr_kube_clock(all->cluster->kube);
    all->ended_us = gr_clock_now_us(&clock);
    while (status == GR_OK && is_reading(all) && all->error == 0) {
        if (gr_cluster_wait(all->cluster) != 0) {
            break;
        }
        fflush(stdout);
    }
    for (i = 0; i < all->count && status == GR_OK && !all->is_gone; i++) {
        if (all->pods[i]->log != NULL && all->pods[i]->is_over && !all->pods[i]->is_read) {
            fflush(stdout);
            fprintf(stderr, "gradus: the log of pod %s could not be read to its end\n",
                    all->pods[i]->name);
        }
    }
    return status;
}

static int compare_pods(const void *a, const void *b)
{
    const followed *one = *(followed *const *)a, *two = *(followed *const *)b;
    return one->order != two->order ? (one->order < two->order ? -1 : 1)
                                    : strcmp(one->name, two->name);
}

/* One pod after the other. */
static gr_status read_once(follower *all, gr_diag *diag)
{
    size_t i;
    json_t *object, *pods = json_array();
    gr_status status = list_pods(all, pods, diag);
    json_array_foreach(pods, i, object)
    {
        (void)take_pod(all, object);
    }
    if (all->count > 0) {
        qsort(all->pods, all->count, sizeof(followed *), compare_pods);
    }
    for (size_t at = 0; at < all->count && status == GR_OK; at++) {
        followed *pod = all->pods[at];
        json_array_foreach(pods, i, object)
        {
            if (gr_object_is_text(object, "metadata.uid", pod->uid)) {
                follow_log(all, pod, object);
            }
        }
        while (pod->log != NULL && !pod->is_read && all->cluster->signal_number == 0 &&
               all->error == 0) {
            (void)gr_cluster_wait(all->cluster);
        }
    }
    json_decref(pods);
    return status;
}

static void free_follower(follower *all)
{
    gr_kube_watch_stop(all->job_watch);
    gr_kube_watch_stop(all->pod_watch);
    gr_kube_watch_stop(all->event_watch);
    gr_kube_timer_clear(all->cluster->kube, &all->timer);
    for (size_t i = 0; i < all->count; i++) {
        gr_kube_log_stop(all->pods[i]->log);
        gr_lines_fini(&all->pods[i]->lines);
        free(all->pods[i]->name);
        free(all->pods[i]->uid);
        free(all->pods[i]);
    }
    free(all->pods);
    json_decref(all->told);
}

/* How it ended: the exit code. */
static int print_end(const follower *all)
{
    const char *why, *name = gr_cluster_job_name(all->job);
    if (all->cluster->signal_number != 0 && !all->has_ended) {
        if (all->options->detach != NULL) {
            fprintf(stderr, "gradus: detached; job %s goes on: %s\n", name, all->options->detach);
        }
        return GR_EXIT_RESUME;
    }
    if (all->is_gone && !all->has_ended) {
        fprintf(stderr, "gradus: job %s was deleted before its end\n", name);
        return GR_EXIT_FAILED;
    }
    if (all->has_failed && !all->options->once) {
        (void)gr_cluster_state_of(all->job, &why);
        fprintf(stderr, "gradus: job %s has failed%s%s\n", name, why[0] != '\0' ? ": " : "", why);
    }
    return all->has_failed ? GR_EXIT_FAILED : GR_EXIT_DONE;
}

int gr_cluster_follow(gr_cluster_client *cluster, gr_cluster_job *job,
                      const gr_follow_options *options)
{
    follower all = {.cluster = cluster, .job = job, .options = options, .told = json_object()};
    gr_diag diag = {0};
    gr_status status;
    if (options->once) {
        status = read_once(&all, &diag);
    } else {
        judge_job(&all);
        status = start_watches(&all, &diag);
        while (status == GR_OK && !all.has_ended && !all.is_gone && all.error == 0 &&
               all.fatal.status == GR_OK && !all.no_memory) {
            if (gr_cluster_wait(cluster) != 0) {
                break;
            }
            fflush(stdout);
        }
        if (all.fatal.status != GR_OK) {
            diag = all.fatal;
            status = diag.status;
        }
        if (status == GR_OK && cluster->signal_number == 0) {
            status = read_rest(&all, &diag);
        }
    }
    if (status == GR_E_CANCELLED) { /* a signal came between two questions */
        cluster->signal_number = SIGINT;
        status = GR_OK;
    }
    if (status == GR_OK && all.no_memory) {
        status = gr_fail(&diag, GR_E_NO_MEMORY, "no memory to follow the job");
    }
    if (fflush(stdout) != 0 && all.error == 0) {
        all.error = errno;
    }
    int code = all.error != 0 ? GR_EXIT_FAILED : GR_EXIT_DONE;
    if (all.error != 0) {
        fprintf(stderr, "gradus: the output cannot be written: %s\n", strerror(all.error));
    } else if (status != GR_OK && options->detach != NULL) {
        code = gr_cli_fail(GR_EXIT_RESUME, &diag);
        fprintf(stderr, "gradus: job %s is sent, and goes on without being followed: %s\n",
                gr_cluster_job_name(job), options->detach);
    } else {
        code = status == GR_OK ? print_end(&all) : gr_cluster_fail(status, &diag);
    }
    free_follower(&all);
    return code;
}
