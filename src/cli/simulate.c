/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/simulate.h"

#include "base/fail.h"
#include "base/text.h"
#include "doc/config_node.h"
#include "doc/doc.h"

#include <stddef.h>
#include <string.h>

#define CLUSTER(name) offsetof(gr_simulate_options, cluster.name)
#define OPTION(name) offsetof(gr_simulate_options, name)
#define BYTES_MAX 1e15

static const gr_config_field simulate_fields[] = {
    {.key = "hosts",
     .flag = "--hosts",
     .type = GR_CONFIG_INT,
     .offset = CLUSTER(hosts),
     .default_text = "1",
     .min = 1,
     .max = GR_CLUSTER_RANKS_MAX,
     .value_name = "N",
     .help = "hosts of the cluster"},
    {.key = "ranks_per_host",
     .flag = "--ranks-per-host",
     .type = GR_CONFIG_INT,
     .offset = CLUSTER(ranks_per_host),
     .default_text = "1",
     .min = 1,
     .max = GR_CLUSTER_RANKS_MAX,
     .value_name = "N",
     .help = "ranks on each host; they share its network interface"},
    {.key = "latency_us",
     .flag = "--latency-us",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(latency_us),
     .default_text = "30",
     .min = 0,
     .max = 1e9,
     .unit = "us",
     .help = "one way between two hosts: from a write to the wake-up of the reader"},
    {.key = "bandwidth_gbit",
     .flag = "--bandwidth-gbit",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(bandwidth_gbit),
     .default_text = "10",
     .min = 1e-6,
     .max = 1e6,
     .unit = "Gbit/s",
     .help = "payload of one host, in each direction at the same time"},
    {.key = "incast_gbit",
     .flag = "--incast-gbit",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(incast_gbit),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .unit = "Gbit/s",
     .help = "payload of a host that receives from several hosts at once; 0: the same"},
    {.key = "burst_bytes",
     .flag = "--burst",
     .type = GR_CONFIG_BYTES,
     .offset = CLUSTER(burst_bytes),
     .default_text = "0",
     .min = 0,
     .max = 1 << 30,
     .help = "bytes that pass at once after a pause, where a token bucket limits the rate"},
    {.key = "overhead_us",
     .flag = "--overhead-us",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(overhead_us),
     .default_text = "5",
     .min = 0,
     .max = 1e9,
     .unit = "us",
     .help = "a rank's work for one message over the network, at each end"},
    {.key = "copy_gbyte",
     .flag = "--copy-gbyte",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(copy_gbyte),
     .default_text = "4",
     .min = 0,
     .max = 1e6,
     .unit = "GB/s",
     .help = "speed at which a rank moves bytes to and from the network; 0: no cost"},
    {.key = "local_latency_us",
     .flag = "--local-latency-us",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(local_latency_us),
     .default_text = "1",
     .min = 0,
     .max = 1e9,
     .unit = "us",
     .help = "one way between two ranks of a host"},
    {.key = "local_overhead_us",
     .flag = "--local-overhead-us",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(local_overhead_us),
     .default_text = "0.3",
     .min = 0,
     .max = 1e9,
     .unit = "us",
     .help = "a rank's work for one message inside the host, at each end"},
    {.key = "local_gbyte",
     .flag = "--local-gbyte",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(local_gbyte),
     .default_text = "8",
     .min = 0,
     .max = 1e6,
     .unit = "GB/s",
     .help = "copying out of a neighbour's memory; 0: no cost"},
    {.key = "reduce_gbyte",
     .flag = "--reduce-gbyte",
     .type = GR_CONFIG_DOUBLE,
     .offset = CLUSTER(reduce_gbyte),
     .default_text = "6",
     .min = 0,
     .max = 1e6,
     .unit = "GB/s",
     .help = "speed of additions, in bytes of the result; 0: no cost"},
    {.key = "segment_bytes",
     .flag = "--segment",
     .type = GR_CONFIG_BYTES,
     .offset = CLUSTER(segment_bytes),
     .default_text = "0",
     .min = 0,
     .max = 16 << 20,
     .help = "messages are cut into segments of this size (GRADUS_SEGMENT); 0: of 248 KiB, between "
             "hosts below 20 Gbit/s of 62 KiB, as by default"},
    {.key = "cores",
     .flag = "--cores",
     .type = GR_CONFIG_INT,
     .offset = CLUSTER(cores),
     .default_text = "0",
     .min = 0,
     .max = GR_CLUSTER_RANKS_MAX,
     .value_name = "N",
     .help = "cores of a host; 0: one for each rank"},
    {.key = "shared_cores",
     .flag = "--shared-cores",
     .type = GR_CONFIG_INT,
     .offset = CLUSTER(shared_cores),
     .default_text = "0",
     .min = 0,
     .max = GR_CLUSTER_RANKS_MAX,
     .value_name = "N",
     .help = "cores of all hosts together, if they are namespaces of one machine; 0: they are not"},
    {.key = "gradient_bytes",
     .flag = "--gradients",
     .type = GR_CONFIG_BYTES,
     .offset = OPTION(gradient_bytes),
     .default_text = "100m",
     .min = 1,
     .max = BYTES_MAX,
     .help = "step, ps: bytes of all gradients, and of all parameters; ps: 4 bytes to 512 GiB"},
    {.key = "bucket_bytes",
     .flag = "--bucket",
     .type = GR_CONFIG_BYTES,
     .offset = OPTION(bucket_bytes),
     .default_text = "25m",
     .min = 1,
     .max = BYTES_MAX,
     .help = "step: gradients that become one allreduce"},
    {.key = "forward",
     .flag = "--forward",
     .type = GR_CONFIG_DURATION,
     .offset = OPTION(forward_us),
     .default_text = "100ms",
     .min = 0,
     .max = 1e12,
     .help = "step, ps: time of the forward pass"},
    {.key = "backward",
     .flag = "--backward",
     .type = GR_CONFIG_DURATION,
     .offset = OPTION(backward_us),
     .default_text = "200ms",
     .min = 0,
     .max = 1e12,
     .help = "step, ps: time of the backward pass"},
    {.key = "update",
     .flag = "--update",
     .type = GR_CONFIG_DURATION,
     .offset = OPTION(update_us),
     .default_text = "10ms",
     .min = 0,
     .max = 1e12,
     .help = "step, ps: time of the optimizer, for all parameters"},
    {.key = "overlap",
     .flag = "--overlap",
     .type = GR_CONFIG_BOOL,
     .offset = OPTION(overlap),
     .default_text = "true",
     .help = "step, ps: gradients leave while the backward pass goes on"},
    {.key = "strategy",
     .flag = "--strategy",
     .type = GR_CONFIG_CHOICE,
     .offset = OPTION(strategy),
     .default_text = "all",
     .choices = gr_simulate_strategies,
     .help = "ps: this one only"},
    {.key = "servers",
     .flag = "--servers",
     .type = GR_CONFIG_INT,
     .offset = OPTION(servers),
     .default_text = "0",
     .min = 0,
     .max = GR_PS_SIM_SERVERS_MAX,
     .value_name = "N",
     .help = "ps: servers; 0: as many as balance the workers"},
    {.key = "servers_per_host",
     .flag = "--servers-per-host",
     .type = GR_CONFIG_INT,
     .offset = OPTION(servers_per_host),
     .default_text = "1",
     .min = 1,
     .max = GR_PS_SIM_SERVERS_MAX,
     .value_name = "N",
     .help = "ps: servers on a host; they share its network interface"},
    {.key = "servers_on",
     .flag = "--servers-on",
     .type = GR_CONFIG_CHOICE,
     .offset = OPTION(servers_on),
     .default_text = "own",
     .choices = gr_simulate_places,
     .help = "ps: hosts of their own, or the hosts of the workers"},
    {.key = "replicas",
     .flag = "--replicas",
     .type = GR_CONFIG_BOOL,
     .offset = OPTION(replicas),
     .default_text = "true",
     .help =
         "ps: each update is copied to another server, if there is one, before anybody sees it"},
    {.key = "aggregate",
     .flag = "--aggregate",
     .type = GR_CONFIG_INT,
     .offset = OPTION(aggregate),
     .default_text = "0",
     .min = 0,
     .max = GR_PS_SIM_WORKERS_MAX,
     .value_name = "N",
     .help = "ps: with backup workers, the first N gradients of a step count; 0: all but one"},
    {.key = "staleness",
     .flag = "--staleness",
     .type = GR_CONFIG_INT,
     .offset = OPTION(staleness),
     .default_text = "3",
     .min = 0,
     .max = GR_PS_SIM_STALENESS_MAX,
     .value_name = "N",
     .help = "ps: steps that a worker may be ahead of the slowest (ssp)"},
    {.key = "sync_every",
     .flag = "--sync-every",
     .type = GR_CONFIG_INT,
     .offset = OPTION(sync_every),
     .default_text = "10",
     .min = 1,
     .max = 1000000,
     .value_name = "N",
     .help = "ps: local steps between two averages of the parameters"},
    {.key = "batch",
     .flag = "--batch",
     .type = GR_CONFIG_INT,
     .offset = OPTION(batch),
     .default_text = "32",
     .min = 1,
     .max = 1e9,
     .value_name = "N",
     .help = "ps: samples of a worker in a step"},
    {.key = "spread_percent",
     .flag = "--spread",
     .type = GR_CONFIG_DOUBLE,
     .offset = OPTION(spread_percent),
     .default_text = "0",
     .min = 0,
     .max = 1000,
     .unit = "%",
     .help = "ps: standard deviation of a worker's computing time, in percent of it"},
    {.key = "slow",
     .flag = "--slow",
     .type = GR_CONFIG_TEXT,
     .offset = OPTION(slow),
     .value_name = "RANK:FACTOR,...",
     .help = "ps: slow workers: their computing time is so many times as long"},
    {.key = "seed",
     .flag = "--seed",
     .type = GR_CONFIG_INT,
     .offset = OPTION(seed),
     .default_text = "1",
     .min = 0,
     .max = 1e15,
     .value_name = "N",
     .help = "ps: of the spread"},
    {.flag = "--size",
     .type = GR_CONFIG_BYTES,
     .offset = OPTION(size_bytes),
     .min = 1,
     .max = BYTES_MAX,
     .help = "bytes of one rank's buffer; default: from 1k to 256m"},
    {.flag = "--from",
     .type = GR_CONFIG_BYTES,
     .offset = OPTION(from_bytes),
     .default_text = "1k",
     .min = 1,
     .max = BYTES_MAX,
     .help = "first size, then four times as much"},
    {.flag = "--to",
     .type = GR_CONFIG_BYTES,
     .offset = OPTION(to_bytes),
     .default_text = "256m",
     .min = 1,
     .max = BYTES_MAX,
     .help = "last size"},
    {.flag = "--algorithm",
     .type = GR_CONFIG_TEXT,
     .offset = OPTION(algorithm),
     .value_name = "NAME",
     .help = "this algorithm only; default: the fastest one"},
    {.flag = "--exact",
     .type = GR_CONFIG_BOOL,
     .offset = OPTION(exact),
     .default_text = "true",
     .help = "the fastest of those only whose sums do not depend on the number of ranks"},
    {.flag = "--compare",
     .type = GR_CONFIG_BOOL,
     .offset = OPTION(compare),
     .help = "all algorithms, whatever the order of their additions"},
    {.flag = "--scaling",
     .type = GR_CONFIG_BOOL,
     .offset = OPTION(scaling),
     .help = "step, ps: for 1, 2, 4, ... hosts"},
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = OPTION(json),
     .help = "one JSON object on a line for each result"},
    {.key = NULL},
};

