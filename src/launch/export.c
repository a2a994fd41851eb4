/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/export.h"

#include "base/fail.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

const char *const gr_export_usual[] = {"PATH",         "LD_*",           "PYTHON*",
                                       "VIRTUAL_ENV",  "CONDA_*",        "LANG",
                                       "LANGUAGE",     "LC_*",           "TZ",
                                       "GRADUS_*",     "OMP_*",          "GOMP_*",
                                       "KMP_*",        "MKL_*",          "BLIS_*",
                                       "OPENBLAS_*",   "DNNL_*",         "ONEDNN_*",
                                       "CUDA_*",       "NVIDIA_*",       "NCCL_*",
                                       "GLOO_*",       "TORCH_*",        "PYTORCH_*",
                                       "TF_*",         "XLA_*",          "JAX_*",
                                       "KERAS_*",      "HOROVOD_*",      "ASAN_OPTIONS",
                                       "LSAN_OPTIONS", "TSAN_OPTIONS",   "UBSAN_OPTIONS",
                                       "MALLOC_*",     "GLIBC_TUNABLES", NULL};

/* Returns true if `entry` matches the pattern: NAME, or PREFIX*. */
static bool matches(const char *pattern, const char *entry)
{
    size_t size = strlen(pattern);
    bool prefix = size > 0 && pattern[size - 1] == '*';
    size -= prefix;
    return strncmp(entry, pattern, size) == 0 && (prefix || entry[size] == '=');
}

static bool matches_any(const char *const *patterns, const char *entry)
{
    for (size_t i = 0; patterns[i] != NULL; i++) {
        if (matches(patterns[i], entry)) {
            return true;
        }
    }
    return false;
}

static bool is_name(const char *text, size_t size)
{
    bool good = size > 0 && !isdigit((unsigned char)text[0]);
    for (size_t i = 0; i < size && good; i++) {
        good = isalnum((unsigned char)text[i]) || text[i] == '_';
    }
    return good;
}

static gr_status refuse(const char *word, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID,
                   "--export: \"%s\" is no variable; write NAME, PREFIX*, NAME=VALUE, ALL or NONE",
                   word);
}

/* What the words ask for. */
typedef struct request {
    bool all, usual;
    const char **names, **set; /* NULL-terminated */
    size_t name_count, set_count;
} request;

static gr_status read_names(char *rest, request *to, gr_diag *diag)
{
    char *word;
    while ((word = strsep(&rest, ",")) != NULL) {
        size_t size = strlen(word);
        if (strcmp(word, "ALL") == 0) {
            to->all = true;
        } else if (strcmp(word, "NONE") == 0) {
            to->usual = false;
        } else if (is_name(word, size - (size > 1 && word[size - 1] == '*'))) {
            to->names[to->name_count++] = word;
        } else {
            return refuse(word, diag);
        }
    }
    return GR_OK;
}

static gr_status read_words(const char *const *words, gr_arena *arena, request *to, gr_diag *diag)
{
    size_t names = 1, count = 0;
    for (; words != NULL && words[count] != NULL; count++) {
        names++;
        for (const char *at = words[count]; *at != '\0'; at++) {
            names += *at == ',';
        }
    }
    to->usual = true;
    to->names = gr_arena_alloc(arena, names * sizeof *to->names);
    to->set = gr_arena_alloc(arena, (count + 1) * sizeof *to->set);
    gr_status status = to->names != NULL && to->set != NULL ? GR_OK : GR_E_NO_MEMORY;
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        const char *equals = strchr(words[i], '=');
        char *copy = equals == NULL ? gr_arena_strdup(arena, words[i]) : NULL;
        if (equals != NULL && !is_name(words[i], (size_t)(equals - words[i]))) {
            return refuse(words[i], diag);
        }
        if (equals != NULL) {
            to->set[to->set_count++] = words[i];
        } else {
            status = copy != NULL ? read_names(copy, to, diag) : GR_E_NO_MEMORY;
        }
    }
    return status == GR_E_NO_MEMORY ? gr_fail(diag, status, "no memory for --export") : status;
}

static const char *find_absent(const char *const *names, char *const *environment)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        bool found = strchr(names[i], '*') != NULL;
        for (size_t at = 0; environment[at] != NULL && !found; at++) {
            found = matches(names[i], environment[at]);
        }
        if (!found) {
            return names[i];
        }
    }
    return NULL;
}

gr_status gr_export(const char *const *words, char *const *environment, gr_arena *arena,
                    gr_exported *exported_out, gr_diag *diag)
{
    request wanted = {0};
    size_t count = 0, kept = 0;
    gr_status status = read_words(words, arena, &wanted, diag);
    if (status != GR_OK) {
        return status;
    }
    if (wanted.set_count > GR_EXPORT_SET_MAX) {
        return gr_fail(diag, GR_E_INVALID, "--export: more than %d of NAME=VALUE",
                       GR_EXPORT_SET_MAX);
    }
    while (environment[count] != NULL) {
        count++;
    }
    char **entries = gr_arena_alloc(arena, (count + 1) * sizeof *entries);
    if (entries == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for --export");
    }
    for (size_t i = 0; i < count; i++) {
        if (wanted.all || matches_any(wanted.names, environment[i]) ||
            (wanted.usual && matches_any(gr_export_usual, environment[i]))) {
            entries[kept++] = environment[i];
        }
    }
    *exported_out = (gr_exported){.environment = entries,
                                  .set = wanted.set,
                                  .absent = find_absent(wanted.names, environment)};
    return GR_OK;
}
