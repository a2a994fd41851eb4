/* SPDX-License-Identifier: Apache-2.0 */
#include "group/membership.h"

#include "base/fail.h"
#include "group/group.h"

#include <stdio.h>
#include <stdlib.h>

bool gr_membership_elastic(const gr_membership *membership)
{
    return membership->members_min < membership->world_size;
}

/* ---- Telling --------------------------------------------------------------------------------- */

static void send_word(gr_membership *membership, int number, const gr_word *word)
{
    membership->send(membership->send_arg, number, word);
}

static void send_fail(gr_membership *membership, int number, const gr_diag *failure)
{
    send_word(membership, number, &(gr_word){.kind = GR_MESSAGE_FAIL, .failure = failure});
}

/* The group cannot come about: all that wait for it are told the first reason. */
static void fail_group_as(gr_membership *membership, const gr_diag *failure)
{
    if (membership->failure.status != GR_OK) {
        return;
    }
    membership->failure = *failure;
    gr_log_write(membership->log, GR_LOG_DEBUG, "group", "%s", failure->text);
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && of->stage != GR_STAGE_READY) {
            send_fail(membership, i, failure);
        }
    }
}

static void fail_group(gr_membership *membership, int number, const char *sentence)
{
    gr_diag failure;
    (void)gr_fail_peer(&failure, GR_E_INVALID, number, "%s", sentence);
    fail_group_as(membership, &failure);
}

/* Of the generation that is or comes about; who is on its way into the next one alone is not. */
static bool belongs(const gr_membership *membership, int number)
{
    const gr_standing *of = &membership->members[number];
    return of->state == GR_MEMBER_JOINED && of->assignment == membership->generation;
}

/* The generation will not come about: its members ask to be in the next one. */
static void disturb(gr_membership *membership, const gr_diag *cause)
{
    membership->disturbed = true;
    for (int i = 0; i < membership->world_size; i++) {
        gr_member_stage stage = membership->members[i].stage;
        if (belongs(membership, i) && (stage == GR_STAGE_CALLED || stage == GR_STAGE_ASSIGNED)) {
            send_fail(membership, i, cause);
        }
    }
}

static void too_few(gr_membership *membership, int alive)
{
    gr_diag failure;
    (void)gr_fail(&failure, GR_E_COMM_BROKEN,
                  "%d of %d workers are left, fewer than the %d that the job needs to go on "
                  "(--min-workers)",
                  alive,
                  membership->quorum != NULL ? membership->first_size : membership->world_size,
                  membership->members_min);
    fail_group_as(membership, &failure);
}

static void dismiss(gr_membership *membership, int number)
{
    membership->members[number].state = GR_MEMBER_LEFT;
    send_word(membership, number, &(gr_word){.kind = GR_MESSAGE_DISMISS});
}

static void take_in(const gr_membership *membership, gr_standing *of)
{
    if (of->joining) {
        of->since = membership->generation;
        of->joining = false;
    }
}

/* Returns true if the process knows how far the job has come. A process that was taken in by the
 * very generation that others left in order may have received nothing from them: they were
 * through. */
static bool is_veteran(const gr_membership *membership, const gr_standing *of)
{
    bool too_late = membership->over && of->since == membership->generation;
    return of->state == GR_MEMBER_JOINED && !of->joining && !too_late;
}

/* A joining worker that has no rank assignment yet: no generation depends on it. */
static bool waits(const gr_standing *of)
{
    return of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_RENEWING && of->joining;
}

/* Members that are to go and are needed as yet: those that stay are too few, or know nothing of the
 * job. `going_out`: those that may go. */
static int count_kept(const gr_membership *membership, int *going_out)
{
    int veterans = 0, staying = 0, released = 0;
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        bool here = belongs(membership, i) || waits(of);
        released += here && of->released;
        staying += here && !of->released;
        veterans += here && !of->released && !of->joining;
    }
    bool enough = veterans > 0 && staying >= membership->members_min;
    *going_out = enough ? released : 0;
    return enough ? 0 : released;
}

/* ---- Generations ----------------------------------------------------------------------------- */

/* Lists those that wait for rank assignments in the order of their next ranks: members in the order
 * of their last ranks, so that rank 0 stays rank 0, then joining workers. Returns their number. */
