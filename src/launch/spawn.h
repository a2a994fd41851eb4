/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SPAWN_H
#define GR_LAUNCH_SPAWN_H

/* fork and exec of one worker, with the steps between that no library offers. */

#include "launch/cores.h"

#include <sys/types.h>

typedef struct gr_spawn {
    char *const *argv;        /* NULL-terminated; argv[0] is looked up in PATH of `environment` */
    const char *file;         /* what to execute instead of argv[0]; NULL: argv[0] */
    char *const *environment; /* NULL-terminated */
    int stdin_fd, stdout_fd, stderr_fd;
    const gr_cores *cores; /* NULL: as the parent */
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

/* Starts the process: in a process group of its own (its id), signals at their defaults and
 * unblocked, no descriptor but 0, 1, 2, and killed when the calling thread dies. The caller must
 * have no other threads. -1: *error_out says why. Otherwise gr_spawn_finish must follow; other
 * processes may be begun in between. */
pid_t gr_spawn_begin(const gr_spawn *spawn, int *report_fd_out, gr_spawn_error *error_out);

/* Returns when the process runs its program. False: it could not, *error_out says why, and nothing
 * of it is left. */
bool gr_spawn_finish(pid_t pid, int report_fd, gr_spawn_error *error_out);

/* A sentence's worth of why `command` could not be started; GR_E_NOT_FOUND and GR_E_INVALID where
 * the user can help it, GR_E_IO otherwise. */
gr_status gr_spawn_fail(const char *command, const gr_spawn_error *error, gr_diag *diag);

#endif
