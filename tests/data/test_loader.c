/* SPDX-License-Identifier: Apache-2.0 */
#include "sanitized.h"
#include "support_data.h"

#include "base/fail.h"
#include "data/loader.h"
#include "data/sampler.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAP_COUNTED (!SANITIZED) /* else the sanitizer has the heap */

#if HEAP_COUNTED
/* Seen by the libraries as well, whatever visibility the build chooses. */
#pragma GCC visibility push(default)
static atomic_bool heap_watched;
static atomic_long heap_calls;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);

void *malloc(size_t size)
{
    heap_calls += heap_watched;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    heap_calls += heap_watched;
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    heap_calls += heap_watched;
    return __libc_realloc(memory, size);
}
#pragma GCC visibility pop
#endif

enum { COUNT = 103, BATCH = 16, SHARDS = 4, SHARD_BATCH = BATCH / SHARDS };

/* Sample i: value i, label i % 7. */
static gr_dataset *open_numbers(void **state, uint64_t memory_max, char *path)
{
    char text[COUNT * 8];
    size_t size = 0;
    for (int i = 0; i < COUNT; i++) {
        size += (size_t)sprintf(text + size, "%d,%d\n", i, i % 7);
    }
    file_put(state, "numbers.csv", text, size, path);
    gr_data_config config = config_csv(path);
    gr_table_options limits = gr_table_options_default();
    limits.memory_max = memory_max;
    gr_dataset *dataset;
    assert_int_equal(gr_dataset_open_limited(&config, "job.yaml", 1, &limits, &dataset, NULL),
                     GR_OK);
    return dataset;
}

static gr_loader_config loader_config(const gr_dataset *dataset)
{
    return (gr_loader_config){.dataset = dataset,
                              .seed = 5,
                              .global_batch = BATCH,
                              .shards = SHARDS,
                              .shard_count = SHARDS,
                              .total_steps = 20,
                              .micro_batches = 2,
                              .depth = 3};
}

/* Batches come in order, hold the samples that the order says, and are the same whoever reads
 * them. */
static void check_batches(const gr_dataset *dataset, int first, int count, int micros, int depth)
{
    gr_loader_config config = loader_config(dataset);
    config.shard_first = first;
    config.shard_count = count;
    config.micro_batches = micros;
    config.depth = depth;
    config.first_step = 4;
    gr_loader *loader;
    gr_diag diag;
    assert_int_equal(gr_loader_start(&config, &loader, &diag), GR_OK);
    const uint64_t per_epoch = COUNT / BATCH;
    gr_loaded got;
    for (uint64_t step = 4; step < 20; step++) {
        gr_sampler sampler;
        gr_sampler_init(&sampler, 5, step / per_epoch, COUNT);
        for (int shard = first; shard < first + count; shard++) {
            for (int micro = 0; micro < micros; micro++) {
                assert_int_equal(gr_loader_next(loader, &got, &diag), GR_OK);
                assert_int_equal(got.step, step);
                assert_int_equal(got.shard, shard);
                assert_int_equal(got.micro, micro);
                assert_int_equal(got.count, SHARD_BATCH / micros);
                uint64_t at = (uint64_t)(shard * SHARD_BATCH + micro * got.count);
                assert_int_equal(got.sample_first, at);
                assert_null(got.targets);
                for (int i = 0; i < got.count; i++) {
                    uint64_t sample =
                        gr_sampler_at(&sampler, step % per_epoch * BATCH + at + (uint64_t)i);
                    assert_true(got.x[i] == (float)sample);
                    assert_int_equal(got.labels[i], sample % 7);
                }
            }
        }
    }
    assert_int_equal(gr_loader_next(loader, &got, &diag), GR_E_NOT_FOUND);
    assert_int_equal(gr_loader_next(loader, &got, &diag), GR_E_NOT_FOUND);
    gr_loader_stop(loader);
}

static void test_batches(void **state)
{
    char path[300];
    gr_dataset *dataset = open_numbers(state, 1 << 20, path);
    check_batches(dataset, 0, 4, 1, 3);
    check_batches(dataset, 0, 4, 2, 1);
    check_batches(dataset, 1, 2, 4, 100);
    check_batches(dataset, 3, 1, 1, 2);
    check_batches(dataset, 2, 0, 1, 2);
    gr_dataset_close(dataset);
}

/* The batch that the caller holds is not overwritten while the thread reads ahead. */
static void test_held_batch_stays(void **state)
{
    char path[300];
    gr_dataset *dataset = open_numbers(state, 1 << 20, path);
    gr_loader_config config = loader_config(dataset);
    config.depth = 1;
    config.total_steps = 200;
    gr_loader *loader;
    assert_int_equal(gr_loader_start(&config, &loader, NULL), GR_OK);
    gr_loaded held;
    while (gr_loader_next(loader, &held, NULL) == GR_OK) {
        float sum = 0, again = 0;
        for (int i = 0; i < held.count; i++) {
            sum += held.x[i];
        }
        sched_yield();
        for (int i = 0; i < held.count; i++) {
            again += held.x[i];
        }
        assert_true(sum == again);
    }
    gr_loader_stop(loader);
    gr_dataset_close(dataset);
}

