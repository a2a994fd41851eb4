/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/pod_plan.h"

#include "base/fail.h"
#include "launch/environ.h"
#include "operator/local/base64.h"
#include "operator/object.h"
#include "operator/operator.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VARIABLES_MAX = 4096, GRACE_S = 30, PORTS_MAX = 256 };

/* The environment of one container while it grows. */
typedef struct pod_variables {
    gr_arena *arena;
    char **entries; /* NULL-terminated */
    size_t count;
    bool no_memory;
} pod_variables;

/* One pod that is planned. */
typedef struct pod_planner {
    const gr_store *store;
    const json_t *pod;
    const gr_pod_place *place;
    gr_arena *arena;
    gr_pod_plan *plan;
    gr_diag *diag;
} pod_planner;

static gr_status no_memory(const pod_planner *p)
{
    return gr_fail(p->diag, GR_E_NO_MEMORY, "no memory for pod %s", p->plan->name);
}

/* ---- $(NAME) --------------------------------------------------------------------------------- */
/* As gr_pod_expand; *unknown_out: a name that is not there, NULL: all are. */
static char *expand(gr_arena *arena, const char *text, char *const *environment,
                    const char **unknown_out)
{
    char *expanded = NULL, *kept;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&expanded, &size_bytes);
    *unknown_out = NULL;
    if (out == NULL) {
        return NULL;
    }
    while (*text != '\0') {
        size_t plain = strcspn(text, "$");
        fwrite(text, 1, plain, out);
        text += plain;
        const char *end = text[0] == '$' && text[1] == '(' ? strchr(text, ')') : NULL;
        if (text[0] == '$' && text[1] == '$') {
            fputc('$', out);
            text += 2;
        } else if (end != NULL) {
            const char *name = gr_arena_printf(arena, "%.*s", (int)(end - text) - 2, text + 2);
            const char *value = name != NULL ? gr_environ_find(environment, name) : NULL;
            if (value != NULL) {
                fputs(value, out);
            } else {
                fwrite(text, 1, (size_t)(end - text) + 1, out);
                *unknown_out = name;
            }
            text = end + 1;
        } else if (text[0] == '$') {
            fputc(*text++, out);
        }
    }
    kept = fclose(out) == 0 ? gr_arena_strdup(arena, expanded) : NULL;
    free(expanded);
    return kept;
}

char *gr_pod_expand(gr_arena *arena, const char *text, char *const *environment)
{
    const char *unknown;
    return expand(arena, text, environment, &unknown);
}

/* ---- Environment ----------------------------------------------------------------------------- */
static void set_variable(pod_variables *v, const char *name, const char *value)
{
    size_t length = strlen(name), i = 0;
    char *entry = gr_arena_printf(v->arena, "%s=%s", name, value);
    while (i < v->count &&
           !(strncmp(v->entries[i], name, length) == 0 && v->entries[i][length] == '=')) {
        i++;
    }
    if (entry == NULL || i == VARIABLES_MAX) {
        v->no_memory = true;
        return;
    }
    v->entries[i] = entry;
    if (i == v->count) {
        v->entries[++v->count] = NULL;
    }
}

/* What an outer job has set for its own ranks is not for those of a pod. */
static bool is_inherited(const char *entry)
{
    static const char *const others[] = {"GRADUS_",
                                         "RANK=",
                                         "WORLD_SIZE=",
                                         "LOCAL_RANK=",
                                         "MASTER_ADDR=",
                                         "MASTER_PORT=",
                                         "LOCAL_WORLD_SIZE=",
                                         "TF_CONFIG=",
                                         "PET_",
                                         "OMPI_",
                                         "PMI_",
                                         "PMIX_",
                                         "KUBERNETES_",
                                         "HYDRA_"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strncmp(entry, others[i], strlen(others[i])) == 0 &&
            strncmp(entry, "GRADUS_TEST_", strlen("GRADUS_TEST_")) != 0) {
            return false;
        }
    }
    return true;
}

/* Returns true if a word of the container names the interfaces of Open MPI. */
static bool names_interfaces(const json_t *container)
{
    static const char *const parts[] = {"command", "args"};
    for (size_t part = 0; part < 2; part++) {
        size_t i;
        const json_t *word;
        json_array_foreach(json_object_get(container, parts[part]), i, word)
        {
            const char *text = json_string_value(word);
            if (text != NULL && strstr(text, "tcp_if_") != NULL) {
                return true;
            }
        }
    }
    return false;
}

