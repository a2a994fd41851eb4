/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/look.h"

#include "base/fail.h"
#include "operator/object.h"

#include <stdio.h>
#include <string.h>

void gr_look_event(gr_look *l, const char *type, const char *reason, const char *message)
{
    gr_object_append(l->result->events,
                     json_pack("{s:s, s:o, s:o}", "type", type, "reason",
                               gr_object_sentence(reason), "message", gr_object_sentence(message)),
                     &l->no_memory);
}

void gr_look_write(gr_look *l, const char *verb, json_t *object)
{
    gr_object_append(l->result->writes, json_pack("{s:s, s:o}", "verb", verb, "object", object),
                     &l->no_memory);
}

void gr_look_create(gr_look *l, json_t *object, size_t first_event, const char *counter)
{
    json_t *write = json_pack("{s:s, s:o, s:I, s:I, s:s*}", "verb", "create", "object", object,
                              "first_event", (json_int_t)first_event, "end_event",
                              (json_int_t)json_array_size(l->result->events), "counter", counter);
    gr_object_append(l->result->writes, write, &l->no_memory);
    if (counter != NULL) {
        gr_object_put(l->status, counter, json_integer(gr_object_int(l->status, counter, 0) + 1),
                      &l->no_memory);
    }
}

bool gr_look_delete(gr_look *l, const json_t *object)
{
    json_t *metadata = gr_object_at(object, "metadata");
    if (json_object_get(metadata, "deletionTimestamp") != NULL) {
        return false; /* it goes already */
    }
    gr_look_write(
        l, "delete",
        json_pack("{s:O, s:O, s:{s:O, s:O*, s:O*}}", "apiVersion",
                  json_object_get(object, "apiVersion"), "kind", json_object_get(object, "kind"),
                  "metadata", "name", json_object_get(metadata, "name"), "namespace",
                  json_object_get(metadata, "namespace"), "uid", json_object_get(metadata, "uid")));
    return true;
}

void gr_look_stop(gr_look *l, const json_t *object)
{
    char message[GR_EVENT_BYTES];
    snprintf(message, sizeof message,
             "Resource \"%s\" of Kind \"%s\" already exists and is not managed by %s",
             gr_object_text(object, "metadata.name"), gr_object_text(object, "kind"), l->kind);
    gr_look_event(l, "Warning", "ErrResourceExists", message);
    l->is_stopped = l->result->retry = true;
}

enum { INDEX_BYTES = 1024 };

static const char *index_key(const char *api_version, const char *kind, const char *name,
                             char key_out[INDEX_BYTES])
{
    snprintf(key_out, INDEX_BYTES, "%s %s %s", api_version, kind, name);
    return key_out;
}

static void make_index(gr_look *l)
{
    size_t i;
    json_t *object;
    char key[INDEX_BYTES];
    l->index = json_object();
    json_array_foreach(l->view->objects, i, object)
    {
        const char *api_version = gr_object_text(object, "apiVersion");
        const char *kind = gr_object_text(object, "kind");
        const char *name = gr_object_text(object, "metadata.name");
        if (api_version != NULL && kind != NULL && name != NULL) {
            gr_object_put_default(l->index, index_key(api_version, kind, name, key),
                                  json_incref(object), &l->no_memory);
        }
    }
    l->no_memory |= l->index == NULL;
}

/* The object of the view; NULL: there is none. */
static json_t *find(gr_look *l, const char *api_version, const char *kind, const char *name)
{
    char key[INDEX_BYTES];
    if (l->index == NULL) {
        make_index(l);
    }
    return json_object_get(l->index, index_key(api_version, kind, name, key));
}

json_t *gr_look_find_own(gr_look *l, const char *api_version, const char *kind, const char *name)
{
    json_t *object = find(l, api_version, kind, name);
    if (object == NULL || gr_object_controlled(object, l->uid)) {
        return object;
    }
    gr_look_stop(l, object);
    return NULL;
}

void gr_look_keep(gr_look *l, json_t *wanted, const char *part, const char *const *keys)
{
    const char *api_version = gr_object_text(wanted, "apiVersion");
    const char *kind = gr_object_text(wanted, "kind");
    const char *name = gr_object_text(wanted, "metadata.name");
    if (name == NULL) {
        l->no_memory = true;
        return;
    }
    const json_t *there = gr_look_find_own(l, api_version, kind, name);
    if (there == NULL) {
        if (!l->is_stopped) {
            gr_look_write(l, "create", json_incref(wanted));
        }
        return;
    }
    json_t *is = json_object_get(there, part), *should = json_object_get(wanted, part);
    bool is_same = keys[0] != NULL || is == should || json_equal(is, should);
    for (size_t i = 0; keys[i] != NULL; i++) {
        const json_t *a = json_object_get(is, keys[i]), *b = json_object_get(should, keys[i]);
        is_same &= a == b || json_equal(a, b) || (b == NULL && json_is_false(a));
    }
    if (is_same) {
        return;
    }
    json_t *repaired = json_deep_copy(there);
    if (keys[0] == NULL) {
        gr_object_put(repaired, part, json_incref(should), &l->no_memory);
    }
    json_t *target = keys[0] != NULL ? gr_object_map(repaired, part, &l->no_memory) : NULL;
    for (size_t i = 0; keys[i] != NULL; i++) {
        json_t *value = json_object_get(should, keys[i]);
        if (value != NULL) {
            gr_object_put(target, keys[i], json_incref(value), &l->no_memory);
        } else {
            json_object_del(target, keys[i]);
        }
    }
    gr_look_write(l, "update", repaired);
}