static int line_up(gr_membership *membership)
{
    int world = membership->world_size, count = 0;
    for (int rank = 0; rank < world; rank++) {
        membership->order[rank] = -1;
    }
    for (int i = 0; i < world; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && !of->joining) {
            membership->order[of->rank] = i;
        }
    }
    for (int rank = 0; rank < world; rank++) {
        if (membership->order[rank] >= 0) {
            membership->order[count++] = membership->order[rank];
        }
    }
    for (int i = 0; i < world; i++) {
        if (waits(&membership->members[i])) {
            membership->order[count++] = i;
        }
    }
    return count;
}

/* Those that may go are put behind all others, whose order stays. */
static void put_last(gr_membership *membership, int count)
{
    int *order = membership->order;
    for (int pass = 0; pass < count; pass++) {
        for (int rank = 0; rank + 1 < count; rank++) {
            int number = order[rank];
            if (membership->members[number].released &&
                !membership->members[order[rank + 1]].released) {
                order[rank] = order[rank + 1];
                order[rank + 1] = number;
            }
        }
    }
}

/* Of the first `size` in line. */
static void number_generation(gr_membership *membership, int size)
{
    gr_quorum *quorum = membership->quorum;
    gr_numbers members = {0};
    if (quorum == NULL) {
        membership->generation = ++membership->numbers;
        return;
    }
    for (int rank = 0; rank < size; rank++) {
        gr_numbers_add(&members, membership->order[rank]);
    }
    membership->numbers = gr_quorum_next(quorum, membership->generation);
    membership->generation = membership->numbers;
    gr_quorum_assign(quorum, membership->generation, &members);
}

/* What a member would say to a successor, before what makes it true. */
static void send_history(gr_membership *membership, int number)
{
    if (membership->quorum != NULL) {
        send_word(membership, number,
                  &(gr_word){.kind = GR_MESSAGE_HISTORY, .history = &membership->quorum->known});
    }
}

/* Those that may be in the next generation, by rank. Returns how many; size_out: so many will. */
static int choose(gr_membership *membership, int *size_out)
{
    int going, count = line_up(membership);
    int want = membership->members_want + count_kept(membership, &going);
    *size_out = count - going < want ? count - going : want;
    if (going > 0) {
        put_last(membership, count);
    }
    return count;
}

static void assign_ranks(gr_membership *membership)
{
    int size, count = choose(membership, &size);
    number_generation(membership, size);
    membership->size = size;
    membership->called = 0;
    membership->disturbed = false;
    gr_word word = {
        .kind = GR_MESSAGE_ASSIGN,
        .assignment = {.generation = membership->generation, .world_size = (uint32_t)size}};
    for (int rank = 0; rank < count; rank++) {
        gr_standing *of = &membership->members[membership->order[rank]];
        if (rank < size) {
            of->rank = rank;
            of->assignment = membership->generation;
            of->stage = GR_STAGE_ASSIGNED;
            word.assignment.rank = (uint32_t)rank;
            word.assignment.number = (uint32_t)membership->order[rank];
            send_history(membership, membership->order[rank]);
            send_word(membership, membership->order[rank], &word);
        } else if (!of->joining) {
            dismiss(membership, membership->order[rank]);
        }
    }
    gr_log_write(membership->log, GR_LOG_DEBUG, "group", "generation %llu has %d members",
                 (unsigned long long)membership->generation, size);
}

/* None is left that knows how far the group had come. */
static void end_without_veterans(gr_membership *membership)
{
    gr_diag failure;
    if (!membership->over) {
        (void)gr_fail(
            &failure, GR_E_COMM_BROKEN,
            "all workers that knew the state of the job are lost; joining workers cannot go on "
            "without one of them (a checkpoint can be gone on from: --resume)");
        fail_group_as(membership, &failure);
        return;
    }
    for (int i = 0; i < membership->world_size; i++) {
        if (membership->members[i].state == GR_MEMBER_JOINED) {
            dismiss(membership, i);
        }
    }
}

