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
