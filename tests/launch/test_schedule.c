/* SPDX-License-Identifier: Apache-2.0 */

/* The scheduler, against every order in which things can happen to small jobs, and against long
 * runs of larger ones in which chance decides what happens.
 *
 * Each of these changes to the scheduler was tried and is found: it starts a second agent on a
 * host, a worker in a busy slot, on a host that is not up or is leaving, after the training, or one
 * more than wanted; does not count restarts; does not free the slot of an ended worker, or note the
 * end of a lost host's workers; leaves a removed host its slots; does not ask the workers of a
 * leaving host to go, or does not end its agent; lets workers begin while a host is starting, or
 * before all servers are ready; ends servers with the workers; lets a later cause replace the
 * first; leaves agents without a worker running; fences workers that nobody waits for, or while the
 * job ends, or only once; lets the time of a renewal run on after it; starts a server before the
 * output of the one before is read, once too often, or not at all; grants workers that there cannot
 * be, or before all have joined, or does not answer; ends helpers with the first of the others, or
 * never. Not told from the scheduler by what can be
 * seen: hosts that were given up are not skipped when hosts are called (the room counts without
 * them, so no worker is missing then), the output is drained twice, and servers are killed, not
 * asked to end, when the job fails before its workers begin. */

#include "group/membership.h"
#include "support_schedule.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "long.h"

/* ---- Every order ----------------------------------------------------------------------------- */

static void explore(const char *name, const world_setting *setting)
{
    world *w = world_create(setting);
    assert_non_null(w);
    const search_model all = {.model = w,
                              .event_count = WORLD_KINDS * WORLD_TARGETS,
                              .state_bytes = world_state_bytes(),
                              .keep = world_keep,
                              .restore = world_restore,
                              .class_of = world_class_of,
                              .can = world_can,
                              .happen = world_happen,
                              .agrees = world_agrees,
                              .rests = world_rests,
                              .why = world_why,
                              .print_event = world_print_event};
    search_counts counts;
    bool right = search_all(&all, &counts);
    print_message("%s: %u states, %u at rest\n", name, counts.states, counts.rests);
    world_destroy(w);
    assert_true(right);
}

static gr_scheduler_config job_of(int workers, int least, int most, int hosts, int slots)
{
    return (gr_scheduler_config){.workers = workers,
                                 .workers_min = least,
                                 .workers_max = most,
                                 .slots = slots,
                                 .host_room = hosts,
                                 .elastic = least > 0 && least < most,
                                 .all_join = true,
                                 .start_timeout_us = 60000000,
                                 .grace_us = 30000000};
}

/* One worker on each host, and the others, with what may come later, on the last. */
static world_setting setting_of(gr_scheduler_config config, world_budget budget)
{
    world_setting setting = {.config = config, .budget = budget};
    int hosts = config.host_room < config.workers ? config.host_room : config.workers;
    for (int i = 0; i < hosts; i++) {
        bool last = i + 1 == hosts;
        setting.host_workers[i] = last ? config.workers - i : 1;
        setting.host_slots[i] = last ? config.workers_max - i : 1;
    }
    return setting;
}

static void schedule_of_fixed_size_keeps_rules(void **state)
{
    (void)state;
    world_setting setting =
        setting_of(job_of(2, 0, 2, 2, 2), (world_budget){.deaths = 2, .signals = 1});
    explore("2 workers on 2 hosts", &setting);
    setting = setting_of(job_of(3, 0, 3, 1, 3), (world_budget){.deaths = 1, .signals = 1});
    explore("3 workers on 1 host", &setting);
}

static void schedule_of_elastic_job_keeps_rules(void **state)
{
    (void)state;
    world_setting setting = setting_of(job_of(2, 1, 2, 1, 4), (world_budget){.deaths = 3});
    setting.config.restarts = 1;
    explore("2 workers, 1 at least, 1 restart each", &setting);
    setting = setting_of(job_of(2, 1, 3, 1, 6), (world_budget){.scales = 2});
    explore("2 to 3 workers, scaled twice", &setting);
    setting.host_slots[0] = 2;
    explore("2 to 3 workers, slots for 2, scaled twice", &setting);
    setting.host_slots[0] = 3;
    setting.config.workers_max = 2;
    setting.config.spares = 1;
    setting.budget = (world_budget){.deaths = 1, .others = 1};
    explore("2 workers and a standby", &setting);
}

