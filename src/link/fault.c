/* SPDX-License-Identifier: Apache-2.0 */
#include "link/fault.h"

#include "base/config.h"
#include "base/fail.h"
#include "base/fork.h"
#include "base/hash.h"
#include "link/address.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS = 64,
    GARBAGE_BYTES = 4096,
    /* What a fault needs and may have, as bits: the index in `parts`. */
    HAS_RANK = 1,
    HAS_STEP = 2,
    HAS_TIME = 4,
    HAS_FOR = 8,
    HAS_TIMES = 16,
    HAS_SIGNAL = 32,
    HAS_AGAIN = 64,
    HAS_SERVER = 128,
    HAS_BY = 256,
    HAS_UNTIL = 512
};

static const char *const signal_names[] = {"KILL", "SEGV", "ABRT", "BUS", "FPE", NULL};
const int gr_fault_signals[] = {SIGKILL, SIGSEGV, SIGABRT, SIGBUS, SIGFPE};

static const gr_config_field parts[] = {
    {.key = "rank", .type = GR_CONFIG_INT, .offset = offsetof(gr_fault, rank), .max = 1e6},
    {.key = "step",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_fault, step),
     .min = 1,
     .max = 1e15},
    {.key = "time", .type = GR_CONFIG_DURATION, .offset = offsetof(gr_fault, time_us), .max = 1e12},
    {.key = "for",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_fault, for_us),
     .min = 1e3,
     .max = 1e12},
    {.key = "x",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(gr_fault, times),
     .min = 1,
     .max = 1e3},
    {.key = "signal",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(gr_fault, signal),
     .choices = signal_names},
    {.key = "again", .type = GR_CONFIG_BOOL, .offset = offsetof(gr_fault, again)},
    {.key = "server", .type = GR_CONFIG_INT, .offset = offsetof(gr_fault, server), .max = 1e6},
    {.key = "by",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_fault, by_us),
     .min = 1e3,
     .max = 1e12},
    {.key = "until", .type = GR_CONFIG_TEXT, .offset = offsetof(gr_fault, until)},
};
enum { PARTS = sizeof parts / sizeof parts[0] };

