/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/fork.h"
#include "group/control.h"
#include "group/group.h"
#include "group/membership.h"
#include "group/wait_graph.h"
#include "link/acceptor.h"
#include "link/socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAG_ACCEPTOR UINT64_MAX

enum {
    EVENTS_A_TURN = 64,
    TURNS_MAX = 64, /* of one progress, so that nobody can keep the launcher in it */
    HALF_OPEN_MAX = 256,
    HANDSHAKE_TIMEOUT_US = 5000000,
    /* At most so many messages of a member are handled in one turn, the rest in the next one. */
    MESSAGES_A_TURN = 16,
    /* A member sends less than ten messages for a generation, beside reports and PINGs. PINGs may
     * have piled up while the launcher stood still, so that the time counts from the beginning. A
     * program may renew as fast as generations come about, so what these take does not count. */
    MESSAGES_A_GENERATION = 10,
    MESSAGES_AT_ONCE = 1000,
    MESSAGES_A_SECOND = 1000,
    DIED_BYTES = 128,
    /* Without a launcher: so many workers may join in the course of the job, beyond a share of
     * those that it has. Each gets a number of its own. */
    JOINING_MIN = 32,
    JOINING_SHARE = 3
};

/* A member's connection; the rules are membership.c's. */
typedef struct member {
    gr_control control;
    const char *broken; /* why it is to be closed, once the rules have come to rest; NULL: not */
    bool unread;        /* more of its messages may be there than one turn handles */
    int64_t since_us;   /* it is connected since */
    uint64_t received;  /* as many messages, without those that generations take */
    uint64_t ready_in;  /* the newest generation that it has agreed to */
    uint8_t in[GR_MESSAGE_SMALL_MAX];
} member;

struct gr_coordinator {
    gr_membership membership;
    const gr_log *log;
    gr_acceptor *acceptor;
    int epoll_fd;
    int64_t peer_timeout_us, ping_at_us;
    bool succeeds; /* another one, that has died */
    int broken;    /* members whose broken connection was not reported to the rules yet */
    int unread;    /* members of whom more may be there */
    void (*on_complete)(void *on_complete_arg); /* NULL: none, or called */
    void *on_complete_arg;
    uint64_t announced; /* the generation of: */
    uint8_t *members_message;
    size_t members_bytes;
    gr_wait_graph waiting; /* of the ranks of this generation: */
    uint64_t waiting_generation;
    int64_t evaluate_at_us;
    member members[]; /* by number: the rank in the first generation */
};

static int number_of(const gr_coordinator *coordinator, const member *of)
{
    return (int)(of - coordinator->members);
}

/* ---- Telling --------------------------------------------------------------------------------- */

static void close_member(member *of)
{
    gr_control_close(&of->control); /* which takes it out of the epoll as well */
}

static void give_up(gr_coordinator *coordinator, member *of, const char *why)
{
    if (of->broken == NULL) {
        of->broken = why;
        coordinator->broken++;
    }
}

static const char *why_ended(const member *of)
{
    return gr_control_is_cut(&of->control) ? "nothing comes from its host any more"
                                           : "it ended without leaving the group";
}

static void flush(gr_coordinator *coordinator, member *to)
{
    if (to->control.fd >= 0 && gr_control_flush(&to->control) == GR_E_PEER_LOST) {
        give_up(coordinator, to, why_ended(to));
    }
}

static void notify(gr_coordinator *coordinator, member *to, const gr_word *word)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    size_t size = 0;
    switch (word->kind) {
    case GR_MESSAGE_ASSIGN:
        size = gr_message_put_assignment(&word->assignment, message);
        break;
    case GR_MESSAGE_MISSING:
        size = gr_message_put_missing(word->missing, message);
        break;
    case GR_MESSAGE_HISTORY:
        size = gr_message_put_history(word->history, message);
        break;
    case GR_MESSAGE_CHANGE:
    case GR_MESSAGE_DISMISS:
        size = gr_message_put_empty(word->kind, message);
        break;
    default:
        size = gr_message_put_fail(word->failure, message);
        break;
    }
    if (gr_control_put(&to->control, message, size) != GR_OK) {
        give_up(coordinator, to, "it does not read its messages");
    }
}

/* Written once for all. Whoever has the last one still to read has not said HELLO to this one, so
 * that it is not told, and is too far behind to be waited for. */
