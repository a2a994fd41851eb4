/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/resource.h"

#include "operator/object.h"

#include <string.h>

const gr_operator_resource gr_operator_resources[] = {
    {.api_version = "kubeflow.org/v2beta1", .kind = "MPIJob", .plural = "mpijobs", .is_job = true},
    {.api_version = "v1",
     .kind = "Pod",
     .plural = "pods",
     .selector = "training.kubeflow.org/job-name",
     .trim = GR_TRIM_POD},
    {.api_version = "v1", .kind = "Service", .plural = "services"},
    {.api_version = "v1", .kind = "ConfigMap", .plural = "configmaps", .selector = "app"},
    {.api_version = "v1",
     .kind = "Secret",
     .plural = "secrets",
     .selector = "app",
     .trim = GR_TRIM_SECRET},
    {.api_version = "batch/v1", .kind = "Job", .plural = "jobs", .selector = "app"},
    {.api_version = "scheduling.volcano.sh/v1beta1",
     .kind = "PodGroup",
     .plural = "podgroups",
     .gang_scheduler = "volcano"},
    {.api_version = "scheduling.x-k8s.io/v1alpha1",
     .kind = "PodGroup",
     .plural = "podgroups",
     .gang_scheduler = "*"},
    {.api_version = "scheduling.k8s.io/v1",
     .kind = "PriorityClass",
     .plural = "priorityclasses",
     .gang_scheduler = "volcano",
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

bool gr_operator_resource_used(const gr_operator_resource *resource, const char *gang_scheduler)
{
    const char *only = resource->gang_scheduler;
    if (only == NULL) {
        return true;
    }
    return strcmp(only, "*") == 0
               ? gang_scheduler[0] != '\0' && strcmp(gang_scheduler, "volcano") != 0
               : strcmp(only, gang_scheduler) == 0;
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

/* The pick of each of a list's items. */
static json_t *pick_each(const json_t *list, const char *const *keys, bool *no_memory)
{
    json_t *items = json_array();
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        gr_object_append(items, pick(item, keys, no_memory), no_memory);
    }
    *no_memory |= items == NULL;
    return items;
}

static json_t *trim_pod_metadata(const json_t *metadata, bool *no_memory)
{
    static const char *const keys[] = {
        "name", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp", NULL};
    static const char ours[] = "training.kubeflow.org/";
    json_t *trimmed = pick(metadata, keys, no_memory), *labels = json_object(), *value;
    const char *key;
    json_object_foreach(json_object_get(metadata, "labels"), key, value)
    {
        if (strncmp(key, ours, sizeof ours - 1) == 0) {
            gr_object_put(labels, key, json_incref(value), no_memory);
        }
    }
    gr_object_put(trimmed, "labels", labels, no_memory);
    return trimmed;
}

static json_t *trim_pod(const json_t *pod, bool *no_memory)
{
    static const char *const of_spec[] = {"restartPolicy", NULL};
    static const char *const of_status[] = {"phase", "reason", "message", NULL};
    static const char *const of_condition[] = {"type", "status", NULL};
    static const char *const of_container[] = {"name", "restartCount", "state", NULL};
    const json_t *status = json_object_get(pod, "status");
    json_t *kept = pick(status, of_status, no_memory), *trimmed = json_object();
    json_t *conditions = json_array(), *containers = json_object_get(status, "containerStatuses");
    json_t *ready = gr_object_condition(json_object_get(status, "conditions"), "Ready");
    if (ready != NULL) {
        gr_object_append(conditions, pick(ready, of_condition, no_memory), no_memory);
    }
    gr_object_put(kept, "conditions", conditions, no_memory);
    bool is_told = false;
    size_t i;
    const json_t *container;
    json_array_foreach(containers, i, container)
    {
        is_told |= gr_object_at(container, "state.terminated") != NULL ||
                   gr_object_int(container, "restartCount", 0) > 0;
    }
    if (is_told) {
        gr_object_put(kept, "containerStatuses", pick_each(containers, of_container, no_memory),
                      no_memory);
    }
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
