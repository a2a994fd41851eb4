/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/info_plan.h"
#include "base/fail.h"
#include "base/text.h"
#include "coll/plan/traits.h"
#include "coll/reduce/reduce.h"
#include "coll/select/tune.h"
#include "coll/shm/shm_coll.h"
#include "link/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES_MAX = 64, SIZE_BYTES = 32 };

typedef struct algorithm_candidate {
    const gr_algorithm *algorithm;
    const char *why_not; /* NULL: it may be chosen */
    size_t segment_bytes;
    gr_prediction prediction;
} algorithm_candidate;

typedef struct explanation {
    const gr_plan_options *options;
    gr_plan_shape shape;
    gr_topology topology;
    int *ranks; /* memory of the topology */
    gr_dtype dtype;
    bool order_free;
    gr_tuning tuning;
    gr_selection selection;
    gr_choice choice;
    const char *source; /* of the choice */
    char source_text[160];
    algorithm_candidate candidates[CANDIDATES_MAX];
    int candidate_count;
} explanation;

static const char *size_text(double bytes, char text[SIZE_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, SIZE_BYTES, bytes < 10 && bytes != (double)(int)bytes ? "%.2f %s" : "%.0f %s",
             bytes, units[unit]);
    return text;
}

static const char *time_text(double us, char text[SIZE_BYTES])
{
    if (us >= 1e6) {
        snprintf(text, SIZE_BYTES, "%.2f s", us / 1e6);
    } else if (us >= 1e3) {
        snprintf(text, SIZE_BYTES, "%.2f ms", us / 1e3);
    } else {
        snprintf(text, SIZE_BYTES, "%.1f us", us);
    }
    return text;
}

/* ---- Finding out ----------------------------------------------------------------------------- */
static gr_status find_coll(explanation *e, gr_diag *diag)
{
    char list[256];
    const char *known[GR_COLL_COUNT + 1];
    int count = 0;
    for (int coll = 0; coll < GR_COLL_COUNT; coll++) {
        const char *name = gr_coll_name((gr_coll)coll);
        if (coll == GR_COLL_SEND || coll == GR_COLL_RECV) {
            continue;
        }
        known[count++] = name;
        if (strcmp(name, e->options->plan) == 0) {
            e->shape.coll = (gr_coll)coll;
            return GR_OK;
        }
    }
    known[count] = NULL;
    gr_text_list(list, sizeof list, known);
    return gr_fail(diag, GR_E_INVALID, "--plan: there is no collective \"%s\"; there are %s",
                   e->options->plan, list);
}

gr_status gr_info_place_ranks(int n, int hosts, gr_topology *topology_out, int **memory_out,
                              gr_diag *diag)
{
    int *memory = calloc(2 * (size_t)n + (size_t)hosts, sizeof *memory);
    if (!memory) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d ranks", n);
    }
    int *host_of = memory, *local_rank = host_of + n, *local_size = local_rank + n;
    for (int host = 0, rank = 0; host < hosts; host++) {
        local_size[host] = n / hosts + (host < n % hosts);
        for (int i = 0; i < local_size[host]; i++, rank++) {
            host_of[rank] = host;
            local_rank[rank] = i;
        }
    }
    *topology_out = (gr_topology){hosts, host_of, local_rank, local_size};
    *memory_out = memory;
    return GR_OK;
}

static gr_status place_ranks(explanation *e, gr_diag *diag)
{
    int n = e->shape.world_size, hosts = (int)e->options->hosts;
    if (hosts > n) {
        return gr_fail(diag, GR_E_INVALID, "--hosts: %d hosts for %d ranks; each needs one", hosts,
                       n);
    }
    gr_status status = gr_info_place_ranks(n, hosts, &e->topology, &e->ranks, diag);
    e->shape.topology = hosts > 1 ? &e->topology : NULL;
    return status;
}

