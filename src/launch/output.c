/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/output.h"

#include "base/fail.h"
#include "base/file.h"
#include "launch/agent/supervisor.h"
#include "launch/lines.h"
#include "launch/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STREAMS = 2, READ_BYTES = 32 * 1024, PATH_BYTES = 4096, HOST_SHOWN_BYTES = 24 };

struct stream {
    gr_output *output;
    int rank, number; /* number 0: stdout, 1: stderr */
    int read_fd, worker_fd, log_fd;
    const char *host;
    bool watched; /* poll is initialised */
    bool last;    /* nobody can write there any more: what is there is the rest */
    bool over;
    gr_lines lines;
    uv_poll_t poll;
};

struct gr_output {
    const gr_launch_config *config;
    gr_output_events events;
    uv_loop_t *loop;
    gr_sink *sinks[STREAMS]; /* NULL: there is no launcher */
    gr_output_log *log;      /* NULL: none is kept */
    gr_output_reader reader; /* what a new launcher gets first */
    bool replaying;
    bool finishing, lost;
    int streams_left;
    struct stream *streams; /* STREAMS for each rank */
};

static struct stream *stream_of(const gr_output *output, int rank, int number)
{
    return &output->streams[rank * STREAMS + number];
}

static bool is_server(const struct stream *stream)
{
    return stream->rank >= gr_launch_slots(stream->output->config);
}

/* Its rank, or that of a server among the servers. */
static int number_of(const struct stream *stream)
{
    return is_server(stream) ? stream->rank - gr_launch_slots(stream->output->config)
                             : stream->rank;
}

/* ---- The way of a line ----------------------------------------------------------------------- */

static size_t write_prefix(void *prefix_arg, char *text_out)
{
    const struct stream *from = prefix_arg;
    const gr_launch_config *config = from->output->config;
    bool color = from->number == 0 ? config->output.color_out : config->output.color_err;
    char who[GR_LINES_WHO_BYTES + 1];
    snprintf(who, sizeof who, "%s%d%s%.*s", is_server(from) ? "server " : "", number_of(from),
             from->host != NULL ? "@" : "", HOST_SHOWN_BYTES, from->host != NULL ? from->host : "");
    return gr_lines_print_prefix(who, color ? from->rank : -1, config->output.timestamps, text_out);
}

static void put_into_sink(void *emit_arg, const char *text, size_t size_bytes)
{
    const struct stream *from = emit_arg;
    const gr_output *output = from->output;
    if (output->log != NULL) {
        gr_output_log_put(output->log, from->number, text, size_bytes);
    }
    if (output->sinks[from->number] != NULL && !output->replaying) {
        gr_sink_put(output->sinks[from->number], text, size_bytes);
    }
}

static void flush(const gr_output *output, int number)
{
    if (output->log != NULL) {
        gr_output_log_flush(output->log);
    }
    if (output->sinks[number] != NULL) {
        gr_sink_flush(output->sinks[number]);
    }
}

static void on_server_text(void *emit_arg, const char *text, size_t size_bytes)
{
    const struct stream *from = emit_arg;
    const gr_output_events *events = &from->output->events;
    events->server_text(events->event_arg, from->rank, text, size_bytes);
}

static bool is_shown(const gr_launch_config *config, int rank, int number)
{
    bool raw = config->output.raw_rank0 && number == 0;
    return rank == 0 || (raw ? gr_launch_elastic(config) : !config->output.quiet);
}

/* Lines of several ranks do not mix where nothing stands in front of them either. */
static size_t write_no_prefix(void *prefix_arg, char *text_out)
{
    (void)prefix_arg;
    (void)text_out;
    return 0;
}

/* NULL: bytes as they come. */
static gr_lines_prefix *prefix_of(const gr_launch_config *config, int rank, int number)
{
    bool raw = config->output.raw_rank0 && number == 0 && (rank == 0 || gr_launch_elastic(config));
    bool alone = config->output.quiet || gr_launch_all_slots(config) == 1;
    return raw ? NULL : config->output.prefix ? write_prefix : alone ? NULL : write_no_prefix;
}

