/* SPDX-License-Identifier: Apache-2.0 */

/* The objects that the kinds of training-operator share, as they are to be. */

#include "operator/object.h"
#include "operator/parts.h"
#include "operator/pod_group.h"
#include "operator/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABEL(what) "training.kubeflow.org/" what

static void add_labels(gr_training *t, json_t *labels, const gr_training_role *role, int64_t index)
{
    bool *no_memory = &t->look.no_memory;
    gr_object_put_text(labels, LABEL("job-name"), t->look.name, no_memory);
    gr_object_put_text(labels, LABEL("operator-name"), t->kind->operator_name, no_memory);
    gr_object_put_text(labels, LABEL("replica-type"), role->label, no_memory);
    if (!role->is_single) {
        gr_object_put(labels, LABEL("replica-index"), json_sprintf("%" PRId64, index), no_memory);
    }
}

json_t *gr_training_selector(gr_training *t, const gr_training_role *role)
{
    return json_sprintf(
        LABEL("job-name") "=%s," LABEL("operator-name") "=%s," LABEL("replica-type") "=%s",
        t->look.name, t->kind->operator_name, role->label);
}

/* The pod that stands for the job: the chief, master or launcher, or else the first worker. */
static bool is_master(const gr_training *t, const gr_training_role *role, int64_t index)
{
    static const char *const masters[] = {"Chief", "Launcher", "Master"};
    bool has_master = false;
    for (size_t i = 0; i < sizeof masters / sizeof masters[0]; i++) {
        const gr_training_role *master = gr_training_find_role(t, masters[i]);
        if (role == master) {
            return true;
        }
        has_master |= master != NULL;
    }
    return !has_master && index == 0 && strcmp(role->name, "Worker") == 0;
}

void gr_training_name(const gr_training *t, const gr_training_role *role, int64_t index,
                      char name_out[GR_TRAINING_NAME_BYTES])
{
    char number[32] = "";
    if (!role->is_single) {
        snprintf(number, sizeof number, "-%" PRId64, index);
    }
    snprintf(name_out, GR_TRAINING_NAME_BYTES, "%.300s-%s%s", t->look.name, role->label, number);
}

/* {name, namespace, ownerReferences, labels, annotations}. */
static json_t *new_metadata(gr_training *t, const gr_training_role *role, int64_t index)
{
    char name[GR_TRAINING_NAME_BYTES];
    gr_training_name(t, role, index, name);
    return gr_look_metadata(&t->look, name);
}

static void warn_of_template(gr_training *t, const char *what, const char *message)
{
    char reason[64];
    const char *prefix = t->kind->warning_prefix;
    snprintf(reason, sizeof reason, "%s%s", prefix != NULL ? prefix : "SetPodTemplate", what);
    gr_look_event(&t->look, "Warning", reason, message);
}

/* ---- Scheduling as a group ------------------------------------------------------------------- */
static void join_pod_group(gr_training *t, const gr_training_role *role, json_t *pod)
{
    const char *gang_scheduler = t->look.view->gang_scheduler;
    json_t *spec = json_object_get(pod, "spec");
    if (gang_scheduler[0] == '\0') {
        return;
    }
    for (size_t i = 0; i < t->role_count; i++) {
        const char *scheduler = gr_object_text(t->roles[i].template, "spec.schedulerName");
        if (scheduler != NULL && scheduler[0] != '\0' && strcmp(scheduler, gang_scheduler) != 0) {
            warn_of_template(t, "SchedulerName",
                             "Another scheduler is specified when gang-scheduling is enabled and "
                             "it will not be overwritten");
            break;
        }
    }
    gr_pod_group_join(&t->look, pod);
    if (gr_pod_group_is_volcano(&t->look)) {
        gr_object_put_text(gr_object_at(pod, "metadata.annotations"), "volcano.sh/task-spec",
                           role->label, &t->look.no_memory);
    }
    gr_object_put_default(spec, "schedulerName", json_string(gang_scheduler), &t->look.no_memory);
}

typedef struct counted_role {
    const json_t *spec;
    int64_t replicas, priority;
} counted_role;

static int by_priority(const void *a, const void *b)
{
    int64_t x = ((const counted_role *)a)->priority, y = ((const counted_role *)b)->priority;
    return (x < y) - (x > y);
}

/* What the first `min_member` pods need, those of the higher priority first. */
static json_t *min_resources(gr_training *t, int64_t min_member)
{
    counted_role roles[GR_TRAINING_ROLES_MAX];
    json_t *sums = json_object();
    t->look.no_memory |= sums == NULL;
    for (size_t i = 0; i < t->role_count; i++) {
        const json_t *spec = json_object_get(t->roles[i].template, "spec");
        roles[i] = (counted_role){spec, t->roles[i].replicas, gr_pod_priority(&t->look, spec)};
    }
    qsort(roles, t->role_count, sizeof roles[0], by_priority);
    for (size_t i = 0; i < t->role_count && min_member > 0; i++) {
        int64_t count = roles[i].replicas < min_member ? roles[i].replicas : min_member;
        gr_pod_resources_add(&t->look, sums, roles[i].spec, count);
        min_member -= count;
    }
    return sums;
}

