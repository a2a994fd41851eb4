/* SPDX-License-Identifier: Apache-2.0 */
#include "link/address.h"

#include "base/fail.h"
#include "base/hash.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 4096, NAME_RANDOM_BYTES = 12, HOST_BYTES = 100 };

static int open_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

/* The length that makes an abstract name exactly `name`, without trailing zeros. */
static socklen_t abstract_address(const char *name, struct sockaddr_un *at)
{
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    size_t size = strlen(name);
    memcpy(at->sun_path + 1, name, size);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
}

static gr_status listen_unix(char address_out[GR_ADDRESS_BYTES], int *fd_out, gr_diag *diag)
{
    uint8_t random[NAME_RANDOM_BYTES];
    char hex[2 * NAME_RANDOM_BYTES + 1], name[64];
    gr_status status = gr_random_bytes(random, sizeof random, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_hex(random, sizeof random, hex);
    snprintf(name, sizeof name, "gradus-%s", hex);
    struct sockaddr_un at;
    socklen_t size = abstract_address(name, &at);
    int fd = open_socket(AF_UNIX);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        if (fd >= 0) {
            close(fd);
        }
        return gr_fail(diag, GR_E_IO, "cannot listen on a Unix socket: %s", strerror(error));
    }
    snprintf(address_out, GR_ADDRESS_BYTES, "unix:@%s", name);
    *fd_out = fd;
    return GR_OK;
}

static gr_status listen_tcp(const char *host, char address_out[GR_ADDRESS_BYTES], int *fd_out,
                            gr_diag *diag)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int error = getaddrinfo(host, "0", &hints, &found);
    if (error != 0) {
        return gr_fail(diag, GR_E_INVALID, "cannot listen on host \"%s\": %s", host,
                       gai_strerror(error));
    }
    char numeric[HOST_BYTES], port[16];
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    int fd = open_socket(found->ai_family);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) != 0 ||
        getnameinfo((struct sockaddr *)&at, size, numeric, sizeof numeric, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        error = errno;
        freeaddrinfo(found);
        if (fd >= 0) {
            close(fd);
        }
        return gr_fail(diag, GR_E_IO, "cannot listen on host \"%s\": %s", host, strerror(error));
    }
    freeaddrinfo(found);
    bool six = strchr(numeric, ':') != NULL;
    snprintf(address_out, GR_ADDRESS_BYTES, "tcp:%s%s%s:%s", six ? "[" : "", numeric,
             six ? "]" : "", port);
    *fd_out = fd;
    return GR_OK;
}

gr_status gr_address_listen(const char *host, char address_out[GR_ADDRESS_BYTES], int *fd_out,
                            gr_diag *diag)
{
    return host == NULL ? listen_unix(address_out, fd_out, diag)
                        : listen_tcp(host, address_out, fd_out, diag);
}

static gr_status dial(int family, const struct sockaddr *at, socklen_t size, const char *address,
                      int *fd_out, gr_diag *diag)
{
    int fd = open_socket(family);
    if (fd < 0) {
        return gr_fail(diag, GR_E_IO, "cannot open a socket for %s: %s", address, strerror(errno));
    }
    if (family != AF_UNIX) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    if (connect(fd, at, size) == 0) {
        *fd_out = fd;
        return GR_OK;
    }
    int error = errno;
    if (error == EINPROGRESS) {
        *fd_out = fd;
        return GR_PENDING;
    }
    close(fd);
    if (error == EAGAIN || error == EINTR) {
        return gr_fail(diag, GR_E_AGAIN, "%s is busy", address);
    }
    if (error == ECONNREFUSED || error == ENOENT || error == ECONNRESET) {
        return gr_fail(diag, GR_E_PEER_LOST, "nobody listens at %s", address);
    }
    return gr_fail(diag, GR_E_IO, "cannot connect to %s: %s", address, strerror(error));
}

static gr_status malformed(const char *address, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID,
                   "\"%.128s\" is not an address; one reads tcp:HOST:PORT or unix:@NAME", address);
}

static gr_status dial_tcp(const char *address, int *fd_out, gr_diag *diag)
{
    char host[HOST_BYTES];
    const char *from = address + strlen("tcp:");
    const char *colon = strrchr(from, ':');
    if (colon == NULL || colon == from || colon[1] == '\0') {
        return malformed(address, diag);
    }
    size_t size = (size_t)(colon - from);
    if (from[0] == '[' && size > 2 && colon[-1] == ']') {
        from++;
        size -= 2;
    }
    if (size >= sizeof host) {
        return malformed(address, diag);
    }
    memcpy(host, from, size);
    host[size] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, colon + 1, &hints, &found);
    if (error == EAI_NONAME && strspn(colon + 1, "0123456789") != strlen(colon + 1)) {
        return malformed(address, diag);
    }
    if (error != 0) {
        return gr_fail(diag, error == EAI_AGAIN ? GR_E_AGAIN : GR_E_INVALID,
                       "cannot find the host of %s: %s", address, gai_strerror(error));
    }
    gr_status status =
        dial(found->ai_family, found->ai_addr, found->ai_addrlen, address, fd_out, diag);
    freeaddrinfo(found);
    return status;
}

gr_status gr_address_dial(const char *address, int *fd_out, gr_diag *diag)
{
    static const char unix_mark[] = "unix:@", tcp_mark[] = "tcp:";
    if (strlen(address) >= GR_ADDRESS_BYTES) {
        return malformed(address, diag);
    }
    if (strncmp(address, unix_mark, sizeof unix_mark - 1) == 0) {
        const char *name = address + sizeof unix_mark - 1;
        struct sockaddr_un at;
        if (name[0] == '\0' || strlen(name) >= sizeof at.sun_path - 1) {
            return malformed(address, diag);
        }
        socklen_t size = abstract_address(name, &at);
        return dial(AF_UNIX, (struct sockaddr *)&at, size, address, fd_out, diag);
    }
    if (strncmp(address, tcp_mark, sizeof tcp_mark - 1) == 0) {
        return dial_tcp(address, fd_out, diag);
    }
    return malformed(address, diag);
}

void gr_address_local_host(int fd, char *host_out, size_t size_bytes)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    bool known = getsockname(fd, (struct sockaddr *)&at, &size) == 0 && at.ss_family != AF_UNIX &&
                 getnameinfo((struct sockaddr *)&at, size, host_out, (socklen_t)size_bytes, NULL, 0,
                             NI_NUMERICHOST) == 0;
    if (!known) {
        snprintf(host_out, size_bytes, "127.0.0.1");
    }
}