/* A successor takes only those in whose generation the job is, and only now knows who that is. */
static void end_gathering(gr_membership *membership)
{
    gr_diag failure;
    for (int i = 0; i < membership->world_size; i++) {
        gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && !gr_quorum_may_come(membership->quorum, i)) {
            (void)gr_fail_peer(&failure, GR_E_COMM_BROKEN, i,
                               "rank %d is in no generation that the job goes on from: the others "
                               "have gone on without it",
                               i);
            send_fail(membership, i, &failure);
            of->state = GR_MEMBER_LOST;
        } else if (of->state == GR_MEMBER_ABSENT || of->state == GR_MEMBER_LOST) {
            bool used = gr_quorum_is_used(membership->quorum, i);
            of->state = used ? GR_MEMBER_LOST : GR_MEMBER_LEFT;
        }
    }
    membership->quorum->gathering = false;
}

/* Returns true if the new generation is a quorum of the last one. If it is not, nobody here knows
 * whether others go on. */
static bool is_quorum(gr_membership *membership)
{
    if (membership->quorum == NULL) {
        return true;
    }
    gr_numbers votes = {0};
    gr_diag failure;
    for (int i = 0; i < membership->world_size; i++) {
        gr_member_state state = membership->members[i].state;
        if (state == GR_MEMBER_JOINED || state == GR_MEMBER_LEFT) { /* in order: as it is here */
            gr_numbers_add(&votes, i);
        }
    }
    if (gr_quorum_is_enough(membership->quorum, &votes)) {
        return true;
    }
    int here = gr_quorum_votes(membership->quorum, &votes);
    int all = gr_numbers_count(&membership->quorum->known.committed_members);
    const char *who =
        2 * here + membership->quorum->own > all
            ? "half of those that were there before others joined are needed, until all have "
              "confirmed the new generation"
            : "only more than half of them go on by themselves (or half, with the "
              "coordinator that brought them together)";
    (void)gr_fail(&failure, GR_E_COMM_BROKEN,
                  "%d of the %d workers of the last generation are on this side: %s, since the "
                  "others may live, cut off from these; see to the network and to the other "
                  "workers, and restart from a checkpoint (--resume) if they do not go on",
                  here, all, who);
    fail_group_as(membership, &failure);
    return false;
}

/* Returns true if new rank assignments wait for this process. */
static bool is_awaited(const gr_membership *membership, int number)
{
    const gr_standing *of = &membership->members[number];
    if (of->state == GR_MEMBER_ABSENT && gr_membership_gathers(membership)) {
        return gr_quorum_may_come(membership->quorum, number);
    }
    return of->state == GR_MEMBER_ABSENT ||
           (of->state == GR_MEMBER_JOINED && of->stage != GR_STAGE_RENEWING);
}

/* The next generation, once all that live have asked for it. */
static void reassign(gr_membership *membership)
{
    int alive = 0, veterans = 0, coming = 0;
    for (int i = 0; i < membership->world_size; i++) {
        if (is_awaited(membership, i)) {
            return;
        }
    }
    if (gr_membership_gathers(membership)) {
        if (membership->quorum->known.committed == 0) {
            return; /* nobody has come */
        }
        end_gathering(membership);
    }
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        alive += of->state == GR_MEMBER_JOINED;
        veterans += is_veteran(membership, of);
        coming += of->state == GR_MEMBER_RESERVED && membership->quorum == NULL;
    }
    if (alive > 0 && veterans == 0) {
        end_without_veterans(membership);
    } else if (alive > 0 && alive >= membership->members_min) {
        if (is_quorum(membership)) {
            assign_ranks(membership);
        }
    } else if (alive > 0 && coming == 0 && !membership->joining_expected) {
        too_few(membership, alive);
    }
}

/* Returns true if a new generation would have other members than the current one. */
static bool wants_change(const gr_membership *membership)
{
    bool more = false;
    int going, want = membership->members_want + count_kept(membership, &going);
    for (int i = 0; i < membership->world_size && !more; i++) {
        more = waits(&membership->members[i]);
    }
    return !membership->disturbed && !membership->over &&
           ((more && membership->size < want) || membership->size > want || going > 0);
}

/* Asks the members to change generations, once, if another generation is wanted and all members run
 * in this one. They ask for rank assignments between two steps; until then nothing changes. */
