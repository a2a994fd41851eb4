/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/serve/asker.h"

#include "base/fail.h"
#include "kube/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTIONS = GR_ASKER_QUESTIONS_MAX };

typedef struct asker_call {
    gr_asker *asker;
    gr_http_call *call; /* NULL: free */
    gr_question question;
    char answer[GR_ASKER_ANSWER_BYTES];
    size_t answer_bytes;
} asker_call;

struct gr_asker {
    gr_http *http;
    gr_asker_done *done;
    void *arg;
    asker_call calls[QUESTIONS];
};

gr_status gr_asker_create(gr_asker_done *done, void *arg, gr_asker **asker_out, gr_diag *diag)
{
    gr_asker *asker = calloc(1, sizeof *asker);
    if (asker == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to ask workers");
    }
    asker->done = done;
    asker->arg = arg;
    gr_status status = gr_http_create(NULL, &asker->http, diag);
    if (status != GR_OK) {
        free(asker);
        return status;
    }
    *asker_out = asker;
    return GR_OK;
}

void gr_asker_destroy(gr_asker *asker)
{
    if (asker == NULL) {
        return;
    }
    gr_http_destroy(asker->http);
    for (int i = 0; i < QUESTIONS; i++) {
        if (asker->calls[i].call != NULL) {
            asker->done(asker->arg, &asker->calls[i].question, NULL, 0);
        }
    }
    free(asker);
}

/* NULL: none is free. */
static asker_call *find_free(gr_asker *asker)
{
    for (int i = 0; i < QUESTIONS; i++) {
        if (asker->calls[i].call == NULL) {
            return &asker->calls[i];
        }
    }
    return NULL;
}

bool gr_asker_is_free(gr_asker *asker)
{
    return find_free(asker) != NULL;
}

int gr_asker_fd(const gr_asker *asker)
{
    return gr_http_fd(asker->http);
}

/* More than there is room for is no answer. */
static bool take(void *arg, int code, const char *bytes, size_t size_bytes)
{
    asker_call *call = arg;
    if (code != 200 || size_bytes > sizeof call->answer - call->answer_bytes) {
        return false;
    }
    memcpy(call->answer + call->answer_bytes, bytes, size_bytes);
    call->answer_bytes += size_bytes;
    return true;
}

static void end(void *arg, const gr_http_end *how)
{
    asker_call *call = arg;
    bool is_answer = how->status == GR_OK && how->code == 200;
    call->call = NULL;
    call->asker->done(call->asker->arg, &call->question, is_answer ? call->answer : NULL,
                      is_answer ? call->answer_bytes : 0);
}

void gr_asker_ask(gr_asker *asker, const gr_question *question)
{
    char url[sizeof question->address + sizeof question->path + 32];
    asker_call *call = find_free(asker);
    bool is_v6 = strchr(question->address, ':') != NULL;
    snprintf(url, sizeof url, "http://%s%s%s:%d%s", is_v6 ? "[" : "", question->address,
             is_v6 ? "]" : "", question->port, question->path);
    const gr_http_request request = {.method = "GET",
                                     .url = url,
                                     .user_agent = "gradus-operator",
                                     .timeout_us = GR_ASKER_PATIENCE_US,
                                     .data = take,
                                     .end = end,
                                     .arg = call};
    call->asker = asker;
    call->question = *question;
    call->answer_bytes = 0;
    if (gr_http_start(asker->http, &request, &call->call, NULL) != GR_OK) {
        call->call = NULL;
        asker->done(asker->arg, question, NULL, 0);
    }
}

void gr_asker_run(gr_asker *asker)
{
    gr_http_run(asker->http);
}
