/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/deputy.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 64 * 1024, WORK_STACK_BYTES = 1024 * 1024, NAME_BYTES = 16 };
enum { WAIT_BY_FD = 3, PIDFD = 0x1000 }; /* P_PIDFD, CLONE_PIDFD: not all libcs name them */
enum { SHARED = CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_SIGHAND };

struct gr_deputy {
    pid_t chief, pid; /* the supervisor; its deputy, 0: none */
    int chief_fd, fd; /* of their ends */
    atomic_bool set;  /* the deputy sleeps */
    atomic_bool idle; /* the supervisor waits: nothing is half done */
    ucontext_t point; /* where it waits */
    char *stack;      /* of the one of the two that was made last */
    size_t stack_bytes;
    bool guards; /* the deputy is the parent of who works, which is no supervisor but an agent */
    void (*work)(gr_deputy *deputy, void *arg);
    void *work_arg;
    char name[NAME_BYTES]; /* of the supervisor */
};

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

/* The deputy. As long as the supervisor lives they have one errno, and all else that is a thread's:
 * only calls that succeed, and no checks of a sanitizer, which would take this stack for wrong. */
__attribute__((no_sanitize("address", "undefined"))) static int sleep_beside(void *deputy_arg)
{
    gr_deputy *deputy = deputy_arg;
    struct pollfd end = {.fd = deputy->chief_fd, .events = POLLIN};
    (void)syscall(SYS_setsid); /* what is for the supervisor's group is not for us */
    (void)syscall(SYS_prctl, PR_SET_NAME, "gradus-deputy", 0L, 0L, 0L);
    atomic_store(&deputy->set, true);
    while (syscall(SYS_ppoll, &end, 1L, NULL, NULL, 0L) != 1) {
    }
    if (atomic_load(&deputy->idle)) {
        (void)setcontext(&deputy->point);
    }
    (void)syscall(SYS_exit_group, 1L);
    return 1;
}

/* Until it sleeps, or has ended. Without sleep: whoever sleeps here waits for events. */
static void await(gr_deputy *deputy)
{
    struct pollfd end = {.fd = deputy->fd, .events = POLLIN};
    while (!atomic_load(&deputy->set) && poll(&end, 1, 0) == 0) {
        (void)sched_yield();
    }
}

static void dismiss(gr_deputy *deputy)
{
    siginfo_t ignored;
    if (deputy->fd >= 0 && (syscall(SYS_pidfd_send_signal, deputy->fd, SIGKILL, NULL, 0) == 0 ||
                            errno == ESRCH || kill(deputy->pid, SIGKILL) == 0)) {
        (void)waitid((idtype_t)WAIT_BY_FD, (id_t)deputy->fd, &ignored,
                     WEXITED); /* others may have reaped it */
    }
    deputy->pid = 0;
    close_fd(&deputy->fd);
}

/* False: there is none. */
static bool appoint(gr_deputy *deputy)
{
    close_fd(&deputy->chief_fd);
    deputy->chief_fd = (int)syscall(SYS_pidfd_open, deputy->chief, 0);
    if (deputy->chief_fd < 0) {
        return false;
    }
    /* At the end of a thread whose memory others have the kernel clears the number that libc knows
     * it by; its locks would fail in the deputy. */
    (void)syscall(SYS_set_tid_address, NULL);
    atomic_store(&deputy->set, false);
    int fd = -1; /* with the process or not at all */
    deputy->pid = clone(sleep_beside, deputy->stack + deputy->stack_bytes, SHARED | PIDFD | SIGCHLD,
                        deputy, &fd);
    if (deputy->pid <= 0) {
        deputy->pid = 0;
        return false;
    }
    deputy->fd = fd;
    await(deputy);
    return true;
}

