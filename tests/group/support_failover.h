/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_GROUP_SUPPORT_FAILOVER_H
#define GR_TESTS_GROUP_SUPPORT_FAILOVER_H

/* A small group in which a member takes over when the coordinator dies: the rules of each
 * coordinator as they are, a model of each member, and what is on its way between them. */

#include <stdbool.h>
#include <stdint.h>

/* So much may happen. */
typedef struct failover_setting {
    int size;
    int numbers; /* more than that, for those that join; 0: no more */
    int want;    /* so many may be members; 0: as many as there are at first */
    bool early;  /* from where all have called in, and none has heard so */
    uint8_t crashes, ends, cuts, hurries, leaves, joins;
} failover_setting;

/* All of it, in every order. Fails the test with the way to what goes wrong. */
void failover_explore(const failover_setting *with);

#endif
