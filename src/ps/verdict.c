/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/verdict.h"

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

uint32_t gr_ps_table_mask(const gr_ps_table *table)
{
    uint32_t mask = 0;
    for (int server = 0; server < table->servers; server++) {
        mask |= table->alive[server] ? bit(server) : 0;
    }
    return mask;
}

static void begin(gr_ps_verdict *verdict)
{
    uint8_t bytes[GR_PS_SMALL_MAX];
    size_t size = gr_ps_put_table(&verdict->table, bytes);
    verdict->own = (gr_ps_view){.epoch = verdict->table.epoch, .hash = gr_hash64(bytes, size, 0)};
    verdict->dead = 0;
}

void gr_ps_verdict_init(gr_ps_verdict *verdict, int self, const gr_ps_table *table)
{
    *verdict = (gr_ps_verdict){.self = self, .table = *table};
    begin(verdict);
}

static bool is_quorum(const gr_ps_verdict *verdict, uint32_t mask)
{
    uint32_t living = gr_ps_table_mask(&verdict->table) & ~verdict->dead;
    uint32_t lowest = living & (~living + 1);
    int half = 2 * count(mask & living) - count(living);
    return half > 0 || (half == 0 && (mask & lowest) != 0);
}

bool gr_ps_verdict_spares(const gr_ps_verdict *verdict, int server)
{
    uint32_t left = gr_ps_table_mask(&verdict->table) & ~(verdict->own.lost | bit(server));
    return is_quorum(verdict, left);
}

void gr_ps_verdict_lose(gr_ps_verdict *verdict, int server, bool dead)
{
    if (server != verdict->self && verdict->table.alive[server]) {
        verdict->own.lost |= bit(server);
        verdict->dead |= dead ? bit(server) : 0;
    }
}

static bool same_table(const gr_ps_view *a, const gr_ps_view *b)
{
    return a->epoch == b->epoch && a->hash == b->hash;
}

void gr_ps_verdict_hear(gr_ps_verdict *verdict, int from, const gr_ps_view *view)
{
    uint32_t living = gr_ps_table_mask(&verdict->table);
    if ((verdict->own.lost & bit(from)) != 0) {
        return;
    }
    verdict->said[from] = *view;
    if (same_table(view, &verdict->own)) {
        verdict->own.lost |= view->lost & living & ~bit(verdict->self);
        if ((view->lost & bit(verdict->self)) != 0) {
            gr_ps_verdict_lose(verdict, from, false); /* they will never agree */
        }
    }
}

bool gr_ps_verdict_decide(gr_ps_verdict *verdict)
{
    uint32_t lost = verdict->own.lost, left = gr_ps_table_mask(&verdict->table) & ~lost;
    if (lost == 0 || !is_quorum(verdict, left)) {
        return false;
    }
    for (int server = 0; server < verdict->table.servers; server++) {
        const gr_ps_view *view = &verdict->said[server];
        if (server != verdict->self && (left & bit(server)) != 0 &&
            (!same_table(view, &verdict->own) || view->lost != lost)) {
            return false;
        }
    }
    for (int server = 0; server < verdict->table.servers; server++) {
        if ((lost & bit(server)) != 0) {
            (void)gr_ps_table_lose(&verdict->table, server);
        }
    }
    begin(verdict);
    return true;
}

gr_ps_taken gr_ps_verdict_take(gr_ps_verdict *verdict, const gr_ps_table *table)
{
    if (table->epoch <= verdict->table.epoch || table->servers != verdict->table.servers) {
        return GR_PS_TABLE_PASSED;
    }
    if (!table->alive[verdict->self]) {
        return GR_PS_TABLE_OUT;
    }
    if ((gr_ps_table_mask(table) & verdict->own.lost) != 0) {
        return GR_PS_TABLE_PASSED;
    }
    verdict->table = *table;
    begin(verdict);
    return GR_PS_TABLE_TAKEN;
}

bool gr_ps_verdict_settled(const gr_ps_verdict *verdict)
{
    for (int server = 0; server < verdict->table.servers; server++) {
        if (server != verdict->self && verdict->table.alive[server] &&
            !same_table(&verdict->said[server], &verdict->own)) {
            return false;
        }
    }
    return verdict->own.lost == 0;
}
