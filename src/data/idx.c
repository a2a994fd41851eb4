/* SPDX-License-Identifier: Apache-2.0 */
#include "data/idx.h"

#include "base/fail.h"

#include <string.h>

static const char *type_name(int type)
{
    switch (type) {
    case 0x09:
        return "signed 8-bit integers";
    case 0x0b:
        return "16-bit integers";
    case 0x0c:
        return "32-bit integers";
    case 0x0e:
        return "64-bit floating-point numbers";
    default:
        return "values of an unknown type";
    }
}

gr_status gr_idx_parse(const char *name, const uint8_t *data, size_t size,
                       gr_idx_header *header_out, gr_diag *diag)
{
    if (size < 4) {
        return gr_fail(diag, GR_E_INVALID, "%s: %s", name,
                       size == 0 ? "the file is empty" : "the file is too short for an IDX header");
    }
    if (data[0] != 0 || data[1] != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: this is no IDX file: it begins with the bytes %02x %02x, an IDX file "
                       "with 00 00",
                       name, data[0], data[1]);
    }
    gr_idx_header header = {.type = data[2], .dims = data[3], .record_values = 1};
    if (header.type != GR_IDX_U8 && header.type != GR_IDX_F32) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: the file holds %s (type 0x%02x); convert them to bytes (0x08) or to "
                       "32-bit floating-point numbers (0x0d)",
                       name, type_name(header.type), (unsigned)header.type);
    }
    if (header.dims < 1 || header.dims > GR_IDX_DIMS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: the IDX header names %d dimensions; 1 to %d can be read", name,
                       header.dims, GR_IDX_DIMS_MAX);
    }
    header.header_bytes = 4 + 4 * (size_t)header.dims;
    if (size < header.header_bytes) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: the file ends inside its IDX header: it is truncated", name);
    }
    for (int i = 0; i < header.dims; i++) {
        const uint8_t *at = data + 4 + 4 * i;
        header.dim[i] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
        if (header.dim[i] == 0) {
            return gr_fail(diag, GR_E_INVALID, "%s: dimension %d of the IDX header is 0", name,
                           i + 1);
        }
        if (i > 0 && header.dim[i] > GR_IDX_RECORD_VALUES_MAX / header.record_values) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s: a sample of this file has more than %d values, which is the limit",
                           name, GR_IDX_RECORD_VALUES_MAX);
        }
        header.record_values *= i > 0 ? header.dim[i] : 1;
    }
    header.record_bytes = (size_t)header.record_values * (header.type == GR_IDX_F32 ? 4 : 1);
    *header_out = header;
    return GR_OK;
}

float gr_idx_float(const uint8_t at[4])
{
    float value;
    uint32_t bits = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    memcpy(&value, &bits, sizeof value);
    return value;
}

gr_status gr_idx_stream_begin(gr_idx_stream *stream, gr_input_stream *source, gr_diag *diag)
{
    uint8_t data[GR_IDX_HEADER_BYTES_MAX];
    size_t size = 0;
    gr_status status = gr_input_stream_read(source, data, sizeof data, &size, diag);
    if (status == GR_OK) {
        status = gr_idx_parse(gr_input_stream_name(source), data, size, &stream->header, diag);
    }
    if (status == GR_OK) {
        stream->source = source;
        stream->head_bytes = size - stream->header.header_bytes;
        memcpy(stream->head, data + stream->header.header_bytes, stream->head_bytes);
    }
    return status;
}

gr_status gr_idx_stream_read(gr_idx_stream *stream, uint8_t *buffer, size_t size, size_t *got_out,
                             gr_diag *diag)
{
    size_t head = stream->head_bytes < size ? stream->head_bytes : size;
    memcpy(buffer, stream->head, head);
    memmove(stream->head, stream->head + head, stream->head_bytes - head);
    stream->head_bytes -= head;
    size_t rest = 0;
    gr_status status = GR_OK;
    if (head < size) {
        status = gr_input_stream_read(stream->source, buffer + head, size - head, &rest, diag);
    }
    *got_out = head + rest;
    return status;
}
