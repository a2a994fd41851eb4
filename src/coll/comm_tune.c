/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/comm_tune.h"
#include "base/clock.h"
#include "base/codec.h"
#include "base/fail.h"
#include "base/number.h"
#include "coll/comm_internal.h"
#include "coll/reduce/reduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GATHER_BYTES = 512 << 10, /* of the allgather that measures bandwidth */
    MEASURED_RANKS_MAX = 64,  /* a measurement makes every rank connect to all others */
    ADD_BYTES = 16 << 10,     /* of the addition: in the nearest cache */
    TURNS_MIN =
        4, /* the first warms up; what a network lets pass at once hides its speed for one */
    TURNS_MAX = 16,
    MODEL_VALUES = sizeof(gr_cost_model) / sizeof(double),
    RULE_BYTES = 24,
    TEXT_BYTES = 512,
    MESSAGE_BYTES = 16 + TEXT_BYTES + 8 * MODEL_VALUES + RULE_BYTES * GR_SELECT_RULES_MAX
};

/* ---- Fitting --------------------------------------------------------------------------------- */
static double predict(const gr_cost_model *model, gr_coll coll, const char *name,
                      const gr_topology *topology, int ranks, size_t bytes)
{
    gr_plan_shape shape = {
        .coll = coll, .world_size = ranks, .shards = ranks, .topology = topology};
    gr_cost *walk = NULL;
    if (gr_cost_create(gr_algorithm_find(coll, name), &shape, &walk) != GR_OK) {
        return 0;
    }
    double time_us = gr_cost_time(walk, model, GR_F32, bytes, 256 << 10);
    gr_cost_destroy(walk);
    return time_us;
}

/* Far off what is usual something else was measured: a machine that was busy. */
static double factor(double is_us, double was_us, double most)
{
    double times = was_us > 0 && is_us > 0 ? is_us / was_us : 1;
    return times < 1 / most ? 1 / most : times > most ? most : times;
}

void gr_tune_fit(gr_cost_model *model, const gr_topology *topology, int ranks, double barrier_us,
                 double allgather_us, size_t bytes)
{
    bool between = topology && topology->host_count > 1;
    gr_link_cost *link = &model->link[between ? GR_MODEL_BETWEEN : GR_MODEL_INSIDE];
    double was_us = predict(model, GR_COLL_BARRIER, "dissemination", topology, ranks, 0);
    if (between) {
        /* All but the way is the hosts' own, and known better. */
        gr_cost_model near = *model;
        near.link[GR_MODEL_BETWEEN].latency_us = 0;
        double rest_us = predict(&near, GR_COLL_BARRIER, "dissemination", topology, ranks, 0);
        link->latency_us *= factor(barrier_us - rest_us, was_us - rest_us, 100);
    } else {
        double times = factor(barrier_us, was_us, 8);
        link->latency_us *= times;
        link->send_us *= times;
        link->recv_us *= times;
        model->wait_us *= times;
        model->turn_us *= times;
        model->start_us *= times;
    }
    double least_us = predict(model, GR_COLL_ALLGATHER, "direct", topology, ranks, 0);
    was_us = predict(model, GR_COLL_ALLGATHER, "direct", topology, ranks, bytes);
    double times = factor(allgather_us - least_us, was_us - least_us, between ? 100 : 8);
    link->wire_byte_us *= times;
    link->host_byte_us *= times;
    if (!between) {
        link->send_byte_us *= times;
        link->recv_byte_us *= times;
        link->view_byte_us *= times;
        model->copy_byte_us *= times;
    }
}

/* What adding costs here, of each type: the least of a few, since nothing makes it faster. */
static void measure_adding(gr_cost_model *model)
{
    uint8_t *memory = aligned_alloc(64, 2 * (size_t)ADD_BYTES);
    if (!memory) {
        return;
    }
    memset(memory, 0, 2 * (size_t)ADD_BYTES);
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        gr_reduce_fn *add = gr_reduce_kernel(gr_isa_best(), (gr_dtype)dtype, GR_SUM);
        size_t count = ADD_BYTES / gr_dtype_bytes((gr_dtype)dtype);
        int64_t least_ns = INT64_MAX;
        for (int turn = 0; turn < 4; turn++) {
            int64_t start_ns = gr_now_ns();
            add(memory, memory, memory + ADD_BYTES, count);
            int64_t took_ns = gr_now_ns() - start_ns;
            least_ns = took_ns < least_ns ? took_ns : least_ns;
        }
        /* The other operand comes from another core's cache. */
        double near_us = (double)least_ns / 1e3 / ADD_BYTES;
        model->add_byte_us[dtype] = near_us > 4e-5 ? near_us : 4e-5;
    }
    free(memory);
}

