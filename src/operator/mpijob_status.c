/* SPDX-License-Identifier: Apache-2.0 */

/* What the batch Job of the launcher and the pods of the workers mean for the status of an MPIJob.
 *
 * Conditions, each True or False:
 *   Created    from the first look on
 *   Running    a launcher and all workers run; False when it is suspended or over
 *   Succeeded  the batch Job is Complete          \ both are the end where completionTime is set;
 *   Failed     the batch Job failed, or a worker   / an evicted worker alone sets none
 *              was evicted
 *   Suspended  as spec.runPolicy.suspend; False only after it was True */

#include "operator/mpijob.h"

#include "base/text.h"
#include "operator/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

json_t *gr_mpijob_zero_replicas(gr_mpijob *m, const char *role)
{
    json_t *roles = gr_object_map(m->look.status, "replicaStatuses", &m->look.no_memory);
    gr_object_put(roles, role, json_object(), &m->look.no_memory);
    return json_object_get(roles, role);
}

/* A count of zero is left out. */
static void put_count(gr_mpijob *m, json_t *counts, const char *key, int64_t count)
{
    if (count > 0) {
        gr_object_put(counts, key, json_integer(count), &m->look.no_memory);
    }
}

/* Cuts a text that is longer than an event may be. */
static void cut(char *text, int length)
{
    if (length >= GR_EVENT_BYTES) {
        gr_text_mark_cut(text, GR_EVENT_BYTES);
    }
}

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

static bool is_pod_of_launcher(const gr_mpijob *m, const json_t *pod)
{
    const char *uid = gr_object_text(m->launcher, "metadata.uid");
    return uid != NULL && gr_object_is(pod, "v1", "Pod") && gr_object_controlled(pod, uid);
}

static int64_t count_running_launchers(const gr_mpijob *m)
{
    int64_t count = 0;
    size_t i;
    const json_t *pod;
    json_array_foreach(m->look.view->objects, i, pod)
    {
        count += is_pod_of_launcher(m, pod) && gr_object_is_text(pod, "status.phase", "Running");
    }
    return count;
}

/* The launcher's last pod that failed, NULL if none did. Times of one form compare as texts. */
static const json_t *last_failed_launcher(const gr_mpijob *m)
{
    const json_t *last = NULL;
    size_t i;
    const json_t *pod;
    json_array_foreach(m->look.view->objects, i, pod)
    {
        if (is_pod_of_launcher(m, pod) && gr_object_is_text(pod, "status.phase", "Failed") &&
            (last == NULL ||
             strcmp(or_empty(gr_object_text(pod, "metadata.creationTimestamp")),
                    or_empty(gr_object_text(last, "metadata.creationTimestamp"))) > 0)) {
            last = pod;
        }
    }
    return last;
}

static void report_failed(gr_mpijob *m)
{
    const json_t *failed =
        gr_object_condition(gr_object_at(m->launcher, "status.conditions"), "Failed");
    char reason[GR_EVENT_BYTES], message[GR_EVENT_BYTES];
    const char *given = or_empty(gr_object_text(failed, "reason"));
    const char *text = or_empty(gr_object_text(failed, "message"));
    const json_t *pod = strcmp(given, "BackoffLimitExceeded") == 0 ? last_failed_launcher(m) : NULL;
    snprintf(reason, sizeof reason, "%s%s%s", given[0] != '\0' ? given : "MPIJobFailed",
             pod != NULL ? "/" : "", or_empty(gr_object_text(pod, "status.reason")));
    int length = text[0] != '\0'
                     ? snprintf(message, sizeof message, "%s%s%s", text, pod != NULL ? ": " : "",
                                or_empty(gr_object_text(pod, "status.message")))
                     : snprintf(message, sizeof message, "MPIJob %s/%s has failed", m->look.space,
                                m->look.name);
    cut(message, length);
    if (gr_object_text(m->look.status, "completionTime") == NULL) {
        gr_object_put_text(m->look.status, "completionTime", m->look.view->now, &m->look.no_memory);
    }
    if (gr_look_set_condition(&m->look, "Failed", true, reason, message)) {
        gr_look_event(&m->look, "Warning", reason, message);
    }
}

static void report_succeeded(gr_mpijob *m)
{
    char message[GR_EVENT_BYTES];
    cut(message, snprintf(message, sizeof message, "MPIJob %s/%s successfully completed.",
                          m->look.space, m->look.name));
    const char *time = gr_object_text(m->launcher, "status.completionTime");
    if (gr_object_text(m->look.status, "completionTime") == NULL && time != NULL) {
        gr_object_put_text(m->look.status, "completionTime", time, &m->look.no_memory);
    }
    if (gr_look_set_condition(&m->look, "Succeeded", true, "MPIJobSucceeded", message)) {
        gr_look_event(&m->look, "Normal", "MPIJobSucceeded", message);
    }
}

