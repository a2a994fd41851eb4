/* SPDX-License-Identifier: Apache-2.0 */

/* The states of a connection (an entry):
 *
 *  gr_acceptor_connect                                       accept4
 *          |                                                    |
 *          v      name             found                        |
 *    +-> RETRY ---------> LOOKUP ---------+                     |
 *    |     |                              v      connected      v
 *    |     +--- numeric address ----> CONNECTING ---------> HANDSHAKE
 *    |                                    |                 |   |   both have proved themselves,
 *    +------------------------------------+-----------------+   |   and TLS stands if it is used
 *      refused, closed, no answer: next address, or later       v
 *                                                             DONE ---> FREE
 *                                                 gr_acceptor_accept
 *
 * An outgoing entry that is refused too often, or is out of time, is FREE, and the next
 * gr_acceptor_progress returns its failure. An incoming one that fails its proof, or is out of
 * time, is closed and counted. */

#include "link/acceptor.h"

#include "base/fail.h"
#include "base/fork.h"
#include "base/hash.h"
#include "link/address.h"
#include "link/lookup.h"
#include "link/secret.h"
#include "link/socket.h"
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
    LISTENER_PAUSE_US = 20000, /* after the process ran out of file descriptors */
    WARN_EVERY_US = 1000000,   /* of that */
    BACKOFF_MIN_US = 1000,
    BACKOFF_MAX_US = 100000,
    DETOURS_MAX = 32,                         /* several rounds through as many addresses as fit */
    CANDIDATE_US = 1000000,                   /* for one of several addresses to answer */
    FOUND_BYTES = GR_HOST_ADDRESSES_MAX * 64, /* "tcp:[...]:65535 " each */
    REFUSALS_MAX = 4 /* "nobody listens", or closed after our answer: no use to try for ever */
};
#define LISTENER_TAG (UINT64_MAX - 1)     /* and the one after it */
enum { TCP_LISTENER = 1, LISTENERS = 2 }; /* the first is local */

typedef enum entry_state {
    ENTRY_FREE = 0,
    ENTRY_RETRY,      /* outgoing: waits for retry_at_us */
    ENTRY_LOOKUP,     /* outgoing: the name in `address` is looked up */
    ENTRY_CONNECTING, /* outgoing: connect is under way */
    ENTRY_HANDSHAKE,  /* the handshake */
    ENTRY_DONE        /* authenticated, not taken yet */
} entry_state;

typedef struct entry {
    entry_state state;
    bool outgoing;
    bool tcp;
    bool waits;  /* it has proved itself: its place is free soon */
    int fd;      /* -1: none */
    gr_tls *tls; /* the handshake is done, and this follows */
    int32_t expected;
    gr_auth_rail rail; /* outgoing */
    int refusals;
    int detours;      /* from an address that led nowhere to the next */
    gr_source source; /* incoming */
    int64_t since_us, deadline_us, retry_at_us, backoff_us;
    int64_t candidate_by_us; /* by then this address must be connected, if there are others */
    gr_auth auth;
    /* Outgoing: all addresses as they were given, where the next one begins, and the current one.
     * If the host of that is a name: the numeric addresses that were found for it, and where the
     * next of these begins. `target` is what is connected to; "": a name is to be looked up. */
    size_t next_at, next_found_at;
    gr_lookup *lookup;
    char address[GR_ADDRESS_BYTES], target[GR_ADDRESS_BYTES];
    char found[FOUND_BYTES];
    char addresses[GR_ACCEPTOR_ADDRESSES_BYTES];
} entry;

struct gr_acceptor {
    gr_acceptor_config config;
    uint8_t *secret; /* gr_secret_keep */
    char address[LISTENERS][GR_ADDRESS_BYTES];
    int epoll_fd, listen_fd[LISTENERS];
    int64_t listener_paused_until_us; /* 0: not paused */
    int64_t warn_from_us;             /* that it cannot accept: not before */
    int64_t next_us;
    int done_count, connecting_count, incoming_count, waiting_count;
    uint64_t system_calls;
    gr_source_counts refused;
    int incoming_max, entry_count;
    gr_diag failure; /* of a connect, to be given out */
    entry entries[]; /* incoming_max, then outgoing_max */
};

static int64_t now_us(const gr_acceptor *acceptor)
{
    return gr_clock_now_us(&acceptor->config.clock);
}

static void forget_fd(gr_acceptor *acceptor, entry *at)
{
    gr_tls_destroy(at->tls);
    at->tls = NULL;
    gr_lookup_destroy(at->lookup);
    at->lookup = NULL;
    if (at->fd >= 0) {
        gr_fork_close(at->fd);
        acceptor->system_calls++;
        at->fd = -1;
    }
    gr_auth_fini(&at->auth);
}

