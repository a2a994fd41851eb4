/* SPDX-License-Identifier: Apache-2.0 */
/* The executor over the double of the links: operations of several groups at once, with blocks of
 * any size, in and out of place, grouped, with callbacks and with a function of the caller's,
 * against a reference that knows no plans. */
#include "sanitized.h"
#include "support_double_names.h"

#include "../../src/coll/diagnose/diagnosis.c"
#include "../../src/coll/diagnose/mismatch.c"
#include "../../src/coll/diagnose/stall.c"
#include "../../src/coll/engine/exec.c"
#include "../../src/coll/engine/exec_fail.c"
#include "../../src/coll/engine/exec_group_end.c"
#include "../../src/coll/engine/exec_message.c"
#include "../../src/coll/engine/exec_message_move.c"
#include "../../src/coll/engine/exec_move.c"
#include "../../src/coll/engine/exec_start.c"
#include "../../src/coll/engine/exec_view.c"

#include "coll/engine/schedule_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { WORLD_MAX = 6, OPS_MAX = 10, GROUPS_MAX = 4, GUARD = 8, GUARD_WORD = 0x5a5a5a5a };

/* ---- What is called -------------------------------------------------------------------------- */
typedef struct spec {
    const gr_algorithm *algorithm;
    int group;
    int root, peer; /* messages: from root to peer */
    bool uneven, user_function, average;
    double postscale;
    uint32_t in_place;                   /* bits: group ranks */
    size_t counts[WORLD_MAX][WORLD_MAX]; /* alltoall: from, to; else [0]: by block */
    size_t count;                        /* where there are no blocks */
    uint64_t seed;
    int batch; /* operations of one batch are started as one */
} spec;

typedef struct rank_state {
    gr_exec *exec;
    gr_schedules schedules[GROUPS_MAX];
    int64_t *user[OPS_MAX], *input[OPS_MAX];
    gr_op *ops[OPS_MAX];       /* by batch */
    gr_status result[OPS_MAX]; /* by batch */
    bool started[OPS_MAX], over[OPS_MAX];
    bool with_callback[OPS_MAX];
} rank_state;

typedef struct world {
    dbl_net *net;
    int size;
    int members[GROUPS_MAX][WORLD_MAX];
    gr_exec_group groups[WORLD_MAX][GROUPS_MAX]; /* by rank; size 0: not a member */
    int group_count;
    spec specs[OPS_MAX];
    int spec_count, batch_count;
    rank_state ranks[WORLD_MAX];
} world;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*state) % below;
}

/* Maps x -> a x + b modulo 2^16, packed: composing them is associative, not commutative. */
static int64_t compose(int64_t first, int64_t second)
{
    uint64_t a1 = (uint64_t)first & 0xffff, b1 = (uint64_t)first >> 16 & 0xffff;
    uint64_t a2 = (uint64_t)second & 0xffff, b2 = (uint64_t)second >> 16 & 0xffff;
    return (int64_t)(((a1 * a2) & 0xffff) | ((a2 * b1 + b2) & 0xffff) << 16);
}

static void compose_all(void *dst, const void *a, const void *b, size_t count, void *arg)
{
    (*(int *)arg)++;
    for (size_t i = 0; i < count; i++) {
        ((int64_t *)dst)[i] = compose(((const int64_t *)a)[i], ((const int64_t *)b)[i]);
    }
}

/* What `from` contributes at element `i` of block `block`. */
static int64_t value(const spec *s, int from, int block, size_t i)
{
    uint64_t at = s->seed * 1000003 + (uint64_t)(from * 64 + block) * 100003 + i;
    return (int64_t)(mix(at) & (s->user_function ? UINT64_MAX >> 32 : 0xfffff));
}

static gr_coll coll_of(const spec *s)
{
    return s->algorithm->coll;
}

static bool has_blocks(gr_coll coll)
{
    return coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
}

static bool reduces_spec(const spec *s)
{
    return coll_of(s) == GR_COLL_ALLREDUCE || coll_of(s) == GR_COLL_REDUCE ||
           coll_of(s) == GR_COLL_REDUCE_SCATTER;
}

