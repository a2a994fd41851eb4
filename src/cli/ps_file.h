/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_PS_FILE_H
#define GR_CLI_PS_FILE_H

/* What parameter servers keep, in a safetensors file. A tensor "w" is there as its values; with
 * states also as "momentum.w" or what its optimizer has, and its number of updates as "version.w".
 * Of a table there are the rows that exist, ascending, with their numbers as "rows.w". So the bytes
 * of the file do not depend on how many servers there are. */

#include <gradus/ps.h>
#include <stdbool.h>

/* wait_us: how long it waits for a tensor that has no values yet. */
gr_status gr_ps_file_export(gr_ps *ps, const char *path, bool states, int64_t wait_us,
                            gr_diag *diag) GR_MUST_CHECK;
/* All tensors that are declared go on from the file, which was written with states; nothing is sent
 * before all of it is found to be right. GR_E_INVALID: it is not, or does not fit. */
gr_status gr_ps_file_import(gr_ps *ps, const char *path, gr_diag *diag) GR_MUST_CHECK;

#endif
