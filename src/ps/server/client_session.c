/* SPDX-License-Identifier: Apache-2.0 */

/* What one client says. All that is wrong with a request, but is a request, is its answer; what is
 * none at all ends the link. */

#include "ps/server/peer.h"

#include "base/codec.h"
#include "base/fail.h"
#include "coll/sparse/cast.h"

#include <stdlib.h>
#include <string.h>

/* ---- Life ------------------------------------------------------------------------------------ */

gr_ps_session *gr_ps_session_create(gr_ps_server *server, int peer, gr_link *link)
{
    gr_ps_session *session = calloc(1, sizeof *session);
    if (session != NULL) {
        session->server = server;
        session->peer = peer;
        session->link = link;
        session->shares = gr_link_capabilities(link)->one_sided &&
                          gr_mesh_shared(server->mesh, peer, &session->shared);
    }
    return session;
}

static void drop_receiving(gr_ps_session *session)
{
    gr_ps_buffer_give_back(session->server, session->receiving);
    session->receiving = NULL;
}

void gr_ps_session_destroy(gr_ps_session *session)
{
    gr_ps_server *server = session->server;
    for (uint32_t i = 0; i < session->answers.lent_count; i++) {
        gr_ps_store_give_back(
            server->store,
            session->answers.lent[(session->answers.lent_first + i) % GR_PS_LENT_MAX].loan);
    }
    for (int i = 0; i < GR_PS_OPS_MAX; i++) {
        gr_ps_gathered_drop(server, &session->tasks[i]);
        gr_ps_task_free(&session->tasks[i]);
    }
    drop_receiving(session);
    free(session->answers.pending);
    free(session->tensors);
    free(session);
}

void gr_ps_session_reset(gr_ps_session *session)
{
    gr_ps_store_forget(session->server->store, session->peer);
    for (int i = 0; i < GR_PS_OPS_MAX; i++) {
        gr_ps_gathered_drop(session->server, &session->tasks[i]);
        /* What is with the link stays until that has sent it. */
        if (session->tasks[i].state != GR_PS_TASK_SAID) {
            gr_ps_task_free(&session->tasks[i]);
        }
    }
    session->pushing = NULL;
    session->answers.pending_first = session->answers.pending_count =
        session->answers.pending_reserved = 0;
    session->answers.over_first = session->answers.over_count = 0;
    session->behind = true;
    session->untold = true;
}

/* ---- Data ------------------------------------------------------------------------------------ */

static uint64_t token_of(const gr_ps_session *session, const gr_ps_task *task, uint32_t block)
{
    return (uint64_t)(task - session->tasks) << 32 | block;
}

gr_ps_push gr_ps_task_push(const gr_ps_session *session, const gr_ps_task *task, uint32_t block,
                           uint64_t count)
{
    const gr_ps_request *request = &task->request;
    int mode = task->held->tensor->spec.consistency;
    bool steps = mode == GR_BSP || mode == GR_BSP_BACKUP;
    return (gr_ps_push){.client = session->peer,
                        .token = token_of(session, task, block),
                        .key = task->held->tensor->key,
                        .block = block,
                        .count = count,
                        .step = steps ? request->step : request->version,
                        .first = (int)request->first,
                        .shards = (int)request->count,
                        .sequence = request->sequence,
                        .rate = request->rate,
                        .factor = request->factor};
}

/* One block's values for the store; a buffer's go over to it. */
static void deliver(gr_ps_session *session, gr_ps_task *task, uint32_t block, const float *values,
                    gr_ps_buffer *buffer)
{
    gr_ps_server *server = session->server;
    const gr_ps_share *held = task->held;
    uint32_t count = gr_ps_block_count(&held->tensor->cut, block);
    task->to_answer++;
    server->traffic.pushes++;
    if (task->kind == GR_PS_SET) {
        gr_ps_store_set(server->store, session->peer, token_of(session, task, block),
                        held->tensor->key, block, values, count);
        gr_ps_buffer_give_back(server, buffer);
    } else {
        gr_ps_push push = gr_ps_task_push(session, task, block, count);
        if ((task->request.flags & GR_PS_ASK_VALUES) != 0 &&
            (task->request.flags & GR_PS_ASK_PUT) != 0) {
            push.out = gr_ps_values_place(session, task, block);
        }
        const gr_ps_data data = {.values = values,
                                 .lease = buffer != NULL ? &buffer->lease : &task->lease,
                                 .lasting = buffer != NULL};
        task->leases += buffer == NULL;
        gr_ps_store_push(server->store, &push, &data);
    }
    /* The task is open as long as this is not counted. */
    task->to_come--;
    task->next_block = block + 1;
    gr_ps_task_settle(session, task);
}

