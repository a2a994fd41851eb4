/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/server/membership_view.h"

#include "base/hash.h"
#include "ps/message.h"

static uint32_t bit(int server)
{
    return UINT32_C(1) << server;
}

static void begin(gr_ps_membership *membership)
{
    uint8_t bytes[GR_PS_SMALL_MAX];
    size_t size = gr_ps_put_table(&membership->table, bytes);
    membership->own =
        (gr_ps_view){.epoch = membership->table.epoch, .hash = gr_hash64(bytes, size, 0)};
    membership->dead = 0;
    membership->formed = membership->table.added < 0;
}

void gr_ps_membership_init(gr_ps_membership *membership, int self, const gr_ps_table *table)
{
    *membership = (gr_ps_membership){.self = self, .table = *table};
    begin(membership);
}

/* Of these servers, of whom the dead count no more. */
static bool is_quorum_of(const gr_ps_membership *membership, uint32_t servers, uint32_t mask)
{
    uint32_t living = servers & ~membership->dead;
    uint32_t lowest = living & (~living + 1);
    int half = 2 * __builtin_popcount(mask & living) - __builtin_popcount(living);
    return half > 0 || (half == 0 && (mask & lowest) != 0);
}

static bool is_quorum(const gr_ps_membership *membership, uint32_t mask)
{
    uint32_t living = gr_ps_table_mask(&membership->table);
    return is_quorum_of(membership, living, mask) &&
           (membership->formed ||
            is_quorum_of(membership, living & ~bit(membership->table.added), mask));
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

void gr_ps_membership_add(gr_ps_membership *membership, int server, uint64_t incarnation)
{
    gr_ps_view *own = &membership->own;
    uint32_t adds = (uint32_t)server + 1;
    bool first =
        own->adds == 0 || adds < own->adds || (adds == own->adds && incarnation < own->incarnation);
    if (first && server < membership->table.servers && !membership->table.alive[server]) {
        own->adds = adds;
        own->incarnation = incarnation;
    }
}

static bool same_table(const gr_ps_view *a, const gr_ps_view *b)
{
    return a->epoch == b->epoch && a->hash == b->hash;
}

bool gr_ps_view_equal(const gr_ps_view *a, const gr_ps_view *b)
{
    return same_table(a, b) && a->lost == b->lost && a->adds == b->adds &&
           a->incarnation == b->incarnation;
}

/* Returns true if the other server agrees to the next table. Where servers are lost, none is
 * added. */
static bool agrees(const gr_ps_view *said, const gr_ps_view *own)
{
    return own->lost != 0 ? same_table(said, own) && said->lost == own->lost
                          : gr_ps_view_equal(said, own);
}

void gr_ps_membership_receive(gr_ps_membership *membership, int from, const gr_ps_view *view)
{
    uint32_t living = gr_ps_table_mask(&membership->table);
    if ((membership->own.lost & bit(from)) != 0) {
        return;
    }
    membership->said[from] = *view;
    if (same_table(view, &membership->own) && (living & bit(from)) != 0) {
        membership->own.lost |= view->lost & living & ~bit(membership->self);
        if ((view->lost & bit(membership->self)) != 0) {
            gr_ps_membership_lose(membership, from, false); /* they will never agree */
        }
        if (view->adds > 0 && view->incarnation > 0) {
            gr_ps_membership_add(membership, (int)view->adds - 1, view->incarnation);
        }
    }
}

bool gr_ps_membership_decide(gr_ps_membership *membership)
{
    const gr_ps_view own = membership->own;
    uint32_t left = gr_ps_table_mask(&membership->table) & ~own.lost;
    if ((own.lost == 0 && own.adds == 0) || !is_quorum(membership, left)) {
        return false;
    }
    for (int server = 0; server < membership->table.servers; server++) {
        if (server != membership->self && (left & bit(server)) != 0 &&
            !agrees(&membership->said[server], &own)) {
            return false;
        }
    }
    if (own.lost == 0) {
        (void)gr_ps_table_add(&membership->table, (int)own.adds - 1, own.incarnation);
    }
    for (int server = 0; server < membership->table.servers; server++) {
        if ((own.lost & bit(server)) != 0) {
            (void)gr_ps_table_lose(&membership->table, server);
        }
    }
    begin(membership);
    return true;
}

gr_ps_taken gr_ps_membership_take(gr_ps_membership *membership, const gr_ps_table *table)
{
    const gr_ps_table before = membership->table;
    uint32_t lost = membership->own.lost, dead = membership->dead;
    uint32_t has = gr_ps_table_mask(&before), will = gr_ps_table_mask(table);
    bool smaller = table->epoch == before.epoch && (will & ~has) == 0 && will != has;
    if ((table->epoch <= before.epoch && !smaller) || table->servers != before.servers) {
        return GR_PS_TABLE_PASSED;
    }
    if (!gr_ps_table_keeps(&before, table, membership->self)) {
        return GR_PS_TABLE_OUT;
    }
    membership->table = *table;
    begin(membership);
    for (int server = 0; server < table->servers; server++) {
        if ((lost & bit(server)) != 0 && gr_ps_table_keeps(&before, table, server)) {
            gr_ps_membership_lose(membership, server, (dead & bit(server)) != 0);
        }
    }
    return GR_PS_TABLE_TAKEN;
}

bool gr_ps_membership_lacks(const gr_ps_membership *membership, const gr_ps_view *said)
{
    return said->epoch <= membership->own.epoch && !same_table(said, &membership->own);
}

bool gr_ps_membership_settled(gr_ps_membership *membership)
{
    bool same = true;
    for (int server = 0; server < membership->table.servers; server++) {
        same = same && (server == membership->self || !membership->table.alive[server] ||
                        same_table(&membership->said[server], &membership->own));
    }
    membership->formed = membership->formed || same;
    return same && membership->own.lost == 0;
}
