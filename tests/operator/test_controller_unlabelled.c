/* SPDX-License-Identifier: Apache-2.0 */

/* Pods of a job from which somebody takes the label by which pods are watched. */

#include "operator/support_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    cluster k;
    gr_controller *controller;
    gr_controller_time now;
    int64_t wake_us;
    int told[2]; /* events about each pod */
} fixture;

static size_t pods(void)
{
    return cluster_resource("v1", "Pod");
}

static void note_event(fixture *f, const json_t *event)
{
    static const char *const messages[] = {
        "Pod \"train-worker-0\" lacks the label training.kubeflow.org/job-name, by which it is "
        "watched, so that changes of it are seen late; set the label again, or delete it",
        "Pod \"train-worker-1\" lacks the label training.kubeflow.org/job-name, by which it is "
        "watched, so that changes of it are seen late; set the label again, or delete it"};
    for (size_t i = 0; i < 2; i++) {
        f->told[i] += gr_object_is_text(event, "message", messages[i]);
    }
}

/* Does all there is to do for now; lists are none of it. */
static void run(fixture *f)
{
    for (;;) {
        gr_controller_action action;
        gr_diag diag = {0};
        json_t *object = NULL;
        assert_int_equal(gr_controller_next(f->controller, &f->now, &action, &diag), GR_OK);
        if (action.verb == NULL && action.wake_us > f->now.monotonic_us) {
            f->wake_us = action.wake_us;
            return;
        }
        if (action.verb != NULL && strcmp(action.verb, "event") == 0) {
            note_event(f, action.object);
        } else if (action.verb != NULL) {
            assert_string_not_equal(action.verb, "list");
            gr_api_answer answer =
                cluster_call(&f->k, action.verb, action.resource, action.object, &object);
            assert_int_equal(gr_controller_answer(f->controller, action.job, action.write, &f->now,
                                                  answer, object),
                             GR_OK);
            json_decref(object);
        }
    }
}

static void list_all(fixture *f)
{
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        const char *key;
        json_t *object;
        if (gr_controller_uses(f->controller, r)) {
            gr_controller_begin_list(f->controller, r);
            json_object_foreach(f->k.objects[r], key, object)
            {
                assert_int_equal(gr_controller_seen(f->controller, r, object, true), GR_OK);
            }
            assert_int_equal(gr_controller_end_list(f->controller, r, NULL), GR_OK);
        }
    }
}

/* A PyTorchJob with two workers, which run. */
static void open_fixture(fixture *f)
{
    const gr_controller_config config = {
        .kinds = gr_operator_kinds, .cluster_domain = "", .gang_scheduler = "", .jobs_at_once = 1};
    gr_diag diag = {0};
    json_t *answer = NULL;
    json_t *job =
        json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:{s:{s:i, s:{s:{s:[{s:s, s:s}]}}}}}}", "apiVersion",
                  "kubeflow.org/v1", "kind", "PyTorchJob", "metadata", "name", "train", "namespace",
                  "lab", "spec", "pytorchReplicaSpecs", "Worker", "replicas", 2, "template", "spec",
                  "containers", "name", "pytorch", "image", "b");
    *f = (fixture){.now = {.monotonic_us = 1000, .wall_s = 1777629600}};
    cluster_open(&f->k);
    assert_int_equal(gr_controller_create(&config, &f->controller, &diag), GR_OK);
    assert_int_equal(cluster_call(&f->k, "create",
                                  cluster_resource("kubeflow.org/v1", "PyTorchJob"), job, &answer),
                     GR_API_OK);
    json_decref(job);
    json_decref(answer);
    gr_controller_lead(f->controller, true);
    do {
        list_all(f);
        run(f);
    } while (cluster_step(&f->k));
}

/* Gives the pod its label, or takes it away; a watch of pods with the label shows that. */
static void label_pod(fixture *f, const char *name, bool has_label)
{
    const char *label = gr_operator_resources[pods()].selector;
    json_t *answer = NULL, *pod = json_deep_copy(cluster_find(&f->k, pods(), "lab", name));
    json_t *labels = gr_object_at(pod, "metadata.labels");
    if (has_label) {
        json_object_set_new(labels, label, json_string("train"));
    } else {
        json_object_del(labels, label);
    }
    assert_int_equal(cluster_call(&f->k, "update", pods(), pod, &answer), GR_API_OK);
    assert_int_equal(has_label ? gr_controller_seen(f->controller, pods(), answer, false)
                               : gr_controller_gone(f->controller, pods(), answer),
                     GR_OK);
    json_decref(pod);
    json_decref(answer);
}

static void controller_own_pods_without_their_label_are_told_and_asked_for(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    const size_t shown = json_array_size(f.k.history[pods()]);
    label_pod(&f, "train-worker-0", false);
    label_pod(&f, "train-worker-1", false);
    int64_t began_us = f.now.monotonic_us;
    for (int i = 0; i < 20; i++) {
        run(&f);
        assert_true(f.wake_us != INT64_MAX); /* no watch shows what becomes of them */
        f.now.monotonic_us = f.wake_us;
    }
    assert_true(f.now.monotonic_us - began_us > INT64_C(1000000000)); /* seldom */
    assert_int_equal(json_array_size(f.k.history[pods()]), shown + 2);
    assert_true(f.told[0] > 0 && f.told[1] > 0);
    const json_t *job =
        cluster_find(&f.k, cluster_resource("kubeflow.org/v1", "PyTorchJob"), "lab", "train");
    assert_true(gr_object_holds(gr_object_at(job, "status.conditions"), "Running"));
    assert_int_equal(gr_object_int(job, "status.replicaStatuses.Worker.active", 0), 2);
    label_pod(&f, "train-worker-0", true);
    label_pod(&f, "train-worker-1", true);
    for (int i = 0; i < 3; i++) {
        run(&f);
        f.now.monotonic_us = f.wake_us != INT64_MAX ? f.wake_us : f.now.monotonic_us;
    }
    assert_true(f.wake_us == INT64_MAX);
    gr_controller_destroy(f.controller);
    cluster_close(&f.k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controller_own_pods_without_their_label_are_told_and_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
