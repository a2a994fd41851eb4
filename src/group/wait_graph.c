/* SPDX-License-Identifier: Apache-2.0 */
#include "group/wait_graph.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { SILENT_FACTOR = 4, UNREAD_MAX = 16 };

/* ---- Life ------------------------------------------------------------------------------------ */

gr_status gr_wait_graph_init(gr_wait_graph *graph, int size_max, gr_wait_graph_send *send,
                             void *send_arg)
{
    size_t size = (size_t)size_max;
    *graph = (gr_wait_graph){.send = send, .send_arg = send_arg};
    graph->nodes = calloc(size, sizeof *graph->nodes);
    graph->cause = calloc(4 * size, sizeof *graph->cause);
    graph->first = calloc(size + 1, sizeof *graph->first);
    graph->waiting = calloc(size * GR_REPORT_AWAITS_MAX, sizeof *graph->waiting);
    if (!graph->nodes || !graph->cause || !graph->first || !graph->waiting) {
        gr_wait_graph_fini(graph);
        return GR_E_NO_MEMORY;
    }
    graph->via = graph->cause + size;
    graph->queue = graph->via + size;
    graph->asker = graph->queue + size;
    return GR_OK;
}

void gr_wait_graph_fini(gr_wait_graph *graph)
{
    free(graph->nodes);
    free(graph->cause);
    free(graph->first);
    free(graph->waiting);
    *graph = (gr_wait_graph){.size = 0};
}

void gr_wait_graph_reset(gr_wait_graph *graph, int size)
{
    for (int rank = 0; rank < size; rank++) {
        graph->nodes[rank] = (gr_wait_node){.version = 1, .cause = -1, .via = -1, .asker = -1};
    }
    graph->size = size;
    graph->changed = false;
}

/* ---- Reports --------------------------------------------------------------------------------- */

static void send_report(gr_wait_graph *graph, int to, const gr_op_report *report)
{
    gr_wait_node *node = &graph->nodes[to];
    if (node->unread < UNREAD_MAX) {
        node->unread++;
        graph->send(graph->send_arg, to, report);
    }
}

/* A matching send and receive go on: messages in which ranks wait for each other never match. */
static bool same_op(const gr_op_id *a, const gr_op_id *b)
{
    return !a->is_message && !b->is_message && a->comm == b->comm && a->number == b->number &&
           a->fingerprint == b->fingerprint;
}

static bool is_same_report(const gr_op_report *a, const gr_op_report *b)
{
    return a->seq == b->seq && a->answers == b->answers && a->peer == b->peer &&
           a->awaits_count == b->awaits_count &&
           memcmp(a->awaits, b->awaits, a->awaits_count * sizeof a->awaits[0]) == 0;
}

/* The rank is in another wait, or in none: what it said in the old one is void, and it is to hear
 * again of all ranks that wait for it. */
static void begin_version(gr_wait_node *node)
{
    node->version = node->version == UINT32_MAX ? 1 : node->version + 1;
    node->denials_made = 0;
    memset(node->edges, 0, sizeof node->edges);
}

/* The same wait is for other ranks than before: those that stay have been notified. */
static void keep_edges(gr_wait_node *node, const gr_op_report *report)
{
    gr_wait_edge edges[GR_REPORT_AWAITS_MAX] = {{0}};
    for (uint32_t i = 0; i < report->awaits_count; i++) {
        for (uint32_t old = 0; old < node->report.awaits_count; old++) {
            if (node->report.awaits[old] == report->awaits[i]) {
                edges[i] = node->edges[old];
            }
        }
    }
    memcpy(node->edges, edges, sizeof edges);
}

static uint32_t denials_kept(const gr_wait_node *node)
{
    return node->denials_made < GR_REPORT_AWAITS_MAX ? node->denials_made : GR_REPORT_AWAITS_MAX;
}

static void note_denial(gr_wait_node *node, int32_t peer, uint32_t answers)
{
    for (uint32_t i = 0; i < denials_kept(node); i++) {
        if (node->denials[i].peer == peer) {
            node->denials[i].answers = answers;
            return;
        }
    }
    if (answers != 0) {
        node->denials[node->denials_made++ % GR_REPORT_AWAITS_MAX] =
            (gr_wait_denial){.peer = peer, .answers = answers};
    }
}

