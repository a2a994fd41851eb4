/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_SUCCESSION_H
#define GR_GROUP_SUCCESSION_H

/* The coordinator that each member keeps ready, should that of its group die: it listens from the
 * join on, and answers nobody before it is this member's turn to take over. Then a thread of its
 * own serves whoever comes, until the member leaves.
 *
 * Its owner's thread calls everything. Once it has begun, its coordinator belongs to its thread. */

#include "group/group.h"
#include "group/message.h"

typedef struct gr_succession gr_succession;

/* `coordinator`: what it will be, where it listens and for whom. Its log's sink may be called from
 * the thread. */
gr_status gr_succession_create(const gr_coordinator_config *coordinator, gr_succession **out,
                               gr_diag *diag) GR_MUST_CHECK;
const char *gr_succession_address(const gr_succession *succession);
/* It is this member's turn. Of the members of the last generation (`places`, by rank) those that
 * are `silent` are not waited for, nor those where nobody listens any more, and the others no
 * longer than `patience_us`. Nothing if it has begun already. */
gr_status gr_succession_begin(gr_succession *succession, const gr_member *places, int count,
                              const gr_numbers *silent, int64_t patience_us,
                              gr_diag *diag) GR_MUST_CHECK;
/* The owner has left its group: serves until nobody is there any more, or `patience_us` are over,
 * and frees. NULL ok. */
void gr_succession_end(gr_succession *succession, int64_t patience_us);

#endif
