/* SPDX-License-Identifier: Apache-2.0 */
#include "group/message.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <string.h>

enum { MAGIC = 0x31435247, VERSION = 4, CHECKSUM_AT = 16, HELLO_FIXED = 24 };
enum { MEMBERS_FIXED = 12, ASSIGNMENT_BYTES = 16, NUMBER_BYTES = 8, HISTORY_FIXED = 24 };
enum { MEMBER_FIXED = 12 };

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

static uint8_t *put_member(uint8_t *at, const gr_member *member)
{
    gr_put_u64(at, member->host);
    gr_put_u32(at + 8, member->number);
    at = gr_put_text(at + MEMBER_FIXED, member->host_name, sizeof member->host_name);
    at = gr_put_text(at, member->local, sizeof member->local);
    at = gr_put_text(at, member->remote, sizeof member->remote);
    return gr_put_text(at, member->failover, sizeof member->failover);
}

static const uint8_t *get_member(const uint8_t *at, const uint8_t *end, gr_member *member_out)
{
    if (end - at < MEMBER_FIXED || gr_get_u32(at + 8) >= GR_GROUP_WORLD_MAX) {
        return NULL;
    }
    member_out->host = gr_get_u64(at);
    member_out->number = gr_get_u32(at + 8);
    at = gr_get_text(at + MEMBER_FIXED, end, member_out->host_name, sizeof member_out->host_name,
                     false);
    at = gr_get_text(at, end, member_out->local, sizeof member_out->local, false);
    at = gr_get_text(at, end, member_out->remote, sizeof member_out->remote, false);
    return gr_get_text(at, end, member_out->failover, sizeof member_out->failover, false);
}

/* ---- Out ------------------------------------------------------------------------------------- */

size_t gr_message_put_empty(gr_message_kind kind, uint8_t *out)
{
    return seal(kind, 0, out);
}

size_t gr_message_put_hello(const gr_hello *hello, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    gr_put_u32(body, hello->world_size);
    gr_put_u32(body + 4, hello->link);
    gr_put_u64(body + 8, hello->pid);
    gr_put_u64(body + 16, hello->generation);
    const uint8_t *end = put_member(body + HELLO_FIXED, &hello->member);
    return seal(GR_MESSAGE_HELLO, (size_t)(end - body), out);
}

size_t gr_message_put_missing(const gr_missing *missing, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    gr_put_u32(body, missing->total);
    gr_put_u32(body + 4, missing->listed);
    for (uint32_t i = 0; i < missing->listed; i++) {
        gr_put_u32(body + 8 + 4 * (size_t)i, missing->ranks[i]);
    }
    return seal(GR_MESSAGE_MISSING, 8 + 4 * (size_t)missing->listed, out);
}

size_t gr_message_put_fail(const gr_diag *failure, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    gr_put_u32(body, (uint32_t)failure->status);
    gr_put_u32(body + 4, (uint32_t)failure->peer_rank);
    const uint8_t *end = gr_put_text(body + 8, failure->text, GR_DIAG_TEXT_BYTES);
    return seal(GR_MESSAGE_FAIL, (size_t)(end - body), out);
}

size_t gr_message_put_assignment(const gr_assignment *assignment, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    gr_put_u64(body, assignment->generation);
    gr_put_u32(body + 8, assignment->rank);
    gr_put_u32(body + 12, assignment->world_size);
    return seal(GR_MESSAGE_ASSIGN, ASSIGNMENT_BYTES, out);
}

size_t gr_message_put_report(const gr_op_report *report, uint8_t *out)
{
    return seal(GR_MESSAGE_REPORT, gr_op_report_put(report, out + GR_MESSAGE_HEAD_BYTES), out);
}

size_t gr_message_put_ready(uint64_t generation, uint8_t *out)
{
    gr_put_u64(out + GR_MESSAGE_HEAD_BYTES, generation);
    return seal(GR_MESSAGE_READY, NUMBER_BYTES, out);
}

/* So many bytes of the sets are not zero. */
static size_t filled_bytes(const gr_history *history)
{
    size_t bytes = sizeof history->committed_members.bits;
    while (bytes > 0 && history->committed_members.bits[bytes - 1] == 0 &&
           history->accepted_members.bits[bytes - 1] == 0) {
        bytes--;
    }
    return bytes;
}

