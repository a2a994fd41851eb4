/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/s3.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    FILE_BYTES_MAX = 1 << 20,
    PATH_BYTES = 4096,
    NAME_BYTES = 128, /* of a profile */
    BUCKET_BYTES_MIN = 3,
    BUCKET_BYTES_MAX = 63,
    KEY_BYTES_MAX = 1024,
    DATE_BYTES = 9, /* "20260131" */
    MOMENT_BYTES = 17
};

/* ---- Access ---------------------------------------------------------------------------------- */

typedef struct setting { /* of a profile */
    const char *key;
    char *value_out;
    size_t value_bytes;
} setting;

/* What is there already stays. */
static bool fill(const setting *to, const char *value, size_t length)
{
    if (to->value_out[0] != '\0' || length == 0) {
        return true;
    }
    if (length >= to->value_bytes) {
        return false;
    }
    memcpy(to->value_out, value, length);
    to->value_out[length] = '\0';
    return true;
}

static bool fill_from_variable(const setting *to, const char *name)
{
    const char *value = getenv(name);
    return value == NULL || fill(to, value, strlen(value));
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1]) != NULL) {
        text[--length] = '\0';
    }
    return text;
}

/* A line of a profile: "key = value". */
static bool take_line(char *line, const setting *settings, size_t count)
{
    char *equal = strchr(line, '=');
    if (equal == NULL) {
        return true;
    }
    *equal = '\0';
    const char *key = trim(line), *value = trim(equal + 1);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(key, settings[i].key) == 0) {
            return fill(&settings[i], value, strlen(value));
        }
    }
    return true;
}

/* "[section]" heads its lines; lines that begin with # or ; are comments. */
static bool take_section(char *text, const char *section, const setting *settings, size_t count)
{
    bool is_inside = false, fits = true;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && fits;
         line = strtok_r(NULL, "\n", &rest)) {
        line = trim(line);
        if (line[0] == '[') {
            line[strcspn(line, "]")] = '\0';
            is_inside = strcmp(trim(line + 1), section) == 0;
        } else if (is_inside && line[0] != '#' && line[0] != ';') {
            fits = take_line(line, settings, count);
        }
    }
    return fits;
}

/* A file that is not there says nothing. */
static gr_status read_profile(const char *variable, const char *usual, const char *section,
                              const setting *settings, size_t count, gr_diag *diag)
{
    char path[PATH_BYTES], *text = NULL;
    const char *named = getenv(variable), *home = getenv("HOME");
    bool is_named = named != NULL && named[0] != '\0';
    size_t size_bytes = 0;
    if (!is_named && home == NULL) {
        return GR_OK;
    }
    int length = is_named ? snprintf(path, sizeof path, "%s", named)
                          : snprintf(path, sizeof path, "%s/.aws/%s", home, usual);
    if (length >= (int)sizeof path) {
        return gr_fail(diag, GR_E_INVALID, "%s: the path is too long", variable);
    }
    gr_status status = gr_file_read(path, FILE_BYTES_MAX, &text, &size_bytes, diag);
    if (status == GR_E_NOT_FOUND) {
        return GR_OK;
    }
    if (status == GR_OK && strlen(text) != size_bytes) {
        status =
            gr_fail(diag, GR_E_INVALID, "%.200s is no file of profiles: it has zero bytes", path);
    } else if (status == GR_OK && !take_section(text, section, settings, count)) {
        status = gr_fail(diag, GR_E_INVALID, "%.200s: a value of the profile is too long", path);
    }
    if (text != NULL) {
        gr_wipe(text, size_bytes);
        free(text);
    }
    return status;
}

/* "https://HOST[:PORT]" */
static bool is_endpoint(const char *text)
{
    const char *host = strncmp(text, "https://", 8) == 0  ? text + 8
                       : strncmp(text, "http://", 7) == 0 ? text + 7
                                                          : NULL;
    return host != NULL && host[0] != '\0' && host[strcspn(host, "/?#@ \t\"\\")] == '\0';
}

static gr_status check(const gr_s3_access *access, gr_diag *diag)
{
    if (access->key_id[0] == '\0' || access->secret[0] == '\0') {
        return gr_fail(diag, GR_E_NOT_FOUND,
                       "there are no keys for s3://; set AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws/credentials by "
                       "AWS_PROFILE");
    }
    if (access->endpoint[0] != '\0' && !is_endpoint(access->endpoint)) {
        return gr_fail(diag, GR_E_INVALID,
                       "the endpoint for s3:// (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or "
                       "endpoint_url) must be https://HOST:PORT, without a path");
    }
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    if (access->region[strspn(access->region, letters)] != '\0') {
        return gr_fail(diag, GR_E_INVALID,
                       "the region for s3:// (AWS_REGION, AWS_DEFAULT_REGION or region) must be a "
                       "name like eu-central-1");
    }
    return GR_OK;
}

