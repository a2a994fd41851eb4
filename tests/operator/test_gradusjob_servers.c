/* SPDX-License-Identifier: Apache-2.0 */

/* GradusJob v1 with parameter servers: what their pods get, when they come and go, and what becomes
 * of a job that loses one. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster.h"

#define JOB                                                                                        \
    "{'model': [{'linear': 10}], 'data': {'file': 'a.csv', 'classes': 10}, 'epochs': 1, "          \
    "'global_batch': 64, 'optimizer': {'kind': 'sgd', 'learning_rate': 0.1}, "                     \
    "'distribution': {'strategy': 'ps'}}"

/* The native job "train" in "lab" with two workers and so many servers; 0: it says nothing. */
static void open_cluster(cluster *c, int servers)
{
    char number[16];
    snprintf(number, sizeof number, "%d", servers);
    open_cluster_with(c, &gr_gradusjob_v1,
                      "{'apiVersion': 'gradus.dev/v1', 'kind': 'GradusJob',"
                      " 'metadata': {'name': 'train', 'namespace': 'lab', 'uid': 'u1'}}");
    set(c->job, "spec.workers.replicas", "2");
    set(c->job, "spec.job", JOB);
    if (servers > 0) {
        set(c->job, "spec.servers.replicas", number);
    }
}

static const json_t *container_of(const cluster *c, const char *pod)
{
    return json_array_get(gr_object_at(find(c, "Pod", pod), "spec.containers"), 0);
}

static const json_t *variable(const cluster *c, const char *pod, const char *name)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(container_of(c, pod), "env"), i, one)
    {
        if (gr_object_is_text(one, "name", name)) {
            return one;
        }
    }
    return NULL;
}

static void assert_variable(const cluster *c, const char *pod, const char *name, const char *value)
{
    assert_string_equal(gr_object_text(variable(c, pod, name), "value"), value);
}

static bool has_word(const cluster *c, const char *pod, const char *word)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(container_of(c, pod), "command"), i, one)
    {
        if (strcmp(json_string_value(one), word) == 0) {
            return true;
        }
    }
    return false;
}

static bool holds(const cluster *c, const char *condition)
{
    return gr_object_holds(gr_object_at(c->job, "status.conditions"), condition);
}

