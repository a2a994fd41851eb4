/* SPDX-License-Identifier: Apache-2.0 */
#include "link/address.h"

#include "base/fail.h"
#include "base/fork.h"
#include "base/hash.h"
#include "link/socket.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    BACKLOG = 4096,
    NAME_RANDOM_BYTES = 12,
    PORT_DIGITS_MAX = 5 /* so that of an address that was cut no port is left either */
};

static const char unix_mark[] = "unix:@", tcp_mark[] = "tcp:";

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
    int fd = gr_fork_socket(AF_UNIX);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        gr_fork_close(fd);
        char why[GR_DESCRIPTORS_TEXT_BYTES];
        return gr_fail(diag, GR_E_IO, "cannot listen on a Unix socket: %s",
                       gr_descriptors_error(error, why));
    }
    snprintf(address_out, GR_ADDRESS_BYTES, "unix:@%s", name);
    *fd_out = fd;
    return GR_OK;
}

/* A socket at `at`, on the first port of the range that is free. -1: errno tells why. */
static int bind_tcp(const struct addrinfo *at, gr_ports ports, bool listens)
{
    struct sockaddr_storage to = {0};
    memcpy(&to, at->ai_addr, at->ai_addrlen);
    for (int port = ports.first; port <= ports.last; port++) {
        int fd = gr_fork_socket(at->ai_family), one = 1, zero = 0;
        if (fd < 0) {
            return -1;
        }
        if (at->ai_family == AF_INET6) {
            ((struct sockaddr_in6 *)&to)->sin6_port = htons((uint16_t)port);
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
        } else {
            ((struct sockaddr_in *)&to)->sin_port = htons((uint16_t)port);
        }
        /* Of a configured range each port is needed again right after a job has ended. */
        if (port != 0 && listens) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        }
        if (bind(fd, (struct sockaddr *)&to, at->ai_addrlen) == 0 &&
            (!listens || listen(fd, BACKLOG) == 0)) {
            return fd;
        }
        int error = errno;
        gr_fork_close(fd);
        errno = error;
        if (error != EADDRINUSE && error != EACCES) {
            return -1;
        }
    }
    return -1;
}

static gr_status no_listener(const char *host, gr_ports ports, int error, gr_diag *diag)
{
    if (ports.first != 0 && (error == EADDRINUSE || error == EACCES)) {
        return gr_fail(diag, GR_E_IO,
                       "cannot listen on host \"%s\": no port of %u-%u (GRADUS_PORTS) is %s; each "
                       "rank, each task of --roles and the coordinator need one",
                       host, ports.first, ports.last, error == EACCES ? "permitted" : "free");
    }
    char why[GR_DESCRIPTORS_TEXT_BYTES];
    return gr_fail(diag, GR_E_IO, "cannot listen on host \"%s\": %s", host,
                   gr_descriptors_error(error, why));
}

static gr_status listen_tcp(const char *host, gr_ports ports, char address_out[GR_ADDRESS_BYTES],
                            int *fd_out, gr_diag *diag)
{
    bool all = strcmp(host, "*") == 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int error = getaddrinfo(all ? "::" : host, "0", &hints, &found);
    if (error != 0) {
        return gr_fail(diag, GR_E_INVALID, "cannot listen on host \"%s\": %s", host,
                       gai_strerror(error));
    }
    char numeric[GR_HOST_BYTES], port[16];
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    int fd = bind_tcp(found, ports, true);
    freeaddrinfo(found);
    if (fd < 0 && all && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
        return listen_tcp("0.0.0.0", ports, address_out, fd_out, diag); /* a host without IPv6 */
    }
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&at, &size) != 0 ||
        getnameinfo((struct sockaddr *)&at, size, numeric, sizeof numeric, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        error = errno;
        gr_fork_close(fd);
        return no_listener(host, ports, error, diag);
    }
    bool six = strchr(numeric, ':') != NULL;
    snprintf(address_out, GR_ADDRESS_BYTES, "tcp:%s%s%s:%s", six ? "[" : "", numeric,
             six ? "]" : "", port);
    *fd_out = fd;
    return GR_OK;
}

