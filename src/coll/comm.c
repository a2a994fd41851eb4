/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/comm.h"
#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/comm_tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Life ------------------------------------------------------------------------------------ */
/* A thread of our own pays where the kernel moves bytes only when asked, and where there is a core
 * for it. Where every core computes, it costs: 4 MiB over tcp beside 3 ms of computing took 1.4 ms
 * more with it and 0.9 ms without; over shm there was no difference (gradus bench --compute). */
static bool wants_thread(const gr_comm *comm, const gr_group_config *config)
{
    if (config->progress != GR_PROGRESS_AUTO) {
        return config->progress == GR_PROGRESS_THREAD;
    }
    cpu_set_t cores;
    int core_count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return comm->context->choosing.link == GR_LINK_TCP && core_count > comm->local_size;
}

static const char *host_name(const void *family_arg, int rank)
{
    const gr_context *context = family_arg;
    return gr_group_host_name(context->group, rank);
}

static bool send_report(void *context_arg, const gr_op_report *report)
{
    const gr_context *context = context_arg;
    return gr_group_send_report(context->group, report);
}

static bool next_report(void *context_arg, gr_op_report *report_out)
{
    const gr_context *context = context_arg;
    bool news = gr_mesh_control_ready(context->mesh);
    bool found = gr_group_next_report(context->group, news, report_out);
    if (news && !gr_group_has_coordinator(context->group)) {
        gr_mesh_expect_no_notice(context->mesh);
    }
    return found;
}

/* Which link the ranks use, and where they run. */
static void note_places(gr_context *context)
{
    context->choosing.link = gr_group_link_kind(context->group);
    context->choosing.rails = gr_group_rails(context->group);
    context->topology = gr_group_topology(context->group);
    gr_group_watch_reports(context->group);
}

static gr_status form_group(gr_context *context, const gr_group_config *config, gr_diag *diag)
{
    return context->group ? gr_group_renew(context->group, config, &context->log, diag)
                          : gr_group_join(config, &context->log, &context->group, diag);
}

