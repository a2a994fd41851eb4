/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/cache.h"

#include "base/fail.h"
#include "base/hash.h"
#include "operator/object.h"
#include "operator/pack.h"
#include "operator/resource.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 256, RESOURCES_MAX = 32 };

static const char job_name_label[] = "training.kubeflow.org/job-name";

struct gr_cache_entry {
    gr_cache_node node;
    gr_cache_entry *next, **here; /* of the group; what points at this one */
    gr_cache_group *group;
    unsigned char *packed;
    uint64_t version; /* of the resource; 0: it is no number */
    uint32_t packed_bytes;
    uint32_t list; /* the last list of its resource that it was in */
    uint16_t resource;
    char name[];
};

typedef struct table {
    gr_cache_node **slots;
    size_t slot_count, count; /* slots: a power of two */
} table;

struct gr_cache {
    const gr_operator_kind *const *kinds;
    gr_cache_changed *changed;
    void *changed_arg;
    gr_packer *packer;
    table groups, entries;
    uint64_t newest[RESOURCES_MAX]; /* version that a list or a watch has shown */
    uint32_t lists[RESOURCES_MAX];
    size_t counts[RESOURCES_MAX], listed[RESOURCES_MAX]; /* entries; those in the last list */
};

/* ---- Tables ---------------------------------------------------------------------------------- */
static bool make_table(table *t)
{
    *t = (table){.slots = calloc(FIRST_SLOTS, sizeof(gr_cache_node *)), .slot_count = FIRST_SLOTS};
    return t->slots != NULL;
}

/* Where what has this hash begins. */
static gr_cache_node **slot_of(const table *t, uint64_t hash)
{
    return &t->slots[hash & (t->slot_count - 1)];
}

/* The node after this one, in no order; NULL begins, and ends. */
static gr_cache_node *next_node(const table *t, const gr_cache_node *node)
{
    if (node != NULL && node->next != NULL) {
        return node->next;
    }
    size_t slot = node != NULL ? (node->hash & (t->slot_count - 1)) + 1 : 0;
    while (slot < t->slot_count && t->slots[slot] == NULL) {
        slot++;
    }
    return slot < t->slot_count ? t->slots[slot] : NULL;
}

static void push_node(const table *t, gr_cache_node *node)
{
    gr_cache_node **slot = slot_of(t, node->hash);
    node->next = *slot;
    *slot = node;
}

/* With no memory, a full table stays as small as it is. */
static void put_node(table *t, gr_cache_node *node, uint64_t hash)
{
    table larger = {.slot_count = 2 * t->slot_count, .count = t->count};
    if (t->count >= t->slot_count &&
        (larger.slots = calloc(larger.slot_count, sizeof(gr_cache_node *))) != NULL) {
        for (gr_cache_node *at = next_node(t, NULL), *next; at != NULL; at = next) {
            next = next_node(t, at);
            push_node(&larger, at);
        }
        free(t->slots);
        *t = larger;
    }
    node->hash = hash;
    push_node(t, node);
    t->count++;
}

static void take_node(table *t, const gr_cache_node *node)
{
    gr_cache_node **at = slot_of(t, node->hash);
    while (*at != node) {
        at = &(*at)->next;
    }
    *at = node->next;
    t->count--;
}

/* ---- A cache --------------------------------------------------------------------------------- */
gr_status gr_cache_create(const gr_operator_kind *const *kinds, gr_cache_changed *changed,
                          void *changed_arg, gr_cache **cache_out, gr_diag *diag)
{
    GR_CHECK(gr_operator_resource_count <= RESOURCES_MAX);
    gr_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a cache of Kubernetes objects");
    }
    for (size_t i = 0; i < RESOURCES_MAX; i++) {
        cache->lists[i] = 1; /* 0: of an entry that none has shown */
    }
    cache->kinds = kinds;
    cache->changed = changed;
    cache->changed_arg = changed_arg;
    gr_status status =
        !make_table(&cache->groups) || !make_table(&cache->entries)
            ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for a cache of Kubernetes objects")
            : gr_packer_create(&cache->packer, diag);
    if (status != GR_OK) {
        gr_cache_destroy(cache);
        return status;
    }
    *cache_out = cache;
    return GR_OK;
}

void gr_cache_destroy(gr_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    gr_cache_node *next;
    for (gr_cache_node *at = next_node(&cache->entries, NULL); at != NULL; at = next) {
        next = next_node(&cache->entries, at);
        free(((gr_cache_entry *)at)->packed);
        free(at);
    }
    for (gr_cache_node *at = next_node(&cache->groups, NULL); at != NULL; at = next) {
        next = next_node(&cache->groups, at);
        free(at);
    }
    gr_packer_destroy(cache->packer);
    free(cache->groups.slots);
    free(cache->entries.slots);
    free(cache);
}

