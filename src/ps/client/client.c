/* SPDX-License-Identifier: Apache-2.0 */

/* Requests under way. A request has a sub-request on each server that it concerns. That is sent as
 * the server's link has room, in the order of the calls, and is over with its last answer. */

#include "ps/client/client.h"

#include "base/codec.h"
#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* Beyond the time after which a silent server is lost: for the others to agree. */
#define VERDICT_US INT64_C(10000000)

/* ---- Operations ------------------------------------------------------------------------------ */

gr_ps_op *gr_ps_op_open(gr_ps *ps, gr_ps_kind kind, gr_ps_item *item)
{
    gr_ps_op *op = ps->free_op;
    if (op == NULL) {
        (void)gr_fail(&ps->error, GR_E_NO_MEMORY,
                      "%d operations are under way on this connection; finish some with gr_ps_wait",
                      GR_PS_OPS_MAX);
        return NULL;
    }
    ps->free_op = op->next;
    uint32_t ticket = op->ticket + GR_PS_OPS_MAX;
    *op = (gr_ps_op){.ps = ps,
                     .ticket = ticket,
                     .used = true,
                     .kind = (uint8_t)kind,
                     .item = item,
                     .version = UINT64_MAX};
    return op;
}

static void fail_op(gr_ps_op *op, const gr_diag *diag)
{
    if (op->status == GR_OK) {
        op->status = (gr_status)diag->status;
        op->diag = *diag;
    }
}

static void close_subrequest(gr_ps_op *op, int server)
{
    gr_ps_pace_forget(&op->ps->endpoints[server].pace, op->subs[server].on_way_bytes);
    op->subs[server].on_way_bytes = 0;
    op->subs[server].open = false;
    op->open--;
}

/* One sub-request. Where the server is lost, and others may take over, it waits for them. */
static void open_subrequest(gr_ps_op *op, int server)
{
    gr_ps *ps = op->ps;
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    gr_ps_subrequest *sub = &op->subs[server];
    sub->open = true;
    op->open++;
    if (!endpoint->lost) {
        endpoint->queue[(endpoint->first + endpoint->count++) % GR_PS_OPS_MAX] =
            (uint16_t)(op - ps->ops);
    } else if (endpoint->takeover_by_us == 0) {
        fail_op(op, &endpoint->diag);
        close_subrequest(op, server);
    }
}

void gr_ps_op_send(gr_ps_op *op, int to)
{
    gr_ps *ps = op->ps;
    op->to = to;
    for (int s = 0; s < ps->servers; s++) {
        if (to == s || (to == GR_PS_TO_HOLDERS && op->item->led[s] > 0) ||
            (to == GR_PS_TO_WRITTEN && op->subs[s].rows != NULL) ||
            (to == GR_PS_TO_ALL && ps->table.alive[s]) ||
            (to == GR_PS_TO_LINKED && ps->endpoints[s].link != NULL && !ps->endpoints[s].lost)) {
            open_subrequest(op, s);
        }
    }
}

bool gr_ps_op_over(gr_ps_op *op)
{
    for (int s = 0; op->open == 0 && s < op->ps->servers; s++) {
        gr_ps_subrequest *sub = &op->subs[s];
        const gr_ps_endpoint *endpoint = &op->ps->endpoints[s];
        sub->lent = sub->lent && !endpoint->ended &&
                    (endpoint->renews || !gr_link_sent(endpoint->link, sub->sent));
        if (sub->lent) {
            return false;
        }
    }
    return op->open == 0;
}

void gr_ps_op_drop(gr_ps_op *op)
{
    gr_ps_rows_drop(op);
    if (op->narrow != NULL) {
        free(op->item->narrow);
        op->item->narrow = op->narrow;
        op->narrow = NULL;
    }
    if (op->pairs != NULL) {
        free(op->item->pairs);
        op->item->pairs = op->pairs;
        op->pairs = NULL;
    }
    op->used = false;
    op->next = op->ps->free_op;
    op->ps->free_op = op;
}

gr_status gr_ps_op_close(gr_ps_op *op, uint64_t *version_out)
{
    gr_ps *ps = op->ps;
    gr_status status = op->status;
    if (status != GR_OK) {
        ps->error = op->diag;
    } else if (version_out != NULL) {
        *version_out = op->version;
    }
    gr_ps_op_drop(op);
    return status;
}

