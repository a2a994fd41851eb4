/* SPDX-License-Identifier: Apache-2.0 */
#include "link/mesh.h"

#include "base/fail.h"
#include "base/fork.h"
#include "base/memory.h"
#include "link/frame.h"
#include "link/socket.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAG_ACCEPTOR UINT64_MAX
#define TAG_WAKE (UINT64_MAX - 1)
#define TAG_CONTROL (UINT64_MAX - 2)

/* The tag of a link's socket: the peer's rank, above it the number of the rail. */
enum {
    TAG_RAIL_SHIFT = 32,
    EVENTS_A_TURN = 128,
    HOST_TEXT_BYTES = 80,
    CONNECTING_MAX = 64 /* links on demand: peers that are connected to at a time */
};

static const gr_link_ops *const ops_of_kind[GR_LINK_KIND_COUNT] = {
    [GR_LINK_SHM] = &gr_shm_ops,
    [GR_LINK_TCP] = &gr_tcp_ops,
};

const char *gr_link_kind_name(gr_link_kind kind)
{
    return (unsigned)kind < GR_LINK_KIND_COUNT ? ops_of_kind[kind]->name
           : kind == GR_LINK_SIM               ? "sim"
                                               : "?";
}

void gr_mesh_config_init(gr_mesh_config *config)
{
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    const int64_t heap_min = INT64_C(256) << 20, heap_max = INT64_C(256) << 30;
    *config = (gr_mesh_config){
        .kind = GR_LINK_SHM,
        .rank = 0,
        .world_size = 1,
        .listen_host = "127.0.0.1",
        .handshake_timeout_us = 5000000,
        .half_open_max = 256,
        .rails_max = 1,
        .peer_timeout_us = GR_PEER_TIMEOUT_US,
        .spin_us = 50,
        .cma = GR_CMA_AUTO,
        .heap_bytes_max = (size_t)(memory < heap_min   ? heap_min
                                   : memory > heap_max ? heap_max
                                                       : memory),
        .clock = gr_clock_real(),
    };
}

/* This process is a forked child of the mesh's. It shares memory with the peers that is its
 * parent's, and has none of its sockets (gr_fork_guard). */
static bool is_of_parent(const gr_mesh *mesh)
{
    return mesh->forks != gr_fork_count();
}

void gr_spin_learn(gr_spin *spin, int64_t waited_us)
{
    if (waited_us <= spin->max_us) {
        spin->now_us = spin->now_us * 2 < spin->max_us ? spin->now_us * 2 : spin->max_us;
    } else {
        spin->now_us = spin->now_us / 2 > GR_SPIN_MIN_US ? spin->now_us / 2 : GR_SPIN_MIN_US;
    }
}

/* ---- Ends of a link -------------------------------------------------------------------------- */

/* " (host b)", or "" if hosts have no names. */
static void host_text(const gr_link *link, char text_out[HOST_TEXT_BYTES])
{
    const gr_mesh *mesh = link->mesh;
    const char *name =
        mesh->host_name != NULL ? mesh->host_name(mesh->host_name_arg, link->peer) : NULL;
    text_out[0] = '\0';
    if (name != NULL) {
        snprintf(text_out, HOST_TEXT_BYTES, " (host %s)", name);
    }
}

int *gr_link_fd(gr_link *link, int rail)
{
    return rail == 0 ? &link->fd : &link->more_fds[rail - 1];
}

static void close_rails(gr_link *link)
{
    for (int i = 0; i < link->rails; i++) {
        int *fd = gr_link_fd(link, i);
        gr_tls_destroy(link->tls[i]);
        link->tls[i] = NULL;
        if (*fd >= 0) {
            /* A child between fork and exec may keep the descriptor: no events of it. */
            if (link->mesh->dynamic_peers) {
                (void)epoll_ctl(link->mesh->epoll_fd, EPOLL_CTL_DEL, *fd, NULL);
                link->mesh->stats.system_calls++;
            }
            gr_fork_close(*fd);
            link->mesh->stats.system_calls++;
            *fd = -1;
        }
    }
}

void gr_link_free(gr_link *link)
{
    close_rails(link);
    link->ops->detach(link);
    free(link);
}

static void end_link(gr_link *link, bool drain)
{
    if (link->state == GR_LINK_ATTACHING || link->closing) {
        link->mesh->timed--;
    }
    link->drain = drain && !link->discard && link->state == GR_LINK_UP;
    link->state = GR_LINK_ENDED;
    link->connecting = false;
    link->mesh->acceptor_ready = link->mesh->acceptor_ready || link->mesh->on_demand;
    close_rails(link);
    gr_link_changed(link);
    gr_link_set_ready(link);
}

