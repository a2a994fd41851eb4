/* SPDX-License-Identifier: Apache-2.0 */

/* One table, four layers, --help and the reference. */

#include "base/config.h"
#include "doc/config_node.h"
#include "support_base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sample_config {
    bool quiet;
    bool overlap;
    int64_t workers;
    int64_t offset;
    double rate;
    int64_t bucket_bytes;
    int64_t wait_us;
    const char *output;
    int link;
    const gr_node *model;
} sample_config;

static const char *const links[] = {"auto", "shm", "tcp", NULL};

static const gr_config_field fields[] = {
    {.key = "quiet",
     .flag = "--quiet",
     .short_flag = 'q',
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(sample_config, quiet),
     .help = "print the lines of rank 0 only"},
    {.key = "overlap",
     .flag = "--overlap",
     .env = "SAMPLE_OVERLAP",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(sample_config, overlap),
     .default_text = "true",
     .help = "reduce while the backward pass goes on"},
    {.key = "number_of_workers",
     .flag = "--np",
     .short_flag = 'n',
     .env = "SAMPLE_NP",
     .type = GR_CONFIG_INT,
     .offset = offsetof(sample_config, workers),
     .default_text = "4",
     .min = 1,
     .max = 4096,
     .unit = "workers",
     .help = "processes that compute"},
    {.key = "offset",
     .flag = "--offset",
     .type = GR_CONFIG_INT,
     .offset = offsetof(sample_config, offset),
     .help = "any whole number | even a negative one"},
    {.key = "learning_rate",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(sample_config, rate),
     .default_text = "0.1",
     .min = 0,
     .max = 1000,
     .help = "step size"},
    {.key = "bucket",
     .flag = "--bucket",
     .type = GR_CONFIG_BYTES,
     .offset = offsetof(sample_config, bucket_bytes),
     .default_text = "1m",
     .min = 4096,
     .max = 1 << 30,
     .help = "size of a bucket; the first is full early in the backward pass, so that its "
             "reduction begins while the rest is computed"},
    {.key = "wait",
     .flag = "--wait-for-all-of-the-workers",
     .env = "SAMPLE_WAIT",
     .former_flag = "--patience",
     .former_env = "SAMPLE_PATIENCE",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(sample_config, wait_us),
     .default_text = "10s",
     .min = 0,
     .max = INFINITY,
     .unit = "s",
     .help = "patience"},
    {.key = "output",
     .flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(sample_config, output),
     .value_name = "FOLDER",
     .help = "where the weights go"},
    {.key = "link",
     .flag = "--link",
     .env = "SAMPLE_LINK",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(sample_config, link),
     .default_text = "auto",
     .choices = links,
     .help = "how workers talk"},
    {.key = "model",
     .type = GR_CONFIG_NODE,
     .offset = offsetof(sample_config, model),
     .help = "the layers"},
    {0}};

static const gr_config_table table = {
    .name = "sample", .title = "A table.", .fields = fields, .struct_bytes = sizeof(sample_config)};

typedef struct fixture {
    gr_arena arena;
    gr_diag diag;
    gr_doc *doc;
    sample_config config;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    gr_arena_init(&f->arena, 1 << 20);
    *state = f;
    return gr_config_defaults(&table, &f->config, &f->arena, &f->diag) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    gr_doc_destroy(f->doc);
    gr_arena_fini(&f->arena);
    free(f);
    return 0;
}

static gr_status from_yaml(fixture *f, const char *text)
{
    gr_doc_destroy(f->doc);
    f->doc = NULL;
    assert_int_equal(gr_doc_parse_yaml("job.yaml", text, strlen(text), &f->doc, &f->diag), GR_OK);
    return gr_config_from_node(&table, &f->config, gr_doc_root(f->doc), &f->arena, &f->diag);
}

