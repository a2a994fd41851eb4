/* SPDX-License-Identifier: Apache-2.0 */
#include "link/tls.h"

#include "base/fail.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* AES where the processor has instructions for it, as all have that train; the hash of both is
 * SHA-256, which the key's must be. */
static const char suites[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
static const char groups[] = "X25519:P-256";
/* The key is chosen by the handshake before, so that its name means nothing. */
static const char identity[] = "gradus";

enum {
    RECORD_BYTES = 16384,        /* the most that one record of TLS holds */
    RECORD_OVERHEAD_BYTES = 256, /* more than what a record adds */
    RECORDS_A_CALL = 4,          /* are written together */
    OUT_BYTES = (RECORDS_A_CALL + 1) * (RECORD_BYTES + RECORD_OVERHEAD_BYTES),
    /* A key of AES-GCM is good for 2^24.5 records (RFC 8446, 5.5): long before, a new one. */
    RECORDS_A_KEY = 1 << 22
};

struct gr_tls {
    SSL *ssl;
    BIO_METHOD *method;
    int fd;
    bool ended;     /* the socket is at its end */
    bool dry;       /* a read of this call gave less than was asked for */
    int read_error; /* errno of the socket; 0: none */
    int write_error;
    uint32_t records;               /* with this key */
    size_t out_start, out_end;      /* out[start, end): ciphertext that waits for the socket */
    uint8_t key[GR_SHA256_BYTES];   /* wiped when the session stands */
    uint8_t gathered[RECORD_BYTES]; /* several small parts, to make one record */
    uint8_t out[OUT_BYTES];
};

/* ---- The socket, as OpenSSL sees it ---------------------------------------------------------- */

/* Its own socket BIO writes without MSG_NOSIGNAL. */

static int put_out(BIO *bio, const char *data, int size)
{
    gr_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (tls->out_start == tls->out_end) {
        tls->out_start = tls->out_end = 0;
    }
    if (size < 0 || (size_t)size > sizeof tls->out - tls->out_end) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(tls->out + tls->out_end, data, (size_t)size);
    tls->out_end += (size_t)size;
    return size;
}

static int get_in(BIO *bio, char *data, int size)
{
    gr_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got;
    do {
        got = recv(tls->fd, data, (size_t)size, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    tls->dry = got < size;
    if (got > 0) {
        return (int)got;
    }
    if (got == 0) {
        tls->ended = true;
        return 0;
    }
    if (errno == EAGAIN) {
        BIO_set_retry_read(bio);
    } else {
        tls->read_error = errno;
    }
    return -1;
}

static long control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0; /* what was put is taken */
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static unsigned int give_key(SSL *ssl, unsigned char *key_out, unsigned int room)
{
    const gr_tls *tls = SSL_get_app_data(ssl);
    if (room < sizeof tls->key) {
        return 0;
    }
    memcpy(key_out, tls->key, sizeof tls->key);
    return sizeof tls->key;
}

static unsigned int client_key(SSL *ssl, const char *hint, char *identity_out,
                               unsigned int identity_room, unsigned char *key_out,
                               unsigned int room)
{
    (void)hint;
    if (identity_room < sizeof identity) {
        return 0;
    }
    memcpy(identity_out, identity, sizeof identity);
    return give_key(ssl, key_out, room);
}

static unsigned int server_key(SSL *ssl, const char *name, unsigned char *key_out,
                               unsigned int room)
{
    return strcmp(name, identity) == 0 ? give_key(ssl, key_out, room) : 0;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* A context of its own, so that nothing is shared and nothing has to be kept. */
static SSL *create_session(gr_tls_role role)
{
    SSL_CTX *context =
        SSL_CTX_new(role == GR_TLS_SERVER ? TLS_server_method() : TLS_client_method());
    SSL *ssl = NULL;
    if (context == NULL) {
        return NULL;
    }
    /* No certificate is ever trusted: without the key nobody gets in. */
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, OUT_BYTES);
    SSL_CTX_set_psk_client_callback(context, client_key);
    SSL_CTX_set_psk_server_callback(context, server_key);
    /* A server that verifies wants one; a client with one would not know its own session again. */
    if (role == GR_TLS_SERVER) {
        (void)SSL_CTX_set_session_id_context(context, (const uint8_t *)identity, sizeof identity);
    }
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_ciphersuites(context, suites) == 1 &&
        SSL_CTX_set1_groups_list(context, groups) == 1 &&
        SSL_CTX_set_num_tickets(context, 0) == 1) {
        ssl = SSL_new(context);
    }
    SSL_CTX_free(context); /* the session holds it */
    return ssl;
}

static BIO *create_bio(gr_tls *tls)
{
    tls->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "gradus");
    if (tls->method == NULL || BIO_meth_set_write(tls->method, put_out) != 1 ||
        BIO_meth_set_read(tls->method, get_in) != 1 ||
        BIO_meth_set_ctrl(tls->method, control) != 1) {
        return NULL;
    }
    BIO *bio = BIO_new(tls->method);
    if (bio != NULL) {
        BIO_set_data(bio, tls);
        BIO_set_init(bio, 1);
    }
    return bio;
}

gr_status gr_tls_create(gr_tls_role role, int fd, const uint8_t key[GR_SHA256_BYTES],
                        gr_tls **tls_out, gr_diag *diag)
{
    gr_tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a TLS session");
    }
    tls->fd = fd;
    memcpy(tls->key, key, sizeof tls->key);
    ERR_clear_error();
    tls->ssl = create_session(role);
    BIO *bio = tls->ssl != NULL ? create_bio(tls) : NULL;
    if (bio == NULL) {
        gr_tls_destroy(tls);
        return gr_fail(diag, GR_E_NO_MEMORY, "OpenSSL makes no TLS 1.3 session: %s",
                       ERR_reason_error_string(ERR_peek_error()) != NULL
                           ? ERR_reason_error_string(ERR_peek_error())
                           : "it does not say why");
    }
    SSL_set_app_data(tls->ssl, tls);
    SSL_set_bio(tls->ssl, bio, bio);
    if (role == GR_TLS_SERVER) {
        SSL_set_accept_state(tls->ssl);
    } else {
        SSL_set_connect_state(tls->ssl);
    }
    *tls_out = tls;
    return GR_OK;
}

