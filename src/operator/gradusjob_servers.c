/* SPDX-License-Identifier: Apache-2.0 */

/* The parameter servers of a GradusJob: pods of the role Server, which run `gradus server`.
 *
 *   not all pods of the attempt have run  one that is lost ends it, as a lost worker does
 *   all have run, others can agree        it is made anew, and takes its blocks from replicas
 *   all have run, they cannot             all pods are restarted from the newest checkpoint
 *   no worker works any more              they go
 *
 * Nobody hears here whether a new server has found its place, or what the others agree on. Where
 * they are left without a block the workers fail: that counts as a loss of servers as long as one
 * was lost in this attempt. */

#include "operator/gradusjob.h"
#include "operator/object.h"
#include "operator/parts.h"
#include "ps/place.h"
#include "train/job/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVERS "spec.servers"
#define REPLACED "replacedServers" /* of the status: in this attempt */

/* ---- Defaults and validation ----------------------------------------------------------------- */
void gr_gradusjob_set_server_defaults(json_t *spec, json_t *worker, bool *no_memory)
{
    const json_t *asked = gr_object_at(spec, "job.distribution.servers");
    json_t *servers = json_object_get(spec, "servers");
    int64_t count = json_is_integer(asked) ? (int64_t)json_integer_value(asked) : 0;
    if (servers == NULL && count > 0) {
        servers = json_object();
        gr_object_put(spec, "servers", servers, no_memory);
    }
    if (!json_is_object(servers)) {
        return; /* which is told, if there is something */
    }
    const json_t *container =
        gr_training_find_container(gr_object_at(worker, "template.spec"), GR_GRADUSJOB_CONTAINER);
    const char *own = gr_object_text(servers, "image"),
               *theirs = gr_object_text(container, "image");
    const char *image = own != NULL && own[0] != '\0' ? own : theirs;
    gr_object_put_default(servers, "replicas", json_integer(count > 0 ? count : 1), no_memory);
    if (json_object_get(servers, "template") != NULL) {
        gr_object_put(servers, "hasTemplate", json_true(), no_memory);
    } else if (image != NULL) {
        gr_object_put(servers, "template", gr_gradusjob_template(servers, image, no_memory),
                      no_memory);
    }
}

void gr_gradusjob_check_servers(gr_problems *p, const json_t *servers)
{
    int64_t replicas = gr_object_int(servers, "replicas", 1);
    if (replicas < 1 || replicas > GR_PS_SERVERS_MAX) {
        gr_problem(p, SERVERS ".replicas: Invalid value: %" PRId64 ": must be from 1 to %d",
                   replicas, GR_PS_SERVERS_MAX);
    }
    gr_gradusjob_check_template(p, SERVERS, servers, SERVERS ", which run gradus server");
}

/* ---- Pods ------------------------------------------------------------------------------------ */
static const gr_training_role *find_role(const gr_training *t)
{
    return gr_training_find_role(t, GR_GRADUSJOB_SERVER);
}

/* In the order of their numbers. */
static void add_addresses(gr_training *t, const gr_training_role *role, json_t *container)
{
    gr_gradusjob_add_env(t, container, "GRADUS_SERVERS",
                         gr_gradusjob_addresses(t, role, role->port, ',', -1));
}

void gr_gradusjob_add_servers(gr_training *t, json_t *container)
{
    const gr_training_role *role = find_role(t);
    if (role != NULL) {
        add_addresses(t, role, container);
        gr_parts_add_env(&t->look, container, "GRADUS_SERVERS_TIMEOUT", GR_GRADUSJOB_JOIN_TIMEOUT);
    }
}

void gr_gradusjob_label_servers(gr_training *t, json_t *labels)
{
    const gr_training_role *role = find_role(t);
    if (role != NULL) {
        gr_object_put(labels, GR_GRADUSJOB_SERVERS_LABEL, json_sprintf("%" PRId64, role->replicas),
                      &t->look.no_memory);
    }
}

/* What a job file says of servers. One that is in a ConfigMap is not known here. */
static void read_job(gr_training *t, bool *replicates_out, bool *encrypts_out)
{
    gr_diag diag = {0};
    gr_job *job = NULL;
    const json_t *spec = gr_object_at(t->look.job, "spec");
    bool is_known = json_object_get(spec, "job") != NULL;
    json_t *document = is_known ? gr_gradusjob_document(spec, 1, &t->look.no_memory) : NULL;
    char *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    *replicates_out = true;
    *encrypts_out = false;
    if (text != NULL && gr_job_parse_document(text, strlen(text), &job, &diag) == GR_OK) {
        *replicates_out = job->distribution.server_replicas > 0;
        *encrypts_out = job->distribution.encrypt;
    }
    gr_job_close(job);
    free(text);
    json_decref(document);
}

