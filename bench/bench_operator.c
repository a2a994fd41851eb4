/* SPDX-License-Identifier: Apache-2.0 */

/* What the operator's loop takes for many jobs: time of a look, time until it is in step after a
 * restart (of the processor), memory. Its writes are answered at once, and pods run at once; what
 * was written is what the restarted loop finds, pods with what an API server adds to them.
 *
 *     bench_operator [JOBS [WORKERS [KIND]]]
 *
 * 10000 jobs of 9 workers: 100,000 pods with launchers. KIND: MPIJob, PyTorchJob or TFJob. With
 * GRADUS_BENCH_WHOLE set, texts are parsed whole, not cut first. */

#include "base/clock.h"
#include "operator/controller.h"
#include "operator/cut.h"
#include "operator/object.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time of the processor: nothing waits here, and others may be at work. */
static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static json_t *given_key(void *arg)
{
    (void)arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "cHJpdmF0ZQ==", "ssh-publickey", "cHVibGlj");
}

static long resident_kib(void)
{
    long pages = 0, ignored = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &ignored, &pages) != 2) {
        pages = 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    return pages * 4;
}

static const struct bench_kind {
    const char *kind, *api_version, *specs, *leader, *container;
} bench_kinds[] = {{"MPIJob", "kubeflow.org/v2beta1", "mpiReplicaSpecs", "Launcher", "main"},
                   {"PyTorchJob", "kubeflow.org/v1", "pytorchReplicaSpecs", "Master", "pytorch"},
                   {"TFJob", "kubeflow.org/v1", "tfReplicaSpecs", "Chief", "tensorflow"}};

static json_t *make_job(const struct bench_kind *kind, int number, int workers)
{
    char name[32], uid[48];
    snprintf(name, sizeof name, "train-%d", number);
    snprintf(uid, sizeof uid, "%08x-5bd1-4e1c-9a3f-%012x", (unsigned)number * 2654435761U,
             (unsigned)number * 40503U);
    json_t *container = json_pack(
        "{s:[{s:s, s:s, s:[s, s, s], s:{s:{s:s, s:s}}}]}", "containers", "name", kind->container,
        "image", "registry.example.com/team/train:1.4", "args", "python3", "train.py",
        "--epochs=10", "resources", "requests", "cpu", "4", "memory", "8Gi");
    json_t *job =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:s, s:s}, s:{s:{s:{s:{s:O}}, s:{s:i, s:{s:O}}}}}",
                  "apiVersion", kind->api_version, "kind", kind->kind, "metadata", "name", name,
                  "namespace", "lab", "uid", uid, "creationTimestamp", "2026-05-01T10:00:00Z",
                  "spec", kind->specs, kind->leader, "template", "spec", container, "Worker",
                  "replicas", workers, "template", "spec", container);
    json_decref(container);
    return job;
}

static long answered;

/* What an API server makes of a write. */
static json_t *answer_to(const gr_controller_action *action)
{
    char uid[48], version[24];
    json_t *object = json_deep_copy(action->object), *metadata;
    metadata = json_object_get(object, "metadata");
    snprintf(version, sizeof version, "%ld", ++answered);
    json_object_set_new(metadata, "resourceVersion", json_string(version));
    if (strcmp(action->verb, "create") == 0) {
        snprintf(uid, sizeof uid, "%08lx-77aa-4b0e-8c2d-%012lx",
                 answered * 2654435761L % 0xffffffffL, answered * 40503L);
        json_object_set_new(metadata, "uid", json_string(uid));
        json_object_set_new(metadata, "creationTimestamp", json_string("2026-05-01T10:00:00Z"));
    }
    if (gr_object_is(object, "v1", "Pod")) {
        json_object_set_new(object, "status",
                            json_pack("{s:s, s:[{s:s, s:s}]}", "phase", "Running", "conditions",
                                      "type", "Ready", "status", "True"));
    }
    return object;
}

