/* SPDX-License-Identifier: Apache-2.0 */
/* Shared-memory collectives other than allreduce, in memory of the mesh and of malloc, in place and
 * out of place, with any root, even and uneven blocks; and memory that is gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sanitized.h"
#include "support_shm_world.h"

enum { RANKS_MOST = 5, FOREIGN = -7, BLOCK_MOST = 30000 };

typedef struct buffers {
    int32_t *in, *out; /* each as long as the whole buffer; the same in place */
    bool in_plain, out_plain;
    const void *input; /* lent to the request */
} buffers;

typedef struct job {
    gr_coll coll;
    int root;
    size_t counts[RANKS_MOST], firsts[RANKS_MOST + 1];
    buffers of[RANKS_MOST];
    gr_shm_coll_op *running[RANKS_MOST];
} job;

static int32_t given(int rank, size_t element)
{
    return (int32_t)(rank * 1000000) + (int32_t)element;
}

static int32_t *allocate(shm_world *w, int rank, bool plain, size_t count)
{
    void *mem = NULL;
    if (plain) {
        mem = malloc(count * sizeof(int32_t) + 1);
    } else {
        assert_int_equal(gr_mesh_alloc(w->mesh[rank], count * sizeof(int32_t) + 1, &mem), GR_OK);
    }
    assert_non_null(mem);
    return mem;
}

static void give_back(shm_world *w, int rank, bool plain, void *mem)
{
    if (plain) {
        free(mem);
    } else {
        gr_mesh_free(w->mesh[rank], mem);
    }
}

static size_t blocks_of(const shm_world *w, const job *j)
{
    return gr_coll_traits_of[j->coll].blocks ? (size_t)w->size : 1;
}

static void make_buffers(shm_world *w, job *j, int rank, uint64_t plain, bool in_place)
{
    size_t count = j->firsts[blocks_of(w, j)];
    buffers *b = &j->of[rank];
    b->in_plain = (plain & 1) != 0;
    b->out_plain = (plain & 2) != 0;
    b->in = allocate(w, rank, b->in_plain, count);
    b->out = in_place ? b->in : allocate(w, rank, b->out_plain, count);
    for (size_t i = 0; i < count; i++) {
        b->out[i] = FOREIGN;
        b->in[i] = given(rank, i);
    }
    b->input = b->in;
}

static void start(shm_world *w, job *j, int rank)
{
    const gr_shm_coll_request request = {
        .coll = j->coll,
        .dtype = GR_I32,
        .op = GR_SUM,
        .count = j->counts[0],
        .counts = j->coll == GR_COLL_ALLTOALL || blocks_of(w, j) == 1 ? NULL : j->counts,
        .root = j->root,
        .shards = w->size,
        .inputs = &j->of[rank].input,
        .out = j->of[rank].out,
        .divisor = 1,
        .prescale = 1,
        .postscale = 1};
    assert_int_equal(gr_shm_coll_start(w->shm[rank], &request, &j->running[rank]), GR_OK);
    gr_shm_coll_post(j->running[rank], w->shm[rank]->next_seq, 1);
}

/* What element i of a block of the result of `rank` is. */
static int32_t expected(const shm_world *w, const job *j, int rank, size_t block, size_t i)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[j->coll];
    size_t element = j->firsts[block] + i;
    int32_t sum = 0;
    if (j->coll == GR_COLL_ALLTOALL) {
        return given((int)block, j->firsts[rank] + i);
    }
    if (!traits->reduces) {
        return given(traits->gives == GR_PARTY_ROOT ? j->root : (int)block, element);
    }
    for (int from = 0; from < w->size; from++) {
        sum += given(from, element);
    }
    return sum;
}

static void check(const shm_world *w, const job *j, int rank)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[j->coll];
    const buffers *b = &j->of[rank];
    for (size_t block = 0; block < blocks_of(w, j); block++) {
        bool gets = gr_coll_receives(j->coll, rank, j->root) &&
                    (!traits->receives_own || block == (size_t)rank);
        for (size_t i = 0; i < j->firsts[block + 1] - j->firsts[block]; i++) {
            size_t at = j->firsts[block] + i;
            int32_t left_alone = b->out == b->in ? given(rank, at) : FOREIGN;
            int32_t want = gets ? expected(w, j, rank, block, i) : left_alone;
            if (b->out[at] != want || (b->in != b->out && b->in[at] != given(rank, at))) {
                fail_msg("%s, rank %d of %d, root %d, block %zu, element %zu: %d instead of %d",
                         traits->name, rank, w->size, j->root, block, i, b->out[at], want);
            }
        }
    }
}

