/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FORK_H
#define GR_BASE_FORK_H

/* Descriptors that a forked child must not keep, and a way to find out that a process is a forked
 * child.
 *
 * A peer detects the death of a process by the end of its connections. A child that was forked
 * and does not exec (a data loader) shares them, so that they stay open when the parent dies. In a
 * child each guarded descriptor is replaced by one that leads nowhere: the connection ends with the
 * parent, the number is not given to another file, and closing it there is harmless.
 *
 * Fork handlers have no argument, so the list is one for the whole process. Processes that are
 * started by posix_spawn or vfork run no fork handlers; close-on-exec serves them. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* From now on a forked child does not keep `fd`. Any thread. */
void gr_fork_guard(int fd);
/* A stream socket, and a connection of `listener`, which does not block: non-blocking, closed by
 * exec, and guarded from the moment that it exists. -1: errno tells why. Any thread. */
int gr_fork_socket(int domain);
int gr_fork_accept(int listener, struct sockaddr_storage *from_out);
/* Ends the guard of `fd`, which a child shall have. Does nothing if `fd` is not guarded. Any
 * thread. */
void gr_fork_unguard(int fd);
/* Closes `fd`, whether it is guarded or not. Ignores a negative `fd`. Any thread. */
void gr_fork_close(int fd);

/* Returns the number of forks between this process and the one that first called gr_fork_guard or
 * this function. An object that stores the number at its creation belongs to a parent process if
 * the number has changed. Any thread; safe in signal handlers. */
uint32_t gr_fork_count(void);

#endif
