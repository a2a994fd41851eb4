/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config_text.h"

#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* From the largest unit down, as printing wants it; the first spelling of each is printed. "1g" and
 * "1GiB" are 2^30, "1GB" is 10^9, as the standards have it. */
static const gr_number_unit byte_units[] = {
    {"t", 0x1p40},   {"g", 0x1p30},   {"m", 0x1p20}, {"k", 0x1p10},   {"tb", 1e12},
    {"gb", 1e9},     {"mb", 1e6},     {"kb", 1e3},   {"tib", 0x1p40}, {"gib", 0x1p30},
    {"mib", 0x1p20}, {"kib", 0x1p10}, {"b", 1.0},    {NULL, 0.0}};
static const gr_number_unit time_units[] = {{"h", 3600e6}, {"min", 60e6}, {"s", 1e6},
                                            {"ms", 1e3},   {"us", 1.0},   {NULL, 0.0}};

enum { BYTE_UNITS_PRINTED = 4, TIME_UNITS_PRINTED = 5, CHOICES_MAX = 64 };

bool gr_config_is_end(const gr_config_field *field)
{
    return field->key == NULL && field->flag == NULL && field->short_flag == '\0' &&
           field->env == NULL;
}

/* Returns true if a choice before the `index`-th has the same fields. */
static bool is_shared(const gr_config_field *choice, int index)
{
    int first = 0;
    while (choice->choice_fields(first) != choice->choice_fields(index)) {
        first++;
    }
    return first < index;
}

/* The `part`-th fields of choices, each once; NULL behind the last. */
static const gr_config_field *choice_part(const gr_config_table *table, int part)
{
    for (const gr_config_field *at = table->fields; !gr_config_is_end(at); at++) {
        for (int i = 0; at->choice_fields != NULL && gr_config_choice(at, i) != NULL; i++) {
            const gr_config_field *fields = at->choice_fields(i);
            if (fields != NULL && !is_shared(at, i) && part-- == 0) {
                return fields;
            }
        }
    }
    return NULL;
}

const gr_config_field *gr_config_next(const gr_config_table *table, const gr_config_field *field)
{
    field = field != NULL ? field + 1 : table->fields;
    const gr_config_field *part = table->fields;
    for (int i = 0; gr_config_is_end(field); i++) {
        const gr_config_field *next = choice_part(table, i);
        if (next == NULL) {
            return NULL;
        }
        while (!gr_config_is_end(part)) {
            part++;
        }
        field = part == field ? next : field;
        part = next;
    }
    return field;
}

bool gr_config_is_among(const gr_config_field *fields, const gr_config_field *field)
{
    while (fields != NULL && !gr_config_is_end(fields) && fields != field) {
        fields++;
    }
    return fields == field;
}

const char *gr_config_choice(const gr_config_field *field, int index)
{
    return field->choice != NULL ? field->choice(index) : field->choices[index];
}

const char *gr_config_text(const gr_config_field *field, const void *config,
                           char number_out[GR_CONFIG_VALUE_BYTES])
{
    const void *at = (const char *)config + field->offset;
    _Static_assert((int)GR_NUMBER_TEXT_BYTES <= (int)GR_CONFIG_VALUE_BYTES, "a number fits");
    switch (field->type) {
    case GR_CONFIG_BOOL:
        return *(const bool *)at ? "true" : "false";
    case GR_CONFIG_INT:
    case GR_CONFIG_BYTES:
    case GR_CONFIG_DURATION:
        snprintf(number_out, GR_CONFIG_VALUE_BYTES, "%lld", (long long)*(const int64_t *)at);
        return number_out;
    case GR_CONFIG_DOUBLE:
        gr_number_print(*(const double *)at, number_out);
        return number_out;
    case GR_CONFIG_CHOICE:
        return gr_config_choice(field, *(const int *)at);
    case GR_CONFIG_TEXT:
        return *(const char *const *)at != NULL ? *(const char *const *)at : "";
    case GR_CONFIG_LIST:
    case GR_CONFIG_NODE:
        break;
    }
    return NULL;
}

/* ---- Bounds and numbers ---------------------------------------------------------------------- */

