/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_CLOCK_H
#define GR_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic time in microseconds. A clock is a value that its users are handed, so that a test or
 * the simulator can stand in for the real one. */
typedef struct gr_clock {
    int64_t (*now_us)(void *clock_arg);
    void *clock_arg;
} gr_clock;

#define GR_NEVER INT64_MAX /* a deadline that does not come */

gr_clock gr_clock_real(void);
gr_clock gr_clock_simulated(int64_t *now_us); /* reads *now_us, which its owner moves on */

int64_t gr_clock_now_us(const gr_clock *clock);

/* now + timeout without overflow; a timeout of 0 or less never ends. */
int64_t gr_clock_deadline_us(const gr_clock *clock, int64_t timeout_us);

/* The real monotonic clock, directly, in nanoseconds: for measurements. */
int64_t gr_now_ns(void);

#endif
