/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_TOPOLOGY_H
#define GR_GROUP_TOPOLOGY_H

/* Where the ranks of a group run. */

#include <gradus/status.h>
#include <stdint.h>

enum { GR_GROUP_WORLD_MAX = 4096 };

/* Hosts are numbered 0 .. host_count - 1 in the order of their first rank. Belongs to the group or
 * communicator that made it and lives as long as that does. */
typedef struct gr_topology {
    int host_count;
    const int *host_of;    /* by rank */
    const int *local_rank; /* by rank: its place among those of its host */
    const int *local_size; /* by host */
} gr_topology;

/* From what each rank says of its host: equal numbers are one host. The same on all ranks. */
gr_status gr_topology_create(const uint64_t *host_ids, int world_size,
                             gr_topology **topology_out) GR_MUST_CHECK;
void gr_topology_destroy(gr_topology *topology); /* NULL ok */

/* What this process takes for its host: processes that can share memory have the same number, all
 * others most probably not. `name` (GRADUS_HOST) stands for all of it if given; else it is made of
 * the running kernel, the host's name, the network namespace and the user. name_out: `name`, or the
 * host's. */
enum { GR_HOST_NAME_BYTES = 64 };
uint64_t gr_host_identify(const char *name, char name_out[GR_HOST_NAME_BYTES]);

#endif
