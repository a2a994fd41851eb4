/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/lease.h"

#include "base/fail.h"
#include "base/time_text.h"
#include "kube/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SECOND_US = 1000000 };

static const gr_kube_resource leases = {"coordination.k8s.io", "v1", "leases"};

/* ---- The rules --------------------------------------------------------------------------------
 * */
static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* A Lease that has changed counts from now on. */
static void note(gr_kube_lease_view *view, const json_t *lease, int64_t now_us)
{
    const json_t *spec = json_object_get(lease, "spec");
    json_int_t duration_s = json_integer_value(json_object_get(spec, "leaseDurationSeconds"));
    char seen[sizeof view->seen];
    snprintf(seen, sizeof seen, "%.120s %.40s %.60s", text_at(spec, "holderIdentity"),
             text_at(spec, "renewTime"),
             text_at(json_object_get(lease, "metadata"), "resourceVersion"));
    if (strcmp(seen, view->seen) != 0) {
        strcpy(view->seen, seen);
        view->seen_us = now_us;
    }
    bool is_sane = duration_s > 0 && duration_s <= 86400;
    view->duration_us = is_sane ? duration_s * SECOND_US : view->times.duration_us;
}

json_t *gr_kube_lease_look(gr_kube_lease_view *view, const json_t *lease, const char *name,
                           int64_t now_us, int64_t wall_us)
{
    const json_t *spec = json_object_get(lease, "spec");
    const char *holder = text_at(spec, "holderIdentity");
    bool is_ours = strcmp(holder, view->identity) == 0;
    char now_text[GR_TIME_BYTES];
    note(view, lease, now_us);
    if (!is_ours) {
        view->leads = false;
        if (holder[0] != '\0' && now_us - view->seen_us < view->duration_us) {
            return NULL;
        }
    }
    gr_time_print(wall_us, true, now_text);
    json_t *made = lease != NULL ? json_deep_copy(lease) : json_object();
    json_t *fresh = json_object_get(made, "spec");
    int failed = 0;
    if (lease == NULL) {
        failed |= json_object_set_new(made, "apiVersion", json_string("coordination.k8s.io/v1"));
        failed |= json_object_set_new(made, "kind", json_string("Lease"));
        failed |= json_object_set_new(made, "metadata", json_pack("{s:s}", "name", name));
    }
    if (!json_is_object(fresh)) {
        fresh = json_object();
        failed |= json_object_set_new(made, "spec", fresh);
    }
    if (!is_ours) {
        json_int_t changes = json_integer_value(json_object_get(spec, "leaseTransitions"));
        changes += lease != NULL && holder[0] != '\0';
        failed |= json_object_set_new(fresh, "leaseTransitions", json_integer(changes));
        failed |= json_object_set_new(fresh, "acquireTime", json_string(now_text));
    }
    failed |= json_object_set_new(fresh, "holderIdentity", json_string(view->identity));
    failed |= json_object_set_new(fresh, "renewTime", json_string(now_text));
    failed |= json_object_set_new(fresh, "leaseDurationSeconds",
                                  json_integer(view->times.duration_us / SECOND_US));
    if (failed != 0) {
        json_decref(made);
        return NULL;
    }
    return made;
}

void gr_kube_lease_won(gr_kube_lease_view *view, int64_t begun_us)
{
    view->leads = true;
    view->renewed_us = begun_us;
}

bool gr_kube_lease_is_over(const gr_kube_lease_view *view, int64_t now_us)
{
    return view->leads && now_us - view->renewed_us >= view->times.renew_us;
}

/* ---- The candidate ----------------------------------------------------------------------------
 * */
struct gr_kube_lease {
    gr_kube *kube;
    gr_clock clock;
    char *space, *name;
    gr_kube_lease_view view;
    gr_kube_lease_changed *changed;
    void *arg;
    const gr_log *log;
    gr_kube_timer look, end; /* the next look; the moment to step down */
    gr_kube_call *call;
    int64_t begun_us;
    bool notified_leads, notified;
    char notified_leader[128];
    void (*released)(void *arg); /* of gr_kube_lease_stop */
    void *released_arg;
};

