/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/environ.h"

#include "base/fail.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OWN_MAX = 22, SECRET_NAME_BYTES = sizeof "GRADUS_SECRET=" - 1 };

static bool same_name(const char *entry, const char *other)
{
    size_t size = strcspn(other, "=");
    return strncmp(entry, other, size) == 0 && entry[size] == '=';
}

static bool names(const char *const *list, const char *entry)
{
    for (size_t i = 0; list != NULL && list[i] != NULL; i++) {
        if (same_name(entry, list[i])) {
            return true;
        }
    }
    return false;
}

static size_t length(const char *const *list)
{
    size_t count = 0;
    while (list != NULL && list[count] != NULL) {
        count++;
    }
    return count;
}

/* What a worker is, and where it meets the others; how many entries. */
static size_t make_worker(const gr_environ_config *config, gr_arena *arena, const char **own)
{
    int rank = config->rank, size = config->world_size;
    size_t count = 0;
    own[count++] = gr_arena_printf(arena, "GRADUS_RANK=%d", rank);
    own[count++] = gr_arena_printf(arena, "GRADUS_WORLD_SIZE=%d", size);
    own[count++] = gr_arena_printf(arena, "GRADUS_LOCAL_RANK=%d", config->local_rank);
    own[count++] = gr_arena_printf(arena, "GRADUS_LOCAL_SIZE=%d", config->local_size);
    own[count++] = gr_arena_printf(arena, "GRADUS_HOSTNAME=%s", config->host);
    own[count++] = gr_arena_printf(arena, "GRADUS_COORDINATOR=%s", config->coordinator);
    own[count++] = gr_arena_printf(arena, "RANK=%d", rank);
    own[count++] = gr_arena_printf(arena, "WORLD_SIZE=%d", size);
    own[count++] = gr_arena_printf(arena, "LOCAL_RANK=%d", config->local_rank);
    own[count++] = gr_arena_printf(arena, "LOCAL_WORLD_SIZE=%d", config->local_size);
    own[count++] = gr_arena_printf(arena, "CROSS_RANK=%d", config->cross_rank);
    own[count++] = gr_arena_printf(arena, "CROSS_SIZE=%d", config->cross_size);
    own[count++] = gr_arena_printf(arena, "MASTER_ADDR=%s", config->master);
    own[count++] = gr_arena_printf(arena, "MASTER_PORT=%d", config->master_port);
    own[count++] = gr_arena_printf(arena, "TORCHELASTIC_RESTART_COUNT=%d", config->restarts);
    if (config->record != NULL) {
        own[count++] = gr_arena_printf(arena, "GRADUS_RECORD=%s", config->record);
    }
    if (config->workers_min > 0) {
        own[count++] = gr_arena_printf(arena, "GRADUS_MIN_WORKERS=%d", config->workers_min);
    }
    if (config->workers_max > 0) {
        own[count++] = gr_arena_printf(arena, "GRADUS_MAX_WORKERS=%d", config->workers_max);
    }
    if (config->servers != NULL) {
        own[count++] = gr_arena_printf(arena, "GRADUS_SERVERS=%s", config->servers);
    }
    return count;
}

/* The identity; a NULL-terminated list. False: no memory. */
static bool make_own(const gr_environ_config *config, gr_arena *arena, const char *own[OWN_MAX + 1])
{
    size_t count = 0;
    if (config->serves) {
        own[count++] = gr_arena_printf(arena, "GRADUS_SERVER_NUMBER=%d", config->rank);
        own[count++] = gr_arena_printf(arena, "GRADUS_SERVER_FD=%d",
                                       config->reads_document ? STDIN_FILENO : -1);
        if (config->servers != NULL) {
            own[count++] = gr_arena_strdup(arena, "GRADUS_SERVER_REPLACES=yes");
            own[count++] = gr_arena_printf(arena, "GRADUS_SERVERS=%s", config->servers);
        }
    } else {
        count = make_worker(config, arena, own);
    }
    own[count++] = gr_arena_printf(arena, "GRADUS_SECRET=%s", config->secret_hex);
    own[count] = NULL;
    for (size_t i = 0; i < count; i++) {
        if (own[i] == NULL) {
            return false;
        }
    }
    return true;
}

