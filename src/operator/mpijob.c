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
#include "operator/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void gr_mpijob_event(gr_mpijob *m, const char *type, const char *reason, const char *message)
{
    gr_object_append(
        m->result->events,
        json_pack("{s:s, s:s, s:s}", "type", type, "reason", reason, "message", message),
        &m->no_memory);
}

/* Takes the object over. */
static void write_object(gr_mpijob *m, const char *verb, json_t *object)
{
    gr_object_append(m->result->writes, json_pack("{s:s, s:o}", "verb", verb, "object", object),
                     &m->no_memory);
}

static void delete_object(gr_mpijob *m, const json_t *object)
{
    json_t *metadata = gr_object_at(object, "metadata");
    if (json_object_get(metadata, "deletionTimestamp") != NULL) {
        return; /* it goes already */
    }
    write_object(
        m, "delete",
        json_pack("{s:O, s:O, s:{s:O, s:O*, s:O*}}", "apiVersion",
                  json_object_get(object, "apiVersion"), "kind", json_object_get(object, "kind"),
                  "metadata", "name", json_object_get(metadata, "name"), "namespace",
                  json_object_get(metadata, "namespace"), "uid", json_object_get(metadata, "uid")));
}

/* The job's own object of that name, NULL if there is none. Another's object is in the way: then
 * nothing more is made. */
static json_t *find_own(gr_mpijob *m, const char *api_version, const char *kind, const char *name)
{
    json_t *object = gr_object_find(m->view->objects, api_version, kind, name);
    if (object == NULL || gr_object_controlled(object, m->uid)) {
        return object;
    }
    char message[GR_EVENT_BYTES];
    snprintf(message, sizeof message,
             "Resource \"%s\" of Kind \"%s\" already exists and is not managed by MPIJob", name,
             kind);
    gr_mpijob_event(m, "Warning", "ErrResourceExists", message);
    m->is_stopped = m->result->retry = true;
    return NULL;
}

/* Creates the object (taken over), or repairs what stands there: the parts of it that `keys`
 * (NULL-terminated) name are as in the new one. */
static void keep(gr_mpijob *m, json_t *wanted, const char *part, const char *const *keys)
{
    const char *api_version = gr_object_text(wanted, "apiVersion");
    const char *kind = gr_object_text(wanted, "kind");
    const char *name = gr_object_text(wanted, "metadata.name");
    if (name == NULL) {
        m->no_memory = true;
        return;
    }
    const json_t *there = find_own(m, api_version, kind, name);
    if (there == NULL) {
        if (!m->is_stopped) {
            write_object(m, "create", json_incref(wanted));
        }
        return;
    }
    json_t *is = json_object_get(there, part), *should = json_object_get(wanted, part);
    bool is_same = keys[0] != NULL || json_equal(is, should);
    for (size_t i = 0; keys[i] != NULL; i++) {
        const json_t *a = json_object_get(is, keys[i]), *b = json_object_get(should, keys[i]);
        is_same &= a == b || json_equal(a, b) || (b == NULL && json_is_false(a));
    }
    if (is_same) {
        return;
    }
    json_t *repaired = json_deep_copy(there);
    if (keys[0] == NULL) {
        gr_object_put(repaired, part, json_incref(should), &m->no_memory);
    }
    json_t *target = keys[0] != NULL ? gr_object_map(repaired, part, &m->no_memory) : NULL;
    for (size_t i = 0; keys[i] != NULL; i++) {
        json_t *value = json_object_get(should, keys[i]);
        if (value != NULL) {
            gr_object_put(target, keys[i], json_incref(value), &m->no_memory);
        } else {
            json_object_del(target, keys[i]);
        }
    }
    write_object(m, "update", repaired);
}

static void keep_service(gr_mpijob *m)
{
    static const char *const keys[] = {"selector", "publishNotReadyAddresses", NULL};
    json_t *service = gr_mpijob_service(m);
    keep(m, service, "spec", keys);
    json_decref(service);
}

