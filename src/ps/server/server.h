/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_SERVER_SERVER_H
#define GR_PS_SERVER_SERVER_H

/* A parameter server: the rules of store.h behind links to whoever comes and holds the job's
 * secret. One thread at a time; only gr_ps_server_wake may be called from any. */

#include "group/group.h"
#include "ps/store/store.h"

typedef struct gr_ps_server_config {
    int number, servers;        /* which of how many this one is */
    int replicas;               /* of each block, on other servers: 0 or 1; the same for all */
    bool replaces;              /* it comes in place of a lost server of this number, while the job
                                 * runs, and takes replicas */
    const char *others;         /* replaces: where all servers are, as clients expect it in
                                 * GRADUS_SERVERS; the entry of this one counts for nothing */
    const char *run;            /* replaces: the run whose tensors it is to keep; NULL: any */
    const uint8_t *secret;      /* GR_SECRET_BYTES, copied */
    gr_link_choice link;        /* auto: shm for clients of this host, tcp for all others */
    bool encrypt;               /* TLS on what goes by tcp; the same as the clients' */
    const char *listen_host;    /* for tcp; "*": any address of `interfaces` */
    const char *interfaces;     /* as gr_interfaces_find takes them; NULL: all */
    gr_ports ports;             /* for tcp; 0 .. 0: any */
    int64_t peer_timeout_us;    /* a client reached by tcp that acknowledges nothing for so long is
                               * lost; with replicas also another server that is silent */
    int64_t spin_us;            /* longest busy wait before sleeping */
    uint64_t bytes_max;         /* of all tensors with their states and sums; 0: no limit */
    gr_ps_updater_ops updaters; /* of tensors with an optimizer; create NULL: there are none */
    void *updaters_arg;
    const gr_log *log; /* may be NULL */
} gr_ps_server_config;

void gr_ps_server_config_init(gr_ps_server_config *config); /* sensible values but for the secret */

typedef struct gr_ps_server gr_ps_server;
gr_status gr_ps_server_create(const gr_ps_server_config *config, gr_ps_server **server_out,
                              gr_diag *diag) GR_MUST_CHECK;
/* Says goodbye to all clients. NULL ok. */
void gr_ps_server_destroy(gr_ps_server *server);

/* Where clients reach it, as they expect it in GRADUS_SERVERS: "unix:@...+tcp:10.0.0.1:4000". */
const char *gr_ps_server_address(const gr_ps_server *server);
/* With replicas: has it met all other servers, as far as it knows? When all have, one of them may
 * be lost. One that replaces another: is it one of them? Without: false. */
bool gr_ps_server_has_met(const gr_ps_server *server);

/* Does what can be done without waiting, within limits, so that no client waits long for another.
 * GR_OK: nothing is left; GR_PENDING: there is more; else the server itself cannot go on. What a
 * client does wrong is never a failure of this. */
gr_status gr_ps_server_poll(gr_ps_server *server, gr_diag *diag) GR_MUST_CHECK;
/* Sleeps until there may be something to do, until the deadline (absolute, of gr_clock_real) or a
 * wake. */
void gr_ps_server_wait(gr_ps_server *server, int64_t deadline_us);
void gr_ps_server_wake(gr_ps_server *server);

#endif
