/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus rsh`: what launchers of MPI call in place of ssh, where `gradus agent --listen` runs on
 * the other hosts. */

#include "base/fail.h"
#include "base/number.h"
#include "cli/cli.h"
#include "cli/ssh_line.h"
#include "launch/command.h"
#include "launch/join.h"
#include "link/secret.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_US = 60000000, PORT_MAX = 65535 };

static gr_status run(const char *host, int64_t port, const char *command, int *code_out,
                     gr_diag *diag)
{
    uint8_t token[GR_SECRET_BYTES];
    char at[GR_HOSTS_NAME_BYTES + 16];
    bool colon = strchr(host, ':') != NULL;
    gr_diag why = {0};
    snprintf(at, sizeof at, "%s%.*s%s:%d", colon ? "[" : "", GR_HOSTS_NAME_BYTES - 1, host,
             colon ? "]" : "", (int)port);
    gr_status status = gr_join_token(false, token, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_command_run(at, token, WAIT_US, command, code_out, &why);
    gr_wipe(token, sizeof token);
    if (status == GR_E_AUTH) {
        return gr_fail(diag, status,
                       "rsh: the agent at %s holds another token: both need the same "
                       "GRADUS_JOIN_TOKEN",
                       at);
    }
    return status == GR_OK ? GR_OK : gr_fail(diag, status, "rsh: %s: %s", at, why.text);
}

int gr_verb_rsh(int argc, char *const *argv)
{
    int64_t port = GR_COMMAND_PORT;
    char *host = NULL, *command = NULL;
    int first = 1, code = GR_SSH_FAILED;
    gr_diag diag = {0};
    gr_status status = GR_OK;
    if (argc > 2 && strcmp(argv[1], "--port") == 0) {
        first = 3;
        if (gr_number_int(argv[2], &port) != GR_NUMBER_OK || port < 1 || port > PORT_MAX) {
            status = gr_fail(&diag, GR_E_INVALID, "rsh: --port \"%.40s\" is no port", argv[2]);
        }
    }
    if (status == GR_OK) {
        int error = gr_ssh_line(argc - first, argv + first, &host, &command);
        status =
            error == 0 ? GR_OK
            : error == EINVAL
                ? gr_fail(&diag, GR_E_INVALID,
                          "rsh: it takes a host where gradus agent --listen runs, and a command")
                : gr_fail(&diag, GR_E_NO_MEMORY, "no memory for a command");
    }
    if (status == GR_OK) {
        status = run(host, port, command, &code, &diag);
    }
    free(host);
    free(command);
    return status == GR_OK ? code : gr_cli_fail(GR_SSH_FAILED, &diag);
}
