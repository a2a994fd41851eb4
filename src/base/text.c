/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

static bool continues(char c)
{
    return ((unsigned char)c & 0xC0u) == 0x80u;
}

size_t gr_text_character(const char *text, size_t left)
{
    unsigned first = (unsigned char)text[0];
    size_t length = first < 0x80                    ? 1
                    : first >= 0xC2 && first < 0xE0 ? 2
                    : first >= 0xE0 && first < 0xF0 ? 3
                    : first >= 0xF0 && first < 0xF5 ? 4
                                                    : 0;
    if (length > left) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if (!continues(text[i])) {
            return 0;
        }
    }
    unsigned second = length > 1 ? (unsigned char)text[1] : 0;
    bool too_long = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    bool surrogate = first == 0xED && second >= 0xA0;
    bool too_large = first == 0xF4 && second >= 0x90;
    return length > 1 && (too_long || surrogate || too_large) ? 0 : length;
}

int gr_text_fit(const char *text, size_t bytes_max)
{
    size_t length = strnlen(text, bytes_max + 1);
    if (length > bytes_max) {
        length = bytes_max;
        while (length > 0 && continues(text[length])) {
            length--;
        }
    }
    return (int)length;
}

void gr_text_mark_cut(char *text, size_t size_bytes)
{
    memcpy(text + gr_text_fit(text, size_bytes - 4), "...", 4);
}

void gr_text_mend(char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t length = gr_text_character(text, left), same = 1;
        while (same < left && continues(text[same])) {
            same++;
        }
        if (length == 0 && same == left && left < 4 && (unsigned char)*text >= 0xC2 &&
            (unsigned char)*text < 0xF5) {
            *text = '\0';
            return;
        }
        if (length == 0) {
            *text = '?';
        }
        length += length == 0;
        text += length;
        left -= length;
    }
}

void gr_text_line(char *text, size_t size_bytes, const char *format, va_list arguments)
{
    int length = vsnprintf(text, size_bytes, format, arguments);
    if (length < 0) {
        /* An argument that the locale cannot convert: the format alone still says something. */
        snprintf(text, size_bytes, "%s", format);
    } else if ((size_t)length >= size_bytes) {
        gr_text_mark_cut(text, size_bytes);
    }
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F) {
            *c = ' ';
        }
    }
}

void gr_text_list(char *text, size_t size_bytes, const char *const *words)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; words[i] != NULL; i++) {
        const char *before = i == 0 ? "" : (words[i + 1] == NULL ? " or " : ", ");
        int length = snprintf(text + used, size_bytes - used, "%s%s", before, words[i]);
        if (length < 0 || (size_t)length >= size_bytes - used) {
            gr_text_mark_cut(text, size_bytes);
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
    int length = gr_text_fit(text, SHOWN);
    bool cut = text[length] != '\0';
    snprintf(text_out, GR_VALUE_BYTES, "\"%.*s%s\"", length, text, cut ? "..." : "");
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
