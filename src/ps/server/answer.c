/* SPDX-License-Identifier: Apache-2.0 */

/* What the store decides about pushes and pulls, and how the client gets it. A client that does not
 * take what it asked for holds up nobody but itself: its pending pulls wait as numbers of blocks,
 * and few values at a time are lent to its link. */

#include "ps/server/peer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Tasks ----------------------------------------------------------------------------------- */

void gr_ps_task_free(gr_ps_task *task)
{
    free(task->text);
    if (task->reply != task->small) {
        free(task->reply);
    }
    *task = (gr_ps_task){.state = GR_PS_TASK_FREE};
}

void gr_ps_task_fail(gr_ps_task *task, gr_status status, const char *sentence)
{
    if (task->status == GR_OK) {
        task->status = status;
        task->text = strdup(sentence);
    }
}

void gr_ps_task_reply(gr_ps_session *session, gr_ps_task *task, gr_ps_kind kind,
                      const uint8_t *reply, size_t size_bytes)
{
    uint8_t *copy = size_bytes > sizeof task->small ? malloc(size_bytes) : task->small;
    if (copy == NULL) {
        /* The status alone, which always fits. */
        const gr_ps_done done = {.status = GR_E_NO_MEMORY};
        size_bytes = gr_ps_put_done(&done, task->small);
        copy = task->small;
        kind = GR_PS_DONE;
    } else {
        memcpy(copy, reply, size_bytes);
    }
    gr_ps_task_reply_with(session, task, kind, copy, size_bytes);
}

void gr_ps_task_reply_with(gr_ps_session *session, gr_ps_task *task, gr_ps_kind kind,
                           uint8_t *reply, size_t size_bytes)
{
    task->reply = reply;
    task->reply_bytes = (uint32_t)size_bytes;
    task->answer = (uint8_t)kind;
    task->state = GR_PS_TASK_OVER;
    session->answers
        .over[(session->answers.over_first + session->answers.over_count++) % GR_PS_OPS_MAX] =
        (uint16_t)(task - session->tasks);
}

void gr_ps_task_settle(gr_ps_session *session, gr_ps_task *task)
{
    if (task->state != GR_PS_TASK_OPEN || task->to_come > 0 || task->to_answer > 0 ||
        task->to_give > 0 || task->leases > 0) {
        return;
    }
    uint8_t reply[GR_PS_SMALL_MAX];
    gr_ps_done done = {.status = task->status, .duplicates = task->duplicates};
    if (task->text != NULL) {
        memcpy(done.text, task->text, strnlen(task->text, sizeof done.text - 1));
    }
    gr_ps_task_reply(session, task, GR_PS_DONE, reply, gr_ps_put_done(&done, reply));
}

/* ---- Pending pulls --------------------------------------------------------------------------- */

bool gr_ps_pending_reserve(gr_ps_session *session, uint32_t count)
{
    gr_ps_answers *answers = &session->answers;
    if (count > GR_PS_QUEUE_MAX - answers->pending_reserved) {
        return false;
    }
    uint32_t wanted = answers->pending_reserved + count,
             room = answers->pending_room > 0 ? answers->pending_room : 64;
    while (room < wanted) {
        room *= 2;
    }
    if (room > answers->pending_room) {
        gr_ps_pending_pull *pending = calloc(room, sizeof *pending);
        if (pending == NULL) {
            return false;
        }
        for (uint32_t i = 0; i < answers->pending_count; i++) {
            pending[i] = answers->pending[(answers->pending_first + i) % answers->pending_room];
        }
        free(answers->pending);
        answers->pending = pending;
        answers->pending_first = 0;
        answers->pending_room = room;
    }
    answers->pending_reserved = wanted;
    return true;
}

void gr_ps_pending_add(gr_ps_session *session, uint32_t slot, uint32_t block, uint64_t version)
{
    gr_ps_answers *answers = &session->answers;
    uint32_t at = (answers->pending_first + answers->pending_count++) % answers->pending_room;
    answers->pending[at] = (gr_ps_pending_pull){.slot = slot, .block = block, .version = version};
}

/* A value was given, or will not be. */
static void fulfil(gr_ps_session *session, gr_ps_task *task)
{
    task->to_give--;
    session->answers.pending_reserved--;
    gr_ps_task_settle(session, task);
}

/* ---- What the store says --------------------------------------------------------------------- */

/* A token is the task's place, above the block. */
static gr_ps_task *task_of(gr_ps_session *session, uint64_t token)
{
    return &session->tasks[token >> 32];
}

