/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_EVALUATE_H
#define GR_TRAIN_EVALUATE_H

/* The evaluation of weights on the test part. The samples are cut into batches of a size that
 * depends on the data alone, the batches are assigned to the ranks, and the batches' sums are added
 * in their order: the result has the same bits for every number of workers, and gr_eval_run
 * computes the same. */

#include "nn/model.h"
#include "train/evaluation.h"
#include "train/job/job.h"
#include <gradus/comm.h>

typedef struct gr_evaluator gr_evaluator;
/* The job is borrowed. */
gr_status gr_evaluator_create(const gr_job *job, gr_evaluator **evaluator_out,
                              gr_diag *diag) GR_MUST_CHECK;
void gr_evaluator_destroy(gr_evaluator *evaluator);
/* Collective over `comm`; NULL: alone. No heap. The counts of the result's confusion matrix are the
 * evaluator's, until the next run. */
gr_status gr_evaluator_run(gr_evaluator *evaluator, const float *values, gr_comm *comm,
                           gr_evaluation *evaluation_out, gr_diag *diag) GR_MUST_CHECK;

#endif