uint32_t gr_ps_next_led(const gr_ps_server *server, const gr_ps_share *held, uint32_t from)
{
    while (from < held->tensor->cut.blocks && !gr_ps_leads(server, held, from)) {
        from++;
    }
    return from;
}

/* Data in the client's memory go to the store, as many as a turn permits. */
static void push_shared(gr_ps_session *session, uint64_t until)
{
    gr_ps_task *task = session->pushing;
    const gr_ps_share *held = task->held;
    const float *values =
        (const float *)(const void *)(session->shared.heap + task->request.data_at);
    while (session->server->traffic.bytes_in < until && task->to_come > 0) {
        uint32_t block = gr_ps_next_led(session->server, held, task->next_block);
        session->server->traffic.bytes_in +=
            gr_ps_block_count(&held->tensor->cut, block) * sizeof(float);
        deliver(session, task, block, values + gr_ps_block_first(&held->tensor->cut, block), NULL);
    }
    if (task->to_come == 0) {
        session->pushing = NULL;
    }
}

static bool is_narrow(const gr_ps_task *task)
{
    return task->kind == GR_PS_PUSH && task->held->tensor->spec.gradient_type != GR_F32;
}

/* Returns true if the push is sparse: numbers and values. */
static bool is_sparse(const gr_ps_task *task, const gr_frame *frame)
{
    return task->kind == GR_PS_PUSH && !is_narrow(task) && frame->fingerprint == 1;
}

/* Returns true if the frame can be that BLOCK of the task. */
static bool fits(const gr_ps_session *session, const gr_ps_task *task, const gr_frame *frame)
{
    const gr_ps_share *held = task->held;
    uint32_t block = frame->segment;
    if (block < task->next_block || block >= held->tensor->cut.blocks ||
        (task->gathered_count > 0 && block != task->next_block) ||
        !gr_ps_leads(session->server, held, block)) {
        return false;
    }
    size_t size = gr_ps_block_count(&held->tensor->cut, block) *
                  (is_narrow(task) ? sizeof(uint16_t) : sizeof(float));
    return is_sparse(task, frame) ? frame->size_bytes < size : frame->size_bytes == size;
}

/* What has come, as the store wants it, in place of *buffer, which is given back; NULL: no memory.
 * GR_E_PROTOCOL: it makes no sense. */
static gr_status unpack(gr_ps_server *server, const gr_ps_task *task, const gr_frame *frame,
                        gr_ps_buffer **buffer, gr_diag *diag)
{
    const gr_ps_buffer *packed = *buffer;
    uint32_t count = gr_ps_block_count(&task->held->tensor->cut, frame->segment);
    gr_ps_buffer *whole = gr_ps_buffer_take(server, count * sizeof(float));
    gr_status status = GR_OK;
    if (whole != NULL && is_narrow(task)) {
        gr_cast_up((gr_dtype)task->held->tensor->spec.gradient_type, whole->values,
                   (const uint16_t *)(const void *)packed->values, count);
    } else if (whole != NULL) {
        status = gr_ps_get_pairs(packed->values, frame->size_bytes, whole->values, count, diag);
    }
    gr_ps_buffer_give_back(server, *buffer);
    if (status != GR_OK) {
        gr_ps_buffer_give_back(server, whole);
        whole = NULL;
    }
    *buffer = whole;
    return status;
}

