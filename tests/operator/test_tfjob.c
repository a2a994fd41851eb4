/* SPDX-License-Identifier: Apache-2.0 */

/* TFJob v1: TF_CONFIG and the ends of a job; what it shares with others is in test_pytorchjob.c. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster.h"

#define ROLE(count)                                                                                \
    "{'replicas': " count                                                                          \
    ", 'template': {'spec': {'containers': [{'name': 'tensorflow', 'image': 'i'}]}}}"

/* The job "train" in "lab" with these replica specs. */
static void open_cluster(cluster *c, const char *specs)
{
    open_cluster_with(c, &gr_tfjob_v1,
                      "{'apiVersion': 'kubeflow.org/v1', 'kind': 'TFJob',"
                      " 'metadata': {'name': 'train', 'namespace': 'lab', 'uid': 'u1'}}");
    set(c->job, "spec.tfReplicaSpecs", specs);
}

static void assert_config(const cluster *c, const char *pod, const char *expected)
{
    const json_t *containers = gr_object_at(find(c, "Pod", pod), "spec.containers");
    const json_t *env = json_object_get(json_array_get(containers, 0), "env");
    assert_string_equal(gr_object_text(json_array_get(env, 0), "value"), expected);
}

static bool holds(const cluster *c, const char *condition)
{
    return gr_object_holds(gr_object_at(c->job, "status.conditions"), condition);
}

static void roles_know_each_other_by_tf_config(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("2") ", 'PS': " ROLE("1") "}");
    settle(&c);
    assert_config(&c, "train-worker-1",
                  "{\"cluster\":{\"ps\":[\"train-ps-0.lab.svc:2222\"],\"worker\":[\"train-worker-0."
                  "lab.svc:2222\",\"train-worker-1.lab.svc:2222\"]},\"task\":{\"type\":\"worker\","
                  "\"index\":1},\"environment\":\"cloud\"}");
    close_cluster(&c);
}

/* Each pod has the names of all. */
static void job_of_many_pods_makes_some_in_each_look(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("40") ", 'PS': " ROLE("8") "}");
    const int expected[] = {32, 16, 0};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        look(&c);
        assert_int_equal(count_created(&c, "Pod"), expected[i]);
        assert_int_equal(count_created(&c, "Service"), expected[i]);
        carry_out(&c);
    }
    assert_non_null(find(&c, "Pod", "train-worker-39"));
    close_cluster(&c);
}

static void dynamic_workers_know_themselves_and_the_servers(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("2") ", 'PS': " ROLE("2") ", 'Chief': " ROLE("1") "}");
    set(c.job, "spec.enableDynamicWorker", "true");
    settle(&c);
    assert_config(&c, "train-worker-1",
                  "{\"cluster\":{\"worker\":{\"1\":\"train-worker-1.lab.svc:2222\"},\"ps\":["
                  "\"train-ps-0.lab.svc:2222\",\"train-ps-1.lab.svc:2222\"]},\"task\":{\"type\":"
                  "\"worker\",\"index\":1}}");
    assert_config(&c, "train-ps-1",
                  "{\"cluster\":{\"worker\":{},\"ps\":[\"train-ps-1.lab.svc:2222\"]},\"task\":{"
                  "\"type\":\"ps\",\"index\":1}}");
    assert_config(&c, "train-chief-0",
                  "{\"cluster\":{\"worker\":{},\"ps\":[]},\"task\":{\"type\":\"chief\",\"index\":"
                  "0}}");
    close_cluster(&c);
}

/* Where the reference does otherwise: see docs/kubernetes.md. */
static void role_of_no_replicas_and_port_without_name_make_nothing(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("2") ", 'Evaluator': " ROLE("0") "}");
    set(c.job, "spec.enableDynamicWorker", "true");
    set(gr_object_at(c.job, "spec.tfReplicaSpecs"), "Worker.template.spec.containers",
        "[{'name': 'tensorflow', 'image': 'i', 'ports': [{'containerPort': 8080},"
        "  {'containerPort': 6006, 'name': 'board'}]}]");
    settle(&c);
    assert_null(find(&c, "Pod", "train-evaluator-0"));
    assert_json(gr_object_at(find(&c, "Service", "train-worker-0"), "spec.ports"),
                "[{'name': 'board', 'port': 6006, 'targetPort': 6006},"
                " {'name': 'tfjob-port', 'port': 2222, 'targetPort': 2222}]");
    assert_config(&c, "train-worker-0",
                  "{\"cluster\":{\"worker\":{\"0\":\"train-worker-0.lab.svc:2222\"},\"ps\":[]},"
                  "\"task\":{\"type\":\"worker\",\"index\":0}}");
    close_cluster(&c);
}