static void take_waits(gr_wait_graph *graph, int rank, const gr_op_report *report, int64_t now_us)
{
    gr_wait_node *node = &graph->nodes[rank];
    const gr_op_report *old = &node->report;
    if (node->received_us == 0 || !is_same_report(old, report)) {
        if (node->received_us != 0 && old->seq == report->seq) {
            keep_edges(node, report);
        } else {
            begin_version(node);
        }
        graph->changed = true;
        node->cause = node->via = -1;
        node->report = *report;
        node->report.rank = rank;
    }
    if (report->peer >= 0) {
        note_denial(node, report->peer, report->answers);
    }
    node->received_us = now_us > 0 ? now_us : 1;
}

/* Ranks of a sub-group that has ended tell each other so, again until all have answered. */
static void pass_on(const gr_wait_graph *graph, int rank, const gr_op_report *report)
{
    gr_op_report passed = *report;
    passed.rank = rank;
    passed.awaits_count = 0;
    for (uint32_t i = 0; i < report->awaits_count; i++) {
        if (report->awaits[i] != rank) {
            graph->send(graph->send_arg, report->awaits[i], &passed);
        }
    }
}

static bool is_sound(const gr_wait_graph *graph, const gr_op_report *report)
{
    bool sound =
        report->peer < graph->size && (report->kind != GR_REPORT_WAITS || report->seq != 0);
    for (uint32_t i = 0; i < report->awaits_count; i++) {
        sound = sound && report->awaits[i] >= 0 && report->awaits[i] < graph->size;
    }
    return sound;
}

gr_status gr_wait_graph_report(gr_wait_graph *graph, int rank, const gr_op_report *report,
                               int64_t now_us)
{
    if (rank < 0 || rank >= graph->size || !is_sound(graph, report)) {
        return GR_E_PROTOCOL;
    }
    gr_wait_node *node = &graph->nodes[rank];
    graph->changed = graph->changed || node->unread >= UNREAD_MAX; /* it missed something */
    node->unread = 0;
    switch (report->kind) {
    case GR_REPORT_IDLE:
        if (node->received_us != 0) {
            begin_version(node);
            graph->changed = true;
        }
        node->received_us = 0;
        node->cause = node->via = -1;
        return GR_OK;
    case GR_REPORT_WAITS:
        take_waits(graph, rank, report, now_us);
        return GR_OK;
    case GR_REPORT_MISMATCH:
        if (report->peer < 0 || report->peer == rank) {
            return GR_E_PROTOCOL;
        }
        gr_op_report forwarded = *report;
        forwarded.rank = rank;
        graph->send(graph->send_arg, report->peer, &forwarded); /* it is said only once */
        return GR_OK;
    case GR_REPORT_ENDED:
        pass_on(graph, rank, report);
        return GR_OK;
    default:
        return GR_E_PROTOCOL;
    }
}

/* ---- The root cause -------------------------------------------------------------------------- */

static bool waits(const gr_wait_graph *graph, int rank)
{
    return graph->nodes[rank].received_us != 0;
}

/* A rank that does not repeat its report is stopped: what it said does not count any more. Ranks
 * that wait have the graph looked at all the time: where that stood still, all of them could not
 * repeat anything, or nobody read it. */
static void forget_silent(gr_wait_graph *graph, int64_t now_us)
{
    int64_t repeat_us = gr_op_report_repeat_us(graph->size), silent_us = SILENT_FACTOR * repeat_us;
    int64_t away_us = now_us - graph->evaluated_us - 2 * repeat_us;
    for (int rank = 0; rank < graph->size; rank++) {
        gr_wait_node *node = &graph->nodes[rank];
        if (waits(graph, rank) && away_us > 0) {
            node->received_us = gr_earlier_us(node->received_us + away_us, now_us);
        }
        if (waits(graph, rank) && now_us - node->received_us >= silent_us) {
            node->received_us = 0;
            begin_version(node);
            graph->changed = true;
        }
    }
}

