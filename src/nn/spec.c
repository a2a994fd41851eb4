/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the `model:` part of a job file. */
#include "nn/layer.h"

#include "base/fail.h"
#include "base/text.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The order of the reference page. `residual` is no kind of its own: it becomes its branch and an
 * add. */
static const gr_layer_ops *const kinds[] = {
    &gr_linear_ops,  &gr_conv2d_ops,   &gr_batch_norm_ops, &gr_relu_ops,
    &gr_gelu_ops,    &gr_max_pool_ops, &gr_avg_pool_ops,   &gr_global_pool_ops,
    &gr_flatten_ops, &gr_dropout_ops,  &gr_add_ops,        NULL};

typedef enum setting_type {
    SETTING_INT,
    SETTING_DOUBLE,
    SETTING_BOOL,
    SETTING_PADDING, /* a number, or `same` */
} setting_type;

/* One setting of one kind. `main` may stand alone behind the colon: `linear: 10`. */
typedef struct setting {
    const gr_layer_ops *ops;
    const char *key;
    setting_type type;
    size_t offset;
    bool required, main;
    double standard, min, max;
} setting;

#define AT(field) offsetof(gr_layer_settings, field)
static const setting settings[] = {
    {&gr_linear_ops, "units", SETTING_INT, AT(units), true, true, 0, 1, 1 << 24},
    {&gr_linear_ops, "bias", SETTING_BOOL, AT(bias), false, false, 1, 0, 1},
    {&gr_conv2d_ops, "channels", SETTING_INT, AT(channels), true, false, 0, 1, 1 << 20},
    {&gr_conv2d_ops, "kernel", SETTING_INT, AT(kernel), true, false, 0, 1, 1024},
    {&gr_conv2d_ops, "stride", SETTING_INT, AT(stride), false, false, 1, 1, 1024},
    {&gr_conv2d_ops, "padding", SETTING_PADDING, AT(padding), false, false, 0, 0, 1023},
    {&gr_conv2d_ops, "bias", SETTING_BOOL, AT(bias), false, false, 1, 0, 1},
    {&gr_batch_norm_ops, "momentum", SETTING_DOUBLE, AT(momentum), false, false, 0.1, 0, 1},
    {&gr_batch_norm_ops, "epsilon", SETTING_DOUBLE, AT(epsilon), false, false, 1e-5, 1e-12, 1},
    {&gr_max_pool_ops, "kernel", SETTING_INT, AT(kernel), true, true, 0, 1, 1024},
    {&gr_max_pool_ops, "stride", SETTING_INT, AT(stride), false, false, 0, 1, 1024},
    {&gr_max_pool_ops, "padding", SETTING_PADDING, AT(padding), false, false, 0, 0, 1023},
    {&gr_avg_pool_ops, "kernel", SETTING_INT, AT(kernel), true, true, 0, 1, 1024},
    {&gr_avg_pool_ops, "stride", SETTING_INT, AT(stride), false, false, 0, 1, 1024},
    {&gr_avg_pool_ops, "padding", SETTING_PADDING, AT(padding), false, false, 0, 0, 1023},
    {&gr_dropout_ops, "rate", SETTING_DOUBLE, AT(rate), true, true, 0, 0, 0.999},
};
enum { SETTING_COUNT = sizeof settings / sizeof settings[0], KEYS_MAX = 8 };

typedef struct layer_reader {
    gr_model_spec *spec;
    const gr_node **nodes; /* where each layer stands: for messages about names */
    gr_arena *arena;
    gr_diag *diag;
    int last;  /* the layer whose output the next one reads */
    int depth; /* of residual branches */
} layer_reader;

enum { BRANCH_DEPTH_MAX = 16 };

static gr_status read_layers(layer_reader *r, const gr_node *list);

static const gr_shape *shape_after(const layer_reader *r, int index)
{
    return index == GR_MODEL_INPUT ? &r->spec->input : &r->spec->layers[index].info.output;
}

static bool shapes_equal(const gr_shape *a, const gr_shape *b)
{
    bool equal = a->dims == b->dims;
    for (int i = 0; equal && i < a->dims; i++) {
        equal = a->dim[i] == b->dim[i];
    }
    return equal;
}

static const gr_layer_ops *find_kind(const char *word)
{
    for (int i = 0; kinds[i]; i++) {
        if (strcmp(kinds[i]->kind, word) == 0) {
            return kinds[i];
        }
    }
    return NULL;
}

