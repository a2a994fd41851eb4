/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/number.h"
#include "cli/bench.h"
#include "cli/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CANDIDATES_MAX = 64,
    ROUNDS_MAX = 15,
    TURNS_MAX = 10000,
    SIZE_FACTOR = 4,
    TRIMMED = 20, /* one in so many operations, the slowest, is left out */
    /* What takes so many times the best there is not tried at larger sizes. Not before: what is
     * slow for small messages can be the best for large ones. */
    HOPELESS = 4,
    HOPELESS_FROM_BYTES = 1 << 20
};

typedef struct tuning_candidate {
    gr_choice choice;
    double estimate_us; /* of one operation, from the first ones */
    double rounds_us[ROUNDS_MAX];
    double time_us; /* median of the rounds */
} tuning_candidate;

typedef struct tuner {
    gr_comm *comm;
    const gr_tune_options *options;
    const gr_bench_op *op;
    gr_tune_points *points;
    char *buf;
    double *samples; /* TURNS_MAX */
    tuning_candidate candidates[CANDIDATES_MAX];
    int candidate_count;
    double hopeless[CANDIDATES_MAX]; /* by algorithm's number: time over the best, last size */
    gr_diag *diag;
} tuner;

static int number_of(const gr_algorithm *algorithm)
{
    return (int)(algorithm - gr_algorithms);
}

/* ---- One candidate --------------------------------------------------------------------------- */
/* The mean without the slowest: somebody else may have had the core. */
static double trimmed_mean(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof samples[0], gr_number_compare);
    int kept = count > 4 ? count - 1 - count / TRIMMED : count;
    double sum = 0;
    for (int i = 0; i < kept; i++) {
        sum += samples[i];
    }
    return sum / kept;
}

/* The time of one of `turns` operations, on average over all ranks. */
static gr_status time_turns(const tuner *t, const tuning_candidate *c, size_t count, int turns,
                            double *time_out)
{
    gr_bench_case once = {.op = t->op,
                          .comm = t->comm,
                          .dtype = GR_F32,
                          .redop = GR_SUM,
                          .in_place = true,
                          .count = count,
                          .out = t->buf};
    gr_status status = gr_barrier(t->comm);
    gr_tune_force(t->comm, t->op->coll, &c->choice);
    int64_t before_ns = gr_now_ns();
    for (int turn = 0; turn < turns && status == GR_OK; turn++) {
        status = gr_bench_do(&once);
        int64_t now_ns = gr_now_ns();
        t->samples[turn] = (double)(now_ns - before_ns) / 1e3;
        before_ns = now_ns;
    }
    gr_tune_force(t->comm, t->op->coll, NULL);
    *time_out = 0;
    if (status == GR_OK) {
        *time_out = trimmed_mean(t->samples, turns);
        status = gr_allreduce(t->comm, time_out, 1, GR_F64, GR_AVERAGE);
    }
    return status;
}

/* All in turn, round by round: what else the machine does then falls on all alike. */
static gr_status time_candidates(tuner *t, size_t count)
{
    int rounds = (int)t->options->rounds;
    double round_us = (double)t->options->time_us / rounds;
    for (int round = -1; round < rounds; round++) {
        for (int i = 0; i < t->candidate_count; i++) {
            tuning_candidate *c = &t->candidates[i];
            double turns = round < 0 ? 3 : round_us / (c->estimate_us + 0.01);
            turns = turns < 1 ? 1 : turns > TURNS_MAX ? TURNS_MAX : turns;
            gr_status status = time_turns(t, c, count, (int)turns,
                                          round < 0 ? &c->estimate_us : &c->rounds_us[round]);
            if (status != GR_OK) {
                return status;
            }
        }
    }
    for (int i = 0; i < t->candidate_count; i++) {
        tuning_candidate *c = &t->candidates[i];
        qsort(c->rounds_us, (size_t)rounds, sizeof c->rounds_us[0], gr_number_compare);
        c->time_us = c->rounds_us[rounds / 2];
    }
    return GR_OK;
}

