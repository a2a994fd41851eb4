/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint/checkpoint_file.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "doc/doc.h"
#include "train/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    FILES_MAX = 8,
    NAME_BYTES = 32,
    MANIFEST_BYTES_MAX = 16 << 20,
    READ_BYTES = 1 << 20,
    ARENA_BYTES_MAX = 64 << 20
};

#define COUNT_MAX ((int64_t)1 << 53)
#define METER_MAX (INT64_MAX / 4) /* a run that goes on adds to it */
#define FORMAT "gradus checkpoint"
/* How a manifest ends; between the two stand 64 digits. */
#define SUM_BEGIN ",\n \"sha256\": \""
#define SUM_END "\"\n}\n"
enum { SUM_BYTES = sizeof SUM_BEGIN - 1 + GR_SHA256_HEX_BYTES - 1 + sizeof SUM_END - 1 };

typedef struct file_entry {
    char name[NAME_BYTES];
    uint64_t bytes;
    char sha256[GR_SHA256_HEX_BYTES];
} file_entry;

/* ---- Writing --------------------------------------------------------------------------------- */

/* A file on its way: what is written is hashed. */
typedef struct file_sink {
    const char *path;
    int fd;
    gr_sha256 *sha;
    uint64_t bytes;
} file_sink;

static gr_status into_file(void *sink_arg, const void *data, size_t size_bytes, gr_diag *diag)
{
    file_sink *file = sink_arg;
    gr_status status = gr_sha256_add(file->sha, data, size_bytes);
    if (status != GR_OK) {
        return gr_fail(diag, status, "%s: its SHA-256 could not be computed", file->path);
    }
    int error = gr_fd_write(file->fd, data, size_bytes);
    file->bytes += size_bytes;
    return error == 0 ? GR_OK : gr_fail_errno(diag, "write", file->path, error);
}

static gr_status finish_file(file_sink *file, gr_status status, file_entry *entry, gr_diag *diag)
{
    if (status == GR_OK && fsync(file->fd) != 0) {
        status = gr_fail_errno(diag, "write", file->path, errno);
    }
    if (close(file->fd) != 0 && status == GR_OK) {
        status = gr_fail_errno(diag, "write", file->path, errno);
    }
    if (status == GR_OK && gr_sha256_end(file->sha, entry->sha256) != GR_OK) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "%s: its SHA-256 could not be computed", file->path);
    }
    entry->bytes = file->bytes;
    return status;
}

static gr_status write_parts(const char *folder, const char *name, gr_safetensors_part *parts,
                             int count, file_entry *entry, gr_diag *diag)
{
    char path[PATH_MAX];
    file_sink file = {.path = path};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    gr_status status = gr_path_join(folder, name, path, sizeof path, diag);
    if (status != GR_OK) {
        return status;
    }
    if (gr_sha256_create(&file.sha) != GR_OK) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to write %s", path);
    }
    file.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file.fd < 0) {
        status = gr_fail_errno(diag, "write", path, errno);
    } else {
        status = gr_safetensors_stream(parts, count, into_file, &file, diag);
        status = finish_file(&file, status, entry, diag);
    }
    gr_sha256_destroy(file.sha);
    return status;
}

static gr_status write_model(const char *folder, const gr_checkpoint_tensors *t, file_entry *entry,
                             gr_diag *diag)
{
    gr_safetensors_part *parts = gr_weights_parts(t->model, t->values);
    if (parts == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to write %s", GR_CHECKPOINT_MODEL);
    }
    gr_status status =
        write_parts(folder, GR_CHECKPOINT_MODEL, parts, gr_model_tensors(t->model), entry, diag);
    free(parts);
    return status;
}

