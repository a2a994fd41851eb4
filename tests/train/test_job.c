/* SPDX-License-Identifier: Apache-2.0 */

/* Job files: what is made of them, and the sentence for each that is wrong. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fail.h"
#include "train/job/job.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXAMPLES GR_TEST_SOURCE_DIR "/examples/digits/"

enum { SAMPLES = 100, TEXT_BYTES = 4096, PATH_BYTES = 512 };

/* A folder with data.csv (100 samples of 4 values, 3 classes) as current folder. */
static int folder_make(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/gradus-test-??????", base != NULL ? base : "/tmp");
    memset(path + strlen(path) - 6, 'X', 6);
    if (mkdtemp(path) == NULL || chdir(path) != 0) {
        return -1;
    }
    *state = strdup(path);
    FILE *file = fopen("data.csv", "w");
    if (file == NULL) {
        return -1;
    }
    for (int i = 0; i < SAMPLES; i++) {
        fprintf(file, "%d,%d,1,0.5,%d\n", i, i * 7 % 11, i % 3);
    }
    return fclose(file);
}

static int folder_drop(void **state)
{
    DIR *dir = opendir(*state);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        unlink(entry->d_name);
    }
    closedir(dir);
    int result = chdir("/") == 0 ? rmdir(*state) : -1;
    free(*state);
    return result;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

static const char sound[] = "data: {file: data.csv, test_count: 20}\n"           /* 1 */
                            "model: [linear: 8, relu, linear: 3]\n"              /* 2 */
                            "optimizer: {kind: sgd, learning_rate: 0.1}\n"       /* 3 */
                            "global_batch: 16\n"                                 /* 4 */
                            "epochs: 3\n"                                        /* 5 */
                            "distribution: {shards: 4, number_of_workers: 2}\n"; /* 6 */

/* `sound` with `from` replaced by `to` (NULL: as it is). */
static void put_job(const char *from, const char *to)
{
    char text[TEXT_BYTES];
    const char *at = from != NULL ? strstr(sound, from) : NULL;
    assert_true(from == NULL || at != NULL);
    if (at == NULL) {
        snprintf(text, sizeof text, "%s", sound);
    } else {
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sound), sound, to, at + strlen(from));
    }
    put("job.yaml", text);
}

/* `sound` with another batch and nothing of the distribution. */
static void put_batch(int global_batch)
{
    char text[64];
    snprintf(text, sizeof text, "global_batch: %d\nepochs: 3\n", global_batch);
    put_job("global_batch: 16\n"
            "epochs: 3\n"
            "distribution: {shards: 4, number_of_workers: 2}\n",
            text);
}

static gr_job *open_path(const char *path, gr_job_overrides overrides)
{
    gr_job *job = NULL;
    gr_diag diag;
    gr_diag_clear(&diag);
    if (gr_job_open(path, &overrides, &job, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return job;
}

static void must_fail(gr_job_overrides overrides, gr_status status, const char *text)
{
    gr_job *job = NULL;
    gr_diag diag;
    gr_diag_clear(&diag);
    gr_status got = gr_job_open("job.yaml", &overrides, &job, &diag);
    if (got != status || strstr(diag.text, text) == NULL) {
        fail_msg("expected: %s %s\nis: %s %s", gr_status_name(status), text, gr_status_name(got),
                 diag.text);
    }
    assert_null(job);
}

static void test_sound(void **state)
{
    (void)state;
    put_job(NULL, NULL);
    gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->workers, 2);
    assert_int_equal(job->shards, 4);
    assert_int_equal(job->shard_batch, 4);
    assert_int_equal(job->micro_batch, 4);
    assert_int_equal(job->steps_per_epoch, 5);
    assert_int_equal(job->total_steps, 15);
    assert_string_equal(job->config.name, "job");
    assert_string_equal(job->config.output, "out/job");
    assert_int_equal(job->distribution.exact, true);
    assert_int_equal(job->distribution.overlap, true);
    assert_int_equal(gr_dataset_classes(job->dataset), 3);
    struct stat info;
    assert_int_not_equal(stat("out", &info), 0); /* checked, not created */
    gr_job_close(job);
    gr_job_close(NULL);
}

/* -np goes over the file, the file over the cores, of which no more are used than there are
 * shards. */
static void test_workers(void **state)
{
    (void)state;
    put_job("shards: 4, number_of_workers: 2", "worker_threads: 1");
    gr_job *job = open_path("job.yaml", (gr_job_overrides){.run = {.default_workers = 3}});
    assert_int_equal(job->workers, 3);
    gr_job_close(job);
    job = open_path("job.yaml", (gr_job_overrides){.run = {.default_workers = 64}});
    assert_int_equal(job->workers, 8);
    gr_job_close(job);
    job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->workers, 1);
    gr_job_close(job);
    put_job("shards: 4, number_of_workers: 2", "number_of_workers: 5");
    job = open_path("job.yaml", (gr_job_overrides){.run = {.default_workers = 1, .workers = 2}});
    assert_int_equal(job->workers, 2);
    gr_job_close(job);
}