/* In the order of gr_fault_kind. */
static const struct kind {
    const char *name;
    unsigned needs, one_of, may;
    const char *form;
} kinds[] = {
    {"kill", HAS_RANK, HAS_STEP | HAS_TIME, HAS_SIGNAL | HAS_AGAIN,
     "kill:rank=2@step=50, kill:rank=2@time=3s or kill:server=1@time=3s"},
    {"stop", HAS_RANK | HAS_FOR, HAS_STEP | HAS_TIME, 0, "stop:rank=1@step=80,for=3s"},
    {"slow", HAS_RANK, HAS_TIMES | HAS_BY, HAS_STEP | HAS_UNTIL | HAS_AGAIN,
     "slow:rank=3,x4 or slow:rank=3,by=100ms@step=50,until=/tmp/over"},
    {"garbage", HAS_RANK, HAS_STEP | HAS_TIME, 0, "garbage:rank=0@step=95"},
    {"cut", HAS_RANK | HAS_FOR, HAS_STEP | HAS_TIME, 0, "cut:rank=1@step=90,for=5s"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- Reading --------------------------------------------------------------------------------- */

/* "rank=2", "x4" or "again". */
static gr_status read_part(char *word, const char *where, gr_arena *arena, gr_fault *fault,
                           unsigned *given, gr_diag *diag)
{
    char *equals = strchr(word, '=');
    const char *name = word, *value;
    if (equals != NULL) {
        *equals = '\0';
        value = equals + 1;
    } else if (word[0] == 'x') {
        name = "x";
        value = word + 1;
    } else if (strcmp(word, "again") == 0) {
        value = "yes";
    } else {
        return gr_fail(diag, GR_E_INVALID, "%s: \"%s\" is no part of a fault", where, word);
    }
    for (int i = 0; i < PARTS; i++) {
        if (strcmp(parts[i].key, name) == 0) {
            if ((*given & 1U << i) != 0) {
                return gr_fail(diag, GR_E_INVALID, "%s: %s= stands there twice", where, name);
            }
            *given |= 1U << i;
            char *place = gr_arena_printf(arena, "%s: %s", where, name);
            return place == NULL ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for --chaos")
                                 : gr_config_set(&parts[i], fault, value, place, arena, diag);
        }
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s: \"%s=\" means nothing; a fault has rank= or server=, step= or time=, for=, "
                   "signal=, again, x4 or by=, and until=",
                   where, name);
}

/* Checks that the job has the process that the fault names. */
static gr_status check_who(const gr_fault *fault, int64_t workers, int64_t servers,
                           const char *where, gr_diag *diag)
{
    if (fault->server >= 0) {
        return fault->server < servers
                   ? GR_OK
                   : gr_fail(diag, GR_E_INVALID,
                             "%s: the job has %lld parameter servers, numbers from 0 on", where,
                             (long long)servers);
    }
    return fault->rank < workers
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "%s: the job has %lld workers, ranks 0 to %lld", where,
                         (long long)workers, (long long)workers - 1);
}

static gr_status read_fault(char *text, int64_t workers, int64_t servers, gr_arena *arena,
                            gr_fault *fault, gr_diag *diag)
{
    const char *where = gr_arena_printf(arena, "--chaos: in \"%s\"", text);
    if (where == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for --chaos");
    }
    char *colon = strchr(text, ':'), *rest = colon != NULL ? colon + 1 : NULL;
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    while (fault->kind < KINDS && (strlen(kinds[fault->kind].name) != length ||
                                   strncmp(kinds[fault->kind].name, text, length) != 0)) {
        fault->kind++;
    }
    if (fault->kind == KINDS) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: a fault is kill:, stop:, slow:, garbage: or cut:, as in %s", where,
                       kinds[GR_FAULT_KILL].form);
    }
    const struct kind *kind = &kinds[fault->kind];
    unsigned given = 0;
    char *word = NULL;
    fault->server = -1;
    while (rest != NULL && (word = strsep(&rest, ",@")) != NULL) {
        gr_status status = read_part(word, where, arena, fault, &given, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    unsigned one = given & kind->one_of;
    if ((given & HAS_SERVER) != 0 && one == HAS_TIME) { /* its steps are known to workers alone */
        given ^= HAS_SERVER | HAS_RANK;
    }
    bool is_complete = one != 0 && (one & (one - 1)) == 0 && (given & kind->needs) == kind->needs;
    if (!is_complete || (given & ~one & ~kind->needs & ~kind->may) != 0 ||
        ((given & HAS_AGAIN) != 0 && one == HAS_TIME)) {
        return gr_fail(diag, GR_E_INVALID, "%s: %s is written as %s", where, kind->name,
                       kind->form);
    }
    if (fault->until != NULL && fault->until[0] != '/') {
        return gr_fail(diag, GR_E_INVALID, "%s: until= is a path that begins with /", where);
    }
    return check_who(fault, workers, servers, where, diag);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t';
}

gr_status gr_chaos_parse(const char *text, int64_t workers, int64_t servers, gr_arena *arena,
                         gr_chaos *chaos_out, gr_diag *diag)
{
    char *rest = gr_arena_strdup(arena, text), *word;
    *chaos_out = (gr_chaos){.count = 0};
    if (rest == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for --chaos");
    }
    while ((word = strsep(&rest, ";")) != NULL) {
        while (is_blank(*word)) {
            word++;
        }
        size_t length = strlen(word);
        while (length > 0 && is_blank(word[length - 1])) {
            word[--length] = '\0';
        }
        if (length == 0) {
            continue;
        }
        if (chaos_out->count == GR_FAULTS_MAX) {
            return gr_fail(diag, GR_E_INVALID, "--chaos: more than %d faults", GR_FAULTS_MAX);
        }
        gr_status status =
            read_fault(word, workers, servers, arena, &chaos_out->faults[chaos_out->count++], diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* ---- Doing ----------------------------------------------------------------------------------- */

typedef bool use_socket(int fd, int domain, const void *arg);

/* Calls `use` with this socket if it is a stream that listens, or that does not. */
static bool use_if(int fd, bool listening, use_socket *use, const void *arg)
{
    int domain = 0, type = 0, listens = 0;
    socklen_t size = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && type == SOCK_STREAM &&
           (listens != 0) == listening && use(fd, domain, arg);
}

/* Of one process; `pidfd` -1: this one. How often it was true, or -errno. */
static int each_socket_of(pid_t pid, int pidfd, bool listening, use_socket *use, const void *arg)
{
    char path[64];
    int count = 0, error = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return errno == ENOENT ? 0 : -errno; /* it has ended */
    }
    while ((entry = readdir(folder)) != NULL) {
        char *end;
        int number = (int)strtol(entry->d_name, &end, 10);
        if (end == entry->d_name) {
            continue;
        }
        int fd = pidfd < 0 ? number : pidfd_getfd(pidfd, number, 0);
        if (fd >= 0) {
            count += use_if(fd, listening, use, arg);
        } else if (errno == EPERM || errno == ENOSYS) {
            error = errno;
        }
        if (pidfd >= 0 && fd >= 0) {
            close(fd);
        }
    }
    closedir(folder);
    return error != 0 ? -error : count;
}

static pid_t group_of(const char *pid_text)
{
    char *end;
    long pid = strtol(pid_text, &end, 10);
    return end != pid_text && *end == '\0' ? getpgid((pid_t)pid) : -1;
}

static int each_socket(pid_t group, bool listening, use_socket *use, const void *arg)
{
    if (group == 0) {
        return each_socket_of(getpid(), -1, listening, use, arg);
    }
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int count = 0, error = folder == NULL ? errno : 0;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (group_of(entry->d_name) != group) {
            continue;
        }
        pid_t pid = (pid_t)atoi(entry->d_name);
        int pidfd = pidfd_open(pid, 0);
        int found = pidfd < 0 ? -errno : each_socket_of(pid, pidfd, listening, use, arg);
        if (pidfd >= 0) {
            close(pidfd);
        }
        count += found > 0 ? found : 0;
        error = found < 0 && found != -ESRCH ? -found : error;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count == 0 && error != 0 ? -error : count;
}

/* Some say nothing, others more than fits into a handshake. */
static void send_and_close(int fd, const uint8_t *garbage, size_t connection)
{
    size_t size = GARBAGE_BYTES * connection / CONNECTIONS;
    (void)!send(fd, garbage, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    gr_fork_close(fd);
}

void gr_fault_send_garbage_to(const char *address)
{
    uint8_t garbage[GARBAGE_BYTES];
    gr_diag diag;
    if (gr_random_bytes(garbage, sizeof garbage, &diag) != GR_OK) {
        return;
    }
    for (size_t i = 0; i < CONNECTIONS; i++) {
        int fd;
        if (gr_address_connect(address, &fd, &diag) >= 0) {
            send_and_close(fd, garbage, i);
        }
    }
}

static bool visit_listener(int listener, int domain, const void *garbage)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    bool known = getsockname(listener, (struct sockaddr *)&at, &size) == 0;
    for (size_t i = 0; i < CONNECTIONS && known; i++) {
        int fd = socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0) {
            (void)!connect(fd, (struct sockaddr *)&at, size);
            send_and_close(fd, garbage, i);
        }
    }
    return known;
}

int gr_fault_send_garbage(pid_t group)
{
    uint8_t garbage[GARBAGE_BYTES];
    gr_diag diag;
    return gr_random_bytes(garbage, sizeof garbage, &diag) == GR_OK
               ? each_socket(group, true, visit_listener, garbage)
               : -EIO;
}

static bool is_tcp(int domain)
{
    return domain == AF_INET || domain == AF_INET6;
}

static bool deafen(int fd, int domain, const void *program)
{
    return is_tcp(domain) &&
           setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof(struct sock_fprog)) == 0;
}

static bool undeafen(int fd, int domain, const void *arg)
{
    int none = 0;
    (void)arg;
    return is_tcp(domain) && setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none) == 0;
}

int gr_fault_cut(pid_t group, bool cut)
{
    struct sock_filter drop = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {.len = 1, .filter = &drop};
    return each_socket(group, false, cut ? deafen : undeafen, &program);
}
