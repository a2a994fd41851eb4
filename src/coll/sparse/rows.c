/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/sparse/rows.h"
#include "base/fail.h"
#include "base/float_mode.h"
#include "coll/comm_internal.h"

#include <gradus/coll.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- This rank's rows, sorted and merged ----------------------------------------------------- */
typedef struct row_entry {
    uint32_t index;
    uint32_t place; /* in what the caller gave: equal indices keep their order */
} row_entry;

static int by_index(const void *a, const void *b)
{
    const row_entry *x = a;
    const row_entry *y = b;
    if (x->index != y->index) {
        return x->index < y->index ? -1 : 1;
    }
    return (x->place > y->place) - (x->place < y->place);
}

typedef struct own_rows {
    uint32_t count;
    uint32_t *indices;
    uint8_t *values;
} own_rows;

static void free_own(own_rows *own)
{
    free(own->indices);
    free(own->values);
}

static bool sort_own(const gr_rows *in, size_t row_bytes, own_rows *own)
{
    gr_reduce_fn *add = gr_reduce_kernel(gr_isa_best(), in->dtype, GR_SUM);
    row_entry *entries = malloc((in->count + 1) * sizeof *entries);
    *own = (own_rows){.indices = malloc((in->count + 1) * sizeof *own->indices),
                      .values = malloc(in->count * row_bytes + 1)};
    if (!entries || !own->indices || !own->values) {
        free(entries);
        free_own(own);
        *own = (own_rows){.indices = NULL};
        return false;
    }
    for (size_t i = 0; i < in->count; i++) {
        entries[i] = (row_entry){in->indices[i], (uint32_t)i};
    }
    qsort(entries, in->count, sizeof *entries, by_index);
    for (size_t i = 0; i < in->count; i++) {
        const uint8_t *row = (const uint8_t *)in->values + entries[i].place * row_bytes;
        if (own->count > 0 && own->indices[own->count - 1] == entries[i].index) {
            uint8_t *sum = own->values + (own->count - 1) * row_bytes;
            add(sum, sum, row, in->width);
        } else {
            own->indices[own->count] = entries[i].index;
            memcpy(own->values + own->count * row_bytes, row, row_bytes);
            own->count++;
        }
    }
    free(entries);
    return true;
}

/* ---- Everybody's ----------------------------------------------------------------------------- */
typedef struct gathered {
    size_t *counts; /* rows by rank, then elements by rank */
    size_t rows;    /* of all ranks */
    uint32_t *indices;
    uint8_t *values;
    uint8_t *sums;
    gr_row_unit *units;
    uint32_t *out_indices;
    uint8_t *out_values;
} gathered;

static void free_gathered(gathered *all)
{
    free(all->counts);
    free(all->indices);
    free(all->values);
    free(all->sums);
    free(all->units);
    free(all->out_indices);
    free(all->out_values);
}

/* The call alone fails; the communicator says why. */
static gr_status refuse(gr_comm *comm, gr_status status, const char *why)
{
    gr_status entered = gr_context_enter(comm->context, false);
    if (entered != GR_OK) {
        return entered;
    }
    gr_diag diag;
    (void)gr_fail(&diag, status, "gr_allreduce_rows on rank %d: %s", comm->rank, why);
    gr_context_note(comm->context, &diag);
    gr_context_leave(comm->context);
    return status;
}

gr_status gr_rows_refuse_peer(gr_comm *comm, int rank, uint64_t value, const char *what,
                              uint64_t most)
{
    gr_status entered = gr_context_enter(comm->context, false);
    if (entered != GR_OK) {
        return entered;
    }
    gr_diag diag;
    gr_status status =
        gr_fail_peer(&diag, GR_E_PROTOCOL, comm->world[rank],
                     "rank %d says that it has %" PRIu64 " %s, more than the %" PRIu64
                     " that there can be: use the same build on all hosts",
                     comm->world[rank], value, what, most);
    if (comm->context->exec) {
        /* another rank may have reported it before */
        gr_exec_end_group(comm->context->exec, comm->group.id, &diag);
        status = (gr_status)gr_comm_diag(comm)->status;
    }
    gr_context_note(comm->context, &diag);
    gr_context_leave(comm->context);
    return status;
}

