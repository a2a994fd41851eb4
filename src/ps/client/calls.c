/* SPDX-License-Identifier: Apache-2.0 */

/* The face of a client: each call makes one operation, and perhaps waits for it. */

#include "ps/client/client.h"

#include "base/fail.h"
#include "coll/sparse/cast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int gr_ps_servers(const gr_ps *ps)
{
    return ps != NULL ? ps->servers : 0;
}

const gr_diag *gr_ps_last_error(const gr_ps *ps)
{
    static const gr_diag no_connection = {
        .status = GR_E_INVALID, .peer_rank = -1, .text = "the connection is NULL"};
    return ps != NULL ? &ps->error : &no_connection;
}

gr_status gr_ps_alloc(gr_ps *ps, size_t size_bytes, void **mem_out)
{
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    gr_status status = gr_mesh_alloc(ps->mesh, size_bytes, mem_out);
    return status == GR_OK
               ? status
               : gr_fail(&ps->error, status, "no %zu bytes of memory for tensors", size_bytes);
}

void gr_ps_free(gr_ps *ps, void *mem)
{
    if (ps != NULL) {
        gr_mesh_free(ps->mesh, mem);
    }
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* One more, not declared yet; NULL: no memory. */
static gr_ps_item *make_known(gr_ps *ps, const gr_ps_spec *spec)
{
    if (ps->known_count == ps->known_room) {
        uint32_t room = ps->known_room > 0 ? 2 * ps->known_room : 64;
        gr_ps_item **known = realloc((void *)ps->known, room * sizeof *known);
        if (known == NULL) {
            return NULL;
        }
        ps->known = known;
        ps->known_room = room;
    }
    gr_ps_item *known = calloc(1, sizeof *known + gr_ps_texts_bytes(spec));
    if (known == NULL) {
        return NULL;
    }
    known->tensor = gr_ps_tensor_of(spec);
    gr_ps_copy_texts(&known->tensor.spec, (char *)(known + 1));
    known->number = ps->known_count;
    gr_ps_item_count(ps, known);
    ps->known[ps->known_count++] = known;
    return known;
}

/* No server has it, or not all of them; its number is free again. */
static void forget_known(gr_ps *ps, gr_ps_item *item)
{
    if (item->number + 1 == ps->known_count) {
        ps->known_count--;
        free(item);
    }
}

static bool same_spec(const gr_ps_spec *a, const gr_ps_spec *b)
{
    return strcmp(a->name, b->name) == 0 && a->elements == b->elements &&
           a->consistency == b->consistency && a->shards == b->shards &&
           a->aggregate == b->aggregate && a->total == b->total && a->staleness == b->staleness &&
           !a->adapt_rate == !b->adapt_rate && !a->refuse_not_finite == !b->refuse_not_finite &&
           a->gradient_type == b->gradient_type && a->columns == b->columns && a->seed == b->seed &&
           a->deviation == b->deviation &&
           strcmp(a->optimizer, b->optimizer != NULL ? b->optimizer : "") == 0;
}

gr_status gr_ps_declare(gr_ps *ps, const gr_ps_spec *tensor, int *id_out)
{
    uint8_t body[GR_PS_SMALL_MAX];
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    gr_status status = gr_ps_check_spec(tensor, &ps->error);
    if (status != GR_OK) {
        return status;
    }
    for (uint32_t i = 0; i < ps->known_count; i++) {
        if (ps->known[i]->declared && same_spec(&ps->known[i]->tensor.spec, tensor)) {
            *id_out = (int)i;
            return GR_OK;
        }
    }
    if (ps->known_count == GR_PS_TENSORS_MAX) {
        return gr_fail(&ps->error, GR_E_NO_MEMORY, "a connection declares at most %d tensors",
                       GR_PS_TENSORS_MAX);
    }
    gr_ps_item *known = make_known(ps, tensor);
    if (known == NULL) {
        return gr_fail(&ps->error, GR_E_NO_MEMORY, "no memory for tensor \"%s\"", tensor->name);
    }
    gr_ps_op *op = gr_ps_op_open(ps, GR_PS_DECLARE, known);
    if (op == NULL) {
        forget_known(ps, known);
        return GR_E_NO_MEMORY;
    }
    op->body = body;
    op->body_bytes = (uint32_t)gr_ps_put_spec(&known->tensor.spec, body);
    gr_ps_op_send(op, GR_PS_TO_ALL);
    status = gr_ps_op_wait(op, GR_NEVER, NULL);
    if (status != GR_OK) {
        forget_known(ps, known);
        return status;
    }
    known->declared = true;
    *id_out = (int)known->number;
    return GR_OK;
}

gr_ps_op *gr_ps_open_on(gr_ps *ps, int id, gr_ps_kind kind, gr_status *status_out)
{
    if (ps == NULL) {
        *status_out = GR_E_INVALID;
        return NULL;
    }
    if (id < 0 || (uint32_t)id >= ps->known_count || !ps->known[id]->declared) {
        *status_out = gr_fail(&ps->error, GR_E_INVALID,
                              "there is no tensor %d on this connection; declare it first", id);
        return NULL;
    }
    const gr_ps_spec *spec = &ps->known[id]->tensor.spec;
    bool rows = gr_ps_is_of_rows((int)kind);
    if (rows != (spec->columns > 0)) {
        *status_out =
            gr_fail(&ps->error, GR_E_INVALID,
                    rows ? "tensor \"%s\" is no table: push and pull all of it"
                         : "tensor \"%s\" is a table: only rows of it are pushed and pulled",
                    spec->name);
        return NULL;
    }
    gr_ps_op *op = gr_ps_op_open(ps, kind, ps->known[id]);
    *status_out = op != NULL ? GR_OK : GR_E_NO_MEMORY;
    return op;
}

gr_status gr_ps_set(gr_ps *ps, int id, const float *values)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_SET, &status);
    if (op == NULL) {
        return status;
    }
    op->data = values;
    gr_ps_op_send(op, GR_PS_TO_HOLDERS);
    return gr_ps_op_wait(op, GR_NEVER, NULL);
}

