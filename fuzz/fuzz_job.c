/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a job file: the document, all its parts, and the model, without opening data. */

#include "doc/config_node.h"
#include "train/job/job.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A refusal must say why, and where: "job.yaml:3: ...". */
static bool refused(gr_status status, const gr_diag *diag)
{
    if (status != GR_OK && status != GR_E_NO_MEMORY && strncmp(diag->text, "job.yaml", 8) != 0) {
        abort();
    }
    return status != GR_OK;
}

static bool read_part(const gr_config_table *table, const gr_node *map, void *config,
                      gr_arena *arena)
{
    gr_diag diag;
    memset(&diag, 0, sizeof diag);
    if (gr_config_defaults(table, config, arena, &diag) != GR_OK) {
        abort();
    }
    return !refused(gr_config_from_node(table, config, map, arena, &diag), &diag);
}

static void read_model(const gr_node *list, gr_arena *arena)
{
    static const gr_shape inputs[] = {{.dims = 3, .dim = {1, 8, 8}}, {.dims = 1, .dim = {64}}};
    for (size_t i = 0; i < 2 && list != NULL; i++) {
        gr_model_spec *spec = NULL;
        gr_diag diag;
        memset(&diag, 0, sizeof diag);
        if (refused(gr_model_spec_read(list, &inputs[i], arena, &spec, &diag), &diag)) {
            continue;
        }
        int count = gr_model_spec_layers(spec);
        for (int k = 0; k < count; k++) {
            const gr_layer_info *layer = gr_model_spec_layer(spec, k);
            if (gr_shape_count(&layer->output) < 1 || layer->parameters < 0) {
                abort();
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gr_doc *doc = NULL;
    gr_diag diag;
    memset(&diag, 0, sizeof diag);
    if (refused(gr_doc_parse_yaml("job.yaml", (const char *)data, size, &doc, &diag), &diag)) {
        return 0;
    }
    gr_arena arena;
    gr_arena_init(&arena, (size_t)64 << 20);
    gr_job_config top;
    if (read_part(&gr_job_config_table, gr_doc_root(doc), &top, &arena)) {
        gr_data_config data_part;
        gr_optimizer_config optimizer;
        gr_distribution_config distribution;
        (void)read_part(&gr_data_config_table, top.data, &data_part, &arena);
        (void)read_part(&gr_optimizer_config_table, top.optimizer, &optimizer, &arena);
        (void)read_part(&gr_distribution_config_table, top.distribution, &distribution, &arena);
        read_model(top.model, &arena);
    }
    gr_arena_fini(&arena);
    gr_doc_destroy(doc);
    return 0;
}
