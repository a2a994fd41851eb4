/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_TRAITS_H
#define GR_COLL_PLAN_TRAITS_H

/* What a collective is: the one place that says which ranks give, which receive, and what. */

#include <gradus/coll.h>
#include <stdbool.h>

typedef enum gr_party { GR_PARTY_NONE, GR_PARTY_ALL, GR_PARTY_ROOT } gr_party;

typedef struct gr_coll_traits {
    const char *name;
    bool reduces;      /* contributions are added up */
    bool rooted;       /* `root` has a meaning; of a message it is the peer */
    bool message;      /* between two ranks */
    bool blocks;       /* the buffer is one block for each rank; counts by rank make sense */
    gr_party gives;    /* the ranks that contribute, ... */
    bool gives_own;    /* ... each its own block alone */
    gr_party receives; /* the ranks that get a result, ... */
    bool receives_own; /* ... each its own block alone */
} gr_coll_traits;

extern const gr_coll_traits gr_coll_traits_of[];

static inline bool gr_coll_gives(gr_coll coll, int rank, int root)
{
    gr_party party = gr_coll_traits_of[coll].gives;
    return party == GR_PARTY_ALL || (party == GR_PARTY_ROOT && rank == root);
}

static inline bool gr_coll_receives(gr_coll coll, int rank, int root)
{
    gr_party party = gr_coll_traits_of[coll].receives;
    return party == GR_PARTY_ALL || (party == GR_PARTY_ROOT && rank == root);
}

#endif
