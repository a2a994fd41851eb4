/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_BENCH_H
#define GR_CLI_BENCH_H

/* What the files of `gradus bench` share: operations (bench_ops.c), measuring (bench_measure.c),
 * tables (bench_report.c), plots (bench_plot.c); bench.c is the verb. */

#include "base/config.h"
#include "coll/plan/plan.h"
#include <gradus/comm.h>

#include <stdio.h>

/* ---- Operations ------------------------------------------------------------------------------ */
/* The bytes that an ideal bus moves for each byte of the size, as in nccl-tests. */
typedef enum gr_bench_bus {
    GR_BENCH_BUS_NONE,   /* moves nothing: no bandwidth */
    GR_BENCH_BUS_ONE,    /* 1 */
    GR_BENCH_BUS_OTHERS, /* (n-1)/n: what all ranks but one hold */
    GR_BENCH_BUS_TWICE   /* 2(n-1)/n: the others' parts once to be added and once as the result */
} gr_bench_bus;

typedef struct gr_bench_op {
    const char *name;
    gr_coll coll;
    gr_bench_bus bus;
    bool many_in, many_out; /* a block for each rank, or from each */
    bool root_in, root_out; /* only root has that side */
    bool reduces, rooted;
    int places; /* 2: exists out of place and in place; 1: there is but one way */
} gr_bench_op;

extern const gr_bench_op gr_bench_ops[]; /* ends with name NULL */
const gr_bench_op *gr_bench_op_find(const char *name);
double gr_bench_bus_factor(const gr_bench_op *op, int ranks);

typedef enum gr_bench_buffers {
    GR_BENCH_REGISTERED = 0,
    GR_BENCH_MALLOC = 1,
    GR_BENCH_OWN = 2 /* the program's, registered */
} gr_bench_buffers;

/* One operation on one pair of buffers. */
typedef struct gr_bench_case {
    const gr_bench_op *op;
    gr_comm *comm;
    gr_dtype dtype;
    gr_redop redop;
    int root;
    bool in_place;
    size_t count;   /* elements of a block */
    char *in, *out; /* whole buffers; in place: `out` alone */
} gr_bench_case;

/* Blocks in the larger of an operation's two buffers. */
int gr_bench_blocks(const gr_bench_op *op, int ranks);

/* The calls that make the operation; returns how many. */
enum { GR_BENCH_CALLS_MAX = 2 };
int gr_bench_calls(const gr_bench_case *c, gr_call calls[GR_BENCH_CALLS_MAX]);
gr_status gr_bench_do(const gr_bench_case *c) GR_MUST_CHECK;
/* That it takes. */
const char *gr_bench_algorithm(const gr_bench_case *c);

/* What every rank contributes, and what must come out: patterns that repeat after a prime number
 * of elements, so that no block that lands in a wrong place looks right. */
typedef struct gr_bench_pattern gr_bench_pattern;
gr_status gr_bench_pattern_create(gr_dtype dtype, gr_redop redop, int ranks,
                                  gr_bench_pattern **pattern_out, gr_diag *diag) GR_MUST_CHECK;
void gr_bench_pattern_destroy(gr_bench_pattern *pattern);
void gr_bench_fill(const gr_bench_pattern *pattern, const gr_bench_case *c);
/* Elements of this rank's result that are not what they must be. */
int64_t gr_bench_check(const gr_bench_pattern *pattern, const gr_bench_case *c);

/* ---- Measuring ------------------------------------------------------------------------------- */
enum { GR_BENCH_SIZES_MAX = 128, GR_BENCH_SAMPLES_MAX = 65536 };

typedef enum gr_bench_placement {
    GR_BENCH_BOTH,
    GR_BENCH_IN_PLACE,
    GR_BENCH_OUT_OF_PLACE
} gr_bench_placement;

typedef struct gr_bench_options {
    int64_t workers;
    int64_t begin_bytes, end_bytes;
    double factor;
    const char *sizes;
    int dtype;
    int redop; /* index of the choice: gr_bench_redop */
    int64_t root;
    int64_t iterations, time_us, warmup, rounds;
    int buffers;   /* a gr_bench_buffers */
    int mode;      /* 0 blocking, 1 async */
    int placement; /* a gr_bench_placement */
    int64_t compute_us;
    const char *algorithm;
    int link;
    bool together, check, json, exact;
    const char *plot;
} gr_bench_options;

gr_redop gr_bench_redop(const gr_bench_options *options);

/* Of one size and placement; times in microseconds. */
typedef struct gr_bench_times {
    bool measured;
    int64_t operations; /* timed one by one */
    double mean, least, median, p99;
    double algbw, busbw;  /* 10^9 bytes a second, from the median */
    double compute_speed; /* of the caller's loop while the operation runs; 1: as if alone */
    int64_t wrong;
    double *samples, *round_means; /* on rank 0 until the row is finished */
} gr_bench_times;

typedef struct gr_bench_row {
    size_t size_bytes, count; /* count: of a block */
    const char *algorithm;
    gr_bench_times times[2]; /* out of place, in place */
} gr_bench_row;

typedef struct gr_bench {
    const gr_bench_op *op;
    gr_bench_options options;
    gr_comm *comm;
    gr_bench_row rows[GR_BENCH_SIZES_MAX];
    int row_count;
} gr_bench;

/* Measures all rows, in `rounds` passes. Rank 0 calls `row_done` for each row as soon
 * as it is complete. */
gr_status gr_bench_measure(gr_bench *bench,
                           void (*row_done)(const gr_bench *, const gr_bench_row *),
                           gr_diag *diag) GR_MUST_CHECK;

/* ---- Reports --------------------------------------------------------------------------------- */
void gr_bench_print_head(const gr_bench *bench);
void gr_bench_print_row(const gr_bench *bench, const gr_bench_row *row);
int64_t gr_bench_wrong(const gr_bench *bench); /* of all rows */
/* Time and bus bandwidth over size as SVG. */
gr_status gr_bench_plot(const gr_bench *bench, const char *path, gr_diag *diag) GR_MUST_CHECK;
extern const char *const gr_bench_buffer_names[], *const gr_bench_mode_names[];

#endif
