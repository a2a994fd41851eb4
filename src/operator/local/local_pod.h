/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_LOCAL_POD_H
#define GR_OPERATOR_LOCAL_LOCAL_POD_H

/* A pod that runs: its process, its output, what is known of its containers. The cluster's side of
 * pod_process.h. */

#include "launch/sink.h"
#include "operator/local/names.h"
#include "operator/local/pod_status.h"

#include <uv.h>

typedef struct gr_local_pod gr_local_pod;

/* What all pods of a run share; borrowed until the last one is destroyed. */
typedef struct gr_local_pods {
    uv_loop_t *loop;
    gr_store *store;
    gr_names *names;
    const char *root, *hosts, *program;
    const char *exec;                    /* the folder of exec.h */
    const char *engine, *program_folder; /* engine.h; engine NULL: containers are processes */
    char *const *environment;
    gr_sink *sinks[2]; /* of our stdout and stderr; NULL: nobody reads there */
    bool colors[2], timestamps;
    /* Something has changed in the store. */
    void (*changed)(void *pods_arg);
    /* A sentence for the user, printed once. */
    void (*note)(void *pods_arg, const char *sentence);
    void (*event)(void *pods_arg, const char *type, const char *reason, const char *kind,
                  const char *name, const char *message);
    void *pods_arg;
    unsigned int started; /* so far */
    bool has_no_rooms;    /* the system permits no namespaces: reported once */
    bool has_orphans;     /* of a pod whose process was killed; the caller ends them */
} gr_local_pods;

/* Starts the processes of a pod that is in the store. The caller keeps the result until
 * gr_local_pod_is_gone. GR_E_NOT_FOUND, GR_E_INVALID: of the manifest; GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_local_pod_start(gr_local_pods *pods, const json_t *pod, gr_local_pod **pod_out,
                             gr_diag *diag) GR_MUST_CHECK;
/* Asks it to end within so many seconds; 0: at once. */
void gr_local_pod_end(gr_local_pod *pod, int64_t grace_s);
/* What ConfigMaps and Secrets hold by now. */
void gr_local_pod_refresh(gr_local_pod *pod);
/* There is room again in our stdout and stderr. */
void gr_local_pod_go_on(gr_local_pod *pod);
/* Returns true if `other` must end before `pod`: workers end before the parameter servers of their
 * GradusJob, whose values they save. */
bool gr_local_pod_outlives(const gr_local_pod *pod, const gr_local_pod *other);
const char *gr_local_pod_uid(const gr_local_pod *pod);
int64_t gr_local_pod_grace_s(const gr_local_pod *pod);
pid_t gr_local_pod_pid(const gr_local_pod *pod); /* 0: it has ended */
/* Its processes have ended, and all that they wrote has gone its way: it may be destroyed. */
bool gr_local_pod_is_gone(const gr_local_pod *pod);
void gr_local_pod_destroy(gr_local_pod *pod);

#endif
