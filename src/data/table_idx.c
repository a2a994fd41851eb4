/* SPDX-License-Identifier: Apache-2.0 */
#include "data/idx.h"
#include "data/reader.h"
#include "data/record_cache.h"

#include "base/fail.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IDX_PIECE_BYTES = 8 << 10, IDX_UNPACK_BYTES = 64 << 10 };

typedef struct idx_table {
    gr_table head;
    gr_record_cache *records, *labels; /* as in the files */
    int64_t values;
    bool bytes; /* uint8, not float32 */
    bool plain; /* the records are those of the plain file itself */
} idx_table;

static gr_status truncated(const char *name, const gr_idx_header *header, uint64_t has,
                           gr_diag *diag)
{
    uint64_t promised = (uint64_t)header->dim[0] * header->record_bytes;
    return gr_fail(diag, GR_E_INVALID,
                   "%s: the header promises %" PRId64 " samples of %zu bytes, %" PRIu64 " bytes in "
                   "all, but %s%" PRIu64 " follow: %s",
                   name, header->dim[0], header->record_bytes, promised,
                   has > promised ? "at least " : "only ", has,
                   has > promised ? "the header or the file is damaged" : "the file is truncated");
}

/* Fails unless the value is a number. A sample holds numbers or it is bad data, as in any file: not
 * GR_E_NOT_FINITE, which training finds on all ranks together. */
static gr_status check_float(const char *name, int64_t sample, int64_t at, float value,
                             gr_diag *diag)
{
    if (isfinite(value)) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s: value %" PRId64 " of sample %" PRId64 " (from 0) is %s; correct it, or "
                   "remove the sample and its label",
                   name, at, sample, isnan(value) ? "not a number" : "infinite");
}

/* The same of a whole record as it stands in the file. */
static gr_status check_record(const char *name, const gr_idx_header *header, int64_t sample,
                              const uint8_t *record, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int64_t i = 0; i < header->record_values && status == GR_OK; i++) {
        status = check_float(name, sample, i, gr_idx_float(record + 4 * i), diag);
    }
    return status;
}

static gr_status unpack_records(gr_idx_stream *stream, uint8_t *piece, int64_t piece_records,
                                gr_record_cache *cache, gr_diag *diag)
{
    const gr_idx_header *header = &stream->header;
    const char *name = gr_input_stream_name(stream->source);
    size_t got;
    for (int64_t i = 0; i < header->dim[0]; i += piece_records) {
        int64_t left = header->dim[0] - i;
        int64_t count = left < piece_records ? left : piece_records;
        size_t size = (size_t)count * header->record_bytes;
        gr_status status = gr_idx_stream_read(stream, piece, size, &got, diag);
        if (status != GR_OK) {
            return status;
        }
        if (got < size) {
            return truncated(name, header, (uint64_t)i * header->record_bytes + got, diag);
        }
        for (int64_t k = 0; k < count && status == GR_OK; k++) {
            const uint8_t *record = piece + (size_t)k * header->record_bytes;
            status = header->type == GR_IDX_F32 ? check_record(name, header, i + k, record, diag)
                                                : GR_OK;
            status = status == GR_OK ? gr_record_cache_append(cache, record, diag) : status;
        }
        if (status != GR_OK) {
            return status;
        }
    }
    gr_status status = gr_idx_stream_read(stream, piece, 1, &got, diag);
    if (status == GR_OK && got > 0) {
        return truncated(name, header, (uint64_t)header->dim[0] * header->record_bytes + 1, diag);
    }
    return status != GR_OK ? status : gr_record_cache_seal(cache, diag);
}

static gr_status unpack(gr_idx_stream *stream, uint64_t memory_max, gr_record_cache **cache_out,
                        gr_diag *diag)
{
    const gr_idx_header *header = &stream->header;
    const char *name = gr_input_stream_name(stream->source);
    size_t records = IDX_UNPACK_BYTES / header->record_bytes;
    records = records > 0 ? records : 1;
    uint8_t *piece = malloc(records * header->record_bytes);
    if (piece == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for a sample", name);
    }
    gr_record_cache *cache;
    gr_status status = gr_record_cache_create(name, header->record_bytes, memory_max, &cache, diag);
    if (status == GR_OK) {
        status = unpack_records(stream, piece, (int64_t)records, cache, diag);
        if (status == GR_OK) {
            *cache_out = cache;
        } else {
            gr_record_cache_destroy(cache);
        }
    }
    free(piece);
    return status;
}

