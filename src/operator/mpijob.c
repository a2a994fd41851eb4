/* SPDX-License-Identifier: Apache-2.0 */

/* MPIJob v2beta1: one look at a job, from what is in the cluster to what is to be written there.
 *
 *   wrong, ended or another's   nothing is written
 *   over                        workers and PodGroup go, as cleanPodPolicy says
 *   the launcher is done        its end becomes the job's; the next look cleans up
 *   suspended                   Service, ConfigMap, Secret and a batch Job that is suspended
 *   else                        also the PodGroup, the workers and, when it is its turn, the
 *                               launcher */

#include "operator/mpijob.h"

#include "base/fail.h"
#include "base/text.h"
#include "operator/object.h"
#include "operator/pod_group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void keep_service(gr_mpijob *m)
{
    static const char *const keys[] = {"selector", "publishNotReadyAddresses", NULL};
    json_t *service = gr_mpijob_service(m);
    gr_look_keep(&m->look, service, "spec", keys);
    json_decref(service);
}

static void keep_config_map(gr_mpijob *m)
{
    static const char *const whole[] = {NULL};
    json_t *map = gr_mpijob_config_map(m);
    gr_look_keep(&m->look, map, "data", whole);
    json_decref(map);
}

/* The keys of a job are made once. */
static void keep_secret(gr_mpijob *m)
{
    static const char *const whole[] = {NULL};
    char name[512];
    snprintf(name, sizeof name, "%s-%s", m->look.name, m->by_agent ? "agent" : "ssh");
    const json_t *there = gr_look_find_own(&m->look, "v1", "Secret", name);
    const json_t *data = json_object_get(there, "data");
    bool is_whole = m->by_agent ? json_object_get(data, "token") != NULL
                                : json_object_size(data) == 2 &&
                                      json_object_get(data, "ssh-privatekey") != NULL &&
                                      json_object_get(data, "ssh-publickey") != NULL;
    if (is_whole || m->look.is_stopped) {
        return;
    }
    json_t *secret = gr_mpijob_secret(m);
    if (!m->no_key) {
        gr_look_keep(&m->look, secret, "data", whole);
    }
    json_decref(secret);
}

static void keep_pod_group(gr_mpijob *m)
{
    if (m->look.view->gang_scheduler[0] != '\0') {
        gr_pod_group_keep(&m->look, gr_mpijob_pod_group(m));
    }
}

/* ---- Workers --------------------------------------------------------------------------------- */
/* Deletes the workers from number `first` on; those that have ended are kept, where the user wants
 * them. */
static void delete_workers(gr_mpijob *m, int64_t first, bool keep_ended)
{
    size_t i;
    const json_t *pod;
    json_array_foreach(m->look.view->objects, i, pod)
    {
        int64_t index;
        const char *phase = gr_object_text(pod, "status.phase");
        bool has_ended =
            phase != NULL && (strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0);
        if (gr_mpijob_is_worker(m, pod, &index) && gr_object_controlled(pod, m->look.uid) &&
            index >= first && !(keep_ended && has_ended)) {
            (void)gr_look_delete(&m->look, pod);
        }
    }
}

static void keep_workers(gr_mpijob *m)
{
    int64_t created = 0;
    delete_workers(m, m->workers, false);
    for (int64_t i = 0; i < m->workers && !m->look.no_memory; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s-worker-%" PRId64, m->look.name, i);
        json_t *pod = json_incref(gr_look_find_own(&m->look, "v1", "Pod", name));
        if (m->look.is_stopped) {
            return;
        }
        if (pod == NULL && created == GR_CREATIONS_MAX && !m->look.view->creates_all) {
            m->lacks_workers = true;
            continue;
        }
        if (pod == NULL) {
            created++;
            pod = gr_mpijob_worker(m, i);
            gr_look_write(&m->look, "create", json_incref(pod));
        }
        gr_object_append(m->pods, pod, &m->look.no_memory);
    }
}

static void clean_up(gr_mpijob *m)
{
    const char *policy = gr_object_text(m->look.job, "spec.runPolicy.cleanPodPolicy");
    delete_workers(m, 0, policy != NULL && strcmp(policy, "Running") == 0);
    (void)gr_pod_group_delete(&m->look);
    (void)gr_mpijob_zero_replicas(m, "Worker");
}

/* ---- Launcher -------------------------------------------------------------------------------- */
static bool are_all_ready(const gr_mpijob *m)
{
    size_t i;
    const json_t *pod;
    json_array_foreach(m->pods, i, pod)
    {
        if (!gr_object_holds(gr_object_at(pod, "status.conditions"), "Ready")) {
            return false;
        }
    }
    return true;
}

static void create_launcher(gr_mpijob *m)
{
    if (!gr_mpijob_launcher_waits(m) || are_all_ready(m)) {
        m->launcher = gr_mpijob_launcher(m);
        gr_look_write(&m->look, "create", json_incref(m->launcher));
    }
}

