/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose layer, optimizer and reader are those of this program: each is one row, here. */
#include "support_train.h"

#include "base/fail.h"
#include "data/reader.h"
#include "doc/doc.h"
#include "nn/layer.h"
#include "train/checkpoint/checkpoint_fingerprint.h"
#include "train/sample_reader.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- The layer "shift": y = x + by --- */

typedef struct shift_settings {
    double by;
} shift_settings;
static const gr_config_field shift_fields[] = {{.key = "by",
                                                .type = GR_CONFIG_DOUBLE,
                                                .offset = offsetof(shift_settings, by),
                                                .help = "what is added"},
                                               {0}};
static const gr_config_table shift_table = {
    .name = "shift", .fields = shift_fields, .struct_bytes = sizeof(shift_settings)};

static gr_status shift_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    const shift_settings *set = layer->spec->set;
    for (size_t i = 0; i < gr_layer_elements(layer); i++) {
        gr_layer_y(model, layer)[i] = gr_layer_x(model, layer)[i] + (float)set->by;
    }
    return GR_OK;
}

static gr_status shift_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    for (size_t i = 0; dx != NULL && i < gr_layer_elements(layer); i++) {
        dx[i] = gr_layer_dy(model, layer)[i];
    }
    return GR_OK;
}

static const gr_layer_ops shift = {
    .kind = "shift",
    .prefix = "shift",
    .help = "a number is added to each value",
    .settings = &shift_table,
    .main = "by",
    .reference = {.forward = shift_forward, .backward = shift_backward},
};
const gr_layer_ops *const gr_extra_layers[] = {&shift, NULL};

/* ---- The optimizer "sign_sgd", without state --- */

static const gr_config_field sign_fields[] = {{.key = "size",
                                               .type = GR_CONFIG_DOUBLE,
                                               .offset = offsetof(gr_optimizer_config, own),
                                               .default_text = "0.5",
                                               .help = "sign_sgd: times the learning rate"},
                                              {0}};

static void sign_prepare(const gr_optimizer_config *config, const gr_optimizer_now *now,
                         unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES])
{
    float by = (float)(now->learning_rate * config->own[0]);
    memcpy(numbers_out, &by, sizeof by);
}

static bool sign_update(const unsigned char numbers[GR_OPTIMIZER_NUMBERS_BYTES], float *values,
                        float *const *states, const float *gradients, size_t count)
{
    (void)states;
    float by;
    bool finite = true;
    memcpy(&by, numbers, sizeof by);
    for (size_t i = 0; i < count; i++) {
        values[i] -= gradients[i] > 0 ? by : gradients[i] < 0 ? -by : 0.0f;
        finite = finite && isfinite(gradients[i]);
    }
    return finite;
}

static const gr_optimizer_ops sign_sgd = {
    .name = "sign_sgd", .settings = sign_fields, .prepare = sign_prepare, .update = sign_update};
const gr_optimizer_ops *const gr_extra_optimizers[] = {&sign_sgd, NULL};

/* ---- The reader "squares": two numbers, and the sum of their squares --- */

/* Four named values for each sample, of which training takes two. */
typedef struct squares_table {
    gr_table head;
    double range;
} squares_table;

#define OWN(at) (offsetof(gr_data_config, own) + (at) * sizeof(gr_data_own))
static const char *const types[] = {"f32", "u8", "f64", NULL};
static const gr_config_field squares_fields[] = {{.key = "range",
                                                  .type = GR_CONFIG_DOUBLE,
                                                  .offset = OWN(0),
                                                  .default_text = "2",
                                                  .min = 0.1,
                                                  .max = 10,
                                                  .help = "squares: the largest number"},
                                                 {.key = "samples",
                                                  .type = GR_CONFIG_INT,
                                                  .offset = OWN(1),
                                                  .min = 1,
                                                  .max = 1000,
                                                  .help = "squares: how many"},
                                                 {.key = "x_type",
                                                  .type = GR_CONFIG_CHOICE,
                                                  .offset = OWN(2),
                                                  .default_text = "f32",
                                                  .choices = types,
                                                  .help = "squares: type of the numbers"},
                                                 {.key = "list",
                                                  .type = GR_CONFIG_TEXT,
                                                  .offset = OWN(3),
                                                  .is_file = true,
                                                  .help = "squares: a file that it looks into"},
                                                 {0}};

static gr_status squares_check(const gr_data_config *config, gr_diag *diag)
{
    return config->own[1].whole > 0 ? GR_OK
                                    : gr_node_fail(config->section, diag, GR_E_INVALID,
                                                   "data of format squares needs samples: N");
}

