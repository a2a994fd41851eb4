/* SPDX-License-Identifier: Apache-2.0 */

/* Reads documents and settings again and again, each time with the n-th allocation failing: every
 * failure must be reported as GR_E_NO_MEMORY, and the sanitizers see whether anything leaks. */

#include "base/config.h"
#include "base/file.h"
#include "base/hash.h"
#include "doc/config_node.h"
#include "support_base.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ThreadSanitizer, and clang's sanitizers, which are linked into the program, cannot stand behind a
 * malloc of the program's own. There this test has nothing to do: it has one thread, and gcc's
 * AddressSanitizer has seen it. */
#if defined(__SANITIZE_THREAD__)
#define CAN_STARVE 0
#elif defined(__clang__)
#define CAN_STARVE (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define CAN_STARVE 1
#endif

#if CAN_STARVE

/* ---- malloc and its family, in front of the real ones (the C library's or the sanitizer's) --- */

static atomic_long allocations_left = -1; /* until one fails; negative: none fails */
static atomic_long allocations_failed;

static int fails_now(void)
{
    if (allocations_left < 0) {
        return 0;
    }
    if (allocations_left == 0) {
        allocations_failed++;
        return 1; /* and so do all later ones, as when memory is really gone */
    }
    allocations_left--;
    return 0;
}

typedef void *malloc_function(size_t size);
typedef void *calloc_function(size_t count, size_t size);
typedef void *realloc_function(void *memory, size_t size);

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises the copy. */
static void find_real(const char *name, void *function_out)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    memcpy(function_out, &symbol, sizeof symbol);
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    static malloc_function *real;
    if (real == NULL) {
        find_real("malloc", &real);
    }
    return fails_now() ? NULL : real(size);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
    static calloc_function *real;
    if (real == NULL) {
        find_real("calloc", &real);
    }
    return fails_now() ? NULL : real(count, size);
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t size)
{
    static realloc_function *real;
    if (real == NULL) {
        find_real("realloc", &real);
    }
    return fails_now() ? NULL : real(memory, size);
}

/* ---- The loop -------------------------------------------------------------------------------- */

typedef gr_status work_function(void *work_arg, gr_diag *diag);

/* Runs `work` with 0, 1, 2, ... allocations until it gets what it needs. jansson_may_lie: jansson
 * reports some of its failed allocations as an unexpected token. */
static void starve(work_function *work, void *work_arg, bool jansson_may_lie)
{
    enum { ROUNDS_MAX = 100000 };
    for (long round = 0; round < ROUNDS_MAX; round++) {
        gr_diag diag = {0};
        allocations_failed = 0;
        allocations_left = round;
        gr_status status = work(work_arg, &diag);
        allocations_left = -1;
        if (allocations_failed == 0) {
            assert_string_equal(diag.text, "");
            assert_int_equal(status, GR_OK);
            assert_true(round > 0); /* the hook is in place */
            return;
        }
        if (jansson_may_lie && strstr(diag.text, "not valid JSON") != NULL) {
            continue;
        }
        if (status != GR_E_NO_MEMORY) {
            fail_msg("%s after %ld allocations: %s", gr_status_name(status), round, diag.text);
        }
        assert_non_null(strstr(diag.text, "memory"));
    }
    fail_msg("still starving after %d rounds", ROUNDS_MAX);
}

static const char yaml_text[] = "name: digits\n"
                                "optimizer: &o\n"
                                "  learning_rate: 0.1\n"
                                "layers: [{linear: 10}, relu, \"x\", *o]\n"
                                "text: |\n"
                                "  many\n"
                                "  lines\n";

static gr_status parse_yaml(void *work_arg, gr_diag *diag)
{
    (void)work_arg;
    gr_doc *doc = NULL;
    gr_status status = gr_doc_parse_yaml("job.yaml", yaml_text, sizeof yaml_text - 1, &doc, diag);
    gr_doc_destroy(doc);
    return status;
}

static gr_status parse_big_yaml(void *work_arg, gr_diag *diag)
{
    const char *text = work_arg;
    gr_doc *doc = NULL;
    gr_status status = gr_doc_parse_yaml("job.yaml", text, strlen(text), &doc, diag);
    gr_doc_destroy(doc);
    return status;
}

