/* SPDX-License-Identifier: Apache-2.0 */

/* The objects of a job that flags describe. */

#include "base/fail.h"
#include "base/hash.h"
#include "cli/submit.h"
#include "operator/object.h"
#include "operator/quantity.h"

#include <ctype.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define WORK_PATH "/gradus/work"
#define CODE_PATH GR_SUBMIT_CODE_PATH
#define PYTHON_IMAGE "docker.io/library/python:3-slim"

enum {
    HOST_BYTES = 63, /* of the name of a host, which pods get from the job's */
    MASTER_PORT = 29500,
    SECRET_BYTES = 32,
    CHANCE_BYTES = 5 /* of a name that is made */
};

typedef struct maker { /* of objects */
    const gr_submit *submit;
    const gr_submit_options *options;
    int64_t workers;
    bool no_memory;
} maker;

/* ---- Names ----------------------------------------------------------------------------------- */

gr_status gr_submit_check_name(const char *what, const char *name, size_t most, gr_diag *diag)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t length = strlen(name);
    if (length > most) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s \"%.100s\" has %zu characters; %zu are the most, since pods get names "
                       "from it",
                       what, name, length, most);
    }
    if (length == 0 || strspn(name, letters) != length || !islower((unsigned char)name[0]) ||
        name[length - 1] == '-') {
        return gr_fail(diag, GR_E_INVALID,
                       "%s \"%.100s\" is no name for Kubernetes (DNS-1123): lower-case letters, "
                       "digits and -, a letter first and no - at the end",
                       what, name);
    }
    return GR_OK;
}

/* A name from that of the program and some letters of chance. */
static gr_status make_name(gr_submit *submit, gr_diag *diag)
{
    static const char letters[] = "bcdfghjklmnpqrstvwxz2456789";
    enum { STEM_BYTES = 30 };
    uint8_t chance[CHANCE_BYTES];
    const char *first = submit->words[0], *second = submit->words[1];
    bool is_script = second != NULL && second[0] != '-' && strchr(second, '.') != NULL;
    const char *program = submit->code.path[0] != '\0' ? submit->code.path
                          : is_script                  ? second
                                                       : first;
    const char *slash = strrchr(program, '/');
    char stem[STEM_BYTES + 1], suffix[CHANCE_BYTES + 1] = "";
    size_t used = 0;
    for (const char *at = slash != NULL ? slash + 1 : program;
         *at != '\0' && *at != '.' && used < STEM_BYTES; at++) {
        bool fits = isalnum((unsigned char)*at) && (used > 0 || isalpha((unsigned char)*at));
        if (fits || (used > 0 && stem[used - 1] != '-')) {
            stem[used++] = fits ? (char)tolower((unsigned char)*at) : '-';
        }
    }
    used -= used > 0 && stem[used - 1] == '-';
    stem[used] = '\0';
    gr_status status = gr_random_bytes(chance, sizeof chance, diag);
    for (size_t i = 0; i < CHANCE_BYTES && status == GR_OK; i++) {
        suffix[i] = letters[chance[i] % (sizeof letters - 1)];
    }
    snprintf(submit->name, sizeof submit->name, "%s-%s", used > 0 ? stem : "job", suffix);
    return status;
}

static gr_status find_name(gr_submit *submit, int64_t workers, gr_diag *diag)
{
    char ending[32];
    snprintf(ending, sizeof ending, "%s-%" PRId64,
             submit->options.kind == GR_SUBMIT_JOB ? "" : "-launcher", workers - 1);
    if (submit->options.name == NULL) {
        return make_name(submit, diag);
    }
    gr_status status =
        gr_submit_check_name("--name", submit->options.name, HOST_BYTES - strlen(ending), diag);
    if (status == GR_OK) {
        snprintf(submit->name, sizeof submit->name, "%s", submit->options.name);
    }
    return status;
}

/* ---- Parts of pods --------------------------------------------------------------------------- */

