/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/sink.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void break_sink(gr_sink *sink, int error)
{
    sink->broken = true;
    sink->error = error;
    sink->dropped_bytes += sink->used;
    sink->first = sink->used = 0;
    if (sink->polling) {
        uv_poll_stop(&sink->poll);
        sink->polling = false;
    }
    sink->lost(sink->event_arg);
}

/* O_NONBLOCK belongs to the open file, which we share with whoever started us: setting it there
 * would break their writes. So pipes and terminals are opened anew. */
static int open_own(int fd, bool *blocking_out)
{
    struct stat info;
    *blocking_out = false;
    if (fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int own = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (own >= 0) {
            return own;
        }
    }
    *blocking_out = true;
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

gr_status gr_sink_open(uv_loop_t *loop, int fd, gr_sink_event *drained, gr_sink_event *lost,
                       void *event_arg, gr_sink **sink_out, gr_diag *diag)
{
    gr_sink *sink = calloc(1, sizeof *sink);
    if (sink == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the output");
    }
    sink->drained = drained;
    sink->lost = lost;
    sink->event_arg = event_arg;
    sink->fd = open_own(fd, &sink->blocking);
    if (sink->fd < 0) {
        int error = errno;
        free(sink);
        return gr_fail(diag, GR_E_IO, "file descriptor %d cannot be written to: %s", fd,
                       strerror(error));
    }
    /* epoll refuses what never has to be waited for: files, /dev/null. uv_poll_init makes its
     * descriptor non-blocking, so a shared one is only polled through a duplicate's poll(2). */
    if (sink->blocking) {
        struct stat info;
        sink->pollable = fstat(sink->fd, &info) == 0 && !S_ISREG(info.st_mode);
    } else {
        sink->pollable = true;
    }
    int flags = fcntl(sink->fd, F_GETFL);
    int error = sink->pollable ? uv_poll_init(loop, &sink->poll, sink->fd) : 0;
    if (sink->blocking && sink->pollable && flags >= 0) {
        (void)fcntl(sink->fd, F_SETFL, flags);
    }
    if (error == UV_EPERM) {
        sink->pollable = false;
    } else if (error != 0) {
        close(sink->fd);
        free(sink);
        return gr_fail(diag, GR_E_IO, "file descriptor %d cannot be watched: %s", fd,
                       uv_strerror(error));
    }
    sink->poll.data = sink;
    *sink_out = sink;
    return GR_OK;
}

static void free_sink(gr_sink *sink)
{
    close(sink->fd);
    free(sink->queue);
    free(sink);
}

static void forget_poll(uv_handle_t *handle)
{
    free_sink(handle->data);
}

void gr_sink_close(gr_sink *sink)
{
    if (sink->pollable) {
        uv_close((uv_handle_t *)&sink->poll, forget_poll);
    } else {
        free_sink(sink);
    }
}

bool gr_sink_has_room(const gr_sink *sink)
{
    return !sink->full;
}

bool gr_sink_is_empty(const gr_sink *sink)
{
    return sink->used == 0;
}

uint64_t gr_sink_undelivered(const gr_sink *sink)
{
    return sink->used + sink->dropped_bytes;
}

static bool reserve(gr_sink *sink, size_t size_bytes)
{
    if (sink->first > 0) {
        memmove(sink->queue, sink->queue + sink->first, sink->used);
        sink->first = 0;
    }
    size_t capacity = sink->capacity > 0 ? sink->capacity : 16 * 1024;
    while (capacity < sink->used + size_bytes) {
        capacity *= 2;
    }
    char *larger = capacity <= GR_SINK_BYTES_MAX ? realloc(sink->queue, capacity) : NULL;
    if (larger == NULL) {
        return false;
    }
    sink->queue = larger;
    sink->capacity = capacity;
    return true;
}

void gr_sink_put(gr_sink *sink, const char *data, size_t size_bytes)
{
    if (sink->broken) {
        sink->dropped_bytes += size_bytes;
        return;
    }
    if (sink->first + sink->used + size_bytes > sink->capacity && !reserve(sink, size_bytes)) {
        sink->dropped_bytes += size_bytes;
        break_sink(sink, ENOMEM);
        return;
    }
    memcpy(sink->queue + sink->first + sink->used, data, size_bytes);
    sink->used += size_bytes;
    sink->full = sink->full || sink->used >= GR_SINK_FULL_BYTES;
}

/* One write that does not wait; bytes written, or -errno. */
static ssize_t write_some(gr_sink *sink)
{
    size_t size = sink->used;
    if (sink->pollable && sink->blocking) {
        /* A pipe or socket that polls as writable takes PIPE_BUF bytes without waiting. */
        struct pollfd ready = {.fd = sink->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) == 0) {
            return -EAGAIN;
        }
        size = size < PIPE_BUF ? size : PIPE_BUF;
        ssize_t sent = send(sink->fd, sink->queue + sink->first, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0 || errno != ENOTSOCK) {
            return sent >= 0 ? sent : -errno;
        }
    }
    ssize_t written = write(sink->fd, sink->queue + sink->first, size);
    return written >= 0 ? written : -errno;
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    gr_sink *sink = poll->data;
    (void)status;
    (void)events;
    gr_sink_flush(sink);
    if (!sink->full) {
        sink->drained(sink->event_arg);
    }
}

void gr_sink_flush(gr_sink *sink)
{
    while (sink->used > 0) {
        ssize_t written = write_some(sink);
        if (written == -EINTR) {
            continue;
        }
        if (written == -EAGAIN && sink->pollable) {
            break;
        }
        if (written < 0) {
            break_sink(sink, (int)-written);
            break;
        }
        sink->first += (size_t)written;
        sink->used -= (size_t)written;
    }
    if (sink->used == 0) {
        sink->first = 0;
    }
    if (sink->used > 0 && !sink->polling) {
        sink->polling = uv_poll_start(&sink->poll, UV_WRITABLE, on_writable) == 0;
    } else if (sink->used == 0 && sink->polling) {
        uv_poll_stop(&sink->poll);
        sink->polling = false;
    }
    sink->full = sink->full && sink->used > GR_SINK_RESUME_BYTES;
}
