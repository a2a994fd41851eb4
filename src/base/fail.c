/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(gr_diag *diag, gr_status status, int peer_rank, const char *format,
                 va_list arguments) GR_PRINTF(4, 0);

static void fill(gr_diag *diag, gr_status status, int peer_rank, const char *format,
                 va_list arguments)
{
    /* By way of a copy: an argument may be diag->text itself, when a caller adds to a sentence. */
    char text[GR_DIAG_TEXT_BYTES];
    gr_text_line(text, sizeof text, format, arguments);
    diag->status = (int32_t)status;
    diag->peer_rank = (int32_t)peer_rank;
    memcpy(diag->text, text, sizeof text);
}

gr_status gr_fail(gr_diag *diag, gr_status status, const char *format, ...)
{
    if (diag != NULL) {
        int saved_errno = errno; /* callers may still want to look at it */
        va_list arguments;
        va_start(arguments, format);
        fill(diag, status, -1, format, arguments);
        va_end(arguments);
        errno = saved_errno;
    }
    return status;
}

gr_status gr_fail_peer(gr_diag *diag, gr_status status, int peer_rank, const char *format, ...)
{
    if (diag != NULL) {
        int saved_errno = errno;
        va_list arguments;
        va_start(arguments, format);
        fill(diag, status, peer_rank, format, arguments);
        va_end(arguments);
        errno = saved_errno;
    }
    return status;
}

bool gr_fault_of_peer(gr_status status)
{
    return gr_status_scope(status) == GR_SCOPE_PEER || status == GR_E_COMM_BROKEN;
}

void gr_diag_clear(gr_diag *diag)
{
    if (diag != NULL) {
        *diag = (gr_diag){.status = GR_OK, .peer_rank = -1};
    }
}

void gr_check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr,
            "gradus: internal error: %s does not hold at %s:%d; the process stops so that no "
            "training state is corrupted\n",
            condition, file, line);
    abort();
}
