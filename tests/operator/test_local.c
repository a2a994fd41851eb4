/* SPDX-License-Identifier: Apache-2.0 */

/* The cluster of one process without its processes: the store's answers, batch Jobs, $(NAME), and
 * names that become addresses. */

#include "operator/local/batch.h"
#include "operator/local/names.h"
#include "operator/local/pod_plan.h"
#include "operator/object.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int changes;

static void count_change(void *changed_arg, const json_t *object, bool is_there)
{
    (void)changed_arg;
    (void)object;
    (void)is_there;
    changes++;
}

static gr_store *make_store(void)
{
    gr_store *store = gr_store_create(count_change, NULL);
    assert_non_null(store);
    changes = 0;
    return store;
}

static gr_api_answer ask(gr_store *store, const char *verb, json_t *object)
{
    const json_t *answer;
    gr_api_answer got = gr_store_ask(store, verb, object, &answer);
    json_decref(object);
    assert_false(gr_store_no_memory(store));
    return got;
}

static json_t *object(const char *api_version, const char *kind, const char *name)
{
    return json_pack("{s:s, s:s, s:{s:s, s:s}}", "apiVersion", api_version, "kind", kind,
                     "metadata", "name", name, "namespace", "lab");
}

static const char *uid_of(const gr_store *store, const char *kind, const char *name)
{
    return gr_object_text(gr_store_find(store, "v1", kind, "lab", name), "metadata.uid");
}

static json_t *owned_by(const gr_store *store, json_t *one, const char *kind, const char *name)
{
    json_t *owners = json_pack("[{s:s, s:b}]", "uid", uid_of(store, kind, name), "controller", 1);
    assert_int_equal(
        json_object_set_new(json_object_get(one, "metadata"), "ownerReferences", owners), 0);
    return one;
}

static void store_stale_version_conflict(void **state)
{
    (void)state;
    gr_store *store = make_store();
    assert_int_equal(ask(store, "create", object("v1", "ConfigMap", "a")), GR_API_OK);
    assert_int_equal(ask(store, "create", object("v1", "ConfigMap", "a")), GR_API_EXISTS);
    json_t *seen = json_deep_copy(gr_store_find(store, "v1", "ConfigMap", "lab", "a"));
    assert_int_equal(ask(store, "update", json_deep_copy(seen)), GR_API_OK);
    assert_int_equal(ask(store, "update", seen), GR_API_CONFLICT);
    assert_int_equal(ask(store, "get", object("v1", "ConfigMap", "b")), GR_API_NOT_FOUND);
    assert_int_equal(changes, 2);
    gr_store_destroy(store);
}

static void store_owner_removed_takes_what_it_owns(void **state)
{
    (void)state;
    gr_store *store = make_store();
    ask(store, "create", object("v1", "Service", "owner"));
    ask(store, "create", owned_by(store, object("v1", "ConfigMap", "map"), "Service", "owner"));
    ask(store, "create", owned_by(store, object("v1", "Secret", "deep"), "ConfigMap", "map"));
    ask(store, "create", owned_by(store, object("v1", "Pod", "pod"), "Service", "owner"));
    ask(store, "create", object("v1", "Secret", "other"));
    assert_int_equal(ask(store, "delete", object("v1", "Service", "owner")), GR_API_OK);
    assert_int_equal(json_array_size(gr_store_objects(store)), 2);
    json_t *pod = gr_store_find(store, "v1", "Pod", "lab", "pod"); /* its processes must end */
    assert_non_null(gr_object_text(pod, "metadata.deletionTimestamp"));
    gr_store_remove(store, pod);
    assert_null(gr_store_find(store, "v1", "Pod", "lab", "pod"));
    gr_store_destroy(store);
}

/* ---- Batch Jobs ------------------------------------------------------------------------------ */
static json_t *batch_job(json_t *spec)
{
    json_t *job = object("batch/v1", "Job", "job");
    assert_int_equal(json_object_set_new(spec, "template", json_pack("{s:{}}", "spec")), 0);
    assert_int_equal(json_object_set_new(job, "spec", spec), 0);
    return job;
}

/* The only pod that has not ended, NULL: there is none. */
static json_t *pod_of(gr_store *store)
{
    json_t *found = NULL, *pod;
    size_t i;
    json_array_foreach(gr_store_objects(store), i, pod)
    {
        if (gr_object_is_text(pod, "status.phase", "Pending")) {
            assert_null(found);
            found = pod;
        }
    }
    return found;
}

static int64_t look(gr_store *store, int64_t at_s)
{
    int64_t again_s;
    gr_store_set_time(store, at_s);
    gr_batch_look(store, at_s, &again_s);
    return again_s;
}

