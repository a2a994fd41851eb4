/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_VERIFY_INTERNAL_H
#define GR_SIM_VERIFY_INTERNAL_H

/* The verifier's parts. Each looks at the plans afresh and shares nothing with gr_plan_finish and
 * the algorithms but the definitions of plan.h. Internal to verify*.c. */

#include "sim/verify.h"

#define GR_NO_STEP UINT32_MAX

/* Steps of all ranks are numbered through: rank r's step i is first[r] + i. */
typedef struct gr_verify {
    const gr_plan *plans;
    int world_size;
    bool canonical;
    gr_diag *diag;
    uint32_t total;
    uint32_t *first;     /* [world_size + 1] */
    uint32_t *mate;      /* messages: the step at the other end */
    uint32_t *next_sent; /* SEND, SIGNAL: the next message from this rank to the same peer */
    uint32_t *order;     /* all steps in an order in which they may happen */
} gr_verify;

/* verify_words.c */
/* GR_E_BUG with a sentence that begins with the rank and the step. */
gr_status gr_verify_wrong(const gr_verify *v, int rank, uint32_t step, const char *format, ...)
    GR_PRINTF(4, 5);
gr_status gr_verify_no_memory(const gr_verify *v);

int gr_verify_rank_of(const gr_verify *v, uint32_t number);

/* What a step reads and writes. */
typedef struct gr_access {
    gr_operand operand;
    bool writes;
} gr_access;
enum { GR_ACCESSES_MAX = 3 };
int gr_step_accesses(const gr_step *step, gr_access accesses_out[GR_ACCESSES_MAX]);

/* verify_order.c */
gr_status gr_verify_hazards(const gr_verify *v, int rank) GR_MUST_CHECK;
gr_status gr_verify_progress(gr_verify *v) GR_MUST_CHECK; /* fills v->order */

/* verify_result.c */
gr_status gr_verify_results(const gr_verify *v) GR_MUST_CHECK;
gr_status gr_verify_barrier(const gr_verify *v) GR_MUST_CHECK;

#endif
