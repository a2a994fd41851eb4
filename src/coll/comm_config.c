/* SPDX-License-Identifier: Apache-2.0 */

/* gr_comm_config in the terms of the group, which knows one configuration, whoever fills it. */

#include "base/arena.h"
#include "base/config_text.h"
#include "base/fail.h"
#include "base/text.h"
#include "coll/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_DIGITS = 64, SETTINGS_MAX = 128, NAME_BYTES = 64 };

void gr_comm_config_init(gr_comm_config *config)
{
    if (config) {
        *config = (gr_comm_config){.struct_size = sizeof *config};
    }
}

/* ---- What may be wrong ----------------------------------------------------------------------- */
/* A program that was built with a newer header may run with this library as long as it does not use
 * what the library does not know. */
static gr_status check_size(const gr_comm_config *config, gr_diag *diag)
{
    size_t known = sizeof *config, given = config->struct_size;
    if (given < known || given > 16 * known) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_comm_create: struct_size is %zu, but a gr_comm_config has %zu bytes; "
                       "call gr_comm_config_init first",
                       given, known);
    }
    const uint8_t *bytes = (const uint8_t *)config;
    for (size_t i = known; i < given; i++) {
        if (bytes[i] != 0) {
            return gr_fail(diag, GR_E_UNSUPPORTED,
                           "gr_comm_create: the config sets what this library does not know: the "
                           "program was built for a newer one");
        }
    }
    return GR_OK;
}

static gr_status check_identity(const gr_comm_config *config, gr_diag *diag)
{
    if (config->size == 0) {
        bool bare = !config->bootstrap && !config->coordinator && config->rank == 0;
        return bare ? GR_OK
                    : gr_fail(diag, GR_E_INVALID,
                              "gr_comm_create: the size is 0, which means that rank, size and "
                              "coordinator come from the environment; set the size as well");
    }
    if (config->size < 0 || config->size > GR_GROUP_WORLD_MAX) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_create: the size is %d; it must be 1 .. %d",
                       config->size, GR_GROUP_WORLD_MAX);
    }
    if (config->rank < 0 || config->rank >= config->size) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_comm_create: the rank is %d; of %d ranks it must be 0 .. %d",
                       config->rank, config->size, config->size - 1);
    }
    if (config->size > 1 && !config->bootstrap == !config->coordinator) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_comm_create: %d ranks find each other by `bootstrap` or by "
                       "`coordinator`; set one of the two",
                       config->size);
    }
    return GR_OK;
}

static gr_status check_values(const gr_comm_config *config, gr_diag *diag)
{
    size_t digits = config->secret ? strlen(config->secret) : SECRET_DIGITS;
    if (digits != SECRET_DIGITS) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_comm_create: the secret has %zu characters; it must be %d hexadecimal "
                       "digits",
                       digits, SECRET_DIGITS);
    }
    if (config->log_level < GR_LOG_OFF || config->log_level > GR_LOG_TRACE) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_create: %d is no gr_log_level",
                       (int)config->log_level);
    }
    if (config->inexact != 0 && config->inexact != 1) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_create: inexact is %d; it must be 0 or 1",
                       config->inexact);
    }
    if (config->threads < GR_THREADS_AUTO || config->threads > GR_THREADS_MANY) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_create: %d is no gr_threads",
                       (int)config->threads);
    }
    return GR_OK;
}

/* ---- Into the group's terms ------------------------------------------------------------------ */
/* Rank, size and place are the caller's; whatever a launcher has set is about another group. */
static gr_status set_identity(gr_group_config *to, const gr_comm_config *from, gr_arena *arena,
                              gr_diag *diag)
{
    bool alone = from->size == 1; /* and has nobody to find */
    to->rank = alone ? -1 : from->rank;
    to->world_size = from->size;
    to->local_rank = to->local_size = 0;
    to->members_min = to->members_max = 0;
    to->failover = to->joining = false;
    to->launch = (gr_launch){.name = NULL};
    to->allgather = alone ? NULL : from->bootstrap;
    to->allgather_arg = from->bootstrap_arg;
    to->coordinator = alone ? NULL : from->coordinator;
    if (from->secret) { /* a copy, since it is wiped */
        to->secret_hex = gr_arena_printf(arena, "%s", from->secret);
        if (!to->secret_hex) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
        }
    }
    return GR_OK;
}

static void set_time(int64_t *to_us, int64_t from_us)
{
    if (from_us != 0) {
        *to_us = from_us > 0 ? from_us : 0; /* there 0 is without limit */
    }
}

/* Returns true if the reference page lists `setting`. Otherwise near_out is a similar setting, or
 * "". */
