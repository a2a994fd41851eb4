/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "sim/ps_simulate.h"

#include <stdio.h>

/* ---- The other ways -------------------------------------------------------------------------- */
gr_simulated_step gr_ps_sim_allreduce(const gr_ps_sim *sim, const gr_simulated_buckets *allreduce)
{
    double slowest = gr_ps_sim_slowest(sim, 1);
    gr_training_step step = sim->step;
    step.forward_us *= slowest;
    step.backward_us *= slowest;
    return gr_simulate_step(&step, allreduce);
}

gr_simulated_step gr_ps_sim_local(const gr_ps_sim *sim, int64_t every,
                                  const gr_simulated_buckets *allreduce)
{
    const gr_training_step *step = &sim->step;
    gr_simulated_step local = gr_simulate_step(step, allreduce);
    local.compute_us =
        (step->forward_us + step->backward_us) * gr_ps_sim_slowest(sim, every) + step->update_us;
    local.allreduce_us /= (double)every;
    local.exposed_us = local.allreduce_us;
    local.wire_bytes /= (double)every;
    local.time_us = local.compute_us + local.exposed_us;
    return local;
}

/* ---- Advice ---------------------------------------------------------------------------------- */
#define WORTH 0.95 /* a step by this shorter is worth more servers */

static gr_status step_with(const gr_ps_sim *sim, int64_t servers, double *us_out, gr_diag *diag)
{
    gr_ps_sim bsp = *sim;
    gr_ps_simulated simulated = {.step_us = 0};
    bsp.servers = servers;
    bsp.mode = GR_PS_SIM_BSP;
    bsp.spread = 0;
    bsp.slow = NULL;
    gr_status status = gr_ps_simulate(&bsp, &simulated, diag);
    *us_out = simulated.step_us;
    return status;
}

gr_status gr_ps_advise(const gr_ps_sim *sim, int64_t servers_max,
                       const gr_simulated_buckets *allreduce, gr_ps_advice *advice_out,
                       gr_diag *diag)
{
    gr_ps_advice advice = {.workers = sim->cluster.hosts * sim->cluster.ranks_per_host,
                           .servers_max = servers_max};
    gr_ps_sim plain = *sim;
    gr_simulated_buckets found;
    plain.spread = 0;
    plain.slow = NULL;
    gr_status status = step_with(sim, 1, &advice.one_us, diag);
    if (status == GR_OK) {
        status = step_with(sim, servers_max, &advice.most_us, diag);
    }
    /* More servers are never slower, but for rounding: so the smallest number is found by halves,
     * between one that is too few and one that is enough. */
    int64_t few = 0, enough = servers_max;
    advice.step_us = advice.most_us;
    while (status == GR_OK && enough - few > 1) {
        int64_t middle = few == 0 ? 1 : (few + enough) / 2;
        double us = advice.one_us;
        if (middle > 1) {
            status = step_with(sim, middle, &us, diag);
        }
        if (us * WORTH <= advice.most_us) {
            enough = middle;
            advice.step_us = us;
        } else {
            few = middle;
        }
    }
    if (status == GR_OK && !allreduce) {
        status = gr_simulate_buckets(&sim->step, &sim->cluster, NULL, true, &found, diag);
        allreduce = &found;
    }
    if (status == GR_OK) {
        advice.servers = enough;
        advice.allreduce_us = gr_ps_sim_allreduce(&plain, allreduce).time_us;
        advice.algorithm = allreduce->algorithm;
        *advice_out = advice;
    }
    return status;
}

void gr_ps_advice_print(const gr_ps_advice *advice, char text_out[GR_PS_ADVICE_BYTES])
{
    const gr_ps_advice *a = advice;
    int used =
        snprintf(text_out, GR_PS_ADVICE_BYTES,
                 "%lld parameter server%s balance%s %lld "
                 "worker%s: a step takes %.1f ms",
                 (long long)a->servers, a->servers == 1 ? "" : "s", a->servers == 1 ? "s" : "",
                 (long long)a->workers, a->workers == 1 ? "" : "s", a->step_us * 1e-3);
    size_t at = used > 0 && used < GR_PS_ADVICE_BYTES ? (size_t)used : 0;
    if (a->servers > 1) {
        used = snprintf(text_out + at, GR_PS_ADVICE_BYTES - at, ", with one server %.1f ms",
                        a->one_us * 1e-3);
        at += used > 0 ? (size_t)used : 0;
    }
    if (a->servers < a->servers_max) {
        used = snprintf(text_out + at, GR_PS_ADVICE_BYTES - at, ", with %lld %.1f ms",
                        (long long)a->servers_max, a->most_us * 1e-3);
        at += used > 0 ? (size_t)used : 0;
    } else if (a->servers > 1) {
        used = snprintf(text_out + at, GR_PS_ADVICE_BYTES - at, "; more there cannot be");
        at += used > 0 ? (size_t)used : 0;
    }
    if (a->algorithm) {
        (void)snprintf(text_out + at, GR_PS_ADVICE_BYTES - at,
                       "; with allreduce (%s) it would take %.1f ms", a->algorithm->name,
                       a->allreduce_us * 1e-3);
    }
}