static void notify_members(gr_coordinator *coordinator, member *to, const gr_word *word)
{
    if (coordinator->announced != word->generation) {
        for (int i = 0; i < coordinator->membership.world_size; i++) {
            if (coordinator->members[i].control.bulk != NULL) {
                give_up(coordinator, &coordinator->members[i], "it does not read its messages");
            }
        }
        coordinator->announced = word->generation;
        coordinator->members_bytes = gr_message_put_members(
            word->generation, word->size, word->places, coordinator->members_message);
    }
    gr_control_put_bulk(&to->control, coordinator->members_message, coordinator->members_bytes);
}

static void send_word(void *coordinator_arg, int number, const gr_word *word)
{
    gr_coordinator *coordinator = coordinator_arg;
    member *to = &coordinator->members[number];
    if (to->control.fd < 0 || to->broken != NULL) {
        return;
    }
    if (word->kind == GR_MESSAGE_MEMBERS && coordinator->on_complete != NULL) {
        coordinator->on_complete(coordinator->on_complete_arg);
        coordinator->on_complete = NULL;
    }
    if (word->kind == GR_MESSAGE_MEMBERS) {
        notify_members(coordinator, to, word);
    } else {
        notify(coordinator, to, word);
    }
    flush(coordinator, to);
}

static void announce_lost(gr_coordinator *coordinator, int number, const char *why);

/* Reports to the rules what broke while they sent; what they send then may break more. */
static void drop_broken(gr_coordinator *coordinator)
{
    for (int i = 0; coordinator->broken > 0; i = (i + 1) % coordinator->membership.world_size) {
        member *of = &coordinator->members[i];
        if (of->broken != NULL) {
            const char *why = of->broken;
            of->broken = NULL;
            coordinator->broken--;
            close_member(of);
            announce_lost(coordinator, i, why);
            gr_membership_lost(&coordinator->membership, i, why);
        }
    }
}

static void lose(gr_coordinator *coordinator, member *of, const char *why)
{
    give_up(coordinator, of, why);
    drop_broken(coordinator);
}

/* ---- Listening ------------------------------------------------------------------------------- */

