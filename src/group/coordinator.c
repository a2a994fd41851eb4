/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "group/control.h"
#include "group/group.h"
#include "link/door.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAG_DOOR UINT64_MAX

enum {
    EVENTS_A_TURN = 64,
    TURNS_MAX = 64, /* of one progress, so that nobody can keep the launcher in it */
    HALF_OPEN_MAX = 256,
    HANDSHAKE_TIMEOUT_US = 5000000
};

/* What a member is, in the order in which it comes to be it. */
typedef enum member_state {
    MEMBER_ABSENT = 0, /* also: connected, but has not said HELLO */
    MEMBER_JOINED = 1,
    MEMBER_LEFT = 2, /* in order */
    MEMBER_LOST = 3  /* its connection broke, or it ended without a word */
} member_state;

/* Where a member that has joined is on its way into a generation. */
typedef enum member_stage {
    STAGE_CALLED = 0, /* has said HELLO */
    STAGE_READY,      /* linked to all others: a death is not this connection's news any more */
    STAGE_RENEWING,   /* its generation is broken, it waits for a seat in the next one */
    STAGE_SEATED      /* has one, and is to say HELLO */
} member_stage;

typedef struct member {
    member_state state;
    member_stage stage;
    int rank; /* in the generation that is, or comes about */
    gr_control control;
    gr_hello hello;
    uint8_t in[GR_MESSAGE_SMALL_MAX];
} member;

struct gr_coordinator {
    int world_size;  /* of the first generation: as many members are known */
    int members_min; /* a generation has at least so many */
    const gr_log *log;
    gr_door *door;
    int epoll_fd;
    int joined;          /* in the first generation */
    uint64_t generation; /* that is, or comes about: from 1 */
    int size, called;    /* its members, and those of them that have said HELLO */
    bool disturbed;      /* it will not come about, or is broken: the next one is waited for */
    gr_diag failure;     /* why there will be none any more; sent to whoever comes later */
    uint8_t *members_message;
    gr_member *places; /* of its members by rank, as they are told */
    member members[];  /* by number: the rank in the first generation */
};

static int number_of(const gr_coordinator *coordinator, const member *of)
{
    return (int)(of - coordinator->members);
}

static bool elastic(const gr_coordinator *coordinator)
{
    return coordinator->members_min < coordinator->world_size;
}

/* ---- Telling --------------------------------------------------------------------------------- */

static void lose(gr_coordinator *coordinator, member *of, const char *why);

static void flush(gr_coordinator *coordinator, member *to)
{
    if (to->control.fd >= 0 && gr_control_flush(&to->control) == GR_E_PEER_LOST) {
        lose(coordinator, to, "its connection broke");
    }
}

static void tell(gr_coordinator *coordinator, member *to, const uint8_t *message, size_t size_bytes)
{
    if (to->control.fd < 0) {
        return;
    }
    if (gr_control_put(&to->control, message, size_bytes) != GR_OK) {
        lose(coordinator, to, "it does not read what it is told");
        return;
    }
    flush(coordinator, to);
}

static void tell_waiting(gr_coordinator *coordinator, const uint8_t *message, size_t size_bytes)
{
    for (int rank = 0; rank < coordinator->world_size; rank++) {
        member *to = &coordinator->members[rank];
        if (to->state == MEMBER_JOINED && to->stage != STAGE_READY) {
            tell(coordinator, to, message, size_bytes);
        }
    }
}

/* The group cannot come about: all that wait for it are told the first reason. */
static void fail_group_as(gr_coordinator *coordinator, const gr_diag *failure)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    if (coordinator->failure.status != GR_OK) {
        return;
    }
    coordinator->failure = *failure;
    gr_log_write(coordinator->log, GR_LOG_DEBUG, "group", "%s", failure->text);
    tell_waiting(coordinator, message, gr_message_put_fail(failure, message));
}

static void fail_group(gr_coordinator *coordinator, int rank, const char *sentence)
{
    gr_diag failure;
    (void)gr_fail_peer(&failure, GR_E_PEER_LOST, rank, "%s", sentence);
    fail_group_as(coordinator, &failure);
}

