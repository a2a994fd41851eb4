/* SPDX-License-Identifier: Apache-2.0 */

/* How evenly two well-known networks lie on 2 to 16 servers, before and after servers were lost and
 * came, and what moves then. GRADUS_PLACE_PRINT=1 prints the largest shares. */

#include "ps/place.h"

#include "base/philox.h"
#include "ps/store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Parameters of the networks, layer by layer ---------------------------------------------- */

enum { TENSORS_MAX = 256, NAME_BYTES = 64 };

typedef struct network {
    const char *name;
    uint64_t parameters;
    int tensors;
    char tensor[TENSORS_MAX][NAME_BYTES];
    uint64_t elements[TENSORS_MAX];
} network;

static void add(network *n, uint64_t elements, const char *layer, const char *part)
{
    assert_true(n->tensors < TENSORS_MAX);
    snprintf(n->tensor[n->tensors], NAME_BYTES, "%s.%s", layer, part);
    n->elements[n->tensors++] = elements;
    n->parameters += elements;
}

static void add_layer(network *n, const char *layer, uint64_t weight, uint64_t bias)
{
    add(n, weight, layer, "weight");
    if (bias > 0) {
        add(n, bias, layer, "bias");
    }
}

/* A convolution without bias and the batch norm behind it (scale and offset). */
static void add_conv_norm(network *n, const char *block, const char *conv, const char *norm,
                          uint64_t in, uint64_t out, uint64_t kernel)
{
    char layer[NAME_BYTES - 8];
    snprintf(layer, sizeof layer, "%s%s", block, conv);
    add_layer(n, layer, in * out * kernel * kernel, 0);
    snprintf(layer, sizeof layer, "%s%s", block, norm);
    add_layer(n, layer, out, out);
}

/* He et al., "Deep Residual Learning for Image Recognition", table 1, 50 layers. */
static void resnet50(network *n)
{
    static const struct {
        int blocks;
        uint64_t width;
    } stages[] = {{3, 64}, {4, 128}, {6, 256}, {3, 512}};
    *n = (network){.name = "ResNet-50"};
    add_conv_norm(n, "", "conv1", "bn1", 3, 64, 7);
    uint64_t in = 64;
    for (int stage = 0; stage < 4; stage++) {
        uint64_t width = stages[stage].width, out = 4 * width;
        for (int i = 0; i < stages[stage].blocks; i++) {
            char block[32];
            snprintf(block, sizeof block, "layer%d.%d.", stage + 1, i);
            add_conv_norm(n, block, "conv1", "bn1", in, width, 1);
            add_conv_norm(n, block, "conv2", "bn2", width, width, 3);
            add_conv_norm(n, block, "conv3", "bn3", width, out, 1);
            if (i == 0) {
                add_conv_norm(n, block, "downsample.0", "downsample.1", in, out, 1);
            }
            in = out;
        }
    }
    add_layer(n, "fc", 2048 * 1000, 1000);
    assert_int_equal(n->tensors, 161);
    assert_int_equal(n->parameters, 25557032);
}

/* Simonyan and Zisserman, "Very Deep Convolutional Networks", table 1, column D. */
static void vgg16(network *n)
{
    static const struct {
        const char *name;
        uint64_t in, out;
    } convs[] = {{"features.0", 3, 64},     {"features.2", 64, 64},    {"features.5", 64, 128},
                 {"features.7", 128, 128},  {"features.10", 128, 256}, {"features.12", 256, 256},
                 {"features.14", 256, 256}, {"features.17", 256, 512}, {"features.19", 512, 512},
                 {"features.21", 512, 512}, {"features.24", 512, 512}, {"features.26", 512, 512},
                 {"features.28", 512, 512}};
    *n = (network){.name = "VGG-16"};
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++) {
        add_layer(n, convs[i].name, convs[i].in * convs[i].out * 9, convs[i].out);
    }
    add_layer(n, "classifier.0", 512 * 7 * 7 * 4096, 4096);
    add_layer(n, "classifier.3", 4096 * 4096, 4096);
    add_layer(n, "classifier.6", 4096 * 1000, 1000);
    assert_int_equal(n->tensors, 32);
    assert_int_equal(n->parameters, 138357544);
}

/* ---- Shares ---------------------------------------------------------------------------------- */

/* Elements in each slot: what a table's shares follow from. */
typedef struct weights {
    const char *name;
    uint64_t slot[GR_PS_SLOTS], all;
} weights;

static weights weights_of(const network *n, const char *prefix)
{
    weights w = {.name = n->name};
    for (int i = 0; i < n->tensors; i++) {
        char name[2 * NAME_BYTES];
        snprintf(name, sizeof name, "%s%s", prefix, n->tensor[i]);
        gr_ps_cut cut = gr_ps_cut_of(n->elements[i]);
        uint64_t key = gr_ps_tensor_key(name);
        for (uint32_t block = 0; block < cut.blocks; block++) {
            w.slot[gr_ps_slot(key, block)] += gr_ps_block_count(&cut, block);
        }
    }
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        w.all += w.slot[slot];
    }
    assert_int_equal(w.all, n->parameters);
    return w;
}

