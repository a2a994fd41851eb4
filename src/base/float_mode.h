/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FLOAT_MODE_H
#define GR_BASE_FLOAT_MODE_H

/* How this thread rounds, and whether it keeps subnormal numbers. A program may set that for some
 * of its threads (torch.set_flush_denormal), and sums must not depend on which thread makes them.
 */

#include <stdint.h>

#if defined(__x86_64__)
typedef uint32_t gr_float_mode;
enum { GR_FLOAT_MODE_FLAGS = 0x3f, GR_FLOAT_MODE_USUAL = 0x1f80 };
static inline gr_float_mode gr_float_mode_get(void)
{
    return __builtin_ia32_stmxcsr();
}
static inline void gr_float_mode_set(gr_float_mode mode)
{
    __builtin_ia32_ldmxcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t gr_float_mode;
enum { GR_FLOAT_MODE_FLAGS = 0, GR_FLOAT_MODE_USUAL = 0 };
static inline gr_float_mode gr_float_mode_get(void)
{
    gr_float_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void gr_float_mode_set(gr_float_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#endif

/* Returns the mode to be given back, and sets the usual one: to nearest, nothing flushed. */
static inline gr_float_mode gr_float_mode_enter(void)
{
    gr_float_mode mode = gr_float_mode_get();
    if ((mode & ~(gr_float_mode)GR_FLOAT_MODE_FLAGS) != GR_FLOAT_MODE_USUAL) {
        gr_float_mode_set(GR_FLOAT_MODE_USUAL);
    }
    return mode;
}

static inline void gr_float_mode_leave(gr_float_mode mode)
{
    if ((mode & ~(gr_float_mode)GR_FLOAT_MODE_FLAGS) != GR_FLOAT_MODE_USUAL) {
        gr_float_mode_set(mode);
    }
}

#endif
