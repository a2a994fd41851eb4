/* SPDX-License-Identifier: Apache-2.0 */

/* What an operator would say of a job, before it is sent. */

#include "base/fail.h"
#include "cli/submit.h"
#include "operator/object.h"
#include "operator/operator.h"
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
    gr_problems_tell(&problems, sentence_out);
}

/* ---- Jobs of operators ----------------------------------------------------------------------- */

static json_t *no_key(void *arg)
{
    (void)arg;
    return json_pack("{s:s, s:s}", "ssh-privatekey", "", "ssh-publickey", "");
}

static gr_status ask_operator(const gr_operator_kind *kind, const json_t *job,
                              char sentence_out[GR_EVENT_BYTES], gr_diag *diag)
{
    json_t *seen = json_deep_copy(job), *metadata = json_object_get(seen, "metadata");
    bool no_memory = false;
    gr_object_put_default(metadata, "namespace", json_string("default"), &no_memory);
    gr_operator_view view = {.job = seen,
                             .now = "1970-01-01T00:00:00Z",
                             .cluster_domain = "",
                             .gang_scheduler = "",
                             .ssh_key = no_key};
    gr_operator_result result = {0};
    size_t i;
    const json_t *event;
    gr_status status = no_memory ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the job")
                                 : kind->reconcile(&view, &result, diag);
    json_array_foreach(result.events, i, event)
    {
        const char *message = gr_object_text(event, "message");
        if (gr_object_is_text(event, "reason", "ValidationError") && message != NULL) {
            snprintf(sentence_out, GR_EVENT_BYTES, "%s", message);
        }
    }
    gr_operator_result_fini(&result);
    json_decref(seen);
    return status;
}

gr_status gr_submit_check(const char *where, const json_t *job, gr_diag *diag)
{
    char sentence[GR_EVENT_BYTES] = "";
    const char *version = gr_object_text(job, "apiVersion");
    const char *kind_name = gr_object_text(job, "kind");
    const char *name = gr_object_text(job, "metadata.name");
    version = version != NULL ? version : "";
    kind_name = kind_name != NULL ? kind_name : "";
    const gr_operator_kind *kind = gr_operator_find_kind(gr_operator_kinds, version, kind_name);
    bool is_batch = gr_object_is(job, "batch/v1", "Job");
    if ((kind == NULL && !is_batch) || gr_cluster_kind_of(version, kind_name) == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: kind \"%.60s\" of apiVersion \"%.60s\" is not sent; a Job of batch/v1, "
                       "a PyTorchJob or TFJob of kubeflow.org/v1 and an MPIJob of "
                       "kubeflow.org/v2beta1 or v1 are",
                       where, kind_name, version);
    }
    if (name == NULL) {
        return gr_fail(diag, GR_E_INVALID, "%s: metadata.name is missing", where);
    }
    if (gr_operator_unknown_field(is_batch ? &batch_job : kind, job, sentence)) {
        return gr_fail(diag, GR_E_INVALID, "%s: %s", where, sentence);
    }
    gr_status status = GR_OK;
    if (is_batch) {
        check_batch_job(job, sentence);
    } else {
        status = ask_operator(kind, job, sentence, diag);
    }
    if (status == GR_OK && sentence[0] != '\0') {
        status = gr_fail(diag, GR_E_INVALID, "%s: %s", where, sentence);
    }
    return status;
}
