/* SPDX-License-Identifier: Apache-2.0 */

/* Rows of tables: those of one call are sorted by block and number, and each server gets one
 * message with each row of its blocks once. */

#include "ps/client/client.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

typedef struct gr_ps_rows_message gr_ps_rows_message;

/* ---- Order ----------------------------------------------------------------------------------- */

/* A row that the caller names: its number in the upper half, where it stands in the lower one. */
static uint32_t row_of(uint64_t entry)
{
    return (uint32_t)(entry >> 32);
}

static uint32_t place_of(uint64_t entry)
{
    return (uint32_t)entry;
}

/* By row; what is equal keeps its order. `other` has as much room; the result is in `entries`. */
static void sort(uint64_t *entries, uint64_t *other, size_t count, uint32_t largest)
{
    enum { BITS = 8, VALUES = 1 << BITS };
    for (int shift = 32; shift < 64 && largest >> (shift - 32) > 0; shift += BITS) {
        size_t at[VALUES + 1] = {0};
        for (size_t i = 0; i < count; i++) {
            at[1 + (entries[i] >> shift & (VALUES - 1))]++;
        }
        for (int v = 0; v < VALUES; v++) {
            at[v + 1] += at[v];
        }
        for (size_t i = 0; i < count; i++) {
            other[at[entries[i] >> shift & (VALUES - 1)]++] = entries[i];
        }
        memcpy(entries, other, count * sizeof *entries);
    }
}

/* What one call names: sorted by block and row, and where each block lies in a message. */
struct gr_ps_row_order {
    size_t count;                                /* of entries */
    size_t width;                                /* floats of each row in a message */
    gr_ps_rows_message *messages;                /* all that were made */
    uint32_t first[GR_PS_TABLE_BLOCKS + 1];      /* entry of each block */
    uint32_t rows[GR_PS_TABLE_BLOCKS];           /* of each block, each row once */
    const uint32_t *numbers[GR_PS_TABLE_BLOCKS]; /* NULL: in no message yet */
    float *values[GR_PS_TABLE_BLOCKS];           /* PUSH_ROWS: gradients; else of the answer */
    uint64_t entries[];
};

/* Vectors of states that come with each row. */
static uint32_t states_of(const gr_ps_op *op)
{
    return op->kind == GR_PS_RESTORE_ROWS ? op->request.count : 0;
}

static gr_status check_once(const gr_ps_op *op)
{
    for (size_t i = 1; i < op->rows->count; i++) {
        uint32_t row = row_of(op->rows->entries[i]);
        if (row == row_of(op->rows->entries[i - 1])) {
            return gr_fail(&op->ps->error, GR_E_INVALID,
                           "row %u of table \"%s\" is to be restored twice", row,
                           op->item->tensor.spec.name);
        }
    }
    return GR_OK;
}

/* The rows by their blocks, in each block by their numbers. */
static gr_status put_in_order(gr_ps_op *op, const uint32_t *rows, size_t count)
{
    gr_ps *ps = op->ps;
    const gr_ps_tensor *tensor = &op->item->tensor;
    uint64_t there_are = tensor->spec.elements / tensor->spec.columns;
    for (size_t i = 0; i < count; i++) {
        if (rows[i] >= there_are) {
            return gr_fail(&ps->error, GR_E_INVALID,
                           "there is no row %u in table \"%s\": it has %llu rows", rows[i],
                           tensor->spec.name, (unsigned long long)there_are);
        }
    }
    uint64_t *other = malloc((count + 1) * (sizeof *other + 1)); /* and the block of each */
    gr_ps_row_order *order = calloc(1, sizeof *order + count * sizeof *order->entries);
    if (order == NULL || other == NULL) {
        free(order);
        free(other);
        return gr_fail(&ps->error, GR_E_NO_MEMORY, "no memory for %zu rows", count);
    }
    uint8_t *block_of = (uint8_t *)(other + count + 1);
    uint64_t *entries = order->entries;
    for (size_t i = 0; i < count; i++) {
        block_of[i] = (uint8_t)gr_ps_row_block(tensor->key, rows[i]);
        order->first[1 + block_of[i]]++;
        entries[i] = (uint64_t)rows[i] << 32 | i;
    }
    sort(entries, other, count, (uint32_t)(there_are - 1));
    uint32_t at[GR_PS_TABLE_BLOCKS];
    for (int b = 0; b < GR_PS_TABLE_BLOCKS; b++) {
        at[b] = order->first[b];
        order->first[b + 1] += order->first[b];
    }
    memcpy(other, entries, count * sizeof *entries);
    for (size_t i = 0; i < count; i++) {
        entries[at[block_of[place_of(other[i])]]++] = other[i];
    }
    free(other);
    for (int b = 0; b < GR_PS_TABLE_BLOCKS; b++) {
        for (uint32_t i = order->first[b]; i < order->first[b + 1]; i++) {
            order->rows[b] += i == order->first[b] || row_of(entries[i]) != row_of(entries[i - 1]);
        }
    }
    order->count = count;
    order->width = (size_t)tensor->spec.columns * (1 + states_of(op));
    op->rows = order;
    return op->kind == GR_PS_RESTORE_ROWS ? check_once(op) : GR_OK;
}

