/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/verify_internal.h"

#include <stdlib.h>
#include <string.h>

/* What the plans compute. Instead of numbers the buffers hold expressions: a contribution's block,
 * or a sum of two expressions with its left and right side. Equal expressions have equal numbers
 * (hash-consing), so that a result is compared with the shard tree in one step. The hazards are
 * known to be covered: any order that the steps may take gives the same values, so one is
 * enough. */

enum { UNDEFINED = 0, LEAF = UINT32_MAX };

typedef struct expression {
    uint32_t left;  /* the contribution if right is LEAF */
    uint32_t right; /* LEAF: a contribution */
    uint32_t block;
} expression;

typedef struct contribution {
    int rank, slot;
    gr_tree_range shards;
} contribution;

typedef struct results {
    const gr_verify *v;
    contribution *contributions; /* left to right */
    uint32_t contribution_count;
    uint32_t *contribution_first; /* by rank */

    expression *expressions; /* 0 is UNDEFINED */
    uint32_t expression_count, expression_capacity;
    uint32_t *table; /* open addressing; a power of two */
    uint32_t table_size;
    bool out_of_memory;

    size_t *place_first; /* by rank, into values and writers */
    uint32_t *values;
    uint32_t *writers; /* the step that wrote the value, for the sentence */

    uint32_t *seen; /* by contribution: how often an expression has it */
} results;

/* ---- Expressions ----------------------------------------------------------------------------- */
static uint32_t slot_of(const results *r, uint32_t left, uint32_t right, uint32_t block)
{
    uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    mixed ^= (mixed >> 29) + (uint64_t)block * 0xbf58476d1ce4e5b9u;
    mixed *= 0x94d049bb133111ebu;
    return (uint32_t)(mixed >> 32) & (r->table_size - 1);
}

static bool grow(results *r)
{
    uint32_t capacity = r->expression_capacity ? r->expression_capacity * 2 : 1024;
    expression *expressions = realloc(r->expressions, capacity * sizeof *expressions);
    if (expressions) {
        r->expressions = expressions;
    }
    uint32_t *table = calloc((size_t)capacity * 2, sizeof *table);
    if (!expressions || !table) {
        free(table);
        r->out_of_memory = true;
        return false;
    }
    r->expression_capacity = capacity;
    free(r->table);
    r->table = table;
    r->table_size = capacity * 2;
    r->expression_count = r->expression_count ? r->expression_count : 1; /* UNDEFINED */
    for (uint32_t i = 1; i < r->expression_count; i++) {
        const expression *e = &r->expressions[i];
        uint32_t at = slot_of(r, e->left, e->right, e->block);
        while (table[at] != 0) {
            at = (at + 1) & (r->table_size - 1);
        }
        table[at] = i;
    }
    return true;
}

static uint32_t intern(results *r, uint32_t left, uint32_t right, uint32_t block)
{
    if (r->expression_count == r->expression_capacity && !grow(r)) {
        return UNDEFINED;
    }
    uint32_t at = slot_of(r, left, right, block);
    for (; r->table[at] != 0; at = (at + 1) & (r->table_size - 1)) {
        const expression *e = &r->expressions[r->table[at]];
        if (e->left == left && e->right == right && e->block == block) {
            return r->table[at];
        }
    }
    r->expressions[r->expression_count] = (expression){left, right, block};
    r->table[at] = r->expression_count;
    return r->expression_count++;
}

static uint32_t leaf(results *r, uint32_t index, uint32_t block)
{
    return intern(r, index, LEAF, block);
}

static uint32_t sum(results *r, uint32_t left, uint32_t right)
{
    return intern(r, left, right, r->expressions[left].block);
}

/* The sum that the shard tree prescribes below `node`; *next is the first contribution in it. */
static uint32_t canonical_sum(results *r, gr_tree_range node, uint32_t *next, uint32_t block)
{
    gr_tree_range held = r->contributions[*next].shards;
    if (held.first == node.first && held.count == node.count) {
        return leaf(r, (*next)++, block);
    }
    uint32_t left = canonical_sum(r, gr_tree_left(node), next, block);
    uint32_t right = canonical_sum(r, gr_tree_right(node), next, block);
    return r->out_of_memory ? UNDEFINED : sum(r, left, right);
}

