/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/exec.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { WAIT_US = 10000000, LOOK_AGAIN_MS = 50 };

/* A path may be longer than an address of a socket: it is reached from its folder. */
static int open_address(const char *root, const char *space, const char *pod,
                        struct sockaddr_un *address_out)
{
    int folder = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    uint64_t hash = gr_hash64(space, strlen(space), 0);
    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address_out->sun_path, sizeof address_out->sun_path,
             "/proc/self/fd/%d/exec-%016" PRIx64, folder, gr_hash64(pod, strlen(pod), hash));
    return folder;
}

int gr_exec_listen(const char *root, const char *space, const char *pod, const char *host)
{
    struct sockaddr_un address, other;
    int folder = open_address(root, space, pod, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlink(address.sun_path); /* of a pod of the same name that has ended */
    int error = folder < 0 || fd < 0 ? errno : 0;
    if (error == 0 && (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
                       chmod(address.sun_path, 0666) != 0 || listen(fd, SOMAXCONN) != 0)) {
        error = errno;
    }
    if (folder >= 0) {
        close(folder);
    }
    if (error == 0 && strcmp(pod, host) != 0) {
        folder = open_address(root, space, host, &other);
        (void)unlink(other.sun_path);
        (void)symlink(strrchr(address.sun_path, '/') + 1, other.sun_path);
        close(folder);
    }
    if (error != 0 && fd >= 0) {
        close(fd);
    }
    errno = error;
    return error == 0 ? fd : -1;
}

/* ---- The pod's side -------------------------------------------------------------------------- */
static ssize_t receive_all(int fd, char *text, int fds[3])
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))];
    struct iovec part = {.iov_base = text, .iov_len = GR_EXEC_BYTES_MAX};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header == NULL || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(3 * sizeof(int))) {
        return -1;
    }
    memcpy(fds, CMSG_DATA(header), 3 * sizeof(int));
    return (message.msg_flags & MSG_TRUNC) == 0 ? got : -1;
}

/* NULL: there are none, or no memory. */
static char **split(char *words, const char *end)
{
    size_t count = 0;
    for (const char *at = words; at < end; at += strlen(at) + 1) {
        count++;
    }
    char **argv = count > 0 ? calloc(count + 1, sizeof *argv) : NULL;
    for (size_t i = 0; argv != NULL && i < count; i++) {
        argv[i] = words;
        words += strlen(words) + 1;
    }
    return argv;
}

bool gr_exec_receive(int fd, gr_exec_order *request_out)
{
    gr_exec_order *r = request_out;
    memset(r, 0, sizeof *r);
    r->fds[0] = r->fds[1] = r->fds[2] = -1;
    r->text = malloc(GR_EXEC_BYTES_MAX + 1);
    ssize_t size = r->text != NULL ? receive_all(fd, r->text, r->fds) : -1;
    if (size <= 0) {
        gr_exec_order_fini(r);
        return false;
    }
    r->text[size] = '\0';
    r->container = r->text;
    r->argv = split(r->text + strlen(r->text) + 1, r->text + size);
    if (r->argv == NULL) {
        gr_exec_order_fini(r);
    }
    return r->argv != NULL;
}

void gr_exec_order_fini(gr_exec_order *request)
{
    for (int i = 0; i < 3; i++) {
        if (request->fds[i] >= 0) {
            close(request->fds[i]);
        }
        request->fds[i] = -1;
    }
    free(request->argv);
    free(request->text);
    request->argv = NULL;
    request->text = NULL;
}

void gr_exec_answer(int fd, int code)
{
    (void)!send(fd, &code, sizeof code, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- The caller's side ----------------------------------------------------------------------- */
static bool send_all(int fd, const char *text, size_t size_bytes)
{
    const int fds[3] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fds)];
    memset(control, 0, sizeof control);
    struct iovec part = {.iov_base = (void *)(uintptr_t)text, .iov_len = size_bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size_bytes;
}

/* Waits for a pod that is about to start. */
static int connect_to(const char *root, const char *space, const char *pod)
{
    int64_t end_us = gr_now_ns() / 1000 + WAIT_US;
    for (;;) {
        struct sockaddr_un address;
        int folder = open_address(root, space, pod, &address);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        bool done =
            folder >= 0 && fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
        if (folder >= 0) {
            close(folder);
        }
        if (done) {
            return fd;
        }
        if (fd >= 0) {
            close(fd);
        }
        if (folder < 0 || gr_now_ns() / 1000 >= end_us) {
            return -1;
        }
        (void)poll(NULL, 0, LOOK_AGAIN_MS);
    }
}

gr_status gr_exec_run(const char *root, const char *space, const char *pod, const char *container,
                      char *const *argv, int *code_out, gr_diag *diag)
{
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    if (out == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a command");
    }
    fwrite(container, 1, strlen(container) + 1, out);
    for (; *argv != NULL; argv++) {
        fwrite(*argv, 1, strlen(*argv) + 1, out);
    }
    gr_status status =
        fclose(out) != 0 ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for a command")
        : size_bytes > GR_EXEC_BYTES_MAX
            ? gr_fail(diag, GR_E_INVALID,
                      "the command for pod %s has %zu bytes, and may have %d; put it into a file "
                      "that the pod mounts",
                      pod, size_bytes, GR_EXEC_BYTES_MAX)
            : GR_OK;
    int fd = status == GR_OK ? connect_to(root, space, pod) : -1;
    if (status == GR_OK && fd < 0) {
        status = gr_fail(diag, GR_E_NOT_FOUND, "pod %s does not run", pod);
    }
    if (status == GR_OK && (!send_all(fd, text, size_bytes) ||
                            recv(fd, code_out, sizeof *code_out, 0) != (ssize_t)sizeof *code_out)) {
        status = gr_fail(diag, GR_E_PEER_LOST, "pod %s ended while a command ran in it", pod);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(text);
    return status;
}
