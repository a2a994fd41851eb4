/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus checkpoint`: what is in a folder of checkpoints, and is it sound? */

#include "cli/checkpoint.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "train/checkpoint/checkpoint.h"
#include "train/evaluation.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct checkpoint_options {
    bool json;
    bool force;
    bool best;
} checkpoint_options;

static const gr_config_field checkpoint_fields[] = {
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(checkpoint_options, json),
     .help = "ls, diff: print JSON, one object a line"},
    {.flag = "--force",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(checkpoint_options, force),
     .help = "convert: replace a file that is there"},
    {.flag = "--best",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(checkpoint_options, best),
     .help = "convert: of a folder, the best one (keep_best) in place of the newest"},
    {.key = NULL},
};

const gr_config_table gr_checkpoint_table = {.name = "checkpoint",
                                             .title = "Flags of `gradus checkpoint`",
                                             .fields = checkpoint_fields,
                                             .struct_bytes = sizeof(checkpoint_options)};

/* A folder of checkpoints, or a checkpoint itself? */
static bool is_checkpoint(const char *path)
{
    char manifest[PATH_MAX];
    struct stat info;
    int length = snprintf(manifest, sizeof manifest, "%s/%s", path, GR_CHECKPOINT_MANIFEST);
    return length < (int)sizeof manifest && stat(manifest, &info) == 0;
}

static int input_fail(const gr_diag *diag)
{
    return gr_cli_fail(GR_EXIT_INPUT, diag);
}

/* ---- ls -------------------------------------------------------------------------------------- */

typedef struct listed {
    uint64_t step, bytes;
    double epoch;
    int64_t time_s;
    bool best;
    gr_status status;
    gr_diag diag;
} listed;

static void read_row(const char *path, listed *row)
{
    gr_checkpoint *checkpoint = NULL;
    row->status = gr_checkpoint_open(path, &checkpoint, &row->diag);
    if (row->status != GR_OK) {
        return;
    }
    const gr_checkpoint_info *info = gr_checkpoint_info_of(checkpoint);
    row->bytes = gr_checkpoint_bytes(checkpoint);
    row->time_s = info->time_s;
    row->epoch = (double)info->step / (double)info->steps_per_epoch;
    row->status = gr_checkpoint_check(checkpoint, &row->diag);
    gr_checkpoint_close(checkpoint);
}

/* The step of the best checkpoint, if it stays, by the newest sound one; 0: none. */
static uint64_t best_step(const char *folder)
{
    gr_diag diag;
    gr_checkpoint *checkpoint = NULL;
    uint64_t best = 0;
    if (gr_checkpoint_newest(folder, NULL, &checkpoint, &diag) == GR_OK) {
        const gr_checkpoint_info *info = gr_checkpoint_info_of(checkpoint);
        best = info->keeps_best ? info->best.step : 0;
    }
    gr_checkpoint_close(checkpoint);
    return best;
}

static gr_status print_row(const checkpoint_options *options, const char *path, const listed *row,
                           gr_diag *diag)
{
    char when[32] = "";
    struct tm parts;
    time_t seconds = (time_t)row->time_s;
    if (row->time_s > 0 && gmtime_r(&seconds, &parts) != NULL) {
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    if (options->json) {
        json_t *object =
            json_pack("{s:s, s:I, s:f, s:s, s:I, s:b, s:s, s:b}", "path", path, "step",
                      (json_int_t)row->step, "epoch", row->epoch, "time", when, "bytes",
                      (json_int_t)row->bytes, "ok", row->status == GR_OK, "problem",
                      row->status == GR_OK ? "" : row->diag.text, "best", row->best);
        return gr_cli_print_json(object, diag);
    }
    if (row->bytes == 0) {
        printf("%10" PRIu64 "  %s\n", row->step, row->diag.text);
    } else {
        printf("%10" PRIu64 "  %8.2f  %-20s  %9.2f MiB  %s%s\n", row->step, row->epoch, when,
               (double)row->bytes / 1048576.0, row->status == GR_OK ? "ok" : row->diag.text,
               row->best ? ", the best" : "");
    }
    return GR_OK;
}

/* At least one. */
static gr_status find_steps(const char *folder, uint64_t **steps_out, int *count_out, gr_diag *diag)
{
    struct stat info;
    if (stat(folder, &info) != 0) {
        return gr_fail(diag, GR_E_NOT_FOUND, "there is no folder %s", folder);
    }
    gr_status status = gr_checkpoint_list(folder, steps_out, count_out, diag);
    if (status == GR_OK && *count_out == 0) {
        free(*steps_out);
        return gr_fail(diag, GR_E_NOT_FOUND, "there is no checkpoint in %s", folder);
    }
    return status;
}

static int list(const checkpoint_options *options, const char *folder)
{
    gr_diag diag = {0};
    uint64_t *steps = NULL;
    int count = 0, damaged = 0;
    gr_status status = find_steps(folder, &steps, &count, &diag);
    if (status != GR_OK) {
        return input_fail(&diag);
    }
    if (!options->json) {
        printf("%10s  %8s  %-20s  %13s\n", "step", "epoch", "written", "size");
    }
    uint64_t best = best_step(folder);
    for (int i = 0; i < count && status == GR_OK; i++) {
        char path[PATH_MAX];
        listed row = {.step = steps[i], .best = steps[i] == best};
        status = gr_checkpoint_path(folder, steps[i], path, sizeof path, &diag);
        if (status == GR_OK) {
            read_row(path, &row);
            status = print_row(options, path, &row, &diag);
            damaged += row.status != GR_OK;
        }
    }
    free(steps);
    int code = status != GR_OK ? input_fail(&diag) : gr_cli_flush();
    return code != GR_EXIT_DONE ? code : damaged > 0 ? GR_EXIT_FAILED : GR_EXIT_DONE;
}

/* ---- verify ---------------------------------------------------------------------------------- */

static bool verify_one(const char *path)
{
    gr_checkpoint *checkpoint = NULL;
    gr_diag diag = {0};
    gr_status status = gr_checkpoint_open(path, &checkpoint, &diag);
    if (status == GR_OK) {
        status = gr_checkpoint_check(checkpoint, &diag);
    }
    gr_checkpoint_close(checkpoint);
    if (status == GR_OK) {
        printf("%s: ok\n", path);
    } else {
        gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    return status == GR_OK;
}

static int verify(const gr_cli_line *line)
{
    bool sound = true;
    for (int i = 1; i < line->word_count; i++) {
        const char *name = line->words[i];
        gr_diag diag = {0};
        uint64_t *steps = NULL;
        int count = 0;
        if (is_checkpoint(name)) {
            sound = verify_one(name) && sound;
            continue;
        }
        gr_status status = find_steps(name, &steps, &count, &diag);
        if (status != GR_OK) {
            return input_fail(&diag);
        }
        for (int c = 0; c < count; c++) {
            char path[PATH_MAX];
            status = gr_checkpoint_path(name, steps[c], path, sizeof path, &diag);
            sound = status == GR_OK && verify_one(path) && sound;
        }
        free(steps);
    }
    int code = gr_cli_flush();
    return code != GR_EXIT_DONE ? code : sound ? GR_EXIT_DONE : GR_EXIT_FAILED;
}

/* ---- Which checkpoint is meant --------------------------------------------------------------- */

/* The best checkpoint of the folder, by what its newest one knows. */
static gr_status open_best(const char *folder, const gr_checkpoint_info *newest,
                           gr_checkpoint **checkpoint_out, gr_diag *diag)
{
    char path[PATH_MAX];
    unsigned long long step = newest->best.step;
    if (step == 0) {
        return gr_fail(diag, GR_E_INVALID, "%s has no best checkpoint: %s", folder,
                       newest->keeps_best ? "what its job watches has had no value yet"
                                          : "its job did not say checkpoint: {keep_best: true}");
    }
    gr_status status = gr_checkpoint_path(folder, newest->best.step, path, sizeof path, diag);
    if (status != GR_OK || is_checkpoint(path)) {
        return status == GR_OK ? gr_checkpoint_open(path, checkpoint_out, diag) : status;
    }
    return newest->keeps_best
               ? gr_fail(diag, GR_E_INVALID,
                         "the best checkpoint of %s, after step %llu, is gone: it was removed, or "
                         "its writer died; leave out --best to take the newest",
                         folder, step)
               : gr_fail(diag, GR_E_INVALID,
                         "%s has not kept its best checkpoint, after step %llu: its job did not "
                         "say checkpoint: {keep_best: true}; leave out --best to take the newest",
                         folder, step);
}

gr_status gr_cli_open_checkpoint(const char *path, bool best, gr_checkpoint **checkpoint_out,
                                 gr_diag *diag)
{
    const gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    if (is_checkpoint(path)) {
        return gr_checkpoint_open(path, checkpoint_out, diag);
    }
    gr_checkpoint *newest = NULL;
    gr_status status = gr_checkpoint_newest(path, &log, &newest, diag);
    if (status != GR_OK || !best) {
        *checkpoint_out = newest;
        return status;
    }
    status = open_best(path, gr_checkpoint_info_of(newest), checkpoint_out, diag);
    gr_checkpoint_close(newest);
    return status;
}

/* ---- diff ------------------------------------------------------------------------------------ */

enum { SIDE_FILES_MAX = 3 };

/* One of the two that are compared: the files of a checkpoint, or a plain one. */
typedef struct compared {
    const char *name;
    gr_safetensors *files[SIDE_FILES_MAX];
    int count;
} compared;

static gr_status open_side(const char *path, compared *side, gr_diag *diag)
{
    static const char *const names[] = {GR_CHECKPOINT_MODEL, GR_CHECKPOINT_OPTIMIZER,
                                        GR_CHECKPOINT_RESIDUALS};
    struct stat info;
    side->name = path;
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        gr_status status = gr_safetensors_open(path, &side->files[0], diag);
        side->count = status == GR_OK;
        return status;
    }
    gr_checkpoint *checkpoint = NULL;
    gr_status status = gr_cli_open_checkpoint(path, false, &checkpoint, diag);
    for (int i = 0; i < SIDE_FILES_MAX && status == GR_OK; i++) {
        if (gr_checkpoint_has(checkpoint, names[i])) {
            status = gr_checkpoint_read(checkpoint, names[i], &side->files[side->count], diag);
            side->count += status == GR_OK;
        }
    }
    gr_checkpoint_close(checkpoint);
    return status;
}

static void close_side(compared *side)
{
    for (int i = 0; i < side->count; i++) {
        gr_safetensors_close(side->files[i]);
    }
}

static const gr_safetensors_entry *find_tensor(const compared *side, const char *name)
{
    const gr_safetensors_entry *found = NULL;
    for (int i = 0; i < side->count && found == NULL; i++) {
        found = gr_safetensors_find(side->files[i], name);
    }
    return found;
}

typedef struct difference {
    size_t values; /* that differ */
    double largest, relative;
} difference;

/* f32 is compared by value, and by bits where values say nothing (NaN, -0). */
static difference compare_values(const gr_safetensors_entry *a, const gr_safetensors_entry *b)
{
    difference d = {0};
    for (size_t i = 0; i < a->count; i++) {
        float left, right;
        memcpy(&left, (const char *)a->data + i * sizeof left, sizeof left);
        memcpy(&right, (const char *)b->data + i * sizeof right, sizeof right);
        if (memcmp(&left, &right, sizeof left) == 0) {
            continue;
        }
        double gap = fabs((double)left - (double)right);
        double size = fmax(fabs((double)left), fabs((double)right));
        d.values++;
        d.largest = gap > d.largest || isnan(gap) ? gap : d.largest;
        double share = size > 0 ? fabs(gap / size) : gap; /* NaN, too, of infinity */
        d.relative = share > d.relative || isnan(share) ? share : d.relative;
    }
    return d;
}

static bool same_shape(const gr_safetensors_entry *a, const gr_safetensors_entry *b)
{
    bool same = a->dims == b->dims && strcmp(a->dtype, b->dtype) == 0;
    for (int i = 0; same && i < a->dims; i++) {
        same = a->dim[i] == b->dim[i];
    }
    return same;
}

static gr_status print_text_difference(const checkpoint_options *options, const char *tensor,
                                       const char *what, const char *where, gr_diag *diag)
{
    if (options->json) {
        json_t *object =
            json_pack("{s:s, s:s, s:s}", "tensor", tensor, "difference", what, "where", where);
        return gr_cli_print_json(object, diag);
    }
    printf("%-40s  %s %s\n", tensor, what, where);
    return GR_OK;
}

static gr_status print_values(const checkpoint_options *options, const gr_safetensors_entry *a,
                              const difference *d, gr_diag *diag)
{
    if (options->json) {
        json_t *object =
            json_pack("{s:s, s:s, s:I, s:I, s:o, s:o}", "tensor", a->name, "difference", "values",
                      "values", (json_int_t)d->values, "of", (json_int_t)a->count, "largest",
                      gr_json_number(d->largest), "relative", gr_json_number(d->relative));
        return gr_cli_print_json(object, diag);
    }
    printf("%-40s  %zu of %zu values differ, by %.3g at most, relatively by %.3g\n", a->name,
           d->values, a->count, d->largest, d->relative);
    return GR_OK;
}

/* Counts it in *differing if it does. */
static gr_status compare_tensor(const checkpoint_options *options, const gr_safetensors_entry *a,
                                const compared *other, int *differing, gr_diag *diag)
{
    const gr_safetensors_entry *b = find_tensor(other, a->name);
    bool same = b != NULL && same_shape(a, b);
    if (same && memcmp(a->data, b->data, a->bytes) == 0) {
        return GR_OK;
    }
    ++*differing;
    if (same && strcmp(a->dtype, "F32") == 0) {
        difference d = compare_values(a, b);
        return print_values(options, a, &d, diag);
    }
    const char *what = b == NULL ? "is not in"
                       : same    ? "has other values in"
                                 : "has another shape or type in";
    return print_text_difference(options, a->name, what, other->name, diag);
}

static int diff(const checkpoint_options *options, const char *left, const char *right)
{
    gr_diag diag = {0};
    compared sides[2] = {{.count = 0}, {.count = 0}};
    gr_status status = open_side(left, &sides[0], &diag);
    if (status == GR_OK) {
        status = open_side(right, &sides[1], &diag);
    }
    int differing = 0, tensors = 0;
    for (int f = 0; f < sides[0].count; f++) {
        for (int i = 0; status == GR_OK && i < gr_safetensors_count(sides[0].files[f]); i++) {
            status = compare_tensor(options, gr_safetensors_at(sides[0].files[f], i), &sides[1],
                                    &differing, &diag);
            tensors++;
        }
    }
    for (int f = 0; f < sides[1].count; f++) {
        for (int i = 0; status == GR_OK && i < gr_safetensors_count(sides[1].files[f]); i++) {
            const char *name = gr_safetensors_at(sides[1].files[f], i)->name;
            if (find_tensor(&sides[0], name) == NULL) {
                status = print_text_difference(options, name, "is not in", left, &diag);
                differing++;
                tensors++;
            }
        }
    }
    close_side(&sides[0]);
    close_side(&sides[1]);
    if (status != GR_OK) {
        return input_fail(&diag);
    }
    if (!options->json && differing == 0) {
        printf("all %d tensors are equal, bit for bit\n", tensors);
    } else if (!options->json) {
        printf("%d of %d tensors differ\n", differing, tensors);
    }
    int code = gr_cli_flush();
    return code != GR_EXIT_DONE ? code : differing > 0 ? GR_EXIT_FAILED : GR_EXIT_DONE;
}

/* ---- convert --------------------------------------------------------------------------------- */

static int convert(const checkpoint_options *options, const char *from, const char *to)
{
    gr_diag diag = {0};
    gr_checkpoint *checkpoint = NULL;
    char *data = NULL;
    size_t bytes = 0;
    struct stat info;
    if (stat(to, &info) == 0 && !options->force) {
        (void)gr_fail(&diag, GR_E_INVALID, "%s is there already; --force replaces it", to);
        return input_fail(&diag);
    }
    gr_status status = gr_cli_check_target(to, &diag);
    if (status == GR_OK) {
        status = gr_cli_open_checkpoint(from, options->best, &checkpoint, &diag);
    }
    if (status == GR_OK) {
        status = gr_checkpoint_read_bytes(checkpoint, GR_CHECKPOINT_MODEL, &data, &bytes, &diag);
    }
    uint64_t step = status == GR_OK ? gr_checkpoint_info_of(checkpoint)->step : 0;
    gr_checkpoint_close(checkpoint);
    if (status != GR_OK) {
        return input_fail(&diag);
    }
    status = gr_file_replace(to, data, bytes, &diag);
    free(data);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    printf("%s: the weights after step %" PRIu64 ", %zu bytes\n", to, step, bytes);
    return gr_cli_flush();
}

/* ---- The verb -------------------------------------------------------------------------------- */

static void print_usage(void)
{
    puts(
        "usage: gradus checkpoint ls DIR\n"
        "       gradus checkpoint verify DIR|CHECKPOINT ...\n"
        "       gradus checkpoint diff A B\n"
        "       gradus checkpoint convert DIR|CHECKPOINT model.safetensors\n\n"
        "DIR is a folder of checkpoints, CHECKPOINT one of those in it (DIR/step-000000400); "
        "where\n"
        "one is needed, DIR stands for its newest sound one.\n\n"
        "ls       step, epoch, time and size of each, and whether it is sound\n"
        "verify   is every byte as it was written? Exit code 1: no, and which file\n"
        "diff     which tensors differ, and by how much; A and B may also be safetensors files.\n"
        "         Exit code 0: the same, 1: not\n"
        "convert  the weights as one plain safetensors file, with --best of the best checkpoint\n");
}

static int run_line(const gr_cli_line *line)
{
    const checkpoint_options *options = line->options;
    static const char *const actions[] = {"ls", "verify", "diff", "convert", NULL};
    const char *action = line->word_count > 0 ? line->words[0] : "";
    int words = line->word_count - 1;
    if (strcmp(action, "ls") == 0 && words == 1) {
        return list(options, line->words[1]);
    }
    if (strcmp(action, "verify") == 0 && words > 0) {
        return verify(line);
    }
    if (strcmp(action, "diff") == 0 && words == 2) {
        return diff(options, line->words[1], line->words[2]);
    }
    if (strcmp(action, "convert") == 0 && words == 2) {
        return convert(options, line->words[1], line->words[2]);
    }
    const char *nearest = gr_nearest(action, actions);
    if (nearest != NULL && strcmp(nearest, action) != 0) {
        fprintf(stderr, "gradus: checkpoint knows no \"%s\"; did you mean %s?\n", action, nearest);
    } else {
        fputs("gradus: checkpoint needs ls DIR, verify DIR, diff A B, or convert DIR FILE; see "
              "\"gradus help checkpoint\"\n",
              stderr);
    }
    return GR_EXIT_INPUT;
}

const gr_cli_form gr_checkpoint_form = {.table = &gr_checkpoint_table,
                                        .usage = print_usage,
                                        .words_max = GR_CLI_WORDS_MAX,
                                        .work = run_line};
