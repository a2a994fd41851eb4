/* SPDX-License-Identifier: Apache-2.0 */

/* A connection is in one of these states:
 *
 *   READING ──an empty line has come──► WRITING ──all is written──► closed
 *      └──────────too long, too late, gone───────────────────────────┘ */

#include "operator/serve/web.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 64, WHERE_BYTES = 512, ADDRESS_BYTES = 256, EVENTS_AT_ONCE = 32 };
enum { CONNECTIONS = GR_WEB_CONNECTIONS_MAX, LISTENERS = GR_WEB_ADDRESSES_MAX };

typedef struct web_connection {
    int fd; /* -1: free */
    int64_t due_us;
    char request[GR_WEB_REQUEST_BYTES];
    size_t request_bytes;
    char *answer; /* WRITING; NULL: READING */
    size_t answer_bytes, written_bytes;
} web_connection;

struct gr_web {
    int epoll_fd;
    int spare_fd; /* is given up for a client that there is no descriptor for; -1: none */
    const gr_web_page *pages;
    void *arg;
    int listeners[LISTENERS]; /* in epoll: CONNECTIONS and on */
    int listener_count;
    char where[WHERE_BYTES];
    web_connection connections[CONNECTIONS]; /* in epoll: 0 and on */
};

/* ---- Listening ------------------------------------------------------------------------------- */
/* Splits it in place. False: it is no address. */
static bool split(char *address, const char **host_out, const char **port_out)
{
    char *colon = strrchr(address, ':');
    if (colon == NULL || colon[1] == '\0' || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5 || atoi(colon + 1) > UINT16_MAX) {
        return false;
    }
    *colon = '\0';
    *port_out = colon + 1;
    size_t length = strlen(address);
    if (address[0] == '[' && address[length - 1] == ']') {
        address[length - 1] = '\0';
        address++;
    }
    *host_out = address[0] != '\0' ? address : NULL;
    return true;
}

