/* SPDX-License-Identifier: Apache-2.0 */
/* The executor, with the plans of every algorithm, over a simulated network under thousands of
 * seeds: results bit for bit, no hang, the same end for all after a failure. One seed again:
 * test_coll_sim --seed N, or GRADUS_SIM_SEED=N; another number of seeds: GRADUS_SIM_SEEDS=N. */
#include "base/number.h"
#include "support_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 400 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SEEDS = 400 };
#else
enum { SEEDS = 4000 };
#endif
#else
enum { SEEDS = 4000 };
#endif

enum {
    TEXT_BYTES = 2048,
    OP_TIMEOUT_US = 30000000,
    NOTICE_US = 50000,
    SILENCE_US = 2000000,
    SECOND_US = 1000000
};

typedef enum fault { NO_FAULT, KILL, PARTITION, SHORT_PARTITION, MISMATCH, ABSENT, LEAVE } fault;

static const char *const fault_names[] = {
    "none",     "kill",        "partition",          "short partition",
    "mismatch", "absent rank", "leave when finished"};

/* What a seed stands for. */
typedef struct scenario {
    uint64_t seed;
    fault fault;
    gr_sim_config net;
    sim_world world;
    call_spec calls[SIM_OPS_MAX], other_calls[SIM_OPS_MAX];
    size_t segment_bytes;
    int window_segments; /* 0: the default, which is larger than all blocks */
    int victim;
    uint64_t after_messages; /* the fault comes when so many were accepted */
    bool struck;
    int64_t struck_us, heal_us;
    uint8_t side[SIM_WORLD_MAX];
    char why[TEXT_BYTES];
} scenario;

/* ---- From a seed to a scenario --------------------------------------------------------------- */
static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) % below;
}

static int draw_int(uint64_t *state, int first, int last)
{
    return first + (int)draw(state, (uint64_t)(last - first + 1));
}

static const gr_algorithm *draw_algorithm(uint64_t *state, int *shards, int size)
{
    int known = 0;
    while (gr_algorithms[known].name) {
        known++;
    }
    for (;;) {
        const gr_algorithm *algorithm = &gr_algorithms[draw(state, (uint64_t)known)];
        gr_plan_shape shape = {.coll = algorithm->coll,
                               .world_size = size,
                               .shards = draw(state, 2) ? size : draw_int(state, 1, 40)};
        if (algorithm->coll <= GR_COLL_BARRIER && algorithm->fits(&shape)) {
            *shards = shape.shards;
            return algorithm;
        }
    }
}

static call_spec draw_call(uint64_t *state, int size)
{
    static const size_t counts[] = {0, 1, 2, 7, 64, 100, 1000, 1023, 5000};
    call_spec call = {.dtype = (gr_dtype)draw(state, 6), .op = (gr_redop)draw(state, 4)};
    call.algorithm = draw_algorithm(state, &call.shards, size);
    call.count = counts[draw(state, sizeof counts / sizeof counts[0])];
    call.root = draw_int(state, 0, size - 1);
    call.seed = draw(state, UINT64_MAX);
    call.small = !call.algorithm->canonical;
    if (call.algorithm->coll == GR_COLL_REDUCE_SCATTER ||
        call.algorithm->coll == GR_COLL_ALLGATHER) {
        call.count = call.count / (size_t)size * (size_t)size;
    }
    if (call.algorithm->coll == GR_COLL_BARRIER) {
        call.count = 0;
        call.op = GR_SUM;
    }
    return call;
}

static gr_sim_config draw_net(uint64_t *state, uint64_t seed, int size)
{
    static const int64_t delays_us[] = {0, 1, 20, 100, 5000};
    gr_sim_config net = {.seed = seed,
                         .world_size = size,
                         .room = draw(state, 2) ? draw_int(state, 1, 4) : draw_int(state, 5, 64),
                         .delay_us = delays_us[draw(state, 5)],
                         .notice_us = NOTICE_US,
                         .silence_us = SILENCE_US};
    net.jitter_us = draw(state, 2) ? net.delay_us * draw_int(state, 1, 10) : draw_int(state, 0, 3);
    net.stall_percent = draw(state, 3) ? 0 : draw_int(state, 1, 5);
    net.stall_us = 200000;
    net.refuse_percent = draw(state, 2) ? 0 : draw_int(state, 1, 50);
    net.pieces_percent = draw(state, 2) ? 0 : draw_int(state, 1, 60);
    net.copies = draw(state, 3) == 0;
    net.view_percent = net.copies && draw(state, 2) ? 0 : draw_int(state, 0, 100);
    return net;
}

