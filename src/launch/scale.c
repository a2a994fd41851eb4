/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/scale.h"

#include "base/codec.h"
#include "base/fail.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A request is magic u32, workers u32; a reply magic u32, status u32, text. */
enum { MAGIC = 0x31534147 /* "GAS1" */, HEAD_BYTES = 8, ANSWER_MS = 5000 };

static socklen_t name_socket(pid_t launcher, struct sockaddr_un *address_out)
{
    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int size = snprintf(address_out->sun_path + 1, sizeof address_out->sun_path - 1,
                        "gradus-run-%u-%d", (unsigned)geteuid(), (int)launcher);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
}

/* Whoever receives is told by the kernel who has sent. */
static int open_socket(const struct sockaddr_un *name, socklen_t name_bytes)
{
    int yes = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
        bind(fd, (const struct sockaddr *)name, name_bytes) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* One datagram, if it is from somebody of our own: its size, else -1. */
static ssize_t receive(int fd, uint8_t *bytes, size_t room, struct sockaddr_un *from,
                       socklen_t *from_bytes, pid_t *sender_out)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = room};
    struct msghdr message = {.msg_name = from,
                             .msg_namelen = sizeof *from,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t size = recvmsg(fd, &message, 0);
    struct cmsghdr *head = size >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head == NULL || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_CREDENTIALS) {
        return -1;
    }
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(head), sizeof sender);
    *from_bytes = message.msg_namelen;
    *sender_out = sender.pid;
    return sender.uid == geteuid() || sender.uid == 0 ? size : -1;
}

int gr_scale_listen(void)
{
    struct sockaddr_un name;
    socklen_t bytes = name_socket(getpid(), &name);
    return open_socket(&name, bytes);
}

bool gr_scale_receive(int fd, gr_scale_request *request_out)
{
    uint8_t bytes[HEAD_BYTES + 1];
    pid_t sender;
    ssize_t size;
    errno = 0;
    do {
        size =
            receive(fd, bytes, sizeof bytes, &request_out->from, &request_out->from_bytes, &sender);
        if (size == HEAD_BYTES && gr_get_u32(bytes) == MAGIC &&
            gr_get_u32(bytes + 4) <= INT32_MAX) {
            request_out->workers = (int)gr_get_u32(bytes + 4);
            return true;
        }
    } while (errno != EAGAIN && errno != EBADF);
    return false;
}

void gr_scale_answer(int fd, const gr_scale_request *request, const gr_scale_reply *reply)
{
    uint8_t bytes[HEAD_BYTES + GR_SCALE_TEXT_BYTES];
    size_t text = strnlen(reply->text, GR_SCALE_TEXT_BYTES - 1);
    gr_put_u32(bytes, MAGIC);
    gr_put_u32(bytes + 4, (uint32_t)reply->status);
    memcpy(bytes + HEAD_BYTES, reply->text, text);
    /* Who does not wait for the answer any more goes without it. */
    (void)!sendto(fd, bytes, HEAD_BYTES + text, MSG_NOSIGNAL | MSG_DONTWAIT,
                  (const struct sockaddr *)&request->from, request->from_bytes);
}

gr_scale_reply gr_scale_word(const gr_scheduler_answer *answer)
{
    gr_scale_reply reply = {.status = GR_E_INVALID};
    if (answer->word == GR_WORD_TOLD) {
        reply.status = GR_OK;
        snprintf(reply.text, sizeof reply.text, "the job has %d worker%s; it may have %d to %d",
                 answer->has, answer->has == 1 ? "" : "s", answer->least, answer->most);
    } else if (answer->word == GR_WORD_NEVER) {
        snprintf(reply.text, sizeof reply.text,
                 "the job was started for %d to %d workers, %d are not possible (--min-workers and "
                 "--max-workers of gradus run)",
                 answer->least, answer->most, answer->asked);
    } else if (answer->word == GR_WORD_GRANTED) {
        reply.status = GR_OK;
        snprintf(reply.text, sizeof reply.text, "the job goes from %d to %d workers", answer->has,
                 answer->asked);
    } else {
        snprintf(reply.text, sizeof reply.text, "the job is %s; it has %d worker%s",
                 answer->word == GR_WORD_STARTING ? "still starting: try again" : "about to end",
                 answer->has, answer->has == 1 ? "" : "s");
    }
    return reply;
}

gr_status gr_scale_ask(pid_t launcher, int workers, gr_scale_reply *reply_out, gr_diag *diag)
{
    struct sockaddr_un own = {.sun_family = AF_UNIX}, to, from;
    socklen_t to_bytes = name_socket(launcher, &to), from_bytes;
    uint8_t request[HEAD_BYTES], bytes[HEAD_BYTES + GR_SCALE_TEXT_BYTES];
    int fd = open_socket(&own, sizeof own.sun_family); /* the kernel finds a name */
    if (fd < 0) {
        return gr_fail(diag, GR_E_IO, "no socket can be made: %s", strerror(errno));
    }
    gr_put_u32(request, MAGIC);
    gr_put_u32(request + 4, (uint32_t)workers);
    gr_status status = GR_OK;
    if (sendto(fd, request, sizeof request, MSG_NOSIGNAL, (const struct sockaddr *)&to, to_bytes) <
        0) {
        status = gr_fail(diag, GR_E_NOT_FOUND,
                         "process %d is no `gradus run` of yours on this host (%s); give the "
                         "number of one that runs",
                         (int)launcher, strerror(errno));
    }
    ssize_t size = -1;
    pid_t sender = 0;
    while (status == GR_OK && (size < HEAD_BYTES || sender != launcher)) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, ANSWER_MS) == 0) {
            status = gr_fail(diag, GR_E_TIMEOUT, "`gradus run` (process %d) does not answer",
                             (int)launcher);
        } else {
            size = receive(fd, bytes, sizeof bytes, &from, &from_bytes, &sender);
        }
    }
    close(fd);
    if (status != GR_OK) {
        return status;
    }
    size_t text = (size_t)size - HEAD_BYTES;
    text = text < GR_SCALE_TEXT_BYTES ? text : GR_SCALE_TEXT_BYTES - 1;
    reply_out->status = (gr_status)(int32_t)gr_get_u32(bytes + 4);
    memcpy(reply_out->text, bytes + HEAD_BYTES, text);
    reply_out->text[text] = '\0';
    return GR_OK;
}

int gr_scale_find(pid_t *launchers_out, int room)
{
    FILE *list = fopen("/proc/net/unix", "re");
    char line[512], name[64];
    int count = 0;
    snprintf(name, sizeof name, "@gradus-run-%u-", (unsigned)geteuid());
    while (list != NULL && fgets(line, sizeof line, list) != NULL) {
        const char *at = strstr(line, name);
        int launcher;
        if (at != NULL && sscanf(at + strlen(name), "%d", &launcher) == 1) {
            if (count < room) {
                launchers_out[count] = launcher;
            }
            count++;
        }
    }
    if (list != NULL) {
        fclose(list);
    }
    return count;
}
