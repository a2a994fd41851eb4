/* SPDX-License-Identifier: Apache-2.0 */

/* The file backend: rank 0 writes a record of its coordinator, the others read it. Nobody but their
 * user may read or have written it. */

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "group/bootstrap_internal.h"
#include "group/member.h"
#include "link/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* /tmp/gradus-UID, which belongs to this user alone. */
static gr_status open_own_folder(char path_out[PATH_MAX], gr_diag *diag)
{
    struct stat info;
    snprintf(path_out, PATH_MAX, "/tmp/gradus-%u", (unsigned)geteuid());
    if (mkdir(path_out, S_IRWXU) != 0 && errno != EEXIST) {
        return gr_fail_errno(diag, "make the folder", path_out, errno);
    }
    if (lstat(path_out, &info) != 0) {
        return gr_fail_errno(diag, "look at", path_out, errno);
    }
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return gr_fail(
            diag, GR_E_INVALID,
            "%s is no folder of this user's alone (uid %u, mode %04o): ranks of one host "
            "meet there; remove it, or set GRADUS_RENDEZVOUS_DIR",
            path_out, (unsigned)info.st_uid, (unsigned)(info.st_mode & 07777));
    }
    return GR_OK;
}

/* The file's name says which start of which job it belongs to. */
static gr_status find_path(gr_joining *join, gr_diag *diag)
{
    gr_bootstrap *b = join->group->bootstrap;
    const gr_group_config *config = join->config;
    const gr_launch *launch = &config->launch;
    bool one_host = config->local_size >= config->world_size;
    char folder[PATH_MAX];
    if (b->path[0] != '\0') {
        return GR_OK;
    }
    uint64_t id = gr_hash64(launch->job, strlen(launch->job), 0);
    if (one_host) { /* a job's name may come again, its launcher's process does not */
        const uint64_t facts[2] = {id, gr_launch_local_id(launch->marker)};
        id = gr_hash64(facts, sizeof facts, 0);
    }
    if (config->rendezvous_dir != NULL) {
        snprintf(folder, sizeof folder, "%s", config->rendezvous_dir);
    } else {
        gr_status status = open_own_folder(folder, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    int put =
        snprintf(b->path, sizeof b->path, "%s/gradus-%016llx", folder, (unsigned long long)id);
    if (put < 0 || (size_t)put >= sizeof b->path) {
        b->path[0] = '\0';
        return gr_fail(diag, GR_E_INVALID, "GRADUS_RENDEZVOUS_DIR is too long: %.64s...", folder);
    }
    return GR_OK;
}

/* Written under another name and renamed, so that nobody reads half of it. */
gr_status gr_bootstrap_write_file(gr_joining *join, gr_diag *diag)
{
    gr_bootstrap *b = join->group->bootstrap;
    gr_record record = {.kind = GR_RECORD_COORDINATOR,
                        .world_size = (uint32_t)join->config->world_size};
    uint8_t bytes[GR_RECORD_BYTES];
    char path[PATH_MAX + 32];
    gr_status status = find_path(join, diag);
    if (status != GR_OK) {
        return status;
    }
    snprintf(record.text, sizeof record.text, "%s", b->coordinator);
    memcpy(record.secret, join->group->secret, sizeof record.secret);
    gr_record_put(&record, bytes);
    gr_wipe(record.secret, sizeof record.secret);
    snprintf(path, sizeof path, "%s.%ld", b->path, (long)getpid());
    (void)unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    int error = fd < 0 ? errno : gr_fd_write(fd, bytes, sizeof bytes);
    if (fd >= 0 && close(fd) != 0 && error == 0) {
        error = errno;
    }
    gr_wipe(bytes, sizeof bytes);
    if (error == 0 && rename(path, b->path) != 0) {
        error = errno;
    }
    if (error != 0) {
        (void)unlink(path);
        return gr_fail_errno(diag, "write the rendezvous file", b->path, error);
    }
    b->written = true;
    return GR_OK;
}

static gr_status check_owner(int fd, const char *path, gr_diag *diag)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return gr_fail_errno(diag, "look at", path, errno);
    }
    if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s is no rendezvous file that this user alone may use (uid %u, mode %04o): "
                       "somebody else put it there; set GRADUS_RENDEZVOUS_DIR to another folder",
                       path, (unsigned)info.st_uid, (unsigned)(info.st_mode & 07777));
    }
    return GR_OK;
}

gr_status gr_bootstrap_read_file(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_bootstrap *b = group->bootstrap;
    uint8_t bytes[GR_RECORD_BYTES];
    gr_record record;
    gr_status status = find_path(join, diag);
    if (status != GR_OK) {
        return status;
    }
    int fd = open(b->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return errno == ENOENT || errno == ESTALE
                   ? GR_PENDING
                   : gr_fail_errno(diag, "read the rendezvous file", b->path, errno);
    }
    status = check_owner(fd, b->path, diag);
    ssize_t got = status == GR_OK ? read(fd, bytes, sizeof bytes) : 0;
    close(fd);
    if (status != GR_OK) {
        return status;
    }
    if (got != (ssize_t)sizeof bytes || gr_record_get(bytes, &record) != GR_OK ||
        record.kind != GR_RECORD_COORDINATOR) {
        return gr_fail(diag, GR_E_PROTOCOL,
                       "%s is no rendezvous file of this version of Gradus: use the same version "
                       "for all ranks, or remove the file",
                       b->path);
    }
    gr_wipe(bytes, sizeof bytes);
    snprintf(b->coordinator, sizeof b->coordinator, "%s", record.text);
    gr_secret_forget(group->secret);
    group->secret = gr_secret_keep(record.secret);
    gr_wipe(record.secret, sizeof record.secret);
    return group->secret != NULL ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
}
