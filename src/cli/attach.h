/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_ATTACH_H
#define GR_CLI_ATTACH_H

/* A launcher of a job whose supervisor is another process (launch/agent/supervisor.h). */

#include "cli/cli.h"
#include "launch/agent/takeover.h"

/* Hands signals to the supervisor until the job has ended, and returns its exit code; or until the
 * terminal is gone (SIGHUP). `child`: the supervisor is our child. The connection is closed. */
int gr_attach_follow(int connection, gr_process *supervisor, bool child);

/* To the job of that folder, whose handle is closed. True: *code_out is the exit code of this
 * process; false: it has a launcher, and `diag` says which. */
bool gr_attach_to(gr_job_folder *folder, int *code_out, gr_diag *diag);

#endif
