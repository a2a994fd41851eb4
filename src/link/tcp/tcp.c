/* SPDX-License-Identifier: Apache-2.0 */
#include "link/tcp/tcp.h"

#include "base/fail.h"
#include "link/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DIRECT_MAX = 4,     /* peers that are read from instead of asking epoll */
    TURNS_A_POLL = 64,  /* of reading, until epoll is asked what else there is */
    SPINS_IN_ALL = 8,   /* a spin, with what others take meanwhile, in those alone */
    TURNS_A_YIELD = 16, /* of reading, where there is a core for everybody */
    MEMORY_OF_A_PEER_MAX = 2 << 20,
    /* A rail between hosts gets no more than it soon sends: what waits stays in the processor's
     * caches; and of several, the next part goes to the one that is fastest, and none is the last
     * for long. */
    UNSENT_BYTES_MAX = 128 << 10
};
_Static_assert(sizeof(gr_tcp_link) + (GR_LINK_RAILS_MAX - 1) * sizeof(gr_tcp_rail) +
                       GR_TCP_VIEWS * GR_TCP_SMALL_MAX <=
                   MEMORY_OF_A_PEER_MAX,
               "all that a link takes, besides what the kernel holds");

static gr_tcp_mesh *mesh_of(gr_mesh *mesh)
{
    return (gr_tcp_mesh *)mesh;
}

/* NULL: it is of another kind. */
static gr_tcp_link *link_of(gr_link *link)
{
    return link->ops == &gr_tcp_ops ? (gr_tcp_link *)link : NULL;
}

/* Where the peers run is not known here: take it that all of them are on this host. */
static void learn_cores(gr_mesh *base)
{
    int processes = base->dynamic_peers ? base->present_count + 1 : base->world_size;
    base->spin.allowed = mesh_of(base)->cores >= processes;
}

static gr_status open_mesh(gr_mesh *base, const gr_mesh_config *config, gr_diag *diag)
{
    (void)config;
    (void)diag;
    mesh_of(base)->cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    learn_cores(base);
    return GR_OK;
}

/* ---- Links ----------------------------------------------------------------------------------- */

static void set_options(gr_link *base, int fd)
{
    /* Inside a host nothing is lost and nothing needs pacing. An algorithm that paces (bbr) halved
     * the speed of messages of 1 MiB and more there (bench_link); reno is in every kernel, and
     * every user may choose it. */
    static const char calm[] = "reno";
    (void)gr_socket_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    (void)gr_socket_give_up_after(fd, base->mesh->peer_timeout_us);
    base->mesh->stats.system_calls += 6;
    bool local = gr_socket_same_host(fd);
    if (local) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, calm, sizeof calm - 1);
        base->mesh->stats.system_calls += 3;
    }
    if (!local || base->rails > 1) {
        (void)gr_socket_set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX);
        base->mesh->stats.system_calls++;
    }
}

static gr_status attach(gr_link *base, gr_diag *diag)
{
    gr_tcp_link *link = (gr_tcp_link *)base;
    int rails = base->rails;
    link->inline_max = rails > 1 ? GR_PART_BYTES : UINT32_MAX;
    link->more = rails > 1 ? calloc((size_t)rails - 1, sizeof *link->more) : NULL;
    /* Not calloc: what is never viewed takes no memory. */
    link->views = malloc(GR_TCP_VIEWS * sizeof *link->views);
    if (link->views == NULL || (rails > 1 && link->more == NULL)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d views and %d rails", GR_TCP_VIEWS,
                       rails);
    }
    for (int i = 0; i < rails; i++) {
        gr_tcp_rail *rail = gr_tcp_rail_at(link, i);
        rail->link = link;
        rail->index = i;
        rail->readable = rail->writable = true;
        set_options(base, *gr_link_fd(base, i));
    }
    for (int i = 0; i < GR_TCP_VIEWS; i++) {
        link->free_views[link->free_view_count++] = (uint16_t)i;
    }
    link->view = -1;
    return GR_OK;
}

static bool holds(const gr_link *base)
{
    const gr_tcp_link *link = (const gr_tcp_link *)base;
    return link->views != NULL && link->free_view_count + (link->view >= 0) < GR_TCP_VIEWS;
}

static void detach(gr_link *base)
{
    gr_tcp_link *link = (gr_tcp_link *)base;
    free(link->views);
    free(link->more);
}

static void event(gr_link *base, int index, uint32_t events)
{
    gr_tcp_rail *rail = gr_tcp_rail_at((gr_tcp_link *)base, index);
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        rail->readable = true;
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        rail->hung_up = true;
    }
    if ((events & EPOLLOUT) != 0) {
        rail->writable = true;
    }
}

