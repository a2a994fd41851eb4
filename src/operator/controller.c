/* SPDX-License-Identifier: Apache-2.0 */

/* The loop of an operator. A job is in one of these states:
 *
 *   idle      in no queue: nothing has changed since the last look
 *   queued    looked at when `due_us` has come: at once after a change, later after a failure
 *   writing   the writes of a look go out in order, each after the answer to the last, but for
 *             objects that do not need each other: some of these are on their way together
 *   refused   a creation was refused: no other begins, but deletions and the status go out
 *   failing   a write has failed: no other begins, and answers to those on their way are awaited
 *   getting   a write met another state than the cache has: the object itself is asked for
 *
 * A look without writes, the last write and a failure end in idle or queued. The cache takes the
 * answers to writes as it takes what watches show, so that a look sees what was written before it,
 * and a cache that has missed something is put right by the first write that fails. */

#include "operator/controller.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time_text.h"
#include "operator/cache.h"
#include "operator/counts.h"
#include "operator/metrics.h"
#include "operator/object.h"
#include "operator/obstacle.h"
#include "operator/progress.h"
#include "operator/refusal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MIN_US INT64_C(5000)
#define RETRY_MAX_US INT64_C(1000000000)
#define NOT_QUEUED SIZE_MAX
#define GONE_US INT64_MIN /* due_us of a job that is gone */
/* A deadline is looked at as often, for the wall clock may step. */
enum { LOOK_AGAIN_MAX_S = 600, DOUBLINGS_MAX = 20, US_PER_S = 1000000 };

/* What follows from a write that has failed: the first one counts, a refused creation not beside
 * others. */
typedef enum failure { FAILS_NOT, FAILS_TO_CREATE, FAILS_BY_STATE, FAILS } failure;

/* A look, until its last write is answered. */
typedef struct controller_look {
    int64_t began_us;
    json_t *uid;    /* of the job; NULL: none */
    json_t *before; /* the job's status; NULL: none */
    bool *unmade;   /* of each write: it was refused, or left out; NULL: of none */
    json_t *seen;   /* of the job's progress; NULL: none */
    unsigned held;  /* gr_counts_held() as it began */
    gr_operator_result result;
    gr_controller_job *next_ready; /* of those with an action to start */
    size_t begun;                  /* of its writes */
    int on_way;                    /* of these, and a question for the object itself */
    unsigned beside;        /* classes of writes that began since none was on its way, as bits */
    failure failed;         /* FAILS_NOT while none has failed */
    size_t failed_write;    /* that the object itself is asked for */
    uint64_t asked_version; /* of the cache, where the object itself is asked for */
    bool is_getting, is_ready, is_changed; /* the last: since it began */
} controller_look;

struct gr_controller_job {
    gr_controller_job *next; /* of the group */
    gr_cache_group *group;
    const gr_operator_kind *kind;
    size_t resource, queue_index;
    int64_t due_us;
    uint64_t order; /* among those that are due at the same time */
    int failures;   /* without a success since */
    bool is_gone;
    controller_look *look; /* NULL: none */
    json_t *obstacles;     /* an array: objects that it met and no watch shows; NULL: none */
    gr_asked *asked;       /* its workers are, how far it has come; NULL: they are not */
    json_t *progress;      /* what they said last; NULL */
    int64_t step;          /* that they said last */
};

struct gr_controller {
    gr_controller_config config;
    const gr_operator_kind **kinds; /* that are served; ends with NULL */
    gr_metrics_queue *queues;       /* of each of them */
    gr_cache *cache;
    gr_controller_job **queue; /* a heap */
    size_t queue_count, queue_max;
    gr_controller_job *ready, **ready_end;
    json_t *events, *told; /* to be told; the last one */
    gr_counts counts;
    gr_asking *asking;
    uint64_t answered_count, unanswered_count; /* questions that were answered, and that were not */
    int64_t now_us;
    uint64_t order;
    int active_count, on_way; /* jobs; writes */
    bool is_leader;
    bool *is_listed, *is_doubtful; /* of each resource */
};

/* ---- The queue ------------------------------------------------------------------------------- */
static bool is_before(const gr_controller_job *a, const gr_controller_job *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->order < b->order;
}

static void place(gr_controller *c, size_t index, gr_controller_job *job)
{
    c->queue[index] = job;
    job->queue_index = index;
}

