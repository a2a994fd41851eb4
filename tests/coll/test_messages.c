/* SPDX-License-Identifier: Apache-2.0 */
/* Messages match by sender, tag and communicator: in any order of calls, from any source, to the
 * rank itself, and with mistakes (support_ranks.c). */
#include "support_ranks.h"
#include <gradus/coll.h>

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { EACH = 12, TAGS = 3, RANKS = 4, ROUNDS = 8, LARGE = 300000, IN_TURN = 20 };

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (*state ^ (*state >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- Any order ------------------------------------------------------------------------------- */
typedef struct message {
    int from, to, tag, place; /* `place` among those of the same three */
    int peer;
    bool sends;
    size_t count;
    int32_t *words;
} message;

static int32_t word_of(const message *m, uint64_t seed, size_t i)
{
    return (int32_t)(seed * 31 +
                     (uint64_t)(m->from * 7919 + m->to * 104729 + m->tag * 1299709 +
                                m->place * 15485863) +
                     i);
}

static size_t count_of(const message *m, uint64_t seed)
{
    static const size_t sizes[] = {0, 1, 3, 1000, 20000, 70000, 200000};
    uint64_t state = seed ^ (uint64_t)(m->from << 12 | m->to << 8 | m->tag << 4 | m->place);
    return sizes[next_random(&state) % (sizeof sizes / sizeof sizes[0])];
}

static int add_messages(message *all, int rank, int peer, bool sends, uint64_t seed)
{
    for (int i = 0; i < EACH; i++) {
        message *m = &all[i];
        *m = (message){.from = sends ? rank : peer,
                       .to = sends ? peer : rank,
                       .tag = i % TAGS,
                       .place = i / TAGS,
                       .peer = peer,
                       .sends = sends};
        m->count = count_of(m, seed);
        m->words = malloc((m->count + 1) * sizeof *m->words);
        for (size_t k = 0; k < m->count; k++) {
            m->words[k] = sends ? word_of(m, seed, k) : -1;
        }
    }
    return EACH;
}

/* At random, but for those of one sender, receiver and tag, which keep their order. */
static void mix(message *all, int count, uint64_t seed)
{
    for (int i = count - 1; i > 0; i--) {
        int k = (int)(next_random(&seed) % (uint64_t)(i + 1));
        message m = all[i];
        all[i] = all[k];
        all[k] = m;
    }
    int places[2][RANKS][TAGS] = {{{0}}};
    for (int i = 0; i < count; i++) {
        message *at = &all[i];
        int place = places[at->sends][at->peer][at->tag]++;
        for (int k = i; k < count; k++) {
            message *other = &all[k];
            if (other->sends == at->sends && other->peer == at->peer && other->tag == at->tag &&
                other->place == place) {
                message m = *at;
                *at = *other;
                *other = m;
                break;
            }
        }
    }
}

static int run_round(gr_comm *comm, uint64_t seed)
{
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), count = 0;
    static message all[2 * RANKS * EACH];
    gr_op *ops[2 * RANKS * EACH] = {NULL}, *sum;
    float words[100] = {1};
    for (int peer = 0; peer < size; peer++) {
        count += add_messages(all + count, rank, peer, true, seed);
        count += add_messages(all + count, rank, peer, false, seed);
    }
    mix(all, count, seed * 1000 + (uint64_t)rank);
    EXPECT(gr_allreduce_start(comm, words, 100, GR_F32, GR_SUM, &sum) == GR_OK);
    for (int i = 0; i < count; i++) {
        message *m = &all[i];
        gr_call call = {.coll = m->sends ? GR_COLL_SEND : GR_COLL_RECV,
                        .dtype = GR_I32,
                        .in = m->sends ? m->words : NULL,
                        .out = m->sends ? NULL : m->words,
                        .count = m->count,
                        .root = m->peer,
                        .tag = (uint32_t)m->tag};
        EXPECT(gr_start(comm, &call, 1, &ops[i]) == GR_OK);
    }
    for (int i = 0; i < count; i++) {
        int which;
        EXPECT(gr_wait_any(ops, count, &which) == GR_OK);
    }
    EXPECT(gr_wait(sum) == GR_OK && words[0] == (float)size);
    for (int i = 0; i < count; i++) {
        for (size_t k = 0; k < all[i].count; k++) {
            EXPECT(all[i].words[k] == word_of(&all[i], seed, k));
        }
        free(all[i].words);
    }
    return 0;
}

static int run_any_order(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        if (run_round(comm, seed) != 0) {
            return 1;
        }
    }
    gr_comm_destroy(comm);
    return 0;
}

