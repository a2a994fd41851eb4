/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/quantity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const __int128 nano_per_unit = 1000000000;

static __int128 power(int base, int exponent)
{
    __int128 value = 1;
    while (exponent-- > 0) {
        value *= base;
    }
    return value;
}

static __int128 limit(void)
{
    return power(10, 36); /* 10^27 in nano */
}

static const struct {
    const char *suffix;
    gr_quantity_form form;
    int base, exponent;
} suffixes[] = {
    {"n", GR_QUANTITY_DECIMAL, 10, -9}, {"u", GR_QUANTITY_DECIMAL, 10, -6},
    {"m", GR_QUANTITY_DECIMAL, 10, -3}, {"", GR_QUANTITY_DECIMAL, 10, 0},
    {"k", GR_QUANTITY_DECIMAL, 10, 3},  {"M", GR_QUANTITY_DECIMAL, 10, 6},
    {"G", GR_QUANTITY_DECIMAL, 10, 9},  {"T", GR_QUANTITY_DECIMAL, 10, 12},
    {"P", GR_QUANTITY_DECIMAL, 10, 15}, {"E", GR_QUANTITY_DECIMAL, 10, 18},
    {"Ki", GR_QUANTITY_BINARY, 2, 10},  {"Mi", GR_QUANTITY_BINARY, 2, 20},
    {"Gi", GR_QUANTITY_BINARY, 2, 30},  {"Ti", GR_QUANTITY_BINARY, 2, 40},
    {"Pi", GR_QUANTITY_BINARY, 2, 50},  {"Ei", GR_QUANTITY_BINARY, 2, 60},
};
enum { SUFFIX_COUNT = sizeof suffixes / sizeof suffixes[0] };

/* What the letters behind the digits say. */
static bool parse_suffix(const char *text, gr_quantity_form *form_out, int *base_out,
                         int *exponent_out)
{
    for (int i = 0; i < SUFFIX_COUNT; i++) {
        if (strcmp(text, suffixes[i].suffix) == 0) {
            *form_out = suffixes[i].form;
            *base_out = suffixes[i].base;
            *exponent_out = suffixes[i].exponent;
            return true;
        }
    }
    char *end;
    long exponent = strtol(text + (text[0] != '\0'), &end, 10);
    *form_out = GR_QUANTITY_EXPONENT;
    *base_out = 10;
    *exponent_out = (int)exponent;
    return (text[0] == 'e' || text[0] == 'E') && end != text + 1 && *end == '\0' &&
           exponent >= -27 && exponent <= 27;
}

bool gr_quantity_parse(const char *text, gr_quantity *quantity_out)
{
    enum { DIGITS_MAX = 27 };
    bool is_negative = text[0] == '-';
    text += text[0] == '-' || text[0] == '+';
    __int128 digits = 0;
    int count = 0, behind_point = 0, base, exponent;
    bool has_point = false;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !has_point); text++) {
        if (*text == '.') {
            has_point = true;
            continue;
        }
        if (++count > DIGITS_MAX) {
            return false;
        }
        digits = digits * 10 + (*text - '0');
        behind_point += has_point;
    }
    if (count == 0 || !parse_suffix(text, &quantity_out->form, &base, &exponent)) {
        return false;
    }
    /* digits / 10^behind_point * base^exponent, in nano, rounded away from zero */
    __int128 times = power(base, exponent > 0 ? exponent : 0) * nano_per_unit;
    __int128 by = power(10, exponent < 0 ? -exponent : 0);
    while (behind_point > 0 && times % 10 == 0) {
        times /= 10;
        behind_point--;
    }
    while (by > 1 && times % 10 == 0) {
        times /= 10;
        by /= 10;
    }
    if (digits > 0 && times > limit() / digits) {
        return false;
    }
    __int128 value = digits * times;
    for (__int128 all = by; behind_point > 0 || all > 1;) { /* what is left to divide by */
        value = (value + 9) / 10;
        if (behind_point > 0) {
            behind_point--;
        } else {
            all /= 10;
        }
    }
    quantity_out->nano = is_negative ? -value : value;
    return true;
}

bool gr_quantity_add(gr_quantity *sum, const gr_quantity *quantity, int64_t count)
{
    __int128 size = quantity->nano < 0 ? -quantity->nano : quantity->nano;
    if (size > 0 && count > limit() / size) {
        return false;
    }
    if (sum->nano == 0) {
        sum->form = quantity->form;
    }
    sum->nano += quantity->nano * count;
    return sum->nano <= limit() && sum->nano >= -limit();
}

/* Writes `value` with the largest suffix of its form that leaves a whole number. */
static void print_in_form(__int128 nano, gr_quantity_form form, const char *sign,
                          char text_out[GR_QUANTITY_BYTES])
{
    char digits[GR_QUANTITY_BYTES];
    int best = 0; /* decimal forms end with parts of 10^-9, binary ones have whole numbers alone */
    __int128 best_times = 0;
    gr_quantity_form suffix_form =
        form == GR_QUANTITY_EXPONENT ? GR_QUANTITY_DECIMAL : form; /* e3 in place of k */
    for (int i = 0; i < SUFFIX_COUNT; i++) {
        int exponent = suffixes[i].exponent;
        __int128 times = exponent < 0 ? power(10, 9 + exponent)
                                      : power(suffixes[i].base, exponent) * nano_per_unit;
        bool fits = suffixes[i].form == suffix_form || exponent == 0;
        if (fits && nano % times == 0 && times > best_times) {
            best = i;
            best_times = times;
        }
    }
    __int128 value = nano / best_times;
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + (int)(value % 10));
        value /= 10;
    } while (value > 0);
    if (form == GR_QUANTITY_EXPONENT && suffixes[best].exponent != 0) {
        snprintf(text_out, GR_QUANTITY_BYTES, "%s%se%d", sign, digits + at,
                 suffixes[best].exponent);
    } else {
        snprintf(text_out, GR_QUANTITY_BYTES, "%s%s%s", sign, digits + at, suffixes[best].suffix);
    }
}

void gr_quantity_print(const gr_quantity *quantity, char text_out[GR_QUANTITY_BYTES])
{
    __int128 size = quantity->nano < 0 ? -quantity->nano : quantity->nano;
    gr_quantity_form form = quantity->form;
    if (form == GR_QUANTITY_BINARY && (size < 1024 * nano_per_unit || size % nano_per_unit != 0)) {
        form = GR_QUANTITY_DECIMAL;
    }
    if (size == 0) {
        strcpy(text_out, "0");
    } else {
        print_in_form(size, form, quantity->nano < 0 ? "-" : "", text_out);
    }
}
