/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_HOSTS_H
#define GR_COLL_PLAN_HOSTS_H

/* What the hierarchical algorithms share: who is on which host, who there takes which block, and
 * the trees in which sums are made. Internal to src/coll. */

#include "coll/plan/combine.h"

typedef struct gr_hosts {
    gr_plan *plan;
    int count;    /* of hosts */
    int own;      /* this rank's */
    int local;    /* this rank's place there */
    int *members; /* host by host: its ranks */
    int *first;   /* [count + 1], into members */

    /* Sums: each host adds what its ranks have of each of its nodes; over the nodes of all hosts
     * goes a second tree. */
    int node_count;  /* of this host */
    gr_units *nodes; /* what its ranks have in each */
    gr_units all;    /* the nodes of all hosts, left to right */
    int *all_first;  /* [count + 1], into `all` */
    int own_node;    /* that of this rank's first contribution; -1: it has none */
    int node_order[GR_SHARD_PARTIALS_MAX]; /* of this host, as who adds all asks for them */
} gr_hosts;

/* Hosts one behind the other in the order of the ranks? */
bool gr_hosts_in_order(const gr_plan_shape *shape);

/* The most largest subtrees of the shard tree that one of the hosts has; they must be in order. */
int gr_hosts_most_nodes(const gr_plan_shape *shape);

/* Failures are kept in plan->failed; gr_hosts_fini is due in any case. */
bool gr_hosts_init(gr_hosts *hosts, gr_plan *plan);
/* canonical: the nodes of a host are the largest subtrees of the shard tree inside it; the hosts
 * must be in order. Else each host is one node. */
bool gr_hosts_init_sums(gr_hosts *hosts, bool canonical);
void gr_hosts_fini(gr_hosts *hosts);

int gr_hosts_size(const gr_hosts *hosts, int host);
int gr_hosts_member(const gr_hosts *hosts, int host, int local);
int gr_hosts_of(const gr_hosts *hosts, int rank);
/* Who takes rank b's block on a host: itself at home, elsewhere the rank of the same local place,
 * so that all ranks of a host send and receive. */
int gr_hosts_taker(const gr_hosts *hosts, int host, int block);

#endif