/* ---- Creation -------------------------------------------------------------------------------- */

static gr_status open_log(struct stream *stream, const gr_launch_config *config, gr_diag *diag)
{
    char path[PATH_BYTES];
    const char *folder = config->output.log_dir;
    int behind = config->attempt > 0 ? O_APPEND : O_TRUNC;
    if (stream->log_fd >= 0) {
        return GR_OK; /* a host that is there again */
    }
    int size =
        snprintf(path, sizeof path, "%s/%s.%d.%s", folder, is_server(stream) ? "server" : "rank",
                 number_of(stream), stream->number == 0 ? "out" : "err");
    if (size >= (int)sizeof path) {
        return gr_fail(diag, GR_E_INVALID, "--log-dir: the path is too long");
    }
    /* Of a FIFO the opening would wait for a reader. */
    struct stat info;
    stream->log_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | behind, 0666);
    bool failed = stream->log_fd < 0 || fstat(stream->log_fd, &info) != 0;
    bool special = failed ? errno == ENXIO /* a FIFO without one */ : !S_ISREG(info.st_mode);
    const char *why = special ? "it is no regular file" : failed ? strerror(errno) : NULL;
    if (why != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "--log-dir: \"%s\" cannot be written: %s; name a folder that can", path,
                       why);
    }
    (void)fcntl(stream->log_fd, F_SETFL, behind & O_APPEND);
    return GR_OK;
}

static gr_status open_stream(struct stream *stream, gr_diag *diag)
{
    const gr_launch_config *config = stream->output->config;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return gr_fail(diag, GR_E_IO,
                       "a pipe for the output of rank %d cannot be made: %s; start fewer workers "
                       "or raise the limit (ulimit -n)",
                       stream->rank, strerror(errno));
    }
    stream->read_fd = ends[0];
    stream->worker_fd = ends[1];
    stream->over = stream->last = false;
    stream->output->streams_left++;
    if (fcntl(stream->read_fd, F_SETFL, O_RDONLY | O_NONBLOCK) != 0) {
        return gr_fail(diag, GR_E_IO, "a pipe cannot be made non-blocking: %s", strerror(errno));
    }
    bool shown = is_shown(config, stream->rank, stream->number);
    gr_lines_fini(&stream->lines);
    if (is_server(stream) && stream->number == 0) {
        gr_lines_init(&stream->lines, NULL, NULL, on_server_text, stream);
    } else {
        gr_lines_init(&stream->lines, prefix_of(config, stream->rank, stream->number), stream,
                      shown ? put_into_sink : NULL, stream);
    }
    return config->output.log_dir != NULL ? open_log(stream, config, diag) : GR_OK;
}

gr_status gr_output_create(const gr_launch_config *config, gr_output **output_out, gr_diag *diag)
{
    gr_output *output = calloc(1, sizeof *output);
    size_t count = (size_t)gr_launch_all_slots(config) * STREAMS;
    if (output != NULL) {
        output->streams = calloc(count, sizeof *output->streams);
    }
    if (output == NULL || output->streams == NULL) {
        free(output);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the output of %d workers",
                       config->workers);
    }
    output->config = config;
    for (size_t i = 0; i < count; i++) {
        struct stream *stream = &output->streams[i];
        stream->output = output;
        stream->rank = (int)i / STREAMS;
        stream->number = (int)i % STREAMS;
        stream->read_fd = stream->worker_fd = stream->log_fd = -1;
        stream->over = true;
    }
    gr_status status = GR_OK;
    if (config->output.log_dir != NULL) {
        status = gr_dir_create(config->output.log_dir, diag);
        if (status == GR_E_IO) {
            status = GR_E_INVALID; /* the user's choice of folder */
        }
    }
    if (status != GR_OK) {
        gr_output_destroy(output);
        return status;
    }
    *output_out = output;
    return GR_OK;
}

