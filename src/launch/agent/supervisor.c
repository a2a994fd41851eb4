/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/supervisor.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { VISITORS_MAX = 8, RECEIVED_MS = 10000 };

/* A connection, for as long as a loop watches it. */
typedef struct visitor {
    gr_supervisor *supervisor;
    int fd;
    uv_poll_t poll;
} visitor;

struct gr_supervisor {
    gr_supervisor_config config; /* launcher_fd -1 with a process of its own: there is none */
    bool own;                    /* the launcher is this process */
    bool begun;                  /* something of the job was started */
    int64_t alone_us;            /* since when there is none */
    uint64_t delivered[GR_JOB_STREAMS];
    gr_job_folder folder;
    int listen_fd;
    gr_output_log *log; /* NULL: there is no folder */

    gr_supervisor_events events; /* arg NULL: no loop runs */
    uv_loop_t *loop;
    uv_poll_t listen_poll;
    uv_timer_t timer;
    bool dropping;
    visitor *launcher;
    visitor *visitors[VISITORS_MAX]; /* the oldest is replaced where there are more */
    int next_visitor;
};

static int64_t now_us(void)
{
    return gr_now_ns() / 1000;
}

gr_supervisor *gr_supervisor_create(const gr_supervisor_config *config)
{
    gr_supervisor *supervisor = calloc(1, sizeof *supervisor);
    if (supervisor != NULL) {
        supervisor->config = *config;
        supervisor->own = config->launcher_fd < 0;
        supervisor->folder = (gr_job_folder){.base_fd = -1, .fd = -1, .lock_fd = -1};
        supervisor->listen_fd = -1;
    }
    return supervisor;
}

void gr_supervisor_destroy(gr_supervisor *supervisor)
{
    if (supervisor == NULL) {
        return;
    }
    int *const fds[] = {&supervisor->config.launcher_fd, &supervisor->listen_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
        }
    }
    gr_output_log_destroy(supervisor->log);
    gr_job_folder_close(&supervisor->folder);
    free(supervisor);
}

static gr_job_record complete(const gr_supervisor *supervisor, const gr_job_record *record)
{
    gr_job_record now = *record;
    now.supervisor = getpid();
    now.launcher = supervisor->config.launcher;
    return now;
}

static void write_record(const gr_supervisor *supervisor, const gr_job_record *record)
{
    if (supervisor->log != NULL) {
        const gr_job_record now = complete(supervisor, record);
        (void)gr_job_folder_write_record(&supervisor->folder, &now);
    }
}