static void run_links(ranks_function *function, int first, int last, uint64_t may_die)
{
    static const char *links[] = {"shm", "tcp"};
    for (int size = first; size <= last; size++) {
        for (int i = 0; i < 2; i++) {
            ranks_job job = {
                .size = size, .link = links[i], .tune = "off", .progress = 1 + size % 2};
            assert_int_equal(ranks_run(&job, function, may_die), 0);
        }
    }
}

static void messages_in_any_order_match_by_tag(void **state)
{
    (void)state;
    run_links(run_any_order, 2, RANKS, 0);
}

/* ---- More than is kept ----------------------------------------------------------------------- */
static int run_behind_many(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { MANY = 100, COUNT = 16 << 10 };
    int rank = gr_comm_rank(comm);
    int32_t *words = calloc(MANY * COUNT, sizeof *words), last = 5;
    gr_op *ops[MANY];
    gr_call call = {.coll = rank == 0 ? GR_COLL_SEND : GR_COLL_RECV,
                    .dtype = GR_I32,
                    .count = COUNT,
                    .root = 1 - rank,
                    .tag = 1};
    gr_call behind = {.coll = call.coll,
                      .dtype = GR_I32,
                      .in = rank == 0 ? &last : NULL,
                      .out = rank == 0 ? NULL : &last,
                      .count = 1,
                      .root = 1 - rank,
                      .tag = 2};
    last = rank == 0 ? 77 : 0;
    EXPECT(rank == 0 || (gr_run(comm, &behind, 1) == GR_OK && last == 77));
    for (int i = 0; i < MANY; i++) {
        int32_t *at = words + i * COUNT;
        at[0] = at[COUNT - 1] = rank == 0 ? i : -1;
        call.in = rank == 0 ? at : NULL;
        call.out = rank == 0 ? NULL : at;
        EXPECT(gr_start(comm, &call, 1, &ops[i]) == GR_OK);
    }
    EXPECT(rank == 1 || gr_run(comm, &behind, 1) == GR_OK);
    for (int i = 0; i < MANY; i++) {
        EXPECT(gr_wait(ops[i]) == GR_OK);
        EXPECT(words[i * COUNT] == i && words[(i + 1) * COUNT - 1] == i);
    }
    free(words);
    gr_comm_destroy(comm);
    return 0;
}

static void message_behind_more_than_is_kept_arrives(void **state)
{
    (void)state;
    run_links(run_behind_many, 2, 2, 0);
}

/* ---- Any source ------------------------------------------------------------------------------ */
static gr_status receive_any(gr_comm *comm, int32_t *words, uint32_t tag, gr_message_source *source)
{
    const gr_call call = {.coll = GR_COLL_RECV,
                          .dtype = GR_I32,
                          .out = words,
                          .count = 2,
                          .root = GR_ANY_SOURCE,
                          .tag = tag,
                          .source_out = source};
    return gr_run(comm, &call, 1);
}

static gr_status send_two(gr_comm *comm, int32_t a, int32_t b, uint32_t tag)
{
    int32_t words[2] = {a, b};
    const gr_call call = {
        .coll = GR_COLL_SEND, .dtype = GR_I32, .in = words, .count = 2, .tag = tag};
    return gr_run(comm, &call, 1);
}