/* The kubelet replaces "$(NAME)", and "$$" by "$". */
static json_t *plain_text(const char *text)
{
    char *escaped = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&escaped, &size);
    if (file == NULL) {
        return NULL;
    }
    for (; *text != '\0'; text++) {
        fputs(text[0] == '$' ? "$" : "", file);
        fputc(*text, file);
    }
    json_t *value = fclose(file) == 0 ? json_string(escaped) : NULL;
    free(escaped);
    return value;
}

static void add_variable(maker *m, json_t *env, const char *name, json_t *value)
{
    gr_object_append(env, json_pack("{s:s, s:o}", "name", name, "value", value), &m->no_memory);
}

static void add_number(maker *m, json_t *env, const char *name, int64_t value)
{
    add_variable(m, env, name, json_sprintf("%" PRId64, value));
}

static void add_users(maker *m, json_t *env)
{
    for (size_t i = 0; m->options->env != NULL && m->options->env[i] != NULL; i++) {
        const char *equal = strchr(m->options->env[i], '=');
        char *name = strndup(m->options->env[i], (size_t)(equal - m->options->env[i]));
        if (name == NULL) {
            m->no_memory = true;
        } else {
            add_variable(m, env, name, plain_text(equal + 1));
        }
        free(name);
    }
}

/* What workers that were not started by an operator find each other by: PyTorch's variables, which
 * Gradus reads as those of torchrun, and the secret of the job. */
static void add_meeting(maker *m, json_t *env)
{
    bool is_plain = m->options->kind == GR_SUBMIT_JOB;
    const char *name = m->submit->name;
    if (is_plain) {
        static const char index[] =
            "metadata.annotations['batch.kubernetes.io/job-completion-index']";
        gr_object_append(env,
                         json_pack("{s:s, s:{s:{s:s}}}", "name", "RANK", "valueFrom", "fieldRef",
                                   "fieldPath", index),
                         &m->no_memory);
        add_variable(m, env, "MASTER_ADDR", json_sprintf("%s-0.%s", name, name));
        add_number(m, env, "MASTER_PORT", MASTER_PORT);
    }
    if (is_plain && m->options->elastic) {
        return; /* nobody knows how many they will be */
    }
    if (is_plain) {
        add_number(m, env, "WORLD_SIZE", m->workers);
    }
    add_number(m, env, "LOCAL_RANK", 0);
    add_number(m, env, "LOCAL_WORLD_SIZE", 1);
    add_variable(m, env, "TORCHELASTIC_RUN_ID", json_string(name));
    gr_object_append(env,
                     json_pack("{s:s, s:{s:{s:o, s:s}}}", "name", "GRADUS_SECRET", "valueFrom",
                               "secretKeyRef", "name", json_sprintf("%s-gradus", name), "key",
                               "secret"),
                     &m->no_memory);
}

static json_t *resources(maker *m, const char *cpus, const char *memory, int64_t gpus)
{
    json_t *limits = json_object();
    if (cpus != NULL) {
        gr_object_put_text(limits, "cpu", cpus, &m->no_memory);
    }
    if (memory != NULL) {
        gr_object_put_text(limits, "memory", memory, &m->no_memory);
    }
    if (gpus > 0) {
        gr_object_put(limits, m->options->gpu_resource, json_sprintf("%" PRId64, gpus),
                      &m->no_memory);
    }
    if (json_object_size(limits) == 0) {
        json_decref(limits);
        return json_object();
    }
    return json_pack("{s:o}", "limits", limits);
}

/* "pvc:CLAIM:/path" */
static void add_claim(maker *m, json_t *spec, json_t *mounts, const char *text, size_t number)
{
    const char *claim = text + strlen("pvc:"), *path = strrchr(text, ':');
    json_t *name = json_sprintf("claim-%zu", number);
    gr_object_append(gr_object_list(spec, "volumes", &m->no_memory),
                     json_pack("{s:O, s:{s:s%}}", "name", name, "persistentVolumeClaim",
                               "claimName", claim, (size_t)(path - claim)),
                     &m->no_memory);
    gr_object_append(mounts, json_pack("{s:o, s:s}", "name", name, "mountPath", path + 1),
                     &m->no_memory);
}

