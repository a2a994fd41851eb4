/* SPDX-License-Identifier: Apache-2.0 */

/* Servers that give each other up, for good reasons and for none, and new ones in their places,
 * under seeded schedules: messages that take long, links that break, servers that die, at every
 * point. What must never be: two
 * servers that answer for the same block; a server that answers while who could be leading the
 * block knows more than it. What must be: who is left agrees in the end. */

#include "ps/server/membership_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SERVERS_MAX = 7, MESSAGES_MAX = 64, SEEDS = 1500, ACTS = 400, SLOTS = 60 };

typedef struct message {
    bool table;
    gr_ps_view view;
    gr_ps_table new_table;
} message;

/* What one server has said to another, in order. */
typedef struct path {
    bool broken; /* nothing more is sent; what was on its way may come or not */
    message messages[MESSAGES_MAX];
    int count;
} path;

typedef struct world {
    int count;
    bool dead[SERVERS_MAX], out[SERVERS_MAX];
    bool joining[SERVERS_MAX]; /* in place of a lost one, and in no table yet */
    uint64_t incarnation[SERVERS_MAX], incarnations;
    gr_ps_membership at[SERVERS_MAX];
    gr_ps_view told[SERVERS_MAX][SERVERS_MAX];
    uint64_t tabled[SERVERS_MAX][SERVERS_MAX];
    path paths[SERVERS_MAX][SERVERS_MAX];
    gr_ps_table table[SERVERS_MAX]; /* by which `has` was kept */
    bool has[SERVERS_MAX][SLOTS];   /* the slot's values */
    uint64_t random;
} world;

static int below(world *w, int limit)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((w->random >> 33) % (uint64_t)limit);
}

static void send(world *w, int from, int to, const message *what)
{
    path *p = &w->paths[from][to];
    if (!p->broken && p->count < MESSAGES_MAX) {
        p->messages[p->count++] = *what;
    }
}

/* As a server does in its turn: what is new is told, a table before the view that needs it. */
static void tell(world *w, int from, int to)
{
    const gr_ps_membership *v = &w->at[from];
    if (!w->joining[from] && gr_ps_membership_lacks(v, &v->said[to]) &&
        w->tabled[from][to] < v->table.epoch) {
        const message what = {.table = true, .new_table = v->table};
        w->tabled[from][to] = v->table.epoch;
        send(w, from, to, &what);
    }
    if (!gr_ps_view_equal(&v->own, &w->told[from][to])) {
        const message what = {.view = v->own};
        w->told[from][to] = v->own;
        send(w, from, to, &what);
    }
}

static void break_link(world *w, int a, int b)
{
    w->paths[a][b].broken = w->paths[b][a].broken = true;
}

static bool lives(const world *w, int server)
{
    return !w->dead[server] && !w->out[server];
}

static bool same_table(const world *w, int a, int b)
{
    return w->at[a].own.epoch == w->at[b].own.epoch && w->at[a].own.hash == w->at[b].own.hash;
}

/* What a new table makes of what it has: a new replica waits for its copy. Whom it has no link to
 * is missed at once. */
static void keep(world *w, int server)
{
    const gr_ps_table *before = &w->table[server], *now = &w->at[server].table;
    if (before->epoch == now->epoch) {
        return;
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        bool follows = now->replica[slot] == server && before->replica[slot] == server &&
                       before->primary[slot] == now->primary[slot] &&
                       gr_ps_table_keeps(before, now, now->primary[slot]);
        w->has[server][slot] = w->has[server][slot] && (now->primary[slot] == server || follows);
    }
    for (int other = 0; other < w->count; other++) {
        if (other != server && now->alive[other] && w->paths[server][other].broken) {
            gr_ps_membership_lose(&w->at[server], other, false);
        }
    }
    w->table[server] = *now;
}

/* A primary gives its replica what it has, while all agree. */
static void copy(world *w, int server)
{
    const gr_ps_table *now = &w->at[server].table;
    for (int slot = 0; slot < SLOTS && gr_ps_membership_settled(&w->at[server]); slot++) {
        int replica = now->replica[slot];
        if (now->primary[slot] == server && w->has[server][slot] && lives(w, replica) &&
            same_table(w, server, replica)) {
            w->has[replica][slot] = true;
        }
    }
}

/* Does it reach all that live? Then it asks to be added. */
static bool applies(const world *w, int server)
{
    bool all = lives(w, server) && w->joining[server];
    for (int other = 0; other < w->count; other++) {
        all = all && (other == server || !lives(w, other) || w->joining[other] ||
                      (!w->paths[server][other].broken && !w->paths[other][server].broken));
    }
    return all;
}

