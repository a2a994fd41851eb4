/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_QUEUE_H
#define GR_LAUNCH_AGENT_QUEUE_H

/* What the non-blocking socket of an agent has no room for yet. The socket holds some 250 messages,
 * and an agent that starts a worker, or stands still, reads none. */

#include "launch/agent.h"

enum { GR_AGENT_QUEUE_MAX = 1 << 16 }; /* several messages for each worker that a host may have */

typedef struct gr_agent_queue { /* of zeros: empty */
    gr_agent_message *at;
    size_t count, room;
} gr_agent_queue;

void gr_agent_queue_fini(gr_agent_queue *queue); /* it is empty again */

/* Sends the message, or keeps it where others wait or the socket is full. 0 or errno: ENOBUFS: so
 * many wait that the other side does not read; ENOMEM; those of gr_agent_send. */
int gr_agent_queue_send(gr_agent_queue *queue, int socket_fd, const gr_agent_message *message);
/* Sends what waits, as far as there is room: for when the socket is writable. 0 or errno. */
int gr_agent_queue_flush(gr_agent_queue *queue, int socket_fd);
/* Returns true if something waits. */
static inline bool gr_agent_queue_holds(const gr_agent_queue *queue)
{
    return queue->count > 0;
}

#endif
