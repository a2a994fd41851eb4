/* SPDX-License-Identifier: Apache-2.0 */

/* MPIJob v2beta1: what one look at a job writes, by small clusters written by hand. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cluster.h"

/* The job "train" in "lab". */
static void open_cluster(cluster *c, int workers)
{
    open_cluster_with(c, &gr_mpijob_v2,
                      "{'apiVersion': 'kubeflow.org/v2beta1', 'kind': 'MPIJob',"
                      " 'metadata': {'name': 'train', 'namespace': 'lab', 'uid': 'u1'},"
                      " 'spec': {'mpiReplicaSpecs': {"
                      "  'Launcher': {'template': {'spec': {'containers': [{'name': 'a'}]}}},"
                      "  'Worker': {'template': {'spec': {'containers': [{'name': 'b'}]}}}}}}");
    char count[16];
    snprintf(count, sizeof count, "%d", workers);
    set(c->job, "spec.mpiReplicaSpecs.Worker.replicas", count);
}

/* All workers and one pod of the launcher run. */
static void run_all(cluster *c, int workers)
{
    settle(c);
    for (int i = 0; i < workers; i++) {
        char name[64];
        snprintf(name, sizeof name, "train-worker-%d", i);
        set_phase(c, name, "Running");
    }
    json_array_append_new(
        c->objects,
        json("{'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'train-launcher-x',"
             " 'ownerReferences': [{'controller': true, 'uid': 'of train-launcher'}]},"
             " 'status': {'phase': 'Running'}}"));
    settle(c);
}

/* Ends the batch Job with a condition. */
static void end_launcher(cluster *c, const char *condition)
{
    json_t *job = find(c, "Job", "train-launcher");
    set(job, "status.completionTime", "'2026-05-01T11:00:00Z'");
    set(job, "status.conditions", condition);
}

/* ---- Creation -------------------------------------------------------------------------------- */
static void job_new_everything_created_in_order(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    look(&c);
    assert_writes(&c, "create train, create train-config, create train-ssh, create train-worker-0, "
                      "create train-worker-1, create train-launcher, status train");
    assert_string_equal(event(&c, 0, "reason"), "MPIJobCreated");
    assert_json(gr_object_at(written(&c, 0), "metadata.ownerReferences"),
                "[{'apiVersion': 'kubeflow.org/v2beta1', 'kind': 'MPIJob', 'name': 'train',"
                " 'uid': 'u1', 'controller': true, 'blockOwnerDeletion': true}]");
    assert_json(gr_object_at(written(&c, 6), "status.startTime"), "'2026-05-01T10:00:00Z'");
    assert_json(gr_object_at(written(&c, 6), "status.replicaStatuses"),
                "{'Launcher': {}, 'Worker': {}}");
    close_cluster(&c);
}

static void job_settled_no_more_writes_events_or_keys(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    run_all(&c, 3);
    assert_conditions(&c, "Created=True(MPIJobCreated) Running=True(MPIJobRunning)");
    look(&c);
    assert_writes(&c, "");
    assert_int_equal(json_array_size(c.result.events), 0);
    assert_int_equal(c.keys_made, 1);
    close_cluster(&c);
}

static void job_of_intel_launcher_is_worker_hosts_with_slots(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.mpiImplementation", "'Intel'");
    set(c.job, "spec.slotsPerWorker", "4");
    set(c.job, "spec.runLauncherAsWorker", "true");
    set(c.job, "spec.sshAuthMountPath", "'/home/me/.ssh'");
    look(&c);
    assert_json(gr_object_at(written(&c, 0), "spec.publishNotReadyAddresses"), "true");
    assert_json(gr_object_at(written(&c, 1), "data"),
                "{'hostfile': 'train-launcher.train.lab.svc:4\\ntrain-worker-0.train.lab.svc:4\\n',"
                " 'discover_hosts.sh': '#!/bin/sh\\necho train-launcher.train.lab.svc\\n'}");
    const json_t *pod = written(&c, 3);
    assert_string_equal(json_string_value(json_object_get(gr_object_at(pod, "metadata.labels"),
                                                          "training.kubeflow.org/replica-index")),
                        "1");
    const json_t *volume = json_array_get(gr_object_at(pod, "spec.volumes"), 0);
    assert_null(gr_object_at(volume, "secret.defaultMode")); /* for users other than root */
    const json_t *launcher =
        json_array_get(gr_object_at(written(&c, 4), "spec.template.spec.containers"), 0);
    assert_json(gr_object_at(launcher, "env"),
                "[{'name': 'K_MPI_JOB_ROLE', 'value': 'launcher'},"
                " {'name': 'I_MPI_HYDRA_HOST_FILE', 'value': '/etc/mpi/hostfile'},"
                " {'name': 'I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS',"
                "  'value': '-o ConnectionAttempts=10'},"
                " {'name': 'I_MPI_PERHOST', 'value': '4'}]");
    close_cluster(&c);
}

