/* SPDX-License-Identifier: Apache-2.0 */
#include "train/metrics.h"

#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_BYTES_MAX = 64 << 10, /* a longer line is none of ours */
    LINE_CLASSES_MAX = 64      /* whose confusion matrix stands in a line */
};

void gr_meter_add(gr_meter *meter, const gr_meter *more)
{
    meter->loss += more->loss;
    meter->correct += more->correct;
    meter->steps += more->steps;
    meter->samples += more->samples;
    meter->step_ns += more->step_ns;
    meter->wait_ns += more->wait_ns;
}

double gr_meter_loss(const gr_meter *meter)
{
    return meter->steps > 0 ? meter->loss / (double)meter->steps : (double)NAN;
}

double gr_meter_accuracy(const gr_meter *meter)
{
    return meter->samples > 0 ? meter->correct / (double)meter->samples : (double)NAN;
}

double gr_meter_samples_per_s(const gr_meter *meter)
{
    return meter->step_ns > 0 ? (double)meter->samples * 1e9 / (double)meter->step_ns : 0.0;
}

double gr_meter_wait_share(const gr_meter *meter)
{
    return meter->step_ns > 0 ? (double)meter->wait_ns / (double)meter->step_ns : 0.0;
}

void gr_recent_add(gr_recent *recent, const gr_meter *before, const gr_meter *after, int64_t now_ns)
{
    const gr_meter more = {.loss = after->loss - before->loss,
                           .steps = after->steps - before->steps,
                           .samples = after->samples - before->samples,
                           .step_ns = after->step_ns - before->step_ns};
    if (recent->begin_ns == 0) {
        recent->begin_ns = now_ns;
    }
    gr_meter_add(&recent->sum, &more);
    bool is_over = now_ns - recent->begin_ns >= GR_RECENT_S * INT64_C(1000000000);
    if (is_over || !recent->is_full) {
        recent->loss = gr_meter_loss(&recent->sum);
        recent->samples_per_s = gr_meter_samples_per_s(&recent->sum);
    }
    if (is_over) {
        recent->sum = (gr_meter){0};
        recent->begin_ns = now_ns;
        recent->is_full = true;
    }
}

static gr_status write_line(json_t *object, FILE *file, const char *where, gr_diag *diag)
{
    if (object == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a line of %s", where);
    }
    size_t flags = JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17);
    int failed =
        json_dumpf(object, file, flags) != 0 || fputc('\n', file) == EOF || fflush(file) != 0;
    int error = errno;
    json_decref(object);
    if (failed) {
        return gr_fail(diag, GR_E_IO, "cannot write to %s: %s", where, strerror(error));
    }
    return GR_OK;
}

gr_status gr_start_write(const gr_start_record *record, FILE *file, const char *where,
                         gr_diag *diag)
{
    json_t *object = json_pack(
        "{s:s, s:s?, s:s?, s:i, s:i, s:I, s:I, s:I, s:I, s:I}", "event", "start", "name",
        record->name, "link", record->link, "workers", record->workers, "shards", record->shards,
        "global_batch", (json_int_t)record->global_batch, "parameters",
        (json_int_t)record->parameters, "steps", (json_int_t)record->total_steps, "steps_per_epoch",
        (json_int_t)record->steps_per_epoch, "step", (json_int_t)record->step);
    return write_line(object, file, where, diag);
}

gr_status gr_epoch_write(const gr_epoch_record *record, FILE *file, const char *where,
                         gr_diag *diag)
{
    int late = record->late_rank >= 0;
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o}",
        "event", "epoch", "epoch", (json_int_t)record->epoch, "epochs", (json_int_t)record->epochs,
        "step", (json_int_t)record->step, "steps", (json_int_t)record->total_steps, "loss",
        gr_json_number(record->loss), "accuracy", gr_json_number(record->accuracy), "test_loss",
        gr_json_number(record->test_loss), "test_accuracy", gr_json_number(record->test_accuracy),
        "test_rmse", gr_json_number(record->test_rmse), "test_mae",
        gr_json_number(record->test_mae), "test_r2", gr_json_number(record->test_r2),
        "samples_per_s", gr_json_number(record->samples_per_s), "comm_wait_share",
        gr_json_number(record->comm_wait_share), "learning_rate",
        gr_json_number(record->learning_rate), "late_rank",
        late ? json_integer(record->late_rank) : json_null(), "late_us",
        late ? gr_json_number(record->late_us) : json_null(), "staleness",
        gr_json_number(record->staleness));
    return write_line(object, file, where, diag);
}

gr_status gr_recovery_write(const gr_recovery_record *record, FILE *file, const char *where,
                            gr_diag *diag)
{
    json_t *object =
        json_pack("{s:s, s:I, s:i, s:o}", "event", record->lost ? "recovered" : "changed", "step",
                  (json_int_t)record->step, "workers", record->workers, "seconds",
                  gr_json_number(record->seconds));
    return write_line(object, file, where, diag);
}

gr_status gr_stop_write(const gr_stop_record *record, FILE *file, const char *where, gr_diag *diag)
{
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:s}", "event", "stopped", "step", (json_int_t)record->step,
                  "steps", (json_int_t)record->total_steps, "checkpoint", record->checkpoint);
    return write_line(object, file, where, diag);
}

