/* SPDX-License-Identifier: Apache-2.0 */
#include "support_membership.h"

#include "base/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { END_OF_STREAM = GR_MESSAGE_KIND_END };

const char *model_phase_name(int of)
{
    static const char *const names[] = {"outside",  "called", "wiring", "running",
                                        "renewing", "left",   "ended",  "dead"};
    return names[of];
}

const char *model_event_name(event_kind kind)
{
    static const char *const names[] = {"calls in",
                                        "is heard",
                                        "hears",
                                        "is wired",
                                        "notices that somebody is gone",
                                        "notices that it is cut off",
                                        "leaves its generation for another one",
                                        "is buried",
                                        "leaves",
                                        "crashes",
                                        "vanishes",
                                        "is cut off from the coordinator",
                                        "loses a link",
                                        "gives up",
                                        "is invited",
                                        "(and one more) is the number that is wanted"};
    return names[kind];
}

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

bool model_alive(const model_member *of)
{
    return of->phase <= PHASE_RENEWING;
}

/* ---- What the coordinator says --------------------------------------------------------------- */

/* Those that know the job come in the order of their last ranks, then newcomers by number. */
static bool stands_before(const model *m, int one, int other)
{
    const model_member *a = &m->now.members[one], *b = &m->now.members[other];
    if (a->newcomer != b->newcomer) {
        return b->newcomer;
    }
    return a->newcomer ? one < other : a->rank < b->rank;
}

static int expected_rank(const model *m, int number, int *all_out)
{
    int before = 0, all = 0;
    for (int i = 0; i < m->size; i++) {
        bool in = m->rules.members[i].state == GR_MEMBER_JOINED || i == number;
        before += in && stands_before(m, i, number);
        all += in;
    }
    *all_out = all;
    return before;
}

static void check_seat(model *m, int number, const gr_seat *seat)
{
    int all, before = expected_rank(m, number, &all);
    all = all < m->rules.members_want ? all : m->rules.members_want;
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
        if (m->rules.members[number].state != GR_MEMBER_JOINED ||
            m->rules.members[number].rank != rank) {
            (void)wrong(m, "member %d is named as rank %d", number, rank);
        }
        set |= (uint8_t)(1 << number);
    }
    uint8_t *named = &m->now.sets[said->generation % MODEL_GENERATIONS_MAX];
    if (*named != 0 && *named != set) {
        (void)wrong(m, "generation %llu has two lists of members",
                    (unsigned long long)said->generation);
    }
    *named = set;
    return set;
}

/* Who goes is one too many, or a newcomer to what is over. */
static void check_dismissal(model *m, int number)
{
    int all;
    bool late = m->rules.over && m->now.members[number].newcomer;
    if (!late && expected_rank(m, number, &all) < m->rules.members_want) {
        (void)wrong(m, "member %d is dismissed, and wanted", number);
    }
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
    case GR_MESSAGE_CHANGE:
        if (m->rules.members[number].stage != GR_STAGE_READY) {
            (void)wrong(m, "member %d is asked to change, and does not run", number);
        }
        break;
    case GR_MESSAGE_DISMISS:
        check_dismissal(m, number);
        break;
    default:
        w.a = (uint8_t)-said->failure->status;
        break;
    }
    if (to->cut || !model_alive(to)) {
        return; /* nobody reads it */
    }
    if (to->down_count == MODEL_QUEUE_MAX) {
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
    if (from->up_count == MODEL_QUEUE_MAX) {
        (void)wrong(m, "member %d says more and more", number);
        return;
    }
    from->up[from->up_count++] = (uint8_t)kind;
}

static void call_in(model *m, int number, int from, int rank, int size)
{
    model_member *of = &m->now.members[number];
    of->phase = PHASE_CALLED;
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
    of->phase = PHASE_ENDED;
    of->down_count = 0;
}

