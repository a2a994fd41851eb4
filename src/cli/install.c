/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/install.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct installation {
    int lib_fd; /* of FOLDER/lib */
    const char *folder;
    char linker[NAME_MAX + 1]; /* the dynamic linker's name; "": not found yet */
    gr_status status;
    gr_diag *diag;
} installation;

static gr_status copy_bytes(int from, int to)
{
    ssize_t sent;
    do {
        sent = sendfile(to, from, NULL, 1 << 24);
    } while (sent > 0 || (sent < 0 && errno == EINTR));
    return sent == 0 ? GR_OK : GR_E_IO;
}

/* By another name first: a program that runs from the old file is not disturbed. */
static gr_status copy_file(installation *one, const char *path, const char *name)
{
    char temporary[NAME_MAX + 8];
    snprintf(temporary, sizeof temporary, ".%.250s", name);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    (void)unlinkat(one->lib_fd, temporary, 0);
    int to = from >= 0
                 ? openat(one->lib_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755)
                 : -1;
    bool done = to >= 0 && copy_bytes(from, to) == GR_OK && fchmod(to, 0755) == 0 &&
                renameat(one->lib_fd, temporary, one->lib_fd, name) == 0;
    int error = errno;
    if (from >= 0) {
        close(from);
    }
    if (to >= 0) {
        close(to);
    }
    return done ? GR_OK
                : gr_fail(one->diag, GR_E_IO, "cannot copy %.150s to %.150s/lib: %s", path,
                          one->folder, strerror(error));
}

static bool is_linker(const char *name)
{
    return strncmp(name, "ld-", 3) == 0 || strncmp(name, "ld64", 4) == 0;
}

/* Each library by the name under which it was looked for. */
static int take_library(struct dl_phdr_info *info, size_t size_bytes, void *arg)
{
    installation *one = arg;
    const char *slash = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size_bytes;
    if (slash == NULL) { /* the program, and what the kernel brings */
        return 0;
    }
    if (is_linker(slash + 1)) {
        snprintf(one->linker, sizeof one->linker, "%s", slash + 1);
    }
    one->status = copy_file(one, info->dlpi_name, slash + 1);
    return one->status != GR_OK;
}

static gr_status write_script(const installation *one)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/gradus", one->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    bool done = fd >= 0 &&
                dprintf(fd,
                        "#!/bin/sh\n"
                        "lib=${0%%/*}/lib\n"
                        "exec \"$lib/%s\" --library-path \"$lib\" \"$lib/gradus\" \"$@\"\n",
                        one->linker) > 0 &&
                fchmod(fd, 0755) == 0;
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    return done ? GR_OK
                : gr_fail(one->diag, GR_E_IO, "cannot write %.300s: %s", path, strerror(error));
}

/* A program that was installed is started by the dynamic linker, whose file the kernel runs. */
static const char *find_program(void)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    const char *slash = strrchr(path, '/');
    return slash != NULL && is_linker(slash + 1) ? program_invocation_name : "/proc/self/exe";
}

gr_status gr_install_self(const char *folder, gr_diag *diag)
{
    char lib[PATH_MAX];
    installation one = {.folder = folder, .diag = diag};
    snprintf(lib, sizeof lib, "%.4000s/lib", folder);
    one.lib_fd =
        mkdir(lib, 0755) == 0 || errno == EEXIST ? open(lib, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (one.lib_fd < 0) {
        return gr_fail(diag, errno == ENOENT ? GR_E_NOT_FOUND : GR_E_IO, "cannot make %.300s: %s",
                       lib, strerror(errno));
    }
    (void)dl_iterate_phdr(take_library, &one);
    if (one.status == GR_OK && one.linker[0] == '\0') {
        one.status =
            gr_fail(diag, GR_E_UNSUPPORTED, "this gradus has no dynamic linker to take along");
    }
    if (one.status == GR_OK) {
        one.status = copy_file(&one, find_program(), "gradus");
    }
    if (one.status == GR_OK) {
        one.status = write_script(&one);
    }
    close(one.lib_fd);
    return one.status;
}
