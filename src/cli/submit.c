/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus submit`: a job, or any command, goes to a Kubernetes cluster. */

#include "cli/submit.h"

#include "base/fail.h"
#include "cli/manifest.h"
#include "doc/config_node.h"
#include "launch/launch.h"
#include "operator/object.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTPUT_TEXT, OUTPUT_NAME, ARENA_BYTES_MAX = 1 << 20 };
static const char *const kinds[] = {"Job", "MPI", "TF", "PyTorch", NULL};
static const char *const outputs[] = {"text", "name", NULL};

#define AT(member) .offset = offsetof(gr_submit_options, member)

static const gr_config_field submit_fields[] = {
    {.key = "distribution_type",
     .flag = "--kind",
     .type = GR_CONFIG_CHOICE,
     AT(kind),
     .default_text = "Job",
     .choices = kinds,
     .help = "Job needs nothing on the cluster; the others need an operator there, and become an "
             "MPIJob (v2beta1), a TFJob or a PyTorchJob (v1)"},
    {.key = "number_of_workers",
     .flag = "--workers",
     .type = GR_CONFIG_INT,
     AT(workers),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "so many workers; otherwise one, and two of the other kinds than Job"},
    {.key = "worker_cpus",
     .flag = "--cpus",
     .type = GR_CONFIG_TEXT,
     AT(cpus),
     .value_name = "N",
     .help = "cores of each worker, 2 or 500m; otherwise as the cluster says"},
    {.key = "worker_memory",
     .flag = "--memory",
     .type = GR_CONFIG_TEXT,
     AT(memory),
     .value_name = "BYTES",
     .help = "memory of each worker, 4Gi; a worker that needs more is killed"},
    {.key = "worker_gpus",
     .flag = "--gpus",
     .type = GR_CONFIG_INT,
     AT(gpus),
     .min = 0,
     .max = 1024,
     .help = "GPUs of each worker"},
    {.key = "gpu_resource",
     .flag = "--gpu-resource",
     .type = GR_CONFIG_TEXT,
     AT(gpu_resource),
     .default_text = "nvidia.com/gpu",
     .value_name = "NAME",
     .help = "what the cluster calls them"},
    {.key = "slots_per_worker",
     .flag = "--slots",
     .type = GR_CONFIG_INT,
     AT(slots),
     .min = 1,
     .max = 1024,
     .help = "MPI: processes of each worker; otherwise one, or one for each GPU"},
    {.key = "launcher_cpus",
     .flag = "--launcher-cpus",
     .type = GR_CONFIG_TEXT,
     AT(launcher_cpus),
     .value_name = "N",
     .help = "MPI: cores of the launcher"},
    {.key = "launcher_memory",
     .flag = "--launcher-memory",
     .type = GR_CONFIG_TEXT,
     AT(launcher_memory),
     .value_name = "BYTES",
     .help = "MPI: its memory"},
    {.key = "number_of_ps",
     .flag = "--ps",
     .type = GR_CONFIG_INT,
     AT(ps),
     .min = 0,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "TF: parameter servers, and a chief beside the workers; otherwise neither"},
    {.key = "parameter_server_cpus",
     .flag = "--ps-cpus",
     .type = GR_CONFIG_TEXT,
     AT(ps_cpus),
     .value_name = "N",
     .help = "TF: cores of each parameter server; otherwise those of a worker"},
    {.key = "parameter_server_memory",
     .flag = "--ps-memory",
     .type = GR_CONFIG_TEXT,
     AT(ps_memory),
     .value_name = "BYTES",
     .help = "TF: its memory; otherwise that of a worker"},
    {.key = "image",
     .flag = "--image",
     .type = GR_CONFIG_TEXT,
     AT(image),
     .value_name = "IMAGE",
     .help = "of all pods; otherwise Debian, or Python for a command that begins with python"},
    {.key = "name",
     .flag = "--name",
     .type = GR_CONFIG_TEXT,
     AT(name),
     .value_name = "NAME",
     .help = "of the job; otherwise one is made from that of the program"},
    {.flag = "--env",
     .short_flag = 'e',
     .type = GR_CONFIG_LIST,
     AT(env),
     .value_name = "NAME=VALUE",
     .help = "a variable of all workers; any number of times; secrets come by --env-from"},
    {.flag = "--env-from",
     .type = GR_CONFIG_LIST,
     AT(env_from),
     .value_name = "secret/NAME",
     .help = "all that stands in that Secret (or configmap/NAME) becomes variables"},
    {.key = "code",
     .flag = "--code",
     .type = GR_CONFIG_TEXT,
     AT(code),
     .value_name = "PATH",
     .help = "a file or folder that travels with the job, which then runs in it; otherwise the "
             "program of the command, if it is a file here; pvc:CLAIM:/path: it is on that volume; "
             "s3://BUCKET/KEY, https://HOST/PATH: pods fetch this tar.gz"},
    {.key = "upload",
     .flag = "--upload",
     .type = GR_CONFIG_TEXT,
     AT(upload),
     .value_name = "s3://BUCKET/FOLDER",
     .help = "it travels by that store, not in ConfigMaps; keys, region and endpoint as the tools "
             "of AWS find them"},
    {.key = "code_image",
     .flag = "--code-image",
     .type = GR_CONFIG_TEXT,
     AT(code_image),
     .value_name = "IMAGE",
     .help = "in which a program is unpacked, and fetched by curl, python3 or wget; otherwise that "
             "of the job, or Python's where no image is given and it is fetched"},
    {.flag = "--volume",
     .type = GR_CONFIG_LIST,
     AT(volumes),
     .value_name = "pvc:CLAIM:/path",
     .help = "a persistent volume claim, and where all pods have it; any number of times"},
    {.flag = "--node-selector",
     .type = GR_CONFIG_LIST,
     AT(node_selector),
     .value_name = "LABEL=VALUE",
     .help = "only on nodes with that label; any number of times"},
    {.key = "service_account",
     .flag = "--service-account",
     .type = GR_CONFIG_TEXT,
     AT(service_account),
     .value_name = "NAME",
     .help = "as whom the pods speak to the cluster"},
    {.flag = "--elastic",
     .type = GR_CONFIG_BOOL,
     AT(elastic),
     .help = "Job: gradus scale may change the number of workers; they are not told how many they "
             "are"},
    {.flag = "--set",
     .type = GR_CONFIG_LIST,
     AT(set),
     .value_name = "KEY=VALUE",
     .help = "as in a file of settings, distribution_type=MPI say; any number of times"},
    {.flag = "--follow",
     .short_flag = 'f',
     .type = GR_CONFIG_BOOL,
     AT(follow),
     .help = "show what the workers write, and what goes wrong, until the job has ended; Ctrl-C "
             "leaves it running"},
    {.flag = "--wait",
     .type = GR_CONFIG_BOOL,
     AT(wait),
     .help = "wait until the job has ended, and show only what goes wrong"},
    {.flag = "--dry-run",
     .type = GR_CONFIG_BOOL,
     AT(dry_run),
     .help = "print what would be sent, as YAML; no cluster is asked"},
    {.flag = "--output",
     .short_flag = 'o',
     .type = GR_CONFIG_CHOICE,
     AT(output),
     .default_text = "text",
     .choices = outputs,
     .help = "name: print the name of the job alone"},
    GR_CLI_ROWS_CLUSTER(gr_submit_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_submit_table = {.name = "submit",
                                         .title = "Flags of `gradus submit`, and keys of its files",
                                         .fields = submit_fields,
                                         .struct_bytes = sizeof(gr_submit_options)};

static void print_usage(void)
{
    puts(
        "usage: gradus submit [flags] [--] command [arguments]\n"
        "       gradus submit settings.yaml [flags] -- command [arguments]\n"
        "       gradus submit job.yaml [flags]\n\n"
        "Sends a command to a Kubernetes cluster as a job with any number of workers, and the\n"
        "program with it: no image is built and no manifest written. Or the manifests of a file:\n"
        "a Job, GradusJob, MPIJob, PyTorchJob or TFJob. gradus ls, logs, wait, stop, scale and "
        "top\n"
        "with -n NAMESPACE are for jobs on a cluster.\n"
        "Exit code: 0 sent, or with --follow and --wait: done; 1 the job failed, or\n"
        "the cluster was not reached, or refuses some of several jobs; 2 what was given is wrong,\n"
        "or the cluster refuses: nothing was sent; 75 detached, the job goes on.\n");
    gr_config_print_help(&gr_submit_table, stdout);
}

/* ---- The line -------------------------------------------------------------------------------- */

static bool is_document(const char *word)
{
    static const char *const endings[] = {".yaml", ".yml", ".json"};
    size_t length = strlen(word);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t ending = strlen(endings[i]);
        if (length > ending && strcmp(word + length - ending, endings[i]) == 0) {
            return true;
        }
    }
    return strcmp(word, "-") == 0;
}

/* Sets the options of the flags; finds the file and the command. */
static gr_status read_words(gr_submit *submit, int argc, char *const *argv, bool *help_out,
                            gr_diag *diag)
{
    int at = 1;
    bool dashes = false;
    gr_status status = gr_config_from_args(&gr_submit_table, &submit->options, argc, argv, &at,
                                           &dashes, help_out, &submit->arena, diag);
    if (status == GR_OK && !*help_out && !dashes && at < argc && is_document(argv[at])) {
        submit->path = argv[at++];
        status = gr_config_from_args(&gr_submit_table, &submit->options, argc, argv, &at, &dashes,
                                     help_out, &submit->arena, diag);
        if (status == GR_OK && !*help_out && !dashes && at < argc) {
            return gr_fail(
                diag, GR_E_INVALID,
                "submit: \"%s\" behind \"%s\" means nothing here; write -- in front of a "
                "command",
                argv[at], submit->path);
        }
    }
    if (status != GR_OK || at >= argc) {
        return status;
    }
    char **words = gr_arena_alloc(&submit->arena, ((size_t)(argc - at) + 1) * sizeof *words);
    if (words == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the command");
    }
    memcpy(words, argv + at, (size_t)(argc - at) * sizeof *words);
    submit->words = words;
    return GR_OK;
}

/* The keys of a file (NULL: none) and of --set; then the environment and the flags once more. */
static gr_status read_settings(gr_submit *submit, int argc, char *const *argv, gr_diag *diag)
{
    gr_doc *doc = NULL;
    bool help = false;
    const char *const *set = submit->options.set;
    gr_status status = submit->path != NULL ? gr_doc_read_yaml(submit->path, &doc, diag)
                                            : gr_doc_parse_yaml("--set", "{}", 2, &doc, diag);
    for (size_t i = 0; status == GR_OK && set != NULL && set[i] != NULL; i++) {
        status = gr_doc_set(doc, "--set", set[i], diag);
    }
    if (status == GR_OK) {
        status = gr_config_defaults(&gr_submit_table, &submit->options, &submit->arena, diag);
    }
    if (status == GR_OK) {
        status = gr_config_from_node(&gr_submit_table, &submit->options, gr_doc_root(doc),
                                     &submit->arena, diag);
    }
    if (status == GR_OK) {
        status = read_words(submit, argc, argv, &help, diag);
    }
    gr_doc_destroy(doc);
    return status;
}

/* ---- Manifests ------------------------------------------------------------------------------- */

static gr_status take_manifest(gr_submit *submit, const json_t *document, gr_diag *diag)
{
    char where[GR_MANIFEST_WHERE_BYTES];
    json_t *job = json_array_get(document, 1);
    const char *space = gr_object_text(job, "metadata.namespace");
    gr_manifest_where(submit->path, document, where);
    gr_status status = gr_submit_check(where, job, diag);
    const char *flag = submit->options.cluster.space;
    if (status == GR_OK && space != NULL && flag != NULL && strcmp(space, flag) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: metadata.namespace is %.100s, and --namespace is %.100s; leave one out",
                       where, space, flag);
    }
    bool no_memory = false;
    if (status == GR_OK) {
        json_t *labels = gr_object_map(json_object_get(job, "metadata"), "labels", &no_memory);
        gr_object_put_text(labels, GR_CLUSTER_LABEL, gr_object_text(job, "metadata.name"),
                           &no_memory);
        gr_object_append(submit->jobs, json_incref(job), &no_memory);
    }
    return no_memory ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the job") : status;
}

static gr_status take_manifests(gr_submit *submit, json_t *documents, gr_diag *diag)
{
    size_t i;
    const json_t *document;
    gr_status status = GR_OK;
    if (submit->words != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "submit: \"%s\" is the manifest of a job, which has its command itself; "
                       "\"%s\" means nothing here",
                       submit->path, submit->words[0]);
    }
    json_array_foreach(documents, i, document)
    {
        if (status == GR_OK) {
            status = take_manifest(submit, document, diag);
        }
    }
    bool follows = submit->options.follow || submit->options.wait;
    if (status == GR_OK && follows && json_array_size(submit->jobs) > 1) {
        status = gr_fail(diag, GR_E_INVALID,
                         "submit: \"%s\" holds %zu jobs; --follow and --wait are for one: send "
                         "them without, and gradus logs -f NAME follows each",
                         submit->path, json_array_size(submit->jobs));
    }
    return status;
}

static bool is_manifest(const json_t *documents)
{
    const json_t *first = json_array_get(json_array_get(documents, 0), 1);
    return json_object_get(first, "kind") != NULL || json_object_get(first, "apiVersion") != NULL;
}

/* All that is to be sent, checked. */
static gr_status prepare(gr_submit *submit, int argc, char *const *argv, gr_diag *diag)
{
    json_t *documents = NULL;
    gr_status status = GR_OK;
    if (submit->path != NULL) {
        status = gr_manifests_read(submit->path, &documents, diag);
    }
    if (status == GR_OK && submit->path != NULL && json_array_size(documents) == 0) {
        status = gr_fail(diag, GR_E_INVALID,
                         "submit: \"%s\" is empty; it may hold the manifests of jobs, or settings "
                         "(gradus submit "
                         "--help) for a command",
                         submit->path);
    } else if (status == GR_OK && documents != NULL && is_manifest(documents)) {
        status = take_manifests(submit, documents, diag);
    } else if (status == GR_OK) {
        status = submit->path != NULL || submit->options.set != NULL
                     ? read_settings(submit, argc, argv, diag)
                     : GR_OK;
        if (status == GR_OK && submit->words == NULL) {
            status = gr_fail(diag, GR_E_INVALID,
                             "submit: there is nothing to run; give a command (gradus submit "
                             "--workers 4 -- ./program) or a manifest (gradus submit job.yaml)");
        }
        if (status == GR_OK) {
            status = gr_submit_pack(submit, diag);
        }
        if (status == GR_OK) {
            status = gr_submit_make(submit, diag);
        }
        if (status == GR_OK) {
            status = gr_submit_check("submit", json_array_get(submit->jobs, 0), diag);
        }
    }
    json_decref(documents);
    return status;
}

/* ---- The work -------------------------------------------------------------------------------- */

/* A note stands in place of a secret. */
static gr_status print_all(const gr_submit *submit, gr_diag *diag)
{
    size_t i;
    const char *key;
    json_t *object, *data, *value;
    gr_status status = GR_OK;
    json_array_foreach(submit->belongs, i, object)
    {
        data = json_object_get(object, "stringData");
        json_object_foreach(data, key, value)
        {
            if (json_object_set_new(data, key, json_string("not shown: each job gets its own")) !=
                0) {
                return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the objects");
            }
        }
        status = status == GR_OK ? gr_manifest_print(object, stdout, diag) : status;
    }
    json_array_foreach(submit->jobs, i, object)
    {
        status = status == GR_OK ? gr_manifest_print(object, stdout, diag) : status;
    }
    return status;
}

static void print_sent(const gr_submit *submit, const gr_cluster_client *cluster,
                       const gr_cluster_job *job, const char *named)
{
    const char *name = gr_cluster_job_name(job);
    bool follows = submit->options.follow || submit->options.wait;
    int workers = gr_cluster_workers(job);
    if (submit->options.output == OUTPUT_NAME) {
        printf("%s\n", name);
    } else {
        fprintf(follows ? stderr : stdout, "%sjob %s (%s, %d %s) is sent to namespace %s\n",
                follows ? "gradus: " : "", name, job->kind->kind, workers,
                workers == 1 ? "worker" : "workers", cluster->space);
    }
    if (submit->options.output == OUTPUT_TEXT && !follows) {
        printf("  gradus logs -f %s%s\n  gradus stop %s%s\n", name, named, name, named);
    }
    fflush(stdout);
}

static int follow(const gr_submit *submit, gr_cluster_client *cluster, gr_cluster_job *job,
                  const char *named)
{
    char detach[2 * GR_CLUSTER_NAMED_BYTES + 512];
    const char *name = gr_cluster_job_name(job);
    snprintf(detach, sizeof detach, "gradus logs -f %s%s shows it again, gradus stop %s%s ends it",
             name, named, name, named);
    const gr_follow_options options = {.logs = submit->options.follow, .detach = detach};
    return gr_cluster_follow(cluster, job, &options);
}

/* `sent`: the names of the jobs before it, which stay. GR_EXIT_INPUT says that nothing is in the
 * cluster. */
static int fail_to_send(const json_t *sent, bool is_clean, gr_status status, const gr_diag *diag)
{
    int code = gr_cluster_fail(status, diag);
    size_t i;
    const json_t *name;
    if (json_array_size(sent) == 0) {
        return is_clean ? code : GR_EXIT_FAILED;
    }
    fputs("gradus: sent before that, and not taken back: ", stderr);
    json_array_foreach(sent, i, name)
    {
        fprintf(stderr, "%s%s", i > 0 ? ", " : "", json_string_value(name));
    }
    fputc('\n', stderr);
    return GR_EXIT_FAILED;
}

static int send_all(const gr_submit *submit, gr_diag *diag)
{
    gr_cluster_client cluster = {0};
    gr_cluster_flags flags = submit->options.cluster;
    int code = GR_EXIT_DONE;
    size_t i;
    json_t *manifest;
    gr_status status = gr_submit_upload(&submit->code, diag); /* a signal ends it */
    if (status == GR_OK) {
        status = gr_cluster_open(&flags, &cluster, diag);
    }
    if (status != GR_OK) {
        return gr_cluster_fail(status, diag);
    }
    const char *space = cluster.space;
    json_t *sent = json_array();
    json_array_foreach(submit->jobs, i, manifest)
    {
        gr_cluster_job job = {0};
        char named[GR_CLUSTER_NAMED_BYTES];
        bool is_clean = true;
        const char *its_space = gr_object_text(manifest, "metadata.namespace");
        cluster.space = flags.space = its_space != NULL ? its_space : space;
        gr_cluster_named(&flags, named);
        status = gr_submit_send(&cluster, manifest, submit->belongs, &job, &is_clean, diag);
        if (status != GR_OK) {
            code = fail_to_send(sent, is_clean, status, diag);
            break;
        }
        if (submit->code.fd >= 0 && submit->code.put_url == NULL) {
            status = gr_submit_hand_out(&cluster, &job, &submit->code, diag);
            if (status != GR_OK) {
                is_clean = gr_submit_take_back(&cluster, &job);
                gr_cluster_job_fini(&job);
                code = fail_to_send(sent, is_clean, status, diag);
                break;
            }
        }
        print_sent(submit, &cluster, &job, named);
        (void)json_array_append_new(sent, json_string(gr_cluster_job_name(&job)));
        if (submit->options.follow || submit->options.wait) {
            code = follow(submit, &cluster, &job, named);
        }
        gr_cluster_job_fini(&job);
    }
    json_decref(sent);
    gr_cluster_close(&cluster);
    int flushed = gr_cli_flush();
    return code != GR_EXIT_DONE ? code : flushed;
}

int gr_verb_submit(int argc, char *const *argv)
{
    gr_submit submit = {.code.fd = -1, .jobs = json_array(), .belongs = json_array()};
    gr_diag diag = {0};
    bool help = false;
    int code;
    gr_arena_init(&submit.arena, ARENA_BYTES_MAX);
    gr_status status = gr_config_defaults(&gr_submit_table, &submit.options, &submit.arena, &diag);
    if (status == GR_OK) {
        status = read_words(&submit, argc, argv, &help, &diag);
    }
    if (status == GR_OK && !help) {
        status = prepare(&submit, argc, argv, &diag);
    }
    if (status == GR_OK && help) {
        print_usage();
        code = gr_cli_flush();
    } else if (status == GR_OK && submit.options.dry_run) {
        status = print_all(&submit, &diag);
        code = status == GR_OK ? gr_cli_flush() : gr_cli_refuse(status, &diag);
    } else {
        code = status == GR_OK ? send_all(&submit, &diag) : gr_cli_refuse(status, &diag);
    }
    gr_submit_code_fini(&submit.code);
    json_decref(submit.jobs);
    json_decref(submit.belongs);
    gr_arena_fini(&submit.arena);
    return code;
}
