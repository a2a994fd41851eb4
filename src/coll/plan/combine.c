/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/combine.h"

#include <stdlib.h>

/* Enough receives ahead of the additions to keep all links busy, at a bounded price in scratch: one
 * for each peer, whose next message can arrive behind its last, segment by segment. */
enum { RECEIVE_SLOTS_MAX = 16 };
/* An addition that needs a slot of its own has two subtrees that wait for it at most: the depth of
 * the tree bounds them. */
enum { SUM_SLOTS = 32 };

/* ---- Sums ------------------------------------------------------------------------------------ */
static bool same_place(gr_operand a, gr_operand b)
{
    return a.space == b.space && a.slot == b.slot &&
           (a.space == GR_SPACE_SCRATCH || a.block == b.block);
}

static gr_operand take(gr_sums *sums, uint32_t block)
{
    if (sums->has_spare && !sums->spare_used) {
        sums->spare_used = true;
        return sums->spare;
    }
    int slot = 0;
    while (slot < SUM_SLOTS - 1 && (sums->taken >> slot & 1u)) {
        slot++;
    }
    sums->taken |= 1u << slot;
    return gr_scratch(sums->first_slot + slot, (int)block);
}

static bool holds(const gr_sums *sums, gr_operand operand)
{
    return (operand.space == GR_SPACE_SCRATCH && operand.slot >= sums->first_slot) ||
           (sums->has_spare && same_place(operand, sums->spare));
}

void gr_sums_release(gr_sums *sums, gr_operand operand)
{
    if (sums->has_spare && same_place(operand, sums->spare)) {
        sums->spare_used = false;
    } else if (holds(sums, operand)) {
        sums->taken &= ~(1u << (operand.slot - sums->first_slot));
    }
}

static bool may_overwrite(const gr_sums *sums, gr_operand operand, bool keeps_own)
{
    return holds(sums, operand) || (operand.space == GR_SPACE_USER && !keeps_own);
}

gr_operand gr_sums_place(gr_sums *sums, gr_operand a, gr_operand b, uint32_t block, bool keeps_own)
{
    if (may_overwrite(sums, a, keeps_own)) {
        gr_sums_release(sums, b);
        return a;
    }
    return may_overwrite(sums, b, keeps_own) ? b : take(sums, block);
}

/* ---- Units ----------------------------------------------------------------------------------- */
static uint32_t order_node(const gr_units *units, gr_tree_range node, uint32_t *next,
                           uint32_t *placed);