/* mpirun of root refuses without the first two. hydra would take pods for itself, since their
 * addresses are of loopback; and Open MPI leaves loopback out, though there may be nothing else. */
static void add_ours(const pod_planner *p, const json_t *container, pod_variables *v)
{
    static const char *const ours[][2] = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                          {"HYDRA_LAUNCHER_AUTOFORK", "0"},
                                          {"OMPI_MCA_oob_tcp_if_include", "lo"},
                                          {"OMPI_MCA_btl_tcp_if_include", "lo"}};
    size_t count = sizeof ours / sizeof ours[0] - (names_interfaces(container) ? 2 : 0);
    const char *path = gr_environ_find(p->place->inherited, "PATH");
    if (!p->place->is_contained) {
        char *longer = gr_arena_printf(p->arena, "%s:%s", p->place->tools,
                                       path != NULL ? path : "/usr/local/bin:/usr/bin:/bin");
        v->no_memory |= longer == NULL;
        set_variable(v, "PATH", longer != NULL ? longer : "");
    }
    set_variable(v, "HOSTNAME", p->plan->host_name);
    for (size_t i = 0; i < count; i++) {
        set_variable(v, ours[i][0], ours[i][1]);
    }
}

static gr_status begin_variables(const pod_planner *p, const json_t *container, pod_variables *v)
{
    *v = (pod_variables){.arena = p->arena,
                         .entries = gr_arena_alloc(p->arena, (VARIABLES_MAX + 1) * sizeof(char *))};
    if (v->entries == NULL) {
        return no_memory(p);
    }
    for (char *const *entry = p->place->inherited; *entry != NULL; entry++) {
        if (is_inherited(*entry) && v->count < VARIABLES_MAX) {
            v->entries[v->count++] = *entry;
        }
    }
    add_ours(p, container, v);
    return GR_OK;
}

/* The text of a key of a ConfigMap or a Secret, in the arena; NULL: it is not there. */
static const char *text_of_key(const pod_planner *p, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(object, "data"), key));
    const char *plain =
        json_string_value(json_object_get(json_object_get(object, "stringData"), key));
    if (plain != NULL || text == NULL || !gr_object_is(object, "v1", "Secret")) {
        return plain != NULL ? plain : text;
    }
    size_t size_bytes;
    char *decoded = gr_base64_decode(text, &size_bytes);
    char *kept = decoded != NULL ? gr_arena_strdup(p->arena, decoded) : NULL;
    free(decoded);
    return kept;
}

/* The object that a reference names. GR_OK and NULL: it need not be there. */
static gr_status find_source(const pod_planner *p, const char *kind, const json_t *reference,
                             const json_t **object_out)
{
    const char *name = gr_object_text(reference, "name");
    *object_out = gr_store_find(p->store, "v1", kind, p->plan->space, name);
    if (*object_out == NULL && !gr_object_true(reference, "optional")) {
        return gr_fail(p->diag, GR_E_NOT_FOUND,
                       "pod %s needs %s \"%s\", which is not there; add it to the manifest",
                       p->plan->name, kind, name != NULL ? name : "");
    }
    return GR_OK;
}

static gr_status add_all_of(const pod_planner *p, pod_variables *v, const json_t *source)
{
    const json_t *map = json_object_get(source, "configMapRef");
    const json_t *secret = json_object_get(source, "secretRef"), *object;
    const char *prefix = gr_object_text(source, "prefix"), *key;
    json_t *value;
    gr_status status =
        find_source(p, map != NULL ? "ConfigMap" : "Secret", map != NULL ? map : secret, &object);
    if (status != GR_OK) {
        return status;
    }
    static const char *const parts[] = {"data", "stringData"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        json_object_foreach(json_object_get(object, parts[i]), key, value)
        {
            const char *text = text_of_key(p, object, key);
            char *name = gr_arena_printf(p->arena, "%s%s", prefix != NULL ? prefix : "", key);
            if (text != NULL && name != NULL) {
                set_variable(v, name, text);
            }
        }
    }
    return GR_OK;
}