/* By rank, the ranks that wait for it. */
static void list_waiting(gr_wait_graph *graph)
{
    int32_t *next = graph->queue; /* by rank: where the next rank that waits for it is listed */
    memset(graph->first, 0, ((size_t)graph->size + 1) * sizeof *graph->first);
    for (int rank = 0; rank < graph->size; rank++) {
        const gr_op_report *report = &graph->nodes[rank].report;
        for (uint32_t i = 0; waits(graph, rank) && i < report->awaits_count; i++) {
            graph->first[report->awaits[i] + 1]++;
        }
    }
    for (int rank = 0; rank < graph->size; rank++) {
        graph->first[rank + 1] += graph->first[rank];
        next[rank] = (int32_t)graph->first[rank];
    }
    for (int rank = 0; rank < graph->size; rank++) {
        const gr_op_report *report = &graph->nodes[rank].report;
        for (uint32_t i = 0; waits(graph, rank) && i < report->awaits_count; i++) {
            graph->waiting[next[report->awaits[i]]++] = rank;
        }
    }
}

/* From the ranks that do not wait back to all that wait for them: the nearest one is the cause. */
static void find_causes(gr_wait_graph *graph)
{
    int head = 0, tail = 0;
    for (int rank = 0; rank < graph->size; rank++) {
        bool waited_for = graph->first[rank] < graph->first[rank + 1];
        graph->cause[rank] = graph->via[rank] = -1;
        if (!waits(graph, rank) && waited_for) {
            graph->cause[rank] = rank;
            graph->queue[tail++] = rank;
        }
    }
    while (head < tail) {
        int rank = graph->queue[head++];
        for (uint32_t i = graph->first[rank]; i < graph->first[rank + 1]; i++) {
            int from = graph->waiting[i];
            if (graph->cause[from] < 0) {
                graph->cause[from] = graph->cause[rank];
                graph->via[from] = rank;
                graph->queue[tail++] = from;
            }
        }
    }
    /* Ranks that wait in a circle: then one that has not come to the same operation. */
    for (int rank = 0; rank < graph->size; rank++) {
        const gr_op_report *report = &graph->nodes[rank].report;
        for (uint32_t i = 0;
             waits(graph, rank) && graph->cause[rank] < 0 && i < report->awaits_count; i++) {
            const gr_op_report *other = &graph->nodes[report->awaits[i]].report;
            if (!same_op(&other->op, &report->op) || i + 1 == report->awaits_count) {
                graph->cause[rank] = graph->via[rank] = report->awaits[i];
            }
        }
    }
}

static void send_causes(gr_wait_graph *graph)
{
    for (int rank = 0; rank < graph->size; rank++) {
        gr_wait_node *node = &graph->nodes[rank];
        int cause = graph->cause[rank];
        uint32_t seq = cause >= 0 && waits(graph, cause) ? graph->nodes[cause].report.seq : 0;
        if (!waits(graph, rank) || cause < 0 ||
            (cause == node->cause && graph->via[rank] == node->via && seq == node->cause_seq)) {
            continue;
        }
        node->cause = cause;
        node->via = graph->via[rank];
        node->cause_seq = seq;
        gr_op_report found = {.kind = GR_REPORT_CAUSE,
                              .generation = node->report.generation,
                              .rank = rank,
                              .peer = cause,
                              .via = graph->via[rank],
                              .op = node->report.op,
                              .answers = node->report.seq};
        if (seq != 0) {
            memcpy(found.text, graph->nodes[cause].report.text, sizeof found.text);
        }
        send_report(graph, rank, &found);
    }
}

/* ---- Ranks that wait for each other ---------------------------------------------------------- */

static bool denies(const gr_wait_node *node, const gr_op_report *of)
{
    bool found = false;
    for (uint32_t i = 0; i < denials_kept(node); i++) {
        const gr_wait_denial *denial = &node->denials[i];
        found = found || (denial->peer == of->rank && denial->answers == of->seq);
    }
    return found && node->report.blocked;
}

/* `to` is to be notified of `asker`, unless another rank comes before it: the next one behind the
 * last that it was notified of. */