static gr_status squares_open(const gr_reader_open *how, gr_table **table_out, gr_diag *diag)
{
    static const gr_dtype dtypes[] = {GR_F32, GR_U8, GR_F64};
    *table_out = NULL;
    if (how->test) {
        return GR_OK;
    }
    squares_table *table = gr_table_new(gr_reader_ops_at(2), "squares", sizeof *table);
    if (table == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for squares");
    }
    int kind;
    memcpy(&kind, &how->config->own[2], sizeof kind);
    table->range = how->config->own[0].number;
    table->head.count = how->config->own[1].whole;
    gr_table_add_value(&table->head, "number", GR_I64, 0, NULL);
    gr_table_add_value(&table->head, "x", dtypes[kind], 1, (const int64_t[]){2});
    gr_table_add_value(&table->head, "product", GR_F64, 0, NULL);
    gr_table_add_value(&table->head, "target", GR_F32, 0, NULL);
    *table_out = &table->head;
    return GR_OK;
}

static gr_status squares_read(const gr_table *head, int64_t number, void *const *values_out,
                              gr_diag *diag)
{
    (void)diag;
    const squares_table *table = (const squares_table *)head;
    double a = (double)(number * 7 % 11) / 11 * table->range;
    double b = (double)(number * 5 % 13) / 13 * table->range;
    if (values_out[0] != NULL || values_out[2] != NULL) {
        return gr_fail(diag, GR_E_BUG, "training does not take these");
    }
    if (values_out[1] != NULL && table->head.value[1].type == GR_U8) {
        ((uint8_t *)values_out[1])[0] = (uint8_t)(a * 10);
        ((uint8_t *)values_out[1])[1] = (uint8_t)(b * 10);
    } else if (values_out[1] != NULL) {
        ((float *)values_out[1])[0] = (float)a;
        ((float *)values_out[1])[1] = (float)b;
    }
    if (values_out[3] != NULL) {
        *(float *)values_out[3] = (float)(a * a + b * b);
    }
    return GR_OK;
}

static const gr_reader_ops squares = {
    .name = "squares",
    .settings = squares_fields,
    .check_settings = squares_check,
    .open = squares_open,
    .read = squares_read,
};
const gr_reader_ops *const gr_extra_readers[] = {&squares, NULL};

/* ---- Jobs --- */

static void put_job(const char *folder, const char *data, const char *optimizer)
{
    char path[SUPPORT_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "name: own\nmodel:\n  - shift: -0.5\n  - linear: 8\n  - relu\n  - shift: {by: 0.25}\n"
            "  - linear: 1\ndata: {format: squares, regression: true, %s}\n"
            "optimizer: {%s}\nloss: mse\nseed: 7\nsteps: 40\nglobal_batch: 16\noutput: %s/out\n"
            "distribution: {shards: 4}\n",
            data, optimizer, folder);
    fclose(file);
}

static void train(const char *data, int workers, char sha_out[SUPPORT_SHA_BYTES], double *loss_out)
{
    char folder[SUPPORT_PATH_BYTES];
    int codes[8] = {0};
    support_folder(folder);
    put_job(folder, data, "kind: sign_sgd, learning_rate: 0.02");
    support_group(workers, "shm", support_train_member, folder, codes);
    for (int rank = 0; rank < workers; rank++) {
        assert_int_equal(codes[rank], 0);
    }
    support_end_sha(folder, sha_out);
    json_t *loss = support_end_value(folder, "loss");
    *loss_out = json_number_value(loss);
    json_decref(loss);
    support_clean(folder);
}

static void own_parts_train_to_the_same_bits_for_any_number_of_workers(void **state)
{
    (void)state;
    static const char *const data[] = {"samples: 96", "samples: 96, x_type: u8, scale: 0.1"};
    for (int i = 0; i < 2; i++) {
        char one[SUPPORT_SHA_BYTES], three[SUPPORT_SHA_BYTES];
        double loss, again;
        train(data[i], 1, one, &loss);
        train(data[i], 3, three, &again);
        assert_string_equal(one, three);
        assert_true(loss == again && loss < 1.0); /* 2.3: the best constant */
    }
}

static void must_fail(const char *data, const char *optimizer, const char *sentence)
{
    char folder[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 16];
    gr_job_overrides overrides = {.run = {.workers = 1, .default_workers = 1}};
    gr_job *job = NULL;
    gr_diag diag = {0};
    support_folder(folder);
    put_job(folder, data, optimizer);
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    assert_int_not_equal(gr_job_open(path, &overrides, &job, &diag), GR_OK);
    if (strstr(diag.text, sentence) == NULL) {
        fail_msg("no '%s' in: %s", sentence, diag.text);
    }
    support_clean(folder);
}