static int run_in_turn(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm);
    if (rank > 0) {
        for (int i = 0; i < IN_TURN; i++) {
            EXPECT(send_two(comm, rank, i, (uint32_t)(10 + i)) == GR_OK);
        }
        EXPECT(send_two(comm, rank, IN_TURN, 1) == GR_OK);
    } else {
        int32_t words[2];
        gr_message_source source;
        for (int from = 1; from < size; from++) { /* so all others are here */
            const gr_call call = {.coll = GR_COLL_RECV,
                                  .dtype = GR_I32,
                                  .out = words,
                                  .count = 2,
                                  .root = from,
                                  .tag = 1};
            EXPECT(gr_run(comm, &call, 1) == GR_OK && words[0] == from);
        }
        for (int i = 0; i < IN_TURN; i++) {
            unsigned seen = 0;
            for (int k = 1; k < size; k++) {
                EXPECT(receive_any(comm, words, GR_ANY_TAG, &source) == GR_OK);
                EXPECT(words[0] == source.rank && words[1] == i && source.tag == 10u + (unsigned)i);
                seen |= 1u << source.rank;
            }
            EXPECT(seen == (1u << size) - 2);
        }
    }
    gr_comm_destroy(comm);
    return 0;
}

static void receive_from_any_source_takes_turns(void **state)
{
    (void)state;
    run_links(run_in_turn, 2, RANKS, 0);
}

static int run_flood(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { FLOOD = 2000 };
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), got[RANKS] = {0};
    for (int i = 0; i < FLOOD && rank > 0; i++) {
        EXPECT(send_two(comm, rank, i, 3) == GR_OK);
    }
    for (int i = 0; i < FLOOD * (size - 1) && rank == 0; i++) {
        int32_t words[2];
        gr_message_source source;
        EXPECT(receive_any(comm, words, 3, &source) == GR_OK);
        EXPECT(words[0] == source.rank && words[1] == got[source.rank]++);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void floods_from_several_sources_keep_their_order(void **state)
{
    (void)state;
    run_links(run_flood, 2, RANKS, 0);
}

static int run_dying_source(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int32_t words[2];
    gr_message_source source;
    int rank = gr_comm_rank(comm);
    EXPECT(gr_barrier(comm) == GR_OK);
    if (rank == 2) {
        EXPECT(send_two(comm, 2, 0, 1) == GR_OK);
        raise(SIGKILL);
    }
    gr_status status = receive_any(comm, words, 1, &source);
    if (rank == 0) {
        EXPECT(status != GR_OK || source.rank == 2); /* the message may come before the end */
        status = status == GR_OK ? receive_any(comm, words, 1, &source) : status;
    }
    EXPECT(status == GR_E_PEER_LOST || status == GR_E_COMM_BROKEN);
    EXPECT(strstr(gr_comm_diag(comm)->text, "rank 2"));
    EXPECT(strstr(gr_comm_diag(comm)->text, "from any rank"));
    gr_comm_destroy(comm);
    return 0;
}

static int run_leaving_source(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int32_t words[2], pids[3] = {0}, rank = gr_comm_rank(comm);
    gr_message_source source;
    EXPECT(ranks_get_pids(comm, pids) == GR_OK);
    int leaving = (int)syscall(SYS_pidfd_open, pids[2], 0U); /* before the barrier: it lives */
    EXPECT(leaving >= 0);
    EXPECT(gr_barrier(comm) == GR_OK);
    if (rank == 0) {
        EXPECT(receive_any(comm, words, 1, &source) == GR_OK && source.rank == 1);
        EXPECT(send_two(comm, 0, 0, 5) == GR_OK); /* to itself */
        EXPECT(receive_any(comm, words, 5, &source) == GR_OK && source.rank == 0);
        EXPECT(receive_any(comm, words, 1, &source) == GR_E_PEER_LOST); /* nobody is left */
    } else if (rank == 1) {
        struct pollfd end = {.fd = leaving, .events = POLLIN};
        EXPECT(poll(&end, 1, -1) == 1); /* rank 2 has left */
        EXPECT(send_two(comm, 1, 0, 1) == GR_OK);
    }
    close(leaving);
    gr_comm_destroy(comm);
    return 0;
}

static void receive_from_any_source_names_the_one_that_dies(void **state)
{
    (void)state;
    run_links(run_dying_source, 3, 3, 1u << 2);
}

static void receive_from_any_source_goes_on_when_one_leaves(void **state)
{
    (void)state;
    run_links(run_leaving_source, 3, 3, 0);
}

/* ---- Mistakes -------------------------------------------------------------------------------- */
typedef struct mistake {
    gr_call calls[2]; /* by rank */
    size_t sent_before;
} mistake;

static int run_mistake(gr_comm *comm, const ranks_job *job)
{
    const mistake *wrong = job->arg;
    int rank = gr_comm_rank(comm);
    static double in[LARGE], out[LARGE];
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_call call = wrong->calls[rank];
    call.in = call.coll == GR_COLL_SEND ? in : NULL;
    call.out = call.coll == GR_COLL_SEND ? NULL : out;
    call.root = 1 - rank;
    call.site = rank == 0 ? "zero.c:1" : "one.c:2";
    for (size_t i = 0; i < wrong->sent_before; i++) { /* nobody receives these */
        const gr_call other = {
            .coll = GR_COLL_SEND, .in = in, .count = 10, .root = 1 - rank, .tag = 99};
        EXPECT(gr_run(comm, &other, 1) == GR_OK);
    }
    gr_status status = gr_run(comm, &call, 1);
    while (status == GR_OK || status == GR_PENDING) {
        status = gr_comm_poll(comm);
    }
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "zero.c:1"));
    EXPECT(strstr(gr_comm_diag(comm)->text, "one.c:2"));
    gr_comm_destroy(comm);
    return 0;
}

