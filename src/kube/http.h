/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_HTTP_H
#define GR_KUBE_HTTP_H

/* HTTP/1.1 over TLS to one server, a page of any, and a file to any: the only part that knows
 * libcurl. http_none.c is its place in a build without libcurl. */

#include "base/clock.h"
#include "kube/access.h"

typedef struct gr_http gr_http;
typedef struct gr_http_call gr_http_call;

typedef struct gr_http_end {
    gr_status status;    /* GR_OK: an answer came, whatever its code is */
    int code;            /* 0: no answer */
    int retry_after_s;   /* that the server asks for, -1: it does not */
    bool was_sent;       /* the server may have got the request */
    const gr_diag *diag; /* of a failure, without what was asked */
} gr_http_end;

typedef struct gr_http_request {
    const char *method;
    const char *path;         /* "/api/v1/pods?limit=500"; of the client's server */
    const char *url;          /* in place of that, "http://ADDRESS:PORT/PATH": by plain HTTP, with
                               * nothing of the access, by no proxy and no redirect; NULL */
    const char *content_type; /* NULL: no body */
    const char *body;         /* copied */
    size_t body_bytes;
    const char *user_agent;
    int64_t timeout_us; /* in all; 0: none */
    /* Parts of the answer's body, with its code. false: the call is to end, with GR_E_CANCELLED. No
     * call may be started in here. */
    bool (*data)(void *arg, int code, const char *bytes, size_t size_bytes);
    void (*end)(void *arg, const gr_http_end *end); /* once; the call is freed afterwards */
    void *arg;
} gr_http_request;

/* `access` is borrowed; each call takes what stands in it when it starts. NULL: there are only
 * calls with a `url`. */
gr_status gr_http_create(const gr_kube_access *access, gr_http **http_out,
                         gr_diag *diag) GR_MUST_CHECK;
void gr_http_destroy(gr_http *http); /* forgets all calls */

int gr_http_fd(const gr_http *http);
/* The descriptor is readable in `delay_us` as well; GR_NEVER: not for that. */
void gr_http_wake(gr_http *http, int64_t delay_us);
void gr_http_run(gr_http *http);

gr_status gr_http_start(gr_http *http, const gr_http_request *request, gr_http_call **call_out,
                        gr_diag *diag) GR_MUST_CHECK;
/* Nothing is called for it any more. Not in its own `end`; in all other callbacks as well. */
void gr_http_stop(gr_http *http, gr_http_call *call);

/* A connection to the server for a protocol of its own. */
typedef struct gr_http_bytes gr_http_bytes;
/* Blocks until TLS stands. GR_E_PEER_LOST, GR_E_TIMEOUT, GR_E_AUTH (the certificate) and others. */
gr_status gr_http_bytes_open(const gr_kube_access *access, gr_http_bytes **bytes_out,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_http_bytes_close(gr_http_bytes *bytes); /* NULL: nothing */
int gr_http_bytes_fd(const gr_http_bytes *bytes);
/* Neither blocks; *moved_out is 0 where that is all there is to do now. GR_E_PEER_LOST: it is over.
 * What has arrived may wait above the descriptor: receive until nothing comes. */
gr_status gr_http_bytes_send(gr_http_bytes *bytes, const void *data, size_t size_bytes,
                             size_t *moved_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_http_bytes_receive(gr_http_bytes *bytes, void *data_out, size_t size_bytes,
                                size_t *moved_out, gr_diag *diag) GR_MUST_CHECK;

/* http_put.c: PUTs the file to a URL of any server and blocks until the server has it, or has
 * moved no byte for a minute. `ca_path`: certificates to trust in place of the system's; NULL.
 * Sentences name the URL without its query, which may be a secret. GR_E_AUTH, GR_E_NOT_FOUND and
 * GR_E_INVALID: the server refuses it; GR_E_PEER_LOST, GR_E_TIMEOUT, GR_E_IO, GR_E_UNSUPPORTED. */
gr_status gr_http_put_file(const char *url, int fd, int64_t size_bytes, const char *ca_path,
                           gr_diag *diag) GR_MUST_CHECK;

#endif
