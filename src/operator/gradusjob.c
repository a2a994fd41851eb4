/* SPDX-License-Identifier: Apache-2.0 */

/* GradusJob v1: native jobs, and programs of one's own, whose workers find each other by the first
 * pod's name and then look after themselves. They go on without those that are lost, the first one
 * included, as long as `minReplicas` are left: the coordinator lives with them (src/group).
 *
 * All pods that are made together are an attempt; each says by a label how many they are.
 *
 *   no pod is there              the next attempt: all pods are made
 *   not all have run yet         what is missing is made; one that failed or goes ends the attempt
 *   all have run (Running)       what is lost is made anew, and joins the others; of a program of
 *                                one's own it stays lost; of parameter servers gradusjob_servers.c
 *                                tells
 *   another number is wanted,
 *   or too few are left          all pods go; the next attempt goes on from the checkpoint
 *
 * A worker that is told to end together with all others writes a checkpoint first, so a change of
 * the number repeats no step. */

#include "operator/gradusjob.h"

#include "group/topology.h"
#include "operator/object.h"
#include "operator/parts.h"
#include "operator/progress.h"
#include "train/job/job.h"
#include "train/strategy/strategy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTAINER GR_GRADUSJOB_CONTAINER
#define COORDINATOR_PORT "coordinator"
#define WORKERS "spec.workers"
#define SIZE_LABEL "gradus.dev/workers"
#define JOINING_LABEL "gradus.dev/joining"
#define OUTPUT_PATH "/gradus/output"
#define OUTPUT_VOLUME "gradus-output"
#define JOB_PATH "/gradus/job"
#define JOB_VOLUME "gradus-job"
#define JOB_KEY "job.yaml"
#define DEFAULT_IMAGE "docker.io/library/debian:stable-slim"

enum {
    MASTER_PORT = 29500, /* of torch.distributed; programs of Gradus meet at the one behind it */
    SERVER_PORT = 29510,
    ATTEMPTS_MAX = 3, /* that end by losses; runPolicy.backoffLimit says otherwise */
    /* So many pods of an attempt are replaced, and a share of its size: each costs the others a
     * step, and one that fails again and again is of no use. */
    REPLACED_MIN = 16,
    REPLACED_SHARE = 2,
    CODE_RESUME = 75, /* asked to end, and may go on */
    CODE_PEER = 76    /* failed only since another one did */
};

/* Which of the keys says what workers run; NULL: only their template may. */
static const char *program_of(const json_t *spec)
{
    static const char *const keys[] = {"job", "jobFrom", "command"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (json_object_get(spec, keys[i]) != NULL) {
            return keys[i];
        }
    }
    return NULL;
}

/* Returns true if the workers run `gradus worker`. */
static bool is_native(const json_t *spec)
{
    const char *key = program_of(spec);
    return key != NULL && strcmp(key, "command") != 0;
}

/* ---- Defaults -------------------------------------------------------------------------------- */
json_t *gr_gradusjob_template(const json_t *role, const char *image, bool *no_memory)
{
    json_t *resources = json_object_get(role, "resources");
    json_t *container = json_pack("{s:s, s:s}", "name", CONTAINER, "image", image);
    if (json_is_object(resources)) {
        gr_object_put(container, "resources", json_incref(resources), no_memory);
    }
    return json_pack("{s:{s:[o]}}", "spec", "containers", container);
}

/* What the kinds share looks for roles in a map: spec.workers becomes one, {"Worker": ...}. */
static void set_defaults(json_t *spec, bool *no_memory)
{
    json_t *workers = json_object_get(spec, "workers");
    const char *image = gr_object_text(workers, "image");
    image = image != NULL && image[0] != '\0' ? image : DEFAULT_IMAGE;
    gr_object_put_default(gr_object_map(spec, "runPolicy", no_memory), "cleanPodPolicy",
                          json_string("Running"), no_memory);
    if (!json_is_object(workers)) {
        return;
    }
    gr_object_put_default(workers, "replicas", json_integer(1), no_memory);
    gr_object_put_default(
        workers, "minReplicas",
        json_integer(is_native(spec) ? 1
                                     : json_integer_value(json_object_get(workers, "replicas"))),
        no_memory);
    if (json_object_get(workers, "template") == NULL) {
        gr_object_put(workers, "template", gr_gradusjob_template(workers, image, no_memory),
                      no_memory);
    } else {
        gr_object_put(workers, "hasTemplate", json_true(), no_memory);
    }
    gr_gradusjob_set_server_defaults(spec, workers, no_memory);
    gr_object_put(spec, "workers",
                  json_pack("{s:O, s:O*}", "Worker", workers, GR_GRADUSJOB_SERVER,
                            json_object_get(spec, "servers")),
                  no_memory);
}

