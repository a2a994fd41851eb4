/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SECRET_H
#define GR_LINK_SECRET_H

/* The job's secret: where it comes from, and where it may stay. */

#include "base/hash.h"
#include "link/link.h"

/* From the text of GRADUS_SECRET. GR_E_INVALID: it is not 64 hexadecimal digits. */
gr_status gr_secret_parse(const char *hex, uint8_t secret_out[GR_SECRET_BYTES],
                          gr_diag *diag) GR_MUST_CHECK;

/* From a file of such digits. GR_E_INVALID unless it is a regular file of this user's that nobody
 * else may read or write; GR_E_NOT_FOUND, GR_E_IO. */
gr_status gr_secret_read(const char *path, uint8_t secret_out[GR_SECRET_BYTES],
                         gr_diag *diag) GR_MUST_CHECK;

/* A new secret, in a new file of mode 0600. GR_E_INVALID: there is such a file already; GR_E_IO. */
gr_status gr_secret_write(const char *path, const uint8_t secret[GR_SECRET_BYTES],
                          gr_diag *diag) GR_MUST_CHECK;

/* A copy in memory of its own, which stands in no core dump, in no child, and in no swap space as
 * far as the process may lock memory. NULL: no memory. */
uint8_t *gr_secret_keep(const uint8_t secret[GR_SECRET_BYTES]);
void gr_secret_forget(uint8_t *kept); /* wipes; NULL ok */

/* Overwrites the value of GRADUS_SECRET in this process's environment, so that neither
 * /proc/PID/environ, nor a child, nor a core dump has it: the variable is empty from now on, and no
 * entry moves, so that other threads may read the environment meanwhile. */
void gr_secret_clear_environment(void);

#endif