static void shards_by_default_follow_from_the_batch_alone(void **state)
{
    (void)state;
    static const struct {
        int batch, shards;
    } cases[] = {{16, 8}, {4, 4}, {6, 2}, {12, 4}, {15, 1}, {40, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_batch(cases[i].batch);
        for (int workers = 0; workers <= cases[i].shards; workers++) {
            gr_job *job = open_path("job.yaml", (gr_job_overrides){.run = {.workers = workers}});
            assert_int_equal(job->shards, cases[i].shards);
            gr_job_close(job);
        }
        must_fail((gr_job_overrides){.run = {.workers = cases[i].shards + 1}}, GR_E_INVALID,
                  "set shards: ");
    }
}

static void test_steps_and_micro_batches(void **state)
{
    (void)state;
    put_job("epochs: 3", "steps: 7\nmicro_batches: 2\nname: n\noutput: elsewhere");
    gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->total_steps, 7);
    assert_int_equal(job->micro_batch, 2);
    assert_string_equal(job->config.output, "elsewhere");
    gr_job_close(job);
    job = open_path("job.yaml", (gr_job_overrides){.output = "third"});
    assert_string_equal(job->config.output, "third");
    gr_job_close(job);
    put_job("epochs: 3", "epochs: 0.01");
    job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->total_steps, 1);
    gr_job_close(job);
}

static void test_local(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t steps;
    } cases[] = {{"3", 3}, {"1 step", 1}, {"2 steps", 2}, {"epoch", 5}, {"0.6 epochs", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "{strategy: local, sync_every: %s, shards", cases[i].text);
        put_job("{shards", text);
        gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
        assert_int_equal(job->sync_steps, cases[i].steps);
        assert_false(job->outer.wanted);
        gr_job_close(job);
    }
    put_job("{shards", "{strategy: local, sync_every: 2, outer: {nesterov: yes}, shards");
    gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
    assert_true(job->outer.wanted && job->outer.nesterov);
    assert_true(job->outer.learning_rate == 1.0);
    gr_job_close(job);
    put_job(NULL, NULL);
    job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->sync_steps, 0);
    gr_job_close(job);
}

/* Each worker of those takes a shard's samples for itself. */
static void free_workers_need_samples_each(void **state)
{
    (void)state;
    static const char *const ways[] = {"consistency: async", "consistency: ssp, staleness: 2",
                                       "replicas_to_aggregate: 4"};
    const gr_job_overrides twenty = {.run = {.workers = 20}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char text[128];
        snprintf(text, sizeof text, "{strategy: ps, %s, shards", ways[i]);
        put_job("{shards", text);
        gr_job_close(open_path("job.yaml", twenty));
        must_fail((gr_job_overrides){.run = {.workers = 21}}, GR_E_INVALID,
                  "job.yaml:6: distribution.strategy: 21 workers take 4 samples each (of a shard), "
                  "more than the 80 training samples; start at most 20, or set a smaller "
                  "global_batch");
        must_fail((gr_job_overrides){.run = {.workers = 4, .workers_max = 32}}, GR_E_INVALID,
                  "up to 32 workers take 4 samples each");
        gr_job_close(open_path("job.yaml",
                               (gr_job_overrides){.trains_nothing = true, .run = {.workers = 21}}));
    }
}

