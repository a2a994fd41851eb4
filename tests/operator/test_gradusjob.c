/* SPDX-License-Identifier: Apache-2.0 */

/* GradusJob v1: what its pods get, and what becomes of a job that loses workers or gets another
 * number of them; what it shares with others is in test_pytorchjob.c. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster.h"

#define JOB                                                                                        \
    "{'model': [{'linear': 10}], 'data': {'file': 'a.csv', 'classes': 10}, 'epochs': 1, "          \
    "'global_batch': 64, 'optimizer': {'kind': 'sgd', 'learning_rate': 0.1}, 'name': '$(HOME)'}"

/* The native job "train" in "lab" with so many workers. */
static void open_cluster(cluster *c, int workers)
{
    char number[16];
    snprintf(number, sizeof number, "%d", workers);
    open_cluster_with(c, &gr_gradusjob_v1,
                      "{'apiVersion': 'gradus.dev/v1', 'kind': 'GradusJob',"
                      " 'metadata': {'name': 'train', 'namespace': 'lab', 'uid': 'u1'}}");
    set(c->job, "spec.workers.replicas", number);
    set(c->job, "spec.job", JOB);
}

static const json_t *container_of(const cluster *c, const char *pod)
{
    return json_array_get(gr_object_at(find(c, "Pod", pod), "spec.containers"), 0);
}

/* NULL: it is not set. */
static const char *variable(const cluster *c, const char *pod, const char *name)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(container_of(c, pod), "env"), i, one)
    {
        if (gr_object_is_text(one, "name", name)) {
            return gr_object_text(one, "value");
        }
    }
    return NULL;
}

static bool holds(const cluster *c, const char *condition)
{
    return gr_object_holds(gr_object_at(c->job, "status.conditions"), condition);
}

static int count_pods(const cluster *c)
{
    size_t i;
    int count = 0;
    const json_t *object;
    json_array_foreach(c->objects, i, object)
    {
        count += gr_object_is(object, "v1", "Pod");
    }
    return count;
}

/* The pod's container has ended so, as the kubelet tells. */
static void end_pod(cluster *c, const char *pod, int code)
{
    char text[128];
    set_phase(c, pod, code == 0 ? "Succeeded" : "Failed");
    snprintf(text, sizeof text, "[{'name': 'gradus', 'state': {'terminated': {'exitCode': %d}}}]",
             code);
    set(find(c, "Pod", pod), "status.containerStatuses", text);
}

static void secret_without_its_token_is_mended(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    settle(&c);
    set((json_t *)find(&c, "Secret", "train-gradus"), "data", "{}");
    settle(&c);
    assert_json(gr_object_at(find(&c, "Secret", "train-gradus"), "data"), "{'token': 'TOKEN'}");
    close_cluster(&c);
}

static void workers_meet_at_the_first_one(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.gradusImage", "'ours:1'");
    set(c.job, "spec.checkpointVolume", "{'persistentVolumeClaim': {'claimName': 'mine'}}");
    settle(&c);
    const json_t *pod = find(&c, "Pod", "train-worker-1");
    assert_json(gr_object_at(find(&c, "Service", "train"), "spec"),
                "{'clusterIP': 'None', 'publishNotReadyAddresses': true, 'selector': "
                "{'training.kubeflow.org/job-name': 'train', "
                "'training.kubeflow.org/operator-name': 'gradusjob-controller'}}");
    assert_json(gr_object_at(find(&c, "Secret", "train-gradus"), "data"), "{'token': 'TOKEN'}");
    assert_string_equal(variable(&c, "train-worker-1", "RANK"), "1");
    assert_string_equal(variable(&c, "train-worker-1", "WORLD_SIZE"), "2");
    assert_string_equal(variable(&c, "train-worker-1", "MASTER_ADDR"), "train-worker-0.train");
    assert_string_equal(variable(&c, "train-worker-1", "GRADUS_MIN_WORKERS"), "1");
    assert_string_equal(variable(&c, "train-worker-1", "GRADUS_JOIN_TIMEOUT"), "24h");
    assert_string_equal(gr_object_text(pod, "spec.hostname"), "train-worker-1");
    assert_string_equal(gr_object_text(pod, "spec.subdomain"), "train");
    assert_string_equal(gr_object_text(pod, "spec.restartPolicy"), "Never");
    assert_json(json_array_get(gr_object_at(pod, "spec.volumes"), 1),
                "{'name': 'gradus-output', 'persistentVolumeClaim': {'claimName': 'mine'}}");
    assert_json(json_object_get(container_of(&c, "train-worker-1"), "command"),
                "['/opt/gradus/gradus', 'worker', '--resume']");
    const json_t *init = json_array_get(gr_object_at(pod, "spec.initContainers"), 0);
    assert_string_equal(gr_object_text(init, "image"), "ours:1");
    assert_true(gr_object_true(init, "securityContext.readOnlyRootFilesystem"));
    /* The kubelet makes $(HOME) of it again. */
    assert_non_null(strstr(variable(&c, "train-worker-1", "GRADUS_JOB"), "\"name\":\"$$(HOME)\""));
    assert_non_null(strstr(variable(&c, "train-worker-1", "GRADUS_JOB"),
                           "\"run\":{\"workers\":2,\"all_stop\":true}"));
    look(&c);
    assert_writes(&c, "");
    close_cluster(&c);
}

