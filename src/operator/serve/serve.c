/* SPDX-License-Identifier: Apache-2.0 */

/* One thread, one loop: the API server, the lease, the pages and the word to stop are waited for
 * together; then the controller is asked what is to be done.
 *
 * Whoever has lost the lease ends, as operators of client-go do: what a follower would have to
 * forget (looks that have begun, writes that may have been carried out) is gone with the process,
 * and whoever started it starts it again. */

#include "operator/serve/serve.h"

#include "base/fail.h"
#include "base/hash.h"
#include "operator/metrics.h"
#include "operator/serve/serve_internal.h"
#include "operator/serve/ssh_key.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SECOND_US = 1000000,
    SAID_AGAIN_US = 60 * SECOND_US,
    /* For writes that are on their way; then for the lease. Its pod has 30 s (deploy/base). */
    ENDING_US = 10 * SECOND_US,
    /* The events of a job at once: more than client-go's 25, so that the one of the end is there
     * also where each pod has some. */
    EVENTS_BURST = 250,
    /* Of one look: a job of 100 workers is made in an eighth of the time. */
    WRITES_AT_ONCE = 8,
    HOST_BYTES = 65,
    CHANCE_BYTES = 8
};

/* Of the requests to the API server: each worker that is asked may bring one. */
static const double ASKS_SHARE = 0.25;

/* ---- Sentences ------------------------------------------------------------------------------- */
void gr_serve_fail(gr_serve *serve, gr_status status, const gr_diag *diag)
{
    if (serve->status != GR_OK) {
        return;
    }
    serve->status = status;
    if (diag != NULL) {
        serve->diag = *diag;
    } else {
        (void)gr_fail(&serve->diag, status, "no memory for the objects of the cluster");
    }
}

void gr_serve_warn(gr_serve *serve, const char *sentence)
{
    int64_t now_us = gr_clock_now_us(&serve->clock);
    uint64_t hash = gr_hash64(sentence, strlen(sentence), 0);
    gr_serve_said *place = serve->said; /* its own, or the oldest */
    for (size_t i = 0; i < GR_SERVE_SAID && place->hash != hash; i++) {
        gr_serve_said *one = &serve->said[i];
        place = one->hash == hash || one->at_us < place->at_us ? one : place;
    }
    if (place->hash != hash || now_us - place->at_us >= SAID_AGAIN_US) {
        *place = (gr_serve_said){.hash = hash, .at_us = now_us};
        gr_log_write(serve->log, GR_LOG_WARN, "operator", "%s", sentence);
    }
}

/* ---- Pages ----------------------------------------------------------------------------------- */
static const char *find_unlisted(const gr_serve *serve)
{
    for (size_t i = 0; serve->controller != NULL && i < gr_operator_resource_count; i++) {
        if (gr_controller_uses(serve->controller, i) && !serve->watches[i].is_synced) {
            return gr_operator_resources[i].plural;
        }
    }
    return serve->controller != NULL ? NULL : "jobs";
}

static char *print_health(void *arg, int *code_out)
{
    (void)arg;
    (void)code_out; /* who answers is alive; who has lost the lease has ended */
    return strdup("ok\n");
}

static char *print_readiness(void *arg, int *code_out)
{
    const char *unlisted = find_unlisted(arg);
    char text[128];
    if (unlisted == NULL) {
        return strdup("ok\n");
    }
    *code_out = 503;
    snprintf(text, sizeof text, "the list of %s has not come yet\n", unlisted);
    return strdup(text);
}

static void print_counter(FILE *out, const char *name, const char *help, uint64_t value)
{
    gr_metrics_head(out, name, "counter", help);
    fprintf(out, "%s %" PRIu64 "\n", name, value);
}

