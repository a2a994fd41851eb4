/* SPDX-License-Identifier: Apache-2.0 */
#include "support_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 4000000 };

/* ---- Taking turns ---------------------------------------------------------------------------- */
static void give_turn(sim_job *job, int rank, int64_t until_us, bool listens)
{
    sim_rank *r = &job->ranks[rank];
    r->wakes_us = until_us;
    r->listens = listens;
    fiber_leave(r->fiber);
}

void sim_sleep(sim_job *job, int rank, int64_t until_us)
{
    give_turn(job, rank, until_us, false);
}

static void wait_for_news(void *job_arg, int rank, int64_t until_us)
{
    sim_job *job = job_arg;
    if (job->current == rank) {
        give_turn(job, rank, until_us, true);
    } else { /* outside of its body, a rank that is destroyed */
        gr_sim_advance(job->net, gr_sim_now_us(job->net) + 1);
    }
}

/* Whoever looks at the clock may find that it has gone on, and the others with it. */
static int64_t read_clock(void *job_arg)
{
    sim_job *job = job_arg;
    int rank = job->current;
    if (rank >= 0 && gr_sim_random(job->net, 100) < (uint64_t)job->interrupt_percent) {
        int64_t cost_us = (int64_t)gr_sim_random(job->net, (uint64_t)job->step_us + 1);
        cost_us *= rank == job->slow_rank ? job->slow_factor : 1;
        give_turn(job, rank, gr_sim_now_us(job->net) + cost_us, false);
    }
    return gr_sim_now_us(job->net);
}

static int64_t due_us(sim_job *job, int rank)
{
    const sim_rank *r = &job->ranks[rank];
    if (r->over || r->dead) {
        return GR_NEVER;
    }
    int64_t news_us = r->listens ? gr_sim_next_us(job->net, rank) : GR_NEVER;
    return news_us < r->wakes_us ? news_us : r->wakes_us;
}

/* The rank that is due first, any of them if several are due now; -1: nobody. */
static int pick(sim_job *job, int64_t *due_out)
{
    int64_t now_us = gr_sim_now_us(job->net);
    int best = -1;
    int64_t best_us = GR_NEVER;
    uint64_t ties = 0;
    for (int rank = 0; rank < job->size; rank++) {
        int64_t due = due_us(job, rank);
        due = due > now_us ? due : now_us;
        bool better = due < best_us;
        ties = better ? 1 : ties + (due == best_us);
        if (due != GR_NEVER && (better || (due == best_us && gr_sim_random(job->net, ties) == 0))) {
            best = rank;
            best_us = due;
        }
    }
    *due_out = best_us;
    return best;
}

/* One step of whoever is due first, at most until then; false: nobody is. */
static bool step_until(sim_job *job, int64_t until_us)
{
    int64_t due;
    int rank = pick(job, &due);
    if (job->event && job->event_us <= until_us && job->event_us <= due) {
        gr_sim_advance(job->net, job->event_us);
        job->event_us = GR_NEVER;
        job->event(job);
        return true;
    }
    if (rank < 0 || due > until_us) {
        return false;
    }
    gr_sim_advance(job->net, due);
    job->steps++;
    if (job->event) {
        job->event(job);
    }
    if (!job->ranks[rank].dead) {
        job->current = rank;
        fiber_enter(job->ranks[rank].fiber);
        job->current = -1;
    }
    return true;
}

static bool finished(const sim_job *job)
{
    for (int rank = 0; rank < job->size; rank++) {
        if (!job->ranks[rank].over && !job->ranks[rank].dead) {
            return false;
        }
    }
    return true;
}

bool sim_run(sim_job *job, int64_t until_us)
{
    while (!finished(job) && job->steps < STEPS_MAX && step_until(job, until_us)) {
    }
    return finished(job);
}

/* ---- Life ------------------------------------------------------------------------------------ */
static void run_body(void *rank_arg)
{
    sim_rank *r = rank_arg;
    r->job->body(r->job, (int)(r - r->job->ranks));
    r->over = true;
}

