/* SPDX-License-Identifier: Apache-2.0 */

/* libcurl brings the bytes; WebSocket is ours, since that of Debian 12 has none. One exec:
 *
 *   ASKING ── 101 ──► OPEN ── status on channel 3 ──► ended
 *      └── any other answer: refused ── what it says ──► ended
 */

#include "kube/exec.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"
#include "kube/http.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    HEAD_BYTES_MAX = 16 << 10,  /* of the answer */
    ANSWER_BYTES_MAX = 8 << 10, /* of its body, if it is refused */
    PAYLOAD_BYTES_MAX = 64 << 10,
    FRAME_HEAD_BYTES = 14,
    INPUT_BYTES = 32 << 10, /* of a frame */
    TAIL_BYTES = 400,       /* of what the command wrote */
    NONCE_BYTES = 16,
    NONCE_TEXT_BYTES = 32,
    ACCEPT_TEXT_BYTES = 32,
    SILENCE_S = 600
};
enum { STDIN = 0, STDOUT = 1, STDERR = 2, STATUS = 3 };                          /* channels */
enum { CONTINUATION = 0, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 }; /* frames */
#define PROTOCOL "v4.channel.k8s.io"

struct gr_kube_exec {
    gr_kube_exec_options options;
    gr_http_bytes *bytes;
    enum { ASKING, OPEN } state;
    char accept[ACCEPT_TEXT_BYTES];                  /* that a server of WebSocket answers */
    uint8_t out[FRAME_HEAD_BYTES + 1 + INPUT_BYTES]; /* a frame that goes */
    char *request;                                   /* in place of it at first; NULL: it is sent */
    size_t out_begin, out_end;
    int64_t input_read;
    uint8_t in[FRAME_HEAD_BYTES + PAYLOAD_BYTES_MAX];
    size_t in_bytes;
    int http;                 /* of an answer that refuses; 0: none */
    unsigned long body_bytes; /* of that answer */
    char tail[TAIL_BYTES];
    size_t tail_bytes;
    int64_t moved_us; /* when anything went or came */
};

/* ---- The request ----------------------------------------------------------------------------- */

/* RFC 6455, 4.2.2: what proves that the answer is one to this request. */
static bool find_accept(const char *nonce, char text_out[ACCEPT_TEXT_BYTES])
{
    char text[NONCE_TEXT_BYTES + 64];
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    int length = snprintf(text, sizeof text, "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", nonce);
    if (EVP_Digest(text, (size_t)length, digest, &size, EVP_sha1(), NULL) != 1 || size != 20) {
        return false;
    }
    EVP_EncodeBlock((unsigned char *)text_out, digest, (int)size);
    return true;
}

/* A new text; NULL: no memory. It holds the token. */
static char *print_request(const gr_kube_exec_options *o, const char *nonce)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const char *host = o->access->server + strlen("https://");
    int host_bytes = (int)strcspn(host, "/");
    if (out == NULL) {
        return NULL;
    }
    fprintf(out, "GET %s/api/v1/namespaces/", host + host_bytes);
    gr_text_write_url(out, o->space, "");
    fputs("/pods/", out);
    gr_text_write_url(out, o->pod, "");
    fputs("/exec?container=", out);
    gr_text_write_url(out, o->container, "");
    for (size_t i = 0; o->command[i] != NULL; i++) {
        fputs("&command=", out);
        gr_text_write_url(out, o->command[i], "");
    }
    fprintf(out,
            "%s&stdout=true&stderr=true HTTP/1.1\r\nHost: %.*s\r\nUser-Agent: gradus\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Protocol: " PROTOCOL "\r\n",
            o->input_fd >= 0 ? "&stdin=true" : "", host_bytes, host, nonce);
    if (o->access->token != NULL) {
        fprintf(out, "Authorization: Bearer %s\r\n", o->access->token);
    }
    fputs("\r\n", out);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static void drop_request(gr_kube_exec *e)
{
    if (e->request != NULL) {
        gr_wipe(e->request, strlen(e->request));
        free(e->request);
        e->request = NULL;
    }
}

