/* SPDX-License-Identifier: Apache-2.0 */

/* What parameter servers say to each other, and the table that clients get: the first byte says as
 * what the rest is read. What decodes is within its limits and encodes to the same bytes. */

#include "ps/server/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static size_t try_update(const uint8_t *in, size_t size, uint8_t *out)
{
    gr_diag diag = {0};
    gr_ps_update update;
    int clients[GR_PS_PEERS_MAX];
    if (gr_ps_get_update(in, size, &update, clients, &diag) != GR_OK) {
        return 0;
    }
    require(update.count <= GR_PS_BLOCK_MAX && update.client_count <= GR_PS_PEERS_MAX);
    return gr_ps_put_update(&update, out);
}

static size_t try_image(const uint8_t *in, size_t size, uint8_t *out)
{
    gr_diag diag = {0};
    gr_ps_image image;
    gr_ps_seen seen[GR_PS_PEERS_MAX];
    if (gr_ps_get_image(in, size, &image, seen, &diag) != GR_OK) {
        return 0;
    }
    require(image.count <= GR_PS_BLOCK_MAX && image.states <= GR_PS_STATES_MAX);
    return gr_ps_put_image(&image, out);
}

/* The size of what it encodes to, 0: it is malformed. */
static size_t try_one(int what, const uint8_t *in, size_t size, uint8_t *out)
{
    gr_diag diag = {0};
    gr_ps_table table;
    gr_ps_beat beat;
    gr_ps_ack acks[GR_PS_ACKS_MAX];
    int count;
    switch (what) {
    case 0:
        if (gr_ps_get_table(in, size, &table, &diag) != GR_OK) {
            return 0;
        }
        require(gr_ps_table_sound(&table));
        return gr_ps_put_table(&table, out);
    case 1:
        return gr_ps_get_beat(in, size, &beat, &diag) == GR_OK ? gr_ps_put_beat(&beat, out) : 0;
    case 2:
        return try_update(in, size, out);
    case 3:
        return try_image(in, size, out);
    default:
        return gr_ps_get_acks(in, size, acks, &count, &diag) == GR_OK
                   ? gr_ps_put_acks(acks, count, out)
                   : 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t out[GR_PS_HEAD_MAX];
    if (size == 0 || size > GR_PS_HEAD_MAX) {
        return 0;
    }
    size_t back = try_one(data[0] % 5, data + 1, size - 1, out);
    require(back == 0 || (back == size - 1 && memcmp(out, data + 1, back) == 0));
    return 0;
}
