/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/doc.h"
#include "base/fail.h"
#include "data/dataset.h"
#include "group/group.h"
#include "nn/optimizer.h"
#include "train/job.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

const gr_verb gr_verbs[] = {
    {"run", "train a job, or run any command, with many workers", gr_verb_run},
    {"scale", "more workers, or fewer, for a job that runs", gr_verb_scale},
    {"checkpoint", "list, check, compare and convert checkpoints", gr_verb_checkpoint},
    {"eval", "the test accuracy of saved weights", gr_verb_eval},
    {"bench", "the time of a collective operation, by size, with checked results", gr_verb_bench},
    {"simulate", "the time of a collective or a training step on a described cluster",
     gr_verb_simulate},
    {"tune", "measure which algorithms are fastest here, for GRADUS_TUNE", gr_verb_tune},
    {"timeline", "one timeline of what ranks wrote that you started yourself", gr_verb_timeline},
    {"coordinate", "the place where ranks meet that you start on several hosts yourself",
     gr_verb_coordinate},
    {"info", "version, cores, instruction sets, links; the configuration reference", gr_verb_info},
    {"help", "this text, or help on a verb", gr_verb_help},
    {"version", "the version alone", gr_verb_version},
    {"worker", NULL, gr_verb_worker},
    {"agent", NULL, gr_verb_agent},
    {NULL, NULL, NULL},
};

const gr_config_table *const gr_reference_tables[] = {
    &gr_run_table,
    &gr_scale_table,
    &gr_checkpoint_table,
    &gr_eval_table,
    &gr_bench_table,
    &gr_simulate_table,
    &gr_tune_table,
    &gr_timeline_table,
    &gr_coordinate_table,
    &gr_info_table,
    &gr_job_config_table,
    &gr_data_config_table,
    &gr_optimizer_config_table,
    &gr_distribution_config_table,
    &gr_checkpoint_config_table,
    &gr_group_config_table,
    NULL,
};

const gr_verb *gr_verb_find(const char *name)
{
    for (const gr_verb *verb = gr_verbs; verb->name != NULL; verb++) {
        if (strcmp(verb->name, name) == 0) {
            return verb;
        }
    }
    return NULL;
}

int gr_verb_unknown(const char *name)
{
    const char *known[sizeof gr_verbs / sizeof gr_verbs[0]];
    size_t count = 0;
    for (const gr_verb *verb = gr_verbs; verb->name != NULL; verb++) {
        if (verb->summary != NULL) {
            known[count++] = verb->name;
        }
    }
    known[count] = NULL;
    const char *nearest = gr_nearest(name, known);
    if (nearest != NULL) {
        fprintf(stderr, "gradus: there is no verb \"%s\"; did you mean \"gradus %s\"?\n", name,
                nearest);
    } else {
        fprintf(stderr, "gradus: there is no verb \"%s\"; \"gradus help\" lists them\n", name);
    }
    return GR_EXIT_INPUT;
}

void gr_cli_usage(FILE *file)
{
    fputs("usage: gradus VERB ...\n\n"
          "  gradus run -np 4 job.yaml            train the job with four workers\n"
          "  gradus run -np 4 -- command args...  run any command four times\n\n",
          file);
    for (const gr_verb *verb = gr_verbs; verb->name != NULL; verb++) {
        if (verb->summary != NULL) {
            fprintf(file, "  %-10s  %s\n", verb->name, verb->summary);
        }
    }
    fputs("\n\"gradus help VERB\" tells more.\n", file);
}

int gr_cli_fail(int code, const gr_diag *diag)
{
    fprintf(stderr, "gradus: %s\n", diag->text);
    return code;
}

int gr_cli_input_code(gr_status status)
{
    return status == GR_E_NO_MEMORY ? GR_EXIT_FAILED : GR_EXIT_INPUT;
}

int gr_cli_flush(void)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "gradus: the output cannot be written: %s\n", strerror(errno));
        return GR_EXIT_FAILED;
    }
    return GR_EXIT_DONE;
}

gr_status gr_cli_parse(const gr_config_table *table, void *config, int argc, char *const *argv,
                       int words_max, gr_arena *arena, gr_cli_line *line_out, gr_diag *diag)
{
    gr_cli_line line = {.word_count = 0};
    gr_status status = gr_config_defaults(table, config, arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_env(table, config, environ, arena, diag);
    }
    int at = 1;
    bool dashes = false;
    while (status == GR_OK) {
        if (!dashes) {
            status = gr_config_from_args(table, config, argc, argv, &at, &dashes, &line.help, arena,
                                         diag);
        }
        if (status != GR_OK || line.help || at >= argc) {
            break;
        }
        if (line.word_count == words_max) {
            return gr_fail(diag, GR_E_INVALID,
                           "\"gradus %s\" does not expect \"%s\" here; see \"gradus help %s\"",
                           argv[0], argv[at], argv[0]);
        }
        line.words[line.word_count++] = argv[at++];
    }
    *line_out = line;
    return status;
}
