/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/comm.h"
#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 64 << 10 };

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
    return comm->family->choosing.link == GR_LINK_TCP && core_count > comm->local_size;
}

static const char *host_name(const void *family_arg, int rank)
{
    const gr_family *family = family_arg;
    return gr_group_host_name(family->group, rank);
}

static gr_status form_group(gr_family *family, const gr_group_config *config, gr_diag *diag)
{
    if (family->beside) {
        return gr_group_prepare(family->beside, config, &family->log, &family->group, diag);
    }
    return family->group ? gr_group_renew(family->group, config, &family->log, diag)
                         : gr_group_join(config, &family->log, &family->group, diag);
}

static gr_status join_others(gr_family *family, const gr_group_config *config, gr_diag *diag)
{
    /* Before anything starts, and in a group of one as well: is the choice one at all? */
    int world_size = config->rank < 0 ? 1 : (int)config->world_size;
    gr_select_rules rules;
    gr_status status = gr_select_rules_parse(&rules, config->algorithm ? config->algorithm : "",
                                             config->exact, world_size, diag);
    if (status == GR_OK) {
        status = form_group(family, config, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    family->mesh = gr_group_mesh(family->group);
    family->choosing = (gr_selection_config){.exact = config->exact,
                                             .segment_bytes = (size_t)config->segment_bytes,
                                             .log = &family->log};
    if (!family->mesh) {
        char why[128];
        const char *in = family->beside ? NULL : config->record;
        family->record = config->record ? gr_record_create(in, why) : NULL;
        return GR_OK;
    }
    family->choosing.link = gr_group_link_kind(family->group);
    family->choosing.streams = gr_group_streams(family->group);
    family->topology = gr_group_topology(family->group);
    gr_exec_config exec_config = {
        .mesh = family->mesh,
        .rank = gr_group_rank(family->group),
        .world_size = gr_group_size(family->group),
        .op_timeout_us = config->stall_fail_us > 0 ? config->stall_fail_us : config->op_timeout_us,
        .stall_warn_us = config->stall_warn_us,
        .segment_bytes = config->segment_bytes,
        .clock = gr_clock_real(),
        .log = &family->log,
        .owner = family,
        .record = family->beside ? NULL : config->record,
        .host_name = host_name,
        .host_arg = family};
    return gr_exec_create(&exec_config, &family->exec, diag);
}

static void note_step(const gr_family *family, uint64_t step)
{
    gr_record *record = family->exec ? gr_exec_record(family->exec) : family->record;
    if (record) {
        gr_record_note(record, gr_group_generation(family->group), step);
    }
}

void gr_family_destroy(gr_family *family, bool leave)
{
    if (!family) {
        return;
    }
    gr_comm_next_drop(family);
    gr_comm_thread_stop(family);
    gr_memory_fini(family);
    gr_comm_lanes_destroy(family);
    if (leave) { /* the mesh first: it may still read what operations lent it */
        gr_group_leave(family->group);
    } else {
        gr_group_unlink(family->group);
    }
    gr_exec_destroy(family->exec);
    gr_record_destroy(family->record);
    gr_timeline_close(family->timeline);
    gr_op_destroy_finished(family->alone);
    gr_arena_fini(&family->arena);
    free(family);
}

/* For the next generation. Its secret the group has. */
static gr_status keep_config(gr_family *family, const gr_group_config *config, gr_diag *diag)
{
    gr_group_config *kept = &family->config;
    *kept = *config;
    const char **texts[] = {&kept->coordinator, &kept->host, &kept->interfaces, &kept->ports,
                            &kept->algorithm,   &kept->tune, &kept->record,     &kept->timeline};
    kept->secret_hex = kept->secret_file = NULL;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (*texts[i] && !(*texts[i] = gr_arena_printf(&family->arena, "%s", *texts[i]))) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
        }
    }
    return GR_OK;
}

gr_status gr_family_create(const gr_group_config *config, gr_group *group, gr_group *beside,
                           gr_family **family_out, gr_diag *diag)
{
    gr_family *family = calloc(1, sizeof *family);
    if (!family) {
        gr_group_leave(group);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
    }
    family->group = group;
    family->beside = beside;
    gr_arena_init(&family->arena, CONFIG_BYTES_MAX);
    gr_diag_clear(&family->fine);
    gr_diag_clear(&family->last);
    (void)gr_fail(&family->intrusion, GR_E_INVALID,
                  "rank %d: two calls use a communicator at the same time; it and its sub-groups "
                  "belong to one thread at a time, and a reduction function must not call Gradus",
                  config->rank < 0 ? 0 : (int)config->rank);
    family->log = (gr_log){
        .level = (gr_log_level)config->log_level, .sink = gr_log_to_file, .sink_arg = stderr};
    family->alone = gr_op_create_finished();
    gr_status status = family->alone
                           ? keep_config(family, config, diag)
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
    if (status == GR_OK) {
        status = join_others(family, config, diag);
    }
    if (status != GR_OK) {
        gr_family_destroy(family, true);
        return status;
    }
    *family_out = family;
    return GR_OK;
}

