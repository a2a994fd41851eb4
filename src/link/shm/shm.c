/* SPDX-License-Identifier: Apache-2.0 */
#include "link/shm/shm.h"

#include "base/fail.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    WAKES_A_READ = 64,
    SPINS_A_LOOK = 32,       /* looks at the rings between two looks at the clock */
    SETTLING_SLEEP_US = 1000 /* joining peers ring sockets, messages ring the doorbell: mind both */
};

static gr_shm_mesh *mesh_of(gr_mesh *mesh)
{
    return (gr_shm_mesh *)mesh;
}

/* NULL: it is of another kind. */
static gr_shm_link *link_of(gr_link *link)
{
    return link->ops == &gr_shm_ops ? (gr_shm_link *)link : NULL;
}

/* ---- Doorbells ------------------------------------------------------------------------------- */

static void wake_futex(gr_shm_doorbell *doorbell)
{
    syscall(SYS_futex, &doorbell->sleeping, FUTEX_WAKE, 1, NULL, NULL, 0);
}

bool gr_shm_link_wake(gr_shm_link *link)
{
    gr_shm_doorbell *doorbell = link->doorbell;
    if (atomic_load(&doorbell->sleeping) == GR_SHM_AWAKE) {
        return false;
    }
    uint32_t was = atomic_exchange(&doorbell->sleeping, GR_SHM_AWAKE);
    if (was == GR_SHM_ON_SOCKETS) {
        /* A full socket has woken it already. */
        (void)!send(link->base.fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (was != GR_SHM_AWAKE) {
        wake_futex(doorbell);
    }
    return was != GR_SHM_AWAKE;
}

static void doorbell_sleep(gr_shm_doorbell *doorbell, int64_t sleep_us)
{
    struct timespec time = {.tv_sec = sleep_us / 1000000, .tv_nsec = sleep_us % 1000000 * 1000};
    syscall(SYS_futex, &doorbell->sleeping, FUTEX_WAIT, GR_SHM_ON_DOORBELL, &time, NULL, 0);
}

static void wake(gr_mesh *base)
{
    gr_shm_mesh *mesh = mesh_of(base);
    gr_shm_doorbell *doorbell = gr_shm_doorbell_of(&mesh->own);
    if (atomic_exchange(&doorbell->sleeping, GR_SHM_AWAKE) == GR_SHM_ON_DOORBELL) {
        wake_futex(doorbell);
    }
    if (atomic_load(&mesh->in_epoll)) {
        gr_mesh_wake_sleeper(base);
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static bool has_events(gr_mesh *base)
{
    if (atomic_load(&base->woken) ||
        (base->poll_hook != NULL && base->poll_hook(base->poll_hook_arg))) {
        return true;
    }
    for (int i = 0; i < base->present_count; i++) {
        const gr_shm_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP && gr_shm_link_has_events(link)) {
            return true;
        }
    }
    return false;
}

/* Where cores are shared whoever needs this one gets it between two looks: to wake a sleeper takes
 * longer than most of what is waited for. */
static bool spin(gr_mesh *base, int64_t start_ns, int64_t until_ns)
{
    bool yields = !base->spin.allowed || base->spin.max_us == 0;
    int64_t end_ns = start_ns + (base->spin.max_us > 0 ? base->spin.now_us * 1000 : 0);
    end_ns = until_ns < end_ns ? until_ns : end_ns;
    do {
        for (int i = 0; i < (yields ? 1 : SPINS_A_LOOK); i++) {
            if (has_events(base)) {
                return true;
            }
            gr_relax();
        }
        if (base->other != NULL && gr_mesh_collect(base, 0)) {
            return true;
        }
        if (base->other != NULL || yields) {
            /* Those who handle packets for us need a core as well. */
            sched_yield();
            base->stats.system_calls++;
        }
    } while (gr_now_ns() < end_ns);
    return false;
}

/* Peers on this host ring the doorbell, or the socket that came with their link if we sleep on
 * all sockets: since some peers are on other hosts, a dynamic peer is coming, or data were slow
 * to come, so that the one system call more of theirs matters less than to see a dynamic peer at
 * once. */
static void sleep_on_doorbell(gr_mesh *base, int64_t sleep_us)
{
    gr_shm_mesh *mesh = mesh_of(base);
    gr_shm_doorbell *doorbell = gr_shm_doorbell_of(&mesh->own);
    bool coming = (base->dynamic_peers || base->on_demand) && gr_mesh_coming(base);
    bool sockets = base->other != NULL || coming || (base->dynamic_peers && mesh->idle);
    for (int i = 0; i < base->present_count; i++) {
        gr_shm_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP) {
            atomic_store_explicit(&link->out->wake_at, link->wanted, memory_order_relaxed);
        }
    }
    atomic_store(&mesh->in_epoll, sockets);
    atomic_store(&doorbell->sleeping, sockets ? GR_SHM_ON_SOCKETS : GR_SHM_ON_DOORBELL);
    if (!has_events(base)) {
        if (sockets) {
            (void)gr_mesh_collect(base, sleep_us);
        } else {
            doorbell_sleep(doorbell, sleep_us);
            base->stats.system_calls++;
            base->stats.unwoken += atomic_load(&doorbell->sleeping) != GR_SHM_AWAKE;
        }
    }
    atomic_store_explicit(&doorbell->sleeping, GR_SHM_AWAKE, memory_order_relaxed);
    if (sockets) {
        atomic_store(&mesh->in_epoll, false);
    }
    mesh->idle = base->dynamic_peers && !has_events(base);
}

static void sleep_on_sockets(gr_mesh *base, int64_t sleep_us)
{
    gr_shm_mesh *mesh = mesh_of(base);
    atomic_store(&mesh->in_epoll, true);
    if (!atomic_load(&base->woken)) {
        (void)gr_mesh_collect(base, sleep_us < SETTLING_SLEEP_US ? sleep_us : SETTLING_SLEEP_US);
    }
    atomic_store(&mesh->in_epoll, false);
}

static void wait_for_events(gr_mesh *base, int64_t now_us, int64_t until_us)
{
    int64_t left_us = until_us - now_us;
    if (left_us <= 0 || has_events(base) || (base->other != NULL && base->other->busy(base))) {
        return;
    }
    if (gr_mesh_connecting(base, now_us)) {
        sleep_on_sockets(base, left_us);
        return;
    }
    left_us = left_us < base->sleep_us ? left_us : base->sleep_us;
    int64_t start_ns = gr_now_ns();
    if (!spin(base, start_ns, start_ns + left_us * 1000)) {
        sleep_on_doorbell(base, left_us);
    }
    if (base->spin.max_us > 0) {
        gr_spin_learn(&base->spin, (gr_now_ns() - start_ns) / 1000);
    }
}

/* ---- Links ----------------------------------------------------------------------------------- */

/* Spinning helps only if everybody who may be waited for has a core: the cores that we and the
 * peers may use, together, are at least as many as we are. */
static void learn_cores(gr_mesh *base)
{
    uint64_t cpus[GR_SHM_CPU_WORDS];
    int processes = 1, cores = 0;
    memcpy(cpus, gr_shm_card_of(&mesh_of(base)->own)->cpus, sizeof cpus);
    for (int i = 0; i < base->present_count; i++) {
        const gr_shm_link *link = link_of(base->present[i]);
        if (link != NULL && link->theirs.base != NULL) {
            processes++;
            for (int word = 0; word < GR_SHM_CPU_WORDS; word++) {
                cpus[word] |= gr_shm_card_of(&link->theirs)->cpus[word];
            }
        }
    }
    for (int i = 0; i < GR_SHM_CPU_WORDS; i++) {
        cores += __builtin_popcountll(cpus[i]);
    }
    processes = base->local_ranks > processes ? base->local_ranks : processes;
    base->spin.allowed = cores >= processes;
}

static gr_status attach(gr_link *base, gr_diag *diag)
{
    gr_shm_link *link = (gr_shm_link *)base;
    gr_shm_mesh *mesh = mesh_of(base->mesh);
    gr_status status = GR_OK;
    if (!link->given) {
        link->theirs.fd = -1;
        status = gr_shm_segment_give(base->fd, &mesh->own, base->mesh->rank, base->mesh->world_size,
                                     diag);
        base->mesh->stats.system_calls++;
        link->given = status == GR_OK;
    }
    if (status == GR_OK) {
        status =
            gr_shm_segment_take(base->fd, base->peer, base->mesh->world_size, &link->theirs, diag);
        base->mesh->stats.system_calls++;
    }
    if (status == GR_OK) {
        link->out = gr_shm_pair_of(&mesh->own, base->peer);
        link->in = gr_shm_pair_of(&link->theirs, base->mesh->rank);
        link->doorbell = gr_shm_doorbell_of(&link->theirs);
        gr_shm_cma_attach(link);
    }
    return status;
}

/* Our side of the rings and the stage are the next one's as well. */
static void recycle(gr_link *base)
{
    const gr_shm_link *link = (gr_shm_link *)base;
    const gr_shm_segment *own = &mesh_of(base->mesh)->own;
    size_t stage = gr_shm_stage_offset(base->mesh->world_size, base->peer);
    if (link->out != NULL) {
        size_t pair = (size_t)((uint8_t *)link->out - own->base);
        gr_shm_make_zero(own->base + pair, sizeof *link->out, own->fd, pair);
        gr_shm_make_zero(own->base + stage, GR_SHM_STAGE_BYTES, own->fd, stage);
        base->mesh->stats.system_calls += 2;
    }
}

static bool holds(const gr_link *base)
{
    const gr_shm_link *link = (const gr_shm_link *)base;
    uint64_t held = 0;
    for (int i = 0; i < GR_SHM_SLOTS / 64; i++) {
        held |= link->held[i];
    }
    return held != 0;
}

static void detach(gr_link *base)
{
    gr_shm_link *link = (gr_shm_link *)base;
    gr_shm_cma_detach(link);
    if (link->theirs.base != NULL) {
        gr_shm_segment_close(&link->theirs);
    }
}

/* Once the link is up a byte on the socket wakes one that sleeps on sockets, and is always zero;
 * else only the end of the socket is news. */
static void event(gr_link *base, int rail, uint32_t events)
{
    (void)rail;
    uint8_t wakes[WAKES_A_READ];
    ssize_t got;
    int error;
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) {
        return;
    }
    do {
        got = recv(base->fd, wakes, sizeof wakes, MSG_DONTWAIT);
        error = errno;
        base->mesh->stats.system_calls++;
        for (ssize_t i = 0; i < got; i++) {
            bool may_wake = base->mesh->mixed || base->mesh->dynamic_peers || base->mesh->on_demand;
            if (wakes[i] != 0 || !may_wake) {
                gr_link_break(base, false, GR_E_PROTOCOL, "rank %d sent bytes where none belong",
                              base->peer);
                return;
            }
        }
        /* An edge that tells of the end as well comes only once. */
    } while (got == WAKES_A_READ || (got > 0 && (events & (EPOLLRDHUP | EPOLLHUP)) != 0));
    if (got > 0 || (got < 0 && (error == EAGAIN || error == EINTR))) {
        return;
    }
    /* What it wrote before it ended is still there: perhaps that it leaves. */
    gr_shm_link_scan((gr_shm_link *)base);
    gr_link_closed(base, got < 0 ? error : 0);
}

static void progress(gr_mesh *base)
{
    for (int i = 0; i < base->present_count; i++) {
        gr_shm_link *link = link_of(base->present[i]);
        if (link != NULL && link->base.state == GR_LINK_UP) {
            gr_shm_link_scan(link);
            gr_shm_link_skip(link);
            gr_shm_link_push(link);
            gr_shm_link_poll_released(link);
        }
    }
}

/* ---- The mesh -------------------------------------------------------------------------------- */

static gr_status open_mesh(gr_mesh *base, const gr_mesh_config *config, gr_diag *diag)
{
    gr_shm_mesh *mesh = mesh_of(base);
    gr_shm_segment own;
    gr_status status =
        gr_shm_segment_create(config->rank, config->world_size, config->heap_bytes_max, &own, diag);
    if (status != GR_OK) {
        return status;
    }
    mesh->own = own;
    if (own.size_bytes - own.heap_offset < config->heap_bytes_max) {
        gr_log_write(base->log, GR_LOG_WARN, "link",
                     "gr_alloc has %zu bytes: a file of this process has no more (ulimit -f)",
                     own.size_bytes - own.heap_offset);
    }
    atomic_init(&mesh->in_epoll, false);
    gr_shm_cma_open(mesh, config->cma);
    status = gr_shm_heap_init(&mesh->heap, own.base + own.heap_offset,
                              own.size_bytes - own.heap_offset, own.fd, own.heap_offset);
    if (status != GR_OK) {
        return gr_fail(diag, status, "no memory for the table of the shared heap");
    }
    learn_cores(base); /* all peers may be on other hosts */
    return GR_OK;
}

static void close_mesh(gr_mesh *base)
{
    gr_shm_mesh *mesh = mesh_of(base);
    gr_shm_registered_fini(&mesh->registered, &mesh->heap);
    gr_shm_heap_fini(&mesh->heap);
    if (mesh->own.base != NULL) {
        gr_shm_segment_close(&mesh->own);
    }
}

static gr_status alloc_memory(gr_mesh *base, size_t size_bytes, void **mem_out)
{
    return gr_shm_heap_alloc(&mesh_of(base)->heap, size_bytes, mem_out);
}

static void free_memory(gr_mesh *base, void *mem)
{
    gr_shm_heap_free(&mesh_of(base)->heap, mem);
}

const gr_link_ops gr_shm_ops = {
    .name = "shm",
    .caps = {.one_sided = true,
             .registered_memory = true,
             .payload_max_bytes = GR_FRAME_PAYLOAD_MAX,
             .eager_max_bytes = GR_SHM_EAGER_MAX},
    .mesh_bytes = sizeof(gr_shm_mesh),
    .link_bytes = sizeof(gr_shm_link),
    .open = open_mesh,
    .close = close_mesh,
    .attach = attach,
    .learn = learn_cores,
    .recycle = recycle,
    .holds = holds,
    .detach = detach,
    .leave = gr_shm_link_leave,
    .event = event,
    .progress = progress,
    .wait = wait_for_events,
    .wake = wake,
    .alloc = alloc_memory,
    .free = free_memory,
    .send = gr_shm_link_send,
    .sent = gr_shm_link_sent,
    .peek = gr_shm_link_peek,
    .view = gr_shm_link_view,
    .read = gr_shm_link_read,
    .next = gr_shm_link_next,
    .release = gr_shm_link_release,
    .discard = gr_shm_link_discard,
};
