/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a pair of IDX files, plain or gzip. The first two bytes say where the labels
 * begin. */

#include "data/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES_MAX = 4096, SAMPLES_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const gr_table *table)
{
    float x[VALUES_MAX];
    gr_scaler scaler;
    gr_scaler_init(&scaler, 1.0 / 255, 0.5, 0.25);
    for (int64_t i = 0; i < gr_table_count(table) && i < SAMPLES_MAX; i++) {
        int32_t label = -1;
        if (gr_table_values(table) > VALUES_MAX) {
            return;
        }
        /* Floats may turn out not to be finite; nothing else can go wrong any more. */
        gr_status status = gr_table_read(table, i, &scaler, x, &label, NULL, NULL);
        if (status != GR_OK && status != GR_E_NOT_FINITE) {
            abort();
        }
        if (status == GR_OK && (label < 0 || label > gr_table_label_max(table))) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    size_t cut = (size_t)data[0] | (size_t)data[1] << 8;
    data += 2;
    size -= 2;
    cut = cut < size ? cut : size;
    gr_input_stream *images = NULL, *labels = NULL;
    gr_table *table = NULL;
    gr_diag diag;
    memset(&diag, 0, sizeof diag);
    gr_table_options options = {.memory_max = UINT64_C(1) << 24};
    if (gr_input_stream_open_memory("images", data, cut, &images, NULL) == GR_OK &&
        gr_input_stream_open_memory("labels", data + cut, size - cut, &labels, NULL) == GR_OK) {
        if (gr_table_open_idx(images, labels, &options, &table, &diag) == GR_OK) {
            read_all(table);
        } else if (diag.text[0] == '\0') {
            abort(); /* a failure without a sentence */
        }
    }
    gr_table_close(table);
    gr_input_stream_close(images);
    gr_input_stream_close(labels);
    return 0;
}