/* The first reason stays: what ends a link that we closed is how the peer takes that. */
static void send_reason(gr_link *link, gr_status status, const char *text)
{
    if (!link->closing) {
        (void)gr_fail_peer(&link->diag, status, link->peer, "%s", text);
    }
}

void gr_link_break(gr_link *link, bool drain, gr_status status, const char *format, ...)
{
    if (link->state == GR_LINK_ENDED) {
        return;
    }
    char text[GR_DIAG_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    send_reason(link, status, text);
    if (!link->mesh->dynamic_peers) {
        link->report = true;
        link->mesh->reports++;
    }
    gr_log_write(link->mesh->log, GR_LOG_DEBUG, "link", "%s", text);
    end_link(link, drain);
}

void gr_link_left(gr_link *link)
{
    if (link->state == GR_LINK_ENDED) {
        return;
    }
    char text[48];
    snprintf(text, sizeof text, "rank %d has left in order", link->peer);
    send_reason(link, GR_E_PEER_LOST, text);
    link->left = true;
    end_link(link, true);
}

bool gr_link_has_left(const gr_link *link)
{
    return link->left;
}

bool gr_link_has_died(const gr_link *link)
{
    return link->died;
}

/* A sentence from outside goes to a terminal or a log: no control characters. Its length. */
static size_t clean_text(const gr_frame *frame, const char *text, char out[GR_FRAME_ABORT_MAX + 1])
{
    size_t size = strnlen(text, frame->size_bytes < GR_FRAME_ABORT_MAX ? frame->size_bytes
                                                                       : GR_FRAME_ABORT_MAX);
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c >= 0x80 || isprint(c) ? (char)c : ' ';
    }
    out[size] = '\0';
    return size;
}

void gr_link_aborted(gr_link *link, const gr_frame *frame, const char *text)
{
    char clean[GR_FRAME_ABORT_MAX + 1];
    size_t size = clean_text(frame, text, clean);
    gr_status status = (gr_status)(int32_t)(0 - frame->message);
    if (gr_status_scope(status) < GR_SCOPE_COMM || !gr_status_is_known(status)) {
        status = link->mesh->dynamic_peers ? GR_E_PEER_LOST : GR_E_COMM_BROKEN;
    }
    gr_link_break(link, false, status, "%s",
                  size > 0 ? clean : "a rank ended the communicator without saying why");
    if (!link->closing) {
        link->diag.peer_rank = (int32_t)frame->segment;
    }
}

void gr_link_closed(gr_link *link, int error)
{
    char host[HOST_TEXT_BYTES];
    host_text(link, host);
    if (error == 0 || error == ECONNRESET || error == EPIPE) {
        link->died = link->state != GR_LINK_ENDED && !link->closing;
        gr_link_break(link, true, GR_E_PEER_LOST,
                      "rank %d%s died: its connection to rank %d closed", link->peer, host,
                      link->mesh->rank);
    } else if (error == EBADMSG) {
        gr_link_break(link, false, GR_E_PROTOCOL,
                      "what came from rank %d%s was changed on its way to rank %d, or is no TLS",
                      link->peer, host, link->mesh->rank);
    } else if (error == ETIMEDOUT && link->mesh->peer_timeout_us > 0) {
        gr_link_break(link, true, GR_E_PEER_LOST,
                      "rank %d%s has acknowledged nothing for %g s (GRADUS_PEER_TIMEOUT): its host "
                      "or the network is down",
                      link->peer, host, (double)link->mesh->peer_timeout_us * 1e-6);
    } else {
        gr_link_break(link, true, GR_E_PEER_LOST, "the connection to rank %d%s broke: %s",
                      link->peer, host, strerror(error));
    }
}

/* ---- Joining peers --------------------------------------------------------------------------- */

/* Nobody has this place in a link yet. */
static bool accepts(void *mesh_arg, int32_t peer, gr_auth_rail rail)
{
    const gr_mesh *mesh = mesh_arg;
    if (peer < 0 || peer >= mesh->world_size || peer == mesh->rank) {
        return false;
    }
    gr_link *link = mesh->links[peer];
    if (mesh->on_demand && link != NULL && link->state == GR_LINK_ATTACHING) {
        return gr_mesh_accepts(mesh, link, rail) && *gr_link_fd(link, rail.index) < 0;
    }
    return link == NULL || (link->state == GR_LINK_ATTACHING && link->rails == rail.count &&
                            *gr_link_fd(link, rail.index) < 0);
}

/* One that has ended was not removed yet, or our own connection to that peer comes first: the peer
 * may wait. */