size_t gr_message_put_history(const gr_history *history, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    size_t bytes = filled_bytes(history);
    gr_put_u64(body, history->committed);
    gr_put_u64(body + 8, history->accepted);
    gr_put_u64(body + 16, bytes);
    memcpy(body + HISTORY_FIXED, history->committed_members.bits, bytes);
    memcpy(body + HISTORY_FIXED + bytes, history->accepted_members.bits, bytes);
    return seal(GR_MESSAGE_HISTORY, HISTORY_FIXED + 2 * bytes, out);
}

size_t gr_message_members_max(int world_size)
{
    return GR_MESSAGE_HEAD_BYTES + MEMBERS_FIXED +
           (size_t)world_size * (MEMBER_FIXED + 8 + sizeof(gr_member));
}

size_t gr_message_put_members(uint64_t generation, int world_size, const gr_member *members,
                              uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES, *at = body + MEMBERS_FIXED;
    gr_put_u64(body, generation);
    gr_put_u32(body + 8, (uint32_t)world_size);
    for (int rank = 0; rank < world_size; rank++) {
        at = put_member(at, &members[rank]);
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
    if (size_bytes < HELLO_FIXED ||
        get_member(body + HELLO_FIXED, body + size_bytes, &hello.member) != body + size_bytes) {
        return malformed(diag, "HELLO");
    }
    hello.world_size = gr_get_u32(body);
    hello.link = gr_get_u32(body + 4);
    hello.pid = gr_get_u64(body + 8);
    hello.generation = gr_get_u64(body + 16);
    *hello_out = hello;
    return GR_OK;
}

gr_status gr_message_get_missing(const uint8_t *body, size_t size_bytes, gr_missing *missing_out,
                                 gr_diag *diag)
{
    gr_missing missing = {0};
    if (size_bytes < 8) {
        return malformed(diag, "MISSING");
    }
    missing.total = gr_get_u32(body);
    missing.listed = gr_get_u32(body + 4);
    if (missing.listed > GR_MISSING_LISTED_MAX || missing.listed > missing.total ||
        missing.total > GR_GROUP_WORLD_MAX || size_bytes != 8 + 4 * (size_t)missing.listed) {
        return malformed(diag, "MISSING");
    }
    for (uint32_t i = 0; i < missing.listed; i++) {
        missing.ranks[i] = gr_get_u32(body + 8 + 4 * (size_t)i);
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
    if (size_bytes < 10 || gr_get_text(body + 8, body + size_bytes, failure.text,
                                       sizeof failure.text, false) != body + size_bytes) {
        return malformed(diag, "FAIL");
    }
    failure.status = (int32_t)gr_get_u32(body);
    failure.peer_rank = (int32_t)gr_get_u32(body + 4);
    if (gr_status_scope((gr_status)failure.status) == GR_SCOPE_NONE) {
        return malformed(diag, "FAIL");
    }
    *failure_out = failure;
    return GR_OK;
}

gr_status gr_message_get_assignment(const uint8_t *body, size_t size_bytes,
                                    gr_assignment *assignment_out, gr_diag *diag)
{
    if (size_bytes != ASSIGNMENT_BYTES) {
        return malformed(diag, "ASSIGN");
    }
    gr_assignment assignment = {.generation = gr_get_u64(body),
                                .rank = gr_get_u32(body + 8),
                                .world_size = gr_get_u32(body + 12)};
    if (assignment.world_size < 1 || assignment.world_size > GR_GROUP_WORLD_MAX ||
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
    uint64_t bytes = size_bytes >= HISTORY_FIXED ? gr_get_u64(body + 16) : UINT64_MAX;
    if (bytes > sizeof history.committed_members.bits || size_bytes != HISTORY_FIXED + 2 * bytes) {
        return malformed(diag, "HISTORY");
    }
    history.committed = gr_get_u64(body);
    history.accepted = gr_get_u64(body + 8);
    memcpy(history.committed_members.bits, body + HISTORY_FIXED, bytes);
    memcpy(history.accepted_members.bits, body + HISTORY_FIXED + bytes, bytes);
    if (history.committed > history.accepted || filled_bytes(&history) != bytes) {
        return malformed(diag, "HISTORY");
    }
    *history_out = history;
    return GR_OK;
}

gr_status gr_message_get_ready(const uint8_t *body, size_t size_bytes, uint64_t *generation_out,
                               gr_diag *diag)
{
    if (size_bytes != NUMBER_BYTES) {
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
        at = get_member(at, end, &members_out[rank]);
    }
    if (at != end) {
        return malformed(diag, "MEMBERS");
    }
    *generation_out = gr_get_u64(body);
    return GR_OK;
}