static void sift_up(gr_controller *c, gr_controller_job *job)
{
    size_t index = job->queue_index;
    while (index > 0 && is_before(job, c->queue[(index - 1) / 2])) {
        place(c, index, c->queue[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    place(c, index, job);
}

static gr_controller_job *pop(gr_controller *c)
{
    gr_controller_job *first = c->queue[0], *last = c->queue[--c->queue_count];
    first->queue_index = NOT_QUEUED;
    size_t index = 0, child;
    while ((child = 2 * index + 1) < c->queue_count) {
        child += child + 1 < c->queue_count && is_before(c->queue[child + 1], c->queue[child]);
        if (!is_before(c->queue[child], last)) {
            break;
        }
        place(c, index, c->queue[child]);
        index = child;
    }
    if (first != last) {
        place(c, index, last);
    }
    return first;
}

static gr_metrics_queue *queue_of(const gr_controller *c, const gr_controller_job *job)
{
    gr_metrics_queue *queue = c->queues;
    while (queue->kind != job->kind) {
        queue++;
    }
    return queue;
}

/* One that is queued for an earlier time stays so. */
static gr_status enqueue(gr_controller *c, gr_controller_job *job, int64_t due_us)
{
    if (job->look != NULL) {
        job->look->is_changed = true;
        return GR_OK;
    }
    bool is_queued = job->queue_index != NOT_QUEUED;
    if (is_queued && job->due_us <= due_us) {
        return GR_OK;
    }
    if (!is_queued && c->queue_count == c->queue_max) {
        size_t max = 2 * c->queue_max + 64;
        gr_controller_job **queue = realloc(c->queue, max * sizeof(gr_controller_job *));
        if (queue == NULL) {
            return GR_E_NO_MEMORY;
        }
        c->queue = queue;
        c->queue_max = max;
    }
    job->due_us = due_us;
    job->order = c->order++;
    if (!is_queued) {
        job->queue_index = c->queue_count++;
        queue_of(c, job)->adds++;
    }
    sift_up(c, job);
    return GR_OK;
}

/* ---- Counts ---------------------------------------------------------------------------------- */
const gr_controller_counts *gr_controller_counted(const gr_controller *controller,
                                                  size_t *count_out)
{
    *count_out = controller->counts.count;
    return controller->counts.rows;
}

static void print_queues(const gr_controller *c, int64_t now_us, FILE *out)
{
    size_t count = 0;
    for (; c->queues[count].kind != NULL; count++) {
        gr_metrics_queue *queue = &c->queues[count];
        queue->depth = 0;
        queue->unfinished_s = queue->longest_s = 0;
    }
    for (size_t i = 0; i < c->queue_count; i++) {
        queue_of(c, c->queue[i])->depth += c->queue[i]->due_us <= now_us;
    }
    gr_cache_group *group = NULL;
    while ((group = gr_cache_next_group(c->cache, group)) != NULL) {
        for (const gr_controller_job *job = group->jobs; job != NULL; job = job->next) {
            gr_metrics_queue *queue = queue_of(c, job);
            double taken_s = job->look != NULL ? (double)(now_us - job->look->began_us) * 1e-6 : 0;
            queue->unfinished_s += taken_s;
            queue->longest_s = taken_s > queue->longest_s ? taken_s : queue->longest_s;
        }
    }
    gr_metrics_queues(out, c->queues, count);
}

char *gr_controller_metrics(const gr_controller *controller, int64_t now_us)
{
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    if (out == NULL) {
        return NULL;
    }
    print_queues(controller, now_us, out);
    gr_metrics_counts(out, controller->counts.rows, controller->counts.count,
                      controller->is_leader);
    gr_metrics_head(out, "mpi_operator_job_info", "gauge", "Launchers of the MPIJobs there are");
    gr_cache_group *group = NULL;
    while ((group = gr_cache_next_group(controller->cache, group)) != NULL) {
        for (gr_controller_job *job = group->jobs; job != NULL; job = job->next) {
            if (job->kind == &gr_mpijob_v2 && !job->is_gone) {
                fprintf(out, "mpi_operator_job_info{launcher=\"%s-launcher\",namespace=\"%s\"} 1\n",
                        group->name, group->space);
            }
        }
    }
    gr_metrics_head(out, "gradus_progress_answers_total", "counter",
                    "Workers that were asked how far their job has come");
    fprintf(out,
            "gradus_progress_answers_total{result=\"told\"} %" PRIu64 "\n"
            "gradus_progress_answers_total{result=\"nothing\"} %" PRIu64 "\n",
            controller->answered_count, controller->unanswered_count);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        text = NULL;
    }
    return text;
}

/* ---- Jobs ------------------------------------------------------------------------------------ */
static gr_controller_job *add_job(gr_controller *c, gr_cache_group *group, size_t resource)
{
    gr_controller_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return NULL;
    }
    const gr_operator_resource *row = &gr_operator_resources[resource];
    *job = (gr_controller_job){.next = group->jobs,
                               .group = group,
                               .kind = gr_operator_find_kind(c->kinds, row->api_version, row->kind),
                               .resource = resource,
                               .queue_index = NOT_QUEUED};
    group->jobs = job;
    return job;
}

static void free_look(gr_controller_job *job)
{
    if (job->look != NULL) {
        json_decref(job->look->uid);
        json_decref(job->look->before);
        free(job->look->unmade);
        json_decref(job->look->seen);
        gr_operator_result_fini(&job->look->result);
        free(job->look);
        job->look = NULL;
    }
}

/* One that is in no queue. */
static void free_job(gr_controller *c, gr_controller_job *job)
{
    gr_cache_group *group = job->group;
    gr_controller_job **at = &group->jobs;
    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
    json_decref(job->obstacles);
    json_decref(job->progress);
    (void)!gr_asking_set(c->asking, &job->asked, job, NULL, c->now_us); /* needs no memory */
    free(job);
    gr_cache_tidy(c->cache, group);
}

/* A gr_cache_changed. */
static gr_status changed(void *changed_arg, gr_cache_group *group, size_t resource, bool is_there)
{
    gr_controller *c = changed_arg;
    gr_controller_job *job = group->jobs;
    if (!gr_operator_resources[resource].is_job) {
        gr_status status = GR_OK;
        for (; job != NULL && status == GR_OK; job = job->next) {
            status = enqueue(c, job, c->now_us);
        }
        return status;
    }
    while (job != NULL && job->resource != resource) {
        job = job->next;
    }
    if (job == NULL && (job = add_job(c, group, resource)) == NULL) {
        return GR_E_NO_MEMORY;
    }
    bool is_deleted = !is_there && !job->is_gone;
    job->is_gone = !is_there;
    gr_status status = GR_OK;
    if (is_deleted) {
        status = gr_counts_add(&c->counts, job->kind, job->group->space, GR_JOBS_DELETED);
    }
    return status == GR_OK ? enqueue(c, job, is_there ? c->now_us : GONE_US) : status;
}

/* One for each kind that is served, and an empty one behind them; NULL: no memory. */
static gr_metrics_queue *make_queues(const gr_operator_kind *const *kinds)
{
    size_t count = 0;
    while (kinds != NULL && kinds[count] != NULL) {
        count++;
    }
    gr_metrics_queue *queues = calloc(count + 1, sizeof *queues);
    for (size_t i = 0; queues != NULL && i < count; i++) {
        queues[i].kind = kinds[i];
    }
    return queues;
}

/* Of two versions of one kind the first; NULL: no memory. */
static const gr_operator_kind **choose_kinds(const gr_operator_kind *const *given)
{
    size_t count = 0, chosen = 0;
    while (given[count] != NULL) {
        count++;
    }
    const gr_operator_kind **kinds = calloc(count + 1, sizeof(const gr_operator_kind *));
    for (size_t i = 0; kinds != NULL && i < count; i++) {
        size_t same = 0;
        while (same < chosen && strcmp(kinds[same]->kind, given[i]->kind) != 0) {
            same++;
        }
        if (same == chosen) {
            kinds[chosen++] = given[i];
        }
    }
    return kinds;
}

gr_status gr_controller_create(const gr_controller_config *config, gr_controller **controller_out,
                               gr_diag *diag)
{
    gr_controller *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the operator's loop");
    }
    c->config = *config;
    c->kinds = choose_kinds(config->kinds);
    c->queues = make_queues(c->kinds);
    c->ready_end = &c->ready;
    c->events = json_array();
    c->is_listed = calloc(gr_operator_resource_count, sizeof *c->is_listed);
    c->is_doubtful = calloc(gr_operator_resource_count, sizeof *c->is_doubtful);
    c->asking = gr_asking_create(config->ask_every_us, config->asks_a_second);
    bool failed = c->kinds == NULL || c->queues == NULL || c->events == NULL || c->asking == NULL ||
                  c->is_listed == NULL || c->is_doubtful == NULL;
    gr_status status = failed ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the operator's loop")
                              : gr_cache_create(c->kinds, changed, c, &c->cache, diag);
    if (status != GR_OK) {
        gr_controller_destroy(c);
        return status;
    }
    *controller_out = c;
    return GR_OK;
}