static void schedule_of_job_with_fencing_keeps_rules(void **state)
{
    (void)state;
    world_setting setting = setting_of(job_of(3, 1, 3, 1, 6), (world_budget){.others = 2});
    setting.config.fence_us = 2000000;
    explore("3 workers, 2 are stopped", &setting);
    setting = setting_of(job_of(2, 1, 2, 2, 4), (world_budget){.others = 1, .deaths = 1});
    setting.config.fence_us = 2000000;
    setting.config.restarts = 1;
    explore("2 workers on 2 hosts, 1 is stopped, 1 death", &setting);
}

static world_setting changing_hosts(bool joined, world_budget budget)
{
    world_setting setting = {.config = job_of(1, 1, 2, 3, 4),
                             .host_slots = {1},
                             .host_workers = {1},
                             .joined_hosts = joined,
                             .budget = budget};
    setting.config.changing = true;
    setting.config.restarts = 1;
    return setting;
}

static void schedule_of_changing_hosts_keeps_rules(void **state)
{
    (void)state;
    world_setting setting =
        changing_hosts(true, (world_budget){.deaths = 1, .arrivals = 1, .refusals = 1});
    explore("1 to 2 workers, a host joins", &setting);
    setting = changing_hosts(false, (world_budget){.arrivals = 1, .drops = 1});
    explore("1 to 2 workers, hosts come and go", &setting);
}

static void schedule_with_servers_keeps_rules(void **state)
{
    (void)state;
    world_setting setting = setting_of(job_of(1, 0, 1, 1, 1), (world_budget){.deaths = 1});
    setting.config.servers = 2;
    explore("1 worker, 2 servers", &setting);
    setting.config.servers_spare = true;
    explore("1 worker, 2 servers, of which 1 may be lost", &setting);
    setting.budget.refusals = 1;
    setting.config.servers_again = true;
    setting.config.restarts = 1;
    explore("1 worker, 2 servers, which are started again, 1 death, 1 refusal", &setting);
}

static void schedule_with_helpers_keeps_rules(void **state)
{
    (void)state;
    world_setting setting =
        setting_of(job_of(3, 0, 3, 2, 3), (world_budget){.deaths = 1, .signals = 1});
    setting.config.helpers = 1;
    explore("2 workers and a helper on 2 hosts", &setting);
    setting = setting_of(job_of(3, 0, 3, 1, 3), (world_budget){.deaths = 2});
    setting.config.helpers = 2;
    explore("1 worker and 2 helpers", &setting);
}

static void schedule_with_more_faults_keeps_rules_long(void **state)
{
    (void)state;
    world_setting setting =
        setting_of(job_of(2, 0, 2, 2, 2), (world_budget){.deaths = 2, .signals = 2, .others = 1});
    explore("2 workers on 2 hosts, 4 faults", &setting);
    setting = setting_of(job_of(1, 0, 1, 1, 1), (world_budget){.deaths = 2});
    setting.config.servers = 2;
    explore("1 worker, 2 servers, 2 deaths", &setting);
    setting.config.servers_spare = true;
    explore("1 worker, 2 servers, of which 1 may be lost, 2 deaths", &setting);
    setting.config.servers_again = true;
    setting.config.restarts = 1;
    explore("1 worker, 2 servers, which are started again, 2 deaths", &setting);
    setting = changing_hosts(false, (world_budget){.deaths = 1, .arrivals = 1, .drops = 1});
    explore("1 to 2 workers, hosts come and go, 1 death", &setting);
    setting = setting_of(job_of(2, 1, 3, 2, 6), (world_budget){.deaths = 1, .scales = 2});
    setting.config.restarts = 1;
    explore("2 to 3 workers on 2 hosts, scaled twice, 1 death", &setting);
}

static void schedule_of_four_workers_keeps_rules_long(void **state)
{
    (void)state;
    world_setting setting = setting_of(job_of(3, 2, 4, 3, 8), (world_budget){.deaths = 1});
    setting.config.restarts = 1;
    explore("3 of 4 workers on 3 hosts, 1 death", &setting);
    setting = setting_of(job_of(2, 1, 4, 2, 8), (world_budget){.arrivals = 1, .deaths = 1});
    setting.config.changing = setting.joined_hosts = true;
    setting.config.host_room = 3;
    explore("2 of 4 workers on 2 hosts, 1 death, a host joins", &setting);
    setting = setting_of(job_of(2, 1, 4, 2, 8), (world_budget){.deaths = 1});
    setting.config.servers = 2;
    setting.config.servers_spare = true;
    explore("2 of 4 workers, 2 servers, 1 death", &setting);
}

/* ---- By chance ------------------------------------------------------------------------------- */