/* A wait ends when the other servers should have told who takes over, or more may be pushed. */
static int64_t latest_us(const gr_ps *ps, int64_t deadline_us)
{
    for (int s = 0; s < ps->servers; s++) {
        const gr_ps_endpoint *endpoint = &ps->endpoints[s];
        int64_t by_us = endpoint->takeover_by_us, more_us = gr_ps_pace_next_us(&endpoint->pace);
        deadline_us = by_us > 0 && by_us < deadline_us ? by_us : deadline_us;
        deadline_us =
            endpoint->held && !endpoint->lost && more_us < deadline_us ? more_us : deadline_us;
    }
    return deadline_us;
}

gr_status gr_ps_op_wait(gr_ps_op *op, int64_t deadline_us, uint64_t *version_out)
{
    gr_ps *ps = op->ps;
    for (;;) {
        ps->waits = true;
        gr_ps_progress(ps);
        ps->waits = false;
        if (gr_ps_op_over(op)) {
            return gr_ps_op_close(op, version_out);
        }
        if (gr_clock_now_us(&ps->clock) >= deadline_us) {
            return gr_fail(&ps->error, GR_E_TIMEOUT, "the servers have not answered in time");
        }
        gr_mesh_wait(ps->mesh, latest_us(ps, deadline_us));
    }
}

/* ---- A server is lost ------------------------------------------------------------------------ */

static size_t put_hello(const gr_ps *ps, int server, uint8_t *out)
{
    gr_ps_hello hello = {
        .protocol = GR_PS_PROTOCOL, .servers = (uint32_t)ps->servers, .number = (uint32_t)server};
    memcpy(hello.run, ps->run, sizeof hello.run);
    return gr_ps_put_hello(&hello, out);
}

/* All that waits for it fails. */
static void fail_subrequests(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    endpoint->count = 0;
    endpoint->takeover_by_us = 0;
    for (int i = 0; i < GR_PS_OPS_MAX; i++) {
        gr_ps_op *op = &ps->ops[i];
        if (op->used && op->subs[server].open) {
            if (op != ps->greeting) {
                fail_op(op, &endpoint->diag);
            }
            close_subrequest(op, server);
        }
    }
}

/* Until when a new table may tell who has the blocks of a lost server; 0: nobody has. */
static int64_t takeover_by_us(const gr_ps *ps)
{
    return gr_ps_table_replicated(&ps->table)
               ? gr_clock_deadline_us(&ps->clock, ps->peer_timeout_us + VERDICT_US)
               : 0;
}

/* A server is not reached, or sends no table. */
static void lose(gr_ps *ps, int server, gr_status status, const char *why)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    if (endpoint->lost) {
        return;
    }
    endpoint->lost = true;
    (void)gr_fail_peer(&endpoint->diag, status, server, "parameter server %d is lost: %.400s",
                       server, why);
    endpoint->takeover_by_us = takeover_by_us(ps);
    if (endpoint->takeover_by_us == 0) {
        fail_subrequests(ps, server);
    }
}

/* ---- A server is replaced -------------------------------------------------------------------- */

/* Another process has its number from now on: requests wait until that is reached. */
static void renew(gr_ps *ps, int server, const gr_ps_place *place)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    if (endpoint->link != NULL) {
        gr_link_close(endpoint->link, GR_E_PEER_LOST,
                      "another server has come in place of this one");
    }
    memcpy(endpoint->addresses, place->addresses, sizeof endpoint->addresses);
    endpoint->ended = endpoint->ended || gr_mesh_link(ps->mesh, server) == NULL;
    endpoint->link = NULL;
    endpoint->lost = false;
    endpoint->renews = true;
}

/* The link to the process before has ended: nothing is lent to it any more. */
static void reconnect(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    gr_diag why = {0};
    char addresses[sizeof endpoint->addresses];
    for (int i = 0; i < GR_PS_OPS_MAX; i++) {
        ps->ops[i].subs[server].lent = false;
    }
    free(endpoint->words);
    endpoint->words = NULL;
    endpoint->renews = endpoint->ended = false;
    endpoint->introduced = 0;
    endpoint->pace = (gr_ps_pace){0};
    memcpy(addresses, endpoint->addresses, sizeof addresses);
    gr_ps_split_addresses(addresses);
    gr_mesh_remove(ps->mesh, server);
    if (gr_mesh_connect(ps->mesh, server, addresses, &why) != GR_OK) {
        lose(ps, server, (gr_status)why.status, why.text);
    }
}