static bool accepts_soon(void *mesh_arg, int32_t peer)
{
    const gr_mesh *mesh = mesh_arg;
    if (mesh->on_demand && peer >= 0 && peer < mesh->world_size && mesh->links[peer] != NULL) {
        return mesh->links[peer]->state == GR_LINK_ATTACHING && mesh->links[peer]->connecting;
    }
    return mesh->dynamic_peers && peer >= 0 && peer < mesh->world_size &&
           mesh->links[peer] != NULL && mesh->links[peer]->state == GR_LINK_ENDED;
}

static void attach(gr_link *link)
{
    gr_mesh *mesh = link->mesh;
    gr_diag diag = {0};
    if (link->rails_here < link->rails) {
        return;
    }
    gr_status status = link->ops->attach(link, &diag);
    if (status == GR_OK) {
        link->state = GR_LINK_UP;
        link->was_up = true;
        link->connecting = false;
        mesh->timed--;
        mesh->links_up++;
        if (link->ops != mesh->ops) {
            mesh->other = link->ops;
            mesh->others++;
        }
        if (!mesh->dynamic_peers) {
            bool all = mesh->links_up == mesh->world_size - 1;
            mesh->all_connected = mesh->all_connected || all;
            if (all) {
                gr_acceptor_stop_listening(mesh->acceptor);
            }
        }
        if (mesh->ops->learn != NULL) {
            mesh->ops->learn(mesh);
        }
        gr_link_changed(link);
        gr_link_set_ready(link);
        mesh->acceptor_ready = true; /* the peer's own connection may wait there */
        gr_log_write(mesh->log, GR_LOG_DEBUG, "link", "rank %d: %s link to rank %d is up",
                     mesh->rank, link->ops->name, link->peer);
    } else if (status != GR_PENDING) {
        gr_link_break(link, false, status, "cannot set up the %s link to rank %d: %s",
                      link->ops->name, link->peer, diag.text);
    }
}

/* What kind of link a connection becomes; NULL: none that this mesh has. */
static const gr_link_ops *ops_of_socket(const gr_mesh *mesh, int fd)
{
    int context = AF_UNSPEC;
    socklen_t size = sizeof context;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &context, &size) != 0) {
        return NULL;
    }
    const gr_link_ops *ops = context == AF_UNIX ? &gr_shm_ops : &gr_tcp_ops;
    return ops == mesh->ops || (mesh->mixed && ops == &gr_tcp_ops) ? ops : NULL;
}

gr_link *gr_mesh_create_link(gr_mesh *mesh, const gr_link_ops *ops, int peer, int rails,
                             int64_t now)
{
    gr_link *link = gr_zeros(ops->link_bytes);
    if (link == NULL) {
        return NULL;
    }
    link->mesh = mesh;
    link->ops = ops;
    link->peer = peer;
    link->rails = rails;
    for (int i = 0; i < GR_LINK_RAILS_MAX; i++) {
        *gr_link_fd(link, i) = -1;
    }
    bool limited = !mesh->on_demand && mesh->attach_timeout_us < GR_NEVER - now;
    link->by_us = limited ? now + mesh->attach_timeout_us : GR_NEVER;
    gr_diag_clear(&link->diag);
    gr_mesh_add_link(mesh, link);
    mesh->timed++;
    return link;
}

void gr_mesh_add_link(gr_mesh *mesh, gr_link *link)
{
    mesh->links[link->peer] = link;
    link->present_at = mesh->present_count;
    mesh->present[mesh->present_count++] = link;
}

static gr_status watch(gr_mesh *mesh, int fd, uint64_t tag, uint32_t events, gr_diag *diag)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};
    mesh->stats.system_calls++;
    if (epoll_ctl(mesh->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return gr_fail(diag, GR_E_IO, "cannot watch a socket: %s", strerror(errno));
    }
    return GR_OK;
}

