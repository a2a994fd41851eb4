/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/ps_simulate.h"

#include "base/fail.h"
#include "ps/place.h"
#include "sim/ps_simulate_run.h"

#include <math.h>

enum {
    PERIODS = 200,        /* of workers that meet, for an average */
    STEPS_DRAWN_MAX = 250 /* of each */
};

static gr_status check(const gr_ps_sim *sim, gr_diag *diag)
{
    const gr_cluster *c = &sim->cluster;
    if (c->hosts < 1 || c->ranks_per_host < 1 || c->hosts > GR_PS_SIM_WORKERS_MAX ||
        c->ranks_per_host > GR_PS_SIM_WORKERS_MAX / c->hosts) {
        return gr_fail(diag, GR_E_INVALID,
                       "parameter servers are simulated for 1 to %d workers; these are %lld hosts "
                       "with %lld each",
                       GR_PS_SIM_WORKERS_MAX, (long long)c->hosts, (long long)c->ranks_per_host);
    }
    if (sim->servers < 1 || sim->servers > GR_PS_SIM_SERVERS_MAX || sim->servers_per_host < 1) {
        return gr_fail(diag, GR_E_INVALID,
                       "1 to %d parameter servers are simulated, at least one on a host; these "
                       "are %lld, %lld on a host",
                       GR_PS_SIM_SERVERS_MAX, (long long)sim->servers,
                       (long long)sim->servers_per_host);
    }
    int64_t workers = c->hosts * c->ranks_per_host;
    if (sim->mode == GR_PS_SIM_BACKUP && (sim->aggregate < 1 || sim->aggregate > workers)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a step with backup workers takes the first 1 to %lld gradients of %lld "
                       "workers, not %lld",
                       (long long)workers, (long long)workers, (long long)sim->aggregate);
    }
    if (sim->mode == GR_PS_SIM_SSP &&
        (sim->staleness < 0 || sim->staleness > GR_PS_SIM_STALENESS_MAX)) {
        return gr_fail(diag, GR_E_INVALID, "a worker may be 0 to %d steps ahead, not %lld",
                       GR_PS_SIM_STALENESS_MAX, (long long)sim->staleness);
    }
    if (!(c->bandwidth_gbit > 0) || c->latency_us < 0 || c->overhead_us < 0 ||
        c->local_latency_us < 0 || c->local_overhead_us < 0 || sim->step.forward_us < 0 ||
        sim->step.backward_us < 0 || sim->step.update_us < 0 || !(sim->spread >= 0)) {
        return gr_fail(diag, GR_E_INVALID,
                       "hosts need a bandwidth above 0, and no time may be negative");
    }
    for (int64_t rank = 0; sim->slow && rank < workers; rank++) {
        if (!(sim->slow[rank] > 0)) {
            return gr_fail(diag, GR_E_INVALID,
                           "the computing time of rank %lld cannot be %g times as long",
                           (long long)rank, sim->slow[rank]);
        }
    }
    uint64_t elements = sim->step.gradient_bytes > 0 ? (uint64_t)sim->step.gradient_bytes / 4 : 0;
    if (gr_ps_cut_of(elements).blocks == 0) {
        return gr_fail(diag, GR_E_INVALID, "parameters have 4 bytes to 512 GiB, not %lld bytes",
                       (long long)sim->step.gradient_bytes);
    }
    return GR_OK;
}

gr_status gr_ps_simulate(const gr_ps_sim *sim, gr_ps_simulated *simulated_out, gr_diag *diag)
{
    gr_status status = check(sim, diag);
    return status == GR_OK ? gr_ps_sim_run(sim, simulated_out, diag) : status;
}

/* The mean of many steps deviates as that of some of them does, by the root of their ratio less. */
double gr_ps_sim_slowest(const gr_ps_sim *sim, int64_t every)
{
    double sigma = gr_ps_sim_sigma(sim), sum = 0;
    int64_t workers = sim->cluster.hosts * sim->cluster.ranks_per_host;
    int64_t drawn = every < STEPS_DRAWN_MAX ? every : STEPS_DRAWN_MAX;
    int64_t periods = sigma > 0 ? PERIODS : 1, steps = sigma > 0 ? drawn : 1;
    double share = sigma > 0 ? sqrt((double)drawn / (double)every) : 1;
    for (int64_t period = 0; period < periods; period++) {
        double slowest = 0;
        for (int64_t rank = 0; rank < workers; rank++) {
            double own = 0, mean = gr_ps_sim_factor(sim, 0, (int)rank, 0);
            for (int64_t i = 0; i < steps; i++) {
                own += gr_ps_sim_factor(sim, sigma, (int)rank, (uint32_t)(period * steps + i));
            }
            slowest = fmax(slowest, mean + share * (own / (double)steps - mean));
        }
        sum += slowest;
    }
    return sum / (double)periods;
}
