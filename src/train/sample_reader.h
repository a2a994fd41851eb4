/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_SAMPLE_READER_H
#define GR_TRAIN_SAMPLE_READER_H

/* New samples for a model that is trained: from front to back, as its training data was read. */

#include "train/inference.h"

typedef struct gr_sample_reader gr_sample_reader;

/* Opens `path`. A CSV file may have the label column or not. With a header, columns are found by
 * their names, in any order. `inference` is borrowed. GR_E_INVALID with file and line. */
gr_status gr_sample_reader_open(const gr_inference *inference, const char *path,
                                gr_sample_reader **reader_out, gr_diag *diag) GR_MUST_CHECK;
void gr_sample_reader_close(gr_sample_reader *reader); /* NULL ok */

/* The next sample, scaled: inference->values numbers. *more_out: false at the end. */
gr_status gr_sample_reader_next(gr_sample_reader *reader, float *x_out, bool *more_out,
                                gr_diag *diag) GR_MUST_CHECK;

#endif
