/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/local_pod.h"

#include "base/fail.h"
#include "base/file.h"
#include "launch/environ.h"
#include "launch/lines.h"
#include "launch/spawn.h"
#include "operator/local/engine.h"
#include "operator/local/pod_files.h"
#include "operator/object.h"
#include "operator/training.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARENA_BYTES_MAX = 16 << 20, READ_BYTES = 64 * 1024 };

/* The stdout (0) or stderr (1) of one container. */
typedef struct pod_stream {
    gr_local_pod *pod;
    int number, fd; /* -1: read to its end */
    const gr_container *container;
    gr_lines lines;
    uv_poll_t poll;
} pod_stream;

struct gr_local_pod {
    gr_local_pods *pods;
    gr_arena arena;
    gr_pod_plan plan;
    gr_pod_view view;
    json_t *object; /* as it was when it started */
    const char *uid, *folder;
    int shade;
    char address[GR_ADDRESS_OF_POD_BYTES], began[32];
    pid_t pid; /* 0: its processes have ended; what they wrote may still be read */
    int control_fd;
    uv_poll_t control;
    pod_stream *streams;
    size_t stream_count;
    int handles; /* of the loop, that are not closed yet */
};

/* ---- Output ---------------------------------------------------------------------------------- */
/* Of a name that is too long its end: role and number stand there. */
static void print_end(const char *name, size_t room, char *text_out)
{
    static const char cut[] = "..";
    size_t size = strlen(name), kept = room - (sizeof cut - 1);
    snprintf(text_out, room + 1, "%s%s", size > room ? cut : "",
             size > room ? name + size - kept : name);
}

static size_t write_prefix(void *prefix_arg, char *text_out)
{
    enum { CONTAINER_BYTES = 16 };
    const pod_stream *stream = prefix_arg;
    const gr_local_pod *pod = stream->pod;
    bool is_alone = pod->plan.container_count == 1 + pod->plan.init_count;
    bool is_named = !is_alone || stream->container->is_init;
    char who[2 * GR_LINES_WHO_BYTES], name[GR_LINES_WHO_BYTES + 1];
    char container[CONTAINER_BYTES + 1] = "";
    if (is_named) {
        print_end(stream->container->name, CONTAINER_BYTES, container);
    }
    print_end(pod->plan.name, GR_LINES_WHO_BYTES - is_named - strlen(container), name);
    snprintf(who, sizeof who, "%s%s%s", name, is_named ? "/" : "", container);
    return gr_lines_print_prefix(who, pod->pods->colors[stream->number] ? pod->shade : -1,
                                 pod->pods->timestamps, text_out);
}

static void put_line(void *emit_arg, const char *text, size_t size_bytes)
{
    const pod_stream *stream = emit_arg;
    gr_sink *sink = stream->pod->pods->sinks[stream->number];
    if (sink != NULL) {
        gr_sink_put(sink, text, size_bytes);
    }
}

static void forget_handle(uv_handle_t *handle)
{
    gr_local_pod *pod = handle->data;
    pod->handles--;
}

static void forget_stream(uv_handle_t *handle)
{
    pod_stream *stream = handle->data;
    stream->pod->handles--;
}

/* What is put and not flushed waits for ever: only a flush has the loop write the rest. */
static void flush(const pod_stream *stream)
{
    gr_sink *sink = stream->pod->pods->sinks[stream->number];
    if (sink != NULL) {
        gr_sink_flush(sink);
    }
}

static void close_stream(pod_stream *stream)
{
    gr_lines_end(&stream->lines);
    flush(stream);
    if (stream->fd >= 0) {
        if (stream->poll.data != NULL) {
            uv_close((uv_handle_t *)&stream->poll, forget_stream);
        }
        close(stream->fd);
        stream->fd = -1;
    }
}

/* As read(2). */
static ssize_t read_stream(pod_stream *stream)
{
    char data[READ_BYTES];
    ssize_t got = read(stream->fd, data, sizeof data);
    int error = errno;
    if (got > 0) {
        gr_lines_feed(&stream->lines, data, (size_t)got);
    }
    flush(stream);
    errno = error;
    return got;
}

static bool has_room(const pod_stream *stream)
{
    const gr_sink *sink = stream->pod->pods->sinks[stream->number];
    return sink == NULL || gr_sink_has_room(sink);
}

/* False: a slow reader has to take something first. */
static bool read_all(pod_stream *stream)
{
    while (has_room(stream)) {
        if (read_stream(stream) <= 0) {
            return true;
        }
    }
    return false;
}

