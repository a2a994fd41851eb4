/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/hosts.h"

/* Hierarchical: a byte crosses the wire between two hosts once in each direction, and all ranks of
 * a host have a part in it, so that no leader is a bottleneck. Rank b has block b; on each other
 * host the rank of the same local place takes that block.
 *   Reduce-scatter: the taker adds what the ranks of its host have of the block and sends the sum
 * to rank b, which adds the sums of the hosts. Allgather: rank b sends its block to the takers, who
 * give it to the ranks of their hosts. An allreduce is both. A reduce is the first, then the root
 * collects. Hosts may have different numbers of ranks.
 *   Canonical where ranks are placed host by host: a host adds the largest subtrees of the shard
 * tree inside it, which is one if the hosts are alike and a power of two. In any order, a host adds
 * all that it has. */

/* ---- Reduce-scatter -------------------------------------------------------------------------- */
typedef struct scattering {
    gr_hosts *hosts;
    gr_plan *plan;
    bool keeps_own;  /* the contributions stay as they are */
    bool has_result; /* of all blocks, at any time */
    int slots_each;  /* scratch slots for the sums of one block */
    int taken;       /* blocks of other hosts so far */
    int first_free;  /* scratch slot */
    int receive_slots;
} scattering;

/* One node's sum may stand in the result: the one in which the contribution there is. */
static int node_in_result(const scattering *s)
{
    return s->hosts->own_node > 0 ? s->hosts->own_node : 0;
}

/* Where the sum of a node of this host is kept, for the taken-th block. */
static gr_operand sum_place(const scattering *s, int node, int taken, int block)
{
    const gr_units *units = &s->hosts->nodes[node];
    int rank = s->plan->shape.rank;
    if (units->count == 1 && units->all[0].rank == rank) {
        gr_operand alone = units->all[0].here;
        alone.block = (uint32_t)block;
        return alone;
    }
    bool in_result = s->has_result || (block == rank && s->plan->user_slots > 0 && !s->keeps_own);
    if (in_result && node == node_in_result(s)) {
        return gr_user(0, block);
    }
    int slot = node - (s->has_result && node > node_in_result(s));
    return gr_scratch(taken * s->slots_each + slot, block);
}

static gr_operand result_place(const scattering *s)
{
    int rank = s->plan->shape.rank;
    bool in_result = s->plan->user_slots > 0 && !s->keeps_own;
    return in_result ? gr_user(0, rank) : gr_scratch(s->first_free - 1, rank);
}

/* Host by host, beginning behind this one, so that not all begin with the same one; this one comes
 * last. */
static int host_in_turn(const gr_hosts *hosts, int turn)
{
    return (hosts->own + 1 + turn) % hosts->count;
}

static void send_shares(const scattering *s)
{
    const gr_hosts *hosts = s->hosts;
    int size = gr_hosts_size(hosts, hosts->own);
    for (int turn = 0; turn < hosts->count; turn++) {
        int host = host_in_turn(hosts, turn);
        for (int i = 1; i < size; i++) {
            int local = (hosts->local + i) % size;
            int taker = gr_hosts_member(hosts, hosts->own, local);
            for (int at = local; at < gr_hosts_size(hosts, host); at += size) {
                for (int node = 0; node < hosts->node_count; node++) {
                    gr_units_send(&hosts->nodes[node], taker, gr_hosts_member(hosts, host, at),
                                  s->plan);
                }
            }
        }
    }
}

static void add_nodes(const scattering *s, int taken, int block)
{
    const gr_hosts *hosts = s->hosts;
    for (int node = 0; node < hosts->node_count; node++) {
        const gr_units *units = &hosts->nodes[node];
        gr_combine how = {.dst = sum_place(s, node, taken, block),
                          .first_slot = s->first_free,
                          .receive_slots = s->receive_slots,
                          .keeps_own = s->keeps_own};
        if (units->count > 1 || units->all[0].rank != s->plan->shape.rank) {
            gr_units_combine(units, &how, s->plan);
        }
    }
}

/* Says who has the sums of the nodes for this rank's block. */
static void name_holders(const scattering *s, int taken)
{
    gr_hosts *hosts = s->hosts;
    int block = s->plan->shape.rank;
    for (int host = 0; host < hosts->count; host++) {
        for (int i = hosts->all_first[host]; i < hosts->all_first[host + 1]; i++) {
            gr_unit *unit = &hosts->all.all[i];
            unit->rank = gr_hosts_taker(hosts, host, block);
            if (host == hosts->own) {
                unit->here = sum_place(s, i - hosts->all_first[host], taken, block);
            }
        }
    }
}

