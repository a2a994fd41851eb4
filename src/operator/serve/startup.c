/* SPDX-License-Identifier: Apache-2.0 */

/* Before an operator works: which kinds of jobs the cluster has, and what it is permitted to do. */

#include "base/fail.h"
#include "operator/serve/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Kinds ----------------------------------------------------------------------------------- */
/* Is there anything to list? The first object or the end of the list tells. */
typedef struct kind_probe {
    gr_serve *serve;
    const gr_operator_kind *kind;
    size_t resource;
    gr_kube_call *call; /* NULL: it is answered */
    bool is_there, is_asked_for;
    int http;
    gr_diag diag;
} kind_probe;

static void take_first(void *arg, json_t *object)
{
    kind_probe *probe = arg;
    if (object != NULL && probe->call != NULL) {
        probe->is_there = true;
        gr_kube_cancel(probe->serve->kube, probe->call);
        probe->call = NULL;
    }
}

static void take_end(void *arg, const gr_kube_answer *answer)
{
    kind_probe *probe = arg;
    probe->call = NULL;
    probe->is_there = answer->status == GR_OK;
    probe->http = answer->http;
    if (answer->diag != NULL) {
        probe->diag = *answer->diag;
    }
}

/* "MPIJob", "mpijob" and "mpijob.v1" are words for MPIJob of kubeflow.org/v1. */
static bool is_word_for(const char *word, const gr_operator_kind *kind)
{
    size_t length = strlen(kind->kind);
    const char *version = strchr(kind->api_version, '/') + 1;
    return strncasecmp(word, kind->kind, length) == 0 &&
           (word[length] == '\0' ||
            (word[length] == '.' && strcasecmp(word + length + 1, version) == 0));
}

static bool is_asked_for(const gr_serve *serve, const gr_operator_kind *kind)
{
    bool found = false;
    for (size_t i = 0; serve->options->kinds != NULL && serve->options->kinds[i] != NULL; i++) {
        found |= is_word_for(serve->options->kinds[i], kind);
    }
    return found;
}

/* Those that the operator knows. */
static size_t fill_probes(gr_serve *serve, kind_probe *probes)
{
    size_t count = 0;
    for (size_t i = 0; gr_operator_kinds[i] != NULL && count < GR_SERVE_KINDS_MAX; i++) {
        const gr_operator_kind *kind = gr_operator_kinds[i];
        if (serve->options->kinds == NULL || is_asked_for(serve, kind)) {
            probes[count++] = (kind_probe){
                .serve = serve,
                .kind = kind,
                .resource = gr_operator_resource_find(kind->api_version, kind->kind),
                .is_asked_for = serve->options->kinds != NULL};
        }
    }
    return count;
}

static gr_status check_words(const gr_serve *serve, gr_diag *diag)
{
    for (size_t i = 0; serve->options->kinds != NULL && serve->options->kinds[i] != NULL; i++) {
        bool is_known = false;
        for (size_t k = 0; gr_operator_kinds[k] != NULL; k++) {
            is_known |= is_word_for(serve->options->kinds[i], gr_operator_kinds[k]);
        }
        if (!is_known) {
            char known[GR_OPERATOR_KINDS_BYTES];
            gr_operator_list_kinds(gr_operator_kinds, known);
            return gr_fail(diag, GR_E_INVALID,
                           "--enable-scheme: there is no kind \"%.60s\"; this operator has %s",
                           serve->options->kinds[i], known);
        }
    }
    return GR_OK;
}

static gr_status ask(kind_probe *probe, gr_diag *diag)
{
    gr_serve_resource resource;
    gr_serve_name_resource(probe->resource, &resource);
    gr_kube_request request = {.verb = GR_KUBE_LIST,
                               .resource = resource.name,
                               .space = probe->serve->options->space,
                               .limit = 1,
                               .item = take_first,
                               .done = take_end,
                               .arg = probe};
    gr_status status = gr_kube_submit(probe->serve->kube, &request, &probe->call, diag);
    return status == GR_PENDING ? GR_OK : status;
}

