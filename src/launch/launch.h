/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_LAUNCH_H
#define GR_LAUNCH_LAUNCH_H

/* Launch a job of processes, on this host or on several, and look after them until the last one
 * has ended. Knows nothing of training: a worker is a command. */

#include "base/log.h"
#include "launch/cores.h"
#include "launch/join.h"
#include "launch/placement/placement.h"
#include "launch/records.h"
#include "launch/root_cause.h"

enum {
    GR_LAUNCH_WORKERS_MAX = 4096,
    GR_LAUNCH_SLOTS_OF_HOSTS = 256, /* at least, where hosts come and go */
    GR_LAUNCH_TAIL_LINES = 10,
    GR_LAUNCH_TAIL_TEXT_BYTES = 5120,
    /* The exit code with which a worker says: I failed only since another one did. */
    GR_LAUNCH_EXIT_PEER = 76,
    /* And: I was asked to end, and can go on if I am started again (EX_TEMPFAIL of sysexits.h). */
    GR_LAUNCH_EXIT_RESUME = 75
};

/* Done to a worker, or to a server, at that time after the start. */
typedef struct gr_launch_fault {
    int64_t at_us;
    int64_t every_us; /* and again and again; 0: once */
    bool of_server;
    int number;
    int what; /* a signal for its group, or a gr_agent_fault */
} gr_launch_fault;

/* What is run. */
typedef struct gr_launch_command {
    char *const *argv;           /* the command and its arguments, NULL-terminated */
    const char *file;            /* the program, when it is not argv[0]; NULL */
    const char *document;        /* what each worker reads on stdin; NULL: nothing (/dev/null) */
    char *const *environment;    /* to inherit on this host, NULL-terminated, */
    char *const *exported;       /* and on others (export.h) */
    const char *const *set;      /* "NAME=value" over it for every worker, NULL-terminated; NULL */
    const char *const *defaults; /* "NAME=value" under it; NULL */
} gr_launch_command;

/* Parameter servers beside the workers, which find them by GRADUS_SERVERS. */
typedef struct gr_launch_servers {
    int count;            /* 0: none */
    char *const *argv;    /* words of this program, NULL-terminated, that make it one of them:
                          GRADUS_SERVER_NUMBER tells it which, and a line like
                          GRADUS_SERVER_0=unix:@... on its stdout tells where it is */
    const char *document; /* what each reads on stdin (GRADUS_SERVER_FD); NULL: nothing */
    bool spare;           /* the job goes on without one of them while others are left, once each
                          has said GRADUS_SERVERS_MET=yes */
    const char *file;     /* gets their addresses and the job's secret, as lines of a shell, for as
                          long as the job runs; NULL */
    const char *run;      /* the job's GRADUS_RUN, by which it knows its file again */
} gr_launch_servers;

/* How other hosts are reached. */
typedef struct gr_launch_remote {
    const gr_placement *placement; /* but for those that join */
    const char *cores_text;        /* what they take for `cores`; NULL: all of theirs */
    const char *program;           /* gradus there: an absolute path */
    int ssh_port;                  /* 0: as ssh has it */
    const char *ssh_identity;      /* a file; NULL: as ssh has it */
    int64_t host_timeout_us;       /* a host that says nothing for so long is lost */
} gr_launch_remote;

/* Hosts that come and go. */
typedef struct gr_launch_discovery {
    gr_acceptor *acceptor; /* where hosts come by themselves, with those in `hosts` that have: their
                              connections are taken; borrowed; NULL: nowhere */
    const char *script; /* a program that prints which hosts there are, by and by; `hosts` is what
                              it has said so far; NULL: they stay the same */
    int slots;          /* of a host for which it says none */
    int64_t pause_us;   /* between two runs of it */
} gr_launch_discovery;

typedef struct gr_launch_output {
    int out_fd, err_fd; /* where the workers' output goes; borrowed */
    bool quiet;         /* only rank 0's */
    bool prefix;        /* "[rank] " in front of each line; else their bytes alone */
    bool raw_rank0;     /* rank 0's stdout as it comes, that of the others not at all; in a job that
                           may lose rank 0, that of all, of whom one at a time writes */
    bool timestamps;    /* behind the rank */
    bool color_out, color_err;
    const char *log_dir; /* rank.<r>.out and rank.<r>.err besides; NULL */
} gr_launch_output;

