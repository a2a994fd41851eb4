/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus ls`, `logs`, `wait`, `stop`, `scale` and `top` for jobs of a cluster. */

#include "base/fail.h"
#include "base/time_text.h"
#include "cli/cluster.h"
#include "launch/launch.h"
#include "operator/object.h"
#include "operator/quantity.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- ls -------------------------------------------------------------------------------------- */

/* Each sentence once: of two versions of a kind it is the same. */
static void warn_refused(const json_t *refusals)
{
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)refusals, text, value)
    {
        fprintf(stderr, "gradus: warning: %s\n", text);
    }
}

/* All jobs, as an array of [number of their kind, object]. A kind that the server does not have
 * has none; one that may not be listed is told, unless none may. */
static gr_status list_jobs(gr_cluster_client *cluster, json_t *jobs, gr_diag *diag)
{
    gr_status status = GR_OK;
    bool has_listed = false;
    json_t *refusals = json_object();
    gr_diag first = {0};
    json_t *seen = json_object();
    for (int i = 0; gr_cluster_kinds[i].kind != NULL && status == GR_OK; i++) {
        size_t at;
        json_t *object, *objects = json_array();
        const gr_cluster_kind *kind = &gr_cluster_kinds[i];
        const char *labels = kind->replicas == NULL ? GR_CLUSTER_LABEL : NULL;
        gr_diag refused = {0};
        gr_status listed = gr_cluster_list(cluster, kind->resource, labels, objects, &refused);
        has_listed |= listed == GR_OK;
        if (listed == GR_E_AUTH) {
            first = first.status == GR_OK ? refused : first;
            if (json_object_set_new(refusals, refused.text, json_true()) != 0) {
                status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a list");
            }
        } else if (listed != GR_OK && listed != GR_E_NOT_FOUND) {
            *diag = refused;
            status = listed;
        }
        json_array_foreach(objects, at, object)
        {
            const char *uid = gr_object_text(object, "metadata.uid");
            if (uid != NULL && json_object_get(seen, uid) == NULL && /* in another version */
                (json_object_set_new(seen, uid, json_true()) != 0 ||
                 json_array_append_new(jobs, json_pack("[i, O]", i, object)) != 0)) {
                status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a list");
            }
        }
        json_decref(objects);
    }
    if (status == GR_OK && !has_listed && first.status != GR_OK) {
        *diag = first;
        status = first.status;
    } else {
        warn_refused(refusals);
    }
    json_decref(refusals);
    json_decref(seen);
    return status;
}

static void print_job(const gr_cluster_job *job)
{
    const char *why, *made = gr_object_text(job->object, "metadata.creationTimestamp");
    gr_cluster_state state = gr_cluster_state_of(job, &why);
    char when[32] = "", progress[GR_CLUSTER_PROGRESS_BYTES] = "";
    int64_t made_us;
    struct tm local;
    if (state == GR_CLUSTER_RUNNING) {
        gr_cluster_progress(job, progress);
    }
    if (made != NULL && gr_time_read(made, &made_us)) {
        time_t made_s = (time_t)(made_us / 1000000);
        if (localtime_r(&made_s, &local) != NULL) {
            strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
        }
    }
    printf("%-24s %-10s %-10s %7d  %-19s  %.80s%s\n", gr_cluster_job_name(job), job->kind->kind,
           gr_cluster_states[state], gr_cluster_workers(job), when, why, progress);
}

static gr_status print_json(const gr_cluster_job *job, gr_diag *diag)
{
    const char *why, *made = gr_object_text(job->object, "metadata.creationTimestamp");
    gr_cluster_state state = gr_cluster_state_of(job, &why);
    return gr_cli_print_json(json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:O*}", "name",
                                       gr_cluster_job_name(job), "kind", job->kind->kind, "state",
                                       gr_cluster_states[state], "workers", gr_cluster_workers(job),
                                       "since", made != NULL ? made : "", "why", why, "progress",
                                       gr_object_at(job->object, "status.progress")),
                             diag);
}

int gr_cluster_ls(const gr_cluster_flags *flags, bool json)
{
    gr_cluster_client cluster = {0};
    gr_diag diag = {0};
    json_t *one, *jobs = json_array();
    size_t i;
    gr_status status = gr_cluster_open(flags, &cluster, &diag);
    if (status == GR_OK) {
        status = list_jobs(&cluster, jobs, &diag);
    }
    if (status == GR_OK && !json && json_array_size(jobs) > 0) {
        printf("%-24s %-10s %-10s %7s  %-19s\n", "name", "kind", "state", "workers", "since");
    }
    json_array_foreach(jobs, i, one)
    {
        const gr_cluster_job job = {
            .kind = &gr_cluster_kinds[json_integer_value(json_array_get(one, 0))],
            .object = json_array_get(one, 1)};
        if (status == GR_OK && json) {
            status = print_json(&job, &diag);
        } else if (status == GR_OK) {
            print_job(&job);
        }
    }
    json_decref(jobs);
    gr_cluster_close(&cluster);
    return status == GR_OK ? gr_cli_flush() : gr_cluster_fail(status, &diag);
}

/* ---- One job --------------------------------------------------------------------------------- */

typedef int job_work(gr_cluster_client *cluster, gr_cluster_job *job, const void *arg);

/* Finds the job and does the work with it. */
static int with_job(const gr_cluster_flags *flags, const char *name, job_work *work,
                    const void *arg)
{
    gr_cluster_client cluster = {0};
    gr_cluster_job job = {0};
    gr_diag diag = {0};
    gr_status status = gr_cluster_open(flags, &cluster, &diag);
    if (status == GR_OK) {
        status = gr_cluster_find(&cluster, name, &job, &diag);
    }
    int code = status == GR_OK ? work(&cluster, &job, arg) : gr_cluster_fail(status, &diag);
    gr_cluster_job_fini(&job);
    gr_cluster_close(&cluster);
    return code;
}

static int follow_job(gr_cluster_client *cluster, gr_cluster_job *job, const void *arg)
{
    return gr_cluster_follow(cluster, job, arg);
}

int gr_cluster_logs(const gr_cluster_flags *flags, const char *name, bool follow)
{
    const gr_follow_options options = {.logs = true, .once = !follow};
    return with_job(flags, name, follow_job, &options);
}

int gr_cluster_wait_for(const gr_cluster_flags *flags, const char *name)
{
    const gr_follow_options options = {.logs = false};
    return with_job(flags, name, follow_job, &options);
}

static int stop_job(gr_cluster_client *cluster, gr_cluster_job *job, const void *arg)
{
    const bool *now = arg;
    const char *name = gr_cluster_job_name(job);
    gr_diag diag = {0};
    json_t *pods = json_array();
    char selector[GR_CLUSTER_SELECTOR_BYTES];
    gr_kube_request request = {.verb = GR_KUBE_DELETE,
                               .resource = job->kind->resource,
                               .space = cluster->space,
                               .name = name,
                               .uid = gr_cluster_job_uid(job),
                               .propagation = "Background"};
    gr_status status = gr_cluster_ask(cluster, &request, NULL, &diag);
    gr_cluster_selector(job, selector);
    if (status == GR_OK && *now) {
        status =
            gr_cluster_list(cluster, (gr_kube_resource){"", "v1", "pods"}, selector, pods, &diag);
    }
    size_t i;
    json_t *pod;
    json_array_foreach(pods, i, pod)
    {
        gr_kube_request one = {.verb = GR_KUBE_DELETE,
                               .resource = {"", "v1", "pods"},
                               .space = cluster->space,
                               .name = gr_object_text(pod, "metadata.name"),
                               .uid = gr_object_text(pod, "metadata.uid"),
                               .grace_s = 1};
        gr_status deleted = gr_cluster_ask(cluster, &one, NULL, &diag);
        if (deleted != GR_OK && deleted != GR_E_NOT_FOUND && status == GR_OK) {
            status = deleted;
        }
    }
    json_decref(pods);
    if (status != GR_OK) {
        return gr_cluster_fail(status, &diag);
    }
    printf("job %s is deleted, and its pods with it\n", name);
    return gr_cli_flush();
}

int gr_cluster_stop(const gr_cluster_flags *flags, const char *name, bool now)
{
    return with_job(flags, name, stop_job, &now);
}

/* ---- scale ----------------------------------------------------------------------------------- */

static bool is_elastic(const gr_cluster_job *job)
{
    const json_t *annotations = gr_object_at(job->object, "metadata.annotations");
    const char *text = json_string_value(json_object_get(annotations, GR_CLUSTER_ELASTIC));
    return text != NULL && strcmp(text, "true") == 0;
}

/* The change that gives the job so many workers; NULL without one, and `diag` says why. */
static json_t *scale_patch(const gr_cluster_job *job, int64_t to, gr_diag *diag)
{
    const char *name = gr_cluster_job_name(job), *why;
    gr_cluster_state state = gr_cluster_state_of(job, &why);
    json_t *patch = NULL;
    if (state == GR_CLUSTER_SUCCEEDED || state == GR_CLUSTER_FAILED) {
        (void)gr_fail(diag, GR_E_INVALID, "scale: job %s has ended (%s)", name,
                      gr_cluster_states[state]);
        return NULL;
    }
    if (job->kind->replicas == NULL) {
        if (!is_elastic(job)) {
            (void)gr_fail(diag, GR_E_INVALID,
                          "scale: the workers of job %s were told that they are %d; gradus submit "
                          "--elastic sends one whose number may change",
                          name, gr_cluster_workers(job));
            return NULL;
        }
        patch = json_pack("{s:{s:I, s:I}}", "spec", "parallelism", (json_int_t)to, "completions",
                          (json_int_t)to);
    } else if (job->kind->has_one_role) {
        patch = json_pack("{s:{s:{s:I}}}", "spec", "workers", "replicas", (json_int_t)to);
    } else {
        const char *roles = job->kind->replicas + strlen("spec.");
        const json_t *specs = gr_object_at(job->object, job->kind->replicas);
        bool has_master = json_object_get(specs, "Master") != NULL;
        if (strcmp(job->kind->kind, "TFJob") == 0 || json_object_get(specs, "Worker") == NULL ||
            to < 1 + has_master) {
            (void)gr_fail(diag, GR_E_INVALID,
                          "scale: job %s, a %s, cannot have %" PRId64 " workers%s", name,
                          job->kind->kind, to,
                          strcmp(job->kind->kind, "TFJob") == 0
                              ? ": TF_CONFIG names all of them from the start"
                              : "");
            return NULL;
        }
        patch = json_pack("{s:{s:{s:{s:I}}}}", "spec", roles, "Worker", "replicas",
                          (json_int_t)(to - has_master));
    }
    if (patch == NULL ||
        json_object_set_new(patch, "metadata",
                            json_pack("{s:s}", "uid", gr_cluster_job_uid(job))) != 0) {
        (void)gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    return patch;
}

static int scale_job(gr_cluster_client *cluster, gr_cluster_job *job, const void *arg)
{
    const int64_t *to = arg;
    gr_diag diag = {0};
    int workers = gr_cluster_workers(job);
    if (*to == 0) {
        printf("the job has %d %s\n", workers, workers == 1 ? "worker" : "workers");
        return gr_cli_flush();
    }
    json_t *patch = scale_patch(job, *to, &diag);
    if (patch == NULL) {
        return gr_cluster_fail(diag.status, &diag);
    }
    gr_kube_request request = {.verb = GR_KUBE_MERGE_PATCH,
                               .resource = job->kind->resource,
                               .space = cluster->space,
                               .name = gr_cluster_job_name(job),
                               .field_manager = "gradus",
                               .body = patch};
    gr_status status = gr_cluster_ask(cluster, &request, NULL, &diag);
    json_decref(patch);
    if (status != GR_OK) {
        return gr_cluster_fail(status, &diag);
    }
    printf("the job goes from %d to %" PRId64 " workers\n", workers, *to);
    return gr_cli_flush();
}

int gr_cluster_scale(const gr_cluster_flags *flags, const char *name, int64_t to)
{
    return with_job(flags, name, scale_job, &to);
}

/* ---- top ------------------------------------------------------------------------------------- */

static void add_quantity(const json_t *container, const char *path, gr_quantity *sum)
{
    gr_quantity one;
    const char *text = gr_object_text(container, path);
    if (text != NULL && gr_quantity_parse(text, &one)) {
        (void)gr_quantity_add(sum, &one, 1);
    }
}

static void print_usage(const gr_cluster_job *job, const json_t *pod, const json_t *metrics)
{
    enum { NANO = 1000000000 };
    char role[GR_CLUSTER_ROLE_BYTES];
    int order;
    size_t i;
    const json_t *container, *known = NULL;
    gr_quantity cpu = {0}, memory = {0};
    const char *name = gr_object_text(pod, "metadata.name");
    const char *phase = gr_object_text(pod, "status.phase");
    gr_cluster_role(job, pod, role, &order);
    json_array_foreach(metrics, i, container)
    {
        if (gr_object_is_text(container, "metadata.name", name)) {
            known = gr_object_at(container, "containers");
        }
    }
    json_array_foreach(known, i, container)
    {
        add_quantity(container, "usage.cpu", &cpu);
        add_quantity(container, "usage.memory", &memory);
    }
    printf("%-10s %-40s %-10s ", role, name != NULL ? name : "", phase != NULL ? phase : "");
    if (known != NULL) {
        printf("%8.2f %8.0f MiB\n", (double)cpu.nano / NANO,
               (double)memory.nano / NANO / (1 << 20));
    } else {
        printf("%8s %12s\n", "-", "-");
    }
}

static int show_usage(gr_cluster_client *cluster, gr_cluster_job *job, const void *arg)
{
    (void)arg;
    gr_diag diag = {0};
    char selector[GR_CLUSTER_SELECTOR_BYTES], progress[GR_CLUSTER_PROGRESS_BYTES];
    json_t *pod, *pods = json_array(), *metrics = json_array();
    size_t i;
    gr_cluster_selector(job, selector);
    gr_status status = gr_cluster_list(
        cluster, (gr_kube_resource){"metrics.k8s.io", "v1beta1", "pods"}, selector, metrics, &diag);
    if (status == GR_E_NOT_FOUND || status == GR_E_PEER_SLOW) {
        status = gr_fail(&diag, status,
                         "top: the cluster of %.200s measures nothing: it has no metrics.k8s.io "
                         "(metrics-server)",
                         cluster->access->where);
    } else if (status == GR_OK) {
        status =
            gr_cluster_list(cluster, (gr_kube_resource){"", "v1", "pods"}, selector, pods, &diag);
    }
    gr_cluster_progress(job, progress);
    if (status == GR_OK && progress[0] != '\0') {
        printf("%s\n", progress);
    }
    if (status == GR_OK) {
        printf("%-10s %-40s %-10s %8s %12s\n", "worker", "pod", "state", "cpus", "memory");
    }
    json_array_foreach(pods, i, pod)
    {
        print_usage(job, pod, metrics);
    }
    json_decref(pods);
    json_decref(metrics);
    return status == GR_OK ? gr_cli_flush() : gr_cluster_fail(status, &diag);
}

int gr_cluster_top(const gr_cluster_flags *flags, const char *name)
{
    return with_job(flags, name, show_usage, NULL);
}
