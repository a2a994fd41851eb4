/* SPDX-License-Identifier: Apache-2.0 */

/* What looks after the workers of one host: `gradus run -H` starts it there by ssh, or it is
 * started by somebody else and calls `gradus run --listen`. */

#include "base/fail.h"
#include "cli/cli.h"
#include "cli/install.h"
#include "launch/command.h"
#include "launch/join.h"
#include "launch/launch.h"
#include "launch/serve.h"
#include "link/secret.h"

#include <stddef.h>
#include <unistd.h>

typedef struct agent_options {
    bool stdio;
    const char *join, *listen, *install;
    int64_t slots, wait_us;
} agent_options;

static const gr_config_field agent_fields[] = {
    {.flag = "--stdio",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(agent_options, stdio),
     .help = "the launcher is on the other side of stdin and stdout: as gradus run -H starts it"},
    {.flag = "--join",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(agent_options, join),
     .value_name = "HOST:PORT",
     .help = "where gradus run --listen waits for agents"},
    {.flag = "--listen",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(agent_options, listen),
     .value_name = "[HOST]:PORT",
     .help =
         "run the commands that gradus rsh sends, until SIGTERM; without HOST at all addresses"},
    {.flag = "--install",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(agent_options, install),
     .value_name = "FOLDER",
     .help = "put gradus and the libraries that it takes there, for containers of other images"},
    {.flag = "--slots",
     .type = GR_CONFIG_INT,
     .offset = offsetof(agent_options, slots),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "workers that this host may get; otherwise one for each core"},
    {.flag = "--wait",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(agent_options, wait_us),
     .default_text = "30s",
     .min = 0,
     .max = 86400e6,
     .help = "how long to try again while nobody listens there, or its name is not known"},
    {.key = NULL},
};

const gr_config_table gr_agent_table = {
    .name = "agent",
    .title = "gradus agent: what looks after the workers of one host",
    .fields = agent_fields,
    .struct_bytes = sizeof(agent_options)};

static void print_usage(void)
{
    puts("usage: gradus agent --join HOST:PORT [--slots N]\n"
         "       gradus agent --listen [HOST]:PORT\n"
         "       gradus agent --install FOLDER\n\n"
         "Offers this host to a job that gradus run --listen starts: its workers run here, in the\n"
         "folder and with the environment of the launcher. Both need the same token, by\n"
         "GRADUS_JOIN_TOKEN_FILE (a file of mode 0600) or GRADUS_JOIN_TOKEN; all is encrypted.\n\n"
         "With --listen it takes the place of sshd for launchers of MPI, which call gradus rsh in\n"
         "place of ssh: gradus rsh [--port N] [ssh's options] HOST COMMAND. Both need the same\n"
         "token. It is how MPIJobs with the annotation gradus/launch: agent are launched.\n\n"
         "Exit code: 0 the job needs this host no more, a signal has ended --listen, or --install "
         "is\n"
         "done; 1 the launcher, or the way to it, is lost, or the work has failed;\n"
         "2 what was given is wrong.\n");
}

static int64_t count_cores(void)
{
    gr_cores allowed;
    return gr_cores_allowed(&allowed, NULL) == GR_OK && allowed.count > 0 ? allowed.count : 1;
}

static int fail(gr_status status, const gr_diag *diag)
{
    bool input = status == GR_E_INVALID || status == GR_E_NOT_FOUND || status == GR_E_AUTH;
    return gr_cli_fail(input ? GR_EXIT_INPUT : GR_EXIT_FAILED, diag);
}

/* One time with the launcher. GR_OK: it needs this host no more, or did not need it. */
static gr_status serve_once(const gr_accepted *accepted, bool *needed_out, gr_diag *diag)
{
    char launcher[GR_ADDRESS_BYTES];
    gr_join_name_of(accepted->fd, launcher, sizeof launcher);
    const gr_serve_way way = {
        .in_fd = accepted->fd, .out_fd = accepted->fd, .tls = accepted->tls, .launcher = launcher};
    gr_status status = gr_serve_run(&way, environ, needed_out, diag);
    gr_tls_destroy(accepted->tls);
    close(accepted->fd);
    return status;
}

