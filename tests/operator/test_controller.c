/* SPDX-License-Identifier: Apache-2.0 */

/* The loop of the operator, step by step: order of writes, what it does when one fails, what it
 * keeps, and what it counts. */

#include "operator/support_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    cluster k;
    gr_controller *controller;
    gr_controller_time now;
    json_t *events;
    int64_t wake_us;
} fixture;

static json_t *given_key(void *arg)
{
    (void)arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "cHJpdmF0ZQ==", "ssh-publickey", "cHVibGlj");
}

static json_t *given_token(void *arg)
{
    (void)arg;
    return json_pack("{s:s}", "token", "MDE=");
}

/* A job of training-operator with two workers. */
static json_t *new_training_job(const char *kind, const char *specs, const char *container)
{
    json_t *job = json_pack(
        "{s:s, s:s, s:{s:s, s:s}, s:{s:{s:i}, s:{s:{s:i, s:{s:{s:[{s:s, s:s}]}}}}}}", "apiVersion",
        "kubeflow.org/v1", "kind", kind, "metadata", "name", "train", "namespace", "lab", "spec",
        "runPolicy", "ttlSecondsAfterFinished", 60, specs, "Worker", "replicas", 2, "template",
        "spec", "containers", "name", container, "image", "b");
    assert_non_null(job);
    return job;
}

static json_t *new_job(const char *name)
{
    json_t *container = json_pack("{s:[{s:s, s:s}]}", "containers", "name", "a", "image", "b");
    json_t *job =
        json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:{s:{s:{s:O}}, s:{s:i, s:{s:O}}}}}", "apiVersion",
                  "kubeflow.org/v2beta1", "kind", "MPIJob", "metadata", "name", name, "namespace",
                  "lab", "spec", "mpiReplicaSpecs", "Launcher", "template", "spec", container,
                  "Worker", "replicas", 2, "template", "spec", container);
    assert_non_null(job);
    json_decref(container);
    return job;
}

static void show_all(fixture *f)
{
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        const char *key;
        json_t *object;
        if (!gr_controller_uses(f->controller, r)) {
            continue;
        }
        gr_controller_begin_list(f->controller, r);
        json_object_foreach(f->k.objects[r], key, object)
        {
            assert_int_equal(gr_controller_seen(f->controller, r, object, true), GR_OK);
        }
        assert_int_equal(gr_controller_end_list(f->controller, r, NULL), GR_OK);
    }
}

/* Without jobs. */
static void open_empty_with(fixture *f, int writes_at_once)
{
    gr_diag diag = {0};
    gr_controller_config config = {.kinds = gr_operator_kinds,
                                   .cluster_domain = "",
                                   .gang_scheduler = "",
                                   .ssh_key = given_key,
                                   .token = given_token,
                                   .jobs_at_once = 1,
                                   .writes_at_once = writes_at_once,
                                   .ask_every_us = 15000000,
                                   .asks_a_second = 100};
    *f = (fixture){.now = {.monotonic_us = 1000, .wall_s = 1777629600}, .events = json_array()};
    cluster_open(&f->k);
    assert_int_equal(gr_controller_create(&config, &f->controller, &diag), GR_OK);
}

static void open_empty(fixture *f)
{
    open_empty_with(f, 0);
}

/* Takes the job over. */
static void submit(fixture *f, json_t *job)
{
    json_t *answer = NULL;
    size_t resource =
        cluster_resource(gr_object_text(job, "apiVersion"), gr_object_text(job, "kind"));
    assert_int_equal(cluster_call(&f->k, "create", resource, job, &answer), GR_API_OK);
    json_decref(job);
    json_decref(answer);
}

static void open_fixture(fixture *f)
{
    open_empty(f);
    submit(f, new_job("train"));
}

static void close_fixture(fixture *f)
{
    gr_controller_destroy(f->controller);
    cluster_close(&f->k);
    json_decref(f->events);
}

/* The next action that is not an event; events are kept. */
static gr_controller_action next(fixture *f)
{
    gr_controller_action action;
    gr_diag diag = {0};
    for (;;) {
        assert_int_equal(gr_controller_next(f->controller, &f->now, &action, &diag), GR_OK);
        if (action.verb != NULL && strcmp(action.verb, "event") == 0) {
            json_array_append(f->events, (json_t *)action.object);
        } else if (action.verb != NULL || action.wake_us > f->now.monotonic_us) {
            f->wake_us = action.wake_us;
            return action;
        }
    }
}

static gr_api_answer carry_out(fixture *f, const gr_controller_action *action)
{
    json_t *object = NULL;
    gr_api_answer answer =
        cluster_call(&f->k, action->verb, action->resource, action->object, &object);
    assert_int_equal(
        gr_controller_answer(f->controller, action->job, action->write, &f->now, answer, object),
        GR_OK);
    json_decref(object);
    return answer;
}

/* Carries out all there is to do for now. */
static void run(fixture *f)
{
    for (gr_controller_action action; (action = next(f)).verb != NULL;) {
        (void)carry_out(f, &action);
    }
}

/* Lists and looks, until nothing moves. */
static void live(fixture *f)
{
    do {
        show_all(f);
        run(f);
    } while (cluster_step(&f->k));
}

