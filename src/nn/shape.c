/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/model.h"

#include <stdio.h>

int64_t gr_shape_count(const gr_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->dims; i++) {
        count *= shape->dim[i];
    }
    return count;
}

void gr_shape_format(const gr_shape *shape, char *text_out, size_t size_bytes)
{
    size_t used = 0;
    if (size_bytes == 0) {
        return;
    }
    text_out[0] = 0;
    for (int i = 0; i < shape->dims && used < size_bytes; i++) {
        int wrote = snprintf(text_out + used, size_bytes - used, "%s%lld", i ? "x" : "",
                             (long long)shape->dim[i]);
        used += wrote > 0 ? (size_t)wrote : size_bytes;
    }
}