/* A field of the pod itself: "metadata.name", "metadata.labels['x']"; NULL: unknown. */
static const char *field_of(const pod_planner *p, const char *path)
{
    static const char *const plain[] = {"metadata.name", "metadata.namespace", "metadata.uid",
                                        "spec.serviceAccountName"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(path, plain[i]) == 0) {
            const char *text = gr_object_text(p->pod, path);
            return text != NULL ? text : "";
        }
    }
    if (strcmp(path, "status.podIP") == 0 || strcmp(path, "status.podIPs") == 0 ||
        strcmp(path, "status.hostIP") == 0) {
        return p->place->address;
    }
    if (strcmp(path, "spec.nodeName") == 0) {
        return "localhost";
    }
    bool is_label = strncmp(path, "metadata.labels['", 17) == 0;
    if (is_label || strncmp(path, "metadata.annotations['", 22) == 0) {
        const char *begin = path + (is_label ? 17 : 22), *end = strrchr(begin, '\'');
        const json_t *map =
            gr_object_at(p->pod, is_label ? "metadata.labels" : "metadata.annotations");
        const char *text =
            end != NULL ? json_string_value(json_object_getn(map, begin, (size_t)(end - begin)))
                        : NULL;
        return text != NULL ? text : "";
    }
    return NULL;
}

/* A variable whose value stands elsewhere. GR_OK and NULL: it is not set. */
static gr_status find_value(const pod_planner *p, const char *name, const json_t *from,
                            const char **value_out)
{
    static const char *const refs[][2] = {{"configMapKeyRef", "ConfigMap"},
                                          {"secretKeyRef", "Secret"}};
    const char *path = gr_object_text(from, "fieldRef.fieldPath");
    *value_out = path != NULL ? field_of(p, path) : NULL;
    if (*value_out != NULL) {
        return GR_OK;
    }
    for (size_t i = 0; i < sizeof refs / sizeof refs[0]; i++) {
        const json_t *reference = json_object_get(from, refs[i][0]), *object;
        if (reference == NULL) {
            continue;
        }
        gr_status status = find_source(p, refs[i][1], reference, &object);
        const char *key = gr_object_text(reference, "key");
        *value_out =
            status == GR_OK && key != NULL && object != NULL ? text_of_key(p, object, key) : NULL;
        if (status == GR_OK && *value_out == NULL && !gr_object_true(reference, "optional")) {
            status =
                gr_fail(p->diag, GR_E_NOT_FOUND,
                        "pod %s: variable %s needs key \"%s\" of %s \"%s\", which is not there",
                        p->plan->name, name, key != NULL ? key : "", refs[i][1],
                        gr_object_text(reference, "name"));
        }
        return status;
    }
    return gr_fail(p->diag, GR_E_INVALID,
                   "pod %s: the value of variable %s comes from where nothing is known here; only "
                   "fields of the pod, ConfigMaps and Secrets are",
                   p->plan->name, name);
}

static gr_status fill_variables(const pod_planner *p, const json_t *container, pod_variables *v)
{
    gr_status status = begin_variables(p, container, v);
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(container, "envFrom"), i, one)
    {
        status = status == GR_OK ? add_all_of(p, v, one) : status;
    }
    json_array_foreach(json_object_get(container, "env"), i, one)
    {
        const char *name = gr_object_text(one, "name"), *value = gr_object_text(one, "value");
        const json_t *from = json_object_get(one, "valueFrom");
        const json_t *given = json_object_get(one, "value");
        if (name == NULL || status != GR_OK) {
            continue;
        }
        if (value == NULL && given != NULL && !json_is_null(given)) {
            return gr_fail(p->diag, GR_E_INVALID,
                           "pod %s: the value of variable %s must be a text; write numbers, true "
                           "and false in quotes",
                           p->plan->name, name);
        }
        if (from != NULL) {
            status = find_value(p, name, from, &value);
        } else {
            value = gr_pod_expand(p->arena, value != NULL ? value : "", v->entries);
        }
        if (value != NULL) {
            set_variable(v, name, value);
        }
    }
    return status == GR_OK && v->no_memory ? no_memory(p) : status;
}