/* ---- Validation ------------------------------------------------------------------------------ */
static void check_bounds(gr_problems *p, const json_t *worker)
{
    int64_t replicas = gr_object_int(worker, "replicas", 1), min = 1, max = replicas;
    if (replicas < 1 || replicas > GR_GROUP_WORLD_MAX) {
        gr_problem(p, WORKERS ".replicas: Invalid value: %" PRId64 ": must be from 1 to %d",
                   replicas, GR_GROUP_WORLD_MAX);
    }
    bool has_min = gr_check_integer(p, worker, "minReplicas", WORKERS, &min);
    bool has_max = gr_check_integer(p, worker, "maxReplicas", WORKERS, &max);
    if (has_min && (min < 1 || min > replicas)) {
        gr_problem(p,
                   WORKERS ".minReplicas: Invalid value: %" PRId64
                           ": must be from 1 to the %" PRId64 " of replicas",
                   min, replicas);
    }
    if (has_max && max < replicas) {
        gr_problem(p,
                   WORKERS ".maxReplicas: Invalid value: %" PRId64 ": must be at least the %" PRId64
                           " of replicas",
                   max, replicas);
    }
}

void gr_gradusjob_check_template(gr_problems *p, const char *path, const json_t *role,
                                 const char *told)
{
    const json_t *container =
        gr_training_find_container(gr_object_at(role, "template.spec"), CONTAINER);
    bool has_template = json_object_get(role, "hasTemplate") != NULL;
    static const char *const of_image[] = {"image", "resources"};
    for (size_t i = 0; i < sizeof of_image / sizeof of_image[0] && has_template; i++) {
        if (json_object_get(role, of_image[i]) != NULL) {
            gr_problem(p,
                       "%s.%s: Forbidden: must not be used with %s.template, whose container %s "
                       "says it",
                       path, of_image[i], path, CONTAINER);
        }
    }
    if (told != NULL && (json_object_get(container, "command") != NULL ||
                         json_object_get(container, "args") != NULL)) {
        gr_problem(p, "%s.template: Forbidden: the container %s must not have a command beside %s",
                   path, CONTAINER, told);
    }
}

static void check_program(gr_problems *p, const json_t *spec, const json_t *worker)
{
    char told[64];
    const char *key = program_of(spec);
    snprintf(told, sizeof told, "spec.%s", key != NULL ? key : "");
    if (key == NULL && json_object_get(worker, "hasTemplate") == NULL) {
        gr_problem(p, "spec.job: Required value: must have a job, spec.jobFrom, spec.command, or a "
                      "spec.workers.template whose container " CONTAINER " has a command");
    }
    gr_gradusjob_check_template(p, WORKERS, worker, key != NULL ? told : NULL);
}

static void check_command(gr_problems *p, const json_t *spec)
{
    size_t i;
    const json_t *word, *command = json_object_get(spec, "command");
    if (command == NULL) {
        return;
    }
    if (is_native(spec)) {
        gr_problem(p, "spec.command: Forbidden: must not be used with spec.%s", program_of(spec));
    }
    bool are_texts = json_array_size(command) > 0;
    json_array_foreach(command, i, word)
    {
        are_texts &= json_is_string(word);
    }
    if (!are_texts) {
        gr_problem(p, "spec.command: Invalid value: must be a list of texts");
    }
}

/* Returns true if a ConfigMap can have this key. */
static bool is_file_name(const char *key)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return key != NULL && key[0] != '\0' && key[strspn(key, letters)] == '\0' &&
           strncmp(key, "..", 2) != 0 && strcmp(key, ".") != 0;
}

/* The ConfigMap itself is not looked at: the kubelet brings it, and workers refuse a wrong job. */
static void check_job_from(gr_problems *p, const json_t *spec)
{
    static const char at[] = "spec.jobFrom.configMapKeyRef";
    const json_t *from = json_object_get(spec, "jobFrom");
    const json_t *ref = json_object_get(from, "configMapKeyRef");
    const char *name = gr_object_text(ref, "name"), *key = gr_object_text(ref, "key");
    if (from == NULL) {
        return;
    }
    if (json_object_get(spec, "job") != NULL) {
        gr_problem(p, "spec.jobFrom: Forbidden: must not be used with spec.job");
    }
    if (json_object_size(from) != 1 || !json_is_object(ref)) {
        gr_problem(p, "spec.jobFrom: Invalid value: must name a ConfigMap of the job's namespace, "
                      "{configMapKeyRef: {name: NAME, key: " JOB_KEY "}}");
        return;
    }
    if (name == NULL || name[0] == '\0') {
        gr_problem(p, "%s.name: Required value: must be the name of a ConfigMap", at);
    }
    if (json_object_get(ref, "key") != NULL && !is_file_name(key)) {
        gr_problem(p,
                   "%s.key: Invalid value: must be a key of the ConfigMap: letters, digits, '-', "
                   "'_' and '.'",
                   at);
    }
}

