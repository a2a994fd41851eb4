/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/placement/placement.h"

#include <stdio.h>
#include <string.h>

/* 'text', a path, for the shell there. */
static void quote(const char *text, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[used++] = '\'';
    for (; *text != '\0' && used + 6 < out_bytes; text++) { /* there is room */
        if (*text == '\'') {
            memcpy(out + used, "'\\''", 4);
            used += 4;
        } else {
            out[used++] = *text;
        }
    }
    out[used++] = '\'';
    out[used] = '\0';
}

static void find_words(const gr_remote_config *config, gr_remote_words *words)
{
    char program[GR_REMOTE_COMMAND_BYTES - 32];
    quote(config->program, program, sizeof program);
    if (config->start_timeout_us > 0) {
        snprintf(words->numbers[0], sizeof words->numbers[0], "-oConnectTimeout=%lld",
                 (long long)(config->start_timeout_us / 1000000 + 1));
        words->at[words->count++] = words->numbers[0];
    }
    if (config->ssh_port > 0) {
        snprintf(words->numbers[1], sizeof words->numbers[1], "%d", config->ssh_port);
        words->at[words->count++] = "-p";
        words->at[words->count++] = words->numbers[1];
    }
    if (config->identity != NULL) {
        words->at[words->count++] = "-i";
        words->at[words->count++] = config->identity;
    }
    words->at[words->count++] = "--";
    words->at[words->count++] = config->host;
    snprintf(words->command, sizeof words->command, "%s agent --stdio", program);
    words->at[words->count++] = words->command;
}

/* No question is ever asked: there may be no terminal, and many hosts would ask at a time. */
static const char *const first[] = {"ssh", "-T", "-x", "-a", "-oBatchMode=yes", NULL};

static const gr_remote_shell shell = {
    .name = "ssh",
    .package = "openssh-client",
    .trial = "ssh",
    .advice = "must answer without a question (--ssh-port, --ssh-identity-file, --remote-program)",
    .first = first,
    .find_words = find_words};

const gr_placement gr_placement_ssh = {
    .name = "ssh", .shell = &shell, .start = gr_remote_run, .watch = gr_placement_describe_loss};