typedef struct gr_launch_config {
    int workers;
    int workers_max; /* so many at most, later; 0: `workers` */
    int spares;      /* started in addition, they wait for the loss of a worker */
    int restarts;    /* in place of workers that were killed, so many times each; and
                                    a lost host is tried again so many times */
    int workers_min; /* the job goes on when workers are killed, while so many are left;
                                    0: it needs all */
    int helpers;     /* the last so many workers end with the others: parameter servers of
                            another system, say; 0: none; only where workers do not come and go */
    gr_launch_command command;
    gr_launch_servers server;

    const gr_cores *cores; /* that the workers may use, in the order in which they are dealt */
    bool bind;             /* a part of the cores for each worker, where there are enough */
    bool restrict_cores;   /* where there are not enough: all workers on all of `cores` */

    bool encrypt;      /* TLS between workers and the coordinator where they meet by tcp */
    bool all_join;     /* every worker is known to join the group: time counts from the start,
                        * else from the first that joins */
    bool zero_is_done; /* workers that end with 0 after a signal had finished, and so has the job
                        * when one has left the group and ends with 0; else they gave up. One that
                        * SIGTERM kills had not met the others yet */
    int64_t start_timeout_us; /* for the joining; 0: never ends */
    int64_t fence_us;         /* a worker that the others wait for so long is killed; 0: never */
    int64_t orphan_grace_us;  /* what the workers of this host get, after SIGTERM, when the launcher
                               * is gone; 0: they end at once */
    int64_t grace_us;         /* between the signal that asks to end and SIGKILL */

    const gr_host_list *hosts; /* with their ranks dealt; NULL: this host alone */
    gr_launch_remote remote;
    gr_launch_discovery discovery;
    gr_launch_output output;
    const gr_launch_fault *faults;
    int fault_count;
    int attempt;    /* how often the job was begun before: what is written goes behind that */
    gr_crash crash; /* the last one before this attempt */
    struct gr_supervisor *supervisor; /* of the job; borrowed; NULL: nobody finds it or attaches */
    const gr_log *log;                /* may be NULL */
} gr_launch_config;

/* Of the time until an expulsion, how long an operation waits before it fails; the rest is for
 * those that come late to the renewal. */
static inline int64_t gr_launch_stall_us(int64_t fence_us)
{
    return fence_us / 4 * 3;
}

static inline int gr_launch_most(const gr_launch_config *config)
{
    return config->workers_max > config->workers ? config->workers_max : config->workers;
}

/* So many run at most at a time. */
static inline int gr_launch_at_once(const gr_launch_config *config)
{
    return gr_launch_most(config) + config->spares;
}

/* Returns true if workers may join and leave. */
static inline bool gr_launch_elastic(const gr_launch_config *config)
{
    return config->workers_min > 0 && config->workers_min < gr_launch_at_once(config);
}

/* The numbers that workers go by are less than this. Where hosts come and go each has numbers of
 * its own, so that there are more of them than workers. */
static inline int gr_launch_slots(const gr_launch_config *config)
{
    int at_once = gr_launch_at_once(config);
    if (config->hosts == NULL || !gr_launch_elastic(config)) {
        return at_once;
    }
    int slots = 2 * at_once > GR_LAUNCH_SLOTS_OF_HOSTS ? 2 * at_once : GR_LAUNCH_SLOTS_OF_HOSTS;
    return slots < GR_LAUNCH_WORKERS_MAX ? slots : GR_LAUNCH_WORKERS_MAX;
}

/* Those of the servers follow. */
static inline int gr_launch_all_slots(const gr_launch_config *config)
{
    return gr_launch_slots(config) + config->server.count;
}

/* What is known of the end, beside the sentence. */
typedef struct gr_launch_report {
    int rank;                             /* that the failure is about, -1: none */
    int signal_number;                    /* that has asked for an end, also while the job ended
                                             for another reason; 0: none */
    bool resumable;                       /* ended on request, with GR_LAUNCH_EXIT_RESUME */
    bool again;                           /* what was lost did nothing wrong, or crashed once: if
                                             all is restarted it may go well */
    gr_crash crash;                       /* the last one */
    uint64_t step;                        /* that was begun last, as far as is known; 0: none */
    char tail[GR_LAUNCH_TAIL_TEXT_BYTES]; /* the last lines that it wrote, indented; may be empty */
    char last[GR_RECORDS_TEXT_BYTES];     /* what the ranks did last, lines; may be empty */
} gr_launch_report;

/* Blocks until every process of the job has ended and all output is written. SIGINT, SIGTERM and
 * SIGHUP are handed to the workers meanwhile, a second SIGINT or SIGTERM ends them; those that come
 * too late for that are still pending when it returns, if the caller holds them back (signals.h).
 * The calling process adopts the orphans among its descendants. It must have no other threads and
 * no children when this is called.
 *
 * Returns   GR_OK: every worker ended with exit code 0.
 *           GR_E_NOT_FOUND, GR_E_INVALID: the command, a host or a setting is wrong, nothing has
 *           run.
 *           GR_E_PEER_LOST: a worker failed; GR_E_TIMEOUT: one did not join; GR_E_CANCELLED: ended
 *           by a signal; GR_E_IO, GR_E_NO_MEMORY: the operating system refused.
 * In all cases no process, socket or file of the job is left but the log files. */
gr_status gr_launch_run(const gr_launch_config *config, gr_launch_report *report_out,
                        gr_diag *diag) GR_MUST_CHECK;

#endif