void gr_ps_dial_again(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    endpoint->lost = false;
    endpoint->takeover_by_us = 0;
    reconnect(ps, server);
}

/* Its memory for what it has to be told: a greeting, all tensors, and the clock. */
static void prepare_words(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    size_t size = GR_PS_REQUEST_BYTES;
    for (uint32_t i = 0; i < ps->known_count; i++) {
        size += GR_PS_SPEC_FIXED + gr_ps_texts_bytes(&ps->known[i]->tensor.spec);
    }
    endpoint->words = malloc(size);
    endpoint->words_bytes = 0;
    endpoint->words_said = 0;
    endpoint->words_tensors = ps->known_count;
    if (endpoint->words == NULL) {
        lose(ps, server, GR_E_NO_MEMORY, "no memory to introduce this client to it");
    }
}

/* As if all had just been declared. Its answers are passed over: what it refuses is the answer to
 * the first request that needs it. False: the link has no room. */
static bool send_settings(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    while (endpoint->words != NULL && endpoint->words_said < endpoint->words_tensors + 2) {
        uint32_t at = endpoint->words_said;
        uint8_t *word = endpoint->words + endpoint->words_bytes;
        gr_frame frame = {.kind = GR_FRAME_DATA,
                          .op_seq = ps->ops[at % GR_PS_OPS_MAX].ticket ^ UINT32_C(1) << 31};
        if (at == 0) {
            frame.comm = GR_PS_HELLO;
            frame.size_bytes = (uint32_t)put_hello(ps, server, word);
        } else if (at <= endpoint->words_tensors) {
            frame.comm = GR_PS_DECLARE;
            frame.message = ps->known[at - 1]->number;
            frame.size_bytes = (uint32_t)gr_ps_put_spec(&ps->known[at - 1]->tensor.spec, word);
        } else if (ps->worker_clock > 0) {
            frame.comm = GR_PS_CLOCK;
            frame.fingerprint = ps->worker_clock;
        } else {
            break;
        }
        uint64_t ticket;
        if (gr_link_send(endpoint->link, &frame, word, &ticket) != GR_OK) {
            return false;
        }
        endpoint->words_bytes += frame.size_bytes;
        endpoint->words_said++;
    }
    return true;
}

/* ---- A new table ----------------------------------------------------------------------------- */

void gr_ps_item_count(const gr_ps *ps, gr_ps_item *item)
{
    memset(item->led, 0, sizeof item->led);
    for (uint32_t block = 0; block < item->tensor.cut.blocks; block++) {
        item->led[ps->table.primary[gr_ps_slot(item->tensor.key, block)]]++;
    }
}

/* By the new table, all of it: what was done already is recognised by the servers. Whatever comes
 * for the old ticket is passed over. */
static void send_again(gr_ps_op *op)
{
    op->open = 0;
    op->ticket += GR_PS_OPS_MAX;
    op->version = UINT64_MAX;
    for (int s = 0; s < op->ps->servers; s++) {
        gr_ps_subrequest *sub = &op->subs[s];
        sub->open = sub->begun = false;
        sub->next_block = sub->to_send = sub->to_take = 0;
        gr_ps_pace_forget(&op->ps->endpoints[s].pace, sub->on_way_bytes);
        sub->on_way_bytes = 0;
        sub->next_vector = 0;
    }
    if (op->kind == GR_PS_SCAN_ROWS || op->kind == GR_PS_RESTORE_ROWS) {
        gr_diag why = {0};
        (void)gr_fail(&why, GR_E_AGAIN,
                      "a server was lost while table \"%s\" was read or restored: begin again",
                      op->item->tensor.spec.name);
        fail_op(op, &why);
    }
    if (op->rows != NULL && op->status == GR_OK && gr_ps_rows_again(op) != GR_OK) {
        fail_op(op, &op->ps->error);
    }
    if (op->status == GR_OK) {
        gr_ps_op_send(op, op->to);
    }
}

/* The operation that an answer is for; NULL: none. */
static gr_ps_op *op_of(gr_ps *ps, int server, const gr_frame *frame)
{
    gr_ps_op *op = &ps->ops[frame->op_seq % GR_PS_OPS_MAX];
    return op->used && op->ticket == frame->op_seq && op->subs[server].open &&
                   op->subs[server].begun
               ? op
               : NULL;
}

