/* SPDX-License-Identifier: Apache-2.0 */
#include "data/input_stream.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SOURCE_INPUT_BYTES = 64 << 10 };

struct gr_input_stream {
    char *name;
    int fd;                /* -1: memory */
    const uint8_t *memory; /* what is left of it */
    size_t memory_left;
    uint64_t file_bytes;
    bool packed;
    bool inside;     /* a gzip member has begun and has not ended */
    bool input_done; /* the file has no more bytes for `input` */
    z_stream z;
    uint8_t *input;   /* packed bytes, SOURCE_INPUT_BYTES */
    gr_status failed; /* what the next read returns: bytes before a failure are given out first */
    gr_diag failed_diag;
};

/* The bytes as they are in the file. */
static gr_status raw_read(gr_input_stream *source, uint8_t *buffer, size_t size, size_t *got_out,
                          gr_diag *diag)
{
    size_t got = 0;
    if (source->fd < 0) {
        got = size < source->memory_left ? size : source->memory_left;
        if (got > 0) {
            memcpy(buffer, source->memory, got);
            source->memory += got;
            source->memory_left -= got;
        }
        *got_out = got;
        return GR_OK;
    }
    while (got < size) {
        ssize_t n = read(source->fd, buffer + got, size - got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return gr_fail(diag, GR_E_IO, "%s: cannot be read: %s", source->name, strerror(errno));
        }
        if (n == 0) {
            break;
        }
        got += (size_t)n;
    }
    *got_out = got;
    return GR_OK;
}

static gr_status packed_fail(const gr_input_stream *source, int result, gr_diag *diag)
{
    if (result == Z_MEM_ERROR) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to unpack it", source->name);
    }
    return gr_fail(diag, GR_E_INVALID, "%s: the gzip data is damaged (%s); fetch the file again",
                   source->name, source->z.msg != NULL ? source->z.msg : "no gzip member");
}

/* More packed input behind what inflate has left; at the end of the file `input_done`. */
static gr_status packed_input(gr_input_stream *source, gr_diag *diag)
{
    size_t got = 0;
    gr_status status = raw_read(source, source->input, SOURCE_INPUT_BYTES, &got, diag);
    if (status != GR_OK) {
        return status;
    }
    source->z.next_in = source->input;
    source->z.avail_in = (uInt)got;
    source->input_done = got < SOURCE_INPUT_BYTES;
    return GR_OK;
}

/* Zeros behind a member fill a block of a tape or a disk: they are no further member. */
static gr_status skip_padding(gr_input_stream *source, gr_diag *diag)
{
    z_stream *z = &source->z;
    for (;;) {
        while (z->avail_in > 0 && *z->next_in == 0) {
            z->next_in++;
            z->avail_in--;
        }
        if (z->avail_in > 0 || source->input_done) {
            return GR_OK;
        }
        gr_status status = packed_input(source, diag);
        if (status != GR_OK) {
            return status;
        }
    }
}

