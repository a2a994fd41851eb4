/* SPDX-License-Identifier: Apache-2.0 */

/* The kinds of training-operator: one look at a job.
 *
 *   wrong or another's          nothing is written
 *   Succeeded or Failed         pods and Services go, as cleanPodPolicy says, and the PodGroup; the
 *                               job itself after ttlSecondsAfterFinished
 *   suspended                   all pods, Services and the PodGroup go
 *   backoffLimit or
 *   activeDeadlineSeconds hit   the same, and the job has Failed
 *   else                        PodGroup, pods and Services are made; pods that failed go, where
 *                               the restartPolicy says so, and the next look makes them anew
 *
 * Conditions: Created, Running (with Restarting: one of the two), Suspended, Succeeded, Failed.
 * What the counts of pods mean for them is the kind's own matter. */

#include "operator/training.h"

#include "base/text.h"
#include "operator/object.h"
#include "operator/pod_group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const json_t *run_policy(const gr_training *t, const char *key)
{
    return json_object_get(gr_object_at(t->look.job, "spec.runPolicy"), key);
}

const gr_training_role *gr_training_find_role(const gr_training *t, const char *name)
{
    for (size_t i = 0; i < t->role_count; i++) {
        if (strcmp(t->roles[i].name, name) == 0) {
            return &t->roles[i];
        }
    }
    return NULL;
}

/* ---- Status ---------------------------------------------------------------------------------- */
static bool holds(const gr_training *t, const char *condition)
{
    return gr_object_holds(json_object_get(t->look.status, "conditions"), condition);
}

void gr_training_event(gr_training *t, const char *type, const char *what, const char *message)
{
    char reason[64];
    snprintf(reason, sizeof reason, "%s%s", t->look.kind, what);
    gr_look_event(&t->look, type, reason, message);
}

bool gr_training_remakes(const gr_training *t, const gr_training_role *role)
{
    return strcmp(role->restart_policy, "Never") != 0 &&
           (t->kind->restarts_failed || strcmp(role->restart_policy, "ExitCode") == 0);
}

static bool remakes_failed_pods(const gr_training *t)
{
    int64_t failed = 0;
    for (size_t r = 0; r < t->role_count; r++) {
        failed += gr_training_remakes(t, &t->roles[r]) ? t->roles[r].failed : 0;
    }
    return failed > 0;
}

void gr_training_set_condition(gr_training *t, const char *type, bool is_true, const char *what,
                               const char *message)
{
    char reason[64];
    snprintf(reason, sizeof reason, "%s%s", t->look.kind, what);
    bool is_running = is_true && strcmp(type, "Running") == 0;
    if (!holds(t, "Failed") && !(is_running && holds(t, "Restarting") && remakes_failed_pods(t))) {
        (void)gr_look_set_condition(&t->look, type, is_true, reason, message);
    }
}

void gr_training_end(gr_training *t, const char *type, const char *message)
{
    if (gr_object_text(t->look.status, "completionTime") == NULL) {
        gr_object_put_text(t->look.status, "completionTime", t->look.view->now, &t->look.no_memory);
    }
    gr_training_event(t, "Normal", type, message);
    gr_training_set_condition(t, type, true, type, message);
}

static void put_count(gr_training *t, json_t *counts, const char *key, int64_t count)
{
    if (count > 0) {
        gr_object_put(counts, key, json_integer(count), &t->look.no_memory);
    }
}

static json_t *status_of_role(const gr_training *t, const gr_training_role *role)
{
    return json_object_get(gr_object_at(t->look.status, "replicaStatuses"), role->name);
}

static void report_counts(gr_training *t, const gr_training_role *role)
{
    json_t *counts = json_object();
    put_count(t, counts, "active", role->active);
    put_count(t, counts, "succeeded", role->succeeded);
    put_count(t, counts, "failed", role->failed);
    if (t->kind->has_selector) {
        gr_object_put(counts, "selector", gr_training_selector(t, role), &t->look.no_memory);
    }
    gr_object_put(gr_object_map(t->look.status, "replicaStatuses", &t->look.no_memory), role->name,
                  counts, &t->look.no_memory);
}

