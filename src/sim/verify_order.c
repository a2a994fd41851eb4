/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/verify_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- Hazards --------------------------------------------------------------------------------- */
/* One rank's steps as a graph: ancestors[i] is the set of steps that are done before step i begins,
 * whatever the executor chooses to run first. Every two accesses to the same place, one of them a
 * write, must be in it. It is enough to ask this of a read and the write before it, of a write and
 * the write before it, and of a write and the reads in between: the rest follows. */
typedef struct access_record {
    uint32_t step;
    bool writes;
    uint32_t previous; /* record of the same place, GR_NO_STEP if none */
} access_record;

typedef struct hazards {
    const gr_verify *v;
    const gr_plan *plan;
    int rank;
    size_t words;
    uint64_t *ancestors; /* [step * words] */
    access_record *records;
    uint32_t record_count;
    uint32_t *latest;    /* record by place */
    int32_t *last_reads; /* by step: the last step that reads what this one received into scratch */
} hazards;

static bool comes_after(const hazards *h, uint32_t later, uint32_t earlier)
{
    return h->ancestors[later * h->words + earlier / 64] >> (earlier % 64) & 1;
}

static void collect_ancestors(hazards *h, uint32_t index)
{
    const gr_step *step = &h->plan->steps[index];
    uint64_t *own = h->ancestors + index * h->words;
    for (uint32_t i = 0; i < step->after_count; i++) {
        uint32_t earlier = h->plan->after[step->after_first + i];
        const uint64_t *theirs = h->ancestors + earlier * h->words;
        for (size_t word = 0; word <= index / 64; word++) {
            own[word] |= theirs[word];
        }
        own[earlier / 64] |= UINT64_C(1) << (earlier % 64);
    }
}

static gr_status check_access(hazards *h, uint32_t index, gr_access access)
{
    uint32_t *latest = &h->latest[gr_plan_place(h->plan, access.operand)];
    for (uint32_t at = *latest; at != GR_NO_STEP; at = h->records[at].previous) {
        const access_record *record = &h->records[at];
        if ((access.writes || record->writes) && record->step != index &&
            !comes_after(h, index, record->step)) {
            return gr_verify_wrong(h->v, h->rank, index,
                                   "a race: it %s what step %u %s, but does not wait for it",
                                   access.writes ? "overwrites" : "reads", record->step,
                                   record->writes ? "writes" : "still reads");
        }
        if (record->writes) {
            const gr_step *writer = &h->plan->steps[record->step];
            if (!access.writes && writer->kind == GR_STEP_RECV &&
                writer->dst.space == GR_SPACE_SCRATCH) {
                h->last_reads[record->step] = (int32_t)index;
            }
            break;
        }
    }
    h->records[h->record_count] = (access_record){index, access.writes, *latest};
    *latest = h->record_count++;
    return GR_OK;
}

static gr_status check_hazards(hazards *h)
{
    uint32_t last_await = GR_NO_STEP;
    for (uint32_t i = 0; i < h->plan->step_count; i++) {
        const gr_step *step = &h->plan->steps[i];
        gr_access accesses[GR_ACCESSES_MAX];
        int count = gr_step_accesses(step, accesses);
        collect_ancestors(h, i);
        for (int k = 0; k < count; k++) {
            gr_status status = check_access(h, i, accesses[k]);
            if (status != GR_OK) {
                return status;
            }
        }
        if (last_await != GR_NO_STEP && !comes_after(h, i, last_await)) {
            return gr_verify_wrong(h->v, h->rank, i,
                                   "a race: it does not wait for the await before it, step %u",
                                   last_await);
        }
        last_await = step->kind == GR_STEP_AWAIT ? i : last_await;
    }
    for (uint32_t i = 0; i < h->plan->step_count; i++) {
        if (h->plan->steps[i].last_reader != h->last_reads[i]) {
            return gr_verify_wrong(h->v, h->rank, i,
                                   "its last reader is step %d, but the plan says %d",
                                   h->last_reads[i], h->plan->steps[i].last_reader);
        }
    }
    return GR_OK;
}

