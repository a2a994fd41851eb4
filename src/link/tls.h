/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_TLS_H
#define GR_LINK_TLS_H

/* TLS 1.3 (OpenSSL) over one connection that has been through the handshake of auth.h. Both sides
 * hold a key that only the two of them can have and that is for this connection alone; it stands in
 * for certificates. The session's own keys come from it and from a fresh Diffie-Hellman exchange:
 * who learns the job's secret later cannot read what was recorded before.
 *
 * To its users it looks like a non-blocking socket: the calls return what sendmsg and recvmsg do.
 * One thread at a time. Heap is taken in create and in the handshake, not by what follows. */

#include "base/hash.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef struct gr_tls gr_tls;

typedef enum gr_tls_role { GR_TLS_CLIENT = 0, GR_TLS_SERVER = 1 } gr_tls_role;

/* The fd is borrowed until gr_tls_destroy, the key is copied. */
gr_status gr_tls_create(gr_tls_role role, int fd, const uint8_t key[GR_SHA256_BYTES],
                        gr_tls **tls_out, gr_diag *diag) GR_MUST_CHECK;
void gr_tls_destroy(gr_tls *tls); /* NULL ok; the peer is not notified */

/* GR_OK: the session stands; GR_PENDING: again when the socket has something; GR_E_AGAIN: the peer
 * closed it; GR_E_AUTH: the peer holds another key, or somebody changed the messages. */
gr_status gr_tls_shake(gr_tls *tls, gr_diag *diag) GR_MUST_CHECK;

/* How many bytes were taken, or -1 and errno. What was taken may still wait here for the socket
 * (gr_tls_holds): a further call, of no parts even, moves it on. EAGAIN: nothing was taken. */
ssize_t gr_tls_send(gr_tls *tls, const struct iovec *parts, int count);
bool gr_tls_holds(const gr_tls *tls);

/* Fills the parts in order, as far as what is here goes. 0: the end; -1 and errno: EAGAIN, EBADMSG
 * (what came was changed on its way, or is no TLS), or what the socket says. */
ssize_t gr_tls_recv(gr_tls *tls, const struct iovec *parts, int count);

#endif