/* The template of a Job that has started cannot be changed: its startTime goes first, and the next
 * look does the rest. */
static void resume_launcher(gr_mpijob *m)
{
    static const char *const replaced[] = {"nodeSelector", "tolerations", "schedulingGates", NULL};
    static const char *const merged[] = {"labels", "annotations", NULL};
    json_t *job = json_deep_copy(m->launcher);
    if (gr_object_text(job, "status.startTime") != NULL) {
        json_object_del(json_object_get(job, "status"), "startTime");
        gr_look_write(&m->look, "status", job);
        return;
    }
    json_t *wanted = gr_mpijob_launcher_template(m);
    json_t *template = gr_object_at(job, "spec.template");
    json_t *metadata = gr_object_map(template, "metadata", &m->look.no_memory);
    json_t *spec = json_object_get(template, "spec");
    for (size_t i = 0; merged[i] != NULL; i++) {
        json_t *values = gr_object_at(json_object_get(wanted, "metadata"), merged[i]);
        if (json_object_size(values) > 0) {
            m->look.no_memory |=
                json_object_update(gr_object_map(metadata, merged[i], &m->look.no_memory),
                                   values) != 0;
        }
    }
    for (size_t i = 0; replaced[i] != NULL; i++) {
        json_t *value = gr_object_at(json_object_get(wanted, "spec"), replaced[i]);
        if (value != NULL) {
            gr_object_put(spec, replaced[i], json_incref(value), &m->look.no_memory);
        } else {
            json_object_del(spec, replaced[i]);
        }
    }
    gr_object_put(json_object_get(job, "spec"), "suspend", json_false(), &m->look.no_memory);
    gr_look_write(&m->look, "update", job);
    json_decref(wanted);
}

/* The batch Job is suspended when the MPIJob is. */
static void align_launcher(gr_mpijob *m)
{
    bool is_suspended = gr_object_true(m->launcher, "spec.suspend");
    if (m->launcher == NULL || is_suspended == m->is_suspended) {
        return;
    }
    if (is_suspended) {
        resume_launcher(m);
        return;
    }
    json_t *job = json_deep_copy(m->launcher);
    gr_object_put(json_object_get(job, "spec"), "suspend", json_true(), &m->look.no_memory);
    gr_look_write(&m->look, "update", job);
}

/* ---- A look ---------------------------------------------------------------------------------- */
static bool is_over(const gr_mpijob *m)
{
    const json_t *conditions = json_object_get(m->look.status, "conditions");
    return gr_object_text(m->look.status, "completionTime") != NULL &&
           (gr_object_holds(conditions, "Succeeded") || gr_object_holds(conditions, "Failed"));
}

static void keep_objects(gr_mpijob *m)
{
    static void (*const steps[])(gr_mpijob *) = {keep_service, keep_config_map, keep_secret,
                                                 keep_pod_group, keep_workers};
    enum { STEPS_OF_SUSPENDED = 3, STEPS = sizeof steps / sizeof steps[0] };
    int count = m->is_suspended ? STEPS_OF_SUSPENDED : STEPS;
    for (int i = 0; i < count && !m->look.is_stopped; i++) {
        steps[i](m);
    }
    if (m->launcher == NULL && !m->look.is_stopped && !m->lacks_workers) {
        create_launcher(m);
    }
}

/* A group of more pods than there are without the launcher is never placed. */
static void warn_of_min_available(gr_mpijob *m)
{
    char message[GR_EVENT_BYTES];
    int64_t min = gr_object_int(m->look.job, "spec.runPolicy.schedulingPolicy.minAvailable", 0);
    if (m->look.view->gang_scheduler[0] != '\0' && gr_mpijob_launcher_waits(m) &&
        min > m->workers) {
        snprintf(message, sizeof message,
                 "no pod can start: spec.runPolicy.schedulingPolicy.minAvailable %" PRId64
                 " is more than the %" PRId64 " workers, for which the launcher waits "
                 "(spec.launcherCreationPolicy)",
                 min, m->workers);
        gr_look_event(&m->look, "Warning", "MinAvailable", message);
    }
}

/* What is done otherwise than the job says, or cannot be done, told once. */
static void warn(gr_mpijob *m)
{
    enum { NAME_BYTES_MAX = 253 };
    static const char *const roles[] = {"Launcher", "Worker"};
    const char *policy = gr_object_text(m->look.job, "spec.launcherCreationPolicy");
    const char *gang_scheduler = m->look.view->gang_scheduler;
    char message[GR_EVENT_BYTES];
    if (policy == NULL ||
        (strcmp(policy, "AtStartup") != 0 && strcmp(policy, "WaitForWorkersReady") != 0)) {
        gr_look_event(&m->look, "Warning", "LauncherCreationPolicy",
                      "spec.launcherCreationPolicy is neither AtStartup nor "
                      "WaitForWorkersReady: the launcher waits for the workers");
    }
    warn_of_min_available(m);
    for (size_t i = 0; gang_scheduler[0] != '\0' && i < sizeof roles / sizeof roles[0]; i++) {
        const json_t *spec =
            json_object_get(gr_object_at(m->look.job, "spec.mpiReplicaSpecs"), roles[i]);
        const char *scheduler = gr_object_text(spec, "template.spec.schedulerName");
        if (scheduler != NULL && strcmp(scheduler, gang_scheduler) != 0) {
            snprintf(message, sizeof message,
                     "schedulerName %.*s of %s is replaced by %.*s, which places all pods of "
                     "the job together",
                     gr_text_fit(scheduler, NAME_BYTES_MAX), scheduler, roles[i],
                     gr_text_fit(gang_scheduler, NAME_BYTES_MAX), gang_scheduler);
            gr_look_event(&m->look, "Warning", "SchedulerNameReplaced", message);
        }
    }
}