/* The largest share of a server's, over the fair one: of what it leads (it has the work), and of
 * all that it holds. */
typedef struct shares {
    double leads, holds;
} shares;

static shares shares_of(const gr_ps_table *table, const weights *w)
{
    uint64_t leads[GR_PS_SERVERS_MAX] = {0}, follows[GR_PS_SERVERS_MAX] = {0}, held = 0;
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        leads[table->primary[slot]] += w->slot[slot];
        held += w->slot[slot];
        if (table->replica[slot] != table->primary[slot]) {
            follows[table->replica[slot]] += w->slot[slot];
            held += w->slot[slot];
        }
    }
    shares most = {0, 0};
    double living = gr_ps_table_living(table);
    for (int server = 0; server < table->servers; server++) {
        double led = (double)leads[server] * living / (double)w->all;
        double all = (double)(leads[server] + follows[server]) * living / (double)held;
        most.leads = led > most.leads ? led : most.leads;
        most.holds = all > most.holds ? all : most.holds;
    }
    return most;
}

static void worse(shares *worst, shares s)
{
    worst->leads = s.leads > worst->leads ? s.leads : worst->leads;
    worst->holds = s.holds > worst->holds ? s.holds : worst->holds;
}

static void expect_at_most(const char *what, const char *name, int servers, shares s, double most)
{
    if (getenv("GRADUS_PLACE_PRINT") != NULL) {
        printf("%-10s %2d servers, %-12s leads %.4f holds %.4f\n", name, servers, what, s.leads,
               s.holds);
    }
    if (s.leads > most || s.holds > most) {
        fail_msg("%s, %d servers, %s: a server leads %.4f of its fair share and holds %.4f, %.2f "
                 "allowed",
                 name, servers, what, s.leads, s.holds, most);
    }
}

/* ---- What changes ---------------------------------------------------------------------------- */

/* Only what the lost one had has changed, and its replicas lead there. */
static void lose(gr_ps_table *table, int server)
{
    const gr_ps_table before = *table;
    assert_true(gr_ps_table_lose(table, server));
    assert_true(gr_ps_table_sound(table));
    assert_int_equal(table->epoch, before.epoch + 1);
    for (int slot = 0; slot < GR_PS_SLOTS; slot++) {
        bool led = before.primary[slot] == server, followed = before.replica[slot] == server;
        assert_int_equal(table->primary[slot], led ? before.replica[slot] : before.primary[slot]);
        assert_true(led || followed || table->replica[slot] == before.replica[slot]);
    }
}

/* ---- The tests ------------------------------------------------------------------------------- */

enum { NETWORKS = 2, PREFIXES = 4 };
static const char *const prefixes[PREFIXES] = {"", "model.", "module.", "resnet/v1/"};

/* Both networks under names of several kinds: not the luck of some hashes. */
static void all_weights(weights out[NETWORKS * PREFIXES])
{
    network *n = calloc(1, sizeof *n);
    assert_non_null(n);
    for (int i = 0; i < NETWORKS * PREFIXES; i++) {
        (i % NETWORKS == 0 ? resnet50 : vgg16)(n);
        out[i] = weights_of(n, prefixes[i / NETWORKS]);
    }
    free(n);
}

static void test_a_tensor_is_cut_whole(void **state)
{
    (void)state;
    static const uint64_t some[] = {1,        15,        1023,      1024,
                                    1025,     245760,    245761,    6553600,
                                    62914560, 125829121, 102760448, GR_PS_ELEMENTS_MAX};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        gr_ps_cut cut = gr_ps_cut_of(some[i]);
        assert_true(cut.blocks >= 1 && cut.blocks <= 1 << 20);
        assert_true(cut.block >= 1024 && cut.block <= 1 << 18 && cut.block % 16 == 0);
        uint64_t end = 0;
        for (uint32_t block = 0; block < cut.blocks; block++) {
            assert_int_equal(gr_ps_block_first(&cut, block), end);
            uint32_t count = gr_ps_block_count(&cut, block);
            assert_true(count >= 1 && (count == cut.block || block == cut.blocks - 1));
            end += count;
        }
        assert_int_equal(end, some[i]);
    }
    assert_int_equal(gr_ps_cut_of(0).blocks, 0);
    assert_int_equal(gr_ps_cut_of(GR_PS_ELEMENTS_MAX + 1).blocks, 0);
    assert_int_equal(gr_ps_cut_of(UINT64_MAX).blocks, 0);
    assert_int_equal(gr_ps_cut_of(6553600).blocks, GR_PS_SLOTS);
}

