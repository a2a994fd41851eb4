/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_PS_H
#define GRADUS_PS_H

/* Parameter servers, as their clients see them. Servers (`gradus server`) keep tensors of f32 cut
 * into blocks, and update them; a client declares tensors, pushes gradients and pulls values. Any
 * process that holds the job's secret may be one, with or without the trainer, and may come and go
 * at any time. docs/ps.md tells the whole.
 *
 * Threads: one thread at a time per connection. Different connections are independent.
 *
 * Failures: a status with scope GR_SCOPE_CALL concerns the call, or the operation, alone;
 * GR_E_PEER_LOST that a server is gone: what needs it fails from then on with the same status,
 * and tensors of which it has no block are not touched by that. Where blocks have replicas calls
 * and operations go on with the other servers, and take longer; the status comes when nobody is
 * left who has a block. gr_ps_last_error has the sentence. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_ps gr_ps;       /* a connection to all servers of a job */
typedef struct gr_ps_op gr_ps_op; /* one operation under way */

enum {
    GR_PS_WORKERS_MAX = 192,      /* numbers of workers: 0 .. GR_PS_WORKERS_MAX - 1 */
    GR_PS_OPS_MAX = 256,          /* operations under way on one connection */
    GR_PS_NAME_BYTES = 128,       /* of a tensor's name, with its end */
    GR_PS_OPTIMIZER_BYTES = 1024, /* of an optimizer's text, with its end */
    GR_PS_STATES_MAX = 4,         /* vectors of state of an optimizer */
    GR_PS_COLUMNS_MAX = 1 << 16,  /* of a table */
    GR_PS_RUN_BYTES = 48          /* of a run's name, with its end */
};

/* When a push changes the values. */
typedef enum gr_consistency {
    GR_BSP = 0,        /* a step is done when all of its shards have come, added in canonical order:
                       * the same bits whoever computed them */
    GR_BSP_BACKUP = 1, /* a step is done when `aggregate` of `total` workers have pushed; later ones
                       * are dropped, and counted */
    GR_ASYNC = 2,      /* each push is applied as it comes */
    GR_SSP = 3         /* the same, but no pull is answered while the caller's clock is more than
                       * `staleness` ahead of the slowest worker's */
} gr_consistency;

/* What a tensor is. All clients declare it alike. */
typedef struct gr_ps_spec {
    const char *name;      /* at most GR_PS_NAME_BYTES - 1 printable characters; copied */
    uint64_t elements;     /* f32 values, 1 or more */
    int consistency;       /* a gr_consistency */
    int shards;            /* bsp: how many make a step; else ignored */
    int aggregate, total;  /* backup: K pushes of N workers; else ignored */
    int staleness;         /* ssp: how many clocks ahead; else ignored */
    int adapt_rate;        /* async, ssp: the rate is divided by 1 + staleness; 0: it is not */
    int refuse_not_finite; /* a push with NaN or infinity changes nothing: GR_E_NOT_FINITE */
    const char *optimizer; /* YAML, as under `optimizer:` in a job file; NULL or "": values are
                            * added up (value += factor * gradient); "sum": values are the sum of
                            * the step's gradients alone; copied */
    /* A table: `elements` / `columns` rows (at most 2^31), an embedding say, of which servers keep
     * those that somebody has pushed. Before its first push a row is what the seed makes of its
     * number, the same on any number of servers. 0: a tensor as any other. */
    uint32_t columns;
    uint64_t seed;
    float deviation; /* a row begins as normal numbers times this; 0: as zeros */
    /* GR_F16, GR_BF16: gradients, and each sum of the shard tree, are rounded to this type, and
     * travel as it: the bits of gr_allreduce_shards of that type. Not of a table. 0 (GR_F32): they
     * are what they are. Values always come as f32. */
    int gradient_type;
} gr_ps_spec;

