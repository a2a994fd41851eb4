/* SPDX-License-Identifier: Apache-2.0 */
/* Shared-memory collectives: several meshes in this process, whose operations are moved on in any
 * order that a seed gives; results against the serial evaluation of the shard tree, bit for bit. */
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coll/plan/plan.h"
#include "coll/shm/shm_coll_internal.h"
#include "sanitized.h"
#include "support_shm_world.h"
#include "support_values.h"

enum { RANKS = SHM_WORLD_RANKS, MANY = 40 };

/* ---- One operation on all ranks -------------------------------------------------------------- */
typedef struct job {
    gr_dtype dtype;
    gr_redop op;
    size_t count;
    int shards;
    uint64_t seed;
    bool in_place;
    uint32_t plain;      /* ranks (bits) whose memory is not the mesh's */
    uint32_t registered; /* ranks (bits) whose memory is not the mesh's, but registered */
    bool last_plain;     /* the last input of each rank is not the mesh's */
    gr_shm_coll_request request[RANKS];
    void *inputs[RANKS][GR_SHARD_PARTIALS_MAX];
    int input_count[RANKS];
    gr_shm_coll_op *running[RANKS];
    void *expected;
} job;

/* Whose memory the input, or (-1) the result, of a rank is. */
typedef enum home { OF_MESH, PLAIN, REGISTERED } home;

static home home_of(const job *j, int rank, int input)
{
    bool last = input >= 0 && input == j->input_count[rank] - 1;
    return (j->plain >> rank & 1) != 0 || (j->last_plain && last) ? PLAIN
           : (j->registered >> rank & 1) != 0                     ? REGISTERED
                                                                  : OF_MESH;
}

static void *memory(shm_world *w, const job *j, int rank, int input, size_t size_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size_bytes / page + 1) * page;
    void *mem = NULL;
    switch (home_of(j, rank, input)) {
    case OF_MESH:
        assert_int_equal(gr_mesh_alloc(w->mesh[rank], size_bytes + 1, &mem), GR_OK);
        break;
    case PLAIN:
        mem = malloc(size_bytes + 1);
        break;
    case REGISTERED:
        mem = aligned_alloc(page, whole);
        assert_int_equal(gr_mesh_register(w->mesh[rank], mem, whole, NULL), GR_OK);
    }
    assert_non_null(mem);
    return mem;
}

static void free_memory(shm_world *w, const job *j, int rank, int input, void *mem)
{
    switch (home_of(j, rank, input)) {
    case OF_MESH:
        gr_mesh_free(w->mesh[rank], mem);
        return;
    case REGISTERED:
        assert_int_equal(gr_mesh_unregister(w->mesh[rank], mem, NULL), GR_OK);
        break;
    case PLAIN:
        break;
    }
    free(mem);
}

static void make_inputs(shm_world *w, job *j, int rank)
{
    size_t size_bytes = j->count * gr_dtype_bytes(j->dtype);
    int first, count;
    gr_shard_range(j->shards, w->size, rank, &first, &count);
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int parts = count > 0 ? gr_tree_cover(j->shards, first, count, ranges) : 0;
    j->input_count[rank] = parts > 0 ? parts : 1;
    for (int i = 0; i < parts; i++) {
        j->inputs[rank][i] = memory(w, j, rank, i, size_bytes);
        vals_subtree(j->inputs[rank][i], j->dtype, j->op, j->count, j->seed, ranges[i].first,
                     ranges[i].count, false);
    }
    if (parts == 0) {
        j->inputs[rank][0] = memory(w, j, rank, 0, size_bytes);
    }
}

static void make_job(shm_world *w, job *j)
{
    size_t size_bytes = j->count * gr_dtype_bytes(j->dtype);
    j->expected = malloc(size_bytes + 1);
    assert_non_null(j->expected);
    vals_expect(j->expected, j->dtype, j->op, j->count, j->seed, j->shards, false);
    for (int rank = 0; rank < w->size; rank++) {
        make_inputs(w, j, rank);
        j->running[rank] = NULL;
        j->request[rank] = (gr_shm_coll_request){
            .coll = GR_COLL_ALLREDUCE,
            .dtype = j->dtype,
            .op = j->op,
            .count = j->count,
            .shards = j->shards,
            .inputs = (const void *const *)j->inputs[rank],
            .out = j->in_place ? j->inputs[rank][0] : memory(w, j, rank, -1, size_bytes),
            .divisor = j->op == GR_AVERAGE ? j->shards : 1,
            .prescale = 1,
            .postscale = 1};
    }
}

static void start(shm_world *w, job *j, int rank)
{
    assert_int_equal(gr_shm_coll_start(w->shm[rank], &j->request[rank], &j->running[rank]), GR_OK);
    gr_shm_coll_post(j->running[rank], w->shm[rank]->next_seq, 1000 + j->count);
}

/* Moves one rank; true if its operation is finished. */
static bool move(job *j, int rank)
{
    gr_status status = gr_shm_coll_move(j->running[rank]);
    if (status == GR_PENDING) {
        return false;
    }
    assert_int_equal(status, GR_OK);
    gr_shm_coll_release(j->running[rank]);
    j->running[rank] = NULL;
    return true;
}

