/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/manifest.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/number.h"
#include "doc/doc.h"
#include "doc/node_json.h"
#include "operator/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* ---- Reading --------------------------------------------------------------------------------- */

/* A word without quotes is what it is to kubectl: 0644 is octal, and yes is true. */
static json_t *value_of(const gr_node *node)
{
    const char *text = node->text;
    char *end;
    bool truth;
    double number;
    errno = 0;
    const char *digits = text + (text[0] == '-' || text[0] == '+');
    long long whole = strtoll(text, &end, 0);
    if (node->quoted) {
        return json_string(text);
    }
    if (digits[0] >= '0' && digits[0] <= '9' && *end == '\0' && errno == 0) {
        return json_integer(whole);
    }
    if (gr_number_bool(text, &truth)) {
        return json_boolean(truth);
    }
    if (gr_number_double(text, &number) == GR_NUMBER_OK) {
        return json_real(number);
    }
    return json_string(text);
}

/* Each map gets what its merge key (<<) names and it does not have itself; of several maps the
 * first one counts. False: something else stands there. */
static bool merge(json_t *value)
{
    static const char merge_key[] = "<<";
    size_t i;
    const char *key;
    json_t *child;
    bool is_right = true;
    json_array_foreach(value, i, child)
    {
        is_right &= merge(child);
    }
    json_object_foreach(value, key, child)
    {
        is_right &= merge(child);
    }
    json_t *given = json_incref(json_object_get(value, merge_key));
    if (given == NULL) {
        return is_right;
    }
    (void)json_object_del(value, merge_key);
    is_right &= json_is_object(given) || json_is_array(given);
    if (json_is_object(given)) {
        is_right &= json_object_update_missing(value, given) == 0;
    }
    json_array_foreach(given, i, child)
    {
        is_right &= json_is_object(child) && json_object_update_missing(value, child) == 0;
    }
    json_decref(given);
    return is_right;
}

/* What only a cluster says of an object, as `kubectl get -o yaml` writes it. */
static void forget_cluster(json_t *object)
{
    static const char *const keys[] = {"creationTimestamp",
                                       "deletionGracePeriodSeconds",
                                       "deletionTimestamp",
                                       "generation",
                                       "managedFields",
                                       "ownerReferences",
                                       "resourceVersion",
                                       "selfLink",
                                       "uid"};
    json_t *metadata = json_object_get(object, "metadata");
    if (json_object_get(object, "kind") == NULL) {
        return; /* settings of `gradus submit` */
    }
    (void)json_object_del(object, "status");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        (void)json_object_del(metadata, keys[i]);
    }
}

/* Returns true if the controller of another object has made this one, and makes it again. */
static bool is_made_for_another(const json_t *object)
{
    size_t i;
    const json_t *owner;
    json_array_foreach(gr_object_at(object, "metadata.ownerReferences"), i, owner)
    {
        if (gr_object_true(owner, "controller") && gr_manifest_kind(object) == NULL) {
            return true;
        }
    }
    return false;
}

static gr_status add_object(const char *name, const gr_node *node, json_t *documents, gr_diag *diag)
{
    json_t *object = gr_node_json(node, value_of);
    if (!merge(object)) {
        json_decref(object);
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%d: a merge key (<<) stands before what is neither a map nor a list of "
                       "maps",
                       name, node->line);
    }
    if (object != NULL && is_made_for_another(object)) {
        json_decref(object);
        return GR_OK;
    }
    forget_cluster(object);
    json_t *document = json_pack("[i, o]", node->line, object);
    return json_array_append_new(documents, document) == 0
               ? GR_OK
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", name);
}

/* The items of a List or a PyTorchJobList; NULL: it is neither. */
static const gr_node *items_of(const gr_node *node)
{
    static const char ending[] = "List";
    const gr_node *kind = gr_node_get(node, "kind"), *items = gr_node_get(node, "items");
    size_t length = kind != NULL && kind->kind == GR_NODE_SCALAR ? strlen(kind->text) : 0;
    bool is_list = length >= sizeof ending - 1 && items != NULL && items->kind == GR_NODE_LIST &&
                   strcmp(kind->text + length - (sizeof ending - 1), ending) == 0;
    return is_list ? items : NULL;
}