/* No rank goes on unless all can: else some would wait for one that has given up. */
static gr_status all_have(gr_comm *comm, bool room, const void *caller)
{
    int32_t enough = room;
    const gr_call call = {.coll = GR_COLL_ALLREDUCE,
                          .dtype = GR_I32,
                          .op = GR_MIN,
                          .out = &enough,
                          .count = 1,
                          .name = "room for rows"};
    gr_status status = gr_comm_run(comm, &call, 1, caller);
    return status != GR_OK || enough ? status
                                     : refuse(comm, GR_E_NO_MEMORY,
                                              room ? "another rank has no memory for the rows"
                                                   : "no memory for the rows");
}

/* `rows_max`: of a rank; as many as `check` lets one have. */
static gr_status exchange_counts(gr_comm *comm, uint32_t own, uint64_t rows_max, gathered *all,
                                 const void *caller)
{
    size_t size = (size_t)gr_comm_size(comm);
    uint64_t *rows = calloc(size, sizeof *rows);
    all->counts = calloc(2 * size, sizeof *all->counts);
    gr_status status = all_have(comm, rows && all->counts, caller);
    if (status == GR_OK) {
        rows[gr_comm_rank(comm)] = own;
        const gr_call call = {.coll = GR_COLL_ALLGATHER,
                              .dtype = GR_I64,
                              .out = rows,
                              .count = 1,
                              .name = "numbers of rows"};
        status = gr_comm_run(comm, &call, 1, caller);
    }
    for (size_t rank = 0; rank < size && status == GR_OK; rank++) {
        if (rows[rank] > rows_max) {
            status = gr_rows_refuse_peer(comm, (int)rank, rows[rank], "rows", rows_max);
            break;
        }
        all->counts[rank] = (size_t)rows[rank];
        all->rows += (size_t)rows[rank];
    }
    free(rows);
    return status;
}

static bool make_room(const gr_rows *in, size_t row_bytes, int size, gathered *all)
{
    all->indices = malloc((all->rows + 1) * sizeof *all->indices);
    all->values = malloc(all->rows * row_bytes + 1);
    all->sums = malloc(GR_ROW_SUMS * row_bytes + 1);
    all->units = calloc((size_t)size, sizeof *all->units);
    all->out_indices = malloc((all->rows + 1) * sizeof *all->out_indices);
    all->out_values = malloc(all->rows * row_bytes + 1);
    for (int rank = 0; rank < size; rank++) {
        all->counts[size + rank] = all->counts[rank] * in->width;
    }
    return all->indices && all->values && all->sums && all->units && all->out_indices &&
           all->out_values;
}

typedef struct collect {
    gathered *all;
    size_t count, row_bytes;
} collect;

static void take_row(void *arg, uint32_t index, const void *row)
{
    collect *c = arg;
    c->all->out_indices[c->count] = index;
    memcpy(c->all->out_values + c->count * c->row_bytes, row, c->row_bytes);
    c->count++;
}

static gr_status exchange_rows(gr_comm *comm, const gr_rows *in, const own_rows *own, gathered *all,
                               const void *caller)
{
    const gr_call calls[2] = {{.coll = GR_COLL_ALLGATHER,
                               .dtype = GR_I32,
                               .in = own->indices,
                               .out = all->indices,
                               .counts = all->counts,
                               .name = "row indices"},
                              {.coll = GR_COLL_ALLGATHER,
                               .dtype = in->dtype,
                               .in = own->values,
                               .out = all->values,
                               .counts = all->counts + gr_comm_size(comm),
                               .name = "rows"}};
    return gr_comm_run(comm, calls, 2, caller);
}

