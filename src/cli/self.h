/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_SELF_H
#define GR_CLI_SELF_H

/* Verbs whose work is done by several ranks: in a job each rank runs the verb; elsewhere the verb
 * starts itself as often as is wanted. */

#include "base/arena.h"
#include "base/fail.h"
#include <gradus/status.h>

#include <stdint.h>

/* How many ranks a verb starts of itself: `asked`, or for 0 one for each core it may use, but at
 * least `least`. */
gr_status gr_self_count(int64_t asked, int least, int *ranks_out, gr_diag *diag);

/* Starts so many ranks of "gradus argv..." on this host and waits for their end; returns the exit
 * code. Rank 0's output comes as it is. */
int gr_self_launch(int argc, char *const *argv, int ranks, gr_arena *arena);

/* The exit code of a rank that ends with this failure. The sentence is printed, but where another
 * rank says it. */
int gr_self_failed(int rank, gr_status status, const gr_diag *diag);

#endif