static void add_connection(gr_mesh *mesh, const gr_accepted *accepted, int64_t now)
{
    int peer = accepted->peer_rank, index = accepted->rail.index;
    gr_link *link = NULL;
    gr_diag diag = {0};
    const gr_link_ops *ops = ops_of_socket(mesh, accepted->fd);
    /* Two connections of one rank may both have passed the acceptor before the first was taken.
     * Only what runs over sockets has several of them. */
    bool is_accepted_now =
        (mesh->on_demand && accepted->outgoing) || accepts(mesh, peer, accepted->rail);
    if (ops != NULL && is_accepted_now && (accepted->rail.count == 1 || ops->polls)) {
        link = mesh->links[peer] != NULL
                   ? mesh->links[peer]
                   : gr_mesh_create_link(mesh, ops, peer, accepted->rail.count, now);
    }
    if (link == NULL || link->ops != ops ||
        (mesh->on_demand && (link->state != GR_LINK_ATTACHING ||
                             !gr_mesh_take_connection(link, accepted->rail, accepted->outgoing)))) {
        gr_tls_destroy(accepted->tls);
        gr_fork_close(accepted->fd);
        return;
    }
    *gr_link_fd(link, index) = accepted->fd;
    link->tls[index] = accepted->tls;
    link->rails_here++;
    if (watch(mesh, accepted->fd, (uint64_t)peer | (uint64_t)index << TAG_RAIL_SHIFT,
              EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &diag) != GR_OK) {
        gr_link_break(link, false, GR_E_IO, "%s", diag.text);
        return;
    }
    attach(link);
}

static gr_status progress_acceptor(gr_mesh *mesh, int64_t now, gr_diag *diag)
{
    gr_diag own_diag = {0};
    diag = diag != NULL ? diag : &own_diag;
    gr_status status;
    bool have_come;
    do { /* who waited for one that has come is told */
        status = gr_acceptor_progress(mesh->acceptor, diag);
        have_come = false;
        for (gr_accepted accepted; gr_acceptor_accept(mesh->acceptor, &accepted);) {
            add_connection(mesh, &accepted, now);
            have_come = true;
        }
    } while (mesh->dynamic_peers && have_come && status == GR_OK);
    return status != GR_OK && gr_mesh_cannot_connect(mesh, diag) ? GR_OK : status;
}

/* Of links that take too long to come, or to go. */
static void end_late_ones(gr_mesh *mesh, int64_t now)
{
    for (int i = 0; i < mesh->present_count && mesh->timed > 0; i++) {
        gr_link *link = mesh->present[i];
        bool timed = link->state == GR_LINK_ATTACHING || link->closing;
        if (mesh->on_demand && timed) {
            gr_mesh_connect_waiting(link, now);
            continue;
        }
        if (timed && now >= link->by_us) {
            gr_link_break(link, false, GR_E_PEER_SLOW,
                          "rank %d proved itself but did not set up its %s link in time",
                          link->peer, link->ops->name);
        }
    }
}

/* ---- Progress -------------------------------------------------------------------------------- */

static void drain_wake_fd(gr_mesh *mesh)
{
    uint64_t count;
    ssize_t got = read(mesh->wake_fd, &count, sizeof count);
    (void)got; /* empty is fine */
    mesh->stats.system_calls++;
}

