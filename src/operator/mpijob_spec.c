/* SPDX-License-Identifier: Apache-2.0 */

/* Defaults and validation of an MPIJob, with the sentences that mpi-operator has for them. */

#include "operator/mpijob.h"
#include "operator/object.h"
#include "operator/problems.h"

#include <inttypes.h>
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
static const char *const roles[] = {"Launcher", "Worker", NULL};
static const char *const replica_fields[] = {"replicas", "restartPolicy", "template", NULL};

const gr_operator_fields gr_mpijob_fields[] = {
    {"spec", spec_fields},
    {"spec.runPolicy", gr_run_policy_fields},
    {"spec.runPolicy.schedulingPolicy", gr_scheduling_policy_fields},
    {"spec.mpiReplicaSpecs", roles},
    {"spec.mpiReplicaSpecs.Launcher", replica_fields},
    {"spec.mpiReplicaSpecs.Worker", replica_fields},
    {NULL, NULL}};

static void set_replica_defaults(json_t *spec, const char *restart_policy, int replicas,
                                 bool *no_memory)
{
    if (json_is_object(spec)) {
        gr_object_put_default(spec, "restartPolicy", json_string(restart_policy), no_memory);
        gr_object_put_default(spec, "replicas", json_integer(replicas), no_memory);
    }
}

void gr_mpijob_defaults(json_t *job, bool *no_memory)
{
    json_t *spec = gr_object_map(job, "spec", no_memory);
    gr_object_put_absent(gr_object_map(spec, "runPolicy", no_memory), "cleanPodPolicy",
                         json_string("None"), no_memory);
    gr_object_put_default(spec, "slotsPerWorker", json_integer(1), no_memory);
    gr_object_put_default(spec, "sshAuthMountPath", json_string("/root/.ssh"), no_memory);
    gr_object_put_default(spec, "mpiImplementation", json_string("OpenMPI"), no_memory);
    gr_object_put_default(spec, "launcherCreationPolicy", json_string("AtStartup"), no_memory);
    set_replica_defaults(gr_object_at(spec, "mpiReplicaSpecs.Launcher"), "OnFailure", 1, no_memory);
    set_replica_defaults(gr_object_at(spec, "mpiReplicaSpecs.Worker"), "Never", 0, no_memory);
}

/* ---- Validation ------------------------------------------------------------------------------ */
static void check_replica(gr_problems *p, const json_t *specs, const char *role, bool is_launcher)
{
    static const char *const restart_policies[] = {"Never", "OnFailure", NULL};
    char path[GR_PROBLEM_PATH_BYTES], at[GR_PROBLEM_PATH_BYTES + 32];
    const json_t *spec = json_object_get(specs, role);
    snprintf(path, sizeof path, "spec.mpiReplicaSpecs[%s]", role);
    if (spec == NULL || json_is_null(spec)) {
        if (is_launcher) {
            gr_problem(p, "%s: Required value: must have %s replica spec", path, role);
        }
        return;
    }
    if (!json_is_object(spec)) {
        gr_problem(p, "%s: Invalid value: must be a map", path);
        return;
    }
    snprintf(at, sizeof at, "%s.restartPolicy", path);
    gr_check_is_one_of(p, json_object_get(spec, "restartPolicy"), at, restart_policies);
    gr_check_containers(p, spec, path);
    int64_t replicas;
    if (!gr_check_integer(p, spec, "replicas", path, &replicas)) {
        return;
    }
    if (is_launcher && replicas != 1) {
        gr_problem(p, "%s.replicas: Invalid value: %" PRId64 ": must be 1", path, replicas);
    }
    if (!is_launcher && replicas <= 0) {
        gr_problem(p, "%s.replicas: Invalid value: %" PRId64 ": must be greater than or equal to 1",
                   path, replicas);
    }
    if (replicas > GR_MPIJOB_WORKERS_MAX) {
        gr_problem(p, "%s.replicas: Invalid value: %" PRId64 ": must be less than or equal to %d",
                   path, replicas, GR_MPIJOB_WORKERS_MAX);
    }
}

void gr_mpijob_validate(const json_t *job, char sentence_out[GR_EVENT_BYTES])
{
    static const char *const implementations[] = {"Intel", "MPICH", "OpenMPI", NULL};
    gr_problems p = {.count = 0};
    const json_t *spec = json_object_get(job, "spec");
    const json_t *specs = json_object_get(spec, "mpiReplicaSpecs");
    int64_t workers = gr_object_int(specs, "Worker.replicas", 1);
    gr_check_pod_name(&p, job, "worker", workers > 0 ? workers - 1 : 0);
    if (json_is_object(specs)) {
        check_replica(&p, specs, "Launcher", true);
        check_replica(&p, specs, "Worker", false);
    } else {
        gr_problem(&p, "spec.mpiReplicaSpecs: Required value: must have replica specs");
    }
    gr_check_not_negative(&p, spec, "slotsPerWorker", "spec");
    gr_check_truth(&p, spec, "runLauncherAsWorker", "spec");
    gr_check_run_policy(&p, json_object_get(spec, "runPolicy"), "kubeflow.org/mpi-operator", true);
    if (!json_is_string(json_object_get(spec, "sshAuthMountPath"))) {
        gr_problem(&p, "spec.sshAuthMountPath: Invalid value: must be a path");
    }
    gr_check_is_one_of(&p, json_object_get(spec, "mpiImplementation"), "spec.mpiImplementation",
                       implementations);
    if (gr_mpijob_launch(job) != NULL) {
        const json_t *annotations = gr_object_at(job, "metadata.annotations");
        gr_check_is_one_of(&p, json_object_get(annotations, GR_MPIJOB_LAUNCH),
                           "metadata.annotations[" GR_MPIJOB_LAUNCH "]", gr_mpijob_launches);
    }
    gr_problems_describe(&p, sentence_out);
}
