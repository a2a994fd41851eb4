/* SPDX-License-Identifier: Apache-2.0 */

/* What an operator would say of a job, before it is sent. */

#include "base/fail.h"
#include "cli/manifest.h"
#include "cli/submit.h"
#include "operator/object.h"
#include "operator/problems.h"

#include <string.h>

/* ---- batch/v1 -------------------------------------------------------------------------------- */

static const char *const job_spec_fields[] = {"activeDeadlineSeconds",
                                              "backoffLimit",
                                              "backoffLimitPerIndex",
                                              "completionMode",
                                              "completions",
                                              "managedBy",
                                              "manualSelector",
                                              "maxFailedIndexes",
                                              "parallelism",
                                              "podFailurePolicy",
                                              "podReplacementPolicy",
                                              "selector",
                                              "successPolicy",
                                              "suspend",
                                              "template",
                                              "ttlSecondsAfterFinished",
                                              NULL};
static const gr_operator_fields job_fields[] = {{"spec", job_spec_fields}, {.path = NULL}};
/* No operator looks at it: Kubernetes itself does. */
static const gr_operator_kind batch_job = {
    .api_version = "batch/v1", .kind = "Job", .fields = job_fields};

static void check_batch_job(const json_t *job, char sentence_out[GR_EVENT_BYTES])
{
    static const char *const policies[] = {"Never", "OnFailure", NULL};
    static const char *const counts[] = {"parallelism", "completions", "backoffLimit",
                                         "ttlSecondsAfterFinished"};
    gr_problems problems = {0};
    const json_t *spec = gr_object_at(job, "spec");
    const json_t *pod = gr_object_at(job, "spec.template.spec");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gr_check_not_negative(&problems, spec, counts[i], "spec");
    }
    gr_check_containers(&problems, spec, "spec");
    gr_check_is_one_of(&problems, json_object_get(pod, "restartPolicy"),
                       "spec.template.spec.restartPolicy", policies);
    gr_problems_describe(&problems, sentence_out);
}

/* ---- Jobs of operators ----------------------------------------------------------------------- */

static gr_status ask_operator(const char *where, const json_t *job, gr_diag *diag)
{
    gr_operator_result result = {0};
    gr_status status =
        gr_manifest_look(where, job, "default", &(gr_operator_view){.job = NULL}, &result, diag);
    gr_operator_result_fini(&result);
    return status;
}

gr_status gr_submit_check(const char *where, const json_t *job, gr_diag *diag)
{
    char sentence[GR_EVENT_BYTES] = "";
    bool is_batch = gr_object_is(job, "batch/v1", "Job");
    bool is_known = is_batch || gr_manifest_kind(job) != NULL;
    if (!is_known || gr_cluster_kind_of(gr_object_text(job, "apiVersion"),
                                        gr_object_text(job, "kind")) == NULL) {
        return gr_manifest_refuse_kind(where, job, "is not sent", ", and Job of batch/v1", diag);
    }
    if (!is_batch) {
        return ask_operator(where, job, diag);
    }
    if (gr_object_text(job, "metadata.name") == NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s: metadata.name is missing", where);
    }
    if (!gr_operator_unknown_field(&batch_job, job, sentence)) {
        check_batch_job(job, sentence);
    }
    return sentence[0] == '\0' ? GR_OK : gr_fail(diag, GR_E_INVALID, "%s: %s", where, sentence);
}
