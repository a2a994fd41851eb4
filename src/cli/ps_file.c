/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/ps_file.h"

#include "base/fail.h"
#include "train/safetensors.h"
#include "train/updater.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = -1, NAME_BYTES = 2 * GR_PS_NAME_BYTES };

static gr_status failed(const gr_ps *ps, gr_status status, gr_diag *diag)
{
    *diag = *gr_ps_last_error(ps);
    return status;
}

/* "w", "momentum.w", "rows.w": whatever goes by this prefix. */
static void write_name(const char *prefix, const char *tensor, char name_out[NAME_BYTES])
{
    snprintf(name_out, NAME_BYTES, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", tensor);
}

static void vector_name(const gr_ps_spec *tensor, int state, char name_out[NAME_BYTES])
{
    char number[32];
    const char *prefix = state == VALUES ? "" : gr_updater_state_name(tensor->optimizer, state);
    snprintf(number, sizeof number, "state%d", state);
    write_name(prefix != NULL ? prefix : number, tensor->name, name_out);
}

/* ---- Export ---------------------------------------------------------------------------------- */

typedef struct saved {
    gr_safetensors_part *parts;
    int count, room;
} saved;

/* One more part, which has the memory from now on; it is freed if there is no room. */
static gr_status add_part(saved *to, const char *name, float *values, int64_t *integers,
                          uint64_t rows, uint32_t columns, gr_diag *diag)
{
    if (to->count == to->room) {
        int room = to->room > 0 ? 2 * to->room : 64;
        gr_safetensors_part *parts = realloc(to->parts, (size_t)room * sizeof *parts);
        if (parts == NULL) {
            goto no_memory;
        }
        to->parts = parts;
        to->room = room;
    }
    char *copy = strdup(name);
    if (copy == NULL || (values == NULL && integers == NULL)) {
        free(copy);
        goto no_memory;
    }
    to->parts[to->count++] = (gr_safetensors_part){.name = copy,
                                                   .values = values,
                                                   .integers = integers,
                                                   .dims = columns > 0 ? 2 : 1,
                                                   .dim = {(int64_t)rows, (int64_t)columns}};
    return GR_OK;

no_memory:
    free(values);
    free(integers);
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for tensor \"%s\"", name);
}

static gr_status add_version(saved *to, const gr_ps_spec *tensor, uint64_t version, gr_diag *diag)
{
    char name[NAME_BYTES];
    int64_t *number = malloc(sizeof *number);
    if (number != NULL) {
        *number = (int64_t)version;
    }
    write_name("version", tensor->name, name);
    return add_part(to, name, NULL, number, 1, 0, diag);
}

static gr_status conclude(gr_ps *ps, const char *name, gr_status status, gr_diag *diag)
{
    return status == GR_E_TIMEOUT
               ? gr_fail(diag, status,
                         "the values of tensor \"%s\" have not come in time: perhaps it has none "
                         "yet; allow more time by --wait",
                         name)
           : status == GR_OK ? GR_OK
                             : failed(ps, status, diag);
}

/* One vector of a tensor that is no table. */
static gr_status save_vector(gr_ps *ps, int id, const gr_ps_spec *tensor, int state,
                             int64_t wait_us, saved *to, uint64_t *version_out, gr_diag *diag)
{
    char name[NAME_BYTES];
    gr_ps_op *op;
    vector_name(tensor, state, name);
    float *values = malloc((size_t)tensor->elements * sizeof *values);
    gr_status status = add_part(to, name, values, NULL, tensor->elements, 0, diag);
    if (status != GR_OK) {
        return status;
    }
    status = state == VALUES ? gr_ps_pull_start(ps, id, 0, values, &op)
                             : gr_ps_pull_state_start(ps, id, state, 0, values, &op);
    status = status == GR_OK ? gr_ps_wait(op, wait_us, version_out) : status;
    return conclude(ps, name, status, diag);
}

static gr_status save_tensor(gr_ps *ps, int id, const gr_ps_entry *entry, bool states,
                             int64_t wait_us, saved *to, gr_diag *diag)
{
    uint64_t version = 0, of_states = 0;
    gr_status status = save_vector(ps, id, &entry->tensor, VALUES, wait_us, to, &version, diag);
    for (int state = 0; states && status == GR_OK && state < entry->states; state++) {
        status = save_vector(ps, id, &entry->tensor, state, wait_us, to, &of_states, diag);
    }
    return status == GR_OK && states ? add_version(to, &entry->tensor, version, diag) : status;
}

