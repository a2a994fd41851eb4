/* SPDX-License-Identifier: Apache-2.0 */
#include "base/time_text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SECOND_US = 1000000 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits of a number as long as `pattern`, whose other letters stand for themselves. */
static bool matches(const char *text, const char *pattern)
{
    for (; *pattern != '\0'; text++, pattern++) {
        if (*pattern == '0' ? !is_digit(*text) : *text != *pattern) {
            return false;
        }
    }
    return true;
}

static int two(const char *text)
{
    return (text[0] - '0') * 10 + text[1] - '0';
}

bool gr_time_read(const char *text, int64_t *time_us_out)
{
    if (!matches(text, "0000-00-00T00:00:00")) {
        return false;
    }
    struct tm parts = {.tm_year = two(text) * 100 + two(text + 2) - 1900,
                       .tm_mon = two(text + 5) - 1,
                       .tm_mday = two(text + 8),
                       .tm_hour = two(text + 11),
                       .tm_min = two(text + 14),
                       .tm_sec = two(text + 17)};
    bool in_range = parts.tm_mon >= 0 && parts.tm_mon < 12 && parts.tm_mday >= 1 &&
                    parts.tm_mday <= 31 && parts.tm_hour < 24 && parts.tm_min < 60 &&
                    parts.tm_sec <= 60;
    int64_t micro = 0, unit = SECOND_US / 10;
    text += 19;
    if (*text == '.') {
        if (!is_digit(*++text)) {
            return false;
        }
        for (; is_digit(*text); text++, unit /= 10) {
            micro += unit * (*text - '0');
        }
    }
    int offset_s = 0;
    if (matches(text, "+00:00") || matches(text, "-00:00")) {
        offset_s = (two(text + 1) * 60 + two(text + 4)) * (*text == '-' ? -60 : 60);
        text += 6;
    } else if (*text++ != 'Z') {
        return false;
    }
    *time_us_out = ((int64_t)timegm(&parts) - offset_s) * SECOND_US + micro;
    return in_range && *text == '\0';
}

void gr_time_print(int64_t time_us, bool micro, char text_out[GR_TIME_BYTES])
{
    int64_t part_us = (time_us % SECOND_US + SECOND_US) % SECOND_US;
    time_t seconds = (time_t)((time_us - part_us) / SECOND_US);
    struct tm parts = {0};
    gmtime_r(&seconds, &parts);
    size_t used = strftime(text_out, GR_TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    if (micro) {
        snprintf(text_out + used, GR_TIME_BYTES - used, ".%06dZ", (int)part_us);
    } else {
        snprintf(text_out + used, GR_TIME_BYTES - used, "Z");
    }
}
