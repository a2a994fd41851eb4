/* SPDX-License-Identifier: Apache-2.0 */

/* The rules of membership in every order in which things can happen to small groups: each message
 * is delivered now or later, members die, are cut off from the coordinator, lose a link or give up
 * at any moment. Breadth first, so that what goes wrong is told by the shortest way to it. */

#include "base/fail.h"
#include "base/hash.h"
#include "group/membership.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MEMBERS_MAX = 4,
    QUEUE_MAX = 10,
    GENERATIONS_MAX = 16,
    RULES_BYTES = offsetof(gr_membership, failure), /* all that changes stands before it */
    TABLE_BITS = 23,
    STATES_MAX = 1 << (TABLE_BITS - 1),
    TRACE_MAX = 400,
    WHY_BYTES = 200
};

/* ---- The model of a job ---------------------------------------------------------------------- */

typedef enum phase {
    OUTSIDE = 0, /* started, has not called in */
    CALLED,      /* has said HELLO, waits for MEMBERS */
    WIRING,      /* makes links */
    RUNNING,     /* has said READY */
    RENEWING,    /* has said RENEW, waits for a seat */
    LEFT,        /* its part is done */
    ENDED,       /* with a failure that was told to it */
    DEAD
} phase;

static const char *const phase_names[] = {"outside",  "called", "wiring", "running",
                                          "renewing", "left",   "ended",  "dead"};

enum { END_OF_STREAM = GR_MESSAGE_KIND_END };

/* SEAT: generation, rank, size. MEMBERS: generation, set of numbers. FAIL: -status. */
typedef struct word {
    uint8_t kind, a, b, c;
} word;

typedef struct model_member {
    uint8_t phase;
    bool was_ready; /* once: from then on it leaves in order */
    bool cut;       /* has no connection to the coordinator any more, and may not know it yet */
    bool buried;    /* the launcher has said that it ended */
    uint8_t from;   /* the generation of its last seat */
    uint8_t rank, size;
    uint8_t set; /* of numbers: who is in its generation */
    uint8_t up_count, down_count;
    uint8_t up[QUEUE_MAX]; /* kinds; FAIL and HELLO say what the member's state says */
    word down[QUEUE_MAX];
} model_member;

/* What can be told from each other is in here, and nothing else: it is compared by its bytes. */
typedef struct model_state {
    uint8_t rules[RULES_BYTES];
    int32_t failure;
    gr_standing standings[MEMBERS_MAX];
    model_member members[MEMBERS_MAX];
    uint8_t sets[GENERATIONS_MAX]; /* whom MEMBERS has named, by generation */
    uint8_t entered;               /* who has begun to wire the coordinator's generation */
    uint8_t crashes, cuts, breaks, surrenders, leaves; /* so many may still happen */
} model_state;

typedef enum event_kind {
    CALL_IN,   /* a member says HELLO for the first time */
    HEAR_UP,   /* the coordinator takes the next message of a member */
    HEAR_DOWN, /* the member the coordinator's */
    WIRE,      /* linked to all others */
    NOTICE,    /* somebody of its generation is gone */
    NOTICE_CUT,
    BURY,   /* the launcher sees that a process has ended */
    FAULTS, /* from here on they may happen, but need not */
    LEAVE = FAULTS,
    CRASH,     /* what it has sent still comes... */
    VANISH,    /* ...or not */
    CUT,       /* its connection to the coordinator breaks, no other one */
    BREAK,     /* a link breaks though both live */
    SURRENDER, /* it has waited for too long */
    EVENT_KINDS
} event_kind;

static const char *const event_names[] = {"calls in",
                                          "is heard",
                                          "hears",
                                          "is wired",
                                          "notices that somebody is gone",
                                          "notices that it is cut off",
                                          "is buried",
                                          "leaves",
                                          "crashes",
                                          "vanishes",
                                          "is cut off from the coordinator",
                                          "loses a link",
                                          "gives up"};

typedef struct model {
    gr_membership rules; /* of the state that is looked at */
    model_state now;
    int size;
    bool elastic;
    char why[WHY_BYTES];
} model;

static bool wrong(model *m, const char *format, ...) GR_PRINTF(2, 3);
static bool wrong(model *m, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (m->why[0] == '\0') {
        vsnprintf(m->why, sizeof m->why, format, arguments);
    }
    va_end(arguments);
    return false;
}

