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
                   access != NULL ? access->where : "nor to its pods");
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

gr_status gr_http_bytes_open(const gr_kube_access *access, gr_http_bytes **bytes_out, gr_diag *diag)
{
    (void)access;
    (void)bytes_out;
    return gr_fail(diag, GR_E_UNSUPPORTED, "this gradus is built without libcurl");
}

void gr_http_bytes_close(gr_http_bytes *bytes)
{
    (void)bytes;
}

int gr_http_bytes_fd(const gr_http_bytes *bytes)
{
    (void)bytes;
    return -1;
}

gr_status gr_http_bytes_send(gr_http_bytes *bytes, const void *data, size_t size_bytes,
                             size_t *moved_out, gr_diag *diag)
{
    (void)bytes;
    (void)data;
    (void)size_bytes;
    *moved_out = 0;
    return gr_fail(diag, GR_E_UNSUPPORTED, "this gradus is built without libcurl");
}

gr_status gr_http_bytes_receive(gr_http_bytes *bytes, void *data_out, size_t size_bytes,
                                size_t *moved_out, gr_diag *diag)
{
    (void)data_out;
    return gr_http_bytes_send(bytes, NULL, size_bytes, moved_out, diag);
}
