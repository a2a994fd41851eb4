/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_ROLE_H
#define GR_CLI_ROLE_H

/* The roles of TensorFlow's tasks: "chief=1,worker=3,ps=2,evaluator=1". Each task is a worker of
 * the job; ranks are dealt in the order of gr_role, whatever the order in the text. */

#include <gradus/status.h>

typedef enum gr_role {
    GR_ROLE_CHIEF,
    GR_ROLE_MASTER, /* the chief's former name */
    GR_ROLE_WORKER,
    GR_ROLE_PS,
    GR_ROLE_EVALUATOR,
    GR_ROLE_COUNT
} gr_role;

typedef struct gr_roles {
    int counts[GR_ROLE_COUNT];
    int tasks; /* of all roles together */
} gr_roles;

const char *gr_role_name(gr_role role);
/* GR_E_INVALID: with a sentence. */
gr_status gr_roles_parse(const char *text, gr_roles *roles_out, gr_diag *diag) GR_MUST_CHECK;
/* The first rank of a role. */
int gr_roles_first(const gr_roles *roles, gr_role role);

#endif
