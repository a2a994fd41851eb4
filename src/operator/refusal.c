/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/refusal.h"

#include "base/text.h"
#include "operator/object.h"

#include <stdio.h>
#include <string.h>

enum { WHY_BYTES_MAX = 900 };

static void name_refusal(const char *job_kind, const json_t *object, char reason_out[64],
                         char subject_out[GR_EVENT_BYTES])
{
    static const char suffix[] = "-launcher";
    const char *kind = gr_object_text(object, "kind");
    const char *name = gr_object_text(object, "metadata.name");
    size_t length = strlen(name), tail = sizeof suffix - 1;
    bool is_pod = strcmp(kind, "Pod") == 0;
    bool is_launcher = strcmp(kind, "Job") == 0 ||
                       (is_pod && length > tail && strcmp(name + length - tail, suffix) == 0);
    if (strcmp(job_kind, "MPIJob") != 0) {
        snprintf(reason_out, 64, "FailedCreate%.50s", kind);
        snprintf(subject_out, GR_EVENT_BYTES, "Error creating");
        return;
    }
    snprintf(reason_out, 64, "MPIJobFailed");
    if (is_pod || is_launcher) {
        snprintf(subject_out, GR_EVENT_BYTES, "%s pod created failed",
                 is_launcher ? "launcher" : "worker");
    } else {
        snprintf(subject_out, GR_EVENT_BYTES, "%s %s is not created", kind, name);
    }
}

json_t *gr_refusal_event(const char *job_kind, const json_t *object, const char *why)
{
    char reason[64], subject[GR_EVENT_BYTES], message[GR_EVENT_BYTES];
    const char *reply = why != NULL && why[0] != '\0' ? why : "the API server refuses it";
    name_refusal(job_kind, object, reason, subject);
    snprintf(message, sizeof message, "%.110s: %.*s", subject, gr_text_fit(reply, WHY_BYTES_MAX),
             reply);
    return json_pack("{s:s, s:s, s:o}", "type", "Warning", "reason", reason, "message",
                     gr_object_sentence(message));
}

/* One less than the status counts; none: as before. */
static void count_back(json_t *status, const char *counter, const json_t *before, bool *no_memory)
{
    int64_t left = gr_object_int(status, counter, 0) - 1;
    if (left == 0 && json_object_get(before, counter) == NULL) {
        json_object_del(status, counter);
    } else {
        gr_object_put(status, counter, json_integer(left), no_memory);
    }
}

gr_status gr_refusal_settle(const gr_operator_result *result, const bool *unmade,
                            const json_t *before, json_t *status)
{
    size_t i;
    json_t *one;
    bool no_memory = false;
    json_array_foreach(result->writes, i, one)
    {
        const char *counter = gr_object_text(one, "counter");
        int64_t end = unmade[i] ? gr_object_int(one, "end_event", 0) : 0;
        for (int64_t e = gr_object_int(one, "first_event", 0); e < end; e++) {
            json_array_set_new(result->events, (size_t)e, json_null());
        }
        if (unmade[i] && counter != NULL && status != NULL) {
            count_back(status, counter, before, &no_memory);
            json_object_del(one, "counter"); /* once */
        }
    }
    return no_memory ? GR_E_NO_MEMORY : GR_OK;
}
