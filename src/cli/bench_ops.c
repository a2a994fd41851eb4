/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"

#include "base/fail.h"
#include "coll/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const gr_bench_op gr_bench_ops[] = {
    {"allreduce", GR_COLL_ALLREDUCE, GR_BENCH_BUS_TWICE, .reduces = true, .places = 2},
    {"reduce", GR_COLL_REDUCE, GR_BENCH_BUS_ONE, .root_out = true, .reduces = true, .rooted = true,
     .places = 2},
    {"reduce-scatter", GR_COLL_REDUCE_SCATTER, GR_BENCH_BUS_OTHERS, .many_in = true,
     .reduces = true, .places = 2},
    {"allgather", GR_COLL_ALLGATHER, GR_BENCH_BUS_OTHERS, .many_out = true, .places = 2},
    {"gather", GR_COLL_GATHER, GR_BENCH_BUS_OTHERS, .many_out = true, .root_out = true,
     .rooted = true, .places = 2},
    {"scatter", GR_COLL_SCATTER, GR_BENCH_BUS_OTHERS, .many_in = true, .root_in = true,
     .rooted = true, .places = 2},
    {"broadcast", GR_COLL_BROADCAST, GR_BENCH_BUS_ONE, .root_in = true, .rooted = true,
     .places = 2},
    {"alltoall", GR_COLL_ALLTOALL, GR_BENCH_BUS_OTHERS, .many_in = true, .many_out = true,
     .places = 2},
    {"sendrecv", GR_COLL_SEND, GR_BENCH_BUS_ONE, .places = 1},
    {"barrier", GR_COLL_BARRIER, GR_BENCH_BUS_NONE, .places = 1},
    {.name = NULL},
};

const gr_bench_op *gr_bench_op_find(const char *name)
{
    for (const gr_bench_op *op = gr_bench_ops; op->name != NULL; op++) {
        if (strcmp(op->name, name) == 0) {
            return op;
        }
    }
    return NULL;
}

double gr_bench_bus_factor(const gr_bench_op *op, int ranks)
{
    double others = (double)(ranks - 1) / ranks;
    switch (op->bus) {
    case GR_BENCH_BUS_ONE:
        return 1;
    case GR_BENCH_BUS_OTHERS:
        return others;
    case GR_BENCH_BUS_TWICE:
        return 2 * others;
    case GR_BENCH_BUS_NONE:
        break;
    }
    return 0;
}

int gr_bench_blocks(const gr_bench_op *op, int ranks)
{
    return op->many_in || op->many_out ? ranks : 1;
}

/* ---- Doing it -------------------------------------------------------------------------------- */
int gr_bench_calls(const gr_bench_case *c, gr_call calls[GR_BENCH_CALLS_MAX])
{
    int rank = gr_comm_rank(c->comm), ranks = gr_comm_size(c->comm);
    bool root = rank == c->root, lacks_in = c->op->root_in && !root;
    size_t own = (size_t)rank * c->count * gr_dtype_bytes(c->dtype);
    calls[0] = (gr_call){.coll = c->op->coll,
                         .dtype = c->dtype,
                         .op = c->redop,
                         .in = c->in_place || lacks_in ? NULL : c->in,
                         .out = c->out,
                         .count = c->count,
                         .root = c->root};
    switch (c->op->coll) {
    case GR_COLL_GATHER: /* who is not root has no place for all blocks */
        if (!root) {
            calls[0].in = c->in_place ? c->out + own : c->in;
            calls[0].out = NULL;
        }
        return 1;
    case GR_COLL_SCATTER:
        if (!root) {
            calls[0].out = c->in_place ? c->out + own : c->out;
        }
        return 1;
    case GR_COLL_SEND: /* around the ring */
        calls[0].out = NULL;
        calls[0].root = (rank + 1) % ranks;
        calls[1] = (gr_call){.coll = GR_COLL_RECV,
                             .dtype = c->dtype,
                             .out = c->out,
                             .count = c->count,
                             .root = (rank + ranks - 1) % ranks};
        return 2;
    case GR_COLL_BARRIER:
        calls[0] = (gr_call){.coll = GR_COLL_BARRIER};
        return 1;
    default:
        return 1;
    }
}

gr_status gr_bench_do(const gr_bench_case *c)
{
    gr_call calls[GR_BENCH_CALLS_MAX];
    int count = gr_bench_calls(c, calls);
    return gr_run(c->comm, calls, count);
}

