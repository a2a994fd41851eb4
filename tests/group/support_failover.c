/* SPDX-License-Identifier: Apache-2.0 */

#include "support_failover.h"

#include "group/membership.h"
#include "support_search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MEMBERS_MAX = 4,
    COORDINATORS = MEMBERS_MAX + 1, /* the first one, then that of each member */
    PIPE_MAX = 6,
    DOWN_MAX = 12,
    RULES_BYTES = offsetof(gr_membership, failure), /* all that changes stands before it */
    END_OF_STREAM = GR_MESSAGE_KIND_END
};

typedef enum phase {
    PHASE_RUNNING = 0,
    PHASE_ASKING,  /* waits for a rank assignment */
    PHASE_CALLED,  /* has said HELLO */
    PHASE_SEEKING, /* for another coordinator */
    PHASE_LEFT,
    PHASE_ENDED,
    PHASE_DEAD
} phase;

/* A history of few members; its numbers as small(). */
typedef struct small_history {
    uint16_t committed, accepted;
    uint8_t formed_set, accepted_set, former_set, used;
} small_history;

/* ASSIGN: number. MEMBERS: number, who. FAIL: -status. HISTORY. */
typedef struct word {
    uint8_t kind, set, failure;
    uint16_t number;
    small_history history;
} word;

/* What a member has said to a coordinator that has not heard it yet. The HISTORY is the first. */
typedef struct pipe {
    uint8_t count;
    uint8_t kinds[PIPE_MAX], sizes[PIPE_MAX];
    uint16_t numbers[PIPE_MAX]; /* of HELLO and READY */
    small_history history;
} pipe;

typedef struct member {
    uint8_t phase;
    uint8_t at;   /* its coordinator, from 1; 0: none */
    bool cut;     /* the connection is over, and it may not know */
    bool joining; /* it has not run yet */
    bool change;  /* it has heard that it is to ask for another one */
    uint8_t size;
    uint16_t number;     /* of its generation or rank assignment */
    uint8_t set, placed; /* who runs with it; whom it knows where to find */
    uint8_t silent;      /* who did not answer as a successor */
    small_history history;
    pipe up[COORDINATORS];
    uint8_t down_count;
    word down[DOWN_MAX];
} member;

typedef struct coordinator {
    uint8_t rules[RULES_BYTES];
    int32_t failure;
    gr_standing standings[MEMBERS_MAX];
    bool own, gathering;
    small_history known, histories[MEMBERS_MAX];
} coordinator;

typedef struct state {
    member members[MEMBERS_MAX];
    uint8_t begun, dead; /* sets of coordinators */
    uint16_t last;       /* the newest generation of which all members ran at a time, and who */
    uint8_t last_set;    /* with those that have joined them since */
    uint8_t last_formed; /* without */
    uint8_t last_former; /* those of the one before it, if it is larger */
    uint8_t settled;     /* who has heard that all of the newest know that they run */
    uint16_t announced;  /* the newest of which some member was told who is in it */
    /* So many may still happen. */
    uint8_t crashes, ends, cuts, hurries, leaves, joins;
    uint8_t torn; /* some cut or hurry has happened */
    uint8_t came; /* a joining worker has had a rank assignment */
    coordinator coordinators[COORDINATORS];
} state;

struct model;
typedef struct teller {
    struct model *m;
    int index;
} teller;

typedef struct model {
    int size;  /* numbers */
    int first; /* members of the first generation */
    int want;  /* a generation has at most so many */
    gr_membership rules[COORDINATORS];
    teller tellers[COORDINATORS];
    coordinator fresh[COORDINATORS]; /* as they are before they begin */
    state now;
    char why[SEARCH_WHY_BYTES];
} model;

