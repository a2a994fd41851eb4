/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_BATCH_H
#define GR_OPERATOR_LOCAL_BATCH_H

/* What a cluster does with a batch Job of one pod, as is the launcher of an MPIJob: it makes the
 * pod, another one after a failure, and tells how it went. */

#include "operator/local/store.h"

/* Looks at all Jobs. *again_s_out: when to look again, in seconds since 1970; INT64_MAX: after the
 * next change. */
void gr_batch_look(gr_store *store, int64_t wall_s, int64_t *again_s_out);

#endif
