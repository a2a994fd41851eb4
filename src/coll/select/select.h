/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SELECT_SELECT_H
#define GR_COLL_SELECT_SELECT_H

/* Which algorithm for which operation, and in what segments. Every rank must choose alike, so the
 * choice depends only on what all ranks know: the operation, its size, the number of ranks, the
 * kind of link, the job's settings, and costs that were agreed on (tune.h).
 *
 * In this order: a rule of the user (GRADUS_ALGORITHM), one that was measured (`gradus tune`), the
 * schedule in shared memory (shm_coll.h) where all ranks share memory, the plan for which the cost
 * model (cost_model.h) predicts the shortest time. Predictions are made once for a class of
 * operations; after that a choice is a look into a table. */

#include "base/log.h"
#include "coll/select/cost_model.h"
#include "link/link.h"

enum {
    GR_SELECT_RULES_MAX = 128,
    GR_SELECT_CLASSES = 16,
    GR_SELECT_SIZES = 24,
    GR_SELECT_SEGMENT_MIN = 256 /* bytes */
};

typedef struct gr_choice {
    const gr_algorithm *algorithm; /* NULL: no algorithm can plan for the shape */
    size_t segment_bytes;          /* messages are cut into segments of this size, a multiple of
                                      64; 0: as the executor has it */
} gr_choice;

/* For sizes from <= bytes < to. Sizes are those of the whole buffer: all blocks together. */
typedef struct gr_select_rule {
    gr_coll coll;
    uint64_t from, to;             /* UINT64_MAX: no end */
    const gr_algorithm *algorithm; /* NULL: "auto" */
    size_t segment_bytes;          /* 0: not given */
    int place;                     /* in the text, from 1; 0: none */
} gr_select_rule;

typedef struct gr_select_rules {
    gr_select_rule rules[GR_SELECT_RULES_MAX];
    int count;
} gr_select_rules;

/* All that a choice depends on, except the size. */
typedef struct gr_select_class {
    bool used;
    gr_coll coll;
    gr_dtype dtype;
    int shards;
    bool out_of_place, uneven, shared, any_order;
    gr_choice choices[GR_SELECT_SIZES]; /* by gr_select_size_class */
} gr_select_class;

typedef struct gr_selection_config {
    const char *text; /* GRADUS_ALGORITHM; NULL: none. Borrowed for the call */
    bool exact;       /* sums in the order of the shard tree only */
    gr_link_kind link;
    int rails;            /* tcp connections of a pair of ranks */
    int world_size;       /* 0: not known yet */
    size_t segment_bytes; /* by GRADUS_SEGMENT; 0: part of the choice */
    const gr_log *log;    /* borrowed until gr_selection_fini; may be NULL */
} gr_selection_config;

typedef struct gr_selection {
    bool exact;
    bool shared; /* the ranks reach each other's memory; set by the owner */
    gr_link_kind link;
    int rails;
    int world_size;
    size_t segment_bytes;
    const gr_log *log;
    gr_select_rules forced, measured;
    gr_cost_model model;
    unsigned reported; /* collectives whose rule did not fit, as was logged: a bit each */
    gr_select_class classes[GR_SELECT_CLASSES];
    int class_next; /* that is given up when one more is needed */
    int class_last;
} gr_selection;

/* Costs are the defaults of cost_model.h until gr_selection_adopt. GR_E_INVALID: something is wrong
 * in the text; the sentence says where. */
gr_status gr_selection_init(gr_selection *selection, const gr_selection_config *config,
                            gr_diag *diag) GR_MUST_CHECK;

/* Other costs, or measured rules (may be NULL), from now on. */
void gr_selection_adopt(gr_selection *selection, const gr_cost_model *model,
                        const gr_select_rules *measured);

/* `order_free`: any order of additions gives the same bits (integers). A rule whose algorithm
 * cannot plan for the shape gives way, which is logged once. May allocate when an
 * operation is the first of its class. */
gr_choice gr_select(gr_selection *selection, const gr_plan_shape *shape, gr_dtype dtype,
                    size_t size_bytes, bool order_free);

/* The rule that a shape and size meet, NULL if none does. */
const gr_select_rule *gr_select_rule_find(const gr_select_rules *rules, gr_coll coll,
                                          size_t size_bytes);

/* Class 0 holds all up to 64 bytes, class i those up to 64 * 2^i. */
int gr_select_size_class(size_t size_bytes);
size_t gr_select_class_bytes(int size_class); /* the largest size of it */

/* Returns true if this algorithm may be chosen for this shape. */
bool gr_select_permits(const gr_algorithm *algorithm, const gr_plan_shape *shape, bool any_order);
/* The length of segments where nothing else is given. `host_byte_us`: of a byte between hosts. */
size_t gr_select_segment_default(bool several_hosts, double host_byte_us);
/* Segments worth trying for a plan and a size, or the given one (not 0); returns how many. */
enum { GR_SELECT_SEGMENTS_MAX = 3 };
int gr_select_segments(const gr_selection *selection, const gr_cost *walk, size_t size_bytes,
                       size_t segments_out[GR_SELECT_SEGMENTS_MAX]);

/* The text of GRADUS_ALGORITHM:
 *   text   = item { (";" | "," | " ") item }
 *   item   = collective "=" what | collective ":" range "=" what | range "=" what
 *   range  = size "-" (size | "inf")           the end does not belong to it
 *   what   = ("auto" | algorithm) ["@" size]   the size is that of a segment
 * The ranges of a collective must cover all sizes, in ascending order. `world_size` 0: unknown. */
gr_status gr_select_rules_parse(gr_select_rules *rules, const char *text, bool exact,
                                int world_size, gr_diag *diag) GR_MUST_CHECK;

#endif
