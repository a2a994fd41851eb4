/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint/checkpoint_lock.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK_MS = 20, RECORD_BYTES = 128 };

#define RECORD_FORMAT "process %d run %016" PRIx64 " generation %" PRIu64 "\n"

typedef struct lock_record {
    int process; /* 0: the file says nothing */
    gr_checkpoint_writer writer;
} lock_record;

static lock_record read_record(int fd)
{
    char text[RECORD_BYTES] = "";
    lock_record record = {0};
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    int fields = sscanf(text, "process %d run %" SCNx64 " generation %" SCNu64, &record.process,
                        &record.writer.run, &record.writer.generation);
    return fields == 3 ? record : (lock_record){.process = fields >= 1 ? record.process : 0};
}

/* 0 or errno. */
static int write_record(int fd, const gr_checkpoint_writer *writer)
{
    char text[RECORD_BYTES];
    int length =
        snprintf(text, sizeof text, RECORD_FORMAT, (int)getpid(), writer->run, writer->generation);
    if (ftruncate(fd, 0) != 0) {
        return errno;
    }
    ssize_t written = pwrite(fd, text, (size_t)length, 0);
    return written == length ? 0 : written < 0 ? errno : ENOSPC;
}

/* Returns true if `fd` holds the file at `path`. Its folder may have been removed or replaced, its
 * disk may be gone, or another writer may have put a file of its own there. */
static bool is_at(int fd, const char *path)
{
    struct stat held, seen;
    return stat(path, &seen) == 0 && fstat(fd, &held) == 0 && seen.st_dev == held.st_dev &&
           seen.st_ino == held.st_ino;
}

static gr_status fail_superseded(const char *folder, const lock_record *owner,
                                 const gr_checkpoint_writer *writer, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID,
                   "generation %" PRIu64 " of this job writes the checkpoints into %s: this "
                   "process, of generation %" PRIu64 ", does so no more",
                   owner->writer.generation, folder, writer->generation);
}

/* An earlier generation of this run still holds the file at `path`: another file takes its
 * place. */
static gr_status replace(const char *folder, const char *path, const gr_checkpoint_writer *writer,
                         int *fd_out, gr_diag *diag)
{
    char name[64], fresh[PATH_MAX];
    snprintf(name, sizeof name, ".lock.%" PRIu64 ".partial", writer->generation);
    gr_status status = gr_path_join(folder, name, fresh, sizeof fresh, diag);
    if (status != GR_OK) {
        return status;
    }
    int fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return gr_fail_errno(diag, "lock", path, errno);
    }
    (void)flock(fd, LOCK_EX | LOCK_NB);
    int error = write_record(fd, writer);
    if (error == 0 && rename(fresh, path) != 0) {
        error = errno;
    }
    if (error != 0) {
        close(fd);
        (void)unlink(fresh);
        return gr_fail_errno(diag, "lock", path, error);
    }
    *fd_out = fd;
    return GR_OK;
}

/* One attempt. GR_PENDING: another run holds the lock; *owner_out says which process. Where the
 * file system knows no locks the record alone counts. */
static gr_status try_to_take(const char *folder, const char *path,
                             const gr_checkpoint_writer *writer, int *fd_out,
                             lock_record *owner_out, gr_diag *diag)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        return gr_fail_errno(diag, "lock", path, errno);
    }
    int error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    bool held = error == EWOULDBLOCK || error == EINTR;
    lock_record owner = read_record(fd);
    bool same_run = writer->run != 0 && owner.writer.run == writer->run;
    gr_status status = GR_PENDING;
    if (same_run && owner.writer.generation > writer->generation) {
        status = fail_superseded(folder, &owner, writer, diag);
    } else if (held && same_run && owner.writer.generation < writer->generation) {
        close(fd);
        return replace(folder, path, writer, fd_out, diag);
    } else if (!held && is_at(fd, path)) {
        if (writer->run != 0) {
            (void)write_record(fd, writer); /* a full disk: gr_checkpoint_put tries again */
        }
        *fd_out = fd;
        return GR_OK;
    }
    *owner_out = owner;
    close(fd);
    return status;
}

gr_status gr_checkpoint_lock_take(const char *folder, const gr_checkpoint_writer *writer,
                                  int patience_ms, int *fd_out, gr_diag *diag)
{
    char path[PATH_MAX];
    lock_record owner = {0};
    gr_status status = gr_path_join(folder, ".lock", path, sizeof path, diag);
    int64_t deadline_ns = gr_now_ns() + patience_ms * INT64_C(1000000);
    while (status == GR_OK) {
        status = try_to_take(folder, path, writer, fd_out, &owner, diag);
        if (status != GR_PENDING) {
            return status;
        }
        if (gr_now_ns() >= deadline_ns) {
            return gr_fail(diag, GR_E_INVALID,
                           "another run (process %d) writes its checkpoints into %s; wait for its "
                           "end (gradus ls shows the jobs that run, gradus attach their output), "
                           "or choose another folder (checkpoint: to, --checkpoint-to)",
                           owner.process, folder);
        }
        (void)poll(NULL, 0, LOOK_MS);
        status = GR_OK;
    }
    return status;
}

bool gr_checkpoint_lock_holds(const char *folder, const gr_checkpoint_writer *writer, int fd)
{
    char path[PATH_MAX];
    gr_diag diag;
    if (fd < 0 || gr_path_join(folder, ".lock", path, sizeof path, &diag) != GR_OK ||
        !is_at(fd, path)) {
        return false;
    }
    lock_record record = read_record(fd);
    return record.writer.run == writer->run && record.writer.generation == writer->generation;
}
