/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SELECT_COST_MODEL_H
#define GR_COLL_SELECT_COST_MODEL_H

/* How long would a plan take? The costs of links, of adding and of waiting, evaluated on the plans
 * themselves: each rank's steps in their order, each receive behind its send, each message in its
 * segments. What the ranks of a host share bounds the time besides: its cores, its memory, its
 * network interface. The time is the longest of the critical path and these bounds.
 *
 * The same numbers give the same prediction on every rank and processor: plain double arithmetic in
 * one order, without contraction. */

#include "coll/plan/plan.h"
#include "link/link.h"

typedef struct gr_link_cost {
    double latency_us;   /* from the end of a send until the peer can take the message */
    double send_us;      /* processor time of a message, sender */
    double recv_us;      /* the same, receiver */
    double send_byte_us; /* processor time of a byte, sender */
    double recv_byte_us; /* receiver, into the user's buffer */
    double view_byte_us; /* receiver, into scratch: nothing where the peer's memory is read */
    double wire_byte_us; /* a byte of one message on its way */
    double host_byte_us; /* a byte of all messages that leave (or enter) a host together */
    double next_share;   /* of send_us and recv_us: for a message behind another one of that peer */
    double together_share; /* the same, a short one, nothing waited for between: both go by one call
                              of the system, and arrive by one */
    double peer_share;     /* so much more each byte costs for each further peer of a rank: what is
                            under way fits the caches less */
} gr_link_cost;

enum { GR_MODEL_INSIDE = 0, GR_MODEL_BETWEEN = 1, GR_MODEL_LINKS = 2 };

/* Nothing but doubles: ranks send each other the model as so many numbers. */
typedef struct gr_cost_model {
    gr_link_cost link[GR_MODEL_LINKS]; /* inside a host, between hosts */
    double start_us;                   /* an operation without messages */
    double wait_us; /* processor time of a wait, where ranks share cores: a change of process */
    double turn_us; /* on top, for each other rank of the core: it looks for its own news before */
    double copy_byte_us;
    double far_byte_us;    /* on top, where buffers do not fit the caches: a byte copied or added */
    double memory_byte_us; /* the same, of all ranks of a host together: reads and writes */
    double cache_bytes;
    double cores;                       /* of a host */
    double add_byte_us[GR_DTYPE_COUNT]; /* a byte of the sum */
} gr_cost_model;

/* Measured on a machine of two cores; what is inside a host goes by shm or tcp. `gradus tune` and
 * the start of a communicator know better. */
void gr_cost_model_defaults(gr_cost_model *model, gr_link_kind inside);

typedef struct gr_prediction {
    double time_us;
    double latency_us, bandwidth_us, reduction_us; /* the parts of it; they add up */
    const char *bound;   /* what makes the time: "path", "cores", "memory", "network" */
    uint64_t messages;   /* of the rank that sends most, each segment counted */
    uint64_t bytes_sent; /* the same */
    uint32_t segments;   /* of the largest block */
    int ranks_walked;    /* fewer than the world: a few stand for all */
} gr_prediction;

/* The plans of an algorithm that has plans, ready to be timed at many sizes. `shape->rank` does not
 * matter; the shape's topology is borrowed. GR_E_NO_MEMORY; GR_E_BUG: a plan is malformed. */
typedef struct gr_cost gr_cost;
gr_status gr_cost_create(const gr_algorithm *algorithm, const gr_plan_shape *shape,
                         gr_cost **walk_out) GR_MUST_CHECK;
void gr_cost_destroy(gr_cost *walk); /* NULL ok */

double gr_cost_time(gr_cost *walk, const gr_cost_model *model, gr_dtype dtype, size_t size_bytes,
                    size_t segment_bytes);
/* Of what was timed last: for how long the rank that sends most messages is at that, or the cores
 * of a host with those of all its ranks; what grows with the bytes left out. */
double gr_cost_sending_us(const gr_cost *walk);
/* The time and what it is made of. */
gr_prediction gr_cost_predict(gr_cost *walk, const gr_cost_model *model, gr_dtype dtype,
                              size_t size_bytes, size_t segment_bytes);
/* The largest block of a buffer of this size. */
size_t gr_cost_block_bytes(const gr_cost *walk, size_t size_bytes);
int gr_cost_hosts(const gr_cost *walk);
/* Returns true if a rank keeps anything in scratch. */
bool gr_cost_uses_scratch(const gr_cost *walk);

#endif