static gr_status unknown_kind(const gr_node *node, const char *word, gr_diag *diag)
{
    const char *words[sizeof kinds / sizeof kinds[0] + 1] = {0};
    int count = 0;
    for (; kinds[count]; count++) {
        words[count] = kinds[count]->kind;
    }
    words[count] = "residual";
    const char *nearest = gr_nearest(word, words);
    if (nearest) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "there is no layer named '%s'; did you mean '%s'?", word, nearest);
    }
    return gr_node_fail(
        node, diag, GR_E_INVALID,
        "there is no layer named '%s'; layers are linear, conv2d, batch_norm, relu, "
        "gelu, max_pool, avg_pool, global_pool, flatten, dropout, add, residual",
        word);
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

static gr_status put_padding(const gr_node *node, gr_layer_settings *set, const setting *rule,
                             gr_diag *diag)
{
    if (node->kind == GR_NODE_SCALAR && strcmp(node->text, "same") == 0) {
        set->padding = -1; /* settled when the kernel is known */
        return GR_OK;
    }
    if (node->kind == GR_NODE_SCALAR && !isdigit((unsigned char)node->text[0])) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "must be a number of pixels or 'same', but it is '%s'", node->text);
    }
    return gr_node_int(node, (int64_t)rule->min, (int64_t)rule->max, &set->padding, diag);
}

static gr_status put_setting(const gr_node *node, gr_layer_settings *set, const setting *rule,
                             gr_diag *diag)
{
    void *place = (char *)set + rule->offset;
    switch (rule->type) {
    case SETTING_INT:
        return gr_node_int(node, (int64_t)rule->min, (int64_t)rule->max, place, diag);
    case SETTING_DOUBLE:
        return gr_node_double(node, rule->min, rule->max, place, diag);
    case SETTING_BOOL:
        return gr_node_bool(node, place, diag);
    default:
        return put_padding(node, set, rule, diag);
    }
}

static void put_standard(gr_layer_settings *set, const setting *rule)
{
    void *place = (char *)set + rule->offset;
    switch (rule->type) {
    case SETTING_DOUBLE:
        *(double *)place = rule->standard;
        break;
    case SETTING_BOOL:
        *(bool *)place = rule->standard != 0;
        break;
    default:
        *(int64_t *)place = (int64_t)rule->standard;
        break;
    }
}

static const setting *main_setting(const gr_layer_ops *ops)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        if (settings[i].ops == ops && settings[i].main) {
            return &settings[i];
        }
    }
    return NULL;
}

static gr_status read_map(const gr_layer_ops *ops, const gr_node *item, const gr_node *map,
                          gr_layer_settings *set, gr_diag *diag)
{
    const char *known[KEYS_MAX + 1] = {0};
    int count = 0;
    for (int i = 0; i < SETTING_COUNT; i++) {
        if (settings[i].ops == ops) {
            known[count++] = settings[i].key;
        }
    }
    if (ops == &gr_add_ops) {
        known[count++] = "from";
    }
    known[count] = "name";
    gr_status status = map ? gr_node_only(map, known, diag) : GR_OK;
    for (int i = 0; status == GR_OK && i < SETTING_COUNT; i++) {
        const setting *rule = &settings[i];
        const gr_node *node = map && rule->ops == ops ? gr_node_get(map, rule->key) : NULL;
        if (node) {
            status = put_setting(node, set, rule, diag);
        } else if (rule->ops == ops && rule->required) {
            status = gr_node_fail(map ? map : item, diag, GR_E_INVALID,
                                  "%s needs the setting '%s': add it", ops->kind, rule->key);
        }
    }
    return status;
}

/* `value` is what stands behind the kind: nothing, a single value, or a map of settings. */
static gr_status read_settings(const gr_layer_ops *ops, const gr_node *item, const gr_node *value,
                               gr_layer_settings *set, gr_diag *diag)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        if (settings[i].ops == ops) {
            put_standard(set, &settings[i]);
        }
    }
    if (!value || value->kind == GR_NODE_MAP) {
        return read_map(ops, item, value, set, diag);
    }
    const setting *rule = main_setting(ops);
    if (value->kind == GR_NODE_LIST || !rule) {
        return gr_node_fail(value, diag, GR_E_INVALID,
                            "%s takes its settings as a map of keys and values, {key: value}",
                            ops->kind);
    }
    return put_setting(value, set, rule, diag);
}

