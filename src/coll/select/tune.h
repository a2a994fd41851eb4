/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SELECT_TUNE_H
#define GR_COLL_SELECT_TUNE_H

/* Where the costs of the model come from: measured when a communicator starts, or read from a file
 * that `gradus tune` wrote. Rank 0 decides, measures and tells: all ranks choose alike, whatever
 * their own environment says. */

#include "base/config.h"
#include "coll/comm.h"
#include "coll/select/select.h"

/* What was measured, and where. */
typedef struct gr_tuning {
    char processor[96]; /* as the operating system calls it */
    int cores;
    int ranks;
    gr_link_kind link;
    int rails; /* connections of a pair of ranks, over tcp */
    gr_cost_model model;
    gr_select_rules rules[2]; /* [exact]: the fastest, range by range */
} gr_tuning;

/* The processor and the number of cores of this machine, defaults for everything else. */
void gr_tuning_init(gr_tuning *tuning, int ranks, gr_link_kind link, int rails);

/* ---- The file -------------------------------------------------------------------------------- */
#define GR_TUNING_FORMAT "gradus-tune"
enum { GR_TUNING_VERSION = 4 };

extern const gr_config_table gr_tuning_costs; /* keys of the costs, of a gr_model */

/* Reads what `gradus tune` wrote (tune_file.c describes the format). GR_E_INVALID with "file:line"
 * in diag: damaged, of another version, or with rules that do not exist here; then *tuning_out is
 * undefined. GR_E_NOT_FOUND, GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_tuning_read(const char *path, gr_tuning *tuning_out, gr_diag *diag) GR_MUST_CHECK;
/* GR_OK if `tuning` was measured on such a machine, with `ranks` ranks over this kind of link with
 * `rails` connections; otherwise GR_E_INVALID. */
gr_status gr_tuning_check(const gr_tuning *tuning, const char *path, int ranks, gr_link_kind link,
                          int rails, gr_diag *diag) GR_MUST_CHECK;

/* ---- A new communicator ---------------------------------------------------------------------- */
/* Every rank calls it first on a finished communicator. Rank 0 reads its file or, with the others,
 * measures for about config->tune_time_us; then all ranks get the costs and rules of rank 0. Fails
 * on all ranks if the file is refused. */
gr_status gr_tune_comm(gr_comm *comm, const gr_group_config *config, gr_diag *diag) GR_MUST_CHECK;

/* For `gradus tune`: from now on operations of this kind are done so, whatever their size; NULL: as
 * chosen. Every rank must say the same. */
void gr_tune_force(gr_comm *comm, gr_coll coll, const gr_choice *choice);

/* Fits the costs of a link to what two operations took: a barrier, and an allgather of
 * `bytes`, measured over all ranks. Public for tests. */
void gr_tune_fit(gr_cost_model *model, const gr_topology *topology, int ranks, double barrier_us,
                 double allgather_us, size_t bytes);

#endif