/* ---- Push and pull --------------------------------------------------------------------------- */

/* Piece by piece, since a loop that may end at any element is not done with vectors. */
static uint64_t first_not_finite(const float *values, uint64_t count)
{
    enum { PIECE = 1024 };
    for (uint64_t at = 0; at < count; at += PIECE) {
        uint64_t end = count - at < PIECE ? count : at + PIECE;
        int bad = 0;
        for (uint64_t i = at; i < end; i++) {
            bad |= !isfinite(values[i]);
        }
        while (bad != 0 && isfinite(values[at])) {
            at++;
        }
        if (bad != 0) {
            return at;
        }
    }
    return count;
}

/* Before anything is sent, so that no server has a part of what another one refuses. */
gr_status gr_ps_check_finite(gr_ps *ps, const gr_ps_spec *spec, const float *values, uint64_t count)
{
    uint64_t at = spec->refuse_not_finite ? first_not_finite(values, count) : count;
    return at == count
               ? GR_OK
               : gr_fail(&ps->error, GR_E_NOT_FINITE,
                         "worker %d pushes a gradient for tensor \"%s\" whose element %llu is %g; "
                         "nothing was changed",
                         ps->worker, spec->name, (unsigned long long)at, (double)values[at]);
}

gr_status gr_ps_fill_push(gr_ps *ps, const gr_ps_gradient *push, gr_ps_request *request_out)
{
    if (push->first < 0 || push->count < 0 || !isfinite(push->rate) || !isfinite(push->factor)) {
        return gr_fail(&ps->error, GR_E_INVALID,
                       "shards %d, %d or rate %g or factor %g of a push cannot be", push->first,
                       push->count, push->rate, (double)push->factor);
    }
    *request_out = (gr_ps_request){.first = (uint32_t)push->first,
                                   .count = (uint32_t)push->count,
                                   .step = push->step,
                                   .version = push->version,
                                   .sequence = push->sequence,
                                   .rate = push->rate,
                                   .factor = push->factor != 0.0f ? push->factor : 1.0f};
    return GR_OK;
}