json_t *gr_gradusjob_document(const json_t *spec, int64_t workers, bool *no_memory)
{
    json_t *job = json_deep_copy(json_object_get(spec, "job"));
    gr_object_put_default(job, "output", json_string(OUTPUT_PATH), no_memory);
    return json_pack("{s:i, s:s, s:o, s:{s:I, s:b}}", "gradus_job", GR_JOB_DOCUMENT_VERSION, "path",
                     "job.yaml", "job", job, "run", "workers", (json_int_t)workers, "all_stop", 1);
}

/* As a worker would find it, without its data. */
static void check_job(gr_problems *p, const json_t *spec, const json_t *worker, bool has_servers)
{
    static const char place[] = "job document:1: job"; /* which nobody but us has seen */
    bool no_memory = false;
    gr_diag diag = {0};
    gr_job *job = NULL;
    if (!json_is_object(json_object_get(spec, "job"))) {
        gr_problem(p, "spec.job: Invalid value: must be a map, what a job file says");
        return;
    }
    json_t *document =
        gr_gradusjob_document(spec, gr_object_int(worker, "replicas", 1), &no_memory);
    char *text = document != NULL && !no_memory ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    gr_status status =
        text != NULL ? gr_job_parse_document(text, strlen(text), &job, &diag) : GR_E_NO_MEMORY;
    if (status == GR_OK) {
        job->writes_nothing = true;
        status = gr_job_resolve(job, &diag);
    }
    if (status == GR_OK && job->strategy->needs_servers && !has_servers) {
        gr_problem(p,
                   "spec.servers: Required value: strategy: %s needs parameter servers, "
                   "{replicas: 2} say",
                   job->strategy->name);
    } else if (status == GR_OK && has_servers && !job->strategy->needs_servers) {
        gr_problem(p,
                   "spec.servers: Forbidden: strategy: %s has no use for parameter servers; remove "
                   "them, or set strategy: ps",
                   job->strategy->name);
    } else if (status == GR_E_NO_MEMORY) {
        p->no_memory = true;
    } else if (status != GR_OK) {
        bool is_placed = strncmp(diag.text, place, sizeof place - 1) == 0;
        gr_problem(p, "spec.job%s%s", is_placed ? "" : ": ",
                   diag.text + (is_placed ? sizeof place - 1 : 0));
    }
    gr_job_close(job);
    free(text);
}

static void check(gr_problems *p, const json_t *spec, const json_t *specs)
{
    const json_t *worker = json_object_get(specs, "Worker");
    const json_t *servers = json_object_get(specs, GR_GRADUSJOB_SERVER);
    const json_t *volume = json_object_get(spec, "checkpointVolume");
    const json_t *image = json_object_get(spec, "gradusImage");
    if (!json_is_object(worker)) {
        return;
    }
    check_bounds(p, worker);
    check_program(p, spec, worker);
    check_command(p, spec);
    check_job_from(p, spec);
    if (json_is_object(servers)) {
        gr_gradusjob_check_servers(p, servers);
    }
    if (volume != NULL && json_object_size(volume) != 1) {
        gr_problem(p, "spec.checkpointVolume: Invalid value: must be one volume as pods have "
                      "them, {persistentVolumeClaim: {claimName: NAME}} say");
    }
    if (image != NULL && !json_is_string(image)) {
        gr_problem(p, "spec.gradusImage: Invalid value: must be the name of an image");
    }
    if (json_object_get(spec, "job") != NULL && p->count == 0) {
        check_job(p, spec, worker, servers != NULL);
    }
}

/* ---- Pods ------------------------------------------------------------------------------------ */
void gr_gradusjob_add_env(gr_training *t, json_t *container, const char *name, json_t *value)
{
    const char *text = json_string_value(value);
    gr_parts_add_env(&t->look, container, name, text != NULL ? text : "");
    t->look.no_memory |= value == NULL;
    json_decref(value);
}

static void add_number(gr_training *t, json_t *container, const char *name, int64_t number)
{
    gr_gradusjob_add_env(t, container, name, json_sprintf("%" PRId64, number));
}

/* The kubelet replaces "$(NAME)", and "$$" by "$". */
static json_t *escape(const char *text)
{
    gr_object_print escaped;
    gr_object_print_begin(&escaped);
    for (; escaped.out != NULL && *text != '\0'; text++) {
        fputs(text[0] == '$' ? "$$" : (const char[]){text[0], '\0'}, escaped.out);
    }
    return gr_object_print_end(&escaped);
}

void gr_gradusjob_add_secret(gr_training *t, json_t *container)
{
    gr_object_append(gr_object_list(container, "env", &t->look.no_memory),
                     json_pack("{s:s, s:{s:{s:o, s:s}}}", "name", "GRADUS_SECRET", "valueFrom",
                               "secretKeyRef", "name", json_sprintf("%s-gradus", t->look.name),
                               "key", "token"),
                     &t->look.no_memory);
}

