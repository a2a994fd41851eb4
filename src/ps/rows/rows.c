/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rows/rows.h"

#include "base/fail.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows lie in slabs, in the order in which they came to be; the place of a row is its number in
 * this order. A slab has its rows, each with its values and then its states; behind them the index
 * of each row, and a mark. `map` finds the place of an index: open addressing, at most three
 * quarters full. So beside itself a row takes 8 bytes and, in the map, 5.3 to 10.7. */
enum {
    SLAB_BYTES = 4 << 10, /* of rows, at most, but one row at least: the last slab may be empty */
    LINE = 64,
    MAP_BITS = 6 /* of a new table */
};
#define NONE UINT32_MAX /* no place, no position: there are fewer of both */

/* What a push needs beside the rows: grows to the largest one. */
typedef struct scratch {
    uint32_t *place; /* of each position; NONE: the row stands in the push before */
    uint32_t *next;  /* the next position with the same row; NONE: there is none */
    size_t room;
    float *sum; /* of a row's gradients */
} scratch;

struct gr_ps_rows {
    gr_ps_rows_config config;
    int states;
    size_t row_floats; /* values and states */
    int slab_bits;     /* a slab has 2^slab_bits rows */
    uint32_t count;
    float **slabs;
    size_t slab_count, slab_room;
    uint32_t *map; /* places */
    int map_bits;
    scratch scratch;
    uint64_t bytes;
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t rounded_up(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static void *take(gr_ps_rows *r, uint64_t bytes)
{
    uint64_t size = rounded_up(bytes);
    if (r->config.bytes_max > 0 &&
        (r->bytes > r->config.bytes_max || size > r->config.bytes_max - r->bytes)) {
        return NULL;
    }
    void *memory = aligned_alloc(LINE, size);
    r->bytes += memory != NULL ? size : 0;
    return memory;
}

static void give_back(gr_ps_rows *r, void *memory, uint64_t bytes)
{
    if (memory != NULL) {
        free(memory);
        r->bytes -= rounded_up(bytes);
    }
}

static gr_status no_memory(const gr_ps_rows *r, gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY,
                   "no memory for more rows: %u of %u rows exist in %llu MiB; use more servers, or "
                   "fewer columns",
                   (unsigned)r->count, (unsigned)r->config.rows,
                   (unsigned long long)(r->bytes >> 20));
}

/* ---- Finding rows ---------------------------------------------------------------------------- */

static float *row_at(const gr_ps_rows *r, uint32_t place)
{
    size_t in_slab = place & ((UINT32_C(1) << r->slab_bits) - 1);
    return r->slabs[place >> r->slab_bits] + in_slab * r->row_floats;
}

static uint32_t *index_at(const gr_ps_rows *r, uint32_t place)
{
    float *behind = r->slabs[place >> r->slab_bits] + (r->row_floats << r->slab_bits);
    return (uint32_t *)(void *)behind + (place & ((UINT32_C(1) << r->slab_bits) - 1));
}

/* Of a push that is running: one more than the last position with this row; else 0. */
static uint32_t *mark_at(const gr_ps_rows *r, uint32_t place)
{
    return index_at(r, place) + (UINT32_C(1) << r->slab_bits);
}

static uint64_t map_start(const gr_ps_rows *r, uint32_t index)
{
    return (index * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - r->map_bits);
}

/* The place of a row, NONE if it does not exist; *at_out: where in the map it is, or would be. */
static uint32_t find(const gr_ps_rows *r, uint32_t index, uint64_t *at_out)
{
    uint64_t at = map_start(r, index), last = (UINT64_C(1) << r->map_bits) - 1;
    while (r->map[at] != NONE && *index_at(r, r->map[at]) != index) {
        at = (at + 1) & last;
    }
    *at_out = at;
    return r->map[at];
}

static bool make_map(gr_ps_rows *r, int bits)
{
    uint64_t bytes = sizeof(uint32_t) << bits;
    uint32_t *map = take(r, bytes);
    if (map == NULL) {
        return false;
    }
    memset(map, 0xff, bytes);
    give_back(r, r->map, sizeof(uint32_t) << r->map_bits);
    r->map = map;
    r->map_bits = bits;
    for (uint32_t place = 0; place < r->count; place++) {
        uint64_t at = 0;
        (void)find(r, *index_at(r, place), &at);
        r->map[at] = place;
    }
    return true;
}

/* ---- Making rows ----------------------------------------------------------------------------- */

static void first_values(const gr_ps_rows *r, uint32_t index, float *values)
{
    const gr_ps_rows_config *c = &r->config;
    if (!(c->deviation > 0.0f)) {
        memset(values, 0, c->columns * sizeof *values);
        return;
    }
    gr_philox_normal(c->seed, index, 0, values, c->columns);
    for (uint32_t i = 0; i < c->columns; i++) {
        values[i] *= c->deviation;
    }
}

static bool more_slabs(gr_ps_rows *r)
{
    if (r->slab_count == r->slab_room) {
        size_t room = r->slab_room > 0 ? 2 * r->slab_room : LINE / sizeof(float *);
        float **slabs = take(r, room * sizeof *slabs);
        if (slabs == NULL) {
            return false;
        }
        if (r->slab_count > 0) {
            memcpy(slabs, r->slabs, r->slab_count * sizeof *slabs);
        }
        give_back(r, r->slabs, r->slab_room * sizeof *slabs);
        r->slabs = slabs;
        r->slab_room = room;
    }
    float *made = take(r, (r->row_floats * sizeof *made + 2 * sizeof(uint32_t)) << r->slab_bits);
    if (made == NULL) {
        return false;
    }
    r->slabs[r->slab_count++] = made;
    return true;
}

/* The place of a row, which exists then; NONE: no memory. */
static uint32_t find_or_make(gr_ps_rows *r, uint32_t index)
{
    uint64_t at = 0;
    uint32_t place = find(r, index, &at);
    if (place != NONE) {
        return place;
    }
    if (((uint64_t)r->count + 1) * 4 > (UINT64_C(3) << r->map_bits)) {
        if (!make_map(r, r->map_bits + 1)) {
            return NONE;
        }
        (void)find(r, index, &at);
    }
    if (r->count >> r->slab_bits == r->slab_count && !more_slabs(r)) {
        return NONE;
    }
    place = r->count++;
    r->map[at] = place;
    *index_at(r, place) = index;
    *mark_at(r, place) = 0;
    float *row = row_at(r, place);
    first_values(r, index, row);
    memset(row + r->config.columns, 0, (r->row_floats - r->config.columns) * sizeof *row);
    return place;
}

/* ---- The life of a table --------------------------------------------------------------------- */

gr_status gr_ps_rows_create(const gr_ps_rows_config *config, gr_ps_rows **rows_out, gr_diag *diag)
{
    if (config->rows < 1 || config->rows > GR_PS_ROWS_MAX || config->columns < 1 ||
        config->columns > GR_PS_COLUMNS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "a table of %u rows and %u columns cannot be: 1 to %u rows, 1 to %d columns",
                       (unsigned)config->rows, (unsigned)config->columns, (unsigned)GR_PS_ROWS_MAX,
                       GR_PS_COLUMNS_MAX);
    }
    if (!(config->deviation >= 0.0f) || isinf(config->deviation)) {
        return gr_fail(diag, GR_E_INVALID,
                       "rows cannot begin with a deviation of %g: it must be 0 or more",
                       (double)config->deviation);
    }
    int states = config->updaters.states(config->updater);
    GR_CHECK(states >= 0 && states <= GR_PS_STATES_MAX);
    gr_ps_rows *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a table");
    }
    made->config = *config;
    made->states = states;
    made->row_floats = (size_t)config->columns * (size_t)(1 + states);
    while ((made->row_floats * sizeof(float)) << (made->slab_bits + 1) <= SLAB_BYTES) {
        made->slab_bits++;
    }
    made->bytes = sizeof *made;
    made->scratch.sum = take(made, config->columns * sizeof(float));
    if (made->scratch.sum == NULL || !make_map(made, MAP_BITS)) {
        gr_status status = no_memory(made, diag);
        gr_ps_rows_destroy(made);
        return status;
    }
    *rows_out = made;
    return GR_OK;
}

