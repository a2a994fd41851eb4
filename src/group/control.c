/* SPDX-License-Identifier: Apache-2.0 */
#include "group/control.h"

#include "base/fail.h"
#include "base/fork.h"

#include "link/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PINGS_A_TIMEOUT = 4 };

void gr_control_init(gr_control *control, const gr_accepted *accepted, int64_t timeout_us,
                     uint8_t *in, size_t in_capacity)
{
    bool tcp = gr_socket_give_up_after(accepted->fd, timeout_us);
    *control = (gr_control){.fd = accepted->fd,
                            .tls = accepted->tls,
                            .in = in,
                            .in_capacity = in_capacity,
                            .ping_us = tcp ? timeout_us / PINGS_A_TIMEOUT : 0};
}

void gr_control_close(gr_control *control)
{
    gr_tls_destroy(control->tls);
    control->tls = NULL;
    if (control->fd >= 0) {
        gr_fork_close(control->fd);
        control->fd = -1;
    }
}

gr_status gr_control_put(gr_control *control, const uint8_t *message, size_t size_bytes)
{
    if (control->bulk == NULL && control->out_sent == control->out_filled) {
        control->out_sent = control->out_filled = 0;
    }
    if (sizeof control->out - control->out_filled < size_bytes) {
        return GR_E_NO_MEMORY;
    }
    memcpy(control->out + control->out_filled, message, size_bytes);
    control->out_filled += size_bytes;
    return GR_OK;
}

void gr_control_put_bulk(gr_control *control, const uint8_t *message, size_t size_bytes)
{
    control->bulk = message;
    control->bulk_bytes = size_bytes;
    control->bulk_sent = 0;
    control->bulk_at = control->out_filled;
}

/* The first reason is the one that counts: later ones only say that there is none. */
static gr_status end_with(gr_control *control, int error)
{
    control->error = control->ended ? control->error : error;
    control->ended = true;
    return GR_E_PEER_LOST;
}

bool gr_control_is_cut(const gr_control *control)
{
    return control->error == ETIMEDOUT || control->error == EHOSTUNREACH ||
           control->error == ENETUNREACH || control->error == ENETDOWN;
}

/* 0: what TLS held is gone. */
static ssize_t send_some(gr_control *control, const uint8_t *data, size_t size_bytes)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = size_bytes};
    return control->tls != NULL ? gr_tls_send(control->tls, &part, 1)
                                : send(control->fd, data, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t receive_some(gr_control *control, uint8_t *data, size_t size_bytes)
{
    struct iovec part = {.iov_base = data, .iov_len = size_bytes};
    return control->tls != NULL ? gr_tls_recv(control->tls, &part, 1)
                                : recv(control->fd, data, size_bytes, MSG_DONTWAIT);
}

gr_status gr_control_flush(gr_control *control)
{
    for (;;) {
        size_t small_end = control->bulk != NULL ? control->bulk_at : control->out_filled;
        bool bulk = control->out_sent == small_end && control->bulk != NULL;
        const uint8_t *from =
            bulk ? control->bulk + control->bulk_sent : control->out + control->out_sent;
        size_t size =
            bulk ? control->bulk_bytes - control->bulk_sent : small_end - control->out_sent;
        if (size == 0 && (control->tls == NULL || !gr_tls_holds(control->tls))) {
            return GR_OK;
        }
        ssize_t sent = send_some(control, from, size);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return errno == EAGAIN ? GR_PENDING : end_with(control, errno);
        }
        if (!bulk) {
            control->out_sent += (size_t)sent;
        } else if ((control->bulk_sent += (size_t)sent) == control->bulk_bytes) {
            control->bulk = NULL;
        }
    }
}

int64_t gr_control_ping(gr_control *control, int64_t now_us)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    if (control->fd < 0 || control->ended || control->ping_us == 0) {
        return GR_NEVER;
    }
    if (control->pinged_us == 0) {
        control->pinged_us = now_us;
    }
    if (now_us >= control->pinged_us + control->ping_us) {
        control->pinged_us = now_us;
        bool idle = control->bulk == NULL && control->out_sent == control->out_filled;
        size_t size = gr_message_put_empty(GR_MESSAGE_PING, message);
        if (idle && gr_control_put(control, message, size) == GR_OK) {
            gr_status sent = gr_control_flush(control);
            (void)sent; /* if the connection is over, whoever listens to it hears so */
        }
    }
    return control->pinged_us + control->ping_us;
}

static void drop_taken(gr_control *control)
{
    if (control->in_taken > 0) {
        control->in_filled -= control->in_taken;
        memmove(control->in, control->in + control->in_taken, control->in_filled);
        control->in_taken = 0;
    }
}

gr_status gr_control_get(gr_control *control, gr_message_kind *kind_out, const uint8_t **body_out,
                         size_t *body_bytes_out, gr_diag *diag)
{
    drop_taken(control);
    for (;;) {
        gr_status status = gr_message_get(control->in, control->in_filled, kind_out, body_out,
                                          body_bytes_out, diag);
        if (status == GR_OK) {
            control->in_taken = GR_MESSAGE_HEAD_BYTES + *body_bytes_out;
            return GR_OK;
        }
        size_t room = control->in_capacity - control->in_filled;
        if (status == GR_PENDING && room == 0) {
            return gr_fail(diag, GR_E_PROTOCOL, "a group message of more than %zu bytes",
                           control->in_capacity);
        }
        if (status != GR_PENDING) {
            return status;
        }
        ssize_t got = receive_some(control, control->in + control->in_filled, room);
        if (got > 0) {
            control->in_filled += (size_t)got;
        } else if (got < 0 && errno == EAGAIN) {
            return GR_PENDING;
        } else if (got == 0 || errno != EINTR) {
            return end_with(control, got == 0 ? 0 : errno);
        }
    }
}
