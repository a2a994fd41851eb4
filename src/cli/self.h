/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_SELF_H
#define GR_CLI_SELF_H

/* Verbs whose work is done by several ranks: in a job each rank runs the verb; elsewhere the verb
 * starts itself as often as is wanted. */

#include "base/arena.h"
#include "coll/comm.h"

/* Is this process a rank of a job? */
bool gr_self_in_job(void);

/* Starts `workers` (0: one for each core, at least `least`) ranks of "gradus argv..." on this host
 * and waits for their end; returns the exit code. Rank 0's output comes as it is. */
int gr_self_launch(int argc, char *const *argv, int workers, int least, gr_arena *arena);

/* The exit code of a rank that ends with this failure. The sentence is printed, but where another
 * rank says it. */
int gr_self_failed(int rank, gr_status status, const gr_diag *diag);

#endif
