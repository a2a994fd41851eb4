/* SPDX-License-Identifier: Apache-2.0 */

/* A container is in one of these states:
 *
 *   waiting     until those of init before it have ended, or until `due_us` after a failure
 *   beginning   an engine's client has been started; the engine is asked until the container runs
 *   running     as a process, or without one where something stands in its place
 *   ended       for good
 *
 * Containers of init run one after the other; a sidecar among them lets the next one begin as soon
 * as it runs, and ends when the others have. */

#include "operator/local/pod_process.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"
#include "launch/environ.h"
#include "launch/process_tree.h"
#include "launch/spawn.h"
#include "operator/local/engine.h"
#include "operator/local/exec.h"
#include "operator/local/names.h"
#include "operator/local/ports.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    COMMANDS_MAX = 256,
    PAUSE_S = 10,
    PAUSE_MAX_S = 300,
    PAUSE_DOUBLINGS = 5,
    AWAIT_MS = 50,
    ASK_PAUSE_US = 200000,
    ASK_LIMIT_US = 10000000,
    REMOVE_US = 10000000,
    REMOVE_LOOK_MS = 5,
    HOSTS_BYTES_MAX = 8 << 20,
    US_PER_S = 1000000
};

typedef enum pod_state { POD_WAITING, POD_BEGINNING, POD_RUNNING, POD_HAS_ENDED } pod_state;

typedef struct pod_container {
    const gr_container *plan;
    pod_state state;
    pid_t pid; /* 0: there is no process */
    int code, restarts;
    pid_t ask_pid;  /* beginning: who asks the engine; 0: nobody at the moment */
    int answer_fd;  /* ask_pid > 0 */
    int64_t due_us; /* waiting: its start; beginning: the next question, or the end of this one */
} pod_container;

typedef struct pod_command {
    int fd; /* of the caller; -1: none */
    pid_t pid;
} pod_command;

typedef struct pod_process {
    const gr_pod_start *start;
    pod_container *containers;
    size_t count;
    pod_command commands[COMMANDS_MAX];
    int signal_fd, listen_fd;
    int ports_fd; /* -1: none */
    bool is_ending;
    int64_t end_us; /* is_ending: then all is killed */
} pod_process;

static int64_t now_us(void)
{
    return gr_now_ns() / 1000;
}

static void send_word(const pod_process *p, gr_pod_word word, const pod_container *c, int value,
                      const char *text)
{
    gr_pod_message message = {
        .word = (int)word, .container = c != NULL ? (int)(c - p->containers) : -1, .value = value};
    snprintf(message.text, sizeof message.text, "%s", text);
    (void)!send(p->start->control_fd, &message, sizeof message, MSG_NOSIGNAL);
}

/* ---- Start ----------------------------------------------------------------------------------- */
/* Runs it with the container's environment, in its working directory. */
static pid_t spawn(const gr_container *container, char *const *argv, const int fds[3],
                   char *why_out, size_t why_bytes)
{
    gr_spawn_error error;
    gr_diag diag = {0};
    const char *path = gr_environ_find(container->environment, "PATH");
    if (path != NULL) {
        (void)setenv("PATH", path, 1); /* argv[0] is looked up there */
    }
    if (container->folder != NULL && chdir(container->folder) != 0) {
        snprintf(why_out, why_bytes, "its workingDir %.200s: %s", container->folder,
                 strerror(errno));
        return -1;
    }
    const gr_spawn way = {.argv = argv,
                          .environment = container->environment,
                          .stdin_fd = fds[0],
                          .stdout_fd = fds[1],
                          .stderr_fd = fds[2]};
    pid_t pid = gr_spawn_start(&way, &error);
    if (pid < 0) {
        (void)gr_spawn_fail(argv[0], &error, &diag);
        snprintf(why_out, why_bytes, "%s", diag.text);
    }
    return pid;
}

static void end_container(pod_process *p, pod_container *c, int code);

static void refuse(pod_process *p, pod_container *c, const char *why)
{
    send_word(p, GR_POD_REFUSED, c, GR_CONTAINER_START_ERROR, why);
    end_container(p, c, GR_CONTAINER_START_ERROR);
}

