/* SPDX-License-Identifier: Apache-2.0 */
#include "link/door.h"

#include "base/fail.h"
#include "base/hash.h"
#include "link/address.h"
#include "link/secret.h"
#include "link/source.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ACCEPTS_A_TURN = 128, /* so that a flood of connections cannot hold a thread */
    EVENTS_A_TURN = 64,
    EVICT_AFTER_US = 100000,   /* an honest peer needs less than this for its handshake */
    SHARE_OF_PLACES = 2,       /* one source gets no more than this part of the places */
    REFUSED_A_SECOND = 500,    /* from a source; more are closed before they cost a handshake */
    TELL_EVERY_US = 1000000,   /* of refused ones, and then... */
    TELL_MANY = 16,            /* ...only of so many: one may be an honest peer's second thought */
    LISTENER_PAUSE_US = 20000, /* after the process ran out of file descriptors */
    BACKOFF_MIN_US = 1000,
    BACKOFF_MAX_US = 100000,
    DETOURS_MAX = 32,       /* several rounds through as many addresses as fit */
    CANDIDATE_US = 1000000, /* for one of several addresses to answer */
    REFUSALS_MAX = 4 /* "nobody listens", or closed after our answer: no use to try for ever */
};
#define LISTENER_TAG (UINT64_MAX - 1)     /* and the one after it */
enum { TCP_LISTENER = 1, LISTENERS = 2 }; /* the first is local */

typedef enum entry_state {
    ENTRY_FREE = 0,
    ENTRY_RETRY,   /* outgoing: waits for retry_at_us */
    ENTRY_DIALING, /* outgoing: connect is under way */
    ENTRY_SHAKING, /* the handshake */
    ENTRY_DONE     /* authenticated, not taken yet */
} entry_state;

typedef struct entry {
    entry_state state;
    bool outgoing;
    bool tcp;
    bool waits;  /* it has proved itself: its place is free soon */
    int fd;      /* -1: none */
    gr_tls *tls; /* the handshake is done, and this follows */
    int32_t expected;
    gr_auth_stream stream; /* outgoing */
    int refusals;
    int detours;      /* from an address that led nowhere to the next */
    gr_source source; /* incoming */
    int64_t since_us, deadline_us, retry_at_us, backoff_us;
    int64_t candidate_by_us; /* by then this address must be connected, if there are others */
    gr_auth auth;
    /* Outgoing: all addresses, where the next one begins, and the one that is tried. */
    size_t next_at;
    char address[GR_ADDRESS_BYTES];
    char addresses[GR_DOOR_ADDRESSES_BYTES];
} entry;

struct gr_door {
    gr_door_config config;
    uint8_t *secret; /* gr_secret_keep */
    char address[LISTENERS][GR_ADDRESS_BYTES];
    int epoll_fd, listen_fd[LISTENERS];
    int64_t listener_paused_until_us; /* 0: not paused */
    int64_t next_us;
    int done_count, dialing_count, incoming_count, waiting_count;
    uint64_t strangers, system_calls;
    gr_source_counts refused;
    uint64_t told; /* strangers that the log has told of, and when */
    int64_t told_us;
    int incoming_max, entry_count;
    gr_diag failure; /* of a dial, to be given out */
    entry entries[]; /* incoming_max, then outgoing_max */
};

static int64_t now_us(const gr_door *door)
{
    return gr_clock_now_us(&door->config.clock);
}

static void forget_fd(gr_door *door, entry *at)
{
    gr_tls_destroy(at->tls);
    at->tls = NULL;
    if (at->fd >= 0) {
        close(at->fd);
        door->system_calls++;
        at->fd = -1;
    }
    gr_auth_fini(&at->auth);
}

static void free_entry(gr_door *door, entry *at)
{
    forget_fd(door, at);
    if (at->waits) {
        at->waits = false;
        door->waiting_count--;
    }
    if (at->outgoing) {
        door->dialing_count--;
    } else {
        door->incoming_count--;
    }
    at->state = ENTRY_FREE;
}

static void note_deadline(gr_door *door, int64_t at_us)
{
    if (at_us < door->next_us) {
        door->next_us = at_us;
    }
}

static gr_status watch(gr_door *door, int fd, uint64_t tag, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};
    door->system_calls++;
    return epoll_ctl(door->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? GR_OK : GR_E_IO;
}

/* ---- Ends of an entry ------------------------------------------------------------------------ */

