/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

void gr_log_write(const gr_log *log, gr_log_level level, const char *component, const char *format,
                  ...)
{
    if (log == NULL || log->sink == NULL || level > log->level || level <= GR_LOG_OFF) {
        return;
    }
    int saved_errno = errno; /* logging must not change errno for its caller */
    char line[GR_LOG_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    gr_text_line(line, sizeof line, format, arguments);
    va_end(arguments);
    log->sink(log->sink_arg, level, component, line);
    errno = saved_errno;
}

void gr_log_to_file(void *sink_arg, gr_log_level level, const char *component, const char *line)
{
    static const char *const words[] = {
        [GR_LOG_OFF] = "log",   [GR_LOG_ERROR] = "error", [GR_LOG_WARN] = "warning",
        [GR_LOG_INFO] = "info", [GR_LOG_DEBUG] = "debug", [GR_LOG_TRACE] = "trace"};
    bool known = level >= GR_LOG_OFF && level <= GR_LOG_TRACE;
    FILE *file = sink_arg;
    char text[GR_LOG_LINE_BYTES + 128];
    bool named = component != NULL && component[0] != '\0';
    int length =
        snprintf(text, sizeof text, "gradus: %s: %.64s%s%s\n", words[known ? level : GR_LOG_OFF],
                 named ? component : "", named ? ": " : "", line);
    if (length < 0) {
        return;
    }
    size_t size = (size_t)length;
    if (size >= sizeof text) { /* a sink called directly with an overlong line */
        size = sizeof text - 1;
        text[size - 1] = '\n';
    }
    /* One buffer, one fwrite, one flush: lines of several threads or processes do not mix. */
    flockfile(file);
    fwrite(text, 1, size, file);
    fflush(file);
    funlockfile(file);
}