#define SEND_OF(n, t, type)                                                                        \
    {                                                                                              \
        .coll = GR_COLL_SEND, .count = (n), .tag = (t), .dtype = (type)                            \
    }
#define RECV_OF(n, t, type)                                                                        \
    {                                                                                              \
        .coll = GR_COLL_RECV, .count = (n), .tag = (t), .dtype = (type)                            \
    }

static void expect_mistakes(const mistake *all, size_t count)
{
    for (size_t i = 0; i < 2 * count; i++) {
        ranks_job job = {.size = 2,
                         .link = i % 2 ? "tcp" : "shm",
                         .tune = "off",
                         .progress = 2,
                         .threads = GR_THREADS_ONE,
                         .arg = &all[i / 2]};
        if (ranks_run(&job, run_mistake, 0) != 0) {
            fail_msg("mistake %zu over %s", i / 2, job.link);
        }
    }
}

static void message_of_another_count_or_type_is_a_mismatch(void **state)
{
    (void)state;
    static const mistake all[] = {
        {{SEND_OF(10, 3, GR_F32), RECV_OF(11, 3, GR_F32)}, 0},
        {{SEND_OF(10, 3, GR_F32), RECV_OF(10, 3, GR_I32)}, 0},
        {{RECV_OF(0, 3, GR_F32), SEND_OF(7, 3, GR_F32)}, 5},
        {{SEND_OF(LARGE, 3, GR_F64), RECV_OF(2 * LARGE, 3, GR_F32)}, 0},
    };
    expect_mistakes(all, sizeof all / sizeof all[0]);
}

static void messages_that_nothing_goes_with_are_named(void **state)
{
    (void)state;
    static const mistake all[] = {
        {{RECV_OF(10, 3, GR_F32), RECV_OF(10, 4, GR_F32)}, 0},
        {{RECV_OF(10, 3, GR_F32), RECV_OF(10, GR_ANY_TAG - 1, GR_F32)}, 3},
        {{SEND_OF(LARGE, 3, GR_F64), SEND_OF(LARGE, 3, GR_F64)}, 0},
        {{SEND_OF(LARGE, 3, GR_F64), RECV_OF(LARGE, 4, GR_F64)}, 0},
    };
    expect_mistakes(all, sizeof all / sizeof all[0]);
}

/* ---- Small ones in blocking calls ------------------------------------------------------------ */
/* More than the window holds one way, of which the receiver keeps the first half; then to and fro,
 * between collectives; then the number of the last message shows that each of them counted. */
