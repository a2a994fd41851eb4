/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_GRADUSJOB_H
#define GR_OPERATOR_GRADUSJOB_H

/* What the files of GradusJob share. */

#include "operator/training.h"

#define GR_GRADUSJOB_CONTAINER "gradus"

/* A pod template of `image` with the resources of `role`, a map of the spec. The caller's. */
json_t *gr_gradusjob_template(const json_t *role, const char *image, bool *no_memory);
/* "spec.workers": what the template says is not said beside it, nor a command in it beside `told`,
 * the key that says what the role's pods run; NULL: none. */
void gr_gradusjob_check_template(gr_problems *p, const char *path, const json_t *role,
                                 const char *told);
/* The secret by which the processes of the job know each other. */
void gr_gradusjob_add_secret(gr_training *t, json_t *container);
/* Brings gradus, with its libraries, where there is an image for that. Returns its path. */
const char *gr_gradusjob_add_program(gr_training *t, json_t *pod_spec, json_t *container);

#endif