typedef struct gr_ps_config {
    const char *servers;   /* addresses, as `gradus server` prints them: one server behind the
                              * other with commas between, several ways to one with "+" between;
                              * NULL: GRADUS_SERVERS */
    const uint8_t *secret; /* the job's, 32 bytes, copied; NULL: GRADUS_SECRET, or the file that
                              * GRADUS_SECRET_FILE names */
    int worker;            /* this worker's number, which no other living client has; -1: a
                              * client that pulls but does not push */
    int64_t timeout_us;    /* how long gr_ps_connect waits for the servers; 0: 30 s */
    int encrypt;           /* TLS on what goes by tcp; the same as the servers' */
    const char *run;       /* the run that this worker belongs to, up to GR_PS_RUN_BYTES - 1
                            * printable bytes: servers that keep another run's tensors refuse it;
                            * "": none, it is never refused; NULL: GRADUS_RUN, which `gradus run`
                            * sets, or none */
} gr_ps_config;

/* Connects to all servers and waits until each has answered.
 *
 * A secret that comes from the environment is wiped there, as gr_comm_create does it: a process
 * that is a rank as well names the secret in one of the two ways that stay, `secret` here or
 * GRADUS_SECRET_FILE.
 *
 * config   borrowed for the call; NULL: all from the environment, worker from GRADUS_RANK
 * ps_out   receives the connection, the caller's; untouched on failure
 * diag     filled on failure; may be NULL
 * Returns  GR_OK; GR_E_INVALID (malformed addresses, number or run; servers in the wrong order, of
 *          another count, or with tensors of another run); GR_E_TIMEOUT (a server did not answer,
 *          the sentence names it); GR_E_AUTH; GR_E_IN_USE (another client is this worker, or
 *          all numbers tried for one that is none); GR_E_PEER_LOST; GR_E_PROTOCOL; GR_E_NO_MEMORY;
 *          GR_E_IO. */
GR_API gr_status gr_ps_connect(const gr_ps_config *config, gr_ps **ps_out,
                               gr_diag *diag) GR_MUST_CHECK;

/* Leaves, and frees the connection, its operations and all memory of gr_ps_alloc. What was not
 * acknowledged may have been applied or not. Does not wait. NULL ok. */
GR_API void gr_ps_close(gr_ps *ps);

/* How many servers there are. */
GR_API int gr_ps_servers(const gr_ps *ps);

/* What was wrong with the last call, or the last operation, that failed; status GR_OK while there
 * was none. Valid until the next call. */
GR_API const gr_diag *gr_ps_last_error(const gr_ps *ps);

/* Memory that servers on this host read, and write, without a copy between: 64-byte aligned,
 * zeroed, valid until gr_ps_free or gr_ps_close. Any other memory may be used as well, at the price
 * of copies. GR_E_INVALID (size 0), GR_E_NO_MEMORY. */
GR_API gr_status gr_ps_alloc(gr_ps *ps, size_t size_bytes, void **mem_out) GR_MUST_CHECK;
/* NULL ok. No operation under way may use it. */
GR_API void gr_ps_free(gr_ps *ps, void *mem);

/* Tells all servers of a tensor and waits for their answers. Whoever comes first makes it; whoever
 * declares the same again gets the same.
 *
 * tensor     borrowed for the call
 * id_out     its number on this connection, for the calls below
 * Returns    GR_OK; GR_E_INVALID (malformed; declared by another client as something else: the
 *            sentence says both); GR_E_NO_MEMORY (here, or on a server); GR_E_PEER_LOST. */
GR_API gr_status gr_ps_declare(gr_ps *ps, const gr_ps_spec *tensor, int *id_out) GR_MUST_CHECK;

/* Initial values, `elements` of them, of a tensor that was declared. The first client's count, what
 * others give is dropped; all get GR_OK. Before that nothing can be pushed, and pulls wait. Waits
 * for the servers' answers. */
GR_API gr_status gr_ps_set(gr_ps *ps, int id, const float *values) GR_MUST_CHECK;

