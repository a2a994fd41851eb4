/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_SERVE_SSH_KEY_H
#define GR_OPERATOR_SERVE_SSH_KEY_H

/* The keys by which the launcher of an MPIJob reaches its workers. */

#include <jansson.h>

/* A gr_operator_view's ssh_key: a new pair of ECDSA on P-521, as a Secret of the type
 * kubernetes.io/ssh-auth has it. NULL: none could be made. */
json_t *gr_ssh_key_make(void *unused);
/* A gr_operator_view's token. NULL: none could be made. */
json_t *gr_job_token_make(void *unused);

#endif
