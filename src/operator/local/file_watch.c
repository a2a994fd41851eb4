/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/file_watch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

int gr_file_watch_open(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int length = snprintf(folder, sizeof folder, "%.*s",
                          slash != NULL ? (int)(slash - path) + 1 : 1, slash != NULL ? path : ".");
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    int error = fd < 0 ? errno : length >= (int)sizeof folder ? ENAMETOOLONG : 0;
    if (error == 0 && inotify_add_watch(fd, folder, IN_CLOSE_WRITE | IN_MOVED_TO) < 0) {
        error = errno;
    }
    if (error != 0 && fd >= 0) {
        close(fd);
    }
    errno = error;
    return error == 0 ? fd : -1;
}

bool gr_file_watch_take(int fd, const char *path)
{
    _Alignas(struct inotify_event) char events[16 * (sizeof(struct inotify_event) + NAME_MAX + 1)];
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    bool found = false;
    ssize_t got;
    while ((got = read(fd, events, sizeof events)) > 0) {
        for (const char *at = events; at < events + got;) {
            const struct inotify_event *event = (const struct inotify_event *)(const void *)at;
            found |= (event->mask & IN_Q_OVERFLOW) != 0 ||
                     (event->len > 0 && strcmp(event->name, name) == 0);
            at += sizeof *event + event->len;
        }
    }
    return found;
}
