/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_COMMAND_H
#define GR_LAUNCH_COMMAND_H

/* Commands on another host, for launchers that know nothing but ssh: `gradus rsh` sends them,
 * `gradus agent --listen` runs them. Both hold one token, and prove it before anything else is
 * sent; TLS follows (join.h).
 *
 *   rsh                                          agent, a process for each command
 *   connects      ── ORDER: the command ──────►  /bin/sh -c, in a session of its own
 *   stdin         ── OUTPUT 0, empty: end ────►  its stdin
 *                 ◄──────────────── TAKEN ─────  so many bytes of that; GR_COMMAND_INPUT_BYTES may
 *                                                be on the way, so that the connection stays empty
 *                                                and its end is seen whatever the command reads
 *   stdout, stderr ◄───────── OUTPUT 1, 2 ─────  what it writes
 *   its exit code  ◄─────────────  MESSAGE ────  it has ended; what it has put into the background
 *                                                lives on, as with sshd
 *   is gone       ────────────────────────────►  SIGTERM for the command; when it has ended, or 5 s
 *                                                later, SIGKILL for all that stems from it
 *
 */

#include "base/log.h"
#include "link/link.h"

enum {
    GR_COMMAND_PORT = 7522, /* of agents, unless somebody says another one */
    GR_COMMAND_BYTES_MAX = 1 << 20,
    GR_COMMAND_INPUT_BYTES = 256 * 1024,
    GR_COMMANDS_MAX = 256 /* that run at a time; more are closed without a word */
};

/* Listens at "HOST:PORT", ":PORT" (all addresses), and runs what comes until a signal asks for an
 * end: GR_OK. Commands have the environment of this process. The signals are held back
 * (signals.h). GR_E_INVALID: no address to listen at; GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_command_serve(const char *at, const uint8_t token[GR_SECRET_BYTES], const gr_log *log,
                           gr_diag *diag) GR_MUST_CHECK;

/* Runs the command at "HOST:PORT" with this process's stdin, stdout and stderr, and gives its exit
 * code; 128 + n: signal n ended it. Where nobody listens yet, or the name is not known yet, it
 * tries again for `wait_us`. GR_E_AUTH: the agent has another token; GR_E_PEER_LOST: nobody is
 * there, or the connection broke, and whether the command ran is not known; GR_E_NOT_FOUND:
 * nobody knows the name; GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_command_run(const char *at, const uint8_t token[GR_SECRET_BYTES], int64_t wait_us,
                         const char *command, int *code_out, gr_diag *diag) GR_MUST_CHECK;

#endif
