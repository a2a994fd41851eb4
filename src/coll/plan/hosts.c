/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/hosts.h"

#include <stdlib.h>

/* ---- Who is where ---------------------------------------------------------------------------- */
static int host_of(const gr_plan_shape *shape, int rank)
{
    return shape->topology ? shape->topology->host_of[rank] : 0;
}

static int local_rank_of(const gr_plan_shape *shape, int rank)
{
    return shape->topology ? shape->topology->local_rank[rank] : rank;
}

bool gr_hosts_in_order(const gr_plan_shape *shape)
{
    for (int rank = 1; shape->topology && rank < shape->world_size; rank++) {
        if (host_of(shape, rank) < host_of(shape, rank - 1)) {
            return false;
        }
    }
    return true;
}

int gr_hosts_size(const gr_hosts *hosts, int host)
{
    return hosts->first[host + 1] - hosts->first[host];
}

int gr_hosts_member(const gr_hosts *hosts, int host, int local)
{
    return hosts->members[hosts->first[host] + local];
}

int gr_hosts_of(const gr_hosts *hosts, int rank)
{
    return host_of(&hosts->plan->shape, rank);
}

int gr_hosts_taker(const gr_hosts *hosts, int host, int block)
{
    const gr_plan_shape *shape = &hosts->plan->shape;
    if (host_of(shape, block) == host) {
        return block;
    }
    return gr_hosts_member(hosts, host, local_rank_of(shape, block) % gr_hosts_size(hosts, host));
}

bool gr_hosts_init(gr_hosts *hosts, gr_plan *plan)
{
    const gr_plan_shape *shape = &plan->shape;
    size_t n = (size_t)shape->world_size;
    *hosts = (gr_hosts){.plan = plan, .count = shape->topology ? shape->topology->host_count : 1};
    hosts->own = host_of(shape, shape->rank);
    hosts->local = local_rank_of(shape, shape->rank);
    hosts->members = malloc(n * sizeof *hosts->members);
    hosts->first = calloc((size_t)hosts->count + 1, sizeof *hosts->first);
    hosts->all_first = calloc((size_t)hosts->count + 1, sizeof *hosts->all_first);
    if (!hosts->members || !hosts->first || !hosts->all_first) {
        plan->failed = GR_E_NO_MEMORY;
        return false;
    }
    for (int rank = 0; rank < shape->world_size; rank++) {
        hosts->first[host_of(shape, rank) + 1]++;
    }
    for (int host = 0; host < hosts->count; host++) {
        hosts->first[host + 1] += hosts->first[host];
    }
    for (int rank = 0; rank < shape->world_size; rank++) {
        hosts->members[hosts->first[host_of(shape, rank)] + local_rank_of(shape, rank)] = rank;
    }
    return true;
}

void gr_hosts_fini(gr_hosts *hosts)
{
    for (int i = 0; hosts->nodes && i < hosts->node_count; i++) {
        gr_units_fini(&hosts->nodes[i]);
    }
    gr_units_fini(&hosts->all);
    free(hosts->nodes);
    free(hosts->members);
    free(hosts->first);
    free(hosts->all_first);
    *hosts = (gr_hosts){.count = 0};
}

/* ---- Who adds what --------------------------------------------------------------------------- */
static int cover_rank(const gr_plan_shape *shape, int rank, gr_tree_range *ranges_out)
{
    int first, count;
    gr_shard_range(shape->shards, shape->world_size, rank, &first, &count);
    return gr_tree_cover(shape->shards, first, count, ranges_out);
}

static int cover_ranks(const gr_plan_shape *shape, int first_rank, int rank_count,
                       gr_tree_range *ranges_out)
{
    int first, last, count;
    gr_shard_range(shape->shards, shape->world_size, first_rank, &first, &count);
    gr_shard_range(shape->shards, shape->world_size, first_rank + rank_count - 1, &last, &count);
    return gr_tree_cover(shape->shards, first, last + count - first, ranges_out);
}

/* The hosts are in order: the ranks of one are one range. */
static int cover_host(const gr_hosts *hosts, int host, gr_tree_range *ranges_out)
{
    return cover_ranks(&hosts->plan->shape, hosts->first[host], gr_hosts_size(hosts, host),
                       ranges_out);
}