/* ---- What rank 0 tells ----------------------------------------------------------------------- */
typedef struct decision {
    gr_status status; /* of rank 0's file */
    char text[TEXT_BYTES];
    int64_t measure_us; /* 0: nothing is measured */
    gr_cost_model model;
    gr_select_rules rules;
} decision;

static void put_decision(const decision *t, uint8_t bytes[MESSAGE_BYTES])
{
    const double *values = (const double *)&t->model;
    memset(bytes, 0, MESSAGE_BYTES);
    gr_put_u32(bytes, (uint32_t)t->status);
    gr_put_u64(bytes + 4, (uint64_t)t->measure_us);
    gr_put_u32(bytes + 12, (uint32_t)t->rules.count);
    uint8_t *at = bytes + 16;
    memcpy(at, t->text, TEXT_BYTES);
    at += TEXT_BYTES;
    for (int i = 0; i < MODEL_VALUES; i++, at += 8) {
        gr_put_f64(at, values[i]);
    }
    for (int i = 0; i < t->rules.count; i++, at += RULE_BYTES) {
        const gr_select_rule *rule = &t->rules.rules[i];
        gr_put_u32(at, (uint32_t)(rule->algorithm - gr_algorithms));
        gr_put_u32(at + 4, (uint32_t)rule->segment_bytes);
        gr_put_u64(at + 8, rule->from);
        gr_put_u64(at + 16, rule->to);
    }
}

static bool get_decision(decision *t, const uint8_t bytes[MESSAGE_BYTES])
{
    double *values = (double *)&t->model;
    memset(t, 0, sizeof *t);
    t->status = (gr_status)(int32_t)gr_get_u32(bytes);
    t->measure_us = (int64_t)gr_get_u64(bytes + 4);
    t->rules.count = (int)gr_get_u32(bytes + 12);
    const uint8_t *at = bytes + 16;
    memcpy(t->text, at, TEXT_BYTES - 1);
    at += TEXT_BYTES;
    for (int i = 0; i < MODEL_VALUES; i++, at += 8) {
        values[i] = gr_get_f64(at);
    }
    uint32_t known = 0;
    while (gr_algorithms[known].name) {
        known++;
    }
    bool fine = t->rules.count >= 0 && t->rules.count <= GR_SELECT_RULES_MAX;
    for (int i = 0; fine && i < t->rules.count; i++, at += RULE_BYTES) {
        uint32_t index = gr_get_u32(at);
        fine = index < known;
        t->rules.rules[i] = (gr_select_rule){.coll = gr_algorithms[fine ? index : 0].coll,
                                             .algorithm = &gr_algorithms[fine ? index : 0],
                                             .segment_bytes = gr_get_u32(at + 4),
                                             .from = gr_get_u64(at + 8),
                                             .to = gr_get_u64(at + 16)};
    }
    return fine;
}

/* What rank 0 finds out by itself. */
static void decide(gr_comm *comm, const gr_group_config *config, decision *t)
{
    gr_tuning tuning;
    gr_diag diag = {.text = ""};
    const char *mode = config->tune ? config->tune : "off";
    memset(t, 0, sizeof *t);
    t->status = GR_OK;
    const gr_selection *own = gr_comm_selection(comm);
    gr_tuning_init(&tuning, gr_comm_size(comm), own->link, own->rails);
    if (strcmp(mode, "auto") == 0) {
        t->measure_us = gr_comm_size(comm) <= MEASURED_RANKS_MAX ? config->tune_time_us : 0;
    } else if (strcmp(mode, "off") != 0) {
        t->status = gr_tuning_read(mode, &tuning, &diag);
        if (t->status == GR_OK) {
            t->status =
                gr_tuning_check(&tuning, mode, gr_comm_size(comm), own->link, own->rails, &diag);
        }
        t->rules = tuning.rules[config->exact];
        snprintf(t->text, sizeof t->text, "%s", diag.text);
    }
    t->model = tuning.model;
}

/* ---- Measuring ------------------------------------------------------------------------------- */
static gr_status share(gr_comm *comm, decision *t, gr_diag *diag)
{
    uint8_t bytes[MESSAGE_BYTES];
    if (gr_comm_rank(comm) == 0) {
        put_decision(t, bytes);
    }
    gr_status status = gr_broadcast(comm, bytes, sizeof bytes / 4, GR_I32, 0);
    if (status == GR_OK && gr_comm_rank(comm) != 0 && !get_decision(t, bytes)) {
        return gr_fail(diag, GR_E_PROTOCOL,
                       "rank 0 tells costs that are none: do all ranks run "
                       "the same version of Gradus?");
    }
    return status;
}

/* The median time of `coll` on rank 0, which decides how often it is done: as often as fits into
 * the time after a first one that warms up. */