void gr_controller_destroy(gr_controller *controller)
{
    if (controller == NULL) {
        return;
    }
    gr_cache_group *group = NULL;
    while (controller->cache != NULL &&
           (group = gr_cache_next_group(controller->cache, group)) != NULL) {
        while (group->jobs != NULL) {
            gr_controller_job *job = group->jobs;
            group->jobs = job->next;
            free_look(job);
            json_decref(job->obstacles);
            json_decref(job->progress);
            free(job);
        }
    }
    gr_cache_destroy(controller->cache);
    json_decref(controller->events);
    json_decref(controller->told);
    gr_asking_destroy(controller->asking);
    free(controller->kinds);
    free(controller->queues);
    gr_counts_fini(&controller->counts);
    free(controller->queue);
    free(controller->is_listed);
    free(controller->is_doubtful);
    free(controller);
}

/* ---- What the cluster shows ------------------------------------------------------------------ */
bool gr_controller_uses(const gr_controller *controller, size_t resource)
{
    return gr_operator_resource_used(&gr_operator_resources[resource], controller->kinds,
                                     controller->config.gang_scheduler);
}

void gr_controller_begin_list(gr_controller *controller, size_t resource)
{
    controller->is_doubtful[resource] = false;
    gr_cache_begin_list(controller->cache, resource);
}

