/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a measurement needs on each rank. */
typedef struct measurer {
    gr_bench *bench;
    gr_bench_pattern *pattern;
    char *in, *out;
    double *samples; /* of one round, then the mean over the ranks */
    uint64_t loops;  /* of the caller's work in `compute_us` */
} measurer;

/* What the caller's work took: alone, and while operations ran. Both are measured in turn: no core
 * is as fast for long as in its best moments. */
typedef struct works {
    double alone_us, beside_us;
} works;

static double elapsed_us(int64_t since_ns)
{
    return (double)(gr_now_ns() - since_ns) / 1e3;
}

/* Work that needs nothing but the core. The result is returned so that it must be computed. */
static uint64_t compute(uint64_t loops)
{
    uint64_t state = loops;
    for (uint64_t i = 0; i < loops; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        __asm__ volatile("" : "+r"(state)); /* each step is taken */
    }
    return state;
}

/* How many loops take `us` on a core that does nothing else: the best of several tries. */
static uint64_t calibrate_loops(int64_t us)
{
    enum { TRIES = 7, PROBE_LOOPS = 2000000 };
    double best_us = 1e30;
    for (int i = 0; i < TRIES; i++) {
        int64_t start_ns = gr_now_ns();
        (void)compute(PROBE_LOOPS);
        double took_us = elapsed_us(start_ns);
        best_us = took_us < best_us ? took_us : best_us;
    }
    return (uint64_t)((double)us / best_us * PROBE_LOOPS) + 1;
}

static double compute_once(const measurer *m)
{
    int64_t start_ns = gr_now_ns();
    (void)compute(m->loops);
    return elapsed_us(start_ns);
}

static gr_status one_async(gr_comm *comm, const gr_call *calls, int call_count, const measurer *m,
                           works *work)
{
    gr_op *op = NULL;
    gr_status status = gr_start(comm, calls, call_count, &op);
    if (status != GR_OK) {
        return status;
    }
    if (m->loops > 0) {
        work->beside_us += compute_once(m);
    }
    return gr_wait(op);
}

/* `iterations` operations, one after the other, each timed. The calls are the caller's to make, and
 * made before: to clear two of them takes a tenth of a small operation. */
static gr_status repeat(const measurer *m, const gr_bench_case *c, int64_t iterations,
                        double *mean_us_out, works *work_out)
{
    bool async = m->bench->options.mode == 1 || m->loops > 0;
    works work = {0};
    double all_us = 0;
    gr_call calls[GR_BENCH_CALLS_MAX];
    int call_count = gr_bench_calls(c, calls);
    gr_status status = gr_barrier(c->comm);
    int64_t before_ns = gr_now_ns();
    for (int64_t i = 0; i < iterations && status == GR_OK; i++) {
        if (m->loops > 0) {
            work.alone_us += compute_once(m);
            status = gr_barrier(c->comm);
            before_ns = gr_now_ns();
        }
        if (status == GR_OK) {
            status = async ? one_async(c->comm, calls, call_count, m, &work)
                           : gr_run(c->comm, calls, call_count);
        }
        if (status == GR_OK && m->bench->options.together) {
            status = gr_barrier(c->comm);
        }
        int64_t now_ns = gr_now_ns();
        m->samples[i] = (double)(now_ns - before_ns) / 1e3;
        all_us += m->samples[i];
        before_ns = now_ns;
    }
    *mean_us_out = all_us / (double)iterations;
    *work_out = work;
    return status;
}

/* How many operations fill the time of a round, as rank 0 sees it. */
static gr_status calibrate(const measurer *m, const gr_bench_case *c, int64_t *iterations_out)
{
    const gr_bench_options *options = &m->bench->options;
    int64_t most = GR_BENCH_SAMPLES_MAX / options->rounds;
    double mean_us = 0;
    works work;
    int64_t iterations = options->warmup > 0 ? options->warmup : 1;
    gr_status status = GR_OK;
    /* A few operations first; where they are short, enough of them to tell. */
    int steps = options->iterations > 0 ? 1 : 2;
    for (int step = 0; step < steps && status == GR_OK; step++) {
        iterations = iterations < most ? iterations : most;
        status = repeat(m, c, iterations, &mean_us, &work);
        if (status == GR_OK && steps > 1) {
            double share = step == 0 ? 0.1 : 1;
            double want = share * (double)options->time_us / (mean_us + 0.01);
            iterations = want < 1 ? 1 : want > (double)most ? most : (int64_t)want;
            status = gr_broadcast(c->comm, &iterations, 1, GR_I64, 0);
        }
    }
    *iterations_out = options->iterations > 0 ? options->iterations : iterations;
    return status;
}