static const char *last_reason(const fixture *f)
{
    size_t count = json_array_size(f->events);
    return count > 0 ? gr_object_text(json_array_get(f->events, count - 1), "reason") : "";
}

static void expect(const gr_controller_action *action, const char *verb, const char *kind)
{
    assert_non_null(action->verb);
    assert_string_equal(action->verb, verb);
    assert_string_equal(gr_operator_resources[action->resource].kind, kind);
}

static void controller_before_lists_or_leadership_writes_nothing(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    gr_controller_lead(f.controller, true);
    assert_null(next(&f).verb);
    show_all(&f);
    gr_controller_lead(f.controller, false);
    assert_null(next(&f).verb);
    gr_controller_lead(f.controller, true);
    gr_controller_action action = next(&f);
    expect(&action, "create", "Service");
    gr_controller_lead(f.controller, false); /* what is on its way ends, and no more begins */
    (void)carry_out(&f, &action);
    assert_null(next(&f).verb);
    assert_int_equal(json_object_size(f.k.objects[cluster_resource("v1", "ConfigMap")]), 0);
    close_fixture(&f);
}

static void controller_of_a_new_job_writes_in_order(void **state)
{
    (void)state;
    static const char *const kinds[] = {"Service", "ConfigMap", "Secret", "Pod", "Pod", "Job"};
    fixture f;
    open_fixture(&f);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        gr_controller_action action = next(&f);
        expect(&action, "create", kinds[i]);
        assert_null(next(&f).verb); /* one at a time */
        (void)carry_out(&f, &action);
    }
    gr_controller_action action = next(&f);
    expect(&action, "status", "MPIJob");
    assert_int_equal(json_array_size(f.events), 0); /* told when all is written */
    (void)carry_out(&f, &action);
    run(&f);
    assert_string_equal(last_reason(&f), "MPIJobCreated");
    assert_true(f.wake_us == INT64_MAX);
    close_fixture(&f);
}

/* What can be made at the same time, of a new job, by `kinds`; nothing else begins until all of it
 * is answered, the last one first. */
static void expect_together(fixture *f, const char *const *kinds, size_t count)
{
    gr_controller_action actions[8];
    for (size_t i = 0; i < count; i++) {
        actions[i] = next(f);
        expect(&actions[i], "create", kinds[i]);
    }
    for (size_t i = count; i-- > 0;) {
        assert_null(next(f).verb);
        assert_int_equal(carry_out(f, &actions[i]), GR_API_OK);
    }
}

static void open_with_workers(fixture *f, int writes_at_once, int workers)
{
    open_empty_with(f, writes_at_once);
    json_t *job = new_job("train");
    json_object_set_new(gr_object_at(job, "spec.mpiReplicaSpecs.Worker"), "replicas",
                        json_integer(workers));
    submit(f, job);
    show_all(f);
    gr_controller_lead(f->controller, true);
}

static void controller_makes_objects_together_that_do_not_need_each_other(void **state)
{
    (void)state;
    static const char *const parts[] = {"Service", "ConfigMap", "Secret"}, *const job[] = {"Job"};
    fixture f;
    open_with_workers(&f, 4, 6);
    expect_together(&f, parts, 3);
    gr_controller_action four[4];
    for (int i = 0; i < 4; i++) {
        four[i] = next(&f);
        expect(&four[i], "create", "Pod");
    }
    assert_null(next(&f).verb); /* of six, no more than four */
    (void)carry_out(&f, &four[2]);
    gr_controller_action fifth = next(&f);
    expect(&fifth, "create", "Pod");
    assert_null(next(&f).verb);
    for (int i = 0; i < 4; i++) {
        if (i != 2) {
            (void)carry_out(&f, &four[i]);
        }
    }
    gr_controller_action sixth = next(&f);
    expect(&sixth, "create", "Pod");
    (void)carry_out(&f, &sixth);
    assert_null(next(&f).verb); /* the batch Job, once all pods are made */
    (void)carry_out(&f, &fifth);
    expect_together(&f, job, 1);
    gr_controller_action action = next(&f);
    expect(&action, "status", "MPIJob");
    (void)carry_out(&f, &action);
    run(&f);
    assert_string_equal(last_reason(&f), "MPIJobCreated");
    assert_int_equal(json_object_size(f.k.objects[cluster_resource("v1", "Pod")]), 6);
    close_fixture(&f);
}

static void controller_after_a_failure_awaits_what_is_on_its_way(void **state)
{
    (void)state;
    static const char *const kinds[] = {"Pod", "Pod"};
    fixture f;
    open_with_workers(&f, 2, 2);
    gr_controller_action service = next(&f), config_map = next(&f);
    expect(&service, "create", "Service");
    expect(&config_map, "create", "ConfigMap");
    json_t *status = json_pack("{s:s}", "message", "exceeded quota: services=0");
    assert_int_equal(gr_controller_answer(f.controller, service.job, service.write, &f.now,
                                          GR_API_REFUSED, status),
                     GR_OK);
    json_decref(status);
    assert_null(next(&f).verb); /* no Secret: there is room, but a creation was refused */
    assert_int_equal(json_array_size(f.events), 1);
    assert_true(f.wake_us == INT64_MAX);
    assert_int_equal(carry_out(&f, &config_map), GR_API_OK);
    gr_controller_action job = next(&f);
    expect(&job, "status", "MPIJob");
    assert_int_equal(carry_out(&f, &job), GR_API_OK);
    gr_controller_action again = next(&f), secret = next(&f); /* at once: something has changed */
    expect(&again, "create", "Service");
    expect(&secret, "create", "Secret");
    (void)carry_out(&f, &again);
    (void)carry_out(&f, &secret);
    expect_together(&f, kinds, 2);
    run(&f);
    assert_string_equal(last_reason(&f), "MPIJobCreated");
    close_fixture(&f);
}

