/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_LAUNCH_SUPPORT_PLACEMENT_H
#define GR_TESTS_LAUNCH_SUPPORT_PLACEMENT_H

/* A placement that starts a process for a host, as it is asked to, and no agent: what a batch
 * system does that takes an order and never gives a node. */

#include "launch/placement/placement.h"

extern const gr_placement placement_nothing;
extern int placement_nothing_stops; /* calls of `stop` */

#endif
