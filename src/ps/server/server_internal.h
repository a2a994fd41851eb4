/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_SERVER_SERVER_INTERNAL_H
#define GR_PS_SERVER_SERVER_INTERNAL_H

/* What the files of the server share: server.c (life and turns), client_session.c (what one
 * client sends), answer.c (what it receives), table.c (what a new table changes). Other servers:
 * peer.h. */

#include "link/interface.h"
#include "link/shared.h"
#include "ps/server/message.h"
#include "ps/server/server.h"

enum {
    GR_PS_TURN_BYTES = 1 << 20, /* that one client may move in a turn */
    GR_PS_TURN_MESSAGES = 64,
    GR_PS_LENT_MAX = 64,       /* values on their way to one client */
    GR_PS_QUEUE_MAX = 1 << 20, /* blocks that one client has asked for */
    GR_PS_CLASSES = 9,         /* sizes of buffers: 4 KiB to 1 MiB */
    GR_PS_IMAGES_MAX = 4       /* copies of blocks on their way to one server */
};

/* Who has to know when the store needs pushed data no more. */
typedef struct gr_ps_lease {
    bool shared;   /* they lie in the client's memory, and a task counts them; else in a buffer */
    uint32_t uses; /* of a buffer: pushes that need it */
} gr_ps_lease;

/* Pushed data that came by messages. */
typedef struct gr_ps_buffer {
    gr_ps_lease lease; /* first */
    int size_class;    /* GR_PS_CLASSES: larger than all, and not kept */
    size_t room;
    struct gr_ps_buffer *next; /* of those that are free */
    _Alignas(64) float values[];
} gr_ps_buffer;

/* What is not as it should be with a block that has, or should have, a replica. */
enum {
    GR_PS_MARK_COPY = 1,  /* led here: the replica has not been sent an image yet */
    GR_PS_MARK_AWAIT = 2, /* the replica: its image has not come yet, or there was no memory */
    GR_PS_MARK_GONE = 4,  /* led here, but all who had its values are lost */
    GR_PS_MARK_TAKES = 8, /* the replica: more of its image, a table's, is to come */
    GR_PS_MARK_THIN = 16  /* led here: the replica has not confirmed that it has all of it */
};

/* A table's block on its way to a new replica: rows by their places, which do not change. */
typedef struct gr_ps_stream {
    uint32_t next, end;
} gr_ps_stream;

/* This server's part of a tensor. */
typedef struct gr_ps_share {
    const gr_ps_tensor *tensor; /* the store's */
    uint32_t led;               /* blocks that this server is the primary of */
    uint32_t gone;              /* of them: GR_PS_MARK_GONE */
    uint8_t *marks;             /* of each block; NULL: there are no replicas */
    gr_ps_stream *streams;      /* of a table's blocks that are led here; else NULL */
    int restorer;               /* the client that is restoring the table; -1: none */
} gr_ps_share;

typedef enum gr_ps_task_state {
    GR_PS_TASK_FREE = 0,
    GR_PS_TASK_OPEN = 1, /* something is to come, or to be answered */
    GR_PS_TASK_OVER = 2, /* its DONE waits for room */
    GR_PS_TASK_SAID = 3  /* its DONE is with the link */
} gr_ps_task_state;

typedef struct gr_ps_session gr_ps_session;

/* A request of a client. */
typedef struct gr_ps_task {
    gr_ps_lease lease; /* first; of all data in the client's memory */
    gr_ps_session *session;
    uint8_t state, kind, answer; /* gr_ps_task_state; gr_ps_kind of the request, of what ends it */
    uint32_t ticket;
    const gr_ps_share *held; /* NULL: none, or refused */
    gr_ps_request request;
    uint32_t next_block;                          /* all before it have come */
    uint32_t to_come;                             /* blocks of data */
    uint32_t to_answer;                           /* by the store: pushed, not answered */
    uint32_t to_give;                             /* values that are asked for */
    gr_ps_buffer *gathered[1 + GR_PS_STATES_MAX]; /* RESTORE: what has come of a block; NULL: no
                                                   * memory for it. PULL_ROWS: the request */
    uint32_t gathered_count;
    const uint32_t *rows; /* PULL_ROWS: within what was gathered */
    uint32_t row_count;
    uint32_t leases;
    gr_status status; /* the first failure */
    char *text;       /* its sentence; NULL: none, or no memory for it */
    uint32_t duplicates;
    uint64_t version; /* the lowest of all blocks; UINT64_MAX: none yet */
    uint8_t *reply;   /* `small`, or heap memory */
    uint32_t reply_bytes;
    uint8_t small[16];
    uint64_t said; /* the link's ticket */
} gr_ps_task;

/* Values that were asked for, and not yet from the store. */
typedef struct gr_ps_pending_pull {
    uint32_t slot, block;
    uint64_t version;
} gr_ps_pending_pull;

typedef struct gr_ps_lent {
    uint64_t ticket;
    gr_ps_loan *loan;
} gr_ps_lent;