/* What an API server and a kubelet add to a pod, and nobody here reads. */
static const char more_metadata[] =
    "\"managedFields\":[{\"manager\":\"gradus\",\"operation\":\"Update\",\"apiVersion\":\"v1\","
    "\"time\":\"2026-05-01T10:00:00Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:metadata\":{"
    "\"f:labels\":{\".\":{},\"f:training.kubeflow.org/job-name\":{},\"f:training.kubeflow.org/"
    "job-role\":{},\"f:training.kubeflow.org/operator-name\":{},\"f:training.kubeflow.org/"
    "replica-index\":{}},\"f:ownerReferences\":{\".\":{},\"k:{\\\"uid\\\":\\\"00000000\\\"}\":{}}},"
    "\"f:spec\":{\"f:containers\":{\"k:{\\\"name\\\":\\\"main\\\"}\":{\".\":{},\"f:args\":{},"
    "\"f:env\":{},\"f:image\":{},\"f:imagePullPolicy\":{},\"f:name\":{},\"f:resources\":{\".\":{},"
    "\"f:requests\":{\".\":{},\"f:cpu\":{},\"f:memory\":{}}},\"f:terminationMessagePath\":{},"
    "\"f:terminationMessagePolicy\":{},\"f:volumeMounts\":{}}},\"f:dnsPolicy\":{},"
    "\"f:enableServiceLinks\":{},\"f:hostname\":{},\"f:restartPolicy\":{},\"f:schedulerName\":{},"
    "\"f:securityContext\":{},\"f:subdomain\":{},\"f:terminationGracePeriodSeconds\":{},"
    "\"f:volumes\":{}}}},{\"manager\":\"kubelet\",\"operation\":\"Update\",\"apiVersion\":\"v1\","
    "\"time\":\"2026-05-01T10:00:07Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:status\":{"
    "\"f:conditions\":{\"k:{\\\"type\\\":\\\"ContainersReady\\\"}\":{\".\":{},\"f:lastProbeTime\":{"
    "},"
    "\"f:status\":{},\"f:type\":{}},\"k:{\\\"type\\\":\\\"Ready\\\"}\":{\".\":{},\"f:status\":{},"
    "\"f:type\":{}}},\"f:containerStatuses\":{},\"f:hostIP\":{},\"f:phase\":{},\"f:podIP\":{},"
    "\"f:podIPs\":{},\"f:startTime\":{}}},\"subresource\":\"status\"}],";
static const char more_spec[] =
    "\"nodeName\":\"node-17.cluster.example.com\",\"dnsPolicy\":\"ClusterFirst\",\"priority\":0,"
    "\"enableServiceLinks\":true,\"preemptionPolicy\":\"PreemptLowerPriority\",\"serviceAccount\":"
    "\"default\",\"serviceAccountName\":\"default\",\"tolerations\":[{\"key\":\"node.kubernetes.io/"
    "not-ready\",\"operator\":\"Exists\",\"effect\":\"NoExecute\",\"tolerationSeconds\":300},{"
    "\"key\""
    ":\"node.kubernetes.io/unreachable\",\"operator\":\"Exists\",\"effect\":\"NoExecute\","
    "\"tolerationSeconds\":300}],\"projected\":[{\"name\":\"kube-api-access-x7v2k\",\"projected\":{"
    "\"defaultMode\":420,\"sources\":[{\"serviceAccountToken\":{\"expirationSeconds\":3607,"
    "\"path\":"
    "\"token\"}},{\"configMap\":{\"name\":\"kube-root-ca.crt\",\"items\":[{\"key\":\"ca.crt\","
    "\"path\""
    ":\"ca.crt\"}]}},{\"downwardAPI\":{\"items\":[{\"path\":\"namespace\",\"fieldRef\":{"
    "\"apiVersion\":\"v1\",\"fieldPath\":\"metadata.namespace\"}}]}}]}}],";
static const char more_status[] =
    "\"hostIP\":\"10.1.4.17\",\"podIP\":\"10.244.12.9\",\"podIPs\":[{\"ip\":\"10.244.12.9\"}],"
    "\"qosClass\":\"Burstable\",\"startTime\":\"2026-05-01T10:00:02Z\",\"containerStatuses\":[{"
    "\"name\":\"main\",\"state\":{\"running\":{\"startedAt\":\"2026-05-01T10:00:06Z\"}},"
    "\"lastState\":{},\"ready\":true,\"restartCount\":0,\"started\":true,\"image\":"
    "\"registry.example.com/team/train:1.4\",\"imageID\":\"registry.example.com/team/train@sha256:"
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\",\"containerID\":"
    "\"containerd://2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\"}],";

/* The text that is sent; the next one takes its place. */
static struct {
    char *bytes;
    size_t size_bytes, max_bytes;
} sent;