static void begin(gr_mpijob *m)
{
    if (json_array_size(json_object_get(m->look.status, "conditions")) == 0) {
        char message[GR_EVENT_BYTES];
        snprintf(message, sizeof message, "MPIJob %s/%s is created.", m->look.space, m->look.name);
        (void)gr_look_set_condition(&m->look, "Created", true, "MPIJobCreated", message);
        gr_look_event(&m->look, "Normal", "MPIJobCreated", message);
        warn(m);
    }
    if (!is_over(m) && !m->is_suspended && gr_object_text(m->look.status, "startTime") == NULL) {
        gr_object_put_text(m->look.status, "startTime", m->look.view->now, &m->look.no_memory);
    }
}

static void look(gr_mpijob *m)
{
    char name[512];
    begin(m);
    if (is_over(m)) {
        const char *policy = gr_object_text(m->look.job, "spec.runPolicy.cleanPodPolicy");
        if (strcmp(policy, "None") != 0) {
            clean_up(m);
        }
        return;
    }
    snprintf(name, sizeof name, "%s-launcher", m->look.name);
    m->launcher = json_incref(gr_look_find_own(&m->look, "batch/v1", "Job", name));
    const json_t *conditions = gr_object_at(m->launcher, "status.conditions");
    bool is_done = gr_object_holds(conditions, "Complete") || gr_object_holds(conditions, "Failed");
    bool is_new = m->launcher == NULL;
    if (!is_done && !m->look.is_stopped) {
        keep_objects(m);
    }
    if (m->look.is_stopped) {
        return;
    }
    if (!is_new) {
        align_launcher(m);
    }
    if (m->is_suspended) {
        clean_up(m);
    }
    if (!m->look.is_stopped) {
        gr_mpijob_report_status(m);
    }
}

/* Returns true if the job is ours and there is something to do. A job that names an unknown
 * controller gets a sentence. */
static bool is_for_us(gr_mpijob *m)
{
    const char *manager = gr_object_text(m->look.job, "spec.runPolicy.managedBy");
    if (json_object_get(json_object_get(m->look.job, "metadata"), "deletionTimestamp") != NULL ||
        (manager != NULL && strcmp(manager, "kueue.x-k8s.io/multikueue") == 0)) {
        return false;
    }
    char sentence[GR_EVENT_BYTES];
    gr_mpijob_validate(m->look.job, sentence);
    if (sentence[0] != '\0') {
        gr_look_event(&m->look, "Warning", "ValidationError", sentence);
        return false;
    }
    return true;
}

static void look_at(gr_mpijob *m)
{
    json_t *job = m->look.job;
    gr_mpijob_defaults(job, &m->look.no_memory);
    if (m->look.no_memory || !is_for_us(m)) {
        return;
    }
    m->implementation = gr_object_text(job, "spec.mpiImplementation");
    m->workers = gr_object_int(job, "spec.mpiReplicaSpecs.Worker.replicas", 0);
    m->launcher_is_worker = gr_object_true(job, "spec.runLauncherAsWorker");
    m->is_suspended = gr_object_true(job, "spec.runPolicy.suspend");
    const char *launch = gr_mpijob_launch(job);
    m->by_agent = !m->look.view->has_no_agents && launch != NULL && strcmp(launch, "agent") == 0;
    look(m);
    gr_look_write_status(&m->look);
}

static gr_status reconcile(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag)
{
    gr_mpijob m = {.pods = json_array()};
    gr_look_open(&m.look, view, &gr_mpijob_v2, result_out);
    m.look.no_memory |= m.pods == NULL;
    look_at(&m);
    json_decref(m.launcher);
    json_decref(m.pods);
    gr_status status = gr_look_close(&m.look, diag);
    if (status == GR_OK && m.no_key) {
        gr_operator_result_fini(result_out);
        return gr_fail(diag, GR_E_NO_MEMORY, "no keys could be made for an MPIJob");
    }
    return status;
}

const gr_operator_kind gr_mpijob_v2 = {.api_version = "kubeflow.org/v2beta1",
                                       .kind = "MPIJob",
                                       .fields = gr_mpijob_fields,
                                       .reconcile = reconcile};
