/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_REMOTE_H
#define GR_LAUNCH_REMOTE_H

/* The launcher's end of the way to another host: a process that stands where the agent of this host
 * would, runs `gradus agent --stdio` there by a remote shell (ssh, srun), hands over the order,
 * and carries messages and output. To the launcher it is an agent: the same socket and pipes. */

#include "launch/agent.h"
#include "launch/host_list.h"
#include "launch/launch_spec.h"

#include <limits.h>

struct gr_remote_config;

enum {
    GR_REMOTE_WORDS_MAX = 24,
    GR_REMOTE_COMMAND_BYTES = 4 * PATH_MAX + 64 /* of a path, each letter may be a quote */
};

typedef struct gr_remote_words {
    const char *at[GR_REMOTE_WORDS_MAX]; /* the program first; ends with NULL */
    int count;
    char command[GR_REMOTE_COMMAND_BYTES], host[300], numbers[2][48]; /* what `at` points to */
} gr_remote_words;

/* A program that starts `gradus agent --stdio` on another host and carries its stdin and stdout. */
typedef struct gr_remote_shell {
    const char *name;         /* of the program */
    const char *package;      /* Debian's, which has it */
    const char *trial;        /* with a host and a command behind it, what a user can try */
    const char *advice;       /* what is to come of that */
    const char *const *first; /* its words that are always the same, ended by NULL */
    /* Adds the others. */
    void (*find_words)(const struct gr_remote_config *config, gr_remote_words *words);
} gr_remote_shell;

typedef struct gr_remote_config {
    const gr_remote_shell *shell;
    const char *host;         /* as the shell takes it */
    const char *program;      /* gradus there */
    int ssh_port;             /* 0: as ssh has it */
    const char *identity;     /* file with a private key; NULL: as ssh has it */
    int64_t start_timeout_us; /* until it answers; 0: for ever */
    int64_t silence_us;       /* a host that says nothing for so long is lost */
    char *const *environment; /* of the shell */
    gr_launch_spec order;
    gr_agent_config agent; /* of the workers there */
    int joined_fd;         /* with `tls`: the connection by which it came, in place of a shell */
    gr_tls *tls;           /* NULL: by the shell */
    int words_fd;          /* a pipe: why it is lost, as text, if it is */
} gr_remote_config;

/* Runs in the process that was forked for it, and ends it. When the host is lost the control socket
 * closes without DONE. */
_Noreturn void gr_remote_run(const gr_remote_config *config);

#endif
