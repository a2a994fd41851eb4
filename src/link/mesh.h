/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_MESH_H
#define GR_LINK_MESH_H

/* What the kinds of link share, and the table by which each kind is reached. Only src/link/
 * includes this. A kind lives in its own folder, embeds gr_mesh and gr_link as first members of its
 * own structs, and keeps to this order of calls: open, then per peer attach until it does not
 * return GR_PENDING, then transfers, then detach per link, then close. */

#include "link/acceptor.h"
#include "link/blocks.h"
#include "link/shared.h"

#include <stdatomic.h>

typedef enum gr_link_state {
    GR_LINK_ATTACHING = 0, /* authenticated; the kind exchanges what it needs */
    GR_LINK_UP = 1,
    GR_LINK_ENDED = 2 /* broken or left; what arrived before may still be taken if `drain` */
} gr_link_state;

struct gr_link {
    gr_mesh *mesh;
    const gr_link_ops *ops;
    int peer;
    int fd; /* of rail 0; -1: not there, or closed */
    int more_fds[GR_LINK_RAILS_MAX - 1];
    gr_tls *tls[GR_LINK_RAILS_MAX]; /* of each rail; NULL: not encrypted */
    int rails, rails_here; /* how many connections it is made of; how many are authenticated */
    gr_link_state state;
    bool drain;    /* ended, but messages that arrived whole are still handed out */
    bool report;   /* gr_mesh_progress has yet to report the failure */
    bool left;     /* the peer has announced it */
    bool died;     /* its connection closed without a word */
    bool discard;  /* data are thrown away */
    bool expected; /* gr_link_expect: the caller waits for this one */
    bool was_up;
    bool connecting;           /* on demand: our connections are under way */
    bool missed;               /* on demand: the peer has left, as was reported once */
    bool closing;              /* gr_link_close: our ABORT is on its way; diag says why */
    bool changed, up_reported; /* in mesh->changes; gr_mesh_next_change has reported its coming */
    bool removed;              /* in mesh->removed: only views are left of it */
    int present_at;            /* in mesh->present */
    int64_t by_us;             /* attaching, closing: it takes no longer */
    gr_link *next;             /* in mesh->changes, mesh->removed */
    gr_diag diag;              /* why it ended */
};

/* How long to spin before sleeping: grows while waits turn out short, shrinks while they are
 * long. */
typedef struct gr_spin {
    int64_t max_us;
    int64_t now_us;
    bool allowed; /* there is a core for every process that may be waited for */
} gr_spin;

enum { GR_SPIN_MIN_US = 2 };
void gr_spin_learn(gr_spin *spin, int64_t waited_us);

struct gr_mesh {
    const gr_link_ops *ops;   /* of the memory, of waiting, and of the links */
    const gr_link_ops *other; /* of links of a second kind; NULL while there are none */
    bool mixed;               /* there may be some */
    int rank, world_size;
    uint32_t forks; /* gr_fork_count when the mesh was made */
    gr_clock clock;
    const gr_log *log;
    gr_acceptor *acceptor;
    char address[GR_ADDRESS_BYTES], remote_address[GR_ADDRESS_BYTES];
    gr_mesh_host_name *host_name; /* NULL: hosts have no names */
    const void *host_name_arg;
    int epoll_fd; /* the acceptor, wake_fd, the links' sockets */
    int wake_fd;
    gr_link **links;   /* by peer; NULL: not authenticated */
    gr_link **present; /* the same ones, one after the other */
    int present_count;
    int others;             /* of them: of the second kind, and were up */
    int timed;              /* attaching or closing */
    int links_up;           /* have ever been up */
    int reports;            /* links with `report` set */
    gr_mesh_router *router; /* NULL: links are not made on demand */
    void *router_arg;
    int local_ranks; /* 0: not known */
    uint64_t *ready; /* bits: peers for gr_mesh_next_ready */
    bool on_demand;
    bool dynamic_peers; /* the acceptor stays open; the owner is notified of changes */
    gr_link *changes, *last_change;
    gr_link *removed;
    bool all_connected;  /* all links have been up, or may come late: no system call is needed to
                            look for joining peers */
    bool acceptor_ready; /* the acceptor has something to do */
    bool control_ready;  /* gr_mesh_watch_control: there is something */
    bool no_notice;      /* gr_mesh_expect_no_notice */
    bool looked;         /* a wait has looked at the sockets just now */
    bool keeps;          /* gr_mesh_keep */
    int64_t peer_timeout_us;
    int64_t connect_by_us, poll_at_us, attach_timeout_us;
    int64_t sleep_us; /* the longest between two looks */
    gr_spin spin;
    gr_mesh_poll_hook *poll_hook; /* of shared.h; NULL: none */
    const void *poll_hook_arg;
    atomic_bool woken;
    gr_block blocks; /* of gr_mesh_alloc, where the kind has no memory of its own */
    gr_mesh_stats stats;
};

