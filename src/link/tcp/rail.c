/* SPDX-License-Identifier: Apache-2.0 */

/* The bytes of one connection. */

#include "link/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DRAIN_BYTES_MAX = 4 << 20,
    WHOLE_MAX = 1024 + GR_FRAME_BYTES /* bytes that are copied together to be written */
};

static int fd_of(gr_tcp_rail *rail)
{
    return *gr_link_fd(&rail->link->base, rail->index);
}

static gr_tls *tls_of(const gr_tcp_rail *rail)
{
    return rail->link->base.tls[rail->index];
}

bool gr_tcp_rail_holds(const gr_tcp_rail *rail)
{
    return tls_of(rail) != NULL && gr_tls_holds(tls_of(rail));
}

/* A small message goes faster in one piece than by a list of its pieces. */
static ssize_t write_parts(int fd, struct iovec *parts, int count)
{
    uint8_t whole[WHOLE_MAX];
    size_t size_bytes = 0;
    if (count == 2 && parts[0].iov_len + parts[1].iov_len <= sizeof whole) {
        for (int i = 0; i < count; i++) {
            memcpy(whole + size_bytes, parts[i].iov_base, parts[i].iov_len);
            size_bytes += parts[i].iov_len;
        }
        return send(fd, whole, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

size_t gr_tcp_rail_write(gr_tcp_rail *rail, struct iovec *parts, int count)
{
    gr_mesh *mesh = rail->link->base.mesh;
    gr_tls *tls = tls_of(rail);
    ssize_t sent =
        tls != NULL ? gr_tls_send(tls, parts, count) : write_parts(fd_of(rail), parts, count);
    mesh->stats.system_calls++;
    if (sent >= 0 && gr_tcp_rail_holds(rail)) {
        rail->writable = false;
    }
    if (sent >= 0) {
        if (rail->link->base.rails > 1) {
            mesh->stats.rail_bytes[rail->index] += (uint64_t)sent;
            rail->sent_bytes += (uint64_t)sent;
            rail->unacknowledged += (uint64_t)sent;
        }
        return (size_t)sent;
    }
    if (errno == EAGAIN) {
        rail->writable = false;
    } else if (errno != EINTR) {
        /* What the peer said before it closed may explain it: the reading side ends the link. */
        rail->writable = false;
        rail->readable = rail->hung_up = true;
    }
    return 0;
}

static void lose(gr_tcp_rail *rail, int error)
{
    gr_tcp_link *link = rail->link;
    if (link->base.rails == 1 || error == EBADMSG) {
        gr_link_closed(&link->base, error);
    } else if (!link->lost) {
        link->lost = true;
        link->lost_error = error;
    }
}

static ssize_t read_parts(int fd, struct iovec parts[2])
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return parts[0].iov_len > 0 ? recvmsg(fd, &message, MSG_DONTWAIT)
                                : recv(fd, parts[1].iov_base, parts[1].iov_len, MSG_DONTWAIT);
}

size_t gr_tcp_rail_read(gr_tcp_rail *rail, uint8_t *to, size_t size_bytes, uint32_t room)
{
    if (rail->start == rail->end) {
        rail->start = rail->end = 0;
    } else if (rail->start > 0 && GR_TCP_BUFFER - rail->end < GR_FRAME_BYTES + GR_TCP_SMALL_MAX) {
        memmove(rail->buffer, rail->buffer + rail->start, gr_tcp_buffered(rail));
        rail->end -= rail->start;
        rail->start = 0;
    }
    if (room > GR_TCP_BUFFER - rail->end) {
        room = GR_TCP_BUFFER - rail->end;
    }
    struct iovec parts[2] = {
        {.iov_base = to, .iov_len = size_bytes},
        {.iov_base = rail->buffer + rail->end, .iov_len = room},
    };
    ssize_t got =
        tls_of(rail) != NULL ? gr_tls_recv(tls_of(rail), parts, 2) : read_parts(fd_of(rail), parts);
    rail->link->base.mesh->stats.system_calls++;
    if (got <= 0) {
        int error = got == 0 ? 0 : errno;
        if (error != EINTR) {
            rail->readable = false;
        }
        if (error != EAGAIN && error != EINTR) {
            lose(rail, error);
        }
        return 0;
    }
    /* Less than asked for: there is no more now, and an edge will tell when there is. The end of
     * the rail makes no further edge, so it is waited for by reading on. */
    if ((size_t)got < size_bytes + room && !rail->hung_up) {
        rail->readable = false;
    }
    size_t direct = (size_t)got < size_bytes ? (size_t)got : size_bytes;
    rail->end += (uint32_t)((size_t)got - direct);
    return direct;
}

size_t gr_tcp_rail_take(gr_tcp_rail *rail, uint8_t *to, size_t size_bytes)
{
    size_t count = gr_tcp_buffered(rail) < size_bytes ? gr_tcp_buffered(rail) : size_bytes;
    if (to != NULL && count > 0) {
        memcpy(to, rail->buffer + rail->start, count);
    }
    rail->start += (uint32_t)count;
    return count;
}

/* Closing a socket that holds unread bytes resets the connection and may destroy what is under way
 * to the peer, our BYE included: take them off first. */
void gr_tcp_rail_end(gr_tcp_rail *rail)
{
    shutdown(fd_of(rail), SHUT_WR);
    for (size_t drained = 0; drained < DRAIN_BYTES_MAX;) {
        ssize_t got = recv(fd_of(rail), rail->buffer, sizeof rail->buffer, MSG_DONTWAIT);
        if (got <= 0) {
            break;
        }
        drained += (size_t)got;
    }
}