static gr_deputy *make(size_t stack_bytes)
{
#ifdef __SANITIZE_THREAD__
    (void)stack_bytes;
    return NULL; /* it takes a process that shares its memory for one that does not */
#else
    gr_deputy *deputy = calloc(1, sizeof *deputy);
    if (deputy == NULL) {
        return NULL;
    }
    deputy->chief = getpid();
    deputy->chief_fd = deputy->fd = -1;
    deputy->stack_bytes = stack_bytes;
    (void)prctl(PR_GET_NAME, deputy->name, 0L, 0L, 0L);
    void *stack = mmap(NULL, stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    deputy->stack = stack != MAP_FAILED ? stack : NULL;
    if (deputy->stack == NULL) {
        gr_deputy_destroy(deputy);
        return NULL;
    }
    return deputy;
#endif
}

gr_deputy *gr_deputy_create(void)
{
    gr_deputy *deputy = make(STACK_BYTES);
    if (deputy != NULL && !appoint(deputy)) {
        gr_deputy_destroy(deputy);
        return NULL;
    }
    return deputy;
}

void gr_deputy_destroy(gr_deputy *deputy)
{
    if (deputy == NULL) {
        return;
    }
    dismiss(deputy);
    close_fd(&deputy->chief_fd);
    if (deputy->stack != NULL) {
        munmap(deputy->stack, deputy->stack_bytes);
    }
    free(deputy);
}

pid_t gr_deputy_pid(const gr_deputy *deputy)
{
    return deputy != NULL ? deputy->pid : 0;
}

/* The supervisor was killed at its point of waiting, and that is where we are. */
static void succeed(gr_deputy *deputy)
{
    atomic_store(&deputy->idle, false);
    deputy->chief = getpid();
    deputy->pid = 0;
    close_fd(&deputy->fd);
    (void)prctl(PR_SET_NAME, deputy->name, 0L, 0L, 0L);
}

bool gr_deputy_wait(gr_deputy *deputy, const int *fds, int count, int timeout_ms)
{
    if (!deputy->guards && deputy->pid == 0) {
        (void)appoint(deputy);
    }
    (void)getcontext(&deputy->point);
    if (getpid() != deputy->chief) {
        succeed(deputy);
        return true;
    }
    struct pollfd at[GR_DEPUTY_FDS_MAX + 1] = {{.fd = deputy->fd, .events = POLLIN}};
    for (int i = 0; i < count; i++) {
        at[1 + i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    atomic_store(&deputy->idle, true);
    (void)poll(at, 1 + (nfds_t)count, timeout_ms);
    atomic_store(&deputy->idle, false);
    if (at[0].revents != 0) {
        dismiss(deputy);
        (void)appoint(deputy);
    }
    return false;
}

/* ---- The deputy is the parent ---------------------------------------------------------------- */

static int begin_work(void *deputy_arg)
{
    gr_deputy *deputy = deputy_arg;
    deputy->chief = getpid();
    (void)prctl(PR_SET_NAME, deputy->name, 0L, 0L, 0L);
    deputy->work(deputy, deputy->work_arg);
    return 1;
}

/* As sleep_beside. The child's end is left to be waited for again, by whoever goes on. */
__attribute__((no_sanitize("address", "undefined"))) _Noreturn static void
sleep_above(gr_deputy *deputy, pid_t child)
{
    siginfo_t end = {.si_code = 0};
    while (syscall(SYS_waitid, (long)P_PID, (long)child, &end, (long)(WEXITED | WNOWAIT), NULL) !=
           0) {
    }
    if (end.si_code == CLD_EXITED) {
        (void)syscall(SYS_waitid, (long)P_PID, (long)child, NULL, (long)WEXITED, NULL);
        (void)syscall(SYS_exit_group, (long)end.si_status);
    }
    if (atomic_load(&deputy->idle)) {
        (void)setcontext(&deputy->point);
    }
    for (;;) { /* killed at work: so the launcher is told */
        (void)syscall(SYS_kill, syscall(SYS_getpid), (long)SIGKILL);
    }
}

_Noreturn void gr_deputy_guard(const char *name, void (*work)(gr_deputy *deputy, void *arg),
                               void *arg)
{
#ifdef __SANITIZE_ADDRESS__
    gr_deputy *deputy = NULL; /* it takes the stack of who works for another one */
#else
    gr_deputy *deputy = make(WORK_STACK_BYTES);
#endif
    if (deputy != NULL) {
        deputy->guards = true;
        deputy->work = work;
        deputy->work_arg = arg;
        (void)syscall(SYS_set_tid_address, NULL); /* see appoint() */
        /* Ahead of the child: whoever sees the agent, or its workers, can tell the two apart. */
        (void)prctl(PR_SET_NAME, name, 0L, 0L, 0L);
        pid_t child =
            clone(begin_work, deputy->stack + deputy->stack_bytes, SHARED | SIGCHLD, deputy);
        if (child > 0) {
            sleep_above(deputy, child);
        }
        (void)prctl(PR_SET_NAME, deputy->name, 0L, 0L, 0L);
        gr_deputy_destroy(deputy);
    }
    work(NULL, arg);
    _exit(1);
}