static gr_status join_others(gr_context *context, const gr_group_config *config, gr_diag *diag)
{
    /* Before anything starts, and in a group of one as well: is the choice one at all? */
    int world_size = config->rank < 0 ? 1 : (int)config->world_size;
    gr_select_rules rules;
    gr_status status = gr_select_rules_parse(&rules, config->algorithm ? config->algorithm : "",
                                             config->exact, world_size, diag);
    if (status == GR_OK) {
        status = form_group(context, config, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    context->mesh = gr_group_mesh(context->group);
    bool alone = !context->mesh;
    context->choosing = (gr_selection_config){.exact = config->exact,
                                              .segment_bytes = (size_t)config->segment_bytes,
                                              .log = &context->log};
    if (alone) {
        status = gr_mesh_create_self(&context->log, &context->self_mesh, diag);
        context->mesh = context->self_mesh;
    } else {
        note_places(context);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_exec_config exec_config = {
        .mesh = context->mesh,
        .rank = gr_group_rank(context->group),
        .world_size = gr_group_size(context->group),
        .op_timeout_us = config->stall_fail_us > 0 ? config->stall_fail_us : config->op_timeout_us,
        .stall_warn_us = config->stall_warn_us,
        .segment_bytes = config->segment_bytes,
        .clock = gr_clock_real(),
        .log = &context->log,
        .owner = context,
        .record = config->record,
        .may_start = gr_context_may_start,
        .host_name = alone ? NULL : host_name,
        .host_arg = context};
    if (!alone) {
        exec_config.channel =
            (gr_diagnosis_channel){.send = send_report, .next = next_report, .arg = context};
    }
    return gr_exec_create(&exec_config, &context->exec, diag);
}

static void note_step(const gr_context *context, uint64_t step)
{
    gr_flight_recorder_note(gr_exec_record(context->exec), gr_group_generation(context->group),
                            step);
}

/* The communicator works: what comes now is the program's own. */
static void note_begin(const gr_context *context)
{
    gr_exec_startup_over(context->exec);
    note_step(context, 0);
}

void gr_context_destroy(gr_context *context, bool leave)
{
    if (!context) {
        return;
    }
    gr_comm_thread_stop(context);
    if (context->exec) {
        gr_exec_cancel(context->exec);
    }
    gr_context_detach_persistent(context, NULL);
    gr_memory_fini(context);
    gr_comm_shm_destroy(context);
    if (leave) { /* the mesh first: it may still read what operations lent it */
        gr_group_leave(context->group);
    } else {
        gr_group_unlink(context->group);
    }
    gr_mesh_destroy(context->self_mesh);
    gr_context_call_back_last(context); /* now the buffers are not in use any more */
    gr_exec_destroy(context->exec);
    gr_timeline_close(context->timeline);
    gr_op_destroy_finished(context->self_op);
    gr_fork_close(context->event_fd);
    gr_arena_fini(&context->texts);
    free(context);
}

/* In the next generation of `group`, which is the context's from now on, also on failure; NULL: in
 * a group that it joins. */
static gr_status create_context(const gr_group_config *config, gr_group *group,
                                gr_context **context_out, gr_diag *diag)
{
    gr_context *context = calloc(1, sizeof *context);
    if (!context) {
        gr_group_leave(group);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
    }
    context->group = group;
    context->event_fd = -1;
    context->forks = gr_fork_count();
    gr_diag_clear(&context->fine);
    context->log = (gr_log){.level = (gr_log_level)config->log_level,
                            .sink = config->log_sink ? config->log_sink : gr_log_to_file,
                            .sink_arg = config->log_sink ? config->log_arg : stderr};
    context->self_op = gr_op_create_finished();
    gr_arena_init(&context->texts, GR_COMM_CONFIG_BYTES_MAX);
    gr_status status = context->self_op
                           ? gr_group_config_keep(config, &context->texts, &context->config, diag)
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
    if (status == GR_OK) {
        status = join_others(context, config, diag);
    }
    if (status != GR_OK) {
        gr_context_destroy(context, true);
        return status;
    }
    *context_out = context;
    return GR_OK;
}

void gr_comm_free(gr_comm *comm)
{
    if (!comm) {
        return;
    }
    gr_schedules_fini(&comm->schedules);
    gr_topology_destroy(comm->topology);
    free(comm->world);
    free(comm);
}

/* Where the members run. */
static gr_status place(gr_comm *comm)
{
    const gr_topology *all = comm->context->topology;
    uint64_t *hosts = calloc((size_t)comm->size, sizeof *hosts);
    for (int i = 0; hosts && i < comm->size; i++) {
        hosts[i] = (uint64_t)all->host_of[comm->world[i]];
    }
    gr_status status =
        hosts ? gr_topology_create(hosts, comm->size, &comm->topology) : GR_E_NO_MEMORY;
    free(hosts);
    if (status == GR_OK) {
        const gr_topology *topology = comm->topology;
        comm->local_rank = topology->local_rank[comm->rank];
        comm->local_size = topology->local_size[topology->host_of[comm->rank]];
    }
    return status;
}

gr_status gr_comm_make(gr_context *context, const int *world, int size, int rank, uint16_t id,
                       uint32_t serial, gr_comm **comm_out, gr_diag *diag)
{
    gr_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        goto undo_nothing;
    }
    comm->world = calloc((size_t)size, sizeof *comm->world);
    if (!comm->world) {
        goto undo_comm;
    }
    memcpy(comm->world, world, (size_t)size * sizeof *world);
    comm->context = context;
    comm->rank = rank;
    comm->size = size;
    comm->local_size = 1;
    comm->group = (gr_exec_group){.id = id,
                                  .rank = rank,
                                  .size = size,
                                  .world = comm->world,
                                  .outcome = serial > 0 ? &comm->outcome : NULL,
                                  .serial = serial};
    if (context->topology && place(comm) != GR_OK) {
        goto undo_comm;
    }
    if (serial > 0) {
        if (gr_exec_group_open(context->exec, &comm->group, diag) != GR_OK) {
            goto undo_comm;
        }
        gr_comm_thread_wake(context); /* from now on it looks for the group's end, too */
    }
    context->ids[id / 64] |= UINT64_C(1) << id % 64;
    context->comms++;
    *comm_out = comm;
    return GR_OK;

undo_comm:
    gr_comm_free(comm);
undo_nothing:
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator of %d ranks", size);
}

void gr_comm_unmake(gr_comm *comm)
{
    gr_context *context = comm->context;
    gr_context_detach_persistent(context, comm);
    gr_comm_shm_close(comm);
    (void)gr_exec_group_close(context->exec, &comm->group);
    context->ids[comm->group.id / 64] &= ~(UINT64_C(1) << comm->group.id % 64);
    context->comms--;
    gr_comm_free(comm);
}

/* The job's own communicator: every rank at its place. */
static gr_status create_whole(gr_context *context, const gr_group_config *config,
                              gr_comm **comm_out, gr_diag *diag)
{
    int size = context->group ? gr_group_size(context->group) : 1;
    int *world = calloc((size_t)size, sizeof *world);
    if (!world) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator of %d ranks", size);
    }
    for (int i = 0; i < size; i++) {
        world[i] = i;
    }
    gr_comm *comm = NULL;
    gr_status status =
        gr_comm_make(context, world, size, context->group ? gr_group_rank(context->group) : 0, 0, 0,
                     &comm, diag);
    free(world);
    if (status != GR_OK) {
        return status;
    }
    /* At the beginning whoever started us knows better. */
    bool first = context->group && gr_group_generation(context->group) == 1;
    if (config->rank >= 0 && config->local_size > 0 && first) {
        comm->local_size = (int)config->local_size;
        comm->local_rank = (int)config->local_rank;
    }
    gr_selection_config choosing = context->choosing;
    choosing.text = config->algorithm;
    choosing.world_size = size;
    status = gr_selection_init(&comm->selection, &choosing, diag);
    if (status != GR_OK) {
        gr_comm_free(comm);
        return status;
    }
    *comm_out = comm;
    return GR_OK;
}

/* What is measured at the start stays out of it. */
static gr_status open_timeline(gr_comm *comm, const gr_group_config *config, gr_diag *diag)
{
    gr_context *context = comm->context;
    if (context->timeline) { /* it goes on */
        gr_exec_set_timeline(context->exec, context->timeline);
        return GR_OK;
    }
    const char *host = context->group ? gr_group_host_name(context->group, comm->rank) : NULL;
    int number = config->rank < 0 ? comm->rank : (int)config->rank; /* of this process alone */
    gr_status status = gr_timeline_open(config->timeline, number, comm->size, host, &context->log,
                                        &context->timeline, diag);
    if (status == GR_OK) {
        gr_exec_set_timeline(context->exec, context->timeline);
    }
    return status;
}

/* Ends a context, of which the group and the timeline stay. */
static void end_generation(gr_context *context, gr_group **group_out, gr_timeline **timeline_out)
{
    *group_out = context->group;
    *timeline_out = context->timeline;
    context->timeline = NULL;
    gr_context_destroy(context, false);
}

gr_selection *gr_comm_selection(gr_comm *comm)
{
    return &comm->selection;
}

const gr_topology *gr_comm_topology(const gr_comm *comm)
{
    return comm->topology;
}

/* The first communicator of a context, which works then. */
static gr_status open_context(gr_context *context, const gr_group_config *config,
                              gr_comm **comm_out, gr_diag *diag)
{
    gr_status status = create_whole(context, config, comm_out, diag);
    if (status == GR_OK && context->mesh) { /* links to more ranks than can meet may come later */
        const gr_comm *comm = *comm_out;
        gr_shm_meeting meeting = gr_shm_coll_meet(context->mesh, comm->size, comm->world);
        status = gr_comm_shm_open(*comm_out, 0, meeting, diag);
    }
    return status;
}

/* What there can be only once in a process. */
static gr_status begin(gr_comm *comm, const gr_group_config *config, gr_diag *diag)
{
    gr_context *context = comm->context;
    gr_status status = GR_OK;
    if (config->timeline && config->timeline[0]) {
        status = open_timeline(comm, config, diag);
    }
    if (status == GR_OK && !context->self_mesh && wants_thread(comm, config)) {
        status = gr_comm_thread_start(context, diag);
    }
    return status;
}

/* `group` and `timeline`: of the generation before, or NULL; taken, also on failure. */
static gr_status create(const gr_group_config *config, gr_group *group, gr_timeline *timeline,
                        gr_comm **comm_out, gr_diag *diag)
{
    gr_context *context = NULL;
    gr_comm *comm = NULL;
    gr_status status = create_context(config, group, &context, diag);
    if (status != GR_OK) {
        gr_timeline_close(timeline);
        return status;
    }
    context->timeline = timeline;
    status = open_context(context, config, &comm, diag);
    /* What tuning measures is not in the timeline, and runs without a thread. */
    if (status == GR_OK) {
        status = gr_tune_comm(comm, config, diag);
    }
    if (status == GR_OK) {
        status = begin(comm, config, diag);
    }
    if (gr_fault_of_peer(status) && gr_group_elastic(config)) {
        /* A member died in what the others did first: without it, then. */
        end_generation(context, &group, &timeline);
        gr_comm_free(comm);
        return create(config, group, timeline, comm_out, diag);
    }
    if (status != GR_OK) {
        gr_context_destroy(context, true);
        gr_comm_free(comm);
        return status;
    }
    note_begin(context);
    *comm_out = comm;
    return GR_OK;
}

gr_status gr_comm_create_from(const gr_group_config *config, gr_comm **comm_out, gr_diag *diag)
{
    return create(config, NULL, NULL, comm_out, diag);
}

gr_status gr_comm_renew(gr_comm **comm, gr_diag *diag)
{
    if (!comm || !*comm) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_renew: there is no communicator");
    }
    gr_context *context = (*comm)->context;
    gr_status status = gr_context_enter(context, true);
    bool fixed = context->self_mesh && !gr_group_elastic(&context->config);
    if (status == GR_OK && (context->comms > 1 || fixed)) {
        status = gr_fail(diag, GR_E_INVALID,
                         !fixed ? "gr_comm_renew: %d sub-groups of the communicator are not "
                                  "destroyed yet"
                                : "gr_comm_renew: a group of one has nobody to lose",
                         context->comms - 1);
        gr_context_leave(context);
        return status;
    }
    if (status != GR_OK) {
        if (diag) {
            *diag = *gr_comm_last_error(*comm);
        }
        return status;
    }
    gr_group *group;
    gr_timeline *timeline;
    gr_group_config config = context->config;
    gr_arena texts = context->texts;
    gr_arena_init(&context->texts, 0);
    gr_context_leave(context);
    end_generation(context, &group, &timeline);
    gr_comm_free(*comm);
    *comm = NULL;
    status = create(&config, group, timeline, comm, diag);
    gr_arena_fini(&texts);
    return status;
}

