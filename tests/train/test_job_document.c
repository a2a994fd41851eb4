/* SPDX-License-Identifier: Apache-2.0 */

/* The job document: every key reads back, and the sentence for each document that is wrong. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/config_text.h"
#include "base/philox.h"
#include "train/job/job_internal.h"
#include "train/strategy/strategy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEEDS = 300, TEXT_BYTES = 8192, DEPTH_MAX = 3 };

/* ---- Optimizers of a program ----------------------------------------------------------------- */

/* Their settings lie in the same place. */
static const gr_config_field first_fields[] = {{.key = "first",
                                                .type = GR_CONFIG_DOUBLE,
                                                .offset = offsetof(gr_optimizer_config, own),
                                                .default_text = "4",
                                                .help = "first"},
                                               {0}};
static const gr_config_field second_fields[] = {{.key = "second",
                                                 .type = GR_CONFIG_BOOL,
                                                 .offset = offsetof(gr_optimizer_config, own),
                                                 .default_text = "true",
                                                 .help = "second"},
                                                {0}};
static const gr_optimizer_ops first = {.name = "first_kind", .settings = first_fields};
static const gr_optimizer_ops second = {.name = "second_kind", .settings = second_fields};
const gr_optimizer_ops *const gr_extra_optimizers[] = {&first, &second, NULL};

/* ---- Random settings ------------------------------------------------------------------------- */

typedef struct random_job {
    uint64_t seed;
    uint32_t drawn;
    gr_job *job;
} random_job;

static uint64_t draw(random_job *r, uint64_t below)
{
    const uint32_t key[2] = {(uint32_t)r->seed, 0}, counter[4] = {r->drawn++, 0, 0, 0};
    uint32_t words[4];
    gr_philox(key, counter, words);
    return ((uint64_t)words[0] << 32 | words[1]) % below;
}

static const char *draw_text(random_job *r)
{
    static const char *const texts[] = {
        "",        "a",    "two words", "\"quoted\" \\ and \n lines",
        "Größe",   "true", "7",         "0.10",
        "-1.5e-3", "null", "[x]: {y}",  "\t#"};
    return texts[draw(r, sizeof texts / sizeof texts[0])];
}

static const gr_node *draw_node(random_job *r, const char *key, int depth)
{
    gr_node *node = gr_arena_alloc(&r->job->arena, sizeof *node);
    assert_non_null(node);
    *node = (gr_node){.kind = (gr_node_kind)draw(r, depth < DEPTH_MAX ? 4 : 2), .key = key};
    if (node->kind == GR_NODE_SCALAR) {
        node->quoted = draw(r, 2) != 0;
        node->text = draw_text(r);
    }
    const gr_node **end = &node->child;
    int children = node->kind >= GR_NODE_LIST ? (int)draw(r, 4) : 0;
    for (int i = 0; i < children; i++) {
        const char *name = node->kind == GR_NODE_MAP
                               ? gr_arena_printf(&r->job->arena, "%s%d", draw_text(r), i)
                               : NULL;
        gr_node *child = (gr_node *)(uintptr_t)draw_node(r, name, depth + 1);
        *end = child;
        end = &child->next;
        node->count++;
    }
    return node;
}

/* Anything within the bounds, or one of them. */
static double draw_number(random_job *r, const gr_config_field *field)
{
    const double *min = gr_config_min(field), *max = gr_config_max(field);
    double low = min != NULL ? *min : -1e15, high = max != NULL ? *max : 1e15;
    double part = (double)draw(r, 1u << 30) / (double)(1u << 30);
    switch (draw(r, 4)) {
    case 0:
        return low;
    case 1:
        return high;
    case 2: /* small ones as well */
        return low + (high - low) * pow(part, 20);
    default:
        return low + (high - low) * part;
    }
}

static void draw_field(random_job *r, const gr_config_field *field, void *at, bool is_part)
{
    bool unset = field->default_text == NULL && draw(r, 4) == 0;
    switch (field->type) {
    case GR_CONFIG_BOOL:
        *(bool *)at = draw(r, 2) != 0;
        break;
    case GR_CONFIG_INT:
    case GR_CONFIG_BYTES:
    case GR_CONFIG_DURATION:
        *(int64_t *)at = unset ? 0 : (int64_t)draw_number(r, field);
        break;
    case GR_CONFIG_DOUBLE:
        *(double *)at = unset ? 0 : draw_number(r, field);
        break;
    case GR_CONFIG_TEXT:
        *(const char **)at = unset ? NULL : draw_text(r);
        break;
    case GR_CONFIG_CHOICE: {
        uint64_t count = 0;
        while (gr_config_choice(field, (int)count) != NULL) {
            count++;
        }
        *(int *)at = (int)draw(r, count);
        break;
    }
    case GR_CONFIG_NODE:
        *(const gr_node **)at = unset || is_part ? NULL : draw_node(r, field->key, 0);
        break;
    case GR_CONFIG_LIST:
        fail_msg("%s: a list in a job", field->key);
    }
}

