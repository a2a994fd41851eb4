/* SPDX-License-Identifier: Apache-2.0 */

/* What the objects of a job in a cluster say. */

#include "base/number.h"
#include "base/text.h"
#include "cli/cluster.h"
#include "operator/object.h"
#include "train/report.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define TRAINING_LABEL "training.kubeflow.org/job-name"

/* An MPIJob of both versions is one object: the first that the server knows counts. */
const gr_cluster_kind gr_cluster_kinds[] = {
    {"Job", "batch/v1", {"batch", "v1", "jobs"}, "job-name", NULL, NULL, false},
    {"MPIJob",
     "kubeflow.org/v2beta1",
     {"kubeflow.org", "v2beta1", "mpijobs"},
     TRAINING_LABEL,
     "spec.mpiReplicaSpecs",
     NULL,
     false},
    {"PyTorchJob",
     "kubeflow.org/v1",
     {"kubeflow.org", "v1", "pytorchjobs"},
     TRAINING_LABEL,
     "spec.pytorchReplicaSpecs",
     "pytorch",
     false},
    {"TFJob",
     "kubeflow.org/v1",
     {"kubeflow.org", "v1", "tfjobs"},
     TRAINING_LABEL,
     "spec.tfReplicaSpecs",
     "tensorflow",
     false},
    {"GradusJob",
     "gradus.dev/v1",
     {"gradus.dev", "v1", "gradusjobs"},
     TRAINING_LABEL,
     "spec.workers",
     "gradus",
     true},
    {"MPIJob",
     "kubeflow.org/v1",
     {"kubeflow.org", "v1", "mpijobs"},
     TRAINING_LABEL,
     "spec.mpiReplicaSpecs",
     NULL,
     false},
    {.kind = NULL},
};

const char *gr_cluster_job_name(const gr_cluster_job *job)
{
    const char *name = gr_object_text(job->object, "metadata.name");
    return name != NULL ? name : "";
}

const char *gr_cluster_job_uid(const gr_cluster_job *job)
{
    return gr_object_text(job->object, "metadata.uid");
}

void gr_cluster_selector(const gr_cluster_job *job, char text_out[GR_CLUSTER_SELECTOR_BYTES])
{
    snprintf(text_out, GR_CLUSTER_SELECTOR_BYTES, "%s=%.253s", job->kind->pod_label,
             gr_cluster_job_name(job));
}

/* ---- State ----------------------------------------------------------------------------------- */

const char *const gr_cluster_states[] = {"pending", "running", "suspended", "done", "failed"};

gr_cluster_state gr_cluster_state_of(const gr_cluster_job *job, const char **why_out)
{
    const json_t *conditions = gr_object_at(job->object, "status.conditions");
    bool is_plain = job->kind->replicas == NULL;
    *why_out = "";
    if (gr_object_holds(conditions, "Failed")) {
        const char *why = gr_object_text(gr_object_condition(conditions, "Failed"), "message");
        *why_out = why != NULL ? why : "";
        return GR_CLUSTER_FAILED;
    }
    if (gr_object_holds(conditions, is_plain ? "Complete" : "Succeeded")) {
        return GR_CLUSTER_SUCCEEDED;
    }
    if (gr_object_true(job->object, is_plain ? "spec.suspend" : "spec.runPolicy.suspend")) {
        return GR_CLUSTER_SUSPENDED;
    }
    bool runs = is_plain ? gr_object_int(job->object, "status.ready", 0) > 0
                         : gr_object_holds(conditions, "Running");
    return runs ? GR_CLUSTER_RUNNING : GR_CLUSTER_PENDING;
}

