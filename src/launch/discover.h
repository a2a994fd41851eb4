/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_DISCOVER_H
#define GR_LAUNCH_DISCOVER_H

/* Asks a program of the user's which hosts there are: one run of it at a time, beside whatever the
 * caller does meanwhile. It prints lines like "host1:4". */

#include "launch/host_list.h"

#include <sys/types.h>

enum {
    GR_DISCOVERY_OUTPUT_BYTES = 64 * 1024, /* more it cannot print */
    GR_DISCOVERY_LIMIT_US = 10000000       /* what has not ended by then is late */
};

typedef struct gr_discovery {
    const char *script;
    char *const *environment; /* NULL-terminated */
    int slots_per_host;       /* where a line says none */
    pid_t pid;                /* 0: it does not run */
    int pid_fd;               /* readable: it has ended */
    int out_fd, err_fd;       /* what it has printed, in memory */
} gr_discovery;

/* The caller has no other threads. */
gr_status gr_discovery_begin(gr_discovery *discovery, gr_diag *diag) GR_MUST_CHECK;
/* Once it has ended, or, if `late`, by ending it and what it has started: the hosts, their names
 * the arena's. GR_E_TIMEOUT, GR_E_INVALID, GR_E_IO: the sentence names the script and its last
 * line. */
gr_status gr_discovery_end(gr_discovery *discovery, bool late, gr_arena *arena,
                           gr_host_list *hosts_out, gr_diag *diag) GR_MUST_CHECK;
/* Ends it, whatever it is about; may be called at any time. */
void gr_discovery_stop(gr_discovery *discovery);

/* Runs it every `pause_us` until there are hosts for `slots` workers, for at most `timeout_us` (0:
 * any time); blocks. GR_E_TIMEOUT; GR_E_INVALID: the script fails; GR_E_CANCELLED: a signal that is
 * held back (signals.h) wants an end. */
gr_status gr_discovery_gather(gr_discovery *discovery, int slots, int64_t pause_us,
                              int64_t timeout_us, gr_arena *arena, gr_host_list *hosts_out,
                              gr_diag *diag) GR_MUST_CHECK;

#endif