/* Answers by an older table: their memory is not to be written any more. */
static void pass_over(gr_ps *ps, int server)
{
    gr_frame frame;
    gr_link *link = ps->endpoints[server].link;
    while (gr_link_peek(link, &frame) == GR_OK && frame.comm != GR_PS_TABLE &&
           frame.comm != GR_PS_PEER && op_of(ps, server, &frame) == NULL) {
        gr_link_next(link, NULL);
    }
}

/* The process that has the server's number by the table may be another one than before. */
static void follow_incarnation(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    uint64_t incarnation = ps->table.incarnation[server];
    const gr_ps_place *place = endpoint->moved;
    place += place->incarnation != incarnation;
    if (!ps->table.alive[server] || incarnation == endpoint->incarnation ||
        incarnation != place->incarnation) {
        return;
    }
    endpoint->incarnation = incarnation;
    if (endpoint->lost || strcmp(endpoint->addresses, place->addresses) != 0) {
        renew(ps, server, place); /* else it is the one that this client was told of */
    }
}

static void adopt(gr_ps *ps, const gr_ps_table *table)
{
    if (ps->tabled && table->epoch <= ps->table.epoch) {
        return;
    }
    ps->tabled = true;
    ps->table = *table;
    for (int s = 0; s < ps->servers; s++) {
        gr_ps_endpoint *endpoint = &ps->endpoints[s];
        endpoint->untold = table->epoch > 0;
        follow_incarnation(ps, s);
        if (!table->alive[s] && !endpoint->lost) {
            if (endpoint->link != NULL) {
                gr_link_close(endpoint->link, GR_E_PEER_LOST, "the servers go on without this one");
            }
            endpoint->lost = true;
            (void)gr_fail_peer(&endpoint->diag, GR_E_PEER_LOST, s,
                               "parameter server %d is lost: the others go on without it", s);
        }
        endpoint->renews = endpoint->renews && table->alive[s];
        endpoint->takeover_by_us = endpoint->lost && table->alive[s] ? takeover_by_us(ps) : 0;
    }
    for (uint32_t i = 0; i < ps->known_count; i++) {
        gr_ps_item_count(ps, ps->known[i]);
    }
    if (table->epoch == 0) {
        return;
    }
    for (int s = 0; s < ps->servers; s++) {
        ps->endpoints[s].first = ps->endpoints[s].count = 0;
    }
    for (int i = 0; i < GR_PS_OPS_MAX; i++) {
        if (ps->ops[i].used) {
            send_again(&ps->ops[i]);
        }
    }
    for (int s = 0; s < ps->servers; s++) {
        if (ps->endpoints[s].link != NULL && !ps->endpoints[s].lost) {
            pass_over(ps, s);
        }
    }
}

/* ---- Sending --------------------------------------------------------------------------------- */

static bool in_own_heap(const gr_ps *ps, const void *mem, uint64_t elements, uint64_t *at_out)
{
    uintptr_t heap = (uintptr_t)ps->own.heap, at = (uintptr_t)mem;
    if (mem == NULL || at < heap || at - heap > ps->own.heap_bytes ||
        elements * sizeof(float) > ps->own.heap_bytes - (at - heap) ||
        (at - heap) % sizeof(float) != 0) {
        return false;
    }
    *at_out = at - heap;
    return true;
}

/* How many vectors come of each block. */
static uint32_t vectors_come(const gr_ps_op *op)
{
    return (op->request.flags & GR_PS_ASK_WHOLE) != 0 ? 1 + op->request.first : 1;
}

/* How many BLOCKs each block takes. */
static uint32_t vectors_of(const gr_ps_op *op)
{
    return op->kind == GR_PS_RESTORE ? 1 + op->request.count : 1;
}

/* The head of a SET, PUSH, PULL or RESTORE; what does not lie where the server reaches it goes by
 * messages. */