static void request_change(gr_membership *membership)
{
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_ABSENT ||
            (belongs(membership, i) && of->stage != GR_STAGE_READY)) {
            return;
        }
    }
    if (membership->change_of == membership->generation || membership->failure.status != GR_OK ||
        !wants_change(membership)) {
        return;
    }
    membership->change_of = membership->generation;
    for (int i = 0; i < membership->world_size; i++) {
        if (belongs(membership, i)) {
            send_word(membership, i, &(gr_word){.kind = GR_MESSAGE_CHANGE});
        }
    }
}

/* A member is no more: `state` says how. */
static void do_without(gr_membership *membership, int number, gr_member_state state,
                       const gr_diag *cause)
{
    gr_standing *of = &membership->members[number];
    bool missed = belongs(membership, number) || of->state == GR_MEMBER_ABSENT;
    of->state = state;
    if (!gr_membership_elastic(membership)) {
        fail_group_as(membership, cause);
        return;
    }
    if (missed) {
        disturb(membership, cause);
    }
    reassign(membership);
    request_change(membership);
}

void gr_membership_expect_joining(gr_membership *membership, bool joining_expected)
{
    bool before = membership->joining_expected;
    membership->joining_expected = joining_expected;
    if (before && !joining_expected) {
        reassign(membership);
    }
}

bool gr_membership_at_rest(const gr_membership *membership)
{
    bool ready = false, asking = false;
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        bool here = of->state == GR_MEMBER_JOINED;
        if (of->state == GR_MEMBER_ABSENT ||
            (here && (of->stage == GR_STAGE_CALLED || of->stage == GR_STAGE_ASSIGNED))) {
            return false;
        }
        ready = ready || (here && of->stage == GR_STAGE_READY);
        asking = asking || (here && of->stage == GR_STAGE_RENEWING && !waits(of));
    }
    return !(ready && (asking || membership->disturbed));
}

void gr_membership_reserve(gr_membership *membership, int number)
{
    membership->members[number] = (gr_standing){.state = GR_MEMBER_RESERVED, .joining = true};
    membership->hellos[number] = (gr_hello){0};
}

bool gr_membership_is_free(const gr_membership *membership, int number)
{
    gr_member_state state = membership->members[number].state;
    return membership->quorum != NULL && !gr_membership_gathers(membership) && !membership->over &&
           membership->failure.status == GR_OK && !gr_quorum_is_used(membership->quorum, number) &&
           state != GR_MEMBER_ABSENT && state != GR_MEMBER_JOINED;
}

void gr_membership_set_target_size(gr_membership *membership, int count)
{
    membership->members_want = count;
    request_change(membership);
}

void gr_membership_drain(gr_membership *membership, int number)
{
    gr_standing *of = &membership->members[number];
    of->released = true;
    if (waits(of)) {
        dismiss(membership, number);
    }
    request_change(membership);
}

/* All members have called in: each is told where the others are. */
static void announce(gr_membership *membership)
{
    if (membership->quorum != NULL) {
        gr_quorum_commit(membership->quorum);
    }
    gr_word word = {.kind = GR_MESSAGE_MEMBERS,
                    .generation = membership->generation,
                    .size = membership->size,
                    .places = membership->places};
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_CALLED) {
            membership->hellos[i].member.number = (uint32_t)i;
            membership->places[of->rank] = membership->hellos[i].member;
        }
    }
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_CALLED) {
            send_history(membership, i);
            send_word(membership, i, &word);
        }
    }
    gr_log_write(membership->log, GR_LOG_DEBUG, "group", "all %d ranks have called in", word.size);
}

/* ---- What members say ------------------------------------------------------------------------ */

/* It was dismissed, and may not know it yet: what it says does not matter any more. */
static bool is_gone(const gr_membership *membership, int number)
{
    return membership->members[number].state == GR_MEMBER_LEFT;
}