/* ---- What the buffers hold at first ---------------------------------------------------------- */
static void deal(results *r, int rank, int slot, gr_tree_range shards)
{
    r->contributions[r->contribution_count++] = (contribution){rank, slot, shards};
}

static void deal_contributions(results *r, int rank)
{
    const gr_plan *plan = &r->v->plans[rank];
    const gr_plan_shape *shape = &plan->shape;
    bool from_root = shape->coll == GR_COLL_BROADCAST || shape->coll == GR_COLL_SCATTER;
    r->contribution_first[rank] = r->contribution_count;
    if (shape->coll == GR_COLL_ALLREDUCE) {
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        int first, count;
        gr_shard_range(shape->shards, shape->world_size, rank, &first, &count);
        int held = gr_tree_cover(shape->shards, first, count, ranges);
        for (int slot = 0; slot < held; slot++) {
            deal(r, rank, slot, ranges[slot]);
        }
    } else if (plan->input_slots + plan->user_slots > 0 && (!from_root || rank == shape->root)) {
        deal(r, rank, 0, (gr_tree_range){rank, 1});
    }
}

/* Which blocks of its contribution a rank has. */
static bool contributes(const gr_plan_shape *shape, int block)
{
    bool own_only = shape->coll == GR_COLL_ALLGATHER || shape->coll == GR_COLL_GATHER;
    return !own_only || block == shape->rank;
}

static size_t place_of(const results *r, int rank, gr_operand operand)
{
    return r->place_first[rank] + gr_plan_place(&r->v->plans[rank], operand);
}

static void fill_buffers(results *r, int rank)
{
    const gr_plan *plan = &r->v->plans[rank];
    uint32_t end = r->contribution_first[rank + 1];
    for (uint32_t i = r->contribution_first[rank]; i < end; i++) {
        for (int block = 0; block < (int)plan->blocks; block++) {
            if (contributes(&plan->shape, block)) {
                gr_operand operand = gr_contribution(plan, r->contributions[i].slot, block);
                r->values[place_of(r, rank, operand)] = leaf(r, i, (uint32_t)block);
            }
        }
    }
}

/* ---- Running --------------------------------------------------------------------------------- */
/* Returns true if this place has the size of its contents. In an alltoall every pair of ranks has
 * sizes of its own if blocks are uneven; with a rank in place, its two directions are alike. */
static bool has_size_of(const results *r, int rank, gr_operand operand, uint32_t value)
{
    const expression *e = &r->expressions[value];
    const gr_plan *plans = r->v->plans;
    if (plans[rank].shape.coll != GR_COLL_ALLTOALL) {
        return e->block == operand.block;
    }
    if (!plans[rank].shape.uneven) {
        return true;
    }
    bool is_input = operand.space == GR_SPACE_INPUT;
    int from = is_input ? rank : (int)operand.block;
    int to = is_input ? (int)operand.block : rank;
    int made_by = e->right == LEAF ? r->contributions[e->left].rank : -1;
    int made_for = (int)e->block;
    bool both_ways = !plans[from].shape.out_of_place || !plans[to].shape.out_of_place;
    return (from == made_by && to == made_for) || (both_ways && from == made_for && to == made_by);
}

static gr_status read_operand(results *r, int rank, uint32_t step, gr_operand operand,
                              uint32_t *value_out)
{
    uint32_t value = r->values[place_of(r, rank, operand)];
    if (value == UNDEFINED) {
        return gr_verify_wrong(r->v, rank, step, "it reads what nobody wrote");
    }
    if (!has_size_of(r, rank, operand, value)) {
        return gr_verify_wrong(r->v, rank, step, "it reads block %u as if it were block %u",
                               r->expressions[value].block, operand.block);
    }
    *value_out = value;
    return GR_OK;
}

static gr_status write_operand(results *r, int rank, uint32_t step, gr_operand operand,
                               uint32_t value)
{
    size_t place = place_of(r, rank, operand);
    if (!has_size_of(r, rank, operand, value)) {
        return gr_verify_wrong(r->v, rank, step, "it puts block %u in the place of block %u",
                               r->expressions[value].block, operand.block);
    }
    r->values[place] = value;
    r->writers[place] = step;
    return GR_OK;
}

