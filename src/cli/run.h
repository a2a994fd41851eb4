/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_RUN_H
#define GR_CLI_RUN_H

/* What the files of `gradus run` share: run_line.c reads the line, run_hosts.c finds the hosts and
 * cores, run_job.c reads the job file, run_attempts.c starts the workers, and once more when nobody
 * is left, run_supervise.c lets the job outlive its launcher; run.c is the verb. */

#include "cli/cli.h"
#include "cli/role.h"
#include "launch/agent/supervisor.h"
#include "launch/export.h"
#include "launch/launch.h"
#include "link/fault.h"
#include "train/job/job.h"

#include <limits.h>

/* Where the workers are started. */
typedef struct gr_run_where {
    const char *hosts, *hostfile, *discovery, *listen;
    int64_t slots_per_host, discovery_us;
    bool slurm;
    int64_t ssh_port;
    const char *ssh_identity, *remote_program;
    int64_t host_timeout_us;
} gr_run_where;

typedef struct gr_run_options {
    int64_t workers, workers_min, workers_max, spares, restarts, servers, replicas;
    const char *cores, *servers_file, *roles;
    bool bind, encrypt;
    int64_t threads;
    int link, success;
    gr_run_where where;
    bool quiet, prefix, timestamps;
    const char *log_dir, *timeline, *input;
    int64_t grace_us, start_timeout_us, fence_us;
    int orphans;
    bool dry_run, resume;
    const char *cluster, *outlive, *name;
    const char *const *export;
    gr_job_overrides job; /* of a job file */
} gr_run_options;

enum { GR_RUN_SETTINGS_MAX = 32 }; /* --set */
enum { GR_RUN_LINK_OF_JOB = 0 };
extern const gr_config_foreign gr_run_foreign[]; /* run_foreign.c; ends with flag NULL */
extern const char *const gr_run_link_choices[];  /* of --link; ends with NULL */
enum { GR_RUN_SUCCESS_AUTO = 0, GR_RUN_SUCCESS_CHIEF, GR_RUN_SUCCESS_ALL };
enum { GR_RUN_ORPHANS_END = 0, GR_RUN_ORPHANS_FINISH };

/* Everything that one `gradus run` knows. */
typedef struct gr_cli_run {
    gr_run_options options;
    gr_arena arena;
    gr_cores cores;
    gr_host_list hosts;               /* count 0: this host */
    gr_acceptor *acceptor;            /* where hosts come by themselves; NULL */
    char program[PATH_MAX];           /* on other hosts */
    const gr_placement *placement;    /* of those that are not this host */
    const char *job_path;             /* NULL: a command */
    bool inexact;                     /* the job permits what is fastest */
    const char *resume;               /* the checkpoint to go on from; NULL */
    bool writes;                      /* checkpoints, while it trains */
    uint64_t past_step;               /* that an earlier attempt has come to */
    const char *output;               /* where the job leaves what it makes; NULL: nowhere */
    uint64_t content;                 /* of what was read (gr_run_content) */
    char unbound[GR_DIAG_TEXT_BYTES]; /* --dry-run: why the job has no data */
    char *document;                   /* what workers read: the job, or --stdin; heap */
    char *const *command;             /* NULL-terminated */
    gr_roles roles;                   /* of --roles; tasks 0: none */
    int helpers;                      /* so many of the last tasks end with the others */
    gr_exported exported;
    gr_launch_fault faults[2 * GR_FAULTS_MAX];
    int fault_count;
    gr_job_record record;      /* for those that look for the job */
    bool again;                /* an earlier supervisor of it was killed */
    bool bound;                /* nobody could find it yet: it ends with its launcher */
    gr_supervisor *supervisor; /* NULL: nothing is started */
    gr_log log;
} gr_cli_run;

/* run_line.c: flags, then either a job file with flags around it, or a command whose words are its
 * own. */
gr_status gr_run_read_line(gr_cli_run *run, int argc, char *const *argv, bool *help_out,
                           gr_diag *diag) GR_MUST_CHECK;
void gr_run_print_help(void);

/* run_hosts.c: may hosts take part that are not this one? */
bool gr_run_elsewhere(const gr_cli_run *run);
/* The hosts, and what the other ones are to run. */
gr_status gr_run_find_hosts(gr_cli_run *run, gr_diag *diag) GR_MUST_CHECK;
/* Those that come and go: waits until they have slots for so many workers, and then has no others.
 * GR_E_CANCELLED: a signal that is held back (launch/signals.h) wants an end. */
gr_status gr_run_gather_hosts(gr_cli_run *run, int need, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_run_find_cores(gr_cli_run *run, gr_diag *diag) GR_MUST_CHECK;
/* How many workers there are if nobody says: one for each slot of the hosts, or for each core. */
int gr_run_room(const gr_cli_run *run);

/* run_job.c: what can be known of the job's file without the hosts. */
gr_status gr_run_check_job_file(const gr_cli_run *run, gr_diag *diag) GR_MUST_CHECK;
/* Reads and checks the job, so that a mistake in it is reported before anything starts. */
gr_status gr_run_read_job(gr_cli_run *run, gr_diag *diag) GR_MUST_CHECK;
/* A hash of what stands now in the job file, or in the files of up to 16 MiB that a command names
 * (its program, its script, a configuration); 0: there is none, or it cannot be read once more (a
 * pipe). */
uint64_t gr_run_content(const gr_cli_run *run);
/* Sets job->run.resume, with a text of the arena, to the newest checkpoint; NULL: there is none.
 * Its shards count where the job says none. */
gr_status gr_run_find_checkpoint(gr_job *job, const gr_log *log, gr_arena *arena,
                                 gr_diag *diag) GR_MUST_CHECK;

/* run_advice.c: with --dry-run of a job with parameter servers: how many of them its workers need.
 */
gr_status gr_run_advise(gr_cli_run *run, const gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* Once more: from the newest checkpoint where there are some, else from the first step, which leads
 * to the same bits. */
gr_status gr_run_read_job_again(gr_cli_run *run, gr_diag *diag) GR_MUST_CHECK;

/* run_supervise.c: takes over what the same line has started before, if that runs, or has ended
 * unseen while job file and output are still as they were; else does the `work`, in a process of
 * its own if the job is to outlive this one, and once more in another one when that is killed.
 * Returns the exit code. */
int gr_run_supervise(gr_cli_run *run, int argc, char *const *argv, int (*work)(gr_cli_run *run));
/* From now on the job can be found. GR_E_INVALID: it must not have that name. */
gr_status gr_run_publish(gr_cli_run *run, gr_diag *diag) GR_MUST_CHECK;

/* run_attempts.c: runs it, and runs it again when nobody is left to go on with: the exit code. */
int gr_run_attempts(gr_cli_run *run);

#endif
