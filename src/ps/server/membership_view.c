/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/server/membership_view.h"

#include "base/hash.h"
#include "ps/message.h"

static uint32_t bit(int server)
{
    return UINT32_C(1) << server;
}

static int count(uint32_t mask)
{
    int bits = 0;
    for (; mask != 0; mask &= mask - 1) {
        bits++;
    }
    return bits;
}

static void begin(gr_ps_membership *membership)
{
    uint8_t bytes[GR_PS_SMALL_MAX];
    size_t size = gr_ps_put_table(&membership->table, bytes);
    membership->own =
        (gr_ps_view){.epoch = membership->table.epoch, .hash = gr_hash64(bytes, size, 0)};
    membership->dead = 0;
}

void gr_ps_membership_init(gr_ps_membership *membership, int self, const gr_ps_table *table)
{
    *membership = (gr_ps_membership){.self = self, .table = *table};
    begin(membership);
}

static bool is_quorum(const gr_ps_membership *membership, uint32_t mask)
{
    uint32_t living = gr_ps_table_mask(&membership->table) & ~membership->dead;
    uint32_t lowest = living & (~living + 1);
    int half = 2 * count(mask & living) - count(living);
    return half > 0 || (half == 0 && (mask & lowest) != 0);
}

bool gr_ps_membership_spares(const gr_ps_membership *membership, int server)
{
    uint32_t left = gr_ps_table_mask(&membership->table) & ~(membership->own.lost | bit(server));
    return is_quorum(membership, left);
}

void gr_ps_membership_lose(gr_ps_membership *membership, int server, bool dead)
{
    if (server != membership->self && membership->table.alive[server]) {
        membership->own.lost |= bit(server);
        membership->dead |= dead ? bit(server) : 0;
    }
}

static bool same_table(const gr_ps_view *a, const gr_ps_view *b)
{
    return a->epoch == b->epoch && a->hash == b->hash;
}

void gr_ps_membership_hear(gr_ps_membership *membership, int from, const gr_ps_view *view)
{
    uint32_t living = gr_ps_table_mask(&membership->table);
    if ((membership->own.lost & bit(from)) != 0) {
        return;
    }
    membership->said[from] = *view;
    if (same_table(view, &membership->own)) {
        membership->own.lost |= view->lost & living & ~bit(membership->self);
        if ((view->lost & bit(membership->self)) != 0) {
            gr_ps_membership_lose(membership, from, false); /* they will never agree */
        }
    }
}

bool gr_ps_membership_decide(gr_ps_membership *membership)
{
    uint32_t lost = membership->own.lost, left = gr_ps_table_mask(&membership->table) & ~lost;
    if (lost == 0 || !is_quorum(membership, left)) {
        return false;
    }
    for (int server = 0; server < membership->table.servers; server++) {
        const gr_ps_view *view = &membership->said[server];
        if (server != membership->self && (left & bit(server)) != 0 &&
            (!same_table(view, &membership->own) || view->lost != lost)) {
            return false;
        }
    }
    for (int server = 0; server < membership->table.servers; server++) {
        if ((lost & bit(server)) != 0) {
            (void)gr_ps_table_lose(&membership->table, server);
        }
    }
    begin(membership);
    return true;
}

gr_ps_taken gr_ps_membership_take(gr_ps_membership *membership, const gr_ps_table *table)
{
    if (table->epoch <= membership->table.epoch || table->servers != membership->table.servers) {
        return GR_PS_TABLE_PASSED;
    }
    if (!table->alive[membership->self]) {
        return GR_PS_TABLE_OUT;
    }
    if ((gr_ps_table_mask(table) & membership->own.lost) != 0) {
        return GR_PS_TABLE_PASSED;
    }
    membership->table = *table;
    begin(membership);
    return GR_PS_TABLE_TAKEN;
}

bool gr_ps_membership_settled(const gr_ps_membership *membership)
{
    for (int server = 0; server < membership->table.servers; server++) {
        if (server != membership->self && membership->table.alive[server] &&
            !same_table(&membership->said[server], &membership->own)) {
            return false;
        }
    }
    return membership->own.lost == 0;
}