/* A kind that is not there, or not permitted: is that the end? */
static gr_status judge(const kind_probe *probe, gr_diag *diag)
{
    const char *plural = gr_operator_resources[probe->resource].plural;
    if (probe->http == 404) {
        gr_status status = gr_fail(
            diag, GR_E_NOT_FOUND,
            "the cluster has no %s of %s; \"kubectl apply --server-side -k deploy/base\" of "
            "Gradus's source installs them",
            plural, probe->kind->api_version);
        return probe->is_asked_for ? status : GR_OK;
    }
    *diag = probe->diag;
    bool may_be_left_out = probe->http == 403 && !probe->is_asked_for;
    return may_be_left_out ? GR_OK : (gr_status)diag->status;
}

static gr_status await_probes(gr_serve *serve, kind_probe *probes, size_t count, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        status = ask(&probes[i], diag);
    }
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        while (probes[i].call != NULL && !gr_serve_is_over(serve)) {
            gr_serve_pump(serve, GR_NEVER);
        }
    }
    for (size_t i = 0; i < count; i++) { /* nobody waits any more */
        if (probes[i].call != NULL) {
            gr_kube_cancel(serve->kube, probes[i].call);
        }
    }
    return status;
}

/* A cluster shows each MPIJob in all versions that it has: the first of those is served. NULL:
 * there is none of this kind. */
static const kind_probe *find_served(const kind_probe *probes, size_t count, const char *kind)
{
    size_t i = 0;
    while (i < count && (!probes[i].is_there || strcmp(probes[i].kind->kind, kind) != 0)) {
        i++;
    }
    return i < count ? &probes[i] : NULL;
}

gr_status gr_serve_find_kinds(gr_serve *serve, gr_diag *diag)
{
    kind_probe probes[GR_SERVE_KINDS_MAX];
    size_t found = 0, count = fill_probes(serve, probes);
    gr_diag missing = {0};
    gr_status status = check_words(serve, diag);
    if (status == GR_OK) {
        status = await_probes(serve, probes, count, diag);
    }
    for (size_t i = 0; i < count && status == GR_OK && !gr_serve_is_over(serve); i++) {
        const kind_probe *served = find_served(probes, count, probes[i].kind->kind);
        if (served == &probes[i]) {
            serve->kinds[found++] = probes[i].kind;
        }
        if (served != NULL) {
            continue;
        }
        status = judge(&probes[i], diag);
        if (status == GR_OK) {
            gr_log_write(serve->log, GR_LOG_INFO, "operator", "%s of %s is left out: %s",
                         probes[i].kind->kind, probes[i].kind->api_version, diag->text);
        }
        if (missing.status == GR_OK || probes[i].http == 403) {
            missing = *diag;
        }
    }
    if (status == GR_OK && found == 0 && !gr_serve_is_over(serve)) {
        *diag = missing;
        status = (gr_status)missing.status;
    }
    return status;
}

/* ---- Rights ---------------------------------------------------------------------------------- */
/* What the controller asks of each resource. Without those of `wanted` it works, but worse; those
 * of `wanted_by_v1` are asked for kinds of training-operator alone. */
typedef struct right {
    const char *group, *plural, *subresource;
    const char *needed, *wanted, *wanted_by_v1; /* verbs with blanks between them */
} right;

