/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_PROCESS_TREE_H
#define GR_LAUNCH_PROCESS_TREE_H

/* All processes that stem from one. A process whose parent dies becomes a child of its nearest
 * ancestor that is a subreaper. As long as the caller is one, no process leaves its process tree,
 * whatever sessions and process groups it makes. */

#include <stdbool.h>
#include <sys/types.h>

/* Orphans of the caller's process tree become its children from now on. Returns 0 or errno. */
int gr_process_tree_adopt(void);

/* Sends `signal_number` to every process that stems from the caller, `except` (0: nobody) and its
 * process tree left out. Returns how many there were. */
int gr_process_tree_signal(int signal_number, pid_t except);

/* Kills and reaps everything that stems from the caller; returns when nothing is left. */
void gr_process_tree_end(void);

#endif
