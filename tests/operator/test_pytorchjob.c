/* SPDX-License-Identifier: Apache-2.0 */

/* PyTorchJob v1, and with it what all kinds of training-operator share: what one look at a job
 * writes. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster.h"
#include "operator/look.h"

#define ROLE "{'template': {'spec': {'containers': [{'name': 'pytorch', 'image': 'i'}]}}}"
#define WORKER "spec.pytorchReplicaSpecs.Worker."

/* The job "train" in "lab" with a master and so many workers. */
static void open_cluster(cluster *c, int workers)
{
    open_cluster_with(c, &gr_pytorchjob_v1,
                      "{'apiVersion': 'kubeflow.org/v1', 'kind': 'PyTorchJob',"
                      " 'metadata': {'name': 'train', 'namespace': 'lab', 'uid': 'u1'},"
                      " 'spec': {'pytorchReplicaSpecs': {'Master': " ROLE ", 'Worker': " ROLE
                      "}}}");
    char count[16];
    snprintf(count, sizeof count, "%d", workers);
    set(c->job, WORKER "replicas", count);
}

static void end_pod(cluster *c, const char *pod, int code)
{
    char text[128];
    snprintf(text, sizeof text, "[{'name': 'pytorch', 'state': {'terminated': {'exitCode': %d}}}]",
             code);
    set_phase(c, pod, code == 0 ? "Succeeded" : "Failed");
    set(find(c, "Pod", pod), "status.containerStatuses", text);
}

static void assert_wrong(cluster *c, const char *sentence)
{
    look(c);
    assert_writes(c, "");
    assert_string_equal(event(c, 0, "reason"), "ValidationError");
    if (strstr(event(c, 0, "message"), sentence) == NULL) {
        fail_msg("%s", event(c, 0, "message"));
    }
    close_cluster(c);
}

