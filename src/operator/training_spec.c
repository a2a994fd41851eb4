/* SPDX-License-Identifier: Apache-2.0 */

/* Defaults and validation of the kinds of training-operator, with the sentences of its webhook. */

#include "base/text.h"
#include "operator/object.h"
#include "operator/training.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { REPLICAS_MAX = 100000 };

const char *const gr_training_replica_fields[] = {"replicas", "restartPolicy", "template", NULL};

/* ---- Defaults -------------------------------------------------------------------------------- */
/* Users write worker, Worker and WORKER. */
static void name_roles(gr_training *t, json_t *specs)
{
    for (size_t i = 0; t->kind->roles[i] != NULL; i++) {
        const char *role = t->kind->roles[i], *key, *found = NULL;
        json_t *spec;
        json_object_foreach(specs, key, spec)
        {
            if (strcmp(key, role) != 0 && strcasecmp(key, role) == 0) {
                found = key;
            }
        }
        if (found != NULL && json_object_get(specs, role) == NULL) {
            gr_object_put(specs, role, json_incref(json_object_get(specs, found)),
                          &t->look.no_memory);
            json_object_del(specs, found);
        }
    }
}

json_t *gr_training_find_container(const json_t *pod_spec, const char *name)
{
    size_t i;
    json_t *container;
    json_array_foreach(json_object_get(pod_spec, "containers"), i, container)
    {
        if (gr_object_is_text(container, "name", name)) {
            return container;
        }
    }
    return NULL;
}

static json_t *find_container(const gr_training *t, const json_t *template)
{
    const json_t *spec = json_object_get(template, "spec");
    const char *own = t->kind->container;
    const char *name = own != NULL ? own : gr_object_text(t->look.job, "spec.mainContainer");
    json_t *found = name != NULL ? gr_training_find_container(spec, name) : NULL;
    return found != NULL || own != NULL ? found
                                        : json_array_get(json_object_get(spec, "containers"), 0);
}

bool gr_training_is_server_role(const gr_training *t, const char *role)
{
    return t->kind->server_role != NULL && strcmp(role, t->kind->server_role) == 0;
}

/* Of the port that pods of the role have; NULL: they need none. */
static const char *port_name_of(const gr_training *t, const char *role)
{
    return gr_training_is_server_role(t, role) ? t->kind->server_port_name : t->kind->port_name;
}

/* The number of the container's port of that name, 0: it has none. */
static int64_t find_port(const json_t *container, const char *name)
{
    size_t i;
    const json_t *port;
    json_array_foreach(json_object_get(container, "ports"), i, port)
    {
        if (name != NULL && gr_object_is_text(port, "name", name)) {
            return gr_object_int(port, "containerPort", 0);
        }
    }
    return 0;
}

static void set_role_defaults(gr_training *t, const char *role, json_t *spec)
{
    bool *no_memory = &t->look.no_memory;
    json_t *container = find_container(t, json_object_get(spec, "template"));
    const char *port_name = port_name_of(t, role);
    int port = gr_training_is_server_role(t, role) ? t->kind->server_port : t->kind->port;
    gr_object_put_default(spec, "replicas", json_integer(1), no_memory);
    gr_object_put_default(spec, "restartPolicy", json_string(t->kind->restart_policy), no_memory);
    if (port_name != NULL && container != NULL && find_port(container, port_name) == 0) {
        gr_object_append(gr_object_list(container, "ports", no_memory),
                         json_pack("{s:s, s:i}", "name", port_name, "containerPort", port),
                         no_memory);
    }
}

void gr_training_set_defaults(gr_training *t)
{
    json_t *spec = gr_object_map(t->look.job, "spec", &t->look.no_memory);
    json_t *role;
    const char *name;
    name_roles(t, json_object_get(spec, t->kind->specs));
    if (t->kind->set_defaults != NULL) {
        t->kind->set_defaults(spec, &t->look.no_memory);
    }
    json_object_foreach(json_object_get(spec, t->kind->specs), name, role)
    {
        if (json_is_object(role)) {
            set_role_defaults(t, name, role);
        }
    }
    gr_object_put_absent(gr_object_map(spec, "runPolicy", &t->look.no_memory), "cleanPodPolicy",
                         json_string("None"), &t->look.no_memory);
}

/* ---- Validation ------------------------------------------------------------------------------ */
static void check_images(const gr_training *t, gr_problems *p, const json_t *spec, const char *path)
{
    size_t i;
    const json_t *container;
    if (t->kind->container != NULL &&
        find_container(t, json_object_get(spec, "template")) == NULL) {
        gr_problem(p,
                   "%s.template.spec.containers: Required value: must have at least one container "
                   "with name %s",
                   path, t->kind->container);
    }
    json_array_foreach(gr_object_at(spec, "template.spec.containers"), i, container)
    {
        const char *image = gr_object_text(container, "image");
        if (image == NULL || image[0] == '\0') {
            gr_problem(p,
                       "%s.template.spec.containers[%zu].image: Required value: must be required",
                       path, i);
        }
    }
}

