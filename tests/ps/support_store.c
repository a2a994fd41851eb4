/* SPDX-License-Identifier: Apache-2.0 */
#include "support_store.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

uint32_t random_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((mixed ^ (mixed >> 31)) >> 16);
}

int random_below(uint64_t *state, int below)
{
    return (int)(random_next(state) % (uint32_t)below);
}

/* ---- A momentum optimizer -------------------------------------------------------------------- */
static gr_status momentum_create(void *arg, const gr_ps_spec *tensor, void **updater_out,
                                 gr_diag *diag)
{
    (void)arg;
    if (strcmp(tensor->optimizer, "momentum") != 0) {
        diag->status = GR_E_INVALID;
        strcpy(diag->text, "no such optimizer");
        return GR_E_INVALID;
    }
    *updater_out = malloc(1); /* to be lost if it is not destroyed */
    return *updater_out != NULL ? GR_OK : GR_E_NO_MEMORY;
}

static int momentum_states(void *updater)
{
    (void)updater;
    return 1;
}

void momentum_apply(uint64_t step, double rate, float factor, float *values, float *momentum,
                    const float *gradient, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        momentum[i] = 0.5f * momentum[i] + gradient[i] * factor;
        values[i] -= (float)(rate * (double)(step % 3 + 1)) * momentum[i];
    }
}

static bool momentum_update(void *updater, uint64_t step, double rate, float factor, float *values,
                            float *const *states, const float *gradient, size_t count)
{
    (void)updater;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        finite &= (bool)isfinite(gradient[i]);
    }
    momentum_apply(step, rate, factor, values, states[0], gradient, count);
    return finite;
}

const gr_ps_updater_ops momentum_updaters = {.create = momentum_create,
                                             .destroy = free,
                                             .states = momentum_states,
                                             .update = momentum_update};

/* ---- What the store says --------------------------------------------------------------------- */
static ticket *answered(ps_world *world, int client, uint64_t token, bool pull, gr_status status,
                        const gr_diag *diag)
{
    assert_true(token < (uint64_t)world->ticket_count);
    ticket *t = &world->tickets[token];
    assert_int_equal(t->client, client);
    assert_int_equal(t->pull, pull);
    assert_false(t->gone);
    assert_int_equal(t->answers, 0);
    t->answers++;
    t->status = status;
    assert_int_equal(diag != NULL, status != GR_OK);
    if (diag != NULL) {
        assert_int_equal(diag->status, status);
        assert_true(strlen(diag->text) > 10 && strstr(diag->text, "...") == NULL);
        strcpy(world->text, diag->text);
    }
    return t;
}

static float *copy_of(const float *values, size_t count)
{
    float *copy = malloc(count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, values, count * sizeof *copy);
    return copy;
}

static void drop_out(ticket *t)
{
    free(t->out);
    free(t->before);
    t->out = t->before = NULL;
}

/* The values are where the push said; or, while a replica may still need what was pushed, nothing
 * has been written there. */
static void check_out(ps_world *world, const ticket *t, const gr_ps_pushed *answer)
{
    gr_ps_image image;
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_image(world->leads, world->key, t->block, &image, &diag), GR_OK);
    if (answer->put && image.version == answer->version) {
        assert_memory_equal(t->out, image.values, image.count * sizeof(float));
    }
    if (t->before != NULL && world->follows != NULL) {
        assert_false(answer->put);
        assert_memory_equal(t->out, t->before, image.count * sizeof(float));
    }
    world->puts += answer->put;
}

static void on_pushed(void *arg, const gr_ps_pushed *answer)
{
    ps_world *world = arg;
    ticket *t = answered(world, answer->client, answer->token, false, answer->status, answer->diag);
    t->outcome = answer->outcome;
    t->version = answer->version;
    if (t->out != NULL && answer->status == GR_OK) {
        check_out(world, t, answer);
    }
    if (world->check_pushed != NULL && answer->status == GR_OK) {
        world->check_pushed(world, t, answer);
    }
    drop_out(t);
}

static void on_pulled(void *arg, const gr_ps_pulled *answer)
{
    ps_world *world = arg;
    ticket *t = answered(world, answer->client, answer->token, true, answer->status, answer->diag);
    t->version = answer->version;
    if (answer->status != GR_OK) {
        return;
    }
    assert_true(answer->version >= t->wanted);
    assert_int_equal((uintptr_t)answer->values % 64, 0);
    assert_true(world->loan_count < LOANS_MAX);
    loan *l = &world->loans[world->loan_count++];
    *l = (loan){.loan = answer->loan, .values = answer->values, .count = answer->count};
    l->copy = copy_of(answer->values, answer->count);
    if (world->check_pulled != NULL) {
        world->check_pulled(world, t, answer);
    }
}

static void spoil(lease *l)
{
    if (!l->in_place) {
        free(l->values);
    }
    l->values = NULL;
}

