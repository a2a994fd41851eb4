/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_STORE_STORE_INTERNAL_H
#define GR_PS_STORE_STORE_INTERNAL_H

/* What the files of the store share. Only src/ps/store*.c include this. */

#include "base/fail.h"
#include "ps/rows/rows.h"
#include "ps/store/store.h"
#include "ps/store/sum.h"

typedef struct gr_ps_held gr_ps_held;
typedef struct gr_ps_ticket gr_ps_ticket;
typedef struct gr_ps_unsafe gr_ps_unsafe;

/* Values or a sum, of the size that all blocks of the tensor have; or several such vectors. */
struct gr_ps_loan {
    float *values;
    int vectors; /* more than one: a copy for a pull of a whole block */
    int users;   /* the block, updates that are not safe, and pulls that are not given back */
    gr_ps_held *held;
    gr_ps_loan *next_spare;
    gr_ps_loan *previous, *next; /* all of the store */
};

/* A push or a pull that is not answered yet. */
struct gr_ps_ticket {
    gr_ps_ticket *next;
    int client;
    bool silent; /* the client is gone */
    uint64_t token;
    /* a pull */
    int state;
    bool whole;
    uint64_t version, clock;
    /* a push of the running step */
    int first, count; /* shards; backup: the client, 1 */
    bool chosen;      /* is in the sum */
    gr_ps_data data;
    double rate;
    float factor;
    float *out; /* for the values behind it, the client's; NULL: none */
    /* a push that is in the values */
    bool put; /* they are there */
    gr_ps_outcome outcome;
    uint64_t serial; /* to be safe first */
};

/* An update that the replica may lack. */
struct gr_ps_unsafe {
    gr_ps_unsafe *next;
    uint64_t serial;
    gr_ps_loan *values; /* NULL: a table's, whose sum is not kept */
};

typedef struct gr_ps_block {
    uint32_t number, count;
    gr_ps_role role; /* never GR_PS_ABSENT */
    bool ready;
    uint64_t version;
    uint64_t safe; /* a serial: 0: nothing; 1: the initial values; one more with each update */
    gr_ps_loan *values;
    gr_ps_rows *rows;    /* of a table, which has neither values nor states; else NULL */
    uint64_t rows_bytes; /* of them, that are counted */
    float *states;       /* one vector behind the other, each of the tensor's buffer size */
    gr_ps_ticket *step;  /* pushes of step `version`, left to right, the larger subtree first */
    int step_count;
    gr_ps_ticket *answers; /* pushes that wait for being safe */
    gr_ps_ticket *pulls;
    gr_ps_unsafe *unsafe, *unsafe_last;
    gr_ps_seen *seen;
    size_t seen_count, seen_capacity;
} gr_ps_block;

struct gr_ps_held {
    gr_ps_tensor tensor; /* its texts are own copies */
    void *updater;
    int states;
    size_t buffer;        /* elements of a loan and of a state vector */
    gr_ps_block **blocks; /* NULL: absent */
    uint32_t led, followed;
    gr_ps_loan *spares;
    uint32_t spare_count;
};

struct gr_ps_store {
    gr_ps_store_config config;
    gr_reduce_fn *add;
    gr_ps_held **held; /* in the order of declaration */
    size_t held_count, held_capacity;
    uint32_t *slots; /* hash table over `held`: index + 1; 0: free */
    size_t slot_count;
    gr_ps_loan *loans;
    gr_ps_ticket *free_tickets;
    gr_ps_unsafe *free_unsafe;
    gr_ps_part *parts;
    size_t part_capacity;
    int contributors[GR_PS_PEERS_MAX]; /* backup: whose pushes are in the step */
    float *scratch;
    int scratch_pieces;
    bool working[GR_PS_PEERS_MAX]; /* has a clock */
    uint64_t clock[GR_PS_PEERS_MAX];
    uint64_t slowest;   /* of those that work; UINT64_MAX: nobody does */
    uint64_t ssp_pulls; /* that wait, of all tensors in mode ssp */
    gr_ps_stats stats;
    gr_diag diag; /* of the answer that is being given */
};

static inline uint64_t gr_ps_serial(const gr_ps_block *block)
{
    return block->ready ? block->version + 1 : 0;
}

static inline gr_ps_adder gr_ps_adder_of(const gr_ps_store *store, const gr_ps_held *held)
{
    return (gr_ps_adder){.add = store->add, .type = (gr_dtype)held->tensor.spec.gradient_type};
}

static inline bool gr_ps_by_steps(const gr_ps_held *held)
{
    return held->tensor.spec.consistency == GR_BSP ||
           held->tensor.spec.consistency == GR_BSP_BACKUP;
}

/* ---- memory.c: all memory of the store counts, and has a limit ------------------------- */
/* Zeroed; `shared`: from config.ops.alloc. NULL: none left. */
void *gr_ps_take(gr_ps_store *store, size_t size_bytes, bool shared);
void gr_ps_drop(gr_ps_store *store, void *memory, size_t size_bytes, bool shared);
/* The array, or a larger one in its place, with room for `wanted` > 0; NULL: no memory, and it is
 * as it was. */
void *gr_ps_grow(gr_ps_store *store, void *array, size_t element_bytes, size_t used,
                 size_t *capacity, size_t wanted);
