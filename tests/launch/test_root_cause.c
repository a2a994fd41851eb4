/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "launch/agent.h"
#include "launch/environ.h"
#include "launch/launch.h"
#include "launch/root_cause.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static gr_worker_end ended(int order, int wait_status, bool was_asked)
{
    return (gr_worker_end){.pid = 100 + order,
                           .started = true,
                           .ended = true,
                           .wait_status = wait_status,
                           .order = order,
                           .start_us = 1000000,
                           .end_us = 4200000,
                           .was_asked = was_asked};
}

static int code(int number)
{
    return number << 8;
}

static void a_signal_of_others_counts_most(void **state)
{
    (void)state;
    gr_worker_end ends[5] = {ended(0, code(1), false), ended(1, code(GR_LAUNCH_EXIT_PEER), false),
                             ended(2, SIGKILL, false), ended(3, SIGTERM, true),
                             ended(4, code(0), false)};
    assert_int_equal(gr_root_cause_root(ends, 5), 2);
    ends[2] = ended(2, SIGKILL, true); /* it was ours */
    assert_int_equal(gr_root_cause_root(ends, 5), 0);
    ends[0] = ended(0, code(0), false);
    assert_int_equal(gr_root_cause_root(ends, 5), 1);
    ends[1] = ended(1, code(9), true); /* code 9 in answer to our signal */
    assert_int_equal(gr_root_cause_root(ends, 5), -1);
    ends[3] = ended(3, SIGSEGV, true); /* nobody asked for that */
    assert_int_equal(gr_root_cause_root(ends, 5), 3);
}

static void who_can_go_on_says_so(void **state)
{
    (void)state;
    gr_worker_end ends[3] = {ended(0, code(GR_LAUNCH_EXIT_RESUME), false), ended(1, code(0), false),
                             ended(2, code(GR_LAUNCH_EXIT_RESUME), true)};
    assert_int_equal(gr_root_cause_code(ends, 3, false), GR_LAUNCH_EXIT_RESUME);
    assert_int_equal(gr_root_cause_root(ends, 3), -1);
    assert_int_equal(gr_root_cause_code(ends + 1, 1, false), 0);
    ends[1] = ended(1, code(GR_LAUNCH_EXIT_PEER), false);
    assert_int_equal(gr_root_cause_code(ends, 3, false), -1);
    assert_int_equal(gr_root_cause_root(ends, 3), 1);
    ends[1].spared = true;
    assert_int_equal(gr_root_cause_code(ends, 3, false), GR_LAUNCH_EXIT_RESUME);
    ends[2] = ended(2, SIGTERM, true);
    assert_int_equal(gr_root_cause_code(ends, 3, false), -1);
    ends[2].lost = true; /* with its host, while all were ending */
    assert_int_equal(gr_root_cause_code(ends, 3, false), GR_LAUNCH_EXIT_RESUME);
    assert_int_equal(gr_root_cause_code(ends + 1, 2, false), -1);
}

static void who_had_not_met_the_others_has_lost_nothing(void **state)
{
    (void)state;
    gr_worker_end ends[3] = {
        ended(0, SIGTERM, true), ended(1, code(GR_LAUNCH_EXIT_PEER), true), {.started = false}};
    assert_int_equal(gr_root_cause_code(ends, 3, false), -1); /* a command: who knows? */
    assert_int_equal(gr_root_cause_code(ends, 3, true), GR_LAUNCH_EXIT_RESUME);
    ends[1] = ended(1, code(1), true);
    assert_int_equal(gr_root_cause_code(ends, 3, true), -1);
    ends[1] = ended(1, SIGKILL, true);
    assert_int_equal(gr_root_cause_code(ends, 3, true), -1);
    ends[1] = ended(1, code(GR_LAUNCH_EXIT_PEER), true);
    ends[0] = ended(0, code(0), true); /* they had met */
    assert_int_equal(gr_root_cause_code(ends, 2, true), -1);
    ends[0] = ended(0, SIGTERM, false); /* by somebody else */
    assert_int_equal(gr_root_cause_code(ends, 2, true), -1);
    ends[0] = ended(0, SIGTERM, true);
    ends[0].spared = true;
    assert_int_equal(gr_root_cause_code(ends, 2, true), -1);
}

