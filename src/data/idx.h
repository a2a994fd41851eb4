/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_IDX_H
#define GR_DATA_IDX_H

/* The header of an IDX file (LeCun's format of the MNIST files): two zero bytes, type, number of
 * dimensions, the dimensions as big-endian 32-bit numbers; then the values, big-endian. */

#include "data/input_stream.h"

enum {
    GR_IDX_DIMS_MAX = 8,
    GR_IDX_HEADER_BYTES_MAX = 4 + 4 * GR_IDX_DIMS_MAX,
    GR_IDX_RECORD_VALUES_MAX = 1 << 26,
    GR_IDX_U8 = 0x08,
    GR_IDX_F32 = 0x0d
};

typedef struct gr_idx_header {
    int type; /* GR_IDX_U8, GR_IDX_F32 */
    int dims; /* 1 .. GR_IDX_DIMS_MAX; the first is the count */
    int64_t dim[GR_IDX_DIMS_MAX];
    int64_t record_values; /* product of the others */
    size_t record_bytes;
    size_t header_bytes;
} gr_idx_header;

/* From the first `size` bytes of the file (GR_IDX_HEADER_BYTES_MAX, or all if it is smaller). */
gr_status gr_idx_parse(const char *name, const uint8_t *data, size_t size,
                       gr_idx_header *header_out, gr_diag *diag) GR_MUST_CHECK;

/* The values behind a header, from front to back. `head` are the bytes that were read with the
 * header but belong to the values. */
typedef struct gr_idx_stream {
    gr_input_stream *source;
    gr_idx_header header;
    uint8_t head[GR_IDX_HEADER_BYTES_MAX];
    size_t head_bytes;
} gr_idx_stream;

/* Reads the header of the source, which stays the caller's. */
gr_status gr_idx_stream_begin(gr_idx_stream *stream, gr_input_stream *source,
                              gr_diag *diag) GR_MUST_CHECK;
/* As gr_input_stream_read. */
gr_status gr_idx_stream_read(gr_idx_stream *stream, uint8_t *buffer, size_t size, size_t *got_out,
                             gr_diag *diag) GR_MUST_CHECK;

/* A number of a file of type GR_IDX_F32, which are big-endian. */
float gr_idx_float(const uint8_t at[4]);

#endif