static void turn(world *w, int server)
{
    if (!lives(w, server)) {
        return;
    }
    gr_ps_membership *v = &w->at[server];
    uint32_t before = gr_ps_table_mask(&v->table);
    for (int other = 0; other < w->count && !w->joining[server]; other++) {
        if (applies(w, other) && !w->paths[other][server].broken) {
            gr_ps_membership_add(v, other, w->incarnation[other]);
        }
    }
    if (gr_ps_membership_decide(v)) {
        uint32_t lost = before & ~gr_ps_table_mask(&v->table);
        for (int other = 0; other < w->count; other++) {
            if ((lost >> other & 1) != 0) {
                break_link(w, server, other);
            }
        }
    }
    keep(w, server);
    copy(w, server);
    for (int other = 0; other < w->count; other++) {
        if (other != server) {
            tell(w, server, other);
        }
    }
}

static void deliver(world *w, int from, int to)
{
    path *p = &w->paths[from][to];
    if (p->count == 0 || !lives(w, to)) {
        return;
    }
    const message what = p->messages[0];
    memmove(&p->messages[0], &p->messages[1], (size_t)--p->count * sizeof p->messages[0]);
    if (!what.table) {
        gr_ps_membership_receive(&w->at[to], from, &what.view);
    } else if (w->joining[to]) {
        if (what.new_table.alive[to] && what.new_table.incarnation[to] == w->incarnation[to]) {
            gr_ps_membership_init(&w->at[to], to, &what.new_table);
            w->joining[to] = false;
        }
    } else if (gr_ps_membership_take(&w->at[to], &what.new_table) == GR_PS_TABLE_OUT) {
        w->out[to] = true;
    }
    keep(w, to);
}

/* May it answer for the slot, as its primary? Its replica has to go along. */
static bool answers(const world *w, int server, int slot)
{
    const gr_ps_membership *v = &w->at[server];
    gr_ps_membership copy = *v;
    return lives(w, server) && !w->joining[server] && w->has[server][slot] &&
           v->table.primary[slot] == server && gr_ps_membership_settled(&copy);
}

/* And so it may where its replica goes along, which goes by its own table. */
static bool goes_along(const world *w, int server, int slot)
{
    int replica = w->at[server].table.replica[slot];
    return replica == server || same_table(w, server, replica);
}

static void check(const world *w)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        int leaders = 0;
        for (int server = 0; server < w->count; server++) {
            leaders += answers(w, server, slot) && goes_along(w, server, slot);
        }
        assert_true(leaders <= 1);
    }
    /* Tables of one epoch are one table. */
    for (int a = 0; a < w->count; a++) {
        for (int b = a + 1; b < w->count; b++) {
            gr_ps_membership one = w->at[a], two = w->at[b];
            if (gr_ps_membership_settled(&one) && gr_ps_membership_settled(&two) && lives(w, a) &&
                lives(w, b) && one.own.epoch == two.own.epoch) {
                assert_true(w->at[a].own.hash == w->at[b].own.hash);
            }
        }
    }
}

static void start(world *w, uint64_t seed)
{
    gr_ps_table table;
    memset(w, 0, sizeof *w);
    w->random = seed * 7919;
    w->count = 2 + below(w, SERVERS_MAX - 1);
    gr_ps_table_init(&table, w->count);
    for (int server = 0; server < w->count; server++) {
        gr_ps_membership_init(&w->at[server], server, &table);
        w->table[server] = table;
        for (int slot = 0; slot < SLOTS; slot++) {
            w->has[server][slot] = table.primary[slot] == server || table.replica[slot] == server;
        }
    }
}

/* A new process begins to speak to a server that counts its number among the lost ones. */
static void link_up(world *w, int joins, int other)
{
    if (!lives(w, joins) || !w->joining[joins] || !lives(w, other) ||
        w->at[other].table.alive[joins] || !w->paths[joins][other].broken) {
        return;
    }
    w->paths[joins][other] = w->paths[other][joins] = (path){.broken = false};
    w->told[joins][other] = w->told[other][joins] = (gr_ps_view){.epoch = 0};
    w->tabled[other][joins] = 0;
    w->at[other].said[joins] = (gr_ps_view){.epoch = 0};
}

