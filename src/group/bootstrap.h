/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_BOOTSTRAP_H
#define GR_GROUP_BOOTSTRAP_H

/* How ranks find each other: where the coordinator of the group is, and the job's secret. A backend
 * is a row of ops in bootstrap.c; the first row that applies to the configuration is taken.
 *
 *   callback     the caller's allgather carries address and secret; rank 0 hosts the coordinator
 *   coordinator  both stand in the configuration (GRADUS_COORDINATOR, GRADUS_SECRET)
 *   file         rank 0 hosts the coordinator and writes both into a file of mode 0600: in /tmp if
 *                another launcher started all ranks on one host, else in GRADUS_RENDEZVOUS_DIR
 *   port         rank 0 hosts the coordinator at the host and port that follow from the launcher's
 *                variables; the secret stands in the configuration
 *
 * A joining worker (GRADUS_JOINING) hosts none. Where a member may have taken the coordinator over,
 * it looks for it at each address of GRADUS_COORDINATOR in turn: members that meet at a `port`
 * listen at that port of their own hosts, where it is free, and answer when they have taken over.
 * It gives up where nobody listens at any of them for a sixth of the time for the join.
 *
 * After that every backend is the same join. A coordinator that rank 0 hosts runs on a thread of
 * rank 0 (failover.h), until that rank leaves the group. */

#include "group/group.h"
#include "group/message.h"

typedef struct gr_bootstrap gr_bootstrap;
typedef struct gr_joining gr_joining;

/* Chooses the backend of join->config. A backend that can find out which ranks share this host does
 * so. `bootstrap_out` belongs to the caller. GR_E_INVALID: no backend applies; the sentence says
 * what is needed. */
gr_status gr_bootstrap_create(gr_joining *join, gr_bootstrap **bootstrap_out,
                              gr_diag *diag) GR_MUST_CHECK;
/* Takes the bootstrap's facts over into `config`: coordinator, ranks of this host, failover. */
void gr_bootstrap_apply(const gr_bootstrap *bootstrap, gr_group_config *config);
/* Makes the coordinator known: rank 0 starts it and publishes its address, the others look it up.
 * Blocks at most until the deadline of the join. Sets the group's secret. */
gr_status gr_bootstrap_exchange(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* After a call of the coordinator that failed with `status`: returns GR_OK if the coordinator has
 * been looked up again and is worth another call, else `status`. */
gr_status gr_bootstrap_retry(gr_joining *join, gr_status status, gr_diag *diag) GR_MUST_CHECK;
/* How long one call of the coordinator may take: a member that has not taken over does not answer.
 */
int64_t gr_bootstrap_patience_us(const gr_joining *join);
/* Where a member listens that may take over; 0 .. 0: anywhere. */
gr_ports gr_bootstrap_port(const gr_joining *join);
/* A coordinator hosted here serves until all others have left or need it no longer, at most some
 * seconds. NULL ok. */
void gr_bootstrap_destroy(gr_bootstrap *bootstrap);

/* ---- The record that ranks exchange: in a file, and through the callback (pure functions) ---- */

typedef enum gr_record_kind {
    GR_RECORD_HOST = 1,       /* where a rank runs */
    GR_RECORD_COORDINATOR = 2 /* rank 0: where the coordinator is */
} gr_record_kind;

enum { GR_RECORD_BYTES = 592 };

typedef struct gr_record {
    gr_record_kind kind;
    uint32_t rank, world_size;
    uint64_t host;                   /* gr_host_identify */
    int32_t status;                  /* of rank 0: not GR_OK if it could host no coordinator */
    uint8_t secret[GR_SECRET_BYTES]; /* of rank 0 */
    char text[GR_REMOTE_BYTES];      /* of rank 0: addresses, or what failed */
} gr_record;

void gr_record_put(const gr_record *record, uint8_t out[GR_RECORD_BYTES]);
/* GR_E_PROTOCOL: these are not the bytes of a record. */
gr_status gr_record_get(const uint8_t data[GR_RECORD_BYTES], gr_record *record_out) GR_MUST_CHECK;

#endif