/* ---- Push and pull ---------------------------------------------------------------------------
 * An operation covers a whole tensor. The asynchronous form (_start) stores an operation that the
 * caller finishes with gr_ps_wait, or with gr_ps_test until it no longer returns GR_PENDING; both
 * release it then. The other form waits. Buffers are borrowed until the operation is over.
 *
 * Returns of all: GR_OK; GR_E_INVALID (no such tensor; a step of the future, or of another mode;
 * the gradient's range of shards is no whole subtree: the sentence says it); GR_E_NOT_FINITE
 * (refused, and nothing changed); GR_E_NO_MEMORY (GR_PS_OPS_MAX are under way, or a server is at
 * its limit); GR_E_PEER_LOST. */

typedef struct gr_ps_gradient {
    const float *values; /* `elements` of them; not changed */
    uint64_t step;       /* bsp, backup: the step that it belongs to, from 0 on */
    int first, count;    /* bsp: the shards that `values` is the sum of: a node of the shard
                            * tree (gr_allreduce_shards says which those are); 0, 1: shard 0 */
    uint64_t version;    /* async, ssp: that of the values that the gradient was computed from */
    uint64_t sequence;   /* async, ssp: a number of this worker's, larger with each push of the
                            * tensor, also when the worker has started again: one that came already
                            * is acknowledged and dropped */
    double rate;         /* the learning rate, for the optimizer */
    float factor;        /* the gradient (bsp, backup: the sum) is multiplied by it; 0 means 1 */
    int sparse;          /* most values are zero: blocks with fewer than half of them travel as
                            * numbers and values; nothing is lost. What servers read where it lies,
                            * tensors with a gradient_type and tables do not care */
} gr_ps_gradient;

/* Acknowledged when the servers will not lose it: bsp and backup, when its step is done. A step
 * that is done already is acknowledged and dropped. */
GR_API gr_status gr_ps_push_run(gr_ps *ps, int id, const gr_ps_gradient *push) GR_MUST_CHECK;
GR_API gr_status gr_ps_push_start(gr_ps *ps, int id, const gr_ps_gradient *push,
                                  gr_ps_op **op_out) GR_MUST_CHECK;

/* values       receives `elements` values
 * version      waits until at least so many updates have been applied; 0: takes what is there
 * version_out  the lowest version among the blocks that came; may be NULL */
GR_API gr_status gr_ps_pull_run(gr_ps *ps, int id, uint64_t version, float *values,
                                uint64_t *version_out) GR_MUST_CHECK;
GR_API gr_status gr_ps_pull_start(gr_ps *ps, int id, uint64_t version, float *values,
                                  gr_ps_op **op_out) GR_MUST_CHECK;

/* Both in one round trip: values behind the push (bsp, backup: of version step + 1), block by block
 * as they are ready. `values` may be `push->values`'s memory only if nobody pushes it again. */
GR_API gr_status gr_ps_push_pull_run(gr_ps *ps, int id, const gr_ps_gradient *push, float *values,
                                     uint64_t *version_out) GR_MUST_CHECK;
GR_API gr_status gr_ps_push_pull_start(gr_ps *ps, int id, const gr_ps_gradient *push, float *values,
                                       gr_ps_op **op_out) GR_MUST_CHECK;

/* ---- Rows of tables --------------------------------------------------------------------------
 * As above, but for `count` rows of a table, by their numbers: spread over the servers, and in any
 * order. `rows` is borrowed for the call alone. What one server gets, or gives, in one call (where
 * blocks have replicas: all of the call) is bounded (16 MiB): GR_E_INVALID says so. A row that
 * there is not: GR_E_INVALID, and nothing is sent. A table has no gr_ps_set, and calls for whole
 * tensors refuse it, as these do other tensors. */

/* push->values   count x columns, row by row, borrowed for the call alone. A row that stands there
 *                more than once counts as the sum, in this order. bsp, backup: what has no row
 *                still pushes, with a count of 0, since the step waits for all shards */
GR_API gr_status gr_ps_push_rows_run(gr_ps *ps, int id, const gr_ps_gradient *push,
                                     const uint32_t *rows, size_t count) GR_MUST_CHECK;
GR_API gr_status gr_ps_push_rows_start(gr_ps *ps, int id, const gr_ps_gradient *push,
                                       const uint32_t *rows, size_t count,
                                       gr_ps_op **op_out) GR_MUST_CHECK;