/* ---- Groups ---------------------------------------------------------------------------------- */
static uint64_t hash_of(const char *space, const char *name, uint64_t seed)
{
    return gr_hash64(name, strlen(name), gr_hash64(space, strlen(space), seed));
}

static gr_cache_group *find_group(const gr_cache *cache, const char *space, const char *name)
{
    uint64_t hash = hash_of(space, name, RESOURCES_MAX);
    gr_cache_node *node = *slot_of(&cache->groups, hash);
    for (; node != NULL; node = node->next) {
        gr_cache_group *group = (gr_cache_group *)node;
        if (node->hash == hash && strcmp(group->space, space) == 0 &&
            strcmp(group->name, name) == 0) {
            return group;
        }
    }
    return NULL;
}

/* Found or made; NULL: no memory. */
static gr_cache_group *need_group(gr_cache *cache, const char *space, const char *name)
{
    gr_cache_group *group = find_group(cache, space, name);
    if (group != NULL) {
        return group;
    }
    size_t space_bytes = strlen(space) + 1, name_bytes = strlen(name) + 1;
    group = calloc(1, sizeof *group + space_bytes + name_bytes);
    if (group == NULL) {
        return NULL;
    }
    memcpy(group->space, space, space_bytes);
    group->name = memcpy(group->space + space_bytes, name, name_bytes);
    put_node(&cache->groups, &group->node, hash_of(space, name, RESOURCES_MAX));
    return group;
}

void gr_cache_tidy(gr_cache *cache, gr_cache_group *group)
{
    if (group->entries != NULL || group->jobs != NULL) {
        return;
    }
    take_node(&cache->groups, &group->node);
    free(group);
}

gr_cache_group *gr_cache_next_group(const gr_cache *cache, const gr_cache_group *group)
{
    return (gr_cache_group *)next_node(&cache->groups, group != NULL ? &group->node : NULL);
}

/* ---- Entries --------------------------------------------------------------------------------- */
static gr_cache_entry *find_entry(const gr_cache *cache, size_t resource, const char *space,
                                  const char *name)
{
    uint64_t hash = hash_of(space, name, resource);
    gr_cache_node *node = *slot_of(&cache->entries, hash);
    for (; node != NULL; node = node->next) {
        gr_cache_entry *entry = (gr_cache_entry *)node;
        if (node->hash == hash && entry->resource == resource && strcmp(entry->name, name) == 0 &&
            strcmp(entry->group->space, space) == 0) {
            return entry;
        }
    }
    return NULL;
}

static gr_cache_entry *add_entry(gr_cache *cache, size_t resource, gr_cache_group *group,
                                 const char *name)
{
    size_t name_bytes = strlen(name) + 1;
    gr_cache_entry *entry = calloc(1, sizeof *entry + name_bytes);
    if (entry == NULL) {
        return NULL;
    }
    memcpy(entry->name, name, name_bytes);
    entry->resource = (uint16_t)resource;
    cache->counts[resource]++;
    put_node(&cache->entries, &entry->node, hash_of(group->space, name, resource));
    entry->group = group;
    entry->next = group->entries;
    entry->here = &group->entries;
    if (entry->next != NULL) {
        entry->next->here = &entry->next;
    }
    group->entries = entry;
    return entry;
}

/* A list shows it. */
static void mark_listed(gr_cache *cache, gr_cache_entry *entry)
{
    cache->listed[entry->resource] += entry->list != cache->lists[entry->resource];
    entry->list = cache->lists[entry->resource];
}

/* Takes it out of table and group, and frees it. */
static void free_entry(gr_cache *cache, gr_cache_entry *entry)
{
    cache->counts[entry->resource]--;
    cache->listed[entry->resource] -= entry->list == cache->lists[entry->resource];
    take_node(&cache->entries, &entry->node);
    *entry->here = entry->next;
    if (entry->next != NULL) {
        entry->next->here = entry->here;
    }
    free(entry->packed);
    free(entry);
}

/* Removes it, and says so. */
static gr_status drop_entry(gr_cache *cache, gr_cache_entry *entry)
{
    gr_cache_group *group = entry->group;
    size_t resource = entry->resource;
    free_entry(cache, entry);
    gr_status status = cache->changed(cache->changed_arg, group, resource, false);
    gr_cache_tidy(cache, group);
    return status;
}

