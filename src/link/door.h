/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_DOOR_H
#define GR_LINK_DOOR_H

/* The door of a process: everything between a bare socket and an authenticated connection. It
 * listens, accepts, dials, and drives the handshakes (auth.h) of all connections that are not links
 * yet. Their number and time are bounded; whoever cannot prove that they hold the secret is closed
 * without having been told anything but a challenge.
 *
 * One thread at a time. Never blocks. Allocates in create only. */

#include "link/auth.h"
#include "link/tls.h"

typedef struct gr_door gr_door;

typedef struct gr_door_config {
    int rank;                /* ours, or GR_AUTH_RANK_COORDINATOR */
    const uint8_t *secret;   /* GR_SECRET_BYTES, copied */
    bool encrypt;            /* TLS on what goes by tcp, and no tcp with whoever does without */
    bool listen_local;       /* on a Unix socket */
    const char *listen_host; /* by tcp; NULL: not; "*": on all addresses of this host */
    gr_ports ports;
    int half_open_max;  /* incoming connections in handshake; 1 .. GR_DOOR_HALF_OPEN_MAX */
    int outgoing_max;   /* how many gr_door_dial may be under way */
    int64_t timeout_us; /* of a handshake, and of all attempts of one dial */
    gr_clock clock;
    const gr_log *log;
    /* Asked after the peer proved itself and before we do: false closes it. NULL: all come in that
     * are the only stream of their link. */
    bool (*admit)(void *admit_arg, int32_t peer_rank, gr_auth_stream stream);
    /* Asked where `admit` says no: true keeps the connection, as one in its handshake, until
     * `admit` says yes (asked again in each gr_door_progress) or this says no. NULL: no. */
    bool (*admit_soon)(void *admit_arg, int32_t peer_rank);
    void *admit_arg;
} gr_door_config;

enum {
    GR_DOOR_HALF_OPEN_MAX = 4096,
    GR_DOOR_ADDRESSES_BYTES = 640 /* what a dial takes */
};

/* An authenticated connection; the fd and the session on it belong to the receiver. */
typedef struct gr_arrival {
    int fd;
    gr_tls *tls; /* NULL: none */
    int32_t peer_rank;
    gr_auth_stream stream;
    bool outgoing;
} gr_arrival;

gr_status gr_door_create(const gr_door_config *config, gr_door **door_out,
                         gr_diag *diag) GR_MUST_CHECK;
void gr_door_destroy(gr_door *door);                     /* NULL ok */
const char *gr_door_address(const gr_door *door);        /* the local one if there is one */
const char *gr_door_remote_address(const gr_door *door); /* "": does not listen by tcp */
int gr_door_fd(const gr_door *door);                     /* readable: call progress */

/* Connect to the first of `addresses` (blanks between) where `peer_rank` is to be reached. Tries
 * again while the other side is busy or closes the connection; gives up at the timeout, or when
 * nobody is at any of them. An address that does not answer is left for the next after a second. */
gr_status gr_door_dial(gr_door *door, int32_t peer_rank, gr_auth_stream stream,
                       const char *addresses, gr_diag *diag) GR_MUST_CHECK;

/* Move everything on. A failure is that of a gr_door_dial, one in each call, each given once:
 * GR_E_PEER_LOST, GR_E_AUTH, GR_E_PROTOCOL, GR_E_INVALID, GR_E_IO; diag->peer_rank is whom it was
 * to reach. */
gr_status gr_door_progress(gr_door *door, gr_diag *diag) GR_MUST_CHECK;
bool gr_door_take(gr_door *door, gr_arrival *arrival_out);

/* Absolute time at which progress must be called even if nothing is readable; GR_NEVER. */
int64_t gr_door_next_us(const gr_door *door);

bool gr_door_dialing(const gr_door *door); /* a dial is under way */
bool gr_door_busy(const gr_door *door);    /* that, or the handshake of a newcomer */

/* Nobody else is expected: close the listener and all incoming handshakes, and forget the secret.
 * No gr_door_dial may follow. */
void gr_door_shut(gr_door *door);

uint64_t gr_door_strangers(const gr_door *door);    /* refused so far */
uint64_t gr_door_system_calls(const gr_door *door); /* about */

#endif
