/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/discover.h"

#include "base/clock.h"
#include "base/fail.h"
#include "launch/signals.h"
#include "launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_BYTES = 200 };

/* A file in memory in place of a pipe: nobody need read it while the script runs, and it cannot
 * grow. */
static int make_file(void)
{
    int fd = memfd_create("gradus-hosts", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, GR_DISCOVERY_OUTPUT_BYTES) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void close_all(gr_discovery *discovery)
{
    int *const fds[] = {&discovery->pid_fd, &discovery->out_fd, &discovery->err_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] > 0) {
            close(*fds[i]);
        }
        *fds[i] = 0;
    }
    discovery->pid = 0;
}

gr_status gr_discovery_begin(gr_discovery *discovery, gr_diag *diag)
{
    char *argv[] = {(char *)(uintptr_t)discovery->script, NULL};
    gr_spawn_error error = {0};
    gr_status status = GR_OK;
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    discovery->out_fd = make_file();
    discovery->err_fd = make_file();
    gr_spawn spawn = {.argv = argv,
                      .environment = discovery->environment,
                      .stdin_fd = null_fd,
                      .stdout_fd = discovery->out_fd,
                      .stderr_fd = discovery->err_fd};
    if (null_fd < 0 || discovery->out_fd < 0 || discovery->err_fd < 0) {
        status = gr_fail(diag, GR_E_IO, "--host-discovery-script: no descriptors are left: %s",
                         strerror(errno));
    } else {
        discovery->pid = gr_spawn_start(&spawn, &error);
        if (discovery->pid < 0) {
            discovery->pid = 0;
            status = gr_spawn_fail(discovery->script, &error, diag);
        }
    }
    if (null_fd >= 0) {
        close(null_fd);
    }
    if (status == GR_OK) {
        discovery->pid_fd = (int)syscall(SYS_pidfd_open, discovery->pid, 0);
        if (discovery->pid_fd < 0) {
            status = gr_fail(diag, GR_E_IO, "%s cannot be watched: %s", discovery->script,
                             strerror(errno));
        }
    }
    if (status != GR_OK) {
        gr_discovery_stop(discovery);
    }
    return status;
}

/* What has been written to a file; as many bytes as fit are text. */
static size_t read_file(int fd, char text[GR_DISCOVERY_OUTPUT_BYTES + 1])
{
    ssize_t got = pread(fd, text, GR_DISCOVERY_OUTPUT_BYTES, 0);
    text[got > 0 ? got : 0] = '\0';
    return strlen(text);
}

/* The last line that is not empty, without anything but plain characters. */
static void last_line(const char *text, size_t size, char line_out[LINE_BYTES])
{
    while (size > 0 && (unsigned char)text[size - 1] <= ' ') {
        size--;
    }
    size_t first = size, used = 0;
    while (first > 0 && text[first - 1] != '\n') {
        first--;
    }
    for (size_t i = first; i < size && used + 1 < LINE_BYTES; i++) {
        line_out[used++] = text[i] >= ' ' && text[i] < 0x7f ? text[i] : '?';
    }
    line_out[used] = '\0';
}

static gr_status judge(const gr_discovery *discovery, int wait_status, bool late, const char *text,
                       size_t size, gr_diag *diag)
{
    char said[GR_DISCOVERY_OUTPUT_BYTES + 1], line[LINE_BYTES];
    if (!late && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
        return GR_OK;
    }
    last_line(said, read_file(discovery->err_fd, said), line);
    if (line[0] == '\0') {
        last_line(text, size, line);
    }
    const char *between = line[0] != '\0' ? "; its last line: " : "";
    if (late) {
        return gr_fail(diag, GR_E_TIMEOUT, "%s has not ended in time and was killed%s%s",
                       discovery->script, between, line);
    }
    return gr_fail(diag, GR_E_INVALID, "%s ended with %s %d%s%s", discovery->script,
                   WIFEXITED(wait_status) ? "exit code" : "signal",
                   WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status),
                   between, line);
}

gr_status gr_discovery_end(gr_discovery *discovery, bool late, gr_arena *arena,
                           gr_host_list *hosts_out, gr_diag *diag)
{
    char text[GR_DISCOVERY_OUTPUT_BYTES + 1];
    int wait_status = 0;
    (void)kill(-discovery->pid, SIGKILL); /* and what it has left behind */
    while (waitpid(discovery->pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    while (waitpid(-discovery->pid, NULL, WNOHANG) > 0) { /* where orphans are ours */
    }
    size_t size = read_file(discovery->out_fd, text);
    gr_status status = judge(discovery, wait_status, late, text, size, diag);
    if (status == GR_OK) {
        status = gr_host_list_parse_lines(text, size, discovery->script, discovery->slots_per_host,
                                          arena, hosts_out, diag);
    }
    discovery->pid = 0;
    close_all(discovery);
    return status;
}

void gr_discovery_stop(gr_discovery *discovery)
{
    if (discovery->pid > 0) {
        (void)kill(-discovery->pid, SIGKILL);
        while (waitpid(discovery->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    close_all(discovery);
}

gr_status gr_discovery_gather(gr_discovery *discovery, int slots, int64_t pause_us,
                              int64_t timeout_us, gr_arena *arena, gr_host_list *hosts_out,
                              gr_diag *diag)
{
    const int64_t begin_us = gr_now_ns() / 1000;
    for (;;) {
        gr_diag why = {0};
        gr_status status = gr_discovery_begin(discovery, &why);
        if (status == GR_OK) {
            struct pollfd end = {.fd = discovery->pid_fd, .events = POLLIN};
            bool late = poll(&end, 1, GR_DISCOVERY_LIMIT_US / 1000) <= 0;
            status = gr_discovery_end(discovery, late, arena, hosts_out, &why);
        }
        int found = status == GR_OK ? gr_host_list_slots(hosts_out) : 0;
        if (found >= slots && found > 0) {
            return GR_OK;
        }
        if (timeout_us > 0 && gr_now_ns() / 1000 - begin_us >= timeout_us) {
            return status != GR_OK
                       ? gr_fail(diag, GR_E_INVALID, "--host-discovery-script: %s", why.text)
                       : gr_fail(diag, GR_E_TIMEOUT,
                                 "--host-discovery-script: %s names hosts for %d workers after "
                                 "%.0f s (--start-timeout), and the job needs %d to begin",
                                 discovery->script, found, (double)timeout_us * 1e-6, slots);
        }
        gr_signals_sleep(-1, (int)(pause_us / 1000));
        if (gr_signals_waiting() != 0) {
            return gr_fail(diag, GR_E_CANCELLED, "--host-discovery-script: ended by a signal");
        }
    }
}
