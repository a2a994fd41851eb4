/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/support_cluster.h"

#include "base/fail.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char now[] = "2026-05-01T10:00:00Z";

void cluster_open(cluster *k)
{
    GR_CHECK(gr_operator_resource_count <= RESOURCES_MAX);
    *k = (cluster){
        .orphaned = json_array(), .alive = json_object(), .failed = json_object(), .version = 100};
    for (size_t i = 0; i < RESOURCES_MAX; i++) {
        k->objects[i] = json_object();
        k->history[i] = json_array();
    }
}

void cluster_close(cluster *k)
{
    for (size_t i = 0; i < RESOURCES_MAX; i++) {
        json_decref(k->objects[i]);
        json_decref(k->history[i]);
    }
    json_decref(k->orphaned);
    json_decref(k->alive);
    json_decref(k->failed);
}

size_t cluster_resource(const char *api_version, const char *kind)
{
    size_t resource = gr_operator_resource_find(api_version, kind);
    GR_CHECK(resource < gr_operator_resource_count);
    return resource;
}

static size_t pods(void)
{
    return cluster_resource("v1", "Pod");
}

static size_t batch_jobs(void)
{
    return cluster_resource("batch/v1", "Job");
}

static void put(json_t *object, const char *key, json_t *value)
{
    GR_CHECK(json_object_set_new(object, key, value) == 0);
}

static const char *key_of(const json_t *object, char key_out[512])
{
    snprintf(key_out, 512, "%s/%s", gr_object_text(object, "metadata.namespace"),
             gr_object_text(object, "metadata.name"));
    return key_out;
}

json_t *cluster_find(const cluster *k, size_t resource, const char *space, const char *name)
{
    char key[512];
    snprintf(key, sizeof key, "%s/%s", space, name);
    return json_object_get(k->objects[resource], key);
}

/* A new state of an object (taken over): what was shown before stays as it was. */
static void store(cluster *k, size_t resource, json_t *object, const char *type)
{
    char key[512], version[24];
    snprintf(version, sizeof version, "%" PRIu64, ++k->version);
    put(json_object_get(object, "metadata"), "resourceVersion", json_string(version));
    key_of(object, key);
    if (!k->keeps_no_history) {
        json_array_append_new(k->history[resource],
                              json_pack("{s:s, s:O}", "type", type, "object", object));
    }
    if (strcmp(type, "DELETED") == 0) {
        json_array_append(k->orphaned, gr_object_at(object, "metadata.uid"));
        json_object_del(k->alive, gr_object_text(object, "metadata.uid"));
        json_object_del(k->objects[resource], key);
        json_decref(object);
    } else {
        put(k->objects[resource], key, object);
    }
}

static gr_api_answer create(cluster *k, size_t resource, const json_t *object, json_t **object_out)
{
    char key[512], uid[32];
    if (json_object_get(k->objects[resource], key_of(object, key)) != NULL) {
        return GR_API_EXISTS;
    }
    json_t *made = json_deep_copy(object), *metadata = json_object_get(made, "metadata");
    snprintf(uid, sizeof uid, "uid-%08" PRIu64, ++k->uids);
    put(metadata, "uid", json_string(uid));
    put(k->alive, uid, json_true());
    json_t *owner = json_array_get(json_object_get(metadata, "ownerReferences"), 0);
    if (owner != NULL && json_object_get(k->alive, gr_object_text(owner, "uid")) == NULL) {
        json_array_append(k->orphaned, json_object_get(owner, "uid"));
    }
    put(metadata, "creationTimestamp", json_string(now));
    if (resource == pods()) {
        put(made, "status", json_pack("{s:s}", "phase", "Pending"));
    }
    store(k, resource, made, "ADDED");
    *object_out = json_deep_copy(made);
    return GR_API_OK;
}

/* A batch Job that has started keeps its template. */
static bool is_refused(size_t resource, const json_t *is, const json_t *object)
{
    return resource == batch_jobs() && gr_object_text(is, "status.startTime") != NULL &&
           !json_equal(gr_object_at(is, "spec.template"), gr_object_at(object, "spec.template"));
}

static gr_api_answer change(cluster *k, size_t resource, const json_t *is, const json_t *object,
                            bool is_status, json_t **object_out)
{
    if (!json_equal(gr_object_at(is, "metadata.resourceVersion"),
                    gr_object_at(object, "metadata.resourceVersion"))) {
        return GR_API_CONFLICT;
    }
    if (!is_status && is_refused(resource, is, object)) {
        *object_out = json_pack("{s:s, s:s}", "kind", "Status", "message", "field is immutable");
        return GR_API_REFUSED;
    }
    json_t *made = json_deep_copy(is_status ? is : object);
    json_t *status = json_object_get(is_status ? object : is, "status");
    if (status != NULL) {
        put(made, "status", json_deep_copy(status));
    }
    store(k, resource, made, "MODIFIED");
    *object_out = json_deep_copy(made);
    return GR_API_OK;
}

