/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int gr_fd_temporary(const char *folder)
{
    char path[PATH_MAX];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    int length = snprintf(path, sizeof path, "%s/gradus-??????", folder);
    if (length >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memset(path + length - 6, 'X', 6); /* a file system without O_TMPFILE */
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

gr_status gr_fail_errno(gr_diag *diag, const char *verb, const char *path, int error)
{
    gr_status status = GR_E_IO;
    const char *remedy = "";
    switch (error) {
    case ENOMEM:
        status = GR_E_NO_MEMORY;
        break;
    case ENOENT:
    case ENOTDIR:
        status = GR_E_NOT_FOUND;
        remedy = "; check the path";
        break;
    case EACCES:
    case EPERM:
        remedy = "; check the permissions of the file and its folder";
        break;
    case ENOSPC:
    case EDQUOT:
        remedy = "; free some space or choose another folder";
        break;
    case EROFS:
        remedy = "; choose a folder that can be written";
        break;
    default:
        break;
    }
    char words[GR_ERRNO_TEXT_BYTES];
    return gr_fail(diag, status, "cannot %s %s: %s%s", verb, path, gr_text_errno(error, words),
                   remedy);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Reads to the end of the file. The size that fstat tells is only a first guess: a pipe and files
 * of /proc say 0, and a file may grow while it is read. */
static gr_status read_all(int fd, const char *path, size_t guess_bytes, size_t max_bytes,
                          char **data_out, size_t *size_out, gr_diag *diag)
{
    size_t capacity = (guess_bytes < max_bytes ? guess_bytes : max_bytes) + 2;
    size_t size = 0;
    gr_status status = GR_OK;
    char *data = malloc(capacity);
    if (data == NULL) {
        goto no_memory;
    }
    for (;;) {
        if (size + 1 == capacity) { /* the last byte is kept for the zero */
            if (size > max_bytes) {
                break;
            }
            size_t wanted = capacity <= max_bytes / 2 ? capacity * 2 : max_bytes + 2;
            char *larger = realloc(data, wanted);
            if (larger == NULL) {
                goto no_memory;
            }
            data = larger;
            capacity = wanted;
        }
        ssize_t got = read(fd, data + size, capacity - 1 - size);
        if (got == 0) {
            break;
        }
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            status = gr_fail_errno(diag, "read", path, errno);
            goto undo_data;
        }
        size += (size_t)got;
    }
    if (size > max_bytes) {
        status = gr_fail(diag, GR_E_INVALID, "%s is larger than the limit of %zu bytes", path,
                         max_bytes);
        goto undo_data;
    }
    data[size] = '\0';
    *data_out = data;
    *size_out = size;
    return GR_OK;

no_memory:
    status = gr_fail(diag, GR_E_NO_MEMORY, "not enough memory to read %s", path);
undo_data:
    free(data);
    return status;
}

gr_status gr_file_read(const char *path, size_t max_bytes, char **data_out, size_t *size_out,
                       gr_diag *diag)
{
    if (max_bytes > SIZE_MAX / 2) {
        max_bytes = SIZE_MAX / 2;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return gr_fail_errno(diag, "open", path, errno);
    }
    struct stat info;
    gr_status status;
    if (fstat(fd, &info) != 0) {
        status = gr_fail_errno(diag, "read", path, errno);
    } else if (S_ISDIR(info.st_mode)) {
        status = gr_fail(diag, GR_E_INVALID, "%s is a folder, a file is needed", path);
    } else if (S_ISREG(info.st_mode) && (uintmax_t)info.st_size > max_bytes) {
        status = gr_fail(diag, GR_E_INVALID, "%s is larger than the limit of %zu bytes", path,
                         max_bytes);
    } else {
        size_t guess = S_ISREG(info.st_mode) && info.st_size > 0 ? (size_t)info.st_size : 4096;
        status = read_all(fd, path, guess, max_bytes, data_out, size_out, diag);
    }
    close(fd);
    return status;
}

/* ---- Replacing ------------------------------------------------------------------------------- */

int gr_fd_write(int fd, const void *data, size_t size_bytes)
{
    const char *at = data;
    while (size_bytes > 0) {
        ssize_t written = write(fd, at, size_bytes);
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        at += written;
        size_bytes -= (size_t)written;
    }
    return 0;
}

int gr_dir_sync(const char *path)
{
    int error = 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    /* Some file systems cannot sync a folder and say EINVAL: nothing more can be done there. */
    if (fsync(fd) != 0 && errno != EINVAL) {
        error = errno;
    }
    close(fd);
    return error;
}

/* Makes a new name durable. */
static int sync_folder_of(const char *path)
{
    char *folder = gr_path_beside(path, ".");
    int error = folder != NULL ? gr_dir_sync(folder) : ENOMEM;
    free(folder);
    return error;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Creates a file beside `path` with the unused name *name_out. Where the file system allows it the
 * file has no name yet (*named_out false), so a killed process leaves nothing behind. */
static gr_status create_beside(const char *path, mode_t mode, char **name_out, int *fd_out,
                               bool *named_out, gr_diag *diag)
{
    enum { SUFFIX_BYTES = 21, BASE_MAX = NAME_MAX - SUFFIX_BYTES };
    const char *base = base_of(path);
    size_t kept = strlen(base) < BASE_MAX ? strlen(base) : BASE_MAX;
    while (kept > 0 && ((unsigned char)base[kept] & 0xc0) == 0x80) {
        kept--; /* some file systems take whole characters of UTF-8 only */
    }
    size_t size_bytes = (size_t)(base - path) + kept + SUFFIX_BYTES + 1;
    uint64_t number = 0;
    char *name = malloc(size_bytes), *folder = gr_path_beside(path, ".");
    gr_status status = GR_OK;
    int fd = -1;
    if (name == NULL || folder == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "not enough memory to write %s", path);
        goto undo_name;
    }
    status = gr_random_bytes(&number, sizeof number, diag);
    if (status != GR_OK) {
        goto undo_name;
    }
    snprintf(name, size_bytes, "%.*s.new-%016llx", (int)(base - path + (ptrdiff_t)kept), path,
             (unsigned long long)number);
    if (access("/proc/self/fd", X_OK) == 0) { /* give_name needs it */
        fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    }
    *named_out = fd < 0;
    if (fd < 0) {
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    if (fd < 0) {
        status = gr_fail_errno(diag, "write", path, errno);
        goto undo_name;
    }
    free(folder);
    *name_out = name;
    *fd_out = fd;
    return GR_OK;

undo_name:
    free(folder);
    free(name);
    return status;
}

static int give_name(int fd, const char *name)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
}

/* Fails with EEXIST where something has that name. */
static int rename_to_new(const char *name, const char *path)
{
    if (link(name, path) == 0) {
        return unlink(name) == 0 ? 0 : errno;
    }
    if (errno != EPERM && errno != EOPNOTSUPP) {
        return errno;
    }
    /* A file system without links. NFS, which has them, does not know this call. */
    return renameat2(AT_FDCWD, name, AT_FDCWD, path, RENAME_NOREPLACE) == 0 ? 0 : errno;
}

/* The descriptor of this process that a name leads to ("/dev/stdout", "/dev/fd/3"); -1: none. */
static int descriptor_of(const char *path)
{
    enum { LINKS_MAX = 8 };
    char target[PATH_MAX], *at = strdup(path), *own = realpath("/proc/self/fd", NULL);
    int found = -1;
    for (int links = 0; at != NULL && own != NULL && found < 0 && links < LINKS_MAX; links++) {
        ssize_t size = readlink(at, target, sizeof target - 1);
        if (size < 0) {
            break; /* no symbolic link */
        }
        target[size] = '\0';
        char *beside = gr_path_beside(at, "."), *next = gr_path_beside(at, target);
        char *folder = beside != NULL ? realpath(beside, NULL) : NULL;
        if (folder != NULL && strcmp(folder, own) == 0) {
            found = atoi(base_of(at));
        }
        free(folder);
        free(beside);
        free(at);
        at = next;
    }
    free(own);
    free(at);
    return found;
}

/* Into a device or a FIFO; or by `descriptor`, if there is one, behind what it has written: a file
 * that is opened again is written from its start on. */
static gr_status write_into(const char *path, int descriptor, gr_file_writer *write, void *arg,
                            gr_diag *diag)
{
    int fd =
        descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, 0) : open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return gr_fail_errno(diag, "write", path, errno);
    }
    gr_status status = write(arg, fd, diag);
    if (close(fd) != 0 && status == GR_OK) {
        status = gr_fail_errno(diag, "write", path, errno);
    }
    return status;
}

