/* SPDX-License-Identifier: Apache-2.0 */
#include "doc/node.h"

#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Words ----------------------------------------------------------------------------------- */

void gr_node_describe(const gr_node *node, char text_out[GR_VALUE_BYTES])
{
    switch (node->kind) {
    case GR_NODE_SCALAR:
        gr_text_quote(node->text, text_out);
        return;
    case GR_NODE_LIST:
        snprintf(text_out, GR_VALUE_BYTES, "a list");
        return;
    case GR_NODE_MAP:
        snprintf(text_out, GR_VALUE_BYTES, "a map");
        return;
    case GR_NODE_NULL:
        break;
    }
    snprintf(text_out, GR_VALUE_BYTES, "nothing");
}

static void range_int(int64_t min, int64_t max, char text_out[GR_RANGE_BYTES])
{
    char low[GR_NUMBER_TEXT_BYTES];
    char high[GR_NUMBER_TEXT_BYTES];
    snprintf(low, sizeof low, "%" PRId64, min);
    snprintf(high, sizeof high, "%" PRId64, max);
    gr_text_range(min > INT64_MIN ? low : NULL, max < INT64_MAX ? high : NULL, text_out);
}

static void range_double(double min, double max, char text_out[GR_RANGE_BYTES])
{
    char low[GR_NUMBER_TEXT_BYTES];
    char high[GR_NUMBER_TEXT_BYTES];
    gr_number_print(min, low);
    gr_number_print(max, high);
    gr_text_range(isfinite(min) ? low : NULL, isfinite(max) ? high : NULL, text_out);
}

/* ---- Where a node stands --------------------------------------------------------------------- */

static int index_of(const gr_node *node)
{
    int index = 0;
    for (const gr_node *at = node->parent->child; at != NULL && at != node; at = at->next) {
        index++;
    }
    return index;
}

/* Appends; what does not fit is left out. */
static void append(char *text, size_t size_bytes, const char *part)
{
    size_t used = strlen(text);
    snprintf(text + used, size_bytes - used, "%s", part);
}

void gr_node_where(const gr_node *node, char text_out[GR_WHERE_BYTES])
{
    enum { FILE_SHOWN = 120 };
    const gr_node *way[GR_DOC_DEPTH_MAX + 1];
    int length = 0;
    for (const gr_node *at = node; at->parent != NULL && length <= GR_DOC_DEPTH_MAX;
         at = at->parent) {
        way[length++] = at;
    }
    /* Of a long path the end says more than the start. */
    size_t file_length = strlen(node->file);
    bool cut = file_length > FILE_SHOWN;
    char line[16] = ""; /* what gr_doc_set has put there stands in no line */
    if (node->line > 0) {
        snprintf(line, sizeof line, ":%d", node->line);
    }
    snprintf(text_out, GR_WHERE_BYTES, "%s%s%s%s", cut ? "..." : "",
             cut ? node->file + file_length - FILE_SHOWN : node->file, line,
             length > 0 ? ": " : "");
    for (int i = length - 1; i >= 0; i--) {
        char part[64];
        if (way[i]->key == NULL) {
            snprintf(part, sizeof part, "[%d]", index_of(way[i]));
        } else {
            snprintf(part, sizeof part, "%s%.48s", i < length - 1 ? "." : "", way[i]->key);
        }
        append(text_out, GR_WHERE_BYTES, part);
    }
}