/* Statistics have no state. */
static gr_status write_optimizer(const char *folder, const gr_checkpoint_tensors *t,
                                 file_entry *entry, gr_diag *diag)
{
    typedef char tensor_name[GR_SAFETENSORS_NAME_BYTES];
    int tensors = gr_model_tensors(t->model), count = 0;
    size_t most = (size_t)tensors * (size_t)t->states;
    gr_safetensors_part *parts = calloc(most + 1, sizeof *parts);
    tensor_name *names = calloc(most + 1, sizeof *names);
    gr_status status = GR_OK;
    if (parts == NULL || names == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory to write %s", GR_CHECKPOINT_OPTIMIZER);
    }
    for (int s = 0; status == GR_OK && s < t->states; s++) {
        for (int i = 0; i < tensors; i++) {
            const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
            if (tensor->statistic) {
                continue;
            }
            gr_safetensors_part *part = &parts[count];
            snprintf(names[count], sizeof names[count], "%s.%s", t->state_name[s], tensor->name);
            part->name = names[count++];
            part->values = t->state[s] + tensor->offset;
            part->dims = tensor->shape.dims;
            memcpy(part->dim, tensor->shape.dim, (size_t)part->dims * sizeof *part->dim);
        }
    }
    if (status == GR_OK) {
        status = write_parts(folder, GR_CHECKPOINT_OPTIMIZER, parts, count, entry, diag);
    }
    free(parts);
    free(names);
    return status;
}

static gr_status write_residuals(const char *folder, const gr_checkpoint_tensors *t,
                                 file_entry *entry, gr_diag *diag)
{
    gr_safetensors_part part = {.name = "residuals",
                                .values = t->residuals,
                                .dims = 2,
                                .dim = {t->shards, (int64_t)t->residual_count}};
    return write_parts(folder, GR_CHECKPOINT_RESIDUALS, &part, 1, entry, diag);
}

static json_t *meter_json(const gr_meter *meter)
{
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I}", "loss", gr_json_number(meter->loss),
                     "correct", gr_json_number(meter->correct), "steps", (json_int_t)meter->steps,
                     "samples", (json_int_t)meter->samples, "step_ns", (json_int_t)meter->step_ns,
                     "wait_ns", (json_int_t)meter->wait_ns);
}

static json_t *best_json(const gr_checkpoint_info *info)
{
    return json_pack("{s:s, s:o, s:I, s:I, s:b}", "metric", gr_metric_names[info->metric], "value",
                     gr_json_number(info->best.value), "step", (json_int_t)info->best.step, "wait",
                     (json_int_t)info->best.wait, "kept", info->keeps_best);
}

