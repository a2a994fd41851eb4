/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_ELASTIC_H
#define GRADUS_ELASTIC_H

/* Jobs whose members come and go: a communicator goes on with those that live. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces the communicator by one of the members that live. Call it when an operation has failed
 * because a peer is lost, or after a step for which gr_comm_change_wanted returned 1, in a job that
 * was started for it (gradus run --min-workers). Every survivor calls it, and it returns when all
 * have come. Ranks keep the order of the old ones; joining workers come behind.
 *
 * comm     replaced. All gr_alloc memory and operations of the old communicator are gone (callbacks
 *          as in gr_comm_destroy), its registered memory is private again (gr_register), and its
 *          sub-groups must have been destroyed before.
 * diag     filled on failure; may be NULL.
 * Returns  GR_OK; GR_E_INVALID (sub-groups live, a group of one, a forked child; nothing happened);
 *          GR_E_UNSUPPORTED (the job cannot go on without a member), GR_E_CANCELLED (this rank is
 *          not needed any more, and should end), GR_E_COMM_BROKEN (fewer are left than the job
 *          needs), GR_E_TIMEOUT, GR_E_PEER_LOST (the coordinator is not reached),
 *          GR_E_NO_MEMORY, GR_E_IO; *comm is NULL then.
 * Threads  no other call on the same communicator at the same time. */
GR_API gr_status gr_comm_renew(gr_comm **comm, gr_diag *diag) GR_MUST_CHECK;

/* Returns 1 if workers are to join or to leave the job, or if this rank of a job that may go on
 * without it does not reach the job's coordinator any more; 0 otherwise. Costs a microsecond and
 * waits for nobody. Ranks learn of a change at different moments: they should agree (in a sum that
 * they make anyway) and all call gr_comm_renew after the same step. Joining workers wait in
 * gr_comm_create meanwhile. A rank that is cut off from the coordinator gets GR_E_PEER_LOST from
 * gr_comm_renew, and should end. */
GR_API int gr_comm_change_wanted(gr_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
