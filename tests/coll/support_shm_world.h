/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_SHM_WORLD_H
#define GR_TESTS_COLL_SUPPORT_SHM_WORLD_H

/* Several ranks in this process, each with a mesh over shared memory, and shared-memory
 * collectives among them. */

#include "coll/shm/shm_coll_internal.h"

enum { SHM_WORLD_RANKS = 8, SHM_WORLD_HEAP = 64 << 20 };

typedef struct shm_world {
    int size;
    gr_mesh *mesh[SHM_WORLD_RANKS];
    gr_shm_colls *shms[SHM_WORLD_RANKS];
    gr_shm_coll *shm[SHM_WORLD_RANKS];
} shm_world;

/* What the ranks find. */
typedef enum shm_place { SHARED_CORES, SHARED_CORES_CMA, NO_CMA, CMA, PLACES } shm_place;

void shm_world_open(shm_world *w, int size, shm_place where);
void shm_world_close(shm_world *w);

uint64_t shm_world_random(uint64_t *state);

#endif