static bool is_listed(const char *setting, char near_out[NAME_BYTES])
{
    const char *names[SETTINGS_MAX + 1] = {NULL};
    size_t size = strcspn(setting, "="), count = 0;
    near_out[0] = '\0';
    for (const gr_config_field *field = gr_group_config_table.fields; !gr_config_is_end(field);
         field++) {
        if (field->env && strncmp(field->env, setting, size) == 0 && !field->env[size]) {
            return true;
        }
        if (field->env && count < SETTINGS_MAX) {
            names[count++] = field->env;
        }
    }
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)(size < NAME_BYTES ? size : NAME_BYTES - 1), setting);
    const char *near = gr_nearest(name, names);
    snprintf(near_out, NAME_BYTES, "%s%s", near ? "; did you mean " : "", near ? near : "");
    return false;
}

static gr_status set_settings(gr_group_config *to, const gr_comm_config *from, gr_arena *arena,
                              gr_diag *diag)
{
    static const char *const identity[] = {
        "GRADUS_RANK=", "GRADUS_WORLD_SIZE=", "GRADUS_COORDINATOR=", "GRADUS_SECRET="};
    for (size_t i = 0; from->settings && from->settings[i]; i++) {
        const char *setting = from->settings[i];
        bool known = strncmp(setting, "GRADUS_", 7) == 0 && strchr(setting, '=');
        for (size_t k = 0; k < sizeof identity / sizeof identity[0] && known; k++) {
            known = strncmp(setting, identity[k], strlen(identity[k])) != 0;
        }
        if (!known) {
            return gr_fail(diag, GR_E_INVALID,
                           "gr_comm_create: \"%.100s\" is no setting; one looks like "
                           "\"GRADUS_SPIN=50us\", and has no member of its own",
                           setting);
        }
        char near[NAME_BYTES];
        if (!is_listed(setting, near)) {
            return gr_fail(diag, GR_E_INVALID, "gr_comm_create: there is no setting \"%.100s\"%s",
                           setting, near);
        }
    }
    char *const *settings = (char *const *)(uintptr_t)from->settings;
    if (settings) {
        gr_status status = gr_config_from_env(&gr_group_config_table, to, settings, arena, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    if (from->link) {
        int link = 0;
        while (gr_link_choices[link] && strcmp(gr_link_choices[link], from->link) != 0) {
            link++;
        }
        if (!gr_link_choices[link]) {
            return gr_fail(diag, GR_E_INVALID,
                           "gr_comm_create: \"%.100s\" is no link; it must be auto, shm or tcp",
                           from->link);
        }
        to->link = link;
    }
    set_time(&to->join_timeout_us, from->join_timeout_us);
    set_time(&to->op_timeout_us, from->op_timeout_us);
    bool is_set = settings && gr_config_variable(settings, "GRADUS_STALL_FAIL");
    if (from->op_timeout_us != 0 && !is_set) {
        to->stall_fail_us = 0; /* what the environment says of both */
    }
    if (from->inexact) {
        to->exact = false;
    }
    if (from->host) {
        to->host = from->host;
    }
    if (from->threads != GR_THREADS_AUTO) {
        to->threads = from->threads;
    }
    if (from->log_level != GR_LOG_OFF) {
        to->log_level = (int)from->log_level;
    }
    to->log_sink = from->log;
    to->log_arg = from->log_arg;
    return GR_OK;
}

static gr_status check(const gr_comm_config *config, gr_diag *diag)
{
    gr_status status = check_size(config, diag);
    if (status == GR_OK) {
        status = check_identity(config, diag);
    }
    return status == GR_OK ? check_values(config, diag) : status;
}

/* Only a job of `gradus run` has asked for warnings without saying so: nobody else expects a
 * library to write to stderr. */
static void set_silence(gr_group_config *to, const gr_comm_config *from)
{
    bool asked = getenv("GRADUS_LOG") || (from && from->log_level != GR_LOG_OFF);
    bool own = from && from->size > 0; /* not the group that the environment describes */
    if (!asked && (own || to->rank < 0 || to->launch.name)) {
        to->log_level = GR_LOG_OFF;
    }
}

/* What `config` leaves open the environment says. */
static gr_status translate(const gr_comm_config *config, gr_group_config *to, gr_arena *arena,
                           gr_diag *diag)
{
    gr_status status = config ? check(config, diag) : GR_OK;
    if (status == GR_OK) {
        status = gr_group_config_from_env(to, arena, diag);
    }
    if (status == GR_OK) {
        set_silence(to, config);
    }
    if (status == GR_OK && config && config->size > 0) {
        status = set_identity(to, config, arena, diag);
    }
    return status == GR_OK && config ? set_settings(to, config, arena, diag) : status;
}

gr_status gr_comm_create(const gr_comm_config *config, gr_comm **comm_out, gr_diag *diag)
{
    if (!comm_out) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_create: comm_out is NULL");
    }
    gr_arena arena;
    gr_arena_init(&arena, GR_COMM_CONFIG_BYTES_MAX);
    gr_group_config group_config;
    gr_status status = translate(config, &group_config, &arena, diag);
    if (status == GR_OK) {
        status = gr_comm_create_from(&group_config, comm_out, diag);
        gr_group_config_wipe(&group_config);
    }
    gr_arena_fini(&arena);
    return status;
}
