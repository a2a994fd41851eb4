/* SPDX-License-Identifier: Apache-2.0 */

/* MPIJob v1: what one look at a job writes; what it shares with others is in test_pytorchjob.c. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster.h"

#define ROLE "{'template': {'spec': {'containers': [{'name': 'a', 'image': 'i'}]}}}"

/* The job "train" in "lab" with so many workers. */
static void open_cluster(cluster *c, int workers)
{
    open_cluster_with(c, &gr_mpijob_v1,
                      "{'apiVersion': 'kubeflow.org/v1', 'kind': 'MPIJob',"
                      " 'metadata': {'name': 'train', 'namespace': 'lab', 'uid': 'u1'},"
                      " 'spec': {'mpiReplicaSpecs': {'Launcher': " ROLE ", 'Worker': " ROLE "}}}");
    char count[16];
    snprintf(count, sizeof count, "%d", workers);
    set(c->job, "spec.mpiReplicaSpecs.Worker.replicas", count);
}

static void job_new_rights_config_and_pods(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.slotsPerWorker", "3");
    set(c.job, "spec.mainContainer", "'a'");
    look(&c);
    assert_writes(&c, "create train-config, create train-launcher, create train-launcher, create "
                      "train-launcher, create train-launcher, create train-worker-0, create "
                      "train-worker-1, status train");
    assert_json(gr_object_at(written(&c, 0), "data.hostfile"),
                "'train-worker-0 slots=3\\ntrain-worker-1 slots=3\\n'");
    const json_t *script = json_object_get(gr_object_at(written(&c, 0), "data"), "kubexec.sh");
    assert_non_null(
        strstr(json_string_value(script), "exec ${POD_NAME} --container a -- /bin/sh -c \"$*\""));
    assert_json(gr_object_at(written(&c, 3), "subjects"),
                "[{'kind': 'ServiceAccount', 'name': 'train-launcher', 'namespace': 'lab'}]");
    assert_json(gr_object_at(written(&c, 5), "spec.containers"),
                "[{'name': 'a', 'image': 'i', 'command': ['sleep'], 'args': ['365d'],"
                "  'volumeMounts': [{'name': 'mpi-job-config', 'mountPath': '/etc/mpi'}]}]");
    close_cluster(&c);
}

static void job_running_looked_at_again_no_more_writes(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 12);
    run_all_pods(&c);
    assert_conditions(&c, "Created=True(MPIJobCreated) Running=True(MPIJobRunning)");
    json_t *data = gr_object_at(find(&c, "ConfigMap", "train-config"), "data");
    const char *hosts = json_string_value(json_object_get(data, "discover_hosts.sh"));
    assert_true(strstr(hosts, "worker-10:1") > strstr(hosts, "worker-2:1"));
    look(&c);
    assert_writes(&c, "");
    assert_int_equal(json_array_size(c.result.events), 0);
    close_cluster(&c);
}

static void workers_fewer_pods_and_rights_follow(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    run_all_pods(&c);
    set(c.job, "spec.mpiReplicaSpecs.Worker.replicas", "1");
    settle(&c);
    assert_null(find(&c, "Pod", "train-worker-2"));
    const json_t *rules = gr_object_at(find(&c, "Role", "train-launcher"), "rules");
    assert_json(json_object_get(json_array_get(rules, 1), "resourceNames"), "['train-worker-0']");
    json_object_del(gr_object_at(c.job, "spec.mpiReplicaSpecs"), "Worker");
    settle(&c);
    rules = gr_object_at(find(&c, "Role", "train-launcher"), "rules");
    assert_int_equal(json_array_size(rules), 1); /* else it could enter any pod */
    assert_null(find(&c, "Pod", "train-worker-0"));
    close_cluster(&c);
}

static void name_that_is_no_host_of_a_network_is_taken(void **state)
{
    (void)state;
    static const char letters[] = "a-name-of-60-letters-is-not-too-long-for-pods-of-the-job-abc";
    char name[80];
    cluster c;
    open_cluster(&c, 1);
    snprintf(name, sizeof name, "'my.%s'", letters);
    set(c.job, "metadata.name", name);
    settle(&c);
    assert_non_null(find(&c, "Pod",
                         "my.a-name-of-60-letters-is-not-too-long-for-pods-of-the-job-"
                         "abc-launcher"));
    close_cluster(&c);
    open_cluster(&c, 1);
    snprintf(name, sizeof name, "'my.x%s'", letters);
    set(c.job, "metadata.name", name);
    look(&c);
    assert_writes(&c, "");
    assert_non_null(strstr(event(&c, 0, "message"), "must be no more than 63 characters"));
    close_cluster(&c);
}

