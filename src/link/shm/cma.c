/* SPDX-License-Identifier: Apache-2.0 */

/* Cross-memory attach: the kernel copies between the memory of this process and that of a peer
 * (process_vm_readv, process_vm_writev), which a sandbox, Yama or another PID namespace may forbid.
 *
 * These calls name a process by its number, and a number is given to another process some time
 * after its owner's end. The link keeps a pidfd, which names one process for ever: a write asks it
 * first whether that process lives. An open socket is no proof, since a forked child may hold it as
 * well. */

#include "base/clock.h"
#include "base/fork.h"
#include "link/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COST_TRIES = 5, COST_BYTES = 64 << 10 };

/* Yama lets a process be reached by its ancestors only: the descendants of our parent may as well,
 * which the ranks of a job are. */
static void permit_siblings(void)
{
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    int scope = file ? fgetc(file) : '0';
    if (file) {
        fclose(file);
    }
    if (scope == '1') {
        (void)prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0UL, 0UL, 0UL);
    }
}

static gr_status status_of(ssize_t moved, size_t size_bytes)
{
    return moved == (ssize_t)size_bytes  ? GR_OK
           : moved < 0 && errno == ESRCH ? GR_E_PEER_LOST
                                         : GR_E_PROTOCOL;
}

static gr_status read_from(pid_t pid, uint64_t at, void *dst, size_t size_bytes)
{
    struct iovec here = {.iov_base = dst, .iov_len = size_bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)at, .iov_len = size_bytes};
    return status_of(process_vm_readv(pid, &here, 1, &there, 1, 0), size_bytes);
}

static const gr_shm_link *link_to(const gr_mesh *mesh, int peer)
{
    const gr_link *link = mesh->links[peer];
    return link != NULL && link->ops == &gr_shm_ops ? (const gr_shm_link *)link : NULL;
}

static pid_t process_of(const gr_mesh *mesh, int peer)
{
    return peer == mesh->rank ? getpid() : link_to(mesh, peer)->pid;
}

void gr_shm_cma_open(gr_shm_mesh *mesh, gr_cma cma)
{
    mesh->cma = cma;
    if (cma != GR_CMA_OFF) {
        permit_siblings();
    }
}

/* Reading the peer's card in the peer's own memory shows that the number is right, and that this
 * process may read there. The pidfd is opened before: if the number was the peer's after that, the
 * pidfd is as well. */
void gr_shm_cma_attach(gr_shm_link *link)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    gr_shm_card card;
    const gr_shm_card *shared = gr_shm_card_of(&link->theirs);
    link->pid = 0;
    link->pid_fd = -1;
    if (((const gr_shm_mesh *)link->base.mesh)->cma == GR_CMA_OFF ||
        getsockopt(link->base.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
        return;
    }
    int pid_fd = (int)syscall(SYS_pidfd_open, peer.pid, 0U); /* close-on-exec by itself */
    link->base.mesh->stats.system_calls += 3;
    if (pid_fd < 0) {
        return; /* a kernel before 5.3, or a sandbox */
    }
    if (read_from(peer.pid, shared->card_at, &card, sizeof card) != GR_OK ||
        memcmp(&card, shared, sizeof card) != 0) {
        close(pid_fd);
        return;
    }
    link->pid = peer.pid;
    link->pid_fd = pid_fd;
    gr_fork_guard(pid_fd);
}

void gr_shm_cma_detach(gr_shm_link *link)
{
    if (link->pid > 0) {
        gr_fork_close(link->pid_fd);
        link->pid = 0;
    }
}

gr_cma gr_mesh_cma_setting(const gr_mesh *mesh)
{
    return mesh->ops == &gr_shm_ops ? ((const gr_shm_mesh *)mesh)->cma : GR_CMA_OFF;
}

bool gr_mesh_cma(const gr_mesh *mesh, int peer)
{
    if (gr_mesh_cma_setting(mesh) == GR_CMA_OFF) {
        return false;
    }
    const gr_shm_link *link = peer == mesh->rank ? NULL : link_to(mesh, peer);
    return peer == mesh->rank || (link != NULL && link->pid > 0);
}

