/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/channel.h"
#include "launch/launch_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* What is written to `near` comes to `far`. */
struct pair {
    int fds[4];
    gr_channel near, far;
};

static int set_up(void **state)
{
    struct pair *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    assert_int_equal(pipe2(pair->fds, O_CLOEXEC), 0);
    assert_int_equal(pipe2(pair->fds + 2, O_CLOEXEC), 0);
    assert_int_equal(gr_channel_init(&pair->near, pair->fds[2], pair->fds[1], NULL), 0);
    assert_int_equal(gr_channel_init(&pair->far, pair->fds[0], pair->fds[3], NULL), 0);
    *state = pair;
    return 0;
}

static int tear_down(void **state)
{
    struct pair *pair = *state;
    gr_channel_fini(&pair->near);
    gr_channel_fini(&pair->far);
    for (int i = 0; i < 4; i++) {
        if (pair->fds[i] >= 0) {
            close(pair->fds[i]);
        }
    }
    free(pair);
    return 0;
}

static void write_raw(struct pair *pair, const void *bytes, size_t size_bytes)
{
    assert_int_equal(write(pair->fds[1], bytes, size_bytes), (ssize_t)size_bytes);
}

static void packets_arrive_whole_and_in_order(void **state)
{
    struct pair *pair = *state;
    static uint8_t data[GR_PACKET_DATA_BYTES_MAX];
    uint32_t put = 0, taken = 0;
    int error = 0;
    gr_packet packet;
    while (taken < 200) {
        memset(data, (int)(put & 0xff), sizeof data);
        if (put < 200 && gr_channel_has_room(&pair->near)) {
            assert_true(gr_channel_put(&pair->near, GR_PACKET_OUTPUT, put, data,
                                       (size_t)put * 7919 % (sizeof data + 1)));
            put++;
        }
        assert_int_equal(gr_channel_flush(&pair->near), 0);
        int filled = gr_channel_fill(&pair->far);
        assert_true(filled == 0 || filled == EAGAIN);
        while (gr_channel_next(&pair->far, &packet, &error)) {
            assert_int_equal(packet.kind, GR_PACKET_OUTPUT);
            assert_int_equal(packet.number, taken);
            assert_int_equal(packet.size_bytes, (size_t)taken * 7919 % (sizeof data + 1));
            for (size_t i = 0; i < packet.size_bytes; i++) {
                assert_int_equal(packet.data[i], taken & 0xff);
            }
            taken++;
        }
        assert_int_equal(error, 0);
    }
    assert_false(gr_channel_put(&pair->near, GR_PACKET_OUTPUT, 0, data, sizeof data + 1));
    close(pair->fds[1]);
    pair->fds[1] = -1;
    assert_int_equal(gr_channel_fill(&pair->far), EPIPE);
}

/* Whoever stood still for as long reads it first. */
static void what_was_not_read_yet_is_no_silence(void **state)
{
    enum { SILENCE_US = 1000000 };
    struct pair *pair = *state;
    const int64_t late_us = pair->far.heard_us + SILENCE_US;
    assert_false(gr_channel_is_silent(&pair->far, late_us - 1, SILENCE_US));
    assert_true(gr_channel_is_silent(&pair->far, late_us, SILENCE_US));
    assert_true(gr_channel_put(&pair->near, GR_PACKET_PING, 0, NULL, 0));
    assert_int_equal(gr_channel_flush(&pair->near), 0);
    assert_false(gr_channel_is_silent(&pair->far, late_us, SILENCE_US));
    assert_int_equal(gr_channel_fill(&pair->far), 0);
    assert_true(gr_channel_is_silent(&pair->far, pair->far.heard_us + SILENCE_US, SILENCE_US));
    close(pair->fds[1]);
    pair->fds[1] = -1;
    assert_false(gr_channel_is_silent(&pair->far, pair->far.heard_us + SILENCE_US, SILENCE_US));
    assert_int_equal(gr_channel_fill(&pair->far), EPIPE);
}

static void room_is_kept_for_messages(void **state)
{
    struct pair *pair = *state;
    static const uint8_t data[GR_PACKET_DATA_BYTES_MAX];
    int put = 0;
    while (gr_channel_has_room(&pair->near)) {
        assert_true(gr_channel_put(&pair->near, GR_PACKET_OUTPUT, 0, data, sizeof data));
        put++;
    }
    assert_true(put >= 4);
    for (int i = 0; i < 600; i++) { /* two of each of 256 workers, and some */
        assert_true(gr_channel_put(&pair->near, GR_PACKET_MESSAGE, 0, data, 24));
    }
}

static void noise_in_front_is_dropped(void **state)
{
    struct pair *pair = *state;
    gr_packet packet;
    int error = 0;
    write_raw(pair, "Welcome!\r\nGR\0G", 14);
    assert_int_equal(gr_channel_fill(&pair->far), 0);
    assert_false(gr_channel_skip_noise(&pair->far));
    assert_true(gr_channel_put(&pair->near, GR_PACKET_HELLO, 7, "10.0.0.1", 8));
    assert_int_equal(gr_channel_flush(&pair->near), 0);
    assert_int_equal(gr_channel_fill(&pair->far), 0);
    assert_true(gr_channel_skip_noise(&pair->far));
    assert_true(gr_channel_next(&pair->far, &packet, &error));
    assert_int_equal(packet.kind, GR_PACKET_HELLO);
    assert_memory_equal(packet.data, "10.0.0.1", 8);
}