/* What is to go to a client: rings. */
typedef struct gr_ps_answers {
    gr_ps_pending_pull *pending;
    uint32_t pending_first, pending_count, pending_room;
    uint32_t pending_reserved; /* of all tasks: values that are still to be given */
    bool full;                 /* the link has no room */
    gr_ps_lent lent[GR_PS_LENT_MAX];
    uint32_t lent_first, lent_count;
    uint16_t over[GR_PS_OPS_MAX]; /* tasks whose DONE waits */
    uint32_t over_first, over_count;
} gr_ps_answers;

struct gr_ps_session {
    gr_ps_server *server;
    int peer;
    gr_link *link;
    bool greeted;
    bool foreign; /* of another run: it was notified, and nothing more is taken from it */
    char run[GR_PS_RUN_BYTES]; /* "": none */
    bool dismissed; /* it sent no request: its link ends, nothing more is received or sent */
    bool shares;    /* its heap is mapped here */
    bool behind;    /* what it sends is of an older table, and is dropped until its EPOCH */
    bool untold;    /* of the table */
    uint8_t table[GR_PS_SMALL_MAX];
    uint64_t table_ticket; /* 0: none is with the link */
    gr_shared shared;
    const gr_ps_share **tensors; /* by the client's numbers; NULL: not declared */
    uint32_t tensor_count;
    uint64_t clock;

    gr_ps_task *pushing;     /* its data lie in the client's memory, and go to the store now */
    gr_ps_buffer *receiving; /* of a BLOCK that is under way */
    uint8_t small[GR_PS_SMALL_MAX];

    gr_ps_answers answers;
    gr_ps_task tasks[GR_PS_OPS_MAX]; /* a ticket's place is its lowest bits */
};

typedef struct gr_ps_peer gr_ps_peer; /* peer.h */

/* Memory for data that come by messages: what is free is kept. */
typedef struct gr_ps_pool {
    gr_ps_buffer *free[GR_PS_CLASSES];
    uint64_t bytes, bytes_max;
} gr_ps_pool;

/* The tensors, by key. */
typedef struct gr_ps_shares {
    gr_ps_share **at;
    uint32_t count, room;
} gr_ps_shares;

typedef struct gr_ps_traffic {
    uint64_t pushes, pulls, bytes_in, bytes_out; /* of blocks */
} gr_ps_traffic;

struct gr_ps_server {
    gr_mesh *mesh;
    gr_ps_store *store;
    gr_ps_table table;
    int number;
    bool replicates;                      /* blocks have replicas on other servers */
    bool active;                          /* all other servers are there, and agree */
    int64_t joins_by_us;                  /* until then it tries others that refuse it */
    uint64_t incarnation;                 /* 0: it is one of the first */
    gr_diag failure;                      /* why it cannot go on; status GR_OK: it can */
    gr_ps_membership membership;          /* its table may be ahead of `table` for a moment */
    gr_ps_view view;                      /* what the others receive: that of `table` */
    gr_ps_peer *peers[GR_PS_SERVERS_MAX]; /* NULL: this one itself, or no replicas */
    gr_clock clock;
    int64_t timeout_us; /* another server that is silent for so long is lost */
    int64_t turn_us;    /* when the last turn was */
    gr_ps_updater_ops updaters;
    void *updaters_arg;
    const gr_log *log;
    char run[GR_PS_RUN_BYTES]; /* whose tensors these are; "": none has declared any */
    char address[GR_ADDRESS_BYTES + GR_REMOTE_BYTES];
    gr_ps_session *sessions[GR_PS_PEERS_MAX]; /* by peer */
    int here[GR_PS_PEERS_MAX];                /* those that are there */
    int here_count;
    uint64_t ever;
    gr_ps_shares held;
    gr_ps_pool pool;
    gr_ps_traffic traffic;
};

/* It replaces another one, and is in no table yet. */
static inline bool gr_ps_joins(const gr_ps_server *server)
{
    return !server->membership.table.alive[server->number];
}

static inline bool gr_ps_leads(const gr_ps_server *server, const gr_ps_share *held, uint32_t block)
{
    return server->table.primary[gr_ps_slot(held->tensor->key, block)] == server->number;
}

/* Returns true if the client has no worker's number: it changes nothing, and nobody waits for
 * it. */
static inline bool gr_ps_reads(const gr_ps_session *session)
{
    return session->peer >= GR_PS_READERS_AT;
}

/* server.c. NULL: not declared here. */
gr_ps_share *gr_ps_share_of(const gr_ps_server *server, uint64_t key);
/* It gets this sentence, and its link ends. */
void gr_ps_send_away(gr_ps_server *server, int peer, gr_status status, const char *sentence);
gr_status gr_ps_server_declare(gr_ps_server *server, int peer, const gr_ps_spec *spec,
                               const gr_ps_share **held_out, gr_diag *diag) GR_MUST_CHECK;
gr_ps_buffer *gr_ps_buffer_take(gr_ps_server *server, size_t size_bytes); /* NULL: no memory */
void gr_ps_buffer_give_back(gr_ps_server *server, gr_ps_buffer *buffer);  /* NULL is fine */

