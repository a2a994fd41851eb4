/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/pod_status.h"

#include "operator/object.h"

#include <stdio.h>
#include <string.h>

enum { WAITS, RUNS, HAS_ENDED };

void gr_pod_view_receive(gr_pod_view *view, const gr_pod_message *message, const char *now)
{
    if (message->word == GR_POD_OVER) {
        view->is_over = true;
        view->has_failed = message->value != 0;
        return;
    }
    if (message->container < 0 || (size_t)message->container >= view->plan->container_count) {
        return;
    }
    gr_container_view *c = &view->containers[message->container];
    switch (message->word) {
    case GR_POD_BEGUN:
        c->state = RUNS;
        snprintf(c->began, sizeof c->began, "%s", now);
        break;
    case GR_POD_REFUSED:
    case GR_POD_ENDED:
        c->state = HAS_ENDED;
        c->code = message->value;
        c->is_refused = message->word == GR_POD_REFUSED;
        snprintf(c->ended, sizeof c->ended, "%s", now);
        if (c->began[0] == '\0') {
            snprintf(c->began, sizeof c->began, "%s", now);
        }
        memcpy(c->text, message->text, sizeof c->text);
        break;
    case GR_POD_AGAIN:
        c->restarts++;
        c->state = WAITS;
        break;
    default:
        break;
    }
}

static json_t *terminated(const gr_container_view *c)
{
    const char *reason = c->is_refused ? "StartError" : c->code == 0 ? "Completed" : "Error";
    json_t *state = json_pack("{s:i, s:s, s:s, s:s}", "exitCode", c->code, "reason", reason,
                              "startedAt", c->began, "finishedAt", c->ended);
    if (state != NULL && c->text[0] != '\0') {
        (void)json_object_set_new(state, "message", json_string(c->text));
    }
    return state;
}

static json_t *state_of(const gr_container_view *c, bool is_init)
{
    if (c->state == RUNS) {
        return json_pack("{s:{s:s}}", "running", "startedAt", c->began);
    }
    if (c->state == HAS_ENDED) {
        return json_pack("{s:o}", "terminated", terminated(c));
    }
    return json_pack("{s:{s:s}}", "waiting", "reason",
                     c->restarts > 0 ? "CrashLoopBackOff"
                     : is_init       ? "PodInitializing"
                                     : "ContainerCreating");
}

static json_t *container_status(const gr_pod_view *view, size_t i)
{
    const gr_container *plan = &view->plan->containers[i];
    const gr_container_view *c = &view->containers[i];
    json_t *status = json_pack("{s:s, s:s, s:i, s:b, s:b, s:o}", "name", plan->name, "image",
                               plan->image != NULL ? plan->image : "", "restartCount", c->restarts,
                               "ready", c->state == RUNS, "started", c->state == RUNS, "state",
                               state_of(c, view->plan->init_count > 0));
    if (status != NULL && c->restarts > 0 && c->ended[0] != '\0' && c->state != HAS_ENDED) {
        (void)json_object_set_new(status, "lastState",
                                  json_pack("{s:o}", "terminated", terminated(c)));
    }
    return status;
}

json_t *gr_pod_view_status(const gr_pod_view *view)
{
    json_t *inits = json_array(), *mains = json_array();
    bool no_memory = inits == NULL || mains == NULL, has_begun = false, is_ready = true;
    for (size_t i = 0; i < view->plan->container_count; i++) {
        const gr_container_view *c = &view->containers[i];
        bool is_init = view->plan->containers[i].is_init;
        gr_object_append(is_init ? inits : mains, container_status(view, i), &no_memory);
        if (!is_init) {
            has_begun |= c->began[0] != '\0';
            is_ready &= c->state == RUNS;
        }
    }
    const char *phase = !view->is_over     ? (has_begun ? "Running" : "Pending")
                        : view->has_failed ? "Failed"
                                           : "Succeeded";
    json_t *status =
        json_pack("{s:s, s:[{s:s, s:s}], s:s, s:s, s:s, s:o, s:o}", "phase", phase, "conditions",
                  "type", "Ready", "status", is_ready && !view->is_over ? "True" : "False", "podIP",
                  view->address, "hostIP", "127.0.0.1", "startTime", view->began,
                  "initContainerStatuses", inits, "containerStatuses", mains);
    if (view->message != NULL) {
        gr_object_put_text(status, "message", view->message, &no_memory);
    }
    if (no_memory || status == NULL) {
        json_decref(status);
        return NULL;
    }
    return status;
}
