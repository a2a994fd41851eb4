/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_LOG_H
#define GR_BASE_LOG_H

/* Levels by volume: error and warn concern a user; info is a handful of lines a job; debug is about
 * one line an object; trace is a line a message. A log is a value of its owner, there is no global
 * one; the library writes nothing without a sink. */

#include <gradus/status.h>

typedef enum gr_log_level {
    GR_LOG_OFF = 0,
    GR_LOG_ERROR = 1,
    GR_LOG_WARN = 2,
    GR_LOG_INFO = 3,
    GR_LOG_DEBUG = 4,
    GR_LOG_TRACE = 5
} gr_log_level;

/* `line` has no newline and is borrowed for the call. May be called from any thread. */
typedef void gr_log_sink(void *sink_arg, gr_log_level level, const char *component,
                         const char *line);

typedef struct gr_log {
    gr_log_level level;
    gr_log_sink *sink; /* NULL: silent */
    void *sink_arg;
} gr_log;

enum { GR_LOG_LINE_BYTES = 1024 };

/* `log` may be NULL (silent). Arguments are not evaluated into text below the level. */
void gr_log_write(const gr_log *log, gr_log_level level, const char *component, const char *format,
                  ...) GR_PRINTF(4, 5);

/* A sink that writes "gradus: warning: component: text" to the FILE in sink_arg (stderr, say), one
 * write call a line. */
void gr_log_to_file(void *sink_arg, gr_log_level level, const char *component, const char *line);

/* "warn" -> GR_LOG_WARN; GR_E_INVALID with the known names in diag. */
gr_status gr_log_level_parse(const char *text, gr_log_level *level_out,
                             gr_diag *diag) GR_MUST_CHECK;

#endif
