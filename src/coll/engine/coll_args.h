/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_COLL_ARGS_H
#define GR_COLL_ENGINE_COLL_ARGS_H

/* A gr_call checked, and put into the terms of plans: which buffers hold which blocks. Pure
 * functions of their arguments. */

#include <gradus/coll.h>
#include <stdbool.h>

enum { GR_COLL_ARGS_SHARDS_MAX = (1 << 14) - 1 };
#define GR_COLL_ARGS_COUNT_MAX ((UINT64_C(1) << 38) - 1) /* elements of all blocks */

typedef struct gr_range {
    uintptr_t first, end; /* addresses; first == end: none */
} gr_range;

/* What a call uses of the caller's memory. */
typedef struct gr_call_memory {
    gr_range writes, reads;
    void *const *partials; /* are written as well; borrowed */
    int partial_count;     /* 0 for all but allreduce over shards */
    size_t partial_bytes;
} gr_call_memory;

typedef struct gr_coll_args {
    const gr_call *call; /* borrowed */
    int shards;
    bool reduces;
    bool out_of_place;          /* contributions lie in `input` and stay as they are */
    bool uneven;                /* blocks have sizes of their own */
    bool by_block;              /* `count` is that of a block; else that of a whole buffer */
    const void *input;          /* NULL in place, or if this rank contributes nothing */
    void *user;                 /* where the result ends, in place also what goes in */
    int input_only, user_only;  /* the buffer holds this block alone; -1: all */
    const size_t *input_counts; /* uneven: elements by block */
    const size_t *user_counts;
    size_t count;
    size_t user_elements, input_elements; /* that the buffers hold */
    size_t all_elements;                  /* of all blocks: what the choice of algorithm goes by */
    double prescale, postscale;           /* 1: none */
    gr_call_memory memory;
} gr_coll_args;

/* GR_E_INVALID with the sentence in diag. */
gr_status gr_coll_args_init(gr_coll_args *args, const gr_call *call, int rank, int size,
                            gr_diag *diag) GR_MUST_CHECK;

/* Returns true if gr_coll_args_init accepts the call once its kind and its buffers are valid, and
 * if the call has at least an element and uses none of the rare options. */
bool gr_coll_is_plain(const gr_call *call, int size);

/* Calls of one group must not write what another of them reads or writes. */
gr_status gr_coll_args_apart(const gr_coll_args *all_args, int count, int rank, int size,
                             gr_diag *diag) GR_MUST_CHECK;

/* Returns true if one of them writes what the other one uses. */
bool gr_call_memory_meets(const gr_call_memory *a, const gr_call_memory *b);
/* The ranges of memory: `writes`, partial_count partials, `reads`. */
gr_range gr_call_memory_range(const gr_call_memory *memory, int index);

#endif
