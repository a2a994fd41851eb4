/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: what every processor of the architecture can do. */
#define GR_REDUCE_TABLE gr_reduce_c
#include "coll/reduce/reduce_kernels.h"
