/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_MEMBERSHIP_H
#define GR_GROUP_MEMBERSHIP_H

/* Which members form which generation: the rules of the coordinator, without sockets and without a
 * clock. Each event is a call; each message leaves through a callback.
 *
 * A member:
 *
 *               HELLO                  LEAVE
 *     ABSENT ----------> JOINED ------------------> LEFT
 *       ^                 ^  |  connection broke,    |
 *       |           RENEW |  |  process ended        |
 *   (beginning)           |  +-------> LOST          |
 *                         |              |           |
 *                      RESERVED <--------+-----------+   a joining worker takes the number
 *
 * A member that has JOINED, on its way into a generation:
 *
 *            HELLO                              READY
 *   (start) ------> CALLED, waits for MEMBERS --------> READY
 *                     ^  |                                |
 *               HELLO |  | FAIL: another member is lost   | a peer is lost, or CHANGE
 *                     |  v RENEW                          v RENEW
 *               ASSIGNED <------------------------- RENEWING <------- RENEW of a joining worker
 *                         ASSIGN: all have sent RENEW
 *
 * A generation that loses a member before all are READY is disturbed: its members send RENEW, and
 * the next one is made of those that live.
 *
 * Where there is no launcher that assigns a joining worker its number, it gets one that nobody
 * has had (gr_membership_is_free). A process that comes back under a number of its own is
 * never taken for another one, and has no say in generations that it was not in (quorum.h). */

#include "base/log.h"
#include "group/message.h"
#include "group/quorum.h"

/* What a member is, in the order in which it comes to be it. */
typedef enum gr_member_state {
    GR_MEMBER_ABSENT = 0, /* has not sent HELLO */
    GR_MEMBER_JOINED = 1,
    GR_MEMBER_LEFT = 2,    /* in order */
    GR_MEMBER_LOST = 3,    /* its connection broke, or it ended without a word */
    GR_MEMBER_RESERVED = 4 /* a joining worker will come in its place, and has not called in yet */
} gr_member_state;

/* Where a member that has joined is on its way into a generation. */
typedef enum gr_member_stage {
    GR_STAGE_CALLED = 0, /* has sent HELLO */
    GR_STAGE_READY,      /* linked to all others: a death is not this connection's news any more */
    GR_STAGE_RENEWING,   /* its generation is over, it waits for a rank in the next one */
    GR_STAGE_ASSIGNED    /* has one, and must send HELLO */
} gr_member_stage;

/* What the coordinator says; the pointers are borrowed for the call. */
typedef struct gr_word {
    /* MEMBERS, MISSING, FAIL, ASSIGN, CHANGE, DISMISS or HISTORY */
    gr_message_kind kind;
    gr_assignment assignment; /* of ASSIGN */
    const gr_missing *missing;
    const gr_diag *failure;
    const gr_history *history;
    uint64_t generation; /* of MEMBERS */
    int size;
    const gr_member *places; /* by rank */
} gr_word;

/* Must not call back into the membership: what becomes known meanwhile (that a connection is
 * broken, say) is reported after the event. */
typedef void gr_membership_send(void *send_arg, int number, const gr_word *word);

typedef struct gr_standing {
    gr_member_state state;
    gr_member_stage stage;
    int rank;            /* in the generation that is, or comes about */
    uint64_t assignment; /* the generation of its rank assignment; 0: it has had none */
    bool joining;   /* has not been in a generation that came about: it knows nothing of the job */
    uint64_t since; /* the generation that it joined; 0: there from the beginning */
    bool released;  /* it is to go as soon as it is not needed any more */
} gr_standing;

