/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/optimizer.h"

#include "base/fail.h"
#include "base/number.h"
#include "nn/passes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {"sgd", "adam", "adamw", NULL};
static const char *const schedule_names[] = {"constant", "step", "cosine", NULL};

#define AT(field) offsetof(gr_optimizer_config, field)
static const gr_config_field fields[] = {
    {.key = "kind",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(kind),
     .default_text = "sgd",
     .choices = kind_names,
     .help = "the rule by which gradients change the weights"},
    {.key = "learning_rate",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(learning_rate),
     .default_text = "0.01",
     .min = 0,
     .max = 1e6,
     .help = "step size, before the schedule and linear scaling"},
    {.key = "momentum",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(momentum),
     .default_text = "0.9",
     .min = 0,
     .max = 1,
     .help = "sgd: share of the last update that goes on"},
    {.key = "nesterov",
     .type = GR_CONFIG_BOOL,
     .offset = AT(nesterov),
     .default_text = "false",
     .help = "sgd: look ahead along the momentum"},
    {.key = "beta1",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(beta1),
     .default_text = "0.9",
     .min = 0,
     .max = 0.999999,
     .help = "adam, adamw: memory of the mean gradient"},
    {.key = "beta2",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(beta2),
     .default_text = "0.999",
     .min = 0,
     .max = 0.999999,
     .help = "adam, adamw: memory of the mean squared gradient"},
    {.key = "epsilon",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(epsilon),
     .default_text = "1e-8",
     .min = 1e-30,
     .max = 1,
     .help = "adam, adamw: added to the root of the squares"},
    {.key = "weight_decay",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(weight_decay),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .help =
         "pull of weights (not biases, not batch norm) to zero; adamw: apart from the gradient"},
    {.key = "clip_norm",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(clip_norm),
     .default_text = "0",
     .min = 0,
     .max = 1e30,
     .help = "largest global norm of the gradient; 0: no limit"},
    {.key = "schedule",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(schedule),
     .default_text = "constant",
     .choices = schedule_names,
     .help = "how the learning rate changes"},
    {.key = "warmup_epochs",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(warmup_epochs),
     .default_text = "0",
     .min = 0,
     .max = 1e9,
     .unit = "epochs",
     .help = "time in which the learning rate grows evenly to its full size"},
    {.key = "step_epochs",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(step_epochs),
     .default_text = "10",
     .min = 1e-6,
     .max = 1e9,
     .unit = "epochs",
     .help = "schedule step: time between two changes"},
    {.key = "step_factor",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(step_factor),
     .default_text = "0.1",
     .min = 0,
     .max = 1,
     .help = "schedule step: factor of each change"},
    {.key = "final_factor",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(final_factor),
     .default_text = "0",
     .min = 0,
     .max = 1,
     .help = "schedule cosine: the last learning rate, as a share of the first"},
    {.key = "linear_scaling",
     .type = GR_CONFIG_BOOL,
     .offset = AT(linear_scaling),
     .default_text = "false",
     .help = "learning_rate is for reference_batch and grows with the global batch"},
    {.key = "reference_batch",
     .type = GR_CONFIG_INT,
     .offset = AT(reference_batch),
     .default_text = "256",
     .min = 1,
     .max = 1 << 30,
     .unit = "samples",
     .help = "linear_scaling: the global batch that learning_rate was chosen for"},
    {.key = NULL}};

const gr_config_table gr_optimizer_config_table = {.name = "optimizer",
                                                   .title = "How gradients change the weights",
                                                   .fields = fields,
                                                   .struct_bytes = sizeof(gr_optimizer_config)};

/* ---- One step over plain vectors ------------------------------------------------------------- */

int gr_optimizer_states(const gr_optimizer_config *config)
{
    return config->kind == GR_OPT_SGD ? 1 : 2;
}

const char *gr_optimizer_state_name(const gr_optimizer_config *config, int index)
{
    static const char *const names[2][GR_OPTIMIZER_STATES_MAX] = {
        {"momentum", NULL}, {"first_moment", "second_moment"}};
    bool inside = index >= 0 && index < gr_optimizer_states(config);
    return inside ? names[config->kind != GR_OPT_SGD][index] : NULL;
}

