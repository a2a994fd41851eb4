/* SPDX-License-Identifier: Apache-2.0 */

/* PyTorchJob v1: the environment of torchrun and of torch.distributed, the init container that
 * waits for the master's name, the HorizontalPodAutoscaler of elasticPolicy. */

#include "base/text.h"
#include "operator/object.h"
#include "operator/parts.h"
#include "operator/pod_group.h"
#include "operator/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Defaults and validation ----------------------------------------------------------------- */
static void set_defaults(json_t *spec, bool *no_memory)
{
    json_t *policy = json_object_get(spec, "elasticPolicy");
    if (!json_is_integer(json_object_get(policy, "nProcPerNode"))) {
        gr_object_put_absent(spec, "nprocPerNode", json_string("auto"), no_memory);
    }
    if (!json_is_object(policy)) {
        return;
    }
    int64_t workers = gr_object_int(spec, "pytorchReplicaSpecs.Worker.replicas", 1);
    int64_t max = gr_object_int(policy, "maxReplicas", workers);
    int64_t min = gr_object_int(policy, "minReplicas", max);
    gr_object_put_default(policy, "minReplicas", json_integer(min), no_memory);
    gr_object_put_default(policy, "maxReplicas",
                          json_integer(gr_object_int(policy, "maxReplicas", min)), no_memory);
}

static void check(gr_problems *p, const json_t *spec, const json_t *specs)
{
    const char *path = "spec.pytorchReplicaSpecs";
    const json_t *policy = json_object_get(spec, "elasticPolicy");
    if (gr_object_int(specs, "Master.replicas", 1) != 1) {
        gr_problem(p, "%s[Master].replicas: Forbidden: must be 1", path);
    }
    if (gr_object_int(specs, "Worker.replicas", 1) < 1) {
        gr_problem(p, "%s[Worker].replicas: Forbidden: must be at least 1", path);
    }
    if (policy == NULL || json_is_null(policy)) {
        return;
    }
    if (!json_is_object(policy)) {
        gr_problem(p, "spec.elasticPolicy: Invalid value: must be a map");
    }
    if (json_object_get(specs, "Worker") == NULL) {
        gr_problem(p, "%s[Worker]: Required value: must be configured if elastic policy is used",
                   path);
    }
    if (json_object_get(policy, "nProcPerNode") != NULL &&
        json_object_get(spec, "nprocPerNode") != NULL) {
        gr_problem(p, "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with "
                      "spec.nprocPerNode");
    }
}

/* ---- Environment ----------------------------------------------------------------------------- */
/* The text of a text or of an integer; NULL: it is neither. */
static const char *text_of(const json_t *value, char text_out[32])
{
    if (json_is_integer(value)) {
        snprintf(text_out, 32, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return text_out;
    }
    return json_string_value(value);
}

/* Adds a variable with the value of a key, if it is set. */
static void add_env_of(gr_training *t, json_t *container, const char *name, const json_t *map,
                       const char *key)
{
    char number[32];
    const char *text = text_of(json_object_get(map, key), number);
    if (text != NULL) {
        gr_parts_add_env(&t->look, container, name, text);
    }
}

static void add_env_int(gr_training *t, json_t *container, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    gr_parts_add_env(&t->look, container, name, text);
}

/* The ranks of a pod: what strconv.Atoi of training-operator makes of nprocPerNode, also 0 and
 * less. Words such as auto, and what is no number of 64 bits, are 1. */
static int64_t ranks_of_pod(const json_t *nproc)
{
    int64_t ranks;
    return gr_object_number(nproc, &ranks) ? ranks : 1;
}

static void add_master_env(gr_training *t, json_t *container, const gr_training_role *role,
                           int64_t index)
{
    char address[GR_TRAINING_NAME_BYTES];
    const gr_training_role *master = gr_training_find_role(t, "Master");
    int64_t ranks = ranks_of_pod(gr_object_at(t->look.job, "spec.nprocPerNode"));
    int64_t rank = role == master ? 0 : index + 1;
    snprintf(address, sizeof address, "%s-master-0", t->look.name);
    add_env_int(t, container, "MASTER_PORT", master->port);
    add_env_int(t, container, "PET_MASTER_PORT", master->port);
    gr_parts_add_env(&t->look, container, "MASTER_ADDR", address);
    gr_parts_add_env(&t->look, container, "PET_MASTER_ADDR", address);
    add_env_int(t, container, "WORLD_SIZE",
                (int64_t)((uint64_t)t->replicas * (uint64_t)ranks)); /* wraps, as Go's int does */
    add_env_int(t, container, "RANK", rank);
    add_env_int(t, container, "PET_NODE_RANK", rank);
}

/* "k=v,k=v" of [{"key": k, "value": v}]; owned by the caller. */
static json_t *join_conf(const json_t *list)
{
    json_t *joined = json_string("");
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one)
    {
        const char *key = gr_object_text(one, "key"), *value = gr_object_text(one, "value");
        json_t *longer =
            json_sprintf("%s%s%s=%s", joined != NULL ? json_string_value(joined) : "",
                         i > 0 ? "," : "", key != NULL ? key : "", value != NULL ? value : "");
        json_decref(joined);
        joined = longer;
    }
    return joined;
}

