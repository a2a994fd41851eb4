/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/http.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    EVENTS = 64,
    CONNECT_MS = 10000,
    KEEP_IDLE_S = 30,
    KEEP_INTERVAL_S = 10,
    BUFFER = 128 << 10
};

struct gr_http_call {
    gr_http *http;
    gr_http_call *next, **link; /* in the list of all calls */
    CURL *easy;
    struct curl_slist *headers, *connect_to;
    bool is_stopped;
    bool is_refused; /* `data` wanted no more */
    bool (*data)(void *arg, int code, const char *bytes, size_t size_bytes);
    void (*end)(void *arg, const gr_http_end *end);
    void *arg;
    char error[CURL_ERROR_SIZE];
};

struct gr_http {
    const gr_kube_access *access;
    CURLM *multi;
    int epoll_fd, timer_fd;
    gr_clock clock;
    int64_t curl_due_us, wake_due_us;
    gr_http_call *calls;
    bool in_curl;     /* its functions must not be called */
    bool has_stopped; /* some call that is still to be freed */
};

static void arm(gr_http *http)
{
    int64_t due_us = gr_earlier_us(http->curl_due_us, http->wake_due_us);
    int64_t left_us = due_us == GR_NEVER ? 0 : due_us - gr_clock_now_us(&http->clock);
    struct itimerspec when = {0};
    if (due_us != GR_NEVER) {
        left_us = left_us > 0 ? left_us : 1;
        when.it_value.tv_sec = left_us / 1000000;
        when.it_value.tv_nsec = left_us % 1000000 * 1000;
    }
    timerfd_settime(http->timer_fd, 0, &when, NULL);
}

static int curl_wants_time(CURLM *multi, long timeout_ms, void *arg)
{
    gr_http *http = arg;
    (void)multi;
    http->curl_due_us =
        timeout_ms < 0 ? GR_NEVER : gr_clock_now_us(&http->clock) + timeout_ms * 1000;
    arm(http);
    return 0;
}

static int curl_wants_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *fd_arg)
{
    gr_http *http = arg;
    struct epoll_event event = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    event.events = (what & CURL_POLL_IN ? EPOLLIN : 0U) | (what & CURL_POLL_OUT ? EPOLLOUT : 0U);
    bool is_new = fd_arg == NULL;
    curl_multi_assign(http->multi, fd, http);
    if (epoll_ctl(http->epoll_fd, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0) {
        return 0;
    }
    /* A number that was closed and opened again, without a word. */
    return epoll_ctl(http->epoll_fd, is_new ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

static size_t curl_has_data(char *bytes, size_t one, size_t count, void *arg)
{
    gr_http_call *call = arg;
    long code = 0;
    if (call->is_stopped) {
        return 0;
    }
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &code);
    bool wants_more = call->data(call->arg, (int)code, bytes, one * count);
    call->is_refused = !wants_more;
    return wants_more && !call->is_stopped ? one * count : 0;
}

gr_status gr_http_create(const gr_kube_access *access, gr_http **http_out, gr_diag *diag)
{
    gr_http *http = calloc(1, sizeof *http);
    if (http == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(http);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for libcurl");
    }
    http->access = access;
    http->clock = gr_clock_real();
    http->curl_due_us = http->wake_due_us = GR_NEVER;
    http->multi = curl_multi_init();
    http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    http->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = http->timer_fd};
    if (http->multi == NULL || http->epoll_fd < 0 || http->timer_fd < 0 ||
        epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->timer_fd, &event) != 0) {
        char text[GR_ERRNO_TEXT_BYTES];
        gr_fail(diag, GR_E_IO, "cannot make a set of connections: %s", gr_text_errno(errno, text));
        gr_http_destroy(http);
        return GR_E_IO;
    }
    curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, curl_wants_socket);
    curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
    curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, curl_wants_time);
    curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
    *http_out = http;
    return GR_OK;
}

static void free_parts(gr_http_call *call)
{
    curl_easy_cleanup(call->easy);
    for (struct curl_slist *header = call->headers; header != NULL; header = header->next) {
        gr_wipe(header->data, strlen(header->data)); /* the token is one of them */
    }
    curl_slist_free_all(call->headers);
    curl_slist_free_all(call->connect_to);
}

static void free_call(gr_http_call *call)
{
    curl_multi_remove_handle(call->http->multi, call->easy);
    free_parts(call);
    if (call->link != NULL) {
        *call->link = call->next;
        if (call->next != NULL) {
            call->next->link = call->link;
        }
    }
    free(call);
}