static json_t *manifest_json(const gr_checkpoint_info *info, const gr_fingerprint *fingerprint,
                             const file_entry *files, int count)
{
    json_t *job = json_object(), *list = json_array();
    bool whole = true;
    for (int i = 0; i < fingerprint->count; i++) {
        const gr_fingerprint_entry *entry = &fingerprint->list[i];
        whole = (entry->value == NULL ||
                 json_object_set_new(job, entry->key, json_string(entry->value)) == 0) &&
                whole;
    }
    for (int i = 0; i < count; i++) {
        json_t *file = json_pack("{s:s, s:I, s:s}", "name", files[i].name, "bytes",
                                 (json_int_t)files[i].bytes, "sha256", files[i].sha256);
        whole = json_array_append_new(list, file) == 0 && whole;
    }
    json_t *root = json_pack(
        "{s:s, s:i, s:I, s:I, s:I, s:i, s:I, s:f, s:o, s:o, s:o, s:o, s:o}", "format", FORMAT,
        "version", GR_CHECKPOINT_VERSION, "step", (json_int_t)info->step, "steps",
        (json_int_t)info->total_steps, "steps_per_epoch", (json_int_t)info->steps_per_epoch,
        "shards", info->shards, "time", (json_int_t)info->time_s, "seconds", info->seconds,
        "last_loss", gr_json_number(info->last_loss), "epoch_meter", meter_json(&info->epoch),
        "total_meter", meter_json(&info->total), "job", job, "files", list);
    if (info->metric >= 0) {
        whole = json_object_set_new(root, "best", best_json(info)) == 0 && whole;
    }
    if (fingerprint->inference != NULL && fingerprint->inference[0] != '\0') {
        json_t *inference = json_loads(fingerprint->inference, 0, NULL);
        whole = json_object_set_new(root, "inference", inference) == 0 && whole;
    }
    if (!whole) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static gr_status write_manifest(const char *folder, const gr_checkpoint_info *info,
                                const gr_fingerprint *fingerprint, const file_entry *files,
                                int count, gr_diag *diag)
{
    char path[PATH_MAX], sum[GR_SHA256_HEX_BYTES];
    json_t *root = manifest_json(info, fingerprint, files, count);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    json_decref(root);
    size_t bytes = text != NULL ? strlen(text) - strlen("\n}") : 0;
    char *whole = text != NULL ? malloc(bytes + SUM_BYTES + 1) : NULL;
    if (whole == NULL || gr_sha256_of(text, bytes, sum) != GR_OK) {
        free(text);
        free(whole);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", GR_CHECKPOINT_MANIFEST);
    }
    memcpy(whole, text, bytes);
    snprintf(whole + bytes, SUM_BYTES + 1, "%s%s%s", SUM_BEGIN, sum, SUM_END);
    gr_status status = gr_path_join(folder, GR_CHECKPOINT_MANIFEST, path, sizeof path, diag);
    if (status == GR_OK) {
        status = gr_file_replace(path, whole, bytes + SUM_BYTES, diag); /* syncs the folder */
    }
    free(text);
    free(whole);
    return status;
}

gr_status gr_checkpoint_write(const char *path, const gr_checkpoint_info *info,
                              const gr_fingerprint *fingerprint,
                              const gr_checkpoint_tensors *tensors, gr_diag *diag)
{
    file_entry files[FILES_MAX] = {0};
    int count = 0;
    gr_checkpoint_info now = *info;
    now.time_s = (int64_t)time(NULL);
    gr_status status = write_model(path, tensors, &files[count++], diag);
    if (status == GR_OK) {
        status = write_optimizer(path, tensors, &files[count++], diag);
    }
    if (status == GR_OK && tensors->residuals != NULL) {
        status = write_residuals(path, tensors, &files[count++], diag);
    }
    return status == GR_OK ? write_manifest(path, &now, fingerprint, files, count, diag) : status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

struct gr_checkpoint {
    char *path;
    gr_arena arena;
    gr_doc *doc; /* the manifest */
    gr_checkpoint_info info;
    gr_fingerprint fingerprint;
    file_entry files[FILES_MAX];
    int count;
    uint64_t manifest_bytes;
};

/* The last lines, character by character, and the text before them. */
static gr_status check_manifest(const char *path, const char *text, size_t bytes, gr_diag *diag)
{
    char sum[GR_SHA256_HEX_BYTES], end[SUM_BYTES + 1];
    if (bytes <= SUM_BYTES) {
        return gr_fail(diag, GR_E_INVALID, "%s is damaged: it has only %zu bytes", path, bytes);
    }
    gr_status status = gr_sha256_of(text, bytes - SUM_BYTES, sum);
    if (status != GR_OK) {
        return gr_fail(diag, status, "%s: its SHA-256 could not be computed", path);
    }
    snprintf(end, sizeof end, "%s%s%s", SUM_BEGIN, sum, SUM_END);
    if (memcmp(end, text + bytes - SUM_BYTES, SUM_BYTES) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s is damaged: its text does not have the SHA-256 that its end says", path);
    }
    return GR_OK;
}

static gr_status get_int(const gr_node *map, const char *key, int64_t max, int64_t *value_out,
                         gr_diag *diag)
{
    const gr_node *node = gr_node_get(map, key);
    return node != NULL ? gr_node_int(node, 0, max, value_out, diag)
                        : gr_node_fail(map, diag, GR_E_INVALID, "\"%s\" is missing", key);
}

static gr_status get_double(const gr_node *map, const char *key, double *value_out, gr_diag *diag)
{
    const gr_node *node = gr_node_get(map, key);
    if (node != NULL && node->kind == GR_NODE_NULL) {
        *value_out = (double)NAN;
        return GR_OK;
    }
    return node != NULL ? gr_node_double(node, -INFINITY, INFINITY, value_out, diag)
                        : gr_node_fail(map, diag, GR_E_INVALID, "\"%s\" is missing", key);
}

static gr_status get_text(const gr_node *map, const char *key, const char **value_out,
                          gr_diag *diag)
{
    const gr_node *node = gr_node_get(map, key);
    return node != NULL ? gr_node_text(node, value_out, diag)
                        : gr_node_fail(map, diag, GR_E_INVALID, "\"%s\" is missing", key);
}

static gr_status get_meter(const gr_node *root, const char *key, gr_meter *meter, gr_diag *diag)
{
    const gr_node *map = gr_node_get(root, key);
    gr_status status = get_double(map, "loss", &meter->loss, diag);
    if (status == GR_OK) {
        status = get_double(map, "correct", &meter->correct, diag);
    }
    int64_t *const counts[] = {&meter->steps, &meter->samples, &meter->step_ns, &meter->wait_ns};
    static const char *const keys[] = {"steps", "samples", "step_ns", "wait_ns"};
    for (int i = 0; i < 4 && status == GR_OK; i++) {
        status = get_int(map, keys[i], METER_MAX, counts[i], diag);
    }
    return status;
}

/* Of a metric that this version does not know: none. */
static gr_status get_best(const gr_node *root, gr_checkpoint_info *info, gr_diag *diag)
{
    const gr_node *map = gr_node_get(root, "best");
    const char *name = NULL;
    int64_t step = 0;
    info->metric = -1;
    info->best = (gr_best){.value = (double)NAN};
    info->keeps_best = false;
    if (map == NULL) {
        return GR_OK;
    }
    gr_status status = get_text(map, "metric", &name, diag);
    if (status == GR_OK) {
        status = get_double(map, "value", &info->best.value, diag);
    }
    if (status == GR_OK) {
        status = get_int(map, "step", COUNT_MAX, &step, diag);
    }
    if (status == GR_OK) {
        status = get_int(map, "wait", COUNT_MAX, &info->best.wait, diag);
    }
    const gr_node *kept = gr_node_get(map, "kept");
    info->keeps_best = true; /* earlier versions do not say */
    if (status == GR_OK && kept != NULL) {
        status = gr_node_bool(kept, &info->keeps_best, diag);
    }
    info->best.step = (uint64_t)step;
    for (int i = 0; status == GR_OK && gr_metric_names[i] != NULL; i++) {
        info->metric = strcmp(gr_metric_names[i], name) == 0 ? i : info->metric;
    }
    return status;
}

static gr_status get_info(const gr_node *root, gr_checkpoint_info *info, gr_diag *diag)
{
    int64_t step = 0, steps = 0, per_epoch = 0, shards = 0;
    static const char *const keys[] = {"step", "steps", "steps_per_epoch", "shards", "time"};
    int64_t *const counts[] = {&step, &steps, &per_epoch, &shards, &info->time_s};
    const int64_t most[] = {COUNT_MAX, COUNT_MAX, COUNT_MAX, INT_MAX, INT64_MAX};
    gr_status status = GR_OK;
    for (int i = 0; i < 5 && status == GR_OK; i++) {
        status = get_int(root, keys[i], most[i], counts[i], diag);
    }
    if (status == GR_OK) {
        status = get_double(root, "seconds", &info->seconds, diag);
    }
    info->last_loss = (double)NAN;
    if (status == GR_OK && gr_node_get(root, "last_loss") != NULL) {
        status = get_double(root, "last_loss", &info->last_loss, diag);
    }
    if (status == GR_OK) {
        status = get_meter(root, "epoch_meter", &info->epoch, diag);
    }
    if (status == GR_OK) {
        status = get_meter(root, "total_meter", &info->total, diag);
    }
    if (status == GR_OK) {
        status = get_best(root, info, diag);
    }
    info->step = (uint64_t)step;
    info->total_steps = (uint64_t)steps;
    info->steps_per_epoch = per_epoch > 0 ? (uint64_t)per_epoch : 1;
    info->shards = (int)shards;
    return status;
}

static gr_status get_fingerprint(const gr_node *root, gr_checkpoint *c, gr_diag *diag)
{
    const gr_node *map = gr_node_get(root, "job");
    if (map == NULL || map->kind != GR_NODE_MAP || map->count > GR_FINGERPRINT_MAX) {
        return gr_node_fail(root, diag, GR_E_INVALID, "\"job\" must be a map of texts");
    }
    c->fingerprint.list =
        gr_arena_alloc(&c->arena, (size_t)map->count * sizeof *c->fingerprint.list);
    gr_status status = c->fingerprint.list != NULL ? GR_OK : GR_E_NO_MEMORY;
    for (const gr_node *at = map->child; at != NULL && status == GR_OK; at = at->next) {
        const char *value = NULL;
        status = gr_node_text(at, &value, diag);
        gr_fingerprint_entry entry = {gr_arena_strdup(&c->arena, at->key),
                                      gr_arena_strdup(&c->arena, value != NULL ? value : "")};
        c->fingerprint.list[c->fingerprint.count++] = entry;
        if (status == GR_OK && (entry.key == NULL || entry.value == NULL)) {
            status = GR_E_NO_MEMORY;
        }
    }
    return status == GR_E_NO_MEMORY ? gr_fail(diag, status, "%s: no memory to read it", c->path)
                                    : status;
}

/* A file's name is one of ours: no path leads out of the folder. */
static gr_status get_file(const gr_node *node, gr_checkpoint *c, gr_diag *diag)
{
    static const char *const known[] = {GR_CHECKPOINT_MODEL, GR_CHECKPOINT_OPTIMIZER,
                                        GR_CHECKPOINT_RESIDUALS, NULL};
    const char *name = NULL, *sum = NULL;
    int64_t bytes = 0;
    file_entry *file = &c->files[c->count];
    gr_status status = get_text(node, "name", &name, diag);
    if (status == GR_OK) {
        status = get_int(node, "bytes", INT64_MAX, &bytes, diag);
    }
    if (status == GR_OK) {
        status = get_text(node, "sha256", &sum, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    int i = 0;
    while (known[i] != NULL && strcmp(known[i], name) != 0) {
        i++;
    }
    if (known[i] == NULL || c->count == FILES_MAX - 1 || strlen(sum) != GR_SHA256_HEX_BYTES - 1) {
        return gr_node_fail(node, diag, GR_E_INVALID, "this is no file of a checkpoint");
    }
    snprintf(file->name, sizeof file->name, "%s", name);
    memcpy(file->sha256, sum, sizeof file->sha256);
    file->bytes = (uint64_t)bytes;
    c->count++;
    return GR_OK;
}

static gr_status read_manifest(gr_checkpoint *c, const gr_node *root, gr_diag *diag)
{
    const char *format = NULL;
    int64_t version = 0;
    gr_status status = get_text(root, "format", &format, diag);
    if (status == GR_OK && strcmp(format, FORMAT) != 0) {
        return gr_node_fail(root, diag, GR_E_INVALID, "this is no manifest of a checkpoint");
    }
    if (status == GR_OK) {
        status = get_int(root, "version", INT_MAX, &version, diag);
    }
    if (status == GR_OK && version != GR_CHECKPOINT_VERSION) {
        return gr_fail(diag, GR_E_UNSUPPORTED,
                       "%s has version %lld of the format; this Gradus knows version %d: use the "
                       "one that wrote it",
                       c->path, (long long)version, GR_CHECKPOINT_VERSION);
    }
    if (status == GR_OK) {
        status = get_info(root, &c->info, diag);
    }
    if (status == GR_OK) {
        status = get_fingerprint(root, c, diag);
    }
    const gr_node *files = gr_node_get(root, "files");
    for (const gr_node *at = files != NULL ? files->child : NULL; at != NULL && status == GR_OK;
         at = at->next) {
        status = get_file(at, c, diag);
    }
    return status;
}

static const file_entry *find_file(const gr_checkpoint *c, const char *name)
{
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->files[i].name, name) == 0) {
            return &c->files[i];
        }
    }
    return NULL;
}

static gr_status check_sizes(const gr_checkpoint *c, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int i = 0; i < c->count && status == GR_OK; i++) {
        char path[PATH_MAX];
        struct stat info;
        status = gr_path_join(c->path, c->files[i].name, path, sizeof path, diag);
        if (status == GR_OK && stat(path, &info) != 0) {
            status = gr_fail_errno(diag, "read", path, errno);
        } else if (status == GR_OK && (uint64_t)info.st_size != c->files[i].bytes) {
            status = gr_fail(diag, GR_E_INVALID,
                             "%s is damaged: it has %lld bytes, the manifest says %llu", path,
                             (long long)info.st_size, (unsigned long long)c->files[i].bytes);
        }
    }
    return status;
}

