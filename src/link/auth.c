/* SPDX-License-Identifier: Apache-2.0 */
#include "link/auth.h"

#include "base/codec.h"
#include "base/fail.h"

#include <string.h>

/* A challenge:                          An answer:
 *  0  u32  magic "GRA1"                  0  u32  magic "GRA2"
 *  4  u16  version                       4  u16  version
 *  6  u8   role of the sender            6  u8   role of the sender
 *  7  u8   role expected of the peer     7  u8   zero
 *  8  i32  rank of the sender            8       HMAC-SHA256, 32 bytes, over answer bytes 0..7, the
 * 12  u8   number of the rail                    connector's challenge, the acceptor's challenge
 * 13  u8   of how many
 * 14  u16  flags: 1: TLS follows
 * 16  u64  XXH3-64 of bytes 0..15
 * 24       32 random bytes
 *
 * The connector answers as soon as it has the acceptor's challenge; the acceptor answers only
 * after it has checked the connector's answer: an unauthenticated peer gets a challenge from it
 * and nothing else. */
enum {
    CHALLENGE_MAGIC = 0x31415247,
    ANSWER_MAGIC = 0x32415247,
    AUTH_VERSION = 2,
    RAIL_AT = 12,
    FLAGS_AT = 14,
    FLAG_TLS = 1,
    CHECKSUM_AT = 16,
    NONCE_AT = 24,
    NONCE_BYTES = GR_AUTH_CHALLENGE_BYTES - NONCE_AT,
    MARK_BYTES = 6, /* magic and version, which garbage is recognised by */
    ANSWER_HEAD_BYTES = GR_AUTH_ANSWER_BYTES - GR_SHA256_BYTES,
    REFUSES_AT = 7 /* of an answer: 1, there is no place for the other's rank */
};

static gr_auth_role other_role(gr_auth_role role)
{
    return role == GR_AUTH_CONNECTOR ? GR_AUTH_ACCEPTOR : GR_AUTH_CONNECTOR;
}

gr_status gr_auth_init(gr_auth *auth, gr_auth_role role, int32_t rank,
                       const uint8_t secret[GR_SECRET_BYTES], gr_diag *diag)
{
    memset(auth, 0, sizeof *auth);
    auth->role = role;
    auth->rank = rank;
    gr_put_u32(auth->out, CHALLENGE_MAGIC);
    gr_put_u16(auth->out + 4, AUTH_VERSION);
    auth->out[6] = (uint8_t)role;
    auth->out[7] = (uint8_t)other_role(role);
    gr_put_u32(auth->out + 8, (uint32_t)rank);
    gr_auth_name_rail(auth, (gr_auth_rail){.index = 0, .count = 1});
    gr_status status = gr_random_bytes(auth->out + NONCE_AT, NONCE_BYTES, diag);
    if (status != GR_OK) {
        return status;
    }
    memcpy(auth->secret, secret, GR_SECRET_BYTES);
    auth->out_ready = GR_AUTH_CHALLENGE_BYTES;
    return GR_OK;
}

static void seal_challenge(gr_auth *auth)
{
    gr_put_u64(auth->out + CHECKSUM_AT, gr_hash64(auth->out, CHECKSUM_AT, CHALLENGE_MAGIC));
}

void gr_auth_name_rail(gr_auth *auth, gr_auth_rail rail)
{
    auth->out[RAIL_AT] = rail.index;
    auth->out[RAIL_AT + 1] = rail.count;
    seal_challenge(auth);
}

void gr_auth_announce_encryption(gr_auth *auth)
{
    auth->encrypts = true;
    gr_put_u16(auth->out + FLAGS_AT, FLAG_TLS);
    seal_challenge(auth);
}

void gr_auth_fini(gr_auth *auth)
{
    gr_wipe(auth, sizeof *auth);
}

