/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_SERVER_PEER_H
#define GR_PS_SERVER_PEER_H

/* The other servers: peer.c (who lives), copy.c (what goes to replicas and what comes). */

#include "ps/server/server_internal.h"

/* What goes to another server: a head, and values. In the order of a queue. */
typedef struct gr_ps_replica_message {
    struct gr_ps_replica_message *next;
    uint8_t kind;    /* GR_PS_UPDATE, GR_PS_IMAGE; without values GR_PS_HELLO, GR_PS_DECLARE */
    bool begun;      /* its head has been sent */
    int parts, sent; /* vectors of values; of those as many as were sent whole */
    uint64_t part_bytes, part_sent;
    const float *part[1 + GR_PS_STATES_MAX];
    gr_ps_buffer *buffer[1 + GR_PS_STATES_MAX]; /* where they lie; NULL: in the store */
    uint64_t ticket;                            /* of the last message */
    uint32_t head_bytes;
    uint8_t head[];
} gr_ps_replica_message;

/* A message with a text of its own, which the link may still need. */
typedef struct gr_ps_note {
    bool lent;
    uint64_t ticket;
    uint8_t text[GR_PS_SMALL_MAX];
} gr_ps_note;

/* What was sent to the process that has a server's number, and what it has sent: new with each one
 * that comes. */
typedef struct gr_ps_contact {
    bool applied;         /* this one replaces another, and has sent it its address: as long as it
                             is in no table it asks for a place by that */
    bool applies;         /* it has asked this one */
    bool introduced;      /* it was sent the tensors: it came later than they */
    bool local;           /* it was reached by memory */
    bool same_host;       /* as its link was */
    int64_t since_us;     /* when it was known first, or this server had slept */
    int64_t beat_us;      /* when this server last sent it a sign of life */
    int64_t echo_us;      /* it has received what was sent then; 0: nothing yet */
    uint64_t stamp;       /* the newest of its own that has come */
    bool answer;          /* it must know at once that its message arrived */
    bool answered;        /* it knows that a message of its own arrived */
    gr_ps_view told;      /* what it knows of this server's view */
    uint64_t table_epoch; /* of the last table that it was sent */
    gr_ps_note beat, table;
} gr_ps_contact;

/* A place in the list of all blocks. */
typedef struct gr_ps_cursor {
    size_t share;
    uint32_t block;
} gr_ps_cursor;

/* What goes to another server as a replica: gone with its link, but for what is still to copy. */
typedef struct gr_ps_outgoing {
    gr_ps_replica_message *oldest, *newest, *unsent;
    int images;
    gr_ps_cursor scan;
    uint32_t to_copy; /* blocks whose image it has not been sent */
    bool scan_tables; /* those of tables come first */
    bool streams;     /* of some of them rows are to be sent */
    gr_ps_cursor stream;
} gr_ps_outgoing;

/* What comes from another server as a primary, and the answers: gone with its link. */
typedef struct gr_ps_incoming {
    uint8_t taking; /* GR_PS_UPDATE, GR_PS_IMAGE: its COPYs are to come */
    int taken, parts;
    uint64_t part_bytes, part_taken;
    gr_ps_update update;
    int clients[GR_PS_PEERS_MAX];
    gr_ps_image image;
    gr_ps_seen seen[GR_PS_PEERS_MAX];
    gr_ps_buffer *copies[1 + GR_PS_STATES_MAX];
    gr_ps_ack *acks;
    size_t ack_count, ack_room;
    gr_ps_note note;
} gr_ps_incoming;

/* Another server. */
struct gr_ps_peer {
    int number;
    gr_link *arriving;    /* a process that has the number, and has not sent which one it is */
    gr_link *link;        /* it has */
    uint64_t incarnation; /* of that process */
    bool greeted;         /* it has received which one this server is */
    uint8_t hello[GR_PS_REQUEST_BYTES];
    bool met;      /* there has been a link */
    bool dialled;  /* and is on the way */
    bool provable; /* its link ended so that its process can be shown to be dead */
    char addresses[GR_ADDRESS_BYTES + GR_REMOTE_BYTES]; /* blanks between; "": not known yet */
    uint64_t placed; /* the process that is there, if not another one by now */
    int64_t missed_us, probe_us, dial_us;
    int probe_fd; /* -1: none */
    gr_ps_contact contact;
    gr_ps_outgoing out;
    gr_ps_incoming in;
    uint8_t head[GR_PS_HEAD_MAX];
};

/* peer.c: other servers. GR_E_NO_MEMORY. */
gr_status gr_ps_peers_create(gr_ps_server *server, gr_diag *diag) GR_MUST_CHECK;
void gr_ps_peers_destroy(gr_ps_server *server);
/* A client says where a server is: addresses with "+" between. */
void gr_ps_peer_learn(gr_ps_server *server, int number, const char *addresses);
/* It could not be reached, and is tried again; false: it is no other server. */
bool gr_ps_peer_missed(gr_ps_server *server, int number, gr_status status);
/* All have refused this one for long, which replaces another: it has another secret, or that lives.
 * One that has its number, and is about to be found dead, makes them refuse it for a while. */
bool gr_ps_peers_refuse(const gr_ps_server *server, gr_status status);
void gr_ps_peer_came(gr_ps_server *server, int number); /* which process it is remains to be seen */
void gr_ps_peer_ended(gr_ps_server *server, int number); /* all that it sent was taken */
/* Takes what they have sent, looks who lives, and makes a new table true. GR_OK; GR_PENDING: there
 * is more; GR_E_PEER_LOST: they go on without this one; any other failure: it replaces another one,
 * and cannot. */
gr_status gr_ps_peers_turn(gr_ps_server *server, gr_diag *diag) GR_MUST_CHECK;
/* Sends what there is; true: there was, and may be more. */
bool gr_ps_peers_send(gr_ps_server *server);
int64_t gr_ps_peers_due_us(const gr_ps_server *server); /* when a turn is due at the latest */
/* Whatever it has sent. GR_OK: nothing is left; GR_PENDING; GR_E_PROTOCOL and what it was. */
gr_status gr_ps_peer_receive(gr_ps_server *server, gr_ps_peer *peer, gr_diag *diag) GR_MUST_CHECK;
/* Which server this is, and whose tensors it keeps; `out` has GR_PS_REQUEST_BYTES. */
size_t gr_ps_put_own_hello(const gr_ps_server *server, uint8_t *out);
bool gr_ps_note_send(gr_ps_peer *peer, gr_ps_note *note, gr_ps_kind kind, size_t size_bytes);
bool gr_ps_note_free(gr_ps_peer *peer, gr_ps_note *note); /* may its text change? */
/* Where the servers are that came later, but for `except`: a server, which receives them (-1: a
 * client does). False: the link has no room, or a client must wait for what one has not sent
 * yet. */
bool gr_ps_send_places(gr_ps_server *server, gr_link *link, int except);

/* copy.c */
void gr_ps_copy_forward(gr_ps_server *server, const gr_ps_update *update);
/* The run and all tensors, to a server that came later than they. */
void gr_ps_copy_introduce(gr_ps_server *server, gr_ps_peer *peer);
bool gr_ps_copy_send(gr_ps_server *server, gr_ps_peer *peer); /* true: something went */
void gr_ps_copy_drop(gr_ps_server *server,
                     gr_ps_peer *peer); /* all that is on its way, both ways */
/* UPDATE, IMAGE, COPY or ACKS at the head of the link. */
gr_status gr_ps_copy_take(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                          gr_diag *diag) GR_MUST_CHECK;

#endif
