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
                                        "changes its generation",
                                        "is buried",
                                        "leaves",
                                        "crashes",
                                        "vanishes",
                                        "is cut off from the coordinator",
                                        "loses a link",
                                        "gives up",
                                        "is invited",
                                        "(and one more) is the number that is wanted",
                                        "is released"};
    return names[kind];
}

bool model_alive(const model_member *of)
{
    return of->phase <= PHASE_RENEWING;
}

/* ---- What the coordinator says --------------------------------------------------------------- */

static bool is_joined(const model *m, int number)
{
    return m->rules.members[number].state == GR_MEMBER_JOINED;
}

/* Its generation, the first for it, has not come about yet, as far as the coordinator knows. */
static bool is_new(const model *m, int number)
{
    const gr_standing *of = &m->rules.members[number];
    bool ready = of->stage == GR_STAGE_READY && of->assignment == m->rules.generation;
    return m->now.members[number].joining && !ready;
}

/* May those that are released go? Members are left that know the job, and enough of all. */
static bool may_go(const model *m)
{
    int knowing = 0, staying = 0;
    for (int i = 0; i < m->size; i++) {
        bool stays = is_joined(m, i) && !m->rules.members[i].released;
        staying += stays;
        knowing += stays && !is_new(m, i);
    }
    return knowing > 0 && staying >= m->rules.members_min;
}

static int count_released(const model *m)
{
    int released = 0;
    for (int i = 0; i < m->size; i++) {
        released += is_joined(m, i) && m->rules.members[i].released;
    }
    return released;
}

static int most_wanted(const model *m)
{
    return m->rules.members_want + (may_go(m) ? 0 : count_released(m));
}

/* Those that know the job come in the order of their last ranks, then joining workers by number,
 * and behind all others who may go. */
static bool stands_before(const model *m, int one, int other)
{
    bool one_goes = m->rules.members[one].released, other_goes = m->rules.members[other].released;
    if (one_goes != other_goes && may_go(m)) {
        return other_goes;
    }
    bool one_is_new = is_new(m, one), other_is_new = is_new(m, other);
    if (one_is_new != other_is_new) {
        return other_is_new;
    }
    return one_is_new ? one < other : m->rules.members[one].rank < m->rules.members[other].rank;
}

static int expected_rank(const model *m, int number, int *all_out)
{
    int before = 0, all = 0;
    for (int i = 0; i < m->size; i++) {
        bool in = is_joined(m, i) || i == number;
        before += in && stands_before(m, i, number);
        all += in;
    }
    *all_out = all;
    return before;
}

static void check_assignment(model *m, int number, const gr_assignment *assignment)
{
    int all, before = expected_rank(m, number, &all);
    all -= may_go(m) ? count_released(m) : 0;
    all = all < most_wanted(m) ? all : most_wanted(m);
    if (assignment->rank != (uint32_t)before || assignment->world_size != (uint32_t)all) {
        (void)search_wrong(m->why, "member %d is rank %u of %u, and should be %d of %d", number,
                           assignment->rank, assignment->world_size, before, all);
    }
    if (assignment->generation <= m->now.members[number].from) {
        (void)search_wrong(m->why, "member %d has been in generation %llu already", number,
                           (unsigned long long)assignment->generation);
    }
}

static uint8_t check_members(model *m, const gr_word *said)
{
    uint8_t set = 0;
    for (int rank = 0; rank < said->size; rank++) {
        int number = (int)said->places[rank].host;
        const gr_standing *of = &m->rules.members[number];
        if (of->state != GR_MEMBER_JOINED || of->rank != rank) {
            (void)search_wrong(m->why, "member %d is named as rank %d", number, rank);
        }
        set |= (uint8_t)(1 << number);
    }
    uint8_t *named = &m->now.sets[said->generation % MODEL_GENERATIONS_MAX];
    if (*named != 0 && *named != set) {
        (void)search_wrong(m->why, "generation %llu has two lists of members",
                           (unsigned long long)said->generation);
    }
    *named = set;
    return set;
}

/* Who goes is one too many, or a joining worker to what is over: also one that was let in when the
 * others were already leaving. */
static void check_dismissal(model *m, int number)
{
    int all;
    const gr_standing *of = &m->rules.members[number];
    bool let_in = of->since > 0 && of->since == m->rules.generation;
    bool late = m->rules.over && (m->now.members[number].joining || let_in);
    if (!late && !of->released && expected_rank(m, number, &all) < m->rules.members_want) {
        (void)search_wrong(m->why, "member %d is dismissed, and wanted", number);
    }
}

