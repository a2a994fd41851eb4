/* SPDX-License-Identifier: Apache-2.0 */

/* The loop of the operator against a cluster in memory that disturbs it: watches that stop, lose,
 * repeat and swap events, an API server that is away or answers into nothing, conflicts, two
 * operators of which one leads and each may be started anew at any moment, and a clock that steps.
 * What is left in the end must be what an undisturbed run leaves.
 *
 *     test_operator_controller_chaos [SEEDS [FIRST]] */

#include "operator/support_cluster.h"

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

enum {
    SEEDS = 200,
    SCRIPTS = 5,
    JOBS = 6,
    TICK_US = 20000,
    DISTURBED_TICKS = 250,
    TICKS_MAX = 20000,
    CALLS_MAX = 16,
    QUIET_TICKS = 4,
};

static long seeds = SEEDS, first_seed = 1;

typedef struct call {
    gr_controller_job *job; /* NULL: a free place */
    char *verb;
    size_t resource;
    json_t *object;
    int ticks;    /* until it is carried out */
    int answered; /* ticks until the answer comes, once it is */
    gr_api_answer answer;
    json_t *result;
} call;

/* Of one resource. */
typedef struct watcher {
    size_t position;  /* in the history */
    char version[24]; /* of the list */
    json_t *list;     /* what is still to be listed, NULL: it watches */
    size_t listed;
    bool is_lost; /* events are missed until it lists anew */
} watcher;

typedef struct instance {
    gr_controller *controller;
    watcher watchers[RESOURCES_MAX];
    call calls[CALLS_MAX];
    int64_t wake_us;
} instance;

typedef struct world {
    cluster k;
    instance operators[2];
    int leader; /* -1: none */
    bool is_disturbed, is_away;
    uint64_t random;
    int64_t now_us, wall_step_s;
    json_t *edits; /* of users: {"tick", "job", "path", "value"} */
    long events;
} world;

static uint64_t draw(world *w, uint64_t below)
{
    uint64_t z = (w->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

/* Once in `times`, while it is disturbed. */
static bool happens(world *w, uint64_t times)
{
    return w->is_disturbed && draw(w, times) == 0;
}

static json_t *given_key(void *arg)
{
    (void)arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "cHJpdmF0ZQ==", "ssh-publickey", "cHVibGlj");
}

/* ---- Operators ------------------------------------------------------------------------------- */
static void begin_list(world *w, instance *o, size_t r)
{
    watcher *at = &o->watchers[r];
    const char *key;
    json_t *object;
    json_decref(at->list);
    *at = (watcher){.list = json_array(), .position = json_array_size(w->k.history[r])};
    snprintf(at->version, sizeof at->version, "%" PRIu64, w->k.version);
    json_object_foreach(w->k.objects[r], key, object)
    {
        json_array_append(at->list, object);
    }
    gr_controller_begin_list(o->controller, r);
}

static void start_operator(world *w, instance *o)
{
    gr_diag diag = {0};
    gr_controller_config config = {.kinds = gr_operator_kinds,
                                   .cluster_domain = "",
                                   .gang_scheduler = "",
                                   .ssh_key = given_key,
                                   .jobs_at_once = 3};
    *o = (instance){.wake_us = 0};
    assert_int_equal(gr_controller_create(&config, &o->controller, &diag), GR_OK);
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        if (gr_controller_uses(o->controller, r)) {
            begin_list(w, o, r);
        }
    }
    gr_controller_lead(o->controller, o == &w->operators[0] ? w->leader == 0 : w->leader == 1);
}

static void free_call(call *one)
{
    free(one->verb);
    json_decref(one->object);
    json_decref(one->result);
    *one = (call){0};
}

