/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the `model:` part of a job file. */
#include "nn/layer.h"

#include "base/fail.h"
#include "base/text.h"
#include "doc/config_node.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The order of the reference page. `residual` is no kind of its own: it becomes its branch and an
 * add. */
static const gr_layer_ops *const kinds[] = {
    &gr_linear_ops,      &gr_conv2d_ops,  &gr_batch_norm_ops, &gr_relu_ops,     &gr_gelu_ops,
    &gr_sigmoid_ops,     &gr_tanh_ops,    &gr_softmax_ops,    &gr_max_pool_ops, &gr_avg_pool_ops,
    &gr_global_pool_ops, &gr_flatten_ops, &gr_dropout_ops,    &gr_add_ops,
};
enum {
    KIND_COUNT = sizeof kinds / sizeof kinds[0],
    KINDS_MAX = 256,
    SETTINGS_MAX = 16, /* of one kind */
    BRANCH_DEPTH_MAX = 16
};

/* The array above, then gr_extra_layers. NULL behind the last. */
static const gr_layer_ops *kind_at(int index)
{
    return index < KIND_COUNT ? kinds[index] : gr_extra_layers[index - KIND_COUNT];
}

static const char input_name[] = "input"; /* of the model, in `from` */

typedef struct layer_reader {
    gr_model_spec *spec;
    const gr_node **nodes; /* where each layer stands: for messages about names */
    gr_arena *arena;
    gr_diag *diag;
    int last;  /* the layer whose output the next one reads */
    int depth; /* of residual branches */
} layer_reader;

static gr_status read_layers(layer_reader *r, const gr_node *list);

static const gr_shape *shape_after(const layer_reader *r, int index)
{
    return index == GR_MODEL_INPUT ? &r->spec->input : &r->spec->layers[index].info.output;
}

static bool shapes_equal(const gr_shape *a, const gr_shape *b)
{
    bool equal = a->dims == b->dims && a->type == b->type && a->memory == b->memory;
    for (int i = 0; equal && i < a->dims; i++) {
        equal = a->dim[i] == b->dim[i];
    }
    return equal;
}

void gr_layers_print_markdown(FILE *file)
{
    fputs("## model\n\nThe kinds of layers, each with its settings; a setting without a default "
          "must be "
          "given. Every layer takes `name`\nas well, and `residual` is a list of layers: see "
          "[models.md](models.md).\n\n",
          file);
    const gr_layer_ops *ops;
    for (int i = 0; (ops = kind_at(i)) != NULL; i++) {
        char name[80];
        snprintf(name, sizeof name, "layer %s", ops->kind);
        if (ops->settings) {
            gr_config_table table = *ops->settings;
            table.name = name;
            table.title = ops->help;
            gr_config_print_markdown(&table, file);
        } else {
            fprintf(file, "## %s\n\n%s\n\n", name, ops->help);
        }
    }
}

/* The kind, or the sentence that there is none of that name. */
static gr_status find_kind(const gr_node *node, const char *word, const gr_layer_ops **ops_out,
                           gr_diag *diag)
{
    const char *words[KINDS_MAX + 2] = {"residual"};
    const gr_layer_ops *ops;
    for (int i = 0; i < KINDS_MAX && (ops = kind_at(i)) != NULL; i++) {
        if (strcmp(ops->kind, word) == 0) {
            *ops_out = ops;
            return GR_OK;
        }
        words[i] = ops->kind;
        words[i + 1] = "residual";
    }
    const char *nearest = gr_nearest(word, words);
    char list[GR_DIAG_TEXT_BYTES / 2];
    gr_text_list(list, sizeof list, words);
    return gr_node_fail(node, diag, GR_E_INVALID, "there is no layer named '%s'; %s%s%s", word,
                        nearest ? "did you mean '" : "layers are ", nearest ? nearest : list,
                        nearest ? "'?" : "");
}

/* ---- Names ----------------------------------------------------------------------------------- */

static int find_name(const layer_reader *r, const char *name)
{
    for (int i = 0; i < r->spec->count; i++) {
        if (strcmp(r->spec->layers[i].info.name, name) == 0) {
            return i;
        }
    }
    return GR_NO_LAYER;
}