/* Entered. What has ended is over soon, or everything ends. */
static void wait_for_stopped(const gr_comm *comm)
{
    gr_context *context = comm->context;
    gr_op *op;
    while ((op = gr_exec_group_unfinished(context->exec, &comm->group)) != NULL) {
        gr_context_wait(context, &op, 1, GR_NEVER);
        gr_context_leave_calling(context);
        gr_context_reenter(context);
    }
}

/* What the communicator left unfinished cannot be finished by its peers either: it is the end of
 * its context, too. What is finished is fetched, so that its place is free again. */
static void end_operations(gr_comm *comm)
{
    gr_context *context = comm->context;
    wait_for_stopped(comm);
    if (gr_exec_group_close(context->exec, &comm->group) == 0) {
        return;
    }
    gr_diag diag;
    (void)gr_fail_peer(
        &diag, GR_E_COMM_BROKEN, comm->world[comm->rank],
        "rank %d destroyed a sub-group of %d ranks with an operation in flight; wait "
        "for all operations first",
        comm->world[comm->rank], comm->size);
    gr_exec_fail(context->exec, &diag);
    (void)gr_exec_group_close(context->exec, &comm->group); /* now all are over */
}

/* Entered. Runs the callbacks that are left; those that another thread runs are waited for. */
static void call_back(gr_context *context)
{
    while (context->deliverer != 0) {
        gr_context_follow(context, GR_NEVER);
    }
    (void)gr_context_leave_calling(context);
    gr_context_reenter(context);
}

