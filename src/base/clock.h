/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_CLOCK_H
#define GR_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic time in microseconds. A clock is a value that its users receive, so a test or the
 * simulator can replace the real one. */
typedef struct gr_clock {
    int64_t (*now_us)(void *clock_arg);
    void *clock_arg;
} gr_clock;

#define GR_NEVER INT64_MAX /* a deadline that never comes */

gr_clock gr_clock_real(void);
/* For tests: a clock that reads *now_us, which the test changes. */
gr_clock gr_clock_simulated(int64_t *now_us);

int64_t gr_clock_now_us(const gr_clock *clock);

/* Returns now + timeout_us without overflow, or GR_NEVER if timeout_us is 0 or less. */
int64_t gr_clock_deadline_us(const gr_clock *clock, int64_t timeout_us);

/* Returns the real monotonic clock in nanoseconds, for measurements. */
int64_t gr_now_ns(void);

static inline int64_t gr_earlier_us(int64_t a_us, int64_t b_us)
{
    return a_us < b_us ? a_us : b_us;
}

#endif
