/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_TIME_TEXT_H
#define GR_BASE_TIME_TEXT_H

/* Times as text (RFC 3339, which Kubernetes uses), in microseconds since 1970. */

#include <stdbool.h>
#include <stdint.h>

enum { GR_TIME_BYTES = 32 };

/* Takes any offset and up to nine digits of a second. */
bool gr_time_read(const char *text, int64_t *time_us_out);

/* "2026-01-31T12:00:00Z"; with `micro` "2026-01-31T12:00:00.000000Z". */
void gr_time_print(int64_t time_us, bool micro, char text_out[GR_TIME_BYTES]);

#endif
