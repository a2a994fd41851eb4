/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_PROCESS_TREE_H
#define GR_LAUNCH_PROCESS_TREE_H

/* All processes that stem from one. A process whose parent dies becomes a child of its nearest
 * ancestor that is a subreaper. As long as the caller is one, no process leaves its process tree,
 * whatever sessions and process groups it makes. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Orphans of the caller's process tree become its children from now on. Children that it has when
 * it calls this first (a shell that became gradus by exec had started them) are no part of that:
 * they and what they start are left alone. Returns 0 or errno. */
int gr_process_tree_adopt(void);

/* The caller's children, that is those of its first thread, at most `room`; how many were written.
 * None where the kernel does not list them (CONFIG_PROC_CHILDREN). */
int gr_process_tree_children(pid_t *pids_out, int room);

/* Sends `signal_number` to every process that stems from the caller. Returns how many there
 * were. */
int gr_process_tree_signal(int signal_number);

/* Kills and reaps, once, everything that stems from the caller, `except` and their process trees
 * left out. Returns how many there still were: somebody may have been forked while we looked. */
int gr_process_tree_clear(const pid_t *except, int except_count);

/* Reaps everything that stems from the caller, and kills what has not ended within `patience_us`;
 * returns when nothing is left. */
void gr_process_tree_end(int64_t patience_us);
/* The same, but returns false after `limit_us` if something is left: what waits for the kernel, for
 * a disk that does not answer say, does not end by being killed. */
bool gr_process_tree_end_within(int64_t patience_us, int64_t limit_us);

#endif
