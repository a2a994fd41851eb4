/* SPDX-License-Identifier: Apache-2.0 */
#include "train/safetensors.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, DATA_ALIGN = 8 };

/* ---- Writing --------------------------------------------------------------------------------- */

static int compare_parts(const void *a, const void *b)
{
    return strcmp(((const gr_safetensors_part *)a)->name, ((const gr_safetensors_part *)b)->name);
}

static size_t part_bytes(const gr_safetensors_part *part)
{
    size_t bytes = part->integers != NULL ? sizeof(int64_t) : sizeof(float);
    for (int i = 0; i < part->dims; i++) {
        bytes *= (size_t)part->dim[i];
    }
    return bytes;
}

static const void *part_data(const gr_safetensors_part *part)
{
    return part->integers != NULL ? (const void *)part->integers : part->values;
}

static gr_status sort_parts(gr_safetensors_part *parts, int count, gr_diag *diag)
{
    qsort(parts, (size_t)count, sizeof *parts, compare_parts);
    for (int i = 1; i < count; i++) {
        if (strcmp(parts[i - 1].name, parts[i].name) == 0) {
            return gr_fail(diag, GR_E_INVALID,
                           "two tensors are named \"%s\": give their layers different names",
                           parts[i].name);
        }
    }
    return GR_OK;
}

static json_t *part_entry(const gr_safetensors_part *part, size_t begin)
{
    json_t *shape = json_array();
    for (int i = 0; i < part->dims; i++) {
        json_array_append_new(shape, json_integer(part->dim[i]));
    }
    const char *dtype = part->integers != NULL ? "I64" : "F32";
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + part_bytes(part)));
}

/* The header's text without padding; NULL when memory is exhausted. */
static char *header_text(const gr_safetensors_part *parts, int count)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool whole = root != NULL;
    size_t begin = 0;
    for (int i = 0; i < count && whole; i++) {
        whole = json_object_set_new(root, parts[i].name, part_entry(&parts[i], begin)) == 0;
        begin += part_bytes(&parts[i]);
    }
    char *text = whole ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    return text;
}

/* Length, header and padding, in heap memory. */
static gr_status make_header(const gr_safetensors_part *parts, int count, char **data_out,
                             size_t *bytes_out, gr_diag *diag)
{
    char *text = header_text(parts, count);
    size_t text_bytes = text != NULL ? strlen(text) : 0;
    size_t header_bytes = (text_bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    char *data = text != NULL ? malloc(LENGTH_BYTES + header_bytes) : NULL;
    if (data == NULL) {
        free(text);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the header of %d tensors", count);
    }
    gr_put_u64((uint8_t *)data, header_bytes);
    memcpy(data + LENGTH_BYTES, text, text_bytes);
    memset(data + LENGTH_BYTES + text_bytes, ' ', header_bytes - text_bytes);
    free(text);
    *data_out = data;
    *bytes_out = LENGTH_BYTES + header_bytes;
    return GR_OK;
}

gr_status gr_safetensors_stream(gr_safetensors_part *parts, int count, gr_safetensors_sink *sink,
                                void *sink_arg, gr_diag *diag)
{
    char *header = NULL;
    size_t header_bytes = 0;
    gr_status status = sort_parts(parts, count, diag);
    if (status == GR_OK) {
        status = make_header(parts, count, &header, &header_bytes, diag);
    }
    if (status == GR_OK) {
        status = sink(sink_arg, header, header_bytes, diag);
    }
    for (int i = 0; i < count && status == GR_OK; i++) {
        status = sink(sink_arg, part_data(&parts[i]), part_bytes(&parts[i]), diag);
    }
    free(header);
    return status;
}

typedef struct memory_sink {
    char *data;
    size_t size, capacity;
} memory_sink;

static gr_status into_memory(void *sink_arg, const void *data, size_t size_bytes, gr_diag *diag)
{
    memory_sink *memory = sink_arg;
    if (memory->data == NULL) { /* the header: now the size of all is known */
        memory->capacity += size_bytes;
        memory->data = malloc(memory->capacity);
    }
    if (memory->data == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu bytes of weights",
                       memory->capacity);
    }
    memcpy(memory->data + memory->size, data, size_bytes);
    memory->size += size_bytes;
    return GR_OK;
}

gr_status gr_safetensors_format(gr_safetensors_part *parts, int count, char **data_out,
                                size_t *size_out, gr_diag *diag)
{
    memory_sink memory = {.data = NULL};
    for (int i = 0; i < count; i++) {
        memory.capacity += part_bytes(&parts[i]);
    }
    gr_status status = gr_safetensors_stream(parts, count, into_memory, &memory, diag);
    if (status != GR_OK) {
        free(memory.data);
        return status;
    }
    *data_out = memory.data;
    *size_out = memory.size;
    return GR_OK;
}