static gr_status from_env(fixture *f, const char *variable)
{
    char copy[128];
    snprintf(copy, sizeof copy, "%s", variable);
    char other[] = "SAMPLE_NPX=1";
    char *environment[] = {other, copy, NULL};
    return gr_config_from_env(&table, &f->config, environment, &f->arena, &f->diag);
}

enum { WORDS_MAX = 16 };

typedef struct args_result {
    int at;
    bool dashes;
    bool help;
} args_result;

/* A command line in one text, words divided by single blanks. */
static gr_status from_args(fixture *f, const char *line, args_result *result)
{
    char *argv[WORDS_MAX] = {NULL};
    char copy[256];
    snprintf(copy, sizeof copy, "%s", line);
    int argc = 0;
    for (char *at = copy; at != NULL && argc < WORDS_MAX;) {
        argv[argc++] = strsep(&at, " ");
    }
    args_result unused;
    result = result != NULL ? result : &unused;
    result->at = 0;
    return gr_config_from_args(&table, &f->config, argc, argv, &result->at, &result->dashes,
                               &result->help, &f->arena, &f->diag);
}

static void config_without_values_has_defaults(void **state)
{
    fixture *f = *state;
    assert_false(f->config.quiet);
    assert_true(f->config.overlap);
    assert_int_equal(f->config.workers, 4);
    assert_int_equal(f->config.offset, 0);
    assert_true(f->config.rate == 0.1);
    assert_int_equal(f->config.bucket_bytes, 1 << 20);
    assert_int_equal(f->config.wait_us, 10000000);
    assert_null(f->config.output);
    assert_int_equal(f->config.link, 0);
    assert_null(f->config.model);
}

static void config_layer_overrides_the_one_before(void **state)
{
    fixture *f = *state;
    assert_int_equal(from_yaml(f, "number_of_workers: 5\nlink: shm\nwait: 1s\noutput: \"a b\"\n"
                                  "overlap: no\nquiet: on\nlearning_rate: 2\nmodel: [x]\n"),
                     GR_OK);
    assert_int_equal(f->config.workers, 5);
    assert_int_equal(f->config.link, 1);
    assert_string_equal(f->config.output, "a b");
    assert_false(f->config.overlap);
    assert_true(f->config.quiet);
    assert_true(f->config.rate == 2.0);
    assert_ptr_equal(f->config.model, gr_node_get(gr_doc_root(f->doc), "model"));
    assert_int_equal(from_env(f, "SAMPLE_NP=6"), GR_OK);
    assert_int_equal(from_env(f, "SAMPLE_WAIT=200ms"), GR_OK);
    assert_int_equal(from_env(f, "SAMPLE_LINK="), GR_OK); /* empty is absent */
    assert_int_equal(f->config.workers, 6);
    assert_int_equal(f->config.wait_us, 200000);
    assert_int_equal(f->config.link, 1);
    assert_int_equal(from_args(f, "--np 7 --np=8", NULL), GR_OK);
    assert_int_equal(f->config.workers, 8);
    assert_int_equal(f->config.wait_us, 200000); /* what no layer above names stays */
    assert_true(f->config.rate == 2.0);
}

static void config_with_an_empty_map_is_unchanged(void **state)
{
    fixture *f = *state;
    assert_int_equal(from_yaml(f, ""), GR_OK);
    assert_int_equal(gr_config_from_node(&table, &f->config, NULL, &f->arena, &f->diag), GR_OK);
    assert_int_equal(f->config.workers, 4);
}