static void start_container(pod_process *p, pod_container *c, const char *home)
{
    char why[GR_POD_TEXT_BYTES];
    size_t index = (size_t)(c - p->containers);
    c->state = POD_RUNNING;
    c->pid = 0;
    if (c->plan->way == GR_CONTAINER_IMPOSSIBLE) {
        refuse(p, c,
               "it has no command, and that of its image is not known here; write command into "
               "the manifest");
        return;
    }
    if (c->plan->way == GR_CONTAINER_COMMAND) {
        int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        const int fds[3] = {null_fd, p->start->output_fds[2 * index],
                            p->start->output_fds[2 * index + 1]};
        (void)!chdir(home);
        c->pid = spawn(c->plan, c->plan->argv, fds, why, sizeof why);
        close(null_fd);
        if (c->pid < 0) {
            c->pid = 0;
            refuse(p, c, why);
            return;
        }
    }
    if (c->plan->engine != NULL && c->pid > 0) {
        c->state = POD_BEGINNING;
        c->due_us = now_us() + ASK_PAUSE_US;
        return;
    }
    send_word(p, GR_POD_BEGUN, c, 0, "");
    if (c->plan->way == GR_CONTAINER_DELIVER) {
        end_container(p, c, 0);
    }
}

/* Asks the engine about the containers that begin; kills who has asked in vain. */
static void ask_engine(pod_process *p)
{
    int64_t now = now_us();
    for (size_t i = 0; i < p->count; i++) {
        pod_container *c = &p->containers[i];
        if (c->state != POD_BEGINNING || c->due_us > now) {
            continue;
        }
        if (c->ask_pid > 0) {
            (void)kill(c->ask_pid, SIGKILL);
            c->due_us = GR_NEVER; /* until it is reaped */
            continue;
        }
        pid_t pid = gr_engine_ask(c->plan, &c->answer_fd);
        c->ask_pid = pid > 0 ? pid : 0;
        c->due_us = now + (pid > 0 ? ASK_LIMIT_US : ASK_PAUSE_US);
    }
}

/* Who asked has ended. */
static void take_answer(pod_process *p, pod_container *c)
{
    bool runs = gr_engine_says_so(c->answer_fd);
    c->ask_pid = 0;
    if (c->state == POD_BEGINNING && runs) {
        c->state = POD_RUNNING;
        send_word(p, GR_POD_BEGUN, c, 0, "");
    } else if (c->state == POD_BEGINNING) {
        c->due_us = now_us() + ASK_PAUSE_US;
    }
}

static bool is_restarted(const pod_process *p, const pod_container *c, int code)
{
    const char *policy = p->start->plan->restart_policy;
    if (p->is_ending) {
        return false;
    }
    if (c->plan->is_sidecar) {
        return true;
    }
    return strcmp(policy, "Always") == 0 ? !c->plan->is_init || code != 0
                                         : strcmp(policy, "OnFailure") == 0 && code != 0;
}

/* At once the first time, then after a pause that doubles. */
static void end_container(pod_process *p, pod_container *c, int code)
{
    c->pid = 0;
    c->code = code;
    if (!is_restarted(p, c, code)) {
        c->state = POD_HAS_ENDED;
        return;
    }
    int doublings = c->restarts - 1 < PAUSE_DOUBLINGS ? c->restarts - 1 : PAUSE_DOUBLINGS;
    int pause_s = c->restarts > 0 ? PAUSE_S << doublings : 0;
    pause_s = pause_s < PAUSE_MAX_S ? pause_s : PAUSE_MAX_S;
    c->restarts++;
    c->state = POD_WAITING;
    c->due_us = now_us() + (int64_t)pause_s * US_PER_S;
    send_word(p, GR_POD_AGAIN, c, pause_s, "");
}