static int64_t of_status(const cluster *c, const char *key)
{
    return gr_object_int(gr_object_at(c->job, "status"), key, 0);
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

/* Somebody deletes it, or an eviction does: it runs on for a while. */
static void mark_as_going(cluster *c, const char *pod)
{
    set(find(c, "Pod", pod), "metadata.deletionTimestamp", "'2026-05-01T10:00:00Z'");
}

static void servers_are_pods_whom_workers_find_by_name(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.gradusImage", "'ours:1'");
    set(c.job, "spec.workers.image", "'mine:1'");
    set(c.job, "spec.servers.resources", "{'limits': {'memory': '2Gi'}}");
    look(&c);
    assert_writes(&c, "create train, create train-gradus, create train-worker-0, create "
                      "train-worker-1, create train-server-0, create train-server-1, status train");
    settle(&c);
    const json_t *pod = find(&c, "Pod", "train-server-1");
    assert_json(gr_object_at(pod, "metadata.labels"),
                "{'training.kubeflow.org/job-name': 'train', "
                "'training.kubeflow.org/operator-name': 'gradusjob-controller', "
                "'training.kubeflow.org/replica-type': 'server', "
                "'training.kubeflow.org/replica-index': '1', 'gradus.dev/workers': '2', "
                "'gradus.dev/servers': '2'}");
    assert_true(gr_object_controlled(pod, "u1"));
    assert_string_equal(gr_object_text(pod, "spec.hostname"), "train-server-1");
    assert_string_equal(gr_object_text(pod, "spec.subdomain"), "train");
    assert_string_equal(gr_object_text(pod, "spec.restartPolicy"), "Never");
    const json_t *init = json_array_get(gr_object_at(pod, "spec.initContainers"), 0);
    assert_string_equal(gr_object_text(init, "image"), "ours:1");
    const json_t *container = container_of(&c, "train-server-1");
    assert_string_equal(gr_object_text(container, "image"), "mine:1");
    assert_json(json_object_get(container, "resources"), "{'limits': {'memory': '2Gi'}}");
    assert_json(json_object_get(container, "ports"),
                "[{'name': 'server', 'containerPort': 29510}]");
    assert_json(json_object_get(container, "command"),
                "['/opt/gradus/gradus', 'server', '--servers', '2', '--number', '1', "
                "'--replicas', '1', '--listen', '$(POD_IP)', '--ports', '29510']");
    assert_json(gr_object_at(variable(&c, "train-server-1", "POD_IP"), "valueFrom"),
                "{'fieldRef': {'fieldPath': 'status.podIP'}}");
    assert_json(gr_object_at(variable(&c, "train-server-1", "GRADUS_SECRET"), "valueFrom"),
                "{'secretKeyRef': {'name': 'train-gradus', 'key': 'token'}}");
    assert_null(variable(&c, "train-server-1", "RANK"));
    assert_variable(&c, "train-worker-1", "GRADUS_SERVERS",
                    "tcp:train-server-0.train:29510,tcp:train-server-1.train:29510");
    assert_variable(&c, "train-worker-1", "GRADUS_SERVERS_TIMEOUT", "24h");
    assert_json(json_object_get(container_of(&c, "train-worker-1"), "ports"),
                "[{'name': 'master', 'containerPort': 29500}, "
                "{'name': 'coordinator', 'containerPort': 29501}]");
    close_cluster(&c);
}

static void template_and_job_file_say_how_servers_run(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 0);
    set(c.job, "spec.job.distribution",
        "{'strategy': 'ps', 'servers': 3, 'server_replicas': 0, 'encrypt': true}");
    settle(&c);
    assert_non_null(find(&c, "Pod", "train-server-2"));
    assert_json(json_object_get(container_of(&c, "train-server-2"), "command"),
                "['gradus', 'server', '--servers', '3', '--number', '2', '--replicas', '0', "
                "'--listen', '$(POD_IP)', '--ports', '29510']");
    assert_variable(&c, "train-server-2", "GRADUS_ENCRYPT", "yes");
    close_cluster(&c);

    open_cluster(&c, 1);
    set(c.job, "spec.servers.template",
        "{'spec': {'nodeSelector': {'a': 'b'}, 'containers': [{'name': 'gradus', 'image': 'x:1',"
        " 'ports': [{'name': 'server', 'containerPort': 4000}]}]}}");
    settle(&c);
    assert_true(has_word(&c, "train-server-0", "4000"));
    assert_variable(&c, "train-worker-0", "GRADUS_SERVERS", "tcp:train-server-0.train:4000");
    assert_json(gr_object_at(find(&c, "Pod", "train-server-0"), "spec.nodeSelector"), "{'a': 'b'}");
    close_cluster(&c);
}

static void command_has_servers_as_well(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.command", "['python3', 'train.py']");
    settle(&c);
    assert_true(has_word(&c, "train-server-1", "server"));
    assert_variable(&c, "train-worker-0", "GRADUS_SERVERS",
                    "tcp:train-server-0.train:29510,tcp:train-server-1.train:29510");
    close_cluster(&c);
}

static void job_runs_once_servers_do_and_counts_them(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    settle(&c);
    set_phase(&c, "train-worker-0", "Running");
    set_phase(&c, "train-worker-1", "Running");
    set_phase(&c, "train-server-0", "Running");
    settle(&c);
    assert_false(holds(&c, "Running"));
    set_phase(&c, "train-server-1", "Running");
    settle(&c);
    assert_true(holds(&c, "Running"));
    assert_int_equal(
        gr_object_int(gr_object_at(c.job, "status.replicaStatuses.Server"), "active", 0), 2);
    assert_int_equal(
        gr_object_int(gr_object_at(c.job, "status.replicaStatuses.Worker"), "active", 0), 2);
    close_cluster(&c);
}

