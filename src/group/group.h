/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_GROUP_H
#define GR_GROUP_GROUP_H

/* Who acts together. The coordinator (in the launcher) waits until every rank has called in, then
 * tells all where the others are: that is generation 1. Members then wire links to each other. */

#include "base/config.h"
#include "group/launcher.h"
#include "group/op_report.h"
#include "group/topology.h"
#include "link/link.h"

/* GRADUS_LINK */
typedef enum gr_link_choice {
    GR_LINK_AUTO = 0, /* shm between ranks of one host, tcp between hosts */
    GR_LINK_ALL_SHM = 1,
    GR_LINK_ALL_TCP = 2
} gr_link_choice;
extern const char *const gr_link_choices[]; /* their names; ends with NULL */

/* Gathers `size_bytes` bytes of each rank, in the order of ranks, into all_out (world size *
 * size_bytes bytes), on all ranks; size_bytes is the same on all ranks. Nonzero: failure. */
typedef int gr_bootstrap_allgather(void *arg, const void *mine, size_t size_bytes, void *all_out);
const char *gr_link_choice_name(uint32_t choice);

/* What a worker receives from its environment, or from its caller. */
typedef struct gr_group_config {
    int64_t rank, world_size;       /* GRADUS_RANK (-1: alone), GRADUS_WORLD_SIZE */
    int64_t local_rank, local_size; /* GRADUS_LOCAL_RANK, GRADUS_LOCAL_SIZE; 0: not given */
    const char *coordinator;        /* GRADUS_COORDINATOR: "unix:@..." or "tcp:host:port" */
    const char *secret_hex;         /* GRADUS_SECRET: 64 hexadecimal digits */
    const char *secret_file;        /* GRADUS_SECRET_FILE: where they stand, if not there */
    int bootstrap;                  /* GRADUS_BOOTSTRAP: 0 auto, 1 off: GRADUS_RANK alone counts */
    const char *rendezvous_dir;     /* GRADUS_RENDEZVOUS_DIR; NULL: none */
    /* Instead of coordinator and secret: called twice in each join, on all ranks. With a
     * join_timeout_us it runs on a thread of its own; a call that has not returned by then ends the
     * join and keeps that thread, and `allgather_arg` in use, until it returns. Without one it runs
     * on the caller's thread. No variables: NULL in what the environment says. */
    gr_bootstrap_allgather *allgather;
    void *allgather_arg;
    gr_launch launch;        /* what another launcher has set, where GRADUS_RANK is not */
    int link;                /* GRADUS_LINK: a gr_link_choice */
    const char *host;        /* GRADUS_HOST: which host this is; NULL: found out */
    const char *interfaces;  /* GRADUS_INTERFACE: "eth0,10.0.0.0/8"; NULL: all */
    int64_t connect_all_max; /* GRADUS_CONNECT_ALL; 0: chosen */
    int rails;               /* GRADUS_RAILS: tcp connections between two ranks; 0:
                                     * chosen */
    const char *ports;       /* GRADUS_PORTS: "40000-40100"; NULL: any */
    int64_t members_min;     /* GRADUS_MIN_WORKERS; 0: all */
    int64_t members_max;     /* GRADUS_MAX_WORKERS; 0: world_size */
    bool failover;           /* GRADUS_FAILOVER: ready to take over the coordinator */
    bool joining;            /* GRADUS_JOINING: the job runs already */
    int64_t join_timeout_us; /* GRADUS_JOIN_TIMEOUT */
    int64_t peer_timeout_us; /* GRADUS_PEER_TIMEOUT */
    int64_t op_timeout_us;   /* GRADUS_OP_TIMEOUT: an operation that waits longer fails; 0: never */
    int64_t stall_warn_us;   /* GRADUS_STALL_WARN; 0: never */
    int64_t stall_fail_us;   /* GRADUS_STALL_FAIL; 0: op_timeout_us */
    int64_t spin_us;         /* GRADUS_SPIN */
    int cma;                 /* GRADUS_CMA: a gr_cma */
    bool encrypt;            /* GRADUS_ENCRYPT: TLS on what goes by tcp */
    bool exact;              /* GRADUS_EXACT */
    const char *algorithm;   /* GRADUS_ALGORITHM: "allreduce=direct"; NULL: chosen */
    const char *tune;        /* GRADUS_TUNE: "auto", "off" or a file */
    int64_t tune_time_us;    /* GRADUS_TUNE_TIME */
    int progress;            /* GRADUS_PROGRESS: auto, thread, inline */
    int threads;             /* GRADUS_THREADS: a gr_threads */
    int64_t segment_bytes;   /* GRADUS_SEGMENT */
    const char *record;      /* GRADUS_RECORD; NULL: none */
    const char *timeline;    /* GRADUS_TIMELINE; NULL: none */
    int log_level;           /* GRADUS_LOG: a gr_log_level */
    gr_log_sink *log_sink;   /* where the log goes; NULL: stderr. No variable */
    void *log_arg;
} gr_group_config;
extern const gr_config_table gr_group_config_table;