static void free_entry(gr_acceptor *acceptor, entry *at)
{
    forget_fd(acceptor, at);
    if (at->waits) {
        at->waits = false;
        acceptor->waiting_count--;
    }
    if (at->outgoing) {
        acceptor->connecting_count--;
    } else {
        acceptor->incoming_count--;
    }
    at->state = ENTRY_FREE;
}

static void note_deadline(gr_acceptor *acceptor, int64_t at_us)
{
    if (at_us < acceptor->next_us) {
        acceptor->next_us = at_us;
    }
}

static gr_status watch(gr_acceptor *acceptor, int fd, uint64_t tag, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};
    acceptor->system_calls++;
    return epoll_ctl(acceptor->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? GR_OK : GR_E_IO;
}

/* ---- Ends of an entry ------------------------------------------------------------------------ */

static void count_refused(gr_acceptor *acceptor, gr_source source, int64_t now, const char *why)
{
    gr_source_count(&acceptor->refused, source, now);
    gr_source_log(&acceptor->refused, source, now, acceptor->config.log,
                  gr_acceptor_address(acceptor), why);
}

static void refuse(gr_acceptor *acceptor, entry *at, const char *why)
{
    count_refused(acceptor, at->source, now_us(acceptor), why);
    free_entry(acceptor, at);
}

static bool has_others(const entry *at)
{
    return strlen(at->addresses) > strlen(at->address) || strlen(at->found) > strlen(at->target);
}

/* One failure is told at a time: another one is found again when it is told. */
static void fail_connect(gr_acceptor *acceptor, entry *at, gr_status status, const char *why)
{
    if (acceptor->failure.status != GR_OK) {
        forget_fd(acceptor, at);
        at->state = ENTRY_RETRY;
        at->retry_at_us = now_us(acceptor);
        note_deadline(acceptor, at->retry_at_us);
        return;
    }
    if (at->expected == GR_AUTH_RANK_COORDINATOR) {
        (void)gr_fail_peer(&acceptor->failure, status, at->expected,
                           "cannot reach the job's coordinator at %s: %s", at->address, why);
    } else {
        (void)gr_fail_peer(&acceptor->failure, status, at->expected,
                           "cannot connect to rank %d at %s: %s%s", at->expected, at->addresses,
                           has_others(at) ? "at the last of these: " : "", why);
    }
    free_entry(acceptor, at);
}

/* The address to try now: the next one of a name, then the next one given; after the last one the
 * first again. True: it is the first. */
static bool turn_to_next(entry *at)
{
    char name[GR_ADDRESS_BYTES];
    if (gr_address_next(at->found, &at->next_found_at, at->target)) {
        return false;
    }
    at->found[0] = '\0';
    at->next_found_at = 0;
    bool first = !gr_address_next(at->addresses, &at->next_at, at->address);
    if (first) {
        at->next_at = 0;
        (void)gr_address_next(at->addresses, &at->next_at, at->address);
    }
    memcpy(at->target, at->address, sizeof at->target);
    if (gr_address_name(at->address, name)) {
        at->target[0] = '\0';
    }
    return first;
}

/* This address leads nowhere. True: another one is tried in its place. The last round counts: each
 * address may lead nowhere as often as one alone. */
static bool try_another(gr_acceptor *acceptor, entry *at, int64_t now)
{
    if (!has_others(at) || now >= at->deadline_us || ++at->detours >= DETOURS_MAX) {
        return false;
    }
    forget_fd(acceptor, at);
    at->retry_at_us = now + (turn_to_next(at) ? BACKOFF_MAX_US : 0);
    at->state = ENTRY_RETRY;
    note_deadline(acceptor, at->retry_at_us);
    return true;
}

static void retry_later(gr_acceptor *acceptor, entry *at, int64_t now, gr_status status,
                        const char *why)
{
    if (status == GR_E_PEER_LOST && try_another(acceptor, at, now)) {
        return;
    }
    forget_fd(acceptor, at);
    at->backoff_us = at->backoff_us == 0 ? BACKOFF_MIN_US : at->backoff_us * 2;
    if (at->backoff_us > BACKOFF_MAX_US) {
        at->backoff_us = BACKOFF_MAX_US;
    }
    at->retry_at_us = now + at->backoff_us;
    if (status == GR_E_AUTH || status == GR_E_IN_USE || status == GR_E_PEER_LOST) {
        at->refusals++;
    }
    if (at->refusals >= REFUSALS_MAX || at->retry_at_us >= at->deadline_us) {
        fail_connect(acceptor, at, status == GR_E_AGAIN ? GR_E_PEER_LOST : status, why);
        return;
    }
    at->state = ENTRY_RETRY;
    note_deadline(acceptor, at->retry_at_us);
}