static void what_is_no_packet_is_refused(void **state)
{
    static const uint8_t golden[GR_PACKET_HEADER_BYTES] = {0, 'G', 'R', 0xfe, 1, 3, 0, 0,
                                                           5, 0,   0,   0,    0, 0, 0, 0};
    static const struct {
        size_t at;
        uint8_t value;
        int error;
    } wrong[] = {{0, 1, EPROTO},  {3, 0, EPROTO},     {4, 2, EPROTONOSUPPORT}, {5, 0, EPROTO},
                 {5, 99, EPROTO}, {14, 0xff, EPROTO}, {15, 0x80, EPROTO}};
    (void)state;
    for (size_t i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        void *own;
        uint8_t bytes[sizeof golden];
        gr_packet packet;
        int error = 0;
        memcpy(bytes, golden, sizeof bytes);
        (void)set_up(&own);
        struct pair *pair = own;
        bool right = i == sizeof wrong / sizeof wrong[0];
        if (!right) {
            bytes[wrong[i].at] = wrong[i].value;
        }
        write_raw(pair, bytes, sizeof bytes);
        assert_int_equal(gr_channel_fill(&pair->far), 0);
        assert_int_equal(gr_channel_next(&pair->far, &packet, &error), right);
        assert_int_equal(error, right ? 0 : wrong[i].error);
        (void)tear_down(&own);
    }
}

static const char *value_of(char **entries, const char *name)
{
    size_t size = strlen(name);
    for (size_t i = 0; entries[i] != NULL; i++) {
        if (strncmp(entries[i], name, size) == 0 && entries[i][size] == '=') {
            return entries[i] + size + 1;
        }
    }
    return NULL;
}

static gr_launch_spec example(char **argv, char **first, char **second, char ***lists)
{
    lists[0] = first;
    lists[1] = second;
    return (gr_launch_spec){.workers = 2,
                            .bind = true,
                            .silence_us = 2500000,
                            .folder = "/some where",
                            .document = "{}\n",
                            .argv = argv,
                            .environment = lists};
}

static void an_order_survives_the_way(void **state)
{
    (void)state;
    char *argv[] = {"program", "", "two words", NULL}, *second[] = {"RANK=1", NULL};
    char *first[] = {"RANK=0",
                     "HOME=/here",
                     "GRADUS_COORDINATOR=tcp:*:417",
                     "MASTER_ADDR=*",
                     "SSH_AUTH_SOCK=/x",
                     "GRADUS_SECRET=feed",
                     NULL};
    char *const own[] = {"HOME=/there", "PATH=/there", NULL};
    char **lists[2];
    const gr_launch_spec order = example(argv, first, second, lists);
    uint8_t *bytes;
    size_t size;
    gr_launch_spec back;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    assert_int_equal(gr_launch_spec_encode(&order, "fe80::1", &bytes, &size), GR_OK);
    assert_int_equal(gr_launch_spec_decode(bytes, size, own, &arena, &back), GR_OK);
    assert_int_equal(back.workers, 2);
    assert_true(back.bind);
    assert_false(back.self);
    assert_int_equal(back.silence_us, 2500000);
    assert_null(back.cores);
    assert_string_equal(back.folder, "/some where");
    assert_string_equal(back.document, "{}\n");
    for (int i = 0; i < 3; i++) {
        assert_string_equal(back.argv[i], argv[i]);
    }
    assert_null(back.argv[3]);
    assert_string_equal(value_of(back.environment[0], "RANK"), "0");
    assert_string_equal(value_of(back.environment[0], "HOME"), "/there");
    assert_string_equal(value_of(back.environment[0], "GRADUS_COORDINATOR"), "tcp:[fe80::1]:417");
    assert_string_equal(value_of(back.environment[0], "MASTER_ADDR"), "fe80::1");
    assert_string_equal(value_of(back.environment[0], "GRADUS_SECRET"), "feed");
    assert_null(value_of(back.environment[0], "SSH_AUTH_SOCK"));
    assert_null(value_of(back.environment[0], "PATH"));
    assert_string_equal(value_of(back.environment[1], "RANK"), "1");
    free(bytes);
    gr_arena_fini(&arena);
}

/* Cut short anywhere, or with any byte changed: no more is read than there is. */
static void a_damaged_order_is_no_danger(void **state)
{
    (void)state;
    char *argv[] = {"program", NULL}, *list[] = {"A=1", NULL}, *const own[] = {"HOME=/x", NULL};
    char **lists[2];
    const gr_launch_spec order = example(argv, list, list, lists);
    uint8_t *bytes;
    size_t size;
    assert_int_equal(gr_launch_spec_encode(&order, "127.0.0.1", &bytes, &size), GR_OK);
    for (size_t cut = 0; cut < size; cut++) {
        for (int flip = 0; flip < 9; flip++) {
            bool whole = flip > 0;
            uint8_t *copy = malloc(whole ? size : cut + 1);
            gr_launch_spec back;
            gr_arena arena;
            gr_arena_init(&arena, 1 << 20);
            assert_non_null(copy);
            memcpy(copy, bytes, whole ? size : cut);
            if (whole) {
                copy[cut] ^= (uint8_t)(1u << (flip - 1));
            }
            gr_status status = gr_launch_spec_decode(copy, whole ? size : cut, own, &arena, &back);
            assert_true(whole || status == GR_E_PROTOCOL);
            gr_arena_fini(&arena);
            free(copy);
        }
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(packets_arrive_whole_and_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_not_read_yet_is_no_silence, set_up, tear_down),
        cmocka_unit_test_setup_teardown(room_is_kept_for_messages, set_up, tear_down),
        cmocka_unit_test_setup_teardown(noise_in_front_is_dropped, set_up, tear_down),
        cmocka_unit_test(what_is_no_packet_is_refused),
        cmocka_unit_test(an_order_survives_the_way),
        cmocka_unit_test(a_damaged_order_is_no_danger),
    };
    return cmocka_run_group_tests_name("channel", tests, NULL, NULL);
}
