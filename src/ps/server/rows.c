/* SPDX-License-Identifier: Apache-2.0 */

/* Rows of tables: a request is one message, with all its rows. */

#include "ps/server/server_internal.h"

#include "base/codec.h"
#include "base/fail.h"

#include <inttypes.h>
#include <stdlib.h>

/* Finds where the rows of each block begin: room for GR_PS_TABLE_BLOCKS + 1. False: the blocks are
 * not ascending, or in one of them its rows are not. */
static bool find_blocks(uint64_t key, const uint32_t *rows, uint32_t count, uint32_t *first)
{
    uint32_t last = 0;
    first[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block = gr_ps_row_block(key, rows[i]);
        if (block < last || (i > 0 && block == last && rows[i] <= rows[i - 1])) {
            return false;
        }
        while (last < block) {
            first[++last] = i;
        }
    }
    while (last < GR_PS_TABLE_BLOCKS) {
        first[++last] = count;
    }
    return true;
}

static bool all_led(const gr_ps_server *server, const gr_ps_share *held, const uint32_t *first)
{
    for (uint32_t block = 0; block < GR_PS_TABLE_BLOCKS; block++) {
        if (first[block] < first[block + 1] && !gr_ps_leads(server, held, block)) {
            return false;
        }
    }
    return true;
}