gr_status gr_controller_seen(gr_controller *controller, size_t resource, const json_t *object,
                             bool is_listed)
{
    return gr_cache_put(controller->cache, resource, object,
                        is_listed ? GR_FROM_LIST : GR_FROM_WATCH,
                        &controller->is_doubtful[resource]);
}

gr_status gr_controller_gone(gr_controller *controller, size_t resource, const json_t *object)
{
    return gr_cache_remove(controller->cache, resource, object);
}

gr_status gr_controller_end_list(gr_controller *controller, size_t resource, const char *version)
{
    controller->is_listed[resource] = true;
    return gr_cache_end_list(controller->cache, resource, version);
}

void gr_controller_lead(gr_controller *controller, bool is_leader)
{
    controller->is_leader = is_leader;
}

/* Returns true if every resource has been listed: an object may be unknown before. */
static bool is_ready(const gr_controller *c)
{
    bool all = true;
    for (size_t i = 0; i < gr_operator_resource_count; i++) {
        all &= c->is_listed[i] || !gr_controller_uses(c, i);
    }
    return all;
}

/* ---- A look ---------------------------------------------------------------------------------- */
static void make_ready(gr_controller *c, gr_controller_job *job)
{
    if (job->look->is_ready) {
        return;
    }
    job->look->is_ready = true;
    job->look->next_ready = NULL;
    *c->ready_end = job;
    c->ready_end = &job->look->next_ready;
}

static gr_status emit_event(gr_controller *c, const gr_controller_job *job, const json_t *event)
{
    json_t *about = json_pack("{s:s, s:s, s:s, s:s, s:O*}", "apiVersion", job->kind->api_version,
                              "kind", job->kind->kind, "name", job->group->name, "namespace",
                              job->group->space, "uid", job->look->uid);
    json_t *told = json_copy((json_t *)event);
    bool no_memory = false;
    gr_object_put(told, "involvedObject", about, &no_memory);
    gr_object_append(c->events, told, &no_memory);
    return no_memory ? GR_E_NO_MEMORY : GR_OK;
}

static gr_status emit_events(gr_controller *c, const gr_controller_job *job, const json_t *events)
{
    gr_status status = GR_OK;
    size_t i;
    const json_t *event;
    json_array_foreach(events, i, event)
    {
        status = status == GR_OK && !json_is_null(event) ? emit_event(c, job, event) : status;
    }
    return status;
}

/* The look is over: `has_failed` looks again after a while, longer each time. */
static gr_status end_look(gr_controller *c, gr_controller_job *job, bool has_failed)
{
    int64_t again_after_s = job->look->result.again_after_s, due_us = GR_NEVER;
    bool is_changed = job->look->is_changed;
    gr_metrics_observe(&queue_of(c, job)->looks, c->now_us - job->look->began_us);
    queue_of(c, job)->retries += has_failed;
    c->active_count--;
    if (!has_failed && job->progress == job->look->seen) { /* it is in the status */
        json_decref(job->progress);
        job->progress = NULL;
    }
    free_look(job);
    if (has_failed) {
        int doublings = job->failures < DOUBLINGS_MAX ? job->failures++ : DOUBLINGS_MAX;
        int64_t wait_us = RETRY_MIN_US << doublings;
        due_us = c->now_us + (wait_us < RETRY_MAX_US ? wait_us : RETRY_MAX_US);
    } else {
        job->failures = 0;
    }
    if (again_after_s > 0) { /* no failure puts a deadline off */
        again_after_s = again_after_s < LOOK_AGAIN_MAX_S ? again_after_s : LOOK_AGAIN_MAX_S;
        int64_t limit_us = c->now_us + again_after_s * US_PER_S;
        due_us = due_us < limit_us ? due_us : limit_us;
    }
    due_us = is_changed || job->is_gone ? c->now_us : due_us;
    return due_us != GR_NEVER ? enqueue(c, job, due_us) : GR_OK;
}

/* All that the look wanted is done, but for what was refused. What it met no watch shows: whether
 * that is still there, a later look tells. */
