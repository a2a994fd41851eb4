/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/optimizer.h"

#include "base/fail.h"
#include "base/memory.h"
#include "base/number.h"
#include "doc/config_node.h"
#include "nn/passes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(gr_optimizer_config, field)

/* ---- sgd ------------------------------------------------------------------------------------- */

static const gr_config_field sgd_fields[] = {{.key = "momentum",
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
                                             {.key = NULL}};

static bool sgd_stays_zero(const gr_optimizer_config *config)
{
    return !(config->momentum > 0.0);
}

static void sgd_prepare(const gr_optimizer_config *config, const gr_optimizer_now *now,
                        unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES])
{
    gr_sgd_numbers numbers = {.gradient_factor = now->gradient_factor,
                              .weight_decay = (float)now->weight_decay,
                              .momentum = (float)config->momentum,
                              .learning_rate = (float)now->learning_rate,
                              .nesterov = config->nesterov};
    memcpy(numbers_out, &numbers, sizeof numbers);
}

static bool sgd_update(const unsigned char numbers[GR_OPTIMIZER_NUMBERS_BYTES], float *values,
                       float *const *states, const float *gradients, size_t count)
{
    gr_sgd_numbers n;
    memcpy(&n, numbers, sizeof n);
    return gr_passes_best()->sgd(values, states[0], gradients, &n, count);
}

static const gr_optimizer_ops sgd = {.name = "sgd",
                                     .settings = sgd_fields,
                                     .states = {"momentum"},
                                     .stays_zero = sgd_stays_zero,
                                     .prepare = sgd_prepare,
                                     .update = sgd_update};

/* ---- adam, adamw ----------------------------------------------------------------------------- */

static const gr_config_field adam_fields[] = {
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
    {.key = NULL}};

static void adam_numbers(const gr_optimizer_config *config, const gr_optimizer_now *now,
                         bool decoupled, unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES])
{
    double decay = now->weight_decay, rate = now->learning_rate;
    double first = 1.0 - gr_power(config->beta1, now->step + 1);
    double second = 1.0 - gr_power(config->beta2, now->step + 1);
    gr_adam_numbers numbers = {.gradient_factor = now->gradient_factor,
                               .l2 = decoupled ? 0.0f : (float)decay,
                               .decoupled = decoupled ? (float)(rate * decay) : 0.0f,
                               .beta1 = (float)config->beta1,
                               .beta2 = (float)config->beta2,
                               .epsilon = (float)config->epsilon,
                               .rate = (float)(rate / first),
                               .second_scale = (float)(1.0 / second)};
    memcpy(numbers_out, &numbers, sizeof numbers);
}

static void adam_prepare(const gr_optimizer_config *config, const gr_optimizer_now *now,
                         unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES])
{
    adam_numbers(config, now, false, numbers_out);
}

static void adamw_prepare(const gr_optimizer_config *config, const gr_optimizer_now *now,
                          unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES])
{
    adam_numbers(config, now, true, numbers_out);
}

static bool adam_update(const unsigned char numbers[GR_OPTIMIZER_NUMBERS_BYTES], float *values,
                        float *const *states, const float *gradients, size_t count)
{
    gr_adam_numbers n;
    memcpy(&n, numbers, sizeof n);
    return gr_passes_best()->adam(values, states[0], states[1], gradients, &n, count);
}

static const gr_optimizer_ops adam = {.name = "adam",
                                      .settings = adam_fields,
                                      .states = {"first_moment", "second_moment"},
                                      .prepare = adam_prepare,
                                      .update = adam_update};
static const gr_optimizer_ops adamw = {.name = "adamw",
                                       .settings = adam_fields,
                                       .states = {"first_moment", "second_moment"},
                                       .prepare = adamw_prepare,
                                       .update = adam_update};
_Static_assert(sizeof(gr_sgd_numbers) <= GR_OPTIMIZER_NUMBERS_BYTES &&
                   sizeof(gr_adam_numbers) <= GR_OPTIMIZER_NUMBERS_BYTES,
               "a step has room for the numbers");

/* ---- The kinds and their settings ------------------------------------------------------------ */

static const gr_optimizer_ops *const kinds[] = {
    [GR_OPT_SGD] = &sgd, [GR_OPT_ADAM] = &adam, [GR_OPT_ADAMW] = &adamw};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

const gr_optimizer_ops *gr_optimizer_ops_at(int index)
{
    return index < KIND_COUNT ? kinds[index] : gr_extra_optimizers[index - KIND_COUNT];
}

static const char *kind_name(int index)
{
    const gr_optimizer_ops *ops = gr_optimizer_ops_at(index);
    return ops ? ops->name : NULL;
}

