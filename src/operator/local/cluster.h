/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_CLUSTER_H
#define GR_OPERATOR_LOCAL_CLUSTER_H

/* A cluster of one node, which is this process, for as long as its jobs run: the controller of
 * operator/controller.h with the store in place of an API server, and pods that are processes. */

#include <gradus/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct gr_local_config {
    const json_t *objects;    /* an array: the jobs, and what they need */
    const char *program;      /* this one, by its path: what stands for ssh and kubectl in pods */
    char *const *environment; /* pods begin with */
    bool timestamps;
    const char *engine; /* of containers (engine.h); NULL: they are processes */
    /* engine: puts this program and all that it needs into a folder. */
    gr_status (*install)(const char *folder, gr_diag *diag);
    /* While the jobs run, what this file holds is applied whenever it changes; jobs that are
     * suspended are waited for. NULL: neither. */
    const char *watched;
    gr_status (*read)(void *read_arg, json_t *objects, gr_diag *diag); /* what it holds by now */
    void *read_arg;
} gr_local_config;

typedef struct gr_local_report {
    json_t *jobs; /* an array: as they were last seen, in the order of their creation */
    json_t *pods; /* an array: those that were there at the end, before they were ended */
    int signal_number;
    bool is_suspended; /* what has not ended waits to be resumed */
    bool is_cut;       /* by the signal, from output that nobody took */
} gr_local_report;

void gr_local_report_fini(gr_local_report *report);

/* Runs the jobs until each has ended, or waits suspended, or a signal comes, and ends what is left
 * of them. Pods write to stdout and stderr, each line behind the name of its pod; events go to
 * stderr. The process must have no other threads; it is a subreaper afterwards.
 * GR_E_INVALID, GR_E_NOT_FOUND: something in a manifest cannot be had here. GR_E_IO: the system
 * does not do what pods need, or nobody reads our output. GR_E_NO_MEMORY. */
gr_status gr_local_run(const gr_local_config *config, gr_local_report *report_out,
                       gr_diag *diag) GR_MUST_CHECK;

#endif
