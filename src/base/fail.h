/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FAIL_H
#define GR_BASE_FAIL_H

#include <gradus/status.h>
#include <stdbool.h>

/* The place that decides that something is an error says so once, here; callers forward the status.
 * Writes one sentence into `diag` (may be NULL) and returns `status`. */
gr_status gr_fail(gr_diag *diag, gr_status status, const char *format, ...) GR_PRINTF(3, 4);

/* The same for a failure that is about a peer. */
gr_status gr_fail_peer(gr_diag *diag, gr_status status, int peer_rank, const char *format, ...)
    GR_PRINTF(4, 5);

/* Did the call fail only since another rank did: it died, was slow, or broke the communicator? */
bool gr_fault_of_peer(gr_status status);

/* Forget the last failure: status GR_OK, peer_rank -1, empty text. */
void gr_diag_clear(gr_diag *diag);

/* Always on, for what would corrupt training state; never for input, files, peers or memory. */
#define GR_CHECK(condition)                                                                        \
    ((condition) ? (void)0 : gr_check_failed(#condition, __FILE__, __LINE__))
_Noreturn void gr_check_failed(const char *condition, const char *file, int line);

#endif
