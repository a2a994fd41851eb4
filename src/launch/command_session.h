/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_COMMAND_SESSION_H
#define GR_LAUNCH_COMMAND_SESSION_H

/* The process of `gradus agent --listen` that runs one command (command.h). */

#include "link/tls.h"

/* In the process that was forked for it: takes the command from the connection, runs it, and ends.
 * The signals that ask for an end are held back. */
_Noreturn void gr_command_session(int fd, gr_tls *tls);

#endif