/* The values as records: the plain file itself, or unpacked copies. */
static gr_status idx_records(gr_idx_stream *stream, uint64_t memory_max,
                             gr_record_cache **cache_out, bool *plain_out, gr_diag *diag)
{
    const gr_idx_header *header = &stream->header;
    const char *name = gr_input_stream_name(stream->source);
    uint64_t size;
    int fd = gr_input_stream_seekable(stream->source, &size);
    uint64_t promised = (uint64_t)header->dim[0] * header->record_bytes;
    if (fd >= 0 && size - header->header_bytes != promised) {
        return truncated(name, header, size - header->header_bytes, diag);
    }
    /* What is small is worth its memory: a sample then costs no system call. */
    *plain_out = fd >= 0 && promised > memory_max;
    if (!*plain_out) {
        return unpack(stream, memory_max, cache_out, diag);
    }
    return gr_record_cache_over_file(name, fd, header->header_bytes, header->record_bytes,
                                     (uint64_t)header->dim[0], cache_out, diag);
}

/* A sample has the dimensions behind the count; where these are height and width, one channel. */
static gr_status idx_shape(const char *name, const gr_idx_header *header, idx_table *table,
                           gr_diag *diag)
{
    if (header->dims == 1) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: the file has one dimension and looks like labels; samples have two to "
                       "%d: count, then theirs",
                       name, GR_IDX_DIMS_MAX);
    }
    table->head.count = header->dim[0];
    table->values = header->record_values;
    table->bytes = header->type == GR_IDX_U8;
    bool image = header->dims == 3;
    const int64_t one_channel[] = {1, header->dim[1], header->dim[2]};
    gr_table_add_value(&table->head, "x", table->bytes ? GR_U8 : GR_F32,
                       image ? 3 : header->dims - 1, image ? one_channel : header->dim + 1);
    gr_table_add_value(&table->head, "label", GR_I32, 0, NULL);
    return GR_OK;
}

/* Goes through all labels once; a label is one byte, so many lie side by side. */
static gr_status check_labels(idx_table *table, const char *name, int64_t classes, gr_diag *diag)
{
    uint8_t labels[IDX_PIECE_BYTES];
    for (int64_t first = 0; first < table->head.count; first += IDX_PIECE_BYTES) {
        int64_t left = table->head.count - first;
        int64_t count = left < IDX_PIECE_BYTES ? left : IDX_PIECE_BYTES;
        gr_status status =
            gr_record_cache_get(table->labels, (uint64_t)first, 0, (size_t)count, labels, diag);
        if (status != GR_OK) {
            return status;
        }
        for (int64_t i = 0; i < count; i++) {
            if (classes > 0 && labels[i] >= classes) {
                return gr_fail(diag, GR_E_INVALID,
                               "%s: the label of sample %" PRId64 " (from 0) is %d, out of range: "
                               "labels go from 0 to %" PRId64 " (classes in the job file)",
                               name, first + i, labels[i], classes - 1);
            }
            table->head.label_max =
                labels[i] > table->head.label_max ? labels[i] : table->head.label_max;
        }
    }
    return GR_OK;
}

static gr_status open_labels(idx_table *table, gr_input_stream *source,
                             const gr_table_options *options, gr_diag *diag)
{
    gr_idx_stream stream;
    const gr_idx_header *header = &stream.header;
    const char *name = gr_input_stream_name(source);
    gr_status status = gr_idx_stream_begin(&stream, source, diag);
    if (status != GR_OK) {
        return status;
    }
    if (header->type != GR_IDX_U8 || header->dims != 1) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: labels are one byte each in one dimension; this file has %d dimensions "
                       "of %s",
                       name, header->dims, header->type == GR_IDX_U8 ? "bytes" : "float32");
    }
    if (header->dim[0] != table->head.count) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s has %" PRId64 " labels, but %s has %" PRId64
                       " samples; they must belong "
                       "together",
                       name, header->dim[0], table->head.name, table->head.count);
    }
    bool plain;
    status = idx_records(&stream, options->memory_max, &table->labels, &plain, diag);
    return status != GR_OK ? status : check_labels(table, name, options->classes, diag);
}

gr_status gr_table_open_idx(gr_input_stream *images, gr_input_stream *labels,
                            const gr_table_options *options, gr_table **table_out, gr_diag *diag)
{
    const char *name = gr_input_stream_name(images);
    idx_table *table = gr_table_new(&gr_idx_reader, name, sizeof *table);
    if (table == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to open it", name);
    }
    gr_idx_stream stream;
    gr_status status = gr_idx_stream_begin(&stream, images, diag);
    if (status == GR_OK) {
        status = idx_shape(name, &stream.header, table, diag);
    }
    if (status == GR_OK) {
        status = idx_records(&stream, options->memory_max, &table->records, &table->plain, diag);
    }
    if (status == GR_OK) {
        status = open_labels(table, labels, options, diag);
    }
    if (status != GR_OK) {
        gr_table_close(&table->head);
        return status;
    }
    *table_out = &table->head;
    return GR_OK;
}

/* ---- The reader ------------------------------------------------------------------------------ */