static void check_and_free(shm_world *w, job *j)
{
    size_t size_bytes = j->count * gr_dtype_bytes(j->dtype);
    for (int rank = 0; rank < w->size; rank++) {
        if (memcmp(j->request[rank].out, j->expected, size_bytes) != 0) {
            fail_msg("rank %d of %d: %zu %s (%s) over %d shards, seed %#llx, plain %#x: wrong",
                     rank, w->size, j->count, gr_dtype_name(j->dtype), gr_redop_name(j->op),
                     j->shards, (unsigned long long)j->seed, j->plain);
        }
        for (int i = 0; i < j->input_count[rank]; i++) {
            free_memory(w, j, rank, i, j->inputs[rank][i]);
        }
        if (!j->in_place) {
            free_memory(w, j, rank, -1, j->request[rank].out);
        }
    }
    free(j->expected);
}

static void run(shm_world *w, job *j, uint64_t *random)
{
    int left = w->size;
    make_job(w, j);
    bool started[RANKS] = {false};
    while (left > 0) {
        int rank = (int)(shm_world_random(random) % (uint64_t)w->size);
        if (!started[rank]) {
            start(w, j, rank);
            started[rank] = true;
        } else if (j->running[rank]) {
            left -= move(j, rank);
        }
    }
    check_and_free(w, j);
}

/* ---- Results --------------------------------------------------------------------------------- */
static void test_all_shards_on_all_ranks(void **unused)
{
    (void)unused;
    for (int size = 2; size <= RANKS; size++) {
        uint64_t random = (uint64_t)size;
        shm_world w;
        shm_world_open(&w, size, (shm_place)(size % PLACES));
        for (int shards = 1; shards <= 64; shards++) {
            /* Windows hold a divisor of it, lines a part: every path sees all shards. */
            static const size_t counts[] = {1, 3, 70, 1500};
            if (shards % 16 == 0) {
                shm_world_close(&w);
                shm_world_open(&w, size, (shm_place)((size + shards / 16) % PLACES));
            }
            for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
                job j = {.dtype = GR_F32,
                         .op = shards % 5 == 0 ? GR_AVERAGE : GR_SUM,
                         .count = counts[k],
                         .shards = shards,
                         .seed = shm_world_random(&random),
                         .in_place = shm_world_random(&random) % 2 != 0,
                         .plain = shm_world_random(&random) % 2 != 0 ? (uint32_t)random : 0};
                run(&w, &j, &random);
            }
        }
        shm_world_close(&w);
    }
}

static void test_all_types_and_operations(void **unused)
{
    (void)unused;
    static const size_t counts[] = {1, 9, 513, 40000, 400001};
    uint64_t random = 77;
    for (int size = 2; size <= 5; size++) {
        shm_world w;
        shm_world_open(&w, size, (shm_place)(size % PLACES));
        for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < GR_REDOP_COUNT; op++) {
                bool has = op != GR_USER && vals_reducible((gr_dtype)dtype, (gr_redop)op);
                for (size_t k = 0; has && k < sizeof counts / sizeof counts[0]; k++) {
                    if (counts[k] > 50000 && (op != GR_SUM || size > 3)) {
                        continue;
                    }
                    job j = {.dtype = (gr_dtype)dtype,
                             .op = (gr_redop)op,
                             .count = counts[k],
                             .shards = size,
                             .seed = shm_world_random(&random),
                             .in_place = shm_world_random(&random) % 2 != 0,
                             .plain = shm_world_random(&random) % 2 != 0 ? (uint32_t)random : 0};
                    run(&w, &j, &random);
                }
            }
        }
        shm_world_close(&w);
    }
}

/* Do all ranks, or (false) none, say that their buffers of the last operation are in the heap? */
static void check_in_heap(const shm_world *w, bool in_heap)
{
    for (int rank = 0; rank < w->size; rank++) {
        const gr_shm_coll *shm = w->shm[rank];
        const shm_slot *slot = &shm->own->slots[(shm->next_seq - 1) % SHM_COLL_SLOTS];
        assert_int_equal(atomic_load(&slot->control.sequence), shm->next_seq);
        assert_int_equal((atomic_load(&slot->control.kinds) & SHM_COLL_IN_HEAP) != 0, in_heap);
    }
}

static void registered_memory_is_reached_directly(void **unused)
{
    (void)unused;
    static const size_t counts[] = {3000, 40000};
    enum { SIZE = 3, SHARDS = 13, ALL = (1 << SIZE) - 1 };
    uint64_t random = 11;
    for (int where = 0; where < PLACES; where++) {
        shm_world w;
        shm_world_open(&w, SIZE, (shm_place)where);
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            const job any = {.dtype = GR_F32, .op = GR_SUM, .count = counts[k], .shards = SHARDS};
            job plain = any, registered = any, in_part = any;
            plain.plain = ALL;
            run(&w, &plain, &random);
            check_in_heap(&w, false);
            registered.registered = ALL;
            run(&w, &registered, &random);
            check_in_heap(&w, true);
            in_part.registered = k == 0 ? ALL : 2;
            in_part.last_plain = true;
            run(&w, &in_part, &random);
            assert_true(in_part.input_count[0] > 1); /* the first is in the heap */
            check_in_heap(&w, false);
            run(&w, &plain, &random); /* what was registered is so no more */
            check_in_heap(&w, false);
        }
        shm_world_close(&w);
    }
}