static int64_t reduced(const spec *s, int size, int block, size_t i)
{
    int64_t sum = value(s, 0, block, i);
    for (int from = 1; from < size; from++) {
        int64_t more = value(s, from, block, i);
        sum = s->user_function ? compose(sum, more) : sum + more;
    }
    return s->average ? sum / size : sum;
}

static size_t count_of(const spec *s, int from, int to)
{
    if (!has_blocks(coll_of(s))) {
        return s->count;
    }
    return coll_of(s) == GR_COLL_ALLTOALL ? s->counts[from][to] : s->counts[0][to];
}

/* ---- A rank's buffers ------------------------------------------------------------------------ */
typedef struct layout {
    int user_only, input_only; /* -1: all */
    bool in_place, has_user, has_input;
} layout;

static layout layout_of(const spec *s, int rank)
{
    bool root = rank == s->root;
    bool in_place = s->in_place >> rank & 1u;
    layout l = {.user_only = -1, .input_only = -1, .has_user = true, .in_place = in_place};
    switch (coll_of(s)) {
    case GR_COLL_REDUCE_SCATTER:
        l.user_only = in_place ? -1 : rank;
        break;
    case GR_COLL_ALLGATHER:
        l.input_only = rank;
        break;
    case GR_COLL_GATHER:
        l.input_only = rank;
        l.has_user = root || in_place;
        l.user_only = root ? -1 : rank;
        break;
    case GR_COLL_SCATTER:
        l.user_only = root && in_place ? -1 : rank;
        break;
    case GR_COLL_REDUCE:
        l.has_user = root || in_place;
        break;
    case GR_COLL_SEND:
        l.in_place = true; /* one buffer is enough */
        break;
    default:
        break;
    }
    bool gives = !(coll_of(s) == GR_COLL_BROADCAST || coll_of(s) == GR_COLL_SCATTER) || root;
    gives = gives && coll_of(s) != GR_COLL_BARRIER && coll_of(s) != GR_COLL_RECV;
    l.has_input = gives && !l.in_place;
    return l;
}

/* Block `block` of one of a rank's buffers: what goes in (`input`), or what comes out. */
static size_t block_count(const spec *s, int rank, int block, bool input)
{
    return input                            ? count_of(s, rank, block)
           : coll_of(s) == GR_COLL_ALLTOALL ? s->counts[block][rank]
                                            : count_of(s, rank, block);
}

static int blocks_of(const spec *s, int size)
{
    return has_blocks(coll_of(s)) ? size : 1;
}

static size_t buffer_count(const spec *s, int rank, int size, int only, bool input)
{
    size_t count = 0;
    for (int block = 0; block < blocks_of(s, size); block++) {
        count += only < 0 || only == block ? block_count(s, rank, block, input) : 0;
    }
    return count;
}

static int64_t *buffer(size_t count)
{
    int64_t *memory = malloc((count + GUARD) * sizeof *memory);
    assert_non_null(memory);
    for (size_t i = 0; i < count + GUARD; i++) {
        memory[i] = GUARD_WORD;
    }
    return memory;
}

static void put_contribution(const spec *s, int rank, int size, int only, bool input, int64_t *to)
{
    bool own_only = coll_of(s) == GR_COLL_ALLGATHER || coll_of(s) == GR_COLL_GATHER;
    for (int block = 0; block < blocks_of(s, size); block++) {
        if (only >= 0 && only != block) {
            continue;
        }
        size_t count = block_count(s, rank, block, input);
        for (size_t i = 0; i < count && (!own_only || block == rank); i++) {
            to[i] = value(s, rank, block, i);
        }
        to += count;
    }
}

