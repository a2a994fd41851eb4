/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_MESSAGE_H
#define GR_PS_MESSAGE_H

/* The messages between clients and servers. Every message is one DATA frame of a link, which has
 * the frame's own limits and checks behind it; its fields are
 *
 *   comm         the kind            message      tensor: the client's number of it
 *   op_seq       the ticket          segment      a block, or how many blocks
 *   fingerprint  a version           payload      below, little-endian; f32 values as they lie
 *
 * A ticket names a request of a client; answers carry it. A request that brings values is a head,
 * then one BLOCK for each of the tensor's blocks whose primary the server is, in ascending order;
 * so a gradient stays where it lies, and tcp writes heads and values in one call. In memory that
 * the server can read (shm) the head says where they lie, and no BLOCK follows. The server answers
 * with one VALUES for each block that is pulled, unless the head says where the server is to put
 * them, and ends with one DONE. Pure functions. */

#include "link/link.h"
#include "ps/tensor.h"

#include <gradus/ps.h>

typedef enum gr_ps_kind {
    GR_PS_HELLO = 1,     /* client: how many servers there are, and which this one is. Server, to
                          * servers: which it is itself; fingerprint: its incarnation */
    GR_PS_DECLARE = 2,   /* client: a tensor; `message` becomes its number. Server, to a new one */
    GR_PS_SET = 3,       /* client: initial values */
    GR_PS_PUSH = 4,      /* client: a gradient, and perhaps a pull behind it */
    GR_PS_PULL = 5,      /* client */
    GR_PS_BLOCK = 6,     /* client: values of SET or PUSH; segment: the block. PUSH, fingerprint 1:
                          * as gr_ps_put_pairs writes them */
    GR_PS_CLOCK = 7,     /* client: fingerprint: the clock */
    GR_PS_LIST = 8,      /* client: segment: the index of a tensor; fingerprint: the key of one, the
                          * first from there on; 0: any */
    GR_PS_STATS = 9,     /* client */
    GR_PS_VALUES = 10,   /* server: segment: the block; fingerprint: its version */
    GR_PS_ENTRY = 11,    /* server: what LIST asked for, in place of DONE; version_least is
                          * UINT64_MAX where the server has no block of it */
    GR_PS_COUNTERS = 12, /* server: what STATS asked for, in place of DONE */
    GR_PS_DONE = 13,     /* server: over; fingerprint: the lowest version of all blocks */
    GR_PS_RESTORE = 14,  /* client: values and states of a checkpoint; for each block one BLOCK of
                          * its values, then one of each vector of states */
    GR_PS_PUSH_ROWS = 15, /* client: of a table. Request, then the numbers of the rows, as many as
                           * `segment` says, block by block, in each ascending, then their
                           * gradients; numbers lie as values do */
    GR_PS_PULL_ROWS = 16, /* client: request and numbers */
    GR_PS_ROWS = 17,      /* server: their values, in place of DONE; fingerprint: their version */
    GR_PS_PEER = 18,      /* client: segment: another server's number; its addresses. Server, to
                           * clients and servers: those of one that came in place of a lost one;
                           * fingerprint: its incarnation */
    GR_PS_EPOCH = 19,     /* client: fingerprint: that of the table that all behind it goes by */
    GR_PS_TABLE = 20,     /* server, to clients and servers: all behind it goes by this table */
    GR_PS_VIEW =
        21, /* from here on server to server (server/message.h): it lives, and whom it misses */
    GR_PS_UPDATE = 22,    /* what a replica is to do; one COPY with the sum follows */
    GR_PS_IMAGE = 23,     /* what a new replica begins with; COPYs of values and states follow */
    GR_PS_COPY = 24,      /* values of UPDATE or IMAGE */
    GR_PS_ACKS = 25,      /* what the sender has as a replica */
    GR_PS_SCAN_ROWS = 26, /* client: rows that exist of the block `segment`: request with `sequence`
                           * the place of the first, `count` how many at most. ROWS has how many
                           * there are, how many vectors of states, numbers, values with states */
    GR_PS_RESTORE_ROWS = 27, /* client: as PUSH_ROWS, each row with its states behind; request with
                              * `count` as RESTORE, and GR_PS_PIECE_... in `first` */
} gr_ps_kind;

enum {
    GR_PS_WORKERS_AT = GR_PS_SERVERS_MAX, /* the peer that worker 0 is */
    GR_PS_READERS_AT = GR_PS_WORKERS_AT + GR_PS_WORKERS_MAX,
    GR_PS_PROTOCOL = 3,
    GR_PS_SMALL_MAX = 2048,   /* any payload but values and rows */
    GR_PS_REQUEST_BYTES = 64, /* of an encoded gr_ps_request */
    GR_PS_SPEC_FIXED = 60     /* of an encoded gr_ps_spec, without the characters of its texts */
};

/* What a peer is called in sentences: "server 1", "worker 5", "a reader". Returns `name_out`. */
enum { GR_PS_PEER_NAME_BYTES = 24 };
const char *gr_ps_peer_name(int peer, char name_out[GR_PS_PEER_NAME_BYTES]);

typedef struct gr_ps_hello {
    uint32_t protocol;
    uint32_t servers, number;
    char run[GR_PS_RUN_BYTES]; /* "": none; all that comes on the connection is of this run */
} gr_ps_hello;

