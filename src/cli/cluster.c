/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cluster.h"

#include "base/fail.h"
#include "launch/signals.h"
#include "operator/object.h"

#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

bool gr_cluster_is_meant(const gr_cluster_flags *flags)
{
    return flags->kubeconfig != NULL || flags->context != NULL || flags->space != NULL;
}

void gr_cluster_named(const gr_cluster_flags *flags, char text_out[GR_CLUSTER_NAMED_BYTES])
{
    struct {
        const char *flag, *value;
    } pairs[] = {{" -n ", flags->space},
                 {" --context ", flags->context},
                 {" --kubeconfig ", flags->kubeconfig}};
    size_t used = 0;
    text_out[0] = '\0';
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].value != NULL && used < GR_CLUSTER_NAMED_BYTES) {
            used += (size_t)snprintf(text_out + used, GR_CLUSTER_NAMED_BYTES - used, "%s%s",
                                     pairs[i].flag, pairs[i].value);
        }
    }
}

gr_status gr_cluster_open(const gr_cluster_flags *flags, gr_cluster_client *cluster_out,
                          gr_diag *diag)
{
    gr_cluster_client cluster = {.signal_fd = -1};
    gr_kube_access_options where = {
        .path = flags->kubeconfig, .context = flags->context, .space = flags->space};
    gr_status status = gr_kube_access_open(&where, &cluster.access, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_kube_options options = {.access = cluster.access, .clock = gr_clock_real()};
    status = gr_kube_create(&options, &cluster.kube, diag);
    if (status != GR_OK) {
        gr_kube_access_close(cluster.access);
        return status;
    }
    gr_signals_hold(NULL);
    cluster.signal_fd = gr_signals_open();
    cluster.space = cluster.access->space;
    *cluster_out = cluster;
    return GR_OK;
}

void gr_cluster_close(gr_cluster_client *cluster)
{
    if (cluster->kube == NULL) {
        return;
    }
    gr_kube_destroy(cluster->kube);
    gr_kube_access_close(cluster->access);
    if (cluster->signal_fd >= 0) {
        close(cluster->signal_fd);
    }
    *cluster = (gr_cluster_client){.signal_fd = -1};
}

int gr_cluster_fail(gr_status status, const gr_diag *diag)
{
    bool refused = status == GR_E_INVALID || status == GR_E_NOT_FOUND || status == GR_E_AUTH ||
                   status == GR_E_IN_USE || status == GR_E_UNSUPPORTED;
    return gr_cli_fail(refused ? GR_EXIT_INPUT : GR_EXIT_FAILED, diag);
}

int gr_cluster_wait(gr_cluster_client *cluster)
{
    struct pollfd at[] = {{.fd = gr_kube_fd(cluster->kube), .events = POLLIN},
                          {.fd = cluster->signal_fd, .events = POLLIN}};
    (void)poll(at, sizeof at / sizeof at[0], -1);
    gr_kube_run(cluster->kube);
    int signal_number = gr_signals_take(cluster->signal_fd);
    cluster->signal_number = signal_number != 0 ? signal_number : cluster->signal_number;
    return cluster->signal_number;
}

/* ---- Questions ------------------------------------------------------------------------------- */

typedef struct question {
    bool is_done;
    gr_status status;
    json_t *object;
    gr_diag diag;
    json_t *items; /* of a list; NULL: another question */
    bool no_memory;
} question;

static void take_answer(void *arg, const gr_kube_answer *answer)
{
    question *own = arg;
    own->is_done = true;
    own->status = answer->status;
    own->object = answer->object != NULL ? json_incref(answer->object) : NULL;
    if (answer->diag != NULL) {
        own->diag = *answer->diag;
    }
}

static void take_item(void *arg, json_t *object)
{
    question *own = arg;
    if (object == NULL) {
        own->no_memory |= json_array_clear(own->items) != 0;
    } else {
        own->no_memory |= json_array_append(own->items, object) != 0;
    }
}

static gr_status ask(gr_cluster_client *cluster, const gr_kube_request *request, question *own,
                     gr_diag *diag)
{
    gr_kube_request sent = *request;
    gr_kube_call *call = NULL;
    sent.done = take_answer;
    sent.arg = own;
    gr_status status = gr_kube_submit(cluster->kube, &sent, &call, diag);
    if (status != GR_PENDING) {
        return status;
    }
    while (!own->is_done) {
        int signal_number = gr_cluster_wait(cluster);
        if (signal_number != 0 && !own->is_done) {
            gr_kube_cancel(cluster->kube, call);
            cluster->signal_number = 0;
            return gr_fail(diag, GR_E_CANCELLED, "ended by %s", gr_signals_name(signal_number));
        }
    }
    if (own->status != GR_OK && diag != NULL) {
        *diag = own->diag;
    }
    return own->status;
}

gr_status gr_cluster_ask(gr_cluster_client *cluster, const gr_kube_request *request,
                         json_t **object_out, gr_diag *diag)
{
    question own = {0};
    gr_status status = ask(cluster, request, &own, diag);
    if (status == GR_OK && object_out != NULL) {
        *object_out = own.object;
    } else {
        json_decref(own.object);
    }
    return status;
}

gr_status gr_cluster_list(gr_cluster_client *cluster, gr_kube_resource resource, const char *labels,
                          json_t *objects, gr_diag *diag)
{
    question own = {.items = json_array()};
    gr_kube_request request = {.verb = GR_KUBE_LIST,
                               .resource = resource,
                               .space = cluster->space,
                               .label_selector = labels,
                               .item = take_item};
    gr_status status = own.items != NULL ? ask(cluster, &request, &own, diag) : GR_E_NO_MEMORY;
    if (status == GR_OK && (own.no_memory || json_array_extend(objects, own.items) != 0)) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a list");
    }
    json_decref(own.object);
    json_decref(own.items);
    return status;
}

