/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_REMOTE_SHELL_H
#define GR_LAUNCH_REMOTE_SHELL_H

/* Programs that start `gradus agent --stdio` on another host and carry its stdin and stdout: one
 * file each. */

#include <limits.h>
#include <stddef.h>

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

typedef struct gr_remote_shell {
    const char *name;    /* of the program */
    const char *package; /* Debian's, which has it */
    void (*find_words)(const struct gr_remote_config *config, gr_remote_words *words_out);
    /* What a user can try when a host cannot be used, as the end of a sentence. */
    void (*advise)(const char *host, const char *program, char *advice_out, size_t size_bytes);
} gr_remote_shell;

extern const gr_remote_shell gr_remote_shell_ssh;
extern const gr_remote_shell gr_remote_shell_slurm; /* in an allocation */

#endif