#define UNPACK                                                                                     \
    "tar xzf " GR_SUBMIT_ARCHIVE " -C " WORK_PATH "\n"                                             \
    "rm -f " GR_SUBMIT_ARCHIVE "\n"

/* What fetches the archive: whatever of three the image has. The URL is a secret, and stands in no
 * command line where that can be avoided. */
static const char fetch_script[] =
    "set -e\n"
    "if command -v curl >/dev/null; then\n"
    "  printf 'url = \"%s\"\\n' \"$GRADUS_CODE_URL\" |\n"
    "    curl -fsSL --retry 5 --connect-timeout 10 -K - -o " GR_SUBMIT_ARCHIVE "\n"
    "elif command -v python3 >/dev/null; then\n"
    "  python3 -c 'import os, urllib.request as u; u.urlretrieve(os.environ[\"GRADUS_CODE_URL\"], "
    "\"" GR_SUBMIT_ARCHIVE "\")'\n"
    "elif command -v wget >/dev/null; then\n"
    "  wget -q -O " GR_SUBMIT_ARCHIVE " \"$GRADUS_CODE_URL\"\n"
    "else\n"
    "  echo 'this image has none of curl, python3 and wget to fetch the program; name one that has "
    "by --code-image' >&2\n"
    "  exit 1\n"
    "fi\n"
    "if [ -n \"$GRADUS_CODE_SHA256\" ]; then\n"
    "  echo \"$GRADUS_CODE_SHA256  " GR_SUBMIT_ARCHIVE "\" | sha256sum -c - >/dev/null || {\n"
    "    echo 'what was fetched is not the program that was uploaded' >&2; exit 1; }\n"
    "fi\n" UNPACK;

/* What gets the archive from whoever has sent the job. */
static const char wait_script[] =
    "set -e\n"
    "n=0\n"
    "until [ -e " GR_SUBMIT_ARCHIVE " ]; do\n"
    "  n=$((n + 1))\n"
    "  if [ $n -gt 3600 ]; then\n"
    "    echo 'nobody has sent the program: gradus submit must run until all pods have it' >&2\n"
    "    exit 1\n"
    "  fi\n"
    "  sleep 1\n"
    "done\n" UNPACK;

static const char unpack_script[] = "cat " CODE_PATH "/part-* | tar xzf - -C " WORK_PATH;

static void add_unpacking(maker *m, json_t *spec)
{
    const gr_submit_code *code = &m->submit->code;
    const char *image = m->options->code_image != NULL ? m->options->code_image : m->options->image;
    const char *script = code->url != NULL ? fetch_script
                         : code->fd >= 0   ? wait_script
                                           : unpack_script;
    json_t *unpack =
        json_pack("{s:s, s:s, s:[s, s, s], s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "name",
                  GR_SUBMIT_UNPACK, "image", image, "command", "/bin/sh", "-c", script,
                  "terminationMessagePolicy", "FallbackToLogsOnError", "volumeMounts", "name",
                  "code", "mountPath", CODE_PATH, "name", "work", "mountPath", WORK_PATH);
    if (code->url != NULL) {
        json_t *env = gr_object_list(unpack, "env", &m->no_memory);
        gr_object_append(env,
                         json_pack("{s:s, s:{s:{s:o, s:s}}}", "name", "GRADUS_CODE_URL",
                                   "valueFrom", "secretKeyRef", "name",
                                   json_sprintf("%s-code", m->submit->name), "key", "url"),
                         &m->no_memory);
        add_variable(m, env, "GRADUS_CODE_SHA256", json_string(code->sha256));
    }
    if (m->options->cpus != NULL || m->options->memory != NULL) { /* quotas may ask for limits */
        gr_object_put(unpack, "resources", resources(m, m->options->cpus, m->options->memory, 0),
                      &m->no_memory);
    }
    gr_object_append(gr_object_list(spec, "initContainers", &m->no_memory), unpack, &m->no_memory);
}

