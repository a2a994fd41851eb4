/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMM_TUNE_H
#define GR_COLL_COMM_TUNE_H

/* Where the costs of the model come from: measured when a communicator starts, or read from a file
 * that `gradus tune` wrote. Rank 0 decides, measures and tells: all ranks choose alike, whatever
 * their own environment says. */

#include "coll/comm.h"
#include "coll/select/tune.h"

/* Every rank calls it first on a finished communicator. Rank 0 reads its file or, with the others,
 * measures for about config->tune_time_us; then all ranks get the costs and rules of rank 0. Fails
 * on all ranks if the file is refused. */
gr_status gr_tune_comm(gr_comm *comm, const gr_group_config *config, gr_diag *diag) GR_MUST_CHECK;

/* For `gradus tune`: from now on operations of this kind are done so, whatever their size; NULL: as
 * chosen. Every rank must pass the same. */
void gr_tune_force(gr_comm *comm, gr_coll coll, const gr_choice *choice);

/* Fits the costs of a link to what two operations took: a barrier, and an allgather of
 * `bytes`, measured over all ranks. Public for tests. */
void gr_tune_fit(gr_cost_model *model, const gr_topology *topology, int ranks, double barrier_us,
                 double allgather_us, size_t bytes);

#endif