/* `fresh`: nothing has that name, and nobody else may read the file. */
static gr_status write_as(const char *path, bool fresh, gr_file_writer *write, void *arg,
                          gr_diag *diag)
{
    struct stat old;
    bool replaces = !fresh && stat(path, &old) == 0;
    if (replaces && S_ISDIR(old.st_mode)) {
        return gr_fail(diag, GR_E_IO, "cannot write %s: there is a folder of this name", path);
    }
    int descriptor = replaces ? descriptor_of(path) : -1;
    if (descriptor >= 0 || (replaces && !S_ISREG(old.st_mode))) {
        return write_into(path, descriptor, write, arg, diag);
    }
    char *name = NULL;
    int fd = -1;
    bool named = false;
    gr_status status =
        create_beside(path, replaces || fresh ? 0600 : 0666, &name, &fd, &named, diag);
    if (status != GR_OK) {
        return status;
    }
    int error = 0;
    if (replaces) {
        /* Who made the file private wants it to stay so. */
        error = fchmod(fd, old.st_mode & 07777) == 0 ? 0 : errno;
    }
    if (error == 0) {
        status = write(arg, fd, diag);
    }
    if (error == 0 && status == GR_OK && fsync(fd) != 0) {
        error = errno;
    }
    if (error == 0 && status == GR_OK && !named) {
        error = give_name(fd, name);
    }
    if (close(fd) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && status == GR_OK) {
        error = fresh ? rename_to_new(name, path) : rename(name, path) == 0 ? 0 : errno;
    }
    if (error != 0 && status == GR_OK) {
        status = gr_fail_errno(diag, "write", path, error);
    }
    if (status != GR_OK) {
        unlink(name);
    } else if ((error = sync_folder_of(path)) != 0) {
        status = gr_fail_errno(diag, "make durable", path, error);
    }
    free(name);
    return status;
}

