/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/environment.h"

#include "base/config_text.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"
#include "cli/cli.h"
#include "coll/select/select.h"
#include "coll/select/tune.h"
#include "group/group.h"
#include "link/address.h"
#include "link/interface.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 64, KNOWN_MAX = 256 };
#define PREFIX "GRADUS_"
enum { PREFIX_BYTES = sizeof PREFIX - 1 };

/* ---- Variables that no other table has ------------------------------------------------------- */

typedef struct other_variables {
    const char *join_token, *join_token_file, *host;
    int64_t terminal_columns;
    bool servers_met;
} other_variables;

#define AT(member) .offset = offsetof(other_variables, member)

static const gr_config_field fields[] = {
    {.env = "GRADUS_JOIN_TOKEN_FILE",
     .type = GR_CONFIG_TEXT,
     AT(join_token_file),
     .value_name = "FILE",
     .help = "a file of mode 0600 with the token by which gradus run --listen and gradus agent "
             "--join know each other; the former makes it"},
    {.env = "GRADUS_JOIN_TOKEN",
     .type = GR_CONFIG_TEXT,
     AT(join_token),
     .value_name = "HEX",
     .help = "the token itself, 64 hexadecimal digits"},
    {.env = "GRADUS_HOSTNAME",
     .type = GR_CONFIG_TEXT,
     AT(host),
     .value_name = "NAME",
     .help = "the name by which `gradus run` knows the worker's host; set by it"},
    {.env = "GRADUS_TERMINAL_COLUMNS",
     .type = GR_CONFIG_INT,
     AT(terminal_columns),
     .default_text = "0",
     .max = 1e6,
     .help = "columns of the terminal that shows a worker's output, 0: it is none; set by `gradus "
             "run`"},
    {.env = "GRADUS_SERVERS_MET",
     .type = GR_CONFIG_BOOL,
     AT(servers_met),
     .help = "a line that `gradus server` prints when all servers have met"},
    {0},
};

const gr_config_table gr_environment_table = {
    .name = "environment",
    .title = "Variables that no other table has",
    .fields = fields,
    .struct_bytes = sizeof(other_variables),
};

/* ---- Names ----------------------------------------------------------------------------------- */

/* Of Gradus' own tests and scripts, which start the command with them. */
static bool is_of_tests(const char *name)
{
    static const char *const names[] = {"GRADUS_BUILD_DIR",  "GRADUS_SOURCE_DIR",
                                        "GRADUS_CHROOT_DIR", "GRADUS_CHAOS_MARK",
                                        "GRADUS_SIM_SEED",   "GRADUS_SIM_SEEDS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return strncmp(name, "GRADUS_TEST_", sizeof "GRADUS_TEST_" - 1) == 0;
}

/* GRADUS_SERVER_3: the line of one of several servers. */
static bool is_of_server(const char *name)
{
    enum { BEGIN = sizeof "GRADUS_SERVER_" - 1 };
    return strncmp(name, "GRADUS_SERVER_", BEGIN) == 0 && isdigit((unsigned char)name[BEGIN]) &&
           name[BEGIN + strspn(name + BEGIN, "0123456789")] == '\0';
}

/* All variables that the tables have, without the prefix, which would make all names alike. */
static void list_known(const char *known_out[KNOWN_MAX + 1])
{
    size_t count = 0;
    for (size_t i = 0; gr_reference_tables[i] != NULL; i++) {
        const gr_config_field *field = NULL;
        while ((field = gr_config_next(gr_reference_tables[i], field)) != NULL) {
            if (field->env != NULL && count < KNOWN_MAX) {
                known_out[count++] = field->env + PREFIX_BYTES;
            }
        }
    }
    known_out[count] = NULL;
}

/* What the variable is called today; NULL: it has not been renamed. */
static const char *renamed(const char *name)
{
    for (size_t i = 0; gr_reference_tables[i] != NULL; i++) {
        const gr_config_field *field = gr_reference_tables[i]->fields;
        for (; !gr_config_is_end(field); field++) {
            if (field->former_env != NULL && strcmp(name, field->former_env) == 0) {
                return field->env;
            }
        }
    }
    return NULL;
}

static gr_status check_name(const char *name, gr_diag *diag)
{
    const char *known[KNOWN_MAX + 1];
    list_known(known);
    for (size_t i = 0; known[i] != NULL; i++) {
        if (strcmp(name + PREFIX_BYTES, known[i]) == 0) {
            return GR_OK;
        }
    }
    if (is_of_tests(name) || is_of_server(name)) {
        return GR_OK;
    }
    const char *today = renamed(name);
    if (today != NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s is called %s now", name, today);
    }
    const char *nearest = gr_nearest(name + PREFIX_BYTES, known);
    if (nearest != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "there is no variable %s; did you mean " PREFIX "%s? (unset %s)", name,
                       nearest, name);
    }
    return gr_fail(diag, GR_E_INVALID,
                   "there is no variable %s; `gradus info --config` lists those that begin "
                   "with " PREFIX " (unset %s)",
                   name, name);
}