int gr_output_read_fd(const gr_output *output, int rank, int stream)
{
    return stream_of(output, rank, stream)->read_fd;
}

gr_status gr_output_open(gr_output *output, int rank, const char *host, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int number = 0; number < STREAMS && status == GR_OK; number++) {
        struct stream *stream = stream_of(output, rank, number);
        stream->host = host;
        status = open_stream(stream, diag);
    }
    return status;
}

int gr_output_worker_fd(const gr_output *output, int rank, int stream)
{
    return stream_of(output, rank, stream)->worker_fd;
}

/* ---- Running --------------------------------------------------------------------------------- */

static void check_settled(gr_output *output)
{
    if (output->finishing && gr_output_is_settled(output)) {
        output->events.settled(output->events.event_arg);
    }
}

static void close_ends(struct stream *stream)
{
    int *const ends[] = {&stream->read_fd, &stream->worker_fd};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (*ends[i] >= 0) {
            close(*ends[i]);
        }
        *ends[i] = -1;
    }
}

static void forget_poll(uv_handle_t *handle)
{
    struct stream *stream = handle->data;
    const gr_output *output = stream->output;
    stream->watched = false;
    close_ends(stream);
    if (output->events.closed != NULL && gr_output_is_closed(output, stream->rank)) {
        output->events.closed(output->events.event_arg, stream->rank);
    }
}

static void end_stream(struct stream *stream)
{
    if (stream->over) {
        return;
    }
    gr_lines_end(&stream->lines);
    flush(stream->output, stream->number);
    stream->over = true;
    stream->output->streams_left--;
    if (stream->watched) {
        uv_close((uv_handle_t *)&stream->poll, forget_poll);
    } else {
        close_ends(stream);
    }
}

static void write_log(struct stream *stream, const char *data, size_t size_bytes)
{
    while (stream->log_fd >= 0 && size_bytes > 0) {
        ssize_t written = write(stream->log_fd, data, size_bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            gr_log_write(stream->output->config->log, GR_LOG_WARN, "launch",
                         "the log file of rank %d cannot be written any more: %s", stream->rank,
                         strerror(errno));
            close(stream->log_fd);
            stream->log_fd = -1;
            return;
        }
        data += written;
        size_bytes -= (size_t)written;
    }
}

static bool may_read(const struct stream *stream)
{
    const gr_output *output = stream->output;
    const gr_sink *sink = output->sinks[stream->number];
    return stream->lines.emit == NULL ||
           (!output->replaying && (sink == NULL || gr_sink_has_room(sink)));
}

static void on_readable(uv_poll_t *poll, int status, int events);

/* Reads once, or, when nobody can write any more, to the end. */
static void pump(struct stream *stream)
{
    gr_output *output = stream->output;
    char data[READ_BYTES];
    while (!stream->over && may_read(stream)) {
        ssize_t got = read(stream->read_fd, data, sizeof data);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got > 0) {
            write_log(stream, data, (size_t)got);
            gr_lines_feed(&stream->lines, data, (size_t)got);
            flush(output, stream->number);
        } else if (got == 0 || errno != EAGAIN || stream->last) {
            end_stream(stream);
        } else {
            break;
        }
        if (!stream->last) {
            break; /* the others come in between */
        }
    }
    if (!stream->over && !may_read(stream)) {
        uv_poll_stop(&stream->poll);
    } else if (!stream->over && !uv_is_active((uv_handle_t *)&stream->poll)) {
        /* It cannot fail: the poll was active before. */
        (void)!uv_poll_start(&stream->poll, UV_READABLE, on_readable);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct stream *stream = poll->data;
    pump(stream);
    check_settled(stream->output);
}

