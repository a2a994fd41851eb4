/* SPDX-License-Identifier: Apache-2.0 */

/* A job and what belongs to it go to a cluster: all of it, or nothing.
 *
 *   what belongs to it is created ──► the job is ──► it becomes their owner
 *        └──────────────any failure: what was created is deleted──────┘
 */

#include "base/fail.h"
#include "base/hash.h"
#include "cli/submit.h"
#include "operator/object.h"

#include <string.h>

enum { CREATED_MAX = GR_SUBMIT_PARTS_MAX + 4, CHANCE_BYTES = 8 };

/* By this annotation an object is known as one of this very command. */
#define MARK "gradus/sent-by"

typedef struct created {
    gr_kube_resource resource;
    char name[256], uid[64];
} created;

typedef struct sending {
    gr_cluster_client *cluster;
    char mark[2 * CHANCE_BYTES + 1];
    created made[CREATED_MAX];
    size_t count;
} sending;

static gr_kube_resource resource_of(const json_t *object)
{
    const char *kind = gr_object_text(object, "kind");
    const char *plural = strcmp(kind, "Service") == 0  ? "services"
                         : strcmp(kind, "Secret") == 0 ? "secrets"
                                                       : "configmaps";
    return (gr_kube_resource){"", "v1", plural};
}

/* With what belongs to it. False: it cannot be deleted, which is told. */
static bool delete_made(gr_cluster_client *cluster, gr_kube_resource resource, const char *name,
                        const char *uid)
{
    gr_diag diag;
    gr_kube_request request = {.verb = GR_KUBE_DELETE,
                               .resource = resource,
                               .space = cluster->space,
                               .name = name,
                               .uid = uid,
                               .propagation = "Background"};
    gr_status status = gr_cluster_ask(cluster, &request, NULL, &diag);
    bool is_left = status != GR_OK && status != GR_E_NOT_FOUND;
    if (is_left) {
        fprintf(stderr, "gradus: warning: %s was made, and is left behind: %s\n", name, diag.text);
    }
    return !is_left;
}

/* Returns true if nothing is left. */
static bool take_back(sending *s)
{
    bool is_clean = true;
    while (s->count > 0) {
        const created *one = &s->made[--s->count];
        is_clean &= delete_made(s->cluster, one->resource, one->name, one->uid);
    }
    return is_clean;
}

static void note_made(sending *s, gr_kube_resource resource, const char *name, const char *uid)
{
    created *one = &s->made[s->count++];
    one->resource = resource;
    snprintf(one->name, sizeof one->name, "%s", name);
    snprintf(one->uid, sizeof one->uid, "%s", uid);
}

/* The answer was lost, or says that there is one already: it may be that of this very command. A
 * new reference; NULL: it is not, or nobody knows. */
static json_t *find_made(const sending *s, gr_kube_resource resource, const json_t *object)
{
    json_t *found = NULL;
    gr_kube_request request = {.verb = GR_KUBE_GET,
                               .resource = resource,
                               .space = s->cluster->space,
                               .name = gr_object_text(object, "metadata.name")};
    if (gr_cluster_ask(s->cluster, &request, &found, NULL) != GR_OK) {
        return NULL;
    }
    const json_t *annotations = gr_object_at(found, "metadata.annotations");
    const char *mark = json_string_value(json_object_get(annotations, MARK));
    if (mark == NULL || strcmp(mark, s->mark) != 0) {
        json_decref(found);
        return NULL;
    }
    return found;
}

static gr_status mark_object(const sending *s, json_t *object, gr_diag *diag)
{
    bool no_memory = false;
    json_t *metadata = gr_object_map(object, "metadata", &no_memory);
    gr_object_put_text(gr_object_map(metadata, "annotations", &no_memory), MARK, s->mark,
                       &no_memory);
    return no_memory ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request") : GR_OK;
}

/* *object_out (may be NULL) is a new reference. */
static gr_status create(sending *s, gr_kube_resource resource, json_t *object, json_t **object_out,
                        gr_diag *diag)
{
    json_t *answer = NULL;
    gr_status marked = mark_object(s, object, diag);
    if (marked != GR_OK) {
        return marked;
    }
    gr_kube_request request = {.verb = GR_KUBE_CREATE,
                               .resource = resource,
                               .space = s->cluster->space,
                               .field_manager = "gradus",
                               .body = object};
    gr_status status = gr_cluster_ask(s->cluster, &request, &answer, diag);
    bool is_lost = status == GR_E_PEER_LOST || status == GR_E_TIMEOUT || status == GR_E_IO ||
                   status == GR_E_CANCELLED || status == GR_E_PROTOCOL;
    if (is_lost || status == GR_E_IN_USE) {
        answer = find_made(s, resource, object);
        /* After a signal it is only there to be taken back. */
        status = answer != NULL && status != GR_E_CANCELLED ? GR_OK : status;
    }
    const char *name = gr_object_text(answer, "metadata.name");
    const char *uid = gr_object_text(answer, "metadata.uid");
    if (name != NULL && uid != NULL && s->count < CREATED_MAX) {
        note_made(s, resource, name, uid);
    } else if (status == GR_OK) {
        status = gr_fail(diag, GR_E_PROTOCOL,
                         "the API server answered without name and uid of the %s that it has made; "
                         "see gradus ls",
                         gr_object_text(object, "kind"));
    }
    if (status == GR_OK && object_out != NULL) {
        *object_out = json_incref(answer);
    }
    json_decref(answer);
    return status;
}

