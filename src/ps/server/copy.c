/* SPDX-License-Identifier: Apache-2.0 */

/* What goes to replicas, and what comes from primaries. Updates stay where they lie in the store
 * until the replica has them; where both servers share a host it reads them there. */

#include "ps/server/peer.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---- Messages -------------------------------------------------------------------------------- */

static gr_ps_replica_message *make_message(gr_ps_kind kind, const uint8_t *head, size_t head_bytes)
{
    gr_ps_replica_message *message = calloc(1, sizeof *message + head_bytes);
    if (message != NULL) {
        message->kind = (uint8_t)kind;
        message->head_bytes = (uint32_t)head_bytes;
        memcpy(message->head, head, head_bytes);
    }
    return message;
}

static void queue_message(gr_ps_peer *peer, gr_ps_replica_message *message)
{
    if (peer->out.newest != NULL) {
        peer->out.newest->next = message;
    } else {
        peer->out.oldest = message;
    }
    peer->out.newest = message;
    peer->out.unsent = peer->out.unsent != NULL ? peer->out.unsent : message;
}

static void free_message(gr_ps_server *server, gr_ps_peer *peer, gr_ps_replica_message *message)
{
    for (int i = 0; i < message->parts; i++) {
        gr_ps_buffer_give_back(server, message->buffer[i]);
    }
    peer->out.images -= message->kind == GR_PS_IMAGE;
    free(message);
}

/* Memory of its own for one more vector; NULL: there is none. */
static gr_ps_buffer *add_buffer(gr_ps_server *server, gr_ps_replica_message *message)
{
    gr_ps_buffer *buffer = gr_ps_buffer_take(server, message->part_bytes);
    if (buffer != NULL) {
        message->part[message->parts] = buffer->values;
        message->buffer[message->parts++] = buffer;
    }
    return buffer;
}

static void drop_copies(gr_ps_server *server, gr_ps_peer *peer)
{
    for (int i = 0; i < 1 + GR_PS_STATES_MAX; i++) {
        gr_ps_buffer_give_back(server, peer->in.copies[i]);
        peer->in.copies[i] = NULL;
    }
    peer->in.taking = 0;
}

void gr_ps_copy_drop(gr_ps_server *server, gr_ps_peer *peer)
{
    while (peer->out.oldest != NULL) {
        gr_ps_replica_message *message = peer->out.oldest;
        peer->out.oldest = message->next;
        free_message(server, peer, message);
    }
    peer->out.newest = peer->out.unsent = NULL;
    peer->in.ack_count = 0;
    drop_copies(server, peer);
}

/* Without memory for what it has to know a replica cannot be one. */
static void give_up(gr_ps_server *server, gr_ps_peer *peer)
{
    gr_ps_send_away(server, peer->number, GR_E_NO_MEMORY,
                    "the server has no memory for what is on its way to another one");
}

void gr_ps_copy_forward(gr_ps_server *server, const gr_ps_update *update)
{
    const gr_ps_share *held = gr_ps_share_of(server, update->key);
    gr_ps_peer *peer = server->peers[server->table.replica[gr_ps_slot(update->key, update->block)]];
    if (peer == NULL || (peer->met && peer->link == NULL) ||
        (held->marks[update->block] & GR_PS_MARK_COPY) != 0) {
        return; /* an image brings it, to whoever becomes the replica */
    }
    uint8_t head[GR_PS_HEAD_MAX];
    gr_ps_replica_message *message =
        make_message(GR_PS_UPDATE, head, gr_ps_put_update(update, head));
    if (message == NULL) {
        give_up(server, peer);
        return;
    }
    message->part_bytes = gr_ps_update_bytes(update);
    if (update->columns == 0) {
        message->part[0] = update->values;
        message->parts = 1;
    } else if (update->count > 0) {
        gr_ps_buffer *buffer = add_buffer(server, message);
        if (buffer == NULL) {
            free_message(server, peer, message);
            give_up(server, peer);
            return;
        }
        memcpy(buffer->values, update->rows, update->count * sizeof *update->rows);
        memcpy(buffer->values + update->count, update->values,
               (size_t)update->count * update->columns * sizeof(float));
    }
    queue_message(peer, message);
}

