/* SPDX-License-Identifier: Apache-2.0 */
/* A step allocates nothing. malloc and its kin are replaced here by ones that count who calls them:
 * the engine, or oneDNN (with the C++ library under it). oneDNN's own few allocations for each call
 * are held against a limit, and all of them must be given back by the end of the step. */
#include "sanitized.h"
#include "support_nn.h"

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REPLACES_MALLOC (!SANITIZED)

/* The only mutable globals of the tests: malloc has no argument to carry them. */
static volatile struct counters {
    bool on; /* volatile: compilers know that malloc reads no globals, but this one does */
    long ours, theirs, freed;
    long fail_at; /* the engine's allocation of this number fails; 0: none */
} counters;

static void reset(void)
{
    counters.on = false;
    counters.ours = counters.theirs = counters.freed = counters.fail_at = 0;
}

#if REPLACES_MALLOC
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);
extern char __executable_start, etext;

/* False: this one must fail. */
static bool count(const void *caller)
{
    const char *at = caller;
    if (!counters.on) {
        return true;
    }
    if (at >= &__executable_start && at < &etext) {
        counters.ours++;
        return counters.ours != counters.fail_at;
    }
    counters.theirs++;
    return true;
}

void *malloc(size_t size)
{
    return count(__builtin_return_address(0)) ? __libc_malloc(size) : NULL;
}

void *calloc(size_t number, size_t size)
{
    return count(__builtin_return_address(0)) ? __libc_calloc(number, size) : NULL;
}

void *realloc(void *old, size_t size)
{
    if (!count(__builtin_return_address(0))) {
        return NULL;
    }
    counters.freed += counters.on && old;
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return count(__builtin_return_address(0)) ? __libc_memalign(alignment, size) : NULL;
}

int posix_memalign(void **memory_out, size_t alignment, size_t size)
{
    *memory_out = count(__builtin_return_address(0)) ? __libc_memalign(alignment, size) : NULL;
    return *memory_out ? 0 : ENOMEM;
}

void free(void *memory)
{
    counters.freed += counters.on && memory;
    __libc_free(memory);
}
#endif

enum { STEPS = 10 };

static void full_step(net *n, gr_optimizer *optimizer, uint64_t step)
{
    gr_batch_result result;
    n->batch.step = step;
    gr_status status = gr_model_forward(n->model, n->values, &n->batch, &result, &n->diag);
    if (status == GR_OK) {
        status =
            gr_model_backward(n->model, n->values, &n->batch, n->gradients, NULL, NULL, &n->diag);
    }
    gr_optimizer_begin(optimizer, step, 0.01, 1.0f);
    gr_optimizer_update(optimizer, n->values, n->gradients, 0, n->values_count);
    gr_model_update_statistics(n->model, n->values, n->gradients, 1.0f);
    if (status == GR_OK) {
        status = gr_model_evaluate(n->model, n->values, &n->batch, 1, &result, NULL, &n->diag);
    }
    counters.on = counters.on && status == GR_OK;
}

static void count_steps(const char *layers, gr_shape input, const char *backend, long limit)
{
    net n;
    net_open(&n, &(net_options){.layers = layers, .input = input, .batch = 8, .backend = backend});
    gr_optimizer_config sgd = {.kind = GR_OPT_SGD, .momentum = 0.9};
    gr_optimizer *optimizer = NULL;
    assert_int_equal(gr_optimizer_create(&sgd, n.model, &optimizer, &n.diag), GR_OK);
    full_step(&n, optimizer, 0);
    reset();
    counters.on = true;
    for (uint64_t step = 1; step <= STEPS; step++) {
        full_step(&n, optimizer, step);
    }
    bool well = counters.on;
    counters.on = false;
    assert_true(well);
    print_message("%s: by the engine %ld, by oneDNN %ld a step (training and evaluation)\n",
                  backend, counters.ours, counters.theirs / STEPS);
    assert_int_equal(counters.ours, 0);
    assert_true(counters.theirs <= limit * STEPS);
    assert_int_equal(counters.theirs, counters.freed);
    gr_optimizer_destroy(optimizer);
    net_close(&n);
}

