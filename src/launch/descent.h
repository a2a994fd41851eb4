/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_DESCENT_H
#define GR_LAUNCH_DESCENT_H

/* All processes that stem from one. A process whose parent dies falls to its nearest ancestor that
 * is a subreaper, so as long as the caller is one, nobody leaves its descent, whatever sessions and
 * process groups he makes. */

#include <stdbool.h>
#include <sys/types.h>

/* Orphans of the caller's descent become its children from now on. Returns 0 or errno. */
int gr_descent_adopt(void);

/* Sends `signal_number` to every process that stems from the caller, `except` (0: nobody) and its
 * descent left out. Returns how many there were. */
int gr_descent_signal(int signal_number, pid_t except);

/* Kills and reaps everything that stems from the caller; returns when nothing is left. */
void gr_descent_end(void);

#endif