/* The generation that comes about will not: its members ask for seats in the next one. */
static void disturb(gr_coordinator *coordinator, const gr_diag *cause)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    size_t size = gr_message_put_fail(cause, message);
    coordinator->disturbed = true;
    for (int i = 0; i < coordinator->world_size; i++) {
        member *to = &coordinator->members[i];
        if (to->state == MEMBER_JOINED &&
            (to->stage == STAGE_CALLED || to->stage == STAGE_SEATED)) {
            tell(coordinator, to, message, size);
        }
    }
}

static void too_few(gr_coordinator *coordinator, int alive)
{
    gr_diag failure;
    (void)gr_fail(&failure, GR_E_COMM_BROKEN,
                  "%d of %d workers are left, fewer than the %d that the job needs to go on "
                  "(--min-workers)",
                  alive, coordinator->world_size, coordinator->members_min);
    fail_group_as(coordinator, &failure);
}

/* The next generation, once all that live have asked for it. */
static void reseat(gr_coordinator *coordinator)
{
    int alive = 0;
    for (int i = 0; i < coordinator->world_size; i++) {
        const member *of = &coordinator->members[i];
        if (of->state == MEMBER_ABSENT ||
            (of->state == MEMBER_JOINED && of->stage != STAGE_RENEWING)) {
            return;
        }
        alive += of->state == MEMBER_JOINED;
    }
    if (alive == 0) {
        return;
    }
    if (alive < coordinator->members_min) {
        too_few(coordinator, alive);
        return;
    }
    coordinator->generation++;
    coordinator->size = alive;
    coordinator->called = 0;
    coordinator->disturbed = false;
    gr_seat seat = {.generation = coordinator->generation, .world_size = (uint32_t)alive};
    for (int i = 0; i < coordinator->world_size && !coordinator->disturbed; i++) {
        member *of = &coordinator->members[i];
        if (of->state == MEMBER_JOINED) {
            uint8_t message[GR_MESSAGE_SMALL_MAX];
            of->rank = (int)seat.rank;
            of->stage = STAGE_SEATED;
            tell(coordinator, of, message, gr_message_put_seat(&seat, message));
            seat.rank++;
        }
    }
    gr_log_write(coordinator->log, GR_LOG_DEBUG, "group", "generation %llu has %d members",
                 (unsigned long long)coordinator->generation, alive);
}

static void close_member(member *of)
{
    gr_control_close(&of->control); /* which takes it out of the epoll as well */
}

static void lose(gr_coordinator *coordinator, member *of, const char *why)
{
    char sentence[GR_DIAG_TEXT_BYTES];
    close_member(of);
    if (of->state != MEMBER_JOINED) {
        return; /* it had not called in: it may try again */
    }
    of->state = MEMBER_LOST;
    snprintf(sentence, sizeof sentence, "rank %d (process %llu on host %s) died: %s",
             number_of(coordinator, of), (unsigned long long)of->hello.pid,
             of->hello.member.host_name, why);
    if (!elastic(coordinator)) {
        fail_group(coordinator, number_of(coordinator, of), sentence);
        return;
    }
    gr_diag cause;
    (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number_of(coordinator, of), "%s", sentence);
    disturb(coordinator, &cause);
    reseat(coordinator);
}

static void announce(gr_coordinator *coordinator)
{
    for (int i = 0; i < coordinator->world_size; i++) {
        const member *of = &coordinator->members[i];
        if (of->state == MEMBER_JOINED) {
            coordinator->places[of->rank] = of->hello.member;
        }
    }
    size_t size = gr_message_put_members(coordinator->generation, coordinator->size,
                                         coordinator->places, coordinator->members_message);
    for (int i = 0; i < coordinator->world_size; i++) {
        member *to = &coordinator->members[i];
        if (to->control.fd >= 0) {
            gr_control_put_bulk(&to->control, coordinator->members_message, size);
            flush(coordinator, to);
        }
    }
    gr_log_write(coordinator->log, GR_LOG_DEBUG, "group", "all %d ranks have called in",
                 coordinator->size);
}

/* ---- Listening ------------------------------------------------------------------------------- */