static gr_api_answer delete_object(cluster *k, size_t resource, const json_t *is,
                                   json_t **object_out)
{
    json_t *made = json_deep_copy(is);
    if (resource == pods()) {
        const char *phase = gr_object_text(is, "status.phase");
        bool is_done =
            phase != NULL && (strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0);
        bool is_going = gr_object_at(is, "metadata.deletionTimestamp") != NULL;
        if (!is_going) {
            put(json_object_get(made, "metadata"), "deletionTimestamp", json_string(now));
            put(json_object_get(made, "metadata"), "deletionGracePeriodSeconds",
                json_integer(is_done ? 0 : 30));
        }
        if (is_done || !is_going) { /* nothing of what is done has to end */
            json_incref(made);
            store(k, resource, made, is_done ? "DELETED" : "MODIFIED");
        }
        *object_out = json_deep_copy(made);
        json_decref(made);
    } else {
        *object_out = json_pack("{s:s, s:s}", "kind", "Status", "status", "Success");
        store(k, resource, made, "DELETED");
    }
    return GR_API_OK;
}

gr_api_answer cluster_call(cluster *k, const char *verb, size_t resource, const json_t *object,
                           json_t **object_out)
{
    char key[512];
    *object_out = NULL;
    if (strcmp(verb, "create") == 0) {
        return create(k, resource, object, object_out);
    }
    const json_t *is = json_object_get(k->objects[resource], key_of(object, key));
    const json_t *uid = gr_object_at(object, "metadata.uid");
    if (is == NULL) {
        return GR_API_NOT_FOUND;
    }
    if (strcmp(verb, "get") == 0) {
        *object_out = json_deep_copy(is);
        return GR_API_OK;
    }
    if (uid != NULL && !json_equal(uid, gr_object_at(is, "metadata.uid"))) {
        return GR_API_CONFLICT;
    }
    if (strcmp(verb, "delete") == 0) {
        return delete_object(k, resource, is, object_out);
    }
    return change(k, resource, is, object, strcmp(verb, "status") == 0, object_out);
}

bool cluster_edit(cluster *k, size_t resource, const char *space, const char *name,
                  const char *path, json_t *value)
{
    json_t *job = cluster_find(k, resource, space, name);
    if (job == NULL) {
        json_decref(value);
        return false;
    }
    char copy[256], *key = copy;
    bool no_memory = false;
    snprintf(copy, sizeof copy, "%s", path);
    job = json_deep_copy(job);
    json_t *at = job;
    for (char *dot; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        *dot = '\0';
        at = gr_object_map(at, key, &no_memory);
    }
    put(at, key, value);
    store(k, resource, job, "MODIFIED");
    return true;
}

/* ---- What moves ------------------------------------------------------------------------------ */
/* A copy of an object for a change of its status. */
static json_t *copy_with_status(const json_t *object, json_t **status_out)
{
    bool no_memory = false;
    json_t *copy = json_deep_copy(object);
    *status_out = gr_object_map(copy, "status", &no_memory);
    return copy;
}

static bool is_owned_by(const json_t *object, const char *uid)
{
    return gr_object_controlled(object, uid);
}

static bool fail_once(cluster *k, const json_t *pod)
{
    char key[512];
    if (!gr_object_is_text(pod, "metadata.labels.fails", "once") ||
        json_object_get(k->failed, key_of(pod, key)) != NULL) {
        return false;
    }
    json_t *status, *copy = copy_with_status(pod, &status);
    json_t *first = json_array_get(gr_object_at(pod, "spec.containers"), 0);
    put(k->failed, key, json_true());
    put(status, "phase", json_string("Failed"));
    put(status, "containerStatuses",
        json_pack("[{s:O, s:i, s:{s:{s:i}}}]", "name", json_object_get(first, "name"),
                  "restartCount", 0, "state", "terminated", "exitCode", 137));
    store(k, pods(), copy, "MODIFIED");
    return true;
}

/* A launcher's pod, or the one that stands for a job of training-operator. */
static bool is_decisive(const json_t *pod)
{
    const json_t *labels = gr_object_at(pod, "metadata.labels");
    const char *role = json_string_value(json_object_get(labels, "training.kubeflow.org/job-role"));
    return role != NULL && (strcmp(role, "launcher") == 0 || strcmp(role, "master") == 0);
}

