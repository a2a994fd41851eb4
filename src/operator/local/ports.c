/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/* The length of an address by which the filter knows our own calls, which must not ask us. */
enum { OWN_LENGTH = sizeof(struct sockaddr_storage) - 1 };

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define JUMP(value, if_equal, if_not) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, if_equal, if_not)

int gr_ports_watch(void)
{
    struct sock_filter steps[] = {
        LOAD(arch),
        JUMP(ARCHITECTURE, 0, 4),
        LOAD(nr),
        JUMP(SYS_bind, 0, 2),
        LOAD(args[2]),
        JUMP(OWN_LENGTH, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    const struct sock_fprog program = {.len = sizeof steps / sizeof steps[0], .filter = steps};
    long fd =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (fd < 0 && errno == EACCES && prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) == 0) {
        fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                     &program);
    }
    if (fd >= 0) {
        (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    }
    return (int)fd;
}

/* The pod's own address in place of "all", if that is what is asked for. */
static bool replace(const gr_pod_ports *ports, struct sockaddr_storage *address)
{
    struct in_addr own;
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    uint16_t port = ntohs(four->sin_port); /* it stands at the same place in both */
    bool is_named = false;
    for (size_t i = 0; i < ports->count; i++) {
        is_named |= ports->ports[i] == port;
    }
    if (!is_named || inet_pton(AF_INET, ports->address, &own) != 1) {
        return false;
    }
    if (address->ss_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_ANY)) {
        four->sin_addr = own;
        return true;
    }
    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr)) {
        memset(&six->sin6_addr, 0, sizeof six->sin6_addr);
        memset(&six->sin6_addr.s6_addr[10], 0xff, 2);
        memcpy(&six->sin6_addr.s6_addr[12], &own, sizeof own);
        return true;
    }
    return false;
}

/* The process that a thread belongs to. */
static pid_t process_of(pid_t thread)
{
    char path[64], line[128];
    long process = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)thread);
    FILE *file = fopen(path, "re");
    while (file != NULL && process == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "Tgid:", 5) == 0) {
            process = strtol(line + 5, NULL, 10);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return (pid_t)process;
}

/* Binds another process's socket. False: it cannot be reached, or does not take the address. */
static bool bind_for(pid_t process, int socket_fd, const struct sockaddr_storage *address,
                     int *error_out)
{
    int process_fd = (int)syscall(SYS_pidfd_open, process, 0);
    int fd = process_fd >= 0 ? (int)syscall(SYS_pidfd_getfd, process_fd, socket_fd, 0) : -1;
    if (process_fd >= 0) {
        close(process_fd);
    }
    if (fd < 0) {
        return false;
    }
    *error_out = bind(fd, (const struct sockaddr *)address, OWN_LENGTH) == 0 ? 0 : errno;
    close(fd);
    return *error_out != EINVAL && *error_out != EADDRNOTAVAIL;
}

void gr_ports_answer(const gr_pod_ports *ports, int fd)
{
    struct seccomp_notif question = {0};
    struct sockaddr_storage address = {0};
    int error = 0;
    if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &question) != 0) {
        return; /* who has asked is gone */
    }
    struct seccomp_notif_resp answer = {.id = question.id,
                                        .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    size_t length = question.data.args[2] < sizeof address ? (size_t)question.data.args[2] : 0;
    const struct iovec ours = {.iov_base = &address, .iov_len = length};
    const struct iovec theirs = {.iov_base = (void *)(uintptr_t)question.data.args[1],
                                 .iov_len = length};
    pid_t thread = (pid_t)question.pid;
    if (length >= sizeof(struct sockaddr_in) &&
        process_vm_readv(thread, &ours, 1, &theirs, 1, 0) == (ssize_t)length &&
        replace(ports, &address) &&
        bind_for(process_of(thread), (int)question.data.args[0], &address, &error)) {
        answer.flags = 0;
        answer.error = -error;
    }
    (void)ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}
