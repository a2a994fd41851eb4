/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/base64.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

char *gr_base64_decode(const char *text, size_t *size_bytes_out)
{
    size_t size = strlen(text);
    int used = 0, rest = 0;
    EVP_ENCODE_CTX *decoder = EVP_ENCODE_CTX_new();
    char *data = size < INT_MAX - 4 ? malloc(size + 4) : NULL;
    bool valid = false;
    if (decoder != NULL && data != NULL) {
        EVP_DecodeInit(decoder);
        valid = EVP_DecodeUpdate(decoder, (unsigned char *)data, &used, (const unsigned char *)text,
                                 (int)size) >= 0 &&
                EVP_DecodeFinal(decoder, (unsigned char *)data + used, &rest) >= 0;
    }
    EVP_ENCODE_CTX_free(decoder);
    if (!valid) {
        free(data);
        return NULL;
    }
    *size_bytes_out = (size_t)(used + rest);
    data[*size_bytes_out] = '\0';
    return data;
}
