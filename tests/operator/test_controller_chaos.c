/* SPDX-License-Identifier: Apache-2.0 */

/* The loop of the operator against a cluster in memory that disturbs it: watches that stop, lose,
 * repeat and swap events, an API server that is away or answers into nothing, conflicts, two
 * operators of which one leads and each may be started anew at any moment, and a clock that steps.
 * What is left in the end must be what an undisturbed run leaves. A script is the kinds of jobs,
 * the gang scheduler and what users do; jobs of several kinds have the same names.
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
    SEEDS = 240,
    JOBS = 6,
    KINDS_MAX = 3,
    TTL_S = 30,
    TICK_US = 20000,
    DISTURBED_TICKS = 250,
    TICKS_MAX = 20000,
    CALLS_MAX = 16,
    QUIET_TICKS = 4,
};

static long seeds = SEEDS, first_seed = 1;

/* A kind of jobs, as they are here. */
typedef struct job_kind {
    const gr_operator_kind *kind;
    const char *specs, *container, *scaled; /* the role that users scale; NULL: none */
    const char *roles[3][3];                /* of job number % 3 */
} job_kind;

/* Names of objects do not meet where jobs of several kinds have one name: there MPI jobs have no
 * workers, and TensorFlow's other roles than PyTorch's. */
static const job_kind
    mpi_v2 = {&gr_mpijob_v2,
              "mpiReplicaSpecs",
              "a",
              "Worker",
              {{"Launcher", "Worker"}, {"Launcher", "Worker"}, {"Launcher", "Worker"}}},
    mpi_v1 = {&gr_mpijob_v1,
              "mpiReplicaSpecs",
              "a",
              "Worker",
              {{"Launcher", "Worker"}, {"Launcher", "Worker"}, {"Launcher", "Worker"}}},
    pytorch = {&gr_pytorchjob_v1,
               "pytorchReplicaSpecs",
               "pytorch",
               "Worker",
               {{"Master", "Worker"}, {"Worker"}, {"Master", "Worker"}}},
    tensorflow = {&gr_tfjob_v1,
                  "tfReplicaSpecs",
                  "tensorflow",
                  "PS",
                  {{"Chief", "PS", "Worker"}, {"PS", "Worker"}, {"Master", "PS"}}},
    lone_mpi_v2 = {&gr_mpijob_v2,
                   "mpiReplicaSpecs",
                   "a",
                   NULL,
                   {{"Launcher"}, {"Launcher"}, {"Launcher"}}},
    lone_mpi_v1 = {&gr_mpijob_v1,
                   "mpiReplicaSpecs",
                   "a",
                   NULL,
                   {{"Launcher"}, {"Launcher"}, {"Launcher"}}},
    lone_tensorflow = {&gr_tfjob_v1,
                       "tfReplicaSpecs",
                       "tensorflow",
                       "PS",
                       {{"Chief", "PS"}, {"Chief", "PS"}, {"Chief", "Evaluator", "PS"}}};

static const gr_operator_kind *const v1_kinds[] = {&gr_mpijob_v1, &gr_pytorchjob_v1, &gr_tfjob_v1,
                                                   NULL};

typedef struct script {
    const gr_operator_kind *const *served;
    const char *gang_scheduler;
    const job_kind *kinds[KINDS_MAX + 1]; /* ends with NULL: a job of each for each name */
} script;

/* Jobs of one name would share a PodGroup: with a gang scheduler, one of them waits for ever. */
static const script scripts[] = {
    {gr_operator_kinds, "", {&mpi_v2}},
    {gr_operator_kinds, "", {&pytorch}},
    {gr_operator_kinds, "", {&tensorflow}},
    {v1_kinds, "", {&mpi_v1}},
    {gr_operator_kinds, "", {&pytorch, &lone_tensorflow, &lone_mpi_v2}},
    {v1_kinds, "", {&lone_mpi_v1, &pytorch, &lone_tensorflow}},
    {gr_operator_kinds, "volcano", {&mpi_v2}},
    {gr_operator_kinds, "volcano", {&pytorch}},
    {v1_kinds, "volcano", {&tensorflow}},
    {gr_operator_kinds, "coscheduling", {&pytorch}},
    {gr_operator_kinds, "coscheduling", {&tensorflow}},
    {v1_kinds, "coscheduling", {&mpi_v1}}};
enum { SCRIPTS = sizeof scripts / sizeof scripts[0] };

