/* SPDX-License-Identifier: Apache-2.0 */

/* Defaults and validation of an MPIJob, with the sentences that mpi-operator has for them. */

#include "operator/mpijob.h"
#include "operator/object.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const spec_fields[] = {"launcherCreationPolicy",
                                          "mpiImplementation",
                                          "mpiReplicaSpecs",
                                          "runLauncherAsWorker",
                                          "runPolicy",
                                          "slotsPerWorker",
                                          "sshAuthMountPath",
                                          NULL};
static const char *const run_policy_fields[] = {
    "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy",          "managedBy",
    "schedulingPolicy",      "suspend",      "ttlSecondsAfterFinished", NULL};
static const char *const scheduling_policy_fields[] = {
    "minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds", NULL};
static const char *const roles[] = {"Launcher", "Worker", NULL};
static const char *const replica_fields[] = {"replicas", "restartPolicy", "template", NULL};

const gr_operator_fields gr_mpijob_fields[] = {
    {"spec", spec_fields},
    {"spec.runPolicy", run_policy_fields},
    {"spec.runPolicy.schedulingPolicy", scheduling_policy_fields},
    {"spec.mpiReplicaSpecs", roles},
    {"spec.mpiReplicaSpecs.Launcher", replica_fields},
    {"spec.mpiReplicaSpecs.Worker", replica_fields},
    {NULL, NULL}};

static void set_default(json_t *object, const char *key, json_t *value, bool *no_memory)
{
    const json_t *there = json_object_get(object, key);
    if (there == NULL || json_is_null(there) ||
        (json_is_string(there) && json_string_length(there) == 0)) {
        gr_object_put(object, key, value, no_memory);
    } else {
        json_decref(value);
    }
}

static void set_replica_defaults(json_t *spec, const char *restart_policy, int replicas,
                                 bool *no_memory)
{
    if (json_is_object(spec)) {
        set_default(spec, "restartPolicy", json_string(restart_policy), no_memory);
        set_default(spec, "replicas", json_integer(replicas), no_memory);
    }
}

void gr_mpijob_defaults(json_t *job, bool *no_memory)
{
    json_t *spec = gr_object_map(job, "spec", no_memory);
    set_default(gr_object_map(spec, "runPolicy", no_memory), "cleanPodPolicy", json_string("None"),
                no_memory);
    set_default(spec, "slotsPerWorker", json_integer(1), no_memory);
    set_default(spec, "sshAuthMountPath", json_string("/root/.ssh"), no_memory);
    set_default(spec, "mpiImplementation", json_string("OpenMPI"), no_memory);
    set_default(spec, "launcherCreationPolicy", json_string("AtStartup"), no_memory);
    set_replica_defaults(gr_object_at(spec, "mpiReplicaSpecs.Launcher"), "OnFailure", 1, no_memory);
    set_replica_defaults(gr_object_at(spec, "mpiReplicaSpecs.Worker"), "Never", 0, no_memory);
}

/* ---- Validation ------------------------------------------------------------------------------ */
typedef struct problems {
    char text[4 * GR_EVENT_BYTES];
    size_t used;
    int count;
} problems;

static void tell(problems *p, const char *format, ...) GR_PRINTF(2, 3);

static void tell(problems *p, const char *format, ...)
{
    size_t room = sizeof p->text - p->used;
    int put = p->count > 0 ? snprintf(p->text + p->used, room, ", ") : 0;
    p->count++;
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(p->text + p->used + put, room - (size_t)put, format, arguments);
    va_end(arguments);
    if (more < 0 || (size_t)(put + more) >= room) {
        p->used = sizeof p->text - 3; /* full, with room for a comma: the end is cut anyway */
    } else {
        p->used += (size_t)(put + more);
    }
}

enum { SHOWN_BYTES = 256 };

/* The value as a sentence shows it. */
static const char *shown(const json_t *value, char text_out[SHOWN_BYTES])
{
    size_t size = json_dumpb(value, text_out, SHOWN_BYTES - 1, JSON_ENCODE_ANY | JSON_COMPACT);
    text_out[size < SHOWN_BYTES ? size : SHOWN_BYTES - 1] = '\0';
    return text_out;
}

static void check_is_one_of(problems *p, const json_t *value, const char *path,
                            const char *const *known)
{
    char list[SHOWN_BYTES] = "", text[SHOWN_BYTES];
    size_t used = 0;
    for (size_t i = 0; known[i] != NULL; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), known[i]) == 0) {
            return;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"", i > 0 ? ", " : "",
                                 known[i]);
    }
    tell(p, "%s: Unsupported value: %s: supported values: %s", path, shown(value, text), list);
}

/* False: absent, or wrong and told. */
static bool check_integer(problems *p, const json_t *object, const char *key, const char *path,
                          int64_t *value_out)
{
    char text[SHOWN_BYTES];
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return false;
    }
    if (!json_is_integer(value)) {
        tell(p, "%s.%s: Invalid value: %s: must be an integer", path, key, shown(value, text));
        return false;
    }
    *value_out = (int64_t)json_integer_value(value);
    return true;
}

static void check_not_negative(problems *p, const json_t *object, const char *key, const char *path)
{
    int64_t value;
    if (check_integer(p, object, key, path, &value) && value < 0) {
        tell(p, "%s.%s: Invalid value: %" PRId64 ": must be greater than or equal to 0", path, key,
             value);
    }
}