static bool queue_text(gr_ps_peer *peer, gr_ps_kind kind, const uint8_t *text, size_t size_bytes)
{
    gr_ps_replica_message *message = make_message(kind, text, size_bytes);
    if (message != NULL) {
        queue_message(peer, message);
    }
    return message != NULL;
}

void gr_ps_copy_introduce(gr_ps_server *server, gr_ps_peer *peer)
{
    uint8_t text[GR_PS_HEAD_MAX];
    bool all = queue_text(peer, GR_PS_HELLO, text, gr_ps_put_own_hello(server, text));
    for (uint32_t i = 0; i < server->held.count && all; i++) {
        all = queue_text(peer, GR_PS_DECLARE, text,
                         gr_ps_put_spec(&server->held.at[i]->tensor->spec, text));
    }
    if (!all) {
        give_up(server, peer);
    }
}

/* ---- Images ---------------------------------------------------------------------------------- */

static bool replica_is(const gr_ps_server *server, const gr_ps_share *held, uint32_t block,
                       const gr_ps_peer *peer)
{
    return gr_ps_leads(server, held, block) &&
           server->table.replica[gr_ps_slot(held->tensor->key, block)] == peer->number;
}

/* The next block, of a table or of any other tensor, whose replica is this peer, and lacks its
 * image; false: there is none. */
static bool next_to_copy(gr_ps_server *server, gr_ps_peer *peer, bool tables,
                         gr_ps_share **held_out, uint32_t *block_out)
{
    for (; peer->out.scan.share < server->held.count;
         peer->out.scan.share++, peer->out.scan.block = 0) {
        gr_ps_share *held = server->held.at[peer->out.scan.share];
        for (; tables == (held->tensor->spec.columns > 0) &&
               peer->out.scan.block < held->tensor->cut.blocks;
             peer->out.scan.block++) {
            uint32_t block = peer->out.scan.block;
            if ((held->marks[block] & GR_PS_MARK_COPY) != 0 &&
                replica_is(server, held, block, peer)) {
                *held_out = held;
                *block_out = block;
                return true;
            }
        }
    }
    peer->out.scan.share = peer->out.scan.block = 0;
    return false;
}

static gr_ps_replica_message *make_image(gr_ps_peer *peer, const gr_ps_image *image)
{
    uint8_t head[GR_PS_HEAD_MAX];
    gr_ps_replica_message *message = make_message(GR_PS_IMAGE, head, gr_ps_put_image(image, head));
    if (message != NULL) {
        message->part_bytes = gr_ps_image_bytes(image);
        peer->out.images++;
    }
    return message;
}

/* A block as it is now; of a table the beginning, and its rows follow piece by piece, while pushes
 * go on. False: no memory now. */
static bool queue_image(gr_ps_server *server, gr_ps_peer *peer, gr_ps_share *held, uint32_t block)
{
    gr_ps_image image;
    if (gr_ps_store_image(server->store, held->tensor->key, block, &image, NULL) != GR_OK) {
        return true; /* it is not here: nobody has its values */
    }
    int vectors = image.ready ? 1 + image.states : 0;
    if (held->tensor->spec.columns > 0) {
        held->streams[block] = (gr_ps_stream){.end = image.ready ? image.count : 0};
        image.ends = held->streams[block].end == 0;
        image.count = 0;
        vectors = 0;
    }
    gr_ps_replica_message *message = make_image(peer, &image);
    if (message == NULL) {
        return false;
    }
    for (int i = 0; i < vectors; i++) {
        gr_ps_buffer *buffer = add_buffer(server, message);
        if (buffer == NULL) {
            free_message(server, peer, message);
            return false;
        }
        memcpy(buffer->values, i == 0 ? image.values : image.state[i - 1], message->part_bytes);
    }
    if (!image.ends) {
        peer->out.streams = true;
        peer->out.stream.share = peer->out.stream.block = 0;
    }
    queue_message(peer, message);
    return true;
}

