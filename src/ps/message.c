/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/message.h"

#include "base/codec.h"
#include "base/fail.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    HELLO_FIXED = 12,
    DONE_FIXED = 8,
    ENTRY_FIXED = 36,
    STATS_WORDS = 15,
    TABLE_FIXED = 20 + 8 * GR_PS_SERVERS_MAX,
    TABLE_BYTES = TABLE_FIXED + 2 * GR_PS_SLOTS,
    COUNT_MAX = 1 << 20 /* shards, clocks */
};

_Static_assert(sizeof(gr_ps_counters) == STATS_WORDS * sizeof(uint64_t), "every counter is sent");
_Static_assert(ENTRY_FIXED + GR_PS_SPEC_FIXED + GR_PS_NAME_BYTES + GR_PS_OPTIMIZER_BYTES <=
                       GR_PS_SMALL_MAX &&
                   DONE_FIXED + 2 + GR_DIAG_TEXT_BYTES <= GR_PS_SMALL_MAX,
               "any payload fits");
_Static_assert(HELLO_FIXED + 2 + GR_PS_RUN_BYTES - 1 <= GR_PS_REQUEST_BYTES,
               "a greeting fits where a client keeps the head of a request");

static void replace_all(char *text, char from, char to)
{
    while ((text = strchr(text, from)) != NULL) {
        *text = to;
    }
}

void gr_ps_split_addresses(char *addresses)
{
    replace_all(addresses, '+', ' ');
}

void gr_ps_join_addresses(char *addresses)
{
    replace_all(addresses, ' ', '+');
}

const char *gr_ps_peer_name(int peer, char name_out[GR_PS_PEER_NAME_BYTES])
{
    bool worker = peer >= GR_PS_WORKERS_AT;
    if (peer >= GR_PS_READERS_AT) {
        snprintf(name_out, GR_PS_PEER_NAME_BYTES, "a reader");
    } else {
        snprintf(name_out, GR_PS_PEER_NAME_BYTES, "%s %d", worker ? "worker" : "server",
                 worker ? peer - GR_PS_WORKERS_AT : peer);
    }
    return name_out;
}

gr_status gr_ps_malformed(const char *what, gr_diag *diag)
{
    return gr_fail(diag, GR_E_PROTOCOL, "%s that is malformed", what);
}

/* ---- HELLO ----------------------------------------------------------------------------------- */

static const gr_wire_field hello_fields[] = {
    {GR_WIRE(32, gr_ps_hello, protocol)},
    {GR_WIRE(32, gr_ps_hello, servers)},
    {GR_WIRE(32, gr_ps_hello, number)},
    {0},
};

size_t gr_ps_put_hello(const gr_ps_hello *hello, uint8_t *out)
{
    uint8_t *at = gr_wire_put(hello_fields, hello, out);
    return (size_t)(gr_put_text(at, hello->run, sizeof hello->run) - out);
}

