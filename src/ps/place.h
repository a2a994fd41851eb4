/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_PLACE_H
#define GR_PS_PLACE_H

/* Which server has which part of a tensor. Pure functions of a tensor's name and size and of one
 * small table: whoever holds the table knows where everything is, without asking.
 *
 * A tensor is cut into blocks. Consecutive blocks lie in consecutive slots from a start that is a
 * hash of the name, and the table says which server has a slot, and which one its replica. */

#include <stdbool.h>
#include <stdint.h>

enum {
    GR_PS_SERVERS_MAX = 16,
    /* A large tensor has as many blocks, or a multiple: one in each slot, so its share is as even
     * as the table's, whatever has become of that. 240 would do with half the blocks, and leave a
     * server with up to 1.13 of its share after many changes; 480 leaves 1.07 at most. */
    GR_PS_SLOTS = 480,
    /* Of a table of rows. Each push counts on each of them, so there are fewer: a server may have a
     * tenth more than its share. */
    GR_PS_TABLE_BLOCKS = 120
};
#define GR_PS_ELEMENTS_MAX (UINT64_C(1) << 37) /* of a tensor: 512 GiB, in 2^19 blocks */

/* `block` elements each, the last block has what is left. No blocks: a tensor of no elements, or of
 * more than GR_PS_ELEMENTS_MAX. */
typedef struct gr_ps_cut {
    uint64_t elements;
    uint32_t block; /* a multiple of 16 elements, at most 1 MiB */
    uint32_t blocks;
} gr_ps_cut;

gr_ps_cut gr_ps_cut_of(uint64_t elements);
/* Of a table: its blocks have rows as they come to be, so no number of elements is theirs. */
gr_ps_cut gr_ps_cut_table(void);
/* First element and number of elements of a block; `block` < cut->blocks. */
uint64_t gr_ps_block_first(const gr_ps_cut *cut, uint32_t block);
uint32_t gr_ps_block_count(const gr_ps_cut *cut, uint32_t block);

/* `key`: the tensor's, a hash of its name. */
int gr_ps_slot(uint64_t key, uint32_t block);
/* Of a row of a table that is kept by rows: any, so that rows that are much used together, as the
 * first ones of a vocabulary are, lie apart. */
uint32_t gr_ps_row_block(uint64_t key, uint32_t row);

typedef struct gr_ps_table {
    uint64_t epoch; /* grows by one with each change */
    int servers;    /* numbers that have been given: 0 .. servers-1 */
    int added;      /* the server that this table has and the one before did not; -1: none */
    bool alive[GR_PS_SERVERS_MAX];
    uint64_t incarnation[GR_PS_SERVERS_MAX]; /* which process has, or had, the number: 0: the first
                                              * one; else a number that it has drawn */
    uint8_t primary[GR_PS_SLOTS];
    uint8_t replica[GR_PS_SLOTS]; /* the primary itself: there is none, since one server lives, or
                                   * none is wanted */
} gr_ps_table;

/* Epoch 0 of servers 0 .. servers-1, 1 <= servers <= GR_PS_SERVERS_MAX. */
void gr_ps_table_init(gr_ps_table *table, int servers);
/* The same without replicas: no server of it can be lost. */
void gr_ps_table_init_single(gr_ps_table *table, int servers);
/* Returns true if any block has a replica. */
bool gr_ps_table_replicated(const gr_ps_table *table);

/* Where the lost one was primary its replica becomes it; where it was the replica the primary
 * stays; new replicas are spread so that whoever is lost next leaves its slots to all others
 * alike. False, and nothing changes: it does not live, or nobody else does. */
bool gr_ps_table_lose(gr_ps_table *table, int server);
/* A new process in place of a lost server. It becomes the replica of all slots that have none, and
 * has no others: to move a replica that is there would leave its blocks without one until they have
 * been copied. What the next lost server leaves comes to it as to any other. False, and nothing
 * changes: the number is not that of a lost server, or `incarnation` is 0. */
bool gr_ps_table_add(gr_ps_table *table, int server, uint64_t incarnation);
/* Returns true if the server of this number is alive in both tables, and is the same process. */
bool gr_ps_table_keeps(const gr_ps_table *before, const gr_ps_table *after, int server);

int gr_ps_table_living(const gr_ps_table *table);
/* The servers that live, a bit each. */
uint32_t gr_ps_table_mask(const gr_ps_table *table);
/* Returns true if the table is possible. For tables from elsewhere: numbers in range, primaries and
 * replicas that live, two different ones where two live, or no replica anywhere and nobody lost;
 * the added one lives. */
bool gr_ps_table_sound(const gr_ps_table *table);

#endif