struct gr_link_ops {
    const char *name;
    gr_link_caps caps;
    size_t mesh_bytes, link_bytes;
    bool inside; /* all ranks are in this process: no acceptor, no sockets, neither `attach` nor
                    `event`; `open` makes the links */
    /* Sockets carry the data: must gr_mesh_progress look at all of them now? NULL: never. */
    bool (*polls)(gr_mesh *mesh);
    gr_status (*open)(gr_mesh *mesh, const gr_mesh_config *config, gr_diag *diag); /* or NULL */
    void (*close)(gr_mesh *mesh); /* NULL: nothing */
    /* GR_OK: up; GR_PENDING: again when the socket has something; else the link ends. */
    gr_status (*attach)(gr_link *link, gr_diag *diag);
    void (*learn)(gr_mesh *mesh); /* others are there than before; NULL: nothing to do */
    /* Before another link of the same number: leave what both would use. NULL: nothing. */
    void (*recycle)(gr_link *link);
    bool (*holds)(const gr_link *link);                      /* payloads that are not released */
    void (*detach)(gr_link *link);                           /* also of a half attached one */
    void (*leave)(gr_link *link);                            /* BYE, without waiting */
    void (*event)(gr_link *link, int rail, uint32_t events); /* of epoll, while up */
    void (*progress)(gr_mesh *mesh);
    bool (*busy)(gr_mesh *mesh); /* progress would do something; NULL: the kind is never `other` */
    void (*wait)(gr_mesh *mesh, int64_t now_us, int64_t deadline_us);
    void (*wake)(gr_mesh *mesh);
    /* Memory that peers read; NULL, both of them: plain memory (blocks.h). */
    gr_status (*alloc)(gr_mesh *mesh, size_t size_bytes, void **mem_out);
    void (*free)(gr_mesh *mesh, void *mem);

    gr_status (*send)(gr_link *link, const gr_frame *frame, const void *data, uint64_t *ticket_out);
    bool (*sent)(gr_link *link, uint64_t ticket);
    gr_status (*peek)(gr_link *link, gr_frame *frame_out);
    gr_status (*view)(gr_link *link, const void **data_out);
    gr_status (*read)(gr_link *link, void *dst);
    void (*next)(gr_link *link, uint64_t *hold_out);
    void (*release)(gr_link *link, uint64_t hold);
    void (*discard)(gr_link *link); /* `discard` was set just now; NULL: nothing to do */
};

extern const gr_link_ops gr_shm_ops;
extern const gr_link_ops gr_tcp_ops;

enum {
    GR_MESH_MIXED_POLL_US = 2,    /* how often the sockets of a mixed mesh are looked at, */
    GR_MESH_DIRECT_POLL_US = 500, /* where whoever waits reads its socket without asking first, */
    GR_MESH_POLL_US = 10000, /* how often a dead peer is looked for where data need no sockets, */
    GR_MESH_COMING_POLL_US = 200, /* and the next step of a dynamic peer that is about to come */
    GR_MESH_SLEEP_US = 10000,     /* sleep_us, but in tests of who wakes whom */
    GR_MESH_WORLD_MAX = 4096
};

/* The link ends with a failure that gr_mesh_progress tells once. A second end changes nothing. */
void gr_link_break(gr_link *link, bool drain, gr_status status, const char *format, ...)
    GR_PRINTF(4, 5);
/* The peer sent BYE: the link ends, but that is no failure of the mesh. */
void gr_link_left(gr_link *link);
/* The peer sent ABORT: its communicator failed with this sentence (frame->size_bytes), with status
 * -frame->message, because of rank frame->segment. The link's status is that status if it is a
 * known one of a communicator, else GR_E_COMM_BROKEN: the failure is not this peer's; or, where
 * peers are dynamic peers, GR_E_PEER_LOST: no communicator is broken. */
void gr_link_aborted(gr_link *link, const gr_frame *frame, const char *text);
/* End of file on the socket, or an error of it (errno; 0: end of file). */
void gr_link_closed(gr_link *link, int error);

/* on_demand.c: the rules for a link that is not up yet. */
/* Its time to be connected by this side has come, perhaps. */
void gr_mesh_connect_waiting(gr_link *link, int64_t now);
/* Returns true if a connection that the peer made may become part of the link. */
bool gr_mesh_accepts(const gr_mesh *mesh, const gr_link *link, gr_auth_rail rail);
/* A connection proved itself. False: it is not wanted. */
bool gr_mesh_take_connection(gr_link *link, gr_auth_rail rail, bool outgoing);
/* The acceptor could not connect. True: a link has ended with that, and tells of it. */
bool gr_mesh_cannot_connect(gr_mesh *mesh, const gr_diag *why);
/* For gr_mesh_next_ready. */
void gr_link_set_ready(gr_link *link);

/* A link none of whose connections is there yet; NULL: no memory. */
gr_link *gr_mesh_create_link(gr_mesh *mesh, const gr_link_ops *ops, int peer, int rails,
                             int64_t now);
/* The link is there from now on; the mesh has room for one to each peer. */
void gr_mesh_add_link(gr_mesh *mesh, gr_link *link);
void gr_link_free(gr_link *link);
/* It is up, or has ended: reported where there are dynamic peers. */
void gr_link_changed(gr_link *link);
/* Of a removed link payloads were released: it goes with the last of them. */
void gr_link_unref(gr_link *link);
/* Somebody is about to come, or to go. */
bool gr_mesh_coming(const gr_mesh *mesh);

/* The socket of that rail. */
int *gr_link_fd(gr_link *link, int rail);

/* Look at the sockets and pass their events on, sleeping at most that long; true if there were
 * some. */
bool gr_mesh_collect(gr_mesh *mesh, int64_t sleep_us);
/* Links are still being made: the sockets are to be looked at in every turn. */
bool gr_mesh_connecting(const gr_mesh *mesh, int64_t now_us);
/* End a gr_mesh_collect that sleeps; any thread. */
void gr_mesh_wake_sleeper(gr_mesh *mesh);

#endif