static gr_status time_operation(gr_comm *comm, gr_coll coll, float *buf, size_t block_count,
                                int64_t most_us, double *time_out)
{
    double times[TURNS_MAX];
    int32_t turns = TURNS_MIN;
    gr_status status = GR_OK;
    for (int32_t turn = 0; turn < turns && status == GR_OK; turn++) {
        int64_t start_ns = gr_now_ns();
        status = coll == GR_COLL_BARRIER ? gr_barrier(comm)
                                         : gr_allgather(comm, buf, block_count, GR_F32);
        times[turn] = (double)(gr_now_ns() - start_ns) / 1e3;
        if (turn == 1 && status == GR_OK) {
            double fit = (double)most_us / (times[1] + 1);
            turns = fit < TURNS_MIN ? TURNS_MIN : fit > TURNS_MAX ? TURNS_MAX : (int32_t)fit;
            status = gr_broadcast(comm, &turns, 1, GR_I32, 0);
            turns = turns < TURNS_MIN ? TURNS_MIN : turns > TURNS_MAX ? TURNS_MAX : turns;
        }
    }
    qsort(times + 1, (size_t)turns - 1, sizeof times[0], gr_number_compare);
    *time_out = times[1 + (turns - 1) / 2];
    return status;
}

static gr_status measure(gr_comm *comm, decision *t)
{
    double barrier_us = 0, gather_us = 0;
    void *buf = NULL;
    size_t block_count = GATHER_BYTES / sizeof(float) / (size_t)gr_comm_size(comm);
    size_t bytes = block_count * sizeof(float) * (size_t)gr_comm_size(comm);
    gr_status status = gr_alloc(comm, bytes, &buf);
    if (status == GR_OK) {
        status = time_operation(comm, GR_COLL_BARRIER, NULL, 0, t->measure_us / 4, &barrier_us);
    }
    if (status == GR_OK) {
        status = time_operation(comm, GR_COLL_ALLGATHER, buf, block_count, t->measure_us / 2,
                                &gather_us);
    }
    if (gr_comm_rank(comm) == 0 && status == GR_OK) {
        bool several = gr_comm_topology(comm) && gr_comm_topology(comm)->host_count > 1;
        gr_tune_fit(&t->model, several ? gr_comm_topology(comm) : NULL, gr_comm_size(comm),
                    barrier_us, gather_us, bytes);
        measure_adding(&t->model);
        const gr_link_cost *link = &t->model.link[several ? GR_MODEL_BETWEEN : GR_MODEL_INSIDE];
        gr_log_write(gr_comm_selection(comm)->log, GR_LOG_INFO, "coll",
                     "%s: barrier %.0f us, allgather of %zu KiB %.0f us; so a message takes "
                     "%.1f us and %.3g us a KiB",
                     several ? "between hosts" : "inside this host", barrier_us, bytes >> 10,
                     gather_us, link->latency_us, 1024 * link->wire_byte_us);
    }
    gr_free(comm, buf);
    return status;
}

gr_status gr_tune_comm(gr_comm *comm, const gr_group_config *config, gr_diag *diag)
{
    decision t;
    if (gr_comm_size(comm) == 1) {
        return GR_OK;
    }
    /* The plans that are measured must be those that are fitted. */
    gr_select_rules forced = gr_comm_selection(comm)->forced;
    gr_status status =
        gr_select_rules_parse(&gr_comm_selection(comm)->forced,
                              "broadcast=binomial;barrier=dissemination;allgather=direct", true,
                              gr_comm_size(comm), diag);
    if (gr_comm_rank(comm) == 0) {
        decide(comm, config, &t);
    }
    if (status == GR_OK) {
        status = share(comm, &t, diag);
    }
    if (status == GR_OK && t.status != GR_OK) {
        gr_comm_selection(comm)->forced = forced;
        return gr_fail(diag, t.status, "%s%s", gr_comm_rank(comm) == 0 ? "" : "rank 0: ", t.text);
    }
    if (status == GR_OK && t.measure_us > 0) {
        status = measure(comm, &t);
        if (status == GR_OK) {
            t.measure_us = 0;
            status = share(comm, &t, diag);
        }
    }
    gr_comm_selection(comm)->forced = forced;
    if (status == GR_OK) {
        gr_selection_adopt(gr_comm_selection(comm), &t.model, &t.rules);
        gr_comm_shm_forget(comm);
    } else if (gr_comm_diag(comm)->status != GR_OK && diag) {
        *diag = *gr_comm_diag(comm);
    }
    return status;
}

/* ---- For the verb ---------------------------------------------------------------------------- */
void gr_tune_force(gr_comm *comm, gr_coll coll, const gr_choice *choice)
{
    gr_select_rules *forced = &gr_comm_selection(comm)->forced;
    forced->count = choice ? 1 : 0;
    if (choice) {
        forced->rules[0] = (gr_select_rule){.coll = coll,
                                            .to = UINT64_MAX,
                                            .algorithm = choice->algorithm,
                                            .segment_bytes = choice->segment_bytes};
    }
    gr_comm_shm_forget(comm);
}