/* Some more rows of a table's block, as they are now. False: no memory now. */
static bool queue_rows(gr_ps_server *server, gr_ps_peer *peer, gr_ps_share *held, uint32_t block)
{
    gr_ps_stream *stream = &held->streams[block];
    gr_ps_image image;
    if (gr_ps_store_image(server->store, held->tensor->key, block, &image, NULL) != GR_OK) {
        *stream = (gr_ps_stream){0};
        return true;
    }
    image.count = 1;
    uint32_t left = stream->end - stream->next;
    uint32_t most = (uint32_t)(GR_PS_COPY_MAX / gr_ps_image_bytes(&image));
    image.count = most == 0 ? 1 : most < left ? most : left;
    image.seen_count = 0;
    image.begins = false;
    image.ends = image.count == left;
    gr_ps_replica_message *message = make_image(peer, &image);
    if (message == NULL) {
        return false;
    }
    gr_ps_buffer *buffer = add_buffer(server, message);
    if (buffer == NULL) {
        free_message(server, peer, message);
        return false;
    }
    gr_ps_store_image_rows(server->store, held->tensor->key, block, stream->next, image.count,
                           (uint32_t *)(void *)buffer->values, buffer->values + image.count);
    stream->next += image.count;
    queue_message(peer, message);
    return true;
}

/* False: enough is on the way, or there are none. */
static bool queue_more_rows(gr_ps_server *server, gr_ps_peer *peer)
{
    for (; peer->out.stream.share < server->held.count;
         peer->out.stream.share++, peer->out.stream.block = 0) {
        gr_ps_share *held = server->held.at[peer->out.stream.share];
        for (; held->tensor->spec.columns > 0 && peer->out.stream.block < held->tensor->cut.blocks;
             peer->out.stream.block++) {
            const gr_ps_stream *stream = &held->streams[peer->out.stream.block];
            if (stream->next < stream->end &&
                replica_is(server, held, peer->out.stream.block, peer)) {
                return peer->out.images < GR_PS_IMAGES_MAX &&
                       queue_rows(server, peer, held, peer->out.stream.block);
            }
        }
    }
    peer->out.streams = false;
    return false;
}

