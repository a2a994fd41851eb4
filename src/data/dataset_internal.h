/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_DATASET_INTERNAL_H
#define GR_DATA_DATASET_INTERNAL_H

#include "base/arena.h"
#include "data/dataset.h"
#include "data/table.h"

/* gr_dataset_open with other limits (memory_max, index_max of `limits`), for tests. */
gr_status gr_dataset_open_limited(const gr_data_config *config, const char *job_path, uint64_t seed,
                                  const gr_table_options *limits, gr_dataset **dataset_out,
                                  gr_diag *diag) GR_MUST_CHECK;

/* What delimiter, class_names, categories and skip say, into `options`, whose texts then lie in the
 * document and in `arena`. */
gr_status gr_dataset_columns(const gr_data_config *config, gr_arena *arena,
                             gr_table_options *options, gr_diag *diag) GR_MUST_CHECK;

#endif
