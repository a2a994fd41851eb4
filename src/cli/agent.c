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

enum { ARENA_BYTES_MAX = 64 << 10 };

int gr_verb_agent(int argc, char *const *argv)
{
    agent_options options;
    gr_cli_line line;
    gr_diag diag = {0};
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = gr_cli_parse(&agent_table, &options, argc, argv, 0, &arena, &line, &diag);
    int code = GR_EXIT_DONE;
    if (status != GR_OK) {
        code = gr_cli_fail(gr_cli_input_code(status), &diag);
    } else if (line.help || !options.stdio) {
        fputs("gradus agent --stdio is what gradus run -H starts on other hosts\n", stderr);
        code = GR_EXIT_INPUT;
    } else if (gr_serve_run(STDIN_FILENO, STDOUT_FILENO, environ, &diag) != GR_OK) {
        code = gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    gr_arena_fini(&arena);
    return code;
}