typedef struct call {
    gr_controller_job *job; /* NULL: a free place */
    size_t write;
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
    const script *script;
    instance operators[2];
    int leader; /* -1: none */
    bool is_disturbed, is_away;
    uint64_t random;
    int writes_at_once;
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
    gr_controller_config config = {.kinds = w->script->served,
                                   .cluster_domain = "",
                                   .gang_scheduler = w->script->gang_scheduler,
                                   .ssh_key = given_key,
                                   .jobs_at_once = 3,
                                   .writes_at_once = w->writes_at_once};
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
        if (o->calls[i].job == action->job) { /* at the same time only new objects */
            assert_string_equal(o->calls[i].verb, "create");
            assert_string_equal(action->verb, "create");
            assert_int_not_equal(o->calls[i].write, action->write);
        }
        i++;
    }
    assert_true(i < CALLS_MAX);
    o->calls[i] = (call){.job = action->job,
                         .write = action->write,
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
            gr_status status = gr_controller_answer(o->controller, done.job, done.write, &now,
                                                    done.answer, done.result);
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
static const char *space_of(int number)
{
    return number % 2 == 0 ? "lab" : "shop";
}

static size_t resource_of(const job_kind *kind)
{
    return cluster_resource(kind->kind->api_version, kind->kind->kind);
}

static bool is_launching(const char *role)
{
    return strcmp(role, "Launcher") == 0 || strcmp(role, "Master") == 0 ||
           strcmp(role, "Chief") == 0;
}

/* A worker of job 0 fails once, where such jobs make them anew. */
static json_t *replica_spec(const job_kind *kind, int number, const char *role)
{
    bool fails = number == 0 && strcmp(role, kind->scaled != NULL ? kind->scaled : "") == 0 &&
                 (kind->kind == &gr_pytorchjob_v1 || kind->kind == &gr_tfjob_v1);
    json_t *spec = json_pack("{s:i, s:{s:{s:[{s:s, s:s}]}}}", "replicas",
                             is_launching(role) ? 1 : 1 + number % 3, "template", "spec",
                             "containers", "name", kind->container, "image", "b");
    if (fails) {
        json_object_set_new(spec, "restartPolicy", json_string("ExitCode"));
        json_object_set_new(json_object_get(spec, "template"), "metadata",
                            json_pack("{s:{s:s}}", "labels", "fails", "once"));
    }
    return spec;
}

static void add_job(world *w, const job_kind *kind, int number)
{
    static const char *const policies[] = {"None", "Running", "All"};
    char name[16];
    json_t *answer = NULL, *specs = json_object();
    snprintf(name, sizeof name, "job-%d", number);
    for (int i = 0; i < 3 && kind->roles[number % 3][i] != NULL; i++) {
        const char *role = kind->roles[number % 3][i];
        json_object_set_new(specs, role, replica_spec(kind, number, role));
    }
    json_t *job = json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:o, s:{s:s}}}", "apiVersion",
                            kind->kind->api_version, "kind", kind->kind->kind, "metadata", "name",
                            name, "namespace", space_of(number), "spec", kind->specs, specs,
                            "runPolicy", "cleanPodPolicy", policies[number % 3]);
    json_t *spec = json_object_get(job, "spec");
    if (kind->kind == &gr_mpijob_v2) {
        json_object_set_new(spec, "launcherCreationPolicy",
                            json_string(number % 3 == 1 ? "WaitForWorkersReady" : "AtStartup"));
    } else if (number % 3 == 2) {
        json_object_set_new(json_object_get(spec, "runPolicy"), "ttlSecondsAfterFinished",
                            json_integer(TTL_S));
    } else if (number % 3 == 1 && kind->kind == &gr_pytorchjob_v1) {
        json_object_set_new(spec, "elasticPolicy",
                            json_pack("{s:i, s:i, s:[{s:s}]}", "minReplicas", 1, "maxReplicas", 8,
                                      "metrics", "type", "Resource"));
    }
    assert_int_equal(cluster_call(&w->k, "create", resource_of(kind), job, &answer), GR_API_OK);
    json_decref(answer);
    json_decref(job);
}

static void remove_job(world *w, const job_kind *kind, int number)
{
    char name[16];
    json_t *answer = NULL;
    snprintf(name, sizeof name, "job-%d", number);
    json_t *job =
        json_pack("{s:{s:s, s:s}}", "metadata", "name", name, "namespace", space_of(number));
    (void)cluster_call(&w->k, "delete", resource_of(kind), job, &answer);
    json_decref(answer);
    json_decref(job);
}

static void scale(world *w, const job_kind *kind, int number, int64_t replicas)
{
    char name[16], path[128];
    if (kind->scaled != NULL) {
        snprintf(name, sizeof name, "job-%d", number);
        snprintf(path, sizeof path, "spec.%s.%s.replicas", kind->specs, kind->scaled);
        cluster_edit(&w->k, resource_of(kind), space_of(number), name, path,
                     json_integer(replicas));
    }
}

