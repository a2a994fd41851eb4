/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/hosts.h"

/* Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
 * Parallel Distrib. Comput. 69 (2009), section 3. A block travels once around the ring and collects
 * a share at each rank; it ends at the rank of its number. The order of the additions depends on
 * the block, so that the result is not canonical.
 *   The ring goes through the ranks in their order, or host by host if they are assigned to hosts
 * otherwise, so that it leaves each host once.
 *   A rank can send on a block, or a segment of it, only when it has added to it. Segmented, an
 * allreduce cuts each block into CHUNKS parts: while one is added the others are on the wire, also
 * where a block is no longer than one segment of the executor. (The blocks of a reduce-scatter or
 * allgather are the callers': there the executor's segments do this.) */

/* Two receive slots let the next block arrive while this one is added; two more places keep the sum
 * that is sent apart from the one that is made. */
enum { CHUNKS = 4, SLOTS = 2 };

typedef struct ring {
    gr_plan *plan;
    int n, chunks;
    int place; /* of this rank in the ring */
    gr_hosts hosts;
    bool by_host; /* else places are ranks */
} ring;

static int rank_at(const ring *r, int place)
{
    int turned = (place + 2 * r->n) % r->n;
    return r->by_host ? r->hosts.members[turned] : turned;
}

static int next_rank(const ring *r)
{
    return rank_at(r, r->place + 1);
}

static int previous_rank(const ring *r)
{
    return rank_at(r, r->place - 1);
}

/* Of the block of the rank at a place. */
static int part_of(const ring *r, int place, int chunk)
{
    return rank_at(r, place) * r->chunks + chunk;
}

/* What comes is added to this rank's share: in place in its own buffer; out of place in scratch,
 * but for the block that ends here, and in an allreduce in the result. */
static gr_operand sum_of(const ring *r, int t, int place, int chunk)
{
    const gr_plan_shape *shape = &r->plan->shape;
    int part = part_of(r, place, chunk);
    bool in_result =
        !shape->out_of_place || shape->coll == GR_COLL_ALLREDUCE || part == shape->rank;
    return in_result ? gr_user(0, part) : gr_scratch(SLOTS + t % SLOTS, part);
}

static void reduce_around(const ring *r)
{
    for (int t = 0; t < r->n - 1; t++) {
        int given = r->place - 1 - t;
        int taken = r->place - 2 - t;
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            gr_plan_send(r->plan, next_rank(r),
                         t == 0 ? gr_contribution(r->plan, 0, part_of(r, given, chunk))
                                : sum_of(r, t - 1, given, chunk));
        }
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            int part = part_of(r, taken, chunk);
            gr_operand share = gr_scratch((t * r->chunks + chunk) % SLOTS, part);
            gr_plan_recv(r->plan, previous_rank(r), share);
            gr_plan_reduce(r->plan, sum_of(r, t, taken, chunk), share,
                           gr_contribution(r->plan, 0, part));
        }
    }
}

static void spread_around(const ring *r)
{
    for (int t = 0; t < r->n - 1; t++) {
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            int given = part_of(r, r->place - t, chunk);
            bool contributed = t == 0 && r->plan->shape.coll == GR_COLL_ALLGATHER;
            gr_plan_send(r->plan, next_rank(r),
                         contributed ? gr_contribution(r->plan, 0, given) : gr_user(0, given));
        }
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            gr_plan_recv(r->plan, previous_rank(r),
                         gr_user(0, part_of(r, r->place - 1 - t, chunk)));
        }
    }
}

/* What can fail is kept in the plan; ring_fini is due in any case. */
static bool ring_init(ring *r, gr_plan *plan, int chunks)
{
    *r = (ring){
        .plan = plan, .n = plan->shape.world_size, .chunks = chunks, .place = plan->shape.rank};
    if (gr_hosts_in_order(&plan->shape)) {
        return true;
    }
    if (!gr_hosts_init(&r->hosts, plan)) {
        return false;
    }
    r->by_host = true;
    r->place = r->hosts.first[r->hosts.own] + r->hosts.local;
    return true;
}

static void ring_fini(ring *r)
{
    gr_hosts_fini(&r->hosts);
}

void gr_ring_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    ring r;
    (void)shape;
    if (ring_init(&r, plan, 1)) {
        reduce_around(&r);
    }
    ring_fini(&r);
}

void gr_ring_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    ring r;
    if (ring_init(&r, plan, 1)) {
        spread_around(&r);
    }
    ring_fini(&r);
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
    }
}

static void allreduce(gr_plan *plan, int chunks)
{
    ring r;
    plan->blocks = (uint32_t)(plan->shape.world_size * chunks);
    if (ring_init(&r, plan, chunks)) {
        reduce_around(&r);
        spread_around(&r);
    }
    ring_fini(&r);
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
