/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/task.h"
#include "base/fail.h"
#include "coll/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { WHY_BYTES = 320 };

/* Whose call it is, for the sentences. */
typedef struct caller {
    const gr_call *call;
    int rank, size;
    gr_diag *diag;
} caller;

static gr_status refuse(const caller *who, const char *format, ...) GR_PRINTF(2, 3);

static gr_status refuse(const caller *who, const char *format, ...)
{
    char why[WHY_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const gr_call *call = who->call;
    bool known = (unsigned)call->coll < GR_COLL_COUNT;
    return gr_fail(who->diag, GR_E_INVALID, "%s%s%.48s%s%s%.64s on rank %d: %s",
                   known ? gr_coll_name(call->coll) : "a call", call->name ? " \"" : "",
                   call->name ? call->name : "", call->name ? "\"" : "", call->site ? " at " : "",
                   call->site ? call->site : "", who->rank, why);
}

/* ---- What a call may say --------------------------------------------------------------------- */
typedef struct rules {
    bool reduces, blocks, root, in, out;
} rules;

static const rules rules_of[GR_COLL_COUNT] = {
    [GR_COLL_ALLREDUCE] = {.reduces = true, .in = true, .out = true},
    [GR_COLL_REDUCE_SCATTER] = {.reduces = true, .blocks = true, .in = true, .out = true},
    [GR_COLL_ALLGATHER] = {.blocks = true, .in = true, .out = true},
    [GR_COLL_BROADCAST] = {.root = true, .in = true, .out = true},
    [GR_COLL_REDUCE] = {.reduces = true, .root = true, .in = true, .out = true},
    [GR_COLL_GATHER] = {.blocks = true, .root = true, .in = true, .out = true},
    [GR_COLL_SCATTER] = {.blocks = true, .root = true, .in = true, .out = true},
    [GR_COLL_ALLTOALL] = {.blocks = true, .in = true, .out = true},
    [GR_COLL_SEND] = {.root = true, .in = true},
    [GR_COLL_RECV] = {.root = true, .out = true},
};

static gr_status check_kinds(const caller *who)
{
    const gr_call *call = who->call;
    if ((unsigned)call->coll >= GR_COLL_COUNT) {
        return refuse(who, "coll is %d, which is no gr_coll", (int)call->coll);
    }
    const rules *rule = &rules_of[call->coll];
    if ((unsigned)call->dtype >= GR_DTYPE_COUNT) {
        return refuse(who, "the type of the elements is %d, which is no gr_dtype",
                      (int)call->dtype);
    }
    if (rule->reduces && (unsigned)call->op >= GR_REDOP_COUNT) {
        return refuse(who, "the operation is %d, which is no gr_redop", (int)call->op);
    }
    if (rule->root && (call->root < 0 || call->root >= who->size)) {
        return refuse(who, "%s is %d, but ranks are 0 .. %d",
                      call->coll == GR_COLL_SEND || call->coll == GR_COLL_RECV ? "the peer (root)"
                                                                               : "the root",
                      call->root, who->size - 1);
    }
    if ((call->coll == GR_COLL_SEND || call->coll == GR_COLL_RECV) && call->root == who->rank) {
        return refuse(who, "a rank cannot send to itself, nor receive from itself");
    }
    if (call->tag != 0 && call->coll != GR_COLL_SEND && call->coll != GR_COLL_RECV) {
        return refuse(who, "only send and recv have a tag");
    }
    if (rule->reduces && call->op == GR_USER && !call->reduce) {
        return refuse(who, "GR_USER needs a function: set `reduce`");
    }
    if (call->reduce && (!rule->reduces || call->op != GR_USER)) {
        return refuse(who, "`reduce` is set, but op is not GR_USER, so it would not be called");
    }
    return GR_OK;
}

static gr_status take_factor(const caller *who, const char *what, double factor, double *out)
{
    *out = factor == 0 ? 1 : factor;
    if (!isfinite(factor)) {
        return refuse(who, "%s is not finite", what);
    }
    if (*out != 1 && !rules_of[who->call->coll].reduces) {
        return refuse(who, "%s is given, but nothing is reduced", what);
    }
    return GR_OK;
}

static gr_status check_shards(const caller *who, gr_task *task)
{
    const gr_call *call = who->call;
    task->shards = call->shards == 0 ? who->size : call->shards;
    if (call->coll != GR_COLL_ALLREDUCE) {
        return call->shards == 0 && !call->partials
                   ? GR_OK
                   : refuse(who, "only allreduce goes over shards");
    }
    if (call->shards < 0 || call->shards > GR_TASK_SHARDS_MAX) {
        return refuse(who, "the number of shards is %d, but must be 1 .. %d", call->shards,
                      GR_TASK_SHARDS_MAX);
    }
    if (call->partials && (call->in || call->out)) {
        return refuse(who, "partials are the buffers of an allreduce over shards: in and out must "
                           "be NULL");
    }
    if (call->shards != 0 && !call->partials && call->count > 0) {
        return refuse(who, "shards are given, but `partials` is NULL");
    }
    return GR_OK;
}

/* ---- Counts ---------------------------------------------------------------------------------- */
static gr_status add_counts(const caller *who, const size_t *counts, size_t *sum_out)
{
    size_t sum = 0;
    for (int i = 0; i < who->size; i++) {
        if (counts[i] > GR_TASK_COUNT_MAX - sum) {
            return refuse(who, "the counts add up to more than 2^38 - 1 elements at rank %d", i);
        }
        sum += counts[i];
    }
    *sum_out = sum;
    return GR_OK;
}

static gr_status check_counts(const caller *who, gr_task *task)
{
    const gr_call *call = who->call;
    const rules *rule = &rules_of[call->coll];
    size_t parts = rule->blocks ? (size_t)who->size : 1;
    task->by_block = rule->blocks;
    task->uneven = call->counts != NULL;
    if (call->recv_counts && (call->coll != GR_COLL_ALLTOALL || !call->counts)) {
        return refuse(who, "recv_counts are for alltoall with counts only");
    }
    if (!call->counts) {
        size_t all;
        if (__builtin_mul_overflow(call->count, parts, &all) || all > GR_TASK_COUNT_MAX) {
            return refuse(who, "the count is %zu, too large: at most 2^38 - 1 elements in all",
                          call->count);
        }
        bool barrier = call->coll == GR_COLL_BARRIER;
        task->count = barrier ? 0 : call->count;
        task->all_elements = barrier ? 0 : all;
        task->input_elements = task->user_elements = task->all_elements;
        return GR_OK;
    }
    if (!rule->blocks) {
        return refuse(who, "counts by rank make no sense here: set `count`");
    }
    if (call->coll == GR_COLL_ALLTOALL && !call->recv_counts) {
        return refuse(who, "alltoall with counts needs recv_counts too");
    }
    task->input_counts = call->counts;
    task->user_counts = call->recv_counts ? call->recv_counts : call->counts;
    gr_status status = add_counts(who, task->input_counts, &task->input_elements);
    if (status == GR_OK) {
        status = add_counts(who, task->user_counts, &task->user_elements);
    }
    task->all_elements = task->user_elements;
    return status;
}

/* ---- Buffers --------------------------------------------------------------------------------- */
static size_t block_elements(const gr_task *task, const size_t *counts, int block)
{
    return counts ? counts[block] : task->count;
}

static size_t elements_before(const gr_task *task, const size_t *counts, int block)
{
    size_t sum = 0;
    for (int i = 0; counts && i < block; i++) {
        sum += counts[i];
    }
    return counts ? sum : task->count * (size_t)block;
}

/* Own block of `whole`: where it stands. */
static const void *own_place(const gr_task *task, const size_t *counts, const void *whole, int rank)
{
    size_t bytes = elements_before(task, counts, rank) * gr_dtype_bytes(task->call->dtype);
    return (const uint8_t *)whole + bytes;
}

/* `in` may be NULL since it has no elements, and not because the rank's own stand in `out`. */
static bool gives_nothing(const gr_task *task, int rank)
{
    const gr_call *call = task->call;
    return task->uneven && ((call->coll == GR_COLL_ALLTOALL && task->input_elements == 0) ||
                            (call->coll == GR_COLL_GATHER && call->counts[rank] == 0));
}

/* Which buffers there are: reduces call->in and call->out to task->input and task->user. */
static void place_buffers(const caller *who, gr_task *task)
{
    static const char nothing = 0;
    const gr_call *call = who->call;
    int rank = who->rank;
    bool at_root = rules_of[call->coll].root && call->root == rank;
    const void *in = !call->in && gives_nothing(task, rank) ? &nothing : call->in;
    void *out = call->out;
    task->input_only = task->user_only = -1;
    switch (call->coll) {
    case GR_COLL_ALLGATHER:
        in = out && in == own_place(task, task->user_counts, out, rank) ? NULL : in;
        task->input_only = rank;
        break;
    case GR_COLL_GATHER:
        in = out && in == own_place(task, task->user_counts, out, rank) ? NULL : in;
        task->input_only = rank;
        if (!at_root && in) { /* it has its own block and nothing else */
            out = NULL;
        }
        break;
    case GR_COLL_REDUCE_SCATTER:
        if (in && out == own_place(task, task->input_counts, in, rank)) {
            out = (void *)(uintptr_t)in;
            in = NULL;
        }
        task->user_only = in ? rank : -1;
        break;
    case GR_COLL_SCATTER:
        if (at_root && in && out == own_place(task, task->input_counts, in, rank)) {
            out = (void *)(uintptr_t)in;
            in = NULL;
        }
        in = at_root ? in : NULL;
        task->user_only = at_root && !in ? -1 : rank;
        break;
    case GR_COLL_BROADCAST:
        in = at_root && in != out ? in : NULL;
        break;
    case GR_COLL_SEND:
        out = NULL;
        break;
    case GR_COLL_RECV:
        in = NULL;
        break;
    case GR_COLL_REDUCE:
        in = in == out ? NULL : in;
        if (!at_root && in) {
            out = NULL;
        }
        break;
    default:
        in = in == out ? NULL : in;
        break;
    }
    task->input = in;
    task->user = out;
}

/* Elements that each buffer of this rank must hold. */
static void size_buffers(const caller *who, gr_task *task)
{
    const gr_call *call = who->call;
    int rank = who->rank;
    bool at_root = call->root == rank;
    if (task->input_only >= 0) {
        task->input_elements = block_elements(task, task->input_counts, rank);
    }
    if (task->user_only >= 0) {
        task->user_elements = block_elements(task, task->user_counts, rank);
    }
    switch (call->coll) {
    case GR_COLL_REDUCE:
    case GR_COLL_GATHER:
        task->user_elements = at_root || !task->input ? task->user_elements : 0;
        break;
    case GR_COLL_SCATTER:
    case GR_COLL_BROADCAST:
        task->input_elements = at_root ? task->input_elements : 0;
        break;
    case GR_COLL_SEND:
        task->user_elements = 0;
        break;
    case GR_COLL_RECV:
        task->input_elements = 0;
        break;
    default:
        break;
    }
}

static gr_range range_of(const void *at, size_t bytes)
{
    uintptr_t first = (uintptr_t)at;
    return (gr_range){.first = first, .end = at ? first + bytes : first};
}

static gr_status check_partials(const caller *who, gr_task *task)
{
    int partials = gr_task_partials(task, who->rank, who->size);
    void *const *all = task->call->partials;
    size_t bytes = task->count * gr_dtype_bytes(task->call->dtype);
    for (int i = 0; i < partials && task->count > 0; i++) {
        if (!all[i]) {
            return refuse(who, "partials[%d] is NULL though the count is %zu", i, task->count);
        }
        for (int k = 0; k < i; k++) {
            if (gr_ranges_meet(range_of(all[k], bytes), range_of(all[i], bytes))) {
                return refuse(who, "partials[%d] and partials[%d] overlap", k, i);
            }
        }
    }
    return GR_OK;
}

static gr_status check_buffers(const caller *who, gr_task *task)
{
    const gr_call *call = who->call;
    if (call->partials) {
        return check_partials(who, task);
    }
    bool sends = call->coll == GR_COLL_SEND;
    task->out_of_place = task->input != NULL;
    bool needs_input = sends || (call->coll == GR_COLL_SCATTER && !task->user);
    if (needs_input && task->input_elements > 0 && !task->input) {
        return refuse(who, "in is NULL though there are %zu elements", task->input_elements);
    }
    if (task->user_elements > 0 && !task->user) {
        return refuse(who, "out is NULL though there are %zu elements", task->user_elements);
    }
    if (call->coll == GR_COLL_ALLTOALL && !task->out_of_place && task->uneven) {
        for (int i = 0; i < who->size; i++) {
            if (call->counts[i] != call->recv_counts[i]) {
                return refuse(who,
                              "in place, what is sent to rank %d (%zu elements) must be as much as "
                              "what comes from it (%zu)",
                              i, call->counts[i], call->recv_counts[i]);
            }
        }
    }
    size_t bytes = gr_dtype_bytes(call->dtype);
    task->reads = range_of(task->input, task->input_elements * bytes);
    task->writes = range_of(task->user, task->user_elements * bytes);
    if (gr_ranges_meet(task->reads, task->writes)) {
        return refuse(who, "in and out overlap; for in place pass in = NULL");
    }
    if (call->coll == GR_COLL_BROADCAST && call->root == who->rank && !task->input) {
        task->reads = task->writes; /* the root's data stay as they are */
        task->writes = (gr_range){.first = 0};
    }
    return GR_OK;
}

int gr_task_partials(const gr_task *task, int rank, int size)
{
    return task->call->partials ? gr_shard_partials(task->shards, size, rank) : 0;
}

gr_status gr_task_init(gr_task *task, const gr_call *call, int rank, int size, gr_diag *diag)
{
    caller who = {.call = call, .rank = rank, .size = size, .diag = diag};
    /* What is not set below always; one store each costs less than to clear it all. */
    task->call = call;
    task->out_of_place = false;
    task->count = 0;
    task->input_counts = NULL;
    task->user_counts = NULL;
    task->reads = (gr_range){.first = 0};
    task->writes = (gr_range){.first = 0};
    gr_status status = check_kinds(&who);
    if (status != GR_OK) {
        return status;
    }
    task->reduces = rules_of[call->coll].reduces;
    status = take_factor(&who, "prescale", call->prescale, &task->prescale);
    if (status == GR_OK) {
        status = take_factor(&who, "postscale", call->postscale, &task->postscale);
    }
    if (status == GR_OK) {
        status = check_shards(&who, task);
    }
    if (status == GR_OK) {
        status = check_counts(&who, task);
    }
    if (status != GR_OK) {
        return status;
    }
    place_buffers(&who, task);
    size_buffers(&who, task);
    return check_buffers(&who, task);
}

/* ---- Several at once ------------------------------------------------------------------------- */
static gr_range range_at(const gr_task *task, const caller *who, int index)
{
    int partials = gr_task_partials(task, who->rank, who->size);
    if (index < partials) {
        return range_of(task->call->partials[index],
                        task->count * gr_dtype_bytes(task->call->dtype));
    }
    return index == partials ? task->writes : task->reads;
}

/* Does `b` read or write what `a` writes? */
static bool disturbs(const gr_task *a, const gr_task *b, const caller *who)
{
    int writes_of_a = gr_task_partials(a, who->rank, who->size) + 1;
    int all_of_b = gr_task_partials(b, who->rank, who->size) + 2;
    for (int i = 0; i < writes_of_a; i++) {
        for (int k = 0; k < all_of_b; k++) {
            if (gr_ranges_meet(range_at(a, who, i), range_at(b, who, k))) {
                return true;
            }
        }
    }
    return false;
}

gr_status gr_tasks_apart(const gr_task *tasks, int count, int rank, int size, gr_diag *diag)
{
    for (int i = 0; i < count; i++) {
        caller who = {.call = tasks[i].call, .rank = rank, .size = size, .diag = diag};
        for (int k = 0; k < count; k++) {
            if (i != k && disturbs(&tasks[i], &tasks[k], &who)) {
                return refuse(&who, "call %d of the group writes memory that call %d uses", i, k);
            }
        }
    }
    return GR_OK;
}