static gr_status complete_look(gr_controller *c, gr_controller_job *job)
{
    const controller_look *look = job->look;
    bool retry = look->result.retry || look->failed != FAILS_NOT || job->obstacles != NULL;
    gr_status status = GR_OK;
    json_decref(job->obstacles);
    job->obstacles = NULL;
    if (look->unmade != NULL) {
        status = gr_refusal_settle(&look->result, look->unmade, look->before, NULL);
    }
    status = status == GR_OK ? emit_events(c, job, look->result.events) : status;
    return status == GR_OK ? end_look(c, job, retry) : status;
}

/* *has_failed_out: the job cannot be looked at for now, which concerns no other one. */
static gr_status look(gr_controller *c, gr_controller_job *job, int64_t wall_s,
                      bool *has_failed_out, gr_diag *diag)
{
    char now[GR_TIME_BYTES];
    int64_t waited_us = job->due_us != GONE_US ? c->now_us - job->due_us : 0;
    gr_metrics_observe(&queue_of(c, job)->waits, waited_us);
    if ((job->look = calloc(1, sizeof *job->look)) == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to look at a job");
    }
    c->active_count++;
    job->look->began_us = c->now_us;
    gr_time_print(wall_s * US_PER_S, false, now);
    json_t *object = gr_cache_get(c->cache, job->group, job->resource, job->group->name);
    json_t *objects = gr_cache_objects(c->cache, job->group);
    gr_operator_view view = {.job = object,
                             .objects = objects,
                             .now = now,
                             .cluster_domain = c->config.cluster_domain,
                             .gang_scheduler = c->config.gang_scheduler,
                             .pytorch_init_image = c->config.pytorch_init_image,
                             .kubectl_delivery_image = c->config.kubectl_delivery_image,
                             .pytorch_init_tries = c->config.pytorch_init_tries,
                             .ssh_key = c->config.ssh_key,
                             .token = c->config.token,
                             .ssh_key_arg = c->config.ssh_key_arg,
                             .has_no_agents = c->config.has_no_agents,
                             .launch_agent_image = c->config.launch_agent_image,
                             .asks_progress = c->config.ask_every_us > 0,
                             .progress = job->progress};
    bool failed = object == NULL || objects == NULL ||
                  (job->obstacles != NULL && json_array_extend(objects, job->obstacles) != 0);
    gr_status status = failed ? gr_fail(diag, GR_E_NO_MEMORY, "no memory to look at a job")
                              : job->kind->reconcile(&view, &job->look->result, diag);
    job->look->uid = json_incref(gr_object_at(object, "metadata.uid"));
    job->look->before = json_incref(gr_object_at(object, "status"));
    job->look->held = gr_counts_held(object);
    job->look->seen = json_incref(job->progress);
    json_decref(object);
    json_decref(objects);
    if (status == GR_OK) {
        status = gr_asking_set(c->asking, &job->asked, job, job->look->result.ask, c->now_us);
    }
    *has_failed_out = status != GR_OK;
    if (status != GR_OK) {
        return end_look(c, job, true);
    }
    if (json_array_size(job->look->result.writes) == 0) {
        return complete_look(c, job);
    }
    make_ready(c, job);
    return GR_OK;
}

/* ---- Writes ---------------------------------------------------------------------------------- */
static const json_t *write_of(const gr_controller_job *job, size_t write)
{
    return json_array_get(job->look->result.writes, write);
}

static size_t resource_of(const json_t *object)
{
    return gr_operator_resource_find(gr_object_text(object, "apiVersion"),
                                     gr_object_text(object, "kind"));
}

/* Which writes need no answer to others: objects that are made and that nobody needs at once, as
 * pods need what they mount. A batch Job begins when all pods are made. */
typedef enum write_class { ALONE, SERVICE, PART, POD } write_class;

static write_class class_of(const json_t *one)
{
    static const struct {
        const char *kind;
        write_class is;
    } classes[] = {{"Service", SERVICE}, {"ConfigMap", PART}, {"Secret", PART}, {"Pod", POD}};
    const char *kind = gr_object_text(one, "object.kind");
    size_t i = 0, count = sizeof classes / sizeof classes[0];
    while (i < count && strcmp(classes[i].kind, kind) != 0) {
        i++;
    }
    return i < count && strcmp(gr_object_text(one, "verb"), "create") == 0 ? classes[i].is : ALONE;
}

/* Behind a refused creation: leaves out what is no deletion and not the status, and the status as
 * well where nothing of it is new. */
static gr_status pass_over(gr_controller_job *job)
{
    controller_look *look = job->look;
    const json_t *one;
    gr_status status = GR_OK;
    while (look->failed == FAILS_TO_CREATE && (one = write_of(job, look->begun)) != NULL) {
        const char *verb = gr_object_text(one, "verb");
        const json_t *object = json_object_get(one, "object");
        bool is_left = strcmp(verb, "delete") == 0;
        if (strcmp(verb, "status") == 0 && resource_of(object) == job->resource) {
            json_t *written = json_object_get(object, "status");
            if (look->on_way == 0) { /* else more may be refused */
                status = gr_refusal_settle(&look->result, look->unmade, look->before, written);
            }
            is_left = status != GR_OK || look->on_way > 0 || !json_equal(written, look->before);
        }
        if (is_left) {
            break;
        }
        look->unmade[look->begun++] = true;
    }
    return status;
}

