/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/simulate.h"

#include "base/fail.h"
#include "base/number.h"
#include "ps/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const gr_simulate_places[] = {"own", "workers", NULL};
const char *const gr_simulate_strategies[] = {"all", "allreduce", "bsp",   "backup",
                                              "ssp", "async",     "local", NULL};
typedef enum strategy { ALL, ALLREDUCE, BSP, BACKUP, SSP, ASYNC, LOCAL, STRATEGIES } strategy;

enum { LABEL_BYTES = 48 };

/* One strategy on one cluster. */
typedef struct strategy_row {
    strategy strategy;
    char label[LABEL_BYTES];
    const gr_algorithm *algorithm; /* of the allreduce in it; NULL: none */
    double step_us, samples_per_s, efficiency;
    gr_ps_simulated ps; /* the busiest wire; of servers, what became of the gradients as well */
} strategy_row;

/* ---- Output ---------------------------------------------------------------------------------- */
static void print_wire(const gr_ps_sim_wire *wire, char out[LABEL_BYTES])
{
    if (!(wire->share > 0)) {
        (void)snprintf(out, LABEL_BYTES, "-");
        return;
    }
    (void)snprintf(out, LABEL_BYTES, "%s host %lld, %s %3.0f %%",
                   wire->server ? "server" : "worker", (long long)wire->host,
                   wire->incoming ? "in " : "out", 100 * wire->share);
}

static void print_head(const gr_ps_sim *sim, const gr_simulate_options *options)
{
    const gr_cluster *c = &sim->cluster;
    if (options->json) {
        return;
    }
    printf("%lld worker%s on %lld host%s, %lld server%s on %s; %.1f MiB of parameters, %lld "
           "sample%s a worker\n\n",
           (long long)(c->hosts * c->ranks_per_host), c->hosts * c->ranks_per_host == 1 ? "" : "s",
           (long long)c->hosts, c->hosts == 1 ? "" : "s", (long long)sim->servers,
           sim->servers == 1 ? "" : "s", sim->beside_workers ? "the same" : "hosts of their own",
           (double)sim->step.gradient_bytes / (1 << 20), (long long)options->batch,
           options->batch == 1 ? "" : "s");
    printf("%-16s %12s %12s %11s  %-28s %s\n", "strategy", "step ms", "samples/s", "efficiency",
           "busiest wire", "gradients");
}

static void print_row(const strategy_row *line)
{
    char wire[LABEL_BYTES];
    print_wire(&line->ps.busiest, wire);
    printf("%-16s %12.3f %12.1f %9.1f %%  %-28s ", line->label, line->step_us * 1e-3,
           line->samples_per_s, 100 * line->efficiency, wire);
    switch (line->strategy) {
    case ALLREDUCE:
    case LOCAL:
        puts(line->algorithm ? line->algorithm->name : "-");
        break;
    case BACKUP:
        printf("%.1f %% too late\n", 100 * line->ps.dropped);
        break;
    case SSP:
    case ASYNC:
        printf("staleness %.1f, 99 %% up to %lld\n", line->ps.staleness_mean,
               (long long)line->ps.staleness_p99);
        break;
    default:
        puts("all of each step");
        break;
    }
}

static gr_status print_row_json(const gr_ps_sim *sim, const strategy_row *line, gr_diag *diag)
{
    const gr_ps_simulated *ps = &line->ps;
    const gr_cluster *c = &sim->cluster;
    bool served = line->strategy != ALLREDUCE && line->strategy != LOCAL;
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:s, s:I, s:b, s:f, s:f, s:f, s:I, s:s, "
        "s:I}",
        "op", "ps", "strategy", gr_simulate_strategies[line->strategy], "label", line->label,
        "hosts", (json_int_t)c->hosts, "workers", (json_int_t)(c->hosts * c->ranks_per_host),
        "servers", (json_int_t)(served ? sim->servers : 0), "step_us", line->step_us,
        "samples_per_s", line->samples_per_s, "efficiency", line->efficiency, "busiest_wire_of",
        ps->busiest.server ? "server" : "worker", "busiest_wire_host", (json_int_t)ps->busiest.host,
        "busiest_wire_incoming", ps->busiest.incoming, "busiest_wire_share", ps->busiest.share,
        "dropped", ps->dropped, "staleness_mean", ps->staleness_mean, "staleness_p99",
        (json_int_t)ps->staleness_p99, "algorithm", line->algorithm ? line->algorithm->name : "-",
        "steps_simulated", (json_int_t)ps->steps);
    return gr_cli_print_json(object, diag);
}

