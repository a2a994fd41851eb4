/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMM_H
#define GR_COLL_COMM_H

/* Communicators for the floors above, with what the public face does not offer. */

#include "coll/timeline.h"
#include "group/group.h"
#include <gradus/coll.h>

/* gr_comm_create from a configuration that the caller has filled (a job file may say `exact:
 * false`, a test may join several groups). The texts in it are borrowed for the call. rank -1:
 * alone. */
gr_status gr_comm_create_from(const gr_group_config *config, gr_comm **comm_out,
                              gr_diag *diag) GR_MUST_CHECK;

gr_status gr_comm_renew_from(const gr_group_config *config, gr_comm **comm,
                             gr_diag *diag) GR_MUST_CHECK;

/* Where GRADUS_TIMELINE has this rank's events written; NULL: nowhere. Valid until the last of the
 * communicator's relatives is destroyed. */
gr_timeline *gr_comm_timeline(const gr_comm *comm);

/* The program is in step `step` from now on (from 1): in the record, for whoever reads it when this
 * process is gone. */
void gr_comm_note_step(gr_comm *comm, uint64_t step);

/* "shm", "tcp", or "none" in a group of one. */
const char *gr_comm_link_name(const gr_comm *comm);

/* The algorithm that this call would take now; "none" in a group of one or for a wrong call. */
const char *gr_comm_algorithm_name(gr_comm *comm, const gr_call *call);

#endif