/* An HMAC over `head` and both challenges. */
static gr_status authenticate(const gr_auth *auth, const uint8_t head[ANSWER_HEAD_BYTES],
                              uint8_t mac_out[GR_SHA256_BYTES])
{
    const uint8_t *connector = auth->role == GR_AUTH_CONNECTOR ? auth->out : auth->in;
    const uint8_t *acceptor = auth->role == GR_AUTH_CONNECTOR ? auth->in : auth->out;
    uint8_t text[ANSWER_HEAD_BYTES + 2 * GR_AUTH_CHALLENGE_BYTES];

    memcpy(text, head, ANSWER_HEAD_BYTES);
    memcpy(text + ANSWER_HEAD_BYTES, connector, GR_AUTH_CHALLENGE_BYTES);
    memcpy(text + ANSWER_HEAD_BYTES + GR_AUTH_CHALLENGE_BYTES, acceptor, GR_AUTH_CHALLENGE_BYTES);
    return gr_hmac_sha256(auth->secret, GR_SECRET_BYTES, text, sizeof text, mac_out);
}

static gr_status answer_of(const gr_auth *auth, gr_auth_role role, bool refuses,
                           uint8_t answer_out[GR_AUTH_ANSWER_BYTES])
{
    gr_put_u32(answer_out, ANSWER_MAGIC);
    gr_put_u16(answer_out + 4, AUTH_VERSION);
    answer_out[6] = (uint8_t)role;
    answer_out[REFUSES_AT] = refuses;
    return authenticate(auth, answer_out, answer_out + ANSWER_HEAD_BYTES);
}

gr_status gr_auth_key(const gr_auth *auth, uint8_t key_out[GR_SHA256_BYTES])
{
    /* No answer begins like this. */
    static const uint8_t head[ANSWER_HEAD_BYTES] = {'G', 'R', 'K', '1'};
    return auth->done ? authenticate(auth, head, key_out) : GR_E_INVALID;
}

static gr_status release_answer(gr_auth *auth, gr_diag *diag)
{
    if (answer_of(auth, auth->role, auth->refuses, auth->out + GR_AUTH_CHALLENGE_BYTES) != GR_OK) {
        return gr_fail(diag, GR_E_AUTH, "cannot compute the answer to the peer's challenge");
    }
    auth->out_ready = GR_AUTH_BYTES;
    return GR_OK;
}

/* Garbage is refused at its first wrong byte, so that it does not occupy a place until the
 * timeout. */
static gr_status check_mark(const gr_auth *auth, gr_diag *diag)
{
    uint8_t mark[MARK_BYTES];
    gr_put_u32(mark, CHALLENGE_MAGIC);
    gr_put_u16(mark + 4, AUTH_VERSION);
    size_t known = auth->in_filled < MARK_BYTES ? auth->in_filled : MARK_BYTES;
    if (memcmp(auth->in, mark, known < 4 ? known : 4) != 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "what came is not a handshake of Gradus");
    }
    if (memcmp(auth->in, mark, known) != 0) {
        return gr_fail(diag, GR_E_PROTOCOL,
                       "the peer speaks another version of the handshake; this build speaks "
                       "version %d: use the same build on all hosts",
                       AUTH_VERSION);
    }
    return GR_OK;
}

static gr_status check_challenge(gr_auth *auth, gr_diag *diag)
{
    const uint8_t *in = auth->in;
    if (gr_get_u64(in + CHECKSUM_AT) != gr_hash64(in, CHECKSUM_AT, CHALLENGE_MAGIC) ||
        (gr_get_u16(in + FLAGS_AT) & ~FLAG_TLS) != 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "a challenge with a wrong checksum");
    }
    gr_auth_rail rail = {.index = in[RAIL_AT], .count = in[RAIL_AT + 1]};
    if (rail.count > GR_LINK_RAILS_MAX || rail.index >= rail.count) {
        return gr_fail(diag, GR_E_PROTOCOL, "a challenge for rail %u of %u; a link has 1 to %d",
                       rail.index, rail.count, GR_LINK_RAILS_MAX);
    }
    if (in[6] != other_role(auth->role) || in[7] != auth->role) {
        return gr_fail(diag, GR_E_AUTH, "a challenge for the other role: it is our own, reflected");
    }
    if (memcmp(in + NONCE_AT, auth->out + NONCE_AT, NONCE_BYTES) == 0) {
        return gr_fail(diag, GR_E_AUTH, "a challenge with our own random bytes: it is reflected");
    }
    auth->peer_rank = (int32_t)gr_get_u32(in + 8);
    auth->peer_rail = rail;
    auth->peer_encrypts = (gr_get_u16(in + FLAGS_AT) & FLAG_TLS) != 0;
    return auth->role == GR_AUTH_CONNECTOR ? release_answer(auth, diag) : GR_OK;
}