gr_status gr_file_replace_by(const char *path, gr_file_writer *write, void *arg, gr_diag *diag)
{
    return write_as(path, false, write, arg, diag);
}

gr_status gr_file_make_by(const char *path, gr_file_writer *write, void *arg, gr_diag *diag)
{
    return write_as(path, true, write, arg, diag);
}

typedef struct whole_text {
    const char *path;
    const void *data;
    size_t size_bytes;
} whole_text;

static gr_status write_whole(void *arg, int fd, gr_diag *diag)
{
    const whole_text *text = arg;
    int error = gr_fd_write(fd, text->data, text->size_bytes);
    return error == 0 ? GR_OK : gr_fail_errno(diag, "write", text->path, error);
}

gr_status gr_file_replace(const char *path, const void *data, size_t size_bytes, gr_diag *diag)
{
    whole_text text = {path, data, size_bytes};
    return gr_file_replace_by(path, write_whole, &text, diag);
}

/* ---- Folders and paths ----------------------------------------------------------------------- */

/* A new folder's name is durable when its parent is. */
static int create_one(const char *path)
{
    if (mkdir(path, 0777) == 0) {
        return sync_folder_of(path);
    }
    int error = errno;
    struct stat info;
    /* Whatever mkdir says (EEXIST, or EROFS and EACCES above a mount), a folder there is enough. */
    if (stat(path, &info) == 0) {
        return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
    }
    return error;
}

gr_status gr_dir_create(const char *path, gr_diag *diag)
{
    if (path[0] == '\0') {
        return gr_fail(diag, GR_E_INVALID, "the name of a folder to create is empty");
    }
    char *part = strdup(path);
    if (part == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "not enough memory to create the folder %s", path);
    }
    gr_status status = GR_OK;
    for (char *at = part + 1; status == GR_OK; at++) {
        char saved = *at;
        if (saved != '\0' && saved != '/') {
            continue;
        }
        *at = '\0';
        int error = create_one(part);
        if (error == ENOTDIR) {
            status =
                gr_fail(diag, GR_E_IO, "cannot create the folder %s: %s is no folder", path, part);
        } else if (error != 0) {
            status = gr_fail_errno(diag, "create the folder", path, error);
        }
        if (saved == '\0') {
            break;
        }
        *at = saved;
    }
    free(part);
    return status;
}

gr_status gr_path_join(const char *folder, const char *name, char *path_out, size_t path_bytes,
                       gr_diag *diag)
{
    int length = snprintf(path_out, path_bytes, "%s/%s", folder, name);
    return length >= 0 && (size_t)length < path_bytes
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "%s: the name of the folder is too long", folder);
}

char *gr_path_beside(const char *base_file, const char *name)
{
    const char *slash = base_file != NULL ? strrchr(base_file, '/') : NULL;
    if (slash == NULL || name[0] == '/') {
        return strdup(name);
    }
    size_t folder_bytes = (size_t)(slash - base_file) + 1;
    size_t name_bytes = strlen(name) + 1;
    char *path = malloc(folder_bytes + name_bytes);
    if (path != NULL) {
        memcpy(path, base_file, folder_bytes);
        memcpy(path + folder_bytes, name, name_bytes);
    }
    return path;
}
