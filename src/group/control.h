/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_CONTROL_H
#define GR_GROUP_CONTROL_H

/* A control connection between a member and the coordinator: whole messages over a non-blocking
 * socket, through buffers of fixed size. */

#include "group/message.h"
#include "link/acceptor.h"

typedef struct gr_control {
    int fd;      /* -1: closed */
    gr_tls *tls; /* NULL: not encrypted */
    bool ended;  /* the connection is over, whoever closed it; the fd is still to be closed */
    int error;   /* why, as errno; 0: the peer has closed it */
    uint8_t *in;
    size_t in_capacity, in_filled, in_taken;
    uint8_t out[2 * GR_MESSAGE_SMALL_MAX];
    size_t out_filled, out_sent;
    const uint8_t *bulk; /* a long message, borrowed until it is sent; NULL: none */
    size_t bulk_bytes, bulk_sent;
    size_t bulk_at;             /* it goes out when this much of `out` has gone */
    int64_t ping_us, pinged_us; /* how often, 0: never; the last one */
} gr_control;

/* Borrows `in` of in_capacity bytes; the fd and the session of the accepted connection are
 * transferred. A peer whose kernel acknowledges nothing, pings included, for timeout_us is given
 * up. */
void gr_control_init(gr_control *control, const gr_accepted *accepted, int64_t timeout_us,
                     uint8_t *in, size_t in_capacity);
void gr_control_close(gr_control *control);

/* Queue a message; GR_E_NO_MEMORY: the peer does not read. */
gr_status gr_control_put(gr_control *control, const uint8_t *message,
                         size_t size_bytes) GR_MUST_CHECK;
void gr_control_put_bulk(gr_control *control, const uint8_t *message, size_t size_bytes);

/* To be called again and again by a side that may have nothing to send for long: sends a PING when
 * one is due. Returns when the next one is; GR_NEVER: none, since both ends are on this host. */
int64_t gr_control_ping(gr_control *control, int64_t now_us);

/* Returns true if the connection ended because the peer, or the network to it, is silent. */
bool gr_control_is_cut(const gr_control *control);

/* Write what the socket takes. GR_OK: all is gone; GR_PENDING; GR_E_PEER_LOST. */
gr_status gr_control_flush(gr_control *control) GR_MUST_CHECK;

/* The next message; the body is valid until the next call. GR_PENDING: none yet; GR_E_PEER_LOST:
 * the connection has ended; GR_E_PROTOCOL. */
gr_status gr_control_get(gr_control *control, gr_message_kind *kind_out, const uint8_t **body_out,
                         size_t *body_bytes_out, gr_diag *diag) GR_MUST_CHECK;

#endif
