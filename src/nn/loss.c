/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/loss.h"

#include "base/fail.h"
#include "nn/exp.h"

#include <math.h>

/* -log softmax(outputs)[label], by log-sum-exp: finite for logits of any finite size. */
static gr_status cross_entropy(const float *outputs, const gr_batch *batch, int64_t samples,
                               int64_t width, float scale, float *gradient,
                               gr_batch_result *result_out, gr_diag *diag)
{
    const int32_t *labels = batch->labels;
    gr_batch_result result = {0};
    if (!labels) {
        return gr_fail(diag, GR_E_INVALID, "cross-entropy needs the samples' labels");
    }
    for (int64_t n = 0; n < samples; n++) {
        const float *row = outputs + n * width;
        int32_t label = labels[n];
        if (label < 0 || label >= width) {
            return gr_fail(
                diag, GR_E_INVALID,
                "sample %lld of the batch has the label %d, but the model has the %lld "
                "outputs 0..%lld: give the last layer as many outputs as there are classes",
                (long long)n, (int)label, (long long)width, (long long)width - 1);
        }
        int64_t best = 0;
        for (int64_t i = 1; i < width; i++) {
            best = row[i] > row[best] ? i : best;
        }
        double top = (double)row[best], sum = 0;
        float *out = gradient ? gradient + n * width : NULL;
        for (int64_t i = 0; i < width; i++) {
            double e = gr_exp_negative((double)row[i] - top);
            sum += e;
            if (out) {
                out[i] = (float)e;
            }
        }
        result.loss += log(sum) - ((double)row[label] - top);
        result.correct += best == label;
        if (out) {
            double share = (double)scale / sum;
            double own = ((double)out[label] - sum) * share;
            for (int64_t i = 0; i < width; i++) {
                out[i] = (float)((double)out[i] * share);
            }
            out[label] = (float)own;
        }
    }
    *result_out = result;
    return GR_OK;
}

/* The mean of (output - target)^2 over a row. */
static gr_status mse(const float *outputs, const gr_batch *batch, int64_t samples, int64_t width,
                     float scale, float *gradient, gr_batch_result *result_out, gr_diag *diag)
{
    const float *targets = batch->targets;
    gr_batch_result result = {0};
    if (!targets) {
        return gr_fail(diag, GR_E_INVALID, "mean squared error needs the samples' targets");
    }
    for (int64_t n = 0; n < samples; n++) {
        double sum = 0;
        for (int64_t i = n * width; i < (n + 1) * width; i++) {
            double difference = (double)outputs[i] - (double)targets[i];
            sum += difference * difference;
            if (gradient) {
                gradient[i] = (float)(2.0 * difference / (double)width * (double)scale);
            }
        }
        result.loss += sum / (double)width;
    }
    *result_out = result;
    return GR_OK;
}

static const gr_loss_ops losses[] = {
    [GR_LOSS_CROSS_ENTROPY] = {.name = "cross_entropy",
                               .title = "softmax cross-entropy",
                               .classes = true,
                               .run = cross_entropy},
    [GR_LOSS_MSE] = {.name = "mse", .title = "mean squared error", .run = mse},
};
enum { LOSS_COUNT = sizeof losses / sizeof losses[0] };

const gr_loss_ops *gr_loss_ops_at(int index)
{
    return index < LOSS_COUNT ? &losses[index] : NULL;
}

const char *gr_loss_name(int index)
{
    return index < LOSS_COUNT ? losses[index].name : NULL;
}