/* ---- By agents ------------------------------------------------------------------------------- */
static void launch_by_agent(cluster *c)
{
    json_t *metadata = json_object_get(c->job, "metadata");
    json_object_set_new(metadata, "annotations", json("{'gradus/launch': 'agent'}"));
}

static void job_by_agent_neither_keys_of_ssh_nor_sshd(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    launch_by_agent(&c);
    look(&c);
    assert_writes(&c, "create train, create train-config, create train-agent, "
                      "create train-worker-0, create train-launcher, status train");
    assert_json(gr_object_at(written(&c, 2), "data"), "{'token': 'TOKEN'}");
    assert_string_equal(gr_object_text(written(&c, 2), "type"), "Opaque");
    assert_string_equal(
        json_string_value(json_object_get(gr_object_at(written(&c, 1), "data"), "launch_agent.sh")),
        "#!/bin/sh\nexec gradus rsh \"$@\"\n");
    const json_t *spec = gr_object_at(written(&c, 3), "spec");
    const json_t *worker = json_array_get(json_object_get(spec, "containers"), 0);
    assert_json(json_object_get(worker, "command"), "['gradus', 'agent', '--listen', ':7522']");
    assert_json(json_object_get(worker, "env"),
                "[{'name': 'K_MPI_JOB_ROLE', 'value': 'worker'},"
                " {'name': 'GRADUS_JOIN_TOKEN', 'valueFrom':"
                "  {'secretKeyRef': {'name': 'train-agent', 'key': 'token'}}}]");
    assert_json(json_object_get(spec, "volumes"),
                "[{'name': 'mpi-job-config', 'configMap': {'name': 'train-config', 'items':"
                " [{'key': 'launch_agent.sh', 'path': 'launch_agent.sh', 'mode': 365}]}}]");
    assert_null(json_object_get(spec, "initContainers"));
    const json_t *launcher = gr_object_at(written(&c, 4), "spec.template.spec");
    assert_int_equal(json_array_size(json_object_get(launcher, "volumes")), 1);
    run_all(&c, 1);
    int made = c.keys_made;
    look(&c);
    assert_writes(&c, "");
    assert_int_equal(c.keys_made, made);
    close_cluster(&c);
}

static void assert_launcher_calls(const char *implementation, const char *env)
{
    cluster c;
    char quoted[32];
    open_cluster(&c, 1);
    launch_by_agent(&c);
    snprintf(quoted, sizeof quoted, "'%s'", implementation);
    set(c.job, "spec.mpiImplementation", quoted);
    set(c.job, "spec.runLauncherAsWorker", "true"); /* no variables of GPUs */
    look(&c);
    const json_t *launcher =
        json_array_get(gr_object_at(written(&c, 4), "spec.template.spec.containers"), 0);
    json_t *found = json_deep_copy(json_object_get(launcher, "env"));
    json_array_remove(found, 0);                          /* the role */
    json_array_remove(found, json_array_size(found) - 1); /* the token */
    assert_json(found, env);
    json_decref(found);
    close_cluster(&c);
}

static void launcher_by_agent_calls_it_in_place_of_ssh(void **state)
{
    (void)state;
    assert_launcher_calls("MPICH", "[{'name': 'HYDRA_HOST_FILE', 'value': '/etc/mpi/hostfile'},"
                                   " {'name': 'HYDRA_LAUNCHER', 'value': 'rsh'},"
                                   " {'name': 'HYDRA_LAUNCHER_EXEC',"
                                   "  'value': '/etc/mpi/launch_agent.sh'}]");
    assert_launcher_calls("Intel",
                          "[{'name': 'I_MPI_HYDRA_HOST_FILE', 'value': '/etc/mpi/hostfile'},"
                          " {'name': 'I_MPI_HYDRA_BOOTSTRAP', 'value': 'rsh'},"
                          " {'name': 'I_MPI_HYDRA_BOOTSTRAP_EXEC',"
                          "  'value': '/etc/mpi/launch_agent.sh'},"
                          " {'name': 'I_MPI_PERHOST', 'value': '1'}]");
    assert_launcher_calls(
        "OpenMPI", "[{'name': 'OMPI_MCA_orte_keep_fqdn_hostnames', 'value': 'true'},"
                   " {'name': 'OMPI_MCA_orte_default_hostfile', 'value': '/etc/mpi/hostfile'},"
                   " {'name': 'OMPI_MCA_orte_set_default_slots', 'value': '1'},"
                   " {'name': 'OMPI_MCA_plm_rsh_agent', 'value': '/etc/mpi/launch_agent.sh'},"
                   " {'name': 'OMPI_MCA_plm_rsh_no_tree_spawn', 'value': 'true'},"
                   " {'name': 'PRTE_MCA_prte_keep_fqdn_hostnames', 'value': 'true'},"
                   " {'name': 'PRTE_MCA_prte_default_hostfile', 'value': '/etc/mpi/hostfile'},"
                   " {'name': 'PRTE_MCA_prte_set_default_slots', 'value': '1'},"
                   " {'name': 'PRTE_MCA_plm_ssh_agent', 'value': '/etc/mpi/launch_agent.sh'},"
                   " {'name': 'PRTE_MCA_plm_ssh_no_tree_spawn', 'value': 'true'}]");
}

