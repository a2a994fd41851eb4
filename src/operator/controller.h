/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_CONTROLLER_H
#define GR_OPERATOR_CONTROLLER_H

/* The loop of an operator, without network and clock: what a cluster shows goes in, what is to be
 * asked of its API comes out. Whoever carries it out calls, in any order,
 *
 *   begin_list, seen ..., end_list   for each resource that is used, once at first, and after each
 *                                    action "list" or a watch that has lost its place
 *   seen, gone                       what a watch shows
 *   next                             until it gives no action; then again at `wake_us`, or after
 *                                    any other call
 *   answer                           once for each action that has a job
 *   ask                              until it gives no question; then again at `wake_us`, or after
 *                                    any other call
 *   told                             once for each question
 *
 * The same calls give the same actions. All functions are called by one thread. */

#include "operator/asking.h"
#include "operator/operator.h"
#include "operator/resource.h"

#include <stdint.h>

typedef struct gr_controller gr_controller;
typedef struct gr_controller_job gr_controller_job;

/* Borrowed for the life of the controller. */
typedef struct gr_controller_config {
    /* Those to serve, ends with NULL. A cluster shows each MPIJob in all versions that it serves:
     * of kinds that differ in the version alone only the first is served. */
    const gr_operator_kind *const *kinds;
    const char *cluster_domain, *gang_scheduler;
    /* As in gr_operator_view; NULL, 0: what it says there. */
    const char *pytorch_init_image, *kubectl_delivery_image;
    int64_t pytorch_init_tries;
    json_t *(*ssh_key)(void *ssh_key_arg);
    json_t *(*token)(void *ssh_key_arg);
    void *ssh_key_arg;
    bool has_no_agents;
    const char *launch_agent_image;
    int jobs_at_once; /* of which writes are on their way */
    /* Of one look, where none needs another: pods, say. 0: one after the other. Together with those
     * of other looks they are as many at most, or jobs_at_once where that is more; each look has
     * one beside that. */
    int writes_at_once;
    /* How often the workers of a job are asked how far it has come, 0: never; and how often in all,
     * which is at the same time how many statuses a second are written for that. */
    int64_t ask_every_us;
    double asks_a_second;
} gr_controller_config;

typedef struct gr_controller_time {
    int64_t monotonic_us;
    int64_t wall_s; /* since 1970; may step */
} gr_controller_time;

/* What to ask of the API. */
typedef struct gr_controller_action {
    /* "create", "update", "status", "delete": as in gr_operator_result; "get": the object of that
     * name; "event": an Event about involvedObject, with type, reason and message; "list": all
     * objects of the resource. NULL: nothing for now. */
    const char *verb;
    size_t resource;        /* index of gr_operator_resources */
    const json_t *object;   /* until the answer, of an event until the next call; else NULL */
    gr_controller_job *job; /* to be answered; NULL: nobody waits */
    size_t write;           /* for the answer: which one of the job */
    int64_t wake_us;        /* without a verb: INT64_MAX, or when to ask again at the latest */
    /* Without a verb: a job could not be looked at; `diag` says why. It is looked at again, later
     * each time. */
    bool has_failed;
} gr_controller_action;

typedef enum gr_api_answer {
    GR_API_OK,
    GR_API_CONFLICT,  /* another version or uid is there */
    GR_API_EXISTS,    /* an object of this name is there */
    GR_API_NOT_FOUND, /* the object is not there */
    GR_API_REFUSED,   /* it is forbidden, or invalid, by a quota for example */
    GR_API_FAILED,    /* anything else, also: no answer came */
} gr_api_answer;

/* Counted since the start, for each kind and namespace. */
typedef enum gr_job_count {
    GR_JOBS_CREATED,
    GR_JOBS_DELETED,
    GR_JOBS_SUCCESSFUL,
    GR_JOBS_FAILED,
    GR_JOBS_RESTARTED,
    GR_JOB_COUNTS, /* how many there are */
} gr_job_count;

typedef struct gr_controller_counts {
    const gr_operator_kind *kind;
    char *space;
    uint64_t counts[GR_JOB_COUNTS];
} gr_controller_counts;

gr_status gr_controller_create(const gr_controller_config *config, gr_controller **controller_out,
                               gr_diag *diag) GR_MUST_CHECK;
void gr_controller_destroy(gr_controller *controller);

/* Returns true if the resource must be listed and watched. */
bool gr_controller_uses(const gr_controller *controller, size_t resource);
void gr_controller_begin_list(gr_controller *controller, size_t resource);
/* The object (borrowed) is there, or has changed; `is_listed`: a list shows it. GR_E_NO_MEMORY. */
gr_status gr_controller_seen(gr_controller *controller, size_t resource, const json_t *object,
                             bool is_listed) GR_MUST_CHECK;
gr_status gr_controller_gone(gr_controller *controller, size_t resource,
                             const json_t *object) GR_MUST_CHECK;
/* `version`: the list's resourceVersion. */
gr_status gr_controller_end_list(gr_controller *controller, size_t resource,
                                 const char *version) GR_MUST_CHECK;

/* Nothing is written before the first call with true, nor begun after one with false. */
void gr_controller_lead(gr_controller *controller, bool is_leader);

/* Looks at one job at most. `action_out` with no verb and a wake_us that has passed: ask again.
 * GR_E_NO_MEMORY. */
gr_status gr_controller_next(gr_controller *controller, const gr_controller_time *now,
                             gr_controller_action *action_out, gr_diag *diag) GR_MUST_CHECK;
/* What became of an action. `object` (borrowed): as the API server answered it; for a refusal its
 * Status; NULL: there is none. */
gr_status gr_controller_answer(gr_controller *controller, gr_controller_job *job, size_t write,
                               const gr_controller_time *now, gr_api_answer answer,
                               const json_t *object) GR_MUST_CHECK;

/* Whom to ask how far a job has come: false where nobody is to be before *wake_us_out, or nobody
 * leads. */
bool gr_controller_ask(gr_controller *controller, int64_t now_us, gr_question *question_out,
                       int64_t *wake_us_out);
/* What a worker has answered, as it came (borrowed); NULL: nothing. GR_E_NO_MEMORY. */
gr_status gr_controller_answered(gr_controller *controller, const gr_question *question,
                                 int64_t now_us, const char *text, size_t size_bytes) GR_MUST_CHECK;

/* What has been counted, sorted by namespace. For tests. */
const gr_controller_counts *gr_controller_counted(const gr_controller *controller,
                                                  size_t *count_out);
/* The text of /metrics, on the heap: workqueue_*, mpi_operator_* and training_operator_*, as the
 * operators have them whose place this one takes. `now_us` is monotonic. NULL: no memory. */
char *gr_controller_metrics(const gr_controller *controller, int64_t now_us);

#endif