static void notify(gr_kube_lease *lease, const char *leader)
{
    bool leads = lease->view.leads;
    if (lease->notified && leads == lease->notified_leads &&
        strncmp(leader, lease->notified_leader, sizeof lease->notified_leader - 1) == 0) {
        return;
    }
    lease->notified = true;
    lease->notified_leads = leads;
    snprintf(lease->notified_leader, sizeof lease->notified_leader, "%s", leader);
    lease->changed(lease->arg, leads, lease->notified_leader);
}

static void begin_look(void *arg);

static void look_later(gr_kube_lease *lease)
{
    int64_t now_us = gr_clock_now_us(&lease->clock);
    /* From one to one and a fifth of the time, so that candidates do not come together. */
    int64_t more_us = gr_kube_backoff_us(1, lease->view.times.retry_us / 5,
                                         lease->view.times.retry_us / 5, (uint64_t)now_us);
    lease->look.fire = begin_look;
    lease->look.arg = lease;
    gr_kube_timer_set(lease->kube, &lease->look, now_us + lease->view.times.retry_us + more_us);
}

/* Steps down in time, also while the server does not answer. */
static void step_down(void *arg)
{
    gr_kube_lease *lease = arg;
    if (gr_kube_lease_is_over(&lease->view, gr_clock_now_us(&lease->clock))) {
        lease->view.leads = false;
        gr_log_write(lease->log, GR_LOG_WARN, "kube",
                     "lease %s/%s could not be renewed in time; this candidate leads no more",
                     lease->space, lease->name);
        notify(lease, "");
    }
}

static void await_end(gr_kube_lease *lease)
{
    lease->end.fire = step_down;
    lease->end.arg = lease;
    gr_kube_timer_set(lease->kube, &lease->end,
                      lease->view.renewed_us + lease->view.times.renew_us);
}

static gr_status submit(gr_kube_lease *lease, gr_kube_verb verb, const json_t *body,
                        gr_kube_done *done)
{
    gr_diag diag;
    gr_kube_request request = {.verb = verb,
                               .resource = leases,
                               .space = lease->space,
                               .name = verb == GR_KUBE_CREATE ? NULL : lease->name,
                               .body = body,
                               .timeout_us = lease->view.times.renew_us / 2,
                               .done = done,
                               .arg = lease};
    lease->begun_us = gr_clock_now_us(&lease->clock);
    gr_status status = gr_kube_submit(lease->kube, &request, &lease->call, &diag);
    if (status != GR_PENDING) {
        lease->call = NULL;
        gr_log_write(lease->log, GR_LOG_WARN, "kube", "%s", diag.text);
    }
    return status;
}

static void end_write(void *arg, const gr_kube_answer *answer)
{
    gr_kube_lease *lease = arg;
    lease->call = NULL;
    if (answer->status == GR_OK) {
        gr_kube_lease_won(&lease->view, lease->begun_us);
        if (gr_kube_lease_is_over(&lease->view, gr_clock_now_us(&lease->clock))) {
            lease->view.leads = false; /* the answer came too late */
            notify(lease, "");
        } else {
            await_end(lease);
            notify(lease, lease->view.identity);
        }
    } else if (answer->http != 409) { /* somebody was quicker: the next look shows who */
        gr_log_write(lease->log, GR_LOG_WARN, "kube", "%s", answer->diag->text);
    }
    look_later(lease);
}

static void end_look(void *arg, const gr_kube_answer *answer)
{
    gr_kube_lease *lease = arg;
    lease->call = NULL;
    if (answer->status != GR_OK && answer->http != 404) {
        gr_log_write(lease->log, GR_LOG_WARN, "kube", "%s", answer->diag->text);
        look_later(lease);
        return;
    }
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    json_t *fresh = gr_kube_lease_look(&lease->view, answer->object, lease->name,
                                       gr_clock_now_us(&lease->clock),
                                       (int64_t)wall.tv_sec * SECOND_US + wall.tv_nsec / 1000);
    const json_t *spec = json_object_get(answer->object, "spec");
    if (!lease->view.leads &&
        (answer->object != NULL || lease->notified_leads)) { /* it may be gone */
        const char *holder = text_at(spec, "holderIdentity");
        notify(lease, strcmp(holder, lease->view.identity) != 0 ? holder : "");
    }
    gr_kube_verb verb = answer->object != NULL ? GR_KUBE_REPLACE : GR_KUBE_CREATE;
    if (fresh == NULL || submit(lease, verb, fresh, end_write) != GR_PENDING) {
        look_later(lease);
    }
    json_decref(fresh);
}