gr_status gr_end_write(const gr_end_record *record, FILE *file, const char *where, gr_diag *diag)
{
    int late = record->late_rank >= 0;
    json_t *object = json_pack(
        "{s:s, s:I, s:o, s:s, s:s, s:i, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, "
        "s:o, s:s?, s:o, s:o, s:b}",
        "event", "end", "test_samples", (json_int_t)record->test.samples, "loss",
        gr_json_number(record->loss), "weights", record->weights, "weights_sha256",
        record->weights_sha256, "workers", record->workers, "shards", record->shards, "steps",
        (json_int_t)record->steps, "seconds", gr_json_number(record->seconds), "samples_per_s",
        gr_json_number(record->samples_per_s), "comm_wait_share",
        gr_json_number(record->comm_wait_share), "late_rank",
        late ? json_integer(record->late_rank) : json_null(), "late_us",
        late ? gr_json_number(record->late_us) : json_null(), "staleness",
        gr_json_number(record->staleness), "staleness_most",
        isfinite(record->staleness) ? json_integer(record->staleness_most) : json_null(),
        "dropped_share", gr_json_number(record->dropped_share), "checkpoints",
        (json_int_t)record->checkpoints, "checkpoint_wait_s",
        gr_json_number(record->checkpoint_wait_s), "metric", record->metric, "best",
        gr_json_number(record->best.value), "best_step",
        isnan(record->best.value) ? json_null() : json_integer((json_int_t)record->best.step),
        "stopped_early", record->stopped_early);
    if (object != NULL && !gr_evaluation_json(&record->test, LINE_CLASSES_MAX, object)) {
        json_decref(object);
        object = NULL;
    }
    return write_line(object, file, where, diag);
}

/* Returns true if the line is of `step` or an earlier one, and of one of the first `epochs` if it
 * is an epoch's, and so is kept. */
static bool is_before(const char *line, size_t bytes, uint64_t step, uint64_t epochs,
                      gr_metrics_reported *reported)
{
    json_t *object = json_loadb(line, bytes, 0, NULL);
    const char *event = json_string_value(json_object_get(object, "event"));
    json_int_t at = json_integer_value(json_object_get(object, "step"));
    json_int_t epoch = json_integer_value(json_object_get(object, "epoch"));
    bool before = event != NULL && strcmp(event, "end") != 0 && at >= 0 && (uint64_t)at <= step &&
                  (epoch <= 0 || (uint64_t)epoch <= epochs);
    if (before) {
        reported->start = reported->start || strcmp(event, "start") == 0;
        reported->epoch =
            epoch > 0 && (uint64_t)epoch > reported->epoch ? (uint64_t)epoch : reported->epoch;
    }
    json_decref(object);
    return before;
}

/* The lines of an old file that go into a new one, one after the other: a training that lasts for
 * months writes more than the memory holds. */
typedef struct metrics_cut {
    const char *path;
    FILE *old;
    uint64_t step, epochs;
    gr_metrics_reported *reported;
    char line[LINE_BYTES_MAX];
} metrics_cut;

/* Returns 0 or errno. */
static int copy_kept(metrics_cut *cut, FILE *out)
{
    size_t bytes = 0; /* of the line so far; one that is too long is left out */
    for (int c = getc_unlocked(cut->old); c != EOF; c = getc_unlocked(cut->old)) {
        if (bytes < sizeof cut->line) {
            cut->line[bytes] = (char)c;
        }
        bytes += bytes <= sizeof cut->line;
        if (c != '\n') {
            continue;
        }
        if (bytes <= sizeof cut->line &&
            is_before(cut->line, bytes, cut->step, cut->epochs, cut->reported) &&
            fwrite(cut->line, 1, bytes, out) != bytes) {
            return errno;
        }
        bytes = 0;
    }
    return ferror(cut->old) ? errno : 0;
}

static gr_status write_kept(void *arg, int fd, gr_diag *diag)
{
    metrics_cut *cut = arg;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *out = own >= 0 ? fdopen(own, "w") : NULL;
    int error = out != NULL ? copy_kept(cut, out) : errno;
    if (out == NULL && own >= 0) {
        close(own);
    }
    if (out != NULL && fclose(out) != 0 && error == 0) {
        error = errno;
    }
    return error == 0 ? GR_OK : gr_fail_errno(diag, "copy", cut->path, error);
}

gr_status gr_metrics_cut(const char *path, uint64_t step, uint64_t epochs,
                         gr_metrics_reported *reported_out, gr_diag *diag)
{
    *reported_out = (gr_metrics_reported){.start = false};
    FILE *old = fopen(path, "re");
    if (old == NULL) {
        return errno == ENOENT ? GR_OK : gr_fail_errno(diag, "open", path, errno);
    }
    metrics_cut *cut = malloc(sizeof *cut);
    gr_status status = GR_E_NO_MEMORY;
    if (cut != NULL) {
        *cut = (metrics_cut){
            .path = path, .old = old, .step = step, .epochs = epochs, .reported = reported_out};
        status = gr_file_replace_by(path, write_kept, cut, diag);
    } else {
        status = gr_fail(diag, status, "no memory to read %s", path);
    }
    free(cut);
    fclose(old);
    return status;
}