/* a (+) b = 2a + b: not commutative, and not even associative, so that the order shows. */
static void twice_and_once(void *dst, const void *a, const void *b, size_t count, void *arg)
{
    ++*(int *)arg;
    for (size_t i = 0; i < count; i++) {
        ((int32_t *)dst)[i] = 2 * ((const int32_t *)a)[i] + ((const int32_t *)b)[i];
    }
}

static void test_user_functions_and_factors(void **unused)
{
    (void)unused;
    static const size_t counts[] = {2, 500, 30000};
    for (size_t k = 0; k < 2 * sizeof counts / sizeof counts[0]; k++) {
        shm_world w;
        uint64_t random = k;
        int calls = 0;
        size_t count = counts[k / 2];
        shm_world_open(&w, 3, (shm_place)(k % PLACES));
        for (int plain = 0; plain < 2; plain++) {
            job j = {.dtype = GR_I32,
                     .op = GR_SUM,
                     .count = count,
                     .shards = 3,
                     .seed = k,
                     .plain = plain ? 2 : 0};
            make_job(&w, &j);
            int32_t *want = j.expected;
            for (size_t i = 0; i < count; i++) {
                int32_t in[3];
                for (int rank = 0; rank < 3; rank++) {
                    int32_t *at = &((int32_t *)j.inputs[rank][0])[i];
                    *at = (int32_t)(i % 100) + rank;
                    in[rank] = *at * (rank + 1); /* factors of its own on each rank */
                }
                want[i] = 2 * (2 * in[0] + in[1]) + in[2];
                want[i] *= 10;
            }
            for (int rank = 0; rank < 3; rank++) {
                j.request[rank].op = GR_USER;
                j.request[rank].user = twice_and_once;
                j.request[rank].user_arg = &calls;
                j.request[rank].prescale = rank + 1;
                j.request[rank].postscale = 10;
                start(&w, &j, rank);
            }
            for (int left = 3; left > 0;) {
                int rank = (int)(shm_world_random(&random) % 3);
                left -= j.running[rank] && move(&j, rank);
            }
            check_and_free(&w, &j);
        }
        assert_true(calls > 0);
        shm_world_close(&w);
    }
}

/* ---- Several at once ------------------------------------------------------------------------- */
/* Each rank starts all of them as soon as it may, far ahead of the others; more than there
 * are slots. */
static void many_at_once(int size, shm_place where, uint64_t seed)
{
    static const size_t counts[] = {1, 300, 5000, 200000};
    uint64_t random = seed;
    shm_world w;
    job *jobs = calloc(MANY, sizeof *jobs);
    assert_non_null(jobs);
    shm_world_open(&w, size, where);
    int started[RANKS] = {0};
    for (int i = 0; i < MANY; i++) {
        jobs[i] = (job){.dtype = GR_F32,
                        .op = GR_SUM,
                        .count = counts[shm_world_random(&random) % 4],
                        .shards = size,
                        .seed = shm_world_random(&random),
                        .in_place = true,
                        .plain = shm_world_random(&random) % 3 == 0 ? 1 : 0};
        make_job(&w, &jobs[i]);
    }
    for (int left = MANY * size; left > 0;) {
        int rank = (int)(shm_world_random(&random) % (uint64_t)size);
        if (started[rank] < MANY && shm_world_random(&random) % 4 != 0) {
            start(&w, &jobs[started[rank]++], rank);
        }
        int i = (int)(shm_world_random(&random) % MANY);
        if (jobs[i].running[rank]) {
            left -= move(&jobs[i], rank);
        }
    }
    for (int i = 0; i < MANY; i++) {
        check_and_free(&w, &jobs[i]);
    }
    free(jobs);
    shm_world_close(&w);
}

static void test_many_at_once(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= THOROUGH(13); seed++) {
        many_at_once(2 + (int)(seed % 4), (shm_place)(seed % PLACES), seed);
    }
}

static gr_shm_coll_op *start_barrier(gr_shm_coll *shm, uint64_t fingerprint)
{
    gr_shm_coll_op *op = NULL;
    gr_shm_coll_request request = {.coll = GR_COLL_BARRIER};
    assert_int_equal(gr_shm_coll_start(shm, &request, &op), GR_OK);
    gr_shm_coll_post(op, shm->next_seq, fingerprint);
    return op;
}

static void test_nobody_leaves_a_barrier_before_all_have_come(void **unused)
{
    (void)unused;
    shm_world w;
    gr_shm_coll_op *op[3] = {NULL};
    shm_world_open(&w, 3, CMA);
    for (int round = 0; round < 3 * SHM_COLL_SLOTS; round++) {
        int last = round % 3;
        for (int rank = 0; rank < 3; rank++) {
            op[rank] = rank == last ? NULL : start_barrier(w.shm[rank], 5);
        }
        for (int rank = 0; rank < 3; rank++) {
            if (op[rank]) {
                assert_int_equal(gr_shm_coll_move(op[rank]), GR_PENDING);
            }
        }
        for (int rank = 0; rank < 3; rank++) {
            if (op[rank]) {
                assert_int_equal(gr_shm_coll_move(op[rank]), GR_PENDING);
                assert_int_equal(gr_shm_coll_late(op[rank]), last);
            }
        }
        op[last] = start_barrier(w.shm[last], 5);
        assert_int_equal(gr_shm_coll_move(op[last]), GR_OK);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(gr_shm_coll_move(op[rank]), GR_OK);
            gr_shm_coll_release(op[rank]);
        }
    }
    shm_world_close(&w);
}

