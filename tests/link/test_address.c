/* SPDX-License-Identifier: Apache-2.0 */
#include "link/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void address_split_takes_host_and_port_apart(void **state)
{
    static const struct {
        const char *text, *host, *port; /* host NULL: refused */
    } cases[] = {
        {"host:80", "host", "80"}, {"[::1]:80", "::1", "80"}, {"::1:80", "::1", "80"},
        {":80", "", "80"},         {"[]:80", "", "80"},       {"[a:80", "[a", "80"},
        {"*:0", "*", "0"},         {"host:x", "host", "x"},   {"host", NULL, NULL},
        {"host:", NULL, NULL},     {"", NULL, NULL},          {"]:", NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char host[GR_HOST_BYTES];
        const char *port = NULL;
        bool split = gr_address_split(cases[i].text, host, &port);
        assert_int_equal(split, cases[i].host != NULL);
        if (split) {
            assert_string_equal(host, cases[i].host);
            assert_string_equal(port, cases[i].port);
        }
    }
}

static void address_split_refuses_a_host_that_is_too_long(void **state)
{
    char text[GR_HOST_BYTES + 16], host[GR_HOST_BYTES];
    const char *port;
    (void)state;
    for (int size = GR_HOST_BYTES - 2; size < GR_HOST_BYTES + 2; size++) {
        snprintf(text, sizeof text, "%0*d:80", size, 0);
        assert_int_equal(gr_address_split(text, host, &port), size < GR_HOST_BYTES);
        snprintf(text, sizeof text, "[%0*d]:80", size, 0);
        assert_int_equal(gr_address_split(text, host, &port), size < GR_HOST_BYTES);
    }
}

static void address_with_another_port_than_1_to_65535_is_refused(void **state)
{
    static const char *const bad[] = {"tcp:127.0.0.1:0",
                                      "tcp:127.0.0.1:65536",
                                      "tcp:[::1]:70000",
                                      "tcp:127.0.0.1:00000",
                                      "tcp:127.0.0.1:00080x",
                                      "tcp:host.test:99999",
                                      "tcp:127.0.0.1:18446744073709551696"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char host[GR_ADDRESS_BYTES];
        gr_diag diag = {0};
        int fd = -1;
        assert_false(gr_address_name(bad[i], host));
        assert_int_equal(gr_address_connect(bad[i], &fd, &diag), GR_E_INVALID);
        assert_non_null(strstr(diag.text, "1 to 65535"));
    }
}

static void address_that_was_cut_is_refused(void **state)
{
    char longer[2 * GR_ADDRESS_BYTES], cut[GR_ADDRESS_BYTES];
    (void)state;
    for (int names = 0; names < 2; names++) {
        gr_diag diag = {0};
        size_t at = 0;
        int fd = -1;
        int size = snprintf(longer, sizeof longer, "tcp:%0*d:", names ? GR_HOST_BYTES - 1 : 1, 0);
        memset(longer + size, '0', sizeof longer - 1 - (size_t)size);
        memcpy(longer + sizeof longer - 3, "80", 3);
        assert_true(gr_address_next(longer, &at, cut));
        assert_int_equal(at, sizeof longer - 1);
        assert_int_equal(gr_address_connect(cut, &fd, &diag), GR_E_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_split_takes_host_and_port_apart),
        cmocka_unit_test(address_split_refuses_a_host_that_is_too_long),
        cmocka_unit_test(address_with_another_port_than_1_to_65535_is_refused),
        cmocka_unit_test(address_that_was_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
