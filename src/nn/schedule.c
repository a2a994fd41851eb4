/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/optimizer.h"

#include "base/number.h"

#include <math.h>
#include <stddef.h>

#define AT(field) offsetof(gr_optimizer_config, field)

/* Cosine of pi * t for t in 0..1, from additions and products alone: every rank must compute the
 * same learning rate, and libm's last bit differs between machines. */
static double cos_pi(double t)
{
    double x = (0.5 - t) * 3.14159265358979323846; /* cos(pi t) = sin(pi (1/2 - t)) */
    double square = x * x, sum = 1.0;
    for (int n = 22; n >= 2; n -= 2) {
        sum = 1.0 - sum * square / (double)(n * (n + 1));
    }
    return x * sum;
}

static double bounded(double value, double low, double high)
{
    return value > low ? (value < high ? value : high) : low;
}

static double constant_at(const gr_optimizer_config *config, double rate, double step,
                          double warmup_steps, double steps_per_epoch, double total_steps)
{
    (void)config, (void)step, (void)warmup_steps, (void)steps_per_epoch, (void)total_steps;
    return rate;
}

static const gr_schedule_ops constant = {.name = "constant", .at = constant_at};

static const gr_config_field step_fields[] = {{.key = "step_epochs",
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
                                              {.key = NULL}};

static double step_at(const gr_optimizer_config *config, double rate, double step,
                      double warmup_steps, double steps_per_epoch, double total_steps)
{
    (void)warmup_steps, (void)total_steps;
    if (!(config->step_epochs > 0 && steps_per_epoch > 0)) {
        return rate;
    }
    /* A hair more than the quotient: 3 epochs of 10 steps are 30 steps, also in binary. */
    double stairs = floor(step / (config->step_epochs * steps_per_epoch) + 1e-9);
    return rate * gr_power(config->step_factor, (uint64_t)bounded(stairs, 0.0, 1e6));
}

static const gr_schedule_ops stairs = {.name = "step", .settings = step_fields, .at = step_at};

static const gr_config_field cosine_fields[] = {
    {.key = "final_factor",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(final_factor),
     .default_text = "0",
     .min = 0,
     .max = 1,
     .help =
         "schedule cosine: the learning rate where the curve ends, one step behind the last one, "
         "as a share of the first"},
    {.key = NULL}};

static double cosine_at(const gr_optimizer_config *config, double rate, double step,
                        double warmup_steps, double steps_per_epoch, double total_steps)
{
    (void)steps_per_epoch;
    double length = total_steps - warmup_steps;
    double t = length > 0 ? bounded((step - warmup_steps) / length, 0.0, 1.0) : 1.0;
    double share = 0.5 * (1.0 + cos_pi(t));
    return rate * (config->final_factor + (1.0 - config->final_factor) * share);
}

static const gr_schedule_ops cosine = {
    .name = "cosine", .settings = cosine_fields, .by_length = true, .at = cosine_at};

static const gr_schedule_ops *const schedules[] = {[GR_SCHEDULE_CONSTANT] = &constant,
                                                   [GR_SCHEDULE_STEP] = &stairs,
                                                   [GR_SCHEDULE_COSINE] = &cosine};
enum { SCHEDULE_COUNT = sizeof schedules / sizeof schedules[0] };

const gr_schedule_ops *gr_schedule_ops_at(int index)
{
    return index < SCHEDULE_COUNT ? schedules[index] : NULL;
}

double gr_learning_rate(const gr_optimizer_config *config, uint64_t step, double steps_per_epoch,
                        uint64_t total_steps, int64_t global_batch)
{
    double rate = config->learning_rate;
    if (config->linear_scaling && config->reference_batch > 0) {
        rate *= (double)global_batch / (double)config->reference_batch;
    }
    double at = (double)step, warmup = config->warmup_epochs * steps_per_epoch;
    if (at + 1.0 < warmup) {
        return rate * ((at + 1.0) / warmup);
    }
    return gr_schedule_ops_at(config->schedule)
        ->at(config, rate, at, warmup, steps_per_epoch, (double)total_steps);
}