static void count_stranger(gr_door *door, gr_source source, int64_t now, const char *why)
{
    char text[GR_SOURCE_TEXT_BYTES];
    door->strangers++;
    gr_source_count(&door->refused, source, now);
    gr_source_text(source, text);
    gr_log_write(door->config.log, GR_LOG_DEBUG, "link", "closed a connection from %s: %s", text,
                 why);
    if (door->strangers - door->told >= TELL_MANY && now - door->told_us >= TELL_EVERY_US) {
        gr_log_write(
            door->config.log, GR_LOG_WARN, "link",
            "%llu connections to %s were refused, the last from %s: they do not prove that "
            "they belong to the job",
            (unsigned long long)(door->strangers - door->told), gr_door_address(door), text);
        door->told = door->strangers;
        door->told_us = now;
    }
}

static void refuse_stranger(gr_door *door, entry *at, const char *why)
{
    count_stranger(door, at->source, now_us(door), why);
    free_entry(door, at);
}

static bool has_others(const entry *at)
{
    return strlen(at->addresses) > strlen(at->address);
}

/* One failure is told at a time: another one is found again when it is told. */
static void fail_dial(gr_door *door, entry *at, gr_status status, const char *why)
{
    if (door->failure.status != GR_OK) {
        forget_fd(door, at);
        at->state = ENTRY_RETRY;
        at->retry_at_us = now_us(door);
        note_deadline(door, at->retry_at_us);
        return;
    }
    if (at->expected == GR_AUTH_RANK_COORDINATOR) {
        (void)gr_fail_peer(&door->failure, status, at->expected,
                           "cannot reach the job's coordinator at %s: %s", at->address, why);
    } else {
        (void)gr_fail_peer(&door->failure, status, at->expected,
                           "cannot connect to rank %d at %s: %s%s", at->expected, at->addresses,
                           has_others(at) ? "at the last of these: " : "", why);
    }
    free_entry(door, at);
}

/* The address to try now; after the last one the first again. True: it is the first. */
static bool turn_to_next(entry *at)
{
    if (gr_address_next(at->addresses, &at->next_at, at->address)) {
        return false;
    }
    at->next_at = 0;
    (void)gr_address_next(at->addresses, &at->next_at, at->address);
    return true;
}

/* This address leads nowhere. True: another one is tried in its place. The last round counts: each
 * address may lead nowhere as often as one alone. */
static bool try_another(gr_door *door, entry *at, int64_t now)
{
    if (!has_others(at) || now >= at->deadline_us || ++at->detours >= DETOURS_MAX) {
        return false;
    }
    forget_fd(door, at);
    at->retry_at_us = now + (turn_to_next(at) ? BACKOFF_MAX_US : 0);
    at->state = ENTRY_RETRY;
    note_deadline(door, at->retry_at_us);
    return true;
}

static void retry_later(gr_door *door, entry *at, int64_t now, gr_status status, const char *why)
{
    if (status == GR_E_PEER_LOST && try_another(door, at, now)) {
        return;
    }
    forget_fd(door, at);
    at->backoff_us = at->backoff_us == 0 ? BACKOFF_MIN_US : at->backoff_us * 2;
    if (at->backoff_us > BACKOFF_MAX_US) {
        at->backoff_us = BACKOFF_MAX_US;
    }
    at->retry_at_us = now + at->backoff_us;
    if (status == GR_E_AUTH || status == GR_E_PEER_LOST) {
        at->refusals++;
    }
    if (at->refusals >= REFUSALS_MAX || at->retry_at_us >= at->deadline_us) {
        fail_dial(door, at, status == GR_E_AGAIN ? GR_E_PEER_LOST : status, why);
        return;
    }
    at->state = ENTRY_RETRY;
    note_deadline(door, at->retry_at_us);
}

/* The connection broke or the handshake failed. */
static void end_shaking(gr_door *door, entry *at, int64_t now, gr_status status, const char *why)
{
    if (!at->outgoing) {
        refuse_stranger(door, at, why);
    } else if (status == GR_E_AGAIN) {
        /* A peer that does not like our answer can say so only by closing. */
        bool answered = at->auth.out_sent == GR_AUTH_BYTES;
        retry_later(door, at, now, answered ? GR_E_AUTH : GR_E_AGAIN,
                    answered ? "it closed the connection after our answer: it holds another secret "
                               "(GRADUS_SECRET), or has a member of our rank already"
                             : "it closed the connection during the handshake");
    } else if (status == GR_E_INVALID || !try_another(door, at, now)) {
        fail_dial(door, at, status, why);
    }
}

