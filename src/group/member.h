/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_MEMBER_H
#define GR_GROUP_MEMBER_H

/* What the files of a member share: member.c (talks to the coordinator), follow.c (finds the next
 * one), wiring.c (makes links), next.c (prepares another generation meanwhile). */

#include "group/control.h"
#include "group/group.h"
#include "group/succession.h"
#include "link/interface.h"

#include <pthread.h>

/* While another generation is prepared, that is a group as well, which has no way to the
 * coordinator of its own: two threads speak on the one of `home`, and either hears what is for the
 * other. `lock` is for that: it guards the connection and what was heard, is held for no longer
 * than a look at the socket, and no other lock is taken under it. */
struct gr_group {
    gr_group *home; /* itself, or the one that runs meanwhile */
    pthread_mutex_t lock;
    gr_group *next; /* that is prepared; NULL: none is */
    gr_seat offer;  /* the one to prepare; generation 0: none, or it was called off */
    int rank, world_size;
    const gr_log *log;   /* may be NULL */
    uint64_t generation; /* whose members are known; 0: not yet */
    gr_mesh *mesh;
    gr_control control; /* fd -1: alone */
    uint8_t *secret;    /* the job's, kept as long as another generation may come; NULL: gone */
    uint8_t *in;
    gr_member *members;
    gr_topology *topology;
    bool tcp;           /* all links are */
    gr_missing missing; /* what the coordinator said last */
    bool missing_known;
    gr_seat seat;    /* what the coordinator gave last; generation 0: none yet */
    bool renewing;   /* a seat is waited for: what the old generation failed from does not matter */
    bool change;     /* the coordinator wants all to go over to the generation that was prepared */
    bool broken;     /* what it said last, or that it is gone, ends this generation */
    int64_t gone_us; /* since when it has ended, as its host says; 0: it is there, or is cut off */
    bool dismissed;
    bool newcomer; /* has not had a seat yet */
    bool joined;   /* a member that never was one does not leave in order: others hear why */
    bool elastic;  /* the others may go on without this member */
    /* Where the coordinator can be succeeded: what it has said last of the generations, the members
     * of the last one that came about (so many of `members`), and what is to take over here. */
    gr_lineage lineage;
    int placed;
    gr_succession *succession; /* NULL: never here */
};

/* What a join needs on its way. */
typedef struct gr_joining {
    const gr_group_config *config;
    const gr_log *log;
    gr_group *group;
    gr_clock clock;
    int64_t deadline_us, ask_at_us;
    gr_member self;
    gr_interfaces interfaces;
    gr_ports ports;
    bool remote; /* peers may be reached by tcp */
} gr_joining;

/* ---- member.c -------------------------------------------------------------------------------- */

/* So many there can be. */
int64_t gr_group_members_max(const gr_group_config *config);
bool gr_joining_late(const gr_joining *join);
/* One look at what the coordinator says. GR_OK: something; GR_PENDING: nothing; of a group that is
 * prepared GR_E_CANCELLED: it need not be any more. */
gr_status gr_group_hear(gr_group *group, gr_diag *diag) GR_MUST_CHECK;
/* GR_E_PEER_LOST: the connection is over. What has to wait goes out with the next words. */
gr_status gr_group_say(gr_group *group, const uint8_t *message, size_t size_bytes) GR_MUST_CHECK;
gr_status gr_joining_begin(gr_joining *join, gr_group *group, const gr_group_config *config,
                           const gr_log *log, gr_diag *diag) GR_MUST_CHECK;
void gr_joining_set_deadline(gr_joining *join);
void gr_joining_say_hello(gr_joining *join);
/* Sleep until the coordinator says something, or the time has come. */
void gr_joining_sleep(const gr_joining *join, int64_t until_us);

/* ---- next.c ---------------------------------------------------------------------------------- */

/* Frees what was prepared, and lets the coordinator know. */
void gr_group_call_off(gr_group *next);

/* To the first of the addresses where a coordinator answers. */
gr_status gr_joining_call(gr_joining *join, const char *addresses, int64_t timeout_us,
                          gr_arrival *arrival_out, gr_diag *diag) GR_MUST_CHECK;

/* ---- follow.c -------------------------------------------------------------------------------- */

/* From the join on this member can take over, where it is asked to (GRADUS_SUCCESSION). */
gr_status gr_joining_open_succession(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
void gr_joining_announce_succession(gr_joining *join);
/* Is the connection to the coordinator over, and may another one be found? */
bool gr_group_may_follow(const gr_group *group);
/* Connects to the next coordinator, which may be one of this member's own. */
gr_status gr_joining_follow(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* A member that has left serves the others for a while, if it is the coordinator. */
void gr_group_end_succession(gr_group *group);

/* ---- wiring.c -------------------------------------------------------------------------------- */

/* The mesh of the generation of group->seat, and its addresses in join->self. */
gr_status gr_joining_open_mesh(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* Who is where; the same on all ranks. */
gr_status gr_joining_find_hosts(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
/* So that the mesh's sentences name them; the group stays where it is. */
void gr_group_name_hosts(gr_group *group);
/* Waits for the links to all others. */
gr_status gr_joining_wire(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;

#endif
