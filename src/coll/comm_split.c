/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"
#include "coll/comm_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Every member of the parent says in one allgather what it wants and which numbers of communicators
 * it uses already; from these rows all reach the same end: the members, their order, the number, or
 * one and the same failure. */

enum { ID_WORDS = GR_COMMS_MAX / 64 };

typedef struct split_row {
    int64_t kind;  /* row_kind */
    int64_t color; /* negative: no member of any */
    int64_t key;
    int64_t list;    /* hash of the list of a sub-group: alike on all ranks */
    int64_t next_id; /* where it would look first */
    int64_t next_shm_area;
    int64_t meeting; /* gr_shm_meeting of the members; apart until links are known */
    uint64_t ids[ID_WORDS];
} split_row;
_Static_assert(sizeof(split_row) == (7 + ID_WORDS) * sizeof(int64_t), "a row has no gaps");
enum { ROW_WORDS = sizeof(split_row) / sizeof(int64_t) };

typedef enum row_kind { ROW_SPLIT = 1, ROW_SUBGROUP = 2, ROW_WRONG = 3 } row_kind;

static const char *kind_name(int64_t kind)
{
    return kind == ROW_SPLIT ? "gr_comm_split" : "gr_comm_subgroup";
}

static gr_status check_rows(const gr_comm *parent, const split_row *rows, gr_diag *diag)
{
    const split_row *own = &rows[parent->rank];
    for (int i = 0; i < parent->size; i++) {
        if (rows[i].kind == ROW_WRONG) {
            return gr_fail_peer(
                diag, GR_E_INVALID, i,
                "no sub-group is made, since the arguments of rank %d are wrong (it "
                "knows more)",
                i);
        }
    }
    for (int i = 0; i < parent->size; i++) {
        if (rows[i].kind != own->kind) {
            return gr_fail_peer(diag, GR_E_INVALID, i, "rank %d calls %s, rank %d %s", parent->rank,
                                kind_name(own->kind), i, kind_name(rows[i].kind));
        }
        if (rows[i].list != own->list) {
            return gr_fail_peer(diag, GR_E_INVALID, i,
                                "ranks %d and %d call gr_comm_subgroup with different lists; all "
                                "ranks of the parent must pass the same",
                                parent->rank, i);
        }
    }
    return GR_OK;
}

/* That all see. */
static gr_shm_meeting least_meeting(const split_row *rows, const int *members, int count)
{
    int64_t least = GR_SHM_MEET_ON_CORES;
    for (int i = 0; i < count; i++) {
        least = rows[members[i]].meeting < least ? rows[members[i]].meeting : least;
    }
    return (gr_shm_meeting)least;
}

/* An area of shared memory is never used again; a number that is too large means none. */
static int choose_shm_area(const split_row *rows, const int *members, int count)
{
    int64_t shm = 1; /* 0 is that of the whole job */
    for (int i = 0; i < count; i++) {
        shm = rows[members[i]].next_shm_area > shm ? rows[members[i]].next_shm_area : shm;
    }
    return shm < INT_MAX ? (int)shm : INT_MAX;
}

/* A number that none of the members uses. Numbers are taken in turn, so that one is not used again
 * soon. */
static int choose_id(const split_row *rows, const int *members, int count)
{
    uint64_t used[ID_WORDS] = {0};
    int64_t first = 0;
    for (int i = 0; i < count; i++) {
        const split_row *from = &rows[members[i]];
        for (int k = 0; k < ID_WORDS; k++) {
            used[k] |= from->ids[k];
        }
        first = from->next_id > first ? from->next_id : first;
    }
    for (int i = 0; i < GR_COMMS_MAX; i++) {
        int id = (int)((first + i) % GR_COMMS_MAX);
        if (!(used[id / 64] >> id % 64 & 1)) {
            return id;
        }
    }
    return -1;
}

/* The ranks of the parent with our color, in order. */
static int list_members(const gr_comm *parent, const split_row *rows, int *members)
{
    int count = 0;
    for (int i = 0; i < parent->size; i++) {
        if (rows[i].color != rows[parent->rank].color) {
            continue;
        }
        int at = count++;
        while (at > 0 && rows[members[at - 1]].key > rows[i].key) {
            members[at] = members[at - 1];
            at--;
        }
        members[at] = i;
    }
    return count;
}