bool gr_look_set_condition(gr_look *l, const char *type, bool holds, const char *reason,
                           const char *message)
{
    const char *status = holds ? "True" : "False";
    bool is_end = strcmp(type, "Failed") == 0 || strcmp(type, "Succeeded") == 0;
    json_t *conditions = gr_object_list(l->status, "conditions", &l->no_memory);
    json_t *before = gr_object_condition(conditions, type);
    const char *since = l->view->now;
    if (gr_object_is_text(before, "status", status)) {
        if (gr_object_is_text(before, "reason", reason)) {
            return false;
        }
        const char *time = gr_object_text(before, "lastTransitionTime");
        since = time != NULL ? time : since;
    }
    json_t *condition =
        json_pack("{s:s, s:s, s:o, s:o, s:s, s:s}", "type", type, "status", status, "reason",
                  gr_object_sentence(reason), "message", gr_object_sentence(message),
                  "lastUpdateTime", l->view->now, "lastTransitionTime", since);
    for (size_t i = json_array_size(conditions); i-- > 0;) {
        json_t *other = json_array_get(conditions, i);
        bool is_replaced =
            (strcmp(type, "Running") == 0 && gr_object_is_text(other, "type", "Restarting")) ||
            (strcmp(type, "Restarting") == 0 && gr_object_is_text(other, "type", "Running"));
        if (other == before || is_replaced) {
            json_array_remove(conditions, i);
        } else if (is_end && !gr_object_is_text(other, "type", "Created") &&
                   !gr_object_is_text(other, "type", "Suspended")) {
            gr_object_put_text(other, "status", "False", &l->no_memory);
        }
    }
    gr_object_append(conditions, condition, &l->no_memory);
    return true;
}

json_t *gr_look_gradus_container(const char *image)
{
    return json_pack("{s:s, s:s, s:s, s:[s, s, s, s], s:{s:{s:s, s:s}, s:{s:s, s:s}},"
                     " s:{s:b, s:b, s:{s:[s]}, s:{s:s}}, s:[{s:s, s:s}]}",
                     "name", GR_GRADUS_VOLUME, "image", image, "imagePullPolicy", "IfNotPresent",
                     "command", "/usr/bin/gradus", "agent", "--install", GR_GRADUS_FOLDER,
                     "resources", "requests", "cpu", "100m", "memory", "128Mi", "limits", "cpu",
                     "100m", "memory", "128Mi", "securityContext", "allowPrivilegeEscalation",
                     false, "readOnlyRootFilesystem", true, "capabilities", "drop", "ALL",
                     "seccompProfile", "type", "RuntimeDefault", "volumeMounts", "name",
                     GR_GRADUS_VOLUME, "mountPath", GR_GRADUS_FOLDER);
}

json_t *gr_look_metadata(gr_look *l, const char *name)
{
    json_t *metadata = json_pack("{s:s, s:s}", "name", name, "namespace", l->space);
    if (l->uid[0] != '\0') { /* a manifest that is in no cluster has none */
        gr_object_put(metadata, "ownerReferences",
                      json_pack("[{s:s, s:s, s:s, s:s, s:b, s:b}]", "apiVersion", l->api_version,
                                "kind", l->kind, "name", l->name, "uid", l->uid, "controller", 1,
                                "blockOwnerDeletion", 1),
                      &l->no_memory);
    }
    return metadata;
}

static const char *text_or(const json_t *object, const char *path, const char *otherwise)
{
    const char *text = gr_object_text(object, path);
    return text != NULL ? text : otherwise;
}

void gr_look_open(gr_look *l, const gr_operator_view *view, const gr_operator_kind *kind,
                  gr_operator_result *result)
{
    *result = (gr_operator_result){.writes = json_array(), .events = json_array()};
    const json_t *status = json_object_get(view->job, "status");
    *l = (gr_look){.view = view,
                   .result = result,
                   .api_version = kind->api_version,
                   .kind = kind->kind,
                   .job = json_deep_copy(view->job),
                   .name = text_or(view->job, "metadata.name", ""),
                   .space = text_or(view->job, "metadata.namespace", "default"),
                   .uid = text_or(view->job, "metadata.uid", ""),
                   .status = json_is_object(status) ? json_deep_copy(status) : json_object()};
    l->no_memory =
        result->writes == NULL || result->events == NULL || l->job == NULL || l->status == NULL;
}

void gr_look_write_status(gr_look *l)
{
    if (!json_equal(json_object_get(l->view->job, "status"), l->status)) {
        json_t *job = json_deep_copy(l->view->job);
        gr_object_put(job, "status", json_incref(l->status), &l->no_memory);
        gr_look_write(l, "status", job);
    }
}

gr_status gr_look_close(gr_look *l, gr_diag *diag)
{
    json_decref(l->job);
    json_decref(l->status);
    json_decref(l->index);
    if (!l->no_memory) {
        return GR_OK;
    }
    gr_operator_result_fini(l->result);
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory to look at the %s %s/%s", l->kind, l->space,
                   l->name);
}
