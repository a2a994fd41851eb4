/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SHM_SHM_AREA_H
#define GR_COLL_SHM_SHM_AREA_H

/* What lies in shared memory: each rank's area, which only it writes, and the shares of the work
 * that any rank may take. */

#include "link/shared.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
    SHM_COLL_LINE = 64,
    SHM_COLL_SLOTS = 64,        /* operations of a communicator under way, ... */
    SHM_COLL_PLACES = 16,       /* ... and those that need more than a slot; powers of two */
    SHM_COLL_INLINE = 48,       /* bytes of contributions within a control slot */
    SHM_COLL_SMALL_MAX = 16384, /* bytes of contributions of one rank: eager */
    /* Packed even if all could be read where they are: that saves the second of two waits. */
    SHM_COLL_PACK_MAX = 1024,
    SHM_COLL_RING = 256 << 10 /* bytes of a rank's ring of windows */
};

/* Of a rank's buffers in an operation. */
enum {
    SHM_COLL_IN_HEAP = 1, /* all are in its heap, at these offsets plus one */
    /* It reaches everybody through the kernel; so may all reach its buffers, which are at these
     * addresses if they are not in its heap. */
    SHM_COLL_BY_KERNEL = 2,
    SHM_COLL_EAGER = 4, /* its contributions are in its slot */
    SHM_COLL_UNFINISHED_SHIFT = 4,
    SHM_COLL_UNFINISHED_MANY = 15 /* so many, or more */
};

/* What a rank says of an operation. `sequence` is written last. */
typedef struct shm_control {
    _Alignas(SHM_COLL_LINE) _Atomic uint32_t sequence; /* number of the operation plus one */
    /* Of its buffers; in the upper half: unfinished operations before this one. */
    _Atomic uint8_t kinds;
    uint8_t cores; /* of the host, as this rank sees it: all take the least that one sees */
    int16_t core;  /* it runs on, where cores are shared */
    uint64_t fingerprint;
    union {
        struct {
            uint64_t out, input; /* the first; further ones: eager */
            double prescale, postscale;
        } at;
        uint8_t bytes[SHM_COLL_INLINE];
    } body;
} shm_control;
_Static_assert(sizeof(shm_control) == SHM_COLL_LINE, "one cache line");

/* What a rank called, for those that compare it later: four to a cache line, of which a look at
 * the last few operations fetches as few as can be. */
typedef struct shm_call {
    _Atomic uint32_t sequence; /* as in the control slot, and written last */
    _Atomic uint64_t fingerprint;
} shm_call;

/* The control words, and few eager data of an operation with a root, whose ranks may be far from
 * each other. */
typedef struct shm_slot {
    shm_control control;
    uint8_t eager[SHM_COLL_PACK_MAX + SHM_COLL_LINE];
} shm_slot;

/* Other eager data: the fewer places, the more of them stay in a cache. Of a size that does not
 * bring all of them into the same sets of a cache. */
typedef struct shm_eager_place {
    uint8_t eager[SHM_COLL_SMALL_MAX + SHM_COLL_LINE];
} shm_eager_place;

/* Its share of the work is done. In a line of its own, so that writing it need not wait for those
 * that have just read the other one. */
typedef struct shm_done_flag {
    _Alignas(SHM_COLL_LINE) _Atomic uint32_t done; /* number plus one */
} shm_done_flag;

typedef struct shm_bounce {
    _Alignas(SHM_COLL_LINE) _Atomic uint64_t filled;
    _Alignas(SHM_COLL_LINE) _Atomic uint64_t reduced;
    _Alignas(SHM_COLL_LINE) _Atomic uint64_t copied;
} shm_bounce;

/* A rank's area, which only it writes. */
typedef struct shm_area {
    shm_slot slots[SHM_COLL_SLOTS];
    shm_eager_place places[SHM_COLL_PLACES];
    shm_done_flag done_flags[SHM_COLL_SLOTS];
    _Alignas(SHM_COLL_LINE) shm_call calls[SHM_COLL_SLOTS];
    _Alignas(SHM_COLL_LINE) _Atomic uint32_t finished;   /* at least those before this number */
    _Alignas(SHM_COLL_LINE) _Atomic uint32_t wants_room; /* it waits for others' `finished` */
    shm_bounce windows;
    /* It gave an operation up: its memory has other uses. */
    _Alignas(SHM_COLL_LINE) _Atomic uint32_t revoked;
    /* It writes through the kernel into memory of this rank, plus one: kernel_copy.c. */
    _Alignas(SHM_COLL_LINE) _Atomic uint32_t writing;
    _Alignas(4096) uint8_t ring[SHM_COLL_RING];
} shm_area;
_Static_assert(sizeof(shm_area) <= GR_SHARED_COLL_BYTES, "fits its place");

/* Shares of the work that any rank may take, in the open area of rank 0: a bit for each that was
 * taken, and how many are done. The upper half of each word is the number of the operation plus
 * one. */
typedef struct shm_work_bitmap {
    _Alignas(SHM_COLL_LINE) _Atomic uint64_t taken;
    _Atomic uint64_t done;
} shm_work_bitmap;
_Static_assert(sizeof(shm_work_bitmap) * SHM_COLL_PLACES <= GR_SHARED_OPEN_BYTES, "fits its place");

#endif