/* What a SET, PUSH or PULL asks for. Fields that do not concern it are zero. */
typedef struct gr_ps_request {
    uint32_t flags;        /* GR_PS_ASK_... */
    uint32_t first, count; /* PUSH: shards. PULL: first: 0: values, n: the n-th vector of states;
                            * whole: how many vectors of states there are.
                            * RESTORE: count: of vectors of states */
    uint64_t step, version, sequence;
    double rate;
    float factor;
    uint64_t data_at;   /* where the tensor's gradient lies in the client's shared heap */
    uint64_t values_at; /* where its values are to be put there */
} gr_ps_request;

enum {
    GR_PS_ASK_VALUES = 1, /* PUSH: a pull follows */
    GR_PS_ASK_SHARED = 2, /* data_at counts: no BLOCKs follow */
    GR_PS_ASK_PUT = 4,    /* values_at counts: no VALUES are wanted */
    GR_PS_ASK_WHOLE = 8,  /* PULL: each block as its values and all states behind, of one moment */
    GR_PS_ASK_END = 16
};

enum {
    GR_PS_PIECE_BEGINS = 1, /* all that was restored before is dropped */
    GR_PS_PIECE_ENDS = 2,   /* now the table has all its rows */
    GR_PS_SCAN_HEAD = 8     /* bytes of the two counts before a scan's rows */
};

/* Returns true if the message concerns rows of a table. */
static inline bool gr_ps_is_of_rows(int kind)
{
    return kind == GR_PS_PUSH_ROWS || kind == GR_PS_PULL_ROWS || kind == GR_PS_SCAN_ROWS ||
           kind == GR_PS_RESTORE_ROWS;
}

typedef struct gr_ps_done {
    int32_t status; /* a gr_status that is no scope of a communicator */
    uint32_t duplicates;
    char text[GR_DIAG_TEXT_BYTES]; /* "" with GR_OK */
} gr_ps_done;

/* The texts of a tensor that was taken from a message. */
typedef struct gr_ps_texts {
    char name[GR_PS_NAME_BYTES];
    char optimizer[GR_PS_OPTIMIZER_BYTES];
} gr_ps_texts;

/* Payloads: their size in bytes; `out` has GR_PS_SMALL_MAX. A tensor must be well formed. */
size_t gr_ps_put_hello(const gr_ps_hello *hello, uint8_t *out);
size_t gr_ps_put_spec(const gr_ps_spec *tensor, uint8_t *out);
size_t gr_ps_put_request(const gr_ps_request *request, uint8_t *out);
size_t gr_ps_put_done(const gr_ps_done *done, uint8_t *out);
size_t gr_ps_put_entry(const gr_ps_entry *entry, uint8_t *out);
size_t gr_ps_put_counters(const gr_ps_counters *stats, uint8_t *out);
size_t gr_ps_put_table(const gr_ps_table *table, uint8_t *out);

/* GR_OK; GR_E_PROTOCOL with what is wrong: what no correct peer sends. What comes out is within all
 * limits; the tensor's texts point into `texts_out`. */
gr_status gr_ps_get_hello(const uint8_t *in, size_t size_bytes, gr_ps_hello *hello_out,
                          gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_spec(const uint8_t *in, size_t size_bytes, gr_ps_spec *tensor_out,
                         gr_ps_texts *texts_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_request(const uint8_t *in, size_t size_bytes, gr_ps_request *request_out,
                            gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_done(const uint8_t *in, size_t size_bytes, gr_ps_done *done_out,
                         gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_entry(const uint8_t *in, size_t size_bytes, gr_ps_entry *entry_out,
                          gr_ps_texts *texts_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_ps_get_counters(const uint8_t *in, size_t size_bytes, gr_ps_counters *stats_out,
                             gr_diag *diag) GR_MUST_CHECK;
/* One in which no block has a replica is fine as well. */
gr_status gr_ps_get_table(const uint8_t *in, size_t size_bytes, gr_ps_table *table_out,
                          gr_diag *diag) GR_MUST_CHECK;

/* What is not zero of `count` values: the numbers, ascending, then the values. The size in bytes;
 * 0: it would be no shorter, and nothing is written; GR_PS_PAIRS_NONE: all are zero. `out` has room
 * for the values. */
enum { GR_PS_PAIR_BYTES = 8 };
#define GR_PS_PAIRS_NONE SIZE_MAX
size_t gr_ps_put_pairs(const float *values, size_t count, void *out);
/* The inverse, `in` 4-byte aligned, zeros included. */
gr_status gr_ps_get_pairs(const void *in, size_t size_bytes, float *values_out, size_t count,
                          gr_diag *diag) GR_MUST_CHECK;

/* What is behind the request in a PUSH_ROWS (`pushes`: with values) or PULL_ROWS. */
typedef struct gr_ps_row_list {
    const uint32_t *rows;
    const float *values; /* PUSH_ROWS: count x columns */
    uint32_t count;
} gr_ps_row_list;
/* `in` is 4-byte aligned, and has a request in front; what comes out points into it. GR_E_INVALID:
 * so many rows of so many columns have another size, or too large an answer. */
gr_status gr_ps_get_rows(const void *in, size_t size_bytes, bool pushes, uint32_t count,
                         uint32_t columns, gr_ps_row_list *rows_out, gr_diag *diag) GR_MUST_CHECK;

/* The addresses of a server as servers print them, "A+B", become what links dial, "A B". */
void gr_ps_split_addresses(char *addresses);
void gr_ps_join_addresses(char *addresses); /* and back */

/* What all decoders of this layer give for bad input: GR_E_PROTOCOL, and what it was. */
gr_status gr_ps_malformed(const char *what, gr_diag *diag);

#endif