static void pod_group_of_volcano_counts_limits_of_what_is_not_requested(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("2") "}");
    c.gang_scheduler = "volcano";
    set(gr_object_at(c.job, "spec.tfReplicaSpecs"), "Worker.template.spec.containers",
        "[{'name': 'tensorflow', 'image': 'i', 'resources': {'requests': {'cpu': '500m'},"
        "  'limits': {'cpu': 2, 'x/gpu': 1}}}]");
    settle(&c);
    assert_json(gr_object_at(find(&c, "PodGroup", "train"), "spec"),
                "{'minMember': 2, 'queue': 'default', 'minResources': {'cpu': '1', 'x/gpu': '2'}}");
    close_cluster(&c);
}

/* Its resource takes any text, where the API server brings those of pods into one form. */
static void pod_group_amounts_in_the_form_of_kubernetes(void **state)
{
    (void)state;
    static const char *const schedulers[] = {"volcano", "other"};
    for (size_t i = 0; i < sizeof schedulers / sizeof schedulers[0]; i++) {
        cluster c;
        open_cluster(&c, "{'Worker': " ROLE("2") "}");
        c.gang_scheduler = schedulers[i];
        set(c.job, "spec.runPolicy.schedulingPolicy.minResources",
            "{'cpu': 4, 'memory': '2048Mi', 'x/y': '1000m', 'x/z': 'many'}");
        settle(&c);
        assert_json(gr_object_at(find(&c, "PodGroup", "train"), "spec.minResources"),
                    "{'cpu': '4', 'memory': '2Gi', 'x/y': '1', 'x/z': 'many'}");
        close_cluster(&c);
    }
}

static void worker_alone_has_no_tf_config(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("1") "}");
    settle(&c);
    const json_t *containers = gr_object_at(find(&c, "Pod", "train-worker-0"), "spec.containers");
    assert_null(json_object_get(json_array_get(containers, 0), "env"));
    close_cluster(&c);
}

static void success_policy_all_workers_waits_for_all(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        cluster c;
        open_cluster(&c, "{'Worker': " ROLE("2") "}");
        set(c.job, "spec.successPolicy", all ? "'AllWorkers'" : "''");
        run_all_pods(&c);
        set_phase(&c, "train-worker-0", "Succeeded");
        settle(&c);
        assert_int_equal(holds(&c, "Succeeded"), !all);
        set_phase(&c, "train-worker-1", "Succeeded");
        settle(&c);
        assert_true(holds(&c, "Succeeded"));
        look(&c);
        assert_writes(&c, "");
        close_cluster(&c);
    }
}

static void worker_failed_job_failed_unless_workers_are_dynamic(void **state)
{
    (void)state;
    for (int is_dynamic = 0; is_dynamic < 2; is_dynamic++) {
        cluster c;
        open_cluster(&c, "{'Worker': " ROLE("2") "}");
        set(c.job, "spec.enableDynamicWorker", is_dynamic ? "true" : "false");
        run_all_pods(&c);
        set_phase(&c, "train-worker-1", "Failed");
        settle(&c);
        assert_int_equal(holds(&c, "Failed"), !is_dynamic);
        close_cluster(&c);
    }
}

/* That another role restarts does not mend it. */
static void role_that_is_never_restarted_fails_the_job_while_another_restarts(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'PS': " ROLE("1") ", 'Worker': " ROLE("2") "}");
    set(c.job, "spec.tfReplicaSpecs.Worker.restartPolicy", "'OnFailure'");
    run_all_pods(&c);
    set_phase(&c, "train-worker-1", "Failed");
    look(&c);
    carry_out(&c);
    assert_true(holds(&c, "Restarting") && !holds(&c, "Failed"));
    set_phase(&c, "train-ps-0", "Failed");
    settle(&c);
    assert_true(holds(&c, "Failed") && !holds(&c, "Restarting"));
    close_cluster(&c);
}

