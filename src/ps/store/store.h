/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_STORE_STORE_H
#define GR_PS_STORE_STORE_H

/* The rules of one parameter server: what it keeps, what a push does to it, who is answered when.
 * Pure: no sockets, no clock, no threads; all that happens is a call, all that follows from it are
 * calls of the functions in gr_ps_store_ops, before it returns. One thread at a time.
 *
 * A tensor is known by its key, a hash of its name that all processes agree on. It is cut into
 * blocks; a server has some of them, as gr_ps_store_hold says. A block has values, the states of
 * its optimizer, and a version: how many updates were made.
 *
 * Who pushes is called by its number, the client: 0 .. GR_PS_PEERS_MAX - 1. A worker that comes
 * back after its death under its old number is the same client. Every push and every pull has a
 * token, which the store only hands back; each gets exactly one answer, unless its client is gone
 * before (then none), or the store is destroyed.
 *
 * Replication. A block that has a replica on another server hands each update to `forward` before
 * anything else, and counts it as safe once gr_ps_store_replicated says so. A push is answered when
 * what it changed is safe, so a promoted replica has all that was answered; what was not answered
 * may or may not be in it, and is recognised when it is pushed again. */

#include "ps/tensor.h"

#include <gradus/ps.h>
#include <stdbool.h>

enum {
    GR_PS_WAITING_MAX = 1 << 20 /* pushes and pulls without an answer; more get GR_E_NO_MEMORY */
};

/* What updates values; optimizers live on a higher layer. One updater for each tensor. */
typedef struct gr_ps_updater_ops {
    /* GR_E_INVALID: the tensor's optimizer cannot be made; `diag` says why. */
    gr_status (*create)(void *arg, const gr_ps_spec *tensor, void **updater_out, gr_diag *diag);
    void (*destroy)(void *updater);
    int (*states)(void *updater); /* vectors of as many elements as the values, zero at first */
    /* Changes values[0 .. count) and states[i][0 .. count) by gradient[0 .. count) times `factor`.
     * `step` counts updates from 0, `rate` is the learning rate. The same bits however a block is
     * cut into calls, of any alignment. False: a gradient is NaN or infinite; the values are
     * changed all the same. */
    bool (*update)(void *updater, uint64_t step, double rate, float factor, float *values,
                   float *const *states, const float *gradient, size_t count);
} gr_ps_updater_ops;

/* ---- What the store says --------------------------------------------------------------------- */
typedef enum gr_ps_outcome {
    GR_PS_TAKEN = 0,    /* it is in the values */
    GR_PS_REPEATED = 1, /* the same had been taken before */
    GR_PS_LATE = 2      /* backup: its step was made without it */
} gr_ps_outcome;

typedef struct gr_ps_pushed {
    int client;
    uint64_t token;
    gr_status status;      /* GR_OK; else nothing was changed, and `diag` says why */
    gr_ps_outcome outcome; /* with GR_OK */
    bool put;              /* the values are at the place that the push names */
    uint64_t version;      /* of the block, now; `put`: of those values */
    const gr_diag *diag;   /* until the callback returns; NULL with GR_OK */
} gr_ps_pushed;

/* Memory of values that were handed out. */
typedef struct gr_ps_loan gr_ps_loan;

typedef struct gr_ps_pulled {
    int client;
    uint64_t token;
    gr_status status;
    uint64_t version;
    const float *values; /* 64-byte aligned; stay as they are until gr_ps_store_give_back */
    uint32_t count;
    gr_ps_loan *loan;    /* with GR_OK: to be given back once */
    const gr_diag *diag; /* as above */
} gr_ps_pulled;

/* What a replica needs to become equal. */
typedef struct gr_ps_update {
    uint64_t key;
    uint32_t block;
    uint32_t count;   /* elements; of a table: rows */
    uint32_t columns; /* of a table; else 0 */
    bool initial;     /* `values` are the initial values; nothing below means anything */
    uint64_t version; /* that it was made from; one more afterwards */
    double rate;      /* with the staleness in it */
    float factor;
    uint64_t sequence;  /* async, ssp: of the push; backup: the step */
    const int *clients; /* async, ssp: who pushed; backup: whose pushes are in it; bsp: none */
    int client_count;
    /* The sum. On the primary it stays until gr_ps_store_replicated says that the replica has it,
     * or the block has no replica any more; on the replica, and of a table, it is borrowed for the
     * call. */
    const float *values;
    const uint32_t *rows; /* of a table: their numbers, ascending */
} gr_ps_update;

