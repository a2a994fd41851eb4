/* SPDX-License-Identifier: Apache-2.0 */

/* How fast a program computes beside a plain TCP stream each way: the ceiling of bench/overlap.py.
 *
 *     bench_overlap OWN PEER BYTES ITERATIONS COMPUTE_US
 *
 * Two of them, each with the addresses of both. In turn the loop runs alone, and while a thread
 * moves BYTES over one connection in both directions, in large pieces, and woken as seldom as the
 * kernel permits (SO_RCVLOWAT). An allreduce of two hosts moves as much, and adds. */

#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 7000, PIECE_BYTES = 1 << 20, LOWAT_BYTES = 256 << 10, TRIES = 7, PROBE = 2000000 };

typedef struct mover {
    int fd;
    size_t size_bytes;
    char *out, *in;
} mover;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int connected(const char *own, const char *peer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, fd = -1;
    if (strcmp(own, peer) < 0) {
        int acceptor = socket(AF_INET, SOCK_STREAM, 0);
        (void)setsockopt(acceptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        (void)inet_pton(AF_INET, own, &address.sin_addr);
        if (bind(acceptor, (void *)&address, sizeof address) != 0 || listen(acceptor, 1) != 0) {
            fail("listen");
        }
        fd = accept(acceptor, NULL, NULL);
        close(acceptor);
    } else {
        (void)inet_pton(AF_INET, peer, &address.sin_addr);
        for (int i = 0; i < 500 && fd < 0; i++) {
            fd = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(fd, (void *)&address, sizeof address) != 0) {
                close(fd);
                fd = -1;
                (void)poll(NULL, 0, 20); /* the other one is not there yet */
            }
        }
    }
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) {
        fail("connect");
    }
    return fd;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void *move(void *arg)
{
    const mover *m = arg;
    int now = 0;
    for (size_t sent = 0, got = 0; sent < m->size_bytes || got < m->size_bytes;) {
        struct pollfd ready = {.fd = m->fd};
        ready.events =
            (short)((sent < m->size_bytes ? POLLOUT : 0) | (got < m->size_bytes ? POLLIN : 0));
        int lowat = got < m->size_bytes ? (int)least(m->size_bytes - got, LOWAT_BYTES) : 1;
        if (lowat != now) {
            (void)setsockopt(m->fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
            now = lowat;
        }
        (void)poll(&ready, 1, -1);
        if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && got < m->size_bytes) {
            size_t want = least(m->size_bytes - got, PIECE_BYTES);
            ssize_t count = recv(m->fd, m->in + got, want, MSG_DONTWAIT);
            if (count == 0) {
                fail("recv");
            }
            got += count > 0 ? (size_t)count : 0;
        }
        if ((ready.revents & POLLOUT) != 0) {
            size_t want = least(m->size_bytes - sent, PIECE_BYTES);
            ssize_t count = send(m->fd, m->out + sent, want, MSG_DONTWAIT | MSG_NOSIGNAL);
            sent += count > 0 ? (size_t)count : 0;
        }
    }
    int one = 1;
    (void)setsockopt(m->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    return NULL;
}

/* As in `gradus bench --compute`. */
static double compute_us(uint64_t loops)
{
    int64_t start_ns = gr_now_ns();
    uint64_t state = loops;
    for (uint64_t i = 0; i < loops; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        __asm__ volatile("" : "+r"(state));
    }
    return (double)(gr_now_ns() - start_ns) / 1e3;
}

static void meet(int fd)
{
    char byte = 1;
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || recv(fd, &byte, 1, MSG_WAITALL) != 1) {
        fail("meet");
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: bench_overlap OWN PEER BYTES ITERATIONS COMPUTE_US\n");
        return 2;
    }
    mover m = {.fd = connected(argv[1], argv[2]), .size_bytes = strtoull(argv[3], NULL, 10)};
    int iterations = atoi(argv[4]);
    m.out = malloc(m.size_bytes);
    m.in = malloc(m.size_bytes);
    if (m.out == NULL || m.in == NULL || iterations < 1) {
        fail("memory");
    }
    memset(m.out, 1, m.size_bytes);
    memset(m.in, 1, m.size_bytes);
    double probe_us = 1e30, alone_us = 0, beside_us = 0, all_us = 0;
    for (int i = 0; i < TRIES; i++) {
        double took_us = compute_us(PROBE);
        probe_us = took_us < probe_us ? took_us : probe_us;
    }
    uint64_t loops = (uint64_t)(atof(argv[5]) / probe_us * PROBE) + 1;
    for (int i = -1; i < iterations; i++) { /* the first one counts not: TCP learns the path */
        pthread_t thread;
        double own_us = compute_us(loops);
        meet(m.fd);
        int64_t start_ns = gr_now_ns();
        if (pthread_create(&thread, NULL, move, &m) != 0) {
            fail("thread");
        }
        double with_us = compute_us(loops);
        pthread_join(thread, NULL);
        alone_us += i < 0 ? 0 : own_us;
        beside_us += i < 0 ? 0 : with_us;
        all_us += i < 0 ? 0 : (double)(gr_now_ns() - start_ns) / 1e3;
    }
    printf("{\"compute_speed\": %.4f, \"time_us_mean\": %.1f}\n", alone_us / beside_us,
           all_us / iterations - atof(argv[5]));
    return 0;
}
