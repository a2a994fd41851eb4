/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_GRADUSJOB_H
#define GR_OPERATOR_GRADUSJOB_H

/* What the files of GradusJob share. */

#include "operator/training.h"

#define GR_GRADUSJOB_CONTAINER "gradus"
#define GR_GRADUSJOB_SERVER "Server"
/* Of all pods of an attempt that has parameter servers: how many. */
#define GR_GRADUSJOB_SERVERS_LABEL "gradus.dev/servers"
/* The longest that there is: the last pod may wait for room, and the operator sees who is lost. Not
 * for ever, as nobody sees that a worker which has begun ended before it met the others; and with 0
 * links have 5 s, which many that begin at once may need more of. */
#define GR_GRADUSJOB_JOIN_TIMEOUT "24h"

/* ---- gradusjob.c ----------------------------------------------------------------------------- */

/* A pod template of `image` with the resources of `role`, a map of the spec. The caller's. */
json_t *gr_gradusjob_template(const json_t *role, const char *image, bool *no_memory);
/* "spec.workers": what the template has must not stand beside it, nor a command in it beside
 * `told`, the key that says what the role's pods run; NULL: none. */
void gr_gradusjob_check_template(gr_problems *p, const char *path, const json_t *role,
                                 const char *told);
/* A variable; `value` is taken, NULL: no memory. */
void gr_gradusjob_add_env(gr_training *t, json_t *container, const char *name, json_t *value);
/* "tcp:NAME:PORT" of each pod of the role but `except` (-1: none), in their order. The caller's. */
json_t *gr_gradusjob_addresses(const gr_training *t, const gr_training_role *role, int64_t port,
                               char separator, int64_t except);
/* The secret by which the processes of the job know each other. */
void gr_gradusjob_add_secret(gr_training *t, json_t *container);
/* Brings gradus, with its libraries, where there is an image for that. Returns its path. */
const char *gr_gradusjob_add_program(gr_training *t, json_t *pod_spec, json_t *container);
/* The document of gradus/train: what `gradus worker` reads of spec.job. The caller's. */
json_t *gr_gradusjob_document(const json_t *spec, int64_t workers, bool *no_memory);

/* ---- gradusjob_servers.c --------------------------------------------------------------------- */
/* Also makes spec.servers of what the job file says of them. */
void gr_gradusjob_set_server_defaults(json_t *spec, json_t *worker, bool *no_memory);
void gr_gradusjob_check_servers(gr_problems *p, const json_t *servers);
/* Where they are, for a worker. */
void gr_gradusjob_add_servers(gr_training *t, json_t *container);
void gr_gradusjob_label_servers(gr_training *t, json_t *labels);
/* While the job is Running it is one that comes in place of another. */
void gr_gradusjob_complete_server(gr_training *t, const gr_training_role *role, int64_t index,
                                  json_t *pod_spec, json_t *container);

typedef struct gr_gradusjob_servers {
    int64_t wanted, there; /* pods, with those that are about to go, or too many */
    int64_t left;          /* of those that run, the first is number */
    int64_t first;         /* ... -1: none */
    int64_t lost, first_lost;
    int64_t failed; /* with a code that says that they cannot go on */
    bool was_lost;  /* one was, in this attempt */
} gr_gradusjob_servers;

/* `is_formed`: all pods of the attempt have run, so that one that is not there is lost. */
gr_gradusjob_servers gr_gradusjob_look_at_servers(const gr_training *t, bool is_formed);
/* Returns true if the other servers can do without the lost ones. */
bool gr_gradusjob_servers_go_on(gr_training *t, const gr_gradusjob_servers *s);
/* Before an attempt those of the one before go; false: they are still there. */
bool gr_gradusjob_clear_servers(gr_training *t, const gr_gradusjob_servers *s);
/* Others are made in place of lost ones: in one attempt `most` for each. */
void gr_gradusjob_replace_servers(gr_training *t, int64_t most);
/* Tells that a server is made in place of a lost one; of workers nothing. */
void gr_gradusjob_report_server(gr_training *t, const gr_training_role *role, int64_t index);

#endif
