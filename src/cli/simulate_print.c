/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "cli/simulate.h"

static double ranks_of(const gr_cluster *cluster)
{
    return (double)(cluster->hosts * cluster->ranks_per_host);
}

/* What the wire has to carry at least, as a multiple of the buffer: busbw = algbw times this. */
static double bus_factor(gr_coll coll, double n)
{
    switch (coll) {
    case GR_COLL_ALLREDUCE:
        return 2 * (n - 1) / n;
    case GR_COLL_BROADCAST:
    case GR_COLL_REDUCE:
        return 1;
    default:
        return (n - 1) / n;
    }
}

static double algbw(int64_t size_bytes, double time_us)
{
    return time_us > 0 ? (double)size_bytes / time_us * 1e-3 : 0;
}

static void print_size(int64_t size_bytes)
{
    static const char units[] = " kMGT";
    int unit = 0;
    int64_t size = size_bytes;
    while (units[unit + 1] != '\0' && size >= 1024 && size % 1024 == 0) {
        size /= 1024;
        unit++;
    }
    char text[32];
    snprintf(text, sizeof text, "%lld %s%s", (long long)size,
             unit > 0 ? (char[]){units[unit], 0} : "", unit > 0 ? "iB" : "B");
    printf("%10s", text);
}

/* ---- An operation ---------------------------------------------------------------------------- */
void gr_simulate_print_head(const gr_simulate_print *print, const gr_simulate_size *first)
{
    if (print->json) {
        return;
    }
    const gr_cluster *cluster = print->cluster;
    printf("%s on %lld host%s with %lld rank%s each (%.0f ranks)\n", gr_coll_name(print->coll),
           (long long)cluster->hosts, cluster->hosts == 1 ? "" : "s",
           (long long)cluster->ranks_per_host, cluster->ranks_per_host == 1 ? "" : "s",
           ranks_of(cluster));
    if (cluster->hosts > 1) {
        printf("%.3g Gbit/s and %.3g us between hosts\n", cluster->bandwidth_gbit,
               cluster->latency_us);
    }
    putchar('\n');
    if (!print->compare) {
        printf("%10s  %-18s %12s %11s %11s   %s\n", "size", "algorithm", "time", "algbw GB/s",
               "busbw GB/s", "latency  bandw.  reduct.  overhead");
        return;
    }
    printf("%10s", "size");
    for (int i = 0; i < first->row_count; i++) {
        printf("  %16s", first->rows[i].algorithm->name);
    }
    puts("   (us; * the fastest)");
}

static gr_status print_json(const gr_simulate_print *print, const gr_simulate_size *size,
                            const gr_simulate_row *row, gr_diag *diag)
{
    const gr_simulated *r = &row->result;
    double n = ranks_of(print->cluster);
    double bandwidth = algbw(size->size_bytes, r->time_us);
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:s, s:b, s:b, s:b, s:f, s:f, s:f, s:s, s:f, s:I, s:f, s:f, s:f, "
        "s:f, "
        "s:f, s:f}",
        "op", gr_coll_name(print->coll), "size_bytes", (json_int_t)size->size_bytes, "ranks",
        (json_int_t)n, "hosts", (json_int_t)print->cluster->hosts, "algorithm",
        row->algorithm->name, "canonical", row->algorithm->canonical, "best", row->best, "chosen",
        size->chosen == row->algorithm, "time_us", r->time_us, "algbw_gbps", bandwidth,
        "busbw_gbps", bandwidth * bus_factor(print->coll, n), "method",
        r->extrapolated ? "extrapolated" : "simulated", "error", r->error, "ranks_simulated",
        (json_int_t)r->largest_simulated, "latency_us", r->part_us[GR_TIME_LATENCY], "bandwidth_us",
        r->part_us[GR_TIME_BANDWIDTH], "reduction_us", r->part_us[GR_TIME_REDUCTION], "overhead_us",
        r->part_us[GR_TIME_OVERHEAD], "wire_bytes", r->wire_bytes, "messages", r->messages);
    return gr_cli_print_json(object, diag);
}

static void print_best(const gr_simulate_print *print, const gr_simulate_size *size,
                       const gr_simulate_row *row)
{
    const gr_simulated *r = &row->result;
    double bandwidth = algbw(size->size_bytes, r->time_us);
    double percent = r->time_us > 0 ? 100 / r->time_us : 0;
    print_size(size->size_bytes);
    printf("  %-18s %9.1f us %11.3f %11.3f   %5.1f %%  %5.1f %%  %5.1f %%   %5.1f %%\n",
           row->algorithm->name, r->time_us, bandwidth,
           bandwidth * bus_factor(print->coll, ranks_of(print->cluster)),
           percent * r->part_us[GR_TIME_LATENCY], percent * r->part_us[GR_TIME_BANDWIDTH],
           percent * r->part_us[GR_TIME_REDUCTION], percent * r->part_us[GR_TIME_OVERHEAD]);
}

