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

static void say(gr_membership *membership, int number, const gr_word *word)
{
    membership->say(membership->say_arg, number, word);
}

static void say_fail(gr_membership *membership, int number, const gr_diag *failure)
{
    say(membership, number, &(gr_word){.kind = GR_MESSAGE_FAIL, .failure = failure});
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
            say_fail(membership, i, failure);
        }
    }
}

static void fail_group(gr_membership *membership, int number, const char *sentence)
{
    gr_diag failure;
    (void)gr_fail_peer(&failure, GR_E_PEER_LOST, number, "%s", sentence);
    fail_group_as(membership, &failure);
}

/* The generation that comes about will not: its members ask for seats in the next one. */
static void disturb(gr_membership *membership, const gr_diag *cause)
{
    membership->disturbed = true;
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED &&
            (of->stage == GR_STAGE_CALLED || of->stage == GR_STAGE_SEATED)) {
            say_fail(membership, i, cause);
        }
    }
}

static void too_few(gr_membership *membership, int alive)
{
    gr_diag failure;
    (void)gr_fail(&failure, GR_E_COMM_BROKEN,
                  "%d of %d workers are left, fewer than the %d that the job needs to go on "
                  "(--min-workers)",
                  alive, membership->world_size, membership->members_min);
    fail_group_as(membership, &failure);
}

static void dismiss(gr_membership *membership, int number)
{
    membership->members[number].state = GR_MEMBER_LEFT;
    say(membership, number, &(gr_word){.kind = GR_MESSAGE_DISMISS});
}

/* A newcomer that has no seat yet: no generation depends on it. */
static bool waits(const gr_standing *of)
{
    return of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_RENEWING && of->newcomer;
}

/* Members that are to go and are needed as yet: those that stay are too few, or know nothing of the
 * job. `going_out`: those that may go. */
static int count_kept(const gr_membership *membership, int *going_out)
{
    int veterans = 0, staying = 0, released = 0;
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        bool here = of->state == GR_MEMBER_JOINED;
        released += here && of->released;
        staying += here && !of->released;
        veterans += here && !of->released && !of->newcomer;
    }
    bool enough = veterans > 0 && staying >= membership->members_min;
    *going_out = enough ? released : 0;
    return enough ? 0 : released;
}

/* ---- Generations ----------------------------------------------------------------------------- */

/* Those that wait for seats, by the ranks that they will have: members in the order of their last
 * ranks, so that who has led goes on leading, then newcomers. Returns how many. */
static int line_up(gr_membership *membership)
{
    int world = membership->world_size, count = 0;
    for (int rank = 0; rank < world; rank++) {
        membership->order[rank] = -1;
    }
    for (int i = 0; i < world; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && !of->newcomer) {
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

static void deal_seats(gr_membership *membership)
{
    int going, count = line_up(membership);
    int want = membership->members_want + count_kept(membership, &going);
    int most = count - going, size = most < want ? most : want;
    if (going > 0) {
        put_last(membership, count);
    }
    membership->generation++;
    membership->size = size;
    membership->called = 0;
    membership->disturbed = false;
    gr_word word = {.kind = GR_MESSAGE_SEAT,
                    .seat = {.generation = membership->generation, .world_size = (uint32_t)size}};
    for (int rank = 0; rank < count; rank++) {
        gr_standing *of = &membership->members[membership->order[rank]];
        if (rank < size) {
            of->rank = rank;
            of->stage = GR_STAGE_SEATED;
            word.seat.rank = (uint32_t)rank;
            say(membership, membership->order[rank], &word);
        } else if (!of->newcomer) {
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
        (void)gr_fail(&failure, GR_E_COMM_BROKEN,
                      "all workers that knew the state of the job are lost; newcomers cannot go on "
                      "without one of them (a checkpoint can be gone on from: --resume)");
        fail_group_as(membership, &failure);
        return;
    }
    for (int i = 0; i < membership->world_size; i++) {
        if (waits(&membership->members[i])) {
            dismiss(membership, i);
        }
    }
}

/* The next generation, once all that live have asked for it. */
static void reseat(gr_membership *membership)
{
    int alive = 0, veterans = 0, coming = 0;
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_ABSENT ||
            (of->state == GR_MEMBER_JOINED && of->stage != GR_STAGE_RENEWING)) {
            return;
        }
        alive += of->state == GR_MEMBER_JOINED;
        veterans += of->state == GR_MEMBER_JOINED && !of->newcomer;
        coming += of->state == GR_MEMBER_INVITED;
    }
    if (alive > 0 && veterans == 0) {
        end_without_veterans(membership);
    } else if (alive > 0 && alive >= membership->members_min) {
        deal_seats(membership);
    } else if (alive > 0 && coming == 0 && !membership->hopeful) {
        too_few(membership, alive);
    }
}

/* A member is no more; `waited`: it was a newcomer without a seat. */
static void do_without(gr_membership *membership, bool waited, const gr_diag *cause)
{
    if (gr_membership_elastic(membership)) {
        if (!waited) {
            disturb(membership, cause);
        }
        reseat(membership);
    } else {
        fail_group_as(membership, cause);
    }
}

void gr_membership_hope(gr_membership *membership, bool hopeful)
{
    bool before = membership->hopeful;
    membership->hopeful = hopeful;
    if (before && !hopeful) {
        reseat(membership);
    }
}

bool gr_membership_at_rest(const gr_membership *membership)
{
    bool ready = false, asking = false;
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        bool here = of->state == GR_MEMBER_JOINED;
        if (of->state == GR_MEMBER_ABSENT ||
            (here && (of->stage == GR_STAGE_CALLED || of->stage == GR_STAGE_SEATED))) {
            return false;
        }
        ready = ready || (here && of->stage == GR_STAGE_READY);
        asking = asking || (here && of->stage == GR_STAGE_RENEWING && !waits(of));
    }
    return !(ready && (asking || membership->disturbed));
}