/* ---- What is there --------------------------------------------------------------------------- */
/* The role and number in a name JOB-ROLE-NUMBER or JOB-ROLE; NULL: it is none. */
static gr_training_role *parse_name(gr_training *t, const char *name, int64_t *index_out)
{
    size_t length = strlen(t->look.name);
    if (name == NULL || strncmp(name, t->look.name, length) != 0 || name[length] != '-') {
        return NULL;
    }
    name += length + 1;
    for (size_t i = 0; i < t->role_count; i++) {
        gr_training_role *role = &t->roles[i];
        length = strlen(role->label);
        if (role->is_single && strcmp(name, role->label) == 0) {
            *index_out = 0;
            return role;
        }
        if (!role->is_single && strncmp(name, role->label, length) == 0 && name[length] == '-') {
            const char *digits = name + length + 1;
            size_t count = strspn(digits, "0123456789");
            *index_out = strtoll(digits, NULL, 10);
            return count > 0 && count < 10 && digits[count] == '\0' ? role : NULL;
        }
    }
    return NULL;
}

static bool is_own(const gr_training *t, const json_t *object)
{
    return gr_object_controlled(object, t->look.uid);
}

static void sort_objects(gr_training *t)
{
    size_t i;
    json_t *object;
    json_array_foreach(t->look.view->objects, i, object)
    {
        int64_t index;
        bool is_pod = gr_object_is(object, "v1", "Pod");
        if (!is_pod && !(t->kind->has_services && gr_object_is(object, "v1", "Service"))) {
            continue;
        }
        gr_training_role *role = parse_name(t, gr_object_text(object, "metadata.name"), &index);
        bool is_wanted = role != NULL && index < role->replicas, is_ours = is_own(t, object);
        if (is_wanted && is_ours) {
            (is_pod ? role->pods : role->services)[index] = object;
        } else if (is_wanted || is_ours) {
            gr_object_append(is_ours ? t->surplus : t->foreign, json_incref(object),
                             &t->look.no_memory);
        }
    }
}

/* ---- Times ----------------------------------------------------------------------------------- */
enum { YEARS_S = 2000000000 }; /* what is longer is for ever */

static void look_again(const gr_training *t, int64_t after_s)
{
    int64_t *at_s = &t->look.result->again_after_s;
    *at_s = *at_s > 0 && *at_s < after_s ? *at_s : after_s;
}

/* Seconds until `limit_s` after that time of the status, 0 if it is over; -1: never. Has the job
 * looked at again then. */
static int64_t seconds_left(gr_training *t, const char *since, const json_t *limit_s)
{
    int64_t begin, now;
    if (!json_is_integer(limit_s) || json_integer_value(limit_s) > YEARS_S ||
        !gr_object_time(gr_object_text(t->look.status, since), &begin) ||
        !gr_object_time(t->look.view->now, &now)) {
        return -1;
    }
    int64_t left = begin + (int64_t)json_integer_value(limit_s) - now;
    if (left > 0) {
        look_again(t, left);
    }
    return left > 0 ? left : 0;
}

/* ---- Deleting -------------------------------------------------------------------------------- */
/* Tells of what is made or deleted, "Created" or "Deleted". */
static void report_change(gr_training *t, const char *done, const char *reason_end,
                          const json_t *object)
{
    bool is_pod = gr_object_is_text(object, "kind", "Pod");
    char reason[64], message[GR_EVENT_BYTES];
    snprintf(reason, sizeof reason, "Successful%s%s", reason_end, is_pod ? "Pod" : "Service");
    snprintf(message, sizeof message, "%s %s: %s", done, is_pod ? "pod" : "service",
             gr_object_text(object, "metadata.name"));
    gr_look_event(&t->look, "Normal", reason, message);
}

/* Deletes a pod or Service of the job; false: it is not there, or goes already. */
static bool delete_own(gr_training *t, const json_t *object)
{
    if (object == NULL || !gr_look_delete(&t->look, object)) {
        return false;
    }
    report_change(t, "Deleted", "Delete", object);
    return true;
}