gr_status gr_kube_exec_start(const gr_kube_exec_options *options, gr_kube_exec **exec_out,
                             gr_diag *diag)
{
    uint8_t chance[NONCE_BYTES];
    char nonce[NONCE_TEXT_BYTES];
    gr_kube_exec *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to run a command in a pod");
    }
    e->options = *options;
    gr_status status = gr_random_bytes(chance, sizeof chance, diag);
    if (status == GR_OK) {
        EVP_EncodeBlock((unsigned char *)nonce, chance, sizeof chance);
        e->request = print_request(options, nonce);
        if (e->request == NULL || !find_accept(nonce, e->accept)) {
            status = gr_fail(diag, GR_E_NO_MEMORY, "no memory to run a command in a pod");
        }
    }
    if (status == GR_OK) {
        e->out_end = strlen(e->request);
        status = gr_http_bytes_open(options->access, &e->bytes, diag);
    }
    if (status != GR_OK) {
        gr_kube_exec_destroy(e);
        return status;
    }
    e->options.command = NULL;
    e->moved_us = gr_clock_now_us(&options->clock);
    *exec_out = e;
    return GR_OK;
}

void gr_kube_exec_destroy(gr_kube_exec *exec)
{
    if (exec != NULL) {
        drop_request(exec);
        gr_http_bytes_close(exec->bytes);
        free(exec);
    }
}

int gr_kube_exec_fd(const gr_kube_exec *exec)
{
    return gr_http_bytes_fd(exec->bytes);
}

static bool has_output(const gr_kube_exec *e)
{
    return e->out_begin < e->out_end ||
           (e->state == OPEN && e->options.input_fd >= 0 && e->input_read < e->options.input_bytes);
}

short gr_kube_exec_events(const gr_kube_exec *exec)
{
    return (short)(POLLIN | (has_output(exec) ? POLLOUT : 0));
}

/* ---- What goes ------------------------------------------------------------------------------- */

/* A frame of what stands in `out` behind the room for its head; a client's frames are masked. */
static gr_status make_frame(gr_kube_exec *e, int type, size_t payload_bytes, gr_diag *diag)
{
    uint8_t mask[4], *payload = e->out + FRAME_HEAD_BYTES;
    gr_status status = gr_random_bytes(mask, sizeof mask, diag);
    if (status != GR_OK) {
        return status;
    }
    for (size_t i = 0; i < payload_bytes; i++) {
        payload[i] ^= mask[i % 4];
    }
    uint8_t *head = payload - sizeof mask;
    memcpy(head, mask, sizeof mask);
    if (payload_bytes < 126) {
        *--head = (uint8_t)(0x80 | payload_bytes);
    } else {
        *--head = (uint8_t)payload_bytes;
        *--head = (uint8_t)(payload_bytes >> 8);
        *--head = 0x80 | 126;
    }
    *--head = (uint8_t)(0x80 | type);
    e->out_begin = (size_t)(head - e->out);
    e->out_end = FRAME_HEAD_BYTES + payload_bytes;
    return GR_OK;
}

/* The next part of the input. */
static gr_status read_input(gr_kube_exec *e, gr_diag *diag)
{
    int64_t left = e->options.input_bytes - e->input_read;
    size_t want = left < INPUT_BYTES ? (size_t)left : INPUT_BYTES;
    uint8_t *payload = e->out + FRAME_HEAD_BYTES;
    ssize_t got = pread(e->options.input_fd, payload + 1, want, e->input_read);
    if (got <= 0) {
        return gr_fail(diag, GR_E_IO, "what is sent to pod %.100s became shorter while it was read",
                       e->options.pod);
    }
    payload[0] = STDIN;
    e->input_read += got;
    return make_frame(e, BINARY, 1 + (size_t)got, diag);
}

static gr_status send_some(gr_kube_exec *e, gr_diag *diag)
{
    while (has_output(e)) {
        size_t moved = 0;
        gr_status status = e->out_begin == e->out_end ? read_input(e, diag) : GR_OK;
        const char *from = e->request != NULL ? e->request : (const char *)e->out;
        if (status == GR_OK) {
            status = gr_http_bytes_send(e->bytes, from + e->out_begin, e->out_end - e->out_begin,
                                        &moved, diag);
        }
        if (status != GR_OK || moved == 0) {
            return status;
        }
        e->out_begin += moved;
        e->moved_us = gr_clock_now_us(&e->options.clock);
        if (e->out_begin == e->out_end) {
            drop_request(e);
        }
    }
    return GR_OK;
}

/* ---- The answer ------------------------------------------------------------------------------ */

static gr_status fail_protocol(const gr_kube_exec *e, const char *what, gr_diag *diag)
{
    return gr_fail(diag, GR_E_PROTOCOL, "pod %.100s: %s", e->options.pod, what);
}

/* The value of a header of the answer: its begin and length; NULL: there is none. */
static const char *find_header(const char *head, const char *name, size_t *length_out)
{
    size_t name_bytes = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, name_bytes) == 0 && line[name_bytes] == ':') {
            line += name_bytes + 1;
            line += strspn(line, " \t");
            *length_out = strcspn(line, "\r\n");
            return line;
        }
    }
    return NULL;
}

