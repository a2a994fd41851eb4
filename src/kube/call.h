/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_CALL_H
#define GR_KUBE_CALL_H

/* A request on its way: what client.c and request.c share. */

#include "kube/client.h"
#include "kube/http.h"
#include "kube/stream.h"

enum { GR_KUBE_TARGET_BYTES = 256, GR_KUBE_CALL_PATH_BYTES = 4096 };

struct gr_kube_call {
    gr_kube *kube;
    gr_kube_call *next, *previous; /* in the queue, or in the list of those in flight */
    bool is_queued;
    gr_kube_verb verb;
    char *path;         /* with the query, without `continue` */
    char *body;         /* NULL: none */
    char *continues_at; /* of a LIST: the server's word for its next part */
    gr_kube_bytes *bytes;
    char target[GR_KUBE_TARGET_BYTES];     /* "pods team/worker-0" */
    char permission[GR_KUBE_TARGET_BYTES]; /* the right that it takes: "\"create\" on pods ..." */
    int64_t timeout_us;
    gr_kube_item *item;
    gr_kube_cut *cut;
    const void *cut_arg;
    gr_kube_skipped *skipped;
    gr_kube_done *done;
    void *arg;

    int attempts;            /* begun; of a LIST for this part of it */
    int restarts;            /* of a LIST */
    uint64_t login;          /* number of the credentials of the last attempt */
    bool login_renewed;      /* for this call */
    gr_http_call *http_call; /* NULL: queued, or pausing */
    gr_kube_timer pause;
    gr_kube_stream stream;
    bool has_stream, has_items; /* of this attempt: something came; something was handed out */
    bool in_item, is_cancelled, is_counted;
    gr_status stream_status;
    gr_diag stream_diag;
};

/* The parts of `call` that follow from the request. GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_kube_call_fill(gr_kube_call *call, const gr_kube_request *request,
                            gr_diag *diag) GR_MUST_CHECK;
const char *gr_kube_call_method(const gr_kube_call *call);
const char *gr_kube_call_content_type(const gr_kube_call *call); /* NULL: no body */
bool gr_kube_call_only_reads(const gr_kube_call *call);
/* Its answer has no end that could be waited for; its owner begins again. */
bool gr_kube_call_streams(const gr_kube_call *call);
/* Heap text (free), NULL: no memory. */
char *gr_kube_call_path(const gr_kube_call *call);

/* Fails with "cannot <verb> <target>: <why>". */
gr_status gr_kube_call_fail(const gr_kube_call *call, gr_status status, const char *why,
                            gr_diag *diag) GR_MUST_CHECK;
/* The status of an answer that is no success, and its sentence. `status_object` (NULL: none came)
 * is the server's Status; `where` says who asked which cluster. */
gr_status gr_kube_call_judge(const gr_kube_call *call, int code, const json_t *status_object,
                             const char *where, gr_diag *diag) GR_MUST_CHECK;

#endif