static void own_parts_with_bad_settings_are_refused(void **state)
{
    (void)state;
    static const char ours[] = "kind: sign_sgd";
    must_fail("range: 3", ours, "data: data of format squares needs samples: N");
    must_fail("samples: 96, range: 11", ours, "data.range: must be a number from 0.1 to 10");
    must_fail(
        "samples: 96, header: true", ours,
        "data.header: squares has no such setting; its own are range, samples, x_type and list; "
        "remove the line, or take format: csv");
    must_fail("samples: 96", "kind: sgd, size: 1",
              "optimizer.size: sgd has no such setting; its own are momentum and nesterov; remove "
              "the line, or take kind: sign_sgd");
}

static void own_reader_of_a_type_that_is_not_taken_is_refused(void **state)
{
    (void)state;
    must_fail("samples: 96, x_type: f64", "kind: sign_sgd",
              "squares: value 'x' of format squares has type f64, but training takes it as f32 or "
              "u8");
}

/* Of the job with `data` in `folder`, beside which stands the file `list`, with `text`. */
static gr_fingerprint fingerprint_of(const char *folder, const char *data, const char *text,
                                     gr_arena *arena)
{
    char path[SUPPORT_PATH_BYTES + 16];
    gr_job_overrides overrides = {.run = {.workers = 1, .default_workers = 1}};
    gr_job *job = NULL;
    gr_fingerprint fingerprint;
    gr_diag diag = {0};
    put_job(folder, data, "kind: sign_sgd");
    snprintf(path, sizeof path, "%s/list", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    if (gr_job_open(path, &overrides, &job, &diag) != GR_OK ||
        gr_fingerprint_of_job(job, arena, &fingerprint, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    gr_job_close(job);
    return fingerprint;
}

static void own_reader_counts_with_its_settings_and_with_what_its_files_hold(void **state)
{
    (void)state;
    static const struct {
        const char *data, *text, *key;
    } cases[] = {
        {"samples: 96, list: list", "one", NULL},
        {"samples: 96, list: list", "two", "data.list"},
        {"samples: 96, list: list, range: 3", "one", "data.range"},
        {"samples: 96", "one", "data.list"},
    };
    char folder[SUPPORT_PATH_BYTES];
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    support_folder(folder);
    gr_fingerprint saved = fingerprint_of(folder, cases[0].data, cases[0].text, &arena);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_diag diag = {0};
        gr_fingerprint now = fingerprint_of(folder, cases[i].data, cases[i].text, &arena);
        gr_status status = gr_fingerprint_compare(&saved, &now, "saved", "job", &diag);
        assert_int_equal(status, cases[i].key != NULL ? GR_E_INVALID : GR_OK);
        assert_true(cases[i].key == NULL || strstr(diag.text, cases[i].key) != NULL);
    }
    support_clean(folder);
    gr_arena_fini(&arena);
}

/* Not taken for a format of ours: a file of images is of no use to it. */
static void new_samples_are_not_read_by_another_reader(void **state)
{
    (void)state;
    static const uint8_t images[] = {0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7};
    char folder[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 16];
    gr_job_overrides overrides = {.run = {.workers = 1, .default_workers = 1}};
    gr_job *job = NULL;
    gr_doc *doc = NULL;
    gr_inference inference;
    gr_sample_reader *reader = NULL;
    const char *text;
    gr_diag diag = {0};
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    support_folder(folder);
    put_job(folder, "samples: 96", "kind: sign_sgd");
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    assert_int_equal(gr_job_open(path, &overrides, &job, &diag), GR_OK);
    assert_int_equal(gr_inference_print(job, &arena, &text, &diag), GR_OK);
    gr_job_close(job);
    assert_int_equal(gr_doc_parse_json("inference", text, strlen(text), &doc, &diag), GR_OK);
    assert_int_equal(gr_inference_read(gr_doc_root(doc), &arena, &inference, &diag), GR_OK);
    snprintf(path, sizeof path, "%s/images", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(images, sizeof images, 1, file), 1);
    fclose(file);
    assert_int_equal(gr_sample_reader_open(&inference, path, &reader, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "was trained with data of format squares, by a reader"));
    gr_doc_destroy(doc);
    support_clean(folder);
    gr_arena_fini(&arena);
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_parts_train_to_the_same_bits_for_any_number_of_workers),
        cmocka_unit_test(own_parts_with_bad_settings_are_refused),
        cmocka_unit_test(own_reader_of_a_type_that_is_not_taken_is_refused),
        cmocka_unit_test(own_reader_counts_with_its_settings_and_with_what_its_files_hold),
        cmocka_unit_test(new_samples_are_not_read_by_another_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