static void report_end(gr_local_pod *pod);

static void on_stream(uv_poll_t *handle, int status, int events)
{
    (void)status;
    (void)events;
    pod_stream *stream = handle->data;
    if (!has_room(stream)) { /* until gr_local_pod_go_on */
        uv_poll_stop(handle);
        return;
    }
    ssize_t got = read_stream(stream);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        close_stream(stream);
        report_end(stream->pod);
    }
}

void gr_local_pod_go_on(gr_local_pod *pod)
{
    for (size_t i = 0; i < pod->stream_count; i++) {
        pod_stream *stream = &pod->streams[i];
        if (stream->fd >= 0 && !uv_is_active((uv_handle_t *)&stream->poll)) {
            (void)uv_poll_start(&stream->poll, UV_READABLE, on_stream);
        }
    }
}

/* ---- Status ---------------------------------------------------------------------------------- */
static void write_status(gr_local_pod *pod)
{
    json_t *status = gr_pod_view_status(&pod->view);
    if (status != NULL) {
        gr_store_set_status(pod->pods->store, pod->object, status);
    }
    pod->pods->changed(pod->pods->pods_arg);
}

/* When all of its processes have ended and all that they have written is read. */
static void report_end(gr_local_pod *pod)
{
    bool is_read = pod->pid == 0;
    for (size_t i = 0; i < pod->stream_count; i++) {
        is_read &= pod->streams[i].fd < 0;
    }
    if (is_read) {
        write_status(pod);
    }
}

/* The process that stands for it was killed, and has said nothing. */
static void note_killed(gr_local_pod *pod)
{
    pod->pods->has_orphans = pod->view.is_over = pod->view.has_failed = true;
    pod->view.message = "the process that stands for the pod was killed";
    for (size_t i = 0; i < pod->plan.container_count; i++) {
        gr_pod_message killed = {.word = GR_POD_ENDED, .container = (int)i, .value = 128 + SIGKILL};
        if (pod->view.containers[i].state != 2) {
            gr_pod_view_receive(&pod->view, &killed, gr_store_now(pod->pods->store));
        }
    }
    pod->pods->changed(pod->pods->pods_arg);
}

/* All of its processes have ended. */
static void end_pod(gr_local_pod *pod)
{
    uv_close((uv_handle_t *)&pod->control, forget_handle);
    close(pod->control_fd);
    while (waitpid(pod->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    pod->pid = 0;
    if (!pod->view.is_over) {
        note_killed(pod);
    }
    for (size_t i = 0; i < pod->stream_count; i++) {
        if (pod->streams[i].fd >= 0 && read_all(&pod->streams[i])) {
            close_stream(&pod->streams[i]);
        }
    }
    report_end(pod);
}

static void receive_message(gr_local_pod *pod, const gr_pod_message *message)
{
    gr_local_pods *pods = pod->pods;
    char sentence[GR_POD_TEXT_BYTES + 200];
    if (message->word == GR_POD_PLAIN && !pods->has_no_rooms) {
        pods->has_no_rooms = true;
        snprintf(sentence, sizeof sentence,
                 "warning: this system permits no namespaces (%s): volumes are not where they are "
                 "mounted, and pods know each other by addresses in place of names, in their "
                 "environment alone",
                 message->text);
        pods->note(pods->pods_arg, sentence);
    }
    if (message->word == GR_POD_REFUSED) {
        const char *name =
            message->container >= 0 && (size_t)message->container < pod->plan.container_count
                ? pod->plan.containers[message->container].name
                : "";
        snprintf(sentence, sizeof sentence, "container %.60s cannot start: %s", name,
                 message->text);
        pods->event(pods->pods_arg, "Warning", "Failed", "pod", pod->plan.name, sentence);
    }
    gr_pod_view_receive(&pod->view, message, gr_store_now(pods->store));
    if (message->word != GR_POD_OVER) { /* the end is told when all output is read */
        write_status(pod);
    }
}

static void on_control(uv_poll_t *handle, int status, int events)
{
    (void)status;
    (void)events;
    gr_local_pod *pod = handle->data;
    gr_pod_message message;
    ssize_t got;
    while ((got = recv(pod->control_fd, &message, sizeof message, MSG_DONTWAIT)) ==
           (ssize_t)sizeof message) {
        receive_message(pod, &message);
    }
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        end_pod(pod);
    }
}

/* ---- Start ----------------------------------------------------------------------------------- */
/* As a shell reads one word. */
static void put_word(FILE *file, const char *word)
{
    fputc('\'', file);
    for (; *word != '\0'; word++) {
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, file);
    }
    fputs("' ", file);
}