/* Any name of an object will do that may be the value of a label. */
static void check_label(gr_problems *p, const json_t *job)
{
    enum { LABEL_BYTES_MAX = 63 };
    const char *name = gr_object_text(job, "metadata.name");
    if (name == NULL || name[0] == '\0') {
        gr_problem(p, "metadata.name: Required value: must have a name");
    } else if (strlen(name) > LABEL_BYTES_MAX) {
        gr_problem(p,
                   "metadata.name: Invalid value: \"%s\": must be no more than %d characters: it "
                   "is a label of all pods",
                   name, LABEL_BYTES_MAX);
    }
}

static void check_role(const gr_training *t, gr_problems *p, const char *name, const json_t *spec)
{
    static const char *const restart_policies[] = {"Always", "ExitCode", "Never", "OnFailure",
                                                   NULL};
    char path[GR_PROBLEM_PATH_BYTES], at[GR_PROBLEM_PATH_BYTES + 32];
    char label[GR_PROBLEM_PATH_BYTES];
    enum { NAME_BYTES_MAX = 100 };
    json_t *named = json_string(name);
    if (t->kind->has_attempts) {
        snprintf(path, sizeof path, "spec.%c%.100ss", tolower((unsigned char)name[0]), name + 1);
    } else {
        snprintf(path, sizeof path, "spec.%s[%.*s]", t->kind->specs,
                 gr_text_fit(name, NAME_BYTES_MAX), name);
    }
    gr_check_is_one_of(p, named, path, t->kind->roles);
    json_decref(named);
    if (!json_is_object(spec)) {
        gr_problem(p, "%s: Required value: must be required", path);
        return;
    }
    snprintf(at, sizeof at, "%s.restartPolicy", path);
    gr_check_is_one_of(p, json_object_get(spec, "restartPolicy"), at, restart_policies);
    gr_check_containers(p, spec, path);
    if (json_array_size(gr_object_at(spec, "template.spec.containers")) > 0) {
        check_images(t, p, spec, path);
    }
    int64_t replicas = 0;
    if (gr_check_integer(p, spec, "replicas", path, &replicas) &&
        (replicas < 0 || replicas > REPLICAS_MAX)) {
        gr_problem(p, "%s.replicas: Invalid value: %" PRId64 ": must be from 0 to %d", path,
                   replicas, REPLICAS_MAX);
    }
    if (p->count == 0 && !t->kind->has_services && !t->kind->has_attempts) {
        check_label(p, t->look.job); /* no pod is called by its host's name */
    } else if (p->count == 0) {
        size_t i = 0;
        for (; name[i] != '\0' && i + 1 < sizeof label; i++) {
            label[i] = (char)tolower((unsigned char)name[i]);
        }
        label[i] = '\0';
        gr_check_pod_name(p, t->look.job, label, replicas > 0 ? replicas - 1 : 0);
    }
}

void gr_training_validate(gr_training *t, char sentence_out[GR_EVENT_BYTES])
{
    gr_problems p = {.count = 0};
    const json_t *spec = json_object_get(t->look.job, "spec");
    json_t *specs = json_object_get(spec, t->kind->specs), *role;
    const char *name;
    if (json_object_size(specs) == 0) {
        gr_problem(&p, "spec.%s: Required value: must have replica%ss", t->kind->specs,
                   t->kind->has_attempts ? "" : " spec");
    }
    json_object_foreach(specs, name, role)
    {
        check_role(t, &p, name, role);
    }
    gr_check_run_policy(&p, json_object_get(spec, "runPolicy"), "kubeflow.org/training-operator",
                        t->kind->is_strict);
    t->kind->check(&p, spec, specs);
    t->look.no_memory |= p.no_memory;
    gr_problems_describe(&p, sentence_out);
}

/* ---- Roles ----------------------------------------------------------------------------------- */
bool gr_training_read_roles(gr_training *t)
{
    json_t *specs = gr_object_at(t->look.job, "spec");
    specs = json_object_get(specs, t->kind->specs);
    for (size_t i = 0; t->kind->roles[i] != NULL; i++) {
        const json_t *spec = json_object_get(specs, t->kind->roles[i]);
        if (spec == NULL) {
            continue;
        }
        gr_training_role *role = &t->roles[t->role_count++];
        role->name = t->kind->roles[i];
        for (size_t c = 0; role->name[c] != '\0'; c++) {
            role->label[c] = (char)tolower((unsigned char)role->name[c]);
        }
        role->template = json_object_get(spec, "template");
        role->container = gr_object_text(find_container(t, role->template), "name");
        role->is_single =
            t->kind->single_role != NULL && strcmp(role->name, t->kind->single_role) == 0;
        role->restart_policy = gr_object_text(spec, "restartPolicy");
        role->replicas = gr_object_int(spec, "replicas", 1);
        role->port = find_port(find_container(t, role->template), port_name_of(t, role->name));
        role->pods = calloc((size_t)role->replicas + 1, sizeof *role->pods);
        role->services = calloc((size_t)role->replicas + 1, sizeof *role->services);
        t->replicas += role->replicas;
        if (role->pods == NULL || role->services == NULL) {
            return false;
        }
    }
    return true;
}
