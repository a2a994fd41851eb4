/* SPDX-License-Identifier: Apache-2.0 */
/* Whole jobs over a simulated network under thousands of seeds: members die, links break in one
 * direction, the network is cut in two; who is left asks for the next generation, by the
 * coordinator's own rules, and goes on. Results are exact, whoever took part. One seed again:
 * test_coll_sim_renew --seed N, or GRADUS_SIM_SEED=N; another number of seeds: GRADUS_SIM_SEEDS=N.
 */
#include "../group/support_membership.h"
#include "base/fail.h"
#include "base/number.h"
#include "sanitized.h"
#include "support_oracle.h"
#include "support_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "long.h"

enum {
    SEEDS = SANITIZED ? 200 : 500,
    SEEDS_LONG = 2000,
    STEPS_MAX = 8,
    COUNT_MAX = 300,
    FAULTS_MAX = 2, /* in one generation */
    TEXT_BYTES = 512,
    NOTICE_US = 50000,
    SILENCE_US = 2000000,
    OP_TIMEOUT_US = 30000000,
    UNTIL_US = 600000000
};

typedef enum fault { KILL, BREAK_LINK, PARTITION } fault;

typedef struct strike {
    fault fault;
    int rank, other;
    uint64_t after_messages;
    bool struck;
} strike;

typedef enum outcome { NOTHING_YET = 0, FINISHED, FAILED } outcome;

/* What a seed stands for, and what has become of it. Members are known by their numbers. */
typedef struct scenario {
    uint64_t seed, random;
    model m;
    int steps;
    int64_t done[MODEL_MEMBERS_MAX];    /* steps */
    outcome came[MODEL_MEMBERS_MAX];    /* in the last generation */
    event_kind news[MODEL_MEMBERS_MAX]; /* what is to be told of it; EVENT_KINDS: nothing */
    bool cut[MODEL_MEMBERS_MAX];
    int deaths_left, generations;
    /* The generation that is: by rank. */
    sim_job job;
    int number[MODEL_MEMBERS_MAX];
    int strike_count;
    strike strikes[FAULTS_MAX];
    uint8_t side[SIM_WORLD_MAX]; /* of the coordinator: 0 */
    int64_t most[MODEL_MEMBERS_MAX];
    oracle_case cases[MODEL_MEMBERS_MAX];
    oracle_part parts[MODEL_MEMBERS_MAX];
    bool open[MODEL_MEMBERS_MAX]; /* the part's buffers */
    uint64_t digest;
    char why[TEXT_BYTES];
} scenario;

/* What was met in all seeds: a test that never sees a case does not test it. */
typedef struct tally {
    uint64_t generations, kills, breaks, partitions, finished, too_few, cut;
} tally;

static uint64_t below(scenario *s, uint64_t end)
{
    return oracle_next(&s->random) % end;
}

static int between(scenario *s, int first, int last)
{
    return first + (int)below(s, (uint64_t)(last - first + 1));
}

static bool wrong(scenario *s, const char *format, ...) GR_PRINTF(2, 3);
static bool wrong(scenario *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (s->why[0] == '\0') {
        vsnprintf(s->why, sizeof s->why, format, arguments);
    }
    va_end(arguments);
    return false;
}

/* ---- A generation ---------------------------------------------------------------------------- */

/* The step's operation, the same for all ranks: any one, and its result bit for bit. Whoever has
 * finished a step knows that all others have been in it. */
static gr_status take_step(scenario *s, int rank)
{
    gr_comm *comm = s->job.ranks[rank].comms[0];
    uint64_t state = s->seed * 1000 + (uint64_t)s->done[s->number[rank]];
    oracle_random(&s->cases[rank], &state, gr_comm_size(comm), COUNT_MAX);
    s->open[rank] = oracle_begin(&s->parts[rank], &s->cases[rank], comm);
    if (!s->open[rank]) {
        return GR_E_NO_MEMORY;
    }
    gr_status status = s->parts[rank].idle ? GR_OK : gr_run(comm, &s->parts[rank].call, 1);
    if (status == GR_OK) {
        s->open[rank] = false;
        if (!oracle_end(&s->parts[rank])) {
            (void)wrong(s, "a wrong result of step %lld on rank %d",
                        (long long)s->done[s->number[rank]], rank);
        }
    }
    return status == GR_OK ? gr_barrier(comm) : status;
}