static void job_by_agent_with_image_program_comes_by_init_container(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    launch_by_agent(&c);
    json_t *containers =
        gr_object_at(c.job, "spec.mpiReplicaSpecs.Worker.template.spec.containers");
    json_object_set_new(json_array_get(containers, 0), "command",
                        json("['/usr/sbin/sshd', '-De', '-f', '/home/me/.sshd_config']"));
    c.launch_agent_image = "operator:1";
    look(&c);
    const json_t *pods[] = {gr_object_at(written(&c, 3), "spec"),
                            gr_object_at(written(&c, 4), "spec.template.spec")};
    for (int i = 0; i < 2; i++) {
        const json_t *init = json_array_get(json_object_get(pods[i], "initContainers"), 0);
        assert_string_equal(gr_object_text(init, "image"), "operator:1");
        assert_json(json_object_get(init, "command"),
                    "['/usr/bin/gradus', 'agent', '--install', '/opt/gradus']");
        const json_t *works = json_array_get(json_object_get(pods[i], "containers"), 0);
        assert_json(json_array_get(json_object_get(works, "volumeMounts"), 0),
                    "{'name': 'gradus-agent', 'mountPath': '/opt/gradus'}");
    }
    const json_t *worker = json_array_get(json_object_get(pods[0], "containers"), 0);
    assert_json(json_object_get(worker, "command"),
                "['/opt/gradus/gradus', 'agent', '--listen', ':7522']");
    close_cluster(&c);
}

static void worker_by_agent_with_another_command_keeps_it(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    launch_by_agent(&c);
    json_t *containers =
        gr_object_at(c.job, "spec.mpiReplicaSpecs.Worker.template.spec.containers");
    json_object_set_new(json_array_get(containers, 0), "args", json("['mine']"));
    look(&c);
    const json_t *worker = json_array_get(gr_object_at(written(&c, 3), "spec.containers"), 0);
    assert_json(json_object_get(worker, "args"), "['mine']");
    assert_null(json_object_get(worker, "command"));
    close_cluster(&c);
}

static void launch_that_is_unknown_is_wrong(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    json_object_set_new(json_object_get(c.job, "metadata"), "annotations",
                        json("{'gradus/launch': 'agents'}"));
    look(&c);
    assert_writes(&c, "");
    assert_string_equal(event(&c, 0, "reason"), "ValidationError");
    assert_non_null(strstr(event(&c, 0, "message"), "metadata.annotations[gradus/launch]"));
    close_cluster(&c);
}

static void worker_with_args_keeps_its_command(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.mpiReplicaSpecs.Worker.template.spec.containers",
        "[{'name': 'b', 'args': ['serve']}, {'name': 'side'}]");
    look(&c);
    const json_t *containers = gr_object_at(written(&c, 3), "spec.containers");
    assert_null(gr_object_at(json_array_get(containers, 0), "command"));
    assert_json(json_array_get(containers, 1), "{'name': 'side'}");
    close_cluster(&c);
}

static void launcher_waits_for_workers_that_are_ready(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.launcherCreationPolicy", "'WaitForWorkersReady'");
    settle(&c);
    assert_null(find(&c, "Job", "train-launcher"));
    set(find(&c, "Pod", "train-worker-0"), "status.conditions",
        "[{'type': 'Ready', 'status': 'True'}]");
    look(&c);
    assert_writes(&c, "create train-launcher, status train");
    close_cluster(&c);
}