static void add_elastic_env(gr_training *t, json_t *container, const json_t *policy)
{
    enum { HOST_BYTES_MAX = 500 };
    char text[2 * GR_TRAINING_NAME_BYTES];
    const char *host = gr_object_text(policy, "rdzvHost");
    const char *name = host != NULL ? host : t->look.name;
    const char *backend = gr_object_text(policy, "rdzvBackend");
    int64_t port = gr_object_int(policy, "rdzvPort", gr_training_find_role(t, "Worker")->port);
    snprintf(text, sizeof text, "%.*s%s:%" PRId64, gr_text_fit(name, HOST_BYTES_MAX), name,
             host != NULL ? "" : "-worker-0", port);
    gr_parts_add_env(&t->look, container, "PET_RDZV_ENDPOINT", text);
    gr_parts_add_env(&t->look, container, "PET_RDZV_BACKEND", backend != NULL ? backend : "c10d");
    snprintf(text, sizeof text, "%" PRId64 ":%" PRId64, gr_object_int(policy, "minReplicas", 0),
             gr_object_int(policy, "maxReplicas", 0));
    gr_parts_add_env(&t->look, container, "PET_NNODES", text);
    add_env_of(t, container, "PET_MAX_RESTARTS", policy, "maxRestarts");
    add_env_of(t, container, "PET_NPROC_PER_NODE", policy, "nProcPerNode");
    add_env_of(t, container, "PET_RDZV_ID", policy, "rdzvId");
    json_t *list = json_object_get(policy, "rdzvConf");
    if (json_array_size(list) > 0) {
        json_t *conf = join_conf(list);
        gr_parts_add_env(&t->look, container, "PET_RDZV_CONF", conf ? json_string_value(conf) : "");
        t->look.no_memory |= conf == NULL;
        json_decref(conf);
    }
    if (gr_object_true(policy, "standalone")) {
        gr_parts_add_env(&t->look, container, "PET_STANDALONE", "");
    }
}

/* The name of the master must be known before a worker begins. */
static void add_init_container(gr_training *t, json_t *pod_spec)
{
    const gr_operator_view *view = t->look.view;
    const char *image = view->pytorch_init_image;
    int64_t tries = view->pytorch_init_tries > 0 ? view->pytorch_init_tries : GR_PYTORCH_INIT_TRIES;
    json_t *script =
        json_sprintf("err=1;for i in $(seq %" PRId64 "); do if nslookup %s-master-0; then "
                     "err=0 && break; fi;echo waiting for master; sleep 2; done; exit "
                     "$err",
                     tries, t->look.name);
    json_t *container = json_pack(
        "{s:s, s:s, s:s, s:{s:{s:s, s:s}, s:{s:s, s:s}}, s:[s, s, o]}", "name", "init-pytorch",
        "image", image != NULL ? image : GR_PYTORCH_INIT_IMAGE, "imagePullPolicy", "IfNotPresent",
        "resources", "limits", "cpu", "100m", "memory", "20Mi", "requests", "cpu", "50m", "memory",
        "10Mi", "command", "sh", "-c", script);
    gr_object_append(gr_object_list(pod_spec, "initContainers", &t->look.no_memory), container,
                     &t->look.no_memory);
}

