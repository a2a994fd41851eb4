/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/job_message.h"

#include "base/codec.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* magic u32, kind u32, code u32, workers u32, launcher u32, ending u32, step u64, want u32,
 * least u32, most u32, word u32 */
enum { MAGIC = 0x324a5247 /* "GRJ2" */, MESSAGE_BYTES = 48, FDS = 2 };

typedef union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(FDS * sizeof(int))];
} control;

/* The other side may end before it has accepted the connection. */
static int errno_of_end(void)
{
    return errno == ECONNRESET ? EPIPE : errno;
}

int gr_job_send(int socket_fd, const gr_job_message *message, const int *fds)
{
    uint8_t bytes[MESSAGE_BYTES];
    control ancillary = {.bytes = {0}};
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr out = {.msg_iov = &part, .msg_iovlen = 1};
    gr_put_u32(bytes, MAGIC);
    gr_put_u32(bytes + 4, (uint32_t)message->kind);
    gr_put_u32(bytes + 8, (uint32_t)message->status.code);
    gr_put_u32(bytes + 12, (uint32_t)message->status.workers);
    gr_put_u32(bytes + 16, (uint32_t)message->status.launcher);
    gr_put_u32(bytes + 20, message->status.ending);
    gr_put_u64(bytes + 24, message->status.step);
    gr_put_u32(bytes + 32, (uint32_t)message->status.want);
    gr_put_u32(bytes + 36, (uint32_t)message->status.least);
    gr_put_u32(bytes + 40, (uint32_t)message->status.most);
    gr_put_u32(bytes + 44, (uint32_t)message->status.word);
    if (fds != NULL) {
        out.msg_control = &ancillary;
        out.msg_controllen = sizeof ancillary;
        ancillary.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(FDS * sizeof(int))};
        memcpy(CMSG_DATA(&ancillary.head), fds, FDS * sizeof(int));
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket_fd, &out, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent >= 0 ? 0 : errno_of_end();
}

/* Those that came, into fds_out, or closed if it is NULL or there are not FDS of them. */
static void take_fds(struct msghdr *in, int *fds_out)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(in); head != NULL; head = CMSG_NXTHDR(in, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        int fds[FDS];
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        count = count < FDS ? count : FDS;
        memcpy(fds, CMSG_DATA(head), count * sizeof(int));
        if (fds_out != NULL && count == FDS && fds_out[0] < 0) {
            memcpy(fds_out, fds, sizeof fds);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            close(fds[i]);
        }
    }
}

int gr_job_receive(int socket_fd, gr_job_message *message_out, int *fds_out)
{
    uint8_t bytes[MESSAGE_BYTES + 1];
    control ancillary;
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr in = {.msg_iov = &part,
                        .msg_iovlen = 1,
                        .msg_control = &ancillary,
                        .msg_controllen = sizeof ancillary};
    ssize_t got;
    if (fds_out != NULL) {
        fds_out[0] = fds_out[1] = -1;
    }
    do {
        got = recvmsg(socket_fd, &in, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return errno_of_end();
    }
    take_fds(&in, fds_out);
    if (got == 0) {
        return EPIPE;
    }
    uint32_t kind = got == MESSAGE_BYTES ? gr_get_u32(bytes + 4) : 0;
    if (kind < GR_JOB_ATTACH || kind >= GR_JOB_MESSAGE_KINDS || gr_get_u32(bytes) != MAGIC) {
        return EPROTO;
    }
    *message_out = (gr_job_message){.kind = (int)kind,
                                    .status = {.code = (int)gr_get_u32(bytes + 8),
                                               .workers = (int)gr_get_u32(bytes + 12),
                                               .launcher = (int)gr_get_u32(bytes + 16),
                                               .ending = gr_get_u32(bytes + 20) != 0,
                                               .step = gr_get_u64(bytes + 24),
                                               .want = (int)gr_get_u32(bytes + 32),
                                               .least = (int)gr_get_u32(bytes + 36),
                                               .most = (int)gr_get_u32(bytes + 40),
                                               .word = (int)gr_get_u32(bytes + 44)}};
    return 0;
}

bool gr_job_peer(int socket_fd, pid_t *pid_out, uid_t *uid_out)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return false;
    }
    *pid_out = peer.pid;
    *uid_out = peer.uid;
    return true;
}
