/* SPDX-License-Identifier: Apache-2.0 */
#include "link/socket.h"

#include "base/text.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum {
    PROBES = 5, /* intervals of a timeout, with a probe after each but the last */
    /* The kernel's clock of TCP_USER_TIMEOUT starts with the first repetition, which comes no
     * earlier than this after what was not acknowledged. */
    FIRST_REPETITION_US = 200000
};

bool gr_socket_set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

bool gr_socket_give_up_after(int fd, int64_t timeout_us)
{
    int64_t probe_s = timeout_us / PROBES / 1000000, after_us = timeout_us - FIRST_REPETITION_US;
    after_us = after_us > timeout_us / 2 ? after_us : timeout_us / 2;
    probe_s = probe_s > 0 ? probe_s : 1;
    bool tcp = gr_socket_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(after_us / 1000)) &&
               gr_socket_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, (int)probe_s) &&
               gr_socket_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, (int)probe_s) &&
               gr_socket_set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES - 1);
    return tcp && gr_socket_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/* The bytes of a socket's address, without its port; 0: it is of no network. */
static size_t host_of(const struct sockaddr_storage *address, const void **bytes_out)
{
    if (address->ss_family == AF_INET) {
        *bytes_out = &((const struct sockaddr_in *)address)->sin_addr;
        return sizeof(struct in_addr);
    }
    if (address->ss_family == AF_INET6) {
        *bytes_out = &((const struct sockaddr_in6 *)address)->sin6_addr;
        return sizeof(struct in6_addr);
    }
    return 0;
}

bool gr_socket_same_host(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_size = sizeof own, peer_size = sizeof peer;
    const void *here = NULL, *there = NULL;
    if (getsockname(fd, (struct sockaddr *)&own, &own_size) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_size) != 0) {
        return false;
    }
    if (own.ss_family == AF_UNIX) {
        return true;
    }
    size_t size = host_of(&own, &here);
    return size > 0 && host_of(&peer, &there) == size && memcmp(here, there, size) == 0;
}

int64_t gr_descriptors_limit(void)
{
    struct rlimit limit;
    bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    return known && limit.rlim_cur <= INT32_MAX ? (int64_t)limit.rlim_cur : INT32_MAX;
}

int64_t gr_descriptors_raise(int64_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && (int64_t)limit.rlim_cur < wanted &&
        limit.rlim_cur < limit.rlim_max) {
        rlim_t more = (rlim_t)wanted;
        limit.rlim_cur = more < limit.rlim_max ? more : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    return gr_descriptors_limit();
}

const char *gr_descriptors_error(int error, char text_out[GR_DESCRIPTORS_TEXT_BYTES])
{
    char words[GR_ERRNO_TEXT_BYTES];
    if (error == EMFILE) {
        snprintf(text_out, GR_DESCRIPTORS_TEXT_BYTES,
                 "this process has %lld files open, which is its limit: raise it (ulimit -n)",
                 (long long)gr_descriptors_limit());
    } else {
        snprintf(text_out, GR_DESCRIPTORS_TEXT_BYTES, "%s", gr_text_errno(error, words));
    }
    return text_out;
}
