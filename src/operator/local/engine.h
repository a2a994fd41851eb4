/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_ENGINE_H
#define GR_OPERATOR_LOCAL_ENGINE_H

/* Containers of podman or docker in the place of processes. A pod's process starts the engine's
 * client for each container, and what holds of a process holds of that: its output, exit code and
 * signals are the container's. Containers are on the network of the host. */

#include "operator/local/pod_plan.h"
#include "operator/operator.h"

/* Where programs of Gradus are in each container. */
#define GR_ENGINE_PROGRAM GR_GRADUS_FOLDER "/gradus"

enum { GR_ENGINE_NOTE_BYTES = 512 };

/* Which engine runs the containers of `objects`. `asked`: "no", none; "podman", "docker", that one;
 * "auto": the first one that is installed and has the images of all jobs. *engine_out: its name;
 * NULL: none, containers are processes. *note_out: a sentence for the user; "": none.
 * GR_E_NOT_FOUND: it is not installed. GR_E_INVALID: another word. */
gr_status gr_engine_choose(const char *asked, const json_t *objects, const char **engine_out,
                           char note_out[GR_ENGINE_NOTE_BYTES], gr_diag *diag) GR_MUST_CHECK;

typedef struct gr_engine_place {
    const char *engine, *run;   /* run: a name of this run, which no other one has */
    const char *pod;            /* of the pod, within the run */
    const char *hosts, *tools;  /* /etc/hosts of all pods; the folder of what stands for ssh */
    const char *exec;           /* the folder where commands for other pods go (exec.h) */
    const char *program_folder; /* becomes GR_GRADUS_FOLDER */
    char *const *environment;   /* that of `gradus run`, for the engine's client */
} gr_engine_place;

/* The plan's containers, which were planned for an engine and whose volumes are written, get the
 * words and the environment of the engine's client. GR_E_INVALID: a container has no image.
 * GR_E_NO_MEMORY. */
gr_status gr_engine_contain(const gr_engine_place *place, gr_arena *arena, gr_pod_plan *plan,
                            gr_diag *diag) GR_MUST_CHECK;

/* Begins to ask whether the container runs: its client runs before it does. Returns the process
 * that asks; when that has ended, gr_engine_says_so takes *answer_out. -1: it was not started. */
pid_t gr_engine_ask(const gr_container *container, int *answer_out);
/* True: the container runs. Closes `answer`. */
bool gr_engine_says_so(int answer);
/* The words of the client for a command in a container that runs; they borrow `argv`, and the
 * caller frees the array alone. NULL: no memory. */
char **gr_engine_exec(const gr_container *container, char *const *argv);
/* Begins to end a container at once and to remove it, whether or not it is there. Returns the
 * process that does so; -1: none could be started. */
pid_t gr_engine_remove(const gr_container *container);
/* Removes what is left of the run's containers: those of a pod whose process was killed. */
void gr_engine_clear(const char *engine, const char *run, char *const *environment);

#endif
