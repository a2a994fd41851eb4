/* SPDX-License-Identifier: Apache-2.0 */

/* The job as a document: its settings as JSON, and back. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "base/number.h"
#include "doc/config_node.h"
#include "doc/node_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCUMENT_NAME "job document"
#define HOW_TO_MAKE "gradus run --dry-run --json job.yaml writes one"

/* ---- Printing -------------------------------------------------------------------------------- */

/* A value of a tree keeps its characters, which count in checkpoints: only what JSON writes in the
 * same way is a number or a truth value there, all else a text. */
static json_t *scalar_json(const gr_node *node)
{
    int64_t number = 0;
    char text[GR_NUMBER_TEXT_BYTES];
    if (!node->quoted && (strcmp(node->text, "true") == 0 || strcmp(node->text, "false") == 0)) {
        return json_boolean(node->text[0] == 't');
    }
    if (!node->quoted && gr_number_int(node->text, &number) == GR_NUMBER_OK) {
        snprintf(text, sizeof text, "%" PRId64, number);
        if (strcmp(text, node->text) == 0) {
            return json_integer(number);
        }
    }
    return json_string(node->text);
}

static json_t *value_json(const gr_config_field *field, const void *at)
{
    switch (field->type) {
    case GR_CONFIG_BOOL:
        return json_boolean(*(const bool *)at);
    case GR_CONFIG_INT:
    case GR_CONFIG_BYTES:
        return json_integer(*(const int64_t *)at);
    case GR_CONFIG_DURATION: /* a plain number would be seconds */
        return json_sprintf("%" PRId64 "us", *(const int64_t *)at);
    case GR_CONFIG_DOUBLE:
        return json_real(*(const double *)at);
    case GR_CONFIG_CHOICE:
        return json_string(gr_config_choice(field, *(const int *)at));
    case GR_CONFIG_TEXT:
        return json_string(*(const char *const *)at);
    case GR_CONFIG_NODE:
        return gr_node_json(*(const gr_node *const *)at, scalar_json);
    case GR_CONFIG_LIST: /* of flags alone */
        break;
    }
    return NULL;
}

/* The fields of a table, with the parts of the job that are read from some of them. */
static json_t *table_json(const gr_job *job, const gr_config_table *table, size_t config)
{
    json_t *object = json_object();
    int failed = object == NULL;
    for (const gr_config_field *field = NULL;
         !failed && (field = gr_config_next(table, field)) != NULL;) {
        size_t offset = config + field->offset;
        const void *at = (const char *)job + offset;
        const gr_job_part *part = gr_job_part_at(offset);
        const void *whole = (const char *)job + config;
        bool left_out =
            !gr_config_applies(table, whole, field) ||
            (part == NULL ? gr_config_is_unset(field, whole) : !gr_job_has_part(job, part->table));
        if (field->key != NULL && !left_out) {
            failed = json_object_set_new(object, field->key,
                                         part == NULL ? value_json(field, at)
                                                      : table_json(job, part->table, part->config));
        }
    }
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

gr_status gr_job_document(const gr_job *job, char **text_out, gr_diag *diag)
{
    gr_job resolved = *job;
    resolved.distribution.shards = job->shards;
    resolved.run.workers = job->workers;
    json_t *document =
        json_pack("{s:i, s:s, s:o, s:o}", "gradus_job", GR_JOB_DOCUMENT_VERSION, "path", job->path,
                  "job", table_json(&resolved, gr_job_parts[0].table, gr_job_parts[0].config),
                  "run", table_json(&resolved, &gr_job_run_table, offsetof(gr_job, run)));
    char *json = document != NULL ? json_dumps(document, JSON_INDENT(2)) : NULL;
    char *text = NULL;
    if (json == NULL || asprintf(&text, "%s\n", json) < 0) {
        text = NULL;
    }
    free(json);
    json_decref(document);
    if (text == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: the job cannot be handed on to workers: one of its texts or names of "
                       "files is no UTF-8, or there is no memory",
                       job->path);
    }
    *text_out = text;
    return GR_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* In a tree, texts stand also for numbers: see scalar_json. The nodes are those of our document. */
static void take_plain(const gr_node *node)
{
    ((gr_node *)(uintptr_t)node)->quoted = false;
    for (const gr_node *child = node->child; child != NULL; child = child->next) {
        take_plain(child);
    }
}

static void take_trees_plain(const gr_job *job, const gr_job_part *part)
{
    for (const gr_config_field *field = NULL;
         (field = gr_config_next(part->table, field)) != NULL;) {
        size_t offset = part->config + field->offset;
        const void *at = (const char *)job + offset;
        if (field->type == GR_CONFIG_NODE && gr_job_part_at(offset) == NULL &&
            *(const gr_node *const *)at != NULL) {
            take_plain(*(const gr_node *const *)at);
        }
    }
}

static gr_status check_version(const gr_node *root, gr_diag *diag)
{
    static const char *const known[] = {"gradus_job", "path", "job", "run", NULL};
    gr_status status = gr_node_version(root, DOCUMENT_NAME, "gradus_job", GR_JOB_DOCUMENT_VERSION,
                                       HOW_TO_MAKE, diag);
    return status == GR_OK ? gr_node_only(root, known, diag) : status;
}

static gr_status read_document(gr_job *job, gr_diag *diag)
{
    const gr_node *root = gr_doc_root(job->doc);
    const gr_node *path = gr_node_get(root, "path");
    gr_status status = check_version(root, diag);
    job->root = gr_node_get(root, "job");
    if (status == GR_OK && (path == NULL || job->root == NULL)) {
        status = gr_node_fail(root, diag, GR_E_INVALID, "\"%s\" is missing; " HOW_TO_MAKE,
                              path == NULL ? "path" : "job");
    }
    if (status == GR_OK) {
        status = gr_node_text(path, &job->path, diag);
    }
    if (status == GR_OK) {
        status = gr_job_read_parts(job, NULL, diag);
    }
    if (status == GR_OK) {
        status = gr_config_defaults(&gr_job_run_table, &job->run, &job->arena, diag);
    }
    if (status == GR_OK) {
        status = gr_config_from_node(&gr_job_run_table, &job->run, gr_node_get(root, "run"),
                                     &job->arena, diag);
    }
    for (int i = 0; i < GR_JOB_PARTS && status == GR_OK; i++) {
        take_trees_plain(job, &gr_job_parts[i]);
    }
    return status;
}

gr_status gr_job_parse_document(const char *text, size_t size_bytes, gr_job **job_out,
                                gr_diag *diag)
{
    gr_job *job = gr_job_create(DOCUMENT_NAME, diag);
    gr_status status = job != NULL
                           ? gr_doc_parse_json(DOCUMENT_NAME, text, size_bytes, &job->doc, diag)
                           : GR_E_NO_MEMORY;
    if (status == GR_OK) {
        status = read_document(job, diag);
    }
    if (status != GR_OK) {
        gr_job_close(job);
        return status;
    }
    *job_out = job;
    return GR_OK;
}