typedef struct gr_membership {
    int world_size;   /* as many members can be, with those that wait */
    int first_size;   /* of the first generation */
    int members_min;  /* a generation has at least so many */
    int members_want; /* and at most so many: who comes in addition waits */
    const gr_log *log;
    gr_membership_send *send;
    void *send_arg;
    int joined;            /* in the first generation */
    uint64_t generation;   /* that is, or comes about: from 1 */
    int size, called;      /* its members, and those of them that have sent HELLO */
    uint64_t numbers;      /* as many generations have been begun; some came to nothing */
    uint64_t change_of;    /* the last generation whose members were asked to change */
    bool disturbed;        /* it will not come about, or is broken: the next one is waited for */
    bool joining_expected; /* joining workers will come when too few are left */
    bool over;             /* a member has left it in order: nobody is taken in any more */
    gr_diag failure;       /* why there will be none any more; sent to whoever comes later */
    gr_standing *members;  /* by number: the rank in the first generation */
    gr_hello *hellos;      /* by number */
    gr_member *places;     /* by rank, as they are sent */
    int *order;            /* by rank, while rank assignments are dealt */
    gr_quorum *quorum;     /* NULL: the launcher is there, and whoever it reaches goes on */
} gr_membership;

typedef struct gr_membership_config {
    int world_size;  /* numbers of members, with those that may join later */
    int first_size;  /* the first generation has the members [0, first_size); so many are wanted */
    int members_min; /* 0: all must live */
    bool failover;   /* there is no launcher: a quorum goes on, also when the coordinator dies */
    int successor;   /* with it, the number of the member that takes over; -1: the first one */
    gr_membership_send *send;
    void *send_arg;
    const gr_log *log;
} gr_membership_config;
gr_status gr_membership_init(gr_membership *membership, const gr_membership_config *config,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_membership_fini(gr_membership *membership);
/* A joining worker is going to send RENEW with the number of a member that has left or is lost. The
 * others do not wait for it, unless too few are left without it. When
 * workers are to join or to leave, all members get CHANGE and send RENEW when it suits them. */
void gr_membership_reserve(gr_membership *membership, int number);
/* Where a quorum goes on: has no process had this number, so that a joining worker may get it? No
 * number is free while a successor waits for the members, nor when the job is done. */
bool gr_membership_is_free(const gr_membership *membership, int number);
/* True: workers will join when too few are left, and the others wait for them. False at first. */
void gr_membership_expect_joining(gr_membership *membership, bool joining_expected);
/* So many are wanted from now on. When there are more, those with the highest ranks are dismissed;
 * when there are fewer, joining workers that wait get rank assignments. */
void gr_membership_set_target_size(gr_membership *membership, int count);

/* This one is to go, whatever its rank, once a member that stays knows the state of the job and
 * enough of them are there. Until then it counts beside those that are wanted. */
void gr_membership_drain(gr_membership *membership, int number);

/* What a member says. GR_E_PROTOCOL: no correct member says that now; it is to be lost. After LEAVE
 * and FAIL its connection is of no use any more. */
gr_status gr_membership_hello(gr_membership *membership, int number,
                              const gr_hello *hello) GR_MUST_CHECK;
gr_status gr_membership_ready(gr_membership *membership, int number,
                              uint64_t generation) GR_MUST_CHECK;
gr_status gr_membership_renew(gr_membership *membership, int number) GR_MUST_CHECK;
gr_status gr_membership_leave(gr_membership *membership, int number) GR_MUST_CHECK;
gr_status gr_membership_fail(gr_membership *membership, int number,
                             const gr_diag *failure) GR_MUST_CHECK;
gr_status gr_membership_ask(gr_membership *membership, int number) GR_MUST_CHECK;

/* To a successor: it has lost its coordinator, knows this, and asks for a rank assignment. */
gr_status gr_membership_switch(gr_membership *membership, int number,
                               const gr_history *history) GR_MUST_CHECK;
/* A successor waits for all that may be members, until it is notified of each that it ended, or
 * that the time for it is over. */
bool gr_membership_gathers(const gr_membership *membership);
void gr_membership_gathered(gr_membership *membership);

/* Its connection is no more. Who had not called in may try again. */
void gr_membership_lost(gr_membership *membership, int number, const char *why);
/* Its process has ended, as its parent knows: the others need not wait for it. Nothing happens in a
 * group that cannot go on without it. */
void gr_membership_ended(gr_membership *membership, int number);

/* Returns true if no change of the membership is under way, or if the change cannot complete
 * without joining workers. */
bool gr_membership_at_rest(const gr_membership *membership);
/* Returns true if the group may go on without some of its members. */
bool gr_membership_elastic(const gr_membership *membership);

#endif