/* Returns true if the pods' own /etc/hosts has an address of the name. */
static bool is_known(const pod_process *p, const char *name)
{
    FILE *file = fopen(p->start->room->hosts, "re");
    char *line = NULL, *rest;
    size_t size = 0;
    bool found = false;
    while (file != NULL && !found && getline(&line, &size, file) > 0) {
        for (char *word = strtok_r(line, " \t\n", &rest); word != NULL && !found;
             word = strtok_r(NULL, " \t\n", &rest)) {
            found = word[0] != '#' && strcmp(word, name) == 0;
        }
    }
    free(line);
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

/* Returns true if an init container has failed for good. */
static bool has_failed_init(const pod_process *p)
{
    bool failed = false;
    for (size_t i = 0; i < p->count; i++) {
        const pod_container *c = &p->containers[i];
        failed |=
            c->plan->is_init && !c->plan->is_sidecar && c->state == POD_HAS_ENDED && c->code != 0;
    }
    return failed;
}

/* Starts what is due. True: something has begun or ended, which may let others begin. */
static bool advance(pod_process *p, const char *home)
{
    bool has_moved = false;
    int64_t now = now_us();
    for (size_t i = 0; i < p->count && !p->is_ending && !has_failed_init(p); i++) {
        pod_container *c = &p->containers[i];
        if (c->state == POD_WAITING && c->due_us <= now) {
            start_container(p, c, home);
            has_moved = true;
        }
        if (c->state == POD_RUNNING && c->plan->way == GR_CONTAINER_AWAIT &&
            is_known(p, c->plan->awaited)) {
            send_word(p, GR_POD_ENDED, c, 0, "");
            end_container(p, c, 0);
            has_moved = true;
        }
        bool holds_up = c->plan->is_sidecar ? c->state < POD_RUNNING : c->state != POD_HAS_ENDED;
        if (c->plan->is_init && holds_up) {
            break;
        }
    }
    return has_moved;
}

/* ---- End ------------------------------------------------------------------------------------- */
static int code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void reap(pod_process *p)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (size_t i = 0; i < p->count; i++) {
            pod_container *c = &p->containers[i];
            if (c->ask_pid == pid) {
                take_answer(p, c);
            }
            if (c->pid == pid) {
                if (c->state == POD_BEGINNING) { /* it has run, or the engine has said why not */
                    send_word(p, GR_POD_BEGUN, c, 0, "");
                }
                send_word(p, GR_POD_ENDED, c, code_of(status), "");
                end_container(p, c, code_of(status));
            }
        }
        for (size_t i = 0; i < COMMANDS_MAX; i++) {
            if (p->commands[i].fd >= 0 && p->commands[i].pid == pid) {
                gr_exec_answer(p->commands[i].fd, code_of(status));
                close(p->commands[i].fd);
                p->commands[i] = (pod_command){.fd = -1};
            }
        }
    }
}

/* Returns true if the containers that count have ended for good. */
static bool is_over(const pod_process *p)
{
    bool all = true, starts_none = p->is_ending || has_failed_init(p);
    for (size_t i = 0; i < p->count; i++) {
        const pod_container *c = &p->containers[i];
        bool is_counted = p->is_ending || !c->plan->is_sidecar;
        all &= !is_counted || c->state == POD_HAS_ENDED || (starts_none && c->state == POD_WAITING);
    }
    return all;
}

static void begin_end(pod_process *p, int64_t grace_s)
{
    int64_t end_us = now_us() + grace_s * US_PER_S;
    if (p->is_ending) { /* asked again: only sooner */
        p->end_us = gr_earlier_us(p->end_us, end_us);
        return;
    }
    p->end_us = end_us;
    p->is_ending = true;
    for (size_t i = 0; i < p->count; i++) {
        pod_container *c = &p->containers[i];
        if (c->pid > 0) {
            (void)kill(-c->pid, SIGTERM);
        } else if (c->state == POD_RUNNING) { /* what only stands there for something */
            send_word(p, GR_POD_ENDED, c, 0, "");
            end_container(p, c, 0);
        }
    }
    for (size_t i = 0; i < COMMANDS_MAX; i++) {
        if (p->commands[i].pid > 0) {
            (void)kill(-p->commands[i].pid, SIGTERM);
        }
    }
}

static bool has_failed(const pod_process *p)
{
    bool failed = has_failed_init(p);
    for (size_t i = 0; i < p->count; i++) {
        const pod_container *c = &p->containers[i];
        failed |= !c->plan->is_init && (c->state != POD_HAS_ENDED || c->code != 0);
    }
    return failed;
}

/* False: nobody has asked for a port within the time. */
static bool answer_ports(const pod_process *p, int timeout_ms)
{
    const gr_pod_ports ports = {.address = p->start->address,
                                .ports = p->start->plan->ports,
                                .count = p->start->plan->port_count};
    struct pollfd watched = {.fd = p->ports_fd, .events = POLLIN};
    bool asked = poll(&watched, 1, timeout_ms) > 0 && (watched.revents & POLLIN) != 0;
    if (asked) {
        gr_ports_answer(&ports, p->ports_fd);
    }
    return asked;
}

/* Containers that an engine still runs: they may be no processes of ours, and the engine has more
 * of them than these. Its client asks for ports as containers do. */
static void remove_contained(const pod_process *p)
{
    int64_t end_us = now_us() + REMOVE_US;
    for (size_t i = 0; i < p->count; i++) {
        bool runs = p->containers[i].pid > 0 && p->containers[i].plan->engine != NULL;
        pid_t pid = runs ? gr_engine_remove(p->containers[i].plan) : -1;
        while (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0 && now_us() < end_us) {
            (void)answer_ports(p, REMOVE_LOOK_MS);
        }
    }
}