/* A new process with the number of one that is gone. */
static void replace(world *w, int server)
{
    gr_ps_table table;
    gr_ps_table_init(&table, w->count);
    assert_true(gr_ps_table_lose(&table, server));
    table.epoch = 0;
    gr_ps_membership_init(&w->at[server], server, &table);
    w->table[server] = table;
    w->dead[server] = w->out[server] = false;
    w->joining[server] = true;
    w->incarnation[server] = ++w->incarnations;
    memset(w->has[server], 0, sizeof w->has[server]);
    for (int other = 0; other < w->count; other++) {
        w->paths[server][other] = w->paths[other][server] = (path){.broken = true};
        link_up(w, server, other);
    }
}

static void settle(world *w)
{
    for (int rounds = 0; rounds < 40; rounds++) {
        for (int a = 0; a < w->count; a++) {
            turn(w, a);
            for (int b = 0; b < w->count; b++) {
                link_up(w, a, b);
                while (a != b && w->paths[a][b].count > 0 && lives(w, b)) {
                    deliver(w, a, b);
                }
            }
        }
        check(w);
    }
}

/* It dies, and some of the others see it. */
static void die(world *w, int server)
{
    w->dead[server] = true;
    for (int other = 0; other < w->count; other++) {
        path *p = &w->paths[server][other];
        p->count = p->count > 0 ? below(w, p->count + 1) : 0;
        break_link(w, server, other);
    }
}

static void all_schedules_have_one_leader(void **state)
{
    (void)state;
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        start(w, seed);
        for (int act = 0; act < ACTS; act++) {
            int a = below(w, w->count), b = below(w, w->count), kind = below(w, 200);
            if (a == b || !lives(w, a)) {
                continue;
            }
            if (kind < 90) {
                turn(w, a);
            } else if (kind < 190) {
                deliver(w, b, a);
            } else if (kind < 194) {
                break_link(w, a, b); /* and each sees it when it does */
            } else if (kind < 196 && w->paths[b][a].broken && w->paths[b][a].count == 0) {
                gr_ps_membership_lose(&w->at[a], b, false);
            } else if (kind < 198 && gr_ps_membership_spares(&w->at[a], b)) {
                gr_ps_membership_lose(&w->at[a], b, false); /* it was silent */
            } else if (kind == 198) {
                link_up(w, b, a);
            } else if (kind == 199 && below(w, 4) == 0) {
                die(w, a);
            } else if (kind == 199 && !lives(w, b)) {
                replace(w, b);
            }
            if (act % 10 == 0) {
                check(w);
            }
        }
        settle(w);
    }
    free(w);
}

/* Who sees a death for what it is goes on, even if it is the only one that is left. */
static void whoever_is_left_goes_on(void **state)
{
    (void)state;
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        start(w, seed);
        int first = below(w, w->count);
        for (int i = 0; i < w->count - 1; i++) {
            int victim = (first + i) % w->count;
            die(w, victim);
            for (int other = 0; other < w->count; other++) {
                if (lives(w, other)) {
                    gr_ps_membership_lose(&w->at[other], victim, true);
                }
            }
            settle(w);
            for (int other = 0; other < w->count; other++) {
                assert_true(!lives(w, other) || gr_ps_membership_settled(&w->at[other]));
                assert_false(w->out[other]);
            }
        }
        int last = (first + w->count - 1) % w->count;
        assert_int_equal(gr_ps_table_living(&w->at[last].table), 1);
        for (int slot = 0; slot < SLOTS; slot++) {
            assert_true(answers(w, last, slot));
        }
    }
    free(w);
}

static void all_know_of_the_death(world *w, int victim)
{
    for (int other = 0; other < w->count; other++) {
        if (lives(w, other)) {
            gr_ps_membership_lose(&w->at[other], victim, true);
        }
    }
}

/* More of them than there are servers, each as soon as its replacement, or another one's, has come;
 * sometimes the new one dies before it is added. */
static void servers_that_die_one_after_the_other_are_replaced(void **state)
{
    (void)state;
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 1; seed <= SEEDS / 15; seed++) {
        start(w, seed);
        for (int round = 0; round < 2 * w->count; round++) {
            int victim = below(w, w->count);
            die(w, victim);
            all_know_of_the_death(w, victim);
            settle(w);
            replace(w, victim);
            if (below(w, 4) == 0) {
                for (int acts = below(w, 20); acts > 0; acts--) {
                    int a = below(w, w->count), b = below(w, w->count);
                    turn(w, a);
                    if (a != b) {
                        deliver(w, a, b);
                    }
                }
                die(w, victim);
                settle(w); /* it may be added all the same, and is lost then */
                all_know_of_the_death(w, victim);
                settle(w);
                replace(w, victim);
            }
            settle(w);
            for (int server = 0; server < w->count; server++) {
                assert_true(lives(w, server) && !w->joining[server]);
                assert_true(gr_ps_membership_settled(&w->at[server]));
            }
            for (int slot = 0; slot < SLOTS; slot++) {
                int primary = w->at[0].table.primary[slot], replica = w->at[0].table.replica[slot];
                assert_true(primary != replica && answers(w, primary, slot));
                assert_true(w->has[replica][slot]);
            }
        }
    }
    free(w);
}

