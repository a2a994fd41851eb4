/* SPDX-License-Identifier: Apache-2.0 */

/* What servers say to each other. */

#include "ps/server/message.h"

#include "base/codec.h"
#include "base/fail.h"

#include <math.h>

enum { UPDATE_FIXED = 64, CLIENT_BYTES = 2, IMAGE_FIXED = 48, SEEN_BYTES = 20, ACK_BYTES = 24 };

_Static_assert(UPDATE_FIXED + CLIENT_BYTES * (int)GR_PS_PEERS_MAX <= (int)GR_PS_HEAD_MAX &&
                   IMAGE_FIXED + SEEN_BYTES * (int)GR_PS_PEERS_MAX <= (int)GR_PS_HEAD_MAX &&
                   ACK_BYTES * (int)GR_PS_ACKS_MAX <= (int)GR_PS_HEAD_MAX &&
                   (int)GR_PS_SMALL_MAX <= (int)GR_PS_HEAD_MAX,
               "any payload fits");

static const gr_wire_field beat_fields[] = {
    {GR_WIRE(64, gr_ps_beat, view.epoch)},
    {GR_WIRE(64, gr_ps_beat, view.hash)},
    {GR_WIRE(64, gr_ps_beat, view.lost), .max = (UINT64_C(1) << GR_PS_SERVERS_MAX) - 1},
    {GR_WIRE(64, gr_ps_beat, view.adds), .max = GR_PS_SERVERS_MAX},
    {GR_WIRE(64, gr_ps_beat, view.incarnation)},
    {GR_WIRE(64, gr_ps_beat, stamp)},
    {GR_WIRE(64, gr_ps_beat, echo)},
    {0},
};

size_t gr_ps_put_beat(const gr_ps_beat *beat, uint8_t *out)
{
    return (size_t)(gr_wire_put(beat_fields, beat, out) - out);
}

gr_status gr_ps_get_beat(const uint8_t *in, size_t size_bytes, gr_ps_beat *beat_out, gr_diag *diag)
{
    gr_ps_beat beat;
    if (gr_wire_get(beat_fields, in, in + size_bytes, &beat) != in + size_bytes ||
        beat.stamp == 0) {
        return gr_ps_malformed("a view", diag);
    }
    *beat_out = beat;
    return GR_OK;
}

/* Returns true if so many elements, or rows of so many columns, are possible. */
static bool is_count(uint32_t count, uint32_t columns)
{
    return columns == 0 ? count >= 1 && count <= GR_PS_BLOCK_MAX
                        : count <= GR_PS_ROWS_MAX && columns <= GR_PS_COLUMNS_MAX;
}

uint64_t gr_ps_update_bytes(const gr_ps_update *update)
{
    return (uint64_t)update->count * (1 + update->columns) * sizeof(float);
}

uint64_t gr_ps_image_bytes(const gr_ps_image *image)
{
    uint64_t columns = (uint64_t)image->columns * (uint64_t)(1 + image->states);
    return image->count * (1 + columns) * sizeof(float);
}

static const gr_wire_field update_fields[] = {
    /* and u16 for each client */
    {GR_WIRE(64, gr_ps_update, key)},
    {GR_WIRE(32, gr_ps_update, block)},
    {GR_WIRE(32, gr_ps_update, count)},
    {GR_WIRE(64, gr_ps_update, version)},
    {GR_WIRE(64, gr_ps_update, rate)},
    {GR_WIRE(32, gr_ps_update, factor)},
    {GR_WIRE(32, gr_ps_update, initial), .max = 1},
    {GR_WIRE(64, gr_ps_update, sequence)},
    {GR_WIRE(64, gr_ps_update, client_count), .max = GR_PS_PEERS_MAX},
    {GR_WIRE(64, gr_ps_update, columns), .max = GR_PS_COLUMNS_MAX},
    {0},
};

size_t gr_ps_put_update(const gr_ps_update *update, uint8_t *out)
{
    uint8_t *at = gr_wire_put(update_fields, update, out);
    for (int i = 0; i < update->client_count; i++, at += CLIENT_BYTES) {
        gr_put_u16(at, (uint16_t)update->clients[i]);
    }
    return (size_t)(at - out);
}