gr_status gr_checkpoint_open(const char *path, gr_checkpoint **checkpoint_out, gr_diag *diag)
{
    char name[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    gr_checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to read it", path);
    }
    gr_arena_init(&c->arena, ARENA_BYTES_MAX);
    c->path = gr_arena_strdup(&c->arena, path);
    gr_status status = c->path != NULL
                           ? gr_path_join(path, GR_CHECKPOINT_MANIFEST, name, sizeof name, diag)
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a path");
    if (status == GR_OK) {
        status = gr_file_read(name, MANIFEST_BYTES_MAX, &text, &bytes, diag);
    }
    if (status == GR_OK) {
        status = check_manifest(name, text, bytes, diag);
    }
    if (status == GR_OK) {
        c->manifest_bytes = bytes;
        status = gr_doc_parse_json(name, text, bytes, &c->doc, diag);
    }
    if (status == GR_OK) {
        status = read_manifest(c, gr_doc_root(c->doc), diag);
    }
    if (status == GR_OK && (find_file(c, GR_CHECKPOINT_MODEL) == NULL ||
                            find_file(c, GR_CHECKPOINT_OPTIMIZER) == NULL)) {
        status = gr_fail(diag, GR_E_INVALID, "%s does not list the model and the optimizer", name);
    }
    if (status == GR_OK) {
        status = check_sizes(c, diag);
    }
    free(text);
    if (status != GR_OK) {
        gr_checkpoint_close(c);
        return status;
    }
    *checkpoint_out = c;
    return GR_OK;
}