static void controller_that_leads_no_more_begins_nothing_beside_what_is_on_its_way(void **state)
{
    (void)state;
    fixture f;
    open_with_workers(&f, 2, 2);
    gr_controller_action service = next(&f);
    expect(&service, "create", "Service");
    gr_controller_lead(f.controller, false);
    assert_null(next(&f).verb);
    assert_int_equal(carry_out(&f, &service), GR_API_OK);
    assert_null(next(&f).verb);
    gr_controller_lead(f.controller, true);
    gr_controller_action action = next(&f);
    expect(&action, "create", "ConfigMap");
    (void)carry_out(&f, &action);
    run(&f);
    assert_string_equal(last_reason(&f), "MPIJobCreated");
    close_fixture(&f);
}

static void controller_after_failures_waits_longer_each_time(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    for (int64_t wait_us = 5000; wait_us <= 1000000000; wait_us *= 2) {
        gr_controller_action action = next(&f);
        expect(&action, "create", "Service");
        assert_int_equal(gr_controller_answer(f.controller, action.job, action.write, &f.now,
                                              GR_API_FAILED, NULL),
                         GR_OK);
        assert_null(next(&f).verb);
        assert_int_equal(f.wake_us - f.now.monotonic_us, wait_us);
        f.now.monotonic_us = f.wake_us;
    }
    run(&f);
    assert_string_equal(last_reason(&f), "MPIJobCreated");
    close_fixture(&f);
}

/* Carries out all there is to do, but refuses to create the object of that name. Returns how many
 * times it did. */
static int run_refusing(fixture *f, const char *kind, const char *name)
{
    int refused = 0;
    for (gr_controller_action action; (action = next(f)).verb != NULL;) {
        if (strcmp(action.verb, "create") == 0 &&
            strcmp(gr_operator_resources[action.resource].kind, kind) == 0 &&
            gr_object_is_text(action.object, "metadata.name", name)) {
            assert_int_equal(gr_controller_answer(f->controller, action.job, action.write, &f->now,
                                                  GR_API_REFUSED, NULL),
                             GR_OK);
            refused++;
        } else {
            (void)carry_out(f, &action);
        }
    }
    return refused;
}

static bool has_event(const fixture *f, const char *message)
{
    size_t i;
    const json_t *event;
    json_array_foreach(f->events, i, event)
    {
        if (gr_object_is_text(event, "message", message)) {
            return true;
        }
    }
    return false;
}

static const json_t *job_of(const fixture *f, const char *api_version, const char *kind)
{
    return cluster_find(&f->k, cluster_resource(api_version, kind), "lab", "train");
}

static void controller_refused_creation_tells_the_job(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    gr_controller_action action = next(&f);
    json_t *status = json_pack("{s:s}", "message", "exceeded quota: services=0");
    assert_int_equal(gr_controller_answer(f.controller, action.job, action.write, &f.now,
                                          GR_API_REFUSED, status),
                     GR_OK);
    json_decref(status);
    action = next(&f);
    expect(&action, "status", "MPIJob"); /* of what else there is to make, nothing */
    (void)carry_out(&f, &action);
    const json_t *job = job_of(&f, "kubeflow.org/v2beta1", "MPIJob");
    assert_non_null(gr_object_text(job, "status.startTime"));
    assert_true(gr_object_holds(gr_object_at(job, "status.conditions"), "Created"));
    assert_int_equal(run_refusing(&f, "Service", "train"), 1); /* no status: it is so already */
    assert_int_equal(f.wake_us - f.now.monotonic_us, 10000);
    assert_true(has_event(&f, "MPIJob lab/train is created."));
    const json_t *event = json_array_get(f.events, 0);
    assert_string_equal(gr_object_text(event, "reason"), "MPIJobFailed");
    assert_string_equal(gr_object_text(event, "message"),
                        "Service train is not created: exceeded quota: services=0");
    assert_non_null(gr_object_text(event, "involvedObject.uid"));
    close_fixture(&f);
}