/* The same at the same ticks, whatever disturbs the operators. Jobs 0 are left in peace. */
static void edit(world *w, int tick)
{
    if (tick % 10 != 0 || tick >= DISTURBED_TICKS) {
        return;
    }
    const job_kind *const *kinds = w->script->kinds;
    size_t kind_count = 0;
    for (; kinds[kind_count] != NULL; kind_count++) {
        if (tick < 10 * JOBS) {
            add_job(w, kinds[kind_count], tick / 10);
        }
    }
    if (tick < 10 * JOBS) {
        return;
    }
    world own = {.random = (uint64_t)(w->script - scripts) * 1000 + (uint64_t)tick};
    int number = 1 + (int)draw(&own, JOBS - 1), what = (int)draw(&own, 10);
    const job_kind *kind = kinds[draw(&own, kind_count)];
    char name[16];
    snprintf(name, sizeof name, "job-%d", number);
    const char *space = space_of(number);
    bool is_there = cluster_find(&w->k, resource_of(kind), space, name) != NULL;
    if (!is_there) {
        add_job(w, kind, number);
    } else if (what < 3) {
        cluster_edit(&w->k, resource_of(kind), space, name, "spec.runPolicy.suspend",
                     json_boolean(what == 0));
    } else if (what < 5) {
        scale(w, kind, number, 1 + (int64_t)draw(&own, 4));
    } else if (what < 7) {
        cluster_edit(&w->k, resource_of(kind), space, name, "metadata.annotations.note",
                     json_integer(tick));
    } else if (what == 7) {
        remove_job(w, kind, number);
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

static bool tick(world *w, int number)
{
    bool is_busy = false;
    edit(w, number);
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
static void settle(world *w)
{
    int quiet = 0;
    w->is_disturbed = false;
    for (int number = DISTURBED_TICKS; quiet < QUIET_TICKS; number++) {
        assert_true(number < TICKS_MAX);
        quiet = tick(w, number) ? 0 : quiet + 1;
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
static json_t *run(int which, uint64_t seed)
{
    world w = {.script = &scripts[which],
               .random = seed * UINT64_C(7919),
               .writes_at_once = (int)(seed / SCRIPTS % 4) * 2,
               .now_us = 1000000,
               .wall_step_s = 1777629600};
    cluster_open(&w.k);
    w.is_disturbed = seed != 0;
    start_operator(&w, &w.operators[0]);
    start_operator(&w, &w.operators[1]);
    for (int number = 0; number < DISTURBED_TICKS; number++) {
        (void)tick(&w, number);
        w.now_us += TICK_US;
    }
    settle(&w);
    json_t *running = cluster_dump(&w.k);
    w.k.may_end = true;
    settle(&w);
    json_t *ended = cluster_dump(&w.k);
    json_t *created = json_integer(count_created(&w.k));
    for (int i = 0; i < KINDS_MAX * JOBS; i++) {
        if (w.script->kinds[i / JOBS] == NULL) {
            break;
        }
        remove_job(&w, w.script->kinds[i / JOBS], i % JOBS);
    }
    settle(&w);
    json_t *left = cluster_dump(&w.k);
    for (int i = 0; i < 2; i++) {
        char *metrics = gr_controller_metrics(w.operators[i].controller, 0);
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
        char title[128];
        const char *key;
        json_t *left = json_object_get(a, cluster_title(r, title));
        json_t *right = json_object_get(b, title);
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
    char *text = json_dumps(a, JSON_ENCODE_ANY | JSON_COMPACT);
    fail_msg("seed %" PRIu64 ": %s differs (%.40s)", seed, part, text);
}

static void controller_disturbed_leaves_what_an_undisturbed_one_leaves(void **state)
{
    (void)state;
    json_t *expected[SCRIPTS];
    for (int which = 0; which < SCRIPTS; which++) {
        expected[which] = run(which, 0);
        assert_int_equal(json_object_size(json_object_get(expected[which], "left")), 0);
    }
    for (uint64_t seed = (uint64_t)first_seed; seed < (uint64_t)(first_seed + seeds); seed++) {
        int which = (int)(seed % SCRIPTS);
        json_t *is = run(which, seed);
        assert_same(is, expected[which], "running", seed);
        assert_same(is, expected[which], "ended", seed);
        assert_same(is, expected[which], "left", seed);
        assert_same(is, expected[which], "created", seed);
        json_decref(is);
    }
    for (int which = 0; which < SCRIPTS; which++) {
        json_decref(expected[which]);
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
