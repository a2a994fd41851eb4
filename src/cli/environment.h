/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_ENVIRONMENT_H
#define GR_CLI_ENVIRONMENT_H

/* What GRADUS_* variables say to the workers, checked before any of them is started: a worker that
 * finds a mistake says so once for each rank, and one that is misspelt is found by nobody. */

#include "base/config.h"

/* Each name is in one of gr_reference_tables, or is one of those of Gradus' own tests; each value
 * is one that a rank accepts. GR_E_INVALID: the sentence names the variable, and the nearest known
 * one. */
gr_status gr_environment_check(char *const *environment, gr_arena *arena,
                               gr_diag *diag) GR_MUST_CHECK;

/* The workers for which these variables are. */
typedef struct gr_environment_job {
    int workers;
    bool exact;    /* sums are of the canonical order, unless the environment says otherwise */
    bool all_join; /* they are one group of `workers` ranks */
    bool here;     /* files, interfaces and processor are those of this host */
    bool by_tcp;   /* not by shared memory, on this host */
} gr_environment_job;

/* What needs to be known of the job for that: GRADUS_ALGORITHM, GRADUS_TUNE, GRADUS_INTERFACE and
 * GRADUS_PORTS. GR_E_INVALID, GR_E_NOT_FOUND, GR_E_IO; the sentence names the variable. */
gr_status gr_environment_check_job(char *const *environment, const gr_environment_job *job,
                                   gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

extern const gr_config_table gr_environment_table; /* variables that no other table has */

#endif