static void refuse(const gr_accepted *accepted, const char *sentence, int rank)
{
    gr_diag failure;
    gr_control control;
    uint8_t message[GR_MESSAGE_SMALL_MAX], rest[GR_MESSAGE_SMALL_MAX];
    gr_control_init(&control, accepted, GR_PEER_TIMEOUT_US, rest, sizeof rest);
    (void)gr_fail_peer(&failure, GR_E_INVALID, rank, "%s", sentence);
    size_t size = gr_message_put_fail(&failure, message);
    /* Closing with unread bytes would reset the connection and lose the sentence. */
    if (gr_control_put(&control, message, size) == GR_OK && gr_control_flush(&control) == GR_OK) {
        shutdown(control.fd, SHUT_WR);
        while (recv(control.fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {
        }
    }
    gr_control_close(&control);
}

/* For a joining worker that has none; -1: there is none. */
static int free_number(const gr_coordinator *coordinator)
{
    for (int number = 0; number < coordinator->membership.world_size; number++) {
        const member *of = &coordinator->members[number];
        if (of->control.fd < 0 && of->broken == NULL &&
            gr_membership_is_free(&coordinator->membership, number)) {
            return number;
        }
    }
    return -1;
}

static void accept_member(gr_coordinator *coordinator, const gr_accepted *accepted)
{
    int rank = accepted->peer_rank;
    if (rank == GR_AUTH_RANK_JOINING) {
        rank = free_number(coordinator);
        if (rank < 0) { /* it was free when the worker was let in: it will come again */
            gr_tls_destroy(accepted->tls);
            gr_fork_close(accepted->fd);
            return;
        }
        gr_membership_reserve(&coordinator->membership, rank);
    }
    member *of = &coordinator->members[rank];
    char sentence[GR_DIAG_TEXT_BYTES];
    gr_member_state state = coordinator->membership.members[rank].state;
    if ((state != GR_MEMBER_ABSENT && state != GR_MEMBER_RESERVED) || of->control.fd >= 0) {
        const gr_hello *hello = &coordinator->membership.hellos[rank];
        if (state == GR_MEMBER_LOST && coordinator->succeeds) {
            snprintf(sentence, sizeof sentence,
                     "rank %d comes too late: another coordinator has taken over from the one that "
                     "it had lost, and the others have gone on without it",
                     rank);
        } else {
            snprintf(sentence, sizeof sentence,
                     "rank %d has called in already (process %llu on host %s): a process joins "
                     "once, and no two have the same GRADUS_RANK",
                     rank, (unsigned long long)hello->pid, hello->member.host_name);
        }
        gr_log_write(coordinator->log, GR_LOG_WARN, "group", "%s", sentence);
        refuse(accepted, sentence, rank);
        return;
    }
    gr_control_init(&of->control, accepted, coordinator->peer_timeout_us, of->in, sizeof of->in);
    of->since_us = gr_now_ns() / 1000;
    of->received = 0;
    of->ready_in = 0;
    coordinator->ping_at_us = 0; /* soon it is known when */
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.u64 = (uint64_t)rank};
    if (epoll_ctl(coordinator->epoll_fd, EPOLL_CTL_ADD, accepted->fd, &event) != 0) {
        lose(coordinator, of, "its connection cannot be watched");
    }
}

/* ---- Ranks that wait ------------------------------------------------------------------------- */

static int number_with_rank(const gr_membership *membership, int rank)
{
    for (int number = 0; number < membership->world_size; number++) {
        const gr_standing *of = &membership->members[number];
        if (of->state == GR_MEMBER_JOINED && of->assignment == membership->generation &&
            of->rank == rank) {
            return number;
        }
    }
    return -1;
}

static void send_report(void *coordinator_arg, int rank, const gr_op_report *report)
{
    gr_coordinator *coordinator = coordinator_arg;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    int number = number_with_rank(&coordinator->membership, rank);
    member *to = number >= 0 ? &coordinator->members[number] : NULL;
    if (to == NULL || to->control.fd < 0 || to->broken != NULL) {
        return;
    }
    /* A member that does not read goes without: nothing depends on it. */
    if (gr_control_put(&to->control, message, gr_message_put_report(report, message)) == GR_OK) {
        flush(coordinator, to);
    }
}

static bool is_ready(const gr_membership *membership, int number)
{
    const gr_standing *of = &membership->members[number];
    return of->state == GR_MEMBER_JOINED && of->stage == GR_STAGE_READY &&
           of->assignment == membership->generation;
}

static gr_op_report report_gone(const gr_membership *membership, int number, const char *why)
{
    const gr_hello *hello = &membership->hellos[number];
    int rank = membership->members[number].rank;
    gr_op_report report = {.kind = GR_REPORT_GONE,
                           .generation = membership->generation,
                           .rank = rank,
                           .peer = rank,
                           .via = -1,
                           .op = {.partner = -1}};
    snprintf(report.text, sizeof report.text, "rank %d (process %llu on host %s) %s", rank,
             (unsigned long long)hello->pid, hello->member.host_name, why);
    return report;
}

/* To the other members of its generation: who waits for it may have no connection to it. */
static void announce_lost(gr_coordinator *coordinator, int number, const char *why)
{
    const gr_membership *membership = &coordinator->membership;
    char died[DIED_BYTES];
    if (!is_ready(membership, number)) {
        return; /* it is nobody's peer */
    }
    snprintf(died, sizeof died, "died: %s", why);
    const gr_op_report report = report_gone(membership, number, died);
    for (int i = 0; i < membership->world_size; i++) {
        if (i != number && is_ready(membership, i)) {
            send_report(coordinator, membership->members[i].rank, &report);
        }
    }
}

/* Answers a rank that begins to wait for a member that is gone already. */
static void answer_wait(gr_coordinator *coordinator, int rank, const gr_op_report *report)
{
    const gr_membership *membership = &coordinator->membership;
    for (uint32_t i = 0; report->kind == GR_REPORT_WAITS && i < report->awaits_count; i++) {
        if (report->awaits[i] >= membership->size) {
            continue; /* which is found out soon */
        }
        int number = (int)membership->places[report->awaits[i]].number;
        const gr_standing *of = &membership->members[number];
        bool here = of->state == GR_MEMBER_JOINED, left = of->state == GR_MEMBER_LEFT;
        if (of->assignment != membership->generation || (here && of->stage != GR_STAGE_RENEWING)) {
            continue;
        }
        gr_op_report gone = report_gone(membership, number,
                                        here   ? "has gone on to the next generation"
                                        : left ? "has left in order"
                                               : "died");
        gone.answers = left;
        send_report(coordinator, rank, &gone);
    }
}

/* Reports of ranks in a generation that is over, or comes about, mean nothing here. */
static gr_status receive_report(gr_coordinator *coordinator, int number, const gr_op_report *report)
{
    const gr_membership *membership = &coordinator->membership;
    const gr_standing *of = &membership->members[number];
    if (report->generation != membership->generation || !is_ready(membership, number)) {
        return GR_OK;
    }
    answer_wait(coordinator, of->rank, report);
    if (membership->disturbed) {
        return GR_OK;
    }
    if (coordinator->waiting_generation != membership->generation) {
        coordinator->waiting_generation = membership->generation;
        gr_wait_graph_reset(&coordinator->waiting, membership->size);
    }
    int64_t now_us = gr_now_ns() / 1000;
    gr_status status = gr_wait_graph_report(&coordinator->waiting, of->rank, report, now_us);
    coordinator->evaluate_at_us = status == GR_OK ? now_us : coordinator->evaluate_at_us;
    return status;
}

static void evaluate_waiting(gr_coordinator *coordinator)
{
    int64_t now_us = gr_now_ns() / 1000;
    if (now_us >= coordinator->evaluate_at_us) {
        bool current = coordinator->waiting_generation == coordinator->membership.generation &&
                       !coordinator->membership.disturbed;
        coordinator->evaluate_at_us =
            current ? gr_wait_graph_evaluate(&coordinator->waiting, now_us) : GR_NEVER;
        drop_broken(coordinator);
    }
}

/* GR_OK: understood. */
static gr_status handle_message(gr_coordinator *coordinator, int number, gr_message_kind kind,
                                const uint8_t *body, size_t body_bytes)
{
    gr_membership *membership = &coordinator->membership;
    gr_hello hello;
    gr_history history;
    gr_diag failure;
    gr_status status;
    uint64_t generation;
    gr_op_report report;
    switch (kind) {
    case GR_MESSAGE_REPORT:
        status = gr_op_report_get(body, body_bytes, GR_GROUP_WORLD_MAX, &report, NULL);
        return status == GR_OK ? receive_report(coordinator, number, &report) : status;
    case GR_MESSAGE_HELLO:
        status = gr_message_get_hello(body, body_bytes, &hello, NULL);
        return status == GR_OK ? gr_membership_hello(membership, number, &hello) : status;
    case GR_MESSAGE_ASK:
        return gr_membership_ask(membership, number);
    case GR_MESSAGE_READY:
        status = gr_message_get_ready(body, body_bytes, &generation, NULL);
        return status == GR_OK ? gr_membership_ready(membership, number, generation) : status;
    case GR_MESSAGE_RENEW:
        return gr_membership_renew(membership, number);
    case GR_MESSAGE_HISTORY:
        status = gr_message_get_history(body, body_bytes, &history, NULL);
        return status == GR_OK ? gr_membership_switch(membership, number, &history) : status;
    case GR_MESSAGE_FAIL:
        status = gr_message_get_fail(body, body_bytes, &failure, NULL);
        return status == GR_OK ? gr_membership_fail(membership, number, &failure) : status;
    case GR_MESSAGE_LEAVE:
        return gr_membership_leave(membership, number);
    case GR_MESSAGE_PING:
        return GR_OK;
    default:
        return GR_E_PROTOCOL;
    }
}

static void set_unread(gr_coordinator *coordinator, member *of, bool unread)
{
    coordinator->unread += (int)unread - (int)of->unread;
    of->unread = unread;
}

/* Counts a message that was handled. */
static void count_message(const gr_coordinator *coordinator, member *of, gr_message_kind kind)
{
    const uint64_t generation = coordinator->membership.generation;
    of->received++;
    if (kind == GR_MESSAGE_READY && of->ready_in < generation) {
        of->ready_in = generation;
        of->received -= of->received < MESSAGES_A_GENERATION ? of->received : MESSAGES_A_GENERATION;
    }
}

static bool sends_too_much(const member *of)
{
    uint64_t seconds = (uint64_t)(gr_now_ns() / 1000 - of->since_us) / 1000000;
    return of->received > MESSAGES_AT_ONCE + seconds * MESSAGES_A_SECOND;
}

/* Handles at most `most` messages. */
static void receive_from(gr_coordinator *coordinator, member *from, int most)
{
    gr_status status = GR_OK;
    flush(coordinator, from);
    drop_broken(coordinator);
    for (int count = 0; status == GR_OK && from->control.fd >= 0; count++) {
        if (count == most) {
            set_unread(coordinator, from, true);
            return;
        }
        gr_message_kind kind;
        const uint8_t *body;
        size_t body_bytes;
        status = gr_control_get(&from->control, &kind, &body, &body_bytes, NULL);
        if (status == GR_OK) {
            status =
                handle_message(coordinator, number_of(coordinator, from), kind, body, body_bytes);
            if (status == GR_OK && (kind == GR_MESSAGE_FAIL || kind == GR_MESSAGE_LEAVE)) {
                close_member(from);
            }
            drop_broken(coordinator);
            count_message(coordinator, from, kind);
            if (sends_too_much(from) && from->control.fd >= 0) {
                lose(coordinator, from, "it sent the coordinator more messages than a rank has to");
            }
        }
    }
    set_unread(coordinator, from, false);
    if (status == GR_E_PEER_LOST) {
        lose(coordinator, from, why_ended(from));
    } else if (status < 0) {
        lose(coordinator, from, "it sent garbage to the coordinator");
    }
}

/* ---- Face ------------------------------------------------------------------------------------ */

static bool accepts_rank(void *coordinator_arg, int32_t rank, gr_auth_rail rail)
{
    const gr_coordinator *coordinator = coordinator_arg;
    bool is_member = rank >= 0 && rank < coordinator->membership.world_size;
    bool may_join = rank == GR_AUTH_RANK_JOINING && free_number(coordinator) >= 0;
    return (is_member || may_join) && rail.count == 1;
}

/* Those that say nothing for long are asked whether their host is still there. */
static void ping_members(gr_coordinator *coordinator)
{
    int64_t now_us = gr_now_ns() / 1000;
    if (now_us < coordinator->ping_at_us) {
        return;
    }
    coordinator->ping_at_us = GR_NEVER;
    for (int i = 0; i < coordinator->membership.world_size; i++) {
        member *to = &coordinator->members[i];
        int64_t next_us = gr_control_ping(&to->control, now_us);
        if (to->control.fd >= 0 && to->control.ended) {
            give_up(coordinator, to, why_ended(to));
        } else if (next_us < coordinator->ping_at_us) {
            coordinator->ping_at_us = next_us;
        }
    }
    drop_broken(coordinator);
}

gr_status gr_coordinator_progress(gr_coordinator *coordinator, gr_diag *diag)
{
    for (int turn = 0; turn < TURNS_MAX; turn++) {
        struct epoll_event events[EVENTS_A_TURN];
        int count = epoll_wait(coordinator->epoll_fd, events, EVENTS_A_TURN, 0);
        if (count < 0 && errno != EINTR) {
            return gr_fail(diag, GR_E_IO, "the coordinator cannot wait for its members: %s",
                           strerror(errno));
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 != TAG_ACCEPTOR) {
                receive_from(coordinator, &coordinator->members[events[i].data.u64],
                             MESSAGES_A_TURN);
            }
        }
        for (int i = 0; coordinator->unread > 0 && i < coordinator->membership.world_size; i++) {
            if (coordinator->members[i].unread) {
                receive_from(coordinator, &coordinator->members[i], MESSAGES_A_TURN);
            }
        }
        gr_status status = gr_acceptor_progress(coordinator->acceptor, diag);
        if (status != GR_OK) {
            return status;
        }
        gr_accepted accepted;
        bool arrived = false;
        while (gr_acceptor_accept(coordinator->acceptor, &accepted)) {
            accept_member(coordinator, &accepted);
            arrived = true;
        }
        if (count <= 0 && !arrived && coordinator->unread == 0) {
            break;
        }
    }
    ping_members(coordinator);
    evaluate_waiting(coordinator);
    return GR_OK;
}