/* ---- The handshake --------------------------------------------------------------------------- */

/* GR_OK: all that may be sent was sent; GR_PENDING: the socket is full; GR_E_AGAIN: closed. */
static gr_status send_pending(gr_door *door, entry *at)
{
    for (;;) {
        size_t size;
        const uint8_t *from = gr_auth_pending(&at->auth, &size);
        if (size == 0) {
            return GR_OK;
        }
        ssize_t sent = send(at->fd, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        door->system_calls++;
        if (sent > 0) {
            gr_auth_sent(&at->auth, (size_t)sent);
        } else if (errno == EAGAIN) {
            return GR_PENDING;
        } else if (errno != EINTR) {
            return GR_E_AGAIN;
        }
    }
}

static bool is_admitted(const gr_door *door, const gr_auth *auth)
{
    if (door->config.admit == NULL) {
        return auth->peer_stream.count == 1;
    }
    return door->config.admit(door->config.admit_arg, auth->peer_rank, auth->peer_stream);
}

/* It has proved itself, and gets our answer if it may come in. GR_PENDING: soon. */
static gr_status let_in(gr_door *door, entry *at, gr_diag *diag)
{
    bool admitted = is_admitted(door, &at->auth);
    bool waits = !admitted && door->config.admit_soon != NULL &&
                 door->config.admit_soon(door->config.admit_arg, at->auth.peer_rank);
    door->waiting_count += (int)waits - (int)at->waits;
    at->waits = waits;
    return admitted ? GR_OK
           : waits  ? GR_PENDING
                    : gr_fail(diag, GR_E_PROTOCOL, "rank %d is not expected (again)",
                              at->auth.peer_rank);
}

/* GR_OK: something was taken in; GR_PENDING: nothing there; GR_E_AGAIN: closed; else refused. Never
 * reads past the handshake: what follows belongs to the connection's owner. */
static gr_status receive_some(gr_door *door, entry *at, gr_diag *diag)
{
    uint8_t data[GR_AUTH_BYTES];
    size_t room = GR_AUTH_BYTES - at->auth.in_filled, used;
    if (room == 0) {
        return GR_PENDING;
    }
    ssize_t got = recv(at->fd, data, room, MSG_DONTWAIT);
    door->system_calls++;
    if (got <= 0) {
        bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
        return later ? GR_PENDING : GR_E_AGAIN;
    }
    bool was_checked = at->auth.checked;
    gr_status status = gr_auth_take(&at->auth, data, (size_t)got, &used, diag);
    if (status < 0) {
        return status;
    }
    /* Before it has our answer, which would make it take the connection for a link. */
    if (at->outgoing && at->auth.in_filled >= GR_AUTH_CHALLENGE_BYTES &&
        at->auth.peer_rank != at->expected) {
        return gr_fail(diag, GR_E_PROTOCOL, "rank %d is there instead", at->auth.peer_rank);
    }
    return at->auth.checked && !was_checked && !at->outgoing ? let_in(door, at, diag) : GR_OK;
}

/* Both have proved themselves. Do they agree on TLS? */
static gr_status agree(const gr_door *door, const entry *at, gr_diag *diag)
{
    const gr_auth *auth = &at->auth;
    if (auth->encrypts == auth->peer_encrypts) {
        return GR_OK;
    }
    char who[32] = "the coordinator";
    if (auth->peer_rank >= 0) {
        snprintf(who, sizeof who, "rank %d", auth->peer_rank);
    }
    gr_status status = gr_fail_peer(
        diag, GR_E_INVALID, auth->peer_rank,
        "%s %s its connections and this process does %s: set encrypt (--encrypt, GRADUS_ENCRYPT) "
        "alike for all of a job",
        who, auth->peer_encrypts ? "encrypts" : "does not encrypt", auth->encrypts ? "so" : "not");
    if (!at->outgoing) { /* nobody here waits for this connection: who reads the log learns of it */
        gr_log_write(door->config.log, GR_LOG_WARN, "link", "%s", diag->text);
    }
    return status;
}

/* GR_OK: the connection is ready for its owner. */
static gr_status secure(const gr_door *door, entry *at, gr_diag *diag)
{
    gr_status status = at->tls == NULL ? agree(door, at, diag) : GR_OK;
    if (status != GR_OK || !at->auth.encrypts) {
        return status;
    }
    if (at->tls == NULL) {
        uint8_t key[GR_SHA256_BYTES];
        status = gr_auth_key(&at->auth, key);
        if (status == GR_OK) {
            status = gr_tls_create(at->outgoing ? GR_TLS_CLIENT : GR_TLS_SERVER, at->fd, key,
                                   &at->tls, diag);
        }
        gr_wipe(key, sizeof key);
    }
    return status == GR_OK ? gr_tls_shake(at->tls, diag) : status;
}

static void take_steps(gr_door *door, entry *at, int64_t now)
{
    gr_diag diag = {0};
    gr_status status = at->waits ? let_in(door, at, &diag) : GR_OK;
    if (status < 0) {
        end_shaking(door, at, now, status, diag.text);
    }
    while (status == GR_OK) {
        status = send_pending(door, at);
        if (status < 0) {
            end_shaking(door, at, now, status, "the peer closed it");
            return;
        }
        if (at->auth.done) {
            status = secure(door, at, &diag);
            if (status == GR_PENDING) {
                return;
            }
            if (status != GR_OK) {
                end_shaking(door, at, now, status,
                            status == GR_E_AGAIN ? "the peer closed it" : diag.text);
                return;
            }
            epoll_ctl(door->epoll_fd, EPOLL_CTL_DEL, at->fd, NULL);
            door->system_calls++;
            at->state = ENTRY_DONE;
            door->done_count++;
            return;
        }
        status = receive_some(door, at, &diag);
        if (status < 0) {
            end_shaking(door, at, now, status,
                        status == GR_E_AGAIN ? "the peer closed it" : diag.text);
            return;
        }
    }
}

static void shake(gr_door *door, entry *at, int64_t now)
{
    take_steps(door, at, now);
    gr_wipe_stack();
}

static bool begin_shaking(gr_door *door, entry *at)
{
    gr_auth_role role = at->outgoing ? GR_AUTH_CONNECTOR : GR_AUTH_ACCEPTOR;
    at->state = ENTRY_SHAKING;
    gr_status status = gr_auth_init(&at->auth, role, door->config.rank, door->secret, NULL);
    if (status == GR_OK && at->outgoing) {
        gr_auth_name_stream(&at->auth, at->stream);
    }
    if (status == GR_OK && at->tcp && door->config.encrypt) {
        gr_auth_announce_encryption(&at->auth);
    }
    return status == GR_OK;
}

/* ---- Outgoing -------------------------------------------------------------------------------- */

static void dial(gr_door *door, entry *at, int64_t now)
{
    gr_diag diag = {0};
    at->tcp = strncmp(at->address, "tcp:", 4) == 0;
    gr_status status = gr_address_dial(at->address, &at->fd, &diag);
    door->system_calls += 3;
    if (status == GR_E_AGAIN || status == GR_E_PEER_LOST) {
        retry_later(door, at, now, status, diag.text);
        return;
    }
    uint64_t tag = (uint64_t)(at - door->entries);
    if (status >= 0 && watch(door, at->fd, tag, EPOLLIN | EPOLLOUT | EPOLLET) != GR_OK) {
        status = gr_fail(&diag, GR_E_IO, "cannot watch the socket: %s", strerror(errno));
    }
    at->candidate_by_us = has_others(at) ? now + CANDIDATE_US : GR_NEVER;
    note_deadline(door, at->candidate_by_us);
    if (status < 0) {
        if (!try_another(door, at, now)) {
            fail_dial(door, at, status, diag.text);
        }
    } else if (status == GR_PENDING) {
        at->state = ENTRY_DIALING;
    } else if (begin_shaking(door, at)) {
        shake(door, at, now);
    } else {
        fail_dial(door, at, GR_E_IO, "no random numbers");
    }
}

static void finish_dialing(gr_door *door, entry *at, int64_t now)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(at->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
    }
    door->system_calls++;
    if (error != 0) {
        retry_later(door, at, now, error == ETIMEDOUT ? GR_E_AGAIN : GR_E_PEER_LOST,
                    strerror(error));
    } else if (begin_shaking(door, at)) {
        shake(door, at, now);
    } else {
        fail_dial(door, at, GR_E_IO, "no random numbers");
    }
}

