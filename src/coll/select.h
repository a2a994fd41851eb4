/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SELECT_H
#define GR_COLL_SELECT_H

/* Which algorithm for which operation. Every rank must choose the same one, so the choice depends
 * only on what all ranks know: the operation, its size, the number of ranks, the kind of link and
 * the job's settings. */

#include "coll/plan.h"
#include "link/link.h"

enum { GR_SELECT_ROWS_MAX = 32 };

typedef struct gr_selection {
    bool exact; /* sums in the order of the shard tree only */
    gr_link_kind link;
    const gr_algorithm *forced[GR_COLL_COUNT];    /* by GRADUS_ALGORITHM; NULL: chosen */
    const gr_algorithm *rows[GR_SELECT_ROWS_MAX]; /* of the table, for this kind of link */
} gr_selection;

/* `text`: "allreduce=ring,broadcast=direct", or NULL. GR_E_INVALID: an unknown name (the sentence
 * lists the known ones), or one that does not add in tree order while `exact` is asked for. */
gr_status gr_selection_init(gr_selection *selection, const char *text, bool exact,
                            gr_link_kind link, gr_diag *diag) GR_MUST_CHECK;

/* Never NULL for a valid shape: a forced algorithm that cannot plan for the shape (halving-
 * doubling for three ranks, say) gives way to the choice. `order_free`: any order of additions
 * gives the same bits (integers). */
const gr_algorithm *gr_select(const gr_selection *selection, const gr_plan_shape *shape,
                              size_t size_bytes, bool order_free);

#endif
