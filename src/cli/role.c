/* SPDX-License-Identifier: Apache-2.0 */

/* What `gradus run --roles` starts in the place of each task's command: it takes a port, meets the
 * other tasks as the ranks of a group, puts what they say into TF_CONFIG, and becomes the command.
 */

#include "cli/role.h"

#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/cli.h"
#include "launch/launch.h"
#include "launch/spawn.h"
#include "link/address.h"

#include <gradus/comm.h>

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROLES_TEXT_BYTES = 200, PORT_BYTES = 8 };

/* ---- Roles ----------------------------------------------------------------------------------- */

static const char *const names[] = {"chief", "master", "worker", "ps", "evaluator", NULL};

const char *gr_role_name(gr_role role)
{
    return names[role];
}

int gr_roles_first(const gr_roles *roles, gr_role role)
{
    int first = 0;
    for (int before = 0; before < (int)role; before++) {
        first += roles->counts[before];
    }
    return first;
}

static gr_status parse_one(char *entry, gr_roles *roles, gr_diag *diag)
{
    int role = 0;
    int64_t count = 1;
    char *equals = strchr(entry, '=');
    if (equals != NULL) {
        *equals = '\0';
    }
    while (names[role] != NULL && strcmp(names[role], entry) != 0) {
        role++;
    }
    if (names[role] == NULL) {
        char list[ROLES_TEXT_BYTES], quoted[GR_VALUE_BYTES];
        gr_text_list(list, sizeof list, names);
        gr_text_quote(entry, quoted);
        return gr_fail(diag, GR_E_INVALID, "run: --roles: %s is no role; roles are %s", quoted,
                       list);
    }
    int64_t most = role == GR_ROLE_WORKER || role == GR_ROLE_PS ? GR_LAUNCH_WORKERS_MAX : 1;
    if (equals != NULL &&
        (gr_number_int(equals + 1, &count) != GR_NUMBER_OK || count < 1 || count > most)) {
        return gr_fail(diag, GR_E_INVALID, "run: --roles: %s=%s; a job has %s%d of that role",
                       entry, equals + 1, most > 1 ? "1 to " : "", (int)most);
    }
    if (roles->counts[role] > 0) {
        return gr_fail(diag, GR_E_INVALID, "run: --roles: %s stands there twice", entry);
    }
    roles->counts[role] = (int)count;
    return GR_OK;
}

gr_status gr_roles_parse(const char *text, gr_roles *roles_out, gr_diag *diag)
{
    gr_roles roles = {.tasks = 0};
    char copy[ROLES_TEXT_BYTES], *rest = NULL;
    if (strlen(text) >= sizeof copy) {
        return gr_fail(diag, GR_E_INVALID, "run: --roles has %zu characters; at most %zu",
                       strlen(text), sizeof copy - 1);
    }
    memcpy(copy, text, strlen(text) + 1);
    for (char *entry = strtok_r(copy, ",", &rest); entry != NULL;
         entry = strtok_r(NULL, ",", &rest)) {
        gr_status status = parse_one(entry, &roles, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    for (int role = 0; role < GR_ROLE_COUNT; role++) {
        roles.tasks += roles.counts[role];
    }
    if (roles.tasks == roles.counts[GR_ROLE_PS] + roles.counts[GR_ROLE_EVALUATOR]) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --roles names no chief and no worker; the job ends when these are "
                       "through");
    }
    if (roles.counts[GR_ROLE_CHIEF] > 0 && roles.counts[GR_ROLE_MASTER] > 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --roles: chief and master are two names of one task; leave one out");
    }
    *roles_out = roles;
    return GR_OK;
}

/* ---- Where a task is ------------------------------------------------------------------------- */

/* What the tasks tell each other; texts, the same on every machine. */
typedef struct task {
    char own[GR_HOST_BYTES]; /* by this address it reaches the coordinator; "": it is on that host
                                */
    char launcher[GR_HOST_BYTES]; /* and by this one the coordinator's host is reached from there */
    char port[PORT_BYTES];
} task;

/* The socket goes along into the command. */
static gr_status take_port(char text_out[PORT_BYTES], gr_diag *diag)
{
    gr_ports ports;
    uint16_t port = 0;
    int fd;
    gr_status status = gr_ports_parse(getenv("GRADUS_PORTS"), &ports, diag);
    if (status == GR_OK) {
        status = gr_address_reserve(ports, &fd, &port, diag);
    }
    snprintf(text_out, PORT_BYTES, "%d", port);
    return status;
}

/* "tcp:host:port" or "tcp:[host]:port"; false: no address of a network. */
static bool split_address(const char *address, char host_out[GR_HOST_BYTES],
                          char port_out[PORT_BYTES])
{
    static const char mark[] = "tcp:";
    const char *port;
    if (address == NULL || strncmp(address, mark, sizeof mark - 1) != 0 ||
        !gr_address_split(address + sizeof mark - 1, host_out, &port)) {
        return false;
    }
    snprintf(port_out, PORT_BYTES, "%s", port);
    return host_out[0] != '\0';
}

static bool is_loopback(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET6
               ? IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr)
               : ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* By which of its addresses this host reaches the coordinator: no packet is sent for that. */