static bool alive(const model_member *of)
{
    return of->phase <= RENEWING;
}

/* ---- What the coordinator says --------------------------------------------------------------- */

static void check_seat(model *m, int number, const gr_seat *seat)
{
    int before = 0, all = 0;
    for (int i = 0; i < m->size; i++) {
        bool in = m->rules.members[i].state == GR_MEMBER_JOINED;
        before += in && i < number;
        all += in;
    }
    if (seat->rank != (uint32_t)before || seat->world_size != (uint32_t)all) {
        (void)wrong(m, "member %d is rank %u of %u, and should be %d of %d", number, seat->rank,
                    seat->world_size, before, all);
    }
    if (seat->generation <= m->now.members[number].from) {
        (void)wrong(m, "member %d has been in generation %llu already", number,
                    (unsigned long long)seat->generation);
    }
}

static uint8_t check_members(model *m, const gr_word *said)
{
    uint8_t set = 0;
    for (int rank = 0; rank < said->size; rank++) {
        int number = (int)said->places[rank].host;
        if (rank > 0 && number <= (int)said->places[rank - 1].host) {
            (void)wrong(m, "ranks are not in the order of numbers");
        }
        if (m->rules.members[number].state != GR_MEMBER_JOINED ||
            m->rules.members[number].rank != rank) {
            (void)wrong(m, "member %d is named as rank %d", number, rank);
        }
        set |= (uint8_t)(1 << number);
    }
    uint8_t *named = &m->now.sets[said->generation % GENERATIONS_MAX];
    if (*named != 0 && *named != set) {
        (void)wrong(m, "generation %llu has two lists of members",
                    (unsigned long long)said->generation);
    }
    *named = set;
    return set;
}

static void say(void *model_arg, int number, const gr_word *said)
{
    model *m = model_arg;
    model_member *to = &m->now.members[number];
    word w = {.kind = (uint8_t)said->kind};
    switch (said->kind) {
    case GR_MESSAGE_SEAT:
        check_seat(m, number, &said->seat);
        m->now.entered = 0;
        w.a = (uint8_t)said->seat.generation;
        w.b = (uint8_t)said->seat.rank;
        w.c = (uint8_t)said->seat.world_size;
        break;
    case GR_MESSAGE_MEMBERS:
        w.a = (uint8_t)said->generation;
        w.b = check_members(m, said);
        break;
    default:
        w.a = (uint8_t)-said->failure->status;
        break;
    }
    if (to->cut || !alive(to)) {
        return; /* nobody reads it */
    }
    if (to->down_count == QUEUE_MAX) {
        (void)wrong(m, "member %d is told more and more", number);
        return;
    }
    to->down[to->down_count++] = w;
}

/* ---- What happens ---------------------------------------------------------------------------- */

static void send_up(model *m, int number, int kind)
{
    model_member *from = &m->now.members[number];
    if (from->cut) {
        return;
    }
    if (from->up_count == QUEUE_MAX) {
        (void)wrong(m, "member %d says more and more", number);
        return;
    }
    from->up[from->up_count++] = (uint8_t)kind;
}

static void call_in(model *m, int number, int from, int rank, int size)
{
    model_member *of = &m->now.members[number];
    of->phase = CALLED;
    of->from = (uint8_t)from;
    of->rank = (uint8_t)rank;
    of->size = (uint8_t)size;
    send_up(m, number, GR_MESSAGE_HELLO);
}

/* As member.c: who was in a group leaves in order, who was not says why. */
static void end(model *m, int number)
{
    model_member *of = &m->now.members[number];
    send_up(m, number, of->was_ready ? GR_MESSAGE_LEAVE : GR_MESSAGE_FAIL);
    of->phase = ENDED;
    of->down_count = 0;
}

static void renew(model *m, int number)
{
    if (!m->elastic) {
        end(m, number);
        return;
    }
    m->now.members[number].phase = RENEWING;
    m->now.members[number].set = 0;
    send_up(m, number, GR_MESSAGE_RENEW);
}