/* Beside what any request may have wrong. */
static gr_status judge(const gr_ps_session *session, const gr_ps_task *task, const gr_frame *frame,
                       const void *message, gr_ps_row_list *rows_out, uint32_t *first_out,
                       gr_diag *diag)
{
    gr_status status = gr_ps_task_judge(session, task, frame, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_ps_share *held = session->tensors[frame->message];
    bool restores = task->kind == GR_PS_RESTORE_ROWS;
    if (restores && task->request.count > GR_PS_STATES_MAX) {
        return gr_fail(diag, GR_E_INVALID, "no optimizer has %u vectors of state",
                       task->request.count);
    }
    status = gr_ps_get_rows(
        message, frame->size_bytes, task->kind != GR_PS_PULL_ROWS, frame->segment,
        held->tensor->spec.columns * (1 + (restores ? task->request.count : 0)), rows_out, diag);
    if (status == GR_OK &&
        (held->led == 0 ||
         !find_blocks(held->tensor->key, rows_out->rows, rows_out->count, first_out) ||
         !all_led(session->server, held, first_out))) {
        status = gr_fail(diag, GR_E_INVALID,
                         "the client sends rows that this server does not lead, or in another "
                         "order than that of their blocks");
    }
    return status;
}

/* One push for each block that is led here: also one without rows counts. */
static void push_blocks(gr_ps_session *session, gr_ps_task *task, const gr_ps_row_list *in,
                        const uint32_t *first, gr_ps_buffer *buffer)
{
    gr_ps_server *server = session->server;
    const gr_ps_share *held = task->held;
    uint32_t left = held->led, block = 0;
    task->to_answer = left;
    buffer->lease.uses = left;
    for (; left > 0; left--, block++) {
        block = gr_ps_next_led(server, held, block);
        uint32_t at = first[block], count = first[block + 1] - at;
        const gr_ps_push push =
            gr_ps_task_push(session, task, block, (uint64_t)count * held->tensor->spec.columns);
        const gr_ps_data data = {.values = in->values + (size_t)at * held->tensor->spec.columns,
                                 .lease = &buffer->lease,
                                 .lasting = true,
                                 .rows = in->rows + at,
                                 .row_count = count};
        server->traffic.pushes++;
        gr_ps_store_push(server->store, &push, &data);
    }
}

/* Returns true if this client is the one that restores the table. */
static bool may_restore(gr_ps_server *server, gr_ps_share *held, int client, bool begins)
{
    if (held->restorer >= 0 && server->sessions[held->restorer] == NULL) {
        held->restorer = -1; /* it is gone */
    }
    return held->restorer == client || (held->restorer < 0 && begins);
}

/* Of each block that is led here the rows that have come, with their states. */
static void restore_blocks(gr_ps_session *session, gr_ps_task *task, const gr_ps_row_list *in,
                           const uint32_t *first)
{
    gr_ps_server *server = session->server;
    gr_ps_share *held = gr_ps_share_of(server, task->held->tensor->key);
    const gr_ps_request *request = &task->request;
    bool begins = (request->first & GR_PS_PIECE_BEGINS) != 0;
    bool ends = (request->first & GR_PS_PIECE_ENDS) != 0;
    if (!may_restore(server, held, session->peer, begins)) {
        gr_ps_task_fail(task, GR_E_AGAIN,
                        "another client is restoring the table: pull from it when that is done");
        return;
    }
    held->restorer = ends ? -1 : session->peer;
    uint32_t block = 0;
    size_t width = (size_t)held->tensor->spec.columns * (1 + request->count);
    for (uint32_t left = held->led; left > 0 && task->status == GR_OK; left--, block++) {
        block = gr_ps_next_led(server, held, block);
        uint32_t at = first[block];
        const gr_ps_image image = {.key = held->tensor->key,
                                   .block = block,
                                   .count = first[block + 1] - at,
                                   .ready = ends,
                                   .version = request->version,
                                   .values = in->values + at * width,
                                   .states = (int)request->count,
                                   .columns = held->tensor->spec.columns,
                                   .begins = begins,
                                   .ends = ends,
                                   .rows = in->rows + at};
        gr_diag why = {0};
        bool taken = false;
        gr_status status = gr_ps_restore_image(server, &image, &taken, &why);
        if (status != GR_OK) {
            gr_ps_task_fail(task, status, why.text);
        }
        task->duplicates += !taken;
    }
    task->version = request->version;
}

/* Asks for one block: gr_ps_rows_give reads of it when it may be pulled. */
static void pull_block(gr_ps_session *session, gr_ps_task *task, uint32_t block)
{
    const gr_ps_push as_push = gr_ps_task_push(session, task, block, 0);
    const gr_ps_pull pull = {.client = as_push.client,
                             .token = as_push.token,
                             .key = as_push.key,
                             .block = block,
                             .version = task->request.version,
                             .clock = session->clock,
                             .reads = gr_ps_reads(session),
                             .rows = true};
    gr_ps_store_pull(session->server->store, &pull);
}

/* Of the blocks whose rows are asked for; with none at all it is the version that is wanted. */
static void pull_blocks(gr_ps_session *session, gr_ps_task *task, const uint32_t *first)
{
    const gr_ps_share *held = task->held;
    uint32_t blocks[GR_PS_TABLE_BLOCKS], count = 0;
    for (uint32_t block = 0; block < held->tensor->cut.blocks; block++) {
        bool asked = task->row_count == 0 || first[block] < first[block + 1];
        if (asked && gr_ps_leads(session->server, held, block)) {
            blocks[count++] = block;
        }
    }
    task->to_answer = count;
    for (uint32_t i = 0; i < count; i++) {
        pull_block(session, task, blocks[i]);
    }
}

/* The request has come whole. */
static gr_status begin(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame,
                       gr_ps_buffer *buffer, gr_diag *diag)
{
    gr_ps_server *server = session->server;
    gr_diag why = {0};
    size_t head = frame->size_bytes < GR_PS_REQUEST_BYTES ? frame->size_bytes : GR_PS_REQUEST_BYTES;
    gr_status status =
        gr_ps_get_request((const uint8_t *)buffer->values, head, &task->request, diag);
    if (status != GR_OK) {
        gr_ps_buffer_give_back(server, buffer);
        return status;
    }
    gr_ps_row_list in;
    uint32_t first[GR_PS_TABLE_BLOCKS + 1];
    status = judge(session, task, frame, buffer->values, &in, first, &why);
    if (status != GR_OK) {
        gr_ps_buffer_give_back(server, buffer);
        gr_ps_task_fail(task, status, why.text);
        gr_ps_task_settle(session, task);
        return GR_OK;
    }
    task->held = session->tensors[frame->message];
    server->traffic.bytes_in += frame->size_bytes;
    if (frame->comm == GR_PS_PUSH_ROWS) {
        push_blocks(session, task, &in, first, buffer);
        return GR_OK;
    }
    if (frame->comm == GR_PS_RESTORE_ROWS) {
        restore_blocks(session, task, &in, first);
        gr_ps_buffer_give_back(server, buffer);
        gr_ps_task_settle(session, task);
        return GR_OK;
    }
    task->gathered[task->gathered_count++] = buffer;
    task->rows = in.rows;
    task->row_count = in.count;
    pull_blocks(session, task, first);
    return GR_OK;
}

gr_status gr_ps_rows_take(gr_ps_session *session, const gr_frame *frame, gr_diag *diag)
{
    gr_ps_server *server = session->server;
    if (session->receiving == NULL) {
        session->receiving = gr_ps_buffer_take(server, frame->size_bytes);
    }
    gr_ps_buffer *buffer = session->receiving;
    if (buffer != NULL) {
        gr_status status = gr_link_read(session->link, buffer->values);
        if (status != GR_OK) {
            return status;
        }
    }
    gr_link_next(session->link, NULL);
    session->receiving = NULL;
    gr_ps_task *task = gr_ps_task_open(session, frame);
    if (task == NULL) {
        gr_ps_buffer_give_back(server, buffer);
        return gr_fail(diag, GR_E_PROTOCOL, "a ticket that is in use");
    }
    if (buffer == NULL) {
        gr_ps_task_fail(task, GR_E_NO_MEMORY,
                        "the server has no memory for a request with rows; send it again");
        gr_ps_task_settle(session, task);
        return GR_OK;
    }
    return begin(session, task, frame, buffer, diag);
}

/* The reply's memory, with where the rows of each block begin behind it. */
static bool make_reply(gr_ps_task *task)
{
    size_t size_bytes = (size_t)task->row_count * task->held->tensor->spec.columns * sizeof(float);
    uint8_t *reply = malloc(size_bytes + (GR_PS_TABLE_BLOCKS + 1) * sizeof(uint32_t));
    if (reply == NULL) {
        return false;
    }
    task->reply = reply;
    task->reply_bytes = (uint32_t)size_bytes;
    return find_blocks(task->held->tensor->key, task->rows, task->row_count,
                       (uint32_t *)(void *)(reply + size_bytes));
}

/* Reads the rows of one block to where they stand in the reply. */
static gr_status read_block(gr_ps_server *server, gr_ps_task *task, uint32_t block, gr_diag *diag)
{
    const gr_ps_share *held = task->held;
    if (task->reply == NULL && !make_reply(task)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "the server has no memory for %u rows",
                       task->row_count);
    }
    const uint32_t *first = (const uint32_t *)(const void *)(task->reply + task->reply_bytes);
    uint32_t begin = first[block], count = first[block + 1] - begin;
    float *to = (float *)(void *)task->reply + (size_t)begin * held->tensor->spec.columns;
    server->traffic.pulls++;
    server->traffic.bytes_out += (uint64_t)count * held->tensor->spec.columns * sizeof(float);
    return gr_ps_store_read_rows(server->store, held->tensor->key, block, task->rows + begin, count,
                                 to, diag);
}

