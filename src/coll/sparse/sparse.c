/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/sparse/sparse.h"
#include "base/fail.h"
#include "base/float_mode.h"

#include <gradus/coll.h>
#include <gradus/shards.h>
#include <stdlib.h>
#include <string.h>

/* ---- Life ------------------------------------------------------------------------------------ */
/* How many pieces of all ranks are worth sending: an allreduce moves about two vectors a rank,
 * whatever is in them; pieces come with an index and go to everybody. */
static size_t rows_worth(size_t count, size_t width)
{
    return 2 * count / (width + 1) + 1;
}

gr_status gr_sparse_init(gr_sparse *sparse, gr_comm *comm, int shards, size_t count_max,
                         size_t width, gr_diag *diag)
{
    size_t size = (size_t)gr_comm_size(comm);
    gr_sparse made = {.comm = comm, .shards = shards, .width = width, .count_max = count_max};
    made.unit_count = gr_row_units(shards, (int)size, NULL);
    for (int rank = 0; rank <= gr_comm_rank(comm); rank++) {
        int first, held;
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        gr_shard_range(shards, (int)size, rank, &first, &held);
        made.own_first += made.own_count;
        made.own_count = gr_tree_cover(shards, first, held, ranges);
    }
    size_t units = (size_t)made.unit_count;
    made.rows_max = rows_worth(count_max, width);
    made.units = calloc(units, sizeof *made.units);
    made.unit_rows = calloc(units, sizeof *made.unit_rows);
    made.unit_counts = calloc(3 * size, sizeof *made.unit_counts);
    made.own_indices = malloc(made.rows_max * sizeof *made.own_indices);
    made.indices = malloc(made.rows_max * sizeof *made.indices);
    made.own_values = malloc(made.rows_max * width * sizeof *made.own_values);
    made.values = malloc(made.rows_max * width * sizeof *made.values);
    made.sums = malloc(GR_ROW_SUMS * width * sizeof *made.sums);
    if (!made.units || !made.unit_rows || !made.unit_counts || !made.own_indices || !made.indices ||
        !made.own_values || !made.values || !made.sums) {
        gr_sparse_fini(&made);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for sparse sums of %zu values", count_max);
    }
    for (int rank = 0; rank < (int)size; rank++) {
        int first, held;
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        gr_shard_range(shards, (int)size, rank, &first, &held);
        made.unit_counts[rank] = (size_t)gr_tree_cover(shards, first, held, ranges);
    }
    *sparse = made;
    return GR_OK;
}

void gr_sparse_fini(gr_sparse *sparse)
{
    free(sparse->units);
    free(sparse->unit_rows);
    free(sparse->unit_counts);
    free(sparse->own_indices);
    free(sparse->indices);
    free(sparse->own_values);
    free(sparse->values);
    free(sparse->sums);
    *sparse = (gr_sparse){.comm = NULL};
}

/* ---- One sum --------------------------------------------------------------------------------- */
/* -0 counts as zero: adding it changes no sum but that of other zeros. */
static bool is_zero(const float *piece, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (piece[i] != 0.0f) {
            return false;
        }
    }
    return true;
}

/* The pieces of one vector that are not zero, behind the `used` that were found before. Counts on
 * when there is no more room, so that the count is right. */
static size_t find_pieces(gr_sparse *s, const float *vector, size_t count, size_t used)
{
    size_t found = 0;
    for (size_t at = 0; at < count; at += s->width) {
        size_t length = count - at < s->width ? count - at : s->width;
        if (is_zero(vector + at, length)) {
            continue;
        }
        if (used + found < s->rows_max) {
            float *to = s->own_values + (used + found) * s->width;
            memcpy(to, vector + at, length * sizeof *to);
            memset(to + length, 0, (s->width - length) * sizeof *to);
            s->own_indices[used + found] = (uint32_t)(at / s->width);
        }
        found++;
    }
    return found;
}

typedef struct rows_target {
    float *vector;
    size_t width, count;
} rows_target;

static void put_piece(void *arg, uint32_t index, const void *row)
{
    const rows_target *t = arg;
    size_t at = (size_t)index * t->width;
    if (at < t->count) {
        size_t length = t->count - at < t->width ? t->count - at : t->width;
        memcpy(t->vector + at, row, length * sizeof(float));
    }
}