/* Compares a HELLO with those of the others. "" or what is wrong. */
static void compare_hello(const gr_membership *membership, int number, int wanted_size,
                          char sentence_out[GR_DIAG_TEXT_BYTES])
{
    const gr_hello *hello = &membership->hellos[number];
    sentence_out[0] = '\0';
    if (hello->world_size != (uint32_t)wanted_size) {
        snprintf(sentence_out, GR_DIAG_TEXT_BYTES,
                 "rank %d counts %u ranks, the job has %d: GRADUS_WORLD_SIZE is wrong there",
                 number, hello->world_size, wanted_size);
        return;
    }
    for (int other = 0; other < membership->world_size; other++) {
        const gr_hello *theirs = &membership->hellos[other];
        bool known = membership->members[other].state == GR_MEMBER_JOINED && theirs->pid != 0;
        if (known && theirs->link != hello->link) {
            snprintf(
                sentence_out, GR_DIAG_TEXT_BYTES,
                "rank %d (host %s) wants %s links and rank %d %s: set GRADUS_LINK alike for all",
                number, hello->member.host_name, gr_link_choice_name(hello->link), other,
                gr_link_choice_name(theirs->link));
            return;
        }
    }
}

/* The members have the same config from the beginning. A joining worker with another one ends, and
 * the others go on without it. */
static void refuse_joining(gr_membership *membership, int number, const char *sentence)
{
    gr_diag failure;
    (void)gr_fail(&failure, GR_E_INVALID, "%s", sentence);
    send_fail(membership, number, &failure);
    (void)gr_fail_peer(&failure, GR_E_PEER_LOST, number, "%s", sentence);
    do_without(membership, number, GR_MEMBER_LOST, &failure);
}

gr_status gr_membership_hello(gr_membership *membership, int number, const gr_hello *hello)
{
    gr_standing *of = &membership->members[number];
    char sentence[GR_DIAG_TEXT_BYTES];
    bool first = of->state == GR_MEMBER_ABSENT;
    bool member = of->state == GR_MEMBER_JOINED;
    if (is_gone(membership, number)) {
        return GR_OK;
    }
    if (first && membership->quorum != NULL && membership->quorum->histories != NULL) {
        return GR_E_PROTOCOL; /* a successor has no first generation */
    }
    if (!first && (!member || of->stage != GR_STAGE_ASSIGNED)) {
        return GR_E_PROTOCOL;
    }
    if (hello->generation != membership->generation && !first) {
        return GR_E_PROTOCOL;
    }
    of->state = GR_MEMBER_JOINED;
    of->stage = GR_STAGE_CALLED;
    of->assignment = membership->generation;
    membership->hellos[number] = *hello;
    membership->joined += first;
    compare_hello(membership, number, first ? membership->first_size : membership->size, sentence);
    if (sentence[0] != '\0' && of->joining) {
        refuse_joining(membership, number, sentence);
    } else if (sentence[0] != '\0') {
        fail_group(membership, number, sentence);
    } else if (membership->failure.status != GR_OK) {
        send_fail(membership, number, &membership->failure);
    } else if (membership->disturbed || (first && membership->generation > 1)) {
        gr_diag cause;
        (void)gr_fail(&cause, GR_E_PEER_LOST, "another member died while this one came");
        disturb(membership, &cause);
    } else if (++membership->called == membership->size) {
        announce(membership);
    }
    return GR_OK;
}

static bool joined(const gr_membership *membership, int number)
{
    return membership->members[number].state == GR_MEMBER_JOINED;
}

/* Once all members of the generation are ready, all know that it came about: they are notified. */
static void settle(gr_membership *membership)
{
    int ready = 0;
    if (membership->quorum == NULL || gr_quorum_is_settled(membership->quorum)) {
        return;
    }
    for (int i = 0; i < membership->world_size; i++) {
        ready += belongs(membership, i) && membership->members[i].stage == GR_STAGE_READY;
    }
    if (ready < membership->size) {
        return;
    }
    gr_quorum_settle(membership->quorum);
    for (int i = 0; i < membership->world_size; i++) {
        if (belongs(membership, i)) {
            send_history(membership, i);
        }
    }
}

gr_status gr_membership_ready(gr_membership *membership, int number, uint64_t generation)
{
    gr_standing *of = &membership->members[number];
    if (is_gone(membership, number)) {
        return GR_OK;
    }
    if (!joined(membership, number) || generation != membership->generation) {
        return GR_E_PROTOCOL;
    }
    of->stage = GR_STAGE_READY;
    take_in(membership, of);
    settle(membership);
    request_change(membership);
    return GR_OK;
}