static void flags_in_every_form_are_read(void **state)
{
    fixture *f = *state;
    args_result result;
    static const char *const four[] = {"-np 4", "--np 4", "-np=4", "--np=4", "-n 4", "-n4", "-n=4"};
    for (size_t i = 0; i < sizeof four / sizeof four[0]; i++) {
        f->config.workers = 0;
        assert_int_equal(from_args(f, four[i], &result), GR_OK);
        assert_int_equal(f->config.workers, 4);
    }
    assert_int_equal(from_args(f, "-q --no-overlap --offset -3 --output - job.yaml -q", &result),
                     GR_OK);
    assert_int_equal(result.at, 6); /* stops at the first word that is no flag */
    assert_false(result.dashes);
    assert_true(f->config.quiet);
    assert_false(f->config.overlap);
    assert_int_equal(f->config.offset, -3);
    assert_string_equal(f->config.output, "-");
    assert_int_equal(from_args(f, "--quiet=off --overlap=1 -- --np 9", &result), GR_OK);
    assert_int_equal(result.at, 3);
    assert_true(result.dashes);
    assert_false(f->config.quiet);
    assert_true(f->config.overlap);
    assert_int_equal(f->config.workers, 4);
    assert_int_equal(from_args(f, "- x", &result), GR_OK);
    assert_int_equal(result.at, 0);
    assert_int_equal(from_args(f, "-q --help --what", &result), GR_OK);
    assert_true(result.help);
    assert_int_equal(from_args(f, "-h", &result), GR_OK);
    assert_true(result.help);
    assert_int_equal(from_args(f, "--output=", &result), GR_OK);
    assert_string_equal(f->config.output, "");
}

static void config_sizes_and_times_with_units_are_converted(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text;
        int64_t value;
    } sizes[] = {{"4096", 4096},    {"64k", 65536},      {"64K", 65536},  {"1m", 1 << 20},
                 {"1g", 1 << 30},   {"1.5m", 3 << 19},   {"8 KiB", 8192}, {"5000b", 5000},
                 {"2mb", 2000000},  {"1GB", 1000000000}, {"5kB", 5000},   {"1.5MB", 1500000},
                 {"1GiB", 1 << 30}, {"0.5g", 1 << 29}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(
            gr_config_set(&fields[5], &f->config, sizes[i].text, "--bucket", &f->arena, &f->diag),
            GR_OK);
        assert_true(f->config.bucket_bytes == sizes[i].value);
    }
    static const struct {
        const char *text;
        int64_t value;
    } times[] = {{"5us", 5},          {"200ms", 200000},  {"10s", 10000000},
                 {"5min", 300000000}, {"1h", 3600000000}, {"0", 0},
                 {"2", 2000000},      {"0.25", 250000},   {"1.5 min", 90000000}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        assert_int_equal(
            gr_config_set(&fields[6], &f->config, times[i].text, "--wait", &f->arena, &f->diag),
            GR_OK);
        assert_true(f->config.wait_us == times[i].value);
    }
}