/* The rows of a table, with as many vectors as are wanted. */
typedef struct rows {
    size_t count, room, columns;
    uint32_t *numbers;
    float *vector[1 + GR_PS_STATES_MAX];
    int vectors;
    uint64_t version;
} rows;

static void rows_free(rows *r)
{
    free(r->numbers);
    for (int i = 0; i < r->vectors; i++) {
        free(r->vector[i]);
    }
}

/* Room for more; false: no memory. */
static bool rows_grow(rows *r)
{
    size_t room = r->room > 0 ? 2 * r->room : 4096;
    uint32_t *numbers = realloc(r->numbers, room * sizeof *numbers);
    r->numbers = numbers != NULL ? numbers : r->numbers;
    bool can = numbers != NULL;
    for (int i = 0; can && i < r->vectors; i++) {
        float *vector = realloc(r->vector[i], room * r->columns * sizeof *vector);
        r->vector[i] = vector != NULL ? vector : r->vector[i];
        can = vector != NULL;
    }
    r->room = can ? room : r->room;
    return can;
}

/* All rows that exist; GR_E_AGAIN: a server was lost meanwhile. */
static gr_status scan(gr_ps *ps, int id, rows *r, const char *name, gr_diag *diag)
{
    gr_ps_scan some = {.state_count = r->vectors - 1};
    r->count = 0;
    r->version = UINT64_MAX;
    do {
        if (r->count == r->room && !rows_grow(r)) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the rows of table \"%s\"", name);
        }
        float *states[GR_PS_STATES_MAX] = {NULL};
        for (int i = 1; i < r->vectors; i++) {
            states[i - 1] = r->vector[i] + r->count * r->columns;
        }
        some.room = r->room - r->count;
        some.rows = r->numbers + r->count;
        some.values = r->vector[0] + r->count * r->columns;
        some.states = states;
        gr_status status = gr_ps_scan_rows(ps, id, &some);
        if (status != GR_OK) {
            return failed(ps, status, diag);
        }
        r->count += some.count;
        r->version = some.version_least < r->version ? some.version_least : r->version;
    } while (some.count > 0);
    return GR_OK;
}

static int by_row(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The rows in ascending order become parts. */
static gr_status add_rows(saved *to, const rows *r, const gr_ps_spec *table, gr_diag *diag)
{
    char name[NAME_BYTES];
    uint64_t *order = malloc((r->count + 1) * sizeof *order); /* number and place */
    int64_t *numbers = malloc((r->count + 1) * sizeof *numbers);
    for (size_t i = 0; order != NULL && i < r->count; i++) {
        order[i] = (uint64_t)r->numbers[i] << 32 | i;
    }
    if (order != NULL) {
        qsort(order, r->count, sizeof *order, by_row);
    }
    for (size_t i = 0; order != NULL && numbers != NULL && i < r->count; i++) {
        numbers[i] = (int64_t)(order[i] >> 32);
    }
    write_name("rows", table->name, name);
    gr_status status =
        order != NULL ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for table \"%s\"", name);
    if (status == GR_OK) {
        status = add_part(to, name, NULL, numbers, r->count, 0, diag);
    } else {
        free(numbers);
    }
    for (int v = 0; status == GR_OK && v < r->vectors; v++) {
        float *sorted = malloc((r->count * r->columns + 1) * sizeof *sorted);
        for (size_t i = 0; sorted != NULL && i < r->count; i++) {
            memcpy(sorted + i * r->columns, r->vector[v] + (uint32_t)order[i] * r->columns,
                   r->columns * sizeof *sorted);
        }
        vector_name(table, v - 1, name);
        status = add_part(to, name, sorted, NULL, r->count, table->columns, diag);
    }
    free(order);
    return status;
}

static gr_status save_table(gr_ps *ps, int id, const gr_ps_entry *entry, bool states,
                            int64_t wait_us, saved *to, gr_diag *diag)
{
    const gr_ps_spec *table = &entry->tensor;
    rows r = {.columns = table->columns, .vectors = 1 + (states ? entry->states : 0)};
    gr_ps_op *op;
    float none;
    /* Of no rows: it has no values only while somebody restores it. */
    gr_status status = gr_ps_pull_rows_start(ps, id, 0, NULL, 0, &none, &op);
    status = status == GR_OK ? gr_ps_wait(op, wait_us, NULL) : status;
    status = conclude(ps, table->name, status, diag);
    if (status == GR_OK) {
        do {
            status = scan(ps, id, &r, table->name, diag);
        } while (status == GR_E_AGAIN); /* servers are lost only so often */
    }
    if (status == GR_OK) {
        status = add_rows(to, &r, table, diag);
    }
    if (status == GR_OK && states) {
        status = add_version(to, table, r.version, diag);
    }
    rows_free(&r);
    return status;
}