static gr_status print_advice(bool json, const gr_ps_advice *advice, gr_diag *diag)
{
    char text[GR_PS_ADVICE_BYTES];
    gr_ps_advice_print(advice, text);
    if (!json) {
        printf("\n%s.\n", text);
        return GR_OK;
    }
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:s}", "op", "ps-advice", "workers",
        (json_int_t)advice->workers, "servers", (json_int_t)advice->servers, "servers_max",
        (json_int_t)advice->servers_max, "step_us", advice->step_us, "one_us", advice->one_us,
        "most_us", advice->most_us, "allreduce_us", advice->allreduce_us, "algorithm",
        advice->algorithm ? advice->algorithm->name : "-", "sentence", text);
    return gr_cli_print_json(object, diag);
}

/* ---- Strategies ------------------------------------------------------------------------------ */
static void finish_row(const gr_ps_sim *sim, const gr_simulate_options *options,
                       double gradients_per_s, strategy_row *line)
{
    double workers = (double)(sim->cluster.hosts * sim->cluster.ranks_per_host);
    double alone_us = sim->step.forward_us + sim->step.backward_us + sim->step.update_us;
    line->samples_per_s = gradients_per_s * (double)options->batch;
    line->efficiency = gradients_per_s * alone_us * 1e-6 / workers;
}

static void row_of_step(const gr_ps_sim *sim, const gr_simulate_options *options,
                        const gr_simulated_step *step, strategy_row *line)
{
    double workers = (double)(sim->cluster.hosts * sim->cluster.ranks_per_host);
    double wire_us = step->wire_bytes * 8e-3 / sim->cluster.bandwidth_gbit;
    line->step_us = step->time_us;
    line->ps.busiest.share = step->time_us > 0 ? fmin(wire_us / step->time_us, 1) : 0;
    finish_row(sim, options, step->time_us > 0 ? 1e6 * workers / step->time_us : 0, line);
}

static gr_status row_of_servers(gr_ps_sim sim, const gr_simulate_options *options,
                                gr_ps_sim_mode mode, strategy_row *line, gr_diag *diag)
{
    sim.mode = mode;
    gr_status status = gr_ps_simulate(&sim, &line->ps, diag);
    if (status == GR_OK) {
        line->step_us = line->ps.step_us;
        finish_row(&sim, options, line->ps.gradients_per_s, line);
    }
    return status;
}

static gr_status find_row(const gr_ps_sim *sim, const gr_simulate_options *options,
                          const gr_simulated_buckets *allreduce, strategy_row *line, gr_diag *diag)
{
    gr_simulated_step step;
    switch (line->strategy) {
    case BSP:
        (void)snprintf(line->label, LABEL_BYTES, "ps bsp");
        return row_of_servers(*sim, options, GR_PS_SIM_BSP, line, diag);
    case BACKUP:
        (void)snprintf(line->label, LABEL_BYTES, "ps bsp, %lld of %lld", (long long)sim->aggregate,
                       (long long)(sim->cluster.hosts * sim->cluster.ranks_per_host));
        return row_of_servers(*sim, options, GR_PS_SIM_BACKUP, line, diag);
    case SSP:
        (void)snprintf(line->label, LABEL_BYTES, "ps ssp: %lld", (long long)sim->staleness);
        return row_of_servers(*sim, options, GR_PS_SIM_SSP, line, diag);
    case ASYNC:
        (void)snprintf(line->label, LABEL_BYTES, "ps async");
        return row_of_servers(*sim, options, GR_PS_SIM_ASYNC, line, diag);
    case LOCAL:
        (void)snprintf(line->label, LABEL_BYTES, "local, %lld steps",
                       (long long)options->sync_every);
        step = gr_ps_sim_local(sim, options->sync_every, allreduce);
        row_of_step(sim, options, &step, line);
        return GR_OK;
    default:
        (void)snprintf(line->label, LABEL_BYTES, "allreduce");
        step = gr_ps_sim_allreduce(sim, allreduce);
        row_of_step(sim, options, &step, line);
        return GR_OK;
    }
}

static gr_status simulate_strategies(const gr_ps_sim *sim, const gr_simulate_options *options,
                                     const gr_simulated_buckets *allreduce, gr_diag *diag)
{
    strategy only = (strategy)options->strategy;
    gr_status status = GR_OK;
    for (strategy at = ALLREDUCE; at < STRATEGIES && status == GR_OK; at++) {
        strategy_row line = {.strategy = at};
        if ((only != ALL && only != at) ||
            (only == ALL && at == BACKUP &&
             sim->cluster.hosts * sim->cluster.ranks_per_host == 1)) {
            continue;
        }
        line.algorithm = at == ALLREDUCE || at == LOCAL ? allreduce->algorithm : NULL;
        status = find_row(sim, options, allreduce, &line, diag);
        if (status == GR_OK && options->json) {
            status = print_row_json(sim, &line, diag);
        } else if (status == GR_OK) {
            print_row(&line);
        }
    }
    return status;
}

