/* SPDX-License-Identifier: Apache-2.0 */

/* What the controller wants becomes requests, and what watches and answers say is told to it:
 * those of the API server, and those of workers. */

#include "base/fail.h"
#include "base/text.h"
#include "operator/cut.h"
#include "operator/object.h"
#include "operator/serve/serve_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    STEPS_AT_ONCE = 256,     /* looks and actions between two looks at the network */
    MESSAGE_BYTES_MAX = 900, /* of the server, in an event of the controller */
    HTTP_SERVER_ERROR = 500
};

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

void gr_serve_name_resource(size_t index, gr_serve_resource *resource_out)
{
    const gr_operator_resource *row = &gr_operator_resources[index];
    const char *slash = strchr(row->api_version, '/');
    size_t group_bytes = slash != NULL ? (size_t)(slash - row->api_version) : 0;
    snprintf(resource_out->group, sizeof resource_out->group, "%.*s", (int)group_bytes,
             row->api_version);
    snprintf(resource_out->version, sizeof resource_out->version, "%s",
             slash != NULL ? slash + 1 : row->api_version);
    resource_out->name = (gr_kube_resource){
        .group = resource_out->group, .version = resource_out->version, .plural = row->plural};
}

static gr_controller_time now_of(const gr_serve *serve)
{
    return (gr_controller_time){.monotonic_us = gr_clock_now_us(&serve->clock),
                                .wall_s = (int64_t)time(NULL)};
}

/* ---- Watches --------------------------------------------------------------------------------- */
static void take_event(void *arg, const gr_kube_watch_event *event)
{
    gr_serve_watch *one = arg;
    gr_serve *serve = one->serve;
    gr_status status = GR_OK;
    switch (event->kind) {
    case GR_KUBE_WATCH_RESYNC:
        one->is_listing = true;
        gr_controller_begin_list(serve->controller, one->index);
        break;
    case GR_KUBE_WATCH_SYNCED:
        one->is_listing = false;
        one->is_synced = true;
        status = gr_controller_end_list(serve->controller, one->index, event->version);
        break;
    case GR_KUBE_WATCH_ADDED:
    case GR_KUBE_WATCH_MODIFIED:
        status = gr_controller_seen(serve->controller, one->index, event->object, one->is_listing);
        break;
    case GR_KUBE_WATCH_DELETED:
        status = gr_controller_gone(serve->controller, one->index, event->object);
        break;
    case GR_KUBE_WATCH_BOOKMARK:
        break;
    case GR_KUBE_WATCH_SKIPPED:
        gr_serve_warn(serve, event->diag->text);
        break;
    case GR_KUBE_WATCH_TROUBLE:
        gr_serve_warn(serve, event->diag->text);
        if (!one->is_synced && event->diag->status == GR_E_NOT_FOUND) { /* it is not installed */
            gr_serve_fail(serve, GR_E_NOT_FOUND, event->diag);
        }
        break;
    }
    if (status != GR_OK) {
        gr_serve_fail(serve, status, NULL);
    }
}

gr_status gr_serve_watch_again(gr_serve *serve, size_t index, gr_diag *diag)
{
    gr_serve_watch *one = &serve->watches[index];
    const gr_operator_resource *row = &gr_operator_resources[index];
    gr_kube_watch_stop(one->watch);
    one->watch = NULL;
    one->serve = serve;
    one->index = index;
    one->is_listing = false;
    gr_serve_name_resource(index, &one->resource);
    gr_kube_watch_options options = {.resource = one->resource.name,
                                     .space = row->is_global ? NULL : serve->options->space,
                                     .label_selector = row->selector,
                                     .handler = take_event,
                                     .arg = one,
                                     .cut = gr_operator_resource_cut,
                                     .cut_arg = row};
    return gr_kube_watch_start(serve->kube, &options, &one->watch, diag);
}