void gr_comm_free(gr_comm *comm)
{
    gr_programs_fini(&comm->programs);
    gr_topology_destroy(comm->topology);
    free(comm->world);
    free(comm);
}

/* Where the members run. */
static gr_status place(gr_comm *comm)
{
    const gr_topology *all = comm->family->topology;
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

gr_status gr_comm_make(gr_family *family, const int *world, int size, int rank, uint16_t id,
                       gr_comm **comm_out, gr_diag *diag)
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
    comm->family = family;
    comm->rank = rank;
    comm->size = size;
    comm->local_size = 1;
    comm->group = (gr_exec_group){.id = id, .rank = rank, .size = size, .world = comm->world};
    if (family->mesh && place(comm) != GR_OK) {
        goto undo_comm;
    }
    family->ids[id / 64] |= UINT64_C(1) << id % 64;
    family->comms++;
    *comm_out = comm;
    return GR_OK;

undo_comm:
    gr_comm_free(comm);
undo_nothing:
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator of %d ranks", size);
}

gr_status gr_comm_create(gr_comm **comm_out, gr_diag *diag)
{
    gr_arena arena;
    gr_arena_init(&arena, CONFIG_BYTES_MAX);
    gr_group_config config;
    gr_status status = gr_group_config_from_env(&config, &arena, diag);
    if (status == GR_OK) {
        status = gr_comm_create_from(&config, comm_out, diag);
        gr_group_config_wipe(&config);
    }
    gr_arena_fini(&arena);
    return status;
}

void gr_comm_unmake(gr_comm *comm)
{
    gr_family *family = comm->family;
    gr_comm_lane_close(comm);
    family->ids[comm->group.id / 64] &= ~(UINT64_C(1) << comm->group.id % 64);
    family->comms--;
    gr_comm_free(comm);
}

/* The job's own communicator: every rank at its place. */
static gr_status create_whole(gr_family *family, const gr_group_config *config, gr_comm **comm_out,
                              gr_diag *diag)
{
    int size = family->group ? gr_group_size(family->group) : 1;
    int *world = calloc((size_t)size, sizeof *world);
    if (!world) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator of %d ranks", size);
    }
    for (int i = 0; i < size; i++) {
        world[i] = i;
    }
    gr_comm *comm = NULL;
    gr_status status = gr_comm_make(
        family, world, size, family->group ? gr_group_rank(family->group) : 0, 0, &comm, diag);
    free(world);
    if (status != GR_OK) {
        return status;
    }
    /* At the beginning whoever started us knows better. */
    bool first = family->group && gr_group_generation(family->group) == 1;
    if (config->rank >= 0 && config->local_size > 0 && first) {
        comm->local_size = (int)config->local_size;
        comm->local_rank = (int)config->local_rank;
    }
    gr_selection_config choosing = family->choosing;
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
    gr_family *family = comm->family;
    if (family->timeline) { /* it goes on */
        if (family->exec) {
            gr_exec_set_timeline(family->exec, family->timeline);
        }
        return GR_OK;
    }
    const char *host = family->group ? gr_group_host_name(family->group, comm->rank) : NULL;
    int number = config->rank < 0 ? comm->rank : (int)config->rank; /* of this process alone */
    gr_status status = gr_timeline_open(config->timeline, number, comm->size, host, &family->log,
                                        &family->timeline, diag);
    if (status == GR_OK && family->exec) {
        gr_exec_set_timeline(family->exec, family->timeline);
    }
    return status;
}

/* Ends a family, of which the group and the timeline stay. */
static void end_generation(gr_family *family, gr_group **group_out, gr_timeline **timeline_out)
{
    *group_out = family->group;
    *timeline_out = family->timeline;
    family->timeline = NULL;
    gr_family_destroy(family, false);
}