static void make_buffers(const spec *s, int rank, int size, int64_t **user, int64_t **input)
{
    layout l = layout_of(s, rank);
    size_t user_count = l.has_user ? buffer_count(s, rank, size, l.user_only, false) : 0;
    *user = buffer(user_count);
    size_t input_count = l.has_input ? buffer_count(s, rank, size, l.input_only, true) : 0;
    *input = buffer(input_count);
    bool gives =
        coll_of(s) != GR_COLL_BARRIER && coll_of(s) != GR_COLL_RECV &&
        (!(coll_of(s) == GR_COLL_BROADCAST || coll_of(s) == GR_COLL_SCATTER) || rank == s->root);
    if (l.has_input) {
        put_contribution(s, rank, size, l.input_only, true, *input);
    } else if (gives) {
        put_contribution(s, rank, size, l.user_only, coll_of(s) == GR_COLL_ALLTOALL, *user);
    }
}

static int64_t wanted(const spec *s, int rank, int size, int block, size_t i)
{
    int64_t plain;
    switch (coll_of(s)) {
    case GR_COLL_BROADCAST:
    case GR_COLL_SCATTER:
    case GR_COLL_RECV:
        plain = value(s, s->root, block, i);
        break;
    case GR_COLL_ALLGATHER:
    case GR_COLL_GATHER:
        plain = value(s, block, block, i);
        break;
    case GR_COLL_ALLTOALL:
        plain = value(s, block, rank, i);
        break;
    default:
        plain = reduced(s, size, block, i);
        break;
    }
    return s->postscale == 1 ? plain : (int64_t)((double)plain * s->postscale);
}

static bool right(const spec *s, int rank, int size, const int64_t *user, const int64_t *input)
{
    layout l = layout_of(s, rank);
    gr_coll coll = coll_of(s);
    size_t at = 0;
    bool fine = true;
    bool has_result = coll != GR_COLL_BARRIER && coll != GR_COLL_SEND &&
                      ((coll != GR_COLL_REDUCE && coll != GR_COLL_GATHER) || rank == s->root);
    bool own_only = coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_SCATTER;
    for (int block = 0; block < blocks_of(s, size) && l.has_user; block++) {
        if (l.user_only >= 0 && l.user_only != block) {
            continue;
        }
        size_t count = block_count(s, rank, block, false);
        for (size_t i = 0; i < count && has_result && (!own_only || block == rank); i++) {
            fine = fine && user[at + i] == wanted(s, rank, size, block, i);
        }
        at += count;
    }
    size_t input_count = l.has_input ? buffer_count(s, rank, size, l.input_only, true) : 0;
    for (int i = 0; i < GUARD; i++) {
        fine = fine && user[at + (size_t)i] == GUARD_WORD;
        fine = fine && input[input_count + (size_t)i] == GUARD_WORD;
    }
    return fine;
}

/* ---- From a seed to a world ------------------------------------------------------------------ */
static void draw_groups(world *w, uint64_t *state)
{
    w->group_count = 1 + (int)draw(state, GROUPS_MAX);
    for (int g = 0; g < w->group_count; g++) {
        int order[WORLD_MAX];
        int size = 0;
        for (int rank = 0; rank < w->size; rank++) {
            order[rank] = rank;
        }
        if (g > 0) { /* any ranks in any order */
            for (int i = w->size - 1; i > 0; i--) {
                int k = (int)draw(state, (uint64_t)i + 1);
                int kept = order[i];
                order[i] = order[k];
                order[k] = kept;
            }
        }
        size = g == 0 ? w->size : 2 + (int)draw(state, (uint64_t)w->size - 1);
        for (int i = 0; i < size; i++) {
            w->members[g][i] = order[i];
            w->groups[order[i]][g] = (gr_exec_group){
                .id = (uint16_t)(g * 7), .rank = i, .size = size, .world = w->members[g]};
        }
        for (int rank = 0; rank < w->size; rank++) {
            w->groups[rank][g].id = (uint16_t)(g * 7);
        }
    }
}

static int group_size(const world *w, int g)
{
    return w->groups[w->members[g][0]][g].size;
}