static const right rights[] = {
    {"", "pods", "", "list watch create delete", "get", ""},
    {"", "services", "", "list watch create update", "get", "delete"},
    {"", "configmaps", "", "list watch create update", "get", ""},
    {"", "secrets", "", "list watch create update", "get", ""},
    {"batch", "jobs", "", "list watch create update", "get", ""},
    {"batch", "jobs", "status", "", "update", ""},
    {"scheduling.volcano.sh", "podgroups", "", "list watch create update delete", "get", ""},
    {"scheduling.x-k8s.io", "podgroups", "", "list watch create update delete", "get", ""},
    {"scheduling.k8s.io", "priorityclasses", "", "list watch", "", ""},
    {"", "serviceaccounts", "", "list watch create", "get", ""},
    {"rbac.authorization.k8s.io", "roles", "", "list watch create update", "get", ""},
    {"rbac.authorization.k8s.io", "rolebindings", "", "list watch create update", "get", ""},
    {"autoscaling", "horizontalpodautoscalers", "", "list watch create update", "get delete", ""},
    {"", "events", "", "", "create patch", ""},
    {"coordination.k8s.io", "leases", "", "get create update", "", ""},
};
static const right of_jobs = {"", "", "", "list watch", "get", ""};
static const right of_jobs_of_v1 = {"", "", "", "list watch", "get delete", ""};
static const right of_jobs_status = {"", "", "status", "update", "", ""};
static const right of_others = {"", "", "", "list watch", "", ""};

enum { REVIEWS_MAX = 256, VERB_BYTES = 16 };

typedef struct review {
    char verb[VERB_BYTES];
    const char *group, *plural, *subresource, *space;
    bool is_needed, is_denied;
    gr_kube_call *call; /* NULL: it is answered */
} review;

typedef struct reviews {
    gr_serve *serve;
    gr_serve_resource *resources; /* whose names the reviews point to */
    review *all;
    size_t count;
} reviews;

static void take_review(void *arg, const gr_kube_answer *answer)
{
    review *one = arg;
    const json_t *status = json_object_get(answer->object, "status");
    one->call = NULL;
    /* A server that does not tell, or not now: the first request that it refuses will. */
    one->is_denied = answer->status == GR_OK && !json_is_true(json_object_get(status, "allowed"));
}

static void add_verbs(reviews *r, const right *row, const gr_kube_resource *name, const char *space,
                      const char *verbs, bool is_needed)
{
    const char *at = verbs;
    while (*at != '\0' && r->count < REVIEWS_MAX) {
        size_t length = strcspn(at, " ");
        review *one = &r->all[r->count++];
        *one = (review){.group = name->group,
                        .plural = name->plural,
                        .subresource = row->subresource,
                        .space = space,
                        .is_needed = is_needed};
        snprintf(one->verb, sizeof one->verb, "%.*s", (int)length, at);
        at += length + (at[length] == ' ');
    }
}

static void add(reviews *r, const right *row, const gr_kube_resource *name, const char *space)
{
    bool has_v1 = false;
    for (size_t i = 0; r->serve->kinds[i] != NULL; i++) {
        has_v1 |= strcmp(r->serve->kinds[i]->api_version, "kubeflow.org/v1") == 0;
    }
    add_verbs(r, row, name, space, row->needed, true);
    add_verbs(r, row, name, space, row->wanted, false);
    if (has_v1) {
        add_verbs(r, row, name, space, row->wanted_by_v1, false);
    }
}

/* The rows of that resource. False: there are none. */
static bool add_rows(reviews *r, const gr_kube_resource *name, const char *space)
{
    bool found = false;
    for (size_t i = 0; i < sizeof rights / sizeof rights[0]; i++) {
        if (strcmp(rights[i].group, name->group) == 0 &&
            strcmp(rights[i].plural, name->plural) == 0) {
            add(r, &rights[i], name, space);
            found = true;
        }
    }
    return found;
}

static void collect(reviews *r, const char *lease_space)
{
    gr_serve *serve = r->serve;
    for (size_t i = 0; i < gr_operator_resource_count; i++) {
        const gr_operator_resource *row = &gr_operator_resources[i];
        const char *space = row->is_global ? NULL : serve->options->space;
        const gr_kube_resource *name = &r->resources[i].name;
        if (!gr_controller_uses(serve->controller, i)) {
            continue;
        }
        gr_serve_name_resource(i, &r->resources[i]);
        if (row->is_job) {
            bool is_v1 = strcmp(name->version, "v1") == 0;
            add(r, is_v1 ? &of_jobs_of_v1 : &of_jobs, name, space);
            add(r, &of_jobs_status, name, space);
        } else if (!add_rows(r, name, space)) {
            add(r, &of_others, name, space);
        }
    }
    static const gr_kube_resource events = {"", "v1", "events"};
    static const gr_kube_resource leases = {"coordination.k8s.io", "v1", "leases"};
    (void)add_rows(r, &events, serve->options->space);
    if (serve->options->elects) {
        (void)add_rows(r, &leases, lease_space);
    }
}

