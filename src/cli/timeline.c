/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus timeline`: one timeline of what ranks wrote that no launcher has looked after; and the
 * same for those of a launcher. */

#include "cli/timeline.h"

#include "cli/cli.h"
#include "coll/diagnose/timeline.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct timeline_options {
    int64_t ranks;
} timeline_options;

enum { RANKS_MAX = 65536 };

static const gr_config_field timeline_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     .offset = offsetof(timeline_options, ranks),
     .min = 1,
     .max = RANKS_MAX,
     .help = "number of ranks; otherwise what they have written themselves"},
    {.key = NULL},
};

const gr_config_table gr_timeline_table = {.name = "timeline",
                                           .title = "Flags of `gradus timeline`",
                                           .fields = timeline_fields,
                                           .struct_bytes = sizeof(timeline_options)};

/* ---- For the launcher ------------------------------------------------------------------------ */
const char *gr_cli_begin_timeline(const char *path, int64_t workers, gr_arena *arena)
{
    if (path == NULL || path[0] == '\0') {
        return NULL;
    }
    char *folder = path[0] == '/' ? NULL : getcwd(NULL, 0);
    const char *absolute = gr_arena_printf(arena, "%s%s%s", folder != NULL ? folder : "",
                                           folder != NULL ? "/" : "", path);
    free(folder);
    if (absolute != NULL) {
        gr_timeline_clear(absolute, (int)workers);
    }
    return absolute;
}

static void print_summary(const char *path, const gr_timeline_summary *s)
{
    fprintf(stderr, "gradus: timeline %s: %d rank%s, %llu events; open it in ui.perfetto.dev", path,
            s->ranks, s->ranks == 1 ? "" : "s", (unsigned long long)s->events);
    if (s->unfinished > 0) {
        fprintf(stderr, "; %llu operation%s did not end", (unsigned long long)s->unfinished,
                s->unfinished == 1 ? "" : "s");
    }
    if (s->missing >= 0) {
        fprintf(stderr, "; rank %d wrote none", s->missing);
    }
    if (s->cut_rank >= 0) {
        fprintf(stderr, "; that of rank %d is damaged, its end is missing", s->cut_rank);
    }
    if (s->lost > 0) {
        fprintf(stderr, "; %llu events had no room", (unsigned long long)s->lost);
    }
    fputc('\n', stderr);
}

void gr_cli_merge_timeline(const char *path, int64_t workers)
{
    gr_timeline_summary summary;
    gr_diag diag;
    if (gr_timeline_merge(path, (int)workers, &summary, &diag) == GR_OK) {
        print_summary(path, &summary);
    } else {
        fprintf(stderr, "gradus: %s\n", diag.text);
    }
}

/* ---- The verb -------------------------------------------------------------------------------- */
static void print_usage(void)
{
    puts("usage: gradus timeline FILE\n\n"
         "Makes FILE of FILE.0, FILE.1, ..., which ranks have written that were told\n"
         "GRADUS_TIMELINE=FILE and were not started by `gradus run` (that does it by itself), and\n"
         "removes these. FILE opens in ui.perfetto.dev and chrome://tracing.\n");
}

static int merge(const gr_cli_line *line)
{
    const timeline_options *options = line->options;
    gr_timeline_summary summary;
    gr_diag diag = {0};
    gr_status status = gr_timeline_merge(line->words[0], (int)options->ranks, &summary, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(status == GR_E_NOT_FOUND ? GR_EXIT_INPUT : GR_EXIT_FAILED, &diag);
    }
    print_summary(line->words[0], &summary);
    return GR_EXIT_DONE;
}

const gr_cli_form gr_timeline_form = {
    .table = &gr_timeline_table,
    .usage = print_usage,
    .words_min = 1,
    .words_max = 1,
    .words_missing = "needs what GRADUS_TIMELINE was: gradus timeline job.json",
    .work = merge};