static bool has_header(const char *head, const char *name, const char *value)
{
    size_t length = 0;
    const char *found = find_header(head, name, &length);
    return found != NULL && length == strlen(value) && strncasecmp(found, value, length) == 0;
}

/* Takes bytes off the front of what came. */
static void take(gr_kube_exec *e, size_t size_bytes)
{
    e->in_bytes -= size_bytes;
    memmove(e->in, e->in + size_bytes, e->in_bytes);
}

/* What the server says of a request that it refuses. GR_PENDING: there may be more. */
static gr_status refuse(gr_kube_exec *e, bool is_over, gr_diag *diag)
{
    const char *text = memchr(e->in, '{', e->in_bytes); /* a chunk has its length in front */
    size_t size_bytes = text != NULL ? e->in_bytes - (size_t)(text - (const char *)e->in) : 0;
    json_t *body = text != NULL ? json_loadb(text, size_bytes, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    is_over |= e->in_bytes >= e->body_bytes || e->in_bytes >= ANSWER_BYTES_MAX;
    if (body == NULL && !is_over) {
        return GR_PENDING;
    }
    const char *message = json_string_value(json_object_get(body, "message"));
    gr_status status = e->http == 401 || e->http == 403 ? GR_E_AUTH
                       : e->http == 404                 ? GR_E_NOT_FOUND
                       : e->http >= 500                 ? GR_E_IO
                                                        : GR_E_INVALID;
    gr_fail(diag, status, "a command in pod %.100s: the server answers %d%s%.300s", e->options.pod,
            e->http, message != NULL ? ": " : "", message != NULL ? message : "");
    json_decref(body);
    return status;
}

static gr_status read_answer(gr_kube_exec *e, gr_diag *diag)
{
    e->in[e->in_bytes] = '\0'; /* there is room: a head is shorter */
    char *head = (char *)e->in, *end = strstr(head, "\r\n\r\n");
    int code = 0;
    if (strlen(head) != e->in_bytes && end == NULL) {
        return fail_protocol(e, "the server answers with zero bytes", diag);
    }
    if (end == NULL) {
        return e->in_bytes < HEAD_BYTES_MAX
                   ? GR_PENDING
                   : fail_protocol(e, "the server's answer has no end", diag);
    }
    end[2] = '\0';
    if (sscanf(head, "HTTP/1.1 %3d", &code) != 1) {
        return fail_protocol(e, "what answers is no server of HTTP/1.1", diag);
    }
    if (code == 101 && (!has_header(head, "Sec-WebSocket-Accept", e->accept) ||
                        !has_header(head, "Sec-WebSocket-Protocol", PROTOCOL))) {
        return fail_protocol(e, "the server does not speak " PROTOCOL " over WebSocket", diag);
    }
    size_t length = 0;
    const char *body = find_header(head, "Content-Length", &length);
    e->body_bytes = body != NULL ? strtoul(body, NULL, 10) : ANSWER_BYTES_MAX;
    take(e, (size_t)(end + 4 - head));
    if (code == 101) {
        e->state = OPEN;
        return GR_OK;
    }
    e->http = code;
    return refuse(e, false, diag);
}

/* ---- What comes ------------------------------------------------------------------------------ */

/* Keeps the end of it. */
static void keep_tail(gr_kube_exec *e, const uint8_t *text, size_t size_bytes)
{
    if (size_bytes >= sizeof e->tail) {
        text += size_bytes - (sizeof e->tail - 1);
        size_bytes = sizeof e->tail - 1;
    }
    size_t room = sizeof e->tail - 1 - e->tail_bytes;
    if (size_bytes > room) {
        size_t gone = size_bytes - room;
        e->tail_bytes -= gone;
        memmove(e->tail, e->tail + gone, e->tail_bytes);
    }
    memcpy(e->tail + e->tail_bytes, text, size_bytes);
    e->tail_bytes += size_bytes;
    e->tail[e->tail_bytes] = '\0';
}

/* How the command has ended: a Status of Kubernetes. */
static gr_status take_status(gr_kube_exec *e, const uint8_t *text, size_t size_bytes, gr_diag *diag)
{
    json_t *status = json_loadb((const char *)text, size_bytes, 0, NULL);
    const char *word = json_string_value(json_object_get(status, "status"));
    const char *message = json_string_value(json_object_get(status, "message"));
    gr_status result;
    while (e->tail_bytes > 0 && strchr(" \r\n", e->tail[e->tail_bytes - 1]) != NULL) {
        e->tail[--e->tail_bytes] = '\0';
    }
    if (word != NULL && strcmp(word, "Success") == 0) {
        result = GR_OK;
    } else if (word != NULL && strcmp(word, "Failure") == 0) {
        result = gr_fail(diag, GR_E_ABORTED, "a command in pod %.100s failed: %.200s%s%s",
                         e->options.pod, message != NULL ? message : "nobody says why",
                         e->tail_bytes > 0 ? ": " : "", e->tail);
    } else {
        result = fail_protocol(e, "what tells how a command ended is no Status", diag);
    }
    json_decref(status);
    return result;
}

static gr_status take_frame(gr_kube_exec *e, int type, const uint8_t *payload, size_t size_bytes,
                            gr_diag *diag)
{
    if (type == CLOSE) {
        return gr_fail(diag, GR_E_PEER_LOST,
                       "pod %.100s: the connection was closed before the command ended",
                       e->options.pod);
    }
    if (type == PING) { /* in the midst of a frame that goes, nobody waits for the answer */
        bool is_free = e->out_begin == e->out_end && size_bytes < 126;
        memcpy(e->out + FRAME_HEAD_BYTES, payload, is_free ? size_bytes : 0);
        gr_status status = is_free ? make_frame(e, PONG, size_bytes, diag) : GR_OK;
        return status == GR_OK ? GR_PENDING : status;
    }
    if ((type != TEXT && type != BINARY) || size_bytes < 2) {
        return GR_PENDING; /* a PONG; a server names each channel once, without data */
    }
    if (payload[0] == STATUS) {
        return take_status(e, payload + 1, size_bytes - 1, diag);
    }
    if (payload[0] == STDOUT || payload[0] == STDERR) {
        keep_tail(e, payload + 1, size_bytes - 1);
    }
    return GR_PENDING;
}

/* The frames that have come in full. */
static gr_status read_frames(gr_kube_exec *e, gr_diag *diag)
{
    for (;;) {
        const uint8_t *in = e->in;
        if (e->in_bytes < 2) {
            return GR_PENDING;
        }
        size_t size_bytes = in[1] & 0x7F, head_bytes = 2;
        if (size_bytes == 126) {
            head_bytes = 4;
            size_bytes = e->in_bytes < head_bytes ? 0 : (size_t)in[2] << 8 | in[3];
        }
        bool is_whole = (in[0] & 0x80) != 0 && (in[0] & 0x0F) != CONTINUATION;
        if (size_bytes == 127 || (in[1] & 0x80) != 0 || (in[0] & 0x70) != 0 || !is_whole) {
            return fail_protocol(e, "the server sends frames that Kubernetes has no use for", diag);
        }
        if (e->in_bytes < head_bytes || e->in_bytes < head_bytes + size_bytes) {
            return GR_PENDING;
        }
        gr_status status = take_frame(e, in[0] & 0x0F, in + head_bytes, size_bytes, diag);
        if (status != GR_PENDING) {
            return status;
        }
        take(e, head_bytes + size_bytes);
    }
}

static gr_status read_some(gr_kube_exec *e, gr_diag *diag)
{
    if (e->http != 0) {
        return refuse(e, false, diag);
    }
    gr_status status = e->state == ASKING ? read_answer(e, diag) : GR_OK;
    return status == GR_OK ? read_frames(e, diag) : status;
}

gr_status gr_kube_exec_run(gr_kube_exec *exec, gr_diag *diag)
{
    gr_kube_exec *e = exec;
    gr_diag sent_diag = {0};
    gr_status sent = send_some(e, &sent_diag), status = GR_PENDING;
    size_t moved = 1;
    /* Also after a failure: a server that has enough says why, and then closes. */
    while (status == GR_PENDING && moved > 0) {
        gr_status got = gr_http_bytes_receive(e->bytes, e->in + e->in_bytes,
                                              sizeof e->in - 1 - e->in_bytes, &moved, diag);
        if (got != GR_OK) {
            return e->http != 0 ? refuse(e, true, diag) : got;
        }
        e->in_bytes += moved;
        if (moved > 0) {
            e->moved_us = gr_clock_now_us(&e->options.clock);
            status = read_some(e, diag);
        }
    }
    if (status == GR_PENDING && sent != GR_OK) {
        *diag = sent_diag;
        return sent;
    }
    if (status == GR_PENDING &&
        gr_clock_now_us(&e->options.clock) - e->moved_us > (int64_t)SILENCE_S * 1000000) {
        return gr_fail(diag, GR_E_TIMEOUT, "pod %.100s: nothing has moved for %d minutes",
                       e->options.pod, SILENCE_S / 60);
    }
    return status;
}