static void controller_behind_a_refused_creation_deletes_and_tells_what_was_made(void **state)
{
    (void)state;
    fixture f;
    open_empty(&f);
    json_t *job = new_training_job("TFJob", "tfReplicaSpecs", "tensorflow");
    json_t *worker = gr_object_at(job, "spec.tfReplicaSpecs.Worker");
    json_object_set_new(worker, "restartPolicy", json_string("ExitCode"));
    submit(&f, job);
    gr_controller_lead(f.controller, true);
    show_all(&f);
    assert_int_equal(run_refusing(&f, "Pod", "train-worker-1"), 2);
    assert_true(has_event(&f, "Created pod: train-worker-0"));
    assert_true(has_event(&f, "Created service: train-worker-0"));
    assert_false(has_event(&f, "Created pod: train-worker-1"));
    assert_false(has_event(&f, "Created service: train-worker-1"));
    f.now.monotonic_us = f.wake_us;
    json_array_clear(f.events);
    live(&f);
    assert_true(has_event(&f, "Created pod: train-worker-1"));
    /* Worker 0 is gone, and its creation is refused; worker 1 has failed and is to go. */
    size_t pods = cluster_resource("v1", "Pod");
    json_t *pod = json_deep_copy(cluster_find(&f.k, pods, "lab", "train-worker-0"));
    json_object_set_new(json_object_get(pod, "metadata"), "resourceVersion", json_string("9000"));
    assert_int_equal(gr_controller_gone(f.controller, pods, pod), GR_OK);
    json_decref(pod);
    pod = json_deep_copy(cluster_find(&f.k, pods, "lab", "train-worker-1"));
    json_object_set_new(json_object_get(pod, "metadata"), "resourceVersion", json_string("9001"));
    json_object_set_new(pod, "status",
                        json_pack("{s:s, s:[{s:s, s:{s:{s:i}}}]}", "phase", "Failed",
                                  "containerStatuses", "name", "tensorflow", "state", "terminated",
                                  "exitCode", 137));
    assert_int_equal(gr_controller_seen(f.controller, pods, pod, false), GR_OK);
    json_decref(pod);
    json_array_clear(f.events);
    assert_true(run_refusing(&f, "Pod", "train-worker-0") > 0);
    assert_true(has_event(&f, "Deleted pod: train-worker-1"));
    assert_true(gr_object_holds(
        gr_object_at(job_of(&f, "kubeflow.org/v1", "TFJob"), "status.conditions"), "Restarting"));
    close_fixture(&f);
}

/* A Service of somebody else is not in the cache: the API server tells, and the event is the
 * reference's. Once the Service is gone, all goes on. */
static void controller_object_of_another_in_the_way_is_told_and_retried(void **state)
{
    (void)state;
    fixture f;
    json_t *answer = NULL;
    open_fixture(&f);
    json_t *service = json_pack("{s:s, s:s, s:{s:s, s:s}}", "apiVersion", "v1", "kind", "Service",
                                "metadata", "name", "train", "namespace", "lab");
    size_t services = cluster_resource("v1", "Service");
    (void)cluster_call(&f.k, "create", services, service, &answer);
    json_decref(answer);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    gr_controller_action action = next(&f);
    expect(&action, "create", "Service");
    assert_int_equal(carry_out(&f, &action), GR_API_EXISTS);
    action = next(&f);
    expect(&action, "get", "Service");
    (void)carry_out(&f, &action);
    for (int i = 0; i < 8; i++) {
        run(&f);
        f.now.monotonic_us = f.wake_us;
    }
    assert_int_equal(json_array_size(f.k.history[services]), 1);
    assert_string_equal(last_reason(&f), "ErrResourceExists");
    (void)cluster_call(&f.k, "delete", services, service, &answer);
    json_decref(answer);
    json_decref(service);
    for (int i = 0; i < 2; i++) {
        run(&f);
        f.now.monotonic_us = f.wake_us != INT64_MAX ? f.wake_us : f.now.monotonic_us;
    }
    assert_int_equal(json_object_size(f.k.objects[cluster_resource("v1", "Pod")]), 2);
    assert_true(f.wake_us == INT64_MAX);
    close_fixture(&f);
}

/* The cache has missed that the Service is there: its creation finds it. */
static void controller_with_a_stale_cache_creates_nothing_twice(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    gr_controller_action action = next(&f);
    json_t *object = NULL;
    size_t services = cluster_resource("v1", "Service");
    (void)cluster_call(&f.k, "create", services, action.object, &object);
    json_decref(object); /* the answer is lost */
    assert_int_equal(
        gr_controller_answer(f.controller, action.job, action.write, &f.now, GR_API_FAILED, NULL),
        GR_OK);
    for (int i = 0; i < 3; i++) {
        run(&f);
        f.now.monotonic_us = f.wake_us != INT64_MAX ? f.wake_us : f.now.monotonic_us;
    }
    assert_int_equal(json_array_size(f.k.history[services]), 1);
    assert_string_equal(last_reason(&f), "MPIJobCreated");
    close_fixture(&f);
}

/* An event that is older than others, about an object that is not there, asks for a list. */
static void controller_event_of_the_past_asks_for_a_list(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    run(&f);
    size_t pods = cluster_resource("v1", "Pod");
    json_t *pod = json_deep_copy(cluster_find(&f.k, pods, "lab", "train-worker-0"));
    json_object_set_new(json_object_get(pod, "metadata"), "resourceVersion", json_string("9000"));
    assert_int_equal(gr_controller_gone(f.controller, pods, pod), GR_OK);
    json_object_set_new(json_object_get(pod, "metadata"), "resourceVersion", json_string("8000"));
    assert_int_equal(gr_controller_seen(f.controller, pods, pod, false), GR_OK);
    json_decref(pod);
    gr_controller_action action = next(&f);
    expect(&action, "list", "Pod");
    assert_null(action.job);
    close_fixture(&f);
}

