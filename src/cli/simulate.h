/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_SIMULATE_H
#define GR_CLI_SIMULATE_H

/* What simulate.c (the verb), simulate_print.c (its output) and simulate_ps.c (parameter servers,
 * with their output) share. */

#include "cli/cli.h"
#include "sim/ps_simulate.h"
#include "sim/simulate.h"

typedef struct gr_simulate_options {
    gr_cluster cluster;
    int64_t size_bytes, from_bytes, to_bytes;
    const char *algorithm;
    bool exact, compare, scaling, json;
    int64_t gradient_bytes, bucket_bytes, forward_us, backward_us, update_us;
    bool overlap;
    /* Of parameter servers: */
    int64_t servers, servers_per_host, aggregate, staleness, sync_every, batch, seed;
    int servers_on, strategy; /* gr_simulate_places, gr_simulate_strategies */
    bool replicas;
    double spread_percent;
    const char *slow;
} gr_simulate_options;

gr_training_step gr_simulate_step_of(const gr_simulate_options *options);
/* What a cluster file says, over what is there. */
gr_status gr_simulate_read_cluster(gr_simulate_options *options, const char *path, gr_arena *arena,
                                   gr_diag *diag) GR_MUST_CHECK;

enum { GR_SIMULATE_ROWS_MAX = 16 }; /* algorithms of one collective */

/* One algorithm at one size. */
typedef struct gr_simulate_row {
    const gr_algorithm *algorithm;
    gr_simulated result;
    bool best;
} gr_simulate_row;

typedef struct gr_simulate_size {
    int64_t size_bytes;
    const gr_algorithm *chosen; /* by a job; NULL: by none, or it is not known */
    int row_count;
    gr_simulate_row rows[GR_SIMULATE_ROWS_MAX];
} gr_simulate_size;

/* simulate_choice.c: what a job would choose. NULL: no job has so many ranks, or so few.
 * GR_E_NO_MEMORY */
typedef struct gr_simulate_chooser gr_simulate_chooser;
gr_status gr_simulate_chooser_create(const gr_simulate_options *options, gr_coll coll,
                                     gr_simulate_chooser **chooser_out,
                                     gr_diag *diag) GR_MUST_CHECK;
void gr_simulate_chooser_destroy(gr_simulate_chooser *chooser); /* NULL ok */
const gr_algorithm *gr_simulate_choose(gr_simulate_chooser *chooser, int64_t size_bytes);

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

/* ---- Parameter servers ----------------------------------------------------------------------- */
extern const char *const gr_simulate_places[];     /* where servers are; ends with NULL */
extern const char *const gr_simulate_strategies[]; /* "all" first; ends with NULL */
gr_status gr_simulate_ps(const gr_simulate_options *options, gr_diag *diag) GR_MUST_CHECK;

#endif
