/* SPDX-License-Identifier: Apache-2.0 */

/* Clients that are no workers take a number by chance, here always the same one first. */

#include "base/hash.h"
#include "support_servers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { READERS = 5, NUMBER = 46 }; /* those behind it are the first ones again */

gr_status __real_gr_random_bytes(void *out, size_t size_bytes, gr_diag *diag);
gr_status __wrap_gr_random_bytes(void *out, size_t size_bytes, gr_diag *diag);

gr_status __wrap_gr_random_bytes(void *out, size_t size_bytes, gr_diag *diag)
{
    const uint32_t number = NUMBER;
    if (size_bytes != sizeof number) {
        return __real_gr_random_bytes(out, size_bytes, diag);
    }
    memcpy(out, &number, sizeof number);
    return GR_OK;
}

static void readers_of_one_number_find_others(void **state)
{
    (void)state;
    test_servers servers;
    gr_ps *readers[READERS];
    test_servers_start(&servers, 2, false, NULL);
    for (int i = 0; i < READERS; i++) {
        readers[i] = test_connect(&servers, -1);
    }
    for (int i = 0; i < READERS; i++) {
        gr_ps_counters counters;
        expect_ok(readers[i], gr_ps_read_counters(readers[i], 0, &counters));
        expect_ok(readers[i], gr_ps_read_counters(readers[i], 1, &counters));
        gr_ps_close(readers[i]);
    }
    test_servers_stop(&servers);
}

/* In a job of its own a worker's number is one process's. */
static void second_of_a_worker_is_told(void **state)
{
    (void)state;
    test_servers servers;
    gr_ps *second = NULL;
    gr_diag diag = {0};
    test_servers_start(&servers, 1, false, NULL);
    gr_ps *first = test_connect(&servers, 0);
    const gr_ps_config config = {.servers = servers.addresses, .secret = test_secret, .worker = 0};
    assert_int_equal(gr_ps_connect(&config, &second, &diag), GR_E_IN_USE);
    assert_non_null(strstr(diag.text, "has a member of our rank already"));
    gr_ps_close(first);
    test_servers_stop(&servers);
}

static void reader_with_another_secret_is_told(void **state)
{
    (void)state;
    test_servers servers;
    gr_ps *ps = NULL;
    gr_diag diag = {0};
    test_servers_start(&servers, 1, false, NULL);
    const uint8_t other[GR_SECRET_BYTES] = {1, 2, 3};
    const gr_ps_config config = {.servers = servers.addresses, .secret = other, .worker = -1};
    assert_int_equal(gr_ps_connect(&config, &ps, &diag), GR_E_AUTH);
    assert_non_null(strstr(diag.text, "GRADUS_SECRET"));
    test_servers_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_of_one_number_find_others),
        cmocka_unit_test(second_of_a_worker_is_told),
        cmocka_unit_test(reader_with_another_secret_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