gr_status gr_ps_get_update(const uint8_t *in, size_t size_bytes, gr_ps_update *update_out,
                           int clients_out[GR_PS_PEERS_MAX], gr_diag *diag)
{
    gr_ps_update update = {.clients = clients_out};
    const uint8_t *end = in + size_bytes, *at = gr_wire_get(update_fields, in, end, &update);
    if (at == NULL || end - at != CLIENT_BYTES * update.client_count ||
        !is_count(update.count, update.columns) || !isfinite(update.rate) ||
        !isfinite(update.factor)) {
        return gr_ps_malformed("an update", diag);
    }
    for (int i = 0; i < update.client_count; i++, at += CLIENT_BYTES) {
        clients_out[i] = gr_get_u16(at);
        if (clients_out[i] >= GR_PS_PEERS_MAX) {
            return gr_ps_malformed("an update", diag);
        }
    }
    *update_out = update;
    return GR_OK;
}

static const gr_wire_field image_fields[] = {
    /* u32: 1: begins, 2: ends; and those of each seen */
    {GR_WIRE(64, gr_ps_image, key)},
    {GR_WIRE(32, gr_ps_image, block)},
    {GR_WIRE(32, gr_ps_image, count)},
    {GR_WIRE(64, gr_ps_image, version)},
    {GR_WIRE(32, gr_ps_image, ready), .max = 1},
    {GR_WIRE(32, gr_ps_image, states), .max = GR_PS_STATES_MAX},
    {GR_WIRE(64, gr_ps_image, seen_count), .max = GR_PS_PEERS_MAX},
    {GR_WIRE(32, gr_ps_image, columns)},
    {0},
};
static const gr_wire_field seen_fields[] = {
    {GR_WIRE(32, gr_ps_seen, client), .max = GR_PS_PEERS_MAX - 1},
    {GR_WIRE(64, gr_ps_seen, newest)},
    {GR_WIRE(64, gr_ps_seen, before)},
    {0},
};

size_t gr_ps_put_image(const gr_ps_image *image, uint8_t *out)
{
    uint8_t *at = gr_wire_put(image_fields, image, out);
    gr_put_u32(at, (uint32_t)image->begins | (uint32_t)image->ends << 1);
    at += 4;
    for (int i = 0; i < image->seen_count; i++) {
        at = gr_wire_put(seen_fields, &image->seen[i], at);
    }
    return (size_t)(at - out);
}

gr_status gr_ps_get_image(const uint8_t *in, size_t size_bytes, gr_ps_image *image_out,
                          gr_ps_seen seen_out[GR_PS_PEERS_MAX], gr_diag *diag)
{
    gr_ps_image image = {.seen = seen_out};
    const uint8_t *end = in + size_bytes, *at = gr_wire_get(image_fields, in, end, &image);
    uint32_t ends = at != NULL && end - at >= 4 ? gr_get_u32(at) : UINT32_MAX;
    if (ends > 3 || !is_count(image.count, image.columns) || (image.columns == 0 && ends != 3)) {
        return gr_ps_malformed("a copy of a block", diag);
    }
    image.begins = (ends & 1) != 0;
    image.ends = ends >> 1 != 0;
    at += 4;
    for (int i = 0; i < image.seen_count; i++) {
        at = gr_wire_get(seen_fields, at, end, &seen_out[i]);
    }
    if (at != end) {
        return gr_ps_malformed("a copy of a block", diag);
    }
    *image_out = image;
    return GR_OK;
}

static const gr_wire_field ack_fields[] = {
    {GR_WIRE(64, gr_ps_ack, key)},
    {GR_WIRE(64, gr_ps_ack, version)},
    {GR_WIRE(32, gr_ps_ack, block)},
    {GR_WIRE(32, gr_ps_ack, word), .max = GR_PS_WHOLE},
    {0},
};

size_t gr_ps_put_acks(const gr_ps_ack *acks, int count, uint8_t *out)
{
    uint8_t *at = out;
    for (int i = 0; i < count; i++) {
        at = gr_wire_put(ack_fields, &acks[i], at);
    }
    return (size_t)(at - out);
}

gr_status gr_ps_get_acks(const uint8_t *in, size_t size_bytes, gr_ps_ack acks_out[GR_PS_ACKS_MAX],
                         int *count_out, gr_diag *diag)
{
    const uint8_t *at = in, *end = in + size_bytes;
    int count = 0;
    while (at != NULL && at != end && count < GR_PS_ACKS_MAX) {
        at = gr_wire_get(ack_fields, at, end, &acks_out[count++]);
    }
    if (at != end) {
        return gr_ps_malformed("an acknowledgement", diag);
    }
    *count_out = count;
    return GR_OK;
}
