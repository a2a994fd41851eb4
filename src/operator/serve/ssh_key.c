/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/serve/ssh_key.h"

#include "base/hash.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdbool.h>
#include <string.h>

#define KEY_TYPE "ecdsa-sha2-nistp521"
#define CURVE "nistp521"
/* A point of P-521 that is not compressed; the three parts of a public key (RFC 5656); its line. */
enum {
    POINT_BYTES = 133,
    BLOB_BYTES = 256,
    LINE_BYTES = 512,
    BASE64_BYTES = 2048,
    TOKEN_BYTES = 32
};

/* A part of a public key: its length, then its bytes. */
static size_t put_part(unsigned char *blob, size_t at, const void *bytes, size_t size_bytes)
{
    for (int shift = 24; shift >= 0; shift -= 8) {
        blob[at++] = (unsigned char)(size_bytes >> shift);
    }
    memcpy(blob + at, bytes, size_bytes);
    return at + size_bytes;
}

/* A line of authorized_keys. False: the key has no such point. */
static bool print_public(EVP_PKEY *key, char line_out[LINE_BYTES])
{
    unsigned char point[POINT_BYTES], blob[BLOB_BYTES];
    char base64[LINE_BYTES - sizeof KEY_TYPE - 2];
    size_t point_bytes = 0;
    if (EVP_PKEY_get_octet_string_param(key, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point,
                                        &point_bytes) != 1 ||
        point_bytes != POINT_BYTES) {
        return false;
    }
    size_t used = put_part(blob, 0, KEY_TYPE, sizeof KEY_TYPE - 1);
    used = put_part(blob, used, CURVE, sizeof CURVE - 1);
    used = put_part(blob, used, point, sizeof point);
    EVP_EncodeBlock((unsigned char *)base64, blob, (int)used);
    snprintf(line_out, LINE_BYTES, KEY_TYPE " %s\n", base64);
    return true;
}

/* What a Secret's `data` holds. NULL: it is too long, or there is no memory. */
static json_t *encode(const char *bytes, size_t size_bytes)
{
    char text[BASE64_BYTES];
    if ((size_bytes + 2) / 3 * 4 >= sizeof text) {
        return NULL;
    }
    EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)bytes, (int)size_bytes);
    json_t *value = json_string(text);
    OPENSSL_cleanse(text, sizeof text);
    return value;
}

json_t *gr_job_token_make(void *unused)
{
    (void)unused;
    uint8_t token[TOKEN_BYTES];
    char hex[2 * TOKEN_BYTES + 1];
    json_t *data = NULL;
    if (gr_random_bytes(token, sizeof token, NULL) == GR_OK) {
        gr_hex(token, sizeof token, hex);
        data = json_pack("{s:o}", "token", encode(hex, strlen(hex)));
        OPENSSL_cleanse(hex, sizeof hex);
    }
    OPENSSL_cleanse(token, sizeof token);
    return data;
}

json_t *gr_ssh_key_make(void *unused)
{
    (void)unused;
    json_t *pair = NULL;
    EVP_PKEY *key = EVP_EC_gen("P-521");
    BIO *pem = BIO_new(BIO_s_mem());
    char line[LINE_BYTES], *bytes = NULL;
    /* "EC PRIVATE KEY": what users of mpi-operator may parse. */
    if (key != NULL && pem != NULL &&
        PEM_write_bio_PrivateKey_traditional(pem, key, NULL, NULL, 0, NULL, NULL) == 1 &&
        print_public(key, line)) {
        long size = BIO_get_mem_data(pem, &bytes);
        pair = json_pack("{s:o, s:o}", "ssh-privatekey", encode(bytes, (size_t)size),
                         "ssh-publickey", encode(line, strlen(line)));
        OPENSSL_cleanse(bytes, (size_t)size);
    }
    BIO_free(pem);
    EVP_PKEY_free(key);
    return pair;
}
