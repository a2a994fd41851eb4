/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SERVE_H
#define GR_LAUNCH_SERVE_H

/* The host's end of the way from a launcher on another host: takes the order, has an agent start
 * the workers, and carries its messages and their output. When the launcher or the connection is
 * gone, everything ends. */

#include "link/tls.h"

/* To the launcher. */
typedef struct gr_serve_way {
    int in_fd, out_fd;
    gr_tls *tls;          /* NULL: none */
    const char *launcher; /* under which address this host sees it; NULL: as sshd saw it come */
} gr_serve_way;

/* Blocks until nothing of the job is left here. GR_OK: all was reported to the launcher; else
 * `diag` says why not. The process must have no other threads and no children. `environment` is
 * the host's own. `needed_out`: an order came; false with GR_OK: the launcher has hung up without
 * one; NULL: nobody asks. */
gr_status gr_serve_run(const gr_serve_way *way, char *const *environment, bool *needed_out,
                       gr_diag *diag) GR_MUST_CHECK;

#endif
