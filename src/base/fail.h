/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FAIL_H
#define GR_BASE_FAIL_H

#include <gradus/status.h>
#include <stdbool.h>

/* The code that detects an error reports it once, by this call; its callers forward the status.
 * Writes one sentence into `diag` (may be NULL) and returns `status`. */
gr_status gr_fail(gr_diag *diag, gr_status status, const char *format, ...) GR_PRINTF(3, 4);

/* The same for a failure of, or about, the peer with this rank. */
gr_status gr_fail_peer(gr_diag *diag, gr_status status, int peer_rank, const char *format, ...)
    GR_PRINTF(4, 5);

/* Returns true if the status means that another rank died, was too slow or revoked the
 * communicator. */
bool gr_fault_of_peer(gr_status status);

/* Returns false if no status has this number: it came from a newer peer, or from one that lies. */
bool gr_status_is_known(gr_status status);

/* Sets status GR_OK, peer_rank -1 and an empty text. */
void gr_diag_clear(gr_diag *diag);

/* Aborts the process if training state would be corrupted. Never used for bad input, files, peers
 * or lack of memory. Enabled in every build. */
#define GR_CHECK(condition)                                                                        \
    ((condition) ? (void)0 : gr_check_failed(#condition, __FILE__, __LINE__))
_Noreturn void gr_check_failed(const char *condition, const char *file, int line);

#endif
