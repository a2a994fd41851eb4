/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"

#include "coll/comm.h"

const char *const gr_bench_buffer_names[] = {"registered", "malloc", "own", NULL};
const char *const gr_bench_mode_names[] = {"blocking", "async", NULL};

static const char *const placement_names[] = {"out of place", "in place"};

static const char *buffers_of(const gr_bench *bench)
{
    return gr_bench_buffer_names[bench->options.buffers];
}

static const char *mode_of(const gr_bench *bench)
{
    return bench->options.compute_us > 0 ? "async" : gr_bench_mode_names[bench->options.mode];
}

static const char *type_of(const gr_bench *bench)
{
    return bench->op->coll == GR_COLL_BARRIER ? "-" : gr_dtype_name((gr_dtype)bench->options.dtype);
}

static const char *redop_of(const gr_bench *bench)
{
    return bench->op->reduces ? gr_redop_name(gr_bench_redop(&bench->options)) : "-";
}

/* ---- The table ------------------------------------------------------------------------------- */
enum { TIMES_WIDTH = 58 };

static bool shown(const gr_bench *bench, int in_place)
{
    return bench->op->places > 1 || (in_place != 0) == (bench->op->coll != GR_COLL_SEND);
}

void gr_bench_print_head(const gr_bench *bench)
{
    if (bench->options.json) {
        return;
    }
    int ranks = gr_comm_size(bench->comm);
    printf("# %s, %d rank%s, link %s, %s buffers, %s; time: median, us; bandwidth: 10^9 bytes/s\n",
           bench->op->name, ranks, ranks == 1 ? "" : "s", gr_comm_link_name(bench->comm),
           buffers_of(bench), mode_of(bench));
    printf("#%68s", "");
    for (int in_place = 0; in_place < 2; in_place++) {
        if (shown(bench, in_place)) {
            printf("%*s%s", TIMES_WIDTH - 12, "", placement_names[in_place]);
        }
    }
    printf("\n#%11s %11s %10s %8s %4s %-18s", "size", "count", "type", "op", "root", "algorithm");
    for (int in_place = 0; in_place < 2; in_place++) {
        if (shown(bench, in_place)) {
            printf(" %10s %10s %10s %7s %7s %8s", "time", "min", "p99", "algbw", "busbw", "#wrong");
        }
    }
    printf("%s\n#%11s %11s\n", bench->options.compute_us > 0 ? "  compute" : "", "(bytes)",
           "(elements)");
    fflush(stdout);
}

static void print_table_row(const gr_bench *bench, const gr_bench_row *row)
{
    char root[12] = "-";
    if (bench->op->rooted) {
        snprintf(root, sizeof root, "%d", (int)bench->options.root);
    }
    printf("%12zu %11zu %10s %8s %4s %-18s", row->size_bytes, row->count, type_of(bench),
           redop_of(bench), root, row->algorithm);
    double speed = 0;
    for (int in_place = 0; in_place < 2; in_place++) {
        const gr_bench_times *times = &row->times[in_place];
        if (times->measured) {
            printf(" %10.2f %10.2f %10.2f %7.3f %7.3f %8lld", times->median, times->least,
                   times->p99, times->algbw, times->busbw, (long long)times->wrong);
            speed = times->compute_speed;
        } else if (shown(bench, in_place)) {
            printf(" %10s %10s %10s %7s %7s %8s", "-", "-", "-", "-", "-", "-");
        }
    }
    if (bench->options.compute_us > 0) {
        printf(" %7.1f%%", 100 * speed);
    }
    putchar('\n');
}

/* ---- JSON ------------------------------------------------------------------------------------ */
static void print_json_times(const gr_bench *bench, const gr_bench_times *times)
{
    printf("\"time_us_median\": %.3f, \"time_us_mean\": %.3f, \"time_us_min\": %.3f, "
           "\"time_us_p99\": %.3f, \"algbw_gbps\": %.6f, \"busbw_gbps\": %.6f, "
           "\"operations\": %lld",
           times->median, times->mean, times->least, times->p99, times->algbw, times->busbw,
           (long long)times->operations);
    if (bench->options.compute_us > 0) {
        printf(", \"compute_speed\": %.4f", times->compute_speed);
    }
}

/* How late each rank came lately, as this one saw it. */
static void print_json_late(gr_comm *comm)
{
    printf(", \"late_us\": [");
    for (int rank = 0; rank < gr_comm_size(comm); rank++) {
        gr_skew skew;
        bool known = gr_comm_skew(comm, rank, &skew) == GR_OK;
        printf("%s%.3f", rank > 0 ? ", " : "", known ? skew.recent_us : 0.0);
    }
    putchar(']');
}

/* The figures of the object itself are those out of place where these were measured. */
static void print_json_row(const gr_bench *bench, const gr_bench_row *row)
{
    const gr_bench_times *out = &row->times[0], *in = &row->times[1];
    bool in_place = !out->measured;
    printf("{\"op\": \"%s\", \"size_bytes\": %zu, \"count\": %zu, \"dtype\": \"%s\", "
           "\"redop\": \"%s\", \"root\": %d, \"ranks\": %d, \"link\": \"%s\", "
           "\"algorithm\": \"%s\", \"buffers\": \"%s\", \"mode\": \"%s\", \"in_place\": %s, ",
           bench->op->name, row->size_bytes, row->count, type_of(bench), redop_of(bench),
           bench->op->rooted ? (int)bench->options.root : -1, gr_comm_size(bench->comm),
           gr_comm_link_name(bench->comm), row->algorithm, buffers_of(bench), mode_of(bench),
           in_place ? "true" : "false");
    print_json_times(bench, in_place ? in : out);
    printf(", \"wrong\": %lld", (long long)(out->wrong + in->wrong));
    if (out->measured && in->measured) {
        printf(", \"times_in_place\": {");
        print_json_times(bench, in);
        putchar('}');
    }
    print_json_late(bench->comm);
    puts("}");
}

void gr_bench_print_row(const gr_bench *bench, const gr_bench_row *row)
{
    if (bench->options.json) {
        print_json_row(bench, row);
    } else {
        print_table_row(bench, row);
    }
    fflush(stdout);
}

int64_t gr_bench_wrong(const gr_bench *bench)
{
    int64_t wrong = 0;
    for (int i = 0; i < bench->row_count; i++) {
        wrong += bench->rows[i].times[0].wrong + bench->rows[i].times[1].wrong;
    }
    return wrong;
}
