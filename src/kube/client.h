/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_CLIENT_H
#define GR_KUBE_CLIENT_H

/* Requests to a Kubernetes API server. A client does all of its work in gr_kube_run, on the thread
 * of its owner: connections, retries, callbacks. Nothing blocks but an exec plugin that logs in
 * again (kube/access.h).
 *
 *   submitted ──► queue ──rate limit──► in flight ──► done (once)
 *                                         │   ▲
 *                                         └───┘ 429 and 503, a connection that broke (verbs that
 *                                               only read), 401 with another token than before
 */

#include "base/clock.h"
#include "base/log.h"
#include "kube/access.h"

#include <jansson.h>

typedef struct gr_kube gr_kube;
typedef struct gr_kube_call gr_kube_call;

typedef struct gr_kube_options {
    gr_kube_access *access;   /* borrowed; its owner reads it no more while the client lives */
    gr_clock clock;           /* monotonic */
    double requests_a_second; /* 0: 50; below 0: no limit */
    int burst;                /* requests at once before that counts; 0: 100 */
    int64_t timeout_us;       /* of one attempt of a request; 0: 30 s */
    size_t object_bytes_max;  /* of one object in an answer; 0: 8 MiB */
    const char *user_agent;   /* NULL: "gradus" */
    const gr_log *log;        /* borrowed; NULL: silent */
} gr_kube_options;

enum {
    GR_KUBE_QUEUE_MAX = 1 << 17, /* requests that wait; more are refused with GR_E_AGAIN */
    GR_KUBE_IN_FLIGHT_MAX = 32,  /* requests; watches and logs are not counted */
    GR_KUBE_ATTEMPTS_MAX = 6,    /* of one request */
    GR_KUBE_LIST_CHUNK = 500     /* objects in a part of a list */
};

/* A client that is made has read credentials once. GR_E_UNSUPPORTED in a build without libcurl. */
gr_status gr_kube_create(const gr_kube_options *options, gr_kube **kube_out,
                         gr_diag *diag) GR_MUST_CHECK;
/* Not inside of a callback. Forgets all requests: no callback comes any more. */
void gr_kube_destroy(gr_kube *kube);

/* That of its options. */
gr_clock gr_kube_clock(const gr_kube *kube);
/* Is readable when gr_kube_run has something to do: for poll, epoll or libuv. */
int gr_kube_fd(const gr_kube *kube);
/* Does what there is to do; never waits. Callbacks are called in here and nowhere else; they may
 * submit, cancel and set timers, not call gr_kube_run or gr_kube_destroy. */
void gr_kube_run(gr_kube *kube);

/* Answers that have come, for metrics. */
enum { GR_KUBE_COUNTS_MAX = 64 };
typedef struct gr_kube_counts {
    struct {
        const char *method; /* "GET" */
        int code;           /* of HTTP; 0: none came */
        uint64_t count;
    } rows[GR_KUBE_COUNTS_MAX];
    int used;
} gr_kube_counts;
/* Adds those of a client. What finds no row is left out. */
void gr_kube_add_counts(const gr_kube *kube, gr_kube_counts *sum);

/* The same thing for all objects of a kind: {"", "v1", "pods"}, {"apps", "v1", "deployments"}. */
typedef struct gr_kube_resource {
    const char *group; /* "": core */
    const char *version;
    const char *plural;
} gr_kube_resource;

typedef enum gr_kube_verb {
    GR_KUBE_GET,
    GR_KUBE_LIST, /* in parts of `limit` objects, one after the other */
    GR_KUBE_CREATE,
    GR_KUBE_REPLACE,     /* PUT: of the resourceVersion in the body, if there is one */
    GR_KUBE_MERGE_PATCH, /* RFC 7386 */
    GR_KUBE_APPLY,       /* server-side, as `field_manager` */
    GR_KUBE_DELETE,
    GR_KUBE_WATCH, /* of kube/watch.c; never submitted by others */
    GR_KUBE_LOG    /* of kube/log.c, likewise: text of a container, as it comes */
} gr_kube_verb;

/* How a request ended; borrowed for the call of gr_kube_done, but `object` may be kept by a
 * reference. */