static gr_status open_links(sim_job *job, int rank, gr_diag *diag)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    sim_rank *r = &job->ranks[rank];
    gr_mesh_config mesh;
    gr_mesh_config_init(&mesh);
    mesh.kind = GR_LINK_SIM;
    mesh.ops = &gr_sim_ops;
    mesh.rank = rank;
    mesh.world_size = job->size;
    mesh.secret = secret;
    mesh.clock = (gr_clock){.now_us = read_clock, .clock_arg = job};
    mesh.net = job->net;
    gr_status status = gr_mesh_create(&mesh, &r->mesh, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_exec_config exec = {.mesh = r->mesh,
                           .rank = rank,
                           .world_size = job->size,
                           .op_timeout_us = job->op_timeout_us,
                           .segment_bytes = (int64_t)job->segment_bytes,
                           .slice_bytes = job->slice_bytes,
                           .scratch_bytes = job->scratch_bytes,
                           .clock = mesh.clock,
                           .channel = board_channel(&job->board, rank),
                           .owner = r->context};
    r->context->mesh = r->mesh;
    r->context->topology = job->topology;
    return gr_exec_create(&exec, &r->context->exec, diag);
}

/* As comm.c does it, with the simulated mesh for that of a group. */
static gr_status open_rank(sim_job *job, int rank, gr_diag *diag)
{
    sim_rank *r = &job->ranks[rank];
    gr_context *context = r->context = calloc(1, sizeof *context);
    int world[SIM_WORLD_MAX];
    for (int i = 0; i < job->size; i++) {
        world[i] = i;
    }
    if (!context || !(context->self_op = gr_op_create_finished())) {
        return GR_E_NO_MEMORY;
    }
    context->choosing = (gr_selection_config){
        .exact = job->exact, .segment_bytes = job->segment_bytes, .link = GR_LINK_SIM};
    gr_status status = open_links(job, rank, diag);
    if (status == GR_OK) {
        status = gr_comm_make(context, world, job->size, rank, 0, 0, &r->comms[0], diag);
    }
    gr_selection_config choosing = context->choosing;
    choosing.text = job->algorithm;
    choosing.world_size = job->size;
    if (status == GR_OK) {
        status = gr_selection_init(&r->comms[0]->selection, &choosing, diag);
    }
    r->job = job;
    r->fiber = fiber_create(run_body, r);
    return status == GR_OK && !r->fiber ? GR_E_NO_MEMORY : status;
}

bool sim_open(sim_job *job)
{
    gr_diag diag = {.text = "no memory"};
    job->current = -1;
    job->event_us = GR_NEVER;
    gr_status status = gr_sim_net_create(&job->net_config, &job->net, &diag);
    if (status == GR_OK) {
        gr_sim_on_wait(job->net, wait_for_news, job);
        board_open(&job->board, job->size, gr_sim_clock(job->net));
        status = gr_topology_create(job->host_of, job->size, &job->topology);
    }
    for (int rank = 0; rank < job->size && status == GR_OK; rank++) {
        status = open_rank(job, rank, &diag);
    }
    if (status != GR_OK) {
        printf("the job cannot be made: %s\n", diag.text);
    }
    return status == GR_OK;
}

static void close_links(sim_rank *r)
{
    if (r->context) {
        gr_comm_shm_destroy(r->context);
    }
    gr_mesh_destroy(r->mesh);
    r->mesh = NULL;
}

void sim_leave(sim_job *job, int rank)
{
    close_links(&job->ranks[rank]);
}

static void close_rank(sim_rank *r)
{
    fiber_destroy(r->fiber);
    for (int i = SIM_COMMS_MAX - 1; i >= 0 && r->context; i--) {
        if (r->comms[i]) {
            gr_comm_unmake(r->comms[i]);
        }
    }
    if (r->context) {
        gr_memory_fini(r->context);
    }
    close_links(r);
}

void sim_close(sim_job *job)
{
    for (int rank = 0; rank < job->size; rank++) {
        close_rank(&job->ranks[rank]);
    }
    gr_sim_net_destroy(job->net);
    for (int rank = 0; rank < job->size; rank++) { /* when nobody reads what operations lent */
        gr_context *context = job->ranks[rank].context;
        if (context) {
            gr_exec_destroy(context->exec);
            gr_op_destroy_finished(context->self_op);
            free(context);
        }
    }
    gr_topology_destroy(job->topology);
    board_close(&job->board);
}