static void run(shm_world *w, job *j, uint64_t *random)
{
    bool uneven = shm_world_random(random) % 2 == 0 && j->coll != GR_COLL_ALLTOALL;
    size_t most = shm_world_random(random) % 4 == 0 ? 40 : BLOCK_MOST;
    size_t even = 1 + shm_world_random(random) % most;
    j->root = (int)(shm_world_random(random) % (uint64_t)w->size);
    for (int block = 0; block < w->size; block++) {
        j->counts[block] = uneven ? shm_world_random(random) % most : even;
        j->firsts[block + 1] = j->firsts[block] + j->counts[block];
    }
    uint64_t plain = shm_world_random(random) % 3; /* none, all, some */
    uint64_t in_place = shm_world_random(random) % 3;
    for (int rank = 0; rank < w->size; rank++) {
        uint64_t some = shm_world_random(random);
        make_buffers(w, j, rank,
                     plain == 0   ? 0
                     : plain == 1 ? 3
                                  : some,
                     in_place == 0 || (in_place == 1 && (some & 4) != 0));
        j->running[rank] = NULL;
    }
    bool started[RANKS_MOST] = {false};
    for (int left = w->size; left > 0;) {
        int rank = (int)(shm_world_random(random) % (uint64_t)w->size);
        if (!started[rank]) {
            start(w, j, rank);
            started[rank] = true;
        } else if (j->running[rank]) {
            gr_status status = gr_shm_coll_move(j->running[rank]);
            if (status != GR_PENDING) {
                assert_int_equal(status, GR_OK);
                gr_shm_coll_release(j->running[rank]);
                j->running[rank] = NULL;
                left--;
            }
        }
    }
    for (int rank = 0; rank < w->size; rank++) {
        check(w, j, rank);
    }
    for (int rank = 0; rank < w->size; rank++) {
        const buffers *b = &j->of[rank];
        if (b->out != b->in) {
            give_back(w, rank, b->out_plain, b->out);
        }
        give_back(w, rank, b->in_plain, b->in);
    }
}

static void all_collectives_in_any_memory(void **unused)
{
    (void)unused;
    static const gr_coll colls[] = {GR_COLL_BROADCAST,     GR_COLL_GATHER,   GR_COLL_SCATTER,
                                    GR_COLL_ALLGATHER,     GR_COLL_ALLTOALL, GR_COLL_REDUCE,
                                    GR_COLL_REDUCE_SCATTER};
    for (int size = 2; size <= RANKS_MOST; size++) {
        for (int where = 0; where < PLACES; where++) {
            uint64_t random = (uint64_t)(size * PLACES + where);
            shm_world w;
            shm_world_open(&w, size, (shm_place)where);
            for (uint64_t i = 0; i < 7 * THOROUGH(12); i++) {
                job j = {.coll = colls[i % 7]};
                run(&w, &j, &random);
            }
            shm_world_close(&w);
        }
    }
}

/* The kernel says the same of memory of either side. Rank 0 fetches the first half of what rank 1
 * gives, which puts the second half there itself. */
static void memory_that_is_gone_is_its_owners(void **unused)
{
    (void)unused;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size_bytes = 64 * page;
    for (int half = 0; half < 2; half++) {
        shm_world w;
        job j = {.coll = GR_COLL_GATHER};
        shm_world_open(&w, 2, CMA);
        j.counts[0] = j.counts[1] = j.firsts[1] = size_bytes / sizeof(int32_t);
        j.firsts[2] = 2 * j.firsts[1];
        make_buffers(&w, &j, 0, 3, true);
        uint8_t *mem =
            mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(mem, MAP_FAILED);
        assert_int_equal(munmap(mem + (half == 0 ? 8 : 40) * page, page), 0);
        j.of[1].input = (const void *)((uintptr_t)mem - size_bytes);
        start(&w, &j, 0);
        start(&w, &j, 1);
        for (int rank = 0; rank < 2; rank++) {
            gr_status status = gr_shm_coll_move(j.running[rank]);
            assert_int_equal(status, rank == half ? GR_E_PROTOCOL : GR_PENDING);
        }
        assert_int_equal(gr_shm_coll_late(j.running[half]), 1);
        gr_shm_coll_release(j.running[0]);
        gr_shm_coll_release(j.running[1]);
        munmap(mem, size_bytes);
        free(j.of[0].in);
        shm_world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_collectives_in_any_memory),
        cmocka_unit_test(memory_that_is_gone_is_its_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
