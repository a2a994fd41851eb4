/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

gr_number_result gr_number_int(const char *text, int64_t *value_out)
{
    bool negative = *text == '-';
    if (*text == '-' || *text == '+') {
        text++;
    }
    if (*text == '\0') {
        return GR_NUMBER_MALFORMED;
    }
    int64_t value = 0; /* built downwards, where the range is larger by one */
    bool overflow = false;
    for (; *text != '\0'; text++) {
        if (!is_digit(*text)) {
            return GR_NUMBER_MALFORMED;
        }
        overflow = overflow || __builtin_mul_overflow(value, 10, &value) ||
                   __builtin_sub_overflow(value, *text - '0', &value);
    }
    if (!negative) {
        overflow = overflow || __builtin_sub_overflow(0, value, &value);
    }
    if (overflow) {
        return GR_NUMBER_TOO_LARGE;
    }
    *value_out = value;
    return GR_NUMBER_OK;
}

/* The length of the number at the start of `text`, 0 if there is none. */
static size_t double_bytes(const char *text)
{
    const char *at = text;
    if (*at == '-' || *at == '+') {
        at++;
    }
    bool digits = false;
    for (; is_digit(*at); at++) {
        digits = true;
    }
    if (*at == '.') {
        at++;
        for (; is_digit(*at); at++) {
            digits = true;
        }
    }
    if (!digits) {
        return 0;
    }
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1;
        if (*exponent == '-' || *exponent == '+') {
            exponent++;
        }
        if (is_digit(*exponent)) {
            while (is_digit(*exponent)) {
                exponent++;
            }
            at = exponent;
        }
    }
    return (size_t)(at - text);
}

static gr_number_result read_double(const char *text, size_t size_bytes, double *value_out)
{
    if (size_bytes == 0) {
        return GR_NUMBER_MALFORMED;
    }
    /* strtod reads a decimal comma where the program's locale has one. With glibc, the C locale
     * costs no allocation. */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) {
        return GR_NUMBER_MALFORMED;
    }
    char *end = NULL;
    double value = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    if (end != text + size_bytes) { /* "0x10" */
        return GR_NUMBER_MALFORMED;
    }
    if (!isfinite(value)) {
        return GR_NUMBER_TOO_LARGE;
    }
    *value_out = value;
    return GR_NUMBER_OK;
}

gr_number_result gr_number_double(const char *text, double *value_out)
{
    size_t size_bytes = double_bytes(text);
    return text[size_bytes] == '\0' ? read_double(text, size_bytes, value_out)
                                    : GR_NUMBER_MALFORMED;
}

bool gr_number_bool(const char *text, bool *value_out)
{
    static const char *const words[2][3] = {{"false", "no", "off"}, {"true", "yes", "on"}};
    for (int value = 0; value < 2; value++) {
        for (int i = 0; i < 3; i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                *value_out = value == 1;
                return true;
            }
        }
    }
    return false;
}

gr_number_result gr_number_with_unit(const char *text, const gr_number_unit *units,
                                     double plain_factor, int64_t *value_out)
{
    size_t size_bytes = double_bytes(text);
    const char *unit = text + size_bytes;
    while (size_bytes > 0 && *unit == ' ') {
        unit++;
    }
    double factor = plain_factor;
    if (*unit != '\0') {
        size_t i = 0;
        while (units[i].name != NULL && strcasecmp(units[i].name, unit) != 0) {
            i++;
        }
        if (units[i].name == NULL) {
            return GR_NUMBER_MALFORMED;
        }
        factor = units[i].factor;
    } else if (factor == 1.0 && gr_number_int(text, value_out) == GR_NUMBER_OK) {
        return GR_NUMBER_OK; /* exact beyond 2^53 */
    }
    double value = 0.0;
    gr_number_result result = read_double(text, size_bytes, &value);
    if (result != GR_NUMBER_OK) {
        return result;
    }
    value = round(value * factor);
    if (!(value >= -0x1p63 && value < 0x1p63)) {
        return GR_NUMBER_TOO_LARGE;
    }
    *value_out = (int64_t)value;
    return GR_NUMBER_OK;
}

void gr_number_print(double value, char text_out[GR_NUMBER_TEXT_BYTES])
{
    for (int digits = 6; digits <= 17; digits++) {
        if (fabs(value) < 1e15 && value == floor(value)) {
            snprintf(text_out, GR_NUMBER_TEXT_BYTES, "%.0f", value);
            return;
        }
        snprintf(text_out, GR_NUMBER_TEXT_BYTES, "%.*g", digits, value);
        double back = 0.0;
        if (gr_number_double(text_out, &back) != GR_NUMBER_OK || back == value) {
            return;
        }
    }
}

double gr_power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

int gr_number_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}
