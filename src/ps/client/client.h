/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_CLIENT_CLIENT_H
#define GR_PS_CLIENT_CLIENT_H

/* What the files of the client share: client.c (requests under way), connect.c (how it comes
 * to its servers), calls.c, state.c, rows.c and
 * barrier.c (the face). */

#include "base/config.h"
#include "link/interface.h"
#include "link/shared.h"
#include "ps/client/pace.h"
#include "ps/message.h"

extern const gr_config_table gr_ps_config_table; /* GRADUS_SERVERS */
/* What that says; some commands have a flag for it as well. */
#define GR_PS_SERVERS_HELP                                                                         \
    "where the parameter servers are, in the order of their numbers: what each has printed, with " \
    "commas between"

/* A tensor as this client knows it. */
typedef struct gr_ps_item {
    gr_ps_tensor tensor;             /* its texts are behind this struct */
    uint32_t led[GR_PS_SERVERS_MAX]; /* blocks of which the server is the primary */
    uint32_t number;
    uint16_t *narrow; /* memory for one gradient of 16 bits; NULL: none, or an operation has it */
    float *pairs;     /* the same for a sparse one */
    bool declared;    /* on all servers */
    /* Of a barrier: the next meeting, if that is known; the push that waits for it, its value. */
    bool meets;
    uint64_t meeting;
    gr_ps_op *waits;
    float nothing;
} gr_ps_item;

/* What a request is on one server. */
typedef struct gr_ps_subrequest {
    bool open; /* not answered, and the server is there */
    bool begun;
    uint32_t next_block, to_send, to_take; /* blocks of data; of values */
    int next_vector;                       /* of next_block: 0: values; RESTORE: states behind */
    uint64_t on_way_bytes;                 /* pushed, and their values have not come */
    uint64_t sent;                         /* the link's ticket of what went last */
    bool lent;                             /* something went that may still be needed */
    uint8_t head[GR_PS_REQUEST_BYTES];
    uint8_t *rows;       /* PUSH_ROWS, PULL_ROWS: the message; behind it room for the answer */
    uint32_t rows_bytes; /* of the message */
    uint32_t row_count;  /* each row once */
} gr_ps_subrequest;

/* Which servers a request concerns: a server's number, or */
enum {
    GR_PS_TO_HOLDERS = -1, /* those that lead blocks of its tensor */
    GR_PS_TO_ALL = -2,
    GR_PS_TO_LINKED = -3, /* those that are reached, now and later */
    GR_PS_TO_WRITTEN = -4 /* those for which there is a message of rows */
};

typedef struct gr_ps_row_order gr_ps_row_order;

struct gr_ps_op {
    gr_ps *ps;
    gr_ps_op *next; /* of those that are free */
    uint32_t ticket;
    bool used;
    int to;
    uint8_t kind;     /* gr_ps_kind */
    gr_ps_item *item; /* NULL: it concerns no tensor */
    const float *data;
    float *values;              /* with GR_PS_ASK_WHOLE block by block: values, states */
    const float *const *states; /* RESTORE: request.count of them */
    uint16_t *narrow;           /* PUSH: data as they travel; NULL: as they are */
    float *pairs;               /* PUSH, sparse: each block's place for what travels of it */
    gr_ps_row_order *rows;      /* PUSH_ROWS, PULL_ROWS: what rows.c makes of them */
    gr_ps_request request;
    uint64_t argument;   /* CLOCK: the clock; LIST: the key */
    uint32_t index;      /* LIST; SCAN_ROWS: the block */
    const uint8_t *body; /* DECLARE; the caller's */
    uint32_t body_bytes;
    void *answer;     /* what ENTRY, COUNTERS, the ROWS of a scan are taken to */
    int open;         /* sub-requests */
    uint64_t version; /* the lowest; UINT64_MAX: none */
    gr_status status;
    gr_diag diag;
    gr_ps_subrequest subs[GR_PS_SERVERS_MAX];
};

/* Where a process is that has come in place of a lost server, as others report. */
typedef struct gr_ps_place {
    uint64_t incarnation;
    char addresses[GR_ADDRESS_BYTES + GR_REMOTE_BYTES]; /* "+" between */
} gr_ps_place;