gr_status gr_address_listen(const char *host, gr_ports ports, char address_out[GR_ADDRESS_BYTES],
                            int *fd_out, gr_diag *diag)
{
    return host == NULL ? listen_unix(address_out, fd_out, diag)
                        : listen_tcp(host, ports, address_out, fd_out, diag);
}

gr_status gr_address_reserve(gr_ports ports, int *fd_out, uint16_t *port_out, gr_diag *diag)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    const struct addrinfo all[] = {
        {.ai_family = AF_INET6, .ai_addr = (struct sockaddr *)&six, .ai_addrlen = sizeof six},
        {.ai_family = AF_INET, .ai_addr = (struct sockaddr *)&four, .ai_addrlen = sizeof four}};
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    int one = 1, fd = bind_tcp(&all[0], ports, false);
    if (fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
        fd = bind_tcp(&all[1], ports, false); /* a host without IPv6 */
    }
    /* After bind: two that say so before it get the same port as long as none listens. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        fcntl(fd, F_SETFD, 0) != 0 || getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
        int error = errno;
        gr_fork_close(fd);
        return no_listener("*", ports, error, diag);
    }
    *port_out = at.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&at)->sin6_port)
                                         : ntohs(((struct sockaddr_in *)&at)->sin_port);
    gr_fork_unguard(fd);
    *fd_out = fd;
    return GR_OK;
}

gr_status gr_ports_parse(const char *text, gr_ports *ports_out, gr_diag *diag)
{
    *ports_out = (gr_ports){0, 0};
    if (text == NULL || text[0] == '\0') {
        return GR_OK;
    }
    char *end = NULL;
    unsigned long first = isdigit((unsigned char)text[0]) ? strtoul(text, &end, 10) : 0;
    unsigned long last = first;
    if (end != NULL && *end == '-' && isdigit((unsigned char)end[1])) {
        last = strtoul(end + 1, &end, 10);
    }
    if (end == NULL || *end != '\0' || first < 1 || last > UINT16_MAX || first > last) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_PORTS is \"%.64s\": give the first and the last port to listen on, "
                       "\"40000-40100\" say",
                       text);
    }
    *ports_out = (gr_ports){(uint16_t)first, (uint16_t)last};
    return GR_OK;
}

bool gr_address_next(const char *addresses, size_t *at, char address_out[GR_ADDRESS_BYTES])
{
    const char *from = addresses + *at;
    from += strspn(from, " ");
    size_t size = strcspn(from, " ");
    *at = (size_t)(from - addresses) + size;
    size = size < GR_ADDRESS_BYTES ? size : GR_ADDRESS_BYTES - 1;
    memcpy(address_out, from, size);
    address_out[size] = '\0';
    return size > 0;
}

static gr_status connect_socket(int context, const struct sockaddr *at, socklen_t size,
                                const char *address, int *fd_out, gr_diag *diag)
{
    int fd = gr_fork_socket(context);
    if (fd < 0) {
        char why[GR_DESCRIPTORS_TEXT_BYTES];
        return gr_fail(diag, GR_E_IO, "cannot open a socket for %s: %s", address,
                       gr_descriptors_error(errno, why));
    }
    if (context != AF_UNIX) {
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
    gr_fork_close(fd);
    if (error == EAGAIN || error == EINTR) {
        return gr_fail(diag, GR_E_AGAIN, "%s is busy", address);
    }
    if (error == ECONNREFUSED || error == ENOENT || error == ECONNRESET) {
        return gr_fail(diag, GR_E_PEER_LOST, "nobody listens at %s", address);
    }
    if (error == ENETUNREACH || error == EHOSTUNREACH || error == ENETDOWN) {
        return gr_fail(diag, GR_E_PEER_LOST, "no way to %s: %s", address, strerror(error));
    }
    return gr_fail(diag, GR_E_IO, "cannot connect to %s: %s", address, strerror(error));
}

static gr_status malformed(const char *address, gr_diag *diag)
{
    return gr_fail(
        diag, GR_E_INVALID,
        "\"%.*s\" is not an address; one reads tcp:HOST:PORT, with a port of 1 to 65535, "
        "or unix:@NAME",
        GR_ADDRESS_BYTES, address);
}

bool gr_address_split(const char *text, char host_out[GR_HOST_BYTES], const char **port_out)
{
    const char *colon = strrchr(text, ':');
    size_t size = colon != NULL ? (size_t)(colon - text) : 0;
    bool bracket = size > 1 && text[0] == '[' && text[size - 1] == ']';
    size -= bracket ? 2 : 0;
    if (colon == NULL || colon[1] == '\0' || size >= GR_HOST_BYTES) {
        return false;
    }
    memcpy(host_out, text + bracket, size);
    host_out[size] = '\0';
    *port_out = colon + 1;
    return true;
}

/* The host and the port of "tcp:HOST:PORT"; false: it is not of that form. */
static bool split_tcp(const char *address, char host_out[GR_HOST_BYTES], const char **port_out)
{
    if (strncmp(address, tcp_mark, strlen(tcp_mark)) != 0 ||
        !gr_address_split(address + strlen(tcp_mark), host_out, port_out) || host_out[0] == '\0') {
        return false;
    }
    size_t digits = strspn(*port_out, "0123456789");
    bool short_number = digits <= PORT_DIGITS_MAX && (*port_out)[digits] == '\0';
    long port = short_number ? strtol(*port_out, NULL, 10) : 0;
    return port >= 1 && port <= UINT16_MAX;
}