static void check_truth(problems *p, const json_t *object, const char *key, const char *path)
{
    char text[SHOWN_BYTES];
    const json_t *value = json_object_get(object, key);
    if (value != NULL && !json_is_null(value) && !json_is_boolean(value)) {
        tell(p, "%s.%s: Invalid value: %s: must be true or false", path, key, shown(value, text));
    }
}

static void check_replica(problems *p, const json_t *specs, const char *role, bool is_launcher)
{
    static const char *const restart_policies[] = {"Never", "OnFailure", NULL};
    char path[SHOWN_BYTES], at[SHOWN_BYTES + 32];
    const json_t *spec = json_object_get(specs, role);
    snprintf(path, sizeof path, "spec.mpiReplicaSpecs[%s]", role);
    if (spec == NULL || json_is_null(spec)) {
        if (is_launcher) {
            tell(p, "%s: Required value: must have %s replica spec", path, role);
        }
        return;
    }
    if (!json_is_object(spec)) {
        tell(p, "%s: Invalid value: must be a map", path);
        return;
    }
    snprintf(at, sizeof at, "%s.restartPolicy", path);
    check_is_one_of(p, json_object_get(spec, "restartPolicy"), at, restart_policies);
    const json_t *containers = gr_object_at(spec, "template.spec.containers");
    if (json_array_size(containers) == 0) {
        tell(p, "%s.template.spec.containers: Required value: must define at least one container",
             path);
    }
    size_t i;
    const json_t *container;
    json_array_foreach(containers, i, container)
    {
        if (!json_is_object(container)) {
            tell(p, "%s.template.spec.containers[%zu]: Invalid value: must be a map", path, i);
        }
    }
    int64_t replicas;
    if (!check_integer(p, spec, "replicas", path, &replicas)) {
        return;
    }
    if (is_launcher && replicas != 1) {
        tell(p, "%s.replicas: Invalid value: %" PRId64 ": must be 1", path, replicas);
    }
    if (!is_launcher && replicas <= 0) {
        tell(p, "%s.replicas: Invalid value: %" PRId64 ": must be greater than or equal to 1", path,
             replicas);
    }
    if (replicas > GR_MPIJOB_WORKERS_MAX) {
        tell(p, "%s.replicas: Invalid value: %" PRId64 ": must be less than or equal to %d", path,
             replicas, GR_MPIJOB_WORKERS_MAX);
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

/* The name of the last worker must be that of a host. */
static void check_name(problems *p, const json_t *job)
{
    enum { LABEL_BYTES_MAX = 63, HOST_BYTES = 512 };
    char host[HOST_BYTES];
    const char *name = gr_object_text(job, "metadata.name");
    if (name == NULL || name[0] == '\0') {
        tell(p, "metadata.name: Required value: must have a name");
        return;
    }
    int64_t workers = gr_object_int(job, "spec.mpiReplicaSpecs.Worker.replicas", 1);
    snprintf(host, sizeof host, "%s-worker-%" PRId64, name, workers > 0 ? workers - 1 : 0);
    bool is_long = strlen(host) > LABEL_BYTES_MAX, is_label = is_dns_label(host);
    if (is_long || !is_label) {
        tell(p,
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

static void check_run_policy(problems *p, const json_t *policy)
{
    static const char *const clean_policies[] = {"All", "None", "Running", NULL};
    static const char *const managers[] = {"kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue",
                                           NULL};
    const char *path = "spec.runPolicy";
    check_is_one_of(p, json_object_get(policy, "cleanPodPolicy"), "spec.runPolicy.cleanPodPolicy",
                    clean_policies);
    check_not_negative(p, policy, "ttlSecondsAfterFinished", path);
    check_not_negative(p, policy, "activeDeadlineSeconds", path);
    check_not_negative(p, policy, "backoffLimit", path);
    check_truth(p, policy, "suspend", path);
    const json_t *manager = json_object_get(policy, "managedBy");
    if (manager != NULL && !json_is_null(manager)) {
        check_is_one_of(p, manager, "spec.runPolicy.managedBy", managers);
    }
}

void gr_mpijob_validate(const json_t *job, char sentence_out[GR_EVENT_BYTES])
{
    static const char *const implementations[] = {"Intel", "MPICH", "OpenMPI", NULL};
    problems p = {.count = 0};
    const json_t *spec = json_object_get(job, "spec");
    const json_t *specs = json_object_get(spec, "mpiReplicaSpecs");
    check_name(&p, job);
    if (json_is_object(specs)) {
        check_replica(&p, specs, "Launcher", true);
        check_replica(&p, specs, "Worker", false);
    } else {
        tell(&p, "spec.mpiReplicaSpecs: Required value: must have replica specs");
    }
    check_not_negative(&p, spec, "slotsPerWorker", "spec");
    check_truth(&p, spec, "runLauncherAsWorker", "spec");
    check_run_policy(&p, json_object_get(spec, "runPolicy"));
    if (!json_is_string(json_object_get(spec, "sshAuthMountPath"))) {
        tell(&p, "spec.sshAuthMountPath: Invalid value: must be a path");
    }
    check_is_one_of(&p, json_object_get(spec, "mpiImplementation"), "spec.mpiImplementation",
                    implementations);
    sentence_out[0] = '\0';
    if (p.count == 0) {
        return;
    }
    int length = snprintf(sentence_out, GR_EVENT_BYTES, "Found validation errors: %s%s%s",
                          p.count > 1 ? "[" : "", p.text, p.count > 1 ? "]" : "");
    if (length >= GR_EVENT_BYTES) {
        strcpy(sentence_out + GR_EVENT_BYTES - 1 - strlen("..."), "...");
    }
}
