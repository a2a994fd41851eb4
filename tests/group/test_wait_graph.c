/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from what ranks report: the root cause at the end of every chain, and ranks that
 * wait for each other in different operations. Every graph of four ranks is tried. */

#include "group/message.h"
#include "group/wait_graph.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, SAID_MAX = 64, LARGE = 256, SECOND_US = 1000000 };

typedef struct said {
    int to;
    gr_op_report report;
} said;

typedef struct graph {
    gr_wait_graph rules;
    int64_t now_us;
    said said[SAID_MAX];
    int count;
    int counted; /* also what had no room */
} graph;

static void keep(void *arg, int to, const gr_op_report *report)
{
    graph *g = arg;
    g->counted++;
    if (g->count < SAID_MAX) {
        g->said[g->count++] = (said){to, *report};
    }
}

static void open_graph(graph *g, int size)
{
    memset(g, 0, sizeof *g);
    g->now_us = SECOND_US;
    assert_int_equal(gr_wait_graph_init(&g->rules, size, keep, g), GR_OK);
    gr_wait_graph_reset(&g->rules, size);
}

/* Time passes until nothing more is to be said. */
static void evaluate(graph *g)
{
    int64_t next_us = g->now_us;
    for (int i = 0; i < 100 && next_us != GR_NEVER; i++) {
        g->now_us += GR_WAIT_GRAPH_PERIOD_US;
        next_us = gr_wait_graph_evaluate(&g->rules, g->now_us);
    }
    assert_true(next_us == GR_NEVER);
}

/* `awaits`: a bit for each rank. */
static gr_op_report waiting(uint32_t number, unsigned awaits)
{
    gr_op_report report = {.kind = GR_REPORT_WAITS,
                           .generation = 1,
                           .peer = -1,
                           .via = -1,
                           .op = {.number = number, .fingerprint = 1000 + number, .partner = -1},
                           .blocked = true,
                           .seq = 1 + number};
    snprintf(report.text, sizeof report.text, "call %u", number);
    for (int rank = 0; rank < 32; rank++) {
        if (awaits >> rank & 1) {
            report.awaits[report.awaits_count++] = rank;
        }
    }
    return report;
}

static void report(graph *g, int rank, const gr_op_report *what)
{
    assert_int_equal(gr_wait_graph_report(&g->rules, rank, what, g->now_us), GR_OK);
}

static const gr_op_report *last_said(const graph *g, int to, gr_op_report_kind kind)
{
    const gr_op_report *found = NULL;
    for (int i = 0; i < g->count; i++) {
        found = g->said[i].to == to && g->said[i].report.kind == kind ? &g->said[i].report : found;
    }
    return found;
}

/* ---- Chains ---------------------------------------------------------------------------------- */
/* The nearest rank that does not wait, by looking through all ways; -1: there is none. */
static int oracle(const unsigned awaits[RANKS], int rank, int depth)
{
    for (int deep = 1; deep <= depth; deep++) {
        unsigned reach = 1u << rank;
        for (int i = 0; i < deep; i++) {
            unsigned next = 0;
            for (int at = 0; at < RANKS; at++) {
                next |= reach >> at & 1 ? awaits[at] : 0;
            }
            reach = next;
        }
        for (int at = 0; at < RANKS; at++) {
            if ((reach >> at & 1) && awaits[at] == 0) {
                return deep;
            }
        }
    }
    return -1;
}

static void check_causes(const graph *g, const unsigned awaits[RANKS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        const gr_op_report *cause = last_said(g, rank, GR_REPORT_CAUSE);
        if (awaits[rank] == 0) {
            assert_null(cause);
            continue;
        }
        assert_non_null(cause);
        assert_true(awaits[rank] >> cause->via & 1);
        int distance = oracle(awaits, rank, RANKS);
        if (distance < 0) {
            assert_true(awaits[cause->peer] != 0); /* in a circle */
            assert_string_not_equal(cause->text, "");
        } else {
            assert_true(awaits[cause->peer] == 0);
            assert_string_equal(cause->text, "");
            assert_true((distance == 1) == (cause->via == cause->peer));
            assert_true(distance == 1 || oracle(awaits, cause->via, RANKS) == distance - 1);
        }
    }
}