enum { RUN_STEPS_MAX = 4000, RUNS = 2000, RUNS_LONG = 100000 };

static uint64_t next_random(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static int below(uint64_t *seed, int count)
{
    return (int)(next_random(seed) % (uint64_t)count);
}

/* Any job that the model has room for. */
static world_setting draw_setting(uint64_t *seed)
{
    int hosts = 1 + below(seed, 3), servers = below(seed, 4), workers = 0;
    world_setting setting = {.joined_hosts = below(seed, 2) == 0};
    for (int i = 0; i < hosts; i++) {
        setting.host_slots[i] = setting.host_workers[i] = 1 + below(seed, 2);
        workers += setting.host_workers[i];
    }
    bool elastic = below(seed, 3) > 0, changing = elastic && below(seed, 2) == 0;
    int most = workers + (elastic ? below(seed, 2) : 0);
    setting.config = job_of(workers, elastic ? 1 + below(seed, workers) : 0, most,
                            changing ? hosts + 2 : hosts, elastic ? 12 : workers);
    setting.config.changing = changing && setting.config.elastic;
    setting.config.spares = setting.config.elastic ? below(seed, 2) : 0;
    setting.config.restarts = below(seed, 3);
    setting.config.servers = servers;
    setting.config.servers_spare = below(seed, 2) == 0;
    setting.config.servers_again = setting.config.servers_spare && below(seed, 2) == 0;
    setting.config.start_timeout_us = below(seed, 4) > 0 ? 60000000 : 0;
    setting.config.grace_us = below(seed, 4) > 0 ? 30000000 : 0;
    setting.config.fence_us = below(seed, 2) > 0 ? 2000000 : 0;
    if (!setting.config.elastic) {
        setting.config.slots = most;
        setting.config.workers_max = workers;
        setting.config.slots = workers;
    }
    setting.budget = (world_budget){.deaths = (uint8_t)below(seed, 6),
                                    .refusals = (uint8_t)below(seed, 3),
                                    .signals = (uint8_t)(below(seed, 4) == 0 ? 2 : 0),
                                    .scales = (uint8_t)below(seed, 4),
                                    .arrivals = (uint8_t)below(seed, 4),
                                    .drops = (uint8_t)below(seed, 3),
                                    .others = (uint8_t)below(seed, 3)};
    return setting;
}

/* One of those that can happen; faults are rarer. -1: none can. A timer that runs for long may be
 * late behind all that happens, or early before some of it. */
static int draw_event(world *w, int rarity, uint64_t *seed)
{
    int found[2][WORLD_KINDS * WORLD_TARGETS], count[2] = {0, 0};
    for (int event = 0; event < WORLD_KINDS * WORLD_TARGETS; event++) {
        if (world_can(w, event)) {
            int rare = world_class_of(event) != SEARCH_BY_ITSELF;
            found[rare][count[rare]++] = event;
        }
    }
    int rare = count[0] == 0 || (count[1] > 0 && below(seed, rarity) == 0);
    return count[rare] > 0 ? found[rare][below(seed, count[rare])] : -1;
}

static void run_by_chance(uint64_t first)
{
    uint64_t seed = first;
    const world_setting setting = draw_setting(&seed);
    int events[RUN_STEPS_MAX], count = 0, rarity = 2 + below(&seed, 8);
    world *w = world_create(&setting);
    assert_non_null(w);
    bool right = world_agrees(w);
    while (right && world_schedule(w)->phase != GR_PHASE_OVER && count < RUN_STEPS_MAX) {
        events[count] = draw_event(w, rarity, &seed);
        if (events[count] < 0) {
            right = world_rests(w);
            break;
        }
        world_happen(w, events[count++]);
        right = world_agrees(w);
    }
    if (!right || world_schedule(w)->phase != GR_PHASE_OVER) {
        print_error("seed %llu: %s, when\n", (unsigned long long)first,
                    right ? "the job does not end" : world_why(w));
        for (int i = 0; i < count; i++) {
            world_print_event(events[i]);
        }
        fail();
    }
    world_destroy(w);
}

static void schedule_of_random_jobs_keeps_rules(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        run_by_chance(seed);
    }
}

static void schedule_of_random_jobs_keeps_rules_long(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= RUNS_LONG; seed++) {
        run_by_chance(seed);
    }
}

/* ---- The cause ------------------------------------------------------------------------------- */

/* Two workers of a job of fixed size on two hosts, and a server, run. Rank 1 ends so, then a host
 * or the server's agent is lost. Returns the reason that was reported last. */