/* ---- Answers --------------------------------------------------------------------------------- */
static gr_api_answer kind_of(const gr_kube_answer *answer)
{
    switch (answer->status) {
    case GR_OK:
        return GR_API_OK;
    case GR_E_IN_USE:
        return GR_API_EXISTS;
    case GR_E_AGAIN:
        return GR_API_CONFLICT;
    case GR_E_NOT_FOUND:
        return GR_API_NOT_FOUND;
    case GR_E_INVALID:
        return GR_API_REFUSED;
    case GR_E_AUTH: /* of a login that has expired the next one may be good */
        return answer->http == 403 ? GR_API_REFUSED : GR_API_FAILED;
    default:
        return GR_API_FAILED;
    }
}

static void count(gr_serve *serve, const gr_serve_write *write, gr_api_answer answer)
{
    const char *kind = gr_operator_resources[write->resource].kind;
    bool is_made = strcmp(write->verb, "create") == 0, is_done = answer == GR_API_OK;
    bool is_deleted = strcmp(write->verb, "delete") == 0 && is_done;
    if (strcmp(kind, "Pod") == 0) {
        serve->counts.pods_created += is_made && is_done;
        serve->counts.pods_deleted += is_deleted;
    } else if (strcmp(kind, "Service") == 0) {
        serve->counts.services_created += is_made && is_done;
        serve->counts.services_failed += is_made && !is_done;
    } else if (strcmp(kind, "PodGroup") == 0) {
        serve->counts.groups_created += is_made && is_done;
        serve->counts.groups_deleted += is_deleted;
    }
}

/* The controller gets what became of the action. `object` (borrowed) may be NULL. */
static void end_write(gr_serve_write *write, gr_api_answer answer, const json_t *object)
{
    gr_serve *serve = write->serve;
    gr_controller_job *job = write->job;
    gr_controller_time now = now_of(serve);
    count(serve, write, answer);
    write->job = NULL;
    serve->writes_count--;
    gr_status status =
        gr_controller_answer(serve->controller, job, write->number, &now, answer, object);
    if (status != GR_OK) {
        gr_serve_fail(serve, status, NULL);
    }
}

/* A webhook that fails is an error of the server, with a sentence of its own: the job's user is to
 * know what keeps an object from being made. */
static bool is_refused_by_error(const gr_serve_write *write, const gr_kube_answer *answer)
{
    return answer->http >= HTTP_SERVER_ERROR && answer->message[0] != '\0' &&
           strcmp(write->verb, "create") == 0;
}

static void take_answer(void *arg, const gr_kube_answer *answer)
{
    gr_serve_write *write = arg;
    gr_api_answer kind = is_refused_by_error(write, answer) ? GR_API_REFUSED : kind_of(answer);
    json_t *object = json_incref(answer->object);
    if (kind == GR_API_REFUSED) { /* the controller tells the job's user what the server says */
        object = json_pack("{s:s#}", "message", answer->message,
                           gr_text_fit(answer->message, MESSAGE_BYTES_MAX));
    }
    if (kind == GR_API_REFUSED || kind == GR_API_FAILED) {
        gr_serve_warn(write->serve, answer->diag->text);
    }
    /* The answer to a deletion may be a Status. */
    bool is_status =
        strcmp(or_empty(gr_object_text(object, "kind")), "Status") == 0 && kind == GR_API_OK;
    end_write(write, kind, is_status ? NULL : object);
    json_decref(object);
}

/* ---- Actions --------------------------------------------------------------------------------- */
static void record_event(gr_serve *serve, const json_t *event)
{
    const json_t *about = json_object_get(event, "involvedObject");
    const char *api_version = gr_object_text(about, "apiVersion");
    const char *kind = gr_object_text(about, "kind");
    size_t i = 0;
    while (serve->kinds[i] != NULL && (strcmp(serve->kinds[i]->api_version, api_version) != 0 ||
                                       strcmp(serve->kinds[i]->kind, kind) != 0)) {
        i++;
    }
    json_t *object =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:s*}}", "apiVersion", api_version, "kind", kind,
                  "metadata", "name", gr_object_text(about, "name"), "namespace",
                  gr_object_text(about, "namespace"), "uid", gr_object_text(about, "uid"));
    if (object != NULL && serve->kinds[i] != NULL) {
        gr_kube_events_record(serve->events[i], object, or_empty(gr_object_text(event, "type")),
                              or_empty(gr_object_text(event, "reason")),
                              or_empty(gr_object_text(event, "message")));
    }
    json_decref(object);
}