static void test_stop_at_any_moment(void **state)
{
    char path[300];
    gr_dataset *dataset = open_numbers(state, 1 << 20, path);
    gr_loader_config config = loader_config(dataset);
    config.total_steps = UINT64_MAX / 2;
    for (int taken = 0; taken < 60; taken++) {
        config.depth = 1 + taken % 5;
        gr_loader *loader;
        gr_loaded got;
        assert_int_equal(gr_loader_start(&config, &loader, NULL), GR_OK);
        for (int i = 0; i < taken; i++) {
            assert_int_equal(gr_loader_next(loader, &got, NULL), GR_OK);
        }
        gr_loader_stop(loader);
    }
    gr_loader_stop(NULL);
    gr_dataset_close(dataset);
}

/* What is read before a failure still arrives; then the failure, as often as one asks. */
static void test_error_arrives(void **state)
{
    char path[300];
    gr_dataset *dataset = open_numbers(state, 8, path);
    gr_loader_config config = loader_config(dataset);
    config.total_steps = UINT64_MAX / 2;
    gr_loader *loader;
    gr_loaded got;
    gr_diag diag;
    assert_int_equal(gr_loader_start(&config, &loader, &diag), GR_OK);
    assert_int_equal(gr_loader_next(loader, &got, &diag), GR_OK);
    assert_int_equal(truncate(path, 100), 0);
    gr_status status;
    int after = 0;
    do {
        status = gr_loader_next(loader, &got, &diag);
        after++;
    } while (status == GR_OK && after < 1000);
    assert_int_equal(status, GR_E_IO);
    assert_true(after <= config.depth + 3);
    assert_non_null(strstr(diag.text, "numbers.csv: the file was changed"));
    gr_diag_clear(&diag);
    assert_int_equal(gr_loader_next(loader, &got, &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, "numbers.csv"));
    gr_loader_stop(loader);
    gr_dataset_close(dataset);
}

static void refused(gr_loader_config config, const char *text)
{
    gr_loader *loader = NULL;
    gr_diag diag;
    assert_int_equal(gr_loader_start(&config, &loader, &diag), GR_E_INVALID);
    assert_null(loader);
    if (strstr(diag.text, text) == NULL) {
        fail_msg("expected: %s\nis: %s", text, diag.text);
    }
}

static void test_bad_config(void **state)
{
    char path[300];
    gr_dataset *dataset = open_numbers(state, 1 << 20, path);
    gr_loader_config config = loader_config(dataset);
    config.global_batch = 18;
    refused(config, "a global batch of 18 cannot be cut into 4 shards of 2 micro batches");
    config = loader_config(dataset);
    config.shard_first = 1;
    refused(config, "shards 1 to 4 are not all below 4");
    config = loader_config(dataset);
    config.depth = 0;
    refused(config, "0 batches cannot be read ahead");
    config = loader_config(dataset);
    config.global_batch = 104;
    refused(config, "cannot be taken from 103 training samples");
    gr_dataset_close(dataset);
}

/* Reading takes nothing from the heap, neither from memory nor from a file. */
static void test_no_heap(void **state)
{
#if HEAP_COUNTED
    char path[300];
    for (int kind = 0; kind < 2; kind++) {
        gr_dataset *dataset = open_numbers(state, kind ? 8 : 1 << 20, path);
        gr_loader_config config = loader_config(dataset);
        config.total_steps = UINT64_MAX / 2;
        gr_loader *loader;
        gr_loaded got;
        assert_int_equal(gr_loader_start(&config, &loader, NULL), GR_OK);
        for (int i = 0; i < 20; i++) {
            assert_int_equal(gr_loader_next(loader, &got, NULL), GR_OK);
        }
        heap_watched = true;
        int done = 0;
        while (done < 2000 && gr_loader_next(loader, &got, NULL) == GR_OK) {
            done++;
        }
        heap_watched = false;
        assert_int_equal(done, 2000);
        assert_int_equal(heap_calls, 0);
        gr_loader_stop(loader);
        gr_dataset_close(dataset);
    }
#else
    (void)state;
    print_message("skipped because the sanitizer has a malloc of its own\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batches),
                                       cmocka_unit_test(test_held_batch_stays),
                                       cmocka_unit_test(test_stop_at_any_moment),
                                       cmocka_unit_test(test_error_arrives),
                                       cmocka_unit_test(test_bad_config),
                                       cmocka_unit_test(test_no_heap)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
