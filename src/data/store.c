/* SPDX-License-Identifier: Apache-2.0 */
#include "data/store.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STORE_WRITE_BYTES = 1 << 20 };

struct gr_store {
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

static gr_store *store_new(const char *name, size_t record_bytes)
{
    gr_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return NULL;
    }
    store->fd = -1;
    store->record_bytes = record_bytes;
    store->name = strdup(name);
    if (store->name == NULL) {
        gr_store_destroy(store);
        return NULL;
    }
    return store;
}

gr_status gr_store_create(const char *name, size_t record_bytes, uint64_t memory_max,
                          gr_store **store_out, gr_diag *diag)
{
    gr_store *store = store_new(name, record_bytes);
    if (store == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", name);
    }
    store->memory_max = memory_max;
    *store_out = store;
    return GR_OK;
}

gr_status gr_store_over_file(const char *name, int fd, uint64_t base, size_t record_bytes,
                             uint64_t count, gr_store **store_out, gr_diag *diag)
{
    gr_store *store = store_new(name, record_bytes);
    if (store == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", name);
    }
    gr_status status;
    store->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (store->fd < 0) {
        status = gr_fail(diag, GR_E_IO, "%s: cannot be kept open: %s", name, strerror(errno));
        goto undo_store;
    }
    status = gr_file_mark_take(name, store->fd, &store->mark, diag);
    if (status != GR_OK) {
        goto undo_store;
    }
    store->foreign = true;
    store->base = base;
    store->count = count;
    *store_out = store;
    return GR_OK;
undo_store:
    gr_store_destroy(store);
    return status;
}

void gr_store_destroy(gr_store *store)
{
    if (store == NULL) {
        return;
    }
    if (store->fd >= 0) {
        close(store->fd);
    }
    free(store->memory);
    free(store->name);
    free(store);
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
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        char path[4096]; /* a file system without O_TMPFILE */
        int length = snprintf(path, sizeof path, "%s/gradus-data-??????", folder);
        errno = ENAMETOOLONG;
        if (length < (int)sizeof path) {
            memset(path + length - 6, 'X', 6);
            fd = mkostemp(path, O_CLOEXEC);
        }
        if (fd >= 0) {
            unlink(path);
        }
    }
    if (fd < 0) {
        return gr_fail(diag, GR_E_IO,
                       "%s: it is unpacked into a temporary file, but none can be made in %s: %s; "
                       "set TMPDIR to another folder or unpack the file yourself",
                       name, folder, strerror(errno));
    }
    *fd_out = fd;
    return GR_OK;
}

static gr_status store_flush(gr_store *store, gr_diag *diag)
{
    size_t done = 0;
    while (done < store->memory_used) {
        ssize_t n = pwrite(store->fd, store->memory + done, store->memory_used - done,
                           (off_t)(store->written + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return gr_fail(diag, errno == ENOSPC || errno == EDQUOT ? GR_E_NO_MEMORY : GR_E_IO,
                           "%s: it is unpacked into a temporary file in %s, which failed after "
                           "%" PRIu64 " MiB: %s; set TMPDIR to a folder with more room or unpack "
                           "the file yourself",
                           store->name, temporary_folder(), (store->written + done) >> 20,
                           strerror(errno));
        }
        done += (size_t)n;
    }
    store->written += store->memory_used;
    store->memory_used = 0;
    return GR_OK;
}

/* Moves from memory to a temporary file. */
static gr_status store_spill(gr_store *store, gr_diag *diag)
{
    gr_status status = temporary_open(store->name, &store->fd, diag);
    if (status != GR_OK) {
        return status;
    }
    status = store_flush(store, diag);
    if (status != GR_OK) {
        return status;
    }
    size_t room = store->record_bytes > STORE_WRITE_BYTES ? store->record_bytes : STORE_WRITE_BYTES;
    uint8_t *memory = malloc(room);
    if (memory == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", store->name);
    }
    free(store->memory);
    store->memory = memory;
    store->memory_capacity = room;
    return GR_OK;
}

static gr_status store_grow(gr_store *store, gr_diag *diag)
{
    size_t capacity = store->memory_capacity > 0 ? store->memory_capacity * 2 : 64 << 10;
    while (capacity < store->memory_used + store->record_bytes) {
        capacity *= 2;
    }
    uint8_t *memory = realloc(store->memory, capacity);
    if (memory == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its records", store->name);
    }
    store->memory = memory;
    store->memory_capacity = capacity;
    return GR_OK;
}

gr_status gr_store_append(gr_store *store, const void *record, gr_diag *diag)
{
    gr_status status = GR_OK;
    if (store->fd < 0 && store->memory_used + store->record_bytes > store->memory_max) {
        status = store_spill(store, diag);
    }
    if (status == GR_OK && store->memory_used + store->record_bytes > store->memory_capacity) {
        status = store->fd >= 0 ? store_flush(store, diag) : store_grow(store, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    memcpy(store->memory + store->memory_used, record, store->record_bytes);
    store->memory_used += store->record_bytes;
    store->count++;
    return GR_OK;
}

gr_status gr_store_seal(gr_store *store, gr_diag *diag)
{
    if (store->fd < 0 || store->foreign) {
        return GR_OK;
    }
    gr_status status = store_flush(store, diag);
    free(store->memory);
    store->memory = NULL;
    store->memory_capacity = 0;
    return status;
}

const char *gr_store_kept(const gr_store *store)
{
    return store->fd < 0 ? "in memory" : "in a temporary file";
}

uint64_t gr_store_memory(const gr_store *store)
{
    return store->memory_capacity;
}

gr_status gr_store_get(const gr_store *store, uint64_t record, size_t first, size_t size,
                       void *bytes_out, gr_diag *diag)
{
    if (store->fd < 0) {
        memcpy(bytes_out, store->memory + record * store->record_bytes + first, size);
        return GR_OK;
    }
    uint64_t at = store->base + record * store->record_bytes + first;
    size_t done = 0;
    while (done < size) {
        ssize_t n = pread(store->fd, (uint8_t *)bytes_out + done, size - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return gr_fail(diag, GR_E_IO, "%s: sample %" PRIu64 " cannot be read: %s", store->name,
                           record, n < 0 ? strerror(errno) : "the file has become shorter");
        }
        done += (size_t)n;
    }
    return GR_OK;
}

gr_status gr_store_check(const gr_store *store, gr_diag *diag)
{
    return store->foreign ? gr_file_mark_check(store->name, store->fd, &store->mark, diag) : GR_OK;
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
