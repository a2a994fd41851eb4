/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_SAFETENSORS_H
#define GR_TRAIN_SAFETENSORS_H

/* Weights in the safetensors format: an 8-byte little-endian length, a JSON header, the tensors'
 * bytes one behind the other without gaps.
 *
 * The writer's bytes depend on the tensors alone: tensors by name (byte order), a header padded
 * with spaces so that the data start at a multiple of 8, one constant entry of metadata. The
 * reader is strict: whatever the format forbids is refused with a sentence that names the file
 * and the tensor. */

#include <gradus/status.h>

#include <stdbool.h>

enum {
    GR_SAFETENSORS_DIMS_MAX = 8,
    GR_SAFETENSORS_NAME_BYTES = 128,
    GR_SAFETENSORS_TENSORS_MAX = 1 << 16,
    GR_SAFETENSORS_HEADER_BYTES_MAX = 64 << 20
};

/* One tensor to write, borrowed. */
typedef struct gr_safetensors_part {
    const char *name;
    const float *values;
    const int64_t *integers; /* in place of values; NULL: none */
    int dims;
    int64_t dim[GR_SAFETENSORS_DIMS_MAX];
} gr_safetensors_part;

/* Writes beside the place and renames: a reader sees the old or the new file. Sorts `parts`. Two
 * parts of one name: GR_E_INVALID. */
gr_status gr_safetensors_write(const char *path, gr_safetensors_part *parts, int count,
                               gr_diag *diag) GR_MUST_CHECK;

/* The same bytes in heap memory (free). */
gr_status gr_safetensors_format(gr_safetensors_part *parts, int count, char **data_out,
                                size_t *size_out, gr_diag *diag) GR_MUST_CHECK;

/* The same bytes piece by piece; the first failure of `sink` ends it and is returned. */
typedef gr_status gr_safetensors_sink(void *sink_arg, const void *data, size_t size_bytes,
                                      gr_diag *diag);
gr_status gr_safetensors_stream(gr_safetensors_part *parts, int count, gr_safetensors_sink *sink,
                                void *sink_arg, gr_diag *diag) GR_MUST_CHECK;

/* SHA-256, as hexadecimal text, over the tensors' bytes (f32, little-endian) in the order of their
 * names; names and shapes do not enter. Sorts `parts`. */
gr_status gr_safetensors_sha256(gr_safetensors_part *parts, int count, char text_out[65],
                                gr_diag *diag) GR_MUST_CHECK;

/* One tensor of a file. */
typedef struct gr_safetensors_entry {
    char name[GR_SAFETENSORS_NAME_BYTES];
    char dtype[8]; /* "F32" */
    int dims;
    int64_t dim[GR_SAFETENSORS_DIMS_MAX];
    size_t count;     /* values */
    const void *data; /* `bytes` bytes inside the file's memory; no alignment is promised */
    size_t bytes;
} gr_safetensors_entry;

typedef struct gr_safetensors gr_safetensors;

/* GR_E_NOT_FOUND, GR_E_IO, GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_safetensors_open(const char *path, gr_safetensors **file_out,
                              gr_diag *diag) GR_MUST_CHECK;
/* The same from memory, which is transferred on success (heap). `name` stands in sentences. */
gr_status gr_safetensors_parse(const char *name, char *data, size_t size_bytes,
                               gr_safetensors **file_out, gr_diag *diag) GR_MUST_CHECK;
void gr_safetensors_close(gr_safetensors *file);

int gr_safetensors_count(const gr_safetensors *file);
const gr_safetensors_entry *gr_safetensors_at(const gr_safetensors *file,
                                              int index); /* by offset */
const gr_safetensors_entry *gr_safetensors_find(const gr_safetensors *file, const char *name);

#endif
