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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_split_takes_host_and_port_apart),
        cmocka_unit_test(address_split_refuses_a_host_that_is_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
