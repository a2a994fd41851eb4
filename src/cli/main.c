/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A descriptor that is missing would be taken by the next file that we open, and what is meant for
 * the terminal would be written there. */
static bool open_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!open_standard_files()) {
        return GR_EXIT_FAILED;
    }
    if (argc < 2) {
        gr_cli_usage(stderr);
        return GR_EXIT_INPUT;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    const gr_verb *verb = gr_verb_find(name);
    return verb != NULL ? gr_verb_call(verb, argc - 1, argv + 1) : gr_verb_unknown(name);
}
