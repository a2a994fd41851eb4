/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_ATTACH_H
#define GR_CLI_ATTACH_H

/* A launcher of a job whose supervisor is another process (launch/agent/supervisor.h). */

#include "cli/cli.h"
#include "launch/agent/takeover.h"

/* A supervisor that was killed, or has crashed. */
typedef struct gr_attach_loss {
    pid_t supervisor;
    char run[GR_JOB_RUN_BYTES]; /* of its job: others may have had its number */
    int signal_number;          /* 0: unknown */
    bool begun;                 /* it had reported that something of the job is started */
    bool found;                 /* so are name and record */
    char name[GR_JOB_NAME_BYTES];
    gr_job_record record;
} gr_attach_loss;

enum { GR_ATTACH_LOST = -1 };

/* Hands signals to the supervisor until the job has ended, and returns its exit code; or until the
 * terminal is gone (SIGHUP) and the job has begun. `child`: the supervisor is our child. `run`:
 * that of the job. The connection is closed.
 * GR_ATTACH_LOST: the supervisor is gone without a word. */
int gr_attach_follow(int connection, gr_process *supervisor, bool child, const char *run,
                     gr_attach_loss *loss_out);

/* To the job of that folder, whose handle is closed. True: *code_out is the exit code of this
 * process, or GR_ATTACH_LOST; false: it has a launcher, or has ended while it had one, and `diag`
 * says so. `then`: what is printed behind the sentence that the job had ended without one. */
bool gr_attach_to(gr_job_folder *folder, const char *then, int *code_out, gr_attach_loss *loss_out,
                  gr_diag *diag);
/* Prints that, and `then` behind it. */
void gr_attach_print_end(const gr_job_folder *folder, const gr_job_end *end, const char *then);

/* After a loss: finds the job's folder and waits until its agents have ended. */
void gr_attach_find_lost(gr_attach_loss *loss);
/* Writes what a lost job has written that no launcher has; false: it cannot be written. */
bool gr_attach_deliver(const gr_attach_loss *loss);
/* Says what has happened. True: the job is to be restarted; false: it is over, and the folder is
 * gone. `may`: false: it is over whatever its --restarts. */
bool gr_attach_goes_on(const gr_attach_loss *loss, bool may);

#endif