static size_t put_request(gr_ps_op *op, int server)
{
    gr_ps *ps = op->ps;
    gr_ps_subrequest *sub = &op->subs[server];
    gr_ps_request request = op->request;
    uint64_t elements = op->item->tensor.cut.elements;
    bool shares = ps->endpoints[server].shares && op->kind != GR_PS_RESTORE;
    bool shares_data = shares && op->narrow == NULL;
    sub->to_send = op->data != NULL ? op->item->led[server] * vectors_of(op) : 0;
    sub->to_take = op->values != NULL ? op->item->led[server] : 0;
    if (shares_data && in_own_heap(ps, op->data, elements, &request.data_at)) {
        request.flags |= GR_PS_ASK_SHARED;
        sub->to_send = 0;
    }
    if (shares && in_own_heap(ps, op->values, elements, &request.values_at)) {
        request.flags |= GR_PS_ASK_PUT;
        sub->to_take = 0;
    }
    return gr_ps_put_request(&request, sub->head);
}

static gr_status send_head(gr_ps_op *op, int server)
{
    gr_ps_subrequest *sub = &op->subs[server];
    gr_frame frame = {.kind = GR_FRAME_DATA, .comm = op->kind, .op_seq = op->ticket};
    const uint8_t *payload = sub->head;
    size_t size = 0;
    if (op->item != NULL) {
        frame.message = op->item->number;
        frame.segment = op->item->led[server];
    }
    switch (op->kind) {
    case GR_PS_HELLO:
        size = put_hello(op->ps, server, sub->head);
        break;
    case GR_PS_DECLARE:
        payload = op->body;
        size = op->body_bytes;
        break;
    case GR_PS_CLOCK:
        frame.fingerprint = op->argument;
        break;
    case GR_PS_LIST:
        frame.segment = op->index;
        frame.fingerprint = op->argument;
        break;
    case GR_PS_STATS:
        break;
    case GR_PS_SCAN_ROWS:
        frame.segment = op->index;
        size = gr_ps_put_request(&op->request, sub->head);
        break;
    case GR_PS_PUSH_ROWS:
    case GR_PS_PULL_ROWS:
    case GR_PS_RESTORE_ROWS:
        frame.segment = sub->row_count;
        payload = sub->rows;
        size = sub->rows_bytes;
        break;
    default:
        size = put_request(op, server);
        break;
    }
    frame.size_bytes = (uint32_t)size;
    gr_status status = gr_link_send(op->ps->endpoints[server].link, &frame, payload, &sub->sent);
    sub->begun = status == GR_OK;
    sub->lent = sub->lent || sub->begun;
    return status;
}

static uint64_t block_bytes(const gr_ps_tensor *tensor, uint32_t block)
{
    return gr_ps_block_count(&tensor->cut, block) * sizeof(float);
}

/* A number for a block that is on the way. */
static uint64_t mark_of(const gr_ps_op *op, uint32_t block)
{
    return (uint64_t)op->ticket << 32 | block;
}

/* Returns true if each block that goes by a message brings values back. */
static bool is_answered(const gr_ps_op *op, int server)
{
    return op->kind == GR_PS_PUSH && op->values != NULL && !op->ps->endpoints[server].shares;
}

/* A caller that does not wait may be away for long: it gives the link all that it takes. */
static bool may_go(const gr_ps_op *op, int server)
{
    gr_ps *ps = op->ps;
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    endpoint->held = ps->waits && is_answered(op, server) &&
                     !gr_ps_pace_allows(&endpoint->pace, op->item->tensor.cut.block * sizeof(float),
                                        gr_clock_now_us(&ps->clock));
    return !endpoint->held;
}