static void keep_config_map(gr_mpijob *m)
{
    static const char *const whole[] = {NULL};
    json_t *map = gr_mpijob_config_map(m);
    keep(m, map, "data", whole);
    json_decref(map);
}

/* The keys of a job are made once. */
static void keep_secret(gr_mpijob *m)
{
    static const char *const whole[] = {NULL};
    char name[512];
    snprintf(name, sizeof name, "%s-ssh", m->name);
    const json_t *there = find_own(m, "v1", "Secret", name);
    const json_t *data = json_object_get(there, "data");
    bool is_whole = json_object_size(data) == 2 &&
                    json_object_get(data, "ssh-privatekey") != NULL &&
                    json_object_get(data, "ssh-publickey") != NULL;
    if (is_whole || m->is_stopped) {
        return;
    }
    json_t *secret = gr_mpijob_secret(m);
    if (!m->no_key) {
        keep(m, secret, "data", whole);
    }
    json_decref(secret);
}

/* A scheduler may set more than the operator does: that stays. */
static void keep_pod_group(gr_mpijob *m)
{
    enum { KEYS_MAX = 8 };
    if (m->view->gang_scheduler[0] == '\0') {
        return;
    }
    json_t *group = gr_mpijob_pod_group(m), *value;
    const char *keys[KEYS_MAX + 1] = {NULL}, *key;
    size_t count = 0;
    json_object_foreach(json_object_get(group, "spec"), key, value)
    {
        if (count < KEYS_MAX) {
            keys[count++] = key;
        }
    }
    keep(m, group, "spec", keys);
    json_decref(group);
}

static void delete_pod_group(gr_mpijob *m)
{
    if (m->view->gang_scheduler[0] != '\0') {
        json_t *group = find_own(m, gr_mpijob_pod_group_api(m), "PodGroup", m->name);
        if (group != NULL) {
            delete_object(m, group);
        }
    }
}

/* ---- Workers --------------------------------------------------------------------------------- */
/* Deletes the workers from number `first` on; those that have ended are kept, where the user wants
 * them. */
static void delete_workers(gr_mpijob *m, int64_t first, bool keep_ended)
{
    size_t i;
    const json_t *pod;
    json_array_foreach(m->view->objects, i, pod)
    {
        int64_t index;
        const char *phase = gr_object_text(pod, "status.phase");
        bool has_ended =
            phase != NULL && (strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0);
        if (gr_mpijob_is_worker(m, pod, &index) && gr_object_controlled(pod, m->uid) &&
            index >= first && !(keep_ended && has_ended)) {
            delete_object(m, pod);
        }
    }
}

static void keep_workers(gr_mpijob *m)
{
    delete_workers(m, m->workers, false);
    for (int64_t i = 0; i < m->workers && !m->no_memory; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s-worker-%" PRId64, m->name, i);
        json_t *pod = json_incref(find_own(m, "v1", "Pod", name));
        if (m->is_stopped) {
            return;
        }
        if (pod == NULL) {
            pod = gr_mpijob_worker(m, i);
            write_object(m, "create", json_incref(pod));
        }
        gr_object_append(m->pods, pod, &m->no_memory);
    }
}

