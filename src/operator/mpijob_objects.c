/* SPDX-License-Identifier: Apache-2.0 */

/* The objects of an MPIJob as they are to be. */

#include "operator/mpijob.h"
#include "operator/object.h"
#include "operator/parts.h"
#include "operator/pod_group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERATOR_LABEL "training.kubeflow.org/operator-name"
#define JOB_LABEL "training.kubeflow.org/job-name"
#define ROLE_LABEL "training.kubeflow.org/job-role"
#define INDEX_LABEL "training.kubeflow.org/replica-index"

#define LAUNCH_AGENT "/etc/mpi/launch_agent.sh"

static const char operator_name[] = "mpi-operator";

json_t *gr_mpijob_service(gr_mpijob *m)
{
    json_t *service = gr_parts_object(&m->look, "v1", "Service", "");
    json_t *spec = json_pack("{s:s, s:{s:s, s:s}}", "clusterIP", "None", "selector", OPERATOR_LABEL,
                             operator_name, JOB_LABEL, m->look.name);
    if (m->launcher_is_worker) { /* workers look for it before it is ready */
        gr_object_put(spec, "publishNotReadyAddresses", json_true(), &m->look.no_memory);
    }
    gr_object_put(service, "spec", spec, &m->look.no_memory);
    return service;
}

/* ---- The list of hosts ----------------------------------------------------------------------- */
bool gr_mpijob_is_worker(const gr_mpijob *m, const json_t *pod, int64_t *index_out)
{
    const json_t *labels = gr_object_at(pod, "metadata.labels");
    const char *owner = json_string_value(json_object_get(labels, OPERATOR_LABEL));
    const char *job = json_string_value(json_object_get(labels, JOB_LABEL));
    const char *role = json_string_value(json_object_get(labels, ROLE_LABEL));
    const char *index = json_string_value(json_object_get(labels, INDEX_LABEL));
    if (!gr_object_is(pod, "v1", "Pod") || owner == NULL || strcmp(owner, operator_name) != 0 ||
        job == NULL || strcmp(job, m->look.name) != 0 || role == NULL ||
        strcmp(role, "worker") != 0 || index == NULL) {
        return false;
    }
    char *end;
    *index_out = strtoll(index, &end, 10) - (m->launcher_is_worker ? 1 : 0);
    return end != index && *end == '\0';
}

typedef struct worker_host {
    int64_t index;
    const char *name;
} worker_host;

static int by_index(const void *a, const void *b)
{
    int64_t x = ((const worker_host *)a)->index, y = ((const worker_host *)b)->index;
    return (x > y) - (x < y);
}

/* The workers that run, in order of their numbers; freed by the caller. */
static worker_host *running_hosts(gr_mpijob *m, size_t *count_out)
{
    size_t i, count = 0;
    const json_t *pod;
    worker_host *hosts = malloc((json_array_size(m->look.view->objects) + 1) * sizeof *hosts);
    if (hosts == NULL) {
        m->look.no_memory = true;
        *count_out = 0;
        return NULL;
    }
    json_array_foreach(m->look.view->objects, i, pod)
    {
        const char *phase = gr_object_text(pod, "status.phase");
        worker_host *h = &hosts[count];
        h->name = gr_object_text(pod, "metadata.name");
        count += h->name != NULL && phase != NULL && strcmp(phase, "Running") == 0 &&
                 gr_mpijob_is_worker(m, pod, &h->index);
    }
    qsort(hosts, count, sizeof *hosts, by_index);
    *count_out = count;
    return hosts;
}

/* Writes the lines of the two files for one host. */
static void print_host(const gr_mpijob *m, const char *pod, FILE *hostfile, FILE *discover)
{
    const char *domain = m->look.view->cluster_domain;
    char name[1024];
    snprintf(name, sizeof name, "%s.%s.%s.svc%s%s", pod, m->look.name, m->look.space,
             domain[0] != '\0' ? "." : "", domain);
    int64_t slots = gr_object_int(m->look.job, "spec.slotsPerWorker", 1);
    if (hostfile != NULL) {
        fprintf(hostfile, "%s%s%" PRId64 "\n", name,
                strcmp(m->implementation, "OpenMPI") == 0 ? " slots=" : ":", slots);
    }
    if (discover != NULL) {
        fprintf(discover, "echo %s\n", name);
    }
}

