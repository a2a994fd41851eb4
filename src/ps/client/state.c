/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors with their optimizers' states, for checkpoints. */

#include "ps/client/client.h"

#include "base/codec.h"
#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

static gr_status check_states(gr_ps *ps, int number, int most)
{
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    return number >= 0 && number <= most
               ? GR_OK
               : gr_fail(&ps->error, GR_E_INVALID,
                         "an optimizer has at most %d vectors of state; %d cannot be",
                         GR_PS_STATES_MAX, number);
}

gr_status gr_ps_pull_state_start(gr_ps *ps, int id, int state, uint64_t version, float *values,
                                 gr_ps_op **op_out)
{
    gr_status status = check_states(ps, state, GR_PS_STATES_MAX - 1);
    const gr_ps_request request = {.first = (uint32_t)state + 1, .version = version};
    return status == GR_OK ? gr_ps_start_pull(ps, id, &request, values, op_out) : status;
}

gr_status gr_ps_pull_state_run(gr_ps *ps, int id, int state, uint64_t version, float *values,
                               uint64_t *version_out)
{
    gr_ps_op *op;
    gr_status status = gr_ps_pull_state_start(ps, id, state, version, values, &op);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, version_out) : status;
}

/* From block after block to vector after vector. */
static void sort_whole(const gr_ps_cut *cut, const float *whole, float *values,
                       float *const *states, int state_count)
{
    for (uint32_t block = 0; block < cut->blocks; block++) {
        uint64_t first = gr_ps_block_first(cut, block);
        uint32_t count = gr_ps_block_count(cut, block);
        for (int i = 0; i <= state_count; i++, whole += count) {
            memcpy((i == 0 ? values : states[i - 1]) + first, whole, count * sizeof *whole);
        }
    }
}

gr_status gr_ps_pull_whole_run(gr_ps *ps, int id, uint64_t version, float *values,
                               float *const *states, int state_count, uint64_t *version_out)
{
    gr_status status = check_states(ps, state_count, GR_PS_STATES_MAX);
    gr_ps_op *op = status == GR_OK ? gr_ps_open_on(ps, id, GR_PS_PULL, &status) : NULL;
    if (op == NULL) {
        return status;
    }
    const gr_ps_tensor *tensor = &op->item->tensor;
    size_t vectors = 1 + (size_t)state_count, elements = (size_t)tensor->spec.elements;
    float *whole = malloc(vectors * elements * sizeof *whole);
    if (whole == NULL) {
        gr_ps_op_drop(op);
        return gr_fail(&ps->error, GR_E_NO_MEMORY,
                       "no memory for tensor \"%s\" with its optimizer's states",
                       tensor->spec.name);
    }
    op->values = whole;
    op->request = (gr_ps_request){
        .flags = GR_PS_ASK_WHOLE, .first = (uint32_t)state_count, .version = version};
    gr_ps_op_send(op, GR_PS_TO_HOLDERS);
    status = gr_ps_op_wait(op, GR_NEVER, version_out);
    if (status == GR_OK) {
        sort_whole(&tensor->cut, whole, values, states, state_count);
    }
    free(whole);
    return status;
}