static size_t parts_of(const gr_submit_code *code)
{
    return code->bytes == NULL
               ? 0
               : (code->size_bytes + GR_SUBMIT_PART_BYTES - 1) / GR_SUBMIT_PART_BYTES;
}

/* As parts in ConfigMaps, or empty: it comes later. */
static json_t *archive_volume(maker *m)
{
    const gr_submit_code *code = &m->submit->code;
    if (code->bytes == NULL) {
        return json_pack("{s:s, s:{}}", "name", "code", "emptyDir");
    }
    json_t *sources = json_array();
    for (size_t i = 0; i < parts_of(code); i++) {
        gr_object_append(sources,
                         json_pack("{s:{s:o, s:[{s:s, s:o}]}}", "configMap", "name",
                                   json_sprintf("%s-code-%zu", m->submit->name, i), "items", "key",
                                   "program", "path", json_sprintf("part-%zu", i)),
                         &m->no_memory);
    }
    return json_pack("{s:s, s:{s:o}}", "name", "code", "projected", "sources", sources);
}

static void add_code(maker *m, json_t *spec, json_t *mounts)
{
    const gr_submit_code *code = &m->submit->code;
    json_t *volumes = gr_object_list(spec, "volumes", &m->no_memory);
    gr_object_append(volumes, json_pack("{s:s, s:{}}", "name", "work", "emptyDir"), &m->no_memory);
    gr_object_append(mounts, json_pack("{s:s, s:s}", "name", "work", "mountPath", WORK_PATH),
                     &m->no_memory);
    if (!code->is_packed) {
        gr_object_append(volumes,
                         json_pack("{s:s, s:{s:o, s:i}}", "name", "code", "configMap", "name",
                                   json_sprintf("%s-code-0", m->submit->name), "defaultMode", 0555),
                         &m->no_memory);
        gr_object_append(mounts,
                         json_pack("{s:s, s:o, s:s}", "name", "code", "mountPath",
                                   json_sprintf(WORK_PATH "/%s", code->path), "subPath", "program"),
                         &m->no_memory);
        return;
    }
    gr_object_append(volumes, archive_volume(m), &m->no_memory);
    add_unpacking(m, spec);
}

/* "secret/NAME" or "configmap/NAME" */
static json_t *from_object(const char *text)
{
    bool is_secret = strncmp(text, "secret/", 7) == 0;
    return json_pack("{s:{s:s}}", is_secret ? "secretRef" : "configMapRef", "name",
                     strchr(text, '/') + 1);
}