static void send_text(const char *text, size_t size_bytes)
{
    if (sent.max_bytes - sent.size_bytes < size_bytes) {
        sent.max_bytes = 2 * (sent.size_bytes + size_bytes);
        sent.bytes = realloc(sent.bytes, sent.max_bytes);
        if (sent.bytes == NULL) {
            exit(1);
        }
    }
    memcpy(sent.bytes + sent.size_bytes, text, size_bytes);
    sent.size_bytes += size_bytes;
}

/* The text up to `behind`, and more. */
static const char *send_more(const char *text, const char *behind, const char *more)
{
    const char *at = strstr(text, behind);
    if (at == NULL) {
        return text;
    }
    at += strlen(behind);
    send_text(text, (size_t)(at - text));
    send_text(more, strlen(more));
    return at;
}

/* A line of the file as a server would send it. */
static void send_line(const char *line)
{
    sent.size_bytes = 0;
    if (strstr(line, "\"kind\":\"Pod\"") != NULL) {
        line = send_more(line, "\"metadata\":{", more_metadata);
        line = send_more(line, "\"spec\":{", more_spec);
        line = send_more(line, "\"status\":{", more_status);
    }
    send_text(line, strlen(line));
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static size_t resource_of(const json_t *object)
{
    return gr_operator_resource_find(gr_object_text(object, "apiVersion"),
                                     gr_object_text(object, "kind"));
}

static void see(gr_controller *c, const json_t *object, bool is_listed)
{
    if (gr_controller_seen(c, resource_of(object), object, is_listed) != GR_OK) {
        exit(1);
    }
}

/* A line: the resource and the object. */
static void keep(FILE *file, const json_t *object)
{
    if (file != NULL) {
        fprintf(file, "%zu ", resource_of(object));
        json_dumpf(object, file, JSON_COMPACT);
        fputc('\n', file);
    }
}

/* The pod that the controller of batch Jobs makes. */
static json_t *pod_of(const json_t *job)
{
    char name[64], uid[48], version[24];
    const char *job_name = gr_object_text(job, "metadata.name");
    snprintf(name, sizeof name, "%s-x7v2k", job_name);
    snprintf(version, sizeof version, "%ld", ++answered);
    snprintf(uid, sizeof uid, "%08lx-77ab-4b0e-8c2d-%012lx", answered * 2654435761L % 0xffffffffL,
             answered * 40503L);
    return json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:s, s:s, s:s, s:O, s:[{s:s, s:s, s:s, s:O, s:b, s:b}]}, s:O,"
        " s:{s:s, s:[{s:s, s:s}]}}",
        "apiVersion", "v1", "kind", "Pod", "metadata", "name", name, "namespace", "lab", "uid", uid,
        "resourceVersion", version, "creationTimestamp", "2026-05-01T10:00:00Z", "labels",
        gr_object_at(job, "spec.template.metadata.labels"), "ownerReferences", "apiVersion",
        "batch/v1", "kind", "Job", "name", job_name, "uid", gr_object_at(job, "metadata.uid"),
        "controller", 1, "blockOwnerDeletion", 1, "spec", gr_object_at(job, "spec.template.spec"),
        "status", "phase", "Running", "conditions", "type", "Ready", "status", "True");
}

/* Looks and writes until nothing is left; the time of each look. Written objects go to `file`. */
static long run(gr_controller *c, FILE *file, int64_t *looks_ns, long looks_max)
{
    gr_diag diag = {0};
    long looks = 0;
    for (;;) {
        gr_controller_time now = {gr_now_ns() / 1000, 1777629600};
        gr_controller_action action;
        int64_t begin_ns = cpu_ns();
        if (gr_controller_next(c, &now, &action, &diag) != GR_OK) {
            fprintf(stderr, "bench_operator: %s\n", diag.text);
            exit(1);
        }
        if (action.verb == NULL) {
            if (action.wake_us > now.monotonic_us) {
                return looks;
            }
            looks_ns[looks < looks_max ? looks++ : 0] = cpu_ns() - begin_ns;
        } else if (action.job != NULL) {
            json_t *object = answer_to(&action);
            keep(file, object);
            gr_status status =
                gr_controller_answer(c, action.job, action.write, &now, GR_API_OK, object);
            if (status != GR_OK) {
                exit(1);
            }
            if (gr_object_is(object, "batch/v1", "Job")) {
                json_t *pod = pod_of(object);
                see(c, pod, false);
                keep(file, pod);
                json_decref(pod);
            }
            json_decref(object);
        }
    }
}

