/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_QUORUM_H
#define GR_GROUP_QUORUM_H

/* Who may go on when the coordinator can be succeeded: no launcher says then which side of a break
 * is the job. A new generation has members of the newest one that came about, more than half of
 * them (half of them only by the coordinator that made that one), and joining workers beside
 * them, which have no vote in it.
 *
 * A generation *has come about* (committed) when all of its members have agreed to it; it takes no
 * step before. So whoever has agreed to one (accepted) without being notified that it came about
 * reports so to the next coordinator, which takes only members of it as well: should others know
 * that it did come about, then they and the new generation cannot both be more than half.
 *
 * With joining workers a generation may be larger than the one before it (former), and more than
 * half of the former one less than half of it. Until all of its members are notified that it came
 * about (it is *settled*), some may go on from the former one, with more than half of that. So
 * those that are notified go on only with half of the former one as well.
 *
 * All of that counts processes, so that no two of them may have one number: a joining worker gets
 * one that nobody has had (used). */

#include "group/message.h"

bool gr_numbers_has(const gr_numbers *of, int number);
void gr_numbers_add(gr_numbers *to, int number);
int gr_numbers_count(const gr_numbers *of);

typedef struct gr_quorum {
    gr_history known; /* of all that have come; what is accepted are those that may be members */
    gr_history *histories; /* of a successor, by number: as reported; NULL: the first one */
    int successor;         /* the number of the member in whose process it is; -1: the first one */
    bool own;              /* the newest generation that came about was made here */
    bool gathering;        /* a successor that waits for those that will come */
} gr_quorum;

/* Of the first coordinator, which has made the generation of the members [0, first_size); or of a
 * successor, which knows nothing yet, of `world_size` numbers. */
void gr_quorum_init_first(gr_quorum *quorum, int first_size);
gr_status gr_quorum_init_successor(gr_quorum *quorum, int successor, int world_size,
                                   gr_diag *diag) GR_MUST_CHECK;
void gr_quorum_fini(gr_quorum *quorum);

/* A member says to a successor what it knows; GR_E_PROTOCOL: it is in no generation. */
gr_status gr_quorum_add_history(gr_quorum *quorum, int number,
                                const gr_history *history) GR_MUST_CHECK;
/* Returns true if a process is known to have had this number. */
bool gr_quorum_is_used(const gr_quorum *quorum, int number);
/* `here`: those whose word counts. */
void gr_quorum_unite(gr_quorum *quorum, const gr_numbers *here);
/* Returns true if this process may be a member of the next generation. */
bool gr_quorum_may_come(const gr_quorum *quorum, int number);
/* How many of these (those that will be members, and those that left in order and leave it to the
 * others) have a vote, and are they enough? */
int gr_quorum_votes(const gr_quorum *quorum, const gr_numbers *here);
bool gr_quorum_is_enough(const gr_quorum *quorum, const gr_numbers *here);

/* The number of the next generation, larger than all before. The upper half tells the coordinators
 * that follow each other apart, so that no two of them make the same one; the lower counts. */
uint64_t gr_quorum_next(const gr_quorum *quorum, uint64_t generation);
/* Seats are dealt to these; all of them have agreed. */
void gr_quorum_assign(gr_quorum *quorum, uint64_t generation, const gr_numbers *members);
void gr_quorum_commit(gr_quorum *quorum);
/* Returns true if all members are known to know that the newest generation came about, or if it is
 * no larger than the one before it. */
bool gr_quorum_is_settled(const gr_quorum *quorum);
/* All of them know: more than half of the generation is enough from now on. They must be notified
 * of that. */
void gr_quorum_settle(gr_quorum *quorum);

#endif