/* All sets of ranks that four ranks can wait for; none: the rank does not wait. */
static void wait_graph_of_four_names_the_nearest_rank_that_does_not_wait(void **state)
{
    (void)state;
    for (unsigned all = 0; all < 1u << (RANKS * RANKS); all++) {
        unsigned awaits[RANKS];
        bool sound = true;
        for (int rank = 0; rank < RANKS; rank++) {
            awaits[rank] = all >> (RANKS * rank) & ((1u << RANKS) - 1);
            sound = sound && !(awaits[rank] >> rank & 1);
        }
        if (!sound) {
            continue;
        }
        static graph g;
        open_graph(&g, RANKS);
        for (int i = 0; i < RANKS; i++) {
            int rank = (i + (int)all) % RANKS; /* in another order each time */
            gr_op_report r = waiting(7, awaits[rank]);
            if (awaits[rank] != 0) {
                report(&g, rank, &r);
            }
        }
        evaluate(&g);
        check_causes(&g, awaits);
        gr_wait_graph_fini(&g.rules);
    }
}

static void wait_graph_when_a_rank_goes_on_names_another_cause(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, RANKS);
    const gr_op_report first = waiting(7, 1u << 1), second = waiting(7, 1u << 2);
    report(&g, 0, &first);
    report(&g, 1, &second);
    evaluate(&g);
    assert_int_equal(last_said(&g, 0, GR_REPORT_CAUSE)->peer, 2);
    const gr_op_report idle = {.kind = GR_REPORT_IDLE, .peer = -1, .via = -1};
    report(&g, 1, &idle);
    evaluate(&g);
    assert_int_equal(last_said(&g, 0, GR_REPORT_CAUSE)->peer, 1);
    gr_wait_graph_fini(&g.rules);
}

/* What the cause waits in itself is part of the sentence: rank 0 is told of each such wait, and
 * which of its own waits that answers. */
static void wait_graph_when_the_cause_waits_in_something_else_says_so(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, 2);
    const gr_op_report first = waiting(7, 1u << 1);
    report(&g, 0, &first);
    for (uint32_t number = 8; number < 10; number++) {
        const gr_op_report other = waiting(number, 1u << 0);
        report(&g, 1, &other);
        evaluate(&g);
        const gr_op_report *cause = last_said(&g, 0, GR_REPORT_CAUSE);
        assert_int_equal(cause->peer, 1);
        assert_string_equal(cause->text, other.text);
        assert_int_equal(cause->answers, first.seq);
    }
    gr_wait_graph_fini(&g.rules);
}

/* All stand still for seconds, as a virtual machine does; rank 0 comes first after that, and rank 1
 * only if it was not stopped. */
static void wait_graph_a_pause_of_all_is_nobodys_silence(void **state)
{
    (void)state;
    for (int stopped = 0; stopped < 2; stopped++) {
        static graph g;
        open_graph(&g, RANKS);
        const gr_op_report first = waiting(7, 1u << 1), second = waiting(7, 1u << 2);
        for (int i = 0; i < 12; i++) {
            report(&g, 0, &first);
            evaluate(&g);
            bool to_rank_1 = i == 0 || (stopped && i > 4);
            assert_int_equal(last_said(&g, 0, GR_REPORT_CAUSE)->peer, to_rank_1 ? 1 : 2);
            if (i < 3 || !stopped) {
                report(&g, 1, &second);
                evaluate(&g);
                assert_int_equal(last_said(&g, 0, GR_REPORT_CAUSE)->peer, 2);
            }
            g.now_us += i == 3 ? 3 * SECOND_US : gr_op_report_repeat_us(RANKS);
        }
        gr_wait_graph_fini(&g.rules);
    }
}

/* Rank 1 waits for rank 2, and is stopped then. */
static void wait_graph_rank_that_is_stopped_while_it_waits_is_the_cause(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, RANKS);
    const gr_op_report first = waiting(7, 1u << 1), second = waiting(7, 1u << 2);
    report(&g, 1, &second);
    for (int i = 0; i < 8; i++) {
        report(&g, 0, &first);
        evaluate(&g);
        g.now_us += gr_op_report_repeat_us(RANKS);
        assert_int_equal(last_said(&g, 0, GR_REPORT_CAUSE)->peer, i < 5 ? 2 : 1);
        if (i == 3) {
            i = 4; /* from here on it has been silent for four times its period */
        }
    }
    gr_wait_graph_fini(&g.rules);
}

