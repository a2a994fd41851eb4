/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_CLUSTER_H
#define GR_CLI_CLUSTER_H

/* A Kubernetes cluster as verbs see it: its jobs, whatever their kind. cluster.c asks,
 * cluster_job.c knows what a job's objects say, cluster_follow.c shows a job until its end,
 * cluster_verbs.c is ls, logs, wait, stop, scale and top. */

#include "cli/cli.h"
#include "kube/client.h"

typedef struct gr_cluster_flags {
    const char *kubeconfig, *context, *space;
} gr_cluster_flags;

/* The rows of a struct whose member `member` they are. */
#define GR_CLI_ROWS_CLUSTER(struct_, member)                                                       \
    {.flag = "--kubeconfig",                                                                       \
     .type = GR_CONFIG_TEXT,                                                                       \
     .offset = offsetof(struct_, member.kubeconfig),                                               \
     .value_name = "FILE",                                                                         \
     .help = "how a Kubernetes cluster is reached; otherwise KUBECONFIG, else ~/.kube/config"},    \
        {.flag = "--context",                                                                      \
         .type = GR_CONFIG_TEXT,                                                                   \
         .offset = offsetof(struct_, member.context),                                              \
         .value_name = "NAME",                                                                     \
         .help = "the context of that file; otherwise its current one"},                           \
    {                                                                                              \
        .flag = "--namespace", .short_flag = 'n', .type = GR_CONFIG_TEXT,                          \
        .offset = offsetof(struct_, member.space), .value_name = "NAME",                           \
        .help = "the namespace of the cluster; otherwise that of the context"                      \
    }

/* Returns true if the flags name a cluster; false: this host. */
bool gr_cluster_is_meant(const gr_cluster_flags *flags);

typedef struct gr_cluster_client {
    gr_kube_access *access;
    gr_kube *kube;
    const char *space;
    int signal_fd;     /* signals that ask for an end are held back from open on */
    int signal_number; /* that has come, and that nobody has heeded; 0: none */
} gr_cluster_client;

/* Fails as gr_kube_access_open and gr_kube_create do. */
gr_status gr_cluster_open(const gr_cluster_flags *flags, gr_cluster_client *cluster_out,
                          gr_diag *diag) GR_MUST_CHECK;
void gr_cluster_close(gr_cluster_client *cluster); /* zeroed: nothing */
/* Says what went wrong; returns the exit code: GR_EXIT_INPUT for what the user gave, and for what
 * the cluster refuses; GR_EXIT_FAILED where it was not reached, or has trouble of its own. */
int gr_cluster_fail(gr_status status, const gr_diag *diag);

/* Does what there is to do for the cluster, or waits until there is something. Returns the signal
 * that asks for an end, 0: none. */
int gr_cluster_wait(gr_cluster_client *cluster);
/* Asks and waits for the answer; `done` and `arg` of the request are not used. *object_out (may be
 * NULL): what came, a new reference. The status of the answer; GR_E_CANCELLED: a signal. */
gr_status gr_cluster_ask(gr_cluster_client *cluster, const gr_kube_request *request,
                         json_t **object_out, gr_diag *diag) GR_MUST_CHECK;
/* Adds all objects of a resource in the namespace to an array. */
gr_status gr_cluster_list(gr_cluster_client *cluster, gr_kube_resource resource, const char *labels,
                          json_t *objects, gr_diag *diag) GR_MUST_CHECK;

/* ---- Jobs ------------------------------------------------------------------------------------ */

#define GR_CLUSTER_LABEL "gradus/job" /* of what gradus submit has sent, with the job's name */
#define GR_CLUSTER_ELASTIC "gradus/elastic" /* an annotation: the number of workers may change */

typedef struct gr_cluster_kind {
    const char *kind, *api_version;
    gr_kube_resource resource;
    const char *pod_label; /* that the pods of a job have, with its name */
    const char *replicas;  /* path of the roles of its replicas; NULL: a plain Job */
    const char *container; /* whose output counts; NULL: the first one */
    bool has_one_role;     /* `replicas` is its path */
} gr_cluster_kind;

extern const gr_cluster_kind gr_cluster_kinds[]; /* ends with kind NULL */
/* NULL: there is none. */
const gr_cluster_kind *gr_cluster_kind_of(const char *api_version, const char *kind);

