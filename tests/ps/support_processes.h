/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TEST_PS_SUPPORT_PROCESSES_H
#define GR_TEST_PS_SUPPORT_PROCESSES_H

/* Parameter servers with replicas that are processes of their own, to be killed or stopped. */

#include "support_servers.h"

#include <sys/types.h>

enum { PROCESSES_MAX = 4 };

typedef struct processes {
    int count;
    bool tcp;
    pid_t pid[PROCESSES_MAX];
    int out[PROCESSES_MAX];
    test_servers reached; /* its addresses */
} processes;

/* timeout_us: after which a silent one is lost. */
void processes_start(processes *servers, int count, bool tcp, int64_t timeout_us);
/* `made` is called in each process, before it serves anybody. */
void processes_start_with(processes *servers, int count, bool tcp, int64_t timeout_us,
                          void (*made)(int number));
/* Waits for the end of one; as waitpid. */
int process_end(processes *servers, int number);
/* None has ended by itself. */
void processes_stop(processes *servers);
/* Until no block would be lost with one more server; at most a minute. Servers that were killed
 * before are missed. */
void processes_wait_for_replicas(gr_ps *ps);
/* How often a test that kills at random moments does it: GRADUS_TEST_KILLS in the environment. */
int process_rounds(int usual);

#endif