gr_status gr_ps_get_hello(const uint8_t *in, size_t size_bytes, gr_ps_hello *hello_out,
                          gr_diag *diag)
{
    gr_ps_hello hello = {0};
    const uint8_t *end = in + size_bytes;
    const uint8_t *at = gr_wire_get(hello_fields, in, end, &hello);
    if (at == NULL) {
        return gr_ps_malformed("a greeting", diag);
    }
    if (hello.protocol != GR_PS_PROTOCOL) {
        return gr_fail(diag, GR_E_PROTOCOL,
                       "a greeting in version %u of the protocol; this one speaks %d",
                       hello.protocol, GR_PS_PROTOCOL);
    }
    if (gr_get_text(at, end, hello.run, sizeof hello.run, false) != end ||
        hello.servers > GR_PS_SERVERS_MAX || hello.number >= hello.servers) {
        return gr_ps_malformed("a greeting", diag);
    }
    *hello_out = hello;
    return GR_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static const gr_wire_field spec_fields[] = {
    /* and the two texts */
    {GR_WIRE(64, gr_ps_spec, elements)},
    {GR_WIRE(32, gr_ps_spec, consistency), .max = INT32_MAX},
    {GR_WIRE(32, gr_ps_spec, shards), .max = INT32_MAX},
    {GR_WIRE(32, gr_ps_spec, aggregate), .max = INT32_MAX},
    {GR_WIRE(32, gr_ps_spec, total), .max = INT32_MAX},
    {GR_WIRE(32, gr_ps_spec, staleness), .max = INT32_MAX},
    {GR_WIRE(32, gr_ps_spec, adapt_rate), .max = 1},
    {GR_WIRE(32, gr_ps_spec, refuse_not_finite), .max = 1},
    {GR_WIRE(32, gr_ps_spec, columns)},
    {GR_WIRE(64, gr_ps_spec, seed)},
    {GR_WIRE(32, gr_ps_spec, deviation)},
    {GR_WIRE(32, gr_ps_spec, gradient_type), .max = INT32_MAX},
    {0},
};

size_t gr_ps_put_spec(const gr_ps_spec *tensor, uint8_t *out)
{
    gr_ps_spec sent = *tensor;
    sent.adapt_rate = sent.adapt_rate != 0;
    sent.refuse_not_finite = sent.refuse_not_finite != 0;
    uint8_t *at = gr_wire_put(spec_fields, &sent, out);
    at = gr_put_text(at, tensor->name, GR_PS_NAME_BYTES);
    return (size_t)(gr_put_text(at, tensor->optimizer, GR_PS_OPTIMIZER_BYTES) - out);
}

gr_status gr_ps_get_spec(const uint8_t *in, size_t size_bytes, gr_ps_spec *tensor_out,
                         gr_ps_texts *texts_out, gr_diag *diag)
{
    gr_ps_spec tensor = {.name = texts_out->name, .optimizer = texts_out->optimizer};
    const uint8_t *end = in + size_bytes, *at = gr_wire_get(spec_fields, in, end, &tensor);
    at = gr_get_text(at, end, texts_out->name, sizeof texts_out->name, false);
    at = gr_get_text(at, end, texts_out->optimizer, sizeof texts_out->optimizer, true);
    if (at != end) {
        return gr_ps_malformed("a tensor", diag);
    }
    gr_diag why = {0};
    if (gr_ps_check_spec(&tensor, &why) != GR_OK) {
        return gr_fail(diag, GR_E_PROTOCOL, "%s", why.text);
    }
    *tensor_out = tensor;
    return GR_OK;
}

/* ---- Requests -------------------------------------------------------------------------------- */

static const gr_wire_field request_fields[] = {
    {GR_WIRE(32, gr_ps_request, flags), .max = GR_PS_ASK_END - 1},
    {GR_WIRE(32, gr_ps_request, first), .max = COUNT_MAX},
    {GR_WIRE(32, gr_ps_request, count), .max = COUNT_MAX},
    {GR_WIRE(32, gr_ps_request, factor)},
    {GR_WIRE(64, gr_ps_request, step)},
    {GR_WIRE(64, gr_ps_request, version)},
    {GR_WIRE(64, gr_ps_request, rate)},
    {GR_WIRE(64, gr_ps_request, data_at)},
    {GR_WIRE(64, gr_ps_request, values_at)},
    {GR_WIRE(64, gr_ps_request, sequence)},
    {0},
};

size_t gr_ps_put_request(const gr_ps_request *request, uint8_t *out)
{
    return (size_t)(gr_wire_put(request_fields, request, out) - out);
}

gr_status gr_ps_get_request(const uint8_t *in, size_t size_bytes, gr_ps_request *request_out,
                            gr_diag *diag)
{
    gr_ps_request request;
    if (gr_wire_get(request_fields, in, in + size_bytes, &request) != in + size_bytes ||
        !isfinite(request.factor) || !isfinite(request.rate) ||
        request.data_at % sizeof(float) != 0 || request.values_at % sizeof(float) != 0) {
        return gr_ps_malformed("a request", diag);
    }
    *request_out = request;
    return GR_OK;
}

gr_status gr_ps_get_rows(const void *in, size_t size_bytes, bool pushes, uint32_t count,
                         uint32_t columns, gr_ps_row_list *rows_out, gr_diag *diag)
{
    uint64_t values = (uint64_t)count * columns * sizeof(float);
    uint64_t numbers = GR_PS_REQUEST_BYTES + (uint64_t)count * sizeof(uint32_t);
    if (size_bytes != numbers + (pushes ? values : 0)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a message of %zu bytes is not one of %u rows of a table with %u columns",
                       size_bytes, count, columns);
    }
    if (values > GR_FRAME_PAYLOAD_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "%u rows of %u columns are too many for one message: fewer at a time", count,
                       columns);
    }
    const uint32_t *rows = (const uint32_t *)in + GR_PS_REQUEST_BYTES / sizeof(uint32_t);
    const float *behind = (const float *)(const void *)(rows + count);
    *rows_out = (gr_ps_row_list){.rows = rows, .values = pushes ? behind : NULL, .count = count};
    return GR_OK;
}

