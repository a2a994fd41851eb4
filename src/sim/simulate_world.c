/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/simulate_world.h"

#include "base/fail.h"

#include <stdlib.h>

/* Ranks and blocks are 16-bit numbers in a plan. */
enum { WORLD_SIZE_MAX = 4096 };

/* ---- Topology -------------------------------------------------------------------------------- */
/* Host by host. */
static gr_status place_ranks(gr_simworld *world, gr_diag *diag)
{
    uint64_t *hosts = malloc((size_t)world->size * sizeof *hosts);
    for (int rank = 0; hosts && rank < world->size; rank++) {
        hosts[rank] = (uint64_t)(rank / world->cluster.ranks_per_host);
    }
    gr_status status =
        hosts ? gr_topology_create(hosts, world->size, &world->topology) : GR_E_NO_MEMORY;
    free(hosts);
    if (status != GR_OK) {
        return gr_fail(diag, status, "no memory for the places of %d ranks", world->size);
    }
    world->host_of = world->topology->host_of;
    return GR_OK;
}

static gr_plan_shape shape_of(const gr_simworld *world, const gr_algorithm *algorithm, int rank)
{
    return (gr_plan_shape){.coll = algorithm->coll,
                           .rank = rank,
                           .world_size = world->size,
                           .shards = world->size,
                           .topology = world->cluster.hosts > 1 ? world->topology : NULL};
}

uint64_t gr_simworld_steps(const gr_cluster *cluster, const gr_algorithm *algorithm)
{
    if (cluster->hosts * cluster->ranks_per_host > WORLD_SIZE_MAX) {
        return 0;
    }
    gr_simworld world = {.cluster = *cluster,
                         .size = (int)(cluster->hosts * cluster->ranks_per_host)};
    uint64_t most = 0;
    /* The first ranks are the busiest ones of any tree; the others are alike. */
    const int sample[] = {0, 1, world.size / 2, world.size - 1};
    gr_diag ignored;
    bool fits = place_ranks(&world, &ignored) == GR_OK;
    for (size_t i = 0; i < sizeof sample / sizeof sample[0] && fits; i++) {
        if (sample[i] >= world.size) {
            continue;
        }
        gr_plan_shape shape = shape_of(&world, algorithm, sample[i]);
        fits = algorithm->fits(&shape);
        if (fits) {
            gr_plan plan;
            gr_plan_emit(algorithm, &shape, &plan);
            most = plan.step_count > most ? plan.step_count : most;
            fits = plan.failed == GR_OK;
            gr_plan_fini(&plan);
        }
    }
    gr_topology_destroy(world.topology);
    return fits ? most * (uint64_t)world.size + 1 : 0;
}

/* ---- Paths ----------------------------------------------------------------------------------- */
static uint32_t count_paths(const gr_schedule *schedule, const uint32_t *first)
{
    uint32_t paths = 0;
    for (int peer = 0; peer < schedule->shape.world_size; peer++) {
        paths += first[peer] < first[peer + 1];
    }
    return paths;
}

/* Paths stand in the order of their peers. */
static void list_paths(const gr_simworld *world, gr_simrank *rank, int own, bool sending)
{
    const gr_schedule *schedule = rank->schedule;
    const uint32_t *first = sending ? schedule->send_first : schedule->recv_first;
    const uint32_t *steps = sending ? schedule->send_steps : schedule->recv_steps;
    gr_simpath *path = sending ? rank->out : rank->in;
    uint32_t index = 0;
    for (int peer = 0; peer < world->size; peer++) {
        if (first[peer] == first[peer + 1]) {
            continue;
        }
        *path++ = (gr_simpath){.peer = peer,
                               .local = world->host_of[peer] == world->host_of[own],
                               .first = first[peer],
                               .count = first[peer + 1] - first[peer]};
        for (uint32_t i = first[peer]; i < first[peer + 1]; i++) {
            rank->path_of[steps[i]] = index;
        }
        index++;
    }
}

