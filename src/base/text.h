/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_TEXT_H
#define GR_BASE_TEXT_H

/* Helpers of this floor for text that a person reads. */

#include <gradus/status.h>
#include <stdarg.h>

/* Formats into `text` (size_bytes > 3). Whatever came from outside, the result is one line: control
 * characters become spaces; what does not fit ends with "...", never inside a UTF-8 character. */
void gr_text_line(char *text, size_t size_bytes, const char *format, va_list arguments)
    GR_PRINTF(3, 0);

/* The words of a NULL-terminated list as "a, b or c"; what does not fit ends with "...". */
void gr_text_list(char *text, size_t size_bytes, const char *const *words);

enum { GR_ERRNO_TEXT_BYTES = 128 };

/* The operating system's words for an errno, in `buffer` or constant memory. Any thread. */
const char *gr_text_errno(int error, char buffer[GR_ERRNO_TEXT_BYTES]);

#endif