void gr_optimizer_step_init(gr_optimizer_step *now, const gr_optimizer_config *config,
                            uint64_t step, double learning_rate, float gradient_factor, bool decay)
{
    double weight_decay = decay ? config->weight_decay : 0.0;
    *now = (gr_optimizer_step){.kind = config->kind};
    if (config->kind == GR_OPT_SGD) {
        now->sgd = (gr_sgd_numbers){.gradient_factor = gradient_factor,
                                    .weight_decay = (float)weight_decay,
                                    .momentum = (float)config->momentum,
                                    .learning_rate = (float)learning_rate,
                                    .nesterov = config->nesterov};
        return;
    }
    bool decoupled = config->kind == GR_OPT_ADAMW;
    double first = 1.0 - gr_power(config->beta1, step + 1);
    double second = 1.0 - gr_power(config->beta2, step + 1);
    now->adam =
        (gr_adam_numbers){.gradient_factor = gradient_factor,
                          .l2 = decoupled ? 0.0f : (float)weight_decay,
                          .decoupled = decoupled ? (float)(learning_rate * weight_decay) : 0.0f,
                          .beta1 = (float)config->beta1,
                          .beta2 = (float)config->beta2,
                          .epsilon = (float)config->epsilon,
                          .rate = (float)(learning_rate / first),
                          .second_scale = (float)(1.0 / second)};
}

bool gr_optimizer_apply(const gr_optimizer_step *now, float *values, float *const *states,
                        const float *gradients, size_t count)
{
    const gr_passes *passes = gr_passes_best();
    if (now->kind == GR_OPT_SGD) {
        return passes->sgd(values, states[0], gradients, &now->sgd, count);
    }
    return passes->adam(values, states[0], states[1], gradients, &now->adam, count);
}

/* ---- The optimizer of a model ---------------------------------------------------------------- */

struct gr_optimizer {
    gr_optimizer_config config;
    const gr_model *model;
    float *state[GR_OPTIMIZER_STATES_MAX];
    gr_optimizer_step now[2]; /* without and with weight decay */
};

gr_status gr_optimizer_create(const gr_optimizer_config *config, const gr_model *model,
                              gr_optimizer **optimizer_out, gr_diag *diag)
{
    gr_optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (!optimizer) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the optimizer");
    }
    optimizer->config = *config;
    optimizer->model = model;
    size_t bytes = gr_model_values(model) * sizeof(float);
    bytes = (bytes + 63) / 64 * 64;
    for (int i = 0; i < gr_optimizer_states(config); i++) {
        optimizer->state[i] = aligned_alloc(64, bytes ? bytes : 64);
        if (!optimizer->state[i]) {
            gr_optimizer_destroy(optimizer);
            return gr_fail(
                diag, GR_E_NO_MEMORY,
                "no memory for the optimizer's state (%zu MiB each of %d): choose sgd or "
                "a smaller model",
                bytes >> 20, 2);
        }
        memset(optimizer->state[i], 0, bytes);
    }
    gr_optimizer_begin(optimizer, 0, config->learning_rate, 1.0f);
    *optimizer_out = optimizer;
    return GR_OK;
}

void gr_optimizer_destroy(gr_optimizer *optimizer)
{
    if (optimizer) {
        for (int i = 0; i < GR_OPTIMIZER_STATES_MAX; i++) {
            free(optimizer->state[i]);
        }
        free(optimizer);
    }
}

void gr_optimizer_begin(gr_optimizer *optimizer, uint64_t step, double learning_rate,
                        float gradient_factor)
{
    for (int decay = 0; decay < 2; decay++) {
        gr_optimizer_step_init(&optimizer->now[decay], &optimizer->config, step, learning_rate,
                               gradient_factor, decay);
    }
}

bool gr_optimizer_update(gr_optimizer *optimizer, float *values, const float *gradients,
                         size_t begin, size_t end)
{
    int count = gr_model_tensors(optimizer->model);
    bool finite = true;
    for (int i = 0; i < count; i++) {
        const gr_tensor_info *info = gr_model_tensor(optimizer->model, i);
        size_t from = info->offset > begin ? info->offset : begin;
        size_t to = info->offset + info->count < end ? info->offset + info->count : end;
        if (info->statistic || from >= to) {
            continue;
        }
        float *states[GR_OPTIMIZER_STATES_MAX] = {NULL};
        for (int s = 0; s < gr_optimizer_states(&optimizer->config); s++) {
            states[s] = optimizer->state[s] + from;
        }
        finite &= gr_optimizer_apply(&optimizer->now[info->decay], values + from, states,
                                     gradients + from, to - from);
    }
    return finite;
}

float *gr_optimizer_state(gr_optimizer *optimizer, int index, const char **name_out)
{
    const char *name = gr_optimizer_state_name(&optimizer->config, index);
    if (!name) {
        return NULL;
    }
    *name_out = name;
    return optimizer->state[index];
}