static void refuse(int fd, const char *sentence, int rank)
{
    gr_diag failure;
    uint8_t message[GR_MESSAGE_SMALL_MAX], rest[GR_MESSAGE_SMALL_MAX];
    (void)gr_fail_peer(&failure, GR_E_INVALID, rank, "%s", sentence);
    size_t size = gr_message_put_fail(&failure, message);
    /* Closing with unread bytes would reset the connection and lose the sentence. */
    if (send(fd, message, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size) {
        shutdown(fd, SHUT_WR);
        while (recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {
        }
    }
    close(fd);
}

static void welcome(gr_coordinator *coordinator, const gr_arrival *arrival)
{
    int rank = arrival->peer_rank;
    member *of = &coordinator->members[rank];
    char sentence[GR_DIAG_TEXT_BYTES];
    if (of->state != MEMBER_ABSENT || of->control.fd >= 0) {
        snprintf(
            sentence, sizeof sentence,
            "rank %d has called in already (process %llu on host %s): a process joins once, and "
            "no two have the same GRADUS_RANK",
            rank, (unsigned long long)of->hello.pid, of->hello.member.host_name);
        gr_log_write(coordinator->log, GR_LOG_WARN, "group", "%s", sentence);
        refuse(arrival->fd, sentence, rank);
        return;
    }
    gr_control_init(&of->control, arrival->fd, of->in, sizeof of->in);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.u64 = (uint64_t)rank};
    if (epoll_ctl(coordinator->epoll_fd, EPOLL_CTL_ADD, arrival->fd, &event) != 0) {
        lose(coordinator, of, "its connection cannot be watched");
    }
}

static void say_hello(gr_coordinator *coordinator, member *of, const gr_hello *hello)
{
    int rank = number_of(coordinator, of);
    char sentence[GR_DIAG_TEXT_BYTES] = "";
    bool first = of->state == MEMBER_ABSENT;
    of->state = MEMBER_JOINED;
    of->stage = STAGE_CALLED;
    of->hello = *hello;
    coordinator->joined += first;
    for (int other = 0; other < coordinator->world_size; other++) {
        const member *to = &coordinator->members[other];
        if (to->state == MEMBER_JOINED && to->hello.link != hello->link) {
            snprintf(
                sentence, sizeof sentence,
                "rank %d (host %s) wants %s links and rank %d %s: set GRADUS_LINK alike for all",
                rank, hello->member.host_name, gr_link_choice_name(hello->link), other,
                gr_link_choice_name(to->hello.link));
            break;
        }
    }
    int wanted = first ? coordinator->world_size : coordinator->size;
    if (hello->world_size != (uint32_t)wanted) {
        snprintf(sentence, sizeof sentence,
                 "rank %d counts %u ranks, the job has %d: GRADUS_WORLD_SIZE is wrong there", rank,
                 hello->world_size, wanted);
    }
    if (sentence[0] != '\0') {
        fail_group(coordinator, rank, sentence);
    } else if (coordinator->failure.status != GR_OK) {
        uint8_t message[GR_MESSAGE_SMALL_MAX];
        tell(coordinator, of, message, gr_message_put_fail(&coordinator->failure, message));
    } else if (coordinator->disturbed || (first && coordinator->generation > 1)) {
        gr_diag cause;
        (void)gr_fail(&cause, GR_E_PEER_LOST, "another member died while this one came");
        disturb(coordinator, &cause);
    } else if (++coordinator->called == coordinator->size) {
        announce(coordinator);
    }
}

static void tell_missing(gr_coordinator *coordinator, member *to)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    gr_missing missing = {0};
    for (int rank = 0; rank < coordinator->world_size; rank++) {
        const member *of = &coordinator->members[rank];
        bool waited_for =
            of->state == MEMBER_ABSENT ||
            (of->state == MEMBER_JOINED && coordinator->disturbed && of->stage == STAGE_READY);
        if (waited_for) {
            if (missing.listed < GR_MISSING_LISTED_MAX) {
                missing.ranks[missing.listed++] = (uint32_t)rank;
            }
            missing.total++;
        }
    }
    tell(coordinator, to, message, gr_message_put_missing(&missing, message));
}

