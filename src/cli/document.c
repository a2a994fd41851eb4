/* SPDX-License-Identifier: Apache-2.0 */

/* What a process is told of the job that it belongs to, on a descriptor. */

#include "base/fail.h"
#include "cli/cli.h"
#include "doc/doc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DOCUMENT_BYTES = 16 << 10 };

gr_status gr_cli_read_document(const char *name, const char *variable, int fd, char **text_out,
                               size_t *size_out, gr_diag *diag)
{
    char *text = NULL;
    size_t used = 0, room = 0;
    bool seeks = true;
    for (ssize_t got = 1; got != 0;) {
        if (used == room) {
            room = room > 0 ? 2 * room : DOCUMENT_BYTES;
            char *more = room <= 2 * (size_t)GR_DOC_BYTES_MAX ? realloc(text, room) : NULL;
            if (more == NULL) {
                free(text);
                return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the %s", name);
            }
            text = more;
        }
        got = seeks ? pread(fd, text + used, room - used, (off_t)used)
                    : read(fd, text + used, room - used);
        if (got < 0 && errno == ESPIPE && seeks) {
            seeks = false;
        } else if (got < 0 && errno != EINTR) {
            int error = errno;
            free(text);
            return gr_fail(diag, GR_E_INVALID,
                           "the %s cannot be read from descriptor %d: %s; give it on stdin, or set "
                           "%s",
                           name, fd, strerror(error), variable);
        }
        used += got > 0 ? (size_t)got : 0;
    }
    *text_out = text;
    *size_out = used;
    return GR_OK;
}