static void account_of_the_user_gets_the_rights_and_is_not_made(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.mpiReplicaSpecs.Launcher.template.spec.serviceAccountName", "'mine'");
    settle(&c);
    assert_null(find(&c, "ServiceAccount", "train-launcher"));
    assert_json(gr_object_at(find(&c, "RoleBinding", "train-launcher"), "subjects"),
                "[{'kind': 'ServiceAccount', 'name': 'mine', 'namespace': 'lab'}]");
    close_cluster(&c);
}

static void gpu_launcher_is_a_host_and_sees_its_gpus(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.mpiReplicaSpecs.Launcher.template.spec.containers",
        "[{'name': 'a', 'image': 'i', 'resources': {'limits': {'amd.com/gpu': 1}},"
        "  'env': [{'name': 'I_MPI_HYDRA_BOOTSTRAP', 'value': 'ssh'}]}]");
    settle(&c);
    assert_json(gr_object_at(find(&c, "ConfigMap", "train-config"), "data.hostfile"),
                "'train-launcher slots=1\\ntrain-worker-0 slots=1\\n'");
    set_phase(&c, "train-worker-0", "Running");
    settle(&c);
    json_t *data = gr_object_at(find(&c, "ConfigMap", "train-config"), "data");
    assert_json(json_object_get(data, "discover_hosts.sh"),
                "'#!/bin/sh\\necho train-launcher:1\\n\\necho train-worker-0:1'");
    const json_t *pod = find(&c, "Pod", "train-launcher");
    const json_t *container = json_array_get(gr_object_at(pod, "spec.containers"), 0);
    assert_int_equal(json_array_size(json_object_get(container, "env")), 4);
    close_cluster(&c);
}

static void launcher_done_job_done_workers_go_config_stays(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.cleanPodPolicy", "'Running'");
    run_all_pods(&c);
    set_phase(&c, "train-launcher", "Succeeded");
    settle(&c);
    assert_conditions(&c, "Created=True(MPIJobCreated) Running=False(MPIJobRunning) "
                          "Succeeded=True(MPIJobSucceeded)");
    assert_null(find(&c, "Pod", "train-worker-0"));
    assert_non_null(find(&c, "Pod", "train-launcher"));
    assert_non_null(find(&c, "ConfigMap", "train-config"));
    close_cluster(&c);
}

static void launcher_failed_made_anew_by_exit_code_alone(void **state)
{
    (void)state;
    static const char *const policies[] = {"'ExitCode'", "'OnFailure'"};
    for (int i = 0; i < 2; i++) {
        cluster c;
        open_cluster(&c, 1);
        set(c.job, "spec.mpiReplicaSpecs.Launcher.restartPolicy", policies[i]);
        run_all_pods(&c);
        set_phase(&c, "train-launcher", "Failed");
        settle(&c);
        bool has_failed = gr_object_holds(gr_object_at(c.job, "status.conditions"), "Failed");
        assert_int_equal(has_failed, i == 1);
        assert_int_equal(gr_object_text(c.job, "status.completionTime") != NULL, i == 1);
        close_cluster(&c);
    }
}

static void job_without_launcher_refused(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    json_object_del(gr_object_at(c.job, "spec.mpiReplicaSpecs"), "Launcher");
    look(&c);
    assert_writes(&c, "");
    assert_string_equal(event(&c, 0, "message"),
                        "Found validation errors: spec.mpiReplicaSpecs[Launcher]: Required value: "
                        "must have Launcher replica spec");
    close_cluster(&c);
}

static void memory_missing_anywhere_told_and_nothing_half_made(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, 1);
    c.gang_scheduler = "together";
    assert_memory_missing_anywhere_told(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_new_rights_config_and_pods),
        cmocka_unit_test(job_running_looked_at_again_no_more_writes),
        cmocka_unit_test(workers_fewer_pods_and_rights_follow),
        cmocka_unit_test(name_that_is_no_host_of_a_network_is_taken),
        cmocka_unit_test(account_of_the_user_gets_the_rights_and_is_not_made),
        cmocka_unit_test(gpu_launcher_is_a_host_and_sees_its_gpus),
        cmocka_unit_test(launcher_done_job_done_workers_go_config_stays),
        cmocka_unit_test(launcher_failed_made_anew_by_exit_code_alone),
        cmocka_unit_test(job_without_launcher_refused),
        cmocka_unit_test(memory_missing_anywhere_told_and_nothing_half_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