/* What travels in place of the gradient. What is too large for its type becomes infinite. */
static gr_status make_narrow(gr_ps_op *op)
{
    const gr_ps_spec *spec = &op->item->tensor.spec;
    gr_dtype type = (gr_dtype)spec->gradient_type;
    if (type == GR_F32) {
        return GR_OK;
    }
    op->narrow = op->item->narrow;
    op->item->narrow = NULL;
    if (op->narrow == NULL && (op->narrow = malloc(spec->elements * sizeof *op->narrow)) == NULL) {
        return gr_fail(&op->ps->error, GR_E_NO_MEMORY,
                       "no memory for the gradient of tensor \"%s\" in %s", spec->name,
                       gr_dtype_name(type));
    }
    gr_cast_down(type, op->narrow, op->data, spec->elements);
    uint16_t infinite = type == GR_F16 ? 0x7c00 : 0x7f80;
    for (uint64_t i = 0; spec->refuse_not_finite && i < spec->elements; i++) {
        if ((op->narrow[i] & infinite) == infinite) {
            return gr_fail(&op->ps->error, GR_E_NOT_FINITE,
                           "element %llu of a gradient for tensor \"%s\" is %g, too large for %s; "
                           "nothing was changed",
                           (unsigned long long)i, spec->name, (double)op->data[i],
                           gr_dtype_name(type));
        }
    }
    return GR_OK;
}

/* Nothing is sent yet: who waits for it sends it at another pace. */
static gr_status open_push(gr_ps *ps, int id, const gr_ps_gradient *push, float *values,
                           gr_ps_op **op_out)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_PUSH, &status);
    if (op == NULL) {
        return status;
    }
    status = gr_ps_fill_push(ps, push, &op->request);
    if (status == GR_OK) {
        status = gr_ps_check_finite(ps, &op->item->tensor.spec, push->values,
                                    op->item->tensor.spec.elements);
    }
    op->data = push->values;
    op->values = values;
    if (status == GR_OK) {
        status = make_narrow(op);
    }
    if (status == GR_OK && push->sparse != 0 && op->narrow == NULL) {
        size_t elements = (size_t)op->item->tensor.spec.elements;
        op->pairs =
            op->item->pairs != NULL ? op->item->pairs : malloc(elements * sizeof *op->pairs);
        op->item->pairs = NULL; /* without memory it travels as it is */
    }
    if (status != GR_OK) {
        gr_ps_op_drop(op);
        return status;
    }
    op->request.flags = values != NULL ? GR_PS_ASK_VALUES : 0;
    gr_ps_op_send(op, GR_PS_TO_HOLDERS);
    *op_out = op;
    return GR_OK;
}

gr_status gr_ps_push_start(gr_ps *ps, int id, const gr_ps_gradient *push, gr_ps_op **op_out)
{
    return gr_ps_push_pull_start(ps, id, push, NULL, op_out);
}

gr_status gr_ps_push_pull_start(gr_ps *ps, int id, const gr_ps_gradient *push, float *values,
                                gr_ps_op **op_out)
{
    gr_status status = open_push(ps, id, push, values, op_out);
    if (status == GR_OK) {
        gr_ps_progress(ps);
    }
    return status;
}

gr_status gr_ps_start_pull(gr_ps *ps, int id, const gr_ps_request *request, float *values,
                           gr_ps_op **op_out)
{
    gr_status status;
    gr_ps_op *op = gr_ps_open_on(ps, id, GR_PS_PULL, &status);
    if (op == NULL) {
        return status;
    }
    op->values = values;
    op->request = *request;
    gr_ps_op_send(op, GR_PS_TO_HOLDERS);
    gr_ps_progress(ps);
    *op_out = op;
    return GR_OK;
}

gr_status gr_ps_pull_start(gr_ps *ps, int id, uint64_t version, float *values, gr_ps_op **op_out)
{
    return gr_ps_start_pull(ps, id, &(gr_ps_request){.version = version}, values, op_out);
}

gr_status gr_ps_push_run(gr_ps *ps, int id, const gr_ps_gradient *push)
{
    gr_ps_op *op;
    gr_status status = open_push(ps, id, push, NULL, &op);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, NULL) : status;
}

