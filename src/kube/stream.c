/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/stream.h"

#include "base/fail.h"
#include "kube/repair.h"

#include <stdlib.h>
#include <string.h>

/* Only brackets, strings and white space are told apart here; what stands between them is judged by
 * jansson, object by object. Brackets that do not fit each other make an object that is no JSON. */

enum { DEPTH_MAX = 512, KEEP_BYTES = 64 << 10, FIRST_BYTES = 1024 };

void gr_kube_stream_init(gr_kube_stream *stream, gr_kube_stream_kind kind, size_t object_bytes_max,
                         gr_kube_stream_item *item, void *arg)
{
    *stream = (gr_kube_stream){.kind = kind,
                               .object_bytes_max = object_bytes_max,
                               .item = item,
                               .arg = arg,
                               .item_depth = kind == GR_KUBE_STREAM_SEQUENCE ? 0 : -1};
}

void gr_kube_stream_fini(gr_kube_stream *stream)
{
    free(stream->object.bytes);
    free(stream->rest.bytes);
    stream->object = stream->rest = (gr_kube_text){0};
}

static gr_status append(gr_kube_stream *stream, gr_kube_text *text, const char *bytes,
                        size_t size_bytes, gr_diag *diag)
{
    if (size_bytes > stream->object_bytes_max - text->used_bytes) {
        return gr_fail(diag, GR_E_NO_MEMORY, "an object is larger than %zu bytes",
                       stream->object_bytes_max);
    }
    if (text->used_bytes + size_bytes > text->room_bytes) {
        size_t room = text->room_bytes > 0 ? text->room_bytes : FIRST_BYTES;
        while (room < text->used_bytes + size_bytes) {
            room *= 2;
        }
        char *grown = realloc(text->bytes, room);
        if (grown == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for an object of %zu bytes", room);
        }
        text->bytes = grown;
        text->room_bytes = room;
    }
    memcpy(text->bytes + text->used_bytes, bytes, size_bytes);
    text->used_bytes += size_bytes;
    return GR_OK;
}

/* NULL: *status_out is GR_E_PROTOCOL, or GR_E_NO_MEMORY. */
static json_t *parse(const gr_kube_text *text, gr_status *status_out, gr_diag *diag)
{
    json_error_t error;
    *status_out = GR_OK;
    json_t *value = json_loadb(text->bytes, text->used_bytes, JSON_ALLOW_NUL, &error);
    if (value == NULL && json_error_code(&error) != json_error_out_of_memory) {
        gr_kube_repair(text->bytes, text->used_bytes);
        value = json_loadb(text->bytes, text->used_bytes, JSON_ALLOW_NUL, &error);
    }
    if (value == NULL) {
        bool no_memory = json_error_code(&error) == json_error_out_of_memory;
        *status_out = gr_fail(diag, no_memory ? GR_E_NO_MEMORY : GR_E_PROTOCOL, "%s%s",
                              no_memory ? "" : "what came is no JSON: ", error.text);
    }
    return value;
}

/* The object is passed over, where its reader has a use for those behind it. */
static gr_status skip_object(gr_kube_stream *stream, gr_status status, const gr_diag *why)
{
    char name[GR_KUBE_NAME_BYTES];
    if (status != GR_E_PROTOCOL || stream->skipped == NULL) {
        return status;
    }
    gr_kube_find_name(stream->object.bytes, stream->object.used_bytes, name);
    stream->object.used_bytes = 0;
    return stream->skipped(stream->arg, name, why->text) ? GR_OK : GR_E_CANCELLED;
}

static gr_status hand_out(gr_kube_stream *stream, gr_diag *diag)
{
    gr_kube_text *text = &stream->object;
    if (stream->cut != NULL) {
        text->used_bytes = stream->cut(stream->cut_arg, text->bytes, text->used_bytes);
    }
    gr_status status;
    gr_diag why = {0};
    json_t *object = parse(text, &status, &why);
    if (object == NULL) {
        status = skip_object(stream, status, &why);
        if (status != GR_OK && status != GR_E_CANCELLED && diag != NULL) {
            *diag = why;
        }
        return status;
    }
    stream->object.used_bytes = 0;
    if (stream->object.room_bytes > KEEP_BYTES) { /* one large object does not stay in memory */
        free(stream->object.bytes);
        stream->object = (gr_kube_text){0};
    }
    bool wants_more = stream->item(stream->arg, object);
    json_decref(object);
    return wants_more ? GR_OK : GR_E_CANCELLED;
}

static void open_bracket(gr_kube_stream *stream, char c)
{
    if (stream->kind == GR_KUBE_STREAM_LIST && c == '[' && stream->depth == 1 &&
        stream->word_bytes == 5 && memcmp(stream->word, "items", 5) == 0) {
        stream->item_depth = 2;
    }
    stream->in_object = stream->in_object || (c == '{' && stream->depth == stream->item_depth);
    stream->has_begun = stream->has_begun || (c == '{' && stream->depth == 0);
    stream->depth++;
}

