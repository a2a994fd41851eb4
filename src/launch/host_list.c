/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/host_list.h"

#include "base/fail.h"
#include "base/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20, WHERE_BYTES = 512 };

static const char blanks[] = " \t\r";

const char *gr_host_label(const gr_host *host)
{
    const char *name = host->name != NULL ? host->name : "localhost";
    const char *at = strrchr(name, '@');
    return at != NULL ? at + 1 : name;
}

static bool is_local(const char *name)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "::1"};
    char own[GR_HOSTS_NAME_BYTES] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return gethostname(own, sizeof own - 1) == 0 && strcmp(name, own) == 0;
}

/* What ssh gets as a word of its own: nothing that it would take for an option, or a shell for
 * anything else than a name. */
static bool is_name(const char *name, size_t size)
{
    if (size == 0 || size >= GR_HOSTS_NAME_BYTES ||
        !(isalnum((unsigned char)name[0]) || name[0] == '_' || name[0] == ':')) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        if (!isalnum((unsigned char)name[i]) && strchr("._-@:%", name[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static gr_status fail_entry(const char *where, const char *entry, size_t size, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID,
                   "%s: \"%.*s\" is no host with a number of workers; write host, host:4 or "
                   "user@host:4, in a file \"host slots=4\" as well",
                   where, (int)(size < 100 ? size : 100), entry);
}

/* How many, in all of `text`; 0: it is no such number. */
static int read_slots(const char *text, size_t size)
{
    char digits[8] = "";
    if (size == 0 || size >= sizeof digits || !isdigit((unsigned char)text[0])) {
        return 0;
    }
    memcpy(digits, text, size);
    char *end;
    long slots = strtol(digits, &end, 10);
    return *end == '\0' && slots >= 1 && slots <= GR_HOSTS_SLOTS_MAX ? (int)slots : 0;
}

static gr_status add(gr_host_list *hosts, const char *name, size_t size, int slots,
                     const char *where, gr_arena *arena, gr_diag *diag)
{
    for (int i = 0; i < hosts->count; i++) {
        gr_host *known = &hosts->at[i];
        if (strlen(known->name) == size && strncmp(known->name, name, size) == 0) {
            known->slots += slots;
            return known->slots <= GR_HOSTS_SLOTS_MAX
                       ? GR_OK
                       : gr_fail(diag, GR_E_INVALID, "%s: more than %d slots for host %s", where,
                                 GR_HOSTS_SLOTS_MAX, known->name);
        }
    }
    if (hosts->count == GR_HOSTS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "%s: more than %d hosts", where, GR_HOSTS_MAX);
    }
    gr_host *host = &hosts->at[hosts->count++];
    host->name = gr_arena_printf(arena, "%.*s", (int)size, name);
    host->slots = slots;
    if (host->name == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a host's name");
    }
    host->local = is_local(host->name);
    return GR_OK;
}

/* One "host", "host:4", "user@[::1]:4". `slots`: said elsewhere; 0: not. */
static gr_status add_entry(gr_host_list *hosts, const char *entry, size_t size, int slots,
                           const char *where, gr_arena *arena, gr_diag *diag)
{
    char name[GR_HOSTS_NAME_BYTES];
    size_t used = 0, at = 0;
    bool bracket = false;
    while (at < size && used < sizeof name && (bracket || entry[at] != ':')) {
        if (entry[at] == '[' || entry[at] == ']') {
            bracket = entry[at] == '[';
        } else {
            name[used++] = entry[at];
        }
        at++;
    }
    if (at < size && entry[at] == ':') {
        slots = slots == 0 ? read_slots(entry + at + 1, size - at - 1) : 0;
    } else {
        slots = slots == 0 ? hosts->unsaid : slots;
    }
    if (bracket || slots == 0 || !is_name(name, used)) {
        return fail_entry(where, entry, size, diag);
    }
    return add(hosts, name, used, slots, where, arena, diag);
}

gr_status gr_host_list_parse(const char *text, const char *where, gr_arena *arena,
                             gr_host_list *hosts_out, gr_diag *diag)
{
    gr_status status = GR_OK;
    *hosts_out = (gr_host_list){.unsaid = 1};
    for (const char *at = text; status == GR_OK;) {
        at += strspn(at, blanks);
        size_t size = strcspn(at, ","), used = size;
        while (used > 0 && strchr(blanks, at[used - 1]) != NULL) {
            used--;
        }
        status = add_entry(hosts_out, at, used, 0, where, arena, diag);
        if (at[size] == '\0') {
            break;
        }
        at += size + 1;
    }
    return status;
}

static gr_status read_line(gr_host_list *hosts, const char *line, size_t size, const char *where,
                           gr_arena *arena, gr_diag *diag)
{
    static const char slots_word[] = "slots=";
    char text[2 * GR_HOSTS_NAME_BYTES];
    int length = snprintf(text, sizeof text, "%.*s", (int)size, line);
    text[strcspn(text, "#")] = '\0';
    const char *name = text + strspn(text, blanks);
    size_t name_size = strcspn(name, blanks);
    const char *rest = name + name_size + strspn(name + name_size, blanks);
    size_t rest_size = strcspn(rest, blanks);
    if (length >= (int)sizeof text) {
        return fail_entry(where, line, size, diag);
    }
    if (name_size == 0) {
        return GR_OK;
    }
    int slots = 0;
    if (rest_size > 0) {
        size_t word = sizeof slots_word - 1;
        slots =
            strncmp(rest, slots_word, word) == 0 ? read_slots(rest + word, rest_size - word) : 0;
        if (slots == 0 || rest[rest_size + strspn(rest + rest_size, blanks)] != '\0') {
            return fail_entry(where, line, size, diag);
        }
    }
    return add_entry(hosts, name, name_size, slots, where, arena, diag);
}

gr_status gr_host_list_parse_lines(const char *text, size_t size_bytes, const char *name, int slots,
                                   gr_arena *arena, gr_host_list *hosts_out, gr_diag *diag)
{
    char where[WHERE_BYTES];
    gr_status status = GR_OK;
    size_t number = 1;
    *hosts_out = (gr_host_list){.unsaid = slots};
    for (size_t at = 0; status == GR_OK && at < size_bytes; number++) {
        const char *end = memchr(text + at, '\n', size_bytes - at);
        size_t line = end != NULL ? (size_t)(end - (text + at)) : size_bytes - at;
        snprintf(where, sizeof where, "%s:%zu", name, number);
        status = read_line(hosts_out, text + at, line, where, arena, diag);
        at += line + 1;
    }
    return status;
}

gr_status gr_host_list_read(const char *path, gr_arena *arena, gr_host_list *hosts_out,
                            gr_diag *diag)
{
    char *text = NULL;
    size_t size = 0;
    gr_status status = gr_file_read(path, FILE_BYTES_MAX, &text, &size, diag);
    if (status == GR_OK) {
        status = gr_host_list_parse_lines(text, size, path, 1, arena, hosts_out, diag);
    }
    free(text);
    if (status == GR_OK && hosts_out->count == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: there is no host in it; write lines like "
                       "\"host1 slots=4\"",
                       path);
    }
    return status;
}

int gr_host_list_slots(const gr_host_list *hosts)
{
    int slots = 0;
    for (int i = 0; i < hosts->count; i++) {
        slots += hosts->at[i].slots;
    }
    return slots;
}

gr_status gr_host_list_deal(gr_host_list *hosts, int workers, gr_diag *diag)
{
    int slots = gr_host_list_slots(hosts), dealt = 0;
    if (workers > slots) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: %d workers, but the hosts have slots for %d only; give some of them "
                       "more (host:SLOTS), or fewer workers (-np)",
                       workers, slots);
    }
    for (int i = 0; i < hosts->count; i++) {
        gr_host *host = &hosts->at[i];
        int left = workers - dealt;
        host->first = dealt;
        host->workers = host->slots < left ? host->slots : left;
        dealt += host->workers;
    }
    return GR_OK;
}

bool gr_host_list_all_local(const gr_host_list *hosts)
{
    for (int i = 0; i < hosts->count; i++) {
        if (!hosts->at[i].local) {
            return false;
        }
    }
    return true;
}
