/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SHM_SEGMENT_H
#define GR_LINK_SHM_SEGMENT_H

/* The memory file of a process: what lies where in it, how it is made, handed to a peer and mapped.
 *
 *   front        the doorbell, and behind it the open areas of shared.h, which every peer may write
 *   a page       who this is; written before the file is shared, never again
 *   pairs        one gr_shm_pair for each peer: ring, counters, room for a last sentence
 *   stages       one stage for each peer: copies of what lies in no memory file
 *   areas        the areas of shared.h
 *   heap         gr_mesh_alloc
 *
 * Peers map all read-only but the front and the heap. What may happen there by a peer's hand is
 * what its owner asked for when it put memory of the heap into a collective operation; peers are
 * authenticated processes of the same user and job. The file is as long as it may ever become and
 * sparse; it cannot shrink (a seal), so that reading it never faults. */

#include "link/shared.h"

#include <stdatomic.h>

enum {
    GR_SHM_LINE = 64,
    GR_SHM_PAGE = 4096,
    GR_SHM_SLOTS = 512, /* a power of two, more than GR_LINK_HOLDS_MAX */
    GR_SHM_INLINE_MAX = 32,
    /* Copied even where the peer could read it: then nobody waits until it has. Where cores are
     * shared that would take a turn of each. */
    GR_SHM_EAGER_MAX = 1 << 10,
    GR_SHM_EAGER_MAX_SHARED = 4 << 10,
    GR_SHM_STAGE_BYTES = 512 << 10,
    GR_SHM_PIECE_BYTES = 128 << 10, /* at most a quarter of the stage: two are always under way */
    GR_SHM_TEXT_BYTES = 512,
    GR_SHM_CPU_WORDS = 16, /* cores that this process may run on: a mask of 1024 */
    GR_SHM_OPEN_AT = GR_SHM_PAGE,
    GR_SHM_FRONT_BYTES = GR_SHM_OPEN_AT + GR_SHARED_COLLS * GR_SHARED_OPEN_BYTES,
    GR_SHM_PAIRS_AT = GR_SHM_FRONT_BYTES + GR_SHM_PAGE
};
_Static_assert(GR_SHM_FRONT_BYTES % GR_SHM_PAGE == 0, "rights are given by the page");
_Static_assert(GR_SHARED_COLL_BYTES % GR_SHM_PAGE == 0, "an area touches no page of another");

typedef enum gr_shm_place {
    GR_SHM_INLINE = 1, /* in the descriptor */
    GR_SHM_WHOLE = 2,  /* at `offset` in the sender's file */
    GR_SHM_PIECE = 3   /* a part of the payload, at `offset` in the sender's file */
} gr_shm_place;

/* One message or piece. `sequence` is written last: the number of the descriptor plus one. */
typedef struct gr_shm_slot {
    _Atomic uint32_t sequence;
    uint8_t kind, place;
    uint16_t comm;
    uint32_t op_seq, message, segment, size_bytes;
    uint64_t fingerprint;
    union {
        uint8_t bytes[GR_SHM_INLINE_MAX];
        struct {
            uint64_t offset;
            uint32_t piece_bytes;
            uint32_t piece_at; /* where in the payload the piece belongs */
        } far;
    } payload;
} gr_shm_slot;
_Static_assert(sizeof(gr_shm_slot) == GR_SHM_LINE, "a descriptor is one cache line");

typedef struct gr_shm_pair {
    /* Sending: the peer reads it when it releases; 0: no wake wanted, else at this many
     * released. */
    _Alignas(GR_SHM_LINE) _Atomic uint64_t wake_at;
    /* Receiving: how many descriptors of the peer's ring we released, from the first on. */
    _Alignas(GR_SHM_LINE) _Atomic uint64_t released;
    /* Of our ABORT, which must need no room. */
    _Alignas(GR_SHM_LINE) char text[GR_SHM_TEXT_BYTES];
    _Alignas(GR_SHM_PAGE) gr_shm_slot slots[GR_SHM_SLOTS];
} gr_shm_pair;

/* What the owner of a bell does, or is about to do. */
enum {
    GR_SHM_AWAKE = 0,
    GR_SHM_ON_DOORBELL = 1, /* sleeps on this word (futex) */
    GR_SHM_ON_SOCKETS = 2   /* sleeps on its sockets: a byte on that of the link wakes it */
};

typedef struct gr_shm_doorbell {
    /* Who makes it GR_SHM_AWAKE wakes the owner. */
    _Alignas(GR_SHM_LINE) _Atomic uint32_t sleeping;
} gr_shm_doorbell;

typedef struct gr_shm_card {
    uint32_t magic, version;
    uint32_t rank, world_size;
    uint64_t file_bytes, heap_offset;
    uint64_t cpus[GR_SHM_CPU_WORDS];
    uint64_t card_at; /* where the owner has this card in its own memory */
    uint64_t token;   /* random */
} gr_shm_card;

typedef struct gr_shm_segment {
    uint8_t *base; /* NULL: not mapped */
    size_t size_bytes;
    size_t heap_offset;
    int fd; /* -1: closed; the mapping stays */
} gr_shm_segment;

gr_status gr_shm_segment_create(int rank, int world_size, size_t heap_bytes_max,
                                gr_shm_segment *segment_out, gr_diag *diag) GR_MUST_CHECK;
void gr_shm_segment_close(gr_shm_segment *segment);

/* Hand our file to the other end of a Unix socket. GR_OK; GR_PENDING: the socket is full. */
gr_status gr_shm_segment_give(int socket_fd, const gr_shm_segment *segment, int rank,
                              int world_size, gr_diag *diag) GR_MUST_CHECK;
/* Receive and map the peer's. GR_OK; GR_PENDING: it has not come yet. */
gr_status gr_shm_segment_take(int socket_fd, int rank, int world_size, gr_shm_segment *segment_out,
                              gr_diag *diag) GR_MUST_CHECK;

static inline gr_shm_doorbell *gr_shm_doorbell_of(const gr_shm_segment *segment)
{
    return (gr_shm_doorbell *)(void *)segment->base;
}

static inline const gr_shm_card *gr_shm_card_of(const gr_shm_segment *segment)
{
    return (const gr_shm_card *)(const void *)(segment->base + GR_SHM_FRONT_BYTES);
}

static inline gr_shm_pair *gr_shm_pair_of(const gr_shm_segment *segment, int peer)
{
    return (gr_shm_pair *)(void *)(segment->base + GR_SHM_PAIRS_AT) + peer;
}

/* Offset of the stage for `peer` in a file. */
static inline size_t gr_shm_stage_offset(int world_size, int peer)
{
    return GR_SHM_PAIRS_AT + (size_t)world_size * sizeof(gr_shm_pair) +
           (size_t)peer * GR_SHM_STAGE_BYTES;
}

/* Offset of the areas. */
static inline size_t gr_shm_colls_offset(int world_size)
{
    return gr_shm_stage_offset(world_size, world_size);
}

#endif
