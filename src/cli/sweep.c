/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus sweep`: a job file once for each combination of values, one after the other. Each run is
 * a `gradus run` of its own, with an output folder of its own. Asked to end, the sweep asks its run
 * to, and ends behind it with the table of what has been done. */

#include "base/fail.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "launch/launch.h"
#include "launch/process.h"
#include "launch/signals.h"
#include "train/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    AXES_MAX = 8,
    RUNS_MAX = 1000,
    WORDS_MAX = 12 + 2 * AXES_MAX,
    TAIL_BYTES_MAX = 64 << 20, /* of metrics.jsonl, with its last line */
    POLL_MS = 100,             /* where a kernel has no descriptors of processes */
    NOT_STARTED = 127
};

typedef struct sweep_options {
    const char *const *set;
    const char *output;
    int64_t workers;
    bool resume, json;
} sweep_options;

static const gr_config_field sweep_fields[] = {
    {.flag = "--set",
     .type = GR_CONFIG_LIST,
     .offset = offsetof(sweep_options, set),
     .value_name = "KEY=A,B,...",
     .help =
         "the values of a key of the job file, optimizer.learning_rate=0.1,0.01 say; any number "
         "of times: one run for each combination"},
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     .offset = offsetof(sweep_options, workers),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "number of workers of each run; otherwise what the job file says"},
    {.flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(sweep_options, output),
     .default_text = "out/sweep",
     .value_name = "DIR",
     .help = "folder for the runs: run-001 and so on, each with weights, metrics, checkpoints and "
             "log.txt"},
    {.flag = "--resume",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(sweep_options, resume),
     .help = "each run goes on from its newest sound checkpoint, one that had ended ends at once; "
             "from the beginning if there is none"},
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(sweep_options, json),
     .help = "print JSON, one object a line for each run"},
    {.key = NULL},
};

const gr_config_table gr_sweep_table = {.name = "sweep",
                                        .title = "Flags of `gradus sweep`",
                                        .fields = sweep_fields,
                                        .struct_bytes = sizeof(sweep_options)};

typedef struct sweep_run {
    const char *settings[AXES_MAX + 1]; /* "key=value"; ends with NULL */
    const char *folder, *checkpoints;
    int code; /* exit code; 128 + its number for a signal */
    double test_accuracy, test_loss, loss, seconds;
} sweep_run;

typedef struct sweep_axis {
    const char **settings; /* "key=value" */
    int count;
} sweep_axis;

typedef struct sweep {
    const sweep_options *options;
    const char *job;
    gr_arena *arena;
    sweep_axis axes[AXES_MAX];
    int axis_count, run_count;
    bool places_checkpoints; /* by --set checkpoint.to */
    sweep_run *runs;
    sigset_t mask;   /* of the process before it held signals: that of the runs */
    int signals;     /* the descriptor of held ones; -1: none is held */
    int stop_signal; /* that has asked to end; 0: none */
} sweep;

/* ---- Which runs ------------------------------------------------------------------------------ */

/* Up to the next comma that is in no brackets and no quotes. */
static size_t value_bytes(const char *text)
{
    int depth = 0;
    char quote = '\0';
    size_t at = 0;
    for (; text[at] != '\0' && (text[at] != ',' || depth > 0 || quote != '\0'); at++) {
        if (quote != '\0') {
            quote = text[at] == quote ? '\0' : quote;
        } else if (text[at] == '"' || text[at] == '\'') {
            quote = text[at];
        } else {
            depth += (text[at] == '[' || text[at] == '{') - (text[at] == ']' || text[at] == '}');
        }
    }
    return at;
}

static bool is_key(const char *text, const char *equals, const char *key)
{
    return (size_t)(equals - text) == strlen(key) && strncmp(text, key, strlen(key)) == 0;
}

static gr_status read_axis(sweep *s, const char *text, gr_diag *diag)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || equals[1] == '\0') {
        return gr_fail(diag, GR_E_INVALID,
                       "--set %s: must read key=value,value, like "
                       "optimizer.learning_rate=0.1,0.01",
                       text);
    }
    if (is_key(text, equals, "output")) {
        return gr_fail(diag, GR_E_INVALID,
                       "--set %s: each run has a folder of its own in that of --output", text);
    }
    s->places_checkpoints = s->places_checkpoints || is_key(text, equals, "checkpoint.to");
    if (s->axis_count == AXES_MAX) {
        return gr_fail(diag, GR_E_INVALID, "sweep: at most %d --set", AXES_MAX);
    }
    sweep_axis *axis = &s->axes[s->axis_count++];
    axis->settings = gr_arena_alloc(s->arena, (strlen(equals) + 1) * sizeof *axis->settings);
    for (const char *at = equals + 1; axis->settings != NULL; at++) {
        size_t size = value_bytes(at);
        const char *setting =
            gr_arena_printf(s->arena, "%.*s=%.*s", (int)(equals - text), text, (int)size, at);
        axis->settings[axis->count++] = setting;
        at += size;
        if (setting == NULL || *at == '\0') {
            return setting != NULL
                       ? GR_OK
                       : gr_fail(diag, GR_E_NO_MEMORY, "no memory for the values of --set");
        }
    }
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the values of --set");
}

static gr_status list_runs(sweep *s, gr_diag *diag)
{
    int64_t count = 1;
    for (int i = 0; i < s->axis_count && count <= RUNS_MAX; i++) {
        count *= s->axes[i].count;
    }
    if (count > RUNS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "sweep: more than %d combinations; give fewer values",
                       RUNS_MAX);
    }
    s->runs = gr_arena_alloc(s->arena, (size_t)count * sizeof *s->runs);
    for (int i = 0; i < (int)count && s->runs != NULL; i++) {
        sweep_run *run = &s->runs[i];
        *run = (sweep_run){.code = -1,
                           .test_accuracy = (double)NAN,
                           .test_loss = (double)NAN,
                           .loss = (double)NAN,
                           .seconds = (double)NAN};
        int rest = i; /* the last axis changes first */
        for (int axis = s->axis_count - 1; axis >= 0; axis--) {
            run->settings[axis] = s->axes[axis].settings[rest % s->axes[axis].count];
            rest /= s->axes[axis].count;
        }
        run->folder = gr_arena_printf(s->arena, "%s/run-%03d", s->options->output, i + 1);
        run->checkpoints = gr_arena_printf(s->arena, "%s/checkpoints", run->folder);
        s->run_count += run->folder != NULL && run->checkpoints != NULL;
    }
    return s->run_count == count ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for the runs");
}

/* ---- One run --------------------------------------------------------------------------------- */

/* In a group of its own: Ctrl-C is for the sweep, which asks the run to end. */
static void become_run(const sweep *s, const char *const *words, const char *out, pid_t launcher)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM, 0L, 0L, 0L); /* it ends in order */
    int fd = open(out != NULL ? out : "/dev/null",
                  O_WRONLY | O_CREAT | (s->options->resume ? O_APPEND : O_TRUNC), 0666);
    if (getppid() != launcher || fd < 0 || dup2(fd, STDOUT_FILENO) < 0 ||
        (out != NULL && (dup2(fd, STDERR_FILENO) < 0 || setpgid(0, 0) != 0))) {
        _exit(NOT_STARTED);
    }
    execv("/proc/self/exe", (char *const *)(uintptr_t)words);
    _exit(NOT_STARTED);
}

/* Until the run has ended, to which a request to end is passed on. */
static int wait_for_run(sweep *s, pid_t pid)
{
    gr_process run = gr_process_open(pid);
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(pid, &status, s->signals >= 0 ? WNOHANG : 0)) == 0 ||
           (ended < 0 && errno == EINTR)) {
        gr_signals_sleep(run.fd, run.fd >= 0 ? -1 : POLL_MS);
        int number = gr_signals_take(s->signals);
        if (number != 0) {
            s->stop_signal = number;
            (void)gr_process_signal(&run, SIGTERM);
        }
    }
    gr_process_close(&run);
    return ended < 0           ? NOT_STARTED
           : WIFEXITED(status) ? WEXITSTATUS(status)
                               : 128 + WTERMSIG(status);
}

/* `out`: NULL: stdout is dropped and stderr is ours. */
static int start_and_wait(sweep *s, const char *const *words, const char *out)
{
    fflush(NULL);
    pid_t launcher = getpid(), pid = fork();
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &s->mask, NULL);
        become_run(s, words, out, launcher);
    }
    return pid < 0 ? NOT_STARTED : wait_for_run(s, pid);
}

static void run_words(const sweep *s, const sweep_run *run, bool dry,
                      const char *words_out[WORDS_MAX])
{
    int count = 0;
    words_out[count++] = "gradus";
    words_out[count++] = "run";
    words_out[count++] = s->job;
    words_out[count++] = "--output";
    words_out[count++] = run->folder;
    if (!s->places_checkpoints) {
        words_out[count++] = "--checkpoint-to";
        words_out[count++] = run->checkpoints;
    }
    if (s->options->resume) {
        words_out[count++] = "--resume";
    }
    if (dry) {
        words_out[count++] = "--dry-run";
    }
    if (s->options->workers > 0) {
        words_out[count++] = "-np";
        words_out[count++] = gr_arena_printf(s->arena, "%lld", (long long)s->options->workers);
    }
    for (int i = 0; i < s->axis_count; i++) {
        words_out[count++] = "--set";
        words_out[count++] = run->settings[i];
    }
    words_out[count] = NULL;
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* Heap memory (free); NULL: it cannot be read. */
static char *read_tail(const char *path, size_t *size_out)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    if (file != NULL && fseeko(file, 0, SEEK_END) == 0) {
        off_t end = ftello(file), first = end > TAIL_BYTES_MAX ? end - TAIL_BYTES_MAX : 0;
        if (end > 0 && fseeko(file, first, SEEK_SET) == 0) {
            text = malloc((size_t)(end - first));
        }
        *size_out = text != NULL ? fread(text, 1, (size_t)(end - first), file) : 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

/* What its last line of metrics.jsonl says. */
static void read_result(sweep_run *run)
{
    char path[PATH_MAX];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run->folder);
    char *text = read_tail(path, &size);
    if (text == NULL) {
        return;
    }
    while (size > 0 && text[size - 1] == '\n') {
        size--;
    }
    size_t begin = size;
    while (begin > 0 && text[begin - 1] != '\n') {
        begin--;
    }
    json_t *end = json_loadb(text + begin, size - begin, 0, NULL);
    run->test_accuracy = number_of(end, "test_accuracy");
    run->test_loss = number_of(end, "test_loss");
    run->loss = number_of(end, "loss");
    run->seconds = number_of(end, "seconds");
    json_decref(end);
    free(text);
}

static int do_run(sweep *s, int number, gr_diag *diag)
{
    sweep_run *run = &s->runs[number];
    const char *words[WORDS_MAX];
    char log[PATH_MAX];
    if (gr_dir_create(run->folder, diag) != GR_OK) {
        return GR_EXIT_FAILED;
    }
    snprintf(log, sizeof log, "%s/log.txt", run->folder);
    run_words(s, run, false, words);
    run->code = start_and_wait(s, words, log);
    if (run->code == GR_EXIT_DONE) {
        read_result(run);
    }
    fprintf(stderr, "gradus: run %d of %d", number + 1, s->run_count);
    for (int i = 0; i < s->axis_count; i++) {
        fprintf(stderr, "%s %s", i > 0 ? "," : ":", run->settings[i]);
    }
    fprintf(stderr, run->code == GR_EXIT_DONE ? "\n" : "; ended with %d, %s says why\n", run->code,
            log);
    return run->code;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* What a run is judged by: the larger, the better. */
static double worth(const sweep_run *run)
{
    double value = !isnan(run->test_accuracy) ? run->test_accuracy
                   : !isnan(run->test_loss)   ? -run->test_loss
                                              : -run->loss;
    return isnan(value) ? -HUGE_VAL : value;
}

static int by_worth(const void *a, const void *b)
{
    const sweep_run *x = a, *y = b;
    double better = worth(x), other = worth(y);
    if (better != other) {
        return better > other ? -1 : 1;
    }
    return strcmp(x->folder, y->folder);
}

static json_t *number_or_null(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static gr_status print_json(const sweep *s, const sweep_run *run, gr_diag *diag)
{
    json_t *settings = json_object();
    for (int i = 0; i < s->axis_count; i++) {
        const char *equals = strchr(run->settings[i], '=');
        char key[256];
        snprintf(key, sizeof key, "%.*s", (int)(equals - run->settings[i]), run->settings[i]);
        (void)json_object_set_new(settings, key, json_string(equals + 1));
    }
    return gr_cli_print_json(
        json_pack("{s:o, s:s, s:i, s:o, s:o, s:o, s:o}", "set", settings, "output", run->folder,
                  "exit_code", run->code, "test_accuracy", number_or_null(run->test_accuracy),
                  "test_loss", number_or_null(run->test_loss), "loss", number_or_null(run->loss),
                  "seconds", number_or_null(run->seconds)),
        diag);
}

/* Blanks for one that there is none of. */
static void print_number(int width, int decimals, double value, const char *unit)
{
    if (isnan(value)) {
        printf("%*s", width + (int)strlen(unit), "");
    } else {
        printf("%*.*f%s", width, decimals, value, unit);
    }
}

static void print_row(const sweep *s, const sweep_run *run)
{
    if (run->code == GR_EXIT_RESUME) {
        printf("%9s  %9s  %9s  %8s", "stopped", "", "", "");
    } else if (run->code != GR_EXIT_DONE) {
        printf("%9s  %9s  %9s  %8s", "failed", "", "", "");
    } else {
        print_number(7, 2, 100 * run->test_accuracy, " %");
        print_number(11, 4, run->test_loss, "");
        print_number(11, 4, run->loss, "");
        print_number(10, 1, run->seconds, "");
    }
    printf("  %s ", run->folder);
    for (int i = 0; i < s->axis_count; i++) {
        printf(" %s", run->settings[i]);
    }
    putchar('\n');
}

static gr_status print_table(sweep *s, gr_diag *diag)
{
    gr_status status = GR_OK;
    qsort(s->runs, (size_t)s->run_count, sizeof *s->runs, by_worth);
    if (!s->options->json) {
        printf("%9s  %9s  %9s  %8s  %s\n", "test", "test loss", "loss", "seconds", "output");
    }
    for (int i = 0; i < s->run_count && status == GR_OK; i++) {
        if (s->runs[i].code < 0) {
            continue; /* not begun */
        }
        if (s->options->json) {
            status = print_json(s, &s->runs[i], diag);
        } else {
            print_row(s, &s->runs[i]);
        }
    }
    return status;
}

/* ---- The verb -------------------------------------------------------------------------------- */

/* Those of an earlier sweep, from which a run would not begin. */
static gr_status check_checkpoints(const sweep *s, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int i = 0; i < s->run_count && status == GR_OK; i++) {
        uint64_t *steps = NULL;
        int count = 0;
        status = gr_checkpoint_list(s->runs[i].checkpoints, &steps, &count, diag);
        free(steps);
        if (status == GR_OK && count > 0) {
            status = gr_fail(diag, GR_E_INVALID,
                             "sweep: %s holds checkpoints of an earlier sweep; go on from them "
                             "with --resume, or choose another folder (--output)",
                             s->runs[i].checkpoints);
        }
    }
    return status;
}

/* Which runs there are; whatever is wrong is said before any starts. */
static int prepare(sweep *s, gr_diag *diag)
{
    gr_status status = s->options->set != NULL
                           ? GR_OK
                           : gr_fail(diag, GR_E_INVALID,
                                     "sweep: say which values to try, --set "
                                     "optimizer.learning_rate=0.1,0.01 for example");
    for (size_t i = 0; status == GR_OK && s->options->set[i] != NULL; i++) {
        status = read_axis(s, s->options->set[i], diag);
    }
    if (status == GR_OK) {
        status = list_runs(s, diag);
    }
    if (status == GR_OK && !s->options->resume && !s->places_checkpoints) {
        status = check_checkpoints(s, diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, diag);
    }
    int code = GR_EXIT_DONE;
    for (int i = 0; i < s->run_count && code == GR_EXIT_DONE; i++) {
        const char *words[WORDS_MAX];
        run_words(s, &s->runs[i], true, words);
        code = start_and_wait(s, words, NULL);
    }
    return code;
}

/* Between two runs, too. */
static bool is_asked_to_end(sweep *s)
{
    int number = s->stop_signal != 0 ? s->stop_signal : gr_signals_take(s->signals);
    s->stop_signal = number;
    return number != 0;
}

static int work(const gr_cli_line *line)
{
    sweep s = {.options = line->options, .job = line->words[0], .arena = line->arena};
    gr_diag diag = {0};
    (void)sigprocmask(SIG_SETMASK, NULL, &s.mask);
    s.signals = -1;
    int failed = GR_EXIT_DONE, code = prepare(&s, &diag), begun = 0;
    if (code != GR_EXIT_DONE) {
        return code;
    }
    gr_signals_hold(NULL);
    s.signals = gr_signals_open();
    if (s.signals < 0) {
        (void)sigprocmask(SIG_SETMASK, &s.mask, NULL); /* they end it at once, as before */
    }
    while (begun < s.run_count && code != GR_EXIT_RESUME && !is_asked_to_end(&s)) {
        code = do_run(&s, begun, &diag);
        if (s.runs[begun++].code < 0) {
            return gr_cli_fail(code, &diag);
        }
        failed = code == GR_EXIT_DONE ? failed : GR_EXIT_FAILED;
    }
    bool ends = code == GR_EXIT_RESUME ||
                (s.stop_signal != 0 && (begun < s.run_count || code != GR_EXIT_DONE));
    if (ends && begun < s.run_count) {
        fprintf(stderr, "gradus: asked to end: %d of %d runs were not begun\n", s.run_count - begun,
                s.run_count);
    }
    gr_status status = print_table(&s, &diag);
    int written = status == GR_OK ? gr_cli_flush() : gr_cli_fail(GR_EXIT_FAILED, &diag);
    return ends ? GR_EXIT_RESUME : failed != GR_EXIT_DONE ? failed : written;
}

static void print_usage(void)
{
    puts("usage: gradus sweep job.yaml --set KEY=A,B,... [--set ...] [flags]\n\n"
         "Trains the job once for each combination of the values, one after the other, and lists\n"
         "the runs, the best first: by test accuracy, else by test loss, else by loss.\n"
         "Ctrl-C or SIGTERM ends the run that is going on, and the sweep behind it.\n"
         "Exit code: 0 all runs ended well, 1 one failed, 2 what was given is wrong and nothing\n"
         "was started, 75 ended on request: --resume goes on.\n");
}

const gr_cli_form gr_sweep_form = {
    .table = &gr_sweep_table,
    .usage = print_usage,
    .words_min = 1,
    .words_max = 1,
    .words_missing =
        "needs a job file: gradus sweep job.yaml --set optimizer.learning_rate=0.1,0.01",
    .by_environment = true,
    .work = work};
