/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_CONFIG_H
#define GR_BASE_CONFIG_H

/* One table per module is the only source of its YAML keys, environment variables, command-line
 * flags, --help and reference page. A table describes the fields of one plain struct; the struct is
 * filled by layers, each overriding the one before: default, file (doc/config_node.h), environment,
 * flag. */

#include "base/arena.h"

#include <stdbool.h>
#include <stdio.h>

typedef enum gr_config_type {
    GR_CONFIG_BOOL,     /* bool;    true false yes no on off 1 0; as a flag: --name or --no-name */
    GR_CONFIG_INT,      /* int64_t */
    GR_CONFIG_DOUBLE,   /* double */
    GR_CONFIG_BYTES,    /* int64_t; 64k, 1m, 2g, 1GiB (powers of 1024), 1GB (of 1000), plain */
    GR_CONFIG_DURATION, /* int64_t microseconds; 5us, 200ms, 10s, 5min, 1h; plain number: seconds */
    GR_CONFIG_TEXT,     /* const char *, in the arena; NULL by default when default_text is NULL */
    GR_CONFIG_CHOICE,   /* int, the index into choices */
    GR_CONFIG_LIST,     /* const char *const *, in the arena: one text for each time that the flag
                         * stands there, NULL-terminated; NULL: none */
    GR_CONFIG_NODE /* const gr_node *: a part of a document, for its owner to read (doc/doc.h) */
} gr_config_type;

typedef struct gr_config_field {
    const char *key;  /* YAML key, "batch_size"; NULL: not in files */
    const char *flag; /* "--batch-size"; NULL: no flag */
    char short_flag;  /* 'q'; 0: none */
    const char *env;  /* "GRADUS_LINK"; NULL: no variable */
    gr_config_type type;
    size_t offset;              /* offsetof in the struct */
    const char *default_text;   /* read like any other text; NULL: zero */
    double min, max;            /* bounds of numbers as the struct holds them (bytes, microseconds);
                                 * both 0: unbounded; an infinite one, or max below min: no bound */
    const char *unit;           /* of a plain number, "s", "samples"; NULL */
    const char *const *choices; /* NULL-terminated, for GR_CONFIG_CHOICE */
    const char *(*choice)(int index); /* in place of choices: the words; NULL behind the last */
    /* For GR_CONFIG_CHOICE: further fields of the struct that only this choice has, ending as those
     * of a table; choices may share them. Returns NULL: it has none. NULL: none has. */
    const struct gr_config_field *(*choice_fields)(int index);
    const char *value_name; /* "N", "FILE": what --help shows; NULL: from the type */
    const char *help;       /* one line */
    /* With which values of another key of the table the key means something, and with which it
     * changes the result: see gr_config_holds. `needs` NULL: any; `result` NULL: none (a field of
     * choices: as that of the choice), "": any. */
    const char *needs, *result;
    bool is_file; /* GR_CONFIG_TEXT: a file that is read; its bytes count, not its name */
    /* What flag and variable were called before; NULL. They are errors that name the new ones. */
    const char *former_flag, *former_env;
} gr_config_field;

/* A flag that other programs have, for the sentence about an unknown one. */
typedef struct gr_config_foreign {
    const char *flag;  /* as there, with "-" between words; NULL: the end */
    const char *whose; /* "mpirun" */
    const char *ours;  /* what to do instead */
} gr_config_foreign;

typedef struct gr_config_table {
    const char *name;              /* of the module or verb, "run" */
    const char *title;             /* one line */
    const gr_config_field *fields; /* ends with key, flag, short_flag and env all empty */
    size_t struct_bytes;
    const gr_config_foreign *foreign; /* NULL: none */
} gr_config_table;

/* Returns true if the struct has these values. "strategy: local|ps": the choice `strategy` is one
 * of the two, and the condition of that key itself holds; "keep_best: true" likewise. "": always
 * true. */
bool gr_config_holds(const gr_config_table *table, const void *config, const char *condition);

/* Zeroes the struct and applies the defaults. Texts are copied into `arena`, which must outlive the
 * struct. */
gr_status gr_config_defaults(const gr_config_table *table, void *config, gr_arena *arena,
                             gr_diag *diag) GR_MUST_CHECK;

/* The field behind `field`, those of choices last; NULL: the first. NULL behind the last. */
const gr_config_field *gr_config_next(const gr_config_table *table, const gr_config_field *field);
/* Returns true if `field` is one of `fields` (NULL: none). */
bool gr_config_is_among(const gr_config_field *fields, const gr_config_field *field);
/* Returns true if `field` belongs to another choice than the struct's, so that it means nothing. */
bool gr_config_is_of_other(const gr_config_table *table, const void *config,
                           const gr_config_field *field);
/* Returns true if `field` means something with the struct's other values; the second function: if
 * it changes the result. */
bool gr_config_applies(const gr_config_table *table, const void *config,
                       const gr_config_field *field);
bool gr_config_counts(const gr_config_table *table, const void *config,
                      const gr_config_field *field);
/* Returns true if `field` has neither a value nor a default. */
bool gr_config_is_unset(const gr_config_field *field, const void *config);
/* The word of a GR_CONFIG_CHOICE; NULL behind the last. */
const char *gr_config_choice(const gr_config_field *field, int index);

/* The value of a variable; NULL: it is not set. */
const char *gr_config_variable(char *const *environment, const char *name);
/* Sets fields from the environment (`environ` style, NULL-terminated "NAME=value" strings). An
 * empty variable counts as absent. */
gr_status gr_config_from_env(const gr_config_table *table, void *config, char *const *environment,
                             gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

/* Sets fields from the flags of argv from *at on: "--name value", "--name=value", "-n value", "-np
 * 4" (a flag named "-np"), "--bool", "--no-bool". Stops at the first word that is not a flag, or
 * behind "--" (then *dashes_out is true); *at becomes the index of the next word. An unknown flag
 * is an error that names the nearest known one. "-h" and "--help" set *help_out and stop. A name
 * may have one dash or two; of a repeated flag the last one counts, but for GR_CONFIG_LIST. */
gr_status gr_config_from_args(const gr_config_table *table, void *config, int argc,
                              char *const *argv, int *at, bool *dashes_out, bool *help_out,
                              gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

/* Sets one field from text. `where` ("--batch-size", "GRADUS_LINK", "job.yaml:3: batch") begins the
 * sentence of a failure. */
gr_status gr_config_set(const gr_config_field *field, void *config, const char *text,
                        const char *where, gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;

void gr_config_print_help(const gr_config_table *table, FILE *file); /* the flags part of --help */
void gr_config_print_markdown(const gr_config_table *table,
                              FILE *file); /* a section of the reference */

#endif
