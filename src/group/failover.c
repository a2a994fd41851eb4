/* SPDX-License-Identifier: Apache-2.0 */
#include "group/failover.h"

#include "base/fail.h"
#include "base/fork.h"
#include "base/thread.h"
#include "group/quorum.h"
#include "link/acceptor.h"
#include "link/address.h"
#include "link/secret.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SLEEP_MAX_MS = 60000 };

/* Finds out whether an awaited member is still there. */
typedef struct probe {
    int number;
    size_t next_at;
    char addresses[GR_REMOTE_BYTES];
} probe;

struct gr_failover {
    gr_coordinator *coordinator;
    gr_log log;
    int self;     /* this member's number */
    bool elastic; /* members need the coordinator after the join as well */
    bool encrypt;
    uint8_t *secret;     /* gr_secret_keep */
    gr_acceptor *probes; /* while others are waited for */
    probe *probed;
    int probed_count;
    int64_t gather_until_us;
    bool running;
    atomic_bool failed; /* the thread has ended by itself */
    pthread_t thread;
    int wake_fd;
    _Atomic int64_t leave_by_us; /* GR_NEVER: the member has not left */
};

/* ---- The thread ------------------------------------------------------------------------------ */

static void sleep_until_news(const gr_failover *s)
{
    struct pollfd at[3] = {
        {.fd = gr_coordinator_fd(s->coordinator), .events = POLLIN},
        {.fd = s->wake_fd, .events = POLLIN},
        {.fd = s->probes != NULL ? gr_acceptor_fd(s->probes) : -1, .events = POLLIN}};
    int64_t next_us = gr_coordinator_next_us(s->coordinator), now_us = gr_now_ns() / 1000;
    int64_t leave_by_us = atomic_load(&s->leave_by_us);
    next_us = leave_by_us < next_us ? leave_by_us : next_us;
    if (gr_coordinator_gathers(s->coordinator) && s->gather_until_us < next_us) {
        next_us = s->gather_until_us;
    }
    if (s->probes != NULL && gr_acceptor_next_us(s->probes) < next_us) {
        next_us = gr_acceptor_next_us(s->probes);
    }
    int64_t left_ms = next_us <= now_us ? 0 : (next_us - now_us) / 1000 + 1;
    (void)poll(at, 3, left_ms > SLEEP_MAX_MS ? SLEEP_MAX_MS : (int)left_ms);
    uint64_t count;
    ssize_t got = read(s->wake_fd, &count, sizeof count);
    (void)got;
}

/* Where nobody listens at one of its addresses, the next one is tried. A process that has ended has
 * nobody listening at any, which its kernel says at once; before the time is over nothing else ends
 * a probe like that. */
static void go_on(gr_failover *s, probe *of)
{
    char address[GR_ADDRESS_BYTES];
    bool more = gr_address_next(of->addresses, &of->next_at, address);
    gr_status status =
        more ? gr_acceptor_connect(s->probes, of->number, (gr_auth_rail){.count = 1}, address, NULL)
             : GR_OK;
    (void)status; /* who cannot be looked for is waited for */
    if (!more && gr_now_ns() / 1000 < s->gather_until_us &&
        gr_coordinator_member_state(s->coordinator, of->number) == 0) {
        gr_coordinator_member_ended(s->coordinator, of->number);
    }
}

static void look_at_probes(gr_failover *s)
{
    gr_diag why;
    gr_accepted accepted;
    for (gr_status status = GR_PENDING; s->probes != NULL && status != GR_OK;) {
        status = gr_acceptor_progress(s->probes, &why);
        for (int i = 0; i < s->probed_count && status == GR_E_PEER_LOST; i++) {
            if (s->probed[i].number == why.peer_rank) {
                go_on(s, &s->probed[i]);
            }
        }
    }
    while (s->probes != NULL && gr_acceptor_accept(s->probes, &accepted)) {
        gr_tls_destroy(accepted.tls);
        gr_fork_close(accepted.fd);
    }
    if (!gr_coordinator_gathers(s->coordinator)) {
        gr_acceptor_destroy(s->probes);
        s->probes = NULL;
    }
}

static void *serve(void *failover_arg)
{
    gr_failover *s = failover_arg;
    gr_diag diag = {0};
    for (;;) {
        gr_status status = gr_coordinator_progress(s->coordinator, &diag);
        if (status != GR_OK) {
            gr_log_write(&s->log, GR_LOG_ERROR, "group", "%s", diag.text);
            gr_coordinator_leave(s->coordinator); /* so that another member takes over */
            atomic_store(&s->failed, true);
            return NULL;
        }
        look_at_probes(s);
        int64_t now_us = gr_now_ns() / 1000, leave_by_us = atomic_load(&s->leave_by_us);
        if (gr_coordinator_gathers(s->coordinator) && now_us >= s->gather_until_us) {
            gr_coordinator_gathered(s->coordinator);
        }
        bool done = gr_coordinator_is_alone(s->coordinator) ||
                    (!s->elastic && gr_coordinator_at_rest(s->coordinator));
        if (leave_by_us != GR_NEVER && (now_us >= leave_by_us || done)) {
            return NULL;
        }
        sleep_until_news(s);
    }
}

