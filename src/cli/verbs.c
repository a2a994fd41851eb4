/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/fail.h"
#include "base/text.h"
#include "cli/environment.h"
#include "coll/plan/counts.h"
#include "data/dataset.h"
#include "group/group.h"
#include "nn/optimizer.h"
#include "ps/client/client.h"
#include "train/job/job.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const gr_verb gr_verbs[] = {
    {"run", "train a job, or run any command, with many workers", .run = gr_verb_run},
    {"attach", "take over a job whose launcher is gone", .form = &gr_attach_form},
    {"submit", "send a job, or any command, to a Kubernetes cluster", .run = gr_verb_submit},
    {"ls", "your jobs on this host, or on a cluster", .form = &gr_ls_form},
    {"logs", "what a job has written", .form = &gr_logs_form},
    {"wait", "until a job has ended", .form = &gr_wait_form},
    {"stop", "end a job, with a checkpoint", .form = &gr_stop_form},
    {"top", "what a job uses of a cluster", .form = &gr_top_form},
    {"scale", "more workers, or fewer, for a job that runs", .form = &gr_scale_form},
    {"checkpoint", "list, check, compare and convert checkpoints", .form = &gr_checkpoint_form},
    {"sweep", "train a job once for each combination of values", .form = &gr_sweep_form},
    {"eval", "how good saved weights are on the test samples", .form = &gr_eval_form},
    {"predict", "predictions for new samples with the weights of a checkpoint",
     .form = &gr_predict_form},
    {"bench", "the time of a collective operation, by size, with checked results",
     .form = &gr_bench_form},
    {"simulate", "the time of a collective or a training step on a described cluster",
     .form = &gr_simulate_form},
    {"tune", "measure which algorithms are fastest here, for GRADUS_TUNE", .form = &gr_tune_form},
    {"timeline", "one timeline of what ranks wrote that you started yourself",
     .form = &gr_timeline_form},
    {"rendezvous", "the place where ranks meet that you start on several hosts yourself",
     .form = &gr_rendezvous_form},
    {"server", "a parameter server", .form = &gr_server_form},
    {"ps", "what parameter servers keep: list, count, save, restore", .form = &gr_ps_form},
    {"operator", "works on the Kubernetes jobs of a cluster", .form = &gr_operator_form},
    {"info", "version, cores, instruction sets, links; the configuration reference",
     .form = &gr_info_form},
    {"help", "this text, or help on a verb", .run = gr_verb_help},
    {"version", "the version alone", .run = gr_verb_version},
    {"worker", NULL, .form = &gr_worker_form},
    {"pod", NULL, .run = gr_verb_pod},
    {"rsh", NULL, .run = gr_verb_rsh},
    {"role", NULL, .run = gr_verb_role},
    {"agent", "offers this host to a job that waits for some (gradus run --listen)",
     .form = &gr_agent_form},
    {.name = NULL},
};

const gr_config_table *const gr_reference_tables[] = {
    &gr_run_table,
    &gr_run_manifest_table,
    &gr_submit_table,
    &gr_ls_table,
    &gr_logs_table,
    &gr_wait_table,
    &gr_stop_table,
    &gr_top_table,
    &gr_scale_table,
    &gr_checkpoint_table,
    &gr_sweep_table,
    &gr_eval_table,
    &gr_predict_table,
    &gr_bench_table,
    &gr_simulate_table,
    &gr_tune_table,
    &gr_timeline_table,
    &gr_rendezvous_table,
    &gr_server_table,
    &gr_ps_verb_table,
    &gr_operator_table,
    &gr_agent_table,
    &gr_worker_table,
    &gr_info_table,
    &gr_job_config_table,
    &gr_data_config_table,
    &gr_optimizer_config_table,
    &gr_distribution_config_table,
    &gr_outer_config_table,
    &gr_checkpoint_config_table,
    &gr_early_stopping_config_table,
    &gr_job_run_table,
    &gr_group_config_table,
    &gr_ps_config_table,
    &gr_environment_table,
    NULL,
};

const char *const gr_cli_dtypes[] = {"f32", "f64",       "f16",        "bf16", "i32", "i64",
                                     "i8",  "u8",        "i16",        "bool", "u16", "u32",
                                     "u64", "complex64", "complex128", NULL};
