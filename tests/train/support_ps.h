/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TEST_SUPPORT_PS_H
#define GR_TEST_SUPPORT_PS_H

#include "support_train.h"

#include <sys/types.h>

enum { SUPPORT_SERVERS_MAX = 4, SUPPORT_ADDRESSES_BYTES = 1024 };

/* Parameter servers, each in a process of its own, that groups which are started meanwhile find by
 * their environment. */
typedef struct support_servers {
    int count;
    bool tcp;
    pid_t pids[SUPPORT_SERVERS_MAX];
    char folder[SUPPORT_PATH_BYTES];
} support_servers;
void support_servers_start(support_servers *servers, int count, const char *link);
void support_servers_stop(support_servers *servers);

#endif