static bool has_event(const cluster *c, const char *reason)
{
    for (size_t i = 0; i < json_array_size(c->result.events); i++) {
        if (strcmp(event(c, i, "reason"), reason) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- Creation -------------------------------------------------------------------------------- */
static void job_new_pod_and_service_of_each_replica(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    look(&c);
    assert_writes(&c, "create train-master-0, create train-master-0, create train-worker-0, create "
                      "train-worker-0, create train-worker-1, create train-worker-1, status train");
    const json_t *pod = written(&c, 2);
    assert_json(gr_object_at(pod, "metadata.labels"),
                "{'training.kubeflow.org/job-name': 'train',"
                " 'training.kubeflow.org/operator-name': 'pytorchjob-controller',"
                " 'training.kubeflow.org/replica-type': 'worker',"
                " 'training.kubeflow.org/replica-index': '0'}");
    const json_t *container = json_array_get(gr_object_at(pod, "spec.containers"), 0);
    assert_json(json_object_get(container, "env"),
                "[{'name': 'PYTHONUNBUFFERED', 'value': '1'},"
                " {'name': 'MASTER_PORT', 'value': '23456'},"
                " {'name': 'PET_MASTER_PORT', 'value': '23456'},"
                " {'name': 'MASTER_ADDR', 'value': 'train-master-0'},"
                " {'name': 'PET_MASTER_ADDR', 'value': 'train-master-0'},"
                " {'name': 'WORLD_SIZE', 'value': '3'}, {'name': 'RANK', 'value': '1'},"
                " {'name': 'PET_NODE_RANK', 'value': '1'},"
                " {'name': 'PET_NPROC_PER_NODE', 'value': 'auto'},"
                " {'name': 'PET_NNODES', 'value': '3'}]");
    assert_json(gr_object_at(written(&c, 3), "spec.ports"),
                "[{'name': 'pytorchjob-port', 'port': 23456, 'targetPort': 23456}]");
    close_cluster(&c);
}

/* As training-operator 1.9 has it, sensible or not. */
static void ranks_of_a_pod_multiply_the_world_size_if_they_are_a_number(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"'2'", "2", "4"},     {"'+3'", "+3", "6"},
        {"'0'", "0", "0"},     {"'-1'", "-1", "-2"},
        {"4", "4", "8"},       {"'100001'", "100001", "200002"},
        {"'gpu'", "gpu", "2"}, {"'cpu'", "cpu", "2"},
        {"'2x'", "2x", "2"},   {"' 2'", " 2", "2"},
        {"'-'", "-", "2"},     {"'9223372036854775808'", "9223372036854775808", "2"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 1);
        set(c.job, "spec.nprocPerNode", cases[i][0]);
        look(&c);
        const json_t *container =
            json_array_get(gr_object_at(written(&c, 0), "spec.containers"), 0);
        const json_t *env = json_object_get(container, "env");
        assert_string_equal(gr_object_text(json_array_get(env, 5), "name"), "WORLD_SIZE");
        assert_string_equal(gr_object_text(json_array_get(env, 5), "value"), cases[i][2]);
        assert_string_equal(gr_object_text(json_array_get(env, 8), "name"), "PET_NPROC_PER_NODE");
        assert_string_equal(gr_object_text(json_array_get(env, 8), "value"), cases[i][1]);
        close_cluster(&c);
    }
}

static void job_running_looked_at_again_no_more_writes_or_events(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    run_all_pods(&c);
    assert_conditions(&c, "Created=True(PyTorchJobCreated) Running=True(PyTorchJobRunning)");
    look(&c);
    assert_writes(&c, "");
    assert_int_equal(json_array_size(c.result.events), 0);
    assert_int_equal(c.result.again_after_s, 0);
    close_cluster(&c);
}

static void role_names_in_any_case_are_taken(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    json_t *specs = gr_object_at(c.job, "spec.pytorchReplicaSpecs");
    json_object_set(specs, "worker", json_object_get(specs, "Worker"));
    json_object_del(specs, "Worker");
    settle(&c);
    assert_non_null(find(&c, "Pod", "train-worker-0"));
    close_cluster(&c);
}

static void elastic_job_rendezvous_and_autoscaler(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    json_object_del(gr_object_at(c.job, "spec.pytorchReplicaSpecs"), "Master");
    set(c.job, "spec.elasticPolicy",
        "{'maxReplicas': 5, 'rdzvId': 'r', 'metrics': [{'type': 'Resource'}],"
        " 'rdzvConf': [{'key': 'a', 'value': '1'}, {'key': 'b', 'value': '2'}]}");
    settle(&c);
    const json_t *scaler = find(&c, "HorizontalPodAutoscaler", "train");
    assert_json(gr_object_at(scaler, "spec.minReplicas"), "5");
    const json_t *containers = gr_object_at(find(&c, "Pod", "train-worker-1"), "spec.containers");
    assert_json(gr_object_at(json_array_get(containers, 0), "env"),
                "[{'name': 'PYTHONUNBUFFERED', 'value': '1'},"
                " {'name': 'PET_NPROC_PER_NODE', 'value': 'auto'},"
                " {'name': 'PET_RDZV_ENDPOINT', 'value': 'train-worker-0:23456'},"
                " {'name': 'PET_RDZV_BACKEND', 'value': 'c10d'},"
                " {'name': 'PET_NNODES', 'value': '5:5'}, {'name': 'PET_RDZV_ID', 'value': 'r'},"
                " {'name': 'PET_RDZV_CONF', 'value': 'a=1,b=2'}]");
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_int_equal(json_array_size(c.objects), 0);
    close_cluster(&c);
}

/* The API server shows quantities in one form: the autoscaler is not written again for that. */
static void metrics_in_another_form_are_the_same(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.elasticPolicy",
        "{'maxReplicas': 5, 'metrics': [{'type': 'Pods', 'pods': {'metric': {'name': 'q'},"
        " 'target': {'type': 'AverageValue', 'averageValue': '1000m'}}}]}");
    settle(&c);
    assert_json(gr_object_at(find(&c, "HorizontalPodAutoscaler", "train"), "spec.metrics"),
                "[{'type': 'Pods', 'pods': {'metric': {'name': 'q'},"
                "  'target': {'type': 'AverageValue', 'averageValue': '1'}}}]");
    close_cluster(&c);
}