bool gr_training_has_phase(const json_t *pod, const char *phase)
{
    return gr_object_is_text(pod, "status.phase", phase);
}

bool gr_training_has_ended(const json_t *pod)
{
    return gr_training_has_phase(pod, "Succeeded") || gr_training_has_phase(pod, "Failed");
}

const char *gr_training_role_of(const json_t *pod)
{
    return json_string_value(json_object_get(gr_object_at(pod, "metadata.labels"),
                                             "training.kubeflow.org/replica-type"));
}

bool gr_training_serves(const gr_training *t, const json_t *pod)
{
    const char *role = gr_training_role_of(pod);
    return t->kind->server_role != NULL && role != NULL &&
           strcasecmp(role, t->kind->server_role) == 0;
}

/* It has not ended. One that is still there long after it was told to go never tells: its node is
 * lost. */
static bool may_save(const gr_training *t, const json_t *pod)
{
    enum { GRACE_S = 30, MORE_S = 60 };
    int64_t told, now;
    int64_t grace_s =
        gr_object_int(t->roles[0].template, "spec.terminationGracePeriodSeconds", GRACE_S);
    if (gr_training_has_ended(pod) || grace_s > YEARS_S ||
        !gr_object_time(gr_object_text(pod, "metadata.deletionTimestamp"), &told) ||
        !gr_object_time(t->look.view->now, &now)) {
        return !gr_training_has_ended(pod);
    }
    int64_t left = told + grace_s + MORE_S - now;
    if (left > 0) {
        look_again(t, left);
    }
    return left > 0;
}

/* Returns true if pods run that the server role serves. */
static bool is_served(const gr_training *t)
{
    size_t i;
    const json_t *object;
    for (size_t r = 0; r < t->role_count && t->kind->server_role != NULL; r++) {
        const gr_training_role *role = &t->roles[r];
        for (int64_t n = 0; n < role->replicas && !gr_training_is_server_role(t, role->name); n++) {
            if (role->pods[n] != NULL && may_save(t, role->pods[n])) {
                return true;
            }
        }
    }
    json_array_foreach(t->kind->server_role != NULL ? t->surplus : NULL, i, object)
    {
        if (!gr_training_serves(t, object) && may_save(t, object)) {
            return true;
        }
    }
    return false;
}

static void delete_role(gr_training *t, const gr_training_role *role, bool keep_ended)
{
    for (int64_t n = 0; n < role->replicas; n++) {
        const json_t *pod = role->pods[n];
        if (!(keep_ended && gr_training_has_ended(pod))) {
            (void)delete_own(t, pod);
            (void)delete_own(t, role->services[n]);
        }
    }
}

/* Deletes pods, but for those that have ended if these are to be kept, and the Services of those
 * that go. Servers wait for the others, who may save what these keep. */
static void delete_objects(gr_training *t, bool keep_ended)
{
    size_t i;
    const json_t *object;
    bool keep_servers = is_served(t);
    for (size_t r = 0; r < t->role_count; r++) {
        if (!(keep_servers && gr_training_is_server_role(t, t->roles[r].name))) {
            delete_role(t, &t->roles[r], keep_ended);
        }
    }
    json_array_foreach(t->surplus, i, object)
    {
        if (!(keep_servers && gr_training_serves(t, object))) {
            (void)delete_own(t, object);
        }
    }
}

/* They never end by themselves. */
static void delete_servers(gr_training *t)
{
    for (size_t r = 0; r < t->role_count; r++) {
        if (gr_training_is_server_role(t, t->roles[r].name) && !is_served(t)) {
            delete_role(t, &t->roles[r], true);
        }
    }
}

void gr_training_delete_pods(gr_training *t)
{
    delete_objects(t, false);
}

void gr_training_stop_pods(gr_training *t)
{
    delete_objects(t, strcmp(json_string_value(run_policy(t, "cleanPodPolicy")), "All") != 0);
}

void gr_training_delete_pod(gr_training *t, const json_t *pod)
{
    (void)delete_own(t, pod);
}