json_t *gr_mpijob_config_map(gr_mpijob *m)
{
    char name[512];
    size_t count;
    gr_object_print hostfile, discover;
    gr_object_print_begin(&hostfile);
    gr_object_print_begin(&discover);
    worker_host *hosts = running_hosts(m, &count);
    if (hostfile.out != NULL && discover.out != NULL) {
        fputs("#!/bin/sh\n", discover.out);
        if (m->launcher_is_worker) {
            snprintf(name, sizeof name, "%s-launcher", m->look.name);
            print_host(m, name, hostfile.out, discover.out);
        }
        for (int64_t i = 0; i < m->workers; i++) {
            snprintf(name, sizeof name, "%s-worker-%" PRId64, m->look.name, i);
            print_host(m, name, hostfile.out, NULL);
        }
        for (size_t i = 0; i < count; i++) {
            print_host(m, hosts[i].name, NULL, discover.out);
        }
    }
    free(hosts);
    json_t *map = gr_parts_object(&m->look, "v1", "ConfigMap", "-config");
    json_t *data = json_pack("{s:o, s:o}", "hostfile", gr_object_print_end(&hostfile),
                             "discover_hosts.sh", gr_object_print_end(&discover));
    if (m->by_agent) {
        gr_object_put(data, "launch_agent.sh", gr_mpijob_launch_script(m), &m->look.no_memory);
    }
    gr_object_put(map, "data", data, &m->look.no_memory);
    return map;
}

json_t *gr_mpijob_secret(gr_mpijob *m)
{
    const gr_operator_view *view = m->look.view;
    json_t *secret = gr_parts_object(&m->look, "v1", "Secret", m->by_agent ? "-agent" : "-ssh");
    json_t *data = m->by_agent ? view->token(view->ssh_key_arg) : view->ssh_key(view->ssh_key_arg);
    m->no_key = data == NULL;
    gr_object_put(secret, "data", data, &m->look.no_memory);
    gr_object_put_text(secret, "type", m->by_agent ? "Opaque" : "kubernetes.io/ssh-auth",
                       &m->look.no_memory);
    return secret;
}

/* ---- Pods ------------------------------------------------------------------------------------ */
/* A copy of the template of "Launcher" or "Worker": {metadata: {labels, annotations}, spec}. */
static json_t *copy_template(gr_mpijob *m, const char *role, const char *role_label)
{
    json_t *specs = gr_object_at(m->look.job, "spec.mpiReplicaSpecs");
    json_t *given = gr_object_at(json_object_get(specs, role), "template");
    json_t *template = json_pack("{s:{}, s:o}", "metadata", "spec",
                                 json_deep_copy(json_object_get(given, "spec")));
    json_t *metadata = json_object_get(template, "metadata");
    json_t *labels = gr_object_map(metadata, "labels", &m->look.no_memory);
    json_t *given_labels = gr_object_at(given, "metadata.labels");
    json_t *annotations = gr_object_at(given, "metadata.annotations");
    m->look.no_memory |=
        json_is_object(given_labels) && json_object_update(labels, given_labels) != 0;
    gr_object_put_text(labels, OPERATOR_LABEL, operator_name, &m->look.no_memory);
    gr_object_put_text(labels, JOB_LABEL, m->look.name, &m->look.no_memory);
    gr_object_put_text(labels, ROLE_LABEL, role_label, &m->look.no_memory);
    if (json_object_size(annotations) > 0) {
        gr_object_put(metadata, "annotations", json_deep_copy(annotations), &m->look.no_memory);
    }
    return template;
}

static void join_pod_group(gr_mpijob *m, json_t *template)
{
    const char *scheduler = m->look.view->gang_scheduler;
    if (scheduler[0] != '\0') {
        gr_pod_group_join(&m->look, template);
        gr_object_put_text(json_object_get(template, "spec"), "schedulerName", scheduler,
                           &m->look.no_memory);
    }
}

static void add_ssh(gr_mpijob *m, json_t *spec, json_t *container)
{
    const char *path = gr_object_text(m->look.job, "spec.sshAuthMountPath");
    json_t *secret = json_pack("{s:o, s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]}", "secretName",
                               json_sprintf("%s-ssh", m->look.name), "items", "key",
                               "ssh-privatekey", "path", "id_rsa", "key", "ssh-publickey", "path",
                               "id_rsa.pub", "key", "ssh-publickey", "path", "authorized_keys");
    if (strcmp(path, "/root/.ssh") == 0) { /* sshd of root insists; other users must read it */
        gr_object_put(secret, "defaultMode", json_integer(0600), &m->look.no_memory);
    }
    gr_object_append(gr_object_list(spec, "volumes", &m->look.no_memory),
                     json_pack("{s:s, s:o}", "name", "ssh-auth", "secret", secret),
                     &m->look.no_memory);
    gr_parts_add_mount(&m->look, container, "ssh-auth", path);
}