int gr_hosts_most_nodes(const gr_plan_shape *shape)
{
    int most = 1;
    int first = 0;
    for (int host = 0; shape->topology && host < shape->topology->host_count; host++) {
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        int nodes = cover_ranks(shape, first, shape->topology->local_size[host], ranges);
        most = nodes > most ? nodes : most;
        first += shape->topology->local_size[host];
    }
    return most;
}

static bool contains(gr_tree_range node, gr_tree_range part)
{
    return node.first <= part.first && part.first + part.count <= node.first + node.count;
}

/* What this host's ranks have of one of its nodes, counted from the node's first shard. */
static bool init_node(gr_hosts *hosts, gr_units *units, gr_tree_range node, int index)
{
    const gr_plan_shape *shape = &hosts->plan->shape;
    int size = gr_hosts_size(hosts, hosts->own);
    if (!gr_units_reserve(units, (uint32_t)size * GR_SHARD_PARTIALS_MAX, node.count, hosts->plan)) {
        return false;
    }
    for (int local = 0; local < size; local++) {
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        int rank = gr_hosts_member(hosts, hosts->own, local);
        int found = cover_rank(shape, rank, ranges);
        for (int slot = 0; slot < found; slot++) {
            if (contains(node, ranges[slot])) {
                ranges[slot].first -= node.first;
                units->all[units->count++] =
                    (gr_unit){ranges[slot], rank, gr_contribution(hosts->plan, slot, 0)};
                hosts->own_node = rank == shape->rank && slot == 0 ? index : hosts->own_node;
            }
        }
    }
    gr_units_order(units);
    return true;
}

static bool init_canonical(gr_hosts *hosts)
{
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    const gr_plan_shape *shape = &hosts->plan->shape;
    uint32_t most = (uint32_t)hosts->count * GR_SHARD_PARTIALS_MAX;
    if (!gr_units_reserve(&hosts->all, most, shape->shards, hosts->plan)) {
        return false;
    }
    for (int host = 0; host < hosts->count; host++) {
        int found = cover_host(hosts, host, ranges);
        for (int i = 0; i < found; i++) {
            hosts->all.all[hosts->all.count++] = (gr_unit){.range = ranges[i]};
        }
        hosts->all_first[host + 1] = (int)hosts->all.count;
    }
    int found = cover_host(hosts, hosts->own, ranges);
    for (int i = 0; i < found; i++) {
        hosts->node_count++;
        if (!init_node(hosts, &hosts->nodes[i], ranges[i], i)) {
            return false;
        }
    }
    return true;
}

static bool init_in_any_order(gr_hosts *hosts)
{
    int size = gr_hosts_size(hosts, hosts->own);
    if (!gr_units_reserve(&hosts->all, (uint32_t)hosts->count, hosts->count, hosts->plan)) {
        return false;
    }
    for (int host = 0; host < hosts->count; host++) {
        hosts->all.all[hosts->all.count++] = (gr_unit){.range = {host, 1}};
        hosts->all_first[host + 1] = host + 1;
    }
    hosts->node_count = 1;
    hosts->own_node = 0;
    if (!gr_units_reserve(&hosts->nodes[0], (uint32_t)size, size, hosts->plan)) {
        return false;
    }
    for (int local = 0; local < size; local++) {
        hosts->nodes[0].all[hosts->nodes[0].count++] =
            (gr_unit){{local, 1},
                      gr_hosts_member(hosts, hosts->own, local),
                      gr_contribution(hosts->plan, 0, 0)};
    }
    gr_units_order(&hosts->nodes[0]);
    return true;
}

bool gr_hosts_init_sums(gr_hosts *hosts, bool canonical)
{
    hosts->own_node = -1;
    hosts->nodes = calloc(GR_SHARD_PARTIALS_MAX, sizeof *hosts->nodes);
    if (!hosts->nodes) {
        hosts->plan->failed = GR_E_NO_MEMORY;
        return false;
    }
    if (!(canonical ? init_canonical(hosts) : init_in_any_order(hosts))) {
        return false;
    }
    gr_units_order(&hosts->all);
    uint32_t own_first = (uint32_t)hosts->all_first[hosts->own];
    for (uint32_t i = 0, placed = 0; i < hosts->all.count; i++) {
        uint32_t node = hosts->all.order[i] - own_first;
        if (hosts->all.order[i] >= own_first && node < (uint32_t)hosts->node_count) {
            hosts->node_order[placed++] = (int)node;
        }
    }
    return true;
}
