/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus run -f`: the jobs of a Kubernetes manifest, on this host. */

#include "base/fail.h"
#include "base/time_text.h"
#include "cli/cli.h"
#include "cli/install.h"
#include "cli/manifest.h"
#include "operator/local/cluster.h"
#include "operator/local/engine.h"
#include "operator/object.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct manifest_options {
    const char *const *files; /* NULL: none; ends with NULL */
    const char *space, *containers;
    bool timestamps, watch, dry_run;
} manifest_options;

#define AT(member) .offset = offsetof(manifest_options, member)

static const gr_config_field manifest_fields[] = {
    {.flag = "--filename",
     .short_flag = 'f',
     .type = GR_CONFIG_LIST,
     AT(files),
     .value_name = "FILE",
     .help = "manifests of jobs and of what they need, YAML or JSON, one or several documents or a "
             "List; -: stdin; may be repeated"},
    {.flag = "--namespace",
     .short_flag = 'n',
     .type = GR_CONFIG_TEXT,
     AT(space),
     .default_text = "default",
     .value_name = "NAME",
     .help = "of objects whose manifest names none"},
    {.flag = "--containers",
     .type = GR_CONFIG_TEXT,
     AT(containers),
     .default_text = "auto",
     .value_name = "ENGINE",
     .help = "podman or docker: containers run in their images, which are pulled if they are not "
             "there; no: they are processes of this host; auto: containers where an engine is "
             "installed that has all images of the jobs"},
    {.flag = "--timestamps",
     .type = GR_CONFIG_BOOL,
     AT(timestamps),
     .help = "the time of day in front of each line that a pod writes"},
    {.flag = "--watch",
     .type = GR_CONFIG_BOOL,
     AT(watch),
     .help = "apply what changes in FILE while the jobs run, but for metadata and status (suspend, "
             "replicas), and wait for jobs that are suspended"},
    {.flag = "--dry-run",
     .type = GR_CONFIG_BOOL,
     AT(dry_run),
     .help = "is refused: `gradus operator --dry-run -f` prints the objects of a job"},
    {.key = NULL},
};

const gr_config_table gr_run_manifest_table = {.name = "run -f",
                                               .title = "Flags of `gradus run -f`",
                                               .fields = manifest_fields,
                                               .struct_bytes = sizeof(manifest_options)};

static void usage(void)
{
    printf(
        "usage: gradus run -f FILE [-f FILE]...\n\n"
        "Runs the Kubernetes jobs of a manifest on this host: GradusJob, and MPIJob, PyTorchJob\n"
        "and TFJob of Kubeflow. Pods are containers of podman or docker where these have the\n"
        "images, else processes of this host; Services are names of addresses on loopback,\n"
        "ConfigMaps and Secrets are files.\n"
        "Exit code: 0 all jobs have succeeded, 1 a job failed or was ended, 2 the manifest is\n"
        "wrong, 75 a job waits suspended.\n");
}

/* Words of a command may look alike: what counts stands in front of the first word. */
bool gr_run_manifest_is_asked(int argc, char *const *argv)
{
    for (int i = 1; i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-f") == 0 || strncmp(argv[i], "--filename", 10) == 0) {
            return true;
        }
        i += strcmp(argv[i], "-n") == 0 || strcmp(argv[i], "--namespace") == 0 ||
             strcmp(argv[i], "--containers") == 0;
    }
    return false;
}

/* ---- Reading --------------------------------------------------------------------------------- */
static const char *text_of(const json_t *object, const char *path)
{
    const char *text = gr_object_text(object, path);
    return text != NULL ? text : "";
}

/* What is not there to be run, but to be used. */
static bool is_used(const json_t *object)
{
    static const char *const kinds[] = {"ConfigMap",        "Secret",     "Service",
                                        "ServiceAccount",   "Namespace",  "PersistentVolumeClaim",
                                        "PersistentVolume", "LimitRange", "ResourceQuota"};
    static const char rights[] = "rbac.authorization.k8s.io/";
    bool known = strncmp(text_of(object, "apiVersion"), rights, sizeof rights - 1) == 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        known |= gr_object_is(object, "v1", kinds[i]);
    }
    return known;
}

/* A cluster runs pods without any rank, as training-operator does; here that is a mistake. */
static gr_status check_processes(const char *where, const json_t *job, gr_diag *diag)
{
    static const char *const paths[] = {"spec.nprocPerNode", "spec.elasticPolicy.nProcPerNode"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        int64_t count;
        if (gr_object_is_text(job, "kind", "PyTorchJob") &&
            gr_object_number(gr_object_at(job, paths[i]), &count) && count < 1) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s: %s is %lld: no pod has a rank; it is auto, gpu, cpu or a number "
                           "from 1",
                           where, paths[i], (long long)count);
        }
    }
    return GR_OK;
}

/* A look at the job alone says what is wrong in it. */
static gr_status check_job(const char *where, const json_t *job, gr_diag *diag)
{
    gr_operator_result result = {0};
    gr_status status =
        gr_manifest_look(where, job, "", &(gr_operator_view){.has_no_agents = true}, &result, diag);
    if (status == GR_OK && json_array_size(result.writes) == 0) {
        status = gr_fail(diag, GR_E_INVALID,
                         "%s: nothing is made for this job: another controller manages it "
                         "(spec.runPolicy.managedBy)",
                         where);
    }
    gr_operator_result_fini(&result);
    return status;
}

/* What a cluster's server would refuse: pods would miss the key. */
static gr_status check_texts(const char *where, const json_t *object, gr_diag *diag)
{
    static const char *const parts[] = {"data", "stringData", "binaryData"};
    bool has_texts =
        gr_object_is(object, "v1", "ConfigMap") || gr_object_is(object, "v1", "Secret");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && has_texts; i++) {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(object, parts[i]), key, value)
        {
            if (!json_is_string(value)) {
                return gr_fail(
                    diag, GR_E_INVALID,
                    "%s: the value of key \"%.100s\" in %s must be a text; write numbers, "
                    "true and false in quotes",
                    where, key, parts[i]);
            }
        }
    }
    return GR_OK;
}

/* The rest of what Kubernetes asks of names, reconcilers look at. */
static bool is_name(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-.")] == '\0' && text[0] != '.';
}

static gr_status take_document(const manifest_options *options, const char *file,
                               const json_t *document, json_t *objects, int *jobs, gr_diag *diag)
{
    char where[GR_MANIFEST_WHERE_BYTES];
    json_t *object = json_array_get(document, 1), *metadata = json_object_get(object, "metadata");
    bool is_job = gr_manifest_kind(object) != NULL;
    gr_manifest_where(file, document, where);
    if (!is_job && !is_used(object)) {
        return gr_manifest_refuse_kind(where, object, "cannot be run here",
                                       ", and ConfigMaps, Secrets and Services", diag);
    }
    if (text_of(object, "metadata.name")[0] == '\0') {
        return gr_fail(diag, GR_E_INVALID, "%s: metadata.name is missing", where);
    }
    if (!is_name(text_of(object, "metadata.name")) || !is_name(text_of(metadata, "namespace")) ||
        !is_name(options->space)) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: names and namespaces are made of small letters, digits, - and .",
                       where);
    }
    if (text_of(metadata, "namespace")[0] == '\0' &&
        json_object_set_new(metadata, "namespace", json_string(options->space)) != 0) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the manifest");
    }
    gr_status status = check_texts(where, object, diag);
    if (is_job && status == GR_OK) {
        status = check_job(where, object, diag);
        status = status == GR_OK ? check_processes(where, object, diag) : status;
        (*jobs)++;
    }
    if (status == GR_OK && json_array_append(objects, object) != 0) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the manifest");
    }
    return status;
}

/* Adds the documents of each file to the array, as an array of their own. */
static gr_status read_files(const manifest_options *options, json_t *files, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (size_t i = 0; options->files[i] != NULL && status == GR_OK; i++) {
        json_t *documents = NULL;
        status = gr_manifests_read(options->files[i], &documents, diag);
        if (status != GR_OK) {
            break;
        }
        status = gr_manifests_name(options->files[i], documents, diag);
        if (json_array_append_new(files, documents) != 0) {
            status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the manifest");
        }
    }
    return status;
}

/* What jobs need comes before them. */
static gr_status read_objects(const manifest_options *options, json_t *objects, gr_diag *diag)
{
    json_t *files = json_array();
    const json_t *documents, *document;
    int jobs = 0;
    gr_status status = read_files(options, files, diag);
    for (int round = 0; round < 2 && status == GR_OK; round++) {
        size_t f, i;
        json_array_foreach(files, f, documents)
        {
            json_array_foreach(documents, i, document)
            {
                const json_t *object = json_array_get(document, 1);
                if (status == GR_OK && is_used(object) == (round == 0)) {
                    status =
                        take_document(options, options->files[f], document, objects, &jobs, diag);
                }
            }
        }
    }
    if (status == GR_OK && jobs == 0) {
        status = gr_fail(diag, GR_E_INVALID, "%s holds no job", options->files[0]);
    }
    json_decref(files);
    return status;
}

/* ---- The end --------------------------------------------------------------------------------- */
/* Since its creation, as kubectl writes it. */
static void print_age(const json_t *object, char text_out[32])
{
    int64_t began_s = 0;
    (void)gr_object_time(gr_object_text(object, "metadata.creationTimestamp"), &began_s);
    long long age_s = (long long)time(NULL) - began_s;
    if (age_s < 120) {
        snprintf(text_out, 32, "%llds", age_s);
    } else if (age_s < 600) {
        snprintf(text_out, 32, "%lldm%llds", age_s / 60, age_s % 60);
    } else {
        snprintf(text_out, 32, "%lldm", age_s / 60);
    }
}

/* The last condition that holds, which is the state that kubectl shows. */
static const char *state_of(const json_t *job)
{
    const char *state = "";
    size_t i;
    const json_t *condition;
    json_array_foreach(gr_object_at(job, "status.conditions"), i, condition)
    {
        if (gr_object_is_text(condition, "status", "True")) {
            state = text_of(condition, "type");
        }
    }
    return state;
}

static void print_conditions(const json_t *job)
{
    size_t i;
    const json_t *condition;
    fprintf(stderr, "\nConditions of %s:\n  %-11s %-7s %-26s %s\n", text_of(job, "metadata.name"),
            "TYPE", "STATUS", "REASON", "MESSAGE");
    json_array_foreach(gr_object_at(job, "status.conditions"), i, condition)
    {
        fprintf(stderr, "  %-11s %-7s %-26s %s\n", text_of(condition, "type"),
                text_of(condition, "status"), text_of(condition, "reason"),
                text_of(condition, "message"));
    }
}

/* What `kubectl get pods` says: "Completed" and "Error" of the containers that have ended. */
static const char *status_of(const json_t *pod)
{
    size_t i;
    const json_t *container;
    const char *phase = text_of(pod, "status.phase");
    if (gr_object_text(pod, "metadata.deletionTimestamp") != NULL) {
        return "Terminating";
    }
    json_array_foreach(gr_object_at(pod, "status.containerStatuses"), i, container)
    {
        const char *waits = gr_object_text(container, "state.waiting.reason");
        const char *ended = gr_object_text(container, "state.terminated.reason");
        if (ended != NULL && strcmp(phase, "Running") != 0) {
            return ended;
        }
        if (waits != NULL) {
            return waits;
        }
    }
    return phase;
}

static void print_pods(const json_t *pods)
{
    size_t i, k;
    const json_t *pod, *container;
    if (json_array_size(pods) == 0) {
        return;
    }
    fprintf(stderr, "\n%-32s %-7s %-18s %-10s %s\n", "POD", "READY", "STATUS", "RESTARTS", "AGE");
    json_array_foreach(pods, i, pod)
    {
        char age[32], ready[32];
        int count = 0, restarts = 0;
        json_array_foreach(gr_object_at(pod, "status.containerStatuses"), k, container)
        {
            count += gr_object_true(container, "ready");
            restarts += (int)gr_object_int(container, "restartCount", 0);
        }
        snprintf(ready, sizeof ready, "%d/%zu", count,
                 json_array_size(gr_object_at(pod, "spec.containers")));
        print_age(pod, age);
        fprintf(stderr, "%-32s %-7s %-18s %-10d %s\n", text_of(pod, "metadata.name"), ready,
                status_of(pod), restarts, age);
    }
}

/* Returns the exit code. */
static int print_report(const gr_local_report *report)
{
    size_t i;
    const json_t *job;
    bool has_failed = false;
    fprintf(stderr, "\n%-32s %-12s %s\n", "NAME", "STATE", "AGE");
    json_array_foreach(report->jobs, i, job)
    {
        char age[32];
        const json_t *conditions = gr_object_at(job, "status.conditions");
        print_age(job, age);
        fprintf(stderr, "%-32s %-12s %s\n", text_of(job, "metadata.name"), state_of(job), age);
        has_failed |=
            !gr_object_holds(conditions, "Succeeded") && !gr_object_holds(conditions, "Suspended");
    }
    print_pods(report->pods);
    json_array_foreach(report->jobs, i, job)
    {
        print_conditions(job);
    }
    if (report->is_suspended) {
        fprintf(stderr, "gradus: a job waits suspended (suspend: true); nothing runs until that "
                        "is taken out of the manifest; a run with --watch waits for that\n");
    }
    return has_failed || report->signal_number != 0 ? GR_EXIT_FAILED
           : report->is_suspended                   ? GR_EXIT_RESUME
                                                    : GR_EXIT_DONE;
}

/* Of gr_local_config. */
static gr_status read_again(void *read_arg, json_t *objects, gr_diag *diag)
{
    return read_objects(read_arg, objects, diag);
}

static int run(const gr_cli_line *line)
{
    const manifest_options *options = line->options;
    char program[PATH_MAX];
    gr_diag diag = {0};
    gr_local_report report = {0};
    json_t *objects = json_array();
    gr_status status;
    int code;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    if (options->dry_run) {
        status = gr_fail(&diag, GR_E_INVALID,
                         "run -f starts the job; \"gradus operator --dry-run -f %s\" prints the "
                         "objects that it gets",
                         options->files != NULL ? options->files[0] : "FILE");
    } else if (options->files == NULL) {
        status = gr_fail(&diag, GR_E_INVALID, "run -f needs a manifest: -f FILE");
    } else if (options->watch && options->files[1] != NULL) {
        status = gr_fail(&diag, GR_E_INVALID, "run -f: --watch is for one file; put all into one");
    } else if (options->watch && strcmp(options->files[0], "-") == 0) {
        status = gr_fail(&diag, GR_E_INVALID, "run -f: --watch needs a file, not stdin");
    } else {
        status = objects != NULL ? read_objects(options, objects, &diag)
                                 : gr_fail(&diag, GR_E_NO_MEMORY, "no memory for the manifest");
    }
    char sentence[GR_ENGINE_NOTE_BYTES] = "";
    const char *engine = NULL;
    if (status == GR_OK) {
        status = gr_engine_choose(options->containers, objects, &engine, sentence, &diag);
    }
    if (status == GR_OK && sentence[0] != '\0') {
        fprintf(stderr, "gradus: %s\n", sentence);
    }
    const gr_local_config config = {.objects = objects,
                                    .program = program,
                                    .engine = engine,
                                    .install = gr_install_self,
                                    .environment = environ,
                                    .timestamps = options->timestamps,
                                    .watched = options->watch ? options->files[0] : NULL,
                                    .read = read_again,
                                    .read_arg = line->options};
    if (status == GR_OK) {
        status = gr_local_run(&config, &report, &diag);
    }
    if (status == GR_OK) { /* a signal that cuts the output wants no report */
        code = report.is_cut ? GR_EXIT_FAILED : print_report(&report);
    } else {
        code = gr_cli_fail(status == GR_E_INVALID || status == GR_E_NOT_FOUND ? GR_EXIT_INPUT
                                                                              : GR_EXIT_FAILED,
                           &diag);
    }
    gr_local_report_fini(&report);
    json_decref(objects);
    return code;
}

int gr_run_manifest(int argc, char *const *argv)
{
    static const gr_cli_form form = {.table = &gr_run_manifest_table, .usage = usage, .work = run};
    static const gr_verb verb = {.name = "run", .form = &form};
    return gr_verb_call(&verb, argc, argv);
}