static void discovered_hosts_in_order_of_their_numbers(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 11);
    settle(&c);
    json_t *last = json_incref(find(&c, "Pod", "train-worker-10"));
    remove_object(&c, "Pod", "train-worker-10");
    json_array_insert_new(c.objects, 0, last);
    set_phase(&c, "train-worker-10", "Running");
    set_phase(&c, "train-worker-9", "Running");
    set_phase(&c, "train-worker-2", "Running");
    look(&c);
    assert_writes(&c, "update train-config, status train");
    const json_t *script =
        json_object_get(gr_object_at(written(&c, 0), "data"), "discover_hosts.sh");
    assert_json(script,
                "'#!/bin/sh\\necho train-worker-2.train.lab.svc\\n"
                "echo train-worker-9.train.lab.svc\\necho train-worker-10.train.lab.svc\\n'");
    close_cluster(&c);
}

/* ---- What is not ours ------------------------------------------------------------------------ */
static void job_of_another_controller_or_ending_nothing(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.managedBy", "'kueue.x-k8s.io/multikueue'");
    look(&c);
    assert_writes(&c, "");
    assert_int_equal(json_array_size(c.result.events), 0);
    set(c.job, "spec.runPolicy.managedBy", "'kubeflow.org/mpi-operator'");
    set(c.job, "metadata.deletionTimestamp", "'2026-05-01T09:00:00Z'");
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
}

static void name_taken_by_another_told_and_left_alone(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    json_array_append_new(c.objects, json("{'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {},"
                                          " 'metadata': {'name': 'train-config'}}"));
    look(&c);
    assert_writes(&c, "create train, status train");
    assert_true(c.result.retry);
    assert_string_equal(event(&c, 1, "reason"), "ErrResourceExists");
    assert_string_equal(event(&c, 1, "message"), "Resource \"train-config\" of Kind \"ConfigMap\" "
                                                 "already exists and is not managed by MPIJob");
    close_cluster(&c);
}

static void service_changed_by_hand_repaired(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    settle(&c);
    json_t *service = find(&c, "Service", "train");
    set(service, "spec.selector", "{'mine': 'x'}");
    set(service, "spec.type", "'ClusterIP'");
    look(&c);
    assert_writes(&c, "update train");
    assert_json(gr_object_at(written(&c, 0), "spec"),
                "{'clusterIP': 'None', 'type': 'ClusterIP', 'selector': {"
                " 'training.kubeflow.org/operator-name': 'mpi-operator',"
                " 'training.kubeflow.org/job-name': 'train'}}");
    json_object_del(service, "spec");
    look(&c);
    assert_writes(&c, "update train");
    close_cluster(&c);
}

/* ---- Validation ------------------------------------------------------------------------------ */
static void assert_wrong(const char *path, const char *value, const char *sentence)
{
    cluster c;
    open_cluster(&c, 1);
    set(c.job, path, value);
    look(&c);
    assert_writes(&c, "");
    assert_string_equal(event(&c, 0, "reason"), "ValidationError");
    const char *begin = "Found validation errors: ";
    assert_int_equal(strncmp(event(&c, 0, "message"), begin, strlen(begin)), 0);
    assert_string_equal(event(&c, 0, "message") + strlen(begin), sentence);
    close_cluster(&c);
}

static void job_wrong_one_event_and_no_writes(void **state)
{
    (void)state;
    assert_wrong("spec", "'x'", "spec.mpiReplicaSpecs: Required value: must have replica specs");
    assert_wrong("spec.mpiReplicaSpecs.Launcher", "null",
                 "spec.mpiReplicaSpecs[Launcher]: Required value: must have Launcher replica spec");
    assert_wrong("spec.mpiReplicaSpecs.Launcher.replicas", "2",
                 "spec.mpiReplicaSpecs[Launcher].replicas: Invalid value: 2: must be 1");
    assert_wrong("spec.mpiReplicaSpecs.Worker.replicas", "null",
                 "spec.mpiReplicaSpecs[Worker].replicas: Invalid value: 0: must be greater than or "
                 "equal to 1");
    assert_wrong("spec.mpiReplicaSpecs.Worker.replicas", "'two'",
                 "spec.mpiReplicaSpecs[Worker].replicas: Invalid value: \"two\": must be an "
                 "integer");
    assert_wrong("spec.mpiReplicaSpecs.Worker.replicas", "100001",
                 "spec.mpiReplicaSpecs[Worker].replicas: Invalid value: 100001: must be less than "
                 "or equal to 100000");
    assert_wrong("spec.mpiReplicaSpecs.Worker.restartPolicy", "'Always'",
                 "spec.mpiReplicaSpecs[Worker].restartPolicy: Unsupported value: \"Always\": "
                 "supported values: \"Never\", \"OnFailure\"");
    assert_wrong("spec.runPolicy.backoffLimit", "-3",
                 "spec.runPolicy.backoffLimit: Invalid value: -3: must be greater than or equal to "
                 "0");
    assert_wrong("spec.runPolicy.cleanPodPolicy", "''",
                 "spec.runPolicy.cleanPodPolicy: Unsupported value: \"\": supported values: "
                 "\"All\", \"None\", \"Running\"");
    assert_wrong("spec.runPolicy.suspend", "'yes'",
                 "spec.runPolicy.suspend: Invalid value: \"yes\": must be true or false");
    assert_wrong("spec.runPolicy.managedBy", "'me'",
                 "spec.runPolicy.managedBy: Unsupported value: \"me\": supported values: "
                 "\"kubeflow.org/mpi-operator\", \"kueue.x-k8s.io/multikueue\"");
    assert_wrong("metadata.name", "''", "metadata.name: Required value: must have a name");
}