static gr_status read_costs(explanation *e, gr_diag *diag)
{
    const char *tune = e->options->tune;
    gr_link_kind link = e->options->link == 0 ? GR_LINK_SHM : GR_LINK_TCP;
    int rails = (int)e->options->rails;
    gr_tuning_init(&e->tuning, e->shape.world_size, link, rails);
    if (strcmp(tune, "auto") == 0 || strcmp(tune, "off") == 0) {
        return GR_OK;
    }
    gr_status status = gr_tuning_read(tune, &e->tuning, diag);
    return status == GR_OK
               ? gr_tuning_check(&e->tuning, tune, e->shape.world_size, link, rails, diag)
               : status;
}

static void choose(explanation *e)
{
    size_t bytes = (size_t)e->options->size_bytes;
    e->choice = gr_select(&e->selection, &e->shape, e->dtype, bytes, e->order_free);
    const gr_select_rule *forced = gr_select_rule_find(&e->selection.forced, e->shape.coll, bytes);
    const gr_select_rule *measured =
        gr_select_rule_find(&e->selection.measured, e->shape.coll, bytes);
    if (forced && forced->algorithm == e->choice.algorithm) {
        snprintf(e->source_text, sizeof e->source_text, "by the rule at character %d of \"%.80s\"",
                 forced->place, e->options->algorithm);
        e->source = "rule";
    } else if (measured && measured->algorithm == e->choice.algorithm) {
        snprintf(e->source_text, sizeof e->source_text, "measured fastest, says %.120s",
                 e->options->tune);
        e->source = "measured";
    } else if (!e->choice.algorithm->plan) {
        snprintf(e->source_text, sizeof e->source_text,
                 "all ranks share the memory of one host, and no rule says otherwise");
        e->source = "shared";
    } else {
        snprintf(e->source_text, sizeof e->source_text, "shortest predicted time%s, from %s costs",
                 gr_coll_traits_of[e->shape.coll].rooted ? " with that of sending" : "",
                 strcmp(e->options->tune, "auto") == 0 || strcmp(e->options->tune, "off") == 0
                     ? "usual"
                     : "measured");
        e->source = "model";
    }
}

static gr_status predict(explanation *e, algorithm_candidate *c, gr_diag *diag)
{
    gr_cost *walk = NULL;
    gr_status status = gr_cost_create(c->algorithm, &e->shape, &walk);
    if (status != GR_OK) {
        return gr_fail(diag, status, "the plan of %s=%s cannot be made: %s",
                       gr_coll_name(e->shape.coll), c->algorithm->name, gr_status_text(status));
    }
    size_t bytes = (size_t)e->options->size_bytes, segments[GR_SELECT_SEGMENTS_MAX];
    int count = gr_select_segments(&e->selection, walk, bytes, segments);
    if (c->algorithm == e->choice.algorithm) {
        segments[0] = e->choice.segment_bytes ? e->choice.segment_bytes : segments[0];
        count = e->choice.segment_bytes ? 1 : count;
    }
    for (int i = 0; i < count; i++) {
        gr_prediction p = gr_cost_predict(walk, &e->selection.model, e->dtype, bytes, segments[i]);
        if (i == 0 || p.time_us < c->prediction.time_us) {
            c->prediction = p;
            c->segment_bytes = segments[i];
        }
    }
    gr_cost_destroy(walk);
    return GR_OK;
}

static int by_time(const void *a, const void *b)
{
    const algorithm_candidate *x = a, *y = b;
    if ((x->why_not == NULL) != (y->why_not == NULL)) {
        return x->why_not ? 1 : -1;
    }
    double dx = x->prediction.time_us, dy = y->prediction.time_us;
    return (dx > dy) - (dx < dy);
}