typedef enum event_kind {
    EVENT_HEAR_UP, /* (member, coordinator) */
    EVENT_HEAR_DOWN = EVENT_HEAR_UP + COORDINATORS,
    EVENT_NOTICE, /* somebody of its generation is gone */
    EVENT_NOTICE_CUT,
    EVENT_SEEK,   /* the next member in line is asked, or it is this one's turn */
    EVENT_CHANGE, /* it asks for another rank assignment, as it was asked to */
    EVENT_PROBE,  /* a successor finds that a member has ended */
    EVENT_SKIP = EVENT_PROBE + MEMBERS_MAX, /* the next in line has not answered for long */
    EVENT_GATHERED,                         /* who has not come is not waited for any more */
    EVENT_CRASH,
    EVENT_END_FIRST, /* the first coordinator dies */
    EVENT_CUT,       /* from its coordinator; what was on the way comes... */
    EVENT_LOSE,      /* ...or not */
    EVENT_HURRY_SKIP,
    EVENT_HURRY_GATHERED,
    EVENT_LEAVE,
    EVENT_JOIN, /* a worker calls (this coordinator), and gets the number */
    EVENT_KINDS = EVENT_JOIN + COORDINATORS
} event_kind;

/* ---- Small numbers and sets ------------------------------------------------------------------ */

/* The rounds of terms, whose it is (0: the first one), and the count. */
static uint16_t small(uint64_t number)
{
    uint64_t term = number >> 32, round = term >> 12, count = number & UINT32_MAX;
    assert_true(round < 256 && count < 16);
    return (uint16_t)(term == 0 ? count : round << 8 | ((term & 0xfff) + 1) << 4 | count);
}

static uint64_t large(uint16_t number)
{
    uint64_t round = number >> 8, successor = number >> 4 & 0xf, count = number & 0xf;
    return successor == 0 ? count : (round << 12 | (successor - 1)) << 32 | count;
}

static small_history shrink(const gr_history *of)
{
    return (small_history){.committed = small(of->committed),
                           .accepted = small(of->accepted),
                           .formed_set = of->committed_members.bits[0],
                           .accepted_set = of->accepted_members.bits[0],
                           .former_set = of->former_members.bits[0],
                           .used = of->used.bits[0]};
}

static gr_history stretch(const small_history *of)
{
    gr_history history = {.committed = large(of->committed), .accepted = large(of->accepted)};
    history.former_members.bits[0] = of->former_set;
    history.used.bits[0] = of->used;
    history.committed_members.bits[0] = of->formed_set;
    history.accepted_members.bits[0] = of->accepted_set;
    return history;
}

/* ---- What is kept of a state ----------------------------------------------------------------- */

static void keep_one(const gr_membership *rules, int size, coordinator *to)
{
    memcpy(to->rules, rules, sizeof to->rules);
    memcpy(to->standings, rules->members, (size_t)size * sizeof to->standings[0]);
    to->failure = rules->failure.status;
    to->own = rules->quorum->own;
    to->gathering = rules->quorum->gathering;
    to->known = shrink(&rules->quorum->known);
    for (int i = 0; i < size && rules->quorum->histories != NULL; i++) {
        to->histories[i] = shrink(&rules->quorum->histories[i]);
    }
}

static void restore_one(gr_membership *rules, int size, const coordinator *from)
{
    memcpy(rules, from->rules, sizeof from->rules);
    memcpy(rules->members, from->standings, (size_t)size * sizeof from->standings[0]);
    rules->failure.status = from->failure;
    rules->quorum->own = from->own;
    rules->quorum->gathering = from->gathering;
    rules->quorum->known = stretch(&from->known);
    for (int i = 0; i < size && rules->quorum->histories != NULL; i++) {
        rules->quorum->histories[i] = stretch(&from->histories[i]);
    }
}

static bool serves(const model *m, int c)
{
    return (m->now.begun >> c & 1) && !(m->now.dead >> c & 1);
}

static const void *keep(void *model_arg)
{
    model *m = model_arg;
    for (int c = 0; c <= m->size; c++) {
        memset(&m->now.coordinators[c], 0, sizeof m->now.coordinators[c]);
        if (serves(m, c)) {
            keep_one(&m->rules[c], m->size, &m->now.coordinators[c]);
        }
    }
    return &m->now;
}

static void restore(void *model_arg, const void *from)
{
    model *m = model_arg;
    memcpy(&m->now, from, sizeof m->now);
    for (int c = 0; c <= m->size; c++) {
        restore_one(&m->rules[c], m->size, serves(m, c) ? &m->now.coordinators[c] : &m->fresh[c]);
    }
}

/* ---- What coordinators say ------------------------------------------------------------------- */

