/* SPDX-License-Identifier: Apache-2.0 */

/* The handshake: a peer without the secret sends any bytes in any cuts and must never be accepted.
 * Byte 0 chooses the role and the cuts; the rest is what the peer sends, with right checksums if
 * bit 2 is set. The secret is one that the fuzzer cannot know: it is drawn for each run. */

#include "base/codec.h"
#include "base/hash.h"
#include "link/auth.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t secret[GR_SECRET_BYTES], bytes[4 * GR_AUTH_BYTES];
    gr_auth auth;
    if (size < 2 || size - 1 > sizeof bytes ||
        gr_random_bytes(secret, sizeof secret, NULL) != GR_OK) {
        return 0;
    }
    gr_auth_role role = (data[0] & 1) != 0 ? GR_AUTH_CONNECTOR : GR_AUTH_ACCEPTOR;
    size_t cut = (size_t)(data[0] >> 3) * 4 + 1;
    memcpy(bytes, data + 1, size - 1);
    size--;
    if ((data[0] & 4) != 0 && size >= 24) {
        gr_put_u64(bytes + 16, gr_hash64(bytes, 16, gr_get_u32(bytes)));
    }
    if (gr_auth_init(&auth, role, 1, secret, NULL) != GR_OK) {
        return 0;
    }
    gr_status status = GR_PENDING;
    for (size_t at = 0; at < size && status == GR_PENDING;) {
        size_t used, pending;
        size_t part = size - at < cut ? size - at : cut;
        uint8_t *exact = malloc(part); /* of its exact size, so that a read past it is seen */
        if (exact == NULL) {
            break;
        }
        memcpy(exact, bytes + at, part);
        status = gr_auth_take(&auth, exact, part, &used, NULL);
        free(exact);
        if (used > part ||
            (status == GR_PENDING && used < part && auth.in_filled < GR_AUTH_BYTES)) {
            abort();
        }
        at += used;
        (void)gr_auth_pending(&auth, &pending);
        if (role == GR_AUTH_ACCEPTOR && auth.out_ready > GR_AUTH_CHALLENGE_BYTES) {
            abort(); /* it must not answer a stranger */
        }
        gr_auth_sent(&auth, pending);
        if (used == 0) {
            break;
        }
    }
    if (auth.done || auth.checked || status == GR_OK) {
        abort();
    }
    gr_auth_fini(&auth);
    return 0;
}