typedef struct gr_cluster_job {
    const gr_cluster_kind *kind;
    json_t *object; /* owned */
} gr_cluster_job;

/* "NAME", or "KIND/NAME". GR_E_NOT_FOUND with a sentence. The caller calls gr_cluster_job_fini. */
gr_status gr_cluster_find(gr_cluster_client *cluster, const char *name, gr_cluster_job *job_out,
                          gr_diag *diag) GR_MUST_CHECK;
void gr_cluster_job_fini(gr_cluster_job *job);
const char *gr_cluster_job_name(const gr_cluster_job *job);
const char *gr_cluster_job_uid(const gr_cluster_job *job);
/* Selects its pods. */
enum { GR_CLUSTER_SELECTOR_BYTES = 320 };
void gr_cluster_selector(const gr_cluster_job *job, char text_out[GR_CLUSTER_SELECTOR_BYTES]);

typedef enum gr_cluster_state {
    GR_CLUSTER_PENDING,
    GR_CLUSTER_RUNNING,
    GR_CLUSTER_SUSPENDED,
    GR_CLUSTER_SUCCEEDED,
    GR_CLUSTER_FAILED
} gr_cluster_state;

extern const char *const gr_cluster_states[]; /* their words */
/* *why_out: of one that failed, borrowed; "": not known. */
gr_cluster_state gr_cluster_state_of(const gr_cluster_job *job, const char **why_out);
int gr_cluster_workers(const gr_cluster_job *job);
/* "step 120 of 500, epoch 3 of 10, loss 0.123, 12,350 samples/s, rank 2 is late by 1.2 ms", as the
 * job's status says it; "": it says nothing. */
enum { GR_CLUSTER_PROGRESS_BYTES = 320 };
void gr_cluster_progress(const gr_cluster_job *job, char text_out[GR_CLUSTER_PROGRESS_BYTES]);

/* A pod of a job. */
enum { GR_CLUSTER_ROLE_BYTES = 64, GR_CLUSTER_SENTENCE_BYTES = 640 };
/* "3", "launcher", "ps 0"; *order_out sorts pods. */
void gr_cluster_role(const gr_cluster_job *job, const json_t *pod,
                     char text_out[GR_CLUSTER_ROLE_BYTES], int *order_out);
/* The container whose output is shown, and its status; NULL: not known yet. */
const char *gr_cluster_container(const gr_cluster_job *job, const json_t *pod,
                                 const json_t **status_out);
/* Why the pod does not run, or how it has failed: one sentence. `reason_out` is the same while the
 * reason is. False: nothing is wrong. */
bool gr_cluster_trouble(const gr_cluster_job *job, const json_t *pod,
                        char reason_out[GR_CLUSTER_ROLE_BYTES],
                        char sentence_out[GR_CLUSTER_SENTENCE_BYTES]);

/* ---- Following ------------------------------------------------------------------------------- */

typedef struct gr_follow_options {
    bool logs;          /* what its pods write goes to stdout */
    bool once;          /* what they have written up to now, and no more */
    const char *detach; /* of a job that was sent just now: how to come back to it; NULL: the user
                           has named the job */
} gr_follow_options;

/* Until the job has ended: 0, GR_EXIT_FAILED; GR_EXIT_RESUME after a signal, or with `detach` where
 * the cluster is lost: the job goes on. Else as gr_cluster_fail. */
int gr_cluster_follow(gr_cluster_client *cluster, gr_cluster_job *job,
                      const gr_follow_options *options);

/* ---- Verbs ----------------------------------------------------------------------------------- */

/* Each returns the exit code. */
int gr_cluster_ls(const gr_cluster_flags *flags, bool json);
int gr_cluster_logs(const gr_cluster_flags *flags, const char *name, bool follow);
int gr_cluster_wait_for(const gr_cluster_flags *flags, const char *name);
int gr_cluster_stop(const gr_cluster_flags *flags, const char *name, bool now);
int gr_cluster_scale(const gr_cluster_flags *flags, const char *name, int64_t to);
int gr_cluster_top(const gr_cluster_flags *flags, const char *name);
/* "-n team --context dev", as the user named the cluster, behind a blank; "": nothing was named. */
enum { GR_CLUSTER_NAMED_BYTES = 512 };
void gr_cluster_named(const gr_cluster_flags *flags, char text_out[GR_CLUSTER_NAMED_BYTES]);

#endif