static void then_the_first_in_time(void **state)
{
    (void)state;
    gr_worker_end ends[4] = {ended(3, code(1), false),
                             ended(1, code(1), false),
                             ended(2, code(2), false),
                             {.started = true}};
    assert_int_equal(gr_root_cause_root(ends, 4), 1);
    const gr_worker_end running[2] = {{.started = true}, {.started = false}};
    assert_int_equal(gr_root_cause_root(running, 2), -1);
}

static void expect_text(int wait_status, const char *expected)
{
    gr_worker_end end = ended(23, wait_status, false);
    char text[256];
    gr_root_cause_describe("rank", 2, &end, text, sizeof text);
    assert_string_equal(text, expected);
}

static void an_end_is_described(void **state)
{
    (void)state;
    expect_text(SIGKILL, "rank 2 (pid 123) was killed by signal 9 (Killed) after 3.2 s");
    expect_text(SIGSEGV | 0x80,
                "rank 2 (pid 123) was killed by signal 11 (Segmentation fault, core "
                "dumped) after 3.2 s");
    expect_text(code(3), "rank 2 (pid 123) exited with code 3 after 3.2 s");
    expect_text(code(128), "rank 2 (pid 123) exited with code 128 after 3.2 s");
    expect_text(code(137),
                "rank 2 (pid 123) exited with code 137 (as a shell does whose command was "
                "killed by signal 9, Killed) after 3.2 s");
    gr_worker_end end = ended(23, SIGKILL, false);
    char text[256];
    end.host = "host1";
    end.lost = true;
    gr_root_cause_describe("rank", 2, &end, text, sizeof text);
    assert_string_equal(text, "rank 2 (pid 123 on host1) was lost with its host after 3.2 s");
}

static void what_a_program_does_to_itself_is_a_crash(void **state)
{
    (void)state;
    gr_worker_end end = ended(0, SIGSEGV, false);
    assert_true(gr_root_cause_crashed(&end));
    end = ended(0, SIGABRT | 0x80, false); /* core dumped */
    assert_true(gr_root_cause_crashed(&end));
    const int others[] = {SIGKILL, SIGTERM, SIGHUP, code(1), code(139), 0};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        end = ended(0, others[i], false);
        assert_false(gr_root_cause_crashed(&end));
    }
    end = ended(0, SIGBUS, false);
    end.lost = true; /* how it ended is not known */
    assert_false(gr_root_cause_crashed(&end));
}

static void a_crash_repeats_in_the_same_step_of_another_attempt(void **state)
{
    (void)state;
    const gr_crash none = {.signal_number = 0};
    const gr_crash before = {.signal_number = SIGSEGV,
                             .rank = 2,
                             .place = {.generation = 3, .step = 50, .operations = 12}};
    gr_crash now = before;
    assert_false(gr_crash_repeats(&none, &now));
    assert_false(gr_crash_repeats(&before, &now)); /* two at once */
    now.place.generation = 4;
    assert_true(gr_crash_repeats(&before, &now));
    now.rank = 0; /* the step was dealt anew */
    now.place.operations = 7;
    assert_true(gr_crash_repeats(&before, &now));
    now.signal_number = SIGBUS;
    assert_false(gr_crash_repeats(&before, &now));
    now = before;
    now.attempt = 1;
    assert_true(gr_crash_repeats(&before, &now));
    now.place.step = 51;
    assert_false(gr_crash_repeats(&before, &now));
}

static void without_steps_operations_count(void **state)
{
    (void)state;
    const gr_crash before = {.signal_number = SIGABRT, .place = {.operations = 17}};
    gr_crash now = before;
    now.attempt = 1;
    assert_true(gr_crash_repeats(&before, &now));
    now.place.operations = 18;
    assert_false(gr_crash_repeats(&before, &now));
    const gr_crash silent = {.signal_number = SIGABRT},
                   again = {.signal_number = SIGABRT, .attempt = 1};
    assert_true(gr_crash_repeats(&silent, &again));
}