/* ---- What is put ----------------------------------------------------------------------------- */
/* Versions of one resource may be compared where they are numbers; 0: this is none. */
static uint64_t parse_version(const char *text)
{
    if (text == NULL || text[0] == '\0' || strspn(text, "0123456789") != strlen(text)) {
        return 0;
    }
    return strtoull(text, NULL, 10);
}

static uint64_t version_of(const json_t *object)
{
    return parse_version(gr_object_text(object, "metadata.resourceVersion"));
}

/* A label has dots in its name: it is no path. */
static const char *label_of(const json_t *object, const char *label)
{
    return json_string_value(json_object_get(gr_object_at(object, "metadata.labels"), label));
}

/* The name of the job that the object belongs to, NULL: to none that is ours. */
static const char *job_of(const gr_cache *cache, const json_t *object)
{
    size_t i;
    const json_t *owner;
    json_array_foreach(gr_object_at(object, "metadata.ownerReferences"), i, owner)
    {
        if (gr_object_true(owner, "controller") &&
            gr_operator_find_kind(cache->kinds, gr_object_text(owner, "apiVersion"),
                                  gr_object_text(owner, "kind")) != NULL) {
            return gr_object_text(owner, "name");
        }
    }
    return label_of(object, job_name_label);
}

static const char *space_of(const gr_operator_resource *resource, const json_t *object)
{
    const char *space = resource->is_global ? "" : gr_object_text(object, "metadata.namespace");
    return space != NULL ? space : "default";
}

/* The bytes of the entry become those of `object`. */
static gr_status fill_entry(gr_cache *cache, gr_cache_entry *entry, const json_t *object,
                            bool *is_same_out)
{
    size_t size_bytes = 0;
    json_t *trimmed = gr_operator_resource_trim(&gr_operator_resources[entry->resource], object);
    const unsigned char *packed =
        trimmed != NULL ? gr_pack(cache->packer, trimmed, &size_bytes) : NULL;
    json_decref(trimmed);
    if (packed == NULL) {
        return GR_E_NO_MEMORY;
    }
    *is_same_out =
        entry->packed_bytes == size_bytes && memcmp(entry->packed, packed, size_bytes) == 0;
    if (*is_same_out) {
        return GR_OK;
    }
    unsigned char *copy = malloc(size_bytes);
    if (copy == NULL) {
        return GR_E_NO_MEMORY;
    }
    free(entry->packed);
    entry->packed = memcpy(copy, packed, size_bytes);
    entry->packed_bytes = (uint32_t)size_bytes;
    return GR_OK;
}

/* Puts an object of which `version` and group are known. */
static gr_status put_entry(gr_cache *cache, size_t resource, const json_t *object,
                           gr_cache_source source, gr_cache_group *group, gr_cache_entry *entry)
{
    const char *name = gr_object_text(object, "metadata.name");
    if (entry != NULL && entry->group != group) { /* its label has changed */
        gr_status status = drop_entry(cache, entry);
        if (status != GR_OK) {
            return status;
        }
        entry = NULL;
    }
    if (entry == NULL) {
        entry = add_entry(cache, resource, group, name);
    }
    bool is_same = false;
    if (entry == NULL) {
        gr_cache_tidy(cache, group);
        return GR_E_NO_MEMORY;
    }
    gr_status status = fill_entry(cache, entry, object, &is_same);
    if (status != GR_OK) {
        free_entry(cache, entry);
        gr_cache_tidy(cache, group);
        return status;
    }
    entry->version = version_of(object);
    if (source == GR_FROM_LIST) {
        mark_listed(cache, entry);
    }
    return is_same ? GR_OK : cache->changed(cache->changed_arg, group, resource, true);
}

gr_status gr_cache_put(gr_cache *cache, size_t resource, const json_t *object,
                       gr_cache_source source, bool *is_doubtful_out)
{
    const gr_operator_resource *row = &gr_operator_resources[resource];
    const char *name = gr_object_text(object, "metadata.name"), *space = space_of(row, object);
    if (name == NULL) {
        return GR_OK; /* no object of an API server */
    }
    uint64_t version = version_of(object), newest = cache->newest[resource];
    if (source != GR_FROM_ANSWER && version > newest) {
        cache->newest[resource] = version;
    }
    gr_cache_entry *entry = find_entry(cache, resource, space, name);
    if (entry != NULL && version != 0 && version <= entry->version) {
        if (source == GR_FROM_LIST) {
            mark_listed(cache, entry);
        }
        return GR_OK;
    }
    const char *job = row->is_job ? name : row->is_global ? "" : job_of(cache, object);
    if (job == NULL) {
        return entry != NULL ? drop_entry(cache, entry) : GR_OK;
    }
    if (entry == NULL && source != GR_FROM_LIST && version != 0 && version <= newest) {
        *is_doubtful_out = true;
        return GR_OK;
    }
    gr_cache_group *group = need_group(cache, space, job);
    return group != NULL ? put_entry(cache, resource, object, source, group, entry)
                         : GR_E_NO_MEMORY;
}