/* Plans between the operations count, and need nobody. */
static void plans_between_operations_keep_the_numbers(void **unused)
{
    (void)unused;
    shm_world w;
    shm_world_open(&w, 2, CMA);
    for (int round = 0; round < 5; round++) {
        w.shm[0]->next_seq += 2 * SHM_COLL_SLOTS + (uint32_t)round;
        gr_shm_coll_op *first = start_barrier(w.shm[0], 5);
        assert_int_equal(gr_shm_coll_move(first), GR_PENDING); /* its slot is not free */
        w.shm[1]->next_seq += 2 * SHM_COLL_SLOTS + (uint32_t)round;
        gr_shm_coll_op *second = start_barrier(w.shm[1], 5);
        assert_int_equal(gr_shm_coll_move(second), GR_PENDING);
        assert_int_equal(gr_shm_coll_move(first), GR_OK);
        assert_int_equal(gr_shm_coll_move(second), GR_OK);
        gr_shm_coll_release(first);
        gr_shm_coll_release(second);
    }
    shm_world_close(&w);
}

/* The numbers of operations restart after 2^32 of them. */
static void numbers_that_wrap_around_keep_the_sums(void **unused)
{
    (void)unused;
    for (shm_place where = 0; where < PLACES; where++) {
        uint64_t random = where;
        shm_world w;
        shm_world_open(&w, 2, where);
        w.shm[0]->next_seq = w.shm[1]->next_seq = UINT32_MAX - SHM_COLL_SLOTS - 4;
        for (int i = 0; i < SHM_COLL_SLOTS + 24; i++) {
            job j = {.dtype = GR_F32, .op = GR_SUM, .count = 20000, .shards = 2, .seed = random};
            run(&w, &j, &random);
        }
        shm_world_close(&w);
    }
}

/* Ranks that see different numbers of cores agree on the shares of the work. */
static void different_numbers_of_cores_give_the_same_shares(void **unused)
{
    (void)unused;
    for (uint32_t cores = 1; cores < 8; cores++) {
        uint64_t random = cores;
        shm_world w;
        shm_world_open(&w, 3, SHARED_CORES);
        for (int rank = 0; rank < 3; rank++) {
            w.shm[rank]->cores = 1 + (cores + (uint32_t)rank * 3) % 8;
        }
        for (int i = 0; i < 3; i++) {
            job j = {.dtype = GR_F32, .op = GR_SUM, .count = 300000, .shards = 3, .seed = random};
            run(&w, &j, &random);
        }
        shm_world_close(&w);
    }
}

/* What needs no rank that is late ends where it was started, also if each rank adds its share. */
static void shares_of_quick_ranks_end_within_a_try(void **unused)
{
    (void)unused;
    shm_world w;
    shm_world_open(&w, 2, NO_CMA);
    job j = {.dtype = GR_F32, .op = GR_SUM, .count = 4096, .shards = 2};
    make_job(&w, &j);
    start(&w, &j, 0);
    start(&w, &j, 1);
    assert_false(move(&j, 1));
    bool waited = true;
    assert_true(gr_shm_coll_try(j.running[0], &waited));
    assert_false(waited);
    gr_shm_coll_release(j.running[0]);
    assert_true(move(&j, 1));
    /* Here nobody is quick: both are moved on to the end. */
    check_and_free(&w, &j);
    make_job(&w, &j);
    start(&w, &j, 0);
    start(&w, &j, 1);
    assert_false(gr_shm_coll_try(j.running[0], &waited));
    assert_false(move(&j, 1)); /* its share, and then the end */
    assert_true(move(&j, 1));
    assert_true(move(&j, 0));
    check_and_free(&w, &j);
    shm_world_close(&w);
}

/* ---- What must not be ------------------------------------------------------------------------ */
static void test_other_operations_are_seen(void **unused)
{
    (void)unused;
    shm_world w;
    shm_world_open(&w, 2, CMA);
    gr_shm_coll_op *first = start_barrier(w.shm[0], 5);
    assert_int_equal(gr_shm_coll_move(first), GR_PENDING);
    gr_shm_coll_op *second = start_barrier(w.shm[1], 6);
    assert_int_equal(gr_shm_coll_move(second), GR_E_MISMATCH);
    assert_int_equal(gr_shm_coll_late(second), 0);
    assert_int_equal(gr_shm_coll_move(first), GR_E_MISMATCH);
    gr_shm_coll_release(first);
    gr_shm_coll_release(second);
    shm_world_close(&w);
}

static gr_shm_coll_op *start_broadcast(gr_shm_coll *shm, float *values, size_t count, int root,
                                       uint64_t fingerprint)
{
    gr_shm_coll_op *op = NULL;
    const void *input = values;
    gr_shm_coll_request request = {.coll = GR_COLL_BROADCAST,
                                   .count = count,
                                   .root = root,
                                   .shards = shm->size,
                                   .inputs = &input,
                                   .out = values,
                                   .divisor = 1,
                                   .prescale = 1,
                                   .postscale = 1};
    assert_int_equal(gr_shm_coll_start(shm, &request, &op), GR_OK);
    gr_shm_coll_post(op, shm->next_seq, fingerprint);
    return op;
}