/* ---- Messages -------------------------------------------------------------------------------- */

/* One sub-request's; a link may need it when a newer one has been made. */
struct gr_ps_rows_message {
    gr_ps_rows_message *next;
    _Alignas(float) uint8_t bytes[]; /* what is sent; PULL_ROWS: behind it room for the answer */
};

static bool leads(const gr_ps_op *op, int server, uint32_t block)
{
    return op->ps->table.primary[gr_ps_slot(op->item->tensor.key, block)] == server;
}

static uint64_t message_bytes(const gr_ps_op *op, uint64_t rows)
{
    return GR_PS_REQUEST_BYTES +
           rows * (sizeof(uint32_t) + (uint64_t)op->rows->width * sizeof(float));
}

/* The rows of a block and their gradients, as the caller gave them: what stands there several times
 * is added up. Or their values and states, each once. */
static void write_block(const gr_ps_op *op, uint32_t block, const float *gradients, uint32_t *row,
                        float *to)
{
    const gr_ps_row_order *order = op->rows;
    uint32_t columns = op->item->tensor.spec.columns;
    for (uint32_t i = order->first[block]; i < order->first[block + 1]; i++) {
        uint64_t entry = order->entries[i];
        bool again = i > order->first[block] && row_of(entry) == row_of(order->entries[i - 1]);
        if (!again) {
            *row++ = row_of(entry);
        }
        if (gradients == NULL) {
            continue;
        }
        const float *from = gradients + (size_t)place_of(entry) * columns;
        if (!again) {
            memcpy(to, from, columns * sizeof *to);
            to += columns;
            for (uint32_t s = 0; s < states_of(op); s++, to += columns) {
                from = op->states[s] + (size_t)place_of(entry) * columns;
                memcpy(to, from, columns * sizeof *to);
            }
            continue;
        }
        for (uint32_t c = 0; c < columns; c++) {
            (to - columns)[c] += from[c];
        }
    }
}

/* The sub-request's message: of the blocks that the server leads. What has been in one comes from
 * there, since the caller's gradients were borrowed for the call alone. */
static gr_status write_subrequest(gr_ps_op *op, int server, const float *gradients)
{
    gr_ps_row_order *order = op->rows;
    gr_ps_subrequest *sub = &op->subs[server];
    uint32_t rows = sub->row_count;
    size_t width = order->width;
    gr_ps_rows_message *message = malloc(sizeof *message + message_bytes(op, rows));
    if (message == NULL) {
        return gr_fail(&op->ps->error, GR_E_NO_MEMORY, "no memory for %u rows", rows);
    }
    message->next = order->messages;
    order->messages = message;
    bool brings = op->kind != GR_PS_PULL_ROWS;
    uint32_t *row = (uint32_t *)(void *)(message->bytes + GR_PS_REQUEST_BYTES);
    float *to = (float *)(void *)(row + rows);
    sub->rows = message->bytes;
    sub->rows_bytes = (uint32_t)((uint8_t *)to - message->bytes);
    sub->rows_bytes += brings ? (uint32_t)(rows * width * sizeof(float)) : 0;
    (void)gr_ps_put_request(&op->request, sub->rows);
    for (uint32_t block = 0; block < GR_PS_TABLE_BLOCKS; block++) {
        if (!leads(op, server, block)) {
            continue;
        }
        uint32_t count = order->rows[block];
        if (order->numbers[block] == NULL) {
            write_block(op, block, gradients, row, to);
        } else if (count > 0) {
            memcpy(row, order->numbers[block], count * sizeof *row);
            if (brings) {
                memcpy(to, order->values[block], count * width * sizeof *to);
            }
        }
        order->numbers[block] = row;
        order->values[block] = to;
        row += count;
        to += count * width;
    }
    return GR_OK;
}

/* How many rows each sub-request has. All that may come to be on one server fits into a message:
 * with replicas that is the whole call. */
static gr_status count_rows(gr_ps_op *op)
{
    gr_ps *ps = op->ps;
    uint64_t all = 0, most = 0;
    for (int s = 0; s < ps->servers; s++) {
        gr_ps_subrequest *sub = &op->subs[s];
        sub->row_count = 0;
        for (uint32_t block = 0; block < GR_PS_TABLE_BLOCKS; block++) {
            sub->row_count += leads(op, s, block) ? op->rows->rows[block] : 0;
        }
        most = sub->row_count > most ? sub->row_count : most;
        all += sub->row_count;
    }
    most = gr_ps_table_replicated(&ps->table) ? all : most;
    if (message_bytes(op, most) > GR_FRAME_PAYLOAD_MAX) {
        return gr_fail(&ps->error, GR_E_INVALID,
                       "%llu rows of table \"%s\" for one server are %llu MiB; a call moves at "
                       "most %d: name fewer rows at a time",
                       (unsigned long long)most, op->item->tensor.spec.name,
                       (unsigned long long)(message_bytes(op, most) >> 20),
                       GR_FRAME_PAYLOAD_MAX >> 20);
    }
    return GR_OK;
}