static const gr_config_field *kind_fields(int index)
{
    return gr_optimizer_ops_at(index)->settings;
}

static const char *schedule_name(int index)
{
    const gr_schedule_ops *ops = gr_schedule_ops_at(index);
    return ops ? ops->name : NULL;
}

static const gr_config_field *schedule_fields(int index)
{
    return gr_schedule_ops_at(index)->settings;
}

static const gr_config_field fields[] = {
    {.key = "kind",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(kind),
     .default_text = "sgd",
     .choice = kind_name,
     .choice_fields = kind_fields,
     .result = "",
     .help = "the rule by which gradients change the weights"},
    {.key = "learning_rate",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(learning_rate),
     .default_text = "0.01",
     .min = 0,
     .max = 1e6,
     .result = "",
     .help = "step size, before the schedule and linear scaling"},
    {.key = "weight_decay",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(weight_decay),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .result = "",
     .help =
         "pull of weights (not biases, not batch norm) to zero; adamw: apart from the gradient"},
    {.key = "clip_norm",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(clip_norm),
     .default_text = "0",
     .min = 0,
     .max = 1e30,
     .result = "",
     .help = "largest global norm of the gradient; 0: no limit"},
    {.key = "schedule",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(schedule),
     .default_text = "constant",
     .choice = schedule_name,
     .choice_fields = schedule_fields,
     .result = "",
     .help = "how the learning rate changes"},
    {.key = "warmup_epochs",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(warmup_epochs),
     .default_text = "0",
     .min = 0,
     .max = 1e9,
     .unit = "epochs",
     .result = "",
     .help = "time in which the learning rate grows evenly to its full size"},
    {.key = "linear_scaling",
     .type = GR_CONFIG_BOOL,
     .offset = AT(linear_scaling),
     .default_text = "false",
     .result = "",
     .help = "learning_rate is for reference_batch and grows with the global batch"},
    {.key = "reference_batch",
     .type = GR_CONFIG_INT,
     .offset = AT(reference_batch),
     .default_text = "256",
     .min = 1,
     .max = 1 << 30,
     .unit = "samples",
     .result = "",
     .help = "linear_scaling: the global batch that learning_rate was chosen for"},
    {.key = NULL}};

const gr_config_table gr_optimizer_config_table = {.name = "optimizer",
                                                   .title = "How gradients change the weights",
                                                   .fields = fields,
                                                   .struct_bytes = sizeof(gr_optimizer_config)};

bool gr_optimizer_is_rule(const gr_optimizer_config *config, const gr_config_field *field)
{
    return field->offset == AT(kind) || field->offset == AT(weight_decay) ||
           gr_config_is_among(gr_optimizer_ops_at(config->kind)->settings, field);
}

gr_status gr_optimizer_settle(gr_optimizer_config *config, const gr_node *map, gr_arena *arena,
                              gr_diag *diag)
{
    return gr_config_settle(&gr_optimizer_config_table, "kind", config, map, arena, diag);
}

/* ---- One step over plain vectors ------------------------------------------------------------- */

int gr_optimizer_states(const gr_optimizer_config *config)
{
    int count = 0;
    while (gr_optimizer_ops_at(config->kind)->states[count]) {
        count++;
    }
    return count;
}

const char *gr_optimizer_state_name(const gr_optimizer_config *config, int index)
{
    bool inside = index >= 0 && index < gr_optimizer_states(config);
    return inside ? gr_optimizer_ops_at(config->kind)->states[index] : NULL;
}

void gr_optimizer_step_init(gr_optimizer_step *now, const gr_optimizer_config *config,
                            uint64_t step, double learning_rate, float gradient_factor, bool decay)
{
    now->ops = gr_optimizer_ops_at(config->kind);
    now->ops->prepare(config,
                      &(gr_optimizer_now){.step = step,
                                          .learning_rate = learning_rate,
                                          .weight_decay = decay ? config->weight_decay : 0.0,
                                          .gradient_factor = gradient_factor},
                      now->numbers);
}

bool gr_optimizer_apply(const gr_optimizer_step *now, float *values, float *const *states,
                        const float *gradients, size_t count)
{
    return now->ops->update(now->numbers, values, states, gradients, count);
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
    for (int i = 0; i < gr_optimizer_states(config); i++) {
        optimizer->state[i] = gr_zeros(bytes);
        if (!optimizer->state[i]) {
            gr_optimizer_destroy(optimizer);
            return gr_fail(
                diag, GR_E_NO_MEMORY,
                "no memory for the optimizer's state (%zu MiB each of %d): choose sgd or "
                "a smaller model",
                bytes >> 20, gr_optimizer_states(config));
        }
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
