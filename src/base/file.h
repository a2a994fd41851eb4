/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FILE_H
#define GR_BASE_FILE_H

#include <gradus/status.h>

/* The whole file in heap memory (free), one zero byte behind it that does not count.
 * Returns GR_E_NOT_FOUND, GR_E_IO, GR_E_NO_MEMORY or GR_E_INVALID (larger than max_bytes), with
 * path and errno text in diag. */
gr_status gr_file_read(const char *path, size_t max_bytes, char **data_out, size_t *size_out,
                       gr_diag *diag) GR_MUST_CHECK;

/* Written beside its place, fsynced, made visible by rename: a reader sees the old or the new
 * file. */
gr_status gr_file_replace(const char *path, const void *data, size_t size_bytes,
                          gr_diag *diag) GR_MUST_CHECK;

/* Creates a folder and its parents; fine if it exists. */
gr_status gr_dir_create(const char *path, gr_diag *diag) GR_MUST_CHECK;

/* Parts of the above for whoever writes files in a way of its own. Each returns 0 or errno: all of
 * the data to a descriptor; names in a folder made durable. */
int gr_fd_write(int fd, const void *data, size_t size_bytes);
int gr_dir_sync(const char *path);
/* "cannot <verb> <path>: <errno text>; <remedy>" */
gr_status gr_fail_errno(gr_diag *diag, const char *verb, const char *path, int error);

/* `name` relative to the folder of `base_file`, unless it is absolute. Heap memory (free), NULL
 * when memory is exhausted. */
char *gr_path_beside(const char *base_file, const char *name);

#endif