/* A list may hold lists, as deep as documents may be. */
static gr_status add_node(const char *name, const gr_node *node, json_t *documents, gr_diag *diag)
{
    const gr_node *items = items_of(node);
    if (items == NULL) {
        return add_object(name, node, documents, diag);
    }
    gr_status status = GR_OK;
    for (const gr_node *item = items->child; item != NULL && status == GR_OK; item = item->next) {
        status = add_node(name, item, documents, diag);
    }
    return status;
}

/* Reads one document and adds its objects to the array. */
static gr_status add_document(const char *name, const char *text, size_t size_bytes,
                              json_t *documents, gr_diag *diag)
{
    gr_doc *doc = NULL;
    size_t first = strspn(text, " \t\r\n");
    gr_status status = first < size_bytes && text[first] == '{'
                           ? gr_doc_parse_json(name, text, size_bytes, &doc, diag)
                           : gr_doc_parse_yaml_with_merges(name, text, size_bytes, &doc, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_node *root = gr_doc_root(doc);
    if (root->kind != GR_NODE_NULL) {
        status = add_node(name, root, documents, diag);
    }
    gr_doc_destroy(doc);
    return status;
}

static const char *line_behind(const char *at, const char *end)
{
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    return newline != NULL ? newline + 1 : end;
}

static bool begins_document(const char *at, const char *end)
{
    return end - at >= 3 && memcmp(at, "---", 3) == 0 &&
           (end - at == 3 || strchr(" \t\r\n", at[3]) != NULL);
}

/* A directive or a comment belongs to the document behind it. */
static bool is_content(const char *at)
{
    at += strspn(at, " \t\r");
    return *at != '\n' && *at != '#' && *at != '%' && *at != '\0';
}

/* Behind the JSON value that begins there, whatever is inside; `end`: it has no end. */
static const char *behind_json(const char *at, const char *end)
{
    bool is_text = false;
    int depth = 0;
    for (; at < end; at++) {
        if (is_text && *at == '\\' && at + 1 < end) {
            at++;
        } else if (*at == '"') {
            is_text = !is_text;
        } else if (!is_text && (*at == '{' || *at == '[')) {
            depth++;
        } else if (!is_text && (*at == '}' || *at == ']') && --depth == 0) {
            return at + 1;
        }
    }
    return end;
}

/* "---" at the beginning of a line is never inside a value (YAML 1.2, 9.1.2). */
static const char *behind_yaml(const char *at, const char *end)
{
    bool has_content = false;
    do {
        has_content |= is_content(at);
        at = line_behind(at, end);
    } while (at < end && !(has_content && begins_document(at, end)));
    return at;
}

/* What stands before a document is made empty lines, so that its own keep their numbers. */
static gr_status split(const char *name, char *text, size_t size_bytes, json_t *documents,
                       gr_diag *diag)
{
    gr_status status = GR_OK;
    const char *end = text + size_bytes;
    size_t begin = 0;
    while (status == GR_OK && begin < size_bytes) {
        const char *first = text + begin + strspn(text + begin, " \t\r\n");
        const char *behind =
            *first == '{' ? behind_json(first, end) : behind_yaml(text + begin, end);
        size_t next = (size_t)(behind - text);
        status = add_document(name, text, next, documents, diag);
        for (size_t i = begin; i < next; i++) {
            text[i] = text[i] == '\n' ? '\n' : ' ';
        }
        begin = next;
    }
    return status;
}

gr_status gr_manifests_read(const char *path, json_t **documents_out, gr_diag *diag)
{
    bool is_stdin = strcmp(path, "-") == 0;
    char *text = NULL;
    size_t size_bytes = 0;
    json_t *documents = json_array();
    if (documents == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", path);
    }
    gr_status status =
        gr_file_read(is_stdin ? "/dev/stdin" : path, GR_DOC_BYTES_MAX, &text, &size_bytes, diag);
    if (status == GR_OK) {
        status = split(is_stdin ? "stdin" : path, text, size_bytes, documents, diag);
    }
    free(text);
    if (status != GR_OK) {
        json_decref(documents);
        return status;
    }
    *documents_out = documents;
    return GR_OK;
}

gr_status gr_manifests_name(const char *path, json_t *documents, gr_diag *diag)
{
    static const char letters[] = "bcdfghjklmnpqrstvwxz2456789";
    enum { SUFFIX_BYTES = 5 };
    size_t i;
    json_t *document;
    json_array_foreach(documents, i, document)
    {
        json_t *metadata = json_object_get(json_array_get(document, 1), "metadata");
        const char *stem = gr_object_text(metadata, "generateName");
        const char *name = gr_object_text(metadata, "name");
        if (stem == NULL || stem[0] == '\0' || (name != NULL && name[0] != '\0')) {
            continue;
        }
        char suffix[SUFFIX_BYTES + 1] = "";
        uint64_t chance = gr_hash64(path, strlen(path), i);
        for (size_t k = 0; k < SUFFIX_BYTES; k++) {
            suffix[k] = letters[chance % (sizeof letters - 1)];
            chance /= sizeof letters - 1;
        }
        json_t *made = json_sprintf("%s%s", stem, suffix);
        if (made == NULL || json_object_set_new(metadata, "name", made) != 0) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", path);
        }
    }
    return GR_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */
static bool is_plain(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/";
    static const char *const words[] = {"null", "y",   "n",    "yes",  "no",
                                        "on",   "off", "true", "false"};
    if (text[0] == '\0' || strchr(letters, text[0]) == NULL ||
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") !=
            strlen(text)) {
        return false;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            return false;
        }
    }
    return true;
}