static size_t count_numbers(const gr_coordinator_config *config)
{
    size_t count = (size_t)config->world_size;
    if (config->world_max > 0) {
        return (size_t)config->world_max;
    }
    if (config->failover && config->members_min < config->world_size) {
        count += JOINING_SHARE * count + JOINING_MIN;
    }
    return count < GR_GROUP_WORLD_MAX ? count : GR_GROUP_WORLD_MAX;
}

gr_status gr_coordinator_create(const gr_coordinator_config *config, gr_coordinator **out,
                                gr_diag *diag)
{
    if (config->world_size < 1 || config->world_size > GR_GROUP_WORLD_MAX) {
        return gr_fail(diag, GR_E_INVALID, "a group has 1 to %d ranks, not %d", GR_GROUP_WORLD_MAX,
                       config->world_size);
    }
    size_t world = count_numbers(config);
    gr_coordinator *coordinator = calloc(1, sizeof *coordinator + world * sizeof(member));
    if (coordinator == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a coordinator of %zu ranks", world);
    }
    coordinator->log = config->log;
    coordinator->ping_at_us = coordinator->evaluate_at_us = GR_NEVER;
    coordinator->on_complete = config->on_complete;
    coordinator->on_complete_arg = config->on_complete_arg;
    coordinator->succeeds = config->successor > 0;
    coordinator->peer_timeout_us =
        config->peer_timeout_us > 0 ? config->peer_timeout_us : GR_PEER_TIMEOUT_US;
    for (size_t rank = 0; rank < world; rank++) {
        coordinator->members[rank].control.fd = -1;
    }
    coordinator->members_message = malloc(gr_message_members_max((int)world));
    coordinator->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    const gr_membership_config rules = {.world_size = (int)world,
                                        .first_size = config->world_size,
                                        .members_min = config->members_min,
                                        .failover = config->failover,
                                        .successor = config->successor - 1,
                                        .send = send_word,
                                        .send_arg = coordinator,
                                        .log = config->log};
    gr_status status = gr_membership_init(&coordinator->membership, &rules, diag);
    if (status != GR_OK) {
        /* said */
    } else if (coordinator->members_message == NULL ||
               gr_wait_graph_init(&coordinator->waiting, (int)world, send_report, coordinator) !=
                   GR_OK) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu addresses", world);
    } else if (coordinator->epoll_fd < 0) {
        char why[GR_DESCRIPTORS_TEXT_BYTES];
        status =
            gr_fail(diag, GR_E_IO, "cannot create an epoll: %s", gr_descriptors_error(errno, why));
    } else {
        gr_acceptor_config acceptor = {.rank = GR_AUTH_RANK_COORDINATOR,
                                       .secret = config->secret,
                                       .encrypt = config->encrypt,
                                       .listen_local = config->listen_host == NULL,
                                       .listen_host = config->listen_host,
                                       .ports = config->ports,
                                       .half_open_max = HALF_OPEN_MAX,
                                       .timeout_us = HANDSHAKE_TIMEOUT_US,
                                       .clock = gr_clock_real(),
                                       .log = config->log,
                                       .accepts = accepts_rank,
                                       .accepts_arg = coordinator};
        status = gr_acceptor_create(&acceptor, &coordinator->acceptor, diag);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = TAG_ACCEPTOR};
    if (status == GR_OK && epoll_ctl(coordinator->epoll_fd, EPOLL_CTL_ADD,
                                     gr_acceptor_fd(coordinator->acceptor), &event) != 0) {
        status = gr_fail(diag, GR_E_IO, "cannot watch the acceptor: %s", strerror(errno));
    }
    if (status != GR_OK) {
        gr_coordinator_destroy(coordinator);
        return status;
    }
    *out = coordinator;
    return GR_OK;
}

