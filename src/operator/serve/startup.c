/* SPDX-License-Identifier: Apache-2.0 */

/* Before an operator works: which kinds of jobs the cluster has, whether all that it takes is
 * installed, and what it is permitted to do. */

#include "base/fail.h"
#include "operator/serve/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { ASK_AGAIN_US = 250000, ASK_AGAIN_MAX_US = 5000000 };

/* ---- Probes ---------------------------------------------------------------------------------- */
/* Finds out whether there is anything to list. The first object or the end of the list tells. */
typedef struct resource_probe {
    gr_serve *serve;
    const gr_operator_kind *kind; /* NULL: it is no resource of jobs */
    size_t resource;
    gr_kube_call *call; /* NULL: it is answered */
    bool is_there, is_asked_for, is_left_out;
    int http;
    gr_diag diag;
} resource_probe;

static void take_first(void *arg, json_t *object)
{
    resource_probe *one = arg;
    if (object != NULL && one->call != NULL) {
        one->is_there = true;
        gr_kube_cancel(one->serve->kube, one->call);
        one->call = NULL;
    }
}

static void take_end(void *arg, const gr_kube_answer *answer)
{
    resource_probe *one = arg;
    one->call = NULL;
    one->is_there = answer->status == GR_OK;
    one->http = answer->http;
    if (answer->diag != NULL) {
        one->diag = *answer->diag;
    }
}

static gr_status ask(resource_probe *one, gr_diag *diag)
{
    gr_serve_resource resource;
    bool is_global = gr_operator_resources[one->resource].is_global;
    gr_serve_name_resource(one->resource, &resource);
    one->is_there = false;
    one->http = 0;
    gr_kube_request request = {.verb = GR_KUBE_LIST,
                               .resource = resource.name,
                               .space = is_global ? NULL : one->serve->options->space,
                               .limit = 1,
                               .item = take_first,
                               .done = take_end,
                               .arg = one};
    gr_status status = gr_kube_submit(one->serve->kube, &request, &one->call, diag);
    return status == GR_PENDING ? GR_OK : status;
}

/* Asks for all of them, and waits for the answers. */
static gr_status ask_all(gr_serve *serve, resource_probe *probes, size_t count, gr_diag *diag)
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
            probes[i].call = NULL;
        }
    }
    return status;
}

static const char *how_to_install(const gr_operator_resource *row)
{
    if (row->is_job) {
        bool is_other = strcmp(row->kind, gr_mpijob_v1.kind) == 0 &&
                        strcmp(row->api_version, gr_mpijob_v1.api_version) == 0;
        return is_other ? "\"kubectl apply --server-side -f deploy/base/mpijobs-v1.yaml\" of "
                          "Gradus's source installs them in place of those of v2beta1"
                        : "\"kubectl apply --server-side -k deploy/base\" of Gradus's source "
                          "installs them";
    }
    switch (row->gang) {
    case GR_GANG_VOLCANO:
        return "volcano, which --gang-scheduling names, installs them (volcano.sh)";
    case GR_GANG_OTHER:
        return "the scheduler-plugins, one of which --gang-scheduling names, install them "
               "(github.com/kubernetes-sigs/scheduler-plugins)";
    default:
        return "Kubernetes itself has them from 1.23 on";
    }
}

static gr_status fail_missing(const resource_probe *one, gr_diag *diag)
{
    const gr_operator_resource *row = &gr_operator_resources[one->resource];
    return gr_fail(diag, GR_E_NOT_FOUND, "the cluster has no %s of %s; %s", row->plural,
                   row->api_version, how_to_install(row));
}

/* What is missing may be about to be installed: a pause, longer each time. False: it is not waited
 * for any longer. */
static bool has_patience(gr_serve *serve, int64_t *pause_us, const gr_diag *missing)
{
    char sentence[GR_DIAG_TEXT_BYTES + 64];
    int64_t now_us = gr_clock_now_us(&serve->clock);
    int64_t until_us = gr_earlier_us(now_us + *pause_us, serve->resources_due_us);
    if (now_us >= serve->resources_due_us || gr_serve_is_over(serve)) {
        return false;
    }
    snprintf(sentence, sizeof sentence, "%s; the operator waits for them", missing->text);
    gr_serve_warn(serve, sentence);
    *pause_us = 2 * *pause_us < ASK_AGAIN_MAX_US ? 2 * *pause_us : ASK_AGAIN_MAX_US;
    while (gr_clock_now_us(&serve->clock) < until_us && !gr_serve_is_over(serve)) {
        gr_serve_pump(serve, until_us);
    }
    return true;
}

