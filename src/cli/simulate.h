/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_SIMULATE_H
#define GR_CLI_SIMULATE_H

/* What simulate.c (the verb) and simulate_print.c (its output) share. */

#include "cli/cli.h"
#include "coll/simulate.h"

enum { GR_SIMULATE_ROWS_MAX = 16 }; /* algorithms of one collective */

/* One algorithm at one size. */
typedef struct gr_simulate_row {
    const gr_algorithm *algorithm;
    gr_simulated result;
    bool best;
} gr_simulate_row;

typedef struct gr_simulate_size {
    int64_t size_bytes;
    int row_count;
    gr_simulate_row rows[GR_SIMULATE_ROWS_MAX];
} gr_simulate_size;

typedef struct gr_simulate_print {
    const gr_cluster *cluster;
    gr_coll coll;
    bool json, compare;
} gr_simulate_print;

/* A head line, one or more lines for each size, and what was done to get there. */
void gr_simulate_print_head(const gr_simulate_print *print, const gr_simulate_size *first);
gr_status gr_simulate_print_size(const gr_simulate_print *print, const gr_simulate_size *size,
                                 gr_diag *diag) GR_MUST_CHECK;
void gr_simulate_print_method(const gr_simulate_print *print, const gr_simulate_size *last);

void gr_simulate_print_step_head(bool json);
gr_status gr_simulate_print_step(bool json, const gr_cluster *cluster, const char *algorithm,
                                 const gr_simulated_step *step, gr_diag *diag) GR_MUST_CHECK;

#endif