static void config_file_with_a_bad_value_is_refused_with_its_place(void **state)
{
    fixture *f = *state;
    static const char *const cases[][2] = {
        {"a: 1", "job.yaml:1: unknown key \"a\"; known are quiet, overlap, number_of_workers, "
                 "offset, learning_rate, bucket, wait, output, link or model"},
        {"\nlinks: shm", "job.yaml:2: unknown key \"links\"; did you mean \"link\"?"},
        {"learning_rate: fast",
         "job.yaml:1: learning_rate: must be a number from 0 to 1000, not \"fast\""},
        {"learning_rate: .nan",
         "job.yaml:1: learning_rate: must be a number from 0 to 1000, not \".nan\""},
        {"learning_rate: 1e400",
         "job.yaml:1: learning_rate: must be a number from 0 to 1000, not \"1e400\""},
        {"number_of_workers: 0",
         "job.yaml:1: number_of_workers: must be a whole number from 1 to 4096, not \"0\""},
        {"number_of_workers: 2.0",
         "job.yaml:1: number_of_workers: must be a whole number from 1 to 4096, not \"2.0\""},
        {"number_of_workers: 99999999999999999999",
         "job.yaml:1: number_of_workers: must be a whole number from 1 to 4096, not "
         "\"99999999999999999999\""},
        {"number_of_workers: '2'", "job.yaml:1: number_of_workers: must be a number, not the text "
                                   "\"2\"; remove the quotes"},
        {"quiet: 'yes'",
         "job.yaml:1: quiet: must be a truth value, not the text \"yes\"; remove the quotes"},
        {"quiet: maybe", "job.yaml:1: quiet: must be true or false, not \"maybe\""},
        {"output: [a]", "job.yaml:1: output: must be a single value, not a list"},
        {"output:", "job.yaml:1: output: has no value; write one or remove the line"},
        {"bucket: 1k", "job.yaml:1: bucket: must be a size such as 512, 64k, 1m or 2g, from 4k to "
                       "1g, not \"1k\""},
        {"wait: -1s", "job.yaml:1: wait: must be a time such as 200ms, 10s, 5min or 1h, of at "
                      "least 0, not \"-1s\""},
        {"link: tpc",
         "job.yaml:1: link: must be auto, shm or tcp, not \"tpc\"; did you mean \"tcp\"?"},
        {"link: carrier", "job.yaml:1: link: must be auto, shm or tcp, not \"carrier\""},
        {"[1]", "job.yaml:1: must be a map of keys and values, not a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        support_assert_invalid(from_yaml(f, cases[i][0]), &f->diag, cases[i][1]);
    }
}

static void bad_flag_or_variable_is_refused_with_its_name(void **state)
{
    fixture *f = *state;
    static const char *const cases[][2] = {
        {"--np four", "--np: must be a whole number from 1 to 4096, not \"four\""},
        {"-np=four", "-np: must be a whole number from 1 to 4096, not \"four\""},
        {"-nx", "-n: must be a whole number from 1 to 4096, not \"x\""},
        {"--np", "--np needs a value behind it"},
        {"--output --quiet", "--output needs a value behind it"},
        {"--lnik tcp", "unknown flag \"--lnik\"; did you mean \"--link\"?"},
        {"--no-ovrlap", "unknown flag \"--no-ovrlap\"; did you mean \"--no-overlap\"?"},
        {"--no-link", "unknown flag \"--no-link\"; did you mean \"--link\"?"},
        {"--hepl", "unknown flag \"--hepl\"; did you mean \"--help\"?"},
        {"--n 4", "unknown flag \"--n\"; did you mean \"--np\"?"},
        {"-x", "unknown flag \"-x\"; --help lists the flags"},
        {"--patience=5s", "--patience is called --wait-for-all-of-the-workers now"},
        {"--something-else=5", "unknown flag \"--something-else\"; --help lists the flags"},
        {"--no-quiet=5", "--no-quiet takes no value; leave out \"=5\""},
        {"--quiet=5", "--quiet: must be true or false, not \"5\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        support_assert_invalid(from_args(f, cases[i][0], NULL), &f->diag, cases[i][1]);
    }
    support_assert_invalid(from_env(f, "SAMPLE_PATIENCE=5s"), &f->diag,
                           "SAMPLE_PATIENCE is called SAMPLE_WAIT now");
    support_assert_invalid(from_env(f, "SAMPLE_NP=many"), &f->diag,
                           "SAMPLE_NP: must be a whole number from 1 to 4096, not \"many\"");
    support_assert_invalid(
        gr_config_set(&fields[9], &f->config, "x", "--model", &f->arena, &f->diag), &f->diag,
        "--model: can only be given in a file");
}

static void config_number_with_an_open_bound_is_accepted(void **state)
{
    fixture *f = *state;
    gr_config_field field = fields[3];
    field.min = 1;
    field.max = 0; /* below min: none */
    assert_int_equal(gr_config_set(&field, &f->config, "9223372036854775807", "x", &f->arena, NULL),
                     GR_OK);
    assert_true(f->config.offset == INT64_MAX);
    support_assert_invalid(gr_config_set(&field, &f->config, "0", "x", &f->arena, &f->diag),
                           &f->diag, "x: must be a whole number of at least 1, not \"0\"");
    field.min = -INFINITY;
    field.max = 5;
    support_assert_invalid(gr_config_set(&field, &f->config, "6", "x", &f->arena, &f->diag),
                           &f->diag, "x: must be a whole number of at most 5, not \"6\"");
    field = fields[5];
    field.min = field.max = 0;
    support_assert_invalid(gr_config_set(&field, &f->config, "-1", "x", &f->arena, &f->diag),
                           &f->diag, "x: must be a size such as 512, 64k, 1m or 2g, not \"-1\"");
}

static void config_text_beyond_the_arena_is_refused(void **state)
{
    fixture *f = *state;
    gr_arena small;
    gr_arena_init(&small, 8);
    assert_int_equal(
        gr_config_set(&fields[7], &f->config, "longer than that", "--output", &small, &f->diag),
        GR_E_NO_MEMORY);
    gr_arena_fini(&small);
}

static char *printed(void (*print)(const gr_config_table *, FILE *))
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    print(&table, file);
    fclose(file);
    return text;
}

static void help_of_a_table_shows_each_flag(void **state)
{
    (void)state;
    char *text = printed(gr_config_print_help);
    assert_string_equal(
        text,
        "  -q, --quiet                   print the lines of rank 0 only\n"
        "      --[no-]overlap            reduce while the backward pass goes on [default true;\n"
        "                                SAMPLE_OVERLAP]\n"
        "  -n, --np N                    processes that compute [1 to 4096; default 4 workers; "
        "SAMPLE_NP]\n"
        "      --offset N                any whole number | even a negative one\n"
        "      --bucket SIZE             size of a bucket; the first is full early in the backward "
        "pass, so\n"
        "                                that its reduction begins while the rest is computed [4k "
        "to 1g;\n"
        "                                default 1m]\n"
        "      --wait-for-all-of-the-workers TIME\n"
        "                                patience [at least 0; default 10s; SAMPLE_WAIT]\n"
        "      --output FOLDER           where the weights go\n"
        "      --link auto|shm|tcp       how workers talk [default auto; SAMPLE_LINK]\n"
        "  -h, --help                    show this help and end\n");
    free(text);
}

static void reference_of_a_table_shows_each_field(void **state)
{
    (void)state;
    char *text = printed(gr_config_print_markdown);
    static const char *const lines[] = {
        "## sample\n\nA table.\n\n| key | flag | environment | default | values | meaning |\n",
        "| `number_of_workers` | `-n, --np` | `SAMPLE_NP` | `4` | whole number, 1 to 4096 workers "
        "| "
        "processes that compute |\n",
        "| `learning_rate` |  |  | `0.1` | number, 0 to 1000 | step size |\n",
        "| `link` | `--link` | `SAMPLE_LINK` | `auto` | auto, shm, tcp | how workers talk |\n",
        "| `model` |  |  |  | a part of its own | the layers |\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (strstr(text, lines[i]) == NULL) {
            fail_msg("the reference lacks: %s\nit is:\n%s", lines[i], text);
        }
    }
    assert_non_null(strstr(text, "| any whole number \\| even a negative one |\n"));
    free(text);
}