static gr_status list_candidates(explanation *e, gr_diag *diag)
{
    gr_status status = GR_OK;
    bool any_order = e->order_free || !e->options->exact;
    for (const gr_algorithm *at = gr_algorithms; at->name && status == GR_OK; at++) {
        if (at->coll != e->shape.coll || e->candidate_count == CANDIDATES_MAX) {
            continue;
        }
        algorithm_candidate *c = &e->candidates[e->candidate_count++];
        *c = (algorithm_candidate){.algorithm = at};
        if (!at->fits(&e->shape)) {
            c->why_not = "cannot do this number and placement of ranks";
            continue;
        }
        c->why_not = at->canonical || any_order
                         ? NULL
                         : "adds in an order of its own; --no-exact (GRADUS_EXACT=0) permits it";
        status = at->plan ? predict(e, c, diag) : GR_OK;
    }
    qsort(e->candidates, (size_t)e->candidate_count, sizeof e->candidates[0], by_time);
    return status;
}

static const algorithm_candidate *chosen_one(const explanation *e)
{
    for (int i = 0; i < e->candidate_count; i++) {
        if (e->candidates[i].algorithm == e->choice.algorithm) {
            return &e->candidates[i];
        }
    }
    return NULL;
}

/* ---- Saying it ------------------------------------------------------------------------------- */
static gr_shm_coll_way way_of(const explanation *e, bool registered)
{
    return gr_shm_coll_way_of(e->shape.coll, (size_t)e->options->size_bytes, e->shape.world_size,
                              registered, gr_cma_cost((gr_cma)e->options->cma, NULL),
                              e->tuning.cores >= e->shape.world_size);
}

static const char *way_name(gr_shm_coll_way way)
{
    static const char *const names[] = {[GR_SHM_COLL_EAGER] = "posted",
                                        [GR_SHM_COLL_OWN] = "own shares",
                                        [GR_SHM_COLL_FREE] = "free shares",
                                        [GR_SHM_COLL_KERNEL] = "kernel",
                                        [GR_SHM_COLL_WINDOWS] = "windows"};
    return names[way];
}

static const char *way_text(gr_shm_coll_way way)
{
    static const char *const texts[] = {
        [GR_SHM_COLL_EAGER] = "each rank posts its contribution, and all add all of them",
        [GR_SHM_COLL_OWN] = "each rank adds its share of all buffers, and writes it to all results",
        [GR_SHM_COLL_FREE] = "whoever has a core adds a share of all buffers, and writes it to all "
                             "results",
        [GR_SHM_COLL_KERNEL] = "own or free shares, read and written through the kernel; where it "
                               "does not permit that, windows",
        [GR_SHM_COLL_WINDOWS] = "each rank adds its share of what passes through shared windows"};
    return texts[way];
}

static const char *name_at(explanation *e, size_t bytes)
{
    return gr_select(&e->selection, &e->shape, e->dtype, bytes, e->order_free).algorithm->name;
}

static void print_ways(const explanation *e)
{
    if (e->shape.coll == GR_COLL_ALLREDUCE) {
        gr_shm_coll_way registered = way_of(e, true), other = way_of(e, false);
        printf("%-11s %s: %s\n", registered == other ? "" : "gr_alloc", way_name(registered),
               way_text(registered));
        if (registered != other) {
            printf("malloc      %s: %s\n", way_name(other), way_text(other));
        }
    }
}
static void print_ranges(explanation *e)
{
    char text[SIZE_BYTES];
    const char *first = NULL, *last = NULL;
    printf("by size     ");
    for (int i = 0; i < GR_SELECT_SIZES; i++) {
        const char *at = name_at(e, gr_select_class_bytes(i));
        if (at != last && last) {
            printf(" to %s, ", size_text((double)gr_select_class_bytes(i - 1), text));
        }
        if (at != last) {
            printf("%s", at);
        }
        first = first ? first : at;
        last = at;
    }
    printf("%s\n", first == last ? "" : " beyond");
}

