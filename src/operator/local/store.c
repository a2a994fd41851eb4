/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/store.h"

#include "base/time_text.h"
#include "operator/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gr_store {
    json_t *objects; /* an array */
    json_t *answer;  /* the last one */
    gr_store_changed *changed;
    void *changed_arg;
    uint64_t version, uids;
    char now[GR_TIME_BYTES];
    bool no_memory;
};

gr_store *gr_store_create(gr_store_changed *changed, void *changed_arg)
{
    gr_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return NULL;
    }
    store->changed = changed;
    store->changed_arg = changed_arg;
    store->objects = json_array();
    if (store->objects == NULL) {
        free(store);
        return NULL;
    }
    gr_store_set_time(store, 0);
    return store;
}

void gr_store_destroy(gr_store *store)
{
    if (store != NULL) {
        json_decref(store->objects);
        json_decref(store->answer);
        free(store);
    }
}

void gr_store_set_time(gr_store *store, int64_t wall_s)
{
    gr_time_print(wall_s * 1000000, false, store->now);
}

const char *gr_store_now(const gr_store *store)
{
    return store->now;
}

bool gr_store_no_memory(const gr_store *store)
{
    return store->no_memory;
}

const json_t *gr_store_objects(const gr_store *store)
{
    return store->objects;
}

static const char *space_of(const json_t *object)
{
    const char *space = gr_object_text(object, "metadata.namespace");
    return space != NULL ? space : "default";
}

json_t *gr_store_find(const gr_store *store, const char *api_version, const char *kind,
                      const char *space, const char *name)
{
    size_t i;
    json_t *object;
    json_array_foreach(store->objects, i, object)
    {
        if (name != NULL && gr_object_is(object, api_version, kind) &&
            strcmp(space_of(object), space) == 0 &&
            gr_object_is_text(object, "metadata.name", name)) {
            return object;
        }
    }
    return NULL;
}

json_t *gr_store_list(gr_store *store, const char *api_version, const char *kind)
{
    json_t *list = json_array();
    size_t i;
    json_t *object;
    json_array_foreach(store->objects, i, object)
    {
        if (gr_object_is(object, api_version, kind)) {
            gr_object_append(list, json_incref(object), &store->no_memory);
        }
    }
    store->no_memory |= list == NULL;
    return list;
}

static json_t *find_same(const gr_store *store, const json_t *object)
{
    const char *api_version = gr_object_text(object, "apiVersion");
    const char *kind = gr_object_text(object, "kind");
    return api_version != NULL && kind != NULL
               ? gr_store_find(store, api_version, kind, space_of(object),
                               gr_object_text(object, "metadata.name"))
               : NULL;
}

static size_t index_of(const gr_store *store, const json_t *object)
{
    size_t i = 0;
    while (json_array_get(store->objects, i) != object) {
        i++;
    }
    return i;
}

/* ---- Writes ---------------------------------------------------------------------------------- */
/* A new version of a value that nobody else has yet. */
static void give_version(gr_store *store, json_t *object)
{
    char version[32];
    snprintf(version, sizeof version, "%" PRIu64, ++store->version);
    gr_object_put_text(gr_object_map(object, "metadata", &store->no_memory), "resourceVersion",
                       version, &store->no_memory);
}

static json_t *publish(gr_store *store, json_t *object, bool is_there)
{
    store->changed(store->changed_arg, object, is_there);
    json_incref(object);
    json_decref(store->answer);
    store->answer = object;
    return object;
}

/* `next` (taken over) stands where `old` stood: whoever has the old one keeps it as it was. */
static const json_t *replace(gr_store *store, const json_t *old, json_t *next)
{
    if (next == NULL) {
        store->no_memory = true;
        return old;
    }
    give_version(store, next);
    store->no_memory |= json_array_set_new(store->objects, index_of(store, old), next) != 0;
    return publish(store, next, true);
}

static const json_t *add(gr_store *store, const json_t *object)
{
    json_t *next = json_deep_copy(object);
    json_t *metadata = gr_object_map(next, "metadata", &store->no_memory);
    char uid[64];
    snprintf(uid, sizeof uid, "00000000-0000-4000-8000-%012" PRIx64, ++store->uids);
    gr_object_put_text(metadata, "uid", uid, &store->no_memory);
    gr_object_put_text(metadata, "creationTimestamp", store->now, &store->no_memory);
    gr_object_put_default(metadata, "namespace", json_string("default"), &store->no_memory);
    if (gr_object_is(next, "v1", "Pod")) {
        gr_object_put(next, "status", json_pack("{s:s}", "phase", "Pending"), &store->no_memory);
    }
    give_version(store, next);
    if (next == NULL || json_array_append_new(store->objects, next) != 0) {
        store->no_memory = true;
        return NULL;
    }
    return publish(store, next, true);
}