/* Returns true if the next write may begin now. */
static bool may_begin(const gr_controller *c, const gr_controller_job *job)
{
    static const unsigned allowed[] = {[ALONE] = 0,
                                       [SERVICE] = 1U << SERVICE | 1U << PART | 1U << POD,
                                       [PART] = 1U << SERVICE | 1U << PART,
                                       [POD] = 1U << SERVICE | 1U << POD};
    const json_t *one = write_of(job, job->look->begun);
    int most = c->config.writes_at_once, jobs = c->config.jobs_at_once;
    if (job->look->on_way == 0) {
        return job->look->is_getting || one != NULL;
    }
    return job->look->failed <= FAILS_TO_CREATE && one != NULL && job->look->on_way < most &&
           c->on_way < (most > jobs ? most : jobs) &&
           (job->look->beside & ~allowed[class_of(one)]) == 0;
}

/* The next action of an active job. */
static void start(gr_controller *c, gr_controller_job *job, gr_controller_action *action)
{
    action->write = job->look->is_getting ? job->look->failed_write : job->look->begun++;
    const json_t *one = write_of(job, action->write);
    job->look->beside = (job->look->on_way > 0 ? job->look->beside : 0) | 1U << class_of(one);
    job->look->on_way++;
    c->on_way++;
    action->job = job;
    action->object = json_object_get(one, "object");
    action->resource = resource_of(action->object);
    action->verb = job->look->is_getting ? "get" : gr_object_text(one, "verb");
}

/* Returns true if the deletion has removed the object. A pod that has ended goes at once, though
 * the answer has a deletionTimestamp, as that of one that takes its time. */
static bool is_gone_by(const json_t *answer)
{
    const json_t *grace_s = gr_object_at(answer, "metadata.deletionGracePeriodSeconds");
    return gr_object_text(answer, "metadata.deletionTimestamp") == NULL ||
           (json_is_integer(grace_s) && json_integer_value(grace_s) == 0 &&
            json_array_size(gr_object_at(answer, "metadata.finalizers")) == 0);
}

/* The cache takes what a write has made. */
static gr_status take_written(gr_controller *c, const gr_controller_job *job, size_t write,
                              const json_t *answer)
{
    const json_t *object = gr_object_at(write_of(job, write), "object");
    const char *verb = gr_object_text(write_of(job, write), "verb");
    size_t resource = resource_of(object);
    gr_status status = GR_OK;
    if (strcmp(verb, "status") == 0 && resource == job->resource) {
        /* The cache does not tell what is new: a watch may have shown the status before. */
        status = gr_counts_add_held(&c->counts, job->kind, job->group->space,
                                    gr_counts_held(object) & ~job->look->held);
    }
    if (status == GR_OK && strcmp(verb, "delete") == 0 && is_gone_by(answer)) {
        status = gr_cache_remove(c->cache, resource, object);
    } else if (status == GR_OK && answer != NULL) {
        status =
            gr_cache_put(c->cache, resource, answer, GR_FROM_ANSWER, &c->is_doubtful[resource]);
    }
    return status;
}

/* An object could not be made: the job's user is to know. */
static gr_status emit_refused(gr_controller *c, const gr_controller_job *job, size_t write,
                              const json_t *answer)
{
    json_t *event = gr_refusal_event(job->kind->kind, gr_object_at(write_of(job, write), "object"),
                                     gr_object_text(answer, "message"));
    gr_status status = event != NULL ? emit_event(c, job, event) : GR_E_NO_MEMORY;
    json_decref(event);
    return status;
}

/* An object without the label by which its resource is watched: the cache would keep it as it is
 * now, for ever. If it is the job's, somebody has taken the label away. */
static gr_status meet_unwatched(gr_controller *c, gr_controller_job *job, const json_t *wanted,
                                const json_t *object)
{
    size_t resource = resource_of(wanted);
    const char *name = gr_object_text(wanted, "metadata.name");
    const char *uid = json_string_value(job->look->uid);
    gr_status status =
        gr_cache_forget(c->cache, job->group, resource, name, job->look->asked_version);
    if (status != GR_OK || gr_cache_version(c->cache, job->group, resource, name) != 0) {
        return status; /* a watch has shown it meanwhile */
    }
    status = gr_obstacle_add(&job->obstacles, wanted, object);
    if (status == GR_OK && uid != NULL && gr_object_controlled(object, uid)) {
        json_t *event = gr_obstacle_event(wanted, gr_operator_resources[resource].selector);
        status = event != NULL ? emit_event(c, job, event) : GR_E_NO_MEMORY;
        json_decref(event);
    }
    return status;
}

