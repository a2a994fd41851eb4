/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_EARLY_STOPPING_H
#define GR_TRAIN_EARLY_STOPPING_H

/* The best value of a metric so far, and when a training ends since it gets no better. Pure: the
 * metrics are the same on all workers, and so is what follows from them. */

#include "train/job/job.h"
#include "train/metrics.h"

/* Which metric the job watches, and whether it can, as far as is known without its data (resolve)
 * and with it (bind). GR_E_INVALID with file and line. */
gr_status gr_early_stopping_resolve(gr_job *job, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_early_stopping_bind(const gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* No value yet. */
gr_best gr_best_none(void);
/* The job's metric, as in job files; NULL: it watches none. */
const char *gr_best_metric(const gr_job *job);
/* An epoch has ended after record->step steps. A value that is NaN (there was no evaluation)
 * changes nothing. */
void gr_best_update(gr_best *best, const gr_job *job, const gr_epoch_record *record);
/* Returns true if the training ends here. */
bool gr_early_stopping_reached(const gr_job *job, const gr_best *best);

#endif
