/* SPDX-License-Identifier: Apache-2.0 */

/* A program that is too large for ConfigMaps goes to each pod of a job: its first container waits
 * until a command in it has taken the archive. */

#include "base/fail.h"
#include "cli/submit.h"
#include "kube/exec.h"
#include "launch/signals.h"
#include "operator/object.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

enum {
    AT_ONCE = 8, /* pods */
    TRIES = 5,   /* in a row, of which each has a failure */
    LOOK_US = 1000000,
    TELL_US = 30000000
};

/* The archive has its name when it is there in full. `head` counts, since no end comes. */
static const char take_script[] =
    "cd " GR_SUBMIT_CODE_PATH " && head -c \"$1\" >part && "
    "[ \"$(sha256sum <part | cut -c 1-64)\" = \"$2\" ] && mv part " GR_SUBMIT_ARCHIVE " && exit 0\n"
    "echo 'what came is not the program that was sent' >&2; exit 1";

typedef struct receiver { /* a pod that gets it now */
    gr_kube_exec *exec;   /* NULL: none */
    char pod[256], uid[64];
} receiver;

typedef struct handing {
    gr_cluster_client *cluster;
    gr_cluster_job *job;
    const gr_submit_code *code;
    receiver at[AT_ONCE];
    json_t *served; /* uid -> true */
    int failures;   /* since one had it: looks, after which something failed */
    int64_t expected;
    bool is_over;             /* the job has ended already */
    bool has_failed, is_away; /* since the last look; the server did not answer it */
    gr_clock clock;
} handing;

/* All pods of the job, whatever their role. */
static int64_t count_pods(const gr_cluster_job *job)
{
    const char *name;
    json_t *role;
    int64_t count = 0;
    if (job->kind->replicas == NULL) {
        return gr_cluster_workers(job);
    }
    json_object_foreach(gr_object_at(job->object, job->kind->replicas), name, role)
    {
        count += gr_object_int(role, "replicas", 1);
    }
    return count;
}

static bool waits(const json_t *pod)
{
    size_t i;
    const json_t *one;
    json_array_foreach(gr_object_at(pod, "status.initContainerStatuses"), i, one)
    {
        if (gr_object_is_text(one, "name", GR_SUBMIT_UNPACK)) {
            return gr_object_at(one, "state.running") != NULL;
        }
    }
    return false;
}

static gr_status start(handing *h, receiver *to, const json_t *pod, gr_diag *diag)
{
    char size[32];
    const char *command[] = {"sh", "-c", take_script, "sh", size, h->code->sha256, NULL};
    snprintf(size, sizeof size, "%zu", h->code->size_bytes);
    const gr_kube_exec_options options = {.access = h->cluster->access,
                                          .clock = h->clock,
                                          .space = h->cluster->space,
                                          .pod = to->pod,
                                          .container = GR_SUBMIT_UNPACK,
                                          .command = command,
                                          .input_fd = h->code->fd,
                                          .input_bytes = (int64_t)h->code->size_bytes};
    snprintf(to->uid, sizeof to->uid, "%s", gr_object_text(pod, "metadata.uid"));
    snprintf(to->pod, sizeof to->pod, "%s", gr_object_text(pod, "metadata.name"));
    return gr_kube_exec_start(&options, &to->exec, diag);
}

/* A free place, unless the pod has or gets it already; NULL: none. */
static receiver *place_for(handing *h, const char *uid)
{
    receiver *found = NULL;
    if (json_object_get(h->served, uid) != NULL) {
        return NULL;
    }
    for (size_t i = 0; i < AT_ONCE; i++) {
        if (h->at[i].exec != NULL && strcmp(h->at[i].uid, uid) == 0) {
            return NULL;
        }
        found = h->at[i].exec == NULL ? &h->at[i] : found;
    }
    return found;
}

/* What breaks on the way may do so again; what is refused, or fails there, will. */
static gr_status judge(handing *h, gr_status status)
{
    bool may_pass = status == GR_E_PEER_LOST || status == GR_E_IO || status == GR_E_NOT_FOUND ||
                    status == GR_E_TIMEOUT;
    h->failures += status != GR_OK && !h->has_failed; /* a server that goes breaks all at once */
    h->has_failed |= status != GR_OK;
    return may_pass && h->failures < TRIES ? GR_OK : status;
}

/* The job goes on while its server is away: the next look asks again. */
static gr_status pass_over(handing *h, gr_status status, const gr_diag *diag)
{
    bool is_away = status == GR_E_PEER_LOST || status == GR_E_TIMEOUT || status == GR_E_IO ||
                   status == GR_E_PEER_SLOW;
    if (is_away && !h->is_away) {
        fprintf(stderr, "gradus: %s; job %s waits for its program until the server answers\n",
                diag->text, gr_cluster_job_name(h->job));
    }
    h->is_away = is_away;
    return is_away ? GR_OK : status;
}

