/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/process_tree.h"

#include "base/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct process {
    pid_t pid, parent;
    bool zombie;
} process;

enum { CHILDREN_MAX = 256 };

/* Of the process that has noted them; no part of its tree. */
static struct {
    pid_t self;
    pid_t pids[CHILDREN_MAX];
    int count;
} others;

int gr_process_tree_children(pid_t *pids_out, int room)
{
    char path[64];
    int found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    while (file != NULL && found < room && fscanf(file, "%d", &pids_out[found]) == 1) {
        found++;
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

int gr_process_tree_adopt(void)
{
    if (others.self != getpid()) {
        others.self = getpid();
        others.count = gr_process_tree_children(others.pids, CHILDREN_MAX);
    }
    return prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L) == 0 ? 0 : errno;
}

/* Parent and state from /proc/<pid>/stat. The name in parentheses may hold anything, a ')' too. */
static bool read_process(const char *pid_text, process *process_out)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid_text);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) {
        return false;
    }
    text[got] = '\0';
    const char *behind_name = strrchr(text, ')');
    if (behind_name == NULL || strlen(behind_name) < 5) {
        return false;
    }
    process_out->pid = (pid_t)strtol(pid_text, NULL, 10);
    process_out->zombie = behind_name[2] == 'Z' || behind_name[2] == 'X';
    process_out->parent = (pid_t)strtol(behind_name + 4, NULL, 10);
    return true;
}

/* Every process of the machine that we can see; NULL when there is no memory or no /proc. */
static process *list_processes(size_t *count_out)
{
    DIR *folder = opendir("/proc");
    process *list = NULL;
    size_t count = 0, capacity = 0;
    if (folder == NULL) {
        return NULL;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0])) {
            continue;
        }
        if (count == capacity) {
            capacity = capacity > 0 ? capacity * 2 : 256;
            process *larger = realloc(list, capacity * sizeof *list);
            if (larger == NULL) {
                break;
            }
            list = larger;
        }
        if (read_process(entry->d_name, &list[count])) {
            count++;
        }
    }
    closedir(folder);
    *count_out = count;
    return list;
}

static bool is_member(const process *list, const size_t *members, size_t count, pid_t pid)
{
    for (size_t i = 0; i < count; i++) {
        if (list[members[i]].pid == pid) {
            return true;
        }
    }
    return false;
}

static bool is_among(const pid_t *pids, int count, pid_t pid)
{
    for (int i = 0; i < count; i++) {
        if (pids[i] == pid) {
            return true;
        }
    }
    return false;
}

static bool is_other(pid_t pid)
{
    return others.self == getpid() && is_among(others.pids, others.count, pid);
}

static int signal_tree(int signal_number, const pid_t *except, int except_count)
{
    size_t count = 0, found = 0;
    process *list = list_processes(&count);
    size_t *members = list != NULL ? malloc((count + 1) * sizeof *members) : NULL;
    pid_t self = getpid();
    bool grew = members != NULL;
    while (grew) { /* a generation each round */
        grew = false;
        for (size_t i = 0; i < count; i++) {
            if (list[i].parent <= 0 || is_other(list[i].pid) ||
                is_among(except, except_count, list[i].pid)) {
                continue;
            }
            if (list[i].parent != self && !is_member(list, members, found, list[i].parent)) {
                continue;
            }
            if (!is_member(list, members, found, list[i].pid)) {
                members[found++] = i;
                grew = true;
            }
        }
    }
    int signalled = 0;
    for (size_t i = 0; i < found; i++) {
        if (!list[members[i]].zombie && kill(list[members[i]].pid, signal_number) == 0) {
            signalled++;
        }
    }
    free(members);
    free(list);
    return signalled;
}

int gr_process_tree_signal(int signal_number)
{
    return signal_tree(signal_number, NULL, 0);
}

int gr_process_tree_clear(const pid_t *except, int except_count)
{
    pid_t children[CHILDREN_MAX];
    const int left = signal_tree(SIGKILL, except, except_count);
    const int count = gr_process_tree_children(children, CHILDREN_MAX);
    for (int i = 0; i < count; i++) {
        if (!is_other(children[i]) && !is_among(except, except_count, children[i])) {
            (void)waitpid(children[i], NULL, WNOHANG);
        }
    }
    return left;
}

void gr_process_tree_end(int64_t patience_us)
{
    (void)gr_process_tree_end_within(patience_us, GR_NEVER);
}

bool gr_process_tree_end_within(int64_t patience_us, int64_t limit_us)
{
    enum { LOOK_AGAIN_NS = 20 * 1000 * 1000 };
    const struct timespec look_again = {.tv_nsec = LOOK_AGAIN_NS};
    const int64_t begin_us = gr_now_ns() / 1000;
    bool over = false;
    sigset_t child, before;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    (void)pthread_sigmask(SIG_BLOCK, &child, &before);
    for (int quiet = 0; quiet < 2 && !over;) {
        pid_t pid;
        do {
            pid = waitpid(-1, NULL, WNOHANG);
        } while (pid > 0 || (pid < 0 && errno == EINTR));
        if (pid < 0) {
            break; /* no children: and all orphans of our process tree would be our children */
        }
        const int64_t spent_us = gr_now_ns() / 1000 - begin_us;
        const int signal_number = spent_us < patience_us ? 0 : SIGKILL;
        over = spent_us >= limit_us;
        bool left = gr_process_tree_signal(signal_number) > 0;
        quiet = left || others.count == 0 ? 0 : quiet + 1;
        /* Each death makes the next generation ours. Somebody whose parent died while we looked was
         * not found: hence the time limit. */
        (void)sigtimedwait(&child, NULL, &look_again);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !over;
}