static void hear_down(model *m, int number)
{
    model_member *of = &m->now.members[number];
    word w = of->down[0];
    of->down_count--;
    memmove(of->down, of->down + 1, of->down_count * sizeof of->down[0]);
    of->down[of->down_count] = (word){0};
    gr_status status = (gr_status) - (int)w.a;
    if (w.kind == GR_MESSAGE_FAIL && gr_status_scope(status) == GR_SCOPE_PEER) {
        if (of->phase != RENEWING) { /* else it is about the old generation */
            renew(m, number);
        }
    } else if (w.kind == GR_MESSAGE_FAIL) {
        end(m, number);
    } else if (w.kind == GR_MESSAGE_SEAT && of->phase == RENEWING) {
        call_in(m, number, w.a, w.b, w.c);
    } else if (w.kind == GR_MESSAGE_MEMBERS && of->phase == CALLED) {
        of->phase = WIRING;
        of->set = w.b;
        m->now.entered |= (uint8_t)(1 << number);
        if (w.a != of->from || __builtin_popcount(w.b) != of->size ||
            __builtin_popcount(w.b & ((1U << number) - 1)) != of->rank) {
            (void)wrong(m, "member %d is told of another generation than that of its seat", number);
        }
    } else {
        (void)wrong(m, "member %d, %s, is told message %d", number, phase_names[of->phase], w.kind);
    }
}

static void hear_up(model *m, int number)
{
    model_member *of = &m->now.members[number];
    uint8_t kind = of->up[0];
    of->up_count--;
    memmove(of->up, of->up + 1, of->up_count);
    of->up[of->up_count] = 0;
    gr_hello hello = {.world_size = of->size, .pid = 1, .member = {.host = (uint64_t)number}};
    gr_diag failure = {.status = GR_E_TIMEOUT, .text = "it gave up"};
    gr_status status = GR_OK;
    switch (kind) {
    case GR_MESSAGE_HELLO:
        status = gr_membership_hello(&m->rules, number, &hello);
        break;
    case GR_MESSAGE_READY:
        status = gr_membership_ready(&m->rules, number);
        break;
    case GR_MESSAGE_RENEW:
        status = gr_membership_renew(&m->rules, number);
        break;
    case GR_MESSAGE_LEAVE:
        status = gr_membership_leave(&m->rules, number);
        break;
    case GR_MESSAGE_FAIL:
        status = gr_membership_fail(&m->rules, number, &failure);
        break;
    default:
        gr_membership_lost(&m->rules, number, "its connection broke");
        break;
    }
    if (status != GR_OK) {
        (void)wrong(m, "message %d of member %d is refused", kind, number);
    }
}

static void lose_connection(model *m, int number, bool all_of_it)
{
    model_member *of = &m->now.members[number];
    if (of->cut) {
        return;
    }
    if (all_of_it) {
        of->up_count = 0;
        memset(of->up, 0, sizeof of->up);
    }
    send_up(m, number, END_OF_STREAM);
    of->cut = true;
    of->down_count = 0;
    memset(of->down, 0, sizeof of->down);
}

static void die(model *m, int number, bool all_of_it)
{
    if (m->now.members[number].phase != OUTSIDE) {
        lose_connection(m, number, all_of_it);
    }
    m->now.members[number].phase = DEAD;
    m->now.crashes--;
}

static void bury(model *m, int number)
{
    model_member *of = &m->now.members[number];
    while (of->up_count > 0) { /* as coordinator.c: first what it has still said */
        hear_up(m, number);
    }
    of->buried = true;
    gr_membership_ended(&m->rules, number);
}

static void happen(model *m, event_kind kind, int number)
{
    model_member *of = &m->now.members[number];
    switch (kind) {
    case CALL_IN:
        call_in(m, number, 1, number, m->size);
        break;
    case HEAR_UP:
        hear_up(m, number);
        break;
    case HEAR_DOWN:
        hear_down(m, number);
        break;
    case WIRE:
        of->phase = RUNNING;
        of->was_ready = true;
        send_up(m, number, GR_MESSAGE_READY);
        break;
    case BREAK:
        m->now.breaks--;
        renew(m, number);
        break;
    case NOTICE:
        renew(m, number);
        break;
    case LEAVE:
        m->now.leaves--;
        send_up(m, number, GR_MESSAGE_LEAVE);
        of->phase = LEFT;
        break;
    case CRASH:
    case VANISH:
        die(m, number, kind == VANISH);
        break;
    case BURY:
        bury(m, number);
        break;
    case CUT:
        m->now.cuts--;
        lose_connection(m, number, true);
        break;
    case SURRENDER:
        m->now.surrenders--;
        end(m, number);
        break;
    default: /* NOTICE_CUT: it cannot know who goes on */
        end(m, number);
        break;
    }
    if (!alive(of)) { /* nothing distinguishes the dead */
        of->from = of->rank = of->set = 0;
        of->down_count = 0;
        memset(of->down, 0, sizeof of->down);
    }
}