/* Never blocks: no name is looked up. */
static int find_number(const char *host, const char *port, struct addrinfo **found_out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    return getaddrinfo(host, port, &hints, found_out);
}

bool gr_address_name(const char *address, char host_out[GR_ADDRESS_BYTES])
{
    char host[GR_HOST_BYTES];
    const char *port;
    struct addrinfo *found = NULL;
    if (!split_tcp(address, host, &port)) {
        return false;
    }
    int error = find_number(host, port, &found);
    if (error == 0) {
        freeaddrinfo(found);
        return false;
    }
    memcpy(host_out, host, strlen(host) + 1);
    return error == EAI_NONAME;
}

void gr_address_with_host(const char *address, const struct sockaddr_storage *host,
                          char address_out[GR_ADDRESS_BYTES])
{
    char numeric[GR_HOST_BYTES] = "?";
    const char *port = strrchr(address, ':');
    bool six = host->ss_family == AF_INET6;
    socklen_t size = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    (void)getnameinfo((const struct sockaddr *)host, size, numeric, sizeof numeric, NULL, 0,
                      NI_NUMERICHOST);
    snprintf(address_out, GR_ADDRESS_BYTES, "tcp:%s%s%s%s", six ? "[" : "", numeric, six ? "]" : "",
             port != NULL ? port : "");
}

static gr_status connect_tcp(const char *address, int *fd_out, gr_diag *diag)
{
    char host[GR_HOST_BYTES];
    const char *port;
    struct addrinfo *found = NULL;
    if (!split_tcp(address, host, &port)) {
        return malformed(address, diag);
    }
    int error = find_number(host, port, &found);
    if (error != 0) {
        return gr_fail(diag, GR_E_INVALID, "cannot connect to %s: %s", address,
                       error == EAI_NONAME ? "its host is not a numeric address"
                                           : gai_strerror(error));
    }
    gr_status status =
        connect_socket(found->ai_family, found->ai_addr, found->ai_addrlen, address, fd_out, diag);
    freeaddrinfo(found);
    return status;
}

gr_status gr_address_connect(const char *address, int *fd_out, gr_diag *diag)
{
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
        return connect_socket(AF_UNIX, (struct sockaddr *)&at, size, address, fd_out, diag);
    }
    if (strncmp(address, tcp_mark, sizeof tcp_mark - 1) == 0) {
        return connect_tcp(address, fd_out, diag);
    }
    return malformed(address, diag);
}
