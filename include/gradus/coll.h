/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_COLL_H
#define GRADUS_COLL_H

/* Collectives and messages in one form. comm.h has short forms of the most usual ones. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gr_coll {
    GR_COLL_ALLREDUCE = 0,
    GR_COLL_REDUCE_SCATTER = 1,
    GR_COLL_ALLGATHER = 2,
    GR_COLL_BROADCAST = 3,
    GR_COLL_BARRIER = 4,
    GR_COLL_REDUCE = 5,
    GR_COLL_GATHER = 6,
    GR_COLL_SCATTER = 7,
    GR_COLL_ALLTOALL = 8,
    GR_COLL_SEND = 9, /* to one rank */
    GR_COLL_RECV = 10,
    GR_COLL_COUNT = 11
} gr_coll;

/* A reduction of the caller's own, for GR_USER: dst[i] = a[i] (+) b[i] for `count` elements. It
 * must be associative; it need not be commutative, since `a` always comes from lower ranks than
 * `b`. dst may be a or b. Called on whichever thread moves the operation on, under the
 * communicator's lock: it must not call back into Gradus. */
typedef void gr_reduce_user(void *dst, const void *a, const void *b, size_t count, void *arg);

/* Called once when an operation is over, with its result; on the thread that moved it on, under no
 * lock, and never inside the call that started it. It may start further operations. */
typedef void gr_done(gr_status status, void *arg);

#ifdef __cplusplus
}
#endif
#endif