static gr_status count_wrong(const measurer *m, const gr_bench_case *c, int64_t *wrong)
{
    gr_bench_fill(m->pattern, c);
    gr_status status = gr_bench_do(c);
    int64_t found = status == GR_OK ? gr_bench_check(m->pattern, c) : 0;
    if (status == GR_OK) {
        status = gr_allreduce(c->comm, &found, 1, GR_I64, GR_SUM);
    }
    *wrong += found;
    return status;
}

/* Every rank's time of each operation, averaged over the ranks: that a rank came early and waited
 * counts as much as that another one came late. */
static gr_status average_over_ranks(const measurer *m, int64_t iterations, double *mean_us,
                                    works *work)
{
    gr_comm *comm = m->bench->comm;
    double means[3] = {*mean_us, work->alone_us, work->beside_us};
    gr_status status = gr_allreduce(comm, m->samples, (size_t)iterations, GR_F64, GR_AVERAGE);
    if (status == GR_OK) {
        status = gr_allreduce(comm, means, 3, GR_F64, GR_AVERAGE);
    }
    *mean_us = means[0];
    *work = (works){.alone_us = means[1], .beside_us = means[2]};
    return status;
}

static gr_status measure_round(const measurer *m, gr_bench_case *c, gr_bench_times *times,
                               int round)
{
    const gr_bench_options *options = &m->bench->options;
    int ranks = gr_comm_size(c->comm);
    size_t bytes = c->count * gr_dtype_bytes(c->dtype) * (size_t)gr_bench_blocks(c->op, ranks);
    gr_status status = options->check ? count_wrong(m, c, &times->wrong) : GR_OK;
    if (c->in_place && bytes > 0) {
        memset(c->out, 0, bytes); /* stays zero however often it is reduced */
    }
    int64_t iterations = 0;
    double mean_us = 0;
    works work = {0};
    if (status == GR_OK) {
        status = calibrate(m, c, &iterations);
    }
    if (status == GR_OK) {
        status = repeat(m, c, iterations, &mean_us, &work);
    }
    if (status == GR_OK) {
        status = average_over_ranks(m, iterations, &mean_us, &work);
    }
    if (status == GR_OK && options->check) {
        status = count_wrong(m, c, &times->wrong);
    }
    if (status == GR_OK && times->samples != NULL) {
        memcpy(times->samples + times->operations, m->samples,
               (size_t)iterations * sizeof *m->samples);
        times->operations += iterations;
        times->round_means[round] = mean_us;
        double speed = work.beside_us > 0 ? work.alone_us / work.beside_us : 0;
        times->compute_speed += speed / (double)options->rounds;
    }
    times->measured = true;
    return status;
}

static double sorted_at(const double *sorted, int64_t count, double part)
{
    return sorted[(int64_t)(part * (double)(count - 1) + 0.5)];
}

/* On rank 0, when all rounds are over. */
static void summarize(const gr_bench *bench, const gr_bench_row *row, gr_bench_times *times)
{
    int64_t rounds = bench->options.rounds, count = times->operations;
    double on_top_us = (double)bench->options.compute_us;
    qsort(times->samples, (size_t)count, sizeof *times->samples, gr_number_compare);
    qsort(times->round_means, (size_t)rounds, sizeof *times->round_means, gr_number_compare);
    times->mean = sorted_at(times->round_means, rounds, 0.5) - on_top_us;
    times->least = times->samples[0] - on_top_us;
    times->median = sorted_at(times->samples, count, 0.5) - on_top_us;
    times->p99 = sorted_at(times->samples, count, 0.99) - on_top_us;
    if (times->median > 0) {
        times->algbw = (double)row->size_bytes / times->median / 1e3;
        times->busbw = times->algbw * gr_bench_bus_factor(bench->op, gr_comm_size(bench->comm));
    }
    free(times->samples);
    free(times->round_means);
    times->samples = times->round_means = NULL;
}

static bool wanted(const gr_bench *bench, bool in_place)
{
    if (bench->op->places < 2) { /* a message goes from one buffer into another */
        return in_place == (bench->op->coll != GR_COLL_SEND);
    }
    return bench->options.placement == GR_BENCH_BOTH ||
           in_place == (bench->options.placement == GR_BENCH_IN_PLACE);
}

