/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_CONFIG_TEXT_H
#define GR_BASE_CONFIG_TEXT_H

/* The words that errors, --help and the reference share. */

#include "base/config.h"

/* The table ends at the first field without any name. */
bool gr_config_is_end(const gr_config_field *field);

/* How the type of a field is called. */
typedef struct gr_config_words {
    const char *name;    /* of its value in --help */
    const char *must_be; /* in errors */
    const char *values;  /* in the reference */
} gr_config_words;
const gr_config_words *gr_config_words_of(const gr_config_field *field);

/* A number of the field as a user would write it: "64k", "200ms", "0.5". */
enum { GR_CONFIG_VALUE_BYTES = 48 };
void gr_config_value_text(const gr_config_field *field, double value,
                          char text_out[GR_CONFIG_VALUE_BYTES]);

/* The value of a field of `config` as a file has it, numbers without units: a text of the struct or
 * of the table, or `number_out`. NULL: a list, or a part of a document. */
const char *gr_config_text(const gr_config_field *field, const void *config,
                           char number_out[GR_CONFIG_VALUE_BYTES]);

/* The bounds that apply; NULL if there is none, else a pointer into the field. */
const double *gr_config_min(const gr_config_field *field);
const double *gr_config_max(const gr_config_field *field);

#endif