/* The API server removes a pod that has ended at once. Its answer has the version of the removal,
 * and a deletionTimestamp, as that of a pod that takes time to end. */
static void controller_answer_about_what_a_watch_has_shown_gone_asks_for_a_list(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    show_all(&f);
    gr_controller_lead(f.controller, true);
    run(&f);
    size_t pods = cluster_resource("v1", "Pod");
    json_t *job = json_deep_copy(
        cluster_find(&f.k, cluster_resource("kubeflow.org/v2beta1", "MPIJob"), "lab", "train"));
    json_object_set_new(json_object_get(job, "metadata"), "resourceVersion", json_string("9000"));
    json_object_set_new(
        json_object_get(json_object_get(json_object_get(job, "spec"), "mpiReplicaSpecs"), "Worker"),
        "replicas", json_integer(1));
    assert_int_equal(gr_controller_seen(f.controller,
                                        cluster_resource("kubeflow.org/v2beta1", "MPIJob"), job,
                                        false),
                     GR_OK);
    gr_controller_action action = next(&f);
    while (action.verb != NULL && strcmp(action.verb, "delete") != 0) {
        (void)carry_out(&f, &action);
        action = next(&f);
    }
    expect(&action, "delete", "Pod");
    json_t *pod = json_deep_copy(
        cluster_find(&f.k, pods, "lab", gr_object_text(action.object, "metadata.name")));
    json_t *metadata = json_object_get(pod, "metadata");
    json_object_set_new(metadata, "resourceVersion", json_string("9001"));
    json_object_set_new(metadata, "deletionTimestamp", json_string("2026-05-01T10:00:00Z"));
    assert_int_equal(gr_controller_gone(f.controller, pods, pod), GR_OK);
    assert_int_equal(
        gr_controller_answer(f.controller, action.job, action.write, &f.now, GR_API_OK, pod),
        GR_OK);
    bool is_listed = false;
    while (!is_listed && (action = next(&f)).verb != NULL) {
        is_listed = strcmp(action.verb, "list") == 0 && action.resource == pods;
        if (!is_listed) {
            (void)carry_out(&f, &action);
        }
    }
    assert_true(is_listed);
    json_decref(job);
    json_decref(pod);
    close_fixture(&f);
}

/* A native job with one worker. */
static json_t *new_gradus_job(void)
{
    json_t *job = json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:{s:i}, s:{s:{s:s}}}}", "apiVersion",
                            "gradus.dev/v1", "kind", "GradusJob", "metadata", "name", "train",
                            "namespace", "lab", "spec", "workers", "replicas", 1, "jobFrom",
                            "configMapKeyRef", "name", "a");
    assert_non_null(job);
    return job;
}

/* Until its worker runs, at this address. */
static void run_gradus_job(fixture *f, const char *address)
{
    size_t pods = cluster_resource("v1", "Pod");
    open_empty(f);
    submit(f, new_gradus_job());
    show_all(f);
    gr_controller_lead(f->controller, true);
    run(f);
    json_t *pod = json_deep_copy(cluster_find(&f->k, pods, "lab", "train-worker-0"));
    json_object_set_new(json_object_get(pod, "metadata"), "resourceVersion", json_string("9000"));
    json_object_set_new(pod, "status",
                        json_pack("{s:s, s:s}", "phase", "Running", "podIP", address));
    assert_int_equal(gr_controller_seen(f->controller, pods, pod, false), GR_OK);
    json_decref(pod);
    run(f);
}

/* One worker of three is lost: that it is replaced counts once another one is made. */
static void controller_counts_pods_replaced_when_they_are_made(void **state)
{
    (void)state;
    fixture f;
    json_t *job = new_gradus_job(), *workers = gr_object_at(job, "spec.workers"), *answer = NULL;
    size_t pods = cluster_resource("v1", "Pod");
    open_empty(&f);
    json_object_set_new(workers, "replicas", json_integer(3));
    json_object_set_new(workers, "minReplicas", json_integer(1));
    submit(&f, job);
    gr_controller_lead(f.controller, true);
    live(&f);
    const json_t *pod = cluster_find(&f.k, pods, "lab", "train-worker-2");
    assert_int_equal(cluster_call(&f.k, "delete", pods, pod, &answer), GR_API_OK);
    json_decref(answer);
    while (cluster_step(&f.k)) {
    }
    assert_null(cluster_find(&f.k, pods, "lab", "train-worker-2"));
    show_all(&f);
    for (int i = 0; i < 3; i++) {
        assert_true(run_refusing(&f, "Pod", "train-worker-2") > 0);
        job = (json_t *)job_of(&f, "gradus.dev/v1", "GradusJob");
        assert_true(gr_object_holds(gr_object_at(job, "status.conditions"), "Running"));
        assert_null(gr_object_at(job, "status.replaced"));
        f.now.monotonic_us = f.wake_us;
    }
    run(&f);
    job = (json_t *)job_of(&f, "gradus.dev/v1", "GradusJob");
    assert_int_equal(gr_object_int(job, "status.replaced", 0), 1);
    close_fixture(&f);
}

static void tell(fixture *f, const gr_question *question, const char *text)
{
    size_t size_bytes = text != NULL ? strlen(text) : 0;
    assert_int_equal(
        gr_controller_answered(f->controller, question, f->now.monotonic_us, text, size_bytes),
        GR_OK);
}