/* What a rank would read. The copy of the secret is wiped at once: nobody here needs it. */
static gr_status read_as_rank(char *const *environment, gr_arena *arena, gr_group_config *out,
                              gr_diag *diag)
{
    gr_status status = gr_config_defaults(&gr_group_config_table, out, arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_env(&gr_group_config_table, out, environment, arena, diag);
        if (out->secret_hex != NULL) {
            gr_wipe((void *)(uintptr_t)out->secret_hex, strlen(out->secret_hex)); /* the arena's */
            out->secret_hex = NULL;
        }
    }
    return status;
}

gr_status gr_environment_check(char *const *environment, gr_arena *arena, gr_diag *diag)
{
    gr_group_config config;
    for (size_t i = 0; environment[i] != NULL; i++) {
        const char *entry = environment[i];
        size_t size = strcspn(entry, "=");
        if (strncmp(entry, PREFIX, PREFIX_BYTES) != 0 || entry[size] == '\0') {
            continue;
        }
        char name[NAME_BYTES_MAX];
        snprintf(name, sizeof name, "%.*s", (int)size, entry);
        gr_status status = check_name(name, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return read_as_rank(environment, arena, &config, diag);
}

/* ---- What depends on the job ----------------------------------------------------------------- */

static gr_status check_tuning(const char *path, const gr_environment_job *job, int rails,
                              gr_diag *diag)
{
    if (path == NULL || strcmp(path, "auto") == 0 || strcmp(path, "off") == 0 || !job->here) {
        return GR_OK;
    }
    gr_tuning *tuning = malloc(sizeof *tuning);
    if (tuning == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the costs of GRADUS_TUNE");
    }
    gr_diag why = {0};
    gr_tuning_init(tuning, job->workers, GR_LINK_SHM, 1);
    gr_status status = gr_tuning_read(path, tuning, &why);
    if (status == GR_OK && job->all_join && job->workers > 1) {
        /* How many connections there are between two ranks is chosen by the ranks. */
        gr_link_kind link = job->by_tcp ? GR_LINK_TCP : GR_LINK_SHM;
        int of_file = rails > 0 ? rails : tuning->rails;
        status = gr_tuning_check(tuning, path, job->workers, link, of_file, &why);
    }
    free(tuning);
    return status == GR_OK ? GR_OK : gr_fail(diag, status, "GRADUS_TUNE: %s", why.text);
}

static gr_status check_interfaces(const char *names, const gr_environment_job *job, gr_diag *diag)
{
    gr_interfaces found;
    return names != NULL && job->here ? gr_interfaces_find(names, &found, diag) : GR_OK;
}

gr_status gr_environment_check_job(char *const *environment, const gr_environment_job *job,
                                   gr_arena *arena, gr_diag *diag)
{
    gr_group_config config;
    gr_ports ports;
    gr_select_rules *rules = NULL;
    gr_status status = read_as_rank(environment, arena, &config, diag);
    if (status == GR_OK && config.algorithm != NULL) {
        rules = gr_arena_alloc(arena, sizeof *rules);
        status = rules != NULL
                     ? gr_select_rules_parse(rules, config.algorithm, job->exact && config.exact,
                                             job->workers, diag)
                     : gr_fail(diag, GR_E_NO_MEMORY, "no memory for GRADUS_ALGORITHM");
    }
    if (status == GR_OK) {
        status = gr_ports_parse(config.ports, &ports, diag);
    }
    if (status == GR_OK) {
        status = check_interfaces(config.interfaces, job, diag);
    }
    return status == GR_OK ? check_tuning(config.tune, job, config.rails, diag) : status;
}