/* ---- One size -------------------------------------------------------------------------------- */
static gr_status list_candidates(tuner *t, size_t size_bytes)
{
    int ranks = gr_comm_size(t->comm);
    const gr_selection *selection = gr_comm_selection(t->comm);
    gr_plan_shape shape = {
        .coll = t->op->coll, .world_size = ranks, .shards = ranks, .shared = selection->shared};
    t->candidate_count = 0;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        if (!gr_select_permits(at, &shape, true) || t->hopeless[number_of(at)] > HOPELESS) {
            continue;
        }
        if (!at->plan) {
            t->candidates[t->candidate_count++] = (tuning_candidate){.choice = {.algorithm = at}};
            continue;
        }
        gr_cost *walk = NULL;
        gr_status status = gr_cost_create(at, &shape, &walk);
        if (status != GR_OK) {
            return gr_fail(t->diag, status, "the plan of %s=%s cannot be made: %s", t->op->name,
                           at->name, gr_status_text(status));
        }
        size_t segments[GR_SELECT_SEGMENTS_MAX];
        int count = gr_select_segments(selection, walk, size_bytes, segments);
        gr_cost_destroy(walk);
        for (int i = 0; i < count && t->candidate_count < CANDIDATES_MAX; i++) {
            t->candidates[t->candidate_count++] =
                (tuning_candidate){.choice = {.algorithm = at, .segment_bytes = segments[i]}};
        }
    }
    return GR_OK;
}

static int by_time(const void *a, const void *b)
{
    const tuning_candidate *x = a, *y = b;
    return (x->time_us > y->time_us) - (x->time_us < y->time_us);
}

static gr_status keep_points(tuner *t, size_t size_bytes)
{
    gr_tune_points *points = t->points;
    size_t wanted = points->count + (size_t)t->candidate_count;
    if (wanted > points->capacity) {
        size_t capacity = 2 * wanted + 256;
        gr_tuning_point *all = realloc(points->all, capacity * sizeof *all);
        if (!all) {
            return gr_fail(t->diag, GR_E_NO_MEMORY, "no memory for what was measured");
        }
        points->all = all;
        points->capacity = capacity;
    }
    for (int i = 0; i < t->candidate_count; i++) {
        const tuning_candidate *c = &t->candidates[i];
        points->all[points->count++] =
            (gr_tuning_point){c->choice.algorithm, size_bytes, c->choice.segment_bytes, c->time_us};
    }
    return GR_OK;
}

static void print_size(const tuner *t, size_t size_bytes)
{
    const gr_algorithm *last = NULL;
    printf("%-14s %10zu ", t->op->name, size_bytes);
    for (int i = 0, shown = 0; i < t->candidate_count && shown < 4; i++) {
        const tuning_candidate *c = &t->candidates[i];
        if (c->choice.algorithm != last) { /* its best segment alone */
            printf("  %s %.1f us", c->choice.algorithm->name, c->time_us);
            shown++;
        }
        last = c->choice.algorithm;
    }
    putchar('\n');
    fflush(stdout);
}

static gr_status measure_size(tuner *t, size_t size_bytes)
{
    size_t unit = sizeof(float) * (size_t)gr_bench_blocks(t->op, gr_comm_size(t->comm));
    size_t count = size_bytes / unit > 0 || size_bytes == 0 ? size_bytes / unit : 1;
    size_bytes = count * unit;
    gr_status status = list_candidates(t, size_bytes);
    if (status == GR_OK && size_bytes > 0) {
        status = gr_alloc(t->comm, size_bytes, (void **)&t->buf);
        if (status != GR_OK) {
            return gr_fail(t->diag, status, "no memory for %zu bytes that all ranks can read",
                           size_bytes);
        }
    }
    if (status == GR_OK) {
        status = time_candidates(t, count);
    }
    gr_free(t->comm, t->buf);
    t->buf = NULL;
    if (status != GR_OK) {
        return status;
    }
    qsort(t->candidates, (size_t)t->candidate_count, sizeof t->candidates[0], by_time);
    double best_us = t->candidates[0].time_us;
    /* Backwards, so that an algorithm's best segment counts. */
    for (int i = t->candidate_count - 1; i >= 0 && size_bytes >= HOPELESS_FROM_BYTES; i--) {
        t->hopeless[number_of(t->candidates[i].choice.algorithm)] =
            t->candidates[i].time_us / best_us;
    }
    if (gr_comm_rank(t->comm) == 0) {
        print_size(t, size_bytes);
    }
    return keep_points(t, size_bytes);
}