static void name_taken_by_another_told_and_left_alone(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    json_array_append_new(c.objects, json("{'apiVersion': 'v1', 'kind': 'Service',"
                                          " 'metadata': {'name': 'train-worker-0'}}"));
    look(&c);
    assert_true(c.result.retry && has_event(&c, "ErrResourceExists"));
    carry_out(&c);
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_non_null(find(&c, "Service", "train-worker-0"));
    assert_int_equal(json_array_size(c.objects), 1);
    close_cluster(&c);
}

/* ---- Ends ------------------------------------------------------------------------------------ */
static void master_done_job_done_and_running_workers_go(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.runPolicy.cleanPodPolicy", "'Running'");
    run_all_pods(&c);
    end_pod(&c, "train-master-0", 0);
    settle(&c);
    assert_conditions(&c, "Created=True(PyTorchJobCreated) Running=False(PyTorchJobRunning) "
                          "Succeeded=True(PyTorchJobSucceeded)");
    assert_int_equal(json_array_size(c.objects), 2);
    assert_non_null(find(&c, "Service", "train-master-0"));
    close_cluster(&c);
}

static void exit_code_of_a_signal_pod_made_anew_else_job_failed(void **state)
{
    (void)state;
    for (int code = 1; code <= 127; code += 126) {
        cluster c;
        open_cluster(&c, 2);
        set(c.job, WORKER "restartPolicy", "'ExitCode'");
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", code + 128);
        look(&c);
        assert_writes(&c, "delete train-worker-1, status train");
        assert_true(has_event(&c, "PyTorchJobRestarting"));
        carry_out(&c);
        settle(&c);
        assert_non_null(find(&c, "Pod", "train-worker-1"));
        end_pod(&c, "train-worker-1", code);
        settle(&c);
        assert_true(gr_object_holds(gr_object_at(c.job, "status.conditions"), "Failed"));
        assert_non_null(gr_object_text(c.job, "status.completionTime"));
        close_cluster(&c);
    }
}

