/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_FILE_WATCH_H
#define GR_OPERATOR_LOCAL_FILE_WATCH_H

/* When somebody has written a file, or has put another one in its place, as editors do. */

#include <stdbool.h>

/* A descriptor that is readable when something happens in the file's folder; -1, errno. */
int gr_file_watch_open(const char *path);
/* Takes what has happened. True: the file may hold something else now. */
bool gr_file_watch_take(int fd, const char *path);

#endif
