/* SPDX-License-Identifier: Apache-2.0 */
#include "data/record_cache.h"

#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_BYTES = 1 << 20 };

struct gr_record_cache {
    char *name;
    size_t record_bytes;
    uint64_t count;
    uint64_t memory_max;
    uint8_t *memory; /* all records while fd is -1; else what is not written yet */
    size_t memory_used, memory_capacity;
    int fd;
    bool foreign; /* somebody else's file */
    uint64_t base;
    uint64_t written; /* bytes in the temporary file */
    gr_file_mark mark;
};

static gr_record_cache *cache_new(const char *name, size_t record_bytes)
{
    gr_record_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) {
        return NULL;
    }
    cache->fd = -1;
    cache->record_bytes = record_bytes;
    cache->name = strdup(name);
    if (cache->name == NULL) {
        gr_record_cache_destroy(cache);
        return NULL;
    }
    return cache;
}

gr_status gr_record_cache_create(const char *name, size_t record_bytes, uint64_t memory_max,
                                 gr_record_cache **cache_out, gr_diag *diag)
{
    gr_record_cache *cache = cache_new(name, record_bytes);
    if (cache == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", name);
    }
    cache->memory_max = memory_max;
    *cache_out = cache;
    return GR_OK;
}

gr_status gr_record_cache_over_file(const char *name, int fd, uint64_t base, size_t record_bytes,
                                    uint64_t count, gr_record_cache **cache_out, gr_diag *diag)
{
    gr_record_cache *cache = cache_new(name, record_bytes);
    if (cache == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", name);
    }
    gr_status status;
    cache->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (cache->fd < 0) {
        status = gr_fail(diag, GR_E_IO, "%s: cannot be kept open: %s", name, strerror(errno));
        goto undo_cache;
    }
    status = gr_file_mark_take(name, cache->fd, &cache->mark, diag);
    if (status != GR_OK) {
        goto undo_cache;
    }
    cache->foreign = true;
    cache->base = base;
    cache->count = count;
    *cache_out = cache;
    return GR_OK;
undo_cache:
    gr_record_cache_destroy(cache);
    return status;
}

void gr_record_cache_destroy(gr_record_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    if (cache->fd >= 0) {
        close(cache->fd);
    }
    free(cache->memory);
    free(cache->name);
    free(cache);
}

/* The folder for temporary files. Not /tmp first: it is often memory. */
static const char *temporary_folder(void)
{
    const char *folder = getenv("TMPDIR");
    if (folder != NULL && folder[0] != '\0') {
        return folder;
    }
    return access("/var/tmp", W_OK | X_OK) == 0 ? "/var/tmp" : "/tmp";
}

static gr_status temporary_open(const char *name, int *fd_out, gr_diag *diag)
{
    const char *folder = temporary_folder();
    int fd = gr_fd_temporary(folder);
    if (fd < 0) {
        return gr_fail(diag, GR_E_IO,
                       "%s: it is unpacked into a temporary file, but none can be made in %s: %s; "
                       "set TMPDIR to another folder or unpack the file yourself",
                       name, folder, strerror(errno));
    }
    *fd_out = fd;
    return GR_OK;
}

