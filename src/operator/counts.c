/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/counts.h"

#include "operator/object.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *type;
    gr_job_count what;
} counted[] = {{"Created", GR_JOBS_CREATED},
               {"Succeeded", GR_JOBS_SUCCESSFUL},
               {"Failed", GR_JOBS_FAILED},
               {"Restarting", GR_JOBS_RESTARTED}};
enum { COUNTED = sizeof counted / sizeof counted[0] };

void gr_counts_fini(gr_counts *counts)
{
    for (size_t i = 0; i < counts->count; i++) {
        free(counts->rows[i].space);
    }
    free(counts->rows);
    *counts = (gr_counts){0};
}

gr_status gr_counts_add(gr_counts *counts, const gr_operator_kind *kind, const char *space,
                        gr_job_count what)
{
    size_t i = 0;
    int order = -1;
    while (i < counts->count && (order = strcmp(counts->rows[i].space, space)) < 0) {
        i++;
    }
    while (i < counts->count && order == 0 && counts->rows[i].kind != kind) {
        i++;
        order = i < counts->count ? strcmp(counts->rows[i].space, space) : 1;
    }
    if (i == counts->count || order != 0) {
        gr_controller_counts *rows =
            realloc(counts->rows, (counts->count + 1) * sizeof *counts->rows);
        char *copy = strdup(space);
        counts->rows = rows != NULL ? rows : counts->rows;
        if (rows == NULL || copy == NULL) {
            free(copy);
            return GR_E_NO_MEMORY;
        }
        memmove(&rows[i + 1], &rows[i], (counts->count - i) * sizeof *rows);
        rows[i] = (gr_controller_counts){.kind = kind, .space = copy};
        counts->count++;
    }
    counts->rows[i].counts[what]++;
    return GR_OK;
}

unsigned gr_counts_held(const json_t *job)
{
    const json_t *conditions = gr_object_at(job, "status.conditions");
    unsigned held = 0;
    for (unsigned i = 0; i < COUNTED; i++) {
        held |= gr_object_holds(conditions, counted[i].type) ? 1U << i : 0;
    }
    return held;
}

gr_status gr_counts_add_held(gr_counts *counts, const gr_operator_kind *kind, const char *space,
                             unsigned held)
{
    gr_status status = GR_OK;
    for (unsigned i = 0; i < COUNTED && status == GR_OK; i++) {
        if ((held & 1U << i) != 0) {
            status = gr_counts_add(counts, kind, space, counted[i].what);
        }
    }
    return status;
}