gr_status gr_safetensors_write(const char *path, gr_safetensors_part *parts, int count,
                               gr_diag *diag)
{
    char *data = NULL;
    size_t size = 0;
    gr_status status = gr_safetensors_format(parts, count, &data, &size, diag);
    if (status == GR_OK) {
        status = gr_file_replace(path, data, size, diag);
        free(data);
    }
    return status;
}

gr_status gr_safetensors_sha256(gr_safetensors_part *parts, int count, char text_out[65],
                                gr_diag *diag)
{
    gr_sha256 *sha = NULL;
    gr_status status = sort_parts(parts, count, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_sha256_create(&sha);
    for (int i = 0; i < count && status == GR_OK; i++) {
        status = gr_sha256_add(sha, part_data(&parts[i]), part_bytes(&parts[i]));
    }
    if (status == GR_OK) {
        status = gr_sha256_end(sha, text_out);
    }
    gr_sha256_destroy(sha);
    if (status != GR_OK) {
        return gr_fail(diag, status, "the SHA-256 of the weights could not be computed: %s",
                       gr_status_text(status));
    }
    return GR_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

struct gr_safetensors {
    char *data;
    gr_safetensors_entry *entries;
    int count;
};

typedef struct dtype_size {
    const char *name;
    size_t bytes;
} dtype_size;

static const dtype_size dtype_sizes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2},
    {"I8", 1},  {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"BOOL", 1}};

static size_t dtype_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof dtype_sizes / sizeof dtype_sizes[0]; i++) {
        if (strcmp(dtype_sizes[i].name, name) == 0) {
            return dtype_sizes[i].bytes;
        }
    }
    return 0;
}

typedef struct parser {
    const char *name; /* of the file */
    const char *data; /* first byte behind the header */
    size_t data_bytes;
    gr_diag *diag;
} parser;

static gr_status read_shape(const parser *in, const char *key, json_t *shape,
                            gr_safetensors_entry *entry)
{
    if (!json_is_array(shape) || json_array_size(shape) > GR_SAFETENSORS_DIMS_MAX) {
        return gr_fail(in->diag, GR_E_INVALID,
                       "%s: tensor \"%s\": \"shape\" must be a list of at most %d numbers",
                       in->name, key, GR_SAFETENSORS_DIMS_MAX);
    }
    entry->dims = (int)json_array_size(shape);
    entry->count = 1;
    for (int i = 0; i < entry->dims; i++) {
        json_t *dim = json_array_get(shape, (size_t)i);
        entry->dim[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || entry->dim[i] < 0 ||
            __builtin_mul_overflow(entry->count, (size_t)entry->dim[i], &entry->count)) {
            return gr_fail(in->diag, GR_E_INVALID,
                           "%s: tensor \"%s\": \"shape\" must hold whole numbers from 0 on whose "
                           "product fits into 64 bits",
                           in->name, key);
        }
    }
    return GR_OK;
}

static gr_status read_offsets(const parser *in, const char *key, json_t *offsets,
                              gr_safetensors_entry *entry)
{
    json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first)) {
        return gr_fail(in->diag, GR_E_INVALID,
                       "%s: tensor \"%s\": \"data_offsets\" must be [begin, end]", in->name, key);
    }
    size_t begin = (size_t)json_integer_value(first), end = (size_t)json_integer_value(last);
    if (end > in->data_bytes) {
        return gr_fail(in->diag, GR_E_INVALID,
                       "%s: tensor \"%s\" ends at byte %zu of the data, but the file holds %zu: it "
                       "is truncated; copy it again",
                       in->name, key, end, in->data_bytes);
    }
    size_t wanted = 0;
    if (__builtin_mul_overflow(entry->count, dtype_bytes(entry->dtype), &wanted) ||
        wanted != end - begin) {
        return gr_fail(in->diag, GR_E_INVALID,
                       "%s: tensor \"%s\" has %zu values of type %s but %zu bytes", in->name, key,
                       entry->count, entry->dtype, end - begin);
    }
    entry->data = in->data + begin;
    entry->bytes = end - begin;
    return GR_OK;
}

static gr_status read_entry(const parser *in, const char *key, json_t *value,
                            gr_safetensors_entry *entry)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!json_is_object(value) || json_object_size(value) != 3 || dtype == NULL) {
        return gr_fail(in->diag, GR_E_INVALID,
                       "%s: tensor \"%s\" must have \"dtype\", \"shape\" and \"data_offsets\"",
                       in->name, key);
    }
    if (strlen(key) >= sizeof entry->name) {
        return gr_fail(in->diag, GR_E_INVALID, "%s: the name of tensor \"%.40s...\" is too long",
                       in->name, key);
    }
    if (dtype_bytes(dtype) == 0) {
        return gr_fail(in->diag, GR_E_INVALID, "%s: tensor \"%s\": unknown type \"%.20s\"",
                       in->name, key, dtype);
    }
    memcpy(entry->name, key, strlen(key) + 1);
    memcpy(entry->dtype, dtype, strlen(dtype) + 1);
    gr_status status = read_shape(in, key, json_object_get(value, "shape"), entry);
    return status != GR_OK ? status
                           : read_offsets(in, key, json_object_get(value, "data_offsets"), entry);
}