static gr_status send_block(gr_ps_op *op, int server)
{
    gr_ps_subrequest *sub = &op->subs[server];
    const gr_ps_tensor *tensor = &op->item->tensor;
    uint32_t block = sub->next_block;
    while (op->ps->table.primary[gr_ps_slot(tensor->key, block)] != server) {
        block++;
    }
    uint32_t width = op->narrow != NULL ? sizeof(uint16_t) : sizeof(float);
    gr_frame frame = {.kind = GR_FRAME_DATA,
                      .comm = GR_PS_BLOCK,
                      .op_seq = op->ticket,
                      .message = op->item->number,
                      .segment = block,
                      .size_bytes = gr_ps_block_count(&tensor->cut, block) * width};
    uint64_t first = gr_ps_block_first(&tensor->cut, block);
    const float *vector = sub->next_vector == 0 ? op->data : op->states[sub->next_vector - 1];
    const void *payload = op->narrow != NULL ? (const void *)(op->narrow + first) : vector + first;
    if (op->pairs != NULL) {
        size_t size =
            gr_ps_put_pairs(vector + first, frame.size_bytes / sizeof(float), op->pairs + first);
        frame.fingerprint = size != 0;
        frame.size_bytes = size == 0                  ? frame.size_bytes
                           : size == GR_PS_PAIRS_NONE ? 0
                                                      : (uint32_t)size;
        payload = size == 0 ? payload : op->pairs + first;
    }
    gr_status status = gr_link_send(op->ps->endpoints[server].link, &frame, payload, &sub->sent);
    if (status == GR_OK) {
        if (is_answered(op, server)) {
            gr_ps_pace_went(&op->ps->endpoints[server].pace, mark_of(op, block),
                            block_bytes(tensor, block), gr_clock_now_us(&op->ps->clock));
            sub->on_way_bytes += block_bytes(tensor, block);
        }
        sub->next_vector = (sub->next_vector + 1) % (int)vectors_of(op);
        sub->next_block = sub->next_vector == 0 ? block + 1 : block;
        sub->to_send--;
    }
    return status;
}

/* Where the other servers are, and by which table all that follows goes; false: no room. */
static bool introduce(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    uint64_t ticket;
    for (; endpoint->introduced < ps->servers; endpoint->introduced++) {
        int other = endpoint->introduced;
        const gr_frame frame = {.kind = GR_FRAME_DATA,
                                .comm = GR_PS_PEER,
                                .segment = (uint32_t)other,
                                .size_bytes = (uint32_t)strlen(ps->endpoints[other].addresses)};
        if (other != server && gr_link_send(endpoint->link, &frame, ps->endpoints[other].addresses,
                                            &ticket) != GR_OK) {
            return false;
        }
    }
    if (!send_settings(ps, server)) {
        return false;
    }
    const gr_frame epoch = {
        .kind = GR_FRAME_DATA, .comm = GR_PS_EPOCH, .fingerprint = ps->table.epoch};
    endpoint->untold =
        endpoint->untold && gr_link_send(endpoint->link, &epoch, NULL, &ticket) != GR_OK;
    return !endpoint->untold;
}