/* Weights are evaluated by one worker, however many a step of the job needs. */
static void job_that_is_only_evaluated_needs_no_workers(void **state)
{
    (void)state;
    put_job("{shards", "{strategy: ps, replicas_to_aggregate: 4, shards");
    must_fail((gr_job_overrides){.run = {.workers = 1}}, GR_E_INVALID,
              "a step needs the gradients of 4 workers, but there are 1");
    gr_job_close(
        open_path("job.yaml", (gr_job_overrides){.trains_nothing = true, .run = {.workers = 1}}));
}

static void test_link(void **state)
{
    (void)state;
    put_job("{shards: 4", "{link: tcp, shards: 4");
    unsetenv("GRADUS_LINK");
    gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->distribution.link, 2);
    gr_job_close(job);
    setenv("GRADUS_LINK", "shm", 1);
    job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->distribution.link, 1);
    gr_job_close(job);
    job = open_path("job.yaml", (gr_job_overrides){.link = "auto"});
    assert_int_equal(job->distribution.link, 0);
    gr_job_close(job);
    must_fail((gr_job_overrides){.link = "radio"}, GR_E_INVALID,
              "--link: must be auto, shm or tcp, not \"radio\"");
    setenv("GRADUS_LINK", "tpc", 1);
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "GRADUS_LINK");
    unsetenv("GRADUS_LINK");
}

static void data_of_named_columns_is_opened(void **state)
{
    (void)state;
    put("named.csv", "id;hue;size;kind\n7;red;1.5;pear\n8;blue;2;apple\n9;red;3;pear\n");
    put("job.yaml", "data:\n"
                    "  file: named.csv\n"
                    "  header: true\n"
                    "  delimiter: \";\"\n"
                    "  label_column: kind\n"
                    "  class_names: [apple, pear, plum]\n"
                    "  categories: {hue: [red, green, blue]}\n"
                    "  skip: [id]\n"
                    "model: [linear: 3]\n"
                    "epochs: 1\n"
                    "global_batch: 2\n");
    gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
    float x[4];
    int32_t label;
    assert_int_equal(gr_dataset_classes(job->dataset), 3);
    assert_int_equal(gr_dataset_sample_values(job->dataset), 4);
    assert_int_equal(gr_dataset_read(job->dataset, GR_SPLIT_TRAIN, (const int64_t[]){1}, 1, x,
                                     &label, NULL, NULL),
                     GR_OK);
    assert_true(x[0] == 0 && x[1] == 0 && x[2] == 1 && x[3] == 2 && label == 0);
    gr_job_close(job);
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {"delimiter: \"::\"", "data.delimiter: must be one of"},
        {"class_names: apple", "data.class_names: must be a list"},
        {"class_names: [a, a]", "data.class_names: \"a\" stands twice"},
        {"class_names: [a, b]\n  classes: 3", "data.class_names: are 2 names, but classes says 3"},
        {"categories: [hue]", "data.categories: must say of each column"},
        {"label_column: kind",
         "data.label_column: must be first, last or a number of a column from "
         "1, not \"kind\"; a name needs header: true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "data:\n  file: named.csv\n  %s\nmodel: [linear: 3]\nepochs: 1\nglobal_batch: 2\n",
                 cases[i].line);
        put("job.yaml", text);
        must_fail((gr_job_overrides){0}, GR_E_INVALID, cases[i].sentence);
    }
}

/* What is advised works. */
static void labels_from_one_are_told_of_class_names(void **state)
{
    (void)state;
    static const char job_text[] = "data: {file: one.csv%s}\nmodel: [linear: 3]\nepochs: 1\n"
                                   "global_batch: 2\n";
    char text[256];
    put("one.csv", "0.5,1\n0.25,2\n0.125,3\n");
    snprintf(text, sizeof text, job_text, "");
    put("job.yaml", text);
    must_fail(
        (gr_job_overrides){0}, GR_E_INVALID,
        "the model ends with 3 values, but the data has 4 classes; end it with linear: 4, or, "
        "if the labels go from 1 to 3, list them in data: class_names: [1, 2, ...]");
    snprintf(text, sizeof text, job_text, ", classes: 3");
    put("job.yaml", text);
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "class_names: [1, 2, ...]");
    snprintf(text, sizeof text, job_text, ", class_names: [1, 2, 3]");
    put("job.yaml", text);
    gr_job *job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(gr_dataset_classes(job->dataset), 3);
    gr_job_close(job);
}