/* A joining worker, or a member that could not be wired or whose operations failed. */
gr_status gr_membership_renew(gr_membership *membership, int number)
{
    gr_standing *of = &membership->members[number];
    const gr_hello *hello = &membership->hellos[number];
    gr_diag cause;
    if (is_gone(membership, number)) {
        return GR_OK;
    }
    if (of->state == GR_MEMBER_RESERVED) {
        of->state = GR_MEMBER_JOINED;
        of->assignment = 0;
    }
    if (!joined(membership, number) || !gr_membership_elastic(membership)) {
        return GR_E_PROTOCOL;
    }
    bool member = belongs(membership, number);
    of->stage = GR_STAGE_RENEWING;
    if (membership->failure.status != GR_OK) {
        send_fail(membership, number, &membership->failure);
        return GR_OK;
    }
    if (!membership->disturbed && member) {
        (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number,
                           "rank %d (process %llu on host %s) has lost a peer", number,
                           (unsigned long long)hello->pid, hello->member.host_name);
        disturb(membership, &cause);
    }
    if (waits(of) && (of->released || (membership->over && membership->quorum != NULL))) {
        dismiss(membership, number);
    }
    reassign(membership);
    request_change(membership);
    return GR_OK;
}

/* ---- Failover ------------------------------------------------------------------------------ */

static void unite(gr_membership *membership)
{
    gr_numbers here = {0};
    for (int i = 0; i < membership->world_size; i++) {
        if (membership->members[i].state == GR_MEMBER_JOINED) {
            gr_numbers_add(&here, i);
        }
    }
    gr_quorum_unite(membership->quorum, &here);
}

bool gr_membership_gathers(const gr_membership *membership)
{
    return membership->quorum != NULL && membership->quorum->gathering;
}

void gr_membership_gathered(gr_membership *membership)
{
    for (int i = 0; i < membership->world_size && gr_membership_gathers(membership); i++) {
        if (membership->members[i].state == GR_MEMBER_ABSENT) {
            membership->members[i].state = GR_MEMBER_LOST;
        }
    }
    reassign(membership);
}

gr_status gr_membership_switch(gr_membership *membership, int number, const gr_history *history)
{
    gr_standing *of = &membership->members[number];
    if (!gr_membership_gathers(membership) || of->state != GR_MEMBER_ABSENT ||
        gr_quorum_add_history(membership->quorum, number, history) != GR_OK) {
        return GR_E_PROTOCOL;
    }
    of->state = GR_MEMBER_JOINED;
    of->stage = GR_STAGE_RENEWING;
    of->assignment = membership->generation;
    unite(membership);
    reassign(membership);
    return GR_OK;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

/* The job is done. Where there is a launcher, it ends those that it has started. */
static void dismiss_waiting(gr_membership *membership)
{
    for (int i = 0; i < membership->world_size; i++) {
        if (membership->over && membership->quorum != NULL && waits(&membership->members[i])) {
            dismiss(membership, i);
        }
    }
}

gr_status gr_membership_leave(gr_membership *membership, int number)
{
    if (is_gone(membership, number)) {
        return GR_OK;
    }
    if (!joined(membership, number)) {
        return GR_E_PROTOCOL;
    }
    gr_standing *of = &membership->members[number];
    gr_diag cause;
    (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number,
                       "rank %d left while its generation came about", number);
    if (of->stage == GR_STAGE_CALLED || of->stage == GR_STAGE_ASSIGNED) {
        do_without(membership, number, GR_MEMBER_LEFT, &cause);
    } else {
        bool ready = of->stage == GR_STAGE_READY;
        of->state = GR_MEMBER_LEFT;
        membership->over = membership->over || ready;
        dismiss_waiting(membership);
        reassign(membership); /* the others may wait for its word */
    }
    return GR_OK;
}

gr_status gr_membership_fail(gr_membership *membership, int number, const gr_diag *failure)
{
    gr_standing *of = &membership->members[number];
    if (is_gone(membership, number)) {
        return GR_OK;
    }
    if (!joined(membership, number) || of->stage == GR_STAGE_READY) {
        return GR_E_PROTOCOL;
    }
    do_without(membership, number, GR_MEMBER_LOST, failure);
    return GR_OK;
}

gr_status gr_membership_ask(gr_membership *membership, int number)
{
    gr_missing missing = {0};
    if (is_gone(membership, number)) {
        return GR_OK;
    }
    if (!joined(membership, number)) {
        return GR_E_PROTOCOL;
    }
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if ((of->state == GR_MEMBER_ABSENT && is_awaited(membership, i)) ||
            (of->state == GR_MEMBER_JOINED && membership->disturbed &&
             of->stage == GR_STAGE_READY)) {
            if (missing.listed < GR_MISSING_LISTED_MAX) {
                missing.ranks[missing.listed++] = (uint32_t)i;
            }
            missing.total++;
        }
    }
    send_word(membership, number, &(gr_word){.kind = GR_MESSAGE_MISSING, .missing = &missing});
    return GR_OK;
}