/* The job runs: what is made now joins the others. */
static bool is_running(const gr_training *t)
{
    return gr_object_holds(json_object_get(t->look.status, "conditions"), "Running");
}

json_t *gr_gradusjob_addresses(const gr_training *t, const gr_training_role *role, int64_t port,
                               char separator, int64_t except)
{
    char pod[GR_TRAINING_NAME_BYTES];
    const char between[] = {separator, '\0'};
    gr_object_print list;
    gr_object_print_begin(&list);
    for (int64_t n = 0; list.out != NULL && n < role->replicas; n++) {
        gr_training_name(t, role, n, pod);
        if (n != except) {
            fprintf(list.out, "%stcp:%s.%s:%" PRId64, ftell(list.out) > 0 ? between : "", pod,
                    t->look.name, port);
        }
    }
    return gr_object_print_end(&list);
}

/* The coordinator may be with the first worker, or with any other that has taken it over. */
static void add_joining(gr_training *t, json_t *container, const gr_training_role *role,
                        int64_t index)
{
    gr_parts_add_env(&t->look, container, "GRADUS_JOINING", "yes");
    gr_parts_add_env(&t->look, container, "GRADUS_FAILOVER", "yes");
    gr_parts_add_env(&t->look, container, "GRADUS_JOIN_TIMEOUT", "1min");
    gr_gradusjob_add_env(t, container, "GRADUS_COORDINATOR",
                         gr_gradusjob_addresses(t, role, role->port + 1, ' ', index));
}

/* What workers meet by: the variables of torchrun, which Gradus reads as well (src/group). */
static void add_meeting(gr_training *t, json_t *container, const gr_training_role *role,
                        int64_t index)
{
    const char *name = t->look.name;
    const json_t *workers = gr_object_at(t->look.job, WORKERS ".Worker");
    int64_t min = gr_object_int(workers, "minReplicas", 1);
    add_number(t, container, "RANK", index);
    add_number(t, container, "WORLD_SIZE", role->replicas);
    add_number(t, container, "LOCAL_RANK", 0);
    add_number(t, container, "LOCAL_WORLD_SIZE", 1);
    gr_gradusjob_add_env(t, container, "MASTER_ADDR", json_sprintf("%s-worker-0.%s", name, name));
    add_number(t, container, "MASTER_PORT", role->port);
    gr_gradusjob_add_env(t, container, "TORCHELASTIC_RUN_ID", json_string(name));
    if (is_running(t)) {
        add_joining(t, container, role, index);
    } else {
        gr_parts_add_env(&t->look, container, "GRADUS_JOIN_TIMEOUT", GR_GRADUSJOB_JOIN_TIMEOUT);
    }
    gr_object_append(gr_object_list(container, "ports", &t->look.no_memory),
                     json_pack("{s:s, s:I}", "name", COORDINATOR_PORT, "containerPort",
                               (json_int_t)role->port + 1),
                     &t->look.no_memory);
    if (min < role->replicas) {
        add_number(t, container, "GRADUS_MIN_WORKERS", min);
    }
    gr_gradusjob_add_secret(t, container);
}

static void add_volume(gr_training *t, json_t *pod_spec, json_t *container, const char *name,
                       const char *path, json_t *volume)
{
    gr_object_put_text(volume, "name", name, &t->look.no_memory);
    gr_object_append(gr_object_list(pod_spec, "volumes", &t->look.no_memory), volume,
                     &t->look.no_memory);
    gr_parts_add_mount(&t->look, container, name, path);
}

const char *gr_gradusjob_add_program(gr_training *t, json_t *pod_spec, json_t *container)
{
    bool *no_memory = &t->look.no_memory;
    const char *image = gr_object_text(t->look.job, "spec.gradusImage");
    image = image != NULL && image[0] != '\0' ? image : t->look.view->launch_agent_image;
    if (image == NULL || image[0] == '\0') {
        return "gradus";
    }
    json_t *inits = gr_object_list(pod_spec, "initContainers", no_memory);
    *no_memory |= json_array_insert_new(inits, 0, gr_look_gradus_container(image)) != 0;
    add_volume(t, pod_spec, container, GR_GRADUS_VOLUME, GR_GRADUS_FOLDER,
               json_pack("{s:{}}", "emptyDir"));
    return GR_GRADUS_FOLDER "/gradus";
}

/* The worker's job is in its environment ... */
static void add_job(gr_training *t, json_t *container, const char *program, int64_t workers)
{
    json_t *document =
        gr_gradusjob_document(gr_object_at(t->look.job, "spec"), workers, &t->look.no_memory);
    char *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    gr_gradusjob_add_env(t, container, "GRADUS_JOB", text != NULL ? escape(text) : NULL);
    gr_object_put(container, "command", json_pack("[s, s, s]", program, "worker", "--resume"),
                  &t->look.no_memory);
    free(text);
    json_decref(document);
}