static int report_dial(const char *at, gr_status status, const gr_diag *why)
{
    gr_diag diag = {0};
    (void)(status == GR_E_AUTH
               ? gr_fail(
                     &diag, status,
                     "the launcher at %s holds another token: GRADUS_JOIN_TOKEN, or the file of "
                     "GRADUS_JOIN_TOKEN_FILE, must be that of gradus run --listen",
                     at)
               : gr_fail(&diag, status, "--join %s: %s", at, why->text));
    return fail(status, &diag);
}

/* A job that has lost all of its workers may be restarted: as long as somebody listens there, this
 * host is offered again, but not to a launcher that did not need it twice. Returns the exit
 * code. */
static int offer(const agent_options *options, const uint8_t *token)
{
    enum { UNNEEDED_MAX = 2 };
    int64_t cores = count_cores();
    int64_t most = cores < GR_LAUNCH_WORKERS_MAX ? cores : GR_LAUNCH_WORKERS_MAX;
    int slots = (int)(options->slots > 0 ? options->slots : most), unneeded = 0;
    gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    for (bool again = false; unneeded < UNNEEDED_MAX; again = true) {
        gr_accepted accepted;
        gr_diag diag = {0};
        bool needed;
        gr_status status = gr_join_dial(options->join, slots, token, again ? 0 : options->wait_us,
                                        &log, &accepted, &diag);
        if (status != GR_OK && again) {
            break; /* the launcher has ended */
        }
        if (status != GR_OK) {
            return report_dial(options->join, status, &diag);
        }
        if (serve_once(&accepted, &needed, &diag) != GR_OK) {
            return gr_cli_fail(GR_EXIT_FAILED, &diag);
        }
        unneeded = needed ? 0 : unneeded + 1;
    }
    return GR_EXIT_DONE;
}

/* Reads the token, and does one thing with it. */
static int with_token(const agent_options *options,
                      int (*work)(const agent_options *options, const uint8_t *token))
{
    uint8_t token[GR_SECRET_BYTES], *kept = NULL;
    gr_diag diag = {0};
    gr_status status = gr_join_token(false, token, &diag);
    if (status == GR_OK && (kept = gr_secret_keep(token)) == NULL) {
        status = gr_fail(&diag, GR_E_NO_MEMORY, "no memory for a token");
    }
    gr_wipe(token, sizeof token);
    if (status != GR_OK) {
        return fail(status, &diag);
    }
    int code = work(options, kept);
    gr_secret_forget(kept);
    return code;
}

static int listen_for_commands(const agent_options *options, const uint8_t *token)
{
    gr_diag diag = {0};
    gr_log log = {.level = GR_LOG_INFO, .sink = gr_log_to_file, .sink_arg = stderr};
    gr_status status = gr_command_serve(options->listen, token, &log, &diag);
    return status == GR_OK ? GR_EXIT_DONE : fail(status, &diag);
}

static int serve(const gr_cli_line *line)
{
    const agent_options *options = line->options;
    const gr_serve_way stdio = {.in_fd = STDIN_FILENO, .out_fd = STDOUT_FILENO};
    gr_diag diag = {0};
    if ((options->join != NULL) + (options->listen != NULL) + (options->install != NULL) > 1) {
        (void)gr_fail(&diag, GR_E_INVALID,
                      "agent: --join, --listen and --install exclude each other");
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    if (options->join != NULL) {
        return with_token(options, offer);
    }
    if (options->listen != NULL) {
        return with_token(options, listen_for_commands);
    }
    if (options->install != NULL) {
        gr_status status = gr_install_self(options->install, &diag);
        return status == GR_OK ? GR_EXIT_DONE : fail(status, &diag);
    }
    if (!options->stdio) {
        fputs("gradus: agent: say where the launcher is (--join HOST:PORT), or where to wait for "
              "commands (--listen :PORT)\n",
              stderr);
        return GR_EXIT_INPUT;
    }
    return gr_serve_run(&stdio, environ, NULL, &diag) == GR_OK ? GR_EXIT_DONE
                                                               : gr_cli_fail(GR_EXIT_FAILED, &diag);
}

const gr_cli_form gr_agent_form = {.table = &gr_agent_table, .usage = print_usage, .work = serve};