static void draw_fault(scenario *s, uint64_t *state)
{
    sim_world *world = &s->world;
    int kind = draw_int(state, 0, 99);
    s->fault = kind < 45   ? NO_FAULT
               : kind < 70 ? KILL
               : kind < 77 ? PARTITION
               : kind < 84 ? SHORT_PARTITION
               : kind < 91 ? MISMATCH
               : kind < 94 ? ABSENT
                           : LEAVE;
    s->victim = draw_int(state, 0, world->size - 1);
    s->after_messages = draw(state, 200);
    for (int rank = 0; rank < world->size; rank++) {
        s->side[rank] = rank == s->victim || draw(state, 3) == 0;
    }
    s->side[(s->victim + 1) % world->size] = 0;
    world->leaves = s->fault == LEAVE || draw(state, 4) == 0;
    if (s->fault == MISMATCH) {
        /* One rank calls another count, or another collective altogether. */
        int at = draw_int(state, 0, world->call_count - 1);
        memcpy(s->other_calls, s->calls, sizeof s->calls);
        const gr_algorithm *all = gr_algorithm_find(GR_COLL_ALLREDUCE, "direct");
        s->calls[at] = (call_spec){
            .algorithm = all, .dtype = GR_F32, .count = 1000, .shards = world->size, .seed = 1};
        s->other_calls[at] = s->calls[at];
        s->other_calls[at].count = 1001;
        if (draw(state, 2)) {
            s->other_calls[at].algorithm = gr_algorithm_find(GR_COLL_BROADCAST, "direct");
        }
        world->other_calls = s->other_calls;
        world->other = s->victim;
    }
}

static void draw_scenario(scenario *s, uint64_t seed)
{
    uint64_t state = seed * UINT64_C(0xa0761d6478bd642f) + 99;
    memset(s, 0, sizeof *s);
    s->seed = seed;
    sim_world *world = &s->world;
    int size = draw(&state, 12) == 0 ? draw_int(&state, 9, 24) : draw_int(&state, 2, 8);
    s->net = draw_net(&state, seed, size);
    world->size = size;
    world->call_count = draw_int(&state, 1, SIM_OPS_MAX);
    for (int i = 0; i < world->call_count; i++) {
        s->calls[i] = draw_call(&state, size);
    }
    world->calls = s->calls;
    world->one_at_a_time = draw(&state, 2);
    world->think_us = draw(&state, 2) ? 0 : draw_int(&state, 1, 20000);
    world->step_us = draw_int(&state, 0, 20);
    world->slow_rank = draw(&state, 6) ? -1 : draw_int(&state, 0, size - 1);
    world->slow_factor = 200;
    s->segment_bytes = (size_t)64 << draw(&state, 8);
    s->window_segments = draw_int(&state, 0, 3);
    draw_fault(s, &state);
}

/* ---- Running it ------------------------------------------------------------------------------ */
static void strike(sim_world *world)
{
    scenario *s = world->event_arg;
    int64_t now_us = gr_sim_now_us(world->net);
    if (s->struck && s->fault == SHORT_PARTITION && s->heal_us != 0 && now_us >= s->heal_us) {
        gr_sim_heal(world->net);
        s->heal_us = 0;
    }
    sim_rank *victim = &world->ranks[s->victim];
    if (s->struck || gr_sim_messages(world->net) < s->after_messages || victim->waits) {
        return;
    }
    s->struck = true;
    s->struck_us = now_us;
    if (s->fault == KILL && victim->mesh) {
        gr_sim_kill(world->net, s->victim);
        victim->dead = true;
    } else if (s->fault == PARTITION || s->fault == SHORT_PARTITION) {
        gr_sim_partition(world->net, s->side);
        s->heal_us = now_us + SILENCE_US / 2;
        world->event_us = s->fault == SHORT_PARTITION ? s->heal_us : GR_NEVER;
    }
}