static void test_blocks_go_round_the_slots(void **state)
{
    (void)state;
    assert_int_equal(gr_ps_slot(0, 0), 0);
    assert_int_equal(gr_ps_slot(GR_PS_SLOTS - 1, 1), 0);
    assert_int_equal(gr_ps_slot(UINT64_MAX, 3), (UINT64_MAX % GR_PS_SLOTS + 3) % GR_PS_SLOTS);
}

static void test_shares_of_the_first_table(void **state)
{
    (void)state;
    weights w[NETWORKS * PREFIXES];
    all_weights(w);
    for (int servers = 1; servers <= GR_PS_SERVERS_MAX; servers++) {
        gr_ps_table table;
        gr_ps_table_init(&table, servers);
        assert_true(gr_ps_table_sound(&table));
        for (int i = 0; i < NETWORKS * PREFIXES; i++) {
            expect_at_most("none lost", w[i].name, servers, shares_of(&table, &w[i]), 1.05);
        }
    }
}

/* Rows that stand side by side, or at even distances. */
static void test_shares_of_rows(void **state)
{
    (void)state;
    enum { ROWS = 100000 };
    for (uint32_t distance = 1; distance <= 480; distance += 479) {
        weights w = {.name = "rows", .all = ROWS};
        for (uint32_t row = 0; row < ROWS; row++) {
            uint32_t block = gr_ps_row_block(0x1234567, row * distance);
            assert_true(block < gr_ps_cut_table().blocks);
            w.slot[gr_ps_slot(0x1234567, block)]++;
        }
        for (int servers = 1; servers <= GR_PS_SERVERS_MAX; servers++) {
            gr_ps_table table;
            gr_ps_table_init(&table, servers);
            expect_at_most("none lost", w.name, servers, shares_of(&table, &w), 1.12);
        }
    }
    assert_int_not_equal(gr_ps_row_block(1, 5), gr_ps_row_block(2, 5));
}

static void test_shares_after_losses(void **state)
{
    (void)state;
    weights w[NETWORKS * PREFIXES];
    all_weights(w);
    for (int servers = 2; servers <= GR_PS_SERVERS_MAX; servers++) {
        shares one[NETWORKS] = {{0, 0}}, two[NETWORKS] = {{0, 0}};
        for (int a = 0; a < servers; a++) {
            gr_ps_table table;
            gr_ps_table_init(&table, servers);
            lose(&table, a);
            for (int i = 0; i < NETWORKS * PREFIXES; i++) {
                worse(&one[i % NETWORKS], shares_of(&table, &w[i]));
            }
            for (int b = 0; b < servers && servers > 2; b++) {
                gr_ps_table second = table;
                if (b == a) {
                    continue;
                }
                lose(&second, b);
                for (int i = 0; i < NETWORKS * PREFIXES; i++) {
                    worse(&two[i % NETWORKS], shares_of(&second, &w[i]));
                }
            }
        }
        for (int i = 0; i < NETWORKS; i++) {
            expect_at_most("one lost", w[i].name, servers, one[i], 1.05);
            expect_at_most("two lost", w[i].name, servers, two[i], 1.07);
        }
    }
}

static void test_what_cannot_happen_changes_nothing(void **state)
{
    (void)state;
    gr_ps_table table;
    gr_ps_table_init(&table, 2);
    lose(&table, 0);
    const gr_ps_table before = table;
    assert_false(gr_ps_table_lose(&table, 0));
    assert_false(gr_ps_table_lose(&table, 1));
    assert_false(gr_ps_table_lose(&table, -1));
    assert_false(gr_ps_table_lose(&table, 2));
    assert_memory_equal(&table, &before, sizeof table);
}

static void test_a_table_that_cannot_be_true(void **state)
{
    (void)state;
    gr_ps_table good, bad;
    gr_ps_table_init(&good, 3);
    bad = good;
    bad.servers = GR_PS_SERVERS_MAX + 1;
    assert_false(gr_ps_table_sound(&bad));
    bad.servers = 0;
    assert_false(gr_ps_table_sound(&bad));
    bad = good;
    bad.primary[400] = 3;
    assert_false(gr_ps_table_sound(&bad));
    bad = good;
    bad.replica[3] = bad.primary[3];
    assert_false(gr_ps_table_sound(&bad));
    bad = good;
    bad.alive[1] = false;
    assert_false(gr_ps_table_sound(&bad));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tensor_is_cut_whole),
        cmocka_unit_test(test_blocks_go_round_the_slots),
        cmocka_unit_test(test_shares_of_the_first_table),
        cmocka_unit_test(test_shares_of_rows),
        cmocka_unit_test(test_shares_after_losses),
        cmocka_unit_test(test_what_cannot_happen_changes_nothing),
        cmocka_unit_test(test_a_table_that_cannot_be_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
