/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include "base/config_text.h"
#include "base/fail.h"
#include "base/text.h"

#include <string.h>

enum { WHERE_BYTES = 160 };

/* ---- Defaults -------------------------------------------------------------------------------- */

gr_status gr_config_defaults(const gr_config_table *table, void *config, gr_arena *arena,
                             gr_diag *diag)
{
    memset(config, 0, table->struct_bytes);
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (field->default_text == NULL) {
            continue;
        }
        const char *name = field->key != NULL ? field->key : field->flag;
        char where[WHERE_BYTES];
        snprintf(where, sizeof where, "default of %s.%s", table->name,
                 name != NULL ? name : (field->env != NULL ? field->env : "?"));
        gr_status status = gr_config_set(field, config, field->default_text, where, arena, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* ---- Conditions ------------------------------------------------------------------------------ */

bool gr_config_holds(const gr_config_table *table, const void *config, const char *condition)
{
    size_t size = strcspn(condition, ":");
    const gr_config_field *field = NULL;
    while ((field = gr_config_next(table, field)) != NULL &&
           (field->key == NULL || strncmp(field->key, condition, size) != 0 ||
            field->key[size] != '\0')) {
    }
    if (condition[size] == '\0' || field == NULL ||
        (field->type != GR_CONFIG_CHOICE && field->type != GR_CONFIG_BOOL)) {
        return condition[0] == '\0';
    }
    const void *at = (const char *)config + field->offset;
    const char *is = field->type == GR_CONFIG_CHOICE ? gr_config_choice(field, *(const int *)at)
                     : *(const bool *)at             ? "true"
                                                     : "false";
    for (const char *word = condition + size + 1; *word != '\0'; word += strcspn(word, "|")) {
        word += strspn(word, " |");
        if (strcspn(word, "|") == strlen(is) && strncmp(word, is, strlen(is)) == 0) {
            return field->needs == NULL || gr_config_holds(table, config, field->needs);
        }
    }
    return false;
}

/* The choice that `field` is of; NULL: all have it. */
static const gr_config_field *choice_of(const gr_config_table *table, const gr_config_field *field)
{
    for (const gr_config_field *at = table->fields; !gr_config_is_end(at); at++) {
        for (int i = 0; at->choice_fields != NULL && gr_config_choice(at, i) != NULL; i++) {
            if (gr_config_is_among(at->choice_fields(i), field)) {
                return at;
            }
        }
    }
    return NULL;
}

bool gr_config_is_of_other(const gr_config_table *table, const void *config,
                           const gr_config_field *field)
{
    const gr_config_field *choice = choice_of(table, field);
    int chosen = 0;
    if (choice != NULL) {
        memcpy(&chosen, (const char *)config + choice->offset, sizeof chosen);
    }
    return choice != NULL && !gr_config_is_among(choice->choice_fields(chosen), field);
}

bool gr_config_applies(const gr_config_table *table, const void *config,
                       const gr_config_field *field)
{
    return (field->needs == NULL || gr_config_holds(table, config, field->needs)) &&
           !gr_config_is_of_other(table, config, field);
}

bool gr_config_counts(const gr_config_table *table, const void *config,
                      const gr_config_field *field)
{
    const gr_config_field *choice = field->result == NULL ? choice_of(table, field) : NULL;
    const char *result = choice != NULL ? choice->result : field->result;
    return result != NULL && gr_config_holds(table, config, result) &&
           gr_config_applies(table, config, field);
}

bool gr_config_is_unset(const gr_config_field *field, const void *config)
{
    const void *at = (const char *)config + field->offset;
    switch (field->type) {
    case GR_CONFIG_TEXT:
    case GR_CONFIG_NODE:
    case GR_CONFIG_LIST:
        return *(const void *const *)at == NULL;
    case GR_CONFIG_INT:
    case GR_CONFIG_BYTES:
    case GR_CONFIG_DURATION:
        return field->default_text == NULL && *(const int64_t *)at == 0;
    case GR_CONFIG_DOUBLE:
        return field->default_text == NULL && *(const double *)at == 0;
    default:
        return false;
    }
}

/* ---- Environment ----------------------------------------------------------------------------- */

const char *gr_config_variable(char *const *environment, const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; environment[i] != NULL; i++) {
        if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=') {
            return environment[i] + length + 1;
        }
    }
    return NULL;
}