/* A pod with one container. `command` (taken) may be NULL: that of the image. */
static json_t *make_pod(maker *m, const char *container_name, json_t *command, json_t *limits)
{
    const gr_submit_options *o = m->options;
    bool *no_memory = &m->no_memory;
    bool is_plain = o->kind == GR_SUBMIT_JOB;
    json_t *spec = json_object(), *mounts = json_array(), *env = json_array();
    json_t *container = json_pack("{s:s, s:s, s:o}", "name", container_name, "image", o->image,
                                  "resources", limits);
    if (command != NULL) {
        gr_object_put(container, "command", command, no_memory);
        if (m->submit->code.work_path != NULL) {
            gr_object_put_text(container, "workingDir", m->submit->code.work_path, no_memory);
        }
    }
    if (is_plain || o->kind == GR_SUBMIT_PYTORCH) {
        add_meeting(m, env);
    }
    add_users(m, env);
    if (json_array_size(env) > 0) {
        gr_object_put(container, "env", json_incref(env), no_memory);
    }
    json_decref(env);
    for (size_t i = 0; o->env_from != NULL && o->env_from[i] != NULL; i++) {
        gr_object_append(gr_object_list(container, "envFrom", no_memory),
                         from_object(o->env_from[i]), no_memory);
    }
    if (m->submit->code.is_packed || m->submit->code.bytes != NULL) {
        add_code(m, spec, mounts);
    }
    size_t claims = 0;
    if (m->submit->code.volume != NULL) {
        add_claim(m, spec, mounts, m->submit->code.volume, claims++);
    }
    for (size_t i = 0; o->volumes != NULL && o->volumes[i] != NULL; i++) {
        add_claim(m, spec, mounts, o->volumes[i], claims++);
    }
    if (json_array_size(mounts) > 0) {
        gr_object_put(container, "volumeMounts", json_incref(mounts), no_memory);
    }
    json_decref(mounts);
    gr_object_append(gr_object_list(spec, "containers", no_memory), container, no_memory);
    for (size_t i = 0; o->node_selector != NULL && o->node_selector[i] != NULL; i++) {
        const char *equal = strchr(o->node_selector[i], '=');
        char *key = strndup(o->node_selector[i], (size_t)(equal - o->node_selector[i]));
        *no_memory |= key == NULL;
        if (key != NULL) {
            gr_object_put_text(gr_object_map(spec, "nodeSelector", no_memory), key, equal + 1,
                               no_memory);
        }
        free(key);
    }
    if (o->service_account != NULL) {
        gr_object_put_text(spec, "serviceAccountName", o->service_account, no_memory);
    }
    if (is_plain) {
        gr_object_put_text(spec, "restartPolicy", "Never", no_memory);
        gr_object_put_text(spec, "subdomain", m->submit->name, no_memory);
    }
    return json_pack("{s:{s:{s:s}, s:{s:s, s:s}}, s:o}", "metadata", "annotations",
                     "sidecar.istio.io/inject", "false", "labels", "app.kubernetes.io/managed-by",
                     "gradus", GR_CLUSTER_LABEL, m->submit->name, "spec", spec);
}

