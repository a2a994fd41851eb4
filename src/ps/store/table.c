/* SPDX-License-Identifier: Apache-2.0 */

/* Tables: tensors of whose blocks a server has the rows that somebody pushed. A push is what it is
 * for any other tensor, with the same steps, answers and repeats; only its sum goes row by row. */

#include "coll/sparse/rows.h"
#include "ps/message.h"
#include "ps/place.h"
#include "ps/store/store_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ---------------------------------------------------------------------------------- */

/* What the table may take beside all else, for what is done next. */
static void limit(const gr_ps_store *store, gr_ps_block *block)
{
    uint64_t most = store->config.bytes_max, taken = store->stats.bytes;
    if (most > 0) {
        gr_ps_rows_limit(block->rows, block->rows_bytes + (taken < most ? most - taken : 0));
    }
}

static void count_bytes(gr_ps_store *store, gr_ps_block *block)
{
    uint64_t bytes = block->rows != NULL ? gr_ps_rows_bytes(block->rows) : 0;
    store->stats.bytes += bytes - block->rows_bytes;
    block->rows_bytes = bytes;
}

gr_status gr_ps_table_begin(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block, gr_diag *diag)
{
    const gr_ps_spec *tensor = &held->tensor.spec;
    uint64_t most = store->config.bytes_max, taken = store->stats.bytes;
    const gr_ps_rows_config config = {.rows = (uint32_t)(tensor->elements / tensor->columns),
                                      .columns = tensor->columns,
                                      .seed = tensor->seed,
                                      .deviation = tensor->deviation,
                                      .updaters = store->config.updaters,
                                      .updater = held->updater,
                                      .bytes_max = most == 0      ? 0
                                                   : taken < most ? most - taken
                                                                  : 1};
    gr_ps_rows *made = NULL;
    gr_status status = gr_ps_rows_create(&config, &made, diag);
    if (status == GR_OK) {
        gr_ps_rows_destroy(block->rows);
        block->rows = made;
        count_bytes(store, block);
        block->ready = true; /* the seed gives the first values */
    }
    return status;
}

void gr_ps_table_end(gr_ps_store *store, gr_ps_block *block)
{
    gr_ps_rows_destroy(block->rows);
    block->rows = NULL;
    count_bytes(store, block);
}

/* ---- Pushes ---------------------------------------------------------------------------------- */

gr_status gr_ps_table_check_push(gr_ps_store *store, const gr_ps_held *held, int client,
                                 const gr_ps_data *data, uint64_t count)
{
    const gr_ps_spec *tensor = &held->tensor.spec;
    char who[GR_PS_PEER_NAME_BYTES];
    if (tensor->columns == 0 || data->rows == NULL) {
        return gr_fail(&store->diag, GR_E_INVALID,
                       tensor->columns == 0
                           ? "%s pushes rows to tensor \"%s\", which is no table"
                           : "%s sends all of tensor \"%s\", which is a table: push rows",
                       gr_ps_peer_name(client, who), tensor->name);
    }
    if (data->row_count > GR_PS_ROWS_OF_A_PUSH ||
        count != (uint64_t)data->row_count * tensor->columns) {
        return gr_fail(&store->diag, GR_E_INVALID,
                       "%s sends %" PRIu64 " elements as %u rows of table \"%s\", which has "
                       "%u columns",
                       gr_ps_peer_name(client, who), count, data->row_count, tensor->name,
                       tensor->columns);
    }
    uint64_t rows = tensor->elements / tensor->columns;
    for (uint32_t i = 0; i < data->row_count; i++) {
        if (data->rows[i] >= rows || (i > 0 && data->rows[i] <= data->rows[i - 1])) {
            return gr_fail(&store->diag, GR_E_INVALID,
                           "%s pushes row %u of table \"%s\": there are rows 0 to %" PRIu64
                           ", and a push has them ascending, each one once",
                           gr_ps_peer_name(client, who), data->rows[i], tensor->name, rows - 1);
        }
    }
    return GR_OK;
}

/* The sums of all rows that occur. */
typedef struct summed {
    uint32_t *rows;
    float *values;
    uint32_t count, columns;
} summed;

static void take_row(void *arg, uint32_t index, const void *row)
{
    summed *to = arg;
    to->rows[to->count] = index;
    memcpy(to->values + (size_t)to->count * to->columns, row, to->columns * sizeof(float));
    to->count++;
}

/* In the order of the shard tree; false: no memory. */
static bool merge(gr_ps_store *store, const gr_ps_change *change, summed *sum)
{
    gr_row_unit *units = calloc((size_t)change->part_count, sizeof *units);
    size_t row_bytes = sum->columns * sizeof(float), most = 0;
    void *sums = malloc(GR_ROW_SUMS * row_bytes);
    for (int i = 0; units != NULL && i < change->part_count; i++) {
        const gr_ps_part *part = &store->parts[i];
        units[i] = (gr_row_unit){.range = {part->first, part->count},
                                 .rows = part->row_count,
                                 .indices = part->rows,
                                 .values = (const uint8_t *)part->values};
        most += part->row_count;
    }
    sum->rows = malloc((most + 1) * sizeof *sum->rows);
    sum->values = malloc((most + 1) * row_bytes);
    bool can = units != NULL && sums != NULL && sum->rows != NULL && sum->values != NULL;
    if (can) {
        gr_row_merge all = {.units = units,
                            .unit_count = change->part_count,
                            .shards = change->shards,
                            .width = sum->columns,
                            .row_bytes = row_bytes,
                            .add = store->add,
                            .sums = sums,
                            .found = take_row,
                            .found_arg = sum};
        gr_rows_merge(&all);
    }
    free(sums);
    free(units);
    return can;
}

