/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/object.h"

#include "base/text.h"
#include "base/time_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

json_t *gr_object_at(const json_t *object, const char *path)
{
    json_t *found = NULL;
    while (*path != '\0') {
        size_t length = strcspn(path, ".");
        found = json_object_getn(object, path, length);
        if (found == NULL) {
            return NULL;
        }
        object = found;
        path += length + (path[length] == '.');
    }
    return found;
}

const char *gr_object_text(const json_t *object, const char *path)
{
    return json_string_value(gr_object_at(object, path));
}

int64_t gr_object_int(const json_t *object, const char *path, int64_t otherwise)
{
    const json_t *value = gr_object_at(object, path);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : otherwise;
}

bool gr_object_number(const json_t *value, int64_t *number_out)
{
    const char *text = json_string_value(value);
    if (text == NULL) {
        *number_out = json_integer_value(value);
        return json_is_integer(value);
    }
    char *end;
    char first = text[text[0] == '-' || text[0] == '+'];
    errno = 0;
    *number_out = (int64_t)strtoll(text, &end, 10);
    return first >= '0' && first <= '9' && *end == '\0' && errno == 0;
}

bool gr_object_true(const json_t *object, const char *path)
{
    return json_is_true(gr_object_at(object, path));
}

bool gr_object_is_text(const json_t *object, const char *path, const char *text)
{
    const char *value = gr_object_text(object, path);
    return value != NULL && strcmp(value, text) == 0;
}

bool gr_object_time(const char *text, int64_t *seconds_out)
{
    int64_t time_us = 0;
    bool is_time = text != NULL && gr_time_read(text, &time_us);
    *seconds_out = time_us / 1000000;
    return is_time;
}

static bool same(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

bool gr_object_is(const json_t *object, const char *api_version, const char *kind)
{
    return same(gr_object_text(object, "kind"), kind) &&
           same(gr_object_text(object, "apiVersion"), api_version);
}

json_t *gr_object_find(const json_t *objects, const char *api_version, const char *kind,
                       const char *name)
{
    size_t i;
    json_t *object;
    json_array_foreach(objects, i, object)
    {
        if (gr_object_is(object, api_version, kind) &&
            same(gr_object_text(object, "metadata.name"), name)) {
            return object;
        }
    }
    return NULL;
}

bool gr_object_controlled(const json_t *object, const char *uid)
{
    size_t i;
    json_t *owner;
    json_array_foreach(gr_object_at(object, "metadata.ownerReferences"), i, owner)
    {
        if (gr_object_true(owner, "controller")) {
            return same(gr_object_text(owner, "uid"), uid);
        }
    }
    return false;
}

json_t *gr_object_condition(const json_t *conditions, const char *type)
{
    size_t i;
    json_t *condition;
    json_array_foreach(conditions, i, condition)
    {
        if (same(gr_object_text(condition, "type"), type)) {
            return condition;
        }
    }
    return NULL;
}

bool gr_object_holds(const json_t *conditions, const char *type)
{
    return same(gr_object_text(gr_object_condition(conditions, type), "status"), "True");
}

json_t *gr_object_sentence(const char *text)
{
    json_t *sentence = json_string(text);
    if (sentence != NULL) {
        return sentence;
    }
    char *copy = strdup(text);
    if (copy != NULL) {
        gr_text_mend(copy);
        sentence = json_string(copy);
    }
    free(copy);
    return sentence;
}

void gr_object_put(json_t *object, const char *key, json_t *value, bool *no_memory)
{
    *no_memory |= json_object_set_new(object, key, value) != 0;
}

void gr_object_put_text(json_t *object, const char *key, const char *text, bool *no_memory)
{
    gr_object_put(object, key, json_string(text), no_memory);
}

void gr_object_put_absent(json_t *object, const char *key, json_t *value, bool *no_memory)
{
    const json_t *there = json_object_get(object, key);
    if (there == NULL || json_is_null(there)) {
        gr_object_put(object, key, value, no_memory);
    } else {
        json_decref(value);
    }
}

void gr_object_put_default(json_t *object, const char *key, json_t *value, bool *no_memory)
{
    const json_t *there = json_object_get(object, key);
    if (json_is_string(there) && json_string_length(there) == 0) {
        json_object_del(object, key);
    }
    gr_object_put_absent(object, key, value, no_memory);
}

void gr_object_append(json_t *array, json_t *value, bool *no_memory)
{
    *no_memory |= json_array_append_new(array, value) != 0;
}

json_t *gr_object_map(json_t *object, const char *key, bool *no_memory)
{
    if (!json_is_object(json_object_get(object, key))) {
        gr_object_put(object, key, json_object(), no_memory);
    }
    return json_object_get(object, key);
}

json_t *gr_object_list(json_t *object, const char *key, bool *no_memory)
{
    if (!json_is_array(json_object_get(object, key))) {
        gr_object_put(object, key, json_array(), no_memory);
    }
    return json_object_get(object, key);
}

void gr_object_print_begin(gr_object_print *print)
{
    *print = (gr_object_print){.out = NULL};
    print->out = open_memstream(&print->text, &print->size_bytes);
}

json_t *gr_object_print_end(gr_object_print *print)
{
    bool is_whole = print->out != NULL && fclose(print->out) == 0;
    json_t *value = is_whole ? json_string(print->text) : NULL;
    free(print->text);
    return value;
}
