/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_CLIENT_PACE_H
#define GR_PS_CLIENT_PACE_H

/* How fast a client pushes gradients to one server whose values it waits for. Pure: the caller says
 * what goes, what comes back, and when.
 *
 * The values of a block come when all workers have pushed it. Streams that share a wire do not get
 * equal parts of it, so with all of them at full speed a worker is far ahead at one server and far
 * behind at another; both servers wait for whoever is last, and cannot make up for it later, since
 * values take as long as gradients. And what is ahead takes the wire from what servers send to
 * replicas. So no more is on the way than what a wire needs to be busy: what came back lately in
 * the time that a block takes there and back when nothing stands in its way, and some.
 *
 * Where nothing comes back, another worker is late, or this one has to push more before anything
 * can: then twice as much goes each time, until something comes. */

#include <stdbool.h>
#include <stdint.h>

enum {
    GR_PS_PACE_US = 10000,        /* how often what came is looked at */
    GR_PS_PACE_BYTES = 256 << 10, /* on the way at any time, */
    GR_PS_PACE_BLOCKS = 4         /* or so many: one goes, one is added up, one comes back */
};

/* Zeroed: nothing is on the way. */
typedef struct gr_ps_pace {
    uint64_t on_way_bytes;
    uint64_t came_bytes; /* since looked_us */
    uint64_t way_bytes;  /* what the way holds: at the speed at which they came */
    int64_t looked_us;
    int doubled;
    uint64_t probe; /* the block whose time is taken */
    int64_t probe_us;
    bool probes;
    int64_t least_us; /* there and back; 0: not known */
} gr_ps_pace;

/* Returns true if a block of a tensor with such blocks may go now. If not, ask again when something
 * has arrived, or at gr_ps_pace_next_us at the latest. */
bool gr_ps_pace_allows(gr_ps_pace *pace, uint64_t block_bytes, int64_t now_us);
int64_t gr_ps_pace_next_us(const gr_ps_pace *pace);
/* A block goes, its values have come. `block`: any number that nothing else on the way has. */
void gr_ps_pace_went(gr_ps_pace *pace, uint64_t block, uint64_t size_bytes, int64_t now_us);
void gr_ps_pace_came(gr_ps_pace *pace, uint64_t block, uint64_t size_bytes, int64_t now_us);
/* So much of what is on the way will not come. */
void gr_ps_pace_forget(gr_ps_pace *pace, uint64_t size_bytes);

#endif
