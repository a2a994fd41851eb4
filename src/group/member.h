/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_MEMBER_H
#define GR_GROUP_MEMBER_H

/* What the files of a member share: member.c (talks to the coordinator), find_leader.c (finds the
 * next one), wiring.c (makes links). */

#include "group/bootstrap.h"
#include "group/control.h"
#include "group/failover.h"
#include "group/group.h"
#include "link/interface.h"

#include <pthread.h>

enum { GR_GROUP_REPORTS_MAX = 16 }; /* the coordinator says no more before an answer */

/* While a generation runs, two threads may speak with the coordinator: the one that joined, between
 * two steps, and the one that moves operations on. `lock` guards the connection and its messages;
 * it is held for no longer than a look at the socket, and no other lock is taken under it. */
struct gr_group {
    pthread_mutex_t lock;
    int rank, world_size;
    int number; /* for good: the rank in the first generation, or what the coordinator has given */
    const gr_log *log;   /* may be NULL */
    uint64_t generation; /* whose members are known; 0: not yet */
    gr_mesh *mesh;
    gr_control control; /* fd -1: alone */
    uint8_t *secret;    /* the job's, kept as long as another generation may come; NULL: gone */
    uint8_t *in;
    gr_member *members;
    gr_topology *topology;
    bool tcp;                 /* all links are */
    gr_interfaces interfaces; /* of this host, for links on first use */
    int rails;                /* GRADUS_RAILS */
    gr_missing missing;       /* as the coordinator last reported */
    bool missing_known;
    gr_assignment assignment; /* what the coordinator gave last; generation 0: none yet */
    bool renewing;   /* waits for ASSIGN: why the old generation failed does not matter any more */
    bool change;     /* the coordinator wants all to renew */
    bool broken;     /* its last message, or its loss, ends this generation */
    int64_t gone_us; /* since when it has ended, as its host says; 0: it is there, or is cut off */
    bool dismissed;
    bool joining; /* has not had a rank assignment yet */
    bool joined;  /* a member that never was one does not leave in order: others learn why */
    bool elastic; /* the others may go on without this member */
    /* Where the coordinator can be succeeded: its last message on the generations, the members
     * of the last one that came about (so many of `members`), and what is to take over here. */
    gr_history history;
    /* Of `generation`; the newest, in the order in which they came. */
    gr_op_report reports[GR_GROUP_REPORTS_MAX];
    int report_count;
    int placed;
    gr_failover *failover;   /* NULL: never here */
    gr_bootstrap *bootstrap; /* how the coordinator was found; NULL: alone */
};

/* What a join needs on its way. */
struct gr_joining {
    gr_group_config own; /* the caller's, with what the bootstrap found out */
    const char *given;   /* the coordinator's addresses, as the caller says */
    const gr_group_config *config;
    const gr_log *log;
    gr_group *group;
    gr_clock clock;
    int64_t deadline_us;
    gr_member self;
    gr_interfaces interfaces;
    gr_ports ports;
    bool remote; /* peers may be reached by tcp */
};

/* ---- member.c -------------------------------------------------------------------------------- */

bool gr_joining_late(const gr_joining *join);
/* One look at what the coordinator says. GR_OK: something; GR_PENDING: nothing. */
gr_status gr_group_receive(gr_group *group, gr_diag *diag) GR_MUST_CHECK;
void gr_joining_set_deadline(gr_joining *join);

/* To the first of the addresses where a coordinator answers. */
gr_status gr_joining_call(gr_joining *join, const char *addresses, int64_t timeout_us,
                          gr_accepted *arrival_out, gr_diag *diag) GR_MUST_CHECK;

/* ---- find_leader.c --------------------------------------------------------------------------- */

/* From the join on this member can take over, where it is asked to (GRADUS_FAILOVER). */
gr_status gr_joining_open_failover(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
void gr_joining_announce_failover(gr_joining *join);
/* Returns true if the connection to the coordinator is over, and another coordinator may be
 * found. */
bool gr_group_may_find_leader(const gr_group *group);
/* Connects to the next coordinator, which may be one of this member's own. */
gr_status gr_joining_find_leader(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* A member that has left serves the others for a while, if it is the coordinator. */
void gr_group_end_failover(gr_group *group);

/* ---- wiring.c -------------------------------------------------------------------------------- */

/* The mesh of the generation of group->assignment, and its addresses in join->self. */
gr_status gr_joining_open_mesh(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* Who is where; the same on all ranks. */
gr_status gr_joining_find_hosts(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* So that the mesh's sentences name them; the group stays where it is. */
void gr_group_name_hosts(gr_group *group);
/* The connections that the link to `rank` has, or will have. */
int gr_group_rails_to(const gr_group *group, int rank);
/* Makes the links that are made at the join, and waits for them. */
gr_status gr_joining_wire(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;

#endif
