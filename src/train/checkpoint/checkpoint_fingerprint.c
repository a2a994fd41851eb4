/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint/checkpoint_fingerprint.h"

#include "base/config_text.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "train/inference.h"
#include "train/job/job_internal.h"
#include "train/strategy/strategy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a data file so many pieces are hashed, evenly spread: all of a small one, and a large one
 * costs no more. */
enum { PIECES = 16, PIECE_BYTES = 64 << 10 };

typedef struct collector {
    const gr_job *job;
    gr_arena *arena;
    gr_fingerprint fingerprint;
    gr_diag *diag;
} collector;

static gr_status no_memory(gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for what a checkpoint says of the job");
}

static gr_status add(collector *c, const char *key, const char *value)
{
    if (key == NULL || c->fingerprint.count == GR_FINGERPRINT_MAX) {
        return no_memory(c->diag);
    }
    c->fingerprint.list[c->fingerprint.count++] = (gr_fingerprint_entry){key, value};
    return GR_OK;
}

/* ---- Values as text -------------------------------------------------------------------------- */

/* Writes `text` behind `at`, unless that is NULL; returns its length. */
static size_t put_text(char *at, const char *text)
{
    size_t bytes = strlen(text);
    if (at != NULL) {
        memcpy(at, text, bytes);
    }
    return bytes;
}

/* The tree without its layout: two ways to write the same are equal. NULL: it is only measured. */
static size_t put_node(char *at, const gr_node *node)
{
    if (node == NULL || node->kind == GR_NODE_NULL) {
        return 0;
    }
    if (node->kind == GR_NODE_SCALAR) {
        return put_text(at, node->text);
    }
    bool map = node->kind == GR_NODE_MAP;
    size_t used = put_text(at, map ? "{" : "[");
    for (const gr_node *child = node->child; child != NULL; child = child->next) {
        const char *const before[] = {child != node->child ? ", " : "", map ? child->key : "",
                                      map ? ": " : ""};
        for (int i = 0; i < 3; i++) {
            used += put_text(at != NULL ? at + used : NULL, before[i]);
        }
        used += put_node(at != NULL ? at + used : NULL, child);
    }
    return used + put_text(at != NULL ? at + used : NULL, map ? "}" : "]");
}

/* NULL: no memory. */
static const char *node_text(gr_arena *arena, const gr_node *node)
{
    char *text = gr_arena_alloc(arena, put_node(NULL, node) + 1); /* zeroed */
    if (text != NULL) {
        (void)put_node(text, node);
    }
    return text;
}

static const char *field_text(gr_arena *arena, const gr_config_field *field, const void *config)
{
    char number[GR_CONFIG_VALUE_BYTES];
    if (field->type == GR_CONFIG_NODE) {
        const void *at = (const char *)config + field->offset;
        return node_text(arena, *(const gr_node *const *)at);
    }
    return gr_arena_strdup(arena, gr_config_text(field, config, number));
}

/* ---- Data files ------------------------------------------------------------------------------ */

static gr_status read_piece(int fd, off_t at, char *piece, size_t *got_out)
{
    size_t got = 0;
    while (got < PIECE_BYTES) {
        ssize_t now = pread(fd, piece + got, PIECE_BYTES - got, at + (off_t)got);
        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now < 0) {
            return GR_E_IO;
        }
        if (now == 0) {
            break;
        }
        got += (size_t)now;
    }
    *got_out = got;
    return GR_OK;
}

/* "11234 bytes, 0123456789abcdef" */
static gr_status add_file(collector *c, const char *key, const char *name)
{
    gr_status status = GR_OK;
    struct stat info;
    char *path = gr_path_beside(c->job->path, name);
    char *piece = malloc(PIECE_BYTES);
    if (path == NULL || piece == NULL) {
        free(path);
        free(piece);
        return no_memory(c->diag);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        status = gr_fail_errno(c->diag, "read", path, errno);
        goto undo_fd;
    }
    uint64_t hash = 0;
    off_t step = info.st_size / PIECES > PIECE_BYTES ? info.st_size / PIECES : PIECE_BYTES;
    for (off_t at = 0; at < info.st_size && status == GR_OK; at += step) {
        size_t got = 0;
        status = read_piece(fd, at, piece, &got);
        if (status != GR_OK) {
            (void)gr_fail_errno(c->diag, "read", path, errno);
        }
        hash = gr_hash64(piece, got, hash);
    }
    if (status == GR_OK) {
        status = add(c, key,
                     gr_arena_printf(c->arena, "%lld bytes, %016llx", (long long)info.st_size,
                                     (unsigned long long)hash));
    }
undo_fd:
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    free(piece);
    return status;
}

/* ---- The job --------------------------------------------------------------------------------- */

