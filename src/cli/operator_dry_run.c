/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus operator --dry-run`: the objects that a Kubernetes job would get. */

#include "base/fail.h"
#include "cli/cli.h"
#include "cli/manifest.h"
#include "cli/operator.h"

#include <string.h>

/* A gr_operator_view's ssh_key. Whoever applies what is printed sees at once why ssh fails. */
static json_t *hidden_key(void *ssh_key_arg)
{
    (void)ssh_key_arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "not shown: the operator makes a key",
                     "ssh-publickey", "not shown: the operator makes a key");
}

static json_t *hidden_token(void *ssh_key_arg)
{
    (void)ssh_key_arg;
    return json_pack("{s:s}", "token", "not shown: the operator makes a token");
}

/* The note is text, not base64. */
static int show_note(json_t *object)
{
    const char *kind = json_string_value(json_object_get(object, "kind"));
    if (kind == NULL || strcmp(kind, "Secret") != 0) {
        return 0;
    }
    int failed = json_object_set(object, "stringData", json_object_get(object, "data"));
    return failed | json_object_del(object, "data");
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* What is only odd. */
static void print_warnings(const char *where, const json_t *events)
{
    size_t i;
    const json_t *event;
    json_array_foreach(events, i, event)
    {
        if (strcmp(text_of(event, "type"), "Warning") == 0) {
            fprintf(stderr, "gradus: warning: %s: %s\n", where, text_of(event, "message"));
        }
    }
}

/* Adds what is to be created to `objects`. */
static gr_status take_creations(const char *where, const json_t *writes, json_t *objects,
                                gr_diag *diag)
{
    size_t i, before = json_array_size(objects);
    const json_t *one;
    json_array_foreach(writes, i, one)
    {
        json_t *object = json_object_get(one, "object");
        if (strcmp(text_of(one, "verb"), "create") == 0 &&
            (show_note(object) != 0 || json_array_append(objects, object) != 0)) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the objects");
        }
    }
    if (json_array_size(objects) == before) {
        fprintf(stderr,
                "gradus: warning: %s: nothing is made for this job: another controller manages "
                "it, or it has ended\n",
                where);
    }
    return GR_OK;
}

static gr_status plan_job(const gr_operator_options *options, const json_t *document,
                          json_t *objects, gr_diag *diag)
{
    char where[GR_MANIFEST_WHERE_BYTES];
    const gr_operator_view how = {.cluster_domain = options->cluster_domain,
                                  .gang_scheduler = options->gang_scheduler,
                                  .pytorch_init_image = options->pytorch_init_image,
                                  .pytorch_init_tries = options->pytorch_init_tries,
                                  .kubectl_delivery_image = options->kubectl_delivery_image,
                                  .launch_agent_image = options->launch_agent_image,
                                  .asks_progress = options->progress_us > 0,
                                  .ssh_key = hidden_key,
                                  .token = hidden_token};
    const char *space = options->space != NULL ? options->space : "default";
    gr_operator_result result = {0};
    gr_manifest_where(options->file, document, where);
    gr_status status =
        gr_manifest_look(where, json_array_get(document, 1), space, &how, &result, diag);
    if (status == GR_OK) {
        print_warnings(where, result.events);
        status = take_creations(where, result.writes, objects, diag);
    }
    gr_operator_result_fini(&result);
    return status;
}

static gr_status print_objects(json_t *objects, int output, gr_diag *diag)
{
    if (output == GR_OPERATOR_JSON) {
        json_t *list =
            json_pack("{s:s, s:s, s:O}", "apiVersion", "v1", "kind", "List", "items", objects);
        int written = list != NULL ? json_dumpf(list, stdout, JSON_INDENT(2)) : -1;
        json_decref(list);
        putchar('\n');
        return written == 0 ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for the result");
    }
    size_t i;
    const json_t *object;
    json_array_foreach(objects, i, object)
    {
        gr_status status = gr_manifest_print(object, stdout, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

int gr_operator_dry_run(const gr_operator_options *options)
{
    gr_diag diag = {0};
    json_t *documents = NULL, *document, *objects = json_array();
    gr_status status =
        options->file == NULL
            ? gr_fail(&diag, GR_E_INVALID, "operator --dry-run needs a manifest: -f FILE")
            : gr_manifests_read(options->file, &documents, &diag);
    if (status == GR_OK && json_array_size(documents) == 0) {
        status = gr_fail(&diag, GR_E_INVALID, "%s holds no manifest", options->file);
    }
    if (status == GR_OK) {
        status = gr_manifests_name(options->file, documents, &diag);
    }
    size_t i;
    json_array_foreach(documents, i, document)
    {
        if (status == GR_OK) {
            status = plan_job(options, document, objects, &diag);
        }
    }
    if (status == GR_OK) {
        status = print_objects(objects, options->output, &diag);
    }
    json_decref(documents);
    json_decref(objects);
    return status == GR_OK ? gr_cli_flush() : gr_cli_refuse(status, &diag);
}