/* Reads the pipes that were left alone because nobody took what is in them. */
static void resume(gr_output *output)
{
    for (int i = 0; i < gr_launch_all_slots(output->config) * STREAMS; i++) {
        struct stream *stream = &output->streams[i];
        if (!stream->over && stream->watched && !uv_is_active((uv_handle_t *)&stream->poll)) {
            pump(stream);
        }
    }
    check_settled(output);
}

/* As far as there is room. */
static void replay(gr_output *output)
{
    char data[GR_OUTPUT_RECORD_BYTES];
    size_t size = 1;
    while (size > 0 && gr_sink_has_room(output->sinks[0]) && gr_sink_has_room(output->sinks[1])) {
        int number = 0;
        size = gr_output_reader_next(&output->reader, &number, data);
        if (size > 0) {
            gr_sink_put(output->sinks[number], data, size);
            gr_sink_flush(output->sinks[number]);
        }
    }
    if (size > 0) {
        return;
    }
    output->replaying = false;
    gr_output_reader_close(&output->reader);
    if (output->reader.missing > 0) {
        gr_log_write(output->config->log, GR_LOG_WARN, "launch",
                     "%llu bytes that the job wrote before this are not kept any more",
                     (unsigned long long)output->reader.missing);
    }
}

static void on_drained(void *event_arg)
{
    gr_output *output = event_arg;
    if (output->replaying) {
        replay(output);
    }
    if (!output->replaying) {
        resume(output);
    }
}

static void on_lost(void *event_arg)
{
    gr_output *output = event_arg;
    if (!output->lost) {
        output->lost = true;
        int error = output->sinks[0]->broken ? output->sinks[0]->error : output->sinks[1]->error;
        output->events.lost(output->events.event_arg, error);
    }
}

static void close_sinks(gr_output *output)
{
    for (int number = 0; number < STREAMS; number++) {
        if (output->sinks[number] != NULL) {
            gr_sink_close(output->sinks[number]);
        }
        output->sinks[number] = NULL;
    }
}

static gr_status open_sinks(gr_output *output, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int number = 0; number < STREAMS && status == GR_OK; number++) {
        int fd = number == 0 ? output->config->output.out_fd : output->config->output.err_fd;
        status = gr_sink_open(output->loop, fd, on_drained, on_lost, output, &output->sinks[number],
                              diag);
    }
    if (status != GR_OK) {
        close_sinks(output);
    }
    return status;
}

gr_status gr_output_start(gr_output *output, uv_loop_t *loop, const gr_output_events *events,
                          gr_diag *diag)
{
    const gr_supervisor *supervisor = output->config->supervisor;
    output->events = *events;
    output->loop = loop;
    output->log = supervisor != NULL ? gr_supervisor_log(supervisor) : NULL;
    return supervisor == NULL || gr_supervisor_is_attached(supervisor) ? open_sinks(output, diag)
                                                                       : GR_OK;
}

void gr_output_leave(gr_output *output)
{
    uint64_t delivered[STREAMS] = {0};
    for (int number = 0; number < STREAMS && output->sinks[number] != NULL; number++) {
        uint64_t put = output->replaying     ? output->reader.next[number]
                       : output->log != NULL ? gr_output_log_total(output->log, number)
                                             : 0;
        delivered[number] = put - gr_sink_undelivered(output->sinks[number]);
    }
    if (output->log != NULL && output->sinks[0] != NULL) {
        gr_supervisor_note_delivered(output->config->supervisor, delivered);
    }
    if (output->replaying) {
        gr_output_reader_close(&output->reader);
    }
    output->replaying = output->lost = false;
    close_sinks(output);
    resume(output);
}

gr_status gr_output_come(gr_output *output, gr_diag *diag)
{
    gr_status status = open_sinks(output, diag);
    if (status == GR_OK) {
        gr_supervisor_read(output->config->supervisor, &output->reader);
        output->replaying = true;
        on_drained(output);
    }
    return status;
}

void gr_output_print(gr_output *output, const char *text, size_t size_bytes)
{
    if (output->sinks[1] != NULL && !output->replaying) {
        gr_sink_put(output->sinks[1], text, size_bytes);
        gr_sink_flush(output->sinks[1]);
    }
}

