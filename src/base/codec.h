/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_CODEC_H
#define GR_BASE_CODEC_H

/* Little-endian put and get for everything that is written to a wire or a file. */

#include <stdint.h>
#include <string.h>

static inline void gr_put_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void gr_put_u32(uint8_t *at, uint32_t value)
{
    gr_put_u16(at, (uint16_t)value);
    gr_put_u16(at + 2, (uint16_t)(value >> 16));
}

static inline void gr_put_u64(uint8_t *at, uint64_t value)
{
    gr_put_u32(at, (uint32_t)value);
    gr_put_u32(at + 4, (uint32_t)(value >> 32));
}

static inline uint16_t gr_get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)(at[1] << 8));
}

static inline uint32_t gr_get_u32(const uint8_t *at)
{
    return (uint32_t)gr_get_u16(at) | (uint32_t)gr_get_u16(at + 2) << 16;
}

static inline uint64_t gr_get_u64(const uint8_t *at)
{
    return (uint64_t)gr_get_u32(at) | (uint64_t)gr_get_u32(at + 4) << 32;
}

#endif