bool gr_mesh_cma_alive(gr_mesh *mesh, int peer)
{
    if (peer == mesh->rank) {
        return true;
    }
    struct pollfd process = {.fd = link_to(mesh, peer)->pid_fd, .events = POLLIN};
    mesh->stats.system_calls++;
    return poll(&process, 1, 0) == 0; /* a pidfd is readable when its process has ended */
}

gr_status gr_mesh_cma_read(gr_mesh *mesh, int peer, uint64_t at, void *dst, size_t size_bytes)
{
    mesh->stats.system_calls++;
    return read_from(process_of(mesh, peer), at, dst, size_bytes);
}

gr_status gr_mesh_cma_write(gr_mesh *mesh, int peer, uint64_t at, const void *src,
                            size_t size_bytes)
{
    if (!gr_mesh_cma_alive(mesh, peer)) {
        return GR_E_PEER_LOST;
    }
    /* It is only read. */
    struct iovec here = {.iov_base = (void *)(uintptr_t)src, .iov_len = size_bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)at, .iov_len = size_bytes};
    mesh->stats.system_calls++;
    return status_of(process_vm_writev(process_of(mesh, peer), &here, 1, &there, 1, 0), size_bytes);
}

/* ---- Of the host ----------------------------------------------------------------------------- */
/* The best of a few times: what else the machine does makes a copy slower, never faster. */
static double cost_of(uint8_t *to, const uint8_t *from, double *ns_out)
{
    int64_t kernel_ns = INT64_MAX, copy_ns = INT64_MAX;
    for (int i = 0; i < COST_TRIES; i++) {
        int64_t start_ns = gr_now_ns();
        if (read_from(getpid(), (uint64_t)(uintptr_t)from, to, COST_BYTES) != GR_OK) {
            return HUGE_VAL;
        }
        int64_t between_ns = gr_now_ns();
        memcpy(to, from, COST_BYTES);
        int64_t end_ns = gr_now_ns();
        kernel_ns = between_ns - start_ns < kernel_ns ? between_ns - start_ns : kernel_ns;
        copy_ns = end_ns - between_ns < copy_ns ? end_ns - between_ns : copy_ns;
    }
    *ns_out = (double)kernel_ns / COST_BYTES;
    return (double)kernel_ns / (double)(copy_ns > 0 ? copy_ns : 1);
}

double gr_cma_cost(gr_cma cma, double *ns_out)
{
    double ns;
    ns_out = ns_out != NULL ? ns_out : &ns;
    *ns_out = 0;
    if (cma != GR_CMA_AUTO) {
        return cma == GR_CMA_ON ? 0 : HUGE_VAL;
    }
    uint8_t *memory = calloc(2, COST_BYTES);
    if (memory == NULL) {
        return HUGE_VAL;
    }
    memset(memory, 1, (size_t)2 * COST_BYTES); /* or all of it is one page of zeros */
    double cost = cost_of(memory, memory + COST_BYTES, ns_out);
    free(memory);
    return cost;
}

/* A child that waits to be read, and says when it may be. */
static pid_t start_waiting(const int pipe_fds[2])
{
    pid_t pid = fork();
    if (pid == 0) {
        permit_siblings();
        close(pipe_fds[0]);
        (void)!write(pipe_fds[1], "", 1);
        for (;;) {
            pause();
        }
    }
    return pid;
}

/* A child that reads of the other one, and ends with the number of the error. */
static pid_t start_reading(pid_t other)
{
    pid_t pid = fork();
    if (pid == 0) {
        int there = 0, here = 0;
        gr_status status = read_from(other, (uint64_t)(uintptr_t)&there, &here, sizeof here);
        _exit(status == GR_OK ? 0 : errno);
    }
    return pid;
}

int gr_cma_try(void)
{
    int pipe_fds[2], state = 0, error = 0;
    char word;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        return errno;
    }
    pid_t waiting = start_waiting(pipe_fds);
    close(pipe_fds[1]);
    if (waiting < 0 || read(pipe_fds[0], &word, 1) != 1) {
        error = waiting < 0 ? errno : ECHILD;
    } else {
        pid_t reading = start_reading(waiting);
        bool ended = reading > 0 && waitpid(reading, &state, 0) == reading && WIFEXITED(state);
        error = ended ? WEXITSTATUS(state) : ECHILD;
    }
    if (waiting > 0) {
        kill(waiting, SIGKILL);
        waitpid(waiting, NULL, 0);
    }
    close(pipe_fds[0]);
    return error;
}