/* None may call the store, but as gr_ps_store_give_back says. */
typedef struct gr_ps_store_ops {
    void (*pushed)(void *arg, const gr_ps_pushed *answer);
    void (*pulled)(void *arg, const gr_ps_pulled *answer);
    /* The data that were pushed with this lease are not needed any more. */
    void (*release)(void *arg, void *lease);
    /* To the replica of the block, in this order; `update` is borrowed for the call. */
    void (*forward)(void *arg, const gr_ps_update *update);
    /* Memory of values and sums, 64-byte aligned, zeroed: so that it can be such that peers read it
     * where it lies. Both NULL: plain memory. */
    void *(*alloc)(void *arg, size_t size_bytes);
    void (*free)(void *arg, void *memory);
} gr_ps_store_ops;

typedef struct gr_ps_store_config {
    gr_ps_store_ops ops;
    void *ops_arg;
    gr_ps_updater_ops updaters;
    void *updaters_arg;
    uint64_t bytes_max; /* of all memory that the store takes; 0: no limit */
} gr_ps_store_config;

typedef struct gr_ps_store gr_ps_store;
/* The config is copied; what its `arg`s point to outlives the store. */
gr_status gr_ps_store_create(const gr_ps_store_config *config, gr_ps_store **store_out,
                             gr_diag *diag) GR_MUST_CHECK;
/* Releases all leases, answers nobody. Loans must have been given back. */
void gr_ps_store_destroy(gr_ps_store *store);

/* ---- Tensors and blocks ---------------------------------------------------------------------- */
/* `who`: the client, for the sentence; `tensor` is one that gr_ps_check_spec has found good. GR_OK,
 * also if it is declared alike already; GR_E_INVALID: it is declared otherwise (the sentence says
 * both), or its updater cannot be made; GR_E_NO_MEMORY. */
gr_status gr_ps_store_declare(gr_ps_store *store, int who, const gr_ps_tensor *tensor,
                              gr_diag *diag) GR_MUST_CHECK;

typedef enum gr_ps_role {
    GR_PS_ABSENT = 0, /* the block is not here */
    GR_PS_ALONE = 1,  /* here, without a replica elsewhere */
    GR_PS_LEADS = 2,  /* here, and a replica elsewhere receives updates */
    GR_PS_FOLLOWS = 3 /* the replica: changed by gr_ps_store_follow and gr_ps_store_restore alone */
} gr_ps_role;

/* What this server is to a block from now on. A new block has no values; zeroed memory is taken for
 * it. From follows to alone or leads: a promotion. From leads to alone: all updates are safe. To
 * leads: gr_ps_store_image, taken now, is what the new replica begins with; to lead again that is
 * already so is for a replica in place of a lost one. To follows or absent: who waits for an answer
 * gets GR_E_AGAIN. GR_OK; GR_E_NOT_FOUND: no such tensor; GR_E_INVALID: no such block;
 * GR_E_NO_MEMORY: the role is as it was. */
gr_status gr_ps_store_hold(gr_ps_store *store, uint64_t key, uint32_t block, gr_ps_role role,
                           gr_diag *diag) GR_MUST_CHECK;

/* Declared under this key, NULL: none. Stays until the store is destroyed. */
const gr_ps_tensor *gr_ps_store_tensor(const gr_ps_store *store, uint64_t key);

/* ---- Clients --------------------------------------------------------------------------------- */
/* Initial values of a block, copied. Answered by `pushed`: the first ones are taken, later ones are
 * repeats, whatever is in them. */
void gr_ps_store_set(gr_ps_store *store, int client, uint64_t token, uint64_t key, uint32_t block,
                     const float *values, uint64_t count);

