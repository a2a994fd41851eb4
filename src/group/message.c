/* SPDX-License-Identifier: Apache-2.0 */
#include "group/message.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <string.h>

enum { MAGIC = 0x31435247, VERSION = 6, CHECKSUM_AT = 16, MEMBERS_FIXED = 12, SETS = 4 };

/* ---- Bodies ---------------------------------------------------------------------------------- */

static const gr_wire_field member_fields[] = {
    {GR_WIRE(64, gr_member, host)},
    {GR_WIRE(32, gr_member, number), .max = GR_GROUP_WORLD_MAX - 1},
    {GR_WIRE(0, gr_member, host_name)},
    {GR_WIRE(0, gr_member, local)},
    {GR_WIRE(0, gr_member, remote)},
    {GR_WIRE(0, gr_member, failover)},
    {0},
};
static const gr_wire_field hello_fields[] = {
    /* and those of a member */
    {GR_WIRE(32, gr_hello, world_size)},
    {GR_WIRE(32, gr_hello, link)},
    {GR_WIRE(64, gr_hello, pid)},
    {GR_WIRE(64, gr_hello, generation)},
    {0},
};
static const gr_wire_field missing_fields[] = {
    /* and the ranks listed */
    {GR_WIRE(32, gr_missing, total), .max = GR_GROUP_WORLD_MAX},
    {GR_WIRE(32, gr_missing, listed), .max = GR_MISSING_LISTED_MAX},
    {0},
};
static const gr_wire_field fail_fields[] = {
    {GR_WIRE(32, gr_diag, status)},
    {GR_WIRE(32, gr_diag, peer_rank)},
    {GR_WIRE(0, gr_diag, text)},
    {0},
};
static const gr_wire_field assignment_fields[] = {
    {GR_WIRE(64, gr_assignment, generation)},
    {GR_WIRE(32, gr_assignment, rank)},
    {GR_WIRE(32, gr_assignment, world_size), .max = GR_GROUP_WORLD_MAX},
    {GR_WIRE(32, gr_assignment, number), .max = GR_GROUP_WORLD_MAX - 1},
    {0},
};
static const gr_wire_field history_fields[] = {
    /* and the size of the sets (u64), and the four */
    {GR_WIRE(64, gr_history, committed)},
    {GR_WIRE(64, gr_history, accepted)},
    {0},
};

static uint64_t checksum(const uint8_t *message, size_t body_bytes)
{
    return gr_hash64(message + GR_MESSAGE_HEAD_BYTES, body_bytes,
                     gr_hash64(message, CHECKSUM_AT, MAGIC));
}

/* The body is in place. */
static size_t seal(gr_message_kind kind, size_t body_bytes, uint8_t *out)
{
    gr_put_u32(out, MAGIC);
    gr_put_u16(out + 4, VERSION);
    gr_put_u16(out + 6, (uint16_t)kind);
    gr_put_u32(out + 8, (uint32_t)body_bytes);
    gr_put_u32(out + 12, 0);
    gr_put_u64(out + CHECKSUM_AT, checksum(out, body_bytes));
    return GR_MESSAGE_HEAD_BYTES + body_bytes;
}

static size_t put(gr_message_kind kind, const gr_wire_field *fields, const void *object,
                  uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    return seal(kind, (size_t)(gr_wire_put(fields, object, body) - body), out);
}

/* ---- Out ------------------------------------------------------------------------------------- */

size_t gr_message_put_empty(gr_message_kind kind, uint8_t *out)
{
    return seal(kind, 0, out);
}

size_t gr_message_put_hello(const gr_hello *hello, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES, *at = gr_wire_put(hello_fields, hello, body);
    at = gr_wire_put(member_fields, &hello->member, at);
    return seal(GR_MESSAGE_HELLO, (size_t)(at - body), out);
}

size_t gr_message_put_missing(const gr_missing *missing, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES, *at = gr_wire_put(missing_fields, missing, body);
    for (uint32_t i = 0; i < missing->listed; i++, at += 4) {
        gr_put_u32(at, missing->ranks[i]);
    }
    return seal(GR_MESSAGE_MISSING, (size_t)(at - body), out);
}

size_t gr_message_put_fail(const gr_diag *failure, uint8_t *out)
{
    return put(GR_MESSAGE_FAIL, fail_fields, failure, out);
}

size_t gr_message_put_assignment(const gr_assignment *assignment, uint8_t *out)
{
    return put(GR_MESSAGE_ASSIGN, assignment_fields, assignment, out);
}