/* Of one element, by a rank that waits for nobody: it is over at once. */
static void broadcast_own(gr_shm_coll *shm, float *value, uint64_t fingerprint)
{
    gr_shm_coll_op *op = start_broadcast(shm, value, 1, shm->rank, fingerprint);
    assert_int_equal(gr_shm_coll_move(op), GR_OK);
    gr_shm_coll_release(op);
}

/* The root of a broadcast that all pack waits for nobody, also if its memory could be read. */
static void a_root_that_packs_registered_memory_does_not_wait(void **unused)
{
    (void)unused;
    enum { MOST = SHM_COLL_SMALL_MAX / sizeof(float) };
    static const struct {
        shm_place where;
        size_t count;
        gr_status at_once;
    } cases[] = {{CMA, SHM_COLL_PACK_ROOTED_MAX / sizeof(float), GR_OK},
                 {CMA, SHM_COLL_PACK_ROOTED_MAX / sizeof(float) + 1, GR_PENDING},
                 {SHARED_CORES, MOST, GR_OK},
                 {SHARED_CORES, MOST + 1, GR_PENDING}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        shm_world w;
        float *values[2];
        gr_shm_coll_op *ops[2];
        shm_world_open(&w, 2, cases[k].where);
        for (int rank = 0; rank < 2; rank++) {
            void *mem;
            assert_int_equal(gr_mesh_alloc(w.mesh[rank], (MOST + 1) * sizeof(float), &mem), GR_OK);
            values[rank] = mem;
        }
        values[0][cases[k].count - 1] = 7;
        ops[0] = start_broadcast(w.shm[0], values[0], cases[k].count, 0, 5);
        assert_int_equal(gr_shm_coll_move(ops[0]), cases[k].at_once);
        ops[1] = start_broadcast(w.shm[1], values[1], cases[k].count, 0, 5);
        gr_status status[2] = {cases[k].at_once, GR_PENDING};
        while (status[0] == GR_PENDING || status[1] == GR_PENDING) {
            for (int rank = 0; rank < 2; rank++) {
                status[rank] = status[rank] == GR_PENDING ? gr_shm_coll_move(ops[rank]) : GR_OK;
            }
        }
        gr_shm_coll_release(ops[0]);
        gr_shm_coll_release(ops[1]);
        assert_true(values[1][cases[k].count - 1] == 7);
        for (int rank = 0; rank < 2; rank++) {
            gr_mesh_free(w.mesh[rank], values[rank]);
        }
        shm_world_close(&w);
    }
}

/* Who waits for a rank that says only what it called learns that it called something else. */
static void a_rank_that_nobody_waits_for_says_what_it_called(void **unused)
{
    (void)unused;
    shm_world w;
    float value = 0;
    shm_world_open(&w, 2, CMA);
    gr_shm_coll_op *barrier = start_barrier(w.shm[0], 5);
    assert_int_equal(gr_shm_coll_move(barrier), GR_PENDING);
    assert_false(gr_shm_coll_called_other(barrier, 1));
    gr_shm_coll_op *receiver = start_broadcast(w.shm[1], &value, 1, 0, 6);
    assert_int_equal(atomic_load(&w.shm[1]->own->slots[0].control.sequence), 0);
    assert_true(gr_shm_coll_called_other(barrier, 1));
    assert_int_equal(gr_shm_coll_move(receiver), GR_E_MISMATCH);
    gr_shm_coll_release(barrier);
    gr_shm_coll_release(receiver);
    shm_world_close(&w);
}

/* Of two ranks that wait for nobody the later one sees what the other has called, whichever number
 * the operation has, although both let go of its slot with it. */
static void calls_that_nobody_waits_for_are_compared_whatever_their_number(void **unused)
{
    (void)unused;
    for (uint32_t number = 0; number < SHM_COLL_SLOTS; number++) {
        shm_world w;
        float values[2] = {1, 2};
        bool seen = false;
        shm_world_open(&w, 2, CMA);
        for (uint32_t i = 0; i < 2 * SHM_COLL_SLOTS && !seen; i++) {
            for (int rank = 0; rank < 2; rank++) {
                uint32_t at;
                uint64_t own;
                int peer;
                uint64_t fingerprint = i == number ? 6 + (uint64_t)rank : 5;
                broadcast_own(w.shm[rank], &values[rank], fingerprint);
                if (gr_shm_coll_mismatch(w.shm[rank], &at, &own, &peer)) {
                    assert_int_equal(at, number);
                    assert_int_equal(own, fingerprint);
                    assert_int_equal(peer, 1 - rank);
                    seen = true;
                }
            }
        }
        assert_true(seen);
        shm_world_close(&w);
    }
}

/* A root is ahead of who receives by as many operations as there are slots, and no further; what
 * was started behind one that waits for a place waits as well, although there is a slot for it. */