static void job_wrong_twice_a_list_that_is_cut(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.slotsPerWorker", "-1");
    set(c.job, "spec.mpiImplementation", "'LAM'");
    look(&c);
    assert_string_equal(event(&c, 0, "message"),
                        "Found validation errors: [spec.slotsPerWorker: Invalid value: -1: must be "
                        "greater than or equal to 0, spec.mpiImplementation: Unsupported value: "
                        "\"LAM\": supported values: \"Intel\", \"MPICH\", \"OpenMPI\"]");
    char name[700];
    memset(name, 'A', sizeof name);
    name[0] = name[sizeof name - 2] = '\'';
    name[sizeof name - 1] = '\0';
    set(c.job, "metadata.name", name);
    look(&c);
    const char *message = event(&c, 0, "message");
    assert_int_equal(strlen(message), 1024);
    assert_string_equal(message + 1021, "...");
    close_cluster(&c);
}

/* ---- Scaling and cleaning up ----------------------------------------------------------------- */
static void workers_fewer_the_last_ones_deleted(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    set(c.job, "spec.runLauncherAsWorker", "true");
    run_all(&c, 3);
    set(c.job, "spec.mpiReplicaSpecs.Worker.replicas", "2");
    set(find(&c, "Pod", "train-worker-1"), "metadata.deletionTimestamp", "'x'");
    look(&c);
    assert_writes(&c, "update train-config, delete train-worker-2, status train");
    close_cluster(&c);
}

static void worker_lost_made_again(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all(&c, 2);
    remove_object(&c, "Pod", "train-worker-0");
    look(&c);
    assert_writes(&c, "update train-config, create train-worker-0, status train");
    close_cluster(&c);
}

static void job_over_policy_running_those_that_ended_stay(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    set(c.job, "spec.runPolicy.cleanPodPolicy", "'Running'");
    run_all(&c, 3);
    end_launcher(&c, "[{'type': 'Complete', 'status': 'True'}]");
    look(&c);
    assert_writes(&c, "status train");
    carry_out(&c);
    set_phase(&c, "train-worker-0", "Succeeded");
    set_phase(&c, "train-worker-1", "Pending");
    set(c.job, "spec.mpiReplicaSpecs.Worker.replicas", "1"); /* the others go all the same */
    look(&c);
    assert_writes(&c, "delete train-worker-1, delete train-worker-2");
    close_cluster(&c);
}

static void job_over_policy_none_nothing_is_touched(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    run_all(&c, 1);
    end_launcher(&c, "[{'type': 'Complete', 'status': 'True'}]");
    settle(&c);
    assert_conditions(&c, "Created=True(MPIJobCreated) Running=False(MPIJobRunning) "
                          "Succeeded=True(MPIJobSucceeded)");
    assert_json(gr_object_at(c.job, "status.completionTime"), "'2026-05-01T11:00:00Z'");
    remove_object(&c, "Pod", "train-worker-0");
    remove_object(&c, "Job", "train-launcher");
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
}