static bool is_bounded(const gr_config_field *field)
{
    return field->min != 0.0 || field->max != 0.0;
}

const double *gr_config_min(const gr_config_field *field)
{
    return is_bounded(field) && field->min > -0x1p63 ? &field->min : NULL;
}

const double *gr_config_max(const gr_config_field *field)
{
    return is_bounded(field) && field->max < 0x1p63 && field->max >= field->min ? &field->max
                                                                                : NULL;
}

static bool is_within(const gr_config_field *field, double value)
{
    const double *min = gr_config_min(field);
    const double *max = gr_config_max(field);
    return (min == NULL || value >= *min) && (max == NULL || value <= *max);
}

static void print_unit(const gr_number_unit *units, int count, double value,
                       char text_out[GR_CONFIG_VALUE_BYTES])
{
    char number[GR_NUMBER_TEXT_BYTES];
    for (int i = 0; i < count && value != 0.0; i++) {
        double multiple = value / units[i].factor;
        if (multiple == floor(multiple) && fabs(multiple) < 1e15) {
            gr_number_print(multiple, number);
            snprintf(text_out, GR_CONFIG_VALUE_BYTES, "%s%s", number, units[i].name);
            return;
        }
    }
    gr_number_print(value, number);
    snprintf(text_out, GR_CONFIG_VALUE_BYTES, "%s", number);
}

void gr_config_value_text(const gr_config_field *field, double value,
                          char text_out[GR_CONFIG_VALUE_BYTES])
{
    if (field->type == GR_CONFIG_BYTES) {
        print_unit(byte_units, BYTE_UNITS_PRINTED, value, text_out);
    } else if (field->type == GR_CONFIG_DURATION) {
        print_unit(time_units, TIME_UNITS_PRINTED, value, text_out);
    } else {
        print_unit(NULL, 0, value, text_out);
    }
}

const gr_config_words *gr_config_words_of(const gr_config_field *field)
{
    static const gr_config_words words[] = {
        [GR_CONFIG_BOOL] = {"TEXT", "true or false", "true, false"},
        [GR_CONFIG_INT] = {"N", "a whole number", "whole number"},
        [GR_CONFIG_DOUBLE] = {"X", "a number", "number"},
        [GR_CONFIG_TEXT] = {"TEXT", "a text", "text"},
        [GR_CONFIG_CHOICE] = {"TEXT", "a word", "word"},
        [GR_CONFIG_BYTES] = {"SIZE", "a size such as 512, 64k, 1m or 2g",
                             "size (`64k`, `1m`, `2g`)"},
        [GR_CONFIG_DURATION] = {"TIME", "a time such as 200ms, 10s, 5min or 1h",
                                "time (`200ms`, `10s`, `5min`, `1h`; plain: seconds)"},
        [GR_CONFIG_LIST] = {"TEXT", "a text", "text, any number of times"},
        [GR_CONFIG_NODE] = {"TEXT", "a map", "a part of its own"},
    };
    return &words[field->type];
}

static gr_status fail_value(const gr_config_field *field, const char *text, const char *where,
                            gr_diag *diag)
{
    const double *min = gr_config_min(field);
    const double *max = gr_config_max(field);
    char low[GR_CONFIG_VALUE_BYTES];
    char high[GR_CONFIG_VALUE_BYTES];
    if (min != NULL) {
        gr_config_value_text(field, *min, low);
    }
    if (max != NULL) {
        gr_config_value_text(field, *max, high);
    }
    char range[GR_RANGE_BYTES] = "";
    if (field->type != GR_CONFIG_BOOL) {
        gr_text_range(min != NULL ? low : NULL, max != NULL ? high : NULL, range);
    }
    char value[GR_VALUE_BYTES];
    gr_text_quote(text, value);
    bool unit = field->type == GR_CONFIG_BYTES || field->type == GR_CONFIG_DURATION;
    return gr_fail(diag, GR_E_INVALID, "%s: must be %s%s%s, not %s", where,
                   gr_config_words_of(field)->must_be, unit && range[0] != '\0' ? "," : "", range,
                   value);
}

/* ---- Reading a value ------------------------------------------------------------------------- */

