/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FDS_MAX = 1 << 20, WORD_BITS = 64 }; /* Linux's default for fs.nr_open */

/* `lock` guards `guarded` and `end`. It is held across fork. No other lock is taken under it, and
 * nothing that blocks is done. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t guarded[FDS_MAX / WORD_BITS]; /* untouched pages of it take no memory */
static int end;                               /* no guarded descriptor is as high as this */
static _Atomic uint32_t forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool installed;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void replace(int fd, int *nowhere)
{
    if (*nowhere < 0) {
        close(fd); /* so that there is a number for the next line, whatever the limit */
        *nowhere = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    if (*nowhere >= 0 && *nowhere != fd) {
        (void)dup3(*nowhere, fd, O_CLOEXEC);
    }
}

/* Only calls that are safe in the child of a process with several threads. */
static void in_child(void)
{
    int nowhere = -1;
    atomic_fetch_add(&forks, 1);
    for (int word = 0; word * WORD_BITS < end; word++) {
        for (uint64_t bits = guarded[word]; bits != 0; bits &= bits - 1) {
            replace(word * WORD_BITS + __builtin_ctzll(bits), &nowhere);
        }
        guarded[word] = 0; /* what has these numbers from now on is the child's own */
    }
    end = 0;
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child);
    atomic_store(&installed, true);
}

static void add(int fd)
{
    if (fd >= 0 && fd < FDS_MAX) {
        guarded[fd / WORD_BITS] |= UINT64_C(1) << fd % WORD_BITS;
        end = fd < end ? end : fd + 1;
    }
}

static void take_out(int fd)
{
    if (fd >= 0 && fd < FDS_MAX) {
        guarded[fd / WORD_BITS] &= ~(UINT64_C(1) << fd % WORD_BITS);
    }
}

void gr_fork_guard(int fd)
{
    (void)pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    add(fd);
    pthread_mutex_unlock(&lock);
}

/* Under the lock, here and in gr_fork_accept: no fork comes between the socket and its guard. */
int gr_fork_socket(int domain)
{
    (void)pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    add(fd);
    pthread_mutex_unlock(&lock);
    return fd;
}

int gr_fork_accept(int listener, struct sockaddr_storage *from_out)
{
    socklen_t size = sizeof *from_out;
    (void)pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    int fd = accept4(listener, (struct sockaddr *)from_out, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    add(fd);
    pthread_mutex_unlock(&lock);
    return fd;
}

void gr_fork_unguard(int fd)
{
    pthread_mutex_lock(&lock);
    take_out(fd);
    pthread_mutex_unlock(&lock);
}

/* Under the lock: a fork in between would keep it, and a number that is free is soon another's. */
void gr_fork_close(int fd)
{
    if (fd >= 0) {
        pthread_mutex_lock(&lock);
        take_out(fd);
        close(fd);
        pthread_mutex_unlock(&lock);
    }
}

uint32_t gr_fork_count(void)
{
    if (!atomic_load_explicit(&installed, memory_order_acquire)) { /* every call comes by here */
        (void)pthread_once(&once, install);
    }
    return atomic_load_explicit(&forks, memory_order_relaxed);
}
