/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SOCKET_H
#define GR_LINK_SOCKET_H

/* What is asked of the kernel for a connection. */

#include <stdbool.h>
#include <stdint.h>

/* False: this kind of socket, or this system, does not know the option. The connection works
 * without. */
bool gr_socket_set(int fd, int level, int name, int value);

/* The connection ends, with ETIMEDOUT, when the other side has acknowledged nothing for that long:
 * its host has vanished, or the network to it. That is so to the millisecond while something is on
 * its way; of a connection on which nothing is, the kernel counts whole seconds, and needs two of
 * them at least. False: not a tcp connection; the kernel sees both of its ends. */
bool gr_socket_give_up_after(int fd, int64_t timeout_us);

/* Both ends are on this host: the address is the same. */
bool gr_socket_same_host(int fd);

/* Raises this process's limit on open files towards `wanted`, as far as its hard limit permits, and
 * returns the limit that holds then. A limit that is high enough is left as it is. */
int64_t gr_descriptors_raise(int64_t wanted);
int64_t gr_descriptors_limit(void); /* the limit that holds */

/* What errno says; where it is that limit, also what to do. Returns text_out. */
enum { GR_DESCRIPTORS_TEXT_BYTES = 160 };
const char *gr_descriptors_error(int error, char text_out[GR_DESCRIPTORS_TEXT_BYTES]);

#endif
