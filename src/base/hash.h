/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_HASH_H
#define GR_BASE_HASH_H

/* Checksums (xxHash) against accidents; SHA-256 and HMAC-SHA256 (OpenSSL) against attackers. */

#include <gradus/status.h>

uint64_t gr_hash64(const void *data, size_t size_bytes, uint64_t seed);

enum { GR_SHA256_BYTES = 32, GR_SHA256_HEX_BYTES = 65 };

typedef struct gr_sha256 gr_sha256;
gr_status gr_sha256_create(gr_sha256 **sha_out) GR_MUST_CHECK;
gr_status gr_sha256_add(gr_sha256 *sha, const void *data, size_t size_bytes) GR_MUST_CHECK;
/* Writes the digest in hexadecimal. */
gr_status gr_sha256_end(gr_sha256 *sha, char hex_out[GR_SHA256_HEX_BYTES]) GR_MUST_CHECK;
void gr_sha256_destroy(gr_sha256 *sha);
/* That of some bytes. */
gr_status gr_sha256_of(const void *data, size_t size_bytes,
                       char hex_out[GR_SHA256_HEX_BYTES]) GR_MUST_CHECK;

/* Writes lower-case hexadecimal with a terminating zero: 2 * size_bytes + 1 characters. */
void gr_hex(const uint8_t *data, size_t size_bytes, char *text_out);
/* The inverse. GR_E_INVALID unless `text` is exactly 2 * size_bytes hexadecimal digits. */
gr_status gr_unhex(const char *text, uint8_t *data_out, size_t size_bytes) GR_MUST_CHECK;

gr_status gr_hmac_sha256(const uint8_t *key, size_t key_bytes, const void *data, size_t size_bytes,
                         uint8_t mac_out[GR_SHA256_BYTES]) GR_MUST_CHECK;
/* Returns 1 if both are equal. The time does not depend on where the first difference is. */
int gr_equal_constant_time(const void *a, const void *b, size_t size_bytes);
/* Writes cryptographic random bytes. */
gr_status gr_random_bytes(void *out, size_t size_bytes, gr_diag *diag) GR_MUST_CHECK;
/* Overwrites a secret; the compiler cannot remove the call. */
void gr_wipe(void *data, size_t size_bytes);
/* Overwrites the unused stack below the caller, where functions that have returned may have left a
 * secret: saved registers (the dynamic linker saves them at the first call of a function), buffers
 * of a library; and the registers that a call may change, so that none is saved later. Call it
 * after the use of a secret, from the same function or a caller of it. */
void gr_wipe_stack(void);

#endif