static int listen_at(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1, off = 0;
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at->ai_family == AF_INET6) { /* all addresses are those of IPv4 as well */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static bool await(gr_web *web, int fd, int index, uint32_t what, int how)
{
    struct epoll_event event = {.events = what, .data.u32 = (uint32_t)index};
    return epoll_ctl(web->epoll_fd, how, fd, &event) == 0;
}

static void note_where(gr_web *web, int fd)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char host[ADDRESS_BYTES] = "", port[16] = "";
    size_t used = strlen(web->where);
    (void)getsockname(fd, (struct sockaddr *)&at, &size);
    (void)getnameinfo((struct sockaddr *)&at, size, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    bool is_v6 = strchr(host, ':') != NULL;
    snprintf(web->where + used, sizeof web->where - used, "%s%s%s%s:%s", used > 0 ? ", " : "",
             is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

static gr_status listen_on(gr_web *web, const char *address, gr_diag *diag)
{
    char text[ADDRESS_BYTES];
    const char *host, *port;
    struct addrinfo *found = NULL;
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(text, sizeof text, "%s", address);
    if (strlen(address) >= sizeof text || !split(text, &host, &port)) {
        return gr_fail(diag, GR_E_INVALID,
                       "\"%.100s\" is no address to listen at: it is HOST:PORT or :PORT, or 0 for "
                       "none",
                       address);
    }
    int error = getaddrinfo(host, port, &wanted, &found);
    if (error != 0) {
        return gr_fail(diag, GR_E_INVALID, "cannot listen at \"%.100s\": %s", address,
                       gai_strerror(error));
    }
    int fd = -1;
    for (int family = AF_INET6; fd < 0 && family >= 0; family -= AF_INET6) { /* IPv6, then any */
        for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
            if (family != AF_INET6 || at->ai_family == AF_INET6) {
                fd = listen_at(at);
                error = errno;
            }
        }
    }
    freeaddrinfo(found);
    if (fd < 0 || !await(web, fd, CONNECTIONS + web->listener_count, EPOLLIN, EPOLL_CTL_ADD)) {
        return gr_fail(diag, GR_E_INVALID, "cannot listen at \"%.100s\": %s", address,
                       strerror(fd < 0 ? error : errno));
    }
    web->listeners[web->listener_count++] = fd;
    note_where(web, fd);
    return GR_OK;
}

gr_status gr_web_open(const char *const *addresses, const gr_web_page *pages, void *arg,
                      gr_web **web_out, gr_diag *diag)
{
    gr_web *web = calloc(1, sizeof *web);
    if (web == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the pages of the operator");
    }
    web->pages = pages;
    web->arg = arg;
    for (int i = 0; i < CONNECTIONS; i++) {
        web->connections[i].fd = -1;
    }
    web->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    web->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    gr_status status =
        web->epoll_fd >= 0
            ? GR_OK
            : gr_fail(diag, GR_E_IO, "cannot wait for connections: %s", strerror(errno));
    for (size_t i = 0; addresses[i] != NULL && status == GR_OK; i++) {
        size_t before = 0;
        while (before < i && strcmp(addresses[before], addresses[i]) != 0) {
            before++;
        }
        if (before == i && strcmp(addresses[i], "0") != 0) {
            status = listen_on(web, addresses[i], diag);
        }
    }
    if (status != GR_OK) {
        gr_web_close(web);
        return status;
    }
    *web_out = web;
    return GR_OK;
}

/* ---- Connections ----------------------------------------------------------------------------- */
static void drop(web_connection *one)
{
    if (one->fd >= 0) {
        close(one->fd); /* epoll forgets it */
    }
    free(one->answer);
    one->answer = NULL;
    one->fd = -1;
}

void gr_web_close(gr_web *web)
{
    if (web == NULL) {
        return;
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        drop(&web->connections[i]);
    }
    for (int i = 0; i < web->listener_count; i++) {
        close(web->listeners[i]);
    }
    int *const fds[] = {&web->epoll_fd, &web->spare_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
        }
    }
    free(web);
}

const char *gr_web_where(const gr_web *web)
{
    return web->where;
}

int gr_web_fd(const gr_web *web)
{
    return web->epoll_fd;
}

/* NULL: there is none. */
static web_connection *oldest_of(gr_web *web)
{
    web_connection *oldest = NULL;
    for (int i = 0; i < CONNECTIONS; i++) {
        web_connection *one = &web->connections[i];
        if (one->fd >= 0 && (oldest == NULL || one->due_us < oldest->due_us)) {
            oldest = one;
        }
    }
    return oldest;
}

/* A free one, else the oldest. */
static int find_place(gr_web *web)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        if (web->connections[i].fd < 0) {
            return i;
        }
    }
    web_connection *oldest = oldest_of(web);
    drop(oldest);
    return (int)(oldest - web->connections);
}

static int accept_one(int listener)
{
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* The process has no descriptor left: the oldest client makes room for the new one, and where there
 * is none the new one is turned away. Else the listener would stay readable, and this process would
 * do nothing but look. */
static int accept_without_room(gr_web *web, int listener)
{
    web_connection *oldest = oldest_of(web);
    if (oldest != NULL) {
        drop(oldest);
        return accept_one(listener);
    }
    if (web->spare_fd >= 0) {
        close(web->spare_fd);
        int fd = accept_one(listener);
        if (fd >= 0) {
            close(fd);
        }
    }
    web->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return -1;
}

static void take(gr_web *web, int listener, int64_t now_us)
{
    int fd = accept_one(listener);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        fd = accept_without_room(web, listener);
    }
    if (fd < 0) {
        return;
    }
    int place = find_place(web);
    web_connection *one = &web->connections[place];
    one->fd = fd;
    one->due_us = now_us + GR_WEB_PATIENCE_US;
    one->request_bytes = 0;
    if (!await(web, fd, place, EPOLLIN, EPOLL_CTL_ADD)) {
        drop(one);
    }
}

static const char *name_of(int code)
{
    switch (code) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    default:
        return "Internal Server Error";
    }
}

/* Takes the text over; NULL: there was no memory for it. */
static void answer(web_connection *one, int code, const char *type, char *text, bool only_head)
{
    size_t size_bytes = 0;
    FILE *file = open_memstream(&one->answer, &size_bytes);
    code = text != NULL ? code : 500;
    if (file != NULL) {
        fprintf(file,
                "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                "Connection: close\r\n\r\n%s",
                code, name_of(code), type, text != NULL ? strlen(text) : 0,
                text != NULL && !only_head ? text : "");
        if (fclose(file) != 0) {
            free(one->answer);
            one->answer = NULL;
        }
    }
    free(text);
    one->answer_bytes = size_bytes;
    one->written_bytes = 0;
}