static gr_status run_step(results *r, uint32_t number)
{
    const gr_verify *v = r->v;
    int rank = gr_verify_rank_of(v, number);
    uint32_t index = number - v->first[rank];
    const gr_step *step = &v->plans[rank].steps[index];
    uint32_t a = UNDEFINED;
    uint32_t b = UNDEFINED;
    gr_status status;
    if (step->kind == GR_STEP_RECV) {
        /* Here the message passes; the sender's own turn is when it has been read. */
        uint32_t sender = v->mate[number] - v->first[step->peer];
        status = read_operand(r, step->peer, sender, v->plans[step->peer].steps[sender].a, &a);
    } else if (step->kind == GR_STEP_REDUCE || step->kind == GR_STEP_COPY) {
        status = read_operand(r, rank, index, step->a, &a);
    } else {
        return GR_OK;
    }
    if (status == GR_OK && step->kind == GR_STEP_REDUCE) {
        status = read_operand(r, rank, index, step->b, &b);
    }
    if (status != GR_OK) {
        return status;
    }
    if (step->kind == GR_STEP_REDUCE) {
        if (r->expressions[a].block != r->expressions[b].block) {
            return gr_verify_wrong(v, rank, index, "it adds block %u to block %u",
                                   r->expressions[b].block, r->expressions[a].block);
        }
        a = sum(r, a, b);
    }
    return r->out_of_memory ? gr_verify_no_memory(v) : write_operand(r, rank, index, step->dst, a);
}

/* ---- Judging --------------------------------------------------------------------------------- */
/* Counts the contributions in an expression into r->seen, up to one more than there are: so many
 * cannot all be different, and an expression may be 2^n times as long as the plans. The parts of an
 * expression have smaller numbers than the whole, which bounds the stack. */
static bool count_contributions(results *r, uint32_t value)
{
    uint32_t *stack = malloc(((size_t)value + 2) * sizeof *stack);
    uint32_t depth = 0;
    if (!stack) {
        return false;
    }
    memset(r->seen, 0, r->contribution_count * sizeof *r->seen);
    stack[depth++] = value;
    for (uint32_t met = 0; depth > 0 && met <= r->contribution_count; met++) {
        const expression *e = &r->expressions[stack[--depth]];
        while (e->right != LEAF) {
            stack[depth++] = e->right;
            e = &r->expressions[e->left];
        }
        r->seen[e->left]++;
    }
    free(stack);
    return true;
}

static gr_status check_complete(results *r, int rank, uint32_t step, uint32_t value)
{
    uint32_t block = r->expressions[value].block;
    if (!count_contributions(r, value)) {
        return gr_verify_no_memory(r->v);
    }
    /* First what is there twice: where the counting stopped early, others were not met. */
    for (uint32_t i = 0; i < r->contribution_count; i++) {
        const contribution *c = &r->contributions[i];
        if (r->seen[i] > 1) {
            return gr_verify_wrong(r->v, rank, step,
                                   "block %u of the result has the contribution of rank %d "
                                   "(buffer %d) more than once",
                                   block, c->rank, c->slot);
        }
    }
    for (uint32_t i = 0; i < r->contribution_count; i++) {
        const contribution *c = &r->contributions[i];
        if (r->seen[i] == 0) {
            return gr_verify_wrong(r->v, rank, step,
                                   "block %u of the result lacks the contribution of rank %d "
                                   "(buffer %d)",
                                   block, c->rank, c->slot);
        }
    }
    return GR_OK;
}

static bool is_sum(gr_coll coll)
{
    return coll == GR_COLL_ALLREDUCE || coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_REDUCE;
}