/* Would a new generation have other members than the one that runs? */
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

/* Members that are still on their way into this generation are told when they have arrived. */
static void propose_change(gr_membership *membership)
{
    bool wanted = wants_change(membership);
    for (int i = 0; i < membership->world_size && wanted; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_READY) {
            say(membership, i, &(gr_word){.kind = GR_MESSAGE_CHANGE});
        }
    }
}

void gr_membership_invite(gr_membership *membership, int number)
{
    membership->members[number] = (gr_standing){.state = GR_MEMBER_INVITED, .newcomer = true};
    membership->hellos[number] = (gr_hello){0};
}

void gr_membership_want(gr_membership *membership, int count)
{
    membership->members_want = count;
    propose_change(membership);
}

void gr_membership_release(gr_membership *membership, int number)
{
    gr_standing *of = &membership->members[number];
    of->released = true;
    if (waits(of)) {
        dismiss(membership, number);
    }
    propose_change(membership);
}

/* Of a generation that has called in; newcomers without a seat are not. */
static bool in_this_generation(const gr_membership *membership, int number)
{
    const gr_standing *of = &membership->members[number];
    return of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_CALLED;
}

static void announce(gr_membership *membership)
{
    for (int i = 0; i < membership->world_size; i++) {
        if (in_this_generation(membership, i)) {
            membership->places[membership->members[i].rank] = membership->hellos[i].member;
        }
    }
    gr_word word = {.kind = GR_MESSAGE_MEMBERS,
                    .generation = membership->generation,
                    .size = membership->size,
                    .places = membership->places};
    for (int i = 0; i < membership->world_size; i++) {
        if (in_this_generation(membership, i)) {
            say(membership, i, &word);
        }
    }
    gr_log_write(membership->log, GR_LOG_DEBUG, "group", "all %d ranks have called in",
                 membership->size);
}

/* ---- What members say ------------------------------------------------------------------------ */

/* Does it go together with what the others have said? "" or what is wrong. */
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
        bool said = membership->members[other].state == GR_MEMBER_JOINED && theirs->pid != 0;
        if (said && theirs->link != hello->link) {
            snprintf(
                sentence_out, GR_DIAG_TEXT_BYTES,
                "rank %d (host %s) wants %s links and rank %d %s: set GRADUS_LINK alike for all",
                number, hello->member.host_name, gr_link_choice_name(hello->link), other,
                gr_link_choice_name(theirs->link));
            return;
        }
    }
}

