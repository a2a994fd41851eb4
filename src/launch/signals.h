/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SIGNALS_H
#define GR_LAUNCH_SIGNALS_H

/* The signals that ask a job to end: SIGINT, SIGTERM, SIGHUP, unless they are ignored (as by nohup,
 * or SIGINT by a shell's background job). They are held back, and taken from a descriptor, so that
 * none gets lost between two attempts of a job. */

#include <signal.h>

/* From now on they wait until they are read; `before_out`: for sigprocmask, to undo it; NULL: not
 * wanted. */
void gr_signals_hold(sigset_t *before_out);
/* A descriptor that is readable while one waits; -1, errno. */
int gr_signals_open(void);
/* The next one of those that wait, by that descriptor; 0: none. */
int gr_signals_take(int signal_fd);
/* One that waits, and goes on waiting; 0: none. */
int gr_signals_waiting(void);
const char *gr_signals_name(int signal_number);
/* Until `fd` (-1: none) is readable, one waits, or the time is over. */
void gr_signals_sleep(int fd, int timeout_ms);

#endif