static void pod_that_failed_and_takes_time_to_go_one_status(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all_pods(&c);
    end_pod(&c, "train-worker-1", 1);
    look(&c);
    assert_writes(&c, "delete train-worker-1, status train");
    json_object_set(c.job, "status", gr_object_at(written(&c, 1), "status"));
    assert_conditions(&c, "Created=True(PyTorchJobCreated) Restarting=True(PyTorchJobRestarting)");
    set(find(&c, "Pod", "train-worker-1"), "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
    c.now = "2026-05-01T10:00:20Z";
    look(&c);
    assert_writes(&c, "");
    assert_int_equal(json_array_size(c.result.events), 0);
    remove_object(&c, "Pod", "train-worker-1");
    run_all_pods(&c);
    assert_conditions(&c, "Created=True(PyTorchJobCreated) Running=True(PyTorchJobRunning)");
    close_cluster(&c);
}

static void deadline_asked_for_and_kept(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.activeDeadlineSeconds", "90");
    run_all_pods(&c);
    c.now = "2026-05-01T10:01:00Z";
    look(&c);
    assert_int_equal(c.result.again_after_s, 30);
    c.now = "2026-05-01T10:01:30Z";
    settle(&c);
    assert_conditions(&c, "Created=True(PyTorchJobCreated) Running=False(PyTorchJobRunning) "
                          "Failed=True(PyTorchJobFailed)");
    assert_int_equal(json_array_size(c.objects), 0);
    close_cluster(&c);
}

static void time_to_live_over_job_deleted(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.ttlSecondsAfterFinished", "60");
    run_all_pods(&c);
    end_pod(&c, "train-master-0", 0);
    settle(&c);
    assert_int_equal(c.result.again_after_s, 60);
    c.now = "2026-05-01T10:01:00Z";
    look(&c);
    assert_writes(&c, "delete train");
    assert_json(gr_object_at(written(&c, 0), "metadata.uid"), "'u1'");
    set(c.job, "metadata.deletionTimestamp", "'2026-05-01T10:01:00Z'");
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
}

static void restarts_by_the_kubelet_reach_the_backoff_limit(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.runPolicy.backoffLimit", "3");
    run_all_pods(&c);
    set(find(&c, "Pod", "train-worker-0"), "status.containerStatuses", "[{'restartCount': 2}]");
    settle(&c);
    assert_int_equal(json_array_size(c.objects), 6);
    set(find(&c, "Pod", "train-worker-1"), "status.initContainerStatuses", "[{'restartCount': 1}]");
    settle(&c);
    assert_int_equal(json_array_size(c.objects), 0);
    close_cluster(&c);
}

static void workers_fewer_then_the_job_ends_nothing_stays(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 12);
    set(c.job, "spec.runPolicy.cleanPodPolicy", "'All'");
    run_all_pods(&c);
    set(c.job, WORKER "replicas", "2");
    end_pod(&c, "train-master-0", 0);
    settle(&c);
    settle(&c);
    assert_int_equal(json_array_size(c.objects), 0);
    close_cluster(&c);
}

/* ---- Suspension and pod groups --------------------------------------------------------------- */
static void job_suspended_and_resumed_twice_starts_anew_each_time(void **state)
{
    (void)state;
    static const char *const times[] = {"2026-05-01T11:00:00Z", "2026-05-01T12:00:00Z"};
    cluster c;
    open_cluster(&c, 1);
    run_all_pods(&c);
    for (int i = 0; i < 2; i++) {
        set(c.job, "spec.runPolicy.suspend", "true");
        settle(&c);
        assert_int_equal(json_array_size(c.objects), 0);
        assert_conditions(&c, "Created=True(PyTorchJobCreated) Running=False(PyTorchJobSuspended) "
                              "Suspended=True(PyTorchJobSuspended)");
        set(c.job, "spec.runPolicy.suspend", "false");
        c.now = times[i];
        run_all_pods(&c);
        assert_conditions(&c, "Created=True(PyTorchJobCreated) Suspended=False(PyTorchJobResumed) "
                              "Running=True(PyTorchJobRunning)");
        assert_string_equal(gr_object_text(c.job, "status.startTime"), times[i]);
    }
    close_cluster(&c);
}

static void volcano_first_pods_wait_later_ones_do_not(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    c.gang_scheduler = "volcano";
    settle(&c);
    assert_int_equal(json_array_size(c.objects), 1);
    set(find(&c, "PodGroup", "train"), "status.phase", "'Inqueue'");
    run_all_pods(&c);
    assert_int_equal(json_array_size(c.objects), 5);
    set(find(&c, "PodGroup", "train"), "status.phase", "'Pending'");
    set(c.job, WORKER "replicas", "2");
    settle(&c);
    assert_json(gr_object_at(find(&c, "PodGroup", "train"), "spec.minMember"), "3");
    assert_non_null(find(&c, "Pod", "train-worker-1"));
    close_cluster(&c);
}