/* ---- What the user gave ---------------------------------------------------------------------- */
/* "3:4,5:1.5": rank 3 takes four times as long. */
static gr_status read_slow(const char *text, int64_t workers, double *slow, gr_diag *diag)
{
    const char *at = text;
    while (*at != '\0') {
        char *end;
        long long rank = strtoll(at, &end, 10);
        bool good = end > at && *end == ':';
        at = good ? end + 1 : at;
        double factor = good ? strtod(at, &end) : 0;
        good = good && end > at && (*end == '\0' || (*end == ',' && end[1] != '\0'));
        if (!good || !(factor >= 1e-3) || !(factor <= 1e6)) {
            return gr_fail(diag, GR_E_INVALID,
                           "--slow: \"%s\" is not RANK:FACTOR, or several of them with commas "
                           "between, with factors of 0.001 to 1000000",
                           text);
        }
        if (rank < 0 || rank >= workers) {
            return gr_fail(diag, GR_E_INVALID,
                           "--slow: there is no rank %lld among %lld workers (ranks begin with 0)",
                           rank, (long long)workers);
        }
        slow[rank] = factor;
        at = *end == ',' ? end + 1 : end;
    }
    return GR_OK;
}

static gr_status simulate_hosts(const gr_simulate_options *options, int64_t hosts, double *slow,
                                gr_diag *diag)
{
    gr_ps_sim sim = {.cluster = options->cluster,
                     .servers = options->servers,
                     .servers_per_host = options->servers_per_host,
                     .beside_workers = options->servers_on == 1,
                     .replicas = options->replicas,
                     .step = gr_simulate_step_of(options),
                     .spread = options->spread_percent / 100,
                     .slow = slow,
                     .seed = (uint64_t)options->seed,
                     .staleness = options->staleness};
    sim.cluster.hosts = hosts;
    int64_t workers = hosts * sim.cluster.ranks_per_host;
    int64_t aggregate = options->aggregate > 0 ? options->aggregate : workers - 1;
    sim.aggregate = aggregate < 1 ? 1 : aggregate > workers ? workers : aggregate;
    strategy only = (strategy)options->strategy;
    bool advised = only == ALL || options->servers == 0;
    gr_ps_advice advice;
    gr_simulated_buckets allreduce = {.algorithm = NULL};
    gr_status status = GR_OK;
    if (advised || only == ALLREDUCE || only == LOCAL) {
        status = gr_simulate_buckets(&sim.step, &sim.cluster, options->algorithm,
                                     options->exact && !options->compare, &allreduce, diag);
    }
    if (status == GR_OK && advised) {
        status = gr_ps_advise(&sim, GR_PS_SERVERS_MAX, &allreduce, &advice, diag);
        sim.servers = options->servers > 0 || status != GR_OK ? sim.servers : advice.servers;
    }
    if (status == GR_OK) {
        print_head(&sim, options);
        status = simulate_strategies(&sim, options, &allreduce, diag);
    }
    return status == GR_OK && advised ? print_advice(options->json, &advice, diag) : status;
}

gr_status gr_simulate_ps(const gr_simulate_options *options, gr_diag *diag)
{
    const gr_cluster *cluster = &options->cluster;
    if (cluster->hosts > GR_PS_SIM_WORKERS_MAX ||
        cluster->ranks_per_host > GR_PS_SIM_WORKERS_MAX / cluster->hosts) {
        return gr_fail(diag, GR_E_INVALID,
                       "parameter servers are simulated for 1 to %d workers; these are %lld hosts "
                       "with %lld each",
                       GR_PS_SIM_WORKERS_MAX, (long long)cluster->hosts,
                       (long long)cluster->ranks_per_host);
    }
    int64_t workers = cluster->hosts * cluster->ranks_per_host;
    if (options->aggregate > workers) {
        return gr_fail(diag, GR_E_INVALID,
                       "--aggregate: a step cannot wait for %lld gradients of %lld workers",
                       (long long)options->aggregate, (long long)workers);
    }
    if (gr_ps_cut_of((uint64_t)options->gradient_bytes / 4).blocks == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "--gradients: parameter servers have 4 bytes to 512 GiB of parameters, not "
                       "%lld bytes",
                       (long long)options->gradient_bytes);
    }
    double *slow = malloc((size_t)workers * sizeof *slow);
    if (!slow) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %lld workers", (long long)workers);
    }
    for (int64_t rank = 0; rank < workers; rank++) {
        slow[rank] = 1;
    }
    gr_status status = options->slow ? read_slow(options->slow, workers, slow, diag) : GR_OK;
    for (int64_t hosts = 1; options->scaling && hosts < cluster->hosts && status == GR_OK;
         hosts *= 2) {
        status = simulate_hosts(options, hosts, slow, diag);
        if (status == GR_OK && !options->json) {
            putchar('\n');
        }
    }
    status = status == GR_OK ? simulate_hosts(options, cluster->hosts, slow, diag) : status;
    free(slow);
    return status;
}
