/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "cli/cli.h"
#include "cli/ps_file.h"
#include "ps/client/client.h"

#include <gradus/ps.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct ps_options {
    const char *servers;
    int64_t wait_us;
    bool json, states;
    int64_t worker;
} ps_options;

static const gr_config_field ps_fields[] = {
    {.flag = "--servers",
     .env = "GRADUS_SERVERS",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(ps_options, servers),
     .value_name = "ADDRESSES",
     .help = GR_PS_SERVERS_HELP},
    {.flag = "--wait",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(ps_options, wait_us),
     .default_text = "10s",
     .min = 1,
     .max = 86400e6,
     .unit = "s",
     .help = "how long to wait for a server's answer, and for the values of a tensor"},
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(ps_options, json),
     .help = "ls, stats: one JSON object a line"},
    {.flag = "--states",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(ps_options, states),
     .help = "export: all that is needed to go on as well: the optimizer's states, named as in "
             "checkpoints, and how many updates there were"},
    {.flag = "--worker",
     .type = GR_CONFIG_INT,
     .offset = offsetof(ps_options, worker),
     .default_text = "191",
     .min = 0,
     .max = GR_PS_WORKERS_MAX - 1,
     .help = "import: a worker's number that no other client has"},
    {0},
};

const gr_config_table gr_ps_verb_table = {
    .name = "ps command",
    .title = "gradus ps: what parameter servers keep",
    .fields = ps_fields,
    .struct_bytes = sizeof(ps_options),
};

static const char *const consistencies[] = {"bsp", "backup", "async", "ssp"};

static gr_status failed(const gr_ps *ps, gr_status status, gr_diag *diag)
{
    *diag = *gr_ps_last_error(ps);
    return status;
}

/* ---- ls -------------------------------------------------------------------------------------- */

static gr_status print_entry(const gr_ps_entry *entry, bool json, gr_diag *diag)
{
    const gr_ps_spec *tensor = &entry->tensor;
    if (json) {
        return gr_cli_print_json(
            json_pack("{s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:s}", "name", tensor->name,
                      "elements", (json_int_t)tensor->elements, "columns",
                      (json_int_t)tensor->columns, "rows", (json_int_t)entry->rows, "consistency",
                      consistencies[tensor->consistency], "blocks", (json_int_t)entry->blocks,
                      "version", (json_int_t)entry->version_least, "version_most",
                      (json_int_t)entry->version_most, "optimizer", tensor->optimizer),
            diag);
    }
    printf("%-40s %12" PRIu64 "  %-6s  %10" PRIu64, tensor->name, tensor->elements,
           consistencies[tensor->consistency], entry->version_least);
    if (entry->version_most > entry->version_least) {
        printf(" to %" PRIu64, entry->version_most);
    }
    if (tensor->columns > 0) {
        printf("  %" PRIu64 " of %" PRIu64 " rows by %u", entry->rows,
               tensor->elements / tensor->columns, tensor->columns);
    }
    putchar('\n');
    return GR_OK;
}

