/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch_spec.h"

#include "base/codec.h"
#include "launch/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORDER_MAGIC = 0x524f4747, ORDER_VERSION = 3, NONE = -1, FLAG_BIND = 1, FLAG_SELF = 2 };

/* Of whoever logged in there, not of whoever started the job. */
static bool is_of_login(const char *entry)
{
    static const char *const names[] = {
        "HOME=",     "USER=",    "LOGNAME=", "SHELL=", "MAIL=", "PWD=",  "OLDPWD=",
        "HOSTNAME=", "DISPLAY=", "TMPDIR=",  "SSH_",   "XDG_",  "DBUS_", "LS_COLORS="};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(entry, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Counts when `bytes` is NULL. */
struct writer {
    uint8_t *bytes;
    size_t used;
};

static void put_u32(struct writer *to, uint32_t value)
{
    if (to->bytes != NULL) {
        gr_put_u32(to->bytes + to->used, value);
    }
    to->used += 4;
}

static void put_text(struct writer *to, const char *text)
{
    if (text == NULL) {
        put_u32(to, (uint32_t)NONE);
        return;
    }
    size_t size = strlen(text);
    put_u32(to, (uint32_t)size);
    if (to->bytes != NULL) {
        memcpy(to->bytes + to->used, text, size);
    }
    to->used += size;
}

static bool begins(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static void put_entry(struct writer *to, const char *entry, const char *launcher)
{
    char replaced[512];
    bool colon = strchr(launcher, ':') != NULL;
    if (begins(entry, GR_LAUNCH_SPEC_COORDINATOR)) {
        snprintf(replaced, sizeof replaced, "GRADUS_COORDINATOR=tcp:%s%s%s:%s", colon ? "[" : "",
                 launcher, colon ? "]" : "", entry + sizeof GR_LAUNCH_SPEC_COORDINATOR - 1);
        entry = replaced;
    } else if (strcmp(entry, GR_LAUNCH_SPEC_MASTER) == 0) {
        snprintf(replaced, sizeof replaced, "MASTER_ADDR=%s", launcher);
        entry = replaced;
    }
    put_text(to, entry);
}

static void put_order(struct writer *to, const gr_launch_spec *order, const char *launcher)
{
    put_u32(to, ORDER_MAGIC);
    put_u32(to, ORDER_VERSION);
    put_u32(to, (uint32_t)order->workers);
    put_u32(to, (uint32_t)order->slots);
    put_u32(to, (order->bind ? FLAG_BIND : 0) | (order->self ? FLAG_SELF : 0));
    put_u32(to, (uint32_t)(order->silence_us / 1000));
    put_text(to, order->cores);
    put_text(to, order->folder);
    put_text(to, order->document);
    for (char **word = order->argv; *word != NULL; word++) {
        put_text(to, *word);
    }
    put_text(to, NULL);
    for (int rank = 0; rank < gr_launch_spec_slot_count(order); rank++) {
        for (char **entry = order->environment[rank]; *entry != NULL; entry++) {
            if (!is_of_login(*entry)) {
                put_entry(to, *entry, launcher);
            }
        }
        put_text(to, NULL);
    }
}

gr_status gr_launch_spec_encode(const gr_launch_spec *order, const char *launcher,
                                uint8_t **bytes_out, size_t *size_out)
{
    struct writer to = {0};
    put_order(&to, order, launcher);
    if (to.used > GR_LAUNCH_SPEC_BYTES_MAX) {
        return GR_E_INVALID;
    }
    to.bytes = malloc(to.used);
    if (to.bytes == NULL) {
        return GR_E_NO_MEMORY;
    }
    to.used = 0;
    put_order(&to, order, launcher);
    *bytes_out = to.bytes;
    *size_out = to.used;
    return GR_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

struct spec_reader {
    const uint8_t *bytes;
    size_t left;
    gr_arena *arena;
    gr_status status; /* of the first failure; nothing is read behind it */
};

static uint32_t take_u32(struct spec_reader *from)
{
    if (from->left < 4) {
        from->status = from->status == GR_OK ? GR_E_PROTOCOL : from->status;
        return (uint32_t)NONE;
    }
    uint32_t value = gr_get_u32(from->bytes);
    from->bytes += 4;
    from->left -= 4;
    return value;
}

static char *take_text(struct spec_reader *from)
{
    uint32_t size = take_u32(from);
    if (size == (uint32_t)NONE || from->status != GR_OK) {
        return NULL;
    }
    if (size > from->left || memchr(from->bytes, '\0', size) != NULL) {
        from->status = GR_E_PROTOCOL;
        return NULL;
    }
    char *text = gr_arena_alloc(from->arena, (size_t)size + 1);
    if (text == NULL) {
        from->status = GR_E_NO_MEMORY;
        return NULL;
    }
    memcpy(text, from->bytes, size);
    from->bytes += size;
    from->left -= size;
    return text;
}

/* Texts up to the first that is none, with room for `more` behind them, and for one. */
static char **take_list(struct spec_reader *from, size_t more, size_t *count_out)
{
    size_t count = 0;
    for (size_t at = 0; from->left - at >= 4;) {
        uint32_t size = gr_get_u32(from->bytes + at);
        if (size == (uint32_t)NONE || size > from->left - at - 4) {
            break;
        }
        at += 4 + size;
        count++;
    }
    char **list = gr_arena_alloc(from->arena, (count + more + 2) * sizeof *list);
    if (list == NULL) {
        from->status = GR_E_NO_MEMORY;
        return NULL;
    }
    for (size_t i = 0; i <= count && from->status == GR_OK; i++) {
        list[i] = take_text(from);
    }
    *count_out = count;
    return list;
}

static char **take_environment(struct spec_reader *from, char *const *own)
{
    size_t more = 0, count = 0;
    while (own[more] != NULL) {
        more++;
    }
    char **list = take_list(from, more, &count);
    for (size_t i = 0; list != NULL && i < more; i++) {
        if (is_of_login(own[i])) {
            list[count++] = own[i];
        }
    }
    return list;
}

gr_status gr_launch_spec_decode(const uint8_t *bytes, size_t size_bytes, char *const *own,
                                gr_arena *arena, gr_launch_spec *order_out)
{
    struct spec_reader from = {.bytes = bytes, .left = size_bytes, .arena = arena};
    gr_launch_spec order = {0};
    size_t words = 0;
    if (take_u32(&from) != ORDER_MAGIC || take_u32(&from) != ORDER_VERSION) {
        return GR_E_PROTOCOL;
    }
    uint32_t workers = take_u32(&from), slots = take_u32(&from), flags = take_u32(&from);
    order.silence_us = (int64_t)take_u32(&from) * 1000;
    order.bind = flags & FLAG_BIND;
    order.self = flags & FLAG_SELF;
    if (from.status != GR_OK || workers > GR_LAUNCH_WORKERS_MAX || slots > GR_LAUNCH_WORKERS_MAX ||
        workers + slots == 0) {
        return GR_E_PROTOCOL;
    }
    order.workers = (int)workers;
    order.slots = (int)slots;
    size_t count = (size_t)gr_launch_spec_slot_count(&order);
    order.cores = take_text(&from);
    order.folder = take_text(&from);
    order.document = take_text(&from);
    order.argv = from.status == GR_OK ? take_list(&from, 0, &words) : NULL;
    order.environment = gr_arena_alloc(arena, count * sizeof *order.environment);
    if (order.environment == NULL) {
        return GR_E_NO_MEMORY;
    }
    for (size_t rank = 0; rank < count && from.status == GR_OK; rank++) {
        order.environment[rank] = take_environment(&from, own);
    }
    if (from.status == GR_OK && (from.left != 0 || words == 0 || order.folder == NULL)) {
        from.status = GR_E_PROTOCOL;
    }
    *order_out = order;
    return from.status;
}
