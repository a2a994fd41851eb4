/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on several hosts: every algorithm is proved there too, and the hierarchical ones are held
 * to what may pass between the hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "sanitized.h"
#include "support_plans.h"

/* What the sanitizers look for is in the plans of fewer ranks as well. */
enum { WORLD_MAX = SANITIZED ? 20 : PLANS_WORLD_MAX };

/* ---- Places ---------------------------------------------------------------------------------- */
typedef struct place {
    char words[64];
    int n;
    int host_of[PLANS_WORLD_MAX], local_rank[PLANS_WORLD_MAX], local_size[PLANS_WORLD_MAX];
    gr_topology topology;
} place;

static void number_places(place *p)
{
    p->topology = (gr_topology){0, p->host_of, p->local_rank, p->local_size};
    memset(p->local_size, 0, sizeof p->local_size);
    for (int rank = 0; rank < p->n; rank++) {
        int host = p->host_of[rank];
        p->local_rank[rank] = p->local_size[host]++;
        if (host >= p->topology.host_count) {
            p->topology.host_count = host + 1;
        }
    }
}

static void even_hosts(place *p, int n, int each)
{
    *p = (place){.n = n};
    snprintf(p->words, sizeof p->words, "%d ranks, %d a host", n, each);
    for (int rank = 0; rank < n; rank++) {
        p->host_of[rank] = rank / each;
    }
    number_places(p);
}

/* Hosts of first, first + step, first + 2 step, ... ranks, at least one. */
static void uneven_hosts(place *p, int n, int first, int step)
{
    *p = (place){.n = n};
    snprintf(p->words, sizeof p->words, "%d ranks, hosts of %d%+d ...", n, first, step);
    int host = 0;
    int left = first;
    for (int rank = 0; rank < n; rank++, left--) {
        if (left == 0) {
            host++;
            left = first + step * host > 1 ? first + step * host : 1;
        }
        p->host_of[rank] = host;
    }
    number_places(p);
}

static void dealt_hosts(place *p, int n, int hosts)
{
    *p = (place){.n = n};
    snprintf(p->words, sizeof p->words, "%d ranks dealt to %d hosts", n, hosts);
    for (int rank = 0; rank < n; rank++) {
        p->host_of[rank] = rank % hosts;
    }
    number_places(p);
}

/* ---- Proofs ---------------------------------------------------------------------------------- */
/* The subtrees whose sums a host sends: its whole subtrees, or one in any order. */
static int sums_of(const place *p, const gr_algorithm *algorithm, int host, int shards)
{
    int first = shards, end = 0;
    if (strcmp(algorithm->name, "hierarchical-any-order") == 0) {
        return 1;
    }
    for (int rank = 0; rank < p->n; rank++) {
        int begin, count;
        gr_shard_range(shards, p->n, rank, &begin, &count);
        if (p->host_of[rank] == host && count > 0) {
            first = begin < first ? begin : first;
            end = begin + count > end ? begin + count : end;
        }
    }
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    return first < end ? gr_tree_cover(shards, first, end - first, ranges) : 0;
}

typedef struct traffic {
    long out, in; /* blocks between this host and all others */
} traffic;

/* What theory allows. */
static traffic bound(const place *p, const gr_algorithm *algorithm, const gr_plan_shape *shape,
                     long blocks, int host)
{
    long own = p->local_size[host];
    long others = p->topology.host_count - 1;
    bool is_root_host = p->host_of[shape->root] == host;
    if (strstr(algorithm->name, "ring")) {
        /* Into the host at one place and out of it at one: as many blocks as a rank sends. */
        long each = (blocks - blocks / p->n) * (algorithm->coll == GR_COLL_ALLREDUCE ? 2 : 1);
        return (traffic){each, each};
    }
    traffic sums = {sums_of(p, algorithm, host, shape->shards) * (p->n - own), 0};
    for (int other = 0; other <= others; other++) {
        if (other != host) {
            sums.in += own * sums_of(p, algorithm, other, shape->shards);
        }
    }
    traffic spread = {own * others, p->n - own};
    switch (algorithm->coll) {
    case GR_COLL_ALLREDUCE:
        return (traffic){sums.out + spread.out, sums.in + spread.in};
    case GR_COLL_REDUCE_SCATTER:
        return sums;
    case GR_COLL_ALLGATHER:
        return spread;
    case GR_COLL_REDUCE:
        return (traffic){sums.out + (is_root_host ? 0 : own),
                         sums.in + (is_root_host ? p->n - own : 0)};
    default:
        return (traffic){blocks, is_root_host ? 0 : blocks};
    }
}

static void check_traffic(const place *p, const plans_world *w, const gr_algorithm *algorithm)
{
    traffic passed[PLANS_WORLD_MAX] = {{0, 0}};
    for (int rank = 0; rank < w->size; rank++) {
        const gr_plan *plan = &w->plans[rank];
        for (uint32_t i = 0; i < plan->step_count; i++) {
            const gr_step *step = &plan->steps[i];
            if (step->kind == GR_STEP_SEND && p->host_of[step->peer] != p->host_of[rank]) {
                passed[p->host_of[rank]].out++;
                passed[p->host_of[step->peer]].in++;
            }
        }
    }
    for (int host = 0; host < p->topology.host_count; host++) {
        traffic most = bound(p, algorithm, &w->plans[0].shape, (long)w->plans[0].blocks, host);
        if (passed[host].out > most.out || passed[host].in > most.in) {
            fail_msg("%s %s, %s: host %d sends %ld blocks and receives %ld, where %ld and %ld are "
                     "enough",
                     gr_coll_name(algorithm->coll), algorithm->name, p->words, host,
                     passed[host].out, passed[host].in, most.out, most.in);
        }
    }
}

