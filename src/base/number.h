/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_NUMBER_H
#define GR_BASE_NUMBER_H

/* Text to numbers and back, the same in every locale; powers, the same on every machine. */

#include <stdbool.h>
#include <stdint.h>

typedef enum gr_number_result {
    GR_NUMBER_OK,
    GR_NUMBER_MALFORMED, /* no such number */
    GR_NUMBER_TOO_LARGE  /* a number, but beyond what the type holds */
} gr_number_result;

/* Reads [+-]digits, which must be the whole text. */
gr_number_result gr_number_int(const char *text, int64_t *value_out);

/* Reads [+-] digits [.digits] [e[+-]digits]; one side of the point may have no digits. Hexadecimal,
 * infinity and NaN are malformed. */
gr_number_result gr_number_double(const char *text, double *value_out);

/* Reads "true", "yes", "on", "false", "no" or "off", in upper or lower case. */
bool gr_number_bool(const char *text, bool *value_out);

/* Reads a number with a unit of the table, "64k" or "1.5 s". Without a unit plain_factor applies.
 * The product is rounded to the nearest whole number. */
typedef struct gr_number_unit {
    const char *name;
    double factor;
} gr_number_unit;
gr_number_result gr_number_with_unit(const char *text, const gr_number_unit *units,
                                     double plain_factor, int64_t *value_out);

/* Writes the shortest text that reads back as the same value; whole numbers up to 1e15 without an
 * exponent. */
enum { GR_NUMBER_TEXT_BYTES = 32 };
void gr_number_print(double value, char text_out[GR_NUMBER_TEXT_BYTES]);

/* For qsort: orders doubles from the smallest. */
int gr_number_compare(const void *a, const void *b);

/* Multiplies repeatedly: libm's pow does not give the same bits everywhere. */
double gr_power(double base, uint64_t exponent);

#endif
