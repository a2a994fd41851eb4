/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SLURM_H
#define GR_LAUNCH_SLURM_H

/* The hosts of the Slurm job in which this process runs: in salloc, in the script of sbatch, or as
 * the one task of srun. */

#include "launch/host_list.h"

/* A host for each node of the allocation. Its slots are the tasks that Slurm gives it; without a
 * number of tasks (-n), its cores. Slots of a step mean nothing: the launcher itself is its task.
 *
 * environment  as `environ`
 * Returns      GR_OK; GR_E_NOT_FOUND without a sentence: there is no allocation; GR_E_INVALID: the
 *              variables make no sense, or srun starts this program several times. */
gr_status gr_slurm_hosts(char *const *environment, gr_arena *arena, gr_host_list *hosts_out,
                         gr_diag *diag) GR_MUST_CHECK;

#endif