static void find_own(task *of, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (getaddrinfo(of->launcher, port, &hints, &found) != 0) {
        return;
    }
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0 && !is_loopback(&own)) {
        (void)getnameinfo((struct sockaddr *)&own, size, of->own, sizeof of->own, NULL, 0,
                          NI_NUMERICHOST);
    }
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(found);
}

static void describe(const char *coordinator, task *of)
{
    char port[PORT_BYTES];
    if (split_address(coordinator, of->launcher, port)) {
        find_own(of, port);
    }
    if (of->own[0] == '\0') {
        of->launcher[0] = '\0'; /* others may know a better one than loopback */
    }
}

/* How others reach task `rank`. */
static const char *host_of(const task *tasks, int count, int rank)
{
    const char *host = tasks[rank].own;
    for (int other = 0; other < count && host[0] == '\0'; other++) {
        host = tasks[other].launcher;
    }
    return host[0] != '\0' ? host : "127.0.0.1";
}

/* ---- TF_CONFIG ------------------------------------------------------------------------------- */

static json_t *list_role(const gr_roles *roles, const task *tasks, gr_role role)
{
    json_t *list = json_array();
    int first = gr_roles_first(roles, role);
    for (int i = 0; i < roles->counts[role]; i++) {
        const char *host = host_of(tasks, roles->tasks, first + i);
        bool colon = strchr(host, ':') != NULL;
        (void)json_array_append_new(list, json_sprintf("%s%s%s:%s", colon ? "[" : "", host,
                                                       colon ? "]" : "", tasks[first + i].port));
    }
    return list;
}

/* Heap memory; NULL: there is none. The evaluator is no part of the cluster. */
static char *make_config(const gr_roles *roles, const task *tasks, int rank)
{
    json_t *cluster = json_object();
    int of = 0;
    for (int role = 0; role < GR_ROLE_COUNT; role++) {
        if (roles->counts[role] > 0 && role != GR_ROLE_EVALUATOR) {
            (void)json_object_set_new(cluster, names[role], list_role(roles, tasks, (gr_role)role));
        }
        of = roles->counts[role] > 0 && rank >= gr_roles_first(roles, (gr_role)role) ? role : of;
    }
    json_t *config = json_pack("{s:o, s:{s:s, s:i}}", "cluster", cluster, "task", "type", names[of],
                               "index", rank - gr_roles_first(roles, (gr_role)of));
    char *text = config != NULL ? json_dumps(config, JSON_COMPACT) : NULL;
    json_decref(config);
    return text;
}

/* ---- The verb -------------------------------------------------------------------------------- */

static gr_status meet(const gr_roles *roles, gr_comm *comm, const char *coordinator, gr_diag *diag)
{
    int rank = gr_comm_rank(comm);
    if (gr_comm_size(comm) != roles->tasks) {
        return gr_fail(diag, GR_E_INVALID, "the roles are %d tasks, and there are %d workers",
                       roles->tasks, gr_comm_size(comm));
    }
    task *tasks = calloc((size_t)roles->tasks, sizeof *tasks);
    char *config = NULL;
    if (tasks == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d tasks", roles->tasks);
    }
    describe(coordinator, &tasks[rank]);
    gr_status status = take_port(tasks[rank].port, diag);
    if (status == GR_OK) {
        status = gr_allgather(comm, tasks, sizeof *tasks, GR_U8);
        if (status != GR_OK) {
            *diag = *gr_comm_diag(comm);
        }
    }
    if (status == GR_OK) {
        for (int i = 0; i < roles->tasks; i++) { /* a peer's words */
            tasks[i].own[GR_HOST_BYTES - 1] = tasks[i].launcher[GR_HOST_BYTES - 1] = '\0';
            tasks[i].port[PORT_BYTES - 1] = '\0';
        }
        config = make_config(roles, tasks, rank);
        if (config == NULL || setenv("TF_CONFIG", config, 1) != 0) {
            status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for TF_CONFIG");
        }
    }
    free(config);
    free(tasks);
    return status;
}

int gr_verb_role(int argc, char *const *argv)
{
    gr_diag diag = {0};
    gr_roles roles;
    gr_comm *comm = NULL;
    if (argc < 3) {
        puts("usage: gradus role ROLES COMMAND [ARGUMENTS]\n\n"
             "What gradus run --roles starts for each task: meets the others, sets TF_CONFIG, and\n"
             "runs the command.");
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? gr_cli_flush() : GR_EXIT_INPUT;
    }
    const char *named = getenv("GRADUS_COORDINATOR");
    char *coordinator = named != NULL ? strdup(named) : NULL;
    gr_status status = gr_roles_parse(argv[1], &roles, &diag);
    if (status == GR_OK) {
        status = gr_comm_create(NULL, &comm, &diag);
    }
    if (status == GR_OK) {
        status = meet(&roles, comm, coordinator, &diag);
    }
    gr_comm_destroy(comm);
    free(coordinator);
    if (status != GR_OK) {
        int code = gr_cli_refuse(status, &diag);
        return gr_fault_of_peer(status) ? GR_LAUNCH_EXIT_PEER : code;
    }
    (void)execvp(argv[2], argv + 2);
    const gr_spawn_error error = {.step = GR_SPAWN_EXEC, .error = errno};
    return gr_cli_refuse(gr_spawn_fail(argv[2], &error, &diag), &diag);
}
