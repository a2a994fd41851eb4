/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/select/select.h"
#include "base/fail.h"
#include "coll/engine/exec.h"
#include "coll/plan/traits.h"

#include <string.h>

enum { SMALLEST_CLASS_BYTES = 64, SEGMENT_ALIGN = 64 };

/* The first is what the executor does unasked. Below two units time is lost on every link. The last
 * one is for plans without scratch, which holds two segments for each slot. */
static const size_t segment_sizes[GR_SELECT_SEGMENTS_MAX] = {
    GR_SEGMENT_BYTES_DEFAULT, 2 * GR_SEGMENT_UNIT_BYTES, 16 * GR_SEGMENT_UNIT_BYTES};

/* A segment that is so long on its way costs more than its handling: peers that send to one at a
 * time do not share its line evenly, and who is behind holds up all that waits for the segment.
 * That is so below 20 Gbit/s. */
enum { SLOW_SEGMENT_US = 100, SLOW_SEGMENT_BYTES = GR_SEGMENT_UNIT_BYTES };

gr_status gr_selection_init(gr_selection *selection, const gr_selection_config *config,
                            gr_diag *diag)
{
    *selection = (gr_selection){.exact = config->exact,
                                .link = config->link,
                                .rails = config->rails > 0 ? config->rails : 1,
                                .world_size = config->world_size,
                                .segment_bytes = config->segment_bytes,
                                .log = config->log};
    gr_cost_model_defaults(&selection->model, config->link);
    return gr_select_rules_parse(&selection->forced, config->text ? config->text : "",
                                 config->exact, config->world_size, diag);
}

void gr_selection_adopt(gr_selection *selection, const gr_cost_model *model,
                        const gr_select_rules *measured)
{
    selection->model = *model;
    selection->measured.count = 0;
    if (measured) {
        selection->measured = *measured;
    }
    memset(selection->classes, 0, sizeof selection->classes);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */
int gr_select_size_class(size_t size_bytes)
{
    int at = 0;
    while (at < GR_SELECT_SIZES - 1 && gr_select_class_bytes(at) < size_bytes) {
        at++;
    }
    return at;
}

size_t gr_select_class_bytes(int size_class)
{
    return (size_t)SMALLEST_CLASS_BYTES << size_class;
}

size_t gr_select_segment_default(bool several_hosts, double host_byte_us)
{
    bool slow = (double)segment_sizes[0] * host_byte_us > SLOW_SEGMENT_US;
    return several_hosts && slow ? SLOW_SEGMENT_BYTES : segment_sizes[0];
}

int gr_select_segments(const gr_selection *selection, const gr_cost *walk, size_t size_bytes,
                       size_t segments_out[GR_SELECT_SEGMENTS_MAX])
{
    const gr_link_cost *between = &selection->model.link[GR_MODEL_BETWEEN];
    size_t unasked = gr_select_segment_default(gr_cost_hosts(walk) > 1, between->host_byte_us);
    if (selection->segment_bytes > 0) {
        segments_out[0] = selection->segment_bytes;
        return 1;
    }
    /* Only what is larger is shared by several rails. */
    if (unasked < segment_sizes[0] && selection->rails == 1) {
        segments_out[0] = unasked;
        return 1;
    }
    size_t block_bytes = gr_cost_block_bytes(walk, size_bytes);
    int tried = GR_SELECT_SEGMENTS_MAX - gr_cost_uses_scratch(walk);
    int count = 0;
    for (int i = 0; i < tried; i++) {
        /* Those that a block does not fill are all alike. */
        if (i == 0 || segment_sizes[i] < block_bytes) {
            segments_out[count++] = segment_sizes[i];
        }
    }
    return count;
}

/* ---- Rules ----------------------------------------------------------------------------------- */
bool gr_select_permits(const gr_algorithm *algorithm, const gr_plan_shape *shape, bool any_order)
{
    return algorithm->coll == shape->coll && (algorithm->canonical || any_order) &&
           algorithm->fits(shape);
}

const gr_select_rule *gr_select_rule_find(const gr_select_rules *rules, gr_coll coll,
                                          size_t size_bytes)
{
    for (int i = 0; i < rules->count; i++) {
        const gr_select_rule *rule = &rules->rules[i];
        if (rule->coll == coll && size_bytes >= rule->from &&
            (size_bytes < rule->to || rule->to == UINT64_MAX)) {
            return rule;
        }
    }
    return NULL;
}

static void report_misfit(gr_selection *selection, const gr_select_rule *rule,
                          const gr_plan_shape *shape)
{
    unsigned bit = 1u << shape->coll;
    if (selection->reported & bit) {
        return;
    }
    selection->reported |= bit;
    gr_log_write(selection->log, GR_LOG_WARN, "coll",
                 "GRADUS_ALGORITHM: %s=%s (at character %d) cannot do %d contributions on %d "
                 "ranks%s%s; the choice is free there",
                 gr_coll_name(shape->coll), rule->algorithm->name, rule->place, shape->shards,
                 shape->world_size, shape->uneven ? " with counts by rank" : "",
                 rule->algorithm->plan || shape->shared ? "" : ", which share no memory");
}

/* ---- Predictions ----------------------------------------------------------------------------- */
typedef struct cheapest {
    double cost_us[GR_SELECT_SIZES];
} cheapest;

/* By what a choice goes. Where all wait for all, that is how long an operation takes. With a root
 * operations follow one another before the first is over everywhere: what comes can wait, but a
 * rank begins the next one when it has sent what it has to, so that counts as much. */
static double cost_of(gr_cost *walk, const gr_selection *selection, const gr_select_class *class,
                      size_t size_bytes, size_t segment_bytes)
{
    double time_us = gr_cost_time(walk, &selection->model, class->dtype, size_bytes, segment_bytes);
    return gr_coll_traits_of[class->coll].rooted ? time_us + gr_cost_sending_us(walk) : time_us;
}

static void try_algorithm(const gr_selection *selection, gr_select_class *class, cheapest *best,
                          const gr_algorithm *algorithm, const gr_plan_shape *shape)
{
    gr_cost *walk = NULL;
    if (gr_cost_create(algorithm, shape, &walk) != GR_OK) {
        return; /* what cannot even be planned will say so when it is run */
    }
    for (int i = 0; i < GR_SELECT_SIZES; i++) {
        size_t segments[GR_SELECT_SEGMENTS_MAX];
        size_t bytes = gr_select_class_bytes(i);
        int count = gr_select_segments(selection, walk, bytes, segments);
        for (int s = 0; s < count; s++) {
            double cost_us = cost_of(walk, selection, class, bytes, segments[s]);
            if (!class->choices[i].algorithm || cost_us < best->cost_us[i]) {
                best->cost_us[i] = cost_us;
                class->choices[i] = (gr_choice){algorithm, segments[s]};
            }
        }
    }
    gr_cost_destroy(walk);
}

static void fill_class(const gr_selection *selection, gr_select_class *class,
                       const gr_plan_shape *shape)
{
    cheapest best;
    gr_plan_shape as_root = *shape;
    as_root.rank = 0;
    as_root.root = 0;
    const gr_algorithm *fallback = NULL;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        if (!gr_select_permits(at, &as_root, class->any_order)) {
            continue;
        }
        fallback = fallback ? fallback : at;
        if (!at->plan) { /* these stand first, and no plan is faster */
            break;
        }
        try_algorithm(selection, class, &best, at, &as_root);
    }
    for (int i = 0; i < GR_SELECT_SIZES; i++) { /* or there was no memory to think */
        if (!class->choices[i].algorithm) {
            class->choices[i].algorithm = fallback;
        }
    }
}