static void propose(gr_wait_graph *graph, int to, int asker)
{
    int last = graph->nodes[to].asker, size = graph->size;
    int old = graph->asker[to];
    if (old < 0 || (asker - last - 1 + size) % size < (old - last - 1 + size) % size) {
        graph->asker[to] = asker;
    }
}

/* Both get the sentence: one of them might finish in order, and never know, when the other one
 * fails and discards its data. */
static void accuse(gr_wait_graph *graph, int rank, int other)
{
    gr_wait_node *node = &graph->nodes[rank];
    if (node->accused != node->report.seq && node->unread < UNREAD_MAX) {
        gr_op_report found = graph->nodes[other].report;
        found.deadlock = true;
        found.answers = node->accused = node->report.seq;
        send_report(graph, rank, &found);
    }
}

static void look_at_pair(gr_wait_graph *graph, int rank, uint32_t place)
{
    gr_wait_node *node = &graph->nodes[rank];
    int other = node->report.awaits[place];
    const gr_wait_node *awaited = &graph->nodes[other];
    const gr_wait_edge *edge = &node->edges[place];
    bool notified = edge->notified_awaited == awaited->version;
    if (!waits(graph, other)) {
        if (!notified) {
            propose(graph, other, rank);
        }
        return;
    }
    if (same_op(&node->report.op, &awaited->report.op)) {
        return;
    }
    if (denies(node, &awaited->report) && denies(awaited, &node->report)) {
        accuse(graph, rank, other);
        accuse(graph, other, rank);
        return;
    }
    if (!notified) {
        propose(graph, other, rank);
    }
    if (edge->notified_waiting != awaited->version) {
        propose(graph, rank, other);
    }
}

/* `rank` was notified of `asker`, whichever of the two waits for the other. */
static void note_notified(gr_wait_graph *graph, int rank, int asker)
{
    gr_wait_node *node = &graph->nodes[rank], *from = &graph->nodes[asker];
    for (uint32_t i = 0; i < from->report.awaits_count; i++) {
        if (from->report.awaits[i] == rank) {
            from->edges[i].notified_awaited = node->version;
        }
    }
    for (uint32_t i = 0; waits(graph, rank) && i < node->report.awaits_count; i++) {
        if (node->report.awaits[i] == asker) {
            node->edges[i].notified_waiting = from->version;
        }
    }
}

/* Notifies each rank of one other. Returns true if one was notified: there may be more. */
static bool ask(gr_wait_graph *graph)
{
    bool notified = false;
    for (int rank = 0; rank < graph->size; rank++) {
        int asker = graph->asker[rank];
        gr_wait_node *node = &graph->nodes[rank];
        if (asker >= 0 && node->unread < UNREAD_MAX) {
            node->asker = asker;
            note_notified(graph, rank, asker);
            send_report(graph, rank, &graph->nodes[asker].report);
            notified = true;
        }
    }
    return notified;
}

int64_t gr_wait_graph_evaluate(gr_wait_graph *graph, int64_t now_us)
{
    if (!graph->changed && now_us - graph->evaluated_us < GR_REPORT_REPEAT_US) {
        return GR_NEVER;
    }
    if (now_us - graph->evaluated_us < GR_WAIT_GRAPH_PERIOD_US) {
        return graph->evaluated_us + GR_WAIT_GRAPH_PERIOD_US;
    }
    forget_silent(graph, now_us);
    graph->evaluated_us = now_us;
    if (!graph->changed) {
        return GR_NEVER;
    }
    graph->changed = false;
    list_waiting(graph);
    find_causes(graph);
    send_causes(graph);
    for (int rank = 0; rank < graph->size; rank++) {
        graph->asker[rank] = -1;
    }
    for (int rank = 0; rank < graph->size; rank++) {
        const gr_op_report *report = &graph->nodes[rank].report;
        for (uint32_t i = 0; waits(graph, rank) && i < report->awaits_count; i++) {
            if (report->awaits[i] != rank) {
                look_at_pair(graph, rank, i);
            }
        }
    }
    graph->changed = ask(graph);
    return graph->changed ? now_us + GR_WAIT_GRAPH_PERIOD_US : GR_NEVER;
}
