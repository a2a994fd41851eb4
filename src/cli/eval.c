/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "train/train.h"

#include <stddef.h>

typedef struct eval_options {
    bool json;
} eval_options;

static const gr_config_field eval_fields[] = {
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(eval_options, json),
     .help = "print one JSON object"},
    {.key = NULL},
};

const gr_config_table gr_eval_table = {.name = "eval",
                                       .title = "Flags of `gradus eval`",
                                       .fields = eval_fields,
                                       .struct_bytes = sizeof(eval_options)};

static gr_status print_json(const gr_eval_result *result, gr_diag *diag)
{
    json_t *object = json_pack("{s:I, s:s}", "samples", (json_int_t)result->evaluation.samples,
                               "weights_sha256", result->weights_sha256);
    if (object != NULL &&
        !gr_evaluation_json(&result->evaluation, GR_CONFUSION_CLASSES_MAX, object)) {
        json_decref(object);
        object = NULL;
    }
    return gr_cli_print_json(object, diag);
}

static gr_status print(const eval_options *options, const gr_eval_result *result, gr_diag *diag)
{
    if (options->json) {
        return print_json(result, diag);
    }
    gr_evaluation_print(&result->evaluation, stdout);
    printf("weights SHA-256 %s\n", result->weights_sha256);
    return GR_OK;
}

static int evaluate(const gr_cli_line *line)
{
    const gr_job_overrides overrides = {
        .writes_nothing = true, .trains_nothing = true, .run = {.workers = 1}};
    gr_diag diag = {0};
    gr_job *job;
    gr_eval_result result;
    gr_status status = gr_job_open(line->words[0], &overrides, &job, &diag);
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    status = gr_eval_run(job, line->words[1], &result, &diag);
    /* GR_E_IO: what was given cannot be read. */
    bool input = status == GR_E_INVALID || status == GR_E_NOT_FOUND || status == GR_E_IO;
    status = status == GR_OK ? print(line->options, &result, &diag) : status;
    gr_job_close(job);
    return status == GR_OK ? gr_cli_flush()
                           : gr_cli_fail(input ? GR_EXIT_INPUT : GR_EXIT_FAILED, &diag);
}

static void print_usage(void)
{
    puts("usage: gradus eval [flags] job.yaml model.safetensors\n\n"
         "Evaluates saved weights on the test samples as the end of training does: accuracy, "
         "precision\n"
         "and recall of each class and the confusion matrix, or RMSE, MAE and R2 of a "
         "regression.\n");
}

const gr_cli_form gr_eval_form = {.table = &gr_eval_table,
                                  .usage = print_usage,
                                  .words_min = 2,
                                  .words_max = 2,
                                  .words_missing = "needs a job file and a weights file: gradus "
                                                   "eval job.yaml model.safetensors",
                                  .work = evaluate};
