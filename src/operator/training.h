/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_TRAINING_H
#define GR_OPERATOR_TRAINING_H

/* What the kinds of training-operator share: a job has pods of several roles, numbered from 0, and
 * for each pod a Service of the same name. */

#include "operator/look.h"
#include "operator/problems.h"

#include <stdint.h>

enum { GR_TRAINING_ROLES_MAX = 5, GR_TRAINING_NAME_BYTES = 512 };

typedef struct gr_training gr_training;

/* The pods of one role. */
typedef struct gr_training_role {
    const char *name;       /* "Worker" */
    char label[16];         /* "worker" */
    bool is_single;         /* its only pod is JOB-ROLE, without a number */
    const json_t *template; /* of its pods */
    const char *container;  /* the name of the one that works */
    const char *restart_policy;
    int64_t replicas, port;
    bool is_closed;            /* pods that are missing stay so */
    const char *counter;       /* of the status, for pods that are made now; NULL: none */
    json_t **pods, **services; /* own ones, `replicas` of each, borrowed; NULL: not there */
    int64_t active, succeeded, failed;
    bool is_new; /* are the counts of those that ended other than in the status that was seen? */
} gr_training_role;

typedef struct gr_training_kind {
    const gr_operator_kind *kind;
    const char *specs;         /* "tfReplicaSpecs" */
    const char *operator_name; /* "tfjob-controller" */
    const char *container; /* that works; NULL: spec.mainContainer or the first, whose end is not
                              reported */
    const char *port_name; /* of it; NULL: it needs no port */
    int port;
    /* A role whose pods serve those of the others, and go when these have ended; its container has
     * a port of its own in place of `port`. NULL: none. */
    const char *server_role, *server_port_name;
    int server_port;
    const char *single_role;    /* whose only pod has no number; NULL: none */
    const char *restart_policy; /* where a role says none */
    const char *const *roles;   /* as their pods are made; NULL-terminated */
    const char *deleted_reason; /* of the event that says that the job itself is deleted */
    const char *warning_prefix; /* of events about templates; NULL: "SetPodTemplate" */
    bool has_services;          /* each pod has one */
    bool restarts_failed; /* with OnFailure and Always a pod that failed is made anew, and one that
                             is taken away has failed */
    bool has_selector;    /* in the status, for the scale subresource */
    bool has_attempts;    /* its roles are maps of the spec, "workers" that of "Worker", and all of
                             its pods are made anew together: restarts of single ones are not
                             counted */
    bool is_strict;       /* limits below 0 and an unknown cleanPodPolicy are errors */
    /* What only this kind has; NULL: nothing. */
    void (*set_defaults)(json_t *spec, bool *no_memory);
    void (*report_counted)(gr_training *t, const gr_training_role *role, int64_t index);
    void (*check)(gr_problems *p, const json_t *spec, const json_t *specs);
    void (*warn)(gr_training *t);       /* of what a new job has, and nobody heeds */
    void (*keep_first)(gr_training *t); /* objects that no PodGroup holds up */
    void (*keep_more)(gr_training *t);  /* objects beside pods and Services */
    /* False: nothing more is done in this look. */
    bool (*keep_attempt)(gr_training *t);
    void (*complete_labels)(gr_training *t, const gr_training_role *role, json_t *labels);
    void (*complete_pod)(gr_training *t, const gr_training_role *role, int64_t index,
                         json_t *pod_spec);
    /* NULL: as usual */
    void (*report_created)(gr_training *t, const gr_training_role *role, const char *pod);
    void (*report_status)(gr_training *t); /* what the counts mean */
} gr_training_kind;

/* One look at one job. */
struct gr_training {
    gr_look look;
    const gr_training_kind *kind;
    gr_training_role roles[GR_TRAINING_ROLES_MAX]; /* those that the job has */
    size_t role_count;
    int64_t replicas; /* of all roles */
    int64_t created;  /* pods and Services, in this look */
    json_t *surplus;  /* an array: own pods and Services that no role wants */
    json_t *foreign;  /* an array: those of others, with names of ours */
    json_t *cluster;  /* TFJob's: the hosts of all roles, made when it is needed */
    bool is_suspended, is_deleted;
    bool has_fewer; /* of the pods of a role run than the status says */
};

/* ---- training.c ------------------------------------------------------------------------------ */
gr_status gr_training_reconcile(const gr_training_kind *kind, const gr_operator_view *view,
                                gr_operator_result *result_out, gr_diag *diag);
/* NULL: the job has no such pods. */
const gr_training_role *gr_training_find_role(const gr_training *t, const char *name);
/* Sets a condition with the reason KIND<what>, unless the job has failed. A job that restarts does
 * not run until the failed pods that are made anew are gone: the two would take turns at each look.
 */
void gr_training_set_condition(gr_training *t, const char *type, bool holds, const char *what,
                               const char *message);
/* Sends an event with the reason KIND<what>. */
void gr_training_event(gr_training *t, const char *type, const char *what, const char *message);
/* Deletes all pods and their Services; those of the server role once the others have ended. */
void gr_training_delete_pods(gr_training *t);
/* Likewise, but those that have ended stay, with their logs, unless cleanPodPolicy is All. */
void gr_training_stop_pods(gr_training *t);
/* The role that a label of the pod says; NULL: none. */
const char *gr_training_role_of(const json_t *pod);
/* Returns true if pods of the role that fail are deleted and made anew. */
bool gr_training_remakes(const gr_training *t, const gr_training_role *role);
/* Returns true if the pod is of the server role, also if no role wants it any more. */
bool gr_training_serves(const gr_training *t, const json_t *pod);
/* Deletes one pod, unless it goes already. */
void gr_training_delete_pod(gr_training *t, const json_t *pod);
/* By its status. NULL: false. */
bool gr_training_has_phase(const json_t *pod, const char *phase);
bool gr_training_has_ended(const json_t *pod);
/* From this exit code on a signal has ended it. */
enum { GR_TRAINING_FIRST_SIGNAL = 128 };
/* How the container that works has ended; false: it has not, or nobody knows. */
bool gr_training_exit_code(const gr_training_role *role, const json_t *pod, int64_t *code_out);
/* The job ends, `type` is "Succeeded" or "Failed". */
void gr_training_end(gr_training *t, const char *type, const char *message);

/* ---- training_spec.c ------------------------------------------------------------------------- */
void gr_training_set_defaults(gr_training *t);
/* One sentence about all that is wrong, empty if nothing is. */
void gr_training_validate(gr_training *t, char sentence_out[GR_EVENT_BYTES]);
bool gr_training_is_server_role(const gr_training *t, const char *role);
/* Finds the roles of a job that is valid; false: no memory. */
bool gr_training_read_roles(gr_training *t);

extern const char *const gr_training_replica_fields[];

/* ---- training_objects.c ---------------------------------------------------------------------- */
/* Of a pod and its Service. */
void gr_training_name(const gr_training *t, const gr_training_role *role, int64_t index,
                      char name_out[GR_TRAINING_NAME_BYTES]);
json_t *gr_training_pod(gr_training *t, const gr_training_role *role, int64_t index);
json_t *gr_training_service(gr_training *t, const gr_training_role *role, int64_t index);
json_t *gr_training_pod_group(gr_training *t, const char *queue);
/* "KEY=VALUE,...": the labels of all pods of the role. */
json_t *gr_training_selector(gr_training *t, const gr_training_role *role);
/* The container of that name in a pod's spec; NULL: there is none. */
json_t *gr_training_find_container(const json_t *pod_spec, const char *name);

#endif
