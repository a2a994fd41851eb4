/* SPDX-License-Identifier: Apache-2.0 */
#include "support_sim.h"

#include <stdio.h>
#include <string.h>

enum { STEPS_MAX = 4000000 };

static void wait_inside(void *world_arg, int rank, int64_t until_us);

/* ---- Life ------------------------------------------------------------------------------------ */
static const call_spec *calls_of(const sim_world *world, int rank)
{
    return world->other_calls && rank == world->other ? world->other_calls : world->calls;
}

static bool open_rank(sim_world *world, const gr_sim_config *config, size_t segment_bytes,
                      int window_segments, int64_t op_timeout_us, int rank)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    sim_rank *r = &world->ranks[rank];
    gr_diag diag;
    gr_mesh_config mesh;
    gr_mesh_config_init(&mesh);
    mesh.kind = GR_LINK_SIM;
    mesh.rank = rank;
    mesh.world_size = config->world_size;
    mesh.secret = secret;
    mesh.clock = gr_sim_clock(world->net);
    mesh.sim = world->net;
    gr_status status = gr_mesh_create(&mesh, &r->mesh, &diag);
    if (status == GR_OK) {
        gr_exec_config exec = {.mesh = r->mesh,
                               .rank = rank,
                               .world_size = config->world_size,
                               .op_timeout_us = op_timeout_us,
                               .segment_bytes = (int64_t)segment_bytes,
                               .window_bytes = (int64_t)segment_bytes * window_segments,
                               .clock = mesh.clock};
        status = gr_exec_create(&exec, &r->exec, &diag);
    }
    if (status != GR_OK) {
        printf("rank %d cannot be made: %s\n", rank, diag.text);
        return false;
    }
    r->starts_us = gr_sim_now_us(world->net) +
                   (int64_t)gr_sim_random(world->net, (uint64_t)world->think_us + 1);
    r->look_us = GR_NEVER;
    for (int i = 0; i < world->call_count; i++) {
        call_fill(&calls_of(world, rank)[i], rank, world->size, r->user[i]);
    }
    return true;
}

bool sim_open(sim_world *world, const gr_sim_config *config, size_t segment_bytes,
              int window_segments, int64_t op_timeout_us)
{
    gr_diag diag;
    memset(world->ranks, 0, sizeof world->ranks);
    world->size = config->world_size;
    world->steps = 0;
    world->event_us = GR_NEVER;
    if (gr_sim_net_create(config, &world->net, &diag) != GR_OK) {
        printf("the network cannot be made: %s\n", diag.text);
        return false;
    }
    gr_sim_on_wait(world->net, wait_inside, world);
    bool fine = true;
    for (int rank = 0; rank < world->size && fine; rank++) {
        fine = open_rank(world, config, segment_bytes, window_segments, op_timeout_us, rank);
    }
    return fine;
}

void sim_close(sim_world *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        gr_mesh_destroy(world->ranks[rank].mesh);
    }
    gr_sim_net_destroy(world->net);
    for (int rank = 0; rank < world->size; rank++) {
        sim_rank *r = &world->ranks[rank];
        gr_exec_destroy(r->exec);
        gr_programs_fini(&r->programs);
        for (int i = 0; i < world->call_count; i++) {
            call_free(r->user[i]);
        }
    }
}

/* ---- One step of one rank -------------------------------------------------------------------- */
static bool may_start(const sim_world *world, const sim_rank *r)
{
    return !r->absent && r->started < world->call_count &&
           (!world->one_at_a_time || r->finished == r->started);
}

static void start_next(sim_world *world, int rank)
{
    sim_rank *r = &world->ranks[rank];
    int at = r->started++;
    gr_diag diag;
    gr_status status = GR_E_COMM_BROKEN; /* as the communicator answers */
    if (gr_exec_diag(r->exec)->status == GR_OK) {
        status = call_start(&calls_of(world, rank)[at], rank, world->size, r->user[at],
                            &r->programs, r->exec, &r->ops[at], &diag);
    }
    if (status != GR_OK) {
        r->result[at] = status;
        r->ended_us[at] = gr_sim_now_us(world->net);
        r->finished++;
    }
    r->starts_us = gr_sim_now_us(world->net) +
                   (int64_t)gr_sim_random(world->net, (uint64_t)world->think_us + 1);
}

