/* SPDX-License-Identifier: Apache-2.0 */
#include "base/stream.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

enum {
    LINE = 64,
    SIZE_MIN = 4 << 10, /* less is not worth a choice */
    /* Rounds of a trial. What a line costs depends on the way that wrote it
   * before, so the first round of each way does not count. */
    PAST_CACHES = 0,
    PAST_CACHES_COUNTED,
    PLAIN,
    PLAIN_COUNTED,
    TRIAL,
    SPAN_MIN = 16, /* rounds from one trial to the next one, at first */
    SPAN_MAX = 1024
};

/* What a line may cost more than past the caches. It was 22 ns where the
 * readers' cores were far, and 3 where they were near; there it was not worth
 * it, since readers wait for the memory. */
#define SLOW_NS_PER_BYTE (8.0 / LINE)

#ifdef __SSE2__
#include <emmintrin.h>

/* What is no whole line is copied in the plain way. */
static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    memcpy(to, from, head);
    to += head, from += head, size_bytes -= head;
    size_t lines = size_bytes / LINE;
    for (size_t i = 0; i < lines; i++, to += LINE, from += LINE) {
        for (int k = 0; k < LINE; k += 16) {
            _mm_stream_si128((__m128i *)(void *)(to + k),
                             _mm_loadu_si128((const __m128i *)(const void *)(from + k)));
        }
    }
    memcpy(to, from, size_bytes % LINE);
    _mm_sfence();
}
#else
static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    memcpy(to, from, size_bytes);
}
#endif

static void copy(void *to, const void *from, size_t size_bytes, bool past_caches)
{
    if (past_caches) {
        copy_past_caches(to, from, size_bytes);
    } else {
        memcpy(to, from, size_bytes);
    }
}

static void begin_trial(gr_stream *stream, uint64_t round)
{
    uint64_t span = stream->tried_bytes > 0 ? 4 * stream->span : 0;
    stream->trial = round;
    stream->span = span < SPAN_MIN ? SPAN_MIN : span < SPAN_MAX ? span : SPAN_MAX;
    stream->past_ns = stream->plain_ns = HUGE_VAL;
    stream->tried_bytes = stream->slow_bytes = 0;
}

/* The best time counts: what else the machine does adds to it. But in the plain way some copies are
 * fast, those whose readers share our core. */
static void try_one(gr_stream *stream, uint64_t part, void *to, const void *from, size_t size_bytes)
{
    int64_t start_ns = gr_now_ns();
    copy(to, from, size_bytes, part < PLAIN);
    double ns = (double)(gr_now_ns() - start_ns) / (double)size_bytes;
    if (part == PAST_CACHES_COUNTED) {
        stream->past_ns = fmin(stream->past_ns, ns);
    } else if (part == PLAIN_COUNTED) {
        stream->plain_ns = fmin(stream->plain_ns, ns);
        stream->tried_bytes += size_bytes;
        stream->slow_bytes += ns > stream->past_ns + SLOW_NS_PER_BYTE ? size_bytes : 0;
        stream->past_caches = 2 * stream->slow_bytes > stream->tried_bytes;
        stream->ns = stream->past_caches ? stream->past_ns : stream->plain_ns;
    }
}

void gr_stream_copy(gr_stream *stream, uint64_t round, void *to, const void *from,
                    size_t size_bytes)
{
    if (size_bytes < SIZE_MIN) {
        memcpy(to, from, size_bytes);
        return;
    }
    if (round - stream->trial >= stream->span) {
        begin_trial(stream, round);
    }
    if (round - stream->trial < TRIAL) {
        try_one(stream, round - stream->trial, to, from, size_bytes);
    } else {
        copy(to, from, size_bytes, stream->past_caches);
    }
}