void gr_http_destroy(gr_http *http)
{
    if (http == NULL) {
        return;
    }
    while (http->calls != NULL) {
        free_call(http->calls);
    }
    curl_multi_cleanup(http->multi);
    if (http->timer_fd >= 0) {
        close(http->timer_fd);
    }
    if (http->epoll_fd >= 0) {
        close(http->epoll_fd);
    }
    free(http);
    curl_global_cleanup();
}

int gr_http_fd(const gr_http *http)
{
    return http->epoll_fd;
}

void gr_http_wake(gr_http *http, int64_t delay_us)
{
    http->wake_due_us = delay_us == GR_NEVER ? GR_NEVER : gr_clock_now_us(&http->clock) + delay_us;
    arm(http);
}

/* ---- One call ---------------------------------------------------------------------------------
 * */
static bool add_header(gr_http_call *call, const char *name, const char *value)
{
    char *line = NULL;
    struct curl_slist *list = NULL;
    if (asprintf(&line, "%s: %s", name, value) >= 0) {
        list = curl_slist_append(call->headers, line);
        gr_wipe(line, strlen(line));
        free(line);
    }
    call->headers = list != NULL ? list : call->headers;
    return list != NULL;
}

static CURLcode set_blob(CURL *easy, CURLoption option, char *pem)
{
    struct curl_blob blob = {.data = pem, .len = strlen(pem), .flags = CURL_BLOB_COPY};
    return curl_easy_setopt(easy, option, &blob);
}

/* The URL; with tls_server_name the certificate must be for that, and the connection goes to the
 * server all the same. */
static bool set_url(gr_http_call *call, const gr_kube_access *access, const char *path)
{
    const char *host = access->server + strlen("https://"), *name = access->tls_server_name;
    size_t length = strcspn(host, "/");
    char *url = NULL;
    bool done;
    if (name == NULL) {
        done = asprintf(&url, "%s%s", access->server, path) >= 0;
    } else {
        char *to = NULL, *host_name = strndup(host, length);
        const char *port = host[0] == '[' ? strchr(host, ']') : host;
        port = port != NULL ? memchr(port, ':', length - (size_t)(port - host)) : NULL;
        size_t name_bytes = port != NULL ? (size_t)(port - host) : length;
        size_t port_bytes = length - name_bytes;
        done = host_name != NULL &&
               asprintf(&url, "https://%s%.*s%s%s", name, (int)port_bytes, host + name_bytes,
                        host + length, path) >= 0 &&
               asprintf(&to, "::%.*s:", (int)name_bytes, host) >= 0 &&
               (call->connect_to = curl_slist_append(NULL, to)) != NULL &&
               add_header(call, "Host", host_name) &&
               curl_easy_setopt(call->easy, CURLOPT_CONNECT_TO, call->connect_to) == CURLE_OK;
        free(to);
        free(host_name);
    }
    done = done && curl_easy_setopt(call->easy, CURLOPT_URL, url) == CURLE_OK;
    free(url);
    return done;
}

static bool set_identity(gr_http_call *call, const gr_kube_access *access)
{
    CURL *easy = call->easy;
    CURLcode code = CURLE_OK;
    bool done = true;
    if (access->insecure) {
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    if (access->ca_pem != NULL) { /* and no authority of the system */
        code = set_blob(easy, CURLOPT_CAINFO_BLOB, access->ca_pem);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    if (access->cert_pem != NULL && code == CURLE_OK) {
        code = set_blob(easy, CURLOPT_SSLCERT_BLOB, access->cert_pem);
        curl_easy_setopt(easy, CURLOPT_SSLCERTTYPE, "PEM");
    }
    if (access->key_pem != NULL && code == CURLE_OK) {
        code = set_blob(easy, CURLOPT_SSLKEY_BLOB, access->key_pem);
        curl_easy_setopt(easy, CURLOPT_SSLKEYTYPE, "PEM");
    }
    if (access->proxy_url != NULL && code == CURLE_OK) { /* whatever NO_PROXY says, as kubectl */
        code = curl_easy_setopt(easy, CURLOPT_PROXY, access->proxy_url);
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "");
    }
    if (access->token != NULL) {
        char *bearer = NULL;
        done = asprintf(&bearer, "Bearer %s", access->token) >= 0;
        done = done && add_header(call, "Authorization", bearer);
        if (bearer != NULL) {
            gr_wipe(bearer, strlen(bearer));
            free(bearer);
        }
    }
    return code == CURLE_OK && done;
}

static bool set_page(gr_http_call *call, const char *url)
{
    curl_easy_setopt(call->easy, CURLOPT_FORBID_REUSE, 1L); /* who has answered is left alone */
    return curl_easy_setopt(call->easy, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(call->easy, CURLOPT_PROTOCOLS_STR, "http") == CURLE_OK &&
           curl_easy_setopt(call->easy, CURLOPT_NOPROXY, "*") == CURLE_OK;
}

static bool set_place(gr_http_call *call, const gr_http_request *request)
{
    const gr_kube_access *access = call->http->access;
    return request->url != NULL
               ? set_page(call, request->url)
               : set_url(call, access, request->path) && set_identity(call, access);
}

static bool set_request(gr_http_call *call, const gr_http_request *request)
{
    CURL *easy = call->easy;
    CURLcode code = curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    bool done = add_header(call, "Accept", "application/json") && add_header(call, "Expect", "");
    if (request->content_type != NULL && code == CURLE_OK) {
        done = done && add_header(call, "Content-Type", request->content_type);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_bytes);
        code = curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, request->body);
    }
    if (code == CURLE_OK) {
        code = curl_easy_setopt(easy, CURLOPT_USERAGENT, request->user_agent);
    }
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "https");
    /* One connection for each stream: a lost packet holds up no other one. */
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)BUFFER);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)((request->timeout_us + 999) / 1000));
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, (long)KEEP_IDLE_S);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, (long)KEEP_INTERVAL_S);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, curl_has_data);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    return done && code == CURLE_OK;
}

