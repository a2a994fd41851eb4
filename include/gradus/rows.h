/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_ROWS_H
#define GRADUS_ROWS_H

/* Sums of a few rows of a large matrix, as the gradient of an embedding is one. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_rows {
    size_t count;            /* rows; may be 0 */
    size_t width;            /* elements of a row, alike on all ranks */
    gr_dtype dtype;          /* alike on all ranks */
    const uint32_t *indices; /* count of them: which row of the matrix; any order, may repeat */
    const void *values;      /* count x width elements */
} gr_rows;

/* Every rank ends with the sum over all ranks of their rows: each index that any rank gave, once,
 * ascending.
 *
 * in        this rank's rows, borrowed for the call. Rows with one index are added to one another
 *           first, in the order in which they stand. The number of rows may differ by rank.
 * op        GR_SUM, or GR_AVERAGE: divided by the world size (a rank without the row counts as 0).
 * rows_out  receives the sum; `indices` and `values` are owned by the caller, who releases them
 *           with gr_rows_release. Untouched on failure.
 * Order     rows are added in the order of a fixed binary tree over the ranks: the same bits for
 *           any link and any algorithm.
 * Returns   GR_OK; GR_E_INVALID; GR_E_NO_MEMORY, on every rank if any lacks it, and the
 *           communicator stays usable; what gr_allreduce returns.
 * Cost      world size times the rows of one rank are received; three small messages and two large
 *           ones to each rank. */
GR_API gr_status gr_allreduce_rows(gr_comm *comm, const gr_rows *in, gr_redop op,
                                   gr_rows *rows_out) GR_MUST_CHECK;

/* Frees what gr_allreduce_rows has filled and empties it. NULL ok. */
GR_API void gr_rows_release(gr_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
