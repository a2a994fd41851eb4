/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_MESSAGE_H
#define GR_GROUP_MESSAGE_H

/* The messages between members and coordinator, as bytes. Pure functions.
 *
 *  0  u32  magic "GRC1"       8  u32  bytes of the body
 *  4  u16  version           12  u32  zero
 *  6  u16  kind              16  u64  XXH3-64 of bytes 0..15, then of the body
 * 24       the body; all little-endian */

#include "group/op_report.h"
#include "group/topology.h"
#include "link/interface.h"

typedef enum gr_message_kind {
    GR_MESSAGE_HELLO = 1,   /* member: here I am */
    GR_MESSAGE_MEMBERS = 2, /* coordinator: all are here, this is where */
    GR_MESSAGE_ASK = 3,     /* member: who is missing? */
    GR_MESSAGE_MISSING = 4, /* coordinator: these */
    GR_MESSAGE_READY = 5,   /* member: linked to all others */
    GR_MESSAGE_LEAVE = 6,   /* member: I leave in order */
    GR_MESSAGE_FAIL = 7,    /* either: it will come to nothing, because */
    GR_MESSAGE_RENEW =
        8, /* member: give me a rank assignment in the next generation, mine is over */
    GR_MESSAGE_ASSIGN = 9, /* coordinator: all that live have asked, this is yours */
    GR_MESSAGE_CHANGE =
        10, /* coordinator: others are to come or to go: ask for a rank assignment (RENEW)
                              * between two steps, all after the same one */
    GR_MESSAGE_DISMISS = 11, /* coordinator: you are not needed (any more) */
    GR_MESSAGE_PING = 12,    /* either: nothing; that it is not acknowledged tells of a cut cable */
    /* 13 and 14 are not used any more */
    GR_MESSAGE_HISTORY = 15, /* coordinator: which generations there are, should a successor ask;
                              * member, to a successor: that, and let me be in the next one */
    GR_MESSAGE_REPORT = 16,  /* either: what a rank waits for, and what follows (op_report.h) */
    GR_MESSAGE_KIND_END
} gr_message_kind;

enum {
    GR_MESSAGE_HEAD_BYTES = 24,
    GR_MESSAGE_BODY_MAX = 8 << 20,
    GR_MESSAGE_SMALL_MAX = 2560, /* any message but MEMBERS, with its head */
    GR_MISSING_LISTED_MAX = 32
};

/* Where a member is. */
typedef struct gr_member {
    uint64_t host; /* gr_host_identify */
    char host_name[GR_HOST_NAME_BYTES];
    char local[GR_ADDRESS_BYTES]; /* for peers on its host; "": only by tcp */
    char remote[GR_REMOTE_BYTES]; /* for all others, blanks between; "": only on its host */
    uint32_t number;              /* its rank in the first generation; the coordinator says it */
    /* Where it is reached when it takes over from the coordinator; "": nowhere. */
    char failover[GR_REMOTE_BYTES];
} gr_member;

/* A set of members, by their numbers. */
typedef struct gr_numbers {
    uint8_t bits[GR_GROUP_WORLD_MAX / 8];
} gr_numbers;

/* What a member knows of the generations of its group, and what a successor of the coordinator must
 * know to make the next one (quorum.h). */
typedef struct gr_history {
    uint64_t committed; /* the newest that all of its members have agreed to; 0: none */
    uint64_t accepted;  /* the newest that this member has agreed to; at least the former */
    gr_numbers committed_members, accepted_members;
    /* Of the generation before `committed`, if that one is larger and some of its members may not
     * know yet that it came about; else none. */
    gr_numbers former_members;
    gr_numbers used; /* the numbers that a process has had: none gets one of them any more */
} gr_history;

typedef struct gr_hello {
    uint32_t world_size;
    uint32_t link; /* gr_link_choice */
    uint64_t pid;
    uint64_t generation; /* that of the rank assignment */
    gr_member member;    /* addresses are empty in a world of one */
} gr_hello;

/* A place in a generation that is about to begin; HELLO answers it. */
typedef struct gr_assignment {
    uint64_t generation;
    uint32_t rank, world_size;
    uint32_t number; /* of the member: for good, whatever its rank in later generations */
} gr_assignment;

typedef struct gr_missing {
    uint32_t total;
    uint32_t listed;
    uint32_t ranks[GR_MISSING_LISTED_MAX];
} gr_missing;

/* Whole messages. The result is their size in bytes; `out` has GR_MESSAGE_SMALL_MAX. */
size_t gr_message_put_hello(const gr_hello *hello, uint8_t *out);
size_t gr_message_put_missing(const gr_missing *missing, uint8_t *out);
size_t gr_message_put_fail(const gr_diag *failure, uint8_t *out);
size_t gr_message_put_assignment(const gr_assignment *assignment, uint8_t *out);
size_t gr_message_put_history(const gr_history *history, uint8_t *out);
size_t gr_message_put_report(const gr_op_report *report, uint8_t *out);
size_t gr_message_put_ready(uint64_t generation, uint8_t *out);
size_t gr_message_put_empty(gr_message_kind kind, uint8_t *out); /* those without a body */

/* MEMBERS: `out` has gr_message_members_max bytes. */
size_t gr_message_members_max(int world_size);
size_t gr_message_put_members(uint64_t generation, int world_size, const gr_member *members,
                              uint8_t *out);

/* The message at the start of `data`. GR_OK: *kind_out, its body, its whole size; GR_PENDING: more
 * bytes are needed; GR_E_PROTOCOL. */
gr_status gr_message_get(const uint8_t *data, size_t size_bytes, gr_message_kind *kind_out,
                         const uint8_t **body_out, size_t *body_bytes_out,
                         gr_diag *diag) GR_MUST_CHECK;

/* Bodies; GR_E_PROTOCOL if they are malformed. */
gr_status gr_message_get_hello(const uint8_t *body, size_t size_bytes, gr_hello *hello_out,
                               gr_diag *diag) GR_MUST_CHECK;
gr_status gr_message_get_missing(const uint8_t *body, size_t size_bytes, gr_missing *missing_out,
                                 gr_diag *diag) GR_MUST_CHECK;
gr_status gr_message_get_fail(const uint8_t *body, size_t size_bytes, gr_diag *failure_out,
                              gr_diag *diag) GR_MUST_CHECK;
gr_status gr_message_get_assignment(const uint8_t *body, size_t size_bytes,
                                    gr_assignment *assignment_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_message_get_history(const uint8_t *body, size_t size_bytes, gr_history *history_out,
                                 gr_diag *diag) GR_MUST_CHECK;
gr_status gr_message_get_ready(const uint8_t *body, size_t size_bytes, uint64_t *generation_out,
                               gr_diag *diag) GR_MUST_CHECK;
gr_status gr_message_get_members(const uint8_t *body, size_t size_bytes, int world_size,
                                 uint64_t *generation_out, gr_member *members_out,
                                 gr_diag *diag) GR_MUST_CHECK;

#endif