static json_t *metadata_of(const maker *m, json_t *name)
{
    return json_pack("{s:o, s:{s:s, s:s}}", "name", name, "labels", "app.kubernetes.io/managed-by",
                     "gradus", GR_CLUSTER_LABEL, m->submit->name);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

static json_t *words_of(maker *m)
{
    json_t *words = json_array();
    for (size_t i = 0; m->submit->words[i] != NULL; i++) {
        gr_object_append(words, plain_text(m->submit->words[i]), &m->no_memory);
    }
    return words;
}

static json_t *worker_pod(maker *m, const char *container)
{
    const gr_submit_options *o = m->options;
    return make_pod(m, container, words_of(m), resources(m, o->cpus, o->memory, o->gpus));
}

static json_t *make_plain(maker *m)
{
    json_t *metadata = metadata_of(m, json_string(m->submit->name));
    if (m->options->elastic) {
        gr_object_put(metadata, "annotations", json_pack("{s:s}", GR_CLUSTER_ELASTIC, "true"),
                      &m->no_memory);
    }
    return json_pack("{s:s, s:s, s:o, s:{s:s, s:I, s:I, s:i, s:o}}", "apiVersion", "batch/v1",
                     "kind", "Job", "metadata", metadata, "spec", "completionMode", "Indexed",
                     "completions", (json_int_t)m->workers, "parallelism", (json_int_t)m->workers,
                     "backoffLimit", 0, "template", worker_pod(m, "worker"));
}

/* A job of an operator. `roles` is taken. */
static json_t *make_operated(maker *m, const char *version, const char *kind, const char *key,
                             json_t *roles)
{
    return json_pack("{s:s, s:s, s:o, s:{s:{s:s}, s:o}}", "apiVersion", version, "kind", kind,
                     "metadata", metadata_of(m, json_string(m->submit->name)), "spec", "runPolicy",
                     "cleanPodPolicy", "Running", key, roles);
}

static void add_role(maker *m, json_t *roles, const char *role, int64_t replicas, json_t *pod)
{
    gr_object_put(roles, role,
                  json_pack("{s:I, s:s, s:o}", "replicas", (json_int_t)replicas, "restartPolicy",
                            "Never", "template", pod),
                  &m->no_memory);
}

static json_t *make_pytorch(maker *m)
{
    json_t *roles = json_object();
    add_role(m, roles, "Master", 1, worker_pod(m, "pytorch"));
    if (m->workers > 1) {
        add_role(m, roles, "Worker", m->workers - 1, worker_pod(m, "pytorch"));
    }
    return make_operated(m, "kubeflow.org/v1", "PyTorchJob", "pytorchReplicaSpecs", roles);
}

/* With parameter servers a chief leads; without, the first worker does. */
static json_t *make_tf(maker *m)
{
    const gr_submit_options *o = m->options;
    json_t *roles = json_object();
    if (o->ps > 0) {
        add_role(m, roles, "Chief", 1, worker_pod(m, "tensorflow"));
        add_role(m, roles, "PS", o->ps,
                 make_pod(m, "tensorflow", words_of(m),
                          resources(m, o->ps_cpus != NULL ? o->ps_cpus : o->cpus,
                                    o->ps_memory != NULL ? o->ps_memory : o->memory, 0)));
    }
    add_role(m, roles, "Worker", m->workers, worker_pod(m, "tensorflow"));
    return make_operated(m, "kubeflow.org/v1", "TFJob", "tfReplicaSpecs", roles);
}

/* mpirun, unless the command begins with one of its own. */
static json_t *launcher_words(maker *m, int64_t slots)
{
    static const char *const launchers[] = {"mpirun", "mpiexec", "horovodrun"};
    const gr_submit_options *o = m->options;
    json_t *users = words_of(m);
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        if (strcmp(m->submit->words[0], launchers[i]) == 0) {
            return users;
        }
    }
    json_t *words =
        json_pack("[s, s, s, o, s, s, s, s, s, s, s, s]", "mpirun", "--allow-run-as-root", "-np",
                  json_sprintf("%" PRId64, m->workers * slots), "-bind-to", "none", "-map-by",
                  "slot", "-x", "PATH", "-x", "LD_LIBRARY_PATH");
    for (size_t i = 0; o->env != NULL && o->env[i] != NULL; i++) {
        gr_object_append(words, json_string("-x"), &m->no_memory);
        gr_object_append(words,
                         json_stringn(o->env[i], (size_t)(strchr(o->env[i], '=') - o->env[i])),
                         &m->no_memory);
    }
    m->no_memory |= words == NULL || json_array_extend(words, users) != 0;
    json_decref(users);
    return words;
}

static json_t *make_mpi(maker *m)
{
    const gr_submit_options *o = m->options;
    int64_t slots = o->slots > 0 ? o->slots : o->gpus > 1 ? o->gpus : 1;
    json_t *roles = json_object();
    add_role(m, roles, "Launcher", 1,
             make_pod(m, "launcher", launcher_words(m, slots),
                      resources(m, o->launcher_cpus, o->launcher_memory, 0)));
    add_role(m, roles, "Worker", m->workers,
             make_pod(m, "worker", NULL, resources(m, o->cpus, o->memory, o->gpus)));
    json_t *job = make_operated(m, "kubeflow.org/v2beta1", "MPIJob", "mpiReplicaSpecs", roles);
    gr_object_put(json_object_get(job, "spec"), "slotsPerWorker", json_integer(slots),
                  &m->no_memory);
    return job;
}

/* ---- What belongs to a job ------------------------------------------------------------------- */

static json_t *make_service(const maker *m)
{
    const char *name = m->submit->name;
    return json_pack("{s:s, s:s, s:o, s:{s:s, s:b, s:{s:s}, s:[{s:s, s:i}, {s:s, s:i}]}}",
                     "apiVersion", "v1", "kind", "Service", "metadata",
                     metadata_of(m, json_string(name)), "spec", "clusterIP", "None",
                     "publishNotReadyAddresses", 1, "selector", "job-name", name, "ports", "name",
                     "master", "port", MASTER_PORT, "name", "coordinator", "port", MASTER_PORT + 1);
}

