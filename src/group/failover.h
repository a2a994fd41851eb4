/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_FAILOVER_H
#define GR_GROUP_FAILOVER_H

/* A coordinator in a member's process, served by a thread of its own. Either rank 0 hosts the first
 * coordinator of its group (bootstrap.h), or a member keeps one ready in case the group's
 * coordinator dies: that one listens from the join on, and answers nobody before it is this
 * member's turn to take over. The thread serves until the member leaves.
 *
 * Its owner's thread calls everything. Once it has begun, its coordinator belongs to its thread. */

#include "group/group.h"
#include "group/message.h"

typedef struct gr_failover gr_failover;

/* `coordinator`: what it will be, where it listens and for whom. Its log's sink may be called from
 * the thread. */
gr_status gr_failover_create(const gr_coordinator_config *coordinator, gr_failover **out,
                             gr_diag *diag) GR_MUST_CHECK;
const char *gr_failover_address(const gr_failover *failover);
/* It is this member's turn. Of the members of the last generation (`places`, by rank) those that
 * are `silent` are not waited for, nor those where nobody listens any more, and the others no
 * longer than `patience_us`. Nothing if it has begun already; GR_E_COMM_BROKEN if it has failed
 * since, and has left its members to the next one. The first coordinator of a group has no such
 * members: `count` 0. */
gr_status gr_failover_begin(gr_failover *failover, const gr_member *places, int count,
                            const gr_numbers *silent, int64_t patience_us,
                            gr_diag *diag) GR_MUST_CHECK;
/* The owner has left its group: serves until nobody is there or needs a coordinator any more, or
 * `patience_us` are over, and frees. NULL ok. */
void gr_failover_end(gr_failover *failover, int64_t patience_us);

#endif