/* ... or in a file of a ConfigMap, whose other files may be its data. */
static void add_job_file(gr_training *t, json_t *pod_spec, json_t *container, const char *program,
                         int64_t workers)
{
    const json_t *from = gr_object_at(t->look.job, "spec.jobFrom.configMapKeyRef");
    const char *key = gr_object_text(from, "key");
    add_volume(t, pod_spec, container, JOB_VOLUME, JOB_PATH,
               json_pack("{s:{s:O}}", "configMap", "name", json_object_get(from, "name")));
    gr_object_put(container, "command",
                  json_pack("[s, s, s, s, o, s, o, s, s]", program, "worker", "--resume", "--job",
                            json_sprintf("%s/%s", JOB_PATH, key != NULL ? key : JOB_KEY),
                            "--workers", json_sprintf("%" PRId64, workers), "--output",
                            OUTPUT_PATH),
                  &t->look.no_memory);
}

static void complete_pod(gr_training *t, const gr_training_role *role, int64_t index,
                         json_t *pod_spec)
{
    bool *no_memory = &t->look.no_memory;
    char name[GR_TRAINING_NAME_BYTES];
    json_t *container = gr_training_find_container(pod_spec, CONTAINER);
    const json_t *spec = gr_object_at(t->look.job, "spec");
    json_t *command = json_object_get(spec, "command");
    json_t *volume = json_object_get(spec, "checkpointVolume");
    gr_training_name(t, role, index, name);
    gr_object_put_text(pod_spec, "hostname", name, no_memory);
    gr_object_put_text(pod_spec, "subdomain", t->look.name, no_memory);
    if (container == NULL) {
        return;
    }
    if (strcmp(role->name, GR_GRADUSJOB_SERVER) == 0) {
        gr_gradusjob_complete_server(t, role, index, pod_spec, container);
        return;
    }
    add_meeting(t, container, role, index);
    gr_gradusjob_add_servers(t, container);
    if (command != NULL) {
        gr_object_put(container, "command", json_incref(command), no_memory);
    }
    if (is_native(spec)) {
        const char *program = gr_gradusjob_add_program(t, pod_spec, container);
        gr_job_progress_add_page(t, role, container);
        if (json_object_get(spec, "job") != NULL) {
            add_job(t, container, program, role->replicas);
        } else {
            add_job_file(t, pod_spec, container, program, role->replicas);
        }
    }
    if (is_native(spec) || volume != NULL) {
        add_volume(t, pod_spec, container, OUTPUT_VOLUME, OUTPUT_PATH,
                   volume != NULL ? json_deep_copy(volume) : json_pack("{s:{}}", "emptyDir"));
    }
}

static void complete_labels(gr_training *t, const gr_training_role *role, json_t *labels)
{
    gr_object_put(labels, SIZE_LABEL, json_sprintf("%" PRId64, t->roles[0].replicas),
                  &t->look.no_memory);
    gr_gradusjob_label_servers(t, labels);
    if (is_running(t) && strcmp(role->name, GR_GRADUSJOB_SERVER) != 0) {
        gr_object_put_text(labels, JOINING_LABEL, "yes", &t->look.no_memory);
    }
}

/* ---- Service and Secret ---------------------------------------------------------------------- */
/* The names of the pods, also of those that are not ready: they meet before. */
static void keep_service(gr_training *t)
{
    static const char *const keys[] = {"selector", "publishNotReadyAddresses", NULL};
    json_t *service = gr_parts_object(&t->look, "v1", "Service", "");
    gr_object_put(service, "spec",
                  json_pack("{s:s, s:b, s:{s:s, s:s}}", "clusterIP", "None",
                            "publishNotReadyAddresses", 1, "selector",
                            "training.kubeflow.org/job-name", t->look.name,
                            "training.kubeflow.org/operator-name", t->kind->operator_name),
                  &t->look.no_memory);
    gr_look_keep(&t->look, service, "spec", keys);
    json_decref(service);
}

static void keep_secret(gr_training *t)
{
    json_t *secret = gr_parts_object(&t->look, "v1", "Secret", "-gradus");
    static const char *const whole[] = {NULL};
    const char *name = gr_object_text(secret, "metadata.name");
    const json_t *there = name != NULL ? gr_look_find_own(&t->look, "v1", "Secret", name) : NULL;
    t->look.no_memory |= name == NULL;
    if (name != NULL && gr_object_at(there, "data.token") == NULL && !t->look.is_stopped) {
        gr_object_put(secret, "data", t->look.view->token(t->look.view->ssh_key_arg),
                      &t->look.no_memory);
        gr_object_put_text(secret, "type", "Opaque", &t->look.no_memory);
        gr_look_keep(&t->look, secret, "data", whole);
    }
    json_decref(secret);
}

static void keep_more(gr_training *t)
{
    if (t->is_suspended) {
        return; /* they wait with the job */
    }
    keep_service(t);
    if (!t->look.is_stopped) {
        keep_secret(t);
    }
}

