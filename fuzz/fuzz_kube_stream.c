/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as an answer of an API server, in any cuts. Byte 0 chooses kind and cuts. The same
 * objects come as in one piece, and no more is kept than the limit. */

#include "kube/stream.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OBJECT_BYTES_MAX = 4096 };

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool count_item(void *arg, json_t *object)
{
    require(json_is_object(object));
    (*(size_t *)arg)++;
    return true;
}

static gr_status read_all(gr_kube_stream_kind kind, const char *text, size_t size, size_t cut,
                          size_t *count_out)
{
    gr_kube_stream stream;
    gr_diag diag = {0};
    gr_status status = GR_OK;
    *count_out = 0;
    gr_kube_stream_init(&stream, kind, OBJECT_BYTES_MAX, count_item, count_out);
    for (size_t at = 0; at < size && status == GR_OK; at += cut) {
        size_t part = size - at < cut ? size - at : cut;
        status = gr_kube_stream_feed(&stream, text + at, part, &diag);
        require(stream.object.used_bytes <= OBJECT_BYTES_MAX);
        require(stream.rest.used_bytes <= OBJECT_BYTES_MAX);
        require(stream.object.room_bytes <= 2 * OBJECT_BYTES_MAX);
    }
    if (status == GR_OK) {
        json_t *rest = NULL;
        status = gr_kube_stream_end(&stream, &rest, &diag);
        require((rest != NULL) == (status == GR_OK && kind != GR_KUBE_STREAM_SEQUENCE));
        json_decref(rest);
    }
    require(status == GR_OK || (diag.status == status && diag.text[0] != '\0'));
    gr_kube_stream_fini(&stream);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    gr_kube_stream_kind kind = data[0] % 3;
    size_t count, again;
    const char *text = (const char *)data + 1;
    gr_status status = read_all(kind, text, size - 1, size, &count);
    gr_status cut_status = read_all(kind, text, size - 1, (size_t)data[0] / 3 + 1, &again);
    require(count == again && status == cut_status);
    return 0;
}
