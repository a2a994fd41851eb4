/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/ssh_line.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *join(char *const *words)
{
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    for (int i = 0; out != NULL && words[i] != NULL; i++) {
        fprintf(out, "%s%s", i > 0 ? " " : "", words[i]);
    }
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int gr_ssh_line(int argc, char *const *argv, char **host_out, char **command_out)
{
    static const char with_value[] = "BbcDEeFIiJLlmOopQRSWw";
    int at = 0;
    while (at < argc && argv[at][0] == '-' && argv[at][1] != '\0') {
        bool takes_next = strchr(with_value, argv[at][1]) != NULL && argv[at][2] == '\0';
        at += takes_next ? 2 : 1;
    }
    if (at + 1 >= argc) {
        return EINVAL;
    }
    const char *name = strchr(argv[at], '@');
    char *host = strdup(name != NULL ? name + 1 : argv[at]);
    char *command = join(argv + at + 1);
    if (host == NULL || command == NULL) {
        free(host);
        free(command);
        return ENOMEM;
    }
    *host_out = host;
    *command_out = command;
    return 0;
}