/* The failed one stays, and the job goes on without it. */
static void job_runs_again_beside_a_pod_that_failed_for_good(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'PS': " ROLE("1") ", 'Worker': " ROLE("2") "}");
    set(c.job, "spec.enableDynamicWorker", "true");
    set(c.job, "spec.tfReplicaSpecs.PS.restartPolicy", "'OnFailure'");
    run_all_pods(&c);
    set_phase(&c, "train-worker-1", "Failed");
    settle(&c);
    set_phase(&c, "train-ps-0", "Failed");
    look(&c);
    carry_out(&c);
    assert_true(holds(&c, "Restarting"));
    settle(&c);
    set_phase(&c, "train-ps-0", "Running");
    settle(&c);
    assert_true(holds(&c, "Running") && !holds(&c, "Restarting"));
    close_cluster(&c);
}

static void workers_fewer_and_slow_to_end_job_goes_on(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("12") "}");
    run_all_pods(&c);
    set(c.job, "spec.tfReplicaSpecs.Worker.replicas", "11");
    set(find(&c, "Pod", "train-worker-11"), "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
    settle(&c);
    assert_true(holds(&c, "Running") && !holds(&c, "Failed"));
    close_cluster(&c);
}

static void chief_done_while_a_worker_failed_job_succeeded(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Chief': " ROLE("1") ", 'Worker': " ROLE("1") "}");
    run_all_pods(&c);
    set_phase(&c, "train-chief-0", "Succeeded");
    set_phase(&c, "train-worker-0", "Failed");
    settle(&c);
    assert_true(holds(&c, "Succeeded") && !holds(&c, "Failed"));
    close_cluster(&c);
}

static void two_chiefs_refused(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Chief': " ROLE("1") ", 'Master': " ROLE("1") "}");
    set(c.job, "spec.successPolicy", "7");
    set(c.job, "spec.enableDynamicWorker", "1");
    look(&c);
    assert_writes(&c, "");
    assert_string_equal(
        event(&c, 0, "message"),
        "Found validation errors: [spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief "
        "or Master role, spec.successPolicy: Invalid value: must be a text, "
        "spec.enableDynamicWorker: Invalid value: 1: must be true or false]");
    close_cluster(&c);
}

static void policies_that_nobody_knows_told_and_the_job_runs(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("2") "}");
    set(c.job, "spec.successPolicy", "'ChiefWorker'");
    set(c.job, "spec.runPolicy.cleanPodPolicy", "'none'");
    look(&c);
    assert_string_equal(event(&c, 0, "message"),
                        "spec.runPolicy.cleanPodPolicy \"none\" is neither All, None nor Running: "
                        "all pods go when the job has ended");
    assert_string_equal(event(&c, 1, "message"),
                        "spec.successPolicy \"ChiefWorker\" is not AllWorkers: the job succeeds "
                        "with its chief or worker 0");
    carry_out(&c);
    run_all_pods(&c);
    set_phase(&c, "train-worker-0", "Succeeded");
    settle(&c);
    assert_true(gr_object_holds(gr_object_at(c.job, "status.conditions"), "Succeeded"));
    assert_int_equal(json_array_size(c.objects), 0);
    close_cluster(&c);
}

static void memory_missing_anywhere_told_and_nothing_half_made(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, "{'Worker': " ROLE("2") ", 'ps': " ROLE("1") "}");
    assert_memory_missing_anywhere_told(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roles_know_each_other_by_tf_config),
        cmocka_unit_test(job_of_many_pods_makes_some_in_each_look),
        cmocka_unit_test(dynamic_workers_know_themselves_and_the_servers),
        cmocka_unit_test(role_of_no_replicas_and_port_without_name_make_nothing),
        cmocka_unit_test(pod_group_of_volcano_counts_limits_of_what_is_not_requested),
        cmocka_unit_test(pod_group_amounts_in_the_form_of_kubernetes),
        cmocka_unit_test(worker_alone_has_no_tf_config),
        cmocka_unit_test(success_policy_all_workers_waits_for_all),
        cmocka_unit_test(worker_failed_job_failed_unless_workers_are_dynamic),
        cmocka_unit_test(role_that_is_never_restarted_fails_the_job_while_another_restarts),
        cmocka_unit_test(job_runs_again_beside_a_pod_that_failed_for_good),
        cmocka_unit_test(workers_fewer_and_slow_to_end_job_goes_on),
        cmocka_unit_test(chief_done_while_a_worker_failed_job_succeeded),
        cmocka_unit_test(two_chiefs_refused),
        cmocka_unit_test(policies_that_nobody_knows_told_and_the_job_runs),
        cmocka_unit_test(memory_missing_anywhere_told_and_nothing_half_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