static void progress(gr_mesh *base)
{
    for (int i = 0; i < base->present_count; i++) {
        gr_tcp_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP) {
            gr_tcp_link_flush(link);
            gr_tcp_link_receive(link);
        }
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* How many peers the caller waits for. Where they are few, reading from their sockets tells what
 * epoll would, and has read at once. -1: they are many, or something waits to be written: that
 * needs epoll. */
static int direct_peers(gr_mesh *base)
{
    int expected = 0;
    for (int i = 0; i < base->present_count; i++) {
        const gr_tcp_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP) {
            expected += link->base.expected;
            if (link->done < link->head || expected > DIRECT_MAX || link->base.rails > 1) {
                return -1;
            }
        }
    }
    return expected;
}

static bool polls(gr_mesh *base)
{
    return base->other == NULL && direct_peers(base) < 0;
}

/* Returns true if something arrived for the caller. */
static bool read_expected(gr_mesh *base)
{
    bool found = false;
    for (int i = 0; i < base->present_count; i++) {
        gr_tcp_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP && link->base.expected) {
            link->first.readable = true;
            gr_tcp_link_receive(link);
            found = found || link->base.state != GR_LINK_UP || (link->have && link->dst == NULL);
        }
    }
    return found;
}

static bool busy(gr_mesh *base)
{
    for (int i = 0; i < base->present_count; i++) {
        gr_tcp_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP && gr_tcp_link_busy(link)) {
            return true;
        }
    }
    return false;
}

/* True: something came before the time was up. What others do with the core while we yield it is
 * not our time: ranks that share cores take turns until all have what they wait for. But who has a
 * core for long is no rank that waits: then we sleep, since a sleeper is woken at once. */
static bool spin(gr_mesh *base, int64_t start_ns, int64_t spin_ns, int64_t most_ns)
{
    bool direct = direct_peers(base) > 0;
    int64_t took_ns = 0, given_ns = 0;
    for (int turn = 1; took_ns - given_ns < spin_ns && took_ns < most_ns; turn++) {
        if (atomic_load_explicit(&base->woken, memory_order_relaxed) ||
            (direct && read_expected(base))) {
            return true;
        }
        if ((!direct || turn % TURNS_A_POLL == 0) && gr_mesh_collect(base, 0)) {
            return true;
        }
        took_ns = gr_now_ns() - start_ns;
        /* Whom we wait for may need this very core, or be bound to it. */
        if (!direct || !base->spin.allowed || turn % TURNS_A_YIELD == 0) {
            int64_t before_ns = took_ns;
            sched_yield();
            base->stats.system_calls++;
            took_ns = gr_now_ns() - start_ns;
            given_ns += took_ns - before_ns;
        }
    }
    return false;
}

static void wait_for_events(gr_mesh *base, int64_t now_us, int64_t until_us)
{
    if (busy(base)) {
        return;
    }
    int64_t left_us = until_us - now_us;
    int64_t start_ns = gr_now_ns();
    int64_t spin_us = base->spin.now_us;
    int64_t most_us = left_us < SPINS_IN_ALL * spin_us ? left_us : SPINS_IN_ALL * spin_us;
    if (base->spin.max_us > 0 && spin(base, start_ns, spin_us * 1000, most_us * 1000)) {
        gr_spin_learn(&base->spin, 0);
        return;
    }
    int64_t spun_us = (gr_now_ns() - start_ns) / 1000;
    if (spun_us < left_us) {
        (void)gr_mesh_collect(base, left_us - spun_us);
    }
    gr_spin_learn(&base->spin, (gr_now_ns() - start_ns) / 1000);
}

static void wake(gr_mesh *base)
{
    gr_mesh_wake_sleeper(base);
}

const gr_link_ops gr_tcp_ops = {
    .name = "tcp",
    .caps = {.pollable = true, .payload_max_bytes = GR_FRAME_PAYLOAD_MAX},
    .mesh_bytes = sizeof(gr_tcp_mesh),
    .link_bytes = sizeof(gr_tcp_link),
    .polls = polls,
    .open = open_mesh,
    .attach = attach,
    .learn = learn_cores,
    .holds = holds,
    .detach = detach,
    .leave = gr_tcp_link_leave,
    .event = event,
    .progress = progress,
    .busy = busy,
    .wait = wait_for_events,
    .wake = wake,
    .send = gr_tcp_link_send,
    .sent = gr_tcp_link_sent,
    .peek = gr_tcp_link_peek,
    .view = gr_tcp_link_view,
    .read = gr_tcp_link_read,
    .next = gr_tcp_link_next,
    .release = gr_tcp_link_release,
    .discard = gr_tcp_link_discard,
};