static void workers_show_how_far_they_have_come(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    c.asks_progress = true;
    settle(&c);
    assert_string_equal(variable(&c, "train-worker-1", "GRADUS_PROGRESS_PAGE"),
                        ":29502/progress/u1");
    assert_null(c.result.ask); /* nobody runs */
    set_phase(&c, "train-worker-0", "Running");
    set_phase(&c, "train-worker-1", "Running");
    set(find(&c, "Pod", "train-worker-0"), "status.podIP", "'nowhere.test'"); /* no address */
    set(find(&c, "Pod", "train-worker-1"), "status.podIP", "'fd00::1'");
    settle(&c);
    assert_json(c.result.ask, "{'addresses': ['fd00::1'], 'port': 29502, 'path': '/progress/u1'}");
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_null(c.result.ask);
    close_cluster(&c);
}

static void command_is_not_asked_how_far_it_has_come(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    c.asks_progress = true;
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.command", "['train']");
    settle(&c);
    set(find(&c, "Pod", "train-worker-0"), "status.podIP", "'10.0.0.1'");
    run_all_pods(&c);
    assert_true(holds(&c, "Running"));
    assert_null(variable(&c, "train-worker-0", "GRADUS_PROGRESS_PAGE"));
    assert_null(c.result.ask);
    close_cluster(&c);
}

static void answer_of_a_worker_stands_in_the_status(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    c.asks_progress = true;
    run_all_pods(&c);
    json_t *told = json("{'step': 5, 'loss': 1}"), *again = json("{'step': 6, 'loss': 1}");
    c.progress = told;
    look(&c);
    assert_writes(&c, "status train");
    carry_out(&c);
    assert_json(gr_object_at(c.job, "status.progress"),
                "{'step': 5, 'loss': 1, 'lastUpdateTime': '2026-05-01T10:00:00Z'}");
    c.now = "2026-05-01T10:00:15Z";
    look(&c);
    assert_writes(&c, ""); /* it says the same */
    c.progress = again;
    settle(&c);
    c.progress = NULL;
    look(&c);
    assert_writes(&c, ""); /* it says nothing */
    assert_json(gr_object_at(c.job, "status.progress"),
                "{'step': 6, 'loss': 1, 'lastUpdateTime': '2026-05-01T10:00:15Z'}");
    end_pod(&c, "train-worker-0", 0);
    settle(&c);
    assert_true(holds(&c, "Succeeded"));
    assert_int_equal(gr_object_int(c.job, "status.progress.step", 0), 6);
    assert_null(c.result.ask);
    json_decref(told);
    json_decref(again);
    close_cluster(&c);
}

/* An operator's own disk may be read-only, and is not the one that the workers have. */
static void output_folder_that_only_workers_can_write_is_taken(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.job.output", "'/proc/mine'");
    set(c.job, "spec.job.checkpoint", "{'every': '1 epoch', 'to': '/proc/theirs'}");
    settle(&c);
    assert_non_null(find(&c, "Pod", "train-worker-1"));
    close_cluster(&c);
}