/* ---- Taking over ----------------------------------------------------------------------------- */

static gr_status begin_probes(gr_failover *s, const gr_member *places, int count,
                              const gr_numbers *silent, int64_t patience_us, gr_diag *diag)
{
    const gr_acceptor_config config = {.rank = GR_AUTH_RANK_COORDINATOR, /* nobody lets it in */
                                       .secret = s->secret,
                                       .encrypt = s->encrypt,
                                       .half_open_max = 1,
                                       .outgoing_max = count,
                                       .timeout_us = patience_us,
                                       .clock = gr_clock_real(),
                                       .log = &s->log};
    s->probed = calloc((size_t)count, sizeof *s->probed);
    if (s->probed == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to look for %d members", count);
    }
    gr_status status = gr_acceptor_create(&config, &s->probes, diag);
    for (int rank = 0; rank < count && status == GR_OK; rank++) {
        int number = (int)places[rank].number;
        if (gr_numbers_has(silent, number)) {
            gr_coordinator_member_ended(s->coordinator, number);
        } else if (number != s->self && places[rank].failover[0] != '\0') {
            probe *of = &s->probed[s->probed_count++];
            of->number = number;
            memcpy(of->addresses, places[rank].failover, sizeof of->addresses);
            go_on(s, of);
        }
    }
    return status;
}

gr_status gr_failover_begin(gr_failover *s, const gr_member *places, int count,
                            const gr_numbers *silent, int64_t patience_us, gr_diag *diag)
{
    if (s->running) {
        return !atomic_load(&s->failed)
                   ? GR_OK
                   : gr_fail(diag, GR_E_COMM_BROKEN,
                             "the coordinator in this process has failed, and another member goes "
                             "on in its place");
    }
    s->gather_until_us = gr_now_ns() / 1000 + patience_us;
    gr_status status =
        count > 0 ? begin_probes(s, places, count, silent, patience_us, diag) : GR_OK;
    if (status != GR_OK) {
        return status;
    }
    int error = gr_thread_create(&s->thread, NULL, serve, s);
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "the thread of the coordinator cannot be started: %s",
                       strerror(error));
    }
    s->running = true;
    return GR_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

gr_status gr_failover_create(const gr_coordinator_config *coordinator, gr_failover **out,
                             gr_diag *diag)
{
    gr_failover *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a coordinator");
    }
    s->self = coordinator->successor - 1;
    s->encrypt = coordinator->encrypt;
    s->elastic = coordinator->members_min > 0;
    s->log = coordinator->log != NULL ? *coordinator->log : (gr_log){0};
    atomic_init(&s->leave_by_us, GR_NEVER);
    atomic_init(&s->failed, false);
    s->secret = gr_secret_keep(coordinator->secret);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gr_coordinator_config own = *coordinator;
    own.log = &s->log;
    gr_status status = GR_OK;
    if (s->secret == NULL || s->wake_fd < 0) {
        status = gr_fail(diag, GR_E_IO, "no memory or no descriptor for a coordinator: %s",
                         strerror(errno));
    } else {
        status = gr_coordinator_create(&own, &s->coordinator, diag);
    }
    if (status != GR_OK) {
        gr_failover_end(s, 0);
        return status;
    }
    *out = s;
    return GR_OK;
}

const char *gr_failover_address(const gr_failover *s)
{
    return gr_coordinator_address(s->coordinator);
}

void gr_failover_end(gr_failover *s, int64_t patience_us)
{
    if (s == NULL) {
        return;
    }
    if (s->running) {
        const uint64_t one = 1;
        atomic_store(&s->leave_by_us, gr_now_ns() / 1000 + patience_us);
        ssize_t put = write(s->wake_fd, &one, sizeof one);
        (void)put; /* the counter cannot be full */
        pthread_join(s->thread, NULL);
        uint64_t unauthenticated = gr_coordinator_pending(s->coordinator);
        if (unauthenticated > 0) {
            gr_log_write(&s->log, GR_LOG_WARN, "group",
                         "%" PRIu64 " connections were refused: they did not prove that they "
                         "belong to the job",
                         unauthenticated);
        }
    }
    gr_acceptor_destroy(s->probes);
    free(s->probed);
    gr_coordinator_destroy(s->coordinator);
    gr_secret_forget(s->secret);
    if (s->wake_fd >= 0) {
        close(s->wake_fd);
    }
    free(s);
}
