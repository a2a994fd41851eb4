/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_INTERFACE_H
#define GR_LINK_INTERFACE_H

/* The network interfaces of this host: which of them a job uses, under which addresses a rank
 * announces itself, and in which order it tries those of a peer. */

#include "link/door.h"

enum {
    GR_INTERFACES_MAX = 16, /* addresses; more are left out, slowest first */
    GR_INTERFACE_TEXT_BYTES = 128,
    GR_REMOTE_BYTES = 512 /* all addresses of a rank as one text */
};

typedef struct gr_interface {
    char name[16];
    char host[48];     /* its address as a number */
    uint8_t bytes[16]; /* the address: 4 or 16 bytes */
    int size;
    int prefix; /* bits of the address that belong to its network */
    bool loopback;
    int64_t speed_mbps; /* what the driver says; 0: unknown */
} gr_interface;

typedef struct gr_interfaces {
    int count;
    gr_interface at[GR_INTERFACES_MAX]; /* the fastest first, loopback last */
} gr_interfaces;

/* All that are up, or those that `wanted` (GRADUS_INTERFACE) lists: names and subnets, "eth0,ib0"
 * or "10.0.0.0/8". GR_E_INVALID: it names none of this host; the sentence tells which there are. */
gr_status gr_interfaces_find(const char *wanted, gr_interfaces *out, gr_diag *diag) GR_MUST_CHECK;

/* "eth0 10.0.0.1/24, 10000 Mbit/s" */
void gr_interface_describe(const gr_interface *of, char text_out[GR_INTERFACE_TEXT_BYTES]);

/* What to listen on: the address if there is only one, else "*". Lives as long as `of`. */
const char *gr_interfaces_listen_host(const gr_interfaces *of);

/* The addresses under which a listener (its address gives the port) is reached. */
void gr_interfaces_announce(const gr_interfaces *of, const char *listener,
                            char remote_out[GR_REMOTE_BYTES]);

/* A peer's addresses in the order in which they are worth a try from here: of a peer on this host
 * loopback first; else those in a network of ours, by the speed of our interface, then those that
 * only a router reaches, and loopback only if there is nothing else. *best_out: our interface for
 * the first of them; NULL: none of ours is in its network. */
void gr_interfaces_order(const gr_interfaces *own, const char *remote, bool same_host,
                         char ordered_out[GR_REMOTE_BYTES], const gr_interface **best_out);

#endif