static void refuse(web_connection *one, int code)
{
    char text[64];
    snprintf(text, sizeof text, "%s\n", name_of(code));
    answer(one, code, "text/plain", strdup(text), false);
}

/* Bytes of pages that clients have not read yet. */
static size_t held(const gr_web *web)
{
    size_t held_bytes = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        const web_connection *one = &web->connections[i];
        held_bytes += one->fd >= 0 && one->answer != NULL ? one->answer_bytes : 0;
    }
    return held_bytes;
}

/* The request is there as a whole. */
static void obey(gr_web *web, web_connection *one)
{
    char *method = one->request, *rest = NULL;
    method[strcspn(method, "\r\n")] = '\0';
    method = strtok_r(method, " ", &rest);
    char *path = method != NULL ? strtok_r(NULL, " ", &rest) : NULL;
    const char *version = path != NULL ? strtok_r(NULL, " ", &rest) : NULL;
    if (version == NULL || strncmp(version, "HTTP/1.", 7) != 0) {
        refuse(one, 400);
        return;
    }
    bool only_head = strcmp(method, "HEAD") == 0;
    if (strcmp(method, "GET") != 0 && !only_head) {
        refuse(one, 405);
        return;
    }
    path[strcspn(path, "?")] = '\0';
    const gr_web_page *page = web->pages;
    while (page->path != NULL && strcmp(page->path, path) != 0) {
        page++;
    }
    if (page->path == NULL) {
        refuse(one, 404);
        return;
    }
    int code = 200;
    char *text = page->print(web->arg, &code);
    if (text != NULL && strlen(text) > GR_WEB_REQUEST_BYTES && held(web) > GR_WEB_HELD_BYTES) {
        free(text);
        refuse(one, 503);
        return;
    }
    answer(one, code, page->type, text, only_head);
}

/* False: the connection is over. */
static bool read_more(gr_web *web, web_connection *one)
{
    size_t room = sizeof one->request - 1 - one->request_bytes;
    ssize_t got = recv(one->fd, one->request + one->request_bytes, room, 0);
    if (got <= 0) {
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
    one->request_bytes += (size_t)got;
    one->request[one->request_bytes] = '\0';
    if (strlen(one->request) < one->request_bytes) {
        refuse(one, 400);
    } else if (strstr(one->request, "\r\n\r\n") != NULL || strstr(one->request, "\n\n") != NULL) {
        obey(web, one);
    } else if (one->request_bytes == sizeof one->request - 1) {
        refuse(one, 431);
    } else {
        return true;
    }
    int place = (int)(one - web->connections);
    return one->answer != NULL && await(web, one->fd, place, EPOLLOUT, EPOLL_CTL_MOD);
}

static bool write_more(web_connection *one)
{
    ssize_t put = send(one->fd, one->answer + one->written_bytes,
                       one->answer_bytes - one->written_bytes, MSG_NOSIGNAL);
    if (put < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    one->written_bytes += (size_t)put;
    return one->written_bytes < one->answer_bytes;
}

static void go_on(gr_web *web, web_connection *one)
{
    bool is_alive = one->answer != NULL || read_more(web, one);
    if (is_alive && one->answer != NULL) {
        is_alive = write_more(one);
    }
    if (!is_alive) {
        drop(one);
    }
}

int64_t gr_web_run(gr_web *web, int64_t now_us)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int count = epoll_wait(web->epoll_fd, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        int index = (int)events[i].data.u32;
        if (index < CONNECTIONS && web->connections[index].fd >= 0) {
            go_on(web, &web->connections[index]);
        }
    }
    for (int i = 0; i < count; i++) { /* last: an event of before is not one of a new connection */
        if (events[i].data.u32 >= CONNECTIONS) {
            take(web, web->listeners[events[i].data.u32 - CONNECTIONS], now_us);
        }
    }
    int64_t due_us = GR_NEVER;
    for (int i = 0; i < CONNECTIONS; i++) {
        web_connection *one = &web->connections[i];
        if (one->fd >= 0 && one->due_us <= now_us) {
            drop(one);
        }
        due_us = one->fd >= 0 ? gr_earlier_us(due_us, one->due_us) : due_us;
    }
    return due_us;
}