static bool launcher_is_gone(const gr_supervisor *supervisor)
{
    char byte;
    return supervisor->config.launcher_fd >= 0 &&
           recv(supervisor->config.launcher_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

gr_status gr_supervisor_publish(gr_supervisor *supervisor, const char *name,
                                const gr_job_record *record, gr_diag *diag)
{
    gr_job_record now = complete(supervisor, record);
    now.attempt--; /* until it is begun */
    gr_status status =
        gr_job_folder_create(name, &now, &supervisor->folder, &supervisor->listen_fd, diag);
    if (status == GR_OK) {
        status = gr_output_log_create(supervisor->folder.fd, &supervisor->log, diag);
        if (status == GR_OK && record->attempt == 0 && launcher_is_gone(supervisor)) {
            status = gr_fail(diag, GR_E_CANCELLED,
                             "gradus run (process %d) was killed before its job could be found: "
                             "nothing was started",
                             (int)supervisor->config.launcher);
        }
        if (status != GR_OK) {
            gr_job_folder_remove(&supervisor->folder);
        }
    }
    return status;
}

static void report_begun(gr_supervisor *supervisor)
{
    const gr_job_message begun = {.kind = GR_JOB_STATUS_IS};
    if (!supervisor->begun && supervisor->config.launcher_fd >= 0) {
        (void)gr_job_send(supervisor->config.launcher_fd, &begun, NULL);
    }
    supervisor->begun = true;
}

void gr_supervisor_note_attempt(gr_supervisor *supervisor, const gr_job_record *record)
{
    if (supervisor != NULL) {
        report_begun(supervisor);
        write_record(supervisor, record);
    }
}

void gr_supervisor_begin(gr_supervisor *supervisor)
{
    gr_job_record record;
    if (supervisor == NULL || supervisor->begun) {
        return;
    }
    report_begun(supervisor);
    if (supervisor->log != NULL && gr_job_folder_record(&supervisor->folder, &record)) {
        record.attempt++;
        write_record(supervisor, &record);
    }
}

/* Supervisor or launcher is another process from now on. */
static void note_processes(const gr_supervisor *supervisor)
{
    gr_job_record record;
    if (supervisor->log != NULL && gr_job_folder_record(&supervisor->folder, &record)) {
        write_record(supervisor, &record);
    }
}

void gr_supervisor_moved(const gr_supervisor *supervisor)
{
    gr_job_message moved = {.kind = GR_JOB_MOVED};
    supervisor->events.describe(supervisor->events.arg, &moved.status);
    moved.status.code = (int)getpid();
    if (supervisor->listen_fd >= 0) { /* whoever connects is told who listens */
        (void)listen(supervisor->listen_fd, GR_JOB_FOLDER_BACKLOG);
    }
    note_processes(supervisor);
    if (supervisor->config.launcher_fd >= 0) {
        (void)gr_job_send(supervisor->config.launcher_fd, &moved, NULL);
    }
}

void gr_supervisor_leave_orphans(const gr_supervisor *supervisor)
{
    const gr_job_message orphans = {.kind = GR_JOB_ORPHANS};
    if (supervisor != NULL && supervisor->config.launcher_fd >= 0) {
        (void)gr_job_send(supervisor->config.launcher_fd, &orphans, NULL);
    }
}

int gr_supervisor_lock_fd(const gr_supervisor *supervisor)
{
    return supervisor != NULL ? supervisor->folder.lock_fd : -1;
}

bool gr_supervisor_is_attached(const gr_supervisor *supervisor)
{
    return supervisor->own || supervisor->config.launcher_fd >= 0;
}

int64_t gr_supervisor_outlive_us(const gr_supervisor *supervisor)
{
    return supervisor->log != NULL ? supervisor->config.outlive_us : 0;
}

const char *gr_supervisor_name(const gr_supervisor *supervisor)
{
    return supervisor->folder.name;
}

gr_output_log *gr_supervisor_log(const gr_supervisor *supervisor)
{
    return supervisor->log;
}

void gr_supervisor_read(const gr_supervisor *supervisor, gr_output_reader *reader)
{
    gr_output_log_flush(supervisor->log);
    gr_output_reader_open(reader, supervisor->folder.fd, supervisor->delivered);
}

void gr_supervisor_note_delivered(gr_supervisor *supervisor,
                                  const uint64_t delivered[GR_JOB_STREAMS])
{
    memcpy(supervisor->delivered, delivered, sizeof supervisor->delivered);
    if (supervisor->log != NULL) {
        (void)gr_job_folder_write_left(&supervisor->folder, delivered);
    }
}

/* Without a loop: has the launcher gone? */
static void look_after_launcher(gr_supervisor *supervisor)
{
    if (launcher_is_gone(supervisor)) {
        close(supervisor->config.launcher_fd);
        supervisor->config.launcher_fd = -1;
        supervisor->config.launcher = 0;
        supervisor->alone_us = now_us();
        note_processes(supervisor);
        if (supervisor->log != NULL) {
            const uint64_t all[] = {gr_output_log_total(supervisor->log, 0),
                                    gr_output_log_total(supervisor->log, 1)};
            gr_supervisor_note_delivered(supervisor, all);
        }
    }
}

void gr_supervisor_print(gr_supervisor *supervisor, const char *text, size_t size_bytes)
{
    if (supervisor->events.arg == NULL) {
        look_after_launcher(supervisor);
    }
    if (supervisor->log != NULL) {
        gr_output_log_put(supervisor->log, 1, text, size_bytes);
        gr_output_log_flush(supervisor->log);
    }
    if (supervisor->events.arg != NULL) {
        supervisor->events.print(supervisor->events.arg, text, size_bytes);
    } else if (gr_supervisor_is_attached(supervisor)) {
        (void)gr_fd_write(STDERR_FILENO, text, size_bytes);
    }
}

/* ---- The launcher ---------------------------------------------------------------------------- */

static void lead_output(int out_fd, int err_fd)
{
    (void)dup2(out_fd, STDOUT_FILENO);
    (void)dup2(err_fd, STDERR_FILENO);
}

static void forget_visitor(uv_handle_t *handle)
{
    free(handle->data);
}

static void close_visitor(visitor *from, bool with_fd)
{
    uv_close((uv_handle_t *)&from->poll, forget_visitor);
    if (with_fd) {
        close(from->fd);
    }
}

static void on_timer(uv_timer_t *timer);

/* Until nobody has attached for too long. */
static void time_outliving(gr_supervisor *supervisor)
{
    int64_t outlive_us = gr_supervisor_outlive_us(supervisor);
    if (outlive_us != GR_OUTLIVE_FOREVER) {
        int64_t left_us = supervisor->alone_us + outlive_us - now_us();
        (void)uv_timer_start(&supervisor->timer, on_timer,
                             left_us > 0 ? (uint64_t)left_us / 1000 + 1 : 0, 0);
    }
}

static void leave(gr_supervisor *supervisor)
{
    const int launcher = (int)supervisor->config.launcher;
    close_visitor(supervisor->launcher, true);
    supervisor->launcher = NULL;
    supervisor->dropping = false; /* the timer is that of --outlive from now on */
    supervisor->config.launcher_fd = -1;
    supervisor->config.launcher = 0;
    supervisor->alone_us = now_us();
    note_processes(supervisor);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd >= 0) {
        lead_output(null_fd, null_fd);
        close(null_fd);
    }
    time_outliving(supervisor);
    supervisor->events.left(supervisor->events.arg, launcher);
}

static void on_timer(uv_timer_t *timer)
{
    gr_supervisor *supervisor = timer->data;
    if (supervisor->dropping) {
        const gr_job_message dropped = {.kind = GR_JOB_DROPPED};
        (void)gr_job_send(supervisor->launcher->fd, &dropped, NULL);
        leave(supervisor);
    } else if (!gr_supervisor_is_attached(supervisor)) {
        supervisor->events.expired(supervisor->events.arg);
    }
}

bool gr_supervisor_drop_launcher(gr_supervisor *supervisor, bool if_gone)
{
    if (supervisor->own || gr_supervisor_outlive_us(supervisor) == 0 ||
        supervisor->events.arg == NULL) {
        return false;
    }
    if (supervisor->launcher == NULL) {
        return true; /* it is taken for gone already, and the timer runs */
    }
    if (if_gone && !launcher_is_gone(supervisor)) {
        return false;
    }
    /* Not at once: our caller may be about to use what the launcher has lent. */
    supervisor->dropping = true;
    return uv_timer_start(&supervisor->timer, on_timer, 0, 0) == 0;
}

static void on_launcher(uv_poll_t *poll, int status, int events)
{
    visitor *launcher = poll->data;
    gr_job_message message;
    (void)status;
    (void)events;
    int error = gr_job_receive(launcher->fd, &message, NULL);
    if (error != 0 && error != EAGAIN && error != EPROTO) {
        leave(launcher->supervisor);
    }
}

/* NULL: it cannot be watched. */
static visitor *watch(gr_supervisor *supervisor, int fd, uv_poll_cb on_event)
{
    visitor *from = calloc(1, sizeof *from);
    if (from == NULL || uv_poll_init(supervisor->loop, &from->poll, fd) != 0) {
        free(from);
        return NULL;
    }
    from->supervisor = supervisor;
    from->fd = fd;
    from->poll.data = from;
    if (uv_poll_start(&from->poll, UV_READABLE, on_event) != 0) {
        close_visitor(from, false);
        return NULL;
    }
    return from;
}

/* ---- Visitors -------------------------------------------------------------------------------- */

/* `scale`: it shall have so many workers; 0: as many as it has. */
static void answer(const gr_supervisor *supervisor, int fd, int kind, int scale)
{
    gr_job_message message = {.kind = kind};
    supervisor->events.describe(supervisor->events.arg, &message.status);
    if (scale != 0) {
        message.status.word = supervisor->events.scale(supervisor->events.arg, scale);
    }
    message.status.launcher = (int)supervisor->config.launcher;
    message.status.code = (int)getpid();
    (void)gr_job_send(fd, &message, NULL);
}

static void attach(gr_supervisor *supervisor, int fd, const int fds[2])
{
    pid_t pid = 0;
    uid_t uid;
    if (launcher_is_gone(supervisor)) { /* killed just now, and not noticed yet */
        leave(supervisor);
    }
    if (gr_supervisor_is_attached(supervisor) || fds[0] < 0) {
        answer(supervisor, fd, GR_JOB_TAKEN, 0);
        close(fd);
        return;
    }
    supervisor->launcher = gr_job_peer(fd, &pid, &uid) ? watch(supervisor, fd, on_launcher) : NULL;
    if (supervisor->launcher == NULL) {
        close(fd);
        return;
    }
    supervisor->config.launcher_fd = fd;
    supervisor->config.launcher = pid;
    lead_output(fds[0], fds[1]);
    uv_timer_stop(&supervisor->timer);
    (void)gr_job_folder_write_left(&supervisor->folder, NULL);
    note_processes(supervisor);
    answer(supervisor, fd, GR_JOB_ATTACHED, 0);
    supervisor->events.came(supervisor->events.arg, (int)pid);
}

static void dismiss(gr_supervisor *supervisor, visitor *from, bool with_fd)
{
    for (int i = 0; i < VISITORS_MAX; i++) {
        if (supervisor->visitors[i] == from) {
            supervisor->visitors[i] = NULL;
        }
    }
    close_visitor(from, with_fd);
}

static void on_visitor(uv_poll_t *poll, int status, int events)
{
    visitor *from = poll->data;
    gr_supervisor *supervisor = from->supervisor;
    gr_job_message message;
    int fds[2];
    (void)status;
    (void)events;
    int error = gr_job_receive(from->fd, &message, fds);
    if (error == EAGAIN) {
        return;
    }
    if (error == 0 && message.kind == GR_JOB_ATTACH) {
        int fd = from->fd;
        dismiss(supervisor, from, false);
        attach(supervisor, fd, fds);
    } else {
        if (error == 0 && message.kind == GR_JOB_KILL) {
            supervisor->events.kill(supervisor->events.arg);
        }
        if (error == 0 && (message.kind == GR_JOB_KILL || message.kind == GR_JOB_STATUS ||
                           message.kind == GR_JOB_SCALE)) {
            answer(supervisor, from->fd, GR_JOB_STATUS_IS,
                   message.kind == GR_JOB_SCALE ? message.status.want : 0);
        }
        dismiss(supervisor, from, true);
    }
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
}

static void on_visit(uv_poll_t *poll, int status, int events)
{
    gr_supervisor *supervisor = poll->data;
    pid_t pid;
    uid_t uid;
    (void)status;
    (void)events;
    int fd = accept4(supervisor->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    visitor **slot = &supervisor->visitors[supervisor->next_visitor];
    bool known = gr_job_peer(fd, &pid, &uid) && (uid == geteuid() || uid == 0);
    visitor *from = known ? watch(supervisor, fd, on_visitor) : NULL;
    if (from == NULL) {
        close(fd);
        return;
    }
    if (*slot != NULL) {
        close_visitor(*slot, true);
    }
    *slot = from;
    supervisor->next_visitor = (supervisor->next_visitor + 1) % VISITORS_MAX;
}

/* ---- Start and end --------------------------------------------------------------------------- */

int gr_supervisor_start(gr_supervisor *supervisor, uv_loop_t *loop,
                        const gr_supervisor_events *events)
{
    supervisor->loop = loop;
    supervisor->timer.data = supervisor->listen_poll.data = supervisor;
    int error = uv_timer_init(loop, &supervisor->timer);
    if (error == 0 && supervisor->listen_fd >= 0) {
        error = uv_poll_init(loop, &supervisor->listen_poll, supervisor->listen_fd);
    }
    if (error == 0 && supervisor->listen_fd >= 0) {
        error = uv_poll_start(&supervisor->listen_poll, UV_READABLE, on_visit);
    }
    if (error == 0 && supervisor->config.launcher_fd >= 0) {
        supervisor->launcher = watch(supervisor, supervisor->config.launcher_fd, on_launcher);
        error = supervisor->launcher == NULL ? UV_ENOMEM : 0;
    }
    if (error == 0 && !gr_supervisor_is_attached(supervisor)) {
        time_outliving(supervisor);
    }
    supervisor->events = *events;
    return error;
}

/* The timer and the listening socket are closed with the loop. */
void gr_supervisor_stop(gr_supervisor *supervisor)
{
    supervisor->events = (gr_supervisor_events){.arg = NULL};
    supervisor->dropping = false;
    if (supervisor->launcher != NULL) {
        close_visitor(supervisor->launcher, false);
        supervisor->launcher = NULL;
    }
    for (int i = 0; i < VISITORS_MAX; i++) {
        if (supervisor->visitors[i] != NULL) {
            dismiss(supervisor, supervisor->visitors[i], true);
        }
    }
}

/* True: the launcher has the exit code. */
static bool hand_over(const gr_supervisor *supervisor, int code)
{
    const int fd = supervisor->config.launcher_fd;
    gr_job_message message = {.kind = GR_JOB_END, .status = {.code = code}};
    struct pollfd reply = {.fd = fd, .events = POLLIN};
    return fd >= 0 && gr_job_send(fd, &message, NULL) == 0 && poll(&reply, 1, RECEIVED_MS) > 0 &&
           gr_job_receive(fd, &message, NULL) == 0 && message.kind == GR_JOB_RECEIVED;
}

void gr_supervisor_end(gr_supervisor *supervisor, const gr_job_end *reached)
{
    gr_job_end end = *reached;
    end.end_s = (int64_t)time(NULL);
    if (supervisor->log == NULL) {
        (void)hand_over(supervisor, end.code);
        return;
    }
    look_after_launcher(supervisor);
    gr_output_log_flush(supervisor->log);
    for (int i = 0; i < GR_JOB_STREAMS; i++) {
        end.delivered[i] = gr_supervisor_is_attached(supervisor)
                               ? gr_output_log_total(supervisor->log, i)
                               : supervisor->delivered[i];
    }
    bool kept = !supervisor->own && gr_job_folder_write_end(&supervisor->folder, &end) == 0;
    if (!kept || hand_over(supervisor, end.code)) {
        gr_job_folder_remove(&supervisor->folder);
    }
}
