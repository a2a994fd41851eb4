/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SHM_SHM_H
#define GR_LINK_SHM_SHM_H

#include "base/stream.h"
#include "link/mesh.h"
#include "link/shm/heap.h"
#include "link/shm/registered.h"
#include "link/shm/segment.h"

#include <sys/types.h>

typedef struct gr_shm_mesh {
    gr_mesh base;
    gr_shm_segment own;
    gr_shm_heap heap;
    gr_shm_registered registered;
    atomic_bool in_epoll; /* the owner sleeps on the sockets, not on its doorbell */
    bool idle;            /* the last sleep brought no data */
    gr_cma cma;           /* is memory that is not shared to be reached through the kernel? */
} gr_shm_mesh;

/* A message that is copied through the stage in pieces; the data is the caller's until it is
 * done. */
typedef struct gr_shm_pending {
    gr_frame frame;
    const uint8_t *data;
    uint32_t done_bytes;
    bool active;
} gr_shm_pending;

typedef struct gr_shm_link {
    gr_link base;
    gr_shm_segment theirs;
    gr_shm_pair *out;      /* in our file: the ring that we fill, the counter of what we released */
    const gr_shm_pair *in; /* in their file: the ring that we empty, what they released */
    gr_shm_doorbell *doorbell; /* theirs */
    bool given;                /* our file was handed over */
    pid_t pid;                 /* whose memory the kernel lets us reach; 0: it does not */
    int pid_fd;                /* the same process, whatever becomes of the number; if pid > 0 */

    /* Sending. Indices count descriptors from 0 and never wrap. */
    uint64_t head;          /* the next to fill */
    uint64_t freed;         /* how many they had released when we last looked */
    uint64_t wanted;        /* somebody waits for this many; 0: nobody waits */
    uint64_t last_borrowed; /* head after the last message that lies in our heap */
    uint64_t stage_head, stage_tail;
    gr_stream to_stage;
    gr_shm_pending pending;
    uint64_t borrowed[GR_SHM_SLOTS];  /* last_borrowed when the descriptor was filled */
    uint64_t stage_end[GR_SHM_SLOTS]; /* stage_head then */

    /* Receiving. */
    uint64_t tail;     /* the descriptor of the message at the head */
    uint64_t released; /* all before it were released */
    uint64_t seen;     /* all before it were looked at by progress or peek */
    bool have;         /* frame, place and at describe the message at the head */
    uint8_t place;
    gr_frame frame;
    const uint8_t *at;
    uint32_t got_bytes;  /* of a message in pieces */
    uint32_t skip_bytes; /* of a message in pieces that was taken off before it was complete */
    uint64_t held[GR_SHM_SLOTS / 64];
} gr_shm_link;

/* ring.c */
void gr_shm_link_scan(gr_shm_link *link); /* notice BYE and ABORT among what has arrived */
void gr_shm_link_push(gr_shm_link *link); /* move the pending message on */
void gr_shm_link_poll_released(
    gr_shm_link *link);                   /* notice what was released, if somebody waits for it */
void gr_shm_link_skip(gr_shm_link *link); /* pass over a message that nobody wants */
bool gr_shm_link_has_events(const gr_shm_link *link); /* arrived or released since we last looked */
void gr_shm_link_leave(gr_link *link);
gr_status gr_shm_link_send(gr_link *link, const gr_frame *frame, const void *data,
                           uint64_t *ticket_out);
bool gr_shm_link_sent(gr_link *link, uint64_t ticket);
gr_status gr_shm_link_peek(gr_link *link, gr_frame *frame_out);
gr_status gr_shm_link_view(gr_link *link, const void **data_out);
gr_status gr_shm_link_read(gr_link *link, void *dst);
void gr_shm_link_next(gr_link *link, uint64_t *hold_out);
void gr_shm_link_release(gr_link *link, uint64_t hold);
void gr_shm_link_discard(gr_link *link);

/* cma.c */
void gr_shm_cma_open(gr_shm_mesh *mesh, gr_cma cma);
void gr_shm_cma_attach(gr_shm_link *link); /* once `theirs` is mapped */
void gr_shm_cma_detach(gr_shm_link *link);

/* Wake the peer if it sleeps. True if that took a system call. */
bool gr_shm_link_wake(gr_shm_link *link);

#endif
