/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/pod_group.h"

#include "operator/object.h"
#include "operator/quantity.h"

#include <stdio.h>
#include <string.h>

bool gr_pod_group_is_volcano(const gr_look *l)
{
    return strcmp(l->view->gang_scheduler, "volcano") == 0;
}

static const char *api_version(const gr_look *l)
{
    return gr_pod_group_is_volcano(l) ? "scheduling.volcano.sh/v1beta1"
                                      : "scheduling.x-k8s.io/v1alpha1";
}

void gr_pod_group_join(gr_look *l, json_t *template)
{
    json_t *metadata = json_object_get(template, "metadata");
    if (gr_pod_group_is_volcano(l)) {
        gr_object_put_text(gr_object_map(metadata, "annotations", &l->no_memory),
                           "scheduling.k8s.io/group-name", l->name, &l->no_memory);
    } else {
        gr_object_put_text(gr_object_map(metadata, "labels", &l->no_memory),
                           "scheduling.x-k8s.io/pod-group", l->name, &l->no_memory);
    }
}

int64_t gr_pod_priority(const gr_look *l, const json_t *pod_spec)
{
    const char *name = gr_object_text(pod_spec, "priorityClassName");
    return name == NULL ? 0
                        : gr_object_int(gr_object_find(l->view->objects, "scheduling.k8s.io/v1",
                                                       "PriorityClass", name),
                                        "value", 0);
}

static bool read_quantity(const json_t *value, gr_quantity *quantity_out)
{
    char number[GR_QUANTITY_BYTES];
    const char *text = json_string_value(value);
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        text = number;
    }
    return text != NULL && gr_quantity_parse(text, quantity_out);
}

/* sums[name] += replicas * value, as text. */
static void add_resource(gr_look *l, json_t *sums, const char *name, const json_t *value,
                         int64_t replicas)
{
    gr_quantity sum = {0}, quantity;
    char text[GR_QUANTITY_BYTES];
    const char *before = json_string_value(json_object_get(sums, name));
    /* The API server lets nothing else into a container's resources. */
    if (!read_quantity(value, &quantity) || (before != NULL && !gr_quantity_parse(before, &sum)) ||
        !gr_quantity_add(&sum, &quantity, replicas)) {
        return;
    }
    gr_quantity_print(&sum, text);
    gr_object_put_text(sums, name, text, &l->no_memory);
}

json_t *gr_pod_quantity(json_t *value)
{
    gr_quantity quantity;
    char text[GR_QUANTITY_BYTES];
    if (!read_quantity(value, &quantity)) {
        return json_incref(value);
    }
    gr_quantity_print(&quantity, text);
    return json_string(text);
}

void gr_pod_resources_add(gr_look *l, json_t *sums, const json_t *pod_spec, int64_t count)
{
    size_t i;
    json_t *container, *value;
    const char *name;
    json_array_foreach(gr_object_at(pod_spec, "containers"), i, container)
    {
        json_t *requests = gr_object_at(container, "resources.requests");
        json_t *limits = gr_object_at(container, "resources.limits");
        json_object_foreach(requests, name, value)
        {
            add_resource(l, sums, name, value, count);
        }
        json_object_foreach(limits, name, value)
        {
            if (json_object_get(requests, name) == NULL) {
                add_resource(l, sums, name, value, count);
            }
        }
    }
}

static void put_if_any(gr_look *l, json_t *spec, const char *key, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        gr_object_put_text(spec, key, text, &l->no_memory);
    }
}

/* The resource of a PodGroup takes any text: the form is the operator's matter. */
static json_t *in_one_form(gr_look *l, const json_t *resources)
{
    json_t *amounts = json_object(), *value;
    const char *name;
    json_object_foreach((json_t *)resources, name, value)
    {
        gr_object_put(amounts, name, gr_pod_quantity(value), &l->no_memory);
    }
    return amounts;
}

json_t *gr_pod_group_object(gr_look *l, const gr_pod_group *group)
{
    json_t *spec = json_pack("{s:I}", "minMember", (json_int_t)group->min_member);
    if (gr_pod_group_is_volcano(l)) {
        put_if_any(l, spec, "queue", group->queue);
        put_if_any(l, spec, "priorityClassName", group->priority_class);
    } else if (group->timeout_s != NULL) {
        gr_object_put(spec, "scheduleTimeoutSeconds", json_incref(group->timeout_s), &l->no_memory);
    }
    if (group->resources != NULL &&
        (gr_pod_group_is_volcano(l) || json_object_size(group->resources) > 0)) {
        gr_object_put(spec, "minResources", in_one_form(l, group->resources), &l->no_memory);
    }
    json_decref(group->timeout_s);
    json_decref(group->resources);
    return json_pack("{s:s, s:s, s:o, s:o}", "apiVersion", api_version(l), "kind", "PodGroup",
                     "metadata", gr_look_metadata(l, l->name), "spec", spec);
}

/* A scheduler may set more than the operator does: that stays. */
void gr_pod_group_keep(gr_look *l, json_t *group)
{
    enum { KEYS_MAX = 8 };
    json_t *value;
    const char *keys[KEYS_MAX + 1] = {NULL}, *key;
    size_t count = 0;
    json_object_foreach(json_object_get(group, "spec"), key, value)
    {
        if (count < KEYS_MAX) {
            keys[count++] = key;
        }
    }
    gr_look_keep(l, group, "spec", keys);
    json_decref(group);
}

json_t *gr_pod_group_find(gr_look *l)
{
    return l->view->gang_scheduler[0] == '\0'
               ? NULL
               : gr_look_find_own(l, api_version(l), "PodGroup", l->name);
}

bool gr_pod_group_delete(gr_look *l)
{
    json_t *group = gr_pod_group_find(l);
    return group != NULL && gr_look_delete(l, group);
}