static bool ask(fixture *f, gr_question *question_out)
{
    int64_t wake_us;
    return gr_controller_ask(f->controller, f->now.monotonic_us, question_out, &wake_us);
}

static void controller_asks_only_while_it_leads(void **state)
{
    (void)state;
    fixture f;
    gr_question question;
    run_gradus_job(&f, "10.0.0.7");
    gr_controller_lead(f.controller, false);
    assert_false(ask(&f, &question));
    gr_controller_lead(f.controller, true);
    assert_true(ask(&f, &question));
    assert_string_equal(question.address, "10.0.0.7");
    assert_int_equal(question.port, 29502);
    assert_false(ask(&f, &question));
    close_fixture(&f); /* while an answer is awaited */
}

static void controller_answer_of_a_worker_is_written_once(void **state)
{
    (void)state;
    fixture f;
    gr_question question;
    run_gradus_job(&f, "10.0.0.7");
    assert_true(ask(&f, &question));
    tell(&f, &question, "{\"step\": 5}");
    gr_controller_action action = next(&f);
    expect(&action, "status", "GradusJob");
    assert_int_equal(gr_object_int(action.object, "status.progress.step", 0), 5);
    /* A write that fails is made again by the next look. */
    assert_int_equal(
        gr_controller_answer(f.controller, action.job, action.write, &f.now, GR_API_FAILED, NULL),
        GR_OK);
    assert_null(next(&f).verb);
    f.now.monotonic_us = f.wake_us;
    action = next(&f);
    expect(&action, "status", "GradusJob");
    assert_int_equal(gr_object_int(action.object, "status.progress.step", 0), 5);
    (void)carry_out(&f, &action);
    run(&f);
    static const char *const nothing_new[] = {"{\"step\": 5}", NULL, "nonsense"};
    for (size_t i = 0; i < sizeof nothing_new / sizeof nothing_new[0]; i++) {
        f.now.monotonic_us += 15000000;
        assert_true(ask(&f, &question));
        tell(&f, &question, nothing_new[i]);
        assert_null(next(&f).verb);
    }
    close_fixture(&f);
}

static void controller_answer_about_a_job_that_is_gone_is_dropped(void **state)
{
    (void)state;
    fixture f;
    gr_question question;
    size_t jobs = cluster_resource("gradus.dev/v1", "GradusJob");
    run_gradus_job(&f, "10.0.0.7");
    assert_true(ask(&f, &question));
    json_t *job = json_deep_copy(cluster_find(&f.k, jobs, "lab", "train"));
    assert_int_equal(gr_controller_gone(f.controller, jobs, job), GR_OK);
    run(&f);
    tell(&f, &question, "{\"step\": 5}");
    assert_null(next(&f).verb);
    json_decref(job);
    close_fixture(&f);
}

static bool is_read(const gr_controller *controller, const char *api_version, const char *kind)
{
    return gr_controller_uses(controller, cluster_resource(api_version, kind));
}

static gr_controller *controller_of(const gr_operator_kind *const *kinds, const char *scheduler)
{
    gr_diag diag = {0};
    gr_controller *controller = NULL;
    gr_controller_config config = {
        .kinds = kinds, .cluster_domain = "", .gang_scheduler = scheduler, .jobs_at_once = 1};
    assert_int_equal(gr_controller_create(&config, &controller, &diag), GR_OK);
    return controller;
}

/* Rights are given for what is read. */
static void controller_reads_what_its_kinds_own(void **state)
{
    (void)state;
    static const char rbac[] = "rbac.authorization.k8s.io/v1";
    static const gr_operator_kind *const tf[] = {&gr_tfjob_v1, NULL};
    static const gr_operator_kind *const mpi[] = {&gr_mpijob_v1, &gr_mpijob_v2, NULL};
    gr_controller *c = controller_of(tf, "");
    assert_true(is_read(c, "kubeflow.org/v1", "TFJob"));
    assert_true(is_read(c, "v1", "Pod") && is_read(c, "v1", "Service"));
    assert_false(is_read(c, "kubeflow.org/v1", "PyTorchJob"));
    assert_false(is_read(c, "v1", "Secret") || is_read(c, "v1", "ConfigMap"));
    assert_false(is_read(c, "autoscaling/v2", "HorizontalPodAutoscaler"));
    assert_false(is_read(c, "scheduling.k8s.io/v1", "PriorityClass"));
    gr_controller_destroy(c);
    c = controller_of(mpi, "volcano");
    assert_true(is_read(c, "kubeflow.org/v1", "MPIJob") && is_read(c, rbac, "Role"));
    assert_true(is_read(c, "scheduling.volcano.sh/v1beta1", "PodGroup"));
    assert_true(is_read(c, "scheduling.k8s.io/v1", "PriorityClass"));
    assert_false(is_read(c, "kubeflow.org/v2beta1", "MPIJob")); /* the same jobs once more */
    assert_false(is_read(c, "v1", "Secret") || is_read(c, "batch/v1", "Job"));
    assert_false(is_read(c, "scheduling.x-k8s.io/v1alpha1", "PodGroup"));
    gr_controller_destroy(c);
    c = controller_of(gr_operator_kinds, "coscheduling");
    assert_true(is_read(c, "kubeflow.org/v2beta1", "MPIJob"));
    assert_true(is_read(c, "autoscaling/v2", "HorizontalPodAutoscaler"));
    assert_true(is_read(c, "scheduling.x-k8s.io/v1alpha1", "PodGroup"));
    assert_false(is_read(c, rbac, "RoleBinding"));
    gr_controller_destroy(c);
}

