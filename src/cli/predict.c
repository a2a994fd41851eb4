/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus predict`: predictions for new samples. */

#include "train/predict.h"
#include "base/fail.h"
#include "base/file.h"
#include "cli/checkpoint.h"
#include "cli/cli.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

typedef struct predict_options {
    const char *data, *output;
    int format;
    bool best;
} predict_options;

/* In the order of gr_predict_format. */
static const char *const formats[] = {"csv", "jsonl", NULL};

static const gr_config_field predict_fields[] = {
    {.flag = "--data",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(predict_options, data),
     .value_name = "FILE",
     .help = "the samples, with or without the label, in the format of the training data"},
    {.flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(predict_options, output),
     .value_name = "FILE",
     .help = "write the predictions there, all or none of them; default: to stdout"},
    {.flag = "--format",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(predict_options, format),
     .default_text = "csv",
     .choices = formats,
     .help = "of the predictions: CSV with a header, or a JSON object a line"},
    {.flag = "--best",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(predict_options, best),
     .help = "of a folder of checkpoints, the best one (keep_best) in place of the newest"},
    {.key = NULL},
};

const gr_config_table gr_predict_table = {.name = "predict",
                                          .title = "Flags of `gradus predict`",
                                          .fields = predict_fields,
                                          .struct_bytes = sizeof(predict_options)};

typedef struct prediction {
    const predict_options *options;
    const gr_checkpoint *checkpoint;
} prediction;

/* A gr_file_writer. */
static gr_status write_file(void *arg, int fd, gr_diag *diag)
{
    const prediction *p = arg;
    const predict_options *options = p->options;
    int own = dup(fd);
    FILE *file = own >= 0 ? fdopen(own, "w") : NULL;
    if (file == NULL) {
        int error = errno;
        if (own >= 0) {
            close(own);
        }
        return gr_fail_errno(diag, "write", options->output, error);
    }
    gr_status status =
        gr_predict_run(p->checkpoint, options->data, (gr_predict_format)options->format, file,
                       options->output, diag);
    bool failed = ferror(file) != 0;
    if ((fclose(file) != 0 || failed) && status == GR_OK) {
        status = gr_fail_errno(diag, "write", options->output, errno);
    }
    return status;
}

static int predict(const gr_cli_line *line)
{
    prediction p = {.options = line->options};
    const predict_options *options = p.options;
    gr_diag diag = {0};
    gr_checkpoint *checkpoint = NULL;
    gr_status status = GR_OK;
    if (options->data == NULL) {
        status = gr_fail(&diag, GR_E_INVALID,
                         "predict needs samples: gradus predict CHECKPOINT --data new.csv");
    }
    if (status == GR_OK) {
        status = gr_cli_open_checkpoint(line->words[0], options->best, &checkpoint, &diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    p.checkpoint = checkpoint;
    status = options->output != NULL
                 ? gr_file_replace_by(options->output, write_file, &p, &diag)
                 : gr_predict_run(checkpoint, options->data, (gr_predict_format)options->format,
                                  stdout, "stdout", &diag);
    gr_checkpoint_close(checkpoint);
    int flushed = gr_cli_flush();
    if (status != GR_OK) {
        bool input = status == GR_E_INVALID || status == GR_E_NOT_FOUND;
        return gr_cli_fail(input ? GR_EXIT_INPUT : GR_EXIT_FAILED, &diag);
    }
    return flushed;
}

static void print_usage(void)
{
    puts("usage: gradus predict [flags] CHECKPOINT --data FILE\n\n"
         "Predicts the label of each sample in FILE, in its order. CHECKPOINT is a checkpoint, or "
         "a\n"
         "folder of them, which stands for its newest sound one. It says itself how samples are "
         "read\n"
         "and scaled. FILE may have the label column or not; with a header its columns may stand "
         "in any\n"
         "order. Classes come with the probability of each.\n");
}

const gr_cli_form gr_predict_form = {.table = &gr_predict_table,
                                     .usage = print_usage,
                                     .words_min = 1,
                                     .words_max = 1,
                                     .words_missing = "needs a checkpoint: gradus predict "
                                                      "CHECKPOINT --data new.csv",
                                     .work = predict};
