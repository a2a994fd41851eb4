/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_TUNE_H
#define GR_COLL_TUNE_H

/* Where the costs of the model come from: measured when a communicator starts, or read from a file
 * that `gradus tune` wrote. Rank 0 decides, measures and tells: all ranks choose alike, whatever
 * their own environment says. */

#include "coll/comm.h"
#include "coll/select.h"

/* What was measured, and where. */
typedef struct gr_tuning {
    char processor[96]; /* as the operating system calls it */
    int cores;
    int ranks;
    gr_link_kind link;
    int streams; /* connections of a pair of ranks, over tcp */
    gr_model model;
    gr_select_rules rules[2]; /* [exact]: the fastest, range by range */
} gr_tuning;

/* The processor and the number of cores of this machine, defaults for everything else. */
void gr_tuning_init(gr_tuning *tuning, int ranks, gr_link_kind link, int streams);

/* ---- The file -------------------------------------------------------------------------------- */
typedef struct gr_tuning_point {
    const gr_algorithm *algorithm;
    size_t size_bytes, segment_bytes;
    double time_us;
} gr_tuning_point;

/* JSON; `points` are kept for people. GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_tuning_write(const char *path, const gr_tuning *tuning, const gr_tuning_point *points,
                          size_t point_count, gr_diag *diag) GR_MUST_CHECK;
/* GR_E_INVALID: damaged, of another version, or with rules that are none. */
gr_status gr_tuning_read(const char *path, gr_tuning *tuning_out, gr_diag *diag) GR_MUST_CHECK;
/* Was it measured on such a machine, with so many ranks, over this link of so many streams?
 * GR_E_INVALID if not. */
gr_status gr_tuning_check(const gr_tuning *tuning, const char *path, int ranks, gr_link_kind link,
                          int streams, gr_diag *diag) GR_MUST_CHECK;

/* ---- At the start ---------------------------------------------------------------------------- */
/* The last act of creating a communicator, on every rank: rank 0 reads its file or, with the
 * others, measures for about config->tune_time_us; then it tells all. Fails on all ranks if its
 * file is refused. `before`: NULL, or costs that were measured already, for rank 0; then nothing is
 * measured. */
gr_status gr_tune_start(gr_comm *comm, const gr_group_config *config, const gr_model *before,
                        gr_diag *diag) GR_MUST_CHECK;

/* For `gradus tune`: from now on operations of this kind are done so, whatever their size; NULL: as
 * chosen. Every rank must say the same. */
void gr_tune_force(gr_comm *comm, gr_coll coll, const gr_choice *choice);
const gr_selection *gr_tune_selection(const gr_comm *comm);

/* Fits the costs of a link to what two operations took: a barrier, and an allgather of
 * `bytes`, measured over all ranks. Public for tests. */
void gr_tune_fit(gr_model *model, const gr_topology *topology, int ranks, double barrier_us,
                 double allgather_us, size_t bytes);

#endif
