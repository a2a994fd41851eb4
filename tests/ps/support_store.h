/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_PS_SUPPORT_STORE_H
#define GR_TESTS_PS_SUPPORT_STORE_H

/* One store that leads and perhaps one that follows, with everything around them that a server
 * would be: leases that are counted and spoilt when they are released, answers that may come once,
 * loans that must not change, the way to the replica. Whatever is not as store.h says fails the
 * test at once. */

#include "ps/store/store.h"

enum { CLIENTS = 6, FIRST_CLIENT = 16, TICKETS_MAX = 1024, LOANS_MAX = 128, WIRE_MAX = 128 };

uint32_t random_next(uint64_t *state);
/* 0 .. below - 1 */
int random_below(uint64_t *state, int below);

/* ---- A momentum optimizer -------------------------------------------------------------------- */
extern const gr_ps_updater_ops momentum_updaters;
void momentum_apply(uint64_t step, double rate, float factor, float *values, float *momentum,
                    const float *gradient, size_t count);

/* ---- The world ------------------------------------------------------------------------------- */
typedef struct lease {
    float *values; /* heap, of exactly this size */
    int client;
    bool lasting;
    bool in_place; /* a ticket has them as `out` as well, and frees them */
    int released;
} lease;

typedef struct ticket {
    bool initial, pull, gone;
    int client;
    uint32_t block;
    uint64_t wanted; /* version, or step */
    uint64_t clock;
    int answers;
    gr_status status;
    gr_ps_outcome outcome;
    uint64_t version;
    float *out;    /* of some pushes: for the values behind it; heap, gone with the answer */
    float *before; /* in place: what was pushed; heap */
} ticket;

typedef struct loan {
    gr_ps_loan *loan;
    const float *values;
    float *copy; /* heap */
    uint32_t count;
} loan;

typedef struct wire {
    gr_ps_update update;
    int clients[CLIENTS];
    float *copy; /* heap */
} wire;

typedef struct ps_world {
    gr_ps_store_config config;
    gr_ps_store *leads, *follows;
    gr_ps_tensor tensor;
    uint64_t key;
    uint32_t blocks;
    ticket tickets[TICKETS_MAX];
    int ticket_count;
    lease *leases[TICKETS_MAX];
    int lease_count, leases_out;
    loan loans[LOANS_MAX];
    int loan_count;
    wire wires[WIRE_MAX]; /* on the way to the replica, a queue */
    int wire_count;
    struct {
        uint32_t block;
        uint64_t version;
    } acks[WIRE_MAX]; /* on the way back */
    int ack_count;
    char text[GR_DIAG_TEXT_BYTES]; /* of the last answer that was a failure */
    long puts;                     /* values that were where their push said */
    long allocated;                /* calls of the store's hook */
    long allocations;              /* by the store's hooks, not freed */
    bool refuse_memory;
    /* Called with each answer of a pull before anything else; may be NULL. */
    void (*check_pulled)(struct ps_world *world, const ticket *ticket, const gr_ps_pulled *answer);
    void (*check_pushed)(struct ps_world *world, const ticket *ticket, const gr_ps_pushed *answer);
    void *arg;
} ps_world;

/* Everything but the stores: the config may still be changed. */
void world_prepare(ps_world *world, const gr_ps_spec *spec, uint32_t block);
/* In blocks of so many elements. */
gr_ps_tensor small_tensor(const gr_ps_spec *spec, uint32_t block);
/* Declares the tensor and holds all of its blocks; with a replica if asked for. */
void world_start(ps_world *world, bool replica);
/* Gives all loans back, destroys, and checks that nothing is left. */
void world_close(ps_world *world);

/* Returns the token. The values are copied into a lease of their own. */
int world_set(ps_world *world, int client, uint32_t block, const float *values);
int world_push(ps_world *world, gr_ps_push push, const float *values, bool lasting);
int world_pull(ps_world *world, int client, uint32_t block, uint64_t version, uint64_t clock);
void world_give_back(ps_world *world, int index); /* of world->loans */
void world_gone(ps_world *world, int client);

bool world_deliver(ps_world *world); /* one update to the replica; false: none is on the way */
bool world_ack(ps_world *world);     /* one word of it back */
void world_flush(ps_world *world);   /* all of both */
void world_cut(ps_world *world);     /* what is on the way, both ways, is lost */
/* The leading server is lost, with what is on the way behind the first `arrive` updates. The
 * replica leads; a new one is made if asked for. Nobody who waited is answered. */
void world_promote(ps_world *world, int arrive, bool replica);
/* The replica is lost: there is none from now on, or, if asked for, a new one at once, while those
 * who wait go on waiting. */
void world_lose_replica(ps_world *world, bool replace);
void world_new_replica(ps_world *world);
uint64_t world_version(const gr_ps_store *store, uint64_t key, uint32_t block);

#endif