/* Whether this look may make one more; the others are the next one's. */
static bool may_create(const gr_training *t)
{
    return t->look.view->creates_all || t->created < GR_CREATIONS_MAX;
}

static void delete_pod_group(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    if (gr_pod_group_delete(&t->look)) {
        snprintf(message, sizeof message, "Deleted PodGroup: %s", t->look.name);
        gr_look_event(&t->look, "Normal", "JobTerminated",
                      "Job has been terminated. Deleting PodGroup");
        gr_look_event(&t->look, "Normal", "SuccessfulDeletePodGroup", message);
    }
}

/* ---- The end --------------------------------------------------------------------------------- */
/* Pods that still ran when the job succeeded count as done: nobody waits for them. */
static void count_as_done(gr_training *t)
{
    json_t *statuses = gr_object_at(t->look.status, "replicaStatuses"), *counts;
    const char *role;
    json_object_foreach(statuses, role, counts)
    {
        int64_t active = gr_object_int(counts, "active", 0);
        if (active > 0) {
            put_count(t, counts, "succeeded", active + gr_object_int(counts, "succeeded", 0));
            json_object_del(counts, "active");
        }
    }
}

static void finish(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    const json_t *policy = run_policy(t, "cleanPodPolicy");
    if (strcmp(json_string_value(policy), "None") != 0) {
        delete_objects(t, strcmp(json_string_value(policy), "Running") == 0);
    } else {
        delete_servers(t);
    }
    delete_pod_group(t);
    if (holds(t, "Succeeded")) {
        count_as_done(t);
    }
    if (!t->is_suspended &&
        seconds_left(t, "completionTime", run_policy(t, "ttlSecondsAfterFinished")) == 0 &&
        gr_look_delete(&t->look, t->look.view->job)) {
        snprintf(message, sizeof message, "Deleted job: %s", t->look.name);
        gr_look_event(&t->look, "Normal", t->kind->deleted_reason, message);
        t->is_deleted = true;
    }
}

/* ---- Suspension ------------------------------------------------------------------------------ */
static void suspend(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    json_t *statuses = gr_object_at(t->look.status, "replicaStatuses"), *counts;
    const char *role;
    delete_objects(t, false);
    delete_pod_group(t);
    if (t->kind->keep_more != NULL) {
        t->kind->keep_more(t);
    }
    json_object_foreach(statuses, role, counts)
    {
        json_object_del(counts, "active");
    }
    snprintf(message, sizeof message, "%s %s is suspended.", t->look.kind, t->look.name);
    if (holds(t, "Running")) {
        gr_training_set_condition(t, "Running", false, "Suspended", message);
    }
    if (!holds(t, "Suspended")) {
        gr_training_set_condition(t, "Suspended", true, "Suspended", message);
        gr_training_event(t, "Normal", "Suspended", message);
    }
}

static bool has_pods(const gr_training *t)
{
    for (size_t r = 0; r < t->role_count; r++) {
        for (int64_t n = 0; n < t->roles[r].replicas; n++) {
            if (t->roles[r].pods[n] != NULL) {
                return true;
            }
        }
    }
    return false;
}

/* False: pods of before still go, and would count as lost ones. */
static bool resume(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    if (holds(t, "Suspended") && has_pods(t)) {
        delete_objects(t, false);
        return false;
    }
    if (holds(t, "Suspended")) {
        snprintf(message, sizeof message, "%s %s is resumed.", t->look.kind, t->look.name);
        gr_training_set_condition(t, "Suspended", false, "Resumed", message);
        gr_training_event(t, "Normal", "Resumed", message);
        gr_object_put_text(t->look.status, "startTime", t->look.view->now, &t->look.no_memory);
    }
    return true;
}

/* ---- Limits ---------------------------------------------------------------------------------- */
static int64_t count_restarts(const json_t *statuses)
{
    int64_t sum = 0;
    size_t i;
    const json_t *status;
    json_array_foreach(statuses, i, status)
    {
        sum += gr_object_int(status, "restartCount", 0);
    }
    return sum;
}

