/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/resource.h"

#include "base/text.h"
#include "operator/object.h"

#include <string.h>

static const gr_operator_kind *const of_mpijob_v2[] = {&gr_mpijob_v2, NULL};
static const gr_operator_kind *const of_mpijob_v1[] = {&gr_mpijob_v1, NULL};
static const gr_operator_kind *const of_mpijobs[] = {&gr_mpijob_v2, &gr_mpijob_v1, NULL};
static const gr_operator_kind *const of_pytorchjob[] = {&gr_pytorchjob_v1, NULL};
static const gr_operator_kind *const of_tfjob[] = {&gr_tfjob_v1, NULL};
static const gr_operator_kind *const of_gradusjob[] = {&gr_gradusjob_v1, NULL};
static const gr_operator_kind *const of_secrets[] = {&gr_mpijob_v2, &gr_gradusjob_v1, NULL};
/* MPIJob v1 has no Services. */
static const gr_operator_kind *const of_services[] = {&gr_mpijob_v2, &gr_pytorchjob_v1,
                                                      &gr_tfjob_v1, &gr_gradusjob_v1, NULL};

#define RBAC "rbac.authorization.k8s.io/v1"

const gr_operator_resource gr_operator_resources[] = {
    {"kubeflow.org/v2beta1", "MPIJob", "mpijobs", .readers = of_mpijob_v2, .is_job = true},
    {"kubeflow.org/v1", "MPIJob", "mpijobs", .readers = of_mpijob_v1, .is_job = true},
    {"kubeflow.org/v1", "PyTorchJob", "pytorchjobs", .readers = of_pytorchjob, .is_job = true},
    {"kubeflow.org/v1", "TFJob", "tfjobs", .readers = of_tfjob, .is_job = true},
    {"gradus.dev/v1", "GradusJob", "gradusjobs", .readers = of_gradusjob, .is_job = true},
    {"v1", "Pod", "pods", .selector = "training.kubeflow.org/job-name", .trim = GR_TRIM_POD},
    {"v1", "Service", "services", .readers = of_services},
    {"v1", "ConfigMap", "configmaps", .selector = "app", .readers = of_mpijobs},
    {"v1", "Secret", "secrets", .selector = "app", .readers = of_secrets, .trim = GR_TRIM_SECRET},
    {"batch/v1", "Job", "jobs", .selector = "app", .readers = of_mpijob_v2},
    {"v1", "ServiceAccount", "serviceaccounts", .selector = "app", .readers = of_mpijob_v1},
    {RBAC, "Role", "roles", .selector = "app", .readers = of_mpijob_v1},
    {RBAC, "RoleBinding", "rolebindings", .selector = "app", .readers = of_mpijob_v1},
    {"autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers",
     .readers = of_pytorchjob, .trim = GR_TRIM_STATUS},
    {"scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", .gang = GR_GANG_VOLCANO},
    {"scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", .gang = GR_GANG_OTHER},
    {"scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", .gang = GR_GANG_ANY,
     .is_global = true},
    {.kind = NULL},
};

const size_t gr_operator_resource_count =
    sizeof gr_operator_resources / sizeof gr_operator_resources[0] - 1;

size_t gr_operator_resource_find(const char *api_version, const char *kind)
{
    size_t i = 0;
    while (i < gr_operator_resource_count &&
           (strcmp(gr_operator_resources[i].kind, kind) != 0 ||
            strcmp(gr_operator_resources[i].api_version, api_version) != 0)) {
        i++;
    }
    return i;
}

static bool is_read(const gr_operator_resource *resource, const gr_operator_kind *const *kinds)
{
    const gr_operator_kind *const *reader = resource->readers;
    while (reader != NULL && *reader != NULL &&
           gr_operator_find_kind(kinds, (*reader)->api_version, (*reader)->kind) == NULL) {
        reader++;
    }
    return reader == NULL || *reader != NULL;
}