static size_t merge_rows(const gr_rows *in, size_t row_bytes, int size, gathered *all)
{
    collect c = {.all = all, .row_bytes = row_bytes};
    gr_row_merge merge = {.units = all->units,
                          .unit_count = gr_row_units(size, size, all->units),
                          .shards = size,
                          .width = in->width,
                          .row_bytes = row_bytes,
                          .add = gr_reduce_kernel(gr_isa_best(), in->dtype, GR_SUM),
                          .sums = all->sums,
                          .found = take_row,
                          .found_arg = &c};
    size_t first = 0;
    for (int rank = 0; rank < size; rank++) {
        all->units[rank].rows = (uint32_t)all->counts[rank];
        all->units[rank].indices = all->indices + first;
        all->units[rank].values = all->values + first * row_bytes;
        first += all->counts[rank];
    }
    gr_rows_merge(&merge);
    return c.count;
}

enum { WHY_BYTES = 128 };

/* What is wrong with the arguments; NULL: nothing. `why` holds the sentence, if it is not fixed. */
static const char *check(const gr_rows *in, gr_redop op, const gr_rows *rows_out,
                         char why[WHY_BYTES])
{
    if (!in || !rows_out) {
        return in ? "rows_out is NULL" : "in is NULL";
    }
    if (gr_dtype_bytes(in->dtype) == 0) {
        return "the type of the elements is no gr_dtype";
    }
    if ((op != GR_SUM && op != GR_AVERAGE) || !gr_dtype_reduces(in->dtype, op)) {
        snprintf(why, WHY_BYTES, "rows of %s cannot be reduced by %s, only by sum%s",
                 gr_dtype_name(in->dtype), gr_redop_name(op),
                 gr_dtype_scales(in->dtype) ? " or average" : "");
        return why;
    }
    if (in->width == 0 || in->width > UINT32_MAX || in->count > UINT32_MAX / in->width) {
        return "a row must have an element, and all rows of a rank at most 2^32 - 1";
    }
    bool all_there = in->count == 0 || (in->indices && in->values);
    return all_there ? NULL : "there are rows, but indices or values are NULL";
}

gr_status gr_allreduce_rows(gr_comm *comm, const gr_rows *in, gr_redop op, gr_rows *rows_out)
{
    const void *caller = __builtin_return_address(0);
    if (!comm) {
        return GR_E_INVALID;
    }
    char why[WHY_BYTES];
    const char *wrong = check(in, op, rows_out, why);
    if (wrong) {
        return refuse(comm, GR_E_INVALID, wrong);
    }
    int size = gr_comm_size(comm);
    size_t row_bytes = in->width * gr_dtype_bytes(in->dtype);
    own_rows own;
    gathered all = {.rows = 0};
    gr_float_mode mode = gr_float_mode_enter();
    bool sorted = sort_own(in, row_bytes, &own);
    gr_float_mode_leave(mode);
    gr_status status = all_have(comm, sorted, caller);
    if (status == GR_OK) {
        status = exchange_counts(comm, own.count, UINT32_MAX / in->width, &all, caller);
    }
    if (status == GR_OK) {
        status = all_have(comm, make_room(in, row_bytes, size, &all), caller);
    }
    if (status == GR_OK) {
        status = exchange_rows(comm, in, &own, &all, caller);
    }
    if (status == GR_OK) {
        mode = gr_float_mode_enter();
        size_t count = merge_rows(in, row_bytes, size, &all);
        if (op == GR_AVERAGE) {
            gr_scale_inverse(all.out_values, count * in->width, in->dtype, size);
        }
        gr_float_mode_leave(mode);
        *rows_out = (gr_rows){.count = count,
                              .width = in->width,
                              .dtype = in->dtype,
                              .indices = all.out_indices,
                              .values = all.out_values};
        all.out_indices = NULL;
        all.out_values = NULL;
    }
    free_own(&own);
    free_gathered(&all);
    return status;
}

void gr_rows_release(gr_rows *rows)
{
    if (rows) {
        free((void *)(uintptr_t)rows->indices);
        free((void *)(uintptr_t)rows->values);
        *rows = (gr_rows){.count = 0};
    }
}
