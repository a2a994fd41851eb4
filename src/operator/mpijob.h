/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_MPIJOB_H
#define GR_OPERATOR_MPIJOB_H

/* What the files of the kind MPIJob v2beta1 share. */

#include "operator/operator.h"

#include <stdint.h>

#define GR_MPIJOB_API "kubeflow.org/v2beta1"
enum { GR_MPIJOB_WORKERS_MAX = 100000 };

/* One look at one job. The values are owned by `job`, `status`, `launcher`, `workers` and
 * `result`. */
typedef struct gr_mpijob {
    const gr_operator_view *view;
    gr_operator_result *result;
    json_t *job; /* as observed, with defaults */
    const char *name, *space, *uid;
    const char *implementation; /* "OpenMPI", "Intel" or "MPICH" */
    int64_t workers;            /* that there are to be */
    bool launcher_is_worker, is_suspended;
    json_t *status;   /* as it becomes */
    json_t *launcher; /* the batch Job that is there, or is to be created; NULL: neither */
    json_t *pods;     /* an array: the workers that are there, or are to be created */
    bool no_memory, no_key;
    bool is_stopped; /* another's object is in the way */
} gr_mpijob;

/* ---- mpijob_spec.c --------------------------------------------------------------------------- */
/* Sets what the job leaves open. */
void gr_mpijob_defaults(json_t *job, bool *no_memory);
/* One sentence about all that is wrong in a job with defaults, empty if nothing is. */
void gr_mpijob_validate(const json_t *job, char sentence_out[GR_EVENT_BYTES]);

extern const gr_operator_fields gr_mpijob_fields[];

/* ---- mpijob_objects.c ------------------------------------------------------------------------ */
/* New objects; NULL, or one with a part missing, where no_memory is set. */
json_t *gr_mpijob_service(gr_mpijob *m);
json_t *gr_mpijob_config_map(gr_mpijob *m);
json_t *gr_mpijob_secret(gr_mpijob *m);
json_t *gr_mpijob_worker(gr_mpijob *m, int64_t index);
json_t *gr_mpijob_launcher(gr_mpijob *m);
json_t *gr_mpijob_launcher_template(gr_mpijob *m);
/* {name, namespace, ownerReferences}. */
json_t *gr_mpijob_metadata(gr_mpijob *m, const char *name);
/* Is it a worker of this job, by its labels? If so, which one. */
bool gr_mpijob_is_worker(const gr_mpijob *m, const json_t *pod, int64_t *index_out);

/* ---- pod_group.c: only with a gang scheduler ------------------------------------------------- */
const char *gr_mpijob_pod_group_api(const gr_mpijob *m);
json_t *gr_mpijob_pod_group(gr_mpijob *m);
/* Makes the pods of this template members of the group. */
void gr_mpijob_join_pod_group(gr_mpijob *m, json_t *template);

/* ---- mpijob_status.c ------------------------------------------------------------------------- */
/* Sets a condition; false: it is so already. */
bool gr_mpijob_set_condition(gr_mpijob *m, const char *type, bool holds, const char *reason,
                             const char *message);
/* Zeroes the counts of "Launcher" or "Worker"; returns them. */
json_t *gr_mpijob_zero_replicas(gr_mpijob *m, const char *role);
/* What launcher and workers mean for the job. */
void gr_mpijob_tell_status(gr_mpijob *m);

/* ---- mpijob.c -------------------------------------------------------------------------------- */
void gr_mpijob_event(gr_mpijob *m, const char *type, const char *reason, const char *message);

#endif