/* The same rules and costs as the parent. */
static gr_status choose_as(gr_comm *comm, const gr_comm *parent, gr_diag *diag)
{
    gr_selection_config choosing = parent->context->choosing;
    choosing.world_size = comm->size;
    gr_status status = gr_selection_init(&comm->selection, &choosing, diag);
    comm->selection.forced = parent->selection.forced;
    gr_selection_adopt(&comm->selection, &parent->selection.model, &parent->selection.measured);
    return status;
}

static gr_status make(gr_comm *parent, const split_row *rows, int *members, gr_comm **comm_out,
                      gr_diag *diag)
{
    int count = list_members(parent, rows, members);
    int id = choose_id(rows, members, count);
    int shm = choose_shm_area(rows, members, count);
    gr_shm_meeting meeting = least_meeting(rows, members, count);
    if (id < 0) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "no number is free for one more communicator: %d exist among its ranks",
                       GR_COMMS_MAX);
    }
    int rank = 0;
    for (int i = 0; i < count; i++) {
        rank = members[i] == parent->rank ? i : rank;
        members[i] = parent->world[members[i]];
    }
    uint32_t serial = shm < INT_MAX ? (uint32_t)shm : 0;
    gr_status status =
        gr_comm_make(parent->context, members, count, rank, (uint16_t)id, serial, comm_out, diag);
    if (status != GR_OK) {
        return status;
    }
    parent->context->next_id = (id + 1) % GR_COMMS_MAX;
    parent->context->next_shm_area = shm < INT_MAX ? shm + 1 : INT_MAX;
    status = choose_as(*comm_out, parent, diag);
    if (status == GR_OK) {
        status = gr_comm_shm_open(*comm_out, shm, meeting, diag);
    }
    if (status != GR_OK) {
        gr_comm_unmake(*comm_out);
    }
    return status;
}

/* Entered; rows are known. */
static gr_status take_rows(gr_comm *parent, const split_row *rows, int *members, gr_comm **comm_out,
                           gr_diag *diag)
{
    gr_comm *made = NULL;
    gr_status status = check_rows(parent, rows, diag);
    if (status == GR_OK && rows[parent->rank].color >= 0) {
        status = make(parent, rows, members, &made, diag);
    }
    if (status == GR_OK) {
        *comm_out = made;
    }
    return status;
}

/* Passes on the sentence of a call on the parent that returned `status`. */
static gr_status report_last(const gr_comm *parent, gr_status status, gr_diag *diag)
{
    if (status != GR_OK && diag) {
        *diag = *(gr_status_scope(status) == GR_SCOPE_CALL ? gr_comm_last_error(parent)
                                                           : gr_comm_diag(parent));
    }
    return status;
}

/* One sub-group is made at a time: what a rank says of its numbers must stay true until it has one
 * more. */
static gr_status begin_split(gr_context *context, split_row *own)
{
    gr_status status = gr_context_enter(context, true);
    if (status == GR_OK) {
        while (context->splitting) {
            gr_context_follow(context, GR_NEVER);
        }
        context->splitting = true;
        own->next_id = context->next_id;
        own->next_shm_area = context->next_shm_area;
        memcpy(own->ids, context->ids, sizeof own->ids);
        gr_context_leave(context);
    }
    return status;
}

static gr_status exchange(gr_comm *parent, const split_row *own, split_row *rows,
                          const void *caller, gr_diag *diag)
{
    gr_call call = {.coll = GR_COLL_ALLGATHER,
                    .dtype = GR_I64,
                    .in = own,
                    .out = rows,
                    .count = ROW_WORDS,
                    .name = "gr_comm_split"};
    return report_last(parent, gr_comm_run(parent, &call, 1, caller), diag);
}

