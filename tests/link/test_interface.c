/* SPDX-License-Identifier: Apache-2.0 */
#include "link/interface.h"

#include "link/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>

static gr_interface interface_of(const char *name, const char *host, int prefix, int64_t speed_mbps)
{
    gr_interface out = {.prefix = prefix, .speed_mbps = speed_mbps, .size = 4};
    snprintf(out.name, sizeof out.name, "%s", name);
    snprintf(out.host, sizeof out.host, "%s", host);
    if (inet_pton(AF_INET, host, out.bytes) != 1) {
        out.size = 16;
        assert_int_equal(inet_pton(AF_INET6, host, out.bytes), 1);
    }
    out.loopback = strcmp(name, "lo") == 0;
    return out;
}

static gr_interfaces own_interfaces(void)
{
    gr_interfaces own = {.count = 5};
    own.at[0] = interface_of("ib0", "192.168.7.1", 25, 100000);
    own.at[1] = interface_of("eth0", "10.0.0.1", 8, 1000);
    own.at[2] = interface_of("docker0", "172.17.0.1", 16, 0);
    own.at[3] = interface_of("eth0", "fd00::1", 64, 1000);
    own.at[4] = interface_of("lo", "127.0.0.1", 8, 0);
    return own;
}

static void expect_order(const char *remote, bool same_host, const char *expected, const char *by)
{
    gr_interfaces own = own_interfaces();
    gr_route routes[GR_LINK_RAILS_MAX];
    int rails = gr_interfaces_route(&own, remote, same_host, 1, routes);
    assert_int_equal(rails, expected[0] != '\0');
    if (rails > 0) {
        assert_string_equal(routes[0].addresses, expected);
        assert_string_equal(routes[0].by != NULL ? routes[0].by->name : "", by);
    }
}

/* The interfaces of the rails that are chosen, "eth0 eth1". */
static void expect_rails(const gr_interfaces *own, const char *remote, bool same_host, int rails,
                         const char *expected)
{
    gr_route routes[GR_LINK_RAILS_MAX];
    char text[GR_LINK_RAILS_MAX * 20] = "";
    int count = gr_interfaces_route(own, remote, same_host, rails, routes);
    assert_true(count <= gr_interfaces_rails_max(own, rails));
    for (int i = 0; i < count; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? " " : "",
                 routes[i].by != NULL ? routes[i].by->name : "-");
    }
    assert_string_equal(text, expected);
}

static void test_rails(void **state)
{
    (void)state;
    gr_interfaces own = {.count = 5};
    own.at[0] = interface_of("eth0", "10.0.0.1", 16, 25000);
    own.at[1] = interface_of("eth1", "10.1.0.1", 16, 10000);
    own.at[2] = interface_of("eth1", "fd00::1", 64, 10000);
    own.at[3] = interface_of("eth2", "10.2.0.1", 16, 1000);
    own.at[4] = interface_of("lo", "127.0.0.1", 8, 0);
    static const char all[] =
        "tcp:10.0.0.2:5 tcp:10.1.0.2:5 tcp:[fd00::2]:5 tcp:10.2.0.2:5 tcp:127.0.0.1:5";
    /* One for each interface, whatever addresses it has; eth2 would keep the others waiting. */
    expect_rails(&own, all, false, 0, "eth0 eth1");
    expect_rails(&own, all, false, 1, "eth0");
    expect_rails(&own, all, false, 4, "eth0 eth1 eth0 eth0");
    expect_rails(&own, "tcp:10.2.0.2:5 tcp:10.1.0.2:5", false, 0, "eth1");
    expect_rails(&own, "tcp:10.2.0.2:5", false, 3, "eth2 eth2 eth2");
    expect_rails(&own, "tcp:8.8.8.8:5", false, 0, "-");
    expect_rails(&own, "tcp:8.8.8.8:5 tcp:10.1.0.2:5", false, 2, "eth1 eth1");
    expect_rails(&own, all, true, 0, "-");
    expect_rails(&own, all, true, 2, "- -");
    expect_rails(&own, "", false, 0, "");
    static const int shares[] = {1, 1, 0, 0, 0};
    for (int i = 0; i < own.count; i++) {
        assert_int_equal(gr_interfaces_share(&own, i), shares[i]);
    }
    /* Of unknown speed: as many on each. */
    own.at[1].speed_mbps = own.at[2].speed_mbps = own.at[3].speed_mbps = 0;
    expect_rails(&own, all, false, 0, "eth0 eth1 eth2");
    expect_rails(&own, all, false, 5, "eth0 eth1 eth2 eth0 eth1");
    /* A wire that one connection does not fill. */
    own.at[0].speed_mbps = 100000;
    expect_rails(&own, "tcp:10.0.0.2:5", false, 0, "eth0 eth0 eth0 eth0");
    own.at[0].speed_mbps = 800000;
    expect_rails(&own, "tcp:10.0.0.2:5", false, 0, "eth0 eth0 eth0 eth0 eth0 eth0 eth0 eth0");
    /* Each rail goes its own way first, and any other behind it. */
    gr_route routes[GR_LINK_RAILS_MAX];
    own.at[0].speed_mbps = own.at[1].speed_mbps = 1000;
    assert_int_equal(
        gr_interfaces_route(&own, "tcp:10.0.0.2:5 tcp:10.1.0.2:5 tcp:9.9.9.9:5", false, 0, routes),
        2);
    assert_string_equal(routes[0].addresses, "tcp:10.0.0.2:5 tcp:10.1.0.2:5 tcp:9.9.9.9:5");
    assert_string_equal(routes[1].addresses, "tcp:10.1.0.2:5 tcp:10.0.0.2:5 tcp:9.9.9.9:5");
    /* Nothing to choose among: no room is kept for more. */
    own.count = 1;
    assert_int_equal(gr_interfaces_rails_max(&own, 0), 1);
    assert_int_equal(gr_interfaces_rails_max(&own, 3), 3);
}