/* What is on its way may still arrive. */
static void stop_operator(world *w, instance *o)
{
    for (size_t i = 0; i < CALLS_MAX; i++) {
        call *one = &o->calls[i];
        if (one->job != NULL && one->answered == 0 && draw(w, 2) == 0) {
            (void)cluster_call(&w->k, one->verb, one->resource, one->object, &one->result);
        }
        free_call(one);
    }
    for (size_t r = 0; r < RESOURCES_MAX; r++) {
        json_decref(o->watchers[r].list);
    }
    gr_controller_destroy(o->controller);
    o->controller = NULL;
}

/* ---- Watches --------------------------------------------------------------------------------- */
static void show(world *w, instance *o, size_t r, size_t position)
{
    const json_t *event = json_array_get(w->k.history[r], position);
    const json_t *object = json_object_get(event, "object");
    bool is_gone = strcmp(gr_object_text(event, "type"), "DELETED") == 0;
    gr_status status = is_gone ? gr_controller_gone(o->controller, r, object)
                               : gr_controller_seen(o->controller, r, object, false);
    assert_int_equal(status, GR_OK);
    o->wake_us = 0;
}

static bool list_some(world *w, instance *o, size_t r)
{
    watcher *at = &o->watchers[r];
    size_t some = w->is_disturbed ? draw(w, 4) : 1000;
    for (size_t i = 0; i < some && at->listed < json_array_size(at->list); i++) {
        const json_t *object = json_array_get(at->list, at->listed++);
        assert_int_equal(gr_controller_seen(o->controller, r, object, true), GR_OK);
    }
    if (at->listed == json_array_size(at->list)) {
        json_decref(at->list);
        at->list = NULL;
        assert_int_equal(gr_controller_end_list(o->controller, r, at->version), GR_OK);
    }
    o->wake_us = 0;
    return true;
}

/* False: it has shown all there is. */
static bool watch(world *w, instance *o, size_t r)
{
    watcher *at = &o->watchers[r];
    size_t end = json_array_size(w->k.history[r]);
    if (at->list != NULL) {
        return w->is_away || list_some(w, o, r);
    }
    at->is_lost |= happens(w, 60);
    if (at->is_lost) { /* what comes now is lost, then the answer is 410 */
        if (!w->is_away && (!w->is_disturbed || happens(w, 10))) {
            begin_list(w, o, r);
        }
        return true;
    }
    if (at->position > 0 && happens(w, 30)) { /* an old one once more */
        size_t back = 1 + draw(w, at->position < 8 ? at->position : 8);
        show(w, o, r, at->position - back);
    }
    while (at->position < end && !w->is_away && !happens(w, 3)) {
        bool is_swapped = at->position + 1 < end && happens(w, 6);
        if (is_swapped) {
            show(w, o, r, at->position + 1);
        }
        show(w, o, r, at->position);
        at->position += is_swapped ? 2 : 1;
    }
    return at->position < end;
}

/* ---- Calls ----------------------------------------------------------------------------------- */
static void accept(world *w, instance *o, const gr_controller_action *action)
{
    size_t i = 0;
    while (i < CALLS_MAX && o->calls[i].job != NULL) {
        assert_ptr_not_equal(o->calls[i].job, action->job); /* one at a time of a job */
        i++;
    }
    assert_true(i < CALLS_MAX);
    o->calls[i] = (call){.job = action->job,
                         .verb = strdup(action->verb),
                         .resource = action->resource,
                         .object = json_deep_copy(action->object),
                         .ticks = w->is_disturbed ? (int)draw(w, 4) : 0};
}

static void carry_out(world *w, call *one)
{
    one->answered = 1 + (w->is_disturbed ? (int)draw(w, 3) : 0);
    if (w->is_away || happens(w, 40)) {
        one->answer = GR_API_FAILED;
        return;
    }
    if (happens(w, 40) && strcmp(one->verb, "create") != 0 && strcmp(one->verb, "get") != 0) {
        one->answer = GR_API_CONFLICT;
        return;
    }
    one->answer = cluster_call(&w->k, one->verb, one->resource, one->object, &one->result);
    if (happens(w, 30)) { /* carried out, but nobody is told */
        one->answer = GR_API_FAILED;
        json_decref(one->result);
        one->result = NULL;
    }
}

