/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_WAIT_GRAPH_H
#define GR_GROUP_WAIT_GRAPH_H

/* Which rank waits for which: the coordinator keeps the newest report of each rank, and finds what
 * no rank can see by itself: the rank at the end of a chain of waiting ranks, and ranks that wait
 * for each other in different operations. Rules alone: no sockets, no clock.
 *
 * A deadlock of two ranks A and B, which wait in different operations, is proven like this:
 *
 *   A reports that it waits in X      graph      B reports that it waits in Y
 *          <---- B: wait b, in Y ------|------ A: wait a, in X ---->
 *   A in wait a: Y is not begun here,         B in wait b: X is not begun here,
 *      and cannot be before X is over,           and cannot be before Y is over,
 *      and X needs B (answers b)                 and Y needs A (answers a)
 *          ------------------------> deadlock <---------------------
 *
 * Each denial names the wait of the other rank, which therefore had begun: both ranks were in these
 * waits at once, and what each says of its own holds from the beginning of its wait. So neither X
 * nor Y can ever be over. Reports of other waits have no part in it, however late they come; and a
 * rank takes a verdict only in the wait that the verdict names. */

#include "group/op_report.h"

/* `to` is a rank; the report is borrowed for the call. */
typedef void gr_wait_graph_send(void *send_arg, int to, const gr_op_report *report);

/* A rank that another one waits for: which of the two was notified of the other. */
typedef struct gr_wait_edge {
    /* The `version` of the awaited rank when it was notified, and when the waiting rank was
     * notified of it; 0: not notified. */
    uint32_t notified_awaited, notified_waiting;
} gr_wait_edge;

/* The operation of wait `answers` of `peer` cannot begin before the own is over. */
typedef struct gr_wait_denial {
    int32_t peer;
    uint32_t answers; /* 0: taken back */
} gr_wait_denial;

typedef struct gr_wait_node {
    gr_op_report report;                      /* the newest WAITS */
    uint32_t version;                         /* another one for each wait of the rank */
    gr_wait_edge edges[GR_REPORT_AWAITS_MAX]; /* by place in report.awaits */
    /* A report has one denial. Those that it does not name hold as long as its operation does, or
     * until a report takes them back. */
    gr_wait_denial denials[GR_REPORT_AWAITS_MAX];
    uint32_t denials_made; /* the newest ones stand there */
    int64_t received_us;   /* when it came; 0: the rank waits for nobody, as far as is known */
    int32_t cause, via;    /* reported last; -1: none */
    uint32_t cause_seq;    /* the reported wait of the cause; 0: it does not wait */
    int32_t asker;         /* whose report it was sent last */
    uint32_t accused;      /* it was notified of a deadlock in this wait; 0: it was not */
    int unread; /* notices since its last report: a rank that reads nothing gets no more */
} gr_wait_node;

typedef struct gr_wait_graph {
    int size;
    gr_wait_node *nodes;                  /* by rank */
    int32_t *cause, *via, *queue, *asker; /* of one evaluation, by rank */
    uint32_t *first;                      /* by rank: where the ranks that wait for it begin ... */
    int32_t *waiting;                     /* ... here */
    bool changed;
    int64_t evaluated_us;
    gr_wait_graph_send *send;
    void *send_arg;
} gr_wait_graph;

enum {
    GR_WAIT_GRAPH_PERIOD_US = 20000, /* evaluations are at least so far apart */
    /* Ranks that wait repeat their report after so long, plus so much for each rank of the job; a
     * rank that has been silent four times as long is stopped. */
    GR_REPORT_REPEAT_US = 250000,
    GR_REPORT_REPEAT_RANK_US = 1000
};
static inline int64_t gr_op_report_repeat_us(int world_size)
{
    return GR_REPORT_REPEAT_US + (int64_t)GR_REPORT_REPEAT_RANK_US * world_size;
}

gr_status gr_wait_graph_init(gr_wait_graph *graph, int size_max, gr_wait_graph_send *send,
                             void *send_arg) GR_MUST_CHECK;
void gr_wait_graph_fini(gr_wait_graph *graph);
/* Another generation of so many ranks: nothing is known of them. */
void gr_wait_graph_reset(gr_wait_graph *graph, int size);
/* A report of `rank`, whatever the report says of that. GR_E_PROTOCOL: no rank says that. */
gr_status gr_wait_graph_report(gr_wait_graph *graph, int rank, const gr_op_report *report,
                               int64_t now_us) GR_MUST_CHECK;
/* Says what follows from the reports, if something changed and it is time. Returns when it is to be
 * called again; GR_NEVER: after the next report. */
int64_t gr_wait_graph_evaluate(gr_wait_graph *graph, int64_t now_us);

#endif