static void setting_of_another_kind_is_refused(void **state)
{
    (void)state;
    put_job("test_count: 20", "images: data.csv");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:1: data.images: csv has no such setting; its own are file, test_file, "
              "label_column, delimiter, class_names, categories, skip and header; remove the line, "
              "or take format: idx");
    put_job("kind: sgd,", "kind: adam, momentum: 0.9,");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:3: optimizer.momentum: adam has no such setting; its own are beta1, beta2 "
              "and epsilon; remove the line");
    put_job("kind: sgd,", "beta2: 0.9,");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:3: optimizer.beta2: sgd has no such setting");
    put_job("learning_rate", "lr");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:3: optimizer: unknown key \"lr\"; did you mean \"learning_rate\"?");
}

static void test_bad_settings(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *sentence;
    } cases[] = {
        {"epochs:", "epoch:", "job.yaml:5: unknown key \"epoch\"; did you mean \"epochs\"?"},
        {"shards: 4", "shard: 4", "job.yaml:6: distribution: unknown key \"shard\"; did you mean"},
        {"learning_rate", "learning_rat", "did you mean \"learning_rate\"?"},
        {"test_count: 20", "test_cuont: 20", "did you mean \"test_count\"?"},
        {"16", "many", "job.yaml:4: global_batch: must be a whole number"},
        {"16", "[16]", "job.yaml:4: global_batch: must be a single value"},
        {"16", "0", "job.yaml:4: global_batch: must be a whole number from 1"},
        {"16", "-16", "job.yaml:4: global_batch: must be a whole number from 1"},
        {"16", "1.5", "job.yaml:4: global_batch: must be a whole number"},
        {"shards: 4", "shards: 0",
         "job.yaml:6: distribution.shards: must be a whole number from 1"},
        {"workers: 2", "workers: -1",
         "distribution.number_of_workers: must be a whole number from 1"},
        {"epochs: 3", "epochs: 0", "job.yaml:5: epochs: must be a number from"},
        {"epochs: 3", "steps: 0", "job.yaml:5: steps: must be a whole number"},
        {"epochs: 3", "seed: 3", "how long to train; add epochs: N or steps: N"},
        {"epochs: 3", "epochs: 3\nsteps: 4", "job.yaml:6: steps: epochs says already how long"},
        {"16", "18",
         "job.yaml:4: global_batch: 18 samples cannot be cut into 4 equal shards; the "
         "nearest that fit are 16 and 20"},
        {"16", "3",
         "3 samples cannot be cut into 4 equal shards; the smallest batch that fits is 4"},
        {"16", "84",
         "job.yaml:4: global_batch: 84 samples are more than the 80 training samples; "
         "set it to at most 80"},
        {"test_count: 20", "test_count: 97",
         "job.yaml:4: global_batch: 16 samples are more than the 3 training samples, which are "
         "fewer than the 4 shards; set distribution.shards to at most 3, and this to a multiple"},
        {"epochs: 3", "epochs: 3\nmicro_batches: 3",
         "job.yaml:6: micro_batches: the 4 samples of a shard (16 / 4) cannot be cut into 3 equal "
         "pieces; the nearest that fit: 2 and 4"},
        {"epochs: 3", "epochs: 3\nmicro_batches: 9", "the nearest that fit: 4"},
        {"workers: 2", "workers: 5",
         "job.yaml:6: distribution.shards: 5 workers (number_of_workers) are more than the 4 "
         "shards "
         "of a global batch, so some would have nothing to do; start at most 4 workers or set "
         "shards: 8"},
        {"{shards", "{strategy: servers, shards",
         "job.yaml:6: distribution.strategy: must be allreduce"},
        {"{shards", "{strategy: local, shards",
         "job.yaml:6: distribution.strategy: strategy local needs to know how often the weights "
         "are "
         "averaged; add sync_every: 8 steps, or sync_every: epoch"},
        {"{shards", "{strategy: local, sync_every: 0, shards",
         "job.yaml:6: distribution.sync_every: \"0\" does not say how often the weights are "
         "averaged"},
        {"{shards", "{strategy: local, sync_every: often, shards",
         "give steps or an epoch, as in:"},
        {"{shards", "{strategy: local, sync_every: 3 min, shards", "does not say how often"},
        {"{shards", "{strategy: local, sync_every: -2, shards", "does not say how often"},
        {"{shards", "{strategy: local, sync_every: 6, shards",
         "\"6\" is more than the 5 steps of an epoch, at whose end weights are averaged in any "
         "case"},
        {"{shards", "{sync_every: 3, shards", "job.yaml:6: distribution.sync_every: "},
        {"{shards", "{outer: {}, shards", "job.yaml:6: distribution.outer: "},
        {"{shards", "{local_state: keep, shards",
         "distribution.local_state: local_state belongs to"},
        {"{shards", "{strategy: local, sync_every: 3, local_state: lose, shards",
         "distribution.local_state: must be average or keep"},
        {"{shards", "{strategy: local, sync_every: 3, compression: topk, shards",
         "job.yaml:6: distribution.compression: compression is for gradients"},
        {"{shards", "{strategy: local, sync_every: 3, outer: {momentun: 0.5}, shards",
         "unknown key \"momentun\"; did you mean \"momentum\"?"},
        {"{shards", "{strategy: local, sync_every: 3, outer: {momentum: 1}, shards",
         "momentum: must be a number from 0 to 0.999999"},
        {"epochs: 3", "epochs: 3\nloss: mse",
         "job.yaml:6: loss: mse predicts numbers, but the labels of the data are classes"},
        {"20}", "20, regression: true}", "set loss: mse"},
        {"model", "#", "the job has no model; add model: with the list of its layers"},
        {"data:", "#", "the job has no data; add data: with format and file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_job(cases[i].from, cases[i].to);
        must_fail((gr_job_overrides){0}, GR_E_INVALID, cases[i].sentence);
    }
    put_job(NULL, NULL);
    must_fail((gr_job_overrides){.run = {.workers = 6}}, GR_E_INVALID,
              "6 workers (-np) are more than the 4");
    must_fail((gr_job_overrides){.run = {.workers = 5000}}, GR_E_INVALID, "a job has at most 4096");
    put_job("{shards", "{distribution_type: MPI, shards");
    must_fail((gr_job_overrides){0}, GR_E_UNSUPPORTED,
              "job.yaml:6: distribution.distribution_type: "
              "MPI jobs belong to Kubernetes");
    put_job("{shards", "{distribution_type: TF, shards");
    must_fail((gr_job_overrides){0}, GR_E_UNSUPPORTED, "TF jobs belong to Kubernetes");
    put_job("{shards", "{distribution_type: Job, shards");
    gr_job_close(open_path("job.yaml", (gr_job_overrides){0}));
    put("job.yaml", "");
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "this one is empty");
    put("job.yaml", "a: [1");
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "job.yaml:");
    unlink("job.yaml");
    must_fail((gr_job_overrides){0}, GR_E_NOT_FOUND, "job.yaml");
}