static gr_status got(gr_controller *c, gr_controller_job *job, gr_api_answer answer,
                     const json_t *object)
{
    const json_t *wanted = gr_object_at(write_of(job, job->look->failed_write), "object");
    size_t resource = resource_of(wanted);
    const char *selector = gr_operator_resources[resource].selector;
    gr_status status = GR_OK;
    if (answer == GR_API_OK && object != NULL && selector != NULL &&
        json_object_get(gr_object_at(object, "metadata.labels"), selector) == NULL) {
        status = meet_unwatched(c, job, wanted, object);
    } else if (answer == GR_API_OK && object != NULL) {
        status =
            gr_cache_put(c->cache, resource, object, GR_FROM_ANSWER, &c->is_doubtful[resource]);
        if (status == GR_OK && resource != job->resource &&
            !gr_cache_is_of(c->cache, job->group, object)) {
            status = gr_obstacle_add(&job->obstacles, wanted, object);
        }
    } else if (answer == GR_API_NOT_FOUND) { /* one that came since is a new one */
        status = gr_cache_forget(c->cache, job->group, resource,
                                 gr_object_text(wanted, "metadata.name"), job->look->asked_version);
    }
    return status == GR_OK ? end_look(c, job, true) : status;
}

static void note_failure(gr_controller_job *job, failure what, size_t write)
{
    if (job->look->failed <= FAILS_TO_CREATE) {
        job->look->failed = what;
        job->look->failed_write = write;
    }
}

static gr_status take_refused(gr_controller *c, gr_controller_job *job, size_t write,
                              const json_t *answer)
{
    controller_look *look = job->look;
    bool is_first = look->failed == FAILS_NOT;
    if (look->unmade == NULL) {
        look->unmade = calloc(json_array_size(look->result.writes), sizeof *look->unmade);
    }
    if (look->unmade == NULL) {
        return GR_E_NO_MEMORY;
    }
    look->unmade[write] = true;
    if (!is_first) {
        return GR_OK;
    }
    look->failed = FAILS_TO_CREATE;
    return emit_refused(c, job, write, answer);
}

static gr_status take_answer(gr_controller *c, gr_controller_job *job, size_t write,
                             gr_api_answer answer, const json_t *object)
{
    const char *verb = gr_object_text(write_of(job, write), "verb");
    switch (answer) {
    case GR_API_OK:
        return take_written(c, job, write, object);
    case GR_API_NOT_FOUND:
        if (strcmp(verb, "delete") == 0) {
            return take_written(c, job, write, NULL);
        }
        /* fall through */
    case GR_API_CONFLICT:
    case GR_API_EXISTS:
        note_failure(job, FAILS_BY_STATE, write);
        return GR_OK;
    case GR_API_REFUSED:
        if (strcmp(verb, "create") == 0) {
            return take_refused(c, job, write, object);
        }
        /* fall through */
    case GR_API_FAILED:
        note_failure(job, FAILS, write);
        break;
    }
    return GR_OK;
}

/* Nothing of the job is on its way. */
static gr_status go_on(gr_controller *c, gr_controller_job *job)
{
    if (job->look->failed == FAILS) {
        return end_look(c, job, true);
    }
    if (job->look->failed == FAILS_BY_STATE) {
        const json_t *object = gr_object_at(write_of(job, job->look->failed_write), "object");
        job->look->is_getting = true;
        job->look->asked_version = gr_cache_version(c->cache, job->group, resource_of(object),
                                                    gr_object_text(object, "metadata.name"));
    } else {
        gr_status status = pass_over(job);
        if (status != GR_OK || write_of(job, job->look->begun) == NULL) {
            return status != GR_OK ? status : complete_look(c, job);
        }
    }
    make_ready(c, job);
    return GR_OK;
}

gr_status gr_controller_answer(gr_controller *controller, gr_controller_job *job, size_t write,
                               const gr_controller_time *now, gr_api_answer answer,
                               const json_t *object)
{
    controller->now_us = now->monotonic_us;
    controller->on_way--;
    job->look->on_way--;
    if (job->look->is_getting) {
        return got(controller, job, answer, object);
    }
    gr_status status = take_answer(controller, job, write, answer, object);
    if (status == GR_OK && job->look->on_way == 0 && !job->look->is_ready) {
        return go_on(controller, job);
    }
    if (status == GR_OK && may_begin(controller, job)) {
        make_ready(controller, job);
    }
    return status;
}