/* ---- Containers ------------------------------------------------------------------------------ */
static gr_status fill_argv(const pod_planner *p, const json_t *container, gr_container *c)
{
    static const char *const parts[] = {"command", "args"};
    size_t i, count = 0,
              max = json_array_size(json_object_get(container, "command")) +
                    json_array_size(json_object_get(container, "args"));
    const json_t *word;
    c->argv = gr_arena_alloc(p->arena, (max + 1) * sizeof(char *));
    if (c->argv == NULL) {
        return no_memory(p);
    }
    for (size_t part = 0; part < 2; part++) {
        json_array_foreach(json_object_get(container, parts[part]), i, word)
        {
            const char *text = json_string_value(word);
            if (text == NULL) {
                return gr_fail(p->diag, GR_E_INVALID,
                               "pod %s: %s of container %s must be a list of texts; write numbers "
                               "in quotes",
                               p->plan->name, parts[part], c->name);
            }
            c->argv[count] = gr_pod_expand(p->arena, text, c->environment);
            if (c->argv[count++] == NULL) {
                return no_memory(p);
            }
        }
    }
    c->has_command = json_array_size(json_object_get(container, "command")) > 0;
    c->way = count > 0 || p->place->is_contained ? GR_CONTAINER_COMMAND : GR_CONTAINER_IMPOSSIBLE;
    return GR_OK;
}

/* What the kernel takes of a program's words and environment (execve(2)): each, and all. */
static gr_status check_sizes(const pod_planner *p, const gr_container *c)
{
    enum { ONE_MAX = 128 * 1024, ALL_MAX = 6 << 20 };
    long all_max = sysconf(_SC_ARG_MAX);
    size_t most = all_max > 0 && all_max < ALL_MAX ? (size_t)all_max : ALL_MAX, sum = 0;
    char *const *const lists[] = {c->argv, c->environment};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (char *const *one = lists[i]; *one != NULL; one++) {
            size_t size_bytes = strlen(*one) + 1;
            sum += size_bytes + sizeof *one;
            if (size_bytes > ONE_MAX) {
                int shown = i == 0 ? 0 : (int)strcspn(*one, "=");
                return gr_fail(p->diag, GR_E_INVALID,
                               "pod %s: %s%.*s of container %s has %zu bytes; the system starts "
                               "programs with at most %d: put it into a file of a ConfigMap",
                               p->plan->name, i == 0 ? "a word of the command" : "variable ", shown,
                               *one, c->name, size_bytes - 1, ONE_MAX - 1);
            }
        }
    }
    return sum <= most ? GR_OK
                       : gr_fail(p->diag, GR_E_INVALID,
                                 "pod %s: command and environment of container %s have %zu bytes "
                                 "together; the system starts programs with at most %zu",
                                 p->plan->name, c->name, sum, most);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Containers that our own reconcilers make, of images that this host does not have. */
static void recognise(const pod_planner *p, gr_container *c)
{
    static const char before[] = "if nslookup ";
    const char *script = c->argv[0] != NULL && c->argv[1] != NULL ? c->argv[2] : NULL;
    const char *found = script != NULL ? strstr(script, before) : NULL;
    if (c->is_init && strcmp(c->name, "init-pytorch") == 0 && found != NULL) {
        const char *name = found + strlen(before);
        c->way = GR_CONTAINER_AWAIT;
        c->awaited = gr_arena_printf(p->arena, "%.*s", (int)strcspn(name, "; "), name);
    } else if (c->is_init && strcmp(c->name, "kubectl-delivery") == 0 && c->argv[0] == NULL) {
        c->way = GR_CONTAINER_DELIVER;
    } else if (c->is_init && strcmp(c->name, GR_GRADUS_VOLUME) == 0) {
        c->way = GR_CONTAINER_DELIVER;
    } else if (c->argv[0] != NULL && (strcmp(c->argv[0], GR_GRADUS_FOLDER "/gradus") == 0 ||
                                      strcmp(c->argv[0], "gradus") == 0)) {
        c->argv[0] = (char *)(uintptr_t)p->place->program;
    } else if (c->argv[0] != NULL && strcmp(base_name(c->argv[0]), "sshd") == 0 &&
               !p->place->is_contained) {
        c->way = GR_CONTAINER_SSHD;
    } else if (c->argv[0] != NULL && strcmp(base_name(c->argv[0]), "sshd") == 0) {
        c->argv[0] = (char *)(uintptr_t)GR_CONTAINED_SSHD; /* commands need a container that runs */
        c->has_command = true;
    }
}