static bool is_zero(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits == 0; /* but -0 */
}

size_t gr_ps_put_pairs(const float *values, size_t count, void *out)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += !is_zero(values[i]);
    }
    if (found == 0 || found * GR_PS_PAIR_BYTES >= count * sizeof *values) {
        return found == 0 ? GR_PS_PAIRS_NONE : 0;
    }
    uint32_t *number = out;
    float *value = (float *)out + found;
    for (size_t i = 0; i < count; i++) {
        if (!is_zero(values[i])) {
            *number++ = (uint32_t)i;
            *value++ = values[i];
        }
    }
    return found * GR_PS_PAIR_BYTES;
}

gr_status gr_ps_get_pairs(const void *in, size_t size_bytes, float *values_out, size_t count,
                          gr_diag *diag)
{
    size_t found = size_bytes / GR_PS_PAIR_BYTES;
    const uint32_t *number = in;
    const float *value = (const float *)in + found;
    if (size_bytes % GR_PS_PAIR_BYTES != 0) {
        return gr_ps_malformed("values with their numbers", diag);
    }
    memset(values_out, 0, count * sizeof *values_out);
    for (size_t i = 0; i < found; i++) {
        if (number[i] >= count || (i > 0 && number[i] <= number[i - 1])) {
            return gr_ps_malformed("values with their numbers", diag);
        }
        values_out[number[i]] = value[i];
    }
    return GR_OK;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static const gr_wire_field done_fields[] = {
    {GR_WIRE(32, gr_ps_done, status)},
    {GR_WIRE(32, gr_ps_done, duplicates)},
    {GR_WIRE(0, gr_ps_done, text)},
    {0},
};

size_t gr_ps_put_done(const gr_ps_done *done, uint8_t *out)
{
    return (size_t)(gr_wire_put(done_fields, done, out) - out);
}

gr_status gr_ps_get_done(const uint8_t *in, size_t size_bytes, gr_ps_done *done_out, gr_diag *diag)
{
    gr_ps_done done = {0};
    if (gr_wire_get(done_fields, in, in + size_bytes, &done) != in + size_bytes ||
        (done.status != GR_OK && (done.status > 0 || done.status <= GR_E_MISMATCH))) {
        return gr_ps_malformed("an answer", diag);
    }
    *done_out = done;
    return GR_OK;
}

static const gr_wire_field entry_fields[] = {
    /* and the tensor */
    {GR_WIRE(32, gr_ps_entry, blocks)},
    {GR_WIRE(32, gr_ps_entry, block_elements)},
    {GR_WIRE(64, gr_ps_entry, version_least)},
    {GR_WIRE(64, gr_ps_entry, version_most)},
    {GR_WIRE(32, gr_ps_entry, states), .max = GR_PS_STATES_MAX},
    {GR_WIRE(64, gr_ps_entry, rows)},
    {0},
};

size_t gr_ps_put_entry(const gr_ps_entry *entry, uint8_t *out)
{
    uint8_t *at = gr_wire_put(entry_fields, entry, out);
    return ENTRY_FIXED + gr_ps_put_spec(&entry->tensor, at);
}

gr_status gr_ps_get_entry(const uint8_t *in, size_t size_bytes, gr_ps_entry *entry_out,
                          gr_ps_texts *texts_out, gr_diag *diag)
{
    gr_ps_entry entry = {0};
    const uint8_t *at = gr_wire_get(entry_fields, in, in + size_bytes, &entry);
    if (at == NULL) {
        return gr_ps_malformed("an entry", diag);
    }
    gr_status status = gr_ps_get_spec(at, size_bytes - ENTRY_FIXED, &entry.tensor, texts_out, diag);
    if (status == GR_OK) {
        *entry_out = entry;
    }
    return status;
}

size_t gr_ps_put_counters(const gr_ps_counters *stats, uint8_t *out)
{
    const uint64_t *words =
        (const uint64_t *)stats; /* nothing but such words: see the assertion above */
    for (size_t i = 0; i < STATS_WORDS; i++) {
        gr_put_u64(out + 8 * i, words[i]);
    }
    return 8 * (size_t)STATS_WORDS;
}

gr_status gr_ps_get_counters(const uint8_t *in, size_t size_bytes, gr_ps_counters *stats_out,
                             gr_diag *diag)
{
    uint64_t *words = (uint64_t *)stats_out;
    if (size_bytes != 8 * (size_t)STATS_WORDS) {
        return gr_ps_malformed("counters", diag);
    }
    for (size_t i = 0; i < STATS_WORDS; i++) {
        words[i] = gr_get_u64(in + 8 * i);
    }
    return GR_OK;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

size_t gr_ps_put_table(const gr_ps_table *table, uint8_t *out)
{
    gr_put_u64(out, table->epoch);
    gr_put_u32(out + 8, (uint32_t)table->servers);
    gr_put_u32(out + 12, gr_ps_table_mask(table));
    gr_put_u32(out + 16, (uint32_t)(table->added + 1));
    for (int server = 0; server < GR_PS_SERVERS_MAX; server++) {
        gr_put_u64(out + 20 + 8 * server, table->incarnation[server]);
    }
    memcpy(out + TABLE_FIXED, table->primary, GR_PS_SLOTS);
    memcpy(out + TABLE_FIXED + GR_PS_SLOTS, table->replica, GR_PS_SLOTS);
    return TABLE_BYTES;
}

gr_status gr_ps_get_table(const uint8_t *in, size_t size_bytes, gr_ps_table *table_out,
                          gr_diag *diag)
{
    if (size_bytes != TABLE_BYTES) {
        return gr_ps_malformed("a table of servers", diag);
    }
    uint32_t servers = gr_get_u32(in + 8), living = gr_get_u32(in + 12),
             added = gr_get_u32(in + 16);
    if (servers < 1 || servers > GR_PS_SERVERS_MAX || living >> servers != 0 || added > servers) {
        return gr_ps_malformed("a table of servers", diag);
    }
    gr_ps_table table = {.epoch = gr_get_u64(in), .servers = (int)servers, .added = (int)added - 1};
    for (uint32_t server = 0; server < servers; server++) {
        table.alive[server] = (living >> server & 1) != 0;
        table.incarnation[server] = gr_get_u64(in + 20 + (size_t)8 * server);
    }
    memcpy(table.primary, in + TABLE_FIXED, GR_PS_SLOTS);
    memcpy(table.replica, in + TABLE_FIXED + GR_PS_SLOTS, GR_PS_SLOTS);
    if (!gr_ps_table_sound(&table)) {
        return gr_ps_malformed("a table of servers", diag);
    }
    *table_out = table;
    return GR_OK;
}
