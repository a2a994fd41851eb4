/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_ADDRESS_H
#define GR_LINK_ADDRESS_H

/* Where a process can be reached, as text: "tcp:127.0.0.1:40123", "tcp:[::1]:40123",
 * "unix:@gradus-0f3c..." (the abstract namespace: no file to leave behind). */

#include "link/link.h"

/* A non-blocking listening socket on one of `ports` (host given; "*": all addresses of this host)
 * or under a random abstract name (host NULL), and its address. */
gr_status gr_address_listen(const char *host, gr_ports ports, char address_out[GR_ADDRESS_BYTES],
                            int *fd_out, gr_diag *diag) GR_MUST_CHECK;

/* "40000-40100" or "40000"; NULL or "": any. GR_E_INVALID with a sentence. */
gr_status gr_ports_parse(const char *text, gr_ports *ports_out, gr_diag *diag) GR_MUST_CHECK;

/* The next of several addresses with blanks between them, from *at on; false: no more. One that is
 * too long comes out cut, and cannot be dialled. */
bool gr_address_next(const char *addresses, size_t *at, char address_out[GR_ADDRESS_BYTES]);

/* Begin to connect, without waiting. GR_OK: connected; GR_PENDING: writable when connected or
 * failed (SO_ERROR); GR_E_AGAIN: the listener is busy, try later; GR_E_PEER_LOST: nobody listens
 * there; GR_E_INVALID: not an address; GR_E_IO. *fd_out is set with the first two only. */
gr_status gr_address_dial(const char *address, int *fd_out, gr_diag *diag) GR_MUST_CHECK;

/* The numeric host that a connected socket has on this side, for a listener that the same peers can
 * reach; NULL-terminated, "127.0.0.1" for a socket that is not of TCP. */
void gr_address_local_host(int fd, char *host_out, size_t size_bytes);

#endif