void gr_coordinator_destroy(gr_coordinator *coordinator)
{
    if (coordinator == NULL) {
        return;
    }
    for (int rank = 0; rank < coordinator->membership.world_size; rank++) {
        close_member(&coordinator->members[rank]);
    }
    gr_acceptor_destroy(coordinator->acceptor);
    if (coordinator->epoll_fd >= 0) {
        close(coordinator->epoll_fd);
    }
    free(coordinator->members_message);
    gr_wait_graph_fini(&coordinator->waiting);
    gr_membership_fini(&coordinator->membership);
    free(coordinator);
}

void gr_coordinator_leave(gr_coordinator *coordinator)
{
    gr_acceptor_stop_listening(coordinator->acceptor);
    for (int rank = 0; rank < coordinator->membership.world_size; rank++) {
        close_member(&coordinator->members[rank]);
    }
}

const char *gr_coordinator_address(const gr_coordinator *coordinator)
{
    return gr_acceptor_address(coordinator->acceptor);
}

int gr_coordinator_fd(const gr_coordinator *coordinator)
{
    return coordinator->epoll_fd;
}

int64_t gr_coordinator_next_us(const gr_coordinator *coordinator)
{
    int64_t next_us = coordinator->unread > 0 ? 0 : gr_acceptor_next_us(coordinator->acceptor);
    next_us = next_us < coordinator->ping_at_us ? next_us : coordinator->ping_at_us;
    return next_us < coordinator->evaluate_at_us ? next_us : coordinator->evaluate_at_us;
}

