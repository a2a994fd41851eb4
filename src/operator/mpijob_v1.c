/* SPDX-License-Identifier: Apache-2.0 */

/* MPIJob v1: mpirun reaches the workers by `kubectl exec`, so they need no sshd. The launcher is a
 * pod with the right to do so; an init container brings kubectl. There are no Services. */

#include "operator/object.h"
#include "operator/parts.h"
#include "operator/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Defaults and validation ----------------------------------------------------------------- */
static void set_defaults(json_t *spec, bool *no_memory)
{
    json_t *worker = gr_object_at(spec, "mpiReplicaSpecs.Worker");
    json_t *policy = json_object_get(spec, "cleanPodPolicy"); /* of old manifests */
    if (json_is_object(worker)) {
        gr_object_put_default(worker, "replicas", json_integer(0), no_memory);
    }
    if (json_is_string(policy)) {
        gr_object_put_absent(gr_object_map(spec, "runPolicy", no_memory), "cleanPodPolicy",
                             json_incref(policy), no_memory);
    }
}

static void check(gr_problems *p, const json_t *spec, const json_t *specs)
{
    const char *path = "spec.mpiReplicaSpecs[Launcher]";
    if (json_object_get(specs, "Launcher") == NULL) {
        gr_problem(p, "%s: Required value: must have Launcher replica spec", path);
    } else if (gr_object_int(specs, "Launcher.replicas", 1) != 1) {
        gr_problem(p, "%s.replicas: Forbidden: must be 1", path);
    }
    gr_check_not_negative(p, spec, "slotsPerWorker", "spec");
}

/* ---- ConfigMap ------------------------------------------------------------------------------- */
static int64_t slots(const gr_training *t)
{
    return gr_object_int(t->look.job, "spec.slotsPerWorker", 1);
}

/* A launcher that has GPUs computes, too. */
static bool has_gpu_launcher(const gr_training *t)
{
    const gr_training_role *launcher = gr_training_find_role(t, "Launcher");
    size_t i;
    const json_t *container;
    json_array_foreach(gr_object_at(launcher->template, "spec.containers"), i, container)
    {
        const char *name;
        json_t *amount, *limits = gr_object_at(container, "resources.limits");
        json_object_foreach(limits, name, amount)
        {
            if (strstr(name, "gpu") != NULL) {
                return true;
            }
        }
    }
    return false;
}

static void print_hosts(const gr_training *t, FILE *hostfile, FILE *discover)
{
    const gr_training_role *worker = gr_training_find_role(t, "Worker");
    fputs("#!/bin/sh", discover);
    if (has_gpu_launcher(t)) {
        fprintf(hostfile, "%s-launcher slots=%" PRId64 "\n", t->look.name, slots(t));
        fprintf(discover, "\necho %s-launcher:%" PRId64 "\n", t->look.name, slots(t));
    }
    for (int64_t n = 0; worker != NULL && n < worker->replicas; n++) {
        fprintf(hostfile, "%s-worker-%" PRId64 " slots=%" PRId64 "\n", t->look.name, n, slots(t));
        if (gr_object_is_text(worker->pods[n], "status.phase", "Running")) {
            fprintf(discover, "\necho %s-worker-%" PRId64 ":%" PRId64, t->look.name, n, slots(t));
        }
    }
}

/* What Open MPI starts in place of ssh, with the name of a pod and a command. */
static json_t *exec_script(const gr_training *t)
{
    const char *container = gr_object_text(t->look.job, "spec.mainContainer");
    bool is_given = container != NULL && container[0] != '\0';
    return json_sprintf(
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n/opt/kube/kubectl exec ${POD_NAME}%s%s"
        " -- /bin/sh -c \"$*\"",
        is_given ? " --container " : "", is_given ? container : "");
}