/* ---- What can happen ------------------------------------------------------------------------- */

/* Others of its generation: those that are in it now. */
static uint8_t present(const model *m, int number)
{
    const model_member *of = &m->now.members[number];
    uint8_t set = 0;
    for (int i = 0; i < m->size; i++) {
        const model_member *other = &m->now.members[i];
        bool in = other->phase == CALLED || other->phase == WIRING || other->phase == RUNNING;
        set |= (uint8_t)((in && other->from == of->from) << i);
    }
    return set;
}

/* A link can be made with whoever has begun to; a member that has gone since may have been linked
 * before it went. Then the next one notices that it is gone. */
static bool can_wire(const model *m, int number)
{
    const model_member *of = &m->now.members[number];
    return of->phase == WIRING && (m->now.entered & of->set) == of->set;
}

/* A peer that is connected, or connects to us, is seen to go. Whoever waits for a peer that is to
 * connect sees nothing: only the coordinator knows. */
static bool can_notice(const model *m, int number)
{
    const model_member *of = &m->now.members[number];
    if (of->phase != WIRING && of->phase != RUNNING) {
        return false;
    }
    uint8_t gone = of->set & (uint8_t)~present(m, number);
    return (of->phase == RUNNING ? gone : gone & (uint8_t)((1 << number) - 1)) != 0;
}

static bool can(const model *m, event_kind kind, int number)
{
    const model_member *of = &m->now.members[number];
    bool called = alive(of) && of->phase != OUTSIDE;
    switch (kind) {
    case CALL_IN:
        return of->phase == OUTSIDE;
    case HEAR_UP:
        return of->up_count > 0;
    case HEAR_DOWN:
        return of->down_count > 0 && called && of->phase != RUNNING;
    case WIRE:
        return can_wire(m, number);
    case NOTICE:
        return can_notice(m, number);
    case NOTICE_CUT:
        return called && of->cut;
    case BURY:
        return (of->phase == DEAD || of->phase == ENDED) && !of->buried;
    case LEAVE:
        return of->phase == RUNNING && m->now.leaves > 0;
    case CRASH:
        return alive(of) && m->now.crashes > 0;
    case VANISH:
        return called && of->up_count > 0 && !of->cut && m->now.crashes > 0;
    case CUT:
        return called && !of->cut && m->now.cuts > 0;
    case BREAK:
        return (of->phase == WIRING || of->phase == RUNNING) && of->size > 1 && m->now.breaks > 0;
    default:
        return (of->phase == CALLED || of->phase == WIRING || of->phase == RENEWING) &&
               m->now.surrenders > 0;
    }
}

/* ---- What must hold -------------------------------------------------------------------------- */

/* Always: whoever is in the same generation has the same list. */
static bool agree(model *m)
{
    for (int i = 0; i < m->size; i++) {
        const model_member *of = &m->now.members[i];
        if (of->phase != WIRING && of->phase != RUNNING) {
            continue;
        }
        if (of->set != m->now.sets[of->from] || !(of->set & 1 << i)) {
            return wrong(m, "member %d has a list of its own", i);
        }
        if (of->from > m->rules.generation) {
            return wrong(m, "member %d is ahead of the coordinator", i);
        }
    }
    return m->why[0] == '\0';
}

/* In a job that needs all of its members, one that ends before it has called in is the launcher's
 * affair. */
static bool ends_as_a_whole(const model *m)
{
    for (int i = 0; i < m->size; i++) {
        if (!m->elastic && m->now.members[i].buried &&
            m->rules.members[i].state == GR_MEMBER_ABSENT) {
            return true;
        }
    }
    return false;
}

/* When nothing happens any more by itself: whoever lives is in the one generation that is, with all
 * that are in its list. */
