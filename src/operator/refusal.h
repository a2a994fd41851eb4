/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_REFUSAL_H
#define GR_OPERATOR_REFUSAL_H

/* What becomes of a look of which the API server refuses a creation: by a quota, or a webhook. */

#include "operator/operator.h"

/* The event, as the reference operators have it, about an object that a job of this kind could not
 * get. `why` (NULL, "": unknown) is the server's. NULL: no memory. */
json_t *gr_refusal_event(const char *job_kind, const json_t *object, const char *why);

/* Takes out of a result what it says about creations that are `unmade`: events become null, and
 * `status` (NULL: none) does not count them, as the status `before` (NULL: none) did not.
 * GR_E_NO_MEMORY. */
gr_status gr_refusal_settle(const gr_operator_result *result, const bool *unmade,
                            const json_t *before, json_t *status) GR_MUST_CHECK;

#endif
