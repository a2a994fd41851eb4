/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/algorithms.h"
#include "coll/combine.h"

/* Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
 * Parallel Distrib. Comput. 69 (2009), section 3. A block travels once around the ring and collects
 * a share at each rank; it ends at the rank of its number. The order of the additions depends on
 * the block, so that the result is not canonical.
 *   A rank can send on a block, or a segment of it, only when it has added to it. Segmented, an
 * allreduce cuts each block into CHUNKS parts: while one is added the others are on the wire, also
 * where a block is no longer than one segment of the executor. (The blocks of a reduce-scatter or
 * allgather are the callers': there the executor's segments do this.) */

/* Two receive slots let the next block arrive while this one is added; two more places keep the sum
 * that is sent apart from the one that is made. */
enum { CHUNKS = 4, SLOTS = 2 };

typedef struct ring {
    gr_plan *plan;
    int n, rank, chunks;
} ring;

static int part_of(const ring *r, int block, int chunk)
{
    return (block + 2 * r->n) % r->n * r->chunks + chunk;
}

/* What comes is added to this rank's share: in place in its own buffer; out of place in scratch,
 * but for the block that ends here, and in an allreduce in the result. */
static gr_operand sum_of(const ring *r, int t, int block, int chunk)
{
    const gr_plan_shape *shape = &r->plan->shape;
    int part = part_of(r, block, chunk);
    bool in_result =
        !shape->out_of_place || shape->coll == GR_COLL_ALLREDUCE || part == shape->rank;
    return in_result ? gr_user(0, part) : gr_scratch((1 + chunk) * 2 * SLOTS - 1 - t % SLOTS, part);
}

static void reduce_around(const ring *r)
{
    for (int t = 0; t < r->n - 1; t++) {
        int given = r->rank - 1 - t;
        int taken = r->rank - 2 - t;
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            gr_plan_send(r->plan, (r->rank + 1) % r->n,
                         t == 0 ? gr_contribution(r->plan, 0, part_of(r, given, chunk))
                                : sum_of(r, t - 1, given, chunk));
        }
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            int part = part_of(r, taken, chunk);
            gr_operand share = gr_scratch(chunk * 2 * SLOTS + t % SLOTS, part);
            gr_plan_recv(r->plan, (r->rank + r->n - 1) % r->n, share);
            gr_plan_reduce(r->plan, sum_of(r, t, taken, chunk), share,
                           gr_contribution(r->plan, 0, part));
        }
    }
}

static void spread_around(const ring *r)
{
    for (int t = 0; t < r->n - 1; t++) {
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            int given = part_of(r, r->rank - t, chunk);
            bool contributed = t == 0 && r->plan->shape.coll == GR_COLL_ALLGATHER;
            gr_plan_send(r->plan, (r->rank + 1) % r->n,
                         contributed ? gr_contribution(r->plan, 0, given) : gr_user(0, given));
        }
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            gr_plan_recv(r->plan, (r->rank + r->n - 1) % r->n,
                         gr_user(0, part_of(r, r->rank - 1 - t, chunk)));
        }
    }
}

static ring ring_of(gr_plan *plan, int chunks)
{
    return (ring){plan, plan->shape.world_size, plan->shape.rank, chunks};
}

void gr_ring_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    (void)shape;
    if (!gr_plan_alone(plan)) {
        ring r = ring_of(plan, 1);
        reduce_around(&r);
    }
}

void gr_ring_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    if (gr_plan_alone(plan)) {
        return;
    }
    ring r = ring_of(plan, 1);
    spread_around(&r);
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
    }
}

static void allreduce(gr_plan *plan, int chunks)
{
    if (gr_plan_alone(plan)) {
        return;
    }
    ring r = ring_of(plan, chunks);
    plan->blocks = (uint32_t)(r.n * chunks);
    reduce_around(&r);
    spread_around(&r);
}

void gr_ring_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    (void)shape;
    allreduce(plan, 1);
}

bool gr_segmented_ring_fits(const gr_plan_shape *shape)
{
    enum { STEPS_A_CHUNK = 5 };
    return shape->world_size <= GR_PLAN_STEPS_MAX / (CHUNKS * STEPS_A_CHUNK);
}

void gr_segmented_ring_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    (void)shape;
    allreduce(plan, CHUNKS);
}
