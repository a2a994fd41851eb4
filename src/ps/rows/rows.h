/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_ROWS_ROWS_H
#define GR_PS_ROWS_ROWS_H

/* The rows of an embedding table that somebody has changed. A table may have many more rows than
 * fit into memory: a row exists from its first push on; before, its values are those that the seed
 * gives it, the same on every server. Pure, as the store is. One thread at a time. */

#include "ps/store/store.h"

enum { GR_PS_ROWS_OF_A_PUSH = 1 << 22 };

typedef struct gr_ps_rows_config {
    uint32_t rows; /* 1 .. GR_PS_ROWS_MAX, numbered from 0 */
    uint32_t columns;
    uint64_t seed;   /* of this table */
    float deviation; /* a row begins as normal numbers times this; 0: as zeros */
    gr_ps_updater_ops updaters;
    void *updater;      /* made by them, borrowed */
    uint64_t bytes_max; /* 0: no limit */
} gr_ps_rows_config;

typedef struct gr_ps_rows gr_ps_rows;
/* GR_E_INVALID: such a table makes no sense; GR_E_NO_MEMORY. */
gr_status gr_ps_rows_create(const gr_ps_rows_config *config, gr_ps_rows **rows_out,
                            gr_diag *diag) GR_MUST_CHECK;
void gr_ps_rows_destroy(gr_ps_rows *rows);

/* values_out: count x columns, in the order of the indices, which may repeat. A row that does not
 * exist is computed, and takes no memory. GR_E_INVALID: an index is too large; the values are
 * undefined. */
gr_status gr_ps_rows_pull(const gr_ps_rows *rows, const uint32_t *indices, size_t count,
                          float *values_out, gr_diag *diag) GR_MUST_CHECK;

/* gradients: count x columns. Rows that stand there several times are added up, in the order in
 * which they stand, and updated once. `step`, `rate` and `factor` are those of gr_ps_updater_ops.
 * *finite_out: no gradient was NaN or infinite. GR_E_INVALID (an index is too large, or there are
 * more than GR_PS_ROWS_OF_A_PUSH), GR_E_NO_MEMORY: no value has changed. */
gr_status gr_ps_rows_push(gr_ps_rows *rows, uint64_t step, double rate, float factor,
                          const uint32_t *indices, size_t count, const float *gradients,
                          bool *finite_out, gr_diag *diag) GR_MUST_CHECK;

/* A row as a whole: for replicas and checkpoints. */
typedef struct gr_ps_row {
    uint32_t index;
    const float *values;
    const float *state[GR_PS_STATES_MAX];
} gr_ps_row;
/* The rows that exist, in the order in which they came to be: the number `at`, from 0; false past
 * the end. What it points to stays until the next push or put. */
bool gr_ps_rows_get(const gr_ps_rows *rows, uint64_t at, gr_ps_row *row_out);
/* Makes a row what it is elsewhere. GR_E_INVALID: the index is too large; GR_E_NO_MEMORY. */
gr_status gr_ps_rows_put(gr_ps_rows *rows, const gr_ps_row *row, gr_diag *diag) GR_MUST_CHECK;

/* From now on at most so many bytes; 0: no limit. */
void gr_ps_rows_limit(gr_ps_rows *rows, uint64_t bytes_max);

/* All memory that is taken, and how many rows exist. */
uint64_t gr_ps_rows_bytes(const gr_ps_rows *rows);
uint64_t gr_ps_rows_count(const gr_ps_rows *rows);

#endif