/* The BLOCK at the head. GR_OK: taken; GR_PENDING: some of it has not come. */
static gr_status take_block(gr_ps_session *session, const gr_frame *frame, gr_diag *diag)
{
    gr_ps_server *server = session->server;
    gr_ps_task *task = &session->tasks[frame->op_seq % GR_PS_OPS_MAX];
    if (task->state != GR_PS_TASK_OPEN || task->ticket != frame->op_seq || task->to_come == 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "values that belong to nothing it asked for");
    }
    uint32_t block = frame->segment;
    const gr_ps_share *held = task->held;
    if (held != NULL && !fits(session, task, frame)) {
        return gr_fail(diag, GR_E_PROTOCOL, "%u bytes as block %u, which it should not",
                       frame->size_bytes, block);
    }
    if (frame->size_bytes > GR_PS_BLOCK_MAX * sizeof(float)) {
        return gr_fail(diag, GR_E_PROTOCOL, "%u bytes as block %u", frame->size_bytes, block);
    }
    if (session->receiving == NULL) {
        session->receiving = gr_ps_buffer_take(server, frame->size_bytes);
    }
    if (session->receiving != NULL) {
        gr_status status = gr_link_read(session->link, session->receiving->values);
        if (status != GR_OK) {
            return status;
        }
    }
    gr_link_next(session->link, NULL);
    server->traffic.bytes_in += frame->size_bytes;
    gr_ps_buffer *buffer = session->receiving;
    session->receiving = NULL;
    if (buffer != NULL && held != NULL && (is_narrow(task) || is_sparse(task, frame))) {
        gr_status status = unpack(server, task, frame, &buffer, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    if (buffer == NULL) {
        gr_ps_task_fail(task, GR_E_NO_MEMORY,
                        "the server has no memory for what is pushed; push it again");
    }
    if (task->kind == GR_PS_RESTORE) {
        gr_ps_restore_take(session, task, block, buffer);
        return GR_OK;
    }
    if (buffer != NULL && held != NULL) {
        deliver(session, task, block, buffer->values, buffer);
        return GR_OK;
    }
    gr_ps_buffer_give_back(server, buffer);
    if (held != NULL && (task->request.flags & GR_PS_ASK_VALUES) != 0) {
        task->to_give--;
        session->answers.pending_reserved--;
    }
    task->to_come--;
    task->next_block = block + 1;
    gr_ps_task_settle(session, task);
    return GR_OK;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* Returns true if the tensor lies there in the client's memory. */
static bool in_heap(const gr_ps_session *session, const gr_ps_share *held, uint64_t at)
{
    uint64_t size = held->tensor->cut.elements * sizeof(float), heap = session->shared.heap_bytes;
    return session->shares && at <= heap && size <= heap - at;
}

gr_status gr_ps_task_judge(const gr_ps_session *session, const gr_ps_task *task,
                           const gr_frame *frame, gr_diag *diag)
{
    const gr_ps_share *held =
        frame->message < session->tensor_count ? session->tensors[frame->message] : NULL;
    const gr_ps_request *request = &task->request;
    if (!session->greeted) {
        return gr_fail(diag, GR_E_INVALID, "a client that has not greeted the server asks nothing");
    }
    if (held == NULL) {
        return gr_fail(diag, GR_E_NOT_FOUND,
                       "the server knows no tensor %u of this client; declare it first",
                       frame->message);
    }
    if (held->gone > 0) {
        return gr_fail(diag, GR_E_PEER_LOST,
                       "blocks of the tensor are lost with the servers that had them");
    }
    bool rows = gr_ps_is_of_rows(task->kind);
    if (rows != (held->tensor->spec.columns > 0)) {
        return gr_fail(diag, GR_E_INVALID,
                       rows ? "the tensor is no table: push and pull all of it"
                            : "the tensor is a table: push and pull rows of it");
    }
    if (!rows && frame->segment != held->led) {
        return gr_fail(diag, GR_E_INVALID,
                       "the client takes the server for that of %u of the tensor's blocks, but it "
                       "has %u: their lists of servers differ",
                       frame->segment, held->led);
    }
    bool pulls =
        task->kind == GR_PS_PULL || task->kind == GR_PS_PULL_ROWS || task->kind == GR_PS_SCAN_ROWS;
    if (!pulls && gr_ps_reads(session)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a client without a worker's number reads only; connect with one to push");
    }
    if (((request->flags & GR_PS_ASK_SHARED) != 0 && !in_heap(session, held, request->data_at)) ||
        ((request->flags & GR_PS_ASK_PUT) != 0 && !in_heap(session, held, request->values_at))) {
        return gr_fail(diag, GR_E_INVALID, "the tensor does not lie in the client's shared memory");
    }
    return GR_OK;
}

gr_ps_task *gr_ps_task_open(gr_ps_session *session, const gr_frame *frame)
{
    gr_ps_task *task = &session->tasks[frame->op_seq % GR_PS_OPS_MAX];
    if (task->state == GR_PS_TASK_SAID && gr_link_sent(session->link, task->said)) {
        gr_ps_task_free(task);
    }
    if (task->state != GR_PS_TASK_FREE) {
        return NULL;
    }
    task->state = GR_PS_TASK_OPEN;
    task->session = session;
    task->lease.shared = true;
    task->kind = (uint8_t)frame->comm;
    task->ticket = frame->op_seq;
    task->version = UINT64_MAX;
    return task;
}

static gr_status begin(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame,
                       gr_diag *diag)
{
    gr_diag why = {0};
    gr_status status = gr_ps_get_request(session->small, frame->size_bytes, &task->request, diag);
    if (status != GR_OK) {
        return status;
    }
    bool brings = frame->comm != GR_PS_PULL;
    bool asks = frame->comm == GR_PS_PULL || (task->request.flags & GR_PS_ASK_VALUES) != 0;
    bool shared = brings && (task->request.flags & GR_PS_ASK_SHARED) != 0;
    uint32_t vectors = frame->comm == GR_PS_RESTORE ? 1 + task->request.count : 1;
    bool whole = (task->request.flags & GR_PS_ASK_WHOLE) != 0;
    if (whole && (brings || (task->request.flags & GR_PS_ASK_PUT) != 0)) {
        return gr_fail(diag, GR_E_PROTOCOL, "whole blocks where they never are");
    }
    if (frame->comm == GR_PS_SET && asks) {
        return gr_fail(diag, GR_E_PROTOCOL, "initial values that ask for values");
    }
    if (shared && frame->comm == GR_PS_PUSH && frame->message < session->tensor_count &&
        session->tensors[frame->message] != NULL &&
        session->tensors[frame->message]->tensor->spec.gradient_type != GR_F32) {
        return gr_fail(diag, GR_E_PROTOCOL, "gradients of 16 bits by their place");
    }
    if (vectors > 1 + GR_PS_STATES_MAX || (frame->comm == GR_PS_RESTORE && (asks || shared))) {
        return gr_fail(diag, GR_E_PROTOCOL, "a checkpoint's values as they never come");
    }
    status = gr_ps_task_judge(session, task, frame, &why);
    if (status == GR_OK && asks && !gr_ps_pending_reserve(session, frame->segment)) {
        status = gr_fail(&why, GR_E_NO_MEMORY,
                         "the client has asked the server for more than it keeps in mind");
    }
    if (status != GR_OK) {
        gr_ps_task_fail(task, status, why.text);
        task->to_come = brings && !shared ? frame->segment * vectors : 0;
        gr_ps_task_settle(session, task);
        return GR_OK;
    }
    task->held = session->tensors[frame->message];
    task->to_come = brings ? task->held->led * vectors : 0;
    task->to_give = asks ? task->held->led : 0;
    if (shared && task->to_come > 0) {
        session->pushing = task;
    } else if (!brings) {
        uint32_t block = 0;
        for (uint32_t i = 0; i < task->held->led; i++, block++) {
            block = gr_ps_next_led(session->server, task->held, block);
            gr_ps_pending_add(session, (uint32_t)(task - session->tasks), block,
                              task->request.version);
        }
    }
    gr_ps_task_settle(session, task);
    return GR_OK;
}

/* Tensors are those of one run: of the first worker with one that declares any. Values that another
 * run has left look like this run's own if they have had as many updates. A reader is of none. */
static gr_status check_run(const gr_ps_session *session, gr_diag *why)
{
    const char *kept = session->server->run;
    if (kept[0] == '\0' || session->run[0] == '\0' || gr_ps_reads(session) ||
        strcmp(kept, session->run) == 0) {
        return GR_OK;
    }
    return gr_fail(why, GR_E_INVALID,
                   "the parameter servers keep tensors of run %s, and this worker is of run %s: "
                   "start servers anew for each run, or set GRADUS_RUN=%s to go on with what they "
                   "keep",
                   kept, session->run, kept);
}

static void claim(gr_ps_session *session)
{
    if (session->server->run[0] == '\0' && !gr_ps_reads(session)) {
        memcpy(session->server->run, session->run, sizeof session->run);
    }
}

static gr_status greet(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame,
                       gr_diag *diag)
{
    const gr_ps_server *server = session->server;
    gr_ps_hello hello;
    gr_status status = gr_ps_get_hello(session->small, frame->size_bytes, &hello, diag);
    if (status != GR_OK) {
        return status;
    }
    session->greeted =
        (int)hello.servers == server->table.servers && (int)hello.number == server->number;
    if (!session->greeted) {
        gr_diag why = {0};
        (void)gr_fail(
            &why, GR_E_INVALID,
            "the client takes it for server %u of %u, but it is server %d of %d: list the "
            "servers in the order of their numbers",
            hello.number, hello.servers, server->number, server->table.servers);
        gr_ps_task_fail(task, GR_E_INVALID, why.text);
    }
    gr_diag other = {0};
    memcpy(session->run, hello.run, sizeof session->run);
    if (session->greeted && check_run(session, &other) != GR_OK) {
        session->greeted = false;
        session->foreign = true;
        gr_ps_task_fail(task, GR_E_INVALID, other.text);
    }
    session->untold = session->greeted;
    gr_ps_task_settle(session, task);
    return GR_OK;
}

static gr_status declare(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame,
                         gr_diag *diag)
{
    gr_ps_spec spec;
    gr_ps_texts texts;
    gr_diag why = {0};
    gr_status status = gr_ps_get_spec(session->small, frame->size_bytes, &spec, &texts, diag);
    if (status != GR_OK) {
        return status;
    }
    if (frame->message >= GR_PS_TENSORS_MAX) {
        return gr_fail(diag, GR_E_PROTOCOL, "a tensor number beyond %d", GR_PS_TENSORS_MAX);
    }
    if (frame->message >= session->tensor_count) {
        uint32_t count = frame->message < 32 ? 64 : 2 * frame->message;
        const gr_ps_share **tensors =
            realloc((void *)session->tensors, count * sizeof(const gr_ps_share *));
        if (tensors == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a client's tensors");
        }
        for (uint32_t i = session->tensor_count; i < count; i++) {
            tensors[i] = NULL;
        }
        session->tensors = tensors;
        session->tensor_count = count;
    }
    /* It may say so again, when servers were lost meanwhile, or of another one, when this one was
     * refused elsewhere. */
    session->tensors[frame->message] = NULL;
    status = check_run(session, &why);
    if (status == GR_OK) {
        status = gr_ps_server_declare(session->server, session->peer, &spec,
                                      &session->tensors[frame->message], &why);
    }
    if (status == GR_OK) {
        claim(session);
    }
    if (status != GR_OK) {
        gr_ps_task_fail(task, status, why.text);
    }
    gr_ps_task_settle(session, task);
    return GR_OK;
}

/* The tensor with this key (0: any), from `index` on. */
static bool find_entry(const gr_ps_store *store, uint64_t index, uint64_t key,
                       gr_ps_tensor_info *info_out)
{
    while (gr_ps_store_info(store, index++, info_out)) {
        if (key == 0 || info_out->tensor->key == key) {
            return true;
        }
    }
    return false;
}

static void answer_entry(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame)
{
    gr_ps_tensor_info info;
    uint8_t reply[GR_PS_SMALL_MAX];
    if (!find_entry(session->server->store, frame->segment, frame->fingerprint, &info)) {
        gr_ps_task_fail(task, GR_E_NOT_FOUND, "the server has no more tensors");
        gr_ps_task_settle(session, task);
        return;
    }
    const gr_ps_tensor *tensor = info.tensor;
    const gr_ps_entry entry = {.tensor = tensor->spec,
                               .blocks = tensor->spec.columns > 0 ? 0 : tensor->cut.blocks,
                               .block_elements = tensor->cut.block,
                               .rows = info.rows,
                               .states = info.states,
                               .version_least = info.led > 0 ? info.version_min : UINT64_MAX,
                               .version_most = info.version_max};
    gr_ps_task_reply(session, task, GR_PS_ENTRY, reply, gr_ps_put_entry(&entry, reply));
}

static void answer_counters(gr_ps_session *session, gr_ps_task *task)
{
    const gr_ps_server *server = session->server;
    gr_ps_stats stats;
    gr_ps_store_get_stats(server->store, &stats);
    gr_ps_counters counters = {.clients = (uint64_t)server->here_count,
                               .tensors = stats.tensors,
                               .blocks = stats.blocks_led,
                               .bytes = stats.bytes,
                               .pushes = server->traffic.pushes,
                               .pulls = server->traffic.pulls,
                               .updates = stats.updates,
                               .duplicates = stats.pushes_repeated,
                               .late = stats.pushes_late,
                               .refused = stats.pushes_refused,
                               .bytes_in = server->traffic.bytes_in,
                               .bytes_out = server->traffic.bytes_out,
                               .unreplicated = gr_ps_table_unreplicated(server)};
    for (uint64_t i = 0; i < GR_PS_STALENESS_BINS; i++) {
        counters.staleness_sum += i * stats.staleness[i];
        counters.staleness_most = stats.staleness[i] > 0 ? i : counters.staleness_most;
    }
    uint8_t reply[GR_PS_SMALL_MAX];
    gr_ps_task_reply(session, task, GR_PS_COUNTERS, reply, gr_ps_put_counters(&counters, reply));
}

/* A message whose payload is in session->small. */
static gr_status take_request(gr_ps_session *session, const gr_frame *frame, gr_diag *diag)
{
    bool known = frame->comm > 0 && frame->comm <= GR_PS_STATS && frame->comm != GR_PS_BLOCK;
    if (!known && frame->comm != GR_PS_RESTORE && frame->comm != GR_PS_SCAN_ROWS) {
        return gr_fail(diag, GR_E_PROTOCOL, "a message of kind %u, which no client sends",
                       frame->comm);
    }
    gr_ps_task *task = gr_ps_task_open(session, frame);
    if (task == NULL) {
        return gr_fail(diag, GR_E_PROTOCOL, "a ticket that is in use");
    }
    switch (frame->comm) {
    case GR_PS_HELLO:
        return greet(session, task, frame, diag);
    case GR_PS_DECLARE:
        return declare(session, task, frame, diag);
    case GR_PS_CLOCK:
        if (gr_ps_reads(session)) {
            gr_ps_task_fail(task, GR_E_INVALID, "a client without a worker's number has no clock");
        } else {
            session->clock =
                frame->fingerprint > session->clock ? frame->fingerprint : session->clock;
            gr_ps_store_clock(session->server->store, session->peer, session->clock);
        }
        gr_ps_task_settle(session, task);
        return GR_OK;
    case GR_PS_LIST:
        answer_entry(session, task, frame);
        return GR_OK;
    case GR_PS_STATS:
        answer_counters(session, task);
        return GR_OK;
    case GR_PS_SCAN_ROWS:
        return gr_ps_rows_scan(session, task, frame, diag);
    default:
        return begin(session, task, frame, diag);
    }
}

/* A client says which table it goes by from here on. One that is ahead waits for this server. */
static gr_status take_epoch(gr_ps_session *session, const gr_frame *frame)
{
    uint64_t epoch = session->server->table.epoch;
    if (frame->fingerprint > epoch) {
        return GR_PENDING;
    }
    session->behind = frame->fingerprint < epoch;
    session->untold = session->untold || session->behind;
    gr_link_next(session->link, NULL);
    return GR_OK;
}

static gr_status take_peer(gr_ps_session *session, const gr_frame *frame, gr_diag *diag)
{
    if (frame->segment >= GR_PS_SERVERS_MAX || frame->size_bytes >= GR_PS_SMALL_MAX) {
        return gr_fail(diag, GR_E_PROTOCOL, "an address of server %u", frame->segment);
    }
    gr_status status = gr_link_read(session->link, session->small);
    if (status != GR_OK) {
        return status;
    }
    session->small[frame->size_bytes] = '\0';
    if (!gr_text_printable((const char *)session->small, frame->size_bytes, false)) {
        return gr_fail(diag, GR_E_PROTOCOL, "an address of server %u", frame->segment);
    }
    gr_link_next(session->link, NULL);
    const gr_ps_peer *peer = session->server->peers[frame->segment];
    if (peer != NULL &&
        peer->incarnation == 0) { /* else it says so itself: a client's list is old */
        gr_ps_peer_learn(session->server, (int)frame->segment, (const char *)session->small);
    }
    return GR_OK;
}

/* The answer to the ticket before is on its way: the client asks anew by a new table. */
static bool is_in_use(gr_ps_session *session, const gr_frame *frame)
{
    const gr_ps_task *task = &session->tasks[frame->op_seq % GR_PS_OPS_MAX];
    return task->state == GR_PS_TASK_OVER ||
           (task->state == GR_PS_TASK_SAID && !gr_link_sent(session->link, task->said));
}

static gr_status take_message(gr_ps_session *session, const gr_frame *frame, gr_diag *diag)
{
    if (frame->comm == GR_PS_EPOCH) {
        return take_epoch(session, frame);
    }
    /* Who the client is, its tensors and its clock are the same by any table, and may be said but
     * once. */
    bool lasts =
        frame->comm == GR_PS_HELLO || frame->comm == GR_PS_DECLARE || frame->comm == GR_PS_CLOCK;
    if (session->behind && !lasts) {
        drop_receiving(session);
        gr_link_next(session->link, NULL);
        return GR_OK;
    }
    if (frame->comm == GR_PS_PEER) {
        return take_peer(session, frame, diag);
    }
    if (session->foreign) {
        return gr_fail(diag, GR_E_PROTOCOL, "requests of another run, which was refused");
    }
    if (!session->server->active && frame->comm != GR_PS_HELLO) {
        return GR_PENDING;
    }
    if (frame->comm == GR_PS_BLOCK) {
        return take_block(session, frame, diag);
    }
    if (session->server->table.epoch > 0 && is_in_use(session, frame)) {
        return GR_E_AGAIN;
    }
    if (frame->comm != GR_PS_SCAN_ROWS && gr_ps_is_of_rows(frame->comm)) {
        return gr_ps_rows_take(session, frame, diag);
    }
    if (frame->size_bytes > GR_PS_SMALL_MAX) {
        return gr_fail(diag, GR_E_PROTOCOL, "a request of %u bytes", frame->size_bytes);
    }
    gr_status status = gr_link_read(session->link, session->small);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(session->link, NULL);
    return take_request(session, frame, diag);
}

gr_status gr_ps_session_receive(gr_ps_session *session, gr_diag *diag)
{
    uint64_t until = session->server->traffic.bytes_in + GR_PS_TURN_BYTES;
    for (int i = 0; i < GR_PS_TURN_MESSAGES && session->server->traffic.bytes_in < until; i++) {
        gr_frame frame;
        if (session->pushing != NULL && !session->server->active) {
            return GR_OK;
        }
        if (session->pushing != NULL) {
            push_shared(session, until);
            continue;
        }
        gr_status status = gr_link_peek(session->link, &frame);
        if (status == GR_OK) {
            status = take_message(session, &frame, diag);
        }
        if (status == GR_PENDING) {
            return GR_OK;
        }
        if (status != GR_OK) {
            return status == GR_E_AGAIN ? GR_PENDING : status;
        }
    }
    return GR_PENDING;
}