/* A script that becomes this program. */
static gr_status write_tool(const gr_local_pods *pods, const char *path, const char *space,
                            const char *what, gr_diag *diag)
{
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return gr_fail_errno(diag, "create", path, errno);
    }
    if (space != NULL) {
        fputs("#!/bin/sh\nexec ", file);
        put_word(file, pods->engine != NULL ? GR_ENGINE_PROGRAM : pods->program);
        fputs("pod ", file);
        put_word(file, pods->exec);
        put_word(file, space);
        fprintf(file, "%s \"$@\"\n", what);
    } else { /* sshd: commands come by another way */
        fprintf(file, "#!/bin/sh\n%s\n", what);
    }
    int error = fchmod(fileno(file), 0755) == 0 ? 0 : errno;
    if (fclose(file) != 0 || error != 0) {
        return gr_fail_errno(diag, "write", path, error != 0 ? error : errno);
    }
    return GR_OK;
}

static gr_status write_tools(const gr_local_pod *pod, const char *folder, gr_diag *diag)
{
    static const char *const tools[][2] = {
        {"ssh", "ssh"},
        {"rsh", "ssh"},
        {"kubectl", "kubectl"},
        /* the first process of a container heeds only signals that it has asked for */
        {"sshd", "trap 'exit 0' TERM\nsleep infinity &\nwait"}};
    char path[PATH_MAX];
    if (mkdir(folder, 0755) != 0) {
        return gr_fail_errno(diag, "create", folder, errno);
    }
    gr_status status = GR_OK;
    for (size_t i = 0; i < sizeof tools / sizeof tools[0] && status == GR_OK; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, tools[i][0]);
        status = write_tool(pod->pods, path, i == 3 ? NULL : pod->plan.space, tools[i][1], diag);
    }
    return status;
}

/* Where the image of kubectl-delivery would have put it. */
static gr_status deliver(const gr_local_pod *pod, gr_diag *diag)
{
    for (size_t i = 0; i < pod->plan.container_count; i++) {
        const gr_container *container = &pod->plan.containers[i];
        const char *target = container->way == GR_CONTAINER_DELIVER
                                 ? gr_environ_find(container->environment, "TARGET_DIR")
                                 : NULL;
        for (size_t k = 0; target != NULL && k < pod->plan.mount_count; k++) {
            if (strcmp(pod->plan.mounts[k].path, target) == 0) {
                char path[PATH_MAX];
                snprintf(path, sizeof path, "%s/kubectl", pod->plan.mounts[k].source);
                return write_tool(pod->pods, path, pod->plan.space, "kubectl", diag);
            }
        }
    }
    return GR_OK;
}

