/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_LEASE_H
#define GR_KUBE_LEASE_H

/* Leader election by a Lease of coordination.k8s.io/v1, as client-go does it: the leader renews the
 * Lease; whoever has seen it unchanged for its whole duration may take it. Only that time is
 * measured, by the observer's own monotonic clock: clocks of different hosts need not agree.
 *
 *   FOLLOWS ──the Lease is free, expired or ours: it is written──► LEADS
 *      ▲                                                             │
 *      └──renewed by nobody for renew_us, or another holder──────────┘
 */

#include "kube/client.h"

typedef struct gr_kube_lease_times {
    int64_t duration_us; /* after which others may take it */
    int64_t renew_us;    /* after which a leader that could not renew it steps down; shorter */
    int64_t retry_us;    /* between two looks */
} gr_kube_lease_times;

/* ---- The rules: from what was read to what is to be done; for lease.c, and for tests ---- */

/* What one candidate knows. */
typedef struct gr_kube_lease_view {
    char identity[128];
    gr_kube_lease_times times;
    char seen[256];      /* holder, time and version of the Lease as last read; "": none */
    int64_t seen_us;     /* when that was first read */
    int64_t duration_us; /* that its holder gives it */
    int64_t renewed_us;  /* when ours was last written for sure; counted from before the request */
    bool leads;
} gr_kube_lease_view;

/* Notes what was read, `lease` (NULL: there is none), at `now_us`. Returns the Lease to be written
 * in its place (a new reference), NULL: nothing is to be written. `wall_us` is for people who read
 * it. */
json_t *gr_kube_lease_look(gr_kube_lease_view *view, const json_t *lease, const char *name,
                           int64_t now_us, int64_t wall_us);
/* The write that began at `begun_us` was accepted. */
void gr_kube_lease_won(gr_kube_lease_view *view, int64_t begun_us);
/* A leader that has not been able to renew for too long leads no more. */
bool gr_kube_lease_is_over(const gr_kube_lease_view *view, int64_t now_us);

/* ---- The candidate ---- */

/* `leader` is the holder, "" if it is not known; `leads`: it is this one. Called when either
 * changes. */
typedef void gr_kube_lease_changed(void *arg, bool leads, const char *leader);

typedef struct gr_kube_lease gr_kube_lease;

typedef struct gr_kube_lease_options {
    const char *space, *name;
    const char *identity;      /* of this candidate: no other has it */
    gr_kube_lease_times times; /* zero: 15 s, 10 s, 2 s */
    gr_kube_lease_changed *changed;
    void *arg;
    const gr_log *log;
} gr_kube_lease_options;

/* Texts are copied. GR_E_INVALID (times that do not fit), GR_E_NO_MEMORY. */
gr_status gr_kube_lease_start(gr_kube *kube, const gr_kube_lease_options *options,
                              gr_kube_lease **lease_out, gr_diag *diag) GR_MUST_CHECK;
/* A leader leaves the Lease to others at once: the client must be run until `released` is called (a
 * candidate that does not lead calls it at once). */
void gr_kube_lease_stop(gr_kube_lease *lease, void (*released)(void *arg), void *arg);
/* Nothing more is done; others take the Lease when it has expired. Before gr_kube_destroy, also
 * behind gr_kube_lease_stop where `released` was not called. NULL: nothing. */
void gr_kube_lease_abandon(gr_kube_lease *lease);

#endif
