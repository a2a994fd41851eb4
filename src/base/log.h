/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_LOG_H
#define GR_BASE_LOG_H

/* Levels by volume: error and warn concern a user; info is a handful of lines per job; debug about
 * one line per object; trace one line per message. A log is a value of its owner; there is no
 * global log. The library writes nothing without a sink. */

#include <gradus/status.h>

typedef struct gr_log {
    gr_log_level level;
    gr_log_sink *sink; /* NULL: silent */
    void *sink_arg;
} gr_log;

enum { GR_LOG_LINE_BYTES = 1024 };

/* `log` may be NULL (silent). Nothing is formatted if `level` is above that of `log`. */
void gr_log_write(const gr_log *log, gr_log_level level, const char *component, const char *format,
                  ...) GR_PRINTF(4, 5);

/* A sink that writes "gradus: warning: component: text" to the FILE in sink_arg, in one write per
 * line. */
void gr_log_to_file(void *sink_arg, gr_log_level level, const char *component, const char *line);

#endif
