/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/sparse/cast.h"
#include "coll/reduce/reduce_float16.h"

void gr_cast_down(gr_dtype dtype, uint16_t *dst, const float *src, size_t count)
{
    if (dtype == GR_BF16) {
        for (size_t i = 0; i < count; i++) {
            dst[i] = gr_bf16_of_f32(src[i]);
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            dst[i] = gr_f16_of_f32(src[i]);
        }
    }
}

void gr_cast_up(gr_dtype dtype, float *dst, const uint16_t *src, size_t count)
{
    if (dtype == GR_BF16) {
        for (size_t i = 0; i < count; i++) {
            dst[i] = gr_f32_of_bf16(src[i]);
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            dst[i] = gr_f32_of_f16(src[i]);
        }
    }
}

void gr_round_cast(gr_dtype dtype, float *values, size_t count)
{
    if (dtype == GR_BF16) {
        for (size_t i = 0; i < count; i++) {
            values[i] = gr_f32_of_bf16(gr_bf16_of_f32(values[i]));
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            values[i] = gr_f32_of_f16(gr_f16_of_f32(values[i]));
        }
    }
}