static void a_root_is_ahead_by_as_many_operations_as_there_are_slots(void **unused)
{
    (void)unused;
    enum { LARGE = SHM_COLL_SMALL_MAX / sizeof(float) };
    static float large[LARGE], got[LARGE];
    shm_world w;
    shm_world_open(&w, 2, CMA);
    float value = 3;
    for (int i = 0; i < SHM_COLL_SLOTS; i++) {
        broadcast_own(w.shm[0], &value, 5);
    }
    large[LARGE - 1] = 4;
    gr_shm_coll_op *ops[2] = {start_broadcast(w.shm[0], large, LARGE, 0, 6),
                              start_broadcast(w.shm[0], &value, 1, 0, 7)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_shm_coll_move(ops[i]), GR_PENDING);
        assert_false(gr_shm_coll_ready(ops[i]));
    }
    for (int i = 0; i < SHM_COLL_SLOTS; i++) {
        float found = 0;
        gr_shm_coll_op *op = start_broadcast(w.shm[1], &found, 1, 0, 5);
        assert_int_equal(gr_shm_coll_move(op), GR_OK);
        assert_true(found == value);
        gr_shm_coll_release(op);
        bool room = i + 1 >= SHM_COLL_SLOTS - SHM_COLL_PLACES + SHM_COLL_FINISHED_MAX;
        assert_int_equal(gr_shm_coll_ready(ops[0]), room);
        assert_false(gr_shm_coll_ready(ops[1]));
    }
    float found = 0;
    gr_shm_coll_op *received[2] = {start_broadcast(w.shm[1], got, LARGE, 0, 6),
                                   start_broadcast(w.shm[1], &found, 1, 0, 7)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_shm_coll_move(ops[i]), GR_OK);
        assert_int_equal(gr_shm_coll_move(received[i]), GR_OK);
    }
    assert_true(got[LARGE - 1] == 4 && found == value);
    for (int i = 0; i < 2; i++) {
        gr_shm_coll_release(ops[i]);
        gr_shm_coll_release(received[i]);
    }
    shm_world_close(&w);
}

static void test_memory_outside_the_heap_is_refused(void **unused)
{
    (void)unused;
    for (int what = 0; what < 3; what++) {
        shm_world w;
        shm_world_open(&w, 2, CMA);
        job j = {.dtype = GR_F32, .op = GR_SUM, .count = 50000, .shards = 2, .in_place = true};
        make_job(&w, &j);
        start(&w, &j, 0);
        start(&w, &j, 1);
        assert_int_equal(gr_shm_coll_move(j.running[0]), GR_PENDING);
        uint64_t bad = what == 0 ? 0 : what == 1 ? UINT64_MAX : (uint64_t)SHM_WORLD_HEAP - 100000;
        if (what == 1) {
            w.shm[0]->own->slots[0].control.body.at.out = bad;
        } else {
            w.shm[0]->own->slots[0].control.body.at.input = bad;
        }
        assert_int_equal(gr_shm_coll_move(j.running[1]), GR_E_PROTOCOL);
        assert_int_equal(gr_shm_coll_late(j.running[1]), 0);
        gr_shm_coll_release(j.running[0]);
        gr_shm_coll_release(j.running[1]);
        free(j.expected);
        shm_world_close(&w);
    }
}

typedef struct liar {
    shm_control *line;
    _Atomic bool runs, ends;
} liar;

static void *change_kinds(void *arg)
{
    liar *l = arg;
    for (uint8_t kinds = 0; !atomic_load(&l->ends); kinds ^= SHM_COLL_IN_HEAP) {
        atomic_store(&l->line->kinds, (uint8_t)(kinds | SHM_COLL_BY_KERNEL));
        atomic_store(&l->runs, true);
    }
    return NULL;
}

/* A peer that changes what it said of its buffers is refused or believed, once; nothing is read at
 * an address that was not checked. */