/* A member could not be wired, or its operations failed. */
static void renew(gr_coordinator *coordinator, member *of)
{
    gr_diag cause;
    of->stage = STAGE_RENEWING;
    if (coordinator->failure.status != GR_OK) {
        uint8_t message[GR_MESSAGE_SMALL_MAX];
        tell(coordinator, of, message, gr_message_put_fail(&coordinator->failure, message));
        return;
    }
    if (!coordinator->disturbed) {
        (void)gr_fail_peer(&cause, GR_E_PEER_LOST, number_of(coordinator, of),
                           "rank %d (process %llu on host %s) has lost a peer",
                           number_of(coordinator, of), (unsigned long long)of->hello.pid,
                           of->hello.member.host_name);
        disturb(coordinator, &cause);
    }
    reseat(coordinator);
}

/* GR_OK: understood. */
static gr_status hear(gr_coordinator *coordinator, member *from, gr_message_kind kind,
                      const uint8_t *body, size_t body_bytes)
{
    gr_hello hello;
    gr_diag failure;
    bool seated = from->state == MEMBER_JOINED && from->stage == STAGE_SEATED;
    if (kind == GR_MESSAGE_HELLO && (from->state == MEMBER_ABSENT || seated)) {
        gr_status status = gr_message_get_hello(body, body_bytes, &hello, NULL);
        if (status == GR_OK) {
            say_hello(coordinator, from, &hello);
        }
        return status;
    }
    if (from->state != MEMBER_JOINED) {
        return GR_E_PROTOCOL;
    }
    switch (kind) {
    case GR_MESSAGE_ASK:
        tell_missing(coordinator, from);
        return GR_OK;
    case GR_MESSAGE_READY:
        from->stage = STAGE_READY;
        return GR_OK;
    case GR_MESSAGE_RENEW:
        if (!elastic(coordinator)) {
            return GR_E_PROTOCOL;
        }
        renew(coordinator, from);
        return GR_OK;
    case GR_MESSAGE_FAIL:
        if (from->stage == STAGE_READY ||
            gr_message_get_fail(body, body_bytes, &failure, NULL) != GR_OK) {
            return GR_E_PROTOCOL;
        }
        from->state = MEMBER_LOST;
        close_member(from);
        if (elastic(coordinator)) {
            disturb(coordinator, &failure);
            reseat(coordinator);
        } else {
            fail_group_as(coordinator, &failure);
        }
        return GR_OK;
    case GR_MESSAGE_LEAVE:
        from->state = MEMBER_LEFT;
        close_member(from);
        reseat(coordinator); /* the others may wait for its word */
        return GR_OK;
    default:
        return GR_E_PROTOCOL;
    }
}

static void listen_to(gr_coordinator *coordinator, member *from)
{
    gr_status status = GR_OK;
    flush(coordinator, from);
    while (status == GR_OK && from->control.fd >= 0) {
        gr_message_kind kind;
        const uint8_t *body;
        size_t body_bytes;
        status = gr_control_get(&from->control, &kind, &body, &body_bytes, NULL);
        if (status == GR_OK) {
            status = hear(coordinator, from, kind, body, body_bytes);
        }
    }
    if (status == GR_E_PEER_LOST) {
        lose(coordinator, from, "it ended without leaving the group");
    } else if (status < 0) {
        lose(coordinator, from, "it sent garbage to the coordinator");
    }
}

/* ---- Face ------------------------------------------------------------------------------------ */

static bool admit(void *coordinator_arg, int32_t rank, gr_auth_stream stream)
{
    const gr_coordinator *coordinator = coordinator_arg;
    return rank >= 0 && rank < coordinator->world_size && stream.count == 1;
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
            if (events[i].data.u64 != TAG_DOOR) {
                listen_to(coordinator, &coordinator->members[events[i].data.u64]);
            }
        }
        gr_status status = gr_door_progress(coordinator->door, diag);
        if (status != GR_OK) {
            return status;
        }
        gr_arrival arrival;
        bool arrived = false;
        while (gr_door_take(coordinator->door, &arrival)) {
            welcome(coordinator, &arrival);
            arrived = true;
        }
        if (count <= 0 && !arrived) {
            return GR_OK;
        }
    }
    return GR_OK;
}