/* Also to those that have no row of it: with a push each block counts one more, a pull of nothing
 * tells the version. */
static bool concerns(const gr_ps_op *op, int server)
{
    return op->item->led[server] > 0 &&
           (op->kind != GR_PS_PULL_ROWS || op->rows->count == 0 || op->subs[server].row_count > 0);
}

static gr_status write_subrequests(gr_ps_op *op, const float *gradients)
{
    gr_status status = count_rows(op);
    for (int s = 0; s < op->ps->servers && status == GR_OK; s++) {
        op->subs[s].rows = NULL;
        if (concerns(op, s)) {
            status = write_subrequest(op, s, gradients);
        }
    }
    return status;
}

gr_status gr_ps_rows_again(gr_ps_op *op)
{
    return write_subrequests(op, NULL);
}

gr_status gr_ps_rows_send(gr_ps_op *op, const uint32_t *rows, size_t count, const float *values)
{
    gr_ps *ps = op->ps;
    gr_status status = GR_OK;
    if (count > UINT32_MAX) {
        status = gr_fail(&ps->error, GR_E_INVALID, "%zu rows in one call", count);
    }
    if (status == GR_OK) {
        status = put_in_order(op, rows, count);
    }
    if (status == GR_OK) {
        status = write_subrequests(op, values);
    }
    if (status != GR_OK) {
        gr_ps_op_drop(op);
        return status;
    }
    gr_ps_op_send(op, GR_PS_TO_WRITTEN);
    gr_ps_progress(ps);
    return GR_OK;
}

gr_status gr_ps_rows_receive(gr_ps_op *op, int server, const gr_frame *frame, gr_diag *diag)
{
    gr_link *link = op->ps->endpoints[server].link;
    const gr_ps_subrequest *sub = &op->subs[server];
    const gr_ps_row_order *order = op->rows;
    uint32_t columns = op->item->tensor.spec.columns;
    uint64_t size = (uint64_t)sub->row_count * columns * sizeof(float);
    if (frame->size_bytes != size) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent %u bytes of rows, in place of %llu",
                       frame->size_bytes, (unsigned long long)size);
    }
    gr_status status = gr_link_read(link, sub->rows + sub->rows_bytes);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(link, NULL);
    for (uint32_t block = 0; block < GR_PS_TABLE_BLOCKS; block++) {
        if (!leads(op, server, block)) {
            continue;
        }
        const float *from = order->values[block];
        for (uint32_t i = order->first[block]; i < order->first[block + 1]; i++) {
            uint64_t entry = order->entries[i];
            bool next = i > order->first[block] && row_of(entry) != row_of(order->entries[i - 1]);
            from += next ? columns : 0;
            memcpy(op->values + (size_t)place_of(entry) * columns, from, columns * sizeof *from);
        }
    }
    return GR_OK;
}

void gr_ps_rows_drop(gr_ps_op *op)
{
    while (op->rows != NULL && op->rows->messages != NULL) {
        gr_ps_rows_message *message = op->rows->messages;
        op->rows->messages = message->next;
        free(message);
    }
    free(op->rows);
    op->rows = NULL;
}

/* ---- The face -------------------------------------------------------------------------------- */

gr_status gr_ps_push_rows_start(gr_ps *ps, int id, const gr_ps_gradient *push, const uint32_t *rows,
                                size_t count, gr_ps_op **op_out)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_PUSH_ROWS, &status);
    if (op == NULL) {
        return status;
    }
    const gr_ps_spec *spec = &op->item->tensor.spec;
    status = gr_ps_fill_push(ps, push, &op->request);
    if (status == GR_OK) {
        status = gr_ps_check_finite(ps, spec, push->values, (uint64_t)count * spec->columns);
    }
    if (status != GR_OK) {
        gr_ps_op_drop(op);
        return status;
    }
    status = gr_ps_rows_send(op, rows, count, push->values);
    if (status == GR_OK) {
        *op_out = op;
    }
    return status;
}

gr_status gr_ps_pull_rows_start(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                                size_t count, float *values, gr_ps_op **op_out)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_PULL_ROWS, &status);
    if (op == NULL) {
        return status;
    }
    op->values = values;
    op->request = (gr_ps_request){.version = version};
    status = gr_ps_rows_send(op, rows, count, NULL);
    if (status == GR_OK) {
        *op_out = op;
    }
    return status;
}

gr_status gr_ps_push_rows_run(gr_ps *ps, int id, const gr_ps_gradient *push, const uint32_t *rows,
                              size_t count)
{
    gr_ps_op *op;
    gr_status status = gr_ps_push_rows_start(ps, id, push, rows, count, &op);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, NULL) : status;
}

gr_status gr_ps_pull_rows_run(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                              size_t count, float *values, uint64_t *version_out)
{
    gr_ps_op *op;
    gr_status status = gr_ps_pull_rows_start(ps, id, version, rows, count, values, &op);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, version_out) : status;
}
