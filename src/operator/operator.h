/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_OPERATOR_H
#define GR_OPERATOR_OPERATOR_H

/* Kinds of Kubernetes jobs. A kind's reconciler is a pure function from what is in the cluster to
 * what is to be written there: no clock, no random numbers, no network. */

#include <gradus/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What pods get where a view names nothing else. */
#define GR_PYTORCH_INIT_IMAGE "alpine:3.10"
#define GR_KUBECTL_DELIVERY_IMAGE "kubeflow/kubectl-delivery:latest"
/* How gradus comes into pods whose images do not have it: an init container puts it there. */
#define GR_GRADUS_VOLUME "gradus-agent"
#define GR_GRADUS_FOLDER "/opt/gradus"
enum { GR_PYTORCH_INIT_TRIES = 100 };

/* Of pods and Services, which a job may have 100000 of: the answers have it looked at again. */
enum { GR_CREATIONS_MAX = 64 };
enum { GR_EVENT_BYTES = 1024 + 1 };      /* of the text of an event, as Kubernetes allows */
enum { GR_POD_MESSAGE_BYTES_MAX = 600 }; /* of what a pod says, in an event */

/* What a reconciler sees; all of it is borrowed for the call. */
typedef struct gr_operator_view {
    const json_t *job;
    /* An array: the objects of the job's namespace of the kinds that it may own, the pods of its
     * batch Jobs, and all PriorityClasses. A controller keeps of a pod: name, namespace, uid,
     * creationTimestamp, deletionTimestamp, ownerReferences, labels of training.kubeflow.org,
     * spec.restartPolicy, and of the status phase, reason, message, podIP, the condition Ready, the
     * condition PodScheduled where it is False, and of a container or init container that has
     * restarted, has ended, or waits with a message: name, restartCount, state.waiting, and of
     * state.terminated exitCode, and where that is not 0 reason and GR_POD_MESSAGE_BYTES_MAX of
     * message. Of a Secret it keeps the keys of `data` without the values, of a
     * HorizontalPodAutoscaler no status. */
    const json_t *objects;
    const char *now;            /* "2026-01-31T12:00:00Z" */
    const char *cluster_domain; /* behind the names of hosts, "cluster.local"; "": nothing */
    const char *gang_scheduler; /* "": none; "volcano"; else scheduler-plugins, under this name */
    /* The init container that waits for the master of a PyTorchJob, and how often it looks; the one
     * that brings kubectl to an MPIJob v1. NULL, 0: see above. */
    const char *pytorch_init_image, *kubectl_delivery_image;
    int64_t pytorch_init_tries;
    /* The data of a new ssh key pair as in a Secret: {"ssh-privatekey": ..., "ssh-publickey": ...},
     * both in base64. Asked only where a Secret is to be written; NULL: none could be made. */
    json_t *(*ssh_key)(void *ssh_key_arg);
    void *ssh_key_arg;
    /* Likewise {"token": 64 hexadecimal digits in base64}, by which the workers of a GradusJob know
     * each other, and the launcher of an MPIJob its agents. */
    json_t *(*token)(void *ssh_key_arg);
    bool creates_all;   /* more than GR_CREATIONS_MAX in one look, for nobody looks again */
    bool has_no_agents; /* MPIJobs are launched by ssh, whatever they ask for */
    const char *launch_agent_image; /* whose init container brings gradus; NULL, "": none */
    bool asks_progress;             /* workers of GradusJobs are asked how far they have come */
    const json_t *progress; /* what one has answered (gr_job_progress_read); NULL: nothing since */
} gr_operator_view;

typedef struct gr_operator_result {
    /* In this order: {"verb": "create", "update", "status" or "delete", "object": {...}}. An object
     * that is updated is whole, with the resourceVersion that was seen; "status" writes the status
     * alone. No object is written twice. A creation may have "first_event" and "end_event": events
     * from that index on, before that index, are told only if it is made; and "counter": the key of
     * the job's status that counts it. */
    json_t *writes;
    json_t *events;        /* {"type": "Normal" or "Warning", "reason": ..., "message": ...} */
    bool retry;            /* another's object is in the way: look again after a while */
    int64_t again_after_s; /* look again after so many seconds: a limit ends then; 0: no need */
    /* Where the job's workers show how far it has come, for who asks one of them from time to time:
     * {"addresses": [...], "port", "path"}; NULL: nobody is to be asked. */
    json_t *ask;
} gr_operator_result;

void gr_operator_result_fini(gr_operator_result *result);

/* The keys that a map of a job may have. */
typedef struct gr_operator_fields {
    const char *path;         /* of the map, "spec.runPolicy" */
    const char *const *known; /* NULL-terminated */
} gr_operator_fields;

typedef struct gr_operator_kind {
    const char *api_version, *kind;
    const gr_operator_fields *fields; /* ends with path NULL; pod templates are left out */
    /* Fills the result, which the caller ends; where it fails, there is none. A job that is wrong
     * is no failure, but an event with the reason ValidationError. GR_E_NO_MEMORY. */
    gr_status (*reconcile)(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag);
} gr_operator_kind;

/* One sentence about a key of the job that its kind does not have, and that nobody would heed.
 * False: there is none. */
bool gr_operator_unknown_field(const gr_operator_kind *kind, const json_t *job,
                               char sentence_out[GR_EVENT_BYTES]);

extern const gr_operator_kind *const gr_operator_kinds[]; /* ends with NULL */
/* The one of `kinds` (ends with NULL) that an object with these texts has; NULL: there is none. */
const gr_operator_kind *gr_operator_find_kind(const gr_operator_kind *const *kinds,
                                              const char *api_version, const char *kind);
/* "MPIJob of kubeflow.org/v2beta1, ...": as sentences name `kinds` (ends with NULL). */
enum { GR_OPERATOR_KINDS_BYTES = 512 };
void gr_operator_list_kinds(const gr_operator_kind *const *kinds,
                            char text_out[GR_OPERATOR_KINDS_BYTES]);
extern const gr_operator_kind gr_gradusjob_v1, gr_mpijob_v1, gr_mpijob_v2, gr_pytorchjob_v1,
    gr_tfjob_v1;

#endif