void gr_coordinator_member_ended(gr_coordinator *coordinator, int rank)
{
    bool known = rank >= 0 && rank < coordinator->membership.world_size; /* others say so */
    if (!known || !gr_membership_elastic(&coordinator->membership)) {
        return;
    }
    member *of = &coordinator->members[rank];
    receive_from(coordinator, of, MESSAGES_AT_ONCE); /* it may have left in order */
    set_unread(coordinator, of, false);
    close_member(of);
    announce_lost(coordinator, rank, "its process ended");
    gr_membership_ended(&coordinator->membership, rank);
    drop_broken(coordinator);
}

void gr_coordinator_reserve(gr_coordinator *coordinator, int number)
{
    close_member(&coordinator->members[number]); /* of who was there before */
    gr_membership_reserve(&coordinator->membership, number);
}

void gr_coordinator_expect_joining(gr_coordinator *coordinator, bool joining_expected)
{
    gr_membership_expect_joining(&coordinator->membership, joining_expected);
    drop_broken(coordinator);
}

void gr_coordinator_set_target_size(gr_coordinator *coordinator, int count)
{
    gr_membership_set_target_size(&coordinator->membership, count);
    drop_broken(coordinator);
}

void gr_coordinator_drain(gr_coordinator *coordinator, int number)
{
    gr_membership_drain(&coordinator->membership, number);
    drop_broken(coordinator);
}

