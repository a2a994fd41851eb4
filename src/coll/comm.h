/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMM_H
#define GR_COLL_COMM_H

/* Communicators for the layers above, with what the public face does not offer. */

#include "coll/diagnose/timeline.h"
#include "coll/select/select.h"
#include "group/group.h"
#include <gradus/coll.h>
#include <gradus/elastic.h>
#include <gradus/shards.h>
#include <gradus/stats.h>

/* gr_comm_create from a configuration that the caller has filled (a job file may say `exact:
 * false`, a test may join several groups). The texts in it are borrowed for the call; gr_comm_renew
 * uses copies. rank -1: alone. */
enum { GR_COMM_CONFIG_BYTES_MAX = 64 << 10 }; /* of those texts */
gr_status gr_comm_create_from(const gr_group_config *config, gr_comm **comm_out,
                              gr_diag *diag) GR_MUST_CHECK;

/* Where GRADUS_TIMELINE has this rank's events written; NULL: nowhere. Valid until the last
 * communicator of the context is destroyed. */
gr_timeline *gr_comm_timeline(const gr_comm *comm);

/* The program is in step `step` from now on (from 1): in the record, for whoever reads it when this
 * process is gone. */
void gr_comm_set_step(gr_comm *comm, uint64_t step);

/* Of the group: 1, 2, ... as members are lost and come. */
uint64_t gr_comm_generation(const gr_comm *comm);

/* Returns GR_OK if all members are there, or the failure, which gr_comm_diag has. For callers that
 * wait for what other members do elsewhere, with no operation under way: a member that is gone ends
 * the communicator, as if an operation needed it. Advances pending operations; does not wait. */
gr_status gr_comm_check_members(gr_comm *comm) GR_MUST_CHECK;

/* The name of the host of a rank of a root communicator; "" where nobody knows. Until the next
 * generation. */
const char *gr_comm_host_name(const gr_comm *comm, int rank);

/* "shm", "tcp", or "none" in a group of one. */
const char *gr_comm_link_name(const gr_comm *comm);

/* How operations of this communicator choose their algorithms, and which of its ranks share a host
 * (NULL in a group of one): for tuning (comm_tune.h), between operations. Borrowed. */
gr_selection *gr_comm_selection(gr_comm *comm);
const gr_topology *gr_comm_topology(const gr_comm *comm);

/* The algorithm that this call would take now; "none" in a group of one or for a wrong call. */
const char *gr_comm_algorithm_name(gr_comm *comm, const gr_call *call);

#endif
