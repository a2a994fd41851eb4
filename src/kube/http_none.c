/* SPDX-License-Identifier: Apache-2.0 */

/* In place of http.c where libcurl is not there: no gr_http is ever made. */

#include "base/fail.h"
#include "kube/http.h"

gr_status gr_http_create(const gr_kube_access *access, gr_http **http_out, gr_diag *diag)
{
    (void)http_out;
    return gr_fail(diag, GR_E_UNSUPPORTED,
                   "this gradus is built without libcurl, and speaks to no cluster (%s); take one "
                   "that is built with it",
                   access->where);
}

void gr_http_destroy(gr_http *http)
{
    (void)http;
}

int gr_http_fd(const gr_http *http)
{
    (void)http;
    return -1;
}

void gr_http_wake(gr_http *http, int64_t delay_us)
{
    (void)http;
    (void)delay_us;
}

void gr_http_run(gr_http *http)
{
    (void)http;
}

gr_status gr_http_start(gr_http *http, const gr_http_request *request, gr_http_call **call_out,
                        gr_diag *diag)
{
    (void)http;
    (void)request;
    (void)call_out;
    return gr_fail(diag, GR_E_UNSUPPORTED, "this gradus is built without libcurl");
}

void gr_http_stop(gr_http *http, gr_http_call *call)
{
    (void)http;
    (void)call;
}

gr_status gr_http_put_file(const char *url, int fd, int64_t size_bytes, const char *ca_path,
                           gr_diag *diag)
{
    (void)url;
    (void)fd;
    (void)size_bytes;
    (void)ca_path;
    return gr_fail(diag, GR_E_UNSUPPORTED,
                   "this gradus is built without libcurl, and uploads "
                   "nothing; take one that is built with it");
}