gr_status gr_config_from_env(const gr_config_table *table, void *config, char *const *environment,
                             gr_arena *arena, gr_diag *diag)
{
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        const char *text = field->env != NULL ? gr_config_variable(environment, field->env) : NULL;
        const char *former =
            field->former_env != NULL ? gr_config_variable(environment, field->former_env) : NULL;
        if (former != NULL && former[0] != '\0') {
            return gr_fail(diag, GR_E_INVALID, "%s is called %s now", field->former_env,
                           field->env);
        }
        if (text == NULL || text[0] == '\0') {
            continue;
        }
        gr_status status = gr_config_set(field, config, text, field->env, arena, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* ---- Flags ----------------------------------------------------------------------------------- */

enum { FLAG_BYTES_MAX = 64 };

typedef struct flag_word {
    char name[FLAG_BYTES_MAX]; /* as written, without "=value" */
    const char *value;         /* behind "=" or the letter; NULL: none */
    const gr_config_field *field;
    bool negated; /* --no-name */
} flag_word;

static const char *without_dashes(const char *name)
{
    while (*name == '-') {
        name++;
    }
    return name;
}

/* One dash or two in front of a name of several letters: "-np" and "--np" are the same flag. */
static bool is_flag(const char *flag, const char *name)
{
    const char *a = without_dashes(flag);
    const char *b = without_dashes(name);
    if (b[0] != '\0' && b[1] == '\0' && name[1] == '-') {
        return strcmp(flag, name) == 0; /* "--n" is not "-n" */
    }
    return strcmp(a, b) == 0;
}

static void find_flag(const gr_config_table *table, flag_word *word)
{
    const char *bare = without_dashes(word->name);
    bool one_letter = word->name[1] != '-' && bare[0] != '\0' && bare[1] == '\0';
    bool no = strncmp(bare, "no-", 3) == 0;
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if ((one_letter && field->short_flag == bare[0]) ||
            (field->flag != NULL && is_flag(field->flag, word->name))) {
            word->field = field;
            word->negated = false;
            return;
        }
        if (no && field->flag != NULL && field->type == GR_CONFIG_BOOL &&
            strcmp(without_dashes(field->flag), bare + 3) == 0) {
            word->field = field;
            word->negated = true;
        }
    }
}

/* "-n4": a letter that takes a value, and the value. */
static void find_letter(const gr_config_table *table, const char *text, flag_word *word)
{
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (text[1] != '-' && field->short_flag == text[1] && field->type != GR_CONFIG_BOOL) {
            word->field = field;
            word->name[0] = '-';
            word->name[1] = text[1];
            word->name[2] = '\0';
            word->value = text + 2;
            return;
        }
    }
}

static void read_word(const gr_config_table *table, const char *text, flag_word *word)
{
    *word = (flag_word){.value = NULL};
    size_t length = strcspn(text, "=");
    if (length < sizeof word->name) {
        memcpy(word->name, text, length);
        word->value = text[length] == '=' ? text + length + 1 : NULL;
        find_flag(table, word);
    }
    if (word->field == NULL) {
        find_letter(table, text, word);
    }
}

static size_t count_fields(const gr_config_table *table)
{
    size_t count = 0;
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        count++;
    }
    return count;
}

/* As "--nproc_per_node" is "--nproc-per-node". */
static bool is_same_name(const char *a, const char *b)
{
    while (*a != '\0' && (*a == *b || (*a == '_' && *b == '-') || (*a == '-' && *b == '_'))) {
        a++;
        b++;
    }
    return *a == *b;
}