static const char *owner_of(const json_t *object)
{
    json_t *owners = gr_object_at(object, "metadata.ownerReferences");
    return gr_object_text(json_array_get(owners, 0), "kind");
}

/* Both want the pod train-worker-0. The one that comes second waits, counts no pod of the other,
 * takes none away, and gets its own once the other is gone. */
static void controller_jobs_of_one_name_leave_each_other_in_peace(void **state)
{
    (void)state;
    fixture f;
    open_empty(&f);
    size_t pods = cluster_resource("v1", "Pod");
    size_t tf = cluster_resource("kubeflow.org/v1", "TFJob");
    size_t pytorch = cluster_resource("kubeflow.org/v1", "PyTorchJob");
    submit(&f, new_training_job("TFJob", "tfReplicaSpecs", "tensorflow"));
    gr_controller_lead(f.controller, true);
    live(&f);
    submit(&f, new_training_job("PyTorchJob", "pytorchReplicaSpecs", "pytorch"));
    live(&f);
    f.now.monotonic_us = f.wake_us;
    live(&f);
    assert_string_equal(last_reason(&f), "ErrResourceExists");
    const json_t *job = cluster_find(&f.k, pytorch, "lab", "train");
    assert_false(gr_object_holds(gr_object_at(job, "status.conditions"), "Running"));
    assert_null(gr_object_at(job, "status.replicaStatuses.Worker.active"));
    assert_int_equal(json_object_size(f.k.objects[pods]), 2);
    assert_string_equal(owner_of(cluster_find(&f.k, pods, "lab", "train-worker-0")), "TFJob");
    cluster_edit(&f.k, pytorch, "lab", "train", "spec.runPolicy.suspend", json_true());
    live(&f);
    assert_int_equal(json_object_size(f.k.objects[pods]), 2);
    cluster_edit(&f.k, pytorch, "lab", "train", "spec.runPolicy.suspend", json_false());
    json_t *answer = NULL;
    (void)cluster_call(&f.k, "delete", tf, cluster_find(&f.k, tf, "lab", "train"), &answer);
    json_decref(answer);
    for (int i = 0; i < 3; i++) {
        live(&f);
        f.now.monotonic_us = f.wake_us != INT64_MAX ? f.wake_us : f.now.monotonic_us;
    }
    assert_string_equal(owner_of(cluster_find(&f.k, pods, "lab", "train-worker-0")), "PyTorchJob");
    job = cluster_find(&f.k, pytorch, "lab", "train");
    assert_int_equal(gr_object_int(job, "status.replicaStatuses.Worker.active", 0), 2);
    close_fixture(&f);
}

static void controller_job_goes_when_its_time_to_live_is_over(void **state)
{
    (void)state;
    fixture f;
    open_empty(&f);
    size_t tf = cluster_resource("kubeflow.org/v1", "TFJob");
    submit(&f, new_training_job("TFJob", "tfReplicaSpecs", "tensorflow"));
    gr_controller_lead(f.controller, true);
    live(&f);
    f.k.may_end = true;
    live(&f);
    assert_int_equal(json_object_size(f.k.objects[tf]), 1);
    assert_int_equal(f.wake_us - f.now.monotonic_us, 60000000);
    f.now.monotonic_us = f.wake_us;
    f.now.wall_s += 60;
    gr_controller_action action = next(&f);
    expect(&action, "delete", "TFJob");
    assert_non_null(gr_object_text(action.object, "metadata.uid")); /* not one that came since */
    (void)carry_out(&f, &action);
    live(&f);
    const json_t *event = json_array_get(f.events, json_array_size(f.events) - 1);
    assert_string_equal(gr_object_text(event, "message"), "Deleted job: train");
    assert_non_null(gr_object_text(event, "involvedObject.uid"));
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        assert_int_equal(json_object_size(f.k.objects[r]), 0);
    }
    assert_true(f.wake_us == INT64_MAX);
    char *text = gr_controller_metrics(f.controller, 0);
    assert_non_null(strstr(text, "training_operator_jobs_deleted_total{job_namespace=\"lab\","
                                 "framework=\"tensorflow\"} 1\n"));
    free(text);
    close_fixture(&f);
}

/* A job that cannot be made is looked at less and less often, but not later than its deadline. */
static void controller_keeps_a_deadline_through_failures(void **state)
{
    (void)state;
    fixture f;
    open_empty(&f);
    json_t *job = new_training_job("TFJob", "tfReplicaSpecs", "tensorflow");
    json_object_set_new(gr_object_at(job, "spec.runPolicy"), "activeDeadlineSeconds",
                        json_integer(300));
    submit(&f, job);
    gr_controller_lead(f.controller, true);
    show_all(&f);
    int64_t begin_us = f.now.monotonic_us, begin_s = f.now.wall_s;
    do {
        (void)run_refusing(&f, "Pod", "train-worker-0");
        assert_true(f.wake_us > f.now.monotonic_us);
        f.now.monotonic_us = f.wake_us;
        f.now.wall_s = begin_s + (f.wake_us - begin_us) / 1000000;
        assert_true(f.now.wall_s <= begin_s + 300);
    } while (f.now.wall_s < begin_s + 300);
    (void)run_refusing(&f, "Pod", "train-worker-0");
    assert_true(gr_object_holds(
        gr_object_at(job_of(&f, "kubeflow.org/v1", "TFJob"), "status.conditions"), "Failed"));
    close_fixture(&f);
}

