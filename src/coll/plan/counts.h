/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_COUNTS_H
#define GR_COLL_PLAN_COUNTS_H

/* How many values the public enumerations have. Programs must not depend on these numbers: they
 * grow. */

#include <gradus/coll.h>

enum {
    GR_DTYPE_COUNT = GR_COMPLEX128 + 1,
    GR_REDOP_COUNT = GR_BXOR + 1,
    GR_COLL_COUNT = GR_COLL_RECV + 1
};

#endif
