/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_FILE_H
#define GR_BASE_FILE_H

#include <gradus/status.h>

/* Reads a whole file into heap memory (free), with a zero byte behind it that *size_out does not
 * count. Returns GR_OK, GR_E_NOT_FOUND, GR_E_IO, GR_E_NO_MEMORY or GR_E_INVALID (larger than
 * max_bytes), with path and errno text in diag. */
gr_status gr_file_read(const char *path, size_t max_bytes, char **data_out, size_t *size_out,
                       gr_diag *diag) GR_MUST_CHECK;

/* Writes a file beside `path`, syncs it and renames it to `path`: a reader sees the old file or the
 * new one. A device or a FIFO (/dev/null) takes the bytes itself, a FIFO when it has a reader, and
 * a descriptor of this process (/dev/stdout, /dev/fd/3) behind what it was given before. GR_E_IO,
 * GR_E_NOT_FOUND, GR_E_NO_MEMORY. */
gr_status gr_file_replace(const char *path, const void *data, size_t size_bytes,
                          gr_diag *diag) GR_MUST_CHECK;

/* The same, with what `write` writes into the descriptor; it returns GR_OK, or fails with a
 * sentence. */
typedef gr_status gr_file_writer(void *arg, int fd, gr_diag *diag);
gr_status gr_file_replace_by(const char *path, gr_file_writer *write, void *arg,
                             gr_diag *diag) GR_MUST_CHECK;
/* The same for a file that nobody else may read and that is not there yet: GR_E_IO, and it is left
 * alone, if something has that name. */
gr_status gr_file_make_by(const char *path, gr_file_writer *write, void *arg,
                          gr_diag *diag) GR_MUST_CHECK;

/* Creates a folder and its parents, and makes the new ones durable. GR_OK if it exists. */
gr_status gr_dir_create(const char *path, gr_diag *diag) GR_MUST_CHECK;

/* Parts of gr_file_replace, for callers with their own way of writing; each returns 0 or errno.
 * gr_fd_write writes all of the data. gr_dir_sync makes the names in a folder durable. */
int gr_fd_write(int fd, const void *data, size_t size_bytes);
int gr_dir_sync(const char *path);
/* A file without a name, for reading and writing, in `folder`: TMPDIR, say. -1 with errno. */
int gr_fd_temporary(const char *folder);
/* Fails with "cannot <verb> <path>: <errno text>; <remedy>". */
gr_status gr_fail_errno(gr_diag *diag, const char *verb, const char *path, int error);

/* "folder/name". GR_E_INVALID: it is longer than path_bytes. */
gr_status gr_path_join(const char *folder, const char *name, char *path_out, size_t path_bytes,
                       gr_diag *diag) GR_MUST_CHECK;

/* Returns `name` relative to the folder of `base_file`, or `name` itself if it is absolute, in heap
 * memory (free); NULL when memory is exhausted. */
char *gr_path_beside(const char *base_file, const char *name);

#endif
