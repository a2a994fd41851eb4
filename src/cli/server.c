/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/server/server.h"
#include "base/fail.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "doc/config_node.h"
#include "link/address.h"
#include "ps/client/client.h"
#include "ps/place.h"
#include "train/updater.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct server_options {
    int64_t document_fd, number, servers, replicas, memory_bytes, peer_timeout_us;
    const char *listen, *interfaces, *ports;
    int link;
    const char *others, *run;
    bool encrypt, replaces;
    gr_cli_secret secret;
} server_options;

#define DOCUMENT_NAME "server document"
#define AT(member) .offset = offsetof(server_options, member)

enum { DOCUMENT_VERSION = 1 };

/* Those with a key are what a document says. */
static const gr_config_field server_fields[] = {
    {.env = "GRADUS_SERVER_FD",
     .type = GR_CONFIG_INT,
     AT(document_fd),
     .default_text = "-1",
     .min = -1,
     .max = INT_MAX,
     .help = "the descriptor from which a server of gradus run reads its document, in place of "
             "--servers, --replicas and --listen; -1: there is none"},
    {.key = "servers",
     .flag = "--servers",
     .type = GR_CONFIG_INT,
     AT(servers),
     .default_text = "1",
     .min = 1,
     .max = GR_PS_SERVERS_MAX,
     .help = "how many parameter servers there are; the same for all of them"},
    {.flag = "--number",
     .env = "GRADUS_SERVER_NUMBER",
     .type = GR_CONFIG_INT,
     AT(number),
     .default_text = "0",
     .min = 0,
     .max = GR_PS_SERVERS_MAX - 1,
     .help = "which of them this one is, from 0 on"},
    {.key = "replicas",
     .flag = "--replicas",
     .env = "GRADUS_SERVER_REPLICAS",
     .type = GR_CONFIG_INT,
     AT(replicas),
     .default_text = "1",
     .min = 0,
     .max = 1,
     .help = "of each tensor on other servers, the same for all of them; 1: a server that dies "
             "takes nothing along, where there are two or more; 0: there are none"},
    {.flag = "--replace",
     .env = "GRADUS_SERVER_REPLACES",
     .type = GR_CONFIG_BOOL,
     AT(replaces),
     .default_text = "false",
     .help =
         "this one comes in place of a lost server of its number, while the job runs, and takes "
         "copies of what the others keep; GRADUS_SERVERS says where they are"},
    {.env = "GRADUS_SERVERS",
     .type = GR_CONFIG_TEXT,
     AT(others),
     .value_name = "ADDRESSES",
     .help = GR_PS_SERVERS_HELP " (--replace)"},
    {.env = "GRADUS_RUN",
     .type = GR_CONFIG_TEXT,
     AT(run),
     .value_name = "NAME",
     .help = "the run whose tensors a server that replaces another one is to keep; the others "
             "refuse it if theirs are of another run"},
    {.key = "listen",
     .flag = "--listen",
     .type = GR_CONFIG_TEXT,
     AT(listen),
     .default_text = "*",
     .value_name = "HOST",
     .help = "name or address of this host that clients reach; *: all its addresses, or those of "
             "GRADUS_INTERFACE"},
    {GR_GROUP_ROW_INTERFACES, AT(interfaces)},
    {.flag = "--ports", GR_GROUP_ROW_PORTS, AT(ports)},
    {.flag = "--link",
     GR_GROUP_ROW_LINK,
     AT(link),
     .help = "auto: shm for clients of this host, tcp for all others"},
    {.flag = "--memory",
     .type = GR_CONFIG_BYTES,
     AT(memory_bytes),
     .default_text = "0",
     .min = 0,
     .max = 0x1p50,
     .unit = "bytes",
     .help = "of all tensors with what their optimizers keep; what goes beyond is refused; 0: no "
             "limit"},
    {.flag = "--encrypt",
     GR_GROUP_ROW_ENCRYPT,
     AT(encrypt),
     .help = "TLS 1.3 on all that goes by tcp; the same for all clients"},
    {GR_GROUP_ROW_PEER_TIMEOUT, AT(peer_timeout_us),
     .help = "a client that acknowledges nothing for so long is lost; and so is, where there "
             "are replicas, another server that is silent"},
    {GR_CLI_ROW_SECRET, AT(secret.hex)},
    {GR_CLI_ROW_SECRET_FILE, AT(secret.file)},
    {GR_CLI_ROW_PRINT_SECRET, AT(secret.print)},
    {0},
};

const gr_config_table gr_server_table = {
    .name = "server",
    .title = "gradus server: a parameter server",
    .fields = server_fields,
    .struct_bytes = sizeof(server_options),
};

/* ---- Its document ---------------------------------------------------------------------------- */

char *gr_cli_server_document(int64_t servers, int64_t replicas, const char *listen)
{
    json_t *document = json_pack("{s:i, s:{s:I, s:I, s:s}}", "gradus_server", DOCUMENT_VERSION,
                                 "server", "servers", (json_int_t)servers, "replicas",
                                 (json_int_t)replicas, "listen", listen);
    char *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    return text;
}

static gr_status take_document(server_options *options, const gr_node *root, gr_arena *arena,
                               gr_diag *diag)
{
    static const char *const known[] = {"gradus_server", "server", NULL};
    gr_status status = gr_node_version(root, DOCUMENT_NAME, "gradus_server", DOCUMENT_VERSION,
                                       "gradus run makes one", diag);
    if (status == GR_OK) {
        status = gr_node_only(root, known, diag);
    }
    return status == GR_OK ? gr_config_from_node(&gr_server_table, options,
                                                 gr_node_get(root, "server"), arena, diag)
                           : status;
}

