/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"

#include "base/fail.h"
#include "base/text.h"
#include "coll/comm.h"

#include <errno.h>
#include <float.h>
#include <math.h>

/* One panel: x is the size on a logarithmic scale, y a figure of each row. */
typedef struct panel {
    double left, top, width, height;
    double x_least, x_most, y_least, y_most; /* log10 where logarithmic */
    bool log_y;
} panel;

enum { PANEL_WIDTH = 420, PANEL_HEIGHT = 300, MARGIN_LEFT = 70, MARGIN_TOP = 50, GAP = 90 };

static const char *const colors[] = {"#1b6ca8", "#c2571a"};
static const char *const line_names[] = {"out of place", "in place"};

static double figure(const gr_bench_times *times, bool bandwidth)
{
    return bandwidth ? times->busbw : times->median;
}

static double x_at(const panel *p, double size_bytes)
{
    return p->left + p->width * (log10(size_bytes) - p->x_least) / (p->x_most - p->x_least);
}

static double y_at(const panel *p, double value)
{
    double y = p->log_y ? log10(value) : value;
    return p->top + p->height * (1 - (y - p->y_least) / (p->y_most - p->y_least));
}

static void size_text(double size_bytes, char text[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    int unit = 0;
    while (size_bytes >= 1024 && unit < 3) {
        size_bytes /= 1024;
        unit++;
    }
    snprintf(text, 16, "%.3g %s", size_bytes, units[unit]);
}

/* Bounds that hold all points; false: there are none. */
static bool fit(const gr_bench *bench, panel *p, bool bandwidth)
{
    double least = DBL_MAX, most = 0, small = DBL_MAX, large = 0;
    for (int i = 0; i < bench->row_count; i++) {
        const gr_bench_row *row = &bench->rows[i];
        for (int in_place = 0; in_place < 2; in_place++) {
            double value = figure(&row->times[in_place], bandwidth);
            if (row->times[in_place].measured && value > 0) {
                least = fmin(least, value);
                most = fmax(most, value);
                small = fmin(small, (double)row->size_bytes);
                large = fmax(large, (double)row->size_bytes);
            }
        }
    }
    if (most <= 0 || small < 1) {
        return false;
    }
    p->log_y = !bandwidth;
    p->y_least = p->log_y ? floor(log10(least)) : 0;
    p->y_most = p->log_y ? fmax(ceil(log10(most)), p->y_least + 1) : most * 1.1;
    p->x_least = log10(small);
    p->x_most = large > small ? log10(large) : p->x_least + 1;
    return true;
}

static void draw_y_axis(const panel *p, FILE *file)
{
    enum { LINES = 5 };
    double step = (p->y_most - p->y_least) / LINES;
    if (p->log_y) {
        step = 1;
    }
    for (double y = p->y_least; y <= p->y_most + step / 1000; y += step) {
        double value = p->log_y ? pow(10, y) : y, at = y_at(p, value);
        fprintf(file,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n",
                p->left, at, p->left + p->width, at, p->left - 6, at + 4, value);
    }
}

/* At most LABELS of the sizes get a label. */
static void draw_x_axis(const gr_bench *bench, const panel *p, FILE *file)
{
    enum { LABELS = 7 };
    int every = (bench->row_count + LABELS - 1) / LABELS;
    for (int i = 0; i < bench->row_count; i += every) {
        char text[16];
        double size_bytes = (double)bench->rows[i].size_bytes, at = x_at(p, size_bytes);
        size_text(size_bytes, text);
        fprintf(file,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#999\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                at, p->top + p->height, at, p->top + p->height + 5, at, p->top + p->height + 20,
                text);
    }
}

static void draw_line(const gr_bench *bench, const panel *p, bool bandwidth, int in_place,
                      FILE *file)
{
    const char *between = "<polyline fill=\"none\" stroke-width=\"2\" points=\"";
    for (int i = 0; i < bench->row_count; i++) {
        const gr_bench_times *times = &bench->rows[i].times[in_place];
        double value = figure(times, bandwidth);
        if (times->measured && value > 0) {
            fprintf(file, "%s%.1f,%.1f", between, x_at(p, (double)bench->rows[i].size_bytes),
                    y_at(p, value));
            between = " ";
        }
    }
    if (between[0] == ' ') {
        fprintf(file, "\" stroke=\"%s\"/>\n", colors[in_place]);
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", p->left + 10,
                p->top + 18 + 16 * in_place, colors[in_place], line_names[in_place]);
    }
}

static void draw_panel(const gr_bench *bench, bool bandwidth, FILE *file)
{
    panel p = {.left = MARGIN_LEFT + (bandwidth ? PANEL_WIDTH + GAP : 0),
               .top = MARGIN_TOP,
               .width = PANEL_WIDTH,
               .height = PANEL_HEIGHT};
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", p.left, p.top - 8,
            bandwidth ? "bus bandwidth, 10^9 bytes/s" : "median time, us (logarithmic)");
    fprintf(file,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
            "stroke=\"#999\"/>\n",
            p.left, p.top, p.width, p.height);
    if (!fit(bench, &p, bandwidth)) {
        return; /* a barrier has no size */
    }
    draw_y_axis(&p, file);
    draw_x_axis(bench, &p, file);
    for (int in_place = 0; in_place < 2; in_place++) {
        draw_line(bench, &p, bandwidth, in_place, file);
    }
}

gr_status gr_bench_plot(const gr_bench *bench, const char *path, gr_diag *diag)
{
    char text[GR_ERRNO_TEXT_BYTES];
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return gr_fail(diag, GR_E_IO, "the plot \"%s\" cannot be written: %s", path,
                       gr_text_errno(errno, text));
    }
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"22\" font-size=\"15\">gradus bench %s: %d ranks, link %s, %s, "
            "%s buffers</text>\n",
            2 * PANEL_WIDTH + MARGIN_LEFT + GAP + 30, PANEL_HEIGHT + MARGIN_TOP + 40, MARGIN_LEFT,
            bench->op->name, gr_comm_size(bench->comm), gr_comm_link_name(bench->comm),
            gr_dtype_name((gr_dtype)bench->options.dtype),
            gr_bench_buffer_names[bench->options.buffers]);
    draw_panel(bench, false, file);
    draw_panel(bench, true, file);
    fputs("</svg>\n", file);
    bool failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    return failed ? gr_fail(diag, GR_E_IO, "the plot \"%s\" cannot be written: %s", path,
                            gr_text_errno(errno, text))
                  : GR_OK;
}