static void what_repeats_is_said(void **state)
{
    (void)state;
    char text[GR_CRASH_TEXT_BYTES];
    gr_crash crash = {.rank = 2, .host = "b", .place = {.step = 50}};
    gr_crash_describe(&crash, text, sizeof text);
    assert_string_equal(text, ", in step 50, as rank 2 on host b was before");
    crash = (gr_crash){.rank = 1, .place = {.operations = 17}};
    gr_crash_describe(&crash, text, sizeof text);
    assert_string_equal(text, ", after 17 operations, as rank 1 was before");
    crash = (gr_crash){.rank = 0};
    gr_crash_describe(&crash, text, sizeof text);
    assert_string_equal(text, ", as rank 0 was before");
}

static void expect_list(unsigned mask, int workers, const char *expected)
{
    bool chosen[32];
    char text[160];
    for (int i = 0; i < workers; i++) {
        chosen[i] = (mask >> i & 1u) != 0;
    }
    gr_root_cause_list(chosen, workers, text, sizeof text);
    assert_string_equal(text, expected);
    char small[12];
    gr_root_cause_list(chosen, workers, small, sizeof small);
    assert_true(strlen(small) < sizeof small);
}

static void ranks_are_listed(void **state)
{
    (void)state;
    expect_list(1u << 5, 8, "rank 5");
    expect_list(0xAu, 4, "ranks 1 and 3");
    expect_list(0xDu, 4, "ranks 0, 2 and 3");
    expect_list(0x1FFu, 9, "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
    expect_list(0xFFFFFu, 20, "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
}

static void messages_survive_the_wire(void **state)
{
    (void)state;
    const gr_agent_message out = {
        .kind = GR_AGENT_EXITED, .rank = 255, .pid = 4194303, .value = 0xFF00, .error = 38};
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES + 1] = {0};
    static const uint8_t golden[GR_AGENT_MESSAGE_BYTES] = {
        0x47, 0x41, 1, 0, 3, 0, 38, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 63, 0, 0, 0xFF, 0, 0, 0, 0, 0, 0};
    gr_agent_encode(&out, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
    gr_agent_message in;
    assert_int_equal(gr_agent_decode(bytes, GR_AGENT_MESSAGE_BYTES, &in), GR_OK);
    assert_int_equal(in.kind, out.kind);
    assert_int_equal(in.rank, out.rank);
    assert_int_equal(in.pid, out.pid);
    assert_int_equal(in.value, out.value);
    assert_int_equal(in.error, out.error);
    assert_int_equal(gr_agent_decode(bytes, GR_AGENT_MESSAGE_BYTES - 1, &in), GR_E_PROTOCOL);
    assert_int_equal(gr_agent_decode(bytes, GR_AGENT_MESSAGE_BYTES + 1, &in), GR_E_PROTOCOL);
    for (int at = 0; at < 5; at++) { /* magic, version, kind */
        bytes[at] ^= 0x40;
        assert_int_equal(gr_agent_decode(bytes, GR_AGENT_MESSAGE_BYTES, &in), GR_E_PROTOCOL);
        bytes[at] ^= 0x40;
    }
}

/* An agent that ends while something is on its way to it has still said what it said. */
static void last_words_of_an_agent_are_heard(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    gr_agent_message said = {.kind = GR_AGENT_DONE}, late = {.kind = GR_AGENT_KILL}, heard;
    assert_int_equal(gr_agent_send(ends[1], &said), 0);
    assert_int_equal(gr_agent_send(ends[0], &late), 0);
    close(ends[1]);
    assert_int_equal(gr_agent_receive(ends[0], &heard), 0);
    assert_int_equal(heard.kind, GR_AGENT_DONE);
    assert_int_equal(gr_agent_receive(ends[0], &heard), EPIPE);
    close(ends[0]);
}

static const char *value_of(char **entries, const char *name, int *count_out)
{
    const char *found = NULL;
    *count_out = 0;
    for (size_t i = 0; entries[i] != NULL; i++) {
        size_t size = strlen(name);
        if (strncmp(entries[i], name, size) == 0 && entries[i][size] == '=') {
            found = entries[i] + size + 1;
            ++*count_out;
        }
    }
    return found;
}

static void expect_entry(char **entries, const char *name, const char *expected)
{
    int count;
    const char *value = value_of(entries, name, &count);
    assert_int_equal(count, 1);
    assert_string_equal(value, expected);
}

static void the_environment_has_one_value_of_each_name(void **state)
{
    (void)state;
    char *const inherited[] = {"PATH=/bin",   "RANK=9",      "RANKING=1", "GRADUS_SECRET=old",
                               "A=inherited", "B=inherited", "odd",       NULL};
    const char *const set[] = {"A=set", "D=set", NULL};
    const char *const defaults[] = {"B=default", "C=default", "D=default", NULL};
    uint8_t secret[GR_SECRET_BYTES], found[GR_SECRET_BYTES] = {0};
    char text[2 * GR_SECRET_BYTES + 1];
    memset(secret, 0xfe, sizeof secret);
    gr_hex(secret, sizeof secret, text);
    gr_environ_config config = {.inherited = inherited,
                                .rank = 2,
                                .world_size = 3,
                                .local_rank = 1,
                                .local_size = 2,
                                .host = "host1",
                                .cross_rank = 1,
                                .cross_size = 2,
                                .coordinator = "unix:@x",
                                .secret_hex = text,
                                .master = "host1",
                                .master_port = 4711,
                                .restarts = 2,
                                .set = set,
                                .defaults = defaults};
    gr_arena arena;
    gr_arena_init(&arena, 1 << 16);
    char **entries;
    assert_int_equal(gr_environ_build(&config, &arena, &entries, NULL), GR_OK);
    expect_entry(entries, "PATH", "/bin");
    expect_entry(entries, "GRADUS_HOSTNAME", "host1");
    expect_entry(entries, "RANK", "2");
    expect_entry(entries, "RANKING", "1");
    expect_entry(entries, "LOCAL_WORLD_SIZE", "2");
    expect_entry(entries, "GRADUS_LOCAL_RANK", "1");
    expect_entry(entries, "CROSS_RANK", "1");
    expect_entry(entries, "CROSS_SIZE", "2");
    expect_entry(entries, "MASTER_ADDR", "host1");
    expect_entry(entries, "MASTER_PORT", "4711");
    expect_entry(entries, "TORCHELASTIC_RESTART_COUNT", "2");
    expect_entry(entries, "GRADUS_COORDINATOR", "unix:@x");
    expect_entry(entries, "GRADUS_SECRET", text);
    expect_entry(entries, "A", "set");
    expect_entry(entries, "B", "inherited");
    expect_entry(entries, "C", "default");
    expect_entry(entries, "D", "set");
    assert_true(gr_environ_secret(entries, found));
    assert_memory_equal(found, secret, sizeof secret);
    gr_environ_wipe(entries);
    expect_entry(entries, "GRADUS_SECRET", "");
    assert_false(gr_environ_secret(entries, found));
    gr_environ_fill(entries, secret);
    expect_entry(entries, "GRADUS_SECRET", text);
    gr_environ_wipe(entries);
    expect_entry(entries, "RANK", "2");
    gr_arena_fini(&arena);

    gr_arena_init(&arena, 64); /* too small */
    gr_diag diag;
    assert_int_equal(gr_environ_build(&config, &arena, &entries, &diag), GR_E_NO_MEMORY);
    gr_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_of_others_counts_most),
        cmocka_unit_test(who_can_go_on_says_so),
        cmocka_unit_test(who_had_not_met_the_others_has_lost_nothing),
        cmocka_unit_test(then_the_first_in_time),
        cmocka_unit_test(what_a_program_does_to_itself_is_a_crash),
        cmocka_unit_test(a_crash_repeats_in_the_same_step_of_another_attempt),
        cmocka_unit_test(without_steps_operations_count),
        cmocka_unit_test(what_repeats_is_said),
        cmocka_unit_test(an_end_is_described),
        cmocka_unit_test(ranks_are_listed),
        cmocka_unit_test(messages_survive_the_wire),
        cmocka_unit_test(last_words_of_an_agent_are_heard),
        cmocka_unit_test(the_environment_has_one_value_of_each_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
