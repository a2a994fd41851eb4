/* SPDX-License-Identifier: Apache-2.0 */
#include "data/csv.h"

#include <stdlib.h>

static const double exact_powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                      1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                      1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Digits from `at` on into a mantissa of up to 19 of them; `dropped` counts those that found no
 * room. */
static const char *read_digits(const char *at, uint64_t *mantissa, int *digits, int *dropped)
{
    for (; *at >= '0' && *at <= '9'; at++) {
        if (*digits >= 19) {
            (*dropped)++;
            continue;
        }
        *mantissa = *mantissa * 10 + (uint64_t)(*at - '0');
        *digits += *mantissa != 0; /* leading zeros are free */
    }
    return at;
}

const char *gr_csv_number(const char *at, locale_t locale, double *value_out)
{
    const char *start = at;
    bool negative = *at == '-';
    at += *at == '-' || *at == '+';
    uint64_t mantissa = 0;
    int digits = 0, dropped = 0;
    const char *first = at;
    at = read_digits(at, &mantissa, &digits, &dropped);
    int64_t exponent = 0;
    bool any = at > first;
    if (*at == '.') {
        first = ++at;
        at = read_digits(at, &mantissa, &digits, &dropped);
        any = any || at > first;
        exponent = first - at;
    }
    if (!any) {
        return NULL;
    }
    if (*at == 'e' || *at == 'E') {
        const char *mark = at++;
        bool below = *at == '-';
        at += *at == '-' || *at == '+';
        int64_t power = 0;
        const char *power_at = at;
        for (; *at >= '0' && *at <= '9'; at++) {
            power = power < 100000 ? power * 10 + (*at - '0') : power;
        }
        if (at == power_at) {
            return mark; /* "1e": the caller stumbles over the e */
        }
        exponent += below ? -power : power;
    }
    double value;
    /* Both numbers are exact doubles, so one operation rounds correctly (Clinger, "How to read
     * floating point numbers accurately", PLDI 1990). */
    if (dropped == 0 && mantissa <= (UINT64_C(1) << 53) && exponent >= -22 && exponent <= 22) {
        value = exponent < 0 ? (double)mantissa / exact_powers[-exponent]
                             : (double)mantissa * exact_powers[exponent];
        value = negative ? -value : value;
    } else {
        value = strtod_l(start, NULL, locale);
    }
    *value_out = value;
    return at;
}