gr_status gr_door_dial(gr_door *door, int32_t peer_rank, gr_auth_stream stream,
                       const char *addresses, gr_diag *diag)
{
    entry *at = door->entries + door->incoming_max;
    entry *end = door->entries + door->entry_count;
    while (at < end && at->state != ENTRY_FREE) {
        at++;
    }
    if (at == end) {
        return gr_fail(diag, GR_E_NO_MEMORY, "more than %d connections are being made",
                       door->config.outgoing_max);
    }
    if (strlen(addresses) >= sizeof at->addresses) {
        return gr_fail(diag, GR_E_INVALID, "the address of rank %d is longer than %zu characters",
                       peer_rank, sizeof at->addresses - 1);
    }
    int64_t now = now_us(door);
    *at = (entry){.outgoing = true,
                  .fd = -1,
                  .expected = peer_rank,
                  .stream = stream,
                  .since_us = now,
                  .deadline_us = gr_clock_deadline_us(&door->config.clock, door->config.timeout_us),
                  .state = ENTRY_RETRY};
    memcpy(at->addresses, addresses, strlen(addresses) + 1);
    (void)turn_to_next(at);
    door->dialing_count++;
    note_deadline(door, at->deadline_us);
    dial(door, at, now);
    return GR_OK;
}

/* ---- Incoming -------------------------------------------------------------------------------- */