const gr_config_table gr_simulate_table = {.name = "simulate",
                                           .title = "Cluster file and flags of `gradus simulate`",
                                           .fields = simulate_fields,
                                           .struct_bytes = sizeof(gr_simulate_options)};

enum { LIST_BYTES = 256, BUCKETS_MAX = 1000000 };
static const char step_word[] = "step", ps_word[] = "ps";

/* ---- An operation ---------------------------------------------------------------------------- */
static bool wanted(const gr_simulate_options *options, const gr_algorithm *algorithm, gr_coll coll)
{
    if (algorithm->coll != coll) {
        return false;
    }
    if (options->algorithm) {
        return strcmp(options->algorithm, algorithm->name) == 0;
    }
    return options->compare || !options->exact || algorithm->canonical;
}

typedef struct simulators {
    int count;
    const gr_algorithm *algorithms[GR_SIMULATE_ROWS_MAX];
    gr_simulator *all[GR_SIMULATE_ROWS_MAX];
} simulators;

static void close_simulators(simulators *s)
{
    for (int i = 0; i < s->count; i++) {
        gr_simulator_destroy(s->all[i]);
    }
    s->count = 0;
}

static gr_status unknown_algorithm(const char *name, gr_coll coll, gr_diag *diag)
{
    char known[LIST_BYTES] = "";
    size_t used = 0;
    for (const gr_algorithm *at = gr_algorithms; at->name && used < sizeof known; at++) {
        if (at->coll == coll) {
            int wrote =
                snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", at->name);
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    return gr_fail(diag, GR_E_INVALID, "--algorithm: there is no %s algorithm \"%s\"; there are %s",
                   gr_coll_name(coll), name, known);
}

/* Algorithms without a plan for this world are passed over, unless one was asked for by name. */
static gr_status open_simulators(const gr_simulate_options *options, const gr_cluster *cluster,
                                 gr_coll coll, simulators *s, gr_diag *diag)
{
    gr_status status = GR_OK;
    s->count = 0;
    for (const gr_algorithm *at = gr_algorithms; at->name && status == GR_OK; at++) {
        if (s->count < GR_SIMULATE_ROWS_MAX && wanted(options, at, coll)) {
            status = gr_simulator_create(cluster, at, &s->all[s->count], diag);
            if (status == GR_OK) {
                s->algorithms[s->count++] = at;
            } else if (status == GR_E_UNSUPPORTED && !options->algorithm) {
                status = GR_OK;
            }
        }
    }
    if (status == GR_OK && s->count == 0) {
        status = gr_fail(diag, GR_E_UNSUPPORTED, "no algorithm has a plan of %s for %lld ranks",
                         gr_coll_name(coll), (long long)(cluster->hosts * cluster->ranks_per_host));
    }
    if (status != GR_OK) {
        close_simulators(s);
    }
    return status;
}

static gr_status simulate_size(const simulators *s, int64_t size_bytes, gr_simulate_size *out,
                               gr_diag *diag)
{
    int best = 0;
    *out = (gr_simulate_size){.size_bytes = size_bytes, .row_count = s->count};
    for (int i = 0; i < s->count; i++) {
        out->rows[i].algorithm = s->algorithms[i];
        gr_status status =
            gr_simulator_run(s->all[i], (size_t)size_bytes, &out->rows[i].result, diag);
        if (status != GR_OK) {
            return status;
        }
        if (out->rows[i].result.time_us < out->rows[best].result.time_us) {
            best = i;
        }
    }
    out->rows[best].best = true;
    return GR_OK;
}

static gr_status simulate_operation(const gr_simulate_options *options, gr_coll coll, gr_diag *diag)
{
    bool one = options->size_bytes > 0 || coll == GR_COLL_BARRIER;
    int64_t first = one ? options->size_bytes : options->from_bytes;
    int64_t last = one ? options->size_bytes : options->to_bytes;
    if (first > last) {
        return gr_fail(diag, GR_E_INVALID, "simulate: --to must be at least --from");
    }
    simulators s;
    gr_simulate_chooser *chooser = NULL;
    gr_status status = open_simulators(options, &options->cluster, coll, &s, diag);
    if (status == GR_OK) {
        status = gr_simulate_chooser_create(options, coll, &chooser, diag);
    }
    if (status != GR_OK) {
        close_simulators(&s);
        return status;
    }
    const gr_simulate_print print = {.cluster = &options->cluster,
                                     .coll = coll,
                                     .json = options->json,
                                     .compare = options->compare};
    gr_simulate_size size = {.size_bytes = 0};
    for (int64_t at = first; at <= last && status == GR_OK; at *= 4) {
        status = simulate_size(&s, at, &size, diag);
        size.chosen = gr_simulate_choose(chooser, at);
        if (status == GR_OK && at == first) {
            gr_simulate_print_head(&print, &size);
        }
        if (status == GR_OK) {
            status = gr_simulate_print_size(&print, &size, diag);
        }
        if (at == 0) {
            break;
        }
    }
    if (status == GR_OK) {
        gr_simulate_print_method(&print, &size);
    }
    gr_simulate_chooser_destroy(chooser);
    close_simulators(&s);
    return status;
}

/* ---- A training step ------------------------------------------------------------------------- */
gr_training_step gr_simulate_step_of(const gr_simulate_options *options)
{
    return (gr_training_step){.gradient_bytes = options->gradient_bytes,
                              .bucket_bytes = options->bucket_bytes,
                              .forward_us = (double)options->forward_us,
                              .backward_us = (double)options->backward_us,
                              .update_us = (double)options->update_us,
                              .overlap = options->overlap};
}

static gr_status simulate_hosts(const gr_simulate_options *options, const gr_cluster *cluster,
                                gr_diag *diag)
{
    const gr_training_step step = gr_simulate_step_of(options);
    gr_simulated_buckets allreduce;
    gr_status status = gr_simulate_buckets(&step, cluster, options->algorithm,
                                           options->exact && !options->compare, &allreduce, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_simulated_step result = gr_simulate_step(&step, &allreduce);
    return gr_simulate_print_step(options->json, cluster,
                                  allreduce.algorithm ? allreduce.algorithm->name : "-", &result,
                                  diag);
}

static gr_status simulate_training(const gr_simulate_options *options, gr_diag *diag)
{
    gr_status status = GR_OK;
    if (options->gradient_bytes / options->bucket_bytes > BUCKETS_MAX) {
        return gr_fail(
            diag, GR_E_INVALID,
            "--bucket: %lld bytes in buckets of %lld are more than %d buckets; make them "
            "larger",
            (long long)options->gradient_bytes, (long long)options->bucket_bytes, BUCKETS_MAX);
    }
    gr_simulate_print_step_head(options->json);
    for (int64_t hosts = 1; options->scaling && hosts < options->cluster.hosts && status == GR_OK;
         hosts *= 2) {
        gr_cluster cluster = options->cluster;
        cluster.hosts = hosts;
        status = simulate_hosts(options, &cluster, diag);
    }
    return status == GR_OK ? simulate_hosts(options, &options->cluster, diag) : status;
}

/* ---- What the user gave ---------------------------------------------------------------------- */
gr_status gr_simulate_read_cluster(gr_simulate_options *options, const char *path, gr_arena *arena,
                                   gr_diag *diag)
{
    gr_doc *doc;
    gr_status status = gr_doc_read_yaml(path, &doc, diag);
    if (status == GR_OK) {
        status = gr_config_from_node(&gr_simulate_table, options, gr_doc_root(doc), arena, diag);
        gr_doc_destroy(doc);
    }
    return status;
}

/* Flags stand over the file, wherever they are on the line: they are read again behind it. */
static gr_status read_flags(const gr_cli_line *line, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int at = 1; at < line->argc && status == GR_OK; at++) {
        bool dashes = false, help = false;
        status = gr_config_from_args(&gr_simulate_table, line->options, line->argc, line->argv, &at,
                                     &dashes, &help, line->arena, diag);
        if (dashes) {
            break;
        }
    }
    return status;
}

static gr_status find_operation(const char *word, gr_coll *coll_out, gr_diag *diag)
{
    const char *known[GR_COLL_COUNT + 3] = {NULL};
    size_t count = 0;
    for (int coll = 0; coll < GR_COLL_COUNT; coll++) {
        bool has_plans = false;
        for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
            has_plans = has_plans || at->coll == (gr_coll)coll;
        }
        if (!has_plans) {
            continue;
        }
        known[count++] = gr_coll_name((gr_coll)coll);
        if (strcmp(word, gr_coll_name((gr_coll)coll)) == 0) {
            *coll_out = (gr_coll)coll;
            return GR_OK;
        }
    }
    known[count++] = step_word;
    known[count] = ps_word;
    const char *nearest = gr_nearest(word, known);
    return gr_fail(
        diag, GR_E_INVALID,
        "gradus simulate: \"%s\" is no operation%s%s%s; there are allreduce and the other "
        "collectives, \"step\" for a training step, and \"ps\" for one by parameter servers",
        word, nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static gr_status run_line(const gr_cli_line *line, gr_diag *diag)
{
    gr_simulate_options *options = line->options;
    gr_coll coll = GR_COLL_ALLREDUCE;
    bool step = strcmp(line->words[0], step_word) == 0;
    bool ps = strcmp(line->words[0], ps_word) == 0;
    gr_status status = step || ps ? GR_OK : find_operation(line->words[0], &coll, diag);
    if (status == GR_OK && line->word_count > 1) {
        status = gr_simulate_read_cluster(options, line->words[1], line->arena, diag);
    }
    if (status == GR_OK) {
        status = read_flags(line, diag);
    }
    if (status == GR_OK && options->algorithm && !gr_algorithm_find(coll, options->algorithm)) {
        status = unknown_algorithm(options->algorithm, coll, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    return ps     ? gr_simulate_ps(options, diag)
           : step ? simulate_training(options, diag)
                  : simulate_operation(options, coll, diag);
}

static void print_usage(void)
{
    puts(
        "usage: gradus simulate OPERATION [cluster.yaml] [flags]\n"
        "       gradus simulate step|ps [cluster.yaml] [flags]\n\n"
        "How long a collective, or a training step, would take on a cluster that is only\n"
        "described, up to 131,072 ranks: the plans of all ranks run in simulated time, or those\n"
        "of smaller worlds from which the large one is extrapolated. \"ps\" is a training step by\n"
        "parameter servers, beside the other ways in which gradients can meet, and how many\n"
        "servers such workers need. The keys below stand in the file; flags stand over it.\n\n"
        "  gradus simulate allreduce --hosts 64 --ranks-per-host 8 --compare\n"
        "  gradus simulate step cluster.yaml --scaling\n"
        "  gradus simulate ps --hosts 8 --spread 20 --slow 3:4\n");
}

static int simulate(const gr_cli_line *line)
{
    gr_diag diag = {0};
    gr_status status = run_line(line, &diag);
    return status == GR_OK      ? gr_cli_flush()
           : status == GR_E_BUG ? gr_cli_fail(GR_EXIT_FAILED, &diag)
                                : gr_cli_refuse(status, &diag);
}

const gr_cli_form gr_simulate_form = {
    .table = &gr_simulate_table,
    .usage = print_usage,
    .words_min = 1,
    .words_max = 2,
    .words_missing = "needs an operation: gradus simulate allreduce --hosts 8; \"gradus help "
                     "simulate\" tells more",
    .work = simulate};