/* The connection broke or the handshake failed. */
static void end_handshake(gr_acceptor *acceptor, entry *at, int64_t now, gr_status status,
                          const char *why)
{
    if (!at->outgoing && status == GR_E_IN_USE) {
        gr_log_write(acceptor->config.log, GR_LOG_DEBUG, "link", "%s", why);
        free_entry(acceptor, at);
    } else if (!at->outgoing) {
        refuse(acceptor, at, why);
    } else if (status == GR_E_IN_USE) {
        retry_later(acceptor, at, now, status, why); /* the member before may be about to end */
    } else if (status == GR_E_AGAIN) {
        /* A peer that does not take our answer for a proof can say so only by closing. */
        bool answered = at->auth.out_sent == GR_AUTH_BYTES;
        retry_later(acceptor, at, now, answered ? GR_E_AUTH : GR_E_AGAIN,
                    answered ? "it closed the connection after our answer: it holds another secret "
                               "(GRADUS_SECRET)"
                             : "it closed the connection during the handshake");
    } else if (status == GR_E_INVALID || !try_another(acceptor, at, now)) {
        fail_connect(acceptor, at, status, why);
    }
}

/* ---- The handshake --------------------------------------------------------------------------- */

/* GR_OK: all that may be sent was sent; GR_PENDING: the socket is full; GR_E_AGAIN: closed. */
static gr_status send_pending(gr_acceptor *acceptor, entry *at)
{
    for (;;) {
        size_t size;
        const uint8_t *from = gr_auth_pending(&at->auth, &size);
        if (size == 0) {
            return GR_OK;
        }
        ssize_t sent = send(at->fd, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        acceptor->system_calls++;
        if (sent > 0) {
            gr_auth_sent(&at->auth, (size_t)sent);
        } else if (errno == EAGAIN) {
            return GR_PENDING;
        } else if (errno != EINTR) {
            return GR_E_AGAIN;
        }
    }
}

static bool is_accepted(const gr_acceptor *acceptor, const gr_auth *auth)
{
    if (acceptor->config.accepts == NULL) {
        return auth->peer_rail.count == 1;
    }
    return acceptor->config.accepts(acceptor->config.accepts_arg, auth->peer_rank, auth->peer_rail);
}

/* It has proved itself, and gets our answer if it may come in. GR_PENDING: soon. */
static gr_status accept_peer(gr_acceptor *acceptor, entry *at, gr_diag *diag)
{
    const gr_acceptor_config *config = &acceptor->config;
    int32_t peer = at->auth.peer_rank;
    bool waited = at->waits;
    at->waits = true; /* it is none of those that were answered */
    bool second =
        config->one_by_one && at->auth.peer_rail.count == 1 && gr_acceptor_promised(acceptor, peer);
    bool is_accepted_now = !second && is_accepted(acceptor, &at->auth);
    bool soon = second || (config->accepts_soon && config->accepts_soon(config->accepts_arg, peer));
    at->waits = soon && !is_accepted_now;
    acceptor->waiting_count += (int)at->waits - (int)waited;
    if (is_accepted_now || at->waits) {
        return is_accepted_now ? GR_OK : GR_PENDING;
    }
    gr_status status = gr_auth_refuse(&at->auth, diag);
    if (status == GR_OK) {
        (void)send_pending(acceptor, at); /* who does not get it finds the connection closed */
        status = gr_fail(diag, GR_E_IN_USE, "rank %d has come and is not expected (again)", peer);
    }
    return status;
}

/* GR_OK: something was taken in; GR_PENDING: nothing there; GR_E_AGAIN: closed; else refused. Never
 * reads past the handshake: what follows belongs to the connection's owner. */
static gr_status receive_some(gr_acceptor *acceptor, entry *at, gr_diag *diag)
{
    uint8_t data[GR_AUTH_BYTES];
    size_t room = GR_AUTH_BYTES - at->auth.in_filled, used;
    if (room == 0) {
        return GR_PENDING;
    }
    ssize_t got = recv(at->fd, data, room, MSG_DONTWAIT);
    acceptor->system_calls++;
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
    return at->auth.checked && !was_checked && !at->outgoing ? accept_peer(acceptor, at, diag)
                                                             : GR_OK;
}

/* Both have proved themselves. Do they agree on TLS? */
static gr_status agree(const gr_acceptor *acceptor, const entry *at, gr_diag *diag)
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
        gr_log_write(acceptor->config.log, GR_LOG_WARN, "link", "%s", diag->text);
    }
    return status;
}

