/* SPDX-License-Identifier: Apache-2.0 */
#include "group/quorum.h"

#include "base/fail.h"

#include <stdlib.h>

enum { TERM_SHIFT = 32, ROUND_SHIFT = 12 };
_Static_assert(GR_GROUP_WORLD_MAX <= 1 << ROUND_SHIFT, "a term tells all numbers apart");

bool gr_numbers_has(const gr_numbers *of, int number)
{
    return (of->bits[number / 8] >> (number % 8) & 1) != 0;
}

void gr_numbers_add(gr_numbers *to, int number)
{
    to->bits[number / 8] |= (uint8_t)(1 << (number % 8));
}

int gr_numbers_count(const gr_numbers *of)
{
    int count = 0;
    for (size_t i = 0; i < sizeof of->bits; i++) {
        count += __builtin_popcount(of->bits[i]);
    }
    return count;
}

static void add_all(gr_numbers *to, const gr_numbers *from)
{
    for (size_t i = 0; i < sizeof to->bits; i++) {
        to->bits[i] |= from->bits[i];
    }
}

static void keep_common(gr_numbers *to, const gr_numbers *from)
{
    for (size_t i = 0; i < sizeof to->bits; i++) {
        to->bits[i] &= from->bits[i];
    }
}

void gr_quorum_init_first(gr_quorum *quorum, int first_size)
{
    *quorum = (gr_quorum){.successor = -1, .own = true};
    for (int i = 0; i < first_size; i++) {
        gr_numbers_add(&quorum->known.committed_members, i);
    }
    quorum->known.accepted_members = quorum->known.used = quorum->known.committed_members;
    quorum->known.committed = quorum->known.accepted = 1;
}

gr_status gr_quorum_init_successor(gr_quorum *quorum, int successor, int world_size, gr_diag *diag)
{
    *quorum = (gr_quorum){.successor = successor, .gathering = true};
    quorum->histories = calloc((size_t)world_size, sizeof *quorum->histories);
    return quorum->histories != NULL
               ? GR_OK
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for what %d members know", world_size);
}

void gr_quorum_fini(gr_quorum *quorum)
{
    free(quorum->histories);
    quorum->histories = NULL;
}

gr_status gr_quorum_add_history(gr_quorum *quorum, int number, const gr_history *history)
{
    if (history->committed == 0 || !gr_numbers_has(&history->committed_members, number) ||
        !gr_numbers_has(&history->accepted_members, number)) {
        return GR_E_PROTOCOL;
    }
    quorum->histories[number] = *history;
    return GR_OK;
}

/* The newest generation that came about. Where one knows that it is settled, it is. */
static void find_committed(gr_quorum *quorum, const gr_numbers *here)
{
    gr_history *known = &quorum->known;
    for (int i = 0; i < GR_GROUP_WORLD_MAX; i++) {
        const gr_history *of = &quorum->histories[i];
        if (gr_numbers_has(here, i) && of->committed > known->committed) {
            known->committed = of->committed;
            known->committed_members = of->committed_members;
            known->former_members = of->former_members;
        } else if (gr_numbers_has(here, i) && of->committed == known->committed) {
            keep_common(&known->former_members, &of->former_members);
        }
    }
}

void gr_quorum_unite(gr_quorum *quorum, const gr_numbers *here)
{
    gr_history *known = &quorum->known;
    *known = (gr_history){0};
    find_committed(quorum, here);
    known->accepted = known->committed;
    known->accepted_members = known->committed_members;
    for (int i = 0; i < GR_GROUP_WORLD_MAX; i++) {
        if (gr_numbers_has(here, i) && quorum->histories[i].accepted > known->committed) {
            keep_common(&known->accepted_members, &quorum->histories[i].accepted_members);
        }
        if (gr_numbers_has(here, i) && quorum->histories[i].accepted > known->accepted) {
            known->accepted = quorum->histories[i].accepted;
        }
        if (gr_numbers_has(here, i)) {
            add_all(&known->used, &quorum->histories[i].used);
        }
    }
}

bool gr_quorum_is_used(const gr_quorum *quorum, int number)
{
    return gr_numbers_has(&quorum->known.used, number);
}

bool gr_quorum_may_come(const gr_quorum *quorum, int number)
{
    return gr_numbers_has(&quorum->known.accepted_members, number);
}

static int count_common(const gr_numbers *one, const gr_numbers *other)
{
    gr_numbers common = *one;
    keep_common(&common, other);
    return gr_numbers_count(&common);
}

int gr_quorum_votes(const gr_quorum *quorum, const gr_numbers *here)
{
    return count_common(here, &quorum->known.committed_members);
}

bool gr_quorum_is_enough(const gr_quorum *quorum, const gr_numbers *here)
{
    const gr_history *known = &quorum->known;
    int former = 2 * count_common(here, &known->former_members);
    return 2 * gr_quorum_votes(quorum, here) + quorum->own >
               gr_numbers_count(&known->committed_members) &&
           former >= gr_numbers_count(&known->former_members);
}

uint64_t gr_quorum_next(const gr_quorum *quorum, uint64_t generation)
{
    uint64_t newest = quorum->known.accepted > generation ? quorum->known.accepted : generation;
    uint64_t term = newest >> TERM_SHIFT;
    bool own = generation == newest && quorum->own;
    if (quorum->successor < 0 || own) {
        return newest + 1;
    }
    uint64_t round = (term >> ROUND_SHIFT) + 1;
    return (round << ROUND_SHIFT | (uint64_t)quorum->successor) << TERM_SHIFT | 1;
}

void gr_quorum_assign(gr_quorum *quorum, uint64_t generation, const gr_numbers *members)
{
    quorum->known.accepted = generation;
    quorum->known.accepted_members = *members;
    add_all(&quorum->known.used, members);
    quorum->gathering = false;
}

void gr_quorum_commit(gr_quorum *quorum)
{
    gr_history *known = &quorum->known;
    bool is_larger =
        gr_numbers_count(&known->accepted_members) > gr_numbers_count(&known->committed_members);
    known->former_members = is_larger ? known->committed_members : (gr_numbers){0};
    known->committed = known->accepted;
    known->committed_members = known->accepted_members;
    quorum->own = true;
}

bool gr_quorum_is_settled(const gr_quorum *quorum)
{
    return gr_numbers_count(&quorum->known.former_members) == 0;
}

void gr_quorum_settle(gr_quorum *quorum)
{
    quorum->known.former_members = (gr_numbers){0};
}
