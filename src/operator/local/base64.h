/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_BASE64_H
#define GR_OPERATOR_LOCAL_BASE64_H

#include <stddef.h>

/* What a value of a Secret's data stands for, on the heap, with a zero byte behind it; NULL: it is
 * no base64, or there is no memory. */
char *gr_base64_decode(const char *text, size_t *size_bytes_out);

#endif