static gr_status idx_check_settings(const gr_data_config *config, gr_diag *diag)
{
    gr_status status = gr_data_need(&gr_idx_reader, config, "images", config->images, diag);
    if (status == GR_OK) {
        status = gr_data_need(&gr_idx_reader, config, "labels", config->labels, diag);
    }
    if (status == GR_OK && config->test_images != NULL) {
        status = gr_data_need(&gr_idx_reader, config, "test_labels", config->test_labels, diag);
    }
    if (status == GR_OK && config->test_labels != NULL) {
        status = gr_data_need(&gr_idx_reader, config, "test_images", config->test_images, diag);
    }
    if (status == GR_OK && config->regression) {
        return gr_node_fail(gr_node_setting(config->section, "regression"), diag, GR_E_INVALID,
                            "labels of idx files are classes; numbers to predict need format: csv");
    }
    return status;
}

static gr_status idx_open(const gr_reader_open *how, gr_table **table_out, gr_diag *diag)
{
    const gr_data_config *c = how->config;
    gr_input_stream *images = NULL, *labels = NULL;
    gr_table_options options = how->limits;
    options.classes = c->classes;
    if (how->test && c->test_images == NULL) {
        *table_out = NULL;
        return GR_OK;
    }
    gr_status status = gr_reader_open_file(how, how->test ? "test_images" : "images",
                                           how->test ? c->test_images : c->images, &images, diag);
    if (status == GR_OK) {
        status = gr_reader_open_file(how, how->test ? "test_labels" : "labels",
                                     how->test ? c->test_labels : c->labels, &labels, diag);
    }
    if (status == GR_OK) {
        status = gr_table_open_idx(images, labels, &options, table_out, diag);
    }
    gr_input_stream_close(labels);
    gr_input_stream_close(images);
    return status;
}

static void idx_close(gr_table *head)
{
    const idx_table *table = (const idx_table *)head;
    gr_record_cache_destroy(table->records);
    gr_record_cache_destroy(table->labels);
}

static gr_status idx_check(const gr_table *head, gr_diag *diag)
{
    const idx_table *table = (const idx_table *)head;
    gr_status status = gr_record_cache_check(table->records, diag);
    return status == GR_OK ? gr_record_cache_check(table->labels, diag) : status;
}

static gr_status to_floats(const idx_table *table, int64_t number, float *x, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int64_t i = 0; i < table->values && status == GR_OK; i++) {
        x[i] = gr_idx_float((const uint8_t *)&x[i]);
        status = check_float(table->head.name, number, i, x[i], diag);
    }
    return status;
}

static gr_status idx_read(const gr_table *head, int64_t number, void *const *values_out,
                          gr_diag *diag)
{
    const idx_table *table = (const idx_table *)head;
    size_t bytes = (size_t)table->values * (table->bytes ? 1 : sizeof(float));
    gr_status status = GR_OK;
    if (values_out[1] != NULL) {
        uint8_t label = 0;
        status = gr_record_cache_get(table->labels, (uint64_t)number, 0, 1, &label, diag);
        *(int32_t *)values_out[1] = label;
    }
    if (status == GR_OK && values_out[0] != NULL) {
        status =
            gr_record_cache_get(table->records, (uint64_t)number, 0, bytes, values_out[0], diag);
        if (status == GR_OK && !table->bytes) {
            status = to_floats(table, number, values_out[0], diag);
        }
    }
    return status;
}

static const char *idx_kept(const gr_table *head)
{
    const idx_table *table = (const idx_table *)head;
    return table->plain ? "read from the file" : gr_record_cache_kept(table->records);
}

static uint64_t idx_memory(const gr_table *head)
{
    const idx_table *table = (const idx_table *)head;
    return gr_record_cache_memory(table->records) + gr_record_cache_memory(table->labels);
}

#define AT(field) offsetof(gr_data_config, field)
static const gr_config_field fields[] = {{.key = "images",
                                          .type = GR_CONFIG_TEXT,
                                          .offset = AT(images),
                                          .value_name = "FILE",
                                          .is_file = true,
                                          .help = "idx: the samples, plain or gzip"},
                                         {.key = "labels",
                                          .type = GR_CONFIG_TEXT,
                                          .offset = AT(labels),
                                          .value_name = "FILE",
                                          .is_file = true,
                                          .help = "idx: the labels, plain or gzip"},
                                         {.key = "test_images",
                                          .type = GR_CONFIG_TEXT,
                                          .offset = AT(test_images),
                                          .value_name = "FILE",
                                          .is_file = true,
                                          .help = "idx: samples of a test set of its own"},
                                         {.key = "test_labels",
                                          .type = GR_CONFIG_TEXT,
                                          .offset = AT(test_labels),
                                          .value_name = "FILE",
                                          .is_file = true,
                                          .help = "idx: labels of a test set of its own"},
                                         {0}};

const gr_reader_ops gr_idx_reader = {
    .name = "idx",
    .settings = fields,
    .check_settings = idx_check_settings,
    .open = idx_open,
    .close = idx_close,
    .check = idx_check,
    .read = idx_read,
    .kept = idx_kept,
    .memory = idx_memory,
};
