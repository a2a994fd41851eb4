/* SPDX-License-Identifier: Apache-2.0 */
#include "train/metrics.h"

#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_MAX = 1 << 30 }; /* of a file that is read back */

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

/* JSON knows no NaN; what cannot be said is null. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
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
        "{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "event",
        "epoch", "epoch", (json_int_t)record->epoch, "epochs", (json_int_t)record->epochs, "step",
        (json_int_t)record->step, "steps", (json_int_t)record->total_steps, "loss",
        number(record->loss), "accuracy", number(record->accuracy), "test_loss",
        number(record->test_loss), "test_accuracy", number(record->test_accuracy), "samples_per_s",
        number(record->samples_per_s), "comm_wait_share", number(record->comm_wait_share),
        "learning_rate", number(record->learning_rate), "late_rank",
        late ? json_integer(record->late_rank) : json_null(), "late_us",
        late ? number(record->late_us) : json_null(), "staleness", number(record->staleness));
    return write_line(object, file, where, diag);
}

gr_status gr_recovery_write(const gr_recovery_record *record, FILE *file, const char *where,
                            gr_diag *diag)
{
    json_t *object = json_pack(
        "{s:s, s:I, s:i, s:o}", "event", record->lost ? "recovered" : "changed", "step",
        (json_int_t)record->step, "workers", record->workers, "seconds", number(record->seconds));
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
        "{s:s, s:o, s:o, s:I, s:o, s:s, s:s, s:i, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, "
        "s:I, s:o}",
        "event", "end", "test_accuracy", number(record->test_accuracy), "test_loss",
        number(record->test_loss), "test_samples", (json_int_t)record->test_samples, "loss",
        number(record->loss), "weights", record->weights, "weights_sha256", record->weights_sha256,
        "workers", record->workers, "shards", record->shards, "steps", (json_int_t)record->steps,
        "seconds", number(record->seconds), "samples_per_s", number(record->samples_per_s),
        "comm_wait_share", number(record->comm_wait_share), "late_rank",
        late ? json_integer(record->late_rank) : json_null(), "late_us",
        late ? number(record->late_us) : json_null(), "staleness", number(record->staleness),
        "staleness_most",
        isfinite(record->staleness) ? json_integer(record->staleness_most) : json_null(),
        "dropped_share", number(record->dropped_share), "checkpoints",
        (json_int_t)record->checkpoints, "checkpoint_wait_s", number(record->checkpoint_wait_s));
    return write_line(object, file, where, diag);
}

/* Is a line to be kept, since it tells of what was so after `step`? */
static bool is_before(const char *line, size_t bytes, uint64_t step, gr_metrics_told *told)
{
    json_t *object = json_loadb(line, bytes, 0, NULL);
    const char *event = json_string_value(json_object_get(object, "event"));
    json_int_t at = json_integer_value(json_object_get(object, "step"));
    json_int_t epoch = json_integer_value(json_object_get(object, "epoch"));
    bool before = event != NULL && strcmp(event, "end") != 0 && at >= 0 && (uint64_t)at <= step;
    if (before) {
        told->start = told->start || strcmp(event, "start") == 0;
        told->epoch = epoch > 0 && (uint64_t)epoch > told->epoch ? (uint64_t)epoch : told->epoch;
    }
    json_decref(object);
    return before;
}

gr_status gr_metrics_cut(const char *path, uint64_t step, gr_metrics_told *told_out, gr_diag *diag)
{
    char *text = NULL;
    size_t bytes = 0, kept = 0;
    *told_out = (gr_metrics_told){.start = false};
    gr_status status = gr_file_read(path, BYTES_MAX, &text, &bytes, diag);
    if (status != GR_OK) {
        return status == GR_E_NOT_FOUND ? GR_OK : status;
    }
    char *end;
    for (char *line = text; (end = memchr(line, '\n', bytes - (size_t)(line - text))) != NULL;
         line = end + 1) {
        size_t line_bytes = (size_t)(end - line) + 1;
        if (is_before(line, line_bytes, step, told_out)) {
            memmove(text + kept, line, line_bytes);
            kept += line_bytes;
        }
    }
    status = gr_file_replace(path, text, kept, diag);
    free(text);
    return status;
}