/* For which network that is true. A file that was made on one host has the default costs. */
static void print_network(const explanation *e)
{
    gr_cost_model defaults;
    gr_cost_model_defaults(&defaults, GR_LINK_TCP);
    const gr_link_cost *wire = &e->selection.model.link[GR_MODEL_BETWEEN];
    if (e->topology.host_count > 1 && wire->host_byte_us > 0) {
        bool file = strcmp(e->options->tune, "auto") != 0 && strcmp(e->options->tune, "off") != 0;
        bool measured = memcmp(wire, &defaults.link[GR_MODEL_BETWEEN], sizeof *wire) != 0;
        printf("network     %s %.3g Gbit/s and %.3g us between hosts%s\n",
               measured ? "measured:" : "assumed:", 8e-3 / wire->host_byte_us, wire->latency_us,
               measured ? ""
               : file   ? "; the file was made on one host"
                        : "; a job measures its own, `gradus simulate` takes any");
    }
}

static void print_text(explanation *e)
{
    char a[SIZE_BYTES], b[SIZE_BYTES], c[SIZE_BYTES], d[SIZE_BYTES], f[SIZE_BYTES];
    const gr_plan_options *o = e->options;
    const algorithm_candidate *chosen = chosen_one(e);
    char rails[40] = "";
    if (o->link != 0 || o->hosts > 1) {
        snprintf(rails, sizeof rails, ", %d rail%s per pair by tcp", (int)o->rails,
                 o->rails == 1 ? "" : "s");
    }
    printf("%s of %s of %s, %d ranks on %d host%s, %s inside%s, %s\n\n",
           gr_coll_name(e->shape.coll), size_text((double)o->size_bytes, a),
           gr_dtype_name(e->dtype), e->shape.world_size, (int)o->hosts, o->hosts == 1 ? "" : "s",
           o->link == 0 ? "shm" : "tcp", rails, o->exact ? "exact" : "not exact");
    printf("choice      %s: %s\n            %s\n", chosen->algorithm->name, e->source_text,
           chosen->algorithm->description);
    if (chosen->algorithm->plan) {
        printf(
            "each rank   sends at most %s in %llu message%s; blocks in %u segment%s of up to %s\n",
            size_text((double)chosen->prediction.bytes_sent, a),
            (unsigned long long)chosen->prediction.messages,
            chosen->prediction.messages == 1 ? "" : "s", chosen->prediction.segments,
            chosen->prediction.segments == 1 ? "" : "s",
            size_text((double)chosen->segment_bytes, b));
    } else {
        print_ways(e);
    }
    print_ranges(e);
    print_network(e);
    printf("\n%-20s %10s  %10s = %10s + %10s + %10s  %s\n", "candidate", "segment", "time",
           "latency", "bandwidth", "reduction", "bound by");
    for (int i = 0; i < e->candidate_count; i++) {
        const algorithm_candidate *at = &e->candidates[i];
        const gr_prediction *p = &at->prediction;
        if (p->ranks_walked > 0) {
            char segment[SIZE_BYTES];
            printf("%-20s %10s  %10s = %10s + %10s + %10s  %s%s%s\n", at->algorithm->name,
                   size_text((double)at->segment_bytes, segment), time_text(p->time_us, c),
                   time_text(p->latency_us, d), time_text(p->bandwidth_us, f),
                   time_text(p->reduction_us, a), p->bound, at->why_not ? "; not eligible: " : "",
                   at->why_not ? at->why_not : "");
        } else {
            printf("%-20s %10s  %s\n", at->algorithm->name, "",
                   at->why_not ? at->why_not : "no messages");
        }
    }
    if (chosen->algorithm->plan && chosen->prediction.ranks_walked < e->shape.world_size) {
        printf("\nThe times are those of %d ranks that stand for all.\n",
               chosen->prediction.ranks_walked);
    }
}