/* What an engine asks for beside the words. */
static void plan_engine(const pod_planner *p, const json_t *container, gr_container *c)
{
    const char *policy = gr_object_text(container, "imagePullPolicy");
    const json_t *own = json_object_get(container, "securityContext");
    const json_t *common = gr_object_at(p->pod, "spec.securityContext");
    int64_t user = gr_object_int(own, "runAsUser", gr_object_int(common, "runAsUser", -1));
    int64_t group = gr_object_int(own, "runAsGroup", gr_object_int(common, "runAsGroup", -1));
    c->pull = policy != NULL && strcmp(policy, "Always") == 0  ? "always"
              : policy != NULL && strcmp(policy, "Never") == 0 ? "never"
                                                               : "missing";
    if (user >= 0) {
        c->user = group >= 0
                      ? gr_arena_printf(p->arena, "%lld:%lld", (long long)user, (long long)group)
                      : gr_arena_printf(p->arena, "%lld", (long long)user);
    }
}

static gr_status plan_container(const pod_planner *p, const json_t *container, bool is_init)
{
    gr_container *c = &p->plan->containers[p->plan->container_count];
    pod_variables variables;
    const char *name = gr_object_text(container, "name");
    *c = (gr_container){.name = name != NULL ? name : "",
                        .image = gr_object_text(container, "image"),
                        .is_init = is_init,
                        .is_sidecar =
                            is_init && gr_object_is_text(container, "restartPolicy", "Always"),
                        .folder = gr_object_text(container, "workingDir")};
    gr_status status = fill_variables(p, container, &variables);
    if (status == GR_OK) {
        c->environment = variables.entries;
        status = fill_argv(p, container, c);
    }
    if (status == GR_OK) {
        status = check_sizes(p, c);
    }
    if (status == GR_OK) {
        recognise(p, c);
        plan_engine(p, container, c);
        p->plan->container_count++;
        p->plan->init_count += is_init;
    }
    return status;
}

/* ---- Mounts ---------------------------------------------------------------------------------- */
/* The folder of the volume that is mounted; "": all of it. */
static gr_status find_sub_path(const pod_planner *p, const json_t *mount, const gr_container *of,
                               const char **sub_path_out)
{
    const char *plain = gr_object_text(mount, "subPath"), *unknown = NULL;
    const char *form = gr_object_text(mount, "subPathExpr");
    *sub_path_out = plain != NULL ? plain : "";
    if (form == NULL || form[0] == '\0') {
        return GR_OK;
    }
    if (plain != NULL && plain[0] != '\0') {
        return gr_fail(p->diag, GR_E_INVALID,
                       "pod %s: container %s mounts %s with subPath and subPathExpr; leave one out",
                       p->plan->name, of->name, gr_object_text(mount, "mountPath"));
    }
    *sub_path_out = expand(p->arena, form, of->environment, &unknown);
    if (unknown != NULL) {
        return gr_fail(p->diag, GR_E_INVALID,
                       "pod %s: subPathExpr \"%s\" of container %s needs variable %s, which is not "
                       "set; add it to env",
                       p->plan->name, form, of->name, unknown);
    }
    return *sub_path_out != NULL ? GR_OK : no_memory(p);
}

static gr_status add_mount(const pod_planner *p, const json_t *mount, const gr_container *of)
{
    gr_pod_plan *plan = p->plan;
    const char *path = gr_object_text(mount, "mountPath"), *sub_path;
    const char *volume = gr_object_text(mount, "name");
    size_t at = 0;
    if (path == NULL || path[0] != '/' || volume == NULL) {
        return GR_OK;
    }
    for (size_t i = 0; i < plan->mount_count; i++) {
        if (strcmp(plan->mounts[i].path, path) == 0) {
            return GR_OK; /* of another container */
        }
        at += strlen(plan->mounts[i].path) <= strlen(path);
    }
    gr_status status = find_sub_path(p, mount, of, &sub_path);
    if (status != GR_OK) {
        return status;
    }
    memmove(&plan->mounts[at + 1], &plan->mounts[at],
            (plan->mount_count - at) * sizeof plan->mounts[0]);
    plan->mounts[at] = (gr_volume_mount){.volume = volume,
                                         .sub_path = sub_path,
                                         .path = path,
                                         .is_read_only = gr_object_true(mount, "readOnly")};
    plan->mount_count++;
    return GR_OK;
}

