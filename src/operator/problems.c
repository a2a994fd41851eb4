/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/problems.h"

#include "base/text.h"
#include "operator/object.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const gr_run_policy_fields[] = {
    "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy",          "managedBy",
    "schedulingPolicy",      "suspend",      "ttlSecondsAfterFinished", NULL};
const char *const gr_scheduling_policy_fields[] = {
    "minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds", NULL};

const char *const gr_clean_pod_policies[] = {"All", "None", "Running", NULL};

void gr_problem(gr_problems *p, const char *format, ...)
{
    static const char comma[] = ", ";
    if (p->count > 0 && sizeof p->text - p->used >= sizeof comma) {
        memcpy(p->text + p->used, comma, sizeof comma);
        p->used += sizeof comma - 1;
    }
    p->count++;
    size_t room = sizeof p->text - p->used; /* 1 at least: of the 0 at its end */
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(p->text + p->used, room, format, arguments);
    va_end(arguments);
    p->used += more < 0 || (size_t)more >= room ? room - 1 : (size_t)more;
}

/* The value as a sentence shows it. */
static const char *shown(const json_t *value, char text_out[GR_PROBLEM_PATH_BYTES])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int length = snprintf(text_out, GR_PROBLEM_PATH_BYTES, "%s", text != NULL ? text : "");
    if (length >= GR_PROBLEM_PATH_BYTES) {
        gr_text_mark_cut(text_out, GR_PROBLEM_PATH_BYTES);
    }
    free(text);
    return text_out;
}

void gr_check_is_one_of(gr_problems *p, const json_t *value, const char *path,
                        const char *const *known)
{
    char list[GR_PROBLEM_PATH_BYTES] = "", text[GR_PROBLEM_PATH_BYTES];
    size_t used = 0;
    for (size_t i = 0; known[i] != NULL; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), known[i]) == 0) {
            return;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"", i > 0 ? ", " : "",
                                 known[i]);
    }
    gr_problem(p, "%s: Unsupported value: %s: supported values: %s", path, shown(value, text),
               list);
}

/* False: absent, or wrong and told. */
bool gr_check_integer(gr_problems *p, const json_t *object, const char *key, const char *path,
                      int64_t *value_out)
{
    char text[GR_PROBLEM_PATH_BYTES];
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return false;
    }
    if (!json_is_integer(value)) {
        gr_problem(p, "%s.%s: Invalid value: %s: must be an integer", path, key,
                   shown(value, text));
        return false;
    }
    *value_out = (int64_t)json_integer_value(value);
    return true;
}

void gr_check_not_negative(gr_problems *p, const json_t *object, const char *key, const char *path)
{
    int64_t value;
    if (gr_check_integer(p, object, key, path, &value) && value < 0) {
        gr_problem(p, "%s.%s: Invalid value: %" PRId64 ": must be greater than or equal to 0", path,
                   key, value);
    }
}

void gr_check_truth(gr_problems *p, const json_t *object, const char *key, const char *path)
{
    char text[GR_PROBLEM_PATH_BYTES];
    const json_t *value = json_object_get(object, key);
    if (value != NULL && !json_is_null(value) && !json_is_boolean(value)) {
        gr_problem(p, "%s.%s: Invalid value: %s: must be true or false", path, key,
                   shown(value, text));
    }
}

static bool is_dns_label(const char *name)
{
    size_t length = strlen(name);
    if (name[0] < 'a' || name[0] > 'z' || name[length - 1] == '-') {
        return false;
    }
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

void gr_check_pod_name(gr_problems *p, const json_t *job, const char *role, int64_t index)
{
    enum { LABEL_BYTES_MAX = 63, HOST_BYTES = 512 };
    char host[HOST_BYTES];
    const char *name = gr_object_text(job, "metadata.name");
    if (name == NULL || name[0] == '\0') {
        gr_problem(p, "metadata.name: Required value: must have a name");
        return;
    }
    snprintf(host, sizeof host, "%s-%s-%" PRId64, name, role, index);
    bool is_long = strlen(host) > LABEL_BYTES_MAX, is_label = is_dns_label(host);
    if (is_long || !is_label) {
        gr_problem(
            p,
            "metadata.name: Invalid value: \"%s\": will not able to create pod and service with "
            "invalid DNS label \"%s\": %s%s%s",
            name, host, is_long ? "must be no more than 63 characters" : "",
            is_long && !is_label ? ", " : "",
            is_label ? ""
                     : "a DNS-1035 label must consist of lower case alphanumeric characters or "
                       "'-', start with an alphabetic character, and end with an alphanumeric "
                       "character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
                       "'[a-z]([-a-z0-9]*[a-z0-9])?')");
    }
}

void gr_check_run_policy(gr_problems *p, const json_t *policy, const char *manager_name,
                         bool is_strict)
{
    static const char *const limits[] = {"ttlSecondsAfterFinished", "activeDeadlineSeconds",
                                         "backoffLimit"};
    const char *const managers[] = {manager_name, "kueue.x-k8s.io/multikueue", NULL};
    const char *path = "spec.runPolicy";
    const json_t *clean = json_object_get(policy, "cleanPodPolicy");
    if (is_strict || !json_is_string(clean)) {
        gr_check_is_one_of(p, clean, "spec.runPolicy.cleanPodPolicy", gr_clean_pod_policies);
    }
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        int64_t limit;
        if (is_strict) {
            gr_check_not_negative(p, policy, limits[i], path);
        } else {
            (void)gr_check_integer(p, policy, limits[i], path, &limit);
        }
    }
    gr_check_truth(p, policy, "suspend", path);
    const json_t *manager = json_object_get(policy, "managedBy");
    if (manager != NULL && !json_is_null(manager)) {
        gr_check_is_one_of(p, manager, "spec.runPolicy.managedBy", managers);
    }
}

void gr_check_containers(gr_problems *p, const json_t *spec, const char *path)
{
    const json_t *containers = gr_object_at(spec, "template.spec.containers");
    if (json_array_size(containers) == 0) {
        gr_problem(
            p, "%s.template.spec.containers: Required value: must define at least one container",
            path);
    }
    size_t i;
    const json_t *container;
    json_array_foreach(containers, i, container)
    {
        if (!json_is_object(container)) {
            gr_problem(p, "%s.template.spec.containers[%zu]: Invalid value: must be a map", path,
                       i);
        }
    }
}

void gr_problems_describe(const gr_problems *p, char sentence_out[GR_EVENT_BYTES])
{
    sentence_out[0] = '\0';
    if (p->count == 0) {
        return;
    }
    int length = snprintf(sentence_out, GR_EVENT_BYTES, "Found validation errors: %s%s%s",
                          p->count > 1 ? "[" : "", p->text, p->count > 1 ? "]" : "");
    if (length >= GR_EVENT_BYTES) {
        gr_text_mark_cut(sentence_out, GR_EVENT_BYTES);
    }
}
