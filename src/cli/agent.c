/* SPDX-License-Identifier: Apache-2.0 */

/* What `gradus run -H` starts on each other host, by ssh. Not meant to be typed. */

#include "cli/cli.h"
#include "launch/serve.h"

#include <stddef.h>
#include <unistd.h>

typedef struct agent_options {
    bool stdio;
} agent_options;

static const gr_config_field agent_fields[] = {
    {.flag = "--stdio",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(agent_options, stdio),
     .help = "the launcher is on the other side of stdin and stdout"},
    {.key = NULL},
};

static const gr_config_table agent_table = {.name = "agent",
                                            .title = "What looks after the workers of one host",
                                            .fields = agent_fields,
                                            .struct_bytes = sizeof(agent_options)};

static void print_usage(void)
{
    puts("gradus agent --stdio is what gradus run -H starts on other hosts; not meant to be "
         "typed\n");
}

static int serve(const gr_cli_line *line)
{
    const agent_options *options = line->options;
    gr_diag diag = {0};
    if (!options->stdio) {
        fputs("gradus: agent --stdio is what gradus run -H starts on other hosts\n", stderr);
        return GR_EXIT_INPUT;
    }
    return gr_serve_run(STDIN_FILENO, STDOUT_FILENO, environ, &diag) == GR_OK
               ? GR_EXIT_DONE
               : gr_cli_fail(GR_EXIT_FAILED, &diag);
}

const gr_cli_form gr_agent_form = {.table = &agent_table, .usage = print_usage, .work = serve};