void gr_tls_destroy(gr_tls *tls)
{
    if (tls == NULL) {
        return;
    }
    SSL_free(tls->ssl); /* and the BIO */
    BIO_meth_free(tls->method);
    gr_wipe(tls, sizeof *tls);
    free(tls);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* False: some of it still waits. */
static bool write_out(gr_tls *tls)
{
    while (tls->out_start < tls->out_end && tls->write_error == 0) {
        ssize_t sent = send(tls->fd, tls->out + tls->out_start, tls->out_end - tls->out_start,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            tls->out_start += (size_t)sent;
        } else if (sent < 0 && errno == EAGAIN) {
            return false;
        } else if (sent == 0 || errno != EINTR) {
            tls->write_error = sent == 0 ? EPIPE : errno;
        }
    }
    return true;
}

bool gr_tls_holds(const gr_tls *tls)
{
    return tls->out_start < tls->out_end && tls->write_error == 0;
}

gr_status gr_tls_shake(gr_tls *tls, gr_diag *diag)
{
    ERR_clear_error();
    int done = SSL_do_handshake(tls->ssl);
    int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(tls->ssl, done);
    unsigned long reason = ERR_peek_error();
    bool out = write_out(tls);
    if (done == 1) {
        /* Made without our key it would be worth nothing. */
        if (SSL_session_reused(tls->ssl) != 1) {
            return gr_fail(diag, GR_E_AUTH, "the TLS session was made without the job's secret");
        }
        if (out) {
            gr_wipe(tls->key, sizeof tls->key);
        }
        return !out ? GR_PENDING : tls->write_error != 0 ? GR_E_AGAIN : GR_OK;
    }
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        return GR_PENDING;
    }
    if (tls->ended || tls->read_error != 0 || tls->write_error != 0) {
        return GR_E_AGAIN;
    }
    const char *text = ERR_reason_error_string(reason);
    return gr_fail(
        diag, GR_E_AUTH,
        "no TLS session came about (%s): something between the two changes what they send",
        text != NULL ? text : "no reason given");
}