/* How far is the job, and which pods wait? */
static gr_status look(handing *h, gr_diag *diag)
{
    char selector[GR_CLUSTER_SELECTOR_BYTES];
    json_t *pods = json_array(), *fresh = NULL;
    const json_t *pod;
    const char *why;
    size_t i;
    gr_kube_request request = {.verb = GR_KUBE_GET,
                               .resource = h->job->kind->resource,
                               .space = h->cluster->space,
                               .name = gr_cluster_job_name(h->job)};
    gr_status status = gr_cluster_ask(h->cluster, &request, &fresh, diag);
    if (status == GR_OK) {
        const gr_cluster_job now = {.kind = h->job->kind, .object = fresh};
        gr_cluster_state state = gr_cluster_state_of(&now, &why);
        h->is_over = state == GR_CLUSTER_FAILED || state == GR_CLUSTER_SUCCEEDED;
        gr_cluster_selector(h->job, selector);
        status =
            gr_cluster_list(h->cluster, (gr_kube_resource){"", "v1", "pods"}, selector, pods, diag);
    }
    status = pass_over(h, status, diag);
    h->has_failed = false;
    json_decref(fresh);
    json_array_foreach(pods, i, pod)
    {
        const char *uid = gr_object_text(pod, "metadata.uid");
        receiver *to = uid != NULL && waits(pod) ? place_for(h, uid) : NULL;
        if (to != NULL && status == GR_OK) {
            status = judge(h, start(h, to, pod, diag));
        }
    }
    json_decref(pods);
    return status;
}

static gr_status run(handing *h, receiver *to, gr_diag *diag)
{
    gr_status status = gr_kube_exec_run(to->exec, diag);
    if (status == GR_PENDING) {
        return GR_OK;
    }
    gr_kube_exec_destroy(to->exec);
    to->exec = NULL;
    if (status == GR_OK) {
        h->failures = 0;
        return json_object_set_new(h->served, to->uid, json_true()) == 0
                   ? GR_OK
                   : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a list of pods");
    }
    return judge(h, status);
}

/* Moves what can be moved, until a time. */
static gr_status pump(handing *h, int64_t until_us, gr_diag *diag)
{
    struct pollfd at[AT_ONCE + 1] = {{.fd = h->cluster->signal_fd, .events = POLLIN}};
    int64_t left_us = until_us - gr_clock_now_us(&h->clock);
    for (size_t i = 0; i < AT_ONCE; i++) {
        const gr_kube_exec *exec = h->at[i].exec;
        at[1 + i].fd = exec != NULL ? gr_kube_exec_fd(exec) : -1;
        at[1 + i].events = exec != NULL ? gr_kube_exec_events(exec) : (short)0;
    }
    (void)poll(at, AT_ONCE + 1, left_us > 0 ? (int)(left_us / 1000) + 1 : 0);
    int signal_number = gr_signals_take(h->cluster->signal_fd);
    if (signal_number != 0) {
        return gr_fail(diag, GR_E_CANCELLED, "ended by %s", gr_signals_name(signal_number));
    }
    gr_status status = GR_OK;
    for (size_t i = 0; i < AT_ONCE && status == GR_OK; i++) {
        if (h->at[i].exec != NULL) {
            status = run(h, &h->at[i], diag);
        }
    }
    return status;
}

static gr_status hand_out(handing *h, gr_diag *diag)
{
    int64_t look_us = gr_clock_now_us(&h->clock), tell_us = look_us + TELL_US;
    gr_status status = GR_OK;
    while (status == GR_OK && !h->is_over && (int64_t)json_object_size(h->served) < h->expected) {
        int64_t now_us = gr_clock_now_us(&h->clock);
        if (now_us >= look_us) {
            status = look(h, diag);
            look_us = gr_clock_now_us(&h->clock) + LOOK_US;
        }
        if (now_us >= tell_us) {
            fprintf(stderr,
                    "gradus: %zu of %" PRId64 " pods of job %s have the program; it goes to each "
                    "when it runs\n",
                    json_object_size(h->served), h->expected, gr_cluster_job_name(h->job));
            tell_us = now_us + TELL_US;
        }
        if (status == GR_OK && !h->is_over) {
            status = pump(h, look_us, diag);
        }
    }
    return status;
}

gr_status gr_submit_hand_out(gr_cluster_client *cluster, gr_cluster_job *job,
                             const gr_submit_code *code, gr_diag *diag)
{
    handing h = {.cluster = cluster,
                 .job = job,
                 .code = code,
                 .served = json_object(),
                 .expected = count_pods(job),
                 .clock = gr_clock_real()};
    gr_status status = h.served != NULL
                           ? hand_out(&h, diag)
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a list of pods");
    for (size_t i = 0; i < AT_ONCE; i++) {
        gr_kube_exec_destroy(h.at[i].exec);
    }
    json_decref(h.served);
    return status;
}