/* Calls `visit` for each key of the job that means something in it. */
static void visit_keys(gr_job *job, void (*visit)(void *, const gr_config_field *, size_t),
                       void *arg)
{
    static const gr_job_part run = {&gr_job_run_table, offsetof(gr_job, run), 0};
    for (int i = 0; i <= GR_JOB_PARTS; i++) {
        const gr_job_part *part = i < GR_JOB_PARTS ? &gr_job_parts[i] : &run;
        bool wanted = gr_job_has_part(job, part->table);
        for (const gr_config_field *f = NULL;
             wanted && (f = gr_config_next(part->table, f)) != NULL;) {
            if (gr_config_applies(part->table, (const char *)job + part->config, f)) {
                visit(arg, f, part->config + f->offset);
            }
        }
    }
}

static void draw_key(void *arg, const gr_config_field *field, size_t offset)
{
    random_job *r = arg;
    draw_field(r, field, (char *)r->job + offset, gr_job_part_at(offset) != NULL);
}

static gr_job *draw_job(uint64_t seed)
{
    gr_diag diag = {0};
    random_job r = {.seed = seed, .job = gr_job_create("some where/job.yaml", &diag)};
    assert_non_null(r.job);
    r.job->outer.wanted = r.job->early_stopping.wanted = true;
    visit_keys(r.job, draw_key, &r);
    /* Once more: what some needs may have been drawn behind it. */
    visit_keys(r.job, draw_key, &r);
    r.job->outer.wanted =
        strcmp(gr_strategy_name(r.job->distribution.strategy), "local") == 0 && draw(&r, 2) != 0;
    r.job->early_stopping.wanted = draw(&r, 2) != 0;
    r.job->shards = (int)r.job->distribution.shards;
    r.job->workers = (int)r.job->run.workers;
    return r.job;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_node(const gr_node *a, const gr_node *b)
{
    if (a == NULL || b == NULL) {
        return a == b;
    }
    if (a->kind != b->kind || a->count != b->count || !same_text(a->text, b->text)) {
        return false;
    }
    const gr_node *other = b->child;
    for (const gr_node *child = a->child; child != NULL; child = child->next) {
        if (!same_text(child->key, other->key) || !same_node(child, other)) {
            return false;
        }
        other = other->next;
    }
    return true;
}

typedef struct comparison {
    const gr_job *a, *b;
    int compared;
} comparison;

static void compare_key(void *arg, const gr_config_field *field, size_t offset)
{
    comparison *c = arg;
    const void *a = (const char *)c->a + offset, *b = (const char *)c->b + offset;
    bool same = true;
    switch (field->type) {
    case GR_CONFIG_BOOL:
        same = *(const bool *)a == *(const bool *)b;
        break;
    case GR_CONFIG_CHOICE:
        same = *(const int *)a == *(const int *)b;
        break;
    case GR_CONFIG_TEXT:
        same = same_text(*(const char *const *)a, *(const char *const *)b);
        break;
    case GR_CONFIG_NODE:
        same = gr_job_part_at(offset) != NULL ||
               same_node(*(const gr_node *const *)a, *(const gr_node *const *)b);
        break;
    default:
        same = memcmp(a, b, 8) == 0;
    }
    if (!same) {
        fail_msg("%s is not what it was", field->key);
    }
    c->compared++;
}

static void document_of_any_job_reads_back(void **state)
{
    (void)state;
    int least = 1000, most = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        gr_job *job = draw_job(seed), *back = NULL;
        gr_diag diag = {0};
        char *text = NULL, *again = NULL;
        if (gr_job_document(job, &text, &diag) != GR_OK ||
            gr_job_parse_document(text, strlen(text), &back, &diag) != GR_OK) {
            fail_msg("seed %d: %s\n%s", (int)seed, diag.text, text != NULL ? text : "");
        }
        comparison c = {.a = job, .b = back};
        visit_keys(job, compare_key, &c);
        least = c.compared < least ? c.compared : least;
        most = c.compared > most ? c.compared : most;
        assert_string_equal(back->path, job->path);
        assert_int_equal(back->outer.wanted, job->outer.wanted);
        assert_int_equal(back->early_stopping.wanted, job->early_stopping.wanted);
        back->shards = job->shards;
        back->workers = job->workers;
        assert_int_equal(gr_job_document(back, &again, &diag), GR_OK);
        if (strstr(text, "\"7\"") == NULL && strstr(text, "\"true\"") == NULL) {
            assert_string_equal(again, text); /* else: what was quoted in a tree is plain now */
        }
        free(text);
        free(again);
        gr_job_close(job);
        gr_job_close(back);
    }
    assert_true(most > least && least > 60);
}