gr_status gr_ps_file_export(gr_ps *ps, const char *path, bool states, int64_t wait_us,
                            gr_diag *diag)
{
    saved all = {0};
    gr_ps_entry entry;
    gr_status status = GR_OK;
    for (uint32_t i = 0; status == GR_OK; i++) {
        int id;
        status = gr_ps_list(ps, i, &entry);
        if (status == GR_E_NOT_FOUND) {
            status = gr_safetensors_write(path, all.parts, all.count, diag);
            break;
        }
        status = status == GR_OK ? gr_ps_declare(ps, &entry.tensor, &id) : status;
        if (status != GR_OK) {
            status = failed(ps, status, diag);
        } else if (entry.tensor.columns > 0) {
            status = save_table(ps, id, &entry, states, wait_us, &all, diag);
        } else {
            status = save_tensor(ps, id, &entry, states, wait_us, &all, diag);
        }
    }
    for (int i = 0; i < all.count; i++) {
        free((void *)(uintptr_t)all.parts[i].name);
        free((void *)(uintptr_t)all.parts[i].values);
        free((void *)(uintptr_t)all.parts[i].integers);
    }
    free(all.parts);
    return status;
}

/* ---- Import ---------------------------------------------------------------------------------- */

/* One tensor as the file has it; heap. */
typedef struct loaded {
    int id;
    uint64_t version, count; /* rows of a table; else elements */
    uint32_t *numbers;       /* of a table */
    float *vector[1 + GR_PS_STATES_MAX];
    int states;
} loaded;

typedef struct imported {
    const char *path;
    gr_safetensors *file;
    loaded *tensors;
    uint32_t count, room;
    int used; /* parts of the file */
} imported;

static gr_status find_part(imported *in, const char *name, const char *dtype,
                           const gr_safetensors_entry **part_out, gr_diag *diag)
{
    const gr_safetensors_entry *part = gr_safetensors_find(in->file, name);
    if (part == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s has no \"%s\", which the servers' tensors need: is it of other tensors, "
                       "or written without --states?",
                       in->path, name);
    }
    if (strcmp(part->dtype, dtype) != 0) {
        return gr_fail(diag, GR_E_INVALID, "%s: \"%s\" has values of type %s, in place of %s",
                       in->path, name, part->dtype, dtype);
    }
    in->used++;
    *part_out = part;
    return GR_OK;
}

static gr_status load_integers(imported *in, const char *prefix, const gr_ps_spec *tensor,
                               uint64_t below, uint64_t *count_out, int64_t **out, gr_diag *diag)
{
    char name[NAME_BYTES];
    const gr_safetensors_entry *part = NULL;
    write_name(prefix, tensor->name, name);
    gr_status status = find_part(in, name, "I64", &part, diag);
    if (status != GR_OK) {
        return status;
    }
    int64_t *values = malloc(part->bytes + 1);
    if (values == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for \"%s\"", name);
    }
    memcpy(values, part->data, part->bytes);
    for (size_t i = 0; i < part->count; i++) {
        if (values[i] < 0 || (uint64_t)values[i] >= below) {
            status = gr_fail(diag, GR_E_INVALID, "%s: \"%s\" has %" PRId64 ", which cannot be",
                             in->path, name, values[i]);
            free(values);
            return status;
        }
    }
    *count_out = part->count;
    *out = values;
    return GR_OK;
}

/* The numbers of a table's rows, ascending. */
static gr_status load_numbers(imported *in, const gr_ps_spec *table, loaded *to, gr_diag *diag)
{
    int64_t *wide = NULL;
    gr_status status =
        load_integers(in, "rows", table, table->elements / table->columns, &to->count, &wide, diag);
    if (status != GR_OK) {
        return status;
    }
    to->numbers = malloc((to->count + 1) * sizeof *to->numbers);
    if (to->numbers == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for table \"%s\"", table->name);
    }
    for (uint64_t i = 0; status == GR_OK && i < to->count; i++) {
        to->numbers[i] = (uint32_t)wide[i];
        if (i > 0 && wide[i] <= wide[i - 1]) {
            status = gr_fail(diag, GR_E_INVALID,
                             "%s: row %" PRId64 " of table \"%s\" does not come behind row "
                             "%" PRId64 ": rows are there once, in ascending order",
                             in->path, wide[i], table->name, wide[i - 1]);
        }
    }
    free(wide);
    return status;
}