/* ---- Bad input ------------------------------------------------------------------------------- */
static void template_finalizers_go_along_and_its_restart_policy_is_told(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, WORKER "template.metadata.finalizers", "['lab/kept']");
    set(c.job, WORKER "template.spec.restartPolicy", "'Always'");
    look(&c);
    assert_null(gr_object_at(written(&c, 0), "metadata.finalizers"));
    assert_json(gr_object_at(written(&c, 2), "metadata.finalizers"), "['lab/kept']");
    assert_json(gr_object_at(written(&c, 2), "spec.restartPolicy"), "'OnFailure'");
    assert_true(has_event(&c, "SetPodTemplateRestartPolicy"));
    set(c.job, WORKER "template.spec.restartPolicy", "''");
    look(&c);
    assert_false(has_event(&c, "SetPodTemplateRestartPolicy"));
    close_cluster(&c);
}

static void assert_event(const cluster *c, const char *reason, const char *message)
{
    for (size_t i = 0; i < json_array_size(c->result.events); i++) {
        if (strcmp(event(c, i, "reason"), reason) == 0) {
            assert_string_equal(event(c, i, "message"), message);
            return;
        }
    }
    fail_msg("no event %s", reason);
}

static void containers_that_wait_or_ended_in_a_pod_that_runs_told(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    run_all_pods(&c);
    set(find(&c, "Pod", "train-worker-0"), "status.containerStatuses",
        "[{'name': 'pytorch', 'state': {'waiting': {'reason': 'CrashLoopBackOff',"
        "   'message': 'back-off 10s'}}},"
        " {'name': 'proxy', 'state': {'terminated': {'reason': 'Error', 'exitCode': 3,"
        "   'message': 'no route'}}},"
        " {'name': 'fetch', 'state': {'terminated': {'reason': 'Completed', 'exitCode': 0}}}]");
    look(&c);
    assert_writes(&c, "");
    assert_event(&c, "CrashLoopBackOff",
                 "Error pod train-worker-0 container pytorch waiting message: back-off 10s");
    assert_event(&c, "Error",
                 "Error pod train-worker-0 container proxy exitCode: 3 terminated message: no "
                 "route");
    assert_int_equal(json_array_size(c.result.events), 2);
    set(find(&c, "Pod", "train-worker-0"), "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
    look(&c);
    assert_false(has_event(&c, "CrashLoopBackOff")); /* it goes */
    close_cluster(&c);
}

/* The event's text is cut where a character ends. */
static void container_that_failed_with_many_words_told_as_far_as_they_fit(void **state)
{
    (void)state;
    for (int before = 0; before < 3; before++) {
        cluster c;
        char words[1400], expected[700], text[1600];
        open_cluster(&c, 1);
        run_all_pods(&c);
        memset(words, 'a', (size_t)before);
        words[before] = '\0';
        while (strlen(words) < 1300) {
            strcat(words, "\xe2\x82\xac"); /* a sign of three bytes */
        }
        snprintf(text, sizeof text,
                 "[{'name': 'pytorch', 'state': {'terminated': {'exitCode': 137, 'reason': "
                 "'OOMKilled', 'message': '%s'}}}]",
                 words);
        set(find(&c, "Pod", "train-worker-0"), "status.containerStatuses", text);
        look(&c);
        snprintf(expected, sizeof expected,
                 "Error pod train-worker-0 container pytorch exitCode: 137 terminated message: "
                 "%.*s",
                 before == 0 ? 600 : 597 + before, words);
        assert_event(&c, "OOMKilled", expected);
        close_cluster(&c);
    }
}

static void volcano_autoscaler_does_not_wait(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    c.gang_scheduler = "volcano";
    set(c.job, "spec.elasticPolicy.metrics", "[]");
    settle(&c);
    assert_null(find(&c, "Pod", "train-worker-0"));
    assert_json(gr_object_at(find(&c, "HorizontalPodAutoscaler", "train"), "spec.metrics"), "[]");
    set(find(&c, "HorizontalPodAutoscaler", "train"), "spec.metrics", "[{'type': 'Resource'}]");
    look(&c); /* the API server has done that */
    assert_writes(&c, "");
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_null(find(&c, "HorizontalPodAutoscaler", "train"));
    close_cluster(&c);
}

static void job_wrong_one_event_and_no_writes(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"spec.pytorchReplicaSpecs", "{}", "must have replica specs"},
        {"spec.pytorchReplicaSpecs", "7", "must have replica specs"},
        {"spec.pytorchReplicaSpecs.PS", ROLE, "supported values: \"Master\", \"Worker\""},
        {"spec.pytorchReplicaSpecs.Worker", "null", "[Worker]: Required value"},
        {"spec.pytorchReplicaSpecs.Master.replicas", "2",
         "[Master].replicas: Forbidden: must be 1"},
        {WORKER "replicas", "0", "must be at least 1"},
        {WORKER "replicas", "-1", "must be from 0 to 100000"},
        {WORKER "replicas", "9000000000", "must be from 0 to 100000"},
        {WORKER "replicas", "'two'", "must be an integer"},
        {WORKER "restartPolicy", "'Sometimes'", "supported values: \"Always\", \"ExitCode\""},
        {WORKER "template", "{}", "must define at least one container"},
        {WORKER "template.spec.containers", "[{'name': 'other', 'image': 'i'}]",
         "with name pytorch"},
        {WORKER "template.spec.containers", "[{'name': 'pytorch'}]", "[0].image: Required value"},
        {WORKER "template.spec.containers", "[7]", "must be a map"},
        {"spec.runPolicy.managedBy", "'me'", "spec.runPolicy.managedBy: Unsupported value"},
        {"spec.runPolicy.backoffLimit", "'one'", "must be an integer"},
        {"spec.runPolicy.cleanPodPolicy", "7", "spec.runPolicy.cleanPodPolicy: Unsupported value"},
        {"spec.runPolicy.suspend", "'yes'", "must be true or false"},
        {"spec.elasticPolicy", "7", "must be a map"},
        {"spec.elasticPolicy.nProcPerNode", "2", NULL},
        {"metadata.name", "'1job'", "a DNS-1035 label"},
        {"metadata.name", "'a-name-that-is-much-too-long-for-the-pods-of-a-job-whatever-it-does'",
         "no more than 63 characters"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cluster c;
        open_cluster(&c, 1);
        set(c.job, wrong[i][0], wrong[i][1]);
        if (wrong[i][2] == NULL) {
            set(c.job, "spec.nprocPerNode", "'2'");
        }
        assert_wrong(&c, wrong[i][2] != NULL ? wrong[i][2] : "must not be used with");
    }
}

