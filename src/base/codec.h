/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_CODEC_H
#define GR_BASE_CODEC_H

/* Little-endian put and get for everything that is written to a wire or a file. */

#include <stdbool.h>
#include <stddef.h>
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

static inline void gr_put_f64(uint8_t *at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    gr_put_u64(at, bits);
}

static inline double gr_get_f64(const uint8_t *at)
{
    uint64_t bits = gr_get_u64(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns true if all characters can be displayed (UTF-8 included; ends of lines if `lines`). */
bool gr_text_printable(const char *text, size_t size_bytes, bool lines);
/* Writes the length (u16) and at most max - 1 bytes of a text (NULL counts as ""); returns the
 * position behind it. */
uint8_t *gr_put_text(uint8_t *at, const char *text, size_t max);
/* Reads such a text into text_out[max]; returns the position behind it, or NULL if the text does
 * not fit, ends beyond `end` or is not printable. Returns NULL if `at` is NULL, so calls can be
 * chained. */
const uint8_t *gr_get_text(const uint8_t *at, const uint8_t *end, char *text_out, size_t max,
                           bool lines);

/* A field of a message, and the member of a struct that holds it. One table of these, ended by {0},
 * describes a message in both directions. */
typedef struct gr_wire_field {
    size_t offset, size_bytes; /* of the member; size_bytes 0: none, the field is zero */
    size_t bytes;              /* of a number in the message; beyond 8: bytes as they lie. 0: a text
                                * in a char array, as gr_put_text writes it */
    uint64_t max;              /* the largest number that is sound; 0: any that the member holds */
} gr_wire_field;

/* {GR_WIRE(32, gr_hello, link), .max = 1} */
#define GR_WIRE(bits, type, member)                                                                \
    .offset = offsetof(type, member), .size_bytes = sizeof((type *)0)->member, .bytes = (bits) / 8

/* Writes the fields of `object`; returns the position behind them. */
uint8_t *gr_wire_put(const gr_wire_field *fields, const void *object, uint8_t *at);
/* Reads them into `object_out`; returns the position behind them, or NULL if they end beyond `end`
 * or one is not sound: then what was read so far stays. Returns NULL if `at` is NULL. */
const uint8_t *gr_wire_get(const gr_wire_field *fields, const uint8_t *at, const uint8_t *end,
                           void *object_out);

#endif