static gr_status cache_flush(gr_record_cache *cache, gr_diag *diag)
{
    size_t done = 0;
    while (done < cache->memory_used) {
        ssize_t n = pwrite(cache->fd, cache->memory + done, cache->memory_used - done,
                           (off_t)(cache->written + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return gr_fail(diag, errno == ENOSPC || errno == EDQUOT ? GR_E_NO_MEMORY : GR_E_IO,
                           "%s: it is unpacked into a temporary file in %s, which failed after "
                           "%" PRIu64 " MiB: %s; set TMPDIR to a folder with more room or unpack "
                           "the file yourself",
                           cache->name, temporary_folder(), (cache->written + done) >> 20,
                           strerror(errno));
        }
        done += (size_t)n;
    }
    cache->written += cache->memory_used;
    cache->memory_used = 0;
    return GR_OK;
}

/* Moves from memory to a temporary file. */
static gr_status cache_spill(gr_record_cache *cache, gr_diag *diag)
{
    gr_status status = temporary_open(cache->name, &cache->fd, diag);
    if (status != GR_OK) {
        return status;
    }
    status = cache_flush(cache, diag);
    if (status != GR_OK) {
        return status;
    }
    size_t room = cache->record_bytes > WRITE_BYTES ? cache->record_bytes : WRITE_BYTES;
    uint8_t *memory = malloc(room);
    if (memory == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", cache->name);
    }
    free(cache->memory);
    cache->memory = memory;
    cache->memory_capacity = room;
    return GR_OK;
}

static gr_status cache_grow(gr_record_cache *cache, gr_diag *diag)
{
    size_t capacity = cache->memory_capacity > 0 ? cache->memory_capacity * 2 : 64 << 10;
    while (capacity < cache->memory_used + cache->record_bytes) {
        capacity *= 2;
    }
    uint8_t *memory = realloc(cache->memory, capacity);
    if (memory == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", cache->name);
    }
    cache->memory = memory;
    cache->memory_capacity = capacity;
    return GR_OK;
}

gr_status gr_record_cache_append(gr_record_cache *cache, const void *record, gr_diag *diag)
{
    gr_status status = GR_OK;
    if (cache->fd < 0 && cache->memory_used + cache->record_bytes > cache->memory_max) {
        status = cache_spill(cache, diag);
    }
    if (status == GR_OK && cache->memory_used + cache->record_bytes > cache->memory_capacity) {
        status = cache->fd >= 0 ? cache_flush(cache, diag) : cache_grow(cache, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    memcpy(cache->memory + cache->memory_used, record, cache->record_bytes);
    cache->memory_used += cache->record_bytes;
    cache->count++;
    return GR_OK;
}

gr_status gr_record_cache_seal(gr_record_cache *cache, gr_diag *diag)
{
    if (cache->fd < 0 || cache->foreign) {
        return GR_OK;
    }
    gr_status status = cache_flush(cache, diag);
    free(cache->memory);
    cache->memory = NULL;
    cache->memory_capacity = 0;
    return status;
}

const char *gr_record_cache_kept(const gr_record_cache *cache)
{
    return cache->fd < 0 ? "in memory" : "in a temporary file";
}

uint64_t gr_record_cache_memory(const gr_record_cache *cache)
{
    return cache->memory_capacity;
}

gr_status gr_record_cache_get(const gr_record_cache *cache, uint64_t record, size_t first,
                              size_t size, void *bytes_out, gr_diag *diag)
{
    if (cache->fd < 0) {
        memcpy(bytes_out, cache->memory + record * cache->record_bytes + first, size);
        return GR_OK;
    }
    uint64_t at = cache->base + record * cache->record_bytes + first;
    size_t done = 0;
    while (done < size) {
        ssize_t n = pread(cache->fd, (uint8_t *)bytes_out + done, size - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return gr_fail(diag, GR_E_IO, "%s: sample %" PRIu64 " cannot be read: %s", cache->name,
                           record, n < 0 ? strerror(errno) : "the file has become shorter");
        }
        done += (size_t)n;
    }
    return GR_OK;
}

gr_status gr_record_cache_check(const gr_record_cache *cache, gr_diag *diag)
{
    return cache->foreign ? gr_file_mark_check(cache->name, cache->fd, &cache->mark, diag) : GR_OK;
}

gr_status gr_file_mark_take(const char *name, int fd, gr_file_mark *mark_out, gr_diag *diag)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return gr_fail(diag, GR_E_IO, "%s: cannot be examined: %s", name, strerror(errno));
    }
    mark_out->size = info.st_size;
    mark_out->seconds = info.st_mtim.tv_sec;
    mark_out->nanoseconds = info.st_mtim.tv_nsec;
    return GR_OK;
}

gr_status gr_file_mark_check(const char *name, int fd, const gr_file_mark *mark, gr_diag *diag)
{
    gr_file_mark now = {0};
    gr_status status = gr_file_mark_take(name, fd, &now, diag);
    if (status == GR_OK && (now.size != mark->size || now.seconds != mark->seconds ||
                            now.nanoseconds != mark->nanoseconds)) {
        return gr_fail(diag, GR_E_IO,
                       "%s: the file was changed while the job was reading it; start the job again",
                       name);
    }
    return status;
}
