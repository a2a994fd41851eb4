/* SPDX-License-Identifier: Apache-2.0 */

/* What the operator's loop takes for many jobs: time of a look, time until it is in step after a
 * restart, memory. Its writes are answered at once, and pods run at once; what was written is what
 * the restarted loop finds.
 *
 *     bench_operator [JOBS [WORKERS]]      10000 jobs of 9 workers: 100,000 pods with launchers */

#include "base/clock.h"
#include "operator/controller.h"
#include "operator/object.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static json_t *make_job(int number, int workers)
{
    char name[32], uid[48];
    snprintf(name, sizeof name, "train-%d", number);
    snprintf(uid, sizeof uid, "%08x-5bd1-4e1c-9a3f-%012x", (unsigned)number * 2654435761U,
             (unsigned)number * 40503U);
    json_t *container =
        json_pack("{s:[{s:s, s:s, s:[s, s, s], s:{s:{s:s, s:s}}}]}", "containers", "name", "main",
                  "image", "registry.example.com/team/train:1.4", "args", "python3", "train.py",
                  "--epochs=10", "resources", "requests", "cpu", "4", "memory", "8Gi");
    json_t *job =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:s, s:s}, s:{s:{s:{s:{s:O}}, s:{s:i, s:{s:O}}}}}",
                  "apiVersion", "kubeflow.org/v2beta1", "kind", "MPIJob", "metadata", "name", name,
                  "namespace", "lab", "uid", uid, "creationTimestamp", "2026-05-01T10:00:00Z",
                  "spec", "mpiReplicaSpecs", "Launcher", "template", "spec", container, "Worker",
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

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Looks and writes until nothing is left; the time of each look. Written objects go to `file`. */
static long run(gr_controller *c, FILE *file, int64_t *looks_ns, long looks_max)
{
    gr_diag diag = {0};
    long looks = 0;
    for (;;) {
        gr_controller_time now = {gr_now_ns() / 1000, 1777629600};
        gr_controller_action action;
        int64_t begin_ns = gr_now_ns();
        if (gr_controller_next(c, &now, &action, &diag) != GR_OK) {
            fprintf(stderr, "bench_operator: %s\n", diag.text);
            exit(1);
        }
        if (action.verb == NULL) {
            if (action.wake_us > now.monotonic_us) {
                return looks;
            }
            looks_ns[looks < looks_max ? looks++ : 0] = gr_now_ns() - begin_ns;
        } else if (action.job != NULL) {
            json_t *object = answer_to(&action);
            if (file != NULL) {
                json_dumpf(object, file, JSON_COMPACT);
                fputc('\n', file);
            }
            gr_status status = gr_controller_answer(c, action.job, &now, GR_API_OK, object);
            json_decref(object);
            if (status != GR_OK) {
                exit(1);
            }
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

static void see(gr_controller *c, const json_t *object)
{
    size_t resource = gr_operator_resource_find(gr_object_text(object, "apiVersion"),
                                                gr_object_text(object, "kind"));
    if (gr_controller_seen(c, resource, object, true) != GR_OK) {
        exit(1);
    }
}

static void end_lists(gr_controller *c)
{
    for (size_t r = 0; r < gr_operator_resource_count; r++) {
        if (gr_controller_end_list(c, r, NULL) != GR_OK) {
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    int jobs = argc > 1 ? atoi(argv[1]) : 10000, workers = argc > 2 ? atoi(argv[2]) : 9;
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
    int64_t begin_ns = gr_now_ns();
    for (int i = 0; i < jobs; i++) {
        json_t *job = make_job(i, workers);
        see(c, job);
        json_decref(job);
    }
    end_lists(c);
    long looks = run(c, written, looks_ns, looks_max);
    printf("%d jobs of %d workers: %ld writes, %ld looks in %.2f s\n", jobs, workers, answered,
           looks, (double)(gr_now_ns() - begin_ns) / 1e9);
    qsort(looks_ns, (size_t)looks, sizeof *looks_ns, by_size);
    printf("look: p50 %.3f ms, p99 %.3f ms, longest %.3f ms\n", (double)looks_ns[looks / 2] / 1e6,
           (double)looks_ns[looks * 99 / 100] / 1e6, (double)looks_ns[looks - 1] / 1e6);
    gr_controller_destroy(c);
    malloc_trim(0);
    long before_kib = resident_kib();
    rewind(written);
    json_t *object;
    double loop_ns = 0; /* without the parsing of what a server would send */
    begin_ns = gr_now_ns();
    c = start(&config);
    while ((object = json_loadf(written, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        int64_t seen_ns = gr_now_ns();
        see(c, object);
        loop_ns += (double)(gr_now_ns() - seen_ns);
        json_decref(object);
    }
    end_lists(c);
    int64_t listed_ns = gr_now_ns();
    looks = run(c, NULL, looks_ns, looks_max);
    printf("restart: %.2f s for the lists (%.2f s of them the cache), %.2f s for %ld looks\n",
           (double)(listed_ns - begin_ns) / 1e9, loop_ns / 1e9,
           (double)(gr_now_ns() - listed_ns) / 1e9, looks);
    malloc_trim(0);
    printf("memory: %.1f MiB resident, %.1f MiB of them before the lists\n",
           (double)resident_kib() / 1024, (double)before_kib / 1024);
    gr_controller_destroy(c);
    fclose(written);
    free(looks_ns);
    return 0;
}
