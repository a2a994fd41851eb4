/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/spawn.h"

#include "base/fail.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* One by one, as /proc lists them: there may be a limit of a billion. Between vfork and exec
 * nothing may be allocated. False: there is no /proc. */
static bool close_listed(unsigned int first, unsigned int last)
{
    _Alignas(struct dirent64) char entries[2048];
    int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return false;
    }
    for (long got; (got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
        const struct dirent64 *entry;
        for (long at = 0; at < got; at += entry->d_reclen) {
            entry = (const struct dirent64 *)(const void *)(entries + at);
            unsigned long fd = strtoul(entry->d_name, NULL, 10); /* of "." and "..": 0 */
            if (fd >= first && fd <= last && fd > STDERR_FILENO && fd != (unsigned long)folder) {
                (void)close((int)fd);
            }
        }
    }
    close(folder);
    return true;
}

void gr_spawn_close(unsigned int first, unsigned int last)
{
    struct rlimit limit;
    if (close_range(first, last, 0) == 0 || close_listed(first, last) ||
        getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    for (rlim_t fd = first; fd < limit.rlim_cur && fd <= last; fd++) {
        (void)close((int)fd);
    }
}

gr_status gr_spawn_make_stdin(const char *document, int *fd_out, gr_diag *diag)
{
    int fd = document == NULL ? open("/dev/null", O_RDONLY | O_CLOEXEC)
                              : memfd_create("gradus-document", MFD_CLOEXEC);
    int error = fd < 0 ? errno : document != NULL ? gr_fd_write(fd, document, strlen(document)) : 0;
    if (error != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return gr_fail(diag, GR_E_IO, "the stdin of workers cannot be made: %s", strerror(error));
    }
    *fd_out = fd;
    return GR_OK;
}

/* What several processes read as a file has a position for each of them from now on. */
static int separate_stdin(void)
{
    struct stat what;
    if (fstat(STDIN_FILENO, &what) != 0) {
        return errno;
    }
    if (!S_ISREG(what.st_mode)) {
        return 0;
    }
    int own = open("/proc/self/fd/0", O_RDONLY | O_CLOEXEC);
    return own < 0 || dup2(own, STDIN_FILENO) < 0 ? errno : 0;
}

/* Descriptors 0, 1, 2 and 3 become stdin, stdout, stderr and the error pipe, all others are closed.
 * The sources are first moved above 3, since one of them may stand where another must go. */
static int place_descriptors(const gr_spawn *spawn, int error_fd)
{
    int source[4] = {spawn->stdin_fd, spawn->stdout_fd, spawn->stderr_fd, error_fd};
    for (int i = 0; i < 4; i++) {
        source[i] = fcntl(source[i], F_DUPFD_CLOEXEC, 4);
        if (source[i] < 0) {
            return errno;
        }
    }
    for (int i = 0; i < 4; i++) {
        if (dup3(source[i], i, i == 3 ? O_CLOEXEC : 0) < 0 && errno != EINVAL) {
            return errno;
        }
    }
    int error = separate_stdin();
    gr_spawn_close(4, ~0U);
    return error;
}

static int reset_signals(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    for (int signal_number = 1; signal_number < NSIG; signal_number++) {
        (void)sigaction(signal_number, &standard, NULL); /* SIGKILL and SIGSTOP refuse */
    }
    sigset_t none;
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, NULL) == 0 ? 0 : errno;
}

/* A program that uses select() must not get descriptors beyond what it expects. */
static void restore_limit(rlim_t descriptors)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && descriptors < limit.rlim_cur) {
        limit.rlim_cur = descriptors;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* lowering it is always allowed */
    }
}

static int set_up(const gr_spawn *spawn, pid_t parent, int *error_fd)
{
    if (setpgid(0, 0) != 0 ||
        (!spawn->outlives && prctl(PR_SET_PDEATHSIG, SIGKILL, 0L, 0L, 0L) != 0)) {
        return errno;
    }
    if (getppid() != parent) { /* it died before it could be watched */
        _exit(127);
    }
    int error = place_descriptors(spawn, *error_fd);
    if (error == 0) {
        *error_fd = 3;
        error = reset_signals();
    }
    return error;
}

_Noreturn static void run_child(const gr_spawn *spawn, pid_t parent, int error_fd)
{
    gr_spawn_error report = {.step = GR_SPAWN_SETUP};
    report.error = set_up(spawn, parent, &error_fd);
    if (report.error == 0 && spawn->cores != NULL) {
        report.step = GR_SPAWN_BIND;
        report.error = gr_cores_bind(spawn->cores);
    }
    if (report.error == 0 && spawn->descriptors > 0) {
        restore_limit(spawn->descriptors);
    }
    if (report.error == 0) {
        report.step = GR_SPAWN_EXEC;
        const char *file = spawn->file != NULL ? spawn->file : spawn->argv[0];
        execvpe(file, spawn->argv, spawn->environment);
        report.error = errno;
    }
    /* Both ends of this pipe are the same program: the record needs no wire format. */
    (void)!write(error_fd, &report, sizeof report);
    _exit(127);
}