static void keep_config_map(gr_training *t)
{
    static const char *const whole[] = {NULL};
    gr_object_print hostfile, discover;
    gr_object_print_begin(&hostfile);
    gr_object_print_begin(&discover);
    if (hostfile.out != NULL && discover.out != NULL) {
        print_hosts(t, hostfile.out, discover.out);
    }
    json_t *data = json_pack("{s:o, s:o, s:o}", "hostfile", gr_object_print_end(&hostfile),
                             "discover_hosts.sh", gr_object_print_end(&discover), "kubexec.sh",
                             exec_script(t));
    json_t *map = gr_parts_object(&t->look, "v1", "ConfigMap", "-config");
    gr_object_put(map, "data", data, &t->look.no_memory);
    gr_look_keep(&t->look, map, "data", whole);
    json_decref(map);
}

/* ---- Rights of the launcher ------------------------------------------------------------------ */
/* NULL: the launcher runs as an account of its own. */
static const char *given_account(const gr_training *t)
{
    const char *name =
        gr_object_text(gr_training_find_role(t, "Launcher")->template, "spec.serviceAccountName");
    return name != NULL && name[0] != '\0' ? name : NULL;
}

/* The launcher sees pods, and may run commands in the workers. Without any worker it must not get
 * that right: without names it would hold for all pods. */
static json_t *role_rules(gr_training *t)
{
    const gr_training_role *worker = gr_training_find_role(t, "Worker");
    json_t *rules = json_pack("[{s:[s], s:[s], s:[s, s, s]}]", "apiGroups", "", "resources", "pods",
                              "verbs", "get", "list", "watch");
    json_t *names = json_array();
    for (int64_t n = 0; worker != NULL && n < worker->replicas; n++) {
        gr_object_append(names, json_sprintf("%s-worker-%" PRId64, t->look.name, n),
                         &t->look.no_memory);
    }
    if (json_array_size(names) > 0) {
        gr_object_append(rules,
                         json_pack("{s:[s], s:[s], s:[s], s:O}", "apiGroups", "", "resources",
                                   "pods/exec", "verbs", "create", "resourceNames", names),
                         &t->look.no_memory);
    }
    json_decref(names);
    return rules;
}

static void keep_rights(gr_training *t)
{
    static const char api[] = "rbac.authorization.k8s.io/v1";
    static const char *const whole[] = {NULL};
    const char *account = given_account(t);
    char name[GR_TRAINING_NAME_BYTES];
    snprintf(name, sizeof name, "%s-launcher", t->look.name);
    json_t *role = gr_parts_object(&t->look, api, "Role", "-launcher");
    json_t *subjects = json_pack("[{s:s, s:s, s:s}]", "kind", "ServiceAccount", "name",
                                 account != NULL ? account : name, "namespace", t->look.space);
    json_t *binding = gr_parts_object(&t->look, api, "RoleBinding", "-launcher");
    gr_object_put(role, "rules", role_rules(t), &t->look.no_memory);
    gr_object_put(binding, "subjects", subjects, &t->look.no_memory);
    gr_object_put(binding, "roleRef",
                  json_pack("{s:s, s:s, s:s}", "apiGroup", "rbac.authorization.k8s.io", "kind",
                            "Role", "name", name),
                  &t->look.no_memory);
    if (account == NULL) {
        json_t *own = gr_parts_object(&t->look, "v1", "ServiceAccount", "-launcher");
        gr_look_keep(&t->look, own, NULL, whole);
        json_decref(own);
    }
    gr_look_keep(&t->look, role, "rules", whole);
    gr_look_keep(&t->look, binding, "subjects", whole);
    json_decref(role);
    json_decref(binding);
}

static void keep_more(gr_training *t)
{
    if (!t->is_suspended) {
        keep_config_map(t);
        keep_rights(t);
    }
}