/* values   receives count x columns, in the order of `rows`, which may repeat */
GR_API gr_status gr_ps_pull_rows_run(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                                     size_t count, float *values,
                                     uint64_t *version_out) GR_MUST_CHECK;
GR_API gr_status gr_ps_pull_rows_start(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                                       size_t count, float *values,
                                       gr_ps_op **op_out) GR_MUST_CHECK;

/* Moves all operations of the connection on without waiting. GR_PENDING: not finished, `op` stays
 * valid; anything else is its result, and `op` is released. version_out as above; may be NULL. */
GR_API gr_status gr_ps_test(gr_ps_op *op, uint64_t *version_out) GR_MUST_CHECK;
/* Waits, at most so long (0: without limit). GR_E_TIMEOUT: not finished, `op` stays valid. */
GR_API gr_status gr_ps_wait(gr_ps_op *op, int64_t timeout_us, uint64_t *version_out) GR_MUST_CHECK;

/* ssp: this worker has finished so many steps. The first call makes it one of those that are waited
 * for; when it leaves, or dies, it is none any more. Never less than before. Waits for the servers'
 * answers. */
GR_API gr_status gr_ps_clock(gr_ps *ps, uint64_t clock) GR_MUST_CHECK;

/* Waits until all `members` have come here, each under a number of its own, 0 .. members - 1; then
 * all go on, and it may be used again. What was acknowledged to any of them before, all find then.
 * It is a tensor of one value by this name, which no other tensor may have, with a step for each
 * meeting: it outlives a server where blocks have replicas. A member that is gone is waited for
 * until somebody comes under its number, or until the time is over.
 *
 * name        as a tensor's
 * timeout_us  0: without limit. GR_E_TIMEOUT: others have not come; this one is there, and the
 *             next call waits on
 * Returns     GR_OK; GR_E_TIMEOUT; GR_E_INVALID (no such member; the client has no worker's number;
 *             others pass another number of members); GR_E_PEER_LOST; GR_E_NO_MEMORY */
GR_API gr_status gr_ps_barrier(gr_ps *ps, const char *name, int members, int member,
                               int64_t timeout_us) GR_MUST_CHECK;

/* ---- Checkpoints -----------------------------------------------------------------------------
 * An optimizer may keep states: vectors of as many elements as the tensor, all zero at first (sgd
 * with momentum: 1; adam: the first moment and the second). With them and its version a tensor goes
 * on elsewhere with the same bits: on other servers, or on another number of them. */

/* As gr_ps_pull_run, but of the state-th vector of states, from 0. A block that is at a later
 * version than asked for has other states: GR_E_INVALID, unless `version` is 0. So bsp and backup
 * pull them before what completes the next step is pushed; in other modes 0 takes each block's as
 * they are.
 *
 * GR_E_INVALID also: the optimizer has no such vector. */
GR_API gr_status gr_ps_pull_state_run(gr_ps *ps, int id, int state, uint64_t version, float *values,
                                      uint64_t *version_out) GR_MUST_CHECK;
GR_API gr_status gr_ps_pull_state_start(gr_ps *ps, int id, int state, uint64_t version,
                                        float *values, gr_ps_op **op_out) GR_MUST_CHECK;

/* Values and all vectors of states of a tensor, each block's from one moment, whatever others push
 * meanwhile. ssp: it waits for nobody. Waits for the servers' answers.
 *
 * values   receives `elements` values
 * states   receives `state_count` vectors, as many as the optimizer has
 * Returns  as gr_ps_pull_run; GR_E_INVALID: another number of states; a table */
GR_API gr_status gr_ps_pull_whole_run(gr_ps *ps, int id, uint64_t version, float *values,
                                      float *const *states, int state_count,
                                      uint64_t *version_out) GR_MUST_CHECK;