static gr_status load_vector(imported *in, const gr_ps_spec *tensor, int state, loaded *to,
                             gr_diag *diag)
{
    char name[NAME_BYTES];
    const gr_safetensors_entry *part = NULL;
    vector_name(tensor, state, name);
    gr_status status = find_part(in, name, "F32", &part, diag);
    uint64_t width = tensor->columns > 0 ? tensor->columns : 1;
    if (status == GR_OK && part->count != to->count * width) {
        status = gr_fail(diag, GR_E_INVALID, "%s: \"%s\" has %zu values, in place of %" PRIu64,
                         in->path, name, part->count, to->count * width);
    }
    if (status != GR_OK) {
        return status;
    }
    float *values = malloc(part->bytes + 1);
    if (values == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for \"%s\"", name);
    }
    memcpy(values, part->data, part->bytes);
    to->vector[1 + state] = values;
    return GR_OK;
}

static gr_status load_tensor(imported *in, gr_ps *ps, const gr_ps_entry *entry, gr_diag *diag)
{
    const gr_ps_spec *tensor = &entry->tensor;
    if (in->count == in->room) {
        uint32_t room = in->room > 0 ? 2 * in->room : 64;
        loaded *tensors = realloc(in->tensors, room * sizeof *tensors);
        if (tensors == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %u tensors", room);
        }
        in->tensors = tensors;
        in->room = room;
    }
    loaded *to = &in->tensors[in->count++];
    *to = (loaded){.count = tensor->elements, .states = entry->states};
    if (entry->version_most > 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "tensor \"%s\" has had %" PRIu64 " updates: only new servers can go on from "
                       "a file",
                       tensor->name, entry->version_most);
    }
    uint64_t one = 0;
    int64_t *version = NULL;
    gr_status status = load_integers(in, "version", tensor, INT64_MAX, &one, &version, diag);
    if (status == GR_OK) {
        to->version = one > 0 ? (uint64_t)version[0] : 0;
        free(version);
    }
    if (status == GR_OK && one != 1) {
        status = gr_fail(diag, GR_E_INVALID, "%s: \"version.%s\" must be one number", in->path,
                         tensor->name);
    }
    if (status == GR_OK && tensor->columns > 0) {
        status = load_numbers(in, tensor, to, diag);
    }
    for (int state = VALUES; status == GR_OK && state < entry->states; state++) {
        status = load_vector(in, tensor, state, to, diag);
    }
    if (status == GR_OK) {
        status = gr_ps_declare(ps, tensor, &to->id);
        status = status == GR_OK ? GR_OK : failed(ps, status, diag);
    }
    return status;
}

/* All that the servers have declared. */
static gr_status load_all(imported *in, gr_ps *ps, gr_diag *diag)
{
    gr_ps_entry entry;
    gr_status status = gr_safetensors_open(in->path, &in->file, diag);
    for (uint32_t i = 0; status == GR_OK; i++) {
        status = gr_ps_list(ps, i, &entry);
        if (status == GR_E_NOT_FOUND) {
            status = GR_OK;
            break;
        }
        status = status == GR_OK ? load_tensor(in, ps, &entry, diag) : failed(ps, status, diag);
    }
    if (status == GR_OK && in->used != gr_safetensors_count(in->file)) {
        status = gr_fail(diag, GR_E_INVALID,
                         "%s has %d vectors, of which the servers' tensors need %d: start what "
                         "declares the others first",
                         in->path, gr_safetensors_count(in->file), in->used);
    }
    return status;
}

static gr_status restore(gr_ps *ps, const loaded *from, gr_diag *diag)
{
    const float *const *states = (const float *const *)&from->vector[1];
    gr_status status =
        from->numbers != NULL
            ? gr_ps_restore_rows(ps, from->id, from->version, from->numbers, from->count,
                                 from->vector[0], states, from->states)
            : gr_ps_restore(ps, from->id, from->version, from->vector[0], states, from->states);
    return status == GR_OK ? GR_OK : failed(ps, status, diag);
}

gr_status gr_ps_file_import(gr_ps *ps, const char *path, gr_diag *diag)
{
    imported in = {.path = path};
    gr_status status = load_all(&in, ps, diag);
    for (uint32_t i = 0; status == GR_OK && i < in.count; i++) {
        status = restore(ps, &in.tensors[i], diag);
    }
    for (uint32_t i = 0; i < in.count; i++) {
        free(in.tensors[i].numbers);
        for (int v = 0; v <= GR_PS_STATES_MAX; v++) {
            free(in.tensors[i].vector[v]);
        }
    }
    free(in.tensors);
    gr_safetensors_close(in.file);
    return status;
}
