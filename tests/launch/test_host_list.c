/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"
#include "launch/host_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    gr_arena arena;
    gr_host_list hosts;
    gr_diag diag;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    gr_arena_init(&fixture->arena, 1 << 20);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    gr_arena_fini(&fixture->arena);
    free(fixture);
    return 0;
}

static void expect_host(const gr_host *host, const char *name, int slots, bool local)
{
    assert_string_equal(host->name, name);
    assert_int_equal(host->slots, slots);
    assert_int_equal(host->local, local);
}

static void a_list_is_read(void **state)
{
    struct fixture *fixture = *state;
    const gr_host_list *hosts = &fixture->hosts;
    assert_int_equal(
        gr_host_list_parse("host1:4, you@host-2.org ,localhost:2,host1:1,me@[fe80::1]:3", "-H",
                           &fixture->arena, &fixture->hosts, &fixture->diag),
        GR_OK);
    assert_int_equal(hosts->count, 4);
    expect_host(&hosts->at[0], "host1", 5, false);
    expect_host(&hosts->at[1], "you@host-2.org", 1, false);
    expect_host(&hosts->at[2], "localhost", 2, true);
    expect_host(&hosts->at[3], "me@fe80::1", 3, false);
    assert_int_equal(gr_host_list_slots(hosts), 11);
    assert_string_equal(gr_host_label(&hosts->at[1]), "host-2.org");
    assert_false(gr_host_list_all_local(hosts));
}

static void what_is_no_host_is_refused(void **state)
{
    struct fixture *fixture = *state;
    static const char *const wrong[] = {"",
                                        ",",
                                        "a,",
                                        "a:0",
                                        "a:x",
                                        "a:4x",
                                        "a:-1",
                                        "a:5000",
                                        "-oX=y",
                                        "a b:2",
                                        "[::1:2",
                                        "a;reboot",
                                        "$(a)",
                                        "a:2:3",
                                        "a:99999999999",
                                        "@",
                                        "a:4000,a:4000"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        fixture->diag.text[0] = '\0';
        assert_int_equal(
            gr_host_list_parse(wrong[i], "-H", &fixture->arena, &fixture->hosts, &fixture->diag),
            GR_E_INVALID);
        assert_int_equal(strncmp(fixture->diag.text, "-H: ", 4), 0);
    }
}

static gr_status read_text(struct fixture *fixture, const char *text)
{
    char path[] = "/tmp/gradus-hosts-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(gr_fd_write(fd, text, strlen(text)), 0);
    close(fd);
    gr_status status = gr_host_list_read(path, &fixture->arena, &fixture->hosts, &fixture->diag);
    unlink(path);
    return status;
}

static void a_file_is_read(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(read_text(fixture, "# all\n\nhost1 slots=4\n\thost2:2 # two\r\nhost3"), GR_OK);
    assert_int_equal(fixture->hosts.count, 3);
    expect_host(&fixture->hosts.at[0], "host1", 4, false);
    expect_host(&fixture->hosts.at[1], "host2", 2, false);
    expect_host(&fixture->hosts.at[2], "host3", 1, false);
    static const char *const wrong[] = {"a\nb slots=0\n", "a\nb slots=2 x\n", "a\nb:2 slots=2\n",
                                        "a\nb cores=2\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(read_text(fixture, wrong[i]), GR_E_INVALID);
        assert_non_null(strstr(fixture->diag.text, ":2: \"b"));
    }
    assert_int_equal(read_text(fixture, "# nobody\n"), GR_E_INVALID);
    assert_non_null(strstr(fixture->diag.text, "there is no host in it"));
}

static void ranks_go_host_by_host(void **state)
{
    struct fixture *fixture = *state;
    gr_host_list *hosts = &fixture->hosts;
    assert_int_equal(gr_host_list_parse("a:2,b:3,c:9", "-H", &fixture->arena, hosts, NULL), GR_OK);
    assert_int_equal(gr_host_list_deal(hosts, 15, &fixture->diag), GR_E_INVALID);
    assert_non_null(strstr(fixture->diag.text, "15 workers, but the hosts have slots for 14"));
    assert_int_equal(gr_host_list_deal(hosts, 4, NULL), GR_OK);
    assert_int_equal(hosts->at[1].first, 2);
    assert_int_equal(hosts->at[1].workers, 2);
    assert_int_equal(hosts->at[2].workers, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_list_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_host_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ranks_go_host_by_host, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("hosts", tests, NULL, NULL);
}
