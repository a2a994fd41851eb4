/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_SCHEDULE_H
#define GR_COLL_ENGINE_SCHEDULE_H

/* A plan made ready for running: the same steps, with what the executor would otherwise work out
 * again for each operation: which logical block each step moves, who waits for whom in both
 * directions, and the messages of each link in order. Immutable once created; shared by all
 * operations of its shape.
 *   It is run slice by slice of the blocks (exec.h), each in the scratch of the one before. */

#include "coll/plan/plan.h"

#define GR_SCHEDULE_NO_STEP UINT32_MAX

typedef struct gr_schedule_step {
    uint8_t kind; /* gr_step_kind */
    int32_t peer;
    uint32_t block; /* of the user's buffer, also for what lies in scratch */
    gr_operand dst, a, b;
    bool a_received, b_received; /* the operand is what a RECV brought: perhaps a view */
    uint32_t readers;            /* RECV into scratch: how many operands read it */
    bool forwarded;              /* one of them is a SEND: no view, which could not be let go */
    uint32_t message;
    uint32_t after_first, after_count; /* steps that this one waits for: program->after */
    /* Those that it waits for in the slice before, also in program->after: the last to use the
     * scratch slot that this one is the first to write. */
    uint32_t again_first, again_count;
    uint32_t next_first, next_count; /* steps that wait for this one: program->next */
} gr_schedule_step;

typedef struct gr_schedule {
    gr_plan_shape shape;
    uint32_t blocks;
    uint16_t user_slots, input_slots, scratch_slots;
    /* Scratch slots in use are numbered, those that receive first: slot_places[slot]. */
    uint32_t *slot_places;
    uint32_t places, receiving_places;
    uint32_t step_count;
    uint32_t whole_count; /* SIGNAL and AWAIT: one empty message, however many segments */
    gr_schedule_step *steps;
    uint32_t *after, *next;
    /* Messages by link: those to peer p are send_steps[send_first[p] .. send_first[p + 1]). */
    uint32_t *send_first, *send_steps;
    uint32_t *recv_first, *recv_steps;
    uint32_t *roots; /* local steps that wait for nothing */
    uint32_t root_count;
} gr_schedule;

/* The plan, a finished one, is not needed afterwards. GR_E_NO_MEMORY. */
gr_status gr_schedule_create(const gr_plan *plan, gr_schedule **program_out,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_schedule_destroy(gr_schedule *schedule); /* NULL ok */

#endif