/* Restarts by the kubelet count, in pods that run. With a limit of 0 a pod that fails does, too. */
static bool is_past_backoff_limit(const gr_training *t)
{
    const json_t *given = run_policy(t, "backoffLimit");
    int64_t limit = (int64_t)json_integer_value(given), restarts = 0, failed = 0, before = 0;
    for (size_t r = 0; r < t->role_count; r++) {
        const gr_training_role *role = &t->roles[r];
        before += gr_object_int(status_of_role(t, role), "failed", 0);
        for (int64_t n = 0; n < role->replicas; n++) {
            const json_t *pod = role->pods[n];
            failed += gr_training_has_phase(pod, "Failed");
            if (gr_training_has_phase(pod, "Running") &&
                strcmp(role->restart_policy, "Never") != 0) {
                restarts += count_restarts(gr_object_at(pod, "status.initContainerStatuses")) +
                            count_restarts(gr_object_at(pod, "status.containerStatuses"));
            }
        }
    }
    return json_is_integer(given) &&
           (limit == 0 ? restarts > 0 || failed > before : restarts >= limit);
}

static bool reaches_limit(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    const char *limit = NULL;
    if (!t->kind->has_attempts && is_past_backoff_limit(t)) {
        limit = "it has reached the specified backoff limit";
    } else if (seconds_left(t, "startTime", run_policy(t, "activeDeadlineSeconds")) == 0) {
        limit = "it was active longer than specified deadline";
    }
    if (limit == NULL) {
        return false;
    }
    if (t->kind->has_attempts) {
        gr_training_stop_pods(t);
    } else {
        delete_objects(t, false);
    }
    delete_pod_group(t);
    snprintf(message, sizeof message, "Job %s has failed because %s", t->look.name, limit);
    gr_training_end(t, "Failed", message);
    return true;
}

/* ---- Pods ------------------------------------------------------------------------------------ */
/* The first pods wait until volcano has taken the group up; later ones do not, so that a job that
 * grows goes on. */
static bool waits_for_pod_group(gr_training *t)
{
    if (t->look.view->gang_scheduler[0] == '\0') {
        return false;
    }
    const json_t *group = gr_pod_group_find(&t->look);
    if (t->look.is_stopped) {
        return true;
    }
    gr_pod_group_keep(&t->look, gr_training_pod_group(t, gr_object_text(group, "spec.queue")));
    const char *phase = gr_object_text(group, "status.phase");
    if (!gr_pod_group_is_volcano(&t->look) || t->look.is_stopped ||
        (phase != NULL && phase[0] != '\0' && strcmp(phase, "Pending") != 0)) {
        return t->look.is_stopped;
    }
    if (has_pods(t)) {
        return false;
    }
    gr_object_put_default(t->look.status, "lastReconcileTime", json_string(t->look.view->now),
                          &t->look.no_memory);
    return true;
}

bool gr_training_exit_code(const gr_training_role *role, const json_t *pod, int64_t *code_out)
{
    size_t i;
    const json_t *status;
    json_array_foreach(gr_object_at(pod, "status.containerStatuses"), i, status)
    {
        const json_t *code = gr_object_at(status, "state.terminated.exitCode");
        if (role->container != NULL && gr_object_is_text(status, "name", role->container) &&
            json_is_integer(code)) {
            *code_out = (int64_t)json_integer_value(code);
            return true;
        }
    }
    return false;
}

static void report_exit(gr_training *t, const gr_training_role *role, const json_t *pod)
{
    char message[GR_EVENT_BYTES];
    int64_t code;
    if (gr_training_exit_code(role, pod, &code)) {
        snprintf(message, sizeof message, "Pod: %s.%s exited with code %" PRId64, t->look.space,
                 gr_object_text(pod, "metadata.name"), code);
        gr_look_event(&t->look, "Normal", "ExitedWithCode", message);
    }
}

/* A pod that has failed is made anew, or ends the job, or the kind decides. A code from 128 on is a
 * signal's, and so is no code: the pod was evicted or its node was lost. */