/* ---- Pods ------------------------------------------------------------------------------------ */
/* Open MPI looks for kubexec.sh on every rank. */
static void add_config_volume(gr_training *t, json_t *pod_spec, bool is_launcher)
{
    json_t *items =
        json_pack("[{s:s, s:s, s:i}]", "key", "kubexec.sh", "path", "kubexec.sh", "mode", 0555);
    if (is_launcher) {
        gr_object_append(
            items,
            json_pack("{s:s, s:s, s:i}", "key", "hostfile", "path", "hostfile", "mode", 0444),
            &t->look.no_memory);
        gr_object_append(items,
                         json_pack("{s:s, s:s, s:i}", "key", "discover_hosts.sh", "path",
                                   "discover_hosts.sh", "mode", 0555),
                         &t->look.no_memory);
    }
    gr_object_append(gr_object_list(pod_spec, "volumes", &t->look.no_memory),
                     json_pack("{s:s, s:{s:o, s:o}}", "name", "mpi-job-config", "configMap", "name",
                               json_sprintf("%s-config", t->look.name), "items", items),
                     &t->look.no_memory);
}

/* Brings kubectl, and waits until all workers run. */
static void add_init_container(gr_training *t, json_t *pod_spec)
{
    const char *image = t->look.view->kubectl_delivery_image;
    json_t *amounts =
        json_pack("{s:s, s:s, s:s}", "cpu", "100m", "memory", "512Mi", "ephemeral-storage", "5Gi");
    json_t *container =
        json_pack("{s:s, s:s, s:s, s:{s:O, s:O}}", "name", "kubectl-delivery", "image",
                  image != NULL ? image : GR_KUBECTL_DELIVERY_IMAGE, "imagePullPolicy",
                  "IfNotPresent", "resources", "limits", amounts, "requests", amounts);
    json_decref(amounts);
    gr_parts_add_env(&t->look, container, "TARGET_DIR", "/opt/kube");
    gr_parts_add_env(&t->look, container, "NAMESPACE", t->look.space);
    gr_parts_add_mount(&t->look, container, "mpi-job-kubectl", "/opt/kube");
    gr_parts_add_mount(&t->look, container, "mpi-job-config", "/etc/mpi");
    gr_object_append(gr_object_list(pod_spec, "initContainers", &t->look.no_memory), container,
                     &t->look.no_memory);
}

static bool has_env(const json_t *container, const char *name)
{
    size_t i;
    const json_t *variable;
    json_array_foreach(json_object_get(container, "env"), i, variable)
    {
        if (gr_object_is_text(variable, "name", name)) {
            return true;
        }
    }
    return false;
}

static void complete_launcher(gr_training *t, json_t *pod_spec, json_t *container)
{
    static const char *const intel[][2] = {{"I_MPI_HYDRA_BOOTSTRAP", "rsh"},
                                           {"I_MPI_HYDRA_BOOTSTRAP_EXEC", "/etc/mpi/kubexec.sh"}};
    gr_parts_add_env(&t->look, container, "OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh");
    gr_parts_add_env(&t->look, container, "OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile");
    if (!has_gpu_launcher(t)) { /* it computes nothing: GPUs are for the workers */
        gr_parts_add_env(&t->look, container, "NVIDIA_VISIBLE_DEVICES", "");
        gr_parts_add_env(&t->look, container, "NVIDIA_DRIVER_CAPABILITIES", "");
    }
    for (size_t i = 0; i < sizeof intel / sizeof intel[0]; i++) {
        if (!has_env(container, intel[i][0])) {
            gr_parts_add_env(&t->look, container, intel[i][0], intel[i][1]);
        }
    }
    gr_object_append(gr_object_list(pod_spec, "volumes", &t->look.no_memory),
                     json_pack("{s:s, s:{}}", "name", "mpi-job-kubectl", "emptyDir"),
                     &t->look.no_memory);
    gr_object_put_default(pod_spec, "serviceAccountName", json_sprintf("%s-launcher", t->look.name),
                          &t->look.no_memory);
    gr_parts_add_mount(&t->look, container, "mpi-job-kubectl", "/opt/kube");
    add_init_container(t, pod_spec);
}

static void complete_pod(gr_training *t, const gr_training_role *role, int64_t index,
                         json_t *pod_spec)
{
    (void)index;
    json_t *container = json_array_get(json_object_get(pod_spec, "containers"), 0);
    if (role->is_single) {
        complete_launcher(t, pod_spec, container);
    } else if (json_array_size(json_object_get(container, "command")) == 0) {
        gr_object_put(container, "command", json_pack("[s]", "sleep"), &t->look.no_memory);
        gr_object_put(container, "args", json_pack("[s]", "365d"), &t->look.no_memory);
    }
    gr_parts_add_mount(&t->look, container, "mpi-job-config", "/etc/mpi");
    add_config_volume(t, pod_spec, role->is_single);
}