static bool asks_whole(const gr_ps_task *task)
{
    return task->kind == GR_PS_PULL && (task->request.flags & GR_PS_ASK_WHOLE) != 0;
}

/* Which vector of states it pulls; 0: the values. Or how many, with them. */
static int state_of(const gr_ps_task *task)
{
    return task->kind == GR_PS_PULL ? (int)task->request.first : 0;
}

float *gr_ps_values_place(const gr_ps_session *session, const gr_ps_task *task, uint32_t block)
{
    float *values = (float *)(void *)(session->shared.heap + task->request.values_at);
    return values + gr_ps_block_first(&task->held->tensor->cut, block);
}

/* It has the values of a block. */
static void given(gr_ps_session *session, gr_ps_task *task, uint32_t block, uint64_t version)
{
    task->version = version < task->version ? version : task->version;
    session->server->traffic.pulls++;
    session->server->traffic.bytes_out +=
        gr_ps_block_count(&task->held->tensor->cut, block) * sizeof(float);
    fulfil(session, task);
}

static void on_pushed(void *arg, const gr_ps_pushed *answer)
{
    gr_ps_server *server = arg;
    gr_ps_session *session = server->sessions[answer->client];
    gr_ps_task *task = task_of(session, answer->token);
    bool asks = (task->request.flags & GR_PS_ASK_VALUES) != 0;
    task->to_answer--;
    if (answer->status != GR_OK) {
        gr_ps_task_fail(task, answer->status, answer->diag->text);
        if (asks) {
            fulfil(session, task);
        }
    } else {
        task->duplicates += answer->outcome != GR_PS_TAKEN;
        task->version = answer->version < task->version ? answer->version : task->version;
        if (answer->put) {
            given(session, task, (uint32_t)answer->token, answer->version);
        } else if (asks) {
            gr_ps_pending_add(session, (uint32_t)(answer->token >> 32), (uint32_t)answer->token,
                              answer->version);
        }
    }
    gr_ps_task_settle(session, task);
}

/* Lends the values to the link; false: it has no room, or enough. */
static bool send_values(gr_ps_session *session, const gr_ps_task *task, uint32_t block,
                        const gr_ps_pulled *answer)
{
    gr_frame frame = {.kind = GR_FRAME_DATA,
                      .comm = GR_PS_VALUES,
                      .op_seq = task->ticket,
                      .segment = block,
                      .size_bytes = answer->count * (uint32_t)sizeof(float),
                      .fingerprint = answer->version};
    uint64_t ticket;
    if (session->answers.full || session->answers.lent_count == GR_PS_LENT_MAX) {
        return false;
    }
    gr_status status = gr_link_send(session->link, &frame, answer->values, &ticket);
    if (status != GR_OK) {
        session->answers.full = true; /* or it is gone, as will be told */
        return false;
    }
    gr_ps_answers *answers = &session->answers;
    answers->lent[(answers->lent_first + answers->lent_count++) % GR_PS_LENT_MAX] =
        (gr_ps_lent){.ticket = ticket, .loan = answer->loan};
    return true;
}

static void on_pulled(void *arg, const gr_ps_pulled *answer)
{
    gr_ps_server *server = arg;
    gr_ps_session *session = server->sessions[answer->client];
    gr_ps_task *task = task_of(session, answer->token);
    uint32_t block = (uint32_t)answer->token;
    if (task->kind == GR_PS_PULL_ROWS || task->kind == GR_PS_SCAN_ROWS) {
        gr_ps_rows_give(session, task, block, answer);
        return;
    }
    if (answer->status != GR_OK) {
        gr_ps_task_fail(task, answer->status, answer->diag->text);
        fulfil(session, task);
        return;
    }
    if ((task->request.flags & GR_PS_ASK_PUT) != 0) {
        memcpy(gr_ps_values_place(session, task, block), answer->values,
               answer->count * sizeof(float));
        gr_ps_store_give_back(server->store, answer->loan);
    } else if (!send_values(session, task, block, answer)) {
        /* Asked for again when there is room; values are no older then, states what they are. */
        gr_ps_pending_add(session, (uint32_t)(answer->token >> 32), block,
                          state_of(task) == 0 ? answer->version : task->request.version);
        gr_ps_store_give_back(server->store, answer->loan);
        return;
    }
    given(session, task, block, answer->version);
}

static void on_release(void *arg, void *lease_arg)
{
    gr_ps_lease *lease = lease_arg;
    gr_ps_server *server = arg;
    if (!lease->shared) {
        if (--lease->uses > 0) {
            return;
        }
        gr_ps_buffer_give_back(server, (gr_ps_buffer *)lease);
        return;
    }
    gr_ps_task *task = (gr_ps_task *)lease;
    task->leases--;
    gr_ps_task_settle(task->session, task);
}