static void add_code_secret(maker *m, json_t *belongs)
{
    gr_object_append(belongs,
                     json_pack("{s:s, s:s, s:o, s:s, s:{s:s}}", "apiVersion", "v1", "kind",
                               "Secret", "metadata",
                               metadata_of(m, json_sprintf("%s-code", m->submit->name)), "type",
                               "Opaque", "stringData", "url", m->submit->code.url),
                     &m->no_memory);
}

static gr_status add_secret(maker *m, json_t *belongs, gr_diag *diag)
{
    uint8_t secret[SECRET_BYTES];
    char hex[2 * SECRET_BYTES + 1];
    gr_status status = gr_random_bytes(secret, sizeof secret, diag);
    if (status == GR_OK) {
        gr_hex(secret, sizeof secret, hex);
        gr_object_append(belongs,
                         json_pack("{s:s, s:s, s:o, s:s, s:{s:s}}", "apiVersion", "v1", "kind",
                                   "Secret", "metadata",
                                   metadata_of(m, json_sprintf("%s-gradus", m->submit->name)),
                                   "type", "Opaque", "stringData", "secret", hex),
                         &m->no_memory);
    }
    gr_wipe(secret, sizeof secret);
    gr_wipe(hex, sizeof hex);
    return status;
}

static void add_config_maps(maker *m, json_t *belongs)
{
    const gr_submit_code *code = &m->submit->code;
    for (size_t i = 0; i < parts_of(code); i++) {
        size_t begin = i * GR_SUBMIT_PART_BYTES, left = code->size_bytes - begin;
        size_t size = left < GR_SUBMIT_PART_BYTES ? left : GR_SUBMIT_PART_BYTES;
        char *text = malloc(4 * ((size + 2) / 3) + 1);
        if (text == NULL) {
            m->no_memory = true;
            return;
        }
        EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)code->bytes + begin,
                        (int)size);
        gr_object_append(belongs,
                         json_pack("{s:s, s:s, s:o, s:{s:s}}", "apiVersion", "v1", "kind",
                                   "ConfigMap", "metadata",
                                   metadata_of(m, json_sprintf("%s-code-%zu", m->submit->name, i)),
                                   "binaryData", "program", text),
                         &m->no_memory);
        free(text);
    }
}

/* ---- What the user gave ---------------------------------------------------------------------- */

static gr_status check_quantity(const char *flag, const char *text, gr_diag *diag)
{
    gr_quantity quantity;
    if (text == NULL || (gr_quantity_parse(text, &quantity) && quantity.nano > 0)) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s %.60s: it must be a quantity above 0 as Kubernetes has them: 2, 500m, 4Gi",
                   flag, text);
}

static bool is_pair(const char *text)
{
    const char *equal = strchr(text, '=');
    return equal != NULL && equal != text;
}

static bool is_from(const char *text)
{
    return (strncmp(text, "secret/", 7) == 0 && text[7] != '\0') ||
           (strncmp(text, "configmap/", 10) == 0 && text[10] != '\0');
}

static bool is_claim(const char *text)
{
    const char *path = strrchr(text, ':');
    return strncmp(text, "pvc:", 4) == 0 && path > text + 4 && path[1] == '/';
}

static gr_status check_texts(const char *flag, const char *const *texts,
                             bool (*is_right)(const char *), const char *form, gr_diag *diag)
{
    for (size_t i = 0; texts != NULL && texts[i] != NULL; i++) {
        if (!is_right(texts[i])) {
            /* Not its value, which may be a secret. */
            return gr_fail(diag, GR_E_INVALID, "%s %.*s: it must be %s", flag,
                           (int)strcspn(texts[i], "="), texts[i], form);
        }
    }
    return GR_OK;
}