/* ---- Attempts -------------------------------------------------------------------------------- */
typedef struct attempt {
    int64_t there;     /* pods of it, with those that are about to go */
    int64_t size;      /* as many as it has, by its label */
    int64_t servers;   /* likewise */
    int64_t working;   /* pods that run or will */
    int64_t original;  /* those of them that were made with the attempt */
    int64_t succeeded; /* with code 0 */
    int64_t going;     /* told to go: soon they are lost */
    int64_t lost;      /* by a signal, with their node, by somebody's delete */
    int64_t peerless;  /* only since others were lost */
    int64_t asked;     /* ended since they were asked to */
    int64_t failed;    /* with a code that says that they cannot go on */
    bool is_formed;    /* all have run */
} attempt;             /* of its workers, where nothing else is said */

static void count_pod(const gr_training_role *role, const json_t *pod, attempt *a)
{
    const json_t *labels = gr_object_at(pod, "metadata.labels");
    const char *label = json_string_value(json_object_get(labels, SIZE_LABEL));
    const char *servers = json_string_value(json_object_get(labels, GR_GRADUSJOB_SERVERS_LABEL));
    int64_t code = GR_TRAINING_FIRST_SIGNAL;
    bool has_failed = gr_training_has_phase(pod, "Failed"),
         is_done = gr_training_has_phase(pod, "Succeeded");
    if (has_failed) {
        (void)gr_training_exit_code(role, pod, &code);
    }
    a->there++;
    a->size = label != NULL ? strtoll(label, NULL, 10) : a->size;
    a->servers = servers != NULL ? strtoll(servers, NULL, 10) : 0;
    a->going += gr_object_at(pod, "metadata.deletionTimestamp") != NULL;
    a->working += !has_failed && !is_done;
    a->original += !has_failed && !is_done && json_object_get(labels, JOINING_LABEL) == NULL;
    a->succeeded += is_done;
    a->peerless += has_failed && code == CODE_PEER;
    a->asked += has_failed && code == CODE_RESUME;
    a->lost += has_failed && code >= GR_TRAINING_FIRST_SIGNAL;
    a->failed +=
        has_failed && code < GR_TRAINING_FIRST_SIGNAL && code != CODE_PEER && code != CODE_RESUME;
}

static attempt look_at_attempt(gr_training *t, const gr_training_role *role)
{
    attempt a = {.size = role->replicas};
    size_t i;
    const json_t *pod;
    for (int64_t n = 0; n < role->replicas; n++) {
        if (role->pods[n] != NULL) {
            count_pod(role, role->pods[n], &a);
        }
    }
    json_array_foreach(t->surplus, i, pod)
    {
        if (!gr_training_serves(t, pod)) {
            count_pod(role, pod, &a);
        }
    }
    a.is_formed = gr_object_holds(json_object_get(t->look.status, "conditions"), "Running");
    if (a.is_formed && a.there < a.size) {
        a.lost += a.size - a.there;
    }
    return a;
}

/* All pods of an attempt are made by it. */
static void forget_replaced(gr_training *t)
{
    if (json_object_get(t->look.status, "replaced") != NULL) {
        gr_object_put(t->look.status, "replaced", json_integer(0), &t->look.no_memory);
    }
}

/* All pods go. Running makes room for Restarting, so that the next attempt has to come about. */
static void begin_anew(gr_training *t, const char *what, const char *message)
{
    gr_training_delete_pods(t);
    gr_training_event(t, "Normal", what, message);
    gr_training_set_condition(t, "Restarting", true, what, message);
    forget_replaced(t);
}

/* Returns true if a worker may join: not where all are needed, where the program may not know how
 * to take one in, or when the others are done. */
static bool may_join(const gr_training *t, const gr_training_role *role, const attempt *a)
{
    int64_t min = gr_object_int(t->look.job, WORKERS ".Worker.minReplicas", 1);
    return a->is_formed && is_native(gr_object_at(t->look.job, "spec")) && min < role->replicas &&
           a->working > 0 && a->succeeded == 0 &&
           gr_object_int(t->look.status, "replaced", 0) <
               REPLACED_MIN + REPLACED_SHARE * role->replicas;
}

/* Pods that were lost make room, and those that have gone are made anew; with them those that have
 * failed, which may be their doing. One that only lost the others is not replaced when just joining
 * ones are left: they may be waiting for nobody. */
static void replace_lost(gr_training *t, gr_training_role *role, const attempt *a)
{
    for (int64_t n = 0; n < role->replicas; n++) {
        const json_t *pod = role->pods[n];
        int64_t code = GR_TRAINING_FIRST_SIGNAL;
        bool has_failed = gr_training_has_phase(pod, "Failed");
        if (has_failed) {
            (void)gr_training_exit_code(role, pod, &code);
        }
        bool is_by_loss =
            code == CODE_PEER ? a->original > 0 : code != CODE_RESUME && a->lost + a->going > 0;
        if (has_failed && (code >= GR_TRAINING_FIRST_SIGNAL || is_by_loss)) {
            gr_training_delete_pod(t, pod);
        }
    }
    role->is_closed = false;
    role->counter = "replaced";
}