static gr_plan_shape shape_of(const world *w, const spec *s, int rank)
{
    bool message = coll_of(s) == GR_COLL_SEND;
    bool receives = message && rank == s->peer;
    return (gr_plan_shape){.coll = receives ? GR_COLL_RECV : coll_of(s),
                           .rank = rank,
                           .world_size = group_size(w, s->group),
                           .shards = group_size(w, s->group),
                           .root = message && !receives ? s->peer : s->root,
                           .out_of_place = !receives && !layout_of(s, rank).in_place,
                           .uneven = s->uneven};
}

static bool fits_all(const world *w, const spec *s)
{
    for (int rank = 0; rank < group_size(w, s->group); rank++) {
        gr_plan_shape shape = shape_of(w, s, rank);
        if (!s->algorithm->fits(&shape)) {
            return false;
        }
    }
    return true;
}

static spec draw_spec(const world *w, uint64_t *state)
{
    static const size_t counts[] = {0, 1, 2, 7, 8, 33, 100, 300};
    int algorithms = 0;
    while (gr_algorithms[algorithms].name) {
        algorithms++;
    }
    for (;;) {
        spec s = {.algorithm = &gr_algorithms[draw(state, (uint64_t)algorithms)],
                  .group = (int)draw(state, (uint64_t)w->group_count),
                  .in_place = (uint32_t)draw(state, 64),
                  .count = counts[draw(state, 8)],
                  .postscale = draw(state, 4) == 0 ? 3 : 1,
                  .seed = draw(state, 1000000)};
        int size = group_size(w, s.group);
        s.root = (int)draw(state, (uint64_t)size);
        s.peer = (s.root + 1 + (int)draw(state, (uint64_t)size - 1)) % size;
        s.uneven = has_blocks(coll_of(&s)) && draw(state, 2) == 0;
        s.user_function = reduces_spec(&s) && s.algorithm->canonical && draw(state, 3) == 0;
        s.average = reduces_spec(&s) && !s.user_function && draw(state, 3) == 0;
        for (int from = 0; from < size; from++) {
            for (int to = 0; to < size; to++) {
                s.counts[from][to] = s.uneven ? counts[draw(state, 8)] : s.count;
            }
        }
        if (coll_of(&s) == GR_COLL_RECV || coll_of(&s) == GR_COLL_BARRIER ||
            coll_of(&s) == GR_COLL_SEND) {
            s.postscale = 1;
        }
        if (coll_of(&s) == GR_COLL_ALLTOALL && s.uneven) {
            s.in_place = 0; /* there both directions would have to be alike */
        }
        if (coll_of(&s) != GR_COLL_RECV && fits_all(w, &s)) {
            return s;
        }
    }
}

static void open_world(world *w, uint64_t seed)
{
    uint64_t state = seed;
    memset(w, 0, sizeof *w);
    w->size = 2 + (int)draw(&state, WORLD_MAX - 1);
    static const int rooms[4] = {1, 2, 8, 60};
    dbl_options options = {
        .seed = seed, .world_size = w->size, .room = rooms[seed % 4], .views = seed % 3 != 0};
    w->net = dbl_create(&options);
    draw_groups(w, &state);
    w->spec_count = 1 + (int)draw(&state, OPS_MAX);
    for (int i = 0; i < w->spec_count; i++) {
        w->specs[i] = draw_spec(w, &state);
        w->specs[i].batch = w->batch_count;
        w->batch_count += i + 1 == w->spec_count || draw(&state, 2) == 0;
    }
    for (int rank = 0; rank < w->size; rank++) {
        gr_exec_config config = {.mesh = dbl_mesh(w->net, rank),
                                 .rank = rank,
                                 .world_size = w->size,
                                 .op_timeout_us = 60000000,
                                 .segment_bytes = seed % 2 ? 256 : 1024,
                                 .slice_bytes = 512 * (int64_t)(seed % 3),
                                 .scratch_bytes = seed % 5 == 0 ? 1 : 0,
                                 .clock = dbl_clock(w->net)};
        assert_int_equal(gr_exec_create(&config, &w->ranks[rank].exec, NULL), GR_OK);
    }
}