static bool run_calls(world *w, instance *o)
{
    gr_controller_time now = {w->now_us, w->now_us / 1000000 + w->wall_step_s};
    bool is_busy = false;
    for (size_t i = 0; i < CALLS_MAX; i++) {
        call *one = &o->calls[i];
        if (one->job == NULL) {
            continue;
        }
        is_busy = true;
        if (one->answered == 0 && one->ticks-- <= 0) {
            carry_out(w, one);
        } else if (one->answered > 0 && --one->answered == 0) {
            call done = *one;
            *one = (call){0};
            gr_status status =
                gr_controller_answer(o->controller, done.job, &now, done.answer, done.result);
            assert_int_equal(status, GR_OK);
            free_call(&done);
            o->wake_us = 0;
        }
    }
    return is_busy;
}

static bool run_loop(world *w, instance *o)
{
    gr_controller_time now = {w->now_us, w->now_us / 1000000 + w->wall_step_s};
    bool is_busy = false;
    gr_diag diag = {0};
    for (gr_controller_action action; o->wake_us <= w->now_us; o->wake_us = action.wake_us) {
        gr_status status = gr_controller_next(o->controller, &now, &action, &diag);
        assert_int_equal(status, GR_OK);
        is_busy |= action.verb != NULL;
        if (action.verb != NULL) {
            action.wake_us = 0;
        }
        if (action.job != NULL) {
            accept(w, o, &action);
        } else if (action.verb != NULL && strcmp(action.verb, "list") == 0) {
            begin_list(w, o, action.resource);
        } else if (action.verb != NULL) {
            assert_string_equal(action.verb, "event");
            w->events++;
        }
    }
    return is_busy;
}

/* ---- A run ----------------------------------------------------------------------------------- */
static void add_job(world *w, int number)
{
    static const char *const policies[] = {"None", "Running", "All"};
    char name[16];
    json_t *answer = NULL;
    snprintf(name, sizeof name, "job-%d", number);
    json_t *container = json_pack("{s:[{s:s, s:s}]}", "containers", "name", "a", "image", "b");
    json_t *job = json_pack(
        "{s:s, s:s, s:{s:s, s:s}, s:{s:s, s:{s:s}, s:{s:{s:{s:O}}, s:{s:i, s:{s:O}}}}}",
        "apiVersion", "kubeflow.org/v2beta1", "kind", "MPIJob", "metadata", "name", name,
        "namespace", number % 2 == 0 ? "lab" : "shop", "spec", "launcherCreationPolicy",
        number % 3 == 1 ? "WaitForWorkersReady" : "AtStartup", "runPolicy", "cleanPodPolicy",
        policies[number % 3], "mpiReplicaSpecs", "Launcher", "template", "spec", container,
        "Worker", "replicas", 1 + number % 3, "template", "spec", container);
    size_t resource = cluster_resource("kubeflow.org/v2beta1", "MPIJob");
    gr_api_answer made = cluster_call(&w->k, "create", resource, job, &answer);
    assert_int_equal(made, GR_API_OK);
    json_decref(answer);
    json_decref(job);
    json_decref(container);
}

static void remove_job(world *w, int number)
{
    char name[16];
    json_t *answer = NULL;
    snprintf(name, sizeof name, "job-%d", number);
    json_t *job = json_pack("{s:{s:s, s:s}}", "metadata", "name", name, "namespace",
                            number % 2 == 0 ? "lab" : "shop");
    size_t resource = cluster_resource("kubeflow.org/v2beta1", "MPIJob");
    (void)cluster_call(&w->k, "delete", resource, job, &answer);
    json_decref(answer);
    json_decref(job);
}