typedef struct gr_kube_answer {
    /* GR_OK; GR_E_NOT_FOUND (404, 410), GR_E_AGAIN (409 Conflict: what was to be changed is not as
     * it was), GR_E_IN_USE (409 AlreadyExists), GR_E_AUTH (401, 403, a certificate that is not
     * right), GR_E_INVALID (other 4xx), GR_E_PEER_SLOW (429, 503, after retries), GR_E_IO (other
     * 5xx), GR_E_TIMEOUT, GR_E_PEER_LOST (no connection), GR_E_PROTOCOL (what came is no answer),
     * GR_E_NO_MEMORY (no memory, or too large an answer), GR_E_CANCELLED. */
    gr_status status;
    int http;            /* status code of HTTP, 0: no answer */
    const char *reason;  /* the server's, "AlreadyExists" say; "" */
    const char *message; /* of a failure, as the server says it; "" */
    json_t *object;      /* what came; of a LIST all but the items; NULL after a failure */
    const gr_diag *diag; /* of a failure: what was asked, and what the server says */
} gr_kube_answer;

typedef void gr_kube_done(void *arg, const gr_kube_answer *answer);
/* An object of a list, borrowed for the call. NULL: the list begins again (its place in it has
 * expired); what came before does not count. */
typedef void gr_kube_item(void *arg, json_t *object);
/* An object of a list or a watch that cannot be parsed; `diag` says which, and why. */
typedef void gr_kube_skipped(void *arg, const gr_diag *diag);
/* A part of a LOG, borrowed for the call. */
typedef void gr_kube_bytes(void *arg, const char *bytes, size_t size_bytes);

/* Takes out of the text of an object what nobody wants, before it is parsed; returns how much of it
 * is left, at its begin. */
typedef size_t gr_kube_cut(const void *cut_arg, char *text, size_t size_bytes);

/* All is borrowed for the call of gr_kube_submit, but `arg`. NULL or zero: there is none. */
typedef struct gr_kube_request {
    gr_kube_verb verb;
    gr_kube_resource resource;
    const char *space; /* namespace; NULL: an object of the cluster, a list of all namespaces */
    const char *name;
    const char *subresource; /* "status", "scale" */
    const json_t *body;
    const char *label_selector, *field_selector; /* of a LIST */
    int limit;                                   /* of a LIST; 0: GR_KUBE_LIST_CHUNK */
    const char *query;                           /* of a LOG: "follow=true&container=a", escaped */
    gr_kube_bytes *bytes;                        /* of a LOG; needed there */
    int grace_s; /* of a DELETE: that a pod gets to end; 0: as it says itself */
    /* Of a DELETE: it fails with a conflict unless the object has these. */
    const char *uid, *resource_version;
    const char *propagation;   /* of a DELETE: "Background", "Foreground", "Orphan" */
    const char *field_manager; /* of verbs that write; needed by APPLY */
    bool force;                /* APPLY takes fields from other managers */
    int64_t timeout_us;        /* of one attempt; 0: the client's */
    gr_kube_item *item;        /* of a LIST; needed there */
    gr_kube_cut *cut;          /* of a LIST, for each item */
    const void *cut_arg;       /* borrowed until the end */
    gr_kube_skipped *skipped;  /* of a LIST; NULL: the request fails */
    gr_kube_done *done;        /* needed */
    void *arg;                 /* of all of them */
} gr_kube_request;

/* Never calls back itself. *call_out (may be NULL) is good until `done` begins. GR_PENDING;
 * GR_E_INVALID: the request makes no sense; GR_E_AGAIN: too many wait; GR_E_NO_MEMORY. */
gr_status gr_kube_submit(gr_kube *kube, const gr_kube_request *request, gr_kube_call **call_out,
                         gr_diag *diag) GR_MUST_CHECK;
/* `done` is not called any more. The server may have carried the request out. */
void gr_kube_cancel(gr_kube *kube, gr_kube_call *call);

/* A moment at which `fire` is called, in gr_kube_run. The memory is the owner's, zeroed before its
 * first use; it is not moved while it is set. */
typedef struct gr_kube_timer gr_kube_timer;
struct gr_kube_timer {
    void (*fire)(void *arg);
    void *arg;
    int64_t due_us; /* of the client's clock */
    bool is_set;
    gr_kube_timer *next;
};
/* Sets or moves it. */
void gr_kube_timer_set(gr_kube *kube, gr_kube_timer *timer, int64_t due_us);
void gr_kube_timer_clear(gr_kube *kube, gr_kube_timer *timer);

#endif