/* `planned`: the same containers. */
static gr_status add_mounts(const pod_planner *p, const json_t *containers,
                            const gr_container *planned)
{
    size_t i, k;
    const json_t *container, *mount;
    gr_status status = GR_OK;
    json_array_foreach(containers, i, container)
    {
        json_array_foreach(json_object_get(container, "volumeMounts"), k, mount)
        {
            status = status == GR_OK ? add_mount(p, mount, &planned[i]) : status;
        }
    }
    return status;
}

static size_t count_mounts(const json_t *containers)
{
    size_t i, count = 0;
    const json_t *container;
    json_array_foreach(containers, i, container)
    {
        count += json_array_size(json_object_get(container, "volumeMounts"));
    }
    return count;
}

static void add_port(gr_pod_plan *plan, int64_t number)
{
    if (number > 0 && number <= UINT16_MAX && plan->port_count < PORTS_MAX) {
        plan->ports[plan->port_count++] = (uint16_t)number;
    }
}

/* Programs of Gradus that torchrun has started meet at the port behind that of a PyTorchJob. */
static void add_ports(gr_pod_plan *plan, const json_t *containers)
{
    size_t i, k;
    const json_t *container, *port;
    json_array_foreach(containers, i, container)
    {
        json_array_foreach(json_object_get(container, "ports"), k, port)
        {
            int64_t number = gr_object_int(port, "containerPort", 0);
            add_port(plan, number);
            if (gr_object_is_text(port, "name", "pytorchjob-port")) {
                add_port(plan, number + 1);
            }
        }
    }
}

gr_status gr_pod_plan_make(const gr_store *store, const json_t *pod, const gr_pod_place *place,
                           gr_arena *arena, gr_pod_plan *plan_out, gr_diag *diag)
{
    const json_t *spec = json_object_get(pod, "spec"), *container;
    const json_t *containers = json_object_get(spec, "containers");
    const json_t *inits = json_object_get(spec, "initContainers");
    const char *host_name = gr_object_text(spec, "hostname");
    const char *policy = gr_object_text(spec, "restartPolicy");
    size_t count = json_array_size(containers) + json_array_size(inits), i;
    pod_planner p = {
        .store = store, .pod = pod, .place = place, .arena = arena, .plan = plan_out, .diag = diag};
    *plan_out = (gr_pod_plan){
        .space = gr_object_text(pod, "metadata.namespace"),
        .name = gr_object_text(pod, "metadata.name"),
        .host_name = host_name != NULL ? host_name : gr_object_text(pod, "metadata.name"),
        .restart_policy = policy != NULL ? policy : "Always",
        .grace_s = gr_object_int(spec, "terminationGracePeriodSeconds", GRACE_S),
        .containers = gr_arena_alloc(arena, (count + 1) * sizeof(gr_container)),
        .ports = gr_arena_alloc(arena, PORTS_MAX * sizeof(uint16_t)),
        .mounts = gr_arena_alloc(arena, (count_mounts(containers) + count_mounts(inits) + 1) *
                                            sizeof(gr_volume_mount))};
    if (plan_out->containers == NULL || plan_out->mounts == NULL || plan_out->ports == NULL) {
        return no_memory(&p);
    }
    gr_status status = json_array_size(containers) > 0
                           ? GR_OK
                           : gr_fail(diag, GR_E_INVALID, "pod %s has no container", plan_out->name);
    json_array_foreach(inits, i, container)
    {
        status = status == GR_OK ? plan_container(&p, container, true) : status;
    }
    json_array_foreach(containers, i, container)
    {
        status = status == GR_OK ? plan_container(&p, container, false) : status;
    }
    if (status == GR_OK) {
        add_ports(plan_out, containers);
        status = add_mounts(&p, containers, plan_out->containers + plan_out->init_count);
    }
    return status == GR_OK ? add_mounts(&p, inits, plan_out->containers) : status;
}