static gr_status check_answer(gr_auth *auth, gr_diag *diag)
{
    uint8_t expected[GR_AUTH_ANSWER_BYTES];
    bool refuses =
        auth->role == GR_AUTH_CONNECTOR && auth->in[GR_AUTH_CHALLENGE_BYTES + REFUSES_AT] == 1;
    gr_status status = answer_of(auth, other_role(auth->role), refuses, expected);
    int equal =
        status == GR_OK &&
        gr_equal_constant_time(expected, auth->in + GR_AUTH_CHALLENGE_BYTES, sizeof expected);
    gr_wipe(expected, sizeof expected);
    if (!equal) {
        return gr_fail(diag, GR_E_AUTH,
                       "the answer to our challenge is wrong: the peer does not "
                       "hold this job's secret (GRADUS_SECRET)");
    }
    if (refuses) {
        return gr_fail(diag, GR_E_IN_USE, "it has a member of our rank already, or expects none");
    }
    auth->checked = true;
    return auth->role == GR_AUTH_ACCEPTOR ? release_answer(auth, diag) : GR_OK;
}

/* Move size bytes in, at most up to `end`; how many were moved. */
static size_t fill(gr_auth *auth, const uint8_t *data, size_t size_bytes, size_t end)
{
    size_t room = end - auth->in_filled;
    size_t count = size_bytes < room ? size_bytes : room;
    if (count > 0) {
        memcpy(auth->in + auth->in_filled, data, count);
        auth->in_filled += count;
    }
    return count;
}

gr_status gr_auth_take(gr_auth *auth, const uint8_t *data, size_t size_bytes, size_t *used_out,
                       gr_diag *diag)
{
    gr_status status = auth->failed;
    *used_out = 0;
    if (status != GR_OK) {
        return gr_fail(diag, status, "the handshake has failed before");
    }
    if (auth->in_filled < GR_AUTH_CHALLENGE_BYTES) {
        *used_out = fill(auth, data, size_bytes, GR_AUTH_CHALLENGE_BYTES);
        status = check_mark(auth, diag);
        if (status == GR_OK && auth->in_filled == GR_AUTH_CHALLENGE_BYTES) {
            status = check_challenge(auth, diag);
        }
    }
    if (status == GR_OK && auth->in_filled >= GR_AUTH_CHALLENGE_BYTES && !auth->checked) {
        *used_out += fill(auth, data + *used_out, size_bytes - *used_out, GR_AUTH_BYTES);
        if (auth->in_filled == GR_AUTH_BYTES) {
            status = check_answer(auth, diag);
        }
    }
    if (status != GR_OK) {
        auth->failed = status;
        auth->out_ready = auth->out_sent;
        return status;
    }
    auth->done = auth->checked && auth->out_sent == GR_AUTH_BYTES;
    return auth->done ? GR_OK : GR_PENDING;
}

gr_status gr_auth_refuse(gr_auth *auth, gr_diag *diag)
{
    auth->refuses = true;
    return release_answer(auth, diag);
}

const uint8_t *gr_auth_pending(const gr_auth *auth, size_t *size_out)
{
    *size_out = auth->out_ready - auth->out_sent;
    return auth->out + auth->out_sent;
}

void gr_auth_sent(gr_auth *auth, size_t size_bytes)
{
    size_t pending = auth->out_ready - auth->out_sent;
    auth->out_sent += size_bytes < pending ? size_bytes : pending;
    auth->done = auth->checked && auth->out_sent == GR_AUTH_BYTES;
}
