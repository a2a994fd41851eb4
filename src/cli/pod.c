/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus pod`: what stands for ssh and for kubectl in the pods of `gradus run -f`. It takes of
 * both what launchers of MPI use: a command in another pod. */

#include "base/fail.h"
#include "cli/cli.h"
#include "cli/ssh_line.h"
#include "operator/local/exec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ROOT = 1, SPACE, TOOL, FIRST };

static int refuse(const char *sentence, int code)
{
    fprintf(stderr, "gradus: %s\n", sentence);
    return code;
}

static int fail(const gr_diag *diag, int code)
{
    return gr_cli_fail(code, diag);
}

/* A host has the name of its pod in front. */
static int run_ssh(const char *root, const char *space, int argc, char *const *argv)
{
    char *host = NULL, *command = NULL;
    int code = GR_SSH_FAILED, error = gr_ssh_line(argc, argv, &host, &command);
    if (error != 0) {
        return refuse(error == EINVAL ? "ssh: in a pod of gradus run it takes a host and a command"
                                      : "no memory for a command",
                      GR_SSH_FAILED);
    }
    char shell[] = "/bin/sh", flag[] = "-c";
    char *const words[] = {shell, flag, command, NULL};
    gr_diag diag = {0};
    host[strcspn(host, ".")] = '\0';
    gr_status status = gr_exec_run(root, space, host, "", words, &code, &diag);
    free(host);
    free(command);
    return status == GR_OK ? code : fail(&diag, GR_SSH_FAILED);
}

/* kubectl [-n space] exec [-i] [-t] POD [-c CONTAINER] -- command ... */
static int run_kubectl(const char *root, const char *space, int argc, char *const *argv)
{
    const char *pod = NULL, *container = "";
    bool is_exec = false;
    int at = 0;
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        const char *word = argv[at];
        bool names_space = strcmp(word, "-n") == 0 || strcmp(word, "--namespace") == 0;
        bool names_container = strcmp(word, "-c") == 0 || strcmp(word, "--container") == 0;
        if ((names_space || names_container) && at + 1 < argc) {
            at++;
            space = names_space ? argv[at] : space;
            container = names_container ? argv[at] : container;
        } else if (word[0] == '-') {
            continue;
        } else if (!is_exec && strcmp(word, "exec") == 0) {
            is_exec = true;
        } else if (is_exec && pod == NULL) {
            pod = strncmp(word, "pod/", 4) == 0 ? word + 4 : word;
        } else {
            break;
        }
    }
    at += at < argc && strcmp(argv[at], "--") == 0;
    if (!is_exec || pod == NULL || at >= argc) {
        return refuse("kubectl: in a pod of gradus run it only knows exec POD -- COMMAND", 1);
    }
    gr_diag diag = {0};
    int code = 1;
    gr_status status = gr_exec_run(root, space, pod, container, argv + at, &code, &diag);
    return status == GR_OK ? code : fail(&diag, status == GR_E_INVALID ? GR_EXIT_INPUT : 1);
}

int gr_verb_pod(int argc, char *const *argv)
{
    if (argc > FIRST && strcmp(argv[TOOL], "ssh") == 0) {
        return run_ssh(argv[ROOT], argv[SPACE], argc - FIRST, argv + FIRST);
    }
    if (argc > FIRST && strcmp(argv[TOOL], "kubectl") == 0) {
        return run_kubectl(argv[ROOT], argv[SPACE], argc - FIRST, argv + FIRST);
    }
    return refuse("pod: gradus run -f calls this in its pods, as ssh and kubectl", GR_EXIT_INPUT);
}