static void body(sim_job *job, int rank)
{
    scenario *s = job->arg;
    int number = s->number[rank];
    int64_t *done = &s->done[number];
    s->most[rank] = *done;
    gr_status status = gr_allreduce(job->ranks[rank].comms[0], &s->most[rank], 1, GR_I64, GR_MAX);
    if (status == GR_OK) {
        if (s->most[rank] > *done + 1) {
            (void)wrong(s, "member %d has done %lld steps, and another one %lld", number,
                        (long long)*done, (long long)s->most[rank]);
        }
        *done = s->most[rank];
    }
    while (status == GR_OK && *done < s->steps) {
        status = take_step(s, rank);
        *done += status == GR_OK;
    }
    if (status != GR_OK && !gr_fault_of_peer(status)) {
        (void)wrong(s, "member %d fails with %s: %s", number, gr_status_name(status),
                    gr_comm_diag(job->ranks[rank].comms[0])->text);
    }
    s->came[number] = status == GR_OK ? FINISHED : FAILED;
    sim_leave(job, rank);
}

static void strike_now(scenario *s, const strike *now)
{
    sim_job *job = &s->job;
    switch (now->fault) {
    case KILL:
        if (job->ranks[now->rank].mesh && !job->ranks[now->rank].over) {
            gr_sim_kill(job->net, now->rank);
            job->ranks[now->rank].dead = true;
        }
        break;
    case BREAK_LINK:
        gr_sim_break(job->net, now->rank, now->other);
        break;
    default:
        gr_sim_partition(job->net, s->side);
        for (int rank = 0; rank < job->size; rank++) {
            s->cut[s->number[rank]] |= s->side[rank] != 0;
        }
        break;
    }
}

static void strike_when_due(sim_job *job)
{
    scenario *s = job->arg;
    for (int i = 0; i < s->strike_count; i++) {
        if (!s->strikes[i].struck && gr_sim_messages(job->net) >= s->strikes[i].after_messages) {
            s->strikes[i].struck = true;
            strike_now(s, &s->strikes[i]);
        }
    }
}

static void draw_strikes(scenario *s, tally *met)
{
    int size = s->job.size;
    s->strike_count = size > 1 && below(s, 5) ? between(s, 1, FAULTS_MAX) : 0;
    for (int i = 0; i < s->strike_count; i++) {
        strike *one = &s->strikes[i];
        *one =
            (strike){.fault = below(s, 3)   ? KILL
                              : below(s, 3) ? BREAK_LINK
                                            : PARTITION,
                     .rank = between(s, 0, size - 1),
                     .after_messages = below(s, 1 + (uint64_t)s->steps * (uint64_t)(size * size))};
        one->other = (one->rank + between(s, 1, size - 1)) % size;
        if (one->fault == KILL && s->deaths_left-- <= 0) {
            one->fault = BREAK_LINK;
        }
        /* Only what goes through sockets can break for one of two that live. */
        s->job.net_config.copies |= one->fault == BREAK_LINK;
        met->kills += one->fault == KILL;
        met->breaks += one->fault == BREAK_LINK;
        met->partitions += one->fault == PARTITION;
    }
    for (int rank = 0; rank < size; rank++) {
        s->side[rank] = (uint8_t)below(s, 2);
    }
}

static void draw_job(scenario *s)
{
    static const int64_t delays_us[] = {0, 20, 100, 5000};
    sim_job *job = &s->job;
    int size = 0;
    *job = (sim_job){.body = body, .event = strike_when_due, .arg = s, .slow_rank = -1};
    for (int i = 0; i < s->m.size; i++) {
        if (s->m.now.members[i].phase == PHASE_RUNNING) {
            s->number[size] = i;
            job->host_of[size++] = below(s, 2);
        }
    }
    job->size = size;
    job->exact = true;
    job->segment_bytes = below(s, 4) ? (size_t)64 << below(s, 6) : 0;
    job->op_timeout_us = OP_TIMEOUT_US;
    job->interrupt_percent = between(s, 1, 60);
    job->step_us = between(s, 0, 20);
    job->net_config = (gr_sim_config){.seed = oracle_next(&s->random),
                                      .world_size = size,
                                      .room = between(s, 1, 32),
                                      .delay_us = delays_us[below(s, 4)],
                                      .jitter_us = between(s, 0, 200),
                                      .stall_percent = below(s, 3) ? 0 : between(s, 1, 5),
                                      .stall_us = 200000,
                                      .refuse_percent = below(s, 2) ? 0 : between(s, 1, 50),
                                      .pieces_percent = below(s, 2) ? 0 : between(s, 1, 60),
                                      .copies = below(s, 3) == 0,
                                      .view_percent = between(s, 0, 100),
                                      .notice_us = NOTICE_US,
                                      .silence_us = SILENCE_US};
}