static int compare_entries(const void *a, const void *b)
{
    const gr_safetensors_entry *left = a, *right = b;
    const char *left_at = left->data, *right_at = right->data;
    if (left_at != right_at) {
        return left_at < right_at ? -1 : 1;
    }
    return (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

/* Every byte of the data belongs to exactly one tensor. */
static gr_status check_cover(const parser *in, const gr_safetensors *file)
{
    const char *at = in->data;
    for (int i = 0; i < file->count; i++) {
        const gr_safetensors_entry *entry = &file->entries[i];
        if (entry->data != at) {
            return gr_fail(in->diag, GR_E_INVALID, "%s: there is %s tensor \"%s\"", in->name,
                           (const char *)entry->data > at ? "a hole before" : "an overlap at",
                           entry->name);
        }
        at += entry->bytes;
    }
    size_t used = (size_t)(at - in->data);
    if (used != in->data_bytes) {
        return gr_fail(in->diag, GR_E_INVALID,
                       "%s: %zu bytes behind the last tensor belong to none", in->name,
                       in->data_bytes - used);
    }
    return GR_OK;
}

static gr_status check_metadata(const parser *in, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) {
        return gr_fail(in->diag, GR_E_INVALID, "%s: \"__metadata__\" must be a map of texts",
                       in->name);
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            return gr_fail(in->diag, GR_E_INVALID, "%s: \"__metadata__\": \"%s\" must be a text",
                           in->name, key);
        }
    }
    return GR_OK;
}

static gr_status read_header(const parser *in, json_t *root, gr_safetensors *file)
{
    if (!json_is_object(root) || json_object_size(root) > GR_SAFETENSORS_TENSORS_MAX) {
        return gr_fail(in->diag, GR_E_INVALID, "%s: the header must be a map of at most %d tensors",
                       in->name, GR_SAFETENSORS_TENSORS_MAX);
    }
    file->entries = calloc(json_object_size(root) + 1, sizeof *file->entries);
    if (file->entries == NULL) {
        return gr_fail(in->diag, GR_E_NO_MEMORY, "%s: no memory for its header", in->name);
    }
    const char *key;
    json_t *value;
    gr_status status = GR_OK;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            status = check_metadata(in, value);
        } else {
            status = read_entry(in, key, value, &file->entries[file->count++]);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_entries);
    return check_cover(in, file);
}

gr_status gr_safetensors_parse(const char *name, char *data, size_t size_bytes,
                               gr_safetensors **file_out, gr_diag *diag)
{
    if (size_bytes < LENGTH_BYTES) {
        return gr_fail(diag, GR_E_INVALID, "%s: %zu bytes are no safetensors file", name,
                       size_bytes);
    }
    uint64_t header_bytes = gr_get_u64((const uint8_t *)data);
    if (header_bytes > GR_SAFETENSORS_HEADER_BYTES_MAX ||
        header_bytes > size_bytes - LENGTH_BYTES) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: its header should have %llu bytes, but the file has %zu: it is "
                       "truncated or no safetensors file",
                       name, (unsigned long long)header_bytes, size_bytes);
    }
    parser in = {.name = name,
                 .data = data + LENGTH_BYTES + header_bytes,
                 .data_bytes = size_bytes - LENGTH_BYTES - header_bytes,
                 .diag = diag};
    json_error_t error;
    json_t *root = json_loadb(data + LENGTH_BYTES, header_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s: its header is no valid JSON: %s", name, error.text);
    }
    gr_safetensors *file = calloc(1, sizeof *file);
    gr_status status = file != NULL
                           ? read_header(&in, root, file)
                           : gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its header", name);
    json_decref(root);
    if (status != GR_OK) {
        gr_safetensors_close(file);
        return status;
    }
    file->data = data;
    *file_out = file;
    return GR_OK;
}

gr_status gr_safetensors_open(const char *path, gr_safetensors **file_out, gr_diag *diag)
{
    char *data = NULL;
    size_t size = 0;
    gr_status status = gr_file_read(path, (size_t)1 << 40, &data, &size, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_safetensors_parse(path, data, size, file_out, diag);
    if (status != GR_OK) {
        free(data);
    }
    return status;
}

void gr_safetensors_close(gr_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    free(file->data);
    free(file->entries);
    free(file);
}

int gr_safetensors_count(const gr_safetensors *file)
{
    return file->count;
}

const gr_safetensors_entry *gr_safetensors_at(const gr_safetensors *file, int index)
{
    return index >= 0 && index < file->count ? &file->entries[index] : NULL;
}

const gr_safetensors_entry *gr_safetensors_find(const gr_safetensors *file, const char *name)
{
    for (int i = 0; i < file->count; i++) {
        if (strcmp(file->entries[i].name, name) == 0) {
            return &file->entries[i];
        }
    }
    return NULL;
}