static void queue_images(gr_ps_server *server, gr_ps_peer *peer)
{
    gr_ps_share *held;
    uint32_t block;
    while (peer->out.to_copy > 0 &&
           (peer->out.scan_tables || peer->out.images < GR_PS_IMAGES_MAX)) {
        if (next_to_copy(server, peer, peer->out.scan_tables, &held, &block)) {
            if (!queue_image(server, peer, held, block)) {
                return;
            }
            held->marks[block] &= (uint8_t)~GR_PS_MARK_COPY;
        } else {
            peer->out.to_copy = peer->out.scan_tables ? peer->out.to_copy : 0;
            peer->out.scan_tables = false;
        }
    }
    while (peer->out.streams && queue_more_rows(server, peer)) {
    }
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* Of what is left of a vector, in the next COPY. */
static uint32_t copy_bytes(uint64_t left)
{
    return left < GR_PS_COPY_MAX ? (uint32_t)left : (uint32_t)GR_PS_COPY_MAX;
}

static gr_status send_message(gr_ps_peer *peer, gr_ps_replica_message *message)
{
    gr_frame frame = {
        .kind = GR_FRAME_DATA, .comm = message->kind, .size_bytes = message->head_bytes};
    gr_status status =
        message->begun ? GR_OK : gr_link_send(peer->link, &frame, message->head, &message->ticket);
    message->begun = status == GR_OK;
    frame.comm = GR_PS_COPY;
    while (status == GR_OK && message->sent < message->parts) {
        const uint8_t *from = (const uint8_t *)message->part[message->sent] + message->part_sent;
        frame.size_bytes = copy_bytes(message->part_bytes - message->part_sent);
        status = gr_link_send(peer->link, &frame, from, &message->ticket);
        message->part_sent += status == GR_OK ? frame.size_bytes : 0;
        if (message->part_sent == message->part_bytes) {
            message->part_sent = 0;
            message->sent++;
        }
    }
    return status;
}

static bool send_acks(gr_ps_peer *peer)
{
    size_t count = peer->in.ack_count < GR_PS_ACKS_MAX ? peer->in.ack_count : GR_PS_ACKS_MAX;
    if (count == 0 || !gr_ps_note_free(peer, &peer->in.note)) {
        return false;
    }
    size_t size = gr_ps_put_acks(peer->in.acks, (int)count, peer->in.note.text);
    if (!gr_ps_note_send(peer, &peer->in.note, GR_PS_ACKS, size)) {
        return false;
    }
    peer->in.ack_count -= count;
    memmove(peer->in.acks, peer->in.acks + count, peer->in.ack_count * sizeof *peer->in.acks);
    return peer->in.ack_count > 0;
}

bool gr_ps_copy_send(gr_ps_server *server, gr_ps_peer *peer)
{
    while (peer->out.oldest != peer->out.unsent &&
           gr_link_sent(peer->link, peer->out.oldest->ticket)) {
        gr_ps_replica_message *message = peer->out.oldest;
        peer->out.oldest = message->next;
        peer->out.newest = peer->out.oldest != NULL ? peer->out.newest : NULL;
        free_message(server, peer, message);
    }
    bool more = send_acks(peer);
    if (server->active) {
        queue_images(server, peer);
    }
    while (peer->out.unsent != NULL && send_message(peer, peer->out.unsent) == GR_OK) {
        peer->out.unsent = peer->out.unsent->next;
    }
    return more;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static void acknowledge(gr_ps_server *server, gr_ps_peer *peer, const gr_ps_ack *ack)
{
    if (peer->in.ack_count == peer->in.ack_room) {
        size_t room = peer->in.ack_room > 0 ? 2 * peer->in.ack_room : GR_PS_ACKS_MAX;
        gr_ps_ack *acks = realloc(peer->in.acks, room * sizeof *acks);
        if (acks == NULL) {
            give_up(server, peer);
            return;
        }
        peer->in.acks = acks;
        peer->in.ack_room = room;
    }
    peer->in.acks[peer->in.ack_count++] = *ack;
}

/* The block's place among ours, if the peer leads it and this server has its replica; NULL: that
 * was so once. */
static uint8_t *followed(const gr_ps_server *server, const gr_ps_peer *peer, uint64_t key,
                         uint32_t block)
{
    const gr_ps_share *held = gr_ps_share_of(server, key);
    int slot = gr_ps_slot(key, block);
    return held != NULL && block < held->tensor->cut.blocks &&
                   server->table.primary[slot] == peer->number &&
                   server->table.replica[slot] == server->number
               ? &held->marks[block]
               : NULL;
}

/* What the store said of an update or an image. */
static void conclude(gr_ps_server *server, gr_ps_peer *peer, uint8_t *mark, gr_ps_ack ack,
                     gr_status status, const gr_diag *why)
{
    if (status != GR_OK) {
        ack.word = GR_PS_REFUSES;
        *mark = GR_PS_MARK_AWAIT;
        gr_log_write(server->log, GR_LOG_WARN, "ps", "a block is without replica here: %s",
                     why->text);
    }
    acknowledge(server, peer, &ack);
}

/* `values` NULL: there was no memory for them. */
static void follow(gr_ps_server *server, gr_ps_peer *peer, const float *values)
{
    gr_ps_update *update = &peer->in.update;
    uint8_t *mark = followed(server, peer, update->key, update->block);
    gr_diag why = {0};
    if (mark == NULL) {
        return;
    }
    gr_status status = gr_fail(&why, GR_E_NO_MEMORY, "no memory for what its primary sends");
    if (values != NULL || peer->in.parts == 0) {
        bool rows = update->columns > 0 && values != NULL;
        update->rows = rows ? (const uint32_t *)(const void *)values : NULL;
        update->values = rows ? values + update->count : values;
        status = gr_ps_store_follow(server->store, update, &why);
        if (status == GR_OK && update->initial) {
            *mark &= (uint8_t)~GR_PS_MARK_AWAIT; /* there was nothing before */
        }
    }
    conclude(server, peer, mark,
             (gr_ps_ack){.key = update->key,
                         .block = update->block,
                         .version = update->initial ? 0 : update->version + 1},
             status, &why);
}

static void restore(gr_ps_server *server, gr_ps_peer *peer)
{
    gr_ps_image *image = &peer->in.image;
    uint8_t *mark = followed(server, peer, image->key, image->block);
    gr_diag why = {0};
    gr_status status = GR_OK;
    if (mark == NULL || (!image->begins && (*mark & GR_PS_MARK_TAKES) == 0)) {
        return; /* or what came before was refused */
    }
    for (int i = 0; i < peer->in.parts; i++) {
        if (peer->in.copies[i] == NULL) {
            status = gr_fail(&why, GR_E_NO_MEMORY, "no memory for what its primary sends");
        } else if (i == 0) {
            image->values = peer->in.copies[i]->values;
        } else {
            image->state[i - 1] = peer->in.copies[i]->values;
        }
    }
    if (status == GR_OK) {
        image->rows = (const uint32_t *)(const void *)image->values;
        image->values += image->columns > 0 ? image->count : 0;
        status = gr_ps_store_restore(server->store, image, &why);
    }
    gr_ps_ack ack = {.key = image->key, .block = image->block, .version = image->version};
    if (image->ready || status != GR_OK) {
        conclude(server, peer, mark, ack, status, &why);
    }
    if (status == GR_OK && image->ends) {
        *mark = 0;
        ack.word = GR_PS_WHOLE;
        acknowledge(server, peer, &ack);
    } else if (status == GR_OK) {
        *mark |= GR_PS_MARK_TAKES;
    }
}

/* Values behind an UPDATE or an IMAGE. */
static gr_status take_copy(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                           gr_diag *diag)
{
    gr_ps_buffer **copy = &peer->in.copies[peer->in.taken];
    const void *view = NULL;
    if (peer->in.taking == 0 ||
        frame->size_bytes != copy_bytes(peer->in.part_bytes - peer->in.part_taken)) {
        return gr_fail(diag, GR_E_PROTOCOL, "%u bytes of values that belong to nothing",
                       frame->size_bytes);
    }
    bool first = peer->in.part_taken == 0;
    if (peer->in.taking == GR_PS_UPDATE && *copy == NULL &&
        frame->size_bytes == peer->in.part_bytes && gr_link_view(peer->link, &view) == GR_OK) {
        follow(server, peer, view);
        gr_link_next(peer->link, NULL);
        peer->in.taking = 0;
        return GR_OK;
    }
    if (*copy == NULL && first) {
        *copy = gr_ps_buffer_take(server, peer->in.part_bytes);
    }
    gr_status status =
        *copy != NULL ? gr_link_read(peer->link, (uint8_t *)(*copy)->values + peer->in.part_taken)
                      : GR_OK;
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(peer->link, NULL);
    peer->in.part_taken += frame->size_bytes;
    if (peer->in.part_taken < peer->in.part_bytes) {
        return GR_OK;
    }
    peer->in.part_taken = 0;
    if (++peer->in.taken < peer->in.parts) {
        return GR_OK;
    }
    if (peer->in.taking == GR_PS_UPDATE) {
        follow(server, peer, *copy != NULL ? (*copy)->values : NULL);
    } else {
        restore(server, peer);
    }
    drop_copies(server, peer);
    return GR_OK;
}

/* The replica has no memory for a block. */
static void go_on_alone(gr_ps_server *server, const gr_ps_peer *peer, const gr_ps_ack *ack)
{
    gr_ps_share *held = gr_ps_share_of(server, ack->key);
    if (held == NULL || ack->block >= held->tensor->cut.blocks ||
        gr_ps_store_hold(server->store, ack->key, ack->block, GR_PS_ALONE, NULL) != GR_OK) {
        return;
    }
    if (held->streams != NULL) {
        held->streams[ack->block] = (gr_ps_stream){0};
    }
    held->marks[ack->block] |= GR_PS_MARK_THIN;
    gr_log_write(server->log, GR_LOG_WARN, "ps",
                 "server %d has no memory for a replica: a block goes on without one",
                 peer->number);
}

static void take_acks(gr_ps_server *server, const gr_ps_peer *peer, const gr_ps_ack *acks,
                      int count)
{
    for (int i = 0; i < count; i++) {
        const gr_ps_ack *ack = &acks[i];
        int slot = gr_ps_slot(ack->key, ack->block);
        if (server->table.primary[slot] != server->number ||
            server->table.replica[slot] != peer->number) {
            continue;
        }
        gr_ps_share *held = gr_ps_share_of(server, ack->key);
        if (ack->word == GR_PS_HAS) {
            gr_ps_store_replicated(server->store, ack->key, ack->block, ack->version);
        } else if (ack->word == GR_PS_REFUSES) {
            go_on_alone(server, peer, ack);
        } else if (held != NULL && ack->block < held->tensor->cut.blocks &&
                   (held->marks[ack->block] & GR_PS_MARK_COPY) == 0) {
            held->marks[ack->block] &= (uint8_t)~GR_PS_MARK_THIN;
        }
    }
}

static void expect_copies(gr_ps_peer *peer, gr_ps_kind kind, int parts, uint64_t part_bytes)
{
    peer->in.taken = 0;
    peer->in.parts = parts;
    peer->in.part_bytes = part_bytes;
    peer->in.part_taken = 0;
    peer->in.taking = parts > 0 ? (uint8_t)kind : 0;
}

gr_status gr_ps_copy_take(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                          gr_diag *diag)
{
    gr_ps_ack acks[GR_PS_ACKS_MAX];
    int count;
    if (frame->comm == GR_PS_COPY) {
        return take_copy(server, peer, frame, diag);
    }
    if (frame->comm != GR_PS_ACKS && peer->in.taking != 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "an update without its values");
    }
    gr_status status = gr_link_read(peer->link, peer->head);
    if (status != GR_OK) {
        return status;
    }
    gr_link_next(peer->link, NULL);
    switch (frame->comm) {
    case GR_PS_UPDATE:
        status = gr_ps_get_update(peer->head, frame->size_bytes, &peer->in.update, peer->in.clients,
                                  diag);
        if (status == GR_OK) {
            expect_copies(peer, GR_PS_UPDATE, peer->in.update.count > 0 ? 1 : 0,
                          gr_ps_update_bytes(&peer->in.update));
        }
        if (status == GR_OK && peer->in.parts == 0) {
            follow(server, peer, NULL);
        }
        return status;
    case GR_PS_IMAGE:
        status =
            gr_ps_get_image(peer->head, frame->size_bytes, &peer->in.image, peer->in.seen, diag);
        if (status == GR_OK) {
            const gr_ps_image *image = &peer->in.image;
            int vectors =
                image->columns > 0 ? image->count > 0 : image->ready * (1 + image->states);
            expect_copies(peer, GR_PS_IMAGE, vectors, gr_ps_image_bytes(image));
        }
        if (status == GR_OK && peer->in.parts == 0) {
            restore(server, peer);
        }
        return status;
    default:
        status = gr_ps_get_acks(peer->head, frame->size_bytes, acks, &count, diag);
        if (status == GR_OK) {
            take_acks(server, peer, acks, count);
        }
        return status;
    }
}
