/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_CLI_H
#define GR_CLI_CLI_H

/* What the verbs of the `gradus` command share. */

#include "base/config.h"
#include "launch/cores.h"
#include "link/link.h"

#include <jansson.h>
#include <stdio.h>

typedef enum gr_exit {
    GR_EXIT_DONE = 0,
    GR_EXIT_FAILED = 1, /* the work failed */
    GR_EXIT_INPUT = 2,  /* what the user gave is wrong; nothing was started */
    GR_EXIT_RESUME = 75 /* ended on request; run it again with --resume (EX_TEMPFAIL) */
} gr_exit;

/* One command line that was read: flags may stand before and behind the words. */
enum { GR_CLI_WORDS_MAX = 4 };
typedef struct gr_cli_line {
    int argc;
    char *const *argv; /* argv[0] is the verb */
    const char *words[GR_CLI_WORDS_MAX];
    int word_count;
    void *options;   /* the table's struct: defaults, then the environment, then flags */
    gr_arena *arena; /* as long as the verb works */
} gr_cli_line;

/* How a verb is called, and what does its work. */
typedef struct gr_cli_form {
    const gr_config_table *table;
    void (*usage)(void); /* prints what stands above the flags in its help */
    int words_min, words_max;
    const char *words_missing; /* what it says when there are fewer: "needs a job file ..." */
    bool by_environment; /* GRADUS_* variables say what its ranks do: they are checked first */
    int (*work)(const gr_cli_line *line); /* returns the exit code of the process */
} gr_cli_form;

typedef struct gr_verb {
    const char *name;
    const char *summary; /* one line for `gradus help`; NULL: hidden */
    /* Either: argv[0] is the verb; returns the exit code of the process. */
    int (*run)(int argc, char *const *argv);
    /* Or, where the line is of the common form: */
    const gr_cli_form *form;
} gr_verb;

extern const gr_verb gr_verbs[];                           /* ends with name NULL */
extern const gr_config_table *const gr_reference_tables[]; /* of every layer; ends with NULL */

int gr_verb_run(int argc, char *const *argv);
int gr_verb_pod(int argc, char *const *argv);
int gr_verb_rsh(int argc, char *const *argv);
int gr_verb_submit(int argc, char *const *argv);
int gr_verb_help(int argc, char *const *argv);
int gr_verb_version(int argc, char *const *argv);
int gr_verb_role(int argc, char *const *argv);
extern const gr_cli_form gr_worker_form;
extern const gr_cli_form gr_agent_form;
extern const gr_cli_form gr_checkpoint_form;
extern const gr_cli_form gr_attach_form;
extern const gr_cli_form gr_ls_form;
extern const gr_cli_form gr_logs_form;
extern const gr_cli_form gr_stop_form;
extern const gr_cli_form gr_wait_form;
extern const gr_cli_form gr_top_form;
extern const gr_cli_form gr_scale_form;
extern const gr_cli_form gr_sweep_form;
extern const gr_cli_form gr_eval_form;
extern const gr_cli_form gr_predict_form;
extern const gr_cli_form gr_bench_form;
extern const gr_cli_form gr_simulate_form;
extern const gr_cli_form gr_tune_form;
extern const gr_cli_form gr_timeline_form;
extern const gr_cli_form gr_rendezvous_form;
extern const gr_cli_form gr_server_form;
extern const gr_cli_form gr_ps_form;
extern const gr_cli_form gr_operator_form;
extern const gr_cli_form gr_info_form;

extern const gr_config_table gr_run_table;
extern const gr_config_table gr_run_manifest_table;
extern const gr_config_table gr_ls_table;
extern const gr_config_table gr_logs_table;
extern const gr_config_table gr_stop_table;
extern const gr_config_table gr_wait_table;
extern const gr_config_table gr_top_table;
extern const gr_config_table gr_submit_table;
extern const gr_config_table gr_checkpoint_table;
extern const gr_config_table gr_scale_table;
extern const gr_config_table gr_sweep_table;
extern const gr_config_table gr_eval_table;
extern const gr_config_table gr_predict_table;
extern const gr_config_table gr_bench_table;
extern const gr_config_table gr_simulate_table;
extern const gr_config_table gr_rendezvous_table;
extern const gr_config_table gr_server_table;
extern const gr_config_table gr_ps_verb_table;
extern const gr_config_table gr_operator_table;
extern const gr_config_table gr_agent_table;
extern const gr_config_table gr_worker_table;
extern const gr_config_table gr_timeline_table;
extern const gr_config_table gr_info_table;
extern const gr_config_table gr_tune_table;