void gr_comm_destroy(gr_comm *comm)
{
    if (!comm || gr_context_is_forked(comm->context) ||
        gr_context_enter(comm->context, true) != GR_OK) {
        return;
    }
    gr_context *context = comm->context;
    if (context->comms > 1) {
        end_operations(comm);
        comm->closed = true;
        call_back(context);
    }
    bool last = context->comms == 1; /* also if another thread destroyed the others meanwhile */
    if (!last) {
        gr_comm_unmake(comm);
    }
    gr_context_leave(context);
    if (last) {
        gr_context_destroy(context, true);
        gr_comm_free(comm);
    }
}

/* ---- Questions ------------------------------------------------------------------------------- */
int gr_comm_rank(const gr_comm *comm)
{
    return comm ? comm->rank : -1;
}

int gr_comm_size(const gr_comm *comm)
{
    return comm ? comm->size : 0;
}

int gr_comm_local_rank(const gr_comm *comm)
{
    return comm ? comm->local_rank : -1;
}

int gr_comm_local_size(const gr_comm *comm)
{
    return comm ? comm->local_size : 0;
}

const gr_diag *gr_comm_no_comm(void)
{
    static const gr_diag none = {
        .status = GR_E_INVALID, .peer_rank = -1, .text = "the communicator is NULL"};
    return &none;
}