static void send_word(void *teller_arg, int number, const gr_word *said)
{
    const teller *t = teller_arg;
    model *m = t->m;
    member *to = &m->now.members[number];
    word w = {.kind = (uint8_t)said->kind};
    if (to->at != t->index + 1 || to->cut || to->phase >= PHASE_LEFT) {
        return; /* nobody reads it */
    }
    if (said->kind == GR_MESSAGE_ASSIGN) {
        w.number = small(said->assignment.generation);
        w.set = (uint8_t)said->assignment.world_size;
        m->now.came |= to->joining;
        if (said->assignment.number != (uint32_t)number) {
            (void)search_wrong(m->why, "member %d is told that it is another one", number);
        }
    } else if (said->kind == GR_MESSAGE_HISTORY) {
        w.history = shrink(said->history);
    } else if (said->kind == GR_MESSAGE_MEMBERS) {
        w.number = small(said->generation);
        if (said->generation > large(m->now.announced)) {
            m->now.announced = w.number;
        }
        for (int rank = 0; rank < said->size; rank++) {
            w.set |= (uint8_t)(1 << said->places[rank].number);
        }
    } else if (said->kind == GR_MESSAGE_FAIL) {
        w.failure = (uint8_t)-said->failure->status;
    } else if (said->kind == GR_MESSAGE_DISMISS && !to->joining && !m->rules[t->index].over) {
        (void)search_wrong(m->why, "member %d is dismissed", number);
    } else if (said->kind != GR_MESSAGE_CHANGE && said->kind != GR_MESSAGE_DISMISS) {
        (void)search_wrong(m->why, "member %d is told message %d", number, (int)said->kind);
    }
    if (to->down_count == DOWN_MAX) {
        (void)search_wrong(m->why, "member %d is told more and more", number);
        return;
    }
    to->down[to->down_count++] = w;
}

/* ---- What members do ------------------------------------------------------------------------- */

static void put(model *m, int number, int kind)
{
    member *from = &m->now.members[number];
    if (from->at == 0 || from->cut || (m->now.dead >> (from->at - 1) & 1)) {
        return;
    }
    pipe *to = &from->up[from->at - 1];
    if (to->count == PIPE_MAX) {
        (void)search_wrong(m->why, "member %d says more and more", number);
        return;
    }
    bool numbered = kind == GR_MESSAGE_HELLO || kind == GR_MESSAGE_READY;
    to->kinds[to->count] = (uint8_t)kind;
    to->numbers[to->count] = numbered ? from->number : 0;
    to->sizes[to->count++] = kind == GR_MESSAGE_HELLO ? from->size : 0;
}

static void forget_words(member *of)
{
    of->down_count = 0;
    memset(of->down, 0, sizeof of->down);
}

/* The coordinator hears all that was said before, and then of the end. */
static void hang_up(model *m, int number)
{
    member *of = &m->now.members[number];
    put(m, number, END_OF_STREAM);
    of->cut = true;
}

/* Nothing tells it from others that are over. */
static void be_over(model *m, int number, phase now)
{
    member *of = &m->now.members[number];
    forget_words(of);
    of->phase = (uint8_t)now;
    of->at = of->size = of->set = of->placed = of->silent = 0;
    of->cut = of->joining = of->change = false;
    of->number = 0;
    of->history = (small_history){0};
}

static void leave(model *m, int number, phase now)
{
    put(m, number, GR_MESSAGE_LEAVE);
    be_over(m, number, now);
}

static void renew(model *m, int number)
{
    m->now.members[number].phase = PHASE_ASKING;
    m->now.members[number].change = false;
    put(m, number, GR_MESSAGE_RENEW);
}

static void seek(model *m, int number)
{
    member *of = &m->now.members[number];
    if (of->history.committed == 0 || of->placed == 0) {
        be_over(m, number, PHASE_ENDED);
        return;
    }
    forget_words(of);
    of->phase = PHASE_SEEKING;
    of->at = of->silent = 0;
    of->cut = of->change = false;
}

