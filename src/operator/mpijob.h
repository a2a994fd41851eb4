/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_MPIJOB_H
#define GR_OPERATOR_MPIJOB_H

/* What the files of the kind MPIJob v2beta1 share. */

#include "operator/look.h"

#include <stdint.h>

enum { GR_MPIJOB_WORKERS_MAX = 100000 };
/* An annotation: how mpirun comes to the workers, one of gr_mpijob_launches. */
#define GR_MPIJOB_LAUNCH "gradus/launch"
#define GR_MPIJOB_AGENT_PORT "7522" /* where `gradus rsh` looks for agents (launch/command.h) */

/* One look at one job. The values are owned by `look`, `launcher` and `pods`. */
typedef struct gr_mpijob {
    gr_look look;
    const char *implementation; /* "OpenMPI", "Intel" or "MPICH" */
    int64_t workers;            /* that there are to be */
    bool launcher_is_worker, is_suspended;
    bool by_agent;      /* its launcher reaches the workers by agents, not by ssh */
    json_t *launcher;   /* the batch Job that is there, or is to be created; NULL: neither */
    json_t *pods;       /* an array: the workers that are there, or are to be created */
    bool lacks_workers; /* others are the next look's */
    bool no_key;
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
/* For ssh, or for agents. */
json_t *gr_mpijob_secret(gr_mpijob *m);
json_t *gr_mpijob_worker(gr_mpijob *m, int64_t index);
json_t *gr_mpijob_launcher(gr_mpijob *m);
json_t *gr_mpijob_launcher_template(gr_mpijob *m);
json_t *gr_mpijob_pod_group(gr_mpijob *m);
/* Returns true if the launcher is made when the workers are ready, by launcherCreationPolicy: until
 * then the PodGroup is theirs alone. */
bool gr_mpijob_launcher_waits(const gr_mpijob *m);
/* Returns true if the labels make the pod a worker of this job. *index_out: which one. */
bool gr_mpijob_is_worker(const gr_mpijob *m, const json_t *pod, int64_t *index_out);

/* ---- mpijob_agent.c -------------------------------------------------------------------------- */
extern const char *const gr_mpijob_launches[];   /* "agent", "ssh"; ends with NULL */
const char *gr_mpijob_launch(const json_t *job); /* NULL: the job has none */
/* The text of what mpirun calls in place of ssh; a new value. */
json_t *gr_mpijob_launch_script(gr_mpijob *m);
/* The token and the program, for the pods of both roles. */
void gr_mpijob_add_agent(gr_mpijob *m, json_t *spec, json_t *container);
/* What a worker runs, unless it has a command that is not sshd. */
void gr_mpijob_add_agent_command(gr_mpijob *m, json_t *container);

/* ---- mpijob_status.c ------------------------------------------------------------------------- */
/* Zeroes the counts of "Launcher" or "Worker"; returns them. */
json_t *gr_mpijob_zero_replicas(gr_mpijob *m, const char *role);
/* What launcher and workers mean for the job. */
void gr_mpijob_report_status(gr_mpijob *m);

#endif