/* GR_OK: the connection is ready for its owner. */
static gr_status secure(const gr_acceptor *acceptor, entry *at, gr_diag *diag)
{
    gr_status status = at->tls == NULL ? agree(acceptor, at, diag) : GR_OK;
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

/* Not inlined: what wipes the stack behind it must stand above all of its frame. */
__attribute__((noinline)) static void take_steps(gr_acceptor *acceptor, entry *at, int64_t now)
{
    gr_diag diag = {0};
    gr_status status = at->waits ? accept_peer(acceptor, at, &diag) : GR_OK;
    if (status < 0) {
        end_handshake(acceptor, at, now, status, diag.text);
    }
    while (status == GR_OK) {
        status = send_pending(acceptor, at);
        if (status < 0) {
            end_handshake(acceptor, at, now, status, "the peer closed it");
            return;
        }
        if (at->auth.done) {
            status = secure(acceptor, at, &diag);
            if (status == GR_PENDING) {
                return;
            }
            if (status != GR_OK) {
                end_handshake(acceptor, at, now, status,
                              status == GR_E_AGAIN ? "the peer closed it" : diag.text);
                return;
            }
            epoll_ctl(acceptor->epoll_fd, EPOLL_CTL_DEL, at->fd, NULL);
            acceptor->system_calls++;
            at->state = ENTRY_DONE;
            acceptor->done_count++;
            return;
        }
        status = receive_some(acceptor, at, &diag);
        if (status < 0) {
            end_handshake(acceptor, at, now, status,
                          status == GR_E_AGAIN ? "the peer closed it" : diag.text);
            return;
        }
    }
}

static void handshake(gr_acceptor *acceptor, entry *at, int64_t now)
{
    take_steps(acceptor, at, now);
    gr_wipe_stack();
}

static bool begin_handshake(gr_acceptor *acceptor, entry *at)
{
    gr_auth_role role = at->outgoing ? GR_AUTH_CONNECTOR : GR_AUTH_ACCEPTOR;
    at->state = ENTRY_HANDSHAKE;
    gr_status status = gr_auth_init(&at->auth, role, acceptor->config.rank, acceptor->secret, NULL);
    if (status == GR_OK && at->outgoing) {
        gr_auth_name_rail(&at->auth, at->rail);
    }
    if (status == GR_OK && at->tcp && acceptor->config.encrypt) {
        gr_auth_announce_encryption(&at->auth);
    }
    gr_wipe_stack();
    return status == GR_OK;
}

/* ---- Outgoing -------------------------------------------------------------------------------- */

static void look_up(gr_acceptor *acceptor, entry *at)
{
    char name[GR_ADDRESS_BYTES];
    gr_diag diag = {0};
    (void)gr_address_name(at->address, name);
    gr_status status = gr_lookup_create(name, acceptor->config.resolver,
                                        acceptor->config.resolver_arg, &at->lookup, &diag);
    if (status == GR_OK) {
        status = watch(acceptor, gr_lookup_fd(at->lookup), (uint64_t)(at - acceptor->entries),
                       EPOLLIN | EPOLLET);
    }
    at->state = ENTRY_LOOKUP;
    at->candidate_by_us = GR_NEVER;
    if (status != GR_OK) {
        fail_connect(acceptor, at, GR_E_IO, diag.text);
    }
}

static void start_connect(gr_acceptor *acceptor, entry *at, int64_t now)
{
    gr_diag diag = {0};
    if (at->target[0] == '\0') {
        look_up(acceptor, at);
        return;
    }
    at->tcp = strncmp(at->address, "tcp:", 4) == 0;
    gr_status status = gr_address_connect(at->target, &at->fd, &diag);
    acceptor->system_calls += 3;
    if (status == GR_E_AGAIN || status == GR_E_PEER_LOST) {
        retry_later(acceptor, at, now, status, diag.text);
        return;
    }
    uint64_t tag = (uint64_t)(at - acceptor->entries);
    if (status >= 0 && watch(acceptor, at->fd, tag, EPOLLIN | EPOLLOUT | EPOLLET) != GR_OK) {
        status = gr_fail(&diag, GR_E_IO, "cannot watch the socket: %s", strerror(errno));
    }
    at->candidate_by_us = has_others(at) ? now + CANDIDATE_US : GR_NEVER;
    note_deadline(acceptor, at->candidate_by_us);
    if (status < 0) {
        if (!try_another(acceptor, at, now)) {
            fail_connect(acceptor, at, status, diag.text);
        }
    } else if (status == GR_PENDING) {
        at->state = ENTRY_CONNECTING;
    } else if (begin_handshake(acceptor, at)) {
        handshake(acceptor, at, now);
    } else {
        fail_connect(acceptor, at, GR_E_IO, "no random numbers");
    }
}

static void finish_lookup(gr_acceptor *acceptor, entry *at, int64_t now)
{
    gr_host_addresses found;
    gr_diag diag = {0};
    gr_status status = gr_lookup_result(at->lookup, &found, &diag);
    if (status == GR_PENDING) {
        return;
    }
    forget_fd(acceptor, at); /* of the look-up */
    if (status == GR_E_AGAIN) {
        retry_later(acceptor, at, now, status, diag.text);
    } else if (status < 0 && !try_another(acceptor, at, now)) {
        fail_connect(acceptor, at, status, diag.text);
    }
    if (status < 0) {
        return;
    }
    size_t used = 0;
    for (int i = 0; i < found.count; i++) {
        char address[GR_ADDRESS_BYTES];
        gr_address_with_host(at->address, &found.at[i], address);
        if (used + strlen(address) + 2 <= sizeof at->found) {
            used += (size_t)snprintf(at->found + used, sizeof at->found - used, "%s%s",
                                     used > 0 ? " " : "", address);
        }
    }
    at->next_found_at = 0;
    (void)turn_to_next(at);
    start_connect(acceptor, at, now);
}

static void finish_connect(gr_acceptor *acceptor, entry *at, int64_t now)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(at->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
    }
    acceptor->system_calls++;
    if (error != 0) {
        retry_later(acceptor, at, now, error == ETIMEDOUT ? GR_E_AGAIN : GR_E_PEER_LOST,
                    strerror(error));
    } else if (begin_handshake(acceptor, at)) {
        handshake(acceptor, at, now);
    } else {
        fail_connect(acceptor, at, GR_E_IO, "no random numbers");
    }
}

