/* SPDX-License-Identifier: Apache-2.0 */
#include "group/message.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <ctype.h>
#include <string.h>

enum { MAGIC = 0x31435247, VERSION = 3, CHECKSUM_AT = 16, HELLO_FIXED = 16 };
enum { MEMBERS_FIXED = 12, SEAT_BYTES = 16 };

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

/* A text with its length (u16) before it; at most max - 1 characters. */
static uint8_t *put_text(uint8_t *at, const char *text, size_t max)
{
    size_t size = strnlen(text, max - 1);
    gr_put_u16(at, (uint16_t)size);
    memcpy(at + 2, text, size);
    return at + 2 + size;
}

/* The inverse into text_out[max]; NULL if it does not fit or is no printable text. */
static const uint8_t *get_text(const uint8_t *at, const uint8_t *end, char *text_out, size_t max)
{
    if (end - at < 2) {
        return NULL;
    }
    size_t size = gr_get_u16(at);
    at += 2;
    if (size >= max || size > (size_t)(end - at)) {
        return NULL;
    }
    for (size_t i = 0; i < size; i++) {
        if (at[i] < 0x80 && !isprint(at[i])) {
            return NULL;
        }
    }
    memcpy(text_out, at, size);
    text_out[size] = '\0';
    return at + size;
}

static uint8_t *put_member(uint8_t *at, const gr_member *member)
{
    gr_put_u64(at, member->host);
    at = put_text(at + 8, member->host_name, sizeof member->host_name);
    at = put_text(at, member->local, sizeof member->local);
    return put_text(at, member->remote, sizeof member->remote);
}

static const uint8_t *get_member(const uint8_t *at, const uint8_t *end, gr_member *member_out)
{
    if (end - at < 8) {
        return NULL;
    }
    member_out->host = gr_get_u64(at);
    at = get_text(at + 8, end, member_out->host_name, sizeof member_out->host_name);
    if (at != NULL) {
        at = get_text(at, end, member_out->local, sizeof member_out->local);
    }
    return at != NULL ? get_text(at, end, member_out->remote, sizeof member_out->remote) : NULL;
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
    const uint8_t *end = put_text(body + 8, failure->text, GR_DIAG_TEXT_BYTES);
    return seal(GR_MESSAGE_FAIL, (size_t)(end - body), out);
}

size_t gr_message_put_seat(const gr_seat *seat, uint8_t *out)
{
    uint8_t *body = out + GR_MESSAGE_HEAD_BYTES;
    gr_put_u64(body, seat->generation);
    gr_put_u32(body + 8, seat->rank);
    gr_put_u32(body + 12, seat->world_size);
    return seal(GR_MESSAGE_SEAT, SEAT_BYTES, out);
}

size_t gr_message_members_max(int world_size)
{
    return GR_MESSAGE_HEAD_BYTES + MEMBERS_FIXED + (size_t)world_size * (8 + 6 + sizeof(gr_member));
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
    if (size_bytes < 10 || get_text(body + 8, body + size_bytes, failure.text,
                                    sizeof failure.text) != body + size_bytes) {
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