/* Units directly below a node are asked for when their addition is due, after those deeper down. */
static void order_children(const gr_units *units, gr_tree_range node, uint32_t *next,
                           uint32_t *placed)
{
    uint32_t left_unit = order_node(units, gr_tree_left(node), next, placed);
    uint32_t right_unit = order_node(units, gr_tree_right(node), next, placed);
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

void gr_units_order(gr_units *units)
{
    uint32_t next = 0, placed = 0;
    gr_tree_range root = {0, units->shards};
    if (order_node(units, root, &next, &placed) != UINT32_MAX) {
        units->order[0] = 0;
    }
}

bool gr_units_reserve(gr_units *units, uint32_t count, int shards, gr_plan *plan)
{
    *units = (gr_units){.shards = shards, .own_count = -1};
    units->all = malloc(count * sizeof *units->all);
    units->order = malloc(count * sizeof *units->order);
    if (!units->all || !units->order) {
        gr_units_fini(units);
        plan->failed = GR_E_NO_MEMORY;
        return false;
    }
    return true;
}

bool gr_units_init(gr_units *units, const gr_plan_shape *shape, gr_plan *plan)
{
    uint32_t total = 0;
    for (int rank = 0; rank < shape->world_size; rank++) {
        total += (uint32_t)gr_shard_partials(shape->shards, shape->world_size, rank);
    }
    if (!gr_units_reserve(units, total, shape->shards, plan)) {
        return false;
    }
    for (int rank = 0; rank < shape->world_size; rank++) {
        int first, count;
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        gr_shard_range(shape->shards, shape->world_size, rank, &first, &count);
        int found = gr_tree_cover(shape->shards, first, count, ranges);
        for (int slot = 0; slot < found; slot++) {
            units->all[units->count++] =
                (gr_unit){ranges[slot], rank, gr_contribution(plan, slot, 0)};
        }
    }
    gr_units_order(units);
    units->own_count = 0;
    for (uint32_t i = 0; i < units->count; i++) {
        if (units->all[units->order[i]].rank == shape->rank) {
            units->own[units->own_count++] = units->order[i];
        }
    }
    return true;
}

void gr_units_fini(gr_units *units)
{
    free(units->all);
    free(units->order);
    *units = (gr_units){.all = NULL};
}

static gr_operand block_of(const gr_unit *unit, uint32_t block)
{
    gr_operand operand = unit->here;
    operand.block = block;
    return operand;
}

void gr_units_send(const gr_units *units, int peer, int block, gr_plan *plan)
{
    for (int i = 0; i < units->own_count; i++) {
        gr_plan_send(plan, peer, block_of(&units->all[units->own[i]], (uint32_t)block));
    }
    for (uint32_t i = 0; units->own_count < 0 && i < units->count; i++) {
        const gr_unit *unit = &units->all[units->order[i]];
        if (unit->rank == plan->shape.rank) {
            gr_plan_send(plan, peer, block_of(unit, (uint32_t)block));
        }
    }
}

/* ---- Combining ------------------------------------------------------------------------------- */
/* Where a subtree's sum is: with a peer, or here (an operand). */
typedef struct sum_part {
    const gr_unit *remote; /* NULL: here */
    gr_operand here;
} sum_part;

typedef struct combine {
    const gr_units *units;
    const gr_combine *how;
    gr_plan *plan;
    uint32_t next;     /* unit */
    int received;      /* messages so far */
    int receive_slots; /* scratch slots from how->first_slot on take messages in turn */
    gr_sums sums;
} combine;

static gr_operand fetch(combine *c, sum_part from)
{
    if (!from.remote) {
        return from.here;
    }
    gr_operand to =
        gr_scratch(c->how->first_slot + c->received++ % c->receive_slots, (int)c->how->dst.block);
    gr_plan_recv(c->plan, from.remote->rank, to);
    return to;
}

static gr_operand add(combine *c, gr_operand a, gr_operand b, bool is_root)
{
    bool of_sums = holds(&c->sums, a) || holds(&c->sums, b);
    /* A sum directly of what two ranks send must not be written over what this rank sends: each of
     * the two would wait until the other has read its own, if the links show the peer's memory. */
    bool copy_root = is_root && c->how->shared && !c->plan->shape.out_of_place && !of_sums;
    gr_operand dst = is_root && !copy_root ? c->how->dst
                                           : gr_sums_place(&c->sums, a, b, c->how->dst.block,
                                                           c->how->shared || c->how->keeps_own);
    gr_plan_reduce(c->plan, dst, a, b);
    if (copy_root) {
        gr_plan_copy(c->plan, c->how->dst, dst);
    }
    return dst;
}

static sum_part combine_node(combine *c, gr_tree_range node)
{
    if (is_unit(c->units, c->next, node)) {
        const gr_unit *unit = &c->units->all[c->next++];
        bool here = unit->rank == c->plan->shape.rank;
        return (sum_part){here ? NULL : unit, block_of(unit, c->how->dst.block)};
    }
    sum_part left = combine_node(c, gr_tree_left(node));
    sum_part right = combine_node(c, gr_tree_right(node));
    gr_operand a = fetch(c, left);
    gr_operand b = fetch(c, right);
    return (sum_part){NULL, add(c, a, b, node.count == c->units->shards)};
}

int gr_units_receive_slots(const gr_units *units, int rank)
{
    int slots = 0;
    for (uint32_t i = 0; i < units->count && slots < RECEIVE_SLOTS_MAX; i++) {
        int from = units->all[i].rank;
        slots += from != rank && (i == 0 || from != units->all[i - 1].rank);
    }
    return slots;
}

/* Out of place nothing stands in the result before the sum does, but a sum made before. */
static bool result_is_free(const gr_units *units, const gr_combine *how, const gr_plan *plan)
{
    bool is_free = plan->shape.out_of_place && how->dst.space == GR_SPACE_USER;
    for (uint32_t i = 0; i < units->count && is_free; i++) {
        is_free =
            units->all[i].rank != plan->shape.rank || units->all[i].here.space != GR_SPACE_USER;
    }
    return is_free;
}

void gr_units_combine(const gr_units *units, const gr_combine *how, gr_plan *plan)
{
    combine c = {.units = units, .how = how, .plan = plan};
    c.receive_slots =
        how->receive_slots ? how->receive_slots : gr_units_receive_slots(units, plan->shape.rank);
    c.sums = (gr_sums){.first_slot = how->first_slot + c.receive_slots,
                       .has_spare = result_is_free(units, how, plan),
                       .spare = how->dst};
    sum_part root = combine_node(&c, (gr_tree_range){0, units->shards});
    if (root.remote && how->dst.space == GR_SPACE_SCRATCH) {
        /* It stays for a while: the link must not wait for that. */
        gr_plan_copy(plan, how->dst, fetch(&c, root));
    } else if (root.remote) {
        gr_plan_recv(plan, root.remote->rank, how->dst);
    } else if (!same_place(root.here, how->dst) && !holds(&c.sums, root.here)) {
        gr_plan_copy(plan, how->dst, root.here); /* a sum has been put there by add() */
    }
}
