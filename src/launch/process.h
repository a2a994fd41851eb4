/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_PROCESS_H
#define GR_LAUNCH_PROCESS_H

/* Another process, to be signalled and waited for. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A process that is signalled and waited for by a descriptor, so that its number cannot be another
 * process's by then; where the kernel has none (before 5.3), by its number. */
typedef struct gr_process {
    pid_t pid;
    int fd; /* -1: none */
} gr_process;

gr_process gr_process_open(pid_t pid);
void gr_process_close(gr_process *process);
/* False: it has ended. */
bool gr_process_signal(const gr_process *process, int signal_number);
/* Waits for a child of ours, until gr_clock_real's `until_us` at most. False: it still runs.
 * *status_out: as from waitpid; 0 where another has waited for it. */
bool gr_process_wait(const gr_process *child, int64_t until_us, int *status_out);

#endif