static gr_status given_name(layer_reader *r, const gr_node *node, const char **name_out)
{
    const char *name = NULL;
    gr_status status = gr_node_text(node, &name, r->diag);
    if (status != GR_OK) {
        return status;
    }
    size_t length = strlen(name);
    bool fine = length > 0 && length <= 64;
    for (size_t i = 0; i < length; i++) {
        fine = fine && (isalnum((unsigned char)name[i]) || name[i] == '_' || name[i] == '-');
    }
    if (!fine) {
        return gr_node_fail(node, r->diag, GR_E_INVALID,
                            "a layer's name has 1 to 64 letters, digits, '_' or '-'");
    }
    if (strcmp(name, input_name) == 0) {
        return gr_node_fail(node, r->diag, GR_E_INVALID,
                            "the name '%s' is that of the model's input: choose another", name);
    }
    int taken = find_name(r, name);
    if (taken >= 0) {
        return gr_node_fail(node, r->diag, GR_E_INVALID,
                            "the name '%s' is taken by the layer of line %d: choose another", name,
                            r->nodes[taken]->line);
    }
    *name_out = gr_arena_strdup(r->arena, name);
    return *name_out ? GR_OK : gr_fail(r->diag, GR_E_NO_MEMORY, "no memory for the model's layers");
}

/* prefix and number: the kind's number in the order of the file, moved on past names in use. */
static gr_status made_name(layer_reader *r, const gr_layer_ops *ops, const char **name_out)
{
    int number = 1;
    for (int i = 0; i < r->spec->count; i++) {
        number += r->spec->layers[i].ops == ops;
    }
    for (;; number++) {
        char name[80];
        snprintf(name, sizeof name, "%s%d", ops->prefix, number);
        if (find_name(r, name) == GR_NO_LAYER) {
            *name_out = gr_arena_strdup(r->arena, name);
            return *name_out ? GR_OK
                             : gr_fail(r->diag, GR_E_NO_MEMORY, "no memory for the model's layers");
        }
    }
}

/* ---- Settings -------------------------------------------------------------------------------- */

/* The settings of a kind, and `name` behind them, which belongs to every layer. */
typedef struct settings {
    gr_config_field fields[SETTINGS_MAX + 2];
    gr_config_table table;
    size_t name_at;
} settings;

static void settings_of(const gr_layer_ops *ops, settings *out)
{
    *out = (settings){.table = {.name = ops->kind, .fields = out->fields}};
    int count = 0;
    if (ops->settings) {
        out->name_at = (ops->settings->struct_bytes + 7) / 8 * 8;
        for (const gr_config_field *field = NULL;
             count < SETTINGS_MAX && (field = gr_config_next(ops->settings, field)) != NULL;) {
            out->fields[count++] = *field;
        }
    }
    out->fields[count] =
        (gr_config_field){.key = "name", .type = GR_CONFIG_NODE, .offset = out->name_at};
    out->table.struct_bytes = out->name_at + sizeof(gr_node *);
}

