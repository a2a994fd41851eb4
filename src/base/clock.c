/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stddef.h>
#include <time.h>

int64_t gr_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail with this clock and a valid pointer */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t real_now_us(void *clock_arg)
{
    (void)clock_arg;
    return gr_now_ns() / 1000;
}

static int64_t simulated_now_us(void *clock_arg)
{
    const int64_t *now_us = clock_arg;
    return *now_us;
}

gr_clock gr_clock_real(void)
{
    return (gr_clock){.now_us = real_now_us, .clock_arg = NULL};
}

gr_clock gr_clock_simulated(int64_t *now_us)
{
    return (gr_clock){.now_us = simulated_now_us, .clock_arg = now_us};
}

int64_t gr_clock_now_us(const gr_clock *clock)
{
    return clock->now_us(clock->clock_arg);
}

int64_t gr_clock_deadline_us(const gr_clock *clock, int64_t timeout_us)
{
    int64_t deadline_us = 0;
    if (timeout_us <= 0 ||
        __builtin_add_overflow(gr_clock_now_us(clock), timeout_us, &deadline_us)) {
        return GR_NEVER;
    }
    return deadline_us;
}
