/* SPDX-License-Identifier: Apache-2.0 */

/* What is cut out of texts before they are parsed: nothing that is kept of the object after it. */

#include "operator/cut.h"
#include "operator/object.h"
#include "operator/pack.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state;

static size_t draw(size_t below)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (size_t)((z ^ (z >> 31)) % below);
}

static const gr_operator_resource *resource(const char *api_version, const char *kind)
{
    return &gr_operator_resources[gr_operator_resource_find(api_version, kind)];
}

/* What is left of the text; the caller frees it. */
static char *cut(const gr_operator_resource *r, const char *text)
{
    char *copy = strdup(text);
    copy[gr_operator_resource_cut(r, copy, strlen(copy))] = '\0';
    return copy;
}

static void expect_cut(const gr_operator_resource *r, const char *text, const char *expected)
{
    char *left = cut(r, text);
    assert_string_equal(left, expected);
    free(left);
}

static void cut_pod_leaves_what_is_kept(void **state)
{
    (void)state;
    const gr_operator_resource *pods = resource("v1", "Pod");
    expect_cut(pods,
               "{\"metadata\": {\"managedFields\": [{\"a\": \"}]\\\"\"}], \"name\": \"a\"},"
               " \"spec\": {\"volumes\": [], \"restartPolicy\": \"Never\", \"x\": 1.5},\n"
               " \"status\": {\"phase\": \"Running\", \"podIP\": \"10.0.0.1\", \"conditions\": "
               "[{\"type\": \"Ready\", \"status\": \"True\", \"lastProbeTime\": null}, {}]}}",
               "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"restartPolicy\":\"Never\"},\"status\":"
               "{\"phase\":\"Running\",\"podIP\":\"10.0.0.1\",\"conditions\":[{\"type\":\"Ready\","
               "\"status\":\"True\"},"
               "{}]}}");
    expect_cut(pods,
               "{\"type\":\"ADDED\",\"object\":{\"spec\":{\"nodeName\":\"n\"},\"kind\":\"Pod\"}}",
               "{\"type\":\"ADDED\",\"object\":{\"spec\":{},\"kind\":\"Pod\"}}");
    expect_cut(
        pods,
        "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"message\":\"old\"}}",
        "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"message\":\"old\"}}");
}

static void cut_other_loses_managed_fields(void **state)
{
    (void)state;
    expect_cut(
        resource("v1", "ConfigMap"),
        "{\"metadata\":{\"name\":\"a\",\"managedFields\":[{}],\"uid\":\"u\"},\"data\":{\"b\":"
        "\"c\"}}",
        "{\"metadata\":{\"name\":\"a\",\"uid\":\"u\"},\"data\":{\"b\":\"c\"}}");
    expect_cut(resource("autoscaling/v2", "HorizontalPodAutoscaler"),
               "{\"spec\":{\"maxReplicas\":2},\"status\":{\"desiredReplicas\":1}}",
               "{\"spec\":{\"maxReplicas\":2}}");
}

/* The parser tells that it is none. */
static void cut_text_that_is_no_json_stays_none(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "{\"metadata\"",
                                        "{\"metadata\":",
                                        "{\"spec\":{\"a\":1",
                                        "{\"kind\" \"Pod\"}",
                                        "{\"kind\":\"Pod\"",
                                        "{\"kind\":\"Po",
                                        "{\"kind\":\"Pod\",}",
                                        "{kind:1}",
                                        "{\"kind\":}",
                                        "{\"a\":\"\\"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *left = cut(resource("v1", "Pod"), texts[i]);
        assert_null(json_loads(left, 0, NULL));
        free(left);
    }
}

static json_t *random_value(int depth)
{
    static const char *const keys[] = {"metadata", "managedFields",     "status",
                                       "spec",     "conditions",        "name",
                                       "labels",   "containerStatuses", "state",
                                       "waiting",  "terminated",        "training.kubeflow.org/x",
                                       "type"};
    static const char *const texts[] = {"",
                                        "Ready",
                                        "True",
                                        "PodScheduled",
                                        "a\"b\\",
                                        "}{][,:",
                                        "\xc3\xa9 \xf0\x9f\x98\x80",
                                        "00112233-4455-6677-8899-aabbccddeeff",
                                        "00112233-4455-6677-8899-AABBCCDDEEFF",
                                        "2026-05-01T10:00:00Z",
                                        "2026-05-01T10:00:00z",
                                        "2026-99-01T10:00:00Z",
                                        "9999-15-31T31:63:63Z"};
    char text[64];
    json_t *value;
    switch (draw(depth > 0 ? 8 : 6)) {
    case 0:
        return json_string(texts[draw(sizeof texts / sizeof texts[0])]);
    case 1:
        snprintf(text, sizeof text, "text %zu", draw(40));
        return json_string(text);
    case 2:
        return json_integer(draw(2) == 0 ? (json_int_t)draw(200) - 100
                                         : (draw(2) == 0 ? INT64_MIN : INT64_MAX));
    case 3:
        return json_real((double)draw(1000) / 7);
    case 4:
        return json_boolean(draw(2));
    case 5:
        return json_null();
    case 6:
        value = json_array();
        for (size_t i = draw(5); i > 0; i--) {
            json_array_append_new(value, random_value(depth - 1));
        }
        return value;
    default:
        value = json_object();
        for (size_t i = draw(9); i > 0; i--) {
            json_object_set_new(value, keys[draw(sizeof keys / sizeof keys[0])],
                                random_value(depth - 1));
        }
        return value;
    }
}

static void cut_random_object_trims_to_the_same(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        random_state = seed;
        const gr_operator_resource *r = &gr_operator_resources[draw(gr_operator_resource_count)];
        json_t *object = random_value(6);
        char *text =
            json_dumps(object, JSON_ENCODE_ANY | (draw(2) ? JSON_INDENT(2) : JSON_COMPACT));
        char *left = cut(r, text);
        json_t *after = json_loads(left, JSON_DECODE_ANY, NULL);
        assert_non_null(after);
        json_t *a = gr_operator_resource_trim(r, object), *b = gr_operator_resource_trim(r, after);
        if (!json_equal(a, b) && !(a == NULL && b == NULL)) {
            fail_msg("seed %" PRIu64 ": of %s\nis left %s", seed, text, left);
        }
        json_decref(a);
        json_decref(b);
        json_decref(object);
        json_decref(after);
        free(text);
        free(left);
    }
}

static void pack_random_value_comes_back_the_same(void **state)
{
    (void)state;
    gr_packer *packer = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_packer_create(&packer, &diag), GR_OK);
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        random_state = seed;
        json_t *value = random_value(7);
        size_t bytes = 0;
        const unsigned char *packed = gr_pack(packer, value, &bytes);
        assert_non_null(packed);
        unsigned char *copy = memcpy(malloc(bytes), packed, bytes);
        json_t *back = gr_unpack(packer, copy, bytes);
        if (!json_equal(value, back)) {
            fail_msg("seed %" PRIu64, seed);
        }
        json_decref(back);
        size_t some = draw(bytes);
        assert_null(gr_unpack(packer, copy, some)); /* cut short */
        copy[some] ^= (unsigned char)(1 + draw(255));
        json_decref(gr_unpack(packer, copy, bytes)); /* whatever it is */
        free(copy);
        json_decref(value);
    }
    gr_packer_destroy(packer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_pod_leaves_what_is_kept),
        cmocka_unit_test(cut_other_loses_managed_fields),
        cmocka_unit_test(cut_text_that_is_no_json_stays_none),
        cmocka_unit_test(cut_random_object_trims_to_the_same),
        cmocka_unit_test(pack_random_value_comes_back_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
