/* SPDX-License-Identifier: Apache-2.0 */

/* The arena. */

#include "base/arena.h"
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

static void arena_memory_is_zeroed_and_aligned(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    unsigned char *last = NULL;
    for (size_t size = 0; size < 600; size++) {
        unsigned char *memory = gr_arena_alloc(&arena, size);
        assert_non_null(memory);
        assert_ptr_not_equal(memory, last);
        assert_int_equal((uintptr_t)memory % 16, 0);
        assert_true(is_zero(memory, size));
        memset(memory, 0xEE, size); /* would show in a neighbour */
        last = memory;
    }
    gr_arena_fini(&arena);
    gr_arena_fini(&arena); /* harmless */
}

static void arena_beyond_its_maximum_returns_null(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, 100);
    assert_null(gr_arena_alloc(&arena, 101));
    assert_null(gr_arena_alloc(&arena, SIZE_MAX));
    assert_non_null(gr_arena_alloc(&arena, 100)); /* exactly */
    assert_null(gr_arena_alloc(&arena, 1));
    assert_null(gr_arena_alloc(&arena, 0));
    gr_arena_fini(&arena);
    gr_arena_init(&arena, 100);
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

static void arena_text_is_copied(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_memory_is_zeroed_and_aligned),
        cmocka_unit_test(arena_beyond_its_maximum_returns_null),
        cmocka_unit_test(arena_text_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