static void limits_below_zero_are_over_at_once(void **state)
{
    (void)state;
    static const char *const limits[] = {"backoffLimit", "activeDeadlineSeconds"};
    char path[64];
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        cluster c;
        open_cluster(&c, 1);
        snprintf(path, sizeof path, "spec.runPolicy.%s", limits[i]);
        set(c.job, path, "-1");
        settle(&c);
        assert_conditions(&c, "Created=True(PyTorchJobCreated) Failed=True(PyTorchJobFailed)");
        assert_int_equal(json_array_size(c.objects), 0);
        close_cluster(&c);
    }
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.ttlSecondsAfterFinished", "-1");
    run_all_pods(&c);
    set_phase(&c, "train-master-0", "Succeeded");
    look(&c);
    carry_out(&c);
    look(&c);
    assert_writes(&c, "delete train");
    close_cluster(&c);
}

static void clean_pod_policy_empty_all_pods_go_as_if_it_were_all(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.cleanPodPolicy", "''");
    run_all_pods(&c);
    set_phase(&c, "train-master-0", "Succeeded");
    settle(&c);
    assert_int_equal(json_array_size(c.objects), 0);
    close_cluster(&c);
}

static void job_of_another_controller_or_ending_nothing(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.managedBy", "'kueue.x-k8s.io/multikueue'");
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
    open_cluster(&c, 1);
    set(c.job, "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
}

static void unknown_field_named_with_the_nearest(void **state)
{
    (void)state;
    char sentence[GR_EVENT_BYTES];
    cluster c;
    open_cluster(&c, 1);
    assert_false(gr_operator_unknown_field(c.kind, c.job, sentence));
    set(c.job, "spec.elasticPolicy.maxRestart", "1");
    assert_true(gr_operator_unknown_field(c.kind, c.job, sentence));
    assert_string_equal(sentence, "spec.elasticPolicy.maxRestart: there is no such field; did you "
                                  "mean maxRestarts");
    close_cluster(&c);
}

/* Statuses that nobody should write, from the pods and from the job itself. */
static void objects_malformed_taken_as_they_are(void **state)
{
    (void)state;
    static const char *const statuses[] = {"7", "null", "{'phase': 7}",
                                           "{'phase': 'Failed', 'containerStatuses': 'x'}",
                                           "{'phase': 'Running', 'containerStatuses': [7, null]}"};
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        cluster c;
        open_cluster(&c, 1);
        settle(&c);
        json_object_set_new(find(&c, "Pod", "train-worker-0"), "status", json(statuses[i]));
        set(c.job, "spec.runPolicy.backoffLimit", "0");
        set(c.job, "status.replicaStatuses", statuses[i]);
        set(c.job, "status.startTime", "'yesterday'");
        set(c.job, "spec.runPolicy.activeDeadlineSeconds", "1");
        set(c.job, "spec.runPolicy.ttlSecondsAfterFinished", "9223372036854775807");
        set(c.job, "spec.nprocPerNode", "'9223372036854775807'");
        json_array_append_new(c.objects, json("{'apiVersion': 'v1', 'kind': 'Pod'}"));
        json_array_append_new(c.objects, json("7"));
        look(&c);
        close_cluster(&c);
    }
}

