/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_S3_H
#define GR_CLI_S3_H

/* Objects of a store that speaks S3: URLs that carry their own permission (AWS Signature Version 4
 * in the query), so that whoever fetches one needs no keys. Nothing here connects to a server. */

#include "base/arena.h"

enum {
    GR_S3_KEY_BYTES = 256,
    GR_S3_TOKEN_BYTES = 8192,
    GR_S3_REGION_BYTES = 64,
    GR_S3_ENDPOINT_BYTES = 256,
    GR_S3_LONGEST_S = 7 * 24 * 3600 /* that a URL may be valid */
};

/* Secrets: to be wiped by gr_s3_access_fini. */
typedef struct gr_s3_access {
    char key_id[GR_S3_KEY_BYTES], secret[GR_S3_KEY_BYTES];
    char token[GR_S3_TOKEN_BYTES];       /* of a session; "": none */
    char region[GR_S3_REGION_BYTES];     /* "us-east-1" if none is given */
    char endpoint[GR_S3_ENDPOINT_BYTES]; /* "https://minio.local:9000"; "": that of AWS */
} gr_s3_access;

/* What the variables of AWS's own tools say: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
 * AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL;
 * else the profile AWS_PROFILE ("default") of ~/.aws/credentials and ~/.aws/config, or of the files
 * that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name. GR_E_NOT_FOUND: no keys;
 * GR_E_INVALID. */
gr_status gr_s3_access_find(gr_s3_access *access_out, gr_diag *diag) GR_MUST_CHECK;
void gr_s3_access_fini(gr_s3_access *access);

/* Where an object is. */
typedef struct gr_s3_place {
    const char *scheme; /* "https" */
    const char *host;   /* with the port, unless it is the scheme's own */
    const char *path;   /* as in a URL: "/bucket/key%20of%20it" */
} gr_s3_place;

/* "s3://BUCKET/KEY". A bucket is part of the host at AWS, and of the path elsewhere. GR_E_INVALID,
 * GR_E_NO_MEMORY. */
gr_status gr_s3_place_read(const gr_s3_access *access, const char *text, gr_arena *arena,
                           gr_s3_place *place_out, gr_diag *diag) GR_MUST_CHECK;

/* The URL that permits `method` for `valid_s` from a time on; NULL: no memory. */
char *gr_s3_sign(const gr_s3_access *access, const gr_s3_place *place, const char *method,
                 int valid_s, int64_t time_s, gr_arena *arena) GR_MUST_CHECK;

#endif