gr_status gr_tune_measure(gr_comm *comm, const gr_tune_options *options, gr_tune_points *points,
                          gr_diag *diag)
{
    gr_diag_clear(diag);
    double *samples = malloc(TURNS_MAX * sizeof *samples);
    gr_status status = samples ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for samples");
    for (const gr_bench_op *op = gr_bench_ops; op->name && status == GR_OK; op++) {
        tuner t = {.comm = comm,
                   .options = options,
                   .op = op,
                   .points = points,
                   .samples = samples,
                   .diag = diag};
        if (op->coll == GR_COLL_SEND || op->coll == GR_COLL_RECV) {
            continue;
        }
        if (op->coll == GR_COLL_BARRIER) {
            status = measure_size(&t, 0);
            continue;
        }
        for (int64_t size = options->begin_bytes; size <= options->end_bytes && status == GR_OK;
             size *= SIZE_FACTOR) {
            status = measure_size(&t, (size_t)size);
        }
    }
    free(samples);
    if (status != GR_OK && diag->status == GR_OK) {
        *diag = *gr_comm_diag(comm);
        if (diag->status == GR_OK) {
            return gr_fail(diag, status, "an operation failed: %s", gr_status_text(status));
        }
    }
    return status;
}

/* ---- Rules ----------------------------------------------------------------------------------- */
static double time_at(const gr_tune_points *points, const gr_tuning_point *of, size_t size_bytes)
{
    for (size_t i = 0; i < points->count; i++) {
        const gr_tuning_point *p = &points->all[i];
        if (p->algorithm == of->algorithm && p->segment_bytes == of->segment_bytes &&
            p->size_bytes == size_bytes) {
            return p->time_us;
        }
    }
    return -1;
}

/* Between two sizes times follow a power of the size: where those of the two cross. */
static uint64_t crossing(const gr_tune_points *points, const gr_tuning_point *left,
                         const gr_tuning_point *right)
{
    double low = (double)left->size_bytes, high = (double)right->size_bytes;
    double left_then = time_at(points, left, right->size_bytes);
    double right_first = time_at(points, right, left->size_bytes);
    double part = 0.5;
    if (left_then > right->time_us && right_first > left->time_us) {
        double before = log(right_first / left->time_us);
        double behind = log(left_then / right->time_us);
        part = before / (before + behind);
    }
    return (uint64_t)(low * pow(high / low, part)) + 1;
}

/* The best at this point's size; the one of the size before stays while it is hardly slower, so
 * that noise makes no ranges. */
static const gr_tuning_point *best_at(const gr_tune_points *points, size_t first, bool exact,
                                      const gr_tuning_point *before)
{
    const double hardly = 1.03;
    const gr_tuning_point *best = NULL, *same = NULL;
    for (size_t i = first; i < points->count; i++) {
        const gr_tuning_point *p = &points->all[i];
        if (p->algorithm->coll != points->all[first].algorithm->coll ||
            p->size_bytes != points->all[first].size_bytes) {
            break;
        }
        if (exact && !p->algorithm->canonical) {
            continue;
        }
        best = best && best->time_us <= p->time_us ? best : p;
        if (before && p->algorithm == before->algorithm &&
            p->segment_bytes == before->segment_bytes) {
            same = p;
        }
    }
    return same && same->time_us < hardly * best->time_us ? same : best;
}

void gr_tune_rules(const gr_tune_points *points, bool exact, gr_select_rules *rules_out)
{
    const gr_tuning_point *before = NULL;
    rules_out->count = 0;
    for (size_t i = 0; i < points->count; i++) {
        const gr_tuning_point *first = &points->all[i];
        bool same_size = i > 0 && first[-1].algorithm->coll == first->algorithm->coll &&
                         first[-1].size_bytes == first->size_bytes;
        if (same_size) {
            continue;
        }
        if (before && before->algorithm->coll != first->algorithm->coll) {
            before = NULL;
        }
        const gr_tuning_point *best = best_at(points, i, exact, before);
        bool same = best && before && before->algorithm == best->algorithm &&
                    before->segment_bytes == best->segment_bytes;
        if (best && !same && rules_out->count < GR_SELECT_RULES_MAX) {
            uint64_t from = before ? crossing(points, before, best) : 0;
            if (before) {
                rules_out->rules[rules_out->count - 1].to = from;
            }
            rules_out->rules[rules_out->count++] =
                (gr_select_rule){.coll = best->algorithm->coll,
                                 .from = from,
                                 .to = UINT64_MAX,
                                 .algorithm = best->algorithm,
                                 .segment_bytes = best->segment_bytes};
        }
        before = best ? best : before;
    }
}