gr_status gr_family_open(gr_family *family, const gr_group_config *config, const gr_model *before,
                         gr_comm **comm_out, gr_diag *diag)
{
    gr_status status = create_whole(family, config, comm_out, diag);
    if (status == GR_OK) {
        status = gr_comm_lane_open(*comm_out, 0, diag);
    }
    return status == GR_OK ? gr_tune_start(*comm_out, config, before, diag) : status;
}

gr_status gr_family_begin(gr_comm *comm, const gr_group_config *config, gr_diag *diag)
{
    gr_family *family = comm->family;
    gr_status status = GR_OK;
    if (config->timeline && config->timeline[0]) {
        status = open_timeline(comm, config, diag);
    }
    if (status == GR_OK && family->exec && wants_thread(comm, config)) {
        status = gr_comm_thread_start(family, diag);
    }
    return status;
}

/* `group` and `timeline`: of the generation before, or NULL; taken, also on failure. */
static gr_status create(const gr_group_config *config, gr_group *group, gr_timeline *timeline,
                        gr_comm **comm_out, gr_diag *diag)
{
    gr_family *family = NULL;
    gr_comm *comm = NULL;
    gr_status status = gr_family_create(config, group, NULL, &family, diag);
    if (status != GR_OK) {
        gr_timeline_close(timeline);
        return status;
    }
    family->timeline = timeline;
    status = gr_family_open(family, config, NULL, &comm, diag);
    if (status == GR_OK) {
        status = gr_family_begin(comm, config, diag);
    }
    if (gr_fault_of_peer(status) && gr_group_elastic(config)) {
        /* A member died in what the others did first: without it, then. */
        end_generation(family, &group, &timeline);
        gr_comm_free(comm);
        return create(config, group, timeline, comm_out, diag);
    }
    if (status != GR_OK) {
        gr_family_destroy(family, true);
        gr_comm_free(comm);
        return status;
    }
    note_step(family, 0);
    *comm_out = comm;
    return GR_OK;
}

/* What was prepared takes the place of what was: whose `group` and `timeline` are taken,
 * also on failure. */
static gr_status go_over(gr_comm *next, const gr_group_config *config, gr_group *group,
                         gr_timeline *timeline, gr_comm **comm_out, gr_diag *diag)
{
    gr_family *family = next->family;
    gr_group_go_over(group, family->group, &family->log);
    family->group = group;
    family->beside = NULL;
    family->timeline = timeline;
    if (config->record && family->exec) {
        gr_exec_record_in(family->exec, config->record);
    } else if (family->record) {
        char why[128];
        family->record = gr_record_move(family->record, config->record, why);
    }
    gr_status status = gr_family_begin(next, config, diag);
    if (status != GR_OK) {
        gr_family_destroy(family, true);
        gr_comm_free(next);
        return status;
    }
    note_step(family, 0);
    *comm_out = next;
    return GR_OK;
}

gr_status gr_comm_create_from(const gr_group_config *config, gr_comm **comm_out, gr_diag *diag)
{
    return create(config, NULL, NULL, comm_out, diag);
}

gr_status gr_comm_renew_from(const gr_group_config *config, gr_comm **comm, gr_diag *diag)
{
    gr_family *family = (*comm)->family;
    gr_status status = gr_family_enter(family, true);
    bool fixed = !family->mesh && !gr_group_elastic(config);
    if (status == GR_OK && (family->comms > 1 || fixed)) {
        status = gr_fail(diag, GR_E_INVALID,
                         !fixed ? "gr_comm_renew: %d sub-groups of the communicator are not "
                                  "destroyed yet"
                                : "gr_comm_renew: a group of one has nobody to lose",
                         family->comms - 1);
        gr_family_leave(family);
        return status;
    }
    if (status != GR_OK) {
        return status;
    }
    gr_group *group;
    gr_timeline *timeline;
    bool failed = family->exec && gr_exec_diag(family->exec)->status != GR_OK;
    gr_family_leave(family);
    gr_comm *next = gr_comm_next_take(*comm, !failed);
    end_generation(family, &group, &timeline);
    gr_comm_free(*comm);
    *comm = NULL;
    return next ? go_over(next, config, group, timeline, comm, diag)
                : create(config, group, timeline, comm, diag);
}

gr_status gr_comm_renew(gr_comm **comm, gr_diag *diag)
{
    gr_arena arena;
    gr_arena_init(&arena, CONFIG_BYTES_MAX);
    gr_group_config config;
    gr_status status = gr_group_config_from_env(&config, &arena, diag);
    if (status == GR_OK) {
        status = gr_comm_renew_from(&config, comm, diag);
        gr_group_config_wipe(&config);
    }
    gr_arena_fini(&arena);
    return status;
}