void gr_checkpoint_close(gr_checkpoint *checkpoint)
{
    if (checkpoint != NULL) {
        gr_doc_destroy(checkpoint->doc);
        gr_arena_fini(&checkpoint->arena);
        free(checkpoint);
    }
}

const gr_checkpoint_info *gr_checkpoint_info_of(const gr_checkpoint *checkpoint)
{
    return &checkpoint->info;
}

const gr_fingerprint *gr_checkpoint_fingerprint_of(const gr_checkpoint *checkpoint)
{
    return &checkpoint->fingerprint;
}

const gr_node *gr_checkpoint_inference_of(const gr_checkpoint *checkpoint)
{
    return gr_node_get(gr_doc_root(checkpoint->doc), "inference");
}

const char *gr_checkpoint_path_of(const gr_checkpoint *checkpoint)
{
    return checkpoint->path;
}

uint64_t gr_checkpoint_bytes(const gr_checkpoint *checkpoint)
{
    uint64_t bytes = checkpoint->manifest_bytes;
    for (int i = 0; i < checkpoint->count; i++) {
        bytes += checkpoint->files[i].bytes;
    }
    return bytes;
}

bool gr_checkpoint_has(const gr_checkpoint *checkpoint, const char *name)
{
    return find_file(checkpoint, name) != NULL;
}

