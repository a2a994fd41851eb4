/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support_shm_world.h"

enum { PATIENCE_US = 60000000 };

static const uint8_t secret[GR_SECRET_BYTES] = {3, 1, 4, 1, 5};

uint64_t shm_world_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool all_linked(const shm_world *w)
{
    for (int a = 0; a < w->size; a++) {
        for (int b = 0; b < w->size; b++) {
            if (a != b && !gr_mesh_link(w->mesh[a], b)) {
                return false;
            }
        }
    }
    return true;
}

void shm_world_open(shm_world *w, int size, shm_place where)
{
    static const int ranks[SHM_WORLD_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    gr_diag diag;
    gr_clock clock = gr_clock_real();
    *w = (shm_world){.size = size};
    for (int rank = 0; rank < size; rank++) {
        gr_mesh_config config;
        gr_mesh_config_init(&config);
        config.rank = rank;
        config.world_size = size;
        config.secret = secret;
        config.heap_bytes_max = SHM_WORLD_HEAP;
        assert_int_equal(gr_mesh_create(&config, &w->mesh[rank], &diag), GR_OK);
        for (int peer = 0; peer < rank; peer++) {
            assert_int_equal(
                gr_mesh_connect(w->mesh[rank], peer, gr_mesh_address(w->mesh[peer]), &diag), GR_OK);
        }
    }
    int64_t end_us = gr_clock_now_us(&clock) + PATIENCE_US;
    while (!all_linked(w)) {
        assert_true(gr_clock_now_us(&clock) < end_us);
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(gr_mesh_progress(w->mesh[rank], &diag), GR_OK);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        bool no_memory;
        w->shms[rank] = gr_shm_colls_create(w->mesh[rank]);
        assert_non_null(w->shms[rank]);
        assert_true(gr_shm_coll_meet(w->mesh[rank], size, ranks) != GR_SHM_APART);
        w->shm[rank] =
            gr_shm_coll_open(w->shms[rank], 0, rank, size, ranks, GR_SHM_MEET, &no_memory);
        assert_non_null(w->shm[rank]);
        w->shm[rank]->not_oversubscribed = where == NO_CMA || where == CMA;
        w->shm[rank]->cma = where == SHARED_CORES_CMA || where == CMA;
        w->shms[rank]->kernel_cost = 0;
        assert_true(!w->shm[rank]->cma || gr_shm_coll_cma_can(w->shm[rank]));
    }
}

void shm_world_close(shm_world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        gr_shm_colls_destroy(w->shms[rank]);
        gr_mesh_destroy(w->mesh[rank]);
    }
}