static bool wrong(scenario *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(scenario *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->why, sizeof s->why, format, arguments);
    va_end(arguments);
    return false;
}

/* How this failure may read on a survivor. */
static bool status_fits(const scenario *s, const gr_diag *diag)
{
    switch (s->fault) {
    case KILL:
        return diag->peer_rank == s->victim &&
               (diag->status == GR_E_PEER_LOST || diag->status == GR_E_COMM_BROKEN);
    case PARTITION:
        return diag->status == GR_E_PEER_LOST || diag->status == GR_E_COMM_BROKEN;
    case MISMATCH:
        /* Of one that has done all it called and left, only the leaving may be seen. */
        return diag->status == GR_E_MISMATCH || diag->status == GR_E_COMM_BROKEN ||
               (s->world.leaves && diag->status == GR_E_PEER_LOST);
    case ABSENT:
        /* A rank knows whom it waits for, not for whom that one waits. */
        return diag->status == GR_E_PEER_SLOW || diag->status == GR_E_COMM_BROKEN;
    default:
        return false;
    }
}

static int64_t end_by_us(const scenario *s)
{
    switch (s->fault) {
    case KILL:
    case PARTITION:
    case MISMATCH:
        return SILENCE_US + 2 * SECOND_US;
    default:
        return 2 * (int64_t)OP_TIMEOUT_US;
    }
}

static bool check_rank(scenario *s, int rank)
{
    const sim_world *world = &s->world;
    const sim_rank *r = &world->ranks[rank];
    const gr_diag *diag = gr_exec_diag(r->exec);
    const call_spec *calls =
        world->other_calls && rank == world->other ? world->other_calls : world->calls;
    if (diag->status != GR_OK && !status_fits(s, diag)) {
        return wrong(s, "rank %d ends with %s (about rank %d): %s", rank,
                     gr_status_name((gr_status)diag->status), diag->peer_rank, diag->text);
    }
    for (int i = 0; i < world->call_count; i++) {
        if (r->result[i] == GR_OK &&
            !(world->other_calls && memcmp(&s->calls[i], &s->other_calls[i], sizeof *calls)) &&
            !call_right(&calls[i], rank, world->size, r->user[i])) {
            return wrong(s, "operation %d is wrong on rank %d", i, rank);
        }
        if (r->result[i] != GR_OK && diag->status == GR_OK) {
            return wrong(s, "operation %d on rank %d fails with %s for no reason", i, rank,
                         gr_status_name(r->result[i]));
        }
        if (i > 0 && r->result[i] == GR_OK && r->result[i - 1] != GR_OK && world->one_at_a_time) {
            return wrong(s, "operation %d succeeds on rank %d after one that failed", i, rank);
        }
    }
    return true;
}

static bool check(scenario *s, bool finished)
{
    const sim_world *world = &s->world;
    int64_t last_us = 0;
    if (gr_sim_complaint(world->net)) {
        return wrong(s, "wrong use of a link: %s", gr_sim_complaint(world->net));
    }
    if (!finished) {
        return wrong(s, "somebody hangs");
    }
    bool failed = false;
    for (int rank = 0; rank < world->size; rank++) {
        const sim_rank *r = &world->ranks[rank];
        if (r->dead || r->absent) {
            continue;
        }
        if (!check_rank(s, rank)) {
            return false;
        }
        failed = failed || gr_exec_diag(r->exec)->status != GR_OK;
        for (int i = 0; i < world->call_count; i++) {
            last_us = r->ended_us[i] > last_us ? r->ended_us[i] : last_us;
        }
    }
    if (s->fault == MISMATCH && !failed) {
        return wrong(s, "a mismatch that nobody noticed");
    }
    /* A rank that computes for long, or calls late, notices late; its own time is not counted. */
    int64_t own_us = (int64_t)world->call_count * world->think_us +
                     (world->slow_rank >= 0 || s->net.stall_percent > 0 ? 20 * SECOND_US : 0);
    int64_t from_us = s->struck ? s->struck_us : SECOND_US;
    if (failed && last_us - from_us > end_by_us(s) + own_us) {
        return wrong(s, "it took %.3f s to end", (double)(last_us - from_us) * 1e-6);
    }
    return true;
}