gr_status gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values, uint64_t *version_out)
{
    gr_ps_op *op;
    gr_status status = gr_ps_pull_start(ps, id, version, values, &op);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, version_out) : status;
}

gr_status gr_ps_push_pull_run(gr_ps *ps, int id, const gr_ps_gradient *push, float *values,
                              uint64_t *version_out)
{
    gr_ps_op *op;
    gr_status status = open_push(ps, id, push, values, &op);
    return status == GR_OK ? gr_ps_op_wait(op, GR_NEVER, version_out) : status;
}

gr_status gr_ps_test(gr_ps_op *op, uint64_t *version_out)
{
    if (op == NULL) {
        return GR_E_INVALID;
    }
    gr_ps_progress(op->ps);
    return gr_ps_op_over(op) ? gr_ps_op_close(op, version_out) : GR_PENDING;
}

gr_status gr_ps_wait(gr_ps_op *op, int64_t timeout_us, uint64_t *version_out)
{
    return op == NULL
               ? GR_E_INVALID
               : gr_ps_op_wait(op, gr_clock_deadline_us(&op->ps->clock, timeout_us), version_out);
}

gr_status gr_ps_clock(gr_ps *ps, uint64_t clock)
{
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    gr_ps_op *op = gr_ps_op_open(ps, GR_PS_CLOCK, NULL);
    if (op == NULL) {
        return GR_E_NO_MEMORY;
    }
    op->argument = clock;
    ps->worker_clock = clock > ps->worker_clock ? clock : ps->worker_clock;
    gr_ps_op_send(op, GR_PS_TO_ALL);
    return gr_ps_op_wait(op, GR_NEVER, NULL);
}

/* ---- What servers know ----------------------------------------------------------------------- */

static gr_status ask_entry(gr_ps *ps, int server, uint32_t index, uint64_t key,
                           gr_ps_entry *entry_out)
{
    gr_ps_op *op = gr_ps_op_open(ps, GR_PS_LIST, NULL);
    if (op == NULL) {
        return GR_E_NO_MEMORY;
    }
    op->index = index;
    op->argument = key;
    op->answer = entry_out;
    gr_ps_op_send(op, server);
    return gr_ps_op_wait(op, GR_NEVER, NULL);
}

gr_status gr_ps_list(gr_ps *ps, uint32_t index, gr_ps_entry *entry_out)
{
    gr_ps_entry all, one;
    int first = 0;
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    while (!ps->table.alive[first]) {
        first++;
    }
    gr_status status = ask_entry(ps, first, index, 0, &all);
    if (status != GR_OK) {
        return status;
    }
    for (int s = first + 1; s < ps->servers; s++) {
        if (!ps->table.alive[s]) {
            continue;
        }
        status = ask_entry(ps, s, 0, gr_ps_tensor_key(ps->texts.name), &one);
        if (status == GR_E_NOT_FOUND) {
            continue; /* its declaration is on the way to this server */
        }
        if (status != GR_OK) {
            return status;
        }
        if (one.version_least < all.version_least) {
            all.version_least = one.version_least;
        }
        if (one.version_most > all.version_most) {
            all.version_most = one.version_most;
        }
        all.rows += one.rows;
    }
    all.version_least = all.version_least == UINT64_MAX ? 0 : all.version_least;
    *entry_out = all; /* its texts are ps->texts, which say the same on all servers */
    return GR_OK;
}

gr_status gr_ps_read_counters(gr_ps *ps, int server, gr_ps_counters *counters_out)
{
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    if (server < 0 || server >= ps->servers) {
        return gr_fail(&ps->error, GR_E_INVALID, "there is no server %d, there are %d", server,
                       ps->servers);
    }
    gr_ps_op *op = gr_ps_op_open(ps, GR_PS_STATS, NULL);
    if (op == NULL) {
        return GR_E_NO_MEMORY;
    }
    op->answer = counters_out;
    gr_ps_op_send(op, server);
    return gr_ps_op_wait(op, GR_NEVER, NULL);
}