gr_status gr_s3_access_find(gr_s3_access *access_out, gr_diag *diag)
{
    gr_s3_access *a = access_out;
    memset(a, 0, sizeof *a);
    const setting settings[] = {{"aws_access_key_id", a->key_id, sizeof a->key_id},
                                {"aws_secret_access_key", a->secret, sizeof a->secret},
                                {"aws_session_token", a->token, sizeof a->token},
                                {"region", a->region, sizeof a->region},
                                {"endpoint_url", a->endpoint, sizeof a->endpoint}};
    enum { KEY_ID, SECRET, TOKEN, REGION, ENDPOINT, COUNT };
    char section[NAME_BYTES];
    const char *profile = getenv("AWS_PROFILE");
    profile = profile != NULL && profile[0] != '\0' ? profile : "default";
    bool fits = fill_from_variable(&settings[KEY_ID], "AWS_ACCESS_KEY_ID") &&
                fill_from_variable(&settings[SECRET], "AWS_SECRET_ACCESS_KEY") &&
                fill_from_variable(&settings[TOKEN], "AWS_SESSION_TOKEN") &&
                fill_from_variable(&settings[REGION], "AWS_REGION") &&
                fill_from_variable(&settings[REGION], "AWS_DEFAULT_REGION") &&
                fill_from_variable(&settings[ENDPOINT], "AWS_ENDPOINT_URL_S3") &&
                fill_from_variable(&settings[ENDPOINT], "AWS_ENDPOINT_URL");
    if (!fits) {
        return gr_fail(diag, GR_E_INVALID,
                       "a variable AWS_... is too long for keys, region and "
                       "endpoint of s3://");
    }
    /* Keys of the environment go without a token of the file. */
    bool has_keys = a->key_id[0] != '\0' && a->secret[0] != '\0';
    gr_status status = has_keys ? GR_OK
                                : read_profile("AWS_SHARED_CREDENTIALS_FILE", "credentials",
                                               profile, settings, COUNT, diag);
    bool is_default = strcmp(profile, "default") == 0;
    snprintf(section, sizeof section, "%s%.100s", is_default ? "" : "profile ", profile);
    if (status == GR_OK) {
        has_keys = a->key_id[0] != '\0' && a->secret[0] != '\0';
        size_t first = has_keys ? REGION : KEY_ID;
        status = read_profile("AWS_CONFIG_FILE", "config", section, settings + first, COUNT - first,
                              diag);
    }
    fill(&settings[REGION], "us-east-1", strlen("us-east-1"));
    size_t length = strlen(a->endpoint);
    while (length > 0 && a->endpoint[length - 1] == '/') {
        a->endpoint[--length] = '\0';
    }
    return status == GR_OK ? check(a, diag) : status;
}

void gr_s3_access_fini(gr_s3_access *access)
{
    gr_wipe(access, sizeof *access);
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* As a part of a URL. NULL: no memory. */
static char *encode(const char *text, const char *but, gr_arena *arena)
{
    char *encoded = NULL, *kept = NULL;
    size_t size_bytes = 0;
    FILE *file = open_memstream(&encoded, &size_bytes);
    if (file != NULL) {
        gr_text_write_url(file, text, but);
        kept = fclose(file) == 0 ? gr_arena_strdup(arena, encoded) : NULL;
    }
    free(encoded);
    return kept;
}

static bool is_bucket(const char *text, size_t length)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789.-";
    return length >= BUCKET_BYTES_MIN && length <= BUCKET_BYTES_MAX &&
           strspn(text, letters) >= length && text[0] != '.' && text[0] != '-' &&
           memmem(text, length, "..", 2) == NULL;
}

/* The host of an endpoint, without the port that its scheme has anyhow: what a client sends. */
static char *host_of(const char *endpoint, gr_arena *arena)
{
    bool is_secure = strncmp(endpoint, "https://", 8) == 0;
    const char *host = endpoint + (is_secure ? 8 : 7), *usual = is_secure ? ":443" : ":80";
    size_t length = strlen(host), tail = strlen(usual);
    bool has_usual = length > tail && strcmp(host + length - tail, usual) == 0;
    return gr_arena_printf(arena, "%.*s", (int)(length - (has_usual ? tail : 0)), host);
}