typedef struct gr_ps_push {
    int client;
    uint64_t token;
    uint64_t key;
    uint32_t block;
    uint64_t count;    /* elements of data: as many as the block has; a table's: as the rows */
    uint64_t step;     /* bsp, backup: the step; async, ssp: the version that the gradient is of */
    int first, shards; /* bsp: of the shards [first, first + shards), a whole subtree */
    /* async, ssp: of this client and block. A number that was pushed already is a repeat; so no
     * client uses one twice, also not after its death (a clock's time to begin with, say), nor one
     * that is more than GR_PS_SEQUENCES_KEPT below its largest. */
    uint64_t sequence;
    double
        rate; /* learning rate. Alike in all pushes of a step: the first shard's, or the lowest */
    float factor; /* client's, counts. The sum is multiplied by the factor. */
    /* Where the values behind it are written while they are made, as many as the block has, if that
     * can be: the answer says so. Stays writable until then, or until the client is gone, or
     * forgotten. May be where the data lie. NULL: nowhere. */
    float *out;
} gr_ps_push;
enum { GR_PS_SEQUENCES_KEPT = 64 };

/* Where pushed data lie, until the lease is released. A view of the client's memory is only read,
 * and ends with the client; lasting data are the server's own: they stay, and the store may add
 * others to them. So it keeps no more of them than the shard tree needs. */
typedef struct gr_ps_data {
    const float *values; /* 4-byte aligned; lasting: writable */
    void *lease;         /* for `release` */
    bool lasting;
    const uint32_t *rows; /* a table's, lasting: their numbers, ascending, each one once */
    uint32_t row_count;
} gr_ps_data;

/* Answered by `pushed`. Statuses: GR_OK; GR_E_NOT_FOUND: no such tensor; GR_E_AGAIN: this server
 * does not lead the block (any more, or yet); GR_E_INVALID: no such block, a wrong count, shards
 * that are no subtree, a step in the future, no initial values yet; GR_E_NOT_FINITE: refused;
 * GR_E_NO_MEMORY: push it again. In bsp and backup a push is answered when its step has been made.
 *
 * Values that are on loan are copied before they change: give back first what can be. */
void gr_ps_store_push(gr_ps_store *store, const gr_ps_push *push, const gr_ps_data *data);

typedef struct gr_ps_pull {
    int client;
    uint64_t token;
    uint64_t key;
    uint32_t block;
    int state;        /* 0: the values; n: a copy of the n-th vector of states, at exactly
                       * `version` (GR_E_INVALID: the block is beyond it), 0: as it is */
    uint64_t version; /* at least this one: waits for it, and for its being safe */
    uint64_t clock; /* ssp: of the client, which it thereby has: waits until the slowest is no more
                         than `staleness` behind */
    bool reads;     /* ssp: it is no worker, and gets no clock */
    bool whole;     /* a copy of the values and, behind them, all vectors of states, of which
                     * `state` says how many there are; ssp: waits for nobody */
    bool rows;      /* of a table: `pulled` has no values and no loan, but may read them */
} gr_ps_pull;
/* Answered by `pulled`. */
void gr_ps_store_pull(gr_ps_store *store, const gr_ps_pull *pull);
/* The only call that may come out of a callback, but for the next one out of `pulled`. */
void gr_ps_store_give_back(gr_ps_store *store, gr_ps_loan *loan);
/* Rows of a table's block as they are: gr_ps_rows_pull. GR_E_NOT_FOUND: no such table here. */
gr_status gr_ps_store_read_rows(const gr_ps_store *store, uint64_t key, uint32_t block,
                                const uint32_t *rows, uint32_t count, float *values_out,
                                gr_diag *diag) GR_MUST_CHECK;

/* ssp: this client has reached `clock` (it never goes back), and counts among the workers from now
 * on. Who comes later begins at gr_ps_store_slowest, else the others wait for it. */
void gr_ps_store_clock(gr_ps_store *store, int client, uint64_t clock);
/* The clock of the slowest worker and who it is; false: there is no worker. */
bool gr_ps_store_slowest(const gr_ps_store *store, uint64_t *clock_out, int *client_out);

/* The client has left, or its connection has broken: nothing is answered to it any more, its clock
 * does not count, its pushes that wait in its own memory are forgotten (somebody pushes these
 * shards again), and leases of them released. */
void gr_ps_store_gone(gr_ps_store *store, int client);
/* The same of a client that is still there, and asks for all of it again: it keeps its clock. */
void gr_ps_store_forget(gr_ps_store *store, int client);