static gr_controller *start(const gr_controller_config *config)
{
    gr_controller *c = NULL;
    gr_diag diag = {0};
    if (gr_controller_create(config, &c, &diag) != GR_OK) {
        fprintf(stderr, "bench_operator: %s\n", diag.text);
        exit(1);
    }
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        gr_controller_begin_list(c, r);
    }
    gr_controller_lead(c, true);
    return c;
}

static void end_lists(gr_controller *c)
{
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        if (gr_controller_end_list(c, r, NULL) != GR_OK) {
            exit(1);
        }
    }
}

/* Shows the controller what was written; returns the time without that of making the texts. */
static double show(gr_controller *c, FILE *written, bool is_whole, double *size_bytes_out)
{
    char *line = NULL;
    size_t line_bytes = 0;
    double time_ns = 0;
    while (getline(&line, &line_bytes, written) > 0) {
        size_t resource = strtoul(line, NULL, 10);
        send_line(strchr(line, ' ') + 1);
        *size_bytes_out += (double)sent.size_bytes;
        int64_t begin_ns = cpu_ns();
        if (!is_whole) {
            sent.size_bytes = gr_operator_resource_cut(&gr_operator_resources[resource], sent.bytes,
                                                       sent.size_bytes);
        }
        json_t *object = json_loadb(sent.bytes, sent.size_bytes, 0, NULL);
        if (object == NULL || gr_controller_seen(c, resource, object, true) != GR_OK) {
            exit(1);
        }
        json_decref(object);
        time_ns += (double)(cpu_ns() - begin_ns);
    }
    free(sent.bytes);
    free(line);
    return time_ns;
}

int main(int argc, char **argv)
{
    int jobs = argc > 1 ? atoi(argv[1]) : 10000, workers = argc > 2 ? atoi(argv[2]) : 9;
    const struct bench_kind *kind = bench_kinds;
    while (argc > 3 && strcmp(kind->kind, argv[3]) != 0) {
        if (++kind == bench_kinds + sizeof bench_kinds / sizeof bench_kinds[0]) {
            fprintf(stderr, "bench_operator: there is no kind %s\n", argv[3]);
            return 2;
        }
    }
    long looks_max = (long)jobs * 8 + 8;
    int64_t *looks_ns = calloc((size_t)looks_max, sizeof *looks_ns);
    gr_controller_config config = {.kinds = gr_operator_kinds,
                                   .cluster_domain = "",
                                   .gang_scheduler = "",
                                   .ssh_key = given_key,
                                   .jobs_at_once = 16};
    FILE *written = tmpfile();
    if (written == NULL || looks_ns == NULL) {
        fprintf(stderr, "bench_operator: no temporary file or no memory\n");
        return 1;
    }
    gr_controller *c = start(&config);
    int64_t begin_ns = cpu_ns();
    for (int i = 0; i < jobs; i++) {
        json_t *job = make_job(kind, i, workers);
        see(c, job, true);
        json_decref(job);
    }
    end_lists(c);
    long looks = run(c, written, looks_ns, looks_max);
    printf("%d %ss of %d workers: %ld writes, %ld looks in %.2f s\n", jobs, kind->kind, workers,
           answered, looks, (double)(cpu_ns() - begin_ns) / 1e9);
    qsort(looks_ns, (size_t)looks, sizeof *looks_ns, by_size);
    printf("look: p50 %.3f ms, p99 %.3f ms, longest %.3f ms\n", (double)looks_ns[looks / 2] / 1e6,
           (double)looks_ns[looks * 99 / 100] / 1e6, (double)looks_ns[looks - 1] / 1e6);
    gr_controller_destroy(c);
    malloc_trim(0);
    long before_kib = resident_kib();
    rewind(written);
    double size_bytes = 0;
    c = start(&config);
    double list_ns = show(c, written, getenv("GRADUS_BENCH_WHOLE") != NULL, &size_bytes);
    begin_ns = cpu_ns();
    end_lists(c);
    looks = run(c, NULL, looks_ns, looks_max);
    double look_ns = (double)(cpu_ns() - begin_ns);
    printf("restart: %.2f s, %.2f s of them for lists of %.0f MB, %.2f s for %ld looks\n",
           (list_ns + look_ns) / 1e9, list_ns / 1e9, size_bytes / 1e6, look_ns / 1e9, looks);
    malloc_trim(0);
    printf("memory: %.1f MiB resident, %.1f MiB of them before the lists\n",
           (double)resident_kib() / 1024, (double)before_kib / 1024);
    gr_controller_destroy(c);
    fclose(written);
    free(looks_ns);
    return 0;
}