gr_status gr_s3_place_read(const gr_s3_access *access, const char *text, gr_arena *arena,
                           gr_s3_place *place_out, gr_diag *diag)
{
    const char *bucket = text + strlen("s3://");
    size_t length = strcspn(bucket, "/");
    const char *key = bucket[length] == '/' ? bucket + length + 1 : "";
    if (!is_bucket(bucket, length) || key[0] == '\0' || strlen(key) > KEY_BYTES_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "%.200s: it must be s3://BUCKET/KEY, the name of a bucket in lower-case "
                       "letters, digits, - and ., and a key of 1 to %d bytes",
                       text, KEY_BYTES_MAX);
    }
    const char *path = encode(key, "/", arena);
    if (path == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a URL");
    }
    bool is_elsewhere = access->endpoint[0] != '\0';
    bool is_in_path = is_elsewhere || memchr(bucket, '.', length) != NULL;
    const char *china = strncmp(access->region, "cn-", 3) == 0 ? ".cn" : "";
    place_out->scheme = strncmp(access->endpoint, "http://", 7) == 0 ? "http" : "https";
    place_out->path = is_in_path ? gr_arena_printf(arena, "/%.*s/%s", (int)length, bucket, path)
                                 : gr_arena_printf(arena, "/%s", path);
    place_out->host = is_elsewhere ? host_of(access->endpoint, arena)
                      : is_in_path
                          ? gr_arena_printf(arena, "s3.%s.amazonaws.com%s", access->region, china)
                          : gr_arena_printf(arena, "%.*s.s3.%s.amazonaws.com%s", (int)length,
                                            bucket, access->region, china);
    return place_out->path != NULL && place_out->host != NULL
               ? GR_OK
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a URL");
}

/* ---- Signatures ------------------------------------------------------------------------------ */

/* Each word is signed by the key that the one before gave. */
static bool derive(const gr_s3_access *access, const char *date, const char *to_sign,
                   char hex_out[GR_SHA256_HEX_BYTES])
{
    const char *const words[] = {date, access->region, "s3", "aws4_request", to_sign};
    char first[GR_S3_KEY_BYTES + 4];
    uint8_t key[GR_SHA256_BYTES], next[GR_SHA256_BYTES];
    size_t length = (size_t)snprintf(first, sizeof first, "AWS4%s", access->secret);
    bool done =
        gr_hmac_sha256((const uint8_t *)first, length, words[0], strlen(words[0]), key) == GR_OK;
    for (size_t i = 1; i < sizeof words / sizeof words[0] && done; i++) {
        done = gr_hmac_sha256(key, sizeof key, words[i], strlen(words[i]), next) == GR_OK;
        memcpy(key, next, sizeof key);
    }
    gr_hex(key, sizeof key, hex_out);
    gr_wipe(first, sizeof first);
    gr_wipe(key, sizeof key);
    gr_wipe(next, sizeof next);
    return done;
}

/* Parameters in order of their names, as they are signed. */
static char *query_of(const gr_s3_access *access, const char *scope, const char *moment,
                      int valid_s, gr_arena *arena)
{
    char *who = gr_arena_printf(arena, "%s/%s", access->key_id, scope);
    char *credential = who != NULL ? encode(who, "", arena) : NULL;
    char *token = encode(access->token, "", arena);
    if (credential == NULL || token == NULL) {
        return NULL;
    }
    return gr_arena_printf(arena,
                           "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=%s&X-Amz-Date=%s&"
                           "X-Amz-Expires=%d%s%s&X-Amz-SignedHeaders=host",
                           credential, moment, valid_s,
                           token[0] != '\0' ? "&X-Amz-Security-Token=" : "", token);
}

char *gr_s3_sign(const gr_s3_access *access, const gr_s3_place *place, const char *method,
                 int valid_s, int64_t time_s, gr_arena *arena)
{
    char moment[MOMENT_BYTES], date[DATE_BYTES], hashed[GR_SHA256_HEX_BYTES];
    char signature[GR_SHA256_HEX_BYTES];
    struct tm when;
    time_t seconds = (time_t)time_s;
    if (gmtime_r(&seconds, &when) == NULL ||
        strftime(moment, sizeof moment, "%Y%m%dT%H%M%SZ", &when) == 0) {
        return NULL;
    }
    snprintf(date, sizeof date, "%.8s", moment);
    char *scope = gr_arena_printf(arena, "%s/%s/s3/aws4_request", date, access->region);
    char *query = scope != NULL ? query_of(access, scope, moment, valid_s, arena) : NULL;
    char *request = query != NULL
                        ? gr_arena_printf(arena, "%s\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD",
                                          method, place->path, query, place->host)
                        : NULL;
    if (request == NULL || gr_sha256_of(request, strlen(request), hashed) != GR_OK) {
        return NULL;
    }
    char *to_sign = gr_arena_printf(arena, "AWS4-HMAC-SHA256\n%s\n%s\n%s", moment, scope, hashed);
    return to_sign != NULL && derive(access, date, to_sign, signature)
               ? gr_arena_printf(arena, "%s://%s%s?%s&X-Amz-Signature=%s", place->scheme,
                                 place->host, place->path, query, signature)
               : NULL;
}