static gr_status measure_row(const measurer *m, gr_bench_row *row, int round, gr_diag *diag)
{
    gr_bench *bench = m->bench;
    const gr_bench_options *options = &bench->options;
    int64_t sample_max = GR_BENCH_SAMPLES_MAX;
    for (int in_place = 0; in_place < 2; in_place++) {
        gr_bench_times *times = &row->times[in_place];
        if (!wanted(bench, in_place != 0)) {
            continue;
        }
        if (round == 0 && gr_comm_rank(bench->comm) == 0) {
            times->samples = malloc((size_t)sample_max * sizeof *times->samples);
            times->round_means = malloc((size_t)options->rounds * sizeof *times->round_means);
            if (times->samples == NULL || times->round_means == NULL) {
                return gr_fail(diag, GR_E_NO_MEMORY, "bench: no memory for the times");
            }
        }
        gr_bench_case c = {.op = bench->op,
                           .comm = bench->comm,
                           .dtype = (gr_dtype)options->dtype,
                           .redop = gr_bench_redop(options),
                           .root = (int)options->root,
                           .in_place = in_place != 0,
                           .count = row->count,
                           .in = m->in,
                           .out = m->out};
        row->algorithm = gr_bench_algorithm(&c);
        gr_status status = measure_round(m, &c, times, round);
        if (status != GR_OK) {
            return gr_fail(diag, status, "%s", gr_comm_diag(bench->comm)->text);
        }
    }
    return GR_OK;
}

static gr_status get_buffer(const gr_bench *bench, size_t bytes, char **out, gr_diag *diag)
{
    bool own = bench->options.buffers == GR_BENCH_OWN;
    size_t alignment = own ? (size_t)sysconf(_SC_PAGESIZE) : 64;
    void *memory = NULL;
    gr_status status = GR_OK;
    if (bench->options.buffers == GR_BENCH_REGISTERED) {
        status = gr_alloc(bench->comm, bytes, &memory);
    } else {
        memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
        status = memory == NULL ? GR_E_NO_MEMORY : GR_OK;
    }
    if (status == GR_OK && own) {
        status = gr_register(bench->comm, memory, bytes);
    }
    *out = memory;
    return status == GR_OK
               ? GR_OK
               : gr_fail(diag, status, "bench: rank %d gets no buffer of %zu bytes; lower --end",
                         gr_comm_rank(bench->comm), bytes);
}

static void put_buffer(const gr_bench *bench, char *memory)
{
    if (bench->options.buffers == GR_BENCH_REGISTERED) {
        gr_free(bench->comm, memory);
        return;
    }
    if (bench->options.buffers == GR_BENCH_OWN && memory != NULL &&
        gr_unregister(bench->comm, memory) != GR_OK) {
        return; /* the communicator's end makes it private */
    }
    free(memory);
}

static gr_status prepare(measurer *m, gr_diag *diag)
{
    gr_bench *bench = m->bench;
    size_t bytes = 1;
    for (int i = 0; i < bench->row_count; i++) {
        bytes = bench->rows[i].size_bytes > bytes ? bench->rows[i].size_bytes : bytes;
    }
    m->samples = malloc(GR_BENCH_SAMPLES_MAX * sizeof *m->samples);
    if (m->samples == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "bench: no memory for the times");
    }
    if (bench->options.compute_us > 0) {
        m->loops = calibrate_loops(bench->options.compute_us);
    }
    gr_status status =
        gr_bench_pattern_create((gr_dtype)bench->options.dtype, gr_bench_redop(&bench->options),
                                gr_comm_size(bench->comm), &m->pattern, diag);
    if (status == GR_OK) {
        status = get_buffer(bench, bytes, &m->out, diag);
    }
    if (status == GR_OK && wanted(bench, false)) {
        status = get_buffer(bench, bytes, &m->in, diag);
    }
    return status;
}

gr_status gr_bench_measure(gr_bench *bench,
                           void (*row_done)(const gr_bench *, const gr_bench_row *), gr_diag *diag)
{
    measurer m = {.bench = bench};
    int rounds = (int)bench->options.rounds, rank = gr_comm_rank(bench->comm);
    gr_status status = prepare(&m, diag);
    for (int round = 0; round < rounds && status == GR_OK; round++) {
        for (int i = 0; i < bench->row_count && status == GR_OK; i++) {
            gr_bench_row *row = &bench->rows[i];
            status = measure_row(&m, row, round, diag);
            if (status != GR_OK || rank != 0 || round != rounds - 1) {
                continue;
            }
            for (int in_place = 0; in_place < 2; in_place++) {
                if (row->times[in_place].measured) {
                    summarize(bench, row, &row->times[in_place]);
                }
            }
            row_done(bench, row);
        }
    }
    for (int i = 0; i < bench->row_count; i++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            free(bench->rows[i].times[in_place].samples);
            free(bench->rows[i].times[in_place].round_means);
        }
    }
    put_buffer(bench, m.in);
    put_buffer(bench, m.out);
    gr_bench_pattern_destroy(m.pattern);
    free(m.samples);
    return status;
}