static void complete_pod(gr_training *t, const gr_training_role *role, int64_t index,
                         json_t *pod_spec)
{
    size_t i;
    json_t *container;
    const json_t *spec = json_object_get(t->look.job, "spec");
    const json_t *policy = json_object_get(spec, "elasticPolicy");
    bool has_master = gr_training_find_role(t, "Master") != NULL;
    json_array_foreach(json_object_get(pod_spec, "containers"), i, container)
    {
        gr_parts_add_env(&t->look, container, "PYTHONUNBUFFERED", "1");
        if (has_master) {
            add_master_env(t, container, role, index);
        }
        add_env_of(t, container, "PET_NPROC_PER_NODE", spec, "nprocPerNode");
        if (json_is_object(policy)) {
            add_elastic_env(t, container, policy);
        } else {
            add_env_int(t, container, "PET_NNODES", t->replicas);
        }
    }
    if (has_master && strcmp(role->name, "Worker") == 0) {
        add_init_container(t, pod_spec);
    }
}

/* ---- HorizontalPodAutoscaler ----------------------------------------------------------------- */
/* The metrics with quantities in the form in which the API server shows them. */
static json_t *metrics_in_one_form(gr_training *t, const json_t *metrics)
{
    static const char *const amounts[] = {"averageValue", "value"};
    json_t *copy = json_deep_copy(metrics), *metric, *source;
    size_t i;
    const char *type;
    t->look.no_memory |= copy == NULL;
    json_array_foreach(copy, i, metric)
    {
        json_object_foreach(metric, type, source)
        {
            json_t *target = json_object_get(source, "target");
            for (size_t k = 0; k < sizeof amounts / sizeof amounts[0]; k++) {
                json_t *amount = json_object_get(target, amounts[k]);
                if (amount != NULL) {
                    gr_object_put(target, amounts[k], gr_pod_quantity(amount), &t->look.no_memory);
                }
            }
        }
    }
    return copy;
}

static void keep_autoscaler(gr_training *t)
{
    static const char api[] = "autoscaling/v2", kind[] = "HorizontalPodAutoscaler";
    json_t *policy = gr_object_at(t->look.job, "spec.elasticPolicy");
    json_t *metrics = json_object_get(policy, "metrics");
    /* The API server puts its own in the place of an empty list. */
    const char *const keys[] = {"minReplicas", "maxReplicas",
                                json_array_size(metrics) > 0 ? "metrics" : NULL, NULL};
    if (!json_is_array(metrics)) {
        return;
    }
    if (t->is_suspended) {
        const json_t *there = gr_look_find_own(&t->look, api, kind, t->look.name);
        if (there != NULL) {
            (void)gr_look_delete(&t->look, there);
        }
        return;
    }
    json_t *scaler = json_pack(
        "{s:s, s:s, s:o, s:{s:{s:s, s:s, s:s}, s:O, s:O, s:o}}", "apiVersion", api, "kind", kind,
        "metadata", gr_look_metadata(&t->look, t->look.name), "spec", "scaleTargetRef",
        "apiVersion", t->look.api_version, "kind", t->look.kind, "name", t->look.name,
        "minReplicas", json_object_get(policy, "minReplicas"), "maxReplicas",
        json_object_get(policy, "maxReplicas"), "metrics", metrics_in_one_form(t, metrics));
    gr_look_keep(&t->look, scaler, "spec", keys);
    json_decref(scaler);
}