gr_status gr_ps_restore(gr_ps *ps, int id, uint64_t version, const float *values,
                        const float *const *states, int state_count)
{
    gr_status status = check_states(ps, state_count, GR_PS_STATES_MAX);
    gr_ps_op *op = status == GR_OK ? gr_ps_open_on(ps, id, GR_PS_RESTORE, &status) : NULL;
    if (op == NULL) {
        return status;
    }
    op->data = values;
    op->states = states;
    op->request = (gr_ps_request){.count = (uint32_t)state_count, .version = version};
    gr_ps_op_send(op, GR_PS_TO_HOLDERS);
    return gr_ps_op_wait(op, GR_NEVER, NULL);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

enum { SCAN_BYTES = 1 << 20, RESTORE_BYTES = 4 << 20 };

/* Where a scan stands: by which table, in which block, behind how many of its rows. */
enum { EPOCH_SHIFT = 48, BLOCK_SHIFT = 40 };
_Static_assert(GR_PS_TABLE_BLOCKS < 256 && GR_PS_ROWS_MAX < UINT64_C(1) << BLOCK_SHIFT,
               "a place has room for any");

typedef struct scan_answer {
    uint8_t *bytes;
    size_t room, size;
} scan_answer;

/* A table of this connection, and so many vectors of states. */
static gr_status check_table(gr_ps *ps, int id, int state_count)
{
    gr_status status = check_states(ps, state_count, GR_PS_STATES_MAX);
    if (status == GR_OK && (id < 0 || (uint32_t)id >= ps->known_count || !ps->known[id]->declared ||
                            ps->known[id]->tensor.spec.columns == 0)) {
        status = gr_fail(&ps->error, GR_E_INVALID, "there is no table %d on this connection", id);
    }
    return status;
}

gr_status gr_ps_scan_receive(gr_ps_op *op, int server, const gr_frame *frame, gr_diag *diag)
{
    gr_link *link = op->ps->endpoints[server].link;
    scan_answer *answer = op->answer;
    if (frame->size_bytes < GR_PS_SCAN_HEAD || frame->size_bytes > answer->room) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent %u bytes of rows", frame->size_bytes);
    }
    gr_status status = gr_link_read(link, answer->bytes);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(link, NULL);
    uint64_t count = gr_get_u32(answer->bytes), states = gr_get_u32(answer->bytes + 4);
    uint64_t row_bytes =
        sizeof(uint32_t) + op->item->tensor.spec.columns * (1 + states) * sizeof(float);
    answer->size = frame->size_bytes;
    return states <= GR_PS_STATES_MAX && count <= op->request.count &&
                   answer->size == GR_PS_SCAN_HEAD + count * row_bytes
               ? GR_OK
               : gr_fail(diag, GR_E_PROTOCOL, "it sent rows that are malformed");
}

/* What came, to where the caller wants it. */
static gr_status take_scan(gr_ps *ps, const gr_ps_spec *table, const scan_answer *answer,
                           gr_ps_scan *scan)
{
    uint32_t count = gr_get_u32(answer->bytes), states = gr_get_u32(answer->bytes + 4);
    size_t columns = table->columns;
    if (scan->state_count != 0 && (uint32_t)scan->state_count != states) {
        return gr_fail(&ps->error, GR_E_INVALID,
                       "table \"%s\" has %u vectors of its optimizer's state, and not %d",
                       table->name, states, scan->state_count);
    }
    const uint32_t *rows = (const uint32_t *)(const void *)(answer->bytes + GR_PS_SCAN_HEAD);
    const float *from = (const float *)(const void *)(rows + count);
    memcpy(scan->rows, rows, count * sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        memcpy(scan->values + i * columns, from, columns * sizeof *from);
        from += columns;
        for (uint32_t s = 0; s < states; s++, from += columns) {
            if (scan->state_count > 0) {
                memcpy(scan->states[s] + i * columns, from, columns * sizeof *from);
            }
        }
    }
    scan->count = count;
    return GR_OK;
}

/* Some rows of one block. */
static gr_status scan_block(gr_ps *ps, int id, uint32_t block, uint64_t from, size_t most,
                            scan_answer *answer, gr_ps_scan *scan)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_SCAN_ROWS, &status);
    if (op == NULL) {
        return status;
    }
    uint64_t version = 0;
    const gr_ps_tensor *tensor = &op->item->tensor;
    op->answer = answer;
    op->index = block;
    op->request =
        (gr_ps_request){.count = (uint32_t)most, .version = scan->version, .sequence = from};
    gr_ps_op_send(op, ps->table.primary[gr_ps_slot(tensor->key, block)]);
    status = gr_ps_op_wait(op, GR_NEVER, &version);
    if (status == GR_OK) {
        scan->version_least = version < scan->version_least ? version : scan->version_least;
        status = take_scan(ps, &tensor->spec, answer, scan);
    }
    return status;
}