gr_status gr_acceptor_connect(gr_acceptor *acceptor, int32_t peer_rank, gr_auth_rail rail,
                              const char *addresses, gr_diag *diag)
{
    entry *at = acceptor->entries + acceptor->incoming_max;
    entry *end = acceptor->entries + acceptor->entry_count;
    while (at < end && at->state != ENTRY_FREE) {
        at++;
    }
    if (at == end) {
        return gr_fail(diag, GR_E_NO_MEMORY, "more than %d connections are being made",
                       acceptor->config.outgoing_max);
    }
    if (strlen(addresses) >= sizeof at->addresses) {
        return gr_fail(diag, GR_E_INVALID, "the address of rank %d is longer than %zu characters",
                       peer_rank, sizeof at->addresses - 1);
    }
    int64_t now = now_us(acceptor);
    int64_t timeout_us = acceptor->config.connect_timeout_us != 0
                             ? acceptor->config.connect_timeout_us
                             : acceptor->config.timeout_us;
    *at = (entry){.outgoing = true,
                  .fd = -1,
                  .expected = peer_rank,
                  .rail = rail,
                  .since_us = now,
                  .deadline_us = gr_clock_deadline_us(&acceptor->config.clock, timeout_us),
                  .state = ENTRY_RETRY};
    memcpy(at->addresses, addresses, strlen(addresses) + 1);
    (void)turn_to_next(at);
    acceptor->connecting_count++;
    note_deadline(acceptor, at->deadline_us);
    start_connect(acceptor, at, now);
    return GR_OK;
}

void gr_acceptor_cancel(gr_acceptor *acceptor, int32_t peer_rank)
{
    for (int i = acceptor->incoming_max; i < acceptor->entry_count; i++) {
        entry *at = &acceptor->entries[i];
        if (at->state != ENTRY_FREE && at->expected == peer_rank) {
            acceptor->done_count -= at->state == ENTRY_DONE;
            free_entry(acceptor, at);
        }
    }
}

/* ---- Incoming -------------------------------------------------------------------------------- */

static entry *older(entry *one, entry *other)
{
    return one == NULL || other->since_us < one->since_us ? other : one;
}

/* A place for a joining peer: a free one; or, where none is, or its source has its share, that
 * of the oldest (of its source) if it had time enough; else NULL. */
