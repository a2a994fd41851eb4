/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_STREAM_H
#define GR_KUBE_STREAM_H

/* Finds the objects in a stream of JSON that comes in any cuts, so that one at a time is in memory.
 * */

#include <gradus/status.h>
#include <jansson.h>
#include <stdbool.h>

typedef enum gr_kube_stream_kind {
    GR_KUBE_STREAM_SEQUENCE, /* a watch: one object behind the other */
    GR_KUBE_STREAM_LIST,     /* {"items": [an object, ...], ...}, the rest of it being `rest` */
    GR_KUBE_STREAM_ONE       /* one object, which is `rest` */
} gr_kube_stream_kind;

/* An object, borrowed for the call. false: no more is wanted. */
typedef bool gr_kube_stream_item(void *arg, json_t *object);
/* An object that cannot be parsed, though its brackets fit: its name as far as it is known, or "",
 * and one sentence. false: no more is wanted. */
typedef bool gr_kube_stream_skipped(void *arg, const char *name, const char *why);

typedef struct gr_kube_text { /* grows up to the limit of its stream */
    char *bytes;
    size_t used_bytes, room_bytes;
} gr_kube_text;

typedef struct gr_kube_stream {
    gr_kube_stream_kind kind;
    size_t object_bytes_max; /* of an object, and of the rest */
    gr_kube_stream_item *item;
    void *arg;
    size_t (*cut)(const void *cut_arg, char *text, size_t size_bytes); /* gr_kube_cut, or NULL */
    const void *cut_arg;
    gr_kube_stream_skipped *skipped; /* NULL: such an object ends the stream */
    gr_kube_text object, rest;
    int depth;      /* of lists and maps around the next byte */
    int item_depth; /* at which objects stand, -1: not in a place where there are any */
    bool in_object; /* the next byte belongs to `object` */
    bool in_string, after_backslash;
    bool has_begun, has_ended; /* LIST, ONE: the outermost brace was opened, closed */
    char word[8];              /* the last string at depth 1, as far as it fits */
    size_t word_bytes;
} gr_kube_stream;

void gr_kube_stream_init(gr_kube_stream *stream, gr_kube_stream_kind kind, size_t object_bytes_max,
                         gr_kube_stream_item *item, void *arg);
void gr_kube_stream_fini(gr_kube_stream *stream);

/* GR_OK; GR_E_CANCELLED: `item` wants no more; GR_E_PROTOCOL: no JSON; GR_E_NO_MEMORY: no memory,
 * or larger than the limit. After a failure only fini is left. */
gr_status gr_kube_stream_feed(gr_kube_stream *stream, const char *bytes, size_t size_bytes,
                              gr_diag *diag) GR_MUST_CHECK;
/* The stream has ended: *rest_out is what is no item (NULL: SEQUENCE), for json_decref.
 * GR_E_PROTOCOL: it has ended inside of an object, or there was none. */
gr_status gr_kube_stream_end(gr_kube_stream *stream, json_t **rest_out,
                             gr_diag *diag) GR_MUST_CHECK;

#endif
