/* SPDX-License-Identifier: Apache-2.0 */

/* The keys of a job that say what the columns of a CSV file are. */

#include "data/csv.h"
#include "data/dataset_internal.h"
#include "data/reader.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

static gr_status no_memory(const gr_node *node, gr_diag *diag)
{
    return gr_node_fail(node, diag, GR_E_NO_MEMORY, "no memory for a list of %d", node->count);
}

/* A list of different texts. */
static gr_status read_texts(const gr_node *node, const char *example, gr_arena *arena,
                            const char *const **texts_out, int *count_out, gr_diag *diag)
{
    if (node->kind != GR_NODE_LIST || node->count < 1) {
        return gr_node_fail(node, diag, GR_E_INVALID, "must be a list, %s say", example);
    }
    const char **texts = gr_arena_alloc(arena, (size_t)node->count * sizeof *texts);
    if (texts == NULL) {
        return no_memory(node, diag);
    }
    int count = 0;
    for (const gr_node *at = node->child; at != NULL; at = at->next) {
        gr_status status = gr_node_text(at, &texts[count], diag);
        if (status != GR_OK) {
            return status;
        }
        count++;
    }
    *texts_out = texts;
    *count_out = count;
    return GR_OK;
}

/* A text that stands twice would mean two things. */
static gr_status check_different(const gr_node *node, const char *const *texts, int count,
                                 gr_diag *diag)
{
    for (int i = 1; i < count && count <= 10000; i++) {
        for (int k = 0; k < i; k++) {
            if (strcmp(texts[i], texts[k]) == 0) {
                return gr_node_fail(node, diag, GR_E_INVALID, "\"%.60s\" stands twice in the list",
                                    texts[i]);
            }
        }
    }
    return GR_OK;
}

static gr_status read_delimiter(const gr_data_config *config, gr_table_options *options,
                                gr_diag *diag)
{
    options->delimiter = gr_csv_delimiter(config->delimiter);
    if (options->delimiter != '\0') {
        return GR_OK;
    }
    return gr_node_fail(gr_node_setting(config->section, "delimiter"), diag, GR_E_INVALID,
                        "must be one of \",\", \";\", \"|\", \":\" and tab, not \"%.40s\"",
                        config->delimiter);
}

static gr_status read_categories(const gr_node *node, gr_arena *arena, gr_table_options *options,
                                 gr_diag *diag)
{
    if (node->kind != GR_NODE_MAP) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "must say of each column which texts stand in it: {colour: [red, "
                            "green]}, say");
    }
    gr_table_texts *all = gr_arena_alloc(arena, ((size_t)node->count + 1) * sizeof *all);
    if (all == NULL) {
        return no_memory(node, diag);
    }
    gr_status status = GR_OK;
    for (const gr_node *at = node->child; at != NULL && status == GR_OK; at = at->next) {
        gr_table_texts *texts = &all[options->category_count++];
        texts->column = at->key;
        status = read_texts(at, "[red, green]", arena, &texts->texts, &texts->count, diag);
        if (status == GR_OK) {
            status = check_different(at, texts->texts, texts->count, diag);
        }
    }
    options->categories = all;
    return status;
}

static gr_status label_column(const gr_data_config *config, gr_table_options *options,
                              gr_diag *diag)
{
    const char *text = config->label_column;
    options->label_column = 0;
    if (text == NULL || strcmp(text, "last") == 0) {
        return GR_OK;
    }
    if (strcmp(text, "first") == 0) {
        options->label_column = 1;
        return GR_OK;
    }
    char *end;
    long column = strtol(text, &end, 10);
    if (config->header && *text != '\0' && *end != '\0') {
        options->label_name = text;
        return GR_OK;
    }
    if (end == text || *end != '\0' || column < 1 || column > GR_CSV_COLUMNS_MAX) {
        return gr_node_fail(gr_node_setting(config->section, "label_column"), diag, GR_E_INVALID,
                            "must be first, last or a number of a column from 1, not \"%s\"; a "
                            "name needs header: true",
                            text);
    }
    options->label_column = (int)column;
    return GR_OK;
}

gr_status gr_dataset_columns(const gr_data_config *config, gr_arena *arena,
                             gr_table_options *options, gr_diag *diag)
{
    options->header = config->header;
    options->regression = config->regression;
    options->classes = config->classes;
    gr_status status = label_column(config, options, diag);
    if (status == GR_OK) {
        status = read_delimiter(config, options, diag);
    }
    if (status == GR_OK && config->class_names != NULL) {
        const gr_node *node = config->class_names;
        status = read_texts(node, "[setosa, virginica]", arena, &options->class_names,
                            &options->class_name_count, diag);
        if (status == GR_OK) {
            status = check_different(node, options->class_names, options->class_name_count, diag);
        }
        if (status == GR_OK && config->regression) {
            status = gr_node_fail(node, diag, GR_E_INVALID,
                                  "regression predicts numbers, which have no classes; remove one "
                                  "of the two");
        }
        if (status == GR_OK && config->classes > 0 && config->classes != node->count) {
            status = gr_node_fail(node, diag, GR_E_INVALID,
                                  "are %d names, but classes says %lld; remove classes",
                                  node->count, (long long)config->classes);
        }
    }
    if (status == GR_OK && config->categories != NULL) {
        status = read_categories(config->categories, arena, options, diag);
    }
    if (status == GR_OK && config->skip != NULL) {
        status =
            read_texts(config->skip, "[id, 7]", arena, &options->skip, &options->skip_count, diag);
    }
    return status;
}