gr_status gr_node_fail(const gr_node *node, gr_diag *diag, gr_status status, const char *format,
                       ...)
{
    char sentence[GR_DIAG_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    gr_text_line(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (node == NULL) {
        return gr_fail(diag, status, "%s", sentence);
    }
    char where[GR_WHERE_BYTES];
    gr_node_where(node, where);
    return gr_fail(diag, status, "%s: %s", where, sentence);
}

/* ---- Reads ----------------------------------------------------------------------------------- */

const gr_node *gr_node_get(const gr_node *map, const char *key)
{
    if (map == NULL || map->kind != GR_NODE_MAP) {
        return NULL;
    }
    const gr_node *child = map->child;
    while (child != NULL && strcmp(child->key, key) != 0) {
        child = child->next;
    }
    return child;
}

const gr_node *gr_node_setting(const gr_node *map, const char *key)
{
    const gr_node *node = gr_node_get(map, key);
    return node != NULL ? node : map;
}

/* A value must be `what`, "a whole number", in `range`, " from 1 to 10". `fits`: it would, without
 * its quotes. */
static gr_status fail_value(const gr_node *node, gr_diag *diag, const char *what, const char *range,
                            bool fits)
{
    if (node == NULL) {
        return gr_fail(diag, GR_E_INVALID, "a value is missing: it must be %s%s", what, range);
    }
    char value[GR_VALUE_BYTES];
    gr_node_describe(node, value);
    return gr_node_fail(node, diag, GR_E_INVALID, "must be %s%s, not %s%s%s", what, range,
                        fits ? "the text " : "", value, fits ? "; remove the quotes" : "");
}

static bool is_scalar(const gr_node *node)
{
    return node != NULL && node->kind == GR_NODE_SCALAR;
}

gr_status gr_node_int(const gr_node *node, int64_t min, int64_t max, int64_t *value_out,
                      gr_diag *diag)
{
    int64_t value = 0;
    bool fits = is_scalar(node) && gr_number_int(node->text, &value) == GR_NUMBER_OK &&
                value >= min && value <= max;
    if (!fits || node->quoted) {
        char range[GR_RANGE_BYTES];
        range_int(min, max, range);
        return fail_value(node, diag, "a whole number", range, fits);
    }
    *value_out = value;
    return GR_OK;
}

gr_status gr_node_double(const gr_node *node, double min, double max, double *value_out,
                         gr_diag *diag)
{
    double value = 0.0;
    bool fits = is_scalar(node) && gr_number_double(node->text, &value) == GR_NUMBER_OK &&
                value >= min && value <= max;
    if (!fits || node->quoted) {
        char range[GR_RANGE_BYTES];
        range_double(min, max, range);
        return fail_value(node, diag, "a number", range, fits);
    }
    *value_out = value;
    return GR_OK;
}

gr_status gr_node_bool(const gr_node *node, bool *value_out, gr_diag *diag)
{
    bool value = false;
    bool fits = is_scalar(node) && gr_number_bool(node->text, &value);
    if (!fits || node->quoted) {
        return fail_value(node, diag, "true or false", "", fits);
    }
    *value_out = value;
    return GR_OK;
}

gr_status gr_node_text(const gr_node *node, const char **value_out, gr_diag *diag)
{
    if (!is_scalar(node)) {
        return fail_value(node, diag, "a text", "", false);
    }
    *value_out = node->text;
    return GR_OK;
}

gr_status gr_node_version(const gr_node *root, const char *name, const char *key, int version,
                          const char *made_by, gr_diag *diag)
{
    const gr_node *node = gr_node_get(root, key);
    int64_t found = 0;
    if (node == NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s: this is none; %s", name, made_by);
    }
    gr_status status = gr_node_int(node, 1, INT64_MAX, &found, diag);
    if (status == GR_OK && found != version) {
        status = gr_node_fail(node, diag, GR_E_INVALID,
                              "version %" PRId64 " is newer than %d, which this gradus reads; "
                              "install the same version on all hosts",
                              found, version);
    }
    return status;
}

gr_status gr_node_only(const gr_node *map, const char *const *known, gr_diag *diag)
{
    if (map == NULL || map->kind != GR_NODE_MAP) {
        return fail_value(map, diag, "a map of keys and values", "", false);
    }
    for (const gr_node *child = map->child; child != NULL; child = child->next) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], child->key) != 0) {
            i++;
        }
        if (known[i] != NULL) {
            continue;
        }
        gr_node place = *map; /* the map's path, the key's file and line */
        place.file = child->file;
        place.line = child->line;
        char word[GR_VALUE_BYTES];
        gr_text_quote(child->key, word);
        const char *nearest = gr_nearest(child->key, known);
        if (nearest != NULL) {
            return gr_node_fail(&place, diag, GR_E_INVALID, "unknown key %s; did you mean \"%s\"?",
                                word, nearest);
        }
        char list[GR_DIAG_TEXT_BYTES / 2];
        gr_text_list(list, sizeof list, known);
        return gr_node_fail(&place, diag, GR_E_INVALID, "unknown key %s; %s%s", word,
                            known[0] != NULL ? "known are " : "no keys are known here", list);
    }
    return GR_OK;
}