void gr_gradusjob_complete_server(gr_training *t, const gr_training_role *role, int64_t index,
                                  json_t *pod_spec, json_t *container)
{
    bool replicates, encrypts, *no_memory = &t->look.no_memory;
    read_job(t, &replicates, &encrypts);
    gr_object_append(gr_object_list(container, "env", no_memory),
                     json_pack("{s:s, s:{s:{s:s}}}", "name", "POD_IP", "valueFrom", "fieldRef",
                               "fieldPath", "status.podIP"),
                     no_memory);
    gr_gradusjob_add_secret(t, container);
    if (encrypts) {
        gr_parts_add_env(&t->look, container, "GRADUS_ENCRYPT", "yes");
    }
    json_t *command = json_pack(
        "[s, s, s, o, s, o, s, s, s, s, s, o]", gr_gradusjob_add_program(t, pod_spec, container),
        "server", "--servers", json_sprintf("%" PRId64, role->replicas), "--number",
        json_sprintf("%" PRId64, index), "--replicas", replicates ? "1" : "0", "--listen",
        "$(POD_IP)", "--ports", json_sprintf("%" PRId64, role->port));
    if (gr_object_holds(json_object_get(t->look.status, "conditions"), "Running")) {
        gr_object_append(command, json_string("--replace"), no_memory);
        add_addresses(t, role, container);
    }
    gr_object_put(container, "command", command, no_memory);
}

/* ---- Attempts -------------------------------------------------------------------------------- */
gr_gradusjob_servers gr_gradusjob_look_at_servers(const gr_training *t, bool is_formed)
{
    const gr_training_role *role = find_role(t);
    gr_gradusjob_servers s = {.first = -1, .first_lost = -1};
    size_t i;
    const json_t *pod;
    for (int64_t n = 0; role != NULL && n < role->replicas; n++) {
        int64_t code = GR_TRAINING_FIRST_SIGNAL;
        pod = role->pods[n];
        bool goes = gr_object_at(pod, "metadata.deletionTimestamp") != NULL;
        bool is_lost = pod != NULL ? gr_training_has_ended(pod) || (goes && !is_formed) : is_formed;
        (void)(gr_training_has_phase(pod, "Failed") && gr_training_exit_code(role, pod, &code));
        s.there += pod != NULL;
        s.lost += is_lost;
        s.failed += gr_training_has_phase(pod, "Failed") && code < GR_TRAINING_FIRST_SIGNAL;
        s.first_lost = is_lost && s.first_lost < 0 ? n : s.first_lost;
        if (!is_lost && gr_training_has_phase(pod, "Running")) {
            s.first = s.left == 0 ? n : s.first;
            s.left++;
        }
    }
    s.wanted = role != NULL ? role->replicas : 0;
    json_array_foreach(t->surplus, i, pod)
    {
        s.there += gr_training_serves(t, pod);
    }
    s.was_lost = s.lost > 0 || gr_object_int(t->look.status, REPLACED, 0) > 0;
    return s;
}

/* On hosts of their own those that are left agree that others are lost if they are more, or as many
 * and have the lowest number (ps/server/membership_view.h). */
bool gr_gradusjob_servers_go_on(gr_training *t, const gr_gradusjob_servers *s)
{
    bool replicates, encrypts;
    bool is_quorum = s->left > s->lost || (s->left == s->lost && s->first < s->first_lost);
    if (s->lost == 0 || !is_quorum) {
        return s->lost == 0;
    }
    read_job(t, &replicates, &encrypts);
    return replicates;
}

bool gr_gradusjob_clear_servers(gr_training *t, const gr_gradusjob_servers *s)
{
    if (s->there > 0) {
        gr_training_delete_pods(t);
        return false;
    }
    json_object_del(t->look.status, REPLACED);
    return true;
}

void gr_gradusjob_report_server(gr_training *t, const gr_training_role *role, int64_t index)
{
    char message[GR_EVENT_BYTES];
    if (role == &t->roles[0]) {
        return;
    }
    snprintf(message, sizeof message,
             "GradusJob %s has lost parameter server %" PRId64
             " and goes on: another one comes in its place.",
             t->look.name, index);
    gr_training_event(t, "Normal", "ServerReplaced", message);
}

void gr_gradusjob_replace_servers(gr_training *t, int64_t most)
{
    gr_training_role *role = t->role_count > 1 ? &t->roles[1] : NULL; /* behind the workers' */
    int64_t replaced = gr_object_int(t->look.status, REPLACED, 0);
    if (role == NULL || replaced >= most * role->replicas) {
        return;
    }
    role->is_closed = false;
    role->counter = REPLACED;
    for (int64_t n = 0; n < role->replicas; n++) {
        if (gr_training_has_ended(role->pods[n])) { /* the next look finds its name free */
            (void)gr_look_delete(&t->look, role->pods[n]);
        }
    }
}
