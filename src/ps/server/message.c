/* SPDX-License-Identifier: Apache-2.0 */

/* What servers say to each other. */

#include "ps/server/message.h"

#include "base/codec.h"
#include "base/fail.h"

#include <math.h>

enum {
    BEAT_BYTES = 40,
    UPDATE_FIXED = 64,
    CLIENT_BYTES = 2,
    IMAGE_FIXED = 48,
    SEEN_BYTES = 20,
    ACK_BYTES = 24
};

_Static_assert(UPDATE_FIXED + CLIENT_BYTES * (int)GR_PS_PEERS_MAX <= (int)GR_PS_HEAD_MAX &&
                   IMAGE_FIXED + SEEN_BYTES * (int)GR_PS_PEERS_MAX <= (int)GR_PS_HEAD_MAX &&
                   ACK_BYTES * (int)GR_PS_ACKS_MAX <= (int)GR_PS_HEAD_MAX &&
                   (int)GR_PS_SMALL_MAX <= (int)GR_PS_HEAD_MAX,
               "any payload fits");

size_t gr_ps_put_beat(const gr_ps_beat *beat, uint8_t *out)
{
    gr_put_u64(out, beat->view.epoch);
    gr_put_u64(out + 8, beat->view.hash);
    gr_put_u64(out + 16, beat->view.lost);
    gr_put_u64(out + 24, beat->stamp);
    gr_put_u64(out + 32, beat->echo);
    return BEAT_BYTES;
}

gr_status gr_ps_get_beat(const uint8_t *in, size_t size_bytes, gr_ps_beat *beat_out, gr_diag *diag)
{
    if (size_bytes != BEAT_BYTES || gr_get_u64(in + 16) >> GR_PS_SERVERS_MAX != 0 ||
        gr_get_u64(in + 24) == 0) {
        return gr_ps_malformed("a view", diag);
    }
    *beat_out = (gr_ps_beat){.view = {.epoch = gr_get_u64(in),
                                      .hash = gr_get_u64(in + 8),
                                      .lost = (uint32_t)gr_get_u64(in + 16)},
                             .stamp = gr_get_u64(in + 24),
                             .echo = gr_get_u64(in + 32)};
    return GR_OK;
}

/* Can there be so many elements, or rows of so many columns? */
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

size_t gr_ps_put_update(const gr_ps_update *update, uint8_t *out)
{
    gr_put_u64(out, update->key);
    gr_put_u32(out + 8, update->block);
    gr_put_u32(out + 12, update->count);
    gr_put_u64(out + 16, update->version);
    gr_put_f64(out + 24, update->rate);
    gr_put_f32(out + 32, update->factor);
    gr_put_u32(out + 36, update->initial);
    gr_put_u64(out + 40, update->sequence);
    gr_put_u64(out + 48, (uint64_t)update->client_count);
    gr_put_u64(out + 56, update->columns);
    for (int i = 0; i < update->client_count; i++) {
        gr_put_u16(out + UPDATE_FIXED + CLIENT_BYTES * i, (uint16_t)update->clients[i]);
    }
    return (size_t)(UPDATE_FIXED + CLIENT_BYTES * update->client_count);
}

gr_status gr_ps_get_update(const uint8_t *in, size_t size_bytes, gr_ps_update *update_out,
                           int clients_out[GR_PS_PEERS_MAX], gr_diag *diag)
{
    if (size_bytes < UPDATE_FIXED || gr_get_u64(in + 48) > GR_PS_PEERS_MAX ||
        size_bytes != UPDATE_FIXED + CLIENT_BYTES * gr_get_u64(in + 48) ||
        gr_get_u32(in + 36) > 1 || gr_get_u64(in + 56) > GR_PS_COLUMNS_MAX) {
        return gr_ps_malformed("an update", diag);
    }
    gr_ps_update update = {.key = gr_get_u64(in),
                           .block = gr_get_u32(in + 8),
                           .count = gr_get_u32(in + 12),
                           .version = gr_get_u64(in + 16),
                           .rate = gr_get_f64(in + 24),
                           .factor = gr_get_f32(in + 32),
                           .initial = gr_get_u32(in + 36) != 0,
                           .sequence = gr_get_u64(in + 40),
                           .clients = clients_out,
                           .client_count = (int)gr_get_u64(in + 48),
                           .columns = (uint32_t)gr_get_u64(in + 56)};
    if (!is_count(update.count, update.columns) || !isfinite(update.rate) ||
        !isfinite(update.factor)) {
        return gr_ps_malformed("an update", diag);
    }
    for (int i = 0; i < update.client_count; i++) {
        clients_out[i] = gr_get_u16(in + UPDATE_FIXED + CLIENT_BYTES * i);
        if (clients_out[i] >= GR_PS_PEERS_MAX) {
            return gr_ps_malformed("an update", diag);
        }
    }
    *update_out = update;
    return GR_OK;
}

