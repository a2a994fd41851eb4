/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_QUANTITY_H
#define GR_OPERATOR_QUANTITY_H

/* Quantities of Kubernetes resources: "500m", "1Gi", "2", "1e3". */

#include <stdbool.h>
#include <stdint.h>

enum { GR_QUANTITY_BYTES = 48 };

typedef enum gr_quantity_form {
    GR_QUANTITY_DECIMAL, /* k, M, G */
    GR_QUANTITY_BINARY,  /* Ki, Mi, Gi */
    GR_QUANTITY_EXPONENT /* e3, e6 */
} gr_quantity_form;

typedef struct gr_quantity {
    __int128 nano; /* in 10^-9 */
    gr_quantity_form form;
} gr_quantity;

/* False: the text is no quantity, or one beyond 10^27. Parts of 10^-9 are rounded up. */
bool gr_quantity_parse(const char *text, gr_quantity *quantity_out);
/* *sum += count * quantity, in the form of the first that was added to nothing; false: beyond
 * 10^27. */
bool gr_quantity_add(gr_quantity *sum, const gr_quantity *quantity, int64_t count);
/* The one form in which Kubernetes writes it. */
void gr_quantity_print(const gr_quantity *quantity, char text_out[GR_QUANTITY_BYTES]);

#endif