static void buffer_kinds_that_change_are_read_once(void **unused)
{
    (void)unused;
    for (int round = 0; round < 50; round++) {
        shm_world w;
        shm_world_open(&w, 2, CMA);
        job j = {.dtype = GR_F32, .count = 5000, .shards = 2, .in_place = true, .plain = 2};
        make_job(&w, &j);
        start(&w, &j, 0);
        start(&w, &j, 1);
        pthread_t thread;
        liar l = {.line = &w.shm[0]->own->slots[0].control};
        assert_int_equal(pthread_create(&thread, NULL, change_kinds, &l), 0);
        while (!atomic_load(&l.runs)) {
            sched_yield();
        }
        for (int i = 0; i < 3; i++) {
            gr_status status = gr_shm_coll_move(j.running[1]);
            assert_true(status == GR_PENDING || status == GR_E_PROTOCOL);
        }
        atomic_store(&l.ends, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        gr_shm_coll_release(j.running[0]);
        gr_shm_coll_release(j.running[1]);
        free_memory(&w, &j, 0, 0, j.inputs[0][0]);
        free_memory(&w, &j, 1, 0, j.inputs[1][0]);
        free(j.expected);
        shm_world_close(&w);
    }
}

/* ---- Memory that only the kernel reaches ----------------------------------------------------- */
/* Two ranks that have both come, each with plain memory of its own. */
static void start_two(shm_world *w, job *j, shm_place where)
{
    shm_world_open(w, 2, where);
    *j = (job){
        .dtype = GR_F32, .op = GR_SUM, .count = 50000, .shards = 2, .in_place = true, .plain = 3};
    make_job(w, j);
    start(w, j, 0);
    start(w, j, 1);
}

static void check_who_gave_up_is_not_written_to(shm_place where)
{
    shm_world w;
    job j;
    start_two(&w, &j, where);
    size_t size_bytes = j.count * sizeof(float);
    void *before = malloc(size_bytes);
    assert_non_null(before);
    memcpy(before, j.inputs[0][0], size_bytes);
    gr_shm_coll_release(j.running[0]);
    assert_int_equal(gr_shm_coll_move(j.running[1]), GR_PENDING);
    assert_int_equal(gr_shm_coll_move(j.running[1]), GR_PENDING);
    assert_int_equal(gr_shm_coll_late(j.running[1]), 0); /* whose abort will come */
    assert_memory_equal(j.inputs[0][0], before, size_bytes);
    assert_int_equal(w.shm[1]->own->writing, 0);
    gr_shm_coll_release(j.running[1]);
    free(before);
    free(j.inputs[0][0]);
    free(j.inputs[1][0]);
    free(j.expected);
    shm_world_close(&w);
}

static void test_who_gave_up_is_not_written_to(void **unused)
{
    (void)unused;
    check_who_gave_up_is_not_written_to(CMA);
    check_who_gave_up_is_not_written_to(SHARED_CORES_CMA);
}

static void test_memory_that_is_gone_is_an_error(void **unused)
{
    (void)unused;
    for (int what = 0; what < 4; what++) {
        shm_world w;
        job j;
        start_two(&w, &j, what / 2 == 0 ? CMA : SHARED_CORES_CMA);
        size_t size_bytes = j.count * sizeof(float);
        void *gone = mmap(NULL, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(gone, MAP_FAILED);
        shm_control *line = &w.shm[0]->own->slots[0].control;
        *(what % 2 == 0 ? &line->body.at.out : &line->body.at.input) = (uintptr_t)gone;
        assert_int_equal(gr_shm_coll_move(j.running[1]), GR_E_PROTOCOL);
        assert_int_equal(gr_shm_coll_late(j.running[1]), 0);
        gr_shm_coll_release(j.running[1]);
        gr_shm_coll_release(j.running[0]);
        munmap(gone, size_bytes);
        free(j.inputs[0][0]);
        free(j.inputs[1][0]);
        free(j.expected);
        shm_world_close(&w);
    }
}

/* Its pages belong to this process alone: not even the kernel copies them for others. */
static void test_memory_that_the_kernel_does_not_copy_is_staged(void **unused)
{
    (void)unused;
    size_t size_bytes = 200000;
    int fd = (int)syscall(SYS_memfd_secret, 0);
    if (fd < 0 || ftruncate(fd, (off_t)size_bytes) != 0) {
        skip();
    }
    float *secret_memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (secret_memory == MAP_FAILED) {
        skip();
    }
    shm_world w;
    uint64_t random = 3;
    shm_world_open(&w, 2, CMA);
    job j = {.dtype = GR_F32,
             .op = GR_SUM,
             .count = size_bytes / sizeof(float),
             .shards = 2,
             .in_place = true,
             .plain = 3};
    make_job(&w, &j);
    memcpy(secret_memory, j.inputs[0][0], size_bytes);
    free(j.inputs[0][0]);
    j.inputs[0][0] = secret_memory;
    j.request[0].out = secret_memory;
    start(&w, &j, 0);
    start(&w, &j, 1);
    for (int left = 2; left > 0;) {
        int rank = (int)(shm_world_random(&random) % 2);
        left -= j.running[rank] && move(&j, rank);
    }
    assert_memory_equal(secret_memory, j.expected, size_bytes);
    assert_memory_equal(j.inputs[1][0], j.expected, size_bytes);
    munmap(secret_memory, size_bytes);
    free(j.inputs[1][0]);
    free(j.expected);
    shm_world_close(&w);
}

/* ---- Life ------------------------------------------------------------------------------------ */
static void test_areas_are_few(void **unused)
{
    (void)unused;
    shm_world w;
    bool no_memory = true;
    static const int ranks[2] = {0, 1}, none[2] = {0, 7};
    shm_world_open(&w, 2, CMA);
    assert_null(gr_shm_coll_open(w.shms[0], GR_SHARED_COLLS, 0, 2, ranks, GR_SHM_MEET, &no_memory));
    assert_null(gr_shm_coll_open(w.shms[0], -1, 0, 2, ranks, GR_SHM_MEET, &no_memory));
    assert_null(gr_shm_coll_open(w.shms[0], 1, 0, 2, none, GR_SHM_MEET, &no_memory));
    assert_null(gr_shm_coll_open(w.shms[0], 1, 0, 1, ranks, GR_SHM_MEET, &no_memory));
    assert_false(no_memory);
    int32_t one = 1;
    const void *inputs[GR_SHARD_PARTIALS_MAX];
    for (int i = 0; i < GR_SHARD_PARTIALS_MAX; i++) {
        inputs[i] = &one;
    }
    gr_shm_coll_request request = {.coll = GR_COLL_ALLREDUCE,
                                   .dtype = GR_I32,
                                   .count = 1,
                                   .inputs = inputs,
                                   .out = &one,
                                   .divisor = 1,
                                   .prescale = 1,
                                   .postscale = 1};
    gr_shm_coll_op *op[GR_SHM_COLL_OPS_MAX + 1];
    for (int i = 0; i < GR_SHM_COLL_OPS_MAX; i++) {
        request.shards = i + 1;
        assert_int_equal(gr_shm_coll_start(w.shm[0], &request, &op[i]), GR_OK);
    }
    assert_int_equal(gr_shm_coll_start(w.shm[0], &request, &op[GR_SHM_COLL_OPS_MAX]),
                     GR_E_NO_MEMORY);
    for (int i = 0; i < GR_SHM_COLL_OPS_MAX; i++) {
        gr_shm_coll_release(op[i]);
    }
    shm_world_close(&w);
}

/* On a machine on which the kernel takes the time of 2 plain copies, and where it is 12 or 10. */
static void the_kernel_copies_where_that_is_faster(void **unused)
{
    (void)unused;
    const size_t large = 1 << 20;
    for (gr_coll coll = GR_COLL_ALLREDUCE; coll <= GR_COLL_ALLTOALL; coll++) {
        if (coll == GR_COLL_BARRIER) {
            continue;
        }
        assert_int_equal(gr_shm_coll_way_of(coll, large, 2, false, 2, true), GR_SHM_COLL_KERNEL);
        assert_int_equal(gr_shm_coll_way_of(coll, large, 2, false, 12, true), GR_SHM_COLL_WINDOWS);
        assert_int_equal(gr_shm_coll_way_of(coll, large, 2, false, 12, false), GR_SHM_COLL_WINDOWS);
        assert_int_equal(gr_shm_coll_way_of(coll, large, 2, false, HUGE_VAL, true),
                         GR_SHM_COLL_WINDOWS);
    }
    assert_int_equal(gr_shm_coll_way_of(GR_COLL_SCATTER, large, 2, false, 5, true),
                     GR_SHM_COLL_KERNEL);
    assert_int_equal(gr_shm_coll_way_of(GR_COLL_SCATTER, large / 8, 2, false, 5, true),
                     GR_SHM_COLL_WINDOWS);
}

/* Once a rank has filled windows, what that takes decides; who fills none does not object. */
static void what_windows_take_decides_for_the_kernel(void **unused)
{
    (void)unused;
    static gr_shm_colls shms;
    static gr_shm_coll shm;
    static gr_shm_coll_op op;
    shms.kernel_cost = 5; /* plain copies within the caches */
    shms.kernel_ns = 0.09;
    shm =
        (gr_shm_coll){.shms = &shms, .size = 2, .rank = 1, .cma = true, .not_oversubscribed = true};
    op = (gr_shm_coll_op){.shm = &shm, .coll = GR_COLL_ALLREDUCE, .packed_bytes = 1 << 20};
    assert_false(gr_shm_coll_wants_kernel(&op)); /* nothing is known yet */
    shm.to_windows.ns = 0.1;
    assert_true(gr_shm_coll_wants_kernel(&op)); /* they wait for other cores */
    shm.to_windows.ns = 0.02;
    assert_false(gr_shm_coll_wants_kernel(&op)); /* they share a cache */
    shm.to_windows.ns = 0.1;
    shm.not_oversubscribed = false;
    assert_false(gr_shm_coll_wants_kernel(&op)); /* sums of ranks that share cores */
    op.coll = GR_COLL_ALLTOALL;
    assert_true(gr_shm_coll_wants_kernel(&op));
    shm.to_windows.ns = 0;
    op = (gr_shm_coll_op){.shm = &shm, .coll = GR_COLL_SCATTER, .packed_bytes = 32 << 10};
    assert_true(gr_shm_coll_wants_kernel(&op));
    op.root = 1;
    assert_false(gr_shm_coll_wants_kernel(&op)); /* the root fills windows */
    shm.cma = false;
    assert_false(gr_shm_coll_wants_kernel(&op)); /* it is not permitted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_copies_where_that_is_faster),
        cmocka_unit_test(what_windows_take_decides_for_the_kernel),
        cmocka_unit_test(test_all_shards_on_all_ranks),
        cmocka_unit_test(test_all_types_and_operations),
        cmocka_unit_test(registered_memory_is_reached_directly),
        cmocka_unit_test(test_user_functions_and_factors),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_nobody_leaves_a_barrier_before_all_have_come),
        cmocka_unit_test(plans_between_operations_keep_the_numbers),
        cmocka_unit_test(numbers_that_wrap_around_keep_the_sums),
        cmocka_unit_test(buffer_kinds_that_change_are_read_once),
        cmocka_unit_test(different_numbers_of_cores_give_the_same_shares),
        cmocka_unit_test(shares_of_quick_ranks_end_within_a_try),
        cmocka_unit_test(test_other_operations_are_seen),
        cmocka_unit_test(calls_that_nobody_waits_for_are_compared_whatever_their_number),
        cmocka_unit_test(a_root_that_packs_registered_memory_does_not_wait),
        cmocka_unit_test(a_rank_that_nobody_waits_for_says_what_it_called),
        cmocka_unit_test(a_root_is_ahead_by_as_many_operations_as_there_are_slots),
        cmocka_unit_test(test_memory_outside_the_heap_is_refused),
        cmocka_unit_test(test_who_gave_up_is_not_written_to),
        cmocka_unit_test(test_memory_that_is_gone_is_an_error),
        cmocka_unit_test(test_memory_that_the_kernel_does_not_copy_is_staged),
        cmocka_unit_test(test_areas_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