size_t gr_ps_put_image(const gr_ps_image *image, uint8_t *out)
{
    gr_put_u64(out, image->key);
    gr_put_u32(out + 8, image->block);
    gr_put_u32(out + 12, image->count);
    gr_put_u64(out + 16, image->version);
    gr_put_u32(out + 24, image->ready);
    gr_put_u32(out + 28, (uint32_t)image->states);
    gr_put_u64(out + 32, (uint64_t)image->seen_count);
    gr_put_u32(out + 40, image->columns);
    gr_put_u32(out + 44, (uint32_t)image->begins | (uint32_t)image->ends << 1);
    for (int i = 0; i < image->seen_count; i++) {
        uint8_t *at = out + IMAGE_FIXED + SEEN_BYTES * i;
        gr_put_u32(at, (uint32_t)image->seen[i].client);
        gr_put_u64(at + 4, image->seen[i].newest);
        gr_put_u64(at + 12, image->seen[i].before);
    }
    return (size_t)(IMAGE_FIXED + SEEN_BYTES * image->seen_count);
}

gr_status gr_ps_get_image(const uint8_t *in, size_t size_bytes, gr_ps_image *image_out,
                          gr_ps_seen seen_out[GR_PS_PEERS_MAX], gr_diag *diag)
{
    if (size_bytes < IMAGE_FIXED || gr_get_u64(in + 32) > GR_PS_PEERS_MAX ||
        size_bytes != IMAGE_FIXED + SEEN_BYTES * gr_get_u64(in + 32) || gr_get_u32(in + 24) > 1 ||
        gr_get_u32(in + 28) > GR_PS_STATES_MAX || gr_get_u32(in + 44) > 3 ||
        !is_count(gr_get_u32(in + 12), gr_get_u32(in + 40)) ||
        (gr_get_u32(in + 40) == 0 && gr_get_u32(in + 44) != 3)) {
        return gr_ps_malformed("a copy of a block", diag);
    }
    gr_ps_image image = {.key = gr_get_u64(in),
                         .block = gr_get_u32(in + 8),
                         .count = gr_get_u32(in + 12),
                         .version = gr_get_u64(in + 16),
                         .ready = gr_get_u32(in + 24) != 0,
                         .states = (int)gr_get_u32(in + 28),
                         .seen = seen_out,
                         .seen_count = (int)gr_get_u64(in + 32),
                         .columns = gr_get_u32(in + 40),
                         .begins = (gr_get_u32(in + 44) & 1) != 0,
                         .ends = gr_get_u32(in + 44) >> 1 != 0};
    for (int i = 0; i < image.seen_count; i++) {
        const uint8_t *at = in + IMAGE_FIXED + SEEN_BYTES * i;
        if (gr_get_u32(at) >= GR_PS_PEERS_MAX) {
            return gr_ps_malformed("a copy of a block", diag);
        }
        seen_out[i] = (gr_ps_seen){.client = (int)gr_get_u32(at),
                                   .newest = gr_get_u64(at + 4),
                                   .before = gr_get_u64(at + 12)};
    }
    *image_out = image;
    return GR_OK;
}

size_t gr_ps_put_acks(const gr_ps_ack *acks, int count, uint8_t *out)
{
    for (int i = 0; i < count; i++) {
        uint8_t *at = out + (size_t)ACK_BYTES * (size_t)i;
        gr_put_u64(at, acks[i].key);
        gr_put_u64(at + 8, acks[i].version);
        gr_put_u32(at + 16, acks[i].block);
        gr_put_u32(at + 20, (uint32_t)acks[i].word);
    }
    return (size_t)ACK_BYTES * (size_t)count;
}

gr_status gr_ps_get_acks(const uint8_t *in, size_t size_bytes, gr_ps_ack acks_out[GR_PS_ACKS_MAX],
                         int *count_out, gr_diag *diag)
{
    if (size_bytes % ACK_BYTES != 0 || size_bytes > (size_t)ACK_BYTES * GR_PS_ACKS_MAX) {
        return gr_ps_malformed("an acknowledgement", diag);
    }
    int count = (int)(size_bytes / ACK_BYTES);
    for (int i = 0; i < count; i++) {
        const uint8_t *at = in + (size_t)ACK_BYTES * (size_t)i;
        if (gr_get_u32(at + 20) > GR_PS_WHOLE) {
            return gr_ps_malformed("an acknowledgement", diag);
        }
        acks_out[i] = (gr_ps_ack){.key = gr_get_u64(at),
                                  .version = gr_get_u64(at + 8),
                                  .block = gr_get_u32(at + 16),
                                  .word = (gr_ps_word)gr_get_u32(at + 20)};
    }
    *count_out = count;
    return GR_OK;
}
