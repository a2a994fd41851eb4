/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_COUNTS_H
#define GR_OPERATOR_COUNTS_H

/* What has become of jobs, counted by kind and namespace. */

#include "operator/controller.h"

typedef struct gr_counts {
    gr_controller_counts *rows; /* sorted by namespace; NULL: none */
    size_t count;
} gr_counts;

void gr_counts_fini(gr_counts *counts);
/* One more. GR_E_NO_MEMORY. */
gr_status gr_counts_add(gr_counts *counts, const gr_operator_kind *kind, const char *space,
                        gr_job_count what) GR_MUST_CHECK;

/* The conditions of a job that hold, of those that are counted, as bits. */
unsigned gr_counts_held(const json_t *job);
/* One more of each of the conditions `held`. GR_E_NO_MEMORY. */
gr_status gr_counts_add_held(gr_counts *counts, const gr_operator_kind *kind, const char *space,
                             unsigned held) GR_MUST_CHECK;

#endif
