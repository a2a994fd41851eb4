/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_EXPORT_H
#define GR_LAUNCH_EXPORT_H

/* Which variables of the launcher's environment travel to other hosts (`gradus run --export`). */

#include "base/arena.h"

#include <gradus/status.h>

/* Those that programs need to run as they do here: search paths, the language, settings of
 * libraries. "PREFIX*" stands for all names that begin so. Ends with NULL. */
extern const char *const gr_export_usual[];

enum { GR_EXPORT_SET_MAX = 32 }; /* NAME=VALUE */

typedef struct gr_exported {
    char *const *environment; /* what other hosts get, NULL-terminated */
    const char *const *set;   /* each NAME=VALUE, for every worker, NULL-terminated */
    const char *absent;       /* a NAME that is not in the environment; NULL: none */
} gr_exported;

/* `words`: NULL-terminated; each is a NAME=VALUE, or has commas between a NAME, a PREFIX*, ALL for
 * everything, or NONE for no usual ones. NULL: the usual ones alone. Entries of `environment` and
 * words are borrowed, the rest is in `arena`. GR_E_INVALID: the sentence quotes the word that is
 * wrong. GR_E_NO_MEMORY. */
gr_status gr_export(const char *const *words, char *const *environment, gr_arena *arena,
                    gr_exported *exported_out, gr_diag *diag) GR_MUST_CHECK;

#endif