static int run_small(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { KEPT = 4000, MANY = 9000, TURNS = 300, MOST = 300 };
    int rank = gr_comm_rank(comm), peer = 1 - rank;
    int32_t words[2][MOST];
    gr_call behind = {
        .coll = GR_COLL_RECV, .dtype = GR_I32, .out = words[1], .count = 1, .root = peer, .tag = 1};
    EXPECT(rank == 0 || (gr_run(comm, &behind, 1) == GR_OK && words[1][0] == -1));
    for (int i = 0; i < MANY; i++) {
        if (rank == 0 && i == KEPT) {
            words[0][0] = -1;
            behind = (gr_call){.coll = GR_COLL_SEND,
                               .dtype = GR_I32,
                               .in = words[0],
                               .count = 1,
                               .root = peer,
                               .tag = 1};
            EXPECT(gr_run(comm, &behind, 1) == GR_OK);
        }
        words[0][0] = i;
        EXPECT((rank == 0 ? gr_send(comm, words[0], 1, GR_I32, peer)
                          : gr_recv(comm, words[1], 1, GR_I32, peer)) == GR_OK);
        EXPECT(rank == 0 || words[1][0] == i);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        size_t count = 1 + (size_t)turn % MOST;
        for (size_t k = 0; k < count; k++) {
            words[0][k] = turn * 7 + rank + (int32_t)k;
        }
        const gr_call both[2] = {{.coll = turn % 2 ? GR_COLL_RECV : GR_COLL_SEND,
                                  .dtype = GR_I32,
                                  .in = turn % 2 ? NULL : words[0],
                                  .out = turn % 2 ? words[1] : NULL,
                                  .count = count,
                                  .root = peer,
                                  .tag = (uint32_t)turn},
                                 {.coll = turn % 2 ? GR_COLL_SEND : GR_COLL_RECV,
                                  .dtype = GR_I32,
                                  .in = turn % 2 ? words[0] : NULL,
                                  .out = turn % 2 ? NULL : words[1],
                                  .count = count,
                                  .root = peer,
                                  .tag = (uint32_t)turn}};
        EXPECT(gr_run(comm, both, 2) == GR_OK);
        for (size_t k = 0; k < count; k++) {
            EXPECT(words[1][k] == turn * 7 + peer + (int32_t)k);
        }
        int32_t sum = 1;
        EXPECT(turn % 5 != 0 || (gr_allreduce(comm, &sum, 1, GR_I32, GR_SUM) == GR_OK && sum == 2));
    }
    EXPECT((rank == 0 ? gr_send(comm, words[0], 1, GR_I32, peer)
                      : gr_recv(comm, words[1], 2, GR_I32, peer)) != GR_E_INVALID);
    while (gr_comm_poll(comm) == GR_OK) {
    }
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "message 9302"));
    gr_comm_destroy(comm);
    return 0;
}

static void small_messages_of_blocking_calls_count_like_all_others(void **state)
{
    (void)state;
    run_links(run_small, 2, 2, 0);
}

static int run_overlapping(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    int32_t words[3] = {1, 2, 3};
    gr_call both[2] = {
        {.coll = GR_COLL_SEND, .dtype = GR_I32, .in = words, .count = 2, .root = 1 - rank},
        {.coll = GR_COLL_RECV, .dtype = GR_I32, .out = words + 1, .count = 2, .root = 1 - rank}};
    EXPECT(gr_run(comm, both, 2) == GR_E_INVALID);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "writes memory that call"));
    both[0].in = words + 3 - 2;
    both[1].out = words;
    both[1].count = 1;
    both[0].count = 1;
    EXPECT(gr_run(comm, both, 2) == GR_OK && words[0] == 2);
    gr_comm_destroy(comm);
    return 0;
}

static void messages_of_one_call_whose_buffers_overlap_are_refused(void **state)
{
    (void)state;
    run_links(run_overlapping, 2, 2, 0);
}