/* The way to one server, whichever process has its number. */
typedef struct gr_ps_endpoint {
    gr_link *link;        /* NULL: not there (yet) */
    gr_ps_place moved[2]; /* the newest first: a server that is behind may report an older one */
    uint64_t incarnation; /* by the table */
    bool renews;    /* once the link to the process before has ended, its place is connected to */
    uint8_t *words; /* what a process that came later receives; NULL: nothing */
    size_t words_bytes;     /* of them so many are sent, */
    uint32_t words_said;    /* in so many messages */
    uint32_t words_tensors; /* that were known then */
    bool shares;            /* it reads this process's heap */
    bool lost;
    bool ended;             /* nothing is lent to its link any more */
    int64_t takeover_by_us; /* lost: until when the other servers may tell who takes over; 0: nobody
                            * will */
    gr_diag diag;
    char addresses[GR_ADDRESS_BYTES + GR_REMOTE_BYTES]; /* "+" between */
    int introduced;                                     /* servers whose addresses it has */
    bool untold;                                        /* of the table's epoch */
    uint16_t queue[GR_PS_OPS_MAX]; /* a ring of operations that are not sent whole */
    uint32_t first, count;
    gr_ps_pace pace; /* of blocks whose values come back */
    bool held;       /* by it: the first of the queue */
} gr_ps_endpoint;

struct gr_ps {
    gr_mesh *mesh;
    gr_clock clock;
    int servers, worker;
    char run[GR_PS_RUN_BYTES]; /* "": none */
    gr_ps_table table;
    bool waits;              /* the caller, and is there whenever more can go */
    uint64_t worker_clock;   /* the last that was sent; 0: none */
    bool tabled;             /* the table is the servers'; else a guess */
    gr_ps_op *greeting;      /* while it connects */
    int64_t peer_timeout_us; /* a server that is silent for so long is lost */
    gr_shared own;
    gr_ps_endpoint endpoints[GR_PS_SERVERS_MAX];
    gr_ps_item **known; /* by number */
    uint32_t known_count, known_room;
    gr_ps_op *free_op;
    gr_diag dial; /* the last server that was not reached; status GR_OK: none */
    gr_diag error;
    gr_ps_texts texts; /* of the last entry */
    uint8_t small[GR_PS_SMALL_MAX];
    gr_ps_op ops[GR_PS_OPS_MAX];
};

/* client.c. A new operation without sub-requests; NULL: too many, which ps->error says. */
gr_ps_op *gr_ps_op_open(gr_ps *ps, gr_ps_kind kind, gr_ps_item *item);
/* To a server's number, or one of GR_PS_TO_...; again so when the table changes. */
void gr_ps_op_send(gr_ps_op *op, int to);
void gr_ps_item_count(const gr_ps *ps, gr_ps_item *item); /* its blocks on each server */
/* A server that was never reached is tried anew: its name may lead somewhere else by now. */
void gr_ps_dial_again(gr_ps *ps, int server);
/* Moves everything on. */
void gr_ps_progress(gr_ps *ps);
/* Waits and releases; its status. */
gr_status gr_ps_op_wait(gr_ps_op *op, int64_t deadline_us, uint64_t *version_out) GR_MUST_CHECK;
/* Over, and nothing of it is lent any more? */
bool gr_ps_op_over(gr_ps_op *op);
void gr_ps_op_drop(gr_ps_op *op); /* nothing of it is under way */
gr_status gr_ps_op_close(gr_ps_op *op, uint64_t *version_out) GR_MUST_CHECK;

/* calls.c. An operation on a whole tensor; NULL: it cannot be, as ps->error says. */
gr_ps_op *gr_ps_open_on(gr_ps *ps, int id, gr_ps_kind kind, gr_status *status_out);
/* A PULL of all of it. */
gr_status gr_ps_start_pull(gr_ps *ps, int id, const gr_ps_request *request, float *values,
                           gr_ps_op **op_out) GR_MUST_CHECK;
gr_status gr_ps_check_finite(gr_ps *ps, const gr_ps_spec *spec, const float *values,
                             uint64_t count) GR_MUST_CHECK;
gr_status gr_ps_fill_push(gr_ps *ps, const gr_ps_gradient *push,
                          gr_ps_request *request_out) GR_MUST_CHECK;

/* state.c. As gr_ps_rows_receive, of a scan. */
gr_status gr_ps_scan_receive(gr_ps_op *op, int server, const gr_frame *frame,
                             gr_diag *diag) GR_MUST_CHECK;

/* rows.c. GR_OK: the answer at the head was taken; GR_PENDING: some of it has not come. */
gr_status gr_ps_rows_receive(gr_ps_op *op, int server, const gr_frame *frame,
                             gr_diag *diag) GR_MUST_CHECK;
/* The operation of these rows of `values`, and with RESTORE_ROWS of op->states, goes to all whom it
 * concerns; else it is dropped. */
gr_status gr_ps_rows_send(gr_ps_op *op, const uint32_t *rows, size_t count,
                          const float *values) GR_MUST_CHECK;
/* By a new table, before all is sent again. GR_E_NO_MEMORY, GR_E_INVALID: ps->error. */
gr_status gr_ps_rows_again(gr_ps_op *op) GR_MUST_CHECK;
void gr_ps_rows_drop(gr_ps_op *op); /* the memory of its rows */

#endif