static void clean_up(gr_mpijob *m)
{
    const char *policy = gr_object_text(m->job, "spec.runPolicy.cleanPodPolicy");
    delete_workers(m, 0, policy != NULL && strcmp(policy, "Running") == 0);
    delete_pod_group(m);
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
    const char *policy = gr_object_text(m->job, "spec.launcherCreationPolicy");
    if ((policy != NULL && strcmp(policy, "AtStartup") == 0) || are_all_ready(m)) {
        m->launcher = gr_mpijob_launcher(m);
        write_object(m, "create", json_incref(m->launcher));
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
        write_object(m, "status", job);
        return;
    }
    json_t *wanted = gr_mpijob_launcher_template(m);
    json_t *template = gr_object_at(job, "spec.template");
    json_t *metadata = gr_object_map(template, "metadata", &m->no_memory);
    json_t *spec = json_object_get(template, "spec");
    for (size_t i = 0; merged[i] != NULL; i++) {
        json_t *values = gr_object_at(json_object_get(wanted, "metadata"), merged[i]);
        if (json_object_size(values) > 0) {
            m->no_memory |=
                json_object_update(gr_object_map(metadata, merged[i], &m->no_memory), values) != 0;
        }
    }
    for (size_t i = 0; replaced[i] != NULL; i++) {
        json_t *value = gr_object_at(json_object_get(wanted, "spec"), replaced[i]);
        if (value != NULL) {
            gr_object_put(spec, replaced[i], json_incref(value), &m->no_memory);
        } else {
            json_object_del(spec, replaced[i]);
        }
    }
    gr_object_put(json_object_get(job, "spec"), "suspend", json_false(), &m->no_memory);
    write_object(m, "update", job);
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
    gr_object_put(json_object_get(job, "spec"), "suspend", json_true(), &m->no_memory);
    write_object(m, "update", job);
}

/* ---- A look ---------------------------------------------------------------------------------- */
static bool is_over(const gr_mpijob *m)
{
    const json_t *conditions = json_object_get(m->status, "conditions");
    return gr_object_text(m->status, "completionTime") != NULL &&
           (gr_object_holds(conditions, "Succeeded") || gr_object_holds(conditions, "Failed"));
}

static void keep_objects(gr_mpijob *m)
{
    static void (*const steps[])(gr_mpijob *) = {keep_service, keep_config_map, keep_secret,
                                                 keep_pod_group, keep_workers};
    enum { STEPS_OF_SUSPENDED = 3, STEPS = sizeof steps / sizeof steps[0] };
    int count = m->is_suspended ? STEPS_OF_SUSPENDED : STEPS;
    for (int i = 0; i < count && !m->is_stopped; i++) {
        steps[i](m);
    }
    if (m->launcher == NULL && !m->is_stopped) {
        create_launcher(m);
    }
}

/* What is done otherwise than the job says, told once. */
static void warn(gr_mpijob *m)
{
    static const char *const roles[] = {"Launcher", "Worker"};
    const char *policy = gr_object_text(m->job, "spec.launcherCreationPolicy");
    const char *gang = m->view->gang_scheduler;
    char message[GR_EVENT_BYTES];
    if (policy == NULL ||
        (strcmp(policy, "AtStartup") != 0 && strcmp(policy, "WaitForWorkersReady") != 0)) {
        gr_mpijob_event(m, "Warning", "LauncherCreationPolicy",
                        "spec.launcherCreationPolicy is neither AtStartup nor "
                        "WaitForWorkersReady: the launcher waits for the workers");
    }
    for (size_t i = 0; gang[0] != '\0' && i < sizeof roles / sizeof roles[0]; i++) {
        const json_t *spec =
            json_object_get(gr_object_at(m->job, "spec.mpiReplicaSpecs"), roles[i]);
        const char *scheduler = gr_object_text(spec, "template.spec.schedulerName");
        if (scheduler != NULL && strcmp(scheduler, gang) != 0) {
            snprintf(message, sizeof message,
                     "schedulerName %.253s of %s is replaced by %.253s, which places all pods of "
                     "the job together",
                     scheduler, roles[i], gang);
            gr_mpijob_event(m, "Warning", "SchedulerNameReplaced", message);
        }
    }
}

static void begin(gr_mpijob *m)
{
    if (json_array_size(json_object_get(m->status, "conditions")) == 0) {
        char message[GR_EVENT_BYTES];
        snprintf(message, sizeof message, "MPIJob %s/%s is created.", m->space, m->name);
        (void)gr_mpijob_set_condition(m, "Created", true, "MPIJobCreated", message);
        gr_mpijob_event(m, "Normal", "MPIJobCreated", message);
        warn(m);
    }
    if (!is_over(m) && !m->is_suspended && gr_object_text(m->status, "startTime") == NULL) {
        gr_object_put_text(m->status, "startTime", m->view->now, &m->no_memory);
    }
}

