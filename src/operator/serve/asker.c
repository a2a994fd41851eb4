/* SPDX-License-Identifier: Apache-2.0 */

/* A question is in one of these states:
 *
 *   CONNECTING ──connected: the request is sent──► READING ──the other side has ended──► done
 *        └──────────────too late, too long, refused────┴──────────────────────────────────┘ */

#include "operator/serve/asker.h"

#include "base/clock.h"
#include "base/fail.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QUESTIONS = GR_ASKER_QUESTIONS_MAX, REQUEST_BYTES = 512 };

typedef struct asker_call {
    int fd; /* -1: free */
    bool is_reading;
    int64_t due_us;
    gr_question question;
    char answer[GR_ASKER_ANSWER_BYTES];
    size_t answer_bytes;
} asker_call;

struct gr_asker {
    int epoll_fd;
    gr_asker_done *done;
    void *arg;
    int count; /* on their way */
    asker_call calls[QUESTIONS];
};

gr_status gr_asker_create(gr_asker_done *done, void *arg, gr_asker **asker_out, gr_diag *diag)
{
    gr_asker *asker = calloc(1, sizeof *asker);
    if (asker == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to ask workers");
    }
    asker->done = done;
    asker->arg = arg;
    for (int i = 0; i < QUESTIONS; i++) {
        asker->calls[i].fd = -1;
    }
    asker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (asker->epoll_fd < 0) {
        int error = errno;
        free(asker);
        return gr_fail(diag, GR_E_IO, "cannot wait for the answers of workers: %s",
                       strerror(error));
    }
    *asker_out = asker;
    return GR_OK;
}

static void end(gr_asker *asker, asker_call *call, const char *body, size_t size_bytes)
{
    close(call->fd); /* epoll forgets it */
    call->fd = -1;
    asker->count--;
    asker->done(asker->arg, &call->question, body, size_bytes);
}

void gr_asker_destroy(gr_asker *asker)
{
    if (asker == NULL) {
        return;
    }
    for (int i = 0; i < QUESTIONS; i++) {
        if (asker->calls[i].fd >= 0) {
            end(asker, &asker->calls[i], NULL, 0);
        }
    }
    close(asker->epoll_fd);
    free(asker);
}

bool gr_asker_is_free(const gr_asker *asker)
{
    return asker->count < QUESTIONS;
}

int gr_asker_fd(const gr_asker *asker)
{
    return asker->epoll_fd;
}

/* ---- Connecting ------------------------------------------------------------------------------ */
/* 0: it is no address. */
static socklen_t read_address(const gr_question *question, struct sockaddr_storage *at_out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)at_out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at_out;
    in_port_t port = htons((uint16_t)question->port);
    *at_out = (struct sockaddr_storage){0};
    if (question->port < 1 || question->port > UINT16_MAX) {
        return 0;
    }
    if (inet_pton(AF_INET, question->address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = port;
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, question->address, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = port;
        return sizeof *v6;
    }
    return 0;
}

/* -1: nobody can be asked. */
static int begin_connection(gr_asker *asker, const gr_question *question, int index)
{
    struct sockaddr_storage at;
    struct epoll_event event = {.events = EPOLLOUT, .data.u32 = (uint32_t)index};
    socklen_t size = read_address(question, &at);
    int fd = size > 0 ? socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0) {
        return -1;
    }
    if ((connect(fd, (struct sockaddr *)&at, size) != 0 && errno != EINPROGRESS) ||
        epoll_ctl(asker->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

void gr_asker_ask(gr_asker *asker, const gr_question *question, int64_t now_us)
{
    int i = 0;
    while (asker->calls[i].fd >= 0) {
        i++;
    }
    asker_call *call = &asker->calls[i];
    call->fd = begin_connection(asker, question, i);
    if (call->fd < 0) {
        asker->done(asker->arg, question, NULL, 0);
        return;
    }
    call->is_reading = false;
    call->due_us = now_us + GR_ASKER_PATIENCE_US;
    call->question = *question;
    call->answer_bytes = 0;
    asker->count++;
}

/* ---- Question and answer --------------------------------------------------------------------- */
/* A request fits into a new connection's buffer. False: it is over. */
static bool send_request(gr_asker *asker, asker_call *call)
{
    char request[REQUEST_BYTES];
    const gr_question *question = &call->question;
    bool is_v6 = strchr(question->address, ':') != NULL;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(call - asker->calls)};
    int length = snprintf(
        request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s%s%s:%d\r\nConnection: close\r\n\r\n",
        question->path, is_v6 ? "[" : "", question->address, is_v6 ? "]" : "", question->port);
    call->is_reading = true;
    return send(call->fd, request, (size_t)length, MSG_NOSIGNAL) == length &&
           epoll_ctl(asker->epoll_fd, EPOLL_CTL_MOD, call->fd, &event) == 0;
}

/* The other side has ended. */
static void read_answer(gr_asker *asker, asker_call *call)
{
    static const char good[] = "HTTP/1.1 200 ", empty[] = "\r\n\r\n";
    const char *end_of_head = memmem(call->answer, call->answer_bytes, empty, sizeof empty - 1);
    if (call->answer_bytes < sizeof good || end_of_head == NULL ||
        memcmp(call->answer, good, sizeof good - 1) != 0) {
        end(asker, call, NULL, 0);
        return;
    }
    const char *body = end_of_head + sizeof empty - 1;
    end(asker, call, body, call->answer_bytes - (size_t)(body - call->answer));
}

static void read_more(gr_asker *asker, asker_call *call)
{
    size_t room = sizeof call->answer - call->answer_bytes;
    ssize_t got = room > 0 ? recv(call->fd, call->answer + call->answer_bytes, room, 0) : -1;
    if (got > 0) {
        call->answer_bytes += (size_t)got;
    } else if (got == 0) {
        read_answer(asker, call);
    } else if (room == 0 || (errno != EAGAIN && errno != EINTR)) {
        end(asker, call, NULL, 0);
    }
}

int64_t gr_asker_run(gr_asker *asker, int64_t now_us)
{
    struct epoll_event events[QUESTIONS];
    int count = epoll_wait(asker->epoll_fd, events, QUESTIONS, 0);
    for (int i = 0; i < count; i++) {
        asker_call *call = &asker->calls[events[i].data.u32];
        if (call->is_reading) {
            read_more(asker, call);
        } else if (!send_request(asker, call)) {
            end(asker, call, NULL, 0);
        }
    }
    int64_t due_us = GR_NEVER;
    for (int i = 0; i < QUESTIONS; i++) {
        asker_call *call = &asker->calls[i];
        if (call->fd >= 0 && call->due_us <= now_us) {
            end(asker, call, NULL, 0);
        }
        due_us = call->fd >= 0 ? gr_earlier_us(due_us, call->due_us) : due_us;
    }
    return due_us;
}