static const char everything[] =
    "[conv2d: {channels: 16, kernel: 3}, batch_norm, relu, max_pool: 2, residual: [conv2d: "
    "{channels: "
    "16, kernel: 3, padding: same}, gelu], avg_pool: 2, flatten, linear: 32, relu, dropout: 0.2, "
    "linear: 10]";

static void test_the_reference_allocates_nothing(void **state)
{
    (void)state;
    if (!REPLACES_MALLOC) {
        print_message("skipped because the sanitizer has a malloc of its own\n");
        skip();
    }
    count_steps(everything, IMAGE(1, 14, 14), "reference", 0);
}

static void test_the_engine_allocates_nothing(void **state)
{
    (void)state;
    if (!REPLACES_MALLOC) {
        print_message("skipped because the sanitizer has a malloc of its own\n");
        skip();
    }
    count_steps(everything, IMAGE(1, 14, 14), "onednn", 300);
    count_steps("[flatten, linear: 64, relu, linear: 10]", IMAGE(1, 14, 14), "onednn", 40);
}

/* The counting counts: a call from this file is ours. */
static void test_the_counter_counts(void **state)
{
    (void)state;
    if (!REPLACES_MALLOC) {
        print_message("skipped because the sanitizer has a malloc of its own\n");
        skip();
    }
    reset();
    counters.on = true;
    void *(*volatile get)(size_t) = malloc; /* or the compiler leaves the pair out */
    void *memory = get(10);
    free(memory);
    counters.on = false;
    assert_int_equal(counters.ours, 1);
    assert_int_equal(counters.freed, 1);
}

/* From the text of the layers to an optimizer; what was made is given back. */
static gr_status make_all(const gr_node *layers, gr_diag *diag)
{
    const gr_shape input = IMAGE(1, 14, 14);
    const gr_optimizer_config adam = {.kind = GR_OPT_ADAM, .beta1 = 0.9, .beta2 = 0.99};
    gr_arena arena;
    gr_model_spec *spec = NULL;
    gr_model *model = NULL;
    gr_optimizer *optimizer = NULL;
    gr_arena_init(&arena, 16 << 20);
    gr_status status = gr_model_spec_read(layers, &input, &arena, &spec, diag);
    if (status == GR_OK) {
        gr_model_config config = {.spec = spec, .batch = 4, .training = true};
        status = gr_model_create(&config, &model, diag);
    }
    if (status == GR_OK) {
        status = gr_optimizer_create(&adam, model, &optimizer, diag);
    }
    gr_optimizer_destroy(optimizer);
    gr_model_destroy(model);
    gr_arena_fini(&arena);
    return status;
}

/* Each allocation of the engine fails once: the call says so, and nothing else happens. */
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    if (!REPLACES_MALLOC) {
        print_message("skipped because the sanitizer has a malloc of its own\n");
        skip();
    }
    gr_doc *doc = NULL;
    gr_diag diag;
    assert_int_equal(gr_doc_parse_yaml("job.yaml", everything, strlen(everything), &doc, &diag),
                     GR_OK);
    gr_status status = GR_E_NO_MEMORY;
    long at = 0;
    while (status == GR_E_NO_MEMORY && at < 10000) {
        memset(&diag, 0, sizeof diag);
        reset();
        counters.fail_at = ++at;
        counters.on = true;
        status = make_all(gr_doc_root(doc), &diag);
        counters.on = false;
        assert_true(status == GR_OK || strstr(diag.text, "no memory"));
    }
    assert_int_equal(status, GR_OK);
    assert_true(at > 30); /* it went through many */
    gr_doc_destroy(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_counter_counts),
        cmocka_unit_test(test_the_reference_allocates_nothing),
        cmocka_unit_test(test_the_engine_allocates_nothing),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