gr_status gr_membership_hello(gr_membership *membership, int number, const gr_hello *hello)
{
    gr_standing *of = &membership->members[number];
    char sentence[GR_DIAG_TEXT_BYTES];
    bool first = of->state == GR_MEMBER_ABSENT;
    if (!first && (of->state != GR_MEMBER_JOINED || of->stage != GR_STAGE_SEATED)) {
        return GR_E_PROTOCOL;
    }
    of->state = GR_MEMBER_JOINED;
    of->stage = GR_STAGE_CALLED;
    membership->hellos[number] = *hello;
    membership->joined += first;
    compare_hello(membership, number, first ? membership->first_size : membership->size, sentence);
    if (sentence[0] != '\0') {
        fail_group(membership, number, sentence);
    } else if (membership->failure.status != GR_OK) {
        say_fail(membership, number, &membership->failure);
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

gr_status gr_membership_ready(gr_membership *membership, int number)
{
    if (!joined(membership, number)) {
        return GR_E_PROTOCOL;
    }
    membership->members[number].stage = GR_STAGE_READY;
    membership->members[number].newcomer = false;
    if (wants_change(membership)) {
        say(membership, number, &(gr_word){.kind = GR_MESSAGE_CHANGE});
    }
    return GR_OK;
}

static gr_status come_in(gr_membership *membership, int number)
{
    gr_standing *of = &membership->members[number];
    of->state = GR_MEMBER_JOINED;
    of->stage = GR_STAGE_RENEWING;
    if (membership->failure.status != GR_OK) {
        say_fail(membership, number, &membership->failure);
        return GR_OK;
    }
    if (of->released) {
        dismiss(membership, number);
    }
    propose_change(membership);
    reseat(membership);
    return GR_OK;
}

/* It could not be wired, its operations failed, or it was asked to (CHANGE). */
gr_status gr_membership_renew(gr_membership *membership, int number)
{
    const gr_hello *hello = &membership->hellos[number];
    gr_diag cause;
    if (membership->members[number].state == GR_MEMBER_INVITED) {
        return come_in(membership, number);
    }
    if (!joined(membership, number) || !gr_membership_elastic(membership)) {
        return GR_E_PROTOCOL;
    }
    membership->members[number].stage = GR_STAGE_RENEWING;
    if (membership->failure.status != GR_OK) {
        say_fail(membership, number, &membership->failure);
        return GR_OK;
    }
    if (!membership->disturbed) {
        (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number,
                           "rank %d (process %llu on host %s) has lost a peer", number,
                           (unsigned long long)hello->pid, hello->member.host_name);
        disturb(membership, &cause);
    }
    reseat(membership);
    return GR_OK;
}

gr_status gr_membership_leave(gr_membership *membership, int number)
{
    if (!joined(membership, number)) {
        return GR_E_PROTOCOL;
    }
    const gr_standing *of = &membership->members[number];
    bool awaited = of->stage == GR_STAGE_CALLED || of->stage == GR_STAGE_SEATED;
    bool ready = of->stage == GR_STAGE_READY;
    membership->members[number].state = GR_MEMBER_LEFT;
    if (awaited) {
        gr_diag cause;
        (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number,
                           "rank %d left while its generation came about", number);
        do_without(membership, false, &cause);
    } else {
        membership->over = membership->over || ready;
        reseat(membership); /* the others may wait for its word */
    }
    return GR_OK;
}

gr_status gr_membership_fail(gr_membership *membership, int number, const gr_diag *failure)
{
    gr_standing *of = &membership->members[number];
    if (!joined(membership, number) || of->stage == GR_STAGE_READY) {
        return GR_E_PROTOCOL;
    }
    bool waited = waits(of);
    of->state = GR_MEMBER_LOST;
    do_without(membership, waited, failure);
    return GR_OK;
}

gr_status gr_membership_ask(gr_membership *membership, int number)
{
    gr_missing missing = {0};
    if (!joined(membership, number)) {
        return GR_E_PROTOCOL;
    }
    for (int i = 0; i < membership->world_size; i++) {
        const gr_standing *of = &membership->members[i];
        if (of->state == GR_MEMBER_ABSENT ||
            (of->state == GR_MEMBER_JOINED && membership->disturbed &&
             of->stage == GR_STAGE_READY)) {
            if (missing.listed < GR_MISSING_LISTED_MAX) {
                missing.ranks[missing.listed++] = (uint32_t)i;
            }
            missing.total++;
        }
    }
    say(membership, number, &(gr_word){.kind = GR_MESSAGE_MISSING, .missing = &missing});
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
    bool waited = waits(&membership->members[number]);
    membership->members[number].state = GR_MEMBER_LOST;
    (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number, "rank %d (process %llu on host %s) died: %s",
                       number, (unsigned long long)hello->pid, hello->member.host_name, why);
    do_without(membership, waited, &cause);
}

void gr_membership_ended(gr_membership *membership, int number)
{
    if (!gr_membership_elastic(membership)) {
        return;
    }
    gr_member_state state = membership->members[number].state;
    if (state != GR_MEMBER_ABSENT && state != GR_MEMBER_INVITED) {
        gr_membership_lost(membership, number, "its process ended");
        return;
    }
    gr_diag cause;
    membership->members[number].state = GR_MEMBER_LOST;
    (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number, "rank %d ended before it called in", number);
    do_without(membership, state == GR_MEMBER_INVITED, &cause);
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
                                  .say = config->say,
                                  .say_arg = config->say_arg,
                                  .generation = 1,
                                  .size = config->first_size,
                                  .members = calloc(world, sizeof(gr_standing)),
                                  .hellos = calloc(world, sizeof(gr_hello)),
                                  .places = calloc(world, sizeof(gr_member)),
                                  .order = calloc(world, sizeof(int))};
    gr_diag_clear(&membership->failure);
    if (membership->members == NULL || membership->hellos == NULL || membership->places == NULL ||
        membership->order == NULL) {
        gr_membership_fini(membership);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu members", world);
    }
    for (int i = 0; i < config->world_size; i++) {
        membership->members[i].rank = i;
        membership->members[i].state = i < config->first_size ? GR_MEMBER_ABSENT : GR_MEMBER_LEFT;
    }
    return GR_OK;
}

void gr_membership_fini(gr_membership *membership)
{
    free(membership->order);
    membership->order = NULL;
    free(membership->places);
    free(membership->hellos);
    free(membership->members);
    membership->places = NULL;
    membership->hellos = NULL;
    membership->members = NULL;
}