static void dispatch(gr_mesh *mesh, uint64_t tag, uint32_t events)
{
    if (tag == TAG_ACCEPTOR) {
        mesh->acceptor_ready = true; /* it may fail, which only gr_mesh_progress can tell */
        return;
    }
    if (tag == TAG_CONTROL) {
        mesh->control_ready = true;
        return;
    }
    if (tag == TAG_WAKE) {
        drain_wake_fd(mesh);
        return;
    }
    gr_link *link = mesh->links[(uint32_t)tag];
    if (link == NULL) {
        return;
    }
    if (link->state == GR_LINK_ATTACHING && link->rails_here < link->rails &&
        (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        gr_link_closed(link, 0); /* the other connections of this link will not come */
    } else if (link->state == GR_LINK_ATTACHING) {
        attach(link);
    }
    /* Not `else`: with edges the event that ended the attaching may be about data as well. */
    if (link->state == GR_LINK_UP) {
        link->ops->event(link, (int)(tag >> TAG_RAIL_SHIFT), events);
    }
}

bool gr_mesh_collect(gr_mesh *mesh, int64_t sleep_us)
{
    struct epoll_event events[EVENTS_A_TURN];
    /* Rounded up: a sleep that ends a little before the deadline would be followed by a busy
     * one. */
    int sleep_ms = sleep_us <= 0 ? 0 : sleep_us > 60000000 ? 60000 : (int)((sleep_us + 999) / 1000);
    int count = epoll_wait(mesh->epoll_fd, events, EVENTS_A_TURN, sleep_ms);
    mesh->stats.system_calls++;
    for (int i = 0; i < count; i++) {
        dispatch(mesh, events[i].data.u64, events[i].events);
    }
    mesh->looked = count > 0;
    return count > 0;
}

bool gr_mesh_coming(const gr_mesh *mesh)
{
    return mesh->timed > 0 || gr_acceptor_busy(mesh->acceptor);
}

bool gr_mesh_connecting(const gr_mesh *mesh, int64_t now_us)
{
    return !mesh->all_connected &&
           (now_us < mesh->connect_by_us || gr_acceptor_connecting(mesh->acceptor));
}

/* Look at all sockets once. */
static gr_status poll_sockets(gr_mesh *mesh, int64_t now, gr_diag *diag)
{
    gr_status status = GR_OK;
    mesh->poll_at_us = now + (mesh->other != NULL        ? GR_MESH_MIXED_POLL_US
                              : mesh->ops->polls != NULL ? GR_MESH_DIRECT_POLL_US
                                                         : GR_MESH_POLL_US);
    if (!mesh->looked) {
        (void)gr_mesh_collect(mesh, 0);
    }
    mesh->looked = false;
    if (mesh->acceptor_ready || now >= gr_acceptor_next_us(mesh->acceptor)) {
        mesh->acceptor_ready = false;
        status = progress_acceptor(mesh, now, diag);
    }
    end_late_ones(mesh, now);
    if ((mesh->dynamic_peers || mesh->on_demand) && gr_mesh_coming(mesh) &&
        mesh->poll_at_us > now + GR_MESH_COMING_POLL_US) {
        mesh->poll_at_us = now + GR_MESH_COMING_POLL_US;
    }
    return status;
}

static gr_status report(gr_mesh *mesh, gr_diag *diag)
{
    for (int i = 0; i < mesh->present_count; i++) {
        gr_link *link = mesh->present[i];
        if (link->report) {
            link->report = false;
            mesh->reports--;
            if (diag != NULL) {
                *diag = link->diag;
            }
            return (gr_status)link->diag.status;
        }
    }
    return GR_OK;
}

gr_status gr_mesh_progress(gr_mesh *mesh, gr_diag *diag)
{
    gr_status status = GR_OK;
    if (is_of_parent(mesh)) {
        return gr_fail(diag, GR_E_INVALID,
                       "this process was forked from rank %d and is no member of the job: "
                       "communicate in the parent only",
                       mesh->rank);
    }
    int64_t now = gr_clock_now_us(&mesh->clock);
    if (now >= mesh->poll_at_us || mesh->acceptor_ready || gr_mesh_connecting(mesh, now) ||
        (mesh->ops->polls != NULL && mesh->ops->polls(mesh))) {
        status = poll_sockets(mesh, now, diag);
    }
    mesh->ops->progress(mesh);
    if (mesh->other != NULL) {
        mesh->other->progress(mesh);
    }
    return status == GR_OK && mesh->reports > 0 ? report(mesh, diag) : status;
}

/* Until when a wait may sleep at most: the deadline, or something that progress must do before. */
static int64_t latest_us(const gr_mesh *mesh, int64_t now, int64_t deadline_us)
{
    int64_t until = deadline_us;
    if (!mesh->all_connected || mesh->dynamic_peers || mesh->on_demand) {
        int64_t acceptor_us = gr_acceptor_next_us(mesh->acceptor);
        until = acceptor_us < until ? acceptor_us : until;
    }
    if (!mesh->all_connected || mesh->timed > 0) {
        until = now + mesh->sleep_us < until ? now + mesh->sleep_us : until;
    }
    return until;
}

void gr_mesh_wait(gr_mesh *mesh, int64_t deadline_us)
{
    int64_t now = gr_clock_now_us(&mesh->clock);
    if (mesh->reports == 0 && mesh->changes == NULL && !mesh->acceptor_ready && now < deadline_us &&
        !atomic_load_explicit(&mesh->woken, memory_order_acquire)) {
        mesh->ops->wait(mesh, now, latest_us(mesh, now, deadline_us));
    }
    atomic_store_explicit(&mesh->woken, false, memory_order_release);
}

void gr_mesh_wake(gr_mesh *mesh)
{
    atomic_store(&mesh->woken, true);
    mesh->ops->wake(mesh);
}

void gr_mesh_watch_control(gr_mesh *mesh, int fd)
{
    gr_diag ignored; /* without it the caller looks when it has other reasons to */
    gr_status status = watch(mesh, fd, TAG_CONTROL, EPOLLIN | EPOLLET, &ignored);
    mesh->control_ready = true; /* for what came before */
    (void)status;
}

bool gr_mesh_control_ready(gr_mesh *mesh)
{
    bool ready = mesh->control_ready;
    mesh->control_ready = false;
    return ready;
}

void gr_mesh_wake_sleeper(gr_mesh *mesh)
{
    uint64_t one = 1;
    ssize_t put = write(mesh->wake_fd, &one, sizeof one);
    (void)put; /* a full counter wakes just as well */
}

/* ---- Life ------------------------------------------------------------------------------------ */

static gr_status check_config(const gr_mesh_config *config, gr_diag *diag)
{
    if ((unsigned)config->kind >= GR_LINK_KIND_ALL) {
        return gr_fail(diag, GR_E_INVALID, "link kind %d does not exist", (int)config->kind);
    }
    if (config->mixed && config->kind != GR_LINK_SHM) {
        return gr_fail(diag, GR_E_INVALID, "a mixed mesh is of kind shm, not %s",
                       gr_link_kind_name(config->kind));
    }
    if (config->dynamic_peers && config->ops && config->ops->inside) {
        return gr_fail(diag, GR_E_INVALID, "a mesh of kind %s has no dynamic peers",
                       gr_link_kind_name(config->kind));
    }
    if (config->world_size < 1 || config->world_size > GR_MESH_WORLD_MAX || config->rank < 0 ||
        config->rank >= config->world_size || config->secret == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "a mesh needs a secret, a world of 1 to %d ranks, and its own rank in it; "
                       "it is rank %d of %d",
                       GR_MESH_WORLD_MAX, config->rank, config->world_size);
    }
    if (config->rails_max < 1 || config->rails_max > GR_LINK_RAILS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "a link has 1 to %d connections, not %d",
                       GR_LINK_RAILS_MAX, config->rails_max);
    }
    return GR_OK;
}