/* ---- What happens to members ----------------------------------------------------------------- */

void gr_membership_lost(gr_membership *membership, int number, const char *why)
{
    const gr_hello *hello = &membership->hellos[number];
    gr_diag cause;
    if (!joined(membership, number)) {
        return; /* it had not called in: it may try again */
    }
    (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number, "rank %d (process %llu on host %s) died: %s",
                       number, (unsigned long long)hello->pid, hello->member.host_name, why);
    do_without(membership, number, GR_MEMBER_LOST, &cause);
}

void gr_membership_ended(gr_membership *membership, int number)
{
    if (!gr_membership_elastic(membership)) {
        return;
    }
    gr_member_state state = membership->members[number].state;
    if (state != GR_MEMBER_ABSENT && state != GR_MEMBER_RESERVED) {
        gr_membership_lost(membership, number, "its process ended");
        return;
    }
    gr_diag cause;
    (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number, "rank %d ended before it called in", number);
    do_without(membership, number, GR_MEMBER_LOST, &cause);
}

/* ---- Life ------------------------------------------------------------------------------------ */

gr_status gr_membership_init(gr_membership *membership, const gr_membership_config *config,
                             gr_diag *diag)
{
    size_t world = (size_t)config->world_size;
    *membership = (gr_membership){.world_size = config->world_size,
                                  .first_size = config->first_size,
                                  .members_want = config->first_size,
                                  .members_min = config->members_min > 0 ? config->members_min
                                                                         : config->world_size,
                                  .log = config->log,
                                  .send = config->send,
                                  .send_arg = config->send_arg,
                                  .generation = 1,
                                  .numbers = 1,
                                  .size = config->first_size,
                                  .members = calloc(world, sizeof(gr_standing)),
                                  .hellos = calloc(world, sizeof(gr_hello)),
                                  .places = calloc(world, sizeof(gr_member)),
                                  .order = calloc(world, sizeof(int))};
    gr_diag_clear(&membership->failure);
    gr_status status = GR_OK;
    if (config->failover) {
        membership->quorum = calloc(1, sizeof *membership->quorum);
    }
    if (membership->quorum != NULL && config->successor < 0) {
        gr_quorum_init_first(membership->quorum, config->first_size);
    } else if (membership->quorum != NULL) {
        status = gr_quorum_init_successor(membership->quorum, config->successor, config->world_size,
                                          diag);
    }
    if (status != GR_OK || (config->failover && membership->quorum == NULL) ||
        membership->members == NULL || membership->hellos == NULL || membership->places == NULL ||
        membership->order == NULL) {
        gr_membership_fini(membership);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu members", world);
    }
    for (int i = 0; i < config->world_size; i++) {
        membership->members[i].rank = i;
        bool comes = i < config->first_size || gr_membership_gathers(membership);
        membership->members[i].state = comes ? GR_MEMBER_ABSENT : GR_MEMBER_LEFT;
    }
    return GR_OK;
}

void gr_membership_fini(gr_membership *membership)
{
    if (membership->quorum != NULL) {
        gr_quorum_fini(membership->quorum);
        free(membership->quorum);
        membership->quorum = NULL;
    }
    free(membership->order);
    membership->order = NULL;
    free(membership->places);
    free(membership->hellos);
    free(membership->members);
    membership->places = NULL;
    membership->hellos = NULL;
    membership->members = NULL;
}
