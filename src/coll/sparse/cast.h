/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SPARSE_CAST_H
#define GR_COLL_SPARSE_CAST_H

/* Between f32 and the 16-bit floating types: to nearest, ties to even, as the reduction kernels
 * round. dtype is GR_F16 or GR_BF16. Any thread. */

#include <gradus/comm.h>

void gr_cast_down(gr_dtype dtype, uint16_t *dst, const float *src, size_t count);
void gr_cast_up(gr_dtype dtype, float *dst, const uint16_t *src, size_t count);
/* values[i] becomes the nearest f32 that the type can hold: gr_cast_up of gr_cast_down. */
void gr_round_cast(gr_dtype dtype, float *values, size_t count);

#endif
