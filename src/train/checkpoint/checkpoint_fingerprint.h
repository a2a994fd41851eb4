/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHECKPOINT_FINGERPRINT_H
#define GR_TRAIN_CHECKPOINT_FINGERPRINT_H

/* What must be equal for a job to go on to the same bits, as texts by key: the layers of the model,
 * and the settings whose rows are marked as changing the result (`result`, base/config.h), data
 * files by what they hold. With them goes what predictions need, which follows from them. */

#include "train/job/job.h"

enum { GR_FINGERPRINT_MAX = 4096 };

typedef struct gr_fingerprint_entry {
    const char *key, *value; /* NULL: a setting of another kind of optimizer, reader, ... */
} gr_fingerprint_entry;

typedef struct gr_fingerprint {
    gr_fingerprint_entry *list;
    int count;
    const char *inference; /* JSON: what predictions need (inference.h); "": it is not kept */
} gr_fingerprint;

/* Texts and list live in `arena`. GR_E_NO_MEMORY; GR_E_IO, GR_E_NOT_FOUND: a data file. */
gr_status gr_fingerprint_of_job(const gr_job *job, gr_arena *arena, gr_fingerprint *fingerprint_out,
                                gr_diag *diag) GR_MUST_CHECK;

/* GR_E_INVALID with a sentence that names the first difference, both values and the remedy.
 * `checkpoint` and `job_path` are names for it. */
gr_status gr_fingerprint_compare(const gr_fingerprint *saved, const gr_fingerprint *own,
                                 const char *checkpoint, const char *job_path,
                                 gr_diag *diag) GR_MUST_CHECK;

#endif