gr_status gr_environ_build(const gr_environ_config *config, gr_arena *arena, char ***entries_out,
                           gr_diag *diag)
{
    const char *own[OWN_MAX + 1] = {NULL};
    const char *const *inherited = (const char *const *)config->inherited;
    size_t room = OWN_MAX + length(inherited) + length(config->set) + length(config->defaults) + 2;
    const char **entries = gr_arena_alloc(arena, room * sizeof *entries);
    if (entries == NULL || !make_own(config, arena, own)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the environment of %s %d",
                       config->serves ? "parameter server" : "rank", config->rank);
    }
    size_t count = 0;
    for (size_t i = 0; i < length(inherited); i++) {
        if (!names(own, inherited[i]) && !names(config->set, inherited[i])) {
            entries[count++] = inherited[i];
        }
    }
    for (size_t i = 0; i < length(config->defaults); i++) {
        if (!names(inherited, config->defaults[i]) && !names(config->set, config->defaults[i])) {
            entries[count++] = config->defaults[i];
        }
    }
    for (size_t i = 0; i < length(config->set); i++) {
        entries[count++] = config->set[i];
    }
    for (size_t i = 0; own[i] != NULL; i++) {
        entries[count++] = own[i];
    }
    entries[count] = NULL;
    *entries_out = (char **)entries;
    return GR_OK;
}

void gr_environ_mark_joining(char **entries)
{
    static char mark[] = "GRADUS_JOINING=yes";
    size_t count = length((const char *const *)entries);
    if (count == 0 || strcmp(entries[count - 1], mark) != 0) {
        entries[count] = mark;
        entries[count + 1] = NULL;
    }
}

void gr_environ_move_record(char **entries, pid_t owner)
{
    char text[64];
    int before, fd;
    for (size_t at = 0; entries[at] != NULL; at++) {
        if (sscanf(entries[at], "GRADUS_RECORD=/proc/%d/fd/%d", &before, &fd) != 2 ||
            before == owner) {
            continue;
        }
        snprintf(text, sizeof text, "GRADUS_RECORD=/proc/%d/fd/%d", (int)owner, fd);
        char *moved = strdup(text);
        entries[at] = moved != NULL ? moved : entries[at]; /* it lasts as long as the agent */
    }
}

/* The text of the first secret behind that entry; NULL: there is none. *at is moved on. */
static char *next_secret(char *const *entries, size_t *at)
{
    while (entries[*at] != NULL) {
        char *entry = entries[(*at)++];
        if (same_name(entry, "GRADUS_SECRET")) {
            return entry + SECRET_NAME_BYTES;
        }
    }
    return NULL;
}

const char *gr_environ_find(char *const *entries, const char *name)
{
    size_t size = strlen(name);
    for (size_t at = 0; entries[at] != NULL; at++) {
        if (strncmp(entries[at], name, size) == 0 && entries[at][size] == '=') {
            return entries[at] + size + 1;
        }
    }
    return NULL;
}

bool gr_environ_secret(char *const *entries, uint8_t secret_out[GR_SECRET_BYTES])
{
    size_t at = 0;
    const char *text = next_secret(entries, &at);
    return text != NULL && gr_unhex(text, secret_out, GR_SECRET_BYTES) == GR_OK;
}

void gr_environ_wipe(char **entries)
{
    char *text;
    for (size_t at = 0; (text = next_secret(entries, &at)) != NULL;) {
        gr_wipe(text, strlen(text));
    }
}

void gr_environ_fill(char **entries, const uint8_t secret[GR_SECRET_BYTES])
{
    size_t at = 0;
    char *text = next_secret(entries, &at);
    if (text != NULL) {
        gr_hex(secret, GR_SECRET_BYTES, text);
    }
}
