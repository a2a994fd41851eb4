/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_CLI_H
#define GR_CLI_CLI_H

/* What the verbs of the `gradus` command share. */

#include "base/config.h"
#include "launch/cores.h"

#include <stdio.h>

typedef enum gr_exit {
    GR_EXIT_DONE = 0,
    GR_EXIT_FAILED = 1, /* the work failed */
    GR_EXIT_INPUT = 2,  /* what the user gave is wrong; nothing was started */
    GR_EXIT_RESUME = 75 /* ended on request; run it again with --resume (EX_TEMPFAIL) */
} gr_exit;

typedef struct gr_verb {
    const char *name;
    const char *summary; /* one line for `gradus help`; NULL: hidden */
    /* argv[0] is the verb. Returns the exit code of the process. */
    int (*run)(int argc, char *const *argv);
} gr_verb;

extern const gr_verb gr_verbs[];                           /* ends with name NULL */
extern const gr_config_table *const gr_reference_tables[]; /* of every floor; ends with NULL */

int gr_verb_run(int argc, char *const *argv);
int gr_verb_worker(int argc, char *const *argv);
int gr_verb_agent(int argc, char *const *argv);
int gr_verb_checkpoint(int argc, char *const *argv);
int gr_verb_scale(int argc, char *const *argv);
int gr_verb_eval(int argc, char *const *argv);
int gr_verb_bench(int argc, char *const *argv);
int gr_verb_simulate(int argc, char *const *argv);
int gr_verb_tune(int argc, char *const *argv);
int gr_verb_timeline(int argc, char *const *argv);
int gr_verb_coordinate(int argc, char *const *argv);
int gr_verb_info(int argc, char *const *argv);
int gr_verb_help(int argc, char *const *argv);
int gr_verb_version(int argc, char *const *argv);

extern const gr_config_table gr_run_table;
extern const gr_config_table gr_checkpoint_table;
extern const gr_config_table gr_scale_table;
extern const gr_config_table gr_eval_table;
extern const gr_config_table gr_bench_table;
extern const gr_config_table gr_simulate_table;
extern const gr_config_table gr_coordinate_table;
extern const gr_config_table gr_timeline_table;
extern const gr_config_table gr_info_table;
extern const gr_config_table gr_tune_table;

/* The verb of that name, NULL if there is none. */
const gr_verb *gr_verb_find(const char *name);
/* Says that there is no such verb, and which is nearest; returns GR_EXIT_INPUT. */
int gr_verb_unknown(const char *name);
void gr_cli_usage(FILE *file);

/* Prints "gradus: <sentence>" and returns `code`. */
int gr_cli_fail(int code, const gr_diag *diag);
/* The exit code for a failure to read what the user gave. */
int gr_cli_input_code(gr_status status);
/* 0, or GR_EXIT_FAILED with a sentence when stdout could not be written. */
int gr_cli_flush(void);

/* One parsed command line: flags may stand before and behind the words. */
enum { GR_CLI_WORDS_MAX = 4 };
typedef struct gr_cli_line {
    const char *words[GR_CLI_WORDS_MAX];
    int word_count;
    bool help;
} gr_cli_line;

/* Defaults, environment, then flags into `config`; at most `words_max` words besides. */
gr_status gr_cli_parse(const gr_config_table *table, void *config, int argc, char *const *argv,
                       int words_max, gr_arena *arena, gr_cli_line *line_out,
                       gr_diag *diag) GR_MUST_CHECK;

#endif