gr_status gr_cache_remove(gr_cache *cache, size_t resource, const json_t *object)
{
    const char *name = gr_object_text(object, "metadata.name");
    uint64_t version = version_of(object);
    gr_cache_entry *entry =
        name != NULL
            ? find_entry(cache, resource, space_of(&gr_operator_resources[resource], object), name)
            : NULL;
    if (version > cache->newest[resource]) {
        cache->newest[resource] = version;
    }
    return entry != NULL && (version == 0 || entry->version <= version) ? drop_entry(cache, entry)
                                                                        : GR_OK;
}

void gr_cache_begin_list(gr_cache *cache, size_t resource)
{
    cache->lists[resource]++;
    cache->listed[resource] = 0;
}

gr_status gr_cache_end_list(gr_cache *cache, size_t resource, const char *version)
{
    uint64_t newest = parse_version(version);
    if (newest > cache->newest[resource]) { /* what is gone by now is not in the list */
        cache->newest[resource] = newest;
    }
    if (cache->listed[resource] == cache->counts[resource]) {
        return GR_OK; /* nothing is to go; to look at all entries takes as long as many looks */
    }
    gr_cache_node *next;
    for (gr_cache_node *at = next_node(&cache->entries, NULL); at != NULL; at = next) {
        gr_cache_entry *entry = (gr_cache_entry *)at;
        next = next_node(&cache->entries, at);
        if (entry->resource == resource && entry->list != cache->lists[resource] &&
            (newest == 0 || entry->version <= newest)) {
            gr_status status = drop_entry(cache, entry);
            if (status != GR_OK) {
                return status;
            }
        }
    }
    return GR_OK;
}

bool gr_cache_is_of(const gr_cache *cache, const gr_cache_group *group, const json_t *object)
{
    const char *job = job_of(cache, object);
    return job != NULL && strcmp(job, group->name) == 0;
}

/* ---- What is got ----------------------------------------------------------------------------- */
static json_t *unpack_entry(gr_cache *cache, const gr_cache_entry *entry)
{
    const gr_operator_resource *row = &gr_operator_resources[entry->resource];
    json_t *object = gr_unpack(cache->packer, entry->packed, entry->packed_bytes);
    bool failed = object == NULL;
    gr_object_put_text(object, "apiVersion", row->api_version, &failed);
    gr_object_put_text(object, "kind", row->kind, &failed);
    if (!row->is_global) {
        gr_object_put_text(json_object_get(object, "metadata"), "namespace", entry->group->space,
                           &failed);
    }
    if (failed) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

json_t *gr_cache_get(gr_cache *cache, const gr_cache_group *group, size_t resource,
                     const char *name)
{
    const gr_cache_entry *entry = find_entry(cache, resource, group->space, name);
    return entry != NULL ? unpack_entry(cache, entry) : NULL;
}

uint64_t gr_cache_version(const gr_cache *cache, const gr_cache_group *group, size_t resource,
                          const char *name)
{
    const gr_cache_entry *entry = find_entry(cache, resource, group->space, name);
    return entry != NULL ? entry->version : 0;
}

gr_status gr_cache_forget(gr_cache *cache, const gr_cache_group *group, size_t resource,
                          const char *name, uint64_t version)
{
    gr_cache_entry *entry = find_entry(cache, resource, group->space, name);
    return entry != NULL && entry->version == version ? drop_entry(cache, entry) : GR_OK;
}

json_t *gr_cache_objects(gr_cache *cache, const gr_cache_group *group)
{
    bool failed = false;
    json_t *objects = json_array();
    const gr_cache_group *groups[] = {group, find_group(cache, "", "")};
    for (size_t i = 0; i < 2 && groups[i] != NULL; i++) {
        for (const gr_cache_entry *entry = groups[i]->entries; entry != NULL; entry = entry->next) {
            if (!gr_operator_resources[entry->resource].is_job) {
                gr_object_append(objects, unpack_entry(cache, entry), &failed);
            }
        }
    }
    if (failed) {
        json_decref(objects);
        objects = NULL;
    }
    return objects;
}
