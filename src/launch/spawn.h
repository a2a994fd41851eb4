/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SPAWN_H
#define GR_LAUNCH_SPAWN_H

/* Start of one worker, with the steps between that no library offers. */

#include "launch/cores.h"

#include <sys/resource.h>
#include <sys/types.h>

typedef struct gr_spawn {
    char *const *argv;        /* NULL-terminated; argv[0] is looked up in PATH of `environment` */
    const char *file;         /* what to execute instead of argv[0]; NULL: argv[0] */
    char *const *environment; /* NULL-terminated */
    int stdin_fd, stdout_fd, stderr_fd;
    const gr_cores *cores; /* NULL: as the parent */
    bool outlives;         /* its parent's end is not its own: another process is its parent then */
    rlim_t descriptors;    /* its soft limit (RLIMIT_NOFILE), if lower than the parent's; 0: that */
} gr_spawn;

typedef enum gr_spawn_step {
    GR_SPAWN_FORK = 1, /* no process was made */
    GR_SPAWN_SETUP,    /* process group, death signal, descriptors */
    GR_SPAWN_BIND,     /* cores */
    GR_SPAWN_EXEC      /* the program could not be started */
} gr_spawn_step;

typedef struct gr_spawn_error {
    int step;  /* gr_spawn_step; 0: none */
    int error; /* errno */
} gr_spawn_error;

/* Closes the descriptors from `first` to `last`, also where the kernel, or a filter of system
 * calls, does not know close_range. May be called between vfork and exec. */
void gr_spawn_close(unsigned int first, unsigned int last);

/* What processes get as stdin_fd: `document`, which each of them reads from its beginning on, or
 * /dev/null if that is NULL. The descriptor is the caller's. GR_E_IO. */
gr_status gr_spawn_make_stdin(const char *document, int *fd_out, gr_diag *diag) GR_MUST_CHECK;

/* Starts the process: in a process group of its own (its id), signals at their defaults and
 * unblocked, no descriptor but 0, 1, 2, and killed when the calling thread dies, unless it outlives
 * that. The caller must have no other threads, and no signal handler that runs meanwhile. Returns
 * its id when it runs its program; -1: it does not, *error_out says why, and nothing of it is
 * left. */
pid_t gr_spawn_start(const gr_spawn *spawn, gr_spawn_error *error_out);

/* A sentence's worth of why `command` could not be started; GR_E_NOT_FOUND and GR_E_INVALID where
 * the user can help it, GR_E_IO otherwise. */
gr_status gr_spawn_fail(const char *command, const gr_spawn_error *error, gr_diag *diag);

#endif