/* Those of the keys of the ConfigMap, with their modes, at /etc/mpi. */
typedef struct config_file {
    const char *name;
    int mode;
} config_file;

static void add_config(gr_mpijob *m, json_t *spec, json_t *container, const config_file *files,
                       size_t count)
{
    json_t *items = json_array();
    for (size_t i = 0; i < count; i++) {
        gr_object_append(items,
                         json_pack("{s:s, s:s, s:i}", "key", files[i].name, "path", files[i].name,
                                   "mode", files[i].mode),
                         &m->look.no_memory);
    }
    json_t *config =
        json_pack("{s:o, s:o}", "name", json_sprintf("%s-config", m->look.name), "items", items);
    gr_object_append(gr_object_list(spec, "volumes", &m->look.no_memory),
                     json_pack("{s:s, s:o}", "name", "mpi-job-config", "configMap", config),
                     &m->look.no_memory);
    gr_parts_add_mount(&m->look, container, "mpi-job-config", "/etc/mpi");
}

/* What the pods of both roles have. Returns the container that works. */
static json_t *complete_pod(gr_mpijob *m, json_t *spec, const char *role, const char *host_name)
{
    json_t *container = json_array_get(json_object_get(spec, "containers"), 0);
    json_t *specs = gr_object_at(m->look.job, "spec.mpiReplicaSpecs");
    gr_object_put_text(spec, "hostname", host_name, &m->look.no_memory);
    gr_object_put_text(spec, "subdomain", m->look.name, &m->look.no_memory);
    gr_object_put_text(spec, "restartPolicy",
                       gr_object_text(json_object_get(specs, role), "restartPolicy"),
                       &m->look.no_memory);
    if (gr_object_true(spec, "hostNetwork")) {
        gr_object_put_text(spec, "dnsPolicy", "ClusterFirstWithHostNet", &m->look.no_memory);
    }
    return container;
}

static void add_sshd(gr_mpijob *m, json_t *container)
{
    if (json_array_size(json_object_get(container, "command")) == 0 &&
        json_array_size(json_object_get(container, "args")) == 0) {
        gr_object_put(container, "command", json_pack("[s, s]", "/usr/sbin/sshd", "-De"),
                      &m->look.no_memory);
    }
}

json_t *gr_mpijob_worker(gr_mpijob *m, int64_t index)
{
    char name[512];
    snprintf(name, sizeof name, "%s-worker-%" PRId64, m->look.name, index);
    json_t *template = copy_template(m, "Worker", "worker");
    json_t *labels = gr_object_at(template, "metadata.labels");
    json_t *spec = json_object_get(template, "spec");
    gr_object_put(labels, INDEX_LABEL,
                  json_sprintf("%" PRId64, index + (m->launcher_is_worker ? 1 : 0)),
                  &m->look.no_memory);
    json_t *container = complete_pod(m, spec, "Worker", name);
    json_t *dns = gr_object_map(spec, "dnsConfig", &m->look.no_memory);
    gr_object_append(gr_object_list(dns, "searches", &m->look.no_memory),
                     json_sprintf("%s.%s.svc.cluster.local", m->look.name, m->look.space),
                     &m->look.no_memory);
    gr_parts_add_env(&m->look, container, "K_MPI_JOB_ROLE", "worker");
    if (m->by_agent) { /* Open MPI looks whether the script is there on each host */
        static const config_file script = {"launch_agent.sh", 0555};
        gr_mpijob_add_agent_command(m, container);
        gr_mpijob_add_agent(m, spec, container);
        add_config(m, spec, container, &script, 1);
    } else {
        add_sshd(m, container);
        add_ssh(m, spec, container);
    }
    join_pod_group(m, template);

    json_t *metadata = gr_look_metadata(&m->look, name);
    m->look.no_memory |= json_object_update(metadata, json_object_get(template, "metadata")) != 0;
    json_t *pod = json_pack("{s:s, s:s, s:o, s:O}", "apiVersion", "v1", "kind", "Pod", "metadata",
                            metadata, "spec", spec);
    m->look.no_memory |= pod == NULL;
    json_decref(template);
    return pod;
}

typedef enum env_flow { BY_BOTH, BY_SSH, BY_AGENT } env_flow;

/* Where each implementation of MPI is told of the hosts, and of the way to them. NULL: the slots of
 * a host. By agents the launcher alone calls the workers; there Open MPI 5 is told as well, which
 * reads PRTE_*. */