static gr_scheduler_reason cause_of(int wait_status, bool server)
{
    gr_arena arena;
    gr_scheduler schedule;
    gr_scheduler_config config = job_of(2, 0, 2, 2, 2);
    const int sites[] = {0};
    config.servers = 1;
    gr_arena_init(&arena, 1 << 20);
    assert_int_equal(gr_scheduler_init(&schedule, &config, sites, &arena, NULL), GR_OK);
    assert_int_equal(gr_scheduler_add(&schedule, 1, 1, false), 0);
    assert_int_equal(gr_scheduler_add(&schedule, 1, 1, false), 1);
    const gr_scheduler_event events[] = {
        {.kind = GR_EVENT_BEGIN},
        {.kind = GR_EVENT_AGENT_READY, .host = 2},
        {.kind = GR_EVENT_WORKER_STARTED, .slot = 2},
        {.kind = GR_EVENT_SERVER_READY, .slot = 2},
        {.kind = GR_EVENT_SERVERS_PUBLISHED},
        {.kind = GR_EVENT_AGENT_READY, .host = 0},
        {.kind = GR_EVENT_AGENT_READY, .host = 1},
        {.kind = GR_EVENT_WORKER_STARTED, .slot = 0},
        {.kind = GR_EVENT_WORKER_STARTED, .slot = 1},
        {.kind = GR_EVENT_WORKER_ENDED, .slot = 1, .value = wait_status},
        {.kind = GR_EVENT_AGENT_LOST, .host = server ? 2 : 0},
        {.kind = GR_EVENT_AGENT_LOST, .host = server ? 0 : 2},
        {.kind = GR_EVENT_FAILED, .value = GR_REASON_COORDINATOR}};
    int last = GR_REASON_NONE;
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        int count = gr_scheduler_decide(&schedule, &events[i]);
        for (int at = 0; at < count; at++) {
            const gr_scheduler_action *action = &schedule.call.actions[at];
            last = action->kind == GR_ACTION_REPORT ? action->value : last;
        }
    }
    assert_int_equal(last, schedule.reason);
    gr_arena_fini(&arena);
    return (gr_scheduler_reason)last;
}

static void cause_rank_failed_before_an_agent_was_lost_is_the_rank(void **state)
{
    (void)state;
    assert_int_equal(cause_of(3 << 8, false), GR_REASON_WORKER);
    assert_int_equal(cause_of(SIGKILL, false), GR_REASON_WORKER);
    assert_int_equal(cause_of(SIGKILL, true), GR_REASON_WORKER);
}

static void cause_rank_missed_others_is_the_lost_agent(void **state)
{
    (void)state;
    assert_int_equal(cause_of(76 << 8, false), GR_REASON_AGENT_LOST);
}

static void cause_rank_failed_for_want_of_a_server_is_the_server(void **state)
{
    (void)state;
    assert_int_equal(cause_of(1 << 8, true), GR_REASON_AGENT_LOST);
}

static void decide_all(gr_scheduler *schedule, const gr_scheduler_event *events, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        (void)gr_scheduler_decide(schedule, &events[i]);
    }
}

/* Two workers on one host have been started. */
static void begin_pair(gr_scheduler *schedule, const gr_scheduler_config *config, gr_arena *arena)
{
    static const gr_scheduler_event events[] = {{.kind = GR_EVENT_BEGIN},
                                                {.kind = GR_EVENT_AGENT_READY, .host = 0},
                                                {.kind = GR_EVENT_WORKER_STARTED, .slot = 0},
                                                {.kind = GR_EVENT_WORKER_STARTED, .slot = 1}};
    gr_arena_init(arena, 1 << 20);
    assert_int_equal(gr_scheduler_init(schedule, config, NULL, arena, NULL), GR_OK);
    assert_int_equal(gr_scheduler_add(schedule, 2, 2, false), 0);
    decide_all(schedule, events, sizeof events / sizeof events[0]);
}

/* Rank 0 of two fails, and the other is told to end. Which rank is the cause if that has ended with
 * this wait status, before or after it was killed. */
