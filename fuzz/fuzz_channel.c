/* SPDX-License-Identifier: Apache-2.0 */

/* What comes from another host by ssh: any bytes, in any cuts, as packets, and what is in them as
 * messages of an agent. Byte 0 chooses the cuts and whether noise may stand in front. */

#include "launch/agent.h"
#include "launch/channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void try_message(const gr_packet *packet)
{
    gr_agent_message message;
    uint8_t again[GR_AGENT_MESSAGE_BYTES];
    /* A copy of its exact size, so that a read past it is seen. */
    uint8_t *exact = malloc(packet->size_bytes > 0 ? packet->size_bytes : 1);
    require(exact != NULL);
    memcpy(exact, packet->data, packet->size_bytes);
    if (gr_agent_decode(exact, packet->size_bytes, &message) == GR_OK) {
        require(message.kind > 0 && message.kind < GR_AGENT_KIND_END);
        gr_agent_encode(&message, again);
        require(memcmp(again, exact, 20) == 0); /* what follows means nothing */
    }
    free(exact);
}

/* All packets that are there; false: what came is none. */
static bool take(gr_channel *channel, bool *begun, size_t *taken)
{
    gr_packet packet;
    int error = 0;
    if (!*begun && !(*begun = gr_channel_skip_noise(channel))) {
        return true;
    }
    while (gr_channel_next(channel, &packet, &error)) {
        require(packet.kind >= GR_PACKET_HELLO && packet.kind < GR_PACKET_KIND_END);
        require(packet.size_bytes <= GR_PACKET_DATA_BYTES_MAX);
        *taken += GR_PACKET_HEADER_BYTES + packet.size_bytes;
        try_message(&packet);
    }
    require(error == 0 || error == EPROTO || error == EPROTONOSUPPORT);
    return error == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gr_channel channel;
    if (size < 1) {
        return 0;
    }
    bool begun = (data[0] & 1) != 0, fine = true;
    size_t cut = (size_t)(data[0] >> 1) * 37 + 1, at = 1, taken = 0;
    int fd = memfd_create("channel", MFD_CLOEXEC);
    if (fd < 0 || gr_channel_init(&channel, fd, fd, NULL) != 0) {
        close(fd);
        return 0;
    }
    while (fine && at < size) {
        size_t part = size - at < cut ? size - at : cut;
        require(pwrite(fd, data + at, part, (off_t)(at - 1)) == (ssize_t)part);
        at += part;
        for (int error = 0; fine && error != EPIPE;) {
            error = gr_channel_fill(&channel);
            fine = take(&channel, &begun, &taken);
            /* There is always room for more: packets are at most half of it. */
            require(!fine || error != EAGAIN);
        }
    }
    require(taken <= size);
    gr_channel_fini(&channel);
    close(fd);
    return 0;
}