/* Who the members are is known: how they meet, as this rank sees it. */
static gr_shm_meeting see_meeting(gr_comm *parent, const split_row *rows, int *members)
{
    gr_context *context = parent->context;
    int count = list_members(parent, rows, members);
    for (int i = 0; i < count; i++) {
        members[i] = parent->world[members[i]];
    }
    gr_context_reenter(context);
    gr_shm_meeting meeting = gr_shm_coll_meet(context->mesh, count, members);
    gr_context_leave(context);
    return meeting;
}

/* Where members may see each other differently, a second round tells what each sees. */
static gr_status exchange_all(gr_comm *parent, split_row *own, split_row *rows, int *members,
                              const void *caller, gr_diag *diag)
{
    gr_mesh *mesh = parent->context->mesh;
    gr_status status = exchange(parent, own, rows, caller, diag);
    if (status != GR_OK || !mesh) {
        return status;
    }
    own->meeting = see_meeting(parent, rows, members);
    for (int i = 0; i < parent->size; i++) {
        rows[i].meeting = own->meeting;
    }
    return gr_mesh_on_demand(mesh) ? exchange(parent, own, rows, caller, diag) : GR_OK;
}

/* `wrong`: a sentence about the caller's own arguments, or NULL. The others are told even so, since
 * they would wait for this rank. */
static gr_status split(gr_comm *parent, split_row *own, const char *wrong, const void *caller,
                       gr_comm **comm_out, gr_diag *diag)
{
    gr_context *context = parent->context;
    const char *name = kind_name(own->kind);
    own->kind = wrong ? ROW_WRONG : own->kind;
    gr_status status = begin_split(context, own);
    if (status != GR_OK) {
        return report_last(parent, status, diag);
    }
    split_row *rows = calloc((size_t)parent->size, sizeof *rows);
    int *members = calloc((size_t)parent->size, sizeof *members);
    gr_diag own_diag;
    status = rows && members
                 ? exchange_all(parent, own, rows, members, caller, diag)
                 : gr_fail(diag, GR_E_NO_MEMORY, "no memory to split %d ranks", parent->size);
    bool exchanged = status == GR_OK;
    gr_context_reenter(context);
    if (exchanged) {
        status =
            wrong ? gr_fail(&own_diag, GR_E_INVALID, "%s on rank %d: %s", name, parent->rank, wrong)
                  : take_rows(parent, rows, members, comm_out, &own_diag);
    }
    if (exchanged && status != GR_OK) {
        gr_context_note(context, &own_diag);
        if (diag) {
            *diag = own_diag;
        }
    }
    context->splitting = false;
    gr_context_notify(context);
    gr_context_leave(context);
    free(members);
    free(rows);
    return status;
}

gr_status gr_comm_split(gr_comm *parent, int color, int key, gr_comm **comm_out, gr_diag *diag)
{
    if (!parent) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_split: the parent is NULL");
    }
    split_row own = {.kind = ROW_SPLIT, .color = color, .key = key};
    return split(parent, &own, comm_out ? NULL : "comm_out is NULL", __builtin_return_address(0),
                 comm_out, diag);
}

static const char *check_list(const gr_comm *parent, const int *ranks, int count)
{
    if (!ranks || count < 1 || count > parent->size) {
        return "the list must hold 1 rank or more, and each rank of the parent at most once";
    }
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            return "the list holds a number that is no rank of the parent";
        }
        for (int k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                return "the list holds a rank twice";
            }
        }
    }
    return NULL;
}

gr_status gr_comm_subgroup(gr_comm *parent, const int *ranks, int count, gr_comm **comm_out,
                           gr_diag *diag)
{
    if (!parent) {
        return gr_fail(diag, GR_E_INVALID, "gr_comm_subgroup: the parent is NULL");
    }
    const char *wrong = comm_out ? check_list(parent, ranks, count) : "comm_out is NULL";
    split_row own = {.kind = ROW_SUBGROUP, .color = -1};
    for (int i = 0; !wrong && i < count; i++) {
        if (ranks[i] == parent->rank) {
            own.color = 0;
            own.key = i;
        }
    }
    if (!wrong) {
        own.list = (int64_t)(gr_hash64(ranks, (size_t)count * sizeof *ranks, 0) | 1);
    }
    return split(parent, &own, wrong, __builtin_return_address(0), comm_out, diag);
}