static int compare_peer(const void *key, const void *path)
{
    return *(const int *)key - ((const gr_simpath *)path)->peer;
}

static gr_status join_paths(gr_simworld *world, const gr_algorithm *algorithm, gr_diag *diag)
{
    for (int own = 0; own < world->size; own++) {
        gr_simrank *rank = &world->ranks[own];
        for (uint32_t i = 0; i < rank->out_count; i++) {
            gr_simrank *peer = &world->ranks[rank->out[i].peer];
            gr_simpath *in =
                bsearch(&own, peer->in, peer->in_count, sizeof *peer->in, compare_peer);
            if (!in || in->count != rank->out[i].count) {
                return gr_fail(
                    diag, GR_E_BUG, "the plans of %s by %s do not match between ranks %d and %d",
                    gr_coll_name(algorithm->coll), algorithm->name, own, rank->out[i].peer);
            }
            rank->out[i].remote = (uint32_t)(in - peer->in);
            in->remote = i;
        }
    }
    return GR_OK;
}

/* ---- Plans ----------------------------------------------------------------------------------- */
static gr_status plan_rank(gr_simworld *world, const gr_algorithm *algorithm, int own,
                           gr_diag *diag)
{
    gr_simrank *rank = &world->ranks[own];
    gr_plan_shape shape = shape_of(world, algorithm, own);
    gr_plan plan;
    gr_plan_emit(algorithm, &shape, &plan);
    gr_status status = gr_plan_finish(&plan);
    if (status == GR_OK) {
        status = gr_schedule_create(&plan, &rank->schedule, diag);
    } else {
        status = gr_fail(diag, status, "%s by %s cannot be planned for rank %d of %d",
                         gr_coll_name(algorithm->coll), algorithm->name, own, world->size);
    }
    gr_plan_fini(&plan);
    if (status != GR_OK) {
        return status;
    }
    const gr_schedule *schedule = rank->schedule;
    rank->out_count = count_paths(schedule, schedule->send_first);
    rank->in_count = count_paths(schedule, schedule->recv_first);
    rank->out = calloc(rank->out_count + 1u, sizeof *rank->out);
    rank->in = calloc(rank->in_count + 1u, sizeof *rank->in);
    rank->path_of = calloc(schedule->step_count + 1u, sizeof *rank->path_of);
    if (!rank->out || !rank->in || !rank->path_of) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the plans of %d ranks", world->size);
    }
    list_paths(world, rank, own, true);
    list_paths(world, rank, own, false);
    world->steps += schedule->step_count;
    world->blocks = (int)schedule->blocks;
    return GR_OK;
}

gr_status gr_simworld_create(const gr_cluster *cluster, const gr_algorithm *algorithm,
                             gr_simworld **world_out, gr_diag *diag)
{
    gr_simworld *world = calloc(1, sizeof *world);
    if (!world) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a simulated world");
    }
    world->cluster = *cluster;
    world->coll = algorithm->coll;
    world->size = (int)(cluster->hosts * cluster->ranks_per_host);
    world->ranks = calloc((size_t)world->size, sizeof *world->ranks);
    gr_status status = world->ranks
                           ? place_ranks(world, diag)
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d ranks", world->size);
    for (int rank = 0; rank < world->size && status == GR_OK; rank++) {
        status = plan_rank(world, algorithm, rank, diag);
    }
    if (status == GR_OK) {
        status = join_paths(world, algorithm, diag);
    }
    if (status != GR_OK) {
        gr_simworld_destroy(world);
        return status;
    }
    *world_out = world;
    return GR_OK;
}

void gr_simworld_destroy(gr_simworld *world)
{
    if (!world) {
        return;
    }
    for (int rank = 0; world->ranks && rank < world->size; rank++) {
        gr_schedule_destroy(world->ranks[rank].schedule);
        free(world->ranks[rank].out);
        free(world->ranks[rank].in);
        free(world->ranks[rank].path_of);
    }
    free(world->ranks);
    gr_topology_destroy(world->topology);
    free(world);
}
