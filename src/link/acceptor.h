/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_ACCEPTOR_H
#define GR_LINK_ACCEPTOR_H

/* The acceptor of a process: everything between a bare socket and an authenticated connection.
 * It listens, accepts, connects, and drives the handshakes (auth.h) of all connections that are
 * not links yet. Their number and time are bounded; whoever cannot prove that they hold the
 * secret is closed without having received anything but a challenge.
 *
 * One thread at a time. Never blocks. Allocates in create only. */

#include "link/auth.h"
#include "link/lookup.h"
#include "link/tls.h"

typedef struct gr_acceptor gr_acceptor;

typedef struct gr_acceptor_config {
    int rank;                /* ours, or GR_AUTH_RANK_COORDINATOR */
    const uint8_t *secret;   /* GR_SECRET_BYTES, copied */
    bool encrypt;            /* TLS on what goes by tcp, and no tcp with whoever does without */
    bool listen_local;       /* on a Unix socket */
    const char *listen_host; /* by tcp; NULL: not; "*": on all addresses of this host */
    gr_ports ports;
    int half_open_max;  /* incoming connections in handshake; 1 .. GR_ACCEPTOR_HALF_OPEN_MAX */
    int outgoing_max;   /* how many gr_acceptor_connect may be under way */
    int64_t timeout_us; /* of a handshake */
    int64_t connect_timeout_us; /* of all attempts of one connect, GR_NEVER; 0: timeout_us */
    gr_clock clock;
    const gr_log *log;
    /* Asked after the peer proved itself and before we do: false closes it. NULL: all come in that
     * are the only rail of their link. */
    bool (*accepts)(void *accepts_arg, int32_t peer_rank, gr_auth_rail rail);
    /* Asked where `accepts` says no: true keeps the connection, as one in its handshake, until
     * `accepts` says yes (asked again in each gr_acceptor_progress) or this says no. NULL: no. */
    bool (*accepts_soon)(void *accepts_arg, int32_t peer_rank);
    void *accepts_arg;
    bool one_by_one; /* of several connections that say that they are one rank's, without rails, one
                      * is answered; the others wait until it is accepted, or has failed */
    gr_resolver *resolver; /* looks names up, on threads of its own; NULL: getaddrinfo */
    void *resolver_arg;
} gr_acceptor_config;

enum {
    GR_ACCEPTOR_HALF_OPEN_MAX = 4096,
    GR_ACCEPTOR_ADDRESSES_BYTES = 512 + GR_ADDRESS_BYTES /* what a connect takes */
};

/* An authenticated connection; the fd and the session on it belong to the receiver. No forked child
 * keeps the fd: gr_fork_close closes it, gr_fork_unguard gives it to children as well. */
typedef struct gr_accepted {
    int fd;
    gr_tls *tls; /* NULL: none */
    int32_t peer_rank;
    gr_auth_rail rail;
    bool outgoing;
} gr_accepted;

gr_status gr_acceptor_create(const gr_acceptor_config *config, gr_acceptor **acceptor_out,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_acceptor_destroy(gr_acceptor *acceptor);              /* NULL ok */
const char *gr_acceptor_address(const gr_acceptor *acceptor); /* the local one if there is one */
const char *
gr_acceptor_remote_address(const gr_acceptor *acceptor); /* "": does not listen by tcp */
int gr_acceptor_fd(const gr_acceptor *acceptor);         /* readable: call progress */

/* Connect to the first of `addresses` (blanks between) where `peer_rank` is to be reached. A host
 * that is a name stands for all its addresses, and is looked up again in each round. Tries
 * again while the other side is busy or closes the connection; gives up at the timeout, or when
 * nobody is at any of them. An address that does not answer is left for the next after a second;
 * without a timeout it has answered when the connection stands, since the peer may be busy. */
gr_status gr_acceptor_connect(gr_acceptor *acceptor, int32_t peer_rank, gr_auth_rail rail,
                              const char *addresses, gr_diag *diag) GR_MUST_CHECK;

/* Gives up all that gr_acceptor_connect began towards this peer and that was not accepted. */
void gr_acceptor_cancel(gr_acceptor *acceptor, int32_t peer_rank);

/* Move everything on. A failure is that of a gr_acceptor_connect, one in each call, each given
 * once: GR_E_PEER_LOST, GR_E_AUTH, GR_E_PROTOCOL, GR_E_INVALID, GR_E_IO; diag->peer_rank is whom it
 * was to reach. */
gr_status gr_acceptor_progress(gr_acceptor *acceptor, gr_diag *diag) GR_MUST_CHECK;
bool gr_acceptor_accept(gr_acceptor *acceptor, gr_accepted *accepted_out);

/* A connection that this peer made was answered, and has not been accepted yet: for the peer it is
 * made as soon as TLS stands. */
bool gr_acceptor_promised(const gr_acceptor *acceptor, int32_t peer_rank);

/* Absolute time at which progress must be called even if nothing is readable; GR_NEVER. */
int64_t gr_acceptor_next_us(const gr_acceptor *acceptor);

bool gr_acceptor_connecting(const gr_acceptor *acceptor); /* a connect is under way */
bool gr_acceptor_busy(const gr_acceptor *acceptor); /* that, or the handshake of a joining peer */

/* Nobody else is expected: close the listener and all incoming handshakes, and forget the secret.
 * No gr_acceptor_connect may follow. */
void gr_acceptor_stop_listening(gr_acceptor *acceptor);

uint64_t gr_acceptor_pending(const gr_acceptor *acceptor);      /* refused so far */
uint64_t gr_acceptor_system_calls(const gr_acceptor *acceptor); /* about */

#endif