static gr_status check_block(results *r, int rank, int block, uint32_t expected)
{
    const gr_plan *plan = &r->v->plans[rank];
    size_t place = place_of(r, rank, gr_user(0, block));
    uint32_t value = r->values[place];
    uint32_t step = r->writers[place];
    if (value == expected) {
        return GR_OK;
    }
    if (value == UNDEFINED) {
        return gr_verify_wrong(r->v, rank, step, "nobody wrote block %d of the result", block);
    }
    if (!is_sum(plan->shape.coll)) {
        return gr_verify_wrong(r->v, rank, step, "block %d of the result is not rank %d's", block,
                               r->contributions[r->expressions[expected].left].rank);
    }
    gr_status status = check_complete(r, rank, step, value);
    if (status == GR_OK && r->v->canonical) {
        status = gr_verify_wrong(r->v, rank, step,
                                 "block %d of the result is not added in the order of the shard "
                                 "tree",
                                 block);
    }
    return status;
}

/* Returns true if this block is part of the rank's result. */
static bool is_due(const gr_plan_shape *shape, int block)
{
    switch (shape->coll) {
    case GR_COLL_REDUCE_SCATTER:
    case GR_COLL_SCATTER:
        return block == shape->rank;
    case GR_COLL_REDUCE:
    case GR_COLL_GATHER:
        return shape->rank == shape->root;
    default:
        return true;
    }
}

/* What a rank without a result has in place must still be there. */
static gr_status check_kept(results *r, int rank, int block)
{
    const gr_plan *plan = &r->v->plans[rank];
    gr_coll coll = plan->shape.coll;
    bool keeps = coll == GR_COLL_REDUCE || coll == GR_COLL_GATHER;
    if (!keeps || plan->shape.out_of_place || !contributes(&plan->shape, block)) {
        return GR_OK;
    }
    size_t place = place_of(r, rank, gr_user(0, block));
    if (r->values[place] != leaf(r, r->contribution_first[rank], (uint32_t)block)) {
        return gr_verify_wrong(r->v, rank, r->writers[place],
                               "it overwrites the contribution of a rank that has no result");
    }
    return GR_OK;
}

static uint32_t expected_of(results *r, const gr_plan_shape *shape, int block)
{
    uint32_t next = 0;
    switch (shape->coll) {
    case GR_COLL_ALLGATHER:
    case GR_COLL_GATHER:
        return leaf(r, r->contribution_first[block], (uint32_t)block);
    case GR_COLL_ALLTOALL:
        return leaf(r, r->contribution_first[block], (uint32_t)shape->rank);
    case GR_COLL_BROADCAST:
    case GR_COLL_SCATTER:
        return leaf(r, r->contribution_first[shape->root], (uint32_t)block);
    default:
        return canonical_sum(r, (gr_tree_range){0, shape->shards}, &next, (uint32_t)block);
    }
}