/* ---- To itself ------------------------------------------------------------------------------- */
static int run_self(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    static double out[LARGE], in[LARGE];
    gr_op *op;
    for (int i = 0; i < LARGE; i++) {
        out[i] = i + rank;
    }
    EXPECT(gr_recv(comm, in, 1, GR_F64, rank) == GR_E_INVALID);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "to itself"));
    EXPECT(gr_send(comm, out, LARGE, GR_F64, rank) == GR_E_INVALID);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "start the receive first"));
    for (int i = 0; i < 3; i++) {
        EXPECT(gr_send(comm, out + i, 5, GR_F64, rank) == GR_OK); /* is kept */
    }
    for (int i = 0; i < 3; i++) {
        EXPECT(gr_recv(comm, in, 5, GR_F64, rank) == GR_OK && in[4] == i + 4 + rank);
    }
    EXPECT(gr_recv_start(comm, in, LARGE, GR_F64, rank, &op) == GR_OK);
    EXPECT(gr_send(comm, out, LARGE, GR_F64, rank) == GR_OK && gr_wait(op) == GR_OK);
    EXPECT(memcmp(in, out, sizeof in) == 0);
    memset(in, 0, sizeof in);
    EXPECT(gr_send_start(comm, out, LARGE, GR_F64, rank, &op) == GR_OK);
    EXPECT(gr_test(op) == GR_PENDING);
    EXPECT(gr_recv(comm, in, LARGE, GR_F64, GR_ANY_SOURCE) == GR_OK && gr_wait(op) == GR_OK);
    EXPECT(memcmp(in, out, sizeof in) == 0);
    memset(in, 0, sizeof in);
    const gr_call both[2] = {
        {.coll = GR_COLL_SEND, .dtype = GR_F64, .in = out, .count = LARGE, .root = rank},
        {.coll = GR_COLL_RECV, .dtype = GR_F64, .out = in, .count = LARGE, .root = rank}};
    EXPECT(gr_run(comm, both, 2) == GR_OK && memcmp(in, out, sizeof in) == 0);
    EXPECT(gr_barrier(comm) == GR_OK);
    return 0;
}

static void count_done(gr_status status, void *count)
{
    *(int *)count += status == GR_OK ? 1 : 100;
}

/* All the same in a communicator of one rank: persistent, with a callback, beside a collective in
 * one group of calls, with a wait that times out, and at the end. */
static int run_one(gr_comm *comm)
{
    double out[3] = {1, 2, 3}, in[3] = {0};
    gr_op *ops[2], *op;
    gr_message_source source = {.rank = -1};
    int done = 0;
    const gr_call receive = {.coll = GR_COLL_RECV,
                             .dtype = GR_F64,
                             .out = in,
                             .count = 3,
                             .root = GR_ANY_SOURCE,
                             .tag = GR_ANY_TAG,
                             .source_out = &source};
    const gr_call send = {.coll = GR_COLL_SEND, .dtype = GR_F64, .in = out, .count = 3, .tag = 9};
    EXPECT(gr_op_create(comm, &send, &ops[0]) == GR_OK);
    EXPECT(gr_op_create(comm, &receive, &ops[1]) == GR_OK);
    for (int round = 0; round < 2; round++) {
        in[2] = 0;
        EXPECT(gr_op_start(ops[1 - round]) == GR_OK && gr_op_start(ops[round]) == GR_OK);
        EXPECT(gr_wait(ops[0]) == GR_OK && gr_wait(ops[1]) == GR_OK && in[2] == 3);
    }
    EXPECT(source.rank == 0 && source.tag == 9);
    gr_op_destroy(ops[0]);
    gr_op_destroy(ops[1]);
    EXPECT(gr_start(comm, &receive, 1, &op) == GR_OK);
    EXPECT(gr_wait_for(op, 1) == GR_E_TIMEOUT);
    double average[2] = {4, 8};
    const gr_call calls[3] = {{.coll = GR_COLL_ALLREDUCE,
                               .dtype = GR_F64,
                               .op = GR_SUM,
                               .out = average,
                               .count = 2,
                               .prescale = 0.5,
                               .done = count_done,
                               .done_arg = &done},
                              {.coll = GR_COLL_SEND, .dtype = GR_F64, .in = out, .count = 3},
                              {.coll = GR_COLL_BARRIER}};
    EXPECT(gr_start(comm, calls, 3, NULL) == GR_OK && average[0] == 2 && average[1] == 4);
    EXPECT(gr_wait(op) == GR_OK && gr_comm_drain(comm) == GR_OK && done == 1);
    EXPECT(gr_recv_start(comm, in, 3, GR_F64, 0, &op) == GR_OK);
    EXPECT(gr_comm_abort(comm, "enough") == GR_OK && gr_wait(op) == GR_E_ABORTED);
    EXPECT(gr_send(comm, out, 3, GR_F64, 0) == GR_E_COMM_BROKEN);
    return 0;
}

