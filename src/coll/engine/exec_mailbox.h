/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_EXEC_MAILBOX_H
#define GR_COLL_ENGINE_EXEC_MAILBOX_H

/* What an operation and a link keep of messages between two ranks: part of exec_internal.h. */

#include "coll/engine/exec.h"

/* How far a message has come. */
typedef enum gr_message_stage {
    GR_MESSAGE_QUEUED,    /* send: the link has nothing of it. Receive: nothing matches yet */
    GR_MESSAGE_ANNOUNCED, /* send: the receiver has not asked for it. Receive: the reverse */
    GR_MESSAGE_MOVING,    /* send: to be handed to the link. Receive: more of it is to come */
    GR_MESSAGE_SENT       /* send: the link has all, and still reads it */
} gr_message_stage;

/* Of an operation that is a message: exec_message.c. */
typedef struct gr_op_message {
    gr_op *next; /* in the queue of its stage */
    gr_message_stage stage;
    bool any_source, any_tag;
    bool entered; /* matching knows it */
    uint32_t tag;
    size_t done_bytes; /* that the link was handed, or has delivered */
    uint64_t ticket;   /* of what the link was handed last */
    gr_message_source *source_out;
} gr_op_message;

typedef struct gr_exec_queue {
    gr_op *first, *last;
} gr_exec_queue;

/* A message, or its announcement, that no receive was started for. Its bytes are behind it. */
typedef struct gr_exec_kept gr_exec_kept;
struct gr_exec_kept {
    gr_exec_kept *next; /* of the same sender, in its order */
    gr_frame frame;
};

/* The messages of one link, in both directions. */
typedef struct gr_exec_mailbox {
    gr_exec_queue to_send, announced, moving, sent; /* sends by stage; in order */
    gr_exec_queue to_grant, granted;                /* receives: to be asked for, asked for */
    gr_exec_kept *kept_first, *kept_last;
    size_t kept_bytes, kept_announcements;
    gr_op *reading;             /* the receive whose message is the head of the link */
    gr_exec_kept *reading_kept; /* the same, of one that is to be kept */
    int awaited;                /* receives that can match a message of this peer alone */
    uint32_t seen;              /* messages that have come: the number of the next one */
    size_t window_bytes;        /* that may still be sent unasked */
    size_t owed_bytes;          /* that were taken, and that the sender does not know of */
    uint64_t control_ticket;    /* of the last frame without data ... */
    bool control_waits;         /* ... which may not have left */
} gr_exec_mailbox;

#endif
