/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_INFO_PLAN_H
#define GR_CLI_INFO_PLAN_H

/* `gradus info --plan`: which algorithm would be chosen, and why. */

#include "base/config.h"
#include "group/topology.h"

typedef struct gr_plan_options {
    const char *plan; /* a collective; NULL: no plan is asked for */
    int64_t size_bytes;
    int64_t ranks, hosts;
    int64_t rails;
    int link, dtype, cma;
    bool exact, json, rules;
    const char *algorithm, *tune;
    int64_t segment_bytes;
} gr_plan_options;

/* Ranks stand host by host, as evenly as can be. *memory_out is the caller's to free, when the
 * topology is not needed any more. GR_E_NO_MEMORY. */
gr_status gr_info_place_ranks(int ranks, int hosts, gr_topology *topology_out, int **memory_out,
                              gr_diag *diag) GR_MUST_CHECK;

gr_status gr_info_plan(const gr_plan_options *options, gr_diag *diag) GR_MUST_CHECK;

#endif