/* One piece of unpacked bytes; none: the end. */
static gr_status packed_piece(gr_input_stream *source, uint8_t *buffer, size_t size,
                              size_t *got_out, gr_diag *diag)
{
    z_stream *z = &source->z;
    *got_out = 0;
    gr_status status = GR_OK;
    if (!source->inside) {
        status = skip_padding(source, diag);
    } else if (z->avail_in == 0 && !source->input_done) {
        status = packed_input(source, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (z->avail_in == 0 && !source->inside) {
        return GR_OK; /* the last member has ended */
    }
    if (z->avail_in == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: the gzip data ends in the middle: the file is truncated", source->name);
    }
    if (!source->inside) { /* a further member */
        if (inflateReset(z) != Z_OK) {
            return packed_fail(source, Z_DATA_ERROR, diag);
        }
        source->inside = true;
    }
    size_t room = size < (1u << 30) ? size : (1u << 30);
    z->next_out = buffer;
    z->avail_out = (uInt)room;
    int result = inflate(z, Z_NO_FLUSH);
    *got_out = room - z->avail_out;
    if (result == Z_STREAM_END) {
        source->inside = false;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return packed_fail(source, result, diag);
    }
    return GR_OK;
}

static gr_status packed_read(gr_input_stream *source, uint8_t *buffer, size_t size, size_t *got_out,
                             gr_diag *diag)
{
    size_t got = 0;
    while (got < size && source->failed == GR_OK) {
        size_t piece;
        source->failed =
            packed_piece(source, buffer + got, size - got, &piece, &source->failed_diag);
        got += piece;
        if (piece == 0 && source->z.avail_in == 0 && source->input_done && !source->inside) {
            break;
        }
    }
    *got_out = got;
    if (got == 0 && source->failed != GR_OK && size > 0) {
        if (diag != NULL) {
            *diag = source->failed_diag;
        }
        return source->failed;
    }
    return GR_OK;
}

/* Looks at the first bytes; `input` keeps them for inflate, a plain source starts over. */
static gr_status recognise(gr_input_stream *source, gr_diag *diag)
{
    const uint8_t *memory = source->memory;
    size_t memory_left = source->memory_left;
    gr_status status = packed_input(source, diag);
    if (status != GR_OK) {
        return status;
    }
    if (source->z.avail_in >= 2 && source->input[0] == 0x1f && source->input[1] == 0x8b) {
        source->packed = true;
        source->inside = true;
        /* 15: the largest window; + 16: gzip, with its checksum. */
        int result = inflateInit2(&source->z, 15 + 16);
        return result == Z_OK ? GR_OK : packed_fail(source, result, diag);
    }
    source->memory = memory;
    source->memory_left = memory_left;
    if (source->fd >= 0 && lseek(source->fd, 0, SEEK_SET) != 0) {
        return gr_fail(diag, GR_E_IO, "%s: cannot be read from the start: %s", source->name,
                       strerror(errno));
    }
    return GR_OK;
}

static gr_status source_finish(gr_input_stream *source, gr_input_stream **source_out, gr_diag *diag)
{
    gr_status status = recognise(source, diag);
    if (status != GR_OK) {
        gr_input_stream_close(source);
        return status;
    }
    *source_out = source;
    return GR_OK;
}

static gr_input_stream *source_new(const char *name)
{
    gr_input_stream *source = calloc(1, sizeof *source);
    if (source == NULL) {
        return NULL;
    }
    source->fd = -1;
    source->name = strdup(name);
    source->input = malloc(SOURCE_INPUT_BYTES);
    if (source->name == NULL || source->input == NULL) {
        gr_input_stream_close(source);
        return NULL;
    }
    return source;
}

gr_status gr_input_stream_open(const char *path, gr_input_stream **source_out, gr_diag *diag)
{
    gr_input_stream *source = source_new(path);
    if (source == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to open it", path);
    }
    gr_status status;
    struct stat info;
    /* Not blocking: a named pipe is refused below instead of waited for. */
    source->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        status = gr_fail(diag, GR_E_NOT_FOUND, "%s: there is no such file", path);
    } else if (source->fd < 0) {
        status = gr_fail(diag, GR_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    } else if (fstat(source->fd, &info) != 0) {
        status = gr_fail(diag, GR_E_IO, "%s: cannot be examined: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = gr_fail(diag, GR_E_INVALID, "%s: is %s; a data file must be a regular file", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    } else {
        source->file_bytes = (uint64_t)info.st_size;
        return source_finish(source, source_out, diag);
    }
    gr_input_stream_close(source);
    return status;
}

gr_status gr_input_stream_open_memory(const char *name, const void *data, size_t size_bytes,
                                      gr_input_stream **source_out, gr_diag *diag)
{
    gr_input_stream *source = source_new(name);
    if (source == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to open it", name);
    }
    source->memory = data;
    source->memory_left = size_bytes;
    return source_finish(source, source_out, diag);
}

void gr_input_stream_close(gr_input_stream *source)
{
    if (source == NULL) {
        return;
    }
    if (source->packed) {
        inflateEnd(&source->z);
    }
    if (source->fd >= 0) {
        close(source->fd);
    }
    free(source->input);
    free(source->name);
    free(source);
}

gr_status gr_input_stream_read(gr_input_stream *source, void *buffer, size_t size_bytes,
                               size_t *got_out, gr_diag *diag)
{
    return source->packed ? packed_read(source, buffer, size_bytes, got_out, diag)
                          : raw_read(source, buffer, size_bytes, got_out, diag);
}

const char *gr_input_stream_name(const gr_input_stream *source)
{
    return source->name;
}

int gr_input_stream_seekable(const gr_input_stream *source, uint64_t *size_out)
{
    if (source->packed || source->fd < 0) {
        return -1;
    }
    *size_out = source->file_bytes;
    return source->fd;
}