static gr_status check_results(results *r, int block)
{
    const gr_verify *v = r->v;
    uint32_t expected = UNDEFINED;
    uint32_t also = UNDEFINED; /* an order that was found complete: most ranks have the same */
    for (int rank = 0; rank < v->world_size; rank++) {
        const gr_plan_shape *shape = &v->plans[rank].shape;
        gr_status status = GR_OK;
        if (!is_due(shape, block)) {
            status = check_kept(r, rank, block);
        } else {
            uint32_t value = r->values[place_of(r, rank, gr_user(0, block))];
            if (expected == UNDEFINED || !is_sum(shape->coll)) {
                expected = expected_of(r, shape, block);
            }
            if (value == UNDEFINED || value != also || !is_sum(shape->coll)) {
                status = check_block(r, rank, block, expected);
                also = value;
            }
        }
        if (r->out_of_memory) {
            return gr_verify_no_memory(v);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

static gr_status judge(results *r)
{
    const gr_verify *v = r->v;
    gr_status status = GR_OK;
    for (int rank = 0; rank < v->world_size; rank++) {
        deal_contributions(r, rank);
    }
    r->contribution_first[v->world_size] = r->contribution_count;
    for (int rank = 0; rank < v->world_size; rank++) {
        fill_buffers(r, rank);
    }
    for (uint32_t i = 0; status == GR_OK && i < v->total; i++) {
        status = r->out_of_memory ? gr_verify_no_memory(v) : run_step(r, v->order[i]);
    }
    for (int block = 0; status == GR_OK && block < (int)v->plans[0].blocks; block++) {
        status = check_results(r, block);
    }
    return status;
}

gr_status gr_verify_results(const gr_verify *v)
{
    size_t n = (size_t)v->world_size;
    size_t slots = 0;
    results r = {.v = v};
    r.place_first = malloc((n + 1) * sizeof *r.place_first);
    if (!r.place_first) {
        return gr_verify_no_memory(v);
    }
    r.place_first[0] = 0;
    for (size_t rank = 0; rank < n; rank++) {
        r.place_first[rank + 1] = r.place_first[rank] + gr_plan_places(&v->plans[rank]);
        slots += (size_t)v->plans[rank].user_slots + v->plans[rank].input_slots;
    }
    r.contributions = malloc((slots + 1) * sizeof *r.contributions);
    r.contribution_first = malloc((n + 1) * sizeof *r.contribution_first);
    r.values = calloc(r.place_first[n] + 1, sizeof *r.values);
    r.writers = malloc((r.place_first[n] + 1) * sizeof *r.writers);
    r.seen = malloc((slots + 1) * sizeof *r.seen);
    gr_status status;
    if (r.contributions && r.contribution_first && r.values && r.writers && r.seen && grow(&r)) {
        memset(r.writers, 0xff, (r.place_first[n] + 1) * sizeof *r.writers);
        status = judge(&r);
    } else {
        status = gr_verify_no_memory(v);
    }
    free(r.place_first);
    free(r.contributions);
    free(r.contribution_first);
    free(r.expressions);
    free(r.table);
    free(r.values);
    free(r.writers);
    free(r.seen);
    return status;
}

/* ---- Barrier --------------------------------------------------------------------------------- */
/* knows[step] is the set of ranks that have certainly entered when the step is done. */
static void learn(const gr_verify *v, uint32_t number, size_t words, uint64_t *knows)
{
    int rank = gr_verify_rank_of(v, number);
    const gr_plan *plan = &v->plans[rank];
    const gr_step *step = &plan->steps[number - v->first[rank]];
    uint64_t *own = knows + number * words;
    own[rank / 64] |= UINT64_C(1) << (rank % 64);
    for (uint32_t i = 0; i < step->after_count; i++) {
        const uint64_t *earlier =
            knows + (v->first[rank] + plan->after[step->after_first + i]) * words;
        for (size_t word = 0; word < words; word++) {
            own[word] |= earlier[word];
        }
    }
    if (!gr_step_takes(step)) {
        return;
    }
    /* What the giver knew when it gave. Its own turn in the order comes only later, hence by its
     * dependencies. */
    const gr_plan *theirs = &v->plans[step->peer];
    const gr_step *giver = &theirs->steps[v->mate[number] - v->first[step->peer]];
    own[step->peer / 64] |= UINT64_C(1) << (step->peer % 64);
    for (uint32_t i = 0; i < giver->after_count; i++) {
        const uint64_t *earlier =
            knows + (v->first[step->peer] + theirs->after[giver->after_first + i]) * words;
        for (size_t word = 0; word < words; word++) {
            own[word] |= earlier[word];
        }
    }
}

gr_status gr_verify_barrier(const gr_verify *v)
{
    size_t words = (size_t)v->world_size / 64 + 1;
    uint64_t *knows = calloc((size_t)v->total * words + 1, sizeof *knows);
    gr_status status = knows ? GR_OK : gr_verify_no_memory(v);
    for (uint32_t i = 0; status == GR_OK && i < v->total; i++) {
        learn(v, v->order[i], words, knows);
    }
    for (int rank = 0; status == GR_OK && rank < v->world_size; rank++) {
        for (int other = 0; status == GR_OK && other < v->world_size; other++) {
            bool known = rank == other;
            for (uint32_t i = v->first[rank]; i < v->first[rank + 1]; i++) {
                known |= knows[i * words + (size_t)other / 64] >> (other % 64) & 1;
            }
            if (!known) {
                status =
                    gr_verify_wrong(v, rank, GR_NO_STEP,
                                    "it may leave the barrier before rank %d has entered", other);
            }
        }
    }
    free(knows);
    return status;
}