static gr_status add_model(collector *c)
{
    gr_status status = GR_OK;
    const gr_node *list = c->job->config.model;
    int number = 0;
    for (const gr_node *layer = list != NULL ? list->child : NULL; layer != NULL && status == GR_OK;
         layer = layer->next) {
        const char *text = node_text(c->arena, layer);
        status = text != NULL ? add(c, gr_arena_printf(c->arena, "model[%d]", number++), text)
                              : no_memory(c->diag);
    }
    return status;
}

/* The fields of a part of `job` that count. */
static gr_status add_part(collector *c, const gr_job *job, const gr_job_part *part)
{
    const void *config = (const char *)job + part->config;
    const char *prefix =
        part == gr_job_parts ? "" : gr_arena_printf(c->arena, "%s.", part->table->name);
    gr_status status = prefix != NULL ? GR_OK : no_memory(c->diag);
    for (const gr_config_field *field = NULL;
         status == GR_OK && (field = gr_config_next(part->table, field)) != NULL;) {
        bool other = gr_config_is_of_other(part->table, config, field);
        bool counts =
            gr_config_counts(part->table, config, field) && !gr_config_is_unset(field, config);
        if (!counts && !other) {
            continue;
        }
        const char *key = gr_arena_printf(c->arena, "%s%s", prefix, field->key);
        const char *text = counts ? field_text(c->arena, field, config) : "";
        status = text == NULL     ? no_memory(c->diag)
                 : other          ? add(c, key, NULL)
                 : field->is_file ? add_file(c, key, text)
                                  : add(c, key, text);
    }
    return status;
}

/* All parts. What the settings leave open counts as it was resolved. */
static gr_status add_parts(collector *c)
{
    gr_job resolved = *c->job;
    gr_distribution_config *d = &resolved.distribution;
    d->shards = c->job->shards;
    if (c->job->strategy->averages_weights) {
        d->sync_every =
            gr_arena_printf(c->arena, "%llu steps (strategy %s)",
                            (unsigned long long)c->job->sync_steps, c->job->strategy->name);
        if (d->sync_every == NULL) {
            return no_memory(c->diag);
        }
    }
    gr_status status = GR_OK;
    for (int i = 0; i < GR_JOB_PARTS && status == GR_OK; i++) {
        const gr_job_part *part = &gr_job_parts[i];
        status = gr_job_has_part(c->job, part->table) ? add_part(c, &resolved, part) : GR_OK;
    }
    if (status == GR_OK && gr_dataset_scales_by_column(c->job->dataset)) {
        status = add(c, "data.normalize_by", "column");
    }
    return status;
}

gr_status gr_fingerprint_of_job(const gr_job *job, gr_arena *arena, gr_fingerprint *fingerprint_out,
                                gr_diag *diag)
{
    collector c = {.job = job, .arena = arena, .diag = diag};
    c.fingerprint.list = gr_arena_alloc(arena, GR_FINGERPRINT_MAX * sizeof *c.fingerprint.list);
    if (c.fingerprint.list == NULL) {
        return no_memory(diag);
    }
    gr_status status = add_parts(&c);
    if (status == GR_OK) {
        status = add_model(&c);
    }
    if (status == GR_OK) {
        status = gr_inference_print(job, arena, &c.fingerprint.inference, diag);
    }
    if (status == GR_OK) {
        *fingerprint_out = c.fingerprint;
    }
    return status;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* What is missing is not set. */
static const char *value_of(const gr_fingerprint *fingerprint, const char *key)
{
    for (int i = 0; i < fingerprint->count; i++) {
        if (strcmp(fingerprint->list[i].key, key) == 0) {
            return fingerprint->list[i].value;
        }
    }
    return "";
}

/* The key of the first entry that the others do not share, but for those that mean nothing to one
 * of the two; NULL. */
static const char *differing(const gr_fingerprint *fingerprint, const gr_fingerprint *others)
{
    for (int i = 0; i < fingerprint->count; i++) {
        const char *value = fingerprint->list[i].value;
        const char *other = value_of(others, fingerprint->list[i].key);
        if (value != NULL && other != NULL && strcmp(other, value) != 0) {
            return fingerprint->list[i].key;
        }
    }
    return NULL;
}

static const char *shown(const char *value)
{
    return value[0] == '\0' ? "not set" : value;
}

gr_status gr_fingerprint_compare(const gr_fingerprint *saved, const gr_fingerprint *own,
                                 const char *checkpoint, const char *job_path, gr_diag *diag)
{
    const char *key = differing(own, saved);
    key = key != NULL ? key : differing(saved, own);
    if (key == NULL) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s is of another job: %s is %.100s there and %.100s in %s; set it back to go "
                   "on, or give this job a folder of its own (checkpoint: to, --checkpoint-to)",
                   checkpoint, key, shown(value_of(saved, key)), shown(value_of(own, key)),
                   job_path);
}