static int root_of(int wait_status, bool killed)
{
    gr_arena arena;
    gr_scheduler schedule;
    const gr_scheduler_config config = job_of(2, 0, 2, 1, 2);
    begin_pair(&schedule, &config, &arena);
    const gr_scheduler_event events[] = {
        {.kind = GR_EVENT_WORKER_ENDED, .slot = 0, .value = 11 << 8},
        {.kind = GR_EVENT_TIMER, .value = GR_TIMER_PHASE}, /* it has settled */
        {.kind = GR_EVENT_TIMER, .value = killed ? GR_TIMER_PHASE : GR_TIMER_JOIN},
        {.kind = GR_EVENT_WORKER_ENDED, .slot = 1, .value = wait_status}};
    decide_all(&schedule, events, sizeof events / sizeof events[0]);
    assert_int_equal(schedule.told, killed ? SIGKILL : SIGTERM);
    int root = gr_root_cause_root(schedule.ends, 2);
    gr_arena_fini(&arena);
    return root;
}

static void cause_rank_killed_is_told_after_its_peer_had_failed(void **state)
{
    (void)state;
    assert_int_equal(root_of(SIGKILL, false), 1);
    assert_int_equal(root_of(SIGSEGV, false), 1);
    assert_int_equal(root_of(SIGTERM, false), 0);
    assert_int_equal(root_of(SIGKILL, true), 0);
    assert_int_equal(root_of(3 << 8, false), 0);
}

/* Two workers end one after the other: the first, with this wait status, when it has left the group
 * (`over`), the other one by SIGKILL. How the job ends. */
static gr_scheduler_reason end_of(bool left_is_done, bool elastic, bool over, int first)
{
    gr_arena arena;
    gr_scheduler schedule;
    gr_scheduler_config config = job_of(2, elastic ? 1 : 0, 2, 1, 2);
    config.left_is_done = left_is_done;
    begin_pair(&schedule, &config, &arena);
    const gr_scheduler_event events[] = {
        {.kind = GR_EVENT_MEMBER, .slot = 0, .value = GR_MEMBER_JOINED, .flag = true},
        {.kind = GR_EVENT_MEMBER, .slot = 1, .value = GR_MEMBER_JOINED, .flag = true},
        {.kind = GR_EVENT_GROUP, .value = 2, .flag = true},
        {.kind = GR_EVENT_MEMBER, .slot = 0, .value = GR_MEMBER_LEFT, .flag = true},
        {.kind = GR_EVENT_GROUP, .value = 2, .flag = true, .over = over},
        {.kind = GR_EVENT_WORKER_ENDED, .slot = 0, .value = first},
        {.kind = GR_EVENT_WORKER_ENDED, .slot = 1, .value = SIGKILL}};
    decide_all(&schedule, events, sizeof events / sizeof events[0]);
    gr_scheduler_reason reason = schedule.reason;
    gr_arena_fini(&arena);
    return reason;
}

static void killed_when_the_work_is_done_is_no_failure(void **state)
{
    (void)state;
    for (int elastic = 0; elastic < 2; elastic++) {
        assert_int_equal(end_of(true, elastic != 0, true, 0), GR_REASON_NONE);
        /* It was sent away; or it failed, as one does that misses the other one. */
        assert_int_equal(end_of(true, elastic != 0, false, 0), GR_REASON_WORKER);
        assert_int_equal(end_of(true, elastic != 0, true, 76 << 8), GR_REASON_WORKER);
        assert_int_equal(end_of(true, elastic != 0, true, SIGKILL), GR_REASON_WORKER);
        /* Another program may write its results behind that. */
        assert_int_equal(end_of(false, elastic != 0, true, 0), GR_REASON_WORKER);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cause_rank_failed_before_an_agent_was_lost_is_the_rank),
        cmocka_unit_test(cause_rank_missed_others_is_the_lost_agent),
        cmocka_unit_test(cause_rank_failed_for_want_of_a_server_is_the_server),
        cmocka_unit_test(cause_rank_killed_is_told_after_its_peer_had_failed),
        cmocka_unit_test(killed_when_the_work_is_done_is_no_failure),
        cmocka_unit_test(schedule_of_random_jobs_keeps_rules),
        cmocka_unit_test(schedule_of_fixed_size_keeps_rules),
        cmocka_unit_test(schedule_of_elastic_job_keeps_rules),
        cmocka_unit_test(schedule_of_job_with_fencing_keeps_rules),
        cmocka_unit_test(schedule_of_changing_hosts_keeps_rules),
        cmocka_unit_test(schedule_with_servers_keeps_rules),
        cmocka_unit_test(schedule_with_helpers_keeps_rules),
        cmocka_unit_test(schedule_of_random_jobs_keeps_rules_long),
        cmocka_unit_test(schedule_with_more_faults_keeps_rules_long),
        cmocka_unit_test(schedule_of_four_workers_keeps_rules_long),
    };
    test_choose();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
