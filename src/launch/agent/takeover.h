/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_TAKEOVER_H
#define GR_LAUNCH_AGENT_TAKEOVER_H

/* The other side of supervisor.h: a launcher that comes to a job that runs, and what asks about
 * it. */

#include "launch/agent/job_folder.h"
#include "launch/agent/job_message.h"
#include "launch/process.h"

/* Becomes the job's launcher: our stdout and stderr are lent to its supervisor, which writes to
 * them from now on. Waits until that has answered, at most 60 s.
 * GR_E_INVALID: it has a launcher, whose process number stands in *launcher_out (0 otherwise);
 * GR_E_AGAIN: it has just ended, gr_job_folder_state knows how; GR_E_TIMEOUT, GR_E_IO. */
gr_status gr_takeover(const gr_job_folder *folder, int *connection_out, gr_process *supervisor_out,
                      int *launcher_out, gr_diag *diag) GR_MUST_CHECK;
/* Asks its supervisor, with GR_JOB_STATUS, GR_JOB_KILL, or GR_JOB_SCALE and `want`. GR_E_AGAIN as
 * above; GR_E_TIMEOUT: no answer within 2 s, as between two starts of all workers. GR_JOB_SCALE has
 * 60 s: it is done also when nobody waits for the answer any more. */
gr_status gr_takeover_ask(const gr_job_folder *folder, int kind, int want,
                          gr_job_status *status_out, gr_diag *diag) GR_MUST_CHECK;
/* Its supervisor. GR_E_AGAIN as above. */
gr_status gr_takeover_find(const gr_job_folder *folder, gr_process *supervisor_out,
                           gr_diag *diag) GR_MUST_CHECK;

#endif
