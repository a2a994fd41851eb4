/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_ORACLE_H
#define GR_TESTS_COLL_SUPPORT_ORACLE_H

/* Operations of every kind, and what must come out of them: each rank computes the contributions of
 * all ranks and the result from the definition, in one process, and compares all bits. */

#include "coll/plan/plan.h"

#include <gradus/coll.h>
#include <stdbool.h>

enum { ORACLE_RANKS_MAX = 16, ORACLE_GUARD_BYTES = 64 };

typedef struct oracle_case {
    gr_coll coll; /* GR_COLL_SEND: rank `root` sends to rank `peer` */
    gr_dtype dtype;
    gr_redop op;
    int root, peer;
    bool in_place;
    bool uneven;
    size_t count;
    /* uneven: row r is what rank r sends to each rank (alltoall); else row 0, the blocks. */
    size_t counts[ORACLE_RANKS_MAX][ORACLE_RANKS_MAX];
    double prescale, postscale; /* 0: none */
    int offset_in, offset_out;  /* bytes that the buffers stand off their alignment */
    bool shared;                /* of gr_alloc */
    bool small;                 /* whole numbers: any order of additions gives the same bits */
    int shards;                 /* of an allreduce over so many; 0: one a rank. Without a function
                                   of the user's, and without factors for the contributions */
    uint64_t seed;              /* of the values */
} oracle_case;

/* Any case for so many ranks, of up to about count_max elements. The same seed gives the same case
 * everywhere. */
void oracle_random(oracle_case *c, uint64_t *state, int size, size_t count_max);
uint64_t oracle_next(uint64_t *state); /* random bits */

/* One rank's part in a case. */
typedef struct oracle_part {
    const oracle_case *c;
    gr_comm *comm;
    int rank, size;
    bool idle; /* neither end of a message */
    uint8_t *memory_in, *memory_out, *in, *out;
    void *partials[GR_SHARD_PARTIALS_MAX]; /* over shards: the first one is `out` */
    uint8_t *memory_partials[GR_SHARD_PARTIALS_MAX];
    size_t in_bytes, out_bytes;
    size_t recv_counts[ORACLE_RANKS_MAX];
    gr_call call;
} oracle_part;

/* Makes the buffers and the call. False: no memory. */
bool oracle_begin(oracle_part *part, const oracle_case *c, gr_comm *comm);
/* Is everything as it must be? Says on stderr what is not. Frees the buffers. */
bool oracle_end(oracle_part *part);
/* Frees the buffers of an operation that has failed; those of gr_alloc are the communicator's. */
void oracle_drop(oracle_part *part);
/* Writes "allgather of ..." for messages of tests. */
void oracle_describe(const oracle_case *c, char *text, size_t size_bytes);

#endif