static void test_order(void **state)
{
    (void)state;
    /* The fastest common network first, what a router may reach behind, loopback not at all. */
    expect_order("tcp:127.0.0.1:5 tcp:10.9.9.9:5 tcp:8.8.8.8:5 tcp:192.168.7.120:5", false,
                 "tcp:192.168.7.120:5 tcp:10.9.9.9:5 tcp:8.8.8.8:5", "ib0");
    /* Not the network of ib0: its prefix has 25 bits. */
    expect_order("tcp:192.168.7.130:5 tcp:10.9.9.9:5", false, "tcp:10.9.9.9:5 tcp:192.168.7.130:5",
                 "eth0");
    expect_order("tcp:[fd00::2]:5", false, "tcp:[fd00::2]:5", "eth0");
    /* An address that we have ourselves leads to ourselves. */
    expect_order("tcp:172.17.0.1:5 tcp:8.8.8.8:5", false, "tcp:8.8.8.8:5 tcp:172.17.0.1:5", "");
    expect_order("tcp:10.0.0.1:5 tcp:127.0.0.1:5", true, "tcp:127.0.0.1:5 tcp:10.0.0.1:5", "");
    expect_order("tcp:127.0.0.1:5", false, "tcp:127.0.0.1:5", "");
    expect_order("", false, "", "");
    expect_order("tcp: : rubbish 1.2.3.4", false, "tcp: : rubbish 1.2.3.4", "");
}

static void test_announce(void **state)
{
    (void)state;
    gr_interfaces own = own_interfaces();
    char text[GR_REMOTE_BYTES], line[GR_INTERFACE_TEXT_BYTES];
    gr_interfaces_announce(&own, "tcp:[::]:4000", text);
    assert_string_equal(text, "tcp:192.168.7.1:4000 tcp:10.0.0.1:4000 tcp:172.17.0.1:4000 "
                              "tcp:[fd00::1]:4000 tcp:127.0.0.1:4000");
    gr_interfaces_announce(&own, "tcp:127.64.0.2:4000", text);
    assert_string_equal(text, "tcp:127.64.0.2:4000");
    assert_string_equal(gr_interfaces_listen_host(&own), "*");
    own.count = 1;
    assert_string_equal(gr_interfaces_listen_host(&own), "192.168.7.1");
    gr_interface_describe(&own.at[0], line);
    assert_string_equal(line, "ib0 192.168.7.1/25, 100000 Mbit/s");
}

static void test_find(void **state)
{
    (void)state;
    gr_interfaces found;
    gr_diag diag = {0};
    assert_int_equal(gr_interfaces_find(NULL, &found, &diag), GR_OK);
    assert_true(found.count >= 1);
    assert_true(found.at[found.count - 1].loopback);
    assert_int_equal(gr_interfaces_find("lo", &found, &diag), GR_OK);
    assert_string_equal(found.at[0].host, "127.0.0.1");
    assert_int_equal(gr_interfaces_find(" 127.0.0.0/8,", &found, &diag), GR_OK);
    assert_int_equal(found.count, 1);
    assert_int_equal(gr_interfaces_find("lo,nosuch0", &found, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "\"nosuch0\"; it has "));
    assert_non_null(strstr(diag.text, "lo (127.0.0.1)"));
    static const char *const wrong[] = {"10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "x/8", "::/129"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(gr_interfaces_find(wrong[i], &found, &diag), GR_E_INVALID);
        assert_non_null(strstr(diag.text, "is not a subnet"));
    }
}

/* A listener on all addresses is reached under each of them that is announced. */
static void test_reached(void **state)
{
    (void)state;
    gr_interfaces found;
    char listener[GR_ADDRESS_BYTES], text[GR_REMOTE_BYTES], address[GR_ADDRESS_BYTES];
    int fd, tried = 0;
    size_t at = 0;
    assert_int_equal(gr_interfaces_find(NULL, &found, NULL), GR_OK);
    assert_int_equal(gr_address_listen("*", (gr_ports){0, 0}, listener, &fd, NULL), GR_OK);
    gr_interfaces_announce(&found, listener, text);
    while (gr_address_next(text, &at, address)) {
        int to;
        gr_diag diag = {0};
        if (gr_address_connect(address, &to, &diag) < 0) {
            fail_msg("%s", diag.text);
        }
        close(to);
        tried++;
    }
    close(fd);
    assert_int_equal(tried, found.count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),    cmocka_unit_test(test_rails),
        cmocka_unit_test(test_announce), cmocka_unit_test(test_find),
        cmocka_unit_test(test_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
