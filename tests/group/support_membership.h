/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_GROUP_SUPPORT_MEMBERSHIP_H
#define GR_TESTS_GROUP_SUPPORT_MEMBERSHIP_H

/* A job of a few members, as far as their membership goes: the coordinator's rules as they are, a
 * model of each member, and what is on its way between them. Whoever uses it decides what happens
 * next. */

#include "group/membership.h"
#include "support_search.h"

#include <stddef.h>

enum {
    MODEL_MEMBERS_MAX = 6,
    MODEL_QUEUE_MAX = 10,
    MODEL_GENERATIONS_MAX = 32,
    MODEL_RULES_BYTES = offsetof(gr_membership, failure) /* all that changes stands before it */
};

typedef enum phase {
    PHASE_OUTSIDE = 0, /* started, has not called in */
    PHASE_CALLED,      /* has said HELLO, waits for MEMBERS */
    PHASE_WIRING,      /* makes links */
    PHASE_RUNNING,     /* has said READY */
    PHASE_RENEWING,    /* has said RENEW, waits for a rank assignment */
    PHASE_LEFT,        /* its part is done */
    PHASE_ENDED,       /* with a failure that was told to it */
    PHASE_DEAD
} phase;

/* ASSIGN: generation, rank, size. MEMBERS: generation, set of numbers. FAIL: -status. Of what goes
 * up HELLO and READY: generation. */
typedef struct word {
    uint8_t kind, a, b, c;
} word;

typedef struct model_member {
    uint8_t phase;
    bool was_ready; /* once: from then on it leaves in order */
    bool cut;       /* has no connection to the coordinator any more, and may not know it yet */
    bool buried;    /* the launcher has said that it ended */
    uint8_t from;   /* the generation of its last rank assignment */
    uint8_t rank, size;
    bool joining; /* invited, and has not run yet: it waits until the others are ready for it */
    bool change;  /* it has heard that others are to come or to go */
    uint8_t set;  /* of numbers: who is in its generation */
    uint8_t up_count, down_count;
    word up[MODEL_QUEUE_MAX];
    word down[MODEL_QUEUE_MAX];
} model_member;

/* What can be told from each other is in here, and nothing else: it is compared by its bytes. */
typedef struct model_state {
    uint8_t rules[MODEL_RULES_BYTES];
    int32_t failure;
    gr_standing standings[MODEL_MEMBERS_MAX];
    model_member members[MODEL_MEMBERS_MAX];
    uint8_t sets[MODEL_GENERATIONS_MAX]; /* whom MEMBERS has named, by generation */
    uint8_t entered;                     /* who has begun to wire the newest generation */
    /* So many may still happen. */
    uint8_t crashes, cuts, breaks, surrenders, leaves, invites, wants, releases;
} model_state;

typedef enum event_kind {
    EVENT_CALL_IN,   /* a member says HELLO for the first time */
    EVENT_HEAR_UP,   /* the coordinator takes the next message of a member */
    EVENT_HEAR_DOWN, /* the member the coordinator's */
    EVENT_WIRE,      /* linked to all others */
    EVENT_NOTICE,    /* somebody of its generation is gone */
    EVENT_NOTICE_CUT,
    EVENT_CHANGE, /* a member that was asked to change asks for another rank assignment */
    EVENT_BURY,   /* the launcher sees that a process has ended */
    EVENT_FAULTS, /* from here on they may happen, but need not */
    EVENT_LEAVE = EVENT_FAULTS,
    EVENT_CRASH,     /* what it has sent still comes... */
    EVENT_VANISH,    /* ...or not */
    EVENT_CUT,       /* its connection to the coordinator breaks, no other one */
    EVENT_BREAK,     /* a link breaks though both live */
    EVENT_SURRENDER, /* it has waited for too long */
    EVENT_INVITE,    /* a joining worker is started in the place of one that is no more */
    EVENT_WANT,      /* so many members are wanted: the number and one more */
    EVENT_RELEASE,   /* this one is to go */
    EVENT_KINDS
} event_kind;

typedef struct model {
    gr_membership rules; /* of the state that is looked at */
    model_state now;
    int size, first_size;
    bool elastic;
    char why[SEARCH_WHY_BYTES];
} model;

/* `size` numbers, of which the first first_size are members of the first generation. The limits on
 * what may still happen are 0. False: no memory. */
bool model_init(model *m, int size, int first_size, int members_min);
void model_fini(model *m);
/* Between what is kept and the rules. */
void model_restore(model *m, const model_state *from);
void model_keep(model *m);

bool model_can(const model *m, event_kind kind, int number);
void model_happen(model *m, event_kind kind, int number);
bool model_alive(const model_member *of);

/* Must always hold; false: `why` says what does not. */
bool model_agrees(model *m);
/* Must hold when nothing happens any more by itself. */
bool model_rests(model *m);

const char *model_phase_name(int of);
const char *model_event_name(event_kind kind);

#endif