/* ---- Resolved jobs --------------------------------------------------------------------------- */

#define PLAIN                                                                                      \
    "data: {file: none.csv, skip: ['7', 0x1]}\n"                                                   \
    "model: [linear: 8, dropout: .50, linear: 3]\n"                                                \
    "epochs: 3\nglobal_batch: 16\n"

static void put(const char *text)
{
    FILE *file = fopen("job.yaml", "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The resolved document of the job file with that text; there is no data. */
static char *document_of(const char *yaml, const gr_job_overrides *overrides)
{
    gr_job *job = NULL;
    gr_diag diag = {0};
    char *text = NULL;
    put(yaml);
    if (gr_job_parse("job.yaml", overrides, &job, &diag) != GR_OK ||
        gr_job_resolve(job, &diag) != GR_OK || gr_job_document(job, &text, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(gr_job_bind(job, &diag), GR_E_NOT_FOUND);
    gr_job_close(job);
    return text;
}

static void resolved_document_resolves_to_itself(void **state)
{
    (void)state;
    static const char *const distributions[] = {
        "",
        "distribution: {number_of_workers: {min: 1, max: 3}, shards: 4, link: tcp}\n",
        "distribution: {strategy: local, sync_every: epoch, outer: {}, local_state: keep}\n",
        "distribution: {strategy: ps, consistency: ssp, staleness: 2, adapt_rate: yes}\n",
        "distribution: {strategy: ps, replicas_to_aggregate: 2, number_of_workers: 3}\n",
        "distribution: {compression: topk, compression_ratio: 0.1}\ncheckpoint: {every: 2 "
        "epochs}\n",
        "optimizer: {kind: adam, beta1: 0.85}\noutput: elsewhere\nname: 5\n",
        "optimizer: {kind: first_kind, first: 0.25}\n",
        "optimizer: {kind: second_kind}\n",
        "early_stopping: {metric: test_accuracy, patience: 2}\ncheckpoint: {keep_best: true}\n",
        "checkpoint: {keep_best: true, metric: loss}\noptimizer: {schedule: cosine, final_factor: "
        "0.1}\n",
    };
    for (size_t i = 0; i < sizeof distributions / sizeof distributions[0]; i++) {
        char yaml[TEXT_BYTES];
        const gr_job_overrides overrides = {.run = {.workers = i % 2 == 1 ? 2 : 0,
                                                    .default_workers = 3,
                                                    .chaos = "kill:rank=1@step=2"}};
        snprintf(yaml, sizeof yaml, "%s%s", PLAIN, distributions[i]);
        char *text = document_of(yaml, &overrides), *again = NULL;
        gr_job *job = NULL;
        gr_diag diag = {0};
        if (gr_job_parse_document(text, strlen(text), &job, &diag) != GR_OK ||
            gr_job_resolve(job, &diag) != GR_OK || gr_job_document(job, &again, &diag) != GR_OK) {
            fail_msg("%s\n%s", diag.text, text);
        }
        const gr_node *dropout = job->config.model->child->next->child;
        assert_string_equal(dropout->text, ".50"); /* the characters count in checkpoints */
        assert_string_equal(job->run.chaos, "kill:rank=1@step=2");
        gr_job_close(job);
        job = NULL;
        char *third = NULL;
        assert_int_equal(gr_job_parse_document(again, strlen(again), &job, &diag), GR_OK);
        assert_int_equal(gr_job_resolve(job, &diag), GR_OK);
        assert_int_equal(gr_job_document(job, &third, &diag), GR_OK);
        assert_string_equal(third, again);
        gr_job_close(job);
        free(text);
        free(again);
        free(third);
    }
}

static void environment_changes_no_document(void **state)
{
    (void)state;
    const gr_job_overrides none = {.link = NULL};
    char *text = document_of(PLAIN, &none);
    gr_job *job = NULL;
    gr_diag diag = {0};
    setenv("GRADUS_LINK", "tcp", 1);
    assert_int_equal(gr_job_parse_document(text, strlen(text), &job, &diag), GR_OK);
    assert_int_equal(job->distribution.link, 0);
    unsetenv("GRADUS_LINK");
    gr_job_close(job);
    free(text);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

static void must_be_refused(const char *text, size_t size, const char *says)
{
    gr_job *job = NULL;
    gr_diag diag = {0};
    gr_status status = gr_job_parse_document(text, size, &job, &diag);
    if (status != GR_E_INVALID || strncmp(diag.text, "job document", 12) != 0 ||
        strstr(diag.text, says) == NULL) {
        fail_msg("expected: %s\nis: %s: %s", says, gr_status_name(status), diag.text);
    }
    assert_null(job);
}

static void wrong_document_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"gradus_job\": 1,", "\"gradus_job\": 2,",
         "gradus_job: version 2 is newer than 1, which this gradus reads; install the same"},
        {"\"gradus_job\": 1,", "\"gradus_job\": 0,", "must be a whole number of at least 1"},
        {"\"gradus_job\": 1,", "\"gradus_job\": \"1\",", "must be a whole number"},
        {"\"gradus_job\": 1,", "", "this is none; gradus run --dry-run --json"},
        {"\"path\"", "\"paths\"", "unknown key \"paths\"; did you mean \"path\"?"},
        {"\"path\": \"job.yaml\",", "", "\"path\" is missing"},
        {"\"path\": \"job.yaml\"", "\"path\": [1]", "path: must be a text"},
        {"\"seed\": 1,", "\"seed\": \"1\",", "job.seed: must be a number, not the text"},
        {"\"seed\": 1,", "\"seed\": 1.5,", "job.seed: must be a whole number"},
        {"\"seed\": 1,", "\"seed\": null,", "job.seed: has no value"},
        {"\"seed\": 1,", "\"sed\": 1,", "job: unknown key \"sed\"; did you mean \"seed\"?"},
        {"\"exact\": true", "\"exact\": \"often\"",
         "job.distribution.exact: must be true or false"},
        {"\"kind\": \"", "\"kind\": \"x", "job.optimizer.kind: must be sgd"},
        {"\"header\": false", "\"header\": []", "job.data.header: must be a single value"},
        {"\"workers\": ", "\"workers\": -", "run.workers: must be a whole number from 1 to 4096"},
        {"\"chaos_after\"", "\"chaos_befor\"", "run: unknown key"},
    };
    const gr_job_overrides none = {.link = NULL};
    char *text = document_of(PLAIN, &none);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char changed[TEXT_BYTES];
        const char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        int size = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text,
                            cases[i].to, at + strlen(cases[i].from));
        must_be_refused(changed, (size_t)size, cases[i].says);
    }
    for (size_t size = 0; size < strlen(text) - 1; size++) {
        must_be_refused(text, size, size == 0 ? "this is none" : "");
    }
    free(text);
}

