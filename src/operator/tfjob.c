/* SPDX-License-Identifier: Apache-2.0 */

/* TFJob v1: TF_CONFIG, and whose end is that of the job. */

#include "base/text.h"
#include "operator/object.h"
#include "operator/parts.h"
#include "operator/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(gr_problems *p, const json_t *spec, const json_t *specs)
{
    const json_t *policy = json_object_get(spec, "successPolicy");
    if (json_object_get(specs, "Chief") != NULL && json_object_get(specs, "Master") != NULL) {
        gr_problem(p, "spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master "
                      "role");
    }
    if (policy != NULL && !json_is_null(policy) && !json_is_string(policy)) {
        gr_problem(p, "spec.successPolicy: Invalid value: must be a text");
    }
    gr_check_truth(p, spec, "enableDynamicWorker", "spec");
}

static void warn(gr_training *t)
{
    enum { POLICY_BYTES_MAX = 100 };
    char message[GR_EVENT_BYTES];
    const char *policy = gr_object_text(t->look.job, "spec.successPolicy");
    if (policy != NULL && policy[0] != '\0' && strcmp(policy, "AllWorkers") != 0) {
        snprintf(message, sizeof message,
                 "spec.successPolicy \"%.*s\" is not AllWorkers: the job succeeds with its chief "
                 "or worker 0",
                 gr_text_fit(policy, POLICY_BYTES_MAX), policy);
        gr_look_event(&t->look, "Warning", "SuccessPolicy", message);
    }
}

/* ---- TF_CONFIG ------------------------------------------------------------------------------- */
static json_t *host(const gr_training *t, const gr_training_role *role, int64_t index)
{
    const char *domain = t->look.view->cluster_domain;
    return json_sprintf("%s-%s-%" PRId64 ".%s.svc%s%s:%" PRId64, t->look.name, role->label, index,
                        t->look.space, domain[0] != '\0' ? "." : "", domain, role->port);
}

static json_t *hosts(gr_training *t, const gr_training_role *role)
{
    json_t *list = json_array();
    for (int64_t n = 0; role != NULL && n < role->replicas; n++) {
        gr_object_append(list, host(t, role, n), &t->look.no_memory);
    }
    return list;
}

/* Everybody knows all hosts: made once for all pods. */
static json_t *whole_cluster(gr_training *t)
{
    if (t->cluster == NULL) {
        t->cluster = json_object();
        for (size_t r = 0; r < t->role_count; r++) {
            gr_object_put(t->cluster, t->roles[r].label, hosts(t, &t->roles[r]),
                          &t->look.no_memory);
        }
    }
    return json_incref(t->cluster);
}

/* Workers may come and go: one knows itself and the parameter servers, which know themselves. */
static json_t *sparse_cluster(gr_training *t, const gr_training_role *role, int64_t index)
{
    bool is_worker = strcmp(role->label, "worker") == 0, is_ps = strcmp(role->label, "ps") == 0;
    char number[32];
    json_t *workers = json_object(), *servers;
    if (is_worker) {
        snprintf(number, sizeof number, "%" PRId64, index);
        gr_object_put(workers, number, host(t, role, index), &t->look.no_memory);
    }
    servers = is_ps ? json_pack("[o]", host(t, role, index))
                    : hosts(t, is_worker ? gr_training_find_role(t, "PS") : NULL);
    return json_pack("{s:o, s:o}", "worker", workers, "ps", servers);
}

static void complete_pod(gr_training *t, const gr_training_role *role, int64_t index,
                         json_t *pod_spec)
{
    if (t->replicas == 1) {
        return; /* it trains alone */
    }
    bool is_dynamic = gr_object_true(t->look.job, "spec.enableDynamicWorker");
    json_t *config = json_pack("{s:o, s:{s:s, s:I}}", "cluster",
                               is_dynamic ? sparse_cluster(t, role, index) : whole_cluster(t),
                               "task", "type", role->label, "index", (json_int_t)index);
    if (!is_dynamic) {
        gr_object_put_text(config, "environment", "cloud", &t->look.no_memory);
    }
    char *text = json_dumps(config, JSON_COMPACT);
    t->look.no_memory |= text == NULL;
    json_t *container = gr_training_find_container(pod_spec, t->kind->container);
    if (container != NULL) {
        gr_parts_add_env(&t->look, container, "TF_CONFIG", text != NULL ? text : "");
    }
    free(text);
    json_decref(config);
}

