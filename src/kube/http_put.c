/* SPDX-License-Identifier: Apache-2.0 */

/* One file goes to a server by PUT, as stores of objects take them. */

#include "base/fail.h"
#include "kube/http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CONNECT_S = 10, STALL_S = 60, REPLY_BYTES = 2048, WORD_BYTES = 200, TRIES = 3 };

typedef struct upload {
    int fd;
    int64_t read_bytes;
    char reply[REPLY_BYTES]; /* the beginning of it */
    size_t reply_bytes;
} upload;

static size_t give(char *buffer, size_t one, size_t count, void *arg)
{
    upload *up = arg;
    ssize_t got = pread(up->fd, buffer, one * count, up->read_bytes);
    if (got < 0) {
        return CURL_READFUNC_ABORT;
    }
    up->read_bytes += got;
    return (size_t)got;
}

/* libcurl begins again where a connection that it kept was closed. */
static int go_to(void *arg, curl_off_t offset, int origin)
{
    upload *up = arg;
    if (origin != SEEK_SET) {
        return CURL_SEEKFUNC_CANTSEEK;
    }
    up->read_bytes = offset;
    return CURL_SEEKFUNC_OK;
}

static size_t take(char *bytes, size_t one, size_t count, void *arg)
{
    upload *up = arg;
    size_t size = one * count, room = sizeof up->reply - 1 - up->reply_bytes;
    size_t used = size < room ? size : room;
    memcpy(up->reply + up->reply_bytes, bytes, used);
    up->reply_bytes += used;
    return size;
}

/* What stands between <tag> and the next '<', without what is no printable character. */
static void find_word(const char *xml, const char *tag, char word_out[WORD_BYTES])
{
    const char *at = strstr(xml, tag);
    size_t used = 0;
    if (at != NULL) {
        for (at += strlen(tag); *at != '\0' && *at != '<' && used + 1 < WORD_BYTES; at++) {
            word_out[used++] = *at >= ' ' && *at <= '~' ? *at : ' ';
        }
    }
    word_out[used] = '\0';
}

/* The URL without its query, which proves who asks. */
static int bare_bytes(const char *url)
{
    return (int)strcspn(url, "?");
}

static gr_status refuse(const upload *up, const char *url, long code, gr_diag *diag)
{
    char word[WORD_BYTES], message[WORD_BYTES];
    find_word(up->reply, "<Code>", word);
    find_word(up->reply, "<Message>", message);
    gr_status status = code == 404                  ? GR_E_NOT_FOUND
                       : code == 401 || code == 403 ? GR_E_AUTH
                       : code >= 500                ? GR_E_PEER_LOST
                                                    : GR_E_INVALID;
    return gr_fail(diag, status, "%.*s: the server answers %ld%s%s%s%s", bare_bytes(url), url, code,
                   word[0] != '\0' ? " " : "", word, message[0] != '\0' ? ": " : "", message);
}

static gr_status set_up(CURL *easy, upload *up, const char *url, int64_t size_bytes,
                        const char *ca_path, char *error, gr_diag *diag)
{
    CURLcode code = curl_easy_setopt(easy, CURLOPT_URL, url);
    if (code == CURLE_OK && ca_path != NULL) {
        code = curl_easy_setopt(easy, CURLOPT_CAINFO, ca_path);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)size_bytes);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, give);
    curl_easy_setopt(easy, CURLOPT_READDATA, up);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, go_to);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, up);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, up);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "https,http");
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L); /* it is signed as it is */
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "gradus");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
    return code == CURLE_OK ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
}

/* GR_E_PEER_LOST: it may be tried again. */
static gr_status put_once(const char *url, int fd, int64_t size_bytes, const char *ca_path,
                          gr_diag *diag)
{
    upload up = {.fd = fd};
    char error[CURL_ERROR_SIZE] = "";
    long http_code = 0;
    CURL *easy = curl_easy_init();
    if (easy == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    gr_status status = set_up(easy, &up, url, size_bytes, ca_path, error, diag);
    if (status == GR_OK) {
        CURLcode code = curl_easy_perform(easy);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &http_code);
        if (http_code >= 300) { /* a server may refuse, and close, before it has read all */
            status = refuse(&up, url, http_code, diag);
        } else if (code != CURLE_OK) {
            status = code == CURLE_OPERATION_TIMEDOUT         ? GR_E_TIMEOUT
                     : code == CURLE_PEER_FAILED_VERIFICATION ? GR_E_AUTH
                     : code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL
                         ? GR_E_INVALID
                     : code == CURLE_ABORTED_BY_CALLBACK ? GR_E_IO
                                                         : GR_E_PEER_LOST;
            gr_fail(diag, status, "%.*s: %.200s", bare_bytes(url), url,
                    error[0] != '\0' ? error : curl_easy_strerror(code));
        }
    }
    curl_easy_cleanup(easy);
    return status;
}

gr_status gr_http_put_file(const char *url, int fd, int64_t size_bytes, const char *ca_path,
                           gr_diag *diag)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for libcurl");
    }
    gr_status status = GR_E_PEER_LOST;
    for (int i = 0; i < TRIES && status == GR_E_PEER_LOST; i++) {
        if (i > 0) {
            sleep((unsigned)i);
        }
        status = put_once(url, fd, size_bytes, ca_path, diag);
    }
    curl_global_cleanup();
    return status;
}