/* ---- Replicas -------------------------------------------------------------------------------- */
/* The replica of the block has all updates up to this version. */
void gr_ps_store_replicated(gr_ps_store *store, uint64_t key, uint32_t block, uint64_t version);

/* On a replica: an update of its primary. One that it has already is passed over. GR_E_INVALID: one
 * before it is missing: the replica needs an image. GR_E_NO_MEMORY: the same. */
gr_status gr_ps_store_follow(gr_ps_store *store, const gr_ps_update *update,
                             gr_diag *diag) GR_MUST_CHECK;

/* Which pushes of a client were taken: `newest`, and newest - 1 - i for each bit i. */
typedef struct gr_ps_seen {
    int client;
    uint64_t newest, before;
} gr_ps_seen;

/* A block as a whole: for a new replica, for checkpoints. Of a table, that may be large, it is a
 * beginning and pieces with some rows each; in between the block takes updates. One of a row that
 * has not come yet does no harm, since the row comes as it is behind it. */
typedef struct gr_ps_image {
    uint64_t key;
    uint32_t block;
    uint32_t count; /* elements; of a table: rows, from gr_ps_store_image all that exist */
    bool ready; /* it has values; a table: all its rows have come, or updates are taken as well */
    uint64_t version;
    const float *values; /* of a table: of each row its values, then its states */
    int states;
    const float *state[GR_PS_STATES_MAX]; /* but of a table */
    const gr_ps_seen *seen;
    int seen_count;
    uint32_t columns;     /* of a table; else 0 */
    bool begins, ends;    /* of a table: what the block had is dropped; this is all. Else both */
    const uint32_t *rows; /* of a table: numbers */
} gr_ps_image;
/* What the image points to stays until the next call. Of a table without rows. GR_E_NOT_FOUND,
 * GR_E_INVALID: as gr_ps_store_hold, or the block is not here. */
gr_status gr_ps_store_image(const gr_ps_store *store, uint64_t key, uint32_t block,
                            gr_ps_image *image_out, gr_diag *diag) GR_MUST_CHECK;
/* Rows of a table's block that exist, in the order in which they came to be, as images have them:
 * those from `from` on, which there are. */
void gr_ps_store_image_rows(const gr_ps_store *store, uint64_t key, uint32_t block, uint32_t from,
                            uint32_t count, uint32_t *rows_out, float *values_out);
/* Makes a block that is here what the image says, in any role but leads, and while nobody waits for
 * a step of it. GR_E_INVALID, GR_E_NO_MEMORY: the block is as it was; but of a table it may have
 * some of the rows. */
gr_status gr_ps_store_restore(gr_ps_store *store, const gr_ps_image *image,
                              gr_diag *diag) GR_MUST_CHECK;

/* ---- Looking --------------------------------------------------------------------------------- */
typedef struct gr_ps_stats {
    uint64_t bytes; /* taken */
    uint64_t tensors, blocks_led, blocks_followed;
    uint64_t updates; /* made here, or followed */
    uint64_t pushes_taken, pushes_repeated, pushes_late, pushes_refused;
    uint64_t pulls;                 /* answered with values */
    uint64_t waiting;               /* pushes and pulls that have no answer yet */
    uint64_t not_finite;            /* updates with a NaN or an infinity in the gradient */
    uint64_t copies;                /* of values that were on loan when they changed */
    uint64_t late[GR_PS_PEERS_MAX]; /* pushes by client */
    uint64_t last[GR_PS_PEERS_MAX]; /* bsp, backup: steps that this client's push completed */
    uint64_t staleness[GR_PS_STALENESS_BINS]; /* pushes; the last one: that, and more */
} gr_ps_stats;
void gr_ps_store_get_stats(const gr_ps_store *store, gr_ps_stats *stats_out);

/* The tensors in the order of their declaration; false past the end. */
typedef struct gr_ps_tensor_info {
    const gr_ps_tensor *tensor;
    int states;                        /* vectors, of its optimizer */
    uint32_t led, followed;            /* blocks */
    uint64_t version_min, version_max; /* of the blocks that are led and have values; 0, 0: none */
    uint64_t rows;                     /* of a table: those that exist */
} gr_ps_tensor_info;
bool gr_ps_store_info(const gr_ps_store *store, uint64_t index, gr_ps_tensor_info *info_out);

#endif
