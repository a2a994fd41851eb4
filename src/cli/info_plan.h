/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_INFO_PLAN_H
#define GR_CLI_INFO_PLAN_H

/* `gradus info --plan`: which algorithm would be chosen, and why. */

#include "base/config.h"

typedef struct gr_plan_options {
    const char *plan; /* a collective; NULL: no plan is asked for */
    int64_t size_bytes;
    int64_t ranks, hosts;
    int64_t streams;
    int link, dtype;
    bool exact, json, rules;
    const char *algorithm, *tune;
    int64_t segment_bytes;
} gr_plan_options;

gr_status gr_info_plan(const gr_plan_options *options, gr_diag *diag) GR_MUST_CHECK;

#endif