/* What the communicator left unfinished cannot be finished by its peers either: it is the end of
 * its relatives, too. What is finished is fetched, so that its place is free again. */
static void end_operations(gr_comm *comm)
{
    gr_family *family = comm->family;
    if (!family->exec || gr_exec_group_close(family->exec, &comm->group) == 0) {
        return;
    }
    gr_diag diag;
    (void)gr_fail_peer(
        &diag, GR_E_COMM_BROKEN, comm->world[comm->rank],
        "rank %d destroyed a sub-group of %d ranks with an operation in flight; wait "
        "for all operations first",
        comm->world[comm->rank], comm->size);
    gr_exec_end(family->exec, &diag);
    (void)gr_exec_group_close(family->exec, &comm->group); /* now all are over */
}

void gr_comm_destroy(gr_comm *comm)
{
    if (!comm || gr_family_enter(comm->family, true) != GR_OK) {
        return;
    }
    gr_family *family = comm->family;
    bool last = family->comms == 1;
    if (!last) {
        end_operations(comm);
        gr_comm_unmake(comm);
    }
    gr_family_leave(family);
    if (last) {
        gr_family_destroy(family, true);
        gr_comm_free(comm);
    }
}

/* ---- Questions ------------------------------------------------------------------------------- */
int gr_comm_rank(const gr_comm *comm)
{
    return comm->rank;
}

int gr_comm_size(const gr_comm *comm)
{
    return comm->size;
}

int gr_comm_local_rank(const gr_comm *comm)
{
    return comm->local_rank;
}

int gr_comm_local_size(const gr_comm *comm)
{
    return comm->local_size;
}

const gr_diag *gr_comm_diag(const gr_comm *comm)
{
    const gr_family *family = comm->family;
    return family->exec ? gr_exec_diag(family->exec) : &family->fine;
}

gr_status gr_comm_skew(gr_comm *comm, int rank, gr_skew *skew_out)
{
    if (!comm || !skew_out) {
        return GR_E_INVALID;
    }
    gr_family *family = comm->family;
    gr_status status = gr_family_enter(family, false);
    if (status != GR_OK) {
        return status;
    }
    gr_skew skew = {.operations = 0};
    if (rank < 0 || rank >= comm->size) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_INVALID,
                      "gr_comm_skew on rank %d: there is no rank %d among %d ranks", comm->rank,
                      rank, comm->size);
        status = gr_family_note(family, &diag);
    } else if (family->exec && rank != comm->rank) {
        gr_exec_skew kept;
        gr_exec_get_skew(family->exec, comm->world[rank], &kept);
        skew = (gr_skew){.operations = kept.count,
                         .mean_us = kept.mean_us,
                         .recent_us = kept.recent_us,
                         .max_us = kept.max_us};
    }
    gr_family_leave(family);
    if (status == GR_OK) {
        *skew_out = skew;
    }
    return status;
}

int gr_comm_change_wanted(gr_comm *comm)
{
    if (!comm || !comm->family->group) {
        return 0;
    }
    bool wanted = gr_group_change_wanted(comm->family->group);
    if (!wanted) {
        gr_comm_next_look(comm);
    }
    return wanted;
}

void gr_comm_set_ahead(gr_comm *comm, const gr_comm_ahead *ahead)
{
    comm->family->ahead = *ahead;
}

void gr_comm_drop_ahead(gr_comm *comm)
{
    gr_comm_next_drop(comm->family);
}

gr_timeline *gr_comm_timeline(const gr_comm *comm)
{
    return comm->family->timeline;
}

void gr_comm_note_step(gr_comm *comm, uint64_t step)
{
    note_step(comm->family, step);
}

uint64_t gr_comm_generation(const gr_comm *comm)
{
    return comm->family->group ? gr_group_generation(comm->family->group) : 1;
}

gr_status gr_comm_check_members(gr_comm *comm)
{
    gr_family *family = comm->family;
    if (!family->exec) {
        return GR_OK;
    }
    gr_status status = gr_family_enter(family, false);
    if (status == GR_OK) {
        gr_exec_check_members(family->exec);
        status = (gr_status)gr_exec_diag(family->exec)->status;
        gr_family_leave(family);
    }
    return status;
}

const char *gr_comm_link_name(const gr_comm *comm)
{
    const gr_family *family = comm->family;
    return family->mesh ? gr_link_kind_name(family->choosing.link) : "none";
}
