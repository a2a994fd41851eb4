/* SPDX-License-Identifier: Apache-2.0 */

/* What the operator keeps of an object, and how it packs it. */

#include "operator/pack.h"
#include "operator/support_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void pack_value_comes_back_the_same(void **state)
{
    (void)state;
    gr_packer *packer = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_packer_create(&packer, &diag), GR_OK);
    json_t *job =
        json_pack("{s:s, s:{s:s, s:s}, s:{s:[{s:s, s:i}]}}", "kind", "MPIJob", "metadata", "name",
                  "train", "namespace", "lab", "spec", "roles", "image", "b", "replicas", 2);
    json_t *large = json_array();
    for (int i = 0; i < 10000; i++) {
        json_array_append_new(large, json_integer(i * 7919));
    }
    json_object_set_new(job, "large", large);
    size_t bytes = 0;
    const unsigned char *packed = gr_pack(packer, job, &bytes);
    assert_non_null(packed);
    json_t *back = gr_unpack(packer, packed, bytes);
    assert_true(json_equal(job, back));
    json_decref(back);
    assert_null(gr_unpack(packer, packed, bytes / 2)); /* cut short */
    json_decref(job);
    gr_packer_destroy(packer);
}

/* No secret stays in memory. */
static void resource_trim_keeps_no_secret_and_no_status_of_scalers(void **state)
{
    (void)state;
    json_t *secret = json_pack("{s:{s:s, s:s, s:[]}, s:{s:s}}", "metadata", "name", "a",
                               "namespace", "lab", "managedFields", "data", "ssh-privatekey", "x");
    size_t secrets = cluster_resource("v1", "Secret");
    json_t *trimmed = gr_operator_resource_trim(&gr_operator_resources[secrets], secret);
    assert_string_equal(gr_object_text(trimmed, "data.ssh-privatekey"), "");
    assert_null(gr_object_at(trimmed, "metadata.managedFields"));
    assert_string_equal(gr_object_text(secret, "data.ssh-privatekey"), "x"); /* borrowed */
    json_decref(trimmed);
    json_decref(secret);
    size_t scalers = cluster_resource("autoscaling/v2", "HorizontalPodAutoscaler");
    json_t *scaler = json_pack("{s:{s:s}, s:{s:i}, s:{s:i}}", "metadata", "name", "a", "spec",
                               "maxReplicas", 3, "status", "currentReplicas", 2);
    trimmed = gr_operator_resource_trim(&gr_operator_resources[scalers], scaler);
    assert_int_equal(gr_object_int(trimmed, "spec.maxReplicas", 0), 3);
    assert_null(gr_object_at(trimmed, "status"));
    json_decref(trimmed);
    json_decref(scaler);
}

static void expect_trimmed_pod(const char *pod, const char *expected)
{
    json_t *object = json_loads(pod, 0, NULL);
    assert_non_null(object);
    size_t pods = cluster_resource("v1", "Pod");
    json_t *trimmed = gr_operator_resource_trim(&gr_operator_resources[pods], object);
    char *text = json_dumps(trimmed, JSON_COMPACT);
    assert_string_equal(text, expected);
    free(text);
    json_decref(trimmed);
    json_decref(object);
}

static void resource_trimmed_pod_has_what_reconcilers_read(void **state)
{
    (void)state;
    expect_trimmed_pod(
        "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\",\"labels\":{"
        "\"team\":\"x\",\"training.kubeflow.org/job-name\":\"j\"}},\"spec\":{\"restartPolicy\":"
        "\"Never\",\"containers\":[]},\"status\":{\"phase\":\"Failed\",\"reason\":\"Evicted\","
        "\"conditions\":[{\"type\":\"Ready\",\"status\":\"False\",\"reason\":\"r\"},{\"type\":"
        "\"Initialized\",\"status\":\"True\"},{\"type\":\"PodScheduled\",\"status\":\"True\"}],"
        "\"containerStatuses\":[{\"name\":\"c\",\"restartCount\":0,\"imageID\":\"sha\","
        "\"state\":{\"terminated\":{\"exitCode\":130,\"reason\":\"Error\",\"message\":\"no "
        "route\",\"containerID\":\"x\"}}},{\"name\":\"s\",\"state\":{\"terminated\":{"
        "\"exitCode\":0,\"reason\":\"Completed\",\"message\":\"bye\"}}},{\"name\":\"d\","
        "\"restartCount\":2,\"state\":{\"running\":{}}}]}}",
        "{\"metadata\":{\"name\":\"a\",\"labels\":{\"training.kubeflow.org/job-name\":\"j\"}},"
        "\"spec\":{\"restartPolicy\":\"Never\"},\"status\":{\"phase\":\"Failed\",\"reason\":"
        "\"Evicted\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"False\"}],"
        "\"containerStatuses\":[{\"name\":\"c\",\"state\":{\"terminated\":{\"exitCode\":130,"
        "\"reason\":\"Error\",\"message\":\"no route\"}}},{\"name\":\"s\",\"state\":{"
        "\"terminated\":{\"exitCode\":0}}},{\"name\":\"d\",\"restartCount\":2}]}}");
    expect_trimmed_pod(
        "{\"metadata\":{\"name\":\"a\"},\"spec\":{},\"status\":{\"phase\":\"Pending\","
        "\"conditions\":[{\"type\":\"PodScheduled\",\"status\":\"False\",\"reason\":"
        "\"Unschedulable\",\"message\":\"no node\",\"lastProbeTime\":null}],"
        "\"initContainerStatuses\":[{\"name\":\"i\",\"ready\":false,\"restartCount\":1,\"state\":"
        "{\"waiting\":{\"reason\":\"CrashLoopBackOff\",\"message\":\"back-off\"}}}],"
        "\"containerStatuses\":[{\"name\":\"c\",\"restartCount\":0,\"state\":{\"waiting\":"
        "{\"reason\":\"PodInitializing\"}}}]}}",
        "{\"metadata\":{\"name\":\"a\",\"labels\":{}},\"spec\":{},\"status\":{\"phase\":"
        "\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\",\"status\":\"False\",\"reason\":"
        "\"Unschedulable\",\"message\":\"no node\"}],\"initContainerStatuses\":[{\"name\":\"i\","
        "\"restartCount\":1,\"state\":{\"waiting\":{\"reason\":\"CrashLoopBackOff\",\"message\":"
        "\"back-off\"}}}]}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_value_comes_back_the_same),
        cmocka_unit_test(resource_trim_keeps_no_secret_and_no_status_of_scalers),
        cmocka_unit_test(resource_trimmed_pod_has_what_reconcilers_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