static void job_of_a_config_map_is_a_file_of_the_workers(void **state)
{
    (void)state;
    for (int has_key = 0; has_key < 2; has_key++) {
        cluster c;
        open_cluster(&c, 2);
        json_object_del(gr_object_at(c.job, "spec"), "job");
        set(c.job, "spec.jobFrom.configMapKeyRef.name", "'mine'");
        if (has_key) {
            set(c.job, "spec.jobFrom.configMapKeyRef.key", "'other.yaml'");
        }
        settle(&c);
        const json_t *volumes = gr_object_at(find(&c, "Pod", "train-worker-1"), "spec.volumes");
        assert_json(json_array_get(volumes, 0),
                    "{'name': 'gradus-job', 'configMap': {'name': 'mine'}}");
        assert_json(
            json_array_get(json_object_get(container_of(&c, "train-worker-1"), "volumeMounts"), 0),
            "{'name': 'gradus-job', 'mountPath': '/gradus/job'}");
        assert_json(json_object_get(container_of(&c, "train-worker-1"), "command"),
                    has_key ? "['gradus', 'worker', '--resume', '--job', '/gradus/job/other.yaml', "
                              "'--workers', '2', '--output', '/gradus/output']"
                            : "['gradus', 'worker', '--resume', '--job', '/gradus/job/job.yaml', "
                              "'--workers', '2', '--output', '/gradus/output']");
        assert_null(variable(&c, "train-worker-1", "GRADUS_JOB"));
        assert_string_equal(variable(&c, "train-worker-1", "GRADUS_MIN_WORKERS"), "1");
        look(&c);
        assert_writes(&c, "");
        close_cluster(&c);
    }
}

static void job_of_a_config_map_badly_named_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *from, *sentence;
    } cases[] = {
        {"'mine'", "spec.jobFrom: Invalid value: must name a ConfigMap of the job's namespace"},
        {"{}", "spec.jobFrom: Invalid value: must name a ConfigMap"},
        {"{'configMapKeyRef': {'key': 'a'}}",
         "spec.jobFrom.configMapKeyRef.name: Required value: must be the name of a ConfigMap"},
        {"{'configMapKeyRef': {'name': ''}}", "configMapKeyRef.name: Required value"},
        {"{'configMapKeyRef': {'name': 'a', 'key': '../b'}}",
         "spec.jobFrom.configMapKeyRef.key: Invalid value: must be a key of the ConfigMap"},
        {"{'configMapKeyRef': {'name': 'a', 'key': '..'}}", "configMapKeyRef.key: Invalid value"},
        {"{'configMapKeyRef': {'name': 'a', 'key': 3}}", "configMapKeyRef.key: Invalid value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        json_object_del(gr_object_at(c.job, "spec"), "job");
        set(c.job, "spec.jobFrom", cases[i].from);
        look(&c);
        assert_writes(&c, "");
        assert_string_equal(event(&c, 0, "reason"), "ValidationError");
        if (strstr(event(&c, 0, "message"), cases[i].sentence) == NULL) {
            fail_msg("\"%s\" instead of \"%s\"", event(&c, 0, "message"), cases[i].sentence);
        }
        close_cluster(&c);
    }
}

static void command_runs_in_the_users_image_and_needs_all(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.command", "['python3', 'train.py']");
    set(c.job, "spec.workers.image", "'mine:1'");
    settle(&c);
    assert_json(json_object_get(container_of(&c, "train-worker-0"), "command"),
                "['python3', 'train.py']");
    assert_string_equal(gr_object_text(container_of(&c, "train-worker-0"), "image"), "mine:1");
    assert_null(gr_object_at(find(&c, "Pod", "train-worker-0"), "spec.initContainers"));
    assert_null(variable(&c, "train-worker-0", "GRADUS_MIN_WORKERS"));
    run_all_pods(&c);
    end_pod(&c, "train-worker-1", 137);
    settle(&c);
    assert_int_equal(gr_object_int(c.job, "status.restarts", 0), 1);
    close_cluster(&c);
}