static bool takes_part(const world *w, const spec *s, int rank)
{
    const gr_exec_group *group = &w->groups[rank][s->group];
    bool message = coll_of(s) == GR_COLL_SEND;
    return group->size > 0 && (!message || group->rank == s->root || group->rank == s->peer);
}

static void close_world(world *w)
{
    dbl_destroy(w->net);
    for (int rank = 0; rank < w->size; rank++) {
        rank_state *r = &w->ranks[rank];
        gr_exec_destroy(r->exec);
        for (int i = 0; i < OPS_MAX; i++) {
            free(r->user[i]);
            free(r->input[i]);
        }
        for (int g = 0; g < GROUPS_MAX; g++) {
            gr_schedules_fini(&r->schedules[g]);
        }
    }
}

/* ---- Running --------------------------------------------------------------------------------- */
static int user_calls;

static void note_done(gr_status status, void *arg)
{
    *(gr_status *)arg = status;
}

typedef struct tables {
    size_t user[WORLD_MAX], input[WORLD_MAX];
    void *user_at;
    const void *input_at;
} tables;

/* The spec as a receiver sees it: a message comes from root. */
static spec seen_by(const spec *s, int local)
{
    spec seen = *s;
    if (coll_of(s) == GR_COLL_SEND && local == s->peer) {
        seen.algorithm = gr_algorithm_find(GR_COLL_RECV, "direct");
    }
    return seen;
}

static gr_exec_request request_of(world *w, int rank, int index, tables *t)
{
    rank_state *r = &w->ranks[rank];
    const spec *s = &w->specs[index];
    const gr_exec_group *group = &w->groups[rank][s->group];
    spec seen = seen_by(s, group->rank);
    gr_plan_shape shape = shape_of(w, s, group->rank);
    layout l = layout_of(&seen, group->rank);
    make_buffers(&seen, group->rank, group->size, &r->user[index], &r->input[index]);
    t->user_at = r->user[index];
    t->input_at = r->input[index];
    for (int block = 0; block < group->size; block++) {
        t->user[block] = block_count(&seen, group->rank, block, false);
        t->input[block] = block_count(&seen, group->rank, block, true);
    }
    gr_exec_request request = {
        .group = group,
        .user = &t->user_at,
        .input = shape.out_of_place ? &t->input_at : NULL,
        .desc = {.coll = shape.coll,
                 .dtype = GR_I64,
                 .op = s->user_function ? GR_USER
                       : s->average     ? GR_AVERAGE
                                        : GR_SUM,
                 .algorithm = (int)(seen.algorithm - gr_algorithms),
                 .root = shape.root,
                 .tag = 7,
                 .shards = group->size,
                 .count = s->uneven ? 0 : s->count,
                 .name = index % 2 ? "weights" : NULL},
        .total_count = has_blocks(shape.coll) ? s->count * (size_t)group->size : s->count,
        .fixed_blocks = has_blocks(shape.coll),
        .user_counts = s->uneven ? t->user : NULL,
        .input_counts = s->uneven && coll_of(s) == GR_COLL_ALLTOALL ? t->input : NULL,
        .user_only = l.user_only,
        .input_only = l.input_only,
        .reduce = s->user_function ? compose_all : NULL,
        .reduce_arg = &user_calls,
        .divisor = s->average ? group->size : 1,
        .postscale = s->postscale};
    assert_int_equal(gr_schedules_get(&r->schedules[s->group], seen.algorithm, &shape,
                                      (gr_scaling){.result = s->average || s->postscale != 1},
                                      &request.schedule, NULL),
                     GR_OK);
    return request;
}