static void pod_group_counts_servers(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    c.gang_scheduler = "coscheduling";
    settle(&c);
    assert_int_equal(
        gr_object_int(gr_object_at(find(&c, "PodGroup", "train"), "spec"), "minMember", 0), 5);
    assert_string_equal(gr_object_text(find(&c, "Pod", "train-server-0"), "spec.schedulerName"),
                        "coscheduling");
    close_cluster(&c);
}

static void server_lost_another_one_takes_its_place_while_the_job_runs(void **state)
{
    (void)state;
    for (int is_deleted = 0; is_deleted < 2; is_deleted++) {
        cluster c;
        open_cluster(&c, 3);
        run_all_pods(&c);
        if (is_deleted) { /* it serves until it is gone */
            mark_as_going(&c, "train-server-0");
            look(&c);
            assert_writes(&c, "");
            remove_object(&c, "Pod", "train-server-0");
        } else {
            end_pod(&c, "train-server-0", 137);
            look(&c);
            assert_writes(&c, "delete train-server-0, status train");
            carry_out(&c);
        }
        look(&c);
        assert_writes(&c, "create train-server-0, status train");
        assert_string_equal(event(&c, 0, "reason"), "GradusJobServerReplaced");
        carry_out(&c);
        assert_true(has_word(&c, "train-server-0", "--replace"));
        assert_variable(&c, "train-server-0", "GRADUS_SERVERS",
                        "tcp:train-server-0.train:29510,tcp:train-server-1.train:29510,"
                        "tcp:train-server-2.train:29510");
        run_all_pods(&c);
        assert_true(holds(&c, "Running") && !holds(&c, "Restarting"));
        assert_int_equal(of_status(&c, "replacedServers"), 1);
        assert_int_equal(of_status(&c, "restarts"), 0);
        assert_false(has_word(&c, "train-server-1", "--replace"));
        close_cluster(&c);
    }
}

static void server_lost_so_often_is_not_replaced_any_more(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 3);
    set(c.job, "spec.runPolicy.backoffLimit", "1");
    run_all_pods(&c);
    for (int times = 1; times <= 4; times++) {
        end_pod(&c, "train-server-1", 137);
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_int_equal(of_status(&c, "replacedServers"), times < 4 ? times : 3);
    }
    remove_object(&c, "Pod", "train-server-1");
    settle(&c);
    assert_null(find(&c, "Pod", "train-server-1"));
    end_pod(&c, "train-worker-0", 0);
    end_pod(&c, "train-worker-1", 0);
    settle(&c);
    assert_true(holds(&c, "Succeeded"));
    close_cluster(&c);
}

/* Who is left cannot agree that the lost one is dead, or has nothing of what it kept. */
static void server_that_others_cannot_do_without_all_begin_anew(void **state)
{
    (void)state;
    static const struct {
        int servers, lost, more;
        const char *distribution;
        bool begins_anew;
    } cases[] = {
        {1, 0, -1, "{'strategy': 'ps'}", true},
        {2, 0, -1, "{'strategy': 'ps'}", true},
        {2, 1, -1, "{'strategy': 'ps'}", false},
        {3, 0, 2, "{'strategy': 'ps'}", true},
        {4, 2, 3, "{'strategy': 'ps'}", false},
        {4, 0, 3, "{'strategy': 'ps'}", true},
        {3, 2, -1, "{'strategy': 'ps', 'server_replicas': 0}", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32];
        cluster c;
        open_cluster(&c, cases[i].servers);
        set(c.job, "spec.job.distribution", cases[i].distribution);
        run_all_pods(&c);
        snprintf(name, sizeof name, "train-server-%d", cases[i].lost);
        end_pod(&c, name, 137);
        if (cases[i].more >= 0) {
            snprintf(name, sizeof name, "train-server-%d", cases[i].more);
            remove_object(&c, "Pod", name);
        }
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_int_equal(of_status(&c, "restarts"), cases[i].begins_anew);
        assert_int_equal(of_status(&c, "replacedServers") > 0, !cases[i].begins_anew);
        assert_false(cases[i].begins_anew && has_word(&c, name, "--replace"));
        close_cluster(&c);
    }
}