void gr_ps_row_sum_free(gr_ps_row_sum *sum)
{
    free(sum->memory[0]);
    free(sum->memory[1]);
    *sum = (gr_ps_row_sum){0};
}

gr_status gr_ps_table_change(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                             const gr_ps_change *change, gr_ps_row_sum *sum_out, bool *finite_out)
{
    const gr_ps_part *only = &store->parts[0];
    gr_ps_row_sum sum = {.count = only->row_count, .rows = only->rows, .values = only->values};
    gr_status status = GR_OK;
    limit(store, block);
    if (change->part_count != 1) {
        summed merged = {.columns = held->tensor.spec.columns};
        status = merge(store, change, &merged) ? GR_OK : GR_E_NO_MEMORY;
        sum = (gr_ps_row_sum){.count = merged.count,
                              .rows = merged.rows,
                              .values = merged.values,
                              .memory = {merged.rows, merged.values}};
    }
    if (status == GR_OK) {
        status = gr_ps_rows_push(block->rows, block->version, change->rate, change->factor,
                                 sum.rows, sum.count, sum.values, finite_out, &store->diag);
    }
    count_bytes(store, block);
    if (status != GR_OK) {
        gr_ps_row_sum_free(&sum);
        return status;
    }
    *sum_out = sum;
    return GR_OK;
}

/* ---- Whole blocks ---------------------------------------------------------------------------- */

void gr_ps_store_image_rows(const gr_ps_store *store, uint64_t key, uint32_t number, uint32_t from,
                            uint32_t count, uint32_t *rows_out, float *values_out)
{
    const gr_ps_held *held = gr_ps_find(store, key);
    size_t columns = held->tensor.spec.columns;
    for (uint32_t i = 0; i < count; i++) {
        gr_ps_row row;
        GR_CHECK(gr_ps_rows_get(held->blocks[number]->rows, from + i, &row));
        rows_out[i] = row.index;
        memcpy(values_out, row.values, columns * sizeof *values_out);
        values_out += columns;
        for (int s = 0; s < held->states; s++, values_out += columns) {
            memcpy(values_out, row.state[s], columns * sizeof *values_out);
        }
    }
}

static gr_status put_rows(gr_ps_store *store, const gr_ps_held *held, gr_ps_block *block,
                          const gr_ps_image *image, gr_diag *diag)
{
    gr_status status = GR_OK;
    size_t columns = held->tensor.spec.columns;
    const float *at = image->values;
    limit(store, block);
    for (uint32_t i = 0; i < image->count && status == GR_OK; i++) {
        gr_ps_row row = {.index = image->rows[i], .values = at};
        at += columns;
        for (int s = 0; s < held->states; s++, at += columns) {
            row.state[s] = at;
        }
        status = gr_ps_row_block(held->tensor.key, row.index) == block->number
                     ? gr_ps_rows_put(block->rows, &row, diag)
                     : gr_fail(diag, GR_E_INVALID, "row %u of table \"%s\" is not of block %u",
                               row.index, held->tensor.spec.name, block->number);
    }
    count_bytes(store, block);
    return status;
}

gr_status gr_ps_table_restore_block(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                                    const gr_ps_image *image, gr_diag *diag)
{
    size_t seen_count = (size_t)image->seen_count;
    gr_status status = GR_OK;
    if (image->begins) {
        gr_ps_seen *seen =
            seen_count > 0 ? gr_ps_take(store, seen_count * sizeof *seen, false) : NULL;
        status = seen == NULL && seen_count > 0
                     ? gr_fail(diag, GR_E_NO_MEMORY, "no memory to restore table \"%s\"",
                               held->tensor.spec.name)
                     : gr_ps_table_begin(store, held, block, diag);
        if (status != GR_OK) {
            gr_ps_drop(store, seen, seen_count * sizeof *seen, false);
            return status;
        }
        if (seen_count > 0) {
            memcpy(seen, image->seen, seen_count * sizeof *seen);
        }
        gr_ps_drop(store, block->seen, block->seen_capacity * sizeof *block->seen, false);
        block->seen = seen;
        block->seen_count = block->seen_capacity = seen_count;
        block->ready = false;
    }
    status = put_rows(store, held, block, image, diag);
    if (status == GR_OK && !block->ready) {
        block->ready = image->ready;
        block->version = image->ready ? image->version : 0;
        block->safe = gr_ps_serial(block);
        gr_ps_settle(store, held, block);
    }
    return status;
}

/* ---- Pulls ----------------------------------------------------------------------------------- */

gr_status gr_ps_store_read_rows(const gr_ps_store *store, uint64_t key, uint32_t block,
                                const uint32_t *rows, uint32_t count, float *values_out,
                                gr_diag *diag)
{
    const gr_ps_held *held = gr_ps_find(store, key);
    if (held == NULL || block >= held->tensor.cut.blocks || held->blocks[block] == NULL ||
        held->blocks[block]->rows == NULL) {
        return gr_fail(diag, GR_E_NOT_FOUND, "no table with key %016" PRIx64 " is known here", key);
    }
    return gr_ps_rows_pull(held->blocks[block]->rows, rows, count, values_out, diag);
}