static entry *older(entry *one, entry *other)
{
    return one == NULL || other->since_us < one->since_us ? other : one;
}

/* A place for a newcomer: a free one; or, where none is, or its source has its share, that of the
 * oldest (of its source) if it had time enough; else NULL. */
static entry *find_place(gr_door *door, gr_source source, int64_t now)
{
    entry *oldest = NULL, *oldest_alike = NULL, *unused = NULL;
    int alike = 0, share = door->incoming_max / SHARE_OF_PLACES;
    for (int i = 0; i < door->incoming_max; i++) {
        entry *at = &door->entries[i];
        bool of_source = at->state != ENTRY_FREE && at->source == source;
        alike += of_source;
        if (at->state == ENTRY_FREE) {
            unused = at;
        } else if (at->state == ENTRY_SHAKING) {
            oldest = older(oldest, at);
            oldest_alike = of_source ? older(oldest_alike, at) : oldest_alike;
        }
    }
    bool has_share = alike > 0 && alike >= share;
    if (unused != NULL && !has_share) {
        return unused;
    }
    entry *at = has_share ? oldest_alike : oldest;
    if (at == NULL || now - at->since_us < EVICT_AFTER_US) {
        return NULL;
    }
    refuse_stranger(door, at, "too many connections in their handshake");
    return at;
}

static bool listens(const gr_door *door)
{
    return door->listen_fd[0] >= 0 || door->listen_fd[1] >= 0;
}

static void pause_listeners(gr_door *door, bool pause, int64_t now)
{
    for (int i = 0; i < LISTENERS; i++) {
        struct epoll_event event = {.events = pause ? 0 : EPOLLIN,
                                    .data.u64 = LISTENER_TAG + (uint64_t)i};
        if (door->listen_fd[i] >= 0) {
            epoll_ctl(door->epoll_fd, EPOLL_CTL_MOD, door->listen_fd[i], &event);
            door->system_calls++;
        }
    }
    door->listener_paused_until_us = pause ? now + LISTENER_PAUSE_US : 0;
    if (pause) {
        note_deadline(door, door->listener_paused_until_us);
    }
}