static void begin_write(gr_serve *serve, const gr_controller_action *action)
{
    static const struct {
        const char *verb, *subresource;
        gr_kube_verb request;
        bool is_named, has_body;
    } verbs[] = {{"create", NULL, GR_KUBE_CREATE, false, true},
                 {"update", NULL, GR_KUBE_REPLACE, true, true},
                 {"status", "status", GR_KUBE_REPLACE, true, true},
                 {"delete", NULL, GR_KUBE_DELETE, true, false},
                 {"get", NULL, GR_KUBE_GET, true, false}};
    size_t v = 0;
    while (strcmp(verbs[v].verb, action->verb) != 0) {
        v++;
    }
    gr_serve_write *write = serve->writes;
    while (write->job != NULL) {
        write++;
    }
    *write = (gr_serve_write){.serve = serve,
                              .job = action->job,
                              .number = action->write,
                              .verb = verbs[v].verb,
                              .resource = action->resource};
    serve->writes_count++;
    const json_t *object = action->object;
    bool is_deletion = verbs[v].request == GR_KUBE_DELETE;
    gr_diag diag = {0};
    gr_kube_request request = {.verb = verbs[v].request,
                               .resource = serve->watches[action->resource].resource.name,
                               .space = gr_operator_resources[action->resource].is_global
                                            ? NULL
                                            : gr_object_text(object, "metadata.namespace"),
                               .name = verbs[v].is_named ? gr_object_text(object, "metadata.name")
                                                         : NULL,
                               .subresource = verbs[v].subresource,
                               .body = verbs[v].has_body ? object : NULL,
                               .uid = is_deletion ? gr_object_text(object, "metadata.uid") : NULL,
                               .propagation = is_deletion ? "Background" : NULL,
                               .done = take_answer,
                               .arg = write};
    if (gr_kube_submit(serve->kube, &request, NULL, &diag) != GR_PENDING) {
        gr_serve_warn(serve, diag.text);
        end_write(write, GR_API_FAILED, NULL);
    }
}

int64_t gr_serve_act(gr_serve *serve)
{
    gr_diag diag = {0};
    for (int step = 0; step < STEPS_AT_ONCE && serve->status == GR_OK; step++) {
        gr_controller_action action;
        gr_controller_time now = now_of(serve);
        gr_status status = gr_controller_next(serve->controller, &now, &action, &diag);
        if (status == GR_OK && action.has_failed) {
            gr_serve_warn(serve, diag.text);
        }
        if (status != GR_OK) {
            gr_serve_fail(serve, status, &diag);
        } else if (action.verb == NULL && action.wake_us > now.monotonic_us) {
            return action.wake_us;
        } else if (action.verb == NULL) {
            continue;
        } else if (strcmp(action.verb, "event") == 0) {
            record_event(serve, action.object);
        } else if (strcmp(action.verb, "list") == 0) {
            status = gr_serve_watch_again(serve, action.resource, &diag);
            if (status != GR_OK) {
                gr_serve_fail(serve, status, &diag);
            }
        } else {
            begin_write(serve, &action);
        }
    }
    return 0;
}

/* ---- Progress -------------------------------------------------------------------------------- */
void gr_serve_take_progress(void *arg, const gr_question *question, const char *body,
                            size_t size_bytes)
{
    gr_serve *serve = arg;
    int64_t now_us = gr_clock_now_us(&serve->clock);
    gr_status status =
        gr_controller_answered(serve->controller, question, now_us, body, size_bytes);
    if (status != GR_OK) {
        gr_serve_fail(serve, status, NULL);
    }
}

int64_t gr_serve_ask(gr_serve *serve)
{
    gr_question question;
    int64_t now_us = gr_clock_now_us(&serve->clock);
    if (serve->asker == NULL) {
        return GR_NEVER;
    }
    gr_asker_run(serve->asker);
    int64_t wake_us = GR_NEVER; /* the end of a question makes room */
    while (gr_asker_is_free(serve->asker) &&
           gr_controller_ask(serve->controller, now_us, &question, &wake_us)) {
        gr_asker_ask(serve->asker, &question);
        wake_us = GR_NEVER;
    }
    return wake_us;
}