static gr_status parse_json(void *work_arg, gr_diag *diag)
{
    (void)work_arg;
    static const char text[] = "{\"a\": [1, 2.5, \"x\\ny\", {\"b\": null}], \"c\\t\": true}";
    gr_doc *doc = NULL;
    gr_status status = gr_doc_parse_json("a.json", text, sizeof text - 1, &doc, diag);
    gr_doc_destroy(doc);
    return status;
}

typedef struct sample_config {
    const char *name;
    const char *unset;
    const gr_node *optimizer, *layers;
    const char *text;
} sample_config;

static const gr_config_field fields[] = {
    {.key = "name",
     .flag = "--name",
     .env = "SAMPLE_NAME",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(sample_config, name),
     .default_text = "job"},
    {.key = "optimizer", .type = GR_CONFIG_NODE, .offset = offsetof(sample_config, optimizer)},
    {.key = "layers", .type = GR_CONFIG_NODE, .offset = offsetof(sample_config, layers)},
    {.key = "text", .type = GR_CONFIG_TEXT, .offset = offsetof(sample_config, text)},
    {0}};
static const gr_config_table table = {
    .name = "sample", .fields = fields, .struct_bytes = sizeof(sample_config)};

static gr_status read_config(void *work_arg, gr_diag *diag)
{
    const gr_doc *doc = work_arg;
    char name_variable[] = "SAMPLE_NAME=other";
    char *environment[] = {name_variable, NULL};
    static char big[6000] = "--name=";
    memset(big + 7, 'x', sizeof big - 8); /* larger than a block of the arena */
    char *argv[] = {big, NULL};
    sample_config config;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    gr_status status = gr_config_defaults(&table, &config, &arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_node(&table, &config, gr_doc_root(doc), &arena, diag);
    }
    if (status == GR_OK) {
        status = gr_config_from_env(&table, &config, environment, &arena, diag);
    }
    int at = 0;
    bool dashes;
    bool help;
    if (status == GR_OK) {
        status = gr_config_from_args(&table, &config, 1, argv, &at, &dashes, &help, &arena, diag);
    }
    gr_arena_fini(&arena);
    return status;
}

static gr_status write_and_read_file(void *work_arg, gr_diag *diag)
{
    char path[PATH_MAX];
    support_path(work_arg, "sub/folder", path);
    gr_status status = gr_dir_create(path, diag);
    support_path(work_arg, "file", path);
    if (status == GR_OK) {
        status = gr_file_replace(path, "abc", 3, diag);
    }
    char *data = NULL;
    size_t size = 0;
    if (status == GR_OK) {
        status = gr_file_read(path, 10, &data, &size, diag);
        free(data);
    }
    if (status == GR_OK) {
        status = gr_file_read("/proc/self/status", 1 << 20, &data, &size, diag);
        if (status == GR_OK) {
            free(data);
        }
    }
    return status;
}

static void yaml_without_memory_is_refused(void **state)
{
    (void)state;
    starve(parse_yaml, NULL, false);
}

static void large_yaml_without_memory_is_refused(void **state)
{
    (void)state;
    char text[4096];
    size_t size = 0;
    for (int i = 0; i < 60; i++) {
        size += (size_t)snprintf(text + size, sizeof text - size, "key_%d: {a: %d}\n", i, i);
    }
    starve(parse_big_yaml, text, false);
}

static void json_without_memory_is_refused(void **state)
{
    (void)state;
    starve(parse_json, NULL, true);
}

static void config_without_memory_is_refused(void **state)
{
    (void)state;
    gr_doc *doc = NULL;
    assert_int_equal(gr_doc_parse_yaml("job.yaml", yaml_text, sizeof yaml_text - 1, &doc, NULL),
                     GR_OK);
    starve(read_config, doc, false);
    gr_doc_destroy(doc);
}

static void file_without_memory_is_refused(void **state)
{
    starve(write_and_read_file, *state, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_without_memory_is_refused),
        cmocka_unit_test(large_yaml_without_memory_is_refused),
        cmocka_unit_test(json_without_memory_is_refused),
        cmocka_unit_test(config_without_memory_is_refused),
        cmocka_unit_test_setup_teardown(file_without_memory_is_refused, support_setup_folder,
                                        support_teardown_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("skipped: this sanitizer has to have malloc for itself");
    return 0;
}

#endif