static void send_some(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    endpoint->held = false;
    if (endpoint->lost || !introduce(ps, server)) {
        return;
    }
    while (endpoint->count > 0 && !endpoint->lost) {
        gr_ps_op *op = &ps->ops[endpoint->queue[endpoint->first]];
        gr_ps_subrequest *sub = &op->subs[server];
        gr_status status = sub->begun ? GR_OK : send_head(op, server);
        while (status == GR_OK && sub->to_send > 0 && may_go(op, server)) {
            status = send_block(op, server);
        }
        if (status == GR_OK || status == GR_E_AGAIN) {
            sub->lent = sub->lent && !gr_link_sent(endpoint->link, sub->sent); /* and off it goes */
        }
        if (status != GR_OK || endpoint->held) {
            return; /* no room; or the link has ended, as is told */
        }
        endpoint->first = (endpoint->first + 1) % GR_PS_OPS_MAX;
        endpoint->count--;
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static gr_status take_values(gr_ps *ps, int server, const gr_frame *frame, gr_ps_op *op,
                             gr_diag *diag)
{
    gr_ps_subrequest *sub = &op->subs[server];
    const gr_ps_tensor *tensor = &op->item->tensor;
    uint32_t block = frame->segment;
    if (sub->to_take == 0 || block >= tensor->cut.blocks ||
        ps->table.primary[gr_ps_slot(tensor->key, block)] != server ||
        frame->size_bytes !=
            gr_ps_block_count(&tensor->cut, block) * vectors_come(op) * sizeof(float)) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent values that nobody asked for");
    }
    gr_link *link = ps->endpoints[server].link;
    uint64_t first = gr_ps_block_first(&tensor->cut, block) * vectors_come(op);
    gr_status status = gr_link_read(link, op->values + first);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(link, NULL);
    if (sub->on_way_bytes >= frame->size_bytes) { /* it is the answer to a BLOCK */
        gr_ps_pace_came(&ps->endpoints[server].pace, mark_of(op, block), frame->size_bytes,
                        gr_clock_now_us(&ps->clock));
        sub->on_way_bytes -= frame->size_bytes;
    }
    sub->to_take--;
    op->version = frame->fingerprint < op->version ? frame->fingerprint : op->version;
    return GR_OK;
}

static gr_status take_answer(gr_ps *ps, int server, const gr_frame *frame, gr_ps_op *op,
                             gr_diag *diag)
{
    gr_link *link = ps->endpoints[server].link;
    if (frame->comm == GR_PS_ROWS && (op->kind == GR_PS_PULL_ROWS || op->kind == GR_PS_SCAN_ROWS)) {
        gr_status taken = op->kind == GR_PS_PULL_ROWS ? gr_ps_rows_receive(op, server, frame, diag)
                                                      : gr_ps_scan_receive(op, server, frame, diag);
        if (taken == GR_OK) {
            op->version = frame->fingerprint < op->version ? frame->fingerprint : op->version;
            close_subrequest(op, server);
        }
        return taken;
    }
    if (frame->size_bytes > GR_PS_SMALL_MAX) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent an answer of %u bytes", frame->size_bytes);
    }
    gr_status status = gr_link_read(link, ps->small);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(link, NULL);
    gr_ps_done done = {0};
    if (frame->comm == GR_PS_ENTRY && op->kind == GR_PS_LIST) {
        status = gr_ps_get_entry(ps->small, frame->size_bytes, op->answer, &ps->texts, diag);
    } else if (frame->comm == GR_PS_COUNTERS && op->kind == GR_PS_STATS) {
        status = gr_ps_get_counters(ps->small, frame->size_bytes, op->answer, diag);
    } else if (frame->comm == GR_PS_DONE) {
        status = gr_ps_get_done(ps->small, frame->size_bytes, &done, diag);
    } else {
        status = gr_fail(diag, GR_E_PROTOCOL, "it sent a message of kind %u", frame->comm);
    }
    if (status != GR_OK) {
        return status;
    }
    if (done.status != GR_OK) {
        gr_diag why = {0};
        (void)gr_fail_peer(&why, (gr_status)done.status, server, "%s",
                           done.text[0] != '\0' ? done.text
                                                : gr_status_text((gr_status)done.status));
        fail_op(op, &why);
    } else if (op->subs[server].to_take > 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent fewer values than it was asked for");
    }
    op->version = frame->fingerprint < op->version ? frame->fingerprint : op->version;
    close_subrequest(op, server);
    return GR_OK;
}

static gr_status take_table(gr_ps *ps, int server, const gr_frame *frame, gr_diag *diag)
{
    gr_ps_table table;
    gr_link *link = ps->endpoints[server].link;
    if (frame->size_bytes > GR_PS_SMALL_MAX) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent a table of %u bytes", frame->size_bytes);
    }
    gr_status status = gr_link_read(link, ps->small);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(link, NULL);
    status = gr_ps_get_table(ps->small, frame->size_bytes, &table, diag);
    if (status == GR_OK && table.servers != ps->servers) {
        status = gr_fail(diag, GR_E_PROTOCOL, "it sent a table of %d servers", table.servers);
    }
    if (status == GR_OK) {
        if (table.alive[server]) { /* it is the process that it names by its own number */
            ps->endpoints[server].incarnation = table.incarnation[server];
        }
        adopt(ps, &table);
    }
    return status;
}

static gr_status take_place(gr_ps *ps, int server, const gr_frame *frame, gr_diag *diag)
{
    gr_link *link = ps->endpoints[server].link;
    if (frame->segment >= (uint32_t)ps->servers ||
        frame->size_bytes >= sizeof ps->endpoints[0].moved[0].addresses) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent an address of server %u", frame->segment);
    }
    gr_ps_place place = {.incarnation = frame->fingerprint};
    gr_status status = gr_link_read(link, place.addresses);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(link, NULL);
    if (!gr_text_printable(place.addresses, frame->size_bytes, false)) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent an address of server %u", frame->segment);
    }
    gr_ps_join_addresses(place.addresses);
    gr_ps_place *moved = ps->endpoints[frame->segment].moved;
    moved[1] = place.incarnation != moved[0].incarnation ? moved[0] : moved[1];
    moved[0] = place;
    return GR_OK;
}