gr_status gr_ps_scan_rows(gr_ps *ps, int id, gr_ps_scan *scan)
{
    gr_status status = check_table(ps, id, scan->state_count);
    if (status != GR_OK) {
        return status;
    }
    const gr_ps_spec *table = &ps->known[id]->tensor.spec;
    uint64_t epoch = (ps->table.epoch & UINT16_MAX) << EPOCH_SHIFT;
    uint64_t place = scan->place == 0 ? epoch : scan->place;
    if (place >> EPOCH_SHIFT != epoch >> EPOCH_SHIFT) {
        return gr_fail(&ps->error, GR_E_AGAIN,
                       "a server was lost while table \"%s\" was read: begin again", table->name);
    }
    size_t row_bytes =
        sizeof(uint32_t) + (size_t)table->columns * (1 + GR_PS_STATES_MAX) * sizeof(float);
    size_t most = SCAN_BYTES / row_bytes < scan->room ? SCAN_BYTES / row_bytes : scan->room;
    most = most > 0 ? most : 1;
    scan_answer answer = {.room = GR_PS_SCAN_HEAD + most * row_bytes};
    answer.bytes = malloc(answer.room);
    if (answer.bytes == NULL) {
        return gr_fail(&ps->error, GR_E_NO_MEMORY, "no memory for %zu rows", most);
    }
    scan->count = 0;
    scan->version_least = UINT64_MAX;
    uint32_t block = (uint32_t)(place >> BLOCK_SHIFT) & UINT8_MAX;
    uint64_t from = place & ((UINT64_C(1) << BLOCK_SHIFT) - 1);
    while (status == GR_OK && scan->count == 0 && block < GR_PS_TABLE_BLOCKS) {
        status = scan_block(ps, id, block, from, most, &answer, scan);
        from = scan->count > 0 ? from + scan->count : 0;
        block += scan->count == 0;
    }
    free(answer.bytes);
    if (status == GR_OK) {
        scan->place = epoch | (uint64_t)block << BLOCK_SHIFT | from;
    }
    return status;
}

static gr_status restore_piece(gr_ps *ps, int id, const gr_ps_request *request,
                               const uint32_t *rows, size_t count, const float *values,
                               const float *const *states)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_RESTORE_ROWS, &status);
    if (op == NULL) {
        return status;
    }
    op->request = *request;
    op->states = states;
    status = gr_ps_rows_send(op, rows, count, values);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, NULL) : status;
}

/* GR_E_AGAIN: the servers have changed meanwhile, or another client does it. */
static gr_status restore_pieces(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                                size_t count, const float *values, const float *const *states,
                                int state_count)
{
    size_t columns = ps->known[id]->tensor.spec.columns,
           width = columns * (size_t)(1 + state_count);
    size_t most = RESTORE_BYTES / (width * sizeof(float)), from = 0;
    most = most > 0 ? most : 1;
    uint64_t epoch = ps->table.epoch;
    gr_status status = GR_OK;
    do {
        const float *some[GR_PS_STATES_MAX] = {NULL};
        size_t piece = count - from < most ? count - from : most;
        for (int s = 0; s < state_count; s++) {
            some[s] = states[s] + from * columns;
        }
        gr_ps_request request = {.count = (uint32_t)state_count, .version = version};
        request.first |= from == 0 ? (uint32_t)GR_PS_PIECE_BEGINS : 0;
        request.first |= from + piece == count ? (uint32_t)GR_PS_PIECE_ENDS : 0;
        if (ps->table.epoch != epoch) {
            return gr_fail(&ps->error, GR_E_AGAIN,
                           "a server was lost while table \"%s\" was restored",
                           ps->known[id]->tensor.spec.name);
        }
        status = restore_piece(ps, id, &request, rows + from, piece, values + from * columns, some);
        from += piece;
    } while (status == GR_OK && from < count);
    return status;
}

gr_status gr_ps_restore_rows(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                             size_t count, const float *values, const float *const *states,
                             int state_count)
{
    gr_status status = check_table(ps, id, state_count);
    if (status != GR_OK) {
        return status;
    }
    uint64_t epoch;
    do { /* a table of servers changes no more often than servers are lost */
        epoch = ps->table.epoch;
        status = restore_pieces(ps, id, version, rows, count, values, states, state_count);
    } while (status == GR_E_AGAIN && ps->table.epoch != epoch);
    return status;
}
