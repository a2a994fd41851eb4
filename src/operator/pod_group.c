/* SPDX-License-Identifier: Apache-2.0 */

/* The PodGroup of an MPIJob, by which a gang scheduler places all of its pods or none: that of
 * volcano, or that of scheduler-plugins. */

#include "operator/mpijob.h"
#include "operator/object.h"
#include "operator/quantity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_volcano(const gr_mpijob *m)
{
    return strcmp(m->view->gang_scheduler, "volcano") == 0;
}

const char *gr_mpijob_pod_group_api(const gr_mpijob *m)
{
    return is_volcano(m) ? "scheduling.volcano.sh/v1beta1" : "scheduling.x-k8s.io/v1alpha1";
}

void gr_mpijob_join_pod_group(gr_mpijob *m, json_t *template)
{
    const char *scheduler = m->view->gang_scheduler;
    if (scheduler[0] == '\0') {
        return;
    }
    json_t *metadata = json_object_get(template, "metadata");
    if (is_volcano(m)) {
        gr_object_put_text(gr_object_map(metadata, "annotations", &m->no_memory),
                           "scheduling.k8s.io/group-name", m->name, &m->no_memory);
    } else {
        gr_object_put_text(gr_object_map(metadata, "labels", &m->no_memory),
                           "scheduling.x-k8s.io/pod-group", m->name, &m->no_memory);
    }
    gr_object_put_text(json_object_get(template, "spec"), "schedulerName", scheduler,
                       &m->no_memory);
}

/* ---- minResources ---------------------------------------------------------------------------- */
typedef struct role {
    const char *name;
    int64_t replicas, priority;
    json_t *spec; /* of the pods; NULL: the job has no such pods */
} role;

static role read_role(const gr_mpijob *m, const char *name, int64_t replicas)
{
    json_t *specs = gr_object_at(m->job, "spec.mpiReplicaSpecs");
    role r = {.name = name,
              .replicas = replicas,
              .spec = gr_object_at(json_object_get(specs, name), "template.spec")};
    const char *class_name = gr_object_text(r.spec, "priorityClassName");
    if (class_name != NULL) {
        r.priority = gr_object_int(
            gr_object_find(m->view->objects, "scheduling.k8s.io/v1", "PriorityClass", class_name),
            "value", 0);
    }
    return r;
}

/* sums[name] += replicas * value, as text. */
static void add_resource(gr_mpijob *m, json_t *sums, const char *name, const json_t *value,
                         int64_t replicas)
{
    gr_quantity sum = {0}, quantity;
    char text[GR_QUANTITY_BYTES];
    const char *before = json_string_value(json_object_get(sums, name));
    const char *given = json_string_value(value);
    if (json_is_integer(value)) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        given = text;
    }
    /* The API server lets nothing else into a container's resources. */
    if (given == NULL || !gr_quantity_parse(given, &quantity) ||
        (before != NULL && !gr_quantity_parse(before, &sum)) ||
        !gr_quantity_add(&sum, &quantity, replicas)) {
        return;
    }
    gr_quantity_print(&sum, text);
    gr_object_put_text(sums, name, text, &m->no_memory);
}

static void add_resources(gr_mpijob *m, json_t *sums, const role *r)
{
    size_t i;
    json_t *container, *value;
    const char *name;
    json_array_foreach(gr_object_at(r->spec, "containers"), i, container)
    {
        json_t *requests = gr_object_at(container, "resources.requests");
        json_t *limits = gr_object_at(container, "resources.limits");
        json_object_foreach(requests, name, value)
        {
            add_resource(m, sums, name, value, r->replicas);
        }
        json_object_foreach(limits, name, value)
        {
            if (json_object_get(requests, name) == NULL) {
                add_resource(m, sums, name, value, r->replicas);
            }
        }
    }
}

/* What the first `min_member` pods need, those of the higher priority first; NULL: not to be
 * said. */
static json_t *min_resources(gr_mpijob *m, int64_t min_member)
{
    json_t *given = gr_object_at(m->job, "spec.runPolicy.schedulingPolicy.minResources");
    if (json_is_object(given)) {
        return json_incref(given);
    }
    role launcher = read_role(m, "Launcher", 1), worker = read_role(m, "Worker", m->workers);
    if (min_member == 0) {
        return NULL;
    }
    if (1 + worker.replicas > min_member) {
        if (worker.spec == NULL) {
            return NULL;
        }
        role *lower = launcher.priority < worker.priority ? &launcher : &worker;
        lower->replicas = min_member - 1;
    }
    json_t *sums = json_object();
    m->no_memory |= sums == NULL;
    add_resources(m, sums, &launcher);
    add_resources(m, sums, &worker);
    return sums;
}

static const char *first_of(const char *a, const char *b)
{
    return a != NULL && a[0] != '\0' ? a : b;
}

static void put_if_any(gr_mpijob *m, json_t *spec, const char *key, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        gr_object_put_text(spec, key, text, &m->no_memory);
    }
}

json_t *gr_mpijob_pod_group(gr_mpijob *m)
{
    const json_t *policy = gr_object_at(m->job, "spec.runPolicy.schedulingPolicy");
    const json_t *notes = gr_object_at(m->job, "metadata.annotations");
    const json_t *specs = gr_object_at(m->job, "spec.mpiReplicaSpecs");
    int64_t min_member = gr_object_int(policy, "minAvailable", m->workers + 1);
    json_t *resources = min_resources(m, min_member);
    json_t *spec = json_pack("{s:I}", "minMember", (json_int_t)min_member);
    if (is_volcano(m)) {
        put_if_any(m, spec, "queue",
                   first_of(gr_object_text(policy, "queue"),
                            json_string_value(
                                json_object_get(notes, "scheduling.volcano.sh/queue-name"))));
        put_if_any(
            m, spec, "priorityClassName",
            first_of(gr_object_text(policy, "priorityClass"),
                     first_of(gr_object_text(specs, "Launcher.template.spec.priorityClassName"),
                              gr_object_text(specs, "Worker.template.spec.priorityClassName"))));
    } else {
        gr_object_put(spec, "scheduleTimeoutSeconds",
                      json_integer(gr_object_int(policy, "scheduleTimeoutSeconds", 0)),
                      &m->no_memory);
    }
    if (resources != NULL && (is_volcano(m) || json_object_size(resources) > 0)) {
        gr_object_put(spec, "minResources", json_incref(resources), &m->no_memory);
    }
    json_decref(resources);
    return json_pack("{s:s, s:s, s:o, s:o}", "apiVersion", gr_mpijob_pod_group_api(m), "kind",
                     "PodGroup", "metadata", gr_mpijob_metadata(m, m->name), "spec", spec);
}