/* ---- Progress -------------------------------------------------------------------------------- */
bool gr_controller_ask(gr_controller *controller, int64_t now_us, gr_question *question_out,
                       int64_t *wake_us_out)
{
    *wake_us_out = GR_NEVER;
    return controller->is_leader &&
           gr_asking_next(controller->asking, now_us, question_out, wake_us_out);
}

/* A worker that says the same again may be cut off from the others: the next one is asked. */
gr_status gr_controller_answered(gr_controller *controller, const gr_question *question,
                                 int64_t now_us, const char *text, size_t size_bytes)
{
    json_t *progress = text != NULL ? gr_job_progress_read(text, size_bytes) : NULL;
    int64_t step = gr_object_int(progress, "step", -1);
    gr_controller_job *job = gr_asking_job(question);
    bool is_useful = progress != NULL && job != NULL && step != job->step;
    gr_asking_answered(controller->asking, question->asked, now_us, is_useful);
    *(progress != NULL ? &controller->answered_count : &controller->unanswered_count) += 1;
    if (progress == NULL || job == NULL) {
        json_decref(progress);
        return GR_OK;
    }
    job->step = step;
    json_decref(job->progress);
    job->progress = progress;
    controller->now_us = now_us;
    return enqueue(controller, job, now_us);
}

/* ---- Next ------------------------------------------------------------------------------------ */
/* An event or a list, which nobody waits for. */
static bool take_other(gr_controller *c, gr_controller_action *action)
{
    json_decref(c->told);
    c->told = json_incref(json_array_get(c->events, 0));
    if (c->told != NULL) {
        json_array_remove(c->events, 0);
        action->verb = "event";
        action->object = c->told;
        return true;
    }
    for (size_t i = 0; i < gr_operator_resource_count; i++) {
        if (c->is_doubtful[i]) {
            c->is_doubtful[i] = false;
            action->verb = "list";
            action->resource = i;
            return true;
        }
    }
    return false;
}

/* Who stands by keeps nothing of jobs that are gone. True: there may be more of them. */
static bool forget_gone(gr_controller *c, gr_status *status_out)
{
    if (c->is_leader || c->queue_count == 0 || c->queue[0]->due_us != GONE_US) {
        return false;
    }
    gr_controller_job *job = pop(c);
    if (job->is_gone) {
        free_job(c, job);
    } else {
        *status_out = enqueue(c, job, c->now_us);
    }
    return true;
}

/* The first one of those with an action to start. */
static void leave_ready(gr_controller *c, gr_controller_job *job)
{
    c->ready = job->look->next_ready;
    c->ready_end = c->ready == NULL ? &c->ready : c->ready_end;
    job->look->is_ready = false;
}

/* The first one has something to begin; or it had, and another is leader now, or a write that was
 * on its way has failed. */
static gr_status take_ready(gr_controller *c, gr_controller_action *action, bool *is_taken_out)
{
    gr_controller_job *job = c->ready;
    if (!c->is_leader) { /* what is not begun is another's now */
        job->look->is_changed = true;
        job->look->failed = FAILS;
    }
    bool is_over = job->look->failed > FAILS_TO_CREATE && (!job->look->is_getting || !c->is_leader);
    gr_status status = pass_over(job);
    if (status != GR_OK) {
        return status;
    }
    if (!is_over && may_begin(c, job)) {
        start(c, job, action);
        *is_taken_out = true;
    }
    if (is_over || !may_begin(c, job)) {
        leave_ready(c, job);
    }
    return !job->look->is_ready && job->look->on_way == 0 ? go_on(c, job) : GR_OK;
}

gr_status gr_controller_next(gr_controller *controller, const gr_controller_time *now,
                             gr_controller_action *action_out, gr_diag *diag)
{
    gr_controller *c = controller;
    gr_controller_action action = {.resource = gr_operator_resource_count, .wake_us = GR_NEVER};
    gr_status status = GR_OK;
    c->now_us = now->monotonic_us;
    bool is_taken = take_other(c, &action);
    while (!is_taken && c->ready != NULL && status == GR_OK) {
        status = take_ready(c, &action, &is_taken);
    }
    if (!is_taken && status == GR_OK && c->queue_count > 0 && c->is_leader && is_ready(c) &&
        c->active_count < c->config.jobs_at_once && c->on_way < c->config.jobs_at_once) {
        action.wake_us = c->queue[0]->due_us;
        if (action.wake_us <= c->now_us) {
            gr_controller_job *job = pop(c);
            action.wake_us = c->now_us;
            if (job->is_gone) {
                free_job(c, job);
            } else {
                status = look(c, job, now->wall_s, &action.has_failed, diag);
            }
        }
    }
    if (!is_taken && status == GR_OK && forget_gone(c, &status)) {
        action.wake_us = c->now_us;
    }
    *action_out = action;
    return status;
}
