/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_LOOKUP_H
#define GR_LINK_LOOKUP_H

/* The addresses of a host name, looked up without blocking the caller.
 *
 * getaddrinfo blocks for as long as name servers do not answer, and has no portable form that does
 * not (getaddrinfo_a is glibc's alone). So each look-up runs on a thread of its own, which ends
 * with the call. Addresses that are numbers need no look-up: a thread runs only while a user's own
 * name, such as that of the coordinator, is being resolved.
 *
 * One thread at a time uses a gr_lookup. */

#include "link/link.h"

#include <sys/socket.h>

enum { GR_HOST_ADDRESSES_MAX = 8 };

typedef struct gr_host_addresses {
    int count; /* those beyond GR_HOST_ADDRESSES_MAX are left out */
    struct sockaddr_storage at[GR_HOST_ADDRESSES_MAX];
} gr_host_addresses;

/* Fills in the addresses of `host`, in the resolver's order. Returns 0, or an EAI_ error number.
 * May block. */
typedef int gr_resolver(void *arg, const char *host, gr_host_addresses *found_out);

typedef struct gr_lookup gr_lookup;

/* Starts a look-up of `host` (copied) by `resolver` (NULL: getaddrinfo; `arg` is borrowed until the
 * resolver returns). GR_E_NO_MEMORY, GR_E_IO. */
gr_status gr_lookup_create(const char *host, gr_resolver *resolver, void *arg,
                           gr_lookup **lookup_out, gr_diag *diag) GR_MUST_CHECK;
/* A descriptor that becomes readable when the look-up is over. It belongs to the look-up. */
int gr_lookup_fd(const gr_lookup *lookup);
/* GR_OK: the addresses, in the order to be tried: that of the resolver, but with the two families
 * of addresses in turn, so that a family without a route costs one attempt (RFC 8305, section 4).
 * GR_PENDING: not over. GR_E_AGAIN: the name servers do not answer now; GR_E_NOT_FOUND: the name
 * does not exist; GR_E_INVALID: it cannot be looked up. */
gr_status gr_lookup_result(gr_lookup *lookup, gr_host_addresses *found_out,
                           gr_diag *diag) GR_MUST_CHECK;
/* A thread that still waits for name servers goes on, touches nothing of the caller's but `arg`,
 * and frees the rest at its end. NULL ok. */
void gr_lookup_destroy(gr_lookup *lookup);

/* The order of gr_lookup_result; declared for tests. */
void gr_host_addresses_sort(gr_host_addresses *addresses);

#endif