static int run_both(gr_comm *comm, const ranks_job *job)
{
    EXPECT(run_self(comm, job) == 0);
    if (job->size == 1) {
        EXPECT(run_one(comm) == 0);
        gr_comm_destroy(comm);
        return 0;
    }
    gr_comm *own = NULL;
    EXPECT(gr_comm_split(comm, gr_comm_rank(comm), 0, &own, NULL) == GR_OK);
    EXPECT(run_self(own, job) == 0 && run_one(own) == 0);
    EXPECT(gr_barrier(comm) == GR_OK); /* the sub-group has ended alone */
    gr_comm_destroy(own);
    gr_comm_destroy(comm);
    return 0;
}

/* Started, so that it cannot be refused; then waited for. */
static int run_own_hang(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    double word;
    gr_op *op = NULL;
    gr_status status = gr_barrier(comm); /* the others may be ahead, and have failed already */
    if (status == GR_OK) {
        status = gr_recv_start(comm, &word, 1, GR_F64, gr_comm_rank(comm), &op);
    }
    status = status == GR_OK ? gr_wait(op) : status;
    EXPECT(status == GR_E_COMM_BROKEN || status == GR_E_MISMATCH);
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "to itself"));
    gr_comm_destroy(comm);
    return 0;
}

static void message_to_itself_arrives_or_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_job job = {.size = i < 2 ? 2 : 1,
                         .link = i ? "tcp" : "shm",
                         .tune = "off",
                         .progress = 2,
                         .threads = GR_THREADS_ONE};
        assert_int_equal(ranks_run(&job, run_both, 0), 0);
        assert_int_equal(ranks_run(&job, run_own_hang, 0), 0);
    }
}

/* ---- Persistent ------------------------------------------------------------------------------ */
static int run_persistent(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    int32_t words[2];
    gr_op *ops[2];
    for (int i = 0; i < 2; i++) {
        const gr_call call = {.coll = rank == 0 ? GR_COLL_SEND : GR_COLL_RECV,
                              .dtype = GR_I32,
                              .in = rank == 0 ? &words[i] : NULL,
                              .out = rank == 0 ? NULL : &words[i],
                              .count = 1,
                              .root = 1 - rank,
                              .tag = (uint32_t)(i + 1)};
        EXPECT(gr_op_create(comm, &call, &ops[i]) == GR_OK);
    }
    for (int round = 0; round < 5; round++) {
        words[0] = rank == 0 ? round : -1;
        words[1] = rank == 0 ? 100 + round : -1;
        EXPECT(gr_op_start(ops[rank]) == GR_OK && gr_op_start(ops[1 - rank]) == GR_OK);
        EXPECT(gr_wait(ops[0]) == GR_OK && gr_wait(ops[1]) == GR_OK);
        EXPECT(words[0] == round && words[1] == 100 + round);
    }
    gr_op_destroy(ops[0]);
    gr_op_destroy(ops[1]);
    gr_comm_destroy(comm);
    return 0;
}

static void persistent_messages_match_by_tag(void **state)
{
    (void)state;
    run_links(run_persistent, 2, 2, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_in_any_order_match_by_tag),
        cmocka_unit_test(message_behind_more_than_is_kept_arrives),
        cmocka_unit_test(receive_from_any_source_takes_turns),
        cmocka_unit_test(floods_from_several_sources_keep_their_order),
        cmocka_unit_test(receive_from_any_source_names_the_one_that_dies),
        cmocka_unit_test(receive_from_any_source_goes_on_when_one_leaves),
        cmocka_unit_test(message_of_another_count_or_type_is_a_mismatch),
        cmocka_unit_test(messages_that_nothing_goes_with_are_named),
        cmocka_unit_test(small_messages_of_blocking_calls_count_like_all_others),
        cmocka_unit_test(messages_of_one_call_whose_buffers_overlap_are_refused),
        cmocka_unit_test(message_to_itself_arrives_or_is_refused),
        cmocka_unit_test(persistent_messages_match_by_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
