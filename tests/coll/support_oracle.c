/* SPDX-License-Identifier: Apache-2.0 */
#include "support_oracle.h"
#include "coll/reduce/reduce.h"
#include "support_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 0xa5 };

uint64_t oracle_next(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static size_t random_below(uint64_t *state, size_t end)
{
    return (size_t)(oracle_next(state) % end);
}

/* Associative, but not commutative: of each byte the last one that is not 0. */
static void take_last(void *dst, const void *a, const void *b, size_t count, void *arg)
{
    size_t bytes = count * *(const size_t *)arg;
    const uint8_t *left = a;
    const uint8_t *right = b;
    uint8_t *to = dst;
    for (size_t i = 0; i < bytes; i++) {
        to[i] = right[i] != 0 ? right[i] : left[i];
    }
}

static const size_t element_bytes[GR_DTYPE_COUNT] = {4, 8, 2, 2, 4, 8, 1, 1, 2, 1, 2, 4, 8, 8, 16};

static bool reduces(gr_coll coll)
{
    return coll == GR_COLL_ALLREDUCE || coll == GR_COLL_REDUCE || coll == GR_COLL_REDUCE_SCATTER;
}

static bool has_blocks(gr_coll coll)
{
    return coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
}

void oracle_random(oracle_case *c, uint64_t *state, int size, size_t count_max)
{
    memset(c, 0, sizeof *c);
    do {
        c->coll = (gr_coll)random_below(state, GR_COLL_RECV);
    } while (c->coll == GR_COLL_SEND && size == 1);
    c->dtype = (gr_dtype)random_below(state, GR_DTYPE_COUNT);
    do { /* where nothing is reduced, op does not matter */
        c->op = (gr_redop)random_below(state, GR_REDOP_COUNT);
    } while (reduces(c->coll) && !vals_reducible(c->dtype, c->op));
    c->root = (int)random_below(state, (size_t)size);
    c->peer =
        size > 1 ? (int)((size_t)(c->root + 1) + random_below(state, (size_t)size - 1)) % size : 0;
    c->in_place = oracle_next(state) % 2;
    c->uneven = has_blocks(c->coll) && oracle_next(state) % 2;
    size_t parts = has_blocks(c->coll) ? (size_t)size : 1;
    size_t max = oracle_next(state) % 4 ? 50 : count_max;
    c->count = random_below(state, max / parts + 2);
    for (int i = 0; i < size && c->uneven; i++) {
        for (int k = 0; k < size; k++) {
            bool mirror = c->in_place && k < i; /* in place, as much goes as comes */
            size_t count = oracle_next(state) % 3 ? random_below(state, 2 * max / parts + 2) : 0;
            c->counts[i][k] = mirror ? c->counts[k][i] : count;
        }
    }
    if (reduces(c->coll) && c->dtype != GR_BOOL && oracle_next(state) % 4 == 0) {
        c->prescale = oracle_next(state) % 2 ? 0.5 : 0;
        c->postscale = oracle_next(state) % 2 ? 3 : 0;
    }
    c->offset_in = (int)random_below(state, 9);
    c->offset_out = (int)random_below(state, 9);
    c->shared = oracle_next(state) % 2;
    c->seed = oracle_next(state);
}

void oracle_describe(const oracle_case *c, char *text, size_t size_bytes)
{
    snprintf(
        text, size_bytes, "%s of %zu%s %s (%s), root %d, peer %d, %s, factors %g %g, %s, %d shards",
        gr_coll_name(c->coll), c->count, c->uneven ? " (by rank)" : "", gr_dtype_name(c->dtype),
        gr_redop_name(c->op), c->root, c->peer, c->in_place ? "in place" : "out of place",
        c->prescale, c->postscale, c->shared ? "shared" : "plain", c->shards);
}

/* ---- Who has what ---------------------------------------------------------------------------- */
static size_t block_of(const oracle_case *c, int from, int to)
{
    return !c->uneven ? c->count : c->counts[c->coll == GR_COLL_ALLTOALL ? from : 0][to];
}

static size_t sum_before(const oracle_case *c, int row, int end)
{
    size_t sum = 0;
    for (int i = 0; i < end; i++) {
        sum += block_of(c, row, i);
    }
    return sum;
}

static size_t received_before(const oracle_case *c, int rank, int end)
{
    size_t sum = 0;
    for (int i = 0; i < end; i++) {
        sum += block_of(c, i, rank);
    }
    return sum;
}

/* Elements that a rank contributes. */
static size_t given(const oracle_case *c, int rank, int size)
{
    switch (c->coll) {
    case GR_COLL_ALLREDUCE:
    case GR_COLL_REDUCE:
        return c->count;
    case GR_COLL_BROADCAST:
    case GR_COLL_SEND:
        return rank == c->root ? c->count : 0;
    case GR_COLL_REDUCE_SCATTER:
        return sum_before(c, 0, size);
    case GR_COLL_ALLGATHER:
    case GR_COLL_GATHER:
        return block_of(c, 0, rank);
    case GR_COLL_SCATTER:
        return rank == c->root ? sum_before(c, 0, size) : 0;
    case GR_COLL_ALLTOALL:
        return sum_before(c, rank, size);
    default:
        return 0;
    }
}

/* Elements that a rank ends with. */
static size_t gotten(const oracle_case *c, int rank, int size)
{
    switch (c->coll) {
    case GR_COLL_ALLREDUCE:
    case GR_COLL_BROADCAST:
        return c->count;
    case GR_COLL_REDUCE:
        return rank == c->root ? c->count : 0;
    case GR_COLL_SEND:
        return rank == c->peer ? c->count : 0;
    case GR_COLL_REDUCE_SCATTER:
    case GR_COLL_SCATTER:
        return block_of(c, 0, rank);
    case GR_COLL_ALLGATHER:
        return sum_before(c, 0, size);
    case GR_COLL_GATHER:
        return rank == c->root ? sum_before(c, 0, size) : 0;
    case GR_COLL_ALLTOALL:
        return received_before(c, rank, size);
    default:
        return 0;
    }
}

static bool is_small(const oracle_case *c)
{
    return c->small || c->op == GR_PRODUCT;
}

/* `to` need not be aligned. */
static void fill(const oracle_case *c, void *to, int rank, size_t count)
{
    size_t bytes = count * element_bytes[c->dtype];
    uint8_t *aligned = malloc(bytes + 1);
    if (!aligned) {
        abort();
    }
    vals_fill(aligned, c->dtype, count, c->seed, rank, is_small(c));
    memcpy(to, aligned, bytes);
    free(aligned);
}

/* ---- From the definition --------------------------------------------------------------------- */
/* The reduction of the contributions of ranks [first, first + count), in the order of the tree. */
static void reduce_tree(const oracle_case *c, uint8_t *to, size_t elements, int first, int count)
{
    if (count == 1) {
        fill(c, to, first, elements);
        if (c->prescale != 0 && c->prescale != 1) {
            gr_scale(to, elements, c->dtype, c->prescale);
        }
        return;
    }
    int left = gr_tree_left_count(count);
    uint8_t *right = malloc(elements * element_bytes[c->dtype] + 1);
    if (!right) {
        abort();
    }
    reduce_tree(c, to, elements, first, left);
    reduce_tree(c, right, elements, first + left, count - left);
    if (c->op == GR_USER) {
        take_last(to, to, right, elements, (void *)(uintptr_t)&element_bytes[c->dtype]);
    } else {
        gr_reduce_kernel(GR_ISA_C, c->dtype, c->op)(to, to, right, elements);
    }
    free(right);
}

static void finish(const oracle_case *c, uint8_t *to, size_t elements, int size)
{
    if (c->op == GR_AVERAGE) {
        gr_scale_inverse(to, elements, c->dtype, c->shards > 0 ? c->shards : size);
    }
    if (c->postscale != 0 && c->postscale != 1) {
        gr_scale(to, elements, c->dtype, c->postscale);
    }
}

/* Block of what `rank` contributes, `skip` elements into it. */
static void copy_part(const oracle_case *c, uint8_t *to, int rank, int size, size_t skip,
                      size_t count)
{
    size_t width = element_bytes[c->dtype];
    uint8_t *all = malloc(given(c, rank, size) * width + 1);
    if (!all) {
        abort();
    }
    fill(c, all, rank, given(c, rank, size));
    memcpy(to, all + skip * width, count * width);
    free(all);
}

static void expect(const oracle_part *part, uint8_t *want)
{
    const oracle_case *c = part->c;
    int size = part->size;
    size_t width = element_bytes[c->dtype];
    size_t at = 0;
    switch (c->coll) {
    case GR_COLL_ALLREDUCE:
    case GR_COLL_REDUCE:
        if (c->shards > 0) {
            vals_subtree(want, c->dtype, c->op, c->count, c->seed, 0, c->shards, is_small(c));
        } else {
            reduce_tree(c, want, c->count, 0, size);
        }
        finish(c, want, c->count, size);
        break;
    case GR_COLL_REDUCE_SCATTER: {
        size_t all = sum_before(c, 0, size);
        size_t own = block_of(c, 0, part->rank);
        uint8_t *sums = malloc(all * width + 1);
        if (!sums) {
            abort();
        }
        reduce_tree(c, sums, all, 0, size);
        memcpy(want, sums + sum_before(c, 0, part->rank) * width, own * width);
        free(sums);
        finish(c, want, own, size);
        break;
    }
    case GR_COLL_ALLGATHER:
    case GR_COLL_GATHER:
    case GR_COLL_ALLTOALL:
        for (int from = 0; from < size; from++) {
            bool each = c->coll == GR_COLL_ALLTOALL;
            size_t count = block_of(c, from, each ? part->rank : from);
            copy_part(c, want + at, from, size, each ? sum_before(c, from, part->rank) : 0, count);
            at += count * width;
        }
        break;
    case GR_COLL_SCATTER:
        copy_part(c, want, c->root, size, sum_before(c, 0, part->rank), block_of(c, 0, part->rank));
        break;
    default:
        copy_part(c, want, c->root, size, 0, c->count);
        break;
    }
}

/* ---- One rank's part ------------------------------------------------------------------------- */
static uint8_t *make_buffer(oracle_part *part, size_t bytes, int offset, uint8_t **memory)
{
    size_t whole = bytes + 2 * ORACLE_GUARD_BYTES + 16;
    void *taken = NULL;
    if (part->c->shared) {
        if (gr_alloc(part->comm, whole, &taken) != GR_OK) {
            return NULL;
        }
    } else {
        taken = malloc(whole);
    }
    if (!taken) {
        return NULL;
    }
    *memory = taken;
    memset(taken, GUARD, whole);
    return *memory + ORACLE_GUARD_BYTES + offset;
}

static void free_buffer(const oracle_part *part, uint8_t *memory)
{
    if (part->c->shared) {
        gr_free(part->comm, memory);
    } else {
        free(memory);
    }
}

/* Does an operation in place exist for this rank, with another layout than out of place? */
static size_t place_of_own(const oracle_case *c, int rank)
{
    bool gathers = c->coll == GR_COLL_ALLGATHER || c->coll == GR_COLL_GATHER;
    return gathers ? sum_before(c, 0, rank) * element_bytes[c->dtype] : 0;
}

static void fill_in_call(oracle_part *part)
{
    const oracle_case *c = part->c;
    part->call = (gr_call){.coll = c->coll,
                           .dtype = c->dtype,
                           .op = c->op,
                           .in = part->in,
                           .out = part->out,
                           .count = c->count,
                           .root = c->root,
                           .prescale = c->prescale,
                           .postscale = c->postscale};
    if (reduces(c->coll) && c->op == GR_USER) {
        part->call.reduce = take_last;
        part->call.reduce_arg = (void *)(uintptr_t)&element_bytes[c->dtype]; /* only read */
    }
    if (c->uneven) {
        bool each = c->coll == GR_COLL_ALLTOALL;
        part->call.count = 0;
        part->call.counts = c->counts[each ? part->rank : 0];
        for (int i = 0; i < part->size; i++) {
            part->recv_counts[i] = block_of(c, i, part->rank);
        }
        part->call.recv_counts = each ? part->recv_counts : NULL;
    }
    if (c->shards > 0) {
        part->call.out = NULL;
        part->call.shards = c->shards;
        part->call.partials = part->partials;
    }
    if (c->coll == GR_COLL_SEND && part->rank == c->peer) {
        part->call.coll = GR_COLL_RECV;
    } else if (c->coll == GR_COLL_SEND) {
        part->call.root = c->peer;
    }
}

/* The sums of the shards that this rank holds, one buffer for each whole subtree. */
static bool begin_partials(oracle_part *part)
{
    const oracle_case *c = part->c;
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int first, count;
    gr_shard_range(c->shards, part->size, part->rank, &first, &count);
    int covers = count > 0 ? gr_tree_cover(c->shards, first, count, ranges) : 0;
    size_t bytes = c->count * element_bytes[c->dtype];
    uint8_t *sum = malloc(bytes + 1);
    bool fine = sum != NULL;
    for (int i = 0; fine && (i == 0 || i < covers); i++) {
        uint8_t *at = make_buffer(part, bytes, c->offset_out, &part->memory_partials[i]);
        part->partials[i] = at;
        fine = at != NULL;
        if (fine && i < covers) {
            vals_subtree(sum, c->dtype, c->op, c->count, c->seed, ranges[i].first, ranges[i].count,
                         is_small(c));
            memcpy(at, sum, bytes);
        }
    }
    free(sum);
    part->out = part->partials[0];
    part->memory_out = part->memory_partials[0];
    part->memory_partials[0] = NULL;
    part->out_bytes = bytes;
    return fine;
}

bool oracle_begin(oracle_part *part, const oracle_case *c, gr_comm *comm)
{
    memset(part, 0, sizeof *part);
    part->c = c;
    part->comm = comm;
    part->rank = gr_comm_rank(comm);
    part->size = gr_comm_size(comm);
    part->idle = c->coll == GR_COLL_SEND && part->rank != c->root && part->rank != c->peer;
    if (c->shards > 0) {
        bool fine = begin_partials(part);
        fill_in_call(part);
        return fine;
    }
    size_t width = element_bytes[c->dtype];
    size_t gives = given(c, part->rank, part->size);
    size_t gets = gotten(c, part->rank, part->size);
    bool in_place = c->in_place && c->coll != GR_COLL_SEND;
    if (c->coll == GR_COLL_SCATTER || c->coll == GR_COLL_BROADCAST) {
        in_place = in_place && part->rank == c->root;
    }
    if (in_place && c->coll == GR_COLL_GATHER) { /* the others give their block and nothing else */
        in_place = part->rank == c->root;
    }
    part->in_bytes = gives * width;
    part->out_bytes = gets * width;
    if (in_place) {
        size_t both = gives > gets ? gives : gets;
        part->out = make_buffer(part, both * width, c->offset_out, &part->memory_out);
        if (!part->out) {
            return false;
        }
        part->out_bytes = both * width;
        fill(c, part->out + place_of_own(c, part->rank), part->rank, gives);
    } else {
        part->in = make_buffer(part, part->in_bytes, c->offset_in, &part->memory_in);
        part->out = make_buffer(part, part->out_bytes, c->offset_out, &part->memory_out);
        if (!part->in || !part->out) {
            return false;
        }
        fill(c, part->in, part->rank, gives);
    }
    fill_in_call(part);
    return true;
}

static bool guards_stand(const uint8_t *memory, const uint8_t *at, size_t bytes)
{
    for (const uint8_t *p = memory; p < at; p++) {
        if (*p != GUARD) {
            return false;
        }
    }
    for (size_t i = 0; i < ORACLE_GUARD_BYTES; i++) {
        if (at[bytes + i] != GUARD) {
            return false;
        }
    }
    return true;
}

static bool check(const oracle_part *part, const char **why)
{
    const oracle_case *c = part->c;
    size_t width = element_bytes[c->dtype];
    size_t gives = given(c, part->rank, part->size);
    size_t gets = part->idle ? 0 : gotten(c, part->rank, part->size);
    uint8_t *want = malloc((gives > gets ? gives : gets) * width + 1);
    if (!want) {
        return false;
    }
    bool fine = true;
    if (gets > 0) {
        expect(part, want);
        bool own_block = c->coll == GR_COLL_REDUCE_SCATTER && !part->in;
        bool own_of_all = c->coll == GR_COLL_SCATTER && !part->in;
        size_t skip = own_block || own_of_all ? sum_before(c, 0, part->rank) * width : 0;
        fine = memcmp(part->out + skip, want, gets * width) == 0;
        *why = "the result is wrong";
    }
    if (fine && part->in) {
        fill(c, want, part->rank, gives);
        fine = memcmp(part->in, want, gives * width) == 0;
        *why = "the contribution has changed";
        if (fine) {
            fine = guards_stand(part->memory_in, part->in, part->in_bytes);
            *why = "memory beside the contribution has changed";
        }
    }
    if (fine && !guards_stand(part->memory_out, part->out, part->out_bytes)) {
        fine = false;
        *why = "memory beside the result has changed";
    }
    free(want);
    return fine;
}

static void release(oracle_part *part)
{
    uint8_t *memory[] = {part->memory_in, part->memory_out};
    for (int i = 0; i < 2; i++) {
        if (memory[i]) {
            free_buffer(part, memory[i]);
        }
    }
    for (int i = 1; i < GR_SHARD_PARTIALS_MAX; i++) {
        if (part->memory_partials[i]) {
            free_buffer(part, part->memory_partials[i]);
        }
    }
}

bool oracle_end(oracle_part *part)
{
    const char *why = "no memory";
    bool fine = check(part, &why);
    if (!fine) {
        char text[256];
        oracle_describe(part->c, text, sizeof text);
        fprintf(stderr, "rank %d of %d: %s: %s\n", part->rank, part->size, text, why);
    }
    release(part);
    return fine;
}

void oracle_drop(oracle_part *part)
{
    if (part->c && !part->c->shared) {
        release(part);
    }
}