/* As client-go counts them; "<error>": no answer came. */
static void print_requests(const gr_serve *serve, FILE *out)
{
    static const char name[] = "rest_client_requests_total";
    const char *host = strstr(serve->access->server, "://");
    gr_kube_counts counts = {.used = 0};
    if (serve->kube != NULL) {
        gr_kube_add_counts(serve->kube, &counts);
    }
    if (serve->lease_kube != NULL) {
        gr_kube_add_counts(serve->lease_kube, &counts);
    }
    host = host != NULL ? host + 3 : serve->access->server;
    gr_metrics_head(out, name, "counter", "Requests to the API server");
    for (int i = 0; i < counts.used; i++) {
        char code[16] = "<error>";
        if (counts.rows[i].code != 0) {
            snprintf(code, sizeof code, "%d", counts.rows[i].code);
        }
        fprintf(out, "%s{code=\"%s\",host=\"%.*s\",method=\"%s\"} %" PRIu64 "\n", name, code,
                (int)strcspn(host, "/\"\\"), host, counts.rows[i].method, counts.rows[i].count);
    }
}

/* They are collected from an operator that begins, waits for the lease or ends as well. */
static char *print_metrics(void *arg, int *code_out)
{
    const gr_serve *serve = arg;
    const gr_serve_counts *counts = &serve->counts;
    char *text = NULL, *jobs = NULL;
    size_t size_bytes = 0;
    (void)code_out;
    if (serve->controller != NULL) {
        jobs = gr_controller_metrics(serve->controller, gr_clock_now_us(&serve->clock));
        if (jobs == NULL) {
            return NULL;
        }
    }
    FILE *out = open_memstream(&text, &size_bytes);
    if (out == NULL) {
        free(jobs);
        return NULL;
    }
    fputs(jobs != NULL ? jobs : "", out);
    free(jobs);
    print_requests(serve, out);
    print_counter(out, "created_pods_total", "Pods created", counts->pods_created);
    print_counter(out, "deleted_pods_total", "Pods deleted", counts->pods_deleted);
    print_counter(out, "succeeded_service_creation_total", "Services created",
                  counts->services_created);
    print_counter(out, "failed_service_creation_total", "Services that could not be created",
                  counts->services_failed);
    print_counter(out, "created_pod_groups_total", "PodGroups created", counts->groups_created);
    print_counter(out, "deleted_pod_groups_total", "PodGroups deleted", counts->groups_deleted);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static const gr_web_page pages[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", print_metrics},
    {"/healthz", "text/plain; charset=utf-8", print_health},
    {"/readyz", "text/plain; charset=utf-8", print_readiness},
    {.path = NULL},
};

/* ---- The loop -------------------------------------------------------------------------------- */
bool gr_serve_is_over(const gr_serve *serve)
{
    return serve->is_stopped || serve->status != GR_OK;
}

void gr_serve_pump(gr_serve *serve, int64_t until_us)
{
    enum { KUBE, LEASE, WEB, ASKER, STOP, COUNT };
    int64_t now_us = gr_clock_now_us(&serve->clock);
    until_us = gr_earlier_us(until_us, gr_web_run(serve->web, now_us));
    int64_t left_us = until_us > now_us ? until_us - now_us : 0;
    int left_ms = until_us == GR_NEVER              ? -1
                  : left_us < 60 * INT64_C(1000000) ? (int)((left_us + 999) / 1000)
                                                    : 60000;
    struct pollfd waits[COUNT] = {
        [KUBE] = {.fd = serve->kube != NULL ? gr_kube_fd(serve->kube) : -1, .events = POLLIN},
        [LEASE] = {.fd = serve->lease_kube != NULL ? gr_kube_fd(serve->lease_kube) : -1,
                   .events = POLLIN},
        [WEB] = {.fd = gr_web_fd(serve->web), .events = POLLIN},
        [ASKER] = {.fd = serve->asker != NULL ? gr_asker_fd(serve->asker) : -1, .events = POLLIN},
        [STOP] = {.fd = serve->is_stopped ? -1 : serve->options->stop_fd, .events = POLLIN}};
    (void)poll(waits, COUNT, left_ms);
    if (waits[LEASE].revents != 0) { /* first: whoever has lost it does nothing more */
        gr_kube_run(serve->lease_kube);
    }
    if (waits[KUBE].revents != 0 && serve->status == GR_OK) {
        gr_kube_run(serve->kube);
    }
    if (waits[WEB].revents != 0) {
        (void)gr_web_run(serve->web, gr_clock_now_us(&serve->clock));
    }
    /* Last: nothing is begun behind a signal that came before an answer did. */
    serve->is_stopped |= poll(&waits[STOP], 1, 0) > 0;
}

/* A gr_kube_lease_changed. */
static void lease_changed(void *arg, bool leads, const char *leader)
{
    gr_serve *serve = arg;
    const gr_serve_options *options = serve->options;
    gr_diag diag = {0};
    if (serve->leads && !leads) {
        gr_controller_lead(serve->controller, false);
        (void)gr_fail(&diag, GR_E_PEER_LOST,
                      "this operator has lost the lease %s%s%s%s; it ends, so that no two of them "
                      "write",
                      options->lease_name, leader[0] != '\0' ? " to " : "", leader,
                      leader[0] != '\0' ? "" : ", which it could not renew in time");
        gr_serve_fail(serve, GR_E_PEER_LOST, &diag);
    } else if (leads && !serve->leads) {
        gr_log_write(serve->log, GR_LOG_INFO, "operator", "leads, by the lease %s",
                     options->lease_name);
        gr_controller_lead(serve->controller, true);
    } else if (!leads && leader[0] != '\0') {
        gr_log_write(serve->log, GR_LOG_INFO, "operator", "stands by: \"%s\" leads", leader);
    }
    serve->leads = leads;
}

/* ---- Beginning ------------------------------------------------------------------------------- */
/* The configuration is read once: it may come from a pipe. */
static gr_status open_access(gr_serve *serve, gr_diag *diag)
{
    const gr_serve_options *options = serve->options;
    gr_kube_access_options which = {
        .path = options->kubeconfig, .context = options->context, .server = options->server};
    gr_status status = gr_kube_access_open(&which, &serve->access, diag);
    return status == GR_OK && options->elects
               ? gr_kube_access_copy(serve->access, &serve->lease_access, diag)
               : status;
}

static gr_status connect_kube(gr_serve *serve, gr_kube_access *access, gr_kube **kube_out,
                              gr_diag *diag)
{
    const gr_serve_options *options = serve->options;
    gr_kube_options how = {.access = access,
                           .clock = serve->clock,
                           .requests_a_second = options->requests_a_second,
                           .burst = options->burst,
                           .user_agent = "gradus-operator",
                           .log = serve->log};
    return gr_kube_create(&how, kube_out, diag);
}

static gr_status start_lease(gr_serve *serve, gr_diag *diag)
{
    const gr_serve_options *options = serve->options;
    char host[HOST_BYTES] = "", chance[2 * CHANCE_BYTES + 1], identity[HOST_BYTES + sizeof chance];
    uint8_t bytes[CHANCE_BYTES];
    if (!options->elects) {
        serve->leads = true;
        gr_controller_lead(serve->controller, true);
        return GR_OK;
    }
    gr_status status = gr_random_bytes(bytes, sizeof bytes, diag);
    if (status != GR_OK) {
        return status;
    }
    (void)gethostname(host, sizeof host - 1);
    gr_hex(bytes, sizeof bytes, chance);
    snprintf(identity, sizeof identity, "%s_%s", host, chance);
    gr_kube_lease_options how = {.space = options->lease_space != NULL ? options->lease_space
                                                                       : serve->lease_access->space,
                                 .name = options->lease_name,
                                 .identity = identity,
                                 .times = options->lease_times,
                                 .changed = lease_changed,
                                 .arg = serve,
                                 .log = serve->log};
    return gr_kube_lease_start(serve->lease_kube, &how, &serve->lease, diag);
}

static gr_status start_events(gr_serve *serve, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (size_t i = 0; serve->kinds[i] != NULL && status == GR_OK; i++) {
        /* As the operators name themselves whose place this one takes. */
        char component[GR_METRICS_NAME_BYTES];
        gr_metrics_controller_name(serve->kinds[i], component);
        bool is_mpi_operators = serve->kinds[i] == &gr_mpijob_v2;
        gr_kube_events_options how = {.component =
                                          is_mpi_operators ? "mpi-job-controller" : component,
                                      .burst = EVENTS_BURST,
                                      .log = serve->log};
        status = gr_kube_events_create(serve->kube, &how, &serve->events[i], diag);
    }
    return status;
}

static gr_status start_controller(gr_serve *serve, gr_diag *diag)
{
    const gr_serve_options *options = serve->options;
    gr_controller_config config = {
        .kinds = serve->kinds,
        .cluster_domain = options->cluster_domain != NULL ? options->cluster_domain : "",
        .gang_scheduler = options->gang_scheduler != NULL ? options->gang_scheduler : "",
        .pytorch_init_image = options->pytorch_init_image,
        .kubectl_delivery_image = options->kubectl_delivery_image,
        .pytorch_init_tries = options->pytorch_init_tries,
        .ssh_key = gr_ssh_key_make,
        .token = gr_job_token_make,
        .launch_agent_image = options->launch_agent_image,
        .jobs_at_once = options->jobs_at_once,
        .writes_at_once = WRITES_AT_ONCE,
        .ask_every_us = options->ask_every_us,
        .asks_a_second = options->requests_a_second * ASKS_SHARE};
    gr_status status = gr_controller_create(&config, &serve->controller, diag);
    return status == GR_OK && options->ask_every_us > 0
               ? gr_asker_create(gr_serve_take_progress, serve, &serve->asker, diag)
               : status;
}

static void log_start(const gr_serve *serve)
{
    char kinds[GR_OPERATOR_KINDS_BYTES];
    gr_operator_list_kinds(serve->kinds, kinds);
    const char *space = serve->options->space;
    gr_log_write(serve->log, GR_LOG_INFO, "operator", "works on %s in %s%s, by %s", kinds,
                 space != NULL ? "namespace " : "all namespaces", space != NULL ? space : "",
                 serve->access->where);
}

static gr_status start(gr_serve *serve, gr_diag *diag)
{
    gr_status status = open_access(serve, diag);
    if (status == GR_OK) {
        status = connect_kube(serve, serve->access, &serve->kube, diag);
    }
    if (status == GR_OK && serve->options->elects) {
        status = connect_kube(serve, serve->lease_access, &serve->lease_kube, diag);
    }
    if (status == GR_OK) {
        status = gr_web_open(serve->options->listen, pages, serve, &serve->web, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (gr_web_where(serve->web)[0] != '\0') {
        gr_log_write(serve->log, GR_LOG_INFO, "operator",
                     "/metrics, /healthz and /readyz are at %s", gr_web_where(serve->web));
    }
    serve->resources_due_us =
        gr_clock_now_us(&serve->clock) + serve->options->wait_for_resources_us;
    status = gr_serve_find_kinds(serve, diag);
    if (status == GR_OK && !gr_serve_is_over(serve)) {
        status = start_controller(serve, diag);
    }
    if (status == GR_OK && !gr_serve_is_over(serve)) {
        status = gr_serve_find_resources(serve, diag);
    }
    if (status == GR_OK && !gr_serve_is_over(serve)) {
        status = gr_serve_check_rights(serve, diag);
    }
    if (status != GR_OK || gr_serve_is_over(serve)) {
        return status;
    }
    log_start(serve);
    status = start_events(serve, diag);
    for (size_t i = 0; i < gr_operator_resource_count && status == GR_OK; i++) {
        if (gr_controller_uses(serve->controller, i)) {
            status = gr_serve_watch_again(serve, i, diag);
        }
    }
    return status == GR_OK ? start_lease(serve, diag) : status;
}

/* ---- The end --------------------------------------------------------------------------------- */
static bool is_anything_left(const gr_serve *serve)
{
    int events = 0;
    for (size_t i = 0; serve->kinds[i] != NULL; i++) {
        events += gr_kube_events_waiting(serve->events[i]);
    }
    return serve->writes_count > 0 || events > 0;
}

static void stop_working(gr_serve *serve)
{
    for (size_t i = 0; serve->watches != NULL && i < gr_operator_resource_count; i++) {
        gr_kube_watch_stop(serve->watches[i].watch);
        serve->watches[i].watch = NULL;
    }
    for (size_t i = 0; i < GR_SERVE_KINDS_MAX; i++) {
        gr_kube_events_destroy(serve->events[i]);
        serve->events[i] = NULL;
    }
    gr_kube_destroy(serve->kube);
    serve->kube = NULL;
}

static void note_release(void *arg)
{
    ((gr_serve *)arg)->is_released = true;
}

/* In order: what has begun ends, then another may lead. */
static void end_in_order(gr_serve *serve)
{
    gr_controller_lead(serve->controller, false);
    gr_asker_destroy(serve->asker);
    serve->asker = NULL;
    int64_t end_us = gr_clock_now_us(&serve->clock) + ENDING_US;
    int64_t wake_us = gr_serve_act(serve); /* events that are to be told */
    while (is_anything_left(serve) && serve->status == GR_OK &&
           gr_clock_now_us(&serve->clock) < end_us) {
        gr_serve_pump(serve, gr_earlier_us(end_us, wake_us));
        wake_us = gr_serve_act(serve);
    }
    stop_working(serve);
    if (serve->lease == NULL || serve->status != GR_OK) {
        return;
    }
    end_us = gr_clock_now_us(&serve->clock) + ENDING_US;
    gr_kube_lease *lease = serve->lease;
    serve->lease = NULL;
    gr_kube_lease_stop(lease, note_release, serve);
    while (!serve->is_released && gr_clock_now_us(&serve->clock) < end_us) {
        gr_serve_pump(serve, end_us);
    }
    if (!serve->is_released) {
        gr_kube_lease_abandon(lease);
    }
}

static void destroy(gr_serve *serve)
{
    if (serve->kube != NULL) {
        stop_working(serve);
    }
    gr_kube_lease_abandon(serve->lease);
    gr_kube_destroy(serve->lease_kube);
    gr_kube_access_close(serve->lease_access);
    gr_kube_access_close(serve->access);
    gr_web_close(serve->web);
    gr_asker_destroy(serve->asker); /* before the controller, which it tells */
    gr_controller_destroy(serve->controller);
    free(serve->watches);
    free(serve->writes);
    free(serve);
}

gr_status gr_operator_serve(const gr_serve_options *options, bool *began_out, gr_diag *diag)
{
    *began_out = false;
    gr_serve *serve = calloc(1, sizeof *serve);
    if (serve != NULL) {
        serve->options = options;
        serve->clock = gr_clock_real();
        serve->log = options->log;
        serve->watches = calloc(gr_operator_resource_count, sizeof *serve->watches);
        serve->writes =
            calloc((size_t)options->jobs_at_once * 2 + WRITES_AT_ONCE, sizeof *serve->writes);
    }
    if (serve == NULL || serve->watches == NULL || serve->writes == NULL) {
        if (serve != NULL) {
            destroy(serve);
        }
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the operator");
    }
    gr_status status = start(serve, diag);
    bool has_begun = status == GR_OK && !gr_serve_is_over(serve);
    *began_out = has_begun;
    while (has_begun && !gr_serve_is_over(serve)) {
        gr_serve_pump(serve, gr_earlier_us(gr_serve_act(serve), gr_serve_ask(serve)));
    }
    if (has_begun && serve->status == GR_OK) {
        end_in_order(serve);
    }
    if (status == GR_OK && serve->status != GR_OK) {
        status = serve->status;
        *diag = serve->diag;
    }
    destroy(serve);
    return status;
}