static gr_status read_document(server_options *options, gr_arena *arena, gr_diag *diag)
{
    char *text = NULL;
    size_t size = 0;
    gr_doc *doc = NULL;
    gr_status status = gr_cli_read_document(DOCUMENT_NAME, "GRADUS_SERVER_FD",
                                            (int)options->document_fd, &text, &size, diag);
    if (status == GR_OK) {
        status = gr_doc_parse_json(DOCUMENT_NAME, text, size, &doc, diag);
    }
    if (status == GR_OK) {
        status = take_document(options, gr_doc_root(doc), arena, diag);
    }
    gr_doc_destroy(doc);
    free(text);
    return status;
}

/* ---- Its work -------------------------------------------------------------------------------- */

/* Who waits for the signal that ends the server. */
typedef struct ending {
    gr_ps_server *server;
    sigset_t signals;
    atomic_bool asked;
} ending;

static void *await_signal(void *arg)
{
    ending *end = arg;
    int signal;
    while (sigwait(&end->signals, &signal) != 0) {
    }
    atomic_store(&end->asked, true);
    gr_ps_server_wake(end->server);
    return NULL;
}

static gr_status serve(gr_ps_server *server, ending *end, gr_diag *diag)
{
    pthread_t waiter;
    end->server = server;
    if (pthread_create(&waiter, NULL, await_signal, end) != 0) {
        return gr_fail(diag, GR_E_IO, "cannot start the thread that waits for signals");
    }
    gr_status status = GR_OK;
    bool met = false;
    while (!atomic_load(&end->asked)) {
        status = gr_ps_server_poll(server, diag);
        if (!met && gr_ps_server_has_met(server)) {
            met = true;
            puts("GRADUS_SERVERS_MET=yes");
            (void)fflush(stdout); /* who has read the address may have closed the pipe */
        }
        if (status == GR_OK) {
            gr_ps_server_wait(server, GR_NEVER);
        } else if (status != GR_PENDING) {
            break;
        }
    }
    if (!atomic_load(&end->asked)) {
        pthread_kill(waiter, SIGTERM); /* it failed: the waiter is to end as well */
    }
    pthread_join(waiter, NULL);
    return atomic_load(&end->asked) && (status == GR_PENDING || status == GR_OK) ? GR_OK : status;
}

static void print_server(const server_options *options, const gr_ps_server *server)
{
    /* Lines that a shell can take in with `export`. */
    if (options->servers == 1) {
        printf("GRADUS_SERVERS=%s\n", gr_ps_server_address(server));
    } else {
        printf("GRADUS_SERVER_%d=%s\n", (int)options->number, gr_ps_server_address(server));
    }
}

static int work(const gr_cli_line *line)
{
    server_options said = *(const server_options *)line->options;
    const server_options *options = &said;
    gr_diag diag = {0};
    gr_status status = said.document_fd >= 0 ? read_document(&said, line->arena, &diag) : GR_OK;
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    uint8_t secret[GR_SECRET_BYTES];
    bool printed = false;
    gr_ps_server *server = NULL;
    gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.number = (int)options->number;
    config.servers = (int)options->servers;
    config.replicas = (int)options->replicas;
    config.replaces = options->replaces;
    config.others = options->others;
    config.run = options->run;
    config.secret = secret;
    config.link = (gr_link_choice)options->link;
    config.encrypt = options->encrypt;
    config.listen_host = options->listen;
    config.interfaces = options->interfaces;
    config.peer_timeout_us = options->peer_timeout_us;
    config.bytes_max = (uint64_t)options->memory_bytes;
    config.updaters = gr_updater_ops();
    config.log = &log;
    ending end = {0};
    atomic_init(&end.asked, false);
    sigemptyset(&end.signals);
    sigaddset(&end.signals, SIGTERM);
    sigaddset(&end.signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &end.signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    status = gr_ports_parse(options->ports, &config.ports, &diag);
    if (status == GR_OK) {
        status = gr_cli_take_secret(&options->secret, secret, &printed, &diag);
    }
    if (status == GR_OK) {
        status = gr_ps_server_create(&config, &server, &diag);
    }
    if (status != GR_OK) {
        gr_wipe(secret, sizeof secret);
        return gr_cli_refuse(status, &diag);
    }
    print_server(options, server);
    gr_cli_leave_secret(secret, printed);
    gr_wipe_stack();
    int code = gr_cli_flush();
    if (code == GR_EXIT_DONE) {
        status = serve(server, &end, &diag);
        code = status == GR_OK ? GR_EXIT_DONE : gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    gr_ps_server_destroy(server);
    return code;
}

static void print_usage(void)
{
    puts("usage: gradus server [--number N --servers M [--replace]] [--listen HOST]\n"
         "                     [--secret-file FILE]\n\n"
         "Keeps tensors, and updates them by what workers push (docs/ps.md). Prints where clients\n"
         "reach it: GRADUS_SERVERS if it is the only one, else GRADUS_SERVER_N; GRADUS_SERVERS is\n"
         "then what all of them have printed, in the order of their numbers, with commas between.\n"
         "All need the same secret. Ends in order with SIGTERM or SIGINT; what it keeps is gone\n"
         "then, unless \"gradus ps export\" has saved it.\n");
}

const gr_cli_form gr_server_form = {
    .table = &gr_server_table, .usage = print_usage, .by_environment = true, .work = work};