gr_status gr_verify_hazards(const gr_verify *v, int rank)
{
    const gr_plan *plan = &v->plans[rank];
    size_t steps = plan->step_count;
    size_t places = gr_plan_places(plan);
    hazards h = {.v = v, .plan = plan, .rank = rank, .words = steps / 64 + 1};
    gr_status status;
    h.ancestors = calloc(steps * h.words + 1, sizeof *h.ancestors);
    h.records = malloc((steps * GR_ACCESSES_MAX + 1) * sizeof *h.records);
    h.latest = malloc((places + 1) * sizeof *h.latest);
    h.last_reads = malloc((steps + 1) * sizeof *h.last_reads);
    if (h.ancestors && h.records && h.latest && h.last_reads) {
        memset(h.latest, 0xff, places * sizeof *h.latest);
        memset(h.last_reads, 0xff, steps * sizeof *h.last_reads);
        status = check_hazards(&h);
    } else {
        status = gr_verify_no_memory(v);
    }
    free(h.ancestors);
    free(h.records);
    free(h.latest);
    free(h.last_reads);
    return status;
}

/* ---- Progress -------------------------------------------------------------------------------- */
/* All ranks' steps, each in SEGMENTS parts, as one graph of what must come before what. If it has
 * no circle, every way of running the plans ends. The links are as narrow as can be: a link holds
 * one segment of one message, and holds it until its last reader has read it (as with a view of the
 * sender's memory).
 *   The node of a receive is the passing of the message: it waits for what both sides wait for.
 *   The node of a send is its end: after the passing and, in scratch, after the last reader; then
 *   the next segment may pass, after the last segment the next message. */
enum { SEGMENTS = 3 };

typedef void edge_fn(void *context, uint32_t from, uint32_t to);

static uint32_t node_of(uint32_t number, uint32_t segment)
{
    return number * SEGMENTS + segment;
}

static void visit_step_edges(const gr_verify *v, int rank, uint32_t index, edge_fn *visit,
                             void *context)
{
    const gr_plan *plan = &v->plans[rank];
    const gr_step *step = &plan->steps[index];
    uint32_t number = v->first[rank] + index;
    uint32_t begin = gr_step_gives(step) ? v->mate[number] : number;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        for (uint32_t i = 0; i < step->after_count; i++) {
            uint32_t earlier = v->first[rank] + plan->after[step->after_first + i];
            visit(context, node_of(earlier, s), node_of(begin, s));
        }
        if (!gr_step_gives(step)) {
            continue;
        }
        const gr_step *taker = &v->plans[step->peer].steps[begin - v->first[step->peer]];
        visit(context, node_of(begin, s), node_of(number, s));
        if (taker->last_reader >= 0) {
            uint32_t reader = v->first[step->peer] + (uint32_t)taker->last_reader;
            visit(context, node_of(reader, s), node_of(number, s));
        }
        if (s + 1 < SEGMENTS) {
            visit(context, node_of(number, s), node_of(begin, s + 1));
        } else if (v->next_sent[number] != GR_NO_STEP) {
            visit(context, node_of(number, s), node_of(v->mate[v->next_sent[number]], 0));
        }
    }
}

static void visit_edges(const gr_verify *v, edge_fn *visit, void *context)
{
    for (int rank = 0; rank < v->world_size; rank++) {
        for (uint32_t i = 0; i < v->plans[rank].step_count; i++) {
            visit_step_edges(v, rank, i, visit, context);
        }
    }
}

typedef struct graph {
    uint32_t nodes;
    uint32_t
        *to_first; /* [nodes + 2]: successors of node i are to[to_first[i] .. to_first[i + 1]) */
    uint32_t *to;
    uint32_t *waits; /* by node: how many predecessors are not done */
    uint32_t *done;  /* nodes in the order in which they were done */
    uint32_t done_count;
} graph;

