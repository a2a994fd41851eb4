/* SPDX-License-Identifier: Apache-2.0 */
#include "link/secret.h"
#include "base/fail.h"
#include "cli/cli.h"

#include <string.h>
#include <unistd.h>

gr_status gr_cli_take_secret(const gr_cli_secret *of, uint8_t secret[GR_SECRET_BYTES],
                             bool *printed_out, gr_diag *diag)
{
    const char *hex = of->hex, *file = of->file;
    bool given = hex != NULL && hex[0] != '\0';
    *printed_out = !given && file == NULL;
    if (*printed_out && !of->print && !isatty(STDOUT_FILENO)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a new secret is not printed, since stdout is no terminal: what it becomes "
                       "may be read by others; name a file for it (--secret-file job.secret), set "
                       "GRADUS_SECRET, or say --print-secret");
    }
    if (given) {
        gr_status status = gr_secret_parse(hex, secret, diag);
        gr_wipe((void *)(uintptr_t)hex, strlen(hex)); /* the arena's */
        gr_secret_clear_environment();
        return status;
    }
    gr_status status = file != NULL ? gr_secret_read(file, secret, diag) : GR_E_NOT_FOUND;
    if (status == GR_E_NOT_FOUND) {
        status = gr_random_bytes(secret, GR_SECRET_BYTES, diag);
        if (status == GR_OK && file != NULL) {
            status = gr_secret_write(file, secret, diag);
        }
    }
    return status;
}

void gr_cli_leave_secret(uint8_t secret[GR_SECRET_BYTES], bool printed)
{
    if (printed) {
        char hex[2 * GR_SECRET_BYTES + 1];
        gr_hex(secret, GR_SECRET_BYTES, hex);
        printf("GRADUS_SECRET=%s\n", hex);
        gr_wipe(hex, sizeof hex);
    }
    gr_wipe(secret, GR_SECRET_BYTES);
}