/* What the containers have left behind, sidecars as well, has a second at most. */
_Noreturn static void finish(pod_process *p)
{
    bool failed = has_failed(p);
    remove_contained(p);
    int64_t left_us = p->is_ending ? p->end_us - now_us() : US_PER_S;
    (void)gr_process_tree_signal(SIGTERM);
    gr_process_tree_end(left_us < 0 ? 0 : left_us < US_PER_S ? left_us : US_PER_S);
    send_word(p, GR_POD_OVER, NULL, failed, "");
    _exit(0);
}

/* ---- Commands that come ---------------------------------------------------------------------- */
static const gr_container *container_of(const pod_process *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++) {
        if (name[0] == '\0' ? !p->containers[i].plan->is_init
                            : strcmp(p->containers[i].plan->name, name) == 0) {
            return p->containers[i].plan;
        }
    }
    return NULL;
}

static pod_command *free_command(pod_process *p)
{
    for (size_t i = 0; i < COMMANDS_MAX; i++) {
        if (p->commands[i].fd < 0) {
            return &p->commands[i];
        }
    }
    return NULL;
}

static void accept_command(pod_process *p)
{
    int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    pod_command *command = fd >= 0 ? free_command(p) : NULL;
    if (command != NULL) {
        *command = (pod_command){.fd = fd};
    } else if (fd >= 0) {
        close(fd);
    }
}

static pid_t spawn_command(const gr_container *container, const gr_exec_order *request,
                           char *why_out, size_t why_bytes)
{
    char **argv = container->engine != NULL ? gr_engine_exec(container, request->argv) : NULL;
    if (container->engine != NULL && argv == NULL) {
        snprintf(why_out, why_bytes, "no memory for a command");
        return -1;
    }
    pid_t pid =
        spawn(container, argv != NULL ? argv : request->argv, request->fds, why_out, why_bytes);
    free(argv);
    return pid;
}

/* The command, or the end of who gave it: then it ends as well. */
static void receive_command(pod_process *p, pod_command *command, const char *home)
{
    gr_exec_order request;
    char why[GR_POD_TEXT_BYTES] = "there is no such container";
    if (command->pid == 0 && gr_exec_receive(command->fd, &request)) {
        const gr_container *container = container_of(p, request.container);
        (void)!chdir(home);
        pid_t pid = container != NULL && !p->is_ending
                        ? spawn_command(container, &request, why, sizeof why)
                        : -1;
        if (pid < 0) {
            dprintf(request.fds[2], "%s\n", why);
            gr_exec_answer(command->fd, 127);
        }
        gr_exec_order_fini(&request);
        command->pid = pid;
        if (pid > 0) {
            return;
        }
    } else if (command->pid > 0) {
        (void)kill(-command->pid, SIGTERM);
    }
    close(command->fd);
    *command = (pod_command){.fd = -1};
}

/* ---- The loop -------------------------------------------------------------------------------- */
/* False: the cluster is gone. */
static bool take_orders(pod_process *p)
{
    gr_pod_message message;
    ssize_t got = recv(p->start->control_fd, &message, sizeof message, MSG_DONTWAIT);
    if (got == (ssize_t)sizeof message) {
        begin_end(p, message.value);
    }
    return got != 0 && !(got < 0 && errno != EAGAIN && errno != EINTR);
}

static int timeout_ms(const pod_process *p)
{
    int64_t now = now_us(), next_us = p->is_ending ? p->end_us : GR_NEVER;
    bool awaits = false;
    for (size_t i = 0; i < p->count; i++) {
        const pod_container *c = &p->containers[i];
        awaits |= c->state == POD_RUNNING && c->plan->way == GR_CONTAINER_AWAIT;
        if (c->state == POD_BEGINNING || (c->state == POD_WAITING && c->due_us > now)) {
            next_us = gr_earlier_us(next_us, c->due_us);
        }
    }
    next_us = awaits ? gr_earlier_us(next_us, now + AWAIT_MS * 1000) : next_us;
    return next_us == GR_NEVER ? -1 : next_us <= now ? 0 : (int)((next_us - now) / 1000 + 1);
}

/* Commands that come in the meantime wait: the engine does not know the container yet. */
static bool is_beginning(const pod_process *p)
{
    bool any = false;
    for (size_t i = 0; i < p->count; i++) {
        any |= p->containers[i].state == POD_BEGINNING;
    }
    return any;
}