/* Who has come how far goes on to the coordinator. */
static bool run_generation(scenario *s, tally *met)
{
    draw_job(s);
    draw_strikes(s, met);
    bool right = sim_open(&s->job);
    if (!right) {
        (void)wrong(s, "the generation cannot start");
    } else if (!sim_run(&s->job, UNTIL_US)) {
        right = wrong(s, "somebody hangs in generation %d", s->generations);
    } else if (gr_sim_complaint(s->job.net)) {
        right = wrong(s, "wrong use of a link: %s", gr_sim_complaint(s->job.net));
    }
    for (int rank = 0; rank < s->job.size; rank++) {
        int number = s->number[rank];
        if (s->job.ranks[rank].dead) {
            s->news[number] = EVENT_CRASH;
        } else if (s->came[number] == FINISHED) {
            s->news[number] = EVENT_LEAVE;
        } else {
            s->news[number] = s->cut[number] ? EVENT_CUT : EVENT_BREAK;
        }
    }
    s->digest = s->digest * 31 + s->job.steps * 7 + (s->job.net ? gr_sim_messages(s->job.net) : 0);
    sim_close(&s->job);
    for (int rank = 0; rank < s->job.size; rank++) {
        if (s->open[rank]) {
            oracle_drop(&s->parts[rank]);
            s->open[rank] = false;
        }
    }
    s->generations++;
    return right && s->why[0] == '\0';
}

/* ---- From one generation to the next --------------------------------------------------------- */

/* One of the things that can happen; false: nothing does any more. */
static bool happen_once(scenario *s)
{
    int events[MODEL_MEMBERS_MAX * (EVENT_KINDS + 1)], count = 0;
    for (int i = 0; i < s->m.size; i++) {
        if (s->news[i] != EVENT_KINDS) {
            events[count++] = (int)EVENT_KINDS * MODEL_MEMBERS_MAX + i;
        }
        for (event_kind kind = 0; kind < EVENT_FAULTS; kind++) {
            bool knows = kind != EVENT_NOTICE || s->news[i] == EVENT_KINDS;
            if (knows && model_can(&s->m, kind, i)) {
                events[count++] = (int)kind * MODEL_MEMBERS_MAX + i;
            }
        }
    }
    if (count == 0) {
        return false;
    }
    int event = events[below(s, (uint64_t)count)], number = event % MODEL_MEMBERS_MAX;
    event_kind kind = (event_kind)(event / MODEL_MEMBERS_MAX);
    if (kind == EVENT_KINDS) {
        kind = s->news[number];
        s->news[number] = EVENT_KINDS;
    } else if (s->deaths_left > 0 && below(s, 100) == 0 && model_can(&s->m, EVENT_CRASH, number)) {
        kind = below(s, 2) && model_can(&s->m, EVENT_VANISH, number) ? EVENT_VANISH : EVENT_CRASH;
        s->news[number] = EVENT_KINDS;
        s->deaths_left--;
    }
    if (!model_can(&s->m, kind, number)) {
        return wrong(s, "member %d, %s, %s", number,
                     model_phase_name(s->m.now.members[number].phase), model_event_name(kind));
    }
    model_happen(&s->m, kind, number);
    s->digest = s->digest * 31 + (uint64_t)(int)kind * MODEL_MEMBERS_MAX + (uint64_t)number;
    return model_agrees(&s->m);
}

static bool renew(scenario *s)
{
    while (happen_once(s)) {
    }
    bool right = s->m.why[0] == '\0' && s->why[0] == '\0' && model_rests(&s->m);
    return right || wrong(s, "%s", s->m.why);
}

static int count_running(const scenario *s)
{
    int running = 0;
    for (int i = 0; i < s->m.size; i++) {
        running += s->m.now.members[i].phase == PHASE_RUNNING;
    }
    return running;
}

/* Who was not killed or cut off has done all steps, unless too few were left. */
static bool check_end(scenario *s, tally *met)
{
    bool failed = s->m.rules.failure.status != GR_OK;
    met->too_few += failed;
    for (int i = 0; i < s->m.size; i++) {
        phase ends = (phase)s->m.now.members[i].phase;
        met->finished += ends == PHASE_LEFT;
        met->cut += s->cut[i] && ends == PHASE_ENDED;
        if (ends == PHASE_LEFT && s->done[i] != s->steps) {
            return wrong(s, "member %d has left after %lld of %d steps", i, (long long)s->done[i],
                         s->steps);
        }
        if (ends == PHASE_ENDED && !s->cut[i] && !failed && s->m.elastic) {
            return wrong(s, "member %d was ended for no reason", i);
        }
    }
    return true;
}

