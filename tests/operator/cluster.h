/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_OPERATOR_CLUSTER_H
#define GR_TESTS_OPERATOR_CLUSTER_H

/* A small cluster, written by hand, with one job: for tests of one look. Include this behind
 * cmocka.h. */

#include "operator/object.h"
#include "operator/operator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cluster {
    const gr_operator_kind *kind;
    json_t *job, *objects;
    const char *gang_scheduler, *now, *launch_agent_image;
    int keys_made;
    bool asks_progress;
    const json_t *progress; /* what a worker has answered, borrowed */
    gr_operator_result result;
} cluster;

static inline json_t *make_token(void *c)
{
    ((cluster *)c)->keys_made++;
    return json_pack("{s:s}", "token", "TOKEN");
}

static inline json_t *make_key(void *arg)
{
    ((cluster *)arg)->keys_made++;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "cHJpdmF0ZQ==", "ssh-publickey", "cHVibGlj");
}

/* JSON with ' in place of ". */
static inline json_t *json(const char *text)
{
    char *copy = strdup(text);
    for (char *at = copy; *at != '\0'; at++) {
        *at = *at == '\'' ? '"' : *at;
    }
    json_error_t error;
    json_t *value = json_loads(copy, JSON_DECODE_ANY, &error);
    if (value == NULL) {
        fail_msg("%s: %s", error.text, text);
    }
    free(copy);
    return value;
}

/* Puts `value` at a path, whose maps are made. */
static inline void set(json_t *object, const char *path, const char *value)
{
    char copy[256], *key = copy;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *dot; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        bool no_memory = false;
        *dot = '\0';
        object = gr_object_map(object, key, &no_memory);
    }
    assert_int_equal(json_object_set_new(object, key, json(value)), 0);
}

/* A cluster with this job. */
static inline void open_cluster_with(cluster *c, const gr_operator_kind *kind, const char *job)
{
    *c = (cluster){.kind = kind,
                   .gang_scheduler = "",
                   .now = "2026-05-01T10:00:00Z",
                   .objects = json_array(),
                   .job = json(job)};
}

static inline void close_cluster(cluster *c)
{
    gr_operator_result_fini(&c->result);
    json_decref(c->job);
    json_decref(c->objects);
}

static inline gr_operator_view view_of(cluster *c)
{
    return (gr_operator_view){.job = c->job,
                              .objects = c->objects,
                              .now = c->now,
                              .cluster_domain = "",
                              .gang_scheduler = c->gang_scheduler,
                              .ssh_key = make_key,
                              .token = make_token,
                              .launch_agent_image = c->launch_agent_image,
                              .asks_progress = c->asks_progress,
                              .progress = c->progress,
                              .ssh_key_arg = c};
}

static inline void look(cluster *c)
{
    gr_operator_result_fini(&c->result);
    gr_operator_view view = view_of(c);
    gr_diag diag = {0};
    assert_int_equal(c->kind->reconcile(&view, &c->result, &diag), GR_OK);
    assert_string_equal(diag.text, "");
}

static inline json_t *find(const cluster *c, const char *kind, const char *name)
{
    size_t i;
    json_t *object;
    json_array_foreach(c->objects, i, object)
    {
        if (strcmp(gr_object_text(object, "kind"), kind) == 0 &&
            strcmp(gr_object_text(object, "metadata.name"), name) == 0) {
            return object;
        }
    }
    return NULL;
}

static inline void remove_object(cluster *c, const char *kind, const char *name)
{
    for (size_t i = json_array_size(c->objects); i-- > 0;) {
        if (json_array_get(c->objects, i) == find(c, kind, name)) {
            json_array_remove(c->objects, i);
        }
    }
}

/* Carries the writes of the last look out. */
static inline void carry_out(cluster *c)
{
    size_t i;
    json_t *one;
    json_array_foreach(c->result.writes, i, one)
    {
        const char *verb = gr_object_text(one, "verb");
        json_t *object = gr_object_at(one, "object");
        const char *kind = gr_object_text(object, "kind");
        const char *name = gr_object_text(object, "metadata.name");
        if (strcmp(kind, c->kind->kind) == 0) {
            json_object_set(c->job, "status", gr_object_at(object, "status"));
        } else if (strcmp(verb, "status") == 0) {
            json_object_set(find(c, kind, name), "status", gr_object_at(object, "status"));
        } else {
            remove_object(c, kind, name);
            if (strcmp(verb, "delete") != 0) {
                json_t *kept = json_deep_copy(object);
                json_object_set_new(gr_object_at(kept, "metadata"), "uid",
                                    json_sprintf("of %s", name));
                json_array_append_new(c->objects, kept);
            }
        }
    }
}