static bool read_bool(const char *text, bool *value_out)
{
    if (strcmp(text, "1") == 0 || strcmp(text, "0") == 0) {
        *value_out = text[0] == '1';
        return true;
    }
    return gr_number_bool(text, value_out);
}

static gr_status set_int(const gr_config_field *field, int64_t *target, const char *text,
                         const char *where, gr_diag *diag)
{
    int64_t value = 0;
    gr_number_result result;
    if (field->type == GR_CONFIG_BYTES) {
        result = gr_number_with_unit(text, byte_units, 1.0, &value);
    } else if (field->type == GR_CONFIG_DURATION) {
        result = gr_number_with_unit(text, time_units, 1e6, &value);
    } else {
        result = gr_number_int(text, &value);
    }
    /* Neither sizes nor times run backwards, whether bounds say so or not. */
    bool backwards = field->type != GR_CONFIG_INT && !is_bounded(field) && value < 0;
    if (result != GR_NUMBER_OK || backwards || !is_within(field, (double)value)) {
        return fail_value(field, text, where, diag);
    }
    *target = value;
    return GR_OK;
}

static gr_status set_choice(const gr_config_field *field, int *target, const char *text,
                            const char *where, gr_diag *diag)
{
    const char *choices[CHOICES_MAX + 1] = {NULL};
    for (int i = 0; i < CHOICES_MAX && (choices[i] = gr_config_choice(field, i)) != NULL; i++) {
        if (strcasecmp(choices[i], text) == 0) {
            *target = i;
            return GR_OK;
        }
    }
    char words[GR_DIAG_TEXT_BYTES / 2];
    char value[GR_VALUE_BYTES];
    gr_text_list(words, sizeof words, choices);
    gr_text_quote(text, value);
    const char *nearest = gr_nearest(text, choices);
    return gr_fail(diag, GR_E_INVALID, "%s: must be %s, not %s%s%s%s", where, words, value,
                   nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
                   nearest != NULL ? "\"?" : "");
}

static gr_status set_text(const char **target, const char *text, const char *where, gr_arena *arena,
                          gr_diag *diag)
{
    const char *copy = gr_arena_strdup(arena, text);
    if (copy == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: not enough memory for the text", where);
    }
    *target = copy;
    return GR_OK;
}

static gr_status add_text(const char *const **target, const char *text, const char *where,
                          gr_arena *arena, gr_diag *diag)
{
    size_t count = 0;
    while (*target != NULL && (*target)[count] != NULL) {
        count++;
    }
    const char **list = gr_arena_alloc(arena, (count + 2) * sizeof *list);
    if (list == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: not enough memory for the text", where);
    }
    for (size_t i = 0; i < count; i++) {
        list[i] = (*target)[i];
    }
    list[count + 1] = NULL;
    gr_status status = set_text(&list[count], text, where, arena, diag);
    *target = status == GR_OK ? list : *target;
    return status;
}

gr_status gr_config_set(const gr_config_field *field, void *config, const char *text,
                        const char *where, gr_arena *arena, gr_diag *diag)
{
    void *target = (char *)config + field->offset;
    switch (field->type) {
    case GR_CONFIG_BOOL:
        return read_bool(text, target) ? GR_OK : fail_value(field, text, where, diag);
    case GR_CONFIG_INT:
    case GR_CONFIG_BYTES:
    case GR_CONFIG_DURATION:
        return set_int(field, target, text, where, diag);
    case GR_CONFIG_DOUBLE: {
        double value = 0.0;
        if (gr_number_double(text, &value) != GR_NUMBER_OK || !is_within(field, value)) {
            return fail_value(field, text, where, diag);
        }
        memcpy(target, &value, sizeof value);
        return GR_OK;
    }
    case GR_CONFIG_TEXT:
        return set_text(target, text, where, arena, diag);
    case GR_CONFIG_CHOICE:
        return set_choice(field, target, text, where, diag);
    case GR_CONFIG_LIST:
        return add_text(target, text, where, arena, diag);
    case GR_CONFIG_NODE:
        break;
    }
    return gr_fail(diag, GR_E_INVALID, "%s: can only be given in a file", where);
}