size_t gr_message_put_report(const gr_op_report *report, uint8_t *out)
{
    return seal(GR_MESSAGE_REPORT, gr_op_report_put(report, out + GR_MESSAGE_HEAD_BYTES), out);
}

size_t gr_message_put_ready(uint64_t generation, uint8_t *out)
{
    gr_put_u64(out + GR_MESSAGE_HEAD_BYTES, generation);
    return seal(GR_MESSAGE_READY, sizeof generation, out);
}

_Static_assert(GR_MESSAGE_HEAD_BYTES + 3 * 8 + SETS * sizeof(gr_numbers) <= GR_MESSAGE_SMALL_MAX,
               "a history is a small message");

/* The sets of a history, as they follow each other. */
static void list_sets(gr_history *history, gr_numbers *sets_out[SETS])
{
    sets_out[0] = &history->committed_members;
    sets_out[1] = &history->accepted_members;
    sets_out[2] = &history->former_members;
    sets_out[3] = &history->used;
}

/* So many bytes of the sets are not all zero. */
static size_t filled_bytes(gr_numbers *const sets[SETS])
{
    for (size_t bytes = sizeof sets[0]->bits; bytes > 0; bytes--) {
        for (int i = 0; i < SETS; i++) {
            if (sets[i]->bits[bytes - 1] != 0) {
                return bytes;
            }
        }
    }
    return 0;
}

size_t gr_message_put_history(const gr_history *history, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES, *at = gr_wire_put(history_fields, history, body);
    gr_history copy = *history;
    gr_numbers *sets[SETS];
    list_sets(&copy, sets);
    size_t bytes = filled_bytes(sets);
    gr_put_u64(at, bytes);
    at += 8;
    for (int i = 0; i < SETS; i++, at += bytes) {
        memcpy(at, sets[i]->bits, bytes);
    }
    return seal(GR_MESSAGE_HISTORY, (size_t)(at - body), out);
}

size_t gr_message_members_max(int world_size)
{
    return GR_MESSAGE_HEAD_BYTES + MEMBERS_FIXED +
           (size_t)world_size * (8 + sizeof(gr_member)); /* and the lengths of its texts */
}

size_t gr_message_put_members(uint64_t generation, int world_size, const gr_member *members,
                              uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES, *at = body + MEMBERS_FIXED;
    gr_put_u64(body, generation);
    gr_put_u32(body + 8, (uint32_t)world_size);
    for (int rank = 0; rank < world_size; rank++) {
        at = gr_wire_put(member_fields, &members[rank], at);
    }
    return seal(GR_MESSAGE_MEMBERS, (size_t)(at - body), out);
}

/* ---- In -------------------------------------------------------------------------------------- */

gr_status gr_message_get(const uint8_t *data, size_t size_bytes, gr_message_kind *kind_out,
                         const uint8_t **body_out, size_t *body_bytes_out, gr_diag *diag)
{
    if (size_bytes < GR_MESSAGE_HEAD_BYTES) {
        return GR_PENDING;
    }
    if (gr_get_u32(data) != MAGIC || gr_get_u16(data + 4) != VERSION ||
        gr_get_u32(data + 12) != 0) {
        return gr_fail(diag, GR_E_PROTOCOL,
                       "what came is no group message of version %d: use the same build on all "
                       "hosts",
                       VERSION);
    }
    uint32_t kind = gr_get_u16(data + 6);
    size_t body_bytes = gr_get_u32(data + 8);
    size_t body_max = kind == GR_MESSAGE_MEMBERS ? GR_MESSAGE_BODY_MAX
                                                 : GR_MESSAGE_SMALL_MAX - GR_MESSAGE_HEAD_BYTES;
    bool unused = kind == 13 || kind == 14;
    if (kind == 0 || unused || kind >= GR_MESSAGE_KIND_END || body_bytes > body_max) {
        return gr_fail(diag, GR_E_PROTOCOL, "a group message of kind %u with %zu bytes", kind,
                       body_bytes);
    }
    if (size_bytes - GR_MESSAGE_HEAD_BYTES < body_bytes) {
        return GR_PENDING;
    }
    if (gr_get_u64(data + CHECKSUM_AT) != checksum(data, body_bytes)) {
        return gr_fail(diag, GR_E_PROTOCOL, "a group message with a wrong checksum");
    }
    *kind_out = (gr_message_kind)kind;
    *body_out = data + GR_MESSAGE_HEAD_BYTES;
    *body_bytes_out = body_bytes;
    return GR_OK;
}

