/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_AUTH_H
#define GR_LINK_AUTH_H

/* The handshake that opens every connection of a job: HMAC-SHA256 challenge and response, both
 * ways, over the job's secret. A pure state machine over bytes: no sockets, no clock, no heap.
 *
 * Both sides send, at once, a challenge (magic, version, role, rank, peer role's expectation, which
 * rail of how many, whether TLS follows, 32 random bytes); each answers the other's with an HMAC
 * over both challenges and its own role. Nobody sends anything of value before the other's answer
 * was checked in constant time; a reflected or replayed answer is refused since role and both
 * nonces are in it. */

#include "base/hash.h"
#include "link/link.h"

typedef enum gr_auth_role {
    GR_AUTH_CONNECTOR = 1, /* the side that called connect */
    GR_AUTH_ACCEPTOR = 2
} gr_auth_role;

enum {
    GR_AUTH_CHALLENGE_BYTES = 56,
    GR_AUTH_ANSWER_BYTES = 40,
    GR_AUTH_BYTES = GR_AUTH_CHALLENGE_BYTES + GR_AUTH_ANSWER_BYTES, /* each way */
    GR_AUTH_RANK_COORDINATOR = -1, /* the rank that the job's coordinator goes by */
    GR_AUTH_RANK_JOINING = -2      /* a joining worker that gets its number from it */
};

/* A link may consist of several connections: this is number `index` of `count`. The connector says
 * it; what an acceptor says of it means nothing. */
typedef struct gr_auth_rail {
    uint8_t index, count;
} gr_auth_rail;

typedef struct gr_auth {
    gr_auth_role role;
    int32_t rank;                 /* ours */
    int32_t peer_rank;            /* theirs, trusted only when done */
    gr_auth_rail peer_rail;       /* likewise */
    bool encrypts, peer_encrypts; /* TLS is to follow: we announce it; they do */
    uint8_t secret[GR_SECRET_BYTES];
    uint8_t out[GR_AUTH_BYTES]; /* ours: challenge, then answer */
    uint8_t in[GR_AUTH_BYTES];
    size_t out_ready, out_sent; /* bytes of out that may be sent; that were sent */
    size_t in_filled;
    bool refuses; /* the acceptor: it has no place for the connector, who did prove itself */
    bool done;    /* theirs was checked and all of ours was handed out */
    bool checked;
    gr_status failed; /* GR_OK, or why every further gr_auth_take is refused */
} gr_auth;

gr_status gr_auth_init(gr_auth *auth, gr_auth_role role, int32_t rank,
                       const uint8_t secret[GR_SECRET_BYTES], gr_diag *diag) GR_MUST_CHECK;
/* Before anything is sent: another rail than the only one. */
void gr_auth_name_rail(gr_auth *auth, gr_auth_rail rail);
/* Before anything is sent: that TLS follows on this connection. Who agrees is for the caller to
 * compare when both have proved themselves; nobody in between can change what either announced. */
void gr_auth_announce_encryption(gr_auth *auth);
void gr_auth_fini(gr_auth *auth); /* wipes the secret */

/* Take in up to size_bytes; *used_out of them belonged to the handshake. GR_OK, GR_PENDING (not
 * done), GR_E_AUTH, GR_E_PROTOCOL; GR_E_IN_USE: both have proved themselves, and the acceptor has
 * no place for this rank. */
gr_status gr_auth_take(gr_auth *auth, const uint8_t *data, size_t size_bytes, size_t *used_out,
                       gr_diag *diag) GR_MUST_CHECK;

/* The acceptor, when the connector has proved itself and none of our answer was sent: answer that
 * there is no place for its rank. That proves as much as the other answer: nobody in between can
 * make a connector believe it. */
gr_status gr_auth_refuse(gr_auth *auth, gr_diag *diag) GR_MUST_CHECK;

/* What to send next: *size_out bytes at the returned place; tell gr_auth_sent how many went out. */
const uint8_t *gr_auth_pending(const gr_auth *auth, size_t *size_out);
void gr_auth_sent(gr_auth *auth, size_t size_bytes);

/* When done: a key that only the two sides have, and have for this connection only. */
gr_status gr_auth_key(const gr_auth *auth, uint8_t key_out[GR_SHA256_BYTES]) GR_MUST_CHECK;

#endif
