/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_LINK_H
#define GR_LINK_LINK_H

/* A link is an authenticated, ordered path of framed bytes between this process and one peer. A
 * mesh holds all links of a process, and what they share: the listener, the memory file, the
 * waiting.
 *
 * Processes: a mesh belongs to the process that made it. A forked child has none of its sockets.
 * There gr_mesh_destroy says no BYE, gr_mesh_free leaves the memory as it is, gr_mesh_progress and
 * gr_mesh_alloc return GR_E_INVALID, and gr_link_send returns GR_E_PEER_LOST.
 *
 * Threads: a mesh and its links belong to one thread at a time (the caller serialises); only
 * gr_mesh_wake may be called from any thread.
 *
 * Nothing here blocks but gr_mesh_wait. No call allocates from the heap once a link is up. */

#include "base/clock.h"
#include "base/log.h"
#include <gradus/status.h>
#include <stdbool.h>

typedef struct gr_mesh gr_mesh;
typedef struct gr_link gr_link;

typedef enum gr_link_kind {
    GR_LINK_SHM = 0,
    GR_LINK_TCP = 1,
    GR_LINK_KIND_COUNT = 2, /* those that join processes */
    GR_LINK_SIM = 2, /* a network inside one process, whose functions the configuration has */
    GR_LINK_KIND_ALL = 3
} gr_link_kind;
const char *gr_link_kind_name(gr_link_kind kind); /* "shm", "tcp", "sim" */

typedef struct gr_link_ops gr_link_ops; /* mesh.h */

/* What a kind of link can do. */
typedef struct gr_link_caps {
    bool one_sided;         /* memory of the peer is mapped here: link/shared.h */
    bool registered_memory; /* the peer reads memory of gr_mesh_alloc where it lies: no copy */
    bool pollable; /* data come on descriptors; what was sent last may be lost at a close */
    uint32_t payload_max_bytes;
    uint32_t eager_max_bytes; /* gr_link_send copies so many bytes: their buffer is free at once */
} gr_link_caps;

enum {
    GR_SECRET_BYTES = 32,
    GR_HOST_BYTES = 256, /* of a host: a number, or a DNS name, which has at most 253 characters */
    GR_ADDRESS_BYTES = GR_HOST_BYTES + 24, /* "tcp:[", the host, "]:65535" */
    GR_LINK_RAILS_MAX = 8                  /* connections that make up one link */
};

/* What precedes each payload. On the wire it is encoded little-endian with magic, version and a
 * checksum (frame.h). */
typedef enum gr_frame_kind {
    GR_FRAME_DATA = 1, /* a block segment of an operation */
    GR_FRAME_BYE = 2,  /* the sender leaves in order; no payload */
    GR_FRAME_ABORT =
        3, /* the sender's communicator failed; the payload is its sentence, message the
                         * failure's status negated, segment the rank that it is about */
    GR_FRAME_KIND_END
} gr_frame_kind;

typedef struct gr_frame {
    uint8_t kind;         /* gr_frame_kind */
    uint16_t comm;        /* which communicator: 0 is that of the whole job */
    uint32_t op_seq;      /* number of the operation in its communicator */
    uint32_t message;     /* index of the message on this link within the operation's plan */
    uint32_t segment;     /* index of the segment within the message */
    uint32_t size_bytes;  /* of the payload, at most GR_FRAME_PAYLOAD_MAX */
    uint64_t fingerprint; /* of the operation: a hash of all that ranks must agree on */
} gr_frame;

enum {
    GR_FRAME_PAYLOAD_MAX = 16 << 20,
    GR_PEER_TIMEOUT_US = 25000000 /* where nothing else is set */
};

/* The ports that a listener may take: first .. last; 0 .. 0: whichever the system gives. */
typedef struct gr_ports {
    uint16_t first, last;
} gr_ports;

/* Copies between processes by the kernel; in the order of GRADUS_CMA's choices. */
typedef enum gr_cma {
    GR_CMA_AUTO, /* where they are permitted, and faster than through shared memory */
    GR_CMA_OFF,
    GR_CMA_ON, /* where they are permitted */
} gr_cma;

