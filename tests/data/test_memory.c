/* SPDX-License-Identifier: Apache-2.0 */

/* Memory that runs out at any place: opening data and starting a loader end with a sentence, and
 * give everything back. */
#include "sanitized.h"
#include "support_data.h"

#include "base/fail.h"
#include "data/loader.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAP_OURS (!SANITIZED) /* else the sanitizer has the heap */

#if HEAP_OURS
/* Seen by the libraries as well, whatever visibility the build chooses. */
#pragma GCC visibility push(default)
static atomic_bool heap_watched;
static atomic_long heap_left; /* calls that succeed before one fails */
static atomic_long heap_live;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static bool heap_fails(void)
{
    return heap_watched && atomic_fetch_sub(&heap_left, 1) == 0;
}

static void *heap_count(void *memory)
{
    heap_live += memory != NULL;
    return memory;
}

void *malloc(size_t size)
{
    return heap_fails() ? NULL : heap_count(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return heap_fails() ? NULL : heap_count(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    if (heap_fails()) {
        return NULL;
    }
    void *grown = __libc_realloc(memory, size);
    heap_live += memory == NULL && grown != NULL;
    return grown;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return heap_fails() ? NULL : heap_count(__libc_memalign(alignment, size));
}

void free(void *memory)
{
    heap_live -= memory != NULL;
    __libc_free(memory);
}

#pragma GCC visibility pop

/* Opens, starts a loader, reads a batch. */
static gr_status use(const gr_data_config *config, uint64_t memory_max, gr_diag *diag)
{
    gr_table_options limits = gr_table_options_default();
    limits.memory_max = memory_max;
    gr_dataset *dataset;
    gr_status status = gr_dataset_open_limited(config, "job.yaml", 1, &limits, &dataset, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_loader_config loading = {.dataset = dataset,
                                .global_batch = 4,
                                .shards = 1,
                                .shard_count = 1,
                                .total_steps = 3,
                                .micro_batches = 1,
                                .depth = 2};
    gr_loader *loader;
    gr_loaded loaded;
    status = gr_loader_start(&loading, &loader, diag);
    if (status == GR_OK) {
        status = gr_loader_next(loader, &loaded, diag);
        gr_loader_stop(loader);
    }
    gr_dataset_close(dataset);
    return status;
}

static void exhaust(const gr_data_config *config, uint64_t memory_max)
{
    gr_diag diag;
    assert_int_equal(use(config, memory_max, &diag), GR_OK); /* what libraries keep for good */
    enum { CALLS_MAX = 1000 };
    int calls = 0;
    gr_status status = GR_E_NO_MEMORY;
    for (; calls < CALLS_MAX && status != GR_OK; calls++) {
        gr_diag_clear(&diag);
        long before = heap_live;
        heap_left = calls;
        heap_watched = true;
        status = use(config, memory_max, &diag);
        heap_watched = false;
        long after = heap_live;
        assert_int_equal(after, before);
        if (status != GR_OK) {
            assert_int_not_equal(diag.text[0], '\0');
        }
    }
    assert_in_range(calls, 8, CALLS_MAX - 1);
}
#endif

static void test_exhausted(void **state)
{
#if HEAP_OURS
    char text[400];
    size_t size = 0;
    for (int i = 0; i < 40; i++) {
        size += (size_t)snprintf(text + size, sizeof text - size, "%d,%d\n", i, i % 2);
    }
    char path[300], labels[300];
    file_put(state, "plain.csv", text, size, path);
    gr_data_config config = config_csv(path);
    config.normalize = 1;
    exhaust(&config, 1 << 20);
    exhaust(&config, 8);
    file_put_gzip(state, "packed.csv", text, size, path);
    exhaust(&config, 1 << 20);
    exhaust(&config, 8);
    uint8_t *data;
    size = idx_make(0x08, 2, (const uint32_t[]){8, 3}, "abcdefghijklmnopqrstuvwx", 24, &data);
    file_put_gzip(state, "images", data, size, path);
    free(data);
    size = idx_make(0x08, 1, (const uint32_t[]){8}, "\0\1\0\1\0\1\0\1", 8, &data);
    file_put(state, "labels", data, size, labels);
    free(data);
    config = config_idx(path, labels);
    exhaust(&config, 1 << 20);
    exhaust(&config, 1);
#else
    (void)state;
    print_message("skipped because the sanitizer has a malloc of its own\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exhausted)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
