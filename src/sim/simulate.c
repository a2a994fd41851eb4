/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/simulate.h"

#include "base/fail.h"
#include "sim/simulate_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES_MAX = 5,  /* worlds from which a larger one is extrapolated */
    SAMPLES_GOOD = 4, /* so that one can be held out and the others still tell n from log n */
    SAMPLES_MIN = 2,
    TERMS = 3,        /* 1, log2 n, n */
    SMALL_BYTES = 64, /* a buffer is never scaled below one unit of it */
    SAMPLE_RANKS_MAX = 2048,
    ALGORITHMS_MAX = 16 /* of one collective */
};
/* Steps of all plans together. */
#define STEPS_MAX UINT64_C(700000)

struct gr_simulator {
    gr_cluster cluster;
    const gr_algorithm *algorithm;
    bool exact;                       /* worlds[0] is the cluster itself */
    gr_simworld *worlds[SAMPLES_MAX]; /* the largest first */
    int world_count;
    bool scales; /* the buffer shrinks with the world, so that its blocks stay the same */
};

/* ---- Which worlds ---------------------------------------------------------------------------- */
enum { SEGMENT_MIN = 64 };

static gr_status check_cluster(const gr_cluster *cluster, gr_diag *diag)
{
    if (cluster->hosts < 1 || cluster->ranks_per_host < 1 ||
        cluster->hosts > GR_CLUSTER_RANKS_MAX ||
        cluster->ranks_per_host > GR_CLUSTER_RANKS_MAX / cluster->hosts) {
        return gr_fail(diag, GR_E_INVALID,
                       "a cluster has 1 to %d ranks; this one has %lld hosts with %lld each",
                       GR_CLUSTER_RANKS_MAX, (long long)cluster->hosts,
                       (long long)cluster->ranks_per_host);
    }
    if ((cluster->hosts > 1 && !(cluster->bandwidth_gbit > 0)) || cluster->latency_us < 0 ||
        cluster->overhead_us < 0 || cluster->local_latency_us < 0 ||
        cluster->local_overhead_us < 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "several hosts need a bandwidth above 0, and no time may be negative");
    }
    if (cluster->segment_bytes != 0 && cluster->segment_bytes < SEGMENT_MIN) {
        return gr_fail(diag, GR_E_INVALID, "segments have at least %d bytes (0: the usual length)",
                       SEGMENT_MIN);
    }
    return GR_OK;
}

static gr_status no_plan(const gr_simulator *simulator, gr_diag *diag)
{
    return gr_fail(diag, GR_E_UNSUPPORTED, "%s by %s has no plan for %lld ranks, %lld on a host",
                   gr_coll_name(simulator->algorithm->coll), simulator->algorithm->name,
                   (long long)(simulator->cluster.hosts * simulator->cluster.ranks_per_host),
                   (long long)simulator->cluster.ranks_per_host);
}

static gr_status add_world(gr_simulator *simulator, int64_t hosts, gr_diag *diag)
{
    gr_cluster cluster = simulator->cluster;
    cluster.hosts = hosts;
    gr_status status = gr_simworld_create(&cluster, simulator->algorithm,
                                          &simulator->worlds[simulator->world_count], diag);
    simulator->world_count += status == GR_OK;
    return status;
}

static int bits_of(int64_t ranks)
{
    int bits = 0;
    for (; ranks > 0; ranks /= 2) {
        bits++;
    }
    return bits;
}

/* About hosts / divisor, a power of two, with like binary groups (coll/plan/binary_groups.h): the
 * time of an algorithm that has them grows with the ratio of their sizes. Rounding to odd keeps the
 * last group, which a few ranks more than a power of two are, and makes no power of two of what is
 * none. Where hosts have 3 ranks, an odd number of them may lie beyond the power of two; and one
 * host is no sample. */