static bool rest(model *m)
{
    int running = 0;
    for (int i = 0; i < m->size; i++) {
        const model_member *of = &m->now.members[i];
        if (!alive(of)) {
            continue;
        }
        if (ends_as_a_whole(m)) {
            continue;
        }
        if (of->phase != RUNNING) {
            return wrong(m, "nothing happens any more, and member %d is %s", i,
                         phase_names[of->phase]);
        }
        running++;
        if (of->from != m->rules.generation || of->set != present(m, i) ||
            m->rules.members[i].state != GR_MEMBER_JOINED) {
            return wrong(m, "member %d runs in a generation that is over", i);
        }
    }
    if (running > 0 && running < m->rules.members_min) {
        return wrong(m, "%d members go on, fewer than the job needs", running);
    }
    return true;
}

/* ---- All of it ------------------------------------------------------------------------------- */

typedef struct node {
    uint32_t parent;
    uint16_t event; /* kind * MEMBERS_MAX + number */
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

static void restore(model *m, const model_state *from)
{
    m->now = *from;
    memcpy(&m->rules, from->rules, sizeof from->rules);
    m->rules.failure.status = from->failure;
    memcpy(m->rules.members, from->standings, (size_t)m->size * sizeof from->standings[0]);
}

static void keep(model *m)
{
    memcpy(m->now.rules, &m->rules, sizeof m->now.rules);
    m->now.failure = m->rules.failure.status;
    memcpy(m->now.standings, m->rules.members, (size_t)m->size * sizeof m->now.standings[0]);
}

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
    keep(&s->m);
    if (!is_new(s)) {
        return true;
    }
    if (s->count == STATES_MAX) {
        return wrong(&s->m, "there are more than %d states", STATES_MAX);
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
    for (int event = 0; event < EVENT_KINDS * MEMBERS_MAX; event++) {
        event_kind kind = (event_kind)(event / MEMBERS_MAX);
        int number = event % MEMBERS_MAX;
        restore(&s->m, &from);
        if (number >= s->m.size || !can(&s->m, kind, number)) {
            continue;
        }
        quiet = quiet && kind >= FAULTS;
        happen(&s->m, kind, number);
        *event_out = (uint16_t)event;
        if (!agree(&s->m) || !add(s, at, event)) {
            return false;
        }
    }
    *event_out = UINT16_MAX;
    if (quiet) {
        s->rests++;
        restore(&s->m, &from);
        return rest(&s->m);
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
        print_error("  member %d %s\n", way[i] % MEMBERS_MAX, event_names[way[i] / MEMBERS_MAX]);
    }
}

/* ---- The tests ------------------------------------------------------------------------------- */

typedef enum start { FROM_THE_START, WHEN_ALL_HAVE_CALLED_IN, WHEN_ALL_RUN } start;

typedef struct setting {
    int size, members_min;
    start from;
    uint8_t crashes, cuts, breaks, surrenders, leaves;
} setting;

static void begin(model *m, start from)
{
    for (int i = 0; i < m->size && from >= WHEN_ALL_HAVE_CALLED_IN; i++) {
        happen(m, CALL_IN, i);
        happen(m, HEAR_UP, i);
    }
    for (int i = 0; i < m->size && from >= WHEN_ALL_RUN; i++) {
        happen(m, HEAR_DOWN, i);
    }
    for (int i = 0; i < m->size && from >= WHEN_ALL_RUN; i++) {
        happen(m, WIRE, i);
        happen(m, HEAR_UP, i);
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
    m->size = with->size;
    m->elastic = with->members_min < with->size;
    assert_int_equal(
        gr_membership_init(&m->rules, with->size, with->members_min, say, m, NULL, NULL), GR_OK);
    m->now.crashes = with->crashes;
    m->now.cuts = with->cuts;
    m->now.breaks = with->breaks;
    m->now.surrenders = with->surrenders;
    m->now.leaves = with->leaves;
    begin(m, with->from);
    uint16_t event = UINT16_MAX;
    bool right = add(s, 0, 0);
    while (right && s->head < s->count) {
        right = look_at(s, s->head, &event);
        s->head += right;
    }
    print_message("%d members, at least %d, %s: up to %u crashes, %u cut off, %u links, %u give "
                  "up, %u leave: %u states, %llu at rest\n",
                  with->size, with->members_min, starts[with->from], with->crashes, with->cuts,
                  with->breaks, with->surrenders, with->leaves, s->count,
                  (unsigned long long)s->rests);
    if (!right) {
        print_error("%s, when\n", m->why);
        print_way(s, s->head, event);
    }
    gr_membership_fini(&m->rules);
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
        cmocka_unit_test(test_four),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
