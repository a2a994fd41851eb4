/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_ADDRESS_H
#define GR_LINK_ADDRESS_H

/* Where a process can be reached, as text: "tcp:127.0.0.1:40123", "tcp:[::1]:40123",
 * "unix:@gradus-0f3c..." (the abstract namespace: no file to leave behind). */

#include "link/link.h"

#include <sys/socket.h>

/* No forked child keeps a descriptor of gr_address_listen and gr_address_connect (base/fork.h):
 * gr_fork_close closes it. */

/* A non-blocking listening socket on one of `ports` (host given; "*": all addresses of this host)
 * or under a random abstract name (host NULL), and its address. */
gr_status gr_address_listen(const char *host, gr_ports ports, char address_out[GR_ADDRESS_BYTES],
                            int *fd_out, gr_diag *diag) GR_MUST_CHECK;
/* Takes such a port on all addresses for a program that inherits the descriptor: nobody listens,
 * and others do not get it, but for who says SO_REUSEADDR, as servers do. */
gr_status gr_address_reserve(gr_ports ports, int *fd_out, uint16_t *port_out,
                             gr_diag *diag) GR_MUST_CHECK;

/* "40000-40100" or "40000"; NULL or "": any. GR_E_INVALID with a sentence. */
gr_status gr_ports_parse(const char *text, gr_ports *ports_out, gr_diag *diag) GR_MUST_CHECK;

/* The host, without brackets, and the port of "HOST:PORT", "[HOST]:PORT" or ":PORT"; *port_out
 * points into `text`. False: there is no port, or the host is too long. */
bool gr_address_split(const char *text, char host_out[GR_HOST_BYTES], const char **port_out);

/* The next of several addresses with blanks between them, from *at on; false: no more. One that is
 * too long comes out cut, and cannot be connected to. */
bool gr_address_next(const char *addresses, size_t *at, char address_out[GR_ADDRESS_BYTES]);

/* True if the host of a "tcp:" address is a name, which must be looked up (link/lookup.h) before
 * gr_address_connect; host_out is the name. Never blocks. */
bool gr_address_name(const char *address, char host_out[GR_ADDRESS_BYTES]);
/* The address with a numeric host in the place of its own. */
void gr_address_with_host(const char *address, const struct sockaddr_storage *host,
                          char address_out[GR_ADDRESS_BYTES]);

/* Begins to connect to a numeric or a "unix:" address, and never blocks. GR_OK: connected;
 * GR_PENDING: writable when connected or failed (SO_ERROR); GR_E_AGAIN: the listener is busy, try
 * later; GR_E_PEER_LOST: nobody listens there; GR_E_INVALID: not an address, or its host is a name;
 * GR_E_IO. *fd_out is set with the first two only. */
gr_status gr_address_connect(const char *address, int *fd_out, gr_diag *diag) GR_MUST_CHECK;

#endif