typedef struct gr_mesh_config {
    gr_link_kind kind;
    bool mixed; /* kind shm: peers that connect by tcp, or are connected to by it, get tcp links */
    bool on_demand; /* a link is made when it is first needed: see gr_mesh_open_link */
    /* Peers come, end and come again as long as the mesh lives: see Dynamic peers below. */
    bool dynamic_peers;
    int rank;
    int world_size;
    const uint8_t *secret;        /* GR_SECRET_BYTES, copied */
    bool encrypt;                 /* TLS on tcp links; the same for all */
    const char *listen_host;      /* tcp, mixed: "127.0.0.1"; "*": any of this host's addresses */
    gr_ports ports;               /* tcp, mixed: where to listen */
    int64_t handshake_timeout_us; /* a connection that is not authenticated by then is closed */
    int half_open_max;            /* connections in handshake at a time; more are refused */
    int rails_max;                /* that gr_mesh_connect_rails is asked for, at most */
    int64_t peer_timeout_us;      /* tcp: a peer that acknowledges nothing for so long is lost */
    int64_t spin_us;              /* longest busy wait before sleeping; 0: never spin */
    size_t heap_bytes_max;        /* shm: address space for gr_mesh_alloc (sparse) */
    gr_cma cma;                   /* shm: peers may read and write memory of this process, where the
                                     kernel permits it, and this one theirs (link/shared.h) */
    gr_clock clock;
    const gr_log *log;      /* may be NULL */
    const gr_link_ops *ops; /* of GR_LINK_SIM; NULL: those of `kind` */
    void *net;              /* for `ops`: the network that this mesh is part of; borrowed */
} gr_mesh_config;

void gr_mesh_config_init(
    gr_mesh_config *config); /* sensible values for all but rank, size, secret */

gr_status gr_mesh_create(const gr_mesh_config *config, gr_mesh **mesh_out,
                         gr_diag *diag) GR_MUST_CHECK;
/* Of a group of one: no peers, and nothing that others could reach. `log` may be NULL. */
gr_status gr_mesh_create_self(const gr_log *log, gr_mesh **mesh_out, gr_diag *diag) GR_MUST_CHECK;
/* Sends BYE where it can without waiting, closes everything, frees gr_mesh_alloc memory. NULL
 * ok. */
void gr_mesh_destroy(gr_mesh *mesh);

/* Where peers reach this process: "tcp:127.0.0.1:40123", "unix:@gradus-...". Of a mixed mesh: where
 * those on this host do, and (remote) those on others: "tcp:0.0.0.0:40123" when it listens on all
 * addresses. NULL: it does not listen for remote peers. */
const char *gr_mesh_address(const gr_mesh *mesh);
const char *gr_mesh_remote_address(const gr_mesh *mesh);

/* Begin to connect to `peer`; one side of each pair calls it (the higher rank, by convention).
 * `addresses`: one, or several with blanks between, tried in this order and again until the
 * handshake's timeout. A unix: address makes an shm link, a tcp: address a tcp link. */
gr_status gr_mesh_connect(gr_mesh *mesh, int peer, const char *addresses,
                          gr_diag *diag) GR_MUST_CHECK;

/* One tcp link over several connections, of which number i goes to addresses[i] (a text as above):
 * 1 to GR_LINK_RAILS_MAX. Large payloads are spread over them by what each of them takes, so that
 * several network interfaces, or paths of one, are used together. The other side needs to know
 * nothing of it. */
gr_status gr_mesh_connect_rails(gr_mesh *mesh, int peer, const char *const *addresses, int rails,
                                gr_diag *diag) GR_MUST_CHECK;

/* ---- Links on first use -----------------------------------------------------------------------
 *
 * In a mesh that is `on_demand` a link is made when an operation first needs it. The listener stays
 * open until all links are up. A peer that has no link takes no descriptor, no time and little
 * memory. */

/* How a peer is reached: the best kind of link that both sides can use, and for each of its
 * connections the addresses, as for gr_mesh_connect_rails. */
enum { GR_ROUTE_BYTES = 512 };
typedef struct gr_peer_route {
    gr_link_kind kind;
    int rails;
    char addresses[GR_LINK_RAILS_MAX][GR_ROUTE_BYTES];
} gr_peer_route;
typedef gr_status gr_mesh_router(void *arg, int peer, gr_peer_route *route_out, gr_diag *diag);
/* Before the first gr_mesh_open_link; `arg` outlives the mesh, or is replaced. local_ranks: how
 * many ranks share this host's cores. */
void gr_mesh_set_router(gr_mesh *mesh, gr_mesh_router *router, void *arg, int local_ranks);

/* The link to `peer`; it is made if there is none. Before it is up gr_link_send returns GR_E_AGAIN
 * and gr_link_peek GR_PENDING; gr_mesh_progress moves the connection on. If it cannot be made, the
 * link has ended, and gr_link_diag says why. `connect`: this side connects, else it waits for the
 * peer to do so, and connects after a time. Both sides may connect at once. NULL: no memory, or no
 * peer of this mesh. In a mesh that is not on_demand: the link that there is, or NULL. */
