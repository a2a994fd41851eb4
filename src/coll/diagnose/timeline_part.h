/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_TIMELINE_PART_H
#define GR_COLL_DIAGNOSE_TIMELINE_PART_H

/* A part of a timeline in its file: for timeline.c, which maps and writes it, and
 * timeline_merge.c, which reads it on the same host, as a rule moments later. Both our processors
 * have the same order of bytes. A reader trusts nothing in it but what it has checked. */

#include "coll/diagnose/timeline.h"

#define GR_PART_MAGIC UINT64_C(0x314c544d49545247) /* "GRTIMTL1" */
enum {
    GR_PART_BYTES_MAX = 256 << 20, /* some two million operations: as much as viewers can take */
    GR_PART_ALIGN = 8,
    GR_PART_HOST_BYTES = 64,
    GR_PART_PATH_BYTES = 4096
};

typedef struct gr_part_head {
    uint64_t magic;
    uint64_t used;       /* bytes, this head included, that hold whole records */
    uint64_t lost;       /* events that had no room */
    uint64_t algorithms; /* gr_part_algorithms of who wrote it */
    uint64_t ticks[2];   /* the counter at the beginning, and lately */
    int64_t ns[2];       /* the monotonic clock then */
    int64_t wall_ns;     /* what the time of day is ahead of that clock */
    int32_t rank, world_size;
    char host[GR_PART_HOST_BYTES];
} gr_part_head;

typedef enum gr_part_kind {
    GR_PART_OPERATION = 1,
    GR_PART_PHASE = 2,
    GR_PART_MARK = 3,
    GR_PART_SITE = 4 /* what a caller's address means; ahead of the first use */
} gr_part_kind;

/* What all records begin with. */
typedef struct gr_part_record {
    uint32_t kind, size_bytes; /* a multiple of GR_PART_ALIGN, text included */
    uint64_t at;               /* ticks; of GR_PART_SITE: the address */
} gr_part_record;

struct gr_timeline_op {
    gr_part_record head;
    uint64_t ended, waited; /* ticks; ended 0: not yet */
    uint64_t caller;
    uint64_t count, size_bytes;
    uint32_t number, tag;
    int32_t root, shards, status, peer, waited_for, ranks;
    uint16_t comm;
    uint8_t coll, dtype, op, algorithm;
    uint8_t name_bytes, site_bytes;
    char text[]; /* the name, then the site */
};

typedef struct gr_part_phase {
    gr_part_record head;
    uint64_t ended, number;
    uint64_t phase;
} gr_part_phase;

/* Of marks and sites. */
typedef struct gr_part_text {
    gr_part_record head;
    uint32_t what, text_bytes;
    char text[];
} gr_part_text;

/* "FILE.<rank>"; false: it does not fit. */
bool gr_part_path(char path_out[GR_PART_PATH_BYTES], const char *path, int rank);
/* Algorithms are recorded by number: does it mean the same to the reader? */
uint64_t gr_part_algorithms(void);

#endif