static void prove(const place *p, const gr_algorithm *algorithm, int shards, int root,
                  plans_placing where)
{
    gr_plan_shape shape = {.coll = algorithm->coll,
                           .world_size = p->n,
                           .shards = shards,
                           .root = root,
                           .uneven = true,
                           .topology = &p->topology};
    plans_world w;
    if (!algorithm->fits(&shape)) {
        return;
    }
    plans_open_shaped(&w, algorithm, &shape, where);
    if (plans_verify(&w, algorithm->canonical, -1) != GR_OK) {
        fail_msg("%s %s, %s, %d shards, root %d, placing %d: %s", gr_coll_name(algorithm->coll),
                 algorithm->name, p->words, shards, root, (int)where, w.diag.text);
    }
    check_traffic(p, &w, algorithm);
    plans_close(&w);
}

/* The others take no notice of hosts. */
static bool knows_hosts(const gr_algorithm *algorithm)
{
    return strncmp(algorithm->name, "hierarchical", strlen("hierarchical")) == 0 ||
           strstr(algorithm->name, "ring") != NULL;
}

static void prove_all(const place *p)
{
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int where = 0; where < PLANS_PLACINGS && knows_hosts(at); where++) {
            if (p->n < 16 || p->n % PLANS_PLACINGS == where) {
                prove(p, at, p->n, p->n * where / PLANS_PLACINGS, (plans_placing)where);
            }
        }
    }
}

static void test_hosts_that_are_alike(void **unused)
{
    (void)unused;
    for (int n = 1; n <= WORLD_MAX; n += n < 16 ? 1 : 7) {
        for (int each = 1; each <= n; each += each < 5 ? 1 : each) {
            place p;
            even_hosts(&p, n, each); /* the last one may have fewer */
            prove_all(&p);
        }
    }
    place p;
    even_hosts(&p, 64, 8);
    prove_all(&p);
}

static void test_hosts_that_differ(void **unused)
{
    (void)unused;
    for (int n = 2; n <= WORLD_MAX; n += n < 12 ? 1 : 13) {
        for (int first = 1; first < 8; first += 2) {
            for (int step = -1; step <= 2; step++) {
                place p;
                uneven_hosts(&p, n, first, step);
                prove_all(&p);
            }
        }
    }
}

static void test_ranks_dealt_to_hosts(void **unused)
{
    (void)unused;
    for (int n = 2; n <= WORLD_MAX; n += n < 12 ? 1 : 13) {
        for (int hosts = 2; hosts <= n; hosts *= 2) {
            place p;
            dealt_hosts(&p, n, hosts);
            gr_plan_shape shape = {
                .coll = GR_COLL_ALLREDUCE, .world_size = n, .shards = n, .topology = &p.topology};
            assert_int_equal(gr_algorithm_find(GR_COLL_ALLREDUCE, "hierarchical")->fits(&shape),
                             hosts == n);
            assert_true(
                gr_algorithm_find(GR_COLL_ALLREDUCE, "hierarchical-any-order")->fits(&shape));
            prove_all(&p);
        }
    }
}

static void test_every_root_and_any_shards(void **unused)
{
    (void)unused;
    place places[3];
    even_hosts(&places[0], 8, 4);
    uneven_hosts(&places[1], 11, 5, -1);
    dealt_hosts(&places[2], 9, 2);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
            for (int k = 0; k < places[i].n && knows_hosts(at); k++) {
                prove(&places[i], at, places[i].n, k, (plans_placing)(k % PLANS_PLACINGS));
            }
            static const int shards[] = {1, 2, 7, 8, 16, 19, 32, 100};
            for (size_t k = 0; k < sizeof shards / sizeof shards[0]; k++) {
                if (knows_hosts(at) && at->coll == GR_COLL_ALLREDUCE) {
                    prove(&places[i], at, shards[k], 0, (plans_placing)(k % PLANS_PLACINGS));
                }
            }
        }
    }
}

/* With hosts alike and a power of two, each byte crosses the wire once in each direction. */
static void test_once_over_the_wire(void **unused)
{
    (void)unused;
    place p;
    plans_world w;
    even_hosts(&p, 8, 2);
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .world_size = 8, .shards = 8, .topology = &p.topology};
    plans_open_shaped(&w, gr_algorithm_find(GR_COLL_ALLREDUCE, "hierarchical"), &shape,
                      PLANS_IN_PLACE);
    for (int rank = 0; rank < 8; rank++) {
        int out = 0;
        for (uint32_t i = 0; i < w.plans[rank].step_count; i++) {
            const gr_step *step = &w.plans[rank].steps[i];
            out += step->kind == GR_STEP_SEND && p.host_of[step->peer] != p.host_of[rank];
        }
        /* Of 8 blocks the host's two ranks send 2 x 3 / 4, half of them each. */
        assert_int_equal(out, 6);
        assert_int_equal(w.plans[rank].blocks, 8);
        assert_int_equal(w.plans[rank].user_slots, 1);
    }
    plans_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_that_are_alike),
        cmocka_unit_test(test_hosts_that_differ),
        cmocka_unit_test(test_ranks_dealt_to_hosts),
        cmocka_unit_test(test_every_root_and_any_shards),
        cmocka_unit_test(test_once_over_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