gr_link *gr_mesh_open_link(gr_mesh *mesh, int peer, bool connect);
bool gr_link_is_up(const gr_link *link);
/* The peer is gone, as others know: a link that has no connection yet has ended, for the reason
 * `why`, or since the peer has `left` in order, when that is reported again. What has one finds out
 * by itself, when all that has arrived is taken. */
void gr_mesh_peer_gone(gr_mesh *mesh, int peer, bool left, const char *why);
/* From here on nobody calls gr_mesh_peer_gone: links wait no longer than a moment for the peer to
 * connect, since a connection to one that is gone is refused. */
void gr_mesh_expect_no_notice(gr_mesh *mesh);
bool gr_mesh_on_demand(const gr_mesh *mesh);

/* A peer on whose link a message has arrived, or whose link has ended, since this was last asked,
 * once for each; false: none (more). So a caller looks at busy links alone. */
bool gr_mesh_next_ready(gr_mesh *mesh, int *peer_out);

/* What a peer's host is called, for error sentences; NULL: do not name it. The argument outlives
 * the mesh. */
typedef const char *gr_mesh_host_name(const void *host_name_arg, int peer);
void gr_mesh_name_hosts(gr_mesh *mesh, gr_mesh_host_name *host_name, const void *host_name_arg);

/* Move accepts, handshakes and transfers on, without blocking. GR_OK: fine (see gr_mesh_link);
 * GR_E_AUTH, GR_E_PEER_LOST...: a peer that was connected *to* cannot be reached, or a link
 * broke: diag names it. A unauthenticated peer on the listener is never an error: closed,
 * counted, logged at debug. */
gr_status gr_mesh_progress(gr_mesh *mesh, gr_diag *diag) GR_MUST_CHECK;

/* The link to `peer` once it is authenticated; NULL before. */
gr_link *gr_mesh_link(gr_mesh *mesh, int peer);

/* Sleep until something may have changed since the last gr_mesh_progress or receive: a short
 * adaptive spin, then futex or epoll. Returns at the deadline (absolute, the mesh's clock), at a
 * wake, or spuriously. Notices a peer's death within 20 ms. */
void gr_mesh_wait(gr_mesh *mesh, int64_t deadline_us);
void gr_mesh_wake(gr_mesh *mesh);
/* A descriptor of the caller's: gr_mesh_wait ends when it gets readable, at the latest 20 ms later,
 * and gr_mesh_control_ready says so once. Borrowed until the mesh is destroyed. */
void gr_mesh_watch_control(gr_mesh *mesh, int fd);
bool gr_mesh_control_ready(gr_mesh *mesh);

/* Memory that peers can read without a copy (shm), or plain memory (tcp). 64-byte aligned,
 * zeroed. */
gr_status gr_mesh_alloc(gr_mesh *mesh, size_t size_bytes, void **mem_out) GR_MUST_CHECK;
void gr_mesh_free(gr_mesh *mesh, void *mem);
/* From now on gr_mesh_free leaves the memory as it is until the mesh goes: operations have failed
 * here that a peer may still finish from what it can read of us. */
void gr_mesh_keep(gr_mesh *mesh);

/* ---- Dynamic peers --------------------------------------------------------------------------- */

/* In a mesh with `dynamic peers` no peer is waited for, and none is missed: the acceptor stays
 * open, and a link that ends is no failure of the mesh. gr_mesh_progress fails only when one
 * that was connected *to* cannot be reached. Peers that are not there cost no time and no
 * memory. A joining peer is noticed at once by an idle gr_mesh_wait, else within 20 ms. All
 * meshes that have links with each other have the same world_size. */

/* What has changed since it was last asked, in order: the link to *peer_out is up, or (*ended_out)
 * has ended: gr_link_diag says why. One that ends before it was up is reported as well. False:
 * nothing (more). Ask until then after gr_mesh_progress: gr_mesh_wait does not sleep before. */
bool gr_mesh_next_change(gr_mesh *mesh, int *peer_out, bool *ended_out);

/* The link to `peer` has ended and what it had for us was taken: all that it holds goes, its
 * number may come again, and a joining peer that proved itself and waits for that number comes
 * in. Payloads that are held (gr_link_next) stay readable until the last of them is released,
 * and then their memory goes; until then gr_link_release is the only call on the link,
 * afterwards there is none. They stay as they were if the peer has died; one that lives on may
 * change them. A link that has not ended is left alone; where there is none yet, an attempt to
 * connect to `peer` is given up. */
void gr_mesh_remove(gr_mesh *mesh, int peer);

