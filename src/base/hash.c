/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include "base/fail.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

uint64_t gr_hash64(const void *data, size_t size_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size_bytes, seed);
}

struct gr_sha256 {
    EVP_MD_CTX *context;
    int ended; /* after the end, more data is a mistake of the caller */
};

gr_status gr_sha256_create(gr_sha256 **sha_out)
{
    gr_sha256 *sha = calloc(1, sizeof *sha);
    if (sha == NULL) {
        return GR_E_NO_MEMORY;
    }
    sha->context = EVP_MD_CTX_new();
    if (sha->context == NULL) {
        free(sha);
        return GR_E_NO_MEMORY;
    }
    if (EVP_DigestInit_ex(sha->context, EVP_sha256(), NULL) != 1) {
        gr_sha256_destroy(sha);
        return GR_E_UNSUPPORTED;
    }
    *sha_out = sha;
    return GR_OK;
}

gr_status gr_sha256_add(gr_sha256 *sha, const void *data, size_t size_bytes)
{
    if (sha->ended) {
        return GR_E_INVALID;
    }
    if (size_bytes == 0) {
        return GR_OK;
    }
    return EVP_DigestUpdate(sha->context, data, size_bytes) == 1 ? GR_OK : GR_E_UNSUPPORTED;
}

gr_status gr_sha256_end(gr_sha256 *sha, char hex_out[GR_SHA256_HEX_BYTES])
{
    uint8_t digest[GR_SHA256_BYTES];
    if (sha->ended) {
        return GR_E_INVALID;
    }
    sha->ended = 1;
    if (EVP_DigestFinal_ex(sha->context, digest, NULL) != 1) {
        return GR_E_UNSUPPORTED;
    }
    gr_hex(digest, sizeof digest, hex_out);
    return GR_OK;
}

void gr_sha256_destroy(gr_sha256 *sha)
{
    if (sha != NULL) {
        EVP_MD_CTX_free(sha->context);
        free(sha);
    }
}

gr_status gr_sha256_of(const void *data, size_t size_bytes, char hex_out[GR_SHA256_HEX_BYTES])
{
    gr_sha256 *sha = NULL;
    gr_status status = gr_sha256_create(&sha);
    if (status == GR_OK) {
        status = gr_sha256_add(sha, data, size_bytes);
    }
    if (status == GR_OK) {
        status = gr_sha256_end(sha, hex_out);
    }
    gr_sha256_destroy(sha);
    return status;
}

void gr_hex(const uint8_t *data, size_t size_bytes, char *text_out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size_bytes; i++) {
        text_out[2 * i] = digits[data[i] >> 4];
        text_out[2 * i + 1] = digits[data[i] & 15];
    }
    text_out[2 * size_bytes] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

gr_status gr_unhex(const char *text, uint8_t *data_out, size_t size_bytes)
{
    if (strlen(text) != 2 * size_bytes) {
        return GR_E_INVALID;
    }
    for (size_t i = 0; i < size_bytes; i++) {
        if (hex_digit(text[2 * i]) < 0 || hex_digit(text[2 * i + 1]) < 0) {
            return GR_E_INVALID;
        }
    }
    for (size_t i = 0; i < size_bytes; i++) {
        data_out[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    }
    return GR_OK;
}

gr_status gr_hmac_sha256(const uint8_t *key, size_t key_bytes, const void *data, size_t size_bytes,
                         uint8_t mac_out[GR_SHA256_BYTES])
{
    if (key_bytes > INT_MAX) {
        return GR_E_INVALID;
    }
    unsigned int length = 0;
    if (HMAC(EVP_sha256(), key, (int)key_bytes, data, size_bytes, mac_out, &length) == NULL ||
        length != GR_SHA256_BYTES) {
        return GR_E_UNSUPPORTED;
    }
    return GR_OK;
}

int gr_equal_constant_time(const void *a, const void *b, size_t size_bytes)
{
    return CRYPTO_memcmp(a, b, size_bytes) == 0;
}

gr_status gr_random_bytes(void *out, size_t size_bytes, gr_diag *diag)
{
    /* From the kernel: no state of ours that a fork could duplicate. */
    unsigned char *at = out;
    while (size_bytes > 0) {
        ssize_t got = getrandom(at, size_bytes, 0);
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            char words[GR_ERRNO_TEXT_BYTES];
            return gr_fail(diag, GR_E_IO, "the kernel gives no random bytes (getrandom): %s",
                           gr_text_errno(errno, words));
        }
        at += got;
        size_bytes -= (size_t)got;
    }
    return GR_OK;
}

void gr_wipe(void *data, size_t size_bytes)
{
    explicit_bzero(data, size_bytes);
}

/* A function that leaves no call-used register as it was. */
#if defined(__has_attribute) && __has_attribute(zero_call_used_regs)
#define LEAVES_NO_REGISTERS noinline, zero_call_used_regs("all")
#else
#define LEAVES_NO_REGISTERS noinline
#endif

#if defined(__x86_64__)
/* With registers that only some processors have, and that libc copies with where they are there. */
__attribute__((LEAVES_NO_REGISTERS, target("avx512f"))) static void wipe_wide_registers(void)
{
}
#endif

__attribute__((LEAVES_NO_REGISTERS)) void gr_wipe_stack(void)
{
    enum { DEPTH_BYTES = 16 << 10 };
    uint8_t below[DEPTH_BYTES];
    gr_wipe(below, sizeof below);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        wipe_wide_registers();
    }
#endif
}
