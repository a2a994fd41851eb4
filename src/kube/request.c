/* SPDX-License-Identifier: Apache-2.0 */

/* Requests as HTTP has them, and answers as sentences. */

#include "base/fail.h"
#include "base/text.h"
#include "kube/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct verb_traits {
    const char *method, *content_type;
    const char *word; /* as Kubernetes' roles have it */
    bool needs_name, needs_body, only_reads;
} verb_traits;

static const verb_traits verbs[] = {
    [GR_KUBE_GET] = {"GET", NULL, "get", true, false, true},
    [GR_KUBE_LIST] = {"GET", NULL, "list", false, false, true},
    [GR_KUBE_CREATE] = {"POST", "application/json", "create", false, true, false},
    [GR_KUBE_REPLACE] = {"PUT", "application/json", "update", true, true, false},
    [GR_KUBE_MERGE_PATCH] = {"PATCH", "application/merge-patch+json", "patch", true, true, false},
    [GR_KUBE_APPLY] = {"PATCH", "application/apply-patch+yaml", "patch", true, true, false},
    [GR_KUBE_DELETE] = {"DELETE", "application/json", "delete", true, false, false},
    [GR_KUBE_WATCH] = {"GET", NULL, "watch", false, false, true},
    [GR_KUBE_LOG] = {"GET", NULL, "get", true, false, true}};

const char *gr_kube_call_method(const gr_kube_call *call)
{
    return verbs[call->verb].method;
}

const char *gr_kube_call_content_type(const gr_kube_call *call)
{
    return call->body != NULL ? verbs[call->verb].content_type : NULL;
}

bool gr_kube_call_only_reads(const gr_kube_call *call)
{
    return verbs[call->verb].only_reads;
}

bool gr_kube_call_streams(const gr_kube_call *call)
{
    return call->verb == GR_KUBE_WATCH || call->verb == GR_KUBE_LOG;
}

static void write_part(FILE *file, const char *before, const char *text)
{
    if (text != NULL) {
        fputs(before, file);
        gr_text_write_url(file, text, "");
    }
}

static void write_query(FILE *file, const gr_kube_request *request)
{
    char mark = '?';
    struct {
        const char *key, *value;
    } pairs[] = {{"labelSelector", request->label_selector},
                 {"fieldSelector", request->field_selector},
                 {"fieldManager", request->field_manager},
                 {"force", request->verb == GR_KUBE_APPLY && request->force ? "true" : NULL}};
    if (request->verb == GR_KUBE_LIST) {
        fprintf(file, "?limit=%d", request->limit > 0 ? request->limit : GR_KUBE_LIST_CHUNK);
        mark = '&';
    } else if (request->verb == GR_KUBE_WATCH) {
        fprintf(file, "?watch=1&allowWatchBookmarks=true&timeoutSeconds=%d",
                (int)(request->timeout_us / 1000000));
        write_part(file, "&resourceVersion=", request->resource_version);
        mark = '&';
    } else if (request->verb == GR_KUBE_LOG) {
        fprintf(file, "?%s", request->query);
        mark = '&';
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].value != NULL) {
            fprintf(file, "%c%s=", mark, pairs[i].key);
            gr_text_write_url(file, pairs[i].value, "");
            mark = '&';
        }
    }
}

/* NULL: no memory. */
static char *make_path(const gr_kube_request *request)
{
    char *path = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&path, &size);
    if (file == NULL) {
        return NULL;
    }
    const gr_kube_resource *resource = &request->resource;
    if (resource->group[0] == '\0') {
        fputs("/api", file);
    } else {
        write_part(file, "/apis/", resource->group);
    }
    write_part(file, "/", resource->version);
    write_part(file, "/namespaces/", request->space);
    write_part(file, "/", resource->plural);
    write_part(file, "/", request->name);
    write_part(file, "/", request->subresource);
    write_query(file, request);
    bool failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    if (failed) {
        free(path);
        return NULL;
    }
    return path;
}

char *gr_kube_call_path(const gr_kube_call *call)
{
    char *path = NULL;
    size_t size = 0;
    if (call->continues_at == NULL) {
        return strdup(call->path);
    }
    FILE *file = open_memstream(&path, &size);
    if (file == NULL) {
        return NULL;
    }
    fputs(call->path, file);
    write_part(file, "&continue=", call->continues_at);
    if (fclose(file) != 0) {
        free(path);
        return NULL;
    }
    return path;
}

/* NULL: no memory. */
static char *make_body(const gr_kube_request *request)
{
    if (request->verb != GR_KUBE_DELETE) {
        return json_dumps(request->body, JSON_COMPACT);
    }
    json_t *conditions = json_object(), *options = json_object();
    int failed = json_object_set_new(options, "apiVersion", json_string("v1"));
    failed |= json_object_set_new(options, "kind", json_string("DeleteOptions"));
    if (request->uid != NULL) {
        failed |= json_object_set_new(conditions, "uid", json_string(request->uid));
    }
    if (request->resource_version != NULL) {
        failed |= json_object_set_new(conditions, "resourceVersion",
                                      json_string(request->resource_version));
    }
    failed |= json_object_set_new(options, "preconditions", conditions);
    if (request->propagation != NULL) {
        failed |=
            json_object_set_new(options, "propagationPolicy", json_string(request->propagation));
    }
    if (request->grace_s > 0) {
        failed |=
            json_object_set_new(options, "gracePeriodSeconds", json_integer(request->grace_s));
    }
    char *text = failed == 0 ? json_dumps(options, JSON_COMPACT) : NULL;
    json_decref(options);
    return text;
}