/* Made while the job runs: it looks for the others, and waits for a place. */
static void assert_joins(const cluster *c, const char *pod, const char *coordinator)
{
    assert_string_equal(variable(c, pod, "GRADUS_JOINING"), "yes");
    assert_string_equal(variable(c, pod, "GRADUS_FAILOVER"), "yes");
    assert_string_equal(variable(c, pod, "GRADUS_COORDINATOR"), coordinator);
    assert_string_equal(variable(c, pod, "GRADUS_JOIN_TIMEOUT"), "1min");
}

static void worker_lost_is_made_anew_and_joins_the_others(void **state)
{
    (void)state;
    for (int is_deleted = 0; is_deleted < 2; is_deleted++) {
        cluster c;
        open_cluster(&c, 3);
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_null(variable(&c, "train-worker-0", "GRADUS_JOINING"));
        if (is_deleted) { /* it runs on until it is gone */
            set(find(&c, "Pod", "train-worker-0"), "metadata.deletionTimestamp",
                "'2026-05-01T10:00:00Z'");
            look(&c);
            assert_writes(&c, "");
            remove_object(&c, "Pod", "train-worker-0");
        } else {
            end_pod(&c, "train-worker-0", 137);
            look(&c);
            assert_writes(&c, "delete train-worker-0, status train");
            carry_out(&c);
        }
        settle(&c);
        assert_true(holds(&c, "Running") && !holds(&c, "Restarting"));
        assert_int_equal(count_pods(&c), 3);
        assert_int_equal(gr_object_int(c.job, "status.replaced", 0), 1);
        assert_joins(&c, "train-worker-0",
                     "tcp:train-worker-1.train:29501 tcp:train-worker-2.train:29501");
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", 0);
        end_pod(&c, "train-worker-2", 137); /* the job is done: nobody joins it any more */
        settle(&c);
        assert_true(holds(&c, "Running"));
        assert_int_equal(gr_object_int(c.job, "status.replaced", 0), 1);
        end_pod(&c, "train-worker-0", 0);
        settle(&c);
        assert_true(holds(&c, "Succeeded"));
        assert_int_equal(gr_object_int(c.job, "status.restarts", 0), 0);
        close_cluster(&c);
    }
}

/* It has lost the others. Joining ones may wait for nobody, and are not replaced for ever. */
static void worker_that_lost_the_others_is_replaced_unless_only_joining_ones_are_left(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all_pods(&c);
    end_pod(&c, "train-worker-1", 76);
    settle(&c);
    assert_joins(&c, "train-worker-1", "tcp:train-worker-0.train:29501");
    run_all_pods(&c);
    end_pod(&c, "train-worker-0", 76);
    settle(&c);
    assert_null(variable(&c, "train-worker-0", "GRADUS_JOINING"));
    assert_true(holds(&c, "Running"));
    end_pod(&c, "train-worker-1", 76); /* nobody was there */
    look(&c);
    assert_writes(&c, "delete train-worker-0, delete train-worker-1, status train");
    carry_out(&c);
    assert_true(holds(&c, "Restarting"));
    assert_int_equal(gr_object_int(c.job, "status.replaced", -1), 0);
    run_all_pods(&c);
    assert_null(variable(&c, "train-worker-1", "GRADUS_JOINING"));
    assert_true(holds(&c, "Running"));
    close_cluster(&c);
}

static void worker_lost_again_and_again_stays_lost_in_the_end(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all_pods(&c);
    int replaced = 0;
    for (; replaced < 100; replaced++) {
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", 137);
        settle(&c);
        if (gr_object_int(c.job, "status.replaced", 0) == replaced) {
            break;
        }
    }
    assert_int_equal(replaced, 20);
    assert_true(holds(&c, "Running") && !holds(&c, "Restarting"));
    end_pod(&c, "train-worker-0", 0);
    settle(&c);
    assert_true(holds(&c, "Succeeded"));
    close_cluster(&c);
}

