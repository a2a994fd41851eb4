/* SPDX-License-Identifier: Apache-2.0 */
#include "train/report.h"

#include "base/fail.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    COLUMNS_MIN = 30, /* a narrower terminal gets lines */
    COLUMNS_MAX = 200,
    LINE_BYTES = 512,
    DRAW_EVERY_NS = 100 * 1000 * 1000
};

int gr_report_columns(const char *text)
{
    char *end = NULL;
    long columns = text != NULL ? strtol(text, &end, 10) : 0;
    bool sound = text != NULL && end != text && *end == '\0' && columns > 0 && columns < 10000;
    return sound ? (int)columns : 0;
}

static int ask_columns(FILE *out)
{
    struct winsize size;
    int fd = fileno(out);
    if (fd < 0 || !isatty(fd)) {
        return 0;
    }
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void gr_report_init(gr_report *report, gr_report_style style, FILE *out, int columns)
{
    *report = (gr_report){.style = style, .out = out};
    if (style == GR_REPORT_AUTO) {
        int wide = columns != 0 ? columns : ask_columns(out);
        report->columns = wide < COLUMNS_MIN ? 0 : wide > COLUMNS_MAX ? COLUMNS_MAX : wide;
        report->style = GR_REPORT_LINES;
    }
}

/* ---- Numbers for people ---------------------------------------------------------------------- */

void gr_format_thousands(double value, char text_out[32])
{
    char digits[24];
    double bounded = fmin(fmax(value, 0.0), 1e15);
    int length = snprintf(digits, sizeof digits, "%.0f", bounded);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            text_out[at++] = ',';
        }
        text_out[at++] = digits[i];
    }
    text_out[at] = '\0';
}

void gr_format_duration(double seconds, char text_out[32])
{
    int64_t whole = (int64_t)fmin(fmax(seconds, 0.0) + 0.5, 1e12);
    int64_t hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
    if (hours > 0) {
        snprintf(text_out, 32, "%" PRId64 ":%02" PRId64 ":%02" PRId64, hours, minutes, rest);
    } else {
        snprintf(text_out, 32, "%" PRId64 ":%02" PRId64, minutes, rest);
    }
}

/* ---- The bar --------------------------------------------------------------------------------- */

static void clear_bar(gr_report *report)
{
    if (report->bar_shown) {
        fputs("\r\033[K", report->out);
        report->bar_shown = false;
    }
}

void gr_report_abandon(gr_report *report)
{
    clear_bar(report);
    if (report->out != NULL && report->style != GR_REPORT_NONE) {
        fflush(report->out);
    }
}

