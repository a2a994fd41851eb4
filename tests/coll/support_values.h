/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_VALUES_H
#define GR_TESTS_COLL_SUPPORT_VALUES_H

/* Contributions that depend on nothing but their number, and the serial evaluation of the shard
 * tree that every exact algorithm must reproduce bit for bit. */

#include <gradus/comm.h>
#include <stdbool.h>

/* Which types can be reduced how, as the public header says it. */
bool vals_reducible(gr_dtype dtype, gr_redop op);
bool vals_complex(gr_dtype dtype);

/* `small`: whole numbers so small that any order of additions gives the same bits. */
void vals_fill(void *out, gr_dtype dtype, size_t count, uint64_t seed, int shard, bool small);
/* The reduction of the shards [first, first + count) of the tree over them. */
void vals_subtree(void *out, gr_dtype dtype, gr_redop op, size_t elements, uint64_t seed, int first,
                  int count, bool small);
/* The whole result, divided for GR_AVERAGE. */
void vals_expect(void *out, gr_dtype dtype, gr_redop op, size_t elements, uint64_t seed, int shards,
                 bool small);

#endif
