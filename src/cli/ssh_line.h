/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_SSH_LINE_H
#define GR_CLI_SSH_LINE_H

/* The words with which launchers of MPI call ssh: [options] [user@]host command ... */

enum { GR_SSH_FAILED = 255 }; /* the exit code by which ssh says that it has not come through */

/* Of the words behind the program. `host_out` and `command_out` (all words of it with blanks in
 * between, as ssh's shell gets them) are the caller's to free. 0; EINVAL: a host or a command is
 * missing; ENOMEM. */
int gr_ssh_line(int argc, char *const *argv, char **host_out, char **command_out);

#endif
