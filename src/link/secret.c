/* SPDX-License-Identifier: Apache-2.0 */
#include "link/secret.h"

#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX_DIGITS = 2 * GR_SECRET_BYTES, TEXT_BYTES = HEX_DIGITS + 2 }; /* with "\r\n" */

/* ---- Text and files -------------------------------------------------------------------------- */

gr_status gr_secret_parse(const char *hex, uint8_t secret_out[GR_SECRET_BYTES], gr_diag *diag)
{
    return gr_unhex(hex, secret_out, GR_SECRET_BYTES) == GR_OK
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID,
                         "GRADUS_SECRET must be %d hexadecimal digits (it has %zu characters)",
                         HEX_DIGITS, strlen(hex));
}

/* Who else could read it may have done so: better said than used. */
static gr_status check_owner(int fd, const char *path, gr_diag *diag)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return gr_fail_errno(diag, "look at", path, errno);
    }
    if (!S_ISREG(info.st_mode)) {
        return gr_fail(diag, GR_E_INVALID, "%s is no regular file, as a secret must be in", path);
    }
    if (info.st_uid != geteuid()) {
        return gr_fail(
            diag, GR_E_INVALID,
            "%s holds a secret but belongs to another user (uid %u); a secret must be in "
            "a file of your own",
            path, (unsigned)info.st_uid);
    }
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s holds a secret but has mode %04o: others may use it; take a new secret, "
                       "and keep its file from others by `chmod 600`",
                       path, (unsigned)(info.st_mode & 07777));
    }
    return GR_OK;
}

/* The text without the end of its line. GR_E_INVALID: it is longer than a secret. */
static gr_status read_text(int fd, const char *path, char text_out[TEXT_BYTES + 1], gr_diag *diag)
{
    size_t size = 0;
    ssize_t got = 1;
    while (got != 0 && size < TEXT_BYTES + 1) {
        got = read(fd, text_out + size, TEXT_BYTES + 1 - size);
        if (got < 0 && errno != EINTR) {
            return gr_fail_errno(diag, "read", path, errno);
        }
        size += got > 0 ? (size_t)got : 0;
    }
    while (size > 0 && (text_out[size - 1] == '\n' || text_out[size - 1] == '\r')) {
        size--;
    }
    if (size > HEX_DIGITS) {
        return GR_E_INVALID;
    }
    text_out[size] = '\0';
    return GR_OK;
}

gr_status gr_secret_read(const char *path, uint8_t secret_out[GR_SECRET_BYTES], gr_diag *diag)
{
    char text[TEXT_BYTES + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return gr_fail_errno(diag, "read the secret in", path, errno);
    }
    gr_status status = check_owner(fd, path, diag);
    if (status == GR_OK) {
        status = read_text(fd, path, text, diag);
        if (status == GR_OK) {
            status = gr_unhex(text, secret_out, GR_SECRET_BYTES);
        }
        if (status == GR_E_INVALID) {
            status = gr_fail(diag, status, "%s must hold %d hexadecimal digits and nothing else",
                             path, HEX_DIGITS);
        }
    }
    gr_wipe(text, sizeof text);
    close(fd);
    return status;
}

gr_status gr_secret_write(const char *path, const uint8_t secret[GR_SECRET_BYTES], gr_diag *diag)
{
    char text[HEX_DIGITS + 1];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, S_IRUSR | S_IWUSR);
    if (fd < 0) {
        return gr_fail_errno(diag, "write a secret to", path, errno);
    }
    gr_hex(secret, GR_SECRET_BYTES, text);
    text[HEX_DIGITS] = '\n';
    int error = gr_fd_write(fd, text, sizeof text);
    if (close(fd) != 0 && error == 0) {
        error = errno;
    }
    gr_wipe(text, sizeof text);
    if (error != 0) {
        (void)unlink(path);
        return gr_fail_errno(diag, "write a secret to", path, error);
    }
    return GR_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

uint8_t *gr_secret_keep(const uint8_t secret[GR_SECRET_BYTES])
{
    uint8_t *kept =
        mmap(NULL, GR_SECRET_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kept == MAP_FAILED) {
        return NULL;
    }
    /* Each is worth having alone, and may be refused: a container may lock no memory. */
    (void)madvise(kept, GR_SECRET_BYTES, MADV_DONTDUMP);
    (void)madvise(kept, GR_SECRET_BYTES, MADV_WIPEONFORK);
    (void)mlock(kept, GR_SECRET_BYTES);
    memcpy(kept, secret, GR_SECRET_BYTES);
    return kept;
}

void gr_secret_forget(uint8_t *kept)
{
    if (kept != NULL) {
        gr_wipe(kept, GR_SECRET_BYTES);
        (void)munmap(kept, GR_SECRET_BYTES);
    }
}

void gr_secret_clear_environment(void)
{
    static const char name[] = "GRADUS_SECRET=";
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, name, sizeof name - 1) == 0) {
            gr_wipe(*entry + sizeof name - 1, strlen(*entry + sizeof name - 1));
        }
    }
}