/* In place of gr_ps_set: a tensor goes on as it was at `version`: bsp and backup, with the step of
 * that number. As there, the first client's count; what others give is dropped, and so is what
 * comes when the tensor has gone on from there already. Waits for the servers' answers.
 *
 * states   `state_count` vectors, as many as the optimizer has; borrowed for the call
 * Returns  as gr_ps_set; GR_E_INVALID: another number of states; the tensor has values of an
 *          earlier version */
GR_API gr_status gr_ps_restore(gr_ps *ps, int id, uint64_t version, const float *values,
                               const float *const *states, int state_count) GR_MUST_CHECK;

/* Rows of a table that exist, with their states. */
typedef struct gr_ps_scan {
    uint64_t place;       /* 0: from the beginning; else as the call before left it */
    uint64_t version;     /* exactly this one is wanted; 0: each part as it is */
    size_t room;          /* for so many rows there is memory, 1 or more */
    uint32_t *rows;       /* receives their numbers */
    float *values;        /* room x columns */
    float *const *states; /* state_count such vectors, as many as the optimizer has, or none */
    int state_count;
    size_t count;           /* what came; 0: there are no more */
    uint64_t version_least; /* of the parts that were looked at in this call */
} gr_ps_scan;

/* Some more rows of a table that somebody has pushed or restored, each once, in no order. Rows that
 * come to be meanwhile may be missing, with `version` there are none. bsp and backup pull a version
 * before what completes the next step is pushed, as gr_ps_pull_state_run says.
 *
 * Returns  as gr_ps_pull_state_run; GR_E_AGAIN: a server was lost meanwhile: begin again */
GR_API gr_status gr_ps_scan_rows(gr_ps *ps, int id, gr_ps_scan *scan) GR_MUST_CHECK;

/* As gr_ps_restore, of a table that nobody has pushed to: it has these rows, and no others. One
 * client does it; meanwhile pulls wait, and pushes are refused.
 *
 * rows     `count` numbers, each once, in any order
 * values   count x columns, and states likewise; borrowed for the call
 * Returns  as gr_ps_restore; GR_E_AGAIN: another client restores it */
GR_API gr_status gr_ps_restore_rows(gr_ps *ps, int id, uint64_t version, const uint32_t *rows,
                                    size_t count, const float *values, const float *const *states,
                                    int state_count) GR_MUST_CHECK;

/* ---- What servers know ----------------------------------------------------------------------- */

/* One tensor, as the servers have it. Texts are valid until the next gr_ps_list. */
typedef struct gr_ps_entry {
    gr_ps_spec tensor;
    int states;                           /* vectors, of its optimizer */
    uint32_t blocks, block_elements;      /* the last block may be shorter; a table has none */
    uint64_t rows;                        /* of a table: those that exist, on all servers */
    uint64_t version_least, version_most; /* over all of its blocks */
} gr_ps_entry;

/* The index-th tensor in the order of declaration on the first server. GR_E_NOT_FOUND: there are
 * only so many. A tensor that is found here can be pulled by gr_ps_declare of the same. */
GR_API gr_status gr_ps_list(gr_ps *ps, uint32_t index, gr_ps_entry *entry_out) GR_MUST_CHECK;

typedef struct gr_ps_counters {
    uint64_t clients; /* connected now */
    uint64_t tensors, blocks;
    uint64_t bytes;         /* of values and of the optimizer's states */
    uint64_t pushes, pulls; /* of blocks, since the server started */
    uint64_t updates;       /* applied */
    uint64_t duplicates;    /* pushes that had come before */
    uint64_t late;          /* backup: pushes that came when their step was done */
    uint64_t refused;       /* not finite, or malformed */
    uint64_t bytes_in, bytes_out;
    uint64_t staleness_sum, staleness_most; /* async, ssp: over all updates */
    uint64_t unreplicated; /* blocks that would be lost with this server: their replica is still
                            * being made, or nobody is left who could have one; 0 where none are
                            * wanted */
} gr_ps_counters;

/* server   0 .. gr_ps_servers - 1 */
GR_API gr_status gr_ps_read_counters(gr_ps *ps, int server,
                                     gr_ps_counters *counters_out) GR_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