static void text_that_is_no_utf8_makes_no_document(void **state)
{
    (void)state;
    const gr_job_overrides overrides = {.output = "gr\xf6sse"};
    gr_job *job = NULL;
    gr_diag diag = {0};
    char *text = NULL;
    put(PLAIN);
    assert_int_equal(gr_job_parse("job.yaml", &overrides, &job, &diag), GR_OK);
    assert_int_equal(gr_job_resolve(job, &diag), GR_OK);
    assert_int_equal(gr_job_document(job, &text, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "UTF-8"));
    gr_job_close(job);
}

static int folder_make(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/gradus-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL || chdir(path) != 0) {
        return -1;
    }
    *state = strdup(path);
    return *state != NULL ? 0 : -1;
}

static int folder_drop(void **state)
{
    (void)unlink("job.yaml");
    int result = chdir("/") == 0 ? rmdir(*state) : -1;
    free(*state);
    return result;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(document_of_any_job_reads_back),
        cmocka_unit_test_setup_teardown(resolved_document_resolves_to_itself, folder_make,
                                        folder_drop),
        cmocka_unit_test_setup_teardown(environment_changes_no_document, folder_make, folder_drop),
        cmocka_unit_test_setup_teardown(wrong_document_is_refused, folder_make, folder_drop),
        cmocka_unit_test_setup_teardown(text_that_is_no_utf8_makes_no_document, folder_make,
                                        folder_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