static void test_bad_models(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *sentence;
    } cases[] = {
        {"relu", "relo", "job.yaml:2: "},
        {"relu", "relo", "relu"},
        {"linear: 3", "linear: 4",
         "the model ends with 4 values, but the data has 3 classes; end it with linear: 3, or say "
         "classes: 4 in data"},
        {"relu", "conv2d: {channels: 2, kernel: 3}", "job.yaml:2: "},
        {"20}", "20, shape: [1, 2, 2]}", "add flatten before it"},
        {"linear: 8, relu, linear: 3", "conv2d: {channels: 2, kernel: 1}", "job.yaml:2: "},
        {"linear: 8", "linear: -8", "job.yaml:2: "},
        {"linear: 8", "linear: much", "job.yaml:2: "},
        {"[linear: 8, relu, linear: 3]", "", "the job has no model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_job(cases[i].from, cases[i].to);
        must_fail((gr_job_overrides){0}, GR_E_INVALID, cases[i].sentence);
    }
    put("job.yaml", "data: {file: data.csv, shape: [1, 2, 2]}\n"
                    "model:\n  - conv2d: {channels: 3, kernel: 1}\n  - relu\nepochs: 1\n");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "the model ends with values of the shape 3x2x2; add flatten, or global_pool for "
              "images, and then linear: 3");
    put("job.yaml", "data: {file: data.csv, shape: [2, 2]}\n"
                    "model:\n  - global_pool\n  - linear: 3\nepochs: 1\n");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:3: model[0]: global_pool1 needs images (channels x height x width), but "
              "its input has the shape 2x2");
    put("job.yaml", "data: {file: data.csv, shape: [2, 1, 1, 2]}\n"
                    "model:\n  - conv2d: {channels: 2, kernel: 1}\n  - linear: 3\nepochs: 1\n");
    must_fail(
        (gr_job_overrides){0}, GR_E_INVALID,
        "conv1 needs images (channels x height x width), but its input has the shape 2x1x1x2");
    put("job.yaml", "data: {file: data.csv, regression: true}\nloss: mse\n"
                    "model: [linear: 3]\nepochs: 1\n");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "one number is to be predicted; end it with "
              "linear: 1");
}