bool gr_operator_resource_used(const gr_operator_resource *resource,
                               const gr_operator_kind *const *kinds, const char *gang_scheduler)
{
    bool is_volcano = strcmp(gang_scheduler, "volcano") == 0, is_with = false;
    switch (resource->gang) {
    case GR_GANG_ALWAYS:
        is_with = true;
        break;
    case GR_GANG_ANY:
        is_with = gang_scheduler[0] != '\0';
        break;
    case GR_GANG_VOLCANO:
        is_with = is_volcano;
        break;
    case GR_GANG_OTHER:
        is_with = gang_scheduler[0] != '\0' && !is_volcano;
        break;
    }
    return is_with && is_read(resource, kinds);
}

/* A map of those of the keys that are there. */
static json_t *pick(const json_t *from, const char *const *keys, bool *no_memory)
{
    json_t *map = json_object();
    for (; *keys != NULL; keys++) {
        json_t *value = json_object_get(from, *keys);
        if (value != NULL) {
            gr_object_put(map, *keys, json_incref(value), no_memory);
        }
    }
    *no_memory |= map == NULL;
    return map;
}

static json_t *trim_pod_metadata(const json_t *metadata, bool *no_memory)
{
    static const char *const keys[] = {
        "name", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp", NULL};
    static const char kubeflow[] = "training.kubeflow.org/", ours[] = "gradus.dev/";
    json_t *trimmed = pick(metadata, keys, no_memory), *labels = json_object(), *value;
    const char *key;
    json_object_foreach(json_object_get(metadata, "labels"), key, value)
    {
        if (strncmp(key, kubeflow, sizeof kubeflow - 1) == 0 ||
            strncmp(key, ours, sizeof ours - 1) == 0) {
            gr_object_put(labels, key, json_incref(value), no_memory);
        }
    }
    gr_object_put(trimmed, "labels", labels, no_memory);
    return trimmed;
}

/* Readiness, and why a pod finds no node. */
static json_t *trim_conditions(const json_t *conditions, bool *no_memory)
{
    static const char *const of_ready[] = {"type", "status", NULL};
    static const char *const of_scheduled[] = {"type", "status", "reason", "message", NULL};
    json_t *kept = json_array();
    const json_t *ready = gr_object_condition(conditions, "Ready");
    const json_t *scheduled = gr_object_condition(conditions, "PodScheduled");
    if (ready != NULL) {
        gr_object_append(kept, pick(ready, of_ready, no_memory), no_memory);
    }
    if (gr_object_is_text(scheduled, "status", "False")) {
        gr_object_append(kept, pick(scheduled, of_scheduled, no_memory), no_memory);
    }
    *no_memory |= kept == NULL;
    return kept;
}

/* How a container has ended; why, where it has failed. The message may be as long as its program
 * likes (terminationMessagePath). */
static json_t *trim_ended(const json_t *ended, bool *no_memory)
{
    static const char *const keys[] = {"exitCode", "reason", NULL};
    static const char *const of_success[] = {"exitCode", NULL};
    bool has_failed = json_integer_value(json_object_get(ended, "exitCode")) != 0;
    json_t *kept = pick(ended, has_failed ? keys : of_success, no_memory);
    const char *message = gr_object_text(ended, "message");
    if (has_failed && message != NULL) {
        int bytes = gr_text_fit(message, GR_POD_MESSAGE_BYTES_MAX);
        gr_object_put(kept, "message", json_stringn(message, (size_t)bytes), no_memory);
    }
    return kept;
}

/* Of a container that has ended or restarted, or says why it waits; NULL: of another. */
static json_t *trim_container(const json_t *container, bool *no_memory)
{
    static const char *const of_container[] = {"name", NULL};
    static const char *const of_waiting[] = {"reason", "message", NULL};
    json_t *restarts = json_object_get(container, "restartCount");
    const json_t *ended = gr_object_at(container, "state.terminated");
    const json_t *waiting = gr_object_at(container, "state.waiting");
    bool has_restarted = json_integer_value(restarts) > 0;
    bool says_why = gr_object_text(waiting, "message") != NULL;
    if (ended == NULL && !has_restarted && !says_why) {
        return NULL;
    }
    json_t *kept = pick(container, of_container, no_memory);
    if (has_restarted) {
        gr_object_put(kept, "restartCount", json_incref(restarts), no_memory);
    }
    if (ended != NULL || says_why) {
        json_t *state = ended != NULL
                            ? json_pack("{s:o}", "terminated", trim_ended(ended, no_memory))
                            : json_pack("{s:o}", "waiting", pick(waiting, of_waiting, no_memory));
        gr_object_put(kept, "state", state, no_memory);
    }
    return kept;
}

/* Nothing, where no container is kept. */
static void keep_containers(json_t *kept, const json_t *status, const char *list, bool *no_memory)
{
    size_t i;
    const json_t *container;
    json_array_foreach(json_object_get(status, list), i, container)
    {
        json_t *one = trim_container(container, no_memory);
        if (one != NULL) {
            gr_object_append(gr_object_list(kept, list, no_memory), one, no_memory);
        }
    }
}

static json_t *trim_pod(const json_t *pod, bool *no_memory)
{
    static const char *const of_spec[] = {"restartPolicy", NULL};
    static const char *const of_status[] = {"phase", "reason", "message", "podIP", NULL};
    const json_t *status = json_object_get(pod, "status");
    json_t *kept = pick(status, of_status, no_memory), *trimmed = json_object();
    gr_object_put(kept, "conditions",
                  trim_conditions(json_object_get(status, "conditions"), no_memory), no_memory);
    keep_containers(kept, status, "initContainerStatuses", no_memory);
    keep_containers(kept, status, "containerStatuses", no_memory);
    gr_object_put(trimmed, "metadata",
                  trim_pod_metadata(json_object_get(pod, "metadata"), no_memory), no_memory);
    gr_object_put(trimmed, "spec", pick(json_object_get(pod, "spec"), of_spec, no_memory),
                  no_memory);
    gr_object_put(trimmed, "status", kept, no_memory);
    return trimmed;
}

static json_t *trim_little(const gr_operator_resource *resource, const json_t *object,
                           bool *no_memory)
{
    json_t *trimmed = json_copy((json_t *)object);
    json_t *metadata = json_copy(json_object_get(object, "metadata"));
    json_t *annotations = json_object_get(metadata, "annotations");
    json_object_del(trimmed, "apiVersion");
    json_object_del(trimmed, "kind");
    json_object_del(metadata, "namespace");
    json_object_del(metadata, "managedFields");
    if (resource->trim == GR_TRIM_STATUS) {
        json_object_del(trimmed, "status");
    }
    if (resource->is_job && annotations != NULL) { /* of jobs, only the status is written */
        json_t *fewer = json_copy(annotations);
        json_object_del(fewer, "kubectl.kubernetes.io/last-applied-configuration");
        gr_object_put(metadata, "annotations", fewer, no_memory);
    }
    gr_object_put(trimmed, "metadata", metadata, no_memory);
    return trimmed;
}

json_t *gr_operator_resource_trim(const gr_operator_resource *resource, const json_t *object)
{
    bool no_memory = false;
    json_t *trimmed = resource->trim == GR_TRIM_POD ? trim_pod(object, &no_memory)
                                                    : trim_little(resource, object, &no_memory);
    if (resource->trim == GR_TRIM_SECRET) {
        json_t *data = json_object(), *value;
        const char *key;
        json_object_foreach(json_object_get(object, "data"), key, value)
        {
            gr_object_put_text(data, key, "", &no_memory);
        }
        gr_object_put(trimmed, "data", data, &no_memory);
    }
    if (no_memory) {
        json_decref(trimmed);
        trimmed = NULL;
    }
    return trimmed;
}