/* ---- The tests ------------------------------------------------------------------------------- */

static bool run_scenario(scenario *s, uint64_t seed, tally *met)
{
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->random = seed * UINT64_C(0xa0761d6478bd642f) + 7;
    int size = between(s, 2, MODEL_MEMBERS_MAX);
    if (!model_init(&s->m, size, size, below(s, 5) ? 1 : between(s, 1, size))) {
        return wrong(s, "no memory");
    }
    s->steps = between(s, 2, STEPS_MAX);
    s->deaths_left = between(s, 0, size - 1);
    s->m.now.crashes = s->m.now.cuts = s->m.now.breaks = s->m.now.leaves = UINT8_MAX;
    for (int i = 0; i < size; i++) {
        s->news[i] = EVENT_KINDS;
    }
    bool right = renew(s);
    while (right && count_running(s) > 0) {
        right = run_generation(s, met) && renew(s);
    }
    met->generations += (uint64_t)s->generations;
    right = right && check_end(s, met);
    model_fini(&s->m);
    return right;
}

static uint64_t run_seed(uint64_t seed, tally *met)
{
    scenario *s = malloc(sizeof *s);
    assert_non_null(s);
    bool right = run_scenario(s, seed, met);
    uint64_t digest = s->digest;
    if (!right) {
        print_error("seed %llu: %s\n  again: test_coll_sim_renew --seed %llu\n"
                    "  %d members, at least %d, %d steps, generation %d of %d ranks\n",
                    (unsigned long long)seed, s->why, (unsigned long long)seed, s->m.size,
                    s->m.rules.members_min, s->steps, s->generations, s->job.size);
        for (int i = 0; i < s->m.size; i++) {
            print_error("  member %d is %s after %lld steps\n", i,
                        model_phase_name(s->m.now.members[i].phase), (long long)s->done[i]);
        }
    }
    free(s);
    assert_true(right);
    return digest;
}

static uint64_t number_of(const char *name, uint64_t other)
{
    const char *text = getenv(name);
    int64_t value;
    return text && gr_number_int(text, &value) == GR_NUMBER_OK && value >= 0 ? (uint64_t)value
                                                                             : other;
}

static void run_seeds(uint64_t usual)
{
    tally met = {0};
    uint64_t one = number_of("GRADUS_SIM_SEED", 0), seeds = number_of("GRADUS_SIM_SEEDS", usual);
    if (one != 0) {
        (void)run_seed(one, &met);
        return;
    }
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        (void)run_seed(seed, &met);
    }
    print_message("%llu jobs, %llu generations; %llu kills, %llu broken links, %llu partitions; "
                  "%llu members finished, %llu were cut off, in %llu jobs too few were left\n",
                  (unsigned long long)seeds, (unsigned long long)met.generations,
                  (unsigned long long)met.kills, (unsigned long long)met.breaks,
                  (unsigned long long)met.partitions, (unsigned long long)met.finished,
                  (unsigned long long)met.cut, (unsigned long long)met.too_few);
    if (seeds >= SEEDS_LONG) {
        assert_true(met.generations > 3 * seeds / 2 && met.kills > 0 && met.breaks > 0);
        assert_true(met.partitions > 0 && met.finished > seeds && met.cut > 0 && met.too_few > 0);
    }
}

static void sim_renew_random_jobs_go_on(void **state)
{
    (void)state;
    run_seeds(SEEDS);
}

static void sim_renew_random_jobs_go_on_long(void **state)
{
    (void)state;
    run_seeds(SEEDS_LONG);
}

/* The same seed gives the same run. */
static void test_replay(void **state)
{
    (void)state;
    tally met = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        assert_int_equal(run_seed(seed, &met), run_seed(seed, &met));
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        setenv("GRADUS_SIM_SEED", argv[2], 1);
    } else if (argc > 1) {
        fputs("usage: test_coll_sim_renew [--seed N]\n", stderr);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_renew_random_jobs_go_on),
        cmocka_unit_test(sim_renew_random_jobs_go_on_long),
        cmocka_unit_test(test_replay),
    };
    test_choose();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