static int emit(yaml_emitter_t *emitter, yaml_event_t *event, int made)
{
    return made != 0 ? yaml_emitter_emit(emitter, event) : 0;
}

static int emit_scalar(yaml_emitter_t *emitter, const char *text, yaml_scalar_style_t style)
{
    yaml_event_t event;
    bool is_plain_style = style == YAML_PLAIN_SCALAR_STYLE;
    return emit(emitter, &event,
                yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)text,
                                             (int)strlen(text), is_plain_style, !is_plain_style,
                                             style));
}

static int emit_text(yaml_emitter_t *emitter, const char *text)
{
    yaml_scalar_style_t style = strchr(text, '\n') != NULL ? YAML_LITERAL_SCALAR_STYLE
                                : is_plain(text)           ? YAML_PLAIN_SCALAR_STYLE
                                                           : YAML_DOUBLE_QUOTED_SCALAR_STYLE;
    return emit_scalar(emitter, text, style);
}

/* Returns 0 without memory, as libyaml does. */
static int emit_value(yaml_emitter_t *emitter, const json_t *value)
{
    yaml_event_t event;
    int done;
    if (json_is_string(value)) {
        return emit_text(emitter, json_string_value(value));
    }
    if (json_is_object(value)) {
        const char *key;
        json_t *child, *map = (json_t *)value; /* jansson's iterators take no const */
        yaml_mapping_style_t style =
            json_object_size(map) > 0 ? YAML_BLOCK_MAPPING_STYLE : YAML_FLOW_MAPPING_STYLE;
        done = emit(emitter, &event,
                    yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, style));
        json_object_foreach(map, key, child)
        {
            done = done != 0 && emit_text(emitter, key) != 0 && emit_value(emitter, child) != 0;
        }
        return done != 0 ? emit(emitter, &event, yaml_mapping_end_event_initialize(&event)) : 0;
    }
    if (json_is_array(value)) {
        size_t i;
        json_t *child;
        yaml_sequence_style_t style =
            json_array_size(value) > 0 ? YAML_BLOCK_SEQUENCE_STYLE : YAML_FLOW_SEQUENCE_STYLE;
        done = emit(emitter, &event,
                    yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, style));
        json_array_foreach(value, i, child)
        {
            done = done != 0 && emit_value(emitter, child) != 0;
        }
        return done != 0 ? emit(emitter, &event, yaml_sequence_end_event_initialize(&event)) : 0;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    done = text != NULL ? emit_scalar(emitter, text, YAML_PLAIN_SCALAR_STYLE) : 0;
    free(text);
    return done;
}

gr_status gr_manifest_print(const json_t *value, FILE *file, gr_diag *diag)
{
    yaml_emitter_t emitter;
    yaml_event_t event;
    if (yaml_emitter_initialize(&emitter) == 0) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to write YAML");
    }
    yaml_emitter_set_output_file(&emitter, file);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    int done = emit(&emitter, &event,
                    yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING)) != 0 &&
               emit(&emitter, &event,
                    yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 0)) != 0 &&
               emit_value(&emitter, value) != 0 &&
               emit(&emitter, &event, yaml_document_end_event_initialize(&event, 1)) != 0 &&
               emit(&emitter, &event, yaml_stream_end_event_initialize(&event)) != 0;
    yaml_emitter_delete(&emitter);
    return done != 0 ? GR_OK
                     : gr_fail(diag, GR_E_NO_MEMORY,
                               "no memory for the result, or it cannot be "
                               "written");
}
