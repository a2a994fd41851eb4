/* SPDX-License-Identifier: Apache-2.0 */

/* What a checkpoint compares with the job that goes on from it: the manifests that stand in
 * golden/fingerprint.json stay those of their jobs, and a job that is another one is told apart. */

#include "support_train.h"

#include "base/file.h"
#include "train/checkpoint/checkpoint_fingerprint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN GR_TEST_SOURCE_DIR "/tests/train/golden/fingerprint.json"
#define EXAMPLES GR_TEST_SOURCE_DIR "/examples/digits/"
#define MODEL "model: [linear: 3, dropout: .50, linear: 2]\nepochs: 2\nglobal_batch: 2\n"

enum { PATH_BYTES = 2 * SUPPORT_PATH_BYTES };

static const struct {
    const char *name;
    const char *path; /* NULL: `text` in the folder */
    const char *text;
    int compared; /* keys of its manifest */
} jobs[] = {
    {"cnn", EXAMPLES "cnn.yaml", NULL, 47},
    {"mlp", EXAMPLES "mlp.yaml", NULL, 41},
    {"named columns", NULL,
     "data: {file: named.csv, test_file: named.csv, header: yes, delimiter: ';', label_column: "
     "kind, class_names: [small, large], categories: {colour: [red, green]}, skip: [id]}\n" MODEL
     "optimizer: {kind: adam, beta1: 0.8}\n",
     40},
    {"idx", NULL,
     "data: {format: idx, images: images, labels: labels, test_images: images, test_labels: "
     "labels, scale: 0.5}\nmodel: [flatten, linear: 2]\nepochs: 2\nglobal_batch: 2\n"
     "optimizer: {schedule: step, step_epochs: 1}\n",
     36},
    {"local", NULL,
     "data: {file: plain.csv, split: random, test_count: 2}\n" MODEL
     "distribution: {strategy: local, sync_every: epoch, local_state: keep, shards: 2, outer: "
     "{momentum: 0.6}}\noptimizer: {schedule: cosine, final_factor: 0.1, clip_norm: 2}\n",
     40},
    {"topk", NULL,
     "data: {file: plain.csv, regression: true}\nloss: mse\nmodel: [linear: 1]\nsteps: 3\n"
     "global_batch: 2\nmicro_batches: 2\nseed: 5\n"
     "distribution: {compression: topk, compression_ratio: 0.1, bucket_bytes: 8k, shards: 1, "
     "exact: no, worker_threads: 2}\n",
     35},
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

static char folder[SUPPORT_PATH_BYTES];

static void put(const char *name, const void *bytes, size_t size)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    static const char named[] = "id;size;colour;kind;age\n"
                                "1;0.5;red;small;2\n2;1.5;green;large;1\n3;2;red;large;4\n"
                                "4;3;red;small;6\n";
    static const char plain[] = "0.5,1,0\n0.25,2,1\n0.125,3,0\n4,5,1\n6,7,0\n8,9,1\n";
    static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 2,
                                     1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2};
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 1, 0};
    (void)state;
    support_folder(folder);
    put("named.csv", named, sizeof named - 1);
    put("fewer.csv", named, strlen(named) - strlen("4;3;red;small;6\n"));
    put("plain.csv", plain, sizeof plain - 1);
    put("images", images, sizeof images);
    put("labels", labels, sizeof labels);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    support_clean(folder);
    return 0;
}

/* Job `index` with `set` (NULL: nothing) over its file. */
static gr_job *open_job(int index, const char *const *set, gr_arena *arena,
                        gr_fingerprint *fingerprint_out)
{
    gr_job *job = NULL;
    gr_diag diag = {0};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    if (jobs[index].text != NULL) {
        put("job.yaml", jobs[index].text, strlen(jobs[index].text));
    }
    gr_job_overrides overrides = {.run = {.workers = 1}, .output = folder, .set = set};
    if (gr_job_open(jobs[index].path != NULL ? jobs[index].path : path, &overrides, &job, &diag) !=
            GR_OK ||
        gr_fingerprint_of_job(job, arena, fingerprint_out, &diag) != GR_OK) {
        fail_msg("%s: %s", jobs[index].name, diag.text);
    }
    return job;
}

static json_t *golden_of(int index)
{
    json_t *all = json_load_file(GOLDEN, 0, NULL);
    json_t *one = json_incref(json_object_get(all, jobs[index].name));
    assert_non_null(one);
    json_decref(all);
    return one;
}

/* The fingerprint of a manifest; the value of key `changed` (NULL: of none) is another one. */
static gr_fingerprint fingerprint_of(json_t *manifest, const char *changed, gr_arena *arena)
{
    gr_fingerprint fingerprint = {
        .list = gr_arena_alloc(arena, json_object_size(manifest) * sizeof(gr_fingerprint_entry))};
    const char *key;
    json_t *value;
    json_object_foreach(manifest, key, value)
    {
        bool other = changed != NULL && strcmp(key, changed) == 0;
        fingerprint.list[fingerprint.count++] =
            (gr_fingerprint_entry){key, other ? "other" : json_string_value(value)};
    }
    return fingerprint;
}