/* One record from the front of the parts; *offset is within the first. How many bytes it holds. */
static size_t encrypt_record(gr_tls *tls, const struct iovec **parts, int *count, size_t *offset)
{
    const struct iovec *first = *parts;
    const uint8_t *data = (const uint8_t *)first->iov_base + *offset;
    size_t size = first->iov_len - *offset, written = 0;
    if (size >= RECORD_BYTES || *count == 1) {
        size = size < RECORD_BYTES ? size : RECORD_BYTES;
    } else {
        int at = 0;
        size_t from = *offset;
        for (size = 0; at < *count && size < RECORD_BYTES; at++, from = 0) {
            size_t piece = first[at].iov_len - from;
            piece = piece < RECORD_BYTES - size ? piece : RECORD_BYTES - size;
            if (piece > 0) {
                memcpy(tls->gathered + size, (const uint8_t *)first[at].iov_base + from, piece);
            }
            size += piece;
        }
        data = tls->gathered;
    }
    if (++tls->records % RECORDS_A_KEY == 0) {
        (void)SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    if (SSL_write_ex(tls->ssl, data, size, &written) != 1) {
        tls->write_error = tls->write_error != 0 ? tls->write_error : EPROTO;
        return 0;
    }
    for (*offset += written; *count > 0 && *offset >= (*parts)->iov_len; (*parts)++, (*count)--) {
        *offset -= (*parts)->iov_len;
    }
    return written;
}

ssize_t gr_tls_send(gr_tls *tls, const struct iovec *parts, int count)
{
    size_t taken = 0, offset = 0;
    while (count > 0 && parts->iov_len == 0) {
        parts++;
        count--;
    }
    bool room = write_out(tls);
    ERR_clear_error();
    while (room && count > 0 && tls->write_error == 0) {
        for (int i = 0; i < RECORDS_A_CALL && count > 0 && tls->write_error == 0; i++) {
            taken += encrypt_record(tls, &parts, &count, &offset);
        }
        room = write_out(tls);
    }
    if (taken > 0 || (room && tls->write_error == 0)) {
        return (ssize_t)taken;
    }
    errno = tls->write_error != 0 ? tls->write_error : EAGAIN;
    return -1;
}

static ssize_t explain(const gr_tls *tls, int result)
{
    int error = SSL_get_error(tls->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        errno = EAGAIN;
        return -1;
    }
    if (tls->ended || error == SSL_ERROR_ZERO_RETURN) {
        return 0;
    }
    errno = tls->read_error != 0 ? tls->read_error : EBADMSG;
    return -1;
}

ssize_t gr_tls_recv(gr_tls *tls, const struct iovec *parts, int count)
{
    size_t total = 0;
    int result = 1;
    tls->dry = false; /* what came since an earlier call has made its edge already */
    ERR_clear_error();
    for (int i = 0; i < count; i++) {
        for (size_t filled = 0, got = 0; filled < parts[i].iov_len; filled += got) {
            if (total > 0 && tls->dry && SSL_has_pending(tls->ssl) == 0) {
                return (ssize_t)total;
            }
            result = SSL_read_ex(tls->ssl, (uint8_t *)parts[i].iov_base + filled,
                                 parts[i].iov_len - filled, &got);
            if (result != 1) {
                /* The end and an error of the socket come again, what was changed does not. */
                ssize_t why = explain(tls, result);
                bool changed = why < 0 && errno == EBADMSG;
                return total > 0 && !changed ? (ssize_t)total : why;
            }
            total += got;
        }
    }
    return (ssize_t)total;
}
