/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/room.h"

#include "base/fail.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OWN_MAX = 256, MODE = 0755 };

/* A room while it is made. */
typedef struct room_maker {
    const gr_room *room;
    const gr_pod_plan *plan;
    gr_diag *diag;
    const char *volumes[OWN_MAX]; /* where they are mounted: they take folders for others */
    dev_t stages[OWN_MAX];        /* file systems that are not the host's */
    size_t volume_count, stage_count;
} room_maker;

int gr_room_make_folders(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    for (size_t i = 1; i <= length && i < sizeof part; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            if (mkdir(part, MODE) != 0 && errno != EEXIST) {
                return errno;
            }
        }
    }
    return 0;
}

/* ---- Namespaces ------------------------------------------------------------------------------ */
static int write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int error = fd < 0 ? errno : gr_fd_write(fd, text, strlen(text));
    if (fd >= 0) {
        close(fd);
    }
    return error;
}

/* In the new user namespace the caller has the ids that it has outside. */
static int unshare_as_user(void)
{
    char users[64], groups[64];
    snprintf(users, sizeof users, "%u %u 1", (unsigned)getuid(), (unsigned)getuid());
    snprintf(groups, sizeof groups, "%u %u 1", (unsigned)getgid(), (unsigned)getgid());
    if (unshare(CLONE_NEWUSER) != 0) {
        return errno;
    }
    (void)write_text("/proc/self/setgroups", "deny");
    int error = write_text("/proc/self/uid_map", users);
    return error == 0 ? write_text("/proc/self/gid_map", groups) : error;
}

void gr_room_prepare(void)
{
    if (unshare(CLONE_NEWUTS) != 0) {
        (void)unshare_as_user(); /* whether that was enough, the first pod finds out */
    }
}

static gr_status enter_namespaces(const room_maker *m)
{
    int error = unshare(CLONE_NEWNS | CLONE_NEWUTS) == 0 ? 0 : errno;
    if (error == 0 && mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) {
        error = errno;
    }
    return error == 0 ? GR_OK
                      : gr_fail(m->diag, GR_E_UNSUPPORTED, "mount namespaces: %s", strerror(error));
}

/* ---- Folders that the host does not have ----------------------------------------------------- */
static gr_status fail_mount(const room_maker *m, const char *path, int error)
{
    return gr_fail(m->diag, GR_E_IO, "pod %s: nothing can be mounted at %s: %s", m->plan->name,
                   path, strerror(error));
}

static int make_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        return errno;
    }
    close(fd);
    return 0;
}

/* `to` becomes what `from` is. */
static int stand_for(const char *from, const char *to)
{
    struct stat info;
    char target[PATH_MAX];
    if (lstat(from, &info) != 0) {
        return errno == ENOENT ? 0 : errno;
    }
    if (S_ISLNK(info.st_mode)) {
        ssize_t length = readlink(from, target, sizeof target - 1);
        if (length < 0) {
            return errno;
        }
        target[length] = '\0';
        return symlink(target, to) == 0 ? 0 : errno;
    }
    int error = S_ISDIR(info.st_mode) ? (mkdir(to, MODE) == 0 ? 0 : errno) : make_file(to);
    if (error == 0 && mount(from, to, NULL, MS_BIND | MS_REC, NULL) != 0) {
        error = errno;
    }
    return error;
}

