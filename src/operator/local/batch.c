/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/batch.h"

#include "base/hash.h"
#include "operator/object.h"

#include <stdio.h>
#include <string.h>

enum { BACKOFF_LIMIT = 6, PAUSE_S = 10, PAUSE_MAX_S = 600, PAUSE_DOUBLINGS = 6 };

/* One look at one Job. */
typedef struct look {
    gr_store *store;
    const json_t *job; /* as it was when the look began; owned */
    json_t *status;    /* as it becomes; owned */
    const char *space, *name, *uid;
    int64_t wall_s, again_s;
    int64_t active, ready, terminating, succeeded, failed, restarts, failed_at_s;
    bool no_memory;
} batch_look;

static void delete_pods(batch_look *l)
{
    json_t *pods = gr_store_list(l->store, "v1", "Pod"), *pod;
    const json_t *answer;
    size_t i;
    json_array_foreach(pods, i, pod)
    {
        const char *phase = gr_object_text(pod, "status.phase");
        if (gr_object_controlled(pod, l->uid) && phase != NULL && strcmp(phase, "Succeeded") != 0 &&
            strcmp(phase, "Failed") != 0) {
            (void)gr_store_ask(l->store, "delete", pod, &answer);
        }
    }
    json_decref(pods);
}

static void set_condition(batch_look *l, const char *type, const char *holds, const char *reason,
                          const char *message)
{
    json_t *conditions = gr_object_list(l->status, "conditions", &l->no_memory);
    json_t *condition = gr_object_condition(conditions, type);
    const char *now = gr_store_now(l->store);
    json_t *next =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "type", type, "status", holds, "reason", reason,
                  "message", message, "lastProbeTime", now, "lastTransitionTime", now);
    if (condition == NULL) {
        gr_object_append(conditions, next, &l->no_memory);
        return;
    }
    if (!gr_object_is_text(condition, "status", holds)) {
        l->no_memory |= json_object_update(condition, next) != 0;
    }
    json_decref(next);
}

static void fail(batch_look *l, const char *reason, const char *message)
{
    set_condition(l, "Failed", "True", reason, message);
    delete_pods(l);
    l->active = l->ready = 0;
}

/* When its last container ended, or now. */
static int64_t end_of(const batch_look *l, const json_t *pod)
{
    int64_t last_s = 0, at_s;
    size_t i;
    const json_t *container;
    json_array_foreach(gr_object_at(pod, "status.containerStatuses"), i, container)
    {
        if (gr_object_time(gr_object_text(container, "state.terminated.finishedAt"), &at_s) &&
            at_s > last_s) {
            last_s = at_s;
        }
    }
    return last_s > 0 ? last_s : l->wall_s;
}

static int64_t count_restarts(const json_t *containers)
{
    int64_t sum = 0;
    size_t i;
    const json_t *container;
    json_array_foreach(containers, i, container)
    {
        sum += gr_object_int(container, "restartCount", 0);
    }
    return sum;
}

static void count_pod(batch_look *l, const json_t *pod)
{
    const char *phase = gr_object_text(pod, "status.phase");
    if (phase != NULL && strcmp(phase, "Succeeded") == 0) {
        l->succeeded++;
    } else if (phase != NULL && strcmp(phase, "Failed") == 0) {
        int64_t end_s = end_of(l, pod);
        l->failed++;
        l->failed_at_s = end_s > l->failed_at_s ? end_s : l->failed_at_s;
    } else if (gr_object_text(pod, "metadata.deletionTimestamp") != NULL) {
        l->terminating++;
    } else {
        l->active++;
        l->ready += gr_object_holds(gr_object_at(pod, "status.conditions"), "Ready");
        l->restarts += count_restarts(gr_object_at(pod, "status.initContainerStatuses")) +
                       count_restarts(gr_object_at(pod, "status.containerStatuses"));
    }
}

static void count_pods(batch_look *l)
{
    size_t i;
    const json_t *pod;
    json_array_foreach(gr_store_objects(l->store), i, pod)
    {
        if (gr_object_is(pod, "v1", "Pod") && gr_object_controlled(pod, l->uid)) {
            count_pod(l, pod);
        }
    }
}

/* Five letters or digits, as other pods of Jobs have them. */
static void print_suffix(const batch_look *l, char text_out[6])
{
    static const char letters[] = "bcdfghjklmnpqrstvwxz2456789";
    uint64_t number = gr_hash64(l->uid, strlen(l->uid), (uint64_t)(l->failed + l->wall_s));
    for (int i = 0; i < 5; i++) {
        text_out[i] = letters[number % (sizeof letters - 1)];
        number /= sizeof letters - 1;
    }
    text_out[5] = '\0';
}

static void create_pod(batch_look *l)
{
    char suffix[6];
    print_suffix(l, suffix);
    const json_t *template = gr_object_at(l->job, "spec.template"), *answer;
    json_t *labels = json_deep_copy(gr_object_at(template, "metadata.labels"));
    if (labels == NULL) {
        labels = json_object();
    }
    gr_object_put_text(labels, "job-name", l->name, &l->no_memory);
    gr_object_put_text(labels, "batch.kubernetes.io/job-name", l->name, &l->no_memory);
    json_t *metadata =
        json_pack("{s:o, s:s, s:o, s:[{s:s, s:s, s:s, s:s, s:b, s:b}]}", "name",
                  json_sprintf("%.250s-%s", l->name, suffix), "namespace", l->space, "labels",
                  labels, "ownerReferences", "apiVersion", "batch/v1", "kind", "Job", "name",
                  l->name, "uid", l->uid, "controller", 1, "blockOwnerDeletion", 1);
    json_t *annotations = gr_object_at(template, "metadata.annotations");
    if (annotations != NULL) {
        gr_object_put(metadata, "annotations", json_deep_copy(annotations), &l->no_memory);
    }
    json_t *pod = json_pack("{s:s, s:s, s:o, s:o}", "apiVersion", "v1", "kind", "Pod", "metadata",
                            metadata, "spec", json_deep_copy(json_object_get(template, "spec")));
    l->no_memory |= pod == NULL;
    if (pod != NULL && gr_store_ask(l->store, "create", pod, &answer) == GR_API_OK) {
        l->active++;
    }
    json_decref(pod);
}