static void judge_failed(gr_training *t, const gr_training_role *role, const json_t *pod)
{
    char message[GR_EVENT_BYTES];
    int64_t code;
    bool is_by_code = strcmp(role->restart_policy, "ExitCode") == 0;
    if (!gr_training_remakes(t, role)) {
        return;
    }
    if (is_by_code && gr_training_exit_code(role, pod, &code) && code < GR_TRAINING_FIRST_SIGNAL) {
        snprintf(message, sizeof message, "job \"%s\" is failing because \"%s\" replica(s) failed.",
                 t->look.name, role->name);
        gr_training_event(t, "Warning", "Failed", message);
        gr_training_set_condition(t, "Failed", true, "Failed", message);
        return;
    }
    snprintf(message, sizeof message, "job %s is restarting because %s replica(s) failed.",
             t->look.name, role->name);
    if (delete_own(t, pod)) {
        gr_training_event(t, "Warning", "Restarting", message);
    }
    gr_training_set_condition(t, "Restarting", true, "Restarting", message);
}

enum { VALUE_BYTES_MAX = 100 }; /* of what events quote */

/* Why a container waits: an image that cannot be had, failures one after the other; or how it
 * ended, though its pod goes on. */
static void report_container(gr_training *t, const char *pod, const json_t *status)
{
    char message[GR_EVENT_BYTES];
    const char *name = gr_object_text(status, "name");
    const char *text = gr_object_text(status, "state.waiting.message");
    const char *reason = gr_object_text(status, "state.waiting.reason");
    const char *end = gr_object_text(status, "state.terminated.reason");
    const char *given = gr_object_text(status, "state.terminated.message");
    const char *last_words = given != NULL ? given : "";
    int64_t code = gr_object_int(status, "state.terminated.exitCode", 0);
    if (name != NULL && code != 0 && end != NULL) {
        snprintf(message, sizeof message,
                 "Error pod %s container %s exitCode: %" PRId64 " terminated message: %.*s", pod,
                 name, code, gr_text_fit(last_words, GR_POD_MESSAGE_BYTES_MAX), last_words);
        gr_look_event(&t->look, "Warning", end, message);
    }
    if (name != NULL && text != NULL && reason != NULL) {
        snprintf(message, sizeof message, "Error pod %s container %s waiting message: %.*s", pod,
                 name, gr_text_fit(text, GR_POD_MESSAGE_BYTES_MAX), text);
        gr_look_event(&t->look, "Warning", reason, message);
    }
}

/* What keeps a pod that has not ended from its work: its containers, or that no node has room. The
 * API server's client counts an event that is sent again. */
static void report_abnormal(gr_training *t, const json_t *pod)
{
    static const char *const lists[] = {"status.initContainerStatuses", "status.containerStatuses"};
    char message[GR_EVENT_BYTES];
    size_t i;
    const json_t *status;
    const char *name = gr_object_text(pod, "metadata.name");
    for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        json_array_foreach(gr_object_at(pod, lists[l]), i, status)
        {
            report_container(t, name, status);
        }
    }
    status = gr_object_condition(gr_object_at(pod, "status.conditions"), "PodScheduled");
    const char *text = gr_object_text(status, "message"),
               *reason = gr_object_text(status, "reason");
    if (gr_object_is_text(status, "status", "False") && text != NULL && reason != NULL) {
        snprintf(message, sizeof message, "Error pod %s condition message: %.*s", name,
                 gr_text_fit(text, GR_POD_MESSAGE_BYTES_MAX), text);
        gr_look_event(&t->look, "Warning", reason, message);
    }
}

/* Neither has it ended nor does it go. */
static bool is_active(const json_t *pod)
{
    return (gr_training_has_phase(pod, "Pending") || gr_training_has_phase(pod, "Running")) &&
           gr_object_at(pod, "metadata.deletionTimestamp") == NULL;
}

static int64_t count_known(const json_t *counts)
{
    return gr_object_int(counts, "active", 0) + gr_object_int(counts, "succeeded", 0) +
           gr_object_int(counts, "failed", 0);
}