static void renew(model *m, int number)
{
    if (!m->elastic) {
        end(m, number);
        return;
    }
    m->now.members[number].phase = PHASE_RENEWING;
    m->now.members[number].change = false;
    m->now.members[number].set = 0;
    send_up(m, number, GR_MESSAGE_RENEW);
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

/* From outside: a newcomer waits for a seat. */
static void come(model *m, int number)
{
    model_member *of = &m->now.members[number];
    if (of->newcomer) {
        of->phase = PHASE_RENEWING;
        send_up(m, number, GR_MESSAGE_RENEW);
    } else {
        call_in(m, number, 1, number, m->first_size);
    }
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
        if (of->phase != PHASE_RENEWING) { /* else it is about the old generation */
            renew(m, number);
        }
    } else if (w.kind == GR_MESSAGE_FAIL) {
        end(m, number);
    } else if (w.kind == GR_MESSAGE_CHANGE) {
        of->change = of->phase == PHASE_RUNNING;
    } else if (w.kind == GR_MESSAGE_DISMISS && of->phase == PHASE_RENEWING) {
        lose_connection(m, number, false);
        of->phase = PHASE_LEFT;
    } else if (w.kind == GR_MESSAGE_SEAT && of->phase == PHASE_RENEWING) {
        call_in(m, number, w.a, w.b, w.c);
    } else if (w.kind == GR_MESSAGE_MEMBERS && of->phase == PHASE_CALLED) {
        of->phase = PHASE_WIRING;
        of->set = w.b;
        m->now.entered |= (uint8_t)(1 << number);
        if (w.a != of->from || __builtin_popcount(w.b) != of->size) {
            (void)wrong(m, "member %d is told of another generation than that of its seat", number);
        }
    } else {
        (void)wrong(m, "member %d, %s, is told message %d", number, model_phase_name(of->phase),
                    w.kind);
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

static void die(model *m, int number, bool all_of_it)
{
    if (m->now.members[number].phase != PHASE_OUTSIDE) {
        lose_connection(m, number, all_of_it);
    }
    m->now.members[number].phase = PHASE_DEAD;
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

static void invite(model *m, int number)
{
    m->now.members[number] = (model_member){.newcomer = true};
    m->now.invites--;
    gr_membership_invite(&m->rules, number);
    m->rules.hellos[number].member.host = (uint64_t)number; /* as in every other state */
}

void model_happen(model *m, event_kind kind, int number)
{
    model_member *of = &m->now.members[number];
    switch (kind) {
    case EVENT_CALL_IN:
        come(m, number);
        break;
    case EVENT_HEAR_UP:
        hear_up(m, number);
        break;
    case EVENT_HEAR_DOWN:
        hear_down(m, number);
        break;
    case EVENT_WIRE:
        of->phase = PHASE_RUNNING;
        of->was_ready = true;
        of->newcomer = false;
        send_up(m, number, GR_MESSAGE_READY);
        break;
    case EVENT_BREAK:
        m->now.breaks--;
        renew(m, number);
        break;
    case EVENT_NOTICE:
    case EVENT_CHANGE:
        renew(m, number);
        break;
    case EVENT_LEAVE:
        m->now.leaves--;
        send_up(m, number, GR_MESSAGE_LEAVE);
        of->phase = PHASE_LEFT;
        break;
    case EVENT_CRASH:
    case EVENT_VANISH:
        die(m, number, kind == EVENT_VANISH);
        break;
    case EVENT_BURY:
        bury(m, number);
        break;
    case EVENT_CUT:
        m->now.cuts--;
        lose_connection(m, number, true);
        break;
    case EVENT_SURRENDER:
        m->now.surrenders--;
        end(m, number);
        break;
    case EVENT_INVITE:
        invite(m, number);
        break;
    case EVENT_WANT:
        m->now.wants--;
        gr_membership_want(&m->rules, number + 1);
        break;
    default: /* EVENT_NOTICE_CUT: it cannot know who goes on */
        end(m, number);
        break;
    }
    if (!model_alive(of)) { /* nothing distinguishes the dead */
        of->from = of->set = 0;
        of->change = false;
        gr_member_state state = m->rules.members[number].state;
        if (state != GR_MEMBER_JOINED && state != GR_MEMBER_INVITED) { /* else it is dealt a seat */
            of->rank = 0;
            of->newcomer = false;
        }
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
        bool in = other->phase == PHASE_CALLED || other->phase == PHASE_WIRING ||
                  other->phase == PHASE_RUNNING;
        set |= (uint8_t)((in && other->from == of->from) << i);
    }
    return set;
}

/* A link can be made with whoever has begun to; a member that has gone since may have been linked
 * before it went. Then the next one notices that it is gone. */
static bool can_wire(const model *m, int number)
{
    const model_member *of = &m->now.members[number];
    return of->phase == PHASE_WIRING && (m->now.entered & of->set) == of->set;
}

/* A peer that is connected, or connects to us, is seen to go. Whoever waits for a peer that is to
 * connect sees nothing: only the coordinator knows. */
static bool can_notice(const model *m, int number)
{
    const model_member *of = &m->now.members[number];
    if (of->phase != PHASE_WIRING && of->phase != PHASE_RUNNING) {
        return false;
    }
    uint8_t gone = of->set & (uint8_t)~present(m, number);
    return (of->phase == PHASE_RUNNING ? gone : gone & (uint8_t)((1 << number) - 1)) != 0;
}

bool model_can(const model *m, event_kind kind, int number)
{
    const model_member *of = &m->now.members[number];
    bool called = model_alive(of) && of->phase != PHASE_OUTSIDE;
    switch (kind) {
    case EVENT_CALL_IN:
        return of->phase == PHASE_OUTSIDE;
    case EVENT_HEAR_UP:
        return of->up_count > 0;
    case EVENT_HEAR_DOWN:
        return of->down_count > 0 && called &&
               (of->phase != PHASE_RUNNING || of->down[0].kind == GR_MESSAGE_CHANGE);
    case EVENT_WIRE:
        return can_wire(m, number);
    case EVENT_NOTICE:
        return can_notice(m, number);
    case EVENT_NOTICE_CUT:
        return called && of->cut;
    case EVENT_CHANGE:
        return of->phase == PHASE_RUNNING && of->change;
    case EVENT_BURY:
        return (of->phase == PHASE_DEAD || of->phase == PHASE_ENDED) && !of->buried;
    case EVENT_LEAVE:
        return of->phase == PHASE_RUNNING && m->now.leaves > 0;
    case EVENT_CRASH:
        return model_alive(of) && m->now.crashes > 0;
    case EVENT_VANISH:
        return called && of->up_count > 0 && !of->cut && m->now.crashes > 0;
    case EVENT_CUT:
        return called && !of->cut && m->now.cuts > 0;
    case EVENT_BREAK:
        return (of->phase == PHASE_WIRING || of->phase == PHASE_RUNNING) && of->size > 1 &&
               m->now.breaks > 0;
    case EVENT_INVITE:
        return m->now.invites > 0 && !model_alive(of) && of->up_count == 0 &&
               (of->buried || of->phase == PHASE_LEFT) && !m->rules.over;
    case EVENT_WANT:
        return m->now.wants > 0 && number + 1 != m->rules.members_want &&
               number + 1 >= m->rules.members_min && !m->rules.over;
    default: /* a newcomer waits as long as it takes */
        return (of->phase == PHASE_CALLED || of->phase == PHASE_WIRING ||
                (of->phase == PHASE_RENEWING && of->from > 0)) &&
               m->now.surrenders > 0;
    }
}

/* ---- What must hold -------------------------------------------------------------------------- */

/* Always: whoever is in the same generation has the same list. */
bool model_agrees(model *m)
{
    for (int i = 0; i < m->size; i++) {
        const model_member *of = &m->now.members[i];
        if (of->phase != PHASE_WIRING && of->phase != PHASE_RUNNING) {
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
bool model_rests(model *m)
{
    int running = 0, waiting = 0;
    for (int i = 0; i < m->size; i++) {
        const model_member *of = &m->now.members[i];
        if (!model_alive(of)) {
            continue;
        }
        if (ends_as_a_whole(m)) {
            continue;
        }
        if (of->phase == PHASE_RENEWING && of->newcomer) {
            waiting++;
            continue;
        }
        if (of->phase != PHASE_RUNNING) {
            return wrong(m, "nothing happens any more, and member %d is %s", i,
                         model_phase_name(of->phase));
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
    bool over = m->rules.over;
    if (waiting > 0 && (running == 0 || (running < m->rules.members_want && !over))) {
        return wrong(m, "nothing happens any more, and newcomers wait");
    }
    if (running > m->rules.members_want && !over) {
        return wrong(m, "%d members go on, more than are wanted", running);
    }
    return true;
}

/* ---- Life ------------------------------------------------------------------------------------ */

bool model_init(model *m, int size, int first_size, int members_min)
{
    memset(m, 0, sizeof *m);
    m->size = size;
    m->first_size = first_size;
    m->elastic = members_min < size;
    for (int i = first_size; i < size; i++) {
        m->now.members[i].phase = PHASE_LEFT;
    }
    const gr_membership_config config = {.world_size = size,
                                         .first_size = first_size,
                                         .members_min = members_min,
                                         .say = say,
                                         .say_arg = m};
    return gr_membership_init(&m->rules, &config, NULL) == GR_OK;
}

void model_fini(model *m)
{
    gr_membership_fini(&m->rules);
}

void model_restore(model *m, const model_state *from)
{
    m->now = *from;
    memcpy(&m->rules, from->rules, sizeof from->rules);
    m->rules.failure.status = from->failure;
    memcpy(m->rules.members, from->standings, (size_t)m->size * sizeof from->standings[0]);
}

void model_keep(model *m)
{
    memcpy(m->now.rules, &m->rules, sizeof m->now.rules);
    m->now.failure = m->rules.failure.status;
    memcpy(m->now.standings, m->rules.members, (size_t)m->size * sizeof m->now.standings[0]);
}