/* One of two, which waits where it cannot tell a death from a wire that broke, does so as well with
 * a new server that only it has added: the other one may have gone on alone. */
static void one_that_alone_has_added_another_is_no_quorum(void **state)
{
    (void)state;
    gr_ps_table table;
    gr_ps_membership low, high;
    gr_ps_table_init(&table, 3);
    assert_true(gr_ps_table_lose(&table, 2));
    gr_ps_membership_init(&low, 0, &table);
    gr_ps_membership_init(&high, 1, &table);
    gr_ps_membership_add(&high, 2, 7);
    assert_false(gr_ps_membership_decide(&high)); /* server 0 has not said so */
    gr_ps_membership_receive(&low, 1, &high.own);
    gr_ps_membership_receive(&high, 0, &low.own);
    assert_true(gr_ps_membership_decide(&high));
    assert_true(high.table.alive[2]);
    const gr_ps_view added = {.epoch = high.own.epoch, .hash = high.own.hash, .lost = 1};
    gr_ps_membership_lose(&low, 1, false);
    assert_true(gr_ps_membership_decide(&low));
    gr_ps_membership_lose(&high, 0, false);
    gr_ps_membership_receive(&high, 2, &added);
    assert_false(gr_ps_membership_decide(&high));
    assert_int_equal(gr_ps_membership_take(&high, &low.table), GR_PS_TABLE_OUT);
}

/* Some die, and those that see it know, or take it for silence. True: all of them know. */
static bool let_some_die(world *w)
{
    bool known = true;
    for (int victim = below(w, 2 * w->count); victim < w->count; victim += 1 + below(w, 4)) {
        die(w, victim);
        for (int other = 0; other < w->count; other++) {
            bool dead = below(w, 6) > 0;
            if (lives(w, other)) {
                gr_ps_membership_lose(&w->at[other], victim, dead);
                known = known && dead;
            }
        }
    }
    return known;
}

/* Silent halves: at most one goes on, and the other is told so; also if some have just died, who
 * would otherwise have counted on both. */
static void one_side_of_a_partition_goes_on(void **state)
{
    (void)state;
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        start(w, seed);
        uint32_t side = (uint32_t)below(w, 1 << w->count);
        bool known = let_some_die(w);
        int living = 0;
        for (int a = 0; a < w->count; a++) {
            for (int b = 0; b < w->count; b++) {
                if (a != b && (side >> a & 1) != (side >> b & 1) && lives(w, a) && lives(w, b)) {
                    w->paths[a][b].broken = true;
                    gr_ps_membership_lose(&w->at[a], b, false);
                }
            }
        }
        settle(w);
        int going[2] = {0, 0};
        for (int a = 0; a < w->count; a++) {
            going[side >> a & 1] += lives(w, a) && gr_ps_membership_settled(&w->at[a]);
            living += lives(w, a);
        }
        assert_true(going[0] == 0 || going[1] == 0);
        assert_true(going[0] + going[1] > 0 || !known || living == 0);
    }
    free(w);
}

static void one_of_two_waits_and_the_other_does_not(void **state)
{
    (void)state;
    gr_ps_table table;
    gr_ps_membership low, high;
    gr_ps_table_init(&table, 2);
    gr_ps_membership_init(&low, 0, &table);
    gr_ps_membership_init(&high, 1, &table);
    assert_true(gr_ps_membership_spares(&low, 1));
    assert_false(gr_ps_membership_spares(&high, 0));
    gr_ps_membership_lose(&low, 1, false);
    gr_ps_membership_lose(&high, 0, false);
    assert_true(gr_ps_membership_decide(&low));
    assert_false(gr_ps_membership_decide(&high));
    assert_int_equal(gr_ps_membership_take(&high, &low.table), GR_PS_TABLE_OUT);
    gr_ps_membership_lose(&high, 0, true);
    assert_true(gr_ps_membership_decide(&high));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_two_waits_and_the_other_does_not),
        cmocka_unit_test(one_that_alone_has_added_another_is_no_quorum),
        cmocka_unit_test(servers_that_die_one_after_the_other_are_replaced),
        cmocka_unit_test(one_side_of_a_partition_goes_on),
        cmocka_unit_test(whoever_is_left_goes_on),
        cmocka_unit_test(all_schedules_have_one_leader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