/* run_manifest.c: is it a line of `gradus run -f`? And its work; returns the exit code. */
bool gr_run_manifest_is_asked(int argc, char *const *argv);
int gr_run_manifest(int argc, char *const *argv);

/* The verb of that name, NULL if there is none. */
const gr_verb *gr_verb_find(const char *name);
/* Reads the line, then does what it says: the work or the help. Returns the exit code. */
int gr_verb_call(const gr_verb *verb, int argc, char *const *argv);
/* Says that there is no such verb, and which is nearest; returns GR_EXIT_INPUT. */
int gr_verb_unknown(const char *name);
void gr_cli_usage(FILE *file);

/* Prints "gradus: <sentence>" and returns `code`. */
int gr_cli_fail(int code, const gr_diag *diag);
/* The same for what the user gave, which cannot be done: GR_EXIT_INPUT, but where only memory
 * was wanting. */
int gr_cli_refuse(gr_status status, const gr_diag *diag);
/* One line on stdout; takes the object over, which may be NULL: there was no memory for it. */
gr_status gr_cli_print_json(json_t *object, gr_diag *diag) GR_MUST_CHECK;
/* All that the descriptor has, in heap memory: from its beginning where it has one, since processes
 * of one host share it. `variable` names the descriptor. GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_cli_read_document(const char *name, const char *variable, int fd, char **text_out,
                               size_t *size_out, gr_diag *diag) GR_MUST_CHECK;
/* What `gradus run` tells a parameter server, as heap memory; NULL: no memory. */
char *gr_cli_server_document(int64_t servers, int64_t replicas, const char *listen);
/* Whether gr_file_replace may write `path`, for what takes long until it does: GR_E_NOT_FOUND,
 * GR_E_INVALID. */
gr_status gr_cli_check_target(const char *path, gr_diag *diag) GR_MUST_CHECK;
/* 0, or GR_EXIT_FAILED with a sentence when stdout could not be written. */
int gr_cli_flush(void);

/* Where the secret of what the user starts alone comes from. `hex`, `file`: NULL if unset. */
typedef struct gr_cli_secret {
    const char *hex, *file;
    bool print;
} gr_cli_secret;
/* The job's secret: what GRADUS_SECRET says (`hex`, which is wiped, as is the variable), else what
 * stands in `file`, which is made if it is not there, else a new one. *printed_out: that one is to
 * be printed, since nobody else knows it; where stdout is no terminal that must be asked for
 * (`print`). GR_E_INVALID, GR_E_IO. */
gr_status gr_cli_take_secret(const gr_cli_secret *of, uint8_t secret[GR_SECRET_BYTES],
                             bool *printed_out, gr_diag *diag) GR_MUST_CHECK;
/* The rows of its members, but for their places. */
#define GR_CLI_ROW_SECRET                                                                          \
    .env = "GRADUS_SECRET", .type = GR_CONFIG_TEXT, .value_name = "HEX",                           \
    .help = "the job's secret; unset: that of --secret-file, or a new one, which is printed"
#define GR_CLI_ROW_SECRET_FILE                                                                     \
    .flag = "--secret-file", .env = "GRADUS_SECRET_FILE", .type = GR_CONFIG_TEXT,                  \
    .value_name = "FILE",                                                                          \
    .help =                                                                                        \
        "where the secret stands if GRADUS_SECRET is unset; a file that is not there is made, "    \
        "with mode 0600"
#define GR_CLI_ROW_PRINT_SECRET                                                                    \
    .flag = "--print-secret", .type = GR_CONFIG_BOOL,                                              \
    .help = "print a new secret also where stdout is no terminal, but a file or a log"
/* Wipes it, once it was handed on; first it prints GRADUS_SECRET=..., if it is `printed`. The
 * caller wipes the stack behind it, this function's frame included. */
void gr_cli_leave_secret(uint8_t secret[GR_SECRET_BYTES], bool printed);

/* The names of the element types, in the order of gr_dtype. */
extern const char *const gr_cli_dtypes[];

#endif
