/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/optimizer.h"

#include "base/number.h"

#include <math.h>

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
    if (config->schedule == GR_SCHEDULE_STEP && config->step_epochs > 0 && steps_per_epoch > 0) {
        /* A hair more than the quotient: 3 epochs of 10 steps are 30 steps, also in binary. */
        double stairs = floor(at / (config->step_epochs * steps_per_epoch) + 1e-9);
        return rate * gr_power(config->step_factor, (uint64_t)bounded(stairs, 0.0, 1e6));
    }
    if (config->schedule == GR_SCHEDULE_COSINE) {
        double length = (double)total_steps - warmup;
        double t = length > 0 ? bounded((at - warmup) / length, 0.0, 1.0) : 1.0;
        double share = 0.5 * (1.0 + cos_pi(t));
        return rate * (config->final_factor + (1.0 - config->final_factor) * share);
    }
    return rate;
}