json_t *gr_training_pod_group(gr_training *t, const char *queue)
{
    const json_t *policy = gr_object_at(t->look.job, "spec.runPolicy.schedulingPolicy");
    json_t *timeout = json_object_get(policy, "scheduleTimeoutSeconds");
    json_t *resources = json_object_get(policy, "minResources");
    json_t *notes = gr_object_at(t->look.job, "metadata.annotations");
    gr_pod_group group = {.min_member = gr_object_int(policy, "minAvailable", t->replicas),
                          .queue = queue != NULL ? queue : gr_object_text(policy, "queue"),
                          .priority_class = gr_object_text(policy, "priorityClass"),
                          .timeout_s = json_is_integer(timeout) ? json_incref(timeout) : NULL};
    if (group.queue == NULL || group.queue[0] == '\0') {
        group.queue = "default";
    }
    group.resources =
        json_is_object(resources) ? json_incref(resources) : min_resources(t, group.min_member);
    json_t *object = gr_pod_group_object(&t->look, &group);
    if (json_object_size(notes) > 0) {
        gr_object_put(json_object_get(object, "metadata"), "annotations", json_deep_copy(notes),
                      &t->look.no_memory);
    }
    return object;
}

/* ---- Pods and Services ----------------------------------------------------------------------- */
json_t *gr_training_pod(gr_training *t, const gr_training_role *role, int64_t index)
{
    bool *no_memory = &t->look.no_memory;
    json_t *metadata = new_metadata(t, role, index);
    json_t *spec = json_deep_copy(json_object_get(role->template, "spec"));
    json_t *labels = gr_object_map(metadata, "labels", no_memory);
    json_t *given_labels = gr_object_at(role->template, "metadata.labels");
    json_t *annotations = gr_object_at(role->template, "metadata.annotations");
    json_t *finalizers = gr_object_at(role->template, "metadata.finalizers");
    json_t *pod = json_pack("{s:s, s:s, s:o, s:o}", "apiVersion", "v1", "kind", "Pod", "metadata",
                            metadata, "spec", spec);
    if (pod == NULL) {
        *no_memory = true;
        return NULL;
    }
    *no_memory |= json_is_object(given_labels) && json_object_update(labels, given_labels) != 0;
    add_labels(t, labels, role, index);
    if (t->kind->complete_labels != NULL) {
        t->kind->complete_labels(t, role, labels);
    }
    if (is_master(t, role, index)) {
        gr_object_put_text(labels, LABEL("job-role"), "master", no_memory);
    }
    if (json_object_size(annotations) > 0) {
        gr_object_put(metadata, "annotations", json_deep_copy(annotations), no_memory);
    }
    if (json_array_size(finalizers) > 0 && t->kind->has_services) {
        gr_object_put(metadata, "finalizers", json_incref(finalizers), no_memory);
    }
    t->kind->complete_pod(t, role, index, spec);
    const char *given_policy = gr_object_text(spec, "restartPolicy");
    if (given_policy != NULL && given_policy[0] != '\0') {
        warn_of_template(t, "RestartPolicy",
                         "Restart policy in pod template will be overwritten by restart policy in "
                         "replica spec");
    }
    bool is_decided_here = strcmp(role->restart_policy, "ExitCode") == 0;
    gr_object_put_text(spec, "restartPolicy", is_decided_here ? "Never" : role->restart_policy,
                       no_memory);
    join_pod_group(t, role, pod);
    return pod;
}

/* The named ports of the container that works. */
static json_t *service_ports(gr_training *t, const gr_training_role *role)
{
    json_t *ports = json_array(), *container;
    size_t i, k;
    const json_t *port;
    json_array_foreach(gr_object_at(role->template, "spec.containers"), i, container)
    {
        if (!gr_object_is_text(container, "name", t->kind->container)) {
            continue;
        }
        json_array_foreach(json_object_get(container, "ports"), k, port)
        {
            const char *name = gr_object_text(port, "name");
            json_int_t number = gr_object_int(port, "containerPort", 0);
            if (name != NULL && name[0] != '\0') {
                gr_object_append(ports,
                                 json_pack("{s:s, s:I, s:I}", "name", name, "port", number,
                                           "targetPort", number),
                                 &t->look.no_memory);
            }
        }
    }
    return ports;
}

json_t *gr_training_service(gr_training *t, const gr_training_role *role, int64_t index)
{
    json_t *metadata = new_metadata(t, role, index);
    json_t *labels = gr_object_map(metadata, "labels", &t->look.no_memory);
    add_labels(t, labels, role, index);
    return json_pack("{s:s, s:s, s:o, s:{s:s, s:o, s:o}}", "apiVersion", "v1", "kind", "Service",
                     "metadata", metadata, "spec", "clusterIP", "None", "selector",
                     json_deep_copy(labels), "ports", service_ports(t, role));
}