static void send_word(void *model_arg, int number, const gr_word *said)
{
    model *m = model_arg;
    model_member *to = &m->now.members[number];
    word w = {.kind = (uint8_t)said->kind};
    switch (said->kind) {
    case GR_MESSAGE_ASSIGN:
        check_assignment(m, number, &said->assignment);
        m->now.entered = 0;
        w.a = (uint8_t)said->assignment.generation;
        w.b = (uint8_t)said->assignment.rank;
        w.c = (uint8_t)said->assignment.world_size;
        break;
    case GR_MESSAGE_MEMBERS:
        w.a = (uint8_t)said->generation;
        w.b = check_members(m, said);
        break;
    case GR_MESSAGE_CHANGE:
        if (m->rules.members[number].stage != GR_STAGE_READY) {
            (void)search_wrong(m->why, "member %d is asked to change, and does not run", number);
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
        (void)search_wrong(m->why, "member %d is told more and more", number);
        return;
    }
    to->down[to->down_count++] = w;
}

/* ---- What happens ---------------------------------------------------------------------------- */

/* `size` of the generation, where HELLO says it. */
static void send_up(model *m, int number, int kind, int generation, int size)
{
    model_member *from = &m->now.members[number];
    if (from->cut) {
        return;
    }
    if (from->up_count == MODEL_QUEUE_MAX) {
        (void)search_wrong(m->why, "member %d says more and more", number);
        return;
    }
    from->up[from->up_count++] =
        (word){.kind = (uint8_t)kind, .a = (uint8_t)generation, .c = (uint8_t)size};
}

static void call_in(model *m, int number, int from, int rank, int size)
{
    model_member *of = &m->now.members[number];
    of->phase = PHASE_CALLED;
    of->from = (uint8_t)from;
    of->rank = (uint8_t)rank;
    of->size = (uint8_t)size;
    send_up(m, number, GR_MESSAGE_HELLO, from, size);
}

/* As member.c: who was in a group leaves in order, who was not says why. */
static void end(model *m, int number)
{
    model_member *of = &m->now.members[number];
    send_up(m, number, of->was_ready ? GR_MESSAGE_LEAVE : GR_MESSAGE_FAIL, 0, 0);
    of->phase = PHASE_ENDED;
    of->down_count = 0;
}

static void renew(model *m, int number)
{
    if (!m->elastic) {
        end(m, number);
        return;
    }
    model_member *of = &m->now.members[number];
    of->phase = PHASE_RENEWING;
    of->change = false;
    of->set = 0;
    send_up(m, number, GR_MESSAGE_RENEW, 0, 0);
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
    send_up(m, number, END_OF_STREAM, 0, 0);
    of->cut = true;
    of->down_count = 0;
    memset(of->down, 0, sizeof of->down);
}

/* From outside: a joining worker waits for a rank assignment. */
static void come(model *m, int number)
{
    model_member *of = &m->now.members[number];
    if (of->joining) {
        of->phase = PHASE_RENEWING;
        send_up(m, number, GR_MESSAGE_RENEW, 0, 0);
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
    bool of_old = w.kind == GR_MESSAGE_CHANGE || w.kind == GR_MESSAGE_MEMBERS;
    if (of->phase == PHASE_RUNNING && w.kind == GR_MESSAGE_CHANGE) {
        of->change = true;
    } else if (of->phase == PHASE_RENEWING && of_old) {
        return; /* said before it was known that it renews */
    } else if (w.kind == GR_MESSAGE_FAIL && gr_status_scope(status) == GR_SCOPE_PEER) {
        if (of->phase != PHASE_RENEWING) { /* else it is about the old generation */
            renew(m, number);
        }
    } else if (w.kind == GR_MESSAGE_FAIL) {
        end(m, number);
    } else if (w.kind == GR_MESSAGE_DISMISS && of->phase == PHASE_RENEWING) {
        lose_connection(m, number, false);
        of->phase = PHASE_LEFT;
    } else if (w.kind == GR_MESSAGE_ASSIGN && of->phase == PHASE_RENEWING) {
        call_in(m, number, w.a, w.b, w.c);
    } else if (w.kind == GR_MESSAGE_MEMBERS && of->phase == PHASE_CALLED) {
        of->phase = PHASE_WIRING;
        of->set = w.b;
        m->now.entered |= (uint8_t)(1 << number);
        if (w.a != of->from || __builtin_popcount(w.b) != of->size) {
            (void)search_wrong(
                m->why, "member %d is told of another generation than that of its rank assignment",
                number);
        }
    } else {
        (void)search_wrong(m->why, "member %d, %s, is told message %d", number,
                           model_phase_name(of->phase), w.kind);
    }
}

static void hear_up(model *m, int number)
{
    model_member *of = &m->now.members[number];
    uint8_t kind = of->up[0].kind, generation = of->up[0].a, size = of->up[0].c;
    of->up_count--;
    memmove(of->up, of->up + 1, of->up_count * sizeof of->up[0]);
    of->up[of->up_count] = (word){0};
    gr_hello hello = {.world_size = size,
                      .pid = 1,
                      .generation = generation,
                      .member = {.host = (uint64_t)number}};
    gr_diag failure = {.status = GR_E_TIMEOUT, .text = "it gave up"};
    gr_status status = GR_OK;
    switch (kind) {
    case GR_MESSAGE_HELLO:
        status = gr_membership_hello(&m->rules, number, &hello);
        break;
    case GR_MESSAGE_READY:
        status = gr_membership_ready(&m->rules, number, generation);
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
        (void)search_wrong(m->why, "message %d of member %d is refused", kind, number);
    }
    for (int i = 0; i < m->size; i++) { /* whose generation has come about */
        m->now.members[i].joining = is_new(m, i);
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
    m->now.members[number] = (model_member){.joining = true};
    m->now.invites--;
    gr_membership_reserve(&m->rules, number);
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
        send_up(m, number, GR_MESSAGE_READY, of->from, 0);
        break;
    case EVENT_BREAK:
        m->now.breaks--;
        renew(m, number);
        break;
    case EVENT_NOTICE:
    case EVENT_CHANGE:
        renew(m, number);
        break;
    case EVENT_RELEASE:
        m->now.releases--;
        gr_membership_drain(&m->rules, number);
        break;
    case EVENT_LEAVE:
        m->now.leaves--;
        send_up(m, number, GR_MESSAGE_LEAVE, 0, 0);
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
        gr_membership_set_target_size(&m->rules, number + 1);
        break;
    default: /* EVENT_NOTICE_CUT: it cannot know who goes on */
        end(m, number);
        break;
    }
    if (!model_alive(of)) { /* nothing distinguishes the dead */
        of->from = of->set = 0;
        of->change = false;
        gr_member_state state = m->rules.members[number].state;
        if (state != GR_MEMBER_JOINED &&
            state != GR_MEMBER_RESERVED) { /* else it is dealt a rank assignment */
            of->rank = 0;
            of->joining = false;
        }
        of->down_count = 0;
        memset(of->down, 0, sizeof of->down);
    }
}

/* ---- What can happen ------------------------------------------------------------------------- */

static bool is_in(const model_member *of, uint8_t generation)
{
    bool in = of->phase == PHASE_CALLED || of->phase == PHASE_WIRING || of->phase == PHASE_RUNNING;
    return in && of->from == generation;
}

/* Others of its generation: those that are in it now, or on their way. */
static uint8_t present(const model *m, int number)
{
    const model_member *of = &m->now.members[number];
    uint8_t set = 0;
    for (int i = 0; i < m->size; i++) {
        const model_member *other = &m->now.members[i];
        set |= (uint8_t)(is_in(other, of->from) << i);
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
               (of->phase != PHASE_RUNNING || (!of->change && of->down[0].kind != GR_MESSAGE_FAIL));
    case EVENT_WIRE:
        return can_wire(m, number);
    case EVENT_NOTICE:
        return can_notice(m, number);
    case EVENT_NOTICE_CUT:
        return called && of->cut;
    case EVENT_CHANGE:
        return of->phase == PHASE_RUNNING && of->change;
    case EVENT_RELEASE:
        return m->now.releases > 0 && model_alive(of) && !m->rules.members[number].released &&
               m->rules.members[number].state == GR_MEMBER_JOINED && !m->rules.over;
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
    default: /* a joining worker waits as long as it takes */
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
            return search_wrong(m->why, "member %d has a list of its own", i);
        }
        if (of->from > m->rules.numbers) {
            return search_wrong(m->why, "member %d is ahead of the coordinator", i);
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
    int running = 0, waiting = 0, most = most_wanted(m);
    for (int i = 0; i < m->size; i++) {
        const model_member *of = &m->now.members[i];
        if (!model_alive(of)) {
            continue;
        }
        if (ends_as_a_whole(m)) {
            continue;
        }
        if (of->phase == PHASE_RENEWING && of->joining) {
            waiting++;
            continue;
        }
        if (of->phase != PHASE_RUNNING) {
            return search_wrong(m->why, "nothing happens any more, and member %d is %s", i,
                                model_phase_name(of->phase));
        }
        running++;
        if (of->from != m->rules.generation || of->set != present(m, i) ||
            m->rules.members[i].state != GR_MEMBER_JOINED) {
            return search_wrong(m->why, "member %d runs in a generation that is over", i);
        }
    }
    if (running > 0 && running < m->rules.members_min) {
        return search_wrong(m->why, "%d members go on, fewer than the job needs", running);
    }
    bool over = m->rules.over;
    if (waiting > 0 && (running == 0 || (running < most && !over))) {
        return search_wrong(m->why, "nothing happens any more, and joining workers wait");
    }
    if (running > most && !over) {
        return search_wrong(m->why, "%d members go on, more than are wanted", running);
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
                                         .send = send_word,
                                         .send_arg = m};
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