/* The pause before the next pod doubles with each failure. */
static void keep_pod(batch_look *l)
{
    int64_t doublings = l->failed - 1 < PAUSE_DOUBLINGS ? l->failed - 1 : PAUSE_DOUBLINGS;
    int64_t pause_s = l->failed > 0 ? (int64_t)PAUSE_S << doublings : 0;
    int64_t due_s = l->failed_at_s + (pause_s < PAUSE_MAX_S ? pause_s : PAUSE_MAX_S);
    if (l->active + l->terminating > 0) {
        return;
    }
    if (due_s <= l->wall_s) {
        create_pod(l);
    } else {
        l->again_s = due_s < l->again_s ? due_s : l->again_s;
    }
}

static void suspend(batch_look *l)
{
    delete_pods(l);
    l->terminating += l->active;
    l->active = l->ready = 0;
    (void)json_object_del(l->status, "startTime");
    set_condition(l, "Suspended", "True", "JobSuspended", "Job suspended");
}

/* As Kubernetes' controller counts: so many pods may fail; with OnFailure the restart with the
 * number of the limit is one too many, and the first one if that is 0. */
static bool is_past_limit(const batch_look *l)
{
    int64_t limit = gr_object_int(l->job, "spec.backoffLimit", BACKOFF_LIMIT);
    bool is_restarted = gr_object_is_text(l->job, "spec.template.spec.restartPolicy", "OnFailure");
    return l->failed > limit || (is_restarted && l->restarts >= (limit > 0 ? limit : 1));
}

static void go_on(batch_look *l)
{
    const json_t *spec = json_object_get(l->job, "spec");
    int64_t start_s, deadline_s = gr_object_int(spec, "activeDeadlineSeconds", 0);
    if (gr_object_holds(json_object_get(l->status, "conditions"), "Suspended")) {
        set_condition(l, "Suspended", "False", "JobResumed", "Job resumed");
    }
    gr_object_put_default(l->status, "startTime", json_string(gr_store_now(l->store)),
                          &l->no_memory);
    (void)gr_object_time(gr_object_text(l->status, "startTime"), &start_s);
    if (l->succeeded > 0) {
        gr_object_put_text(l->status, "completionTime", gr_store_now(l->store), &l->no_memory);
        set_condition(l, "Complete", "True", "CompletionsReached",
                      "Reached expected number of succeeded pods");
    } else if (is_past_limit(l)) {
        fail(l, "BackoffLimitExceeded", "Job has reached the specified backoff limit");
    } else if (deadline_s > 0 && l->wall_s >= start_s + deadline_s) {
        fail(l, "DeadlineExceeded", "Job was active longer than specified deadline");
    } else {
        l->again_s = deadline_s > 0 ? start_s + deadline_s : INT64_MAX;
        keep_pod(l);
    }
}

/* A count that is zero is not told. */
static void put_count(batch_look *l, const char *key, int64_t count)
{
    if (count > 0) {
        gr_object_put(l->status, key, json_integer(count), &l->no_memory);
    } else {
        (void)json_object_del(l->status, key);
    }
}

static int64_t look_at(gr_store *store, const json_t *job, int64_t wall_s)
{
    const json_t *status = json_object_get(job, "status");
    const json_t *conditions = json_object_get(status, "conditions");
    batch_look l = {.store = store,
                    .job = job,
                    .status = status != NULL ? json_deep_copy(status) : json_object(),
                    .space = gr_object_text(job, "metadata.namespace"),
                    .name = gr_object_text(job, "metadata.name"),
                    .uid = gr_object_text(job, "metadata.uid"),
                    .wall_s = wall_s,
                    .again_s = INT64_MAX};
    if (gr_object_holds(conditions, "Complete") || gr_object_holds(conditions, "Failed") ||
        l.space == NULL || l.name == NULL || l.uid == NULL) {
        json_decref(l.status);
        return INT64_MAX;
    }
    count_pods(&l);
    if (gr_object_true(job, "spec.suspend")) {
        suspend(&l);
    } else {
        go_on(&l);
    }
    put_count(&l, "active", l.active);
    put_count(&l, "succeeded", l.succeeded);
    put_count(&l, "failed", l.failed);
    put_count(&l, "terminating", l.terminating);
    gr_object_put(l.status, "ready", json_integer(l.ready), &l.no_memory);
    gr_store_set_status(store, job, l.status);
    return l.again_s;
}

void gr_batch_look(gr_store *store, int64_t wall_s, int64_t *again_s_out)
{
    json_t *jobs = gr_store_list(store, "batch/v1", "Job"), *job;
    size_t i;
    *again_s_out = INT64_MAX;
    json_array_foreach(jobs, i, job)
    {
        int64_t again_s = look_at(store, job, wall_s);
        *again_s_out = again_s < *again_s_out ? again_s : *again_s_out;
    }
    json_decref(jobs);
}
