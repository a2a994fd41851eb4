/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_SOURCE_H
#define GR_KUBE_SOURCE_H

/* Where credentials come from: what kubeconfig.c finds, and access.c reads again. */

#include "base/arena.h"
#include "doc/doc.h"
#include "kube/access.h"

/* A program that logs in: `exec` of a user in a kubeconfig file. */
typedef struct gr_kube_plugin {
    const char *where; /* "file:line: users[0].user.exec" */
    const char *const *argv;
    const char *const *env; /* "NAME=value", beside those of this process */
    const char *api_version;
    const char *install_hint; /* NULL: none */
    bool wants_cluster;       /* provideClusterInfo */
} gr_kube_plugin;

typedef struct gr_kube_login { /* heap texts, NULL: none */
    char *token, *cert_pem, *key_pem;
    int64_t expires_s; /* INT64_MAX: never */
} gr_kube_login;

typedef struct gr_kube_source gr_kube_source;
struct gr_kube_source {
    gr_arena arena; /* of all texts that do not change */
    const char *ca_file, *cert_file, *key_file, *token_file;
    const gr_kube_plugin *plugin;
    int64_t files_read_s; /* wall clock, -1: never */
    int64_t renew_s;      /* when the plugin is run again, -1: it was not run */
};

enum {
    GR_KUBE_FILE_BYTES = 1 << 20, /* of a kubeconfig, a certificate, a token, what a plugin says */
    GR_KUBE_FILES_MAX = 32,       /* in KUBECONFIG */
    GR_KUBE_PLUGIN_US = 30000000
};

/* An access without anything in it. */
gr_status gr_kube_access_create(gr_kube_access **access_out, gr_diag *diag) GR_MUST_CHECK;

/* The documents merged; of things of one name the first counts. Opens no file, runs
 * nothing. */
gr_status gr_kubeconfig_resolve(gr_doc *const *docs, int count,
                                const gr_kube_access_options *options, gr_kube_access *access,
                                gr_diag *diag) GR_MUST_CHECK;

/* Takes slashes off the end of a server's URL. NULL: it is a good one; else what it must be. */
const char *gr_kube_check_server(char *server);

/* What a pod gets: `folder` holds token, ca.crt and namespace. */
gr_status gr_kube_access_of_pod(const char *folder, const char *host, const char *port,
                                const char *space, gr_kube_access *access,
                                gr_diag *diag) GR_MUST_CHECK;

/* Runs it and reads what it says. Blocks, at most `timeout_us`. GR_E_AUTH. */
gr_status gr_kube_plugin_run(const gr_kube_plugin *plugin, const gr_kube_access *access,
                             int64_t timeout_us, gr_kube_login *login_out,
                             gr_diag *diag) GR_MUST_CHECK;

/* Frees a secret, and leaves nothing of it in memory. NULL: nothing. */
void gr_kube_wipe(char *secret);

#endif