/* The whole object but for what only the API server sets, or its status alone. */
static const json_t *change(gr_store *store, const json_t *old, const json_t *object,
                            bool is_status)
{
    json_t *next = json_deep_copy(is_status ? old : object);
    const json_t *status = json_object_get(is_status ? object : old, "status");
    static const char *const kept[] = {"uid", "creationTimestamp", "deletionTimestamp",
                                       "namespace"};
    json_t *metadata = gr_object_map(next, "metadata", &store->no_memory);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        json_t *value = json_object_get(json_object_get(old, "metadata"), kept[i]);
        if (value != NULL) {
            gr_object_put(metadata, kept[i], json_incref(value), &store->no_memory);
        }
    }
    if (status != NULL) {
        gr_object_put(next, "status", json_deep_copy(status), &store->no_memory);
    }
    return replace(store, old, next);
}

static bool is_owned_by(const json_t *object, const char *uid)
{
    size_t i;
    const json_t *owner;
    json_array_foreach(gr_object_at(object, "metadata.ownerReferences"), i, owner)
    {
        if (gr_object_is_text(owner, "uid", uid)) {
            return true;
        }
    }
    return false;
}

/* A pod has processes, which have time to end. */
static const json_t *delete_one(gr_store *store, const json_t *object)
{
    if (!gr_object_is(object, "v1", "Pod")) {
        gr_store_remove(store, object);
        return NULL;
    }
    if (gr_object_text(object, "metadata.deletionTimestamp") != NULL) {
        return object;
    }
    json_t *next = json_deep_copy(object);
    gr_object_put_text(gr_object_map(next, "metadata", &store->no_memory), "deletionTimestamp",
                       store->now, &store->no_memory);
    return replace(store, object, next);
}

void gr_store_remove(gr_store *store, const json_t *object)
{
    size_t i, index = index_of(store, object);
    json_t *gone = json_incref(json_array_get(store->objects, index));
    json_t *last = json_deep_copy(gone), *owned = json_array(), *one;
    const char *uid = gr_object_text(gone, "metadata.uid");
    (void)json_array_remove(store->objects, index);
    give_version(store, last);
    publish(store, last, false);
    json_array_foreach(store->objects, i, one)
    {
        if (uid != NULL && is_owned_by(one, uid)) {
            gr_object_append(owned, json_incref(one), &store->no_memory);
        }
    }
    json_array_foreach(owned, i, one)
    {
        const json_t *there = find_same(store, one); /* an owner of it may have gone meanwhile */
        if (there != NULL) {
            (void)delete_one(store, there);
        }
    }
    json_decref(owned);
    json_decref(last);
    json_decref(gone);
}

static bool is_stale(const json_t *there, const json_t *object)
{
    const char *version = gr_object_text(object, "metadata.resourceVersion");
    return version != NULL && !gr_object_is_text(there, "metadata.resourceVersion", version);
}

gr_api_answer gr_store_ask(gr_store *store, const char *verb, const json_t *object,
                           const json_t **answer_out)
{
    const json_t *there = find_same(store, object);
    *answer_out = NULL;
    if (strcmp(verb, "create") == 0) {
        if (there != NULL) {
            return GR_API_EXISTS;
        }
        *answer_out = add(store, object);
        return *answer_out != NULL ? GR_API_OK : GR_API_FAILED;
    }
    if (there == NULL) {
        return GR_API_NOT_FOUND;
    }
    if (strcmp(verb, "get") == 0) {
        *answer_out = there;
    } else if (strcmp(verb, "delete") == 0) {
        *answer_out = delete_one(store, there);
    } else if (is_stale(there, object)) {
        return GR_API_CONFLICT;
    } else {
        *answer_out = change(store, there, object, strcmp(verb, "status") == 0);
    }
    return GR_API_OK;
}

void gr_store_set_status(gr_store *store, const json_t *object, json_t *status)
{
    const json_t *there = find_same(store, object);
    if (there == NULL || json_equal(json_object_get(there, "status"), status)) {
        json_decref(status);
        return;
    }
    json_t *next = json_copy((json_t *)there);
    gr_object_put(next, "metadata", json_deep_copy(json_object_get(there, "metadata")),
                  &store->no_memory);
    gr_object_put(next, "status", status, &store->no_memory);
    (void)replace(store, there, next);
}
