/* SPDX-License-Identifier: Apache-2.0 */

/* The rules of membership in every order in which things can happen to small groups: each message
 * is delivered now or later, members die, are cut off from the coordinator, lose a link or give up
 * at any moment. Breadth first, so that what goes wrong is told by the shortest way to it. */

#include "base/hash.h"
#include "support_membership.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { TABLE_BITS = 23, STATES_MAX = 1 << (TABLE_BITS - 1), TRACE_MAX = 400 };

/* ---- All of it ------------------------------------------------------------------------------- */

typedef struct node {
    uint32_t parent;
    uint16_t event; /* kind * MODEL_MEMBERS_MAX + number */
} node;

typedef struct search {
    model m;
    uint64_t *table; /* hashes of the states that were met; 0: free */
    node *nodes;     /* how they were met, by number */
    uint32_t count;
    model_state *ring; /* the states that are still to be looked at, a part of the nodes */
    uint32_t ring_size;
    uint32_t head;
    uint64_t rests;
} search;

/* Two states with the same 64 bits are taken for one: of a million, in one of 10^7 runs. */
static bool is_new(search *s)
{
    uint64_t hash = gr_hash64(&s->m.now, sizeof s->m.now, 1) | 1;
    uint64_t mask = (UINT64_C(1) << TABLE_BITS) - 1;
    for (uint64_t at = hash >> 20 & mask;; at = (at + 1) & mask) {
        if (s->table[at] == hash) {
            return false;
        }
        if (s->table[at] == 0) {
            s->table[at] = hash;
            return true;
        }
    }
}

static bool add(search *s, uint32_t parent, int event)
{
    model_keep(&s->m);
    if (!is_new(s)) {
        return true;
    }
    if (s->count == STATES_MAX) {
        print_error("there are more than %d states\n", STATES_MAX);
        return false;
    }
    if (s->count - s->head == s->ring_size) {
        uint32_t size = s->ring_size * 2;
        model_state *ring = malloc(size * sizeof *ring);
        assert_non_null(ring);
        for (uint32_t at = s->head; at < s->count; at++) {
            ring[at % size] = s->ring[at % s->ring_size];
        }
        free(s->ring);
        s->ring = ring;
        s->ring_size = size;
    }
    s->nodes[s->count] = (node){.parent = parent, .event = (uint16_t)event};
    s->ring[s->count % s->ring_size] = s->m.now;
    s->count++;
    return true;
}

static bool look_at(search *s, uint32_t at, uint16_t *event_out)
{
    const model_state from = s->ring[at % s->ring_size];
    bool quiet = true;
    for (int event = 0; event < EVENT_KINDS * MODEL_MEMBERS_MAX; event++) {
        event_kind kind = (event_kind)(event / MODEL_MEMBERS_MAX);
        int number = event % MODEL_MEMBERS_MAX;
        model_restore(&s->m, &from);
        if (number >= s->m.size || !model_can(&s->m, kind, number)) {
            continue;
        }
        quiet = quiet && kind >= EVENT_FAULTS;
        model_happen(&s->m, kind, number);
        *event_out = (uint16_t)event;
        if (!model_agrees(&s->m) || !add(s, at, event)) {
            return false;
        }
    }
    *event_out = UINT16_MAX;
    if (quiet) {
        s->rests++;
        model_restore(&s->m, &from);
        return model_rests(&s->m);
    }
    return true;
}

static void print_way(const search *s, uint32_t at, uint16_t last)
{
    uint16_t way[TRACE_MAX];
    int length = 0;
    if (last != UINT16_MAX) {
        way[length++] = last;
    }
    for (; at != 0 && length < TRACE_MAX; at = s->nodes[at].parent) {
        way[length++] = s->nodes[at].event;
    }
    for (int i = length - 1; i >= 0; i--) {
        print_error("  member %d %s\n", way[i] % MODEL_MEMBERS_MAX,
                    model_event_name((event_kind)(way[i] / MODEL_MEMBERS_MAX)));
    }
}

/* ---- The tests ------------------------------------------------------------------------------- */

typedef enum start { FROM_THE_START, WHEN_ALL_HAVE_CALLED_IN, WHEN_ALL_RUN } start;

typedef struct setting {
    int size, members_min;
    start from;
    uint8_t crashes, cuts, breaks, surrenders, leaves, invites, wants;
    int first_size; /* 0: size */
} setting;

static void begin(model *m, start from)
{
    for (int i = 0; i < m->first_size && from >= WHEN_ALL_HAVE_CALLED_IN; i++) {
        model_happen(m, EVENT_CALL_IN, i);
        model_happen(m, EVENT_HEAR_UP, i);
    }
    for (int i = 0; i < m->first_size && from >= WHEN_ALL_RUN; i++) {
        model_happen(m, EVENT_HEAR_DOWN, i);
    }
    for (int i = 0; i < m->first_size && from >= WHEN_ALL_RUN; i++) {
        model_happen(m, EVENT_WIRE, i);
        model_happen(m, EVENT_HEAR_UP, i);
    }
}

