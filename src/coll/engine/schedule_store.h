/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_SCHEDULE_STORE_H
#define GR_COLL_ENGINE_SCHEDULE_STORE_H

/* The schedules that one communicator has made, by shape and algorithm: planning happens once. */

#include "coll/engine/schedule.h"

enum { GR_SCHEDULES_MANY = 1024 };

/* What is multiplied: the contributions (by prescale), the result (by postscale, and the division
 * of an average). */
typedef struct gr_scaling {
    bool contributions, result;
} gr_scaling;

typedef struct gr_schedules_entry {
    const gr_algorithm *algorithm;
    int root, shards;
    bool out_of_place, uneven;
    uint32_t lines;
    gr_scaling scaling;
    gr_schedule *schedule;
} gr_schedules_entry;

typedef struct gr_schedules {
    gr_schedules_entry *entries;
    int count, capacity;
    int last; /* the one found last: most callers repeat themselves */
} gr_schedules;

void gr_schedules_fini(gr_schedules *schedules);

/* Forgets them if they are many. Nobody uses one, nor keeps one for later. */
void gr_schedules_trim(gr_schedules *schedules);

/* Finds or makes one. GR_E_NO_MEMORY, GR_E_BUG. */
gr_status gr_schedules_get(gr_schedules *schedules, const gr_algorithm *algorithm,
                           const gr_plan_shape *shape, gr_scaling scaling,
                           const gr_schedule **program_out, gr_diag *diag) GR_MUST_CHECK;

#endif