static void hear_down(model *m, int number)
{
    member *of = &m->now.members[number];
    word w = of->down[0];
    of->down_count--;
    memmove(of->down, of->down + 1, of->down_count * sizeof of->down[0]);
    memset(&of->down[of->down_count], 0, sizeof of->down[0]);
    gr_status failure = (gr_status) - (int)w.failure;
    if (w.kind == GR_MESSAGE_HISTORY) {
        of->history = w.history;
        if (w.history.committed == m->now.last && w.history.former_set == 0) {
            m->now.settled |= (uint8_t)(1 << number);
        }
    } else if (w.kind == GR_MESSAGE_CHANGE) { /* else it is about an old generation */
        of->change = of->phase == PHASE_RUNNING;
    } else if (w.kind == GR_MESSAGE_DISMISS) {
        leave(m, number, PHASE_LEFT);
    } else if (w.kind == GR_MESSAGE_FAIL && gr_status_scope(failure) != GR_SCOPE_PEER) {
        leave(m, number, PHASE_ENDED);
    } else if (w.kind == GR_MESSAGE_FAIL) {
        if (of->phase != PHASE_ASKING) {
            renew(m, number);
        }
    } else if (w.kind == GR_MESSAGE_ASSIGN && of->phase == PHASE_ASKING) {
        of->phase = PHASE_CALLED;
        of->number = w.number;
        of->size = w.set;
        put(m, number, GR_MESSAGE_HELLO);
    } else if (w.kind == GR_MESSAGE_MEMBERS && of->phase == PHASE_CALLED) {
        if (of->joining && (w.set & m->now.last_set)) { /* it learns of it, or has a checkpoint */
            m->now.last_set |= (uint8_t)(1 << number);
        }
        of->phase = PHASE_RUNNING;
        of->joining = false;
        of->set = of->placed = w.set;
        put(m, number, GR_MESSAGE_READY);
        if (w.number != of->number || !(w.set >> number & 1) || w.set != of->history.formed_set) {
            (void)search_wrong(
                m->why, "member %d is told of another generation than that of its rank assignment",
                number);
        }
    } else {
        (void)search_wrong(m->why, "member %d in phase %d is told message %d", number, of->phase,
                           w.kind);
    }
}

static void hear_up(model *m, int number, int c)
{
    pipe *from = &m->now.members[number].up[c];
    uint8_t kind = from->kinds[0];
    gr_hello hello = {.world_size = from->sizes[0],
                      .pid = 1,
                      .generation = large(from->numbers[0]),
                      .member = {.host = (uint64_t)number}};
    const gr_history history = stretch(&from->history);
    gr_diag failure = {.status = GR_E_TIMEOUT, .text = "it gave up"};
    from->count--;
    memmove(from->kinds, from->kinds + 1, from->count);
    memmove(from->sizes, from->sizes + 1, from->count);
    memmove(from->numbers, from->numbers + 1, from->count * sizeof from->numbers[0]);
    from->kinds[from->count] = from->sizes[from->count] = 0;
    from->numbers[from->count] = 0;
    gr_status status = GR_OK;
    switch (kind) {
    case GR_MESSAGE_HELLO:
        status = gr_membership_hello(&m->rules[c], number, &hello);
        break;
    case GR_MESSAGE_READY:
        status = gr_membership_ready(&m->rules[c], number, hello.generation);
        break;
    case GR_MESSAGE_RENEW:
        status = gr_membership_renew(&m->rules[c], number);
        break;
    case GR_MESSAGE_LEAVE:
        status = gr_membership_leave(&m->rules[c], number);
        break;
    case GR_MESSAGE_FAIL:
        status = gr_membership_fail(&m->rules[c], number, &failure);
        break;
    case GR_MESSAGE_HISTORY:
        from->history = (small_history){0};
        if (gr_membership_switch(&m->rules[c], number, &history) != GR_OK) {
            from->count = 0; /* it came too late, and is closed */
            memset(from, 0, sizeof *from);
            member *of = &m->now.members[number];
            of->cut = of->cut || of->at == c + 1;
        }
        break;
    default:
        gr_membership_lost(&m->rules[c], number, "its connection broke");
        break;
    }
    if (status != GR_OK && m->rules[c].members[number].state != GR_MEMBER_LOST) {
        (void)search_wrong(m->why, "message %d of member %d is refused", kind, number);
    }
}

/* ---- Failover ------------------------------------------------------------------------------ */

/* -1: none is left, which cannot be. */
static int next_in_line(const model *m, int number)
{
    const member *of = &m->now.members[number];
    int left = of->placed & of->history.accepted_set & ~of->silent;
    return left == 0 ? -1 : __builtin_ctz((unsigned)left);
}

