/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_ADDRESS_H
#define GR_LINK_ADDRESS_H

/* Where a process can be reached, as text: "tcp:127.0.0.1:40123", "tcp:[::1]:40123",
 * "unix:@gradus-0f3c..." (the abstract namespace: no file to leave behind). */

#include "link/link.h"

/* A non-blocking listening socket on a port that the system chooses (host given) or under a random
 * abstract name (host NULL), and its address. */
gr_status gr_address_listen(const char *host, char address_out[GR_ADDRESS_BYTES], int *fd_out,
                            gr_diag *diag) GR_MUST_CHECK;

/* Begin to connect, without waiting. GR_OK: connected; GR_PENDING: writable when connected or
 * failed (SO_ERROR); GR_E_AGAIN: the listener is busy, try later; GR_E_PEER_LOST: nobody listens
 * there; GR_E_INVALID: not an address; GR_E_IO. *fd_out is set with the first two only. */
gr_status gr_address_dial(const char *address, int *fd_out, gr_diag *diag) GR_MUST_CHECK;

/* The numeric host that a connected socket has on this side, for a listener that the same peers can
 * reach; NULL-terminated, "127.0.0.1" for a socket that is not of TCP. */
void gr_address_local_host(int fd, char *host_out, size_t size_bytes);

#endif