static void on_release(void *arg, void *which)
{
    ps_world *world = arg;
    lease *l = which;
    assert_int_equal(l->released, 0);
    l->released++;
    world->leases_out--;
    spoil(l);
}

static void on_forward(void *arg, const gr_ps_update *update)
{
    ps_world *world = arg;
    assert_true(world->wire_count < WIRE_MAX);
    wire *w = &world->wires[world->wire_count++];
    w->update = *update;
    if (update->client_count > 0) {
        memcpy(w->clients, update->clients, (size_t)update->client_count * sizeof(int));
    }
    w->copy = copy_of(update->values, update->count);
}

static void *on_alloc(void *arg, size_t size_bytes)
{
    ps_world *world = arg;
    void *memory = world->refuse_memory ? NULL : aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    if (memory != NULL) {
        world->allocated++;
        world->allocations++;
        memset(memory, 0, size_bytes);
    }
    return memory;
}

static void on_free(void *arg, void *memory)
{
    ((ps_world *)arg)->allocations--;
    free(memory);
}

/* ---- The world ------------------------------------------------------------------------------- */
static gr_ps_store *server_open(ps_world *world, gr_ps_role role)
{
    gr_ps_store *store = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_create(&world->config, &store, &diag), GR_OK);
    assert_int_equal(gr_ps_store_declare(store, FIRST_CLIENT, &world->tensor, &diag), GR_OK);
    for (uint32_t b = 0; b < world->blocks; b++) {
        assert_int_equal(gr_ps_store_hold(store, world->key, b, role, &diag), GR_OK);
    }
    return store;
}

gr_ps_tensor small_tensor(const gr_ps_spec *spec, uint32_t block)
{
    gr_ps_tensor tensor = gr_ps_tensor_of(spec);
    tensor.cut.block = block;
    tensor.cut.blocks = (uint32_t)((spec->elements - 1) / block + 1);
    return tensor;
}

void world_prepare(ps_world *world, const gr_ps_spec *spec, uint32_t block)
{
    memset(world, 0, sizeof *world);
    world->config = (gr_ps_store_config){.ops = {.pushed = on_pushed,
                                                 .pulled = on_pulled,
                                                 .release = on_release,
                                                 .forward = on_forward,
                                                 .alloc = on_alloc,
                                                 .free = on_free},
                                         .ops_arg = world,
                                         .updaters = momentum_updaters};
    world->tensor = small_tensor(spec, block);
    world->key = world->tensor.key;
    world->blocks = world->tensor.cut.blocks;
}

void world_start(ps_world *world, bool replica)
{
    world->leads = server_open(world, replica ? GR_PS_LEADS : GR_PS_ALONE);
    world->follows = replica ? server_open(world, GR_PS_FOLLOWS) : NULL;
}

void world_close(ps_world *world)
{
    while (world->loan_count > 0) {
        world_give_back(world, 0);
    }
    world_cut(world);
    gr_ps_store_destroy(world->leads);
    gr_ps_store_destroy(world->follows);
    assert_int_equal(world->leases_out, 0);
    assert_int_equal(world->allocations, 0);
    for (int i = 0; i < world->ticket_count; i++) {
        drop_out(&world->tickets[i]);
    }
    for (int i = 0; i < world->lease_count; i++) {
        assert_int_equal(world->leases[i]->released, 1);
        free(world->leases[i]);
    }
}

static int ticket_new(ps_world *world, ticket new)
{
    assert_true(world->ticket_count < TICKETS_MAX);
    world->tickets[world->ticket_count] = new;
    return world->ticket_count++;
}

int world_set(ps_world *world, int client, uint32_t block, const float *values)
{
    int token = ticket_new(world, (ticket){.initial = true, .client = client, .block = block});
    gr_ps_store_set(world->leads, client, (uint64_t)token, world->key, block, values,
                    gr_ps_block_count(&world->tensor.cut, block));
    return token;
}

int world_push(ps_world *world, gr_ps_push push, const float *values, bool lasting)
{
    int token = ticket_new(
        world, (ticket){.client = push.client, .block = push.block, .wanted = push.step});
    lease *l = calloc(1, sizeof *l);
    float *copy = copy_of(values, push.count);
    assert_non_null(l);
    ticket *t = &world->tickets[token];
    if (token % 3 == 1 && !lasting) {
        t->out = copy;
        t->before = copy_of(values, push.count);
    } else if (token % 3 == 2) {
        t->out = copy_of(values, push.count);
    }
    push.out = t->out;
    *l = (lease){
        .values = copy, .client = push.client, .lasting = lasting, .in_place = t->before != NULL};
    world->leases[world->lease_count++] = l;
    world->leases_out++;
    push.token = (uint64_t)token;
    push.key = world->key;
    gr_ps_store_push(world->leads, &push,
                     &(gr_ps_data){.values = copy, .lease = l, .lasting = lasting});
    return token;
}