static bool run_scenario(scenario *s, uint64_t seed, uint64_t *digest_out)
{
    draw_scenario(s, seed);
    sim_world *world = &s->world;
    world->event = strike;
    world->event_arg = s;
    if (!sim_open(world, &s->net, s->segment_bytes, s->window_segments, OP_TIMEOUT_US)) {
        return wrong(s, "it cannot start");
    }
    world->ranks[s->victim].absent = s->fault == ABSENT;
    bool finished = sim_run(world, 600 * (int64_t)SECOND_US);
    bool right = check(s, finished);
    *digest_out =
        (uint64_t)gr_sim_now_us(world->net) * 31 + gr_sim_messages(world->net) * 7 + world->steps;
    for (int rank = 0; rank < world->size; rank++) {
        for (int i = 0; i < world->call_count; i++) {
            *digest_out = *digest_out * 31 + (uint64_t)(int64_t)world->ranks[rank].result[i];
        }
    }
    return right;
}

static void print_scenario(const scenario *s)
{
    const sim_world *world = &s->world;
    print_error("seed %llu: %s\n", (unsigned long long)s->seed, s->why);
    print_error("  again: test_coll_sim --seed %llu\n", (unsigned long long)s->seed);
    print_error("  %llu steps, %d ranks, fault: %s (rank %d, after %llu messages), room %d,\n"
                "  delay %lld + %lld us, segments of %zu, windows of %d, copies %d, leaves %d, "
                "slow rank %d, "
                "at %.6f s\n",
                (unsigned long long)world->steps, world->size, fault_names[s->fault], s->victim,
                (unsigned long long)s->after_messages, s->net.room, (long long)s->net.delay_us,
                (long long)s->net.jitter_us, s->segment_bytes, s->window_segments, s->net.copies,
                world->leaves, world->slow_rank, (double)gr_sim_now_us(world->net) * 1e-6);
    for (int i = 0; i < world->call_count; i++) {
        const call_spec *c = &world->calls[i];
        print_error("  operation %d: %s by %s, %zu %s (%s), root %d, %d shards\n", i,
                    gr_coll_name(c->algorithm->coll), c->algorithm->name, c->count,
                    gr_dtype_name(c->dtype), gr_redop_name(c->op), c->root, c->shards);
    }
    for (int rank = 0; rank < world->size; rank++) {
        const sim_rank *r = &world->ranks[rank];
        print_error("  rank %d%s: %d called, %d finished: %s\n", rank, r->dead ? " (killed)" : "",
                    r->started, r->finished, gr_exec_diag(r->exec)->text);
    }
}

/* ---- The tests ------------------------------------------------------------------------------- */
static uint64_t number_of(const char *name, uint64_t other)
{
    const char *text = getenv(name);
    int64_t value;
    return text && gr_number_int(text, &value) == GR_NUMBER_OK && value >= 0 ? (uint64_t)value
                                                                             : other;
}

static void run_seed(uint64_t seed)
{
    scenario *s = malloc(sizeof *s);
    assert_non_null(s);
    uint64_t digest;
    bool right = run_scenario(s, seed, &digest);
    if (!right) {
        print_scenario(s);
    }
    sim_close(&s->world);
    free(s);
    assert_true(right);
}

static void test_seeds(void **state)
{
    (void)state;
    uint64_t one = number_of("GRADUS_SIM_SEED", 0);
    if (one != 0) {
        run_seed(one);
        return;
    }
    uint64_t seeds = number_of("GRADUS_SIM_SEEDS", SEEDS);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        run_seed(seed);
    }
}

/* The same seed gives the same run, to the last microsecond. */
static void test_replay(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t digests[2];
        for (int i = 0; i < 2; i++) {
            scenario *s = malloc(sizeof *s);
            assert_non_null(s);
            assert_true(run_scenario(s, seed, &digests[i]));
            sim_close(&s->world);
            free(s);
        }
        assert_int_equal(digests[0], digests[1]);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        setenv("GRADUS_SIM_SEED", argv[2], 1);
    } else if (argc > 1) {
        fputs("usage: test_coll_sim [--seed N]\n", stderr);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