static int64_t backoff_limit(const gr_training *t)
{
    const json_t *limit = gr_object_at(t->look.job, "spec.runPolicy.backoffLimit");
    return json_is_integer(limit) ? (int64_t)json_integer_value(limit) : ATTEMPTS_MAX;
}

static void restart(gr_training *t, const attempt *a, const gr_gradusjob_servers *s)
{
    char message[GR_EVENT_BYTES];
    int64_t restarts = gr_object_int(t->look.status, "restarts", 0);
    bool counts = a->lost + a->peerless + a->failed + s->lost > 0;
    bool by_servers = s->lost > 0 && a->lost + a->going == 0;
    const char *who = by_servers ? "parameter servers" : "workers";
    if (counts && restarts >= backoff_limit(t)) {
        snprintf(message, sizeof message,
                 "GradusJob %s has failed because its %s were lost, after %" PRId64
                 " restarts (spec.runPolicy.backoffLimit).",
                 t->look.name, who, restarts);
        gr_training_stop_pods(t);
        gr_training_end(t, "Failed", message);
        return;
    }
    snprintf(message, sizeof message,
             "GradusJob %s is restarted from its newest checkpoint: %" PRId64 " of %" PRId64
             " %s are left.",
             t->look.name, by_servers ? s->left : a->working, by_servers ? s->wanted : a->size,
             who);
    if (counts) {
        gr_object_put(t->look.status, "restarts", json_integer(restarts + 1), &t->look.no_memory);
    }
    begin_anew(t, "Restarting", message);
}

/* Pods that are missing stay so. */
static void close_roles(gr_training *t)
{
    for (size_t r = 0; r < t->role_count; r++) {
        t->roles[r].is_closed = true;
    }
}

/* The job asks for other pods than the attempt has: where all workers are gone, nobody knows how
 * many servers that was. */
static bool is_scaled(const gr_training *t, const attempt *a, const gr_gradusjob_servers *s,
                      char message_out[GR_EVENT_BYTES])
{
    bool by_servers = a->size == t->roles[0].replicas;
    snprintf(message_out, GR_EVENT_BYTES, "GradusJob %s goes from %" PRId64 " to %" PRId64 " %s.",
             t->look.name, by_servers ? a->servers : a->size,
             by_servers ? s->wanted : t->roles[0].replicas,
             by_servers ? "parameter servers" : "workers");
    return a->size != t->roles[0].replicas || (a->there > 0 && a->servers != s->wanted);
}

/* A worker has failed, and no loss of others is the cause; or a server, before there was any. */
static bool has_failed(const attempt *a, const gr_gradusjob_servers *s, const char *name,
                       char message_out[GR_EVENT_BYTES])
{
    bool by_servers = !a->is_formed && s->failed > 0;
    snprintf(message_out, GR_EVENT_BYTES,
             "GradusJob %s has failed because %" PRId64 " %s(s) failed.", name,
             by_servers ? s->failed : a->failed, by_servers ? "parameter server" : "worker");
    return by_servers || (a->failed > 0 && a->lost + a->going == 0 && !s->was_lost);
}

/* False: this look has nothing more to do. */
static bool keep_attempt(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    gr_training_role *role = &t->roles[0];
    attempt a = look_at_attempt(t, role);
    gr_gradusjob_servers s = gr_gradusjob_look_at_servers(t, a.is_formed);
    int64_t min = gr_object_int(t->look.job, WORKERS ".Worker.minReplicas", 1);
    int64_t ended = a.lost + a.peerless + a.asked;
    bool is_disturbed = !a.is_formed && ended + a.going + s.lost > 0;
    if (a.there == 0 && !a.is_formed) {
        forget_replaced(t); /* of the attempt before a suspension */
        return gr_gradusjob_clear_servers(t, &s);
    }
    if (a.is_formed) {
        close_roles(t);
    }
    if (!a.is_formed && a.going > 0) { /* the attempt before: it has been told why */
        gr_training_delete_pods(t);
        return false;
    }
    if (is_scaled(t, &a, &s, message)) {
        begin_anew(t, "Scaled", message);
        return false;
    }
    if (has_failed(&a, &s, t->look.name, message)) {
        close_roles(t);
        gr_training_end(t, "Failed", message);
        return true;
    }
    bool has_enough = a.working + a.succeeded >= min && (a.working > 0 || a.succeeded > 0);
    if (is_disturbed || (a.is_formed && !has_enough) || (a.working == 0 && a.succeeded == 0)) {
        restart(t, &a, &s);
        return false;
    }
    if (a.is_formed && a.working > 0 && !gr_gradusjob_servers_go_on(t, &s)) {
        restart(t, &a, &s);
        return false;
    }
    if (a.is_formed && a.working > 0 && s.lost > 0) {
        gr_gradusjob_replace_servers(t, backoff_limit(t));
    }
    if (may_join(t, role, &a)) {
        replace_lost(t, role, &a);
    }
    return true;
}

