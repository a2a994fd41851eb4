/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_SLURM_H
#define GR_GROUP_SLURM_H

/* The two notations in which Slurm's variables describe the nodes of a job. Pure functions. */

#include <stdbool.h>
#include <stdint.h>

enum { GR_SLURM_NODES_MAX = 1 << 16, GR_SLURM_NAME_BYTES = 256 };

/* The name of node `index` of a list: that of 2 in "n[01-04,7],m1" is "n03". False: the list has no
 * such node, or is not written like this. */
bool gr_slurm_node(const char *list, int64_t index, char name_out[GR_SLURM_NAME_BYTES]);

/* The number of node `index`: "2(x3),1" says 2 for each of the first three nodes, 1 for the fourth.
 * 0: there is no such node, or no number from 1 to `max`. */
int64_t gr_slurm_count(const char *counts, int64_t index, int64_t max);

#endif