static void start_batch(world *w, int rank, int batch)
{
    rank_state *r = &w->ranks[rank];
    gr_exec_request requests[OPS_MAX];
    tables t[OPS_MAX];
    int count = 0;
    for (int i = 0; i < w->spec_count; i++) {
        if (w->specs[i].batch == batch && takes_part(w, &w->specs[i], rank)) {
            requests[count] = request_of(w, rank, i, &t[count]);
            count++;
        }
    }
    r->started[batch] = true;
    if (count == 0) {
        r->over[batch] = true;
        return;
    }
    r->result[batch] = GR_PENDING;
    r->with_callback[batch] = dbl_random(w->net, 2) == 0;
    if (r->with_callback[batch]) {
        requests[0].done = note_done;
        requests[0].done_arg = &r->result[batch];
    }
    gr_diag diag;
    gr_status status = gr_exec_start(r->exec, requests, count, &r->ops[batch], &diag);
    if (status != GR_OK) {
        print_error("%s\n", diag.text);
    }
    assert_int_equal(status, GR_OK);
}

static void collect(world *w, rank_state *r)
{
    gr_exec_done due;
    while (gr_exec_take_done(r->exec, &due)) {
        due.done(due.status, due.arg);
    }
    for (int batch = 0; batch < w->batch_count; batch++) {
        if (!r->started[batch] || r->over[batch]) {
            continue;
        }
        if (!r->with_callback[batch] && gr_op_finished(r->ops[batch])) {
            r->result[batch] = gr_op_release(r->ops[batch]);
        }
        r->over[batch] = r->result[batch] != GR_PENDING;
    }
}

static bool all_over(const world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        for (int batch = 0; batch < w->batch_count; batch++) {
            if (!w->ranks[rank].over[batch]) {
                return false;
            }
        }
    }
    return true;
}

static void turn(world *w)
{
    int rank = (int)dbl_random(w->net, (uint64_t)w->size);
    rank_state *r = &w->ranks[rank];
    for (int batch = 0; batch < w->batch_count; batch++) {
        if (!r->started[batch]) {
            if (dbl_random(w->net, 4) == 0) {
                start_batch(w, rank, batch);
            }
            break;
        }
    }
    if (!gr_exec_progress(r->exec)) {
        (void)gr_exec_poll_timers(r->exec, true);
        dbl_advance(w->net, 100);
    }
    collect(w, r);
}

static void check_results(world *w, uint64_t seed)
{
    for (int i = 0; i < w->spec_count; i++) {
        const spec *s = &w->specs[i];
        for (int rank = 0; rank < w->size; rank++) {
            rank_state *r = &w->ranks[rank];
            const gr_exec_group *group = &w->groups[rank][s->group];
            if (!takes_part(w, s, rank)) {
                continue;
            }
            spec seen = seen_by(s, group->rank);
            bool fine = r->result[s->batch] == GR_OK && r->over[s->batch] &&
                        right(&seen, group->rank, group->size, r->user[i], r->input[i]);
            if (!fine) {
                print_error("seed %llu, %s=%s of %zu%s, group %d, rank %d of %d, root %d, in place "
                            "%x, scale %g, average %d: %s %s\n",
                            (unsigned long long)seed, gr_coll_name(coll_of(s)), s->algorithm->name,
                            s->count, s->uneven ? " uneven" : "", s->group, group->rank,
                            group->size, s->root, s->in_place, s->postscale, s->average,
                            gr_exec_diag(r->exec)->text,
                            dbl_complaint(w->net) ? dbl_complaint(w->net) : "");
            }
            assert_true(fine);
        }
    }
    assert_null(dbl_complaint(w->net));
    assert_int_equal(dbl_unread(w->net), 0);
}

static void test_mixed(void **state)
{
    (void)state;
    user_calls = 0;
    for (uint64_t seed = 1; seed <= THOROUGH(3000); seed++) {
        world w;
        open_world(&w, seed);
        for (long i = 0; i < 400000 && !all_over(&w); i++) {
            turn(&w);
        }
        check_results(&w, seed);
        for (int rank = 0; rank < w.size; rank++) {
            gr_exec *exec = w.ranks[rank].exec;
            assert_int_equal(exec->free_count, GR_EXEC_OPS_MAX);
            assert_int_equal(gr_exec_active(exec), 0);
            for (int g = 0; g < w.group_count; g++) {
                assert_int_equal(gr_exec_group_close(exec, &w.groups[rank][g]), 0);
            }
        }
        close_world(&w);
    }
    assert_true(user_calls > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