static void print_json(explanation *e)
{
    const gr_plan_options *o = e->options;
    const algorithm_candidate *chosen = chosen_one(e);
    printf("{\"op\": \"%s\", \"size_bytes\": %lld, \"dtype\": \"%s\", \"ranks\": %d, \"hosts\": "
           "%d, \"link\": \"%s\", \"rails\": %d, \"exact\": %s, \"algorithm\": \"%s\", "
           "\"segment_bytes\": %zu, "
           "\"source\": \"%s\", \"messages\": %llu, \"bytes_sent\": %llu, ",
           gr_coll_name(e->shape.coll), (long long)o->size_bytes, gr_dtype_name(e->dtype),
           e->shape.world_size, (int)o->hosts, o->link == 0 ? "shm" : "tcp", (int)o->rails,
           o->exact ? "true" : "false", chosen->algorithm->name, chosen->segment_bytes, e->source,
           (unsigned long long)chosen->prediction.messages,
           (unsigned long long)chosen->prediction.bytes_sent);
    if (!chosen->algorithm->plan && e->shape.coll == GR_COLL_ALLREDUCE) {
        printf("\"gr_alloc\": \"%s\", \"malloc\": \"%s\", ", way_name(way_of(e, true)),
               way_name(way_of(e, false)));
    }
    printf("\"candidates\": [");
    for (int i = 0; i < e->candidate_count; i++) {
        const algorithm_candidate *at = &e->candidates[i];
        const gr_prediction *p = &at->prediction;
        printf("%s{\"algorithm\": \"%s\", \"eligible\": %s", i > 0 ? ", " : "", at->algorithm->name,
               at->why_not ? "false" : "true");
        if (p->ranks_walked > 0) {
            printf(", \"segment_bytes\": %zu, \"time_us\": %.3f, \"latency_us\": %.3f, "
                   "\"bandwidth_us\": %.3f, \"reduction_us\": %.3f, \"bound\": \"%s\", "
                   "\"segments\": %u, \"messages\": %llu, \"bytes_sent\": %llu",
                   at->segment_bytes, p->time_us, p->latency_us, p->bandwidth_us, p->reduction_us,
                   p->bound, p->segments, (unsigned long long)p->messages,
                   (unsigned long long)p->bytes_sent);
        }
        if (at->why_not) {
            printf(", \"why_not\": \"%s\"", at->why_not);
        }
        printf("}");
    }
    printf("]}\n");
}

static gr_status explain(explanation *e, gr_diag *diag)
{
    const gr_plan_options *o = e->options;
    gr_status status = find_coll(e, diag);
    if (status == GR_OK) {
        status = place_ranks(e, diag);
    }
    if (status == GR_OK) {
        status = read_costs(e, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_coll coll = e->shape.coll;
    bool adds =
        coll == GR_COLL_ALLREDUCE || coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_REDUCE;
    e->order_free = !adds || gr_dtype_any_order(e->dtype);
    const gr_selection_config choosing = {.text = o->algorithm,
                                          .exact = o->exact,
                                          .link = o->link == 0 ? GR_LINK_SHM : GR_LINK_TCP,
                                          .rails = (int)o->rails,
                                          .world_size = e->shape.world_size,
                                          .segment_bytes = (size_t)o->segment_bytes};
    status = gr_selection_init(&e->selection, &choosing, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_selection_adopt(&e->selection, &e->tuning.model,
                       o->rules ? &e->tuning.rules[o->exact] : NULL);
    choose(e);
    return list_candidates(e, diag);
}

gr_status gr_info_plan(const gr_plan_options *options, gr_diag *diag)
{
    explanation *e = calloc(1, sizeof *e);
    if (!e) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a plan");
    }
    e->options = options;
    e->dtype = (gr_dtype)options->dtype;
    e->shape.world_size = e->shape.shards = (int)options->ranks;
    e->shape.shared = options->hosts == 1 && options->link == 0;
    gr_status status = explain(e, diag);
    if (status == GR_OK && options->json) {
        print_json(e);
    } else if (status == GR_OK) {
        print_text(e);
    }
    free(e->ranks);
    free(e);
    return status;
}