static void begin_look(void *arg)
{
    gr_kube_lease *lease = arg;
    if (submit(lease, GR_KUBE_GET, NULL, end_look) != GR_PENDING) {
        look_later(lease);
    }
}

void gr_kube_lease_abandon(gr_kube_lease *lease)
{
    if (lease == NULL) {
        return;
    }
    gr_kube_timer_clear(lease->kube, &lease->look);
    gr_kube_timer_clear(lease->kube, &lease->end);
    if (lease->call != NULL) {
        gr_kube_cancel(lease->kube, lease->call);
    }
    free(lease->space);
    free(lease->name);
    free(lease);
}

gr_status gr_kube_lease_start(gr_kube *kube, const gr_kube_lease_options *options,
                              gr_kube_lease **lease_out, gr_diag *diag)
{
    gr_kube_lease_times times = options->times;
    if (times.duration_us == 0 && times.renew_us == 0 && times.retry_us == 0) {
        times = (gr_kube_lease_times){15 * SECOND_US, 10 * SECOND_US, 2 * SECOND_US};
    }
    times.duration_us -= times.duration_us % SECOND_US; /* as the Lease tells it to the others */
    if (times.retry_us <= 0 || times.renew_us <= times.retry_us ||
        times.duration_us <= times.renew_us || times.duration_us < SECOND_US) {
        return gr_fail(diag, GR_E_INVALID,
                       "a lease's duration must be longer than its renew deadline, and that longer "
                       "than its retry period");
    }
    if (options->identity[0] == '\0' || strlen(options->identity) >= 120) {
        return gr_fail(diag, GR_E_INVALID, "a candidate's identity must have 1 to 119 letters");
    }
    gr_kube_lease *lease = calloc(1, sizeof *lease);
    if (lease == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a lease");
    }
    lease->kube = kube;
    lease->clock = gr_kube_clock(kube);
    lease->space = strdup(options->space);
    lease->name = strdup(options->name);
    lease->changed = options->changed;
    lease->arg = options->arg;
    lease->log = options->log;
    lease->view.times = times;
    strcpy(lease->view.identity, options->identity);
    if (lease->space == NULL || lease->name == NULL) {
        gr_kube_lease_abandon(lease);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a lease");
    }
    begin_look(lease);
    *lease_out = lease;
    return GR_OK;
}

static void end_release(void *arg, const gr_kube_answer *answer)
{
    gr_kube_lease *lease = arg;
    (void)answer; /* others take it when it has expired */
    lease->call = NULL;
    void (*released)(void *) = lease->released;
    void *released_arg = lease->released_arg;
    gr_kube_lease_abandon(lease);
    released(released_arg);
}

/* What a leader gives back, if it still is the leader. */
static void release(void *arg, const gr_kube_answer *answer)
{
    gr_kube_lease *lease = arg;
    json_t *made = answer->object != NULL ? json_deep_copy(answer->object) : NULL;
    json_t *spec = json_object_get(made, "spec");
    bool is_ours = strcmp(text_at(spec, "holderIdentity"), lease->view.identity) == 0;
    lease->call = NULL;
    if (is_ours) {
        json_object_set_new(spec, "holderIdentity", json_string(""));
        json_object_set_new(spec, "leaseDurationSeconds", json_integer(1));
    }
    if (!is_ours || submit(lease, GR_KUBE_REPLACE, made, end_release) != GR_PENDING) {
        end_release(lease, answer);
    }
    json_decref(made);
}

void gr_kube_lease_stop(gr_kube_lease *lease, void (*released)(void *arg), void *arg)
{
    bool led = lease->view.leads;
    lease->view.leads = false;
    lease->released = released;
    lease->released_arg = arg;
    gr_kube_timer_clear(lease->kube, &lease->look);
    gr_kube_timer_clear(lease->kube, &lease->end);
    if (lease->call != NULL) {
        gr_kube_cancel(lease->kube, lease->call);
        lease->call = NULL;
    }
    if (!led || submit(lease, GR_KUBE_GET, NULL, release) != GR_PENDING) {
        end_release(lease, NULL);
    }
}
