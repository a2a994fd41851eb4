/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a file of weights. What is accepted is read to its last byte, and every byte of the
 * data belongs to one tensor. With an odd first byte the length of the header is set to what the
 * next two bytes say. */

#include "train/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void read_all(const gr_safetensors *file, const uint8_t *end)
{
    size_t data_bytes = 0;
    const uint8_t *last = end;
    volatile uint8_t sum = 0;
    for (int i = 0; i < gr_safetensors_count(file); i++) {
        const gr_safetensors_entry *entry = gr_safetensors_at(file, i);
        const uint8_t *at = entry->data;
        require(memchr(entry->name, '\0', sizeof entry->name) != NULL);
        require(entry->dims >= 0 && entry->dims <= GR_SAFETENSORS_DIMS_MAX);
        size_t count = 1;
        for (int d = 0; d < entry->dims; d++) {
            require(entry->dim[d] >= 0);
            count *= (size_t)entry->dim[d];
        }
        require(count == entry->count && entry->bytes >= entry->count);
        require(gr_safetensors_find(file, entry->name) == entry);
        for (size_t b = 0; b < entry->bytes; b++) {
            sum = (uint8_t)(sum + at[b]);
        }
        data_bytes += entry->bytes;
        last = at + entry->bytes;
    }
    require(gr_safetensors_at(file, gr_safetensors_count(file)) == NULL);
    require(last == end || data_bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { LENGTH_BYTES = 8 };
    if (size < 3 || size - 3 > SIZE_MAX - LENGTH_BYTES) {
        return 0;
    }
    bool set = (data[0] & 1) != 0;
    uint8_t length[LENGTH_BYTES] = {data[1], data[2]};
    data += 3;
    size -= 3;
    size_t total = size + (set ? sizeof length : 0);
    uint8_t *copy = malloc(total > 0 ? total : 1);
    if (copy == NULL) {
        return 0;
    }
    memcpy(copy, length, set ? sizeof length : 0);
    memcpy(copy + (set ? sizeof length : 0), data, size);
    gr_safetensors *file = NULL;
    gr_diag diag = {0};
    if (gr_safetensors_parse("weights", (char *)copy, total, &file, &diag) == GR_OK) {
        read_all(file, copy + total);
        gr_safetensors_close(file);
    } else {
        require(diag.text[0] != '\0');
        free(copy);
    }
    return 0;
}