static void receive(gr_ps *ps, int server)
{
    gr_ps_endpoint *endpoint = &ps->endpoints[server];
    gr_status status = GR_OK;
    gr_diag diag = {0};
    while (status == GR_OK && !endpoint->lost) {
        gr_frame frame;
        status = gr_link_peek(endpoint->link, &frame);
        if (status != GR_OK) {
            break;
        }
        gr_ps_op *op = op_of(ps, server, &frame);
        if (frame.comm == GR_PS_TABLE) {
            status = take_table(ps, server, &frame, &diag);
        } else if (frame.comm == GR_PS_PEER) {
            status = take_place(ps, server, &frame, &diag);
        } else if (op == NULL && ps->table.epoch > 0) {
            gr_link_next(endpoint->link, NULL); /* by an older table */
        } else if (op == NULL) {
            status = gr_fail(&diag, GR_E_PROTOCOL, "it answered what it was not asked");
        } else if (frame.comm == GR_PS_VALUES) {
            status = take_values(ps, server, &frame, op, &diag);
        } else {
            status = take_answer(ps, server, &frame, op, &diag);
        }
    }
    if (status == GR_E_PEER_LOST) {
        lose(ps, server, GR_E_PEER_LOST, gr_link_diag(endpoint->link)->text);
    } else if (status < 0) {
        lose(ps, server, GR_E_PEER_LOST,
             diag.text[0] != '\0' ? diag.text : gr_link_diag(endpoint->link)->text);
        gr_link_close(endpoint->link, GR_E_PROTOCOL, diag.text);
    }
}

static void follow_changes(gr_ps *ps)
{
    int peer;
    bool ended;
    while (gr_mesh_next_change(ps->mesh, &peer, &ended)) {
        if (peer >= ps->servers) {
            continue;
        }
        gr_ps_endpoint *endpoint = &ps->endpoints[peer];
        gr_link *link = gr_mesh_link(ps->mesh, peer);
        if (ended) {
            endpoint->ended = true;
        }
        if (endpoint->renews) { /* it is, or was, the process before */
            if (!ended) {
                gr_link_close(link, GR_E_PEER_LOST, "another server has its number");
            }
            continue;
        }
        if (ended && endpoint->link == NULL) {
            lose(ps, peer, GR_E_PEER_LOST,
                 link != NULL ? gr_link_diag(link)->text : "it did not answer");
        } else if (!ended) {
            endpoint->link = link;
            endpoint->shares = gr_link_capabilities(link)->one_sided;
            endpoint->untold = ps->table.epoch > 0;
            if (ps->greeting != NULL && !endpoint->lost) {
                open_subrequest(ps->greeting, peer);
            } else if (ps->greeting == NULL) {
                prepare_words(ps, peer);
            }
        }
    }
}

/* Who could not be reached is lost: by the servers' table that may not matter. */
static void note_dial(gr_ps *ps)
{
    int server = ps->dial.peer_rank;
    if (ps->dial.status != GR_OK && server >= 0 && server < ps->servers &&
        ps->endpoints[server].link == NULL && !ps->endpoints[server].renews) {
        lose(ps, server, (gr_status)ps->dial.status, ps->dial.text);
        ps->endpoints[server].diag = ps->dial;
        if (ps->dial.status == GR_E_PEER_LOST) {
            (void)gr_fail_peer(&ps->endpoints[server].diag, GR_E_PEER_LOST, server,
                               "parameter server %d cannot be reached: has the job ended? %s",
                               server, ps->dial.text);
        }
    }
    ps->dial.status = GR_OK;
}

void gr_ps_progress(gr_ps *ps)
{
    if (gr_mesh_progress(ps->mesh, &ps->dial) != GR_OK) {
        note_dial(ps);
    }
    follow_changes(ps);
    for (int s = 0; s < ps->servers; s++) {
        gr_ps_endpoint *endpoint = &ps->endpoints[s];
        if (endpoint->takeover_by_us > 0 &&
            gr_clock_now_us(&ps->clock) >= endpoint->takeover_by_us) {
            fail_subrequests(ps, s);
        }
        if (endpoint->link != NULL && !endpoint->lost) {
            receive(ps, s);
        }
    }
    for (int s = 0; s < ps->servers; s++) { /* also what a new table has brought */
        gr_ps_endpoint *endpoint = &ps->endpoints[s];
        if (endpoint->renews && endpoint->ended) {
            reconnect(ps, s);
        }
        if (endpoint->link != NULL && !endpoint->lost) {
            send_some(ps, s);
        }
    }
}