/* What stands in rows of other tables as well, of the coordinator say: the variable's name, its
 * bounds and what it is unless somebody says otherwise. */
#define GR_GROUP_ROW_ENCRYPT                                                                       \
    .env = "GRADUS_ENCRYPT", .type = GR_CONFIG_BOOL, .default_text = "false"
#define GR_GROUP_ROW_LINK                                                                          \
    .env = "GRADUS_LINK", .type = GR_CONFIG_CHOICE, .default_text = "auto",                        \
    .choices = gr_link_choices
#define GR_GROUP_ROW_MEMBERS_MIN                                                                   \
    .env = "GRADUS_MIN_WORKERS", .type = GR_CONFIG_INT, .default_text = "0", .min = 0,             \
    .max = GR_GROUP_WORLD_MAX, .unit = "ranks"
#define GR_GROUP_ROW_PEER_TIMEOUT                                                                  \
    .env = "GRADUS_PEER_TIMEOUT", .type = GR_CONFIG_DURATION, .default_text = "25s", .min = 100e3, \
    .max = 3600e6, .unit = "s"
#define GR_GROUP_ROW_PORTS                                                                         \
    .env = "GRADUS_PORTS", .type = GR_CONFIG_TEXT, .value_name = "FIRST-LAST",                     \
    .help = "tcp ports to listen on, \"40000-40100\"; unset: any that is free"
#define GR_GROUP_ROW_INTERFACES                                                                    \
    .env = "GRADUS_INTERFACE", .type = GR_CONFIG_TEXT, .value_name = "NAMES",                      \
    .help = "network interfaces or subnets to use, \"eth0,10.0.0.0/8\"; unset: all that are up"
#define GR_GROUP_ROW_SEGMENT                                                                       \
    .env = "GRADUS_SEGMENT", .type = GR_CONFIG_BYTES, .min = 256, .max = GR_FRAME_PAYLOAD_MAX

#define GR_GROUP_ROW_CMA                                                                           \
    .env = "GRADUS_CMA", .type = GR_CONFIG_CHOICE, .choices = gr_group_cma_choices
extern const char *const gr_group_cma_choices[]; /* in the order of gr_cma */

/* What this process's environment says; rank -1: it is in no job. The texts are the arena's. */
gr_status gr_group_config_from_env(gr_group_config *config_out, gr_arena *arena,
                                   gr_diag *diag) GR_MUST_CHECK;
/* Returns true if the job may go on without some of its members. */
bool gr_group_elastic(const gr_group_config *config);
/* Returns true if the configuration names a secret. */
bool gr_group_has_secret(const gr_group_config *config);
/* The secret that the configuration names, in memory of its own (gr_secret_forget).
 * GR_E_INVALID: it names none, or a wrong one; GR_E_NO_MEMORY, GR_E_IO. */