static bool step_pod(cluster *k, const json_t *pod)
{
    const char *phase = gr_object_text(pod, "status.phase");
    json_t *status;
    if (gr_object_at(pod, "metadata.deletionTimestamp") != NULL) {
        store(k, pods(), json_deep_copy(pod), "DELETED");
        return true;
    }
    bool is_pending = strcmp(phase, "Pending") == 0, is_running = strcmp(phase, "Running") == 0;
    if (is_running && fail_once(k, pod)) {
        return true;
    }
    if (!is_pending && !(k->may_end && is_running && is_decisive(pod))) {
        return false;
    }
    json_t *copy = copy_with_status(pod, &status);
    put(status, "phase", json_string(is_pending ? "Running" : "Succeeded"));
    put(status, "conditions",
        json_pack("[{s:s, s:s}]", "type", "Ready", "status", is_pending ? "True" : "False"));
    store(k, pods(), copy, "MODIFIED");
    return true;
}

static size_t pod_groups(void)
{
    return cluster_resource("scheduling.volcano.sh/v1beta1", "PodGroup");
}

static bool step_pod_group(cluster *k, const json_t *group)
{
    json_t *status;
    if (gr_object_text(group, "status.phase") != NULL) {
        return false;
    }
    json_t *copy = copy_with_status(group, &status);
    put(status, "phase", json_string("Inqueue"));
    store(k, pod_groups(), copy, "MODIFIED");
    return true;
}

static void start_job(cluster *k, const json_t *job)
{
    json_t *template = gr_object_at(job, "spec.template"), *status, *made;
    char name[512];
    snprintf(name, sizeof name, "%s-%" PRIu64, gr_object_text(job, "metadata.name"), k->uids);
    json_t *pod =
        json_pack("{s:s, s:s, s:{s:s, s:O, s:O, s:[{s:s, s:s, s:O, s:O, s:b}]}, s:O}", "apiVersion",
                  "v1", "kind", "Pod", "metadata", "name", name, "namespace",
                  gr_object_at(job, "metadata.namespace"), "labels",
                  gr_object_at(template, "metadata.labels"), "ownerReferences", "apiVersion",
                  "batch/v1", "kind", "Job", "name", gr_object_at(job, "metadata.name"), "uid",
                  gr_object_at(job, "metadata.uid"), "controller", 1, "spec",
                  json_object_get(template, "spec"));
    GR_CHECK(pod != NULL && create(k, pods(), pod, &made) == GR_API_OK);
    json_decref(pod);
    json_decref(made);
    if (gr_object_text(job, "status.startTime") == NULL) {
        json_t *copy = copy_with_status(job, &status);
        put(status, "startTime", json_string(now));
        store(k, batch_jobs(), copy, "MODIFIED");
    }
}

static bool step_job(cluster *k, const json_t *job)
{
    if (json_array_size(gr_object_at(job, "status.conditions")) > 0) {
        return false;
    }
    const char *key, *uid = gr_object_text(job, "metadata.uid");
    json_t *pod, *own = NULL, *status, *answer;
    json_object_foreach(k->objects[pods()], key, pod)
    {
        own = is_owned_by(pod, uid) ? pod : own;
    }
    if (gr_object_true(job, "spec.suspend")) {
        if (own == NULL || gr_object_at(own, "metadata.deletionTimestamp") != NULL) {
            return false;
        }
        delete_object(k, pods(), own, &answer);
        json_decref(answer);
    } else if (own == NULL) {
        start_job(k, job);
    } else if (strcmp(gr_object_text(own, "status.phase"), "Succeeded") == 0) {
        json_t *copy = copy_with_status(job, &status);
        put(status, "completionTime", json_string(now));
        put(status, "conditions", json_pack("[{s:s, s:s}]", "type", "Complete", "status", "True"));
        store(k, batch_jobs(), copy, "MODIFIED");
    } else {
        return false;
    }
    return true;
}

static bool collect(cluster *k)
{
    size_t owners = json_array_size(k->orphaned);
    for (size_t r = 0; owners > 0 && r < RESOURCES_MAX; r++) {
        const char *key;
        void *next;
        json_t *object, *answer;
        json_object_foreach_safe(k->objects[r], next, key, object)
        {
            for (size_t i = 0; i < owners; i++) {
                if (is_owned_by(object, json_string_value(json_array_get(k->orphaned, i)))) {
                    delete_object(k, r, object, &answer);
                    json_decref(answer);
                    break;
                }
            }
        }
    }
    for (size_t i = 0; i < owners; i++) {
        json_array_remove(k->orphaned, 0);
    }
    return owners > 0;
}