static void look(gr_mpijob *m)
{
    char name[512];
    begin(m);
    if (is_over(m)) {
        const char *policy = gr_object_text(m->job, "spec.runPolicy.cleanPodPolicy");
        if (strcmp(policy, "None") != 0) {
            clean_up(m);
        }
        return;
    }
    snprintf(name, sizeof name, "%s-launcher", m->name);
    m->launcher = json_incref(find_own(m, "batch/v1", "Job", name));
    const json_t *conditions = gr_object_at(m->launcher, "status.conditions");
    bool is_done = gr_object_holds(conditions, "Complete") || gr_object_holds(conditions, "Failed");
    bool is_new = m->launcher == NULL;
    if (!is_done && !m->is_stopped) {
        keep_objects(m);
    }
    if (m->is_stopped) {
        return;
    }
    if (!is_new) {
        align_launcher(m);
    }
    if (m->is_suspended) {
        clean_up(m);
    }
    if (!m->is_stopped) {
        gr_mpijob_tell_status(m);
    }
}

/* Is it ours, and is there something to do? A job that names a controller that does not exist is
 * told so. */
static bool is_for_us(gr_mpijob *m)
{
    const char *manager = gr_object_text(m->job, "spec.runPolicy.managedBy");
    if (json_object_get(json_object_get(m->job, "metadata"), "deletionTimestamp") != NULL ||
        (manager != NULL && strcmp(manager, "kueue.x-k8s.io/multikueue") == 0)) {
        return false;
    }
    char sentence[GR_EVENT_BYTES];
    gr_mpijob_validate(m->job, sentence);
    if (sentence[0] != '\0') {
        gr_mpijob_event(m, "Warning", "ValidationError", sentence);
        return false;
    }
    return true;
}

static const char *text_or(const json_t *object, const char *path, const char *otherwise)
{
    const char *text = gr_object_text(object, path);
    return text != NULL ? text : otherwise;
}

static void look_at(gr_mpijob *m)
{
    gr_mpijob_defaults(m->job, &m->no_memory);
    if (m->no_memory || !is_for_us(m)) {
        return;
    }
    m->name = gr_object_text(m->job, "metadata.name");
    m->space = text_or(m->job, "metadata.namespace", "default");
    m->uid = text_or(m->job, "metadata.uid", "");
    m->implementation = gr_object_text(m->job, "spec.mpiImplementation");
    m->workers = gr_object_int(m->job, "spec.mpiReplicaSpecs.Worker.replicas", 0);
    m->launcher_is_worker = gr_object_true(m->job, "spec.runLauncherAsWorker");
    m->is_suspended = gr_object_true(m->job, "spec.runPolicy.suspend");
    const json_t *before = json_object_get(m->view->job, "status");
    m->status = json_is_object(before) ? json_deep_copy(before) : json_object();
    m->no_memory |= m->status == NULL;
    look(m);
    if (!json_equal(before, m->status)) {
        json_t *job = json_deep_copy(m->view->job);
        gr_object_put(job, "status", json_incref(m->status), &m->no_memory);
        write_object(m, "status", job);
    }
}

static gr_status reconcile(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag)
{
    *result_out = (gr_operator_result){.writes = json_array(), .events = json_array()};
    gr_mpijob m = {
        .view = view, .result = result_out, .job = json_deep_copy(view->job), .pods = json_array()};
    m.no_memory = m.job == NULL || m.pods == NULL;
    look_at(&m);
    json_decref(m.job);
    json_decref(m.status);
    json_decref(m.launcher);
    json_decref(m.pods);
    if (!m.no_memory && !m.no_key) {
        return GR_OK;
    }
    gr_operator_result_fini(result_out);
    return gr_fail(diag, GR_E_NO_MEMORY,
                   m.no_key ? "no ssh key pair could be made" : "no memory to look at an MPIJob");
}

const gr_operator_kind gr_mpijob_v2 = {.api_version = GR_MPIJOB_API,
                                       .kind = "MPIJob",
                                       .fields = gr_mpijob_fields,
                                       .reconcile = reconcile};