static void test_bad_data(void **state)
{
    (void)state;
    put_job("data.csv", "none.csv");
    must_fail((gr_job_overrides){0}, GR_E_NOT_FOUND,
              "job.yaml:1: data.file: none.csv: there is no such file");
    put("bad.csv", "1,2,3,4,0\n1,2,x,4,1\n");
    put_job("data.csv", "bad.csv");
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "bad.csv:2: column 3: \"x\" is not a number");
    put("bad.csv", "1,2,3,4,0\n1,2,3,4,3\n");
    put_job("data.csv", "bad.csv, classes: 3");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "bad.csv:2: column 5: the label 3 is out of range");
    put_job("test_count: 20", "test_count: 100");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:1: data.test_count: 100 samples for the test leave none to train with");
    put_job("test_count: 20", "test_count: -1");
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "job.yaml:1: data.test_count: must be");
}

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int count = 0;
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

static void test_output(void **state)
{
    (void)state;
    put_job(NULL, NULL);
    int before = entries(".");
    static const char *const fine[] = {"a/b/c", ".", "./x/", "new"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        gr_job_close(open_path("job.yaml", (gr_job_overrides){.output = fine[i]}));
    }
    assert_int_equal(entries("."), before);
    must_fail((gr_job_overrides){.output = "data.csv"}, GR_E_INVALID,
              "the output folder data.csv cannot be written: it is a file, not a folder");
    must_fail((gr_job_overrides){.output = "data.csv/deep"}, GR_E_INVALID, "cannot be written");
    must_fail((gr_job_overrides){.output = "/proc/gradus"}, GR_E_INVALID,
              "the output folder /proc/gradus cannot be written: /proc: ");
    must_fail((gr_job_overrides){.output = ""}, GR_E_INVALID, "has 0 characters");
    put_job("epochs: 3", "epochs: 3\noutput: data.csv");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "job.yaml:6: output: the output folder data.csv cannot be written");
    assert_int_equal(entries("."), before);
}