const char *gr_bench_algorithm(const gr_bench_case *c)
{
    gr_call calls[GR_BENCH_CALLS_MAX];
    return gr_bench_calls(c, calls) == 2 ? "direct" : gr_comm_algorithm_name(c->comm, &calls[0]);
}

/* ---- Elements -------------------------------------------------------------------------------- */
/* A float of 16 bits; it must be able to hold `value`, as it does all small whole numbers. */
static uint16_t small_float(double value, int mantissa_bits)
{
    if (value == 0) {
        return 0;
    }
    int exponent;
    double fraction = frexp(value, &exponent); /* 0.5 .. 1 */
    int bias = (1 << (14 - mantissa_bits)) - 1;
    int mantissa = (int)ldexp(2 * fraction - 1, mantissa_bits);
    return (uint16_t)(((exponent - 1 + bias) << mantissa_bits) + mantissa);
}

static double small_float_value(uint16_t bits, int mantissa_bits)
{
    int bias = (1 << (14 - mantissa_bits)) - 1;
    int exponent = (bits & 0x7fff) >> mantissa_bits;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double value = exponent == 0
                       ? ldexp(mantissa, 1 - bias - mantissa_bits)
                       : ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

enum { F16_MANTISSA_BITS = 10, BF16_MANTISSA_BITS = 7 };

/* A complex number is two real ones. */
static int parts_of(gr_dtype dtype)
{
    return dtype == GR_COMPLEX64 || dtype == GR_COMPLEX128 ? 2 : 1;
}

static gr_dtype part_of(gr_dtype dtype)
{
    return dtype == GR_COMPLEX64 ? GR_F32 : dtype == GR_COMPLEX128 ? GR_F64 : dtype;
}

/* Integers wrap around, as the library's sums do. */
static void put(gr_dtype dtype, void *at, double value)
{
    int64_t whole = (int64_t)value;
    uint16_t bits;
    switch (dtype) {
    case GR_F32:
        memcpy(at, &(float){(float)value}, sizeof(float));
        return;
    case GR_F64:
        memcpy(at, &value, sizeof value);
        return;
    case GR_F16:
    case GR_BF16:
        bits = small_float(value, dtype == GR_F16 ? F16_MANTISSA_BITS : BF16_MANTISSA_BITS);
        memcpy(at, &bits, sizeof bits);
        return;
    default: /* little-endian: the low bytes */
        memcpy(at, &whole, gr_dtype_bytes(dtype));
        return;
    }
}

static double get_float(gr_dtype dtype, const void *at)
{
    float single;
    double value;
    uint16_t bits;
    switch (dtype) {
    case GR_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case GR_F64:
        memcpy(&value, at, sizeof value);
        return value;
    default:
        memcpy(&bits, at, sizeof bits);
        return small_float_value(bits, dtype == GR_F16 ? F16_MANTISSA_BITS : BF16_MANTISSA_BITS);
    }
}

/* How far a mean may be off: a little more than one rounding. 0: integers, exact. */
static double tolerance(gr_dtype dtype)
{
    switch (dtype) {
    case GR_F32:
        return 2e-7;
    case GR_F64:
        return 4e-16;
    case GR_F16:
        return 2e-3;
    case GR_BF16:
        return 1.6e-2;
    default:
        return 0;
    }
}

/* ---- Patterns -------------------------------------------------------------------------------- */
enum {
    PERIOD = 1021,      /* elements; prime */
    BLOCK_SHIFT = 17,   /* blocks for different ranks differ by so much of the pattern */
    SUM_EXACT_MAX = 127 /* sums of whole numbers up to it are exact in every type */
};

struct gr_bench_pattern {
    gr_dtype dtype;
    gr_redop redop;
    size_t bytes; /* of an element */
    int ranks;
    bool rounded;      /* the reduced values are means of floats */
    unsigned char *of; /* (ranks + 1) times PERIOD elements: each rank's, then the reduced */
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

/* What `rank` contributes: whole numbers, small enough that every type reduces them exactly.
 * `part` is 1 for the imaginary part. */
static int64_t contribution(const gr_bench_pattern *pattern, int rank, int i, int part)
{
    uint64_t ranks = (uint64_t)pattern->ranks;
    bool truth = pattern->dtype == GR_BOOL;
    if (pattern->redop == GR_PRODUCT && !truth) { /* all factors are 1 but one */
        uint64_t bits = mix((uint64_t)i + 1);
        int64_t more = (int64_t)(bits >> (40 + 2 * part) & 3);
        return (part == 0) + ((int)(bits % ranks) == rank ? more : 0);
    }
    uint64_t mask = truth ? 1 : 63;
    while (mask > 1 && mask * ranks > SUM_EXACT_MAX) {
        mask >>= 1;
    }
    return (int64_t)(mix((uint64_t)i * 4096 + (uint64_t)rank + 1) >> (8 * part) & mask);
}

/* What the reduction is for the numbers that are contributed. */
static gr_redop redop_of_parts(gr_dtype dtype, gr_redop redop, int part)
{
    if (dtype == GR_BOOL) {
        bool all = redop == GR_PRODUCT || redop == GR_MIN || redop == GR_BAND;
        return redop == GR_BXOR ? GR_BXOR : all ? GR_BAND : GR_BOR;
    }
    return redop == GR_PRODUCT && part == 1 ? GR_SUM : redop; /* one factor has imaginary parts */
}

static double reduced(const gr_bench_pattern *pattern, int i, int part)
{
    int ranks = pattern->ranks;
    gr_dtype dtype = part_of(pattern->dtype);
    gr_redop redop = redop_of_parts(dtype, pattern->redop, part);
    int64_t result = contribution(pattern, 0, i, part);
    for (int rank = 1; rank < ranks; rank++) {
        int64_t value = contribution(pattern, rank, i, part);
        switch (redop) {
        case GR_MIN:
            result = value < result ? value : result;
            break;
        case GR_MAX:
            result = value > result ? value : result;
            break;
        case GR_PRODUCT:
            result *= value;
            break;
        case GR_BAND:
            result &= value;
            break;
        case GR_BOR:
            result |= value;
            break;
        case GR_BXOR:
            result ^= value;
            break;
        default:
            result += value;
        }
    }
    if (redop == GR_AVERAGE) {
        if (tolerance(dtype) > 0) {
            return (double)result / ranks;
        }
        result = (dtype == GR_I8   ? (int64_t)(int8_t)result
                  : dtype == GR_U8 ? (int64_t)(uint8_t)result
                                   : result) /
                 ranks;
    }
    return (double)result;
}

gr_status gr_bench_pattern_create(gr_dtype dtype, gr_redop redop, int ranks,
                                  gr_bench_pattern **pattern_out, gr_diag *diag)
{
    gr_bench_pattern *pattern = calloc(1, sizeof *pattern);
    int parts = parts_of(dtype);
    size_t bytes = gr_dtype_bytes(dtype), part_bytes = bytes / (size_t)parts;
    /* Means of floats are compared as numbers, and stand in the table as such. */
    bool rounded = redop == GR_AVERAGE && tolerance(part_of(dtype)) > 0;
    size_t reduced_bytes = rounded ? sizeof(double) : part_bytes;
    unsigned char *of = malloc(PERIOD * ((size_t)ranks * bytes + (size_t)parts * reduced_bytes));
    if (pattern == NULL || of == NULL) {
        free(pattern);
        free(of);
        return gr_fail(diag, GR_E_NO_MEMORY, "bench: no memory for the patterns of %d ranks",
                       ranks);
    }
    *pattern = (gr_bench_pattern){.dtype = dtype,
                                  .redop = redop,
                                  .bytes = bytes,
                                  .ranks = ranks,
                                  .rounded = rounded,
                                  .of = of};
    unsigned char *at = of;
    for (int rank = 0; rank < ranks; rank++) {
        for (int i = 0; i < PERIOD * parts; i++, at += part_bytes) {
            put(part_of(dtype), at, (double)contribution(pattern, rank, i / parts, i % parts));
        }
    }
    for (int i = 0; i < PERIOD * parts; i++, at += reduced_bytes) {
        put(rounded ? GR_F64 : part_of(dtype), at, reduced(pattern, i / parts, i % parts));
    }
    *pattern_out = pattern;
    return GR_OK;
}

void gr_bench_pattern_destroy(gr_bench_pattern *pattern)
{
    if (pattern != NULL) {
        free(pattern->of);
        free(pattern);
    }
}

static const unsigned char *pattern_of(const gr_bench_pattern *pattern, int rank)
{
    return pattern->of + (size_t)rank * PERIOD * pattern->bytes;
}

static void fill_block(const gr_bench_pattern *pattern, int rank, size_t phase, size_t count,
                       char *to)
{
    const unsigned char *from = pattern_of(pattern, rank);
    size_t at = phase % PERIOD;
    while (count > 0) {
        size_t some = PERIOD - at < count ? PERIOD - at : count;
        memcpy(to, from + at * pattern->bytes, some * pattern->bytes);
        to += some * pattern->bytes;
        count -= some;
        at = 0;
    }
}

static int64_t wrong_means(const gr_bench_pattern *pattern, size_t at, size_t count,
                           const char *found)
{
    const unsigned char *reduced_values = pattern_of(pattern, pattern->ranks);
    gr_dtype dtype = part_of(pattern->dtype);
    size_t parts = (size_t)parts_of(pattern->dtype);
    int64_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        bool right = true;
        for (size_t part = 0; part < parts; part++) {
            double want;
            memcpy(&want, reduced_values + ((at + i) * parts + part) * sizeof want, sizeof want);
            double value =
                get_float(dtype, found + i * pattern->bytes + part * gr_dtype_bytes(dtype));
            right = right && fabs(value - want) <= tolerance(dtype) * fabs(want);
        }
        wrong += !right;
    }
    return wrong;
}

static int64_t wrong_in_block(const gr_bench_pattern *pattern, int source, size_t phase,
                              size_t count, const char *found)
{
    const unsigned char *want = pattern_of(pattern, source);
    size_t at = phase % PERIOD, bytes = pattern->bytes;
    int64_t wrong = 0;
    while (count > 0) {
        size_t some = PERIOD - at < count ? PERIOD - at : count;
        if (source == pattern->ranks && pattern->rounded) {
            wrong += wrong_means(pattern, at, some, found);
        } else if (memcmp(found, want + at * bytes, some * bytes) != 0) {
            for (size_t i = 0; i < some; i++) {
                wrong += memcmp(found + i * bytes, want + (at + i) * bytes, bytes) != 0;
            }
        }
        found += some * bytes;
        count -= some;
        at = 0;
    }
    return wrong;
}

/* ---- Filling and checking -------------------------------------------------------------------- */
static size_t block_bytes(const gr_bench_case *c)
{
    return c->count * gr_dtype_bytes(c->dtype);
}

/* Where block 0 of the input stands. In place, a single block among many stands at its rank. */
static char *input_of(const gr_bench_case *c)
{
    if (!c->in_place) {
        return c->in;
    }
    size_t own = (size_t)gr_comm_rank(c->comm) * block_bytes(c);
    return c->out + (!c->op->many_in && c->op->many_out ? own : 0);
}

static const char *result_of(const gr_bench_case *c)
{
    size_t own = (size_t)gr_comm_rank(c->comm) * block_bytes(c);
    return c->out + (c->in_place && c->op->many_in && !c->op->many_out ? own : 0);
}

void gr_bench_fill(const gr_bench_pattern *pattern, const gr_bench_case *c)
{
    int rank = gr_comm_rank(c->comm), ranks = gr_comm_size(c->comm);
    size_t bytes = block_bytes(c);
    /* What is not written must not look right: 0xff is in no pattern. */
    memset(c->out, 0xff, bytes * (size_t)gr_bench_blocks(c->op, ranks));
    if (c->op->coll == GR_COLL_BARRIER || (c->op->root_in && rank != c->root)) {
        return;
    }
    char *to = input_of(c);
    for (int block = 0; block < (c->op->many_in ? ranks : 1); block++) {
        /* A vector that is reduced goes on from block to block. */
        size_t phase = c->op->reduces ? (size_t)block * c->count : (size_t)block * BLOCK_SHIFT;
        fill_block(pattern, rank, phase, c->count, to + (size_t)block * bytes);
    }
}

int64_t gr_bench_check(const gr_bench_pattern *pattern, const gr_bench_case *c)
{
    int rank = gr_comm_rank(c->comm), ranks = gr_comm_size(c->comm);
    if (c->op->coll == GR_COLL_BARRIER || (c->op->root_out && rank != c->root)) {
        return 0;
    }
    const char *found = result_of(c);
    size_t bytes = block_bytes(c), phase = 0;
    if (c->op->many_in) {
        phase = c->op->reduces ? (size_t)rank * c->count : (size_t)rank * BLOCK_SHIFT;
    }
    int64_t wrong = 0;
    for (int block = 0; block < (c->op->many_out ? ranks : 1); block++) {
        int source = c->op->reduces    ? ranks
                     : c->op->many_out ? block
                     : c->op->rooted   ? c->root
                                       : (rank + ranks - 1) % ranks;
        wrong += wrong_in_block(pattern, source, phase, c->count, found + (size_t)block * bytes);
    }
    return wrong;
}
