/* SPDX-License-Identifier: Apache-2.0 */
#include "group/message.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <string.h>

enum { MAGIC = 0x31435247, VERSION = 4, CHECKSUM_AT = 16, HELLO_FIXED = 24 };
enum { MEMBERS_FIXED = 12, SEAT_BYTES = 16, NUMBER_BYTES = 8, LINEAGE_FIXED = 24 };
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
    return gr_put_text(at, member->succession, sizeof member->succession);
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
    return gr_get_text(at, end, member_out->succession, sizeof member_out->succession, false);
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

size_t gr_message_put_seat(gr_message_kind kind, const gr_seat *seat, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    gr_put_u64(body, seat->generation);
    gr_put_u32(body + 8, seat->rank);
    gr_put_u32(body + 12, seat->world_size);
    return seal(kind, SEAT_BYTES, out);
}

size_t gr_message_put_number(gr_message_kind kind, uint64_t generation, uint8_t *out)
{
    gr_put_u64(out + GR_MESSAGE_HEAD_BYTES, generation);
    return seal(kind, NUMBER_BYTES, out);
}

/* So many bytes of the sets are not zero. */
static size_t filled_bytes(const gr_lineage *lineage)
{
    size_t bytes = sizeof lineage->formed_members.bits;
    while (bytes > 0 && lineage->formed_members.bits[bytes - 1] == 0 &&
           lineage->accepted_members.bits[bytes - 1] == 0) {
        bytes--;
    }
    return bytes;
}

size_t gr_message_put_lineage(const gr_lineage *lineage, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    size_t bytes = filled_bytes(lineage);
    gr_put_u64(body, lineage->formed);
    gr_put_u64(body + 8, lineage->accepted);
    gr_put_u64(body + 16, bytes);
    memcpy(body + LINEAGE_FIXED, lineage->formed_members.bits, bytes);
    memcpy(body + LINEAGE_FIXED + bytes, lineage->accepted_members.bits, bytes);
    return seal(GR_MESSAGE_LINEAGE, LINEAGE_FIXED + 2 * bytes, out);
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
    if (kind == 0 || kind >= GR_MESSAGE_KIND_END || body_bytes > body_max) {
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

gr_status gr_message_get_seat(const uint8_t *body, size_t size_bytes, gr_seat *seat_out,
                              gr_diag *diag)
{
    if (size_bytes != SEAT_BYTES) {
        return malformed(diag, "SEAT");
    }
    gr_seat seat = {.generation = gr_get_u64(body),
                    .rank = gr_get_u32(body + 8),
                    .world_size = gr_get_u32(body + 12)};
    if (seat.world_size < 1 || seat.world_size > GR_GROUP_WORLD_MAX ||
        seat.rank >= seat.world_size) {
        return malformed(diag, "SEAT");
    }
    *seat_out = seat;
    return GR_OK;
}

gr_status gr_message_get_lineage(const uint8_t *body, size_t size_bytes, gr_lineage *lineage_out,
                                 gr_diag *diag)
{
    gr_lineage lineage = {0};
    uint64_t bytes = size_bytes >= LINEAGE_FIXED ? gr_get_u64(body + 16) : UINT64_MAX;
    if (bytes > sizeof lineage.formed_members.bits || size_bytes != LINEAGE_FIXED + 2 * bytes) {
        return malformed(diag, "LINEAGE");
    }
    lineage.formed = gr_get_u64(body);
    lineage.accepted = gr_get_u64(body + 8);
    memcpy(lineage.formed_members.bits, body + LINEAGE_FIXED, bytes);
    memcpy(lineage.accepted_members.bits, body + LINEAGE_FIXED + bytes, bytes);
    if (lineage.formed > lineage.accepted || filled_bytes(&lineage) != bytes) {
        return malformed(diag, "LINEAGE");
    }
    *lineage_out = lineage;
    return GR_OK;
}

gr_status gr_message_get_number(const uint8_t *body, size_t size_bytes, uint64_t *generation_out,
                                gr_diag *diag)
{
    if (size_bytes != NUMBER_BYTES) {
        return malformed(diag, "group");
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