/* A job chooses by a model that knows less: where that is not the fastest, it is said. */
static void print_choice(const gr_simulate_size *size)
{
    const double worth_saying = 1.02;
    const gr_simulate_row *best = NULL, *chosen = NULL;
    for (int i = 0; i < size->row_count; i++) {
        best = size->rows[i].best ? &size->rows[i] : best;
        chosen = size->rows[i].algorithm == size->chosen ? &size->rows[i] : chosen;
    }
    if (best != NULL && chosen != NULL &&
        chosen->result.time_us > worth_saying * best->result.time_us) {
        printf("%10s  a job chooses %s here: %.1f us; %sGRADUS_ALGORITHM=%s=%s makes it the "
               "fastest\n",
               "", chosen->algorithm->name, chosen->result.time_us,
               best->algorithm->canonical ? "" : "GRADUS_EXACT=0 ",
               gr_coll_name(best->algorithm->coll), best->algorithm->name);
    }
}

gr_status gr_simulate_print_size(const gr_simulate_print *print, const gr_simulate_size *size,
                                 gr_diag *diag)
{
    if (!print->json && print->compare) {
        print_size(size->size_bytes);
    }
    gr_status status = GR_OK;
    for (int i = 0; i < size->row_count && status == GR_OK; i++) {
        const gr_simulate_row *row = &size->rows[i];
        if (print->json && (print->compare || row->best)) {
            status = print_json(print, size, row, diag);
        } else if (!print->json && print->compare) {
            printf("  %15.1f%s", row->result.time_us, row->best ? "*" : " ");
        } else if (!print->json && row->best) {
            print_best(print, size, row);
        }
    }
    if (!print->json && print->compare) {
        putchar('\n');
    }
    if (!print->json) {
        print_choice(size);
    }
    return status;
}

void gr_simulate_print_method(const gr_simulate_print *print, const gr_simulate_size *last)
{
    if (print->json) {
        return;
    }
    putchar('\n');
    for (int i = 0; i < last->row_count; i++) {
        const gr_simulated *r = &last->rows[i].result;
        if (!print->compare && !last->rows[i].best) {
            continue;
        }
        if (r->extrapolated) {
            printf("%s: extrapolated from worlds of up to %lld ranks; that world, extrapolated "
                   "from smaller ones, is off by %.1f %%\n",
                   last->rows[i].algorithm->name, (long long)r->largest_simulated, 100 * r->error);
        } else {
            printf("%s: the plans of all %lld ranks, simulated event by event\n",
                   last->rows[i].algorithm->name, (long long)r->largest_simulated);
        }
    }
}

/* ---- A training step ------------------------------------------------------------------------- */
void gr_simulate_print_step_head(bool json)
{
    if (!json) {
        printf("%8s %8s  %-18s %12s %12s %12s %12s  %s\n", "hosts", "ranks", "allreduce by",
               "step ms", "compute ms", "allreduce ms", "exposed ms", "efficiency  speedup");
    }
}

gr_status gr_simulate_print_step(bool json, const gr_cluster *cluster, const char *algorithm,
                                 const gr_simulated_step *step, gr_diag *diag)
{
    double n = ranks_of(cluster);
    double efficiency = step->time_us > 0 ? step->compute_us / step->time_us : 1;
    if (!json) {
        printf("%8lld %8.0f  %-18s %12.3f %12.3f %12.3f %12.3f  %8.1f %%  %7.1f",
               (long long)cluster->hosts, n, algorithm, step->time_us * 1e-3,
               step->compute_us * 1e-3, step->allreduce_us * 1e-3, step->exposed_us * 1e-3,
               100 * efficiency, n * efficiency);
        if (step->extrapolated) {
            printf("  (extrapolated, error about %.1f %%)", 100 * step->error);
        }
        putchar('\n');
        return GR_OK;
    }
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:s, s:f}", "op", "step", "hosts",
        (json_int_t)cluster->hosts, "ranks", (json_int_t)n, "algorithm", algorithm, "step_us",
        step->time_us, "compute_us", step->compute_us, "allreduce_us", step->allreduce_us,
        "exposed_us", step->exposed_us, "buckets", (json_int_t)step->buckets, "efficiency",
        efficiency, "speedup", n * efficiency, "method",
        step->extrapolated ? "extrapolated" : "simulated", "error", step->error);
    return gr_cli_print_json(object, diag);
}
