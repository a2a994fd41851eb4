/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_MIN = 64 };

void gr_agent_queue_fini(gr_agent_queue *queue)
{
    free(queue->at);
    *queue = (gr_agent_queue){.at = NULL};
}

static int keep(gr_agent_queue *queue, const gr_agent_message *message)
{
    if (queue->count == GR_AGENT_QUEUE_MAX) {
        return ENOBUFS;
    }
    if (queue->count == queue->room) {
        size_t room = queue->room > 0 ? 2 * queue->room : ROOM_MIN;
        gr_agent_message *at = realloc(queue->at, room * sizeof *at);
        if (at == NULL) {
            return ENOMEM;
        }
        queue->at = at;
        queue->room = room;
    }
    queue->at[queue->count++] = *message;
    return 0;
}

int gr_agent_queue_flush(gr_agent_queue *queue, int socket_fd)
{
    size_t sent = 0;
    int error = 0;
    while (sent < queue->count && error == 0) {
        error = gr_agent_send(socket_fd, &queue->at[sent]);
        sent += error == 0;
    }
    queue->count -= sent;
    if (sent > 0) {
        memmove(queue->at, queue->at + sent, queue->count * sizeof *queue->at);
    }
    return error == EAGAIN ? 0 : error;
}

int gr_agent_queue_send(gr_agent_queue *queue, int socket_fd, const gr_agent_message *message)
{
    int error = queue->count > 0 ? EAGAIN : gr_agent_send(socket_fd, message);
    return error == EAGAIN ? keep(queue, message) : error;
}
