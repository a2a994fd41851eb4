/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/place.h"

#include "base/codec.h"
#include "base/hash.h"

#include <string.h>

/* ---- Blocks ---------------------------------------------------------------------------------- */

enum {
    BLOCK_STEP = 16,    /* elements: no two blocks share a cache line */
    BLOCK_MIN = 1024,   /* 4 KiB */
    BLOCK_MAX = 1 << 18 /* 1 MiB */
};

static uint64_t divided_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

gr_ps_cut gr_ps_cut_of(uint64_t elements)
{
    gr_ps_cut cut = {.elements = elements};
    if (elements == 0 || elements > GR_PS_ELEMENTS_MAX) {
        return cut;
    }
    uint64_t times = divided_up(elements, (uint64_t)GR_PS_SLOTS * BLOCK_MAX);
    uint64_t block = divided_up(elements, GR_PS_SLOTS * times);
    block = divided_up(block, BLOCK_STEP) * BLOCK_STEP;
    block = block < BLOCK_MIN ? BLOCK_MIN : block;
    cut.block = (uint32_t)block;
    cut.blocks = (uint32_t)divided_up(elements, block);
    return cut;
}

gr_ps_cut gr_ps_cut_table(void)
{
    return (gr_ps_cut){.blocks = GR_PS_TABLE_BLOCKS};
}

uint64_t gr_ps_block_first(const gr_ps_cut *cut, uint32_t block)
{
    return (uint64_t)block * cut->block;
}

uint32_t gr_ps_block_count(const gr_ps_cut *cut, uint32_t block)
{
    uint64_t left = cut->elements - gr_ps_block_first(cut, block);
    return left < cut->block ? (uint32_t)left : cut->block;
}

int gr_ps_slot(uint64_t key, uint32_t block)
{
    return (int)((key % GR_PS_SLOTS + block) % GR_PS_SLOTS);
}

uint32_t gr_ps_row_block(uint64_t key, uint32_t row)
{
    uint8_t bytes[4];
    gr_put_u32(bytes, row);
    return (uint32_t)(gr_hash64(bytes, sizeof bytes, key) % GR_PS_TABLE_BLOCKS);
}

/* ---- The table ------------------------------------------------------------------------------- */

/* How many slots each server has, and each pair of primary and replica. */
typedef struct load {
    int primary[GR_PS_SERVERS_MAX], replica[GR_PS_SERVERS_MAX];
    int pair[GR_PS_SERVERS_MAX][GR_PS_SERVERS_MAX];
} load;

static void count_slot(load *l, const gr_ps_table *table, int slot, int by)
{
    int primary = table->primary[slot], replica = table->replica[slot];
    l->primary[primary] += by;
    if (replica != primary) {
        l->replica[replica] += by;
        l->pair[primary][replica] += by;
    }
}

static load load_of(const gr_ps_table *table)
{
    load l = {.primary = {0}};
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        count_slot(&l, table, slot, 1);
    }
    return l;
}

static void move(gr_ps_table *table, load *l, int slot, int primary, int replica)
{
    count_slot(l, table, slot, -1);
    table->primary[slot] = (uint8_t)primary;
    table->replica[slot] = (uint8_t)replica;
    count_slot(l, table, slot, 1);
}

/* Primaries go round the servers, and so do the replicas of each primary's slots. */
void gr_ps_table_init(gr_ps_table *table, int servers)
{
    *table = (gr_ps_table){.servers = servers, .added = -1};
    for (int server = 0; server < servers; server++) {
        table->alive[server] = true;
    }
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        int primary = slot % servers;
        int distance = servers > 1 ? 1 + slot / servers % (servers - 1) : 0;
        table->primary[slot] = (uint8_t)primary;
        table->replica[slot] = (uint8_t)((primary + distance) % servers);
    }
}

void gr_ps_table_init_single(gr_ps_table *table, int servers)
{
    gr_ps_table_init(table, servers);
    memcpy(table->replica, table->primary, sizeof table->replica);
}

bool gr_ps_table_replicated(const gr_ps_table *table)
{
    return memcmp(table->replica, table->primary, sizeof table->replica) != 0;
}

uint32_t gr_ps_table_mask(const gr_ps_table *table)
{
    uint32_t mask = 0;
    for (int server = 0; server < table->servers; server++) {
        mask |= table->alive[server] ? UINT32_C(1) << server : 0;
    }
    return mask;
}

int gr_ps_table_living(const gr_ps_table *table)
{
    int living = 0;
    for (int server = 0; server < table->servers; server++) {
        living += table->alive[server];
    }
    return living;
}

/* The replica for one more slot of `primary`: who is that for the fewest of its slots, then for the
 * fewest of all, then the next in number. The primary itself if nobody else lives. */
static int best_replica(const gr_ps_table *table, const load *l, int primary)
{
    int best = primary;
    for (int i = 1; i < table->servers; i++) {
        int other = (primary + i) % table->servers;
        if (!table->alive[other]) {
            continue;
        }
        int more = best == primary ? -1 : l->pair[primary][other] - l->pair[primary][best];
        if (more < 0 || (more == 0 && l->replica[other] < l->replica[best])) {
            best = other;
        }
    }
    return best;
}

bool gr_ps_table_lose(gr_ps_table *table, int server)
{
    if (server < 0 || server >= table->servers || !table->alive[server] ||
        gr_ps_table_living(table) == 1) {
        return false;
    }
    table->alive[server] = false;
    table->added = -1;
    table->epoch++;
    load l = load_of(table);
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        int primary = table->primary[slot], replica = table->replica[slot];
        if (primary == server || replica == server) {
            int heir = primary == server ? replica : primary;
            move(table, &l, slot, heir, best_replica(table, &l, heir));
        }
    }
    return true;
}

bool gr_ps_table_add(gr_ps_table *table, int server, uint64_t incarnation)
{
    if (server < 0 || server >= table->servers || table->alive[server] || incarnation == 0) {
        return false;
    }
    table->alive[server] = true;
    table->incarnation[server] = incarnation;
    table->added = server;
    table->epoch++;
    load l = load_of(table);
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        int primary = table->primary[slot];
        if (table->replica[slot] == primary) {
            move(table, &l, slot, primary, best_replica(table, &l, primary));
        }
    }
    return true;
}

bool gr_ps_table_keeps(const gr_ps_table *before, const gr_ps_table *after, int server)
{
    return before->alive[server] && after->alive[server] &&
           before->incarnation[server] == after->incarnation[server];
}

bool gr_ps_table_sound(const gr_ps_table *table)
{
    if (table->servers < 1 || table->servers > GR_PS_SERVERS_MAX || table->added < -1 ||
        table->added >= table->servers ||
        (table->added >= 0 &&
         (!table->alive[table->added] || table->incarnation[table->added] == 0))) {
        return false;
    }
    int living = gr_ps_table_living(table);
    bool several = living > 1 && (living < table->servers || gr_ps_table_replicated(table));
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        int primary = table->primary[slot], replica = table->replica[slot];
        if (primary >= table->servers || replica >= table->servers || !table->alive[primary] ||
            !table->alive[replica] || (primary != replica) != several) {
            return false;
        }
    }
    return true;
}