void gr_ps_rows_destroy(gr_ps_rows *rows)
{
    if (rows == NULL) {
        return;
    }
    for (size_t i = 0; i < rows->slab_count; i++) {
        free(rows->slabs[i]);
    }
    free(rows->slabs);
    free(rows->map);
    free(rows->scratch.place);
    free(rows->scratch.next);
    free(rows->scratch.sum);
    free(rows);
}

/* ---- Pull and push --------------------------------------------------------------------------- */

static gr_status check_indices(const gr_ps_rows *r, const uint32_t *indices, size_t count,
                               gr_diag *diag)
{
    for (size_t i = 0; i < count; i++) {
        if (indices[i] >= r->config.rows) {
            return gr_fail(diag, GR_E_INVALID, "there is no row %u: the table has %u rows",
                           (unsigned)indices[i], (unsigned)r->config.rows);
        }
    }
    return GR_OK;
}

gr_status gr_ps_rows_pull(const gr_ps_rows *rows, const uint32_t *indices, size_t count,
                          float *values_out, gr_diag *diag)
{
    gr_status status = check_indices(rows, indices, count, diag);
    size_t columns = rows->config.columns;
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        uint64_t at = 0;
        uint32_t place = find(rows, indices[i], &at);
        if (place == NONE) {
            first_values(rows, indices[i], values_out + i * columns);
        } else {
            memcpy(values_out + i * columns, row_at(rows, place), columns * sizeof(float));
        }
    }
    return status;
}