/* The same at the same ticks, whatever disturbs the operators. Job 0 is left in peace. */
static void edit(world *w, int script, int tick)
{
    if (tick % 10 != 0 || tick >= DISTURBED_TICKS) {
        return;
    }
    world own = {.random = (uint64_t)script * 1000 + (uint64_t)tick};
    int number = 1 + (int)draw(&own, JOBS - 1), what = (int)draw(&own, 10);
    const char *space = number % 2 == 0 ? "lab" : "shop";
    char name[16];
    snprintf(name, sizeof name, "job-%d", number);
    size_t resource = cluster_resource("kubeflow.org/v2beta1", "MPIJob");
    bool is_there = cluster_find(&w->k, resource, space, name) != NULL;
    if (tick < 10 * JOBS) {
        add_job(w, tick / 10);
    } else if (what < 3 && is_there) {
        cluster_edit(&w->k, space, name, "spec.runPolicy.suspend", json_boolean(what == 0));
    } else if (what < 5 && is_there) {
        json_t *replicas = json_integer(1 + (int)draw(&own, 4));
        cluster_edit(&w->k, space, name, "spec.mpiReplicaSpecs.Worker.replicas", replicas);
    } else if (what < 7 && is_there) {
        cluster_edit(&w->k, space, name, "metadata.annotations.note", json_integer(tick));
    } else if (what == 7) {
        remove_job(w, number);
    } else if (!is_there) {
        add_job(w, number);
    }
}

static void disturb(world *w)
{
    if (happens(w, 50)) {
        w->is_away = true;
    } else if (w->is_away && (!w->is_disturbed || draw(w, 10) == 0)) {
        w->is_away = false;
    }
    if (happens(w, 40) || (w->leader < 0 && (!w->is_disturbed || draw(w, 10) == 0))) {
        w->leader = w->is_disturbed ? (int)draw(w, 3) - 1 : 0;
        for (int i = 0; i < 2; i++) {
            gr_controller_lead(w->operators[i].controller, w->leader == i);
            w->operators[i].wake_us = 0;
        }
    }
    if (happens(w, 60)) {
        instance *o = &w->operators[draw(w, 2)];
        stop_operator(w, o);
        start_operator(w, o);
    }
    if (happens(w, 50)) {
        w->wall_step_s += (int64_t)draw(w, 7200) - 3600;
    }
}

/* The earliest time at which one of the operators wants to look. */
static int64_t wake(const world *w)
{
    int64_t a = w->operators[0].wake_us, b = w->operators[1].wake_us;
    return a < b ? a : b;
}

static bool tick(world *w, int script, int number)
{
    bool is_busy = false;
    edit(w, script, number);
    disturb(w);
    for (int i = 0; i < 2; i++) {
        instance *o = &w->operators[i];
        for (size_t r = 0; r < gr_operator_resource_count; r++) {
            is_busy |= gr_controller_uses(o->controller, r) && watch(w, o, r);
        }
        is_busy |= run_calls(w, o);
        is_busy |= run_loop(w, o);
    }
    if (!w->is_disturbed || draw(w, 3) != 0) {
        is_busy |= cluster_step(&w->k);
    }
    return is_busy;
}

/* Until nothing moves any more, and nobody wants to look again. */
static void settle(world *w, int script)
{
    int quiet = 0;
    w->is_disturbed = false;
    for (int number = DISTURBED_TICKS; quiet < QUIET_TICKS; number++) {
        assert_true(number < TICKS_MAX);
        quiet = tick(w, script, number) ? 0 : quiet + 1;
        w->now_us += TICK_US;
        int64_t wake_us = wake(w);
        if (quiet == QUIET_TICKS && wake_us != INT64_MAX) {
            w->now_us = wake_us > w->now_us ? wake_us : w->now_us;
            quiet = 0;
        }
    }
}

/* How often objects of job 0 have been created, in which nobody wants anything to be deleted. */
static int count_created(const cluster *k)
{
    int created = 0;
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        size_t i;
        const json_t *event;
        json_array_foreach(k->history[r], i, event)
        {
            json_t *owners = gr_object_at(event, "object.metadata.ownerReferences");
            const char *owner = gr_object_text(json_array_get(owners, 0), "name");
            created += owner != NULL && strcmp(owner, "job-0") == 0 &&
                       strcmp(gr_object_text(event, "type"), "ADDED") == 0;
        }
    }
    return created;
}