static void *on_alloc(void *arg, size_t size_bytes)
{
    gr_ps_server *server = arg;
    void *mem = NULL;
    return gr_mesh_alloc(server->mesh, size_bytes, &mem) == GR_OK ? mem : NULL;
}

static void on_free(void *arg, void *mem)
{
    gr_ps_server *server = arg;
    gr_mesh_free(server->mesh, mem);
}

static void on_forward(void *arg, const gr_ps_update *update)
{
    gr_ps_copy_forward(arg, update);
}

const gr_ps_store_ops gr_ps_server_store_ops = {.pushed = on_pushed,
                                                .pulled = on_pulled,
                                                .release = on_release,
                                                .forward = on_forward,
                                                .alloc = on_alloc,
                                                .free = on_free};

/* ---- What a client gets ---------------------------------------------------------------------- */

/* Values that the link needs no more. */
static void take_back(gr_ps_session *session)
{
    gr_ps_answers *answers = &session->answers;
    while (answers->lent_count > 0) {
        const gr_ps_lent *lent = &answers->lent[answers->lent_first];
        if (!gr_link_sent(session->link, lent->ticket)) {
            return;
        }
        gr_ps_store_give_back(session->server->store, lent->loan);
        answers->lent_first = (answers->lent_first + 1) % GR_PS_LENT_MAX;
        answers->lent_count--;
    }
}

/* The tasks that are over; false: the link has no room. */
static bool send_done(gr_ps_session *session)
{
    gr_ps_answers *answers = &session->answers;
    while (answers->over_count > 0) {
        gr_ps_task *task = &session->tasks[answers->over[answers->over_first]];
        gr_frame frame = {.kind = GR_FRAME_DATA,
                          .comm = task->answer,
                          .op_seq = task->ticket,
                          .size_bytes = task->reply_bytes,
                          .fingerprint = task->version};
        if (gr_link_send(session->link, &frame, task->reply, &task->said) != GR_OK) {
            return false;
        }
        task->state = GR_PS_TASK_SAID;
        answers->over_first = (answers->over_first + 1) % GR_PS_OPS_MAX;
        answers->over_count--;
    }
    return true;
}

/* The table that all goes by from here on; false: the link has no room. */
static bool send_table(gr_ps_session *session)
{
    if (!session->untold) {
        return true;
    }
    if (gr_ps_joins(session->server) ||
        (session->table_ticket > 0 && !gr_link_sent(session->link, session->table_ticket)) ||
        !gr_ps_send_places(session->server, session->link, -1)) {
        return false;
    }
    size_t size = gr_ps_put_table(&session->server->table, session->table);
    const gr_frame frame = {
        .kind = GR_FRAME_DATA, .comm = GR_PS_TABLE, .size_bytes = (uint32_t)size};
    session->untold =
        gr_link_send(session->link, &frame, session->table, &session->table_ticket) != GR_OK;
    return !session->untold;
}

gr_status gr_ps_session_answer(gr_ps_session *session)
{
    gr_ps_answers *answers = &session->answers;
    gr_ps_server *server = session->server;
    uint64_t until = server->traffic.bytes_out + GR_PS_TURN_BYTES;
    answers->full = !send_table(session) || !server->active;
    take_back(session);
    /* Those that come back for want of room, or wait in the store, are not looked at again now. */
    for (uint32_t left = answers->pending_count; left > 0 && !answers->full; left--) {
        if (server->traffic.bytes_out >= until || answers->lent_count == GR_PS_LENT_MAX) {
            break;
        }
        const gr_ps_pending_pull next = answers->pending[answers->pending_first];
        answers->pending_first = (answers->pending_first + 1) % answers->pending_room;
        answers->pending_count--;
        const gr_ps_pull pull = {.client = session->peer,
                                 .token = (uint64_t)next.slot << 32 | next.block,
                                 .key = session->tasks[next.slot].held->tensor->key,
                                 .block = next.block,
                                 .state = state_of(&session->tasks[next.slot]),
                                 .version = next.version,
                                 .clock = session->clock,
                                 .reads = gr_ps_reads(session),
                                 .whole = asks_whole(&session->tasks[next.slot])};
        gr_ps_store_pull(server->store, &pull);
    }
    bool room = !session->untold && send_done(session);
    return room && !answers->full && server->traffic.bytes_out >= until &&
                   answers->pending_count > 0
               ? GR_PENDING
               : GR_OK;
}