/* There is one of that name already: whose is it? */
static gr_status fail_taken(const sending *s, const json_t *object, gr_diag *diag)
{
    const char *kind = gr_object_text(object, "kind");
    return gr_fail(
        diag, GR_E_IN_USE,
        "there is a %s \"%.100s\" in namespace %s already, of somebody else; nothing was "
        "sent: name the job otherwise (--name)",
        kind, gr_object_text(object, "metadata.name"), s->cluster->space);
}

static gr_status refuse_taken(const sending *s, const char *kind, const char *name, gr_diag *diag)
{
    return gr_fail(diag, GR_E_IN_USE,
                   "there is a %s \"%.100s\" in namespace %s already; name this one otherwise "
                   "(--name), or end that one: gradus stop %s -n %s",
                   kind, name, s->cluster->space, name, s->cluster->space);
}

static gr_status own(sending *s, const created *one, const json_t *job, gr_diag *diag)
{
    json_t *patch = json_pack(
        "{s:{s:s, s:[{s:O, s:O, s:O, s:O}]}}", "metadata", "uid", one->uid, "ownerReferences",
        "apiVersion", json_object_get(job, "apiVersion"), "kind", json_object_get(job, "kind"),
        "name", gr_object_at(job, "metadata.name"), "uid", gr_object_at(job, "metadata.uid"));
    if (patch == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    gr_kube_request request = {.verb = GR_KUBE_MERGE_PATCH,
                               .resource = one->resource,
                               .space = s->cluster->space,
                               .name = one->name,
                               .field_manager = "gradus",
                               .body = patch};
    gr_status status = gr_cluster_ask(s->cluster, &request, NULL, diag);
    json_decref(patch);
    return status;
}

/* Before anything is made: is the name free? */
static gr_status look_for(const sending *s, const gr_cluster_kind *kind, const char *name,
                          gr_diag *diag)
{
    gr_kube_request request = {
        .verb = GR_KUBE_GET, .resource = kind->resource, .space = s->cluster->space, .name = name};
    gr_status status = gr_cluster_ask(s->cluster, &request, NULL, diag);
    return status == GR_E_NOT_FOUND ? GR_OK
           : status == GR_OK        ? refuse_taken(s, kind->kind, name, diag)
                                    : status;
}

gr_status gr_submit_send(gr_cluster_client *cluster, json_t *manifest, json_t *belongs,
                         gr_cluster_job *job_out, bool *is_clean_out, gr_diag *diag)
{
    sending s = {.cluster = cluster};
    json_t *job = NULL;
    const char *name = gr_object_text(manifest, "metadata.name");
    const gr_cluster_kind *kind = gr_cluster_kind_of(gr_object_text(manifest, "apiVersion"),
                                                     gr_object_text(manifest, "kind"));
    size_t i;
    json_t *object;
    uint8_t chance[CHANCE_BYTES];
    gr_status status = gr_random_bytes(chance, sizeof chance, diag);
    if (status == GR_OK) {
        gr_hex(chance, sizeof chance, s.mark);
        status = look_for(&s, kind, name, diag);
    }
    json_array_foreach(belongs, i, object)
    {
        if (status == GR_OK) {
            status = create(&s, resource_of(object), object, NULL, diag);
            status = status == GR_E_IN_USE ? fail_taken(&s, object, diag) : status;
        }
    }
    size_t count = s.count;
    if (status == GR_OK) {
        status = create(&s, kind->resource, manifest, &job, diag);
        if (status == GR_E_IN_USE) {
            status = refuse_taken(&s, kind->kind, name, diag);
        } else if (status == GR_E_NOT_FOUND && kind->replicas != NULL &&
                   strstr(diag->text, "namespaces") == NULL) {
            status = gr_fail(diag, status,
                             "the cluster does not know %s of %s: no operator for it is installed "
                             "there; --kind Job needs none",
                             kind->kind, kind->api_version);
        }
    }
    for (i = 0; i < count && status == GR_OK; i++) {
        status = own(&s, &s.made[i], job, diag);
    }
    if (status != GR_OK) {
        *is_clean_out = take_back(&s);
        json_decref(job);
        return status;
    }
    *job_out = (gr_cluster_job){.kind = kind, .object = job};
    return GR_OK;
}

bool gr_submit_take_back(gr_cluster_client *cluster, const gr_cluster_job *job)
{
    return delete_made(cluster, job->kind->resource, gr_cluster_job_name(job),
                       gr_cluster_job_uid(job));
}
