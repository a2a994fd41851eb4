/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_NUMBER_H
#define GR_BASE_NUMBER_H

/* Text to numbers and back, the same in every locale; powers, the same on every machine. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum gr_number_result {
    GR_NUMBER_OK,
    GR_NUMBER_MALFORMED, /* no such number */
    GR_NUMBER_TOO_LARGE  /* a number, but beyond what the type holds */
} gr_number_result;

/* The whole text must be [+-]digits. */
gr_number_result gr_number_int(const char *text, int64_t *value_out);

/* [+-] digits [.digits] [e[+-]digits]; digits may miss on one side of the point. No hexadecimal, no
 * infinity, no NaN. */
gr_number_result gr_number_double(const char *text, double *value_out);

/* "true", "yes", "on" or "false", "no", "off", in any case. */
bool gr_number_bool(const char *text, bool *value_out);

/* A number with a unit, "64k" or "1.5 s": the unit's factor must be in the table. Without a unit,
 * plain_factor applies. The product is rounded to the nearest whole number. */
typedef struct gr_number_unit {
    const char *name;
    double factor;
} gr_number_unit;
gr_number_result gr_number_with_unit(const char *text, const gr_number_unit *units,
                                     double plain_factor, int64_t *value_out);

/* The shortest text that reads back as the same value; an integer within 1e15 without exponent. */
enum { GR_NUMBER_TEXT_BYTES = 32 };
void gr_number_print(double value, char text_out[GR_NUMBER_TEXT_BYTES]);

/* By squares: libm's pow does not give the same bits everywhere. */
double gr_power(double base, uint64_t exponent);

#endif