static void memory_missing_anywhere_told_and_nothing_half_made(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, 1);
    c.gang_scheduler = "together";
    set(c.job, "spec.elasticPolicy", "{'metrics': [{'type': 'Resource'}]}");
    assert_memory_missing_anywhere_told(&c);
}

/* Each text is cut inside of a character, wherever it begins. */
static void texts_of_characters_of_many_bytes_are_cut_between_them(void **state)
{
    (void)state;
    static const char *const paths[] = {"containerStatuses", "conditions"};
    char smiles[4 * 600 + 1], status[4096];
    for (size_t i = 0; i < sizeof smiles - 1; i += 4) {
        memcpy(smiles + i, "\xF0\x9F\x98\x80", 5);
    }
    for (int shift = 0; shift < 4; shift++) {
        cluster c;
        open_cluster(&c, 1);
        snprintf(status, sizeof status, "'%.*s%s'", shift, "aaa", smiles);
        set(c.job, "spec.runPolicy.cleanPodPolicy", status);
        set(c.job, "spec.elasticPolicy", "{}");
        set(c.job, "spec.elasticPolicy.rdzvHost", status);
        look(&c);
        assert_true(has_event(&c, "CleanPodPolicy"));
        run_all_pods(&c);
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
            char path[64];
            snprintf(status, sizeof status,
                     i == 0 ? "[{'name': 'pytorch', 'state': {'waiting': {'reason': 'Waits',"
                              " 'message': '%.*s%s'}}}]"
                            : "[{'type': 'PodScheduled', 'status': 'False', 'reason': 'NoRoom',"
                              " 'message': '%.*s%s'}]",
                     shift, "aaa", smiles);
            snprintf(path, sizeof path, "status.%s", paths[i]);
            set(find(&c, "Pod", "train-worker-0"), path, status);
        }
        look(&c);
        assert_true(has_event(&c, "Waits") && has_event(&c, "NoRoom"));
        assert_true(strlen(event(&c, 0, "message")) > 600);
        close_cluster(&c);
    }
}