static void welcome(gr_door *door, int listener, int fd, gr_source source, int64_t now)
{
    bool flood = gr_source_counted(&door->refused, source, now) >= REFUSED_A_SECOND;
    entry *at = flood ? NULL : find_place(door, source, now);
    if (at == NULL) { /* an honest one tries again soon */
        close(fd);
        door->system_calls++;
        count_stranger(door, source, now, flood ? "too many come" : "there is no place for it");
        return;
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on a Unix socket: fine */
    door->system_calls += 3;
    *at =
        (entry){.fd = fd,
                .tcp = listener == TCP_LISTENER,
                .source = source,
                .since_us = now,
                .deadline_us = gr_clock_deadline_us(&door->config.clock, door->config.timeout_us)};
    door->incoming_count++;
    note_deadline(door, at->deadline_us);
    uint64_t tag = (uint64_t)(at - door->entries);
    if (!begin_shaking(door, at) || watch(door, fd, tag, EPOLLIN | EPOLLOUT | EPOLLET) != GR_OK) {
        refuse_stranger(door, at, "no random numbers, or no memory to watch it");
        return;
    }
    shake(door, at, now);
}

static void accept_some(gr_door *door, int listener, int64_t now)
{
    for (int i = 0; i < ACCEPTS_A_TURN && door->listen_fd[listener] >= 0; i++) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        int fd = accept4(door->listen_fd[listener], (struct sockaddr *)&from, &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        door->system_calls++;
        if (fd >= 0) {
            welcome(door, listener, fd, gr_source_of(&from), now);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            gr_log_write(door->config.log, GR_LOG_WARN, "link", "cannot accept a connection: %s",
                         strerror(errno));
            pause_listeners(door, true, now);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
            return;
        }
    }
}

/* ---- Progress -------------------------------------------------------------------------------- */

static void note_next(gr_door *door, const entry *at)
{
    if (at->state == ENTRY_FREE || at->state == ENTRY_DONE) {
        return;
    }
    note_deadline(door, at->deadline_us);
    if (at->state == ENTRY_RETRY) {
        note_deadline(door, at->retry_at_us);
    } else if (at->outgoing) {
        note_deadline(door, at->candidate_by_us);
    }
}

static void handle_deadlines(gr_door *door, int64_t now)
{
    door->next_us = GR_NEVER;
    if (door->listener_paused_until_us != 0) {
        if (now >= door->listener_paused_until_us && listens(door)) {
            pause_listeners(door, false, now);
        } else {
            note_deadline(door, door->listener_paused_until_us);
        }
    }
    for (int i = 0; i < door->entry_count; i++) {
        entry *at = &door->entries[i];
        if (at->state == ENTRY_FREE || at->state == ENTRY_DONE) {
            continue;
        }
        if (now >= at->deadline_us) {
            if (at->outgoing) {
                fail_dial(door, at, GR_E_PEER_LOST, "no handshake within the time for it");
            } else {
                refuse_stranger(door, at, "no handshake within the time for it");
            }
            continue;
        }
        if (at->outgoing && at->state != ENTRY_RETRY && now >= at->candidate_by_us) {
            /* Not after our answer: the other side may take the connection for made. */
            at->candidate_by_us = GR_NEVER;
            if (at->auth.out_sent < GR_AUTH_BYTES) {
                (void)try_another(door, at, now);
            }
        }
        if (at->state == ENTRY_RETRY && now >= at->retry_at_us) {
            dial(door, at, now);
        }
        note_next(door, at);
    }
}

gr_status gr_door_progress(gr_door *door, gr_diag *diag)
{
    struct epoll_event events[EVENTS_A_TURN];
    int64_t now = now_us(door);
    int count = epoll_wait(door->epoll_fd, events, EVENTS_A_TURN, 0);
    door->system_calls++;
    bool listener_ready[LISTENERS] = {false, false};
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 >= LISTENER_TAG) {
            listener_ready[events[i].data.u64 - LISTENER_TAG] = true;
            continue;
        }
        entry *at = &door->entries[events[i].data.u64];
        if (at->state == ENTRY_DIALING) {
            finish_dialing(door, at, now);
        } else if (at->state == ENTRY_SHAKING) {
            shake(door, at, now);
        }
    }
    /* Last, since it may give a place away that an event above was about. */
    for (int i = 0; i < LISTENERS; i++) {
        if (listener_ready[i]) {
            accept_some(door, i, now);
        }
    }
    for (int i = 0; i < door->incoming_max && door->waiting_count > 0; i++) {
        if (door->entries[i].state == ENTRY_SHAKING && door->entries[i].waits) {
            shake(door, &door->entries[i], now);
        }
    }
    if (now >= door->next_us) {
        handle_deadlines(door, now);
    }
    if (door->failure.status == GR_OK) {
        return GR_OK;
    }
    gr_status status = (gr_status)door->failure.status;
    if (diag != NULL) {
        *diag = door->failure;
    }
    gr_diag_clear(&door->failure);
    return status;
}

bool gr_door_take(gr_door *door, gr_arrival *arrival_out)
{
    for (int i = 0; door->done_count > 0 && i < door->entry_count; i++) {
        entry *at = &door->entries[i];
        if (at->state == ENTRY_DONE) {
            *arrival_out = (gr_arrival){.fd = at->fd,
                                        .tls = at->tls,
                                        .peer_rank = at->auth.peer_rank,
                                        .stream = at->outgoing ? at->stream : at->auth.peer_stream,
                                        .outgoing = at->outgoing};
            at->fd = -1;
            at->tls = NULL;
            door->done_count--;
            free_entry(door, at);
            return true;
        }
    }
    return false;
}