static void test_checkpoint(void **state)
{
    (void)state;
    static const struct {
        const char *every;
        uint64_t steps;
        int64_t us;
    } fine[] = {{"100 steps", 100, 0},
                {"1 step", 1, 0},
                {"5 min", 0, 300000000},
                {"90s", 0, 90000000},
                {"2 h", 0, 7200000000}};
    put_job(NULL, NULL);
    gr_job *job = open_path("job.yaml", (gr_job_overrides){.output = "new"});
    assert_null(job->checkpoint.every);
    assert_int_equal(job->checkpoint.keep, 3);
    assert_string_equal(job->checkpoint.to, "new/checkpoints");
    uint64_t epoch = job->steps_per_epoch;
    gr_job_close(job);
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        job = open_path("job.yaml", (gr_job_overrides){.checkpoint_every = fine[i].every,
                                                       .checkpoint_to = "there"});
        assert_int_equal(job->checkpoint_steps, fine[i].steps);
        assert_int_equal(job->checkpoint_us, fine[i].us);
        assert_string_equal(job->checkpoint.to, "there");
        gr_job_close(job);
    }
    put_job("epochs: 3", "epochs: 3\ncheckpoint: {every: 2 epochs, keep: 0, to: a/b}");
    job = open_path("job.yaml", (gr_job_overrides){0});
    assert_int_equal(job->checkpoint_steps, 2 * epoch);
    assert_int_equal(job->checkpoint.keep, 0);
    assert_string_equal(job->checkpoint.to, "a/b");
    gr_job_close(job);
    static const char *const bad[] = {"100", "0 steps", "-5 min", "steps", "5 parsecs", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        must_fail((gr_job_overrides){.checkpoint_every = bad[i]}, GR_E_INVALID,
                  "does not say how often checkpoints are written");
    }
    put_job("epochs: 3", "epochs: 3\ncheckpoint: {evry: 2 epochs}");
    must_fail((gr_job_overrides){0}, GR_E_INVALID, "every");
    put_job("epochs: 3", "epochs: 3\ncheckpoint: {every: 1 h, to: data.csv}");
    must_fail((gr_job_overrides){0}, GR_E_INVALID,
              "checkpoint.to: the checkpoint folder data.csv cannot be written");
}

static char *print(gr_job *job)
{
    char *text = NULL;
    size_t size = 0;
    gr_diag diag;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    gr_status status = gr_job_print(job, NULL, NULL, file, &diag);
    assert_int_equal(fclose(file), 0);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return text;
}

static void must_hold(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" expected in:\n%s", part, text);
    }
}

static void must_not_hold(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) {
        fail_msg("\"%s\" not expected in:\n%s", part, text);
    }
}

/* Whose gradients meet on servers sums nothing by allreduce, and says when it is exact. */
static void print_of_parameter_servers_names_them_and_what_is_exact(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *servers, *bits;
    } cases[] = {
        {"strategy: ps, servers: 2, ",
         "gradients   to 2 parameter servers, 384 B a step of each worker, while the backward "
         "pass goes on",
         "made of all shards: exact (the same bits for every number of workers and servers)"},
        {"strategy: ps, overlap: false, ",
         "gradients   to parameter servers, 384 B a step of each worker, after the backward pass",
         "exact (the same bits"},
        {"strategy: ps, servers: 1, consistency: async, ", "gradients   to 1 parameter server, ",
         "no worker waits for another: not exact (the bits depend on who comes when)"},
        {"strategy: ps, consistency: ssp, staleness: 3, ", "gradients   to parameter servers, ",
         "no worker is more than 3 updates ahead of the slowest: not exact"},
        {"strategy: ps, replicas_to_aggregate: 4, ", "gradients   to parameter servers, ",
         "made of the first 4 gradients, and late ones are dropped: not exact"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char distribution[200];
        snprintf(distribution, sizeof distribution, "{%sshards", cases[i].settings);
        put_job("{shards", distribution);
        gr_job *job = open_path("job.yaml", (gr_job_overrides){.run = {.workers = 4}});
        char *text = print(job);
        must_hold(text, cases[i].servers);
        must_hold(text, cases[i].bits);
        must_hold(text, "per worker 4 samples (1 shard)");
        must_not_hold(text, "allreduce");
        must_not_hold(text, "bucket");
        free(text);
        gr_job_close(job);
    }
}

static void print_of_a_job_that_keeps_the_best_says_when(void **state)
{
    (void)state;
    put_job("epochs: 3", "epochs: 3\ncheckpoint: {keep_best: true, metric: loss, keep: 2}");
    gr_job *job = open_path("job.yaml", (gr_job_overrides){.run = {.workers = 1}});
    char *text = print(job);
    must_hold(text, "checkpoint  whenever loss is the best so far and at the end, in "
                    "out/job/checkpoints; the best and the newest 2 stay\n");
    must_hold(text, "rank 0 holds weights and optimizer twice for it");
    must_not_hold(text, "SIGTERM");
    free(text);
    gr_job_close(job);
    put_job("epochs: 3",
            "epochs: 3\ncheckpoint: {every: 1 h, keep_best: true, metric: loss, keep: 0}");
    job = open_path("job.yaml", (gr_job_overrides){.run = {.workers = 1}});
    text = print(job);
    must_hold(text, "checkpoint  every 1 h, whenever loss is the best so far and at the end, in "
                    "out/job/checkpoints; all stay\n");
    free(text);
    gr_job_close(job);
}