static void take_blocks(scattering *s)
{
    gr_hosts *hosts = s->hosts;
    int size = gr_hosts_size(hosts, hosts->own);
    for (int turn = 0; turn < hosts->count - 1; turn++) {
        int host = host_in_turn(hosts, turn);
        for (int at = hosts->local; at < gr_hosts_size(hosts, host); at += size) {
            int block = gr_hosts_member(hosts, host, at);
            add_nodes(s, s->taken, block);
            for (int i = 0; i < hosts->node_count; i++) {
                gr_plan_send(s->plan, block, sum_place(s, hosts->node_order[i], s->taken, block));
            }
            s->taken++;
        }
    }
}

static int blocks_taken(const gr_hosts *hosts)
{
    int size = gr_hosts_size(hosts, hosts->own);
    int blocks = 0;
    for (int host = 0; host < hosts->count; host++) {
        int theirs = gr_hosts_size(hosts, host);
        blocks += host != hosts->own && theirs > hosts->local
                      ? (theirs - hosts->local + size - 1) / size
                      : 0;
    }
    return blocks;
}

/* The sum of this rank's block ends in result_place. */
static void reduce_scatter(scattering *s)
{
    const gr_plan_shape *shape = &s->plan->shape;
    gr_hosts *hosts = s->hosts;
    s->slots_each = hosts->node_count - (s->has_result && hosts->node_count > 0);
    s->first_free = (blocks_taken(hosts) + 1) * s->slots_each;
    s->first_free += s->keeps_own || s->plan->user_slots == 0;
    name_holders(s, 0);
    s->receive_slots = gr_units_receive_slots(&hosts->all, shape->rank);
    for (int node = 0; node < hosts->node_count; node++) {
        int slots = gr_units_receive_slots(&hosts->nodes[node], shape->rank);
        s->receive_slots = slots > s->receive_slots ? slots : s->receive_slots;
    }
    send_shares(s);
    take_blocks(s);
    add_nodes(s, s->taken, shape->rank);
    name_holders(s, s->taken);
    gr_combine how = {.dst = result_place(s),
                      .first_slot = s->first_free,
                      .receive_slots = s->receive_slots,
                      .keeps_own = s->keeps_own};
    gr_units_combine(&hosts->all, &how, s->plan);
}

/* ---- Allgather ------------------------------------------------------------------------------- */
static void give_to_host(const gr_hosts *hosts, gr_operand block)
{
    int size = gr_hosts_size(hosts, hosts->own);
    for (int i = 1; i < size; i++) {
        int local = (hosts->local + i) % size;
        gr_plan_send(hosts->plan, gr_hosts_member(hosts, hosts->own, local), block);
    }
}

static void allgather(const gr_hosts *hosts, gr_operand own)
{
    gr_plan *plan = hosts->plan;
    int size = gr_hosts_size(hosts, hosts->own);
    for (int turn = 0; turn < hosts->count - 1; turn++) {
        int taker = gr_hosts_taker(hosts, host_in_turn(hosts, turn), plan->shape.rank);
        gr_plan_send(plan, taker, own);
    }
    give_to_host(hosts, own);
    for (int turn = 0; turn < hosts->count - 1; turn++) {
        int host = host_in_turn(hosts, turn);
        for (int at = hosts->local; at < gr_hosts_size(hosts, host); at += size) {
            int block = gr_hosts_member(hosts, host, at);
            gr_plan_recv(plan, block, gr_user(0, block));
            give_to_host(hosts, gr_user(0, block));
        }
    }
    for (int i = 1; i < size; i++) {
        int local = (hosts->local + i) % size;
        int from = gr_hosts_member(hosts, hosts->own, local);
        gr_plan_recv(plan, from, gr_user(0, from));
        for (int turn = 0; turn < hosts->count - 1; turn++) {
            int host = host_in_turn(hosts, turn);
            for (int at = local; at < gr_hosts_size(hosts, host); at += size) {
                gr_plan_recv(plan, from, gr_user(0, gr_hosts_member(hosts, host, at)));
            }
        }
    }
}

/* ---- Broadcast ------------------------------------------------------------------------------- */
/* The buffer is cut into as many blocks as a host has ranks at most. A block goes from host to
 * host, from the rank that takes it to the one that takes it there; the root gives all to its host
 * itself. */
static int largest_host(const gr_hosts *hosts)
{
    int most = 1;
    for (int host = 0; host < hosts->count; host++) {
        int size = gr_hosts_size(hosts, host);
        most = size > most ? size : most;
    }
    return most;
}