/* ---- Status ---------------------------------------------------------------------------------- */
static bool has_worker_0_succeeded(const gr_training_role *worker)
{
    return worker->replicas > 0 && gr_object_is_text(worker->pods[0], "status.phase", "Succeeded");
}

static void report_decided(gr_training *t, const gr_training_role *role, bool is_done)
{
    char message[GR_EVENT_BYTES];
    if (is_done) {
        snprintf(message, sizeof message, "TFJob %s/%s successfully completed.", t->look.space,
                 t->look.name);
        gr_training_end(t, "Succeeded", message);
    } else if (role->active > 0) {
        snprintf(message, sizeof message, "TFJob %s/%s is running.", t->look.space, t->look.name);
        gr_training_set_condition(t, "Running", true, "Running", message);
    }
}

/* The chief or master decides; without one, worker 0, or all workers by successPolicy. A pod that
 * failed fails the job, unless it restarts or workers may come and go. */
static void report_status(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    bool has_chief =
        gr_training_find_role(t, "Chief") != NULL || gr_training_find_role(t, "Master") != NULL;
    bool needs_all = gr_object_is_text(t->look.job, "spec.successPolicy", "AllWorkers");
    bool is_dynamic = gr_object_true(t->look.job, "spec.enableDynamicWorker");
    for (size_t r = 0; r < t->role_count; r++) {
        const gr_training_role *role = &t->roles[r];
        bool is_worker = strcmp(role->name, "Worker") == 0;
        bool is_chief = strcmp(role->name, "Chief") == 0 || strcmp(role->name, "Master") == 0;
        if (has_chief ? is_chief : is_worker) {
            bool is_done = role->succeeded == role->replicas ||
                           (!has_chief && !needs_all && has_worker_0_succeeded(role));
            report_decided(t, role, is_done);
            if (is_done) {
                break;
            }
        }
        bool is_restarting =
            gr_training_remakes(t, role) &&
            gr_object_holds(json_object_get(t->look.status, "conditions"), "Restarting");
        if (role->failed > 0 && !is_restarting && !(is_dynamic && is_worker)) {
            snprintf(message, sizeof message,
                     "TFJob %s/%s has failed because %" PRId64 " %s replica(s) failed.",
                     t->look.space, t->look.name, role->failed, role->name);
            gr_training_end(t, "Failed", message);
        }
    }
}

/* ---- The kind -------------------------------------------------------------------------------- */
static const char *const spec_fields[] = {"enableDynamicWorker", "runPolicy", "successPolicy",
                                          "tfReplicaSpecs", NULL};
static const char *const roles[] = {"Chief", "Evaluator", "Master", "PS", "Worker", NULL};
static const gr_operator_fields fields[] = {
    {"spec", spec_fields},
    {"spec.runPolicy", gr_run_policy_fields},
    {"spec.runPolicy.schedulingPolicy", gr_scheduling_policy_fields},
    {"spec.tfReplicaSpecs.Chief", gr_training_replica_fields},
    {"spec.tfReplicaSpecs.Evaluator", gr_training_replica_fields},
    {"spec.tfReplicaSpecs.Master", gr_training_replica_fields},
    {"spec.tfReplicaSpecs.PS", gr_training_replica_fields},
    {"spec.tfReplicaSpecs.Worker", gr_training_replica_fields},
    {NULL, NULL}};

static const gr_training_kind tfjob = {.kind = &gr_tfjob_v1,
                                       .specs = "tfReplicaSpecs",
                                       .operator_name = "tfjob-controller",
                                       .container = "tensorflow",
                                       .port_name = "tfjob-port",
                                       .port = 2222,
                                       .restart_policy = "Never",
                                       .roles = roles,
                                       .deleted_reason = "SuccessfulDeleteJob",
                                       .has_services = true,
                                       .restarts_failed = true,
                                       .check = check,
                                       .warn = warn,
                                       .complete_pod = complete_pod,
                                       .report_status = report_status};

static gr_status reconcile(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag)
{
    return gr_training_reconcile(&tfjob, view, result_out, diag);
}

const gr_operator_kind gr_tfjob_v1 = {
    .api_version = "kubeflow.org/v1", .kind = "TFJob", .fields = fields, .reconcile = reconcile};
