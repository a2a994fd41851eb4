/* SPDX-License-Identifier: Apache-2.0 */
#include "base/codec.h"

#include <ctype.h>

bool gr_text_printable(const char *text, size_t size_bytes, bool lines)
{
    for (size_t i = 0; i < size_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x80 && !isprint(c) && !(lines && c == '\n')) {
            return false;
        }
    }
    return true;
}

uint8_t *gr_put_text(uint8_t *at, const char *text, size_t max)
{
    size_t size = text != NULL ? strnlen(text, max - 1) : 0;
    gr_put_u16(at, (uint16_t)size);
    if (size > 0) {
        memcpy(at + 2, text, size);
    }
    return at + 2 + size;
}

const uint8_t *gr_get_text(const uint8_t *at, const uint8_t *end, char *text_out, size_t max,
                           bool lines)
{
    if (at == NULL || end - at < 2) {
        return NULL;
    }
    size_t size = gr_get_u16(at);
    at += 2;
    if (size >= max || size > (size_t)(end - at) ||
        !gr_text_printable((const char *)at, size, lines)) {
        return NULL;
    }
    memcpy(text_out, at, size);
    text_out[size] = '\0';
    return at + size;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "members lie as they are written");

static bool is_end(const gr_wire_field *field)
{
    return field->bytes == 0 && field->size_bytes == 0;
}

uint8_t *gr_wire_put(const gr_wire_field *fields, const void *object, uint8_t *at)
{
    for (; !is_end(fields); fields++) {
        const char *member = (const char *)object + fields->offset;
        size_t size = fields->size_bytes < fields->bytes ? fields->size_bytes : fields->bytes;
        if (fields->bytes == 0) {
            at = gr_put_text(at, member, fields->size_bytes);
            continue;
        }
        memcpy(at, member, size);
        memset(at + size, 0, fields->bytes - size);
        at += fields->bytes;
    }
    return at;
}

static bool get_number(const gr_wire_field *field, const uint8_t *at, void *member)
{
    uint64_t value = 0;
    memcpy(&value, at, field->bytes);
    if ((field->max != 0 && value > field->max) ||
        (field->size_bytes < sizeof value && value >> 8 * field->size_bytes != 0)) {
        return false;
    }
    memcpy(member, &value, field->size_bytes);
    return true;
}

const uint8_t *gr_wire_get(const gr_wire_field *fields, const uint8_t *at, const uint8_t *end,
                           void *object_out)
{
    for (; at != NULL && !is_end(fields); fields++) {
        char *member = (char *)object_out + fields->offset;
        if (fields->bytes == 0) {
            at = gr_get_text(at, end, member, fields->size_bytes, false);
        } else if ((size_t)(end - at) < fields->bytes) {
            return NULL;
        } else if (fields->bytes > sizeof(uint64_t)) {
            memcpy(member, at, fields->bytes);
            at += fields->bytes;
        } else {
            at = get_number(fields, at, member) ? at + fields->bytes : NULL;
        }
    }
    return at;
}