/* Send one peer away: it gets an ABORT with this sentence (up to GR_DIAG_TEXT_BYTES, copied), of
 * which gr_link_diag on both sides tells, here with `status`, there with GR_E_PEER_LOST (or
 * `status`, if it is one of a communicator). For the caller the link is at its end at once, but for
 * what it was lent: that is its owner's again when gr_mesh_next_change tells of the end, which is
 * when the peer has closed its side, or GR_LINK_CLOSE_US later. */
enum { GR_LINK_CLOSE_US = 1000000 };
void gr_link_close(gr_link *link, gr_status status, const char *sentence);

/* ---- One link -------------------------------------------------------------------------------- */

/* Queue one message. GR_OK: accepted, `data` is borrowed until gr_link_sent(link, *ticket_out);
 * GR_E_AGAIN: no room, nothing happened; GR_E_PEER_LOST: the link is broken (gr_link_diag). Data of
 * up to GR_LINK_LAZY_BYTES may wait for the next gr_link_sent or gr_mesh_progress, so that several
 * messages leave at once. */
enum { GR_LINK_LAZY_BYTES = 8 << 10 };
gr_status gr_link_send(gr_link *link, const gr_frame *frame, const void *data,
                       uint64_t *ticket_out) GR_MUST_CHECK;

/* The data of `ticket` is no longer needed: written to the socket, or released by the peer.
 * Messages finish in order. */
bool gr_link_sent(gr_link *link, uint64_t ticket);

/* The message at the head. GR_OK: *frame_out filled (again and again until gr_link_next);
 * GR_PENDING: none yet; GR_E_PEER_LOST: none, and none will come; GR_E_PROTOCOL: garbage. */
gr_status gr_link_peek(gr_link *link, gr_frame *frame_out) GR_MUST_CHECK;

/* The caller can do nothing before the next message of this link comes: where looking costs a
 * system call, gr_link_peek and gr_mesh_wait look here first. Until one has come. */
void gr_link_expect(gr_link *link);

/* Look at the head's payload where it lies (the peer's memory on shm). GR_OK; GR_E_UNSUPPORTED: use
 * gr_link_read. */
gr_status gr_link_view(gr_link *link, const void **data_out) GR_MUST_CHECK;

/* Copy the head's payload to dst. GR_OK: complete; GR_PENDING: some is still missing, call again
 * with the same dst, which is borrowed until then. */
gr_status gr_link_read(gr_link *link, void *dst) GR_MUST_CHECK;

/* Take the head off. With hold_out, a viewed payload stays valid until gr_link_release of that
 * number (in any order); without, it is released now. At most GR_LINK_HOLDS_MAX are held. */
enum { GR_LINK_HOLDS_MAX = 256 };
void gr_link_next(gr_link *link, uint64_t *hold_out);
void gr_link_release(gr_link *link, uint64_t hold);

/* Nobody wants data of this link any more, in either direction: what waits to be sent and what
 * arrives is thrown away, gr_link_peek has nothing. So an ABORT, a BYE or the end that is behind
 * unread data is found: at once if it is here, else by gr_mesh_progress. Buffers that were lent to
 * the link are their owners' again, but for a message on tcp that is written in part: its rest is
 * read once more. */
void gr_link_discard(gr_link *link);

/* Why the link is broken; status GR_OK while it is not. */
const gr_diag *gr_link_diag(const gr_link *link);
/* The peer has announced that it leaves: the link has ended in order. */
bool gr_link_has_left(const gr_link *link);
/* The link has ended because its connection closed, without a word of the peer's. On the same host
 * that is what the end of the peer's process looks like. */
bool gr_link_has_died(const gr_link *link);
/* Returns true if the peer is on this host: the two ends of the link, which is up, have the same
 * address, or the link is made of memory. False where that cannot be told. */
bool gr_link_same_host(gr_link *link);
int gr_link_rails(const gr_link *link); /* connections that it is made of */
const gr_link_caps *gr_link_capabilities(const gr_link *link);
/* Of the links to peers that share this host's memory, or of all links where none do. */
const gr_link_caps *gr_mesh_capabilities(const gr_mesh *mesh);

/* Counters for tests and benchmarks. */
typedef struct gr_mesh_stats {
    uint64_t messages_sent, bytes_sent; /* payload */
    uint64_t bytes_copied;              /* staged because the memory was not readable by the peer */
    uint64_t system_calls;
    uint64_t peeks;   /* calls of gr_link_peek */
    uint64_t unwoken; /* sleeps on shared memory that no peer ended */
    uint64_t unauthenticated_refused;
    uint64_t rail_bytes[GR_LINK_RAILS_MAX]; /* sent, of links with several rails */
} gr_mesh_stats;
void gr_mesh_get_stats(const gr_mesh *mesh, gr_mesh_stats *stats_out);

#endif