/* ---- Ranks that wait for each other ---------------------------------------------------------- */
static void deny(graph *g, int rank, gr_op_report *own, int32_t peer, uint32_t answers)
{
    own->peer = peer;
    own->answers = answers;
    report(g, rank, own);
}

/* The rank denies each other one that it has been told of, in turn. */
static void answer(graph *g, int rank, gr_op_report *own)
{
    int count = 0;
    for (int i = 0; i < g->count; i++) {
        const gr_op_report *other = &g->said[i].report;
        if (g->said[i].to == rank && other->kind == GR_REPORT_WAITS) {
            assert_false(other->deadlock);
            deny(g, rank, own, other->rank, other->seq);
            count++;
        }
    }
    assert_true(count > 0);
}

static int deadlocks(const graph *g)
{
    int count = 0;
    for (int i = 0; i < g->count; i++) {
        count += g->said[i].report.deadlock;
    }
    return count;
}

/* All but the last rank wait in one operation, for each other or for the last one, which waits for
 * rank 0 in another one. */
static void wait_graph_two_ranks_that_deny_each_other_are_a_deadlock(void **state)
{
    (void)state;
    for (unsigned middle = 0; middle < 2; middle++) {
        static graph g;
        open_graph(&g, 3);
        gr_op_report zero = waiting(7, middle ? 1u << 1 : 1u << 2), one = waiting(7, 1u << 2),
                     last = waiting(9, 1u << 0);
        report(&g, 0, &zero);
        report(&g, 1, &one);
        report(&g, 2, &last);
        evaluate(&g);
        assert_int_equal(deadlocks(&g), 0);
        answer(&g, 0, &zero);
        evaluate(&g);
        assert_int_equal(deadlocks(&g), 0);
        answer(&g, 2, &last);
        evaluate(&g);
        assert_int_equal(deadlocks(&g), 2); /* each of the two is told */
        const gr_op_report *verdict = last_said(&g, 0, GR_REPORT_WAITS);
        assert_true(verdict->deadlock && verdict->rank == 2 && verdict->answers == zero.seq);
        assert_string_equal(verdict->text, "call 9");
        verdict = last_said(&g, 2, GR_REPORT_WAITS);
        assert_true(verdict->deadlock && verdict->rank == 0 && verdict->answers == last.seq);
        assert_string_equal(verdict->text, "call 7");
        gr_wait_graph_fini(&g.rules);
    }
}

/* Ranks 0 to 2 wait for rank 3, which waits for rank 0. Rank 3 is told of each of them, and answers
 * late: whatever it says last, what it has said of rank 0 holds, until it takes that back. */
static void wait_graph_keeps_a_denial_while_a_rank_denies_others(void **state)
{
    (void)state;
    for (unsigned order = 0; order < 3; order++) {
        for (unsigned taken_back = 0; taken_back < 2; taken_back++) {
            static graph g;
            open_graph(&g, RANKS);
            gr_op_report last = waiting(9, 1u << 0), others = waiting(7, 1u << 3);
            report(&g, 3, &last);
            for (unsigned i = 0; i < 3; i++) {
                report(&g, (int)((order + i) % 3), &others);
                evaluate(&g);
            }
            unsigned told = 0;
            for (int i = 0; i < g.count; i++) {
                told |= g.said[i].to == 3 && g.said[i].report.kind == GR_REPORT_WAITS
                            ? 1u << g.said[i].report.rank
                            : 0;
            }
            assert_int_equal(told, 7);
            for (int32_t peer = 0; peer < 3; peer++) {
                deny(&g, 3, &last, peer, others.seq);
            }
            deny(&g, 3, &last, taken_back ? 0 : -1, 0);
            evaluate(&g);
            assert_int_equal(deadlocks(&g), 0);
            deny(&g, 0, &others, 3, last.seq);
            evaluate(&g);
            assert_int_equal(deadlocks(&g), taken_back ? 0 : 2);
            gr_wait_graph_fini(&g.rules);
        }
    }
}