static int64_t smaller_by(const gr_cluster *cluster, int64_t divisor)
{
    int64_t hosts = cluster->hosts / divisor, per_host = cluster->ranks_per_host;
    if (cluster->hosts % divisor == 0) {
        return hosts;
    }
    int64_t odd = hosts | 1, even = odd == hosts ? hosts + 1 : hosts;
    bool fits = bits_of(odd * per_host) == bits_of(cluster->hosts * per_host / divisor);
    return fits && odd > 1 ? odd : even;
}

static gr_status add_smaller(gr_simulator *simulator, uint64_t steps_max, gr_diag *diag)
{
    for (int64_t divisor = 2; simulator->world_count < SAMPLES_MAX; divisor *= 2) {
        gr_cluster smaller = simulator->cluster;
        smaller.hosts = smaller_by(&simulator->cluster, divisor);
        if (smaller.hosts < 2) {
            break;
        }
        uint64_t steps = smaller.hosts * smaller.ranks_per_host <= SAMPLE_RANKS_MAX
                             ? gr_simworld_steps(&smaller, simulator->algorithm)
                             : 0;
        if (steps == 0 || steps > steps_max) {
            continue;
        }
        gr_status status = add_world(simulator, smaller.hosts, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

static void close_worlds(gr_simulator *simulator)
{
    while (simulator->world_count > 0) {
        gr_simworld_destroy(simulator->worlds[--simulator->world_count]);
    }
}

static gr_status add_samples(gr_simulator *simulator, gr_diag *diag)
{
    /* With many ranks on a host, worlds of a few hosts are large already. */
    static const uint64_t steps_max[] = {450000, 1800000};
    for (size_t i = 0; i < sizeof steps_max / sizeof steps_max[0]; i++) {
        close_worlds(simulator);
        gr_status status = add_smaller(simulator, steps_max[i], diag);
        if (status != GR_OK) {
            return status;
        }
        if (simulator->world_count >= SAMPLES_GOOD) {
            break;
        }
    }
    if (simulator->world_count < SAMPLES_MIN) {
        return no_plan(simulator, diag);
    }
    const gr_simworld *largest = simulator->worlds[0];
    const gr_simworld *smallest = simulator->worlds[simulator->world_count - 1];
    simulator->scales = largest->blocks > smallest->blocks;
    return GR_OK;
}

gr_status gr_simulator_create(const gr_cluster *cluster, const gr_algorithm *algorithm,
                              gr_simulator **simulator_out, gr_diag *diag)
{
    gr_status status = check_cluster(cluster, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_simulator *simulator = calloc(1, sizeof *simulator);
    if (!simulator) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a simulator");
    }
    simulator->cluster = *cluster;
    simulator->algorithm = algorithm;
    uint64_t steps = gr_simworld_steps(cluster, algorithm);
    simulator->exact = steps > 0 && steps <= STEPS_MAX;
    if (simulator->exact) {
        status = add_world(simulator, cluster->hosts, diag);
    } else {
        status = add_samples(simulator, diag);
    }
    if (status != GR_OK) {
        gr_simulator_destroy(simulator);
        return status;
    }
    *simulator_out = simulator;
    return GR_OK;
}

void gr_simulator_destroy(gr_simulator *simulator)
{
    if (simulator) {
        close_worlds(simulator);
    }
    free(simulator);
}

/* ---- Extrapolation --------------------------------------------------------------------------- */
/* With blocks of the same size, a message of any algorithm here costs the same however many hosts
 * there are; how many of them stand on the longest chain, and at the busiest rank, grows with a mix
 * of 1, log2 h and h - 1. So time is a sum of these. The factors of the latter two are not
 * negative; the first may be, where what is idle in a small world is busy in a large one. */
typedef struct fit {
    double factor[TERMS];
} fit;

static double term(int k, double hosts)
{
    return k == 0 ? 1 : k == 1 ? log2(hosts) : hosts - 1;
}

/* Of the i-th sample: the largest world is the nearest one to what is asked for. */
static double weight(int i)
{
    return ldexp(1, -2 * i);
}

static double fit_at(const fit *f, double n)
{
    double sum = 0;
    for (int k = 0; k < TERMS; k++) {
        sum += f->factor[k] * term(k, n);
    }
    return sum;
}

/* Least squares of the relative errors with the terms of `mask`; false: no unique answer. */
static bool solve(const double *n, const double *value, int count, unsigned mask, fit *out)
{
    double matrix[TERMS][TERMS + 1] = {{0}};
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < TERMS; k++) {
            double left = (mask >> k & 1u) ? weight(i) * term(k, n[i]) / value[i] : 0;
            for (int j = 0; j < TERMS; j++) {
                matrix[k][j] += (mask >> j & 1u) ? left * term(j, n[i]) / value[i] : 0;
            }
            matrix[k][TERMS] += left;
        }
    }
    *out = (fit){{0}};
    for (int k = 0; k < TERMS; k++) {
        if (!(mask >> k & 1u)) {
            matrix[k][k] = 1;
        }
    }
    for (int k = 0; k < TERMS; k++) {
        if (fabs(matrix[k][k]) < 1e-12) {
            return false;
        }
        for (int i = 0; i < TERMS; i++) {
            double ratio = i != k ? matrix[i][k] / matrix[k][k] : 0;
            for (int j = k; j <= TERMS; j++) {
                matrix[i][j] -= ratio * matrix[k][j];
            }
        }
    }
    for (int k = 0; k < TERMS; k++) {
        out->factor[k] = matrix[k][TERMS] / matrix[k][k];
        if (k > 0 && !(out->factor[k] >= 0)) {
            return false;
        }
    }
    return true;
}

static double residue(const fit *f, const double *n, const double *value, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        double error = fit_at(f, n[i]) / value[i] - 1;
        sum += weight(i) * error * error;
    }
    return sum;
}

