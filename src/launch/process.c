/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/process.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 5 }; /* where a kernel has no descriptors of processes */

gr_process gr_process_open(pid_t pid)
{
    return (gr_process){.pid = pid, .fd = (int)syscall(SYS_pidfd_open, pid, 0)};
}

void gr_process_close(gr_process *process)
{
    if (process->fd >= 0) {
        close(process->fd);
    }
    process->fd = -1;
}

/* The kernel takes signals also for one that has ended, as long as nobody has waited for it. */
bool gr_process_signal(const gr_process *process, int signal_number)
{
    struct pollfd end = {.fd = process->fd, .events = POLLIN};
    return process->fd >= 0
               ? syscall(SYS_pidfd_send_signal, process->fd, signal_number, NULL, 0) == 0 &&
                     poll(&end, 1, 0) == 0
               : kill(process->pid, signal_number) == 0;
}

bool gr_process_wait(const gr_process *child, int64_t until_us, int *status_out)
{
    const gr_clock clock = gr_clock_real();
    struct pollfd end = {.fd = child->fd, .events = POLLIN};
    pid_t ended;
    *status_out = 0;
    while ((ended = waitpid(child->pid, status_out, WNOHANG)) == 0 ||
           (ended < 0 && errno == EINTR)) {
        const int64_t left_us = until_us - gr_clock_now_us(&clock);
        const int64_t longest_ms = child->fd >= 0 ? INT_MAX - 1 : LOOK_MS;
        if (left_us <= 0) {
            return false;
        }
        (void)poll(&end, 1, (int)(left_us / 1000 < longest_ms ? left_us / 1000 + 1 : longest_ms));
    }
    return true;
}
