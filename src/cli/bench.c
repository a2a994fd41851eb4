/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus bench`: how long a collective takes, by size, with checked results. Inside a job every
 * rank runs it and joins by the environment; elsewhere it starts its own ranks on this host. */

#include "cli/bench.h"

#include "base/fail.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/self.h"
#include "coll/comm.h"
#include "coll/reduce/reduce.h"
#include "coll/select/select.h"
#include "launch/launch.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* All but GR_USER. */
static const char *const redop_choices[] = {"sum",  "average", "min",  "max", "product",
                                            "band", "bor",     "bxor", NULL};
static const gr_redop redops[] = {GR_SUM,     GR_AVERAGE, GR_MIN, GR_MAX,
                                  GR_PRODUCT, GR_BAND,    GR_BOR, GR_BXOR};
static const char *const placement_choices[] = {"both", "in", "out", NULL};

static const double size_max = 1LL << 40;

#define AT(member) .offset = offsetof(gr_bench_options, member)

static const gr_config_field bench_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     AT(workers),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "number of ranks to start on this host; otherwise one for each core"},
    {.flag = "--begin",
     .short_flag = 'b',
     .type = GR_CONFIG_BYTES,
     AT(begin_bytes),
     .default_text = "4",
     .min = 1,
     .max = size_max,
     .help = "smallest size: bytes of the larger of the operation's two buffers"},
    {.flag = "--end",
     .short_flag = 'e',
     .type = GR_CONFIG_BYTES,
     AT(end_bytes),
     .default_text = "64m",
     .min = 1,
     .max = size_max,
     .help = "largest size"},
    {.flag = "--factor",
     .short_flag = 'f',
     .type = GR_CONFIG_DOUBLE,
     AT(factor),
     .default_text = "4",
     .min = 1.1,
     .max = 1e6,
     .help = "from one size to the next"},
    {.flag = "--sizes",
     .type = GR_CONFIG_TEXT,
     AT(sizes),
     .value_name = "LIST",
     .help = "these sizes instead, like 4,16k,25m"},
    {.flag = "--dtype",
     .short_flag = 'd',
     .type = GR_CONFIG_CHOICE,
     AT(dtype),
     .default_text = "f32",
     .choices = gr_cli_dtypes,
     .help = "type of the elements"},
    {.flag = "--op",
     .short_flag = 'o',
     .type = GR_CONFIG_CHOICE,
     AT(redop),
     .default_text = "sum",
     .choices = redop_choices,
     .help = "how elements are reduced"},
    {.flag = "--root",
     .short_flag = 'r',
     .type = GR_CONFIG_INT,
     AT(root),
     .default_text = "0",
     .min = 0,
     .max = GR_LAUNCH_WORKERS_MAX - 1,
     .help = "root rank of operations that have one"},
    {.flag = "--time",
     .type = GR_CONFIG_DURATION,
     AT(time_us),
     .default_text = "100ms",
     .min = 1,
     .max = 3600e6,
     .help = "time to measure for each size, round and placement; at least one operation"},
    {.flag = "--iters",
     .type = GR_CONFIG_INT,
     AT(iterations),
     .min = 1,
     .max = GR_BENCH_SAMPLES_MAX,
     .help = "so many operations instead"},
    {.flag = "--warmup",
     .short_flag = 'w',
     .type = GR_CONFIG_INT,
     AT(warmup),
     .default_text = "3",
     .min = 1,
     .max = GR_BENCH_SAMPLES_MAX,
     .help = "operations in front that are not measured"},
    {.flag = "--rounds",
     .type = GR_CONFIG_INT,
     AT(rounds),
     .default_text = "1",
     .min = 1,
     .max = 1000,
     .help = "passes over all sizes; the more, the less other load on the machine matters"},
    {.flag = "--buffers",
     .type = GR_CONFIG_CHOICE,
     AT(buffers),
     .default_text = "registered",
     .choices = gr_bench_buffer_names,
     .help = "memory of gr_alloc, which peers on the host can read; of malloc; or of malloc, "
             "shared with them by gr_register (own)"},
    {.flag = "--mode",
     .type = GR_CONFIG_CHOICE,
     AT(mode),
     .default_text = "blocking",
     .choices = gr_bench_mode_names,
     .help = "the blocking calls, or start and wait"},
    {.flag = "--placement",
     .type = GR_CONFIG_CHOICE,
     AT(placement),
     .default_text = "both",
     .choices = placement_choices,
     .help = "out of place, in place or both, where the operation has both"},
    {.flag = "--compute",
     .type = GR_CONFIG_DURATION,
     AT(compute_us),
     .default_text = "0",
     .min = 0,
     .max = 3600e6,
     .help = "compute for so long between start and wait; times are what comes on top of it"},
    {.flag = "--algorithm",
     .short_flag = 'a',
     .env = "GRADUS_ALGORITHM",
     .type = GR_CONFIG_TEXT,
     AT(algorithm),
     .value_name = "NAME",
     .help = "force an algorithm for the measured operation; otherwise the fastest is chosen"},
    {.flag = "--exact",
     .env = "GRADUS_EXACT",
     .type = GR_CONFIG_BOOL,
     AT(exact),
     .default_text = "yes",
     .help = "only algorithms that add in the order that gives the same bits everywhere"},
    {.flag = "--link",
     GR_GROUP_ROW_LINK,
     AT(link),
     .help = "how ranks reach each other; auto: shm if all are on one host"},
    {.flag = "--together",
     .type = GR_CONFIG_BOOL,
     AT(together),
     .default_text = "false",
     .help = "an operation ends when all ranks have finished it: with a barrier behind each, which "
             "counts as well"},
    {.flag = "--check",
     .type = GR_CONFIG_BOOL,
     AT(check),
     .default_text = "yes",
     .help = "compare all elements of two results for each size and round"},
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     AT(json),
     .help = "one JSON object a line for each size instead of the table"},
    {.flag = "--plot",
     .type = GR_CONFIG_TEXT,
     AT(plot),
     .value_name = "FILE.svg",
     .help = "draw time and bandwidth over size"},
    {.key = NULL},
};

const gr_config_table gr_bench_table = {.name = "bench",
                                        .title = "Flags of `gradus bench`",
                                        .fields = bench_fields,
                                        .struct_bytes = sizeof(gr_bench_options)};

gr_redop gr_bench_redop(const gr_bench_options *options)
{
    return redops[options->redop];
}

static void list_operations(char *text, size_t size_bytes)
{
    enum { NAMES_MAX = 32 };
    const char *names[NAMES_MAX + 1];
    int count = 0;
    for (const gr_bench_op *op = gr_bench_ops; op->name != NULL && count < NAMES_MAX; op++) {
        names[count++] = op->name;
    }
    names[count] = NULL;
    gr_text_list(text, size_bytes, names);
}

static void print_usage(void)
{
    char names[256];
    list_operations(names, sizeof names);
    printf(
        "usage: gradus bench OPERATION [flags]\n"
        "       gradus run [flags] -- gradus bench OPERATION [flags]\n\n"
        "Measures a collective and checks its results. OPERATION: %s.\n"
        "Times of one operation are averaged over the ranks. algbw is size / median time; busbw\n"
        "is algbw times what an ideal bus must move for each byte: 2(n-1)/n for allreduce,\n"
        "(n-1)/n for operations with a block for each of the n ranks, 1 for the others.\n"
        "Exit code: 0 all results are right, 1 they are not or the job failed, 2 what was given\n"
        "is wrong.\n\n",
        names);
}

/* ---- What is measured ------------------------------------------------------------------------ */
static gr_status find_operation(const gr_cli_line *line, gr_bench *bench, gr_diag *diag)
{
    char names[256];
    list_operations(names, sizeof names);
    if (line->word_count == 0) {
        return gr_fail(diag, GR_E_INVALID, "bench: say which operation: %s", names);
    }
    bench->op = gr_bench_op_find(line->words[0]);
    return bench->op != NULL
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "bench: there is no operation \"%s\"; it is %s",
                         line->words[0], names);
}

/* A size becomes a whole number of elements, of each block where there are blocks. */
static gr_status add_row(gr_bench *bench, int64_t size_bytes, int ranks, gr_diag *diag)
{
    size_t unit =
        gr_dtype_bytes((gr_dtype)bench->options.dtype) * (size_t)gr_bench_blocks(bench->op, ranks);
    size_t count = (size_t)size_bytes / unit;
    count = count > 0 ? count : 1;
    if (bench->row_count > 0 && bench->rows[bench->row_count - 1].count == count) {
        return GR_OK;
    }
    if (bench->row_count == GR_BENCH_SIZES_MAX) {
        return gr_fail(diag, GR_E_INVALID, "bench: more than %d sizes; raise --factor",
                       GR_BENCH_SIZES_MAX);
    }
    bench->rows[bench->row_count++] = (gr_bench_row){.size_bytes = count * unit, .count = count};
    return GR_OK;
}

static gr_status add_listed_rows(gr_bench *bench, int ranks, gr_arena *arena, gr_diag *diag)
{
    const gr_config_field field = {.type = GR_CONFIG_BYTES, .min = 1, .max = size_max};
    char *list = gr_arena_strdup(arena, bench->options.sizes), *rest = NULL;
    if (list == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "bench: --sizes is too long");
    }
    gr_status status = GR_OK;
    for (char *word = strtok_r(list, ",", &rest); word != NULL && status == GR_OK;
         word = strtok_r(NULL, ",", &rest)) {
        int64_t size_bytes;
        status = gr_config_set(&field, &size_bytes, word, "--sizes", arena, diag);
        if (status == GR_OK) {
            status = add_row(bench, size_bytes, ranks, diag);
        }
    }
    return status;
}

static gr_status make_rows(gr_bench *bench, int ranks, gr_arena *arena, gr_diag *diag)
{
    const gr_bench_options *options = &bench->options;
    if (bench->op->coll == GR_COLL_BARRIER) {
        bench->rows[bench->row_count++] = (gr_bench_row){.size_bytes = 0};
        return GR_OK;
    }
    gr_status status = GR_OK;
    if (options->sizes != NULL) {
        status = add_listed_rows(bench, ranks, arena, diag);
    } else {
        double last = (double)options->end_bytes;
        for (double size = (double)options->begin_bytes; size <= last && status == GR_OK;
             size *= options->factor) {
            status = add_row(bench, (int64_t)size, ranks, diag);
        }
    }
    if (status == GR_OK && bench->row_count == 0) {
        status = gr_fail(diag, GR_E_INVALID,
                         "bench: there is no size to measure; --end must be at least --begin");
    }
    return status;
}

/* What can be said before any rank is started, and is said again by each rank of a job. */
static gr_status check_options(gr_bench *bench, int ranks, gr_arena *arena, gr_diag *diag)
{
    const gr_bench_options *options = &bench->options;
    size_t plot_length = options->plot != NULL ? strlen(options->plot) : 0;
    if (options->workers != 0 && options->workers != ranks) {
        return gr_fail(diag, GR_E_INVALID,
                       "bench: -np %lld inside a job of %d ranks; leave it out, or start bench "
                       "without \"gradus run\"",
                       (long long)options->workers, ranks);
    }
    if (bench->op->coll == GR_COLL_SEND && ranks < 2) {
        return gr_fail(diag, GR_E_INVALID, "bench: sendrecv needs two ranks; use -np 2 or more");
    }
    gr_dtype dtype = (gr_dtype)options->dtype;
    gr_redop redop = gr_bench_redop(options);
    if (bench->op->reduces && !gr_dtype_reduces(dtype, redop)) {
        char those[128];
        gr_dtype_list_reductions(dtype, those, sizeof those);
        return gr_fail(diag, GR_E_INVALID, "bench: %s cannot be reduced by %s, only by %s",
                       gr_dtype_name(dtype), gr_redop_name(redop), those);
    }
    if (options->root >= ranks) {
        return gr_fail(diag, GR_E_INVALID, "bench: --root %lld is no rank of a job of %d",
                       (long long)options->root, ranks);
    }
    if (options->iterations * options->rounds > GR_BENCH_SAMPLES_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "bench: --iters times --rounds is more than %d; lower one of them",
                       GR_BENCH_SAMPLES_MAX);
    }
    if (options->plot != NULL &&
        (plot_length < 5 || strcmp(options->plot + plot_length - 4, ".svg") != 0)) {
        return gr_fail(diag, GR_E_INVALID, "bench: --plot \"%s\" must end in .svg", options->plot);
    }
    return make_rows(bench, ranks, arena, diag);
}

/* A bare name is for the measured operation. */
static gr_status choose_algorithm(gr_bench *bench, gr_arena *arena, gr_diag *diag)
{
    const char *wanted = bench->options.algorithm;
    if (wanted == NULL) {
        return GR_OK;
    }
    if (strchr(wanted, '=') == NULL) {
        bench->options.algorithm =
            gr_arena_printf(arena, "%s=%s", gr_coll_name(bench->op->coll), wanted);
        if (bench->options.algorithm == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "bench: --algorithm is too long");
        }
    }
    gr_select_rules rules;
    return gr_select_rules_parse(&rules, bench->options.algorithm, bench->options.exact, 0, diag);
}

/* ---- A rank ---------------------------------------------------------------------------------- */
static int finish_rank(const gr_bench *bench, int rank)
{
    gr_diag diag = {0};
    int64_t wrong = gr_bench_wrong(bench);
    if (rank != 0) {
        return GR_EXIT_DONE;
    }
    if (bench->options.plot != NULL && gr_bench_plot(bench, bench->options.plot, &diag) != GR_OK) {
        return gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    if (wrong > 0) {
        fprintf(stderr, "gradus: bench: %lld elements of the results are wrong\n",
                (long long)wrong);
        return GR_EXIT_FAILED;
    }
    return gr_cli_flush();
}

static int run_rank(gr_bench *bench, gr_group_config *job, gr_arena *arena)
{
    int rank = (int)job->rank;
    gr_diag diag = {0};
    gr_status status = check_options(bench, (int)job->world_size, arena, &diag);
    if (status == GR_OK) {
        job->link = bench->options.link;
        job->algorithm = bench->options.algorithm;
        job->exact = bench->options.exact;
        status = gr_comm_create_from(job, &bench->comm, &diag);
        gr_group_config_wipe(job);
    }
    if (status == GR_OK && rank == 0) {
        gr_bench_print_head(bench);
    }
    if (status == GR_OK) {
        status = gr_bench_measure(bench, gr_bench_print_row, &diag);
    }
    int code = status == GR_OK ? finish_rank(bench, rank) : gr_self_failed(rank, status, &diag);
    gr_comm_destroy(bench->comm);
    return code;
}

/* ---- The launcher ---------------------------------------------------------------------------- */
static int run_job(gr_bench *bench, const gr_cli_line *line)
{
    int ranks = 0;
    gr_diag diag = {0};
    gr_status status = gr_self_count(bench->options.workers, 1, &ranks, &diag);
    if (status == GR_OK) {
        status = check_options(bench, ranks, line->arena, &diag);
    }
    if (status == GR_OK && bench->options.plot != NULL) {
        status = gr_cli_check_target(bench->options.plot, &diag);
    }
    return status == GR_OK ? gr_self_launch(line->argc, line->argv, ranks, line->arena)
                           : gr_cli_refuse(status, &diag);
}

static int measure(const gr_cli_line *line)
{
    const gr_bench_options *options = line->options;
    gr_bench *bench = calloc(1, sizeof *bench); /* too large for a stack */
    gr_diag diag = {0};
    gr_group_config job = {.rank = -1};
    gr_status status = bench != NULL ? GR_OK : gr_fail(&diag, GR_E_NO_MEMORY, "no memory");
    if (status == GR_OK) {
        bench->options = *options;
        status = find_operation(line, bench, &diag);
    }
    if (status == GR_OK) {
        status = choose_algorithm(bench, line->arena, &diag);
    }
    if (status == GR_OK) {
        status = gr_group_config_from_env(&job, line->arena, &diag);
    }
    int code = status != GR_OK ? gr_cli_refuse(status, &diag)
               : job.rank >= 0 ? run_rank(bench, &job, line->arena)
                               : run_job(bench, line);
    free(bench);
    return code;
}

const gr_cli_form gr_bench_form = {.table = &gr_bench_table,
                                   .usage = print_usage,
                                   .words_max = 1,
                                   .by_environment = true,
                                   .work = measure};