/* ---- Status ---------------------------------------------------------------------------------- */
/* A role whose pods failed: they are made anew, or the job has failed. */
static void report_failed(gr_training *t, const gr_training_role *role)
{
    char message[GR_EVENT_BYTES];
    bool has_failed = strcmp(role->restart_policy, "Never") == 0;
    if (gr_object_holds(json_object_get(t->look.status, "conditions"), "Failed")) {
        return; /* by an exit code that no new pod mends */
    }
    snprintf(message, sizeof message,
             "PyTorchJob %s is %s because %" PRId64 " %s replica(s) failed.", t->look.name,
             has_failed ? "failed" : "restarting", role->failed, role->name);
    if (has_failed) {
        gr_training_end(t, "Failed", message);
        return;
    }
    if (role->is_new) {
        gr_training_event(t, "Warning", "Restarting", message);
    }
    gr_training_set_condition(t, "Restarting", true, "Restarting", message);
}

/* The master decides; without one, all workers, or the first that is done of an elastic job. */
static void report_status(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    bool has_master = gr_training_find_role(t, "Master") != NULL;
    bool is_elastic = json_is_object(gr_object_at(t->look.job, "spec.elasticPolicy"));
    for (size_t r = 0; r < t->role_count; r++) {
        const gr_training_role *role = &t->roles[r];
        const char *space = has_master ? "" : t->look.space, *slash = has_master ? "" : "/";
        bool decides = (strcmp(role->name, "Master") == 0) == has_master;
        bool is_done =
            role->succeeded == role->replicas || (!has_master && is_elastic && role->succeeded > 0);
        if (decides && is_done) {
            snprintf(message, sizeof message, "PyTorchJob %s%s%s %ssuccessfully completed.", space,
                     slash, t->look.name, has_master ? "is " : "");
            gr_training_end(t, "Succeeded", message);
            return;
        }
        if (decides && role->active > 0) {
            snprintf(message, sizeof message, "PyTorchJob %s%s%s is running.", space, slash,
                     t->look.name);
            gr_training_set_condition(t, "Running", true, "Running", message);
        }
        if (role->failed > 0 && role->replicas > role->succeeded + role->active) {
            report_failed(t, role);
        }
    }
}

/* ---- The kind -------------------------------------------------------------------------------- */
static const char *const spec_fields[] = {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs",
                                          "runPolicy", NULL};
static const char *const elastic_fields[] = {
    "maxReplicas", "maxRestarts", "metrics", "minReplicas", "nProcPerNode", "rdzvBackend",
    "rdzvConf",    "rdzvHost",    "rdzvId",  "rdzvPort",    "standalone",   NULL};
static const char *const roles[] = {"Master", "Worker", NULL};
static const gr_operator_fields fields[] = {
    {"spec", spec_fields},
    {"spec.elasticPolicy", elastic_fields},
    {"spec.runPolicy", gr_run_policy_fields},
    {"spec.runPolicy.schedulingPolicy", gr_scheduling_policy_fields},
    {"spec.pytorchReplicaSpecs.Master", gr_training_replica_fields},
    {"spec.pytorchReplicaSpecs.Worker", gr_training_replica_fields},
    {NULL, NULL}};

static const gr_training_kind pytorchjob = {.kind = &gr_pytorchjob_v1,
                                            .specs = "pytorchReplicaSpecs",
                                            .operator_name = "pytorchjob-controller",
                                            .container = "pytorch",
                                            .port_name = "pytorchjob-port",
                                            .port = 23456,
                                            .restart_policy = "OnFailure",
                                            .roles = roles,
                                            .deleted_reason = "SuccessfulDeletePod",
                                            .has_selector = true,
                                            .has_services = true,
                                            .restarts_failed = true,
                                            .set_defaults = set_defaults,
                                            .check = check,
                                            .keep_first = keep_autoscaler,
                                            .complete_pod = complete_pod,
                                            .report_status = report_status};

static gr_status reconcile(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag)
{
    return gr_training_reconcile(&pytorchjob, view, result_out, diag);
}

const gr_operator_kind gr_pytorchjob_v1 = {.api_version = "kubeflow.org/v1",
                                           .kind = "PyTorchJob",
                                           .fields = fields,
                                           .reconcile = reconcile};