bool gr_coordinator_gathers(const gr_coordinator *coordinator)
{
    return gr_membership_gathers(&coordinator->membership);
}

void gr_coordinator_gathered(gr_coordinator *coordinator)
{
    gr_membership_gathered(&coordinator->membership);
    drop_broken(coordinator);
}

bool gr_coordinator_is_alone(const gr_coordinator *coordinator)
{
    for (int i = 0; i < coordinator->membership.world_size; i++) {
        if (coordinator->membership.members[i].state == GR_MEMBER_JOINED) {
            return false;
        }
    }
    return true;
}

bool gr_coordinator_has_served(const gr_coordinator *coordinator, int number)
{
    return !coordinator->membership.members[number].joining;
}

bool gr_coordinator_at_rest(const gr_coordinator *coordinator)
{
    return gr_membership_at_rest(&coordinator->membership);
}

bool gr_coordinator_is_over(const gr_coordinator *coordinator)
{
    return coordinator->membership.over;
}

int gr_coordinator_member_state(const gr_coordinator *coordinator, int rank)
{
    const gr_membership *membership = &coordinator->membership;
    return rank >= 0 && rank < membership->world_size ? (int)membership->members[rank].state : 0;
}

int gr_coordinator_joined(const gr_coordinator *coordinator)
{
    return coordinator->membership.joined;
}

bool gr_coordinator_waits_for(const gr_coordinator *coordinator, int rank)
{
    const gr_membership *membership = &coordinator->membership;
    const gr_standing *of = &membership->members[rank];
    bool late =
        membership->disturbed ? of->stage != GR_STAGE_RENEWING : of->stage == GR_STAGE_ASSIGNED;
    return of->state == GR_MEMBER_JOINED && late &&
           (membership->generation + membership->disturbed > 1 || of->joining);
}

uint64_t gr_coordinator_pending(const gr_coordinator *coordinator)
{
    return gr_acceptor_pending(coordinator->acceptor);
}
