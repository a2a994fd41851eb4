/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_STREAM_H
#define GR_BASE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copies into memory that this process writes round after round, and others read: slots, windows,
 * a stage. There, a plain store waits until the readers' cores have given the line up; on some
 * hosts one line after the other: 14 us for 32 KiB, of which the copy itself is one. Stores that go
 * past the caches do not wait, but on other hosts the readers do, for the memory. So both ways are
 * timed now and then, by copies that are due anyway. One thread at a time; zeros to begin with. */
typedef struct gr_stream {
    uint64_t trial; /* the round in which the last trial began */
    uint64_t span;  /* rounds from there to the next trial */
    /* Of that trial. */
    double past_ns, plain_ns; /* of a byte, at best */
    uint64_t tried_bytes;     /* in the plain way, ... */
    uint64_t slow_bytes;      /* ... of which took far longer */
    /* Of the last trial that had an end. */
    bool past_caches; /* what it chose */
    double ns;        /* what a byte takes in that way, at best; 0: there was none */
} gr_stream;

/* `round`: how often the memory was written through before. The parts do not overlap. Who sees a
 * later store of this thread sees what is written. */
void gr_stream_copy(gr_stream *stream, uint64_t round, void *to, const void *from,
                    size_t size_bytes);

#endif