bool cluster_step(cluster *k)
{
    static bool (*const steps[])(cluster *, const json_t *) = {step_pod, step_job, step_pod_group};
    const size_t resources[] = {pods(), batch_jobs(), pod_groups()};
    bool moved = collect(k);
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        json_t *there = json_copy(k->objects[resources[s]]), *object;
        const char *key;
        json_object_foreach(there, key, object)
        {
            moved |= steps[s](k, object);
        }
        json_decref(there);
    }
    return moved;
}

/* ---- What is left ---------------------------------------------------------------------------- */
static bool is_of_run(const char *key)
{
    static const char *const of_run[] = {"uid",
                                         "resourceVersion",
                                         "creationTimestamp",
                                         "startTime",
                                         "completionTime",
                                         "lastReconcileTime",
                                         "lastUpdateTime",
                                         "lastTransitionTime",
                                         "message",
                                         NULL};
    size_t i = 0;
    while (of_run[i] != NULL && strcmp(key, of_run[i]) != 0) {
        i++;
    }
    return of_run[i] != NULL;
}

/* Takes out what differs between runs, and brings conditions into one order. */
static void strip(json_t *value)
{
    const char *key;
    void *next;
    json_t *item;
    size_t i;
    json_object_foreach_safe(value, next, key, item)
    {
        if (is_of_run(key) || (json_is_false(item) && strcmp(key, "suspend") == 0)) {
            json_object_del(value, key);
        } else if (strcmp(key, "conditions") == 0) {
            json_t *by_type = json_object(), *condition;
            json_array_foreach(item, i, condition)
            {
                if (strcmp(gr_object_text(condition, "type"), "Suspended") == 0 &&
                    !gr_object_holds(item, "Suspended")) {
                    continue; /* a run may not have seen that it was */
                }
                put(by_type, gr_object_text(condition, "type"),
                    json_pack("[O, O*]", json_object_get(condition, "status"),
                              json_object_get(condition, "reason")));
            }
            put(value, key, by_type);
        } else {
            strip(item);
            if (json_is_object(item) && json_object_size(item) == 0) {
                json_object_del(value, key);
            }
        }
    }
    json_array_foreach(value, i, item)
    {
        strip(item);
    }
}

/* A disturbed run may not have seen that a job ran before it was suspended. */
static void forget_past(json_t *job)
{
    json_t *status = json_object_get(job, "status");
    if (gr_object_at(status, "conditions.Suspended") != NULL) {
        json_object_del(status, "replicaStatuses");
        json_object_del(json_object_get(status, "conditions"), "Running");
    }
}

static void forget_environment(json_t *pod)
{
    size_t i;
    json_t *container;
    json_array_foreach(gr_object_at(pod, "spec.containers"), i, container)
    {
        json_object_del(container, "env");
    }
}

/* A run may not have seen that the job was not suspended at first. */
static bool is_of_suspended(const cluster *k, const json_t *object)
{
    const json_t *owner = json_array_get(gr_object_at(object, "metadata.ownerReferences"), 0);
    const char *api_version = gr_object_text(owner, "apiVersion"),
               *name = gr_object_text(owner, "name");
    if (owner == NULL || strcmp(api_version, "kubeflow.org/v1") != 0) {
        return false;
    }
    size_t resource = cluster_resource(api_version, gr_object_text(owner, "kind"));
    const json_t *job =
        cluster_find(k, resource, gr_object_text(object, "metadata.namespace"), name);
    return gr_object_holds(gr_object_at(job, "status.conditions"), "Suspended");
}

const char *cluster_title(size_t resource, char title_out[128])
{
    const gr_operator_resource *row = &gr_operator_resources[resource];
    snprintf(title_out, 128, "%s of %s", row->kind, row->api_version);
    return title_out;
}

json_t *cluster_dump(const cluster *k)
{
    json_t *dump = json_object();
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        json_t *all = json_object(), *object;
        const char *key;
        json_object_foreach(k->objects[r], key, object)
        {
            char name[512];
            if (is_of_suspended(k, object)) {
                continue;
            }
            json_t *copy = json_deep_copy(object);
            snprintf(name, sizeof name, "%s", key);
            json_t *owner = json_array_get(gr_object_at(object, "metadata.ownerReferences"), 0);
            if (gr_object_is(owner, "batch/v1", "Job")) {
                snprintf(name, sizeof name, "%s/pod", gr_object_text(owner, "name"));
                json_object_del(json_object_get(copy, "metadata"), "name");
            }
            strip(copy);
            forget_environment(copy);
            if (gr_operator_resources[r].is_job) {
                forget_past(copy);
            }
            json_object_del(json_object_get(copy, "metadata"), "annotations");
            put(all, name, copy);
        }
        char title[128];
        cluster_title(r, title);
        if (json_object_size(all) > 0) {
            put(dump, title, all);
        } else {
            json_decref(all);
        }
    }
    return dump;
}