const gr_diag *gr_comm_diag(const gr_comm *comm)
{
    if (!comm) {
        return gr_comm_no_comm();
    }
    const gr_context *context = comm->context;
    if (atomic_load_explicit(&comm->outcome.ended, memory_order_acquire)) {
        return &comm->outcome.diag;
    }
    const gr_diag *failure = gr_exec_first_failure(context->exec);
    return failure ? failure : &context->fine;
}

gr_status gr_comm_skew(gr_comm *comm, int rank, gr_skew *skew_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status != GR_OK) {
        return status;
    }
    gr_skew skew = {.operations = 0};
    gr_diag diag;
    if (!skew_out) {
        (void)gr_fail(&diag, GR_E_INVALID, "gr_comm_skew on rank %d: skew_out is NULL", comm->rank);
        status = gr_context_note(context, &diag);
    } else if (rank < 0 || rank >= comm->size) {
        (void)gr_fail(&diag, GR_E_INVALID,
                      "gr_comm_skew on rank %d: there is no rank %d among %d ranks", comm->rank,
                      rank, comm->size);
        status = gr_context_note(context, &diag);
    } else if (rank != comm->rank) {
        gr_exec_skew kept;
        gr_exec_get_skew(context->exec, comm->world[rank], &kept);
        skew = (gr_skew){.operations = kept.count,
                         .mean_us = kept.mean_us,
                         .recent_us = kept.recent_us,
                         .max_us = kept.max_us};
    }
    gr_context_leave(context);
    if (status == GR_OK) {
        *skew_out = skew;
    }
    return status;
}

int gr_comm_change_wanted(gr_comm *comm)
{
    if (!comm || !comm->context->group || gr_context_is_forked(comm->context)) {
        return 0;
    }
    return gr_group_change_wanted(comm->context->group);
}

gr_timeline *gr_comm_timeline(const gr_comm *comm)
{
    return comm->context->timeline;
}

void gr_comm_set_step(gr_comm *comm, uint64_t step)
{
    note_step(comm->context, step);
}

uint64_t gr_comm_generation(const gr_comm *comm)
{
    return comm->context->group ? gr_group_generation(comm->context->group) : 1;
}

gr_status gr_comm_check_members(gr_comm *comm)
{
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status == GR_OK) {
        gr_exec_check_members(context->exec);
        status = (gr_status)gr_exec_diag(context->exec)->status;
        gr_context_leave(context);
    }
    return status;
}

const char *gr_comm_host_name(const gr_comm *comm, int rank)
{
    const gr_group *group = comm->context->group;
    return group != NULL ? gr_group_host_name(group, rank) : "";
}

const char *gr_comm_link_name(const gr_comm *comm)
{
    const gr_context *context = comm->context;
    return context->self_mesh ? "none" : gr_link_kind_name(context->choosing.link);
}