/* A part of a path that would lead elsewhere. */
static bool is_bad_part(const char *text)
{
    return text != NULL && (text[0] == '\0' || strcmp(text, ".") == 0 || strcmp(text, "..") == 0 ||
                            strchr(text, '/') != NULL || strlen(text) > 253);
}

static gr_status check(const gr_kube_request *request, gr_diag *diag)
{
    const verb_traits *traits = &verbs[request->verb];
    const gr_kube_resource *resource = &request->resource;
    const char *what = NULL;
    if (resource->group == NULL || is_bad_part(resource->version) || resource->version == NULL ||
        is_bad_part(resource->plural) || resource->plural == NULL || strchr(resource->group, '/')) {
        what = "names no resource";
    } else if (is_bad_part(request->space) || is_bad_part(request->name) ||
               is_bad_part(request->subresource)) {
        what = "has an empty or impossible namespace, name or subresource";
    } else if (traits->needs_name && request->name == NULL) {
        what = "needs a name";
    } else if (traits->needs_body && request->body == NULL) {
        what = "needs an object";
    } else if (request->verb == GR_KUBE_APPLY && request->field_manager == NULL) {
        what = "needs a field manager";
    } else if (request->done == NULL ||
               (request->verb == GR_KUBE_LOG &&
                (request->bytes == NULL || request->query == NULL)) ||
               ((request->verb == GR_KUBE_LIST || request->verb == GR_KUBE_WATCH) &&
                request->item == NULL)) {
        what = "needs somebody who takes the answer";
    }
    if (what == NULL) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID, "a request to %s %.100s %.100s %s", traits->word,
                   resource->plural != NULL ? resource->plural : "(no resource)",
                   request->name != NULL ? request->name : "", what);
}

gr_status gr_kube_call_fill(gr_kube_call *call, const gr_kube_request *request, gr_diag *diag)
{
    gr_status status = check(request, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_kube_resource *resource = &request->resource;
    const char *slash = request->subresource != NULL ? "/" : "";
    const char *part = request->subresource != NULL ? request->subresource : "";
    const char *space = request->space;
    call->verb = request->verb;
    call->timeout_us = request->timeout_us;
    call->item = request->item;
    call->cut = request->cut;
    call->cut_arg = request->cut_arg;
    call->skipped = request->skipped;
    call->done = request->done;
    call->arg = request->arg;
    call->bytes = request->bytes;
    call->path = make_path(request);
    bool has_body = verbs[request->verb].content_type != NULL;
    call->body = has_body ? make_body(request) : NULL;
    if (call->path == NULL || (has_body && call->body == NULL)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    const char *name = request->name, *between = "";
    if (space != NULL) {
        between = name != NULL ? "/" : "";
    }
    snprintf(call->target, sizeof call->target, "%.60s%s%.30s%s%.60s%s%.90s", resource->plural,
             slash, part,
             name != NULL    ? " "
             : space != NULL ? " in "
                             : "",
             space != NULL ? space : "", between, name != NULL ? name : "");
    snprintf(call->permission, sizeof call->permission,
             "\"%s\" on %.60s%s%.30s of API group \"%.60s\"%s%.60s", verbs[request->verb].word,
             resource->plural, slash, part, resource->group, space != NULL ? " in namespace " : "",
             space != NULL ? space : "");
    return GR_OK;
}

gr_status gr_kube_call_fail(const gr_kube_call *call, gr_status status, const char *why,
                            gr_diag *diag)
{
    return gr_fail(diag, status, "cannot %s %s: %s", verbs[call->verb].word, call->target, why);
}

static gr_status classify(int code, const char *reason)
{
    switch (code) {
    case 401:
    case 403:
        return GR_E_AUTH;
    case 404:
    case 410:
        return GR_E_NOT_FOUND;
    case 409:
        return strcmp(reason, "AlreadyExists") == 0 ? GR_E_IN_USE : GR_E_AGAIN;
    case 429:
    case 503:
        return GR_E_PEER_SLOW;
    default:
        return code >= 500 ? GR_E_IO : code >= 400 ? GR_E_INVALID : GR_E_PROTOCOL;
    }
}

gr_status gr_kube_call_judge(const gr_kube_call *call, int code, const json_t *status_object,
                             const char *where, gr_diag *diag)
{
    const char *reason = json_string_value(json_object_get(status_object, "reason"));
    const char *message = json_string_value(json_object_get(status_object, "message"));
    const char *word = verbs[call->verb].word;
    gr_status status = classify(code, reason != NULL ? reason : "");
    char said[GR_DIAG_TEXT_BYTES];
    snprintf(said, sizeof said, "%.40s%s%.240s", reason != NULL ? reason : "",
             reason != NULL && message != NULL ? ": " : "", message != NULL ? message : "");
    if (code == 401) {
        return gr_fail(diag, status,
                       "cannot %s %s: the server does not know who asks (%.60s); the token or "
                       "certificate of %s is wrong or has expired",
                       word, call->target, said, where);
    }
    if (code == 403) {
        return gr_fail(diag, status, "cannot %s %s: %.160s; a role must allow %s", word,
                       call->target, said, call->permission);
    }
    if (said[0] == '\0') {
        return gr_fail(diag, status, "cannot %s %s: %s answers with HTTP %d and no reason", word,
                       call->target, where, code);
    }
    return gr_fail(diag, status, "cannot %s %s: %s", word, call->target, said);
}