static void servers_lost_beyond_the_limit_fail_the_job(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 1);
    set(c.job, "spec.runPolicy.backoffLimit", "1");
    run_all_pods(&c);
    end_pod(&c, "train-server-0", 137);
    look(&c);
    assert_writes(&c, "delete train-worker-0, delete train-worker-1, status train");
    assert_string_equal(event(&c, 2, "message"),
                        "GradusJob train is restarted from its newest checkpoint: 0 of 1 "
                        "parameter servers are left.");
    carry_out(&c);
    run_all_pods(&c);
    end_pod(&c, "train-server-0", 137);
    settle(&c);
    assert_string_equal(
        gr_object_text(gr_object_condition(gr_object_at(c.job, "status.conditions"), "Failed"),
                       "message"),
        "GradusJob train has failed because its parameter servers were lost, after 1 restarts "
        "(spec.runPolicy.backoffLimit).");
    close_cluster(&c);
}

/* Nobody has asked for another number of servers. */
static void workers_gone_all_at_once_count_as_lost(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    set(c.job, "spec.runPolicy.backoffLimit", "1");
    for (int restarts = 0; restarts < 2; restarts++) {
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_int_equal(of_status(&c, "restarts"), restarts);
        remove_object(&c, "Pod", "train-worker-0");
        remove_object(&c, "Pod", "train-worker-1");
        look(&c);
        assert_writes(&c, "delete train-server-0, delete train-server-1, status train");
        carry_out(&c);
        assert_true(holds(&c, restarts == 0 ? "Restarting" : "Failed"));
    }
    close_cluster(&c);
}

static void server_lost_before_all_have_run_all_begin_anew(void **state)
{
    (void)state;
    for (int is_deleted = 0; is_deleted < 2; is_deleted++) {
        cluster c;
        open_cluster(&c, 3);
        settle(&c);
        set_phase(&c, "train-server-1", "Running");
        if (is_deleted) {
            mark_as_going(&c, "train-server-1");
        } else {
            end_pod(&c, "train-server-1", 137);
        }
        look(&c);
        assert_writes(&c, "delete train-worker-0, delete train-worker-1, status train");
        carry_out(&c);
        look(&c);
        assert_writes(&c, is_deleted ? "delete train-server-0, delete train-server-2"
                                     : "delete train-server-0, delete train-server-1, delete "
                                       "train-server-2");
        carry_out(&c);
        remove_object(&c, "Pod", "train-server-1");
        run_all_pods(&c);
        assert_true(holds(&c, "Running"));
        assert_false(has_word(&c, "train-server-1", "--replace"));
        close_cluster(&c);
    }
}

static void server_that_cannot_begin_fails_the_job(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    settle(&c);
    end_pod(&c, "train-server-1", 2);
    settle(&c);
    assert_string_equal(
        gr_object_text(gr_object_condition(gr_object_at(c.job, "status.conditions"), "Failed"),
                       "message"),
        "GradusJob train has failed because 1 parameter server(s) failed.");
    close_cluster(&c);
}