static gr_status compare_sum(const char *path, const file_entry *file, const char *sum,
                             gr_diag *diag)
{
    if (strcmp(sum, file->sha256) == 0) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID, "%s is damaged: its SHA-256 is %.12s..., not %.12s...", path,
                   sum, file->sha256);
}

/* Piece by piece: a checkpoint may be larger than the memory. */
static gr_status hash_file(const char *path, char hex_out[GR_SHA256_HEX_BYTES], gr_diag *diag)
{
    gr_sha256 *sha = NULL;
    char *piece = malloc(READ_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = -1;
    gr_status status = piece != NULL ? gr_sha256_create(&sha) : GR_E_NO_MEMORY;
    if (status != GR_OK) {
        status = gr_fail(diag, status, "%s: no memory to read it", path);
    } else if (fd < 0) {
        status = gr_fail_errno(diag, "open", path, errno);
    }
    while (status == GR_OK && got != 0) {
        got = read(fd, piece, READ_BYTES);
        if (got < 0 && errno != EINTR) {
            status = gr_fail_errno(diag, "read", path, errno);
        } else if (got > 0) {
            status = gr_sha256_add(sha, piece, (size_t)got);
        }
    }
    if (status == GR_OK) {
        status = gr_sha256_end(sha, hex_out);
    }
    gr_sha256_destroy(sha);
    free(piece);
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

gr_status gr_checkpoint_check(const gr_checkpoint *checkpoint, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int i = 0; i < checkpoint->count && status == GR_OK; i++) {
        char path[PATH_MAX], sum[GR_SHA256_HEX_BYTES];
        const file_entry *file = &checkpoint->files[i];
        status = gr_path_join(checkpoint->path, file->name, path, sizeof path, diag);
        if (status == GR_OK) {
            status = hash_file(path, sum, diag);
        }
        if (status == GR_OK) {
            status = compare_sum(path, file, sum, diag);
        }
    }
    return status;
}

gr_status gr_checkpoint_read_bytes(const gr_checkpoint *checkpoint, const char *name,
                                   char **data_out, size_t *size_out, gr_diag *diag)
{
    char path[PATH_MAX], sum[GR_SHA256_HEX_BYTES], *data = NULL;
    size_t bytes = 0;
    const file_entry *file = find_file(checkpoint, name);
    if (file == NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s lists no %s", checkpoint->path, name);
    }
    gr_status status = gr_path_join(checkpoint->path, name, path, sizeof path, diag);
    if (status == GR_OK) {
        status = gr_file_read(path, file->bytes, &data, &bytes, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (gr_sha256_of(data, bytes, sum) != GR_OK) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "%s: its SHA-256 could not be computed", path);
    } else {
        status = compare_sum(path, file, sum, diag);
    }
    if (status != GR_OK) {
        free(data);
        return status;
    }
    *data_out = data;
    *size_out = bytes;
    return GR_OK;
}

gr_status gr_checkpoint_read(const gr_checkpoint *checkpoint, const char *name,
                             gr_safetensors **file_out, gr_diag *diag)
{
    char path[PATH_MAX], *data = NULL;
    size_t bytes = 0;
    gr_status status = gr_checkpoint_read_bytes(checkpoint, name, &data, &bytes, diag);
    if (status == GR_OK) {
        status = gr_path_join(checkpoint->path, name, path, sizeof path, diag);
    }
    if (status == GR_OK) {
        status = gr_safetensors_parse(path, data, bytes, file_out, diag);
    }
    if (status != GR_OK) {
        free(data);
    }
    return status;
}
