/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_DEPUTY_H
#define GR_LAUNCH_AGENT_DEPUTY_H

/* The supervisor's deputy: a process that shares the supervisor's memory and descriptors, and
 * sleeps. When the supervisor is killed while it waits for something to happen, which is nearly all
 * of the time, the deputy wakes up where the supervisor waited, with all that it knew and held, and
 * is the supervisor from then on: no connection ends, no byte is lost, and nobody else finds out.
 *
 *     supervisor   works -- waits -- works -- waits -- killed
 *     deputy       sleeps ------------------------------- waits -- works -- waits
 *
 * An agent has children, whose next parent the deputy must be. Its deputy is its parent, the guard:
 *
 *     guard    sleeps ------------------------------- waits -- works -- waits
 *     agent      works -- waits -- works -- waits -- killed
 *     workers      children of the agent ------------ children of the guard
 *
 * A supervisor or an agent that is killed at work leaves something half done: then the deputy ends
 * as well, and with it everything that they had open. It ends, too, with whatever ends all
 * processes that share a memory: the kernel when it has no memory left (OOM), and a core dump. */

#include <stdbool.h>
#include <sys/types.h>

typedef struct gr_deputy gr_deputy;

enum { GR_DEPUTY_FDS_MAX = 2 };

/* Of the calling process, which has no other threads. NULL: there is none, and the supervisor's
 * death is the end of all that it holds. */
gr_deputy *gr_deputy_create(void);
/* It ends. NULL ok. */
void gr_deputy_destroy(gr_deputy *deputy);
/* Its process number; 0: there is none just now. */
pid_t gr_deputy_pid(const gr_deputy *deputy);

/* Sleeps until one of at most GR_DEPUTY_FDS_MAX descriptors is readable, or timeout_ms are over
 * (-1: for ever), or for no reason. A deputy that was killed is replaced. True: the caller is
 * another process than before: it was the deputy, will have one of its own, and no child that the
 * process before had. With gr_deputy_guard it has them all, and no deputy. */
bool gr_deputy_wait(gr_deputy *deputy, const int *fds, int count, int timeout_ms);

/* Calls work(deputy, arg), which ends its process, in a child that shares the calling process's
 * memory and descriptors. The caller, which has no children yet and no other threads, sleeps under
 * the name `name`, and ends as the child ends; where that is killed while it waits, the caller goes
 * on in its place. It has no deputy then. `deputy` NULL: there is none, and `work` is called in the
 * calling process. */
_Noreturn void gr_deputy_guard(const char *name, void (*work)(gr_deputy *deputy, void *arg),
                               void *arg);

#endif