static fit fit_best(const double *n, const double *value, int count)
{
    fit best = {{value[0], 0, 0}};
    double best_residue = HUGE_VAL;
    /* The linear term before the logarithm: samples are few if the algorithm has many steps. */
    static const unsigned masks[] = {1, 4, 5, 2, 3, 6, 7};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        fit f;
        if (!solve(n, value, count, masks[i], &f)) {
            continue;
        }
        double r = residue(&f, n, value, count);
        /* One more term has to be worth it: rounding alone would otherwise ask for it. */
        if (r < best_residue * 0.98 - 1e-12) {
            best = f;
            best_residue = r;
        }
    }
    return best;
}

typedef struct samples {
    double n[SAMPLES_MAX], value[SAMPLES_MAX];
    int count;
} samples;

static double extrapolate(const samples *s, double hosts, double *error_out)
{
    double value[SAMPLES_MAX] = {
        0}; /* of one order of magnitude: what `solve` takes for 0 is absolute */
    for (int i = 0; i < s->count; i++) {
        value[i] = s->value[i] / s->value[0];
    }
    fit whole = fit_best(s->n, value, s->count);
    if (error_out) {
        fit without = fit_best(s->n + 1, value + 1, s->count - 1);
        *error_out = fabs(fit_at(&without, s->n[0]) - 1);
    }
    return fit_at(&whole, hosts) * s->value[0];
}

static double positive(double value)
{
    return value > 1e-9 ? value : 1e-9;
}

