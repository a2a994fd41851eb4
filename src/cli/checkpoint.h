/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_CHECKPOINT_H
#define GR_CLI_CHECKPOINT_H

/* Which checkpoint a command line means. */

#include "train/checkpoint/checkpoint_file.h"

/* Opens a checkpoint, or of a folder of them the newest sound one, or the best (`keep_best`). */
gr_status gr_cli_open_checkpoint(const char *path, bool best, gr_checkpoint **checkpoint_out,
                                 gr_diag *diag) GR_MUST_CHECK;

#endif