static gr_status list(gr_ps *ps, bool json, gr_diag *diag)
{
    gr_ps_entry entry;
    gr_status status;
    for (uint32_t i = 0; (status = gr_ps_list(ps, i, &entry)) == GR_OK; i++) {
        if (i == 0 && !json) {
            printf("%-40s %12s  %-6s  %10s\n", "tensor", "values", "mode", "updates");
        }
        status = print_entry(&entry, json, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return status == GR_E_NOT_FOUND ? GR_OK : failed(ps, status, diag);
}

/* ---- stats ----------------------------------------------------------------------------------- */

typedef struct counter {
    const char *name;
    size_t offset;
} counter;

static const counter counters[] = {
    {"clients", offsetof(gr_ps_counters, clients)},
    {"tensors", offsetof(gr_ps_counters, tensors)},
    {"blocks", offsetof(gr_ps_counters, blocks)},
    {"bytes", offsetof(gr_ps_counters, bytes)},
    {"pushes", offsetof(gr_ps_counters, pushes)},
    {"pulls", offsetof(gr_ps_counters, pulls)},
    {"updates", offsetof(gr_ps_counters, updates)},
    {"duplicates", offsetof(gr_ps_counters, duplicates)},
    {"late", offsetof(gr_ps_counters, late)},
    {"refused", offsetof(gr_ps_counters, refused)},
    {"bytes_in", offsetof(gr_ps_counters, bytes_in)},
    {"bytes_out", offsetof(gr_ps_counters, bytes_out)},
    {"staleness_sum", offsetof(gr_ps_counters, staleness_sum)},
    {"staleness_most", offsetof(gr_ps_counters, staleness_most)},
    {"unreplicated", offsetof(gr_ps_counters, unreplicated)},
};
enum { COUNTERS = sizeof counters / sizeof counters[0] };

static uint64_t value_of(const gr_ps_counters *all, const counter *one)
{
    uint64_t value;
    memcpy(&value, (const char *)all + one->offset, sizeof value);
    return value;
}

static gr_status print_counters(int server, const gr_ps_counters *all, bool json, gr_diag *diag)
{
    if (!json) {
        printf("server %d\n", server);
        for (int i = 0; i < COUNTERS; i++) {
            printf("  %-16s %" PRIu64 "\n", counters[i].name, value_of(all, &counters[i]));
        }
        return GR_OK;
    }
    json_t *object = json_pack("{s:i}", "server", server);
    for (int i = 0; i < COUNTERS && object != NULL; i++) {
        json_int_t value = (json_int_t)value_of(all, &counters[i]);
        if (json_object_set_new(object, counters[i].name, json_integer(value)) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return gr_cli_print_json(object, diag);
}

static gr_status print_lost(int server, bool json, gr_diag *diag)
{
    if (json) {
        return gr_cli_print_json(json_pack("{s:i, s:b}", "server", server, "lost", 1), diag);
    }
    printf("server %d is lost\n", server);
    return GR_OK;
}

static gr_status count(gr_ps *ps, bool json, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int server = 0; server < gr_ps_servers(ps) && status == GR_OK; server++) {
        gr_ps_counters all;
        status = gr_ps_read_counters(ps, server, &all);
        if (status == GR_OK) {
            status = print_counters(server, &all, json, diag);
        } else if (status == GR_E_PEER_LOST) { /* the others may go on without it */
            status = print_lost(server, json, diag);
        } else {
            status = failed(ps, status, diag);
        }
    }
    return status;
}

/* ---- The verb -------------------------------------------------------------------------------- */

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* Nobody can guess where the servers of a job are, or its secret. */
static gr_status check_reach(const ps_options *options, const char *action, gr_diag *diag)
{
    bool servers = is_set(options->servers);
    if (servers && (is_set(getenv("GRADUS_SECRET")) || is_set(getenv("GRADUS_SECRET_FILE")))) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s: start the job with gradus run --servers-file job.servers, and ask its "
                   "servers with (set -a; . ./job.servers; gradus ps %s); for servers that were "
                   "started by hand set GRADUS_SERVERS to what each has printed, and "
                   "GRADUS_SECRET_FILE",
                   servers ? "the secret of the parameter servers is not known"
                           : "no parameter servers are named",
                   action);
}

static int work(const gr_cli_line *line)
{
    const ps_options *options = line->options;
    const char *action = line->words[0];
    const char *path = line->word_count > 1 ? line->words[1] : NULL;
    gr_diag diag = {0};
    gr_ps *ps = NULL;
    bool exports = strcmp(action, "export") == 0, imports = strcmp(action, "import") == 0;
    if (!exports && !imports && strcmp(action, "ls") != 0 && strcmp(action, "stats") != 0) {
        (void)gr_fail(&diag, GR_E_INVALID,
                      "ps: \"%s\" is none of ls, stats, export and import; see \"gradus help ps\"",
                      action);
        return gr_cli_refuse(GR_E_INVALID, &diag);
    }
    if ((exports || imports) != (path != NULL)) {
        (void)gr_fail(&diag, GR_E_INVALID,
                      exports   ? "ps export needs the file to write, weights.safetensors say"
                      : imports ? "ps import needs the file that ps export --states has written"
                                : "ps ls and ps stats expect nothing behind");
        return gr_cli_refuse(GR_E_INVALID, &diag);
    }
    if (check_reach(options, action, &diag) != GR_OK) {
        return gr_cli_refuse(GR_E_INVALID, &diag);
    }
    const gr_ps_config config = {.servers = options->servers,
                                 .worker = imports ? (int)options->worker : -1,
                                 .timeout_us = options->wait_us};
    gr_status status = gr_ps_connect(&config, &ps, &diag);
    if (status == GR_E_INVALID) {
        return gr_cli_refuse(status, &diag);
    }
    if (status == GR_OK) {
        status = exports   ? gr_ps_file_export(ps, path, options->states, options->wait_us, &diag)
                 : imports ? gr_ps_file_import(ps, path, &diag)
                 : strcmp(action, "ls") == 0 ? list(ps, options->json, &diag)
                                             : count(ps, options->json, &diag);
    }
    gr_ps_close(ps);
    return status == GR_OK ? gr_cli_flush() : gr_cli_fail(GR_EXIT_FAILED, &diag);
}

static void print_usage(void)
{
    puts("usage: gradus ps ls|stats [--json]\n"
         "       gradus ps export [--states] FILE\n"
         "       gradus ps import FILE\n\n"
         "Asks running parameter servers, without disturbing what workers do with them. Those of\n"
         "a job are reached if it was started with --servers-file:\n\n"
         "  gradus run --servers 2 --servers-file job.servers ... &\n"
         "  (set -a; . ./job.servers; gradus ps stats)\n\n"
         "  ls      the tensors, and how many updates they have seen\n"
         "  stats   what each server has done so far\n"
         "  export  all values into a safetensors file; each block as it is at that moment\n"
         "  import  tensors that are declared, and have no values yet, go on from a file of\n"
         "          \"export --states\"\n");
}

const gr_cli_form gr_ps_form = {.table = &gr_ps_verb_table,
                                .usage = print_usage,
                                .words_min = 1,
                                .words_max = 2,
                                .words_missing = "needs to know what: ls, stats, export or import",
                                .work = work};
