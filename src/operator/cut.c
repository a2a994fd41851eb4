/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/cut.h"

#include <string.h>

typedef struct level level;

typedef struct rule {
    const char *key;
    const level *below; /* NULL: all of it */
} rule;

/* Of a map. */
struct level {
    const rule *rules; /* ends with key NULL */
    bool keeps;        /* what the rules name, and nothing else; false: all but that */
    bool is_list;      /* of a list of maps, too */
};

/* ---- Rules ----------------------------------------------------------------------------------- */
static const level pod, little, no_status;

static const rule of_condition[] = {
    {.key = "type"}, {.key = "status"}, {.key = "reason"}, {.key = "message"}, {.key = NULL}};
static const level condition = {of_condition, true, true};
static const rule of_container[] = {
    {.key = "name"}, {.key = "restartCount"}, {.key = "state"}, {.key = NULL}};
static const level container = {of_container, true, true};
static const rule of_pod_metadata[] = {{.key = "name"},
                                       {.key = "namespace"},
                                       {.key = "uid"},
                                       {.key = "resourceVersion"},
                                       {.key = "creationTimestamp"},
                                       {.key = "deletionTimestamp"},
                                       {.key = "labels"},
                                       {.key = "ownerReferences"},
                                       {.key = NULL}};
static const level pod_metadata = {of_pod_metadata, true, false};
static const rule of_pod_spec[] = {{.key = "restartPolicy"}, {.key = NULL}};
static const level pod_spec = {of_pod_spec, true, false};
static const rule of_pod_status[] = {{.key = "phase"},
                                     {.key = "reason"},
                                     {.key = "message"},
                                     {.key = "podIP"},
                                     {"conditions", &condition},
                                     {"initContainerStatuses", &container},
                                     {"containerStatuses", &container},
                                     {.key = NULL}};
static const level pod_status = {of_pod_status, true, false};
static const rule of_pod[] = {{.key = "apiVersion"},
                              {.key = "kind"},
                              {"metadata", &pod_metadata},
                              {"spec", &pod_spec},
                              {"status", &pod_status},
                              /* of an event; the last two of one that tells of an error */
                              {.key = "type"},
                              {"object", &pod},
                              {.key = "code"},
                              {.key = "message"},
                              {.key = NULL}};
static const level pod = {of_pod, true, false};

static const rule of_metadata[] = {{.key = "managedFields"}, {.key = NULL}};
static const level metadata = {of_metadata, false, false};
static const rule of_little[] = {{"metadata", &metadata}, {"object", &little}, {.key = NULL}};
static const level little = {of_little, false, false};
static const rule of_no_status[] = {
    {"metadata", &metadata}, {"object", &no_status}, {.key = "status"}, {.key = NULL}};
static const level no_status = {of_no_status, false, false};

/* ---- Text ------------------------------------------------------------------------------------ */
typedef struct cutter {
    const char *at, *end; /* of what is to be read */
    char *out;            /* behind what is written, at `at` at the latest */
    int depth;
    bool failed; /* it is no JSON */
} cutter;

static char skip_space(cutter *c)
{
    while (c->at < c->end &&
           (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) {
        c->at++;
    }
    c->failed |= c->at == c->end;
    return c->failed ? '\0' : *c->at;
}

/* Behind the mark `c->at` stands at. */
static void skip_string(cutter *c)
{
    const char *at = c->at + 1;
    while (at < c->end && *at != '"') {
        at += *at == '\\' ? 2 : 1;
    }
    c->failed |= at >= c->end;
    c->at = c->failed ? c->end : at + 1;
}

/* To the end of a value, or of what stands where one should be. */
static void skip_value(cutter *c)
{
    int depth = 0;
    for (char first = skip_space(c); c->at < c->end;) {
        char mark = *c->at;
        if (mark == '"') {
            skip_string(c);
        } else if (depth == 0 && (mark == ',' || mark == '}' || mark == ']')) {
            return;
        } else {
            depth += mark == '{' || mark == '[';
            depth -= mark == '}' || mark == ']';
            c->at++;
        }
        if (depth == 0 && (first == '"' || first == '{' || first == '[')) {
            return;
        }
    }
}

static void put(cutter *c, const char *from, const char *to)
{
    memmove(c->out, from, (size_t)(to - from));
    c->out += to - from;
}

static void put_mark(cutter *c, char mark)
{
    *c->out++ = mark;
}

static void copy_value(cutter *c)
{
    (void)skip_space(c);
    const char *from = c->at;
    skip_value(c);
    put(c, from, c->at);
}

static const rule *find_rule(const level *l, const char *key, size_t length)
{
    const rule *r = l->rules;
    while (r->key != NULL && (strlen(r->key) != length || memcmp(r->key, key, length) != 0)) {
        r++;
    }
    return r->key != NULL ? r : NULL;
}

static void cut_value(cutter *c, const level *l);

/* A key and its value; nothing is written where they are cut out. */
static void cut_pair(cutter *c, const level *l, bool *is_first)
{
    if (skip_space(c) != '"') {
        c->failed = true;
        return;
    }
    const char *key = c->at;
    skip_string(c);
    size_t length = c->failed ? 0 : (size_t)(c->at - key) - 2;
    const rule *r = find_rule(l, key + 1, length);
    const char *key_end = c->at;
    if (skip_space(c) != ':') {
        c->failed = true;
        return;
    }
    c->at++;
    if (r == NULL ? l->keeps : r->below == NULL && !l->keeps) {
        skip_value(c);
        return;
    }
    if (!*is_first) {
        put_mark(c, ',');
    }
    *is_first = false;
    put(c, key, key_end);
    put_mark(c, ':');
    if (r != NULL && r->below != NULL) {
        cut_value(c, r->below);
    } else {
        copy_value(c);
    }
}

/* The pairs of a map, or the values of a list, up to its end. */
static void cut_items(cutter *c, const level *l, char end)
{
    bool is_first = true;
    put_mark(c, *c->at++);
    while (!c->failed && skip_space(c) != end) {
        if (end == '}') {
            cut_pair(c, l, &is_first);
        } else {
            if (!is_first) {
                put_mark(c, ',');
            }
            is_first = false;
            cut_value(c, l);
        }
        char mark = skip_space(c);
        c->failed |= mark != ',' && mark != end;
        const char *comma = c->at;
        c->at += mark == ',';
        if (mark == ',' && skip_space(c) == end) {
            c->failed = true;
            c->at = comma;
        }
    }
    if (!c->failed) {
        put_mark(c, *c->at++);
    }
}

static void cut_value(cutter *c, const level *l)
{
    enum { DEPTH_MAX = 32 }; /* rules are less deep */
    char first = skip_space(c);
    if ((first == '{' || (first == '[' && l->is_list)) && c->depth < DEPTH_MAX) {
        c->depth++;
        cut_items(c, l, first == '{' ? '}' : ']');
        c->depth--;
    } else {
        copy_value(c);
    }
}

size_t gr_operator_resource_cut(const void *resource, char *text, size_t size_bytes)
{
    gr_trim trim = ((const gr_operator_resource *)resource)->trim;
    const level *l = trim == GR_TRIM_POD ? &pod : trim == GR_TRIM_STATUS ? &no_status : &little;
    cutter c = {.at = text, .end = text + size_bytes, .out = text};
    cut_value(&c, l);
    put(&c, c.at, c.end); /* nothing, or what was not understood */
    return (size_t)(c.out - text);
}