/* False: the cluster is gone. */
static bool wait_for_something(pod_process *p, const char *home)
{
    enum { FIRST = 4 };
    struct pollfd watched[FIRST + COMMANDS_MAX] = {
        {.fd = p->start->control_fd, .events = POLLIN},
        {.fd = p->signal_fd, .events = POLLIN},
        {.fd = p->listen_fd, .events = POLLIN},
        {.fd = p->ports_fd, .events = POLLIN},
    };
    bool begins = is_beginning(p);
    for (size_t i = 0; i < COMMANDS_MAX; i++) {
        const pod_command *command = &p->commands[i];
        bool waits = command->pid == 0 && begins;
        watched[FIRST + i] = (struct pollfd){.fd = waits ? -1 : command->fd, .events = POLLIN};
    }
    if (poll(watched, FIRST + COMMANDS_MAX, timeout_ms(p)) < 0) {
        return true;
    }
    struct signalfd_siginfo info;
    while (watched[1].revents != 0 && read(p->signal_fd, &info, sizeof info) > 0) {
    }
    reap(p);
    for (size_t i = 0; i < COMMANDS_MAX; i++) {
        if (watched[FIRST + i].revents != 0 && p->commands[i].fd == watched[FIRST + i].fd) {
            receive_command(p, &p->commands[i], home);
        }
    }
    if (watched[2].revents != 0) {
        accept_command(p);
    }
    if (watched[3].revents != 0) {
        (void)answer_ports(p, 0);
    }
    return watched[0].revents == 0 || take_orders(p);
}

static void watch_children(pod_process *p)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &child, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    p->signal_fd = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, "gradus-pod", 0L, 0L, 0L);
    (void)gr_process_tree_adopt();
}

/* Without namespaces pods find each other by addresses in the place of names, at least. */
static void replace_names(const pod_process *p)
{
    char *hosts;
    size_t size_bytes;
    if (gr_file_read(p->start->room->hosts, HOSTS_BYTES_MAX, &hosts, &size_bytes, NULL) != GR_OK) {
        return;
    }
    for (size_t i = 0; i < p->count; i++) {
        for (char **entry = p->containers[i].plan->environment; *entry != NULL; entry++) {
            bool is_inherited = false;
            for (char *const *own = environ; *own != NULL; own++) {
                is_inherited |= strcmp(*own, *entry) == 0;
            }
            char *replaced = is_inherited ? NULL : gr_names_replace(hosts, *entry);
            *entry = replaced != NULL ? replaced : *entry; /* for the life of this process */
        }
    }
    free(hosts);
}

_Noreturn void gr_pod_process_run(const gr_pod_start *start)
{
    char home[4096] = "/";
    gr_diag diag = {0};
    pod_process p = {.start = start,
                     .count = start->plan->container_count,
                     .containers = calloc(start->plan->container_count, sizeof *p.containers),
                     .listen_fd = -1,
                     .ports_fd = -1};
    (void)!getcwd(home, sizeof home);
    watch_children(&p);
    for (size_t i = 0; i < COMMANDS_MAX; i++) {
        p.commands[i].fd = -1;
    }
    for (size_t i = 0; i < p.count && p.containers != NULL; i++) {
        p.containers[i].plan = &start->plan->containers[i];
    }
    gr_status status = p.containers == NULL  ? gr_fail(&diag, GR_E_NO_MEMORY, "no memory")
                       : start->is_contained ? GR_OK
                                             : gr_room_enter(start->plan, start->room, &diag);
    if (status == GR_E_UNSUPPORTED) {
        send_word(&p, GR_POD_PLAIN, NULL, 0, diag.text);
        replace_names(&p);
    } else if (status != GR_OK) {
        gr_pod_message message = {.word = GR_POD_REFUSED, .value = GR_CONTAINER_START_ERROR};
        snprintf(message.text, sizeof message.text, "%s", diag.text);
        (void)!send(start->control_fd, &message, sizeof message, MSG_NOSIGNAL);
        send_word(&p, GR_POD_OVER, NULL, 1, "");
        _exit(0);
    }
    p.listen_fd =
        gr_exec_listen(start->exec, start->plan->space, start->plan->name, start->plan->host_name);
    /* Who is not root gives up rights for it that an engine needs. */
    p.ports_fd = start->plan->port_count > 0 && (!start->is_contained || geteuid() == 0)
                     ? gr_ports_watch()
                     : -1;
    for (;;) {
        ask_engine(&p);
        while (advance(&p, home)) {
        }
        if (is_over(&p) || (p.is_ending && now_us() >= p.end_us)) {
            finish(&p);
        }
        if (!wait_for_something(&p, home)) {
            remove_contained(&p);
            gr_process_tree_end(0);
            _exit(1);
        }
    }
}