/* ---- Kinds ----------------------------------------------------------------------------------- */
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
static size_t fill_probes(gr_serve *serve, resource_probe *probes)
{
    size_t count = 0;
    for (size_t i = 0; gr_operator_kinds[i] != NULL && count < GR_SERVE_KINDS_MAX; i++) {
        const gr_operator_kind *kind = gr_operator_kinds[i];
        if (serve->options->kinds == NULL || is_asked_for(serve, kind)) {
            probes[count++] = (resource_probe){
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

/* A cluster shows each MPIJob in all versions that it has: the first of those is served. NULL:
 * there is none of this kind. */
static const resource_probe *find_served(const resource_probe *probes, size_t count,
                                         const char *kind)
{
    size_t i = 0;
    while (i < count && (!probes[i].is_there || strcmp(probes[i].kind->kind, kind) != 0)) {
        i++;
    }
    return i < count ? &probes[i] : NULL;
}

/* A kind that is not there, or not permitted: is that the end? */
static gr_status judge(const resource_probe *one, gr_diag *diag)
{
    if (one->http == 404) {
        gr_status status = fail_missing(one, diag);
        return one->is_asked_for ? status : GR_OK;
    }
    *diag = one->diag;
    bool may_be_left_out = one->http == 403 && !one->is_asked_for;
    return may_be_left_out ? GR_OK : (gr_status)diag->status;
}

/* Fills the kinds by what the probes have found. GR_E_NOT_FOUND: one is missing, or all are. */
static gr_status choose_kinds(gr_serve *serve, resource_probe *probes, size_t count, gr_diag *diag)
{
    size_t found = 0;
    gr_diag missing = {0};
    for (size_t i = 0; i < count; i++) {
        const resource_probe *served = find_served(probes, count, probes[i].kind->kind);
        probes[i].is_left_out = served == NULL;
        if (served == &probes[i]) {
            serve->kinds[found++] = probes[i].kind;
        }
        if (served != NULL) {
            continue;
        }
        gr_status status = judge(&probes[i], diag);
        if (status != GR_OK) {
            return status;
        }
        probes[i].diag = *diag;
        if (missing.status == GR_OK || probes[i].http == 403) {
            missing = *diag;
        }
    }
    serve->kinds[found] = NULL;
    if (found == 0) {
        *diag = missing;
        return (gr_status)missing.status;
    }
    return GR_OK;
}

gr_status gr_serve_find_kinds(gr_serve *serve, gr_diag *diag)
{
    resource_probe probes[GR_SERVE_KINDS_MAX];
    size_t count = fill_probes(serve, probes);
    int64_t pause_us = ASK_AGAIN_US;
    gr_status status = check_words(serve, diag);
    if (status != GR_OK) {
        return status;
    }
    do {
        status = ask_all(serve, probes, count, diag);
        if (status != GR_OK || gr_serve_is_over(serve)) {
            return status;
        }
        status = choose_kinds(serve, probes, count, diag);
    } while (status == GR_E_NOT_FOUND && has_patience(serve, &pause_us, diag));
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        if (probes[i].is_left_out) {
            gr_log_write(serve->log, GR_LOG_INFO, "operator", "%s of %s is left out: %s",
                         probes[i].kind->kind, probes[i].kind->api_version, probes[i].diag.text);
        }
    }
    return status;
}

/* ---- Other resources ------------------------------------------------------------------------- */
/* Only what is not installed is an end: rights have a check of their own, and all else may pass. */
static gr_status find_missing(const resource_probe *probes, size_t count, gr_diag *diag)
{
    for (size_t i = 0; i < count; i++) {
        if (probes[i].http == 404) {
            return fail_missing(&probes[i], diag);
        }
    }
    return GR_OK;
}

gr_status gr_serve_find_resources(gr_serve *serve, gr_diag *diag)
{
    resource_probe *probes = calloc(gr_operator_resource_count, sizeof *probes);
    size_t count = 0;
    int64_t pause_us = ASK_AGAIN_US;
    gr_status status = GR_OK;
    if (probes == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    for (size_t i = 0; i < gr_operator_resource_count; i++) {
        if (!gr_operator_resources[i].is_job && gr_controller_uses(serve->controller, i)) {
            probes[count++] = (resource_probe){.serve = serve, .resource = i};
        }
    }
    do {
        status = ask_all(serve, probes, count, diag);
        if (status == GR_OK && !gr_serve_is_over(serve)) {
            status = find_missing(probes, count, diag);
        }
    } while (status == GR_E_NOT_FOUND && has_patience(serve, &pause_us, diag));
    free(probes);
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
/* Nobody can give a launcher of MPIJob v1 a right that he has not, unless he may escalate. */
static const right of_launchers = {"", "pods", "exec", "", "create", ""};

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
    static const gr_kube_resource pods = {"", "v1", "pods"};
    for (size_t i = 0; serve->kinds[i] != NULL; i++) {
        if (serve->kinds[i] == &gr_mpijob_v1) {
            add(r, &of_launchers, &pods, serve->options->space);
        }
    }
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