static gr_status run_samples(gr_simulator *simulator, size_t size_bytes, gr_simulated *out,
                             gr_diag *diag)
{
    double all = (double)simulator->cluster.hosts;
    samples time = {.count = simulator->world_count}, wire = time, messages = time;
    samples parts[GR_TIME_PARTS] = {time, time, time, time};
    for (int i = 0; i < simulator->world_count; i++) {
        gr_simulated sample;
        double hosts = (double)simulator->worlds[i]->cluster.hosts;
        double share = hosts / (double)simulator->cluster.hosts;
        double size = simulator->scales ? (double)size_bytes * share : (double)size_bytes;
        double least = (double)(size_bytes < SMALL_BYTES ? size_bytes : SMALL_BYTES);
        size = size > least ? size : least;
        gr_status status =
            gr_simworld_run(simulator->worlds[i], (size_t)(size + 0.5), &sample, diag);
        if (status != GR_OK) {
            return status;
        }
        time.n[i] = wire.n[i] = messages.n[i] = hosts;
        time.value[i] = positive(sample.time_us);
        wire.value[i] = positive(sample.wire_bytes);
        messages.value[i] = positive(sample.messages);
        for (int part = 0; part < GR_TIME_PARTS; part++) {
            parts[part].n[i] = hosts;
            parts[part].value[i] = positive(sample.part_us[part]);
        }
    }
    *out = (gr_simulated){.extrapolated = true, .largest_simulated = simulator->worlds[0]->size};
    out->time_us = extrapolate(&time, all, &out->error);
    out->wire_bytes = extrapolate(&wire, all, NULL);
    out->messages = extrapolate(&messages, all, NULL);
    double sum = 0;
    for (int part = 0; part < GR_TIME_PARTS; part++) {
        out->part_us[part] = fmax(extrapolate(&parts[part], all, NULL), 0);
        sum += out->part_us[part];
    }
    for (int part = 0; part < GR_TIME_PARTS; part++) {
        out->part_us[part] *= out->time_us / sum;
    }
    return GR_OK;
}

gr_status gr_simulator_run(gr_simulator *simulator, size_t size_bytes, gr_simulated *simulated_out,
                           gr_diag *diag)
{
    return simulator->exact ? gr_simworld_run(simulator->worlds[0], size_bytes, simulated_out, diag)
                            : run_samples(simulator, size_bytes, simulated_out, diag);
}

/* ---- A training step ------------------------------------------------------------------------- */
static int64_t bucket_of(const gr_training_step *step)
{
    bool several = step->bucket_bytes > 0 && step->bucket_bytes < step->gradient_bytes;
    return several ? step->bucket_bytes : step->gradient_bytes;
}

/* Of the last bucket, if it is not full. */
static int64_t rest_of(const gr_training_step *step)
{
    int64_t bucket = bucket_of(step);
    return bucket > 0 ? step->gradient_bytes % bucket : 0;
}

gr_simulated_step gr_simulate_step(const gr_training_step *step,
                                   const gr_simulated_buckets *buckets)
{
    int64_t bytes = step->gradient_bytes, bucket = bucket_of(step);
    int64_t full = bucket > 0 ? bytes / bucket : 0;
    int64_t rest = rest_of(step);
    const gr_simulated *whole = &buckets->full, *last = &buckets->rest;
    double computed_us = step->forward_us + step->backward_us;
    double free_us = 0; /* when the network is done with the buckets before */
    for (int64_t i = 0; i < full + (rest > 0); i++) {
        double filled = (double)(i < full ? (i + 1) * bucket : bytes) / (double)bytes;
        double ready_us =
            step->overlap ? step->forward_us + step->backward_us * filled : computed_us;
        free_us =
            (ready_us > free_us ? ready_us : free_us) + (i < full ? whole->time_us : last->time_us);
    }
    double end_us = free_us > computed_us ? free_us : computed_us;
    return (gr_simulated_step){
        .time_us = end_us + step->update_us,
        .compute_us = computed_us + step->update_us,
        .allreduce_us = (double)full * whole->time_us + last->time_us,
        .exposed_us = end_us - computed_us,
        .wire_bytes = (double)full * whole->wire_bytes + last->wire_bytes,
        .buckets = full + (rest > 0),
        .error = whole->error > last->error ? whole->error : last->error,
        .extrapolated = whole->extrapolated || last->extrapolated,
    };
}