gr_ps_ticket *gr_ps_ticket_take(gr_ps_store *store); /* zeroed */
void gr_ps_ticket_drop(gr_ps_store *store, gr_ps_ticket *ticket);
gr_ps_unsafe *gr_ps_unsafe_take(gr_ps_store *store);
void gr_ps_unsafe_drop(gr_ps_store *store, gr_ps_unsafe *unsafe); /* and its user of the values */
/* With one user; contents undefined. `vectors`: so many, of `buffer` elements each. */
gr_ps_loan *gr_ps_loan_take(gr_ps_store *store, gr_ps_held *held);
gr_ps_loan *gr_ps_loan_make(gr_ps_store *store, gr_ps_held *held, int vectors);
void gr_ps_loan_drop(gr_ps_store *store, gr_ps_loan *loan); /* one user less */
/* Frees spares, but for as many as its blocks may use. */
void gr_ps_spares_trim(gr_ps_store *store, gr_ps_held *held, bool all);
void gr_ps_memory_fini(gr_ps_store *store); /* tickets, unsafes, loans, scratch */

/* ---- store.c --------------------------------------------------------------------------------- */
gr_ps_held *gr_ps_find(const gr_ps_store *store, uint64_t key);
/* GR_OK: both are set; GR_E_NOT_FOUND, GR_E_INVALID; GR_E_AGAIN: the block is absent. */
gr_status gr_ps_find_block(const gr_ps_store *store, uint64_t key, uint32_t number,
                           gr_ps_held **held_out, gr_ps_block **block_out, gr_diag *diag);

/* ---- answer.c: who receives what, and when ---------------------------------------------- */
/* Both answer with store->diag when the status is not GR_OK. */
void gr_ps_answer_pushed(gr_ps_store *store, const gr_ps_block *block, int client, uint64_t token,
                         gr_status status, gr_ps_outcome outcome);
/* The loan, with its user, goes to the client; NULL with a failure, and with a table. */
void gr_ps_answer_pulled(gr_ps_store *store, const gr_ps_block *block, gr_ps_loan *loan, int client,
                         uint64_t token, gr_status status);
/* Answers a push that is in the values now, or as soon as `serial` is safe. GR_E_NO_MEMORY. */
gr_status gr_ps_answer_safe(gr_ps_store *store, gr_ps_block *block, int client, uint64_t token,
                            gr_ps_outcome outcome, uint64_t serial) GR_MUST_CHECK;
/* Answers all that can be now. */
void gr_ps_settle(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block);
/* Everybody who waits gets GR_E_AGAIN. */
void gr_ps_dismiss(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block);
/* Takes the tickets of a client off; what lies in its memory is forgotten. */
enum { GR_PS_EVERYBODY = -1 };
void gr_ps_forget(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block, int client);

/* ---- update.c: how values change ------------------------------------------------------- */
typedef struct gr_ps_change {
    int shards; /* of the tree that store->parts[0 .. part_count) cover */
    int part_count;
    double rate;
    float factor;
    gr_ps_ticket *tickets; /* the pushes that it answers */
    const int *clients;    /* whose pushes are in it, to be remembered */
    int client_count;
    uint64_t sequence;
} gr_ps_change;

/* Room for so many parts. */
bool gr_ps_parts_reserve(gr_ps_store *store, size_t count);
/* One update, forwarded to the replica where there is one. GR_E_NO_MEMORY: nothing has changed. */
gr_status gr_ps_change_make(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                            const gr_ps_change *change) GR_MUST_CHECK;
/* The first values; the same. */
gr_status gr_ps_values_begin(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                             const float *values) GR_MUST_CHECK;

/* ---- table.c: tables -------------------------------------------------------------------- */
/* The block's rows: none so far, any more. GR_E_INVALID, GR_E_NO_MEMORY: as it was. */
gr_status gr_ps_table_begin(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                            gr_diag *diag) GR_MUST_CHECK;
void gr_ps_table_end(gr_ps_store *store, gr_ps_block *block);
/* Checks that the data fit. GR_E_INVALID with store->diag. */
gr_status gr_ps_table_check_push(gr_ps_store *store, const gr_ps_held *held, int client,
                                 const gr_ps_data *data, uint64_t count) GR_MUST_CHECK;
/* What a step adds to the rows of a table. */
typedef struct gr_ps_row_sum {
    uint32_t count;
    const uint32_t *rows;
    const float *values;
    void *memory[2]; /* for free; NULL: they are those of the only push */
} gr_ps_row_sum;
/* As gr_ps_change_make, but for what is remembered of it. With GR_OK the caller frees the sum. */
gr_status gr_ps_table_change(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                             const gr_ps_change *change, gr_ps_row_sum *sum_out,
                             bool *finite_out) GR_MUST_CHECK;
void gr_ps_row_sum_free(gr_ps_row_sum *sum);
/* gr_ps_store_restore of a table's block; its role is right. */
gr_status gr_ps_table_restore_block(gr_ps_store *store, gr_ps_held *held, gr_ps_block *block,
                                    const gr_ps_image *image, gr_diag *diag) GR_MUST_CHECK;

typedef enum gr_ps_known {
    GR_PS_UNKNOWN = 0, /* was not taken */
    GR_PS_KNOWN = 1,
    GR_PS_FORGOTTEN = 2 /* too long ago to tell */
} gr_ps_known;
gr_ps_known gr_ps_seen_find(const gr_ps_block *block, int client, uint64_t sequence);

#endif
