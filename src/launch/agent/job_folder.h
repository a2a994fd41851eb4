/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_JOB_FOLDER_H
#define GR_LAUNCH_AGENT_JOB_FOLDER_H

/* The folder of a job of this user on this host: $XDG_RUNTIME_DIR/gradus/<name>, or
 * /tmp/gradus-<uid>/<name> where there is no such variable or no such folder. All of them have mode
 * 0700.
 *
 *     lock        held by the job's supervisor, and by its agents, for as long as one of them runs
 *     job         what was started (gr_job_record)
 *     socket      where the supervisor listens (supervisor.h)
 *     output, output.old
 *                 what the job has written (output_log.h)
 *     left        how much of that a launcher had written when it left; not there: all of it
 *     end         the exit code, once the job has ended and until a launcher has it (gr_job_end)
 *
 * A folder whose lock nobody holds and that has no end is that of a supervisor that was killed. It
 * is kept for the same command line, which goes on with the job. */

#include <gradus/status.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    GR_JOB_NAME_BYTES = 64,
    GR_JOB_COMMAND_BYTES = 512,
    GR_JOB_RUN_BYTES = 64,
    GR_JOB_STREAMS = 2,
    GR_JOB_FOLDER_BACKLOG = 16 /* of its socket */
};

typedef struct gr_job_folder {
    char name[GR_JOB_NAME_BYTES];
    int base_fd, fd;
    int lock_fd; /* -1: another process's; who inherits it holds the lock as well */
} gr_job_folder;

typedef struct gr_job_record {
    int64_t start_s;                    /* since 1970 */
    uint64_t identity;                  /* of command line and working folder */
    pid_t supervisor;                   /* its process number */
    pid_t launcher;                     /* that of its launcher; 0: none */
    int attempt, restarts;              /* how often it was restarted, one less until something of
                                           it was started; so often at most */
    char run[GR_JOB_RUN_BYTES];         /* GRADUS_RUN of its workers; no space in it */
    char command[GR_JOB_COMMAND_BYTES]; /* for people: one line, perhaps cut */
} gr_job_record;

typedef struct gr_job_end {
    int code;
    int64_t end_s;
    uint64_t delivered[GR_JOB_STREAMS]; /* bytes of stdout and stderr that a launcher has written */
    uint64_t content;                   /* of the job file, as a hash; 0: there is none */
    char output[PATH_MAX];              /* the folder that holds what the job has left, as the job
                                           says, on this host; "": none does */
} gr_job_end;

typedef enum gr_job_state {
    GR_JOB_RUNS,
    GR_JOB_ENDED,
    GR_JOB_LOST, /* its supervisor was killed, and its agents have ended */
    GR_JOB_STATES
} gr_job_state;

/* 1 to 63 letters, digits, '.', '_', '-', of which the first is a letter or digit. GR_E_INVALID */
gr_status gr_job_name_check(const char *name, gr_diag *diag) GR_MUST_CHECK;
/* The same for the same words in the same working folder. */
uint64_t gr_job_identity(int argc, char *const *argv);
/* The words, on one line. */
void gr_job_describe(int argc, char *const *argv, char command_out[GR_JOB_COMMAND_BYTES]);

/* Makes the folder and takes its lock; removes those of jobs that were lost, or ended, a week ago,
 * and the one of that name if its job is lost. `name` NULL: a new one. `listen_fd_out`: a socket
 * that listens there. GR_E_INVALID: a job of that name runs, or has ended and its exit code was not
 * received; GR_E_IO: no folder can be made. */
gr_status gr_job_folder_create(const char *name, const gr_job_record *record,
                               gr_job_folder *folder_out, int *listen_fd_out,
                               gr_diag *diag) GR_MUST_CHECK;
/* An existing one. GR_E_NOT_FOUND: there is none; GR_E_INVALID: it belongs to another user. */
gr_status gr_job_folder_open(const char *name, gr_job_folder *folder_out,
                             gr_diag *diag) GR_MUST_CHECK;
/* A lock that it holds goes with it. */
void gr_job_folder_close(gr_job_folder *folder);
/* The folder goes, the handle stays. */
void gr_job_folder_remove(const gr_job_folder *folder);
/* What processes have left that were killed while they made a folder, or removed it. Making one
 * does this as well. */
void gr_job_folder_remove_unfinished(void);
/* Names of all, at most `room`; returns how many were written. GR_E_INVALID as above: none. */
int gr_job_folder_list(char (*names_out)[GR_JOB_NAME_BYTES], int room, gr_diag *diag);

/* `end_out` is written where the job has ended. */
gr_job_state gr_job_folder_state(const gr_job_folder *folder, gr_job_end *end_out);
/* false: it cannot be read. */
bool gr_job_folder_record(const gr_job_folder *folder, gr_job_record *record_out);
/* In place of what it was made with. 0 or errno. */
int gr_job_folder_write_record(const gr_job_folder *folder, const gr_job_record *record);
/* 0 or errno. */
int gr_job_folder_write_end(const gr_job_folder *folder, const gr_job_end *end);
/* NULL: a launcher has come, and writes all of it. 0 or errno. */
int gr_job_folder_write_left(const gr_job_folder *folder, const uint64_t delivered[GR_JOB_STREAMS]);
/* false: no launcher has left. */
bool gr_job_folder_left(const gr_job_folder *folder, uint64_t delivered_out[GR_JOB_STREAMS]);
/* A connection to its supervisor: SOCK_SEQPACKET, close-on-exec; -1 with errno. */
int gr_job_folder_connect(const gr_job_folder *folder);

#endif
