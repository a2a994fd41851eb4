/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_TIMELINE_H
#define GR_CLI_TIMELINE_H

/* The timeline of a job (coll/timeline.h) as the launcher and `gradus timeline` make it. */

#include "base/arena.h"

/* Before the workers start: removes parts of an earlier job. Returns what GRADUS_TIMELINE must be
 * for them: an absolute path, so that they may change their folder. NULL: none is wanted (`path`
 * NULL or empty), or there is no memory. */
const char *gr_cli_begin_timeline(const char *path, int64_t workers, gr_arena *arena);
/* When the last one has ended: makes the file and says on stderr where it is, or why not. */
void gr_cli_merge_timeline(const char *path, int64_t workers);

#endif