static void manifest_of_an_earlier_version_is_of_the_same_job(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        gr_arena arena;
        gr_arena_init(&arena, 1 << 20);
        gr_fingerprint now;
        gr_diag diag = {0};
        gr_job *job = open_job(i, NULL, &arena, &now);
        json_t *manifest = golden_of(i);
        gr_fingerprint saved = fingerprint_of(manifest, NULL, &arena);
        if (gr_fingerprint_compare(&saved, &now, "golden", jobs[i].name, &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
        json_decref(manifest);
        gr_job_close(job);
        gr_arena_fini(&arena);
    }
}

static bool means_nothing(const gr_fingerprint *fingerprint, const char *key)
{
    for (int i = 0; i < fingerprint->count; i++) {
        if (strcmp(fingerprint->list[i].key, key) == 0) {
            return fingerprint->list[i].value == NULL;
        }
    }
    return false;
}

/* Another value of any key is not taken for the same, but for the settings of other readers,
 * optimizers and schedules, which earlier versions wrote as well. */
static void manifest_with_another_value_is_of_another_job(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        gr_arena arena;
        gr_arena_init(&arena, 1 << 20);
        gr_fingerprint now;
        gr_job *job = open_job(i, NULL, &arena, &now);
        json_t *manifest = golden_of(i);
        int compared = 0;
        const char *key;
        json_t *value;
        json_object_foreach(manifest, key, value)
        {
            gr_diag diag = {0};
            gr_fingerprint saved = fingerprint_of(manifest, key, &arena);
            bool same = means_nothing(&now, key);
            assert_int_equal(gr_fingerprint_compare(&saved, &now, "golden", "job", &diag),
                             same ? GR_OK : GR_E_INVALID);
            assert_true(same || strstr(diag.text, key) != NULL);
            compared += !same;
        }
        assert_int_equal(compared, jobs[i].compared);
        json_decref(manifest);
        gr_job_close(job);
        gr_arena_fini(&arena);
    }
}

static void job_with_another_result_is_told_apart(void **state)
{
    (void)state;
    static const struct {
        int job;
        const char *set, *key; /* NULL: it is the same job */
    } cases[] = {
        {2, "data.categories={colour: [green, red]}", "data.categories"},
        {2, "data.class_names=[large, small]", "data.class_names"},
        {2, "data.skip=[age]", "data.skip"},
        {2, "optimizer.beta1=0.7", "optimizer.beta1"},
        {2, "optimizer.kind=adamw", "optimizer.kind"},
        {2, "data.test_file=fewer.csv", "data.test_file"},
        {3, "optimizer.step_factor=0.25", "optimizer.step_factor"},
        {4, "distribution.sync_every=1 step", "distribution.sync_every"},
        {4, "distribution.local_state=average", "distribution.local_state"},
        {4, "distribution.outer.nesterov=yes", "outer.nesterov"},
        {5, "distribution.compression_ratio=0.2", "distribution.compression_ratio"},
        {5, "distribution.bucket_bytes=4k", "distribution.bucket_bytes"},
        {5, "distribution.compression=f16", "distribution.compression"},
        {0, "distribution.bucket_bytes=4k", NULL},
        {0, "distribution.link=tcp", NULL},
        {0, "distribution.shards=16", "distribution.shards"},
        {0, "epochs=3", NULL},
        {0, "eval_every=1", NULL},
        {0, "seed=8", "seed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_arena arena;
        gr_arena_init(&arena, 1 << 20);
        gr_fingerprint saved, now;
        gr_diag diag = {0};
        const char *set[] = {cases[i].set, NULL};
        gr_job *job = open_job(cases[i].job, NULL, &arena, &saved);
        gr_job *other = open_job(cases[i].job, set, &arena, &now);
        gr_status status = gr_fingerprint_compare(&saved, &now, "saved", "job", &diag);
        assert_int_equal(status, cases[i].key == NULL ? GR_OK : GR_E_INVALID);
        if (cases[i].key != NULL && strstr(diag.text, cases[i].key) == NULL) {
            fail_msg("%s: %s", cases[i].set, diag.text);
        }
        gr_job_close(job);
        gr_job_close(other);
        gr_arena_fini(&arena);
    }
}

/* Of a list with tens of thousands of texts. */
static void long_list_is_told_whole(void **state)
{
    (void)state;
    enum { TEXTS = 20000, TEXT_BYTES = 16 * TEXTS };
    char *text = malloc(TEXT_BYTES), path[PATH_BYTES];
    assert_non_null(text);
    size_t used =
        (size_t)snprintf(text, TEXT_BYTES, "data: {file: long.csv, header: yes, categories: {1: [");
    for (int i = 0; i < TEXTS; i++) {
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%sc%05d", i > 0 ? ", " : "", i);
    }
    used += (size_t)snprintf(text + used, TEXT_BYTES - used,
                             "]}}\nmodel: [linear: 2]\nepochs: 2\nglobal_batch: 2\n");
    put("long.csv", "code,kind\nc00000,0\nc19999,1\n", strlen("code,kind\nc00000,0\nc19999,1\n"));
    put("long.yaml", text, used);
    gr_job *job = NULL;
    gr_arena arena;
    gr_fingerprint now;
    gr_diag diag = {0};
    gr_arena_init(&arena, 8 << 20);
    gr_job_overrides overrides = {.run = {.workers = 1}, .output = folder};
    snprintf(path, sizeof path, "%s/long.yaml", folder);
    if (gr_job_open(path, &overrides, &job, &diag) != GR_OK ||
        gr_fingerprint_of_job(job, &arena, &now, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    const char *value = NULL;
    for (int i = 0; i < now.count; i++) {
        value = strcmp(now.list[i].key, "data.categories") == 0 ? now.list[i].value : value;
    }
    assert_non_null(value);
    assert_int_equal(strncmp(value, "{1: [c00000, c00001, ", 21), 0);
    assert_int_equal(strlen(value), strlen("{1: []}") + 8 * TEXTS - 2);
    assert_string_equal(value + strlen(value) - 16, "c19998, c19999]}");
    gr_job_close(job);
    gr_arena_fini(&arena);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifest_of_an_earlier_version_is_of_the_same_job),
        cmocka_unit_test(manifest_with_another_value_is_of_another_job),
        cmocka_unit_test(job_with_another_result_is_told_apart),
        cmocka_unit_test(long_list_is_told_whole)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