/* What is left of running jobs, when launchers have ended, and after all jobs are deleted. */
static json_t *run(int script, uint64_t seed)
{
    world w = {.random = seed * UINT64_C(7919), .now_us = 1000000, .wall_step_s = 1777629600};
    cluster_open(&w.k);
    w.is_disturbed = seed != 0;
    start_operator(&w, &w.operators[0]);
    start_operator(&w, &w.operators[1]);
    for (int number = 0; number < DISTURBED_TICKS; number++) {
        (void)tick(&w, script, number);
        w.now_us += TICK_US;
    }
    settle(&w, script);
    json_t *running = cluster_dump(&w.k);
    w.k.may_end = true;
    settle(&w, script);
    json_t *ended = cluster_dump(&w.k);
    json_t *created = json_integer(count_created(&w.k));
    for (int number = 0; number < JOBS; number++) {
        remove_job(&w, number);
    }
    settle(&w, script);
    json_t *left = cluster_dump(&w.k);
    for (int i = 0; i < 2; i++) {
        char *metrics = gr_controller_metrics(w.operators[i].controller);
        assert_non_null(metrics);
        assert_null(strstr(metrics, "mpi_operator_job_info{")); /* all is forgotten */
        free(metrics);
        stop_operator(&w, &w.operators[i]);
    }
    assert_true(w.events > 0);
    cluster_close(&w.k);
    return json_pack("{s:o, s:o, s:o, s:o}", "running", running, "ended", ended, "left", left,
                     "created", created);
}

static void show_difference(const char *key, json_t *is, json_t *should)
{
    char *left = is != NULL ? json_dumps(is, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    char *right = should != NULL ? json_dumps(should, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    fprintf(stderr, "%s is\n%s\nand should be\n%s\n", key, left != NULL ? left : "not there",
            right != NULL ? right : "not there");
    free(left);
    free(right);
}

static void assert_same(const json_t *is, const json_t *should, const char *part, uint64_t seed)
{
    json_t *a = json_object_get(is, part), *b = json_object_get(should, part), *object;
    if (json_equal(a, b)) {
        return;
    }
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        const char *key, *kind = gr_operator_resources[r].kind;
        json_t *left = json_object_get(a, kind), *right = json_object_get(b, kind);
        json_object_foreach(left, key, object)
        {
            if (!json_equal(object, json_object_get(right, key))) {
                show_difference(key, object, json_object_get(right, key));
            }
        }
        json_object_foreach(right, key, object)
        {
            if (json_object_get(left, key) == NULL) {
                show_difference(key, NULL, object);
            }
        }
    }
    fail_msg("seed %" PRIu64 ": %s differs", seed, part);
}

static void controller_disturbed_leaves_what_an_undisturbed_one_leaves(void **state)
{
    (void)state;
    json_t *expected[SCRIPTS];
    for (int script = 0; script < SCRIPTS; script++) {
        expected[script] = run(script, 0);
        assert_int_equal(json_object_size(json_object_get(expected[script], "left")), 0);
    }
    for (uint64_t seed = (uint64_t)first_seed; seed < (uint64_t)(first_seed + seeds); seed++) {
        int script = (int)(seed % SCRIPTS);
        json_t *is = run(script, seed);
        assert_same(is, expected[script], "running", seed);
        assert_same(is, expected[script], "ended", seed);
        assert_same(is, expected[script], "left", seed);
        assert_same(is, expected[script], "created", seed);
        json_decref(is);
    }
    for (int script = 0; script < SCRIPTS; script++) {
        json_decref(expected[script]);
    }
}

int main(int argc, char **argv)
{
    seeds = argc > 1 ? strtol(argv[1], NULL, 10) : SEEDS;
    first_seed = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controller_disturbed_leaves_what_an_undisturbed_one_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