gr_status gr_group_keep_secret(const gr_group_config *config, uint8_t **kept_out,
                               gr_diag *diag) GR_MUST_CHECK;
/* A copy whose texts are the arena's; it names no secret. */
gr_status gr_group_config_keep(const gr_group_config *config, gr_arena *arena,
                               gr_group_config *kept_out, gr_diag *diag) GR_MUST_CHECK;
/* Overwrites the secret, here and in the environment; a group that was joined keeps its own. */
void gr_group_config_wipe(gr_group_config *config);

typedef struct gr_group gr_group;

/* Calls in, waits for the other members and wires the links. Blocks at most join_timeout_us, and
 * up to 5 s more if the coordinator does not say who is missing; a joining worker first waits
 * without limit until the others are ready for it. GR_E_CANCELLED: it is not needed. */
gr_status gr_group_join(const gr_group_config *config, const gr_log *log, gr_group **group_out,
                        gr_diag *diag) GR_MUST_CHECK;
/* The next generation, when members are lost: waits until all that live ask for it, and makes a new
 * mesh with new ranks, in the order of the old ones. The old mesh must be closed. `config` as for
 * the join. On failure the group is of no use but to be left; GR_E_CANCELLED: this member is not
 * needed any more. */
gr_status gr_group_renew(gr_group *group, const gr_group_config *config, const gr_log *log,
                         gr_diag *diag) GR_MUST_CHECK;
/* Looks, without waiting, whether the coordinator wants all to renew, since somebody is to come or
 * to go; or whether it is not reached any more by this member of an elastic group, which then must
 * not go on by itself: others may have been asked to go on without it. All members should then
 * leave their generation at the same point, and renew. To be asked a few times in each
 * peer_timeout_us, or a silent coordinator is noticed later. */
bool gr_group_change_wanted(gr_group *group);
/* Closes the links, and with them this generation; gr_group_mesh is NULL from now on. */
void gr_group_unlink(gr_group *group);
/* Frees; NULL ok. A member that has become the coordinator serves the others for a while. */
void gr_group_leave(gr_group *group);
gr_mesh *gr_group_mesh(gr_group *group); /* NULL in a group of one */
uint64_t gr_group_generation(const gr_group *group);
int gr_group_rank(const gr_group *group);
int gr_group_size(const gr_group *group);
/* Where the ranks run; belongs to the group. */
const gr_topology *gr_group_topology(const gr_group *group);
const char *gr_group_host_name(const gr_group *group, int rank);
/* What this rank waits for, to the coordinator; the generation and the rank are filled in. Does
 * not block; any thread. False: there is no way to the coordinator. */
bool gr_group_send_report(gr_group *group, const gr_op_report *report);
/* The next report that the coordinator sent; false: none. `look`: the connection is read first,
 * else only what was read before counts. Any thread. */
bool gr_group_next_report(gr_group *group, bool look, gr_op_report *report_out);
/* False: the connection to the coordinator is over, as a look at it has shown. Any thread. */
bool gr_group_has_coordinator(gr_group *group);
/* gr_mesh_wait of the group's mesh ends when the coordinator says something. */
void gr_group_watch_reports(gr_group *group);
/* What most links are: tcp as soon as there are several hosts. */
gr_link_kind gr_group_link_kind(const gr_group *group);
/* The most connections that a link of this rank is made of. */
int gr_group_rails(const gr_group *group);

/* ---- The coordinator: a pollable object of the launcher -------------------------------------- */
typedef struct gr_coordinator gr_coordinator;