static inline void settle(cluster *c)
{
    for (int looks = 0; looks < 10; looks++) {
        look(c);
        if (json_array_size(c->result.writes) == 0) {
            return;
        }
        carry_out(c);
    }
    fail_msg("the job does not come to rest");
}

static inline void set_phase(cluster *c, const char *pod, const char *phase)
{
    char text[64];
    snprintf(text, sizeof text, "'%s'", phase);
    set(find(c, "Pod", pod), "status.phase", text);
}

static inline void assert_writes(const cluster *c, const char *expected)
{
    char text[1024] = "";
    size_t i, used = 0;
    const json_t *one;
    json_array_foreach(c->result.writes, i, one)
    {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", i > 0 ? ", " : "",
                                 gr_object_text(one, "verb"),
                                 gr_object_text(one, "object.metadata.name"));
    }
    assert_string_equal(text, expected);
}

/* Objects of a kind that the last look creates. */
static inline int count_created(const cluster *c, const char *kind)
{
    size_t i;
    int count = 0;
    const json_t *one;
    json_array_foreach(c->result.writes, i, one)
    {
        count += strcmp(gr_object_text(one, "verb"), "create") == 0 &&
                 strcmp(gr_object_text(one, "object.kind"), kind) == 0;
    }
    return count;
}

static inline const json_t *written(const cluster *c, size_t index)
{
    return gr_object_at(json_array_get(c->result.writes, index), "object");
}

static inline const char *event(const cluster *c, size_t index, const char *what)
{
    const char *text = gr_object_text(json_array_get(c->result.events, index), what);
    return text != NULL ? text : "";
}

/* "Created=True Running=False(reason)": the conditions in their order. */
static inline void assert_conditions(const cluster *c, const char *expected)
{
    char text[512] = "";
    size_t i, used = 0;
    const json_t *one;
    json_array_foreach(gr_object_at(c->job, "status.conditions"), i, one)
    {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s=%s(%s)", i > 0 ? " " : "",
                                 gr_object_text(one, "type"), gr_object_text(one, "status"),
                                 gr_object_text(one, "reason"));
    }
    assert_string_equal(text, expected);
}

static inline void assert_json(const json_t *value, const char *expected)
{
    json_t *other = json(expected);
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    if (!json_equal(value, other)) {
        fail_msg("%s instead of %s", text, expected);
    }
    free(text);
    json_decref(other);
}

/* All pods that there are to be run. */
static inline void run_all_pods(cluster *c)
{
    size_t i;
    json_t *object;
    settle(c);
    json_array_foreach(c->objects, i, object)
    {
        if (strcmp(gr_object_text(object, "kind"), "Pod") == 0) {
            set(object, "status.phase", "'Running'");
        }
    }
    settle(c);
}

/* ---- Memory ---------------------------------------------------------------------------------- */
static long allocations_left;

static inline void *allocate(size_t size_bytes)
{
    return allocations_left-- > 0 ? malloc(size_bytes) : NULL;
}

/* Before the cluster of assert_memory_missing_anywhere_told is opened. */
static inline void count_allocations(void)
{
    allocations_left = 1000000;
    json_set_alloc_funcs(allocate, free);
}

/* Looks with so much memory; returns whether it was enough. */
static inline bool look_with(cluster *c, long allocations, const json_t *expected)
{
    gr_operator_view view = view_of(c);
    gr_operator_result result;
    gr_diag diag = {0};
    allocations_left = allocations;
    gr_status status = c->kind->reconcile(&view, &result, &diag);
    bool was_enough = allocations_left >= 0;
    allocations_left = 1000000;
    if (status == GR_OK) {
        assert_true(json_equal(result.writes, expected));
    } else {
        assert_int_equal(status, GR_E_NO_MEMORY);
        assert_false(was_enough);
    }
    gr_operator_result_fini(&result);
    return was_enough;
}

/* One look at this cluster, with ever more memory; closes it. */
static inline void assert_memory_missing_anywhere_told(cluster *c)
{
    look(c);
    json_t *expected = json_deep_copy(c->result.writes);
    long allocations = 0;
    while (!look_with(c, allocations, expected)) {
        allocations++;
    }
    assert_true(allocations > 500);
    json_decref(expected);
    close_cluster(c);
    json_set_alloc_funcs(malloc, free);
}

#endif
