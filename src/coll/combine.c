/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/combine.h"

#include <stdlib.h>

/* Enough receives ahead of the additions to keep all links busy, at a bounded price in scratch. */
enum { RECEIVE_SLOTS_MAX = 16 };
/* An addition that needs a slot of its own has two subtrees that wait for it at most: the depth of
 * the tree bounds them. */
enum { SUM_SLOTS = 32 };

static uint32_t order_node(const gr_units *units, gr_tree_range node, uint32_t *next,
                           uint32_t *placed);

/* Units directly below a node are asked for when their addition is due, after those deeper down. */
static void order_children(const gr_units *units, gr_tree_range node, uint32_t *next,
                           uint32_t *placed)
{
    int left_count = gr_tree_left_count(node.count);
    gr_tree_range left = {node.first, left_count};
    gr_tree_range right = {node.first + left_count, node.count - left_count};
    uint32_t left_unit = order_node(units, left, next, placed);
    uint32_t right_unit = order_node(units, right, next, placed);
    if (left_unit != UINT32_MAX) {
        units->order[(*placed)++] = left_unit;
    }
    if (right_unit != UINT32_MAX) {
        units->order[(*placed)++] = right_unit;
    }
}

static bool is_unit(const gr_units *units, uint32_t index, gr_tree_range node)
{
    gr_tree_range range = units->all[index].range;
    return range.first == node.first && range.count == node.count;
}

static uint32_t order_node(const gr_units *units, gr_tree_range node, uint32_t *next,
                           uint32_t *placed)
{
    if (is_unit(units, *next, node)) {
        return (*next)++;
    }
    order_children(units, node, next, placed);
    return UINT32_MAX;
}

static void order_units(gr_units *units)
{
    uint32_t next = 0, placed = 0;
    gr_tree_range root = {0, units->shards};
    if (order_node(units, root, &next, &placed) != UINT32_MAX) {
        units->order[0] = 0;
    }
}

bool gr_units_init(gr_units *units, const gr_plan_shape *shape, gr_plan *plan)
{
    *units = (gr_units){.shards = shape->shards};
    uint32_t total = 0;
    for (int rank = 0; rank < shape->world_size; rank++) {
        total += (uint32_t)gr_shard_partials(shape->shards, shape->world_size, rank);
    }
    units->all = malloc(total * sizeof *units->all);
    units->order = malloc(total * sizeof *units->order);
    if (!units->all || !units->order) {
        gr_units_fini(units);
        plan->failed = GR_E_NO_MEMORY;
        return false;
    }
    for (int rank = 0; rank < shape->world_size; rank++) {
        int first, count;
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        gr_shard_range(shape->shards, shape->world_size, rank, &first, &count);
        int found = gr_tree_cover(shape->shards, first, count, ranges);
        for (int slot = 0; slot < found; slot++) {
            units->all[units->count++] = (gr_unit){ranges[slot], rank, slot};
        }
    }
    order_units(units);
    return true;
}

void gr_units_fini(gr_units *units)
{
    free(units->all);
    free(units->order);
    *units = (gr_units){.all = NULL};
}

void gr_units_send(const gr_units *units, int peer, int block, gr_plan *plan)
{
    for (uint32_t i = 0; i < units->count; i++) {
        const gr_unit *unit = &units->all[units->order[i]];
        if (unit->rank == plan->shape.rank) {
            gr_plan_send(plan, peer, gr_user(unit->slot, block));
        }
    }
}

/* ---- Combining ------------------------------------------------------------------------------- */
/* Where a subtree's sum is: with a peer, or here (an operand). */
typedef struct part {
    const gr_unit *remote; /* NULL: here */
    gr_operand here;
} part;

typedef struct combine {
    const gr_units *units;
    gr_plan *plan;
    int block;
    bool in_place;
    uint32_t next;       /* unit */
    int received;        /* messages so far */
    int receive_slots;   /* scratch slots [0, receive_slots) take messages in turn */
    uint32_t sums_taken; /* bit i: scratch slot receive_slots + i holds a sum */
} combine;

static gr_operand fetch(combine *c, part from)
{
    if (!from.remote) {
        return from.here;
    }
    gr_operand to = gr_scratch(c->received++ % c->receive_slots, c->block);
    gr_plan_recv(c->plan, from.remote->rank, to);
    return to;
}

static bool is_sum(const combine *c, gr_operand operand)
{
    return operand.space == GR_SPACE_SCRATCH && operand.slot >= c->receive_slots;
}

static bool may_overwrite(const combine *c, gr_operand operand)
{
    return is_sum(c, operand) || (c->in_place && operand.space == GR_SPACE_USER);
}

static gr_operand take_sum(combine *c)
{
    int slot = 0;
    while (slot < SUM_SLOTS - 1 && (c->sums_taken >> slot & 1u)) {
        slot++;
    }
    c->sums_taken |= 1u << slot;
    return gr_scratch(c->receive_slots + slot, c->block);
}

static void release_sum(combine *c, gr_operand operand)
{
    if (is_sum(c, operand)) {
        c->sums_taken &= ~(1u << (operand.slot - c->receive_slots));
    }
}

static gr_operand add(combine *c, gr_operand a, gr_operand b, bool is_root)
{
    gr_operand dst;
    /* A sum directly of what two ranks send must not be written over what this rank sends: each of
     * the two would wait until the other has read its own, if the links show the peer's memory. */
    bool copy_root = is_root && !c->in_place && !is_sum(c, a) && !is_sum(c, b);
    if (is_root && !copy_root) {
        dst = gr_user(0, c->block);
        release_sum(c, a);
        release_sum(c, b);
    } else if (may_overwrite(c, a)) {
        dst = a;
        release_sum(c, b);
    } else if (may_overwrite(c, b)) {
        dst = b;
    } else {
        dst = take_sum(c);
    }
    gr_plan_reduce(c->plan, dst, a, b);
    if (copy_root) {
        gr_plan_copy(c->plan, gr_user(0, c->block), dst);
    }
    return dst;
}

static part combine_node(combine *c, gr_tree_range node)
{
    if (is_unit(c->units, c->next, node)) {
        const gr_unit *unit = &c->units->all[c->next++];
        bool here = unit->rank == c->plan->shape.rank;
        return (part){here ? NULL : unit, gr_user(unit->slot, c->block)};
    }
    int left_count = gr_tree_left_count(node.count);
    part left = combine_node(c, (gr_tree_range){node.first, left_count});
    part right = combine_node(c, (gr_tree_range){node.first + left_count, node.count - left_count});
    gr_operand a = fetch(c, left);
    gr_operand b = fetch(c, right);
    return (part){NULL, add(c, a, b, node.count == c->units->shards)};
}

void gr_units_combine(const gr_units *units, int block, bool in_place, gr_plan *plan)
{
    combine c = {.units = units, .plan = plan, .block = block, .in_place = in_place};
    for (uint32_t i = 0; i < units->count && c.receive_slots < RECEIVE_SLOTS_MAX; i++) {
        c.receive_slots += units->all[i].rank != plan->shape.rank;
    }
    part root = combine_node(&c, (gr_tree_range){0, units->shards});
    if (root.remote) {
        gr_plan_recv(plan, root.remote->rank, gr_user(0, block));
    }
}