static gr_status open_acceptor(gr_mesh *mesh, const gr_mesh_config *config, gr_diag *diag)
{
    gr_acceptor_config acceptor = {
        .rank = config->rank,
        .secret = config->secret,
        .encrypt = config->encrypt,
        .listen_local = config->kind == GR_LINK_SHM,
        .listen_host = config->kind == GR_LINK_TCP || config->mixed ? config->listen_host : NULL,
        .ports = config->ports,
        .half_open_max = config->half_open_max,
        .outgoing_max =
            (config->on_demand && config->world_size > CONNECTING_MAX ? CONNECTING_MAX
                                                                      : config->world_size) *
            config->rails_max,
        .timeout_us = config->handshake_timeout_us,
        .connect_timeout_us = config->on_demand ? GR_NEVER : 0,
        .clock = config->clock,
        .log = config->log,
        .accepts = accepts,
        .accepts_soon = accepts_soon,
        .one_by_one = mesh->dynamic_peers,
        .accepts_arg = mesh,
    };
    gr_status status = gr_acceptor_create(&acceptor, &mesh->acceptor, diag);
    if (status == GR_OK) {
        memcpy(mesh->address, gr_acceptor_address(mesh->acceptor), sizeof mesh->address);
        memcpy(mesh->remote_address, gr_acceptor_remote_address(mesh->acceptor),
               sizeof mesh->remote_address);
    }
    return status;
}

static gr_status open_sockets(gr_mesh *mesh, gr_diag *diag)
{
    mesh->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    mesh->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = errno; /* of the second, if any: what the first lacks the second lacks as well */
    gr_fork_guard(mesh->epoll_fd);
    gr_fork_guard(mesh->wake_fd);
    if (mesh->epoll_fd < 0 || mesh->wake_fd < 0) {
        char why[GR_DESCRIPTORS_TEXT_BYTES];
        return gr_fail(diag, GR_E_IO, "cannot create an epoll and an eventfd: %s",
                       gr_descriptors_error(error, why));
    }
    gr_status status = watch(mesh, mesh->wake_fd, TAG_WAKE, EPOLLIN, diag);
    if (status == GR_OK) {
        status = watch(mesh, gr_acceptor_fd(mesh->acceptor), TAG_ACCEPTOR, EPOLLIN, diag);
    }
    return status;
}