/* What the child has to say, if its program does not run: exec closes the pipe. Where vfork is fork
 * (sanitizers, emulators) this waits for it. */
static bool read_report(int fd, gr_spawn_error *report)
{
    ssize_t got;
    do {
        got = read(fd, report, sizeof *report);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *report;
}

pid_t gr_spawn_start(const gr_spawn *spawn, gr_spawn_error *error_out)
{
    int report_pipe[2];
    gr_spawn_error report;
    *error_out = (gr_spawn_error){.step = GR_SPAWN_FORK};
    if (pipe2(report_pipe, O_CLOEXEC) != 0) {
        error_out->error = errno;
        return -1;
    }
    pid_t parent = getpid();
    /* fork would copy the page tables of this process for each worker, which grow with their
     * number. Until exec the child runs in this process's memory, and this process waits. */
    pid_t pid = vfork();
    if (pid == 0) {
        run_child(spawn, parent, report_pipe[1]);
    }
    int fork_error = errno;
    close(report_pipe[1]);
    if (pid < 0) {
        error_out->error = fork_error;
    } else if (read_report(report_pipe[0], &report)) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        *error_out = report;
        pid = -1;
    } else {
        *error_out = (gr_spawn_error){0};
    }
    close(report_pipe[0]);
    return pid;
}

/* A script that lies here and is none of the shell's commands: how it is run. NULL: no script. */
static const char *interpreter_of(const char *command)
{
    static const char *const known[][2] = {
        {".py", "python3"}, {".sh", "sh"}, {".pl", "perl"}, {".jl", "julia"}, {".R", "Rscript"}};
    const char *dot = strrchr(command, '.');
    for (size_t i = 0; dot != NULL && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(dot, known[i][0]) == 0 && access(command, R_OK) == 0 &&
            access(command, X_OK) != 0) {
            return known[i][1];
        }
    }
    return NULL;
}

static gr_status fail_script(const char *command, const char *interpreter, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID,
                   "\"%s\" is a script that is not marked as executable; run it by its "
                   "interpreter: %s %s",
                   command, interpreter, command);
}

gr_status gr_spawn_fail(const char *command, const gr_spawn_error *error, gr_diag *diag)
{
    if (error->step != GR_SPAWN_EXEC) {
        const char *what = error->step == GR_SPAWN_FORK   ? "a process cannot be started"
                           : error->step == GR_SPAWN_BIND ? "a worker cannot be bound to its cores"
                                                          : "a worker cannot be set up";
        return gr_fail(diag, GR_E_IO,
                       "%s: %s; start fewer workers or raise the limits (ulimit -u, "
                       "ulimit -n)",
                       what, strerror(error->error));
    }
    bool refused = error->error == ENOENT || error->error == EACCES || error->error == ENOEXEC;
    const char *interpreter = refused ? interpreter_of(command) : NULL;
    if (interpreter != NULL) {
        return fail_script(command, interpreter, diag);
    }
    switch (error->error) {
    case ENOENT:
        if (strchr(command, '/') == NULL) {
            return gr_fail(diag, GR_E_NOT_FOUND,
                           "command not found: \"%s\" is in no folder of PATH; give its path, as "
                           "./%s say",
                           command, command);
        }
        if (access(command, F_OK) == 0) {
            return gr_fail(diag, GR_E_NOT_FOUND,
                           "\"%s\" cannot be started: the interpreter or loader that its first "
                           "line or header names does not exist",
                           command);
        }
        return gr_fail(diag, GR_E_NOT_FOUND, "command not found: there is no file \"%s\"", command);
    case EACCES:
        return gr_fail(diag, GR_E_INVALID,
                       "\"%s\" cannot be started: it is a folder, or not marked as executable "
                       "(chmod +x)",
                       command);
    case E2BIG:
        return gr_fail(diag, GR_E_INVALID,
                       "\"%s\" cannot be started: its arguments and environment are too long",
                       command);
    case ENOEXEC:
        return gr_fail(diag, GR_E_INVALID,
                       "\"%s\" cannot be started: it is no program for this "
                       "machine",
                       command);
    default:
        return gr_fail(diag, GR_E_IO, "\"%s\" cannot be started: %s", command,
                       strerror(error->error));
    }
}