static gr_status check_options(const gr_submit *submit, gr_diag *diag)
{
    const gr_submit_options *o = &submit->options;
    const struct {
        const char *flag, *text;
    } quantities[] = {{"--cpus", o->cpus},
                      {"--memory", o->memory},
                      {"--launcher-cpus", o->launcher_cpus},
                      {"--launcher-memory", o->launcher_memory},
                      {"--ps-cpus", o->ps_cpus},
                      {"--ps-memory", o->ps_memory}};
    gr_status status = GR_OK;
    for (size_t i = 0; i < sizeof quantities / sizeof quantities[0] && status == GR_OK; i++) {
        status = check_quantity(quantities[i].flag, quantities[i].text, diag);
    }
    if (status == GR_OK) {
        status = check_texts("--env", o->env, is_pair, "NAME=VALUE", diag);
    }
    if (status == GR_OK) {
        status =
            check_texts("--env-from", o->env_from, is_from, "secret/NAME or configmap/NAME", diag);
    }
    if (status == GR_OK) {
        status = check_texts("--volume", o->volumes, is_claim, "pvc:CLAIM:/path", diag);
    }
    if (status == GR_OK) {
        status = check_texts("--node-selector", o->node_selector, is_pair, "LABEL=VALUE", diag);
    }
    if (status == GR_OK && o->ps > 0 && o->kind != GR_SUBMIT_TF) {
        status = gr_fail(diag, GR_E_INVALID,
                         "--ps is for --kind TF; other jobs have no parameter "
                         "servers of their own");
    }
    if (status == GR_OK && o->elastic && o->kind != GR_SUBMIT_JOB) {
        status = gr_fail(diag, GR_E_INVALID,
                         "--elastic is for --kind Job; gradus scale changes the workers of an "
                         "MPIJob or a PyTorchJob as it is");
    }
    if (status == GR_OK && o->elastic && submit->code.fd >= 0 && submit->code.url == NULL) {
        status = gr_fail(diag, GR_E_INVALID,
                         "--elastic: the program is too large for ConfigMaps, and would reach only "
                         "the first workers; let it go by a store of objects (--upload "
                         "s3://BUCKET/FOLDER) or a volume (--code pvc:CLAIM:/path)");
    }
    return status;
}

/* A plain job of a program that travels needs no more than a system, or Python. */
static gr_status find_image(gr_submit *submit, gr_diag *diag)
{
    gr_submit_options *o = &submit->options;
    if (o->image != NULL) {
        return GR_OK;
    }
    if (o->kind != GR_SUBMIT_JOB) {
        return gr_fail(diag, GR_E_INVALID,
                       "--image is missing: a job of this kind needs an image that has its "
                       "framework");
    }
    bool is_python = strncmp(submit->words[0], "python", 6) == 0;
    o->image = is_python ? PYTHON_IMAGE : "docker.io/library/debian:stable-slim";
    if (!is_python && submit->code.url != NULL && o->code_image == NULL) {
        o->code_image = PYTHON_IMAGE; /* Debian's has nothing that fetches */
    }
    return GR_OK;
}

gr_status gr_submit_make(gr_submit *submit, gr_diag *diag)
{
    static json_t *(*const makes[])(maker * m) = {make_plain, make_mpi, make_tf, make_pytorch};
    const gr_submit_options *o = &submit->options;
    maker m = {.submit = submit,
               .options = o,
               .workers = o->workers > 0             ? o->workers
                          : o->kind == GR_SUBMIT_JOB ? 1
                                                     : 2};
    gr_status status = check_options(submit, diag);
    if (status == GR_OK) {
        status = find_image(submit, diag);
    }
    if (status == GR_OK) {
        status = find_name(submit, m.workers, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (o->kind == GR_SUBMIT_JOB) {
        gr_object_append(submit->belongs, make_service(&m), &m.no_memory);
    }
    if ((o->kind == GR_SUBMIT_JOB && !o->elastic) || o->kind == GR_SUBMIT_PYTORCH) {
        status = add_secret(&m, submit->belongs, diag);
    }
    add_config_maps(&m, submit->belongs);
    if (submit->code.url != NULL) {
        add_code_secret(&m, submit->belongs);
    }
    gr_object_append(submit->jobs, makes[o->kind](&m), &m.no_memory);
    if (status == GR_OK && m.no_memory) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the objects of the job");
    }
    return status;
}
