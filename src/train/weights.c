/* SPDX-License-Identifier: Apache-2.0 */
#include "train/weights.h"

#include "base/fail.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gr_safetensors_part *gr_weights_parts(const gr_model *model, const float *values)
{
    int count = gr_model_tensors(model);
    gr_safetensors_part *parts = calloc((size_t)count + 1, sizeof *parts);
    for (int i = 0; i < count && parts != NULL; i++) {
        const gr_tensor_info *tensor = gr_model_tensor(model, i);
        parts[i].name = tensor->name;
        parts[i].values = values + tensor->offset;
        parts[i].dims = tensor->shape.dims;
        for (int d = 0; d < tensor->shape.dims; d++) {
            parts[i].dim[d] = tensor->shape.dim[d];
        }
    }
    return parts;
}

gr_status gr_weights_save(const gr_model *model, const float *values, const char *path,
                          char sha256_out[65], gr_diag *diag)
{
    gr_safetensors_part *parts = gr_weights_parts(model, values);
    if (parts == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to write %s", path);
    }
    gr_status status = gr_safetensors_write(path, parts, gr_model_tensors(model), diag);
    if (status == GR_OK) {
        status = gr_safetensors_sha256(parts, gr_model_tensors(model), sha256_out, diag);
    }
    free(parts);
    return status;
}

static void entry_shape(const gr_safetensors_entry *entry, char *text_out, size_t size_bytes)
{
    gr_shape shape = {.dims = entry->dims};
    for (int d = 0; d < entry->dims && d < GR_DIMS_MAX; d++) {
        shape.dim[d] = entry->dim[d];
    }
    if (entry->dims > GR_DIMS_MAX) {
        snprintf(text_out, size_bytes, "%d dimensions", entry->dims);
    } else {
        gr_shape_format(&shape, text_out, size_bytes);
    }
}

static gr_status check_entry(const gr_tensor_info *tensor, const gr_safetensors_entry *entry,
                             const char *path, gr_diag *diag)
{
    if (entry == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s has no tensor \"%s\", which the job's model needs: it belongs to "
                       "another model",
                       path, tensor->name);
    }
    bool same = entry->dims == tensor->shape.dims;
    for (int d = 0; same && d < entry->dims; d++) {
        same = entry->dim[d] == tensor->shape.dim[d];
    }
    if (!same) {
        char has[64], wants[64];
        entry_shape(entry, has, sizeof has);
        gr_shape_format(&tensor->shape, wants, sizeof wants);
        return gr_fail(diag, GR_E_INVALID,
                       "%s: tensor \"%s\" has the shape %s, the job's model needs %s: it belongs "
                       "to another model",
                       path, tensor->name, has, wants);
    }
    if (strcmp(entry->dtype, "F32") != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: tensor \"%s\" is of type %s, only F32 can be used: convert it", path,
                       tensor->name, entry->dtype);
    }
    return GR_OK;
}

static gr_status check_extra(const gr_model *model, const gr_safetensors *file, const char *path,
                             gr_diag *diag)
{
    for (int i = 0; i < gr_safetensors_count(file); i++) {
        const char *name = gr_safetensors_at(file, i)->name;
        bool known = false;
        for (int t = 0; t < gr_model_tensors(model) && !known; t++) {
            known = strcmp(gr_model_tensor(model, t)->name, name) == 0;
        }
        if (!known) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s has a tensor \"%s\" that the job's model does not have: it belongs "
                           "to another model",
                           path, name);
        }
    }
    return GR_OK;
}

gr_status gr_weights_fill(const gr_model *model, const gr_safetensors *file, const char *path,
                          float *values, gr_diag *diag)
{
    memset(values, 0, gr_model_values(model) * sizeof *values);
    for (int t = 0; t < gr_model_tensors(model); t++) {
        const gr_tensor_info *tensor = gr_model_tensor(model, t);
        const gr_safetensors_entry *entry = gr_safetensors_find(file, tensor->name);
        gr_status status = check_entry(tensor, entry, path, diag);
        if (status != GR_OK) {
            return status;
        }
        memcpy(values + tensor->offset, entry->data, entry->bytes);
    }
    return check_extra(model, file, path, diag);
}

gr_status gr_weights_load(const gr_model *model, const char *path, float *values,
                          char sha256_out[65], gr_diag *diag)
{
    gr_safetensors *file = NULL;
    gr_status status = gr_safetensors_open(path, &file, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_weights_fill(model, file, path, values, diag);
    gr_safetensors_close(file);
    if (status != GR_OK) {
        return status;
    }
    gr_safetensors_part *parts = gr_weights_parts(model, values);
    if (parts == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to read %s", path);
    }
    status = gr_safetensors_sha256(parts, gr_model_tensors(model), sha256_out, diag);
    free(parts);
    return status;
}

/* " 2, 5" and so on; cut short with "..." where there are too many for a sentence. */
static void list_differing(const int64_t *hashes, int world_size, char *text_out, size_t size_bytes)
{
    size_t used = 0;
    text_out[0] = '\0';
    for (int rank = 1; rank < world_size; rank++) {
        if (hashes[rank] == hashes[0]) {
            continue;
        }
        if (used + 24 > size_bytes) {
            snprintf(text_out + used, size_bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text_out + used, size_bytes - used, "%s%d", used > 0 ? ", " : "",
                                 rank);
    }
}

gr_status gr_weights_agree(const gr_model *model, const float *values, gr_comm *comm, gr_diag *diag)
{
    int world_size = gr_comm_size(comm);
    if (world_size == 1) {
        return GR_OK;
    }
    uint64_t hash = 0;
    for (int t = 0; t < gr_model_tensors(model); t++) {
        const gr_tensor_info *tensor = gr_model_tensor(model, t);
        hash = gr_hash64(values + tensor->offset, tensor->count * sizeof *values, hash);
    }
    int64_t *hashes = calloc((size_t)world_size, sizeof *hashes);
    if (hashes == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to compare the ranks' weights");
    }
    memcpy(&hashes[gr_comm_rank(comm)], &hash, sizeof hash);
    gr_status status = gr_allgather(comm, hashes, 1, GR_I64);
    if (status != GR_OK) {
        const gr_diag *cause = gr_comm_diag(comm);
        free(hashes);
        return gr_fail(diag, status, "the ranks' weights could not be compared: %s",
                       cause->status != GR_OK ? cause->text : gr_status_text(status));
    }
    char differing[160];
    list_differing(hashes, world_size, differing, sizeof differing);
    free(hashes);
    if (differing[0] != '\0') {
        return gr_fail(diag, GR_E_BUG,
                       "the weights of rank %s differ from those of rank 0 at the end of training: "
                       "the result is worthless; this is a defect of Gradus or of a machine",
                       differing);
    }
    return GR_OK;
}