/* They say so when they are left without a block. */
static void workers_that_fail_after_a_server_was_lost_begin_anew(void **state)
{
    (void)state;
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        cluster c;
        open_cluster(&c, 3);
        run_all_pods(&c);
        if (is_lost) {
            end_pod(&c, "train-server-2", 137);
            run_all_pods(&c);
        }
        end_pod(&c, "train-worker-0", 1);
        end_pod(&c, "train-worker-1", 1);
        run_all_pods(&c);
        assert_int_equal(holds(&c, "Failed"), !is_lost);
        assert_int_equal(of_status(&c, "restarts"), is_lost);
        assert_int_equal(of_status(&c, "replacedServers"), 0); /* in this attempt */
        close_cluster(&c);
    }
}

/* They keep what the workers save. */
static void servers_go_once_the_workers_are_gone(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        bool comes_back;
    } cases[] = {{"spec.workers.replicas", "3", true},
                 {"spec.servers.replicas", "3", true},
                 {"spec.servers.replicas", "1", true},
                 {"spec.runPolicy.suspend", "true", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        run_all_pods(&c);
        set(c.job, cases[i].path, cases[i].value);
        look(&c);
        assert_writes(&c, "delete train-worker-0, delete train-worker-1, status train");
        json_object_set(c.job, "status", gr_object_at(written(&c, 2), "status"));
        mark_as_going(&c, "train-worker-0");
        mark_as_going(&c, "train-worker-1");
        remove_object(&c, "Pod", "train-worker-1");
        look(&c);
        assert_writes(&c, "");
        remove_object(&c, "Pod", "train-worker-0");
        look(&c);
        assert_writes(&c, "delete train-server-0, delete train-server-1");
        mark_as_going(&c, "train-server-0");
        remove_object(&c, "Pod", "train-server-1");
        look(&c);
        assert_writes(&c, ""); /* one still goes */
        remove_object(&c, "Pod", "train-server-0");
        run_all_pods(&c);
        assert_int_equal(holds(&c, "Running"), cases[i].comes_back);
        assert_int_equal(find(&c, "Pod", "train-server-0") != NULL, cases[i].comes_back);
        assert_int_equal(of_status(&c, "restarts"), 0);
        close_cluster(&c);
    }
}

static void servers_go_when_the_workers_are_done(void **state)
{
    (void)state;
    static const char *const policies[] = {"'Running'", "'None'", "'All'"};
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        set(c.job, "spec.runPolicy.cleanPodPolicy", policies[i]);
        run_all_pods(&c);
        end_pod(&c, "train-worker-1", 0);
        end_pod(&c, "train-server-1", 137); /* as if by chance at the end */
        end_pod(&c, "train-worker-0", 0);
        settle(&c);
        assert_true(holds(&c, "Succeeded"));
        assert_null(find(&c, "Pod", "train-server-0"));
        assert_int_equal(find(&c, "Pod", "train-worker-0") != NULL, i < 2);
        close_cluster(&c);
    }
}

/* Its node is lost: nobody tells that it has ended. */
static void servers_do_not_stay_for_a_worker_that_is_deleted_and_never_ends(void **state)
{
    (void)state;
    static const char *const policies[] = {"'Running'", "'None'"};
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        cluster c;
        open_cluster(&c, 2);
        set(c.job, "spec.runPolicy.cleanPodPolicy", policies[i]);
        set(c.job, "spec.runPolicy.ttlSecondsAfterFinished", "3600");
        run_all_pods(&c);
        mark_as_going(&c, "train-worker-1");
        end_pod(&c, "train-worker-0", 0);
        settle(&c);
        assert_true(holds(&c, "Succeeded"));
        assert_non_null(find(&c, "Pod", "train-server-0")); /* it may save what they keep */
        assert_int_equal(c.result.again_after_s, 30 + 60);
        c.now = "2026-05-01T10:01:29Z";
        look(&c);
        assert_writes(&c, "");
        c.now = "2026-05-01T10:01:30Z";
        settle(&c);
        assert_null(find(&c, "Pod", "train-server-0"));
        assert_int_equal(c.result.again_after_s, 3600 - 90);
        close_cluster(&c);
    }
}

