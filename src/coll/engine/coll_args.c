/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/coll_args.h"
#include "base/fail.h"
#include "coll/plan/plan.h"
#include "coll/plan/traits.h"
#include "coll/reduce/reduce.h"

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
static gr_status check_reduction(const caller *who)
{
    const gr_call *call = who->call;
    if ((unsigned)call->op >= GR_REDOP_COUNT) {
        return refuse(who, "the operation is %d, which is no gr_redop", (int)call->op);
    }
    if (!gr_dtype_reduces(call->dtype, call->op)) {
        char those[128];
        gr_dtype_list_reductions(call->dtype, those, sizeof those);
        return refuse(who, "%s cannot be reduced by %s, only by %s", gr_dtype_name(call->dtype),
                      gr_redop_name(call->op), those);
    }
    if (call->op == GR_USER && !call->reduce) {
        return refuse(who, "GR_USER needs a function: set `reduce`");
    }
    return GR_OK;
}

static gr_status check_kinds(const caller *who)
{
    const gr_call *call = who->call;
    if ((unsigned)call->coll >= GR_COLL_COUNT) {
        return refuse(who, "coll is %d, which is no gr_coll", (int)call->coll);
    }
    const gr_coll_traits *traits = &gr_coll_traits_of[call->coll];
    if ((unsigned)call->dtype >= GR_DTYPE_COUNT) {
        return refuse(who, "the type of the elements is %d, which is no gr_dtype",
                      (int)call->dtype);
    }
    gr_status status = traits->reduces ? check_reduction(who) : GR_OK;
    if (status != GR_OK) {
        return status;
    }
    bool receives = call->coll == GR_COLL_RECV;
    bool any = receives && call->root == GR_ANY_SOURCE;
    if (traits->rooted && !any && (call->root < 0 || call->root >= who->size)) {
        return refuse(who, "%s is %d, but ranks are 0 .. %d",
                      traits->message ? "the peer (root)" : "the root", call->root, who->size - 1);
    }
    if (call->tag != 0 && !traits->message) {
        return refuse(who, "only send and recv have a tag");
    }
    if (call->tag == GR_ANY_TAG && !receives) {
        return refuse(who, "GR_ANY_TAG is for recv: a message is sent with one tag");
    }
    if (call->source_out && !receives) {
        return refuse(who, "source_out is for recv");
    }
    if (call->reduce && (!traits->reduces || call->op != GR_USER)) {
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
    if (*out != 1 && !gr_coll_traits_of[who->call->coll].reduces) {
        return refuse(who, "%s is given, but nothing is reduced", what);
    }
    if (*out != 1 && !gr_dtype_scales(who->call->dtype)) {
        return refuse(who, "%s is given, but %s cannot be multiplied", what,
                      gr_dtype_name(who->call->dtype));
    }
    if (*out != 1 && !gr_dtype_holds_factor(who->call->dtype, factor)) {
        return refuse(who, "%s is %g, but %s is multiplied in f32, where that is %g", what, factor,
                      gr_dtype_name(who->call->dtype), (double)(float)factor);
    }
    return GR_OK;
}

static gr_status check_shards(const caller *who, gr_coll_args *args)
{
    const gr_call *call = who->call;
    args->shards = call->shards == 0 ? who->size : call->shards;
    if (call->coll != GR_COLL_ALLREDUCE) {
        return call->shards == 0 && !call->partials
                   ? GR_OK
                   : refuse(who, "only allreduce goes over shards");
    }
    if (call->shards < 0 || call->shards > GR_COLL_ARGS_SHARDS_MAX) {
        return refuse(who, "the number of shards is %d, but must be 1 .. %d", call->shards,
                      GR_COLL_ARGS_SHARDS_MAX);
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
        if (counts[i] > GR_COLL_ARGS_COUNT_MAX - sum) {
            return refuse(who, "the counts add up to more than 2^38 - 1 elements at rank %d", i);
        }
        sum += counts[i];
    }
    *sum_out = sum;
    return GR_OK;
}

static gr_status check_counts(const caller *who, gr_coll_args *args)
{
    const gr_call *call = who->call;
    const gr_coll_traits *traits = &gr_coll_traits_of[call->coll];
    size_t parts = traits->blocks ? (size_t)who->size : 1;
    args->by_block = traits->blocks;
    args->uneven = call->counts != NULL;
    if (call->recv_counts && (call->coll != GR_COLL_ALLTOALL || !call->counts)) {
        return refuse(who, "recv_counts are for alltoall with counts only");
    }
    if (!call->counts) {
        size_t all;
        if (__builtin_mul_overflow(call->count, parts, &all) || all > GR_COLL_ARGS_COUNT_MAX) {
            return refuse(who, "the count is %zu, too large: at most 2^38 - 1 elements in all",
                          call->count);
        }
        bool barrier = call->coll == GR_COLL_BARRIER;
        args->count = barrier ? 0 : call->count;
        args->all_elements = barrier ? 0 : all;
        args->input_elements = args->user_elements = args->all_elements;
        return GR_OK;
    }
    if (!traits->blocks) {
        return refuse(who, "counts by rank make no sense here: set `count`");
    }
    if (call->coll == GR_COLL_ALLTOALL && !call->recv_counts) {
        return refuse(who, "alltoall with counts needs recv_counts too");
    }
    args->input_counts = call->counts;
    args->user_counts = call->recv_counts ? call->recv_counts : call->counts;
    size_t out = args->input_counts[who->rank], in = args->user_counts[who->rank];
    if (out != in) {
        return refuse(who,
                      "the rank's own block has %zu elements on its way out and %zu on its way in",
                      out, in);
    }
    gr_status status = add_counts(who, args->input_counts, &args->input_elements);
    if (status == GR_OK) {
        status = add_counts(who, args->user_counts, &args->user_elements);
    }
    args->all_elements = args->user_elements;
    return status;
}

/* ---- Buffers --------------------------------------------------------------------------------- */
static size_t block_elements(const gr_coll_args *args, const size_t *counts, int block)
{
    return counts ? counts[block] : args->count;
}

static size_t elements_before(const gr_coll_args *args, const size_t *counts, int block)
{
    size_t sum = 0;
    for (int i = 0; counts && i < block; i++) {
        sum += counts[i];
    }
    return counts ? sum : args->count * (size_t)block;
}

/* Returns true if the rank's own block of `whole` stands at `at`. A block of no elements stands
 * nowhere: what follows on it in memory may be anything. */
static bool is_own_block(const gr_coll_args *args, const size_t *counts, const void *whole,
                         const void *at, int rank)
{
    size_t bytes = elements_before(args, counts, rank) * gr_dtype_bytes(args->call->dtype);
    return block_elements(args, counts, rank) > 0 && at == (const uint8_t *)whole + bytes;
}

/* `in` may be NULL since it has no elements, and not because the rank's own stand in `out`. */
static bool gives_nothing(const gr_coll_args *args, int rank)
{
    const gr_call *call = args->call;
    return args->uneven && ((call->coll == GR_COLL_ALLTOALL && args->input_elements == 0) ||
                            (call->coll == GR_COLL_GATHER && call->counts[rank] == 0));
}

/* Which buffers there are: reduces call->in and call->out to args->input and args->user. */
static void place_buffers(const caller *who, gr_coll_args *args)
{
    static const char nothing = 0;
    const gr_call *call = who->call;
    int rank = who->rank;
    bool at_root = gr_coll_traits_of[call->coll].rooted && call->root == rank;
    const void *in = !call->in && gives_nothing(args, rank) ? &nothing : call->in;
    void *out = call->out;
    args->input_only = args->user_only = -1;
    switch (call->coll) {
    case GR_COLL_ALLGATHER:
        in = out && is_own_block(args, args->user_counts, out, in, rank) ? NULL : in;
        args->input_only = rank;
        break;
    case GR_COLL_GATHER:
        in = out && is_own_block(args, args->user_counts, out, in, rank) ? NULL : in;
        args->input_only = rank;
        if (!at_root && in) { /* it has its own block and nothing else */
            out = NULL;
        }
        break;
    case GR_COLL_REDUCE_SCATTER:
        if (in && is_own_block(args, args->input_counts, in, out, rank)) {
            out = (void *)(uintptr_t)in;
            in = NULL;
        }
        args->user_only = in ? rank : -1;
        break;
    case GR_COLL_SCATTER:
        if (at_root && in && is_own_block(args, args->input_counts, in, out, rank)) {
            out = (void *)(uintptr_t)in;
            in = NULL;
        }
        in = at_root ? in : NULL;
        args->user_only = at_root && !in ? -1 : rank;
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
        if (!at_root) { /* what it gives, it only reads */
            in = in ? in : out;
            out = NULL;
        }
        break;
    default:
        in = in == out ? NULL : in;
        break;
    }
    args->input = in;
    args->user = out;
}

/* Elements that each buffer of this rank must hold. */
static void size_buffers(const caller *who, gr_coll_args *args)
{
    const gr_call *call = who->call;
    int rank = who->rank;
    bool at_root = call->root == rank;
    if (args->input_only >= 0) {
        args->input_elements = block_elements(args, args->input_counts, rank);
    }
    if (args->user_only >= 0) {
        args->user_elements = block_elements(args, args->user_counts, rank);
    }
    switch (call->coll) {
    case GR_COLL_REDUCE:
    case GR_COLL_GATHER:
        args->user_elements = at_root || !args->input ? args->user_elements : 0;
        break;
    case GR_COLL_SCATTER:
    case GR_COLL_BROADCAST:
        args->input_elements = at_root ? args->input_elements : 0;
        break;
    case GR_COLL_SEND:
        args->user_elements = 0;
        break;
    case GR_COLL_RECV:
        args->input_elements = 0;
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

static bool meet(gr_range a, gr_range b)
{
    return a.first < a.end && b.first < b.end && a.first < b.end && b.first < a.end;
}

gr_range gr_call_memory_range(const gr_call_memory *memory, int index)
{
    return index == 0 ? memory->writes
           : index > memory->partial_count
               ? memory->reads
               : range_of(memory->partials[index - 1], memory->partial_bytes);
}

static gr_status check_partials(const caller *who, gr_coll_args *args)
{
    gr_call_memory *memory = &args->memory;
    memory->partials = args->call->partials;
    memory->partial_bytes = args->count * gr_dtype_bytes(args->call->dtype);
    memory->partial_count =
        memory->partials ? gr_shard_partials(args->shards, who->size, who->rank) : 0;
    for (int i = 0; i < memory->partial_count && args->count > 0; i++) {
        if (!memory->partials[i]) {
            return refuse(who, "partials[%d] is NULL though the count is %zu", i, args->count);
        }
        for (int k = 0; k < i; k++) {
            if (meet(gr_call_memory_range(memory, k + 1), gr_call_memory_range(memory, i + 1))) {
                return refuse(who, "partials[%d] and partials[%d] overlap", k, i);
            }
        }
    }
    return GR_OK;
}

static gr_status check_buffers(const caller *who, gr_coll_args *args)
{
    const gr_call *call = who->call;
    if (call->partials) {
        return check_partials(who, args);
    }
    bool sends = call->coll == GR_COLL_SEND;
    args->out_of_place = args->input != NULL;
    bool needs_input = sends || (call->coll == GR_COLL_SCATTER && !args->user);
    if (needs_input && args->input_elements > 0 && !args->input) {
        return refuse(who, "in is NULL though there are %zu elements", args->input_elements);
    }
    if (args->user_elements > 0 && !args->user) {
        return refuse(who, "out is NULL though there are %zu elements", args->user_elements);
    }
    if (call->coll == GR_COLL_ALLTOALL && !args->out_of_place && args->uneven) {
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
    gr_call_memory *memory = &args->memory;
    memory->reads = range_of(args->input, args->input_elements * bytes);
    memory->writes = range_of(args->user, args->user_elements * bytes);
    if (meet(memory->reads, memory->writes)) {
        return refuse(who, "in and out overlap; for in place pass in = NULL");
    }
    if (call->coll == GR_COLL_BROADCAST && call->root == who->rank && !args->input) {
        memory->reads = memory->writes; /* the root's data stay as they are */
        memory->writes = (gr_range){.first = 0};
    }
    return GR_OK;
}

gr_status gr_coll_args_init(gr_coll_args *args, const gr_call *call, int rank, int size,
                            gr_diag *diag)
{
    caller who = {.call = call, .rank = rank, .size = size, .diag = diag};
    /* What is not set below always; one store each costs less than to clear it all. */
    args->call = call;
    args->out_of_place = false;
    args->count = 0;
    args->input_counts = NULL;
    args->user_counts = NULL;
    args->memory = (gr_call_memory){.partial_count = 0};
    gr_status status = check_kinds(&who);
    if (status != GR_OK) {
        return status;
    }
    args->reduces = gr_coll_traits_of[call->coll].reduces;
    status = take_factor(&who, "prescale", call->prescale, &args->prescale);
    if (status == GR_OK) {
        status = take_factor(&who, "postscale", call->postscale, &args->postscale);
    }
    if (status == GR_OK) {
        status = check_shards(&who, args);
    }
    if (status == GR_OK) {
        status = check_counts(&who, args);
    }
    if (status != GR_OK) {
        return status;
    }
    place_buffers(&who, args);
    size_buffers(&who, args);
    return check_buffers(&who, args);
}

bool gr_coll_is_plain(const gr_call *call, int size)
{
    return (unsigned)call->dtype < GR_DTYPE_COUNT && call->memory == GR_MEMORY_HOST &&
           call->root >= 0 && call->root < size && call->tag != GR_ANY_TAG && call->count > 0 &&
           call->count <= GR_COLL_ARGS_COUNT_MAX && !call->counts && !call->recv_counts &&
           !call->reduce && !call->partials && !call->done && !call->source_out &&
           call->shards == 0 && (call->prescale == 0 || call->prescale == 1) &&
           (call->postscale == 0 || call->postscale == 1);
}

/* ---- Several at once ------------------------------------------------------------------------- */
/* Returns true if `b` reads or writes what `a` writes. */
static bool disturbs(const gr_call_memory *a, const gr_call_memory *b)
{
    for (int i = 0; i <= a->partial_count; i++) {
        gr_range written = gr_call_memory_range(a, i);
        for (int k = 0; k <= b->partial_count + 1; k++) {
            if (meet(written, gr_call_memory_range(b, k))) {
                return true;
            }
        }
    }
    return false;
}

bool gr_call_memory_meets(const gr_call_memory *a, const gr_call_memory *b)
{
    return disturbs(a, b) || disturbs(b, a);
}

gr_status gr_coll_args_apart(const gr_coll_args *all_args, int count, int rank, int size,
                             gr_diag *diag)
{
    for (int i = 0; i < count; i++) {
        caller who = {.call = all_args[i].call, .rank = rank, .size = size, .diag = diag};
        for (int k = 0; k < count; k++) {
            if (i != k && disturbs(&all_args[i].memory, &all_args[k].memory)) {
                return refuse(&who, "call %d of the group writes memory that call %d uses", i, k);
            }
        }
    }
    return GR_OK;
}
