/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_EXEC_GROUP_END_H
#define GR_COLL_ENGINE_EXEC_GROUP_END_H

/* The end of one group: part of exec_internal.h, for exec.c, exec_fail.c and exec_move.c. */

#include "coll/engine/exec_internal.h"

/* A group that has ended by itself, until all its ranks have reported so: exec_group_end.c. */
struct gr_exec_ending {
    gr_exec_ending *next;
    uint16_t comm;
    uint32_t serial;
    gr_diag diag;
    int64_t repeat_us, limit_us; /* when to notify the others again; when all ends instead */
    int size, missing;           /* ranks; those that have not reported so */
    int *world;                  /* the missing ones stand first; one piece of memory with this */
};

/* The head of a link is of a group that has ended here. */
bool gr_exec_is_stale(const gr_exec *exec, const gr_frame *frame);
/* Stopped operations that nobody uses any more are over. */
void gr_exec_close_endings(gr_exec *exec);
/* Tells others again. Returns when to look again. */
int64_t gr_exec_poll_endings(gr_exec *exec, int64_t now_us, int64_t skipped_us);
void gr_exec_free_endings(gr_exec *exec);

#endif