void gr_report_step(gr_report *report, uint64_t step, int64_t now_ns)
{
    if (report->columns == 0 || now_ns < report->next_ns || step <= report->first_step) {
        return;
    }
    report->next_ns = now_ns + DRAW_EVERY_NS;
    double elapsed_s = (double)(now_ns - report->begin_ns) * 1e-9;
    double done = (double)(step - report->first_step);
    double left_s = elapsed_s / done * (double)(report->total_steps - step);
    char tail[96], rate[32], left[32], bar[COLUMNS_MAX + 1];
    gr_format_thousands(done * (double)report->global_batch / fmax(elapsed_s, 1e-9), rate);
    gr_format_duration(left_s, left);
    double share = (double)step / (double)report->total_steps;
    int tail_length =
        snprintf(tail, sizeof tail, "%3.0f %%  %s samples/s  %s left", share * 100.0, rate, left);
    char head[64];
    uint64_t epochs = (report->total_steps + report->steps_per_epoch - 1) / report->steps_per_epoch;
    int head_length = snprintf(head, sizeof head, "epoch %" PRIu64 "/%" PRIu64,
                               (step - 1) / report->steps_per_epoch + 1, epochs);
    int room = report->columns - 1 - head_length - tail_length - 4;
    int width = room < 0 ? 0 : room > 40 ? 40 : room;
    int full = (int)(share * width);
    for (int i = 0; i < width; i++) {
        bar[i] = i < full ? '#' : '.';
    }
    bar[width] = '\0';
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s [%s] %s", head, bar, tail);
    /* A line that wraps could not be taken back: cut it at the terminal's edge. */
    line[report->columns - 1] = '\0';
    fprintf(report->out, "\r%s\033[K", line);
    fflush(report->out);
    report->bar_shown = true;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static gr_status flushed(gr_report *report, gr_diag *diag)
{
    if (ferror(report->out) != 0 || fflush(report->out) != 0) {
        return gr_fail(diag, GR_E_IO, "cannot write the report: %s", strerror(errno));
    }
    return GR_OK;
}

void gr_report_resume(gr_report *report, const gr_start_record *record, int64_t now_ns)
{
    report->begin_ns = now_ns;
    report->first_step = record->step;
    report->total_steps = record->total_steps;
    report->global_batch = record->global_batch;
    report->steps_per_epoch = record->steps_per_epoch > 0 ? record->steps_per_epoch : 1;
}

gr_status gr_report_start(gr_report *report, const gr_start_record *record, gr_diag *diag)
{
    if (report->style != GR_REPORT_LINES) {
        return report->style == GR_REPORT_JSON
                   ? gr_start_write(record, report->out, "the report", diag)
                   : GR_OK;
    }
    char parameters[32];
    bool over = record->workers > 1 && record->link != NULL;
    gr_format_thousands((double)record->parameters, parameters);
    char from[48] = "";
    if (record->step > 0) {
        snprintf(from, sizeof from, ", %" PRIu64 " of them done", record->step);
    }
    fprintf(report->out,
            "%s: %s parameters, %d worker%s%s%s, %d shard%s, global batch %" PRId64 ", %" PRIu64
            " steps%s\n",
            record->name != NULL ? record->name : "training", parameters, record->workers,
            record->workers == 1 ? "" : "s", over ? " over " : "", over ? record->link : "",
            record->shards, record->shards == 1 ? "" : "s", record->global_batch,
            record->total_steps, from);
    return flushed(report, diag);
}

/* What is shown as 0.0 ms is noise. */
static bool is_late(int rank, double late_us)
{
    const double least_us = 100;
    return rank >= 0 && late_us >= least_us;
}

gr_status gr_report_epoch(gr_report *report, const gr_epoch_record *record, gr_diag *diag)
{
    if (report->style != GR_REPORT_LINES) {
        return report->style == GR_REPORT_JSON
                   ? gr_epoch_write(record, report->out, "the report", diag)
                   : GR_OK;
    }
    char epochs[24], rate[32];
    int width = snprintf(epochs, sizeof epochs, "%" PRIu64, record->epochs);
    gr_format_thousands(record->samples_per_s, rate);
    clear_bar(report);
    fprintf(report->out, "epoch %*" PRIu64 "/%s  loss %.4f", width, record->epoch, epochs,
            record->loss);
    if (!isnan(record->accuracy)) {
        fprintf(report->out, "  accuracy %6.2f %%", record->accuracy * 100.0);
    }
    if (!isnan(record->test_accuracy)) {
        fprintf(report->out, "  test %6.2f %%", record->test_accuracy * 100.0);
    } else if (!isnan(record->test_loss)) {
        fprintf(report->out, "  test loss %.4f", record->test_loss);
    }
    fprintf(report->out, "  %s samples/s  waiting %.1f %%", rate, record->comm_wait_share * 100.0);
    if (!isnan(record->staleness)) {
        fprintf(report->out, "  staleness %.1f", record->staleness);
    }
    if (is_late(record->late_rank, record->late_us)) {
        fprintf(report->out, "  rank %d late by %.1f ms", record->late_rank,
                record->late_us / 1000.0);
    }
    fputc('\n', report->out);
    return flushed(report, diag);
}

gr_status gr_report_recovery(gr_report *report, const gr_recovery_record *record, gr_diag *diag)
{
    if (report->style != GR_REPORT_LINES) {
        return report->style == GR_REPORT_JSON
                   ? gr_recovery_write(record, report->out, "the report", diag)
                   : GR_OK;
    }
    clear_bar(report);
    fprintf(report->out, "%d worker%s go%s on from step %" PRIu64 ", %.0f ms after the %s\n",
            record->workers, record->workers == 1 ? "" : "s", record->workers == 1 ? "es" : "",
            record->step, record->seconds * 1e3, record->lost ? "loss" : "step before");
    return flushed(report, diag);
}

gr_status gr_report_stop(gr_report *report, const gr_stop_record *record, gr_diag *diag)
{
    if (report->style != GR_REPORT_LINES) {
        return report->style == GR_REPORT_JSON
                   ? gr_stop_write(record, report->out, "the report", diag)
                   : GR_OK;
    }
    clear_bar(report);
    fprintf(report->out, "stopped after step %" PRIu64 " of %" PRIu64 ", as asked\ncheckpoint %s\n",
            record->step, record->total_steps, record->checkpoint);
    return flushed(report, diag);
}

gr_status gr_report_end(gr_report *report, const gr_end_record *record, gr_diag *diag)
{
    if (report->style != GR_REPORT_LINES) {
        return report->style == GR_REPORT_JSON
                   ? gr_end_write(record, report->out, "the report", diag)
                   : GR_OK;
    }
    char rate[32], seconds[32];
    gr_format_thousands(record->samples_per_s, rate);
    gr_format_duration(record->seconds, seconds);
    clear_bar(report);
    fprintf(report->out,
            "trained %" PRIu64 " steps in %s: %s samples/s, waiting for communication %.1f %%\n",
            record->steps, seconds, rate, record->comm_wait_share * 100.0);
    if (!isnan(record->staleness)) {
        fprintf(report->out, "staleness %.1f on average, %" PRId64 " at most\n", record->staleness,
                record->staleness_most);
    }
    if (!isnan(record->dropped_share)) {
        fprintf(report->out, "%.1f %% of the gradients came too late and were dropped\n",
                record->dropped_share * 100.0);
    }
    if (is_late(record->late_rank, record->late_us)) {
        fprintf(report->out, "rank %d kept the others waiting: it came %.1f ms late on average\n",
                record->late_rank, record->late_us / 1000.0);
    }
    if (record->metric != NULL && !isnan(record->best.value)) {
        fprintf(report->out, "best %s %.6g after step %" PRIu64, record->metric, record->best.value,
                record->best.step);
        fprintf(report->out,
                record->stopped_early
                    ? "; %" PRId64 " evaluations without a better one ended the training early\n"
                    : "\n",
                record->best.wait);
    }
    gr_evaluation_print(&record->test, report->out);
    fprintf(report->out, "weights %s\nsha256 %s\n", record->weights, record->weights_sha256);
    return flushed(report, diag);
}