/* In `stage` is all that is in `folder`; there something may be added. */
static int copy_entries(const char *folder, const char *stage)
{
    DIR *entries = opendir(folder);
    int error = entries == NULL && errno != EACCES ? errno : 0; /* or who runs sees none of it */
    const struct dirent *entry;
    while (error == 0 && entries != NULL && (entry = readdir(entries)) != NULL) {
        char from[PATH_MAX], to[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        int a = snprintf(from, sizeof from, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder,
                         entry->d_name);
        int b = snprintf(to, sizeof to, "%s/%s", stage, entry->d_name);
        error = a >= PATH_MAX || b >= PATH_MAX ? ENAMETOOLONG : stand_for(from, to);
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return error;
}

/* Without a root of its own a program in the pod could not make namespaces. */
static int change_root(const char *stage)
{
    if (chdir(stage) != 0) {
        return errno;
    }
    if (syscall(SYS_pivot_root, ".", ".") == 0) {
        (void)umount2(".", MNT_DETACH);
    } else if (chroot(".") != 0) {
        return errno;
    }
    return chdir("/") == 0 ? 0 : errno;
}

/* From now on folders may be made in `folder`, which the host does not see. */
static int own_folder(room_maker *m, const char *folder)
{
    char stage[PATH_MAX];
    struct stat info;
    snprintf(stage, sizeof stage, "%.4000s/stage-%zu", m->room->folder, m->stage_count);
    if (m->stage_count == OWN_MAX) {
        return ENOSPC;
    }
    char options[32] = "mode=0755";
    if (stat(folder, &info) == 0) {
        snprintf(options, sizeof options, "mode=%04o", (unsigned)(info.st_mode & 07777));
    }
    if (mkdir(stage, MODE) != 0 || mount("tmpfs", stage, "tmpfs", 0, options) != 0) {
        return errno;
    }
    if (stat(stage, &info) != 0) {
        return errno;
    }
    m->stages[m->stage_count++] = info.st_dev;
    int error = copy_entries(folder, stage);
    if (error == 0 && strcmp(folder, "/") == 0) {
        return change_root(stage);
    }
    if (error == 0 && mount(stage, folder, NULL, MS_BIND | MS_REC, NULL) != 0) {
        error = errno;
    }
    return error;
}

static bool is_below(const char *path, const char *folder)
{
    size_t length = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* Returns true if folders can be made there that the host does not see. */
static bool is_own(const room_maker *m, const char *path)
{
    struct stat info;
    bool is_stage = false;
    for (size_t i = 0; i < m->volume_count; i++) {
        if (is_below(path, m->volumes[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < m->stage_count && stat(path, &info) == 0; i++) {
        is_stage |= info.st_dev == m->stages[i];
    }
    return is_stage;
}

/* The nearest parent of `path` that is there. */
static int find_parent(const char *path, char parent_out[PATH_MAX])
{
    snprintf(parent_out, PATH_MAX, "%s", path);
    do {
        char *slash = strrchr(parent_out, '/');
        if (slash == NULL) {
            return ENOENT;
        }
        slash[slash == parent_out] = '\0';
    } while (access(parent_out, F_OK) != 0);
    return 0;
}

/* Makes what a volume is mounted on: a folder, or a file if the volume is one. */
static int make_target(room_maker *m, const char *path, bool is_file)
{
    char parent[PATH_MAX], real[PATH_MAX], part[PATH_MAX];
    if (access(path, F_OK) == 0) {
        return 0;
    }
    int error = find_parent(path, parent);
    if (error == 0 && realpath(parent, real) == NULL) {
        error = errno;
    }
    if (error == 0 && !is_own(m, real)) {
        error = own_folder(m, real);
    }
    size_t length = strlen(path);
    for (size_t i = strlen(parent) + 1; i <= length && error == 0; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        error = is_file && i == length                      ? make_file(part)
                : mkdir(part, MODE) == 0 || errno == EEXIST ? 0
                                                            : errno;
    }
    return error;
}

/* ---- Mounts ---------------------------------------------------------------------------------- */
/* In a user namespace a mount keeps the flags that its file system has. */
static int make_read_only(const char *path)
{
    static const unsigned long flags[][2] = {
        {ST_NOSUID, MS_NOSUID},   {ST_NODEV, MS_NODEV},           {ST_NOEXEC, MS_NOEXEC},
        {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME}, {ST_RELATIME, MS_RELATIME}};
    struct statvfs info;
    unsigned long kept = 0;
    for (size_t i = 0; statvfs(path, &info) == 0 && i < sizeof flags / sizeof flags[0]; i++) {
        kept |= (info.f_flag & flags[i][0]) != 0 ? flags[i][1] : 0;
    }
    return mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | kept, NULL) == 0 ? 0 : errno;
}

static gr_status mount_volume(room_maker *m, const gr_volume_mount *volume)
{
    struct stat info;
    if (strlen(volume->path) >= PATH_MAX) {
        return fail_mount(m, "a path as long as that", ENAMETOOLONG);
    }
    if (stat(volume->source, &info) != 0) { /* a sub path that nobody has made yet */
        if (volume->sub_path[0] == '\0' || gr_room_make_folders(volume->source) != 0) {
            return fail_mount(m, volume->path, ENOENT);
        }
        info.st_mode = S_IFDIR;
    }
    int error = make_target(m, volume->path, !S_ISDIR(info.st_mode));
    if (error == 0 && mount(volume->source, volume->path, NULL, MS_BIND | MS_REC, NULL) != 0) {
        error = errno;
    }
    if (error == 0 && volume->is_read_only) {
        error = make_read_only(volume->path);
    }
    if (error == 0 && m->volume_count < OWN_MAX) {
        char *real = realpath(volume->path, NULL); /* for the life of this process */
        m->volumes[m->volume_count++] = real != NULL ? real : volume->path;
    }
    return error == 0 ? GR_OK : fail_mount(m, volume->path, error);
}

/* As mount_volume; the folder of the run stays where it is, also below such a volume. */
static gr_status mount_beside_root(room_maker *m, const gr_volume_mount *volume)
{
    char held[40];
    int root = open(m->room->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    gr_status status = mount_volume(m, volume);
    if (status == GR_OK && root >= 0 && access(m->room->hosts, F_OK) != 0) {
        snprintf(held, sizeof held, "/proc/self/fd/%d", root);
        int error = make_target(m, m->room->root, false);
        if (error == 0 && mount(held, m->room->root, NULL, MS_BIND | MS_REC, NULL) != 0) {
            error = errno;
        }
        status = error == 0 ? GR_OK : fail_mount(m, m->room->root, error);
    }
    if (root >= 0) {
        close(root);
    }
    return status;
}

gr_status gr_room_enter(const gr_pod_plan *plan, const gr_room *room, gr_diag *diag)
{
    room_maker m = {.room = room, .plan = plan, .diag = diag};
    static const char sshd[] = "/usr/sbin/sshd";
    gr_status status = enter_namespaces(&m);
    if (status != GR_OK) {
        return status;
    }
    (void)sethostname(plan->host_name, strlen(plan->host_name));
    if (mount(room->hosts, "/etc/hosts", NULL, MS_BIND, NULL) != 0) {
        return fail_mount(&m, "/etc/hosts", errno);
    }
    if (access(sshd, F_OK) == 0 && mount(room->sshd, sshd, NULL, MS_BIND, NULL) != 0) {
        return fail_mount(&m, sshd, errno);
    }
    for (size_t i = 0; i < plan->mount_count && status == GR_OK; i++) {
        status = mount_beside_root(&m, &plan->mounts[i]);
    }
    return status;
}