#define WITH_CONFIG(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

/* A table with the fields of two choices, the first of which some choices share; and words from a
 * function. */
typedef struct parted {
    int64_t first, second, third;
    int word, other;
} parted;

static const char *parted_word(int index)
{
    static const char *const words[] = {"red", "green", "blue", NULL};
    return words[index];
}

static const gr_config_field parted_second[] = {{.key = "second",
                                                 .type = GR_CONFIG_INT,
                                                 .offset = offsetof(parted, second),
                                                 .result = "word: red"},
                                                {0}};
static const gr_config_field parted_third[] = {
    {.key = "third", .type = GR_CONFIG_INT, .offset = offsetof(parted, third), .default_text = "7"},
    {0}};

static const gr_config_field *parted_fields(int index)
{
    static const gr_config_field none[] = {{0}};
    static const gr_config_field *const all[] = {parted_second, none, parted_second};
    return all[index];
}

static const gr_config_field *parted_other(int index)
{
    return index == 2 ? parted_third : NULL;
}

static const gr_config_field parted_first[] = {
    {.key = "first", .type = GR_CONFIG_INT, .offset = offsetof(parted, first)},
    {.key = "word",
     .flag = "--word",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(parted, word),
     .choice = parted_word,
     .choice_fields = parted_fields},
    {.key = "other",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(parted, other),
     .choice = parted_word,
     .choice_fields = parted_other,
     .result = ""},
    {0}};