static gr_status malformed(gr_diag *diag, const char *what)
{
    return gr_fail(diag, GR_E_PROTOCOL, "a malformed %s message", what);
}

gr_status gr_message_get_hello(const uint8_t *body, size_t size_bytes, gr_hello *hello_out,
                               gr_diag *diag)
{
    gr_hello hello;
    const uint8_t *end = body + size_bytes, *at = gr_wire_get(hello_fields, body, end, &hello);
    if (gr_wire_get(member_fields, at, end, &hello.member) != end) {
        return malformed(diag, "HELLO");
    }
    *hello_out = hello;
    return GR_OK;
}

gr_status gr_message_get_missing(const uint8_t *body, size_t size_bytes, gr_missing *missing_out,
                                 gr_diag *diag)
{
    gr_missing missing = {0};
    const uint8_t *end = body + size_bytes, *at = gr_wire_get(missing_fields, body, end, &missing);
    if (at == NULL || missing.listed > missing.total ||
        (size_t)(end - at) != 4 * (size_t)missing.listed) {
        return malformed(diag, "MISSING");
    }
    for (uint32_t i = 0; i < missing.listed; i++, at += 4) {
        missing.ranks[i] = gr_get_u32(at);
        if (missing.ranks[i] >= GR_GROUP_WORLD_MAX) {
            return malformed(diag, "MISSING");
        }
    }
    *missing_out = missing;
    return GR_OK;
}

gr_status gr_message_get_fail(const uint8_t *body, size_t size_bytes, gr_diag *failure_out,
                              gr_diag *diag)
{
    gr_diag failure;
    const uint8_t *end = body + size_bytes;
    if (gr_wire_get(fail_fields, body, end, &failure) != end ||
        gr_status_scope((gr_status)failure.status) == GR_SCOPE_NONE) {
        return malformed(diag, "FAIL");
    }
    *failure_out = failure;
    return GR_OK;
}

gr_status gr_message_get_assignment(const uint8_t *body, size_t size_bytes,
                                    gr_assignment *assignment_out, gr_diag *diag)
{
    gr_assignment assignment;
    const uint8_t *end = body + size_bytes;
    if (gr_wire_get(assignment_fields, body, end, &assignment) != end ||
        assignment.rank >= assignment.world_size) {
        return malformed(diag, "ASSIGN");
    }
    *assignment_out = assignment;
    return GR_OK;
}

gr_status gr_message_get_history(const uint8_t *body, size_t size_bytes, gr_history *history_out,
                                 gr_diag *diag)
{
    gr_history history = {0};
    gr_numbers *sets[SETS];
    const uint8_t *end = body + size_bytes, *at = gr_wire_get(history_fields, body, end, &history);
    uint64_t bytes = at != NULL && end - at >= 8 ? gr_get_u64(at) : UINT64_MAX;
    if (bytes > sizeof history.committed_members.bits || (uint64_t)(end - at) != 8 + SETS * bytes) {
        return malformed(diag, "HISTORY");
    }
    at += 8;
    list_sets(&history, sets);
    for (int i = 0; i < SETS; i++, at += bytes) {
        memcpy(sets[i]->bits, at, bytes);
    }
    if (history.committed > history.accepted || filled_bytes(sets) != bytes) {
        return malformed(diag, "HISTORY");
    }
    *history_out = history;
    return GR_OK;
}

gr_status gr_message_get_ready(const uint8_t *body, size_t size_bytes, uint64_t *generation_out,
                               gr_diag *diag)
{
    if (size_bytes != sizeof *generation_out) {
        return malformed(diag, "READY");
    }
    *generation_out = gr_get_u64(body);
    return GR_OK;
}

gr_status gr_message_get_members(const uint8_t *body, size_t size_bytes, int world_size,
                                 uint64_t *generation_out, gr_member *members_out, gr_diag *diag)
{
    if (size_bytes < MEMBERS_FIXED || gr_get_u32(body + 8) != (uint32_t)world_size) {
        return malformed(diag, "MEMBERS");
    }
    const uint8_t *at = body + MEMBERS_FIXED, *end = body + size_bytes;
    for (int rank = 0; rank < world_size && at != NULL; rank++) {
        at = gr_wire_get(member_fields, at, end, &members_out[rank]);
    }
    if (at != end) {
        return malformed(diag, "MEMBERS");
    }
    *generation_out = gr_get_u64(body);
    return GR_OK;
}
