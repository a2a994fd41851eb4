/* SPDX-License-Identifier: Apache-2.0 */

/* What an operator would say of a job, before any cluster has it. */

#include "base/fail.h"
#include "cli/manifest.h"
#include "operator/object.h"

#include <string.h>

void gr_manifest_where(const char *path, const json_t *document,
                       char text_out[GR_MANIFEST_WHERE_BYTES])
{
    snprintf(text_out, GR_MANIFEST_WHERE_BYTES, "%.200s:%d",
             strcmp(path, "-") != 0 ? path : "stdin",
             (int)json_integer_value(json_array_get(document, 0)));
}

const gr_operator_kind *gr_manifest_kind(const json_t *object)
{
    return gr_operator_find_kind(gr_operator_kinds, gr_object_text(object, "apiVersion"),
                                 gr_object_text(object, "kind"));
}

gr_status gr_manifest_refuse_kind(const char *where, const json_t *object, const char *what,
                                  const char *others, gr_diag *diag)
{
    char kinds[GR_OPERATOR_KINDS_BYTES];
    const char *kind = gr_object_text(object, "kind");
    const char *version = gr_object_text(object, "apiVersion");
    gr_operator_list_kinds(gr_operator_kinds, kinds);
    return gr_fail(diag, GR_E_INVALID,
                   "%s: kind \"%.60s\" of apiVersion \"%.60s\" %s; this version knows %s%s", where,
                   kind != NULL ? kind : "", version != NULL ? version : "", what, kinds, others);
}

/* A gr_operator_view's ssh_key and token. */
static json_t *no_key(void *ssh_key_arg)
{
    (void)ssh_key_arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "", "ssh-publickey", "");
}

static const char *or_none(const char *text)
{
    return text != NULL ? text : "";
}

/* A reconciler tells a wrong job by an event. */
static gr_status judge(const char *where, const json_t *events, gr_diag *diag)
{
    size_t i;
    const json_t *event;
    json_array_foreach(events, i, event)
    {
        if (gr_object_is_text(event, "reason", "ValidationError")) {
            return gr_fail(diag, GR_E_INVALID, "%s: %s", where,
                           or_none(gr_object_text(event, "message")));
        }
    }
    return GR_OK;
}

gr_status gr_manifest_look(const char *where, const json_t *job, const char *space,
                           const gr_operator_view *how, gr_operator_result *result_out,
                           gr_diag *diag)
{
    const gr_operator_kind *kind = gr_manifest_kind(job);
    const char *its_space = gr_object_text(job, "metadata.namespace");
    char sentence[GR_EVENT_BYTES];
    if (kind == NULL) {
        return gr_manifest_refuse_kind(where, job, "is not supported", "", diag);
    }
    if (or_none(gr_object_text(job, "metadata.name"))[0] == '\0') {
        return gr_fail(diag, GR_E_INVALID, "%s: metadata.name is missing", where);
    }
    if (gr_operator_unknown_field(kind, job, sentence)) {
        return gr_fail(diag, GR_E_INVALID, "%s: %s", where, sentence);
    }
    bool no_memory = false;
    json_t *seen = json_copy((json_t *)job);
    json_t *metadata = json_copy(json_object_get(job, "metadata"));
    if (or_none(its_space)[0] == '\0') {
        gr_object_put_text(metadata, "namespace", space, &no_memory);
    }
    gr_object_put(seen, "metadata", metadata, &no_memory);
    gr_operator_view view = *how;
    view.job = seen;
    view.creates_all = true;
    view.now = "1970-01-01T00:00:00Z"; /* of no object that is created */
    view.cluster_domain = or_none(how->cluster_domain);
    view.gang_scheduler = or_none(how->gang_scheduler);
    view.ssh_key = how->ssh_key != NULL ? how->ssh_key : no_key;
    view.token = how->token != NULL ? how->token : no_key;
    gr_operator_result result = {0};
    gr_status status = no_memory ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the job")
                                 : kind->reconcile(&view, &result, diag);
    if (status == GR_OK) {
        status = judge(where, result.events, diag);
    }
    json_decref(seen);
    if (status != GR_OK) {
        gr_operator_result_fini(&result);
        return status;
    }
    *result_out = result;
    return GR_OK;
}
