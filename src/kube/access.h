/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_ACCESS_H
#define GR_KUBE_ACCESS_H

/* Where a cluster's API server is, how its certificate is checked, and who asks: from kubeconfig
 * files, or from what a pod gets (in-cluster configuration). */

#include <gradus/status.h>
#include <stdbool.h>

typedef struct gr_kube_access_options {
    const char *path;    /* of one kubeconfig file; NULL: KUBECONFIG, else ~/.kube/config, else the
                            * pod's own configuration */
    const char *context; /* NULL: current-context */
    const char *space;   /* namespace; NULL: that of the context, of the pod, or "default" */
    const char *server;  /* "https://host:6443"; NULL: as the configuration says */
    bool insecure_allowed; /* insecure-skip-tls-verify is obeyed; otherwise it is refused */
} gr_kube_access_options;

/* PEM texts and tokens are secrets: they never go into sentences. NULL: there is none. */
typedef struct gr_kube_access {
    char *server;          /* "https://host:6443", without a slash at its end */
    char *space;           /* namespace of requests that name none */
    char *where;           /* for sentences: "context \"dev\" of /home/me/.kube/config" */
    char *ca_pem;          /* NULL: the system's authorities */
    char *tls_server_name; /* that the certificate must be for, in place of the host of `server` */
    char *proxy_url;
    bool insecure; /* the certificate is not checked */
    /* What gr_kube_access_refresh keeps fresh. */
    char *token;
    char *cert_pem, *key_pem;
    struct gr_kube_source *source; /* where these come from */
} gr_kube_access;

/* GR_E_INVALID (with file, line and key), GR_E_NOT_FOUND, GR_E_UNSUPPORTED (a way to log in that is
 * not known), GR_E_AUTH (an exec plugin fails), GR_E_NO_MEMORY. A plugin is run by the first
 * refresh, not here. */
gr_status gr_kube_access_open(const gr_kube_access_options *options, gr_kube_access **access_out,
                              gr_diag *diag) GR_MUST_CHECK;
/* Another one of the same configuration, which is not read again: it may come from a pipe. `from`
 * has not been refreshed yet, and stays until the copy is closed. GR_E_NO_MEMORY. */
gr_status gr_kube_access_copy(const gr_kube_access *from, gr_kube_access **access_out,
                              gr_diag *diag) GR_MUST_CHECK;
void gr_kube_access_close(gr_kube_access *access); /* NULL: nothing */

/* Reads token and certificates again where they may have changed: files after a minute, a plugin's
 * when they have expired; all of them if `refused`, as the server refused the last ones. `now_s`
 * is wall-clock time. Blocks while a plugin runs, 30 s at most. *changed_out: others than before.
 * */
gr_status gr_kube_access_refresh(gr_kube_access *access, int64_t now_s, bool refused,
                                 bool *changed_out, gr_diag *diag) GR_MUST_CHECK;

#endif