static void test_print(void **state)
{
    (void)state;
    gr_job *job = open_path(EXAMPLES "cnn.yaml", (gr_job_overrides){.run = {.workers = 3}});
    char *text = print(job);
    must_hold(text, "job         digits-cnn (");
    must_hold(text, "1437 training and 360 test samples of 1x8x8, 10 classes; in memory");
    must_hold(text, "conv1      conv2d       16x8x8                  144");
    must_hold(text, "total                                         25978");
    must_hold(text, "global 64 samples = 8 shards of 8");
    must_hold(text, "per worker 16 to 24 samples (2 to 3 shards), per shard 8, per micro batch 8");
    must_hold(text, "22 an epoch (29 samples of its order are left out)");
    must_hold(text, "workers     3 with 1 thread each");
    must_hold(text, "adds in the order of the shard tree");
    must_hold(text, "activations and work space");
    free(text);
    gr_job_close(job);
    put_job("learning_rate: 0.1", "learning_rate: 0.1, linear_scaling: true, reference_batch: 8");
    job = open_path("job.yaml", (gr_job_overrides){.run = {.workers = 1}});
    text = print(job);
    must_hold(text, "learning rate 0.2 (0.1 for a batch of 8, times 16 / 8)");
    must_hold(text, "gradients   stay in the one worker");
    must_hold(text, "output      out/job");
    must_hold(text, "when the job is asked to end (SIGTERM), in out/job/checkpoints");
    free(text);
    gr_job_close(job);
    put_job("epochs: 3", "epochs: 3\ncheckpoint: {every: 5 min, keep: 1}");
    job = open_path("job.yaml", (gr_job_overrides){.run = {.workers = 1}});
    text = print(job);
    must_hold(text, "every 5 min and at the end, in out/job/checkpoints; the newest 1 stays");
    free(text);
    gr_job_close(job);
    put_job("{shards", "{strategy: local, sync_every: 2, outer: {momentum: 0.75}, shards");
    job = open_path("job.yaml", (gr_job_overrides){0});
    text = print(job);
    must_hold(text, "4 copies of the weights, one a shard, updated with 4 samples a step");
    must_hold(text, "averaged every 2 steps (32 samples), the last 1 of an epoch apart: 3 times");
    must_hold(text, "momentum 0.75: in the long run 4 times the averaged change");
    must_hold(text, "copies of both (for 2 of the shards)");
    must_hold(text, "and as much for each optimizer vector over shm, exact");
    free(text);
    gr_job_close(job);
}

static void test_examples(void **state)
{
    (void)state;
    static const char *const names[] = {EXAMPLES "cnn.yaml", EXAMPLES "mlp.yaml"};
    for (size_t i = 0; i < 2; i++) {
        gr_job *job = open_path(names[i], (gr_job_overrides){0});
        assert_int_equal(job->workers, 4);
        assert_int_equal(job->shards, 8);
        assert_int_equal(gr_dataset_count(job->dataset, GR_SPLIT_TEST), 360);
        gr_job_close(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_workers),
        cmocka_unit_test(shards_by_default_follow_from_the_batch_alone),
        cmocka_unit_test(test_steps_and_micro_batches),
        cmocka_unit_test(free_workers_need_samples_each),
        cmocka_unit_test(job_that_is_only_evaluated_needs_no_workers),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_local),
        cmocka_unit_test(data_of_named_columns_is_opened),
        cmocka_unit_test(labels_from_one_are_told_of_class_names),
        cmocka_unit_test(setting_of_another_kind_is_refused),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_bad_data),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(print_of_parameter_servers_names_them_and_what_is_exact),
        cmocka_unit_test(print_of_a_job_that_keeps_the_best_says_when),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_examples)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
