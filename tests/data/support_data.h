/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_SUPPORT_DATA_H
#define GR_TESTS_SUPPORT_DATA_H

/* Files for the tests of the data layer: each test has a folder of its own, removed at its end. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/dataset_internal.h"

int folder_make(void **state); /* cmocka setup: *state is the folder's path */
int folder_drop(void **state);

/* A file `name` in the folder; the path lies in `path` (at least 300 bytes). */
void file_put(void **state, const char *name, const void *data, size_t size, char *path);
void file_put_gzip(void **state, const char *name, const void *data, size_t size, char *path);

/* An IDX file in memory (free): header, then `payload`. Returns its size. */
size_t idx_make(uint8_t type, int dims, const uint32_t *dim, const void *payload, size_t size,
                uint8_t **data_out);

/* The defaults of a `data:` part. */
gr_data_config config_csv(const char *file);
gr_data_config config_idx(const char *images, const char *labels);

/* Opens the data, which must fail with a sentence that holds each of the texts. */
void must_fail(const gr_data_config *config, gr_status status, const char *text, const char *also);

#endif
