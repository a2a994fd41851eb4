/* SPDX-License-Identifier: Apache-2.0 */

/* How many parameter servers the workers of a job need: --dry-run says it. */

#include "cli/run.h"
#include "cli/simulate.h"

#include "ps/place.h"

#include <stdio.h>

/* The hosts that have workers, and how many the fullest of them has. */
static void count_hosts(const gr_cli_run *run, int64_t workers, gr_cluster *cluster)
{
    int64_t slots = run->hosts.count > 0 ? gr_host_list_slots(&run->hosts) : workers;
    int64_t hosts = 0, most = 0;
    for (int i = 0; i < run->hosts.count && workers > 0 && slots > 0; i++) {
        int64_t here = run->hosts.at[i].slots < workers ? run->hosts.at[i].slots : workers;
        most = here > most ? here : most;
        workers -= here;
        hosts++;
    }
    cluster->hosts = hosts > 0 ? hosts : 1;
    cluster->ranks_per_host = hosts > 0 ? most : slots;
}

/* A step with as many servers as the job is to have, if the advice does not say it. */
static gr_status print_asked(gr_ps_sim sim, int64_t servers, const gr_ps_advice *advice,
                             gr_diag *diag)
{
    gr_ps_simulated with;
    if (servers <= 1 || servers == advice->servers || servers == advice->servers_max) {
        return GR_OK;
    }
    sim.mode = GR_PS_SIM_BSP;
    sim.servers = servers;
    gr_status status = gr_ps_simulate(&sim, &with, diag);
    if (status == GR_OK) {
        printf("            with %lld servers, as asked, a step takes %.1f ms\n",
               (long long)servers, with.step_us * 1e-3);
    }
    return status;
}

gr_status gr_run_advise(gr_cli_run *run, const gr_job *job, gr_diag *diag)
{
    const char *file = run->options.cluster;
    gr_simulate_options options;
    gr_job_times times;
    gr_ps_advice advice;
    gr_status status = gr_config_defaults(&gr_simulate_table, &options, &run->arena, diag);
    if (status == GR_OK && file != NULL) {
        status = gr_simulate_read_cluster(&options, file, &run->arena, diag);
    }
    if (status == GR_OK) {
        status = gr_job_measure(job, &times, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    count_hosts(run, job->workers, &options.cluster);
    const gr_ps_sim sim = {.cluster = options.cluster,
                           .servers = 1,
                           .servers_per_host = 1, /* in turn, as the launcher deals them */
                           .beside_workers = true,
                           .replicas = run->options.replicas > 0,
                           .step = {.gradient_bytes = times.parameter_bytes,
                                    .bucket_bytes = job->distribution.bucket_bytes,
                                    .forward_us = times.forward_us,
                                    .backward_us = times.backward_us,
                                    .update_us = times.update_us,
                                    .overlap = job->distribution.overlap}};
    status = gr_ps_advise(&sim, GR_PS_SERVERS_MAX, NULL, &advice, diag);
    if (status != GR_OK) {
        return status;
    }
    char text[GR_PS_ADVICE_BYTES];
    gr_ps_advice_print(&advice, text);
    const gr_cluster *c = &sim.cluster;
    printf("advice      %s\n", text);
    status = print_asked(sim, run->options.servers, &advice, diag);
    if (status != GR_OK) {
        return status;
    }
    printf("            simulated with a core for each process; measured here: %.3g ms forward, "
           "%.3g ms backward, %.3g ms update;\n            %s: ",
           times.forward_us * 1e-3, times.backward_us * 1e-3, times.update_us * 1e-3,
           file != NULL ? file : "assumed, unless --cluster says it");
    if (c->hosts > 1) {
        printf("%.3g Gbit/s and %.3g us between the %lld hosts, %.3g GB/s inside one\n",
               c->bandwidth_gbit, c->latency_us, (long long)c->hosts, c->local_gbyte);
    } else {
        printf("%.3g GB/s and %.3g us between processes of the one host\n", c->local_gbyte,
               c->local_latency_us);
    }
    return GR_OK;
}