/* What a byte outside of strings does. *ends_out: it is the last one of an object. */
static gr_status take_mark(gr_kube_stream *stream, char c, bool *ends_out, gr_diag *diag)
{
    if (c == '"') {
        stream->in_string = true;
        stream->word_bytes = 0;
    } else if (c == '{' || c == '[') {
        if (stream->depth == DEPTH_MAX) {
            return gr_fail(diag, GR_E_PROTOCOL, "what came is nested in more than %d levels",
                           DEPTH_MAX);
        }
        open_bracket(stream, c);
    } else if (c == '}' || c == ']') {
        stream->depth--;
        *ends_out = stream->in_object && stream->depth == stream->item_depth;
        if (stream->kind == GR_KUBE_STREAM_LIST && stream->depth < stream->item_depth) {
            stream->item_depth = -1;
        }
        stream->has_ended = stream->depth == 0;
    }
    return GR_OK;
}

static void take_string(gr_kube_stream *stream, char c)
{
    if (stream->after_backslash) {
        stream->after_backslash = false;
    } else if (c == '\\') {
        stream->after_backslash = true;
    } else if (c == '"') {
        stream->in_string = false;
        return;
    }
    if (stream->depth == 1 && stream->word_bytes < sizeof stream->word) {
        stream->word[stream->word_bytes++] = c;
    }
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Returns true if `c` may stand where it does, outside of objects. *skip_out: it belongs to
 * nothing. */
static bool fits(const gr_kube_stream *stream, char c, bool *skip_out)
{
    *skip_out = stream->item_depth >= 0 && stream->depth == stream->item_depth &&
                (is_space(c) || (c == ',' && stream->kind == GR_KUBE_STREAM_LIST));
    if (*skip_out) {
        return true;
    }
    if (stream->item_depth >= 0 && stream->depth == stream->item_depth) {
        return c == '{' || (c == ']' && stream->kind == GR_KUBE_STREAM_LIST);
    }
    if (stream->depth == 0) {
        return is_space(c) || (c == '{' && !stream->has_ended);
    }
    return true;
}

static gr_status bad_byte(gr_diag *diag, char c)
{
    return gr_fail(diag, GR_E_PROTOCOL, "what came is no JSON: an object cannot begin with byte %d",
                   (unsigned char)c);
}

gr_status gr_kube_stream_feed(gr_kube_stream *stream, const char *bytes, size_t size_bytes,
                              gr_diag *diag)
{
    size_t from = 0; /* of what is not yet kept */
    gr_status status = GR_OK;
    for (size_t i = 0; i < size_bytes && status == GR_OK; i++) {
        char c = bytes[i];
        bool skip = false, ends = false, was_in_object = stream->in_object;
        if (stream->in_string) {
            take_string(stream, c);
        } else if (!stream->in_object && !fits(stream, c, &skip)) {
            status = bad_byte(diag, c);
        } else if (!skip) {
            status = take_mark(stream, c, &ends, diag);
        }
        if (status != GR_OK) { /* what came before it may be too long, however it was cut */
            gr_kube_text *text = stream->in_object ? &stream->object : &stream->rest;
            gr_status before =
                from < i ? append(stream, text, bytes + from, i - from, diag) : GR_OK;
            return before != GR_OK ? before : status;
        }
        bool begins = stream->in_object && !was_in_object;
        if (status == GR_OK && (begins || skip) && from < i) {
            status = append(stream, &stream->rest, bytes + from, i - from, diag);
        }
        if (begins || skip) {
            from = begins ? i : i + 1;
        }
        if (status == GR_OK && ends) {
            status = append(stream, &stream->object, bytes + from, i + 1 - from, diag);
            from = i + 1;
            stream->in_object = false;
            if (status == GR_OK) {
                status = hand_out(stream, diag);
            }
        }
    }
    if (status == GR_OK && from < size_bytes) {
        status = append(stream, stream->in_object ? &stream->object : &stream->rest, bytes + from,
                        size_bytes - from, diag);
    }
    return status;
}

gr_status gr_kube_stream_end(gr_kube_stream *stream, json_t **rest_out, gr_diag *diag)
{
    *rest_out = NULL;
    bool complete =
        stream->kind == GR_KUBE_STREAM_SEQUENCE ? stream->depth == 0 : stream->has_ended;
    if (!complete) {
        return gr_fail(diag, GR_E_PROTOCOL, "the answer ends %s",
                       stream->depth > 0 ? "in the middle of an object" : "before it begins");
    }
    if (stream->kind != GR_KUBE_STREAM_SEQUENCE) {
        gr_status status;
        *rest_out = parse(&stream->rest, &status, diag);
        return status;
    }
    return GR_OK;
}
