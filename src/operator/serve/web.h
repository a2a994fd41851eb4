/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_SERVE_WEB_H
#define GR_OPERATOR_SERVE_WEB_H

/* A few pages by HTTP/1.1, for probes and Prometheus: GET and HEAD, one request a connection. It
 * never blocks, and what a client can take is bounded: GR_WEB_CONNECTIONS_MAX connections, of which
 * the oldest is closed for one more, as it is where the process has no descriptor left;
 * GR_WEB_REQUEST_BYTES of a request; GR_WEB_PATIENCE_US from the first byte to the last; beyond
 * GR_WEB_HELD_BYTES that nobody reads, small pages alone. */

#include <gradus/status.h>
#include <stdint.h>

enum {
    GR_WEB_ADDRESSES_MAX = 4,
    GR_WEB_CONNECTIONS_MAX = 64,
    GR_WEB_REQUEST_BYTES = 4096,
    GR_WEB_HELD_BYTES = 16 << 20,
    GR_WEB_PATIENCE_US = 10000000
};

typedef struct gr_web gr_web;

typedef struct gr_web_page {
    const char *path; /* "/healthz" */
    const char *type; /* "text/plain" */
    /* Heap text (the server frees it), NULL: no memory. *code_out is 200 unless it sets it. */
    char *(*print)(void *arg, int *code_out);
} gr_web_page;

/* `addresses`: "HOST:PORT", "[HOST]:PORT" or ":PORT" (all of this host's), NULL-terminated; of
 * equal ones one is listened at, and none for "0". All show all pages (NULL path at their end,
 * borrowed). GR_E_INVALID with a sentence: an address that is none, or where nobody can listen;
 * GR_E_NO_MEMORY, GR_E_IO. */
gr_status gr_web_open(const char *const *addresses, const gr_web_page *pages, void *arg,
                      gr_web **web_out, gr_diag *diag) GR_MUST_CHECK;
void gr_web_close(gr_web *web); /* NULL: nothing */

/* Where it listens, "127.0.0.1:8080, [::]:8081". */
const char *gr_web_where(const gr_web *web);
/* Is readable when gr_web_run has something to do. */
int gr_web_fd(const gr_web *web);
/* Does what there is to do; `now_us` is monotonic. Returns when to call it again at the latest. */
int64_t gr_web_run(gr_web *web, int64_t now_us);

#endif