/* Nobody listens there. */
static bool is_gone(const model *m, int number)
{
    uint8_t in = m->now.members[number].phase;
    return in == PHASE_DEAD || (in >= PHASE_LEFT && !serves(m, number + 1));
}

static void take_over(model *m, int number)
{
    int c = number + 1;
    m->now.begun |= (uint8_t)(1 << c);
    for (int i = 0; i < m->size; i++) {
        if (m->now.members[number].silent >> i & 1) {
            gr_membership_ended(&m->rules[c], i);
        }
    }
}

static void connect_to(model *m, int number, int c)
{
    member *of = &m->now.members[number];
    if (of->up[c].count > 0 || m->rules[c].members[number].state != GR_MEMBER_ABSENT) {
        be_over(m, number, PHASE_ENDED); /* it is told that it comes too late */
        return;
    }
    of->at = (uint8_t)(c + 1);
    of->phase = PHASE_ASKING;
    of->silent = 0;
    of->up[c].history = of->history;
    put(m, number, GR_MESSAGE_HISTORY);
}

static bool can_seek(const model *m, int number)
{
    int next = next_in_line(m, number);
    return m->now.members[number].phase == PHASE_SEEKING &&
           (next == number || next < 0 || is_gone(m, next) || serves(m, next + 1));
}

static void try_next(model *m, int number)
{
    int next = next_in_line(m, number);
    member *of = &m->now.members[number];
    if (next < 0) {
        (void)search_wrong(m->why, "member %d has nobody to ask, not even itself", number);
    } else if (next == number || serves(m, next + 1)) {
        if (!serves(m, next + 1)) {
            take_over(m, number);
        }
        connect_to(m, number, next + 1);
    } else {
        of->silent |= (uint8_t)(1 << next);
    }
}

static void die(model *m, int c)
{
    m->now.dead |= (uint8_t)(1 << c);
    for (int i = 0; i < m->size; i++) {
        member *of = &m->now.members[i];
        memset(&of->up[c], 0, sizeof of->up[c]);
        of->cut = of->cut || (of->at == c + 1 && of->phase < PHASE_LEFT);
    }
}

static void crash(model *m, int number)
{
    hang_up(m, number);
    be_over(m, number, PHASE_DEAD);
    die(m, number + 1);
}

