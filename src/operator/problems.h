/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_PROBLEMS_H
#define GR_OPERATOR_PROBLEMS_H

/* What is wrong with a job: checks that add to one list, with the sentences that Kubernetes has for
 * them. `path` is that of the map in which `key` is. */

#include "operator/operator.h"

#include <stdint.h>

enum { GR_PROBLEM_PATH_BYTES = 256 };

typedef struct gr_problems {
    char text[4 * GR_EVENT_BYTES];
    size_t used;
    int count;
    bool no_memory; /* for a check */
} gr_problems;

void gr_problem(gr_problems *p, const char *format, ...) GR_PRINTF(2, 3);
/* One sentence about all that is wrong, empty if nothing is. */
void gr_problems_describe(const gr_problems *p, char sentence_out[GR_EVENT_BYTES]);

void gr_check_is_one_of(gr_problems *p, const json_t *value, const char *path,
                        const char *const *known);
/* False: absent, or wrong and reported. */
bool gr_check_integer(gr_problems *p, const json_t *object, const char *key, const char *path,
                      int64_t *value_out);
void gr_check_not_negative(gr_problems *p, const json_t *object, const char *key, const char *path);
void gr_check_truth(gr_problems *p, const json_t *object, const char *key, const char *path);
/* A pod JOB-ROLE-INDEX must have the name of a host. */
void gr_check_pod_name(gr_problems *p, const json_t *job, const char *role, int64_t index);
/* Not strict: also limits below 0, and any text as cleanPodPolicy. */
void gr_check_run_policy(gr_problems *p, const json_t *policy, const char *manager_name,
                         bool is_strict);
/* At least one container, each of them a map. */
void gr_check_containers(gr_problems *p, const json_t *spec, const char *path);

extern const char *const gr_clean_pod_policies[]; /* "All", ...; ends with NULL */

/* The keys of spec.runPolicy and of its schedulingPolicy. */
extern const char *const gr_run_policy_fields[];
extern const char *const gr_scheduling_policy_fields[];

#endif