int64_t gr_door_next_us(const gr_door *door)
{
    return door->next_us;
}

bool gr_door_dialing(const gr_door *door)
{
    return door->dialing_count > 0;
}

bool gr_door_busy(const gr_door *door)
{
    return door->dialing_count > 0 || door->incoming_count > 0;
}

static void close_listeners(gr_door *door)
{
    for (int i = 0; i < LISTENERS; i++) {
        if (door->listen_fd[i] >= 0) {
            close(door->listen_fd[i]);
            door->listen_fd[i] = -1;
        }
    }
    door->listener_paused_until_us = 0;
}

void gr_door_shut(gr_door *door)
{
    close_listeners(door);
    for (int i = 0; i < door->incoming_max; i++) {
        if (door->entries[i].state == ENTRY_SHAKING) {
            refuse_stranger(door, &door->entries[i], "nobody else is expected");
        }
    }
    if (door->dialing_count == 0) {
        gr_wipe(door->secret, GR_SECRET_BYTES); /* nobody will be asked for it again */
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

static gr_status open_listener(gr_door *door, int at, const char *host, gr_diag *diag)
{
    gr_status status =
        gr_address_listen(host, door->config.ports, door->address[at], &door->listen_fd[at], diag);
    if (status == GR_OK &&
        watch(door, door->listen_fd[at], LISTENER_TAG + (uint64_t)at, EPOLLIN) != GR_OK) {
        status = gr_fail(diag, GR_E_IO, "cannot watch the listener: %s", strerror(errno));
    }
    return status;
}

gr_status gr_door_create(const gr_door_config *config, gr_door **door_out, gr_diag *diag)
{
    if (config->half_open_max < 1 || config->half_open_max > GR_DOOR_HALF_OPEN_MAX ||
        config->outgoing_max < 0 || config->timeout_us <= 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "connections in handshake must be 1 to %d (they are %d), their time limit "
                       "above zero",
                       GR_DOOR_HALF_OPEN_MAX, config->half_open_max);
    }
    int incoming = config->listen_local || config->listen_host != NULL ? config->half_open_max : 0;
    size_t count = (size_t)incoming + (size_t)config->outgoing_max;
    gr_door *door = calloc(1, sizeof *door + count * sizeof(entry));
    if (door == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu connections in handshake", count);
    }
    door->config = *config;
    door->config.secret = NULL;
    door->config.listen_host = NULL; /* not used again; it belongs to the caller */
    door->listen_fd[0] = door->listen_fd[1] = -1;
    door->next_us = GR_NEVER;
    door->told_us = -TELL_EVERY_US;
    door->incoming_max = incoming;
    door->entry_count = (int)count;
    gr_diag_clear(&door->failure);
    gr_status status = GR_OK;
    door->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    door->secret = gr_secret_keep(config->secret);
    if (door->secret == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
    } else if (door->epoll_fd < 0) {
        status = gr_fail(diag, GR_E_IO, "cannot create an epoll: %s", strerror(errno));
    }
    if (status == GR_OK && config->listen_local) {
        status = open_listener(door, 0, NULL, diag);
    }
    if (status == GR_OK && config->listen_host != NULL) {
        status = open_listener(door, 1, config->listen_host, diag);
    }
    if (status != GR_OK) {
        gr_door_destroy(door);
        return status;
    }
    *door_out = door;
    return GR_OK;
}

void gr_door_destroy(gr_door *door)
{
    if (door == NULL) {
        return;
    }
    for (int i = 0; i < door->entry_count; i++) {
        if (door->entries[i].state != ENTRY_FREE) {
            forget_fd(door, &door->entries[i]);
        }
    }
    close_listeners(door);
    if (door->epoll_fd >= 0) {
        close(door->epoll_fd);
    }
    gr_secret_forget(door->secret);
    free(door);
}

const char *gr_door_address(const gr_door *door)
{
    return door->address[door->address[0][0] == '\0'];
}

const char *gr_door_remote_address(const gr_door *door)
{
    return door->address[1];
}

int gr_door_fd(const gr_door *door)
{
    return door->epoll_fd;
}

uint64_t gr_door_strangers(const gr_door *door)
{
    return door->strangers;
}

uint64_t gr_door_system_calls(const gr_door *door)
{
    return door->system_calls;
}
