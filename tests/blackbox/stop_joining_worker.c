/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded by LD_PRELOAD: a worker that joins a running job stops itself when it has made as many
 * sockets as the file $TEST_STOPS_AT says; 0: at its start; -1: never. With $TEST_WAITS each worker
 * waits for a signal at its start. With $TEST_STANDS who makes the log rank.0.err waits before that
 * for a reader of the FIFO of that name. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int socket_function(int domain, int type, int protocol);
typedef int accept_function(int fd, struct sockaddr *address, socklen_t *length, int flags);

static atomic_int left; /* sockets; 0: it does not stop (any more) */

static void count(void)
{
    if (left > 0 && atomic_fetch_sub(&left, 1) == 1) {
        raise(SIGSTOP);
    }
}

__attribute__((visibility("default"))) int socket(int domain, int type, int protocol)
{
    socket_function *real = (socket_function *)dlsym(RTLD_NEXT, "socket");
    int fd = real(domain, type, protocol);
    count();
    return fd;
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *address,
                                                   socklen_t *length, int flags)
{
    accept_function *real = (accept_function *)dlsym(RTLD_NEXT, "accept4");
    int made = real(fd, address, length, flags);
    if (made >= 0) {
        count();
    }
    return made;
}

__attribute__((visibility("default"))) int open(const char *path, int flags, ...)
{
    typedef int open_function(const char *path, int flags, ...);
    open_function *real = (open_function *)dlsym(RTLD_NEXT, "open");
    const char *fifo = getenv("TEST_STANDS");
    va_list rest;
    va_start(rest, flags);
    unsigned mode = (flags & O_CREAT) ? va_arg(rest, unsigned) : 0;
    va_end(rest);
    if (fifo && strstr(path, "/rank.0.err")) {
        close(real(fifo, O_WRONLY | O_CLOEXEC));
    }
    return real(path, flags, mode);
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("TEST_STOPS_AT");
    FILE *file = name && getenv("GRADUS_JOINING") ? fopen(name, "r") : NULL;
    int number = -1;
    if (getenv("TEST_WAITS") && getenv("GRADUS_RANK")) {
        pause();
    }
    if (!file) {
        return;
    }
    if (fscanf(file, "%d", &number) == 1 && number == 0) {
        raise(SIGSTOP);
    } else {
        left = number;
    }
    fclose(file);
}