/* ---- Ends ------------------------------------------------------------------------------------ */
static void launcher_gave_up_reason_and_message_of_its_last_pod(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    run_all(&c, 1);
    static const char *const ends[][2] = {{"2026-05-01T10:02:00Z", "OOMKilled"},
                                          {"2026-05-01T10:01:00Z", "Error"}};
    for (size_t i = 0; i < 2; i++) {
        json_t *pod = json_deep_copy(find(&c, "Pod", "train-launcher-x"));
        json_object_set_new(gr_object_at(pod, "metadata"), "name", json_string(ends[i][1]));
        json_object_set_new(gr_object_at(pod, "metadata"), "creationTimestamp",
                            json_string(ends[i][0]));
        json_object_set_new(pod, "status",
                            json_pack("{s:s, s:s, s:s}", "phase", "Failed", "reason", ends[i][1],
                                      "message", "out of memory"));
        json_array_append_new(c.objects, pod);
    }
    remove_object(&c, "Pod", "train-launcher-x");
    set(find(&c, "Job", "train-launcher"), "status.failed", "2");
    end_launcher(&c, "[{'type': 'Failed', 'status': 'True', 'reason': 'BackoffLimitExceeded',"
                     " 'message': 'gave up'}]");
    look(&c);
    assert_string_equal(event(&c, 0, "reason"), "BackoffLimitExceeded/OOMKilled");
    assert_string_equal(event(&c, 0, "message"), "gave up: out of memory");
    carry_out(&c);
    assert_json(gr_object_at(c.job, "status.completionTime"), "'2026-05-01T10:00:00Z'");
    assert_json(gr_object_at(c.job, "status.replicaStatuses.Launcher"), "{'failed': 2}");
    close_cluster(&c);
}

static void job_over_before_it_was_seen_running_tells_so(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    settle(&c);
    end_launcher(&c, "[{'type': 'Failed', 'status': 'True'}]");
    settle(&c);
    assert_conditions(&c, "Created=True(MPIJobCreated) Failed=True(MPIJobFailed) "
                          "Running=False(MPIJobRunning)");
    close_cluster(&c);
}

static void job_of_many_workers_makes_the_launcher_behind_the_last_one(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 100);
    look(&c);
    assert_int_equal(count_created(&c, "Pod"), 64);
    assert_int_equal(count_created(&c, "Job"), 0);
    carry_out(&c);
    look(&c);
    assert_int_equal(count_created(&c, "Pod"), 36);
    assert_int_equal(count_created(&c, "Job"), 1);
    carry_out(&c);
    run_all(&c, 100);
    for (int i = 0; i < 70; i++) { /* evicted pods that somebody deletes */
        char name[64];
        snprintf(name, sizeof name, "train-worker-%d", i);
        remove_object(&c, "Pod", name);
    }
    set(find(&c, "Pod", "train-worker-99"), "status", "{'phase': 'Failed', 'reason': 'Evicted'}");
    look(&c);
    assert_int_equal(count_created(&c, "Pod"), 64);
    assert_string_equal(event(&c, 0, "message"), "1/100 workers are evicted");
    close_cluster(&c);
}

static void worker_evicted_job_failed_but_not_over(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all(&c, 2);
    set(find(&c, "Pod", "train-worker-1"), "status", "{'phase': 'Failed', 'reason': 'Evicted'}");
    look(&c);
    assert_string_equal(event(&c, 0, "message"), "1/2 workers are evicted");
    carry_out(&c);
    assert_conditions(&c, "Created=True(MPIJobCreated) Running=False(MPIJobRunning) "
                          "Failed=True(MPIJobEvicted)");
    assert_null(gr_object_at(c.job, "status.completionTime"));
    close_cluster(&c);
}

/* ---- Suspension ------------------------------------------------------------------------------ */
static void job_created_suspended_launcher_suspended_and_no_pods(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.runPolicy.suspend", "true");
    look(&c);
    assert_writes(&c, "create train, create train-config, create train-ssh, create train-launcher, "
                      "status train");
    assert_json(gr_object_at(written(&c, 3), "spec.suspend"), "true");
    carry_out(&c);
    assert_null(gr_object_at(c.job, "status.startTime"));
    close_cluster(&c);
}

static void job_resumed_template_follows_when_it_may_change(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    run_all(&c, 1);
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_null(find(&c, "Pod", "train-worker-0"));
    json_t *launcher = find(&c, "Job", "train-launcher");
    assert_json(gr_object_at(launcher, "spec.suspend"), "true");
    set(launcher, "status.startTime", "'2026-05-01T10:00:00Z'");
    set(launcher, "spec.template.spec.tolerations", "[{'key': 'old'}]");
    set(c.job, "spec.mpiReplicaSpecs.Launcher.template.spec.nodeSelector", "{'pool': 'a'}");
    set(c.job, "spec.mpiReplicaSpecs.Launcher.template.metadata.labels", "{'given': 'by kueue'}");
    set(c.job, "spec.runPolicy.suspend", "false");
    look(&c);
    assert_writes(&c, "create train-worker-0, status train-launcher, status train");
    carry_out(&c);
    look(&c);
    assert_writes(&c, "update train-launcher");
    const json_t *template = gr_object_at(written(&c, 0), "spec.template");
    assert_json(gr_object_at(written(&c, 0), "spec.suspend"), "false");
    assert_json(gr_object_at(template, "spec.nodeSelector"), "{'pool': 'a'}");
    assert_json(gr_object_at(template, "metadata.labels.given"), "'by kueue'");
    assert_null(gr_object_at(template, "spec.tolerations"));
    close_cluster(&c);
}