static int compare_fds(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Of what the cluster has open the pod's process keeps its own. */
static void keep_only(int *fds, size_t count)
{
    int first = STDERR_FILENO + 1;
    qsort(fds, count, sizeof fds[0], compare_fds);
    for (size_t i = 0; i < count; i++) {
        if (fds[i] > first) {
            gr_spawn_close((unsigned int)first, (unsigned int)fds[i] - 1);
        }
        first = fds[i] + 1;
    }
    gr_spawn_close((unsigned int)first, ~0U);
}

_Noreturn static void become_pod(const gr_local_pod *pod, int control_fd, const int *output_fds)
{
    char path[PATH_MAX];
    size_t count = 2 * pod->plan.container_count;
    int *kept = malloc((count + 1) * sizeof *kept);
    uv_library_shutdown();
    if (kept == NULL) {
        _exit(1);
    }
    memcpy(kept, output_fds, count * sizeof *kept);
    kept[count] = control_fd;
    keep_only(kept, count + 1);
    free(kept);
    snprintf(path, sizeof path, "%s/tools/sshd", pod->folder);
    const gr_room room = {
        .root = pod->pods->root, .folder = pod->folder, .hosts = pod->pods->hosts, .sshd = path};
    const gr_pod_start start = {.plan = &pod->plan,
                                .room = &room,
                                .is_contained = pod->pods->engine != NULL,
                                .exec = pod->pods->exec,
                                .address = pod->address,
                                .control_fd = control_fd,
                                .output_fds = output_fds};
    gr_pod_process_run(&start);
}

static gr_status watch(gr_local_pod *pod, uv_poll_t *handle, void *data, int fd, uv_poll_cb heard,
                       gr_diag *diag)
{
    int error = uv_poll_init(pod->pods->loop, handle, fd);
    if (error == 0) {
        handle->data = data;
        pod->handles++;
        error = uv_poll_start(handle, UV_READABLE, heard);
    }
    return error == 0 ? GR_OK
                      : gr_fail(diag, GR_E_IO, "pod %s cannot be watched: %s", pod->plan.name,
                                uv_strerror(error));
}

/* A pipe for each stream; `output_fds` are the writing ends. */
static gr_status open_streams(gr_local_pod *pod, int *output_fds, gr_diag *diag)
{
    for (size_t i = 0; i < 2 * pod->plan.container_count; i++) {
        pod_stream *stream = &pod->streams[i];
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            return gr_fail(diag, GR_E_IO, "no pipe for pod %s: %s; raise the limit (ulimit -n)",
                           pod->plan.name, strerror(errno));
        }
        (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
        *stream = (pod_stream){.pod = pod,
                               .number = (int)(i % 2),
                               .fd = ends[0],
                               .container = &pod->plan.containers[i / 2]};
        output_fds[i] = ends[1];
        gr_lines_init(&stream->lines, write_prefix, stream, put_line, stream);
        pod->stream_count++;
    }
    return GR_OK;
}

static gr_status fork_pod(gr_local_pod *pod, const int *output_fds, gr_diag *diag)
{
    int control[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) {
        return gr_fail(diag, GR_E_IO, "no socket for pod %s: %s; raise the limit (ulimit -n)",
                       pod->plan.name, strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        become_pod(pod, control[1], output_fds);
    }
    int error = errno;
    close(control[1]);
    if (pid < 0) {
        close(control[0]);
        return gr_fail(diag, GR_E_IO, "no process for pod %s: %s", pod->plan.name, strerror(error));
    }
    pod->pid = pid;
    pod->control_fd = control[0];
    gr_status status = watch(pod, &pod->control, pod, pod->control_fd, on_control, diag);
    for (size_t i = 0; i < pod->stream_count && status == GR_OK; i++) {
        status = watch(pod, &pod->streams[i].poll, &pod->streams[i], pod->streams[i].fd, on_stream,
                       diag);
    }
    return status;
}

static gr_status contain(gr_local_pod *pod, const char *tools, gr_diag *diag)
{
    const gr_local_pods *pods = pod->pods;
    const gr_engine_place place = {.engine = pods->engine,
                                   .run = strrchr(pods->root, '/') + 1,
                                   .pod = strrchr(pod->folder, '/') + 1,
                                   .hosts = pods->hosts,
                                   .tools = tools,
                                   .exec = pods->exec,
                                   .program_folder = pods->program_folder,
                                   .environment = pods->environment};
    return gr_engine_contain(&place, &pod->arena, &pod->plan, diag);
}

static gr_status prepare(gr_local_pod *pod, gr_diag *diag)
{
    gr_local_pods *pods = pod->pods;
    const char *space = gr_object_text(pod->object, "metadata.namespace"), *stand_in = NULL;
    const char *name = gr_object_text(pod->object, "metadata.name");
    char *tools = NULL;
    gr_status status = gr_names_address(pods->names, space, name, pod->address, diag);
    pod->folder = gr_arena_printf(&pod->arena, "%s/pod-%u", pods->root, pods->started++);
    tools = gr_arena_printf(&pod->arena, "%s/tools", pod->folder);
    if (status == GR_OK && tools == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for pod %s", name);
    }
    static char *const nothing[] = {NULL};
    const gr_pod_place place = {.address = pod->address,
                                .inherited = pods->engine != NULL ? nothing : pods->environment,
                                .tools = tools,
                                .program = pods->engine != NULL ? GR_ENGINE_PROGRAM : pods->program,
                                .is_contained = pods->engine != NULL};
    if (status == GR_OK) {
        status = gr_pod_plan_make(pods->store, pod->object, &place, &pod->arena, &pod->plan, diag);
    }
    if (status == GR_OK && mkdir(pod->folder, 0755) != 0) {
        status = gr_fail_errno(diag, "create", pod->folder, errno);
    }
    if (status == GR_OK) {
        status = gr_pod_files_write(pods->store, pod->object, pod->folder, &pod->arena, &pod->plan,
                                    &stand_in, diag);
    }
    if (status == GR_OK && stand_in != NULL) {
        char sentence[400];
        snprintf(sentence, sizeof sentence,
                 "warning: volume \"%.100s\" of pod %.200s is an empty folder here", stand_in,
                 name);
        pods->note(pods->pods_arg, sentence);
    }
    if (status == GR_OK) {
        status = write_tools(pod, tools, diag);
    }
    if (status == GR_OK && pods->engine != NULL) {
        status = contain(pod, tools, diag);
    }
    return status == GR_OK ? deliver(pod, diag) : status;
}

static gr_status launch(gr_local_pod *pod, gr_diag *diag)
{
    size_t count = 2 * pod->plan.container_count;
    int *output_fds = malloc((count + 1) * sizeof *output_fds);
    pod->streams = calloc(count, sizeof *pod->streams);
    pod->view = (gr_pod_view){.plan = &pod->plan,
                              .address = pod->address,
                              .began = pod->began,
                              .containers =
                                  calloc(pod->plan.container_count, sizeof *pod->view.containers)};
    if (output_fds == NULL || pod->streams == NULL || pod->view.containers == NULL) {
        free(output_fds);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for pod %s", pod->plan.name);
    }
    gr_status status = open_streams(pod, output_fds, diag);
    if (status == GR_OK) {
        status = fork_pod(pod, output_fds, diag);
    }
    for (size_t i = 0; i < pod->stream_count; i++) {
        close(output_fds[i]);
    }
    free(output_fds);
    return status;
}

gr_status gr_local_pod_start(gr_local_pods *pods, const json_t *pod, gr_local_pod **pod_out,
                             gr_diag *diag)
{
    gr_local_pod *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a pod");
    }
    gr_arena_init(&p->arena, ARENA_BYTES_MAX);
    p->pods = pods;
    p->object = json_incref((json_t *)(uintptr_t)pod);
    p->uid = gr_object_text(pod, "metadata.uid");
    p->shade = (int)pods->started;
    snprintf(p->began, sizeof p->began, "%s", gr_store_now(pods->store));
    *pod_out = p;
    gr_status status = prepare(p, diag);
    return status == GR_OK ? launch(p, diag) : status;
}

void gr_local_pod_refresh(gr_local_pod *pod)
{
    gr_diag diag = {0};
    const char *stand_in;
    if (pod->pid > 0 && gr_pod_files_write(pod->pods->store, pod->object, pod->folder, &pod->arena,
                                           &pod->plan, &stand_in, &diag) != GR_OK) {
        pod->pods->event(pod->pods->pods_arg, "Warning", "FailedMount", "pod", pod->plan.name,
                         diag.text);
    }
}

/* ---- End ------------------------------------------------------------------------------------- */
void gr_local_pod_end(gr_local_pod *pod, int64_t grace_s)
{
    gr_pod_message message = {.word = GR_POD_END,
                              .value = grace_s < INT_MAX ? (int)grace_s : INT_MAX};
    if (pod->pid > 0) {
        (void)!send(pod->control_fd, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

bool gr_local_pod_outlives(const gr_local_pod *pod, const gr_local_pod *other)
{
    const char *role = gr_training_role_of(pod->object);
    const char *other_role = gr_training_role_of(other->object);
    return role != NULL && other_role != NULL && strcmp(role, "server") == 0 &&
           strcmp(other_role, "worker") == 0 &&
           json_equal(gr_object_at(pod->object, "metadata.ownerReferences"),
                      gr_object_at(other->object, "metadata.ownerReferences"));
}

const char *gr_local_pod_uid(const gr_local_pod *pod)
{
    return pod->uid;
}

int64_t gr_local_pod_grace_s(const gr_local_pod *pod)
{
    return pod->plan.grace_s;
}

pid_t gr_local_pod_pid(const gr_local_pod *pod)
{
    return pod->pid;
}

bool gr_local_pod_is_gone(const gr_local_pod *pod)
{
    return pod->pid == 0 && pod->handles == 0;
}

void gr_local_pod_destroy(gr_local_pod *pod)
{
    for (size_t i = 0; i < pod->stream_count; i++) {
        gr_lines_fini(&pod->streams[i].lines);
        if (pod->streams[i].fd >= 0) {
            close(pod->streams[i].fd);
        }
    }
    free(pod->streams);
    free(pod->view.containers);
    json_decref(pod->object);
    gr_arena_fini(&pod->arena);
    free(pod);
}