static void report_suspension(gr_mpijob *m)
{
    if (m->is_suspended) {
        if (gr_look_set_condition(&m->look, "Suspended", true, "MPIJobSuspended",
                                  "MPIJob suspended")) {
            gr_look_event(&m->look, "Normal", "MPIJobSuspended", "MPIJob suspended");
        }
    } else if (gr_object_condition(json_object_get(m->look.status, "conditions"), "Suspended") !=
                   NULL &&
               gr_look_set_condition(&m->look, "Suspended", false, "MPIJobResumed",
                                     "MPIJob resumed")) {
        gr_look_event(&m->look, "Normal", "MPIJobResumed", "MPIJob resumed");
        gr_object_put_text(m->look.status, "startTime", m->look.view->now, &m->look.no_memory);
    }
}

/* Counts the launcher; returns how many of its pods run. */
static int64_t report_launcher(gr_mpijob *m)
{
    if (m->launcher == NULL) {
        return 0;
    }
    const json_t *conditions = gr_object_at(m->launcher, "status.conditions");
    int64_t running = count_running_launchers(m);
    json_t *counts = gr_mpijob_zero_replicas(m, "Launcher");
    put_count(m, counts, "failed", gr_object_int(m->launcher, "status.failed", 0));
    if (gr_object_holds(conditions, "Complete")) {
        put_count(m, counts, "succeeded", 1);
        report_succeeded(m);
    } else if (gr_object_holds(conditions, "Failed")) {
        report_failed(m);
    } else {
        put_count(m, counts, "active", running);
    }
    return running;
}

/* Counts the workers; returns how many run. */
static int64_t report_workers(gr_mpijob *m)
{
    int64_t active = 0, succeeded = 0, failed = 0, evicted = 0;
    size_t i;
    const json_t *pod;
    json_array_foreach(m->pods, i, pod)
    {
        bool has_failed = gr_object_is_text(pod, "status.phase", "Failed");
        active += gr_object_is_text(pod, "status.phase", "Running");
        succeeded += gr_object_is_text(pod, "status.phase", "Succeeded");
        failed += has_failed;
        evicted += has_failed && gr_object_is_text(pod, "status.reason", "Evicted");
    }
    json_t *counts = gr_mpijob_zero_replicas(m, "Worker");
    put_count(m, counts, "active", active);
    put_count(m, counts, "succeeded", succeeded);
    put_count(m, counts, "failed", failed);
    if (evicted > 0) {
        char message[128];
        snprintf(message, sizeof message, "%" PRId64 "/%" PRId64 " workers are evicted", evicted,
                 m->workers);
        if (gr_look_set_condition(&m->look, "Failed", true, "MPIJobEvicted", message)) {
            gr_look_event(&m->look, "Warning", "MPIJobEvicted", message);
        }
    }
    return active;
}

/* Who computes how long a job ran looks for Running, also where it was over before anybody saw it
 * run. */
static void report_never_running(gr_mpijob *m)
{
    const char *time = gr_object_text(m->look.status, "completionTime");
    gr_object_append(
        gr_object_list(m->look.status, "conditions", &m->look.no_memory),
        json_pack("{s:s, s:s, s:s, s:o, s:s, s:s}", "type", "Running", "status", "False", "reason",
                  "MPIJobRunning", "message",
                  json_sprintf("MPIJob %s/%s is finished but Running condition was never set.",
                               m->look.space, m->look.name),
                  "lastUpdateTime", time != NULL ? time : m->look.view->now, "lastTransitionTime",
                  time != NULL ? time : m->look.view->now),
        &m->look.no_memory);
}

void gr_mpijob_report_status(gr_mpijob *m)
{
    char message[GR_EVENT_BYTES];
    report_suspension(m);
    int64_t launchers = report_launcher(m);
    int64_t workers = report_workers(m);
    const json_t *conditions = json_object_get(m->look.status, "conditions");
    if (m->is_suspended) {
        snprintf(message, sizeof message, "MPIJob %s/%s is suspended.", m->look.space,
                 m->look.name);
        (void)gr_look_set_condition(&m->look, "Running", false, "MPIJobSuspended", message);
    } else if (gr_object_holds(conditions, "Succeeded") || gr_object_holds(conditions, "Failed")) {
        if (gr_object_condition(conditions, "Running") == NULL) {
            report_never_running(m);
        }
    } else if (launchers >= 1 && workers == m->workers) {
        snprintf(message, sizeof message, "MPIJob %s/%s is running.", m->look.space, m->look.name);
        if (gr_look_set_condition(&m->look, "Running", true, "MPIJobRunning", message)) {
            message[strlen(message) - 1] = '\0'; /* the event's has no full stop */
            gr_look_event(&m->look, "Normal", "MPIJobRunning", message);
        }
    }
}
