/* SPDX-License-Identifier: Apache-2.0 */
#include "train/compress.h"

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPARSE_PIECE = 16 /* a cache line */ };

gr_dtype gr_compression_dtype(gr_compression kind)
{
    return kind == GR_COMPRESSION_F16 ? GR_F16 : kind == GR_COMPRESSION_BF16 ? GR_BF16 : GR_F32;
}

size_t gr_compression_piece(gr_compression kind)
{
    return kind == GR_COMPRESSION_TOPK ? 1 : kind == GR_COMPRESSION_SPARSE ? SPARSE_PIECE : 0;
}

size_t gr_compressor_bytes(gr_compression kind, size_t length, int own_shards)
{
    return kind == GR_COMPRESSION_TOPK ? (size_t)own_shards * length * sizeof(float) : 0;
}

gr_status gr_compressor_init(gr_compressor *compressor, gr_compression kind, double ratio,
                             size_t plain, size_t length, int own_shards, size_t range_max,
                             gr_diag *diag)
{
    gr_compressor made = {
        .kind = kind, .ratio = ratio, .plain = plain, .length = length, .shards = own_shards};
    if (kind == GR_COMPRESSION_TOPK) {
        size_t left_out = (size_t)own_shards * (length - plain);
        made.residuals = calloc(left_out + 1, sizeof *made.residuals);
        made.magnitudes = malloc((range_max + 1) * sizeof *made.magnitudes);
        if (made.residuals == NULL || made.magnitudes == NULL) {
            gr_compressor_fini(&made);
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "no memory for what topk leaves out: %zu values for each of %d shards; "
                           "use fewer shards a worker or another compression",
                           length - plain, own_shards);
        }
    }
    *compressor = made;
    return GR_OK;
}

void gr_compressor_fini(gr_compressor *compressor)
{
    free(compressor->residuals);
    free(compressor->magnitudes);
    *compressor = (gr_compressor){0};
}

/* ---- The largest values ---------------------------------------------------------------------- */
/* The order of magnitudes as whole numbers; a NaN is larger than all, so that it is always sent,
 * and found. */
static uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

/* The `wanted`-th largest of values[0 .. count), which are reordered: digit by digit from the top,
 * only those are kept that begin like it. */
static uint32_t find_largest(uint32_t *values, size_t count, size_t wanted)
{
    uint32_t prefix = 0;
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        size_t counts[DIGITS] = {0};
        for (size_t i = 0; i < count; i++) {
            counts[values[i] >> shift & (DIGITS - 1)]++;
        }
        uint32_t digit = DIGITS - 1;
        while (counts[digit] < wanted) {
            wanted -= counts[digit--];
        }
        size_t kept = 0;
        for (size_t i = 0; i < count; i++) {
            if ((values[i] >> shift & (DIGITS - 1)) == digit) {
                values[kept++] = values[i];
            }
        }
        count = kept;
        prefix |= digit << shift;
    }
    return prefix;
}

/* Of equal ones the first are sent, so that the choice depends on the values alone. */
static void keep_largest(gr_compressor *c, float *vector, float *residual, size_t count)
{
    size_t wanted = (size_t)ceil((double)count * c->ratio);
    wanted = wanted < 1 ? 1 : wanted > count ? count : wanted;
    for (size_t i = 0; i < count; i++) {
        vector[i] += residual[i];
        c->magnitudes[i] = magnitude(vector[i]);
    }
    uint32_t least = find_largest(c->magnitudes, count, wanted);
    size_t above = 0;
    for (size_t i = 0; i < count; i++) {
        above += magnitude(vector[i]) > least;
    }
    size_t equal = wanted - above;
    for (size_t i = 0; i < count; i++) {
        uint32_t own = magnitude(vector[i]);
        bool sent = own > least || (own == least && equal > 0);
        equal -= own == least && sent;
        residual[i] = sent ? 0.0f : vector[i];
        vector[i] = sent ? vector[i] : 0.0f;
    }
}

void gr_compress(gr_compressor *compressor, int shard, float *vector, size_t begin, size_t end)
{
    gr_compressor *c = compressor;
    if (c->kind == GR_COMPRESSION_TOPK) {
        float *residuals = c->residuals + (size_t)shard * (c->length - c->plain);
        keep_largest(c, vector + begin, residuals + (begin - c->plain), end - begin);
    } else if (c->kind == GR_COMPRESSION_SPARSE) {
        /* -0 becomes 0: then no sum is -0 either, whether zeros travel or not. */
        for (size_t i = begin; i < end; i++) {
            vector[i] += 0.0f;
        }
    } else {
        gr_compress_sum(c, vector + begin, end - begin);
    }
}

void gr_compress_sum(const gr_compressor *compressor, float *values, size_t count)
{
    if (compressor->kind == GR_COMPRESSION_F16 || compressor->kind == GR_COMPRESSION_BF16) {
        gr_round_cast(gr_compression_dtype(compressor->kind), values, count);
    }
}