static void end_pod(gr_store *store, const char *phase)
{
    json_t *pod = pod_of(store);
    assert_non_null(pod);
    json_t *ended = json_pack("{s:s, s:[{s:{s:{s:s}}}]}", "phase", phase, "containerStatuses",
                              "state", "terminated", "finishedAt", gr_store_now(store));
    gr_store_set_status(store, pod, ended);
}

static const char *ended_as(gr_store *store)
{
    const json_t *job = gr_store_find(store, "batch/v1", "Job", "lab", "job");
    const json_t *conditions = gr_object_at(job, "status.conditions");
    return gr_object_holds(conditions, "Complete") ? "Complete"
           : gr_object_holds(conditions, "Failed")
               ? gr_object_text(gr_object_condition(conditions, "Failed"), "reason")
               : NULL;
}

static void batch_failed_pods_replaced_after_a_pause_that_doubles(void **state)
{
    (void)state;
    gr_store *store = make_store();
    ask(store, "create", batch_job(json_pack("{s:i}", "backoffLimit", 2)));
    int64_t now_s = 1000;
    for (int pause_s = 10; pause_s <= 20; pause_s *= 2) {
        look(store, now_s);
        end_pod(store, "Failed");
        assert_int_equal(look(store, now_s), now_s + pause_s);
        assert_null(pod_of(store));
        now_s += pause_s;
    }
    look(store, now_s);
    end_pod(store, "Failed");
    assert_int_equal(look(store, now_s), INT64_MAX);
    assert_string_equal(ended_as(store), "BackoffLimitExceeded");
    assert_null(pod_of(store));
    gr_store_destroy(store);
}

static void batch_containers_restarted_up_to_the_limit_fail_the_job(void **state)
{
    (void)state;
    static const struct {
        int limit, restarts, of_init;
        const char *policy, *ends;
    } cases[] = {{2, 1, 0, "OnFailure", NULL},
                 {2, 1, 1, "OnFailure", "BackoffLimitExceeded"},
                 {2, 2, 0, "OnFailure", "BackoffLimitExceeded"},
                 {0, 0, 0, "OnFailure", NULL},
                 {0, 1, 0, "OnFailure", "BackoffLimitExceeded"},
                 {1, 2, 0, "Never", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_store *store = make_store();
        json_t *job = batch_job(json_pack("{s:i}", "backoffLimit", cases[i].limit));
        json_object_set_new(gr_object_at(job, "spec.template.spec"), "restartPolicy",
                            json_string(cases[i].policy));
        ask(store, "create", job);
        look(store, 1000);
        gr_store_set_status(store, pod_of(store),
                            json_pack("{s:s, s:[{s:i}], s:[{s:i}]}", "phase", "Running",
                                      "containerStatuses", "restartCount", cases[i].restarts,
                                      "initContainerStatuses", "restartCount", cases[i].of_init));
        look(store, 1001);
        assert_string_equal(ended_as(store) != NULL ? ended_as(store) : "",
                            cases[i].ends != NULL ? cases[i].ends : "");
        gr_store_destroy(store);
    }
}

static void batch_pod_succeeds_job_complete(void **state)
{
    (void)state;
    gr_store *store = make_store();
    ask(store, "create", batch_job(json_object()));
    look(store, 1000);
    assert_null(ended_as(store));
    end_pod(store, "Succeeded");
    look(store, 1001);
    assert_string_equal(ended_as(store), "Complete");
    gr_store_destroy(store);
}

static void batch_deadline_ends_the_pod(void **state)
{
    (void)state;
    gr_store *store = make_store();
    ask(store, "create", batch_job(json_pack("{s:i}", "activeDeadlineSeconds", 5)));
    assert_int_equal(look(store, 1000), 1005);
    assert_int_equal(look(store, 1004), 1005);
    look(store, 1005);
    assert_string_equal(ended_as(store), "DeadlineExceeded");
    assert_non_null(gr_object_text(pod_of(store), "metadata.deletionTimestamp"));
    gr_store_destroy(store);
}

static void batch_suspended_has_no_pod_until_resumed(void **state)
{
    (void)state;
    gr_store *store = make_store();
    ask(store, "create", batch_job(json_pack("{s:b}", "suspend", 1)));
    look(store, 1000);
    assert_null(pod_of(store));
    json_t *job = json_deep_copy(gr_store_find(store, "batch/v1", "Job", "lab", "job"));
    assert_true(gr_object_holds(gr_object_at(job, "status.conditions"), "Suspended"));
    json_object_set_new(json_object_get(job, "spec"), "suspend", json_false());
    assert_int_equal(ask(store, "update", job), GR_API_OK);
    look(store, 1001);
    assert_non_null(pod_of(store));
    job = gr_store_find(store, "batch/v1", "Job", "lab", "job");
    assert_false(gr_object_holds(gr_object_at(job, "status.conditions"), "Suspended"));
    gr_store_destroy(store);
}

/* ---- Texts ----------------------------------------------------------------------------------- */
static void variables_expanded_as_kubernetes_does(void **state)
{
    (void)state;
    char a[] = "A=one", b[] = "B=";
    char *const environment[] = {a, b, NULL};
    static const char *const pairs[][2] = {{"$(A)", "one"},        {"x$(A)$(A)y", "xoneoney"},
                                           {"$(B)|", "|"},         {"$(C)", "$(C)"},
                                           {"$$(A)", "$(A)"},      {"$$$(A)", "$one"},
                                           {"$A $", "$A $"},       {"$(A", "$(A"},
                                           {"${A} $(", "${A} $("}, {"", ""}};
    gr_arena arena;
    gr_arena_init(&arena, 1 << 16);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_string_equal(gr_pod_expand(&arena, pairs[i][0], environment), pairs[i][1]);
    }
    gr_arena_fini(&arena);
}