static bool more_scratch(gr_ps_rows *r, size_t count)
{
    scratch *s = &r->scratch;
    if (count <= s->room) {
        return true;
    }
    uint32_t *place = take(r, count * sizeof *place), *next = take(r, count * sizeof *next);
    if (place == NULL || next == NULL) {
        give_back(r, place, count * sizeof *place);
        give_back(r, next, count * sizeof *next);
        return false;
    }
    give_back(r, s->place, s->room * sizeof *place);
    give_back(r, s->next, s->room * sizeof *next);
    s->place = place;
    s->next = next;
    s->room = count;
    return true;
}

/* Chains the positions of each row; the first of a chain keeps the place. */
static void chain(gr_ps_rows *r, size_t count)
{
    scratch *s = &r->scratch;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *mark = mark_at(r, s->place[i]);
        s->next[i] = NONE;
        if (*mark > 0) {
            s->next[*mark - 1] = i;
            s->place[i] = NONE;
        }
        *mark = i + 1;
    }
}

/* The sum of a row's gradients: the one where it lies, or several added up in `sum`. */
static const float *sum_of(const gr_ps_rows *r, uint32_t first, const float *gradients)
{
    size_t columns = r->config.columns;
    const float *one = gradients + first * columns;
    if (r->scratch.next[first] == NONE) {
        return one;
    }
    float *sum = r->scratch.sum;
    memcpy(sum, one, columns * sizeof *sum);
    for (uint32_t i = r->scratch.next[first]; i != NONE; i = r->scratch.next[i]) {
        const float *more = gradients + i * columns;
        for (size_t c = 0; c < columns; c++) {
            sum[c] += more[c];
        }
    }
    return sum;
}

gr_status gr_ps_rows_push(gr_ps_rows *rows, uint64_t step, double rate, float factor,
                          const uint32_t *indices, size_t count, const float *gradients,
                          bool *finite_out, gr_diag *diag)
{
    if (count > GR_PS_ROWS_OF_A_PUSH) {
        return gr_fail(diag, GR_E_INVALID, "a push of %zu rows is too large: at most %d", count,
                       GR_PS_ROWS_OF_A_PUSH);
    }
    gr_status status = check_indices(rows, indices, count, diag);
    if (status == GR_OK && !more_scratch(rows, count)) {
        status = no_memory(rows, diag);
    }
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        rows->scratch.place[i] = find_or_make(rows, indices[i]);
        if (rows->scratch.place[i] == NONE) {
            status = no_memory(rows, diag);
        }
    }
    if (status != GR_OK) {
        return status;
    }
    chain(rows, count);
    const gr_ps_updater_ops *ops = &rows->config.updaters;
    size_t columns = rows->config.columns;
    bool finite = true;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place = rows->scratch.place[i];
        if (place == NONE) {
            continue;
        }
        *mark_at(rows, place) = 0;
        float *row = row_at(rows, place), *states[GR_PS_STATES_MAX] = {NULL};
        for (int s = 0; s < rows->states; s++) {
            states[s] = row + (size_t)(1 + s) * columns;
        }
        finite &= ops->update(rows->config.updater, step, rate, factor, row, states,
                              sum_of(rows, i, gradients), columns);
    }
    *finite_out = finite;
    return GR_OK;
}

/* ---- Whole rows ------------------------------------------------------------------------------ */

bool gr_ps_rows_get(const gr_ps_rows *rows, uint64_t at, gr_ps_row *row_out)
{
    if (at >= rows->count) {
        return false;
    }
    const float *row = row_at(rows, (uint32_t)at);
    *row_out = (gr_ps_row){.index = *index_at(rows, (uint32_t)at), .values = row};
    for (int s = 0; s < rows->states; s++) {
        row_out->state[s] = row + (size_t)(1 + s) * rows->config.columns;
    }
    return true;
}

gr_status gr_ps_rows_put(gr_ps_rows *rows, const gr_ps_row *row, gr_diag *diag)
{
    gr_status status = check_indices(rows, &row->index, 1, diag);
    if (status != GR_OK) {
        return status;
    }
    uint32_t place = find_or_make(rows, row->index);
    if (place == NONE) {
        return no_memory(rows, diag);
    }
    size_t columns = rows->config.columns;
    float *to = row_at(rows, place);
    memcpy(to, row->values, columns * sizeof *to);
    for (int s = 0; s < rows->states; s++) {
        memcpy(to + (size_t)(1 + s) * columns, row->state[s], columns * sizeof *to);
    }
    return GR_OK;
}

void gr_ps_rows_limit(gr_ps_rows *rows, uint64_t bytes_max)
{
    rows->config.bytes_max = bytes_max;
}

uint64_t gr_ps_rows_bytes(const gr_ps_rows *rows)
{
    return rows->bytes;
}

uint64_t gr_ps_rows_count(const gr_ps_rows *rows)
{
    return rows->count;
}
