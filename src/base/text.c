/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Puts "..." at the end of a full buffer, in front of any character that would be cut in two. */
static void mark_cut(char *text, size_t size_bytes)
{
    size_t at = size_bytes - 4;
    while (at > 0 && ((unsigned char)text[at] & 0xC0u) == 0x80u) {
        at--;
    }
    memcpy(text + at, "...", 4);
}

void gr_text_line(char *text, size_t size_bytes, const char *format, va_list arguments)
{
    int length = vsnprintf(text, size_bytes, format, arguments);
    if (length < 0) {
        /* An argument that the locale cannot convert: the format alone still says something. */
        snprintf(text, size_bytes, "%s", format);
    } else if ((size_t)length >= size_bytes) {
        mark_cut(text, size_bytes);
    }
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F) {
            *c = ' ';
        }
    }
}

size_t gr_text_utf8_length(const char *text, size_t left_bytes)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t length = left_bytes == 0                 ? 0
                    : at[0] < 0x80                  ? 1
                    : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                    : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                    : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                    : 0;
    if (length > left_bytes) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if (length <= 1) {
        return length;
    }
    bool too_long = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool surrogate = at[0] == 0xed && at[1] >= 0xa0;
    bool too_large = at[0] == 0xf4 && at[1] >= 0x90;
    return too_long || surrogate || too_large ? 0 : length;
}

void gr_text_list(char *text, size_t size_bytes, const char *const *words)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; words[i] != NULL; i++) {
        const char *before = i == 0 ? "" : (words[i + 1] == NULL ? " or " : ", ");
        int length = snprintf(text + used, size_bytes - used, "%s%s", before, words[i]);
        if (length < 0 || (size_t)length >= size_bytes - used) {
            mark_cut(text, size_bytes);
            return;
        }
        used += (size_t)length;
    }
}

void gr_text_write_url(FILE *file, const char *text, const char *but)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    for (; *text != '\0'; text++) {
        if (strchr(plain, *text) != NULL || strchr(but, *text) != NULL) {
            fputc(*text, file);
        } else {
            fprintf(file, "%%%02X", (unsigned char)*text);
        }
    }
}

void gr_text_quote(const char *text, char text_out[GR_VALUE_BYTES])
{
    enum { SHOWN = 60 };
    size_t length = strnlen(text, SHOWN + 1);
    bool cut = length > SHOWN;
    if (cut) { /* not inside of a UTF-8 character */
        length = SHOWN;
        while (length > 0 && ((unsigned char)text[length] & 0xC0u) == 0x80u) {
            length--;
        }
    }
    snprintf(text_out, GR_VALUE_BYTES, "\"%.*s%s\"", (int)length, text, cut ? "..." : "");
}

void gr_text_range(const char *min, const char *max, char text_out[GR_RANGE_BYTES])
{
    text_out[0] = '\0';
    if (min != NULL && max != NULL) {
        snprintf(text_out, GR_RANGE_BYTES, " from %s to %s", min, max);
    } else if (min != NULL) {
        snprintf(text_out, GR_RANGE_BYTES, " of at least %s", min);
    } else if (max != NULL) {
        snprintf(text_out, GR_RANGE_BYTES, " of at most %s", max);
    }
}

const char *gr_text_errno(int error, char buffer[GR_ERRNO_TEXT_BYTES])
{
    return strerror_r(error, buffer, GR_ERRNO_TEXT_BYTES);
}
