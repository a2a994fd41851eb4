/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus attach`, and what every launcher does whose job has a process of its own. */

#include "cli/attach.h"

#include "base/fail.h"
#include "base/file.h"
#include "launch/agent/output_log.h"
#include "launch/process_tree.h"
#include "launch/signals.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Following ------------------------------------------------------------------------------- */

/* The supervisor has gone without a word. What has killed our child before it looked after signals
 * was meant for us. */
static int report_loss(const gr_process *supervisor, bool child, const char *run,
                       gr_attach_loss *loss_out)
{
    int status = 0;
    pid_t ended = child ? waitpid(supervisor->pid, &status, 0) : -1;
    if (ended > 0 && WIFEXITED(status)) {
        return WEXITSTATUS(status);
    }
    int number = ended > 0 ? WTERMSIG(status) : 0;
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
        sigset_t none;
        sigemptyset(&none);
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        return 128 + number; /* the first process of a container does not die of it */
    }
    loss_out->supervisor = supervisor->pid;
    snprintf(loss_out->run, sizeof loss_out->run, "%s", run);
    loss_out->signal_number = number;
    return GR_ATTACH_LOST;
}

static int report_leaving(void)
{
    fputs("gradus: the terminal is gone; the job goes on without a launcher (gradus ls, attach)\n",
          stderr);
    return GR_EXIT_RESUME;
}

enum { CHILDREN_MAX = 1024 };

/* The connection of a launcher, while it follows the job. */
typedef struct following {
    int connection;
    gr_process *supervisor;
    bool child; /* that one is */
    const char *run;
    bool moved;   /* it was not the first */
    bool leaving; /* the terminal is gone */
    int passed;   /* the last signal for it; 0: none */
    int unsent;   /* the same, if it had ended by then */
    gr_attach_loss *loss;
    pid_t kept[CHILDREN_MAX]; /* our children when it had moved: the supervisor and agents */
    int kept_count;           /* 0: not known */
} following;

static void pass_on(following *of, int signal_number)
{
    of->passed = signal_number;
    of->unsent = gr_process_signal(of->supervisor, signal_number) ? 0 : signal_number;
}

/* Returns true if the process has the name of an agent, or of another process of the launcher's.
 * Others were started by a worker, and may be left of an agent that was killed before this look. */
static bool is_of_launcher(pid_t pid)
{
    static const char ours[] = "gradus-";
    char path[64], name[sizeof ours] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        (void)fgets(name, sizeof name, file);
        fclose(file);
    }
    return strcmp(name, ours) == 0;
}

/* Those of the supervisor that was killed are ours now. */
static void note_children(following *of, pid_t supervisor)
{
    bool is_whole = false;
    int count = gr_process_tree_children(of->kept, CHILDREN_MAX);
    of->kept_count = 0;
    for (int i = 0; i < count && count < CHILDREN_MAX; i++) {
        bool is_supervisor = of->kept[i] == supervisor;
        is_whole |= is_supervisor;
        if (is_supervisor || is_of_launcher(of->kept[i])) {
            of->kept[of->kept_count++] = of->kept[i];
        }
    }
    of->kept_count = is_whole ? of->kept_count : 0;
}

/* The supervisor was killed, and its deputy is in its place: our child as well, if that one was.
 * A signal that it had not heard yet died with it. */
static void follow_deputy(following *of, const gr_job_status *status)
{
    if (of->child) {
        (void)waitpid(of->supervisor->pid, NULL, 0);
        note_children(of, (pid_t)status->code);
    }
    gr_process_close(of->supervisor);
    *of->supervisor = gr_process_open(status->code);
    of->moved = true;
    if (of->unsent != 0 || (of->passed != 0 && !status->ending)) {
        pass_on(of, of->passed);
    }
}

/* What a killed agent has left fell to us, if the supervisor of that time was killed before it. All
 * but `kept` and what stems from them. */
static void clear_rest(const pid_t *kept, int count)
{
    enum { TRIES = 100, PAUSE_MS = 20, LOOKS = 2 };
    /* The sockets of a process that ends close a moment before its children become ours. */
    for (int i = 0, empty = 0; i < TRIES && empty < LOOKS; i++) {
        if (i > 0) {
            (void)poll(NULL, 0, PAUSE_MS);
        }
        empty = gr_process_tree_clear(kept, count) > 0 ? 0 : empty + 1;
    }
}

static bool is_of(const gr_job_record *record, const char *run, pid_t supervisor)
{
    return record->supervisor == supervisor && strcmp(record->run, run) == 0;
}

/* A supervisor that has waited in vain for us to say that we have the code is gone, and has kept it
 * for another one, who would be told of an end that is known. */
static void forget_end(int connection, const char *run, pid_t supervisor)
{
    enum { LISTED_MAX = 1024, PATIENCE_MS = 1000 };
    struct pollfd gone = {.fd = connection, .events = POLLIN};
    char(*names)[GR_JOB_NAME_BYTES] = malloc(LISTED_MAX * sizeof *names);
    (void)poll(&gone, 1, PATIENCE_MS); /* until it has removed the folder, or kept it */
    int count = names != NULL ? gr_job_folder_list(names, LISTED_MAX, NULL) : 0;
    for (int i = 0; i < count; i++) {
        gr_job_folder folder;
        gr_job_record record;
        gr_job_end end;
        if (gr_job_folder_open(names[i], &folder, NULL) != GR_OK) {
            continue;
        }
        if (gr_job_folder_record(&folder, &record) && is_of(&record, run, supervisor) &&
            gr_job_folder_state(&folder, &end) == GR_JOB_ENDED) {
            gr_job_folder_remove(&folder);
        }
        gr_job_folder_close(&folder);
    }
    free(names);
    gr_job_folder_remove_unfinished(); /* one that was killed at that */
}

/* False: the job goes on. */
static bool take_message(following *of, int *code_out)
{
    gr_job_message message;
    int error = gr_job_receive(of->connection, &message, NULL);
    if (error == 0 && message.kind == GR_JOB_END) {
        const gr_job_message received = {.kind = GR_JOB_RECEIVED};
        if (of->moved && of->child) { /* before the code is ours: if we are killed, it stays */
            clear_rest(&of->supervisor->pid, 1);
        }
        (void)gr_job_send(of->connection, &received, NULL);
        forget_end(of->connection, of->run, of->supervisor->pid);
        *code_out = message.status.code;
        return true;
    }
    if (error == 0 && message.kind == GR_JOB_DROPPED) {
        *code_out = report_leaving();
        return true;
    }
    if (error == 0 && message.kind == GR_JOB_MOVED) {
        follow_deputy(of, &message.status);
    }
    if (error == 0 && message.kind == GR_JOB_ORPHANS && of->kept_count > 0) {
        clear_rest(of->kept, of->kept_count);
    }
    if (error == 0 || error == EAGAIN) {
        of->loss->begun |= error == 0 && message.kind == GR_JOB_STATUS_IS;
        return false;
    }
    if (of->unsent != 0) {
        (void)raise(of->unsent); /* for who follows the job next: it is held */
    }
    *code_out = report_loss(of->supervisor, of->child, of->run, of->loss);
    return true;
}

int gr_attach_follow(int connection, gr_process *supervisor, bool child, const char *run,
                     gr_attach_loss *loss_out)
{
    following of = {.connection = connection,
                    .supervisor = supervisor,
                    .child = child,
                    .run = run,
                    .loss = loss_out};
    gr_signals_hold(NULL);
    struct pollfd watched[2] = {{.fd = connection, .events = POLLIN},
                                {.fd = gr_signals_open(), .events = POLLIN}};
    int code = 0;
    for (bool over = false; !over;) {
        if (poll(watched, 2, -1) < 0) {
            continue; /* EINTR */
        }
        if (watched[0].revents != 0) {
            over = take_message(&of, &code);
        } else if (watched[1].revents != 0) {
            int signal_number = gr_signals_take(watched[1].fd);
            if (signal_number == SIGHUP) {
                of.leaving = true;
            } else if (signal_number != 0) {
                pass_on(&of, signal_number);
            }
        }
        if (!over && of.leaving && (!child || loss_out->begun)) { /* else nobody would find it */
            code = report_leaving();
            over = true;
        }
    }
    close(watched[1].fd);
    close(connection);
    gr_process_close(supervisor);
    return code;
}

/* ---- A job that is there --------------------------------------------------------------------- */

/* What no launcher has written. */
static bool write_rest(const gr_job_folder *folder, const uint64_t delivered[GR_JOB_STREAMS])
{
    char data[GR_OUTPUT_RECORD_BYTES];
    gr_output_reader reader;
    size_t size;
    int stream, error = 0;
    gr_output_reader_open(&reader, folder->fd, delivered);
    while (error == 0 && (size = gr_output_reader_next(&reader, &stream, data)) > 0) {
        error = gr_fd_write(stream == 0 ? STDOUT_FILENO : STDERR_FILENO, data, size);
    }
    gr_output_reader_close(&reader);
    if (error != 0) {
        fprintf(stderr, "gradus: the output of job %s cannot be written: %s\n", folder->name,
                strerror(error));
    }
    return error == 0;
}

void gr_attach_print_end(const gr_job_folder *folder, const gr_job_end *end, const char *then)
{
    char when[32] = "";
    time_t end_s = (time_t)end->end_s;
    struct tm local;
    if (localtime_r(&end_s, &local) != NULL) {
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    }
    fprintf(stderr, "gradus: job %s ended at %s with exit code %d, without a launcher%s\n",
            folder->name, when, end->code, then);
}

/* The rest of its output, and the exit code; with that the job is over. */
static int deliver(const gr_job_folder *folder, const gr_job_end *end, const char *then)
{
    if (!write_rest(folder, end->delivered)) {
        return GR_EXIT_FAILED;
    }
    gr_attach_print_end(folder, end, then);
    gr_job_folder_remove(folder);
    return end->code;
}

/* GR_E_AGAIN: it is about to end. */
static gr_status attach_once(gr_job_folder *folder, const char *then, int *code_out,
                             int *launcher_out, gr_attach_loss *loss_out, gr_diag *diag)
{
    gr_job_end end;
    gr_process supervisor;
    gr_job_record record = {.run = ""};
    int connection;
    const gr_job_state state = gr_job_folder_state(folder, &end);
    if (state == GR_JOB_ENDED) {
        *code_out = deliver(folder, &end, then);
        return GR_OK;
    }
    if (state == GR_JOB_LOST) {
        gr_attach_loss loss = {.found = gr_job_folder_record(folder, &loss.record)};
        if (!loss.found) {
            return gr_fail(diag, GR_E_PEER_LOST,
                           "job %s has ended, and its launcher has the exit code", folder->name);
        }
        loss.supervisor = loss.record.supervisor;
        snprintf(loss.name, sizeof loss.name, "%s", folder->name);
        *loss_out = loss;
        *code_out = GR_ATTACH_LOST;
        return GR_OK;
    }
    (void)gr_job_folder_record(folder, &record);
    sigset_t before;
    gr_signals_hold(&before); /* whoever is told of the new launcher may send one to it */
    gr_status status = gr_takeover(folder, &connection, &supervisor, launcher_out, diag);
    if (status == GR_OK) {
        gr_job_folder_close(folder);
        *code_out = gr_attach_follow(connection, &supervisor, false, record.run, loss_out);
    } else {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
    }
    return status;
}

/* A process of the job that lives has the lock of the folder: sooner or later the job answers, or
 * is found to have ended. */
bool gr_attach_to(gr_job_folder *folder, const char *then, int *code_out, gr_attach_loss *loss_out,
                  gr_diag *diag)
{
    enum { TELL_TRIES = 1000, PAUSE_MS = 10 };
    int launcher = 0;
    gr_status status = attach_once(folder, then, code_out, &launcher, loss_out, diag);
    for (int i = 1; status == GR_E_AGAIN; i++) {
        if (i == TELL_TRIES) {
            fprintf(stderr,
                    "gradus: job %s neither answers nor ends, and a process of it lives; it is "
                    "waited for\n",
                    folder->name);
        }
        i = i > TELL_TRIES ? TELL_TRIES : i;
        (void)poll(NULL, 0, PAUSE_MS);
        status = attach_once(folder, then, code_out, &launcher, loss_out, diag);
    }
    bool others = launcher != 0 || status == GR_E_PEER_LOST;
    if (status != GR_OK && !others) {
        *code_out = gr_cli_fail(GR_EXIT_FAILED, diag);
    }
    gr_job_folder_close(folder);
    return !others;
}

/* ---- A supervisor that was killed ------------------------------------------------------------ */

/* Of a job that this supervisor had. */
static bool is_lost_one(const char *name, gr_attach_loss *loss)
{
    enum { TRIES = 6000, PAUSE_MS = 10 };
    gr_job_folder folder;
    gr_job_end end;
    if (gr_job_folder_open(name, &folder, NULL) != GR_OK) {
        return false;
    }
    bool found = gr_job_folder_record(&folder, &loss->record) &&
                 is_of(&loss->record, loss->run, loss->supervisor);
    for (int i = 0; i < TRIES && found && gr_job_folder_state(&folder, &end) == GR_JOB_RUNS; i++) {
        (void)poll(NULL, 0, PAUSE_MS);
    }
    found = found && gr_job_folder_state(&folder, &end) == GR_JOB_LOST;
    gr_job_folder_close(&folder);
    return found;
}

void gr_attach_find_lost(gr_attach_loss *loss)
{
    enum { LISTED_MAX = 1024 };
    char(*names)[GR_JOB_NAME_BYTES] = malloc(LISTED_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, LISTED_MAX, NULL) : 0;
    for (int i = 0; i < count && !loss->found; i++) {
        loss->found = is_lost_one(names[i], loss);
        snprintf(loss->name, sizeof loss->name, "%s", names[i]);
    }
    free(names);
}

bool gr_attach_deliver(const gr_attach_loss *loss)
{
    gr_job_folder folder;
    uint64_t delivered[GR_JOB_STREAMS];
    if (gr_job_folder_open(loss->name, &folder, NULL) != GR_OK) {
        return true;
    }
    bool written = !gr_job_folder_left(&folder, delivered) || write_rest(&folder, delivered);
    gr_job_folder_close(&folder);
    return written;
}

bool gr_attach_goes_on(const gr_attach_loss *loss, bool may)
{
    const gr_job_record *record = &loss->record;
    bool goes_on = may && loss->found && record->attempt < record->restarts;
    char how[48] = "", times[64] = "";
    if (loss->signal_number != 0) {
        snprintf(how, sizeof how, " by signal %d (%s)", loss->signal_number,
                 strsignal(loss->signal_number));
    }
    if (may && loss->found && !goes_on && record->restarts > 0) {
        snprintf(times, sizeof times, ", which was restarted %d times already (--restarts)",
                 record->attempt);
    }
    fprintf(stderr,
            "gradus: the process that supervises the job (gradus-job, pid %d) was killed%s, and "
            "the job with it%s%s\n",
            (int)loss->supervisor, how, times, goes_on ? "; it is restarted" : "");
    gr_job_folder folder;
    if (loss->found && !goes_on && gr_job_folder_open(loss->name, &folder, NULL) == GR_OK) {
        gr_job_folder_remove(&folder);
        gr_job_folder_close(&folder);
    }
    return goes_on;
}

/* ---- The verb -------------------------------------------------------------------------------- */

typedef struct attach_options {
    char none;
} attach_options;

static const gr_config_field attach_fields[] = {{.key = NULL}};

static const gr_config_table attach_table = {.name = "attach",
                                             .title = "Flags of `gradus attach`",
                                             .fields = attach_fields,
                                             .struct_bytes = sizeof(attach_options)};

static void print_usage(void)
{
    puts("usage: gradus attach JOB\n\n"
         "Becomes the launcher of a job of yours on this host whose own launcher is gone\n"
         "(gradus ls lists them): shows what the job has written since, and what it writes, hands\n"
         "Ctrl-C and SIGTERM to its workers, and ends with its exit code. Of a job that has ended\n"
         "meanwhile it shows the rest and the exit code, once.\n"
         "Exit code: that of the job; 1 the job was killed, 2 there is no such job, or it has a\n"
         "launcher, 75 this terminal is gone.\n");
}

/* How a supervisor was started, for another one in its place. */
typedef struct origin {
    char *words, *environment; /* as /proc has them; NULL: unknown */
    size_t words_bytes, environment_bytes;
    char folder[PATH_MAX];
} origin;

static void find_origin(const gr_job_folder *folder, origin *origin_out)
{
    enum { ORIGIN_BYTES_MAX = 16 << 20 };
    gr_process supervisor = {.fd = -1};
    char path[64];
    *origin_out = (origin){.folder = ""};
    if (gr_takeover_find(folder, &supervisor, NULL) != GR_OK) {
        return;
    }
    gr_process_close(&supervisor);
    snprintf(path, sizeof path, "/proc/%d/cwd", (int)supervisor.pid);
    (void)!readlink(path, origin_out->folder, sizeof origin_out->folder - 1);
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)supervisor.pid);
    gr_status status =
        gr_file_read(path, ORIGIN_BYTES_MAX, &origin_out->words, &origin_out->words_bytes, NULL);
    snprintf(path, sizeof path, "/proc/%d/environ", (int)supervisor.pid);
    if (status == GR_OK) {
        status = gr_file_read(path, ORIGIN_BYTES_MAX, &origin_out->environment,
                              &origin_out->environment_bytes, NULL);
    }
    (void)status; /* then something is missing */
}

/* Strings with a zero behind each, as a NULL-terminated list; NULL: no memory. What was wiped in an
 * environment are empty strings. */
static char **split(char *text, size_t size_bytes, bool with_empty)
{
    char **list = calloc(size_bytes + 1, sizeof *list);
    size_t count = 0;
    for (size_t at = 0; list != NULL && at < size_bytes; at += strlen(text + at) + 1) {
        if (with_empty || text[at] != '\0') {
            list[count++] = text + at;
        }
    }
    return list;
}

/* Becomes what the supervisor's own launcher was, which finds that the job is lost. */
static int become_first_launcher(const origin *from, const sigset_t *mask)
{
    char **words = from->words != NULL ? split(from->words, from->words_bytes, true) : NULL;
    char **environment =
        from->environment != NULL ? split(from->environment, from->environment_bytes, false) : NULL;
    if (words != NULL && environment != NULL && chdir(from->folder) == 0) {
        (void)sigprocmask(SIG_SETMASK, mask, NULL);
        (void)execve("/proc/self/exe", words, environment);
    }
    fputs("gradus: give its command line once more, and it goes on\n", stderr);
    return GR_EXIT_FAILED;
}

static int attach(const gr_cli_line *line)
{
    gr_diag diag = {0};
    gr_job_folder folder;
    gr_attach_loss loss = {.supervisor = 0};
    origin from;
    sigset_t mask;
    int code;
    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    gr_status status = gr_job_folder_open(line->words[0], &folder, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    find_origin(&folder, &from);
    if (!gr_attach_to(&folder, "", &code, &loss, &diag)) {
        code = gr_cli_fail(GR_EXIT_INPUT, &diag);
    } else if (code == GR_ATTACH_LOST && loss.found) {
        fprintf(stderr,
                "gradus: job %s is lost: the process that supervised it was killed, and its "
                "workers with it; in its folder this goes on with it: %s\n",
                loss.name, loss.record.command);
        code = GR_EXIT_FAILED;
    } else if (code == GR_ATTACH_LOST) {
        gr_attach_find_lost(&loss);
        code =
            gr_attach_goes_on(&loss, true) ? become_first_launcher(&from, &mask) : GR_EXIT_FAILED;
    }
    free(from.words);
    free(from.environment);
    return code;
}

const gr_cli_form gr_attach_form = {.table = &attach_table,
                                    .usage = print_usage,
                                    .words_min = 1,
                                    .words_max = 1,
                                    .words_missing = "needs the name of a job (gradus ls)",
                                    .work = attach};
