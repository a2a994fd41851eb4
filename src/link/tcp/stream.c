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

static int fd_of(gr_tcp_stream *stream)
{
    return *gr_link_fd(&stream->link->base, stream->index);
}

static gr_tls *tls_of(const gr_tcp_stream *stream)
{
    return stream->link->base.tls[stream->index];
}

bool gr_tcp_stream_holds(const gr_tcp_stream *stream)
{
    return tls_of(stream) != NULL && gr_tls_holds(tls_of(stream));
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

size_t gr_tcp_stream_write(gr_tcp_stream *stream, struct iovec *parts, int count)
{
    gr_mesh *mesh = stream->link->base.mesh;
    gr_tls *tls = tls_of(stream);
    ssize_t sent =
        tls != NULL ? gr_tls_send(tls, parts, count) : write_parts(fd_of(stream), parts, count);
    mesh->stats.system_calls++;
    if (sent >= 0 && gr_tcp_stream_holds(stream)) {
        stream->writable = false;
    }
    if (sent >= 0) {
        if (stream->link->base.streams > 1) {
            mesh->stats.stream_bytes[stream->index] += (uint64_t)sent;
            stream->sent_bytes += (uint64_t)sent;
            stream->unacknowledged += (uint64_t)sent;
        }
        return (size_t)sent;
    }
    if (errno == EAGAIN) {
        stream->writable = false;
    } else if (errno != EINTR) {
        /* What the peer said before it closed may explain it: the reading side ends the link. */
        stream->writable = false;
        stream->readable = stream->hung_up = true;
    }
    return 0;
}

static void lose(gr_tcp_stream *stream, int error)
{
    gr_tcp_link *link = stream->link;
    if (link->base.streams == 1 || error == EBADMSG) {
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

size_t gr_tcp_stream_read(gr_tcp_stream *stream, uint8_t *to, size_t size_bytes, uint32_t room)
{
    if (stream->start == stream->end) {
        stream->start = stream->end = 0;
    } else if (stream->start > 0 &&
               GR_TCP_BUFFER - stream->end < GR_FRAME_BYTES + GR_TCP_SMALL_MAX) {
        memmove(stream->buffer, stream->buffer + stream->start, gr_tcp_buffered(stream));
        stream->end -= stream->start;
        stream->start = 0;
    }
    if (room > GR_TCP_BUFFER - stream->end) {
        room = GR_TCP_BUFFER - stream->end;
    }
    struct iovec parts[2] = {
        {.iov_base = to, .iov_len = size_bytes},
        {.iov_base = stream->buffer + stream->end, .iov_len = room},
    };
    ssize_t got = tls_of(stream) != NULL ? gr_tls_recv(tls_of(stream), parts, 2)
                                         : read_parts(fd_of(stream), parts);
    stream->link->base.mesh->stats.system_calls++;
    if (got <= 0) {
        int error = got == 0 ? 0 : errno;
        if (error != EINTR) {
            stream->readable = false;
        }
        if (error != EAGAIN && error != EINTR) {
            lose(stream, error);
        }
        return 0;
    }
    /* Less than asked for: there is no more now, and an edge will tell when there is. The end of
     * the stream makes no further edge, so it is waited for by reading on. */
    if ((size_t)got < size_bytes + room && !stream->hung_up) {
        stream->readable = false;
    }
    size_t direct = (size_t)got < size_bytes ? (size_t)got : size_bytes;
    stream->end += (uint32_t)((size_t)got - direct);
    return direct;
}

size_t gr_tcp_stream_take(gr_tcp_stream *stream, uint8_t *to, size_t size_bytes)
{
    size_t count = gr_tcp_buffered(stream) < size_bytes ? gr_tcp_buffered(stream) : size_bytes;
    if (to != NULL && count > 0) {
        memcpy(to, stream->buffer + stream->start, count);
    }
    stream->start += (uint32_t)count;
    return count;
}

/* Closing a socket that holds unread bytes resets the connection and may destroy what is under way
 * to the peer, our BYE included: take them off first. */
void gr_tcp_stream_end(gr_tcp_stream *stream)
{
    shutdown(fd_of(stream), SHUT_WR);
    for (size_t drained = 0; drained < DRAIN_BYTES_MAX;) {
        ssize_t got = recv(fd_of(stream), stream->buffer, sizeof stream->buffer, MSG_DONTWAIT);
        if (got <= 0) {
            break;
        }
        drained += (size_t)got;
    }
}