/* ---- The fastest allreduce ------------------------------------------------------------------- */
/* An algorithm that is so many times slower than the best one with so few hosts is not the best one
 * with more of them: it is not tried, as it would take longest to simulate. */
enum { TRIED_HOSTS = 32, TRIED_TIMES = 4 };

/* HUGE_VAL: it has no plan for such a world. */
static gr_status time_bucket(int64_t size_bytes, const gr_cluster *cluster,
                             const gr_algorithm *algorithm, gr_simulated *out, gr_diag *diag)
{
    gr_simulator *simulator = NULL;
    *out = (gr_simulated){.time_us = HUGE_VAL};
    gr_status status = gr_simulator_create(cluster, algorithm, &simulator, diag);
    if (status == GR_OK) {
        status = gr_simulator_run(simulator, (size_t)size_bytes, out, diag);
        gr_simulator_destroy(simulator);
    }
    return status == GR_E_UNSUPPORTED ? GR_OK : status;
}

typedef struct candidates {
    const gr_algorithm *algorithm[ALGORITHMS_MAX];
    gr_simulated full[ALGORITHMS_MAX]; /* of a full bucket */
    int count, best;
} candidates;

static gr_status time_candidates(const gr_training_step *step, const gr_cluster *cluster,
                                 candidates *c, gr_diag *diag)
{
    gr_status status = GR_OK;
    c->best = 0;
    for (int i = 0; i < c->count && status == GR_OK; i++) {
        status = time_bucket(bucket_of(step), cluster, c->algorithm[i], &c->full[i], diag);
        c->best = c->full[i].time_us < c->full[c->best].time_us ? i : c->best;
    }
    return status;
}

static void drop_slow(candidates *c)
{
    double most_us = c->full[c->best].time_us * TRIED_TIMES;
    int kept = 0;
    for (int i = 0; i < c->count; i++) {
        if (c->full[i].time_us <= most_us) {
            c->algorithm[kept++] = c->algorithm[i];
        }
    }
    c->count = kept;
}

gr_status gr_simulate_buckets(const gr_training_step *step, const gr_cluster *cluster,
                              const char *name, bool exact, gr_simulated_buckets *buckets_out,
                              gr_diag *diag)
{
    candidates c = {.count = 0};
    gr_status status = check_cluster(cluster, diag);
    if (status == GR_OK && cluster->hosts * cluster->ranks_per_host == 1) {
        *buckets_out = (gr_simulated_buckets){.algorithm = NULL};
        return GR_OK;
    }
    for (const gr_algorithm *at = gr_algorithms; at->name && c.count < ALGORITHMS_MAX; at++) {
        if (at->coll == GR_COLL_ALLREDUCE &&
            (name ? strcmp(name, at->name) == 0 : !exact || at->canonical)) {
            c.algorithm[c.count++] = at;
        }
    }
    if (status == GR_OK && c.count > 1 && cluster->hosts > 2 * TRIED_HOSTS) {
        gr_cluster few = *cluster;
        few.hosts = TRIED_HOSTS;
        status = time_candidates(step, &few, &c, diag);
        drop_slow(&c);
    }
    if (status == GR_OK) {
        status = time_candidates(step, cluster, &c, diag);
    }
    if (status == GR_OK && (c.count == 0 || !(c.full[c.best].time_us < HUGE_VAL))) {
        status = gr_fail(diag, GR_E_UNSUPPORTED,
                         "no algorithm%s%s has a plan of allreduce for %lld hosts of %lld ranks",
                         name ? " " : "", name ? name : "", (long long)cluster->hosts,
                         (long long)cluster->ranks_per_host);
    }
    if (status != GR_OK) {
        return status;
    }
    *buckets_out = (gr_simulated_buckets){.algorithm = c.algorithm[c.best], .full = c.full[c.best]};
    int64_t rest = rest_of(step);
    return rest > 0 ? time_bucket(rest, cluster, c.algorithm[c.best], &buckets_out->rest, diag)
                    : GR_OK;
}