static void names_whole_ones_of_pods_replaced(void **state)
{
    (void)state;
    static const char hosts[] = "127.0.0.1 localhost\n10.0.0.1 other\n"
                                "127.70.1.1 train-master-0 train-master-0.lab.svc\n"
                                "127.70.1.2 train-worker-1\n";
    static const char *const pairs[][2] = {
        {"MASTER_ADDR=train-master-0", "MASTER_ADDR=127.70.1.1"},
        {"X={\"a\":[\"train-master-0.lab.svc:2222\",\"train-worker-1:1\"]}",
         "X={\"a\":[\"127.70.1.1:2222\",\"127.70.1.2:1\"]}"},
        {"X=train-worker-10 localhost other", "X=train-worker-10 localhost other"},
        {"", ""}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char *replaced = gr_names_replace(hosts, pairs[i][0]);
        assert_string_equal(replaced, pairs[i][1]);
        free(replaced);
    }
}

/* ---- Addresses ------------------------------------------------------------------------------- */
static gr_names *make_names(void)
{
    char path[] = "/tmp/gradus-names-XXXXXX", file[64];
    gr_names *names = NULL;
    gr_diag diag = {0};
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof file, "%s/hosts", path);
    assert_int_equal(gr_names_create(file, "cluster.local", &names, &diag), GR_OK);
    (void)unlink(file);
    (void)rmdir(path);
    return names;
}

/* Two runs whose process ids are the same to each other, as in two containers of one network: each
 * pod of both has an address that no other has, also where they need several nets. */
static void names_of_two_runs_with_one_process_id_have_addresses_of_their_own(void **state)
{
    (void)state;
    enum { RUNS = 2, PODS = 300 };
    gr_names *names[RUNS] = {make_names(), make_names()};
    json_t *seen = json_object();
    gr_diag diag = {0};
    for (int i = 0; i < PODS * RUNS; i++) {
        char pod[32], address[GR_ADDRESS_OF_POD_BYTES], again[GR_ADDRESS_OF_POD_BYTES];
        snprintf(pod, sizeof pod, "pod-%d", i / RUNS);
        gr_names *its = names[i % RUNS];
        assert_int_equal(gr_names_address(its, "lab", pod, address, &diag), GR_OK);
        assert_int_equal(gr_names_address(its, "lab", pod, again, &diag), GR_OK);
        assert_string_equal(address, again);
        assert_int_equal(strncmp(address, "127.", 4), 0);
        assert_null(json_object_get(seen, address));
        json_object_set_new(seen, address, json_true());
    }
    json_decref(seen);
    for (int i = 0; i < RUNS; i++) {
        gr_names_destroy(names[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_stale_version_conflict),
        cmocka_unit_test(store_owner_removed_takes_what_it_owns),
        cmocka_unit_test(batch_failed_pods_replaced_after_a_pause_that_doubles),
        cmocka_unit_test(batch_containers_restarted_up_to_the_limit_fail_the_job),
        cmocka_unit_test(batch_pod_succeeds_job_complete),
        cmocka_unit_test(batch_deadline_ends_the_pod),
        cmocka_unit_test(batch_suspended_has_no_pod_until_resumed),
        cmocka_unit_test(variables_expanded_as_kubernetes_does),
        cmocka_unit_test(names_whole_ones_of_pods_replaced),
        cmocka_unit_test(names_of_two_runs_with_one_process_id_have_addresses_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