static void merge_into(gr_sparse *s, float *vector, size_t count)
{
    rows_target t = {vector, s->width, count};
    gr_row_merge merge = {.units = s->units,
                          .unit_count = gr_row_units(s->shards, gr_comm_size(s->comm), s->units),
                          .shards = s->shards,
                          .width = s->width,
                          .row_bytes = s->width * sizeof(float),
                          .add = gr_reduce_kernel(gr_isa_best(), GR_F32, GR_SUM),
                          .sums = (uint8_t *)s->sums,
                          .found = put_piece,
                          .found_arg = &t};
    size_t first = 0;
    for (int i = 0; i < s->unit_count; i++) {
        s->units[i].rows = (uint32_t)s->unit_rows[i];
        s->units[i].indices = s->indices + first;
        s->units[i].values = (const uint8_t *)(s->values + first * s->width);
        first += s->units[i].rows;
    }
    memset(vector, 0, count * sizeof *vector);
    gr_rows_merge(&merge);
}

/* A unit of a vector of `count` elements has at most one piece for each `width` of them. */
static gr_status check_counts(const gr_sparse *s, size_t count)
{
    size_t most = (count + s->width - 1) / s->width, unit = 0;
    for (int rank = 0; rank < gr_comm_size(s->comm); rank++) {
        for (size_t i = 0; i < s->unit_counts[rank]; i++, unit++) {
            if (s->unit_rows[unit] > most) {
                return gr_rows_refuse_peer(s->comm, rank, s->unit_rows[unit], "pieces", most);
            }
        }
    }
    return GR_OK;
}

static gr_status exchange_counts(gr_sparse *s, size_t count)
{
    const gr_call call = {.coll = GR_COLL_ALLGATHER,
                          .dtype = GR_I64,
                          .out = s->unit_rows,
                          .counts = s->unit_counts,
                          .name = "counts of a sparse sum"};
    gr_status status = gr_run(s->comm, &call, 1);
    return status == GR_OK ? check_counts(s, count) : status;
}

static gr_status exchange_pieces(gr_sparse *s)
{
    size_t size = (size_t)gr_comm_size(s->comm), unit = 0;
    size_t *rows = s->unit_counts + size, *values = rows + size;
    for (size_t rank = 0; rank < size; rank++) {
        rows[rank] = 0;
        for (size_t i = 0; i < s->unit_counts[rank]; i++) {
            rows[rank] += (size_t)s->unit_rows[unit++];
        }
        values[rank] = rows[rank] * s->width;
    }
    const gr_call calls[2] = {{.coll = GR_COLL_ALLGATHER,
                               .dtype = GR_I32,
                               .in = s->own_indices,
                               .out = s->indices,
                               .counts = rows,
                               .name = "indices of a sparse sum"},
                              {.coll = GR_COLL_ALLGATHER,
                               .dtype = GR_F32,
                               .in = s->own_values,
                               .out = s->values,
                               .counts = values,
                               .name = "pieces of a sparse sum"}};
    return gr_run(s->comm, calls, 2);
}

gr_status gr_sparse_sum(gr_sparse *sparse, float *const *partials, size_t count)
{
    gr_sparse *s = sparse;
    size_t used = 0, total = 0, worth = rows_worth(count, s->width);
    GR_CHECK(count <= s->count_max);
    gr_float_mode mode = gr_float_mode_enter(); /* a number that is flushed looks like zero */
    for (int i = 0; i < s->own_count; i++) {
        size_t found = find_pieces(s, partials[i], count, used);
        s->unit_rows[s->own_first + i] = found;
        used += found;
    }
    gr_float_mode_leave(mode);
    gr_status status = exchange_counts(s, count);
    if (status != GR_OK) {
        return status;
    }
    for (int i = 0; i < s->unit_count; i++) {
        total += (size_t)s->unit_rows[i];
    }
    if (total > worth || total > s->rows_max) { /* all ranks see the same */
        s->dense_sums++;
        return gr_allreduce_shards(s->comm, (void *const *)partials, s->shards, count, GR_F32,
                                   GR_SUM);
    }
    s->sparse_sums++;
    s->rows_sent += used;
    status = exchange_pieces(s);
    if (status == GR_OK) {
        mode = gr_float_mode_enter();
        merge_into(s, partials[0], count);
        gr_float_mode_leave(mode);
    }
    return status;
}