/* client_session.c */
/* The next of the tensor's blocks that this server leads; as many as there are if there is none. */
uint32_t gr_ps_next_led(const gr_ps_server *server, const gr_ps_share *held, uint32_t from);
gr_ps_session *gr_ps_session_create(gr_ps_server *server, int peer,
                                    gr_link *link); /* NULL: no memory */
void gr_ps_session_destroy(gr_ps_session *session); /* the store has forgotten it */
/* Takes what it has sent. GR_OK: nothing is left; GR_PENDING: more is here; GR_E_PROTOCOL: it sent
 * what no correct client sends, diag says what; GR_E_PEER_LOST: it is gone. */
gr_status gr_ps_session_receive(gr_ps_session *session, gr_diag *diag) GR_MUST_CHECK;
/* Nothing of what it has asked for is remembered: it asks again by the new table. */
void gr_ps_session_reset(gr_ps_session *session);
/* The place of a new ticket; NULL: it is taken. */
gr_ps_task *gr_ps_task_open(gr_ps_session *session, const gr_frame *frame);
/* One block of what it pushes, for the store. */
gr_ps_push gr_ps_task_push(const gr_ps_session *session, const gr_ps_task *task, uint32_t block,
                           uint64_t count);
/* Why it cannot be done; GR_OK: it can. */
gr_status gr_ps_task_judge(const gr_ps_session *session, const gr_ps_task *task,
                           const gr_frame *frame, gr_diag *diag) GR_MUST_CHECK;

/* state.c: one BLOCK of a RESTORE has come; NULL: there is no memory for it. */
void gr_ps_restore_take(gr_ps_session *session, gr_ps_task *task, uint32_t block,
                        gr_ps_buffer *buffer);
/* An image that a client has sent of a block that is led here. *taken_out: it counts; else another
 * did before. GR_E_AGAIN: the block is not the one that its other pieces went to. */
gr_status gr_ps_restore_image(gr_ps_server *server, const gr_ps_image *image, bool *taken_out,
                              gr_diag *diag) GR_MUST_CHECK;
void gr_ps_gathered_drop(gr_ps_server *server, gr_ps_task *task);

/* rows.c. The PUSH_ROWS, PULL_ROWS or RESTORE_ROWS at the head: as gr_ps_session_receive says.
 */
gr_status gr_ps_rows_take(gr_ps_session *session, const gr_frame *frame,
                          gr_diag *diag) GR_MUST_CHECK;
/* A SCAN_ROWS whose head is in session->small. */
gr_status gr_ps_rows_scan(gr_ps_session *session, gr_ps_task *task, const gr_frame *frame,
                          gr_diag *diag) GR_MUST_CHECK;
/* What a PULL_ROWS or SCAN_ROWS asks for of one block is due, or was refused. */
void gr_ps_rows_give(gr_ps_session *session, gr_ps_task *task, uint32_t block,
                     const gr_ps_pulled *answer);

/* answer.c: what the store returns, and what a session receives. */
extern const gr_ps_store_ops gr_ps_server_store_ops;
/* GR_OK: nothing is left, or there is no room; GR_PENDING: more can be done. */
gr_status gr_ps_session_answer(gr_ps_session *session) GR_MUST_CHECK;
/* Where a block's values go in the client's memory, of a request with GR_PS_ASK_PUT. */
float *gr_ps_values_place(const gr_ps_session *session, const gr_ps_task *task, uint32_t block);
/* One value is asked for; gr_ps_pending_reserve was asked for it. */
void gr_ps_pending_add(gr_ps_session *session, uint32_t slot, uint32_t block, uint64_t version);
bool gr_ps_pending_reserve(gr_ps_session *session, uint32_t count);
void gr_ps_task_fail(gr_ps_task *task, gr_status status, const char *sentence);
/* Sends the task's DONE if the task is over. */
void gr_ps_task_settle(gr_ps_session *session, gr_ps_task *task);
/* What it ends with, in place of DONE. */
void gr_ps_task_reply(gr_ps_session *session, gr_ps_task *task, gr_ps_kind kind,
                      const uint8_t *reply, size_t size_bytes);
/* The same; the reply is the task's from now on. */
void gr_ps_task_reply_with(gr_ps_session *session, gr_ps_task *task, gr_ps_kind kind,
                           uint8_t *reply, size_t size_bytes);
void gr_ps_task_free(gr_ps_task *task);

/* table.c: the membership's table becomes the server's. */
void gr_ps_table_become(gr_ps_server *server);
/* Blocks that would be lost with this server, where replicas are wanted. */
uint64_t gr_ps_table_unreplicated(const gr_ps_server *server);
/* A block that is led here begins with an image; its replica is sent it in the background. As
 * gr_ps_store_restore. */
gr_status gr_ps_table_restore(gr_ps_server *server, const gr_ps_image *image,
                              gr_diag *diag) GR_MUST_CHECK;
/* The blocks of a tensor that was just declared; GR_E_NO_MEMORY: none of them. */
gr_status gr_ps_table_hold(gr_ps_server *server, gr_ps_share *held, gr_diag *diag) GR_MUST_CHECK;
/* A tensor that the servers had before this one came: its replicas wait for their images. */
void gr_ps_table_await(const gr_ps_server *server, gr_ps_share *held);

#endif