static void workers_lost_in_large_numbers_each_replaced_once(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 200);
    set(c.job, "spec.job.global_batch", "256");
    set(c.job, "spec.job.distribution.shards", "256");
    run_all_pods(&c);
    for (int i = 0; i < 70; i++) {
        char name[64];
        snprintf(name, sizeof name, "train-worker-%d", i);
        remove_object(&c, "Pod", name);
    }
    look(&c);
    assert_int_equal(count_created(&c, "Pod"), 64);
    carry_out(&c);
    settle(&c);
    assert_int_equal(count_pods(&c), 200);
    assert_int_equal(gr_object_int(c.job, "status.replaced", 0), 70);
    close_cluster(&c);
}

/* A program of one's own may not know how to take a worker in. */
static void worker_of_a_command_lost_stays_lost(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.command", "['./train']");
    set(c.job, "spec.workers.minReplicas", "1");
    run_all_pods(&c);
    end_pod(&c, "train-worker-0", 137);
    settle(&c);
    assert_true(holds(&c, "Running") && !holds(&c, "Restarting"));
    assert_int_equal(gr_object_int(c.job, "status.replaced", 0), 0);
    assert_true(gr_object_is_text(find(&c, "Pod", "train-worker-0"), "status.phase", "Failed"));
    end_pod(&c, "train-worker-1", 0);
    end_pod(&c, "train-worker-2", 0);
    settle(&c);
    assert_true(holds(&c, "Succeeded"));
    close_cluster(&c);
}

static void too_few_left_all_begin_anew_until_the_limit(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.runPolicy.backoffLimit", "1");
    set(c.job, "spec.workers.minReplicas", "2");
    for (int restarts = 0; restarts < 2; restarts++) {
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_int_equal(gr_object_int(c.job, "status.restarts", 0), restarts);
        end_pod(&c, "train-worker-1", 137);
        look(&c);
        if (restarts == 0) {
            assert_writes(&c, "delete train-worker-0, delete train-worker-1, status train");
            assert_string_equal(event(&c, 2, "message"),
                                "GradusJob train is restarted from its newest checkpoint: 1 of 2 "
                                "workers are left.");
        }
        carry_out(&c);
    }
    assert_string_equal(
        gr_object_text(gr_object_condition(gr_object_at(c.job, "status.conditions"), "Failed"),
                       "message"),
        "GradusJob train has failed because its workers were lost, after 1 "
        "restarts (spec.runPolicy.backoffLimit).");
    settle(&c);
    assert_int_equal(count_pods(&c), 1); /* the one that was lost, with its log */
    assert_non_null(find(&c, "Pod", "train-worker-1"));
    close_cluster(&c);
}