static void cut(model *m, int number, bool all_of_it)
{
    member *of = &m->now.members[number];
    if (all_of_it) {
        pipe *up = &of->up[of->at - 1];
        memset(up, 0, sizeof *up);
        forget_words(of);
    }
    hang_up(m, number);
    m->now.cuts--;
    m->now.torn = 1;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static search_class class_of(int event)
{
    int kind = event / MEMBERS_MAX;
    return kind < EVENT_SKIP ? SEARCH_BY_ITSELF : kind < EVENT_CRASH ? SEARCH_TIMER : SEARCH_FAULT;
}

static bool can_notice(const model *m, int number)
{
    const member *of = &m->now.members[number];
    for (int i = 0; i < m->size && of->phase == PHASE_RUNNING; i++) {
        const member *other = &m->now.members[i];
        bool in = (other->phase == PHASE_RUNNING || other->phase == PHASE_CALLED) &&
                  other->number == of->number;
        if ((of->set >> i & 1) && !in) {
            return true;
        }
    }
    return false;
}

static bool can_skip(const model *m, int number)
{
    int next = next_in_line(m, number);
    return m->now.members[number].phase == PHASE_SEEKING && next >= 0 && next != number;
}

static bool can_be_cut(const model *m, int number)
{
    const member *of = &m->now.members[number];
    return of->phase < PHASE_SEEKING && of->at > 0 && !of->cut && of->at != number + 2 &&
           m->now.cuts > 0;
}

static bool gathers(const model *m, int number)
{
    return serves(m, number + 1) && gr_membership_gathers(&m->rules[number + 1]) &&
           m->rules[number + 1].quorum->known.committed != 0;
}

static bool is_free(const model *m, int number, int c)
{
    return m->now.members[number].up[c].count == 0 && gr_membership_is_free(&m->rules[c], number);
}

/* It gets the lowest number that is free. */
static bool can_join(const model *m, int number, int c)
{
    const member *of = &m->now.members[number];
    bool first = m->now.joins > 0 && c <= m->size && serves(m, c) && of->phase >= PHASE_LEFT;
    for (int i = 0; i < number && first; i++) {
        first = !is_free(m, i, c);
    }
    return first && is_free(m, number, c);
}

static void join(model *m, int number, int c)
{
    member *of = &m->now.members[number];
    m->now.joins--;
    m->now.begun &= (uint8_t) ~(1 << (number + 1)); /* another process, whose own has not begun */
    m->now.dead &= (uint8_t) ~(1 << (number + 1));
    gr_membership_reserve(&m->rules[c], number);
    of->at = (uint8_t)(c + 1);
    of->joining = true;
    renew(m, number);
}

static bool can(void *model_arg, int event)
{
    const model *m = model_arg;
    int kind = event / MEMBERS_MAX, number = event % MEMBERS_MAX;
    const member *of = &m->now.members[number];
    if (number >= m->size) {
        return false;
    }
    if (kind < EVENT_HEAR_DOWN) {
        return kind <= m->size && of->up[kind].count > 0 && serves(m, kind);
    }
    if (kind >= EVENT_PROBE && kind < EVENT_SKIP) {
        int other = kind - EVENT_PROBE;
        return other < m->size && gathers(m, number) && is_gone(m, other) &&
               m->rules[number + 1].members[other].state == GR_MEMBER_ABSENT;
    }
    if (kind >= EVENT_JOIN) {
        return can_join(m, number, kind - EVENT_JOIN);
    }
    switch (kind) {
    case EVENT_CHANGE:
        return of->phase == PHASE_RUNNING && of->change;
    case EVENT_HEAR_DOWN:
        return of->down_count > 0 && of->phase < PHASE_SEEKING;
    case EVENT_NOTICE:
        return can_notice(m, number);
    case EVENT_NOTICE_CUT:
        return of->cut && of->phase < PHASE_SEEKING;
    case EVENT_SEEK:
        return can_seek(m, number);
    case EVENT_SKIP:
        return can_skip(m, number);
    case EVENT_GATHERED:
        return gathers(m, number);
    case EVENT_CRASH:
        return m->now.crashes > 0 && !is_gone(m, number);
    case EVENT_END_FIRST:
        return number == 0 && m->now.ends > 0;
    case EVENT_CUT:
    case EVENT_LOSE:
        return can_be_cut(m, number);
    case EVENT_HURRY_SKIP:
        return m->now.hurries > 0 && can_skip(m, number);
    case EVENT_HURRY_GATHERED:
        return m->now.hurries > 0 && gathers(m, number);
    default:
        return m->now.leaves > 0 && of->phase == PHASE_RUNNING;
    }
}

static void happen(void *model_arg, int event)
{
    model *m = model_arg;
    int kind = event / MEMBERS_MAX, number = event % MEMBERS_MAX;
    member *of = &m->now.members[number];
    if (kind < EVENT_HEAR_DOWN) {
        hear_up(m, number, kind);
        return;
    }
    if (kind >= EVENT_PROBE && kind < EVENT_SKIP) {
        gr_membership_ended(&m->rules[number + 1], kind - EVENT_PROBE);
        return;
    }
    if (kind >= EVENT_JOIN) {
        join(m, number, kind - EVENT_JOIN);
        return;
    }
    if (kind == EVENT_HURRY_SKIP || kind == EVENT_HURRY_GATHERED) {
        m->now.hurries--;
        m->now.torn = 1;
    }
    switch (kind) {
    case EVENT_HEAR_DOWN:
        hear_down(m, number);
        break;
    case EVENT_NOTICE:
    case EVENT_CHANGE:
        renew(m, number);
        break;
    case EVENT_NOTICE_CUT:
        seek(m, number);
        break;
    case EVENT_SEEK:
        try_next(m, number);
        break;
    case EVENT_SKIP:
    case EVENT_HURRY_SKIP:
        of->silent |= (uint8_t)(1 << next_in_line(m, number));
        break;
    case EVENT_GATHERED:
    case EVENT_HURRY_GATHERED:
        gr_membership_gathered(&m->rules[number + 1]);
        break;
    case EVENT_CRASH:
        m->now.crashes--;
        crash(m, number);
        break;
    case EVENT_END_FIRST:
        m->now.ends--;
        die(m, 0);
        break;
    case EVENT_CUT:
    case EVENT_LOSE:
        cut(m, number, kind == EVENT_LOSE);
        break;
    default:
        m->now.leaves--;
        leave(m, number, PHASE_LEFT);
        break;
    }
}

static void print_event(int event)
{
    static const char *const names[] = {"hears",
                                        "notices that somebody is gone",
                                        "notices that it is cut off",
                                        "asks the next in line",
                                        "changes its generation",
                                        "",
                                        "",
                                        "",
                                        "",
                                        "has waited long for the next in line",
                                        "has waited long for those that have not come",
                                        "crashes",
                                        "sees the first coordinator die",
                                        "is cut off from its coordinator",
                                        "is cut off, and what was on the way is lost",
                                        "has no patience with the next in line",
                                        "has no patience with those that have not come",
                                        "leaves"};
    int kind = event / MEMBERS_MAX, number = event % MEMBERS_MAX;
    if (kind < EVENT_HEAR_DOWN) {
        print_error("  member %d is heard by coordinator %d\n", number, kind);
    } else if (kind >= EVENT_JOIN) {
        print_error("  member %d joins at coordinator %d\n", number, kind - EVENT_JOIN);
    } else if (kind >= EVENT_PROBE && kind < EVENT_SKIP) {
        print_error("  member %d finds that member %d has ended\n", number, kind - EVENT_PROBE);
    } else {
        print_error("  member %d %s\n", number, names[kind - EVENT_HEAR_DOWN]);
    }
}

/* ---- What must hold -------------------------------------------------------------------------- */

/* Do all of its members run in this generation? Then they may take a step. */
static bool is_complete(const model *m, int number)
{
    const member *of = &m->now.members[number];
    for (int i = 0; i < m->size; i++) {
        const member *other = &m->now.members[i];
        if ((of->set >> i & 1) && (other->phase != PHASE_RUNNING || other->number != of->number)) {
            return false;
        }
    }
    return of->phase == PHASE_RUNNING;
}

static bool agrees(void *model_arg)
{
    model *m = model_arg;
    int first = -1;
    for (int i = 0; i < m->size; i++) {
        const member *of = &m->now.members[i];
        if (!is_complete(m, i)) {
            continue;
        }
        if (first >= 0 && m->now.members[first].number != of->number) {
            return search_wrong(m->why, "members %d and %d both go on, in generations of their own",
                                first, i);
        }
        first = i;
        if (of->number != m->now.last) {
            if (large(of->number) <= large(m->now.last) || !(of->set & m->now.last_set)) {
                return search_wrong(
                    m->why, "member %d goes on without what was done in the last generation", i);
            }
            m->now.last = of->number;
            bool grows = __builtin_popcount(of->set) > __builtin_popcount(m->now.last_formed);
            m->now.last_former = grows ? m->now.last_formed : 0;
            m->now.last_set = m->now.last_formed = of->set;
            m->now.settled = 0;
        }
    }
    return m->why[0] == '\0';
}

/* It waits for a place: none is to be had. */
static bool may_wait(model *m, int number)
{
    const member *of = &m->now.members[number];
    if (of->phase != PHASE_ASKING || !of->joining || !serves(m, of->at - 1)) {
        return false;
    }
    for (int i = 0; i < m->size; i++) {
        const member *other = &m->now.members[i];
        if (is_complete(m, i) && other->at == of->at) {
            return __builtin_popcount(other->set) >= m->want;
        }
    }
    return false;
}

/* Most of the last generation live (and half of the one before it, unless one knows that it is not
 * needed any more), and nobody can have gone on without them: no other one has been announced. */
static bool must_go_on(const model *m)
{
    unsigned alive = 0, former = m->now.last_former, formed = m->now.last_formed;
    for (int i = 0; i < m->size; i++) {
        alive |= (unsigned)(m->now.members[i].phase != PHASE_DEAD) << i;
    }
    bool with_former = (alive & m->now.settled) != 0 ||
                       2 * __builtin_popcount(alive & former) >= __builtin_popcount(former);
    return !m->now.torn && m->now.announced == m->now.last && with_former &&
           2 * __builtin_popcount(alive & formed) > __builtin_popcount(formed);
}

static bool rests(void *model_arg)
{
    model *m = model_arg;
    int alive = 0, left = 0;
    for (int i = 0; i < m->size; i++) {
        const member *of = &m->now.members[i];
        left += of->phase == PHASE_LEFT;
        alive += i < m->first && (of->phase < PHASE_LEFT || of->phase == PHASE_ENDED);
        if (of->phase < PHASE_LEFT && !is_complete(m, i) && !may_wait(m, i)) {
            return search_wrong(m->why, "nothing happens any more, and member %d is in phase %d", i,
                                of->phase);
        }
        if (is_complete(m, i) && of->history.former_set != 0) {
            return search_wrong(m->why, "member %d does not know that all others know of them", i);
        }
    }
    for (int i = 0; i < m->size && left == 0; i++) {
        bool here = !m->now.torn && !m->now.came && i < m->first && 2 * alive > m->first;
        here = here || (must_go_on(m) && (m->now.last_formed >> i & 1));
        if (m->now.members[i].phase == PHASE_ENDED && here) {
            return search_wrong(m->why, "most live and reach each other, and member %d has ended",
                                i);
        }
    }
    return true;
}

static const char *why(void *model_arg)
{
    return ((model *)model_arg)->why;
}

/* ---- Face ------------------------------------------------------------------------------------ */

static void begin(model *m, bool early)
{
    m->now.begun = 1;
    m->now.last_set = (uint8_t)((1 << m->first) - 1); /* all begin alike */
    for (int i = m->first; i < m->size; i++) {
        m->now.members[i].phase = PHASE_DEAD;
    }
    for (int i = 0; i < m->first; i++) {
        member *of = &m->now.members[i];
        of->phase = PHASE_CALLED;
        of->at = 1;
        of->number = 1;
        of->size = (uint8_t)m->first;
        put(m, i, GR_MESSAGE_HELLO);
        hear_up(m, i, 0);
    }
    for (int i = 0; i < m->first && !early; i++) {
        hear_down(m, i);
        hear_down(m, i);
        hear_up(m, i, 0);
    }
}

void failover_explore(const failover_setting *with)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->first = with->size;
    m->size = with->numbers > 0 ? with->numbers : with->size;
    m->want = with->want > 0 ? with->want : with->size;
    for (int c = 0; c <= m->size; c++) {
        m->tellers[c] = (teller){.m = m, .index = c};
        const gr_membership_config config = {.world_size = m->size,
                                             .first_size = m->first,
                                             .members_min = 1,
                                             .failover = true,
                                             .successor = c - 1,
                                             .send = send_word,
                                             .send_arg = &m->tellers[c]};
        assert_int_equal(gr_membership_init(&m->rules[c], &config, NULL), GR_OK);
        gr_membership_set_target_size(&m->rules[c], m->want);
        keep_one(&m->rules[c], m->size, &m->fresh[c]);
    }
    begin(m, with->early);
    m->now.crashes = with->crashes;
    m->now.ends = with->ends;
    m->now.cuts = with->cuts;
    m->now.hurries = with->hurries;
    m->now.leaves = with->leaves;
    m->now.joins = with->joins;
    m->now.torn = with->early; /* who had heard nothing of the others cannot find them */
    const search_model all = {.model = m,
                              .event_count = EVENT_KINDS * MEMBERS_MAX,
                              .state_bytes = sizeof m->now,
                              .keep = keep,
                              .restore = restore,
                              .class_of = class_of,
                              .can = can,
                              .happen = happen,
                              .agrees = agrees,
                              .rests = rests,
                              .why = why,
                              .print_event = print_event};
    search_counts counts;
    assert_true(agrees(m));
    bool right = search_all(&all, &counts);
    print_message("%d members%s: up to %u crashes, %u deaths of the first coordinator, %u cut off, "
                  "%u without patience, %u leave, %u join: %u states, %u at rest\n",
                  m->first, with->early ? " from the start" : "", with->crashes, with->ends,
                  with->cuts, with->hurries, with->leaves, with->joins, counts.states,
                  counts.rests);
    for (int c = 0; c <= m->size; c++) {
        gr_membership_fini(&m->rules[c]);
    }
    free(m);
    assert_true(right);
}