static void value_that_is_long_is_shown_cut(void **state)
{
    (void)state;
    char value[1024] = "'", end[] = "...: must be true or false";
    for (int i = 0; i < 300; i++) {
        strcat(value, "\xC3\xBC");
    }
    strcat(value, "'");
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.suspend", value);
    look(&c);
    const char *message = event(&c, 0, "message");
    assert_string_equal(event(&c, 0, "reason"), "ValidationError");
    assert_non_null(strstr(message, "spec.runPolicy.suspend: Invalid value: \"\xC3\xBC\xC3\xBC"));
    assert_string_equal(message + strlen(message) - strlen(end), end);
    close_cluster(&c);
}

static void condition_with_a_text_that_is_no_utf8_is_written(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    gr_look l;
    gr_diag diag = {0};
    gr_operator_view view = view_of(&c);
    gr_look_open(&l, &view, &gr_pytorchjob_v1, &c.result);
    assert_true(gr_look_set_condition(&l, "Failed", true, "Lost",
                                      "a\xFF"
                                      "b\xC3"));
    const json_t *conditions = json_object_get(l.status, "conditions");
    assert_string_equal(gr_object_text(gr_object_condition(conditions, "Failed"), "message"),
                        "a?b");
    gr_look_event(&l, "Normal", "Lost\xFF", "\xFF");
    assert_string_equal(event(&c, 0, "message"), "?");
    assert_int_equal(gr_look_close(&l, &diag), GR_OK);
    close_cluster(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_new_pod_and_service_of_each_replica),
        cmocka_unit_test(ranks_of_a_pod_multiply_the_world_size_if_they_are_a_number),
        cmocka_unit_test(job_running_looked_at_again_no_more_writes_or_events),
        cmocka_unit_test(role_names_in_any_case_are_taken),
        cmocka_unit_test(elastic_job_rendezvous_and_autoscaler),
        cmocka_unit_test(metrics_in_another_form_are_the_same),
        cmocka_unit_test(name_taken_by_another_told_and_left_alone),
        cmocka_unit_test(master_done_job_done_and_running_workers_go),
        cmocka_unit_test(exit_code_of_a_signal_pod_made_anew_else_job_failed),
        cmocka_unit_test(pod_that_failed_and_takes_time_to_go_one_status),
        cmocka_unit_test(deadline_asked_for_and_kept),
        cmocka_unit_test(time_to_live_over_job_deleted),
        cmocka_unit_test(restarts_by_the_kubelet_reach_the_backoff_limit),
        cmocka_unit_test(workers_fewer_then_the_job_ends_nothing_stays),
        cmocka_unit_test(job_suspended_and_resumed_twice_starts_anew_each_time),
        cmocka_unit_test(volcano_first_pods_wait_later_ones_do_not),
        cmocka_unit_test(template_finalizers_go_along_and_its_restart_policy_is_told),
        cmocka_unit_test(containers_that_wait_or_ended_in_a_pod_that_runs_told),
        cmocka_unit_test(container_that_failed_with_many_words_told_as_far_as_they_fit),
        cmocka_unit_test(volcano_autoscaler_does_not_wait),
        cmocka_unit_test(texts_of_characters_of_many_bytes_are_cut_between_them),
        cmocka_unit_test(value_that_is_long_is_shown_cut),
        cmocka_unit_test(condition_with_a_text_that_is_no_utf8_is_written),
        cmocka_unit_test(job_wrong_one_event_and_no_writes),
        cmocka_unit_test(limits_below_zero_are_over_at_once),
        cmocka_unit_test(clean_pod_policy_empty_all_pods_go_as_if_it_were_all),
        cmocka_unit_test(job_of_another_controller_or_ending_nothing),
        cmocka_unit_test(unknown_field_named_with_the_nearest),
        cmocka_unit_test(objects_malformed_taken_as_they_are),
        cmocka_unit_test(memory_missing_anywhere_told_and_nothing_half_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
