/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_CALL_H
#define GR_TESTS_COLL_SUPPORT_CALL_H

/* One operation as all ranks call it: its buffers, how the executor is asked for it, and whether
 * its result is right. */

#include "coll/exec.h"
#include "coll/programs.h"

typedef struct call_spec {
    const gr_algorithm *algorithm;
    gr_dtype dtype;
    gr_redop op;
    size_t count; /* of one buffer */
    int root, shards;
    uint64_t seed; /* of the values */
    bool small;    /* whole numbers, so that any order of additions gives the same bits */
} call_spec;

gr_plan_shape call_shape(const call_spec *spec, int rank, int size);
/* Fills `user` with fresh buffers of the rank; freed by call_free. */
void call_fill(const call_spec *spec, int rank, int size, void *user[GR_SHARD_PARTIALS_MAX]);
void call_free(void *user[GR_SHARD_PARTIALS_MAX]);
/* Does the rank's result have the bits of a serial evaluation of the shard tree? */
bool call_right(const call_spec *spec, int rank, int size, void *const *user);
gr_status call_start(const call_spec *spec, int rank, int size, void *const *user,
                     gr_programs *programs, gr_exec *exec, gr_op **op_out, gr_diag *diag);

#endif
