/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PROGRAMS_H
#define GR_COLL_PROGRAMS_H

/* The programs of one communicator that were made already, by shape and algorithm: planning happens
 * once. */

#include "coll/program.h"

enum { GR_PROGRAMS_MAX = 1024 };

typedef struct gr_programs_entry {
    const gr_algorithm *algorithm;
    int root, shards;
    bool out_of_place, uneven, scale;
    gr_program *program;
} gr_programs_entry;

typedef struct gr_programs {
    gr_programs_entry *entries;
    int count, capacity;
    int last; /* the one found last: most callers repeat themselves */
} gr_programs;

void gr_programs_fini(gr_programs *programs);

/* Finds or makes one. `may_forget`: no operation runs, so that a full store may be emptied.
 * GR_E_NO_MEMORY, GR_E_BUG. */
gr_status gr_programs_get(gr_programs *programs, const gr_algorithm *algorithm,
                          const gr_plan_shape *shape, bool scale, bool may_forget,
                          const gr_program **program_out, gr_diag *diag) GR_MUST_CHECK;

#endif