gr_status gr_http_start(gr_http *http, const gr_http_request *request, gr_http_call **call_out,
                        gr_diag *diag)
{
    gr_http_call *call = calloc(1, sizeof *call);
    if (call == NULL || (call->easy = curl_easy_init()) == NULL) {
        free(call);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    call->http = http;
    call->data = request->data;
    call->end = request->end;
    call->arg = request->arg;
    if (!set_request(call, request) || !set_place(call, request) ||
        curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers) != CURLE_OK ||
        curl_multi_add_handle(http->multi, call->easy) != CURLM_OK) {
        free_call(call);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a request");
    }
    call->next = http->calls;
    call->link = &http->calls;
    if (call->next != NULL) {
        call->next->link = &call->next;
    }
    http->calls = call;
    *call_out = call;
    return GR_OK;
}

void gr_http_stop(gr_http *http, gr_http_call *call)
{
    call->is_stopped = true;
    if (http->in_curl) {
        http->has_stopped = true;
    } else {
        free_call(call);
    }
}

/* What a failure of libcurl means here. */
static gr_status classify(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PROXY:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
        return GR_E_PEER_LOST;
    case CURLE_OPERATION_TIMEDOUT:
        return GR_E_TIMEOUT;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
        return GR_E_AUTH;
    case CURLE_OUT_OF_MEMORY:
        return GR_E_NO_MEMORY;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_UNSUPPORTED_PROTOCOL: /* HTTP/0.9: any bytes */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_CHUNK_FAILED:
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_HTTP2:
        return GR_E_PROTOCOL;
    default:
        return GR_E_IO;
    }
}

static const char *advice(CURLcode code)
{
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return "; the certificate-authority must be that of this cluster, or somebody stands in "
               "for it";
    case CURLE_SSL_CERTPROBLEM:
        return "; check client-certificate and client-key";
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
        return "; check that the server runs, and its address";
    default:
        return "";
    }
}

static void finish(gr_http_call *call, CURLcode code)
{
    gr_diag diag = {0};
    gr_http_end end = {.status = GR_OK, .retry_after_s = -1, .diag = &diag};
    long http_code = 0;
    curl_off_t sent_bytes = 0, retry_after_s = 0;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http_code);
    curl_easy_getinfo(call->easy, CURLINFO_RETRY_AFTER, &retry_after_s);
    long request_bytes = 0;
    curl_easy_getinfo(call->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &sent_bytes);
    end.code = (int)http_code;
    end.was_sent = request_bytes > 0 || sent_bytes > 0;
    if (retry_after_s > 0) {
        end.retry_after_s = retry_after_s < 3600 ? (int)retry_after_s : 3600;
    }
    if (code != CURLE_OK) {
        const gr_kube_access *access = call->http->access;
        end.status = call->is_refused ? GR_E_CANCELLED : classify(code);
        gr_fail(&diag, end.status, "%.120s: %.200s%s", access != NULL ? access->server : "a page",
                call->error[0] != '\0' ? call->error : curl_easy_strerror(code), advice(code));
    }
    call->end(call->arg, &end);
    free_call(call);
}

