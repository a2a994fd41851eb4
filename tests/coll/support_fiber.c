/* SPDX-License-Identifier: Apache-2.0 */
#include "support_fiber.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

/* The sanitizers must be told of every change of the stack. */
#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define FIBER_TSAN 1
#endif
#endif
#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#endif
#ifdef FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK_BYTES = 1 << 20 }; /* of which only what is touched takes memory */

struct fiber {
    void (*body)(void *arg);
    void *arg;
    uint8_t *stack;
    bool over; /* the body has returned */
    ucontext_t inside, outside;
    void *tsan_inside, *tsan_outside;
    void *fake_inside, *fake_outside; /* what ASan keeps of a stack that is left */
    const void *outside_stack;
    size_t outside_bytes;
};

static void before_enter(fiber *f)
{
#if defined(FIBER_ASAN)
    __sanitizer_start_switch_fiber(&f->fake_outside, f->stack, STACK_BYTES);
#elif defined(FIBER_TSAN)
    f->tsan_outside = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->tsan_inside, 0);
#else
    (void)f;
#endif
}

static void after_enter(fiber *f)
{
#if defined(FIBER_ASAN)
    __sanitizer_finish_switch_fiber(f->fake_inside, &f->outside_stack, &f->outside_bytes);
#else
    (void)f;
#endif
}

static void before_leave(fiber *f)
{
#if defined(FIBER_ASAN)
    __sanitizer_start_switch_fiber(&f->fake_inside, f->outside_stack, f->outside_bytes);
#elif defined(FIBER_TSAN)
    __tsan_switch_to_fiber(f->tsan_outside, 0);
#else
    (void)f;
#endif
}

static void after_leave(fiber *f)
{
#if defined(FIBER_ASAN)
    __sanitizer_finish_switch_fiber(f->fake_outside, NULL, NULL);
#else
    (void)f;
#endif
}

/* makecontext passes only ints: a pointer goes as two of them. */
static void run(unsigned high, unsigned low)
{
    fiber *f = (fiber *)((uintptr_t)high << 32 | low); /* NOLINT: it was one */
    after_enter(f);
    f->body(f->arg);
    f->over = true;
    fiber_leave(f);
    abort(); /* it is never entered again */
}

/* In a function of its own, since getcontext returns as setjmp does. */
static void prepare(fiber *f)
{
    getcontext(&f->inside);
    f->inside.uc_stack.ss_sp = f->stack;
    f->inside.uc_stack.ss_size = STACK_BYTES;
    f->inside.uc_link = NULL;
    makecontext(&f->inside, (void (*)(void))run, 2, (unsigned)((uint64_t)(uintptr_t)f >> 32),
                (unsigned)(uintptr_t)f);
}

fiber *fiber_create(void (*body)(void *arg), void *arg)
{
    fiber *f = calloc(1, sizeof *f);
    if (!f) {
        return NULL;
    }
    f->body = body;
    f->arg = arg;
    f->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED) {
        free(f);
        return NULL;
    }
#ifdef FIBER_TSAN
    f->tsan_inside = __tsan_create_fiber(0);
#endif
    prepare(f);
    return f;
}

void fiber_enter(fiber *f)
{
    before_enter(f);
    swapcontext(&f->outside, &f->inside);
    after_leave(f);
}

void fiber_leave(fiber *f)
{
    before_leave(f);
    swapcontext(&f->inside, &f->outside);
    after_enter(f);
}

void fiber_destroy(fiber *f)
{
    if (!f) {
        return;
    }
#ifdef FIBER_TSAN
    __tsan_destroy_fiber(f->tsan_inside);
#endif
#ifdef FIBER_ASAN
    if (!f->over) { /* what it held is as little lost as with a process that was killed */
        __lsan_register_root_region(f->stack, STACK_BYTES);
        free(f);
        return;
    }
#endif
    munmap(f->stack, STACK_BYTES);
    free(f);
}