/* ---- Scans ----------------------------------------------------------------------------------- */

gr_status gr_ps_rows_scan(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame,
                          gr_diag *diag)
{
    gr_diag why = {0};
    gr_status status = gr_ps_get_request(session->small, frame->size_bytes, &task->request, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_ps_task_judge(session, task, frame, &why);
    if (status != GR_OK) {
        gr_ps_task_fail(task, status, why.text);
        gr_ps_task_settle(session, task);
        return GR_OK;
    }
    task->held = session->tensors[frame->message];
    task->to_answer = 1;
    pull_block(session, task, frame->segment);
    return GR_OK;
}

/* Fills the reply: how many, how many vectors of states, and the rows. */
static gr_status read_existing(gr_ps_server *server, gr_ps_task *task, uint32_t block,
                               uint64_t version, gr_diag *diag)
{
    const gr_ps_request *request = &task->request;
    gr_ps_image image;
    gr_status status =
        gr_ps_store_image(server->store, task->held->tensor->key, block, &image, diag);
    if (status != GR_OK) {
        return status;
    }
    if (request->version > 0 && version > request->version) {
        return gr_fail(diag, GR_E_INVALID,
                       "block %u of table \"%s\" is at version %" PRIu64 ": rows of version "
                       "%" PRIu64 " are gone; pull them before the next push",
                       block, task->held->tensor->spec.name, version, request->version);
    }
    uint64_t from = request->sequence < image.count ? request->sequence : image.count;
    uint64_t left = image.count - from;
    image.count = 1;
    uint64_t most = GR_PS_TURN_BYTES / gr_ps_image_bytes(&image);
    most = most == 0 ? 1 : most < request->count ? most : request->count;
    image.count = (uint32_t)(left < most ? left : most);
    size_t size = GR_PS_SCAN_HEAD + gr_ps_image_bytes(&image);
    uint8_t *reply = malloc(size);
    if (reply == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "the server has no memory for %u rows", image.count);
    }
    gr_put_u32(reply, image.count);
    gr_put_u32(reply + 4, (uint32_t)image.states);
    uint32_t *rows = (uint32_t *)(void *)(reply + GR_PS_SCAN_HEAD);
    gr_ps_store_image_rows(server->store, image.key, block, (uint32_t)from, image.count, rows,
                           (float *)(void *)(rows + image.count));
    task->reply = reply;
    task->reply_bytes = (uint32_t)size;
    return GR_OK;
}

void gr_ps_rows_give(gr_ps_session *session, gr_ps_task *task, uint32_t block,
                     const gr_ps_pulled *answer)
{
    gr_ps_server *server = session->server;
    gr_diag why = {0};
    gr_status status = answer->status;
    if (status != GR_OK) {
        why = *answer->diag;
    } else if (task->status == GR_OK) {
        status = task->kind == GR_PS_SCAN_ROWS
                     ? read_existing(server, task, block, answer->version, &why)
                     : read_block(server, task, block, &why);
    }
    if (status != GR_OK) {
        gr_ps_task_fail(task, status, why.text);
    } else if (answer->version < task->version) {
        task->version = answer->version;
    }
    if (--task->to_answer > 0) {
        return;
    }
    gr_ps_gathered_drop(server, task);
    if (task->status != GR_OK) {
        free(task->reply);
        task->reply = NULL;
        gr_ps_task_settle(session, task);
        return;
    }
    gr_ps_task_reply_with(session, task, GR_PS_ROWS, task->reply, task->reply_bytes);
}