int gr_cluster_workers(const gr_cluster_job *job)
{
    if (job->kind->replicas == NULL) {
        int64_t one = gr_object_int(job->object, "spec.parallelism", 1);
        return (int)gr_object_int(job->object, "spec.completions", one);
    }
    const char *role;
    json_t *spec, *roles = gr_object_at(job->object, job->kind->replicas);
    int workers = 0;
    if (job->kind->has_one_role) {
        return (int)gr_object_int(roles, "replicas", 1);
    }
    json_object_foreach(roles, role, spec)
    {
        if (strcmp(role, "Launcher") != 0 && strcmp(role, "PS") != 0 &&
            strcmp(role, "Evaluator") != 0) {
            workers += (int)gr_object_int(spec, "replicas", 1);
        }
    }
    return workers;
}

/* ---- Progress -------------------------------------------------------------------------------- */

typedef struct line {
    char *text;
    size_t used;
} line;

static void add(line *to, const char *format, ...) GR_PRINTF(2, 3);
static void add(line *to, const char *format, ...)
{
    va_list arguments;
    size_t room = GR_CLUSTER_PROGRESS_BYTES - to->used;
    va_start(arguments, format);
    int length = vsnprintf(to->text + to->used, room, format, arguments);
    va_end(arguments);
    to->used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1;
}

/* "epoch 3 of 10"; nothing, where nobody knows. */
static void add_count(line *to, const json_t *progress, const char *what, const char *all)
{
    int64_t count = gr_object_int(progress, what, -1), of = gr_object_int(progress, all, 0);
    if (count >= 0) {
        add(to, "%s%s %" PRId64, to->used > 0 ? ", " : "", what, count);
    }
    if (count >= 0 && of > 0) {
        add(to, " of %" PRId64, of);
    }
}

void gr_cluster_progress(const gr_cluster_job *job, char text_out[GR_CLUSTER_PROGRESS_BYTES])
{
    char rate[32];
    line to = {.text = text_out};
    const json_t *progress = gr_object_at(job->object, "status.progress");
    const json_t *loss = json_object_get(progress, "loss");
    const json_t *per_s = json_object_get(progress, "samplesPerSecond");
    const json_t *late_ms = gr_object_at(progress, "straggler.lateMilliseconds");
    text_out[0] = '\0';
    add_count(&to, progress, "step", "steps");
    add_count(&to, progress, "epoch", "epochs");
    if (json_is_number(loss)) {
        add(&to, ", loss %.6g", json_number_value(loss));
    }
    if (json_is_number(per_s)) {
        gr_format_thousands(json_number_value(per_s), rate);
        add(&to, ", %s samples/s", rate);
    }
    if (json_is_number(late_ms)) {
        add(&to, ", rank %" PRId64 " is late by %.3g ms",
            gr_object_int(progress, "straggler.rank", -1), json_number_value(late_ms));
    }
}

/* ---- Pods ------------------------------------------------------------------------------------ */

/* Label keys have dots, so that they are no paths. */
static const char *label_of(const json_t *pod, const char *map, const char *key)
{
    const char *text = json_string_value(json_object_get(gr_object_at(pod, map), key));
    return text != NULL ? text : "";
}

void gr_cluster_role(const gr_cluster_job *job, const json_t *pod,
                     char text_out[GR_CLUSTER_ROLE_BYTES], int *order_out)
{
    enum { OTHERS = 1 << 20 }; /* behind workers */
    int64_t index = 0;
    if (job->kind->replicas == NULL) {
        static const char key[] = "batch.kubernetes.io/job-completion-index";
        const char *text = label_of(pod, "metadata.annotations", key);
        text = text[0] != '\0' ? text : label_of(pod, "metadata.labels", key);
        (void)gr_number_int(text, &index);
        snprintf(text_out, GR_CLUSTER_ROLE_BYTES, "%" PRId64, index);
        *order_out = (int)index;
        return;
    }
    const char *role = label_of(pod, "metadata.labels", "training.kubeflow.org/replica-type");
    if (role[0] == '\0') {
        role = label_of(pod, "metadata.labels", "training.kubeflow.org/job-role");
    }
    bool is_torch = strcmp(job->kind->kind, "PyTorchJob") == 0;
    (void)gr_number_int(label_of(pod, "metadata.labels", "training.kubeflow.org/replica-index"),
                        &index);
    if (is_torch && gr_object_at(job->object, "spec.pytorchReplicaSpecs.Master") != NULL) {
        index += strcmp(role, "worker") == 0;
    }
    bool is_server = job->kind->has_one_role && strcmp(role, "server") == 0;
    if (is_torch || (job->kind->has_one_role && !is_server)) {
        snprintf(text_out, GR_CLUSTER_ROLE_BYTES, "%" PRId64, index);
    } else if (strcmp(role, "launcher") == 0 || strcmp(role, "chief") == 0) {
        snprintf(text_out, GR_CLUSTER_ROLE_BYTES, "%s", role);
    } else {
        snprintf(text_out, GR_CLUSTER_ROLE_BYTES, "%.32s %" PRId64, role, index);
    }
    bool is_first = strcmp(role, "launcher") == 0 || strcmp(role, "chief") == 0;
    *order_out = is_first                      ? -1
                 : strcmp(role, "worker") == 0 ? (int)index
                 : is_torch                    ? (int)index
                                               : OTHERS + (int)index;
}