gr_status gr_coordinator_create(const gr_coordinator_config *config, gr_coordinator **out,
                                gr_diag *diag)
{
    if (config->world_size < 1 || config->world_size > GR_GROUP_WORLD_MAX) {
        return gr_fail(diag, GR_E_INVALID, "a group has 1 to %d ranks, not %d", GR_GROUP_WORLD_MAX,
                       config->world_size);
    }
    size_t world = (size_t)config->world_size;
    gr_coordinator *coordinator = calloc(1, sizeof *coordinator + world * sizeof(member));
    if (coordinator == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a coordinator of %zu ranks", world);
    }
    coordinator->world_size = coordinator->size = config->world_size;
    coordinator->members_min = config->members_min > 0 ? config->members_min : config->world_size;
    coordinator->generation = 1;
    coordinator->log = config->log;
    for (size_t rank = 0; rank < world; rank++) {
        coordinator->members[rank].control.fd = -1;
        coordinator->members[rank].rank = (int)rank;
    }
    gr_diag_clear(&coordinator->failure);
    coordinator->places = calloc(world, sizeof *coordinator->places);
    coordinator->members_message = malloc(gr_message_members_max(config->world_size));
    coordinator->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    gr_status status = GR_OK;
    if (coordinator->places == NULL || coordinator->members_message == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu addresses", world);
    } else if (coordinator->epoll_fd < 0) {
        status = gr_fail(diag, GR_E_IO, "cannot create an epoll: %s", strerror(errno));
    } else {
        gr_door_config door = {.rank = GR_AUTH_RANK_COORDINATOR,
                               .secret = config->secret,
                               .listen_local = config->listen_host == NULL,
                               .listen_host = config->listen_host,
                               .ports = config->ports,
                               .half_open_max = HALF_OPEN_MAX,
                               .timeout_us = HANDSHAKE_TIMEOUT_US,
                               .clock = gr_clock_real(),
                               .log = config->log,
                               .admit = admit,
                               .admit_arg = coordinator};
        status = gr_door_create(&door, &coordinator->door, diag);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = TAG_DOOR};
    if (status == GR_OK && epoll_ctl(coordinator->epoll_fd, EPOLL_CTL_ADD,
                                     gr_door_fd(coordinator->door), &event) != 0) {
        status = gr_fail(diag, GR_E_IO, "cannot watch the door: %s", strerror(errno));
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
    for (int rank = 0; rank < coordinator->world_size; rank++) {
        close_member(&coordinator->members[rank]);
    }
    gr_door_destroy(coordinator->door);
    if (coordinator->epoll_fd >= 0) {
        close(coordinator->epoll_fd);
    }
    free(coordinator->members_message);
    free(coordinator->places);
    free(coordinator);
}

const char *gr_coordinator_address(const gr_coordinator *coordinator)
{
    return gr_door_address(coordinator->door);
}

int gr_coordinator_fd(const gr_coordinator *coordinator)
{
    return coordinator->epoll_fd;
}

int64_t gr_coordinator_next_us(const gr_coordinator *coordinator)
{
    return gr_door_next_us(coordinator->door);
}

void gr_coordinator_member_ended(gr_coordinator *coordinator, int rank)
{
    member *of = &coordinator->members[rank];
    if (!elastic(coordinator) || of->state == MEMBER_LEFT || of->state == MEMBER_LOST) {
        return;
    }
    listen_to(coordinator, of); /* it may have left in order */
    if (of->state == MEMBER_JOINED) {
        lose(coordinator, of, "its process ended");
    } else if (of->state == MEMBER_ABSENT) {
        close_member(of);
        of->state = MEMBER_LOST;
        coordinator->disturbed = true;
        gr_diag cause;
        (void)gr_fail_peer(&cause, GR_E_PEER_LOST, rank, "rank %d ended before it called in", rank);
        disturb(coordinator, &cause);
        reseat(coordinator);
    }
}

int gr_coordinator_member_state(const gr_coordinator *coordinator, int rank)
{
    return rank >= 0 && rank < coordinator->world_size ? (int)coordinator->members[rank].state : 0;
}

int gr_coordinator_joined(const gr_coordinator *coordinator)
{
    return coordinator->joined;
}