static entry *find_place(gr_acceptor *acceptor, gr_source source, int64_t now)
{
    entry *oldest = NULL, *oldest_alike = NULL, *unused = NULL;
    int alike = 0, share = acceptor->incoming_max / SHARE_OF_PLACES;
    for (int i = 0; i < acceptor->incoming_max; i++) {
        entry *at = &acceptor->entries[i];
        bool of_source = at->state != ENTRY_FREE && at->source == source;
        alike += of_source;
        if (at->state == ENTRY_FREE) {
            unused = at;
        } else if (at->state == ENTRY_HANDSHAKE) {
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
    refuse(acceptor, at, "too many connections in their handshake");
    return at;
}

static bool listens(const gr_acceptor *acceptor)
{
    return acceptor->listen_fd[0] >= 0 || acceptor->listen_fd[1] >= 0;
}

static void pause_listeners(gr_acceptor *acceptor, bool pause, int64_t now)
{
    for (int i = 0; i < LISTENERS; i++) {
        struct epoll_event event = {.events = pause ? 0 : EPOLLIN,
                                    .data.u64 = LISTENER_TAG + (uint64_t)i};
        if (acceptor->listen_fd[i] >= 0) {
            epoll_ctl(acceptor->epoll_fd, EPOLL_CTL_MOD, acceptor->listen_fd[i], &event);
            acceptor->system_calls++;
        }
    }
    acceptor->listener_paused_until_us = pause ? now + LISTENER_PAUSE_US : 0;
    if (pause) {
        note_deadline(acceptor, acceptor->listener_paused_until_us);
    }
}

static void accept_one(gr_acceptor *acceptor, int listener, int fd, gr_source source, int64_t now)
{
    bool flood = gr_source_counted(&acceptor->refused, source, now) >= REFUSED_A_SECOND;
    entry *at = flood ? NULL : find_place(acceptor, source, now);
    if (at == NULL) { /* an honest one tries again soon */
        gr_fork_close(fd);
        acceptor->system_calls++;
        count_refused(acceptor, source, now, flood ? "too many come" : "there is no place for it");
        return;
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on a Unix socket: fine */
    acceptor->system_calls += 3;
    *at = (entry){.fd = fd,
                  .tcp = listener == TCP_LISTENER,
                  .source = source,
                  .since_us = now,
                  .deadline_us =
                      gr_clock_deadline_us(&acceptor->config.clock, acceptor->config.timeout_us)};
    acceptor->incoming_count++;
    note_deadline(acceptor, at->deadline_us);
    uint64_t tag = (uint64_t)(at - acceptor->entries);
    if (!begin_handshake(acceptor, at) ||
        watch(acceptor, fd, tag, EPOLLIN | EPOLLOUT | EPOLLET) != GR_OK) {
        refuse(acceptor, at, "no random numbers, or no memory to watch it");
        return;
    }
    handshake(acceptor, at, now);
}

static void accept_some(gr_acceptor *acceptor, int listener, int64_t now)
{
    for (int i = 0; i < ACCEPTS_A_TURN && acceptor->listen_fd[listener] >= 0; i++) {
        struct sockaddr_storage from = {0};
        int fd = gr_fork_accept(acceptor->listen_fd[listener], &from);
        acceptor->system_calls++;
        if (fd >= 0) {
            accept_one(acceptor, listener, fd, gr_source_of(&from), now);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (now >= acceptor->warn_from_us) {
                char why[GR_DESCRIPTORS_TEXT_BYTES];
                gr_log_write(acceptor->config.log, GR_LOG_WARN, "link",
                             "cannot accept a connection: %s", gr_descriptors_error(errno, why));
                acceptor->warn_from_us = now + WARN_EVERY_US;
            }
            pause_listeners(acceptor, true, now);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
            return;
        }
    }
}

/* ---- Progress -------------------------------------------------------------------------------- */

static void note_next(gr_acceptor *acceptor, const entry *at)
{
    if (at->state == ENTRY_FREE || at->state == ENTRY_DONE) {
        return;
    }
    note_deadline(acceptor, at->deadline_us);
    if (at->state == ENTRY_RETRY) {
        note_deadline(acceptor, at->retry_at_us);
    } else if (at->outgoing) {
        note_deadline(acceptor, at->candidate_by_us);
    }
}

static void handle_deadlines(gr_acceptor *acceptor, int64_t now)
{
    acceptor->next_us = GR_NEVER;
    if (acceptor->listener_paused_until_us != 0) {
        if (now >= acceptor->listener_paused_until_us && listens(acceptor)) {
            pause_listeners(acceptor, false, now);
        } else {
            note_deadline(acceptor, acceptor->listener_paused_until_us);
        }
    }
    for (int i = 0; i < acceptor->entry_count; i++) {
        entry *at = &acceptor->entries[i];
        if (at->state == ENTRY_FREE || at->state == ENTRY_DONE) {
            continue;
        }
        if (now >= at->deadline_us) {
            if (at->outgoing) {
                fail_connect(acceptor, at, GR_E_PEER_LOST, "no handshake within the time for it");
            } else {
                refuse(acceptor, at, "no handshake within the time for it");
            }
            continue;
        }
        if (at->outgoing && at->state != ENTRY_RETRY && at->state != ENTRY_LOOKUP &&
            now >= at->candidate_by_us) {
            /* Not after our answer: the other side may take the connection for made. Nor where it
             * has any time to begin the handshake, as one that is busy has. */
            bool may_wait = at->state == ENTRY_HANDSHAKE && at->deadline_us == GR_NEVER;
            at->candidate_by_us = GR_NEVER;
            if (at->auth.out_sent < GR_AUTH_BYTES && !may_wait) {
                (void)try_another(acceptor, at, now);
            }
        }
        if (at->state == ENTRY_RETRY && now >= at->retry_at_us) {
            start_connect(acceptor, at, now);
        }
        note_next(acceptor, at);
    }
}

gr_status gr_acceptor_progress(gr_acceptor *acceptor, gr_diag *diag)
{
    struct epoll_event events[EVENTS_A_TURN];
    int64_t now = now_us(acceptor);
    int count = epoll_wait(acceptor->epoll_fd, events, EVENTS_A_TURN, 0);
    acceptor->system_calls++;
    bool listener_ready[LISTENERS] = {false, false};
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 >= LISTENER_TAG) {
            listener_ready[events[i].data.u64 - LISTENER_TAG] = true;
            continue;
        }
        entry *at = &acceptor->entries[events[i].data.u64];
        if (at->state == ENTRY_LOOKUP) {
            finish_lookup(acceptor, at, now);
        } else if (at->state == ENTRY_CONNECTING) {
            finish_connect(acceptor, at, now);
        } else if (at->state == ENTRY_HANDSHAKE) {
            handshake(acceptor, at, now);
        }
    }
    /* Last, since it may give a place away that an event above was about. */
    for (int i = 0; i < LISTENERS; i++) {
        if (listener_ready[i]) {
            accept_some(acceptor, i, now);
        }
    }
    for (int i = 0; i < acceptor->incoming_max && acceptor->waiting_count > 0; i++) {
        if (acceptor->entries[i].state == ENTRY_HANDSHAKE && acceptor->entries[i].waits) {
            handshake(acceptor, &acceptor->entries[i], now);
        }
    }
    if (now >= acceptor->next_us) {
        handle_deadlines(acceptor, now);
    }
    if (acceptor->failure.status == GR_OK) {
        return GR_OK;
    }
    gr_status status = (gr_status)acceptor->failure.status;
    if (diag != NULL) {
        *diag = acceptor->failure;
    }
    gr_diag_clear(&acceptor->failure);
    return status;
}

bool gr_acceptor_accept(gr_acceptor *acceptor, gr_accepted *accepted_out)
{
    for (int i = 0; acceptor->done_count > 0 && i < acceptor->entry_count; i++) {
        entry *at = &acceptor->entries[i];
        if (at->state == ENTRY_DONE) {
            *accepted_out = (gr_accepted){.fd = at->fd,
                                          .tls = at->tls,
                                          .peer_rank = at->auth.peer_rank,
                                          .rail = at->outgoing ? at->rail : at->auth.peer_rail,
                                          .outgoing = at->outgoing};
            at->fd = -1;
            at->tls = NULL;
            acceptor->done_count--;
            free_entry(acceptor, at);
            return true;
        }
    }
    return false;
}

int64_t gr_acceptor_next_us(const gr_acceptor *acceptor)
{
    return acceptor->next_us;
}

bool gr_acceptor_connecting(const gr_acceptor *acceptor)
{
    return acceptor->connecting_count > 0;
}

bool gr_acceptor_promised(const gr_acceptor *acceptor, int32_t peer_rank)
{
    for (int i = 0; acceptor->incoming_count > 0 && i < acceptor->incoming_max; i++) {
        const entry *at = &acceptor->entries[i];
        if (at->state != ENTRY_FREE && at->auth.checked && !at->waits &&
            at->auth.peer_rank == peer_rank) {
            return true;
        }
    }
    return false;
}

bool gr_acceptor_busy(const gr_acceptor *acceptor)
{
    return acceptor->connecting_count > 0 || acceptor->incoming_count > 0;
}

static void close_listeners(gr_acceptor *acceptor)
{
    for (int i = 0; i < LISTENERS; i++) {
        if (acceptor->listen_fd[i] >= 0) {
            gr_fork_close(acceptor->listen_fd[i]);
            acceptor->listen_fd[i] = -1;
        }
    }
    acceptor->listener_paused_until_us = 0;
}

void gr_acceptor_stop_listening(gr_acceptor *acceptor)
{
    close_listeners(acceptor);
    for (int i = 0; i < acceptor->incoming_max; i++) {
        if (acceptor->entries[i].state == ENTRY_HANDSHAKE) {
            refuse(acceptor, &acceptor->entries[i], "nobody else is expected");
        }
    }
    if (acceptor->connecting_count == 0) {
        gr_wipe(acceptor->secret, GR_SECRET_BYTES); /* nobody will be asked for it again */
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

static gr_status open_listener(gr_acceptor *acceptor, int at, const char *host, gr_diag *diag)
{
    gr_status status = gr_address_listen(host, acceptor->config.ports, acceptor->address[at],
                                         &acceptor->listen_fd[at], diag);
    if (status == GR_OK &&
        watch(acceptor, acceptor->listen_fd[at], LISTENER_TAG + (uint64_t)at, EPOLLIN) != GR_OK) {
        status = gr_fail(diag, GR_E_IO, "cannot watch the listener: %s", strerror(errno));
    }
    return status;
}

gr_status gr_acceptor_create(const gr_acceptor_config *config, gr_acceptor **acceptor_out,
                             gr_diag *diag)
{
    if (config->half_open_max < 1 || config->half_open_max > GR_ACCEPTOR_HALF_OPEN_MAX ||
        config->outgoing_max < 0 || config->timeout_us <= 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "connections in handshake must be 1 to %d (they are %d), their time limit "
                       "above zero",
                       GR_ACCEPTOR_HALF_OPEN_MAX, config->half_open_max);
    }
    int incoming = config->listen_local || config->listen_host != NULL ? config->half_open_max : 0;
    size_t count = (size_t)incoming + (size_t)config->outgoing_max;
    gr_acceptor *acceptor = calloc(1, sizeof *acceptor + count * sizeof(entry));
    if (acceptor == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu connections in handshake", count);
    }
    acceptor->config = *config;
    acceptor->config.secret = NULL;
    acceptor->config.listen_host = NULL; /* not used again; it belongs to the caller */
    acceptor->listen_fd[0] = acceptor->listen_fd[1] = -1;
    acceptor->next_us = GR_NEVER;
    acceptor->incoming_max = incoming;
    acceptor->entry_count = (int)count;
    gr_diag_clear(&acceptor->failure);
    gr_status status = GR_OK;
    char why[GR_DESCRIPTORS_TEXT_BYTES];
    acceptor->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int error = errno;
    gr_fork_guard(acceptor->epoll_fd);
    acceptor->secret = gr_secret_keep(config->secret);
    if (acceptor->secret == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
    } else if (acceptor->epoll_fd < 0) {
        status =
            gr_fail(diag, GR_E_IO, "cannot create an epoll: %s", gr_descriptors_error(error, why));
    }
    if (status == GR_OK && config->listen_local) {
        status = open_listener(acceptor, 0, NULL, diag);
    }
    if (status == GR_OK && config->listen_host != NULL) {
        status = open_listener(acceptor, 1, config->listen_host, diag);
    }
    if (status != GR_OK) {
        gr_acceptor_destroy(acceptor);
        return status;
    }
    *acceptor_out = acceptor;
    return GR_OK;
}

void gr_acceptor_destroy(gr_acceptor *acceptor)
{
    if (acceptor == NULL) {
        return;
    }
    for (int i = 0; i < acceptor->entry_count; i++) {
        if (acceptor->entries[i].state != ENTRY_FREE) {
            forget_fd(acceptor, &acceptor->entries[i]);
        }
    }
    close_listeners(acceptor);
    gr_fork_close(acceptor->epoll_fd);
    gr_secret_forget(acceptor->secret);
    free(acceptor);
}

const char *gr_acceptor_address(const gr_acceptor *acceptor)
{
    return acceptor->address[acceptor->address[0][0] == '\0'];
}

const char *gr_acceptor_remote_address(const gr_acceptor *acceptor)
{
    return acceptor->address[1];
}

int gr_acceptor_fd(const gr_acceptor *acceptor)
{
    return acceptor->epoll_fd;
}

uint64_t gr_acceptor_pending(const gr_acceptor *acceptor)
{
    return acceptor->refused.total;
}

uint64_t gr_acceptor_system_calls(const gr_acceptor *acceptor)
{
    return acceptor->system_calls;
}
