/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <gradus/version.h>
#include <string.h>

int gr_verb_help(int argc, char *const *argv)
{
    if (argc > 1 && strncmp(argv[1], "-", 1) != 0 && strcmp(argv[1], "help") != 0) {
        const gr_verb *verb = gr_verb_find(argv[1]);
        char *const help[] = {argv[1], "--help", NULL};
        return verb != NULL ? gr_verb_call(verb, 2, help) : gr_verb_unknown(argv[1]);
    }
    printf("Gradus %s: trains a model on many workers as if it were one\n\n", gr_version());
    gr_cli_usage(stdout);
    return gr_cli_flush();
}

int gr_verb_version(int argc, char *const *argv)
{
    (void)argc;
    (void)argv;
    printf("gradus %s\n", gr_version());
    return gr_cli_flush();
}