/* `same` keeps the size of the image (divided by the stride, rounded up); an even kernel cannot
 * without padding one side more than the other. A pool's stride is its kernel unless it is said. */
static gr_status settle_window(const gr_node *node, gr_layer_settings *set, gr_diag *diag)
{
    if (set->stride == 0) {
        set->stride = set->kernel;
    }
    if (set->padding < 0) {
        if (set->kernel % 2 == 0) {
            return gr_node_fail(
                node, diag, GR_E_INVALID,
                "padding 'same' needs an odd kernel, but it is %lld: give the padding "
                "in pixels",
                (long long)set->kernel);
        }
        set->padding = (set->kernel - 1) / 2;
    }
    if (set->kernel > 0 && set->padding >= set->kernel) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "padding %lld must be smaller than the kernel %lld",
                            (long long)set->padding, (long long)set->kernel);
    }
    return GR_OK;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static gr_status find_from(layer_reader *r, const gr_node *item, const gr_node *value,
                           int *other_out)
{
    const gr_node *from = value && value->kind == GR_NODE_MAP ? gr_node_get(value, "from") : value;
    if (!from) {
        return gr_node_fail(item, r->diag, GR_E_INVALID,
                            "add needs the setting 'from', the name of an earlier layer: add it");
    }
    const char *name = NULL;
    gr_status status = gr_node_text(from, &name, r->diag);
    if (status != GR_OK) {
        return status;
    }
    if (strcmp(name, "input") == 0) {
        *other_out = GR_MODEL_INPUT;
        return GR_OK;
    }
    int found = find_name(r, name);
    if (found < 0) {
        const char *names[GR_LAYERS_MAX + 1] = {0};
        for (int i = 0; i < r->spec->count; i++) {
            names[i] = r->spec->layers[i].info.name;
        }
        const char *nearest = gr_nearest(name, names);
        return gr_node_fail(
            from, r->diag, GR_E_INVALID,
            "no earlier layer is named '%s'%s%s%s: give the layer a name with 'name:'", name,
            nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
    }
    *other_out = found;
    return GR_OK;
}

/* Appends a layer that reads the last one's output. */
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
        .ops = ops, .input = r->last, .other = other, .shape_in = *shape_after(r, r->last)};
    layer->info.kind = ops->kind;
    gr_status status =
        name ? given_name(r, name, &layer->info.name) : made_name(r, ops, &layer->info.name);
    if (status == GR_OK && other == GR_NO_LAYER) {
        status = read_settings(ops, item, value, &layer->set, r->diag);
    }
    if (status == GR_OK) {
        status = settle_window(item, &layer->set, r->diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (other != GR_NO_LAYER) {
        const gr_shape *added = shape_after(r, other);
        if (!shapes_equal(added, &layer->shape_in)) {
            char a[80], b[80];
            gr_shape_format(added, a, sizeof a);
            gr_shape_format(&layer->shape_in, b, sizeof b);
            return gr_node_fail(
                item, r->diag, GR_E_INVALID,
                "%s adds %s to %s: both must have the same shape (a conv2d with kernel "
                "1 can change the channels)",
                layer->info.name, a, b);
        }
    }
    status = ops->shape(layer, item, r->diag);
    if (status == GR_OK && gr_shape_count(&layer->info.output) > GR_TENSOR_COUNT_MAX) {
        status = gr_node_fail(item, r->diag, GR_E_INVALID,
                              "the output of %s has more than 2^31 values for each sample: make it "
                              "smaller",
                              layer->info.name);
    }
    if (status == GR_OK && layer->info.parameters > GR_TENSOR_COUNT_MAX) {
        status =
            gr_node_fail(item, r->diag, GR_E_INVALID,
                         "%s has more than 2^31 parameters: make it smaller", layer->info.name);
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
    const gr_layer_ops *ops = find_kind(word);
    if (!ops) {
        return unknown_kind(where, word, r->diag);
    }
    int other = GR_NO_LAYER;
    if (ops == &gr_add_ops) {
        gr_layer_settings unused;
        gr_status status = value && value->kind == GR_NODE_MAP
                               ? read_map(ops, where, value, &unused, r->diag)
                               : GR_OK;
        if (status == GR_OK) {
            status = find_from(r, where, value, &other);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return append(r, ops, where, value, name, other);
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
    if (input->dims != 1 && input->dims != 3) {
        return gr_fail(diag, GR_E_INVALID,
                       "samples must be features or images (channels x height x width)");
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