static void report_created(gr_training *t, const gr_training_role *role, const char *pod)
{
    char message[GR_EVENT_BYTES];
    if (role->is_single) {
        snprintf(message, sizeof message, "launcher pod created success: %s", pod);
        gr_look_event(&t->look, "Normal", "MPIJobRunning", message);
    } else {
        snprintf(message, sizeof message, "Created worker pod: %s", pod);
        gr_look_event(&t->look, "Normal", "SuccessfulCreatePod", message);
    }
}

/* ---- Status ---------------------------------------------------------------------------------- */
static void report_failed(gr_training *t, const gr_training_role *role)
{
    char message[GR_EVENT_BYTES];
    snprintf(message, sizeof message,
             "MPIJob %s is failed because %" PRId64 " %s replica(s) failed.", t->look.name,
             role->failed, role->name);
    gr_training_event(t, "Normal", "Failed", message);
    gr_training_set_condition(t, "Failed", true, "MPIJobFailed", message);
}

/* The launcher decides, and no worker may fail. */
static void report_status(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    const gr_training_role *launcher = gr_training_find_role(t, "Launcher");
    json_t *counts = gr_object_map(t->look.status, "replicaStatuses", &t->look.no_memory);
    if (launcher->succeeded + launcher->failed > 0 || t->role_count == 1) {
        gr_object_put(counts, "Worker", json_object(), &t->look.no_memory);
    }
    if (launcher->succeeded > 0) {
        snprintf(message, sizeof message, "MPIJob %s is successfully completed.", t->look.name);
        gr_training_end(t, "Succeeded", message);
        return;
    }
    if (launcher->active > 0) {
        snprintf(message, sizeof message, "MPIJob %s is running.", t->look.name);
        gr_training_set_condition(t, "Running", true, "Running", message);
    }
    for (size_t r = 0; r < t->role_count; r++) {
        const gr_training_role *role = &t->roles[r];
        if (role->failed > 0 && strcmp(role->restart_policy, "ExitCode") != 0) {
            report_failed(t, role);
        }
    }
}

/* ---- The kind -------------------------------------------------------------------------------- */
static const char *const spec_fields[] = {"cleanPodPolicy", "mainContainer",  "mpiReplicaSpecs",
                                          "runPolicy",      "slotsPerWorker", NULL};
static const char *const roles[] = {"Launcher", "Worker", NULL};
static const gr_operator_fields fields[] = {
    {"spec", spec_fields},
    {"spec.runPolicy", gr_run_policy_fields},
    {"spec.runPolicy.schedulingPolicy", gr_scheduling_policy_fields},
    {"spec.mpiReplicaSpecs.Launcher", gr_training_replica_fields},
    {"spec.mpiReplicaSpecs.Worker", gr_training_replica_fields},
    {NULL, NULL}};

static const gr_training_kind mpijob = {.kind = &gr_mpijob_v1,
                                        .specs = "mpiReplicaSpecs",
                                        .operator_name = "mpijob-controller",
                                        .restart_policy = "Never",
                                        .roles = roles,
                                        .single_role = "Launcher",
                                        .deleted_reason = "SuccessfulDeleteJob",
                                        .warning_prefix = "SettedPodTemplate",
                                        .set_defaults = set_defaults,
                                        .check = check,
                                        .keep_more = keep_more,
                                        .complete_pod = complete_pod,
                                        .report_created = report_created,
                                        .report_status = report_status};

static gr_status reconcile(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag)
{
    return gr_training_reconcile(&mpijob, view, result_out, diag);
}

const gr_operator_kind gr_mpijob_v1 = {
    .api_version = "kubeflow.org/v1", .kind = "MPIJob", .fields = fields, .reconcile = reconcile};