static const gr_config_table parts = {
    .name = "parted", .fields = parted_first, .struct_bytes = sizeof(parted)};

static void table_with_fields_of_choices_has_each_once(void **state)
{
    (void)state;
    static const char *const keys[] = {"first", "word", "other", "second", "third"};
    size_t count = 0;
    for (const gr_config_field *f = NULL; (f = gr_config_next(&parts, f)) != NULL; count++) {
        assert_string_equal(f->key, keys[count]);
    }
    assert_int_equal(count, 5);
    parted config;
    gr_arena arena;
    gr_diag diag = {0};
    gr_arena_init(&arena, 1 << 16);
    assert_int_equal(gr_config_defaults(&parts, &config, &arena, &diag), GR_OK);
    assert_int_equal(config.third, 7);
    char *argv[] = {"--word", "blue", "--word", "gren"};
    int at = 0;
    bool dashes = false, help = false;
    assert_int_equal(
        gr_config_from_args(&parts, &config, 2, argv, &at, &dashes, &help, &arena, &diag), GR_OK);
    assert_int_equal(config.word, 2);
    at = 2;
    assert_int_equal(
        gr_config_from_args(&parts, &config, 4, argv, &at, &dashes, &help, &arena, &diag),
        GR_E_INVALID);
    assert_non_null(strstr(diag.text, "red, green or blue"));
    assert_non_null(strstr(diag.text, "did you mean \"green\"?"));
    gr_arena_fini(&arena);
}

static void field_of_a_choice_applies_and_counts_with_it(void **state)
{
    (void)state;
    parted config = {.word = 0, .other = 2};
    assert_true(gr_config_applies(&parts, &config, parted_first));
    assert_false(gr_config_counts(&parts, &config, parted_first)); /* it does not say so */
    assert_true(gr_config_counts(&parts, &config, parted_third));  /* as `other` */
    assert_true(gr_config_counts(&parts, &config, parted_second));
    config = (parted){.word = 2, .other = 1};
    assert_true(gr_config_applies(&parts, &config, parted_second));
    assert_false(gr_config_counts(&parts, &config, parted_second));
    assert_true(gr_config_is_of_other(&parts, &config, parted_third));
    config.word = 1;
    assert_false(gr_config_applies(&parts, &config, parted_second));
    assert_false(gr_config_counts(&parts, &config, parted_third));
    assert_true(gr_config_is_unset(parted_first, &config));
    assert_false(gr_config_is_unset(parted_third, &config));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_CONFIG(config_without_values_has_defaults),
        WITH_CONFIG(config_layer_overrides_the_one_before),
        WITH_CONFIG(config_with_an_empty_map_is_unchanged),
        WITH_CONFIG(flags_in_every_form_are_read),
        WITH_CONFIG(config_sizes_and_times_with_units_are_converted),
        WITH_CONFIG(config_file_with_a_bad_value_is_refused_with_its_place),
        WITH_CONFIG(bad_flag_or_variable_is_refused_with_its_name),
        WITH_CONFIG(config_number_with_an_open_bound_is_accepted),
        WITH_CONFIG(config_text_beyond_the_arena_is_refused),
        cmocka_unit_test(help_of_a_table_shows_each_flag),
        cmocka_unit_test(reference_of_a_table_shows_each_field),
        cmocka_unit_test(table_with_fields_of_choices_has_each_once),
        cmocka_unit_test(field_of_a_choice_applies_and_counts_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