static int holder_of(const gr_hosts *hosts, int host, int block)
{
    return gr_hosts_member(hosts, host, block % gr_hosts_size(hosts, host));
}

static void broadcast_block(const gr_hosts *hosts, int block)
{
    gr_plan *plan = hosts->plan;
    const gr_plan_shape *shape = &plan->shape;
    int root_host = gr_hosts_of(hosts, shape->root);
    int next = (hosts->own + 1) % hosts->count;
    int before = (hosts->own + hosts->count - 1) % hosts->count;
    int holder = holder_of(hosts, hosts->own, block);
    bool is_root = shape->rank == shape->root;
    gr_operand at = is_root ? gr_contribution(plan, 0, block) : gr_user(0, block);
    if (hosts->own == root_host && !is_root) {
        gr_plan_recv(plan, shape->root, at);
    } else if (!is_root) {
        bool holds = shape->rank == holder;
        gr_plan_recv(plan, holds ? holder_of(hosts, before, block) : holder, at);
    }
    if (shape->rank == holder && next != root_host) {
        gr_plan_send(plan, holder_of(hosts, next, block), at);
    }
    if (is_root || (hosts->own != root_host && shape->rank == holder)) {
        give_to_host(hosts, at);
    }
}

/* ---- Algorithms ------------------------------------------------------------------------------ */
/* The sums of blocks that are taken may stand in scratch, one slot each. */
bool gr_hierarchical_fits(const gr_plan_shape *shape, bool canonical)
{
    enum { SLOTS_OF_A_SUM = 64 };
    long hosts = shape->topology ? shape->topology->host_count : 1;
    long least = shape->topology ? INT32_MAX : shape->world_size;
    for (int host = 0; shape->topology && host < hosts; host++) {
        long size = shape->topology->local_size[host];
        least = size < least ? size : least;
    }
    long taken = hosts > 1 ? shape->world_size / least + hosts : 0;
    if (canonical && !gr_hosts_in_order(shape)) {
        return false;
    }
    long nodes = canonical ? gr_hosts_most_nodes(shape) : 1;
    return (taken + 1) * nodes <= GR_PLAN_SLOTS_MAX - SLOTS_OF_A_SUM;
}

static void plan_sums(const gr_plan_shape *shape, gr_plan *plan, bool canonical)
{
    gr_hosts hosts;
    bool is_reduce = shape->coll == GR_COLL_REDUCE;
    bool is_root = shape->rank == shape->root;
    plan->blocks = (uint32_t)shape->world_size;
    if (gr_hosts_init(&hosts, plan) && gr_hosts_init_sums(&hosts, canonical)) {
        scattering s = {.hosts = &hosts, .plan = plan, .keeps_own = is_reduce && !is_root};
        s.has_result = shape->coll == GR_COLL_REDUCE_SCATTER ? !shape->out_of_place : !s.keeps_own;
        reduce_scatter(&s);
        if (shape->coll == GR_COLL_ALLREDUCE) {
            allgather(&hosts, gr_user(0, shape->rank));
        }
        if (is_reduce && !is_root) {
            gr_plan_send(plan, shape->root, result_place(&s));
        }
        for (int i = 1; i < shape->world_size && is_reduce && is_root; i++) {
            int from = (shape->rank + i) % shape->world_size;
            gr_plan_recv(plan, from, gr_user(0, from));
        }
    }
    gr_hosts_fini(&hosts);
}

void gr_hierarchical_sums(const gr_plan_shape *shape, gr_plan *plan)
{
    plan_sums(shape, plan, true);
}

void gr_hierarchical_any_order_sums(const gr_plan_shape *shape, gr_plan *plan)
{
    plan_sums(shape, plan, false);
}

void gr_hierarchical_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_hosts hosts;
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    if (gr_hosts_init(&hosts, plan)) {
        allgather(&hosts, own);
    }
    gr_hosts_fini(&hosts);
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
}

void gr_hierarchical_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_hosts hosts;
    if (gr_hosts_init(&hosts, plan)) {
        int blocks = largest_host(&hosts);
        plan->blocks = (uint32_t)blocks;
        for (int block = 0; block < blocks; block++) {
            broadcast_block(&hosts, block);
            if (shape->rank == shape->root && shape->out_of_place) {
                gr_plan_copy(plan, gr_user(0, block), gr_input(0, block));
            }
        }
    }
    gr_hosts_fini(&hosts);
}