/* ---- Finding a job --------------------------------------------------------------------------- */

const gr_cluster_kind *gr_cluster_kind_of(const char *api_version, const char *kind)
{
    for (const gr_cluster_kind *one = gr_cluster_kinds; one->kind != NULL; one++) {
        if (strcmp(one->kind, kind) == 0 && strcmp(one->api_version, api_version) == 0) {
            return one;
        }
    }
    return NULL;
}

/* A plain Job may be anybody's. */
static bool is_ours(const gr_cluster_kind *kind, const json_t *object)
{
    const json_t *labels = gr_object_at(object, "metadata.labels");
    return kind->replicas != NULL || json_object_get(labels, GR_CLUSTER_LABEL) != NULL;
}

gr_status gr_cluster_find(gr_cluster_client *cluster, const char *name, gr_cluster_job *job_out,
                          gr_diag *diag)
{
    const char *slash = strchr(name, '/');
    const char *alone = slash != NULL ? slash + 1 : name;
    size_t kind_bytes = slash != NULL ? (size_t)(slash - name) : 0;
    gr_diag refused = {0}, found = {0};
    for (const gr_cluster_kind *kind = gr_cluster_kinds; kind->kind != NULL; kind++) {
        json_t *object = NULL;
        if (slash != NULL &&
            (strlen(kind->kind) != kind_bytes || strncasecmp(kind->kind, name, kind_bytes) != 0)) {
            continue;
        }
        gr_kube_request request = {.verb = GR_KUBE_GET,
                                   .resource = kind->resource,
                                   .space = cluster->space,
                                   .name = alone};
        gr_status status = gr_cluster_ask(cluster, &request, &object, &found);
        if (status == GR_OK && is_ours(kind, object)) {
            *job_out = (gr_cluster_job){.kind = kind, .object = object};
            return GR_OK;
        }
        json_decref(object);
        if (status == GR_E_AUTH && refused.text[0] == '\0') {
            refused = found;
        } else if (status != GR_OK && status != GR_E_NOT_FOUND && status != GR_E_AUTH) {
            *diag = found;
            return status;
        }
    }
    if (refused.text[0] != '\0') {
        *diag = refused;
        return GR_E_AUTH;
    }
    return gr_fail(diag, GR_E_NOT_FOUND,
                   "there is no job \"%.100s\" in namespace %s of %.200s; gradus ls -n %s lists "
                   "those that there are",
                   name, cluster->space, cluster->access->where, cluster->space);
}

void gr_cluster_job_fini(gr_cluster_job *job)
{
    json_decref(job->object);
    job->object = NULL;
}