static void controller_counts_and_tells_metrics(void **state)
{
    (void)state;
    fixture f;
    size_t count = 0;
    open_fixture(&f);
    gr_controller_lead(f.controller, true);
    f.k.may_end = true;
    live(&f);
    char *text = gr_controller_metrics(f.controller, 0);
    assert_non_null(text);
    assert_non_null(strstr(text, "\nmpi_operator_jobs_created_total 1\n"));
    assert_non_null(strstr(text, "\nmpi_operator_jobs_successful_total 1\n"));
    assert_non_null(strstr(text, "\nmpi_operator_jobs_failed_total 0\n"));
    assert_non_null(strstr(text, "\nmpi_operator_is_leader 1\n"));
    assert_non_null(
        strstr(text, "\nmpi_operator_job_info{launcher=\"train-launcher\",namespace=\"lab\"} 1\n"));
    free(text);
    const gr_controller_counts *counts = gr_controller_counted(f.controller, &count);
    assert_int_equal(count, 1);
    assert_string_equal(counts[0].space, "lab");
    close_fixture(&f);
}

static void controller_counts_where_a_watch_is_quicker_than_the_answer(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    gr_controller_lead(f.controller, true);
    show_all(&f);
    for (gr_controller_action action; (action = next(&f)).verb != NULL;) {
        json_t *object = NULL;
        gr_api_answer answer =
            cluster_call(&f.k, action.verb, action.resource, action.object, &object);
        assert_int_equal(gr_controller_seen(f.controller, action.resource, object, false), GR_OK);
        assert_int_equal(
            gr_controller_answer(f.controller, action.job, action.write, &f.now, answer, object),
            GR_OK);
        json_decref(object);
    }
    char *text = gr_controller_metrics(f.controller, 0);
    assert_non_null(strstr(text, "\nmpi_operator_jobs_created_total 1\n"));
    free(text);
    close_fixture(&f);
}

/* Each look makes some; that they are there begins the next one. */
static void controller_of_a_job_of_many_pods_makes_all(void **state)
{
    (void)state;
    for (int writes_at_once = 0; writes_at_once <= 8; writes_at_once += 8) {
        fixture f;
        open_empty_with(&f, writes_at_once);
        json_t *job = new_training_job("TFJob", "tfReplicaSpecs", "tensorflow");
        json_object_set_new(gr_object_at(job, "spec.tfReplicaSpecs.Worker"), "replicas",
                            json_integer(100));
        submit(&f, job);
        show_all(&f);
        gr_controller_lead(f.controller, true);
        run(&f);
        assert_int_equal(json_object_size(f.k.objects[cluster_resource("v1", "Pod")]), 100);
        assert_int_equal(json_object_size(f.k.objects[cluster_resource("v1", "Service")]), 100);
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controller_before_lists_or_leadership_writes_nothing),
        cmocka_unit_test(controller_of_a_new_job_writes_in_order),
        cmocka_unit_test(controller_makes_objects_together_that_do_not_need_each_other),
        cmocka_unit_test(controller_after_a_failure_awaits_what_is_on_its_way),
        cmocka_unit_test(controller_that_leads_no_more_begins_nothing_beside_what_is_on_its_way),
        cmocka_unit_test(controller_after_failures_waits_longer_each_time),
        cmocka_unit_test(controller_refused_creation_tells_the_job),
        cmocka_unit_test(controller_behind_a_refused_creation_deletes_and_tells_what_was_made),
        cmocka_unit_test(controller_counts_pods_replaced_when_they_are_made),
        cmocka_unit_test(controller_keeps_a_deadline_through_failures),
        cmocka_unit_test(controller_object_of_another_in_the_way_is_told_and_retried),
        cmocka_unit_test(controller_with_a_stale_cache_creates_nothing_twice),
        cmocka_unit_test(controller_event_of_the_past_asks_for_a_list),
        cmocka_unit_test(controller_answer_about_what_a_watch_has_shown_gone_asks_for_a_list),
        cmocka_unit_test(controller_reads_what_its_kinds_own),
        cmocka_unit_test(controller_jobs_of_one_name_leave_each_other_in_peace),
        cmocka_unit_test(controller_job_goes_when_its_time_to_live_is_over),
        cmocka_unit_test(controller_counts_and_tells_metrics),
        cmocka_unit_test(controller_counts_where_a_watch_is_quicker_than_the_answer),
        cmocka_unit_test(controller_asks_only_while_it_leads),
        cmocka_unit_test(controller_answer_of_a_worker_is_written_once),
        cmocka_unit_test(controller_answer_about_a_job_that_is_gone_is_dropped),
        cmocka_unit_test(controller_of_a_job_of_many_pods_makes_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
