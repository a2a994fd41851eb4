/* SPDX-License-Identifier: Apache-2.0 */

/* The arena and the pool. */

#include "base/arena.h"
#include "base/pool.h"
#include "support_base.h"

#include <string.h>

static int is_zero(const unsigned char *memory, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        if (memory[i] != 0) {
            return 0;
        }
    }
    return 1;
}

static void arena_gives_zeroed_aligned_memory(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    for (int round = 0; round < 3; round++) {
        unsigned char *last = NULL;
        for (size_t size = 0; size < 600; size++) {
            unsigned char *memory = gr_arena_alloc(&arena, size);
            assert_non_null(memory);
            assert_ptr_not_equal(memory, last);
            assert_int_equal((uintptr_t)memory % 16, 0);
            assert_true(is_zero(memory, size));
            memset(memory, 0xEE, size); /* would show in the next round or in a neighbour */
            last = memory;
        }
        gr_arena_reset(&arena);
        assert_int_equal(arena.used_bytes, 0);
    }
    gr_arena_fini(&arena);
}

static void arena_settles_on_one_block(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    for (int round = 0; round < 6; round++) {
        char *last = NULL;
        for (int i = 0; i < 100; i++) {
            char *memory = gr_arena_alloc(&arena, 1000);
            assert_non_null(memory);
            /* In the end one block holds all: neighbours in time are neighbours in memory. */
            assert_true(round < 5 || last == NULL || memory - last == 1008);
            last = memory;
        }
        gr_arena_reset(&arena);
    }
    gr_arena_fini(&arena);
    gr_arena_fini(&arena); /* harmless */
}

static void arena_keeps_its_maximum(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, 100);
    assert_null(gr_arena_alloc(&arena, 101));
    assert_null(gr_arena_alloc(&arena, SIZE_MAX));
    assert_non_null(gr_arena_alloc(&arena, 100)); /* exactly */
    assert_null(gr_arena_alloc(&arena, 1));
    assert_null(gr_arena_alloc(&arena, 0));
    gr_arena_reset(&arena);
    int count = 0;
    while (gr_arena_alloc(&arena, 0) != NULL) { /* even nothing runs into it */
        count++;
    }
    assert_int_equal(count, 7);
    gr_arena_fini(&arena);

    gr_arena_init(&arena, SIZE_MAX);
    assert_null(gr_arena_alloc(&arena, SIZE_MAX - 64)); /* no overflow on the way to malloc */
    gr_arena_fini(&arena);
}

static void arena_copies_text(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, 64);
    assert_string_equal(gr_arena_strdup(&arena, "abc"), "abc");
    assert_string_equal(gr_arena_printf(&arena, "%d-%s", 42, "x"), "42-x");
    assert_null(gr_arena_printf(&arena, "%100d", 1));
    assert_null(gr_arena_strdup(&arena, "0123456789012345678901234567890123456789"));
    gr_arena_fini(&arena);
}

static void pool_gives_each_object_once(void **state)
{
    (void)state;
    enum { CAPACITY = 10, ALIGN = 64 };
    gr_pool pool;
    gr_diag diag;
    assert_int_equal(gr_pool_init(&pool, 65, ALIGN, CAPACITY, &diag), GR_OK);
    unsigned char *objects[CAPACITY];
    for (int i = 0; i < CAPACITY; i++) {
        objects[i] = gr_pool_get(&pool);
        assert_non_null(objects[i]);
        assert_int_equal((uintptr_t)objects[i] % ALIGN, 0);
        memset(objects[i], i + 1, 65);
    }
    assert_null(gr_pool_get(&pool));
    assert_int_equal(pool.in_use, CAPACITY);
    for (int i = 0; i < CAPACITY; i++) {
        assert_int_equal(objects[i][0], i + 1);
        assert_int_equal(objects[i][64], i + 1);
    }
    gr_pool_put(&pool, objects[3]);
    gr_pool_put(&pool, NULL);
    assert_int_equal(pool.in_use, CAPACITY - 1);
    assert_ptr_equal(gr_pool_get(&pool), objects[3]);
    gr_pool_fini(&pool);
}

static void pool_refuses_what_cannot_be(void **state)
{
    (void)state;
    gr_pool pool;
    gr_diag diag;
    assert_int_equal(gr_pool_init(&pool, 0, 8, 1, &diag), GR_E_INVALID);
    assert_int_equal(gr_pool_init(&pool, 8, 24, 1, &diag), GR_E_INVALID);
    assert_int_equal(gr_pool_init(&pool, SIZE_MAX - 2, 8, 1, &diag), GR_E_NO_MEMORY);
    assert_int_equal(gr_pool_init(&pool, 1 << 20, 8, SIZE_MAX >> 10, &diag), GR_E_NO_MEMORY);
    assert_null(pool.memory);
    assert_int_equal(gr_pool_init(&pool, 1, 1, 0, &diag), GR_OK);
    assert_null(gr_pool_get(&pool));
    gr_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_gives_zeroed_aligned_memory),
        cmocka_unit_test(arena_settles_on_one_block),
        cmocka_unit_test(arena_keeps_its_maximum),
        cmocka_unit_test(arena_copies_text),
        cmocka_unit_test(pool_gives_each_object_once),
        cmocka_unit_test(pool_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
