/* SPDX-License-Identifier: Apache-2.0 */
#include "train/updater.h"

#include "base/config_text.h"
#include "base/fail.h"
#include "doc/config_node.h"
#include "doc/doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES_MAX = 64 << 10 };

typedef struct updater {
    bool sums; /* values are the gradient itself */
    gr_optimizer_config config;
} updater;

static bool is_sum(const char *text)
{
    return strcmp(text, GR_UPDATER_SUM) == 0;
}

static gr_status read_config(const char *name, const char *text, gr_optimizer_config *config,
                             gr_diag *diag)
{
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_doc *doc = NULL;
    const gr_config_table *table = &gr_optimizer_config_table;
    gr_status status = gr_config_defaults(table, config, &arena, diag);
    if (status == GR_OK) {
        status = gr_doc_parse_yaml(name, text, strlen(text), &doc, diag);
    }
    if (status == GR_OK) {
        status = gr_config_from_node(table, config, gr_doc_root(doc), &arena, diag);
    }
    if (status == GR_OK) {
        status = gr_optimizer_settle(config, gr_doc_root(doc), &arena, diag);
    }
    gr_doc_destroy(doc);
    gr_arena_fini(&arena); /* the config holds no text */
    if (status == GR_OK && config->clip_norm > 0.0) {
        status = gr_fail(diag, GR_E_INVALID,
                         "%s: clip_norm needs the norm of the whole gradient, of which a server "
                         "sees its blocks only: leave it out, and clip before the push; or say "
                         "\"" GR_UPDATER_SUM "\" in place of all, pull the sums and run the "
                         "optimizer on them",
                         name);
    }
    return status;
}

static gr_status updater_create(void *arg, const gr_ps_spec *tensor, void **updater_out,
                                gr_diag *diag)
{
    (void)arg;
    char name[GR_PS_NAME_BYTES + 32];
    snprintf(name, sizeof name, "optimizer of %s", tensor->name);
    const char *text = tensor->optimizer != NULL ? tensor->optimizer : "";
    updater *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the %s", name);
    }
    made->sums = is_sum(text);
    gr_status status = made->sums ? GR_OK : read_config(name, text, &made->config, diag);
    if (status != GR_OK) {
        free(made);
        return status;
    }
    *updater_out = made;
    return GR_OK;
}

static void updater_destroy(void *arg)
{
    free(arg);
}

static int updater_states(void *arg)
{
    const updater *u = arg;
    return u->sums ? 0 : gr_optimizer_states(&u->config);
}

static bool updater_update(void *arg, uint64_t step, double rate, float factor, float *values,
                           float *const *states, const float *gradient, size_t count)
{
    const updater *u = arg;
    gr_optimizer_step now;
    if (u->sums) {
        for (size_t i = 0; i < count; i++) {
            values[i] = gradient[i] * factor;
        }
        return !gr_any_not_finite(gradient, count);
    }
    gr_optimizer_step_init(&now, &u->config, step, rate, factor, true);
    return gr_optimizer_apply(&now, values, states, gradient, count);
}

gr_ps_updater_ops gr_updater_ops(void)
{
    return (gr_ps_updater_ops){.create = updater_create,
                               .destroy = updater_destroy,
                               .states = updater_states,
                               .update = updater_update};
}

const char *gr_updater_state_name(const char *text, int index)
{
    gr_optimizer_config config;
    gr_diag diag = {0};
    return !is_sum(text) && read_config("optimizer", text, &config, &diag) == GR_OK && index >= 0 &&
                   index < gr_optimizer_states(&config)
               ? gr_optimizer_state_name(&config, index)
               : NULL;
}

/* ---- The text -------------------------------------------------------------------------------- */

void gr_updater_text(const gr_optimizer_config *config, bool decay,
                     char text_out[GR_UPDATER_TEXT_BYTES])
{
    gr_optimizer_config said = *config;
    said.weight_decay = decay ? config->weight_decay : 0.0;
    size_t used = 0;
    const gr_config_field *field = NULL;
    while ((field = gr_config_next(&gr_optimizer_config_table, field)) != NULL) {
        if (!gr_optimizer_is_rule(config, field)) {
            continue;
        }
        char number[GR_CONFIG_VALUE_BYTES];
        const char *value = gr_config_text(field, &said, number);
        int wrote = snprintf(text_out + used, GR_UPDATER_TEXT_BYTES - used, "%s%s: %s",
                             used == 0 ? "{" : ", ", field->key, value);
        GR_CHECK(wrote > 0 && (size_t)wrote + 1 < GR_UPDATER_TEXT_BYTES - used);
        used += (size_t)wrote;
    }
    text_out[used] = '}';
    text_out[used + 1] = '\0';
}