int world_pull(ps_world *world, int client, uint32_t block, uint64_t version, uint64_t clock)
{
    int token = ticket_new(
        world,
        (ticket){
            .client = client, .block = block, .pull = true, .wanted = version, .clock = clock});
    gr_ps_store_pull(world->leads, &(gr_ps_pull){.client = client,
                                                 .token = (uint64_t)token,
                                                 .key = world->key,
                                                 .block = block,
                                                 .version = version,
                                                 .clock = clock});
    return token;
}

void world_give_back(ps_world *world, int index)
{
    loan l = world->loans[index];
    assert_memory_equal(l.values, l.copy, l.count * sizeof(float));
    free(l.copy);
    gr_ps_store_give_back(world->leads, l.loan);
    world->loans[index] = world->loans[--world->loan_count];
}

/* Nobody is told any more; what lay in its memory is not there any more. */
static void forget_tickets(ps_world *world, int client)
{
    for (int i = 0; i < world->ticket_count; i++) {
        world->tickets[i].gone |= client < 0 || world->tickets[i].client == client;
        if (world->tickets[i].gone) {
            drop_out(&world->tickets[i]);
        }
    }
}

void world_gone(ps_world *world, int client)
{
    forget_tickets(world, client);
    gr_ps_store_gone(world->leads, client);
    for (int i = 0; i < world->lease_count; i++) {
        const lease *l = world->leases[i];
        assert_true(l->client != client || l->lasting || l->released == 1);
    }
}

bool world_deliver(ps_world *world)
{
    if (world->wire_count == 0) {
        return false;
    }
    wire w = world->wires[0];
    /* Promised to stay. */
    if (world->leads != NULL) {
        assert_memory_equal(w.update.values, w.copy, w.update.count * sizeof(float));
    }
    w.update.values = w.copy;
    w.update.clients = w.clients;
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_follow(world->follows, &w.update, &diag), GR_OK);
    free(w.copy);
    assert_true(world->ack_count < WIRE_MAX);
    world->acks[world->ack_count].block = w.update.block;
    world->acks[world->ack_count].version =
        world_version(world->follows, world->key, w.update.block);
    world->ack_count++;
    world->wire_count--;
    memmove(&world->wires[0], &world->wires[1], (size_t)world->wire_count * sizeof(wire));
    return true;
}

bool world_ack(ps_world *world)
{
    if (world->ack_count == 0) {
        return false;
    }
    uint32_t block = world->acks[0].block;
    uint64_t version = world->acks[0].version;
    world->ack_count--;
    memmove(&world->acks[0], &world->acks[1], (size_t)world->ack_count * sizeof world->acks[0]);
    gr_ps_store_replicated(world->leads, world->key, block, version);
    return true;
}

void world_flush(ps_world *world)
{
    while (world_deliver(world) || world_ack(world)) {
    }
}

void world_cut(ps_world *world)
{
    while (world->wire_count > 0) {
        free(world->wires[--world->wire_count].copy);
    }
    world->ack_count = 0;
}

static void hold_all(ps_world *world, gr_ps_role role)
{
    gr_diag diag = {0};
    for (uint32_t b = 0; b < world->blocks; b++) {
        assert_int_equal(gr_ps_store_hold(world->leads, world->key, b, role, &diag), GR_OK);
    }
}

void world_promote(ps_world *world, int arrive, bool replica)
{
    forget_tickets(world, -1);
    while (world->loan_count > 0) {
        world_give_back(world, 0);
    }
    gr_ps_store_destroy(world->leads);
    world->leads = NULL;
    assert_int_equal(world->leases_out, 0);
    while (arrive-- > 0 && world_deliver(world)) {
    }
    world_cut(world);
    world->leads = world->follows;
    world->follows = NULL;
    hold_all(world, GR_PS_ALONE);
    if (replica) {
        world_new_replica(world);
    }
}

void world_new_replica(ps_world *world)
{
    gr_diag diag = {0};
    world->follows = server_open(world, GR_PS_FOLLOWS);
    hold_all(world, GR_PS_LEADS);
    for (uint32_t b = 0; b < world->blocks; b++) {
        gr_ps_image image;
        assert_int_equal(gr_ps_store_image(world->leads, world->key, b, &image, &diag), GR_OK);
        assert_int_equal(gr_ps_store_restore(world->follows, &image, &diag), GR_OK);
        if (image.ready) {
            world->acks[world->ack_count].block = b;
            world->acks[world->ack_count++].version = image.version;
        }
    }
}

void world_lose_replica(ps_world *world, bool replace)
{
    gr_ps_store_destroy(world->follows);
    world->follows = NULL;
    world_cut(world);
    if (replace) {
        world_new_replica(world);
    } else {
        hold_all(world, GR_PS_ALONE);
    }
}

uint64_t world_version(const gr_ps_store *store, uint64_t key, uint32_t block)
{
    gr_ps_image image;
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_image(store, key, block, &image, &diag), GR_OK);
    return image.version;
}
