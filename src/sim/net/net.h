/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_NET_NET_H
#define GR_SIM_NET_NET_H

/* The inside of a simulated network: net.c (time, faults), sim.c (the operations of a link). */

#include "link/mesh.h"
#include "sim/net/sim.h"

typedef struct gr_sim_message {
    gr_frame frame;
    const uint8_t *data;
    uint8_t *own;       /* the net's copy of the data, if it made one */
    uint64_t sum;       /* of the data when it was sent */
    int64_t arrives_us; /* GR_NEVER: held up by a partition */
    int64_t freed_us;   /* when the sender learns that it was released; GR_NEVER: not yet */
    uint32_t limit;     /* so many bytes of it will ever come */
    bool released;
} gr_sim_message;

/* One direction between two ranks. Positions count messages from 0. */
typedef struct gr_sim_stream {
    gr_sim_message *ring; /* net->ring_size, by position */
    uint64_t sent;        /* accepted */
    uint64_t seen;        /* arrived, and progress has looked at them */
    uint64_t taken;       /* gr_link_next */
    uint64_t freed;       /* all before are released, and the sender knows */
    uint32_t read_bytes;  /* of the head */
    int64_t more_us;      /* when the rest of the head comes */
    const void *reading;  /* where the head is read to */
    int64_t last_us;      /* when the last message arrives */
    int64_t end_us;       /* when the receiver sees that the sender is gone; GR_NEVER */
    bool cut;             /* by a partition */
} gr_sim_stream;

typedef struct gr_sim_mesh {
    gr_mesh base;
    gr_sim_net *net;
} gr_sim_mesh;

typedef struct gr_sim_rank {
    gr_mesh *mesh;    /* NULL: not made yet, or gone */
    bool gone;        /* killed, or its mesh is destroyed */
    int64_t again_us; /* it was asked to try again for no reason that it could see */
} gr_sim_rank;

enum { GR_SIM_COMPLAINT_BYTES = 160 };

struct gr_sim_net {
    gr_sim_config config;
    uint64_t state;
    int64_t now_us;
    uint32_t ring_size;     /* a power of two */
    gr_sim_stream *streams; /* [from * world_size + to] */
    gr_sim_message *messages;
    gr_sim_rank *ranks;
    gr_sim_wait *wait;
    void *wait_arg;
    uint64_t accepted;
    char complaint[GR_SIM_COMPLAINT_BYTES];
};

/* BYE and ABORT must never find the link full. */
enum { GR_SIM_RESERVED = 4 };

static inline gr_sim_stream *gr_sim_stream_of(gr_sim_net *net, int from, int to)
{
    return &net->streams[(size_t)from * (size_t)net->config.world_size + (size_t)to];
}

static inline gr_sim_message *gr_sim_message_at(const gr_sim_net *net, const gr_sim_stream *stream,
                                                uint64_t position)
{
    return &stream->ring[position & (net->ring_size - 1)];
}

bool gr_sim_chance(gr_sim_net *net, int percent);
/* How long something takes from `from` to `to`. */
int64_t gr_sim_delay_us(gr_sim_net *net);
void gr_sim_complain(gr_sim_net *net, const char *what, int from, int to);
/* The rank's mesh is destroyed: nothing comes from it any more. */
void gr_sim_left(gr_sim_net *net, int rank);

#endif