static void pod_lost_before_all_have_run_all_begin_anew(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    settle(&c);
    set_phase(&c, "train-worker-0", "Running");
    set(find(&c, "Pod", "train-worker-1"), "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
    look(&c);
    assert_writes(&c, "delete train-worker-0, delete train-worker-2");
    carry_out(&c);
    look(&c);
    assert_writes(&c, ""); /* it still goes */
    remove_object(&c, "Pod", "train-worker-1");
    run_all_pods(&c);
    assert_true(holds(&c, "Running"));
    close_cluster(&c);
}

/* Those that are left would wait for it. */
static void worker_that_could_not_go_on_before_all_have_run_all_begin_anew(void **state)
{
    (void)state;
    for (int code = 75; code <= 76; code++) {
        cluster c;
        open_cluster(&c, 2);
        settle(&c);
        set_phase(&c, "train-worker-0", "Running");
        settle(&c);
        end_pod(&c, "train-worker-0", code);
        look(&c);
        assert_writes(&c, "delete train-worker-0, delete train-worker-1, status train");
        carry_out(&c);
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_int_equal(gr_object_int(c.job, "status.restarts", 0), code == 76);
        close_cluster(&c);
    }
}

static void exit_code_of_a_worker_fails_the_job_unless_others_were_lost(void **state)
{
    (void)state;
    static const struct {
        int first, second;
        bool fails;
    } cases[] = {{2, 76, true}, {1, 137, false}, {76, 76, false}, {75, 75, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        run_all_pods(&c);
        end_pod(&c, "train-worker-0", cases[i].first);
        end_pod(&c, "train-worker-1", cases[i].second);
        settle(&c);
        assert_int_equal(holds(&c, "Failed"), cases[i].fails);
        assert_int_equal(holds(&c, "Restarting"), !cases[i].fails);
        bool was_asked = cases[i].first == 75; /* that is no failure */
        assert_int_equal(gr_object_int(c.job, "status.restarts", 0), !cases[i].fails && !was_asked);
        close_cluster(&c);
    }
}

static void mark_deleted(cluster *c, const char *pod)
{
    set(find(c, "Pod", pod), "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
}

/* It is seen to fail before the one whose loss is the cause has ended. */
static void worker_that_fails_while_another_is_deleted_does_not_fail_the_job(void **state)
{
    (void)state;
    static const char *const ends_of_deleted[] = {"Running", "Failed"};
    for (size_t i = 0; i < sizeof ends_of_deleted / sizeof ends_of_deleted[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        json_object_del(gr_object_at(c.job, "spec"), "job");
        set(c.job, "spec.command", "['./train']");
        run_all_pods(&c);
        mark_deleted(&c, "train-worker-1");
        if (strcmp(ends_of_deleted[i], "Failed") == 0) {
            end_pod(&c, "train-worker-1", 1); /* its program makes an error of the signal */
        }
        end_pod(&c, "train-worker-0", 1);
        look(&c);
        assert_writes(&c, "delete train-worker-0, status train");
        carry_out(&c);
        assert_true(holds(&c, "Restarting") && !holds(&c, "Failed"));
        assert_int_equal(gr_object_int(c.job, "status.restarts", 0), 1);
        remove_object(&c, "Pod", "train-worker-1");
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        end_pod(&c, "train-worker-0", 1); /* nobody goes now */
        settle(&c);
        assert_true(holds(&c, "Failed"));
        close_cluster(&c);
    }
}

static void worker_that_failed_as_another_was_lost_is_made_anew_too(void **state)
{
    (void)state;
    for (int is_deleted = 0; is_deleted < 2; is_deleted++) {
        cluster c;
        open_cluster(&c, 3);
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", 1);
        if (is_deleted) {
            mark_deleted(&c, "train-worker-2");
            settle(&c);
            remove_object(&c, "Pod", "train-worker-2");
        } else {
            end_pod(&c, "train-worker-2", 137);
        }
        settle(&c);
        assert_true(holds(&c, "Running") && !holds(&c, "Failed"));
        assert_int_equal(gr_object_int(c.job, "status.replaced", 0), 2);
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", 1);
        settle(&c);
        assert_true(holds(&c, "Failed"));
        close_cluster(&c);
    }
}

/* Nobody tells how a pod has ended whose node is lost: it is told to go, and runs for ever. */
static void job_is_done_without_a_worker_that_is_deleted_and_never_ends(void **state)
{
    (void)state;
    for (int needs_all = 0; needs_all < 2; needs_all++) {
        cluster c;
        open_cluster(&c, 3);
        set(c.job, "spec.workers.minReplicas", needs_all ? "3" : "2");
        run_all_pods(&c);
        mark_deleted(&c, "train-worker-1");
        end_pod(&c, "train-worker-0", 0);
        settle(&c);
        assert_true(holds(&c, "Running")); /* worker 2 has not ended */
        end_pod(&c, "train-worker-2", 0);
        settle(&c);
        assert_int_equal(holds(&c, "Succeeded"), !needs_all);
        assert_int_equal(holds(&c, "Running"), needs_all);
        remove_object(&c, "Pod", "train-worker-1");
        look(&c);
        carry_out(&c);
        assert_int_equal(holds(&c, "Restarting"), needs_all);
        close_cluster(&c);
    }
}

static void worker_that_is_deleted_fails_no_job_that_others_have_done(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all_pods(&c);
    mark_deleted(&c, "train-worker-1");
    end_pod(&c, "train-worker-1", 1);
    end_pod(&c, "train-worker-0", 0);
    settle(&c);
    assert_true(holds(&c, "Succeeded") && !holds(&c, "Failed"));
    close_cluster(&c);
}

/* What runs is ended; what has ended keeps its log, unless the policy is another one. */
static void job_over_its_deadline_keeps_pods_as_its_policy_says(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        int kept;
    } cases[] = {{"'Running'", 1}, {"'None'", 1}, {"'All'", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 3);
        set(c.job, "spec.runPolicy",
            "{'activeDeadlineSeconds': 90, 'schedulingPolicy': {'minAvailable': 1}}");
        set(c.job, "spec.runPolicy.cleanPodPolicy", cases[i].policy);
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", 0);
        settle(&c);
        c.now = "2026-05-01T10:01:30Z";
        settle(&c);
        assert_true(holds(&c, "Failed"));
        assert_int_equal(count_pods(&c), cases[i].kept);
        assert_int_equal(find(&c, "Pod", "train-worker-1") != NULL, cases[i].kept);
        close_cluster(&c);
    }
}

static void scaled_job_goes_on_with_another_number(void **state)
{
    (void)state;
    for (int to = 1; to <= 5; to += 4) {
        char number[16];
        cluster c;
        open_cluster(&c, 3);
        run_all_pods(&c);
        snprintf(number, sizeof number, "%d", to);
        set(c.job, "spec.workers.replicas", number);
        look(&c);
        assert_writes(&c, "delete train-worker-0, delete train-worker-1, delete train-worker-2, "
                          "status train");
        carry_out(&c);
        run_all_pods(&c);
        assert_int_equal(count_pods(&c), to);
        assert_string_equal(variable(&c, "train-worker-0", "WORLD_SIZE"), number);
        assert_true(holds(&c, "Running"));
        assert_int_equal(gr_object_int(c.job, "status.restarts", 0), 0);
        close_cluster(&c);
    }
}

static void suspended_job_has_no_pods_and_resumes(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all_pods(&c);
    end_pod(&c, "train-worker-1", 137);
    run_all_pods(&c);
    assert_int_equal(gr_object_int(c.job, "status.replaced", 0), 1);
    set(c.job, "spec.runPolicy.suspend", "true");
    settle(&c);
    assert_true(holds(&c, "Suspended") && !holds(&c, "Running"));
    assert_int_equal(count_pods(&c), 0);
    set(c.job, "spec.runPolicy.suspend", "false");
    run_all_pods(&c);
    assert_true(holds(&c, "Running") && !holds(&c, "Suspended"));
    assert_int_equal(gr_object_int(c.job, "status.replaced", -1), 0);
    close_cluster(&c);
}

static void what_is_wrong_is_told_in_sentences(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *sentence;
    } cases[] = {
        {"spec.workers", "3", "spec.workers: Required value: must have replicas"},
        {"spec.workers.replicas", "0",
         "spec.workers.replicas: Invalid value: 0: must be from 1 to 4096"},
        {"spec.workers.replicas", "4097", "must be from 1 to 4096"},
        {"spec.workers.minReplicas", "3",
         "spec.workers.minReplicas: Invalid value: 3: must be from 1 to the 2 of replicas"},
        {"spec.workers.maxReplicas", "1",
         "spec.workers.maxReplicas: Invalid value: 1: must be at least the 2 of replicas"},
        {"spec.workers.template", "{'spec': {'containers': [{'name': 'a', 'image': 'b'}]}}",
         "spec.workers.template.spec.containers: Required value: must have at least one container "
         "with name gradus"},
        {"spec.workers.template",
         "{'spec': {'containers': [{'name': 'gradus', 'image': 'b', 'command': ['c']}]}}",
         "spec.workers.template: Forbidden: the container gradus must not have a command beside "
         "spec.job"},
        {"spec.command", "['a']", "spec.command: Forbidden: must not be used with spec.job"},
        {"spec.jobFrom", "{'configMapKeyRef': {'name': 'a'}}",
         "spec.jobFrom: Forbidden: must not be used with spec.job"},
        {"spec.command", "'a'", "spec.command: Invalid value: must be a list of texts"},
        {"spec.job", "3", "spec.job: Invalid value: must be a map, what a job file says"},
        {"spec.job.epoks", "3",
         "Found validation errors: spec.job: unknown key \"epoks\"; did you mean \"epochs\"?"},
        {"spec.job.global_batch", "'63 apples'", "spec.job.global_batch: "},
        {"spec.checkpointVolume", "'mine'",
         "spec.checkpointVolume: Invalid value: must be one volume as pods have them"},
        {"spec.gradusImage", "3", "spec.gradusImage: Invalid value: must be the name of an image"},
        {"spec.job.distribution", "{'strategy': 'ps'}", "strategy: ps needs parameter servers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        set(c.job, cases[i].path, cases[i].value);
        look(&c);
        assert_writes(&c, "");
        assert_string_equal(event(&c, 0, "reason"), "ValidationError");
        if (strstr(event(&c, 0, "message"), cases[i].sentence) == NULL) {
            fail_msg("\"%s\" instead of \"%s\"", event(&c, 0, "message"), cases[i].sentence);
        }
        close_cluster(&c);
    }
}

static void memory_missing_anywhere_told_and_nothing_half_made(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, 2);
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.command", "['python3', 'train.py']");
    set(c.job, "spec.checkpointVolume", "{'emptyDir': {}}");
    assert_memory_missing_anywhere_told(&c);
}

static void memory_missing_for_progress_told(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, 2);
    c.asks_progress = true;
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.jobFrom.configMapKeyRef.name", "'mine'");
    run_all_pods(&c);
    set(find(&c, "Pod", "train-worker-0"), "status.podIP", "'10.0.0.1'");
    set(c.job, "status.progress", "{'step': 4, 'lastUpdateTime': 'x'}");
    json_t *told = json("{'step': 5}");
    c.progress = told;
    look(&c);
    assert_writes(&c, "status train");
    assert_memory_missing_anywhere_told(&c);
    json_decref(told);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_meet_at_the_first_one),
        cmocka_unit_test(secret_without_its_token_is_mended),
        cmocka_unit_test(workers_show_how_far_they_have_come),
        cmocka_unit_test(command_is_not_asked_how_far_it_has_come),
        cmocka_unit_test(answer_of_a_worker_stands_in_the_status),
        cmocka_unit_test(output_folder_that_only_workers_can_write_is_taken),
        cmocka_unit_test(job_of_a_config_map_is_a_file_of_the_workers),
        cmocka_unit_test(job_of_a_config_map_badly_named_is_told),
        cmocka_unit_test(command_runs_in_the_users_image_and_needs_all),
        cmocka_unit_test(worker_lost_is_made_anew_and_joins_the_others),
        cmocka_unit_test(worker_that_lost_the_others_is_replaced_unless_only_joining_ones_are_left),
        cmocka_unit_test(worker_lost_again_and_again_stays_lost_in_the_end),
        cmocka_unit_test(workers_lost_in_large_numbers_each_replaced_once),
        cmocka_unit_test(worker_of_a_command_lost_stays_lost),
        cmocka_unit_test(too_few_left_all_begin_anew_until_the_limit),
        cmocka_unit_test(pod_lost_before_all_have_run_all_begin_anew),
        cmocka_unit_test(worker_that_could_not_go_on_before_all_have_run_all_begin_anew),
        cmocka_unit_test(exit_code_of_a_worker_fails_the_job_unless_others_were_lost),
        cmocka_unit_test(worker_that_fails_while_another_is_deleted_does_not_fail_the_job),
        cmocka_unit_test(worker_that_failed_as_another_was_lost_is_made_anew_too),
        cmocka_unit_test(job_is_done_without_a_worker_that_is_deleted_and_never_ends),
        cmocka_unit_test(worker_that_is_deleted_fails_no_job_that_others_have_done),
        cmocka_unit_test(job_over_its_deadline_keeps_pods_as_its_policy_says),
        cmocka_unit_test(scaled_job_goes_on_with_another_number),
        cmocka_unit_test(suspended_job_has_no_pods_and_resumes),
        cmocka_unit_test(what_is_wrong_is_told_in_sentences),
        cmocka_unit_test(memory_missing_anywhere_told_and_nothing_half_made),
        cmocka_unit_test(memory_missing_for_progress_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
