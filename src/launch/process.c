/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

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
