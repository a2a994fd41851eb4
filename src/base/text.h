/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_TEXT_H
#define GR_BASE_TEXT_H

/* Text that a person reads. */

#include <gradus/status.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/* Formats into `text` (size_bytes > 3). The result is one line: control characters become spaces. A
 * text that does not fit ends with "...", never inside a UTF-8 character. */
void gr_text_line(char *text, size_t size_bytes, const char *format, va_list arguments)
    GR_PRINTF(3, 0);

/* Returns the length of the UTF-8 character at `text`, of which `left` bytes (> 0) are there; 0: it
 * is none. */
size_t gr_text_character(const char *text, size_t left);
/* Returns how many bytes of `text`, bytes_max at most, may be kept without a cut inside of a UTF-8
 * character: a precision for "%.*s". */
int gr_text_fit(const char *text, size_t bytes_max);
/* Puts "..." at the end of a full buffer (size_bytes > 3), in front of any UTF-8 character that
 * would be cut in two. */
void gr_text_mark_cut(char *text, size_t size_bytes);
/* Makes `text` UTF-8 in place: a byte that belongs to no character becomes '?', and the begin of a
 * character at the end, as a cut leaves it, goes. */
void gr_text_mend(char *text);

/* Writes a NULL-terminated list as "a, b or c"; a text that does not fit ends with "...". */
void gr_text_list(char *text, size_t size_bytes, const char *const *words);

enum { GR_VALUE_BYTES = 96, GR_RANGE_BYTES = 96, GR_ERRNO_TEXT_BYTES = 128 };

/* Writes a text as a part of a URL (RFC 3986): all but unreserved characters, and those of `but`,
 * percent-encoded. */
void gr_text_write_url(FILE *file, const char *text, const char *but);
/* Writes a value in quotes, cut after 60 bytes. */
void gr_text_quote(const char *text, char text_out[GR_VALUE_BYTES]);

/* Writes " from 1 to 4096", " of at least 1", " of at most 9" or nothing; NULL means no bound. */
void gr_text_range(const char *min, const char *max, char text_out[GR_RANGE_BYTES]);

/* Returns the entry of `known` (NULL-terminated) with the smallest edit distance to `word`, or NULL
 * if none is near. */
const char *gr_nearest(const char *word, const char *const *known);

/* Returns the operating system's text for an errno, in `buffer` or constant memory. Any thread. */
const char *gr_text_errno(int error, char buffer[GR_ERRNO_TEXT_BYTES]);

#endif