static bool is_it(const gr_select_class *class, const gr_plan_shape *shape, gr_dtype dtype,
                  bool any_order)
{
    return class->used && class->coll == shape->coll && class->dtype == dtype &&
           class->shards == shape->shards && class->out_of_place == shape->out_of_place &&
           class->uneven == shape->uneven && class->shared == shape->shared &&
           class->any_order == any_order;
}

static const gr_select_class *find_class(gr_selection *selection, const gr_plan_shape *shape,
                                         gr_dtype dtype, bool any_order)
{
    for (int i = 0; i < GR_SELECT_CLASSES; i++) {
        int at = (selection->class_last + i) % GR_SELECT_CLASSES;
        if (is_it(&selection->classes[at], shape, dtype, any_order)) {
            selection->class_last = at;
            return &selection->classes[at];
        }
    }
    gr_select_class *class = &selection->classes[selection->class_next];
    selection->class_last = selection->class_next;
    selection->class_next = (selection->class_next + 1) % GR_SELECT_CLASSES;
    *class = (gr_select_class){.used = true,
                               .coll = shape->coll,
                               .dtype = dtype,
                               .shards = shape->shards,
                               .out_of_place = shape->out_of_place,
                               .uneven = shape->uneven,
                               .shared = shape->shared,
                               .any_order = any_order};
    fill_class(selection, class, shape);
    return class;
}

/* ---- The choice ------------------------------------------------------------------------------ */
gr_choice gr_select(gr_selection *selection, const gr_plan_shape *shape, gr_dtype dtype,
                    size_t size_bytes, bool order_free)
{
    bool any_order = order_free || !selection->exact;
    const gr_select_rule *rule = gr_select_rule_find(&selection->forced, shape->coll, size_bytes);
    gr_choice choice = {.segment_bytes = selection->segment_bytes};
    size_t forced_segment = rule ? rule->segment_bytes : 0;
    if (rule && rule->algorithm) {
        if (gr_select_permits(rule->algorithm, shape, any_order)) {
            choice.algorithm = rule->algorithm;
        } else {
            report_misfit(selection, rule, shape);
        }
    }
    rule = choice.algorithm ? NULL
                            : gr_select_rule_find(&selection->measured, shape->coll, size_bytes);
    if (rule && gr_select_permits(rule->algorithm, shape, any_order)) {
        choice.algorithm = rule->algorithm;
        choice.segment_bytes = choice.segment_bytes ? choice.segment_bytes : rule->segment_bytes;
    }
    if (!choice.algorithm) {
        choice = find_class(selection, shape, dtype, any_order)
                     ->choices[gr_select_size_class(size_bytes)];
    }
    choice.segment_bytes = forced_segment ? forced_segment : choice.segment_bytes;
    choice.segment_bytes =
        (choice.segment_bytes + SEGMENT_ALIGN - 1) & ~(size_t)(SEGMENT_ALIGN - 1);
    return choice;
}
