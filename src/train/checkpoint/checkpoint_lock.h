/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHECKPOINT_LOCK_H
#define GR_TRAIN_CHECKPOINT_LOCK_H

/* Which process writes into a folder of checkpoints.
 *
 * The writer holds the file .lock (flock), and the file holds the writer's record: process, run and
 * generation. Another run waits for the end of the lock. A later generation of the same run does
 * not: the old writer may be stopped or cut off, and a file server may keep its lock. It replaces
 * the file by one of its own, and the old writer, should it go on, finds a record that is not its
 * own and writes no more. */

#include <gradus/status.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct gr_checkpoint_writer {
    uint64_t run;        /* all workers of a run agree on it; 0: this one only looks */
    uint64_t generation; /* in which it became the writer */
} gr_checkpoint_writer;

/* Takes the lock; returns its descriptor. Waits up to patience_ms for another run. With run 0 the
 * record stays as it is. GR_E_INVALID: another run holds the lock, or a later generation of this
 * run has taken it over; GR_E_IO, GR_E_NOT_FOUND. */
gr_status gr_checkpoint_lock_take(const char *folder, const gr_checkpoint_writer *writer,
                                  int patience_ms, int *fd_out, gr_diag *diag) GR_MUST_CHECK;
/* Returns true if the lock that `fd` holds is still the folder's, and this writer's. */
bool gr_checkpoint_lock_holds(const char *folder, const gr_checkpoint_writer *writer, int fd);

#endif