/* A pod that is taken away has failed, if it was among those that were counted: not one that goes
 * since the job had fewer pods for a while, or was suspended. */
static void count_pods(gr_training *t, gr_training_role *role)
{
    const json_t *before = status_of_role(t, role);
    int64_t lost = 0;
    for (int64_t n = 0; n < role->replicas; n++) {
        const json_t *pod = role->pods[n];
        bool is_running = gr_training_has_phase(pod, "Running"),
             has_failed = gr_training_has_phase(pod, "Failed");
        bool is_lost = t->kind->restarts_failed && (is_running || has_failed) &&
                       gr_object_at(pod, "metadata.deletionTimestamp") != NULL;
        lost += is_lost;
        role->active += is_running && !is_lost;
        role->succeeded += gr_training_has_phase(pod, "Succeeded");
        role->failed += has_failed && !is_lost;
    }
    int64_t missing = count_known(before) - role->active - role->succeeded - role->failed;
    if (missing > 0) {
        role->failed += lost < missing ? lost : missing;
    }
    role->is_new = role->succeeded != gr_object_int(before, "succeeded", 0) ||
                   role->failed != gr_object_int(before, "failed", 0);
    bool is_told = role->is_new && t->kind->container != NULL;
    for (int64_t n = 0; n < role->replicas && is_told; n++) {
        report_exit(t, role, role->pods[n]);
    }
}

/* Creates what is not there, or leaves it to the next look; false: something of that name is
 * another's. */
static bool keep_object(gr_training *t, const gr_training_role *role, int64_t index,
                        const json_t *there, const char *kind,
                        json_t *(*make)(gr_training *, const gr_training_role *, int64_t))
{
    if (there != NULL || !may_create(t)) {
        return true;
    }
    t->created++;
    if (json_array_size(t->foreign) > 0) {
        char name[GR_TRAINING_NAME_BYTES];
        gr_training_name(t, role, index, name);
        const json_t *foreign = gr_object_find(t->foreign, "v1", kind, name);
        if (foreign != NULL) {
            gr_look_stop(&t->look, foreign);
            return false;
        }
    }
    size_t first_event = json_array_size(t->look.result->events);
    const char *counter = strcmp(kind, "Pod") == 0 ? role->counter : NULL;
    if (counter != NULL && t->kind->report_counted != NULL) {
        t->kind->report_counted(t, role, index);
    }
    json_t *object = make(t, role, index);
    if (object != NULL && t->kind->report_created != NULL) {
        t->kind->report_created(t, role, gr_object_text(object, "metadata.name"));
    } else if (object != NULL) {
        report_change(t, "Created", "Create", object);
    }
    gr_look_create(&t->look, object, first_event, counter);
    return true;
}

static bool keep_role(gr_training *t, gr_training_role *role)
{
    int64_t active = gr_object_int(status_of_role(t, role), "active", 0);
    count_pods(t, role);
    t->has_fewer |= role->active < active;
    for (int64_t n = 0; n < role->replicas && !t->look.no_memory; n++) {
        const json_t *pod = role->pods[n];
        if (!(role->is_closed && pod == NULL) &&
            !keep_object(t, role, n, pod, "Pod", gr_training_pod)) {
            return false;
        }
        if (gr_training_has_phase(pod, "Failed")) {
            judge_failed(t, role, pod);
        } else if (is_active(pod)) {
            report_abnormal(t, pod);
        }
        if (t->kind->has_services &&
            !keep_object(t, role, n, role->services[n], "Service", gr_training_service)) {
            return false;
        }
    }
    report_counts(t, role);
    return true;
}

