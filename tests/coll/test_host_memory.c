/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/host_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <cmocka.h>

/* A page that is known is not asked for again, even if it has gone since. */
static void two_buffers_at_any_distance_are_both_known(void **state)
{
    (void)state;
    for (size_t distance = 4096; distance <= (size_t)64 << 20; distance *= 2) {
        gr_host_memory memory = {.loads = 0};
        uint8_t *at = mmap(NULL, distance + 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(at != MAP_FAILED);
        assert_true(gr_host_memory_has(&memory, at, distance + 1));
        munmap(at, distance + 4096);
        assert_true(gr_host_memory_has(&memory, at, distance + 1));
    }
}

static void memory_that_is_not_mapped_is_refused(void **state)
{
    (void)state;
    gr_host_memory memory = {.loads = 0};
    uint8_t *at = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    munmap(at + 4096, 4096);
    assert_true(gr_host_memory_has(&memory, at, 4096));
    assert_false(gr_host_memory_has(&memory, at, 4097));
    assert_true(gr_host_memory_has(&memory, at + 4096, 0));
    munmap(at, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_buffers_at_any_distance_are_both_known),
        cmocka_unit_test(memory_that_is_not_mapped_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
