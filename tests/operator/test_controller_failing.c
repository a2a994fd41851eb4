/* SPDX-License-Identifier: Apache-2.0 */

/* A job that cannot be looked at, beside one that can. */

#include "operator/support_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static gr_status fail_to_look(const gr_operator_view *view, gr_operator_result *result_out,
                              gr_diag *diag)
{
    (void)view;
    (void)result_out;
    strcpy(diag->text, "no look at this one");
    return GR_E_NO_MEMORY;
}

static void submit(cluster *k, gr_controller *controller, const char *kind, const char *specs,
                   const char *container)
{
    json_t *answer = NULL;
    json_t *job = json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:{s:{s:{s:{s:[{s:s, s:s}]}}}}}}",
                            "apiVersion", "kubeflow.org/v1", "kind", kind, "metadata", "name",
                            container, "namespace", "lab", "spec", specs, "Worker", "template",
                            "spec", "containers", "name", container, "image", "b");
    size_t resource = cluster_resource("kubeflow.org/v1", kind);
    assert_int_equal(cluster_call(k, "create", resource, job, &answer), GR_API_OK);
    assert_int_equal(gr_controller_seen(controller, resource, answer, false), GR_OK);
    json_decref(job);
    json_decref(answer);
}

static void controller_job_that_cannot_be_looked_at_waits_alone(void **state)
{
    (void)state;
    gr_operator_kind failing = gr_pytorchjob_v1;
    failing.reconcile = fail_to_look;
    const gr_operator_kind *const kinds[] = {&failing, &gr_tfjob_v1, NULL};
    const gr_controller_config config = {
        .kinds = kinds, .cluster_domain = "", .gang_scheduler = "", .jobs_at_once = 1};
    gr_controller_time now = {.monotonic_us = 1000, .wall_s = 1777629600};
    gr_diag diag = {0};
    cluster k;
    gr_controller *controller = NULL;
    cluster_open(&k);
    assert_int_equal(gr_controller_create(&config, &controller, &diag), GR_OK);
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        if (gr_controller_uses(controller, r)) {
            gr_controller_begin_list(controller, r);
            assert_int_equal(gr_controller_end_list(controller, r, NULL), GR_OK);
        }
    }
    submit(&k, controller, "PyTorchJob", "pytorchReplicaSpecs", "pytorch");
    submit(&k, controller, "TFJob", "tfReplicaSpecs", "tensorflow");
    gr_controller_lead(controller, true);
    int failures = 0;
    for (gr_controller_action action = {0}; failures < 5;) {
        assert_int_equal(gr_controller_next(controller, &now, &action, &diag), GR_OK);
        if (action.has_failed) {
            failures++;
            assert_string_equal(diag.text, "no look at this one");
        } else if (action.job != NULL) {
            json_t *object = NULL;
            gr_api_answer answer =
                cluster_call(&k, action.verb, action.resource, action.object, &object);
            assert_int_equal(
                gr_controller_answer(controller, action.job, action.write, &now, answer, object),
                GR_OK);
            json_decref(object);
        } else if (action.verb == NULL && action.wake_us > now.monotonic_us) {
            assert_int_equal(action.wake_us - now.monotonic_us, 5000 << (failures - 1));
            now.monotonic_us = action.wake_us;
        }
    }
    assert_int_equal(json_object_size(k.objects[cluster_resource("v1", "Pod")]), 1);
    gr_controller_destroy(controller);
    cluster_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controller_job_that_cannot_be_looked_at_waits_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