static void collect(sim_world *world, sim_rank *r)
{
    for (int i = 0; i < r->started; i++) {
        if (r->ops[i] && gr_op_finished(r->ops[i])) {
            r->result[i] = gr_op_release(r->ops[i]);
            r->ended_us[i] = gr_sim_now_us(world->net);
            r->ops[i] = NULL;
            r->finished++;
        }
    }
}

static void step(sim_world *world, int rank)
{
    sim_rank *r = &world->ranks[rank];
    int64_t now_us = gr_sim_now_us(world->net);
    world->steps++;
    if (world->event) {
        world->event(world);
        if (r->dead) {
            return;
        }
    }
    if (may_start(world, r) && r->starts_us <= now_us) {
        start_next(world, rank);
    }
    r->look_us = GR_NEVER;
    if (gr_exec_progress(r->exec)) {
        int64_t cost_us = (int64_t)gr_sim_random(world->net, (uint64_t)world->step_us + 1);
        r->busy_us = gr_sim_now_us(world->net) +
                     cost_us * (rank == world->slow_rank ? world->slow_factor : 1);
        r->look_us = r->busy_us;
    } else {
        r->look_us = gr_exec_look(r->exec, true);
    }
    collect(world, r);
    if (world->leaves && r->finished == world->call_count && r->mesh) {
        gr_mesh_destroy(r->mesh);
        r->mesh = NULL;
    }
}

/* ---- Who is next ----------------------------------------------------------------------------- */
static bool is_done(const sim_world *world, const sim_rank *r)
{
    return r->dead || r->absent || r->finished == world->call_count;
}

bool sim_finished(const sim_world *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        if (!is_done(world, &world->ranks[rank])) {
            return false;
        }
    }
    return true;
}

static int64_t due_us(const sim_world *world, int rank)
{
    const sim_rank *r = &world->ranks[rank];
    if (is_done(world, r) || r->waits) {
        return GR_NEVER;
    }
    int64_t due = GR_NEVER;
    if (r->finished < r->started) { /* something is in flight */
        due = gr_sim_next_us(world->net, rank);
        due = r->look_us < due ? r->look_us : due;
    }
    if (may_start(world, r) && r->starts_us < due) {
        due = r->starts_us;
    }
    return due > r->busy_us ? due : r->busy_us;
}

/* The rank that is due first, any of them if several are due now; -1: nobody. */
static int pick(sim_world *world, int64_t *due_out)
{
    int64_t now_us = gr_sim_now_us(world->net);
    int best = -1;
    int64_t best_us = GR_NEVER;
    uint64_t ties = 0;
    for (int rank = 0; rank < world->size; rank++) {
        int64_t due = due_us(world, rank);
        due = due > now_us ? due : now_us;
        bool better = due < best_us;
        ties = better ? 1 : ties + (due == best_us);
        if (due != GR_NEVER &&
            (better || (due == best_us && gr_sim_random(world->net, ties) == 0))) {
            best = rank;
            best_us = due;
        }
    }
    *due_out = best_us;
    return best;
}

/* One step of whoever is due first, at most until then; false: nobody is. */
static bool step_until(sim_world *world, int64_t until_us)
{
    int64_t due;
    int rank = pick(world, &due);
    if (world->event && world->event_us <= until_us && world->event_us <= due) {
        gr_sim_advance(world->net, world->event_us);
        world->event_us = GR_NEVER;
        world->event(world);
        return true;
    }
    if (rank < 0 || due > until_us) {
        return false;
    }
    gr_sim_advance(world->net, due);
    step(world, rank);
    return true;
}

/* The rank sleeps inside its executor: the others go on below it on the stack, until it has news of
 * its own. Whoever sleeps is not entered again, so that the depth is bounded. */
static void wait_inside(void *world_arg, int rank, int64_t until_us)
{
    sim_world *world = world_arg;
    world->ranks[rank].waits = true;
    for (;;) {
        int64_t own_us = gr_sim_next_us(world->net, rank);
        own_us = own_us < until_us ? own_us : until_us;
        if (own_us <= gr_sim_now_us(world->net) || world->steps >= STEPS_MAX ||
            !step_until(world, own_us)) {
            gr_sim_advance(world->net, own_us);
            break;
        }
    }
    world->ranks[rank].waits = false;
}

bool sim_run(sim_world *world, int64_t until_us)
{
    while (!sim_finished(world) && world->steps < STEPS_MAX && step_until(world, until_us)) {
    }
    return sim_finished(world);
}