static void servers_stay_as_long_as_a_worker_of_a_failed_job_runs(void **state)
{
    (void)state;
    cluster c;
    open_cluster(&c, 2);
    run_all_pods(&c);
    end_pod(&c, "train-worker-1", 2);
    look(&c);
    carry_out(&c);
    assert_true(holds(&c, "Failed"));
    look(&c);
    assert_writes(&c, "delete train-worker-0");
    mark_as_going(&c, "train-worker-0");
    look(&c);
    assert_writes(&c, "");
    remove_object(&c, "Pod", "train-worker-0");
    look(&c);
    assert_writes(&c, "delete train-server-0, delete train-server-1");
    close_cluster(&c);
}

static void what_is_wrong_with_servers_is_told_in_sentences(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *sentence;
    } cases[] = {
        {"spec.servers", "3", "spec.servers: Required value: must be required"},
        {"spec.servers.replicas", "0",
         "spec.servers.replicas: Invalid value: 0: must be from 1 to 16"},
        {"spec.servers.replicas", "17", "must be from 1 to 16"},
        {"spec.servers.replicas", "'two'", "spec.servers.replicas: "},
        {"spec.servers.template",
         "{'spec': {'containers': [{'name': 'gradus', 'image': 'b', 'command': ['c']}]}}",
         "spec.servers.template: Forbidden: the container gradus must not have a command beside "
         "spec.servers, which run gradus server"},
        {"spec.servers.template", "{'spec': {'containers': [{'name': 'a', 'image': 'b'}]}}",
         "spec.servers.template.spec.containers: Required value: must have at least one container "
         "with name gradus"},
        {"spec.job.distribution.strategy", "'allreduce'",
         "spec.servers: Forbidden: strategy: allreduce has no use for parameter servers"},
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
    cluster c;
    open_cluster(&c, 0);
    look(&c);
    assert_writes(&c, "");
    assert_non_null(strstr(event(&c, 0, "message"),
                           "spec.servers: Required value: strategy: ps needs parameter servers"));
    close_cluster(&c);
}

static void memory_missing_anywhere_told_and_nothing_half_made(void **state)
{
    (void)state;
    count_allocations();
    cluster c;
    open_cluster(&c, 2);
    json_object_del(gr_object_at(c.job, "spec"), "job");
    set(c.job, "spec.command", "['python3', 'train.py']");
    assert_memory_missing_anywhere_told(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_are_pods_whom_workers_find_by_name),
        cmocka_unit_test(template_and_job_file_say_how_servers_run),
        cmocka_unit_test(command_has_servers_as_well),
        cmocka_unit_test(job_runs_once_servers_do_and_counts_them),
        cmocka_unit_test(pod_group_counts_servers),
        cmocka_unit_test(server_lost_another_one_takes_its_place_while_the_job_runs),
        cmocka_unit_test(server_lost_so_often_is_not_replaced_any_more),
        cmocka_unit_test(server_that_others_cannot_do_without_all_begin_anew),
        cmocka_unit_test(servers_lost_beyond_the_limit_fail_the_job),
        cmocka_unit_test(workers_gone_all_at_once_count_as_lost),
        cmocka_unit_test(server_lost_before_all_have_run_all_begin_anew),
        cmocka_unit_test(server_that_cannot_begin_fails_the_job),
        cmocka_unit_test(workers_that_fail_after_a_server_was_lost_begin_anew),
        cmocka_unit_test(servers_go_once_the_workers_are_gone),
        cmocka_unit_test(servers_go_when_the_workers_are_done),
        cmocka_unit_test(servers_do_not_stay_for_a_worker_that_is_deleted_and_never_ends),
        cmocka_unit_test(servers_stay_as_long_as_a_worker_of_a_failed_job_runs),
        cmocka_unit_test(what_is_wrong_with_servers_is_told_in_sentences),
        cmocka_unit_test(memory_missing_anywhere_told_and_nothing_half_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