static const gr_config_foreign *find_foreign(const gr_config_table *table, const char *name)
{
    for (const gr_config_foreign *at = table->foreign; at != NULL && at->flag != NULL; at++) {
        if (is_same_name(without_dashes(name), without_dashes(at->flag))) {
            return at;
        }
    }
    return NULL;
}

static gr_status fail_unknown_flag(const gr_config_table *table, const char *text, gr_arena *arena,
                                   gr_diag *diag)
{
    char name[FLAG_BYTES_MAX];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "="), text);
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (field->former_flag != NULL && is_flag(field->former_flag, name)) {
            return gr_fail(diag, GR_E_INVALID, "%s is called %s now", name, field->flag);
        }
    }
    char quoted[GR_VALUE_BYTES];
    gr_text_quote(name, quoted);
    const gr_config_foreign *foreign = find_foreign(table, name);
    if (foreign != NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s is a flag of %s; here: %s", quoted, foreign->whose,
                       foreign->ours);
    }
    /* Two for each field, for bool's --no-name, "--help" and the end. */
    const char **known = gr_arena_alloc(arena, (2 * count_fields(table) + 2) * sizeof *known);
    if (known == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "unknown flag %s, and not enough memory", quoted);
    }
    size_t count = 0;
    known[count++] = "--help";
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (field->flag == NULL) {
            continue;
        }
        known[count++] = field->flag;
        const char *no = field->type == GR_CONFIG_BOOL
                             ? gr_arena_printf(arena, "--no-%s", without_dashes(field->flag))
                             : NULL;
        if (no != NULL) {
            known[count++] = no;
        }
    }
    const char *nearest = gr_nearest(name, known);
    if (nearest != NULL) {
        return gr_fail(diag, GR_E_INVALID, "unknown flag %s; did you mean \"%s\"?", quoted,
                       nearest);
    }
    return gr_fail(diag, GR_E_INVALID, "unknown flag %s; --help lists the flags", quoted);
}

static gr_status apply_flag(const flag_word *word, void *config, const char *next, bool *took_next,
                            gr_arena *arena, gr_diag *diag)
{
    const gr_config_field *field = word->field;
    *took_next = false;
    if (field->type == GR_CONFIG_BOOL) {
        if (word->negated && word->value != NULL) {
            return gr_fail(diag, GR_E_INVALID, "%s takes no value; leave out \"=%.60s\"",
                           word->name, word->value);
        }
        const char *text = word->value != NULL ? word->value : (word->negated ? "no" : "yes");
        return gr_config_set(field, config, text, word->name, arena, diag);
    }
    const char *text = word->value;
    if (text == NULL) {
        /* What begins with two dashes is the next flag; a negative number has one. */
        if (next == NULL || strncmp(next, "--", 2) == 0) {
            return gr_fail(diag, GR_E_INVALID, "%s needs a value behind it", word->name);
        }
        text = next;
        *took_next = true;
    }
    return gr_config_set(field, config, text, word->name, arena, diag);
}

gr_status gr_config_from_args(const gr_config_table *table, void *config, int argc,
                              char *const *argv, int *at, bool *dashes_out, bool *help_out,
                              gr_arena *arena, gr_diag *diag)
{
    *dashes_out = false;
    *help_out = false;
    while (*at < argc) {
        const char *text = argv[*at];
        if (text[0] != '-' || text[1] == '\0') {
            return GR_OK; /* "-" by itself is a file name to many programs */
        }
        if (strcmp(text, "--") == 0) {
            *dashes_out = true;
            ++*at;
            return GR_OK;
        }
        flag_word word;
        read_word(table, text, &word);
        if (word.field == NULL) {
            if (strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0) {
                *help_out = true;
                ++*at;
                return GR_OK;
            }
            return fail_unknown_flag(table, text, arena, diag);
        }
        bool took_next = false;
        gr_status status = apply_flag(&word, config, *at + 1 < argc ? argv[*at + 1] : NULL,
                                      &took_next, arena, diag);
        if (status != GR_OK) {
            return status;
        }
        *at += took_next ? 2 : 1;
    }
    return GR_OK;
}
