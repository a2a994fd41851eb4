/* SPDX-License-Identifier: Apache-2.0 */
#include "support_search.h"

#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    TABLE_BITS = 23,
    STATES_MAX = 1 << (TABLE_BITS - 1),
    TRACE_MAX = 400,
    NO_EVENT = UINT16_MAX
};

typedef struct node {
    uint32_t parent;
    uint16_t event;
} node;

typedef struct search {
    const search_model *of;
    uint64_t *table; /* hashes of the states that were met; 0: free */
    node *nodes;     /* how they were met, by number */
    uint32_t count, head, rests;
    uint8_t *ring; /* the states that are still to be looked at, a part of the nodes */
    uint32_t ring_size;
    uint8_t *from; /* the one that is looked at */
} search;

/* Two states with the same 64 bits are taken for one: of a million, in one of 10^7 runs. */
static bool is_new(search *s, const void *state)
{
    uint64_t hash = gr_hash64(state, s->of->state_bytes, 1) | 1;
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

static void *place(const search *s, uint8_t *ring, uint32_t size, uint32_t number)
{
    return ring + (size_t)(number % size) * s->of->state_bytes;
}

static void widen(search *s)
{
    uint32_t size = s->ring_size * 2;
    uint8_t *ring = malloc(size * s->of->state_bytes);
    assert_non_null(ring);
    for (uint32_t at = s->head; at < s->count; at++) {
        memcpy(place(s, ring, size, at), place(s, s->ring, s->ring_size, at), s->of->state_bytes);
    }
    free(s->ring);
    s->ring = ring;
    s->ring_size = size;
}

static bool add(search *s, uint32_t parent, int event)
{
    const void *state = s->of->keep(s->of->model);
    if (!is_new(s, state)) {
        return true;
    }
    if (s->count == STATES_MAX) {
        print_error("there are more than %d states\n", STATES_MAX);
        return false;
    }
    if (s->count - s->head == s->ring_size) {
        widen(s);
    }
    s->nodes[s->count] = (node){.parent = parent, .event = (uint16_t)event};
    memcpy(place(s, s->ring, s->ring_size, s->count), state, s->of->state_bytes);
    s->count++;
    return true;
}

/* All events of these classes; *any_out: one that is no fault has happened. */
static bool try_events(search *s, bool timers, bool *any_out, uint16_t *event_out)
{
    const search_model *of = s->of;
    bool touched = true;
    for (int event = 0; event < of->event_count; event++) {
        search_class class = of->class_of(event);
        if (timers != (class == SEARCH_TIMER)) {
            continue;
        }
        if (touched) {
            of->restore(of->model, s->from);
            touched = false;
        }
        if (!of->can(of->model, event)) {
            continue;
        }
        touched = true;
        *any_out = *any_out || class != SEARCH_FAULT;
        of->happen(of->model, event);
        *event_out = (uint16_t)event;
        if (!of->agrees(of->model) || !add(s, s->head, event)) {
            return false;
        }
    }
    *event_out = NO_EVENT;
    return true;
}

static bool look_at_next(search *s, uint16_t *event_out)
{
    bool any = false;
    memcpy(s->from, place(s, s->ring, s->ring_size, s->head), s->of->state_bytes);
    if (!try_events(s, false, &any, event_out)) {
        return false;
    }
    if (!any && !try_events(s, true, &any, event_out)) {
        return false;
    }
    if (!any) {
        s->rests++;
        s->of->restore(s->of->model, s->from);
        return s->of->rests(s->of->model);
    }
    return true;
}

static void print_way(const search *s, uint16_t last)
{
    uint16_t way[TRACE_MAX];
    int length = 0;
    if (last != NO_EVENT) {
        way[length++] = last;
    }
    for (uint32_t at = s->head; at != 0 && length < TRACE_MAX; at = s->nodes[at].parent) {
        way[length++] = s->nodes[at].event;
    }
    print_error("%s, when\n", s->of->why(s->of->model));
    for (int i = length - 1; i >= 0; i--) {
        s->of->print_event(way[i]);
    }
}

bool search_wrong(char why[SEARCH_WHY_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (why[0] == '\0') {
        vsnprintf(why, SEARCH_WHY_BYTES, format, arguments);
    }
    va_end(arguments);
    return false;
}

bool search_all(const search_model *of, search_counts *counts_out)
{
    search s = {.of = of, .ring_size = 1024};
    s.table = calloc((size_t)1 << TABLE_BITS, sizeof *s.table);
    s.nodes = malloc((size_t)STATES_MAX * sizeof *s.nodes);
    s.ring = malloc(s.ring_size * of->state_bytes);
    s.from = malloc(of->state_bytes);
    assert_true(s.table && s.nodes && s.ring && s.from);
    uint16_t event = NO_EVENT;
    bool right = add(&s, 0, 0);
    while (right && s.head < s.count) {
        right = look_at_next(&s, &event);
        s.head += right;
    }
    if (!right) {
        print_way(&s, event);
    }
    *counts_out = (search_counts){.states = s.count, .rests = s.rests};
    free(s.from);
    free(s.ring);
    free(s.nodes);
    free(s.table);
    return right;
}