static void explore(const setting *with)
{
    static const char *const starts[] = {"from the start", "called in", "running"};
    search *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->table = calloc((size_t)1 << TABLE_BITS, sizeof *s->table);
    s->nodes = malloc((size_t)STATES_MAX * sizeof *s->nodes);
    s->ring_size = 1024;
    s->ring = malloc(s->ring_size * sizeof *s->ring);
    assert_true(s->table && s->nodes && s->ring);
    model *m = &s->m;
    int first_size = with->first_size > 0 ? with->first_size : with->size;
    assert_true(model_init(m, with->size, first_size, with->members_min));
    m->now.crashes = with->crashes;
    m->now.cuts = with->cuts;
    m->now.breaks = with->breaks;
    m->now.surrenders = with->surrenders;
    m->now.leaves = with->leaves;
    m->now.invites = with->invites;
    m->now.wants = with->wants;
    begin(m, with->from);
    uint16_t event = UINT16_MAX;
    bool right = add(s, 0, 0);
    while (right && s->head < s->count) {
        right = look_at(s, s->head, &event);
        s->head += right;
    }
    print_message("%d members, at least %d, %s: up to %u crashes, %u cut off, %u links, %u give "
                  "up, %u leave, %u come, %u changes: %u states, %llu at rest\n",
                  first_size, with->members_min, starts[with->from], with->crashes, with->cuts,
                  with->breaks, with->surrenders, with->leaves, with->invites, with->wants,
                  s->count, (unsigned long long)s->rests);
    if (!right) {
        print_error("%s, when\n", m->why);
        print_way(s, s->head, event);
    }
    model_fini(m);
    free(s->ring);
    free(s->nodes);
    free(s->table);
    free(s);
    assert_true(right);
}

static void test_two(void **state)
{
    (void)state;
    for (int least = 1; least <= 2; least++) {
        explore(&(setting){.size = 2,
                           .members_min = least,
                           .crashes = 2,
                           .cuts = 2,
                           .breaks = 2,
                           .surrenders = 1,
                           .leaves = 2});
    }
}

static void test_three(void **state)
{
    (void)state;
    for (int least = 1; least <= 3; least++) {
        explore(&(setting){.size = 3, .members_min = least, .crashes = 2, .leaves = 3});
        explore(&(setting){.size = 3, .members_min = least, .cuts = 1, .surrenders = 1});
        explore(&(setting){.size = 3, .members_min = least, .crashes = 1, .breaks = 1});
    }
    explore(&(setting){
        .size = 3, .members_min = 1, .from = WHEN_ALL_RUN, .crashes = 2, .breaks = 2, .leaves = 3});
    explore(&(setting){
        .size = 3, .members_min = 2, .from = WHEN_ALL_RUN, .crashes = 1, .cuts = 1, .leaves = 3});
}

/* Others come, in new places and in those of the dead; more or fewer are wanted; and all that goes
 * wrong beside. */
static void test_newcomers(void **state)
{
    static const setting settings[] = {
        {.size = 2, .first_size = 1, .invites = 2, .wants = 2, .crashes = 1, .leaves = 2},
        {.size = 2, .invites = 2, .crashes = 2, .leaves = 1},
        {.size = 2, .invites = 1, .wants = 2, .cuts = 1, .breaks = 1},
        {.size = 3, .first_size = 2, .from = WHEN_ALL_RUN, .invites = 2, .wants = 1, .crashes = 1},
        {.size = 3, .first_size = 2, .from = WHEN_ALL_RUN, .invites = 1, .wants = 2, .leaves = 1},
        {.size = 3, .from = WHEN_ALL_RUN, .invites = 1, .wants = 1, .crashes = 1},
        {.size = 3, .first_size = 2, .from = WHEN_ALL_RUN, .invites = 1, .wants = 1, .cuts = 1},
        {.size = 3, .first_size = 1, .from = WHEN_ALL_RUN, .invites = 2, .wants = 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting with = settings[i];
        with.members_min = 1;
        explore(&with);
    }
}

static void test_four(void **state)
{
    (void)state;
    for (int least = 1; least <= 3; least++) {
        explore(&(setting){
            .size = 4, .members_min = least, .from = WHEN_ALL_RUN, .crashes = 2, .leaves = 1});
    }
    explore(&(setting){.size = 4, .members_min = 2, .from = WHEN_ALL_RUN, .cuts = 1, .breaks = 1});
    explore(&(setting){.size = 4, .members_min = 1, .from = WHEN_ALL_HAVE_CALLED_IN, .crashes = 2});
    explore(&(setting){.size = 4, .members_min = 1, .crashes = 1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_three),
        cmocka_unit_test(test_newcomers),
        cmocka_unit_test(test_four),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