/* `value` is what stands behind the kind: nothing, a single value, or a map of settings. */
static gr_status read_settings(layer_reader *r, const gr_layer_ops *ops, const gr_node *item,
                               const gr_node *value, void **set_out)
{
    settings all;
    settings_of(ops, &all);
    bool map = !value || value->kind == GR_NODE_MAP;
    void *set = gr_arena_alloc(r->arena, all.table.struct_bytes);
    if (!set) {
        return gr_fail(r->diag, GR_E_NO_MEMORY, "no memory for the model's layers");
    }
    if (value && (value->kind == GR_NODE_LIST || (!map && !ops->main))) {
        return gr_node_fail(value, r->diag, GR_E_INVALID,
                            "%s takes its settings as a map of keys and values, {key: value}",
                            ops->kind);
    }
    gr_status status = gr_config_defaults(&all.table, set, r->arena, r->diag);
    if (status == GR_OK && map) {
        status = gr_config_from_node(&all.table, set, value, r->arena, r->diag);
    }
    for (const gr_config_field *field = all.fields; status == GR_OK && field->offset != all.name_at;
         field++) {
        const gr_node *node = map                                  ? gr_node_get(value, field->key)
                              : strcmp(field->key, ops->main) == 0 ? value
                                                                   : NULL;
        if (node && !map) {
            status = gr_config_set_node(field, set, node, r->arena, r->diag);
        } else if (!node && !field->default_text) {
            status = gr_node_fail(value ? value : item, r->diag, GR_E_INVALID,
                                  "%s needs the setting '%s': add it", ops->kind, field->key);
        }
    }
    *set_out = set;
    return status;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* The layer that the setting `from` names. */
static gr_status find_from(layer_reader *r, const gr_node *item, const gr_node *value,
                           const char *name, int *other_out)
{
    const gr_node *from = value && value->kind == GR_NODE_MAP ? gr_node_get(value, "from") : value;
    if (strcmp(name, input_name) == 0) {
        *other_out = GR_MODEL_INPUT;
        return GR_OK;
    }
    *other_out = find_name(r, name);
    if (*other_out >= 0) {
        return GR_OK;
    }
    const char *names[GR_LAYERS_MAX + 1] = {0};
    for (int i = 0; i < r->spec->count; i++) {
        names[i] = r->spec->layers[i].info.name;
    }
    const char *nearest = gr_nearest(name, names);
    return gr_node_fail(from ? from : item, r->diag, GR_E_INVALID,
                        "no earlier layer is named '%s'%s%s%s: give the layer a name with 'name:'",
                        name, nearest ? "; did you mean '" : "", nearest ? nearest : "",
                        nearest ? "'?" : "");
}

/* The second layer of one that joins: `other`, or the one that its settings name. */
static gr_status join(layer_reader *r, gr_layer_spec *layer, const gr_node *item,
                      const gr_node *value, int other)
{
    gr_status status = GR_OK;
    if (other == GR_NO_LAYER) {
        const gr_join_settings *set = layer->set;
        status = find_from(r, item, value, set->from, &other);
    }
    if (status != GR_OK) {
        return status;
    }
    layer->other = other;
    const gr_shape *added = shape_after(r, other);
    if (shapes_equal(added, &layer->shape_in)) {
        return GR_OK;
    }
    char a[80], b[80];
    gr_shape_format(added, a, sizeof a);
    gr_shape_format(&layer->shape_in, b, sizeof b);
    return gr_node_fail(item, r->diag, GR_E_INVALID,
                        "%s adds %s to %s: both must have the same shape (a conv2d with kernel 1 "
                        "can change the channels)",
                        layer->info.name, a, b);
}

/* What the kind makes of its input. */
static gr_status infer_shape(gr_layer_spec *layer, const gr_node *item, gr_diag *diag)
{
    gr_layer_info *info = &layer->info;
    info->output = layer->shape_in;
    gr_status status = layer->ops->shape ? layer->ops->shape(layer, item, diag) : GR_OK;
    if (status == GR_OK && gr_shape_count(&info->output) > GR_TENSOR_COUNT_MAX) {
        status = gr_node_fail(item, diag, GR_E_INVALID,
                              "the output of %s has more than 2^31 values for each sample: make it "
                              "smaller",
                              info->name);
    }
    if (status == GR_OK && info->parameters > GR_TENSOR_COUNT_MAX) {
        status = gr_node_fail(item, diag, GR_E_INVALID,
                              "%s has more than 2^31 parameters: make it smaller", info->name);
    }
    return status;
}

/* Appends a layer that reads the last one's output; `other`: it is joined with that one whatever
 * its settings say. */
static gr_status append(layer_reader *r, const gr_layer_ops *ops, const gr_node *item,
                        const gr_node *value, const gr_node *name, int other)
{
    gr_model_spec *spec = r->spec;
    if (spec->count == GR_LAYERS_MAX) {
        return gr_node_fail(item, r->diag, GR_E_INVALID, "a model has at most %d layers",
                            GR_LAYERS_MAX);
    }
    gr_layer_spec *layer = &spec->layers[spec->count];
    *layer = (gr_layer_spec){
        .ops = ops, .input = r->last, .other = GR_NO_LAYER, .shape_in = *shape_after(r, r->last)};
    layer->info.kind = ops->kind;
    gr_status status =
        name ? given_name(r, name, &layer->info.name) : made_name(r, ops, &layer->info.name);
    if (status == GR_OK && other == GR_NO_LAYER) {
        status = read_settings(r, ops, item, value, &layer->set);
    }
    if (status == GR_OK && ops->joins) {
        status = join(r, layer, item, value, other);
    }
    if (status == GR_OK) {
        status = infer_shape(layer, item, r->diag);
    }
    if (status == GR_OK) {
        r->nodes[spec->count] = item;
        r->last = spec->count++;
    }
    return status;
}

/* `residual: [layers]`: the branch, then its input is added to its output. */
static gr_status read_residual(layer_reader *r, const gr_node *item, const gr_node *value,
                               const gr_node *name)
{
    if (!value || value->kind != GR_NODE_LIST || value->count == 0) {
        return gr_node_fail(item, r->diag, GR_E_INVALID,
                            "residual needs the list of its branch's layers, for example residual: "
                            "[relu, linear: 64]; to add an earlier layer use add: {from: name}");
    }
    if (r->depth == BRANCH_DEPTH_MAX) {
        return gr_node_fail(item, r->diag, GR_E_INVALID, "residuals are nested deeper than %d",
                            BRANCH_DEPTH_MAX);
    }
    int start = r->last;
    r->depth++;
    gr_status status = read_layers(r, value);
    r->depth--;
    return status == GR_OK ? append(r, &gr_add_ops, item, NULL, name, start) : status;
}

/* An item is a word, or a map with the kind as key, and perhaps `name` beside it or inside. */
static gr_status read_item(layer_reader *r, const gr_node *item)
{
    const char *word = item->text;
    const gr_node *value = NULL, *name = NULL;
    if (item->kind == GR_NODE_MAP) {
        for (const gr_node *child = item->child; child; child = child->next) {
            if (strcmp(child->key, "name") == 0) {
                name = child;
            } else if (value) {
                return gr_node_fail(
                    child, r->diag, GR_E_INVALID,
                    "a list item is one layer, but '%s' stands beside '%s': begin a "
                    "new item with '-' or indent it as a setting",
                    child->key, value->key);
            } else {
                value = child;
                word = child->key;
            }
        }
    }
    if (item->kind == GR_NODE_LIST || item->kind == GR_NODE_NULL || !word ||
        (item->kind == GR_NODE_MAP && !value)) {
        return gr_node_fail(
            item, r->diag, GR_E_INVALID,
            "expected a layer: a word such as relu, or a map such as linear: {units: "
            "10}");
    }
    const gr_node *where = value ? value : item;
    if (value && value->kind == GR_NODE_NULL) {
        value = NULL;
    }
    if (!name && value && value->kind == GR_NODE_MAP) {
        name = gr_node_get(value, "name");
    }
    if (strcmp(word, "residual") == 0) {
        return read_residual(r, where, value, name);
    }
    const gr_layer_ops *ops = NULL;
    gr_status status = find_kind(where, word, &ops, r->diag);
    return status == GR_OK ? append(r, ops, where, value, name, GR_NO_LAYER) : status;
}

static gr_status read_layers(layer_reader *r, const gr_node *list)
{
    for (const gr_node *item = list->child; item; item = item->next) {
        gr_status status = read_item(r, item);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

gr_status gr_model_spec_read(const gr_node *list, const gr_shape *input, gr_arena *arena,
                             gr_model_spec **spec_out, gr_diag *diag)
{
    if (!list || list->kind != GR_NODE_LIST || list->count == 0) {
        return gr_node_fail(list, diag, GR_E_INVALID,
                            "model must be a list of layers with at least one item");
    }
    if (input->dims < 1 || input->dims >= GR_DIMS_MAX) {
        return gr_fail(
            diag, GR_E_INVALID,
            "samples must have 1 to %d dimensions: features, images (channels x height x "
            "width) or others; these have %d",
            GR_DIMS_MAX - 1, input->dims);
    }
    gr_model_spec *spec = gr_arena_alloc(arena, sizeof *spec);
    layer_reader r = {.spec = spec, .arena = arena, .diag = diag, .last = GR_MODEL_INPUT};
    r.nodes = gr_arena_alloc(arena, GR_LAYERS_MAX * sizeof *r.nodes);
    if (!spec || !r.nodes) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the model's layers");
    }
    spec->layers = gr_arena_alloc(arena, GR_LAYERS_MAX * sizeof *spec->layers);
    if (!spec->layers) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the model's layers");
    }
    spec->input = *input;
    gr_status status = read_layers(&r, list);
    if (status == GR_OK) {
        *spec_out = spec;
    }
    return status;
}

int gr_model_spec_layers(const gr_model_spec *spec)
{
    return spec->count;
}

const gr_layer_info *gr_model_spec_layer(const gr_model_spec *spec, int index)
{
    return &spec->layers[index].info;
}

const gr_shape *gr_model_spec_output(const gr_model_spec *spec)
{
    return &spec->layers[spec->count - 1].info.output;
}