typedef struct gr_coordinator_config {
    int world_size;  /* at the beginning */
    int world_max;   /* numbers of members, for joining workers as well; 0: world_size */
    int members_min; /* the group goes on while so many live; 0: all must */
    /* There is no launcher: a new generation needs more than half of the members of the last one
     * (half of them, if this coordinator made that), since a member takes over when it dies. */
    bool failover;
    int successor; /* the number, plus 1, of the member that this one is of; 0: the first one */
    const uint8_t *secret;   /* GR_SECRET_BYTES, copied */
    bool encrypt;            /* TLS, where it listens by tcp */
    const char *listen_host; /* NULL: a Unix socket in the abstract namespace; "*": everywhere */
    gr_ports ports;          /* where to listen by tcp; 0 .. 0: any */
    int64_t peer_timeout_us; /* a member that acknowledges nothing for so long is lost; 0: 25 s */
    /* Called once, by gr_coordinator_progress, when all ranks of the first generation have called
     * in, before any of them is notified. NULL: none. */
    void (*on_complete)(void *on_complete_arg);
    void *on_complete_arg;
    const gr_log *log;
} gr_coordinator_config;

gr_status gr_coordinator_create(const gr_coordinator_config *config, gr_coordinator **out,
                                gr_diag *diag) GR_MUST_CHECK;
void gr_coordinator_destroy(gr_coordinator *coordinator);
/* Leaves its members as one that has died does: nobody listens any more, and connections are
 * closed. gr_coordinator_address, _pending and _destroy may follow. */
void gr_coordinator_leave(gr_coordinator *coordinator);
const char *gr_coordinator_address(const gr_coordinator *coordinator);
int gr_coordinator_fd(const gr_coordinator *coordinator); /* readable: call progress */
int64_t gr_coordinator_next_us(
    const gr_coordinator *coordinator); /* absolute time of its next deadline, GR_NEVER */
gr_status gr_coordinator_progress(gr_coordinator *coordinator, gr_diag *diag) GR_MUST_CHECK;
/* A joining worker will call in with this number, which no member has any more. */
void gr_coordinator_reserve(gr_coordinator *coordinator, int number);
/* True: workers are invited to join when too few members are left, which wait for them. */
void gr_coordinator_expect_joining(gr_coordinator *coordinator, bool joining_expected);
/* So many members are wanted; `world_size` at the beginning. Who is too many is dismissed. */
void gr_coordinator_set_target_size(gr_coordinator *coordinator, int count);
/* The member with this number is to go, between two steps, once others know what it knows. */
void gr_coordinator_drain(gr_coordinator *coordinator, int number);
/* 0: not called in, 1: called in, 2: has left in order, 3: its connection broke without that,
 * 4: a joining worker that has not called in */
int gr_coordinator_member_state(const gr_coordinator *coordinator, int rank);
/* False: the member is joining and has not been in a generation yet. No other depends on it. */
bool gr_coordinator_has_served(const gr_coordinator *coordinator, int number);
/* Returns true if no change of the membership is under way: a good time to start joining
 * workers. */
bool gr_coordinator_at_rest(const gr_coordinator *coordinator);
/* A member has left in order: the job is done, nobody is taken in any more. */
bool gr_coordinator_is_over(const gr_coordinator *coordinator);
/* The member with this rank in the first generation has ended, as its parent knows: the others need
 * not wait for it. Nothing happens in a group that cannot go on without it. */
void gr_coordinator_member_ended(gr_coordinator *coordinator, int rank);
/* The next generation comes about once its message is here: it is alive, but has not come yet. */
bool gr_coordinator_waits_for(const gr_coordinator *coordinator, int rank);
/* A successor waits for all that may be members, until it is notified that they have ended
 * (gr_coordinator_member_ended), or that they have had time enough. */
bool gr_coordinator_gathers(const gr_coordinator *coordinator);
void gr_coordinator_gathered(gr_coordinator *coordinator);
/* Returns true if no member is connected. */
bool gr_coordinator_is_alone(const gr_coordinator *coordinator);
/* How many have called in. */
int gr_coordinator_joined(const gr_coordinator *coordinator);
/* Connections that did not prove that they belong to the job, so far. */
uint64_t gr_coordinator_pending(const gr_coordinator *coordinator);

#endif