/* One of the two can still begin something, or has begun what the other one waits in. */
static void wait_graph_without_both_denials_there_is_no_deadlock(void **state)
{
    (void)state;
    for (unsigned which = 0; which < 4; which++) {
        static graph g;
        open_graph(&g, 2);
        gr_op_report a = waiting(7, 1u << 1), b = waiting(9, 1u << 0);
        report(&g, 0, &a);
        report(&g, 1, &b);
        evaluate(&g);
        a.blocked = which != 0;
        b.answers = which == 1 ? 0 : which == 2 ? 12345 : a.seq;
        b.peer = which == 3 ? -1 : 0;
        answer(&g, 0, &a);
        report(&g, 1, &b);
        evaluate(&g);
        assert_int_equal(deadlocks(&g), 0);
        gr_wait_graph_fini(&g.rules);
    }
}

/* Rank 1 waits twice in the same kind of call, and rank 0 has denied the first one: whether it has
 * begun the second one is not known before it says so. */
static void wait_graph_denial_of_an_older_wait_is_no_deadlock(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, 2);
    gr_op_report a = waiting(7, 1u << 1), b = waiting(9, 1u << 0);
    report(&g, 0, &a);
    report(&g, 1, &b);
    evaluate(&g);
    deny(&g, 0, &a, 1, b.seq);
    b.op.number++;
    b.seq++;
    report(&g, 1, &b);
    deny(&g, 1, &b, 0, a.seq);
    evaluate(&g);
    assert_int_equal(deadlocks(&g), 0);
    deny(&g, 0, &a, 1, b.seq);
    evaluate(&g);
    assert_int_equal(deadlocks(&g), 2);
    gr_wait_graph_fini(&g.rules);
}

/* Rank 0 goes on before it has read the verdict, and comes into another one. */
static void wait_graph_tells_of_a_deadlock_in_each_wait(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, 2);
    gr_op_report b = waiting(9, 1u << 0);
    for (uint32_t turn = 0; turn < 2; turn++) {
        gr_op_report a = waiting(7 + turn, 1u << 1);
        report(&g, 1, &b);
        deny(&g, 1, &b, 0, a.seq);
        deny(&g, 0, &a, 1, b.seq);
        evaluate(&g);
        const gr_op_report *verdict = last_said(&g, 0, GR_REPORT_WAITS);
        assert_true(verdict->deadlock && verdict->answers == a.seq);
    }
    gr_wait_graph_fini(&g.rules);
}

/* Two sends to each other have the same fingerprint, and are not the same operation. */
static void wait_graph_two_sends_are_told_of_each_other(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, 2);
    gr_op_report a = waiting(0, 1u << 1), b = waiting(0, 1u << 0);
    a.op = (gr_op_id){.is_message = true, .sends = true, .fingerprint = 5, .partner = 1};
    b.op = (gr_op_id){.is_message = true, .sends = true, .fingerprint = 5, .partner = 0};
    report(&g, 0, &a);
    report(&g, 1, &b);
    evaluate(&g);
    assert_int_equal(last_said(&g, 0, GR_REPORT_WAITS)->rank, 1);
    assert_int_equal(last_said(&g, 1, GR_REPORT_WAITS)->rank, 0);
    gr_wait_graph_fini(&g.rules);
}

/* To each wait of the peer, even if it reads late. */
static void wait_graph_hands_a_mismatch_to_the_peer_at_once(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, RANKS);
    gr_op_report met = {.kind = GR_REPORT_MISMATCH, .rank = 3, .peer = 2, .via = -1};
    for (met.answers = 1; met.answers <= 20; met.answers++) {
        report(&g, 1, &met);
        const gr_op_report *told = last_said(&g, 2, GR_REPORT_MISMATCH);
        assert_int_equal(told->rank, 1); /* whatever the report says */
        assert_int_equal(told->answers, met.answers);
        assert_int_equal(g.count, met.answers);
    }
    gr_wait_graph_fini(&g.rules);
}

/* ---- Bounds ---------------------------------------------------------------------------------- */
static void wait_graph_refuses_what_no_rank_says(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, RANKS);
    gr_op_report wrong[] = {waiting(1, 1u << RANKS), waiting(1, 1), waiting(1, 1), waiting(1, 1),
                            waiting(1, 1)};
    wrong[1].peer = RANKS;
    wrong[2].kind = GR_REPORT_CAUSE;
    wrong[3].kind = GR_REPORT_MISMATCH; /* about nobody */
    wrong[4].seq = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(gr_wait_graph_report(&g.rules, 1, &wrong[i], 5), GR_E_PROTOCOL);
    }
    const gr_op_report fine = waiting(1, 1);
    assert_int_equal(gr_wait_graph_report(&g.rules, RANKS, &fine, 5), GR_E_PROTOCOL);
    evaluate(&g);
    assert_int_equal(g.counted, 0);
    gr_wait_graph_fini(&g.rules);
}

