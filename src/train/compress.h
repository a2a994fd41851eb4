/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_COMPRESS_H
#define GR_TRAIN_COMPRESS_H

/* Less on the wire. Each shard's gradient is compressed by itself, before anything is added to it,
 * and sums are kept in what the compressed type can hold: so the result depends on the shards, and
 * neither on how many workers there are nor on who computed which.
 *
 *   f16, bf16  every gradient, and every sum of the shard tree, is rounded to 16 bits
 *   topk       of each bucket of each shard only the largest values are sent; what was left out is
 *              added to the shard's next gradient (error feedback: Stich, Cordonnier and Jaggi,
 *              "Sparsified SGD with memory", NeurIPS 2018)
 *   sparse     nothing is lost: what is zero is not sent
 *
 * The numbers about the step and the running statistics are never compressed. One thread. */

#include "coll/sparse/cast.h"
#include "train/shards.h"

typedef enum gr_compression {
    GR_COMPRESSION_NONE,
    GR_COMPRESSION_F16,
    GR_COMPRESSION_BF16,
    GR_COMPRESSION_TOPK,
    GR_COMPRESSION_SPARSE
} gr_compression;

typedef struct gr_compressor {
    gr_compression kind;
    double ratio;         /* topk: share of the values that are sent */
    size_t plain;         /* elements [0, plain) of a step vector are not compressed */
    size_t length;        /* of a step vector */
    int shards;           /* own ones */
    float *residuals;     /* topk: [own shard][length - plain] that was left out so far */
    uint32_t *magnitudes; /* topk: of the largest range */
} gr_compressor;

/* `own_shards`: of this rank; `range_max`: elements of the largest range that is given to
 * gr_compress. GR_E_NO_MEMORY. */
gr_status gr_compressor_init(gr_compressor *compressor, gr_compression kind, double ratio,
                             size_t plain, size_t length, int own_shards, size_t range_max,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_compressor_fini(gr_compressor *compressor);
/* Bytes of the above for --dry-run. */
size_t gr_compressor_bytes(gr_compression kind, size_t length, int own_shards);

/* 16 bits: the type on the wire; else GR_F32. */
gr_dtype gr_compression_dtype(gr_compression kind);
/* Returns true if a range must be a whole bucket. */
static inline bool gr_compression_whole(gr_compression kind)
{
    return kind == GR_COMPRESSION_TOPK;
}
/* Returns the elements of a piece; only pieces that are not all zero travel. 0: buckets travel
 * whole. */
size_t gr_compression_piece(gr_compression kind);

/* Compresses elements [begin, end), begin >= plain, of the gradient of the `shard`-th own shard in
 * place. */
void gr_compress(gr_compressor *compressor, int shard, float *vector, size_t begin, size_t end);
/* After an addition: elements become what the wire can carry. */
void gr_compress_sum(const gr_compressor *compressor, float *values, size_t count);

#endif