static int watch_stream(struct stream *stream)
{
    close(stream->worker_fd);
    stream->worker_fd = -1;
    int error = uv_poll_init(stream->output->loop, &stream->poll, stream->read_fd);
    if (error == 0) {
        stream->watched = true;
        stream->poll.data = stream;
        error = uv_poll_start(&stream->poll, UV_READABLE, on_readable);
    }
    return error;
}

gr_status gr_output_watch(gr_output *output, int rank, gr_diag *diag)
{
    int error = 0;
    for (int number = 0; number < STREAMS && error == 0; number++) {
        error = watch_stream(stream_of(output, rank, number));
    }
    return error == 0 ? GR_OK
                      : gr_fail(diag, GR_E_IO, "the output of rank %d cannot be watched: %s", rank,
                                uv_strerror(error));
}

/* To the end of what is there, as soon as our reader takes it. One that is not watched nobody has
 * written to: its host could not be started. */
static void finish_stream(struct stream *stream)
{
    if (!stream->watched) {
        end_stream(stream);
    } else if (!stream->over) {
        stream->last = true;
        pump(stream);
    }
}

void gr_output_close(gr_output *output, int rank)
{
    for (int number = 0; number < STREAMS; number++) {
        finish_stream(stream_of(output, rank, number));
    }
}

bool gr_output_is_closed(const gr_output *output, int rank)
{
    return !stream_of(output, rank, 0)->watched && !stream_of(output, rank, 1)->watched;
}

void gr_output_renew(gr_output *output, int rank)
{
    for (int number = 0; number < STREAMS; number++) {
        struct stream *stream = stream_of(output, rank, number);
        if (!stream->over && stream->watched) {
            pump(stream);
            gr_lines_end(&stream->lines);
            flush(output, number);
        }
    }
}

void gr_output_finish(gr_output *output)
{
    output->finishing = true;
    for (int i = 0; i < gr_launch_all_slots(output->config) * STREAMS; i++) {
        finish_stream(&output->streams[i]);
    }
    check_settled(output);
}

bool gr_output_is_settled(const gr_output *output)
{
    bool empty = !output->replaying;
    for (int number = 0; number < STREAMS; number++) {
        empty = empty && (output->sinks[number] == NULL || gr_sink_is_empty(output->sinks[number]));
    }
    return output->streams_left == 0 && empty;
}

void gr_output_stop(gr_output *output)
{
    output->events.closed = NULL; /* nobody starts anything there any more */
    for (int i = 0; i < gr_launch_all_slots(output->config) * STREAMS; i++) {
        struct stream *stream = &output->streams[i];
        if (stream->watched && !stream->over) {
            stream->over = true;
            uv_close((uv_handle_t *)&stream->poll, forget_poll);
        }
    }
    if (output->replaying) {
        gr_output_reader_close(&output->reader);
        output->replaying = false;
    }
    close_sinks(output);
}

void gr_output_destroy(gr_output *output)
{
    if (output == NULL) {
        return;
    }
    for (int i = 0; i < gr_launch_all_slots(output->config) * STREAMS; i++) {
        struct stream *stream = &output->streams[i];
        close_ends(stream);
        if (stream->log_fd >= 0) {
            close(stream->log_fd);
        }
        gr_lines_fini(&stream->lines);
    }
    free(output->streams);
    free(output);
}

void gr_output_tail(const gr_output *output, int rank, int lines_max, char *text_out,
                    size_t text_bytes)
{
    /* What a server says on stdout is no output. */
    int least = is_server(stream_of(output, rank, 0)) ? 1 : 0;
    for (int number = STREAMS - 1; number >= least; number--) {
        const gr_lines *lines = &stream_of(output, rank, number)->lines;
        if (gr_lines_tail(lines, lines_max, "    ", text_out, text_bytes) > 0) {
            return;
        }
    }
}