static void keep_objects(gr_training *t)
{
    size_t i;
    const json_t *object;
    if (t->kind->keep_more != NULL) {
        t->kind->keep_more(t);
    }
    for (size_t r = 0; r < t->role_count; r++) {
        if (t->look.is_stopped || !keep_role(t, &t->roles[r])) {
            return;
        }
    }
    /* They are told to go when the status does not count them any more: see count_pods(). */
    json_array_foreach(t->has_fewer ? NULL : t->surplus, i, object)
    {
        (void)delete_own(t, object);
    }
    gr_object_put_default(t->look.status, "startTime", json_string(t->look.view->now),
                          &t->look.no_memory);
    t->kind->report_status(t);
    if (holds(t, "Failed")) { /* by an exit code */
        gr_object_put_default(t->look.status, "completionTime", json_string(t->look.view->now),
                              &t->look.no_memory);
    }
    if (!holds(t, "Failed") && !holds(t, "Succeeded")) {
        (void)seconds_left(t, "startTime", run_policy(t, "activeDeadlineSeconds"));
    }
}

/* ---- A look ---------------------------------------------------------------------------------- */
static void begin(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    const char *policy = json_string_value(run_policy(t, "cleanPodPolicy"));
    snprintf(message, sizeof message, "%s %s is created.", t->look.kind, t->look.name);
    gr_training_set_condition(t, "Created", true, "Created", message);
    for (size_t i = 0; gr_clean_pod_policies[i] != NULL; i++) {
        if (strcmp(policy, gr_clean_pod_policies[i]) == 0) {
            policy = "";
        }
    }
    if (policy[0] != '\0') {
        snprintf(message, sizeof message,
                 "spec.runPolicy.cleanPodPolicy \"%.*s\" is neither All, None nor Running: all "
                 "pods go when the job has ended",
                 gr_text_fit(policy, VALUE_BYTES_MAX), policy);
        gr_look_event(&t->look, "Warning", "CleanPodPolicy", message);
    }
    if (t->kind->warn != NULL) {
        t->kind->warn(t);
    }
}

static void look(gr_training *t)
{
    if (json_array_size(json_object_get(t->look.status, "conditions")) == 0) {
        begin(t);
    }
    sort_objects(t);
    if (holds(t, "Succeeded") || holds(t, "Failed")) {
        finish(t);
        return;
    }
    if (t->kind->keep_first != NULL) {
        t->kind->keep_first(t);
    }
    if (t->look.is_stopped) {
        return;
    }
    if (t->is_suspended) {
        suspend(t);
        return;
    }
    if (resume(t) && !reaches_limit(t) && !waits_for_pod_group(t) &&
        (t->kind->keep_attempt == NULL || t->kind->keep_attempt(t))) {
        keep_objects(t);
    }
}

static bool is_for_us(gr_training *t)
{
    char sentence[GR_EVENT_BYTES];
    const json_t *manager = run_policy(t, "managedBy");
    if (gr_object_at(t->look.job, "metadata.deletionTimestamp") != NULL ||
        (json_is_string(manager) &&
         strcmp(json_string_value(manager), "kueue.x-k8s.io/multikueue") == 0)) {
        return false;
    }
    gr_training_validate(t, sentence);
    if (sentence[0] != '\0') {
        gr_look_event(&t->look, "Warning", "ValidationError", sentence);
    }
    return sentence[0] == '\0';
}

gr_status gr_training_reconcile(const gr_training_kind *kind, const gr_operator_view *view,
                                gr_operator_result *result_out, gr_diag *diag)
{
    gr_training t = {.kind = kind, .surplus = json_array(), .foreign = json_array()};
    gr_look_open(&t.look, view, kind->kind, result_out);
    t.look.no_memory |= t.surplus == NULL || t.foreign == NULL;
    if (!t.look.no_memory) {
        gr_training_set_defaults(&t);
    }
    if (!t.look.no_memory && is_for_us(&t)) {
        t.is_suspended = json_is_true(run_policy(&t, "suspend"));
        t.look.no_memory |= !gr_training_read_roles(&t);
        if (!t.look.no_memory) {
            look(&t);
        }
        if (!t.is_deleted) {
            gr_look_write_status(&t.look);
        }
    }
    for (size_t r = 0; r < t.role_count; r++) {
        free(t.roles[r].pods);
        free(t.roles[r].services);
    }
    json_decref(t.surplus);
    json_decref(t.foreign);
    json_decref(t.cluster);
    return gr_look_close(&t.look, diag);
}
