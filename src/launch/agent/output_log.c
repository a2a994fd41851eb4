/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/output_log.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 16 };

static const char newer[] = "output", older[] = "output.old";

struct gr_output_log {
    int folder_fd, fd;
    off_t file_bytes;
    uint64_t totals[GR_JOB_STREAMS];
    int stream; /* of the bytes that are held back */
    size_t held;
    uint8_t record[HEAD_BYTES + GR_OUTPUT_RECORD_BYTES];
};

/* ---- Writing --------------------------------------------------------------------------------- */

static int open_new(int folder_fd)
{
    return openat(folder_fd, newer, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
}

gr_status gr_output_log_create(int folder_fd, gr_output_log **log_out, gr_diag *diag)
{
    gr_output_log *log = calloc(1, sizeof *log);
    if (log == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the output of the job");
    }
    log->folder_fd = folder_fd;
    log->fd = open_new(folder_fd);
    if (log->fd < 0) {
        int error = errno;
        free(log);
        return gr_fail_errno(diag, "make the file for", "the output of the job", error);
    }
    *log_out = log;
    return GR_OK;
}

void gr_output_log_destroy(gr_output_log *log)
{
    if (log != NULL) {
        gr_output_log_flush(log);
        close(log->fd);
        free(log);
    }
}

uint64_t gr_output_log_total(const gr_output_log *log, int stream)
{
    return log->totals[stream];
}

static void begin_file(gr_output_log *log)
{
    if (renameat(log->folder_fd, newer, log->folder_fd, older) != 0) {
        return; /* the folder was removed: nobody reads it any more */
    }
    int fd = open_new(log->folder_fd);
    if (fd >= 0) {
        close(log->fd);
        log->fd = fd;
        log->file_bytes = 0;
    }
}

void gr_output_log_flush(gr_output_log *log)
{
    if (log->held == 0) {
        return;
    }
    size_t size = HEAD_BYTES + log->held;
    gr_put_u32(log->record, (uint32_t)log->held);
    gr_put_u32(log->record + 4, (uint32_t)log->stream);
    gr_put_u64(log->record + 8, log->totals[log->stream] - log->held);
    log->held = 0;
    if (log->file_bytes + (off_t)size > GR_OUTPUT_FILE_BYTES) {
        begin_file(log);
    }
    if (log->file_bytes + (off_t)size > GR_OUTPUT_FILE_BYTES) {
        return;
    }
    if (gr_fd_write(log->fd, log->record, size) == 0) {
        log->file_bytes += (off_t)size;
    } else if (ftruncate(log->fd, log->file_bytes) == 0) {
        (void)lseek(log->fd, log->file_bytes, SEEK_SET);
    }
}

void gr_output_log_put(gr_output_log *log, int stream, const char *data, size_t size_bytes)
{
    while (size_bytes > 0) {
        if (log->held > 0 && (log->stream != stream || log->held == GR_OUTPUT_RECORD_BYTES)) {
            gr_output_log_flush(log);
        }
        size_t room = GR_OUTPUT_RECORD_BYTES - log->held;
        size_t part = size_bytes < room ? size_bytes : room;
        memcpy(log->record + HEAD_BYTES + log->held, data, part);
        log->stream = stream;
        log->held += part;
        log->totals[stream] += part;
        data += part;
        size_bytes -= part;
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

static int open_file(int folder_fd, const char *name)
{
    return openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

void gr_output_reader_open(gr_output_reader *reader, int folder_fd,
                           const uint64_t from[GR_JOB_STREAMS])
{
    *reader = (gr_output_reader){.folder_fd = folder_fd, .fd = open_file(folder_fd, older)};
    memcpy(reader->next, from, sizeof reader->next);
    if (reader->fd < 0) {
        reader->fd = open_file(folder_fd, newer);
    }
}

void gr_output_reader_close(gr_output_reader *reader)
{
    if (reader->fd >= 0) {
        close(reader->fd);
    }
    reader->fd = -1;
}

static bool same_file(int fd, int other_fd)
{
    struct stat info, other;
    return fstat(fd, &info) == 0 && fstat(other_fd, &other) == 0 && info.st_dev == other.st_dev &&
           info.st_ino == other.st_ino;
}

/* Nothing is added any more to the file that it is in: another one has begun. */
static bool is_behind(const gr_output_reader *reader)
{
    int last = open_file(reader->folder_fd, newer);
    bool behind = last >= 0 && !same_file(reader->fd, last);
    if (last >= 0) {
        close(last);
    }
    return behind;
}

/* To the next file, which is the last one, or the one before it if ours was dropped. */
static void go_on(gr_output_reader *reader)
{
    int next = open_file(reader->folder_fd, older);
    if (next >= 0 && same_file(reader->fd, next)) {
        close(next);
        next = -1;
    }
    close(reader->fd);
    reader->fd = next >= 0 ? next : open_file(reader->folder_fd, newer);
}

/* A whole record at the place where the file is read; 0: there is none (yet). */
static size_t read_record(int fd, int *stream_out, uint64_t *first_out,
                          char data_out[GR_OUTPUT_RECORD_BYTES])
{
    uint8_t head[HEAD_BYTES];
    const off_t at = lseek(fd, 0, SEEK_CUR);
    if (read(fd, head, sizeof head) == (ssize_t)sizeof head) {
        const uint32_t size = gr_get_u32(head), stream = gr_get_u32(head + 4);
        if (size > 0 && size <= GR_OUTPUT_RECORD_BYTES && stream < GR_JOB_STREAMS &&
            read(fd, data_out, size) == (ssize_t)size) {
            *stream_out = (int)stream;
            *first_out = gr_get_u64(head + 8);
            return size;
        }
    }
    (void)lseek(fd, at, SEEK_SET);
    return 0;
}

size_t gr_output_reader_next(gr_output_reader *reader, int *stream_out,
                             char data_out[GR_OUTPUT_RECORD_BYTES])
{
    bool behind = false;
    while (reader->fd >= 0) {
        uint64_t first;
        size_t size = read_record(reader->fd, stream_out, &first, data_out);
        if (size == 0 && behind) { /* what was added until the next file began has been read */
            go_on(reader);
            behind = false;
            continue;
        }
        if (size == 0) {
            behind = is_behind(reader);
            if (!behind) {
                return 0;
            }
            continue;
        }
        uint64_t *next = &reader->next[*stream_out];
        if (first + size <= *next) {
            continue;
        }
        uint64_t skip = first < *next ? *next - first : 0;
        reader->missing += first > *next ? first - *next : 0;
        *next = first + size;
        memmove(data_out, data_out + skip, size - skip);
        return size - skip;
    }
    return 0;
}