/* ---- Gang scheduling ------------------------------------------------------------------------- */
static void pod_group_counts_the_lower_priority_less(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 4);
    c.gang_scheduler = "volcano";
    json_array_append_new(c.objects,
                          json("{'apiVersion': 'scheduling.k8s.io/v1', 'kind': 'PriorityClass',"
                               " 'metadata': {'name': 'high'}, 'value': 7}"));
    json_t *specs = gr_object_at(c.job, "spec.mpiReplicaSpecs");
    set(specs, "Worker.template.spec.priorityClassName", "'high'");
    set(specs, "Worker.template.spec.schedulerName", "'mine'");
    set(specs, "Worker.template.spec.containers",
        "[{'name': 'b', 'resources': {'limits': {'cpu': 2, 'x/gpu': 1},"
        "                             'requests': {'cpu': '500m'}}}]");
    set(c.job, "spec.runPolicy.schedulingPolicy", "{'minAvailable': 3}");
    set(gr_object_at(c.job, "metadata"), "annotations",
        "{'scheduling.volcano.sh/queue-name': 'q'}");
    look(&c);
    assert_writes(&c, "create train, create train-config, create train-ssh, create train, create "
                      "train-worker-0, create train-worker-1, create train-worker-2, create "
                      "train-worker-3, create train-launcher, status train");
    assert_json(gr_object_at(written(&c, 3), "spec"),
                "{'minMember': 3, 'queue': 'q', 'priorityClassName': 'high',"
                " 'minResources': {'cpu': '2', 'x/gpu': '4'}}");
    assert_string_equal(event(&c, 1, "reason"), "SchedulerNameReplaced");
    assert_string_equal(gr_object_text(written(&c, 4), "spec.schedulerName"), "volcano");
    carry_out(&c);
    set(find(&c, "PodGroup", "train"), "spec.minTaskMember", "{}"); /* the scheduler's own */
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
}

static void pod_group_of_scheduler_plugins_joined_by_label(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    c.gang_scheduler = "together";
    settle(&c);
    json_t *group = find(&c, "PodGroup", "train");
    assert_json(gr_object_at(group, "apiVersion"), "'scheduling.x-k8s.io/v1alpha1'");
    assert_json(gr_object_at(group, "spec"), "{'minMember': 2, 'scheduleTimeoutSeconds': 0}");
    json_t *pod = find(&c, "Pod", "train-worker-0");
    assert_string_equal(json_string_value(json_object_get(gr_object_at(pod, "metadata.labels"),
                                                          "scheduling.x-k8s.io/pod-group")),
                        "train");
    set(c.job, "spec.mpiReplicaSpecs.Worker.replicas", "2");
    look(&c);
    assert_writes(&c, "update train-config, update train, create train-worker-1");
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_null(find(&c, "PodGroup", "train"));
    close_cluster(&c);
}

static void ready_workers(cluster *c, int count)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "train-worker-%d", i);
        set_phase(c, name, "Running");
        set(find(c, "Pod", name), "status.conditions", "[{'type': 'Ready', 'status': 'True'}]");
    }
}

/* A group that counts it would never be placed. */
static void pod_group_leaves_out_a_launcher_that_waits_for_the_workers(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    c.gang_scheduler = "volcano";
    set(c.job, "spec.launcherCreationPolicy", "'WaitForWorkersReady'");
    json_t *specs = gr_object_at(c.job, "spec.mpiReplicaSpecs");
    set(specs, "Launcher.template.spec.containers",
        "[{'name': 'a', 'resources': {'requests': {'cpu': '1'}}}]");
    set(specs, "Worker.template.spec.containers",
        "[{'name': 'b', 'resources': {'requests': {'cpu': '4'}}}]");
    settle(&c);
    assert_json(gr_object_at(find(&c, "PodGroup", "train"), "spec"),
                "{'minMember': 2, 'minResources': {'cpu': '8'}}");
    assert_null(find(&c, "Job", "train-launcher"));
    ready_workers(&c, 2);
    settle(&c);
    assert_non_null(find(&c, "Job", "train-launcher"));
    assert_json(gr_object_at(find(&c, "PodGroup", "train"), "spec"),
                "{'minMember': 3, 'minResources': {'cpu': '9'}}");
    close_cluster(&c);
}

