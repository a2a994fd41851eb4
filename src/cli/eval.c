/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "train/train.h"

#include <jansson.h>
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

enum { ARENA_BYTES_MAX = 1 << 20 };

static int print_json(const gr_eval_result *result)
{
    json_t *object = json_pack("{s:f, s:f, s:I, s:s}", "test_accuracy", result->accuracy,
                               "test_loss", result->loss, "samples", (json_int_t)result->samples,
                               "weights_sha256", result->weights_sha256);
    int written = object != NULL ? json_dumpf(object, stdout, JSON_COMPACT) : -1;
    json_decref(object);
    if (written != 0) {
        fputs("gradus: no memory for the result\n", stderr);
        return GR_EXIT_FAILED;
    }
    putchar('\n');
    return gr_cli_flush();
}

static int evaluate(const eval_options *options, const char *job_path, const char *weights_path)
{
    const gr_job_overrides overrides = {.workers = 1};
    gr_diag diag = {0};
    gr_job *job;
    gr_status status = gr_job_open(job_path, &overrides, &job, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(gr_cli_input_code(status), &diag);
    }
    gr_eval_result result;
    status = gr_eval_run(job, weights_path, &result, &diag);
    gr_job_close(job);
    if (status != GR_OK) {
        bool input = status == GR_E_INVALID || status == GR_E_NOT_FOUND;
        return gr_cli_fail(input ? GR_EXIT_INPUT : GR_EXIT_FAILED, &diag);
    }
    if (options->json) {
        return print_json(&result);
    }
    printf("test accuracy %.2f %% (loss %.6g) of %lld samples\nweights SHA-256 %s\n",
           100.0 * result.accuracy, result.loss, (long long)result.samples, result.weights_sha256);
    return gr_cli_flush();
}

static void print_help(void)
{
    puts("usage: gradus eval [flags] job.yaml model.safetensors\n\n"
         "Computes the test accuracy of saved weights as the end of training does.\n");
    gr_config_print_help(&gr_eval_table, stdout);
}

int gr_verb_eval(int argc, char *const *argv)
{
    eval_options options;
    gr_cli_line line;
    gr_diag diag = {0};
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = gr_cli_parse(&gr_eval_table, &options, argc, argv, 2, &arena, &line, &diag);
    int code;
    if (status != GR_OK) {
        code = gr_cli_fail(gr_cli_input_code(status), &diag);
    } else if (line.help) {
        print_help();
        code = gr_cli_flush();
    } else if (line.word_count != 2) {
        fputs("gradus: eval needs a job file and a weights file: gradus eval job.yaml "
              "model.safetensors\n",
              stderr);
        code = GR_EXIT_INPUT;
    } else {
        code = evaluate(&options, line.words[0], line.words[1]);
    }
    gr_arena_fini(&arena);
    return code;
}
