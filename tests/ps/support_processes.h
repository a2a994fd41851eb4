/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TEST_PS_SUPPORT_PROCESSES_H
#define GR_TEST_PS_SUPPORT_PROCESSES_H

/* Parameter servers with replicas that are processes of their own, to be killed or stopped. */

#include "support_servers.h"

#include <sys/types.h>

enum { PROCESSES_MAX = 4, PROCESS_ADDRESS_BYTES = 1024 };

typedef struct processes {
    int count;
    bool tcp;
    int64_t timeout_us;
    pid_t pid[PROCESSES_MAX];
    int out[PROCESSES_MAX];
    char address[PROCESSES_MAX][PROCESS_ADDRESS_BYTES];
    test_servers reached; /* its addresses */
} processes;

/* timeout_us: after which a silent one is lost. */
void processes_start(processes *servers, int count, bool tcp, int64_t timeout_us);
/* `made` is called in each process, before it serves anybody. */
void processes_start_with(processes *servers, int count, bool tcp, int64_t timeout_us,
                          void (*made)(int number));
/* How a process comes in place of another one. Zeroed: as it should. */
typedef struct replacement {
    const uint8_t *secret; /* NULL: test_secret */
    int64_t timeout_us;    /* 0: that of the others */
    const char *run;
    bool stops; /* as soon as it is in the servers' table, and before it has any copy */
} replacement;
/* In place of server `number`, whose process is, or is about to be, at its end. It is listed among
 * the addresses from now on. */
void processes_replace(processes *servers, int number, const replacement *how);
/* Waits until that one has stopped itself. */
void process_wait_for_stop(const processes *servers, int number);
/* It is killed, and its end is waited for. */
void process_kill(processes *servers, int number);
/* All servers are there, and no block would be lost with one of them; at most a minute. */
void processes_wait_until_whole(gr_ps *ps);
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