static void pod_group_of_more_than_the_workers_that_the_launcher_waits_for_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *given, *policy, *resources;
        bool is_told;
    } cases[] = {{"1", "'WaitForWorkersReady'", "{'cpu': '4'}", false},
                 {"2", "'WaitForWorkersReady'", "{'cpu': '8'}", false},
                 {"3", "'WaitForWorkersReady'", "{'cpu': '8'}", true},
                 {"3", "'AtStartup'", "{'cpu': '8'}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        c.gang_scheduler = "volcano";
        set(c.job, "spec.launcherCreationPolicy", cases[i].policy);
        set(c.job, "spec.runPolicy.schedulingPolicy.minAvailable", cases[i].given);
        set(c.job, "spec.mpiReplicaSpecs.Worker.template.spec.containers",
            "[{'name': 'b', 'resources': {'requests': {'cpu': '4'}}}]");
        look(&c);
        assert_string_equal(event(&c, 1, "reason"), cases[i].is_told ? "MinAvailable" : "");
        assert_string_equal(event(&c, 1, "message"),
                            cases[i].is_told
                                ? "no pod can start: spec.runPolicy.schedulingPolicy.minAvailable "
                                  "3 is more than the 2 workers, for which the launcher waits "
                                  "(spec.launcherCreationPolicy)"
                                : "");
        carry_out(&c);
        json_t *group = find(&c, "PodGroup", "train");
        assert_int_equal(gr_object_int(group, "spec.minMember", 0), cases[i].given[0] - '0');
        assert_json(gr_object_at(group, "spec.minResources"), cases[i].resources);
        close_cluster(&c);
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */
static void memory_missing_anywhere_told_and_nothing_half_made(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, 1);
    c.gang_scheduler = "volcano";
    assert_memory_missing_anywhere_told(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_new_everything_created_in_order),
        cmocka_unit_test(job_settled_no_more_writes_events_or_keys),
        cmocka_unit_test(job_of_intel_launcher_is_worker_hosts_with_slots),
        cmocka_unit_test(job_by_agent_neither_keys_of_ssh_nor_sshd),
        cmocka_unit_test(launcher_by_agent_calls_it_in_place_of_ssh),
        cmocka_unit_test(job_by_agent_with_image_program_comes_by_init_container),
        cmocka_unit_test(worker_by_agent_with_another_command_keeps_it),
        cmocka_unit_test(launch_that_is_unknown_is_wrong),
        cmocka_unit_test(worker_with_args_keeps_its_command),
        cmocka_unit_test(launcher_waits_for_workers_that_are_ready),
        cmocka_unit_test(discovered_hosts_in_order_of_their_numbers),
        cmocka_unit_test(job_of_another_controller_or_ending_nothing),
        cmocka_unit_test(name_taken_by_another_told_and_left_alone),
        cmocka_unit_test(service_changed_by_hand_repaired),
        cmocka_unit_test(job_wrong_one_event_and_no_writes),
        cmocka_unit_test(job_wrong_twice_a_list_that_is_cut),
        cmocka_unit_test(workers_fewer_the_last_ones_deleted),
        cmocka_unit_test(worker_lost_made_again),
        cmocka_unit_test(job_over_policy_running_those_that_ended_stay),
        cmocka_unit_test(job_over_policy_none_nothing_is_touched),
        cmocka_unit_test(launcher_gave_up_reason_and_message_of_its_last_pod),
        cmocka_unit_test(job_over_before_it_was_seen_running_tells_so),
        cmocka_unit_test(job_of_many_workers_makes_the_launcher_behind_the_last_one),
        cmocka_unit_test(worker_evicted_job_failed_but_not_over),
        cmocka_unit_test(job_created_suspended_launcher_suspended_and_no_pods),
        cmocka_unit_test(job_resumed_template_follows_when_it_may_change),
        cmocka_unit_test(pod_group_counts_the_lower_priority_less),
        cmocka_unit_test(pod_group_of_scheduler_plugins_joined_by_label),
        cmocka_unit_test(pod_group_leaves_out_a_launcher_that_waits_for_the_workers),
        cmocka_unit_test(pod_group_of_more_than_the_workers_that_the_launcher_waits_for_is_told),
        cmocka_unit_test(memory_missing_anywhere_told_and_nothing_half_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