static gr_status submit_review(gr_serve *serve, review *one, gr_diag *diag)
{
    json_t *body = json_pack("{s:s, s:s, s:{s:{s:s, s:s, s:s, s:s, s:s}}}", "apiVersion",
                             "authorization.k8s.io/v1", "kind", "SelfSubjectAccessReview", "spec",
                             "resourceAttributes", "namespace",
                             one->space != NULL ? one->space : "", "verb", one->verb, "group",
                             one->group, "resource", one->plural, "subresource", one->subresource);
    if (body == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    gr_kube_request request = {
        .verb = GR_KUBE_CREATE,
        .resource = {"authorization.k8s.io", "v1", "selfsubjectaccessreviews"},
        .body = body,
        .done = take_review,
        .arg = one};
    gr_status status = gr_kube_submit(serve->kube, &request, &one->call, diag);
    json_decref(body);
    return status == GR_PENDING ? GR_OK : status;
}

static gr_status report(const reviews *r, gr_diag *diag)
{
    gr_status status = GR_OK;
    const char *where = r->serve->access->where;
    for (size_t i = 0; i < r->count; i++) {
        const review *one = &r->all[i];
        char sentence[GR_DIAG_TEXT_BYTES];
        if (!one->is_denied) {
            continue;
        }
        snprintf(sentence, sizeof sentence,
                 "a role must allow %.150s \"%s\" on %s%s%s of API group \"%s\"%s%s", where,
                 one->verb, one->plural, one->subresource[0] != '\0' ? "/" : "", one->subresource,
                 one->group, one->space != NULL ? " in namespace " : " in all namespaces",
                 one->space != NULL ? one->space : "");
        if (!one->is_needed) {
            gr_log_write(r->serve->log, GR_LOG_WARN, "operator", "%s, for all of its work",
                         sentence);
        } else if (status == GR_OK) {
            status = gr_fail(diag, GR_E_AUTH, "%s; deploy/base/role.yaml of Gradus's source has it",
                             sentence);
        } else {
            gr_log_write(r->serve->log, GR_LOG_ERROR, "operator", "%s", sentence);
        }
    }
    return status;
}

gr_status gr_serve_check_rights(gr_serve *serve, gr_diag *diag)
{
    reviews r = {.serve = serve,
                 .resources = calloc(gr_operator_resource_count, sizeof *r.resources),
                 .all = calloc(REVIEWS_MAX, sizeof *r.all)};
    gr_status status = r.resources != NULL && r.all != NULL
                           ? GR_OK
                           : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    const char *lease_space = serve->options->lease_space;
    if (status == GR_OK) {
        collect(&r, lease_space != NULL ? lease_space : serve->access->space);
    }
    for (size_t i = 0; i < r.count && status == GR_OK; i++) {
        status = submit_review(serve, &r.all[i], diag);
    }
    for (size_t i = 0; i < r.count && status == GR_OK; i++) {
        while (r.all[i].call != NULL && !gr_serve_is_over(serve)) {
            gr_serve_pump(serve, GR_NEVER);
        }
    }
    for (size_t i = 0; i < r.count; i++) { /* nobody waits any more */
        if (r.all[i].call != NULL) {
            gr_kube_cancel(serve->kube, r.all[i].call);
        }
    }
    if (status == GR_OK && !gr_serve_is_over(serve)) {
        status = report(&r, diag);
    }
    free(r.resources);
    free(r.all);
    return status;
}
