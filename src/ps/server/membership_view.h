/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_SERVER_MEMBERSHIP_VIEW_H
#define GR_PS_SERVER_MEMBERSHIP_VIEW_H

/* How servers agree on which of them are lost, and which one is added. Pure: what is seen and
 * received comes in by calls, and what a server sends to the others is its view.
 *
 *      view of a table: nobody is lost --lose, hear--> some are lost --all left agree--> next table
 *                          |
 *                          +--add, hear--> one is to be added --all agree--> next table
 *
 * Losing. A server gives others up on evidence, and announces it; whoever receives that gives them
 * up as well, and none is taken back before there is a new table. All that are left announce the
 * same at last: if they are a quorum, the given-up ones are lost, and the table is the next one. A
 * quorum is more than half of the table's living servers, or half of them with the lowest number
 * among them. Who is known to be dead, not just silent, is not one of these any more.
 *
 * Adding. A server that can reach a new process announces that it is to be added; whoever receives
 * that announces the same. Of two the one with the lower number, then the lower incarnation, is
 * added first. So what a server announces of one table only goes down, and two servers never decide
 * on two. All living servers have to agree, and nobody may be given up.
 *
 * Two quorums of one table share a server, also if their servers know of different deaths: fewer
 * are left to be on either side. It does not take back what it announced, so of two different sets
 * that were agreed on one contains the other, and who agreed on the smaller one alone is among the
 * lost of the larger. What it did since needs copies that nobody else leads: nothing is answered on
 * two sides. Two quorums of two tables, one of which has added a server, may share none. So until
 * all living servers have announced that they have the larger table, a quorum of it must be a
 * quorum of the smaller one as well.
 *
 * Who takes over another one's table keeps what it has given up. Of two tables of one epoch the one
 * with fewer servers counts: the larger one never had the word of all. */

#include "ps/place.h"

/* What a server says of itself. */
typedef struct gr_ps_view {
    uint64_t epoch, hash; /* of its table */
    uint32_t lost;        /* whom it has given up since, a bit each */
    uint32_t adds;        /* the number of the server to be added, and 1; 0: none */
    uint64_t incarnation; /* of that one */
} gr_ps_view;

bool gr_ps_view_equal(const gr_ps_view *a, const gr_ps_view *b);

typedef struct gr_ps_membership {
    int self;
    gr_ps_table table;
    gr_ps_view own;
    bool formed;   /* all living servers have announced that they have the table */
    uint32_t dead; /* of own.lost: those whose process is gone */
    gr_ps_view said[GR_PS_SERVERS_MAX]; /* by the others, last */
} gr_ps_membership;

void gr_ps_membership_init(gr_ps_membership *membership, int self, const gr_ps_table *table);

/* Could there be a quorum without `server`, and without those that were given up already? Who is
 * only silent is worth waiting for where there could not. */
bool gr_ps_membership_spares(const gr_ps_membership *membership, int server);
/* It is given up; `dead`: its process is known to be gone, and it counted this server among the
 * living to its end. */
void gr_ps_membership_lose(gr_ps_membership *membership, int server, bool dead);
/* This process, which reaches all living servers, is to have the number of a lost one. */
void gr_ps_membership_add(gr_ps_membership *membership, int server, uint64_t incarnation);
void gr_ps_membership_receive(gr_ps_membership *membership, int from, const gr_ps_view *view);
/* True: all that have to agree do, and the table is a new one. */
bool gr_ps_membership_decide(gr_ps_membership *membership);

typedef enum gr_ps_taken {
    GR_PS_TABLE_PASSED = 0, /* it does not count: it is no newer, nor smaller */
    GR_PS_TABLE_TAKEN = 1,
    GR_PS_TABLE_OUT = 2 /* the others go on without this server */
} gr_ps_taken;
/* A table that others have agreed on. */
gr_ps_taken gr_ps_membership_take(gr_ps_membership *membership, const gr_ps_table *table);

/* Returns true if the peer that sent this view lacks this server's table. */
bool gr_ps_membership_lacks(const gr_ps_membership *membership, const gr_ps_view *said);
/* Nobody is given up, and all others have announced that they have the same table. */
bool gr_ps_membership_settled(gr_ps_membership *membership);

#endif
