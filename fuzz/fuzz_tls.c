/* SPDX-License-Identifier: Apache-2.0 */

/* TLS as a link uses it. Byte 0 chooses:
 *   0, 1  the rest is what a client, or a server, gets to hear: it never takes it for a session
 *   2, 3  two that hold the same key (2) or different ones (3), and somebody in between who changes
 *         what they say: each four bytes of the rest are which way, where (u16) and how. Whatever
 *         is received is what was sent, as far as it goes; without the same key nothing stands. */

#include "base/codec.h"
#include "link/tls.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_BYTES = 3000, TURNS = 16, PIECE_BYTES = 8192, EDIT_BYTES = 4 };

typedef struct side {
    gr_tls *tls;
    int inner, outer; /* its socket; the end that somebody in between holds */
    bool stands, over;
    size_t sent, got;
    uint64_t relayed;
} side;

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool open_side(side *at, gr_tls_role role, uint8_t key_byte)
{
    uint8_t key[GR_SHA256_BYTES] = {key_byte, 1, 2, 3};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return false;
    }
    *at = (side){.inner = ends[0], .outer = ends[1]};
    if (gr_tls_create(role, at->inner, key, &at->tls, NULL) != GR_OK) {
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    return true;
}

static void close_side(side *at)
{
    gr_tls_destroy(at->tls);
    close(at->inner);
    close(at->outer);
}

static uint8_t letter(int who, size_t i)
{
    return (uint8_t)(i * 7 + i / 256 + (size_t)who * 131);
}

/* What came is the front of what the other side sends. */
static void hear(side *at, int other)
{
    uint8_t bytes[TEXT_BYTES];
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    ssize_t got = gr_tls_recv(at->tls, &part, 1);
    for (ssize_t i = 0; i < got; i++) {
        require(at->got < TEXT_BYTES && bytes[i] == letter(other, at->got));
        at->got++;
    }
    at->over = at->over || got == 0;
}

static void act(side *at, int who)
{
    if (!at->stands && !at->over) {
        gr_diag diag = {0};
        gr_status status = gr_tls_shake(at->tls, &diag);
        at->stands = status == GR_OK;
        at->over = status < 0;
        require(status != GR_E_AUTH || diag.text[0] != '\0');
    }
    if (at->stands && !at->over) {
        uint8_t text[TEXT_BYTES];
        for (size_t i = 0; i < TEXT_BYTES; i++) {
            text[i] = letter(who, i);
        }
        struct iovec part = {.iov_base = text + at->sent, .iov_len = TEXT_BYTES - at->sent};
        ssize_t sent = gr_tls_send(at->tls, &part, 1);
        at->sent += sent > 0 ? (size_t)sent : 0;
        hear(at, 1 - who);
    }
}

/* From one to the other, with the changes that are asked for at these places of the stream. */
static void relay(side *from, const side *to, uint8_t way, const uint8_t *edits, size_t count)
{
    uint8_t bytes[PIECE_BYTES];
    ssize_t got = recv(from->outer, bytes, sizeof bytes, 0);
    if (got <= 0) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint8_t *edit = edits + i * EDIT_BYTES;
        uint64_t at = gr_get_u16(edit + 1);
        if ((edit[0] & 1) == way && at >= from->relayed && at < from->relayed + (uint64_t)got) {
            bytes[at - from->relayed] ^= edit[3];
        }
    }
    from->relayed += (uint64_t)got;
    (void)!send(to->outer, bytes, (size_t)got, MSG_NOSIGNAL);
}

static void stand_between(bool same_key, const uint8_t *edits, size_t count)
{
    side sides[2];
    if (!open_side(&sides[0], GR_TLS_CLIENT, 9)) {
        return;
    }
    if (open_side(&sides[1], GR_TLS_SERVER, same_key ? 9 : 8)) {
        for (int turn = 0; turn < TURNS; turn++) {
            act(&sides[0], 0);
            relay(&sides[0], &sides[1], 0, edits, count);
            act(&sides[1], 1);
            relay(&sides[1], &sides[0], 1, edits, count);
        }
        require(same_key || (!sides[0].stands && !sides[1].stands));
        require(!same_key || count > 0 ||
                (sides[0].got == TEXT_BYTES && sides[1].got == TEXT_BYTES));
        close_side(&sides[1]);
    }
    close_side(&sides[0]);
}

/* A stranger's words only. */
static void speak_to(gr_tls_role role, const uint8_t *data, size_t size)
{
    side at;
    if (!open_side(&at, role, 9)) {
        return;
    }
    gr_status status = gr_tls_shake(at.tls, NULL);
    (void)!send(at.outer, data, size, MSG_NOSIGNAL);
    for (int turn = 0; turn < TURNS && status == GR_PENDING; turn++) {
        status = gr_tls_shake(at.tls, NULL);
    }
    require(status != GR_OK);
    close_side(&at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    int mode = data[0] & 3;
    if (mode < 2) {
        speak_to(mode == 0 ? GR_TLS_CLIENT : GR_TLS_SERVER, data + 1, size - 1);
    } else {
        stand_between(mode == 2, data + 1, (size - 1) / EDIT_BYTES);
    }
    return 0;
}
