/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_CHECKPOINT_H
#define GR_CLI_CHECKPOINT_H

/* Which checkpoint a command line means. */

#include "train/checkpoint_file.h"

/* Opens a checkpoint, or the newest sound one of a folder of them. */
gr_status gr_cli_open_checkpoint(const char *path, gr_checkpoint **checkpoint_out,
                                 gr_diag *diag) GR_MUST_CHECK;

#endif