static const struct {
    const char *implementation;
    env_flow flow;
    const char *name, *value;
} launcher_env[] = {
    {"OpenMPI", BY_BOTH, "OMPI_MCA_orte_keep_fqdn_hostnames", "true"},
    {"OpenMPI", BY_BOTH, "OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
    {"OpenMPI", BY_SSH, "OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"},
    {"OpenMPI", BY_BOTH, "OMPI_MCA_orte_set_default_slots", NULL},
    {"OpenMPI", BY_AGENT, "OMPI_MCA_plm_rsh_agent", LAUNCH_AGENT},
    {"OpenMPI", BY_AGENT, "OMPI_MCA_plm_rsh_no_tree_spawn", "true"},
    {"OpenMPI", BY_AGENT, "PRTE_MCA_prte_keep_fqdn_hostnames", "true"},
    {"OpenMPI", BY_AGENT, "PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile"},
    {"OpenMPI", BY_AGENT, "PRTE_MCA_prte_set_default_slots", NULL},
    {"OpenMPI", BY_AGENT, "PRTE_MCA_plm_ssh_agent", LAUNCH_AGENT},
    {"OpenMPI", BY_AGENT, "PRTE_MCA_plm_ssh_no_tree_spawn", "true"},
    {"Intel", BY_BOTH, "I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile"},
    {"Intel", BY_SSH, "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "-o ConnectionAttempts=10"},
    {"Intel", BY_AGENT, "I_MPI_HYDRA_BOOTSTRAP", "rsh"},
    {"Intel", BY_AGENT, "I_MPI_HYDRA_BOOTSTRAP_EXEC", LAUNCH_AGENT},
    {"Intel", BY_BOTH, "I_MPI_PERHOST", NULL},
    {"MPICH", BY_BOTH, "HYDRA_HOST_FILE", "/etc/mpi/hostfile"},
    {"MPICH", BY_SSH, "HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"},
    {"MPICH", BY_AGENT, "HYDRA_LAUNCHER", "rsh"},
    {"MPICH", BY_AGENT, "HYDRA_LAUNCHER_EXEC", LAUNCH_AGENT},
};

static void add_launcher_env(gr_mpijob *m, json_t *container)
{
    char slots[32];
    snprintf(slots, sizeof slots, "%" PRId64, gr_object_int(m->look.job, "spec.slotsPerWorker", 1));
    gr_parts_add_env(&m->look, container, "K_MPI_JOB_ROLE", "launcher");
    for (size_t i = 0; i < sizeof launcher_env / sizeof launcher_env[0]; i++) {
        env_flow flow = launcher_env[i].flow;
        if (strcmp(launcher_env[i].implementation, m->implementation) == 0 &&
            (flow == BY_BOTH || flow == (m->by_agent ? BY_AGENT : BY_SSH))) {
            const char *value = launcher_env[i].value;
            gr_parts_add_env(&m->look, container, launcher_env[i].name,
                             value != NULL ? value : slots);
        }
    }
    if (!m->launcher_is_worker) { /* it computes nothing: GPUs are for the workers */
        gr_parts_add_env(&m->look, container, "NVIDIA_VISIBLE_DEVICES", "");
        gr_parts_add_env(&m->look, container, "NVIDIA_DRIVER_CAPABILITIES", "");
    }
}

json_t *gr_mpijob_launcher_template(gr_mpijob *m)
{
    char name[512];
    snprintf(name, sizeof name, "%s-launcher", m->look.name);
    json_t *template = copy_template(m, "Launcher", "launcher");
    json_t *spec = json_object_get(template, "spec");
    const char *given_policy = gr_object_text(spec, "restartPolicy");
    if (given_policy != NULL && given_policy[0] != '\0') {
        gr_look_event(&m->look, "Warning", "SetPodTemplateRestartPolicy",
                      "Restart policy in pod template overridden by restart policy in replica "
                      "spec");
    }
    json_t *container = complete_pod(m, spec, "Launcher", name);
    if (m->launcher_is_worker) {
        gr_object_put_text(gr_object_at(template, "metadata.labels"), INDEX_LABEL, "0",
                           &m->look.no_memory);
    }
    add_launcher_env(m, container);
    static const config_file files[] = {
        {"hostfile", 0444}, {"discover_hosts.sh", 0555}, {"launch_agent.sh", 0555}};
    if (m->by_agent) {
        gr_mpijob_add_agent(m, spec, container);
    } else {
        add_ssh(m, spec, container);
    }
    add_config(m, spec, container, files, m->by_agent ? 3 : 2);
    join_pod_group(m, template);

    json_t *owned = gr_look_metadata(&m->look, "");
    json_t *owners = json_object_get(owned, "ownerReferences");
    if (owners != NULL) {
        gr_object_put(json_object_get(template, "metadata"), "ownerReferences", json_incref(owners),
                      &m->look.no_memory);
    }
    json_decref(owned);
    return template;
}

json_t *gr_mpijob_launcher(gr_mpijob *m)
{
    static const char *const limits[] = {"ttlSecondsAfterFinished", "activeDeadlineSeconds",
                                         "backoffLimit", NULL};
    json_t *job = gr_parts_object(&m->look, "batch/v1", "Job", "-launcher");
    json_t *spec = gr_object_map(job, "spec", &m->look.no_memory);
    json_t *policy = gr_object_at(m->look.job, "spec.runPolicy");
    for (size_t i = 0; limits[i] != NULL; i++) {
        json_t *limit = json_object_get(policy, limits[i]);
        if (json_is_integer(limit)) {
            gr_object_put(spec, limits[i], json_incref(limit), &m->look.no_memory);
        }
    }
    /* With the other one a Job begins a second launcher while the first still ends. */
    gr_object_put_text(spec, "podReplacementPolicy", "Failed", &m->look.no_memory);
    if (m->is_suspended) {
        gr_object_put(spec, "suspend", json_true(), &m->look.no_memory);
    }
    gr_object_put(spec, "template", gr_mpijob_launcher_template(m), &m->look.no_memory);
    return job;
}

/* ---- PodGroup -------------------------------------------------------------------------------- */
bool gr_mpijob_launcher_waits(const gr_mpijob *m)
{
    const char *policy = gr_object_text(m->look.job, "spec.launcherCreationPolicy");
    return m->launcher == NULL && !m->is_suspended && m->workers > 0 &&
           !(policy != NULL && strcmp(policy, "AtStartup") == 0);
}

/* What the first `min_member` pods need, those of the higher priority first; NULL: not to be
 * said. */
static json_t *min_resources(gr_mpijob *m, int64_t min_member)
{
    json_t *given = gr_object_at(m->look.job, "spec.runPolicy.schedulingPolicy.minResources");
    json_t *specs = gr_object_at(m->look.job, "spec.mpiReplicaSpecs");
    json_t *launcher = gr_object_at(specs, "Launcher.template.spec");
    json_t *worker = gr_object_at(specs, "Worker.template.spec");
    if (json_is_object(given)) {
        return json_incref(given);
    }
    if (min_member == 0) {
        return NULL;
    }
    int64_t launchers = 1, workers = m->workers;
    if (gr_mpijob_launcher_waits(m)) {
        launchers = 0;
        workers = workers > min_member ? min_member : workers;
    } else if (1 + workers > min_member) {
        if (worker == NULL) {
            return NULL;
        }
        bool is_launcher_lower =
            gr_pod_priority(&m->look, launcher) < gr_pod_priority(&m->look, worker);
        *(is_launcher_lower ? &launchers : &workers) = min_member - 1;
    }
    json_t *sums = json_object();
    m->look.no_memory |= sums == NULL;
    gr_pod_resources_add(&m->look, sums, launcher, launchers);
    gr_pod_resources_add(&m->look, sums, worker, workers);
    return sums;
}

static const char *first_of(const char *a, const char *b)
{
    return a != NULL && a[0] != '\0' ? a : b;
}

json_t *gr_mpijob_pod_group(gr_mpijob *m)
{
    const json_t *policy = gr_object_at(m->look.job, "spec.runPolicy.schedulingPolicy");
    const json_t *notes = gr_object_at(m->look.job, "metadata.annotations");
    const json_t *specs = gr_object_at(m->look.job, "spec.mpiReplicaSpecs");
    const char *noted_queue =
        json_string_value(json_object_get(notes, "scheduling.volcano.sh/queue-name"));
    gr_pod_group group = {
        .min_member = gr_object_int(policy, "minAvailable",
                                    m->workers + (gr_mpijob_launcher_waits(m) ? 0 : 1)),
        .queue = first_of(gr_object_text(policy, "queue"), noted_queue),
        .priority_class =
            first_of(gr_object_text(policy, "priorityClass"),
                     first_of(gr_object_text(specs, "Launcher.template.spec.priorityClassName"),
                              gr_object_text(specs, "Worker.template.spec.priorityClassName"))),
        .timeout_s = json_integer(gr_object_int(policy, "scheduleTimeoutSeconds", 0))};
    group.resources = min_resources(m, group.min_member);
    return gr_pod_group_object(&m->look, &group);
}