static const json_t *named(const json_t *list, const char *name)
{
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one)
    {
        if (gr_object_is_text(one, "name", name)) {
            return one;
        }
    }
    return NULL;
}

const char *gr_cluster_container(const gr_cluster_job *job, const json_t *pod,
                                 const json_t **status_out)
{
    const json_t *containers = gr_object_at(pod, "spec.containers");
    const char *name = job->kind->container;
    if (name == NULL || named(containers, name) == NULL) {
        name = gr_object_text(json_array_get(containers, 0), "name");
    }
    *status_out = name != NULL ? named(gr_object_at(pod, "status.containerStatuses"), name) : NULL;
    return name;
}

/* ---- What is wrong with a pod ---------------------------------------------------------------- */

static const char *or_nothing(const char *text)
{
    return text != NULL ? text : "";
}

/* The first of the containers that cannot start. */
static const json_t *waiting_of(const json_t *statuses, const char **name_out)
{
    static const char *const harmless[] = {"ContainerCreating", "PodInitializing", NULL};
    size_t i;
    const json_t *status;
    json_array_foreach(statuses, i, status)
    {
        const json_t *waiting = gr_object_at(status, "state.waiting");
        const char *reason = gr_object_text(waiting, "reason");
        if (reason != NULL && strcmp(reason, harmless[0]) != 0 &&
            strcmp(reason, harmless[1]) != 0) {
            *name_out = or_nothing(gr_object_text(status, "image"));
            return waiting;
        }
    }
    return NULL;
}

static const json_t *failed_of(const json_t *statuses, const char **name_out)
{
    size_t i;
    const json_t *status;
    json_array_foreach(statuses, i, status)
    {
        const json_t *ended = gr_object_at(status, "state.terminated");
        ended = ended != NULL ? ended : gr_object_at(status, "lastState.terminated");
        if (ended != NULL && (gr_object_int(ended, "exitCode", 0) != 0 ||
                              gr_object_is_text(ended, "reason", "OOMKilled"))) {
            *name_out = or_nothing(gr_object_text(status, "name"));
            return ended;
        }
    }
    return NULL;
}

typedef struct sentence {
    char *reason, *text;
    const char *who; /* "worker 2 (pod NAME)" */
} sentence;

static bool describe(const sentence *to, const char *reason, const char *format, ...)
    GR_PRINTF(3, 4);
static bool describe(const sentence *to, const char *reason, const char *format, ...)
{
    va_list arguments;
    char said[GR_CLUSTER_SENTENCE_BYTES - 160];
    va_start(arguments, format);
    gr_text_line(said, sizeof said, format, arguments);
    va_end(arguments);
    snprintf(to->reason, GR_CLUSTER_ROLE_BYTES, "%.60s", reason);
    snprintf(to->text, GR_CLUSTER_SENTENCE_BYTES, "%.150s %s", to->who, said);
    return true;
}