_Static_assert(sizeof gr_cli_dtypes / sizeof gr_cli_dtypes[0] == GR_DTYPE_COUNT + 1,
               "every type has its name");

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

int gr_cli_refuse(gr_status status, const gr_diag *diag)
{
    return gr_cli_fail(status == GR_E_NO_MEMORY ? GR_EXIT_FAILED : GR_EXIT_INPUT, diag);
}

gr_status gr_cli_print_json(json_t *object, gr_diag *diag)
{
    int written = object != NULL ? json_dumpf(object, stdout, JSON_COMPACT) : -1;
    json_decref(object);
    if (written != 0) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the result, or it cannot be written");
    }
    putchar('\n');
    return GR_OK;
}

gr_status gr_cli_check_target(const char *path, gr_diag *diag)
{
    struct stat info;
    char folder[PATH_MAX];
    bool exists = stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode)) {
        return gr_fail(diag, GR_E_INVALID, "%s cannot be written: there is a folder of this name",
                       path);
    }
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s",
             slash == NULL || slash == path ? 1 : (int)(slash - path), slash == NULL ? "." : path);
    if (!exists && (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode))) {
        return gr_fail(diag, GR_E_NOT_FOUND, "%s cannot be written: there is no folder %s", path,
                       folder);
    }
    bool replaced = !exists || S_ISREG(info.st_mode); /* a device takes the bytes itself */
    return access(replaced ? folder : path, replaced ? W_OK | X_OK : W_OK) == 0
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "%s cannot be written: %s: %s", path,
                         replaced ? folder : path, strerror(errno));
}

int gr_cli_flush(void)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "gradus: the output cannot be written: %s\n", strerror(errno));
        return GR_EXIT_FAILED;
    }
    return GR_EXIT_DONE;
}

static gr_status read_line(const gr_cli_form *form, gr_cli_line *line, bool *help_out,
                           gr_diag *diag)
{
    gr_status status = gr_config_defaults(form->table, line->options, line->arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_env(form->table, line->options, environ, line->arena, diag);
    }
    if (status == GR_OK && form->by_environment) {
        status = gr_environment_check(environ, line->arena, diag);
    }
    int at = 1;
    bool dashes = false;
    while (status == GR_OK) {
        if (!dashes) {
            status = gr_config_from_args(form->table, line->options, line->argc, line->argv, &at,
                                         &dashes, help_out, line->arena, diag);
        }
        if (status != GR_OK || *help_out || at >= line->argc) {
            break;
        }
        if (line->word_count == form->words_max) {
            return gr_fail(diag, GR_E_INVALID,
                           "\"gradus %s\" does not expect \"%s\" here; see \"gradus help %s\"",
                           line->argv[0], line->argv[at], line->argv[0]);
        }
        line->words[line->word_count++] = line->argv[at++];
    }
    if (status == GR_OK && !*help_out && line->word_count < form->words_min) {
        return gr_fail(diag, GR_E_INVALID, "%s %s", line->argv[0], form->words_missing);
    }
    return status;
}

static int call_form(const gr_cli_form *form, int argc, char *const *argv)
{
    enum { ARENA_BYTES_MAX = 1 << 20 };
    gr_arena arena;
    gr_diag diag = {0};
    bool help = false;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_cli_line line = {.argc = argc,
                        .argv = argv,
                        .options = gr_arena_alloc(&arena, form->table->struct_bytes),
                        .arena = &arena};
    gr_status status = line.options != NULL
                           ? read_line(form, &line, &help, &diag)
                           : gr_fail(&diag, GR_E_NO_MEMORY, "no memory for the command line");
    int code;
    if (status != GR_OK) {
        code = gr_cli_refuse(status, &diag);
    } else if (help) {
        form->usage();
        gr_config_print_help(form->table, stdout);
        code = gr_cli_flush();
    } else {
        code = form->work(&line);
    }
    gr_arena_fini(&arena);
    return code;
}

int gr_verb_call(const gr_verb *verb, int argc, char *const *argv)
{
    return verb->form != NULL ? call_form(verb->form, argc, argv) : verb->run(argc, argv);
}