/* Counted one place too far, so that filling leaves the firsts where they belong. */
static void count_edge(void *context, uint32_t from, uint32_t to)
{
    graph *g = context;
    g->to_first[from + 2]++;
    g->waits[to]++;
}

static void fill_edge(void *context, uint32_t from, uint32_t to)
{
    graph *g = context;
    g->to[g->to_first[from + 1]++] = to;
}

static void run(graph *g)
{
    for (uint32_t i = 0; i < g->nodes; i++) {
        if (g->waits[i] == 0) {
            g->done[g->done_count++] = i;
        }
    }
    for (uint32_t at = 0; at < g->done_count; at++) {
        uint32_t node = g->done[at];
        for (uint32_t i = g->to_first[node]; i < g->to_first[node + 1]; i++) {
            uint32_t next = g->to[i];
            if (--g->waits[next] == 0) {
                g->done[g->done_count++] = next;
            }
        }
    }
}

/* Goes from a node that cannot run to one that it waits for, again and again, until it is in a
 * circle; the circle's smallest step is reported, with the one that it waits for. */
static gr_status report_deadlock(const gr_verify *v, graph *g)
{
    uint32_t *waits_for = g->done; /* no longer needed */
    uint32_t stuck = 0;
    memset(waits_for, 0xff, g->nodes * sizeof *waits_for);
    for (uint32_t i = 0; i < g->nodes; i++) {
        for (uint32_t k = g->to_first[i]; g->waits[i] > 0 && k < g->to_first[i + 1]; k++) {
            waits_for[g->to[k]] = i;
        }
    }
    while (g->waits[stuck] == 0) {
        stuck++;
    }
    for (uint32_t i = 0; i < g->nodes; i++) {
        stuck = waits_for[stuck];
    }
    uint32_t least = stuck;
    for (uint32_t at = waits_for[stuck]; at != stuck; at = waits_for[at]) {
        least = at < least ? at : least;
    }
    uint32_t number = least / SEGMENTS;
    uint32_t blocker = waits_for[least] / SEGMENTS;
    int rank = gr_verify_rank_of(v, number);
    int other = gr_verify_rank_of(v, blocker);
    return gr_verify_wrong(v, rank, number - v->first[rank],
                           "deadlock: it waits for step %u of rank %d, which waits for it in turn",
                           blocker - v->first[other], other);
}

static gr_status run_graph(gr_verify *v, graph *g)
{
    visit_edges(v, count_edge, g);
    for (uint32_t i = 0; i < g->nodes; i++) {
        g->to_first[i + 2] += g->to_first[i + 1];
    }
    g->to = malloc(((size_t)g->to_first[g->nodes + 1] + 1) * sizeof *g->to);
    if (!g->to) {
        return gr_verify_no_memory(v);
    }
    visit_edges(v, fill_edge, g);
    run(g);
    if (g->done_count < g->nodes) {
        return report_deadlock(v, g);
    }
    uint32_t placed = 0;
    for (uint32_t i = 0; i < g->nodes; i++) {
        if (g->done[i] % SEGMENTS == 0) {
            v->order[placed++] = g->done[i] / SEGMENTS;
        }
    }
    return GR_OK;
}

gr_status gr_verify_progress(gr_verify *v)
{
    if (v->total > UINT32_MAX / SEGMENTS - 2) {
        return gr_verify_no_memory(v);
    }
    graph g = {.nodes = v->total * SEGMENTS};
    g.to_first = calloc((size_t)g.nodes + 2, sizeof *g.to_first);
    g.waits = calloc((size_t)g.nodes + 1, sizeof *g.waits);
    g.done = malloc(((size_t)g.nodes + 1) * sizeof *g.done);
    gr_status status = g.to_first && g.waits && g.done ? run_graph(v, &g) : gr_verify_no_memory(v);
    free(g.to_first);
    free(g.to);
    free(g.waits);
    free(g.done);
    return status;
}