static bool describe_waiting(const sentence *to, const json_t *waiting, const char *image)
{
    const char *reason = or_nothing(gr_object_text(waiting, "reason"));
    const char *message = or_nothing(gr_object_text(waiting, "message"));
    if (strcmp(reason, "ErrImagePull") == 0 || strcmp(reason, "ImagePullBackOff") == 0) {
        return describe(to, "image", "waits for its image %.100s (%s): %.280s", image, reason,
                        message);
    }
    if (strcmp(reason, "CrashLoopBackOff") == 0) {
        return false; /* its exit code says more */
    }
    return describe(to, reason, "cannot start: %.60s: %.340s", reason, message);
}

static bool describe_failed(const sentence *to, const json_t *ended, const char *container,
                            const char *limit)
{
    const char *reason = or_nothing(gr_object_text(ended, "reason"));
    const char *message = or_nothing(gr_object_text(ended, "message"));
    const char *between = message[0] != '\0' ? ": " : "";
    int code = (int)gr_object_int(ended, "exitCode", 0);
    if (strcmp(reason, "OOMKilled") == 0) {
        return describe(
            to, "OOMKilled",
            "was killed (OOMKilled): it needs more memory than its limit%s%.40s; --memory "
            "sets that",
            limit[0] != '\0' ? " of " : "", limit);
    }
    if (strcmp(reason, "StartError") == 0 || strcmp(reason, "ContainerCannotRun") == 0) {
        return describe(to, reason, "cannot start: %.360s", message);
    }
    if (code > 128) {
        return describe(to, "exit", "was ended by signal %d (exit code %d)%s%.300s", code - 128,
                        code, between, message);
    }
    return describe(to, "exit", "failed with exit code %d, container %.63s%s%.300s", code,
                    container, between, message);
}

bool gr_cluster_trouble(const gr_cluster_job *job, const json_t *pod,
                        char reason_out[GR_CLUSTER_ROLE_BYTES],
                        char sentence_out[GR_CLUSTER_SENTENCE_BYTES])
{
    char who[160], role[GR_CLUSTER_ROLE_BYTES];
    int order;
    const char *container = "", *image = "";
    gr_cluster_role(job, pod, role, &order);
    snprintf(who, sizeof who, "%s%.40s (pod %.100s)",
             isdigit((unsigned char)role[0]) ? "worker " : "", role,
             or_nothing(gr_object_text(pod, "metadata.name")));
    const sentence to = {.reason = reason_out, .text = sentence_out, .who = who};
    const json_t *inits = gr_object_at(pod, "status.initContainerStatuses");
    const json_t *statuses = gr_object_at(pod, "status.containerStatuses");
    const json_t *scheduled =
        gr_object_condition(gr_object_at(pod, "status.conditions"), "PodScheduled");
    const char *phase = or_nothing(gr_object_text(pod, "status.phase"));
    const char *reason = or_nothing(gr_object_text(pod, "status.reason"));
    if (strcmp(phase, "Pending") == 0 && gr_object_is_text(scheduled, "status", "False")) {
        return describe(&to, "Unschedulable", "finds no node (FailedScheduling): %.360s",
                        or_nothing(gr_object_text(scheduled, "message")));
    }
    if (strcmp(phase, "Failed") == 0 && reason[0] != '\0') { /* Evicted, say */
        return describe(&to, reason, "has failed: %.60s: %.340s", reason,
                        or_nothing(gr_object_text(pod, "status.message")));
    }
    const json_t *waiting = waiting_of(inits, &image);
    waiting = waiting != NULL ? waiting : waiting_of(statuses, &image);
    if (waiting != NULL && describe_waiting(&to, waiting, image)) {
        return true;
    }
    const json_t *ended = failed_of(inits, &container);
    ended = ended != NULL ? ended : failed_of(statuses, &container);
    if (ended == NULL) {
        return false;
    }
    const json_t *first = json_array_get(gr_object_at(pod, "spec.containers"), 0);
    const char *limit = gr_object_text(first, "resources.limits.memory");
    return describe_failed(&to, ended, container, or_nothing(limit));
}