/* ---- Status ---------------------------------------------------------------------------------- */
/* No worker is waited for. One that is told to go may do so for ever, when its node is lost; where
 * the others have done the work, how it ends changes nothing. */
static bool have_all_ended(const gr_training *t, const gr_training_role *role)
{
    int64_t leaving = 0;
    for (int64_t n = 0; n < role->replicas; n++) {
        leaving += gr_training_has_phase(role->pods[n], "Running") &&
                   gr_object_at(role->pods[n], "metadata.deletionTimestamp") != NULL;
    }
    return role->active == 0 ||
           (role->active == leaving &&
            role->succeeded >= gr_object_int(t->look.job, WORKERS ".Worker.minReplicas", 1));
}

static void report_status(gr_training *t)
{
    char message[GR_EVENT_BYTES];
    const gr_training_role *role = &t->roles[0];
    const json_t *conditions = json_object_get(t->look.status, "conditions");
    if (gr_object_holds(conditions, "Failed")) {
        return;
    }
    const gr_training_role *servers = gr_training_find_role(t, GR_GRADUSJOB_SERVER);
    bool serve = servers == NULL || servers->active == servers->replicas;
    bool has_run = gr_object_holds(conditions, "Running") || role->succeeded == role->replicas ||
                   (role->active + role->succeeded == role->replicas && serve);
    if (has_run && have_all_ended(t, role) && role->succeeded > 0) {
        snprintf(message, sizeof message, "GradusJob %s/%s successfully completed.", t->look.space,
                 t->look.name);
        gr_training_end(t, "Succeeded", message);
        return;
    }
    if (has_run) {
        snprintf(message, sizeof message, "GradusJob %s/%s is running.", t->look.space,
                 t->look.name);
        gr_training_set_condition(t, "Running", true, "Running", message);
    }
    if (role->active > 0 && is_native(gr_object_at(t->look.job, "spec"))) {
        gr_job_progress_report(t, role);
    }
}

/* ---- The kind -------------------------------------------------------------------------------- */
static const char *const spec_fields[] = {
    "checkpointVolume", "command", "gradusImage", "job", "jobFrom",
    "runPolicy",        "servers", "workers",     NULL};
static const char *const servers_fields[] = {"image", "replicas", "resources", "template", NULL};
static const char *const job_from_fields[] = {"configMapKeyRef", NULL};
static const char *const key_fields[] = {"key", "name", NULL};
static const char *const workers_fields[] = {"image",     "maxReplicas", "minReplicas", "replicas",
                                             "resources", "template",    NULL};
static const char *const roles[] = {"Worker", GR_GRADUSJOB_SERVER, NULL};
static const gr_operator_fields fields[] = {
    {"spec", spec_fields},
    {WORKERS, workers_fields},
    {"spec.servers", servers_fields},
    {"spec.jobFrom", job_from_fields},
    {"spec.jobFrom.configMapKeyRef", key_fields},
    {"spec.runPolicy", gr_run_policy_fields},
    {"spec.runPolicy.schedulingPolicy", gr_scheduling_policy_fields},
    {NULL, NULL}};

static const gr_training_kind gradusjob = {.kind = &gr_gradusjob_v1,
                                           .specs = "workers",
                                           .operator_name = "gradusjob-controller",
                                           .container = CONTAINER,
                                           .port_name = "master",
                                           .port = MASTER_PORT,
                                           .server_role = GR_GRADUSJOB_SERVER,
                                           .server_port_name = "server",
                                           .server_port = SERVER_PORT,
                                           .restart_policy = "Never",
                                           .roles = roles,
                                           .deleted_reason = "SuccessfulDeleteJob",
                                           .has_selector = true,
                                           .has_attempts = true,
                                           .set_defaults = set_defaults,
                                           .report_counted = gr_gradusjob_report_server,
                                           .check = check,
                                           .keep_more = keep_more,
                                           .keep_attempt = keep_attempt,
                                           .complete_labels = complete_labels,
                                           .complete_pod = complete_pod,
                                           .is_strict = true,
                                           .report_status = report_status};

static gr_status reconcile(const gr_operator_view *view, gr_operator_result *result_out,
                           gr_diag *diag)
{
    return gr_training_reconcile(&gradusjob, view, result_out, diag);
}

const gr_operator_kind gr_gradusjob_v1 = {
    .api_version = "gradus.dev/v1", .kind = "GradusJob", .fields = fields, .reconcile = reconcile};