gr_status gr_mesh_create(const gr_mesh_config *config, gr_mesh **mesh_out, gr_diag *diag)
{
    gr_status status = check_config(config, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_link_ops *ops = config->ops ? config->ops : ops_of_kind[config->kind];
    gr_mesh *mesh = calloc(1, ops->mesh_bytes);
    size_t words = ((size_t)config->world_size + 63) / 64;
    gr_link **links =
        calloc(2 * (size_t)config->world_size + words, sizeof(gr_link *)); /* and `ready` */
    if (mesh == NULL || links == NULL) {
        free(links);
        free(mesh);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a mesh of %d", config->world_size);
    }
    int64_t now = gr_clock_now_us(&config->clock);
    mesh->ops = ops;
    mesh->mixed = config->mixed;
    mesh->rank = config->rank;
    mesh->world_size = config->world_size;
    mesh->clock = config->clock;
    mesh->forks = gr_fork_count();
    mesh->log = config->log;
    mesh->links = links;
    mesh->present = links + config->world_size;
    mesh->ready = (uint64_t *)(void *)(links + 2 * (size_t)config->world_size);
    mesh->on_demand = config->on_demand;
    mesh->dynamic_peers = config->dynamic_peers;
    mesh->epoll_fd = mesh->wake_fd = -1;
    mesh->all_connected = config->world_size == 1 || config->dynamic_peers || config->on_demand;
    mesh->attach_timeout_us = config->handshake_timeout_us;
    mesh->sleep_us = GR_MESH_SLEEP_US;
    mesh->connect_by_us = gr_clock_deadline_us(&config->clock, config->handshake_timeout_us);
    mesh->poll_at_us = now;
    mesh->peer_timeout_us = config->peer_timeout_us;
    mesh->spin = (gr_spin){.max_us = config->spin_us, .now_us = config->spin_us};
    atomic_init(&mesh->woken, false);
    gr_blocks_init(&mesh->blocks);
    if (ops->inside) {
        mesh->all_connected = true;
        mesh->poll_at_us = GR_NEVER;
    } else {
        status = open_acceptor(mesh, config, diag);
        if (status == GR_OK) {
            status = open_sockets(mesh, diag);
        }
    }
    if (status == GR_OK && ops->open != NULL) {
        status = ops->open(mesh, config, diag);
    }
    if (status != GR_OK) {
        gr_mesh_destroy(mesh);
        return status;
    }
    *mesh_out = mesh;
    return GR_OK;
}

void gr_mesh_destroy(gr_mesh *mesh)
{
    if (mesh == NULL) {
        return;
    }
    for (int i = 0; i < mesh->present_count && !is_of_parent(mesh); i++) {
        if (mesh->present[i]->state == GR_LINK_UP) {
            mesh->present[i]->ops->leave(mesh->present[i]);
        }
    }
    while (mesh->present_count > 0) {
        gr_link_free(mesh->present[--mesh->present_count]);
    }
    for (gr_link *link = mesh->removed, *next; link != NULL; link = next) {
        next = link->next;
        gr_link_free(link);
    }
    if (mesh->ops->close != NULL) {
        mesh->ops->close(mesh);
    }
    gr_blocks_fini(&mesh->blocks);
    gr_acceptor_destroy(mesh->acceptor);
    gr_fork_close(mesh->wake_fd);
    gr_fork_close(mesh->epoll_fd);
    free(mesh->links);
    free(mesh);
}

const char *gr_mesh_address(const gr_mesh *mesh)
{
    return mesh->address;
}

const char *gr_mesh_remote_address(const gr_mesh *mesh)
{
    return mesh->remote_address[0] != '\0' ? mesh->remote_address : NULL;
}

void gr_mesh_name_hosts(gr_mesh *mesh, gr_mesh_host_name *host_name, const void *host_name_arg)
{
    mesh->host_name = host_name;
    mesh->host_name_arg = host_name_arg;
}

gr_status gr_mesh_connect(gr_mesh *mesh, int peer, const char *addresses, gr_diag *diag)
{
    return gr_mesh_connect_rails(mesh, peer, &addresses, 1, diag);
}

gr_status gr_mesh_connect_rails(gr_mesh *mesh, int peer, const char *const *addresses, int rails,
                                gr_diag *diag)
{
    if (rails < 1 || rails > GR_LINK_RAILS_MAX) {
        return gr_fail_peer(diag, GR_E_INVALID, peer, "a link has 1 to %d connections, not %d",
                            GR_LINK_RAILS_MAX, rails);
    }
    gr_auth_rail rail = {.index = 0, .count = (uint8_t)rails};
    if (mesh->acceptor == NULL || !accepts(mesh, peer, rail) || mesh->links[peer] != NULL) {
        return gr_fail_peer(diag, GR_E_INVALID, peer,
                            "rank %d of %d cannot connect to rank %d: it is no other rank of the "
                            "world, or the link exists",
                            mesh->rank, mesh->world_size, peer);
    }
    /* The connect may be through, or have failed, before any socket tells. */
    mesh->acceptor_ready = true;
    gr_status status = GR_OK;
    for (; status == GR_OK && rail.index < rails; rail.index++) {
        status = gr_acceptor_connect(mesh->acceptor, peer, rail, addresses[rail.index], diag);
    }
    return status;
}

gr_link *gr_mesh_link(gr_mesh *mesh, int peer)
{
    gr_link *link = peer >= 0 && peer < mesh->world_size ? mesh->links[peer] : NULL;
    return link != NULL && link->state != GR_LINK_ATTACHING ? link : NULL;
}

gr_status gr_mesh_alloc(gr_mesh *mesh, size_t size_bytes, void **mem_out)
{
    return size_bytes == 0 || is_of_parent(mesh) ? GR_E_INVALID
           : mesh->ops->alloc != NULL            ? mesh->ops->alloc(mesh, size_bytes, mem_out)
                                      : gr_block_alloc(&mesh->blocks, size_bytes, mem_out);
}

void gr_mesh_free(gr_mesh *mesh, void *mem)
{
    if (mem == NULL || mesh->keeps || is_of_parent(mesh)) {
        return;
    }
    if (mesh->ops->free != NULL) {
        mesh->ops->free(mesh, mem);
    } else {
        gr_block_free(mem);
    }
}

void gr_mesh_keep(gr_mesh *mesh)
{
    mesh->keeps = true;
}

void gr_mesh_get_stats(const gr_mesh *mesh, gr_mesh_stats *stats_out)
{
    *stats_out = mesh->stats;
    if (mesh->acceptor != NULL) {
        stats_out->system_calls += gr_acceptor_system_calls(mesh->acceptor);
        stats_out->unauthenticated_refused += gr_acceptor_pending(mesh->acceptor);
    }
}

/* ---- One link -------------------------------------------------------------------------------- */

gr_status gr_link_send(gr_link *link, const gr_frame *frame, const void *data, uint64_t *ticket_out)
{
    if (link->state == GR_LINK_ATTACHING) {
        return GR_E_AGAIN;
    }
    if (link->state != GR_LINK_UP || link->closing || is_of_parent(link->mesh)) {
        return GR_E_PEER_LOST;
    }
    if (gr_frame_check(frame, NULL) != GR_OK ||
        frame->size_bytes > link->ops->caps.payload_max_bytes) {
        return GR_E_INVALID;
    }
    return link->ops->send(link, frame, data, ticket_out);
}

void gr_link_discard(gr_link *link)
{
    if (link->discard || (link->state != GR_LINK_UP && !link->drain)) {
        return;
    }
    link->discard = true;
    if (link->ops->discard != NULL && link->state == GR_LINK_UP) {
        link->ops->discard(link);
    }
    if (link->state != GR_LINK_UP) {
        link->drain = false;
    }
}

bool gr_link_sent(gr_link *link, uint64_t ticket)
{
    return link->state != GR_LINK_UP || link->ops->sent(link, ticket);
}

gr_status gr_link_peek(gr_link *link, gr_frame *frame_out)
{
    link->mesh->stats.peeks++;
    if (link->state == GR_LINK_ATTACHING) {
        return GR_PENDING;
    }
    if ((link->state != GR_LINK_UP && !link->drain) || link->closing) {
        return link->diag.status == GR_E_PROTOCOL ? GR_E_PROTOCOL : GR_E_PEER_LOST;
    }
    if (link->discard) {
        return GR_PENDING;
    }
    gr_status status = link->ops->peek(link, frame_out);
    if (status == GR_PENDING && link->state != GR_LINK_UP) {
        link->drain = false;
    }
    if (status == GR_OK || link->state == GR_LINK_UP) {
        link->expected = link->expected && status != GR_OK;
        return status;
    }
    return link->diag.status == GR_E_PROTOCOL ? GR_E_PROTOCOL : GR_E_PEER_LOST;
}

void gr_link_expect(gr_link *link)
{
    link->expected = true;
}

gr_status gr_link_view(gr_link *link, const void **data_out)
{
    return link->ops->view(link, data_out);
}

gr_status gr_link_read(gr_link *link, void *dst)
{
    gr_status status = link->ops->read(link, dst);
    link->expected = status == GR_PENDING;
    if (status == GR_PENDING && link->state != GR_LINK_UP) {
        /* The rest of it will not come. */
        return link->diag.status == GR_E_PROTOCOL ? GR_E_PROTOCOL : GR_E_PEER_LOST;
    }
    return status;
}

void gr_link_next(gr_link *link, uint64_t *hold_out)
{
    link->ops->next(link, hold_out);
}

void gr_link_release(gr_link *link, uint64_t hold)
{
    link->ops->release(link, hold);
    if (link->removed) {
        gr_link_unref(link);
    }
}

const gr_diag *gr_link_diag(const gr_link *link)
{
    return &link->diag;
}

const gr_link_caps *gr_mesh_capabilities(const gr_mesh *mesh)
{
    return &mesh->ops->caps;
}

const gr_link_caps *gr_link_capabilities(const gr_link *link)
{
    return &link->ops->caps;
}

int gr_link_rails(const gr_link *link)
{
    return link->rails;
}
