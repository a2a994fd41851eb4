/* SPDX-License-Identifier: Apache-2.0 */

/* Messages at the socket of a job: byte 0 is the size of the first, with its highest bit
 * descriptors come with it, and so on. What is accepted is sent and received to the same; no
 * descriptor stays. */

#include "launch/agent/job_message.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* Any number of descriptors may come: a stranger's are as many as its bytes. */
static bool send_bytes(int socket_fd, const uint8_t *bytes, size_t size, int fd_count)
{
    enum { FDS_MAX = 4 };
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr out = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        const size_t fds_bytes = (size_t)fd_count * sizeof(int);
        out.msg_control = &control;
        out.msg_controllen = CMSG_SPACE(fds_bytes);
        control.head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(fds_bytes)};
        for (int i = 0; i < fd_count; i++) {
            memcpy(CMSG_DATA(&control.head) + (size_t)i * sizeof(int), &socket_fd, sizeof(int));
        }
    }
    return sendmsg(socket_fd, &out, MSG_NOSIGNAL) == (ssize_t)size;
}

static int next_free(void)
{
    int fd = dup(STDERR_FILENO);
    if (fd >= 0) {
        close(fd);
    }
    return fd;
}

static void receive_one(const int ends[2], bool wants_fds)
{
    gr_job_message message, back;
    int fds[2] = {-1, -1};
    int error = gr_job_receive(ends[0], &message, wants_fds ? fds : NULL);
    require((fds[0] < 0) == (fds[1] < 0));
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    if (error == 0) {
        require(message.kind >= GR_JOB_ATTACH && message.kind < GR_JOB_MESSAGE_KINDS);
        require(gr_job_send(ends[0], &message, NULL) == 0);
        require(gr_job_receive(ends[1], &back, NULL) == 0);
        const gr_job_status *a = &message.status, *b = &back.status;
        require(back.kind == message.kind && a->code == b->code && a->workers == b->workers &&
                a->launcher == b->launcher && a->ending == b->ending && a->step == b->step &&
                a->want == b->want && a->least == b->least && a->most == b->most &&
                a->word == b->word);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2], before = next_free();
    if (before < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return 0;
    }
    for (size_t at = 0; at < size;) {
        const size_t left = size - at - 1, length = data[at] & 0x3f;
        const size_t used = length < left ? length : left;
        const int fd_count = data[at] >> 7 != 0 ? 1 + (int)(used % 3) : 0;
        if (used > 0 && send_bytes(ends[1], data + at + 1, used, fd_count)) {
            receive_one(ends, (data[at] & 0x40) != 0);
        }
        at += 1 + used;
    }
    close(ends[0]);
    close(ends[1]);
    require(next_free() == before);
    return 0;
}