static void free_stopped(gr_http *http)
{
    if (http->has_stopped) {
        http->has_stopped = false;
        for (gr_http_call *call = http->calls, *next; call != NULL; call = next) {
            next = call->next;
            if (call->is_stopped) {
                free_call(call);
            }
        }
    }
}

static void act(gr_http *http, curl_socket_t fd, int mask)
{
    int running = 0;
    http->in_curl = true;
    curl_multi_socket_action(http->multi, fd, mask, &running);
    http->in_curl = false;
}

static void reap(gr_http *http)
{
    int left = 0;
    CURLMsg *message;
    free_stopped(http);
    while ((message = curl_multi_info_read(http->multi, &left)) != NULL) {
        gr_http_call *call = NULL;
        if (message->msg == CURLMSG_DONE &&
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call) == CURLE_OK) {
            finish(call, message->data.result);
        }
    }
}

void gr_http_run(gr_http *http)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(http->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        uint32_t what = events[i].events;
        if (events[i].data.fd == http->timer_fd) {
            uint64_t ticks; /* none if it was set anew meanwhile: it does not matter */
            ssize_t got = read(http->timer_fd, &ticks, sizeof ticks);
            (void)got;
            continue;
        }
        act(http, events[i].data.fd,
            (what & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                (what & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                (what & EPOLLERR ? CURL_CSELECT_ERR : 0));
    }
    if (http->curl_due_us <= gr_clock_now_us(&http->clock)) {
        http->curl_due_us = GR_NEVER;
        act(http, CURL_SOCKET_TIMEOUT, 0);
    }
    reap(http);
    arm(http);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

struct gr_http_bytes {
    gr_http_call call; /* that libcurl never sends: its URL, its certificates, its handle */
    const gr_kube_access *access;
    curl_socket_t fd;
};

static gr_status fail_bytes(gr_http_bytes *bytes, CURLcode code, gr_diag *diag)
{
    return gr_fail(diag, classify(code), "%.120s: %.200s%s", bytes->access->server,
                   bytes->call.error[0] != '\0' ? bytes->call.error : curl_easy_strerror(code),
                   advice(code));
}

gr_status gr_http_bytes_open(const gr_kube_access *access, gr_http_bytes **bytes_out, gr_diag *diag)
{
    gr_http_bytes *bytes = calloc(1, sizeof *bytes);
    if (bytes == NULL || (bytes->call.easy = curl_easy_init()) == NULL) {
        free(bytes);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a connection");
    }
    CURL *easy = bytes->call.easy;
    bytes->access = access;
    bool done = set_url(&bytes->call, access, "/") && set_identity(&bytes->call, access);
    curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, bytes->call.error);
    CURLcode code = done ? curl_easy_perform(easy) : CURLE_OUT_OF_MEMORY;
    if (code == CURLE_OK) {
        code = curl_easy_getinfo(easy, CURLINFO_ACTIVESOCKET, &bytes->fd);
    }
    if (code != CURLE_OK) {
        gr_status status = fail_bytes(bytes, code, diag);
        gr_http_bytes_close(bytes);
        return status;
    }
    *bytes_out = bytes;
    return GR_OK;
}

void gr_http_bytes_close(gr_http_bytes *bytes)
{
    if (bytes != NULL) {
        free_parts(&bytes->call);
        free(bytes);
    }
}

int gr_http_bytes_fd(const gr_http_bytes *bytes)
{
    return bytes->fd;
}

gr_status gr_http_bytes_send(gr_http_bytes *bytes, const void *data, size_t size_bytes,
                             size_t *moved_out, gr_diag *diag)
{
    CURLcode code = curl_easy_send(bytes->call.easy, data, size_bytes, moved_out);
    if (code == CURLE_AGAIN) {
        *moved_out = 0;
    }
    return code == CURLE_OK || code == CURLE_AGAIN ? GR_OK : fail_bytes(bytes, code, diag);
}

gr_status gr_http_bytes_receive(gr_http_bytes *bytes, void *data_out, size_t size_bytes,
                                size_t *moved_out, gr_diag *diag)
{
    CURLcode code = curl_easy_recv(bytes->call.easy, data_out, size_bytes, moved_out);
    if (code == CURLE_AGAIN) {
        *moved_out = 0;
        return GR_OK;
    }
    if (code == CURLE_OK && *moved_out == 0) {
        return gr_fail(diag, GR_E_PEER_LOST, "%.120s: the connection is closed",
                       bytes->access->server);
    }
    return code == CURLE_OK ? GR_OK : fail_bytes(bytes, code, diag);
}
