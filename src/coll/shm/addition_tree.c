/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/combine.h"
#include "coll/shm/shm_coll_internal.h"

#include <stdlib.h>

/* The sums of plans (combine.h), as one rank would make them that holds all contributions. */
static bool plan_sums(gr_plan *plan, gr_units *units, shm_tree *tree)
{
    if (!gr_units_init(units, &plan->shape, plan)) {
        return false;
    }
    tree->leaf_count = (int)units->count;
    tree->leaves = calloc(units->count, sizeof *tree->leaves);
    for (uint32_t i = 0; i < units->count && tree->leaves; i++) {
        gr_unit *unit = &units->all[i];
        tree->leaves[i] = (shm_leaf){.rank = unit->rank, .input = unit->here.slot};
        unit->rank = plan->shape.rank;
        unit->here = gr_input((int)i, 0);
    }
    const gr_combine how = {.dst = gr_user(0, 0)};
    if (tree->leaves) {
        gr_units_combine(units, &how, plan);
        tree->steps = calloc(plan->step_count + 1u, sizeof *tree->steps);
    }
    gr_units_fini(units);
    return plan->failed == GR_OK && tree->steps;
}

static int32_t operand_of(gr_operand operand)
{
    return operand.space == GR_SPACE_INPUT ? ~(int32_t)operand.slot : operand.slot;
}

shm_tree *gr_shm_coll_tree_create(int shards, int size, int rank)
{
    const gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .rank = rank, .world_size = size, .shards = shards};
    gr_plan plan;
    gr_units units;
    shm_tree *tree = calloc(1, sizeof *tree);
    gr_plan_init(&plan, &shape);
    if (!tree || !plan_sums(&plan, &units, tree)) {
        gr_plan_fini(&plan);
        gr_shm_coll_tree_destroy(tree);
        return NULL;
    }
    tree->shards = shards;
    for (uint32_t i = 0; i < plan.step_count; i++) {
        const gr_step *step = &plan.steps[i];
        if (step->kind == GR_STEP_REDUCE) { /* else there is one contribution */
            tree->steps[tree->step_count++] = (shm_step){
                .dst = step->dst.slot, .a = operand_of(step->a), .b = operand_of(step->b)};
        }
    }
    for (int leaf = 0; leaf < tree->leaf_count; leaf++) {
        int inputs = tree->leaves[leaf].input + 1;
        tree->inputs_most = inputs > tree->inputs_most ? inputs : tree->inputs_most;
        tree->inputs_own += tree->leaves[leaf].rank == rank;
    }
    tree->chunk_bytes = SHM_COLL_CHUNK;
    while (tree->chunk_bytes > SHM_COLL_CHUNK_MIN &&
           tree->chunk_bytes * (size_t)(tree->leaf_count + plan.scratch_slots) > SHM_COLL_CACHE) {
        tree->chunk_bytes /= 2;
    }
    gr_plan_fini(&plan);
    return tree;
}

void gr_shm_coll_tree_destroy(shm_tree *tree)
{
    if (tree) {
        free(tree->leaves);
        free(tree->steps);
        free(tree);
    }
}