/* A rank that reads nothing is told a few things, not more; a ring of 256 is told once each. */
static void wait_graph_says_no_more_than_its_bounds(void **state)
{
    (void)state;
    static graph g;
    open_graph(&g, LARGE);
    for (int rank = 1; rank < LARGE; rank++) {
        gr_op_report r = waiting(7, 0);
        r.awaits[0] = rank - 1;
        r.awaits_count = 1;
        report(&g, rank, &r);
    }
    evaluate(&g);
    assert_int_equal(g.counted, LARGE); /* a cause for each, and rank 0 hears of rank 1 */
    for (uint32_t i = 0; i < 1000; i++) {
        const gr_op_report r = waiting(i, 1);
        report(&g, 1, &r);
        evaluate(&g);
        g.now_us += SECOND_US / 20;
    }
    int to_silent = 0;
    for (int i = 0; i < g.count; i++) {
        to_silent += g.said[i].to == 0;
    }
    assert_true(to_silent <= 16);
    gr_wait_graph_fini(&g.rules);
}

static void op_report_survives_its_way_and_strange_names(void **state)
{
    (void)state;
    uint8_t bytes[GR_REPORT_BYTES_MAX];
    gr_op_report in = waiting(7, 0xe), out;
    in.rank = 2;
    in.answers = 5;
    snprintf(in.text, sizeof in.text, "allreduce \"a\nb\x01\xff\" at x.c:1");
    size_t size = gr_op_report_put(&in, bytes);
    assert_true(size <= sizeof bytes);
    assert_int_equal(gr_op_report_get(bytes, size, RANKS, &out, NULL), GR_OK);
    assert_string_equal(out.text, "allreduce \"a?b?\xff\" at x.c:1");
    assert_int_equal(out.awaits_count, 3);
    assert_memory_equal(out.awaits, in.awaits, 3 * sizeof in.awaits[0]);
    assert_true(out.op.number == 7 && out.op.fingerprint == 1007 && out.blocked && !out.deadlock);
    assert_true(out.seq == 8 && out.answers == 5);
    assert_int_equal(gr_op_report_get(bytes, size, 2, &out, NULL), GR_E_PROTOCOL);
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_equal(gr_op_report_get(bytes, cut, RANKS, &out, NULL), GR_E_PROTOCOL);
    }
    assert_true(gr_message_put_report(&in, (uint8_t[GR_MESSAGE_SMALL_MAX]){0}) <=
                GR_MESSAGE_SMALL_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wait_graph_of_four_names_the_nearest_rank_that_does_not_wait),
        cmocka_unit_test(wait_graph_when_a_rank_goes_on_names_another_cause),
        cmocka_unit_test(wait_graph_when_the_cause_waits_in_something_else_says_so),
        cmocka_unit_test(wait_graph_a_pause_of_all_is_nobodys_silence),
        cmocka_unit_test(wait_graph_rank_that_is_stopped_while_it_waits_is_the_cause),
        cmocka_unit_test(wait_graph_two_ranks_that_deny_each_other_are_a_deadlock),
        cmocka_unit_test(wait_graph_keeps_a_denial_while_a_rank_denies_others),
        cmocka_unit_test(wait_graph_without_both_denials_there_is_no_deadlock),
        cmocka_unit_test(wait_graph_denial_of_an_older_wait_is_no_deadlock),
        cmocka_unit_test(wait_graph_tells_of_a_deadlock_in_each_wait),
        cmocka_unit_test(wait_graph_two_sends_are_told_of_each_other),
        cmocka_unit_test(wait_graph_hands_a_mismatch_to_the_peer_at_once),
        cmocka_unit_test(wait_graph_refuses_what_no_rank_says),
        cmocka_unit_test(wait_graph_says_no_more_than_its_bounds),
        cmocka_unit_test(op_report_survives_its_way_and_strange_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
